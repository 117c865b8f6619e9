"""Enclosures of E[e^(zL)] for a sampled Gaussian whose sensitivity Z = (χ²_r / r)^(−1/2) is random and released.

| here | in docs/certified.md, section 9 |
| --- | --- |
| `s` | s, the log ratio of N(Z, σ²) to N(0, σ²); given Z it is Gaussian with mean −Z²/(2σ²) and deviation Z/σ |
| `density` | p(s), its law under N(0, σ²) mixed over Z, in closed form with Bessel's K |
| `lifted_density` | p̃(s, y) >= |p(s + iy)|, in closed form as well |
| `kappa` | κ = 1 + c (remove) or −c (add): the integrand is p(s) · R(s)^κ, R(s) = 1 − q + q e^s |

p falls like |s|^(−r/2−1) to the left and like e^−s s^(−r/2−1) to the right. So the power's limit (1−q)^w is taken
out on the left, and remove has a finite M(z) for Re z <= 0 only: it lives on the strip −1 < Re z < 0.
"""

from __future__ import annotations

import cmath
import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from flint import acb, arb, ctx

from dpbench.errors import DpbenchError
from dpbench.privacy.certified._bound import LiftedLine, best_lift
from dpbench.privacy.certified._mixture import MOST_NODES, Direction, positive, spend_on_sums, sums_of_powers, widened
from dpbench.privacy.certified._numbers import ball_of, integral, spend, working_bits

GROWTH = 1.25  # of the pieces on which the tails in s are bounded
COARSE_BITS = 64


@dataclass(frozen=True)
class Piece:
    """Beyond `edge`, up to the next piece: a bound of the integrand's modulus; and of the whole outside from here."""

    edge: float
    outside: Any


@dataclass(frozen=True)
class JlFactor:
    """One invocation, one direction; `rate` is q in (0, 1], `projections` is r."""

    rate: Fraction
    noise_multiplier: float
    projections: int
    direction: Direction

    @property
    def cost(self) -> float:
        """What one value of the density takes in the bits now in force, of the work that `spend` counts."""
        far = math.sqrt(self.projections) / (2 * self.noise_multiplier)  # the least argument of the Bessel function
        return (60.0 + self.projections / 5) * (1 + (ctx.prec / 300) ** 2) * (1 + far / 50)

    def kappa(self, c: Any) -> Any:
        """The exponent of R on the line Re z = c."""
        return 1 + c if self.direction == "remove" else -c

    def largest_loss(self) -> Any:
        """−log(1 − q) in the add direction; otherwise None."""
        return -ball_of(1 - self.rate).log() if self.direction == "add" else None

    # Balls.

    def constants(self) -> tuple[Any, Any, Any, Any]:
        """σ², r, β = 1/(8σ²) and the constant of p(s), in the bits now in force."""
        precision, r = arb(self.noise_multiplier) ** 2, arb(self.projections)
        constant = (precision / (2 * arb.pi())).sqrt() * ((r / 2).log() * r / 2 - (r / 2).lgamma()).exp() * 2
        return precision, r, 1 / (8 * precision), constant

    def bessel_part(self, square: Any, analytic: bool = False) -> Any:
        """2 (r/2)^(r/2)/Γ(r/2) σ/√(2π) (β/α)^(ν/2) K_ν(2√(αβ)), α = (r + σ² square)/2, ν = (r+1)/2.

        With `square` = s² it is p(s) e^(s/2). Non-finite where `analytic` is asked and Re α > 0 is not sure.
        """
        precision, r, beta, constant = self.constants()
        alpha = (r + precision * square) / 2
        if analytic and not alpha.real > 0:
            return acb("nan")
        order = (r + 1) / 2
        argument = 2 * (alpha * beta).sqrt()
        return constant * ((beta / alpha).log() * order / 2).exp() * argument.bessel_k(type(argument)(order))

    def ratio(self, s: Any) -> Any:
        """R(s)."""
        return ball_of(1 - self.rate) + ball_of(self.rate) * s.exp()

    def room(self, c: float, digits: float) -> tuple[float, float]:
        """The height y and the step in s for an aliasing error below e^(−digits), in doubles (section 9.3)."""
        r, precision = self.projections, self.noise_multiplier**2
        kappa = float(self.kappa(c))
        best = (0.0, 0.0)
        ceiling = min(math.pi / 2, math.sqrt(r / precision) / 2)
        for part in range(1, 100):
            y = ceiling * part / 100
            loss = -r / 2 * math.log1p(-4 * precision * y * y / r) + min(kappa, 0.0) * math.log(math.cos(y)) + 2
            best = max(best, (2 * math.pi * y / (digits + loss), y))
        return best[1], best[0]

    def aliasing(self, c: Any, h: Any, height: Any) -> Any:
        """The bound of what the trapezoidal sum over s differs from the integral, at any u >= 0 (section 9.3)."""
        precision, r, _, _ = self.constants()
        kappa = self.kappa(c)
        decay = (-2 * arb.pi() * height / h).exp()
        spread = (-(r / 2) * (1 - 4 * precision * height**2 / r).log()).exp()
        level = arb(1)
        turned = arb(1)
        if not kappa >= 0:
            level = ball_of(1 - self.rate) ** kappa
            turned = height.cos() ** kappa
        return positive(2 * level * (1 + spread * turned) * decay / (1 - decay))

    def pieces(self, side: int, c: float, height: float, most: float, step: float) -> list[Piece]:
        """From the middle outwards: edges, and a proven bound of everything beyond each (section 9.4).

        Of h Σ over nodes `step` apart as well as of the integral, for all heights up to `height`. `most` bounds |w|.
        """
        spend(2000)
        edges, length = [0.0], max(0.25 / self.noise_multiplier, 1e-3)
        last = 20 + 2 * math.log(max(most, 2.0)) - math.log(float(self.rate)) + 4 * height
        if self.rate != 1:
            last -= math.log(float(1 - self.rate))
        decay = self._last_rate(side, c)
        while abs(edges[-1]) < last or abs(edges[-1]) * decay < 400:
            spend(self.cost)
            edges.append(edges[-1] + side * length)
            length *= GROWTH
        total = self._last_piece(edges[-1], side, arb(c), arb(height), arb(most), arb(step))
        found = [Piece(edges[-1], positive(total))]
        for start, end in reversed(list(itertools.pairwise(edges))):
            highest = self._highest(start, end, side, arb(c), arb(height), arb(most))
            total = positive(total + highest * (abs(end - start) + arb(step)))
            found.append(Piece(start, total))
        return found[::-1]

    def _last_rate(self, side: int, c: float) -> float:
        """How fast the integrand falls at last, in doubles."""
        kappa = float(self.kappa(c))
        if side > 0:
            return 1 - max(kappa, 0.0)
        return 1.0 if self.rate != 1 else kappa

    def _highest(self, start: float, end: float, side: int, c: Any, height: Any, most: Any) -> Any:
        """A bound of the modulus for |s| between |start| and |end|."""
        near, far = arb(start), arb(end)
        nearest = (near**2 - height**2).real
        part = self.bessel_part(nearest) * (-(near if side > 0 else far) / 2).exp()
        return positive(part * self._power_bound(near, far, side, c, height, most))

    def _power_bound(self, near: Any, far: Any, side: int, c: Any, height: Any, most: Any) -> Any:
        """A bound of |R^w − (1−q)^w| for s + iy, s between the two, 0 <= y <= height, |w| <= most, u >= 0."""
        kappa = self.kappa(c)
        rest = ball_of(1 - self.rate)
        limit = rest**kappa if self.rate != 1 else arb(0)
        if kappa >= 0:
            plain = self.ratio(far if side > 0 else near) ** kappa + limit
        else:
            plain = self.ratio(near if side > 0 else far) ** kappa * (height / 2).cos() ** kappa + limit
        close = self._close_bound(near, c, most) if side < 0 else None
        return plain if close is None else arb(min(plain.upper(), close.upper()))

    def _close_bound(self, near: Any, c: Any, most: Any) -> Any | None:
        """The same to the left of `near`, where R is close to 1 − q: it falls like e^s. None where it is not yet."""
        rest = ball_of(1 - self.rate)
        if self.rate == 1:
            return None
        small = ball_of(self.rate) / rest * near.exp()
        if not small < arb(1) / 2:
            return None
        logarithm = small / (1 - small)
        kappa = self.kappa(c)
        return rest**kappa * most * logarithm * (abs(kappa) * logarithm).exp()

    def _last_piece(self, edge: float, side: int, c: Any, height: Any, most: Any, step: Any) -> Any:
        """A bound of everything beyond the last edge: the modulus falls there like e^(−λ|s|)."""
        at = arb(edge)
        precision, r, beta, _ = self.constants()
        if not height**2 <= r / precision:
            raise AssertionError("the strip must stay below √r/σ")
        alpha = (r + precision * (at**2 - height**2)) / 2
        # e^x K(x) falls, x >= |s|/2: what is left of p̃ is e^(−s/2 − |s|/2)
        steady = self.bessel_part(at**2 - height**2) * (2 * (alpha * beta).sqrt()).exp()
        kappa = self.kappa(c)
        if side > 0:
            rate = 1 - kappa if kappa >= 0 else arb(1)
            power = self._power_bound(at, at, side, c, height, most)
            if kappa >= 0:  # R <= R(edge) e^(s − edge), and (1−q)^κ <= R^κ
                power = 2 * self.ratio(at) ** kappa
            value = steady * (-at).exp() * power
        else:
            if self.rate == 1:
                rate, power = kappa, at.exp() ** kappa
            else:
                rate, power = arb(1), self._close_bound(at, c, most)
            if power is None:
                raise AssertionError("the last edge must lie where R is close to 1 − q")
            value = steady * power
        if not rate > 0:
            raise AssertionError("the integrand must fall beyond the last edge")
        return positive(value * (1 / rate + step))

    def moments(self, c: Any, step: Any, count: int, digits: float) -> tuple[list[Any], Any]:
        """Enclosures of M(c + i·k·step), k = 0 ... count − 1, and the radius in them that is not rounding."""
        at = float(c)
        y, step_s = self.room(at, digits)
        most = float(abs(self.kappa(at))) + count * float(step) + 1
        low, high, radius = self._range(at, y, step_s, most, digits)
        nodes = int((high - low) / step_s) + 1
        if nodes > MOST_NODES:
            raise DpbenchError(
                f"noise_multiplier = {self.noise_multiplier!r}: expected noise for which the moments need fewer than"
                f" {MOST_NODES} nodes, not {nodes}; certify another mechanism"
            )
        spend(nodes * self.cost)
        spend_on_sums(nodes, count, 10.0)
        height, h = arb(y), arb(step_s)
        if not (2 * height < arb.pi() and 4 * height**2 * arb(self.noise_multiplier) ** 2 < self.projections):
            raise AssertionError("the lifted strip must stay below π and √r/σ")
        radius = positive(radius + self.aliasing(c, h, height))
        values = self._sums(c, step, count, arb(low), h, height, nodes)
        return widened(values, radius, self.direction), radius

    def _range(self, c: float, y: float, step: float, most: float, digits: float) -> tuple[float, float, Any]:
        """The first and the last place of the sum over s, and the bound of what lies outside of it."""
        scale = arb(-digits).exp()
        if not self.kappa(c) >= 0:
            scale *= ball_of(1 - self.rate) ** self.kappa(arb(c))
        chosen = []
        for side in (-1, 1):
            pieces = self.pieces(side, c, y, most, step)
            good = [piece for piece in pieces if piece.outside < scale]
            chosen.append(good[0] if good else pieces[-1])
        return chosen[0].edge, chosen[1].edge + step, chosen[0].outside + chosen[1].outside

    def _sums(self, c: Any, step: Any, count: int, low: Any, h: Any, height: Any, nodes: int) -> list[Any]:
        """The finite sums over s for all u, by the product of two matrices; the limit of the power taken out."""
        kappa = self.kappa(c)
        weights, phases = [], []
        whole = acb(0)
        for j in range(nodes):
            s = acb(low + j * h, height)
            weight = h * self.bessel_part(s * s) * (-s / 2).exp()
            logarithm = self.ratio(s).log()
            whole += weight
            weights.append(weight * (kappa * logarithm).exp())
            phases.append((acb(0, step) * logarithm).exp())
        sums = sums_of_powers(weights, phases, count)
        if self.rate == 1:
            return sums
        log_rest = ball_of(1 - self.rate).log()
        return [value + (acb(kappa, k * step) * log_rest).exp() * (1 - whole) for k, value in enumerate(sums)]

    def upper(self, a: Any) -> Any:
        """An upper bound of M(a) for real a."""
        values, _ = self.moments(a, arb(0), 1, 30.0)
        return arb(values[0].real.upper())

    # The plan and the tail in u.

    def log_moment(self, c: float) -> float:
        """log M(c) in doubles; inf where it is infinite."""
        if self.direction == "remove" and c > 0:
            return math.inf
        if c not in self._known:
            with working_bits(COARSE_BITS):
                values, _ = self.moments(arb(c), arb(0), 1, 24.0)
                self._known[c] = float(values[0].real.mid().log())
        return self._known[c]

    @cached_property
    def _known(self) -> dict[float, float]:
        return {}

    @cached_property
    def _grid(self) -> tuple[float, list[tuple[float, float]]]:
        """Places s and p(s) there, in doubles, to search contours with; and the step between them."""
        with working_bits(COARSE_BITS):
            width = min(1.0, 1 / self.noise_multiplier)
            reach = 12 * width + 40.0 * min(1.0, width)
            step = reach / 160
            places = [(j - 100) * step for j in range(261)]
            return step, [(s, float((self.bessel_part(arb(s) ** 2) * (-arb(s) / 2).exp()).mid())) for s in places]

    def estimate(self, c: float, u: float, line: LiftedLine) -> float:
        """log of the bound of |M(c + iu')|, u' >= u, along a contour, in doubles."""
        kappa, q = float(self.kappa(c)), float(self.rate)
        r, precision = self.projections, self.noise_multiplier**2
        step, places = self._grid
        total = inside = 0.0
        spend(1000)
        for s, density in places:
            y, slope = line.height(s)
            inside += density * step
            if y * y * precision >= 0.98 * (r + precision * s * s):
                return math.inf
            # p̃/p: exactly (α/α̃)^(ν/2) K(2√(α̃β))/K(2√(αβ)); near enough for a search
            lifted = -0.5 * (r + 1) * math.log1p(-precision * y * y / (r + precision * s * s))
            logarithm = cmath.log(1 - q + q * cmath.exp(complex(s, y)))
            exponent = kappa * logarithm.real - u * logarithm.imag + lifted
            total += math.sqrt(1 + slope * slope) * density * math.exp(min(exponent, 600.0)) * step
        rest = max(0.0, 1 - inside) * ((1 - q) ** kappa if q < 1 else 0.0)
        return math.log(total + rest)

    def lift(self, c: float, u: float, start: Any = None, fixed: bool = False) -> tuple[float, Any]:
        """log of a bound of |M(c + iu')| for all u' >= u in doubles, and the contour that gives it."""
        if fixed and start is not None:
            return self.estimate(c, u, start), start
        ceiling = 0.9 * min(math.pi, math.sqrt(self.projections) / self.noise_multiplier)
        width = 1 / self.noise_multiplier
        starts = [
            LiftedLine(ceiling * t, m) for t in (1, 0.5, 0.1, 0.01) for m in (-6 * width, -2 * width, 0.0, 2.0, 5.0)
        ]
        return best_lift(lambda line: self.estimate(c, u, line), starts if start is None else [start], ceiling, 2.0, 14)

    def tail(self, c: Any, u: Any, line: LiftedLine, digits: float) -> Any:
        """A proven upper bound of |M(c + iu')| for all u' >= u (section 9.5).

        On the real line up to −S, there up to the contour, and along it: |(1−q)^w| and R^κ on the first stretch.
        """
        kappa = self.kappa(c)
        top, middle = arb(line.top), arb(line.middle)
        at = float(c)
        step = 1e-3
        low, high, outside = self._range(at, line.top, step, float(abs(kappa)) + float(u) + 1, digits)
        low = min(low, line.middle - 30.0, -40.0)
        imaginary = acb(0, 1)

        def modulus(s: Any, analytic: bool) -> Any:
            share = 1 / (1 + (middle - s).exp())
            y = top * share
            slope = y * (1 - share)
            above = self.ratio(s + imaginary * y).log(analytic=analytic)
            below = self.ratio(s - imaginary * y).log(analytic=analytic)
            exponent = kappa * (above + below) / 2 - u * (above - below) / (2 * imaginary) - s / 2
            density = self.bessel_part(s * s - y * y, analytic)
            return (1 + slope * slope).sqrt(analytic=analytic) * density * exponent.exp()

        tolerance = arb(-digits).exp()
        total = self._integral(modulus, low, high, tolerance)
        plain = self._integral(
            lambda s, analytic: self.bessel_part(s * s, analytic) * (-s / 2).exp(), low, high, tolerance
        )
        # left of −S: at most the larger of R(−S)^κ and (1−q)^κ, times the probability there
        edge = arb(low)
        levels = self.ratio(edge) ** kappa
        if self.rate != 1:
            levels = positive(levels.max(ball_of(1 - self.rate) ** kappa))
        if self.rate != 1:
            total += levels * positive((1 - plain).real)
        else:
            total += outside
        # the upright from −S to the contour, and the right tail
        rise = top / (1 + (middle - edge).exp())
        upright = self.bessel_part(edge**2 - rise**2) * (-edge / 2).exp() * levels
        if not kappa >= 0:
            upright *= (rise / 2).cos() ** kappa
        total += rise * upright
        stretch = (1 + (top / 4) ** 2).sqrt()
        beyond = [piece for piece in self.pieces(1, at, line.top, float(abs(kappa)) + 1, step) if piece.edge <= high]
        total += stretch * beyond[-1].outside
        return positive(total)

    def single_delta(self, epsilon: Any) -> Any | None:
        """δ(ε) of one invocation alone, by direct integration over s (section 9.6).

        None where the ball of ε does not decide on which side of the add direction's largest loss it lies.
        """
        rest, rate, growth = ball_of(1 - self.rate), ball_of(self.rate), epsilon.exp()
        level = ((growth if self.direction == "remove" else 1 / growth) - rest) / rate
        if level <= 0:
            return arb(0)
        if not level > 0:
            return None
        cross = level.log()
        reach = 30.0 + 0.7 * ctx.prec + abs(float(cross))
        tolerance = arb(2) ** (50 - ctx.prec)

        def density(s: Any, analytic: bool) -> Any:
            return self.bessel_part(s * s, analytic) * (-s / 2).exp()

        def gain(s: Any, analytic: bool) -> Any:
            if self.direction == "remove":
                return density(s, analytic) * (self.ratio(s) - growth)
            return density(s, analytic) * (1 - growth * self.ratio(s))

        # P(s > S) <= e^−S, for E e^s = 1; P(s < −S) is what is left
        small = arb(-reach).exp()
        below = 1 - self._integral(density, -reach, reach, tolerance) - small / 2 + arb(0, small / 2)
        middle = float(cross.mid())
        near = integral(gain, middle, cross, self.cost, rel_tol=tolerance, abs_tol=tolerance).real
        if self.direction == "remove":
            # beyond S: e^s p(s) = p(−s), so that the mixture has (1−q) P(s > S) + q P(s < −S)
            inside = self._integral(gain, middle, reach, tolerance) - near
            return inside + rate * below + arb(0, (1 + growth) * small)
        inside = self._integral(gain, -reach, middle, tolerance) + near
        return inside + (1 - growth * rest) * below + arb(0, growth * rate * small)

    def _integral(self, integrand: Any, low: float, high: float, tolerance: Any) -> Any:
        """acb.integral, cut where the integrand changes its nature."""
        cuts = sorted({low, high, *(cut for cut in (-10.0, -2.0, 0.0, 2.0, 10.0) if low < cut < high)})
        return sum(
            (
                integral(integrand, a, b, self.cost, abs_tol=tolerance, rel_tol=tolerance, eval_limit=100_000).real
                for a, b in itertools.pairwise(cuts)
            ),
            arb(0),
        )
