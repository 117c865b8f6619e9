"""Lines of Algorithm 1 that no proof step looks at: the rounds, the added error, the ball, the choice of T.

Line numbers are those of the conversion, which counts the inputs as line 1; the jumps in line 10 and the references in
Section 5.3 (lines 7, 9 and 10) count one less.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

import mpmath
from flint import arb, ctx

from dpbench.claims.judges import Shown, shown
from dpbench.papers.mathematics import by_routes, ends, normal_mass, upper_tail
from dpbench.papers.pidp2021.generalisation import HALF, risk
from dpbench.papers.pidp2021.influence import influence, optimum


def _descended(theta: Fraction, rows: Sequence[int], steps: int) -> Fraction:
    """Some steps without noise at rate ½ on all of the rows, loss ½(θ − z)²."""
    for _ in range(steps):
        theta -= HALF * (theta - Fraction(sum(rows), len(rows)))
    return theta


@shown(control={"continued": True}, pair="one record z = 1, loss ½(θ − z)², α = 1/2, R = 3, T_local = 2, no noise")
def rounds_continue(continued: bool = False) -> Shown:
    """Lines 3 to 18: only line 3 sets θ_0 of the local model, so every round as printed starts there again."""
    rounds, steps, whole = 3, 2, Fraction(0)
    for _ in range(rounds):
        whole = _descended(whole if continued else Fraction(0), (1,), steps)
    expected, one = 1 - HALF ** (rounds * steps), 1 - HALF**steps
    reason = f"after {rounds} rounds of {steps} steps theta is {whole}; {rounds * steps} steps give {expected}"
    return by_routes(whole == expected, reason, {"executed": whole, "closed form": expected if continued else one})


@shown(control={"record": 0}, pair="D = (0, 1), loss ½(θ − z)², one of them taken out")
def error_added(record: int = 1) -> Shown:
    """Line 8 with the exact error E: c + E against the true move of the optimum; the other record's c is positive."""
    rows, left = ((1, 0), (1, 1)), (record, 1 - record)
    moved = optimum(rows, left) - optimum(rows)
    told = influence(rows, optimum(rows), record)[0]
    error = abs(moved - told)
    reason = f"removing the record moves the optimum by {moved}; c + E says {told + error} (c = {told}, E = {error})"
    routes = {"optimum without the record": moved, "c n/(n - 1), n = 2": 2 * told}
    return by_routes(abs(told + error) >= abs(moved), reason, routes, {"c": float(told), "E": float(error)})


@shown(control={"projected": True}, pair="one record z = 0, loss ½(θ − z)², α = 1, from θ = 0")
def stays_in_ball(radius: float, deviation: float, projected: bool = False) -> Shown:
    """P(|θ_1| > r) after the noisy step of line 15, θ_1 = −b; the control's step puts θ_1 back on the ball."""

    def step(noise: float) -> float:
        return max(-radius, min(radius, -noise)) if projected else -noise

    cuts = [-12 * deviation, -radius, radius, 12 * deviation]
    parts = [(low, high) for low, high in itertools.pairwise(cuts) if abs(step((low + high) / 2)) > radius]
    with ctx.workprec(256), mpmath.workdps(25):
        again = float(sum(normal_mass(low, high, 0, mpmath.mpf(deviation)) for low, high in parts))
        lower = 0.0 if projected else ends(2 * upper_tail(arb(radius) / arb(deviation)))[0]
    reason = f"with probability {again:.4g} the next gradient is larger than the G of the ball"
    return by_routes(again == 0, reason, {"balls": lower, "integral over the steps that leave": again})


@shown(control={"tried": (1,)}, pair="three ones, against two ones and a minus one; loss ½(θ − z)², from 0, rate 1/2")
def cross_validation(tried: tuple[int, ...] = (1, 2)) -> Shown:
    """T by leave-one-out without noise, the first on a tie, on two neighbours; the control fixes T.

    Again in closed form: θ after T steps is (1 − 2^−T) times the mean of the others.
    """
    chosen, again = [], []
    for data in ((1, 1, 1), (1, 1, -1)):
        others = [(z, [*data[:i], *data[i + 1 :]]) for i, z in enumerate(data)]
        errors = {t: sum(risk(_descended(Fraction(0), rest, t), [z]) for z, rest in others) for t in tried}
        closed = {t: sum(((1 - HALF**t) * (sum(data) - z) / 2 - z) ** 2 for z in data) for t in tried}
        chosen.append(min(tried, key=errors.__getitem__))
        again.append(min(tried, key=closed.__getitem__))
    reason = f"one exchanged record changes T from {chosen[0]} to {chosen[1]}: the datasets are told apart for certain"
    if len(tried) == 1:
        reason = "a T that is fixed beforehand tells nothing"
    routes = {"executed": chosen, "closed form": again}
    return Shown(chosen[0] == chosen[1] if chosen == again else None, reason, None, {"delta": 1.0}, routes)
