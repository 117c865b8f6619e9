"""Trade-off functions: (2.1), Gaussian differential privacy, the duality with (ε, δ) and (3.2), from the definitions.

| here | in the paper |
| --- | --- |
| level, type II error | α, f(α) = inf {1 − E_Q φ : E_P φ <= α} |
| epsilon, delta, mu, sigma | ε, δ, μ, σ |
| threshold | the test rejects where the outcome exceeds it |
| tilt | e^ε |

Everything is exact or 40-digit quadrature of densities; nothing is estimated by sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath

from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range

Real = Any  # an mpmath number
_HALVINGS = 150
MUS = ("0.23", "0.57", "1.13", "2.00", "2.76", "4.78", "2.03", "2.07", "1.94")  # as Tables 1-4 print them


def normal_mass(low: Real, high: Real, mean: Real = 0, deviation: Real = 1) -> Real:
    """The probability that N(mean, deviation²) gives to an interval, integrated."""
    # the mass beyond 30 deviations is below 1e-190
    low, high = max(low, mean - 30 * deviation), min(high, mean + 30 * deviation)
    if high <= low:
        return mpmath.mpf(0)
    inside = [mean + share * deviation for share in (-8, -3, 0, 3, 8) if low < mean + share * deviation < high]
    return mpmath.quad(lambda x: mpmath.npdf(x, mean, deviation), [low, *inside, high])


def normal_quantile(probability: Real) -> Real:
    """Φ^{-1}."""
    return mpmath.sqrt(2) * mpmath.erfinv(2 * probability - 1)


def largest(holds: Callable[[Real], bool], low: Real, high: Real) -> Real:
    """The end of the interval from `low`, where `holds`, up to where it stops."""
    low, high = mpmath.mpf(low), mpmath.mpf(high)
    if holds(high):
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


# ---- (2.1) ----


def _private(first: tuple[Real, Real], second: tuple[Real, Real], epsilon: Real, delta: Real) -> bool:
    """Definition 2.1 for distributions on two outcomes: each of the four events, in both directions."""
    tilt = mpmath.exp(epsilon)
    events = [(first[0], second[0]), (first[1], second[1])]
    return all(a <= tilt * b + delta and b <= tilt * a + delta for a, b in events)


def _least_error(epsilon: str, delta: str, level: str) -> Real:
    """Over all (ε, δ)-DP pairs the least type II error at a level; the test's own outcome is a pair on two outcomes."""
    e, d, a = (mpmath.mpf(value) for value in (epsilon, delta, level))
    power = largest(lambda x: _private((a, 1 - a), (x, 1 - x), e, d), a, 1)
    return 1 - power


def _equation_2_1(epsilon: str, delta: str, level: str) -> Real:
    e, d, a = (mpmath.mpf(value) for value in (epsilon, delta, level))
    return max(mpmath.mpf(0), 1 - d - mpmath.exp(e) * a, mpmath.exp(-e) * (1 - d - a))


def _equation_2_1_without_signs(epsilon: str, delta: str, level: str) -> Real:
    e, d, a = (mpmath.mpf(value) for value in (epsilon, delta, level))
    return max(mpmath.mpf(0), 1 - d - mpmath.exp(e) * a, mpmath.exp(e) * (1 - d - a))


_LEVELS = ("0", "1e-6", "0.01", "0.2", "0.5", "0.9", "1")
equation_2_1 = Formula(
    _equation_2_1,
    _least_error,
    [
        {"epsilon": e, "delta": d, "level": a}
        for e, d in (("0.83", "1e-5"), ("7.10", "1e-5"), ("15.39", "1e-6"), ("0", "0.1"), ("1", "0"))
        for a in _LEVELS
    ],
    twin=_equation_2_1_without_signs,
    scale=lambda epsilon, delta, level: mpmath.mpf(1),  # noqa: ARG005
)

remark_1 = Inequality(
    lambda epsilon, delta, more, wider, level: (
        _error(epsilon, delta, level) - _error(epsilon + more, wider, level) if wider >= delta else 0.0
    ),
    {
        "epsilon": Range(0, 20),
        "delta": Range(0, 0.5),
        "more": Range(0, 20),
        "wider": Range(0, 0.5),
        "level": Range(0, 1),
    },
    (
        {"epsilon": 0.83, "delta": 1e-5, "more": 0.36, "wider": 1e-5, "level": 0.2},
        {"epsilon": 5.07, "delta": 1e-5, "more": 2.03, "wider": 1e-5, "level": 0.001},
    ),
    twin=lambda epsilon, delta, more, wider, level: (
        _error(epsilon + more, wider, level) - _error(epsilon, delta, level)
    ),
    obligations=("each of the three terms of (2.1) falls in ε and in δ, so their maximum does",),
    examples=80,
)


def _error(epsilon: float, delta: float, level: float) -> float:
    """(2.1) in doubles."""
    return max(0.0, 1 - delta - math.exp(epsilon) * level, math.exp(-epsilon) * (1 - delta - level))


# ---- Gaussian differential privacy ----


def _tradeoff(level: Real, mu: Real) -> Real:
    """The closed form that the paper gives for G_μ."""
    return mpmath.ncdf(normal_quantile(1 - level) - mu)


def _gaussian_closed(threshold: str, mu: str) -> Real:
    return _tradeoff(normal_mass(mpmath.mpf(threshold), mpmath.inf), mpmath.mpf(mu))


def _gaussian_errors(threshold: str, mu: str) -> Real:
    """The type II error of the likelihood-ratio test of N(0, 1) against N(μ, 1), which rejects above a threshold."""
    return normal_mass(-mpmath.inf, mpmath.mpf(threshold), mpmath.mpf(mu))


gaussian_tradeoff = Formula(
    _gaussian_closed,
    _gaussian_errors,
    [{"threshold": t, "mu": mu} for mu in (*MUS[:3], MUS[5]) for t in ("-1.5", "0.3", "2", "4.2")],
    twin=lambda threshold, mu: _tradeoff(normal_mass(mpmath.mpf(threshold), mpmath.inf), -mpmath.mpf(mu)),
    precision=20,
)


def _mechanism_errors(threshold: str, sensitivity: str, sigma: str) -> Real:
    """Type II error of the best test of θ + N(0, σ²) against θ + sens + N(0, σ²), the threshold in deviations."""
    s, deviation = mpmath.mpf(sensitivity), mpmath.mpf(sigma)
    return normal_mass(-mpmath.inf, mpmath.mpf(threshold) * deviation, s, deviation)


def _mechanism_closed(threshold: str, sensitivity: str, sigma: str, power: int = 1) -> Real:
    deviation = mpmath.mpf(sigma)
    level = normal_mass(mpmath.mpf(threshold) * deviation, mpmath.inf, 0, deviation)
    return _tradeoff(level, (mpmath.mpf(sensitivity) / deviation) ** power)


gaussian_mechanism = Formula(
    _mechanism_closed,
    _mechanism_errors,
    [
        {"threshold": t, "sensitivity": s, "sigma": sigma}
        for s, sigma in (("1", "1.3"), ("1", "0.5"), ("1.5", "1.95"), ("2", "5"))
        for t in ("-1", "0.5", "3")
    ],
    twin=lambda threshold, sensitivity, sigma: _mechanism_closed(threshold, sensitivity, sigma, 2),
    precision=20,
)


def _inverse(level: str, mu: str) -> Real:
    """inf {t : G_μ(t) <= α} by halving."""
    a, m = mpmath.mpf(level), mpmath.mpf(mu)
    return largest(lambda t: t == 0 or _tradeoff(t, m) > a, 0, 1)


gaussian_inverse = Formula(
    lambda level, mu: _tradeoff(mpmath.mpf(level), mpmath.mpf(mu)),
    _inverse,
    [{"level": a, "mu": mu} for mu in ("0.57", "4.78") for a in ("0.001", "0.2", "0.7")],
    twin=lambda level, mu: 1 - _tradeoff(1 - mpmath.mpf(level), mpmath.mpf(mu)),
    precision=25,
)


def _float_tradeoff(level: float, mu: float) -> float:
    from scipy.special import ndtr, ndtri

    return float(ndtr(-ndtri(level) - mu))


gaussian_convex = Inequality(
    lambda mu, one, other: (
        (_float_tradeoff(one, mu) + _float_tradeoff(other, mu)) / 2 - _float_tradeoff((one + other) / 2, mu)
    ),
    {"mu": Range(0.01, 10, "log"), "one": Range(1e-9, 1 - 1e-9), "other": Range(1e-9, 1 - 1e-9)},
    tuple({"mu": float(mu), "one": 0.01, "other": 0.4} for mu in MUS),
    twin=lambda mu, one, other: (
        _float_tradeoff((one + other) / 2, mu) - (_float_tradeoff(one, mu) + _float_tradeoff(other, mu)) / 2
    ),
    tolerance=1e-12,
    obligations=("G_μ'(α) = −exp(μ Φ^{-1}(1 − α) − μ²/2), which grows with α",),
    examples=80,
)


# ---- duality and (3.2) ----


def _hockey_stick(epsilon: str, mu: str) -> Real:
    """∫ (dN(μ, 1) − e^ε dN(0, 1))₊: the density difference is positive beyond ε/μ + μ/2."""
    e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
    start = e / m + m / 2
    width = 1 / (1 + abs(start - m))
    points = [start + width * share for share in (0, 1, 4, 10, 30, 90)]
    return mpmath.quad(lambda x: mpmath.npdf(x, m, 1) - mpmath.exp(e) * mpmath.npdf(x), points)


def _equation_3_2(epsilon: str, mu: str) -> Real:
    e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
    return mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)


def _equation_3_2_sign(epsilon: str, mu: str) -> Real:
    e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
    return mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m + m / 2)


equation_3_2 = Formula(
    _equation_3_2,
    _hockey_stick,
    [
        {"epsilon": e, "mu": mu}
        for mu, es in (("0.23", ("0", "0.83")), ("1.13", ("1", "5.07")), ("4.78", ("0", "31.12")), ("1.94", ("10.61",)))
        for e in es
    ],
    twin=_equation_3_2_sign,
    precision=40,
)


def _conjugate(epsilon: str, mu: str) -> Real:
    """1 + f*(−e^ε) = sup_α (1 − e^ε α − G_μ(α)), climbed over the threshold by ternary search."""
    e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)

    def value(t: Real) -> Real:
        return 1 - mpmath.exp(e) * mpmath.ncdf(-t) - mpmath.ncdf(t - m)

    low, high = e / m - 6, e / m + m + 6
    for _ in range(90):
        third = (high - low) / 3
        low, high = (low + third, high) if value(low + third) < value(high - third) else (low, high - third)
    return value((low + high) / 2)


duality = Formula(
    _conjugate,
    _hockey_stick,
    [{"epsilon": e, "mu": mu} for e, mu in (("0", "0.57"), ("2.32", "0.57"), ("5.07", "1.13"), ("31.12", "4.78"))],
    twin=lambda epsilon, mu: 1 - _conjugate(epsilon, mu),
    digits=10,
    precision=30,
)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """(3.2) in doubles, by mpmath's 30 digits where the two terms cancel."""
    with mpmath.workdps(30):
        return float(_equation_3_2(repr(epsilon), repr(mu)))


delta_grows_with_mu = Inequality(
    lambda epsilon, mu, more: gaussian_delta(epsilon, mu + more) - gaussian_delta(epsilon, mu),
    {"epsilon": Range(0, 40), "mu": Range(0.05, 10, "log"), "more": Range(1e-3, 3, "log")},
    tuple({"epsilon": e, "mu": m, "more": 0.1} for e, m in ((0.83, 0.23), (7.1, 1.13), (31.12, 4.78))),
    twin=lambda epsilon, mu, more: gaussian_delta(epsilon + more, mu) - gaussian_delta(epsilon, mu),
    obligations=("∂δ/∂μ is the normal density at −ε/μ + μ/2, which is positive",),
    examples=60,
)
