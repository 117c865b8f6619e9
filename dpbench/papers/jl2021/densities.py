"""Propositions B.3 to B.5 of jl2021: the central limit theorem, the density of Z_r, and the infinite χ²(f)."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import mpmath

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.papers.jl2021.tradeoff import g

PROJECTIONS = (1, 2, 3, 4, 10, 30)
_DIMENSIONS = tuple({"r": r} for r in PROJECTIONS)


def _defined_constant(r: int) -> Any:
    """∫ a^(−r−1) exp(−r/(2a²)) da over a > 0, in x = log a."""
    half = mpmath.mpf(r) / 2
    return mpmath.quad(lambda x: mpmath.exp(-r * x - half * mpmath.exp(-2 * x)), [-4, -1, 0, 1, 4, 15, 80])


def _constant(r: int, sign: int = 1) -> Any:
    half = mpmath.mpf(r) / 2
    return half ** (sign * half) * mpmath.gamma(half) / 2


constant = Formula(
    _constant,
    _defined_constant,
    _DIMENSIONS,
    twin=lambda r: 2 * _constant(r),
    corrected=lambda r: _constant(r, sign=-1),
    digits=8,
    precision=18,
)


def _by_substitution(sign: int = 1) -> Shown:
    """The same by the substitution w = 1/a² and exact fractions for even r: ∫ w^(r/2−1) e^(−rw/2) dw / 2."""
    wrong: dict[str, list[str]] = {}
    for r in (2, 4, 10, 30):
        half = Fraction(r, 2)
        true = Fraction(math.factorial(r // 2 - 1)) / half ** (r // 2) / 2
        printed = half ** (sign * (r // 2)) * math.factorial(r // 2 - 1) / 2
        if true != printed:
            wrong[str(r)] = [str(true), str(printed)]
    evidence = {"r: true, printed": wrong}
    factor = {str(r): float(Fraction(r, 2) ** r) for r in PROJECTIONS}
    reason = "the power of r/2 has the wrong sign: off by (r/2)^r, right at r = 2 alone" if wrong else "right"
    return Shown(not wrong, reason, factor["10"], evidence, {"exact fractions": wrong, "printed over true": factor})


constant_exactly = Demonstration(_by_substitution, twin=lambda: _by_substitution(sign=-1))


def _density_of_the_norm(r: int, a: float) -> Any:
    """−d/da of P(Σ of r squared Gaussians < r/a²), from the chi density in the norm ρ = √r/a."""
    rho = mpmath.sqrt(r) / a

    def weight(x: Any) -> Any:
        return x ** (r - 1) * mpmath.exp(-(x**2) / 2)

    total = mpmath.quad(weight, [0, 2, 5, 9, 16])
    return mpmath.diff(lambda b: -mpmath.quad(weight, [0, mpmath.sqrt(r) / b]) / total, a) + 0 * rho


density = Formula(
    lambda r, a: a ** mpmath.mpf(-r - 1) * mpmath.exp(-r / (2 * mpmath.mpf(a) ** 2)) / _defined_constant(r),
    _density_of_the_norm,
    tuple({"r": r, "a": a} for r, a in ((1, 0.7), (1, 30.0), (4, 1.5), (10, 0.8), (30, 1.1))),
    twin=lambda r, a: a ** mpmath.mpf(-r) * mpmath.exp(-r / (2 * mpmath.mpf(a) ** 2)) / _defined_constant(r),
    digits=6,
    precision=18,
)


def _gamma(r: int) -> Any:
    """The case distinction as printed."""
    if r % 2 == 0:
        return mpmath.factorial(r // 2 - 1)
    return mpmath.sqrt(mpmath.pi) * mpmath.factorial(r - 1) / (2 ** (r - 1) * mpmath.factorial((r - 1) // 2))


gamma = Formula(
    _gamma,
    lambda r: mpmath.quad(
        lambda x: mpmath.exp(mpmath.mpf(r) / 2 * x - mpmath.exp(x)), [-150, -30, -8, -2, 0, 1, 2, 3, 4, 5]
    ),
    tuple({"r": r} for r in (1, 2, 3, 4, 5, 10, 11, 30)),
    twin=lambda r: _gamma(r) * (r if r % 2 else 1),
    digits=9,
    precision=18,
)

# ---- Proposition B.5 ----


def _chi_square(mu: float) -> Any:
    """∫₀¹ f'(α)² dα − 1 of G_μ, with f' by numerical differentiation and α = Φ(−x)."""

    def slope(x: Any) -> Any:
        return mpmath.exp(mu * x - mpmath.mpf(mu) ** 2 / 2)

    x0 = mpmath.mpf("0.4")
    numeric = -mpmath.diff(lambda level: g(mu, level), mpmath.ncdf(-x0))
    assert abs(numeric / slope(x0) - 1) < 1e-8  # −f'(Φ(−x)) = e^(μx − μ²/2)
    return (
        mpmath.quad(
            lambda x: slope(x) ** 2 * mpmath.exp(-(x**2) / 2) / mpmath.sqrt(2 * mpmath.pi), mpmath.linspace(-12, 18, 6)
        )
        - 1
    )


def _chi_square_by_parameter(mu: float, power: int = 2) -> Any:
    """−∫ e^{2t} α'(t) dt − 1 with α(t) = Φ(−t/μ − μ/2), as the proof's second line has it."""

    def density_of_alpha(t: Any) -> Any:
        return mpmath.exp(-((t / mu + mu / 2) ** 2) / 2) / (mu * mpmath.sqrt(2 * mpmath.pi))

    return mpmath.quad(lambda t: mpmath.exp(power * t) * density_of_alpha(t), mpmath.linspace(-14, 22, 10)) - 1


_MU = tuple({"mu": mu} for mu in (0.5, 1 / 1.3, 1 / 0.9))
chi_square_by_parameter = Formula(
    _chi_square_by_parameter,
    _chi_square,
    _MU,
    twin=lambda mu: _chi_square_by_parameter(mu, power=1),
    digits=8,
    precision=18,
)


def _inner(z: float, sigma: float) -> Any:
    """∫ e^{3t/2}/√(2π) (σ/z) exp(−t²σ²/(2z²) − z²/(8σ²)) dt."""
    mu = mpmath.mpf(z) / sigma
    return mpmath.quad(
        lambda t: mpmath.exp(1.5 * t - t**2 / (2 * mu**2) - mu**2 / 8) / (mu * mpmath.sqrt(2 * mpmath.pi)),
        mpmath.linspace(1.5 * mu**2 - 12 * mu, 1.5 * mu**2 + 12 * mu, 5),
    )


inner_integral = Formula(
    lambda z, sigma: mpmath.exp(mpmath.mpf(z) ** 2 / mpmath.mpf(sigma) ** 2),
    _inner,
    tuple({"z": z, "sigma": sigma} for z in (0.3, 1.0, 5.0) for sigma in (1.3, 0.6)),
    twin=lambda z, sigma: mpmath.exp(mpmath.mpf(z) ** 2 / (2 * mpmath.mpf(sigma) ** 2)),
    digits=9,
    precision=18,
)


def _diverges(power: int = 2) -> Shown:
    """Lower bounds of the last integral in Arb: over [A, A + 1] it is at least its smallest value there, and grows.

    a^(−r−1) exp(−r/(2a²)) exp(a^power/σ²) grows on [A, A + 1] once 2A²/σ² > r + 1, for power = 2.
    """
    from flint import arb, ctx

    evidence: dict[str, Any] = {}
    grows = True
    with ctx.workprec(128):
        for r, sigma in ((1, "1.3"), (10, "0.9"), (30, "0.6")):
            logs = []
            for edge in (10, 20, 40, 80):
                low, high = arb(edge), arb(edge + 1)
                value = -(r + 1) * high.log() - arb(r) / (2 * low**2)
                value += low**power / arb(sigma) ** 2 if power > 0 else 0
                logs.append(float(value.lower()))
            evidence[f"r = {r}, sigma = {sigma}: log of the least area over [A, A + 1], A = 10, 20, 40, 80"] = logs
            grows &= all(b > a + 10 for a, b in pairwise(logs)) and logs[-1] > 100
    reason = "the area over [A, A + 1] grows without bound" if grows else "the area over [A, A + 1] does not grow"
    return Shown(grows, reason, None, evidence)


diverges = Demonstration(_diverges, twin=lambda: _diverges(power=0))


# ---- Proposition B.3 ----


def _limit(root: bool = True) -> Shown:
    """δ(1) of T sampled Gaussians, p = ν/√T, against G_μ with μ = ν √χ²(f), χ²(f) = e − 1 for σ = 1."""
    from dpbench.accounting import load_accountant
    from dpbench.compose import as_composition
    from dpbench.events import Composition, SampledGaussian

    nu, epsilon = 0.5, 1.0
    chi_square = math.e - 1
    mu = nu * (math.sqrt(chi_square) if root else chi_square)
    limit = float(mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu))
    errors = []
    for count in (10**4, 10**6, 10**8):
        event = SampledGaussian(nu / math.sqrt(count), 1.0)
        curve = load_accountant("exact").curve(as_composition(Composition(((event, count),))))
        errors.append(abs(float(curve.delta(epsilon).value) / limit - 1))
    shrinks = all(b < a / 5 for a, b in pairwise(errors))
    reason = "a hundredfold T brings delta about ten times nearer to the limit" if shrinks else "delta stays away"
    return Shown(shrinks, reason, errors[-1], {"relative_errors": errors, "mu": mu, "limit": limit})


limit = Demonstration(_limit, twin=lambda: _limit(root=False))
