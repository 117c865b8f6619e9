"""δ(ε) of T equal Laplace releases, exactly: conditioned on how many outputs fall between the two means.

With w = 1/b the loss of one release under P is w with probability 1/2, −w with probability e^−w / 2, and between has
density e^((L−w)/2) / 4. So under P the sum S of T losses has the law c^T e^(S/2) [D_w + D_−w + w U]^T (a convolution
power) with c = e^(−w/2) / 2, D an atom and U the uniform law on [−w, w]. With i atoms at w, j at −w and m uniform,

    δ(ε) = Σ T! / (i! j! m!) 2^−T w^m e^(−jw) Ĝ_m(κ),
    Ĝ_m = e^(−(mw − y)/2) E[2 sinh((U_m − y)/2)₊],  y = ε − (i − j) w = −mw + 2w κ,  κ = (ε + Tw)/(2w) − i.

U_m is a sum of m uniforms: its density is the cardinal B-spline of order m, by the recursion
M_m(t) = (t M_(m−1)(t) + (m − t) M_(m−1)(t − 1)) / (m − 1) of positive terms. All κ share their fractional part f,
so from knot to knot, downwards from the top,

    G(y − 2w) = cosh(w) G(y) + sinh(w) A(y) + ∫ 2 sinh · M,    A(y − 2w) = cosh(w) A(y) + sinh(w) G(y) + ∫ 2 cosh · M

with A as G but with cosh: again only positive terms. The integrals over the pieces [f, 1] and [0, f] of a knot
interval are Gauss-Legendre sums of 24 nodes, exact for degree 47. Below, c_T counts the roundings.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from dpbench.accountants._hinges import Floats

MOST_RELEASES = 20_000
LEAST_NOISE = 0.05  # below, e^(w t) changes too much across an interval for 24 nodes
_UNIT = 2.0**-53
_NODES = 24


@cache
def _nodes() -> tuple[Floats, Floats]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return np.asarray((nodes + 1) / 2, np.float64), np.asarray(weights / 2, np.float64)


class LaplaceSum:
    """The law of the loss of `count` releases at scale `noise`; it answers like `Sums`.

    Errors: the spline and the knot recursion each make about four roundings a step, T steps; the factorials are good
    to four units of log T! each; the quadrature's remainder is below 1e-15 of its value where the density changes by
    less than e^20 across an interval, which `LEAST_NOISE` sees to for the factor e^S.
    """

    def __init__(self, noise: float, count: int) -> None:
        self.width, self.count = 1 / noise, count
        self.infinite = self.dropped = 0.0
        steps = 8 * count + 16 * math.lgamma(count + 1) + count * abs(math.log(self.width)) + 2 * count * self.width
        self.mass_error = _UNIT * (steps + 4 * count + 64) + 1e-15
        self.loss_error = 4 * _UNIT * count * self.width
        self._log_factorial = np.array([math.lgamma(k + 1) for k in range(count + 1)])

    def delta(self, epsilon: float) -> float:
        """δ at any real ε."""
        return self._delta_and_slope(epsilon)[0]

    def epsilon(self, delta: float) -> float:
        """The smallest ε >= 0 with δ(ε) <= `delta`: Newton's steps on log δ inside a bracket."""
        low, high = 0.0, self.count * self.width
        value, slope = self._delta_and_slope(0.0)
        if value <= delta:
            return 0.0
        epsilon = low
        for _ in range(200):
            following = epsilon - math.log(value / delta) * value / slope if value > 0 and slope < 0 else low
            if not low < following < high:
                following = low + (high - low) / 2
            if abs(following - epsilon) <= 1e-15 * following or not low < following < high:
                return following
            epsilon = following
            value, slope = self._delta_and_slope(epsilon)
            if value > delta:
                low = epsilon
            else:
                high = epsilon
        return epsilon

    def _delta_and_slope(self, epsilon: float) -> tuple[float, float]:
        """δ and dδ/dε = (Σ e^... Ĝ − Σ e^... Â) / 2, both over (i, m)."""
        total, w = self.count, self.width
        knot = (epsilon + total * w) / (2 * w)
        if knot >= total:
            return 0.0, 0.0
        whole = math.floor(knot)
        rest = knot - whole
        sines, cosines = self._tails(rest)
        value = slope = 0.0
        for m in range(total + 1):
            n = total - m
            up = np.arange(n + 1, dtype=np.int64)
            log_weights = (
                self._log_factorial[total]
                - self._log_factorial[m]
                - self._log_factorial[up]
                - self._log_factorial[n - up]
                - total * math.log(2)
                + m * math.log(w)
                - (n - up) * w
            )
            k = whole - up
            inside = (k >= 0) & (k < m)
            depth = np.where(inside, m - k, 0)
            sine, cosine = sines[m, depth], cosines[m, depth]
            below = k < 0 if m else up * 2 - n > epsilon / w
            if below.any():
                y = epsilon - (2 * up[below] - n) * w
                mean = math.exp(m * math.log(-math.expm1(-w) / w))  # e^(−mw/2) E[e^(U_m/2)]
                sine[below], cosine[below] = mean * -np.expm1(y), mean * (1 + np.exp(y))
            weights = np.exp(log_weights)
            value += float(np.dot(weights, sine))
            slope += float(np.dot(weights, sine - cosine)) / 2
        return value, slope

    def _tails(self, rest: float) -> tuple[Floats, Floats]:
        """Ĝ_m and Â_m at depth d = m − k below the top, in [m, d], for the fractional part `rest` of the knots."""
        total, w = self.count, self.width
        nodes, weights = _nodes()
        high, low = rest + (1 - rest) * nodes, rest * nodes  # fractions in an interval: above the limit, below it
        # distance from the limit, in knots: in its own interval, and in the next one
        distances = np.concatenate([high - rest, 1 - rest + low])
        measure = np.concatenate([(1 - rest) * weights, rest * weights])
        sine, cosine = 2 * np.sinh(w * distances) * measure, 2 * np.cosh(w * distances) * measure
        first, second = np.zeros((total + 1, total + 2)), np.zeros((total + 1, total + 2))
        spline_high, spline_low = np.ones((_NODES, 1)), np.ones((_NODES, 1))
        for m in range(1, total + 1):
            if m > 1:
                spline_high, spline_low = _next(spline_high, high, m), _next(spline_low, low, m)
            depth = m - np.arange(m)
            scale = np.exp(-w * (depth - rest))
            above = np.concatenate([spline_low[:, 1:], np.zeros((_NODES, 1))], axis=1)
            first[m, depth] = scale * (sine[:_NODES] @ spline_high + sine[_NODES:] @ above)
            second[m, depth] = scale * (cosine[:_NODES] @ spline_high + cosine[_NODES:] @ above)
        stay, move = (1 + math.exp(-2 * w)) / 2, -math.expm1(-2 * w) / 2
        for level in range(1, total + 1):
            before_sine, before_cosine = first[:, level - 1].copy(), second[:, level - 1].copy()
            first[:, level] += stay * before_sine + move * before_cosine
            second[:, level] += stay * before_cosine + move * before_sine
        return first, second


def _next(spline: Floats, fraction: Floats, order: int) -> Floats:
    """The B-spline of `order` at k + fraction, k = 0 ... order − 1, from that of the order before."""
    t = np.arange(order) + fraction[:, None]
    padded = np.zeros((len(fraction), order + 1))
    padded[:, 1:order] = spline
    result: Floats = (t * padded[:, 1:] + (order - t) * padded[:, :-1]) / (order - 1)
    return result
