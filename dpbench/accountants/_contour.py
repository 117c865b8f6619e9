"""The lines on which δ(ε) of one direction is integrated: M(z) = E_P[e^(zL)] at their nodes, with its error.

With M the product of the releases' transforms, each to the power of its count,

    δ(ε) = E_P[(1 − e^(ε−L))₊] = (1/2πi) ∫ M(z) e^(−zε) / (z(z+1)) dz  along Re z = c > 0,

and the trapezoidal rule with nodes c + ihk converges exponentially. The work does not grow with the counts.

**The line.** Near the saddle of the integrand, not at it: among a geometric ladder of points c the one is taken whose
τ = 2π/h and height U give the fewest nodes U/h, while the integrand at c may exceed δ(ε) by a factor LOST at most.

**Truncation.** Nodes are added until the rest, max |M| e^(−cε) / (πU) over the last nodes, is negligible.
Where few losses turn together |M| dips and rises again: there nodes further up are looked at (`Transform._risen`).
That the last nodes tell of all later ones is not proven here; `dpbench.certified` proves it for its own sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpbench.accountants._complex import exp, expm1, joined, log, log1p
from dpbench.accountants._ladder import Ladder, saddle_point
from dpbench.accountants._leaf_family import Family
from dpbench.accountants._loss_leaf import UNIT, Complex, Floats, LossLeaf
from dpbench.accountants._plan import Aim, Plan, Sums

LOST, MOST_LOST = math.log(1e-12), math.log(3e-10)  # rounding relative to δ: from here on a line is dearer
NOTHING = -745.0  # log of the smallest double
_PER_OCTAVE = 4
_LOWEST = 6  # octaves below the unit at which the ladder starts
_CHUNK = 16
_START = (16, 40)  # points of the first chunk: at least, at most
_FAR = 64.0  # in standard deviations of the noise: the first chunk ends there
_STEEP = 6.0  # rise of the Chernoff bound's logarithm from one point to the next, from which on more are put between
_REFINED = 24
_SHRUNK = 64  # how often the lowest point may be moved further down
_LEAST_CHOICE = 32  # points of the ladder among which a line is chosen, wherever the saddle is
_LONGEST = 360  # points of the ladder: 90 octaves
_BLOCK = (128, 192)  # nodes of the first block where windows will make later ones cheap, at least and at most
_SMOOTH = 0.85  # of a fall as −u²: θ cot(θ/2) / 2 at θ < 1, so that Λ is twice the fall or more
_RISES, _PROBES = 6.0, 12  # how far beyond a line's end |M| is looked at where it may rise again; at how many nodes
_LARGE = 100.0  # of a logarithm: 1 is nothing beside it
_ALL = 600.0  # of a logarithm: e^−600 is nothing
_TWICE = 0.7  # gap times period from which on all aliases of one side are below twice the first
_PLAIN = 1e-5  # difference of two log M, each known to ten digits, that needs no integral of its own
_FLAT = 32.0  # as far beyond its end nothing turns together
_TURNED = 0.1  # of the height where windows have turned: about where a line of a difference ends at the least
MOST_NODES = 1 << 17


def families(parts: Sequence[tuple[LossLeaf, int]]) -> tuple[Family, ...]:
    """The leaves in families whose grids do for all: same direction and terms, noise and rates of the same size."""
    found: dict[tuple[object, ...], list[tuple[LossLeaf, int]]] = {}
    for leaf, count in parts:
        weights = leaf.numerator.weights
        plain = weights[0] == 0 and len(weights) == 2  # a closed form, which needs no grid
        size = () if plain else (round(2 * math.log2(leaf.sigma)), round(math.log10(max(weights[1], 1e-300))))
        kind = (leaf.slope, leaf.shift, len(weights), leaf.denominator is None, leaf.numerator.reverse)
        key = (*kind, weights[0] == 0, *size)
        found.setdefault(key, []).append((leaf, count))
    return tuple(
        Family([leaf for leaf, _ in like], np.array([count for _, count in like], dtype=np.float64))
        for like in found.values()
    )


@dataclass
class Transform:
    """M(z) of one direction: leaves with their counts. What it remembers never changes an answer.

    With `near`, a near part for every family, it is the transform of the difference: all that the product of the near
    parts leaves out, without cancellation.
    """

    parts: tuple[tuple[LossLeaf, int], ...]
    families: tuple[Family, ...] = ()
    near: Transform | None = None
    whole: Transform | None = None  # near and the difference together, where there is a near part
    _ladder: list[Ladder] = field(default_factory=list, repr=False)
    _known: dict[int, tuple[Ladder, tuple[Floats, ...]]] = field(default_factory=dict, repr=False)
    _splits: dict[float, tuple[Transform, Transform]] = field(default_factory=dict, repr=False)
    _fine: dict[tuple[float, float], Ladder] = field(default_factory=dict, repr=False)
    _narrowed: dict[float, Transform] = field(default_factory=dict, repr=False)
    _unit: float = 0.0

    def __post_init__(self) -> None:
        self.families = self.families or families(self.parts)
        self.spare = math.log(max(1, sum(count for _, count in self.parts)))

    def narrowed(self, share: float) -> Transform:
        """The same with narrow windows, so wide over σ: what splits it leaves fewer large losses in the near parts."""
        if share not in self._narrowed:
            families = tuple(family.narrowed(share) for family in self.families)
            made = Transform(self.parts, families, _ladder=self._ladder, _known=self._known, _fine=self._fine)
            made._unit = self._unit
            self._narrowed[share] = made
        return self._narrowed[share]

    @property
    def swapped(self) -> Transform:
        """M(−1 − z)."""
        return Transform(self.parts, tuple(family.swapped for family in self.families))

    @cached_property
    def largest_loss(self) -> float:
        """The supremum of the composed loss."""
        return math.fsum(count * leaf.largest_loss for leaf, count in self.parts)

    @cached_property
    def hits(self) -> float:
        """How many draws are expected of all releases; infinite where some are no sampled ones."""
        sampled = (family.landscape.poisson for family in self.families)
        each = (float(family.counts @ family.landscape.weights[:, 1]) for family in self.families)
        return math.fsum(each) if all(sampled) else math.inf

    # ---- real points ----

    def at(self, points: Floats) -> Ladder:
        """log M and what goes with it at real points."""
        return self._grown(points)[0]

    def _grown(self, points: Floats) -> tuple[Ladder, tuple[Floats, ...]]:
        """The ladder of these points, and every family's own log M there."""
        if self.near is not None:
            assert self.whole is not None
            base, kept = self.near._grown(points)
            return self._difference(points, self.near, base, kept, self.whole._grown(points)[1]), ()
        totals, values = np.zeros((4, len(points))), []
        for family in self.families:
            found = family.growth(points)
            totals += [family.counts @ value for value in found]
            values.append(found[0])
        return Ladder(points, *totals), tuple(values)

    def _difference(
        self, points: Floats, near: Transform, base: Ladder, values: tuple[Floats, ...], wholes: tuple[Floats, ...]
    ) -> Ladder:
        """Where log M and the near part's differ by little, what lies between the windows is integrated by itself."""
        gained = np.zeros(len(points))
        for family, kept, value, whole in zip(self.families, near.families, values, wholes, strict=True):
            more = whole - value
            little = (more < _PLAIN).any(axis=0)
            if not little.all():
                gained[~little] += family.counts @ more[:, ~little]
            band = family.band(kept, family.cut) if little.any() else None
            if band is not None:
                part, whose = band
                gained[little] += part.counts @ np.logaddexp(
                    0.0, part.growth(points[little])[0] - value[whose][:, little]
                )
        grown = np.expm1(np.minimum(gained, _ALL))
        total = base.log_moment + np.where(gained > _ALL, gained, np.log(np.maximum(grown, 1e-300)))
        noise = np.full(len(points), 16 * UNIT) + base.noise
        return Ladder(points, total, base.mean, base.variance, noise)

    @cached_property
    def spread(self) -> float:
        """The standard deviation of the loss under the pair's middle."""
        return math.sqrt(max(sum(family.variance(1e-3) for family in self.families), 1e-290))

    @property
    def _first(self) -> int:
        """How many points the first chunk has: no further than a few dozen standard deviations of the noise."""
        least = min(float((family.sigma / family.landscape.degree).min()) for family in self.families)
        octaves = math.log2(max(_FAR * least / self._unit, 1e-300)) + _LOWEST
        low, high = _START
        return min(max(low, _CHUNK * math.floor(octaves * _PER_OCTAVE / _CHUNK) + low // 2), high)

    def ladder(self, epsilon: float) -> Ladder:
        """Points up to well beyond the minimum of the Chernoff bound at ε."""
        if not self._ladder:
            if not self._unit:
                self._unit = 2.0 ** round(-math.log2(self.spread))
            self._ladder.append(self._lowest())
        start = len(self._ladder[0].points)
        while True:
            known = self._ladder[-1]
            bound = known.chernoff(epsilon)
            lowest = int(np.argmin(bound))
            deep = bound[lowest] < NOTHING - 60
            enough = lowest < len(bound) - 10 or bool((bound[lowest:] > bound[lowest] + 400).any())
            if deep or enough or len(bound) >= _LONGEST:
                if deep or lowest + 11 <= start:
                    return known if deep else known.first(start)
                return known.first(min(len(bound), lowest + 11 + (start - lowest - 11) % _CHUNK))
            try:
                self.extend()
            except ArithmeticError:  # next to the largest loss the bound falls for ever
                return known

    def _lowest(self) -> Ladder:
        """The first chunk, at points so low that heavy tails do not matter at its start."""
        for _ in range(_SHRUNK):
            try:
                found = self._rungs(0)
            except ArithmeticError:  # its end is far too steep to be resolved
                found = None
            if found is not None and found.log_moment[0] <= 1:
                return found
            self._unit /= 16
            self._known.clear()
        raise ArithmeticError("log M is steep at every real point")

    def extend(self) -> None:
        """One chunk more of the ladder."""
        known = self._ladder[-1]
        self._ladder.append(known.joined(self._rungs(len(known.points))))

    def _rungs(self, first: int) -> Ladder:
        return self._chunk(first)[0]

    def _chunk(self, first: int) -> tuple[Ladder, tuple[Floats, ...]]:
        if first not in self._known:
            count = _CHUNK if first else self._first
            points = self._unit * 2.0 ** (np.arange(first, first + count) / _PER_OCTAVE - _LOWEST)
            if self.near is not None:
                assert self.whole is not None
                base, kept = self.near._chunk(first)
                self._known[first] = self._difference(points, self.near, base, kept, self.whole._chunk(first)[1]), ()
            else:
                self._known[first] = self._grown(points)
        return self._known[first]

    def refined(self, coarse: Ladder, index: int) -> Ladder:
        """The ladder with more points around one of its own: M may rise as if at a wall."""
        low, high = max(index - 1, 0), min(index + 1, len(coarse.points) - 1)
        ends = (float(coarse.points[low]), float(coarse.points[high]))
        if ends not in self._fine:
            self._fine[ends] = self.at(ends[0] * (ends[1] / ends[0]) ** (np.arange(1, _REFINED) / _REFINED))
        return coarse.merged(self._fine[ends])

    def guess_epsilon(self, log_delta: float) -> float:
        """ε with δ(ε) about e^log_delta, by the saddle point; −∞ where δ is smaller already far below 0."""
        coarse = self.ladder(0.0)
        while True:
            epsilon, level = saddle_point(coarse)
            reached = np.flatnonzero(level <= log_delta)
            if len(reached) or len(coarse.points) >= _LONGEST or coarse.log_moment[-1] > 1e6:
                break
            if len(self._ladder[-1].points) <= len(coarse.points):
                self.extend()
            coarse = self._ladder[-1]
        if not len(reached):
            return float(epsilon[-1])
        index = int(reached[0])
        if index == 0:
            return float(epsilon[0])
        share = (log_delta - level[index - 1]) / (level[index] - level[index - 1])
        return float(epsilon[index - 1] + share * (epsilon[index] - epsilon[index - 1]))

    def most_epsilon(self, log_delta: float) -> float:
        """ε whose Chernoff bound is e^log_delta: δ is smaller there."""
        coarse = self.ladder(max(self.guess_epsilon(log_delta), 0.0))
        return max(float(((coarse.chernoff(0.0) - log_delta) / coarse.points).min()), 0.0)

    def guess_jump(self, log_delta: float) -> float:
        """ε at which Σ count · δ_single(ε) = e^log_delta, for sampled releases: where one large loss makes the sum."""
        return max((family.jump(log_delta) for family in self.families), default=0.0)

    # ---- the line ----

    def served(self, epsilons: Floats) -> tuple[Floats, Floats]:
        """About log δ at ascending ε, and how much rounding each of some lines loses there, relative to δ: [E, lines].

        By the saddle point's estimate, which does not know of splits, nor of large losses that do not occur.
        """
        ladder = self.ladder(float(epsilons[-1]))
        a = ladder.points
        half_width = 0.5 * np.log(2 * math.pi * ladder.width())
        pull = np.multiply.outer(epsilons, a)
        lines = ladder.log_moment - np.log(a) - np.log1p(a) - pull
        saddle = (ladder.chernoff(0.0) - pull).argmin(axis=1)
        log_delta = np.minimum(lines[np.arange(len(epsilons)), saddle] - half_width[saddle], 0.0)
        noise = 2 * ladder.noise + UNIT * (4 + np.abs(pull) + np.abs(ladder.log_moment))
        lost = lines - log_delta[:, None] + math.log(2 * math.pi) - half_width + np.log(noise)
        return log_delta, lost

    def plan(self, aim: Aim, height: float = 0.0) -> Plan | None:
        """The line for δ at all ε of `aim`, as accurate as it says; None where all are below every double.

        Where it does not say, the saddle point's estimates of δ(ε) are used. `height`, where known, says how far up
        the line has to be summed.
        """
        ladder = self.ladder(max(aim.epsilons))
        saddles, bounds, below = [], [], 0
        for epsilon in aim.epsilons:
            bound = ladder.chernoff(epsilon)
            saddle = int(np.argmin(bound))
            if bound[saddle] < NOTHING:
                below += 1
                if below == len(aim.epsilons):
                    return None
            steep = max(bound[saddle + 1 : saddle + 2].max(initial=-math.inf), bound[max(saddle - 1, 0)])
            if steep > bound[saddle] + _STEEP:
                ladder = self.refined(ladder, saddle)
                bound = ladder.chernoff(epsilon)
                saddle = int(np.argmin(bound))
            bounds.append(bound)
            saddles.append(saddle)
        if len(bounds) > 1:  # a later one may have refined the ladder of the earlier ones
            bounds = [ladder.chernoff(epsilon) for epsilon in aim.epsilons]
            saddles = [int(np.argmin(bound)) for bound in bounds]
        points, count = ladder.points, len(ladder.points)
        half_width = 0.5 * np.log(2 * math.pi * ladder.width())
        lines = [ladder.line(epsilon) for epsilon in aim.epsilons]
        if aim.log_deltas is None:
            guesses = [min(float((line - half_width)[k]), 0.0) for line, k in zip(lines, saddles, strict=True)]
            aim = Aim(aim.epsilons, tuple(guesses))
        assert aim.log_deltas is not None
        last = min(max(max(saddles) + 12, _LEAST_CHOICE), count - 1)
        c, end = points[:last], min(last + 20, count)
        gap = points[None, :end] - c[:, None]
        # far from the saddle's hump the transform falls as it does at smaller c
        inner = np.maximum(np.searchsorted(points, 0.7 * c) - 1, 0)
        spread = np.minimum(ladder.variance[:last], ladder.variance[inner]) + 1e-300
        rounding = 2 * ladder.noise[:last] + UNIT * (4 + np.abs(ladder.log_moment[:last]))
        period = _TWICE / c
        heights, lost = c * 0, c * 0 - math.inf
        for epsilon, log_delta, bound, line in zip(aim.epsilons, aim.log_deltas, bounds, lines, strict=True):
            allowed = log_delta + aim.precision
            with np.errstate(divide="ignore", invalid="ignore"):
                enough = np.maximum(bound[None, :end] - allowed + _TWICE, _TWICE) / np.abs(gap)
            ahead = np.where(gap > 0, enough, math.inf).min(axis=1)
            behind = np.where(gap < 0, enough, math.inf).min(axis=1)
            period = np.maximum(period, np.maximum(np.minimum((_TWICE - allowed) / c, behind), ahead))
            heights = np.maximum(heights, np.sqrt(2 * np.maximum(line[:last] - allowed, 1.0) / spread))
            noise = rounding + UNIT * c * abs(epsilon)
            here = line[:last] - log_delta + math.log(2 * math.pi) - half_width[:last] + np.log(noise)
            lost = np.maximum(lost, here)
        if height:
            heights = np.minimum(heights, height)
        nodes = np.maximum(heights * period / (2 * math.pi), 1.0)
        taken = np.maximum(nodes, _TURNED * height * period / (2 * math.pi))
        dear = 0.2 * np.maximum(lost - LOST, 0.0) + 2 * np.maximum(lost - MOST_LOST, 0.0)
        best = int(np.argmin(np.log(taken) + dear))
        return Plan(float(c[best]), float(period[best]), float(nodes[best]), aim, float(lost[best]), ladder)

    def evaluate(self, real: float, imaginary: Floats) -> tuple[Complex, Floats]:
        """log M(real + i·u) at evenly spaced u, and a bound of its error, over all parts."""
        if self.near is not None:
            return self._evaluate_difference(real, imaginary, self.near)
        total = np.zeros(len(imaginary), dtype=np.complex128)
        error = np.zeros(len(imaginary))
        for family in self.families:
            value, wrong = family.within(self._cut(family, real, imaginary)).line(real, imaginary)
            total += family.counts @ value
            error += family.counts @ wrong
        return total, error

    def _cut(self, family: Family, real: float, imaginary: Floats) -> Floats | None:
        """The windows from the lowest node on."""
        return family.near(float(imaginary[0]), family.power(real), self.spare) if imaginary[0] > 0 else family.cut

    def _evaluate_difference(self, real: float, imaginary: Floats, near: Transform) -> tuple[Complex, Floats]:
        """log of A(e^g − 1), A the product of the near parts and g = Σ count log(1 + band/near), with its error.

        With the errors a of log A, b of g and m of log M = log A + g, it is at most a + |e^g| b / |e^g − 1|, and at
        most (|e^g| m + a) / |e^g − 1|, which serves where the near parts are next to nothing and badly known.
        """
        base = np.zeros(len(imaginary), dtype=np.complex128)
        gained = np.zeros(len(imaginary), dtype=np.complex128)
        total = np.zeros(len(imaginary), dtype=np.complex128)  # log M: where g is large, log A + g would lose digits
        error, wrong, whole = (np.zeros(len(imaginary)) for _ in range(3))
        for family, kept in zip(self.families, near.families, strict=True):
            value, noise = kept.within(self._cut(kept, real, imaginary)).line(real, imaginary)
            base += family.counts @ value
            error += family.counts @ noise
            both = value
            band = family.band(kept, self._cut(family, real, imaginary))
            if band is not None:
                part, its = band[0].line(real, imaginary)
                more, theirs = part - value[band[1]], noise[band[1]]
                large = more.real > _LARGE  # 1 beside e^more is nothing
                share = exp(np.where(large, _LARGE, more))
                rise = np.where(large, more, log1p(share))
                gained += band[0].counts @ rise
                both = value.copy()
                fall = exp(-np.where(more.real > 0, more, 0.0))
                both[band[1]] = np.where(more.real > 0, part + log1p(fall), value[band[1]] + rise)
                wrong += UNIT * (band[0].counts @ np.abs(rise))
                size, summed = np.abs(share), np.maximum(np.abs(1 + share), UNIT)
                wrong += band[0].counts @ (size / summed * (its + theirs))
                noise = noise.copy()
                noise[band[1]] = (theirs + size * its) / summed
            total += family.counts @ both
            whole += family.counts @ (noise + UNIT * np.abs(both))
        far = gained.real > _ALL  # the near parts are nothing beside what is left
        grown = expm1(np.where(far, 0.0, gained))
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            told = np.where(grown == 0, -1e4, log(np.where(grown == 0, 1.0, grown)))
            times = np.exp(np.where(far, 0.0, gained.real))
            apart = error + np.where(grown == 0, 0.0, wrong * times / np.abs(grown))
            together = np.where(grown == 0, math.inf, (whole * times + error) / np.abs(grown))
        result = np.where(far, total, base + told)
        return result, np.where(far, whole, np.minimum(apart, together))

    def cuts(self, height: float, real: float, some: bool = False) -> tuple[Floats | None, ...] | None:
        """Where the parts near the atoms end: all else turns at that height. None where a release has no such part.

        With `some` it is enough that one release has one that is less than all of it.
        """
        cuts: list[Floats | None] = []
        less = False
        for family in self.families:
            cut = family.near(height, family.power(real), self.spare + 4)
            if cut is not None:
                lower = cut < math.inf if family.cut is None else cut < family.cut
                less = less or bool(lower.any())
            if not some and (cut is None or not lower.all()):
                return None
            cuts.append(cut)
        return tuple(cuts) if less else None

    def split(self, height: float, cuts: tuple[Floats | None, ...]) -> tuple[Transform, Transform]:
        """M less the parts near the atoms, and those parts, for the cuts at that height."""
        if height not in self._splits:
            near = Transform(self.parts, tuple(map(Family.within, self.families, cuts)))
            apart = Transform(self.parts, self.families, near, self)
            self.ladder(0.0)
            near._unit = apart._unit = self._unit
            self._splits[height] = (apart, near)
        return self._splits[height]

    def _risen(self, real: float, top: float, level: float) -> float:
        """What may be left out beyond u = top all the same, like `Sums.rest`; −∞ where nothing.

        With Λ losses away from one point, expected, log |M| falls by Λ(1 − cos θ) as these turn by θ, and rises to −Λ
        when they no longer turn together. θ is small where log |M| falls as −u² does.
        """
        if self.near is not None:
            return -math.inf
        mass = 0.0
        for family in self.families:
            cut = family.near(_FLAT * top, family.power(real), self.spare)
            if cut is None:
                return -math.inf
            mass += float(family.counts @ family.within(cut).log_mass(real))
        if mass - math.log(math.pi * top) < level:
            return -math.inf
        u = top * _RISES ** (np.arange(1, _PROBES + 1) / _PROBES)
        try:
            found = self.evaluate(real, u)[0].real - np.log(math.pi * u)
        except ArithmeticError:  # it oscillates too fast there to be resolved
            return math.inf
        return float(found.max())

    def sums(self, plan: Plan, most: float = MOST_NODES) -> Sums:
        """The nodes of a line, until the rest is as small as the plan's aim asks, or until there are `most` nodes."""
        level = plan.aim.level(plan.real)
        step = 2 * math.pi / plan.period
        size = max(16, int(plan.nodes * 1.15) + 1)
        blocks = self.near is not None or size > 300
        if blocks:
            size = min(max(size, _BLOCK[0]), _BLOCK[1])  # short ones first: higher up, windows make the leaves cheap
        size += -size % 8
        first = size if blocks else _BLOCK[0]
        start, pieces, last = 0, [], math.inf
        while True:
            u: Floats = step * np.arange(start, start + size, dtype=np.float64)
            log_moment, error = self.evaluate(plan.real, u)
            pieces.append((joined(np.full(len(u), plan.real), u), log_moment, error))
            start += size
            rest = float(log_moment.real[-max(4, size // 4) :].max()) - math.log(math.pi * u[-1])
            if rest < level:
                near_end = min(int(0.2 * start) + 1, len(u))  # nodes of the last fifth
                fallen = float(pieces[0][1].real[0] - log_moment.real[-1])
                steep = float(log_moment.real[-near_end] - log_moment.real[-1])
                if steep < _SMOOTH * fallen * (1 - (u[-near_end] / u[-1]) ** 2):
                    rest = max(rest, self._risen(plan.real, float(u[-1]), level))
            if rest < level or start >= most:
                break
            if start <= first and blocks:  # half as far again as a fall like −u² would end
                top = float(log_moment.real[0])
                more = math.sqrt((top - level) / max(top - rest, 1e-3)) if top > level else 0.0
                size = int(start * min(max(1.5 * more - 1, 0.5), 4.0))
            elif start <= first:
                size = start
            else:  # as the rest has fallen so far, but not less than a quarter more
                fall = (last - rest) / (size / start)
                missing = (rest - level) / fall if fall > 0 else 1.0
                size = int(start * min(max(1.15 * missing, 0.25), 2.0))
            size += -size % 8
            last = rest
        z, log_m, wrong = (np.concatenate([piece[k] for piece in pieces]) for k in range(3))
        weight = np.full(start, 2 / plan.period)
        weight[0] /= 2
        return Sums(z, log_m, wrong.real, weight, rest)
