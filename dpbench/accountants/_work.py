"""How much a computation may take, counted in complex exponentials: it ends at the same place on every machine.

Nearly all of what takes long here takes them, at 20 to 50 ns each in all compositions measured, or as many real nodes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TooDear(Exception):
    """An answer would take more work than was granted. No ArithmeticError: nobody on the way may take it for one."""


class _Granted(threading.local):
    left = math.inf


_GRANTED = _Granted()


def spend(exponentials: int) -> None:
    """Counts what is about to be done. Raises TooDear where that is more than was granted."""
    _GRANTED.left -= exponentials
    if _GRANTED.left < 0:
        raise TooDear


@contextmanager
def granted(exponentials: float) -> Iterator[None]:
    """Within it no more than so many may be spent, nor more than was granted outside of it.

    >>> with granted(100):
    ...     spend(60)
    ...     try:
    ...         spend(60)
    ...     except TooDear:
    ...         print("too dear")
    too dear
    """
    before = _GRANTED.left
    _GRANTED.left = given = min(before, exponentials)
    try:
        yield
    finally:
        _GRANTED.left = before - (given - _GRANTED.left)
