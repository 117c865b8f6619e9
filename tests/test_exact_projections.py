"""The exact accountant on random sensitivity: certified points, definitions by direct integration, laws and faults."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.accountants import _projections_contour, _projections_path
from dpbench.accountants._projections import heavy_directions
from dpbench.accountants._projections_contour import Contours
from dpbench.accountants._projections_density import Law
from dpbench.accountants._projections_jumps import Jumps
from dpbench.accountants._projections_path import make_path
from dpbench.accountants._projections_single import log_release
from dpbench.accountants.exact.accountant import ExactCurve, accountant
from dpbench.accounting import Estimate
from dpbench.certified import certify
from dpbench.errors import DpbenchError
from dpbench.events import (
    Composition,
    ConfidentGNMax,
    Event,
    Gaussian,
    GroupSampledGaussian,
    RandomSensitivityGaussian,
    SampledGaussian,
    from_json,
)
from dpbench.references.random_sensitivity_gaussian import reference

FOLDER = Path(__file__).parent / "references"
POINTS: list[dict[str, Any]] = [
    point
    for name in ("random_sensitivity_gaussian", "unlike")
    for point in json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["points"]
    if any(part["event"] == "RandomSensitivityGaussian" for part in point["composition"]["parts"])
]
# δ at ε by `dpbench.certified.certify`, rounded outwards: the composition's parts, ε, lower and upper end
CERTIFIED: list[tuple[tuple[tuple[Event, int], ...], float, float, float]] = [
    (((RandomSensitivityGaussian(0.1, 3.0, 2), 20),), 1.0, 0.038198379099906, 0.038198379100005),
    (((RandomSensitivityGaussian(0.3, 1.0, 10), 5),), 2.0, 0.034237760295169, 0.034237760295317),
    (((RandomSensitivityGaussian(0.01, 1.0, 1), 100),), 3.0, 0.177665215647908, 0.177665215648390),
    (((RandomSensitivityGaussian(0.02, 1.5, 5), 300),), 2.0, 0.008625843323856, 0.008625843323877),
    (((RandomSensitivityGaussian(1.0, 5.0, 30), 10),), 3.0, 1.981106996489e-6, 1.981106996495e-6),
    (((RandomSensitivityGaussian(1.0, 5.0, 3), 10),), 3.0, 0.016277088838758, 0.016277088838800),
    (((RandomSensitivityGaussian(0.05, 2.0, 200), 200),), 1.5, 1.9944634284513e-5, 1.9944634284560e-5),
    (((RandomSensitivityGaussian(0.05, 2.0, 200), 200),), 0.0, 0.148686651508, 0.148686651512),
    (((RandomSensitivityGaussian(0.001, 1.0, 4), 30),), 0.5, 3.95608643612e-4, 3.95608643614e-4),
    (
        (
            (RandomSensitivityGaussian(0.05, 2.0, 5), 50),
            (Gaussian(4.0), 2),
            (SampledGaussian(0.02, 1.0), 30),
        ),
        1.5,
        0.002871207109905,
        0.002871207109913,
    ),
]
TRAINING = SampledGaussian(256 / 60000, 1.3)


def projected(projections: int) -> RandomSensitivityGaussian:
    return RandomSensitivityGaussian(TRAINING.sampling_rate, TRAINING.noise_multiplier, projections)


def times(event: Event, count: int) -> Composition:
    return Composition(((event, count),))


def overlaps(answer: Estimate, lower: float, upper: float) -> bool:
    assert answer.lower is not None
    assert answer.upper is not None
    return answer.lower <= upper * (1 + 1e-15) and answer.upper >= lower * (1 - 1e-15)


def certified_failures() -> list[str]:
    found = []
    for parts, epsilon, lower, upper in CERTIFIED:
        answer = accountant.curve(Composition(parts)).delta(epsilon)
        miss = max(lower - answer.value, answer.value - upper, 0.0)
        if miss > max(1e-9 * upper, 1e-12) or not overlaps(answer, lower, upper):
            found.append(f"{parts} at {epsilon}: {answer}")
    return found


def test_it_meets_certified_points_within_its_error_bar() -> None:
    assert certified_failures() == []


def test_it_meets_every_stored_point() -> None:
    assert len(POINTS) >= 70
    for point in POINTS:
        answer = accountant.curve(from_json(point["composition"])).delta(point["epsilon"])
        lower, upper = float(point["both"]["lower"]), float(point["both"]["upper"])
        assert max(lower - answer.value, answer.value - upper, 0.0) <= point["budget"], point
        assert overlaps(answer, lower, upper), (point, answer)


def test_thirty_projections_in_training_meet_the_certificate() -> None:
    answer = accountant.curve(times(projected(30), 3516)).epsilon(1e-5)
    assert 0.95447444 < answer.value < 0.95447493
    assert answer.reason is None
    assert answer.relative_error is not None
    assert answer.relative_error < 1e-9


def test_a_fresh_certificate_holds_the_value() -> None:
    composition = times(RandomSensitivityGaussian(1.0, 5.0, 30), 10)
    certificate = certify(composition, delta=1e-5)
    answer = accountant.curve(composition).epsilon(1e-5)
    assert overlaps(answer, float(certificate.lower), float(certificate.upper))
    assert answer.value == pytest.approx(2.74444707487, rel=1e-10)


@pytest.mark.parametrize("fault", ["no tail on the edge", "no ray", "coarse contours", "without the upright"])
def test_a_planted_fault_misses_certified_points(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    def nothing(*_: object) -> None:
        raise ArithmeticError("only paths are tried")

    monkeypatch.setattr(Jumps, "_make", nothing)
    if fault == "no tail on the edge":
        monkeypatch.setattr(_projections_path, "_edge", lambda *_: None)
    elif fault == "no ray":
        honest = _projections_path._ray
        monkeypatch.setattr(
            _projections_path, "_ray", lambda *given: replace(honest(*given), weight=0 * honest(*given).weight)
        )
    elif fault == "coarse contours":
        monkeypatch.setattr(_projections_contour, "SMOOTH", 10.0)
    else:
        path = Contours._path
        monkeypatch.setattr(
            Contours,
            "_path",
            lambda self, box, **given: replace(path(self, box, **given), outer=path(self, box, **given).outer[:2]),
        )
    assert certified_failures()


def direct_delta(event: RandomSensitivityGaussian, epsilon: float, direction: str) -> float:
    """One release by the definition: the sampled Gaussian's closed form at noise σ/Z, integrated over Z."""
    q, sigma, r = (mpmath.mpf(value) for value in (event.sampling_rate, event.noise_multiplier, event.projections))
    growth = mpmath.exp(epsilon)

    def given_z(z: mpmath.mpf) -> mpmath.mpf:
        level = ((growth if direction == "remove" else 1 / growth) - (1 - q)) / q
        if level <= 0:
            return mpmath.mpf(0)
        x = mpmath.log(level) * sigma**2 / z + z / 2  # the likelihood ratio of N(z) to N(0) is `level` there
        near, far = mpmath.ncdf(-(x - z) / sigma), mpmath.ncdf(-x / sigma)
        if direction == "remove":
            return (1 - q) * far + q * near - growth * far
        return (1 - far) - growth * ((1 - q) * (1 - far) + q * (1 - near))

    def density(v: mpmath.mpf) -> mpmath.mpf:  # of v = log(χ²/r)
        half = r / 2
        return mpmath.exp(half * v - half * mpmath.exp(v) + half * mpmath.log(half) - mpmath.loggamma(half))

    marks = [-160 / r - 8, -40 / r - 4, -10 / mpmath.sqrt(r), -1, 0, 1, 3, 5]
    return float(mpmath.quad(lambda v: density(v) * given_z(mpmath.exp(-v / 2)), sorted(marks), maxdegree=8))


@pytest.mark.parametrize("r", [1, 2, 5, 30])
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_one_release_is_its_definition_integrated(r: int, direction: str) -> None:
    """By the closed single integral, and by the contour, which is meant for many."""
    for rate, sigma, epsilon in ((0.2, 1.5, 0.1), (0.6, 0.8, 0.5)):
        event = RandomSensitivityGaussian(rate, sigma, r)
        with mpmath.workdps(25):
            truth = direct_delta(event, epsilon, direction)
        assert math.exp(log_release(event, epsilon, ("remove", "add").index(direction))) == pytest.approx(
            truth, rel=1e-11
        )
        if direction == "add" and r < 5 and sigma < 1:
            continue  # half a minute of the contour, which is never asked for a single release
        ways = heavy_directions(((event, 1),))
        assert ways is not None
        found = next(way for way in ways if way.direction == direction).delta(epsilon)
        assert found.value == pytest.approx(truth, rel=1e-9)
        assert abs(found.value - truth) <= found.error + 1e-11 * truth


@pytest.mark.parametrize("sigma", [0.2, 3.0, 30.0])
def test_one_release_is_told_for_every_number_of_projections(sigma: float) -> None:
    """With 19 to 28 projections it was not a number: K of an argument beyond 2^30."""
    for r in (*range(1, 41), 100, 1000):
        delta = accountant.curve(times(RandomSensitivityGaussian(1.0, sigma, r), 1)).delta(0.0)
        assert 0 < delta.value < 1


def test_more_projections_are_more_private_where_the_noise_is_large_and_not_where_it_is_small() -> None:
    """One release, q = 1, ε = 0: δ = E[h(G)], G = χ²_r/r, h(g) = 2Φ(u/√g) − 1, u = 1/(2σ).

    G with r is a mean-preserving spread of G with r + 1 (means of ever more draws are a reverse martingale), so that δ
    falls in r where h is convex, g >= u²/3, and rises where it is concave. That of infinitely many is below all others
    where u² <= 3 and the tangent at g = 1 lies below h, h(1) + u φ(u) <= 1; so for σ = 1, and not for σ = 0.2.
    """
    limit = accountant.curve(times(Gaussian(1.0), 1)).delta(0.0).value
    found = [
        accountant.curve(times(RandomSensitivityGaussian(1.0, 1.0, r), 1)).delta(0.0).value for r in (1, 3, 20, 300)
    ]
    assert all(value > limit for value in found)
    small = [accountant.curve(times(RandomSensitivityGaussian(1.0, 0.2, r), 1)).delta(0.0).value for r in (1, 5, 100)]
    assert small[0] < small[1] < small[2] < accountant.curve(times(Gaussian(0.2), 1)).delta(0.0).value


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 20.0])
def test_one_release_with_one_projection_is_the_reference(epsilon: float) -> None:
    event = RandomSensitivityGaussian(0.07, 0.9, 1)
    truth = reference.delta(event, epsilon, 15)
    assert accountant.curve(times(event, 1)).delta(epsilon).value == pytest.approx(float(truth.upper), rel=1e-11)


def test_many_projections_meet_the_sampled_gaussian_and_the_distance_falls_like_one_over_r() -> None:
    limit = accountant.curve(times(TRAINING, 3516)).epsilon(1e-5).value
    over = [accountant.curve(times(projected(r), 3516)).epsilon(1e-5).value - limit for r in (10**4, 10**5, 10**6)]
    assert 0 < over[2] < 3e-6
    assert over[0] / over[1] == pytest.approx(10, rel=0.01)
    assert over[1] / over[2] == pytest.approx(10, rel=0.01)


heavy = st.builds(
    RandomSensitivityGaussian,
    sampling_rate=st.floats(0.01, 0.3),
    noise_multiplier=st.floats(0.8, 3.0),
    projections=st.sampled_from([1, 2, 3, 5, 10]),  # with these δ is never below 1e-30, where the path may fail
)


@settings(max_examples=6, deadline=None)
@given(heavy, st.integers(5, 2000))
def test_delta_falls_and_is_convex_in_the_exponential_of_epsilon(event: RandomSensitivityGaussian, count: int) -> None:
    curve = accountant.curve(times(event, count))
    factors = np.linspace(1.0, 3.0, 6)
    deltas = [curve.delta(math.log(factor)) for factor in factors]
    slack = [2 * ((d.upper or 0) - (d.lower or 0)) + 1e-15 for d in deltas]
    assert all(after.value <= before.value + s for (before, after), s in zip(pairwise(deltas), slack, strict=False))
    for k in range(1, 5):
        middle = (deltas[k - 1].value + deltas[k + 1].value) / 2
        assert deltas[k].value <= middle + slack[k - 1] + slack[k] + slack[k + 1]


@settings(max_examples=6, deadline=None)
@given(heavy, st.integers(2, 500), st.integers(1, 500))
def test_composing_is_adding_and_more_is_more(event: RandomSensitivityGaussian, first: int, second: int) -> None:
    together = accountant.curve(Composition(((event, first), (event, second)))).delta(0.5)
    at_once = accountant.curve(times(event, first + second)).delta(0.5)
    alone = accountant.curve(times(event, first)).delta(0.5)
    assert together == at_once
    assert alone.value <= at_once.value * (1 + 1e-9) + 1e-12


@settings(max_examples=6, deadline=None)
@given(heavy, st.integers(2, 500), st.floats(1.1, 3.0))
def test_more_noise_and_less_sampling_are_more_private(
    event: RandomSensitivityGaussian, count: int, factor: float
) -> None:
    base = accountant.curve(times(event, count)).delta(0.5).value
    rate, sigma, r = event.sampling_rate, event.noise_multiplier, event.projections
    for other in (
        RandomSensitivityGaussian(rate, sigma * factor, r),
        RandomSensitivityGaussian(rate / factor, sigma, r),
    ):
        assert accountant.curve(times(other, count)).delta(0.5).value <= base * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_unlike_releases_are_what_they_are_when_told_apart(direction: str) -> None:
    """Gaussians add in 1/σ²; the same event with parameters a hair apart is nearly the same."""
    event = RandomSensitivityGaussian(0.05, 2.0, 5)
    near = RandomSensitivityGaussian(0.05 * (1 + 1e-13), 2.0, 5)
    one = heavy_directions(((event, 40), (Gaussian(4.0), 2)))
    two = heavy_directions(((event, 20), (near, 20), (Gaussian(4 / math.sqrt(2)), 1)))
    assert one is not None
    assert two is not None
    index = ("remove", "add").index(direction)
    assert two[index].delta(0.7).value == pytest.approx(one[index].delta(0.7).value, rel=1e-10)


def test_a_curve_of_many_points_is_what_the_points_are_alone() -> None:
    curve = accountant.curve(times(projected(10), 3516))
    epsilons = [0.5, 0.51, 0.6, 1.0, 3.0]
    assert isinstance(curve, ExactCurve)
    for epsilon, shared in zip(epsilons, curve.deltas(epsilons), strict=True):
        alone = accountant.curve(times(projected(10), 3516)).delta(epsilon)
        assert shared.value == pytest.approx(alone.value, rel=1e-9)


def test_epsilon_and_delta_invert_each_other() -> None:
    for event, count in ((projected(2), 3516), (projected(30), 3516), (RandomSensitivityGaussian(1.0, 5.0, 4), 10)):
        curve = accountant.curve(times(event, count))
        epsilon = curve.epsilon(1e-6)
        assert curve.delta(epsilon.value).value == pytest.approx(1e-6, rel=1e-9)


def test_what_reveals_nothing_costs_nothing_beside_other_releases() -> None:
    silent = (RandomSensitivityGaussian(0.0, 1.0, 3), 7), (RandomSensitivityGaussian(0.3, math.inf, 3), 7)
    assert accountant.curve(Composition(silent)).epsilon(1e-5).value == 0
    beside = accountant.curve(Composition((*silent, (TRAINING, 100)))).epsilon(1e-5).value
    assert beside == accountant.curve(times(TRAINING, 100)).epsilon(1e-5).value


@pytest.mark.parametrize("count", [2, 58])
def test_delta_far_below_every_double_that_matters_is_bounded(count: int) -> None:
    """It was [0, 1] here, and an ArithmeticError."""
    answer = accountant.curve(times(RandomSensitivityGaussian(0.0059, 5.1, 100), count)).delta(0.5)
    assert answer.lower == 0
    assert answer.upper is not None
    assert 0 < answer.upper < 1e-30
    assert answer.reason is None


@pytest.mark.parametrize(
    ("event", "count", "epsilon"),
    [
        (RandomSensitivityGaussian(0.1, 3.0, 2), 20, 1.0),
        (RandomSensitivityGaussian(0.05, 2.0, 30), 200, 4.0),
        (RandomSensitivityGaussian(1.0, 5.0, 30), 10, 6.0),
        (RandomSensitivityGaussian(0.0059, 5.1, 100), 58, 0.07),
        (RandomSensitivityGaussian(0.01, 1.3, 1000), 500, 2.0),
    ],
)
def test_the_bound_lies_above_delta(event: RandomSensitivityGaussian, count: int, epsilon: float) -> None:
    ways = heavy_directions(((event, count),))
    assert ways is not None
    for way in ways:
        value = way.delta(epsilon)
        assert math.exp(way.bound(epsilon)) >= value.value - value.error
        if value.value > 0:  # and it is of use
            assert way.bound(epsilon) < 0.25 * math.log(value.value)


@pytest.mark.parametrize(("count", "delta"), [(2, 1e-18), (58, 1e-10), (58, 1e-25)])
def test_epsilon_at_a_tiny_delta_is_bracketed(count: int, delta: float) -> None:
    """By the bound from above, by one release alone from below, where the path cannot tell."""
    curve = accountant.curve(times(RandomSensitivityGaussian(0.0059, 5.1, 100), count))
    answer = curve.epsilon(delta)
    assert answer.lower is not None
    assert answer.upper is not None
    assert 0.01 < answer.lower <= answer.value <= answer.upper < 0.25
    assert isinstance(curve, ExactCurve)
    one = accountant.curve(times(RandomSensitivityGaussian(0.0059, 5.1, 100), 1)).epsilon(delta).value
    assert answer.value > one
    assert curve.delta(answer.upper).value <= delta * (1 + 1e-9)


@pytest.mark.parametrize(
    ("rate", "sigma", "r", "count", "delta"),
    [
        # a path that went on along the edge for thousands of units took minutes
        (0.0020106, 8.52, 4, 318, 8.3e-5),
        (0.0017497, 10.98, 31, 7, 8.7e-7),
        (0.0003048, 5.609, 60, 448, 1.4e-10),
    ],
)
def test_the_work_is_bounded(rate: float, sigma: float, r: int, count: int, delta: float) -> None:
    (way, _) = heavy_directions(((RandomSensitivityGaussian(rate, sigma, r), count),)) or (None, None)
    assert way is not None
    found = way.epsilon(math.log(delta))
    assert way.transform.spent < 3e7
    there = way.delta(found.value)
    assert there.value == pytest.approx(delta, rel=1e-8, abs=1e-12)


def test_large_moments_beside_a_sampled_gaussian_do_not_mislead_the_path() -> None:
    """log M above 650 was cut off on the ladder, and the path began at 1e-30."""
    parts = (
        (RandomSensitivityGaussian(0.002414545314353763, 10.173307415819226, 100000), 87),
        (SampledGaussian(0.2671340448848329, 2.088317130844371), 79),
    )
    limit = tuple((SampledGaussian(event.sampling_rate, event.noise_multiplier), count) for event, count in parts)
    answer = accountant.curve(Composition(parts)).epsilon(1.2e-6)
    assert answer.reason is None
    assert answer.value == pytest.approx(accountant.curve(Composition(limit)).epsilon(1.2e-6).value, rel=1e-6)


@pytest.mark.parametrize(
    ("composition", "word"),
    [
        (times(RandomSensitivityGaussian(0.1, 1.0, 5, sampler="shuffled"), 3), "shuffled"),
        (times(RandomSensitivityGaussian(0.1, 1.0, 5, adjacency="replace_one"), 3), "add_or_remove"),
        (Composition(((projected(5), 1), (GroupSampledGaussian(0.1, 1.0, 2), 1))), "GroupSampledGaussian"),
        (Composition(((projected(5), 1),), adaptive=True), "filter"),
        (Composition(((projected(5), 1), (ConfidentGNMax(300, 40, 40, votes=(1, 2)), 1))), "data-dependent"),
    ],
)
def test_what_it_refuses_it_refuses_with_a_reason(composition: Composition, word: str) -> None:
    with pytest.raises(DpbenchError, match=word):
        accountant.curve(composition)


def test_the_tail_below_the_lowest_place_of_the_ladder_counts() -> None:
    """One projection, ε = 8.7e15: what the path left out below x = e^−69 was 1.1e-7 of δ, and not in its error.

    Without a cut of the path at 0 or a ladder: for s = Z²/(2σ²), Z² = 1/χ²_1, E[e^(xs)] = e^(i√x/σ) on the upper edge.
    """
    q, sigma, count, epsilon = 0.94937, 18.9482, 36245, 8675528841118368.0
    with mpmath.workdps(25):

        def integrand(t: mpmath.mpf) -> mpmath.mpf:  # x = t²/ε
            moment = (1 - q + q * mpmath.exp(1j * t / (mpmath.sqrt(epsilon) * sigma))) ** count
            return 2 * moment.imag * mpmath.exp(-t * t) / t

        truth = float(mpmath.quad(integrand, [0, 0.5, 1, 2, 4, 8]) / mpmath.pi)
    curve = accountant.curve(times(RandomSensitivityGaussian(q, sigma, 1), count))
    answer = curve.delta(epsilon)
    assert overlaps(answer, truth * (1 - 1e-10), truth * (1 + 1e-10))
    assert answer.value == pytest.approx(truth, rel=1e-9)
    assert curve.epsilon(truth).value == pytest.approx(epsilon, rel=1e-9)


def test_one_large_loss_alone_makes_epsilon_beyond_all_bounds() -> None:
    """P(Z²/(2σ²) > ε) = P(χ²_1 < 1/(2σ²ε)) to first order, at ε about 1e40."""
    event, count, delta = RandomSensitivityGaussian(0.0006, 176.9, 1), 97, 1.6e-24
    answer = accountant.curve(times(event, count)).epsilon(delta)
    first = (count * 0.0006 / (delta * 176.9)) ** 2 / math.pi
    assert answer.value == pytest.approx(first, rel=1e-9)


TINY = [  # event, count, δ: answered with a bracket once
    (RandomSensitivityGaussian(0.0012467691771318346, 19.85561203806182, 10**6), 18, math.exp(-41.38)),
    (RandomSensitivityGaussian(0.000174, 6.274, 30), 1052, 1.7e-13),
    (RandomSensitivityGaussian(1.57e-5, 26.4, 60), 79, 3.7e-20),
    (RandomSensitivityGaussian(4.58e-6, 4.5, 1474), 3, 6.7e-13),
    (RandomSensitivityGaussian(0.0607, 181.9, 303), 13, 8.3e-10),
]


@pytest.mark.parametrize(("event", "count", "delta"), TINY)
def test_a_tiny_delta_is_told_by_counting_large_losses(
    event: RandomSensitivityGaussian, count: int, delta: float
) -> None:
    """And wherever the window lies: what counts as large changes nothing."""
    answer = accountant.curve(times(event, count)).epsilon(delta)
    assert answer.reason is None
    parts = ((event.sampling_rate, Law(event.noise_multiplier, event.projections), count),)
    found = [Jumps(parts, 0.0, True, answer.value, math.log(delta), share)(answer.value) for share in (1.0, 0.9)]
    for value, _, error in found:
        assert value <= delta * (1 + 1e-9) + error
        assert error < 1e-6 * delta
    assert abs(found[0][0] - found[1][0]) <= found[0][2] + found[1][2]


def test_where_large_losses_are_counted_the_path_tells_the_same() -> None:
    event = RandomSensitivityGaussian(0.00319, 42.2, 100)
    (way, _) = heavy_directions(((event, 180),)) or (None, None)
    assert way is not None
    value, slope, error = make_path(way.transform, 0.00687, 4.0)(0.00687)
    parts = ((event.sampling_rate, Law(event.noise_multiplier, event.projections), 180),)
    other, fall, wrong = Jumps(parts, 0.0, True, 0.00687, math.log(value), 0.6)(0.00687)
    assert abs(value - other) <= error + wrong
    assert error + wrong < 1e-9 * value
    assert slope == pytest.approx(fall, rel=1e-8)


def test_a_large_loss_left_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    event, count, delta = TINY[1]
    epsilon = accountant.curve(times(event, count)).epsilon(delta).value
    parts = ((event.sampling_rate, Law(event.noise_multiplier, event.projections), count),)

    def miss() -> float:
        return abs(Jumps(parts, 0.0, True, epsilon, math.log(delta), 0.6)(epsilon)[0] - delta)

    assert miss() < 1e-8 * delta
    monkeypatch.setattr(Jumps, "_at_ends", lambda *_: (0.0, 0.0, 0.0))
    assert miss() > 1e-6 * delta


def test_the_path_does_not_go_uphill() -> None:
    """It went into where M is large, and told ε = 1.1 with eight digits where it is 0.123."""
    event = RandomSensitivityGaussian(0.27070110542722625, 49.32612288664989, 10000)
    for way in heavy_directions(((event, 26),)) or ():
        for epsilon in (0.123, 0.2, 1.1):
            value = way.delta(epsilon)
            assert value.value - value.error <= math.exp(way.bound(epsilon))
            try:
                with np.errstate(all="ignore"):
                    found, _, error = make_path(way.transform, epsilon)(epsilon)
            except ArithmeticError:
                continue
            assert found - error <= math.exp(way.bound(epsilon))


def test_epsilon_is_zero_where_delta_at_zero_is_less() -> None:
    answer = accountant.curve(times(RandomSensitivityGaussian(1.3636e-6, 34.593, 130), 45)).epsilon(2e-6)
    assert (answer.value, answer.reason) == (0.0, None)


def test_the_directions_meet_the_sampled_gaussian_with_many_projections() -> None:
    event = RandomSensitivityGaussian(0.8506719878988774, 816.101852576513, 10**6)
    limit = accountant.curve(times(SampledGaussian(event.sampling_rate, event.noise_multiplier), 128641))
    delta = math.exp(-28.6427)
    for way in heavy_directions(((event, 128641),)) or ():
        assert way.epsilon(math.log(delta)).value == pytest.approx(limit.epsilon(delta).value, rel=1e-5)
