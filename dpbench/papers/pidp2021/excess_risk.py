"""Theorems 1, 6 and 7 and Remark 4: the step (4), the sum of its recursion, and the excess risks.

| paper | here |
| --- | --- |
| ℓ, L, μ, α, G | ½(θ − z)², 1, 1, 1/L = 1, 1 on the parameter space [0, 1] |
| n, m, T, k | `records`, 1, ⌈ln n⌉, the number of records that meet noise, 1 |

A step of (1) with α = 1 is θ_{t+1} = z_t − b: the excess is half the variance of the data plus half of that of the
noise, whatever n and T are. (4) drops the variance of the chosen gradient: E‖∇ℓ(θ_t, z_t)‖² is ‖∇L‖² plus that
variance, not at most ‖∇L‖². The noise is left out below, as it only adds.
"""

from __future__ import annotations

import math
from fractions import Fraction

from dpbench.claims.judges import Shown, inequality, shown
from dpbench.papers.pidp2021.generalisation import HALF, expectations, risk
from dpbench.papers.pidp2021.rates import dp_sgd, dp_terms, pidp_sgd, pidp_terms


@shown(control={"rows": (HALF, HALF)}, pair="D = (0, 1), θ_t = 1/2, noise of variance 1/100")
def equation_4(rows: tuple[Fraction | int, ...] = (0, 1)) -> Shown:
    """Both sides of (4), exactly; the control has two equal records, whose gradients do not differ."""
    variance, size = Fraction(1, 100), len(rows)
    # E over b: (z − b) has the second moment of z plus the variance, so L(z − b) is L(z) + variance/2
    change = sum((risk(Fraction(z), rows) for z in rows), Fraction(0)) / size + variance / 2 - risk(HALF, rows)
    gradient = sum((HALF - z for z in rows), Fraction(0)) / size
    bound = -(gradient**2) / 2 + variance / 2
    spread = sum(((HALF - z - gradient) ** 2 for z in rows), Fraction(0)) / size
    again = bound + spread / 2  # smoothness with equality: −‖∇L‖² + ½(‖∇L‖² + the gradient's variance + σ²)
    routes = {"enumerated": float(change), "with the variance of the chosen gradient": float(again)}
    reason = f"the expected change is {change}, the printed bound {bound}; the gradient's variance is {spread}"
    return Shown(change <= bound if again == change else None, reason, float(change), {"bound": float(bound)}, routes)


@inequality(
    domain={"ratio": (0.01, 1, "log"), "steps": (1, 500, "whole")},
    settings=[{"ratio": 1.0, "steps": 1}, {"ratio": 0.1, "steps": 12}],
    control={"less": 1.0},
    examples=60,
)
def geometric_sum(ratio: float, steps: int, less: float = 0.0) -> float:
    """(1/x − Σ_{i<T} (1 − x)^i) x with x = μ/L, the sum term by term; the control has 1/x − 1."""
    return 1 - ratio * (math.fsum((1 - ratio) ** i for i in range(steps)) + less)


_SIZES = (10**2, 10**4, 10**6, 10**8)


def _over_the_rate(excess: dict[int, float], rate: dict[int, float], exact: Fraction, words: str) -> Shown:
    """Refuted where the excess over the printed rate, without its constant, grows by 5 and more from n to n.

    `exact` is the excess at the first n, enumerated in rationals.
    """
    ratios = {records: excess[records] / rate[records] for records in _SIZES}
    grows = all(ratios[100 * n] > 5 * ratios[n] for n in _SIZES[:-1])
    agree = abs(float(exact) - excess[100]) < 1e-12
    reason = f"the excess over {words} is {ratios[10**2]:.3g} at n = 100, {ratios[10**6]:.3g} at n = 10^6"
    reason += f" and {ratios[10**8]:.3g} at n = 10^8"
    evidence = {"excess_over_rate": {str(n): ratio for n, ratio in ratios.items()}}
    routes = {"closed form": {str(n): value for n, value in excess.items()}, "enumerated at n = 100": float(exact)}
    return Shown(not grows if agree else None, reason, ratios[10**8], evidence, routes)


@shown(control={"rate": 0}, pair="n throws of a fair coin, SGD without noise at rate 1/L")
def empirical_rate(epsilon: float, delta: float, noisy: bool, rate: int = 1) -> Shown:
    """E[L(θ_T) − L*] over the rate of Theorem 1, or of Theorem 6 with k = 1 where `noisy`; the control has θ_T = θ*."""
    printed = {
        n: math.log(1 / delta) * math.log(n) * (pidp_sgd(n, 1, epsilon, 1) if noisy else dp_sgd(n, 1, epsilon))
        for n in _SIZES
    }
    found = expectations(100, HALF, Fraction(rate))
    excess = {n: rate * (n - 1) / (8 * n) for n in _SIZES}
    return _over_the_rate(excess, printed, found["empirical"] - found["least"], "the printed rate")


@shown(control={"rate": 0}, pair="n throws of a coin with P(z = 1) = 1/n, SGD without noise at rate 1/L")
def population_rate(noisy: bool, rate: int = 1) -> Shown:
    """E[L_P(θ_T)] − min L_P over the printed minimum at m = ε = 1, of Theorem 7 with k = 1 where `noisy`.

    E[L*] is at most 1/(2n), as Remark 4 assumes. θ_T = z_T leaves half the coin's variance; θ* (the control) 1/n of it.
    """
    printed = {n: min(pidp_terms(n, 1, 1, 1) if noisy else dp_terms(n, 1, 1)) for n in _SIZES}
    excess = {n: (1 - 1 / n) / (2 * n) / (1 if rate else n) for n in _SIZES}
    exact = expectations(100, Fraction(1, 100), Fraction(rate))["excess"]
    return _over_the_rate(excess, printed, exact, "the printed minimum")
