"""A bound of |M(c + iu)| that holds for all larger u at once: the modulus, integrated along a lifted contour.

Along s + i·y(s) with 0 <= y < π/g the factor e^(iu·loss) has the modulus e^(−u·arg), arg >= 0, which falls as u grows:
whatever bound holds at U holds beyond. The contour is y(s) = `top` / (1 + e^(`middle` − s)); which one is chosen is a
matter of tightness only. Section 6 of docs/certified.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flint import acb, arb, ctx

from dpbench.privacy.certified._numbers import integral, spend


@dataclass(frozen=True)
class LiftedLine:
    """The contour y(s) = top / (1 + e^(middle − s)), with 0 < top < π/g."""

    top: float
    middle: float

    def height(self, s: float) -> tuple[float, float]:
        """y(s) and its derivative, in doubles."""
        away = self.middle - s
        share = 1 / (1 + math.exp(away)) if away < 700 else 0.0
        return self.top * share, self.top * share * (1 - share)

    def estimate(self, release: Any, c: float, u: float, low: float, high: float, top: float) -> float:
        """log of the bound in doubles."""
        count = 96
        spend((3 + 0.6 * release.largest) * release.sides * count)
        step = (high - low) / count
        total = 0.0
        for j in range(count + 1):
            s = low + j * step
            y, slope = self.height(s)
            total += math.sqrt(1 + slope * slope) * math.exp(
                min(release.exponent(complex(s, y), c, u).real - top, 690.0)
            )
        return top + math.log(max(total, 1e-300) * step * release.noise_multiplier / math.sqrt(2 * math.pi))

    def bound(self, release: Any, c: Any, u: Any, low: float, high: float, digits: float) -> Any:
        """The proven bound: acb.integral over [low, high] of the modulus, continued analytically, and both tails."""
        precision = release.precision()
        plus, minus = release.exponents(c)
        y_top, middle = arb(self.top), arb(self.middle)
        if not release.largest * y_top < arb.pi():
            raise AssertionError("the contour must stay below π/g")
        mean = -1 / (2 * precision)
        imaginary = acb(0, 1)

        def modulus(s: Any, analytic: bool) -> Any:
            share = 1 / (1 + (middle - s).exp())
            y = y_top * share
            slope = y * (1 - share)
            above, below = s + imaginary * y, s - imaginary * y
            log_above = release.ratio(above).log(analytic=analytic)
            log_below = release.ratio(below).log(analytic=analytic)
            exponent = -precision * ((s - mean) ** 2 - y * y) / 2 + plus * (log_above + log_below) / 2
            turn = (log_above - log_below) / (2 * imaginary)
            if release.direction == "replace":
                mirror_above = release.ratio(2 * mean - above).log(analytic=analytic)
                mirror_below = release.ratio(2 * mean - below).log(analytic=analytic)
                exponent += minus * (mirror_above + mirror_below) / 2
                turn -= (mirror_above - mirror_below) / (2 * imaginary)
            return (1 + slope * slope).sqrt(analytic=analytic) * (exponent - u * turn).exp()

        work = (30.0 + 9 * release.largest) * release.sides * (1 + ctx.prec / 600)
        inside = integral(modulus, low, high, work, rel_tol=arb(-digits).exp(), eval_limit=200_000)
        total = (precision / (2 * arb.pi())).sqrt() * inside.real
        stretch = (1 + (y_top / 4) ** 2).sqrt()
        for edge, side in ((arb(low), -1), (arb(high), 1)):
            total += stretch * release.outside(edge, side, c, y_top, None)
        return arb(total.upper())


def best_lift(
    size: Callable[[LiftedLine], float],
    starts: Sequence[LiftedLine],
    ceiling: float,
    shift: float,
    rounds: int,
    least: float = 0.0,
) -> tuple[float, LiftedLine]:
    """log of the bound of the best contour that a pattern search finds from the best of `starts`, and that contour.

    `size` is what is to be small, in doubles; `shift` moves the middle at first, down to `least`.
    """
    known: dict[LiftedLine, float] = {}

    def at(line: LiftedLine) -> float:
        if line not in known:
            known[line] = size(line)
        return known[line]

    best, factor = min(starts, key=at), 1.8
    for _ in range(rounds):
        if shift < least:
            break
        tries = [
            LiftedLine(min(best.top * f, ceiling), best.middle + d)
            for f, d in ((factor, 0.0), (1 / factor, 0.0), (1.0, shift), (1.0, -shift), (factor, shift))
        ]
        better = min(tries, key=at)
        if at(better) < at(best):
            best = better
        else:
            factor, shift = math.sqrt(factor), shift / 2
    return at(best), best
