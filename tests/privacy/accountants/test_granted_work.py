"""Internal: an answer is refused by counted work, never by a clock.

Work that is counted, not timed: the same answer on every machine, and sound where it is cut short.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dpbench.privacy.accountants._complex import exp
from dpbench.privacy.accountants._work import TooExpensive, granted, spend


def test_what_is_spent_within_is_spent_outside() -> None:
    with granted(100):
        with granted(60):
            spend(50)
        spend(50)
        with pytest.raises(TooExpensive), granted(60):  # of which nothing is left outside
            spend(1)
    spend(10**9)


def test_an_error_on_the_way_gives_back_what_was_not_spent() -> None:
    def fail() -> None:
        with granted(60):
            spend(50)
            raise ZeroDivisionError

    with granted(100):
        with pytest.raises(ZeroDivisionError):
            fail()
        spend(50)
        with pytest.raises(TooExpensive):
            spend(1)


def test_complex_exponentials_are_counted() -> None:
    with granted(10):
        exp(np.zeros(10, dtype=np.complex128))
        with pytest.raises(TooExpensive):
            exp(np.zeros(1, dtype=np.complex128))


def test_every_thread_has_its_own() -> None:
    fine = []
    with granted(1):
        other = threading.Thread(target=lambda: fine.append(exp(np.zeros(5, dtype=np.complex128))))
        other.start()
        other.join()
    assert len(fine) == 1
