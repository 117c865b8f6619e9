"""Internal: each part of the integral counts, seen by leaving one out.

The exact accountant on random sensitivity: certified points, definition, the lattice's bounds, laws, corners.
"""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from dpbench.judging.enclosures import TABLES
from dpbench.privacy.accountants.exact import projections, random_sensitivity
from dpbench.privacy.accountants.exact.accountant import ExactCurve, accountant
from dpbench.privacy.accountants.exact.contour import Path as ContourPath
from dpbench.privacy.accountants.exact.random_sensitivity import Law
from dpbench.privacy.accountants.lattice import accountant as lattice
from dpbench.privacy.answers import Estimate
from dpbench.privacy.certified import certify

FOLDER = TABLES
POINTS: list[dict[str, Any]] = [
    point
    for name in ("random_sensitivity_gaussian", "unlike")
    for point in json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["points"]
    if any(part["event"] == "RandomSensitivityGaussian" for part in point["composition"]["parts"])
]
# δ at ε by `dpbench.privacy.certified.certify`, rounded outwards: the composition's parts, ε, lower and upper end
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
        ((RandomSensitivityGaussian(0.05, 2.0, 5), 50), (Gaussian(4.0), 2), (SampledGaussian(0.02, 1.0), 30)),
        1.5,
        0.002871207109905,
        0.002871207109913,
    ),
]
# event, count, δ and ε, each found by two unlike methods to 1e-11: losses far out, rare or small ones, many projections
ROOTS: list[tuple[RandomSensitivityGaussian, int, float, float]] = [
    (RandomSensitivityGaussian(0.001634, 0.8357, 1282), 17, 1.437e-07, 0.368070499270362),
    (RandomSensitivityGaussian(0.0020106, 8.52, 4), 318, 8.3e-05, 0.01268189140790069),
    (RandomSensitivityGaussian(0.0017497, 10.98, 31), 7, 8.7e-07, 0.0011642368798263558),
    (RandomSensitivityGaussian(0.0003048, 5.609, 60), 448, 1.4e-10, 0.005856819937503475),
    (RandomSensitivityGaussian(0.00319, 42.2, 100), 180, 1e-09, 0.004559960786084761),
    (RandomSensitivityGaussian(0.0059, 5.1, 100), 58, 1e-10, 0.05133606550757417),
    (RandomSensitivityGaussian(0.004266666666666667, 1.3, 1000000), 3516, 1e-05, 0.8645420766348472),
    (RandomSensitivityGaussian(0.004266666666666667, 1.3, 30), 3516, 1e-05, 0.9544746942453558),
    (RandomSensitivityGaussian(0.2858, 199.6, 299), 6, 0.0001, 0.00533926037210742),
    (RandomSensitivityGaussian(0.01, 0.3, 10), 100, 1e-05, 105.1374515992152),
    (RandomSensitivityGaussian(1.0, 1.4600084137710927, 23), 139, 2.385145716433115e-10, 88.63502757616574),
    (
        RandomSensitivityGaussian(0.0010055400366458832, 1.4241409075094091, 16),
        558,
        2.647096981461686e-09,
        2.8527875108785463,
    ),
    (
        RandomSensitivityGaussian(0.00429441661873182, 0.6816559922089351, 23),
        6224,
        1.3797763774975047e-07,
        14.413240820406003,
    ),
    (
        RandomSensitivityGaussian(0.0746249621194077, 1.5893967798353619, 5),
        91,
        1.548644342102547e-05,
        54.34079180969899,
    ),
    (
        RandomSensitivityGaussian(0.005662719520571262, 2.630924845643579, 12),
        60,
        5.4101884958770814e-08,
        0.31703821712504066,
    ),
    (RandomSensitivityGaussian(1.0, 1.7870170664008096, 4), 300, 0.0008744541011844237, 227.8745699941615),
    (
        RandomSensitivityGaussian(0.0020217620781263304, 2.201780708850562, 24),
        24575,
        6.435469493724579e-08,
        0.7581023935025885,
    ),
    (
        RandomSensitivityGaussian(0.07411774342056278, 3.4129747812234528, 12),
        204,
        0.0008356553141834753,
        0.9433867525885781,
    ),
    (
        RandomSensitivityGaussian(0.002063093801160169, 1.1609420489266262, 25),
        20,
        0.00010145478115164725,
        0.034373491691699815,
    ),
    (
        RandomSensitivityGaussian(0.0036090478329231243, 1.266959111068672, 29),
        17,
        1.0452410194753754e-10,
        1.8613673164529494,
    ),
    (
        RandomSensitivityGaussian(0.004727102413790631, 2.6044226370825294, 29),
        394,
        1.440048690944312e-06,
        0.14871942738363902,
    ),
    (
        RandomSensitivityGaussian(0.0054051729889038995, 1.1893927603851862, 4),
        5265,
        3.139913365509528e-05,
        473.3964517705253,
    ),
    (
        RandomSensitivityGaussian(0.01570342103843279, 2.279529172547251, 7),
        1256,
        8.735093187933281e-07,
        19.177673559250092,
    ),
    (
        RandomSensitivityGaussian(0.003135121888061999, 1.5777190116258584, 11),
        4893,
        2.176654336095399e-09,
        22.404750581464935,
    ),
]
TRAINING = SampledGaussian(256 / 60000, 1.3)


def projected(r: int) -> RandomSensitivityGaussian:
    return RandomSensitivityGaussian(TRAINING.sampling_rate, TRAINING.noise_multiplier, r)


def times(event: Event, count: int) -> Composition:
    return Composition(((event, count),))


def overlaps(answer: Estimate, lower: float, upper: float) -> bool:
    assert answer.lower is not None
    assert answer.upper is not None
    return answer.lower <= upper * (1 + 1e-15) and answer.upper >= lower * (1 - 1e-15)


def misses(answer: Estimate, lower: float, upper: float, budget: float) -> bool:
    """Whether the value lies further than `budget` outside of an enclosure, or its bar does not reach it."""
    return max(lower - answer.value, answer.value - upper) > budget or not overlaps(answer, lower, upper)


def certified_failures() -> list[str]:
    found = []
    for parts, epsilon, lower, upper in CERTIFIED:
        try:
            answer = accountant.curve(Composition(parts)).delta(epsilon)
        except DpbenchError as error:
            found.append(f"{parts} at {epsilon}: {error}")
            continue
        if misses(answer, lower, upper, max(1e-10 * upper, 1e-12)) or answer.reason:
            found.append(f"{parts} at {epsilon}: {answer}")
    return found


def test_it_meets_certified_points_within_its_error_bar() -> None:
    assert certified_failures() == []


def test_it_meets_every_stored_point() -> None:
    assert len(POINTS) >= 70
    for point in POINTS:
        answer = accountant.curve(from_json(point["composition"])).delta(point["epsilon"])
        lower, upper = float(point["both"]["lower"]), float(point["both"]["upper"])
        assert not misses(answer, lower, upper, point["budget"]), (point, answer)


@pytest.mark.parametrize(("event", "count", "delta", "epsilon"), ROOTS)
def test_epsilon_at_delta_is_what_another_method_told(
    event: RandomSensitivityGaussian, count: int, delta: float, epsilon: float
) -> None:
    answer = accountant.curve(times(event, count)).epsilon(delta)
    assert answer.reason is None
    assert answer.value == pytest.approx(epsilon, rel=1e-10)
    assert overlaps(answer, epsilon * (1 - 1e-11), epsilon * (1 + 1e-11))


def test_a_fresh_certificate_holds_the_value() -> None:
    composition = times(RandomSensitivityGaussian(1.0, 5.0, 30), 10)
    certificate = certify(composition, delta=1e-5)
    assert overlaps(accountant.curve(composition).epsilon(1e-5), float(certificate.lower), float(certificate.upper))


def test_random_points_lie_just_below_the_lattice_s_rigorous_bound() -> None:
    draw = random.Random(8)
    for _ in range(12):
        rate, sigma = 10 ** draw.uniform(-2.5, -0.5), draw.uniform(0.7, 4.0)
        composition = times(RandomSensitivityGaussian(rate, sigma, draw.choice([1, 2, 5, 20])), draw.randrange(2, 400))
        epsilon = draw.uniform(0.1, 6.0)
        answer, sound = (method.curve(composition).delta(epsilon) for method in (accountant, lattice.accountant))
        assert answer.reason is None
        assert (answer.lower or 0) <= sound.value <= answer.value * (1 + 1e-4) + 1e-12, (composition, epsilon)


@pytest.mark.parametrize("fault", ["no large losses", "coarse nodes", "no second term of E", "no left mass"])
def test_a_planted_fault_misses_certified_points(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The split M = E + j: without either, or without what makes up for the window, δ is another."""
    if fault == "no large losses":
        honest = projections._jumps

        def nothing(*given: Any) -> ContourPath:
            laid = honest(*given)
            return ContourPath(**{**vars(laid), "grown": 0 * laid.grown})

        monkeypatch.setattr(projections, "_jumps", nothing)
    elif fault == "coarse nodes":
        monkeypatch.setattr(random_sensitivity, "_STEP", 0.4)
    elif fault == "no second term of E":
        monkeypatch.setattr(random_sensitivity, "OUTCOME", 1e-300)
    else:
        monkeypatch.setattr(random_sensitivity, "_LEFT", -1.0)
    assert certified_failures()


@pytest.mark.parametrize(("r", "sigma"), [(1, 1.3), (5, 0.7), (29, 3.0), (1000, 1.3)])
def test_the_density_is_the_bessel_function_that_it_stands_for(r: int, sigma: float) -> None:
    """The saddle of the mixing integral: one sum for every r, off the real line and on paths that rise."""
    order, beta = mpmath.mpf(r + 1) / 2, 1 / (8 * mpmath.mpf(sigma) ** 2)
    places = [-30 + 0.3j / sigma, 0.5 + 0j, 0.2 + 0.3j / sigma, 3 + 1j, 40 + 15j, 1e4 + 4e3j]
    plain, even = Law(sigma, r).log_density(np.array(places))
    for place, low, high in zip(places, plain, even, strict=True):
        with mpmath.workdps(40):
            s = mpmath.mpc(place)
            alpha = (r + (sigma * s) ** 2) / 2
            half = mpmath.mpf(r) / 2
            constant = 2 * half**half / mpmath.gamma(half) * sigma / mpmath.sqrt(2 * mpmath.pi)
            bessel = mpmath.log(mpmath.besselk(order, 2 * mpmath.sqrt(alpha * beta)))
            truth = mpmath.log(constant) + order / 2 * mpmath.log(beta / alpha) + bessel
            known, shift = (low, -s / 2) if place.real < 0 else (high, s / 2)
            assert abs(mpmath.expm1(mpmath.mpc(known) - truth - shift)) < 1e-12 * (1 + abs(place) / 100)


def direct_delta(event: RandomSensitivityGaussian, epsilon: float) -> float:
    """Two releases by the definition, remove: ∫ p R δ₁(ε − l) ds, δ₁ of one invocation by sums over the same s."""
    law, q = Law(event.noise_multiplier, event.projections), event.sampling_rate
    s, step = np.linspace(-60.0, 60.0, 60_001, retstep=True)
    plain, ratio = np.exp(law.log_density(s + 0j)[0].real) * step, 1 - q + q * np.exp(s)
    first, second = (np.append(np.cumsum(row[::-1])[::-1], 0.0) for row in (plain * ratio, plain))
    level = np.exp(epsilon) / ratio
    place = np.log(np.maximum((level - 1 + q) / q, math.exp(s[0])))  # where R(s) = level, or the left end
    one, other = (np.interp(place, s - step / 2, row[:-1], right=0.0) for row in (first, second))
    return float((plain * ratio * np.maximum(one - level * other, 0.0)).sum())


def test_two_releases_are_their_definition_integrated() -> None:
    for event, epsilon in (
        (RandomSensitivityGaussian(0.2, 1.5, 20), 0.5),
        (RandomSensitivityGaussian(0.5, 2.0, 40), 1.0),
    ):
        curve = accountant.curve(times(event, 2))
        assert isinstance(curve, ExactCurve)
        assert curve.one_way("remove").delta(epsilon).value == pytest.approx(direct_delta(event, epsilon), rel=1e-5)


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
    projections=st.sampled_from([1, 2, 3, 5, 10, 50]),
)


@settings(max_examples=6, deadline=None)
@given(heavy, st.integers(5, 2000))
def test_delta_falls_and_is_convex_in_the_exponential_of_epsilon(event: RandomSensitivityGaussian, count: int) -> None:
    deltas = accountant.curve(times(event, count)).deltas([math.log(factor) for factor in np.linspace(1.0, 3.0, 6)])
    slack = [2 * ((d.upper or 0) - (d.lower or 0)) + 1e-15 for d in deltas]
    assert all(after.value <= before.value + s for (before, after), s in zip(pairwise(deltas), slack, strict=False))
    for k in range(1, 5):
        middle = (deltas[k - 1].value + deltas[k + 1].value) / 2
        assert deltas[k].value <= middle + slack[k - 1] + slack[k] + slack[k + 1]


def test_equal_releases_told_apart_are_the_same_and_epsilon_inverts_delta() -> None:
    near = RandomSensitivityGaussian(0.05 * (1 + 1e-13), 2.0, 5)
    one = accountant.curve(Composition(((RandomSensitivityGaussian(0.05, 2.0, 5), 40), (Gaussian(4.0), 2))))
    parts = ((RandomSensitivityGaussian(0.05, 2.0, 5), 20), (near, 20), (Gaussian(4 / math.sqrt(2)), 1))
    assert accountant.curve(Composition(parts)).delta(0.7).value == pytest.approx(one.delta(0.7).value, rel=1e-10)
    assert one.delta(one.epsilon(1e-6).value).value == pytest.approx(1e-6, rel=1e-9)


def test_what_reveals_nothing_costs_nothing_and_epsilon_may_be_zero() -> None:
    zero_loss = (RandomSensitivityGaussian(0.0, 1.0, 3), 7), (RandomSensitivityGaussian(0.3, math.inf, 3), 7)
    beside = accountant.curve(Composition((*zero_loss, (TRAINING, 100)))).epsilon(1e-5).value
    assert beside == accountant.curve(times(TRAINING, 100)).epsilon(1e-5).value
    answer = accountant.curve(times(RandomSensitivityGaussian(1.3636e-6, 34.593, 130), 45)).epsilon(2e-6)
    assert (answer.value, answer.reason) == (0.0, None)


@pytest.mark.parametrize(
    ("composition", "epsilon", "word"),
    [
        (times(RandomSensitivityGaussian(0.1, 1.0, 5, sampler="shuffled"), 3), 1.0, "shuffled"),
        (times(RandomSensitivityGaussian(0.1, 1.0, 5, adjacency="replace_one"), 3), 1.0, "add_or_remove"),
        (Composition(((projected(5), 1), (GroupSampledGaussian(0.1, 1.0, 2), 1))), 1.0, "GroupSampledGaussian"),
        (Composition(((projected(5), 1), (ConfidentGNMax(300, 40, 40, votes=(1, 2)), 1))), 1.0, "data-dependent"),
        (Composition(((RandomSensitivityGaussian(1.0, 2.0, 5), 2), (TRAINING, 9))), 1.0, "lattice"),
        (times(RandomSensitivityGaussian(0.01, 1.0, 1), 100), 1e5, "lattice"),
    ],
)
def test_what_it_refuses_it_refuses_with_a_reason(composition: Composition, epsilon: float, word: str) -> None:
    with pytest.raises(DpbenchError, match=word):
        accountant.curve(composition).delta(epsilon)
