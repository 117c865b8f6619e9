"""The reference of fixed-size batches (sampling without replacement) when one record is replaced: two-sided bounds.

No pair of datasets is the worst for every ε, so the true worst case is enclosed from two sides. From below by datasets
that exist, with records of norm 1 and batches of a fixed size, of which the replaced one is a part with probability q:
  - all other records are 0: (1−q) N(0, σ²) + q N(1, σ²) against (1−q) N(0, σ²) + q N(−1, σ²);
  - all other records are −1, and a record −1 takes the place of +1: every batch sums to the same but one that holds the
    record, which has 2 more: (1−q) N(0, σ²) + q N(2, σ²) against N(0, σ²); in the other order, the reverse.
The lower end is the largest δ of these, each a whole composition. The upper end is that of the dominating pair.
`delta` gives the lower end of the one and the upper end of the other.

    >>> from dpbench.events import SampledGaussian
    >>> event = SampledGaussian(0.01, 2.0, adjacency="replace_one", sampler="without_replacement")
    >>> found = reference.delta((event, 2), 0.02, cells=1024)
    >>> bool(found.lower < found.upper)
    True

One invocation of a fixed-size batch, replace-one neighbours: the pair that provably dominates, in Arb balls.

Let μ = (1−q) μ₀ + q μ₁ be the mechanism on the data with the record and μ' = (1−q) μ₀ + q μ₁' on those with another one
in its place: μ₀ the batches without it. Replacing one record moves the sum by at most 2, and a batch with the record is
matched with one in which any other record stands in for it, again one replacement. For a >= 1, by convexity of the
hockey stick (Balle, Barthe and Gaboardi 2018, Theorem 2) and with b = 1 + (a − 1)/q,

    H_a(μ‖μ') <= q H_b(N(2, σ²) ‖ N(0, σ²)) = H_a((1−q) N(0, σ²) + q N(2, σ²) ‖ N(0, σ²)),

the sampled Gaussian's curve for remove with noise σ/2. For a < 1, H_a(μ‖μ') = 1 − a + a H_{1/a}(μ'‖μ), where the same
bound holds at 1/a: this is the sampled Gaussian's curve for *add*. So (Zhu, Dong and Wang 2022)

    h(a) = H^remove(a) for a >= 1,  H^add(a) for a < 1

bounds every neighbouring pair. It is a pair's curve itself: both parts are convex and falling, they meet at a = 1 in
the total variation, h >= (1 − a)₊, h(0) = 1, h → 0, and the slope jumps upward there, from −[(1−q)(1−τ) + qτ] to −τ,
with τ = P(N(0, 1) > 1/σ) <= ½: an atom at loss 0. Dominating pairs compose (the same paper), so the lattice's upper end
for h bounds every composition. It is its own reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from dpbench.events import Event, SampledGaussian
from dpbench.references._enclosure import Ball, Enclosure, Real, ball, rational
from dpbench.references._pair import Sampled, from_anchor, spread
from dpbench.references._reference import (
    CELLS,
    Curve,
    Reference,
    Subject,
    Which,
    directions,
    inverse,
    reference_of,
    sampled,
)
from dpbench.references._release import Direction, HockeyStick, Law, Symmetric
from dpbench.references.sampled_gaussian_replace_one import Replaced


@dataclass(frozen=True)
class FixedSizeBound(Symmetric):
    """The law, and the pair in either direction: rate q in (0, 1], variance σ² > 0."""

    rate: Fraction
    variance: Fraction

    @property
    def _sampled(self) -> Sampled:
        """N(2, σ²) against N(0, σ²) in units of 2."""
        return Sampled(self.rate, self.variance / 4)

    def quadrature(self, _direction: Direction, epsilon: Fraction, digits: int) -> Decimal:
        """h(e^ε) from the densities."""
        return self._sampled.quadrature("remove" if epsilon >= 0 else "add", epsilon, digits)

    def anchor(self) -> Ball:
        """0, the loss of the atom."""
        return ball(0)

    def hockey_stick(self) -> HockeyStick:
        """h(a) and its slope from the sampled Gaussian's pairs; None where y may be on either side of 0."""
        pairs = [self._sampled.pair(direction) for direction in ("remove", "add")]
        sides = [(pair.hockey_stick(), pair.anchor()) for pair in pairs]

        def curve(y: Ball) -> tuple[Ball, Ball] | None:
            if not y >= 0 and not y < 0:
                return None
            known, start = sides[0] if y >= 0 else sides[1]
            return known(y - start)

        return curve

    def span(self, tail: float) -> tuple[float, float]:
        """The losses at the ends of the noise's reach."""
        rate = float(self.rate)
        most = max(map(abs, self._sampled.pair("remove").span(tail)))
        if rate == 1:
            return -most, most
        return -most, most + from_anchor(rate, 0.0)

    def spread(self, y: float) -> float:
        """As of the sampled Gaussian where its loss is 0, and coarser on both sides."""
        rate = float(self.rate)
        return 1.0 if rate == 1 else max(1.0, spread(rate, abs(y) + from_anchor(rate, 0.0)))


def _reference(law: Callable[[Fraction, Fraction], Law]) -> Reference:
    def of_event(event: Event) -> Law | None:
        known = sampled(event, SampledGaussian, "replace_one", "without_replacement")
        return law(*known) if known else None

    return reference_of("SampledGaussian", of_event)


def _between(below: Iterable[Enclosure], above: Enclosure) -> Enclosure:
    lower = max(enclosure.lower for enclosure in below)
    return Enclosure(lower, above.upper, "below: two explicit pairs of datasets; above: the dominating pair")


@dataclass(frozen=True)
class BetweenCurves:
    """The truth lies between the largest lower end of the curves `below` and the upper end of the curve `above`."""

    below: tuple[Curve, ...]
    above: Curve

    def delta(self, epsilon: Real, digits: int = 30, *, direction: Which = "both") -> Enclosure:
        """The enclosure at ε. Replacing a record is symmetric: every direction has the same worst case."""
        directions(direction)
        below = (curve.delta(epsilon, digits) for curve in self.below)
        return _between(below, self.above.delta(epsilon, digits, direction="remove"))

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
        """The enclosure of the worst case's δ(ε); its width is the gap between datasets and dominating pair."""
        directions(direction)
        below = (each.delta(subject, epsilon, digits, cells=cells) for each in self.below)
        return _between(below, self.above.delta(subject, epsilon, digits, direction="remove", cells=cells))

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
        """δ(ε) of the dominating pair of one invocation by mpmath, an upper end; exact for one invocation."""
        directions(direction)
        rational("epsilon", epsilon)
        return self.above.quadrature(event, epsilon, digits, direction="remove")


reference = Between(
    "SampledGaussian",
    (_reference(Replaced), _reference(lambda rate, variance: Sampled(rate, variance / 4))),
    _reference(FixedSizeBound),
)
