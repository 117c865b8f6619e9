"""The influence function and its error: equations (11) to (14) and Theorem 4.

| paper | here |
| --- | --- |
| n, r, w | number of records, the index of the removed one, `weights` |
| θ̂(w; D), θ*, θ*_−z | `optimum(weights)`, with all weights 1, with one weight 0 |
| G, L, C, ζ, E | Lipschitz constant, smoothness, Hessian-Lipschitz constant, curvature, error |

One-dimensional losses: for the formulas logistic regression with labels ±1 and a ridge, ln(1 + e^(−yxθ)) + λθ²/2.
Optima are roots of the weighted gradient, found numerically; derivatives in the weights are numerical derivatives of
those roots, so nothing here uses the formulas that are judged.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range
from dpbench.papers.pidp2021.enclosures import BITS, ends

ROWS = ((1.0, 1), (0.5, -1), (0.75, 1), (0.25, -1), (1.0, -1))  # features and labels


def _slope(theta: Any, row: tuple[float, int], ridge: Any, order: int) -> Any:
    """The derivative of order 1, 2 or 3 of one record's loss."""
    import mpmath

    x, y = row
    s = 1 / (1 + mpmath.exp(-x * theta))  # probability of the label +1
    if order == 1:
        return x * (s - (y == 1)) + ridge * theta
    if order == 2:
        return x**2 * s * (1 - s) + ridge
    return x**3 * s * (1 - s) * (1 - 2 * s)


def _optimum(weights: tuple[Any, ...], ridge: Any) -> Any:
    import mpmath

    def gradient(theta: Any) -> Any:
        return sum(w * _slope(theta, row, ridge, 1) for w, row in zip(weights, ROWS, strict=True))

    def hessian(theta: Any) -> Any:
        return sum(w * _slope(theta, row, ridge, 2) for w, row in zip(weights, ROWS, strict=True))

    theta = mpmath.mpf(0)
    for _ in range(60):
        step = gradient(theta) / hessian(theta)
        theta -= step
        if abs(step) < mpmath.mpf(10) ** -38:
            break
    return theta


def _with(index: int, by: Any, other: int | None = None, by_other: Any = 0) -> tuple[Any, ...]:
    weights: list[Any] = [1.0] * len(ROWS)
    weights[index] += by
    if other is not None:
        weights[other] += by_other
    return tuple(weights)


def _first_derivative(index: int, ridge: float) -> Any:
    """dθ̂/dw_i at w = 1 by central differences."""
    import mpmath

    step = mpmath.mpf(10) ** -12
    return (_optimum(_with(index, step), ridge) - _optimum(_with(index, -step), ridge)) / (2 * step)


def _hessian(ridge: float) -> Any:
    theta = _optimum(_with(0, 0), ridge)
    return sum(_slope(theta, row, ridge, 2) for row in ROWS) / len(ROWS)


def _influence(index: int, ridge: float) -> Any:
    """(11): −(1/n)(−H⁻¹∇ℓ(θ*, z))."""
    theta = _optimum(_with(0, 0), ridge)
    return -(-_slope(theta, ROWS[index], ridge, 1) / _hessian(ridge)) / len(ROWS)


_SETTINGS = tuple({"index": index, "ridge": ridge} for index in (0, 1, 4) for ridge in (0.05, 0.5))
equation_11 = Formula(
    _influence,
    lambda index, ridge: -_first_derivative(index, ridge),
    _SETTINGS,
    twin=lambda index, ridge: -_influence(index, ridge),
    digits=10,
)
equation_12 = Formula(
    lambda index, ridge: _slope(_optimum(_with(0, 0), ridge), ROWS[index], ridge, 1) / len(ROWS),
    lambda index, ridge: -_hessian(ridge) * _first_derivative(index, ridge),
    _SETTINGS,
    twin=lambda index, ridge: -_slope(_optimum(_with(0, 0), ridge), ROWS[index], ridge, 1) / len(ROWS),
    digits=10,
)
equation_13 = Formula(
    lambda index, ridge: -_influence(index, ridge),
    _first_derivative,
    _SETTINGS,
    twin=lambda index, ridge: -_influence(index, ridge) * len(ROWS),
    digits=10,
)


def _second_by_formula(index: int, other: int, ridge: float) -> Any:
    """−H⁻¹ (Hⁱ θ_j + Hʲ θ_i + T θ_i θ_j)."""
    size = len(ROWS)
    theta = _optimum(_with(0, 0), ridge)
    move_i, move_j = -_influence(index, ridge), -_influence(other, ridge)
    part_i = _slope(theta, ROWS[index], ridge, 2) / size
    part_j = _slope(theta, ROWS[other], ridge, 2) / size
    third = sum(_slope(theta, row, ridge, 3) for row in ROWS) / size
    return -(part_i * move_j + part_j * move_i + third * move_i * move_j) / _hessian(ridge)


def _second_by_differences(index: int, other: int, ridge: float) -> Any:
    import mpmath

    step = mpmath.mpf(10) ** -9

    def at(first: int, second: int) -> Any:
        return _optimum(_with(index, first * step, other, second * step), ridge)

    return (at(1, 1) - at(1, -1) - at(-1, 1) + at(-1, -1)) / (4 * step**2)


second_derivative = Formula(
    _second_by_formula,
    _second_by_differences,
    tuple({"index": i, "other": j, "ridge": ridge} for i, j in ((0, 1), (2, 4), (3, 3)) for ridge in (0.05, 0.5)),
    twin=lambda index, other, ridge: -_second_by_formula(index, other, ridge),
    digits=8,
)


# ---- equation (14) ----


def _taylor(heavy: Fraction, half: bool) -> Shown:
    """Losses ½(θ − 1)² with weight w of curvature `heavy` and ½θ²: θ̂(w) = wa/(wa + 1), exactly.

    The remainder θ̂(0) − θ̂(1) + θ̂'(1) against all values of θ̂''(w'), w' in [0, 1] (halved, where `half`);
    θ̂'' = −2a²/(wa + 1)³ is monotone.
    """
    a = heavy
    first = a / (a + 1) ** 2
    remainder = Fraction(0) - a / (a + 1) + first
    ends_of_second = [-2 * a**2 / (w * a + 1) ** 3 for w in (Fraction(0), Fraction(1))]
    low, high = (min(ends_of_second), max(ends_of_second))
    if half:
        low, high = low / 2, high / 2
    cells = 4000
    again = (
        math.fsum(w * -2 * float(a) ** 2 / (w * float(a) + 1) ** 3 for w in ((k + 0.5) / cells for k in range(cells)))
        / cells
    )
    reason = (
        f"the remainder is {float(remainder):.6g}, the second derivative lies in [{float(low):.6g}, {float(high):.6g}]"
    )
    routes = {"rationals": float(remainder), "integral form of the remainder": again}
    agree = abs(again - float(remainder)) < 1e-5 * abs(float(remainder))
    return Shown(
        low <= remainder <= high if agree else None,
        reason,
        float(remainder),
        {"range": [float(low), float(high)]},
        routes,
    )


equation_14 = Demonstration(
    lambda: _taylor(Fraction(1, 10), half=False), twin=lambda: _taylor(Fraction(1, 10), half=True)
)


def _weight_change(swapped: bool = False) -> Shown:
    """The entries of 1_∖r − 1 for n = 4, r = 2: printed 0 where w_j = 0 and −1 elsewhere, with w = 1_∖r."""
    weights = [1, 1, 0, 1]
    true = [w - 1 for w in weights]
    printed = [(-1 if w == 0 else 0) if swapped else (0 if w == 0 else -1) for w in weights]
    unit = [-(j == 2) for j in range(4)]  # the needed vector, minus the unit vector of r
    holds = None if unit != true else printed == true
    routes = {"difference of the weights": true, "minus a unit vector": unit}
    return Shown(holds, f"the entries are {true}, the printed rule gives {printed}", str(true), {}, routes)


weight_change = Demonstration(_weight_change, twin=lambda: _weight_change(swapped=True))


# ---- Theorem 4 ----


def _separable(radius: float, negatives_left: int = 0) -> Shown:
    """Logistic loss, x = 1, labels +, +, −: θ* = ln 2, H = 2/9. Without the − every θ is improved by a larger one.

    With the paper's constants G = 1, L = 1/4 and C = 1/(6√3) (Remark 1) and ζ = H. The left-out optimum is the
    boundary r. `negatives_left` adds that many + and − of the other side, which keeps the optimum inside.
    """
    from flint import arb, ctx

    positives, negatives = 2 + 2 * negatives_left, 1 + negatives_left
    size = positives + negatives
    with ctx.workprec(BITS):
        start = (arb(positives) / negatives).log()
        share = arb(positives) / size
        curvature = share * (1 - share)
        contribution = share / curvature / size
        left = (arb(positives) / (negatives - 1)).log() if negatives > 1 else arb(radius)
        error = abs(left - start - contribution)
        bound = (arb(1) / 2 + 1 / (6 * arb(3).sqrt()) / curvature) / (curvature * size) ** 2
        error_ends, bound_ends = ends(error), ends(bound)
        lower, upper = ends(bound - error)
    moved, limit = _separable_again(radius, positives, negatives)
    routes = {"balls": {"error": error_ends, "bound": bound_ends}, "minimised numerically": moved, "bound again": limit}
    reason = f"the error is {error_ends[0]:.6g}, the bound {bound_ends[1]:.6g}"
    holds = True if lower >= 0 and moved <= limit else False if upper < 0 and moved > limit else None
    evidence = {"error": error_ends[0], "bound": bound_ends[1], "records": size, "radius": radius}
    return Shown(holds, reason, error_ends[0], evidence, routes)


def _separable_again(radius: float, positives: int, negatives: int) -> tuple[float, float]:
    """Error and bound with both optima found by minimisation over [−r, r]."""
    from scipy.optimize import minimize_scalar

    def best(minus: int) -> float:
        found = minimize_scalar(
            lambda t: positives * math.log1p(math.exp(-t)) + minus * math.log1p(math.exp(t)),
            bounds=(-radius, radius),
            method="bounded",
            options={"xatol": 1e-12},
        )
        return float(found.x)

    size, theta = positives + negatives, best(negatives)
    s = 1 / (1 + math.exp(-theta))
    curvature = s * (1 - s)
    moved = abs(best(negatives - 1) - theta - s / curvature / size)
    return moved, (0.5 + 1 / (6 * math.sqrt(3)) / curvature) / (curvature * size) ** 2


theorem_4 = Demonstration(_separable, twin=lambda radius: _separable(radius, negatives_left=3))


def _spectral(type_one: int, smallest: Fraction, use_smallest: bool = False) -> Shown:
    """Losses ½(x·θ − y)² in two dimensions: `type_one` records x = (1, 0), y = 0 and two x = (0, s), y = ±η = ±s.

    H = diag(type_one, 2s²)/n, so its spectral norm is type_one/n; C = 0; parameters |θ| <= r = η/s = 1. Removing the
    last record moves θ₂ from 0 to η/s, the influence says η/(2s). G is the largest gradient on the ball, L = 1.
    """
    s = smallest
    size = type_one + 2
    shift = s
    curvature = 2 * s * s / Fraction(size) if use_smallest else Fraction(type_one, size)
    moved = shift / s
    contribution = Fraction(1, size) * s * shift / (2 * s * s / Fraction(size))
    error = abs(moved - contribution)
    lipschitz = max(Fraction(1), s * (s + shift))
    bound = (2 * lipschitz) / (curvature * size) ** 2
    # second route: exact normal equations with and without the last record
    left = (s * shift) / (s * s)
    gradient = s * (0 + shift)
    again = abs(left - 0 - gradient / (2 * s * s))
    reason = f"the error is {error}, the bound with zeta = {curvature} is {bound}"
    routes = {"closed form": float(error), "normal equations": float(again)}
    holds = None if again != error else error <= bound
    return Shown(holds, reason, float(error), {"bound": float(bound), "records": size}, routes)


theorem_4_norm = Demonstration(
    lambda: _spectral(3, Fraction(1, 10)), twin=lambda: _spectral(3, Fraction(1, 10), use_smallest=True)
)


def _damped(curvature: Fraction, damping: Fraction, records: int) -> Shown:
    """Losses (h/2)(θ − z)², n − 1 zeros and one z = 1, h < ζ; c uses h + ζ for H, as Remark 5 proposes.

    The optima are 1/n and 0. The bound of Theorem 4 at ζ, with L = h + ζ, G = h (the parameters lie in [0, 1]), C = 0.
    """
    best = Fraction(1, records)
    gradient = curvature * (best - 1)
    told = gradient / (curvature + damping) / records
    error = abs((0 - best) - told)
    bound = 2 * (curvature + damping) * curvature / (records * (damping or curvature)) ** 2
    again = abs(best - curvature * (1 - best) / (curvature + damping) / records)
    reason = f"the error is {float(error):.4g}, the bound at the added zeta {float(bound):.4g}"
    routes = {"optimum without the record": float(error), "closed form": float(again)}
    return Shown(None if again != error else error <= bound, reason, float(error), {"bound": float(bound)}, routes)


remark_5 = Demonstration(
    lambda: _damped(Fraction(1, 100), Fraction(1), 1000), twin=lambda: _damped(Fraction(1, 100), Fraction(0), 1000)
)


def _error_margin(ridge: float, logistic: float, spread: float, size: float, factor: float = 1.0) -> float:
    """bound/error-scale: (factor · bound − E) / bound for losses λ(θ − a_i)²/2 + κ ln(1 + e^(−y_i θ)).

    One record has a = spread and y = 1, the other n − 1 have a = 0 and y = −1; it is the one removed. ζ = λ holds
    everywhere, L = λ + κ/4, C = κ/(6√3); the parameter space is the hull of both optima, and G is the largest
    gradient of any record on it.
    """
    from scipy.optimize import brentq

    others = size - 1

    def slope(theta: float, label: int, centre: float) -> float:
        return ridge * (theta - centre) - label * logistic / (1 + math.exp(label * theta))

    def gradient(theta: float, weight: float) -> float:
        return weight * slope(theta, 1, spread) + others * slope(theta, -1, 0.0)

    wide = spread + logistic / ridge + 1
    theta = brentq(gradient, -wide, wide, args=(1.0,), xtol=1e-15, rtol=1e-14)
    left = brentq(gradient, -wide, wide, args=(0.0,), xtol=1e-15, rtol=1e-14)
    s = 1 / (1 + math.exp(-theta))
    hessian = ridge + logistic * s * (1 - s)
    error = abs(left - theta - slope(theta, 1, spread) / hessian / size)
    steepest = max(abs(slope(at, y, a)) for at in (theta, left) for y, a in ((1, spread), (-1, 0.0)))
    smooth, third = ridge + logistic / 4, logistic / (6 * math.sqrt(3))
    bound = (2 * smooth * steepest + third * steepest**2 / ridge) / (ridge * size) ** 2
    return float(factor - error / bound)


theorem_4_strongly_convex = Inequality(
    _error_margin,
    {
        "ridge": Range(0.01, 1, "log"),
        "logistic": Range(0, 1),
        "spread": Range(0.1, 5, "log"),
        "size": Range(2, 70000, "log"),
    },
    (
        {"ridge": 0.1, "logistic": 0.0, "spread": 1.0, "size": 20.0},
        {"ridge": 0.1, "logistic": 1.0, "spread": 1.0, "size": 45222.0},
    ),
    lambda **point: _error_margin(**point, factor=0.25),
    tolerance=1e-4,
    obligations=(
        "the smallest eigenvalue of the weighted Hessian is at least zeta on the whole path, not at theta* only",
        "both optima lie inside the parameter space",
    ),
    examples=50,
)
