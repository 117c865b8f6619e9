"""Rényi moments of a Gaussian mechanism at one order: closed sums at whole orders, quadrature at the others.

| here | in the papers |
| --- | --- |
| rate, noise, order, excess | q, σ, α, A_α − 1 |
| loss | ℓ = log(P/Q) at the place of a node |

**One identity for every pair.** With β = α − 1 and E(y) = e^y − 1 − y,

    ∫ Q (P/Q)^α − 1 = ∫ P · (β E(−ℓ) + E(β ℓ)),

because Q (P/Q)^α = P e^(βℓ), ∫ P = ∫ Q = 1, and P e^(−ℓ) = Q makes ∫ P (e^(−ℓ) − 1) = 0: adding β times this zero
turns P (e^(βℓ) − 1) into the bracket. E is never negative, so nothing cancels, at an order of 1.0001 as at 10000, for
q = 1e-7 as for 0.99; the excess keeps its digits where A_α itself is 1 to the last one.

**Trapezoidal sums.** P and the ratios are entire functions of x or have their zeros at the heights ±πσ² (for a group
too: the polynomial Σ_k C(g, k) (1−q)^(g−k) q^k y^k has only real zeros, all negative, and multiplying its coefficients
by e^(−k²/2σ²) keeps that, by Laguerre's theorem on multiplier sequences). So the integrand is analytic in the strip
|Im x| < πσ², and a sum with step h misses the integral by at most 2 N(d) / (e^(2πd/h) − 1), N(d) the integral of the
modulus along Im x = d < πσ². There N(d) is at most e^(d²/2σ²) cos(d/2σ²)^(−κ) times a moderate factor times the
integral itself: the first from the Gaussian, the second from κ negative powers of ratios, whose modulus is at least
cos(d/2σ²) times that on the real line. `strip_step` takes the largest h that leaves e^−44 of all that.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np

from dpbench.privacy.accountants._losses import Floats, group_log_ratio, log_ratio

HIGHEST_ORDER = 2**14
MOST_NOISE = 1e60  # above, the bound at this noise is used: it is larger, and nothing underflows
LEAST_RATE = 1e-50  # below, likewise
MOST_NODES = 2**16
_SPREAD = 9.5  # deviations of the normal density that are summed beyond the outermost peak: e^(−9.5²/2) = 2.5e-20
_E_SERIES = tuple(2.0 / math.factorial(k + 2) for k in range(11, -1, -1))


def log_e(y: Floats) -> Floats:
    """log(e^y − 1 − y) for any y, to about 1e-15 absolutely; −inf at 0.

    Below 1/4 the series (the next term is under 2·4^−12/14! = 1e-18); there e^y − 1 − y loses three bits at most;
    from 30 on e^y is taken out.
    """
    near, far = np.abs(y) < 0.25, y > 30.0
    middle = np.where(far, 30.0, y)
    value: Floats = np.expm1(middle) - middle
    if near.any():
        x = y[near]
        series = np.full_like(x, _E_SERIES[0])
        for coefficient in _E_SERIES[1:]:
            series *= x
            series += coefficient
        value[near] = series / 2
    with np.errstate(divide="ignore"):
        value = np.log(value)
        if near.any():
            value[near] += 2 * np.log(np.abs(y[near]))
    if far.any():
        x = y[far]
        value[far] = x + np.log1p(-(1 + x) * np.exp(-x))
    return value


def log_excess(log_weights: Floats, loss: Floats, beta: float) -> float:
    """log Σ weight · (β E(−ℓ) + E(βℓ)): the logarithm of A_α − 1, from nodes weighted under P. −inf where all ℓ = 0."""
    if beta * float(np.abs(loss).max(initial=0.0)) == math.inf:
        return math.inf
    return _log_sum(log_weights + np.logaddexp(math.log(beta) + log_e(-loss), log_e(beta * loss)))


def _log_sum(terms: Floats) -> float:
    top = float(terms.max())
    return top + math.log(float(np.exp(terms - top).sum())) if math.isfinite(top) else top


def log_one_plus(log_value: float) -> float:
    """log(1 + e^x): from the logarithm of A − 1 to that of A."""
    if log_value > 40:
        return log_value + math.exp(-log_value)
    return math.log1p(math.exp(log_value))


def strip_step(noise: float, powers: float) -> float:
    """The largest step, in units of σ, whose error by the module's bound is e^−44 of the integral (κ = `powers`)."""
    steps = []
    for share in (0.9, 0.7, 0.5, 0.35, 0.2, 0.1):
        angle = min(9.4 / noise, share * math.pi)  # d/σ²; 9.4 = √(2·44) is best where no zero is near
        depth = angle * noise  # d/σ
        steps.append(2 * math.pi * depth / (44 + depth * depth / 2 - powers * math.log(math.cos(angle / 2))))
    return max(steps)


def nodes(noise: float, first_peak: float, last_peak: float, powers: float) -> tuple[Floats, Floats] | None:
    """Places x/σ from below the first peak to beyond the last (both in units of x), and log(weight · density).

    None where more than 65536 nodes were needed.
    """
    step = strip_step(noise, powers)
    start, end = first_peak / noise - _SPREAD, last_peak / noise + _SPREAD
    if not (end - start) / step < MOST_NODES:
        return None
    places = start + step * np.arange(math.ceil((end - start) / step) + 1, dtype=np.float64)
    return places, -places * places / 2 + (math.log(step) - math.log(2 * math.pi) / 2)


def sampled_at_whole_order(rate: float, half_precision: float, order: int) -> float:
    """log A_α of the Poisson-sampled Gaussian, α >= 2 whole (Mironov, Talwar and Zhang 2019, section 3.3).

    A_α = Σ_k C(α, k) (1−q)^(α−k) q^k e^((k²−k)/2σ²). The binomial weights sum to 1 and the exponent vanishes at k = 0
    and 1, so A_α − 1 is the same sum from k = 2 on with e^x − 1 in place of e^x: only positive terms.
    """
    exponent, log_binomial, taken = _terms(order)
    exponent = exponent * half_precision
    # log(e^x − 1) = x + log(1 − e^−x)
    terms = log_binomial + taken * (math.log(rate) - math.log1p(-rate)) + exponent + np.log(-np.expm1(-exponent))
    top = float(terms.max())
    return log_one_plus(top + math.log(float(np.exp(terms - top).sum())) + order * math.log1p(-rate))


def sampled_by_quadrature(rate: float, noise: float, order: float) -> float | None:
    """log A_α of the Poisson-sampled Gaussian at any α > 1; None where too many nodes were needed.

    P is the mixture, Q = N(0, σ²), ℓ = log(1 − q + q e^((2x−1)/2σ²)). The integrand lives between the peak at or
    below 0 and that of (P/Q)^α Q at α, or of (P/Q − 1)² Q at 2. κ = 1 covers the power α − 2 below 0.
    """
    rate, noise = max(rate, LEAST_RATE), min(noise, MOST_NOISE)
    grid = nodes(noise, 0.0, float(max(math.ceil(order), 2)), 1.0)
    if grid is None:
        return None
    places, log_weights = grid
    loss = log_ratio(rate, places / noise - 0.5 / noise / noise)
    return log_one_plus(log_excess(log_weights + loss, loss, order - 1))


def replaced_by_quadrature(rate: float, noise: float, order: float) -> float | None:
    """log ∫ Q (P/Q)^α for P = (1−q) N(0, σ²) + q N(1, σ²), Q = (1−q) N(0, σ²) + q N(−1, σ²); None as above.

    Reflection x -> −x exchanges P and Q, so that both directions are equal. Peaks between −2 (where Q is not P) and
    2α − 1, that of N(1)^α N(−1)^(1−α), the outermost of all products. κ = α covers the power 1 − α of Q.
    """
    rate, noise = max(rate, LEAST_RATE), min(noise, MOST_NOISE)
    grid = nodes(noise, -2.0, max(2 * order - 1, 2.0), order)
    if grid is None:
        return None
    places, log_weights = grid
    shift = 0.5 / noise / noise
    up, down = log_ratio(rate, places / noise - shift), log_ratio(rate, -places / noise - shift)
    return log_one_plus(log_excess(log_weights + up, up - down, order - 1))


def group_by_quadrature(rate: float, noise: float, size: int, order: float) -> float | None:
    """The larger of log A_α and log B_α for P = Σ_k Bin(k; g, q) N(k, σ²) and Q = N(0, σ²); None as above.

    A has the peaks of (P/Q)^α Q, between 0 and gα (or 2g), and κ = g; B those of (P/Q)^(1−α) Q, between −g(α−1) and 0
    (or 2g), and κ = gα.
    """
    rate, noise = max(rate, LEAST_RATE), min(noise, MOST_NOISE)
    beta = order - 1
    moments = []
    for first, last, powers, sign in (
        (0.0, size * max(order, 2.0), float(size), 1),
        (-size * max(beta, 1.0), 2.0 * size, size * order, -1),
    ):
        grid = nodes(noise, first, last, powers)
        if grid is None or grid[0].size * size > 2**20:
            return None
        places, log_weights = grid
        ratio = group_log_ratio(rate, noise, size, places * noise)
        log_p = log_weights + ratio if sign > 0 else log_weights
        moments.append(log_excess(log_p, sign * ratio, beta))
    return log_one_plus(max(moments))


def without_replacement_at_whole_order(rate: float, precision: float, order: int) -> float:
    """(α−1) times the bound of Wang, Balle and Kasiviswanathan 2019, Theorem 9, for whole α >= 2.

    The base is a Gaussian of Rényi divergence j · `precision` / 2 at order j, so `precision` is (Δ/σ)², and its
    divergence of infinite order is infinite. 1 + C(α, 2) γ² min(4 (e^ε(2) − 1), 2 e^ε(2)) + Σ_(j>=3) 2 γ^j C(α, j)
    e^((j−1) ε(j)). The theorem never gives less than the unsampled base may be bounded by: a subsample mixes pairs of
    neighbours, and Rényi divergences are jointly quasi-convex (van Erven and Harremoës 2014, Theorem 13), so the
    base's own moment is a bound too, and the smaller one is returned.
    """
    base = order * (order - 1) * precision / 2
    exponent, log_binomial, taken = _terms(order)
    terms = math.log(2) + log_binomial + taken * math.log(rate) + exponent * (precision / 2)
    if precision < 700:
        at_two = min(math.log(4) + math.log(math.expm1(precision)), math.log(2) + precision)
        terms[0] = at_two + float(log_binomial[0]) + 2 * math.log(rate)
    top = float(terms.max())
    return min(log_one_plus(top + math.log(float(np.exp(terms - top).sum()))), base)


@lru_cache(maxsize=64)  # constants; calibration asks for the same orders again and again
def _terms(order: int) -> tuple[Floats, Floats, Floats]:
    """For k = 2 ... α: k² − k, log C(α, k) and k."""
    taken = np.arange(2, order + 1, dtype=np.float64)
    log_factorial = log_factorials()
    log_binomial = log_factorial[order] - log_factorial[2 : order + 1] - log_factorial[order - 2 :: -1][: order - 1]
    return taken * taken - taken, log_binomial, taken


@cache
def log_factorials() -> Floats:
    """log k! for k = 0 ... 16384, each to a few units in the last place."""
    return np.array([math.lgamma(k + 1) for k in range(HIGHEST_ORDER + 1)])
