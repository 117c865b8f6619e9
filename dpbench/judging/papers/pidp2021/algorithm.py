"""Lines of Algorithm 1, and the second part of the proof of Theorem 5: why some records are said to need no noise.

Line numbers are those of the conversion, which counts the inputs as line 1; the jumps in line 10 and the references in
Section 5.3 (lines 7, 9 and 10) count one less.

| paper | here |
| --- | --- |
| P[A(D) ∈ S] | `first` |
| κ, δ, ε, r, [c_t]_i | `kappa`, `delta`, `epsilon`, `radius`, `influence` |
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import mpmath
from flint import arb, ctx

from dpbench.judging.claims.claim import Printed
from dpbench.judging.claims.judges import Shown, bound, formula, grid, inequality, shown
from dpbench.judging.papers.mathematics import compared, ends, normal_mass, upper_tail
from dpbench.judging.papers.pidp2021.influence import influence, optimum
from dpbench.judging.papers.pidp2021.neighbours import largest_passing
from dpbench.judging.papers.pidp2021.risks import HALF, risk

_SAME, _OPPOSITE = {(1, 1): HALF, (-1, -1): HALF}, {(1, -1): HALF, (-1, 1): HALF}


@shown(control={"second": _SAME}, pair="A(D) = (U, U) and A(D') = (U, −U) with U = ±1 fairly")
def coordinates(second: Mapping[tuple[int, int], Fraction] = _OPPOSITE) -> Shown:
    """Each coordinate alone is (0, 0)-DP; δ(0) of both, from positive parts and over all 16 sets."""
    points = [(a, b) for a in (1, -1) for b in (1, -1)]
    gains = {point: _SAME.get(point, Fraction(0)) - second.get(point, Fraction(0)) for point in points}
    alike = all(sum(gain for point, gain in gains.items() if point[i] == 1) == 0 for i in (0, 1))
    best = max(sum(chosen) for size in range(5) for chosen in itertools.combinations(gains.values(), size))
    half = sum(map(abs, gains.values())) / 2
    routes = {"half the sum of differences": half, "over all sets": best}
    return compared("==", f"the same law in each coordinate: {alike}; delta of both", routes, {"that of each": 0})


# ---- from the definition of DP to (15) ----


@shown(control={"sign": 1})
def rewritten(sign: int = -1) -> Shown:
    """P <= e^ε P' + δ against 1 − δ/P <= e^ε P'/P on exact probabilities, with e^ε = 2 or 5/2."""
    sixteenths, growths = [Fraction(k, 16) for k in range(17)], (Fraction(2), Fraction(5, 2))
    deltas = [Fraction(1, k) for k in (100, 8, 2)]
    cases = list(itertools.product(sixteenths[1:], sixteenths, deltas, growths))
    wrong = sum((p <= e * q + delta) != (1 + sign * delta / p <= e * q / p) for p, q, delta, e in cases)
    return Shown(wrong == 0, f"{wrong} of {len(cases)} exact cases differ", wrong)


@formula(
    settings=grid(kappa=map(Fraction, ("1.1", "2", "20")), delta=map(Fraction, ("0.00001", "0.01"))),
    control={"off": 1},
)
def kappa_substitution(kappa: Fraction, delta: Fraction, off: int = 0) -> tuple[Fraction, Fraction]:
    """1/κ, and 1 − δ/P at P = κδ/(κ − 1); the control has P = δ/(κ − 1)."""
    return 1 / kappa, 1 - delta / ((kappa if not off else 1) * delta / (kappa - 1))


@shown(control={"first": None}, pair="two outcomes with P and P' = P e^(−2ε), which satisfy (15) with κ = e^ε")
def equation_15(epsilon: float, delta: float, first: float | None) -> Shown:
    """δ(ε) >= P − e^ε P' = P (1 − e^−ε), in balls; only P <= κδ/(κ − 1), the control's, keeps it within δ."""
    mass = math.exp(epsilon) * delta / math.expm1(epsilon) if first is None else first
    with ctx.workprec(256):
        lower, upper = ends(arb(mass) - arb(epsilon).exp() * arb(mass) * (-2 * arb(epsilon)).exp())
    again = mass * -math.expm1(-epsilon)
    reason = f"P = {mass:.6g} and P' = P e^(-2 epsilon) satisfy (15), and delta(epsilon) is {lower:.6g}, not {delta:g}"
    holds = upper <= delta * (1 + 1e-12) if lower <= delta * (1 + 1e-12) else False
    evidence = {"epsilon": epsilon, "delta": delta, "P": mass}
    return Shown(holds, reason, again, evidence, {"balls": [lower, upper], "closed form": again})


# ---- the uniform model ----


@shown(control={"last": HALF}, pair="three records 0, 1, 1; the last one drawn anew from a fair coin")
def expectation_over_neighbour(last: Fraction | int = 1) -> Shown:
    """E[A(D')] and A(D), the optimum of ½(θ − z)², which is the mean; the control's last record is the coin's mean."""
    expected = sum((Fraction(0 + 1 + new, 3) for new in (0, 1)), Fraction(0)) / 2
    at_data = (0 + 1 + Fraction(last)) / 3
    routes = {"enumerated": expected, "linearity": at_data + (HALF - last) / 3}
    return compared("==", "E[A(D')] over the exchanged record", routes, {"A(D)": at_data})


@shown(control={"sign": 0})
def negative_probability(kappa: float, delta: float, radius: float, sign: int = -1) -> Shown:
    """The lower end of the printed range of a probability, [−rκδ/(κ−1), rκδ/(κ−1)]; the control has it at 0."""
    low = sign * Fraction(radius) * Fraction(kappa) * Fraction(delta) / (Fraction(kappa) - 1)
    routes = {"rationals": low, "doubles": sign * radius * kappa * delta / (kappa - 1)}
    return compared(">=", "the lower end of the range of a probability", routes, {"the least probability": 0})


@shown(control={"start": Fraction(-1)}, pair="uniform on [−1, 1], and on [−1 + c, 1 + c]; S = [−1/10, 1/10]")
def shifted_probability(start: Fraction = Fraction(-1, 10)) -> Shown:
    """P[A(D') ∈ S], S of length 1/5 from `start`, against the printed upper bound P[A(D) ∈ S] − c/(2r), c = 1/20.

    S around 0 keeps all of its probability; the control's S lies at the edge.
    """
    shift, length = Fraction(1, 20), Fraction(1, 5)
    shared = max(min(start + length, 1 + shift) - max(start, -1 + shift), Fraction(0)) / 2
    tenths = [start + (k + HALF) / 100 for k in range(20)]  # the middles of cells that no edge cuts
    counted = Fraction(sum(abs(middle - shift) <= 1 for middle in tenths), 200)
    printed = length / 2 - shift / 2
    routes = {"exact": shared, "counted": counted}
    return compared("<=", "P' of the set", routes, {"the printed upper bound": printed})


@bound(name="delta", attained=False, pair="U[−1, 1] and U[−1 + c, 1 + c] with the largest c that passes, [−1, −1 + c]")
def uniform_threshold(epsilon: Printed, step_delta: float) -> tuple[float, float, float]:
    """δ(ε) = |c|/(2r) = δ₁(1 + e^−ε₁), where δ₁ is `step_delta`; again from the printed tests by bisection."""
    with ctx.workprec(256):
        lower, upper = ends(arb(step_delta) * (1 + (-arb(epsilon.value)).exp()))
    with mpmath.workdps(30):
        return lower, upper, float(largest_passing(epsilon.value, step_delta) / 2)


@shown(control={"steps": 1}, pair="T uniform laws, each shifted so that its own δ is δ₁; the event: any shows it")
def silent_steps_compose(steps: int, delta: float) -> Shown:
    """δ(ε) of T noise-free steps together, for every ε, against that of one; again by the number that shows it."""
    share = Fraction(delta)
    total = 1 - (1 - share) ** steps
    again = math.fsum(math.comb(steps, k) * delta**k * (1 - delta) ** (steps - k) for k in range(1, steps + 1))
    routes = {"one less the chance of none": total, "summed over how many": again}
    return compared("<=", f"for every epsilon what {steps} steps leak", routes, {"what one leaks": share})


# ---- line 11 and the budget ----


@formula(
    settings=grid(radius=[1, 5], epsilon=["0.0075", "0.75", "2.25"], share=["0.25", "0.9"]),
    control={"factor": 2},
)
def line_11(radius: int, epsilon: Any, share: Any, factor: int = 1) -> tuple[Any, Any]:
    """The printed logarithm at c = `share` of the largest that line 10 lets pass, and ln(P/P') of the proof's model.

    P = κδ/(κ−1) on an interval at the edge, P' what the shift by c leaves of it.
    """
    kappa, top = mpmath.exp(epsilon), 2 * radius * mpmath.exp(epsilon) * mpmath.mpf("1e-5")
    length = top / (kappa - 1)
    left = mpmath.quad(lambda _: 1 / (2 * mpmath.mpf(radius)), [-radius + share * length, -radius + length])
    printed = mpmath.log(top / (top - (kappa - 1) * share * length))
    return factor * printed, mpmath.log(length / (2 * radius) / left)


def _looser_enclosed(epsilon: float, more: float) -> tuple[float, float]:
    """The change of 1 + e^−ε₁ in balls."""
    with ctx.workprec(256):
        return ends((-arb(epsilon) - arb(more)).exp() - (-arb(epsilon)).exp())


@inequality(
    domain={"epsilon": (0.0075, 2.25, "log"), "more": (0.01, 1)},
    settings=[{"epsilon": 0.75, "more": 0.75}],
    control={"sign": -1},
    tolerance=1e-9,
    enclosure=_looser_enclosed,
    examples=40,
)
def looser_with_budget(epsilon: float, more: float, sign: int = 1) -> float:
    """The change of the largest |c|/(2rδ₁) without noise when ε₁ grows by `more`; the control asks whether it falls."""
    largest = [largest_passing(at, 1.0) / 2 for at in (epsilon, epsilon + more)]
    return float(sign * (largest[1] - largest[0]))


# ---- lines of the algorithm that no proof step looks at ----


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
    routes = {"executed": whole, "closed form": expected if continued else one}
    return compared(
        "==", f"theta after {rounds} rounds of {steps} steps", routes, {f"after {rounds * steps} steps": expected}
    )


@shown(control={"record": 0}, pair="D = (0, 1), loss ½(θ − z)², one of them taken out")
def error_added(record: int = 1) -> Shown:
    """Line 8 with the exact error E: c + E against the true move of the optimum; the other record's c is positive."""
    rows, left = ((1, 0), (1, 1)), (record, 1 - record)
    predicted = influence(rows, optimum(rows), record)[0]
    moved = optimum(rows, left) - optimum(rows)
    error = abs(moved - predicted)
    routes = {"optimum without the record": abs(moved), "c n/(n - 1), n = 2": abs(2 * predicted)}
    return compared(
        "<=", "the move of the optimum", routes, {f"|c + E| (c = {predicted}, E = {error})": abs(predicted + error)}
    )


@shown(control={"projected": True}, pair="one record z = 0, loss ½(θ − z)², α = 1, from θ = 0")
def stays_in_ball(radius: float, deviation: float, projected: bool = False) -> Shown:
    """P(|θ_1| > r) after the noisy step of line 15, θ_1 = −b; the control's step puts θ_1 back on the ball."""

    def step(noise: float) -> float:
        return max(-radius, min(radius, -noise)) if projected else -noise

    cuts = [-12 * deviation, -radius, radius, 12 * deviation]
    parts = [(low, high) for low, high in itertools.pairwise(cuts) if abs(step((low + high) / 2)) > radius]
    with ctx.workprec(256), mpmath.workdps(25):
        again = sum(normal_mass(low, high, 0, mpmath.mpf(deviation)) for low, high in parts)
        lower = 0.0 if projected else ends(2 * upper_tail(arb(radius) / arb(deviation)))[0]
    routes = {"balls": lower, "integral over the steps that leave": again}
    return compared("<=", "the chance that the next gradient is larger than the G of the ball", routes, {"none": 0})


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
    reason = f"one exchanged record changes T from {chosen[0]} to {chosen[1]}; where it does, δ is 1"
    routes = {"executed": chosen, "closed form": again}
    return Shown(chosen[0] == chosen[1] if chosen == again else None, reason, None, {"delta": 1.0}, routes)
