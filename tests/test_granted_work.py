"""Work that is counted, not timed: the same answer on every machine, and sound where it is cut short."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from dpbench.accountants import _unlike
from dpbench.accountants._complex import exp
from dpbench.accountants._unlike import Either
from dpbench.accountants._work import TooDear, granted, spend
from dpbench.accountants.exact.accountant import accountant
from dpbench.events import Composition, Laplace, SampledGaussian

SPARSE = Composition(((SampledGaussian(0.019, 0.3), 13), (Laplace(2.0), 6)))


def test_what_is_spent_within_is_spent_outside() -> None:
    with granted(100):
        with granted(60):
            spend(50)
        spend(50)
        with pytest.raises(TooDear), granted(60):  # of which nothing is left outside
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
        with pytest.raises(TooDear):
            spend(1)


def test_complex_exponentials_are_counted() -> None:
    with granted(10):
        exp(np.zeros(10, dtype=np.complex128))
        with pytest.raises(TooDear):
            exp(np.zeros(1, dtype=np.complex128))


def test_every_thread_has_its_own() -> None:
    fine = []
    with granted(1):
        other = threading.Thread(target=lambda: fine.append(exp(np.zeros(5, dtype=np.complex128))))
        other.start()
        other.join()
    assert len(fine) == 1


@pytest.mark.parametrize("work", [1e3, 3e5])
def test_an_average_that_is_cut_short_leaves_the_lines_ends(monkeypatch: pytest.MonkeyPatch, work: float) -> None:
    """With its reason, around the truth, and twice the same."""
    full = accountant.curve(SPARSE)
    epsilon, delta = full.epsilon(1e-5), full.delta(8.0)
    assert epsilon.reason is None
    assert delta.reason is None
    monkeypatch.setattr(_unlike, "_MOST_WORK", work)
    short = [(curve.epsilon(1e-5), curve.delta(8.0)) for curve in (accountant.curve(SPARSE) for _ in range(2))]
    assert short[0] == short[1]
    for told, truth in zip(short[0], (epsilon, delta), strict=True):
        assert told.reason is not None
        assert told.lower <= truth.upper
        assert truth.lower <= told.upper
        assert told.upper - told.lower > 1e3 * (truth.upper - truth.lower)
    curve = accountant.curve(SPARSE)
    assert any(isinstance(one, Either) for one in curve.sides)
    assert math.isfinite(short[0][1].value)
