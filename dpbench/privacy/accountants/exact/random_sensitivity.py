"""A mechanism of random sensitivity (`RandomSensitivityGaussian`): its law, and nodes without its large losses.

| here | meaning |
| --- | --- |
| s | the log ratio of N(Z, σ²) to N(0, σ²), Z = (χ²_r/r)^(−1/2); given Z it is N(−Z²/(2σ²), Z²/σ²) under N(0, σ²) |
| p(s) | its density, mixed over Z; e^s p(s) = p(−s) |
| R, l | 1 − q + q e^s and log R, whatever Z is: the likelihood ratio, and the loss of the direction remove |
| g(s) | a window, erfc((cut − s)/width)/2: 0 for small s, 1 for large s |

p falls like |s|^(−r/2−1) to the left and like e^(−s) s^(−r/2−1) to the right, so that in the direction remove M(z) is
infinite for Re z > 0. Hence a mechanism's M is split, E + j: in E its large losses, those with g, count as 0,

    E(z) = 1 + ∫ p (1 − g) R (R^z − 1) ds + d (1 − 2^(−z)),    j(z) = ∫ p g R (R^z − 1) ds − d (1 − 2^(−z)).

E is entire. Its last term, with d = ∫ p g (R − 1) ds, makes up for what the window takes from ∫ p (R − 1) = 0, so that
E has no first order either.

**The path in s.** p is analytic off the cuts from ±i√r/σ to ±i∞, and log R below its zeros at log((1−q)/q) + iπ, + 3iπ,
... to the right of which it may rise. Nodes are equidistant in x(s), and the height is a share of ds/dx: so the path
passes below the cut of p. To the left all losses are log(1 − q), and what is left of the mass there is one outcome.

**Add.** The loss −log R is at most −log(1 − q), so with a window far out E is M, and no j is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpbench.privacy.accountants import _complex
from dpbench.privacy.accountants._complex import Complex, Floats
from dpbench.privacy.accountants._work import spend
from dpbench.privacy.accountants.exact.contour import Nodes, Way

_TINY = 1e-300
# the path in s
_HEIGHT, _STEP, _COARSE = 0.4, 0.05, 0.25  # in x: its height, below which nothing is singular, and steps
_PACE, _BROAD = 2.0, 16.0  # ds/dx where losses are moderate, and where it starts to grow
_SLOPE = 0.4  # of its rise: below 1, where the window falls along it
_LIFT = 0.8  # widths that it rises by at the cut
_DIGITS = 44.0  # nodes e^−44 below the largest are left out
_LEFT, _SOFT = -28.0, 1.2  # from here to the left all losses are log(1 − q), but for e^−28 of it
_DEEP = -92.0  # the left end without sampling, for Re z >= −1/2
# the window
_ENDS, _GONE = 8.3, 27.0  # widths from the cut where it is below 1e-30, and below every double
_APART = 7.0  # widths at least between s = 0 and the cut
_NARROW = 0.125  # a width that is small enough for small losses
_FAR_OUT = 40.0  # its cut for add: p has e^−40 beyond
OUTCOME = math.log(2.0)  # the loss that stands for the large ones in E's last term
_NEWTON = 60  # steps


@dataclass(frozen=True)
class Law:
    """The law of s: noise σ and r projections.

    With G = Z⁻² = e^v of density ∝ e^(r(v − e^v)/2), p(s) is the mean of σ √(G/2π) e^(−(σs√G + 1/(2σ√G))²/2). With v
    from its complex saddle on, that is the integral of exp(−A(e^u − 1 − u) − B(e^−u − 1 + u)), for every r.
    """

    sigma: float
    projections: int

    @property
    def scale(self) -> float:
        """About the width of p, and no more than its distance to the cut."""
        return min(math.sqrt(self.projections), 2.0) / self.sigma

    @cached_property
    def _log_norm(self) -> float:
        half = np.array([self.projections / 2 + 0j])
        return (
            float(_log_bell(half, np.zeros(1, np.complex128))[0].real)
            + math.log(2 * math.pi) / 2
            - math.log(self.sigma)
        )

    def log_density(self, s: Complex) -> tuple[Complex, Complex]:
        """log p(s) and log p(s) + s, to about 1e-14: on the right the second keeps digits, on the left the first.

        >>> low, high = Law(1.0, 3).log_density(np.array([-0.7, 0.7]) + 0j)
        >>> round(float((low[0] - high[1]).real), 12)
        0.0
        """
        sigma, r = self.sigma, self.projections
        order, alpha = (r + 1) / 2, np.asarray((r + (sigma * s) ** 2) / 2, np.complex128)
        bend = np.asarray(np.sqrt(order**2 + alpha / (2 * sigma**2)), np.complex128)
        v = np.log((order + bend) / (2 * alpha))  # the saddle
        right = s.real > 0
        root = sigma * np.exp(v / 2)
        inner = np.where(right, s, -s) * root - 0.5 / root
        top = r / 2 * (v - _complex.expm1(v)) + v / 2 - inner * inner / 2 - self._log_norm
        found = top + _log_bell((bend + order) / 2, alpha / (4 * sigma**2) / (bend + order))
        return found - np.where(right, s, 0), found + np.where(right, 0, s)


def _log_bell(a: Complex, b: Complex) -> Complex:
    """log ∫ exp(−a (e^u − 1 − u) − b (e^−u − 1 + u)) du for Re a >= 1/2 and Re b >= 0, to about 1e-15."""
    fall, rise = 40 / a.real, 80 / np.maximum(b.real, _TINY)  # the ends are where an exponent passes 40
    left = np.minimum(fall / 2 + np.sqrt(fall**2 / 4 + 2 * fall), np.minimum(np.sqrt(rise), 2 + np.log1p(rise / 2)))
    right = np.minimum(np.sqrt(2 * fall), 1 + np.log1p(fall))
    count = int(np.max((left + right) * np.sqrt(np.abs(a + b) + 5) / 0.55)) + 1
    spend(3 * len(a) * count)
    u = np.multiply.outer(left + right, np.arange(count + 1) / count) - left[:, None]
    up, down = np.expm1(u) - u, np.expm1(-u) + u
    sizes = np.exp(-a.real[:, None] * up - b.real[:, None] * down)
    turned = sizes * _complex.turn(-a.imag[:, None] * up - b.imag[:, None] * down)
    return np.asarray(_complex.log(sizes.sum(axis=1) + turned.sum(axis=1)) + np.log((left + right) / count))


@dataclass(frozen=True)
class Projected:
    """One invocation of random sensitivity in one direction: E, with the window at `cut`, `width` wide; and j."""

    rate: float
    density: Law
    way: Way
    cut: float = _FAR_OUT
    width: float = 1.0

    @property
    def largest(self) -> float:
        """The largest loss."""
        return -self.lowest if self.way == "add" else math.inf

    @property
    def lowest(self) -> float:
        """The infimum of l."""
        return math.log1p(-self.rate) if self.rate < 1 else -math.inf

    @property
    def _zero(self) -> float:
        """Re s of the zeros of R."""
        return math.log1p(-self.rate) - math.log(self.rate) if self.rate < 1 else -math.inf

    def terms(self, s: Complex) -> tuple[Complex, Complex, Complex]:
        """log p, log p R and l below the zeros of R; l with relative digits where R is near 1."""
        plain, even = self.density.log_density(s)
        if self.rate == 1:
            return plain, even, s
        right, moved = s.real > self._zero, s - self._zero
        rest = _complex.log1p(_complex.exp(np.where(right, -moved, moved)))
        losses = np.where(right, moved, 0) + rest + self.lowest
        near = (np.abs(losses) < 0.5) & (s.real > -1)  # left of −1 log(1 − q) is most of it
        losses[near] = _complex.log1p(self.rate * _complex.expm1(s[near]))
        return plain, np.where(right, even + math.log(self.rate) + rest, plain + losses), losses

    def _above(self, s: Complex) -> Complex:
        """g."""
        from scipy.special import erfc

        return np.asarray(erfc((self.cut - s) / self.width) / 2)

    def _below(self, s: Complex) -> Complex:
        """1 − g; where all losses are log(1 − q) it falls to 0."""
        from scipy.special import erfc

        kept = erfc((s - self.cut) / self.width) / 2
        return np.asarray(kept * erfc((_LEFT - s) / _SOFT) / 2 if self.rate < 1 else kept)

    def _path(
        self, ends: tuple[float, float], near: bool, rise: float, height: float, step: float
    ) -> tuple[Complex, Complex]:
        """s and ds at equidistant x, lifted by `height` · ds/dx and rising from `rise` on.

        dx/ds = 1/√(a² + s²) + Σ 1/(k √(1 + ((s − m)/b)²)): ds/dx is small next to the cut in p and next to the window;
        `near` 0 it is at most `_PACE`, else it grows like s.
        """
        a, w = self.density.scale, self.width
        bumps = [(0.0, a, a), (self.cut, 2 * w, 1.2 * w), *([(0.0, _BROAD, _PACE)] if near else [])]

        def place(s: Floats) -> Floats:
            return np.asarray(sum(b / k * np.arcsinh((s - m) / b) for m, b, k in bumps))

        def pace(s: Floats) -> Floats:
            return np.asarray(1 / sum(b / k / np.hypot(b, s - m) for m, b, k in bumps))

        low, high = place(np.array(ends))
        count = int((high - low) / step) + 2
        x = low + step * np.arange(count + count % 2)
        reach = np.arcsinh((ends[1] - ends[0] + abs(self.cut)) / np.array([a, w]))
        spread = np.linspace(-1.0, 1.0, 401)
        knots = np.unique(np.concatenate([a * np.sinh(reach[0] * spread), self.cut + w * np.sinh(reach[1] * spread)]))
        real = np.interp(x, place(knots), knots)
        for _ in range(_NEWTON):  # Newton's steps
            change = (place(real) - x) * pace(real)
            real = real - change
            if np.all(np.abs(change) <= 1e-12 * (a + np.abs(real))):
                break
        else:
            raise ArithmeticError("the nodes of a mechanism of random sensitivity are not found")
        slope = pace(real)
        if not height:
            return np.asarray(real + 0j, np.complex128), np.asarray(slope * step + 0j, np.complex128)
        bend = sum(b / k * (real - m) / np.hypot(b, real - m) ** 3 for m, b, k in bumps)
        rise, width = max(rise, self._zero, self.cut - 4 * w, min(2 * a, self.cut - w / 2)), min(w, 1.0)
        lifted = min(_SLOPE, _LIFT * w / max(self.cut - rise, _TINY))
        turned = (real - rise) / width
        ds = 1 + 1j * (height * slope**2 * bend + lifted / (1 + np.exp(-np.clip(turned, -700, 700))))
        return real + 1j * (height * slope + lifted * width * np.logaddexp(0, turned)), ds * slope * step

    @cached_property
    def masses(self) -> tuple[float, float, float]:
        """∫ p g R, d = ∫ p g (R − 1) and ∫ p g: what large losses have of both laws, and their difference."""
        end = 1e31 ** (1 / self.density.projections) * max(1.0, self.density.scale**2)  # P(s > S) is about S^(−r/2)
        s, ds = self._path((self.cut - _ENDS * self.width, 1e3 * end + 2 * self.cut), False, 0.0, 0.0, _STEP)
        plain, mixed, losses = self.terms(s)
        window = (self._above(s) * ds).real
        first, second = np.exp(mixed.real) * window, np.exp(plain.real) * window
        return float(first.sum()), -float((first * np.expm1(-losses.real)).sum()), float(second.sum())

    def _real(self, most: float) -> tuple[Floats, Floats, Floats]:
        """s, log of E's w ds and l on the real line, up to where a crossing at `most` tilts the window."""
        lean = most * self.width / 2 if self.way == "remove" else 0.0
        s, ds = self._path((-60.0, self.cut + min(_ENDS + lean, _GONE) * self.width), True, 0.0, 0.0, _COARSE)
        plain, mixed, losses = self.terms(s)
        logs = mixed if self.way == "remove" else plain
        return s.real, logs.real + np.log((self._below(s) * ds).real + _TINY), losses.real

    def law(self, most: float) -> tuple[Floats, Floats]:
        """log w and l at real s."""
        _, logs, losses = self._real(most)
        kept = logs > -600
        logs, losses = logs[kept], losses[kept]
        removing = self.way == "remove"
        rest = 1 - float(np.exp(logs - removing * losses).sum()) - self.masses[2]
        if self.rate == 1 or rest < 1e-12:
            return logs, losses
        return np.append(logs, math.log(rest) + removing * self.lowest), np.append(losses, self.lowest)

    @property
    def _log_left(self) -> float:
        """A bound of log P(s < −28): Z² > σ²/2 has at most (2e/σ²)^(r/2), else −28 is 39 deviations off."""
        spread = self.density.sigma**2 / 2
        return max(self.density.projections / 2 * (1 - math.log(spread)), -760.0) + 1 if spread > math.e else 0.0

    def nodes(self, crossing: float, scale: float) -> Nodes:
        """Nodes of E."""
        c, removing = abs(crossing), self.way == "remove"
        real, logs, losses = self._real(c)
        size = logs + removing * c * losses
        bulk, last = float(real[np.argmax(size)]), float(real[np.flatnonzero(size > size.max() - _DIGITS)[-1]])
        low = _LEFT - 5.5 * _SOFT if self.rate < 1 else _DEEP
        high = self.cut + _ENDS * self.width
        if removing:  # on the path that rises terms fall more slowly
            rise = max(bulk, min(self.cut, last - 0.6 * (last - bulk)))
            high = last + 0.6 * (last - rise) + 3
        s, ds = self._path((low, high), True, bulk, _HEIGHT * scale, _STEP * scale)
        plain, mixed, ratios = self.terms(s)
        below = ds * self._below(s)
        weights = _complex.exp(plain) * below
        _, less, beyond = self.masses
        lowest = self.lowest if self.rate < 1 else low
        outcomes = [(1 - weights.sum() - beyond) * math.exp(removing * lowest), -less], [lowest + 0j, -OUTCOME]
        if not removing and self._log_left - c * lowest < -44.0:  # rounding alone would be large there
            outcomes[0][0] = 0.0
        if removing:
            weights = _complex.exp(mixed) * below
            size = np.log(np.abs(weights) + _TINY) + c * ratios.real
            end = int(np.flatnonzero(size > size.max() - _DIGITS)[-1]) + 1
            weights, ratios = weights[:end], ratios[:end]
        else:  # large losses of remove, small ones of add, are one outcome, which is e^−40 of nothing
            outcomes[1][1] = _FAR_OUT * (1 + 0.5j)
            outcomes[0][1] = less / (np.exp(outcomes[1][1]) - 1)
        outcomes[0].append(1 - weights.sum() - sum(outcomes[0]))
        outcomes[1].append(0j)
        # each outcome as two halves, an even and an odd one
        both = [np.repeat(np.array(row, np.complex128), 2) for row in outcomes]
        return Nodes(np.append(weights, both[0] / 2), np.append(ratios, both[1]))

    def large(self, reach: float, scale: float) -> Nodes:
        """Nodes of ∫ p g R e^(zl) ds, for z whose terms have fallen within `reach` of the cut."""
        ends = self.cut - _ENDS * self.width, self.cut + reach
        s, ds = self._path(ends, False, -math.inf, _HEIGHT * scale, _STEP * scale)
        _, mixed, losses = self.terms(s)
        return Nodes(_complex.exp(mixed) * ds * self._above(s), losses)


def windowed(rate: float, law: Law, loss: float) -> Projected:
    """The mechanism in the direction remove with its window at `loss` > 0, up to a quarter of it wide.

    Where losses are small they grow like e^s: there it is narrower, so that it falls faster than e^(cl) rises.
    """
    cut = math.log1p(math.expm1(loss) / rate) if loss < 30 else loss - math.log(rate)
    slope = 1 - (1 - rate) * math.exp(-loss)  # dl/ds
    return Projected(rate, law, "remove", cut, min(loss / slope / 4, cut / _APART, max(_NARROW, loss)))
