"""Section 2 of jl2021: Jacobian-vector products, Proposition 2.1 and Figure 2."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import mpmath

from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range

# ---- section 2.1 ----


def _function(theta: Any) -> list[Any]:
    """Three losses of two parameters."""
    x, y = theta
    return [mpmath.sin(x * y), mpmath.exp(x - y) + y**2, 1 / (1 + x**2 + y**4)]


def _jacobian(theta: Any) -> list[list[Any]]:
    x, y = (mpmath.mpf(value) for value in theta)
    common = -1 / (1 + x**2 + y**4) ** 2
    return [
        [y * mpmath.cos(x * y), x * mpmath.cos(x * y)],
        [mpmath.exp(x - y), -mpmath.exp(x - y) + 2 * y],
        [2 * x * common, 4 * y**3 * common],
    ]


_POINTS = tuple(
    {"theta": theta, "v": v, "row": row}
    for theta, v in (((0.3, -1.2), (1.0, 2.0)), ((2.0, 0.5), (-0.7, 0.1)))
    for row in range(3)
)


def _along(theta: Any, v: Any, row: int) -> Any:
    """d/ds F_i(θ + s v) at s = 0."""
    return mpmath.diff(lambda s: _function([a + s * b for a, b in zip(theta, v, strict=True)])[row], 0)


def _inner_product(theta: Any, v: Any, row: int) -> Any:
    return sum(a * b for a, b in zip(_jacobian(theta)[row], v, strict=True))


jvp = Formula(
    _inner_product,
    _along,
    _POINTS,
    twin=lambda theta, v, row: sum(a * b for a, b in zip(_jacobian(theta)[row], reversed(v), strict=True)),
    digits=10,
    precision=20,
)


def _double_vjp(theta: Any, v: Any, row: int, transpose: bool = True) -> Any:
    """Component i of v^T ∇_α G for G(α) = α^T ∇F, differentiating G in α."""
    jacobian = _jacobian(theta)

    def g(alpha: Any) -> list[Any]:
        return [sum(a * line[column] for a, line in zip(alpha, jacobian, strict=True)) for column in range(2)]

    total = mpmath.mpf(0)
    for column in range(2):
        slope = mpmath.diff(lambda s, c=column: g([s if k == row else mpmath.mpf("0.7") for k in range(3)])[c], 0.2)
        total += v[column if transpose else 1 - column] * slope
    return total


double_vjp = Formula(
    _double_vjp,
    _along,
    _POINTS,
    twin=lambda theta, v, row: _double_vjp(theta, v, row, transpose=False),
    digits=10,
    precision=20,
)

# ---- Proposition 2.1 ----


def _gaussian_moment(order: int) -> int:
    """E x^order of a standard Gaussian: 0 or (order − 1)!!."""
    return 0 if order % 2 else math.prod(range(order - 1, 0, -2))


def _moment(y: tuple[int, ...], projections: int, power: int) -> Fraction:
    """E (Σ_i ⟨y, v_i⟩²/r)^power, expanded monomial by monomial in the coordinates of the v_i."""
    total = Fraction(0)
    places = [(i, a, b) for i in range(projections) for a in range(len(y)) for b in range(len(y))]
    for chosen in itertools.product(places, repeat=power):
        orders: dict[tuple[int, int], int] = {}
        weight = 1
        for i, a, b in chosen:
            weight *= y[a] * y[b]
            for key in ((i, a), (i, b)):
                orders[key] = orders.get(key, 0) + 1
        total += weight * math.prod(_gaussian_moment(order) for order in orders.values())
    return total / Fraction(projections) ** power


def _chi_square_moment(y: tuple[int, ...], projections: int, power: int, add: int = 2) -> Fraction:
    """E (|y|² χ²_r/r)^power = |y|^(2 power) Π_{k < power} (r + 2k)/r."""
    length = Fraction(sum(value * value for value in y))
    return length**power * math.prod(Fraction(projections + add * k, projections) for k in range(power))


_VECTORS = ((3, 4), (1, -2))
proposition_2_1 = Formula(
    _chi_square_moment,
    _moment,
    tuple(
        {"y": y, "projections": r, "power": k}
        for y in _VECTORS
        for r, k in ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (2, 3), (3, 2))
    ),
    twin=lambda y, projections, power: _chi_square_moment(y, projections, power, add=1),
)
proposition_2_1_mean = Formula(
    lambda y, projections: Fraction(sum(value * value for value in y)) + 0 * projections,
    lambda y, projections: _moment(y, projections, 1),
    tuple({"y": y, "projections": r} for y in ((3, 4), (1, -2, 5), (7,)) for r in (1, 2, 4, 10)),
    twin=lambda y, projections: Fraction(sum(value * value for value in y)) * projections,
)

# ---- Figure 2 ----


def _near(projections: int, width: float) -> float:
    """P(|√(χ²_r/r) − 1| <= width)."""
    from scipy.special import gammainc

    r = projections
    low, high = max(1 - width, 0.0), 1 + width
    return float(gammainc(r / 2, r * high * high / 2) - gammainc(r / 2, r * low * low / 2))


figure_2 = Inequality(
    lambda projections, width: _near(projections + 1, width) - _near(projections, width),
    {"projections": Range(1, 100, "whole"), "width": Range(0.01, 3.0, "log")},
    tuple({"projections": r, "width": 0.2} for r in (1, 4, 10, 30)),
    twin=lambda projections, width: _near(projections, width) - _near(projections + 1, width),
    tolerance=1e-12,
    obligations=("the estimate concentrates around 1: every interval around 1 gains mass with each projection",),
    examples=150,
)
