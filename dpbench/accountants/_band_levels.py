"""The levels of a curve by bands: what their sums at real points tell of every line before one is laid.

| here | meaning |
| --- | --- |
| E, X, S, U | axes: ε of the curve, real points x, steps of s (`_band_leaf`), heights on a line |
| A, D, ε' | as in `_bands`: all below a level, what lies between two of them, ε less the origin of the losses |
| a, B | one release's share in A, and what the next higher band adds to it |

All levels share one table of losses at even steps: e^(xe) − 1 is computed once, and a window is a product with its
weights. The trapezoidal rule is as good as exact for them: log(p W e^(xe)) bends down by W, whose width is 1.5 steps at
least, and by p, and e^(xe) makes it bend up, so that no top is narrower than a step, and e^(−2π²) is 3e-9. But for the
end of a window, where it is cut off: a point is used where what lies there is nothing beside the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants._band_leaf import ALL, Leaf, Window
from dpbench.accountants._band_line import Reals
from dpbench.accountants._bands import PRECISION, Bands
from dpbench.accountants._complex import turn
from dpbench.accountants._loss_leaf import UNIT, Floats

PER_OCTAVE = 3
MOST_LOST = math.log(3e-10)  # rounding relative to δ on a line, where all lose much
_BELOW, _ABOVE = 8, 6  # octaves of real points below the range of the largest loss, and above that of the sum's spread
_STEPS = 3  # windows that one may skip, and one more
_MOST = 690.0  # exponents above which a point is not used
_LEFT, _REACH = 10.0, 10.0  # s from which on losses are summed, and widths beyond a window's cut where it ends
_STEP = 0.66  # of a window's width, at most, from one s to the next
_LITTLE, _BEFORE = (
    -6.5,
    -13.0,
)  # log of what an integrand has at its window's end, at most: times count, or over its sum
_SUMMED = 64  # units in the last place that a line's sums may lose
_HARDLY, _PROMISED = 2.0, math.log(4e-10)  # log of how much more may be lost than has to be; and of how much in all
_OCTAVES, _LONG = 2, 4.0  # above a line within which its aliases are looked at; times the period that δ <= 1 asks for
_TWICE = 0.7  # gap times period from which on all aliases of one side are below twice the first
_ROOM, _EDGE = 2.0, 1.6  # times the height of a normal integrand where a line ends, and that of windows
_MOST_NODES = 200.0  # of a band that skips windows
_AHEAD = 1.15 ** np.arange(1, 16)  # heights beyond a line's end, over that
_TURNED = 2.5  # by how much a loss may turn from one s to the next
_LEAST = 8.0  # of the exponent by which a line falls
_NOTHING = 1e-200
_NORMAL = 0.5 * math.log(2 / math.pi)


@dataclass(frozen=True)
class Held:
    """What some losses of one release have at every point: Σ p W (e^(xe) − 1) and their sizes; mean and mean square.

    `some` is Σ p W, and `good` says at which points that is of use.
    """

    net: Floats
    rough: Floats
    mean: Floats
    square: Floats
    some: float
    good: NDArray[np.bool_]


@dataclass(frozen=True)
class Losses:
    """One release at even steps of s: p times the step, and e^(xe) − 1 times that at the points x; [S] and [X, S]."""

    leaf: Leaf
    places: Floats
    excess: Floats
    log_weight: Floats
    exponent: Floats
    grown: Floats
    known: dict[Window, Held] = field(default_factory=dict)

    @classmethod
    def of(cls, leaf: Leaf, points: Floats, window: Window) -> Losses:
        """All within a window."""
        s, _, _, log_density = leaf.table
        step, end = float(s[1] - s[0]), window.cut + _REACH * window.width
        if leaf.pair.kind == "add":
            end = leaf.highest
        if _STEP * window.width < step:
            step = _STEP * window.width
            s = np.arange(-_LEFT, end + step, step)
            log_density = leaf.log_density(s)
        kept = slice(*np.searchsorted(s, [-_LEFT, end]))
        log_weight, excess = log_density[kept] + math.log(step), leaf.moved(s[kept])
        exponent = np.multiply.outer(points, excess)
        grown = np.expm1(np.minimum(exponent, _MOST)) * np.exp(log_weight)
        return cls(leaf, s[kept], excess, log_weight, exponent, grown)

    def held(self, inside: Floats, little: float = -math.inf) -> Held:
        """By a window, or between two; `little` is the log of what does not count."""
        some = np.flatnonzero(inside)
        if not len(some):
            raise ArithmeticError("a window holds no loss of the table")
        part = slice(int(some[0]), int(some[-1]) + 1)
        inside, excess, grown = inside[part], self.excess[part], self.grown[:, part]
        weight = np.exp(self.log_weight[part])
        moments = np.stack([inside, inside * excess, inside * excess**2], axis=1)
        net, first, second = (grown @ moments + weight @ moments * np.array([0.0, 1.0, 1.0])).T
        mass = float(weight @ inside)
        there = net + mass > _NOTHING  # tilted far, nothing of a window is left
        mean, square = (np.where(there, one, 0.0) / np.where(there, net + mass, 1.0) for one in (first, second))
        rough = np.abs(grown) @ inside
        last = self.exponent[:, part.stop - 1]
        good: NDArray[np.bool_] = last < _MOST
        if self.leaf.pair.kind != "add":  # whose losses are all counted
            size = last + self.log_weight[part.stop - 1] + math.log(inside[-1])
            good &= size <= np.maximum(little, np.log(rough + _NOTHING) + _BEFORE)
        return Held(net, rough, mean, np.maximum(square, 0.0), mass, good)

    def near(self, window: Window) -> Held:
        """By a window."""
        if window not in self.known:
            self.known[window] = self.held(window.at(self.places), _LITTLE - math.log(self.leaf.count))
        return self.known[window]


@dataclass(frozen=True)
class Part:
    """A band, or all below a level: its windows, bounds and mass.

    By points: `noise`, the relative rounding error of a line's terms; the second derivatives of the bounds' logarithm,
    `bend`, and of that of all below the band, `bulk`.
    """

    uppers: list[Window]
    lowers: list[Window] | None
    bounds: Reals
    mass: float
    noise: Floats
    bend: Floats
    bulk: Floats
    losses: list[Losses]
    rows: NDArray[np.intp]  # the points' numbers among all

    def lost(self, at: Floats, log_delta: Floats) -> Floats:
        """log of the rounding relative to δ on the line at each point; [E, X]."""
        a, size = self.bounds.points, self.bounds.log_moment
        pull = np.multiply.outer(at, a)
        units = self.noise + UNIT * (16 + np.abs(size) + 5 * np.abs(pull))
        # the terms' sum, were the integrand normal with its own curvature at each point
        bend = self.bend + 1 / a**2 + 1 / (1 + a) ** 2
        terms = size - np.log(a) - np.log1p(a) - 0.5 * np.log(bend) + _NORMAL
        lost: Floats = terms - pull - log_delta[:, None] + np.log(units)
        return lost

    @property
    def hardly(self) -> Floats:
        """log of what a line at each point loses that has no terms much larger than their sum."""
        least = np.log(self.noise + _SUMMED * UNIT)
        result: Floats = np.minimum(least + _HARDLY, _PROMISED)
        return np.maximum(result, least + 1) if self.lowers is None else result

    def period(self, at: Floats, log_delta: Floats) -> Floats:
        """τ, so that the aliases of the line at each point are negligible; [E, X]."""
        a, allowed = self.bounds.points, log_delta[:, None] + PRECISION
        ahead = np.maximum(math.log(self.mass) - allowed + _TWICE, 1.0)
        enough = np.maximum(self.bounds.constant - np.multiply.outer(at, a) - allowed + _TWICE, 1.0)
        behind = np.full((len(at), len(a)), math.inf)
        for k in range(1, min(PER_OCTAVE * _OCTAVES, len(a) - 1) + 1):
            np.minimum(behind[:, :-k], enough[:, k:] / (a[k:] - a[:-k]), out=behind[:, :-k])
        result: Floats = np.maximum(behind, np.maximum(ahead, _TWICE) / a)
        return result

    def heights(self, bands: Bands, level: Floats) -> Floats:
        """About where lines end: where the losses below a band have turned, or its own at its windows; as `level`."""
        size = np.maximum(self.bounds.log_moment - level, _LEAST)
        found: Floats = _ROOM * np.sqrt(2 * size / np.maximum(self.bulk, _NOTHING))
        if self.lowers is None:
            return found
        exponent = size - np.log(math.pi * self.bounds.points)
        return np.minimum(found, self.edge(bands, float(exponent.min(axis=-1).max())))

    def edge(self, bands: Bands, exponent: float) -> float:
        """About where all losses of a band have turned, and a line has fallen by e^exponent."""
        assert self.lowers is not None
        return _EDGE * bands.height(self.uppers, self.lowers, max(exponent, _LEAST))

    def height(self, bands: Bands, place: int, level: float) -> tuple[float, bool]:
        """`heights` at one point, and whether that is for the losses below the band."""
        a, size = float(self.bounds.points[place]), float(self.bounds.log_moment[place]) - level
        found = _ROOM * math.sqrt(2 * max(size, _LEAST) / max(float(self.bulk[place]), _NOTHING))
        edge = math.inf if self.lowers is None else self.edge(bands, size - math.log(math.pi * a))
        return min(found, edge), found < edge

    def ahead(self, place: int, end: float) -> float:
        """A bound of log |D|, or |A|, over πu, at some heights u beyond the end of the line at a point.

        What turns too far from one s to the next is taken as if it did not cancel.
        """
        u = end * _AHEAD
        base, higher, gained = np.zeros((3, len(u)))
        for k, losses in enumerate(self.losses):
            upper, row, count = self.uppers[k], int(self.rows[place]), losses.leaf.count
            low = upper if self.lowers is None else self.lowers[k]
            left = np.abs(np.diff(losses.excess, append=losses.excess[-1])) * u[:, None] > _TURNED
            turns = np.where(left, -1.0, turn(np.multiply.outer(u, losses.excess)))
            tilted = losses.grown[row] + np.exp(losses.log_weight)
            sizes = []
            for window in (low, upper):
                inside = tilted * window.at(losses.places)
                whole = 1 + net_of(losses.near(window), losses.leaf.missing(window))[row]
                sizes.append(np.abs(whole + turns @ inside) + left @ inside)
            base += count * np.log(sizes[0])
            higher += count * np.log(sizes[1])
            if low != upper:
                between = tilted * upper.less(low, losses.places)
                share = (np.abs((1 + turns) @ between) + left @ between) / sizes[0]
                with np.errstate(divide="ignore", invalid="ignore"):
                    gained -= count * np.log1p(-np.where(share < 1, share, 1.0))
        if self.lowers is not None:
            with np.errstate(over="ignore", divide="ignore"):
                grown = np.where(gained < _MOST, np.log(np.expm1(gained)), math.inf)
            base = np.minimum(base + grown, np.logaddexp(base, higher))
        return float((base - np.log(math.pi * u)).max())

    def nodes(self, bands: Bands, at: Floats, log_delta: Floats) -> float:
        """How many a line takes that serves one ε, at most; infinite where at some ε none does.

        It has to lose little, or hardly more than it must, and to have aliases that are no trouble.
        """
        matters = self.bounds.chernoff(at) > log_delta + PRECISION
        if not matters.any():
            return 0.0
        at, log_delta = at[matters], log_delta[matters]
        a, period = self.bounds.points, self.period(at, log_delta)
        good = (self.lost(at, log_delta) <= np.maximum(MOST_LOST - 1, self.hardly)) & (
            period * a <= long_period(log_delta)[:, None]
        )
        height = self.heights(bands, log_delta[:, None] + PRECISION + np.multiply.outer(at, a))
        counts = np.where(good, period * height, math.inf)
        return float(counts.min(axis=1).max()) / (2 * math.pi)


def long_period(log_delta: Floats) -> Floats:
    """τ c from which on a line is too long: some times what δ <= 1 asks for."""
    result: Floats = _LONG * (_TWICE - PRECISION - log_delta)
    return result


class Levels:
    """The levels of one curve, from the highest on, with all that their sums at real points tell."""

    def __init__(self, bands: Bands, at: Floats, log_delta: Floats) -> None:
        self.bands, self.above, self.steps = bands, 0.0, _STEPS
        self.level, self.windows = math.inf, [ALL] * len(bands.leaves)
        if not bands.added:
            self.level, self.above = bands.top(float(log_delta.min()) + PRECISION)
            self.windows = bands.windows(self.level)
        both = zip(bands.leaves, self.windows, strict=True)
        low = -math.log2(max(leaf.range(window) for leaf, window in both)) - _BELOW
        high = max(math.log2(max(float(at[-1]), 0.0) / bands.spread**2 + 1 / bands.spread) + _ABOVE, low + 2)
        self.points = 2.0 ** np.arange(low, high, 1 / PER_OCTAVE)
        both = zip(bands.leaves, self.windows, strict=True)
        self.losses = [Losses.of(leaf, self.points, window) for leaf, window in both]

    def whole(self) -> Part:
        """A of the present level."""
        log_moment, noise, bend = np.zeros((3, len(self.points)))
        usable = np.ones(len(self.points), dtype=np.bool_)
        for losses, window in zip(self.losses, self.windows, strict=True):
            held, count = losses.near(window), losses.leaf.count
            net = net_of(held, losses.leaf.missing(window))
            log_moment += count * np.log1p(net)
            noise += count * self._noise(losses.leaf, held) / (1 + net)
            bend += count * np.maximum(held.square - held.mean**2, 0.0)
            usable &= held.good
        _told(usable, 1.0)
        kept = log_moment[usable]
        bounds, rows = Reals(self.points[usable], kept, kept), np.flatnonzero(usable)
        return Part(self.windows, None, bounds, 1.0, noise[usable], bend[usable], bend[usable], self.losses, rows)

    def _noise(self, leaf: Leaf, held: Held) -> Floats:
        """The rounding of a − 1 on a line: of its sums, and of e by its exponents."""
        result: Floats = UNIT * (_SUMMED * held.rough + 2 * leaf.exponents * self.points * np.sqrt(held.square))
        return result

    def lowered(self, at: Floats, log_delta: Floats) -> Part:
        """D between the present level and a next one, to which this goes down: as far as lines serve at these ε."""
        upper, first, steps = self.windows, self.level, []
        for _ in range(min(self.steps + 1, _STEPS)):
            self.level = self.bands.below(self.level, self.windows)
            self.windows = self.bands.windows(self.level)
            steps.append((self.level, self.windows))
        for self.steps in range(len(steps), 0, -1):
            self.level, self.windows = steps[self.steps - 1]
            found = self._band(upper)
            if found.nodes(self.bands, at, log_delta) <= _MOST_NODES:
                return found
        self.steps = 0
        self.level = math.sqrt(self.level * first)  # the longer line of half a step would take more time than two
        self.windows = self.bands.windows(self.level)
        return self._band(upper)

    def _band(self, upper: list[Window]) -> Part:
        """D between these windows and the present ones."""
        gained, base, noise, bend, bulk = np.zeros((5, len(self.points)))
        usable, mass = np.ones(len(self.points), dtype=np.bool_), 0.0
        for losses, high, low in zip(self.losses, upper, self.windows, strict=True):
            held, leaf = losses.near(low), losses.leaf
            net = net_of(held, leaf.missing(low))
            base += leaf.count * np.log1p(net)
            noise += leaf.count * self._noise(leaf, held) / (1 + net)
            bulk += leaf.count * np.maximum(held.square - held.mean**2, 0.0)
            if high != low:
                more = losses.held(high.less(low, losses.places))
                grown = leaf.count * np.log1p((more.net + more.some) / (1 + net))
                gained += grown
                bend += (1 + grown) * more.square - more.mean**2
                mass += leaf.count * more.some
                usable &= more.good
        with np.errstate(over="ignore", divide="ignore"):
            total = base + np.where(gained > 30, gained, np.log(np.expm1(np.minimum(gained, 30.0))))
        usable &= np.isfinite(total)
        _told(usable, mass)
        noise = noise + 2 * _SUMMED * UNIT * (1 + gained)
        bounds = Reals(self.points[usable], base[usable], total[usable])
        bend, rows = np.maximum(bulk + bend, 0.0), np.flatnonzero(usable)
        found = noise[usable], bend[usable], bulk[usable]
        return Part(upper, self.windows, bounds, min(mass, 1.0), *found, self.losses, rows)


def _told(usable: NDArray[np.bool_], mass: float) -> None:
    if not (usable.any() and mass > 0):
        raise ArithmeticError("no point of the table tells of these losses")


def net_of(held: Held, missing: float) -> Floats:
    """a − 1."""
    result: Floats = np.maximum(held.net - missing, -0.999)
    return result
