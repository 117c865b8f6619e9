"""Remark 1, the PL condition and its quadratic growth (3), Lemmas 1 and 2, the moments of the noise.

| paper | here |
| --- | --- |
| θ, x, y, c | `theta`, `feature`, label, `residual` (the bound of |y − f(x)|) |
| μ, L, γ, m, σ² | `strength`, smoothness, stability, `dimensions`, `variance` |
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range

# ---- Remark 1: derivatives of the two losses, |x| <= 1 ----


def _cross_entropy_derivative(theta: float, feature: float, order: int) -> float:
    """|d^k/dθ^k ln(1 + e^(−xθ))| by numerical differentiation."""
    import mpmath

    with mpmath.workdps(40):
        return float(abs(mpmath.diff(lambda t: mpmath.log1p(mpmath.exp(-feature * t)), mpmath.mpf(theta), order)))


def _squared_derivative(theta: float, feature: float, label: float, order: int) -> float:
    """The same of (y − θx)²."""
    import mpmath

    with mpmath.workdps(40):
        return float(abs(mpmath.diff(lambda t: (label - t * feature) ** 2, mpmath.mpf(theta), order)))


_LOGISTIC = {"theta": Range(-12, 12), "feature": Range(0, 1)}
_STEEP = {"theta": -12.0, "feature": 1.0}
_CURVED = {"theta": 0.0, "feature": 1.0}
_BENT = {"theta": math.log(2 + math.sqrt(3)), "feature": 1.0}


def _logistic_bound(order: int, bound: float, smaller: float, setting: dict[str, float]) -> Inequality:
    return Inequality(
        lambda theta, feature: bound - _cross_entropy_derivative(theta, feature, order),
        _LOGISTIC,
        (setting,),
        lambda theta, feature: smaller - _cross_entropy_derivative(theta, feature, order),
        tolerance=1e-12,
        obligations=(
            "features at most 1 in norm; the bound of the Hessian is attained, so it is 'at most', not 'less'",
        ),
        examples=40,
    )


logistic_gradient = _logistic_bound(1, 1.0, 0.99, _STEEP)
logistic_hessian = _logistic_bound(2, 0.25, 0.249, _CURVED)
logistic_third = _logistic_bound(3, 0.097, 0.096, _BENT)


def _squared_bound(order: int, share: float) -> Any:
    def margin(theta: float, feature: float, residual: float) -> float:
        label = residual + theta * feature  # |y − θx| = c
        bound = {1: 2 * residual, 2: 2.0, 3: 0.0}[order]
        return share * bound - _squared_derivative(theta, feature, label, order) + (share - 1 if order == 3 else 0)

    return margin


def _squared_inequality(order: int) -> Inequality:
    return Inequality(
        _squared_bound(order, 1.0),
        {"theta": Range(-5, 5), "feature": Range(0, 1), "residual": Range(0, 10)},
        ({"theta": 0.5, "feature": 1.0, "residual": 1.0},),
        _squared_bound(order, 0.5),
        tolerance=1e-12,
        examples=30,
    )


squared_gradient = _squared_inequality(1)
squared_hessian = _squared_inequality(2)
squared_third = _squared_inequality(3)


# ---- Definition 5 and (3) ----


def _ridge_logistic(theta: float, strength: float, share: float) -> tuple[float, float]:
    """Value and gradient of λθ²/2 + κ-weighted logistic losses of labels + and −, `share` of them +."""
    value = strength * theta * theta / 2
    value += share * math.log1p(math.exp(-theta)) + (1 - share) * math.log1p(math.exp(theta))
    return value, strength * theta + 1 / (1 + math.exp(-theta)) - share


def _pl_margin(theta: float, strength: float, share: float, factor: float = 2.0) -> float:
    """|∇L|² − 2μ(L − L*) for a μ-strongly convex loss, over max(1, |∇L|²)."""
    from scipy.optimize import brentq

    best = brentq(lambda t: _ridge_logistic(t, strength, share)[1], -200.0, 200.0, xtol=1e-14)
    value, gradient = _ridge_logistic(theta, strength, share)
    least = _ridge_logistic(best, strength, share)[0]
    return (gradient**2 - factor * strength * (value - least)) / max(1.0, gradient**2)


strongly_convex_is_pl = Inequality(
    _pl_margin,
    {"theta": Range(-100, 100), "strength": Range(0.01, 10, "log"), "share": Range(0, 1)},
    ({"theta": 1.0, "strength": 0.1, "share": 0.5}, {"theta": 100.0, "strength": 10.0, "share": 0.5}),
    lambda **point: _pl_margin(**point, factor=4.0),
    tolerance=1e-9,
    examples=60,
)


def _growth_margin(flat: float, steep: float, x: float, y: float, factor: float = 0.5) -> float:
    """L − L* − (μ/2) dist² for ½(a x² + b y²), a = 0 or more: μ is the smallest curvature that is not 0.

    The distance is that to the set of optima, the line y = 0 where a = 0.
    """
    flat = 0.0 if flat < 0.05 else flat
    curvature = min(flat, steep) if flat else steep
    distance = (x * x if flat else 0.0) + y * y
    return (flat * x * x + steep * y * y) / 2 - factor * curvature * distance


quadratic_growth = Inequality(
    _growth_margin,
    {"flat": Range(0, 2), "steep": Range(0.1, 2), "x": Range(-3, 3), "y": Range(-3, 3)},
    ({"flat": 0.0, "steep": 1.0, "x": 1.0, "y": 1.0}, {"flat": 1.0, "steep": 1.0, "x": 1.0, "y": 1.0}),
    lambda **point: _growth_margin(**point, factor=1.0),
    tolerance=1e-12,
    obligations=("theta* is the optimum nearest to theta (Karimi, Nutini and Schmidt, Theorem 2)",),
    examples=60,
)


def _fixed_optimum(unique: bool = False) -> Shown:
    """One record, x = (1, 0), y = 0, loss ½(θ·x − y)²: PL with μ = 1; θ = (0, 1) against the optimum (0, 0)."""
    curvatures = (Fraction(1), Fraction(1) if unique else Fraction(0))
    theta = (Fraction(0), Fraction(1))
    value = sum((c * t * t for c, t in zip(curvatures, theta, strict=True)), Fraction(0)) / 2
    squared_gradient = sum(((c * t) ** 2 for c, t in zip(curvatures, theta, strict=True)), Fraction(0))
    growth = Fraction(1, 2) * sum((t * t for t in theta), Fraction(0))
    routes = {"loss": float(value), "half the squared gradient, which PL bounds it by": float(squared_gradient / 2)}
    reason = f"L - L* is {value} where mu/2 times the squared distance to the chosen optimum is {growth}"
    return Shown(value >= growth, reason, float(value), {"growth": float(growth)}, routes)


fixed_optimum = Demonstration(_fixed_optimum, twin=lambda: _fixed_optimum(unique=True))


def _mlp(hidden: bool) -> Shown:
    """D = {(1, +), (−1, −)}, cross entropy, the network v·tanh(wx) at v = w = 0: its gradient and a better point."""
    import mpmath

    def loss(v: Any, w: Any) -> Any:
        def output(x: int) -> Any:
            return v * mpmath.tanh(w * x) if hidden else w * x

        return (mpmath.log1p(mpmath.exp(-output(1))) + mpmath.log1p(mpmath.exp(output(-1)))) / 2

    with mpmath.workdps(30):
        slopes = [mpmath.diff(loss, (0, 0), orders) for orders in ((1, 0), (0, 1))]
        gap = loss(0, 0) - loss(1, 1)
    # second route: s(0) = 1/2, so dL/dv = −½ Σ y tanh(0)/n = 0 and dL/dw = −½ Σ y x v/n = 0 at v = 0
    by_hand = [Fraction(0), Fraction(0)] if hidden else [Fraction(0), Fraction(-1, 2)]
    steep = float(max(abs(slope) for slope in slopes))
    agree = all(abs(float(slope) - float(hand)) < 1e-12 for slope, hand in zip(slopes, by_hand, strict=True))
    reason = f"the gradient at the zero weights is {steep:.3g}, and the loss there is {float(gap):.4g} above another's"
    routes = {"numerical derivatives": [float(slope) for slope in slopes], "by hand": [float(hand) for hand in by_hand]}
    return Shown(steep > 1e-6 if agree else None, reason, float(gap), {"hidden layer": hidden}, routes)


network_is_pl = Demonstration(lambda: _mlp(hidden=True), twin=lambda: _mlp(hidden=False))


# ---- Lemma 1 and Lemma 2 ----


def _constant_algorithm(over_datasets: bool = False) -> Shown:
    """The algorithm that always answers 0 is 0-stable; z is a fair coin, the loss ½(θ − z)², D = (0,)."""
    population = Fraction(1, 2) * Fraction(1, 2)
    gaps = {z: population - Fraction(z * z, 2) for z in (0, 1)}
    mean = sum(gaps.values(), Fraction(0)) / 2
    gap = mean if over_datasets else gaps[0]
    again = population - (Fraction(1, 4) if over_datasets else Fraction(0))
    routes = {"enumerated": float(gap), "closed form": float(again)}
    over = "in the mean over D" if over_datasets else "for D = (0,)"
    reason = f"the stability is 0, the generalisation error is {gap} {over}"
    return Shown(gap <= 0, reason, float(gap), {"mean over datasets": float(mean)}, routes)


lemma_1 = Demonstration(_constant_algorithm, twin=lambda: _constant_algorithm(over_datasets=True))


def _mean_algorithm(most: int, share: Fraction = Fraction(1)) -> Shown:
    """The mean of n coin flips, loss ½(θ − z)²: the error over D and the largest change of a loss, enumerated."""
    worst = Fraction(10**6)
    for size in range(1, most + 1):
        error = Fraction(0)
        for ones in range(size + 1):
            mean = Fraction(ones, size)
            population = (mean * mean + (1 - mean) ** 2) / 4
            empirical = (Fraction(ones, size) * (1 - mean) ** 2 + Fraction(size - ones, size) * mean * mean) / 2
            error += Fraction(math.comb(size, ones), 2**size) * (population - empirical)
        stability = max(
            abs((Fraction(ones, size) - z) ** 2 - (Fraction(ones + 1, size) - z) ** 2) / 2
            for ones in range(size)
            for z in (0, 1)
        )
        worst = min(worst, (share * stability - error) / error)
    return Shown(worst >= 0, f"the smallest margin over the error is {float(worst):.4g}", float(worst), {"sizes": most})


lemma_1_over_datasets = Demonstration(
    lambda: _mean_algorithm(12), twin=lambda: _mean_algorithm(12, share=Fraction(1, 8))
)


def _self_bounding_margin(theta: float, label: float, ridge: float, shift: float = 0.0, factor: float = 2.0) -> float:
    """2Lℓ − |∇ℓ|² for ℓ = λ(θ − y)²/2 + ln(1 + e^θ) (with weight 1 − λ) − `shift`."""
    weight = 1 - ridge
    value = ridge * (theta - label) ** 2 / 2 + weight * math.log1p(math.exp(theta)) - shift
    gradient = ridge * (theta - label) + weight / (1 + math.exp(-theta))
    return factor * (ridge + weight / 4) * value - gradient**2


_BOUNDING = {"theta": Range(-20, 20), "label": Range(-3, 3), "ridge": Range(0, 1)}
self_bounding = Inequality(
    _self_bounding_margin,
    _BOUNDING,
    ({"theta": 1.0, "label": 0.0, "ridge": 1.0}, {"theta": 3.0, "label": 0.0, "ridge": 0.0}),
    lambda **point: _self_bounding_margin(**point, factor=1.0),
    tolerance=1e-9,
    obligations=("the loss is nowhere negative, and smooth on the whole space, not on a ball only",),
    examples=80,
)


def _negative_loss(shift: Fraction) -> Shown:
    """ℓ = θ²/2 − shift at θ = 1, L = 1."""
    theta = Fraction(1)
    left, right = theta**2, 2 * (theta**2 / 2 - shift)
    routes = {"rationals": float(right), "left less twice the shift": float(left - 2 * shift)}
    return Shown(
        left <= right, f"the squared gradient is {left}, 2L times the loss is {right}", float(right), {}, routes
    )


lemma_2 = Demonstration(lambda: _negative_loss(Fraction(1)), twin=lambda: _negative_loss(Fraction(0)))


# ---- moments of the noise ----


def _noise_energy(dimensions: int, variance: float) -> Any:
    """E‖b‖² by quadrature, coordinate by coordinate."""
    import mpmath

    deviation = mpmath.sqrt(variance)
    one = mpmath.quad(lambda x: x * x * mpmath.npdf(x, 0, deviation), [-12 * deviation, 0, 12 * deviation])
    return dimensions * one


noise_energy = Formula(
    lambda dimensions, variance: dimensions * variance,
    _noise_energy,
    ({"dimensions": 1, "variance": 0.25}, {"dimensions": 14, "variance": 4.0}),
    twin=lambda dimensions, variance: variance,  # noqa: ARG005
)
