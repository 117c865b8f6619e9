"""The definition by numerical integration in mpmath: densities in, one number out.

Nothing here is shared with the Arb route: the densities are written out again, the end of the half line S is found by
bisection on the likelihood ratio, and the integral ∫_S (p − e^ε q) dx is taken as it stands. Quadrature is not a proof:
every integral is taken over two different sets of panels, and both must agree to the digits asked for, else
ArithmeticError is raised.

    Both distributions are mixtures of normals N(c, σ²) with whole c, and the ratio of the first density to the second
    increases in x. Direction "remove": P = first, Q = second; "add": P = second, Q = first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from typing import Any

import mpmath

Number = Any  # mpmath.mpf, which carries no types
Function = Callable[[Number], Number]


Weights = tuple[tuple[int, Fraction], ...]  # centre, weight


@dataclass(frozen=True)
class Mixtures:
    """Two mixtures of normals of one variance, their centres with weights; the likelihood ratio increases in x."""

    first: Weights
    second: Weights
    variance: Fraction


def hockey_stick(mixtures: Mixtures, direction: str, epsilon: Fraction, digits: int = 30) -> Decimal:
    """δ(ε) = ∫ (p − e^ε q)₊ of one invocation, to so many significant digits (not rigorous, checked as said above)."""
    with mpmath.workdps(digits + 20):
        log_p, log_q, sigma = _log_densities(mixtures, direction)
        bound = mpmath.exp(_number(epsilon))
        side = 1 if direction == "remove" else -1  # S extends to this side
        level = _number(epsilon)
        limit = side * _least_log_ratio(mixtures)
        if direction == "remove" and level <= limit:
            return _decimal(max(mpmath.mpf(0), 1 - bound), digits)
        if direction == "add" and level >= limit:
            return Decimal(0)
        end = _crossing(lambda x: side * (log_p(x) - log_q(x) - level), sigma)
        centres = _centres(mixtures)

        # mpmath stops refining at an absolute error, so the integrand is brought to size 1
        unit = max([log_p(end), *(log_p(x) for x in centres if side * (x - end) > 0)])

        def integrand(x: Number) -> Number:
            return mpmath.exp(log_p(x) - unit) - bound * mpmath.exp(log_q(x) - unit)

        def integral(growth: Number) -> Number:
            points = _panels(log_p, end, side, sigma, centres, unit - (digits + 20) * mpmath.log(10), growth)
            return mpmath.exp(unit) * mpmath.quad(integrand, points, method="gauss-legendre")

        return _agreed(integral, digits)


def renyi(mixtures: Mixtures, direction: str, order: Fraction, digits: int = 25) -> Decimal:
    """D_α(P‖Q) = log(∫ p^α q^{1−α} dx) / (α − 1) of one invocation, α > 1 (not rigorous, checked as said above)."""
    moved = sum(weight for centre, weight in (*mixtures.first, *mixtures.second) if centre)
    lost = max(0, math.ceil(math.log10(mixtures.variance) - 2 * math.log10(moved)))  # the integral is about 1 + q²/σ²
    with mpmath.workdps(digits + 20 + lost):
        log_p, log_q, sigma = _log_densities(mixtures, direction)
        alpha = _number(order)
        reach = sigma * mpmath.sqrt(2 * (digits + lost + 25) * mpmath.log(10))
        # p^α q^{1−α} has its bumps at α c − (α−1) c', c a centre of P and c' of Q
        above, below = (mixtures.first, mixtures.second) if direction == "remove" else (mixtures.second, mixtures.first)
        bumps = [alpha * c - (alpha - 1) * d for (c, _), (d, _) in itertools.product(above, below)]
        low, high = min(*bumps, 0) - reach, max(*bumps, 0) + reach

        def exponent(x: Number) -> Number:
            return alpha * log_p(x) + (1 - alpha) * log_q(x)

        def panels(growth: Number) -> Number:
            count = int(mpmath.ceil((high - low) * growth / sigma))
            points = [low + (high - low) * i / count for i in range(count + 1)]
            height = [exponent(x) for x in points]
            unit = max(height)
            floor = unit - (digits + lost + 25) * mpmath.log(10)
            total = mpmath.mpf(0)
            for i in range(count):
                if max(height[i], height[i + 1]) > floor:
                    panel = points[i : i + 2]
                    total += mpmath.quad(lambda x: mpmath.exp(exponent(x) - unit), panel, method="gauss-legendre")
            return (mpmath.log(total) + unit) / (alpha - 1)

        return _agreed(panels, digits, steps=(1, mpmath.mpf(7) / 5))


def _number(value: Fraction | int) -> Number:
    exact = Fraction(value)
    return mpmath.mpf(exact.numerator) / exact.denominator


def _centres(mixtures: Mixtures) -> list[int]:
    return sorted({centre for centre, _ in (*mixtures.first, *mixtures.second)})


def _least_log_ratio(mixtures: Mixtures) -> Number:
    """log of the limit of first / second at x → −∞, where the lowest centre alone counts: its weights' ratio."""
    lowest = _centres(mixtures)[0]
    above, below = (
        sum(weight for centre, weight in weights if centre == lowest) for weights in (mixtures.first, mixtures.second)
    )
    return mpmath.log(_number(above / below)) if above else -mpmath.inf


def _log_densities(mixtures: Mixtures, direction: str) -> tuple[Function, Function, Number]:
    """log p, log q and σ at the working precision."""
    square = _number(mixtures.variance)
    sigma = mpmath.sqrt(square)
    constant = -mpmath.log(sigma * mpmath.sqrt(2 * mpmath.pi))

    def density(weights: Weights) -> Function:
        terms = [(centre, _number(weight)) for centre, weight in weights if weight]

        def value(x: Number) -> Number:
            ratios = [(2 * centre * x - centre * centre) / (2 * square) for centre, _ in terms]
            most = max(ratios)
            if most <= 0:  # without losing a small weight
                growth = mpmath.fsum(w * mpmath.expm1(r) for r, (_, w) in zip(ratios, terms, strict=True))
                if growth > -0.5:
                    return constant - x * x / (2 * square) + mpmath.log1p(growth)
            total = mpmath.fsum(w * mpmath.exp(r - most) for r, (_, w) in zip(ratios, terms, strict=True))
            rest = most + mpmath.log(total)  # without overflow
            return constant - x * x / (2 * square) + rest

        return value

    first, second = density(mixtures.first), density(mixtures.second)
    return (first, second, sigma) if direction == "remove" else (second, first, sigma)


def _crossing(increasing: Function, sigma: Number) -> Number:
    """Where an increasing function of x changes sign, by doubling and then halving an interval."""
    width = sigma
    low = high = mpmath.mpf(1) / 2
    while increasing(high) < 0:
        low, high, width = high, high + width, 2 * width
    width = sigma
    while increasing(low) > 0:
        low, high, width = low - width, low, 2 * width
    for _ in range(mpmath.mp.prec + 60):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if increasing(middle) < 0 else (low, middle)
    return (low + high) / 2


def _panels(
    log_p: Function, end: Number, side: int, sigma: Number, centres: list[int], floor: Number, growth: Number
) -> list[Number]:
    """Panels from `end` outward to where p stays below e^floor; they grow, and end at the bumps' own scale too."""
    length = sigma / max(1, abs(end) / sigma)
    points = [end, end + side * length]
    while log_p(points[-1]) > floor or any(side * (bump - points[-1]) > 0 for bump in centres):
        length = min(length * growth, 4 * sigma)
        points.append(points[-1] + side * length)
    last = points[-1]
    bumps = [centre + sigma * i for centre in centres for i in range(-24, 25, 2)]
    return sorted({*points, *(x for x in bumps if side * (x - end) > 0 and side * (last - x) > 0)})


def _agreed(
    integral: Callable[[Number], Number], digits: int, steps: tuple[Number, Number] = (2, mpmath.mpf(3) / 2)
) -> Decimal:
    """The integral over the first set of panels, when that over the second agrees with it to the digits."""
    first, second = (integral(step) for step in steps)
    if abs(first - second) > abs(first) * mpmath.mpf(10) ** -digits:
        raise ArithmeticError(f"quadrature gave {first} and {second}: expected agreement to {digits} digits")
    return _decimal(first, digits)


def _decimal(value: Number, digits: int) -> Decimal:
    context = Context(prec=digits + 2, Emax=MAX_EMAX, Emin=MIN_EMIN)
    return context.create_decimal(mpmath.nstr(value, digits + 5))
