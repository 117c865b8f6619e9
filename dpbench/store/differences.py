"""Two folders of records side by side: the same runs matched, and what differs between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dpbench.store.records import finite
from dpbench.store.shapes import RunRecord, run_record
from dpbench.tasks import METRICS, MetricName

Matched = Literal["run_key", "name", "only_a", "only_b"]
_SELDOM_EQUAL = ("time_utc",)  # differs between any two runs


@dataclass(frozen=True)
class Difference:
    """One run of A, of B, or of both.

    `matched`: by `run_key` (the same run), by `name` (same spec, label and seed, other settings), or `only_a`,
    `only_b`. `metric` is that of B, or of A without B; `measured_a` and `measured_b` are in the unit of each one's
    metric (accuracy: per cent), `change` is B − A, None where the metrics differ. `configuration`, `environment` and
    `sources` hold what differs, each as (A's value, B's value).
    """

    matched: Matched
    name: str
    label: str
    seed: int
    key_a: str | None
    key_b: str | None
    metric: MetricName
    measured_a: float | None
    measured_b: float | None
    change: float | None
    seconds_a: float | None
    seconds_b: float | None
    configuration: Mapping[str, tuple[Any, Any]]
    environment: Mapping[str, tuple[Any, Any]]
    sources: tuple[str, ...]

    @property
    def title(self) -> str:
        """Spec, label and seed."""
        return " ".join(filter(None, [self.name, self.label and f"[{self.label}]", f"seed {self.seed}"]))

    @property
    def same_result(self) -> bool:
        """Both sides are there and what was measured is equal to the last bit."""
        return self.change is not None and self.measured_a == self.measured_b

    def fails(self, most: Mapping[str, float] | None) -> bool:
        """Whether B lacks the run or became worse by more than `most` has for its metric, in the metric's unit.

        None: whether anything differs in it. Code and environment may differ: what they changed shows in the result.
        A run whose metric changed fails; one whose metric is not in `most` passes.
        """
        if most is None:
            return not self.same_result or bool(self.configuration)
        if self.matched == "only_a":
            return True
        if self.measured_a is None:
            return False
        if self.change is None:
            return True
        return self.metric in most and METRICS[self.metric].gain(self.change) < -most[self.metric]

    @property
    def in_words(self) -> str:
        """What differs, in a few words."""
        if self.measured_a is None or self.measured_b is None:
            return "only in the second folder" if self.measured_a is None else "only in the first folder"
        settings = ", ".join(f"{key} {a} -> {b}" for key, (a, b) in list(self.configuration.items())[:3])
        if self.change is None:
            return f"another metric, {self.metric}{'; ' * bool(settings)}{settings}"
        metric = METRICS[self.metric]
        measured = f"{metric.name} {metric.text(self.measured_a)} -> {metric.text(self.measured_b)}"
        return f"{measured}; {settings}" if settings else measured

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        data: dict[str, Any] = finite(asdict(self))
        return data


def diff(
    records_a: Iterable[RunRecord | Mapping[str, Any]], records_b: Iterable[RunRecord | Mapping[str, Any]]
) -> list[Difference]:
    """Match the records of A with those of B: by run key, else by spec name, label and seed, each at most once.

    Rows come by spec, label and seed, then what only B has. Raises DpbenchError for data without a record's shape.

    >>> diff([], [])
    []
    """
    left = {run.run_key: run for run in map(run_record, records_a)}
    right = {run.run_key: run for run in map(run_record, records_b)}
    unmatched: dict[tuple[str, str, int], list[RunRecord]] = {}
    for run in right.values():
        if run.run_key not in left:
            unmatched.setdefault(_name(run), []).append(run)
    rows = []
    for run in sorted(left.values(), key=_name):
        if run.run_key in right:
            rows.append(_pair("run_key", run, right[run.run_key]))
        elif unmatched.get(_name(run)):
            rows.append(_pair("name", run, unmatched[_name(run)].pop(0)))
        else:
            rows.append(_pair("only_a", run, None))
    taken = {row.key_b for row in rows}
    return rows + [_pair("only_b", None, run) for run in sorted(right.values(), key=_name) if run.run_key not in taken]


def _name(run: RunRecord) -> tuple[str, str, int]:
    return run.context.name, run.context.label, run.seed


def _pair(matched: Matched, a: RunRecord | None, b: RunRecord | None) -> Difference:
    one = a or b
    assert one is not None
    measured_a, measured_b = (None if run is None else run.result.shown for run in (a, b))
    alike = a is not None and b is not None and a.result.metric == b.result.metric
    return Difference(
        matched=matched,
        name=one.context.name,
        label=one.context.label,
        seed=one.seed,
        key_a=None if a is None else a.run_key,
        key_b=None if b is None else b.run_key,
        metric=(b or one).result.metric.name,
        measured_a=measured_a,
        measured_b=measured_b,
        change=measured_b - measured_a if alike and measured_a is not None and measured_b is not None else None,
        seconds_a=None if a is None else a.seconds,
        seconds_b=None if b is None else b.seconds,
        configuration=_changes(a.resolved, b.resolved) if a and b else {},
        environment=_changes(a.environment, b.environment, _SELDOM_EQUAL) if a and b else {},
        sources=tuple(_changes(a.sources, b.sources)) if a and b else (),
    )


def _changes(a: Mapping[str, Any], b: Mapping[str, Any], without: tuple[str, ...] = ()) -> dict[str, tuple[Any, Any]]:
    """Dotted path to (A's value, B's value) wherever the two differ; an absent value counts as None."""
    left, right = flatten(a), flatten(b)
    keys = [key for key in dict.fromkeys([*left, *right]) if key not in without]
    return {key: (left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)}


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted paths.

    >>> flatten({"model": {"name": "mlp", "parameters": {}}, "seed": 0})
    {'model.name': 'mlp', 'seed': 0}
    """
    if not isinstance(value, Mapping):
        return {path: value}
    nested = [flatten(item, f"{path}.{key}" if path else str(key)) for key, item in value.items()]
    return {key: item for part in nested for key, item in part.items()}
