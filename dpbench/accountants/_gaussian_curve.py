"""The privacy curve of μ-GDP, δ(ε; μ) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), to about twelve digits everywhere.

With a = −ε/μ + μ/2, b = a − μ, φ the normal density and R = Φ/φ, e^ε = φ(a)/φ(b), so that δ = φ(a) (R(a) − R(b)).
The bracket is ∫_0^∞ e^(at − t²/2) (1 − e^(−μt)) dt, since R(x) = ∫_0^∞ e^(xt − t²/2) dt: for small μ, where the
difference would cancel, that integral is taken by Gauss-Legendre nodes. For a > 0, where δ is near one,
δ = 1 − φ(a) (R(−a) + R(b)). Everything stays in logarithms, so δ = 1e-300 is as good as δ = 0.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dpbench.accounting import Estimate, GuaranteeKind, check_delta, check_epsilon
from dpbench.events import Adjacency

_LOG_ROOT_TWO_PI = math.log(2 * math.pi) / 2
_SMALL_MU = 1.0  # below, the difference of the two terms loses digits
_DEPTH = 90.0  # the integral stops where its exponent has fallen by 45: e^-45 is below 1e-19


@dataclass(frozen=True)
class GaussianCurve:
    """The curve of μ-GDP for one `mu` in [0, inf]; `kind` says what the composition's own curve is to it.

    >>> round(GaussianCurve(1.0, "exact").delta(1.0).value, 6)
    0.126937
    """

    mu: float
    kind: GuaranteeKind
    adjacency: Adjacency = "add_or_remove"
    reason: str | None = None  # why mu is infinite

    def delta(self, epsilon: float) -> Estimate:
        """δ at `epsilon`, in [0, 1]; relative error below 1e-12 for μ up to 1000."""
        check_epsilon(epsilon)
        if self.mu == 0 or self.mu == math.inf:
            return self._estimate(1.0 if self.mu else 0.0)
        return self._estimate(min(math.exp(_log_delta(epsilon, self.mu)[0]), 1.0))

    def epsilon(self, delta: float) -> Estimate:
        """ε at `delta`, in [0, inf]; relative error below 1e-12, near 0 absolute. 0 where δ(0) <= `delta`."""
        check_delta(delta)
        if self.mu == 0 or self.mu == math.inf:
            return self._estimate(self.mu)
        return self._estimate(_epsilon(math.log(delta), self.mu))

    def _estimate(self, value: float) -> Estimate:
        if value == math.inf:
            return Estimate(value, reason=self.reason or "epsilon exceeds the largest double")
        return Estimate(value)


def _log_delta(epsilon: float, mu: float) -> tuple[float, float]:
    """log δ(ε; μ) and its slope in ε, which is −R(b) / (R(a) − R(b))."""
    scaled = epsilon / mu
    if scaled > 1e150:  # a² would overflow
        return -math.inf, -math.inf
    a, b = mu / 2 - scaled, -mu / 2 - scaled
    log_density = -a * a / 2 - _LOG_ROOT_TWO_PI
    below = _mills(b)
    if mu >= _SMALL_MU and a > 0:
        density = math.exp(log_density)
        log_delta = math.log1p(-density * (_mills(-a) + below))
        return log_delta, -below * math.exp(log_density - log_delta)
    bracket = _mills(a) - below if mu >= _SMALL_MU else _small_difference(a, mu)
    if bracket == 0:  # μ itself is next to the smallest double
        return -math.inf, -math.inf
    return log_density + math.log(bracket), -below / bracket


def _mills(x: float) -> float:
    """R(x) = Φ(x)/φ(x) for x <= 0; relative error about 1e-14."""
    if x > -5:
        return math.erfc(-x / math.sqrt(2)) / 2 * math.exp(x * x / 2 + _LOG_ROOT_TWO_PI)
    tail = 0.0  # Laplace's continued fraction 1/(y + 1/(y + 2/(y + 3/(y + ...)))), from its far end
    for k in range(60, 0, -1):
        tail = k / (tail - x)
    return 1 / (tail - x)


def _small_difference(a: float, mu: float) -> float:
    """R(a) − R(a − μ) = ∫_0^∞ e^(at − t²/2) (1 − e^(−μt)) dt for μ < 1, so a < 1/2."""
    nodes, weights = _nodes()
    end = _DEPTH / (math.sqrt(a * a + _DEPTH) - a)  # the root of t²/2 − at = 45
    t = end * nodes
    return end * float(np.dot(weights, np.exp(a * t - t * t / 2) * -np.expm1(-mu * t)))


@cache
def _nodes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    return (nodes + 1) / 2, weights / 2


def _epsilon(log_target: float, mu: float) -> float:
    """The ε at which log δ(ε; μ) = log_target, by Newton steps inside a bracket; 0 where δ(0) is below the target."""
    if _log_delta(0.0, mu)[0] <= log_target:
        return 0.0
    # δ(ε) <= Φ(a) <= e^(−a²/2) / 2 for a <= 0, which is below the target at this a
    low, high = 0.0, mu * (mu / 2 + math.sqrt(-2 * log_target))
    epsilon = high
    for _ in range(200):
        value, slope = _log_delta(epsilon, mu)
        excess = value - log_target
        if excess > 0:
            low = epsilon
        else:
            high = epsilon
        following = epsilon - excess / slope if slope else low
        if not low < following < high:
            following = low + (high - low) / 2
        if abs(following - epsilon) <= 2 * math.ulp(epsilon) or not low < following < high:
            return following
        epsilon = following
    return epsilon
