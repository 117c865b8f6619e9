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

Mechanisms with finitely many outcomes: sums over the outcomes, each probability an exact rational, in Arb balls.

H(a) = Σ_x (p(x) − a q(x))₊. A composition's outcomes are the sequences; those with the same counts of every outcome
have the same probabilities, so δ(ε) is a sum over multisets, each with its multinomial number of orders. Outcomes of
one invocation with the same ratio p/q count as one (nothing is lost: the ratio is all that matters), and those with
p = 0 never add to the sum.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import mpmath
from flint import arb

from dpbench.events import DiscretePair, Event
from dpbench.references._enclosure import Ball, Enclosure, ball
from dpbench.references._quadrature import _decimal, _number
from dpbench.references._reference import Closed, reference_of
from dpbench.references._release import Directed, Direction, HockeyStick, Law, Releases, refined

Outcomes = tuple[tuple[Fraction, Fraction], ...]  # p(x), q(x)


def merged(first: tuple[Fraction, ...], second: tuple[Fraction, ...]) -> Outcomes:
    """The outcomes with those of one ratio together, in the order of falling ratio; p = 0 is kept."""
    found: dict[Fraction | None, tuple[Fraction, Fraction]] = {}
    for p, q in zip(first, second, strict=True):
        if p or q:
            ratio = p / q if q else None
            before = found.get(ratio, (Fraction(0), Fraction(0)))
            found[ratio] = (before[0] + p, before[1] + q)
    return tuple(found[ratio] for ratio in sorted(found, key=lambda r: math.inf if r is None else r, reverse=True))


@dataclass(frozen=True)
class Discrete(Law):
    """The law: the outcomes' probabilities with and without the record."""

    outcomes: Outcomes

    def pair(self, direction: Direction) -> DiscreteOutcomes:
        """As given for remove, the reverse for add."""
        if direction == "remove":
            return DiscreteOutcomes(self.outcomes)
        return DiscreteOutcomes(tuple((q, p) for p, q in reversed(self.outcomes)))

    def largest_loss(self, direction: Direction) -> Ball | None:
        """The largest log p/q, if it is finite."""
        p, q = self.pair(direction).outcomes[0]
        return ball(p / q).log() if q else None

    def quadrature(self, direction: Direction, epsilon: Fraction, digits: int) -> Decimal:
        """The sum in mpmath."""
        with mpmath.workdps(2 * digits + 20):
            a = mpmath.exp(_number(epsilon))
            terms = (_number(p) - a * _number(q) for p, q in self.pair(direction).outcomes)
            return _decimal(mpmath.fsum(term for term in terms if term > 0), digits)

    def renyi(self, direction: Direction, order: Fraction, digits: int) -> Decimal:
        """log Σ p^α q^{1−α} / (α − 1); infinite where an outcome has q = 0."""
        with mpmath.workdps(2 * digits + 20):
            outcomes, alpha = self.pair(direction).outcomes, _number(order)
            if any(p and not q for p, q in outcomes):
                return Decimal("Infinity")
            terms = (_number(p) ** alpha * _number(q) ** (1 - alpha) for p, q in outcomes if p)
            return _decimal(mpmath.log(mpmath.fsum(terms)) / (alpha - 1), digits)


@dataclass(frozen=True)
class DiscreteOutcomes(Directed):
    """The pair in one direction: p and q of each outcome, the ratio falling."""

    outcomes: Outcomes

    def anchor(self) -> Ball:
        """The most likely finite loss under P: nodes lie on it."""
        p, q = max((pair for pair in self.outcomes if pair[0] and pair[1]), default=(Fraction(1), Fraction(1)))
        return ball(p / q).log()

    def hockey_stick(self) -> HockeyStick:
        """The sum, and −q over the outcomes that certainly take part: any set of outcomes gives a line below H."""
        outcomes, anchor = [(ball(p), ball(q)) for p, q in self.outcomes], self.anchor()

        def curve(y: Ball) -> tuple[Ball, Ball]:
            a = (anchor + y).exp()
            height, slope = arb(0), arb(0)
            for p, q in outcomes:
                gain = p - a * q
                height += gain.nonnegative_part()
                if gain > 0:
                    slope -= q
            return height, slope

        return curve

    def span(self, _tail: float) -> tuple[float, float]:
        """All finite losses, and 0."""
        start = self.anchor()
        losses = [float((ball(p / q).log() - start).mid()) for p, q in self.outcomes if p and q]
        below = float((-start).mid()) - 1e-9  # the first node has to lie below loss 0
        return min([below, *losses]), max([below, *losses])


def multisets(outcomes: int, count: int) -> int:
    """How many multisets of `count` out of so many outcomes there are."""
    return math.comb(count + outcomes - 1, outcomes - 1)


def enumerated(releases: tuple[tuple[DiscreteOutcomes, int], ...], epsilon: Fraction, digits: int) -> Enclosure:
    """δ(ε) of a composition, by the sum over all multisets of outcomes of every mechanism."""

    def one(pair: DiscreteOutcomes, count: int) -> Iterator[tuple[Ball, Ball]]:
        """Every multiset's probability under P and under Q, those with p = 0 left out."""
        possible = [(ball(p), ball(q)) for p, q in pair.outcomes if p]
        powers = [
            (
                list(itertools.accumulate([p] * count, lambda a, b: a * b, initial=arb(1))),
                list(itertools.accumulate([q] * count, lambda a, b: a * b, initial=arb(1))),
            )
            for p, q in possible
        ]

        def rest(i: int, left: int, ways: int, p: Ball, q: Ball) -> Iterator[tuple[Ball, Ball]]:
            if i == len(powers) - 1:
                yield ways * p * powers[i][0][left], ways * q * powers[i][1][left]
                return
            choices = 1  # left over taken
            for taken in range(left + 1):
                more = ways * choices
                choices = choices * (left - taken) // (taken + 1)
                yield from rest(i + 1, left - taken, more, p * powers[i][0][taken], q * powers[i][1][taken])

        return rest(0, count, 1, arb(1), arb(1))

    def at_precision() -> Ball:
        a, total = ball(epsilon).exp(), arb(0)
        found = [(arb(1), arb(1))]
        for pair, count in releases:
            part = list(one(pair, count))
            found = [(p * s, q * t) for p, q in found for s, t in part]
        for p, q in found:
            total += (p - a * q).nonnegative_part()
        return total

    return refined("sum over all multisets of outcomes", digits, at_precision)


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


def _close(releases: Releases, direction: Direction) -> Closed | None:
    pairs = tuple((one.pair(direction), count) for one, count in releases if isinstance(one, Discrete))
    size = math.prod(multisets(sum(p > 0 for p, _ in pair.outcomes), count) for pair, count in pairs)
    if len(pairs) < len(releases) or size > MOST_MULTISETS:
        return None
    return lambda epsilon, digits: enumerated(pairs, epsilon, digits)


reference = reference_of("DiscretePair", law, _close)
