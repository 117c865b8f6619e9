"""One release seen by a group of g records: Σ_k Bin(k; g, q) N(k, σ²) against N(0, σ²), in Arb balls.

    symbol  here       what
    w_k     weights    Bin(k; g, q), exact rationals; w_0 = (1−q)^g
    r(x)    e^{x/σ²}   so N(k)/N(0) = c_k r^k with c_k = e^{−k²/(2σ²)}
    m(x)    w_0 + Σ_{k≥1} w_k c_k r^k, the ratio of the mixture to N(0, σ²): it increases in x

So the best set S for H(a) = sup P(S) − a Q(S) is a half line: for remove {x > t} with m(t) = a (the whole line where
a ≤ w_0), for add {x < t} with m(t) = 1/a (empty where 1/a ≤ w_0). With v = t/σ² the end solves φ(v) = 0,
φ(v) = log Σ_{k≥1} w_k c_k e^{kv} − log(a − w_0), a convex function with slopes from 1 to g: Newton's method converges
from anywhere, and a root is certain where φ is certainly negative on one side and positive on the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from flint import arb

from dpbench.references import _quadrature
from dpbench.references._enclosure import Ball, ball
from dpbench.references._pair import spread
from dpbench.references._release import Direction, Hinge


@dataclass(frozen=True)
class Group:
    """The law: rate q in (0, 1], variance σ² > 0 and the group's size g >= 1."""

    rate: Fraction
    variance: Fraction
    size: int

    @property
    def weights(self) -> tuple[Fraction, ...]:
        """w_0, ..., w_g."""
        q, g = self.rate, self.size
        return tuple(math.comb(g, k) * q**k * (1 - q) ** (g - k) for k in range(g + 1))

    @property
    def heavy(self) -> bool:
        """No: normal tails."""
        return False

    def pair(self, direction: Direction) -> GroupPair:
        """(mixture, N(0, σ²)) for remove, the reverse for add."""
        return GroupPair(self.weights, self.variance, direction)

    def largest_loss(self, direction: Direction) -> Ball | None:
        """−g log(1−q) for add."""
        return None if direction == "remove" or self.rate == 1 else -self.size * ball(1 - self.rate).log()

    def quadrature(self, direction: Direction, epsilon: Fraction, digits: int) -> Decimal:
        """∫ (p − e^ε q)₊ dx."""
        return _quadrature.hockey_stick(self._densities(), direction, epsilon, digits)

    def renyi(self, direction: Direction, order: Fraction, digits: int) -> Decimal:
        """log ∫ p^α q^{1−α} dx / (α − 1)."""
        return _quadrature.renyi(self._densities(), direction, order, digits)

    def _densities(self) -> _quadrature.Mixtures:
        return _quadrature.Mixtures(tuple(enumerate(self.weights)), ((0, Fraction(1)),), self.variance)


@dataclass(frozen=True)
class GroupPair:
    """The pair in one direction."""

    weights: tuple[Fraction, ...]
    variance: Fraction
    direction: Direction

    def anchor(self) -> Ball:
        """log w_0 for remove, −log w_0 for add, 0 where w_0 = 0."""
        if not self.weights[0]:
            return arb(0)
        value = ball(self.weights[0]).log()
        return value if self.direction == "remove" else -value

    def hinge(self) -> Hinge:
        """H(a) and its slope, by normal tails on either side of t."""
        nothing, always = ball(self.weights[0]), not self.weights[0]
        centres = [k for k, weight in enumerate(self.weights) if k and weight]
        weights = [ball(self.weights[k]) for k in centres]
        variance, scale, anchor = ball(self.variance), 1 / ball(2 * self.variance).sqrt(), self.anchor()
        logs = [w.log() - ball(Fraction(k * k) / (2 * self.variance)) for k, w in zip(centres, weights, strict=True)]

        def remove(y: Ball) -> tuple[Ball, Ball] | None:
            if not always and not y > 0:
                return (1 - (anchor + y).exp(), arb(-1)) if y <= 0 else None
            log_growth = y if always else (y.expm1() * nothing).log()  # of a − w_0
            t = variance * _root(centres, logs, log_growth)
            without = (t * scale).erfc() / 2
            with_it = sum((w * ((t - k) * scale).erfc() / 2 for k, w in zip(centres, weights, strict=True)), arb(0))
            return with_it - log_growth.exp() * without, -without

        def add(y: Ball) -> tuple[Ball, Ball] | None:
            if not always and not y < 0:
                return (arb(0), arb(0)) if y >= 0 else None
            log_growth = -y if always else ((-y).expm1() * nothing).log()  # of 1/a − w_0
            t = variance * _root(centres, logs, log_growth)
            without = (-t * scale).erfc() / 2
            with_it = sum((w * ((k - t) * scale).erfc() / 2 for k, w in zip(centres, weights, strict=True)), arb(0))
            a = (anchor + y).exp()
            return a * (log_growth.exp() * without - with_it), -(nothing * without + with_it)

        return remove if self.direction == "remove" else add

    def span(self, tail: float) -> tuple[float, float]:
        """The losses at the ends of the noise's reach."""
        variance, g = float(self.variance), len(self.weights) - 1
        reach = math.sqrt(2 * math.log(1 / tail) * variance)
        low, high = (self._from_anchor(x) for x in (-reach, g + reach))
        return (low, high) if self.direction == "remove" else (-high, -low)

    def _from_anchor(self, x: float) -> float:
        """log(m(x) / w_0), or log m(x) where w_0 = 0, in floats."""
        terms = [
            math.log(w) + (2 * k * x - k * k) / (2 * float(self.variance))
            for k, w in enumerate(float(w) for w in self.weights)
            if k and w > 0
        ]
        most = max(terms)
        log_growth = most + math.log(sum(math.exp(term - most) for term in terms))
        if not self.weights[0]:
            return log_growth
        log_growth -= math.log(self.weights[0])
        return log_growth if log_growth > 700 else math.log1p(math.exp(log_growth))

    def spread(self, y: float) -> float:
        """As of one record with the chance that anyone of the group is sampled."""
        return spread(float(1 - self.weights[0]), y)

    def log_density(self, _y: float) -> float:
        """Not known: cells are touched in the middle."""
        return 0.0

    def period(self) -> Fraction | None:
        """No atoms."""
        return None


def _root(centres: list[int], logs: list[Ball], log_growth: Ball) -> Ball:
    """A ball that contains the v with log Σ exp(logs + k v) = log_growth; not finite where none can be proved."""

    def phi(v: Ball) -> tuple[Ball, Ball]:
        terms = [(base + k * v).exp() for k, base in zip(centres, logs, strict=True)]
        total = sum(terms, arb(0))
        slope = sum((k * term for k, term in zip(centres, terms, strict=True)), arb(0)) / total
        return total.log() - log_growth, slope

    if len(centres) == 1:
        return (log_growth - logs[0]) / centres[0]
    # where the largest of the terms alone is as large as log_growth: φ >= 0 there, by at most log g
    v = min(
        ((log_growth - base) / k for k, base in zip(centres, logs, strict=True)), key=lambda b: float(b.mid())
    ).mid()
    for _ in range(60):
        height, slope = phi(v)
        if not height.is_finite() or height.contains(0):
            break
        v = (v - height / slope).mid()
    error = phi(v)[0].abs_upper() * 16  # slopes are 1 or more, so the root is at most |φ(v)| away
    low, high = phi(v - error)[0], phi(v + error)[0]
    return v + arb(0, error) if low <= 0 and high >= 0 else arb.nan()
