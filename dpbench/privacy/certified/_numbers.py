"""From balls to numbers that people read, always rounded outwards; and back from doubles, exactly."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from flint import acb, arb, ctx, fmpq

from dpbench.errors import DpbenchError

MOST_WORK = 1e7  # of one answer: five to ten seconds of one core, counted and not timed, so the same everywhere
MOST_BYTES = 1e9  # of the numbers that one answer keeps, counted as well
ELSEWHERE = "ask `dpbench account`, or for a larger delta or fewer digits"
LONGEST = 100_000  # binary digits before or behind the point that a fraction may have: e^−ε of a large ε has more


_left = [math.inf]  # what is left of the work that was granted


@contextmanager
def granted(work: float = MOST_WORK) -> Iterator[None]:
    """Within it, `spend` refuses beyond `work`."""
    saved, _left[0] = _left[0], work
    try:
        yield
    finally:
        _left[0] = saved


def spend(work: float) -> None:
    """Count work before it is done, in half or whole microseconds. Raises DpbenchError where it would be too much.

    >>> with granted(5.0):
    ...     spend(7.0)
    Traceback (most recent call last):
    dpbench.errors.DpbenchError: the proof would take over ten seconds; ask `dpbench account`, or for a larger...
    """
    _left[0] -= work
    if not _left[0] >= 0:
        raise DpbenchError(f"the proof would take over ten seconds; {ELSEWHERE}")


def hold(numbers: float) -> None:
    """Count complex balls in the bits now in force before they are kept. Raises DpbenchError where they are too many.

    >>> hold(1e8)
    Traceback (most recent call last):
    dpbench.errors.DpbenchError: the proof would take over 1 GB of memory; ask `dpbench account`, or for a larger del...
    """
    if not numbers * (300 + 1.25 * ctx.prec) <= MOST_BYTES:
        raise DpbenchError(f"the proof would take over {MOST_BYTES / 1e9:g} GB of memory; {ELSEWHERE}")


def integral(function: Callable[[Any, bool], Any], low: Any, high: Any, work: float, **options: Any) -> Any:
    """acb.integral, every value of `function` counted as `work`; what is raised within it is raised after it."""
    failures: list[Exception] = []

    def counted(at: Any, analytic: bool) -> Any:
        if failures:
            return acb("nan")
        try:
            spend(work)
            return function(at, analytic)
        except Exception as error:  # noqa: BLE001 - flint cannot pass it on
            failures.append(error)
            return acb("nan")

    found = acb.integral(counted, acb(low), acb(high), **options)
    if failures:
        raise failures[0]
    return found


@contextmanager
def working_bits(bits: int) -> Iterator[None]:
    """Arb's precision within a `with`, restored afterwards."""
    saved = ctx.prec
    ctx.prec = bits
    try:
        yield
    finally:
        ctx.prec = saved


def ends(ball: Any) -> tuple[Fraction, Fraction]:
    """The two ends of a finite ball, or numbers just outside of them, as fractions.

    >>> ends(arb(0.5))
    (Fraction(1, 2), Fraction(1, 2))
    """
    with working_bits(max(ctx.prec, 4096)):  # lower() and upper() round outwards to the bits in force
        return _fraction(ball.lower(), up=False), _fraction(ball.upper(), up=True)


def _fraction(exact: Any, up: bool) -> Fraction:
    """The number itself; in place of one beyond 2^±LONGEST the next one towards the side asked for."""
    mantissa, exponent = (int(part) for part in exact.man_exp())
    size = exponent + mantissa.bit_length()
    outwards = (mantissa > 0) == up
    sign = 1 if mantissa > 0 else -1
    if mantissa and size < -LONGEST:
        return sign * Fraction(1, 2**LONGEST) if outwards else Fraction(0)
    if size > LONGEST:
        if outwards:
            raise DpbenchError(f"a number above 2^{LONGEST} came up; ask about a smaller epsilon, or about fewer steps")
        return Fraction(sign * 2**LONGEST)
    return Fraction(mantissa) * Fraction(2) ** exponent


def ball_of(value: Fraction) -> Any:
    """The ball of a fraction in the bits now in force."""
    return arb(fmpq(value.numerator, value.denominator))


def log_fraction(value: Fraction) -> float:
    """log of a positive fraction in doubles, whatever its size.

    >>> round(log_fraction(Fraction(1, 10**400)) / math.log(10))
    -400
    """
    return math.log(value.numerator) - math.log(value.denominator)


def float_below(value: Fraction) -> float:
    """The greatest double that is not above the fraction.

    >>> float_below(Fraction(1, 10)) <= Fraction(1, 10)
    True
    """
    found = _nearest(value)
    return found if found <= value else math.nextafter(found, -math.inf)


def float_above(value: Fraction) -> float:
    """The smallest double that is not below the fraction."""
    return 0.0 - float_below(-value)


def _nearest(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def text(value: Fraction, digits: int, up: bool) -> str:
    """The fraction in decimals, `digits` significant ones, rounded up or down.

    >>> text(Fraction(2, 3), 4, up=True), text(Fraction(2, 3), 4, up=False)
    ('0.6667', '0.6666')
    """
    context = decimal.Context(
        prec=digits,
        rounding=decimal.ROUND_CEILING if up else decimal.ROUND_FLOOR,
        Emin=decimal.MIN_EMIN,
        Emax=decimal.MAX_EMAX,
    )
    exact = decimal.Context(prec=decimal.MAX_PREC, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
    return str(context.divide(exact.create_decimal(value.numerator), exact.create_decimal(value.denominator)))
