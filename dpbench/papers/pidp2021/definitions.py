"""Remark 1, the PL condition and its quadratic growth (3), Lemma 2, the moments of the noise.

| paper | here |
| --- | --- |
| θ, x, c | `theta`, `feature`, `residual` (the bound of |y − f(x)|) |
| μ, L, m, σ² | `strength`, smoothness, `dimensions`, `variance` |
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
from scipy.optimize import brentq

from dpbench.claims.claim import Printed
from dpbench.claims.judges import Shown, formula, inequality, shown
from dpbench.papers.mathematics import by_routes

# ---- Remark 1: derivatives of the two losses by numerical differentiation, |x| <= 1 ----


@inequality(
    domain={"theta": (-12, 12), "feature": (0, 1), "residual": (0, 10)},
    settings=[{"theta": theta, "feature": 1.0, "residual": 1.0} for theta in (-12, 0, math.log(2 + math.sqrt(3)))],
    obligations=["features at most 1 in norm; some bounds are attained, so they are 'at most', not 'less'"],
    examples=40,
)
def derivative(theta: float, feature: float, residual: float, bound: Printed, loss: str, order: int) -> float:
    """`bound` − |d^k/dθ^k| of ln(1 + e^(−xθ)), or of (y − θx)² where |y − θx| = c; there for k = 1 `bound` times c."""
    label = residual + theta * feature

    def value(t: Any) -> Any:
        return mpmath.log1p(mpmath.exp(-feature * t)) if loss == "logistic" else (label - t * feature) ** 2

    with mpmath.workdps(40):
        slope = mpmath.diff(value, mpmath.mpf(theta), order)
    return bound.value * (residual if loss == "squared" and order == 1 else 1) - float(abs(slope))


# ---- Definition 5 and (3) ----


@inequality(
    domain={"theta": (-100, 100), "strength": (0.01, 10, "log"), "share": (0, 1)},
    settings=[{"theta": t, "strength": strength, "share": 0.5} for t, strength in ((1.0, 0.1), (100.0, 10.0))],
    control={"factor": 4.0},
    tolerance=1e-9,
    examples=60,
)
def strongly_convex_is_pl(theta: float, strength: float, share: float, factor: float = 2.0) -> float:
    """|∇L|² − 2μ(L − L*), over max(1, |∇L|²), for λθ²/2 and logistic losses, `share` of them with label +; λ = μ."""

    def value(at: float) -> float:
        losses = share * math.log1p(math.exp(-at)) + (1 - share) * math.log1p(math.exp(at))
        return strength * at * at / 2 + losses

    def gradient(at: float) -> float:
        return strength * at + 1 / (1 + math.exp(-at)) - share

    gap = value(theta) - value(brentq(gradient, -200.0, 200.0, xtol=1e-14))
    return (gradient(theta) ** 2 - factor * strength * gap) / max(1.0, gradient(theta) ** 2)


@inequality(
    domain={"flat": (0, 2), "steep": (0.1, 2), "x": (-3, 3), "y": (-3, 3)},
    settings=[{"flat": flat, "steep": 1.0, "x": 1.0, "y": 1.0} for flat in (0.0, 1.0)],
    control={"factor": 1.0},
    obligations=["theta* is the optimum nearest to theta (Karimi, Nutini and Schmidt, Theorem 2)"],
    examples=60,
)
def quadratic_growth(flat: float, steep: float, x: float, y: float, factor: float = 0.5) -> float:
    """L − L* − (μ/2) dist² for ½(a x² + b y²), a = 0 or more: μ is the smallest curvature that is not 0.

    The distance is that to the set of optima, the line y = 0 where a = 0.
    """
    flat = 0.0 if flat < 0.05 else flat
    curvature = min(flat, steep) if flat else steep
    return (flat * x * x + steep * y * y) / 2 - factor * curvature * ((x * x if flat else 0.0) + y * y)


@shown(control={"flat": Fraction(1)}, pair="one record x = (1, 0), y = 0; θ = (0, 1) against the optimum (0, 0)")
def fixed_optimum(flat: Fraction = Fraction(0)) -> Shown:
    """Loss ½(θ·x − y)², PL with μ = 1, its second curvature `flat`: both sides of (3) for one chosen optimum."""
    value, growth = flat / 2, Fraction(1, 2)
    reason = f"L - L* is {value} where mu/2 times the squared distance to the chosen optimum is {growth}"
    routes = {"loss": value, "half the squared gradient, which PL bounds it by": flat**2 / 2}
    return by_routes(value >= growth, reason, routes, {"growth": float(growth)})


@shown(control={"hidden": False}, pair="D = {(1, +), (−1, −)}, the zero weights against weights of 1")
def network_is_pl(hidden: bool = True) -> Shown:
    """Cross entropy of the network v·tanh(wx) at v = w = 0: its gradient and a better point; the control is wx."""

    def loss(v: Any, w: Any) -> Any:
        outputs = [v * mpmath.tanh(w * x) if hidden else w * x for x in (1, -1)]
        return (mpmath.log1p(mpmath.exp(-outputs[0])) + mpmath.log1p(mpmath.exp(outputs[1]))) / 2

    with mpmath.workdps(30):
        slopes = [float(mpmath.diff(loss, (0, 0), orders)) for orders in ((1, 0), (0, 1))]
        gap = float(loss(0, 0) - loss(1, 1))
    # s(0) = 1/2, so dL/dv = −½ Σ y tanh(0)/n = 0 and dL/dw = −½ Σ y x v/n = 0 at v = 0
    by_hand = [0.0, 0.0] if hidden else [0.0, -0.5]
    steep = max(map(abs, slopes))
    agree = all(abs(slope - hand) < 1e-12 for slope, hand in zip(slopes, by_hand, strict=True))
    reason = f"the gradient at the zero weights is {steep:.3g}, and the loss there is {gap:.4g} above another's"
    routes = {"numerical derivatives": slopes, "by hand": by_hand}
    return Shown(steep > 1e-6 if agree else None, reason, gap, {"hidden layer": hidden}, routes)


# ---- Lemma 2 and the noise ----


@inequality(
    domain={"theta": (-20, 20), "label": (-3, 3), "ridge": (0, 1)},
    settings=[{"theta": 1.0, "label": 0.0, "ridge": 1.0}, {"theta": 3.0, "label": 0.0, "ridge": 0.0}],
    control={"factor": 1.0},
    tolerance=1e-9,
    obligations=["the loss is nowhere negative, and smooth on the whole space, not on a ball only"],
    examples=80,
)
def self_bounding(theta: float, label: float, ridge: float, factor: float = 2.0) -> float:
    """2Lℓ − |∇ℓ|² for ℓ = λ(θ − y)²/2 + (1 − λ) ln(1 + e^θ)."""
    value = ridge * (theta - label) ** 2 / 2 + (1 - ridge) * math.log1p(math.exp(theta))
    gradient = ridge * (theta - label) + (1 - ridge) / (1 + math.exp(-theta))
    return factor * (ridge + (1 - ridge) / 4) * value - gradient**2


@shown(control={"shift": Fraction(0)})
def lemma_2(shift: Fraction = Fraction(1)) -> Shown:
    """Lemma 2 for ℓ = θ²/2 − `shift` at θ = 1, where L = 1."""

    def loss(theta: Fraction) -> Fraction:
        return theta**2 / 2 - shift

    left = (loss(Fraction(2)) - loss(Fraction(0))) ** 2 / 4  # a central difference, exact for a quadratic
    right = 2 * loss(Fraction(1))
    reason = f"the squared gradient is {left}, 2L times the loss is {right}"
    return by_routes(left <= right, reason, {"twice the loss": right, "1 less twice the shift": 1 - 2 * shift})


@formula(
    settings=[{"dimensions": 1, "variance": "0.25"}, {"dimensions": 14, "variance": "4"}],
    control={"each": False},
)
def noise_energy(dimensions: int, variance: Any, each: bool = True) -> tuple[Any, Any]:
    """mσ², and E‖b‖² by quadrature, coordinate by coordinate; the control has σ²."""
    deviation = mpmath.sqrt(variance)
    one = mpmath.quad(lambda x: x * x * mpmath.npdf(x, 0, deviation), [-12 * deviation, 0, 12 * deviation])
    return (dimensions if each else 1) * variance, dimensions * one
