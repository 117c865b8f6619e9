"""Theorems 2 and 3 and equations (6) to (10), where both sides can be computed exactly.

| paper | here |
| --- | --- |
| ℓ, P, D | ½(θ − z)², a coin with P(z = 1) = `coin`, `records` throws of it; L = μ = 1, G = 1 on [0, 1] |
| A, θ_priv | the mean of D, then one step of SGD without noise at learning rate `rate` (0: the optimum itself) |
| θ_i, z_i', τ | the model of the data with one record thrown anew, that record, `tau` |

Expectations are sums over the number of ones in D and over the chosen record.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range


def _expectations(records: int, coin: float, rate: float) -> dict[str, float]:
    """E over D and A of L_P(θ), L(θ; D) and L*, and min L_P, summed over all D and choices."""
    found = {"population": 0.0, "empirical": 0.0, "least": 0.0}
    for ones in range(records + 1):
        weight = math.comb(records, ones) * coin**ones * (1 - coin) ** (records - ones)
        mean = ones / records
        found["least"] += weight * mean * (1 - mean) / 2
        for z, chance in ((0.0, 1 - mean), (1.0, mean)):
            theta = mean - rate * (mean - z)
            found["population"] += weight * chance * ((1 - coin) * theta**2 + coin * (theta - 1) ** 2) / 2
            found["empirical"] += weight * chance * ((1 - mean) * theta**2 + mean * (theta - 1) ** 2) / 2
    found["best"] = coin * (1 - coin) / 2
    return found


def _moved(records: int, coin: float, rate: float) -> float:
    """E|θ_i − θ|² over a record and its replacement, the same index chosen in both runs."""
    total = 0.0
    for z, first in ((0.0, 1 - coin), (1.0, coin)):
        for new, second in ((0.0, 1 - coin), (1.0, coin)):
            for chosen, chance in ((1.0, 1 / records), (0.0, 1 - 1 / records)):
                shift = (1 - rate) * (new - z) / records + rate * chosen * (new - z)
                total += first * second * chance * shift**2
    return total


_COIN = {"coin": Range(0, 1), "rate": Range(0, 1), "tau": Range(1e-4, 1e4, "log"), "records": Range(1, 200, "whole")}
_COINS = (
    {"coin": 0.5, "rate": 0.0, "tau": 1.0, "records": 100},
    {"coin": 0.5, "rate": 0.0, "tau": 1e-3, "records": 100},
    {"coin": 0.1, "rate": 1.0, "tau": 5.0, "records": 20},
)


# ---- (6) to (9) ----


def _smooth_margin(theta: float, other: float, label: float, ridge: float, tau: float, keep: float = 1.0) -> float:
    """Lℓ(θ)/τ + (τ + L)/2 |θ' − θ|² − (ℓ(θ') − ℓ(θ)) for ℓ = λ(θ − y)²/2 + (1 − λ) ln(1 + e^θ)."""

    def value(at: float) -> float:
        return ridge * (at - label) ** 2 / 2 + (1 - ridge) * math.log1p(math.exp(at))

    smooth = ridge + (1 - ridge) / 4
    bound = keep * smooth * value(theta) / tau + (tau + smooth) / 2 * (other - theta) ** 2
    return bound - (value(other) - value(theta))


equation_6 = Inequality(
    _smooth_margin,
    {
        "theta": Range(-10, 10),
        "other": Range(-10, 10),
        "label": Range(-3, 3),
        "ridge": Range(0, 1),
        "tau": Range(1e-3, 1e3, "log"),
    },
    (
        {"theta": 1.0, "other": 1.5, "label": 0.0, "ridge": 1.0, "tau": 1.0},
        {"theta": 2.0, "other": 2.1, "label": 0.0, "ridge": 0.0, "tau": 0.01},
    ),
    lambda **point: _smooth_margin(**point, keep=0.0),
    tolerance=1e-9,
    obligations=("the loss is nowhere negative (Lemma 2)",),
    examples=100,
)


def _stability_margin(coin: float, rate: float, tau: float, records: int, keep: float = 1.0) -> float:
    """(7), the expectation over D as well."""
    found = _expectations(records, coin, rate)
    bound = keep * found["empirical"] / tau + (tau + 1) / 2 * _moved(records, coin, rate)
    return bound - (found["population"] - found["empirical"])


equation_7 = Inequality(
    _stability_margin,
    _COIN,
    _COINS,
    lambda **point: _stability_margin(**point, keep=0.0),
    tolerance=1e-12,
    obligations=("on-average stability, the expectation over D too; a supremum over z would not give L(theta; D)",),
    examples=40,
)


def _triangle(in_expectation: bool = False) -> Shown:
    """(8) after one noise-free step at α = 1 from 0, D = (0, 0) and D' = (0, 1).

    Left: |θ_i − θ_i*| + |θ* − θ| is ½ for either choice; right: L(θ_1; D) − L* = 0. In expectation over exchangeable
    D and D' both excesses have one mean, and E(a + b)² <= 2E a² + 2E b² gives the constant 8/μ.
    """
    pairs = [((0, 0), (0, 1))]
    if in_expectation:
        pairs = [((a, b), (a, c)) for a in (0, 1) for b in (0, 1) for c in (0, 1)]
    left = right = Fraction(0)
    for data, other in pairs:
        for index in (0, 1):
            best, best_other = Fraction(sum(data), 2), Fraction(sum(other), 2)
            moved = abs(other[index] - best_other) + abs(best - data[index])
            excess = sum((((data[index] - z) ** 2 - (best - z) ** 2) / 4 for z in data), Fraction(0))
            left += moved**2 / (2 * len(pairs))
            right += excess / (2 * len(pairs))
    routes = {"left, squared": float(left), "right, squared: 8 times the excess": float(8 * right)}
    reason = f"the squared left side is {left}, the squared right side {8 * right}"
    return Shown(left <= 8 * right, reason, float(left), {"in expectation over D": in_expectation}, routes)


equation_8 = Demonstration(_triangle, twin=lambda: _triangle(in_expectation=True))


def _rows(first: str, second: str) -> tuple[list[Fraction], list[Fraction], Fraction, Fraction]:
    data = [Fraction(1, 3), Fraction(-2, 5), Fraction(first)]
    other = [*data[:2], Fraction(second)]
    return data, other, sum(data, Fraction(0)) / 3, sum(other, Fraction(0)) / 3


def _risk(theta: Fraction, rows: list[Fraction]) -> Fraction:
    return sum(((theta - z) ** 2 for z in rows), Fraction(0)) / (2 * len(rows))


def _split(first: str, second: str, sign: int = 1) -> Fraction:
    """The right side of (9) before its bound."""
    data, other, best, moved = _rows(first, second)
    old = (moved - data[2]) ** 2 / 2 - (best - data[2]) ** 2 / 2
    new = (best - other[2]) ** 2 / 2 - (moved - other[2]) ** 2 / 2
    return old / 3 + sign * new / 3 + _risk(moved, other) - _risk(best, other)


def _direct(first: str, second: str) -> Fraction:
    data, _, best, moved = _rows(first, second)
    return _risk(moved, data) - _risk(best, data)


equation_9 = Formula(
    _split,
    _direct,
    ({"first": "1", "second": "-1"}, {"first": "1/7", "second": "5/6"}, {"first": "0", "second": "9/10"}),
    twin=lambda first, second: _split(first, second, sign=-1),
)


def _shift_margin(first: float, second: float, records: float, curvature: float, factor: float = 4.0) -> float:
    """factor·G/(nμ) − |θ_i* − θ*| times n for (h/2)(θ − z)², z in [0, 1], G = h: optima recomputed from sums."""
    others = 0.5 * (records - 1)
    before, after = (others + first) / records, (others + second) / records
    return records * (factor * curvature / (records * curvature) - abs(after - before))


optimum_shift = Inequality(
    _shift_margin,
    {"first": Range(0, 1), "second": Range(0, 1), "records": Range(1, 1000, "whole"), "curvature": Range(0.1, 1)},
    ({"first": 0.0, "second": 1.0, "records": 10, "curvature": 1.0},),
    lambda **point: _shift_margin(**point, factor=0.5),
    tolerance=1e-9,
    obligations=("one optimum, or the nearest one: see the fixed optimum of (3)",),
    examples=40,
)


# ---- Theorem 2 ----


def _theorem_2_margin(coin: float, rate: float, tau: float, records: int, keep: float = 1.0) -> float:
    """The right side at this τ less E[L_P − L], expectation over D and the algorithm."""
    found = _expectations(records, coin, rate)
    excess = found["empirical"] - found["least"]
    bound = 8 * (tau + 1) * excess + 16 * (tau + 1) / records**2 + keep * found["empirical"] / tau
    return bound - (found["population"] - found["empirical"])


theorem_2 = Inequality(
    _theorem_2_margin,
    _COIN,
    _COINS,
    lambda **point: _theorem_2_margin(**point, keep=0.0),
    tolerance=1e-12,
    obligations=("expectation over D and the algorithm", "losses nowhere negative", "one optimum, or the nearest one"),
    examples=40,
)


def _unlucky(records: int, over_datasets: bool = False) -> Shown:
    """Theorem 2 for one D of zeros only, a fair coin, the algorithm the optimum itself (nothing random in it)."""
    if over_datasets:
        found = _expectations(records, 0.5, 0.0)
        gap, empirical, excess = found["population"] - found["empirical"], found["empirical"], 0.0
    else:
        gap, empirical, excess = 0.25, 0.0, 0.0  # L_P(0) = P(z = 1)/2, L(0; D) = 0
    least = min(
        8 * (tau + 1) * excess + 16 * (tau + 1) / records**2 + empirical / tau
        for tau in (10.0 ** (k / 20) for k in range(-200, 100))
    )
    # the infimum in closed form: 16/n² + empirical-free part at τ -> 0, else a + 2 sqrt(ab)
    slope = 16 / records**2
    again = slope + 2 * math.sqrt(slope * empirical)
    routes = {"smallest over a grid of tau": least, "closed form": again}
    agree = again <= least * (1 + 1e-12) and least <= 1.01 * again
    reason = f"the generalisation error is {gap:.6g}, the bound {again:.6g}"
    return Shown(None if not agree else gap <= again, reason, gap, {"bound": again, "records": records}, routes)


theorem_2_expectation = Demonstration(_unlucky, twin=lambda records: _unlucky(records, over_datasets=True))


# ---- (10) and Theorem 3 ----

_PARTS = ({"records": 3, "coin": 0.5, "rate": 0.5}, {"records": 20, "coin": 0.1, "rate": 1.0})


def _three_parts(records: int, coin: float, rate: float, sign: int = 1) -> float:
    found = _expectations(records, coin, rate)
    parts = found["population"] - found["empirical"], found["empirical"] - found["least"]
    return parts[0] + sign * parts[1] + found["least"] - found["best"]


def _excess_population(records: int, coin: float, rate: float) -> float:
    """E over D and A of L_P(θ) − min L_P = ½E(θ − p)², by a second sum."""
    total = 0.0
    for ones in range(records + 1):
        weight = math.comb(records, ones) * coin**ones * (1 - coin) ** (records - ones)
        mean = ones / records
        for z, chance in ((0.0, 1 - mean), (1.0, mean)):
            total += weight * chance * (mean + rate * (z - mean) - coin) ** 2 / 2
    return total


equation_10 = Formula(
    _three_parts, _excess_population, _PARTS, twin=lambda **setting: _three_parts(**setting, sign=-1), digits=11
)


def _part_c_margin(coin: float, records: int, unlucky: bool = False) -> float:
    """min L_P − E[L*], or with the largest L* of any D."""
    if unlucky:
        half = records // 2
        return coin * (1 - coin) / 2 - half * (records - half) / records**2 / 2
    found = _expectations(records, coin, 0.0)
    return found["best"] - found["least"]


part_c = Inequality(
    _part_c_margin,
    {"coin": Range(0, 1), "records": Range(1, 200, "whole")},
    ({"coin": 0.5, "records": 2}, {"coin": 0.05, "records": 50}),
    lambda **point: _part_c_margin(**point, unlucky=True),
    tolerance=1e-12,
    obligations=("in expectation over D, as (10) has it; for a single D it can fail",),
    examples=40,
)


def _theorem_3_right(tau: Any, smooth: Any, strength: Any, steep: Any, size: Any, excess: Any, least: Any) -> Any:
    inner = (8 * tau + strength) / (strength * tau) * excess + 16 * steep**2 / (size**2 * strength**2)
    return (tau + smooth) * inner + smooth / tau * least


def _theorem_2_and_excess(tau: Any, smooth: Any, strength: Any, steep: Any, size: Any, excess: Any, least: Any) -> Any:
    wide = tau + smooth
    general = 8 * wide / strength * excess + 16 * steep**2 * wide / (size**2 * strength**2)
    return general + smooth * (excess + least) / tau + excess


theorem_3_algebra = Formula(
    _theorem_3_right,
    _theorem_2_and_excess,
    tuple(
        {
            "tau": tau,
            "smooth": Fraction(3, 2),
            "strength": Fraction(1, 4),
            "steep": Fraction(2),
            "size": Fraction(50),
            "excess": excess,
            "least": Fraction(1, 9),
        }
        for tau in (Fraction(1, 10), Fraction(1), Fraction(30))
        for excess in (Fraction(1, 7), Fraction(3))
    ),
    twin=lambda **setting: _theorem_2_and_excess(**setting) - setting["excess"],
)


def _theorem_3_margin(coin: float, rate: float, tau: float, records: int, keep: float = 1.0) -> float:
    found = _expectations(records, coin, rate)
    excess = found["empirical"] - found["least"]
    bound = (tau + 1) * ((8 * tau + 1) / tau * excess + keep * 16 / records**2) + keep * found["least"] / tau
    return bound - (found["population"] - found["best"])


theorem_3 = Inequality(
    _theorem_3_margin,
    _COIN,
    _COINS,
    lambda **point: _theorem_3_margin(**point, keep=0.0),
    tolerance=1e-12,
    obligations=("expectation over D and the algorithm", "losses nowhere negative", "one optimum, or the nearest one"),
    examples=40,
)
