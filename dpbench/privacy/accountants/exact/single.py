"""One mechanism invocation: its hockey-stick divergence in closed form, with a bound of its rounding.

The curve of a pair (P, Q) is h(ε) = ∫ (p − α q)₊ with α = e^ε >= 1. Where P is a mixture Σ w_k N(k, σ²)
and Q = N(0, σ²) the loss grows with the output, so that with S_k the tail of N(k, σ²) and γ_k = e^((kx − k²/2)/σ²)

    h = Σ w_k g_k(x),   g_k(x) = S_k(x) − γ_k S_0(x) > 0,   at the x where Σ w_k γ_k = α;

add has α Σ w_k γ_k g_k(k − x) at Σ w_k γ_k = 1/α. With φ the normal density and R = Φ/φ, g = φ(a) (R(a) − R(b)) for
a = (k − x)/σ and b = −x/σ: no two large numbers are subtracted, and h keeps its digits down to e^-690.

| event | w, or h itself |
| --- | --- |
| Gaussian, sampled Gaussian | w_1 = 1; w_0 = 1 − q, w_1 = q |
| group of g | w_k = C(g, k) q^k (1−q)^(g−k) |
| Poisson, replace one | q g_1(x) + α q γ_−1 g_1(x + 1), x = σ² (ε/2 + asinh((1−q) sinh(ε/2) e^(1/2σ²) / q)) |
| random sensitivity | the mean over Z of the sampled Gaussian's at σ/Z, by the trapezoidal rule in log χ² |
| Laplace | 1 − e^((ε − 1/b)/2) inside \\|ε\\| <= 1/b |

Fixed-size samples are Theorem 11 of Zhu, Dong and Wang 2022 (arXiv:2106.08567): both curves meet at α = 1.

**Error.** P(L > ε') − α Q(L > ε') is largest at the true x. So at another x what is computed is off by S_0(x) times the
residual α − Σ w_k γ_k, and by nothing else of first order. The residual is taken in the form
(α − 1) − Σ w_k (γ_k − 1), whose rounding stays small where h is small; that bound, the weights' roundings and those of
g (R to 1e-15, amplified by R(a) / (R(a) − R(b)); φ to 4u a²) are added up for each ε.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dpbench.errors import DpbenchError
from dpbench.events import Event, Gaussian, GroupSampledGaussian, Laplace, RandomSensitivityGaussian, SampledGaussian
from dpbench.privacy.accountants.exact.direction import Value
from dpbench.privacy.guards import ELSEWHERE

Floats = NDArray[np.float64]
_U = 2.0**-53
_R = 2e-15  # relative, of R by erfcx
_SAME, _FINEST = 1e-8, 1e-3  # what two sums over v may differ by, and the least distance of their nodes
_DEEPEST = -690.0  # log of the least δ with all digits


@dataclass(frozen=True)
class Single:
    """One direction of one invocation; `way` is 0 for remove, 1 for add."""

    event: Event
    way: int

    @property
    def largest(self) -> float:
        """The largest loss."""
        if isinstance(self.event, Laplace):
            return 1 / self.event.relative_noise
        rate = 1.0 if isinstance(self.event, Gaussian) else getattr(self.event, "sampling_rate", 1.0)
        members = getattr(self.event, "group_size", 1)
        return -members * math.log1p(-rate) if self.way and rate < 1 and _mixed_with_none(self.event) else math.inf

    def deltas(self, epsilons: Sequence[float]) -> list[Value]:
        """δ at every ε >= 0 of `epsilons`."""
        logs, errors = log_hockey_stick(self.event, np.array(epsilons, dtype=np.float64), self.way)
        errors = errors + 2 * _U * (2 + np.abs(logs))  # of the exponential
        if not np.all(np.isfinite(np.exp(logs) + np.exp(-errors))):
            raise ArithmeticError("one mechanism invocation is beyond doubles here")
        values = np.exp(logs)
        wrong = np.minimum(values * np.expm1(np.minimum(errors, 700.0)) + math.exp(_DEEPEST), 1.0)
        return [Value(value, error) for value, error in zip(values.tolist(), wrong.tolist(), strict=True)]

    def epsilon(self, log_delta: float) -> Value:
        """The smallest ε >= 0 with log δ(ε) <= `log_delta`."""
        return root(self.deltas, log_delta)


def root(deltas: Callable[[Sequence[float]], list[Value]], log_delta: float) -> Value:
    """The smallest ε >= 0 at which a falling curve is at most e^`log_delta`, and its error, as `enclosed` finds it.

    Raises DpbenchError where no number is large enough, and for δ below 1e-299.
    """
    from scipy.optimize import brentq

    if log_delta < _DEEPEST + 2:
        raise DpbenchError(f"delta = {math.exp(log_delta):.3g}: expected 1e-299 or more; ask for a larger one")
    target = math.exp(log_delta)

    def at(epsilon: float) -> Value:
        return deltas([epsilon])[0]

    def excess(epsilon: float) -> float:
        value = at(epsilon).value
        return math.log(value) - log_delta if value > 0 else -1e3

    start, found, high = at(0.0), 0.0, 1.0
    if start.value > target:
        while high > 1e-290 and excess(high / 16) < 0:
            high /= 16
        low = high / 16
        while excess(high) > 0:
            low, high = high, 4 * high
            if high > 1e300:
                raise DpbenchError("epsilon: no finite number has a delta this small; ask for a larger one")
        found = float(brentq(excess, low, high, xtol=1e-300, rtol=8 * _U, maxiter=200))
    return enclosed(deltas, log_delta, found)


def enclosed(deltas: Callable[[Sequence[float]], list[Value]], log_delta: float, found: float) -> Value:
    """A root with its error, which follows from the curve's own errors and the rounding of log δ.

    Raises DpbenchError where no interval is found.
    """
    target, slack, apart = math.exp(log_delta), 4 * _U * (1 - log_delta), 1e-6 * max(found, 1e-6)
    before, after = deltas([max(found - apart, 0.0), max(found, apart)])
    if found == 0 and before.value + before.error <= target:
        return Value(0.0, 0.0)
    slope = max(before.value - after.value, 1e-300) / apart
    step = min((before.error + 2 * slack * target) / slope, apart) + 8 * _U * found
    for _ in range(80):
        before, after = deltas([max(found - step, 0.0), found + step])
        if after.value + after.error <= target * (1 - slack) and (
            found <= step or before.value - before.error >= target * (1 + slack)
        ):
            return Value(found, step)
        step *= 2
    raise DpbenchError(f"epsilon: the error of delta is too large to find it near {found:.6g}; {ELSEWHERE}")


def log_hockey_stick(event: Event, epsilon: Floats, way: int) -> tuple[Floats, Floats]:
    """log h and its absolute error at each ε >= 0; −inf where h is 0.

    Raises DpbenchError for an event whose curve is no closed form, such as shuffled batches and atoms.

    >>> np.exp(log_hockey_stick(Gaussian(1.0), np.array([0.0, 1.0]), 0)[0]).round(6).tolist()
    [0.382925, 0.126937]
    """
    with np.errstate(all="ignore"):
        if isinstance(event, Laplace):
            return _laplace(event, epsilon), np.full(len(epsilon), 8 * _U)
        if isinstance(event, Gaussian):
            return _mixture(epsilon, 0, np.ones(1), np.zeros(1), np.zeros(1), event.relative_noise)
        if isinstance(event, SampledGaussian) and (event.sampler, event.adjacency) == ("poisson", "replace_one"):
            return _replaced(epsilon, event.sampling_rate, event.noise_multiplier)
        if _mixed_with_none(event):
            if isinstance(event, SampledGaussian):
                return _sampled(epsilon, way, event.sampling_rate, event.noise_multiplier)
            if isinstance(event, GroupSampledGaussian):
                return _mixture(epsilon, way, *_group(event), event.noise_multiplier)
            if isinstance(event, RandomSensitivityGaussian):
                return _random(event, epsilon, way)
    raise DpbenchError(f"event = {event!r}: expected one with a proven curve; choose another sampler or adjacency")


def _mixed_with_none(event: Event) -> bool:
    """Whether the pair is a mixture against what is left where no record is drawn."""
    sampler, adjacency = getattr(event, "sampler", None), event.adjacency
    return sampler == "poisson" and adjacency in ("add_or_remove", "zero_out")


def _laplace(event: Laplace, epsilon: Floats) -> Floats:
    assert event.exact_noise is not None  # it reveals something
    width = 1 / event.exact_noise
    inside = [float(min((Fraction(one) - width) / 2, Fraction(0))) for one in epsilon.tolist()]
    return np.asarray(np.log(-np.expm1(inside)))


def _sampled(epsilon: Floats, way: int, rate: float, noise: float) -> tuple[Floats, Floats]:
    members = np.array([0.0, 1.0] if rate < 1 else [1.0])
    weights = np.array([math.log1p(-rate), math.log(rate)] if rate < 1 else [0.0])
    return _mixture(epsilon, way, members, weights, 2 * _U * (1 - weights), noise)


def _group(event: GroupSampledGaussian) -> tuple[Floats, Floats, Floats]:
    """Numbers of members, log of their probabilities, and the absolute errors of these."""
    size, rate = event.group_size, event.sampling_rate
    if rate == 1:
        return np.array([float(size)]), np.zeros(1), np.zeros(1)
    k = np.arange(size + 1.0)
    parts = np.array([[math.log(math.comb(size, j)) for j in range(size + 1)], k * math.log(rate)])
    left = (size - k) * math.log1p(-rate)
    return k, parts.sum(axis=0) + left, 4 * _U * (np.abs(parts).sum(axis=0) - left + 1)


def _mixture(
    epsilon: Floats, way: int, members: Floats, log_weights: Floats, wrong: Floats, noise: float
) -> tuple[Floats, Floats]:
    """log h and its error of Σ w_k N(k, σ²) against N(0, σ²), or (`way` 1) of the reverse."""
    moved = members > 0
    k, logs, wrong = members[moved], log_weights[moved], wrong[moved]
    lowest = -math.inf if moved[0] else float(log_weights[0])
    level = -epsilon if way else epsilon
    inside = level > lowest
    x, residual = _position(np.where(inside, level, 0.0), k, logs, wrong, lowest, noise)
    x = x[:, None]
    log_ratio = k * (x - k / 2) / noise / noise
    if way:
        gains, off = _gain(x / noise, (x - k) / noise, k / noise)
        terms, tail = epsilon[:, None] + logs + log_ratio + gains, x[:, 0] / noise
        off = off + 6 * _U * np.abs(log_ratio)
    else:
        gains, off = _gain((k - x) / noise, -x / noise, k / noise)
        terms, tail = logs + gains, -x[:, 0] / noise
    found: Floats = np.logaddexp.reduce(terms, axis=1)
    from scipy.special import log_ndtr

    scale = (1 - 4 * _U) * log_ndtr(tail) + np.maximum(level, 0.0) + (epsilon if way else 0.0) - found
    error = residual * np.exp(np.minimum(scale, 700.0)) + 2 * _U * np.abs(found) + 8 * _U
    error += (np.exp(terms - found[:, None]) * (off + wrong + 2 * _U * np.abs(terms))).sum(axis=1)
    return np.where(inside, np.minimum(found, 0.0), -math.inf), np.where(inside, error, 4 * _U)


def _position(
    level: Floats, k: Floats, logs: Floats, wrong: Floats, lowest: float, noise: float
) -> tuple[Floats, Floats]:
    """Where Σ w_k γ_k is e^level, above e^lowest, and the residual over max(1, e^level), bounded.

    Newton's steps on the log of the terms with k >= 1, which is convex and grows with x, from the right; then two on
    the residual itself.
    """
    variance = noise * noise
    target = level + np.log(-np.expm1(lowest - level))
    x = np.min((target[:, None] - logs) * (variance / k) + k / 2, axis=1)
    for _ in range(100):
        terms = logs + k * (x[:, None] - k / 2) / variance
        total = np.logaddexp.reduce(terms, axis=1)
        step = (total - target) / ((np.exp(terms - total[:, None]) * k).sum(axis=1) / variance)
        x = x - step
        if np.all(np.abs(step) <= 1e-14 * (np.abs(x) + noise)):
            break
    top = np.maximum(level, 0.0)
    wanted = np.where(level > 0, -np.expm1(-np.abs(level)), np.expm1(-np.abs(level)))
    for last in (False, False, True):
        ratio = k * (x[:, None] - k / 2) / noise / noise
        sizes = np.exp(logs + np.maximum(ratio, 0.0) - top[:, None])
        found = sizes * np.where(ratio > 0, -np.expm1(-np.abs(ratio)), np.expm1(-np.abs(ratio)))
        off = wanted - found.sum(axis=1)
        step = off * variance / (np.exp(logs + ratio - top[:, None]) * k).sum(axis=1)
        far = ~(np.abs(step) <= 1e-3 * variance / k[-1])  # where doubles do not resolve x
        if not last:
            x = x + np.where(far, 0.0, step)
    rounding = np.abs(found) * (wrong + _U * (8 + np.abs(logs) + np.abs(ratio) + top[:, None]))
    rounding += 6 * _U * np.abs(ratio) * np.exp(logs + ratio - top[:, None])
    residual = np.abs(off) + rounding.sum(axis=1) + _U * (len(k) + 4) * np.abs(wanted)
    return x, np.where(far, math.inf, residual)


def _gain(a: Floats, b: Floats, mu: Floats) -> tuple[Floats, Floats]:
    """log of g = φ(a) (R(a) − R(b)), a − b = μ >= 0, and its relative error; by g(γ) = 1 − γ + γ g(1/γ) below γ = 1."""
    a, b, mu = np.broadcast_arrays(np.clip(a, -1e150, 1e150), np.clip(b, -1e150, 1e150), mu)
    flipped = a > mu / 2
    log_ratio = np.where(flipped, mu * (mu / 2 - a), 0.0)
    loose = 4 * _U * mu * np.abs(a)
    a, b = np.where(flipped, -b, a), np.where(flipped, -a, b)
    log_density = -a * a / 2 - math.log(2 * math.pi) / 2
    above, below, small = _mills(np.minimum(a, 0.0)), _mills(b), mu < 1
    bracket = above - below
    error = 4 * _U * a * a + _R * (1 + above / bracket)
    if small.any():
        bracket[small] = _bracket(a[small], mu[small])
        error = np.where(small, 4 * _U * a * a + 1e-14, error)
    # g near 1: what is missing is Φ(−a) + γ Φ(b)
    other = np.exp(log_density) * (_mills(-np.abs(a)) + below)
    near = (a > 0) & ~small
    found = np.where(near, np.log1p(-other), log_density + np.log(bracket))
    error = np.where(near, other / (1 - other) * (4 * _U * a * a + _R) + 2 * _U, error)
    turned = np.log(-np.expm1(log_ratio) + np.exp(log_ratio + found))
    loose = loose * np.exp(log_ratio - turned) + error * np.exp(log_ratio + found - turned) + 4 * _U
    return np.where(flipped, turned, found), np.where(flipped, loose, error)


def _mills(x: Floats) -> Floats:
    """R(x) = Φ(x)/φ(x) for x <= 0."""
    from scipy.special import erfcx

    found: Floats = math.sqrt(math.pi / 2) * erfcx(-x / math.sqrt(2))
    return found


def _bracket(a: Floats, mu: Floats) -> Floats:
    """R(a) − R(a − μ) = ∫_0^∞ e^(at − t²/2) (1 − e^(−μt)) dt for μ < 1, without cancellation."""
    nodes, weights = _nodes()
    end = 90 / (np.sqrt(a * a + 90) - a)  # where the exponent has fallen by 45
    total = np.zeros_like(a)
    for node, weight in zip(nodes, weights, strict=True):
        t = end * node
        total += weight * np.exp(a * t - t * t / 2) * -np.expm1(-mu * t)
    return total * end


@cache
def _nodes() -> tuple[Floats, Floats]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    return (nodes + 1) / 2, weights / 2


def _replaced(epsilon: Floats, rate: float, noise: float) -> tuple[Floats, Floats]:
    """log h and its error of (1−q) N(0, σ²) + q N(1, σ²) against (1−q) N(0, σ²) + q N(−1, σ²)."""
    from scipy.special import log_ndtr

    variance = noise * noise
    rest = math.log1p(-rate) - math.log(rate) if rate < 1 else -math.inf
    exponent = rest + 1 / (2 * variance) + epsilon / 2 + np.log(-np.expm1(-epsilon)) - math.log(2)
    large = exponent + np.log1p(np.sqrt(1 + np.exp(-2 * np.maximum(exponent, 0.0))))
    inverse = np.where(exponent > 0, large, np.arcsinh(np.exp(np.minimum(exponent, 0.0))))
    x = variance * (epsilon / 2 + inverse)
    ratios = np.stack([(x - 0.5) / variance, -(x + 0.5) / variance, epsilon])
    shifts = np.stack([math.log(rate) - epsilon, np.full(len(epsilon), math.log(rate)), -epsilon])
    sizes = np.exp(shifts + np.maximum(ratios, 0.0)) * -np.expm1(-np.abs(ratios))
    signs = np.array([[1.0], [-1.0], [-1.0]]) * np.sign(ratios)
    residual = np.abs((signs * sizes).sum(axis=0)) + _U * (
        (8 + np.abs(shifts) + np.abs(ratios)) * sizes + 6 * np.abs(ratios) * np.exp(shifts + ratios)
    ).sum(axis=0)
    far = ~(np.abs((signs * sizes).sum(axis=0)) <= 1e-3 * np.exp(shifts[:2] + ratios[:2]).sum(axis=0))
    residual[far] = math.inf
    mu = np.array(1 / noise)
    (right, off), (left, wrong) = _gain((1 - x) / noise, -x / noise, mu), _gain(-x / noise, -(x + 1) / noise, mu)
    terms = np.stack([math.log(rate) + right, math.log(rate) + epsilon + ratios[1] + left])
    found = np.logaddexp(terms[0], terms[1])
    loose = np.stack([off, wrong + 6 * _U * np.abs(ratios[1])]) + 4 * _U * (1 + np.abs(terms))
    error = (np.exp(terms - found) * loose).sum(axis=0) + 2 * _U * np.abs(found) + 8 * _U
    error += residual * np.exp(np.minimum(log_ndtr(-x / noise) + epsilon - found, 700.0))
    return np.minimum(found, 0.0), error


def _random(event: RandomSensitivityGaussian, epsilon: Floats, way: int) -> tuple[Floats, Floats]:
    """log h and its error at random sensitivity Z = √(r/χ²_r), by nodes in v = log(χ²_r / r).

    With s = r/2 the density of v is proportional to e^(s (v + 1 − e^v)), which falls on both sides and is analytic up
    to |Im v| = π/2; g(ε; Z/σ) grows there like e^(ε |Im v|²/4), so that steps have to shrink like 1/√ε. They are halved
    until the sum over every other node differs by 1e-8 at most; the error of all nodes is at most the square of that.
    """
    step = min(0.06, 1 / (3 * math.sqrt(event.projections / 2)))
    while True:
        found, error, apart = _random_by(event, epsilon, way, step)
        if apart <= _SAME:
            return found, error + apart**2
        step /= 2
        if step < _FINEST:
            most = float(epsilon.max())
            raise DpbenchError(f"a random sensitivity takes too many nodes at epsilon = {most:.4g}; {ELSEWHERE}")


def _random_by(
    event: RandomSensitivityGaussian, epsilon: Floats, way: int, step: float
) -> tuple[Floats, Floats, float]:
    """The same by nodes `step` apart, and the relative difference of the sum over every other node.

    The part beyond the largest Z is bounded by that of an infinite Z."""
    rate, noise, half = event.sampling_rate, event.noise_multiplier, event.projections / 2
    spread = 1 / math.sqrt(half)
    low = -min(200 / event.projections + 40 * spread, 600.0)
    high = math.log1p((14 * math.sqrt(4 * half) + 100) / (2 * half))
    v = low + step * np.arange(math.ceil((high - low) / step) + 1)
    weights = np.exp(half * (v - np.expm1(v)))
    log_weights = np.log(weights / weights.sum())
    left = weights[0] / (weights.sum() * step) / (-half * math.expm1(low))  # the log density is concave
    kept = log_weights > -745.0
    mu, log_weights, v = np.exp(-v[kept] / 2) / noise, log_weights[kept], v[kept]
    rest = math.log1p(-rate) if rate < 1 else -math.inf
    if way:
        share = -np.expm1(np.minimum(epsilon + rest, 0.0))
        near = np.expm1(-epsilon) / rate
        level = np.where(near > -0.5, -np.log1p(np.maximum(near, -0.9)), epsilon + math.log(rate) - np.log(share))
    else:
        share = np.full(len(epsilon), rate)
        far = epsilon - math.log(rate) + np.log1p((rate - 1) * np.exp(-np.maximum(epsilon, 1.0)))
        level = np.where(epsilon > 1, far, np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / rate))
    inside = np.isfinite(level) & (share > 0)
    part = np.where(inside, level, 0.0)[:, None] / mu
    gains, off = _gain(mu / 2 - part, -mu / 2 - part, mu)
    terms = log_weights + gains
    top = np.maximum(terms.max(axis=1), -1e300)
    scaled = np.exp(terms - top[:, None])
    masses = scaled.sum(axis=1)
    total = top + np.log(masses)
    counted = inside & (total > _DEEPEST)
    apart = float(np.abs(2 * scaled[counted, ::2].sum(axis=1) / masses[counted] - 1).max(initial=0.0))
    found = np.log(share) + total
    # −dg/da = μ γ Φ(b), and γ Φ(b) = φ(a) R(b)
    b, moved = -mu / 2 - part, mu * (mu + np.abs(part))
    steep = np.where(b < 0, np.exp(-((mu / 2 - part) ** 2) / 2) * _mills(np.minimum(b, 0.0)), np.exp(part * mu))
    off = off + np.where(gains > -700, 4 * _U * moved * steep * np.exp(-gains), 0.0)
    off += 8 * _U * half * (np.abs(v) + np.exp(v) + 1)
    error = (
        (np.exp(terms - total[:, None]) * np.where(gains > -700, off, 0.0)).sum(axis=1) + 2e-15 + 2 * _U * np.abs(found)
    )
    error += np.exp(np.log(left * share) - found)
    if way and rate < 1:  # 1 − (1−q) α cancels at the end of the range
        error += 4 * _U * (1 + np.abs(epsilon)) / share * (1 + np.abs(part * (1 + np.abs(part))).min(axis=1))
    return np.where(inside, np.minimum(found, 0.0), -math.inf), np.where(inside, error, 4 * _U), apart
