"""What a user of MovieLens is promised who has many ratings: all of them in or out, where Table 4 counts one rating.

| here | in the paper |
| --- | --- |
| `ratings` | records of one user, 133: 800,167 training ratings of 6,040 users mean that some user has that many |
| ROWS[8] | the setting of Table 4: p = 1/80, σ = 0.6, T = 1,600, δ = 1e-6 |

The pair: S without the user, S' with all of the user's ratings; every record's loss is ⟨θ, x⟩, x = 0 in S and x = R e₁
for the ratings. In units of R the T noisy sums are N(K, σ²) with K ~ Bin(`ratings`, p), against N(0, σ²).
"""

from __future__ import annotations

import math

from dpbench.claims.truth import Truth
from dpbench.papers.bu2020.rows import ROWS

SETTING = ROWS[8]


def _whole_user(certified: bool, ratings: int) -> tuple[float, float]:
    """ε at δ of the composition by `exact`; with `certified` a proven lower end, and nothing from above."""
    from dpbench.accounting import load_accountant
    from dpbench.events import Composition, GroupSampledGaussian

    if certified:
        return _event(ratings), math.inf
    releases = Composition(((GroupSampledGaussian(SETTING.rate, SETTING.sigma, ratings), SETTING.whole_steps),))
    found = load_accountant("exact").curve(releases).epsilon(SETTING.delta)
    lower = found.value if found.lower is None else found.lower
    return lower, found.value if found.upper is None else found.upper


def _event(ratings: int) -> float:
    """A lower bound in Arb by the event "the T sums add up to more than τ": log((P − δ)/Q).

    Under S' the total has mean T n p and variance T (n p (1−p) + σ²); Cantelli's inequality bounds P from below, τ
    lies twelve deviations below the mean. Under S it is N(0, T σ²).
    """
    from flint import arb, ctx

    with ctx.workprec(128):
        rate, sigma, steps = arb(SETTING.batch) / SETTING.records, arb(str(SETTING.sigma)), SETTING.whole_steps
        variance = steps * (ratings * rate * (1 - rate) + sigma**2)
        threshold = steps * ratings * rate - 12 * variance.sqrt()
        present = 1 - arb(1) / (1 + 12**2)
        absent = (threshold / (sigma * arb(2 * steps).sqrt())).erfc() / 2
        return float(((present - arb(str(SETTING.delta))) / absent).log().lower())


# all iterates are seen here; of Algorithm 2, with which Table 4 trains, the last one is given out
whole_user = Truth(_whole_user, attained=False, second=_event, second_is="lower")
