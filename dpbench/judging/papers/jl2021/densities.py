"""Propositions B.3 to B.5 of jl2021: the central limit theorem, the density of Z_r, and the infinite χ²(f)."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import mpmath
from flint import arb, ctx

from dpbench.judging.claims.judges import Shown, formula, grid, shown
from dpbench.judging.papers.mathematics import gaussian_delta, sampled, true_curve

Real = Any  # an mpmath number
PROJECTIONS = (1, 2, 3, 4, 10, 30)

# ---- Proposition B.4 ----


def defined_constant(r: int) -> Real:
    """∫ a^(−r−1) exp(−r/(2a²)) da over a > 0, in x = log a."""
    half = mpmath.mpf(r) / 2
    return mpmath.quad(lambda x: mpmath.exp(-r * x - half * mpmath.exp(-2 * x)), [-4, -1, 0, 1, 4, 15, 80])


@formula(settings=grid(r=PROJECTIONS), digits=8, precision=18)
def constant(r: int) -> tuple[Real, Real, Real]:
    """C_r as printed, as the integral of the density's shape, and with the sign of the power turned round."""
    half = mpmath.mpf(r) / 2
    printed, corrected = (half**power * mpmath.gamma(half) / 2 for power in (half, -half))
    return printed, defined_constant(r), corrected


@shown(control={"sign": -1})
def constant_exactly(sign: int = 1) -> Shown:
    """The same in exact fractions for even r, by w = 1/a²: ∫ w^(r/2−1) e^(−rw/2) dw = (r/2 − 1)! (r/2)^(−r/2)."""
    wrong: dict[str, list[str]] = {}
    for r in (2, 4, 10, 30):
        true, printed = (Fraction(r, 2) ** (s * r // 2) * math.factorial(r // 2 - 1) / 2 for s in (-1, sign))
        if true != printed:
            wrong[str(r)] = [str(true), str(printed)]
    factors = {str(r): float(Fraction(r, 2) ** r) for r in PROJECTIONS}
    reason = "the power of r/2 has the wrong sign: off by (r/2)^r, right at r = 2 alone" if wrong else "right"
    routes = {"exact fractions": wrong, "printed over true": factors}
    return Shown(not wrong, reason, factors["10"], {"r: true, printed": wrong}, routes)


@formula(
    settings=[{"r": r, "a": a} for r, a in ((1, "0.7"), (1, "30"), (4, "1.5"), (10, "0.8"), (30, "1.1"))],
    control={"power": 0},
    digits=6,
    precision=18,
)
def density(r: int, a: Real, power: int = 1) -> tuple[Real, Real]:
    """a^(−r−1) exp(−r/(2a²)) over its integral, and d/da P(Z_r < a) = −d/da P(χ²_r < r/a²)."""
    printed = a ** -(r + power) * mpmath.exp(-r / (2 * a**2)) / defined_constant(r)
    below = mpmath.diff(lambda b: mpmath.gammainc(mpmath.mpf(r) / 2, 0, r / (2 * b**2), regularized=True), a)
    return printed, -below


@formula(settings=grid(r=(1, 2, 3, 4, 5, 10, 11, 30)), control={"odd_too": True}, digits=9, precision=18)
def gamma(r: int, odd_too: bool = False) -> tuple[Real, Real]:
    """Γ(r/2) by the case distinction as printed, and Euler's integral."""
    if r % 2 == 0 or odd_too:
        printed = mpmath.factorial(r // 2 - 1) if r > 1 else mpmath.mpf(1)
    else:
        printed = mpmath.sqrt(mpmath.pi) * mpmath.factorial(r - 1) / (2 ** (r - 1) * mpmath.factorial((r - 1) // 2))
    points = [-150, -30, -8, -2, 0, 1, 2, 3, 4, 5]
    return printed, mpmath.quad(lambda x: mpmath.exp(mpmath.mpf(r) / 2 * x - mpmath.exp(x)), points)


# ---- Proposition B.5 ----


@formula(settings=grid(mu=(0.5, 1 / 1.3, 1 / 0.9)), control={"power": 1}, digits=8, precision=18)
def chi_square_by_parameter(mu: float, power: int = 2) -> tuple[Real, Real]:
    """−∫ e^{2t} α'(t) dt − 1 with α(t) = Φ(−t/μ − μ/2), and ∫ f'(α)² dα − 1 by α = P(x > s), where −f' is Q/P."""
    by_t = mpmath.quad(lambda t: mpmath.exp(power * t) * mpmath.npdf(t, -(mu**2) / 2, mu), mpmath.linspace(-14, 22, 10))
    by_level = mpmath.quad(lambda s: mpmath.npdf(s, mu) ** 2 / mpmath.npdf(s), mpmath.linspace(-12, 18, 6))
    return by_t - 1, by_level - 1


@formula(settings=grid(z=["0.3", "1", "5"], sigma=["1.3", "0.6"]), control={"half": 0.5}, digits=9, precision=18)
def inner_integral(z: Real, sigma: Real, half: float = 1.0) -> tuple[Real, Real]:
    """exp(Z²/σ²), and ∫ e^{3t/2}/√(2π) (σ/z) exp(−t²σ²/(2z²) − z²/(8σ²)) dt."""
    mu = z / sigma
    ends = mpmath.linspace(1.5 * mu**2 - 12 * mu, 1.5 * mu**2 + 12 * mu, 5)
    return mpmath.exp(half * mu**2), mpmath.quad(
        lambda t: mpmath.exp(1.5 * t - mu**2 / 8) * mpmath.npdf(t, 0, mu), ends
    )


@shown(control={"power": 0})
def diverges(power: int = 2) -> Shown:
    """Lower bounds (Arb) of the last integral over [A, A + 1], where the integrand is at least its least factors'
    product: a^(−r−1) at A + 1, exp(−r/(2a²)) and exp(a^power/σ²) at A."""
    evidence: dict[str, Any] = {}
    grows = True
    with ctx.workprec(128):
        for r, sigma in ((1, "1.3"), (10, "0.9"), (30, "0.6")):
            logs = []
            for edge in (10, 20, 40, 80):
                value = -(r + 1) * arb(edge + 1).log() - arb(r) / (2 * arb(edge) ** 2)
                logs.append(float((value + arb(edge) ** power / arb(sigma) ** 2).lower()))
            evidence[f"r = {r}, sigma = {sigma}: log of the least area over [A, A + 1], A = 10, 20, 40, 80"] = logs
            grows &= all(b > a + 10 for a, b in pairwise(logs)) and logs[-1] > 100
    reason = "the area over [A, A + 1] grows without bound" if grows else "the area over [A, A + 1] does not grow"
    return Shown(grows, reason, None, evidence)


# ---- Proposition B.3 ----


@shown(control={"power": 1.0})
def limit(power: float = 0.5) -> Shown:
    """δ(1) of T sampled Gaussians, p = ν/√T, against G_μ with μ = ν √χ²(f), χ²(f) = e − 1 for σ = 1."""
    mu = 0.5 * (math.e - 1) ** power
    there, errors = gaussian_delta(1.0, mu), []
    for count in (10**4, 10**6, 10**8):
        found = true_curve(sampled(0.5 / math.sqrt(count), 1.0, count)).delta(1.0).value
        errors.append(abs(float(found) / there - 1))
    shrinks = all(b < a / 5 for a, b in pairwise(errors))
    reason = "a hundredfold T brings delta about ten times nearer to the limit" if shrinks else "delta stays away"
    return Shown(shrinks, reason, errors[-1], {"relative_errors": errors, "mu": mu, "limit": there})
