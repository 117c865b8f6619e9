"""Internal: the balls of two routes enclose the same number.

The references of the other events: against second routes, closed forms and brute force.

Where a number is enclosed, the check is that the enclosure contains it. Where two numbers of n digits are compared, the
tolerance is 10^(2−n), as in `test_references.py`.
"""

from __future__ import annotations

import itertools
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import flint
import mpmath
import pytest

from dpbench.events import (
    Composition,
    ConfidentGNMax,
    DiscretePair,
    Event,
    Gaussian,
    GroupSampledGaussian,
    Laplace,
    RandomSensitivityGaussian,
    SampledGaussian,
)
from dpbench.references import (
    confident_gnmax,
    discrete_pair,
    fixed_size_gaussian,
    group_sampled_gaussian,
    laplace,
    random_sensitivity_gaussian,
    sampled_gaussian_replace_one,
)
from dpbench.references._enclosure import ball, bits
from dpbench.references._reference import Reference, Which
from dpbench.references._release import DIRECTIONS, Law
from dpbench.references.fixed_size_gaussian import reference as fixed_size
from dpbench.references.gaussian import reference as gaussian
from dpbench.references.group_sampled_gaussian import reference as group
from dpbench.references.random_sensitivity_gaussian import reference as random_sensitivity
from dpbench.references.sampled_gaussian import reference as sampled
from dpbench.references.sampled_gaussian_replace_one import reference as replace_one
from dpbench.references.unlike import reference as unlike
from tests.references import votes

WAYS: tuple[Which, ...] = ("remove", "add")


def relative(a: Any, b: Any) -> float:
    return float(abs(Fraction(a) - Fraction(b)) / abs(Fraction(b)))


def replaced(rate: float, noise: float) -> SampledGaussian:
    return SampledGaussian(rate, noise, adjacency="replace_one")


# One invocation: Arb balls and mpmath's quadrature of the densities.

SINGLE: list[tuple[Any, Event]] = [
    *(
        (group, GroupSampledGaussian(*given))
        for given in ((1e-6, 1.0, 3), (0.01, 0.5, 4), (0.5, 3.0, 6), (1.0, 2.0, 2))
    ),
    *((replace_one, replaced(*given)) for given in ((1e-6, 1.0), (0.01, 0.4), (0.5, 3.0), (1.0, 2.0))),
    *(
        (random_sensitivity, RandomSensitivityGaussian(*given))
        for given in ((0.01, 1.0, 1), (1e-6, 0.4, 3), (0.3, 4.0, 30), (1.0, 2.0, 2), (0.01, 1.0, 1000))
    ),
    *((laplace.reference, Laplace(scale)) for scale in (0.2, 1.0, 30.0)),
    (discrete_pair.reference, DiscretePair((0.6, 0.3, 0.1), (0.3, 0.3, 0.4))),
]


@pytest.mark.parametrize(("reference", "event"), SINGLE, ids=lambda given: getattr(given, "event", str(given)))
@pytest.mark.parametrize("epsilon", [0.0, pytest.param(0.01, marks=pytest.mark.long), -0.4, 1.5])
def test_quadrature_and_balls_agree(reference: Reference, event: Event, epsilon: float) -> None:
    for way in WAYS:
        enclosure = reference.delta(event, epsilon, 22, direction=way)
        integral = reference.quadrature(event, epsilon, 17, direction=way)
        if enclosure.upper == 0:
            assert integral == 0
        else:
            assert relative(integral, enclosure.lower) < 1e-15
            assert enclosure.relative_width < 1e-21


# What one event is in the limit of another.


@pytest.mark.parametrize("count", [1, 5])
def test_a_group_of_one_is_one(count: int) -> None:
    for way, epsilon in itertools.product(WAYS, (0.0, 0.2)):
        one = group.delta((GroupSampledGaussian(0.1, 1.0, 1), count), epsilon, 20, direction=way, cells=1024)
        assert one.overlaps(sampled.delta((SampledGaussian(0.1, 1.0), count), epsilon, 20, direction=way, cells=1024))


def test_an_always_sampled_group_is_a_gaussian() -> None:
    exact = gaussian.delta((Gaussian(2.0), 4), 1.0)
    found = group.delta((GroupSampledGaussian(1.0, 6.0, 3), 4), 1.0, cells=2048)
    assert exact.within(found)
    assert found.relative_width < 0.01


def test_an_always_replaced_record_is_a_gaussian_of_sensitivity_two() -> None:
    exact = gaussian.delta((Gaussian(2.0), 4), 1.0)
    for reference, event in (
        (replace_one, replaced(1.0, 4.0)),
        (fixed_size, SampledGaussian(1.0, 4.0, adjacency="replace_one", sampler="without_replacement")),
    ):
        found = reference.delta((event, 4), 1.0, cells=2048)
        assert exact.within(found)
        assert found.relative_width < 0.01


def test_many_projections_come_near_the_sampled_gaussian() -> None:
    gaps = []
    for r in (10, 1000, 100_000):
        found = random_sensitivity.delta(RandomSensitivityGaussian(0.01, 1.0, r), 0.5, 10, direction="remove")
        gaps.append(float(found.lower) / float(sampled.delta(SampledGaussian(0.01, 1.0), 0.5, 10).lower) - 1)
    assert all(gap > 0 for gap in gaps)
    # the first correction is of order 1/r
    assert gaps[1] / gaps[2] == pytest.approx(100, rel=0.1)


def test_more_projections_are_more_private_beyond_the_bulk() -> None:
    found = [random_sensitivity.delta(RandomSensitivityGaussian(0.01, 1.0, r), 3.0, 10) for r in (1, 2, 5, 20, 100)]
    assert all(later.upper < earlier.lower for earlier, later in itertools.pairwise(found))


# Random sensitivity: the definition's double integral, by plain sums.


def double_sum(rate: float, noise: float, r: int, way: str, epsilon: float) -> float:
    """∫∫ f(z) (p − e^ε q)₊ dx dz by midpoint sums over the chi density and x."""
    total, steps, width = 0.0, 600, 8.0 / 600
    constant = math.exp((1 - r / 2) * math.log(2) - math.lgamma(r / 2))
    for i in range(steps):
        s = (i + 0.5) * width
        z = math.sqrt(r) / s
        weight = constant * s ** (r - 1) * math.exp(-s * s / 2) * width
        inner, h = 0.0, noise / 40
        for low in {0.0, z} if z > 12 * noise else {z / 2}:
            reach = 7 * noise + (0 if z > 12 * noise else z / 2)
            for k in range(int(2 * reach / h)):
                x = low - reach + (k + 0.5) * h
                plain, moved = (math.exp(-((x - c) ** 2) / (2 * noise**2)) for c in (0.0, z))
                mixed = (1 - rate) * plain + rate * moved
                first, second = (mixed, plain) if way == "remove" else (plain, mixed)
                inner += max(0.0, first - math.exp(epsilon) * second)
        total += weight * inner * h / (noise * math.sqrt(2 * math.pi))
    return total


@pytest.mark.parametrize(("rate", "r", "way", "epsilon"), [(0.2, 3, "remove", 0.5), (0.2, 1, "add", 0.1)])
def test_random_sensitivity_by_a_double_sum(rate: float, r: int, way: Which, epsilon: float) -> None:
    found = random_sensitivity.delta(RandomSensitivityGaussian(rate, 1.5, r), epsilon, 12, direction=way)
    # midpoint sums over 8/600 and σ/40 with kinks and, for r = 1, an end: a few 1e-4 of the whole
    assert double_sum(rate, 1.5, r, way, epsilon) == pytest.approx(float(found.lower), rel=1e-3)


# Lattices: slopes are what the lower end rests on.

LAWS: list[Law] = [
    group_sampled_gaussian.Group(Fraction(1, 50), Fraction(2), 3),
    group_sampled_gaussian.Group(Fraction(1), Fraction(2), 2),
    sampled_gaussian_replace_one.Replaced(Fraction(1, 10), Fraction(2)),
    sampled_gaussian_replace_one.Replaced(Fraction(1), Fraction(2)),
    random_sensitivity_gaussian.RandomSensitivity(Fraction(1, 20), Fraction(2), 2),
    random_sensitivity_gaussian.RandomSensitivity(Fraction(1), Fraction(9), 4),
    laplace.LaplaceLaw(Fraction(3, 2)),
    fixed_size_gaussian.FixedSizeBound(Fraction(1, 10), Fraction(16)),
    discrete_pair.Discrete(discrete_pair.merged((Fraction(2, 3), Fraction(1, 3)), (Fraction(1, 4), Fraction(3, 4)))),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{type(law).__name__}-{float(getattr(law, 'rate', 0)):g}")
@pytest.mark.parametrize("way", WAYS)
def test_tangents_lie_below_the_curve_and_touch_it(law: Law, way: Any) -> None:
    with bits(160):
        pair = law.pair(way)
        curve, start = pair.hockey_stick(), pair.anchor()
        places = [y / 8 for y in range(-16, 17) if y]
        known = {y: found for y in places if (found := curve(flint.arb(y)))}
        assert len(known) == len(places)
        ratio = {y: (start + flint.arb(y)).exp() for y in places}
        for here, there in itertools.permutations(places, 2):
            height, slope = known[here]
            assert not height + slope * (ratio[there] - ratio[here]) > known[there][0]
            assert not known[there][0] < 1 - ratio[there]
        if not isinstance(law, discrete_pair.Discrete):  # smooth but for kinks, which no y here is near
            tiny = flint.arb(2) ** -60
            for y in places[::5]:
                (height, slope), further = known[y], curve(flint.arb(y) + tiny)
                assert further is not None
                measured = (further[0] - height) / (ratio[y] * tiny.expm1())
                assert abs(float((measured - slope).mid())) < 1e-12


@pytest.mark.parametrize("reference", [group, replace_one, random_sensitivity], ids=lambda given: given.event)
def test_two_releases_by_an_integral(reference: Reference) -> None:
    """δ of two is E_Q [X H(e^ε/X)], with X's law read off the slopes of one invocation's curve."""
    events: dict[str, Event] = {
        "GroupSampledGaussian": GroupSampledGaussian(0.2, 1.5, 3),
        "SampledGaussian": replaced(0.3, 1.5),
        "RandomSensitivityGaussian": RandomSensitivityGaussian(0.2, 1.5, 3),
    }
    event = events[reference.event]
    law = reference.releases(event)[0][0]
    for way in DIRECTIONS if reference is not random_sensitivity else DIRECTIONS[:1]:  # the slow one once
        pair = law.pair(way)
        epsilon, size = 0.15, 1 / 100
        with bits(160):
            curve, start = pair.hockey_stick(), pair.anchor()
            low, high = pair.span(1e-14)
            cells = range(math.floor(max(low, -12.0) / size), math.ceil(min(high, 20.0) / size))
            edges = [curve(ball(Fraction(k)) * size) or curve(flint.arb(0)) for k in (*cells, cells[-1] + 1)]
            total = 0.0
            for k, (left, right) in zip(cells, itertools.pairwise(edges), strict=True):
                assert left is not None
                assert right is not None
                mass = float((right[1] - left[1]).mid())  # Q-mass of the cell
                if mass > 0:
                    y = flint.arb(k + 0.5) * size
                    ratio = float((start + y).exp().mid())
                    at = ball(Fraction(epsilon)) - 2 * start - y
                    found = curve(at)
                    assert found is not None
                    total += mass * ratio * float(found[0].mid())
            total += float(edges[-1][0].mid()) if edges[-1] else 0.0  # beyond the last cell nearly all P-mass counts
        found_pair = reference.delta((event, 2), epsilon, direction=way, cells=1024)
        # midpoints of cells 1/100 wide: relative errors of the second order, some 1e-4
        assert total >= float(found_pair.lower) * (1 - 2e-3)
        assert total <= float(found_pair.upper) * (1 + 2e-3)
        assert found_pair.relative_width < 0.02


# Laplace.


def test_two_laplace_releases_by_a_double_integral() -> None:
    scale, epsilon = 1.5, 0.4

    def loss(x: float) -> float:
        return (abs(x - 1) - abs(x)) / scale

    def one(level: float) -> float:
        if level >= 1 / scale:
            return 0.0
        return -math.expm1(level) if level <= -1 / scale else -math.expm1((level - 1 / scale) / 2)

    inside = mpmath.quad(
        lambda x: mpmath.exp(-x / scale) / (2 * scale) * one(epsilon - loss(x)), [0, 0.2, 0.5, 0.8, 1], maxdegree=10
    )
    outside = one(epsilon - 1 / scale) / 2 + math.exp(-1 / scale) / 2 * one(epsilon + 1 / scale)
    found = laplace.reference.delta((Laplace(scale), 2), epsilon, 15)
    assert float(inside) + outside == pytest.approx(float(found.lower), rel=1e-7)


@pytest.mark.parametrize(
    ("scale", "count", "part"),
    [
        pytest.param(scale, count, part, marks=[pytest.mark.long] if count == 300 and part != 0.1 else [])
        for scale, count in ((2.0, 2), (0.5, 3), (10.0, 40), (1000.0, 300))
        for part in (0.0, -0.05, 0.1, 0.5)
    ],
)
def test_the_closed_form_of_laplace_lies_in_the_lattice(scale: float, count: int, part: float) -> None:
    epsilon = part * count / scale
    exact = laplace.reference.delta((Laplace(scale), count), epsilon, 20)
    found = Reference("Laplace", laplace.reference.releases).delta((Laplace(scale), count), epsilon, cells=1024)
    assert exact.relative_width < 1e-19
    assert exact.within(found)
    assert found.relative_width < 0.03 or exact.upper < 1e-9


def test_the_closed_form_of_laplace_at_the_end_of_the_loss() -> None:
    """Just below ε = T/b only the case that all T invocations lie at the upper atom is left, up to higher powers."""
    gap = Fraction(1, 2**60)
    found = laplace.reference.delta((Laplace(2.0), 5), Fraction(5, 2) - gap, 12)
    assert relative(found.lower, gap / 32) < 1e-10
    assert laplace.reference.delta((Laplace(2.0), 5), 2.5).upper == 0


@pytest.mark.parametrize("order", [1.5, 2.0, 20.0])
def test_renyi_of_laplace(order: float) -> None:
    scale = 1.7
    with mpmath.workdps(30):
        a, b = mpmath.mpf(order), mpmath.mpf(scale)
        exact = mpmath.log(a / (2 * a - 1) * mpmath.exp((a - 1) / b) + (a - 1) / (2 * a - 1) * mpmath.exp(-a / b)) / (
            a - 1
        )
        assert abs(mpmath.mpf(str(laplace.reference.renyi(Laplace(scale), order, 18))) / exact - 1) < 1e-16


# Discrete pairs.

UNEVEN = DiscretePair((0.5, 0.3, 0.2, 0.0), (0.2, 0.3, 0.25, 0.25))


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [-0.7, 0.0, 0.3, 2.0])
def test_discrete_pairs_by_brute_force(count: int, epsilon: float) -> None:
    first, second = ([Fraction(value) for value in values] for values in (UNEVEN.first, UNEVEN.second))
    first, second = ([value / sum(values) for value in values] for values in (first, second))
    with mpmath.workdps(40):
        bound = mpmath.exp(epsilon)
        for way in WAYS:
            top, bottom = (first, second) if way == "remove" else (second, first)
            total = mpmath.mpf(0)
            for outcome in itertools.product(range(4), repeat=count):
                p, q = (math.prod((values[x] for x in outcome), start=Fraction(1)) for values in (top, bottom))
                total += max(
                    mpmath.mpf(0), mpmath.mpf(p.numerator) / p.denominator - bound * q.numerator / q.denominator
                )
            found = discrete_pair.reference.delta((UNEVEN, count), epsilon, 20, direction=way)
            exact = Fraction(*mpmath.libmp.to_rational(total._mpf_))
            assert exact == found.upper == 0 or relative(exact, found.lower) < 1e-18
            lattice = Reference("DiscretePair", discrete_pair.reference.releases)
            assert found.overlaps(lattice.delta((UNEVEN, count), epsilon, direction=way, cells=512))


def test_unlike_discrete_pairs_are_one_larger_pair() -> None:
    coin = DiscretePair((0.75, 0.25), (0.25, 0.75))
    first = tuple(a * b for a in coin.first for b in UNEVEN.first)
    second = tuple(a * b for a in coin.second for b in UNEVEN.second)
    both = discrete_pair.reference.delta(Composition(((coin, 1), (UNEVEN, 1))), 0.4, 12)
    one = discrete_pair.reference.delta(DiscretePair(first, second), 0.4, 12)
    assert relative(both.lower, one.lower) < 1e-10  # the products of doubles round


def test_too_many_multisets_go_on_a_lattice() -> None:
    found = discrete_pair.reference.delta((UNEVEN, 700), 1.0, direction="remove", cells=256)
    assert "lattice" in found.method


# Fixed-size batches.


def test_fixed_size_lies_between_and_is_sharp_for_one_release() -> None:
    event = SampledGaussian(0.1, 2.0, adjacency="replace_one", sampler="without_replacement")
    one = fixed_size.delta(event, 0.05, 20)
    assert one.relative_width < 1e-19
    many = fixed_size.delta((event, 10), 0.3, cells=1024)
    assert 0 < many.lower < many.upper
    epsilon = fixed_size.epsilon((event, 10), 1e-3, 4, cells=1024)
    assert 0 < epsilon.lower < epsilon.upper
    assert fixed_size.quadrature(event, 0.05, 15) == pytest.approx(one.lower, rel=Decimal("1e-13"))


def test_fixed_size_covers_any_other_data() -> None:
    """All other records c in [−1, 1]: (1−q) N(0) + q N(1−c) against (1−q) N(0) + q N(−1−c), by sums over a grid."""
    rate, noise = 0.3, 1.5
    event = SampledGaussian(rate, noise, adjacency="replace_one", sampler="without_replacement")
    for epsilon in (-0.2, 0.0, 0.1, 0.6):
        upper = float(fixed_size.delta(event, epsilon, 15).upper)
        for c in (-1.0, -0.6, 0.0, 0.3, 1.0):
            total, h = 0.0, 0.01
            for k in range(-1400, 1400):
                x = k * h

                def density(centre: float, x: float = x) -> float:
                    return math.exp(-((x - centre) ** 2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))

                p, q = ((1 - rate) * density(0.0) + rate * density(sign - c) for sign in (1, -1))
                total += max(0.0, p - math.exp(epsilon) * q) * h
            assert total <= upper + 1e-5  # h² of the kink


# Confident-GNMax.

QUERY = ConfidentGNMax(threshold=20.0, selection_noise=10.0, answer_noise=4.0, votes=(18, 15, 2))


def test_outcomes_are_the_probabilities_of_a_simulation() -> None:
    import random

    draw, seen, runs = random.Random(5), [0, 0, 0, 0], 40_000
    assert QUERY.votes is not None
    for _ in range(runs):
        if max(QUERY.votes) + draw.gauss(0, 10.0) < 20.0:
            seen[0] += 1
        else:
            noisy = [count + draw.gauss(0, 4.0) for count in QUERY.votes]
            seen[1 + noisy.index(max(noisy))] += 1
    for count, p in zip(seen, map(float, votes.outcomes(QUERY, 12)), strict=True):
        # a fixed seed: six standard deviations, exceeded in one of 5e8 seeds
        assert abs(count / runs - p) < 6 * math.sqrt(p * (1 - p) / runs)


def test_two_classes_have_a_closed_form() -> None:
    event = ConfidentGNMax(threshold=10.0, selection_noise=5.0, answer_noise=2.0, votes=(9, 1))
    with mpmath.workdps(30):
        unanswered, wins = mpmath.ncdf(mpmath.mpf(1) / 5), mpmath.ncdf(mpmath.mpf(8) / (2 * mpmath.sqrt(2)))
        exact = (unanswered, (1 - unanswered) * wins, (1 - unanswered) * (1 - wins))
        for found, known in zip(votes.outcomes(event, 20), exact, strict=True):
            assert abs(mpmath.mpf(str(found)) / known - 1) < 1e-18


def test_data_independent_bounds_hold_for_these_votes() -> None:
    worst = votes.divergence(QUERY, 8, 6, direction="both")
    assert worst <= confident_gnmax.reference.renyi(QUERY, 8, 12)
    assert votes.hockey_stick(QUERY, 0.1, 6) <= confident_gnmax.reference.delta(QUERY, 0.1).upper


def test_neighbouring_votes() -> None:
    assert len(votes.neighbours(QUERY)) == 6
    lonely = ConfidentGNMax(threshold=1.0, selection_noise=1.0, answer_noise=1.0, votes=(3, 0))
    assert [other.votes for other in votes.neighbours(lonely)] == [(2, 1)]


# Unlike mechanisms.


def test_unlike_laws_of_the_same_kind_agree_with_their_own_reference() -> None:
    parts = Composition(((SampledGaussian(0.1, 1.5), 6), (Gaussian(6.0), 2)))
    assert unlike.delta(parts, 0.4, cells=1024) == sampled.delta(parts, 0.4, cells=1024)


def test_a_gaussian_and_a_laplace_release_by_an_integral() -> None:
    """E over the Laplace's loss of the Gaussian's δ at ε less that loss."""
    noise, scale, epsilon = 2.0, 1.5, 0.3

    def one(level: Any) -> Any:
        t = noise * level + 1 / (2 * noise)
        return mpmath.ncdf(1 / noise - t) - mpmath.exp(level) * mpmath.ncdf(-t)

    with mpmath.workdps(20):
        inside = mpmath.quad(
            lambda x: mpmath.exp(-x / scale) / (2 * scale) * one(epsilon - (1 - 2 * x) / scale), [0, 1]
        )
        atoms = one(epsilon - 1 / scale) / 2 + mpmath.exp(-1 / scale) / 2 * one(epsilon + 1 / scale)
        exact = Fraction(*mpmath.libmp.to_rational((inside + atoms)._mpf_))
    found = unlike.delta(Composition(((Gaussian(noise), 1), (Laplace(scale), 1))), epsilon, cells=2048)
    assert found.contains(exact)
    assert found.relative_width < 1e-3


def test_the_cap_only_widens() -> None:
    event = (RandomSensitivityGaussian(0.1, 2.0, 2), 3)
    narrow = random_sensitivity.curve(event, smallest=1e-6, largest_epsilon=10, direction="remove", cells=4096)
    short = random_sensitivity.curve(event, smallest=1e-6, largest_epsilon=1, direction="remove", cells=1024)
    for epsilon in (0.1, 1.0, 10.0, 30.0, 60.0):
        assert narrow.delta(epsilon, direction="remove").overlaps(short.delta(epsilon, direction="remove"))
    assert short.delta(60.0, direction="remove").upper > narrow.delta(30.0, direction="remove").lower / 10


# What is not covered is refused.


@pytest.mark.parametrize(
    ("reference", "subject", "word"),
    [
        (group, SampledGaussian(0.1, 1.0), "expected a GroupSampledGaussian"),
        (group, GroupSampledGaussian(0.1, 1.0, 2, adjacency="replace_one"), "expected add_or_remove, poisson"),
        (replace_one, SampledGaussian(0.1, 1.0), "expected replace_one, poisson"),
        (fixed_size, replaced(0.1, 1.0), "expected replace_one, without_replacement"),
        (random_sensitivity, Gaussian(1.0), "expected a RandomSensitivityGaussian"),
        (
            random_sensitivity,
            RandomSensitivityGaussian(0.1, 1.0, 2, sampler="shuffled"),
            "expected add_or_remove, poisson",
        ),
        (laplace.reference, Gaussian(1.0), "expected a Laplace"),
        (discrete_pair.reference, Laplace(1.0), "expected a DiscretePair"),
        (confident_gnmax.reference, Laplace(1.0), "expected a ConfidentGNMax"),
        (unlike, QUERY, "expected a SampledGaussian or one of"),
        (unlike, SampledGaussian(0.1, 1.0, sampler="shuffled"), "expected add_or_remove, poisson"),
        (
            unlike,
            Composition(((Laplace(1.0), 1), (Laplace(1.0, adjacency="zero_out"), 1))),
            "expected the same for all events",
        ),
        (laplace.reference, Composition(((Laplace(1.0), 2),), adaptive=True), "adaptive = True"),
    ],
)
def test_what_is_not_covered_is_refused(reference: Any, subject: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        reference.delta(subject, 1.0)


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="votes = None"):
        votes.outcomes(ConfidentGNMax(1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="answer_noise = inf"):
        votes.outcomes(ConfidentGNMax(1.0, 1.0, math.inf, votes=(1, 2)))
    with pytest.raises(ValueError, match="order = 1"):
        votes.divergence(QUERY, 1)
    with pytest.raises(ValueError, match="no Rényi divergence"):
        fixed_size.above.renyi(SampledGaussian(0.1, 1.0, adjacency="replace_one", sampler="without_replacement"), 2)


def test_two_equal_distributions() -> None:
    for reference, event in (
        (group, GroupSampledGaussian(0.0, 1.0, 2)),
        (replace_one, replaced(0.5, math.inf)),
        (random_sensitivity, RandomSensitivityGaussian(0.5, math.inf, 2)),
        (laplace.reference, Laplace(math.inf)),
        (discrete_pair.reference, DiscretePair((0.5, 0.5), (0.5, 0.5))),
    ):
        assert reference.delta((event, 3), 0.0).upper == 0


def test_infinite_divergences_are_infinite() -> None:
    assert random_sensitivity.renyi(RandomSensitivityGaussian(0.1, 1.0, 5), 2, direction="remove").is_infinite()
    assert discrete_pair.reference.renyi(UNEVEN, 2, direction="add").is_infinite()
    assert not discrete_pair.reference.renyi(UNEVEN, 2, direction="remove").is_infinite()
