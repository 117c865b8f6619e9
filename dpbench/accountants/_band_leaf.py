"""One release whose transform is taken band by band: its excess over the flat end, windows by its size, and nodes.

| here | meaning |
| --- | --- |
| s | the released coordinate over σ; for "add" its negative, so that |e| increases with s |
| e(s) | the loss less the loss where nobody is drawn (`_few_pair`); for "add" e <= 0, for a replaced record e is odd |
| p(s) | the density of P in s |
| W(s) | a window Φ((cut − s)/width): what is left of it has |e| below a level b, about |
| κ | d log |e'| / ds at most, to the left of a cut |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpbench.accountants._few_pair import Pair
from dpbench.accountants._few_releases import rule
from dpbench.accountants._leaf_family import needed
from dpbench.accountants._loss_leaf import Floats
from dpbench.accountants._work import spend

SHARE, _WIDEST = 0.15, 0.4  # width of a window times κ, and at most
_REACH = 9.5  # widths beyond a cut within which its window is neither 0 nor 1
_LEFT, _RIGHT = 45.0, 45.0  # where the table of e begins, and how far beyond the largest mean of a mixture it ends
_NEGLIGIBLE = 44.0  # e^-44 is below 1e-19
_DAMPED = 50.0
_USUAL = 10.0
_MANY, _LOUD, _NOTHING = 3, 1.0, 700.0
_ENDS = 10.0  # a window ends, by a step of 1e-23, where e^(ze) would outgrow it
_LEAST_STEP = 0.5  # of κ times a step from a cut to the next
_TABLE, _BREAKS = 0.05, 1500


@dataclass(frozen=True)
class Window:
    """Φ((cut − s)/width); everything where cut is infinite."""

    cut: float = math.inf
    width: float = 1.0

    @property
    def all(self) -> bool:
        """Whether nothing is left out."""
        return math.isinf(self.cut)

    def at(self, s: Floats) -> Floats:
        """Its values."""
        from scipy.special import ndtr

        if self.all:
            return np.ones_like(s)
        a = (self.cut - s) / self.width
        return np.where(a < -_ENDS, 0.0, ndtr(a))

    def less(self, other: Window, s: Floats) -> Floats:
        """This window less a lower one, without cancellation."""
        from scipy.special import ndtr

        b = (other.cut - s) / other.width
        if self.all:
            return np.where(b < -_ENDS, 1.0, ndtr(-b))
        a = (self.cut - s) / self.width
        return np.where(
            b > 0, ndtr(-b) - ndtr(-a), np.where(a < -_ENDS, 0.0, ndtr(a)) - np.where(b < -_ENDS, 0.0, ndtr(b))
        )


ALL = Window()


@dataclass
class Leaf:
    """One release in one direction, `count` times."""

    pair: Pair
    count: float
    _known: dict[float, Window] = field(default_factory=dict, repr=False)

    @property
    def _turned(self) -> float:
        return -1.0 if self.pair.kind == "add" else 1.0

    @property
    def end(self) -> float:
        """The loss where nobody is drawn; 0 where there is no such end."""
        if self.pair.kind == "replace" or self.pair.members[0]:
            return 0.0
        return self._turned * self.pair.log_weights[0]

    def excess(self, s: Floats) -> tuple[Floats, Floats]:
        """e and its derivative."""
        factor = self._turned * self.pair.sigma
        value, slope = self.pair.excess(factor * s)
        return value, factor * slope

    @cached_property
    def centred(self) -> bool:
        """Whether the loss itself is taken for e: where many releases' losses would cancel against their ends."""
        flat = self.pair.kind != "replace" and not self.pair.members[0]
        return flat and self.count >= _MANY and self.pair.sigma >= _LOUD

    @property
    def origin(self) -> float:
        """The loss where `moved` is 0."""
        return 0.0 if self.centred else self.end

    def moved(self, s: Floats) -> Floats:
        """The loss less `origin`."""
        if not self.centred:
            return self.excess(s)[0]
        variance, x = self.pair.sigma**2, self.pair.sigma * s
        grown = np.zeros_like(s)
        for k, log_weight in zip(self.pair.members[1:], self.pair.log_weights[1:], strict=True):
            if log_weight > -_NOTHING:
                grown += np.expm1(np.minimum((2 * k * x - k * k) / (2 * variance), 700.0)) * math.exp(log_weight)
        far = self.excess(s)[0] + self.end
        return np.where(np.abs(grown) < 0.5, self._turned * np.log1p(np.maximum(grown, -0.75)), far)

    def log_density(self, s: Floats) -> Floats:
        """log p."""
        return self.pair.log_density(self._turned * self.pair.sigma * s) + math.log(self.pair.sigma)

    @cached_property
    def table(self) -> tuple[Floats, Floats, Floats, Floats]:
        """s, e, its derivative and log p."""
        most = self.pair.members[-1] / self.pair.sigma if self.pair.kind != "add" else 0.0
        step = min(_TABLE, 0.1 * self.pair.sigma)
        spend(math.ceil(8 * (most + _RIGHT + _LEFT) / step))  # before memory is taken
        s = np.arange(-_LEFT, most + _RIGHT, step)
        return s, *self.excess(s), self.log_density(s)

    @property
    def exponents(self) -> float:
        """The largest exponent of which an e is made: its rounding is that of e, relative to it."""
        return 40.0 if self.centred else max(abs(weight) for weight in self.pair.log_weights[:2]) + 64

    def missing(self, window: Window) -> float:
        """What a window leaves out of P."""
        from scipy.special import ndtr

        if window.all:
            return 0.0
        width = math.hypot(1.0, window.width)
        if self.pair.kind == "add":
            return float(ndtr(-window.cut / width))
        means = np.array(self.pair.members) / self.pair.sigma
        return float(np.exp(self.pair.log_weights) @ ndtr((means - window.cut) / width))

    def top(self, least: float) -> float:
        """|e| beyond which P has `least` at most, about."""
        s, e, _, _ = self.table
        return float(np.interp(self.top_place(least), s, np.abs(e)))

    def top_place(self, least: float) -> float:
        """s beyond which P has `least` at most, about."""
        s, tail = self._tail
        return float(np.interp(-math.log(max(least, 1e-320)), -tail, s))

    @cached_property
    def _tail(self) -> tuple[Floats, Floats]:
        """s and log of what P has beyond a window that ends there, of the width that windows of one draw have."""
        from scipy.special import log_ndtr

        s = self.table[0]
        s = s[s >= 0]
        width = math.hypot(1.0, min(SHARE * self.pair.sigma, _WIDEST))
        if self.pair.kind == "add":
            return s, log_ndtr(-s / width)
        spend(len(self.pair.members) * len(s))
        tail = np.full(len(s), -math.inf)
        for member, weight in zip(self.pair.members, self.pair.log_weights, strict=True):
            tail = np.logaddexp(tail, weight + log_ndtr((member / self.pair.sigma - s) / width))
        return s, np.minimum.accumulate(tail)

    def range(self, window: Window) -> float:
        """Between the losses that are not very rare, with all that a window leaves."""
        s, e, _, _ = self.table
        low, high = np.interp([-_USUAL, min(window.cut, self.highest)], s, e)
        if self.pair.kind == "replace":
            low = -high  # losses far below 0 are like those of "add": the more, the less they count
        return abs(float(high - low))

    def below(self, window: Window, ratio: float, fall: float) -> float:
        """The next level: lower by this ratio, or where the normal density has grown by e^fall; not by little."""
        s, e, _, _ = self.table
        steep = self._steepness(window.cut)
        step = (
            min(math.log(ratio), max(fall * steep / max(window.cut, 1e-9), _LEAST_STEP))
            if window.cut > 0
            else math.log(ratio)
        )
        return float(np.interp(window.cut - step / steep, s, np.abs(e)))

    @cached_property
    def variance(self) -> float:
        """Of the losses that are not very rare."""
        s, e, _, density = self.table
        kept = slice(*np.searchsorted(s, [-_USUAL, self.top_place(1e-6)]))
        weight = np.exp(density[kept])
        weight /= weight.sum()
        mean = float(weight @ e[kept])
        return float(weight @ (e[kept] - mean) ** 2)

    @cached_property
    def highest(self) -> float:
        """s of a large loss that is not very rare."""
        return _USUAL if self.pair.kind == "add" else _USUAL + self.pair.members[-1] / self.pair.sigma

    def slow(self, real: float, height: float, exponent: float) -> float:
        """log of the P-mass, count times, with e^(real e), that has not turned away at Im z = `height`; −∞ for none."""
        if self.pair.kind == "replace" or self.pair.members[0]:
            return -math.inf
        s, e, slope, density = self.table
        width = self._window(0.0).width
        enough = needed(width * self._steepness(0.0), exponent) / width / height
        last = int(np.searchsorted(np.abs(slope), enough))
        if not last:
            return -math.inf
        moved = e[:last] + (self.end - self.origin)
        size = density[:last] + real * moved
        top = float(size.max())
        total = abs(complex((np.exp(size - top) * np.exp(1j * height * moved)).sum())) * float(s[1] - s[0])
        return self.count * (top + math.log(max(total, 1e-300)))

    def edge(self, window: Window, exponent: float) -> float:
        """|Im z| at which all above this window has fallen by e^exponent."""
        s, _, slope, _ = self.table
        turns = needed(window.width * self._steepness(window.cut), exponent)
        return turns / (float(np.interp(window.cut, s, np.abs(slope))) * window.width)

    def _window(self, cut: float) -> Window:
        return Window(cut, min(SHARE / self._steepness(cut), _WIDEST))

    def _steepness(self, s: float) -> float:
        """κ: the mean square of how many are drawn over the mean of it, at s."""
        sigma = self.pair.sigma
        moved = [(k, w) for k, w in zip(self.pair.members, self.pair.log_weights, strict=True) if k]
        k = np.array([one for one, _ in moved], dtype=np.float64)
        logs = np.array([w for _, w in moved]) + k * (s / sigma) - k * k / (2 * sigma * sigma)
        weights = k * np.exp(logs - logs.max())
        return float((weights @ k) / weights.sum()) / sigma

    def window(self, level: float) -> Window:
        """What has |e| below this level; e < `level` for a replaced record."""
        if level not in self._known:
            s, e, _, _ = self.table
            size = np.abs(e) if self.pair.kind != "replace" else e
            if level >= size[-1]:
                self._known[level] = ALL
            else:
                positive = size > 0
                cut = float(np.interp(math.log(level), np.log(size[positive]), s[positive]))
                self._known[level] = self._window(cut)
        return self._known[level]

    def nodes(self, real: float, turns: float, upper: Window, lower: Window | None = None) -> tuple[Floats, ...]:
        """s and log weight of Gauss-Legendre panels that serve p W e^(ze), Re z <= real and |Im z| <= turns.

        20 nodes on a panel of 1.2 of the normal density, 2.5 widths of a window, 14 radians or 8 units of exponent.

        W is `upper`, less `lower` where that is given; the weight holds p but not W.
        """
        s, e, slope, density = self.table
        with np.errstate(divide="ignore"):
            held = density + np.log(np.abs(upper.at(s) if lower is None else upper.less(lower, s)))
        matters = np.zeros(len(s), dtype=np.bool_)
        for tilt in (0.0, real):
            tilted = held + tilt * e
            matters |= tilted > tilted.max() - _NEGLIGIBLE
        kept = np.flatnonzero(matters)
        if not len(kept):
            raise ArithmeticError("nothing of a release is left between two windows")
        low, high = float(s[max(kept[0] - 1, 0)]), float(s[min(kept[-1] + 1, len(s) - 1)])
        at = np.linspace(low, high, _BREAKS)
        # where p W e^(real e) is far below its top, the sums at `real` do not see how fast it turns
        tilted = np.maximum(held + real * e, -1e300)
        steep, damped = np.interp(at, s, np.abs(slope)), np.interp(at, s, tilted.max() - tilted)
        pace = np.where(damped > _DAMPED, 0.0, turns / 14) + abs(real) / 8 / np.maximum(damped / _DAMPED, 1.0)
        rate = 1 / 1.2 + 1 / (1.5 * self.pair.sigma) + steep * pace
        for window in (upper, lower):
            if window is not None and not window.all:
                rate += np.where(np.abs(at - window.cut) < _REACH * window.width, 1 / (2.5 * window.width), 0.0)
        total = np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2 * np.diff(at))])
        count = max(2, math.ceil(total[-1]))
        breaks = np.interp(np.linspace(0, total[-1], count + 1), total, at)
        points, weights, _ = rule()
        half = np.diff(breaks)[:, None] / 2
        found = (breaks[:-1, None] + half * (points + 1)).ravel()
        return found, self.log_density(found) + np.log((half * weights).ravel())
