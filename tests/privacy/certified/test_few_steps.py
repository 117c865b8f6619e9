"""Internal: the bounds on bent contours, each of which every certified interval of few releases rests on.

Few releases, bent contours: against integrals of the definition, each other, and with each bound planted as 0.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import pytest
from flint import arb

from dpbench.events import (
    Composition,
    DiscretePair,
    Event,
    Gaussian,
    GroupSampledGaussian,
    Laplace,
    RandomSensitivityGaussian,
    SampledGaussian,
)
from dpbench.privacy.certified import _bent, certify
from dpbench.privacy.certified._bent import Bend, bent_transform
from dpbench.privacy.certified._contour import Exponents, plan_right, transform
from dpbench.privacy.certified._exact_sums import single_delta
from dpbench.privacy.certified._mixture import Mixture
from dpbench.privacy.certified._numbers import working_bits
from dpbench.privacy.certified._sides import sides


def times(event: Event, count: int) -> Composition:
    return Composition(((event, count),))


def one_release(rate: mpmath.mpf, noise: mpmath.mpf, epsilon: mpmath.mpf) -> mpmath.mpf:
    """δ of one invocation in the remove direction at any real ε, where the two densities cross."""
    level = (mpmath.exp(epsilon) - (1 - rate)) / rate
    if level <= 0:
        return 1 - mpmath.exp(epsilon)
    x = noise * mpmath.log(level) + 1 / (2 * noise)
    return (1 - rate) * mpmath.ncdf(-x) + rate * mpmath.ncdf(1 / noise - x) - mpmath.exp(epsilon) * mpmath.ncdf(-x)


def two_releases(rate: float, noise: float, epsilon: float) -> mpmath.mpf:
    """∫ over the first output of the second's δ(ε − L), cut where that has its kink."""
    with mpmath.workdps(55 if noise > 1 else 25):
        q, s = mpmath.mpf(rate), mpmath.mpf(noise)
        kink = s**2 * mpmath.log((mpmath.exp(epsilon) / (1 - q) - (1 - q)) / q) + mpmath.mpf(1) / 2

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            ratio = 1 - q + q * mpmath.exp((2 * x - 1) / (2 * s * s))
            return mpmath.npdf(x, 0, s) * ratio * one_release(q, s, epsilon - mpmath.log(ratio))

        reach = 20 * s + 1
        cuts = sorted({-reach, kink, *(mpmath.mpf(i) * reach / 12 for i in range(-11, 24))})
        return mpmath.quad(integrand, cuts)


CASES = [(0.01, 0.3, 0.5), (0.01, 0.3, 3.0), pytest.param(0.01, 3.0, 0.5, marks=pytest.mark.long)]


@pytest.mark.parametrize(("rate", "noise", "epsilon"), CASES)
def test_two_releases_against_the_double_integral(rate: float, noise: float, epsilon: float) -> None:
    """The truth to 1e-15, as two rules of integration agree; the enclosure to 1e-10."""
    truth = two_releases(rate, noise, epsilon)
    found = certify(times(SampledGaussian(rate, noise), 2), epsilon=epsilon)
    lower, upper = found.directions["remove"]
    assert lower * (1 - 1e-14) <= truth <= upper * (1 + 1e-14)
    assert found.relative_width <= 1e-9


def test_epsilon_and_delta_invert_each_other() -> None:
    release = times(SampledGaussian(0.01, 0.3), 2)
    found = certify(release, delta=1e-3)
    assert found.relative_width <= 1e-9
    assert certify(release, epsilon=found.value, digits=4).contains(1e-3)


@pytest.mark.parametrize("epsilon", [0.4, 1.5])
def test_bent_and_straight_lines_meet(epsilon: float) -> None:
    """Where both apply: nine unlike mechanisms."""
    parts: Any = [
        (Mixture((Fraction(9, 10), Fraction(1, 10)), 0.8, "remove"), 6),
        (Mixture((Fraction(4, 5), Fraction(1, 5)), 1.0, "remove"), 3),
    ]
    bent = bent_transform(parts, epsilon, -25.0)
    straight = plan_right(parts, Exponents(parts), epsilon, -25.0)
    with working_bits(200):
        one, other = bent.delta(arb(epsilon)).value, transform(parts, straight, 200).delta(arb(epsilon)).value
    assert one.overlaps(other)
    assert one.rad() < arb(-22.0).exp()


@pytest.mark.parametrize("epsilon", [0.002, 0.006])
def test_add_by_its_mirror(epsilon: float) -> None:
    """One invocation has a closed form; −log(1−q) is 0.01005."""
    parts: Any = [(Mixture((Fraction(99, 100), Fraction(1, 100)), 1.0, "add"), 1)]
    with working_bits(200):
        truth = single_delta(parts[0][0].balls(), arb(1), "add", arb(epsilon))
    found = bent_transform(parts, epsilon, -30.0).delta(arb(epsilon)).value
    assert found.contains(truth)
    assert found.rad() < arb(-28.0).exp()


class TestPlantedFaults:
    EPSILON = 0.7

    def holds(self, **changed: float) -> bool:
        """Whether the ball of a plan that is changed contains the closed form of one invocation."""
        mixture = Mixture((Fraction(9, 10), Fraction(1, 10)), 0.5, "remove")
        plan = _bent._plan([(mixture, 1)], self.EPSILON, -14.0)
        plan = replace(
            plan,
            step=plan.step * changed.get("step", 1.0),
            count=int(plan.count * changed.get("count", 1.0)),
            digits=changed.get("digits", plan.digits),
        )
        with working_bits(200):
            truth = single_delta(mixture.balls(), arb(0.5), "remove", arb(self.EPSILON))
            return bool(_bent._transform(plan, False, None).delta(arb(self.EPSILON)).value.contains(truth))

    def test_nothing_planted(self) -> None:
        assert self.holds()
        assert self.holds(count=0.4)
        assert self.holds(step=2.5)
        assert self.holds(digits=4.0)

    def test_the_bounds_along_the_contour(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Bend, "bound", lambda *_: arb(0))
        assert not self.holds(count=0.4)
        assert not self.holds(step=2.5)

    def test_what_the_contour_leaves_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = Bend.ends

        def short(bend: Bend, digits: float, c: float) -> tuple[float, float]:
            low, run = whole(bend, digits, c)
            return low, 0.4 * run

        monkeypatch.setattr(Bend, "ends", short)
        monkeypatch.setattr(Bend, "outside", lambda *_: arb(0))
        assert not self.holds()

    @pytest.mark.parametrize(
        "bend",
        [
            Bend(Fraction(1, 10), 1.0, 0.5, 5.0, 0.3),  # leaves the real line beyond the level
            Bend(Fraction(1, 10), 1.0, 0.5, -9.0, 0.3),  # passes the zero of R too high
            Bend(Fraction(1, 10), 1.0, 0.5, 1.0, 0.2),  # no steeper than the hyperbola
        ],
    )
    def test_the_assumptions_are_checked(self, bend: Bend) -> None:
        Bend(Fraction(1, 10), 1.0, 0.5, 1.0, 0.3).check(arb(0.2))
        with pytest.raises(AssertionError, match="the contour in s"):
            bend.check(arb(0.2))

    def test_the_inequality_along_the_contour(self) -> None:
        """(W) of section 6a, in doubles, at many places of many contours."""
        for rate in (0.001, 0.1, 0.9):
            for share in (0.2, 0.6):
                bend = Bend(Fraction(rate), 0.5, 0.3, 0.0, 0.4)
                start = bend.zero + math.log(math.expm1(share * (0.3 - math.log1p(-rate))))
                bend = replace(bend, start=start)
                bend.check(arb(0.32))
                assert all(0.32 * size <= argument + 1e-12 for _, size, argument in bend.samples(80.0, 2.0))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (SampledGaussian(0.01, 1.0), SampledGaussian(0.01, 1.0, "zero_out")),
        (RandomSensitivityGaussian(0.1, 1.0, 9), RandomSensitivityGaussian(0.1, 1.0, 9, "zero_out")),
        (GroupSampledGaussian(0.1, 1.0, 3), GroupSampledGaussian(0.1, 1.0, 3, "zero_out")),
    ],
    ids=lambda event: type(event).__name__,
)
def test_zeroing_a_record_out_is_removing_it(one: Event, other: Event) -> None:
    """The same factors, bit by bit, in both directions; and a certificate says under which relation it holds."""
    first, second = (sides(times(event, 30)) for event in (one, other))
    assert [side.parts for side in first] == [side.parts for side in second]
    assert len(second) == 2
    if isinstance(other, SampledGaussian):
        assert certify(times(other, 30), epsilon=0.3, digits=4).adjacency == "zero_out"


class TestLaplaceWithoutAGaussian:
    def test_two_unlike_scales_against_the_integral(self) -> None:
        """E over the first loss, two atoms and the density e^((L−v)/2)/4 between, of the second's closed form."""
        with mpmath.workdps(40):
            v, w, epsilon = mpmath.mpf(1), mpmath.mpf(1) / 2, mpmath.mpf("0.3")

            def second(at: mpmath.mpf) -> mpmath.mpf:
                if at >= w:
                    return mpmath.mpf(0)
                return 1 - mpmath.exp((at - w) / 2) if at > -w else 1 - mpmath.exp(at)

            truth = second(epsilon - v) / 2 + mpmath.exp(-v) / 2 * second(epsilon + v)
            cuts = [-v, epsilon - w, epsilon + w, v]
            truth += mpmath.quad(lambda x: mpmath.exp((x - v) / 2) / 4 * second(epsilon - x), cuts)
            found = certify(Composition(((Laplace(1.0), 1), (Laplace(2.0), 1))), epsilon=0.3, digits=12)
            # ε = 0.3 as a double is 1e-17 off
            assert abs(mpmath.mpf(found.lower_text) - truth) < 1e-11

    def test_atoms_beside_laplace_against_a_narrow_gaussian(self) -> None:
        """With more and more noise the Gaussian beside them reveals less: δ falls to that without it."""
        parts = ((Laplace(2.0), 3), (DiscretePair((0.75, 0.125, 0.125), (0.5, 0.5, 0.0)), 2))
        alone = certify(Composition(parts), epsilon=0.6)
        assert alone.method == "residues"
        distances = []
        for noise in (4.0, 16.0, 64.0):
            beside = certify(Composition((*parts, (Gaussian(noise), 1))), epsilon=0.6, digits=6)
            assert beside.lower > alone.upper
            distances.append(beside.value - alone.value)
        assert distances[0] > 10 * distances[1] > 100 * distances[2] > 0

    def test_largest_loss_and_the_order(self) -> None:
        parts = ((Laplace(1.0), 2), (Laplace(4.0), 2), (Laplace(0.5), 1))
        assert certify(Composition(parts), epsilon=4.5).upper == 0.0
        turned = certify(Composition(parts[::-1]), epsilon=2.0, digits=20)
        assert Fraction(turned.lower_text) <= Fraction(certify(Composition(parts), epsilon=2.0, digits=20).upper_text)
        near = certify(Composition(((Laplace(2.0), 4), (Laplace(2.0 + 2**-40), 3))), epsilon=1.0)
        assert near.value == pytest.approx(certify(times(Laplace(2.0), 7), epsilon=1.0).value, rel=1e-10)
