"""The long tests in three parts, one a day: `python -m pytest -m long --third auto`, so that all run within three days.

A test's third is a hash of its id, so that a new test moves no other, and tests of one file spread over the three.
"""

from __future__ import annotations

import hashlib
from datetime import date

import pytest

THIRDS = 3


def third_of(test_id: str) -> int:
    """Which third a test belongs to."""
    return int(hashlib.sha256(test_id.encode()).hexdigest(), 16) % THIRDS


def todays(today: date | None = None) -> int:
    """The third of a day; days are counted from year 1, so that none is left out at New Year."""
    return (today or date.today()).toordinal() % THIRDS


def keep(third: int, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long tests of the other thirds."""
    others = [item for item in items if item.get_closest_marker("long") and third_of(item.nodeid) != third]
    if others:
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=others)
