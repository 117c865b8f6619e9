"""The reference of the group's sampled Gaussian: g records that are all there or all absent, Poisson sampling.

One invocation is Σ_k Bin(k; g, q) N(k, σ²) against N(0, σ²) for remove and the reverse for add; compositions on the
lattice. With g = 1 it is the sampled Gaussian:

    >>> from dpbench.events import GroupSampledGaussian, SampledGaussian
    >>> from dpbench.references.sampled_gaussian import reference as sampled
    >>> one = reference.delta(GroupSampledGaussian(0.01, 1.0, group_size=1), 0.5, digits=20)
    >>> one.overlaps(sampled.delta(SampledGaussian(0.01, 1.0), 0.5, digits=20))
    True
    >>> four = reference.delta(GroupSampledGaussian(0.01, 1.0, group_size=4), 0.5, digits=20)
    >>> four.lower > 100 * one.upper
    True

One invocation seen by a group of g records: Σ_k Bin(k; g, q) N(k, σ²) against N(0, σ²), in Arb balls.

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
from fractions import Fraction

from flint import arb

from dpbench.events import Event, GroupSampledGaussian
from dpbench.references._enclosure import Ball, ball
from dpbench.references._pair import Inside, SampledLaw, SampledPair
from dpbench.references._quadrature import Mixtures
from dpbench.references._reference import reference_of, sampled
from dpbench.references._release import Direction


@dataclass(frozen=True)
class Group(SampledLaw):
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
    def rest(self) -> Fraction:
        """w_0."""
        return (1 - self.rate) ** self.size

    def pair(self, direction: Direction, /) -> GroupPair:
        """(mixture, N(0, σ²)) for remove, the reverse for add."""
        return GroupPair(self, direction)

    def densities(self) -> Mixtures:
        """The mixture and N(0, σ²)."""
        return Mixtures(tuple(enumerate(self.weights)), ((0, Fraction(1)),), self.variance)


@dataclass(frozen=True)
class GroupPair(SampledPair):
    """The pair in one direction."""

    law: Group
    direction: Direction

    def inside(self, anchor: Ball) -> Inside:
        """By normal tails on either side of t."""
        chances, exact = self.law.weights, self.law.variance
        nothing, always = ball(chances[0]), not chances[0]
        centres = [k for k, weight in enumerate(chances) if k and weight]
        weights = [ball(chances[k]) for k in centres]
        variance, scale = ball(exact), 1 / ball(2 * exact).sqrt()
        logs = [w.log() - ball(Fraction(k * k) / (2 * exact)) for k, w in zip(centres, weights, strict=True)]

        def tails(y: Ball, sign: int) -> tuple[Ball, Ball, Ball]:
            """Growth a − w_0 (add: 1/a − w_0) at y on the side of `sign`, S under N(0, σ²) and under the others."""
            log_growth = y if always else (y.expm1() * nothing).log()
            t = variance * _root(centres, logs, log_growth)
            without, *others = ((sign * (t - k) * scale).erfc() / 2 for k in (0, *centres))
            return log_growth.exp(), without, sum((w * o for w, o in zip(weights, others, strict=True)), arb(0))

        def remove(y: Ball) -> tuple[Ball, Ball]:
            growth, without, with_it = tails(y, 1)
            return with_it - growth * without, -without

        def add(y: Ball) -> tuple[Ball, Ball]:
            growth, without, with_it = tails(-y, -1)
            return (anchor + y).exp() * (growth * without - with_it), -(nothing * without + with_it)

        return remove if self.direction == "remove" else add

    def span(self, tail: float, /) -> tuple[float, float]:
        """The losses at the ends of the noise's reach."""
        reach = math.sqrt(2 * math.log(1 / tail) * float(self.law.variance))
        low, high = (self._from_anchor(x) for x in (-reach, self.law.size + reach))
        return (low, high) if self.direction == "remove" else (-high, -low)

    def _from_anchor(self, x: float) -> float:
        """log(m(x) / w_0), or log m(x) where w_0 = 0, in floats."""
        weights = self.law.weights
        terms = [
            math.log(w) + (2 * k * x - k * k) / (2 * float(self.law.variance))
            for k, w in enumerate(map(float, weights))
            if k and w > 0
        ]
        most = max(terms)
        log_growth = most + math.log(sum(math.exp(term - most) for term in terms))
        if not weights[0]:
            return log_growth
        log_growth -= math.log(weights[0])
        return log_growth if log_growth > 700 else math.log1p(math.exp(log_growth))


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


def law(event: Event) -> Group | None:
    """The law of one event; None where it has zero loss. Raises ValueError for what is not covered."""
    known = sampled(event, GroupSampledGaussian)
    return Group(*known, event.group_size) if known and isinstance(event, GroupSampledGaussian) else None


reference = reference_of("GroupSampledGaussian", law)
