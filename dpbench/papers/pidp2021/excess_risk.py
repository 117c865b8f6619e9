"""Theorems 1 and 6: the step (4), the sum of its recursion, and the excess empirical risk.

| paper | here |
| --- | --- |
| ℓ, L, μ, α, G | ½(θ − z)², 1, 1, 1/L = 1, 1 on the parameter space [0, 1] |
| n, m, T, σ², k | `records`, 1, `steps`, `variance`, `silent`: n − k records meet no noise |
| E[L(θ_T; D) − L*] | `excess` |

With data z in {0, 1}, half of them 1 (or fair coins), a step of (1) with α = 1 is θ_{t+1} = z_t − b: the excess is half
the variance of the data plus half of that of the noise, whatever n and T are. (4) drops the variance of the chosen
gradient: E‖∇ℓ(θ_t, z_t)‖² is ‖∇L‖² plus that variance, not at most ‖∇L‖².
"""

from __future__ import annotations

import math
from fractions import Fraction

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.inequality import Inequality, Range


def _loss(theta: Fraction, rows: tuple[Fraction, ...]) -> Fraction:
    return sum(((theta - z) ** 2 for z in rows), Fraction(0)) / (2 * len(rows))


def _step(variance: Fraction, alike: bool = False) -> Shown:
    """(4) at θ_t = ½ with D = (0, 1) and noise ±sqrt(variance) of that variance, both sides exactly."""
    half = Fraction(1, 2)
    rows = (half, half) if alike else (Fraction(0), Fraction(1))
    start = _loss(half, rows)
    # E over b: (z − b) has the second moment of z plus the variance, so L(z − b) is L(z) + variance/2
    change = sum((_loss(z, rows) for z in rows), Fraction(0)) / len(rows) + variance / 2 - start
    gradient = sum((half - z for z in rows), Fraction(0)) / len(rows)
    bound = -(gradient**2) / 2 + variance / 2
    spread = sum(((half - z - gradient) ** 2 for z in rows), Fraction(0)) / len(rows)
    again = bound + spread / 2  # smoothness with equality: −‖∇L‖² + ½(‖∇L‖² + the gradient's variance + σ²)
    routes = {"enumerated": float(change), "with the variance of the chosen gradient": float(again)}
    reason = f"the expected change is {change}, the printed bound {bound}; the gradient's variance is {spread}"
    holds = None if again != change else change <= bound
    return Shown(holds, reason, float(change), {"bound": float(bound)}, routes)


equation_4 = Demonstration(lambda: _step(Fraction(1, 100)), twin=lambda: _step(Fraction(1, 100), alike=True))


def _sum_margin(ratio: float, steps: float, less: float = 0.0) -> float:
    """1/x − Σ_{i<T} (1 − x)^i with x = μ/L, times x, the sum term by term."""
    total = term = 0.0
    power = 1.0
    for _ in range(round(steps)):
        term = power
        total += term
        power *= 1 - ratio
    return 1 - ratio * total - less


geometric_sum = Inequality(
    _sum_margin,
    {"ratio": Range(0.01, 1, "log"), "steps": Range(1, 500, "whole")},
    ({"ratio": 1.0, "steps": 1}, {"ratio": 0.1, "steps": 12}),
    lambda ratio, steps: _sum_margin(ratio, steps, less=ratio),
    tolerance=1e-12,
    examples=60,
)


def excess_enumerated(records: int, variance: Fraction) -> Fraction:
    """E over fair coins D and the last choice of L(θ_T; D) − L*, summed over all numbers of ones."""
    total = Fraction(0)
    for ones in range(records + 1):
        share = Fraction(ones, records)
        expected = Fraction(0)
        for z, weight in ((Fraction(0), 1 - share), (Fraction(1), share)):
            value = ((1 - share) * z**2 + share * (z - 1) ** 2) / 2
            expected += weight * value
        expected += variance / 2 - share * (1 - share) / 2
        total += Fraction(math.comb(records, ones), 2**records) * expected
    return total


def _vanishing(epsilon: float, delta: float, silent: bool = False, interpolating: bool = False) -> Shown:
    """The exact excess over the printed rate without its constant, at growing n; T = ⌈ln n⌉, m = G = 1.

    Without the noise, which only adds: so the ratio grows without bound, and no constant makes the rate true.
    `silent`: Theorem 6 with k = 1.
    """
    ratios, excesses = {}, {}
    for records in (10**2, 10**3, 10**4, 10**6, 10**8):
        rate = math.log(1 / delta) * math.log(records) / (records * epsilon) ** 2 / (records if silent else 1)
        excess = 0.0 if interpolating else (records - 1) / (8 * records)  # ½ · E[share(1 − share)]
        ratios[str(records)] = excess / rate
        excesses[str(records)] = excess
    exact = excess_enumerated(100, Fraction(0))
    agree = interpolating or exact == Fraction(99, 800)
    grows = all(b > 5 * a for a, b in zip(list(ratios.values()), list(ratios.values())[1:], strict=False))
    grows = grows and min(ratios.values()) > 0
    at = f"{ratios['100']:.3g} at n = 100, {ratios['1000000']:.3g} at n = 10^6"
    reason = f"the excess stays near 1/8; over the printed rate it is {at}"
    if not grows:
        reason = "the excess over the printed rate does not grow"
    routes = {"closed form": excesses, "enumerated at n = 100": float(exact)}
    evidence = {"excess_over_rate": ratios, "epsilon": epsilon, "delta": delta}
    return Shown(None if not agree else not grows, reason, excesses["1000000"], evidence, routes)


theorem_1 = Demonstration(_vanishing, twin=lambda **parameters: _vanishing(**parameters, interpolating=True))
theorem_6 = Demonstration(
    lambda epsilon, delta: _vanishing(epsilon, delta, silent=True),
    twin=lambda epsilon, delta: _vanishing(epsilon, delta, silent=True, interpolating=True),
)


def _population(power: str, silent: bool = False, averaged: bool = False) -> Shown:
    """E[L_P(θ_T)] − min L_P with P(z = 1) = 1/n, so that E[L*] <= 1/(2n); over the printed minimum, m = ε = 1.

    The last step at α = 1 leaves θ_T = z_T − b, so the excess is half the coin's variance, (1 − 1/n)/(2n), and more
    with noise; `averaged`: the optimum of D in its place, whose excess is smaller by 1/n.
    """
    ratios, exact = {}, {}
    for records in (10**2, 10**4, 10**6, 10**8):
        variance = (1 - 1 / records) / records
        excess = variance / 2 / (records if averaged else 1)
        terms = [records**-2.0 + 1 / records, records**-1.5 + records**-2.5]
        if silent:
            terms = [records**-3.0 + 1 / records, records**-2.5 + records**-1.5, records**-2.0 + 1 / records]
        ratios[str(records)], exact[str(records)] = excess / min(terms), excess
    size = 100
    enumerated = Fraction(0)
    for ones in range(size + 1):
        weight = math.comb(size, ones) * Fraction(1, size) ** ones * Fraction(size - 1, size) ** (size - ones)
        mean = Fraction(ones, size)
        low, high = (mean, mean) if averaged else (Fraction(0), Fraction(1))
        centre = Fraction(1, size)
        enumerated += weight * ((1 - mean) * (low - centre) ** 2 + mean * (high - centre) ** 2) / 2
    agree = abs(float(enumerated) - exact["100"]) < 1e-12
    grows = ratios["100000000"] > 50 * ratios["10000"] and ratios["100000000"] > 1000
    reason = f"the excess over {power} is {ratios['100']:.3g} at n = 100 and {ratios['100000000']:.3g} at n = 10^8"
    routes = {"closed form": exact["100"], "enumerated": float(enumerated)}
    evidence = {"excess_over_rate": ratios}
    return Shown(None if not agree else not grows, reason, ratios["100000000"], evidence, routes)


remark_4_rate = Demonstration(
    lambda: _population("the printed rate"), twin=lambda: _population("the printed rate", averaged=True)
)
theorem_7 = Demonstration(
    lambda: _population("the printed rate with k = 1", silent=True),
    twin=lambda: _population("the printed rate with k = 1", silent=True, averaged=True),
)
