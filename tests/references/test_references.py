"""Internal: the lattice of the references rounds to the safe side, seen by planting the other side.

The references against each other, against closed forms, against direct integration, and against planted faults.

Where a number is enclosed, the check is that the enclosure contains it: no tolerance is chosen. Where two numbers of
n digits are compared, the tolerance is 10^(2−n): both were computed to n digits, and two are allowed for rounding.
"""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import flint
import mpmath
import pytest

from dpbench.events import Composition, Gaussian, SampledGaussian
from dpbench.references import _lattice, _pair
from dpbench.references._enclosure import bits, outward
from dpbench.references._reference import Which
from dpbench.references.gaussian import reference as gaussian
from dpbench.references.sampled_gaussian import reference as sampled
from tests.references.nested import estimate as estimated

WAYS: tuple[Which, ...] = ("remove", "add")
UNLIKE = Composition(((SampledGaussian(0.02, 1.0), 40), (Gaussian(6.0), 3), (SampledGaussian(0.3, 3.0), 5)))


def relative(a: Any, b: Any) -> float:
    return float(abs(Fraction(a) - Fraction(b)) / abs(Fraction(b)))


# One invocation: Arb balls and mpmath's quadrature.

CORNERS = [
    *itertools.product((1e-7, 0.01, 0.7, 1.0), (0.3, 1.0, 1000.0), (0.0, 1e-4)),
    *((0.01, 1.0, epsilon) for epsilon in (-0.005, 0.01, 0.5, 3.0, 5.0)),  # 5.0: δ = 4e-25
    *((1.0, 0.3, epsilon) for epsilon in (50.0, 300.0)),  # δ = 1e-41 and 7e-1699
    *((0.5, 1.0, epsilon) for epsilon in (-3.0, -0.5, 0.6)),  # both sides of log(1 − q) and −log(1 − q)
    (1e-7, 0.3, 50.0),
]


@pytest.mark.parametrize(("rate", "noise", "epsilon"), CORNERS)
def test_quadrature_and_balls_agree_to_25_digits(rate: float, noise: float, epsilon: float) -> None:
    event = SampledGaussian(rate, noise)
    for way in WAYS:
        enclosure = sampled.delta(event, epsilon, 30, direction=way)
        integral = sampled.quadrature(event, epsilon, 27, direction=way)
        if enclosure.upper < Decimal("1e-300") or integral == 0:  # e.g. q = 1e-7, ε = 1e-4, direction add: exactly 0
            assert integral <= enclosure.upper * 2
        else:
            assert relative(integral, enclosure.lower) < 1e-25
            assert enclosure.relative_width < 1e-29


def test_as_many_digits_as_one_asks_for() -> None:
    event = SampledGaussian(0.02, 0.8)
    few, many = sampled.delta(event, 1.0, 8), sampled.delta(event, 1.0, 120)
    assert many.within(few)
    assert many.relative_width < 1e-119
    assert relative(sampled.quadrature(event, 1.0, 60), many.lower) < 1e-58


def test_two_equal_distributions() -> None:
    """No sampling, infinite noise or no mechanism at all: δ(ε) = (1 − e^ε)₊."""
    for subject in (SampledGaussian(0.0, 1.0), SampledGaussian(0.5, float("inf")), (SampledGaussian(0.5, 1.0), 0)):
        assert sampled.delta(subject, 0.0).upper == 0
        assert relative(sampled.delta(subject, -1.0).lower, -math.expm1(-1)) < 1e-15


# Compositions: closed forms where there are some.


@pytest.mark.parametrize(
    ("noise", "count", "epsilon"), [(2.0, 4, 1.0), (0.5, 3, 20.0), (10.0, 64, 0.5), (30.0, 1000, 2.0)]
)
def test_gaussians_on_the_lattice_contain_the_one_gaussian_they_are(noise: float, count: int, epsilon: float) -> None:
    exact = gaussian.delta((Gaussian(noise), count), epsilon)
    assert exact.relative_width < 1e-29
    for way in WAYS:
        found = sampled.delta((SampledGaussian(1.0, noise), count), epsilon, direction=way, cells=4096)
        assert exact.within(found)
        assert found.relative_width < 0.02  # measured: 5e-5 to 6e-3


def test_unlike_gaussians_on_the_lattice_contain_the_one_gaussian_they_are() -> None:
    releases = Composition(((Gaussian(2.0), 3), (Gaussian(5.0), 10), (Gaussian(1.5), 1)))
    exact, found = gaussian.delta(releases, 2.0), sampled.delta(releases, 2.0, cells=4096)
    assert exact.within(found)
    assert found.relative_width < 1e-3  # measured: 6e-5


# Compositions: the definition's integral, nested.


def one_release(rate: Any, noise: Any, way: str, epsilon: Any) -> Any:
    """δ of one invocation by the end of its half line and mpmath's normal tails, written out again."""
    ratio = mpmath.exp(epsilon if way == "remove" else -epsilon)  # (1−q) + q r at the end of the half line
    if ratio <= 1 - rate:
        return max(mpmath.mpf(0), 1 - mpmath.exp(epsilon)) if way == "remove" else mpmath.mpf(0)
    end = noise**2 * mpmath.log((ratio - 1 + rate) / rate) + mpmath.mpf(1) / 2
    side = 1 if way == "remove" else -1
    without, with_it = (mpmath.erfc(side * (end - c) / noise / mpmath.sqrt(2)) / 2 for c in (0, 1))
    mixed = (1 - rate) * without + rate * with_it
    first, second = (mixed, without) if way == "remove" else (without, mixed)
    return first - mpmath.exp(epsilon) * second


def nested(rate: float, noise: float, count: int, way: str, epsilon: float, per_sigma: int) -> Any:
    """E over all invocations but one of the last one's δ(ε − losses): trapezoidal sums over x, x = i σ/per_sigma."""
    q, s = mpmath.mpf(rate), mpmath.mpf(noise)
    nodes = []
    for i in range(-9 * per_sigma, 9 * per_sigma + int(per_sigma / noise) + 1):
        x = i * s / per_sigma
        mixture = 1 - q + q * mpmath.exp((2 * x - 1) / (2 * s * s))
        weight = mpmath.npdf(x, 0, s) * s / per_sigma
        nodes.append((weight * mixture, mpmath.log(mixture)) if way == "remove" else (weight, -mpmath.log(mixture)))
    total = mpmath.mpf(0)
    for chosen in itertools.combinations_with_replacement(nodes, count - 1):
        orders = 2 if len({id(node) for node in chosen}) == 2 else 1  # of two different nodes
        weight = mpmath.fprod(node[0] for node in chosen)
        if weight > 1e-25:
            loss = mpmath.fsum(node[1] for node in chosen)
            total += orders * weight * one_release(q, s, way, epsilon - loss)
    return total


@pytest.mark.parametrize(
    ("rate", "noise", "count", "epsilon", "per_sigma"),
    [(0.1, 1.0, 2, 0.5, 60), (0.01, 1.0, 2, 0.2, 400), (0.6, 2.0, 2, 0.9, 12), (0.3, 1.5, 3, 0.5, 12)],
)
@pytest.mark.parametrize("way", WAYS)
def test_two_and_three_releases_by_nested_sums(
    rate: float, noise: float, count: int, epsilon: float, per_sigma: int, way: Which
) -> None:
    with mpmath.workdps(20):
        rough, value = (nested(rate, noise, count, way, epsilon, n) for n in (per_sigma - per_sigma // 4, per_sigma))
        error = abs(value - rough)
        low, high = (Fraction(*mpmath.libmp.to_rational(end._mpf_)) for end in (value - error, value + error))
    subject = (SampledGaussian(rate, noise), count)
    found = sampled.delta(subject, epsilon, direction=way, cells=4096)
    if found.upper == 0:
        assert value == 0
        return
    assert error < 1e-7 * value
    assert found.lower <= high
    assert low <= found.upper
    assert found.relative_width < 0.02
    estimate = estimated(sampled, subject, epsilon, direction=way, cells=4096)
    assert abs(float(estimate.value) - float(value)) <= 10 * estimate.error + 2 * float(error)


@pytest.mark.parametrize(
    ("subject", "epsilon"),
    [((SampledGaussian(0.01, 1.0), 1000), 2.0), ((SampledGaussian(0.1, 4.0), 300), 1.0), (UNLIKE, 2.5)],
    ids=["rare", "frequent", "unlike"],
)
def test_the_estimate_lies_in_the_enclosure(subject: Any, epsilon: float) -> None:
    enclosure = sampled.delta(subject, epsilon, direction="remove", cells=8192)
    estimate = estimated(sampled, subject, epsilon, direction="remove", cells=2048)
    assert enclosure.contains(estimate.value)
    assert estimate.error < 1e-4 * float(estimate.value)


# The grid.


@pytest.mark.parametrize("subject", [(SampledGaussian(0.05, 1.0), 20), (SampledGaussian(1.0, 6.0), 9), UNLIKE])
def test_refinement_nests_and_gains_a_factor(subject: Any) -> None:
    curves = [sampled.curve(subject, smallest=1e-6, cells=1024, refine=n) for n in range(3)]
    for epsilon, way in itertools.product((0.0, 0.31, 0.77), WAYS):
        widest, middle, narrowest = (curve.delta(epsilon, direction=way) for curve in curves)
        assert middle.within(widest)
        assert narrowest.within(middle)
        # second order: a factor of 4 in the limit; the point's place between two nodes moves it
        assert narrowest.relative_width < widest.relative_width / 4


def test_epsilon_is_the_inverse_of_delta() -> None:
    one, many = SampledGaussian(0.01, 1.0), (SampledGaussian(0.05, 1.0), 20)
    found = sampled.epsilon(one, 1e-5)
    assert found.relative_width < 1e-11
    assert sampled.delta(one, found.lower).upper >= Decimal("1e-5") >= sampled.delta(one, found.upper).lower
    found = sampled.epsilon(many, 1e-5, cells=2048)
    assert found.relative_width < 0.01
    curve = sampled.curve(many, smallest=1e-5, cells=8192)
    assert curve.delta(found.lower).upper > Decimal("1e-5") > curve.delta(found.upper).lower
    nothing = sampled.epsilon(one, 0.5)
    assert nothing.lower == nothing.upper == 0


# Planted faults: each is one that a hasty writer could make, and the check that catches it passes without it.


SIDES: tuple[_lattice.Side, ...] = ("lower", "upper")


def holds(grid: _lattice.Grid) -> bool:
    """Whether δ(12) of sixteen N(1, 4) against N(0, 4), about 1e-2, lies between the ends that this grid gives."""
    pair, count, epsilon = _pair.Sampled(Fraction(1), Fraction(4)).pair("remove"), 16, Fraction(12)
    ends = []
    for side in SIDES:
        measure = _lattice.power(_lattice.discretise(pair, grid, side), count, grid)
        with bits(grid.scale + 64):
            found = _lattice.delta(_lattice.profile(measure, grid), flint.arb(0), grid, epsilon)
        ends.append(outward(found, found, 20, side))
    exact = gaussian.delta((Gaussian(2.0), count), epsilon)
    return ends[0].lower <= exact.lower and exact.upper <= ends[1].upper


FINE = _lattice.Grid(Fraction(1, 256), 128, 1e-20)
LEAKY = replace(FINE, tail=1e-3)
BLUNT = replace(FINE, scale=24)


def test_fault_the_tail_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    assert holds(LEAKY)
    discretise, trim = _lattice.discretise, _lattice._trim
    monkeypatch.setattr(_lattice, "discretise", lambda *given: replace(discretise(*given), beyond=0))
    monkeypatch.setattr(_lattice, "_trim", lambda *given: (*trim(*given)[:2], 0, 0))
    assert not holds(LEAKY)


def test_fault_masses_are_rounded_the_wrong_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert holds(BLUNT)
    right = _lattice._round

    def swapped(value: Any, scale: int, side: _lattice.Side) -> int:
        return right(value, scale, "upper" if side == "lower" else "lower")

    monkeypatch.setattr(_lattice, "_round", swapped)
    assert not holds(BLUNT)


def test_fault_interpolation_is_taken_for_a_lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert holds(FINE)

    def chords(_pair: Any, curve: Any, where: list[int], _rise: list[Any], size: Fraction) -> list[Any]:
        heights = [curve(flint.arb(float(size)) * k)[0].lower() for k in where]
        return [flint.arb(1), *heights[:-1], flint.arb(0)]

    monkeypatch.setattr(_lattice, "_below", chords)
    assert not holds(FINE)


def test_fault_the_kept_heights_are_not_convex(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without leaving out nodes some masses are negative, and rounding them up to 0 makes mass from nothing."""
    event, coarse = _pair.Sampled(Fraction(1, 100), Fraction(1)).pair("add"), replace(FINE, step=Fraction(1, 64))

    def mass() -> Fraction:
        return Fraction(_lattice.discretise(event, coarse, "lower").total(), 1 << coarse.scale)

    assert 0.99 < mass() <= 1
    monkeypatch.setattr(_lattice, "_convex", lambda height, rise: (list(range(len(rise))), height))
    assert mass() > 1.1


@pytest.mark.parametrize("subject", [SampledGaussian(0.3, 1.0), (SampledGaussian(0.3, 1.0), 2)])
@pytest.mark.parametrize("kept", WAYS)
def test_fault_one_direction_is_forgotten(subject: Any, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At ε = 0.2 remove is the larger, at ε = −1 add is: both must be looked at."""
    event, count = subject if isinstance(subject, tuple) else (subject, 1)

    def right() -> bool:
        for epsilon in (0.2, -1.0):
            with mpmath.workdps(20):
                truth = max(nested(event.sampling_rate, event.noise_multiplier, count, w, epsilon, 24) for w in WAYS)
            found = sampled.delta(subject, epsilon, 12, cells=2048)
            if not float(found.lower) * (1 - 1e-9) <= truth <= float(found.upper) * (1 + 1e-9):
                return False
        return True

    assert right()
    monkeypatch.setattr("dpbench.references._reference.DIRECTIONS", (kept,))
    assert not right()


# Rényi divergence.


@pytest.mark.parametrize("noise", [0.3, 1.0, 1000.0])
@pytest.mark.parametrize("order", [1.5, 2, 64])
def test_renyi_of_the_gaussian(noise: float, order: float) -> None:
    for reference, event in ((gaussian, Gaussian(noise)), (sampled, SampledGaussian(1.0, noise))):
        exact = Fraction(order) / (2 * Fraction(noise) ** 2)
        assert relative(reference.renyi(event, order, 20), exact) < 1e-18


@pytest.mark.parametrize(("rate", "noise"), [(1e-7, 1.0), (0.01, 0.3), (0.5, 10.0)])
def test_renyi_of_order_two_has_a_closed_form(rate: float, noise: float) -> None:
    """E_Q X² = 1 + q² (e^{1/σ²} − 1) for remove."""
    with mpmath.workdps(60):
        exact = mpmath.log1p(mpmath.mpf(rate) ** 2 * mpmath.expm1(1 / mpmath.mpf(noise) ** 2))
        found = sampled.renyi(SampledGaussian(rate, noise), 2, 20, direction="remove")
        assert abs(mpmath.mpf(str(found)) / exact - 1) < 1e-18


# What is not covered is refused; what is global is put back; nothing else is imported.


@pytest.mark.parametrize(
    ("subject", "word"),
    [
        (SampledGaussian(0.1, 1.0, sampler="without_replacement"), "add_or_remove, without_replacement: expected"),
        (SampledGaussian(0.1, 1.0, adjacency="replace_one"), "replace_one, poisson: expected add_or_remove, poisson"),
        (Composition(((SampledGaussian(0.1, 1.0), 2),), adaptive=True), "adaptive = True"),
    ],
)
def test_what_is_not_covered_is_refused(subject: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        sampled.delta(subject, 1.0)


def test_bad_numbers_are_refused() -> None:
    event = SampledGaussian(0.1, 1.0)
    for epsilon in (float("nan"), float("inf"), True):
        with pytest.raises(ValueError, match="epsilon = "):
            sampled.delta(event, epsilon)
    for delta in (0.0, 1.0):
        with pytest.raises(ValueError, match="delta = "):
            sampled.epsilon(event, delta)
    with pytest.raises(ValueError, match="order = 1"):
        sampled.renyi(event, 1)
    with pytest.raises(ValueError, match="direction = 'sideways'"):
        sampled.delta(event, 1.0, direction="sideways")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected a Gaussian"):
        gaussian.delta(event, 1.0)
    with pytest.raises(ValueError, match="made for this curve"):
        sampled.curve((event, 2), direction="remove", cells=64).delta(0.1)


def test_working_precisions_are_put_back() -> None:
    before = flint.ctx.prec, mpmath.mp.prec
    sampled.delta((SampledGaussian(0.1, 1.0), 3), 0.5, cells=128)
    sampled.quadrature(SampledGaussian(0.1, 1.0), 0.5, 15)
    sampled.renyi(SampledGaussian(0.1, 1.0), 3, 15)
    with pytest.raises(RuntimeError, match="inside"), bits(999):
        raise RuntimeError("inside")
    assert (flint.ctx.prec, mpmath.mp.prec) == before


ALONE = """
import sys
class Wall:
    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        own = name in ("dpbench", "dpbench.events") or (name + ".").startswith("dpbench.references.")
        if not own and root not in sys.stdlib_module_names and root not in ("flint", "mpmath"):
            raise ImportError(name + " is behind the wall")
sys.meta_path.insert(0, Wall())
from dpbench.events import SampledGaussian
from dpbench.references.gaussian import reference as gaussian
from dpbench.references.sampled_gaussian import reference as sampled
event = SampledGaussian(0.1, 1.0)
sampled.delta((event, 2), 0.5, cells=64), sampled.quadrature(event, 0.5, 10), sampled.renyi(event, 2, 10)
print(sorted(name for name in sys.modules if name.startswith("dpbench")))
"""


def test_references_run_with_everything_else_walled_off() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "dpbench.references._lattice" in done.stdout
