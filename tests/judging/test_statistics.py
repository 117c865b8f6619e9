"""The statistical helpers of the checks: p-values are exact where they say so, bounds elsewhere, and never NaN.

Without chance: laws are summed up exactly, over all outcomes.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.statistics import bernstein_p

quick = settings(derandomize=True, deadline=None, max_examples=60)


@quick
@given(st.integers(1, 30), st.floats(0.01, 0.99), st.floats(1e-9, 1))
def test_binomial_p_is_a_p_value(trials: int, probability: float, level: float) -> None:
    """P(p ≤ α) ≤ α, summed over all outcomes; 1e-12 for the rounding of the sum."""
    counts = np.arange(trials + 1)
    p = statistics.binomial_p(counts, trials, probability)
    law = stats.binom.pmf(counts, trials, probability)
    assert law[p <= level].sum() <= level + 1e-12


@pytest.mark.parametrize("law", [(0.5, 0.5), (0.9, 0.1), (0.6, 0.3, 0.1), (0.25, 0.25, 0.25, 0.25), (0.97, 0.02, 0.01)])
@pytest.mark.parametrize("draws", [1, 3, 8, 14])
def test_multinomial_p_is_a_p_value(law: tuple[float, ...], draws: int) -> None:
    """P(p ≤ α) ≤ α at every attained α, summed over all outcomes."""
    outcomes = [c for c in itertools.product(range(draws + 1), repeat=len(law)) if sum(c) == draws]
    p = np.array([statistics.multinomial_p(c, law) for c in outcomes])
    mass = stats.multinomial.pmf(np.array(outcomes), draws, law)
    for level in set(p.tolist()):
        assert mass[p <= level].sum() <= level + 1e-12


def test_multinomial_p_finds_a_wrong_law_and_an_impossible_cell() -> None:
    assert statistics.multinomial_p([600, 400], [0.5, 0.5]) < 1e-6
    assert statistics.multinomial_p([500, 500], [0.5, 0.5]) == 1
    assert statistics.multinomial_p([999, 1], [1.0, 0.0]) == 0


def test_distribution_p_against_the_exact_law() -> None:
    """Never below Kolmogorov's exact p-value, and within a factor of 3 of it in the tail."""
    sample = np.linspace(0.0005, 0.9995, 1000) ** 1.2
    bound = statistics.distribution_p(sample, lambda x: x)
    exact = float(stats.kstest(sample, "uniform").pvalue)
    assert exact <= bound <= 3 * exact


def test_apart_gives_disjoint_pairs_at_the_distance() -> None:
    left, right = statistics.apart(np.arange(29), 3)
    assert (right - left == 3).all()
    together = np.concatenate([left.ravel(), right.ravel()])
    assert len(set(together.tolist())) == together.size == 24
    first, second = statistics.apart(np.arange(20).reshape(10, 2), 2, axis=0)
    assert (second - first == 4).all()


def test_correlation_p_is_the_normal_law() -> None:
    assert float(statistics.correlation_p([3.0, 0.0, 4.0], [1.0, 9.0, 0.5])) == pytest.approx(2 * stats.norm.sf(1.0))
    assert float(statistics.correlation_p([0.0], [1.0])) == 0


def test_smallest_counts_and_lets_no_nan_pass() -> None:
    p, count = statistics.smallest([0.5, np.array([0.01, 0.2])])
    assert p == pytest.approx(0.03)
    assert count == 3
    assert statistics.smallest([0.9, 0.8]) == (1.0, 2)
    assert statistics.smallest([math.nan, 0.5])[0] == 0


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_bernstein_bounds_the_binomial(rate: float) -> None:
    """Never below the exact probability of a binomial's deviation."""
    counts = np.arange(201)
    law = stats.binom.pmf(counts, 200, rate)
    for deviation in np.linspace(0.5, 60, 40).tolist():
        exact = float(law[np.abs(counts - 200 * rate) >= deviation].sum())
        assert exact <= bernstein_p(deviation, 200 * rate * (1 - rate), 1.0) + 1e-15
    assert bernstein_p(math.nan, 1.0, 1.0) == 0
    assert bernstein_p(0.1, 0.0, 0.0) == 0


@quick
@given(st.integers(1, 40), st.floats(0.01, 0.99), st.floats(1e-9, 1))
def test_chernoff_p_is_a_p_value(trials: int, probability: float, level: float) -> None:
    """P(p ≤ α) ≤ α for equal probabilities, summed over all outcomes; 1e-12 for the rounding of the sum."""
    counts = np.arange(trials + 1)
    p = statistics.chernoff_p(counts, np.full(trials + 1, trials * probability), trials)
    law = stats.binom.pmf(counts, trials, probability)
    assert law[p <= level].sum() <= level + 1e-12


@quick
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12), st.floats(1e-9, 1))
def test_chernoff_p_is_a_p_value_for_unlike_events(chances: list[float], level: float) -> None:
    """The law of the count by convolution; sums that round to 0 or to all are as certain as they look."""
    law = np.array([1.0])
    for chance in chances:
        law = np.convolve(law, [1 - chance, chance])
    total = math.fsum(chances)
    p = statistics.chernoff_p(np.arange(len(law)), np.full(len(law), total), len(chances))
    assert not np.isnan(p).any()
    assert law[p <= level].sum() <= level + 1e-9
