"""What a metric of a spec left in a record: a number or a loss surface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from dpbench.tasks import METRICS


def _surface(value: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Validates what is drawn of a loss surface: as many numbers as places on its axis, in one direction or two."""
    if value is None:
        return None

    def losses(line: object) -> bool:
        return (
            isinstance(line, list | tuple)
            and len(line) == size
            and all(x is None or isinstance(x, int | float) for x in line)
        )

    axis = value.get("axis")
    size = len(axis) if isinstance(axis, list | tuple) else 0
    if not isinstance(axis, list | tuple) or len(axis) < 3 or not all(isinstance(x, int | float) for x in axis):
        raise ValueError("axis: expected a list of three numbers or more")
    kinds = []
    for name in ("losses", "metric") if "metric" in value else ("losses",):
        rows = value.get(name)
        square = isinstance(rows, list | tuple) and len(rows) == len(axis) and all(map(losses, rows))
        if not (losses(rows) or square):
            raise ValueError(f"{name}: expected a list as long as the axis, or as many lists of that length")
        kinds.append(square)
    if len(set(kinds)) > 1:
        raise ValueError("metric: expected as many directions as losses has")
    if value.get("split", "training") not in ("training", "test"):
        raise ValueError(f"split = {value['split']!r}: expected training or test")
    if "metric" in value and value.get("metric_name") not in METRICS:
        raise ValueError(f"metric_name = {value.get('metric_name')!r}: expected one of {', '.join(METRICS)}")
    return value


@dataclass(frozen=True)
class Measured:
    """What a metric found on the first `records` records of its split; `failed` says why it found nothing.

    `name` has the parameters, as in the context's `metrics`. Not private: it is covered by no ε.
    """

    name: str
    records: Annotated[int, Field(ge=0)] = 0
    value: float | None = None
    surface: Annotated[Mapping[str, Any] | None, AfterValidator(_surface)] = None
    failed: str = ""
