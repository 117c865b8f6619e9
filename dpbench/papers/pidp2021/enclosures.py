"""Balls of Arb for the judges of this paper: outward ends and the tail of the normal distribution."""

from __future__ import annotations

import math
from typing import Any

BITS = 256  # every probability here is above 1e-40, so 256 bits leave tens of digits after cancellation


def ends(ball: Any) -> tuple[float, float]:
    """Doubles below and above all of the ball."""
    lower, upper = float(ball.lower()), float(ball.upper())
    return math.nextafter(lower, -math.inf), math.nextafter(upper, math.inf)


def upper_tail(ball: Any) -> Any:
    """P(N(0, 1) > x) of a ball x; needs `ctx.workprec`."""
    from flint import arb

    return (ball / arb(2).sqrt()).erfc() / 2


def between(low: Any, high: Any) -> Any:
    """P(low < N(0, 1) < high) of two balls."""
    return upper_tail(low) - upper_tail(high)
