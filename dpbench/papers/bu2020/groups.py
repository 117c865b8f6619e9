"""What a user of MovieLens is promised who has many ratings: all of them in or out, where Table 4 counts one rating.

| here | in the paper |
| --- | --- |
| `ratings` | records of one user, 133: 800,167 training ratings of 6,040 users mean that some user has that many |
| ROWS[8] | the setting of Table 4: p = 1/80, σ = 0.6, T = 1,600, δ = 1e-6 |
"""

from __future__ import annotations

import math

from flint import arb, ctx

from dpbench.claims.claim import Printed
from dpbench.claims.judges import bound
from dpbench.events import Composition, GroupSampledGaussian
from dpbench.papers.bu2020.rows import ROWS
from dpbench.papers.mathematics import interval, true_curve, upper_tail


# all iterates are seen here; of Algorithm 2, with which Table 4 trains, the last one is given out
@bound(
    attained=False,
    second="lower",
    pair="S without the user, S' with all ratings; every loss is ⟨θ, x⟩, x = 0 in S and x = R e₁ for the ratings: in "
    "units of R the T noisy sums are N(K, σ²) with K ~ Bin(ratings, p), against N(0, σ²)",
)
def whole_user(certified: bool, delta: Printed, ratings: int) -> tuple[float, float, float]:
    """ε at δ of the composition by `exact`; with `certified` a proven lower end, and nothing from above.

    The second route is that lower end, in Arb, by the event "the T sums add up to more than τ": log((P − δ)/Q). Under
    S' the total has mean T n p and variance T (n p (1−p) + σ²); Cantelli's inequality bounds P from below, τ lies
    twelve deviations below the mean. Under S it is N(0, T σ²).
    """
    row = ROWS[8]
    with ctx.workprec(128):
        rate, sigma, steps = arb(row.batch) / row.records, arb(str(row.sigma)), row.whole_steps
        variance = steps * (ratings * rate * (1 - rate) + sigma**2)
        threshold = steps * ratings * rate - 12 * variance.sqrt()
        present = 1 - arb(1) / (1 + 12**2)
        absent = upper_tail(threshold / (sigma * arb(steps).sqrt()))
        event = float(((present - arb(delta.text)) / absent).log().lower())
    if certified:
        return event, math.inf, event
    releases = Composition(((GroupSampledGaussian(row.rate, row.sigma, ratings), row.whole_steps),))
    return *interval(true_curve(releases).epsilon(delta.value)), event
