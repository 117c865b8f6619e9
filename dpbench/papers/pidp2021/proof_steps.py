"""The second part of the proof of Theorem 5: why records of little influence are said to need no noise.

| paper | here |
| --- | --- |
| P[A(D) ∈ S], P[A(D') ∈ S] | `first`, `second` |
| κ, δ, ε, r, [c_t]_i | `kappa`, `delta`, `epsilon`, `radius`, `influence` |
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range
from dpbench.claims.truth import Truth
from dpbench.papers.pidp2021.enclosures import BITS, ends

# ---- privacy of each coordinate and of the whole ----


def _coordinates(both_alike: bool = False) -> Shown:
    """A(D) = (U, U) and A(D') = (U, −U) with U = ±1 fairly: each coordinate alone is (0, 0)-DP."""
    half = Fraction(1, 2)
    first = {(1, 1): half, (-1, -1): half}
    second = first if both_alike else {(1, -1): half, (-1, 1): half}
    marginals = [
        {u: sum((p for point, p in law.items() if point[i] == u), Fraction(0)) for u in (1, -1)}
        for law in (first, second)
        for i in (0, 1)
    ]
    distance = sum((max(p - second.get(point, Fraction(0)), Fraction(0)) for point, p in first.items()), Fraction(0))
    # second route: every one of the 16 sets of outputs
    points = ((1, 1), (1, -1), (-1, 1), (-1, -1))
    gains = {point: first.get(point, Fraction(0)) - second.get(point, Fraction(0)) for point in points}
    sets = (chosen for size in range(5) for chosen in itertools.combinations(points, size))
    best = max(sum((gains[point] for point in chosen), Fraction(0)) for chosen in sets)
    alike = all(law == marginals[0] for law in marginals)
    routes = {"sum of positive parts": float(distance), "largest over all sets": float(best)}
    reason = f"each coordinate has the same law under D and D', both together tell them apart with delta = {distance}"
    holds = None if distance != best or not alike else distance == 0
    return Shown(holds, reason, float(distance), {"coordinates_equal_in_law": alike}, routes)


coordinates = Demonstration(_coordinates, twin=lambda: _coordinates(both_alike=True))


# ---- from the definition of DP to (15) ----


def _rewritten(sign: int = -1) -> Shown:
    """P <= e^ε P' + δ against 1 − δ/P <= e^ε P'/P on exact probabilities, with e^ε = 2 or 5/2."""
    wrong = tried = 0
    grid = [Fraction(k, 16) for k in range(17)]
    for first, second, delta in itertools.product(grid[1:], grid, (Fraction(1, 100), Fraction(1, 8), Fraction(1, 2))):
        for factor in (Fraction(2), Fraction(5, 2)):
            tried += 1
            wrong += (first <= factor * second + delta) != (1 + sign * delta / first <= factor * second / first)
    return Shown(wrong == 0, f"{wrong} of {tried} exact cases differ", wrong)


rewritten = Demonstration(_rewritten, twin=lambda: _rewritten(sign=1))

_KAPPAS = tuple(
    {"kappa": kappa, "delta": delta}
    for kappa in (Fraction(11, 10), Fraction(2), Fraction(20))
    for delta in (Fraction(1, 100000), Fraction(1, 100))
)
kappa_substitution = Formula(
    lambda kappa, delta: 1 / kappa,  # noqa: ARG005
    lambda kappa, delta: 1 - delta / (kappa * delta / (kappa - 1)),
    _KAPPAS,
    twin=lambda kappa, delta: 1 - delta / (delta / (kappa - 1)),
)


def _equation_15(epsilon: float, delta: float, first: float, at_kappa: bool = False) -> Shown:
    """Two outcomes with P = `first`, P' = P e^(−2ε): ln(P/P') = ε + ln κ, so (15) holds with κ = e^ε for P.

    The true δ(ε) is at least P − e^ε P' = P (1 − e^−ε); only P <= κδ/(κ − 1) keeps it within δ.
    """
    from flint import arb, ctx

    with ctx.workprec(BITS):
        size = arb(first)
        if at_kappa:
            size = arb(delta) * arb(epsilon).exp() / (arb(epsilon).exp() - 1)
        lower, upper = ends(size - arb(epsilon).exp() * (size * (-2 * arb(epsilon)).exp()))
    mass = math.exp(epsilon) * delta / math.expm1(epsilon) if at_kappa else first
    again = mass * -math.expm1(-epsilon)
    routes = {"balls": [lower, upper], "closed form": again}
    slack = 1e-12 * delta
    holds = False if lower > delta + slack else upper <= delta + slack
    reason = f"P = {mass:.6g} and P' = P e^(-2 epsilon) satisfy (15), and delta(epsilon) is {lower:.6g}, not {delta:g}"
    return Shown(holds, reason, again, {"epsilon": epsilon, "delta": delta, "P": mass}, routes)


equation_15 = Demonstration(_equation_15, twin=lambda **parameters: _equation_15(**parameters, at_kappa=True))


# ---- the uniform model ----


def _mean_over_neighbours(population_mean_in_data: bool = False) -> Shown:
    """A(D) = the optimum of ½(θ − z)², the mean of three records; the last one is drawn anew from a fair coin."""
    rows = (Fraction(0), Fraction(1), Fraction(1, 2) if population_mean_in_data else Fraction(1))
    at_data = sum(rows, Fraction(0)) / 3
    expected = sum((sum((*rows[:2], new), Fraction(0)) / 3 for new in (Fraction(0), Fraction(1))), Fraction(0)) / 2
    again = at_data + (Fraction(1, 2) - rows[2]) / 3
    routes = {"enumerated": float(expected), "linearity": float(again)}
    reason = f"E[A(D')] over the exchanged record is {expected}, A(D) is {at_data}"
    return Shown(None if expected != again else expected == at_data, reason, float(expected - at_data), {}, routes)


expectation_over_neighbour = Demonstration(
    _mean_over_neighbours, twin=lambda: _mean_over_neighbours(population_mean_in_data=True)
)


def _negative_probability(kappa: float, delta: float, radius: float, from_zero: bool = False) -> Shown:
    """The printed range of a probability, [−rκδ/(κ−1), rκδ/(κ−1)], against [0, 1]."""
    top = radius * kappa * delta / (kappa - 1)
    low = 0.0 if from_zero else -top
    exact = Fraction(radius) * Fraction(kappa) * Fraction(delta) / (Fraction(kappa) - 1)
    routes = {"doubles": low, "rationals": 0.0 if from_zero else float(-exact)}
    return Shown(
        low >= 0 and top <= 1, f"the range of a probability is given as [{low:.3g}, {top:.3g}]", low, {}, routes
    )


negative_probability = Demonstration(
    _negative_probability, twin=lambda **parameters: _negative_probability(**parameters, from_zero=True)
)


def _overlap(mass: Fraction, influence: Fraction, at_edge: bool) -> Shown:
    """r = 1, A(D) uniform on [−1, 1], A(D') uniform on [−1 + c, 1 + c], S an interval with P[A(D) ∈ S] = `mass`.

    Printed: P[A(D') ∈ S] is at most mass − c/(2r). S around 0 keeps all of its mass.
    """
    start = Fraction(-1) if at_edge else -mass
    stop = start + 2 * mass
    shared = max(min(stop, 1 + influence) - max(start, -1 + influence), Fraction(0)) / 2
    cells = 1000
    width = (stop - start) / cells
    counted = sum(-1 + influence <= start + (k + Fraction(1, 2)) * width <= 1 + influence for k in range(cells))
    again = Fraction(counted) * width / 2
    bound = mass - influence / 2
    routes = {"exact": float(shared), "counted": float(again)}
    reason = f"P' of the set is {shared}, the printed upper bound {bound}"
    agree = abs(shared - again) <= width
    return Shown(shared <= bound if agree else None, reason, float(shared), {"printed_bound": float(bound)}, routes)


shifted_probability = Demonstration(
    lambda: _overlap(Fraction(1, 10), Fraction(1, 20), False),
    twin=lambda: _overlap(Fraction(1, 10), Fraction(1, 20), True),
)


def _uniform_delta(_certified: bool, epsilon: float, delta: float) -> tuple[float, float]:
    """δ(ε) of U[−r, r] against U[−r + c, r + c] at the largest |c| that line 11 lets pass: |c|/(2r) = δ(1 + e^−ε)."""
    from flint import arb, ctx

    with ctx.workprec(BITS):
        return ends(arb(delta) * (1 + (-arb(epsilon)).exp()))


def _uniform_delta_again(epsilon: float, delta: float) -> float:
    """The same with |c| from a bisection of the printed logarithm, and the uncovered length counted."""
    import mpmath

    with mpmath.workdps(30):
        top = 2 * mpmath.exp(epsilon) * delta
        low, high = mpmath.mpf(0), top / mpmath.expm1(epsilon)
        for _ in range(120):
            middle = (low + high) / 2
            loss = mpmath.log(top / (top - mpmath.expm1(epsilon) * middle))
            low, high = (middle, high) if loss <= 2 * epsilon else (low, middle)
        return float(mpmath.quad(lambda _: mpmath.mpf(1) / 2, [-1, -1 + low]))


uniform_threshold = Truth(_uniform_delta, name="delta", attained=False, second=_uniform_delta_again)


def _many_steps(steps: int, delta: float, once: bool = False) -> Shown:
    """Noise-free steps, each a uniform release shifted so that its own δ is exactly δ₁, composed over T steps."""
    number = 1 if once else steps
    share = Fraction(delta)
    total = 1 - (1 - share) ** number
    again = -math.expm1(number * math.log1p(-delta))
    routes = {"rationals": float(total), "logarithms": again}
    reason = f"{number} steps that each leak {delta:g} leak {float(total):.6g} together, for every epsilon"
    return Shown(total <= share, reason, float(total), {"steps": number, "delta_of_one": delta}, routes)


many_noise_free_steps = Demonstration(_many_steps, twin=lambda **parameters: _many_steps(**parameters, once=True))


# ---- line 11 and the budget ----


def _line_11(radius: float, epsilon: float, delta: float, share: float) -> Any:
    """The printed logarithm of line 11, at c = `share` of the largest that line 10 lets pass."""
    import mpmath

    top = 2 * radius * mpmath.exp(epsilon) * delta
    influence = share * top / (mpmath.exp(epsilon) - 1)
    return mpmath.log(top / (top - (mpmath.exp(epsilon) - 1) * influence))


def _model_loss(radius: float, epsilon: float, delta: float, share: float) -> Any:
    """ln(P/P') of the proof's model: P = κδ/(κ−1) on an interval at the edge, P' what the shift by c leaves of it."""
    import mpmath

    kappa = mpmath.exp(epsilon)
    length = 2 * radius * kappa * delta / (kappa - 1)
    influence = share * 2 * radius * kappa * delta / (kappa - 1)
    left = mpmath.quad(lambda _: 1 / (2 * mpmath.mpf(radius)), [-radius + influence, -radius + length])
    return mpmath.log(length / (2 * radius) / left)


line_11 = Formula(
    _line_11,
    _model_loss,
    tuple(
        {"radius": radius, "epsilon": epsilon, "delta": 1e-5, "share": share}
        for radius in (1, 5)
        for epsilon in (0.0075, 0.75, 2.25)
        for share in (0.25, 0.9)
    ),
    twin=lambda radius, epsilon, delta, share: 2 * _line_11(radius, epsilon, delta, share),
)


def _largest_silent(epsilon: float) -> float:
    """The largest |c|/(2rδ₁) without noise: line 11 as printed, by bisection."""
    low, high = 0.0, math.exp(epsilon) / math.expm1(epsilon)
    for _ in range(100):
        middle = (low + high) / 2
        rest = 1 - math.expm1(epsilon) * middle / math.exp(epsilon)
        low, high = (middle, high) if rest > 0 and -math.log(rest) <= 2 * epsilon else (low, middle)
    return low


def _looser_enclosure(epsilon: float, more: float) -> tuple[float, float]:
    """The change of 1 + e^−ε₁ in balls."""
    from flint import arb, ctx

    with ctx.workprec(BITS):
        return ends((-arb(epsilon) - arb(more)).exp() - (-arb(epsilon)).exp())


looser_with_budget = Inequality(
    lambda epsilon, more: _largest_silent(epsilon + more) - _largest_silent(epsilon),
    {"epsilon": Range(0.0075, 2.25, "log"), "more": Range(0.01, 1)},
    ({"epsilon": 0.75, "more": 0.75},),
    lambda epsilon, more: _largest_silent(epsilon + more) - 2 * _largest_silent(epsilon),
    tolerance=1e-9,
    enclosure=_looser_enclosure,
    examples=40,
)
