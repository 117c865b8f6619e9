"""δ(ε) of few sampled mechanisms, as balls: both contours, in z and in s, bend to where the integrand falls.

Where nearly all loss lies at one point, M(c + iu) falls so slowly in u that a vertical line needs too many nodes. On
the hyperbola z = c₁ + μ sin(α + iw) the real part grows with u, so that e^(−zε) carries that point down; what lies
above ε is carried down by a contour in s that leaves the real line at s_a with slope κ. Section 6a of docs/certified.md
has the proof.

| here | there |
| --- | --- |
| `level`, `start`, `slope` | e, s_a, κ₁ |
| `corner`, `scale`, `angle` | c₁, μ, α; the strip of w is α on either side |
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from flint import acb, arb, ctx

from dpbench.errors import DpbenchError
from dpbench.privacy.certified._contour import Ball, Exponents, half_sum
from dpbench.privacy.certified._exact_sums import normal_cdf
from dpbench.privacy.certified._factors import Factor
from dpbench.privacy.certified._mixture import Mixture, positive
from dpbench.privacy.certified._numbers import ball_of, integral, log_fraction, spend, working_bits

MOST_BENT = 1500  # nodes in w; each costs some hundredths of a second
LogRatio = Callable[[Any, bool], Any]
_STEEPEST = 0.8  # of κ₁: the slope that the outermost hyperbola has


@dataclass(frozen=True)
class Bend:
    """The contour in s of a mechanism in the remove direction: real up to `start`, then at `slope`, 0 < slope < 1."""

    rate: Fraction
    noise: float
    level: float
    start: float
    slope: float

    @property
    def zero(self) -> float:
        """s₀ = log((1−q)/q), the real part of the zeros of R, in doubles."""
        return log_fraction((1 - self.rate) / self.rate)

    # Doubles, for plans.

    def ends(self, digits: float, c: float) -> tuple[float, float]:
        """Where the real part begins and how far the slanted part runs, in doubles, for e^(−digits) of what counts."""
        shift = 0.5 / self.noise**2
        low = min(-shift - math.sqrt(2 * digits) / self.noise, self.start - 1 / self.noise)
        run = 1 / self.noise
        best = -math.inf
        while True:
            value, fall = self._outside(self.start + run, c)
            best = max(best, value)
            real = self.start + run
            far = real > self.zero + 1 and self._log_ratio(complex(real)).real > self.level
            if far and fall > self.noise and value < best - digits and value < -digits:
                return low, run
            run *= 1.1

    def _outside(self, s: float, c: float) -> tuple[float, float]:
        """log of the modulus' bound on the slanted part at Re = s, and the rate at which it falls from there on."""
        height, shift = self.slope * (s - self.start), 0.5 / self.noise**2
        log_ratio = self._log_ratio(complex(s)).real
        value = -(self.noise**2) * ((s + shift) ** 2 - height**2) / 2 + log_ratio + c * (log_ratio - self.level)
        return value, self.noise**2 * (s + shift - self.slope * height) - (1 + c)

    def _log_ratio(self, v: complex) -> complex:
        q = float(self.rate)
        if v.real < self.zero:
            return cmath.log(1 - q + q * cmath.exp(v))
        return v + math.log(q) + cmath.log(1 + (1 - q) / q * cmath.exp(-v))

    def samples(self, digits: float, c: float, count: int = 160) -> list[tuple[float, float, float]]:
        """log |p R dv|, log|R| − e and arg R at places along the contour: what bounds are planned with."""
        spend(6 * count)
        low, run = self.ends(digits, c)
        shift = 0.5 / self.noise**2
        constant = math.log(self.noise / math.sqrt(2 * math.pi))
        found = []
        for first, length, direction in ((low, self.start - low, 1 + 0j), (self.start, run, complex(1, self.slope))):
            for j in range(count):
                v = first + direction * length * (j + 0.5) / count
                log_ratio = self._log_ratio(v)
                weight = (-(self.noise**2) * (v + shift) ** 2 / 2 + log_ratio).real
                size = weight + constant + math.log(length / count * abs(direction))
                found.append((size, log_ratio.real - self.level, log_ratio.imag))
        return found

    def log_size(self, c: float) -> float:
        """log of ∫ |p R| e^(c (log|R| − e)) along the contour, in doubles."""
        terms = [weight + c * size for weight, size, _ in self.samples(60.0, c)]
        top = max(terms)
        return top + math.log(sum(math.exp(term - top) for term in terms))

    # Balls.

    def check(self, kappa: Any) -> None:
        """Raises AssertionError unless κ (log|R| − e) <= arg R is proven along the contour, for this κ and smaller."""
        q, start, slope = ball_of(self.rate), arb(self.start), arb(self.slope)
        odds = (1 - q) / q
        gap = odds.log() - start
        high = odds * (-start - arb.pi() / slope).exp()
        proven = (
            (1 - q + q * start.exp()).log() <= arb(self.level)
            and (gap <= 0 or slope * gap <= arb.pi() / 2)
            and slope < 1
            and 0 < kappa < slope
            and (slope - kappa) * (1 - high) >= high * (1 + kappa * slope)
        )
        if not proven:
            raise AssertionError("the contour in s must stay on the side where the integrand falls")

    def pieces(self, low: float, run: float) -> Iterator[tuple[Any, Any, bool]]:
        """The contour from `low` to start + run (1 + i slope): ends of straight pieces, and whether Re >= s₀ there.

        The middle cut lies at s₀ or a little beyond, where either formula of log R holds.
        """
        start = arb(self.start)
        turn = acb(1, arb(self.slope))
        yield acb(low), acb(start), False
        cut = max(self.zero + 1e-6 - self.start, 0.0)
        if cut:
            yield acb(start), start + cut * turn, False
        yield start + cut * turn, start + run * turn, True

    def log_ratio(self, beyond: bool) -> LogRatio:
        """log R as a function of s and whether it has to be analytic there; `beyond` s₀ by the formula that suits."""
        q = ball_of(self.rate)
        odds, log_rate = (1 - q) / q, q.log()

        def near(v: Any, analytic: bool) -> Any:
            return (1 - q + q * v.exp()).log(analytic=analytic)

        def far(v: Any, analytic: bool) -> Any:
            return v + log_rate + (1 + odds * (-v).exp()).log(analytic=analytic)

        return far if beyond else near

    def moment(self, z: Any, low: float, run: float, least: Any, first: Any, tolerance: Any) -> Any:
        """∫ p R e^(z (log R − e)) along the contour, as a ball: M(z) e^(−ze)."""
        noise, level = arb(self.noise), arb(self.level)
        precision = noise**2
        total = acb(0)
        for begin, end, beyond in self.pieces(low, run):
            log_ratio = self.log_ratio(beyond)

            def integrand(v: Any, analytic: bool, log_ratio: LogRatio = log_ratio) -> Any:
                found = log_ratio(v, analytic)
                return (-precision * (v + 1 / (2 * precision)) ** 2 / 2 + found + z * (found - level)).exp()

            total += integral(
                integrand, begin, end, 12.0 * (1 + ctx.prec / 600), abs_tol=tolerance, rel_tol=0, eval_limit=100_000
            )
        total *= noise / (2 * arb.pi()).sqrt()
        outside = self.outside(low, run, least, first)
        return total + acb(arb(0, outside), arb(0, outside))

    def outside(self, low: float, run: float, least: Any, first: Any) -> Any:
        """A bound of what the contour's two ends leave out of M(z) e^(−ze), for all z with the condition of `check`.

        `least` bounds Re z from below, `first` is where its hyperbola starts.
        """
        q, noise = ball_of(self.rate), arb(self.noise)
        precision = noise**2
        shift = 1 / (2 * precision)
        edge = arb(low)
        ratio = 1 - q + q * edge.exp()
        left = ratio * (least * (ratio.log() - self.level)).exp() * normal_cdf(noise * (edge + shift))
        s = arb(self.start) + run
        height = arb(self.slope) * run
        log_ratio = (1 - q + q * s.exp()).log()
        fall = precision * (s + shift - arb(self.slope) * height) - (1 + first)
        if not (fall > 0 and log_ratio >= arb(self.level)):
            raise AssertionError("beyond its end the contour's integrand must fall")
        value = -precision * ((s + shift) ** 2 - height**2) / 2 + log_ratio + first * (log_ratio - self.level)
        stretch = (1 + arb(self.slope) ** 2).sqrt() * noise / (2 * arb.pi()).sqrt()
        return positive(left + stretch * value.exp() / fall)

    def bound(self, exponents: Sequence[Any], kappa: Any, u: Any, low: float, run: float) -> Any:
        """∫ |p R| e^(c (log|R| − e) + u (κ (log|R| − e) − arg R)) along the contour and beyond, for c between
        two `exponents`: the first on the real part, where log R < e, their sum on the slanted part.

        As κ (log|R| − e) <= arg R this falls as u grows.
        """
        noise, level = arb(self.noise), arb(self.level)
        precision = noise**2
        shift = 1 / (2 * precision)
        total = arb(0)
        for place, (begin, end, beyond) in enumerate(self.pieces(low, run)):
            cs = exponents if place else exponents[:1]
            turn, log_ratio = end - begin, self.log_ratio(beyond)
            around = begin, turn, begin.conjugate(), turn.conjugate(), log_ratio, cs

            def modulus(t: Any, analytic: bool, around: tuple[Any, ...] = around) -> Any:
                begin, turn, base, back, log_ratio, cs = around
                above, below = begin + turn * t, base + back * t
                up, down = log_ratio(above, analytic), log_ratio(below, analytic)
                size, argument = (up + down) / 2, (up - down) / acb(0, 2)
                weight = -precision * ((above + shift) ** 2 + (below + shift) ** 2) / 4 + size
                weight += u * (kappa * (size - level) - argument)
                return sum(((weight + c * (size - level)).exp() for c in cs), acb(0))

            inside = integral(modulus, 0, 1, 24.0 * (1 + ctx.prec / 600), rel_tol=arb(2) ** -20, eval_limit=100_000)
            total += abs(turn) * positive(inside)
        total *= noise / (2 * arb.pi()).sqrt()
        return positive(total + self.outside(low, run, exponents[0], exponents[-1]))


@dataclass(frozen=True)
class BentPlan:
    """The hyperbola and the contours; `reference` is the least ε for which it holds."""

    bends: tuple[tuple[Bend, int], ...]
    reference: Fraction
    corner: float
    scale: float
    angle: float
    step: float
    count: int
    digits: float  # nats that M is wanted to, below its bound


@dataclass
class BentTransform:
    """M̂(z) z'/(z(z+1)) at the nodes of a plan. Any ε from the plan's reference on may be asked.

    With `mirrored` the add direction is answered, by δ_add(ε) = 1 − e^ε + e^ε δ_remove(−ε).
    """

    plan: BentPlan
    nodes: list[Any]
    values: list[Any]
    discretised: Any
    tail: Any
    bits: int
    mirrored: bool

    def delta(self, epsilon: Any) -> Ball:
        """δ(ε) for a ball ε; [0, 1] below the reference."""
        with working_bits(self.bits):
            ball = self._remove(-epsilon if self.mirrored else epsilon)
            if not self.mirrored:
                return ball
            growth = epsilon.exp()
            return replace(ball, value=1 - growth + growth * ball.value)

    def _remove(self, epsilon: Any) -> Ball:
        plan = self.plan
        away = epsilon - ball_of(plan.reference)
        if not away >= 0:
            return Ball(arb(0.5, 0.5), nodes=len(self.nodes), bits=self.bits)
        total = half_sum(self.nodes, self.values, away) * arb(plan.scale) * arb(plan.step) / arb.pi()
        size = (-arb(plan.corner) * away).exp()
        aliasing, tail = positive(self.discretised * size), positive(self.tail * size)
        rounding = float(arb(total.rad()).upper())
        value = total + arb(0, aliasing) + arb(0, tail)
        return Ball(value, float(aliasing), float(tail), 0.0, rounding, len(self.nodes), self.bits)

    def slope(self, epsilon: float) -> float:
        """dδ/dε in doubles, for Newton's steps only; 0 where it is not known."""
        away = (-epsilon if self.mirrored else epsilon) - float(self.plan.reference)
        if away < 0:
            return 0.0
        total = value = 0.0
        for k, (z, node) in enumerate(zip(self.nodes, self.values, strict=True)):
            share = (node * (-z * arb(away)).exp()) * (1.0 if k else 0.5)
            total += float(share.real.mid())
            value -= float((share * z).real.mid())
        factor = self.plan.scale * self.plan.step / math.pi
        if self.mirrored:
            growth = math.exp(epsilon)
            return growth * (factor * (total - value) - 1)
        return factor * value


def can_bend(parts: Sequence[tuple[Factor, int]]) -> bool:
    """Whether all mechanisms are single sampled records, all removed or all added."""
    kinds = {factor.direction if isinstance(factor, Mixture) and factor.largest == 1 else None for factor, _ in parts}
    return kinds in ({"remove"}, {"add"})


def bent_transform(
    parts: Sequence[tuple[Factor, int]],
    epsilon: float,
    log_target: float,
    progress: Callable[[str], None] | None = None,
) -> BentTransform:
    """Balls on a hyperbola, for ε and a little below it (add: above), with an error of e^log_target.

    Raises DpbenchError where no plan of MOST_BENT nodes is found, which is next to the end of the range of losses.
    """
    mixtures = [(factor, count) for factor, count in parts if isinstance(factor, Mixture)]
    mirrored = mixtures[0][0].direction == "add"
    plain: list[tuple[Factor, int]] = [
        (Mixture(factor.weights, factor.noise_multiplier, "remove"), count) for factor, count in mixtures
    ]
    at, target = (-epsilon, log_target - epsilon) if mirrored else (epsilon, log_target)
    try:
        plan = _plan(plain, at, target)
    except OverflowError:  # of the doubles that plan
        raise DpbenchError(f"epsilon = {epsilon!r}: a mechanism is sampled too rarely, or the loss too large") from None
    return _transform(plan, mirrored, progress)


def _plan(parts: Sequence[tuple[Factor, int]], epsilon: float, log_target: float) -> BentPlan:
    lowest = sum(count * math.log1p(-float(f.weights[1])) for f, count in parts if isinstance(f, Mixture))
    room = 0.93 * (epsilon - lowest)  # above the infimum of the loss, in doubles
    exponents = Exponents(parts)
    saddle = max(exponents.saddle(epsilon)[0], 0.2)
    releases = sum(count for _, count in parts)
    best: BentPlan | None = None
    if room > 0:
        for slope in (0.15, 0.25, 0.4, 0.55):
            for share in (0.15, 0.35, 0.6):
                for line in (saddle, saddle / 2):
                    plan = _try(parts, room / releases, slope, share, line, log_target)
                    if plan is not None and (best is None or plan.count < best.count):
                        best = plan
    if best is None or best.count > MOST_BENT:
        raise DpbenchError(
            f"epsilon = {epsilon!r}: no contour of {MOST_BENT} nodes was found for it; the loss lies too close to a"
            " single point, so ask for fewer digits or certify more steps together"
        )
    return best


def _try(
    parts: Sequence[tuple[Factor, int]],
    room: float,
    slope: float,
    share: float,
    line: float,
    log_target: float,
) -> BentPlan | None:
    """A plan with these contours; None where their conditions fail."""
    bends: list[tuple[Bend, int]] = []
    for factor, count in parts:
        assert isinstance(factor, Mixture)
        rate = factor.weights[1]
        zero = log_fraction((1 - rate) / rate)
        start = zero + math.log(math.expm1(share * room))
        if slope * (zero - start) > 0.999 * math.pi / 2:
            return None
        level = math.log1p(-float(rate)) + room
        bends.append((Bend(rate, factor.noise_multiplier, level, start, slope), count))
    steepest = _STEEPEST * slope
    angle = math.atan(steepest) / 2
    corner = 0.6 * line
    scale = 0.8 * line / math.sin(2 * angle)
    total = sum(count for _, count in bends)
    samples = [(bend.samples(60.0, 1.4 * line), count) for bend, count in bends]

    def log_bound(cs: Sequence[float], kappa: float, u: float) -> float:
        found = 0.0
        spend(200 * len(samples))
        for places, count in samples:
            terms = [
                weight + c * size + u * (kappa * size - argument)
                for j, (weight, size, argument) in enumerate(places)
                for c in (cs if 2 * j >= len(places) else cs[:1])  # as `Bend.bound` does
            ]
            top = max(terms)
            found += count * (top + math.log(sum(math.exp(t - top) for t in terms)))
        return found

    ends = (corner, corner + scale * math.sin(2 * angle))
    middle = corner + scale * math.sin(angle)
    sizes = [log_bound((c,), 0.0, 0.0) + math.log(1 / (2 * c)) for c in ends]
    nats = max(max(sizes) - log_target + 2.0, 10.0)
    step = 2 * math.pi * angle / nats
    kappa, factor_u = math.tan(angle), scale * math.cos(angle)

    def excess(w: float) -> float:
        rest = math.log(step * math.cosh(w) / math.sinh(w) ** 2 + 1 / math.sinh(w))
        rest -= math.log(math.pi * scale * math.cos(angle) ** 2)
        return rest + log_bound((corner, middle), kappa, factor_u * math.sinh(w)) + total * 1e-6 - log_target + 2

    w = 1.0
    while excess(w) > 0:
        w += 0.25
        if w / step > MOST_BENT or w > 60:
            return None
    count = math.ceil(w / step) + 1
    reference = sum((count * Fraction(bend.level) for bend, count in bends), Fraction(0))
    return BentPlan(tuple(bends), reference, corner, scale, angle, step, count, nats + math.log(total) + 4)


def _transform(plan: BentPlan, mirrored: bool, progress: Callable[[str], None] | None) -> BentTransform:
    bits = int(plan.digits * 1.5 / math.log(2)) + 64
    with working_bits(bits):
        corner, scale, angle, step = arb(plan.corner), arb(plan.scale), arb(plan.angle), arb(plan.step)
        steepest = (2 * angle).tan()
        middle, highest = corner + scale * angle.sin(), corner + scale * (2 * angle).sin()
        sizes = [bend.log_size(float(corner)) for bend, _ in plan.bends]
        places = [
            bend.ends(plan.digits + 5 + max(-size, 0.0), float(highest))
            for (bend, _), size in zip(plan.bends, sizes, strict=True)
        ]
        first = plan.count * step
        u = scale * angle.cos() * first.sinh()
        discretised, tail = arb(0), arb(1)
        for bend, _ in plan.bends:
            bend.check(steepest)
        for start, tilt in ((corner, arb(0)), (highest, 2 * angle)):
            bound = arb(1)
            for (bend, count), (low, run) in zip(plan.bends, places, strict=True):
                bound *= bend.bound((start,), arb(0), arb(0), low, run) ** count
            discretised += bound * arb.pi() / (start * tilt.cos())
        decay = (-2 * arb.pi() * angle / step).exp()
        discretised *= decay / (1 - decay) / (2 * arb.pi())
        for (bend, count), (low, run) in zip(plan.bends, places, strict=True):
            tail *= bend.bound((corner, middle), angle.tan(), u, low, run) ** count
        tail *= (step * first.cosh() / first.sinh() ** 2 + 1 / first.sinh()) / (arb.pi() * scale * angle.cos() ** 2)
        nodes, values = [], []
        for k in range(plan.count):
            w = acb(angle, k * step)
            z = corner + scale * w.sin()
            value = w.cos() / (z * (z + 1))
            for (bend, count), (low, run), size in zip(plan.bends, places, sizes, strict=True):
                tolerance = arb(min(size, 0.0) - plan.digits).exp()
                value *= bend.moment(z, low, run, corner, middle, tolerance) ** count
            nodes.append(z)
            values.append(value)
            if progress is not None and k % 20 == 19:
                progress(f"bent contour: {k + 1} of {plan.count} nodes")
        return BentTransform(plan, nodes, values, positive(discretised), positive(tail), bits, mirrored)
