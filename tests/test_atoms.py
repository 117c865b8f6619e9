"""Exact sums of atomic losses: against binomial sums, enumeration by fractions, closed forms and integration."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpbench.accountants import _atoms
from dpbench.accountants._atoms import atomic_curve, atomic_support
from dpbench.accountants._atoms_laplace import LaplaceSum
from dpbench.accounting import Estimate, No
from dpbench.errors import DpbenchError
from dpbench.events import Composition, DiscretePair, Event, Gaussian, Laplace, SampledGaussian

RESPONSE = DiscretePair((0.75, 0.25), (0.25, 0.75))
THREE = DiscretePair((0.6, 0.3, 0.1), (0.2, 0.3, 0.5))
UNEVEN = DiscretePair((0.5, 0.37, 0.13), (0.21, 0.3, 0.49))
TELLING = DiscretePair((0.5, 0.49, 0.01), (0.5, 0.5, 0.0))


def of(*parts: tuple[Event, int]) -> Composition:
    return Composition(parts)


def encloses(found: Estimate, truth: mpmath.mpf, error: float) -> None:
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower <= truth <= found.upper
    assert found.upper - found.lower <= error * truth


def true_response(count: int, epsilon: float) -> mpmath.mpf:
    """Randomized response with P = 3/4, 1/4: T + 1 sums (2k − T) log 3 with binomial masses."""
    with mpmath.workdps(60):
        step, e = mpmath.log(3), mpmath.mpf(epsilon)
        terms = []
        for k in range(count + 1):
            loss = (2 * k - count) * step
            if loss > e:
                mass = mpmath.binomial(count, k) * mpmath.mpf(3) ** k / mpmath.mpf(4) ** count
                terms.append(mass * (1 - mpmath.exp(e - loss)))
        return mpmath.fsum(terms)


def enumerated(composition: Composition, epsilon: float) -> mpmath.mpf:
    """max over both directions of Σ (P(o) − e^ε Q(o))₊ over all outcome tuples, masses as exact fractions."""
    rows = []
    for event, count in composition.parts:
        assert isinstance(event, DiscretePair)
        first, second = [Fraction(x) for x in event.first], [Fraction(x) for x in event.second]
        pair = list(zip([x / sum(first) for x in first], [x / sum(second) for x in second], strict=True))
        rows += [pair] * count
    with mpmath.workdps(60):
        ratio = mpmath.exp(mpmath.mpf(epsilon))
        both = [mpmath.mpf(0), mpmath.mpf(0)]
        for outcome in itertools.product(*rows):
            p, q = (math.prod(column, start=Fraction(1)) for column in zip(*outcome, strict=True))
            masses = [mpmath.mpf(x.numerator) / x.denominator for x in (p, q)]
            for direction in (0, 1):
                both[direction] += max(masses[direction] - ratio * masses[1 - direction], mpmath.mpf(0))
        return max(both)


class TestDiscrete:
    @pytest.mark.parametrize("count", [1, 2, 7, 100, 1000])
    def test_randomized_response_by_binomial_sums(self, count: int) -> None:
        """Digits down to the smallest masses: at 0.9 T log 3 and T = 1000 δ is about 1e-50."""
        curve = atomic_curve(of((RESPONSE, count)))
        for share in (0.0, 0.1, 0.5, 0.7, 0.9):
            epsilon = share * count * math.log(3)
            encloses(curve.delta(epsilon), true_response(count, epsilon), 1e-10)

    @pytest.mark.parametrize(
        "composition",
        [
            of((THREE, 5)),
            of((UNEVEN, 6)),
            of((TELLING, 5)),
            of((RESPONSE, 4), (THREE, 3)),
            of((UNEVEN, 2), (TELLING, 2), (RESPONSE, 2)),
        ],
        ids=["three", "uneven", "telling", "unlike", "three unlike"],
    )
    def test_every_outcome_enumerated(self, composition: Composition) -> None:
        curve = atomic_curve(composition)
        for epsilon in (0.0, 0.3, 1.0, 2.5):
            encloses(curve.delta(epsilon), enumerated(composition, epsilon), 1e-11)

    def test_epsilon_inverts_delta_inside_its_ends(self) -> None:
        for composition in (of((RESPONSE, 50)), of((UNEVEN, 30)), of((THREE, 200))):
            curve = atomic_curve(composition)
            for delta in (0.3, 1e-3, 1e-8):
                found = curve.epsilon(delta)
                assert found.lower is not None
                assert found.upper is not None
                assert found.upper - found.lower <= 1e-10 * found.value
                assert curve.delta(found.upper).lower <= delta * (1 + 1e-12)  # type: ignore[operator]
                assert curve.delta(found.lower).upper >= delta * (1 - 1e-12)  # type: ignore[operator]

    def test_infinite_losses_are_a_floor(self) -> None:
        """TELLING has P = 0.01 where Q = 0: no ε at all below 1 − 0.99^30."""
        curve = atomic_curve(of((TELLING, 30)))
        floor = 1 - 0.99**30
        assert curve.epsilon(floor * 0.999).value == math.inf
        assert curve.epsilon(floor * 0.999).reason is not None
        assert curve.epsilon(floor * 1.01).value < math.inf
        assert curve.delta(100.0).value == pytest.approx(floor, rel=1e-13)

    def test_a_pair_that_reveals_everything_or_nothing(self) -> None:
        everything = atomic_curve(of((DiscretePair((1.0, 0.0), (0.0, 1.0)), 3)))
        assert everything.delta(5.0).value == 1.0
        assert everything.epsilon(0.5).value == math.inf
        nothing = atomic_curve(of((DiscretePair((0.5, 0.5), (0.5, 0.5)), 3), (Laplace(math.inf), 2)))
        assert (nothing.delta(0.0).value, nothing.epsilon(1e-9).value) == (0.0, 0.0)

    def test_squares_and_multisets_agree(self) -> None:
        """THREE lies on no lattice that doubles show, UNEVEN neither; a doubled pair takes both routes."""
        whole = atomic_curve(of((UNEVEN, 40)))
        split = atomic_curve(of((UNEVEN, 39), (DiscretePair((0.37, 0.5, 0.13), (0.3, 0.21, 0.49)), 1)))
        for epsilon in (0.0, 1.0, 6.0):
            assert split.delta(epsilon).value == pytest.approx(whole.delta(epsilon).value, rel=1e-12)

    def test_a_hundred_thousand_releases(self) -> None:
        """By the normal tail: (ε − mean)/deviation of randomized response at δ = 1e-5 is near 4.3 − small."""
        count = 100_000
        found = atomic_curve(of((RESPONSE, count))).epsilon(1e-5)
        assert found.relative_error is not None
        assert found.relative_error < 1e-12
        mean, deviation = count * 0.5 * math.log(3), math.sqrt(count * 0.75) * math.log(3)
        assert 4.2 < (found.value - mean) / deviation < 4.3

    def test_a_dropped_infinite_mass_would_be_seen(self) -> None:
        """A planted fault: forget the outcomes that Q never gives, and enumeration disagrees."""
        side = atomic_curve(of((TELLING, 3))).sides[0]
        assert isinstance(side, _atoms.Sums)
        assert side.delta(1.0) - side.infinite < float(enumerated(of((TELLING, 3)), 1.0)) * (1 - 1e-3)


def true_laplace(width: mpmath.mpf, count: int, epsilon: mpmath.mpf) -> mpmath.mpf:
    """One release in closed form, two by integrating over the first one's loss: atoms and density under P."""
    if count == 1:
        if epsilon >= width:
            return mpmath.mpf(0)
        return 1 - mpmath.exp(epsilon) if epsilon < -width else 1 - mpmath.exp((epsilon - width) / 2)
    atoms = true_laplace(width, 1, epsilon - width) / 2
    atoms += true_laplace(width, 1, epsilon + width) * mpmath.exp(-width) / 2
    breaks = [-width, *(x for x in sorted({epsilon - width, epsilon + width}) if -width < x < width), width]
    return atoms + mpmath.quad(
        lambda loss: mpmath.exp((loss - width) / 2) / 4 * true_laplace(width, 1, epsilon - loss), breaks
    )


class TestLaplace:
    @pytest.mark.parametrize("noise", [0.125, 1.0, 4.0, 128.0])
    @pytest.mark.parametrize("count", [1, 2])
    def test_one_and_two_releases(self, noise: float, count: int) -> None:
        curve = atomic_curve(of((Laplace(noise), count)))
        with mpmath.workdps(40):
            width = 1 / mpmath.mpf(noise)
            for share in (0.0, 0.1, 0.7, 0.9):
                epsilon = share * count / noise
                encloses(curve.delta(epsilon), true_laplace(width, count, mpmath.mpf(epsilon)), 1e-10)

    def test_three_releases_by_a_fine_lattice(self) -> None:
        """Interior losses moved up and down to a lattice of 2/4000: the truth lies between, 1e-3 apart."""
        width, cells, epsilon = 1.0, 4000, 0.8
        step = 2 * width / cells
        edges = -width + step * np.arange(cells + 1)
        inner = np.diff(np.exp((edges - width) / 2)) / 2
        ends = []
        for shift in (0, 1):
            masses = np.zeros(cells + 1)
            masses[shift : shift + cells] += inner
            masses[0] += math.exp(-width) / 2
            masses[-1] += 0.5
            total = np.convolve(np.convolve(masses, masses), masses)
            losses = -3 * width + step * np.arange(len(total))
            ends.append(float(np.dot(total, np.maximum(-np.expm1(np.minimum(epsilon - losses, 0)), 0))))
        assert ends[0] < LaplaceSum(1.0, 3).delta(epsilon) < ends[1]
        assert ends[1] / ends[0] < 1.003

    def test_many_small_releases_are_nearly_gaussian(self) -> None:
        """b = 100, T = 1000: μ = √T/b; the central limit theorem's error is of the order 1/b, here a percent."""
        found = LaplaceSum(100.0, 1000).delta(0.3)
        mu = math.sqrt(1000) / 100
        gaussian = float(mpmath.ncdf(mu / 2 - 0.3 / mu) - mpmath.exp(0.3) * mpmath.ncdf(-mu / 2 - 0.3 / mu))
        assert found == pytest.approx(gaussian, rel=0.03)

    def test_digits_far_into_the_tail(self) -> None:
        """All three losses but the top atoms are below ε: δ = (1 − e^(ε − T/b)) / 2^T next to the end."""
        count, epsilon = 60, 60.0 - 1e-9
        found = atomic_curve(of((Laplace(1.0), count))).delta(epsilon)
        assert found.value == pytest.approx(-math.expm1(epsilon - count) * 2.0**-count, rel=1e-6)

    def test_epsilon_inverts_delta(self) -> None:
        curve = atomic_curve(of((Laplace(5.0), 100)))
        for delta in (0.1, 1e-5, 1e-20):
            found = curve.epsilon(delta)
            assert curve.delta(found.value).value == pytest.approx(delta, rel=1e-10)
            assert found.relative_error is not None
            assert found.relative_error < 1e-10


class TestSupport:
    @pytest.mark.parametrize(
        ("composition", "word"),
        [
            (of((SampledGaussian(0.1, 1.0), 3)), "SampledGaussian"),
            (of((Gaussian(1.0), 3), (RESPONSE, 2)), "Gaussian"),
            (of((Laplace(1.0), 3), (RESPONSE, 2)), "Laplace alone"),
            (of((Laplace(1.0), 3), (Laplace(2.0), 2)), "one scale"),
            (of((Laplace(1.0), 10**5)), "count = 100000"),
            (of((Laplace(0.001), 3)), "= 0.001"),
            (of((UNEVEN, 10**5)), "attainable sums"),
            (Composition(((RESPONSE, 3),), adaptive=True), "earlier outputs"),
            (of((RESPONSE, 3), (DiscretePair((0.5, 0.5), (0.4, 0.6), adjacency="zero_out"), 1)), "neighbouring"),
        ],
    )
    def test_it_says_why_not(self, composition: Composition, word: str) -> None:
        answer = atomic_support(composition)
        assert isinstance(answer, No)
        assert word in answer.reason
        with pytest.raises(DpbenchError, match="refuses"):
            atomic_curve(composition)

    def test_two_million_sums_are_allowed(self) -> None:
        assert atomic_support(of((RESPONSE, 10**6)))
        assert atomic_support(of((UNEVEN, 1500)))
