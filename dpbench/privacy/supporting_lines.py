"""A trade-off function from its supporting lines: the maximum of a concave function of their slope, with both ends.

| here | in the papers |
| --- | --- |
| slope s > 0, alpha | f is above the line h(s) − s (x − α) at every x, for every s |
| steep (s >= 1), flat (s < 1) | s = e^ε and h = 1 − δ(ε) − e^ε α; s = e^(−ε) and h = e^(−ε) (1 − δ(ε) − α) |

f(α) = sup h(s), and h is concave in s on (0, ∞) with h(0) = 0, for it is an infimum of affine functions of s (minus the
convex conjugate of f at −s, less sα). It is unimodal in log s as well, so the search refines the intervals next to the
best slope.

**Ends.** Any h(s), less its error, is a lower end. For the upper one let g be known at slopes s_0 < s_1 < ... . On
[s_i, s_(i+1)] a concave function lies below the secant through s_j and s_i for every j < i, hence below
g(s_i) + max(0, (g(s_i) − g(s_j))/(s_i − s_j)) (s_(i+1) − s_i), the slope from upper and lower ends; and likewise from
the right. j is the nearest place that is at least as far away as the interval is long, so that errors grow by a small
factor only. Before the first slope h(s) <= s, beyond the last h(s) <= 1 − sα. All of that is about the true h: a curve
that claims no lower end of δ gives no upper end of f.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dpbench.errors import DpbenchError
from dpbench.privacy.answers import Estimate, PrivacyCurve

FARTHEST = 700.0  # beyond, e^ε is no double
_FIRST = (0.0, *(FARTHEST / 4.0**power for power in range(20, -1, -1)))  # where a search starts, in ε
_ROUNDS = 40
_TOGETHER, _ALONE = 12, 1  # new slopes per interval: of a curve that takes many ε at once, of any other
_CLOSE = {True: 1e-12, False: 1e-6}  # the gap that ends a search, relative, where δ has both ends and where not
_SUM = 2.0**-51  # what 1 − δ − sα may lose, for terms up to 1
_PRODUCT = 2.0**-50  # what e^ε, a product and a quotient lose, relative


@dataclass
class SupportingLines:
    """δ at all slopes evaluated so far, for both kinds of lines; all α share them."""

    steep: PrivacyCurve
    flat: PrivacyCurve
    known: dict[float, Estimate] = field(default_factory=dict)  # by the logarithm of the slope

    def highest(self, alpha: float) -> Estimate:
        """f(α) for α in (0, 1)."""
        coarse = sorted({*_FIRST, *(-place for place in _FIRST)})
        self._learn(coarse)
        places = coarse if self._together else sorted(self.known)
        lower, upper, value, both = 0.0, 1 - alpha, 0.0, False
        for _ in range(_ROUNDS):
            lines = [self._line(place, alpha) for place in places]
            top = max(range(len(lines)), key=lambda place: lines[place].value)
            value = lines[top].value
            lower = max(lower, *(line.lower for line in lines if line.lower is not None))
            both = all(line.upper is not None for line in lines)
            near = lines[max(top - 1, 0)], lines[top], lines[min(top + 1, len(lines) - 1)]
            if both:
                upper = min(upper, _above(places, lines, alpha))
                done = upper - lower <= _CLOSE[both] * value or _told_apart(near) is False
            else:
                done = value - min(line.value for line in near) <= _CLOSE[both] * value
            new = [] if done else self._between(places[max(top - 1, 0) : top + 2])
            if not new:
                break
            self._learn(new)
            places = sorted({*places, *new})
        value = min(max(value, 0.0), 1 - alpha)
        if any(curve.kind not in ("exact", "certified", "upper_bound") for curve in (self.steep, self.flat)):
            return Estimate(value)
        return Estimate(value, min(lower, value), max(upper, value) if both else None)

    @property
    def _together(self) -> bool:
        return hasattr(self.steep, "deltas") and hasattr(self.flat, "deltas")

    def _learn(self, places: Sequence[float]) -> None:
        new = [place for place in dict.fromkeys(places) if place not in self.known]
        for curve, mine in ((self.steep, [p for p in new if p >= 0]), (self.flat, [p for p in new if p < 0])):
            self.known.update(zip(mine, deltas(curve, [abs(place) for place in mine]), strict=True))

    def _between(self, near: Sequence[float]) -> list[float]:
        """New places in the intervals around the best one."""
        count = _TOGETHER if self._together else _ALONE
        found = []
        for low, high in itertools.pairwise(near):
            new = [low + (high - low) * number / (count + 1) for number in range(1, count + 1)]
            found += [place for place in new if low < place < high]
        return found

    def _line(self, place: float, alpha: float) -> Estimate:
        """h(e^place), with its ends."""
        delta, flat = self.known[place], math.exp(-abs(place))

        def line(end: float, error: int) -> float:
            if place >= 0:
                return 1 - end - alpha / flat + error * (_SUM + _PRODUCT * alpha / flat)
            value = flat * (1 - end - alpha)
            return value + error * (flat * _SUM + _PRODUCT * abs(value))

        return Estimate(
            line(delta.value, 0), line(delta.safe, -1), None if delta.lower is None else line(delta.lower, 1)
        )


def _above(places: Sequence[float], lines: Sequence[Estimate], alpha: float) -> float:
    """An upper bound of sup h, by the secants of the module's docstring."""
    slopes = [0.0, *(math.exp(place) for place in places)]
    lower = [0.0, *(-math.inf if line.lower is None else line.lower for line in lines)]
    upper = [0.0, *(math.inf if line.upper is None else line.upper for line in lines)]
    last = len(slopes) - 1
    found = max(slopes[1], 1 - slopes[-1] * alpha)
    for here in range(1, last):
        beyond = here + 1
        length = slopes[beyond] - slopes[here]
        left = max(bisect.bisect_right(slopes, slopes[here] - length) - 1, 0)
        rise = (upper[here] - lower[left]) / (slopes[here] - slopes[left])
        bound = upper[here] + max(0.0, rise) * length
        if beyond < last:
            right = min(bisect.bisect_left(slopes, slopes[beyond] + length), last)
            fall = (upper[beyond] - lower[right]) / (slopes[right] - slopes[beyond])
            bound = min(bound, upper[beyond] + max(0.0, fall) * length)
        found = max(found, bound + abs(bound) * 1e-14)
    return found


def _told_apart(near: Sequence[Estimate]) -> bool:
    """Whether the best line differs from its neighbours by more than their errors."""
    widths = [(line.upper or 0.0) - (line.lower or 0.0) for line in near]
    return max(line.value for line in near) - min(line.value for line in near) > max(widths)


def at_no_error(curve: PrivacyCurve) -> Estimate:
    """f(0) = 1 − δ(∞). Finite losses above 1e300 are less likely than a unit in the last place of 1.

    Where a curve has no answer there, δ(700) stands for it, and only 1 is sure as the upper end.
    """
    try:
        found, far = curve.delta(1e300), True
    except (DpbenchError, ArithmeticError):
        found, far = curve.delta(FARTHEST), False
    if curve.kind not in ("exact", "certified", "upper_bound"):
        return Estimate(1 - found.value)
    upper = None if found.lower is None else 1 - found.lower * (1 - _SUM) if far else 1.0
    return Estimate(1 - found.value, 1 - found.safe, upper)


def deltas(curve: Any, places: Sequence[float]) -> list[Estimate]:
    """δ at several ε; at once, where the curve can."""
    if hasattr(curve, "deltas"):
        found: list[Estimate] = curve.deltas(places)
        return found
    return [curve.delta(place) for place in places]
