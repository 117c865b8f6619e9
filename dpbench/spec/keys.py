"""The keys of a run file, each with its type, limits, description and an example.

The loader (`loading.py`) and the JSON Schema (`cli/schemas.py`) both read these tables. `Budget` and `Training` are
tables themselves; the other classes differ from their form in the file (a name or a mapping, n or a list).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import Field

from dpbench.spec.annotations import Slot, fields_of
from dpbench.spec.points import CHOICES, MOST_RUNS, SEEDS
from dpbench.tasks import METRICS, Loss, Metric, MetricName

KINDS = ("run", "claims", "events")
LARGEST_SEED = 2**32 - 1
Randomness = Literal["own", "common", "secure"]


def _about(description: str, *examples: Any, **limits: Any) -> Any:
    return Field(description=description, examples=list(examples), **limits)


@dataclass(frozen=True)
class Choice:
    """A dataset, model or mechanism by its name in the catalog or as `package.module:factory`, and its parameters.

    `parameters` are those of the spec, in the types of the signature (lists as tuples).
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Budget:
    """The privacy budget of a run: a target ε or a noise multiplier σ (exactly one of them), at δ."""

    epsilon: Annotated[
        float | None,
        _about("target ε; the noise is calibrated to it (or noise_multiplier)", 3.0, gt=0, allow_inf_nan=False),
    ]
    noise_multiplier: Annotated[
        float | None, _about("σ, relative to the clip norm (or epsilon)", 1.3, gt=0, allow_inf_nan=False)
    ]
    delta: Annotated[float, _about("δ at which ε is stated", 1e-5, gt=0, lt=1)]
    calibrate_with: Annotated[
        str | None,
        _about("accountant that calibrates the noise to epsilon (default: exact where it covers the mechanism)", "rdp"),
    ] = None


@dataclass(frozen=True)
class Training:
    """Batches, length and learning rate; exactly one of batch_size and sampling_rate, one of epochs and steps.

    `batch_size` is the expected size of a Poisson batch, `sampling_rate` the probability q of every example.
    `clip_norm` is C, None where nothing is clipped.
    """

    batch_size: Annotated[int | None, _about("expected batch size (or sampling_rate)", 256, ge=1)]
    sampling_rate: Annotated[
        float | None, _about("probability q that an example is in a batch (or batch_size)", 0.01, gt=0, le=1)
    ]
    epochs: Annotated[float | None, _about("passes over the data (or steps)", 15, gt=0, allow_inf_nan=False)]
    steps: Annotated[int | None, _about("number of updates T (or epochs)", 1000, ge=1)]
    learning_rate: Annotated[float, _about("step size of the update", 0.15, gt=0, allow_inf_nan=False)]
    clip_norm: Annotated[
        float | None, _about("norm C to which each example's gradient is clipped", 1.0, gt=0, allow_inf_nan=False)
    ]


@dataclass(frozen=True)
class Printed:
    """A number as printed in a source: its digits, its value, and half a unit in its last place.

    >>> Printed.of("95.0")
    Printed(text='95.0', value=95.0, half_unit=0.05)
    """

    text: str
    value: float
    half_unit: float

    @classmethod
    def of(cls, text: str) -> Printed:
        """The printed number that a decimal text stands for. Raises decimal.InvalidOperation for any other text."""
        number = Decimal(text)
        if not number.is_finite():
            raise ValueError(f"text = {text!r}: expected a finite decimal number")
        return cls(text, float(number), float(Decimal(5).scaleb(int(number.as_tuple().exponent) - 1)))


@dataclass(frozen=True)
class Published:
    """The numbers that a paper prints for this setting. `epsilon` is by accountant; accuracies are in per cent.

    Of accuracy, RMSE and perplexity a source prints that of the run's metric. `epochs_to_reach` is by value of it, in
    its unit; `measured` by name of a metric of the spec's `metrics`.

    `seconds_per_epoch` and `memory_percent` (of the source's device) depend on the source's machine: they are shown
    beside the measured values and get no verdict. Nor does `sharpness`, a maximum that nobody can compute, nor
    `stated_epsilon`, of an accountant that the source does not name.
    """

    accuracy_percent: Printed | None = None
    accuracy_deviation_percent: Printed | None = None
    accuracy_lowest_percent: Printed | None = None
    accuracy_highest_percent: Printed | None = None
    averaged_over: int | None = None
    mu: Printed | None = None
    epsilon: Mapping[str, Printed] = field(default_factory=dict)
    seconds_per_epoch: Printed | None = None
    memory_percent: Printed | None = None
    rmse: Printed | None = None
    perplexity: Printed | None = None
    sharpness: Printed | None = None
    epochs_to_reach: Mapping[str, Printed] = field(default_factory=dict)
    measured: Mapping[str, Printed] = field(default_factory=dict)
    stated_epsilon: Printed | None = None

    def of(self, metric: Metric) -> Printed | None:
        """What is printed for a metric, in its unit."""
        found: Printed | None = getattr(self, metric.column)
        return found

    @property
    def result(self) -> tuple[Metric, Printed] | None:
        """The metric that is printed, with its value; None where none is."""
        return next(((one, value) for one in METRICS.values() if (value := self.of(one)) is not None), None)

    @property
    def results(self) -> int:
        """How many results it has with which one's own can be compared."""
        others = self.result, self.accuracy_deviation_percent, self.accuracy_range
        return sum(one is not None for one in others) + len(self.epochs_to_reach) + len(self.measured)

    @property
    def accuracy_range(self) -> tuple[Printed, Printed] | None:
        """The lowest and the highest accuracy of `averaged_over` runs; None where they are not printed."""
        ends = self.accuracy_lowest_percent, self.accuracy_highest_percent
        return None if ends[0] is None or ends[1] is None else (ends[0], ends[1])


@dataclass(frozen=True)
class Weights:
    """Where the parameters start: a file of weights, with its licence and what it was trained on.

    `file` is relative to the spec's folder; `frozen` are patterns of names of parameters that are not trained. Where
    `made_by` says how the file is made, runs are skipped with it while the file is absent; else that is a mistake.
    """

    file: Annotated[str, _about("a state dictionary of torch.save, relative to this file", "digits.pt", min_length=1)]
    licence: Annotated[str, _about("under which licence the weights are used", "MIT", min_length=1)]
    pretrained_on: Annotated[
        str, _about("what they were trained on, and whether it is public", "ImageNet-1k, public", min_length=1)
    ]
    frozen: Annotated[
        tuple[str, ...], _about("patterns of names of parameters that stay as they are", ["features.*"])
    ] = ()
    sha256: Annotated[
        str | None, _about("hash of the file; another file is refused", "0" * 64, pattern="^[0-9a-f]{64}$")
    ] = None
    made_by: Annotated[
        str | None,
        _about(
            "the command that makes the file; while it is absent, runs are skipped",
            "dpbench run brown.yaml",
            min_length=1,
        ),
    ] = None


@dataclass(frozen=True)
class Spec:
    """One setting to train, once for each seed: one point of a file's rows x zip x grid.

    `loss` and `metric` are None where those of the dataset's task are meant. `label` names the point within
    the file, "" if there is only one. Empty `accountants` means all that support the run. The
    position in the file (`file`, `line`, and `number`, from 1 on) is ignored when specs are compared.
    """

    name: str
    label: str
    file: str = field(compare=False)
    line: int = field(compare=False)
    number: int = field(compare=False)
    source: str
    dataset: Choice
    model: Choice
    mechanism: Choice
    budget: Budget | None
    training: Training
    seeds: tuple[int, ...] = SEEDS
    randomness: Randomness = "own"
    accountants: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    published: Published | None = None
    reduced: str | None = None
    tuned: str | None = None
    weights: Weights | None = None
    loss: str | None = None
    metric: str | None = None
    metrics: tuple[Choice, ...] = ()
    metrics_along: int = 1
    folder: str = field(default="", compare=False)


_Text = Annotated[str, Field(min_length=1)]
_Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

BUDGET = fields_of(Budget)
TRAINING = fields_of(Training)
WEIGHTS = fields_of(Weights)
DEVIATION = "test_accuracy_deviation_percent"
LOWEST, HIGHEST = "test_accuracy_lowest_percent", "test_accuracy_highest_percent"
VALUE = r"^\d+(\.\d+)?$"  # of a metric, under `epochs_to_reach`
PUBLISHED: Mapping[str, Slot] = {
    "test_accuracy_percent": Slot(
        "accuracy_percent", Annotated[float, Field(ge=0, le=100)], None, "test accuracy, digit for digit", (95.0,)
    ),
    DEVIATION: Slot(
        "accuracy_deviation_percent",
        Annotated[float, Field(ge=0, le=100)],
        None,
        "standard deviation of the test accuracies of `averaged_over` runs, digit for digit",
        (0.18,),
    ),
    LOWEST: Slot(
        "accuracy_lowest_percent",
        Annotated[float, Field(ge=0, le=100)],
        None,
        "lowest test accuracy of `averaged_over` runs, digit for digit (with the highest)",
        (93.51,),
    ),
    HIGHEST: Slot(
        "accuracy_highest_percent",
        Annotated[float, Field(ge=0, le=100)],
        None,
        "highest test accuracy of `averaged_over` runs, digit for digit (with the lowest)",
        (94.06,),
    ),
    "test_rmse": Slot("rmse", _Positive, None, "root mean square error on the test records, digit for digit", (0.915,)),
    "test_perplexity": Slot(
        "perplexity",
        Annotated[float, Field(ge=1, allow_inf_nan=False)],
        None,
        "test perplexity, digit for digit",
        (88.1,),
    ),
    "epochs_to_reach": Slot(
        "epochs_to_reach",
        dict[str, _Positive],
        None,
        "by value of the run's metric, the first epoch after which the test records have it, digit for digit",
        ({"95": 18},),
    ),
    "measured": Slot(
        "measured",
        dict[str, float],
        None,
        "by name of one of the spec's `metrics`, what it found, digit for digit",
        ({"correct_labels": 91.38},),
    ),
    "averaged_over": Slot(
        "averaged_over", Annotated[int, Field(ge=1)], None, "number of runs behind the accuracy or other metric", (10,)
    ),
    "mu": Slot("mu", _Positive, None, "μ of the central limit theorem, digit for digit", (0.23,)),
    "epsilon": Slot("epsilon", dict[str, _Positive], None, "ε by accountant, digit for digit", ({"gdp_clt": 0.83},)),
    "stated_epsilon": Slot(
        "stated_epsilon",
        _Positive,
        None,
        "ε of an accountant that the source does not name; shown, without a verdict",
        (7.44,),
    ),
    "seconds_per_epoch": Slot(
        "seconds_per_epoch", _Positive, None, "training time on the source's machine; shown, without a verdict", (2.5,)
    ),
    "memory_percent": Slot(
        "memory_percent",
        Annotated[float, Field(ge=0, le=100)],
        None,
        "memory in per cent of the source's device; shown, without a verdict",
        (12,),
    ),
    "sharpness": Slot(
        "sharpness",
        Annotated[float, Field(ge=0, allow_inf_nan=False)],
        None,
        "sharpness of the trained model; shown, without a verdict, since it depends on the search for the maximum",
        (0.8626,),
    ),
}
SECTIONS: Mapping[str, Mapping[str, Slot]] = {
    "budget": BUDGET,
    "training": TRAINING,
    "published": PUBLISHED,
    "weights": WEIGHTS,
}
RUN: Mapping[str, Slot] = {
    "kind": Slot("kind", Literal["run"], description="what this file holds: something to train"),
    "name": Slot(
        "name",
        Annotated[str, Field(pattern=_NAME, max_length=100)],
        description="name of the spec, in tables, file names and --only",
        examples=("quickstart-noisy-sgd",),
        words="a name of letters, digits, '-', '_' and '.'",
    ),
    "source": Slot("source", _Text, "", "where the setting comes from: paper, version, table, page"),
    "dataset": Slot("dataset", Choice, description="the data", examples=("digits",)),
    "model": Slot(
        "model",
        Choice,
        description="the network",
        examples=("logistic", {"name": "mlp", "parameters": {"hidden": [64]}}),
    ),
    "mechanism": Slot("mechanism", Choice, description="how to train", examples=("noisy_sgd",)),
    "loss": Slot("loss", Loss, None, "what is trained (default: that of the dataset's task)", ("squared_error",)),
    "metric": Slot(
        "metric",
        MetricName,
        None,
        "what is measured (default: that of the dataset's task)",
        ("rmse",),
        words="accuracy, rmse or perplexity, of the test records (sharpness and the like belong under `metrics`)",
    ),
    "budget": Slot(
        "budget",
        Budget,
        description="the privacy to spend, or none for training without privacy",
        examples=({"epsilon": 3, "delta": 1e-5}, {"noise_multiplier": 1.3, "delta": 1e-5}, "none"),
        words="none, or a mapping with epsilon or noise_multiplier, and delta",
    ),
    "training": Slot(
        "training",
        Training,
        description="batches, length, learning rate and clipping",
        words="a mapping with batch_size or sampling_rate, epochs or steps, learning_rate and clip_norm",
    ),
    "seeds": Slot(
        "seeds",
        Annotated[int, Field(ge=1, le=MOST_RUNS)] | Annotated[tuple[_Seed, ...], Field(min_length=1)],
        SEEDS,
        "number of runs n (seeds 0 to n-1), or the list of seeds; without it ten",
        (5, [0, 1, 2]),
    ),
    "randomness": Slot(
        "randomness",
        Randomness,
        "own",
        "random numbers of batches and noise: the run's own, those common to its seed, or the operating system's",
        ("own", "secure"),
    ),
    "accountants": Slot(
        "accountants",
        tuple[str, ...],
        (),
        "accountants to report (default: all that support the run)",
        (["rdp"],),
        words="a list of accountants",
    ),
    "needs": Slot("needs", tuple[Literal["gpu"], ...], (), "what the run needs; it is skipped elsewhere", (["gpu"],)),
    "metrics": Slot(
        "metrics",
        list,
        (),
        "what is measured on training records at the end, without privacy; no part of the run's key",
        (["sharpness"], [{"name": "loss_surface", "parameters": {"directions": 1}}]),
        words="a list of metrics",
    ),
    "metrics_along": Slot(
        "metrics_along",
        Annotated[int, Field(ge=1, le=100)],
        1,
        "how often metrics are measured along the training, about evenly, the last time at its end",
        (10,),
    ),
    "published": Slot("published", Published, None, "numbers printed for exactly this setting"),
    "weights": Slot(
        "weights",
        Weights,
        None,
        "where the parameters start: a file of weights, some of them frozen",
        ({"file": "digits.pt", "licence": "MIT", "pretrained_on": "MNIST, public", "frozen": ["0.*"]},),
        words="a mapping with file, licence and pretrained_on",
    ),
    "reduced": Slot("reduced", _Text, None, "how this falls short of the paper's setting; never beside its numbers"),
    "tuned": Slot("tuned", _Text, None, "what was tuned on these data and is not accounted for"),
    "grid": Slot("grid", dict, None, "dotted paths to lists; every combination", ({"budget.epsilon": [1, 3]},)),
    "zip": Slot("zip", dict, None, "dotted paths to lists of equal length, taken together"),
    "rows": Slot("rows", list, None, "a table: mappings of what each row changes; each may have a label"),
}
SETTABLE = (
    *CHOICES,
    *("budget", "training", "randomness", "loss", "metric"),
    *(f"budget.{name}" for name in BUDGET),
    *(f"training.{name}" for name in TRAINING),
)
# Where a key belongs, "" for the top of the file; for keys of two mappings, the one that is usually meant.
HOMES: Mapping[str, str] = {
    **dict.fromkeys(WEIGHTS, "weights"),
    **dict.fromkeys(PUBLISHED, "published"),
    **dict.fromkeys(TRAINING, "training"),
    **dict.fromkeys(BUDGET, "budget"),
    **dict.fromkeys(RUN, ""),
}
