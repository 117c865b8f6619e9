"""The reference of fixed-size batches (sampling without replacement) when one record is replaced: what lies between.

No pair of datasets is the worst for every ε, so the true worst case is enclosed from two sides. From below by datasets
that exist, with records of norm 1 and batches of a fixed size, of which the replaced one is a part with probability q:
  - all other records are 0: (1−q) N(0, σ²) + q N(1, σ²) against (1−q) N(0, σ²) + q N(−1, σ²);
  - all other records are −1, and a record −1 takes the place of +1: every batch sums to the same but one that holds the
    record, which has 2 more: (1−q) N(0, σ²) + q N(2, σ²) against N(0, σ²); in the other order, the reverse.
The lower end is the largest δ of these, each a whole composition. The upper end is that of the dominating pair
(`_fixed_size.py`). `delta` gives the lower end of the one and the upper end of the other.

    >>> from dpbench.events import SampledGaussian
    >>> event = SampledGaussian(0.01, 2.0, adjacency="replace_one", sampler="without_replacement")
    >>> found = reference.delta((event, 2), 0.02, cells=1024)
    >>> bool(found.lower < found.upper)
    True
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from dpbench.events import Event, SampledGaussian
from dpbench.references._enclosure import Enclosure, Real, rational
from dpbench.references._fixed_size import FixedSizeBound
from dpbench.references._pair import Sampled
from dpbench.references._reference import CELLS, Curve, Reference, Subject, Which, directions, inverse, parts
from dpbench.references._release import Law, Releases, counted
from dpbench.references._replaced import Replaced


def rates(event: Event) -> tuple[Fraction, Fraction] | None:
    """q and σ² of one event; None where it tells nothing. Raises ValueError for what is not covered."""
    if not isinstance(event, SampledGaussian):
        raise ValueError(f"event = {event!r}: expected a SampledGaussian")
    if (event.adjacency, event.sampler) != ("replace_one", "without_replacement"):
        given = f"{event.adjacency}, {event.sampler}"
        raise ValueError(f"adjacency, sampler = {given}: expected replace_one, without_replacement")
    rate = Fraction(event.sampling_rate)
    if not rate or math.isinf(event.noise_multiplier):
        return None
    return rate, Fraction(event.noise_multiplier) ** 2


def _zeros(rate: Fraction, variance: Fraction) -> Law:
    return Replaced(rate, variance)


def _opposite(rate: Fraction, variance: Fraction) -> Law:
    return Sampled(rate, variance / 4)


def _reference(law: Any) -> Reference:
    def releases(subject: Subject) -> Releases:
        found = ((rates(event), count) for event, count in parts(subject))
        return counted((law(*known), count) for known, count in found if known)

    return Reference("SampledGaussian", releases)


@dataclass(frozen=True)
class BetweenCurves:
    """Curves whose largest lower end, and one whose upper end, the truth lies between."""

    below: tuple[Curve, ...]
    above: Curve

    def delta(self, epsilon: Real, digits: int = 30, *, direction: Which = "both") -> Enclosure:
        """The enclosure at ε. Replacing a record is symmetric: every direction has the same worst case."""
        directions(direction)
        lower = max(curve.delta(epsilon, digits).lower for curve in self.below)
        upper = self.above.delta(epsilon, digits, direction="remove").upper
        return Enclosure(lower, upper, "below: two explicit pairs of datasets; above: the dominating pair")

    def epsilon(self, delta: Real, digits: int = 12, *, direction: Which = "both") -> Enclosure:
        """An enclosure of the smallest ε >= 0 with δ(ε) <= delta."""
        return inverse(lambda epsilon: self.delta(epsilon, digits + 5, direction=direction), delta, digits)


@dataclass(frozen=True)
class Between:
    """A reference whose two ends come from different pairs, each with a reference of its own."""

    event: str
    below: tuple[Reference, ...]
    above: Reference

    def delta(
        self, subject: Subject, epsilon: Real, digits: int = 30, *, direction: Which = "both", cells: int = CELLS
    ) -> Enclosure:
        """The enclosure of the worst case's δ(ε); as wide as explicit datasets and proof are apart."""
        directions(direction)
        lower = max(each.delta(subject, epsilon, digits, cells=cells).lower for each in self.below)
        upper = self.above.delta(subject, epsilon, digits, direction="remove", cells=cells).upper
        return Enclosure(lower, upper, "below: two explicit pairs of datasets; above: the dominating pair")

    def epsilon(
        self, subject: Subject, delta: Real, digits: int = 12, *, direction: Which = "both", cells: int = CELLS
    ) -> Enclosure:
        """An enclosure of the smallest ε >= 0 with δ(ε) <= delta."""
        return self.curve(subject, smallest=float(delta), cells=cells).epsilon(delta, digits, direction=direction)

    def curve(self, subject: Subject, *, smallest: float = 1e-10, cells: int = CELLS) -> BetweenCurves:
        """All of δ(ε) at once."""
        below = tuple(each.curve(subject, smallest=smallest, cells=cells) for each in self.below)
        return BetweenCurves(below, self.above.curve(subject, smallest=smallest, direction="remove", cells=cells))

    def quadrature(self, event: Event, epsilon: Real, digits: int = 30, *, direction: Which = "both") -> Decimal:
        """δ(ε) of the dominating pair of one release by mpmath, an upper end; exact for one release."""
        directions(direction)
        rational("epsilon", epsilon)
        return self.above.quadrature(event, epsilon, digits, direction="remove")


reference = Between("SampledGaussian", (_reference(_zeros), _reference(_opposite)), _reference(FixedSizeBound))
