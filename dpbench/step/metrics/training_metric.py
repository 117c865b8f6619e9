"""The run's own metric on training records: accuracy in per cent, RMSE or perplexity.

Beside the same on test records it tells whether a model that gets worse does so on what it is trained on, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpbench.step.functional import evaluate
from dpbench.step.metric import Trained, whole
from dpbench.tasks import METRICS


@dataclass(frozen=True)
class TrainingMetric:
    """A `Metric`: over how many training records, the first of the data. Not private.

    Raises DpbenchError for numbers outside their range.

    >>> TrainingMetric().records
    10000
    """

    records: int = 10_000

    def __post_init__(self) -> None:
        whole("records", self.records, 1)

    def measure(self, trained: Trained) -> Mapping[str, Any]:
        """`value` in the unit in which the metric is shown."""
        part = trained.first(self.records)
        _, found_R = evaluate(part.net, part.theta_RP, part.inputs, part.targets, part.chunk, part.view)
        return {"records": len(part.targets), "value": METRICS[part.net.objective.metric].scale * float(found_R[0])}


metric = TrainingMetric
