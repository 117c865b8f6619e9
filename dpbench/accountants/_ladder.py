"""log M at real points: the Chernoff bound of δ(ε), the saddle point, and how far a line's aliases may reach.

With τ = 2π/h the sum of the nodes c + ihk, without end, is Σ_m e^(−mcτ) δ(ε − mτ). With B(a) = M(a) e^(−aε) a^a
(1+a)^(−1−a) the Chernoff bound of δ(ε), which holds for every real ε, it exceeds δ(ε) by at most
B(a) e^(−(a−c)τ)/(1−e^(−(a−c)τ)) from m < 0, for any a > c, and B(a) e^(−(c−a)τ)/(1−e^(−(c−a)τ)) from m > 0, for any
a < c, where δ <= 1 gives e^(−cτ)/(1−e^(−cτ)) as well. (For sub-probabilities the same holds; their small mass counts.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpbench.accountants._loss_leaf import Floats

_SAME = 1e-9  # relative distance of points that are one


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
        # a log a − (1 + a) log(1 + a), which does not cancel where a is large
        return self.log_moment - a * epsilon - a * np.log1p(1 / a) - np.log1p(a)

    def log_bound(self, epsilon: Floats) -> Floats:
        """The logarithm of the least of these bounds, at several ε."""
        bound: Floats = (self.chernoff(0.0) - np.multiply.outer(epsilon, self.points)).min(axis=-1)
        return bound

    def line(self, epsilon: float) -> Floats:
        """log of the integrand at the points."""
        a = self.points
        return self.log_moment - a * epsilon - np.log(a) - np.log1p(a)

    def width(self) -> Floats:
        """The second derivative of the integrand's logarithm."""
        a = self.points
        return self.variance + 1 / a**2 + 1 / (1 + a) ** 2

    def log_alias(self, real: float, period: float, epsilon: Floats) -> Floats:
        """log of the bound of the aliases of a line, at several ε."""
        apart = np.abs(self.points / real - 1) > _SAME
        points = self.points[apart]
        gap = np.abs(points - real) * period
        fixed = self.chernoff(0.0)[apart] - gap - np.log(-np.expm1(-gap))
        bounds = fixed - np.multiply.outer(epsilon, points)
        below = int(np.searchsorted(points, real))
        certain = -real * period - math.log(-math.expm1(-real * period))  # δ <= 1
        behind = np.minimum(bounds[..., :below].min(axis=-1, initial=math.inf), certain)
        result: Floats = np.logaddexp(behind, bounds[..., below:].min(axis=-1))
        return result

    def first(self, count: int) -> Ladder:
        """The lowest points."""
        return Ladder(*(values[:count] for values in vars(self).values()))

    def joined(self, other: Ladder) -> Ladder:
        """This ladder and a higher one."""
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return Ladder(*(np.concatenate(pair) for pair in both))

    def merged(self, other: Ladder) -> Ladder:
        """Both ladders in one: a point that is in both, but for its rounding, once."""
        points, kept = np.unique(np.concatenate([self.points, other.points]), return_index=True)
        apart = np.diff(points, prepend=0.0) > _SAME * points
        points, kept = points[apart], kept[apart]
        both = list(zip(vars(self).values(), vars(other).values(), strict=True))[1:]
        return Ladder(points, *(np.concatenate(pair)[kept] for pair in both))


def saddle_point(ladder: Ladder) -> tuple[Floats, Floats]:
    """For each point a the ε whose integrand has its saddle there, and the saddle point's log δ(ε)."""
    a = ladder.points
    epsilon = ladder.mean - 1 / a - 1 / (1 + a)
    return epsilon, ladder.log_moment - a * epsilon - np.log(a) - np.log1p(a) - 0.5 * np.log(2 * np.pi * ladder.width())
