"""How much an answer of `exact` may take, counted in complex exponentials: it ends at the same place on every machine.

Nearly all of what takes long here takes them, at 20 to 50 ns each in all compositions measured, or as many real nodes.
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
from dpbench.privacy.guards import ELSEWHERE, in_a_sentence, looked_at

Asked = TypeVar("Asked")
Found = TypeVar("Found")
MOST_WORK = 2e8  # of one answer: about five seconds


class TooExpensive(Exception):
    """An answer would take more work than was granted. No ArithmeticError: nobody on the way may take it for one."""


class _Granted(threading.local):
    left = math.inf


_GRANTED = _Granted()


def spend(exponentials: int) -> None:
    """Counts what is about to be done. Raises TooExpensive where that is more than was granted."""
    _GRANTED.left -= exponentials
    if _GRANTED.left < 0:
        raise TooExpensive


@contextmanager
def granted(exponentials: float) -> Iterator[None]:
    """Within it no more than so many may be spent, nor more than was granted outside of it.

    >>> with granted(100):
    ...     spend(60)
    ...     try:
    ...         spend(60)
    ...     except TooExpensive:
    ...         print("too expensive")
    too expensive
    """
    before = _GRANTED.left
    _GRANTED.left = given = min(before, exponentials)
    try:
        yield
    finally:
        _GRANTED.left = before - (given - _GRANTED.left)


def within_limits(ask: Callable[[Any, Asked], Found]) -> Callable[[Any, Asked], Found]:
    """A method of the exact accountant that takes no more than `MOST_WORK`; what it answers is looked at.

    Raises DpbenchError, which names the accountant 'lattice', where that is not enough, where the arithmetic fails and
    where `guards.looked_at` does not let the answer pass.
    """
    most = math.inf if ask.__name__ == "epsilon" else 1.0

    @wraps(ask)
    def answer(self: Any, asked: Asked) -> Found:
        try:
            most_work = MOST_WORK * (len(asked) if isinstance(asked, Sequence) else 1)
            with granted(most_work), np.errstate(all="ignore"):  # answers are looked at
                found = ask(self, asked)
        except TooExpensive:
            raise DpbenchError(f"this takes more work than one answer may (about five seconds); {ELSEWHERE}") from None
        except DpbenchError:
            raise
        except Exception as error:
            raise DpbenchError(f"{in_a_sentence(error)}; {ELSEWHERE}") from error
        for one in found if isinstance(found, list) else [found]:
            if isinstance(one, Estimate):
                looked_at(one, self.kind, most)
        return found

    return answer
