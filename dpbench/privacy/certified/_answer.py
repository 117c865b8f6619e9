"""From a question to certificates: both directions, the worse of them, and numbers rounded outwards."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Literal

from flint import arb

from dpbench.errors import DpbenchError
from dpbench.events import Composition, Event
from dpbench.privacy.answers import check_delta, check_epsilon, is_whole
from dpbench.privacy.certified._certificate import Certificate
from dpbench.privacy.certified._contour import Ball
from dpbench.privacy.certified._curve import Curve
from dpbench.privacy.certified._numbers import (
    ball_of,
    ends,
    float_above,
    float_below,
    granted,
    log_fraction,
    text,
    working_bits,
)
from dpbench.privacy.certified._sides import sides
from dpbench.privacy.composition import as_composition, common_adjacency, merge

Interval = tuple[Fraction, Fraction]
Result = tuple[Interval, Ball, Curve]
MOST_DIGITS = 60


class Question:
    """One composition. Raises DpbenchError where it is not covered."""

    def __init__(self, releases: Composition | Event, digits: int, progress: Callable[[str], None] | None) -> None:
        if not is_whole(digits, 2) or digits > MOST_DIGITS:
            raise DpbenchError(f"digits = {digits!r}: expected a whole number from 2 to {MOST_DIGITS}")
        self.composition = as_composition(releases)
        self.digits = int(digits)
        with granted():
            self.curves = [Curve(side, progress) for side in sides(self.composition)]

    def answer(self, epsilons: Sequence[float], deltas: Sequence[float], single: bool) -> tuple[Certificate, ...]:
        """One certificate per number, in order."""
        if single and len(epsilons) + len(deltas) != 1:
            given = "both" if epsilons else "neither"
            raise DpbenchError(f"certify takes exactly one of epsilon and delta; {given} was given")
        epsilons = [check_epsilon(epsilon) for epsilon in epsilons]
        deltas = [check_delta(delta) for delta in deltas]
        start = time.perf_counter()
        found = []
        for value in epsilons:
            with granted():
                found.append(self._certificate("delta", value, self.deltas(value), start))
        for value in deltas:
            with granted():
                found.append(self._certificate("epsilon", value, self.epsilons(value), start))
        return tuple(found)

    def deltas(self, epsilon: float) -> list[Result]:
        """δ(ε) of each direction: the first to its own digits, the others to what the greatest so far needs.

        A direction is not computed where its largest loss bounds its δ below that of another one.
        """
        at = Fraction(epsilon)
        results: list[Result] = []
        target: float | None = None
        for curve in self.curves:
            ceiling = curve.ceiling(at) if results else Fraction(1)
            if ceiling < max((lower for (lower, _), _, _ in results), default=Fraction(0)):
                results.append(((Fraction(0), ceiling), Ball(arb(0)), curve))
                continue
            ball = curve.delta(at, target, self.digits + 0.3)
            results.append((_inside(ball), ball, curve))
            if results[0][0][0] > 0:
                target = log_fraction(max(lower for (lower, _), _, _ in results if lower > 0))
                target -= (self.digits + 0.3) * math.log(10)
        first = results[0]
        others = [lower for (lower, _), _, _ in results[1:]]
        if others and max(others) > first[0][1] > 0:  # the second one is the worse: give it its own digits
            ball = self.curves[1].delta(at, None, self.digits + 0.3)
            results[1] = (_inside(ball), ball, self.curves[1])
        return results

    def epsilons(self, delta: float) -> list[Result]:
        """ε(δ) of each direction: coarse enclosures decide which need all digits.

        A direction is not computed where its largest loss, which its ε cannot exceed, is below the ε of another one.
        """
        wanted = Fraction(delta)
        coarse: list[Result] = []
        for curve in self.curves:
            known = max((lower for (lower, _), _, _ in coarse), default=Fraction(0))
            largest = curve.largest_loss()
            if largest is not None and largest < known:
                coarse.append(((Fraction(0), largest), Ball(arb(0)), curve))
                continue
            lower, upper, ball = curve.epsilon(wanted, 3)
            coarse.append(((lower, upper), ball, curve))
        best = max(lower for (lower, _), _, _ in coarse)
        results: list[Result] = []
        for interval, ball, curve in coarse:
            if interval[1] >= best and interval[1] > 0:
                lower, upper, ball = curve.epsilon(wanted, self.digits)
                interval = (max(lower, interval[0]), min(upper, interval[1]))
            results.append((interval, ball, curve))
        return results

    def _certificate(
        self, quantity: Literal["epsilon", "delta"], asked: float, results: list[Result], start: float
    ) -> Certificate:
        lower = max(interval[0] for interval, _, _ in results)
        upper = max(interval[1] for interval, _, _ in results)
        _, ball, curve = max(results, key=lambda result: (result[0][1], result[0][0]))
        winners = [c.side.name for interval, _, c in results if interval[1] >= lower]
        names = ["both"] if len(results) == 1 else [c.side.name for _, _, c in results]
        if len(results) == 1:
            direction = "both"
        else:
            direction = winners[0] if len(winners) == 1 else "undecided"
        adjacency = common_adjacency(self.composition)
        assert adjacency is not None  # sides() has seen to it
        places = self.digits + 8
        with working_bits(max(128, int(places * 4))):
            middle, radius = ball_of((lower + upper) / 2), ball_of((upper - lower) / 2)
            shown = middle + arb(0, arb(radius.upper()))
        return Certificate(
            quantity=quantity,
            asked=float(asked),
            lower=float_below(lower),
            upper=float_above(upper),
            lower_text=text(lower, places, up=False),
            upper_text=text(upper, places, up=True),
            ball=shown.str(places),
            adjacency=adjacency,
            direction=direction,
            directions={
                name: (float_below(interval[0]), float_above(interval[1]))
                for name, (interval, _, _) in zip(names, results, strict=True)
            },
            method=curve.method,
            bits=ball.bits,
            nodes=ball.nodes,
            radius={
                "aliasing": ball.aliasing,
                "tail": ball.tail,
                "moments": ball.moments,
                "rounding": ball.rounding,
            },
            attained=all(event.attained for event, _ in merge(self.composition)),
            seconds=time.perf_counter() - start,
        )


def _inside(ball: Ball) -> Interval:
    """δ lies in [0, 1], whatever the ball."""
    if not ball.value.is_finite():
        return Fraction(0), Fraction(1)
    lower, upper = ends(ball.value)
    return max(lower, Fraction(0)), min(upper, Fraction(1))
