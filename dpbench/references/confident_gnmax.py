"""The reference of Confident-GNMax: bounds whatever the votes.

Whatever the votes, the largest count has sensitivity 1 and, where answered, the vector of counts has sensitivity √2:
together one Gaussian with 1/σ² = 1/σ₁² + 2/σ₂², and so for any number of queries, exactly as in `gaussian.py`. `delta`,
`epsilon` and the rest are about that pair, of which what is released (a class, or nothing) is a function:

    >>> from dpbench.events import ConfidentGNMax
    >>> query = ConfidentGNMax(threshold=30.0, selection_noise=20.0, answer_noise=5.0, votes=(40, 8, 2))
    >>> reference.delta((query, 10), 3.0, digits=8).upper
    Decimal('0.0004678993295983')
"""

from __future__ import annotations

import math
from fractions import Fraction

from dpbench.events import ConfidentGNMax, Event
from dpbench.references._reference import Reference
from dpbench.references.gaussian import as_one


def _precision(event: Event) -> Fraction:
    if not isinstance(event, ConfidentGNMax):
        raise ValueError(f"event = {event!r}: expected a ConfidentGNMax")
    noises = ((1, event.selection_noise), (2, event.answer_noise if event.answered else math.inf))
    return sum((square / Fraction(noise) ** 2 for square, noise in noises if math.isfinite(noise)), Fraction(0))


reference = Reference("ConfidentGNMax", as_one(_precision))
