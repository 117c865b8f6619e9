"""Internal: another route to the references' numbers begins at their pairs of distributions.

An estimate of δ(ε) of a composition to ten or more digits: the T-fold integral by nested quadrature. Not a proof.

δ(ε) = ∫ ⋯ ∫ p_1(x_1) ⋯ p_{T−1}(x_{T−1}) δ_T(ε − L_1(x_1) − ⋯ − L_{T−1}(x_{T−1})) dx, with δ_T the closed form of the
last mechanism. Each integral is a trapezoidal sum over x (the integrands are Gaussian, so a dozen nodes per σ give
twenty digits, and more are taken where neighbouring nodes' losses would lie far apart on the lattice). The nodes'
losses are moved to a lattice by Lagrange interpolation of the rest of the integral, a smooth function of the loss, at
POINTS neighbouring lattice losses; on a lattice the nested sums are a convolution. The error falls like step^POINTS
until the rest is resolved no further; nothing bounds it. So everything is computed on two lattices and with two sets of
nodes, and the difference of the two is given as the error's size.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from flint import arb, fmpz_poly

from dpbench.references._enclosure import Ball, Real, ball, bits, outward, rational
from dpbench.references._lattice import Grid, Measure, anchor, multiply, plan, power
from dpbench.references._pair import Pair
from dpbench.references._reference import Reference, Subject, Which, _beyond, directions

POINTS = 12  # of the Lagrange interpolation
EXACTNESS = 1e-22  # how small truncation is, relative to δ


@dataclass(frozen=True)
class Estimated:
    """A number, and the size of its error by the difference of two computations; `method` says how it was got."""

    value: Decimal
    error: float
    method: str


def estimate(
    reference: Reference, subject: Subject, epsilon: Real, *, direction: Which = "both", cells: int = 1 << 14
) -> Estimated:
    """δ(ε) of sampled Gaussians to about ten digits by nested quadrature, with the size of its error; no enclosure.

    Where one enclosure gives 25 digits (one invocation, none) it is that.
    """
    releases, exact = reference.releases(subject), rational("epsilon", epsilon)
    found: list[Estimated] = []
    for way in directions(direction):
        pairs = tuple((pair, count) for law, count in releases if isinstance(pair := law.pair(way), Pair))
        if sum(count for _, count in releases) < 2 or _beyond(releases, exact, way):
            known = reference.delta(subject, epsilon, 25, direction=way)
            found.append(Estimated(known.lower, float(known.upper - known.lower), known.method))
        else:
            assert len(pairs) == len(releases), "there is no estimate for others"
            found.append(nested_quadrature(pairs, exact, cells))
    return max(found, key=lambda item: item.value)


def nested_quadrature(releases: Sequence[tuple[Pair, int]], epsilon: Fraction, cells: int) -> Estimated:
    """δ(ε) of two releases or more in one direction; about `cells` lattice cells over the composed loss."""
    grid = plan(releases, cells, epsilon, None, exactness=EXACTNESS)
    finer = Grid(grid.step * Fraction(4, 7), grid.scale, grid.tail)
    with bits(grid.scale + 64):
        rough, value = _once(releases, epsilon, grid), _once(releases, epsilon, finer)
        error = float((rough - value).abs_upper())
        shown = outward(value.mid(), value.mid(), 25, "nested quadrature").lower
    return Estimated(shown, error, "nested quadrature on two lattices, their difference as the error; not rigorous")


def _once(releases: Sequence[tuple[Pair, int]], epsilon: Fraction, grid: Grid) -> Ball:
    (last, count), *others = releases
    rest = [(last, count - 1), *others] if count > 1 else others
    measure: Measure | None = None
    for pair, times in rest:
        part = power(_release(pair, grid), times, grid)
        measure = part if measure is None else multiply(measure, part, grid)
    if measure is None:
        raise ValueError("releases: expected two or more")
    step, curve = ball(grid.step), last.hockey_stick()
    origin, total = anchor(releases), arb(0)
    for i, mass in enumerate(measure.masses.coeffs()):
        if mass != 0:
            found = curve(ball(epsilon) - origin - step * (measure.first + i))
            found = found or curve(arb(0))  # undecided: the argument is 0 to all digits
            total += mass * found[0] if found else arb.nan()
    return total / arb(2) ** grid.scale


def _nodes_per_sigma(pair: Pair, grid: Grid) -> int:
    """At least 8, and so many that the losses of neighbouring nodes are at most about 4 steps apart, up to 4000."""
    steepest = (
        1.0 if pair.law.rate == 1 else -math.expm1(-max(abs(y) for y in pair.span(grid.tail)))
    )  # dL/dx is this / σ², at the far end
    return min(4000, max(8, math.ceil(steepest / (math.sqrt(pair.law.variance) * 4 * float(grid.step)))))


def _release(pair: Pair, grid: Grid) -> Measure:
    """One invocation's trapezoidal nodes interpolated onto the lattice: masses that have signs and sum to 1."""
    nodes_per_sigma = _nodes_per_sigma(pair, grid)
    variance, rate, step = ball(pair.law.variance), ball(pair.law.rate), ball(grid.step)
    start, sigma = pair.anchor(), variance.sqrt()
    reach = math.ceil(math.sqrt(2 * math.log(1 / grid.tail)) * nodes_per_sigma)
    shift = math.ceil(nodes_per_sigma / math.sqrt(pair.law.variance))  # x = 1 in nodes
    denominators = [math.prod(j - i for i in range(POINTS) if i != j) for j in range(POINTS)]
    masses: dict[int, Ball] = {}
    for i in range(-reach, reach + shift + 1):
        t = arb(i) / nodes_per_sigma  # x / σ
        growth = rate * ((2 * sigma * t - 1) / (2 * variance)).expm1()
        weight = (-t * t / 2).exp() / ((2 * arb.pi()).sqrt() * nodes_per_sigma)
        if pair.direction == "remove":
            weight *= 1 + growth
            y = growth.log1p() - start
        else:
            y = -growth.log1p() - start
        place = y / step
        base = int(place.mid().floor().unique_fmpz()) - POINTS // 2 + 1
        gaps = [place - base - j for j in range(POINTS)]
        left = list(itertools.accumulate(gaps[:-1], operator.mul, initial=weight))
        right = list(itertools.accumulate(gaps[:0:-1], operator.mul, initial=arb(1)))[::-1]
        for j in range(POINTS):
            masses[base + j] = masses.get(base + j, arb(0)) + left[j] * right[j] / denominators[j]
    first = min(masses)
    whole = [0] * (max(masses) - first + 1)
    for k, mass in masses.items():
        whole[k - first] = int((mass * arb(2) ** grid.scale).mid().floor().unique_fmpz())
    return Measure(fmpz_poly(whole), first, 0, "lower")
