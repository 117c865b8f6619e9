"""One mechanism invocation as a pair of densities on the real line, and its hockey-stick curve in Arb balls.

    symbol  here                what
    q       rate                probability that the differing record is sampled, a rational in (0, 1]
    σ²      variance            variance of the noise relative to the squared sensitivity, a positive rational
    ν       N(0, σ²)            the mechanism without the record
    μ       (1−q) ν + q N(1, σ²)  the mechanism with the record
    P, Q    direction           remove: P = μ, Q = ν; add: P = ν, Q = μ
    X       P/Q at x ~ Q        the likelihood ratio, a positive random variable with E_Q X = 1
    L       log X               the privacy loss
    H(a)    hockey_stick        sup over sets S of P(S) − a Q(S) = ∫ (p − a q)₊ = E_Q (X − a)₊; δ(ε) = H(e^ε)

The supremum over sets is attained by S = {x : p(x) > a q(x)} (adding a point with p ≤ a q, or leaving out one with
p > a q, cannot increase ∫_S p − a q). With r(x) = e^{(2x−1)/(2σ²)} the densities satisfy μ/ν = 1 − q + q r(x), which
increases in x, so S is a half line whose end t solves an equation in one unknown:

    remove  1 − q + q r(t) = a    S = {x > t}, or the whole line where a ≤ 1 − q
    add     1 − q + q r(t) = 1/a  S = {x < t}, or empty          where a ≥ 1/(1 − q)

and H(a) is a difference of normal tail probabilities at t. Only Arb operations stand between these lines and the
returned ball, so the ball contains H(a) whatever the precision. H is convex, decreasing, H(0) = 1, H(a) ≥ (1 − a)₊,
and has the slope −Q(S).

Losses are measured from an *anchor*, L = anchor + y, with anchor = log(1−q) for remove, −log(1−q) for add and 0 for
q = 1: that is where the loss of a rarely sampled record is concentrated, and no digits are lost there. Groups and
random sensitivities are like that, with another chance 1−q that nobody is sampled and another μ.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from flint import arb

from dpbench.references._enclosure import Ball, ball
from dpbench.references._quadrature import Mixtures
from dpbench.references._release import Directed, Direction, HockeyStick, Law

COARSENING = 4  # cells may grow to 1/COARSENING of the growth of the loss's own scale
Inside = Callable[[Ball], tuple[Ball, Ball]]


class SampledLaw(Law):
    """A law of μ = rest · ν + ... against ν or the reverse, whose ratio μ/ν increases from `rest` without an end."""

    rate: Fraction
    variance: Fraction

    @property
    def rest(self) -> Fraction:
        """The probability that no differing record is sampled."""
        return 1 - self.rate

    def largest_loss(self, direction: Direction, /) -> Ball | None:
        """−log(rest) for add, since ν ≤ μ / rest."""
        return None if direction == "remove" or not self.rest else -ball(self.rest).log()


class SampledPair(Directed):
    """The pair of such a law in one direction; `inside` gives H on the anchor's side where S is a half line."""

    law: Any
    direction: Direction

    @abstractmethod
    def inside(self, anchor: Ball) -> Inside:
        """H(a) and its slope at y > 0 for remove, y < 0 for add, and anywhere where `rest` is 0."""

    def anchor(self) -> Ball:
        """log(rest) for remove, −log(rest) for add, 0 where it is 0."""
        value = ball(self.law.rest).log() if self.law.rest else arb(0)
        return value if self.direction == "remove" else -value

    def hockey_stick(self) -> HockeyStick:
        """The function y -> balls around H(a) and its slope −Q(S) at a = e^{anchor + y}, at the working precision.

        It gives None when the ball of y is too wide to decide on which side of the anchor y lies.
        """
        remove, certain, anchor = self.direction == "remove", not self.law.rest, self.anchor()
        inside = self.inside(anchor)

        def curve(y: Ball) -> tuple[Ball, Ball] | None:
            beyond = y if remove else -y
            if certain or beyond > 0:
                return inside(y)
            if not beyond <= 0:
                return None
            return (1 - (anchor + y).exp(), arb(-1)) if remove else (arb(0), arb(0))

        return curve

    def spread(self, y: float, /) -> float:
        """dL / d log r at y, over what it is at r = 1, over COARSENING."""
        return spread(float(1 - self.law.rest), y)


def from_anchor(q: float, log_ratio: float) -> float:
    """log(1 − q + q e^{log_ratio}) − log(1 − q), or `log_ratio` for q = 1, in floats."""
    if q == 1:
        return log_ratio
    if log_ratio > 700:
        return log_ratio + math.log(q / (1 - q))
    return math.log1p(q / (1 - q) * math.exp(log_ratio))


def spread(q: float, y: float) -> float:
    """How wide cells may be at distance y from the anchor of a mechanism with rate q."""
    return 1.0 if q == 1 else -math.expm1(-abs(y)) / (COARSENING * q)


@dataclass(frozen=True)
class Sampled(SampledLaw):
    """The law of one sampled Gaussian: rate q in (0, 1] and variance σ² > 0, exact rationals."""

    rate: Fraction
    variance: Fraction

    def pair(self, direction: Direction, /) -> Pair:
        """(μ, ν) for remove, (ν, μ) for add."""
        return Pair(self, direction)

    def densities(self) -> Mixtures:
        """μ and ν."""
        return Mixtures(((0, self.rest), (1, self.rate)), ((0, Fraction(1)),), self.variance)


@dataclass(frozen=True)
class Pair(SampledPair):
    """The pair (P, Q) of one sampled Gaussian in one direction."""

    law: Sampled
    direction: Direction

    def inside(self, _anchor: Ball) -> Inside:
        """By normal tails on either side of t."""
        q, one_less_q, certain = ball(self.law.rate), ball(self.law.rest), not self.law.rest
        variance, half = ball(self.law.variance), arb(0.5)
        scale = 1 / (2 * variance).sqrt()

        def remove(y: Ball) -> tuple[Ball, Ball]:
            growth = y.expm1() * one_less_q  # a − 1 + q = q r(t)
            t = variance * (y if certain else (growth / q).log()) + half
            without, with_it = (t * scale).erfc() / 2, ((t - 1) * scale).erfc() / 2  # S under N(0, σ²), N(1, σ²)
            # P − aQ = (1−q) N0 + q N1 − (1−q) e^y N0
            return (with_it - y.exp() * without if certain else q * with_it - growth * without), -without

        def add(y: Ball) -> tuple[Ball, Ball]:
            t = variance * (-y if certain else ((-y).expm1() * one_less_q / q).log()) + half
            without, with_it = (-t * scale).erfc() / 2, ((1 - t) * scale).erfc() / 2
            if certain:
                return without - y.exp() * with_it, -with_it
            # P − aQ = N0 − e^y/(1−q) ((1−q) N0 + q N1)
            mixture = one_less_q * without + q * with_it
            return -y.expm1() * without - q / one_less_q * y.exp() * with_it, -mixture

        return remove if self.direction == "remove" else add

    def span(self, tail: float, /) -> tuple[float, float]:
        """The losses that the noise passes below 0, and above 1, with a probability of about `tail`."""
        q, variance = float(self.law.rate), float(self.law.variance)
        reach = math.sqrt(2 * math.log(1 / tail) * variance)  # of the noise, around 0 and around 1
        low, high = (
            from_anchor(q, exponent)
            for exponent in ((-1 - 2 * reach) / (2 * variance), (1 + 2 * reach) / (2 * variance))  # log r
        )
        return (low, high) if self.direction == "remove" else (-high, -low)

    def log_density(self, y: float, /) -> float:
        """Of x = σ² log r + 1/2 with log r at this loss, a normal density, times dx/dy."""
        q, variance = float(self.law.rate), float(self.law.variance)
        sign, power = (1, 1) if self.direction == "remove" else (-1, 2)
        if q == 1:
            return -((variance * sign * y + 0.5) ** 2) / (2 * variance) - power * y
        if y == 0:
            return -math.inf
        size = abs(y)
        log_growth = size if size > 30 else math.log(math.expm1(size))
        t = variance * (log_growth + math.log((1 - q) / q)) + 0.5
        return -t * t / (2 * variance) - math.log(-math.expm1(-size)) - power * y
