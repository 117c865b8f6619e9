"""The lines on which δ(ε) of one direction is integrated: M(z) = E_P[e^(zL)] at their nodes, with its error.

With M the product of the releases' transforms, each to the power of its count,

    δ(ε) = E_P[(1 − e^(ε−L))₊] = (1/2πi) ∫ M(z) e^(−zε) / (z(z+1)) dz  along Re z = c > 0,

and the trapezoidal rule with nodes c + ihk converges exponentially. The work does not grow with the counts.

**Aliasing.** With τ = 2π/h the infinite sum is Σ_m e^(−mcτ) δ(ε − mτ), so it exceeds δ(ε) by at most
e^(−cτ)/(1−e^(−cτ)) from m > 0 (there δ <= 1) and B(a) e^(−(a−c)τ)/(1−e^(−(a−c)τ)) from m < 0, for any a > c, with
B(a) = M(a) e^(−aε) a^a (1+a)^(−1−a) the Chernoff bound of δ(ε). (For ε < 0 and sub-probabilities the same holds.)

**The line.** Near the saddle of the integrand, not at it: among a geometric ladder of points c the one is taken whose
τ and height U give the fewest nodes U/h, while the integrand at c may exceed δ(ε) by a factor LOST at most.

**Truncation.** Nodes are added until the rest, max |M| e^(−cε) / (πU) over the last nodes, is negligible.
That the last nodes tell of all later ones is not proven here; `dpbench.certified` proves it for its own sum.

**Rounding.** Σ |terms| times what the leaves say of log M, times the counts, and some units in the last place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from dpbench.accountants._loss_leaf import UNIT, Complex, Floats, LossLeaf

LOST, MOST_LOST = math.log(1e-12), math.log(3e-10)  # rounding relative to δ: from here on a line is dearer
PRECISION = math.log(1e-12)  # of aliases and truncation, relative to δ
NOTHING = -745.0  # log of the smallest double
_PER_OCTAVE = 4
_CHUNK = 16
_LONGEST = 360  # points of the ladder: 90 octaves
_REFINED = 24
MOST_NODES = 1 << 17


@dataclass(frozen=True)
class Ladder:
    """log M, mean and variance of the tilted loss, and the rounding noise of log M, at ascending real points."""

    points: Floats
    log_moment: Floats
    mean: Floats
    variance: Floats
    noise: Floats

    def chernoff(self, epsilon: float) -> Floats:
        """log B(a): M(a) e^(−aε) a^a (1+a)^(−1−a) bounds δ(ε)."""
        a = self.points
        return self.log_moment - a * epsilon + a * np.log(a) - (1 + a) * np.log1p(a)

    def line(self, epsilon: float) -> Floats:
        """log of the integrand at the points."""
        a = self.points
        return self.log_moment - a * epsilon - np.log(a) - np.log1p(a)

    def width(self) -> Floats:
        """The second derivative of the integrand's logarithm."""
        a = self.points
        return self.variance + 1 / a**2 + 1 / (1 + a) ** 2

    def first(self, count: int) -> Ladder:
        """The lowest points."""
        return Ladder(*(values[:count] for values in vars(self).values()))

    def merged(self, other: Ladder) -> Ladder:
        """Both ladders in one."""
        points = np.concatenate([self.points, other.points])
        points, kept = np.unique(points, return_index=True)
        join = [
            np.concatenate([mine, its])[kept]
            for mine, its in (
                (self.log_moment, other.log_moment),
                (self.mean, other.mean),
                (self.variance, other.variance),
                (self.noise, other.noise),
            )
        ]
        return Ladder(points, *join)


@dataclass(frozen=True)
class Plan:
    """A line: its real part c, τ = 2π/h, and about how many nodes it takes. Logarithms of δ and of the bounds."""

    real: float
    period: float
    nodes: float
    log_delta: float
    log_lost: float


@dataclass(frozen=True)
class Sums:
    """The nodes of one line: z, log M there and its error; weights hold h/2π and the factor 2 of pairs."""

    z: Complex
    log_moment: Complex
    error: Floats
    weight: Floats
    rest: float  # log of max |M| over the last nodes, over π U


@dataclass
class Transform:
    """M(z) of one direction: leaves with their counts. What it remembers never changes an answer.

    With `near`, a near part for every leaf, it is the transform of the difference: all that the product of the near
    parts leaves out, without cancellation.
    """

    parts: tuple[tuple[LossLeaf, int], ...]
    near: tuple[LossLeaf, ...] | None = None
    _ladder: list[Ladder] = field(default_factory=list, repr=False)
    _fine: dict[tuple[float, float], Ladder] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.spare = math.log(max(1, sum(count for _, count in self.parts)))

    @property
    def swapped(self) -> Transform:
        """M(−1 − z)."""
        return Transform(tuple((leaf.swapped, count) for leaf, count in self.parts))

    @property
    def largest_loss(self) -> float:
        """The supremum of the composed loss."""
        return math.fsum(count * leaf.largest_loss for leaf, count in self.parts)

    # ---- real points ----

    def at(self, points: Floats) -> Ladder:
        """log M and what goes with it at real points."""
        if self.near is not None:
            return self._differences_at(points, self.near)
        totals = [np.zeros(len(points)) for _ in range(4)]
        for leaf, count in self.parts:
            for total, value in zip(totals, leaf.growth(points), strict=True):
                total += count * value
        return Ladder(points, *totals)

    def _differences_at(self, points: Floats, near: tuple[LossLeaf, ...]) -> Ladder:
        bulk = Transform(tuple((leaf, count) for leaf, (_, count) in zip(near, self.parts, strict=True)))
        gained = np.zeros(len(points))
        base = bulk.at(points)
        for (leaf, count), kept in zip(self.parts, near, strict=True):
            band = leaf.band(kept)
            if band is not None:
                share = band.growth(points)[0] - kept.growth(points)[0]
                gained = gained + count * np.logaddexp(0.0, share)
        grown = np.expm1(np.minimum(gained, 600.0))
        value = base.log_moment + np.where(gained > 600, gained, np.log(np.maximum(grown, 1e-300)))
        noise = np.full(len(points), 16 * UNIT) + base.noise
        return Ladder(points, value, base.mean, base.variance, noise)

    def _scale(self) -> float:
        """1 over the standard deviation of the loss under the pair's middle."""
        start = self.at(np.array([1e-3]))
        return 1 / math.sqrt(max(float(start.variance[0]), 1e-290))

    def ladder(self, epsilon: float) -> Ladder:
        """Points up to well beyond the minimum of the Chernoff bound at ε."""
        if not self._ladder:
            self._unit = 2.0 ** round(math.log2(self._scale()))
            while self.at(np.array([self._unit / 256])).log_moment[0] > 1:  # heavy tails: far too steep there
                self._unit /= 16
            self._ladder.append(self._rungs(0))
        while True:
            known = self._ladder[-1]
            bound = known.chernoff(epsilon)
            lowest = int(np.argmin(bound))
            deep = bound[lowest] < NOTHING - 60
            enough = lowest < len(bound) - 10 or bool((bound[lowest:] > bound[lowest] + 400).any())
            if deep or enough or len(bound) >= _LONGEST:
                end = min(len(bound), lowest + 11 + (-(lowest + 11)) % _CHUNK) if not deep else len(bound)
                return known.first(end)
            self._ladder.append(known.merged(self._rungs(len(known.points))))

    def _rungs(self, first: int) -> Ladder:
        return self.at(self._unit * 2.0 ** (np.arange(first, first + _CHUNK) / _PER_OCTAVE - 8))

    def refined(self, coarse: Ladder, index: int) -> Ladder:
        """The ladder with more points around one of its own."""
        ends = (float(coarse.points[max(index - 1, 0)]), float(coarse.points[min(index + 1, len(coarse.points) - 1)]))
        if ends not in self._fine:
            self._fine[ends] = self.at(ends[0] * (ends[1] / ends[0]) ** (np.arange(1, _REFINED) / _REFINED))
        return coarse.merged(self._fine[ends])

    def guess_epsilon(self, log_delta: float) -> float:
        """ε with δ(ε) about e^log_delta, by the saddle point; −∞ where δ is smaller already far below 0."""
        coarse = self.ladder(0.0)
        while True:
            level = saddle_point(coarse)
            reached = np.flatnonzero(level[1] <= log_delta)
            if len(reached) or len(coarse.points) >= _LONGEST or coarse.log_moment[-1] > 1e6:
                break
            if not len(self._ladder) or len(self._ladder[-1].points) <= len(coarse.points):
                self._ladder.append(self._ladder[-1].merged(self._rungs(len(self._ladder[-1].points))))
            coarse = self._ladder[-1]
        if not len(reached):
            return float(level[0][-1])
        fine = self.refined(coarse, int(reached[0]))
        epsilon, logs = saddle_point(fine)
        index = int(np.flatnonzero(logs <= log_delta)[0])
        if index == 0:
            return float(epsilon[0])
        share = (log_delta - logs[index - 1]) / (logs[index] - logs[index - 1])
        return float(epsilon[index - 1] + share * (epsilon[index] - epsilon[index - 1]))

    # ---- the line ----

    def plan(self, epsilon: float, log_target: float | None = None, height: float = 0.0) -> Plan | None:
        """The line for δ(ε), accurate to PRECISION relative to e^log_target; None where δ(ε) is below every double.

        Without a target the saddle point's estimate of δ(ε) is used. `height`, where known, says how far up the line
        has to be summed.
        """
        coarse = self.ladder(epsilon)
        bound = coarse.chernoff(epsilon)
        lowest = int(np.argmin(bound))
        if bound[lowest] < NOTHING:
            return None
        ladder = self.refined(coarse, lowest)
        bound = ladder.chernoff(epsilon)
        saddle = int(np.argmin(bound))
        line = ladder.line(epsilon)
        if log_target is None:
            log_target = min(float(line[saddle] - 0.5 * math.log(2 * math.pi * ladder.width()[saddle])), 0.0)
        allowed = log_target + PRECISION
        points, count = ladder.points, len(ladder.points)
        last = min(saddle + 3, count - 1)
        lost = line[:last] - log_target + 0.5 * np.log(2 * math.pi / ladder.width()[:last])
        gap = points[None, :] - points[:last, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            behind = np.where(gap > 0, (bound[None, :] - allowed + 0.7) / gap, math.inf)
        period = np.maximum((0.7 - allowed) / points[:last], behind.min(axis=1))
        period = np.maximum(period, 0.7 / points[:last])
        # far from the saddle's hump the transform falls as it does at smaller c
        inner = np.maximum(np.searchsorted(points, 0.7 * points[:last]) - 1, 0)
        spread = np.minimum(ladder.variance[:last], ladder.variance[inner]) + 1e-300
        if height:
            heights = np.full(last, height)
        else:
            heights = np.sqrt(2 * np.maximum(line[:last] - allowed, 1.0) / spread)
        nodes = np.maximum(heights * period / (2 * math.pi), 1.0)
        noise = 2 * ladder.noise[:last] + UNIT * (4 + points[:last] * abs(epsilon) + np.abs(ladder.log_moment[:last]))
        lost = lost + np.log(noise)
        dear = 0.2 * np.maximum(lost - LOST, 0.0) + 2 * np.maximum(lost - MOST_LOST, 0.0)
        best = int(np.argmin(np.log(nodes) + dear))
        return Plan(float(points[best]), float(period[best]), float(nodes[best]), log_target, float(lost[best]))

    def evaluate(self, real: float, imaginary: Floats) -> tuple[Complex, Floats]:
        """log M(real + i·u) and a bound of its error, over all parts."""
        if self.near is not None:
            return self._evaluate_difference(real, imaginary, self.near)
        total = np.zeros(len(imaginary), dtype=np.complex128)
        error = np.zeros(len(imaginary))
        for leaf, count in self.parts:
            value, wrong = leaf.line(real, imaginary, self.spare)
            total += count * value
            error += count * wrong
        return total, error

    def _evaluate_difference(
        self, real: float, imaginary: Floats, near: tuple[LossLeaf, ...]
    ) -> tuple[Complex, Floats]:
        base = np.zeros(len(imaginary), dtype=np.complex128)
        gained = np.zeros(len(imaginary), dtype=np.complex128)
        error, wrong = np.zeros(len(imaginary)), np.zeros(len(imaginary))
        for (leaf, count), kept in zip(self.parts, near, strict=True):
            value, noise = kept.line(real, imaginary, self.spare)
            base += count * value
            error += count * noise
            outer = leaf.near(float(imaginary[0]), leaf.slope * real + leaf.shift, self.spare) if imaginary[0] else None
            band = (outer or leaf).band(kept)
            if band is not None:
                part, its = band.line(real, imaginary, self.spare)
                share = np.exp(part - value)
                gained += count * _log1p(share)
                wrong += count * np.abs(share) * (its + noise)
        grown = _expm1(gained)
        with np.errstate(divide="ignore", invalid="ignore"):
            result = base + np.where(grown == 0, -1e4, np.log(np.where(grown == 0, 1.0, grown)))
            spread = np.where(grown == 0, 0.0, wrong * np.exp(np.minimum(gained.real, 600.0)) / np.abs(grown))
        return result, error + spread

    def nearby(self, imaginary: float, real: float) -> tuple[LossLeaf, ...] | None:
        """The parts of all leaves near their atoms; None where a part has none at that height."""
        parts = []
        for leaf, _ in self.parts:
            near = leaf.near(imaginary, leaf.slope * real + leaf.shift, self.spare + 4)
            if near is None or near is leaf:
                return None
            parts.append(near)
        return tuple(parts)

    def sums(self, plan: Plan, log_allowed: float, epsilon: float) -> Sums:
        """The nodes of a line, until the rest is below e^log_allowed."""
        step = 2 * math.pi / plan.period
        size = max(16, int(plan.nodes * 1.15) + 1)
        if self.near is not None or size > 300:
            size = 32  # short blocks first: higher up, windows make the leaves cheap
        size += -size % 8
        start, pieces = 0, []
        while True:
            u: Floats = step * np.arange(start, start + size, dtype=np.float64)
            log_moment, error = self.evaluate(plan.real, u)
            pieces.append((plan.real + 1j * u, log_moment, error))
            start += size
            rest = float(log_moment.real[-max(4, size // 4) :].max()) - math.log(math.pi * u[-1])
            if rest - plan.real * epsilon < log_allowed or start >= MOST_NODES:
                break
            size = start // 2 + (-(start // 2)) % 8
        joined = [np.concatenate([piece[k] for piece in pieces]) for k in range(3)]
        weight = np.full(start, 2 / plan.period)
        weight[0] /= 2
        return Sums(joined[0], joined[1], joined[2].real, weight, rest)


def _expm1(values: Complex) -> Complex:
    """e^v − 1 without cancellation near 0."""
    half = np.sin(values.imag / 2)
    real = np.minimum(values.real, 700.0)
    result: Complex = np.expm1(real) * np.cos(values.imag) - 2 * half * half + 1j * np.exp(real) * np.sin(values.imag)
    return result


def _log1p(values: Complex) -> Complex:
    """log(1 + v) without cancellation near 0."""
    real, imaginary = values.real, values.imag
    excess = real * (2 + real) + imaginary**2
    with np.errstate(divide="ignore"):
        modulus = np.where(np.abs(excess) < 0.5, np.log1p(np.maximum(excess, -0.75)), np.log(np.abs(1 + excess)))
    result: Complex = modulus / 2 + 1j * np.arctan2(imaginary, 1 + real)
    return result


def saddle_point(ladder: Ladder) -> tuple[Floats, Floats]:
    """For each point a the ε whose integrand has its saddle there, and the saddle point's log δ(ε)."""
    a = ladder.points
    epsilon = ladder.mean - 1 / a - 1 / (1 + a)
    return epsilon, ladder.log_moment - a * epsilon - np.log(a) - np.log1p(a) - 0.5 * np.log(2 * np.pi * ladder.width())
