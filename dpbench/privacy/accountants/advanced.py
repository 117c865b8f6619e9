"""Advanced composition: ε grows like the square root of the number of invocations, at the price of a further δ.

| here | in the source |
| --- | --- |
| releases, slack | k, δ' |

Dwork, Rothblum and Vadhan 2010, as Dwork and Roth 2014, Theorem 3.20, state it: k mechanisms that are (ε, δ)-private
are (ε', kδ + δ')-private together, with ε' = √(2k log(1/δ')) ε + k ε (e^ε − 1), for every δ' > 0. For unlike mechanisms
the same proof gives Σ ε_i in both places: the losses are bounded by ε_i, their means by ε_i (e^ε_i − 1), and Azuma's
inequality takes unlike bounds, ε' = √(2 log(1/δ') Σ ε_i²) + Σ ε_i (e^ε_i − 1).

Half of δ is the slack δ', the other half is split equally over the mechanisms that reveal anything, each by its exact
curve alone: ε(δ) = ε' with δ' = δ/2 and ε_i = ε_i(δ/2T). The theorem leaves the split free. δ(ε) is the inverse.

>>> from dpbench.events import Composition, Laplace
>>> round(accountant.curve(Composition(((Laplace(100.0), 1000),))).epsilon(1e-6).value, 4)
1.8039
"""

from __future__ import annotations

import math

from dpbench.privacy.accountants._split_delta import Parts, least_epsilon, releases, rounded_up, split


def _epsilon(parts: Parts, log_delta: float) -> float:
    """ε' of Theorem 3.20 with δ' = δ/2 and ε_i = ε_i(δ/2T)."""
    slack = (log_delta - math.log(2)) * (1 + 2.0**-50)
    share = (slack - math.log(releases(parts))) * (1 + 2.0**-50)
    squares, means = [], []
    for event, count in parts:
        single = least_epsilon(event, share)
        if single == 0:
            continue
        if single > 709:  # e^single is no double
            return math.inf
        squares.append(count * single * single)
        means.append(count * single * math.expm1(single))
    if not squares:
        return 0.0
    return (math.sqrt(-2 * slack * sum(squares)) + sum(means)) * rounded_up(len(means))


accountant = split(
    "advanced",
    _epsilon,
    "the theorem's ε, which has e^ε of a single mechanism, exceeds the largest double",
    "advanced composition",
)
