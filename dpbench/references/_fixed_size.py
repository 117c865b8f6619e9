"""One release of a fixed-size batch, replace-one neighbours: the pair that provably dominates, in Arb balls.

Let μ = (1−q) μ₀ + q μ₁ be the release on the data with the record and μ' = (1−q) μ₀ + q μ₁' on those with another one
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

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from dpbench.references._enclosure import Ball, ball
from dpbench.references._pair import Sampled, from_anchor, spread
from dpbench.references._release import Direction, Hinge


@dataclass(frozen=True)
class FixedSizeBound:
    """The law, and the pair in either direction: rate q in (0, 1], variance σ² > 0."""

    rate: Fraction
    variance: Fraction

    @property
    def heavy(self) -> bool:
        """No: normal tails."""
        return False

    @property
    def _sampled(self) -> Sampled:
        """N(2, σ²) against N(0, σ²) in units of 2."""
        return Sampled(self.rate, self.variance / 4)

    def pair(self, _direction: Direction) -> FixedSizeBound:
        """The same in both directions."""
        return self

    def largest_loss(self, _direction: Direction) -> Ball | None:
        """There is none."""
        return None

    def quadrature(self, _direction: Direction, epsilon: Fraction, digits: int) -> Decimal:
        """h(e^ε) from the densities."""
        return self._sampled.quadrature("remove" if epsilon >= 0 else "add", epsilon, digits)

    def renyi(self, _direction: Direction, order: Fraction, _digits: int) -> Decimal:
        """Not offered: the pair is known by its curve only."""
        raise ValueError(f"order = {float(order)!r}: expected no Rényi divergence of a pair known by its curve only")

    def anchor(self) -> Ball:
        """0, where the atom is."""
        return ball(0)

    def hinge(self) -> Hinge:
        """h(a) and its slope from the sampled Gaussian's pairs; None where y may be on either side of 0."""
        pairs = [self._sampled.pair(direction) for direction in ("remove", "add")]
        hinges = [(pair.hinge(), pair.anchor()) for pair in pairs]

        def hinge(y: Ball) -> tuple[Ball, Ball] | None:
            if not y >= 0 and not y < 0:
                return None
            known, start = hinges[0] if y >= 0 else hinges[1]
            return known(y - start)

        return hinge

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

    def log_density(self, _y: float) -> float:
        """Not known: cells are touched in the middle."""
        return 0.0

    def period(self) -> Fraction | None:
        """One atom only, at the anchor."""
        return None
