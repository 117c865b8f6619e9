"""An integral along one line by the trapezoidal rule, and functions that keep their digits near 0."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpbench.accountants._loss_leaf import UNIT, Complex, Floats
from dpbench.accountants._projections_density import log1p
from dpbench.accountants._projections_panels import expm1

_SERIES = 0.05


def log_expm1(x: Complex) -> Complex:
    """log(e^x − 1)."""
    large = x.real > 30
    near = np.log(expm1(np.where(large, 1.0, x)))
    return np.asarray(np.where(large, x + log1p(-np.exp(-np.where(large, x, 31.0))), near))


def bent_log(m: Floats) -> Floats:
    """log(1 − m) + m to its own relative digits."""
    series = sum(-(m**k) / k for k in range(12, 1, -1))
    return np.asarray(np.where(m < _SERIES, series, np.log1p(-m) + m))


def bent_exp(x: float) -> float:
    """e^x − 1 − x to its own relative digits."""
    return sum(x**k / math.factorial(k) for k in range(12, 1, -1)) if abs(x) < _SERIES else math.expm1(x) - x


@dataclass(frozen=True)
class Line:
    """One line c + iu: nodes, log of the transform without e^(−zε) / (z(z+1)), its error, and the bounds of aliases:
    of those ahead log and slope in ε, of those behind the same at many points."""

    z: Complex
    weight: Floats
    log_moment: Complex
    error: Floats
    ahead: tuple[float, float]
    behind: tuple[Floats, Floats]
    rest: float
    large: bool

    def __call__(self, epsilon: float) -> tuple[float, float, float]:
        """The integral, its derivative in ε, and a bound of its error."""
        terms = self.weight * np.exp(self.log_moment - self.z * epsilon) / (self.z * (1 + self.z))
        noise = self.error + UNIT * (8 + np.abs(self.z * epsilon) + np.abs(self.log_moment))
        level, slopes = self.behind
        alias = np.logaddexp(self.ahead[0] + self.ahead[1] * epsilon, (level + slopes * epsilon).min(initial=math.inf))
        rest = self.rest - float(self.z[0].real) * epsilon
        error = float((np.abs(terms) * noise).sum()) + math.exp(min(alias, 700.0)) + math.exp(min(rest, 700.0))
        return float(terms.real.sum()), float((-self.z * terms).real.sum()), error


def least_bound(chernoff: tuple[Floats, Floats], epsilon: float) -> float:
    """log of the least Chernoff bound: of orders and of their logarithms at ε = 0."""
    found = chernoff[1] - chernoff[0] * epsilon
    return float(np.min(found, where=np.isfinite(found), initial=math.inf))
