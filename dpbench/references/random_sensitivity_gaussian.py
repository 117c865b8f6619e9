"""The reference of the Gaussian of random sensitivity (norms estimated by projections), Poisson sampling.

With Z = (χ²_r / r)^(−1/2) one invocation is, for remove, (Z, (1−q) N(0, σ²) + q N(Z, σ²)) against (Z, N(0, σ²)), and
for add the reverse (jl2021, Lemma 4.3 and Theorem 4.1). This encloses the curve of the dominating pair; the mechanism
itself may do better. A large Z shows the record, and its tail is heavy, so δ falls slowly in ε; with more projections
it comes near the sampled Gaussian. Compositions on the lattice.

    >>> from dpbench.events import RandomSensitivityGaussian, SampledGaussian
    >>> from dpbench.references.sampled_gaussian import reference as sampled
    >>> few, many = (reference.delta(RandomSensitivityGaussian(0.01, 1.0, r), 3.0, digits=8) for r in (2, 1000))
    >>> f"{few.upper:.3g}, {many.upper:.3g}, {sampled.delta(SampledGaussian(0.01, 1.0), 3.0, digits=8).upper:.3g}"
    '0.000635, 2.46e-15, 1.04e-15'

One invocation of random sensitivity: the average over Z of the sampled Gaussian's hockey-stick curve, in Arb balls.

    symbol  here         what
    r       projections  Z = √(r/W), W ~ χ²_r
    q, σ²   rate, variance
    ℓ       log(b)       with b = (a − 1 + q)/q for remove, b = (1/a − 1 + q)/q for add
    T0, T1               tails of N(0, σ²) and N(z, σ²) beyond the t at which N(z)/N(0) = b: t = σ² ℓ/z + z/2
    g(u)                 the density of u = log W: e^{ru/2 − e^u/2} / (2^{r/2} Γ(r/2))

Z is released too, so H(a) = E_Z H_z(a), and with it fixed the pair is a sampled Gaussian with N(z, σ²). There
H_z(a) = q T1 − (a − 1 + q) T0 = q (1 − K(z)) for remove, K(z) = (1 − T1) + b T0; for add, as for any reversed pair, it
is 1 − a + a times remove's H_z(1/a), which is a q (b − K(z)). So one average is needed, G = E K(Z) =
∫ g(u) K(√r e^{−u/2}) du, and its part with T0 for the slope.

**The sum.** G is enclosed by the trapezoidal sum h Σ_n g(nh) K(z_n). With s0, s1 = (σℓ/z ± z/(2σ))/√2 both parts of
K = ½ erfc(−s1) + ½ b erfc(s0) are entire functions of z and 1/z, so F(u) = g K is analytic for |Im u| < π/2, and the
sum is within 2N/(e^{2πd/h} − 1) of G for any d < π/2 and N >= sup_{|v|<d} ∫ |F(u + iv)| du (Trefethen and Weideman
2014, Theorem 5.1). That supremum: |g(u + iv)| integrates to (cos v)^{−r/2}, for |e^{−e^{u+iv}/2}| = e^{−e^u cos(v)/2}.
For Re s >= 0, |erfc(s)| <= |e^{−s²}|, since erfc(s) e^{s²} = (2/√π) ∫_0^∞ e^{−x²−2xs} dx, and for Re s < 0 therefore
|erfc(s)| <= 2 + |e^{−s²}|. At z e^{−iv/2}, with A = σℓ/(z√2) and B = z/(2σ√2): Re s0 = (A + B) cos(v/2), Re(s0²) =
(A² + B²) cos v + ℓ/2 and A² + B² >= 2|AB| = |ℓ|/2, so |e^{−s0²}| <= e^{−ℓ/2 − |ℓ| cos(v)/2}; likewise |e^{−s1²}| <=
e^{ℓ/2 − |ℓ| cos(v)/2}. Adding up, for ℓ >= 0 (Re s0 > 0) |K| <= 1 + e^{ℓ(1−cos v)/2}, and for ℓ < 0 (b = e^ℓ < 1,
Re(−s1) > 0) |K| <= b + e^{ℓ(1+cos v)/2} <= 2. So N = (1 + e^{max(ℓ,0)(1−cos d)/2}) (cos d)^{−r/2}, a bound for each
part of K too.

**The ends of the sum.** 0 <= both parts <= K <= min(1, b) on the real line, K = 1 − H_z/q being a probability of error.
K decreases in z (N(z') for z' < z is N(z) shrunk, with noise added: no easier to distinguish from N(0)). Beyond u = log
r the density g decreases, so what is left above the last node u_N is at most P(W > e^{u_N}); below it g increases, so
what is left below u_M is at most K(z_M) P(W < e^{u_M}), and P(W < w) <= w^{r/2} / (2^{r/2} Γ(r/2 + 1)).

Steps and ends are chosen in floating point; their errors are then computed in balls and added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

import flint
from flint import arb

from dpbench.events import Event, RandomSensitivityGaussian
from dpbench.references import _random_sensitivity_quadrature as quadratures
from dpbench.references._enclosure import Ball, ball, bits
from dpbench.references._pair import Inside, SampledLaw, SampledPair, from_anchor
from dpbench.references._reference import reference_of, sampled
from dpbench.references._release import Direction

GUARD = 64  # bits between the working precision and the errors of the sum
INNER = 24  # bits between the working precision of the sum and its errors
BUCKET = 8  # one step h for all ℓ of such a range


@dataclass(frozen=True)
class RandomSensitivity(SampledLaw):
    """The law: rate q in (0, 1], variance σ² > 0 and r >= 1 projections."""

    rate: Fraction
    variance: Fraction
    projections: int

    @property
    def heavy(self) -> bool:
        """P(Z > t) is of the order t^−r."""
        return True

    def pair(self, direction: Direction, /) -> RandomPair:
        """(Z, mixture) against (Z, N(0, σ²)) for remove, the reverse for add."""
        return RandomPair(self, direction)

    def quadrature(self, direction: Direction, epsilon: Fraction, digits: int) -> Decimal:
        """∫ f(z) δ_z(ε) dz over Z's density."""
        return quadratures.hockey_stick(self.rate, self.variance, self.projections, direction, epsilon, digits)

    def renyi(self, direction: Direction, order: Fraction, digits: int) -> Decimal:
        """log E_Z ∫ p^α q^{1−α} dx / (α − 1): infinite but for add with q < 1."""
        if direction == "remove" or self.rate == 1:
            return Decimal("Infinity")  # E e^{α(α−1) Z²/(2σ²)}, and Z² has no exponential moment
        return quadratures.renyi_add(self.rate, self.variance, self.projections, order, digits)


@dataclass
class _Sums:
    """The trapezoidal sum for one precision and all ℓ up to one bound: nodes are made as they are needed."""

    variance: Fraction
    projections: int
    largest: int  # of ℓ
    wanted: int  # bits after the point
    nodes: list[tuple[Ball, Ball, Ball, Ball]] = field(default_factory=list)  # weight, σ/(z√2), z/(2σ√2), P(W < e^u)
    error: Ball = field(default_factory=lambda: arb(0))
    step: float = 0.0
    start: int = 0

    def __post_init__(self) -> None:
        r, wanted = self.projections, self.wanted
        growth = self.largest / 2

        def step(d: float) -> float:
            log_bound = math.log(4) + growth * (1 - math.cos(d)) - r / 2 * math.log(math.cos(d))
            return 2 * math.pi * d / (wanted * math.log(2) + log_bound)

        width = max((i / 64 for i in range(1, 100)), key=step)
        self.step = math.floor(step(width) * 2**20) / 2**20 or step(width)
        d, h = arb(width), arb(self.step)
        bound = (1 + (arb(self.largest) / 2 * (1 - d.cos())).exp()) * d.cos() ** (-arb(r) / 2)
        aliasing = 2 * bound / (2 * arb.pi() * d / h).expm1()
        high = math.log(r)  # from here to where the weight is small
        while r / 2 * (high - math.log(r)) - (math.exp(high) - r) / 2 > -(wanted + 8) * math.log(2):
            high += self.step
        self.start = math.ceil(high / self.step)
        w = (h * self.start).exp()
        self.error = aliasing + (w / 2).gamma_upper(arb(r) / 2, regularized=1)

    def node(self, i: int) -> tuple[Ball, Ball, Ball, Ball]:
        """The i-th node from above: its weight and what s0 and s1 are made of."""
        while len(self.nodes) <= i:
            r, h = arb(self.projections), arb(self.step)
            u = h * (self.start - len(self.nodes))
            w, z = u.exp(), r.sqrt() * (-u / 2).exp()
            sigma, log_power = ball(self.variance).sqrt(), r / 2 * (u - arb(2).log())
            weight = h * (log_power - w / 2 - (r / 2).lgamma()).exp()
            below = (log_power - (r / 2 + 1).lgamma()).exp()
            self.nodes.append((weight, sigma / (z * arb(2).sqrt()), z / (2 * sigma * arb(2).sqrt()), below))
        return self.nodes[i]

    def averages(self, log_b: Ball) -> tuple[Ball, Ball]:
        """Balls around E b T0 and G = E (1 − T1) + E b T0, for a log b of at most `largest`."""
        half_b, limit = log_b.exp() / 2, arb(2) ** -self.wanted
        first, second, i = arb(0), arb(0), 0
        least = self.start - math.floor(math.log(self.projections) / self.step)
        while True:
            weight, inverse, plain, below = self.node(i)
            s = log_b * inverse
            one, two = half_b * (s + plain).erfc(), (plain - s).erfc() / 2
            first += weight * one
            second += weight * two
            rest = (one + two) * below
            if i > least and rest < limit:
                break
            i += 1
            if i > 1 << 16:
                return arb.nan(), arb.nan()
        error = arb(0, self.error.upper() + rest.upper())
        return first + error, first + second + error


@dataclass(frozen=True)
class RandomPair(SampledPair):
    """The pair in one direction."""

    law: RandomSensitivity
    direction: Direction

    def inside(self, anchor: Ball) -> Inside:
        """H(a) = q (1 − G) or a q (b − G), and its slope −Q(S)."""
        law = self.law
        q, rest, certain = ball(law.rate), ball(law.rest), not law.rest
        sums: dict[int, _Sums] = {}

        def averages(y: Ball) -> tuple[Ball, Ball, Ball]:
            """b, E b T0 and G."""
            log_b = y if certain else (y.expm1() * rest / q).log()
            if not log_b.is_finite():
                return arb.nan(), arb.nan(), arb.nan()
            bucket = BUCKET * max(0, math.ceil(float(log_b.upper()) / BUCKET + 1e-9))
            goal = max(32, flint.ctx.prec - GUARD)
            with bits(goal + INNER):
                if bucket not in sums:
                    sums[bucket] = _Sums(law.variance, law.projections, bucket, goal)
                found = sums[bucket].averages(log_b)
            return log_b.exp(), *found

        def remove(y: Ball) -> tuple[Ball, Ball]:
            b, part, whole = averages(y)
            return q * (1 - whole), -(part / b)

        def add(y: Ball) -> tuple[Ball, Ball]:
            b, part, whole = averages(-y)
            return (anchor + y).exp() * q * (b - whole), -(rest * (1 - part / b) + q * (whole - part))

        return remove if self.direction == "remove" else add

    def span(self, tail: float) -> tuple[float, float]:
        """Up to the loss of a `tail` rare Z; down to where the loss of a likelihood ratio is `tail` rare."""
        q, variance, r = float(self.law.rate), float(self.law.variance), self.law.projections
        drop = math.log(1 / tail)
        low, high = -800.0, 0.0  # log(W/r), with P(W < w) <= (w/r e^{1−w/r})^{r/2}
        for _ in range(60):
            middle = (low + high) / 2
            rare = r / 2 * (middle + 1 - math.exp(middle)) < -drop
            low, high = (middle, high) if rare else (low, middle)
        z = math.exp(min(-low / 2, 300))
        far = from_anchor(q, (z * z + 2 * z * math.sqrt(2 * drop * variance)) / (2 * variance))
        if self.direction == "remove":
            return (-drop if q == 1 else 0.0), far
        return (-drop, far) if q == 1 else (-from_anchor(q, drop), 0.0)


def law(event: Event) -> RandomSensitivity | None:
    """The law of one event; None where it has zero loss. Raises ValueError for what is not covered."""
    known = sampled(event, RandomSensitivityGaussian)
    return (
        RandomSensitivity(*known, event.projections) if known and isinstance(event, RandomSensitivityGaussian) else None
    )


reference = reference_of("RandomSensitivityGaussian", law)
