"""The hockey-stick curve of one release: closed forms for every event, in logarithms, on arrays of ε.

The curve of a pair (P, Q) is h(ε) = H_α(P ‖ Q) = ∫ (p − α q)₊ with α = e^ε, for every real ε. All Gaussian pairs come
down to one positive building block, g(ε; μ) = H_α(N(μ, 1) ‖ N(0, 1)), because p − α q vanishes at the threshold x*:
what is left on either side of it is a sum of terms w (N(k) − γ_k N(0)) with γ_k the ratio of the two at x*, and each
is w · g(log γ_k; k/σ). So no two large numbers are subtracted, and h keeps its relative digits down to e^-700.

| event | threshold | h |
| --- | --- | --- |
| sampled Gaussian, remove | γ = 1 + (α−1)/q | q g(log γ; 1/σ) |
| sampled Gaussian, add | γ = (1/α − 1 + q)/q | α q γ g(−log γ; 1/σ), 0 from α = 1/(1−q) on |
| Poisson, replace one | x = σ² (ε/2 + asinh((1−q) sinh(ε/2) / (q e^(−1/2σ²)))) | q g(x/σ² − 1/2σ²) + αq γ' g(−log γ') |
| group of g | Σ w_k γ_k = α (remove) or 1/α (add) | Σ w_k g(log γ_k; k/σ) or α Σ w_k γ_k g(−log γ_k; k/σ) |
| fixed-size samples, replace one | as sampled Gaussian at σ/2 | remove for α >= 1, add for α < 1 |
| Laplace | | 1 − e^((ε − 1/b)/2) inside |ε| <= 1/b |

Here log γ' = −x/σ² − 1/2σ² and w_k = C(g, k) q^k (1−q)^(g−k).

**Fixed-size samples.** Zhu, Dong and Wang 2022 (arXiv:2106.08567), Theorem 11: if (P, Q) dominates the base mechanism
under replace-one, then after sampling without replacement at rate q every ordered pair of neighbours lies below
H_α((1−q) Q + q P ‖ Q) for α >= 1 and below H_α(P ‖ (1−q) P + q Q) for α < 1. With P = N(2, σ²), Q = N(0, σ²) (a
replaced record moves the sum by up to two clip norms) both meet at α = 1, where each is q times the total variation,
and the slope there jumps up by (1−q) (1 − 2Φ(−1/σ)) >= 0. So the joined curve is convex and decreasing, from 1 at
α = 0 with slope −1: by their Proposition 8 a pair with this curve exists, with an atom of that mass at loss 0.

**Accuracy.** Relative error below 1e-11 for h above 1e-300 (tests, against 60 digits; groups are the worst, at much
noise, where x* is a few 1e-16 σ off), but next to the end of the add
direction's range, where ε itself being a double matters more; there the gap to the end is rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants._pair_losses import PairLosses
from dpbench.accountants._work import spend
from dpbench.errors import DpbenchError
from dpbench.events import (
    ConfidentGNMax,
    DiscretePair,
    Event,
    Gaussian,
    GroupSampledGaussian,
    Laplace,
    RandomSensitivityGaussian,
    SampledGaussian,
)

Floats = NDArray[np.float64]
_LOG_ROOT_TWO_PI = math.log(2 * math.pi) / 2
_DEPTH = 90.0  # the integral of `_bracket` stops where its exponent has fallen by 45: e^-45 is below 1e-19


def log_hinge(event: Event, epsilon: Floats, direction: int = 0) -> Floats:
    """log h at each `epsilon` (any real numbers); direction 0 is remove (P ‖ Q), 1 is add (Q ‖ P).

    Exact formulas up to rounding; for `RandomSensitivityGaussian` a quadrature over Z whose tail is rounded up. −inf
    where h is 0. Raises DpbenchError for an event without a proven curve, such as shuffled batches.

    >>> from dpbench.events import Gaussian
    >>> [round(math.exp(value), 6) for value in log_hinge(Gaussian(1.0), np.array([0.0, 1.0]))]
    [0.382925, 0.126937]
    """
    epsilon = np.asarray(epsilon, dtype=np.float64)
    if isinstance(event, Gaussian):
        return log_gaussian(epsilon, 1 / event.relative_noise)
    if isinstance(event, ConfidentGNMax):
        return log_gaussian(epsilon, confident_mu(event))
    if isinstance(event, Laplace):
        return _log_laplace(epsilon, 1 / event.relative_noise)
    if isinstance(event, DiscretePair):
        return _log_discrete(epsilon, PairLosses.of(event, direction))
    sampled = (event.sampler, event.adjacency)
    if isinstance(event, SampledGaussian) and sampled == ("poisson", "replace_one"):
        return _log_replaced(epsilon, event.sampling_rate, event.noise_multiplier)
    if isinstance(event, SampledGaussian) and sampled == ("without_replacement", "replace_one"):
        rate, half = event.sampling_rate, event.noise_multiplier / 2
        return np.where(epsilon >= 0, log_remove(epsilon, rate, half), log_add(epsilon, rate, half))
    if sampled in (("poisson", "add_or_remove"), ("poisson", "zero_out")):
        leaf = log_add if direction else log_remove
        if isinstance(event, SampledGaussian):
            return leaf(epsilon, event.sampling_rate, event.noise_multiplier)
        if isinstance(event, GroupSampledGaussian):
            return _log_group(epsilon, event, direction)
        return _log_random(epsilon, event, leaf, direction)
    raise DpbenchError(f"event = {event!r}: expected one with a proven curve; choose another sampler or adjacency")


def log_gaussian(epsilon: Floats, mu: float | Floats) -> Floats:
    """log g(ε; μ) for real ε and μ >= 0: φ(a) (R(a) − R(b)), a = μ/2 − ε/μ, b = a − μ, R = Φ/φ.

    Below ε = 0 the symmetry g(ε) = 1 − e^ε + e^ε g(−ε) is used; where a > 0 and g is near one,
    g = 1 − φ(a) (R(−a) + R(b)).
    """
    from scipy.special import erfcx

    epsilon, mu = np.broadcast_arrays(np.asarray(epsilon, float), np.asarray(mu, float))
    spend(4 * epsilon.size)
    size = np.abs(epsilon)
    mild = np.clip(mu, 1e-150, 1e150)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        a = np.maximum(mild / 2 - size / mild, -1e150)
        b = a - mild
        log_density = -a * a / 2 - _LOG_ROOT_TWO_PI
        below = _mills(b, erfcx)
        bracket = np.where(mild < 1, 1.0, _mills(np.minimum(a, 0.0), erfcx) - below)
        small = mild < 1
        if small.any():
            bracket = bracket.copy()
            bracket[small] = _bracket(a[small], mild[small])
        near_one = np.log1p(-np.exp(log_density) * (_mills(-np.abs(a), erfcx) + below))
        upper = np.where((a > 0) & ~small, near_one, log_density + np.log(np.maximum(bracket, 0.0)))
    upper = np.where(mu == 0, -np.inf, np.minimum(upper, 0.0))
    with np.errstate(divide="ignore", over="ignore"):
        lower = np.log(-np.expm1(-size) + np.exp(-size + upper))
    result: Floats = np.where(epsilon >= 0, upper, np.minimum(lower, 0.0))
    return result


def _mills(x: Floats, erfcx: Any) -> Floats:
    result: Floats = math.sqrt(math.pi / 2) * erfcx(-x / math.sqrt(2))
    return result


def _bracket(a: Floats, mu: Floats) -> Floats:
    """R(a) − R(a − μ) = ∫_0^∞ e^(at − t²/2) (1 − e^(−μt)) dt for μ < 1 and a < 1/2, without cancellation."""
    nodes, weights = _nodes(64)
    end = _DEPTH / (np.sqrt(a * a + _DEPTH) - a)
    result = np.zeros_like(a)
    for node, weight in zip(nodes, weights, strict=True):
        t = end * node
        result += weight * np.exp(a * t - t * t / 2) * -np.expm1(-mu * t)
    return result * end


@cache
def _nodes(count: int) -> tuple[Floats, Floats]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (nodes + 1) / 2, weights / 2


def log_remove(epsilon: Floats, rate: float, noise: float) -> Floats:
    """log H_α((1−q) N(0, σ²) + q N(1, σ²) ‖ N(0, σ²)) = log q g(log γ; 1/σ), 1 − α below α = 1 − q."""
    if rate == 0 or noise == math.inf:
        return _log_nothing(epsilon)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        small = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / rate)
        large = epsilon - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-np.maximum(epsilon, 1.0)))
        inside = math.log(rate) + log_gaussian(np.where(epsilon > 1, large, small), 1 / noise)
        outside = np.log(-np.expm1(np.minimum(epsilon, 0.0)))
        lowest = math.log1p(-rate) if rate < 1 else -math.inf
    result: Floats = np.where(epsilon > lowest, inside, outside)
    return result


def log_add(epsilon: Floats, rate: float, noise: float) -> Floats:
    """log H_α(N(0, σ²) ‖ (1−q) N(0, σ²) + q N(1, σ²)); −inf from ε = −log(1−q) on, where h is 0.

    1 − α (1−q), the mass of P that is left, is rounded up, so that h is not too small at the end of its range.
    """
    if rate == 0 or noise == math.inf:
        return _log_nothing(epsilon)
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = -(epsilon + math.log1p(-rate)) if rate < 1 else np.full_like(epsilon, np.inf)
        left = -np.expm1(-np.maximum(gap + 4e-16 * np.abs(epsilon), 0.0))
        log_left = np.log(left)
        # log (α q / left), and α q / left − 1 = (α − 1) / left
        apart = epsilon + math.log(rate) - log_left
        threshold = np.where(np.abs(apart) < 1, np.log1p(np.expm1(np.minimum(epsilon, 700.0)) / left), apart)
        result = log_left + log_gaussian(np.nan_to_num(threshold, posinf=1e300, neginf=-1e300), 1 / noise)
    inside: Floats = np.where(gap > 0, result, -np.inf)
    return inside


def _log_replaced(epsilon: Floats, rate: float, noise: float) -> Floats:
    if rate == 0 or noise == math.inf:
        return _log_nothing(epsilon)
    x = replaced_position(epsilon, rate, noise)
    half = 1 / (2 * noise * noise)
    log_rate = math.log(rate)
    right = log_rate + log_gaussian(2 * half * x - half, 1 / noise)
    log_ratio = -2 * half * x - half
    left = epsilon + log_rate + log_ratio + log_gaussian(-log_ratio, 1 / noise)
    result: Floats = np.logaddexp(right, left)
    return result


def replaced_position(epsilon: Floats, rate: float, noise: float) -> Floats:
    """Where ((1−q) N(0) + q N(1)) / ((1−q) N(0) + q N(−1)) = e^ε."""
    variance = noise * noise
    size = np.abs(epsilon)
    log_factor = (math.log1p(-rate) if rate < 1 else -math.inf) - math.log(rate) + 1 / (2 * variance)
    with np.errstate(over="ignore", divide="ignore"):
        log_sinh = size / 2 + np.log(-np.expm1(-size)) - math.log(2)
        exponent = log_factor + log_sinh
        # asinh(e^y) = y + log(1 + √(1 + e^−2y)), and for small e^y by asinh itself
        inverse = np.where(
            exponent > 0,
            exponent + np.log1p(np.sqrt(1 + np.exp(-2 * np.maximum(exponent, 0)))),
            np.arcsinh(np.exp(np.minimum(exponent, 0))),
        )
    result: Floats = np.sign(epsilon) * variance * (size / 2 + inverse)
    return result


def group_weights(event: GroupSampledGaussian) -> tuple[Floats, Floats]:
    """k = 0 ... g and log C(g, k) q^k (1−q)^(g−k), without the terms of weight 0."""
    size, rate = event.group_size, event.sampling_rate
    members = np.arange(size + 1, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        taken = np.where(members > 0, members * np.log(rate), 0.0)
        left = np.where(members < size, (size - members) * np.log1p(-rate), 0.0)
    choose = np.array([math.lgamma(size + 1) - math.lgamma(k + 1) - math.lgamma(size - k + 1) for k in range(size + 1)])
    log_weights = choose + taken + left
    kept = log_weights > -np.inf
    return members[kept], log_weights[kept]


def group_position(log_ratio: Floats, event: GroupSampledGaussian) -> Floats:
    """Where Σ w_k e^((kx − k²/2)/σ²) = e^(log_ratio), by Newton's method; −inf where the sum is always larger.

    The logarithm of the terms with k >= 1 is convex and increasing in x, so that from the right every step stays on
    the right of the root and the steps shrink.
    """
    members, log_weights = group_weights(event)
    variance = event.noise_multiplier**2
    moved = members > 0
    k, constant = members[moved], log_weights[moved] - members[moved] ** 2 / (2 * variance)
    rest = log_weights[0] if not moved[0] else -math.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where(log_ratio > rest, -np.expm1(np.minimum(rest - log_ratio, 0.0)), 0.0)
        target = log_ratio + np.log(excess)
    spend(len(k) * target.size)
    x = np.min(
        variance * (target[..., None] - constant) / k, axis=-1
    )  # one term alone reaches the target: on the right
    for _ in range(100):
        spend(2 * len(k) * target.size)
        terms = constant + x[..., None] * k / variance
        top = terms.max(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore"):
            scaled = np.exp(terms - top)
        total = scaled.sum(axis=-1)
        with np.errstate(invalid="ignore"):
            step = (top[..., 0] + np.log(total) - target) / ((scaled * k).sum(axis=-1) / total / variance)
        step = np.where(np.isfinite(target), step, 0.0)
        x = x - step
        if np.all(np.abs(step) <= 1e-15 * (np.abs(x) + event.noise_multiplier)):
            break
    result: Floats = np.where(target == -np.inf, -np.inf, x)
    return result


def _log_group(epsilon: Floats, event: GroupSampledGaussian, direction: int) -> Floats:
    if event.sampling_rate == 0 or event.noise_multiplier == math.inf:
        return _log_nothing(epsilon)
    members, log_weights = group_weights(event)
    noise = event.noise_multiplier
    x = group_position(-epsilon if direction else epsilon, event)
    least = log_weights[0] if members[0] == 0 else -math.inf
    inside = np.isfinite(x)
    shown = np.where(inside, x, 0.0)[..., None]
    moved = members > 0
    k, weights = members[moved], log_weights[moved]
    log_ratio = (2 * k * shown - k * k) / (2 * noise * noise)
    if direction:
        terms = epsilon[..., None] + weights + log_ratio + log_gaussian(-log_ratio, k / noise)
        outside = np.full_like(epsilon, -np.inf)
    else:
        terms = weights + log_gaussian(log_ratio, k / noise)
        with np.errstate(divide="ignore"):
            outside = np.log(-np.expm1(np.minimum(epsilon, least)))
    result: Floats = np.where(inside, np.logaddexp.reduce(terms, axis=-1), outside)
    return result


def _log_nothing(epsilon: Floats) -> Floats:
    """The curve of two equal distributions, (1 − α)₊."""
    with np.errstate(divide="ignore"):
        result: Floats = np.log(-np.expm1(np.minimum(epsilon, 0.0)))
    return result


def _log_laplace(epsilon: Floats, width: float) -> Floats:
    with np.errstate(divide="ignore"):
        inside = np.log(-np.expm1(np.minimum((epsilon - width) / 2, 0.0)))
        below = _log_nothing(epsilon)
    result: Floats = np.where(epsilon < -width, below, inside)
    return result


def _log_discrete(epsilon: Floats, pair: PairLosses) -> Floats:
    rest = -np.expm1(np.minimum(epsilon[..., None] - pair.losses, 0.0))
    with np.errstate(divide="ignore"):
        result: Floats = np.log(rest @ pair.masses + pair.infinite)
    return result


def confident_mu(event: ConfidentGNMax) -> float:
    """μ of the data-independent guarantee: 1/σ₁² from the selection and 2/σ₂² from an answer, added as squares."""
    answer = 2 / event.answer_noise**2 if event.answered else 0.0
    return math.sqrt(1 / event.selection_noise**2 + answer)


def sensitivity_nodes(projections: int, step: float = 0.06) -> tuple[Floats, Floats, float]:
    """Nodes z, weights and a left-over mass for Z = √(r/χ²_r): a trapezoidal rule in u = log χ²_r.

    The density e^(ru/2 − e^u/2) falls off on both sides; its sum over a step h is off by about e^(−2π·d/h) with
    d < π/2, the angle at which e^u turns imaginary. The mass of Z above the largest node is returned, to be rounded up.
    """
    half = projections / 2
    spread = 1 / math.sqrt(half)
    # with v = u − log r the density is e^(h (v + 1 − e^v)) h^h e^−h / Γ(h), h = r/2: nothing large cancels in it
    log_norm = math.log(2 * math.pi / half) / 2 + stirling_rest(half)
    step = min(step, spread / 3)
    low = -min(80 / projections + 14 * spread, 600.0)
    high = math.log1p((14 * math.sqrt(4 * half) + 100) / (2 * half))
    v = low + step * np.arange(math.ceil((high - low) / step) + 1)
    weights = np.exp(half * (v - np.expm1(v)) - log_norm) * step
    # below `low` the log density is concave and rises: its integral is at most value over slope there
    left = math.exp(half * (low - math.expm1(low)) - log_norm) / (-half * math.expm1(low))
    return np.exp(-v / 2), weights, left


def stirling_rest(x: float) -> float:
    """log Γ(x) − (x − ½) log x + x − ½ log 2π, to 1e-15: from 10 on by Stirling's series, which alternates.

    >>> abs(stirling_rest(0.5) - (1 - math.log(2)) / 2) < 1e-15
    True
    """
    if x < 10:
        return math.lgamma(x) - (x - 0.5) * math.log(x) + x - math.log(2 * math.pi) / 2
    square = x * x
    series = 1 / 1188 - 691 / 360360 / square
    for coefficient in (-1 / 1680, 1 / 1260, -1 / 360, 1 / 12):
        series = coefficient + series / square
    return series / x


def _log_random(
    epsilon: Floats, event: RandomSensitivityGaussian, leaf: Callable[[Floats, float, float], Floats], direction: int
) -> Floats:
    rate = event.sampling_rate
    if rate == 0 or event.noise_multiplier == math.inf:
        return _log_nothing(epsilon)
    z, weights, left = sensitivity_nodes(event.projections)
    with np.errstate(divide="ignore", over="ignore"):
        total = np.full_like(epsilon, -np.inf)
        for node, weight in zip(z, np.log(weights), strict=True):
            total = np.logaddexp(total, weight + leaf(epsilon, rate, event.noise_multiplier / float(node)))
        if direction:  # at infinite Z: H_α(N(0) ‖ (1−q) N(0) + q ·)
            most = -np.expm1(np.minimum(epsilon + (math.log1p(-rate) if rate < 1 else -math.inf), 0.0))
        else:
            most = rate + np.maximum(1 - rate - np.exp(np.minimum(epsilon, 1.0)), 0.0)
        result: Floats = np.logaddexp(total, np.log(left * most))
    return result
