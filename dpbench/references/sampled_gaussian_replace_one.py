"""The reference of the sampled Gaussian when one record is replaced by another, Poisson sampling.

The worst pair: a record that moves the sum by +1 is replaced by one that moves it by −1, each with noise σ:
(1−q) N(0, σ²) + q N(1, σ²) against (1−q) N(0, σ²) + q N(−1, σ²), its own reverse. Compositions on the lattice.
With q = 1 it is a Gaussian of sensitivity 2:

    >>> from dpbench.events import Gaussian, SampledGaussian
    >>> from dpbench.references.gaussian import reference as gaussian
    >>> event = SampledGaussian(1.0, 3.0, adjacency="replace_one")
    >>> reference.delta(event, 0.5, digits=20).overlaps(gaussian.delta(Gaussian(1.5), 0.5, digits=20))
    True

One invocation when a record is replaced: (1−q) N(0, σ²) + q N(1, σ²) against (1−q) N(0, σ²) + q N(−1, σ²).

With u = e^{x/σ²} and c = e^{−1/(2σ²)} the ratio of the densities is m = (1−q + q c u) / (1−q + q c/u): it increases in
x from 0 to infinity, so the best set for H(a) is the half line {x > t} with m(t) = a, at every a > 0. There
q c u² + (1−q)(1−a) u − a q c = 0, which has one positive root. Mirrored, x → −x, the pair is its own reverse: both
directions have the same curve, and H(a) = 1 − a + a H(1/a).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from dpbench.events import Event, SampledGaussian
from dpbench.references._enclosure import Ball, ball
from dpbench.references._pair import from_anchor, spread
from dpbench.references._quadrature import Mixtures
from dpbench.references._reference import reference_of, sampled
from dpbench.references._release import HockeyStick, Symmetric


@dataclass(frozen=True)
class Replaced(Symmetric):
    """The law, and the pair in either direction: rate q in (0, 1] and variance σ² > 0."""

    rate: Fraction
    variance: Fraction

    def densities(self) -> Mixtures:
        """Both mixtures."""
        first, second = (((0, 1 - self.rate), (sign, self.rate)) for sign in (1, -1))
        return Mixtures(first, second, self.variance)

    def anchor(self) -> Ball:
        """0: where the record is rarely sampled, the loss is near 0."""
        return ball(0)

    def hockey_stick(self) -> HockeyStick:
        """H(a) and its slope, by normal tails above t."""
        q, rest = ball(self.rate), ball(1 - self.rate)
        variance, scale = ball(self.variance), 1 / ball(2 * self.variance).sqrt()
        c = (-1 / (2 * variance)).exp()

        def upper(y: Ball) -> tuple[Ball, Ball]:  # y >= 0
            half = rest * y.expm1() / 2  # (1−q)(a−1)/2
            root = (half + (half * half + y.exp() * (q * c) ** 2).sqrt()) / (q * c)
            t = variance * root.log()
            middle, right, left = (((t - k) * scale).erfc() / 2 for k in (0, 1, -1))
            below = rest * middle + q * left  # Q(S)
            # P − aQ = q (N1 − N−1)(S) − (a − 1) Q(S)
            return q * (right - left) - y.expm1() * below, -below

        def curve(y: Ball) -> tuple[Ball, Ball] | None:
            if y >= 0:
                return upper(y)
            if not y < 0:
                return None
            height, slope = upper(-y)  # of H at 1/a
            a = y.exp()
            return a * height - y.expm1(), height - 1 - slope / a

        return curve

    def span(self, tail: float) -> tuple[float, float]:
        """The losses at the ends of the noise's reach."""
        variance, q = float(self.variance), float(self.rate)
        reach = math.sqrt(2 * math.log(1 / tail) * variance)  # P beyond 1 + reach, Q beyond −1 − reach
        high = from_anchor(q, (1 + 2 * reach) / (2 * variance)) - from_anchor(q, (-3 - 2 * reach) / (2 * variance))
        return -high, high

    def spread(self, y: float) -> float:
        """As of one record that comes or goes, on both sides of 0."""
        return spread(float(self.rate), y)


def law(event: Event) -> Replaced | None:
    """The law of one event; None where it has zero loss. Raises ValueError for what is not covered."""
    known = sampled(event, SampledGaussian, "replace_one", "poisson")
    return Replaced(*known) if known else None


reference = reference_of("SampledGaussian", law)
