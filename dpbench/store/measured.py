"""What a metric of a spec left in a record: a number or a loss surface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field


def _surface(value: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Validates what is drawn of a loss surface: as many losses as places on its axis, in one direction or two."""
    if value is None:
        return None

    def losses(line: object) -> bool:
        return (
            isinstance(line, list | tuple)
            and len(line) == size
            and all(x is None or isinstance(x, int | float) for x in line)
        )

    axis, rows = value.get("axis"), value.get("losses")
    size = len(axis) if isinstance(axis, list | tuple) else 0
    if not isinstance(axis, list | tuple) or len(axis) < 3 or not all(isinstance(x, int | float) for x in axis):
        raise ValueError("axis: expected a list of three numbers or more")
    square = isinstance(rows, list | tuple) and len(rows) == len(axis) and all(map(losses, rows))
    if not (losses(rows) or square):
        raise ValueError("losses: expected a list as long as the axis, or as many lists of that length")
    return value


@dataclass(frozen=True)
class Measured:
    """What a metric found on the first `records` training records; `failed` says why it found nothing.

    `name` has the parameters, as in the context's `metrics`. Not private: it is covered by no ε.
    """

    name: str
    records: Annotated[int, Field(ge=0)] = 0
    value: float | None = None
    surface: Annotated[Mapping[str, Any] | None, AfterValidator(_surface)] = None
    failed: str = ""
