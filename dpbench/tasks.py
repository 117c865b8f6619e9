"""What a dataset is for: which losses can be trained on it, which metrics measure it, and which are the usual ones.

The table of everything that depends on the task. What a loss and a metric compute is in `step/losses.py`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dpbench.errors import DpbenchError

Task = Literal["classification", "regression", "rating", "language_modelling"]
Loss = Literal["cross_entropy", "squared_error"]
MetricName = Literal["accuracy", "rmse", "perplexity"]


@dataclass(frozen=True)
class Metric:
    """A metric of the test records. A record stores it as `test_<name>`; shown, it is multiplied by `scale`.

    `title` is its name in a sentence. `points` names a difference of two shown values; `column` begins the
    names of its columns and, after `test_`, its key in `published`.

    >>> METRICS["accuracy"].text(METRICS["accuracy"].scale * 0.951), METRICS["rmse"].text(0.915)
    ('95.10 %', '0.915')
    """

    name: MetricName
    title: str
    scale: float
    unit: str
    decimals: int
    larger_is_better: bool
    column: str
    points: str = ""

    @property
    def field(self) -> str:
        """Where a record stores it."""
        return f"test_{self.name}"

    @property
    def key(self) -> str:
        """Where a spec has what a source prints, in the metric's unit."""
        return f"test_{self.column}"

    @property
    def noun(self) -> str:
        """The title at the beginning of a sentence."""
        return self.title[:1].upper() + self.title[1:]

    @property
    def label(self) -> str:
        """The title for an axis or a column, with the unit."""
        return ", ".join(filter(None, [f"Test {self.title}", self.unit]))

    def text(self, shown: float) -> str:
        """A shown value with its unit."""
        return f"{shown:.{self.decimals}f}{' ' * bool(self.unit)}{self.unit}"

    def said(self, shown: float) -> str:
        """A shown value as part of a sentence: what it is of, and its unit.

        >>> METRICS["rmse"].said(0.915)
        'test RMSE 0.915'
        """
        return f"test {self.title} {self.text(shown)}"

    def gain(self, change: float) -> float:
        """A change as what it gains: positive where the second of two values is better."""
        return change if self.larger_is_better else -change

    def first(self, shown: float) -> float:
        """A number by which the better of two shown values comes first."""
        return -self.gain(shown)


METRICS: Mapping[str, Metric] = {
    one.name: one
    for one in (
        Metric("accuracy", "accuracy", 100.0, "%", 2, True, "accuracy_percent", "percentage points"),
        Metric("rmse", "RMSE", 1.0, "", 3, False, "rmse"),
        Metric("perplexity", "perplexity", 1.0, "", 2, False, "perplexity"),
    )
}


@dataclass(frozen=True)
class Objective:
    """What a run trains and what it is measured by."""

    loss: Loss
    metric: MetricName

    def outputs(self, classes: int) -> int:
        """The number of outputs of a model: one for a number, one for each class else.

        >>> Objective("squared_error", "rmse").outputs(5)
        1
        """
        return 1 if self.loss == "squared_error" else classes

    def implied(self, loss: float) -> float | None:
        """The metric that a mean loss on the test records determines; None where it does not.

        >>> Objective("squared_error", "rmse").implied(4.0), Objective("cross_entropy", "accuracy").implied(4.0)
        (2.0, None)
        """
        if self.metric == "perplexity":
            return math.exp(loss) if loss < _LARGEST else math.inf
        return math.sqrt(loss) if self == Objective("squared_error", "rmse") and loss >= 0 else None


_LARGEST = math.log(sys.float_info.max)

# The losses and metrics of each task, the usual ones first. A class is also a number, such as that of stars.
_LOSSES: Mapping[Task, tuple[Loss, ...]] = {
    "classification": ("cross_entropy", "squared_error"),
    "regression": ("squared_error",),
    "rating": ("cross_entropy", "squared_error"),
    "language_modelling": ("cross_entropy",),
}
_METRICS: Mapping[tuple[Task, Loss], tuple[MetricName, ...]] = {
    ("classification", "cross_entropy"): ("accuracy", "rmse", "perplexity"),
    ("classification", "squared_error"): ("rmse",),
    ("regression", "squared_error"): ("rmse",),
    ("rating", "cross_entropy"): ("rmse", "accuracy"),
    ("rating", "squared_error"): ("rmse",),
    ("language_modelling", "cross_entropy"): ("perplexity", "accuracy"),
}
CLASSIFICATION = Objective("cross_entropy", "accuracy")


def objective(task: str, loss: str | None = None, metric: str | None = None) -> Objective:
    """The loss and the metric of a run: those of the spec, else those of the dataset's task.

    Raises DpbenchError for a task, loss or metric that is unknown or does not fit the others.

    >>> objective("regression")
    Objective(loss='squared_error', metric='rmse')
    """
    if task not in get_args(Task):
        raise DpbenchError(f"task = {task!r}: expected one of {', '.join(get_args(Task))}")
    losses = _LOSSES[task]  # type: ignore[index]
    if loss is not None and loss not in losses:
        raise DpbenchError(f"loss = {loss}: expected {' or '.join(losses)}, for the dataset is for {words(task)}")
    chosen: Any = loss or losses[0]
    metrics = _METRICS[task, chosen]  # type: ignore[index]
    if metric is not None and metric not in metrics:
        what = f"the dataset is for {words(task)} and the loss is {chosen}"
        raise DpbenchError(f"metric = {metric}: expected {' or '.join(metrics)}, for {what}")
    named: Any = metric or metrics[0]
    return Objective(chosen, named)


def task_of(data: object) -> Task:
    """The task of a dataset or its source; classification where it does not say."""
    found: Task = getattr(data, "task", "classification")
    return found


def unusual(task: str, chosen: Objective) -> dict[str, str]:
    """What of an objective the dataset's task does not imply: the part that belongs into a run's key.

    >>> unusual("classification", Objective("cross_entropy", "rmse"))
    {'metric': 'rmse'}
    """
    loss = {} if chosen.loss == objective(task).loss else {"loss": chosen.loss}
    return loss | ({} if chosen.metric == objective(task, chosen.loss).metric else {"metric": chosen.metric})


def metric_of(values: Mapping[str, Any]) -> Metric | None:
    """The metric that a result or a point of a curve holds; None unless it holds exactly one."""
    held = [metric for metric in METRICS.values() if values.get(metric.field) is not None]
    return held[0] if len(held) == 1 else None


def words(task: str) -> str:
    """A task in words."""
    return task.replace("_", " ")
