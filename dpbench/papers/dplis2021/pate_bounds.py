"""Table 13 of dplis2021 as a promise: a fixed number of queries, whatever 250 teachers vote.

| paper | here |
| --- | --- |
| #queries | queries |
| T, σ₁, σ₂ | threshold, selection_noise, answer_noise |

The upper end charges every query, answered or not, at the worst votes; the lower end is attained by explicit votes.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, ndtr

from dpbench.claims.truth import Truth
from dpbench.papers.dplis2021.pate import CLASSES, DELTA, SELECTION_NOISE, TEACHERS, THRESHOLD

# ---- the upper end ----


@lru_cache(maxsize=4096)
def _query_moment(order: float, answer_noise: float) -> float:
    """The largest log E_Q[(P/Q)^α] of one query: not answered, or answered and then a Gaussian of sensitivity √2.

    Over every largest count from 25 to 250 and the neighbouring counts one teacher can turn it into. Moments of
    adaptively chosen queries add up at one order (Mironov 2017).
    """
    largest = np.arange(TEACHERS // CLASSES, TEACHERS + 1, dtype=float)
    yes, no = log_ndtr((largest - THRESHOLD) / SELECTION_NOISE), log_ndtr((THRESHOLD - largest) / SELECTION_NOISE)
    worst = 0.0
    for one, other in (
        (slice(1, None), slice(None, -1)),
        (slice(None, -1), slice(1, None)),
        (slice(None), slice(None)),
    ):
        silent = order * no[one] + (1 - order) * no[other]
        answered = order * yes[one] + (1 - order) * yes[other] + order * (order - 1) / answer_noise**2
        worst = max(worst, float(np.logaddexp(silent, answered).max()))
    return worst


def _upper(queries: int, answer_noise: float) -> tuple[float, float]:
    """ε at 1e-5 by the conversion of Canonne, Kamath and Steinke 2020 at the best of 400 orders, and that order."""
    best = (math.inf, 2.0)
    for order in map(float, 1 + np.geomspace(0.2, 60, 400)):
        term = math.log1p(-1 / order) - (math.log(DELTA) + math.log(order)) / (order - 1)
        best = min(best, (queries * _query_moment(order, answer_noise) / (order - 1) + term, order))
    return best


# ---- the lower end ----


def _attained(queries: int, answer_noise: float) -> float:
    """ε at 1e-5 that explicit votes attain: 125 teachers for each of two classes on every query, and 126 against 124.

    One changed record changes one teacher, who votes otherwise on all queries. What is released is one of (nothing,
    first class, second class); the log likelihood ratio of the whole run is summed over the counts of answers and of
    first classes, exactly but for float64. The other eight classes have no votes and, at 125 votes or 3 deviations
    of σ₂ = 40 or more, next to no chance; leaving them out is a post-processing only where they are merged with one
    of the two, which is how they are counted here: with the second class.
    """
    shares = []
    for first in (125.0, 126.0):
        answered = float(ndtr((first - THRESHOLD) / SELECTION_NOISE))
        wins = _first_class_wins(first, TEACHERS - first, answer_noise)
        shares.append((1 - answered, answered * wins, answered * (1 - wins)))
    return max(_epsilon_of_runs(shares[0], shares[1], queries), _epsilon_of_runs(shares[1], shares[0], queries))


def _first_class_wins(first: float, second: float, noise: float) -> float:
    """P(first + noise is the largest of ten): an integral over its own noise, by the trapezoidal rule."""
    z = np.linspace(-9, 9, 721)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    value = density * ndtr((first - second) / noise + z) * ndtr(first / noise + z) ** (CLASSES - 2)
    return float(np.trapezoid(value, z))


def _epsilon_of_runs(p: tuple[float, ...], q: tuple[float, ...], queries: int) -> float:
    """A lower bound of ε at 1e-5 for `queries` draws from p against q, by events {score > cut} of a summed score.

    The score is the log likelihood ratio rounded down to a grid, its distribution under p and q by FFT-free powers
    of the probability mass function; any event gives a lower bound, so rounding costs tightness only.
    """
    ratios = [math.log(a / b) for a, b in zip(p, q, strict=True)]
    unit = max(abs(ratio) for ratio in ratios) / 8
    places = [math.floor(ratio / unit) for ratio in ratios]
    start = min(places)
    size = queries * (max(places) - start) + 1
    masses = []
    for chances in (p, q):
        one = np.zeros(max(places) - start + 1)
        for place, chance in zip(places, chances, strict=True):
            one[place - start] += chance
        length = 1 << (size - 1).bit_length()
        masses.append(np.maximum(np.fft.irfft(np.fft.rfft(one, length) ** queries, length)[:size], 0.0))
    tail_p, tail_q = (np.cumsum(mass[::-1])[::-1] for mass in masses)
    error = 1e-11  # of the tails: the transform differs from binomial sums by less than 3e-12 at 16000 queries
    usable = tail_p > DELTA + 2 * error
    return float(np.max(np.log((tail_p[usable] - error - DELTA) / (tail_q[usable] + error))))


# ---- both in ball arithmetic ----


def _certified(queries: int, answer_noise: float) -> tuple[float, float]:
    """Enclosed in Arb: any order gives an upper end, any event a lower one; float64 only chooses which.

    Upper: the order of `_upper`, the moment of a query at each count. Lower: all 250 teachers for one class on every
    query against 249 and one elsewhere, and the event that at least so many queries are answered, whose probability
    is a binomial tail.
    """
    from flint import arb, ctx

    before = ctx.prec
    ctx.prec = 128
    try:
        order = arb(_upper(queries, answer_noise)[1])

        def answered(largest: int) -> arb:
            return (-(arb(largest) - int(THRESHOLD)) / int(SELECTION_NOISE) / arb(2).sqrt()).erfc() / 2

        yes = [answered(largest) for largest in range(TEACHERS // CLASSES, TEACHERS + 1)]
        growth = (order * (order - 1) / arb(answer_noise) ** 2).exp()

        def moment(one: arb, other: arb) -> arb:
            silent = ((1 - one) / (1 - other)).log() * order
            spoken = (one / other).log() * order
            return (silent.exp() * (1 - other) + spoken.exp() * other * growth).log()

        pairs = [*itertools.pairwise(yes), *zip(yes[1:], yes, strict=False), *zip(yes, yes, strict=True)]
        worst = max(float(moment(one, other).upper()) for one, other in pairs)
        term = (1 - 1 / order).log() - (arb(DELTA).log() + order.log()) / (order - 1)
        upper = float((queries * arb(worst) / (order - 1) + term).upper())
        lower = 0.0
        for deviations in (1.5, 2.0, 2.5, 3.0):
            middle = float(yes[-1].mid())
            least = math.ceil(queries * middle + deviations * math.sqrt(queries * middle * (1 - middle)))
            tails = [p.beta_lower(least, queries - least + 1, True) for p in yes[-2:]]
            ratio = (tails[1] - arb(DELTA)) / tails[0]
            if ratio > 1:
                lower = max(lower, float(ratio.log().lower()))
        return lower, math.nextafter(upper, math.inf)
    finally:
        ctx.prec = before


def _interval(certified: bool, queries: int, answer_noise: float) -> tuple[float, float]:
    if certified:
        return _certified(queries, answer_noise)
    return _attained(queries, answer_noise), _upper(queries, answer_noise)[0]


fixed_number_of_queries = Truth(_interval, attained=True)
