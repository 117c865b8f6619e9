"""What a record holds: the types of its parts, and the rules that its values keep.

`dpbench.store.records` writes and reads them as files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeGuard, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from dpbench.errors import DpbenchError
from dpbench.spec.keys import Published
from dpbench.store.measured import Measured
from dpbench.store.run_key import FORMAT
from dpbench.tasks import METRICS, Metric, metric_of

SCHEMA_VERSION = 2
MOST_STEPS = 10**9  # of a run
Fraction = Annotated[float, Field(ge=0, le=1)]
RootError = Annotated[float, Field(ge=0)]
Perplexity = Annotated[float, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
_CHOICES = ("dataset", "model", "mechanism")


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number, which true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _resolved(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Validates the keys of a resolved run that readers rely on; the plan may add others."""
    problems = []
    for name in _CHOICES:
        choice: Any = value.get(name)
        named = isinstance(choice, Mapping) and isinstance(choice.get("name"), str)
        if not named or not isinstance(choice.get("parameters") or {}, Mapping):
            problems.append(f"{name} = {choice!r}: expected an object with a name and parameters")
    rate, steps = value.get("sampling_rate"), value.get("steps")
    if not is_number(rate) or not 0 < rate <= 1:
        problems.append(f"sampling_rate = {rate!r}: expected a number from 0 to 1")
    if not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= MOST_STEPS:
        problems.append(f"steps = {steps!r}: expected a number from 1 to {MOST_STEPS}")
    for name in ("learning_rate", "clip_norm", "noise_multiplier", "epsilon", "delta"):
        number = value.get(name)
        if number is not None and (not is_number(number) or math.isnan(number) or number < 0):
            problems.append(f"{name} = {number!r}: expected a number, 0 or more, or null")
    form = value.get("format", 1)
    if form is True or form not in (1, FORMAT):
        problems.append(f"format = {form!r}: expected 1 or {FORMAT}, the formats of run keys that this dpbench reads")
    if not isinstance(value.get("numerics") or {}, Mapping):
        problems.append(f"numerics = {value['numerics']!r}: expected an object")
    if not isinstance(value.get("randomness", "own"), str):
        problems.append(f"randomness = {value['randomness']!r}: expected a text")
    if problems:
        raise ValueError("; ".join(problems))
    return value


_TEXTS = ("commit", "dpbench", "python", "platform", "torch", "device", "device_name", "processor", "time_utc")


def _environment(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Validates what readers show of an environment; the writer may add other facts."""
    kinds: dict[str, type] = dict.fromkeys(_TEXTS, str) | {"dirty": bool, "threads": int, "engine": Mapping}
    for name, kind in kinds.items():
        if value.get(name) is not None and not isinstance(value[name], kind):
            raise ValueError(f"{name} = {value[name]!r}: expected {_KINDS[kind]}")
    return value


_KINDS = {str: "a text", bool: "true or false", int: "a whole number", Mapping: "an object"}
_WEIGHTS = ("file", "pretrained_on", "licence", "sha256")


def _weights(value: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Validates what is shown of a run that starts from weights."""
    if value is not None:
        if not all(isinstance(value.get(name), str) for name in _WEIGHTS):
            raise ValueError(f"expected texts for {', '.join(_WEIGHTS)}")
        frozen = value.get("frozen")
        if not isinstance(frozen, list | tuple) or not all(isinstance(one, str) for one in frozen):
            raise ValueError("frozen: expected a list of texts")
    return value


@dataclass(frozen=True)
class Context:
    """The spec that asked for a run: shown by the report, never part of the run's key.

    `number`: the place among the points of its file, from 1 on; 0 where an older record does not say. `of_file` names
    the user's file of which the dataset was made, `data_warning` says how its columns make the runs worth little.
    """

    name: str
    label: str = ""
    number: int = 0
    file: str = ""
    source: str | None = None
    published: Published | None = None
    accountants: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    reduced: str | None = None
    tuned: str | None = None
    weights: Annotated[Mapping[str, Any] | None, AfterValidator(_weights)] = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    target_epsilon: Annotated[float, Field(gt=0)] | None = None
    calibrate_with: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    of_file: str = ""
    data_warning: str = ""


@dataclass(frozen=True)
class Facts:
    """Facts that reviewers ask for; None where the mechanism does not state it.

    `claimed_by`: the statement that alone stands for the ε of the budget, which no accountant confirms.
    `most_frequent`: the share of the most frequent class among the test records.
    `without_noise`: the share of the drawn records that met no noise, of a mechanism that leaves it out at times.
    """

    private: bool
    privacy_unit: str | None = None
    adjacency: str | None = None
    sampler: str | None = None
    normalisation: str | None = None
    expected_batch_size: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    examples: Count | None = None
    test_examples: Count | None = None
    parameters: Count | None = None
    generator: str | None = None
    dtype: str | None = None
    dataset_real: bool = True
    task: str | None = None
    most_frequent: Fraction | None = None
    claimed_by: str | None = None
    without_noise: Fraction | None = None


_METRIC_FIELDS = tuple(metric.field for metric in METRICS.values())


class _Measured:
    """What holds one metric: `test_accuracy` as a fraction, `test_rmse` or `test_perplexity`.

    Raises ValueError unless it holds exactly one.
    """

    def __post_init__(self) -> None:
        if metric_of(vars(self)) is None:
            held = [name for name in _METRIC_FIELDS if vars(self)[name] is not None]
            raise ValueError(
                f"expected exactly one of {', '.join(_METRIC_FIELDS)}, found {' and '.join(held) or 'none'}"
            )

    @property
    def metric(self) -> Metric:
        """The metric that it holds."""
        found = metric_of(vars(self))
        assert found is not None, "a record without its metric was read"
        return found

    @property
    def shown(self) -> float:
        """The value of the metric in its unit: accuracy in per cent."""
        metric = self.metric
        return metric.scale * float(getattr(self, metric.field))


@dataclass(frozen=True)
class CurvePoint(_Measured):
    """One evaluation. `seconds` of training so far, without evaluation; `test_accuracy` is a fraction.

    Of `test_accuracy`, `test_rmse` and `test_perplexity` it has exactly one. `metrics`: what a spec's metrics found
    there, before the end.
    """

    epoch: Finite
    step: int
    seconds: Seconds
    test_accuracy: Fraction | None = None
    releases: Count | None = None
    test_loss: float | None = None
    train_loss: float | None = None
    test_rmse: RootError | None = None
    test_perplexity: Perplexity | None = None
    metrics: tuple[Measured, ...] = ()


@dataclass(frozen=True)
class Result(_Measured):
    """The last epoch's figures, never the best ones; `test_accuracy` is a fraction. It has one metric."""

    test_accuracy: Fraction | None = None
    test_loss: float | None = None
    test_rmse: RootError | None = None
    test_perplexity: Perplexity | None = None
    metrics: tuple[Measured, ...] = ()


@dataclass(frozen=True)
class Checked:
    """The verdict of `dpbench check` on a run's mechanism, by the hash of its code; `planned`: steps covered.

    `unchecked`: no check was run, or something could not be checked, which `reason` names.
    """

    verdict: Literal["holds", "refuted", "unchecked"]
    reason: str
    code: str = ""
    planned: int | None = None


@dataclass(frozen=True)
class RunRecord:
    """One finished run. `seconds`: training time of its stack; `own_seconds`: this run's share of that."""

    run_key: str
    seed: int
    resolved: Annotated[Mapping[str, Any], AfterValidator(_resolved)]
    context: Context
    facts: Facts
    ledger: Mapping[str, Any] | None
    curve: tuple[CurvePoint, ...]
    result: Result
    seconds: Seconds
    sources: Mapping[str, str] = field(default_factory=dict)
    environment: Annotated[Mapping[str, Any], AfterValidator(_environment)] = field(default_factory=dict)
    own_seconds: Seconds | None = None
    stack_runs: Annotated[int, Field(ge=1)] = 1
    resumed: bool = False
    checked: Checked | None = None
    schema_version: Literal[1, 2] = 2
    type: Literal["run"] = "run"
    digest: str | None = None


@dataclass(frozen=True)
class FailureRecord:
    """One run that ended with an error; it is no result and counts nowhere as one."""

    run_key: str
    seed: int
    context: Context
    error: str
    traceback: str = ""
    step: int | None = None
    environment: Annotated[Mapping[str, Any], AfterValidator(_environment)] = field(default_factory=dict)
    schema_version: Literal[1, 2] = 2
    type: Literal["failure"] = "failure"
    digest: str | None = None


Kind = TypeVar("Kind", bound=RunRecord | FailureRecord | Context)


def run_record(data: RunRecord | Mapping[str, Any]) -> RunRecord:
    """A run record as it is, or from plain data. Raises DpbenchError naming the fields that are wrong."""
    return data if isinstance(data, RunRecord) else typed(RunRecord, headed(RunRecord, data), "this run record")


def failure_record(data: FailureRecord | Mapping[str, Any]) -> FailureRecord:
    """A failure record as it is, or from plain data. Raises like `run_record`."""
    if isinstance(data, FailureRecord):
        return data
    return typed(FailureRecord, headed(FailureRecord, data), "this failure record")


def run_context(data: Context | Mapping[str, Any]) -> Context:
    """A context as it is, or from plain data. Raises like `run_record`."""
    return data if isinstance(data, Context) else typed(Context, data, "this context")


def headed(kind: type[RunRecord] | type[FailureRecord], data: Mapping[str, Any]) -> dict[str, Any]:
    """A record as plain data with its version and type, where it does not say them."""
    return {"schema_version": SCHEMA_VERSION, "type": kind.type, **data}


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def typed(kind: type[Kind], data: Mapping[str, Any], where: str) -> Kind:
    """The data as a record. Raises DpbenchError that begins with `where` and names the fields that are wrong."""
    hashable: Any = kind
    try:
        # Strict JSON rules (no text taken for a number) that still let a list stand for a tuple.
        record: Kind = _adapter(hashable).validate_json(json.dumps(data, default=as_data), strict=True)
    except ValidationError as error:
        name = getattr(kind, "type", "context")
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or name}: {item['msg'][:1].lower()}{item['msg'][1:]}"
            for item in error.errors(include_url=False)[:5]
        )
        raise DpbenchError(f"{where}: not a {name} of schema {SCHEMA_VERSION} ({problems})") from error
    return record


def as_data(value: Any) -> Any:
    """Mappings and dataclasses inside plain data, for `json.dumps`."""
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} {value!r}: expected plain JSON data")
