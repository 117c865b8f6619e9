"""Internal: a bound whose masses are never too small, seen by planting smaller ones.

Optimal composition against enumeration of all answers, Theorem 3.3's own points, and the other theorems.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from random import Random

import mpmath
import numpy as np
import pytest

from dpbench.events import Composition, DiscretePair, Gaussian, Laplace, RandomSensitivityGaussian, SampledGaussian
from dpbench.privacy.accountants import advanced, basic, optimal_composition
from dpbench.privacy.accountants.lattice import accountant as lattice
from dpbench.privacy.accountants.optimal_composition import accountant, least_total
from dpbench.privacy.answers import No

Real = mpmath.mpf


def every_answer(epsilons: Sequence[float], at: float) -> Real:
    """Σ over all 2^k answers of (P − e^ε' Q)₊, each answer true with probability e^ε/(1+e^ε); 40 digits."""
    with mpmath.workdps(40):
        true = [mpmath.exp(Real(e)) / (1 + mpmath.exp(Real(e))) for e in epsilons]
        growth, total = mpmath.exp(Real(at)), Real(0)
        for answers in itertools.product((True, False), repeat=len(epsilons)):
            p = mpmath.fprod(t if answer else 1 - t for t, answer in zip(true, answers, strict=True))
            q = mpmath.fprod(1 - t if answer else t for t, answer in zip(true, answers, strict=True))
            total += max(p - growth * q, 0)
        return total


LISTS = [[0.3] * 5, [0.01] * 8, [2.0] * 4, [0.1, 0.1, 0.7, 0.7, 0.7], [0.5, 0.2, 0.9, 0.33], [1.0]]


@pytest.mark.parametrize("epsilons", LISTS, ids=str)
@pytest.mark.parametrize("share", [0.05, 0.4, 0.8])
def test_it_inverts_the_sum_over_all_answers(epsilons: list[float], share: float) -> None:
    """From above. Margins are below 1e-12 of δ, which the slope of ε'(δ) carries to ε': 1e-10 is more than that."""
    at = share * sum(epsilons)
    delta = every_answer(epsilons, at)
    found = least_total([(epsilon, 1) for epsilon in epsilons], float(delta) * (1 + 1e-15))
    assert at * (1 - 1e-12) <= found <= at * (1 + 1e-10) + 1e-10


@pytest.mark.parametrize("count", [4, 9, 30])
def test_the_points_of_theorem_3_3(count: int) -> None:
    """δ_i at (k − 2i) ε, i = 0 ... k/2, as it is printed."""
    epsilon = 0.2
    for i in range(1, count // 2 + 1):
        with mpmath.workdps(40):
            e = mpmath.exp(Real(epsilon))
            terms = (math.comb(count, j) * (e ** (count - j) - e ** (count - 2 * i + j)) for j in range(i))
            delta = float(mpmath.fsum(terms) / (1 + e) ** count)
        assert least_total([(epsilon, count)], delta) == pytest.approx((count - 2 * i) * epsilon, rel=1e-9, abs=1e-10)


def test_the_other_split_of_the_same_list() -> None:
    """Counted together or one by one."""
    assert least_total([(0.1, 4), (0.3, 2), (0.1, 3)], 1e-3) == least_total([(0.1, 7), (0.3, 2)], 1e-3)
    assert least_total([], 1e-3) == 0.0
    assert least_total([(0.0, 5)], 1e-3) == 0.0
    assert least_total([(math.inf, 1)], 1e-3) == math.inf
    assert least_total([(0.5, 3)], 0.0) == pytest.approx(1.5)


def test_a_lattice_is_a_bound_and_close(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [(0.02, 100), (0.05, 30), (0.031, 11)]
    exact = least_total(kinds, 1e-6)
    monkeypatch.setattr(optimal_composition, "MOST_OUTCOMES", 1000)
    assert exact < least_total(kinds, 1e-6) < 1.0001 * exact


@pytest.mark.parametrize(("epsilon", "width"), [(0.02, 0.3), (0.02, 1e-3), (1.0, 20.0), (50.0, 700.0), (1e-9, 1e-7)])
def test_a_lattice_keeps_both_probabilities(epsilon: float, width: float) -> None:
    law = optimal_composition._answers(epsilon, 300, 13.0)
    losses, log_w = law[:2]
    coarse, log_coarse, cut, _ = optimal_composition._on_a_lattice([law], width)
    step = 2.0 ** (math.floor(math.log2(width)) + 1)
    assert np.array_equal(coarse, np.round(coarse / step) * step)
    assert np.exp(log_coarse).sum() + cut == pytest.approx(np.exp(log_w).sum(), rel=1e-13)
    kept = np.exp(log_w - losses)[(losses >= coarse.min()) & (losses <= coarse.max())].sum()
    assert np.exp(log_coarse - coarse).sum() == pytest.approx(kept, rel=1e-10)


def by_counts(kinds: Sequence[tuple[float, int]], at: float) -> Real:
    """Σ (P − e^ε' Q)₊ over how many answers of each kind are false: `every_answer` for many; 40 digits."""
    with mpmath.workdps(40):
        law = {Real(0): Real(1)}
        for epsilon, count in kinds:
            e, following = mpmath.exp(Real(epsilon)), dict[Real, Real]()
            for (loss, mass), wrong in itertools.product(law.items(), range(count + 1)):
                place = loss + (count - 2 * wrong) * Real(epsilon)
                share = math.comb(count, wrong) * e ** (count - wrong) / (1 + e) ** count
                following[place] = following.get(place, Real(0)) + mass * share
            law = following
        return mpmath.fsum(mass * -mpmath.expm1(at - loss) for loss, mass in law.items() if loss > at)


def some_delta(random: Random) -> float:
    """From 1 down to 1e-290, half of them below 1e-14."""
    return math.exp(-random.random() * random.choice([3.0, 32.0, 100.0, 660.0]))


def responses(epsilon: float) -> DiscretePair:
    false = 1 / (1 + math.exp(epsilon))
    return DiscretePair((1 - false, false), (false, 1 - false))


class TestAtAnyDelta:
    """ε(δ) and δ(ε) of random releases, enumerated or on a lattice: above the truth, and never against each other."""

    @pytest.mark.parametrize("seed", range(40))
    @pytest.mark.parametrize("outcomes", [10, 80_000])
    def test_pure_releases(self, seed: int, outcomes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(optimal_composition, "MOST_OUTCOMES", outcomes)
        random = Random(seed)
        sizes = random.choice([(150,), (40, 12), (9, 8, 5)])
        kinds = [(10 ** random.uniform(-3, 1.5), random.randint(1, size)) for size in sizes]
        most = sum(epsilon * count for epsilon, count in kinds)
        before = (1.0, 0.0)
        for delta in sorted((some_delta(random) for _ in range(6)), reverse=True):
            found = least_total(kinds, delta)
            assert before[1] <= found * (1 + 1e-12) + 1e-12, (before, delta)
            before = (delta, found)
            assert by_counts(kinds, found) <= delta
            close = 0.02 * most / len(kinds) if outcomes == 10 else 1e-9 * (1 + found)
            assert found <= close or by_counts(kinds, found - close) >= delta * (1 - 1e-9)

    @pytest.mark.parametrize("seed", range(30))
    def test_both_directions(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(optimal_composition, "MOST_OUTCOMES", 20 if seed % 3 else 80_000)
        random = Random(seed)
        kinds = [(10 ** random.uniform(-2, 1), random.randint(1, size)) for size in random.choice([(90,), (9, 8, 5)])]
        curve = accountant.curve(Composition(tuple((responses(epsilon), count) for epsilon, count in kinds)))
        most = sum(epsilon * count for epsilon, count in kinds)
        for delta in (some_delta(random), some_delta(random)):
            epsilon = curve.epsilon(delta).value
            assert by_counts(kinds, epsilon) <= delta
            assert curve.delta(epsilon).value <= delta or epsilon < 1e-12
        for epsilon in (random.random() * most, 0.9 * most):
            found = curve.delta(epsilon).value
            assert by_counts(kinds, epsilon) <= found
            beyond = found * (1 + 1e-10)  # ε(δ) is that of a δ smaller by about 1e-11
            assert not 0 < beyond < 1 or curve.epsilon(beyond).value <= epsilon * (1 + 1e-11)

    @pytest.mark.parametrize("seed", range(8))
    def test_unlike_releases_by_the_hundred(self, seed: int) -> None:
        """On the lattice as it is, where ε of each mechanism depends on δ."""
        random = Random(seed)
        parts = tuple((Gaussian(10 ** random.uniform(-0.5, 1)), random.randint(10, 200)) for _ in range(4))
        curve = accountant.curve(Composition(parts))
        delta = some_delta(random)
        for moved in (1.0, 0.98, 0.96):
            assert curve.delta(curve.epsilon(delta * moved).value).value <= delta * moved

    @pytest.mark.parametrize("noise", [1e-5, 1e-6, 1e-8, 1e-20])
    @pytest.mark.parametrize("count", [1, 3, 10**6])
    def test_epsilon_beyond_a_thousand_million(self, noise: float, count: int) -> None:
        for event in (Laplace(noise), Gaussian(noise)):
            curve = accountant.curve(Composition(((event, count),)))
            for delta in (0.3, 1e-5, 1e-14, 1e-200):
                assert curve.delta(curve.epsilon(delta).value).value <= delta


COMPOSITIONS = [
    Composition(((Laplace(100.0), 1000),)),
    Composition(((Laplace(20.0), 3),)),
    Composition(((Gaussian(30.0), 200),)),
    Composition(((SampledGaussian(0.01, 1.0), 50), (Laplace(30.0), 7))),
]


@pytest.mark.parametrize("composition", COMPOSITIONS, ids=str)
def test_between_the_truth_and_the_older_theorems(composition: Composition) -> None:
    for delta in (1e-3, 1e-6, 1e-12):
        found = accountant.curve(composition).epsilon(delta).value
        for theorem in (basic, advanced):
            # basic splits all of δ where this one splits half of it
            assert found <= theorem.accountant.curve(composition).epsilon(delta / 2).value * (1 + 1e-9)
        truth = lattice.accountant.curve(composition).epsilon(delta)
        assert found >= truth.value * (1 - 1e-4)


def test_one_release_and_the_share_of_delta() -> None:
    """One Gaussian at δ_i = δ/2; what is left, 1 − (1−δ)/(1−δ_i), is spent on one answer that may reveal it."""
    delta = 1e-3
    single = basic.accountant.curve(Composition(((Gaussian(2.0), 1),))).epsilon(delta / 2).value
    left = 1 - (1 - delta) / (1 - delta / 2)
    expected = math.log(1 - left * (1 + math.exp(-single))) + single
    assert accountant.curve(Composition(((Gaussian(2.0), 1),))).epsilon(delta).value == pytest.approx(
        expected, rel=1e-9
    )


def test_it_is_found_by_name_and_refuses_with_a_reason() -> None:
    answer = accountant.supports(Composition(((Laplace(1.0), 10**9),)))
    assert isinstance(answer, No)
    assert "advanced" in answer.reason
    other = accountant.supports(Composition(((RandomSensitivityGaussian(0.1, 1.0, 5), 1),)))
    assert isinstance(other, No)
    assert not accountant.supports(Composition(((Laplace(1.0), 2),), adaptive=True))


def test_rounding_down_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: masses a hundred-thousandth too small."""
    answers = optimal_composition._answers

    def small(epsilon: float, count: int, reach: float) -> object:
        losses, log_mass, error = answers(epsilon, count, reach)
        return losses, log_mass - 1e-5, error

    at = 0.4 * 1.5
    delta = float(every_answer([0.3] * 5, at))
    monkeypatch.setattr(optimal_composition, "_answers", small)
    assert least_total([(0.3, 5)], delta) < at * (1 - 1e-9)
