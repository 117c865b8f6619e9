"""The losses of a discrete pair by exact fractions of the given doubles: near 0 to their own relative digits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpbench.events import DiscretePair
from dpbench.privacy.accountants._log_ratios import Floats


def shares(values: tuple[float, ...]) -> list[Fraction]:
    """The given doubles divided by their exact sum."""
    fractions = [Fraction(value) for value in values]
    total = sum(fractions)
    return [fraction / total for fraction in fractions]


def _log(ratio: Fraction) -> float:
    """log of a positive fraction, to two units in the last place: near 1 by log1p of the exact difference."""
    if abs(ratio - 1) < Fraction(1, 2):
        return math.log1p(float(ratio - 1))
    shift = ratio.numerator.bit_length() - ratio.denominator.bit_length()
    scaled = ratio / Fraction(2) ** shift
    return math.log(float(scaled)) + shift * math.log(2)


@dataclass(frozen=True)
class PairLosses:
    """One pair's distinct finite losses in ascending order, exact ratios merged; masses and what is infinite."""

    losses: Floats
    masses: Floats
    infinite: float

    @classmethod
    def of(cls, event: DiscretePair, direction: int) -> PairLosses:
        first, second = shares(event.first), shares(event.second)
        p, q = (second, first) if direction else (first, second)
        table: dict[Fraction, Fraction] = {}
        for above, below in zip(p, q, strict=True):
            if above and below:
                table[above / below] = table.get(above / below, Fraction(0)) + above
        ratios = sorted(table)
        infinite = float(sum((above for above, below in zip(p, q, strict=True) if above and not below), Fraction(0)))
        return cls(np.array([_log(r) for r in ratios]), np.array([float(table[r]) for r in ratios]), infinite)


def losses(event: DiscretePair, direction: int) -> tuple[Floats, Floats]:
    """A pair's finite losses and their masses; direction 0 is remove, 1 is add."""
    found = PairLosses.of(event, direction)
    return found.losses, found.masses
