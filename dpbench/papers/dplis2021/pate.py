"""Sections 2.4 and 5.7, Appendix D and Table 13 of dplis2021: PATE with the Confident-GNMax aggregator.

| paper | here |
| --- | --- |
| #queries, #labeled | queries, labels |
| T, σ₁, σ₂ | threshold, selection_noise, answer_noise |
| 250 teachers, ten classes | teachers, classes |
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from scipy.special import ndtr

from dpbench.claims.demonstration import Demonstration, Shown

DELTA = 1e-5
TEACHERS, CLASSES = 250, 10
THRESHOLD, SELECTION_NOISE = 300.0, 200.0

# ---- the aggregator's two sensitivities ----


def _histograms(teachers: int, classes: int) -> list[tuple[int, ...]]:
    return [votes for votes in itertools.product(range(teachers + 1), repeat=classes) if sum(votes) == teachers]


def _sensitivities(squared: bool) -> Shown:
    """Largest change of the maximum and of the histogram when one of five teachers votes otherwise, three classes."""
    change_of_largest, change_of_votes = 0, 0
    for votes in _histograms(5, 3):
        for leaves, joins in itertools.permutations(range(3), 2):
            if votes[leaves]:
                other = [vote - (k == leaves) + (k == joins) for k, vote in enumerate(votes)]
                change_of_largest = max(change_of_largest, abs(max(votes) - max(other)))
                change_of_votes = max(change_of_votes, sum((a - b) ** 2 for a, b in zip(votes, other, strict=True)))
    holds = change_of_largest == 1 and change_of_votes == (1 if squared else 2)
    reason = f"the largest count moves by {change_of_largest}, the squared histogram by {change_of_votes}"
    return Shown(holds, reason, change_of_votes, {"largest": change_of_largest, "histogram_squared": change_of_votes})


aggregator_sensitivities = Demonstration(lambda: _sensitivities(False), lambda: _sensitivities(True))

# ---- "priority to queries with sufficiently strong consensus", T = 300 with 250 teachers ----


def _pass_probability(largest: float, threshold: float = THRESHOLD) -> float:
    return float(ndtr((largest - threshold) / SELECTION_NOISE))


def _priority(falling: bool) -> Shown:
    """How likely a query is answered when all 250 teachers agree, when half do, and with evenly spread votes."""
    sign = -1 if falling else 1
    chances = [_pass_probability(sign * largest + (0 if sign > 0 else 275)) for largest in range(25, 251)]
    rising = all(a < b for a, b in itertools.pairwise(chances))
    evidence = {"unanimous": chances[-1], "half": chances[100], "spread_evenly": chances[0]}
    reason = f"a query is answered with probability {chances[-1]:.3f} when all agree, {chances[0]:.3f} when none do"
    return Shown(rising, reason, chances[-1], evidence)


consensus_priority = Demonstration(lambda: _priority(False), lambda: _priority(True))


def _labels_possible(queries: int, labels: int) -> Shown:
    """Whether the printed number of labels lies between what evenly spread and unanimous votes would give."""
    low, high = _pass_probability(TEACHERS / CLASSES), _pass_probability(TEACHERS)
    spread = 6 * math.sqrt(queries / 4)
    holds = queries * low - spread <= labels <= queries * high + spread
    reason = f"{labels} of {queries} labels; the votes allow {queries * low:.0f} to {queries * high:.0f} on average"
    share = labels / queries
    average = THRESHOLD + SELECTION_NOISE * float(_normal_quantile(share))
    return Shown(holds, reason, share, {"least": queries * low, "most": queries * high, "typical_largest": average})


def _normal_quantile(share: float) -> Any:
    from scipy.special import ndtri

    return ndtri(share)


labels_possible = Demonstration(_labels_possible, lambda queries, labels: _labels_possible(queries, 2 * labels))

# ---- Table 13's ε from its printed inputs ----


def _data_independent(queries: int, labels: float, answer_noise: float) -> tuple[float, float]:
    """ε at 1e-5 from ρ = queries/(2σ₁²) + labels/σ₂² by ε = ρα + log(1/δ)/(α−1): closed form, and searched over α."""
    rho = queries / (2 * SELECTION_NOISE**2) + labels / answer_noise**2
    log_inverse = math.log(1 / DELTA)
    closed = rho + 2 * math.sqrt(rho * log_inverse)
    orders = 1 + np.geomspace(0.05, 200, 20001)
    return closed, float(np.min(rho * orders + log_inverse / (orders - 1)))


def _enclosed(queries: int, labels: int, answer_noise: float) -> tuple[float, float]:
    """The closed form in Arb: an interval."""
    from flint import arb

    rho = arb(queries) / 80000 + arb(labels) / arb(answer_noise) ** 2
    found = rho + 2 * (rho * arb(100000).log()).sqrt()
    return float(found.lower()), float(found.upper())


def _from_inputs(queries: int, labels: int, answer_noise: float, epsilon: float) -> Shown:
    """What the printed counts give without looking at votes, and the count that would give the printed ε."""
    closed, searched = _data_independent(queries, labels, answer_noise)
    from dpbench.accounting import load_accountant
    from dpbench.events import Composition, ConfidentGNMax

    answered = ConfidentGNMax(THRESHOLD, SELECTION_NOISE, answer_noise)
    silent = ConfidentGNMax(THRESHOLD, SELECTION_NOISE, answer_noise, answered=False)
    releases = Composition(((answered, labels), (silent, queries - labels)))
    root = math.sqrt(math.log(1 / DELTA) + epsilon) - math.sqrt(math.log(1 / DELTA))
    implied = (root**2 - queries / (2 * SELECTION_NOISE**2)) * answer_noise**2
    evidence: dict[str, Any] = {
        "from_printed_counts": closed,
        "labels_that_give_it": implied,
        "labels": labels,
        "missing": "the votes",
    }
    for name in ("exact", "rdp"):
        evidence[f"from_printed_counts_by_{name}"] = float(load_accountant(name).curve(releases).epsilon(DELTA).value)
    routes = {"closed form": closed, "searched orders": searched}
    reason = (
        f"{labels} labels cost {closed:.4g} without looking at votes, the printed {epsilon:.2f} fits {implied:.0f}; "
        "expected counts and data-dependent bounds need the votes"
    )
    agrees = abs(closed - epsilon) <= 0.005
    return Shown(True if agrees else None, reason, closed, evidence, routes)


def _off_by_ten(queries: int, labels: int, answer_noise: float, epsilon: float) -> Shown:
    return _from_inputs(queries, labels, answer_noise, epsilon + 0.1)


epsilon_from_inputs = Demonstration(_from_inputs, _off_by_ten)


def _columns(wrong: bool) -> Shown:
    """Whether #labeled explains ε in the twelve rows, by a data-independent bound with Mironov's conversion.

    `wrong` puts what the bound gives in place of what is printed: a table that would have followed from its columns.
    """
    rows = [
        (40, ((4000, 1323, 7.44), (8000, 2692, 11.08), (12000, 4128, 14.08), (16000, 5521, 16.75))),
        (80, ((4000, 1323, 3.78), (8000, 2692, 5.51), (12000, 4128, 6.90), (16000, 5521, 8.10))),
        (100, ((4000, 1323, 3.15), (8000, 2692, 4.57), (12000, 4128, 5.70), (16000, 5521, 6.68))),
    ]
    differences = []
    for noise, group in rows:
        for queries, labels, printed in group:
            computed = _data_independent(queries, labels, float(noise))[0]
            differences.append((round(computed, 2) if wrong else printed) - computed)
    enclosed = [
        _enclosed(queries, labels, float(noise)) for noise, group in rows for queries, labels, _printed in group
    ]
    matched = sum(abs(difference) <= 0.0051 for difference in differences)
    reason = (
        f"{matched} of 12 rows agree; printed less computed lies from {min(differences):.3f} to {max(differences):.3f}"
    )
    searched = [
        _data_independent(queries, labels, float(noise))[1]
        for noise, group in rows
        for queries, labels, _printed in group
    ]
    routes = {"certified": [list(ends) for ends in enclosed], "searched orders": searched}
    return Shown(matched == 12, reason, matched, {"differences": differences}, routes)


labels_explain_epsilon = Demonstration(lambda: _columns(False), lambda: _columns(True))

# ---- #labeled is random ----


def _labels_are_data(queries: int, labels: int, answer_noise: float, counted: bool) -> Shown:
    """Whether the ε charged by a number of answers is the same whatever the votes: here, and under unanimous votes.

    `counted` charges the realised answers; otherwise every query is charged as if answered, which no vote changes.
    """
    most = queries * _pass_probability(TEACHERS)
    here, searched = _data_independent(queries, labels if counted else queries, answer_noise)
    unanimous = _data_independent(queries, most if counted else queries, answer_noise)[0]
    every = _data_independent(queries, queries, answer_noise)[0]
    evidence = {"by_printed_labels": here, "by_unanimous_votes": unanimous, "all_answered": every, "labels": labels}
    evidence["labels_of_unanimous_votes"] = most
    routes: dict[str, Any] = {"closed form": here, "searched orders": searched}
    routes["certified"] = list(_enclosed(queries, labels if counted else queries, answer_noise))
    reason = (
        f"the rule charges {here:.4g} for the printed labels, {unanimous:.4g} for unanimous votes ({most:.0f} labels)"
    )
    return Shown(abs(here - unanimous) < 1e-9, reason, unanimous, evidence, routes)


labels_are_no_promise = Demonstration(
    lambda queries, labels, answer_noise: _labels_are_data(queries, labels, answer_noise, True),
    lambda queries, labels, answer_noise: _labels_are_data(queries, labels, answer_noise, False),
)
