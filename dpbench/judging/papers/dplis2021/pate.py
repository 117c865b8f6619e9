"""Sections 2.4 and 5.7, Appendix D and Table 13 of dplis2021: PATE with the Confident-GNMax aggregator.

| paper | here |
| --- | --- |
| #queries, #labeled | queries, labels |
| T, σ₁, σ₂ | threshold, selection_noise, answer_noise |
| 250 teachers, ten classes | TEACHERS, CLASSES |

As a promise, the upper end charges every query, answered or not, at the worst votes; the lower end is attained by
explicit votes.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import numpy as np
from flint import acb, arb, ctx
from scipy.special import log_ndtr, ndtr, ndtri

from dpbench.events import Composition, ConfidentGNMax
from dpbench.judging.claims.claim import Printed
from dpbench.judging.claims.judges import Shown, bound, shown
from dpbench.judging.papers.mathematics import Ball, ends, upper_tail
from dpbench.privacy.accounting import load_accountant

DELTA = 1e-5
TEACHERS, CLASSES = 250, 10
THRESHOLD, SELECTION_NOISE = 300, 200
Column = tuple[Printed, ...]
SIGMAS = (40.0, 80.0, 100.0)  # σ₂ of Table 13


# ---- the aggregator ----


@shown(control={"squared": 1}, pair="the votes of five teachers for three classes, and one teacher votes otherwise")
def aggregator_sensitivities(squared: int = 2) -> Shown:
    """Largest change of the largest count (1) and of the histogram (`squared`, in squared ℓ₂ norm), enumerated."""
    largest, moved = 0, 0
    for votes in itertools.product(range(6), repeat=3):
        for leaves, joins in itertools.permutations(range(3), 2):
            if sum(votes) == 5 and votes[leaves]:
                other = [vote - (k == leaves) + (k == joins) for k, vote in enumerate(votes)]
                largest = max(largest, abs(max(votes) - max(other)))
                moved = max(moved, sum((a - b) ** 2 for a, b in zip(votes, other, strict=True)))
    reason = f"the largest count moves by {largest}, the squared histogram by {moved}"
    evidence = {"largest": largest, "histogram_squared": moved}
    return Shown(largest == 1 and moved == squared, reason, moved, evidence)


def _answered(largest: float, threshold: float = THRESHOLD, noise: float = SELECTION_NOISE) -> float:
    """The chance that the noisy largest count reaches the threshold."""
    return float(ndtr((largest - threshold) / noise))


@shown()
def consensus_priority(threshold: Printed, noise: Printed, teachers: Printed) -> Shown:
    """Whether a query is answered at least twice as often when all teachers agree as when the votes are spread."""
    shares = {"unanimous": 1, "half": 2, "spread_evenly": CLASSES}
    chances = {name: _answered(teachers.value / by, threshold.value, noise.value) for name, by in shares.items()}
    first, last = chances["unanimous"], chances["spread_evenly"]
    reason = f"a query is answered with probability {first:.3f} when all agree, {last:.3f} when none do"
    return Shown(first >= 2 * last, reason, first, chances)


@shown()
def labels_possible(queries: Printed, labels: Printed, threshold: Printed, noise: Printed, teachers: Printed) -> Shown:
    """Whether the number of labels lies between what evenly spread and unanimous votes give, to six deviations."""
    low, high = (queries.value * _answered(teachers.value / by, threshold.value, noise.value) for by in (CLASSES, 1))
    spread, share = 6 * math.sqrt(queries.value / 4), labels.value / queries.value
    typical = threshold.value + noise.value * float(ndtri(share))
    reason = f"{labels.text} of {queries.text} labels; the votes allow {low:.0f} to {high:.0f} on average"
    evidence = {"least": low, "most": high, "typical_largest": typical}
    return Shown(low - spread <= labels.value <= high + spread, reason, share, evidence)


# ---- Table 13's ε from its printed inputs: ρ = queries/(2σ₁²) + labels/σ₂², ε = min over α of ρα + log(1/δ)/(α−1) ----


def _charged(queries: float, labels: float, answer_noise: float) -> dict[str, Any]:
    """ε at 1e-5 in closed form, over a grid of α, and enclosed in Arb."""
    rho = queries / (2 * SELECTION_NOISE**2) + labels / answer_noise**2
    orders = 1 + np.geomspace(0.05, 200, 20001)
    ball = arb(queries) / (2 * SELECTION_NOISE**2) + arb(labels) / arb(answer_noise) ** 2
    return {
        "closed form": rho + 2 * math.sqrt(rho * math.log(1 / DELTA)),
        "searched orders": float(np.min(rho * orders + math.log(1 / DELTA) / (orders - 1))),
        "certified": list(ends(ball + 2 * (ball * arb(100000).log()).sqrt())),
    }


def _labels_of(epsilon: float, queries: float, answer_noise: float) -> float:
    """The number of labels that would be charged `epsilon`."""
    root = math.sqrt(math.log(1 / DELTA) + epsilon) - math.sqrt(math.log(1 / DELTA))
    return (root**2 - queries / (2 * SELECTION_NOISE**2)) * answer_noise**2


@shown()
def epsilon_from_inputs(queries: int, labels: int, answer_noise: float, value: Printed) -> Shown:
    """What the printed counts give without looking at votes, and the count that would give the printed ε."""
    routes = _charged(queries, labels, answer_noise)
    charged, implied = routes["closed form"], _labels_of(value.value, queries, answer_noise)
    votes = ((True, labels), (False, queries - labels))
    events = [(ConfidentGNMax(THRESHOLD, SELECTION_NOISE, answer_noise, answered=one), count) for one, count in votes]
    evidence = {"from_printed_counts": charged, "labels_that_give_it": implied, "labels": labels}
    for name in ("exact", "rdp"):
        found = load_accountant(name).curve(Composition(tuple(events))).epsilon(DELTA)
        evidence[f"from_printed_counts_by_{name}"] = found.value
    reason = f"{labels} labels cost {charged:.4g} without looking at votes, the printed {value.text} fits {implied:.0f}"
    reason += "; expected counts and data-dependent bounds need the votes"
    return Shown(value.agrees(charged) or None, reason, charged, {**evidence, "missing": "the votes"}, routes)


_FOLLOWING = {  # an ε that follows from its columns
    "epsilon_40": ("7.23", "10.84", "13.94", "16.62"),
    "epsilon_80": ("3.695", "5.417", "6.846", "8.058"),
    "epsilon_100": ("3.080", "4.493", "5.654", "6.637"),
}


@shown(control={name: tuple(map(Printed, column)) for name, column in _FOLLOWING.items()})
def labels_explain_epsilon(
    queries: Column, labels: Column, epsilon_40: Column, epsilon_80: Column, epsilon_100: Column
) -> Shown:
    """Whether #labeled explains ε in the twelve rows: undecided unless all do, or none does and they agree otherwise.

    They agree where each ε is too large and the labels that would fit are the same at the three σ₂, to one per cent.
    """
    columns = zip(queries, labels, zip(epsilon_40, epsilon_80, epsilon_100, strict=True), strict=True)
    rows = [(asked.value, count.value, *one) for asked, count, row in columns for one in zip(row, SIGMAS, strict=True)]
    routes = {f"{asked:g} queries, σ₂ = {sigma:g}": _charged(asked, count, sigma) for asked, count, _, sigma in rows}
    charged = [one["closed form"] for one in routes.values()]
    fitting = [_labels_of(one.value, asked, sigma) for asked, _, one, sigma in rows]
    alike = all(max(fitting[at : at + 3]) <= 1.01 * min(fitting[at : at + 3]) for at in range(0, 12, 3))
    differences = [row[2].value - one for row, one in zip(rows, charged, strict=True)]
    matched = sum(row[2].agrees(one) for row, one in zip(rows, charged, strict=True))
    least, most = min(differences), max(differences)
    reason = f"{matched} of 12 rows agree; printed less computed lies from {least:.3f} to {most:.3f}"
    holds = True if matched == 12 else False if matched == 0 and least > 0 and alike else None
    evidence = {"differences": differences, "labels_that_would_fit": fitting}
    return Shown(holds, reason, matched, evidence, routes)


@shown(control={"counted": False}, pair="250 votes for one class on every query, and the votes of the paper")
def labels_are_no_promise(queries: int, labels: int, answer_noise: float, counted: bool = True) -> Shown:
    """Whether the ε charged by the number of answers is the same whatever the votes.

    The control charges every query as if it were answered, which no vote changes.
    """
    most = queries * _answered(TEACHERS)
    routes = _charged(queries, labels if counted else queries, answer_noise)
    here, every = routes["closed form"], _charged(queries, queries, answer_noise)["closed form"]
    unanimous = _charged(queries, most if counted else queries, answer_noise)["closed form"]
    evidence = {"by_printed_labels": here, "by_unanimous_votes": unanimous, "all_answered": every, "labels": labels}
    evidence["labels_of_unanimous_votes"] = most
    reason = f"{here:.4g} is charged for the printed labels, {unanimous:.4g} for unanimous votes ({most:.0f} labels)"
    return Shown(abs(here - unanimous) < 1e-9, reason, unanimous, evidence, routes)


# ---- Table 13 as a promise: the upper end ----

_COUNTS = range(TEACHERS // CLASSES, TEACHERS + 1)  # what the largest count may be; one teacher moves it by at most 1
_NEIGHBOURS = [(a, b) for a in _COUNTS for b in (a - 1, a, a + 1) if b in _COUNTS]


@cache
def _upper(queries: int, answer_noise: float, delta: float) -> tuple[float, float]:
    """ε by the conversion of Canonne, Kamath and Steinke 2020 at the best of 400 orders, and that order.

    The moment of one query is the largest log E_Q[(P/Q)^α] over the neighbouring counts: not answered, or answered and
    then a Gaussian of sensitivity √2. Moments of adaptively chosen queries add up at one order (Mironov 2017).
    """
    one, other = ((np.array(counts) - THRESHOLD) / SELECTION_NOISE for counts in zip(*_NEIGHBOURS, strict=True))

    def at(order: float) -> float:
        unanswered = order * log_ndtr(-one) + (1 - order) * log_ndtr(-other)
        answered = order * log_ndtr(one) + (1 - order) * log_ndtr(other) + order * (order - 1) / answer_noise**2
        moment = queries * float(np.logaddexp(unanswered, answered).max())
        return moment / (order - 1) + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)

    return min((at(order), order) for order in map(float, 1 + np.geomspace(0.2, 60, 400)))


# ---- both ends in ball arithmetic ----


def _first_labels(first: int, answer_noise: float) -> Ball:
    """The chance that a query with so many votes for the first class, the rest for the second, is labelled as first."""

    def below(z: Ball) -> Ball:
        return (-z / acb(2).sqrt()).erfc() / 2

    def density(z: Ball, _: bool) -> Ball:  # of its noise, in deviations, times the chance that it beats the others
        others = below(z + arb(first) / answer_noise) ** (CLASSES - 2)
        return (
            (-z * z / 2).exp() / acb(2 * arb.pi()).sqrt() * below(z + arb(2 * first - TEACHERS) / answer_noise) * others
        )

    wins = acb.integral(density, -9, 9).real + arb(0, 1e-18)  # beyond 9 deviations lies less
    return upper_tail((arb(THRESHOLD) - first) / SELECTION_NOISE) * wins


@bound(pair="125 teachers for each of two classes on every query; 126 and 124 where one record is changed")
def fixed_number_of_queries(
    certified: bool, queries: int, answer_noise: float, delta: Printed
) -> tuple[float, float, float]:
    """Both ends of ε at δ for a fixed number of queries, whatever is voted, in Arb; doubles choose order and event.

    Upper: the moment of a query at every pair of neighbouring counts, at the order of `_upper`, whose ε is the second
    route. Lower: the event that at least so many labels are of the first class, whose probability is a binomial tail.
    """
    found, best = _upper(queries, answer_noise, delta.value)
    with ctx.workprec(128):
        order = arb(best)
        growth = (order * (order - 1) / arb(answer_noise) ** 2).exp()
        yes = {count: upper_tail((arb(THRESHOLD) - count) / SELECTION_NOISE) for count in _COUNTS}

        def moment(one: Ball, other: Ball) -> float:
            unanswered = (order * ((1 - one) / (1 - other)).log()).exp() * (1 - other)
            return ends((unanswered + (order * (one / other).log()).exp() * other * growth).log())[1]

        worst = max(moment(yes[one], yes[other]) for one, other in _NEIGHBOURS)
        term = (1 - 1 / order).log() - (arb(delta.text).log() + order.log()) / (order - 1)
        upper, lower = ends(queries * arb(worst) / (order - 1) + term)[1], 0.0
        even, uneven = (_first_labels(first, answer_noise) for first in (TEACHERS // 2, TEACHERS // 2 + 1))
        middle = queries * float(uneven.mid())
        for deviations in range(1, 7):
            least = math.ceil(middle + deviations / 2 * math.sqrt(middle))
            tails = [p.beta_lower(least, queries - least + 1, True) for p in (even, uneven)]
            ratio = (tails[1] - arb(delta.text)) / tails[0]
            lower = max(lower, ends(ratio.log())[0] if ratio > 1 else 0.0)
    return (lower, upper, found) if certified else (lower, found, upper)
