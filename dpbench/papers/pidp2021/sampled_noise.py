"""Equation (2), the noise of DP-SGD that Theorems 1, 5 and 6 take from the moments accountant, at few steps.

| paper | here |
| --- | --- |
| n, T | `records`, `steps` = ⌈ln n⌉, the T = O(log n) of Theorems 1 and 6 |
| c, G, σ | `constant`, 1, c √(T ln(1/δ)) / (n ε) |

Neighbours: with the linear loss ℓ(θ, z) = zθ, |z| <= 1 (so G = 1), D holds one 1 among zeros and D' holds zeros. The
released iterates tell the increments z_t + b, independent draws of (1 − 1/n) N(0, σ²) + (1/n) N(1, σ²) from D and of
N(0, σ²) from D'. The event "some increment is above 1/2" bounds δ(ε) from below; coupling both runs until the 1 is
chosen bounds it by 1 − (1 − 1/n)^T from above.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.truth import Truth
from dpbench.papers.pidp2021.enclosures import BITS, ends, upper_tail

SIZES = {"KDDCup99": 70000, "Adult": 45222, "Bank": 41188}  # Section 7


def few_steps(records: int) -> int:
    """⌈ln n⌉."""
    return math.ceil(math.log(records))


def _event_ball(records: int, constant: float, epsilon: float, delta: float) -> tuple[Any, Any]:
    """The balls of the lower bound P(S) − e^ε Q(S) and of σ."""
    from flint import arb

    steps = few_steps(records)
    deviation = arb(constant) * (arb(steps) * (1 / arb(delta)).log()).sqrt() / (arb(records) * arb(epsilon))
    half = 1 / (2 * deviation)
    quiet = 1 - upper_tail(half)
    rate = arb(1) / records
    with_record = 1 - ((1 - rate) * quiet + rate * upper_tail(half)) ** steps
    without = 1 - quiet**steps
    return with_record - arb(epsilon).exp() * without, deviation


def _delta(_certified: bool, records: int, constant: float, epsilon: float, delta: float) -> tuple[float, float]:
    from flint import arb, ctx

    with ctx.workprec(BITS):
        lower, _ = _event_ball(records, constant, epsilon, delta)
        upper = 1 - (1 - arb(1) / records) ** few_steps(records)
        return ends(lower)[0], ends(upper)[1]


def _delta_again(records: int, constant: float, epsilon: float, delta: float) -> float:
    """A lower bound by another event, "some increment is above 3/4", in mpmath with the density integrated."""
    import mpmath

    with mpmath.workdps(40):
        steps = few_steps(records)
        deviation = mpmath.mpf(constant) * mpmath.sqrt(steps * mpmath.log(1 / mpmath.mpf(delta))) / (records * epsilon)

        def above(centre: float) -> Any:
            start = (mpmath.mpf("0.75") - centre) / deviation
            return mpmath.quad(mpmath.npdf, [start, start + 2, start + 8, start + 40])

        none = 1 - above(0)
        missed = (1 - mpmath.mpf(1) / records) * none + (1 - above(1)) / records
        seen = 1 - missed**steps
        return float(seen - mpmath.exp(epsilon) * (1 - none**steps))


equation_2 = Truth(_delta, name="delta", attained=True, second=_delta_again, second_is="lower")


def _no_constant(epsilon: float, constant_over_records: float, falls: bool = True) -> Shown:
    """δ = 1/n², T = ⌈ln n⌉: whether σ with a constant that grows like n still fails, at larger and larger n."""
    from flint import ctx

    found, again = {}, {}
    for records in (10**4, 10**5, 10**6, 10**8):
        delta = float(records) ** -2
        constant = constant_over_records * records if falls else 10.0 * records
        with ctx.workprec(BITS):
            ball, _ = _event_ball(records, constant, epsilon, delta)
            found[records] = ends(ball)[0] / delta
        again[records] = _delta_again(records, constant, epsilon, delta) / delta
    fails = all(ratio > 1 for ratio in found.values()) and all(ratio > 1 for ratio in again.values())
    evidence = {"constant_over_n": constant_over_records, "epsilon": epsilon, "delta": "1/n^2", "steps": "ceil(ln n)"}
    routes = {
        "delta over the promised one, balls": {str(n): ratio for n, ratio in found.items()},
        "the same by another event": {str(n): ratio for n, ratio in again.items()},
    }
    if fails:
        reason = f"even c = {constant_over_records:g} n fails at every n tried: no constant does for all n"
        return Shown(False, reason, found[10**6], evidence, routes)
    return Shown(True, "these events show no violation", found[10**6], evidence, routes)


equation_2_constant = Demonstration(_no_constant, twin=lambda **parameters: _no_constant(**parameters, falls=False))


def _conditions(constant: float, epsilon: float, delta: float, long_enough: bool = False) -> Shown:
    """What the moments accountant's lemma asks (σ >= 1 relative to G, q < 1/(16σ)) at T = ⌈ln n⌉ and σ from (2)."""
    deviations, needed = {}, {}
    for name, records in SIZES.items():
        least = (records * epsilon / constant) ** 2 / math.log(1 / delta)
        steps = math.ceil(least) if long_enough else few_steps(records)
        deviations[name] = constant * math.sqrt(steps * math.log(1 / delta)) / (records * epsilon)
        needed[name] = least
    holds = all(deviation >= 1 for deviation in deviations.values())
    exact = {  # squares, so that only the logarithm is not rational
        name: float(
            Fraction(constant) ** 2 * math.ceil(math.log(n)) / (n * Fraction(epsilon)) ** 2 * Fraction(-math.log(delta))
        )
        for name, n in SIZES.items()
    }
    routes = {"noise over G": deviations, "its square, in rationals": exact}
    evidence = {"noise over G": deviations, "steps that sigma >= 1 needs": needed, "c": constant, "epsilon": epsilon}
    reason = (
        "sigma is at least G"
        if holds
        else f"sigma is at most {max(deviations.values()):.3g} G, where the lemma needs at least G"
    )
    return Shown(holds, reason, max(deviations.values()), evidence, {} if long_enough else routes)


moments_conditions = Demonstration(_conditions, twin=lambda **parameters: _conditions(**parameters, long_enough=True))
