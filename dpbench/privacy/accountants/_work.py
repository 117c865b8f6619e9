"""The limits on the work of `exact`, for one answer and for one search, counted alike on every machine.

Counted are complex exponentials, 20 to 50 ns each in all compositions measured (real nodes alike), and the calls of
NumPy around them, 40 us each time: nearly all of the time of a schedule of a hundred different noises.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from dpbench.errors import DpbenchError
from dpbench.privacy.answers import Estimate
from dpbench.privacy.guards import ELSEWHERE, checked, in_a_sentence

Asked = TypeVar("Asked")
Found = TypeVar("Found")
MOST_WORK = 2e8  # of one answer: about five seconds
MOST_OF_A_SEARCH = 5e8  # of all answers of one calibration: about ten seconds
PER_CALL = 1600  # what the calls of NumPy around them cost, in exponentials


class TooExpensive(Exception):
    """An answer would take more work than granted. No ArithmeticError, so that no handler of those catches it."""


class _Granted(threading.local):
    left = math.inf


_GRANTED = _Granted()


def spend(exponentials: int) -> None:
    """Counts work before it is done. Raises TooExpensive where that is more than was granted."""
    _GRANTED.left -= exponentials + PER_CALL
    if _GRANTED.left < 0:
        raise TooExpensive


@contextmanager
def granted(exponentials: float) -> Iterator[None]:
    """A context in which so many may be spent, and no more than the outer context grants.

    >>> with granted(10_000):
    ...     spend(6_000)
    ...     try:
    ...         spend(6_000)
    ...     except TooExpensive:
    ...         print("too expensive")
    too expensive
    """
    before = _GRANTED.left
    _GRANTED.left = given = min(before, exponentials)
    try:
        yield
    finally:
        _GRANTED.left = before if given == math.inf else before - (given - _GRANTED.left)  # inf - inf is no number


def exhausted() -> bool:
    """Whether nothing is left of what was granted."""
    return _GRANTED.left < 0


def within_limits(ask: Callable[[Any, Asked], Found]) -> Callable[[Any, Asked], Found]:
    """Limits a method of the exact accountant to `MOST_WORK`, and checks its answer.

    Raises DpbenchError, which names the accountant 'lattice', where that is not enough, where the arithmetic fails and
    where `guards.checked` rejects the answer.
    """
    most = math.inf if ask.__name__ == "epsilon" else 1.0

    @wraps(ask)
    def answer(self: Any, asked: Asked) -> Found:
        try:
            most_work = MOST_WORK * (len(asked) if isinstance(asked, Sequence) else 1)
            with granted(most_work), np.errstate(all="ignore"):  # answers are checked
                found = ask(self, asked)
        except TooExpensive:
            raise DpbenchError(f"this takes more work than one answer may (about five seconds); {ELSEWHERE}") from None
        except DpbenchError:
            raise
        except Exception as error:
            raise DpbenchError(f"{in_a_sentence(error)}; {ELSEWHERE}") from error
        for one in found if isinstance(found, list) else [found]:
            if isinstance(one, Estimate):
                checked(one, self.kind, most)
        return found

    return answer
