"""Enclosures of E[e^(zL)] for one invocation whose two laws are mixtures of Gaussians, on a line Re z = c.

| here | in docs/certified.md |
| --- | --- |
| `s` | s, the log ratio of N(1, σ²) to N(0, σ²), itself Gaussian with mean −1/(2σ²) and deviation 1/σ |
| `ratio` | R(s) = Σ_k b_k e^(ks − k(k−1)/(2σ²)), the likelihood ratio of the mixture to N(0, σ²) |
| `exponents` | κ₊ and κ₋: the integrand is p(s) · R(s)^κ₊ · R(−s − 1/σ²)^κ₋ |
| `height` | y, by which the line of integration in s is lifted |

Section numbers in the comments are those of docs/certified.md.
"""

from __future__ import annotations

import cmath
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from flint import acb, acb_mat, arb, ctx

from dpbench.errors import DpbenchError
from dpbench.privacy.certified._bound import LiftedLine, best_lift
from dpbench.privacy.certified._numbers import ball_of, hold, spend

Direction = Literal["remove", "add", "replace"]
MOST_NODES = 200_000  # of the sum over s; beyond, memory and time run away
PLAN_BITS = 40.0  # of the sums in doubles that only plan


def positive(value: Any) -> Any:
    """The upper end of a ball of a real number that is known to be non-negative, as an exact ball."""
    return arb(abs(value).upper())


def powers(numbers: list[Any], count: int) -> list[list[Any]]:
    """The powers 0 ... count − 1 of each number, each as the product of two half as high.

    A product of rectangular balls inflates radii by up to √2 where it turns; so the depth must be logarithmic.
    """
    table = [[acb(1)] * len(numbers), numbers]
    for k in range(2, count):
        table.append([a * b for a, b in zip(table[k // 2], table[k - k // 2], strict=True)])
    return table[:count]


def sums_of_powers(weights: list[Any], phases: list[Any], count: int) -> list[Any]:
    """Σ_j weight_j phase_j^k for k = 0 ... count − 1, as the product of two matrices (section 5)."""
    short = max(1, math.isqrt(count))
    hold(2.0 * short * len(phases))
    columns = powers(phases, short + 1)
    rows_of = powers(columns.pop(), -(-count // short))
    left = [[a * b for a, b in zip(weights, row, strict=True)] for row in rows_of]
    product = acb_mat(left) * acb_mat(columns).transpose()
    return [product[k // short, k % short] for k in range(count)]


def spend_on_sums(nodes: int, count: int, each: float) -> None:
    """Count the work of `sums_of_powers`, and `each` of every node besides, in the bits now in force."""
    power = 2 + ctx.prec / 25 * (1 + ctx.prec / 3000)
    spend(nodes * (each * (1 + ctx.prec / 300) + power * math.isqrt(count) + (0.05 + ctx.prec / 4000) * count))


def widened(values: list[Any], radius: Any, direction: Direction) -> list[Any]:
    """The sums with all that they may be off by; of the add direction their conjugates are M."""
    disc = acb(arb(0, radius), arb(0, radius))
    return [(value + disc).conjugate() if direction == "add" else value + disc for value in values]


@dataclass(frozen=True)
class Mixture:
    """One invocation, one direction. `weights` are b_0 ... b_g, `noise_multiplier` is σ.

    `remove`: the mixture against N(0, σ²). `add`: the reverse. `replace`: the mixture against its mirror image at 0.
    M(c + iu) is wanted for u >= 0; where the loss falls as s grows (`add`) the conjugate is computed.
    """

    weights: tuple[Fraction, ...]
    noise_multiplier: float
    direction: Direction

    @property
    def largest(self) -> int:
        """g, the largest shift of the mixture."""
        return len(self.weights) - 1

    @property
    def sides(self) -> int:
        """How often the integrand needs R."""
        return 2 if self.direction == "replace" else 1

    def exponents(self, c: Any) -> tuple[Any, Any]:
        """κ₊ and κ₋ on the line Re z = c."""
        if self.direction == "add":
            return -c, 0 * c
        return 1 + c, (-c if self.direction == "replace" else 0 * c)

    def balls(self) -> list[Any]:
        """b_0 ... b_g in the bits now in force."""
        return [ball_of(b) for b in self.weights]

    @cached_property
    def _doubles(self) -> tuple[tuple[int, float, float], ...]:
        """k, b_k and log b_k where b_k > 0, to plan with."""
        return tuple((k, float(b), math.log(float(b))) for k, b in enumerate(self.weights) if float(b) > 0)

    def largest_loss(self) -> Any:
        """The supremum of the loss as a ball; None where there is none."""
        return -ball_of(self.weights[0]).log() if self.direction == "add" else None

    # Doubles: they plan (heights, steps, ranges) and prove nothing.

    def log_ratio(self, s: complex) -> complex:
        """log R(s) in doubles, without overflow."""
        if len(self._doubles) == 2 and self.largest == 1 and s.real < 300:
            (_, rest, _), (_, rate, _) = self._doubles
            return cmath.log(rest + rate * cmath.exp(s))
        shrink = 0.5 / self.noise_multiplier**2
        terms = [log_b + k * s - k * (k - 1) * shrink for k, _, log_b in self._doubles]
        top = max(term.real for term in terms)
        return complex(top + cmath.log(sum((cmath.exp(term - top) for term in terms), 0j)))

    def slope(self, s: float) -> float:
        """The derivative of log R at a real s; it rises from 0 to g."""
        step = 1e-4
        return (self.log_ratio(s + step) - self.log_ratio(s - step)).real / (2 * step)

    def exponent(self, s: complex, c: float, u: float) -> complex:
        """The logarithm of the integrand at s without the density's constant, s anywhere with 0 <= Im s < π/g."""
        precision = self.noise_multiplier**2
        plus, minus = self.exponents(c)
        log_plus = self.log_ratio(s)
        loss = log_plus
        value = -precision * (s + 0.5 / precision) ** 2 / 2 + plus * log_plus
        if self.direction == "replace":
            log_minus = self.log_ratio(-s - 1 / precision)
            value += minus * log_minus
            loss = log_plus - log_minus
        return complex(value + 1j * u * loss)

    def height_and_step(self, c: float, digits: float) -> tuple[float, float]:
        """The height y of the line and the step in s for an aliasing error below e^(−digits) (section 3)."""
        precision = self.noise_multiplier**2
        negative = sum(-min(float(kappa), 0.0) for kappa in self.exponents(c))
        best = (0.0, 0.0)
        for part in range(1, 60):
            y = part / 60 * math.pi / (2 * self.largest)
            loss = 2 * y * y * precision - negative * math.log(math.cos(self.largest * y))
            best = max(best, (2 * math.pi * y / (digits + loss), y))
        step, y = best
        y_small = math.sqrt(digits / 2 / precision)
        if y_small < y:  # little room is wanted: σ is large
            loss = digits - negative * math.log(math.cos(self.largest * y_small))
            best = max(best, (2 * math.pi * y_small / (digits + loss), y_small))
            step, y = best
        return y, step

    def _short_span(self, c: float) -> tuple[float, float, float]:
        """`span` for the contours' search, remembered."""
        if c not in self._spans:
            self._spans[c] = self.span(c, 34.0)
        return self._spans[c]

    @cached_property
    def _spans(self) -> dict[float, tuple[float, float, float]]:
        return {}

    def span(self, c: float, digits: float) -> tuple[float, float, float]:
        """Where the integrand, at height 0, is above e^(−digits) of its largest value; and that value's logarithm."""
        spend(1000 + 500 * self.largest)
        width = 1 / self.noise_multiplier
        plus, minus = self.exponents(c)
        reach = (abs(plus) * self.largest + abs(minus)) * width * width + 12 * width
        distances = [width * i / 4 for i in range(49)]
        while distances[-1] < reach:
            distances.append(distances[-1] * 1.06)
        middle = -0.5 * width * width
        points = sorted({middle + sign * distance for distance in distances for sign in (-1, 1)})

        def value(s: float) -> float:
            return self.exponent(s, c, 0.0).real

        values = [value(point) for point in points]
        for i in range(1, len(points) - 1):
            if values[i] >= max(values[i - 1], values[i + 1]):
                points[i] = _highest(value, points[i - 1], points[i + 1])
                values[i] = value(points[i])
        top = max(values)

        def edge(start: float, sign: int) -> float:
            inner, distance = start, width
            while value(start + sign * distance) > top - digits:
                spend(10)
                inner, distance = start + sign * distance, distance * 2
            outer = start + sign * distance
            for _ in range(12):
                half = (inner + outer) / 2
                inner, outer = (half, outer) if value(half) > top - digits else (inner, half)
            spend(20)
            extra = width
            while self._log_outside(outer, sign, c) > top - digits + 5:
                spend(20)
                outer += sign * extra
                extra *= 1.5
            return outer

        kept = [point for point, height in zip(points, values, strict=True) if height > top - digits]
        return edge(kept[0], -1), edge(kept[-1], 1), top

    def pieces(self, edge: float, side: int, c: float) -> list[float]:
        """Where to cut the outside of `edge`: beyond the last cut the integrand surely falls, in doubles."""
        width = 1 / self.noise_multiplier
        precision = self.noise_multiplier**2
        plus, minus = self.exponents(c)
        climb = max(plus, 0.0) * self.largest if side > 0 else max(minus, 0.0) * self.largest
        ends, length = [edge], width
        while self._rate(ends[-1], None, side, c) < 1 / width or side * precision * ends[-1] < climb:
            spend(20 + 5 * self.largest)
            ends.append(ends[-1] + side * length)
            length *= 1.2
        return ends

    def _rate(self, start: float, end: float | None, side: int, c: float) -> float:
        """λ of `outside` on one piece, in doubles."""
        precision = self.noise_multiplier**2
        rate = side * precision * (start + 0.5 / precision)
        for kappa, mirror in zip(self.exponents(c), (1, -1), strict=True):
            rising = side * mirror > 0
            if kappa > 0 and rising:
                steepest = self.largest if end is None else self.slope(mirror * end - (mirror < 0) / precision)
                rate -= kappa * steepest
            elif kappa < 0 and not rising:
                rate += kappa * self.slope(mirror * start - (mirror < 0) / precision)
        return rate

    def _log_outside(self, edge: float, side: int, c: float) -> float:
        """log of the greatest of the pieces' bounds in doubles, to plan the range with."""
        ends = self.pieces(edge, side, c)
        worst = self.exponent(edge, c, 0.0).real
        for start, end in itertools.pairwise(ends):
            value = self.exponent(start, c, 0.0).real
            if self._rate(start, end, side, c) * abs(end - start) < 1:
                value += self.largest * abs(end - start) * sum(abs(k) for k in self.exponents(c)) * self.slope(abs(end))
                mean = -0.5 / self.noise_multiplier**2
                closest = max(side * (start - mean), min(side * (end - mean), 0.0))
                value += self.noise_multiplier**2 * ((start - mean) ** 2 - closest**2) / 2
            worst = max(worst, value)
        return worst

    def log_moment(self, c: float) -> float:
        """log M(c) in doubles, to plan with."""
        _, step = self.height_and_step(c, PLAN_BITS)
        low, high, top = self.span(c, PLAN_BITS)
        count = int((high - low) / step) + 1
        if count > MOST_NODES:
            raise DpbenchError(
                f"noise_multiplier = {self.noise_multiplier!r}: expected a loss that {MOST_NODES} nodes resolve, not"
                f" {count}; there is too little noise to certify, ask `dpbench account`"
            )
        spend(count * (3.0 + self.largest))
        points = [low + j * step for j in range(count)]
        scale = step * self.noise_multiplier / math.sqrt(2 * math.pi)
        value = top + math.log(
            scale * sum(math.exp(min(self.exponent(point, c, 0.0).real - top, 50.0)) for point in points)
        )
        if abs(value) > 0.1:
            return value
        precision = self.noise_multiplier**2  # near 1, M − 1 is summed, so that a tiny loss keeps its digits
        excess = 0.0
        for point in points:
            base = -precision * (point + 0.5 / precision) ** 2 / 2
            power = self.power(point, c)
            excess += math.exp(base) * math.expm1(power) if power < 1 else math.exp(base + power) - math.exp(base)
        return math.log1p(scale * excess)

    def power(self, s: float, c: float) -> float:
        """κ₊ log R(s) + κ₋ log R(−s − 1/σ²) at a real s, precise where R is near 1."""
        shrink = 0.5 / self.noise_multiplier**2
        total: float = 0.0
        for kappa, place in zip(self.exponents(c), (s, -s - 2 * shrink), strict=True):
            if kappa:
                tops = [(b, k * place - k * (k - 1) * shrink) for k, b, _ in self._doubles]
                if max(top for _, top in tops) < 1:
                    rise = sum(b * math.expm1(top) for b, top in tops)
                    total += float(kappa) * math.log1p(rise)
                else:
                    total += float(kappa) * self.log_ratio(place).real
        return total

    def _raised(self, c: float, height: float) -> float:
        """log of the factor by which `outside` grows with the height, in doubles."""
        negative = sum(-min(float(kappa), 0.0) for kappa in self.exponents(c))
        return height**2 * self.noise_multiplier**2 / 2 - negative * math.log(math.cos(self.largest * height / 2))

    # Balls: from here on everything is proven.

    def precision(self) -> Any:
        """σ², the inverse of the variance of s."""
        return arb(self.noise_multiplier) ** 2

    def ratio(self, s: Any) -> Any:
        """R(s), by Horner's rule in e^s."""
        weights = self.balls()
        shrink = 1 / self.precision()
        power = s.exp()
        value = type(s)(0)
        for k in range(self.largest, 0, -1):
            value = (value + weights[k]) * power * (-(k - 1) * shrink).exp()
        return value + weights[0]

    def ratio_slope(self, s: Any) -> Any:
        """The derivative of log R at a real s."""
        shrink = 1 / self.precision()
        terms = [b * (k * s - k * (k - 1) * shrink / 2).exp() for k, b in enumerate(self.balls())]
        return sum((k * term for k, term in enumerate(terms)), arb(0)) / sum(terms, arb(0))

    def outside(self, edge: Any, side: int, c: Any, height: Any, step: Any | None) -> Any:
        """A bound of the modulus beyond `edge`: the sum over nodes `step` apart, times the step, or the integral.

        Holds for every u >= 0 and every height of the contour in [0, `height`] (section 4). `side` is +1 for the
        right tail, −1 for the left one.
        """
        ends = [arb(end) for end in self.pieces(float(edge), side, float(c))]
        ends[0] = edge
        total = arb(0)
        for start, end in zip(ends, [*ends[1:], None], strict=True):
            value, rate, highest = self._piece(start, end, side, c, height)
            if rate > 0:
                total += value / rate if step is None else value * step / (1 - (-rate * step).exp())
            elif end is None:
                raise AssertionError("the integrand must fall beyond the last cut")
            else:
                total += highest * (abs(end - start) + (0 if step is None else step))
        return positive(total)

    def _piece(self, start: Any, end: Any | None, side: int, c: Any, height: Any) -> tuple[Any, Any, Any]:
        """f, λ and F: on the piece, at distance t, the modulus is at most f e^(−λt), and at most F."""
        precision = self.precision()
        distance = start + 1 / (2 * precision)
        rest = None if end is None else end + 1 / (2 * precision)
        peak = (precision / (2 * arb.pi())).sqrt() * (precision * height**2 / 2).exp()
        value = highest = peak * (-precision * distance**2 / 2).exp()
        if not side * distance >= 0:  # towards the mean the density rises: up to it, or up to an end before it
            highest = peak
            if rest is not None and side * rest <= 0:
                highest = peak * (-precision * rest**2 / 2).exp()
        rate = side * precision * distance
        angle = (self.largest * height / 2).cos()
        for kappa, mirror in zip(self.exponents(c), (1, -1), strict=True):
            if kappa == 0:
                continue
            shift = 1 / precision if mirror < 0 else arb(0)
            rising = side * mirror > 0
            near, far = mirror * start - shift, None if end is None else mirror * end - shift
            if not kappa > 0:
                value, highest = value * angle**kappa, highest * angle**kappa
            value *= self.ratio(near) ** kappa
            highest *= self.ratio(far if far is not None and (kappa > 0) == rising else near) ** kappa
            if kappa > 0 and rising:
                rate -= kappa * (self.largest if far is None else self.ratio_slope(far))
            elif not kappa > 0 and not rising:
                rate += kappa * self.ratio_slope(near)
        return value, rate, highest

    def moments(self, c: Any, step: Any, count: int, digits: float) -> tuple[list[Any], Any]:
        """Enclosures of M(c + i·k·step), k = 0 ... count − 1, and the radius in them that is not rounding.

        `digits` (in nats) is the relative accuracy to plan for; what comes out is proven whatever the plan.
        """
        at = float(c)
        y, step_s = self.height_and_step(at, digits)
        low, high, _ = self.span(at, digits + self._raised(at, y) + 3)
        nodes = int((high - low) / step_s) + 2
        if nodes > MOST_NODES:
            raise DpbenchError(
                f"noise_multiplier = {self.noise_multiplier!r}: expected noise for which the moments need fewer than"
                f" {MOST_NODES} nodes, not {nodes}; certify a mechanism with more noise"
            )
        spend_on_sums(nodes, count, (10.0 + 3 * self.largest) * self.sides)
        height, h = arb(y), arb(step_s)
        if not self.largest * 2 * height < arb.pi():
            raise AssertionError("the lifted strip must stay below π/g")
        sums = self._sums(c, step, count, arb(low), h, height, nodes)
        left = self.outside(arb(low) - h, -1, c, height, h)
        right = self.outside(arb(low) + nodes * h, 1, c, height, h)
        outside = positive(left + right)
        radius = positive(outside + self.aliasing(positive(sums[0]) + outside, c, h, height))
        return widened(sums, radius, self.direction), radius

    def aliasing(self, whole_sum: Any, c: Any, h: Any, height: Any) -> Any:
        """The bound of what the trapezoidal sum over s differs from the integral, at any u >= 0 (section 3).

        `whole_sum` bounds the modulus of the infinite sum at u = 0; the share is below 1/2, so M(c) <= 2 whole_sum.
        """
        precision = self.precision()
        decay = (-2 * arb.pi() * height / h).exp()
        upper = (2 * height**2 * precision).exp()
        for kappa in self.exponents(c):
            if not kappa >= 0:
                upper *= (self.largest * height).cos() ** kappa
        share = (1 + upper) * decay / (1 - decay)
        if not share < arb(1) / 2:
            raise AssertionError("the step in s must resolve the integrand")
        return positive(2 * whole_sum * share)

    def _sums(self, c: Any, step: Any, count: int, low: Any, h: Any, height: Any, nodes: int) -> list[Any]:
        """The finite sums over s, for all u at once as the product of two matrices (section 5)."""
        precision = self.precision()
        plus, minus = self.exponents(c)
        scale = h * (precision / (2 * arb.pi())).sqrt()
        shift = 1 / (2 * precision)
        weights, phases = [], []
        for j in range(nodes):
            s = acb(low + j * h, height)
            log_plus = self.ratio(s).log()
            exponent = -precision * (s + shift) ** 2 / 2 + plus * log_plus
            loss = log_plus
            if self.direction == "replace":
                log_minus = self.ratio(-s - 2 * shift).log()
                exponent += minus * log_minus
                loss = log_plus - log_minus
            weights.append(scale * exponent.exp())
            phases.append((acb(0, step) * loss).exp())
        return sums_of_powers(weights, phases, count)

    def upper(self, a: Any) -> Any:
        """An upper bound of M(a) for real a, as an exact ball."""
        values, _ = self.moments(a, arb(0), 1, 30.0)
        return arb(values[0].real.upper())

    # The tail in u.

    def lift(
        self, c: float, u: float, start: LiftedLine | None = None, fixed: bool = False
    ) -> tuple[float, LiftedLine]:
        """In doubles: log of a bound of |M(c + iu')| for all u' >= u, and the contour that gives it (section 6).

        `start` is where the search for the contour starts; with `fixed` it also ends there.
        """
        low, high, top = self._short_span(c)

        def size(line: LiftedLine) -> float:
            return line.estimate(self, c, u, low, high, top)

        if fixed and start is not None:
            return size(start), start
        ceiling, reach = 0.98 * math.pi / self.largest, high - low
        middles = [low - 3 + (reach + 6) * i / 8 for i in range(9)]
        wide = min(ceiling, 6 / self.noise_multiplier)
        tops = [wide, wide / 3, wide / 20, wide / 200]
        starts = [LiftedLine(t, m) for t in tops for m in middles] if start is None else [start]
        return best_lift(size, starts, ceiling, reach / 16, 20, reach / 200)

    def tail(self, c: Any, u: Any, line: LiftedLine, digits: float) -> Any:
        """A proven upper bound of |M(c + iu')| for all u' >= u: the integral of the modulus along `line`."""
        low, high, _ = self.span(float(c), digits + self._raised(float(c), line.top))
        return line.bound(self, c, u, low, high, digits)


def _highest(function: Callable[[float], float], low: float, high: float) -> float:
    """The place of the maximum between two points, by golden sections, in doubles."""
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(60):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if function(left) > function(right) else (left, high)
    return (low + high) / 2
