"""The order at which a bound is lowest: whole orders first, then the real ones around the best of them."""

from __future__ import annotations

import math
from collections.abc import Callable

LOWEST_BETA = 2.0**-20  # orders from 1 + 2^-20 on: a plain Gaussian asks for less only where μ is above 1e6
_TOLERANCE = 3e-7  # of log(α − 1)
_GOLDEN = (3 - math.sqrt(5)) / 2


def lowest_order(function: Callable[[float], float], highest: int) -> tuple[float, float]:
    """The order α in [1 + 2^-20, `highest`] where a function with a single valley is lowest, and its value there.

    Whole orders double until the function rises, and bisection on the sign of its slope finds the best of them, n.
    The best real order lies within one of n; below 2, α − 1 is halved until the function rises. Brent's method then
    closes in on α − 1 to 3e-7 of itself: the function is flat there, and its value far closer to the lowest. Whatever
    is returned, the value is the function's own, and so a bound where the function is one.
    """
    values: dict[float, float] = {}

    def at(order: float) -> float:
        if order not in values:
            values[order] = function(order)
        return values[order]

    best = _lowest_whole(at, highest)
    if best == highest:
        return float(best), at(best)
    if best > 2:
        low = best - 1.0
    else:
        # 2 is the best whole order: halve α − 1 while that helps, so that the middle of the three is the lowest
        beta = 1.0
        while beta > LOWEST_BETA and at(1 + beta / 2) <= at(1 + beta):
            beta /= 2
        if beta <= LOWEST_BETA:
            return _from_the_end(at, 1 + beta, 1 + 2 * beta)
        return _refine(at, 1 + beta / 2, 1 + beta, 3.0 if beta == 1.0 else 1 + 2 * beta)
    return _refine(at, low, float(best), best + 1.0)


def _lowest_whole(at: Callable[[float], float], highest: int) -> int:
    high = 4
    while high < highest and at(high) < at(high // 2):
        high *= 2
    high = min(high, highest)
    low = max(2, high // 4)
    while low < high:
        middle = (low + high) // 2
        if at(middle) <= at(middle + 1):
            high = middle
        else:
            low = middle + 1
    return low


def _from_the_end(at: Callable[[float], float], end: float, beyond: float) -> tuple[float, float]:
    """The lowest place between `end` and `beyond`, where it is higher, halved towards the end until it is not."""
    while beyond - end > 2 * _TOLERANCE * (end - 1):
        middle = (end + beyond) / 2
        if at(middle) < at(end):
            return _refine(at, end, middle, beyond)
        beyond = middle
    return end, at(end)


def _refine(at: Callable[[float], float], low: float, middle: float, high: float) -> tuple[float, float]:
    """The lowest place between `low` and `high`, where `middle` is at least as low as both.

    Brent's method (Algorithms for Minimization without Derivatives, 1973, chapter 5) in s = log(α − 1).
    """

    def f(s: float) -> float:
        return at(1 + math.exp(s))

    left, best, right = math.log(low - 1), math.log(middle - 1), math.log(high - 1)
    value = at(middle)
    # the two next best places so far, and the last two moves
    (second_value, second), (third_value, third) = sorted(((at(low), left), (at(high), right)))
    move = before = right - left
    for _ in range(60):
        centre = (left + right) / 2
        if abs(best - centre) + (right - left) / 2 <= 2 * _TOLERANCE:
            break
        # the vertex of the parabola through the three places, best + over / under
        one, two = (best - second) * (value - third_value), (best - third) * (value - second_value)
        over, under = (best - third) * two - (best - second) * one, 2 * (one - two)
        step = over / under if under and math.isfinite(over) and math.isfinite(under) else math.inf
        if abs(step) < _TOLERANCE and abs(move) < 1e-3:
            break  # the far end of the bracket need not follow
        if not (left < best + step < right and abs(step) < abs(before) / 2):
            step = _GOLDEN * ((right if best < centre else left) - best)
            before = (right if best < centre else left) - best
        else:
            before = move
        if abs(step) < _TOLERANCE:
            step = math.copysign(_TOLERANCE, centre - best if step == 0 else step)
        move, trial = step, best + step
        found = f(trial)
        if found <= value:
            left, right = (left, best) if trial < best else (best, right)
            third, third_value, second, second_value, best, value = second, second_value, best, value, trial, found
        else:
            left, right = (trial, right) if trial < best else (left, trial)
            if found <= second_value or second == best:
                third, third_value, second, second_value = second, second_value, trial, found
            elif found <= third_value or third in (best, second):
                third, third_value = trial, found
    return (middle, at(middle)) if at(middle) <= value else (1 + math.exp(best), value)
