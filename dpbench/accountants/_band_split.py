"""What bands come to: one line's sum, the masses that parity takes from each other, and all of them near one ε.

The letters are those of `_bands`, which says what the errors are made of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpbench.accountants._band_line import Reals
from dpbench.accountants._inversion import Table
from dpbench.accountants._loss_leaf import UNIT, Floats

PROBES = 14  # points at which |D| is looked at before its line is summed
LEAST = -740.0


@dataclass(frozen=True)
class Piece:
    """One line's sum, as a function of ε'."""

    table: Table
    real: float
    period: float
    rest: float
    mass: float
    bounds: Reals
    nodes: int
    lost: float  # log of the terms' size over δ

    def __call__(self, excess: Floats) -> tuple[Floats, Floats, Floats]:
        """The value, its derivative and the bound of its error."""
        total, slope, wrong = self.table(excess, excess * 0)
        rest = np.exp(np.minimum(self.rest - self.real * excess, 700.0))
        return total, slope, wrong + rest + np.exp(np.clip(self._alias(excess), LEAST, 700.0))

    def _alias(self, excess: Floats) -> Floats:
        bounds, c, period = self.bounds, self.real, self.period
        above = bounds.points > c * (1 + 1e-9)
        gap = (bounds.points[above] - c) * period
        ahead = math.log(self.mass) - c * period - math.log(-math.expm1(-c * period))
        behind = bounds.constant[above] - gap - np.log(-np.expm1(-gap))
        found = (behind - np.multiply.outer(excess, bounds.points[above])).min(axis=-1, initial=math.inf)
        result: Floats = np.logaddexp(ahead, found)
        return result


@dataclass(frozen=True)
class Lay:
    """Where a line is laid: Re z, τ, log of what the rest of it may be without e^(−cε'), and log of its terms over δ.

    `height` is about where it ends, 0 where that is not known, and is looked at below and above in so many `probes`.
    """

    real: float
    period: float
    level: float
    lost: float = 0.0
    height: float = 0.0
    probes: int = PROBES


@dataclass(frozen=True)
class Parity:
    """A(0) − e^ε' A(−1): log A(0) and log A(−1)/A(0); what it leaves out is bounded at `bounds`, those of −Σe."""

    log_mass: float
    log_ratio: float
    wrong: float  # error of log A(−1)/A(0)
    count: float  # of all releases, each of which rounds A(0)
    bounds: Reals

    def __call__(self, excess: Floats) -> tuple[Floats, Floats, Floats]:
        """The value, its derivative and the bound of its error."""
        mass = math.exp(self.log_mass)
        value = -mass * np.expm1(excess + self.log_ratio)
        slope = value - mass
        off = mass * (self.wrong + UNIT * 8 * np.abs(excess)) + 8 * UNIT * self.count * np.abs(value)
        return value, slope, off + np.exp(np.clip(self.log_rest(excess), LEAST, 700.0))

    def log_rest(self, excess: Floats) -> Floats:
        """E[(e^(ε' − Σe) − 1)₊] <= A(−a) e^(aε') ((a − 1)/a)^a / (a − 1) for every a > 1."""
        above = self.bounds.points > 1
        a = self.bounds.points[above]
        constant = self.bounds.log_moment[above] + a * np.log1p(-1 / a) - np.log(a - 1)
        found: Floats = (constant + np.multiply.outer(excess, a)).min(axis=-1, initial=math.inf)
        return found


@dataclass(frozen=True)
class Split:
    """δ near one ε: pieces, the bounds of what was dropped, and the mass above the highest level."""

    end: float
    pieces: tuple[Piece | Parity, ...]
    dropped: tuple[Reals, ...]
    above: float
    target: float

    @property
    def nodes(self) -> int:
        """Of all lines."""
        return sum(piece.nodes for piece in self.pieces if isinstance(piece, Piece))

    def __call__(self, epsilon: Floats) -> tuple[Floats, Floats, Floats]:
        """δ, its derivative and a bound of its error, at several ε."""
        excess = epsilon - self.end
        total, slope, error = epsilon * 0, epsilon * 0, epsilon * 0 + self.above
        with np.errstate(over="ignore", invalid="ignore"):  # far from what the lines were made for
            for piece in self.pieces:
                value, rise, wrong = piece(excess)
                total, slope, error = total + value, slope + rise, error + wrong
        for bounds in self.dropped:
            error = error + np.exp(bounds.chernoff(excess))
        return total, slope, error + 4 * UNIT * np.abs(total)
