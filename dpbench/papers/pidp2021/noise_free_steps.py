"""Theorem 5 against explicit neighbours: what the steps without noise (line 12 of Algorithm 1) give away.

| paper | here |
| --- | --- |
| n, T = T_local R, R | `records`, `steps`, `rounds` (1 where a function does not take it) |
| r, G, L, C, ζ | `radius`, Lipschitz constant `radius + 1`, 1, 0, 1 |
| ε₁, ε₂, δ₁, δ₂ | `epsilon_train`, `epsilon_choice`, `delta_train`, `delta_choice` |
| c_z, E, b^(c), σ_(c), c' | influence, its error bound, decision noise, its deviation, `PROOF_CONSTANT` |

The loss is ½(θ − z)² with data |z| <= 1 and parameters |θ| <= r: L = ζ = μ = 1, C = 0, and the gradient is at most
r + 1 = G. The start is θ̃ = 0 and the learning rate is α = 1/L = 1.

Neighbours: D holds `records` − 1 zeros and one 1, D' holds only zeros. A step that chooses the 1 and adds no noise
moves θ by −α(θ − 1) exactly; from D' that value has probability 0, because its noise-free steps move by −αθ and its
noisy steps have a density. Each iterate is released (the paper's own attacker, Section 3.2). So δ(ε) is, for every ε,
at least P(some step chooses the 1 and adds no noise) = 1 − (1 − p/n)^T, with p the probability of lines 9 to 11, and
that number in the limit of large ε; both runs agree until the 1 is chosen, so it is at most 1 − (1 − 1/n)^T. Lines 9
and 10 draw their noise anew at each step, and with R = 1 the influence stays that of θ̃, so p is the same at each step.

The decision noise is in proportion to G R sqrt(ln(1.25 R/δ₂))/ζ, so p and with it δ are what they are at these G, ζ and
R only: more rounds, a larger G or a ζ below the least curvature (here both are 1) make them smaller. With R > 1 the
influence is that of the model at the round's start, taken at its largest, |θ − z| = r + 1, where p is smallest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from dpbench.claims.truth import Truth
from dpbench.papers.pidp2021.enclosures import BITS, between, ends

PROOF_CONSTANT = "2.83"  # c' in the proof of Theorem 5


def printed_passes(influence: Any, radius: Any, epsilon: Any, delta: Any, exp: Callable[[Any], Any]) -> bool:
    """Lines 10 and 11 as printed: whether a step with the noisy contribution `influence` goes without noise."""
    top = 2 * radius * exp(epsilon) * delta
    size = abs(influence)
    if size * (exp(epsilon) - 1) >= top:
        return False
    return bool(top / (top - (exp(epsilon) - 1) * size) <= exp(2 * epsilon))  # the logarithm taken off both sides


def noise_free_probability(
    records: int,
    radius: float,
    epsilon_train: float,
    epsilon_choice: float,
    delta_train: float,
    delta_choice: float,
    record: float = 1.0,
    rounds: int = 1,
) -> Any:
    """The ball of p for a record z: P(|2(c_z + E) + b| <= 2rδ₁(1 + e^−ε₁)), where lines 10 and 11 let pass.

    With one round c_z = −z/n, the influence at θ̃ = 0; with more −(|z| + r)/n, the largest of any model in the ball.
    Line 11 is 1 − (κ − 1)|c|/(2rκδ₁) >= κ^−2 with κ = e^ε₁, that is |c| <= 2rδ₁(1 + 1/κ); line 10 allows more.
    """
    from flint import arb

    passes = 2 * arb(radius) * arb(delta_train) * (1 + (-arb(epsilon_train)).exp())
    lipschitz = arb(radius) + 1
    deviation = arb(PROOF_CONSTANT) * lipschitz * rounds * (arb("1.25") * rounds / arb(delta_choice)).log().sqrt()
    deviation = deviation / (arb(records) * arb(epsilon_choice))
    away = arb(record) if rounds == 1 else abs(arb(record)) + arb(radius)
    centre = 2 * (-away / records + 2 * lipschitz / arb(records) ** 2)
    return between((-passes - centre) / deviation, (passes - centre) / deviation)


def _given_away(_certified: bool, records: int, steps: int, **setting: Any) -> tuple[float, float]:
    """δ at any ε: P(some step chooses the 1 without noise) from below, P(some step chooses the 1) from above."""
    from flint import ctx

    with ctx.workprec(BITS):
        p = noise_free_probability(records, **setting)
        return ends(1 - (1 - p / records) ** steps)[0], _chosen(records, steps)


def _chosen(records: int, steps: int) -> float:
    """An upper end of 1 − (1 − 1/n)^T."""
    from flint import arb

    return ends(1 - (1 - arb(1) / records) ** steps)[1]


def _probability_again(
    records: int,
    radius: float,
    epsilon_train: float,
    epsilon_choice: float,
    delta_train: float,
    delta_choice: float,
    rounds: int = 1,
) -> Any:
    """p for the record 1 by bisection of the printed test and quadrature of the normal density."""
    import mpmath

    with mpmath.workdps(40):
        low, high = mpmath.mpf(0), mpmath.mpf(4 * radius)
        for _ in range(160):
            middle = (low + high) / 2
            passed = printed_passes(middle, mpmath.mpf(radius), mpmath.mpf(epsilon_train), delta_train, mpmath.exp)
            low, high = (middle, high) if passed else (low, middle)
        lipschitz = mpmath.mpf(radius) + 1
        logarithm = mpmath.log(mpmath.mpf("1.25") * rounds / delta_choice)
        deviation = mpmath.mpf(PROOF_CONSTANT) * lipschitz * rounds * mpmath.sqrt(logarithm)
        deviation /= records * mpmath.mpf(epsilon_choice)
        away = mpmath.mpf(1) if rounds == 1 else 1 + mpmath.mpf(radius)
        centre = 2 * (-away / records + 2 * lipschitz / mpmath.mpf(records) ** 2)
        return mpmath.quad(lambda noise: mpmath.npdf(noise, 0, deviation), [-low - centre, low - centre])


def _given_away_again(records: int, steps: int, **setting: Any) -> float:
    """The same from the other p."""
    import mpmath

    with mpmath.workdps(40):
        return float(-mpmath.expm1(steps * mpmath.log1p(-_probability_again(records, **setting) / records)))


theorem_5 = Truth(_given_away, name="delta", attained=True, second=_given_away_again)


def _one_draw(_certified: bool, records: int, steps: int, **setting: Any) -> tuple[float, float]:
    """The reading of Remark 9: line 9 draws once per record and keeps its noise, so the 1 passes always or never.

    Then the same set has probability p (1 − (1 − 1/n)^T) from D and 0 from D'; in balls.
    """
    from flint import arb, ctx

    with ctx.workprec(BITS):
        shown = noise_free_probability(records, **setting) * (1 - (1 - arb(1) / records) ** steps)
        return ends(shown)[0], _chosen(records, steps)


def _one_draw_again(records: int, steps: int, **setting: Any) -> float:
    """The same as a sum over the step that first chooses the 1, with p by quadrature."""
    first = math.fsum(math.exp(step * math.log1p(-1 / records)) / records for step in range(steps))
    return float(_probability_again(records, **setting)) * first


theorem_5_one_draw = Truth(_one_draw, name="delta", attained=True, second=_one_draw_again)


def _final_model(_certified: bool, records: int, steps: int, epsilon: float, **setting: Any) -> tuple[float, float]:
    """δ(ε) from below where only the last model is released; α = ½ from θ̃ = 0, the same D and D'.

    S = {θ_T ≠ 0}. Without noise a run from D' stays at 0, and a run from D ends above 0 once it has chosen the 1. So
    P(S) is at least P(all steps silent, 1 chosen) and Q(S) at most P'(some step noisy). From above δ is at most 1.
    """
    from flint import arb, ctx

    with ctx.workprec(BITS):
        zero = noise_free_probability(records, **setting, record=0.0)
        one = noise_free_probability(records, **setting, record=1.0)
        others = zero * (records - 1) / records
        seen = (others + one / records) ** steps - others**steps
        return ends(seen - arb(epsilon).exp() * (1 - zero**steps))[0], 1.0


def _final_model_again(records: int, steps: int, epsilon: float, **setting: Any) -> float:
    """A lower bound by a union bound: 1 − (1 − 1/n)^T less (1 + e^ε) T times the largest chance of a noisy step."""
    from scipy.special import erfc

    radius, train, choice = setting["radius"], setting["epsilon_train"], setting["epsilon_choice"]
    deviation = float(PROOF_CONSTANT) * (radius + 1) * math.sqrt(math.log(1.25 / setting["delta_choice"]))
    deviation /= records * choice
    passes = 2 * radius * setting["delta_train"] * (1 + math.exp(-train))
    room = (passes - 2 / records - 4 * (radius + 1) / records**2) / deviation
    noisy = float(erfc(room / math.sqrt(2)))
    chosen = -math.expm1(steps * math.log1p(-1 / records))
    return chosen - (1 + math.exp(epsilon)) * steps * noisy


theorem_5_final_model = Truth(_final_model, name="delta", attained=True, second=_final_model_again, second_is="lower")


def _small_influence(
    _certified: bool, records: int, steps: int, record: float, radius: float, epsilon_train: float, delta_train: float
) -> tuple[float, float]:
    """δ for all ε where every step goes without noise: D holds zeros, D' one `record` beside them.

    Without decision noise lines 8 to 11 let every record of both pass (checked here in balls), so each run is
    deterministic but for the choice of records, and a run from D' that ever chooses `record` leaves the zeros of D.
    Exact: 1 − (1 − 1/n)^T.
    """
    from flint import arb, ctx

    with ctx.workprec(BITS):
        error = 2 * (arb(radius) + 1) / arb(records) ** 2
        for value in (0.0, record):
            contribution = 2 * (-arb(value) / records + error)
            if not printed_passes(contribution, arb(radius), arb(epsilon_train), arb(delta_train), arb.exp):
                raise ArithmeticError(f"the record {value} meets noise")
    exact = 1 - (1 - Fraction(1, records)) ** steps
    return float(exact), float(exact)


def _small_influence_again(records: int, steps: int, **_: float) -> float:
    """The same as a sum over the step that first chooses the record."""
    return math.fsum(math.exp(step * math.log1p(-1 / records)) / records for step in range(steps))


naturally_private = Truth(_small_influence, name="delta", attained=True, second=_small_influence_again)
