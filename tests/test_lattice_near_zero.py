"""Losses near 0, counted often: the bound of `lattice` stays above the truth where a unit of 1 is more than a loss."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from dpbench.accountants import lattice
from dpbench.accountants._hinges import log_hinge
from dpbench.accountants._lattice_losses import log_ratio, loss_law
from dpbench.accountants._pair_losses import PairLosses
from dpbench.accountants.exact import accountant as exact
from dpbench.events import Composition, DiscretePair, GroupSampledGaussian, SampledGaussian


@pytest.mark.parametrize("rate", [1e-12, 9.4e-8, 0.3, 1 - 1e-9])
def test_a_log_ratio_keeps_its_digits(rate: float) -> None:
    """Below e^1 it was told apart by 16 digits of 1, and a loss of 1e-7 by nine of its own."""
    with mpmath.workdps(60):
        for s in (-60.0, -2.0, -1e-9, 0.0, 1e-12, 0.9, 1.1, 5.0, 29.0, 31.0, 599.0, 601.0, 3000.0):
            ratio = 1 - mpmath.mpf(rate) + mpmath.mpf(rate) * mpmath.exp(mpmath.mpf(s))
            truth = mpmath.log(ratio)
            found = float(log_ratio(rate, np.array([s]))[0])
            assert abs(found - truth) <= 4e-16 * abs(truth) + (2e-15 if ratio < 0.5 else 0)


@pytest.mark.parametrize("rate", [1e-10, 1e-7, 0.2])
def test_a_groups_loss_keeps_its_digits(rate: float) -> None:
    event = GroupSampledGaussian(rate, 1.5, 3)
    (branch,) = loss_law(event, 0).branches
    with mpmath.workdps(60):
        for x in (-20.0, -1.0, 0.4, 2.0, 6.0, 30.0, 63.0):
            truth = mpmath.log(
                sum(
                    mpmath.binomial(3, k)
                    * mpmath.mpf(rate) ** k
                    * (1 - mpmath.mpf(rate)) ** (3 - k)
                    * mpmath.exp((mpmath.mpf(k) * x - mpmath.mpf(k * k) / 2) / mpmath.mpf(1.5) ** 2)
                    for k in range(4)
                )
            )
            assert abs(float(branch.loss(np.array([x]))[0]) - truth) <= 1e-14 * abs(truth)


@pytest.mark.parametrize(
    ("event", "count", "epsilon", "certified"),
    [  # δ in what `certify` encloses; 3e-8 and 5e-6 of it were missing
        (SampledGaussian(9.364795422756956e-08, 1.6050755471605451), 40123, 2.9757371398897662e-05, 4.850134424537e-08),
        (SampledGaussian(4.063240029622111e-09, 1.6984275223472065), 378849, 1.870741760187965e-06, 9.7797569e-08),
    ],
)
def test_rare_releases_are_bounded_from_above(
    event: SampledGaussian, count: int, epsilon: float, certified: float
) -> None:
    found = lattice.accountant.curve(Composition(((event, count),))).delta(epsilon).value
    assert certified <= found <= certified * (1 + 1e-4)


@pytest.mark.parametrize(("apart", "count"), [(1.8e-6, 37), (2.7e-8, 20000), (1e-12, 300)])
def test_pairs_next_to_each_other_are_bounded_from_above(apart: float, count: int) -> None:
    """Their losses were differences of two logarithms."""
    pair = DiscretePair((0.4024335 + apart, 0.5975665 - apart), (0.4024335, 0.5975665))
    composition = Composition(((pair, count),))
    for share in (0.3, 2.0):
        epsilon = share * apart * count**0.5
        truth = exact.accountant.curve(composition).delta(epsilon)
        found = lattice.accountant.curve(composition).delta(epsilon).value
        assert truth.lower is not None
        assert truth.lower <= found <= truth.value * (1 + 1e-6)


def test_one_release_of_such_a_pair_keeps_its_digits() -> None:
    pair = DiscretePair((0.5 + 1e-9, 0.5 - 1e-9), (0.5, 0.5))
    with mpmath.workdps(40):
        total = mpmath.mpf(pair.first[0]) + mpmath.mpf(pair.first[1])
        loss = mpmath.log(mpmath.mpf(pair.first[0]) / total * 2)
        truth = mpmath.mpf(pair.first[0]) / total * -mpmath.expm1(mpmath.mpf(1e-9) - loss)
        found = mpmath.exp(mpmath.mpf(float(log_hinge(pair, np.array([1e-9]))[0])))
        assert abs(found / truth - 1) < 1e-13


def test_pairs_that_differ_by_less_than_a_double_tells_still_reveal() -> None:
    """Divided by their sums both were the same doubles, and δ was 0."""
    pair = DiscretePair((0.3, 0.7), (0.30000000000000004, 0.7000000000000001))
    found = PairLosses.of(pair, 0)
    assert 0 < found.losses.max() < 1e-15
    assert lattice.accountant.curve(Composition(((pair, 1000),))).delta(0.0).value > 0


def test_what_a_release_loses_to_rounding_counts_as_often_as_there_are_releases() -> None:
    """1 − δ is 6e-8 here, and the bound lay 3e-11 below the truth."""
    composition = Composition(((SampledGaussian(0.7643989181254843, 19.187077641122787), 337182),))
    truth = exact.accountant.curve(composition).delta(144.24608254414105)
    found = lattice.accountant.curve(composition).delta(144.24608254414105).value
    assert truth.lower is not None
    assert truth.upper is not None
    assert truth.upper <= found <= truth.value * (1 + 2e-9)
