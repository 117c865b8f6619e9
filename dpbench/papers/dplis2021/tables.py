"""The printed tables of dplis2021 against each other: gains, ranges, shares and deviations that follow by arithmetic.

Accuracies and perplexities are the paper's own; nothing here trains. Exact decimals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import mpmath

from dpbench.claims.computation import Computation
from dpbench.claims.demonstration import Demonstration, Shown

Rows = tuple[tuple[str, str, str], ...]  # without smoothing; smoothed, with the printed gain; the other radius, too

TABLE_2: Rows = (
    (
        "92.60 93.92 94.11 93.35",
        "92.66+0.06 94.78+0.86 94.84+0.73 95.19+1.84",
        "93.58+0.98 95.94+2.02 96.17+2.06 96.00+2.65",
    ),
    (
        "95.08 95.92 96.07 95.89",
        "96.62+1.54 97.49+1.57 97.52+1.45 98.56+2.67",
        "97.31+2.23 98.01+2.09 98.48+2.41 98.90+3.01",
    ),
    (
        "43.88 43.16 41.95 41.07",
        "44.09+0.21 44.48+1.32 44.73+2.78 44.95+3.88",
        "44.34+0.46 46.90+3.74 46.92+4.97 46.95+5.88",
    ),
    (
        "49.70 58.48 60.46 61.37",
        "50.09+0.39 60.39+1.91 62.09+1.63 63.22+1.85",
        "50.85+1.15 61.75+3.27 62.32+1.86 64.73+3.36",
    ),
)
TABLE_3: Rows = (
    (
        "34.75 42.34 44.52 46.00 46.78",
        "35.73+0.98 43.32+0.98 46.59+2.07 49.02+3.02 49.70+2.92",
        "35.98+1.23 43.76+1.42 48.00+3.48 51.04+5.04 52.04+5.26",
    ),
    (
        "41.20 53.45 55.95 59.47 62.17",
        "41.76+0.56 54.53+1.08 61.76+5.81 62.84+3.37 64.84+2.67",
        "43.16+1.96 57.16+3.71 61.76+5.81 64.27+4.80 66.24+4.07",
    ),
    (
        "19.68 25.74 31.54 34.12 36.44",
        "21.46+1.78 29.86+4.12 34.32+2.78 38.18+4.06 40.32+3.88",
        "22.54+2.86 30.38+4.64 35.58+4.04 38.88+4.76 41.08+4.64",
    ),
)
TABLE_5: Rows = (
    ("692.85 654.66 652.30", "638.10-54.75 593.92-60.74 590.11-62.19", "622.81-70.04 588.76-65.90 585.50-66.80"),
    (
        "1157.42 2909.73 2981.27",
        "688.95-468.47 585.47-2324.26 578.63-2402.64",
        "683.19-474.23 583.23-2326.50 575.54-2405.73",
    ),
)
TABLE_11: Rows = (
    (
        "50.04 57.01 58.07 57.46",
        "50.38+0.34 58.18+1.17 59.58+1.51 59.13+1.67",
        "50.38+0.34 59.17+2.16 59.93+1.86 60.06+2.60",
    ),
)
TABLE_12: tuple[tuple[str, str], ...] = (
    ("82.56 84.44 85.79 86.77", "84.06+1.50 85.64+1.20 86.96+1.17 87.39+0.62"),
    ("75.65 76.77 81.95 83.28", "77.84+2.19 82.06+5.29 83.62+1.67 84.64+1.36"),
    ("70.51 75.75 79.19 80.50", "73.92+3.41 79.56+3.81 81.69+2.50 82.36+1.86"),
)
TABLE_13_CORRECT = ("91.38 91.01 91.23 91.66", "81.41 81.35 81.61 81.89", "69.39 70.54 70.93 71.26")
TABLES: dict[int, tuple[Any, ...]] = {2: TABLE_2, 3: TABLE_3, 5: TABLE_5, 11: TABLE_11, 12: TABLE_12}


def _gains(table: int, column: int) -> list[tuple[Decimal, Decimal, Decimal]]:
    """(without smoothing, smoothed, printed gain) of every cell of one column of radii (1 or 2)."""
    found = []
    for rows in TABLES[table]:
        for base, cell in zip(rows[0].split(), rows[column].split(), strict=True):
            sign = "-" if "-" in cell else "+"
            value, gain = cell.split(sign)
            found.append((Decimal(base), Decimal(value), Decimal(sign + gain)))
    return found


def _columns(table: int) -> range:
    return range(1, len(TABLES[table][0]))


# ---- the gain printed beside every number, and its smallest and largest in the text ----


def _consistent(table: int, units: int) -> Shown:
    """Whether every printed gain is the difference of the printed numbers; `units` moves one gain for the twin."""
    wrong = []
    cells = [cell for column in _columns(table) for cell in _gains(table, column)]
    for place, (base, value, gain) in enumerate(cells):
        moved = gain + (Decimal(units) / 100 if place == 0 else 0)
        if value - base != moved:
            wrong.append(f"{value} - {base} = {value - base}, printed {moved}")
    reason = f"{len(cells) - len(wrong)} of {len(cells)} gains are the printed differences" + "; ".join(["", *wrong])
    return Shown(not wrong, reason, len(wrong), {"cells": len(cells), "wrong": wrong})


gains_follow = Demonstration(lambda table: _consistent(table, 0), lambda table: _consistent(table, 10))


def _range(table: int, column: int, low: str, high: str) -> Shown:
    """Whether the text's smallest and largest gain are those of the column."""
    sizes = [abs(gain) for _, _, gain in _gains(table, column)]
    holds = min(sizes) == Decimal(low) and max(sizes) == Decimal(high)
    return Shown(holds, f"the gains lie from {min(sizes)} to {max(sizes)}, printed {low} to {high}", float(max(sizes)))


def _range_twin(table: int, column: int, low: str, high: str) -> Shown:
    return _range(table, column, low, str(Decimal(high) + Decimal("0.10")))


gain_range = Demonstration(_range, _range_twin)


def _at_least(table: int, least: str) -> Shown:
    """Whether every perplexity falls by at least `least`."""
    sizes = [-gain for column in _columns(table) for _, _, gain in _gains(table, column)]
    return Shown(min(sizes) >= Decimal(least), f"the smallest reduction is {min(sizes)}", float(min(sizes)))


least_reduction = Demonstration(_at_least, lambda table, least: _at_least(table, str(Decimal(least) + 10)))


def _percent(low: int, high: int) -> Shown:
    """Perplexity reductions of Table 5 in per cent of the perplexity without smoothing, rounded to whole per cent."""
    shares = [100 * -gain / base for column in (1, 2) for base, _, gain in _gains(5, column)]
    holds = round(min(shares)) == low and abs(round(max(shares)) - high) <= 1
    reason = f"reductions lie from {float(min(shares)):.2f} % to {float(max(shares)):.2f} %, printed {low} to {high} %"
    return Shown(holds, reason, float(max(shares)))


reduction_in_percent = Demonstration(_percent, lambda low, high: _percent(low + 10, high + 10))


def _often(low: int, high: int) -> Shown:
    """How many accuracy gains of Tables 2, 3 (and 12 where asked) lie between `low` and `high` per cent, rounded."""
    return _often_in((2, 3), low, high)


def _often_in(tables: Sequence[int], low: int, high: int) -> Shown:
    sizes = [gain for table in tables for column in _columns(table) for _, _, gain in _gains(table, column)]
    inside = [size for size in sizes if low <= int(size.to_integral_value()) <= high]
    share = len(inside) / len(sizes)
    reason = f"{len(inside)} of {len(sizes)} printed gains round to {low} to {high} %"
    return Shown(share > 0.5, reason, share, {"smallest": float(min(sizes)), "largest": float(max(sizes))})


gains_often = Demonstration(_often, lambda low, high: _often(low + 5, high + 5))
gains_often_pate = Demonstration(
    lambda low, high: _often_in((12,), low, high), lambda low, high: _often_in((12,), low + 4, high + 4)
)

# ---- Table 9: smaller with smoothing ----

TABLE_9 = (("0.8626", "0.5454"), ("139.8159", "49.6169"), ("1.0375", "0.0000"), ("563.5351", "340.5471"))


def _always_smaller(swap: bool) -> Shown:
    pairs = [(Decimal(a), Decimal(b)) for a, b in TABLE_9]
    smaller = sum((a < b if swap else b < a) for a, b in pairs)
    evidence = {"ratios": [float(b / a) for a, b in pairs]}
    return Shown(smaller == 4, f"{smaller} of 4 printed sharpnesses are smaller with smoothing", smaller, evidence)


sharpness_always_smaller = Demonstration(lambda: _always_smaller(False), lambda: _always_smaller(True))

# ---- Table 10: five runs each ----

TABLE_10 = (
    ("0.184", "0.55", "93.51", "94.06"),
    ("0.339", "1.02", "93.25", "94.27"),
    ("0.088", "0.25", "94.72", "94.97"),
    ("0.184", "0.56", "95.36", "95.92"),
    ("0.068", "0.18", "95.92", "96.10"),
    ("0.088", "0.25", "95.90", "96.15"),
    ("0.577", "1.61", "57.27", "58.88"),
    ("0.427", "1.18", "60.65", "61.83"),
    ("0.444", "1.24", "60.18", "61.42"),
    ("0.360", "0.92", "62.66", "63.58"),
    ("0.332", "0.96", "61.22", "62.18"),
    ("0.196", "0.58", "64.25", "64.83"),
)


def _ranges(units: int) -> Shown:
    wrong = [row for row in TABLE_10 if Decimal(row[3]) - Decimal(row[2]) != Decimal(row[1]) + Decimal(units) / 100]
    return Shown(not wrong, f"{len(TABLE_10) - len(wrong)} of {len(TABLE_10)} ranges are the printed differences", 0)


ranges_follow = Demonstration(lambda: _ranges(0), lambda: _ranges(10))


def _deviations(divide_by: int) -> Shown:
    """Whether five numbers with the printed range can have the printed deviation, the sum of squares over `divide_by`.

    With range r the sum of squares about the mean lies between r²/2 (three runs in the middle) and 6r²/5 (two runs at
    one end, three at the other). Half a unit of rounding is allowed on both.
    """
    outside = []
    for deviation, width, _, _ in TABLE_10:
        low = (float(width) - 0.01) * math.sqrt(0.5 / divide_by)
        high = (float(width) + 0.01) * math.sqrt(1.2 / divide_by)
        if not low - 0.0005 <= float(deviation) <= high + 0.0005:
            outside.append(f"{deviation} with range {width}")
    reason = f"{len(TABLE_10) - len(outside)} of 12 deviations are possible with the sum of squares over {divide_by}"
    return Shown(not outside, reason, len(outside), {"impossible": outside})


deviations_possible = Demonstration(lambda: _deviations(5), lambda: _deviations(4))


def _significance(level: float) -> Shown:
    """Tests of equal variances, F with 4 and 4 degrees of freedom, for smoothing against none: normal accuracies."""
    chances = {}
    for name, (none, smoothed) in {
        "MNIST 5.01 R=10": ("0.184", "0.088"),
        "MNIST 10.00 R=10": ("0.339", "0.184"),
        "MNIST 5.01 R=40": ("0.184", "0.068"),
        "MNIST 10.00 R=40": ("0.339", "0.088"),
        "CIFAR-10 5.01 R=10": ("0.577", "0.444"),
        "CIFAR-10 10.00 R=10": ("0.427", "0.360"),
        "CIFAR-10 5.01 R=30": ("0.577", "0.332"),
        "CIFAR-10 10.00 R=30": ("0.427", "0.196"),
    }.items():
        ratio = (float(none) / float(smoothed)) ** 2
        upper = 1 - mpmath.betainc(2, 2, 0, ratio / (1 + ratio), regularized=True)  # F(4, 4) in closed form
        chances[name] = float(upper)
    good = sum(chance < level for chance in chances.values())
    reason = f"all 8 deviations are smaller; one-sided F tests are below {level:g} for {good} of 8"
    return Shown(True if good == 8 else None if good else False, reason, good, {"p_values": chances})


deviations_significant = Demonstration(lambda level: _significance(level), lambda level: _significance(level / 1e6))

# ---- Tables 12 and 13: the gain against the accuracy of the labels ----


def _concordance(other_way: bool) -> Shown:
    """Pairs of rows with one number of queries: is the larger gain where the labels are less accurate?"""
    gains = [[gain for _, _, gain in _gains(12, 1)][4 * place : 4 * place + 4] for place in range(3)]
    correct = [[Decimal(value) for value in row.split()] for row in TABLE_13_CORRECT]
    agree = total = 0
    for column in range(4):
        for one, two in ((0, 1), (0, 2), (1, 2)):
            total += 1
            larger = gains[two][column] > gains[one][column]
            agree += larger == ((correct[two][column] < correct[one][column]) != other_way)
    return Shown(2 * agree > total, f"{agree} of {total} pairs have the larger gain at the less accurate labels", agree)


gain_against_labels = Demonstration(lambda: _concordance(False), lambda: _concordance(True))

# ---- single numbers ----

learning_rate = Computation(lambda per_record, batch: per_record * batch)
share = Computation(lambda first, second: first / second)
difference = Computation(lambda first, second: first - second)
product = Computation(lambda first, second: first * second)
