"""Enclosures: two decimals that a number lies between, and the way from Arb balls to them.

Arb (python-flint) computes with balls, a midpoint and a radius, and every operation enlarges the radius so that the
ball contains the exact result. `outward` turns a ball into two decimals, the lower rounded down and the upper rounded
up, so that nothing is lost on the way out. Arb keeps its working precision in a global context; `bits` sets it for a
`with` block and restores it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Any

import flint

Ball = Any  # flint.arb, which carries no types
Real = int | float | Decimal | Fraction
UNDERFLOW_BITS = -16610  # 2**-16610 is just above 10**-5001: below it the lower end is reported as 0


@dataclass(frozen=True)
class Enclosure:
    """Two decimals, `lower` <= the exact number <= `upper`, and in words the method that proves it.

    >>> e = Enclosure(Decimal("0.25"), Decimal("0.26"), "by hand")
    >>> e.contains(0.255), e.contains(0.27), round(e.relative_width, 3)
    (True, False, 0.04)
    """

    lower: Decimal
    upper: Decimal
    method: str

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:
            raise ValueError(f"lower = {self.lower!r}: expected at most upper = {self.upper!r}")

    @property
    def relative_width(self) -> float:
        """(upper − lower) / lower; 0.0 for a point, infinite when the lower end is 0 and the upper is not."""
        if self.lower == self.upper:
            return 0.0
        if self.lower == 0:
            return math.inf
        return float((Fraction(self.upper) - Fraction(self.lower)) / abs(Fraction(self.lower)))

    def contains(self, value: Real) -> bool:
        """Whether the value lies between the ends, ends included; exact for floats, decimals and fractions."""
        return Fraction(self.lower) <= Fraction(value) <= Fraction(self.upper)

    def overlaps(self, other: Enclosure) -> bool:
        """Whether one number can lie in both; of two enclosures of one number that do not overlap, one is wrong."""
        return self.lower <= other.upper and other.lower <= self.upper

    def within(self, other: Enclosure) -> bool:
        """Whether this enclosure lies in the other one, ends included."""
        return other.lower <= self.lower and self.upper <= other.upper

    def floats(self) -> tuple[float, float]:
        """The ends as floats, rounded outward."""
        low, high = float(self.lower), float(self.upper)
        if Fraction(low) > Fraction(self.lower):
            low = math.nextafter(low, -math.inf)
        if Fraction(high) < Fraction(self.upper):
            high = math.nextafter(high, math.inf)
        return low, high


def largest(enclosures: list[Enclosure]) -> Enclosure:
    """An enclosure of the largest of the enclosed numbers: the largest lower end and the largest upper end."""
    best = max(enclosures, key=lambda item: item.upper)
    return Enclosure(max(item.lower for item in enclosures), best.upper, best.method)


@contextmanager
def bits(precision: int) -> Iterator[None]:
    """Arb's working precision for one `with` block, restored at its end whatever happens inside."""
    before = flint.ctx.prec
    flint.ctx.prec = precision
    try:
        yield
    finally:
        flint.ctx.prec = before


def ball(value: Fraction | int) -> Ball:
    """The ball around an exact rational at the working precision."""
    exact = Fraction(value)
    return flint.arb(flint.fmpq(exact.numerator, exact.denominator))


def rational(name: str, value: Real) -> Fraction:
    """The exact value of a finite number. Raises ValueError for anything else."""
    ok = isinstance(value, int | float | Decimal | Fraction) and not isinstance(value, bool)
    if not ok or not math.isfinite(value):
        raise ValueError(f"{name} = {value!r}: expected a finite number")
    return Fraction(value)


def _end(value: Fraction, rounding: str, digits: int) -> Decimal:
    """A rational as a decimal of so many significant digits, rounded in the direction given."""
    context = Context(prec=digits, rounding=rounding, Emax=MAX_EMAX, Emin=MIN_EMIN)
    return context.divide(Decimal(value.numerator), Decimal(value.denominator))


def between(lower: Fraction, upper: Fraction, digits: int, method: str) -> Enclosure:
    """An enclosure from two rationals, its ends decimals of so many significant digits, rounded outward."""
    return Enclosure(_end(lower, ROUND_FLOOR, digits), _end(upper, ROUND_CEILING, digits), method)


def outward(lower: Ball, upper: Ball, digits: int, method: str) -> Enclosure:
    """An enclosure from the lower end of one ball to the upper end of another, neither below 0, rounded outward.

    Ends below 10^−5000 become 0 and 10^−5000. Raises ArithmeticError when a ball is not finite: nothing is known.
    """
    ends = []
    for end in (lower.lower(), upper.upper()):
        if not end.is_finite():
            raise ArithmeticError(f"{method}: the balls {lower} and {upper}: expected finite ones")
        mantissa, exponent = (int(part) for part in end.man_exp())
        if mantissa <= 0:
            ends.append(Fraction(0))
        elif mantissa.bit_length() + exponent < UNDERFLOW_BITS:
            ends.append(Fraction(0) if not ends else Fraction(1, 10**5000))
        else:
            ends.append(Fraction(mantissa) * Fraction(2) ** exponent)
    return between(ends[0], ends[1], digits, method)
