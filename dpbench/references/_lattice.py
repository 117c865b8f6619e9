"""Compositions on a lattice: two discrete mechanisms that the true one provably lies between, convolved exactly.

**The claim.** Let X_1, ..., X_T be the likelihood ratios of the mechanisms under Q, positive, independent, E X_i = 1.
The composition's likelihood ratio is their product, so by the definition
δ(ε) = E_Q (X_1 ⋯ X_T − e^ε)₊ = E [R · (X_1 − e^ε/R)₊] = E [R · H_1(e^ε/R)], R = X_2 ⋯ X_T,      (1)
with H_i(a) = E_Q (X_i − a)₊. By (1) δ grows when H_1 is replaced by a larger function (R ≥ 0), and so for each factor
in turn. Hence, for measures on the positive line (an atom at X = 0 contributes nothing to (X R − e^ε)₊ and is left
out; "P-mass p at X = ∞" is the limit of atoms of Q-mass p/X as X grows, and contributes p times the others' P-mass):
  - U_i(a) ≥ H_i(a) for all a ≥ 0 and all i  implies  δ(ε) ≤ the δ(ε) of the U's,               (2)
  - V_i(a) ≤ H_i(a) for all a ≥ 0 and all i  implies  δ(ε) ≥ the δ(ε) of the V's.               (3)

**The lattice.** Nodes a_k = A e^{kh} (A: the pair's anchor, h: the step, k in a chosen set of integers); a measure
with atoms on nodes and P-masses p_k has U(a) = Σ p_k (1 − a/a_k)₊, which is piecewise linear with kinks at nodes, and
p_k = a_k (slope right of a_k − slope left of a_k). Products of nodes are nodes, so composition is convolution of
the p_k, anchors add in the exponent, and δ(ε) = Σ p_k (1 − e^{ε − log a_k})₊ (+ the mass at X = ∞).
  - Above: U interpolates H linearly between nodes, is constant = H(last node) beyond the last (a P-mass at X = ∞), and
    is the chord from (0, 1) to the first node below it. H is convex with H(0) = 1 and decreasing, so U ≥ H everywhere.
  - Below: ℓ_c is a tangent of H at a point of cell c (or of its right end when that keeps it from falling below 0 at
    the cell's right end), ℓ = 1 − a left of the first node and ℓ = 0 right of the last. A convex function is above its
    tangents, so any convex V that is linear in cells and has V ≤ ℓ_c at both ends of every cell has V ≤ ℓ_c ≤ H in
    it. V(a_k) = min(ℓ_left(a_k), ℓ_right(a_k)), made convex by leaving out nodes (`_convex`), which only lowers it.
    V(last node) = 0 ≤ ℓ there, and V ≤ 1 − a left of the first node.
The error of either is of second order in h: interpolation adds to the variance of one loss h²/6 on average, tangents
remove h²/12, so the width of the enclosure of δ is about T (h²/8) |∂²δ/∂ε²| and falls by 4 when h is halved.

**Rounding.** The p_k are enclosed in Arb balls and rounded to multiples of 2^−B, upward for U and down, but never
below 0, for V; δ increases in every p_k. Products of polynomials with whole coefficients are exact (FLINT), then
rounded to 2^−B the same way.

**Truncation** after each product, where the masses at an end sum to less than a given τ. Above: the mass beyond the
upper cut goes to X = ∞, the mass below the lower cut to the lowest kept node; both move P-mass p to a larger X, and
p (1 − a/X)₊ increases in X. Below: both are left out, which lowers the sum. What is at X = ∞ in either factor is at
X = ∞ in the product: ∞_ab = total_a total_b − finite_a finite_b. Nothing is assumed about the size of a tail.

**Cap.** Where a loss has a heavy tail, the mass of every product beyond y = cap is moved too: above to X = ∞, below
down to the node at the cap, again a larger and a smaller X. A cap well above ε (less the anchors) costs e^{ε − cap}.

Which nodes, which B, which τ, which cap only changes how wide the enclosure is, never whether it holds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from flint import arb, fmpz, fmpz_poly

from dpbench.references._enclosure import Ball, ball, bits
from dpbench.references._release import Directed

Side = Literal["lower", "upper"]
LOW_TAIL = 1e-14  # what truncation may cut at the lower end, relative to all the mass
MANY = 10**5  # invocations for which coarse grids are so rough that more of them are tried
MARGIN = 24  # of the cap above ε: e^−24 = 4e-11


@dataclass(frozen=True)
class Measure:
    """Atoms on a lattice: masses·2^−B at losses anchor + (first + i)·step, and `beyond`·2^−B at infinity."""

    masses: Any  # flint.fmpz_poly
    first: int
    beyond: int
    side: Side

    def total(self) -> int:
        """All the mass, in units of 2^−B."""
        return int(self.masses(fmpz(1))) + self.beyond


@dataclass(frozen=True)
class Grid:
    """How fine: `step` h of the losses, `scale` B of the masses, `tail` of all truncation together (see above)."""

    step: Fraction
    scale: int
    tail: float
    cap: Fraction | None = None


def nodes(pair: Directed, grid: Grid) -> list[int]:
    """Which multiples of the step carry atoms: all where the loss is dense, fewer where it is spread out.

    Found in floating point: it decides about the width of the enclosure only.
    """
    step = float(grid.step)
    low, high = pair.span(grid.tail)
    if grid.cap is not None:
        high = min(high, float(grid.cap))
    far = math.inf if grid.cap is None else float(grid.cap) - MARGIN  # beyond, mass counts by 1 − e^{far − y}, nearly 1

    def width(k: int) -> float:
        return pair.spread(k * step) * math.exp(min(10.0, max(0.0, (k * step - far) / 3)))

    found = [math.floor(low / step)]
    last = max(found[0] + 2, math.ceil(high / step))
    while found[-1] < last:
        k, stride = found[-1], 1
        wanted = width(k)
        if wanted >= 2:
            stride = 1 << math.floor(math.log2(wanted))
            while stride > 1 and (k % stride or width(k + stride) < stride):
                stride //= 2
        found.append(k + stride)
    return found


def discretise(pair: Directed, grid: Grid, side: Side) -> Measure:
    """The discrete mechanism above or below one invocation of the pair, as proved in the head of this file."""
    where = nodes(pair, grid)
    # second differences over cells of width h lose about 2 log2(1/h) bits
    with bits(grid.scale + 64 + 2 * max(0, -math.floor(math.log2(float(grid.step))))):
        curve, step = _certain(pair), ball(grid.step)
        rise = [arb(0), *((step * k).exp() for k in where)]  # a_k = e^anchor * rise_k, and before them a = 0
        if side == "upper":
            height = [arb(1), *(curve(step * k)[0] for k in where)]
            last = height[-1]
        else:
            kept, height = _convex(_below(pair, curve, where, rise, grid.step), rise)
            where, rise, last = [where[i - 1] for i in kept[1:]], [rise[i] for i in kept], arb(0)
        masses = [0] * (where[-1] - where[0] + 1)
        slopes = [(height[i + 1] - height[i]) / (rise[i + 1] - rise[i]) for i in range(len(where))]
        for k, a, left, right in zip(where, rise[1:], slopes, [*slopes[1:], arb(0)], strict=True):
            masses[k - where[0]] = _round(a * (right - left), grid.scale, side)
        return Measure(fmpz_poly(masses), where[0], _round(last, grid.scale, side), side)


def _certain(pair: Directed) -> Callable[[Ball], tuple[Ball, Ball]]:
    """`pair.hockey_stick()`, with an error where a node's side of the anchor is not certain."""
    curve = pair.hockey_stick()

    def certain(y: Ball) -> tuple[Ball, Ball]:
        found = curve(y)
        if found is None:
            raise ArithmeticError(f"y = {y}: expected a node on a known side of the anchor of {pair}")
        return found

    return certain


def _round(value: Ball, scale: int, side: Side) -> int:
    """A ball as a whole number of units 2^−scale: its upper end upward, or its lower end downward; never below 0."""
    scaled = value * arb(2) ** scale
    if side == "upper":
        return max(0, int(scaled.upper().ceil().unique_fmpz()))
    return max(0, int(scaled.lower().floor().unique_fmpz()))


def _below(
    pair: Directed, curve: Callable[[Ball], tuple[Ball, Ball]], where: list[int], rise: list[Ball], size: Fraction
) -> list[Ball]:
    """Exact heights at a = 0 and at the nodes, not above either neighbouring tangent (ℓ of the head of this file)."""
    step, scale = ball(size), pair.anchor().exp()
    limit = [arb(1), 1 - scale * rise[1]]
    if not limit[1] > 0:
        raise ArithmeticError(
            f"step = {float(size)!r}: the first node of {pair} is not below loss 0; take a smaller step"
        )
    for place, a, b, end in zip(_touches(pair, where, float(size)), rise[1:-1], rise[2:], where[1:], strict=True):
        touch = step * place
        height, slope = curve(touch)
        base = touch.exp()
        right = height + scale * slope * (b - base)
        if not right >= 0:
            height, slope = curve(step * end)
            base, right = b, height.nonnegative_part()
        limit[-1] = limit[-1].min(height + scale * slope * (a - base))
        limit.append(right)
    limit[-1] = arb(0)
    return [value.lower() for value in limit]


def _touches(pair: Directed, where: list[int], step: float) -> list[float]:
    """Where in each cell to touch H, in steps: such that neighbouring tangents meet near the node between them.

    Tangents at two points meet at the mean of the mass between them, which lies off the middle by 1/12 of the cell
    times the growth Δ of the logarithm of the density across it; −tanh(Δ/2)/6 makes up for that and stays inside the
    cell. Floating point: it decides about the width only.
    """
    places = []
    for left, right in itertools.pairwise(where):
        growth = pair.log_density(right * step) - pair.log_density(left * step)
        places.append((left + right) / 2 - (right - left) * math.tanh(growth / 2) / 6)
    return places


def _convex(height: list[Ball], rise: list[Ball]) -> tuple[list[int], list[Ball]]:
    """Leave out nodes from right to left until the heights are certainly convex.

    A node between two kept ones is left out only when the chord over it passes at or below its height; where balls are
    undecided, the new left end is lowered until it does. So the result is nowhere above the given heights.
    """
    kept = [len(rise) - 1]
    value = {kept[0]: height[-1]}
    for i in range(len(rise) - 2, -1, -1):
        new = height[i]
        while len(kept) > 1:
            middle, right = kept[-1], kept[-2]
            slope = (value[right] - value[middle]) / (rise[right] - rise[middle])
            through = value[middle] - slope * (rise[middle] - rise[i])  # the line over middle and right, at i
            if new > through:
                break
            new = new.min(through).lower()
            kept.pop()
        kept.append(i)
        value[i] = new
    kept.reverse()
    return kept, [value[i] for i in kept]


def multiply(a: Measure, b: Measure, grid: Grid, share: float = 1.0) -> Measure:
    """The product of two independent mechanisms, rounded and truncated to its side.

    `share` is the part of the allowance for truncation that this product may use. The lower end may lose more: mass
    there reaches ε only with the help of the other mechanisms.
    """
    exact, unit = a.masses * b.masses, fmpz(1 << grid.scale)
    above = int(Fraction(grid.tail * share / 64) * (1 << grid.scale))
    below = int(Fraction(max(grid.tail, LOW_TAIL) * share / 64) * (1 << grid.scale))
    first = a.first + b.first
    if a.side == "lower":
        masses, skipped, _, _ = _trim(_capped(exact // unit, first, grid, a.side)[0], below, above)
        return Measure(masses, first + skipped, 0, "lower")
    finite = int(a.masses(fmpz(1))) * int(b.masses(fmpz(1)))
    beyond = -((finite - a.total() * b.total()) >> grid.scale)
    kept, over = _capped(-((-exact) // unit), first, grid, a.side)
    masses, skipped, low, high = _trim(kept, below, above)
    return Measure(masses + fmpz_poly([low]), first + skipped, beyond + high + over, "upper")


def _capped(masses: Any, first: int, grid: Grid, side: Side) -> tuple[Any, int]:
    """The masses up to the grid's cap and, above, how much was beyond; below, that is moved down to the cap."""
    if grid.cap is None:
        return masses, 0
    last = max(0, math.floor(grid.cap / grid.step) - first)
    over = int(masses.right_shift(last + 1)(fmpz(1)))
    kept = masses.truncate(last + 1)
    if side == "upper":
        return kept, over
    return kept + fmpz_poly([over]).left_shift(last), 0


def _trim(masses: Any, below: int, above: int) -> tuple[Any, int, int, int]:
    """Cut both ends where their sums stay within limits: what is left, cells cut below, mass below, mass above."""
    values = masses.coeffs()
    low, high, start, stop = fmpz(0), fmpz(0), 0, len(values)
    while stop > 1 and high + abs(values[stop - 1]) <= above:
        stop -= 1
        high += abs(values[stop])
    while start < stop - 1 and low + abs(values[start]) <= below:
        low += abs(values[start])
        start += 1
    return masses.truncate(stop).right_shift(start), start, int(low), int(high)


def power(release: Measure, count: int, grid: Grid) -> Measure:
    """`count` invocations of one kind, by repeated squaring; count >= 1."""
    result, done = release, 1
    for digit in f"{count:b}"[1:]:
        done *= 2
        result = multiply(result, result, grid, done / count)  # what is cut here reappears count/done times
        if digit == "1":
            done += 1
            result = multiply(result, release, grid, done / count)
    return result


@dataclass(frozen=True)
class Profile:
    """A measure summed from the right, in balls of units 2^−B: at cell i, Σ_{j≥i} p_j and Σ_{j≥i} p_j e^{−(j−i)h}."""

    plain: list[Ball]
    discounted: list[Ball]
    first: int
    beyond: int


def profile(measure: Measure, grid: Grid) -> Profile:
    """The sums from the right at the working precision; one more cell, of sum 0, ends them."""
    shrink = (-ball(grid.step)).exp()
    plain, discounted = [arb(0)], [arb(0)]
    for mass in reversed(measure.masses.coeffs()):
        plain.append(plain[-1] + mass)
        discounted.append(discounted[-1] * shrink + mass)
    return Profile(plain[::-1], discounted[::-1], measure.first, measure.beyond)


def delta(sums: Profile, origin: Ball, grid: Grid, epsilon: Fraction) -> Ball:
    """Σ p (1 − e^{ε−L})₊ + the mass at infinity, as a ball; `origin` is the sum of the mechanisms' anchors.

    Where the ball of ε overlaps a node's loss, the sums with and without this node are united.
    """
    step = ball(grid.step)
    place = (ball(epsilon) - origin) / step - sums.first  # L = ε at this cell
    begins = (int(place.lower().ceil().unique_fmpz()), int(place.upper().floor().unique_fmpz()) + 1)
    if begins[1] - begins[0] > 1:
        raise ArithmeticError(
            f"scale = {grid.scale}: too few bits to place epsilon = {float(epsilon)!r} on the lattice"
        )
    found: list[Ball] = []
    for begin in (min(max(0, begin), len(sums.plain) - 1) for begin in begins):
        ratio = (ball(epsilon) - origin - step * (sums.first + begin)).exp()
        found.append(sums.plain[begin] - ratio * sums.discounted[begin])
    value = found[0].union(found[1]).nonnegative_part()
    return (value + sums.beyond) / arb(2) ** grid.scale


def anchor(releases: Sequence[tuple[Directed, int]]) -> Ball:
    """The sum of the anchors of all mechanisms, as a ball at the working precision."""
    return sum((pair.anchor() * count for pair, count in releases), arb(0))


def compose(releases: Sequence[tuple[Directed, int]], grid: Grid, side: Side) -> Measure:
    """All mechanisms together, each pair with its count (>= 1), on one side."""
    result: Measure | None = None
    for pair, count in releases:
        part = power(discretise(pair, grid, side), count, grid)
        result = part if result is None else multiply(result, part, grid)
    if result is None:
        raise ValueError("releases = (): expected at least one")
    return result


def aligned(releases: Sequence[tuple[Directed, int]], step: Fraction) -> Fraction:
    """At most the step, such that it divides the distances between atoms: of all mechanisms, or else of one."""
    periods = {pair.period() for pair, _ in releases}
    found = [period for period in periods if period is not None]
    if not found:
        return step
    common = found[0]
    for period in found[1:]:
        a, b = common, period
        while b:
            a, b = b, a % b
        common = a
    length = common if common > step / 64 else found[0]
    return length / math.ceil(length / step)


def plan(
    releases: Sequence[tuple[Directed, int]],
    cells: int,
    epsilon: Fraction | None,
    smallest: float | None,
    exactness: float = 1e-10,
    largest: Fraction | None = None,
) -> Grid:
    """A grid whose composed measure has about `cells` cells, fine enough for δ(ε) or for a δ of size `smallest`.

    Truncation is kept near `exactness` times that δ. Coarse compositions from above show how far the losses reach;
    nothing that is proved depends on it. With `largest`, the largest ε that will be asked for, the measures are capped
    above it: for mechanisms whose losses have heavy tails.
    """
    tail, scale, cap = 1e-120, 480, None
    if largest is not None:
        tail, scale = 1e-30, 130
        with bits(64):
            cap = Fraction(MARGIN + math.ceil(float(largest - Fraction(float(anchor(releases))))))
    spans = [pair.span(tail) for pair, _ in releases]
    step = max((high if cap is None else min(high, float(cap))) - low for low, high in spans) / 512
    allowed = tail
    many = sum(count for _, count in releases) >= MANY
    for target in (min(4096, cells), *((min(2**14, cells), min(2**16, cells)) if many else ()), cells):
        coarse = Grid(aligned(releases, Fraction(step)), scale, tail, cap)
        measure = compose(releases, coarse, "upper")
        size = smallest or 1.0
        if epsilon is not None:
            with bits(scale + 64):
                size = float(delta(profile(measure, coarse), anchor(releases), coarse, epsilon).upper())
        allowed = max(exactness * size, 1e-110)
        above, below = (int(Fraction(part) * (1 << scale)) for part in (allowed / 64, max(allowed, LOW_TAIL) / 64))
        step = _trim(measure.masses, below, above)[0].length() * float(coarse.step) / target
        tail = max((1e-20 if cap is None else 1e-6) * allowed, 1e-120)
        scale = (96 if cap is None else 40) - math.floor(math.log2(tail))
    return Grid(aligned(releases, Fraction(step)), 64 - math.floor(math.log2(allowed)), allowed, cap)
