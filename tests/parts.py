"""The long tests in seven parts, one a day: `python -m pytest -m long --part auto`, so that each runs once a week.

A test's part is a hash of its id, so that a new test moves no other, and tests of one file spread over all parts.
"""

from __future__ import annotations

import hashlib
from datetime import date

import pytest

PARTS = 7


def part_of(test_id: str) -> int:
    """Which part a test belongs to."""
    return int(hashlib.sha256(test_id.encode()).hexdigest(), 16) % PARTS


def todays(today: date | None = None) -> int:
    """The part of a day: each weekday has its own."""
    return (today or date.today()).toordinal() % PARTS


def keep(part: int, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long tests of the other parts."""
    others = [item for item in items if item.get_closest_marker("long") and part_of(item.nodeid) != part]
    if others:
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=others)
