"""A sample of the stored tables: all of its days together are the tables."""

from __future__ import annotations

from pathlib import Path

from dpbench.judging.enclosures import TABLES, read_points
from tests.references.sample import write


def test_every_point_has_its_turn(tmp_path: Path) -> None:
    counts = [write(tmp_path / str(first), 4, first) for first in range(4)]
    found = [point for first in range(4) for point in read_points([tmp_path / str(first)])]
    assert len(found) == sum(counts)
    assert sorted(map(repr, found)) == sorted(map(repr, read_points([TABLES])))
