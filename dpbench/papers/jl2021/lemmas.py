"""Lemmas 4.1 to 4.3 and Theorem 4.1 of jl2021.

Laws of Z are written as lists of (value, probability), or as Z_r by its projections: for r Gaussians with norm ρ,
Z = √r/ρ, and ρ has a density proportional to ρ^(r−1) e^(−ρ²/2), whose constant is an integral here, no Gamma function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import mpmath

from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range
from dpbench.papers.jl2021.sensitivity import above, delta_one, gaussian_delta, normal_certified, pair_delta_lower


def normal(x: Any, mean: Any = 0) -> Any:
    return mpmath.npdf(x, mean, 1)


LAWS: dict[str, tuple[tuple[float, float], ...]] = {
    "one": ((1.2, 1.0),),
    "two": ((0.4, 0.7), (2.5, 0.3)),
    "three": ((0.2, 0.5), (1.0, 0.25), (6.0, 0.25)),
}
TIMES = (-0.4, 4.0)
_SETTINGS = tuple({"law": law, "t": t} for law in LAWS for t in TIMES)


def _mean(law: str, function: Any) -> Any:
    return sum(mpmath.mpf(weight) * function(mpmath.mpf(z)) for z, weight in LAWS[law])


def _pieces(low: Any, high: Any) -> Any:
    return mpmath.linspace(mpmath.mpf(low), mpmath.mpf(high), 5)


def _type_1(law: str, t: float) -> Any:
    """Pr under Z × N(0, 1) that x²/2 − (x − z)²/2 >= t, by integrating the density where it is so."""
    return _mean(law, lambda z: mpmath.quad(normal, _pieces(max(t / z + z / 2, -25), max(t / z + z / 2, -25) + 40)))


def _type_2(law: str, t: float) -> Any:
    """Pr under Z × N(Z, 1) that x²/2 − (x − z)²/2 < t."""
    return _mean(
        law,
        lambda z: mpmath.quad(
            lambda x: normal(x, z), _pieces(min(t / z + z / 2, z + 25) - 40, min(t / z + z / 2, z + 25))
        ),
    )


def _unit(**_: Any) -> Any:
    return mpmath.mpf(1)


lemma_4_1_alpha = Formula(
    lambda law, t: _mean(law, lambda z: mpmath.ncdf(-t / z - z / 2)),
    _type_1,
    _SETTINGS,
    twin=lambda law, t: _mean(law, lambda z: mpmath.ncdf(-t / z + z / 2)),
    scale=_unit,
    digits=10,
    precision=16,
)
lemma_4_1_beta = Formula(
    lambda law, t: _mean(law, lambda z: mpmath.ncdf(t / z - z / 2)),
    _type_2,
    _SETTINGS,
    twin=lambda law, t: _mean(law, lambda z: mpmath.ncdf(t / z + z / 2)),
    scale=_unit,
    digits=10,
    precision=16,
)


def _least_type_2(law: str, t: float) -> Any:
    """f(α(t)) by duality: f(α) >= 1 − δ − e^t α for the hockey stick δ = ∫∫ (Q − e^t P)₊, with equality at t."""
    x = mpmath.mpf(t)

    def stick(z: Any) -> Any:
        start = max(x / z + z / 2, mpmath.mpf(-25))
        return mpmath.quad(lambda y: normal(y, z) - mpmath.exp(x) * normal(y), _pieces(start, start + 25 + z))

    return 1 - _mean(law, stick) - mpmath.exp(x) * _type_1(law, t)


lemma_4_1_curve = Formula(
    lambda law, t: _mean(law, lambda z: mpmath.ncdf(t / z - z / 2)),
    _least_type_2,
    _SETTINGS,
    twin=lambda law, t: _mean(law, lambda z: mpmath.ncdf(t / z - z)),
    scale=_unit,
    digits=9,
    precision=16,
)


def _derivative(law: str, t: float, half: Any) -> Any:
    x = mpmath.mpf(t)
    inner = _mean(law, lambda z: mpmath.exp(-(x**2) / (2 * z**2) - z**2 / 8) / z)
    return mpmath.exp(half * x) / mpmath.sqrt(2 * mpmath.pi) * inner


lemma_4_1_alpha_derivative = Formula(
    lambda law, t: -_derivative(law, t, mpmath.mpf(-1) / 2),
    lambda law, t: mpmath.diff(lambda s: _type_1(law, s), t),
    _SETTINGS[::3],
    twin=lambda law, t: _derivative(law, t, mpmath.mpf(-1) / 2),
    scale=_unit,
    digits=6,
    precision=18,
)
lemma_4_1_beta_derivative = Formula(
    lambda law, t: _derivative(law, t, mpmath.mpf(1) / 2),
    lambda law, t: mpmath.diff(lambda s: _type_2(law, s), t),
    _SETTINGS[::3],
    twin=lambda law, t: _derivative(law, t, mpmath.mpf(-1) / 2),
    scale=_unit,
    digits=6,
    precision=18,
)
lemma_4_1_ratio = Formula(
    lambda t, **_: -mpmath.exp(mpmath.mpf(t)),
    lambda law, t: mpmath.diff(lambda s: _type_2(law, s), t) / mpmath.diff(lambda s: _type_1(law, s), t),
    tuple({"law": law, "t": t} for law, t in (("one", 0.3), ("two", 2.0))),
    twin=lambda t, **_: -mpmath.exp(-mpmath.mpf(t)),
    digits=6,
    precision=18,
)


# ---- Lemma 4.2 ----


def _two_point(share: float, one: float, two: float, epsilon: float) -> float:
    return share * gaussian_delta(epsilon, one) + (1 - share) * gaussian_delta(epsilon, two)


def _coupled(one: float, two: float, share: float, first: float, second: float, epsilon: float) -> float:
    """δ_Z(ε) − δ_Z̃(ε), where Z̃ is the share `first` or `second` of Z's two values."""
    return _two_point(share, one, two, epsilon) - _two_point(share, one * first, two * second, epsilon)


def _averaged(one: float, two: float, share: float, first: float, second: float, epsilon: float) -> float:
    """The mistake of comparing Z̃ with Z on average only: `first` and `second` move Z̃'s values apart at equal mean."""
    mean = share * one + (1 - share) * two
    spread = (two - mean) * (1 + first + second)
    high = mean + spread
    low = mean - spread * (1 - share) / share if share > 0 else mean
    if low <= 0 or high <= 0:
        return math.inf
    return _two_point(share, one, two, epsilon) - _two_point(share, low, high, epsilon)


lemma_4_2 = Inequality(
    _coupled,
    {
        "one": Range(0.01, 6.0, "log"),
        "two": Range(0.01, 6.0, "log"),
        "share": Range(0.0, 1.0),
        "first": Range(0.0, 1.0),
        "second": Range(0.0, 1.0),
        "epsilon": Range(0.0, 10.0),
    },
    ({"one": 1 / 1.3, "two": 2.0, "share": 0.5, "first": 0.5, "second": 0.9, "epsilon": 1.0},),
    twin=_averaged,
    tolerance=1e-12,
    obligations=("δ_Z(ε) = E[δ_z(ε)]", "δ_z(ε) grows with z", "f is lower where δ is higher at every ε"),
)


def _step(larger: float, ratio: float, epsilon: float) -> float:
    """δ_z̃(ε) − δ_z(ε) for z >= z̃: the step as printed says that this is at least 0."""
    return gaussian_delta(epsilon, larger * ratio) - gaussian_delta(epsilon, larger)


def _step_certified(larger: float, ratio: float, epsilon: float) -> tuple[float, float]:
    from flint import arb, ctx

    with ctx.workprec(128):

        def delta(mu: Any, e: Any) -> Any:
            return normal_certified(mu / 2 - e / mu) - e.exp() * normal_certified(-mu / 2 - e / mu)

        ball = delta(arb(larger * ratio), arb(epsilon)) - delta(arb(larger), arb(epsilon))
        return float(ball.lower()), float(ball.upper())


lemma_4_2_step = Inequality(
    _step,
    {"larger": Range(0.1, 4.0), "ratio": Range(0.1, 1.0), "epsilon": Range(0.0, 5.0)},
    ({"larger": 2.0, "ratio": 0.5, "epsilon": 1.0},),
    twin=lambda larger, ratio, epsilon: _step(larger, ratio, epsilon) - 1.0,
    enclosure=_step_certified,
)


def _double_stick(law: str, t: float) -> Any:
    """∫∫ (Z×N(Z,1) − e^ε Z×N(0,1))₊ with ε = t, over the whole line and the positive part taken point by point."""
    x = mpmath.mpf(t)

    def stick(z: Any) -> Any:
        edge = x / z + z / 2
        return mpmath.quad(
            lambda y: max(normal(y, z) - mpmath.exp(x) * normal(y), 0), sorted([*_pieces(-25, 30), edge])
        )

    return _mean(law, stick)


lemma_4_2_mean = Formula(
    lambda law, t: _mean(law, lambda z: mpmath.ncdf(z / 2 - t / z) - mpmath.exp(t) * mpmath.ncdf(-z / 2 - t / z)),
    _double_stick,
    tuple({"law": law, "t": t} for law in LAWS for t in (0.0, 0.7)),
    twin=lambda law, **_: mpmath.ncdf(_mean(law, lambda z: z) / 2) - mpmath.ncdf(-_mean(law, lambda z: z) / 2),
    scale=_unit,
    digits=9,
    precision=16,
)


# ---- Lemma 4.3 and Theorem 4.1 ----


def _nodes(edges: Sequence[float], count: int) -> tuple[Any, Any]:
    """Gauss-Legendre nodes and weights on consecutive pieces."""
    import numpy as np

    x, w = np.polynomial.legendre.leggauss(count)
    middle = [((a + b) / 2, (b - a) / 2) for a, b in pairwise(edges)]
    return np.concatenate([m + h * x for m, h in middle]), np.concatenate([h * w for _, h in middle])


def _lemma_printed(projections: int, sigma: float, t: float, which: str, square: bool = False) -> float:
    """E over the density of Z_r (Proposition B.4 with the right constant) of Φ(∓tσ/Z − Z/(2σ))."""
    import numpy as np
    from scipy.special import gammaln, ndtr

    half, sign = projections / 2, -1 if which == "alpha" else 1
    scale = sigma**2 if square else sigma
    y, weights = _nodes((-14.0, -4.0, -1.0, -0.3, 0.0, 0.3, 1.0, 4.0, 9.0, 16.0, 30.0, 60.0), 60)  # log a
    log_density = math.log(2) + half * math.log(half) - gammaln(half) - projections * y - half * np.exp(-2 * y)
    a = np.exp(y)
    return float(np.sum(weights * np.exp(log_density) * ndtr(sign * t * scale / a - a / (2 * scale))))


def _lemma_defined(projections: int, sigma: float, t: float, which: str) -> float:
    """Pr[xμ − μ²/2 >= t] (alpha) or Pr[xμ + μ²/2 < t] (beta) with μ = √r/(ρσ), by integrating both densities."""
    import numpy as np

    rho, weights = _nodes((0.0, 0.02, 0.1, 0.3, 0.7, 1.5, 3.0, 5.0, 8.0, 14.0), 40)
    norm_density = rho ** (projections - 1) * np.exp(-(rho**2) / 2)
    mu = math.sqrt(projections) / (rho * sigma)
    edge = np.clip(t / mu + mu / 2 if which == "alpha" else mu / 2 - t / mu, -14.0, 14.0)
    share, inner_weights = _nodes((0.0, 0.1, 0.3, 0.6, 1.0), 40)
    length = 15.0 - edge
    x = edge[:, None] + length[:, None] * share
    inner = length * np.sum(inner_weights * np.exp(-(x**2) / 2), axis=1) / math.sqrt(2 * math.pi)
    return float(np.sum(weights * norm_density * inner) / np.sum(weights * norm_density))


lemma_4_3_curve = Formula(
    _lemma_printed,
    _lemma_defined,
    tuple(
        {"projections": r, "sigma": s, "t": t, "which": which}
        for r, s, t in ((1, 1.3, 0.5), (2, 0.9, -1.0), (4, 0.9, 3.0), (10, 0.6, 2.0), (30, 0.5, 1.0))
        for which in ("alpha", "beta")
    ),
    twin=lambda **setting: _lemma_printed(**setting, square=True),
    digits=7,
    scale=lambda **_: 1.0,
)


def _dominated(length: float, noise_multiplier: float, projections: int, epsilon: float) -> float:
    """δ that Lemma 4.3 grants less what removing a record with gradient norm `length`·C from zeros loses (r projections
    drawn, none released, no sampling): (P − e^ε Q)(output > τ), the best of some τ."""
    granted = delta_one(epsilon, 1.0, noise_multiplier, projections)
    middle = noise_multiplier * math.sqrt(2 * max(epsilon, 0.05))
    lost = 0.0
    for factor in (0.3, 0.6, 0.9, 1.1, 1.4):
        tau = factor * middle
        there = above(tau, 1.0, noise_multiplier, projections, length)
        silent = math.erfc(tau / noise_multiplier / math.sqrt(2)) / 2
        lost = max(lost, there - math.exp(epsilon) * silent)
    return granted - lost


_DOMAIN = {
    "length": Range(0.05, 1000.0, "log"),
    "noise_multiplier": Range(0.4, 4.0, "log"),
    "projections": Range(1, 40, "whole"),
    "epsilon": Range(0.0, 8.0),
}
_OWN = tuple(
    {"length": 1000.0, "noise_multiplier": sigma, "projections": r, "epsilon": 2.4}
    for sigma, r in ((1.3, 1), (0.9, 10), (0.6, 30), (0.5, 4))
)
lemma_4_3 = Inequality(
    _dominated,
    _DOMAIN,
    _OWN,
    twin=lambda length, noise_multiplier, projections, epsilon: (
        gaussian_delta(epsilon, 1 / noise_multiplier)
        - delta_one(epsilon, 1.0, noise_multiplier, projections)
        + _dominated(length, noise_multiplier, projections, epsilon)
    ),  # that estimated norms cost nothing: sensitivity 1
    tolerance=1e-8,
    obligations=(
        "given the projections, the other records' part of the sum is the same with and without the record",
        "given the record's estimated norm, the projections and the output are independent (Proposition 4.3)",
        "the noise is rotation invariant and independent of the projections",
        "min(|g|/C, Z_r) <= Z_r by the same projections (Lemma 4.2); |g| = 0 makes the estimate 0 and moves nothing",
    ),
    examples=25,
)


def _sampled(rate: float, noise_multiplier: float, projections: int, epsilon: float, grow: float = 1.0) -> float:
    lost = pair_delta_lower(epsilon, rate, noise_multiplier, projections)[0]
    return delta_one(epsilon, rate * grow, noise_multiplier, projections) - lost


theorem_4_1 = Inequality(
    _sampled,
    {
        "rate": Range(0.001, 0.9, "log"),
        "noise_multiplier": Range(0.4, 4.0, "log"),
        "projections": Range(1, 40, "whole"),
        "epsilon": Range(0.05, 8.0),
    },
    tuple(
        {"rate": rate, "noise_multiplier": sigma, "projections": r, "epsilon": epsilon}
        for rate, sigma, r, epsilon in (
            (256 / 60000, 1.3, 1, 2.4),
            (256 / 50000, 0.9, 1, 5.55),
            (256 / 25000, 0.6, 1, 8.0),
            (256 / 50000, 0.9, 10, 5.55),
        )
    ),
    twin=lambda rate, noise_multiplier, projections, epsilon: _sampled(
        rate, noise_multiplier, projections, epsilon, grow=rate
    ),  # that sampling helps twice
    tolerance=1e-8,
    obligations=(
        "every record enters each batch independently with probability p (Poisson sampling), and neighbours differ by "
        "one record that is added or removed: with the fixed batches of the printed Algorithm 1 this fails",
        "the two directions are composed apart, then their minimum is taken, then its convex hull",
        "Lemma 4.3 holds for every state that earlier iterations may have led to",
    ),
    examples=12,
)
