"""The reference of discrete pairs: two distributions on finitely many outcomes, given as data, and their compositions.

The given doubles, divided by their exact sum, are exact rationals; δ(ε) = Σ_x (p(x) − e^ε q(x))₊ over the outcomes of
the composition, multiset by multiset, to any number of digits. Up to 200,000 multisets; beyond, a lattice, whose nodes
miss the losses: its enclosures are wide.

    >>> from dpbench.events import DiscretePair
    >>> coin = DiscretePair(first=(0.75, 0.25), second=(0.25, 0.75))  # the losses are ± log 3
    >>> reference.delta((coin, 2), 0.0, digits=12).contains(0.5)
    True
    >>> reference.delta((coin, 1000), 600.0, digits=12).lower > 0
    True
"""

from __future__ import annotations

import math
from fractions import Fraction

from dpbench.events import DiscretePair, Event
from dpbench.references._discrete import Discrete, enumerated, merged, multisets
from dpbench.references._reference import Closed, Reference, Subject, parts
from dpbench.references._release import Direction, Releases, counted

MOST_MULTISETS = 200_000


def law(event: Event) -> Discrete | None:
    """The law of one event; None where both distributions are the same. Raises ValueError for what is not covered."""
    if not isinstance(event, DiscretePair):
        raise ValueError(f"event = {event!r}: expected a DiscretePair")
    first, second = (
        tuple(value / sum(values, Fraction(0)) for value in values)
        for values in (tuple(map(Fraction, event.first)), tuple(map(Fraction, event.second)))
    )
    return None if first == second else Discrete(merged(first, second))


def _releases(subject: Subject) -> Releases:
    found = parts(subject)
    neighbours = {event.adjacency for event, _ in found}
    if len(neighbours) > 1:
        raise ValueError(f"adjacency = {', '.join(sorted(neighbours))}: expected the same for all releases")
    laws = ((law(event), count) for event, count in found)
    return counted((one, count) for one, count in laws if one)


def _close(releases: Releases, direction: Direction) -> Closed | None:
    pairs = tuple((one.pair(direction), count) for one, count in releases if isinstance(one, Discrete))
    size = math.prod(multisets(sum(p > 0 for p, _ in pair.outcomes), count) for pair, count in pairs)
    if len(pairs) < len(releases) or size > MOST_MULTISETS:
        return None
    return lambda epsilon, digits: enumerated(pairs, epsilon, digits)


reference = Reference("DiscretePair", _releases, _close)
