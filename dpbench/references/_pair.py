"""One release as a pair of densities on the real line, and its hockey-stick curve in Arb balls.

    symbol  here                what
    q       rate                probability that the differing record is sampled, a rational in (0, 1]
    σ²      variance            variance of the noise relative to the squared sensitivity, a positive rational
    ν       N(0, σ²)            the release without the record
    μ       (1−q) ν + q N(1, σ²)  the release with the record
    P, Q    direction           remove: P = μ, Q = ν; add: P = ν, Q = μ
    X       P/Q at x ~ Q        the likelihood ratio, a positive random variable with E_Q X = 1
    L       log X               the privacy loss
    H(a)    hinge               sup over sets S of P(S) − a Q(S) = ∫ (p − a q)₊ = E_Q (X − a)₊; δ(ε) = H(e^ε)

The supremum over sets is attained by S = {x : p(x) > a q(x)} (adding a point with p ≤ a q, or leaving out one with
p > a q, cannot increase ∫_S p − a q). With r(x) = e^{(2x−1)/(2σ²)} the densities satisfy μ/ν = 1 − q + q r(x), which
increases in x, so S is a half line whose end t solves an equation in one unknown:

    remove  1 − q + q r(t) = a    S = {x > t}, or the whole line where a ≤ 1 − q
    add     1 − q + q r(t) = 1/a  S = {x < t}, or empty          where a ≥ 1/(1 − q)

and H(a) is a difference of normal tail probabilities at t. Only Arb operations stand between these lines and the
returned ball, so the ball contains H(a) whatever the precision. H is convex, decreasing, H(0) = 1, H(a) ≥ (1 − a)₊,
and has the slope −Q(S).

Losses are measured from an *anchor*, L = anchor + y, with anchor = log(1−q) for remove, −log(1−q) for add and 0 for
q = 1: that is where the loss of a rarely sampled record is concentrated, and no digits are lost there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from flint import arb

from dpbench.references._enclosure import Ball, Enclosure, ball, bits, outward

Direction = Literal["remove", "add"]
DIRECTIONS: tuple[Direction, ...] = ("remove", "add")
MAXIMAL_BITS = 1 << 14
Hinge = Callable[[Ball], tuple[Ball, Ball] | None]


@dataclass(frozen=True)
class Pair:
    """The pair (P, Q) of one release in one direction; all its numbers are exact rationals."""

    rate: Fraction
    variance: Fraction
    direction: Direction

    def anchor(self) -> Ball:
        """The loss from which `hinge` measures, as a ball at the working precision."""
        if self.rate == 1:
            return arb(0)
        value = ball(1 - self.rate).log()
        return value if self.direction == "remove" else -value

    def hinge(self) -> Hinge:
        """The function y -> balls around H(a) and its slope −Q(S) at a = e^{anchor + y}, at the working precision.

        It gives None when the ball of y is too wide to tell on which side of the anchor y lies.
        """
        q, one_less_q = ball(self.rate), ball(1 - self.rate)
        variance, scale = ball(self.variance), 1 / ball(2 * self.variance).sqrt()
        anchor, half, certain = self.anchor(), arb(0.5), self.rate == 1

        def remove(y: Ball) -> tuple[Ball, Ball] | None:
            if not certain and not y > 0:
                return (1 - (anchor + y).exp(), arb(-1)) if y <= 0 else None
            growth = y.expm1() * one_less_q  # a − 1 + q = q r(t)
            t = variance * (y if certain else (growth / q).log()) + half
            without, with_it = (t * scale).erfc() / 2, ((t - 1) * scale).erfc() / 2  # S under N(0, σ²), N(1, σ²)
            # P − aQ = (1−q) N0 + q N1 − (1−q) e^y N0
            return (with_it - y.exp() * without if certain else q * with_it - growth * without), -without

        def add(y: Ball) -> tuple[Ball, Ball] | None:
            if not certain and not y < 0:
                return (arb(0), arb(0)) if y >= 0 else None
            t = variance * (-y if certain else ((-y).expm1() * one_less_q / q).log()) + half
            without, with_it = (-t * scale).erfc() / 2, ((1 - t) * scale).erfc() / 2
            if certain:
                return without - y.exp() * with_it, -with_it
            # P − aQ = N0 − e^y/(1−q) ((1−q) N0 + q N1)
            mixture = one_less_q * without + q * with_it
            return -y.expm1() * without - q / one_less_q * y.exp() * with_it, -mixture

        return remove if self.direction == "remove" else add


def hinge_enclosure(pair: Pair, epsilon: Fraction, digits: int) -> Enclosure:
    """An enclosure of δ(ε) of one release with at least so many correct digits; it raises the precision as needed.

    Raises ArithmeticError when 16384 bits are not enough.
    """
    method = "Arb balls, half line of the likelihood ratio"
    precision = 64 + int(3.33 * digits)
    while precision <= MAXIMAL_BITS:
        with bits(precision):
            found = pair.hinge()(ball(epsilon) - pair.anchor())
            if found is not None and found[0].is_finite():
                height = found[0].nonnegative_part()
                tiny = arb(10) ** -6000
                if height.is_exact() or height.rel_accuracy_bits() > 3.33 * digits + 4 or height < tiny:
                    return outward(height, height, digits + 5, method)
        precision *= 2
    raise ArithmeticError(f"epsilon = {float(epsilon)!r}: {MAXIMAL_BITS} bits do not give {digits} digits for {pair}")
