"""Stored enclosures of δ(ε): points with proven ends, with which accountants are compared.

A table is a JSON file of type `reference_table`, like those in `TABLES`; both of its forms are read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbench.atomic import read_text
from dpbench.errors import DpbenchError
from dpbench.events import Composition, from_json

TABLES = Path(__file__).parents[1] / "references" / "tables"  # those that came with the package


@dataclass(frozen=True)
class Point:
    """δ of `composition` at `epsilon`, the larger of both directions, lies between `lower` and `upper`.

    `budget` is the relative error that an exact accountant is allowed; `regime` groups points.
    """

    table: str
    regime: str
    composition: Composition
    epsilon: float
    lower: float
    upper: float
    budget: float


def read_points(paths: Sequence[Path]) -> tuple[Point, ...]:
    """The points of tables and of folders of tables. Raises DpbenchError for a file that is no such table.

    >>> read_points([Path("none.json")])
    Traceback (most recent call last):
    dpbench.errors.DpbenchError: none.json: there is no such file or folder
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise DpbenchError(f"{path}: there is no such file or folder")
        files += sorted(path.glob("*.json")) if path.is_dir() else [path]
    points = [point for file in files for point in _points(file)]
    if not points:
        raise DpbenchError(f"{', '.join(map(str, paths))}: there are no tables of points here")
    return tuple(points)


def _points(file: Path) -> list[Point]:
    try:
        table = json.loads(read_text(file))
        if table.get("type") != "reference_table":
            raise DpbenchError(f"{file}: expected a table of type reference_table")
        return [_point(file.stem, entry) for entry in table["points"]]
    except (OSError, ValueError, ArithmeticError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DpbenchError(f"{file}: cannot be read as a table of points ({error})") from error


def _point(table: str, entry: dict[str, Any]) -> Point:
    ends = entry.get("both", entry)
    return Point(
        table,
        entry["regime"],
        from_json(entry["composition"]),
        float(entry["epsilon"]),
        float(ends["lower"]),
        float(ends["upper"]),
        float(entry.get("budget") or 0.0),
    )
