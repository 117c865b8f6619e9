"""δ(ε) and ε(δ) of one direction of a composition: what every part of `exact` offers, and what it answers with.

A direction is remove (P with the record, Q without) or add (the reverse). The curve takes the larger of both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

PROMISED, SMALLEST = 1e-9, 1e-12  # the relative and the absolute error that an answer should have at most


@dataclass(frozen=True)
class Value:
    """A number and a bound of its absolute error."""

    value: float
    error: float


class Direction(Protocol):
    """δ(ε) of one direction.

    Where it cannot tell (too much work, an error of no use) it raises `DpbenchError` or `ArithmeticError`; `exact`
    turns both into a refusal that names the accountant 'lattice'. An error above `PROMISED` is told by the curve.
    """

    @property
    def largest(self) -> float:
        """The largest loss: δ is 0 from there on (but for P(L = ∞)); ∞ where there is none."""
        ...

    def deltas(self, epsilons: Sequence[float]) -> list[Value]:
        """δ at every ε >= 0, in ascending order, with its error."""
        ...

    def epsilon(self, log_delta: float) -> Value:
        """The smallest ε >= 0 with log δ(ε) <= `log_delta`, with its error; `Value(0, 0)` where δ(0) is below."""
        ...


def anywhere(this: Direction, other: Direction, epsilons: Sequence[float]) -> list[Value]:
    """δ of `this` at ascending real ε; below 0 it is 1 − e^ε + e^ε δ'(−ε), with the `other` direction's δ'.

    All terms are positive, so that nothing cancels.
    """
    below = [epsilon for epsilon in epsilons if epsilon < 0]
    mirrored = other.deltas([-epsilon for epsilon in reversed(below)]) if below else []
    found = [
        Value(-math.expm1(epsilon) + math.exp(epsilon) * one.value, math.exp(epsilon) * one.error + 2.0**-52)
        for epsilon, one in zip(below, reversed(mirrored), strict=True)
    ]
    inside = list(epsilons[len(below) :])
    return found + (this.deltas(inside) if inside else [])
