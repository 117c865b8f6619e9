"""The privacy curve of μ-GDP, δ(ε; μ) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), to about twelve digits everywhere.

With a = −ε/μ + μ/2, b = a − μ, φ the normal density and R = Φ/φ, e^ε = φ(a)/φ(b), so that δ = φ(a) (R(a) − R(b)).
The bracket is ∫_0^∞ e^(at − t²/2) (1 − e^(−μt)) dt, since R(x) = ∫_0^∞ e^(xt − t²/2) dt: for small μ, where the
difference would cancel, that integral is taken by Gauss-Legendre nodes. For a > 0, where δ is near one,
δ = 1 − φ(a) (R(−a) + R(b)). Everything stays in logarithms, so δ = 1e-300 is as good as δ = 0.1.

**Error of log δ.** With u = 2^-53, in the order in which they arise:
- ε/μ and μ, each with a few roundings, act as a relative change of ε and of μ: (8u + `mu_error`) times the two
  elasticities |ε ∂ log δ/∂ε| = ε e^ε Φ(b)/δ and μ ∂ log δ/∂μ = μ φ(a)/δ, both computed with δ itself;
- rounding a itself, a²/2 and its sum with the logarithms: 4u a² (δ above 1e-300 keeps a² below 1400);
- R, about 1e-14 relative (the continued fraction's tail is below 1e-16 from −5 on), amplified by the difference
  R(a) − R(b) where μ >= 1: by at most R(a)/(R(a) − R(b)), computed; where a > 0 these are errors of 1 − δ;
- the integral for μ < 1: its terms are positive and their exponents reach 45, hence 1e-14; its nodes leave less.
`log_error` adds these up; where kind is `exact`, they are the ends of the answer. Below δ = 1e-300, where doubles end,
the ends are 0 and 1e-299.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dpbench.events import Adjacency
from dpbench.privacy.accountants._work import within_limits
from dpbench.privacy.answers import (
    Estimate,
    GuaranteeKind,
    check_delta,
    check_epsilon,
)

_LOG_ROOT_TWO_PI = math.log(2 * math.pi) / 2
_SMALL_MU = 1.0  # below, the difference of the two terms loses digits
_UNIT = 2.0**-53
_DEEPEST = math.log(1e-300)
_LARGEST_MU = 1e75
_DEPTH = 90.0  # the integral stops where its exponent has fallen by 45: e^-45 is below 1e-19


@dataclass(frozen=True)
class GaussianCurve:
    """The curve of μ-GDP for one `mu` in [0, inf]; `kind` is the kind of its answers for a composition.

    >>> round(GaussianCurve(1.0, "exact").delta(1.0).value, 6)
    0.126937
    """

    mu: float
    kind: GuaranteeKind
    adjacency: Adjacency = "add_or_remove"
    reason: str | None = None  # why mu is infinite
    mu_error: float = 0.0  # relative, of mu itself

    @within_limits
    def delta(self, epsilon: float) -> Estimate:
        """δ at `epsilon`, in [0, 1]; relative error below 1e-12 for μ up to 1000, with ends where kind is `exact`."""
        epsilon = check_epsilon(epsilon)
        if self.mu == 0 or self.mu == math.inf:
            return self._estimate(1.0 if self.mu else 0.0, *([1.0 if self.mu else 0.0] * 2))
        log_delta = _log_delta(epsilon, self.mu)[0]
        value = min(math.exp(log_delta), 1.0)
        if self.kind != "exact":
            return self._estimate(value, value, value)
        if log_delta < _DEEPEST:
            return self._estimate(value, 0.0, math.exp(_DEEPEST + 2))
        error = self.log_error(epsilon)
        return self._estimate(value, math.exp(log_delta - error), math.exp(min(log_delta + error, 0.0)))

    @within_limits
    def epsilon(self, delta: float) -> Estimate:
        """ε at `delta`, in [0, inf]; relative error below 1e-12, near 0 absolute. 0 where δ(0) <= `delta`.

        Where kind is `exact` the ends are the roots for log δ moved by twice its error, and two more roundings.
        """
        delta = check_delta(delta)
        if self.mu == 0 or self.mu == math.inf:
            return self._estimate(self.mu, self.mu, self.mu)
        target = math.log(delta)
        value = _epsilon(target, self.mu)
        if self.kind != "exact" or value == math.inf:
            return self._estimate(value, value, value)
        error = 2 * self.log_error(value) + 4 * _UNIT * (1 - target)
        if error == math.inf:
            return self._estimate(value, 0.0, math.inf)
        low = _epsilon(target + error, self.mu) if target + error < 0 else 0.0
        high = _epsilon(target - error, self.mu)
        return self._estimate(value, min(low * (1 - 4 * _UNIT), value), max(high * (1 + 4 * _UNIT), value))

    def one_way(self, _direction: str) -> GaussianCurve:
        """The curve itself: both directions are alike."""
        return self

    def log_error(self, epsilon: float) -> float:
        """How far the computed log δ at `epsilon` may be from the true one, for δ above 1e-300 and 0 < μ < inf."""
        log_delta, slope = _log_delta(epsilon, self.mu)
        a = self.mu / 2 - epsilon / self.mu
        elasticity = self.mu * math.exp(min(-a * a / 2 - _LOG_ROOT_TWO_PI - log_delta, 700.0))
        inputs = (8 * _UNIT + self.mu_error) * (elasticity + epsilon * abs(slope))
        if self.mu >= _SMALL_MU and a > 0:  # δ is 1 less a product whose errors these are
            product = -math.expm1(log_delta) * math.exp(-log_delta)
            return inputs + (4 * _UNIT * a * a * product if product else 0.0) + 2e-14
        amplified = 1.0
        if self.mu >= _SMALL_MU:
            above, below = _mills(a), _mills(a - self.mu)
            amplified += above / (above - below) if above > below else math.inf
        return inputs + 4 * _UNIT * a * a + 2e-14 * amplified

    def _estimate(self, value: float, lower: float, upper: float) -> Estimate:
        reason = (self.reason or "epsilon exceeds the largest double") if value == math.inf else None
        if self.kind == "exact":
            return Estimate(value, lower, upper, reason)
        return Estimate(value, reason=reason)


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
    if bracket <= 0:  # μ itself is next to the smallest double
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


def upper_epsilon(log_delta: float, mu: float, mu_error: float) -> float:
    """An ε that is at least the true one where log δ(ε; μ) = `log_delta` < 0; `mu_error` is relative.

    Infinite at −inf, and for μ above 1e75, where the rounding of ε exceeds its spread.

    >>> round(upper_epsilon(math.log(1e-5), 1.0, 0.0), 6)
    4.377178
    """
    if mu == 0:
        return 0.0
    if mu > _LARGEST_MU or log_delta == -math.inf:
        return math.inf
    curve = GaussianCurve(mu, "exact", mu_error=mu_error)
    error = 2 * curve.log_error(_epsilon(log_delta, mu)) + 4 * _UNIT * (1 - log_delta)
    return _epsilon(log_delta - error, mu) * (1 + 4 * _UNIT)


def log_below(x: float) -> float:
    """log Φ(x), relatively exact far down.

    >>> round(log_below(0.0), 6), round(log_below(-40.0), 3)
    (-0.693147, -804.608)
    """
    if x > 0:
        return math.log1p(-math.erfc(x / math.sqrt(2)) / 2)
    if x < -1e150:
        return -math.inf
    return -x * x / 2 - _LOG_ROOT_TWO_PI + math.log(_mills(x))
