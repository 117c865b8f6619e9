"""The transform of one band of losses, or of all below a level: at real points, and on a line Re z = c.

| here | meaning |
| --- | --- |
| A, D | E_P[e^(zΣe)] with every release in its upper window; that less the same with the lower windows |
| a, B | one release's ∫ p W e^(ze) with the lower window, and with the upper one less the lower one |

D = Π a^T · (Π (1 + B/a)^T − 1), without cancellation. Without lower windows D is A.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.accountants._band_leaf import Leaf, Window
from dpbench.accountants._complex import expm1, joined, log, log1p
from dpbench.accountants._leaf_family import turns_of
from dpbench.accountants._loss_leaf import UNIT, Complex, Floats
from dpbench.accountants._work import spend

_MOST_EXPONENT = 690.0
_SUMMED = 64  # units in the last place of a sum over panels; tests hold it to that
_LARGE = 300.0  # log of B/a beyond which 1 is nothing beside it
_CLOSE, _STEEP = 0.5, 690.0  # log M up to which M − 1 is summed, and the largest exponent of its terms
_PER_OCTAVE = 3
_BELOW, _ABOVE = 8, 9  # octaves of real points below and above 1 over the range of a loss


@dataclass(frozen=True)
class Part:
    """Nodes of one release: e, p W times the rule's weight, and what W leaves out of P; `whole` where M − 1 is summed.

    A band is not near 1: its sums are taken as they are.
    """

    excess: Floats
    weight: Floats
    missing: float
    exponents: float
    whole: bool

    def real(self, points: Floats) -> Floats:
        """The logarithm at real points."""
        spend(2 * points.size * self.excess.size)  # one large matrix: memory is slower than exponentials
        exponent = np.multiply.outer(points, self.excess)
        top = exponent.max(axis=1)
        with np.errstate(divide="ignore"):
            scaled = exponent - top[:, None]
            np.maximum(scaled, -_MOST_EXPONENT, out=scaled)
            found: Floats = top + np.log(np.exp(scaled) @ self.weight)
        if self.near:
            close = (np.abs(found) < _CLOSE) & (top < _STEEP)  # p W e^(ze) is p W and a little
            found[close] = np.log1p(np.expm1(exponent[close]) @ self.weight - self.missing)
        return found

    def line(self, real: float, imaginary: Floats) -> tuple[Complex, Floats]:
        """The logarithm at real + i·imaginary, and a bound of its error."""
        exponent = real * self.excess
        top = float(exponent.max())
        close = self.near and top < _STEEP and abs(float(self.real(np.array([real]))[0])) < _CLOSE
        shift = 0.0 if close else top
        tilted = self.weight * np.exp(np.maximum(exponent - shift, -_MOST_EXPONENT))
        turns, turned = turns_of(self.excess[None, :], tilted[None, :], imaginary)
        if close:
            grown = self.weight * np.expm1(exponent)
            start, rough = float(grown.sum()) - self.missing, float(np.abs(grown).sum()) + self.missing
        else:
            start = rough = float(tilted.sum())
        length = float(tilted @ np.abs(self.excess))
        turned = np.minimum(turned[0], 4 * float(tilted.sum()))
        # e itself is wrong by its exponents' rounding; e^(ze) by that times |z e|
        wrong = UNIT * (_SUMMED * (rough + turned) + self.exponents * (real + imaginary) * length)
        value = start + turns[0]
        whole = 1 + value if close else value
        size = np.maximum(np.abs(whole), 1e-290)
        logs = log1p(value) if close else joined(np.log(size), np.angle(value))
        return logs + shift, wrong / size

    @property
    def near(self) -> bool:
        """Whether sums are those of e^(ze) − 1."""
        return self.whole and self.missing < 0.5


def part(leaf: Leaf, real: float, turns: float, upper: Window, lower: Window | None = None) -> Part:
    """The nodes of one release in its window, or between two."""
    s, log_weight = leaf.nodes(real, turns, upper, lower)
    inside = upper.at(s) if lower is None else upper.less(lower, s)
    weight = np.exp(log_weight) * inside
    return Part(leaf.moved(s), weight, leaf.missing(upper), leaf.exponents, lower is None)


@dataclass
class Band:
    """A, or D where lower windows are given, with nodes that serve Re z <= real and |Im z| <= turns."""

    leaves: Sequence[Leaf]
    uppers: Sequence[Window]
    lowers: Sequence[Window] | None
    real: float
    turns: float

    def __post_init__(self) -> None:
        below = self.uppers if self.lowers is None else self.lowers
        self.near = [part(leaf, self.real, self.turns, window) for leaf, window in zip(self.leaves, below, strict=True)]
        self.bands: list[Part | None] = [None] * len(self.leaves)
        if self.lowers is not None:
            for k, (leaf, upper, lower) in enumerate(zip(self.leaves, self.uppers, self.lowers, strict=True)):
                if upper != lower:
                    self.bands[k] = part(leaf, self.real, self.turns, upper, lower)

    @property
    def cells(self) -> int:
        """Points of all panels."""
        return sum(len(one.excess) for one in [*self.near, *self.bands] if one is not None)

    @property
    def counts(self) -> list[float]:
        """T of every release."""
        return [leaf.count for leaf in self.leaves]

    def log_at(self, points: Floats) -> tuple[Floats, Floats]:
        """log A of the lower windows at real points, and log D with |p W| in place of p W: no less than it."""
        base = np.zeros(len(points))
        gained = np.zeros(len(points))
        for count, near, band in zip(self.counts, self.near, self.bands, strict=True):
            own = near.real(points)
            base = base + count * own
            if band is not None:
                absolute = Part(band.excess, np.abs(band.weight), 0.0, band.exponents, False)
                with np.errstate(invalid="ignore"):
                    gained = gained + count * np.logaddexp(0.0, absolute.real(points) - own)
        gained[np.isnan(gained)] = math.inf
        if self.lowers is None:
            return base, base
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            total = base + np.where(gained > 30, gained, np.log(np.expm1(np.minimum(gained, 30.0))))
            return base, np.where(np.isnan(total), math.inf, total)

    def mass(self) -> float:
        """The total variation of D: at most 1."""
        if self.lowers is None:
            return 1.0
        parts = zip(self.counts, self.bands, strict=True)
        return min(1.0, math.fsum(count * float(np.abs(one.weight).sum()) for count, one in parts if one is not None))

    def log_line(self, real: float, imaginary: Floats) -> tuple[Complex, Floats]:
        """log D(real + iu), and a bound of its error."""
        base = np.zeros(len(imaginary), dtype=np.complex128)
        gained = np.zeros(len(imaginary), dtype=np.complex128)
        error, wrong = np.zeros(len(imaginary)), np.zeros(len(imaginary))
        for count, near, band in zip(self.counts, self.near, self.bands, strict=True):
            own, off = near.line(real, imaginary)
            base += count * own
            error += count * off
            if band is not None:
                inside, its = band.line(real, imaginary)
                apart = inside - own
                large = apart.real > _LARGE
                share = np.exp(np.where(large, 0.0, apart))
                gained += count * np.where(large, apart, log1p(share))
                wrong += count * np.where(large, 1.0, np.abs(share / (1 + share))) * (its + off)
        if self.lowers is None:
            return base, error
        grown = expm1(np.where(gained.real > 600, 600.0, gained))
        zero = grown == 0
        result = base + np.where(gained.real > 600, gained, np.where(zero, -1e4, log(np.where(zero, 1.0, grown))))
        factor = np.where(zero, 0.0, np.exp(np.minimum(gained.real, 600.0)) / np.maximum(np.abs(grown), 1e-300))
        return result, error + wrong * factor


@dataclass(frozen=True)
class Reals:
    """log of A's or D's bound at real points."""

    points: Floats
    base: Floats
    log_moment: Floats

    def chernoff(self, excess: Floats) -> Floats:
        """log of the least bound of E[(1 − e^(ε − L))₊] at several ε less the end of the losses."""
        bound: Floats = (self.constant - np.multiply.outer(excess, self.points)).min(axis=-1, initial=0.0)
        return np.minimum(bound, 0.0)

    @property
    def saddles(self) -> tuple[Floats, Floats]:
        """ε less the losses' origin, ascending, and log δ there by the saddle point."""
        a = self.points
        if len(a) < 3:
            return a[:0], a[:0]
        line = self.log_moment - np.log(a) - np.log1p(a)
        at = np.gradient(line, a)
        bend = np.gradient(at, a)
        kept = np.flatnonzero(bend > 0)
        level = line[kept] - a[kept] * at[kept] - 0.5 * np.log(2 * math.pi * bend[kept])
        steps = np.concatenate([[True], np.diff(np.maximum.accumulate(at[kept])) > 0])
        falls = np.minimum.accumulate(level)
        return at[kept][steps], falls[steps]

    @property
    def constant(self) -> Floats:
        """The bound of δ at 0."""
        a = self.points
        return self.log_moment - a * np.log1p(1 / a) - np.log1p(a)  # a log a − (1 + a) log(1 + a)


def reals(
    leaves: Sequence[Leaf], uppers: Sequence[Window], lowers: Sequence[Window] | None, least: float
) -> tuple[Band, Reals]:
    """The bounds at points around 1 over the range of a loss, or above where `least` is smaller than that."""
    both = zip(leaves, uppers, strict=True)
    largest = max(leaf.range(window) for leaf, window in both)
    octaves = math.ceil(math.log2(max(largest / least, 1.0))) + _ABOVE
    points = 2.0 ** (np.arange(-_BELOW * _PER_OCTAVE, octaves * _PER_OCTAVE + 1) / _PER_OCTAVE) / largest
    band = Band(leaves, uppers, lowers, float(points[-1]), 0.0)
    base, moment = band.log_at(points)
    kept = np.isfinite(moment)
    return band, Reals(points[kept], base[kept], moment[kept])
