"""Internal: an answer is refused by counted work, never by a clock.

Work that is counted, not timed: the same answer on every machine, and sound where it is cut short.
"""

from __future__ import annotations

import math
import threading
import time
from functools import partial

import numpy as np
import pytest

from dpbench.errors import DpbenchError
from dpbench.events import Composition, RandomSensitivityGaussian, SampledGaussian
from dpbench.privacy.accountants import _work
from dpbench.privacy.accountants._complex import exp
from dpbench.privacy.accountants._work import PER_CALL, TooExpensive, granted, spend
from dpbench.privacy.calibration import solve


def test_what_is_spent_within_is_spent_outside() -> None:
    with granted(100 + 2 * PER_CALL):
        with granted(60 + PER_CALL):
            spend(50)
        spend(50)
        with pytest.raises(TooExpensive), granted(60 + PER_CALL):  # of which nothing is left outside
            spend(1)
    spend(10**9)


def test_an_error_on_the_way_gives_back_what_was_not_spent() -> None:
    def fail() -> None:
        with granted(60 + PER_CALL):
            spend(50)
            raise ZeroDivisionError

    with granted(100 + 2 * PER_CALL):
        with pytest.raises(ZeroDivisionError):
            fail()
        spend(50)
        with pytest.raises(TooExpensive):
            spend(1)


def test_complex_exponentials_are_counted() -> None:
    with granted(10 + PER_CALL):
        exp(np.zeros(10, dtype=np.complex128))
        with pytest.raises(TooExpensive):
            exp(np.zeros(1, dtype=np.complex128))


def test_calls_are_counted_beside_what_they_compute() -> None:
    with granted(10 * PER_CALL):
        for _ in range(10):
            spend(0)
        with pytest.raises(TooExpensive):
            spend(0)


def test_every_thread_has_its_own() -> None:
    fine = []
    with granted(1):
        other = threading.Thread(target=lambda: fine.append(exp(np.zeros(5, dtype=np.complex128))))
        other.start()
        other.join()
    assert len(fine) == 1


def unlike(noise: float) -> Composition:
    return Composition(tuple((SampledGaussian(0.01, noise * 0.99**place), 10) for place in range(5)))


@pytest.mark.parametrize("find", ["noise_multiplier", "sampling_rate"])
def test_a_search_ends_when_its_work_is_done_and_names_other_accountants(
    find: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_work, "MOST_OF_A_SEARCH", 2e6)
    make = unlike if find == "noise_multiplier" else lambda rate: Composition(((SampledGaussian(rate, 1.0), 10**4),))
    monkeypatch.setattr(_work, "PER_CALL", 20_000)
    with pytest.raises(DpbenchError, match=r"all the work that one may .* use another --accountant \(rdp, "):
        solve(find, make, epsilon=1.0, delta=1e-5, accountant="exact")


def test_the_default_goes_on_with_what_is_faster_than_the_lattice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_work, "MOST_OF_A_SEARCH", 1e5)
    found = solve("noise_multiplier", unlike, epsilon=1.0, delta=1e-5)
    assert (found.accountant, found.promise) == ("rdp", True)
    assert "taken all the work that one may" in found.because
    with pytest.raises(DpbenchError, match=r"use another --accountant \(lattice"):  # which alone covers it
        solve(
            "noise_multiplier",
            lambda noise: Composition(((RandomSensitivityGaussian(0.01, noise, 5), 1000),)),
            epsilon=1.0,
            delta=1e-5,
        )


def test_the_lattice_s_work_is_counted_and_the_default_s_is_one_search() -> None:
    """Random projections at a huge target: minutes of Bessel functions, were each accountant given its own limit."""
    make = partial(projected, 10)
    with granted(math.inf), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_work, "MOST_OF_A_SEARCH", 2e7)
        before = time.process_time()
        with pytest.raises(DpbenchError, match=r"all the work that one may .* or give noise_multiplier"):
            solve("noise_multiplier", make, epsilon=3.0, delta=1e-5, accountant="lattice")
        with pytest.raises(DpbenchError, match=r"all the work that one may .* or give noise_multiplier"):
            solve("noise_multiplier", make, epsilon=1e5, delta=1e-5)
        assert time.process_time() - before < 10  # a fiftieth of what two searches may take is less than a second


def projected(count: int, noise: float) -> Composition:
    return Composition(((RandomSensitivityGaussian(256 / 1437, noise, count), 169),))


def test_an_unlimited_context_leaves_later_limits_as_they_are() -> None:
    with granted(math.inf):
        spend(10)
    with pytest.raises(TooExpensive), granted(1):
        spend(1)
