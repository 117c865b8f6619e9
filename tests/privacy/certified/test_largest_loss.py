"""Internal: the ends of balls lie outwards, on which the choice of a direction rests.

A direction may only be left out where its largest loss is below what the other one has for sure.
"""

from __future__ import annotations

import math
from fractions import Fraction

from flint import arb

from dpbench.events import DiscretePair
from dpbench.privacy.certified import certify
from dpbench.privacy.certified._numbers import LONGEST, ends, working_bits


def test_the_second_direction_counts_where_it_is_the_worse() -> None:
    """ε at 0.1: log 2 for remove, from the second outcome, log(0.4/0.184) for add, from the first one (its loss: 1)."""
    pair = DiscretePair((0.184, 0.6, 0.216), (0.5, 0.25, 0.25))
    found = certify(pair, delta=0.1)
    truth = math.log(0.4 / 0.184)
    assert found.direction == "add"
    assert found.lower - 1e-12 <= truth <= found.upper + 1e-12


def test_ends_of_giant_exponents_lie_outwards() -> None:
    with working_bits(128):
        tiny = (-(arb(10) ** 9)).exp()
        assert ends(tiny) == (Fraction(0), Fraction(1, 2**LONGEST))
        assert ends(-tiny) == (Fraction(-1, 2**LONGEST), Fraction(0))
        low, high = ends(arb(1) / 3)
        assert low < Fraction(1, 3) < high
