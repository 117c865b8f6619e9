"""PATE: an ε that fits the votes and may be published, by the smooth sensitivity of Papernot et al. 2018, Appendix B.

| here | in the paper (arXiv:1802.08908) |
| --- | --- |
| order, threshold, selection_noise, answer_noise | λ, T, σ₁, σ₂ |
| smoothness, noise | β, σ of the mechanism GNSS |
| top, gap | the largest count n*, and n* less the second largest |

An ε that fits the votes is large where teachers disagree, and so tells about the private data. So it gets noise, and
the noise is charged. In three steps, with our own bounds, which need none of the paper's conditions C5 and C6:

**The bound of a query, in both directions.** A neighbour changes one teacher, and so moves at most one vote of every
query from one class to another: `top` by at most 1, `gap` by at most 2. A query passes with the probability p of its
top. At order λ its moment against a neighbour's is (1−p)^λ (1−p')^(1−λ) + p^λ p'^(1−λ) e^((λ−1)A), with A the
divergence of the answers. Theorem 6 bounds A by any q̃ >= P(not the likeliest class), for instance (C−1)/2 ·
erfc(gap/(2σ₂)), which is not below Proposition 7's. A here is the least of its bounds at all gaps up to gap − 2. No
neighbour's gap is smaller, which makes it a bound in both directions; the theorem's own is one from these votes to the
neighbour's. H(top, gap) is the largest divergence over the neighbours' tops, in both directions. Queries compose at one
order, so the divergence from, and to, every neighbour's labels is at most f = Σ H. Where only so many labels are given,
later answers are left out, which adds nothing.

**Its smooth sensitivity.** One teacher changes f by at most Σ Δ₀, with Δ₀(top, gap) the largest change of H within 1
and 2 steps. Of votes that differ in k teachers it changes f by at most Σ Δ_k, with Δ_k the largest Δ₀ within k and 2k
steps. S = max over k of e^(−βk) Σ Δ_k is at least Σ Δ₀, and at most e^β times a neighbour's, for Σ Δ_k is at most the
neighbour's Σ Δ_(k+1) (Nissim, Raskhodnikova and Smith 2007).

**Its release.** y = f + Sσ(z + N(0, 1)) is N(m, s²) with s = Sσ. Between neighbours s'/s is in [e^(−β), e^β], and
|m − m'| <= min(S, S') + zσ|S − S'| <= κ·min(s, s') with κ = 1/σ + z(e^β − 1). The Rényi divergence of two Gaussians is
λ(m−m')²/(2v) + log(s'/s) − log(v/s'²)/(2(λ−1)) with v = λs'² + (1−λ)s² (Gil, Alajaji and Linder 2013). Its first term
is at most λκ²/(2w) with w = 1 − (λ−1)(e^(2β)−1), which has to be above 0. The rest is 0 at s = s' and rises with
|log(s/s')|, so it is largest at an end. What y costs is added to y.

The authors' code gives another cost as Theorem 23, λe^(2β)/σ² + (λβ − log(1 − 2λβ)/2)/(λ−1). That is no bound: with
their λ = 14, β = 0.0329, σ = 6.23 it is 0.518, and `tests/privacy/test_smooth_sensitivity.py` has neighbours with a
divergence of 1.607.

**What is promised.** With probability Φ(z) over the noise y >= f, and then for *these* votes and every neighbour's the
labels and the published number together are (ε, δ)-indistinguishable. For other votes ε may be larger: a promise for
all of them is the data-independent ε of the ledger (`rdp`, `exact`), to whose divergence publishing adds the cost.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

from dpbench.errors import DpbenchError
from dpbench.events import ConfidentGNMax
from dpbench.privacy.accountants._gaussian_curve import log_below
from dpbench.privacy.accountants.rdp import epsilon_at
from dpbench.privacy.accountants.rdp_data_dependent import gaussian_bound
from dpbench.privacy.answers import check_delta

__all__ = ["PublishedEpsilon", "publish_epsilon", "published_cost"]

MOST_TEACHERS = 1000  # the tables have the square of that many cells
_FARTHEST = 1e100  # deviations between a top and the threshold; beyond, a probability is 0 or 1 in any case
_ROUNDING = 2.0**-48  # relative, of a term; SciPy's log_ndtr is good to a few units of 2^-53


@dataclass(frozen=True)
class PublishedEpsilon:
    """An ε that fits the votes, safe to publish: `cost`, at the order, is what publishing it adds, and is in it.

    With probability `confidence` it holds for the votes that were given and every neighbour's; see the module.
    """

    epsilon: float
    delta: float
    confidence: float
    order: float
    smoothness: float
    noise: float
    cost: float


def publish_epsilon(
    query: ConfidentGNMax,
    votes: Sequence[Sequence[int]],
    *,
    delta: float,
    confidence: float = 0.999,
    order: float | None = None,
    smoothness: float | None = None,
    noise: float | None = None,
    draw: Callable[[], float] | None = None,
) -> PublishedEpsilon:
    """An ε at `delta` for the votes (queries, classes) of one Confident-GNMax, with noise, so that it may be published.

    `query` gives the threshold and both noises, no more. Call it once: every call releases something about the votes.
    Choose all parameters without looking at them. By default the order suits the data-independent ε, `smoothness` is
    0.2/order, `noise` (in smooth sensitivities) is 4·√order, and `draw`, of a standard normal number, is the operating
    system's. Raises DpbenchError for what is no count of votes, rows of different sums, more than 1,000 teachers, and
    parameters outside of what is proven.

    >>> query = ConfidentGNMax(threshold=150, selection_noise=40, answer_noise=20)
    >>> found = publish_epsilon(query, [(240, 10)] * 200, delta=1e-5, draw=lambda: 0.0)
    >>> round(found.epsilon, 2), round(found.cost, 3), found.confidence
    (2.44, 0.213, 0.999)
    """
    check_delta(delta)
    counts = _checked(votes)
    if not (0 < query.selection_noise < math.inf and 0 < query.answer_noise < math.inf):
        raise DpbenchError(f"query = {query}: expected finite noises above 0")
    if order is None:
        rate = len(counts) * (0.5 / query.selection_noise**2 + 1 / query.answer_noise**2)
        order = 1 + math.sqrt(-math.log(delta) / rate)
    for name, value, low in (("order", order, 1.0), ("smoothness", smoothness, 0.0), ("noise", noise, 0.0)):
        if value is not None and not (value > low and math.isfinite(value)):
            raise DpbenchError(f"{name} = {value!r}: expected a finite number above {low:g}")
    beta, sigma = smoothness or 0.2 / order, noise or 4 * math.sqrt(order)
    cost = published_cost(order, beta, sigma, confidence)
    bound, sensitivity = bound_and_sensitivity(query, counts, order, beta)
    normal = random.SystemRandom().gauss(0.0, 1.0) if draw is None else float(draw())
    shown = max(bound + sensitivity * sigma * (NormalDist().inv_cdf(confidence) + normal), 0.0)
    moment = (order - 1) * (shown + cost)
    epsilon = max(epsilon_at(moment, order, math.log(delta), "canonne"), 0.0)
    return PublishedEpsilon(epsilon, delta, confidence, order, beta, sigma, cost)


def published_cost(order: float, smoothness: float, noise: float, confidence: float) -> float:
    """What the release of y costs: a bound on its Rényi divergence at `order`. Raises DpbenchError where there is none.

    >>> round(published_cost(20.0, 0.01, 18.0, 0.5), 4)
    0.0528
    """
    if not 0.5 <= confidence < 1:
        raise DpbenchError(f"confidence = {confidence!r}: expected a number from 0.5 to below 1")
    shrunk = 1 - (order - 1) * math.expm1(2 * smoothness)
    if not shrunk > 0:
        raise DpbenchError(
            f"smoothness = {smoothness:g}: too large for order = {order:g}; expected less than"
            f" {math.log1p(1 / (order - 1)) / 2:.6g}"
        )
    shift = 1 / noise + NormalDist().inv_cdf(confidence) * math.expm1(smoothness)
    ends = [-t - math.log1p(-(order - 1) * math.expm1(2 * t)) / (2 * (order - 1)) for t in (smoothness, -smoothness)]
    return order * shift**2 / (2 * shrunk) + max(ends)


def bound_and_sensitivity(
    query: ConfidentGNMax, votes: Sequence[Sequence[int]] | Any, order: float, smoothness: float
) -> tuple[float, float]:
    """f and its smooth sensitivity S. Both are private."""
    counts = _checked(votes)
    teachers, classes = int(counts[0].sum()), counts.shape[1]
    bound, possible = _tables(query, teachers, classes, order)
    ranked = np.sort(counts, axis=1)
    at = ranked[:, -1], ranked[:, -1] - ranked[:, -2]
    change = _changes(bound, possible)
    ceiling, best, moved = len(counts) * change.max(), 0.0, 0
    while math.exp(-smoothness * moved) * ceiling > best and moved <= teachers:
        best = max(best, math.exp(-smoothness * moved) * float(change[at].sum()))
        change = _filtered(change, np.maximum)
        moved += 1
    return float(bound[at].sum()), best


@lru_cache(maxsize=4)
def _tables(query: ConfidentGNMax, teachers: int, classes: int, order: float) -> tuple[Any, Any]:
    """H at every top and gap, and which of them some votes have; both (teachers + 1, teachers + 1)."""
    from scipy.special import log_ndtr

    variance, independent = query.answer_noise**2, order / query.answer_noise**2
    least, answers = independent, []
    for gap in range(teachers + 1):
        log_miss = min(math.log(classes - 1) + log_below(-gap / (math.sqrt(2) * query.answer_noise)), 0.0)
        least = min(least, gaussian_bound(log_miss, variance, order))
        answers.append(least)
    divergence = np.array(answers)[np.maximum(np.arange(teachers + 1) - 2, 0)]

    tops = np.arange(teachers + 1)
    beyond = np.clip(tops / query.selection_noise - query.threshold / query.selection_noise, -_FARTHEST, _FARTHEST)
    passed, failed = log_ndtr(beyond)[:, None], log_ndtr(-beyond)[:, None]
    found = np.zeros((teachers + 1, teachers + 1))
    for step in (-1, 1):  # the moment is convex in p', so largest at an end
        there = np.clip(tops + step, 0, teachers)
        for one, other in ((tops, there), (there, tops)):
            unanswered = _moment(order, failed[one], failed[other], 0.0)
            answered = _moment(order, passed[one], passed[other], divergence)
            found = np.maximum(found, np.logaddexp(unanswered, answered) / (order - 1))
    found = np.minimum(found, order / (2 * query.selection_noise**2) + divergence)
    top, second = tops[:, None], tops[:, None] - tops[None, :]
    possible = (second >= 0) & (top + second <= teachers) & (top + (classes - 1) * second >= teachers)
    return found, possible


def _moment(order: float, one: Any, other: Any, divergence: Any) -> Any:
    """log p^λ p'^(1−λ) e^((λ−1)A) of log p and log p', raised by the rounding of its terms."""
    parts = order * one, (1 - order) * other, (order - 1) * divergence
    return sum(parts) + _ROUNDING * sum(map(np.abs, parts))


def _changes(bound: Any, possible: Any) -> Any:
    """Δ₀ of every possible top and gap, 0 elsewhere."""
    high = _filtered(np.where(possible, bound, -np.inf), np.maximum)
    low = _filtered(np.where(possible, bound, np.inf), np.minimum)
    return np.where(possible, np.maximum(high - bound, bound - low), 0.0)


def _filtered(table: Any, chosen: Any) -> Any:
    """The largest (or smallest) value within one row and two columns."""
    for axis, reach in ((0, 1), (1, 2)):
        found = table.copy()
        for step in range(1, min(reach, table.shape[axis] - 1) + 1):
            ahead = tuple(slice(step, None) if axis == each else slice(None) for each in (0, 1))
            behind = tuple(slice(None, -step) if axis == each else slice(None) for each in (0, 1))
            found[behind] = chosen(found[behind], table[ahead])
            found[ahead] = chosen(found[ahead], table[behind])
        table = found
    return table


def _checked(votes: Sequence[Sequence[int]] | Any) -> Any:
    """The votes as int64 (queries, classes). Raises DpbenchError for what is not the votes of one ensemble."""
    expected = "expected whole numbers, 0 or more, in rows (queries, classes) of one sum, the number of teachers"
    try:
        counts = np.asarray(votes)
    except ValueError as error:
        raise DpbenchError(f"votes: rows of different lengths; {expected}") from error
    if counts.ndim != 2 or counts.dtype.kind not in "iu" or counts.shape[1] < 2 or len(counts) == 0:
        raise DpbenchError(f"votes: {counts.dtype} of shape {counts.shape}; {expected}")
    if (counts < 0).any() or (counts > MOST_TEACHERS).any():
        raise DpbenchError(f"votes: counts from {counts.min()} to {counts.max()}; expected 0 to {MOST_TEACHERS}")
    counts = counts.astype(np.int64)
    sums = counts.sum(1)
    if sums.min() != sums.max() or not 2 <= sums[0] <= MOST_TEACHERS:
        raise DpbenchError(
            f"votes: rows that add up to {sums.min()} up to {sums.max()}; expected one sum, the number of teachers, 2"
            f" to {MOST_TEACHERS}"
        )
    return counts
