"""Section 2 of jl2021: Jacobian-vector products, Proposition 2.1 and Figure 2."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath
from scipy.special import gammainc

from dpbench.judging.claims.judges import formula, grid, inequality

POINTS = (((0.3, -1.2), (1.0, 2.0)), ((2.0, 0.5), (-0.7, 0.1)))  # parameters θ and a direction v


def loss(theta: Sequence[Any], row: int) -> Any:
    """Three losses of two parameters."""
    x, y = theta
    return (mpmath.sin(x * y), mpmath.exp(x - y) + y**2, 1 / (1 + x**2 + y**4))[row]


@formula(settings=grid(point=range(2), row=range(3)), control={"turned": True}, digits=10, precision=20)
def jvp(point: int, row: int, twice: bool, turned: bool = False) -> tuple[Any, Any]:
    """⟨∇F_i, v⟩, and d/ds F_i(θ + s v) at s = 0; `twice`: with ∇F_i as the derivative of α^T ∇F by α_i."""
    (x, y), v = POINTS[point]
    rows = [
        (mpmath.diff(lambda s, k=k: loss((s, y), k), x), mpmath.diff(lambda s, k=k: loss((x, s), k), y))
        for k in range(3)
    ]

    def product(s: Any, column: int) -> Any:  # α^T ∇F with α_i = s
        return sum((s if k == row else mpmath.mpf("0.7")) * rows[k][column] for k in range(3))

    slopes = [mpmath.diff(lambda s, c=c: product(s, c), 0.2) for c in range(2)] if twice else rows[row]
    printed = sum(a * b for a, b in zip(slopes, v[::-1] if turned else v, strict=True))
    return printed, mpmath.diff(lambda s: loss((x + s * v[0], y + s * v[1]), row), 0)


def moment(y: tuple[int, ...], projections: int, power: int) -> Fraction:
    """E (Σ_i ⟨y, v_i⟩²/r)^power, expanded monomial by monomial in the coordinates of the v_i."""
    total = Fraction(0)
    places = list(itertools.product(range(projections), range(len(y)), range(len(y))))
    for chosen in itertools.product(places, repeat=power):
        orders = Counter(key for i, a, b in chosen for key in ((i, a), (i, b)))
        weight = math.prod(y[a] * y[b] for _, a, b in chosen)
        # E x^k of a standard Gaussian is 0 or (k − 1)!!
        total += weight * math.prod(0 if k % 2 else math.prod(range(k - 1, 0, -2)) for k in orders.values())
    return total / Fraction(projections) ** power


def squared(y: tuple[int, ...]) -> Fraction:
    """|y|²."""
    return Fraction(sum(value * value for value in y))


@formula(
    settings=[
        {"y": y, "projections": r, "power": k}
        for y in ((3, 4), (1, -2))
        for r, k in ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (2, 3), (3, 2))
    ],
    control={"add": 1},
)
def proposition_2_1(y: tuple[int, ...], projections: int, power: int, add: int = 2) -> tuple[Fraction, Fraction]:
    """E (|y|² χ²_r/r)^power = |y|^(2 power) Π_{k < power} (r + 2k)/r, and the moment of the estimate."""
    chi_square = math.prod(Fraction(projections + add * k, projections) for k in range(power))
    return squared(y) ** power * chi_square, moment(y, projections, power)


@formula(settings=grid(y=[(3, 4), (1, -2, 5), (7,)], projections=[1, 2, 4, 10]), control={"of_the_sum": True})
def proposition_2_1_mean(y: tuple[int, ...], projections: int, of_the_sum: bool = False) -> tuple[Fraction, Fraction]:
    """|y|² (of the sum: r |y|²), and the mean of the squared estimate."""
    return squared(y) * (projections if of_the_sum else 1), moment(y, projections, 1)


@inequality(
    domain={"projections": (1, 100, "whole"), "width": (0.01, 3.0, "log")},
    settings=grid(projections=[1, 4, 10, 30], width=[0.2]),
    control={"more": -1},
    obligations=["the estimate concentrates around 1: every interval around 1 gains mass with each projection"],
)
def figure_2(projections: int, width: float, more: int = 1) -> float:
    """What P(|√(χ²_r/r) − 1| <= width) gains with one more projection."""

    def near(r: int) -> float:
        low, high = (r * max(1 + side * width, 0.0) ** 2 / 2 for side in (-1, 1))
        return float(gammainc(r / 2, high) - gammainc(r / 2, low))

    return more * (near(projections + 1) - near(projections))
