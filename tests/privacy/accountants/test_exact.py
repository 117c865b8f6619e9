"""Internal: each part of the integral's error counts, seen by planting it larger.

The exact accountant against certified points, closed forms and the laws that every privacy curve obeys.
"""

from __future__ import annotations

import json
import math
import random
from fractions import Fraction
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr

from dpbench.errors import DpbenchError
from dpbench.events import (
    Composition,
    ConfidentGNMax,
    DiscretePair,
    Event,
    Gaussian,
    GroupSampledGaussian,
    Laplace,
    SampledGaussian,
    from_json,
)
from dpbench.judging.enclosures import TABLES
from dpbench.privacy.accountants.exact import contour, sampled
from dpbench.privacy.accountants.exact.accountant import accountant
from dpbench.privacy.accountants.exact.contour import Part, Setup, Way
from dpbench.privacy.accountants.exact.direction import ContourDirection
from dpbench.privacy.accountants.exact.single import log_hockey_stick
from dpbench.privacy.accountants.lattice.accountant import accountant as lattice
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.certified import certify

TABLE = TABLES / "certified.json"
POINTS: list[dict[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))["points"]


def times(event: Event, count: int) -> Composition:
    return Composition(((event, count),))


def wrongness(value: float, lower: float, upper: float) -> float:
    """How far a value lies outside an enclosure."""
    return max(value - upper, lower - value, 0.0)


def failures(points: list[dict[str, Any]]) -> list[str]:
    """The points at which the exact accountant misses its budget or its own error bar."""
    found = []
    for point in points:
        try:
            answer = accountant.curve(from_json(point["composition"])).delta(point["epsilon"])
        except DpbenchError as refusal:
            found.append(f"{point['regime']}: {point['composition']['parts']} at {point['epsilon']}: {refusal}")
            continue
        lower, upper = float(point["lower"]), float(point["upper"])
        assert answer.lower is not None
        assert answer.upper is not None
        miss = wrongness(answer.value, lower, upper)
        if miss > point["budget"] or answer.lower > upper or answer.upper < lower:
            found.append(f"{point['regime']}: {point['composition']['parts']} at {point['epsilon']}: {answer}")
    return found


def test_it_meets_every_certified_point_within_its_budget_and_its_own_error_bar() -> None:
    assert failures(POINTS) == []


def test_the_table_has_points_enough_in_every_regime() -> None:
    counts: dict[str, int] = {}
    for point in POINTS:
        counts[point["regime"]] = counts.get(point["regime"], 0) + 1
        assert float(point["lower"]) <= float(point["upper"])
        assert float(point["upper"]) - float(point["lower"]) <= max(1e-10 * float(point["upper"]), 1e-14)
    assert min(counts.values()) >= 10, counts
    assert sum(counts.values()) >= 200, counts


def test_losses_next_to_multiples_of_one_bring_the_integrand_back() -> None:
    """Inclusions of nearly equal losses: |M| falls by e^−40 and returns at Im z = 2π/74; the path must reach there."""
    composition = times(SampledGaussian(0.03955286092914783, 0.0840667252539538), 533)
    answer = accountant.curve(composition).delta(2115.529273280369)
    assert answer.lower is not None
    assert answer.upper is not None
    assert answer.lower <= 0.014576172664313648  # both ends by `certify`
    assert answer.upper >= 0.014576172663919392
    assert answer.relative_error is not None
    assert answer.relative_error < 1e-9


def test_the_normal_law_that_is_taken_off_is_told_for_large_losses() -> None:
    """Its own δ at a deviation of 180 was off by 3e-6: so was ε, while δ at the same place was not."""
    answer = accountant.curve(times(SampledGaussian(0.09147, 0.1287), 428)).epsilon(2.016005234433455e-12)
    assert answer.value == pytest.approx(2442.8056974948636, rel=1e-11)  # `certify` has δ within 6e-11 there


@pytest.mark.parametrize(
    ("rate", "noise", "count", "epsilon", "truth"),
    [
        (0.0167, 2.02, 415, 1.297, 1.0082469970913e-12),
        (1.26e-7, 0.895, 9_740_000, 0.003493, 9.9672106874897e-13),
    ],
)
def test_a_path_laid_for_another_epsilon_serves_only_with_its_digits(
    rate: float, noise: float, count: int, epsilon: float, truth: float
) -> None:
    """Certified to 13 digits; the path of a place further below had five of them."""
    answer = accountant.curve(times(SampledGaussian(rate, noise), count)).delta(epsilon)
    assert answer.value == pytest.approx(truth, rel=1e-10)
    assert answer.lower is not None
    assert answer.upper is not None
    assert answer.upper - answer.lower < 1e-6 * truth


@pytest.mark.parametrize("fault", ["missing aliasing", "coarse transform", "a rest of a thousandth"])
def test_a_planted_fault_misses_certified_points(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Each fault breaks one of the three things that the integral's error is made of."""
    if fault == "missing aliasing":
        monkeypatch.setattr(contour, "_ALIAS", dict.fromkeys(contour._ALIAS, 6.0))
    elif fault == "coarse transform":
        monkeypatch.setattr(sampled, "_DIGITS", 6.0)
    else:
        monkeypatch.setattr(contour, "_END", 7.0)
    assert failures(POINTS[:40])


def test_the_nine_digits_of_the_first_row_are_certified() -> None:
    training = times(SampledGaussian(256 / 60000, 1.3), 3516)
    certificate = certify(training, delta=1e-5)
    answer = accountant.curve(training).epsilon(1e-5)
    assert answer.lower is not None
    assert answer.upper is not None
    assert answer.lower <= float(certificate.upper)
    assert answer.upper >= float(certificate.lower)
    assert answer.value == pytest.approx(0.864540191, abs=1e-9)
    assert answer.relative_error is not None
    assert answer.relative_error < 1e-11


def random_points(count: int, part: int = 0) -> list[tuple[float, float, Way, float]]:
    """Rate, noise, direction and ε of single mechanisms, for which there is a closed form; add at large rates only."""
    source = random.Random(20261121 + part)
    points = []
    for _ in range(count):
        direction: Way = "remove" if source.random() < 0.5 else "add"
        low = math.log(1e-4) if direction == "remove" else math.log(0.9)
        rate = math.exp(source.uniform(low, -1e-3))
        noise = math.exp(source.uniform(math.log(0.7), math.log(50.0)))
        top = 12 / noise**2 + 10 / noise
        top = top if direction == "remove" else min(top, -0.5 * math.log1p(-rate))
        points.append((rate, noise, direction, source.uniform(0.3, 1.0) * top))
    return points


def check_error_estimates(count: int, part: int = 0) -> list[float]:
    """The contour's errors against the closed form stay within its estimates; by how much these are too large."""
    ratios, over = [], []
    for rate, noise, direction, epsilon in random_points(count, part):
        one, level = SampledGaussian(rate, noise), np.array([epsilon])
        truth = math.exp(float(log_hockey_stick(one, level, int(direction == "add"))[0][0]))
        way = ContourDirection(Setup((Part(sampled.Sampled(rate, noise, direction), 1),), 0.0, direction))
        with np.errstate(all="ignore"):  # as the curve does, whose answers are looked at
            (found,) = way.deltas([epsilon])
        error, known = abs(found.value - truth), 2e-11 * truth  # known: of the closed form
        ratios.append(error / (found.error + known + 1e-300))
        over.append((found.error + 1e-300) / max(error, 1e-16 * truth, 1e-300))
    assert max(ratios) <= 1
    return over


def test_its_error_estimate_bounds_the_true_error() -> None:
    """The idea: the error is read off the contour's own sums, and one invocation has a closed form to test it."""
    assert float(np.median(check_error_estimates(40))) < 1e5


@pytest.mark.long
@pytest.mark.parametrize("part", range(1, 21))
def test_its_error_estimate_bounds_the_true_error_at_ten_thousand_points(part: int) -> None:
    """The idea: as above, at points enough to find one in a thousand."""
    assert float(np.median(check_error_estimates(500, part))) < 1e5


@pytest.mark.parametrize(("noise", "count"), [(0.5, 3), (5.0, 100), (100.0, 10**6), (1000.0, 10)])
def test_a_contour_of_gaussians_alone_is_their_closed_form(noise: float, count: int) -> None:
    """The idea: one integrand whose integral is known for every ε and δ."""
    closed = load_accountant("gdp").curve(times(Gaussian(noise), count))
    ways: tuple[Way, Way] = ("remove", "add")
    for name in ways:
        way = ContourDirection(Setup((), count / noise**2, name))
        for target in (1e-2, 1e-6, 1e-30):
            epsilon = closed.epsilon(target).value
            if epsilon > 0:
                assert way.deltas([epsilon])[0].value == pytest.approx(closed.delta(epsilon).value, rel=1e-10)
                assert way.epsilon(math.log(target)).value == pytest.approx(epsilon, rel=1e-11)


def random_compositions(count: int, part: int = 0) -> list[tuple[Composition, float]]:
    """Sampled Gaussians, alike or not, groups, replaced records, and a Gaussian beside: with a δ."""
    source = random.Random(20261122 + part)

    def release(adjacency: Any, sizes: tuple[int, ...]) -> tuple[Event, int]:
        rate, noise = 10 ** source.uniform(-4, -0.15), 10 ** source.uniform(-0.4, 1.2)
        size, times = source.choice(sizes), int(10 ** source.uniform(0.3, 5))
        if size > 1:
            return GroupSampledGaussian(rate, noise, size, adjacency), times
        return SampledGaussian(rate, noise, adjacency), times

    found = []
    for _ in range(count):
        kind = source.choice(["plain", "plain", "group", "replaced", "unlike", "beside"])
        adjacency = "replace_one" if kind == "replaced" else "add_or_remove"
        parts = [release(adjacency, (2, 3, 10) if kind == "group" else (1,))]
        if kind == "unlike":
            parts += [release(adjacency, (1, 2)) for _ in range(source.randint(1, 3))]
        if kind == "beside":
            parts.append((Gaussian(10 ** source.uniform(0, 2)), source.randint(1, 5)))
        found.append((Composition(tuple(parts)), 10 ** source.uniform(-10, -1.5)))
    return found


def check_against_the_lattice(count: int, part: int = 0) -> int:
    """No answer lies above the lattice's upper bound, nor far below it; how many are wider than promised or refused."""
    wide = 0
    for composition, delta in random_compositions(count, part):
        try:
            answer = accountant.curve(composition).epsilon(delta)
        except DpbenchError:
            wide += 1
            continue
        assert answer.lower is not None
        assert answer.upper is not None
        wide += answer.reason is not None
        if answer.value < 200:  # beyond, the lattice takes long
            bound = lattice.curve(composition).epsilon(delta)
            assert answer.lower <= bound.safe, (composition, delta)
            back = accountant.curve(composition).delta(answer.value)
            assert back.lower is not None
            assert back.upper is not None
            assert back.lower * (1 - 1e-8) <= delta or answer.value == 0, (composition, delta)
            assert answer.value == 0 or back.upper * (1 + 1e-8) >= delta, (composition, delta)
    return wide


def test_random_compositions_stay_below_the_lattice_and_invert() -> None:
    assert check_against_the_lattice(25) <= 1


@pytest.mark.long
@pytest.mark.parametrize("part", range(1, 21))
def test_two_thousand_random_compositions_stay_below_the_lattice_and_invert(part: int) -> None:
    """The idea: another route whose answer is an upper bound, and δ asked back; one in fifty is wider than promised."""
    assert check_against_the_lattice(100, part) <= 10


releases = st.builds(
    SampledGaussian,
    sampling_rate=st.floats(1e-3, 0.5),
    noise_multiplier=st.floats(0.7, 10.0),
)


@settings(max_examples=6, deadline=None)
@given(releases, st.integers(20, 5000))
def test_delta_falls_and_is_convex_in_the_exponential_of_epsilon(event: SampledGaussian, count: int) -> None:
    """(1 − a e^(−L))₊ is convex in a = e^ε; in ε itself δ is not, where it is near 1."""
    curve = accountant.curve(times(event, count))
    top = curve.epsilon(1e-8).value
    factors = np.linspace(1.0, math.exp(min(top, 8.0)), 7)
    deltas = [curve.delta(math.log(factor)) for factor in factors]
    slack = [2 * ((d.upper or 0) - (d.lower or 0)) + 1e-15 for d in deltas]
    assert all(after.value <= before.value + s for (before, after), s in zip(pairwise(deltas), slack, strict=False))
    for k in range(1, 6):
        middle = (deltas[k - 1].value + deltas[k + 1].value) / 2
        assert deltas[k].value <= middle + slack[k - 1] + slack[k] + slack[k + 1]


@settings(max_examples=6, deadline=None)
@given(releases, st.integers(20, 2000), st.integers(1, 2000))
def test_composing_is_adding_and_more_is_more(event: SampledGaussian, first: int, second: int) -> None:
    together = accountant.curve(Composition(((event, first), (event, second)))).epsilon(1e-6)
    at_once = accountant.curve(times(event, first + second)).epsilon(1e-6)
    alone = accountant.curve(times(event, first)).epsilon(1e-6)
    assert together == at_once
    assert alone.value <= at_once.value * (1 + 1e-9) + 1e-12


@settings(max_examples=6, deadline=None)
@given(releases, st.integers(50, 1000), st.floats(1.05, 3.0))
def test_more_noise_and_less_sampling_are_more_private(event: SampledGaussian, count: int, factor: float) -> None:
    base = accountant.curve(times(event, count)).epsilon(1e-6).value
    quieter = SampledGaussian(event.sampling_rate, event.noise_multiplier * factor)
    rarer = SampledGaussian(event.sampling_rate / factor, event.noise_multiplier)
    for other in (quieter, rarer):
        assert accountant.curve(times(other, count)).epsilon(1e-6).value <= base * (1 + 1e-9) + 1e-12


def test_one_way_of_splitting_does_not_matter() -> None:
    """A group of one is a record, and its mixture of two parts goes the same way as that of many."""
    for count in (1, 50):
        one = accountant.curve(times(SampledGaussian(0.02, 1.1), count)).epsilon(1e-6).value
        group = accountant.curve(times(GroupSampledGaussian(0.02, 1.1, 1), count)).epsilon(1e-6).value
        assert group == pytest.approx(one, rel=1e-9)


def test_a_larger_group_spends_more_and_a_replaced_record_too() -> None:
    base = accountant.curve(times(SampledGaussian(0.02, 2.0), 300)).epsilon(1e-6).value
    pair = accountant.curve(times(GroupSampledGaussian(0.02, 2.0, 2), 300)).epsilon(1e-6).value
    replaced = accountant.curve(times(SampledGaussian(0.02, 2.0, adjacency="replace_one"), 300)).epsilon(1e-6).value
    assert base < replaced < pair


def test_randomized_response_is_a_binomial_sum() -> None:
    pair = DiscretePair((0.75, 0.25), (0.25, 0.75))
    p, q, count, epsilon = Fraction(3, 4), Fraction(1, 4), 40, 5.0
    truth = sum(
        math.comb(count, k)
        * max(float(p**k * q ** (count - k)) - math.exp(epsilon) * float(q**k * p ** (count - k)), 0)
        for k in range(count + 1)
    )
    assert accountant.curve(times(pair, count)).delta(epsilon).value == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize(
    ("composition", "word"),
    [
        (times(SampledGaussian(0.1, 1.0, sampler="shuffled"), 3), "shuffled"),
        (times(SampledGaussian(0.1, 1.0, adjacency="replace_one", sampler="without_replacement"), 3), "lattice"),
        (times(ConfidentGNMax(300, 40, 40, votes=(100, 50)), 3), "data-dependent"),
        (Composition(((Laplace(2.0), 10**6), (Gaussian(2.0), 1))), "lattice"),
        (Composition(((Gaussian(2.0), 1),), adaptive=True), "filter"),
    ],
)
def test_what_it_refuses_it_refuses_with_a_reason(composition: Composition, word: str) -> None:
    with pytest.raises(DpbenchError, match=word):
        accountant.curve(composition)


def test_a_root_that_newton_misses_is_bracketed() -> None:
    """δ at rate 0.001 falls so steeply past its bulk that the saddle point's first guess is far off."""
    answer = accountant.curve(times(SampledGaussian(0.001, 4.0), 50)).epsilon(1e-6)
    assert answer.reason is None
    assert answer.value == pytest.approx(0.005508911600, rel=1e-9)


@pytest.mark.parametrize("noise", [0.7, 2.0, 31.0])
def test_one_laplace_release_is_its_closed_form_to_an_ulp(noise: float) -> None:
    """1 − e^((ε − 1/b)/2), whose digits were once those of a line integral."""
    for epsilon in (0.0, 0.3 / noise, 0.9 / noise):
        answer = accountant.curve(times(Laplace(noise), 1)).delta(epsilon)
        assert answer.lower is not None
        assert answer.upper is not None
        truth = -math.expm1((epsilon - 1 / noise) / 2)
        assert answer.lower - 2e-16 <= truth <= answer.upper + 2e-16
        assert answer.value == pytest.approx(truth, rel=1e-15)


def test_a_group_beside_noise_without_end_keeps_its_digits() -> None:
    """δ of a large group at σ = 222743.99 was off by 5e5 of its error bars: x* is next to the middle.

    Its truth is in closed form: where Σ w_j e^((2xj − j²)/2σ²) = 1, at x*, the two laws have the same density.
    """
    event = GroupSampledGaussian(0.0005648576905059493, 222743.99, 10)
    answer = accountant.curve(times(event, 1)).delta(0.0)
    assert answer.lower is not None
    assert answer.upper is not None
    with mpmath.workdps(60):
        q, noise = mpmath.mpf(event.sampling_rate), mpmath.mpf(event.noise_multiplier)
        weights = [mpmath.binomial(10, j) * q**j * (1 - q) ** (10 - j) for j in range(11)]

        def excess(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.fsum(w * mpmath.expm1((2 * x * j - j * j) / (2 * noise**2)) for j, w in enumerate(weights))

        x = mpmath.findroot(excess, (0.1, 2.0), solver="anderson")
        tails = [mpmath.ncdf((j - x) / noise) - mpmath.ncdf(-x / noise) for j in range(11)]
        truth = mpmath.fsum(w * tail for w, tail in zip(weights, tails, strict=True))
        assert abs(truth - mpmath.mpf("1.011679889331851713e-8")) < 1e-26
        assert mpmath.mpf(answer.lower) <= truth <= mpmath.mpf(answer.upper)
    assert answer.upper - answer.lower < 1e-12 * answer.value


def test_large_losses_that_cancel_keep_their_digits() -> None:
    """b as Σ w (l − 1 + e^−l) kept 1e-14 absolutely where losses reach 30: 93,301 invocations multiplied that."""
    event = SampledGaussian(0.07162449044477139, 0.3608536059363962, "replace_one")
    answer = accountant.curve(times(event, 93301)).delta(15143.032911865)
    assert answer.lower is not None
    assert answer.upper is not None
    assert answer.lower <= 1.46761886628441906e-9  # certified
    assert answer.upper >= 1.46761886623448250e-9


def test_both_laws_have_their_mass_in_the_nodes() -> None:
    """b as Σ w (l − 1 + e^−l) rests on Q's mass; its tail was cut off for replaced records and little noise."""
    event = SampledGaussian(1.447299927232501e-07, 0.2152785591705476, "replace_one")
    answer = accountant.curve(times(event, 129456)).delta(11.27815488)
    assert answer.lower is not None
    assert answer.upper is not None
    assert answer.lower <= 2.49081666589708119e-6  # certified
    assert answer.upper >= 2.49081666577189779e-6
    assert answer.reason is None


def test_an_answer_is_the_same_alone_and_among_others() -> None:
    composition = times(SampledGaussian(0.004, 1.1), 3000)
    epsilons = np.linspace(0.0, 2.0, 40).tolist()
    together = accountant.curve(composition).deltas(epsilons)  # type: ignore[attr-defined]
    assert together[::7] == [accountant.curve(composition).delta(epsilon) for epsilon in epsilons[::7]]


@pytest.mark.parametrize(("noise", "gap"), [(0.3, 0.1), (0.2, 0.1), (0.3, 0.01)])
def test_next_to_the_largest_loss_nothing_is_stated_that_is_not_so(noise: float, gap: float) -> None:
    """Two releases in the direction add by the definition; a path for a place beyond the largest loss gave 0 ± 0."""
    rate, epsilon = 0.5, 2 * math.log(2) - gap

    def inner(x: float) -> float:
        left = epsilon + math.log1p(rate * math.expm1((x - 0.5) / noise**2)) if x < 30 else math.inf
        if left >= -math.log1p(-rate):
            return 0.0
        last = 0.5 + noise**2 * math.log((math.expm1(-left) + rate) / rate)
        both = ndtr(last / noise) - math.exp(left) * ((1 - rate) * ndtr(last / noise) + rate * ndtr((last - 1) / noise))
        return float(both) * math.exp(-(x**2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))

    truth = quad(inner, -12 * noise, 1.0, limit=1000, epsabs=0, epsrel=1e-10, points=[0.0, 0.2, 0.4])[0]
    way = accountant.curve(times(SampledGaussian(rate, noise), 2)).one_way("add")  # type: ignore[attr-defined]
    found = way.delta(epsilon)
    assert found.lower <= truth * (1 + 1e-8)
    assert found.upper >= truth * (1 - 1e-8)
    assert found.reason is not None or found.upper - found.lower < 1e-8 * truth
