"""Discrete pairs and Laplace mechanisms by the exact accountant: against references, enumeration and closed forms."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction
from typing import Any

import mpmath
import pytest

from dpbench.errors import DpbenchError
from dpbench.events import Composition, DiscretePair, Event, Laplace, from_json
from dpbench.judging.enclosures import TABLES
from dpbench.privacy.accountants.exact.accountant import accountant
from dpbench.privacy.answers import Estimate, No
from dpbench.references.laplace import reference as laplace_reference

RESPONSE = DiscretePair((0.75, 0.25), (0.25, 0.75))
THREE = DiscretePair((0.6, 0.3, 0.1), (0.2, 0.3, 0.5))
UNEVEN = DiscretePair((0.5, 0.37, 0.13), (0.21, 0.3, 0.49))
TELLING = DiscretePair((0.5, 0.49, 0.01), (0.5, 0.5, 0.0))
TERNARY = DiscretePair((0.6, 0.2, 0.2), (0.2, 0.6, 0.2))  # its losses lie on a lattice
STORED: list[dict[str, Any]] = [
    point
    for name in ("discrete_pair", "laplace")
    for point in json.loads((TABLES / f"{name}.json").read_text())["points"]
]


def of(*parts: tuple[Event, int]) -> Any:
    """The exact curve of mechanisms."""
    return accountant.curve(Composition(parts))


def encloses(found: Estimate, truth: mpmath.mpf, error: float) -> None:
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower <= truth <= found.upper
    assert found.upper - found.lower <= error * truth


def enumerated(parts: tuple[tuple[DiscretePair, int], ...], epsilon: float) -> mpmath.mpf:
    """max over both directions of Σ (P(o) − e^ε Q(o))₊ over all outcome tuples, masses as exact fractions."""
    rows = []
    for event, count in parts:
        first, second = [Fraction(x) for x in event.first], [Fraction(x) for x in event.second]
        rows += [list(zip([x / sum(first) for x in first], [x / sum(second) for x in second], strict=True))] * count
    ratio = mpmath.exp(mpmath.mpf(epsilon))
    both = [mpmath.mpf(0), mpmath.mpf(0)]
    for outcome in itertools.product(*rows):
        p, q = (math.prod(column, start=Fraction(1)) for column in zip(*outcome, strict=True))
        masses = [mpmath.mpf(x.numerator) / x.denominator for x in (p, q)]
        for way in (0, 1):
            both[way] += max(masses[way] - ratio * masses[1 - way], mpmath.mpf(0))
    return max(both)


def test_every_stored_point_both_ways() -> None:
    """The reference tables; what is refused is said by its number, so that a new refusal fails."""
    refused = 0
    for point in STORED:
        composition = from_json(point["composition"])
        if not accountant.supports(composition):
            refused += 1
            continue
        curve: Any = accountant.curve(composition)
        for way in ("remove", "add"):
            found = curve.one_way(way).delta(point["epsilon"])
            assert found.lower <= float(point[way]["upper"]) * (1 + 1e-15), composition
            assert found.upper >= float(point[way]["lower"]) * (1 - 1e-15), composition
            assert found.reason is None
    assert len(STORED) >= 100
    assert refused == 9  # 10,000 Laplace mechanisms, and two compositions of several scales, at three ε each


@pytest.mark.parametrize(
    "parts",
    [
        ((THREE, 5),),
        ((UNEVEN, 6),),
        ((TELLING, 5),),
        ((TERNARY, 6),),
        ((RESPONSE, 4), (THREE, 3)),
        ((TERNARY, 3), (DiscretePair((0.2, 0.2, 0.6), (0.6, 0.2, 0.2)), 2)),
        ((UNEVEN, 2), (TELLING, 2), (RESPONSE, 2)),
    ],
    ids=["three", "uneven", "telling", "lattice", "unlike", "one lattice", "three unlike"],
)
def test_every_outcome_enumerated(parts: tuple[tuple[DiscretePair, int], ...]) -> None:
    """Multinomials, convolutions on a lattice and sums of unlike pairs; ε on an atom and between."""
    curve = of(*parts)
    with mpmath.workdps(60):
        for epsilon in (0.0, 0.3, math.log(3), 2.5):
            encloses(curve.delta(epsilon), enumerated(parts, epsilon), 1e-11)


@pytest.mark.parametrize("count", [7, 1000])
@pytest.mark.parametrize("loss", [1e-8, 1.0, 30.0])
def test_randomized_response_by_binomial_sums(loss: float, count: int) -> None:
    """T + 1 sums with binomial masses, from the exact fractions of the doubles; δ down to 1e-50."""
    likely = 1 / (1 + math.exp(-loss))
    event = DiscretePair((likely, 1 - likely), (1 - likely, likely))
    curve = of((event, count))
    with mpmath.workdps(60):
        total = mpmath.mpf(likely) + mpmath.mpf(1 - likely)
        p, q = mpmath.mpf(likely) / total, mpmath.mpf(1 - likely) / total
        for share in (0.0, 0.1, 0.7):
            epsilon = share * count * loss
            sums = [
                ((2 * k - count) * mpmath.log(p / q), mpmath.binomial(count, k) * p**k * q ** (count - k))
                for k in range(count + 1)
            ]
            truth = mpmath.fsum(mass * (1 - mpmath.exp(epsilon - s)) for s, mass in sums if s > epsilon)
            encloses(curve.delta(epsilon), truth, 1e-9)


def test_a_million_releases_by_the_normal_tail() -> None:
    count = 1_000_000
    found = of((RESPONSE, count)).epsilon(1e-5)
    assert found.relative_error is not None
    assert found.relative_error < 1e-12
    mean, deviation = count * 0.5 * math.log(3), math.sqrt(count * 0.75) * math.log(3)
    assert 4.2 < (found.value - mean) / deviation < 4.3


@pytest.mark.parametrize(
    "parts", [((RESPONSE, 50),), ((UNEVEN, 30),), ((TERNARY, 900),), ((Laplace(5.0), 100),), ((Laplace(0.1), 4),)]
)
def test_epsilon_inverts_delta_inside_its_ends(parts: tuple[tuple[Event, int], ...]) -> None:
    curve = of(*parts)
    for delta in (0.3, 1e-3, 1e-8):
        found = curve.epsilon(delta)
        assert found.upper - found.lower <= 1e-9 * found.value
        assert curve.delta(found.upper).lower <= delta <= curve.delta(found.lower).upper
        assert curve.delta(found.value).value == pytest.approx(delta, rel=1e-9)


def test_infinite_losses_are_a_floor() -> None:
    """TELLING has P = 0.01 where Q = 0: no ε at all below 1 − 0.99^30, and a refusal where rounding decides."""
    curve, floor = of((TELLING, 30)), 1 - 0.99**30
    assert curve.epsilon(floor * 0.999).value == math.inf
    assert curve.epsilon(floor * 0.999).reason is not None
    assert curve.epsilon(floor * 1.01).value < math.inf
    assert curve.delta(100.0).value == pytest.approx(floor, rel=1e-13)
    with pytest.raises(DpbenchError, match="infinite loss"):
        of((DiscretePair((0.01, 0.99), (0.0, 1.0)), 1)).epsilon(0.01)


def test_a_pair_that_reveals_everything_or_nothing() -> None:
    everything = of((DiscretePair((1.0, 0.0), (0.0, 1.0)), 3))
    assert everything.delta(5.0).value == 1.0
    assert everything.epsilon(0.5).value == math.inf
    nothing = of((DiscretePair((0.5, 0.5), (0.5, 0.5)), 3), (Laplace(math.inf), 2))
    assert (nothing.delta(0.0).value, nothing.epsilon(1e-9).value) == (0.0, 0.0)


@pytest.mark.parametrize(("noise", "count"), [(0.03, 3), (1.0, 2), (0.5, 30), (5.0, 100), (300.0, 90), (1e7, 5)])
def test_equal_laplace_releases_by_their_closed_form(noise: float, count: int) -> None:
    """Between bends, on them, next to them and next to the largest loss; there the bar is wider, and holds."""
    curve, top = of((Laplace(noise), count)), count / noise
    places = [0.0, 0.013 * top, 0.41 * top, 0.9 * top, (count - 2) / noise, (count - 2) / noise * (1 + 1e-7)]
    for epsilon in [*places, top * (1 - 1e-5)]:
        truth, found = laplace_reference.delta((Laplace(noise), count), epsilon, digits=16), curve.delta(epsilon)
        assert found.lower <= float(truth.upper)
        assert found.upper >= float(truth.lower)
        assert epsilon > 0.95 * top or found.upper - found.lower <= max(1e-10 * found.value, 1e-13)


def test_many_laplace_releases_are_within_a_second_and_nearly_gaussian() -> None:
    """b = 100, T = 1000: μ = √T/b; the central limit theorem's error is of the order 1/b, here a percent."""
    found, mu = of((Laplace(100.0), 1000)).delta(0.3), math.sqrt(1000) / 100
    gaussian = float(mpmath.ncdf(mu / 2 - 0.3 / mu) - mpmath.exp(0.3) * mpmath.ncdf(-mu / 2 - 0.3 / mu))
    assert found.value == pytest.approx(gaussian, rel=0.03)
    assert found.relative_error < 1e-9


@pytest.mark.parametrize(
    ("composition", "word"),
    [
        (Composition(((Laplace(1.0), 10**5),)), "lattice"),
        (Composition(((Laplace(0.001), 3),)), "lattice"),
        (Composition(((UNEVEN, 10**5),)), "attainable sums"),
        (Composition(((RESPONSE, 3),), adaptive=True), "earlier outputs"),
        (Composition(((RESPONSE, 3), (DiscretePair((0.5, 0.5), (0.4, 0.6), adjacency="zero_out"), 1))), "neighbouring"),
    ],
)
def test_it_says_why_not(composition: Composition, word: str) -> None:
    answer = accountant.supports(composition)
    assert isinstance(answer, No)
    assert word in answer.reason
    with pytest.raises(DpbenchError, match="refuses"):
        accountant.curve(composition)
