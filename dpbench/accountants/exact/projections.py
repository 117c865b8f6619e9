"""Releases of random sensitivity (`RandomSensitivityGaussian`): their law, their nodes, and their large losses.

| here | meaning |
| --- | --- |
| s | the log ratio of N(Z, σ²) to N(0, σ²), Z = (χ²_r/r)^(−1/2); given Z it is N(−Z²/(2σ²), Z²/σ²) under N(0, σ²) |
| p(s) | its density, mixed over Z; e^s p(s) = p(−s) |
| R, l | 1 − q + q e^s and log R, whatever Z is: the likelihood ratio, and the loss of the direction remove |
| g(s) | a window, erfc((cut − s)/width)/2: 0 for small s, 1 for large s |

p falls like |s|^(−r/2−1) to the left and like e^(−s) s^(−r/2−1) to the right, so that in the direction remove M(z) is
infinite for Re z > 0. Hence a release's M is split, E + j: in E its large losses, those with g, count as 0,

    E(z) = 1 + ∫ p (1 − g) R (R^z − 1) ds + d (1 − 2^(−z)),    j(z) = ∫ p g R (R^z − 1) ds − d (1 − 2^(−z)).

**E** is entire, and Π E^T is integrated like any other M. Its last term, with d = ∫ p g (R − 1) ds, makes up for what
the window takes from ∫ p (R − 1) = 0, so that E has no first order either.

**J** = Π M^T − Π E^T = Π E^T · (Π (1 + j/E)^T − 1) is what large losses add, about as large as their probability, and 0
at z = 0. Its hyperbola crosses the axis between the poles −1 and 0 and may open to the right all the same: along a path
in s that rises to the right, p R^(1+z) falls wherever Re(z s) < 0, and this continues M from Re z < 0 to the upper half
plane, up to the edge of its cut [0, ∞). What is lost are the digits by which T · P(large loss) exceeds δ.

**The path in s.** p is analytic off the cuts from ±i√r/σ to ±i∞, and log R below its zeros at log((1−q)/q) + iπ, + 3iπ,
... to the right of which it may rise. Nodes are equidistant in x(s), and the height is a share of ds/dx: so the path
passes below the cut of p. To the left all losses are log(1 − q), and what is left of the mass there is one outcome.

**Add.** The loss −log R is at most −log(1 − q), E with a window that is far out is M, and no J is needed.

**Error.** As that of `contour`, of two evaluations with other windows, other nodes and other paths, and what lies
between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dpbench.accountants import _complex
from dpbench.accountants._complex import Complex, Floats
from dpbench.accountants._work import spend
from dpbench.accountants.exact.contour import (
    UNIT,
    Nodes,
    Part,
    Path,
    Setup,
    Sum,
    Way,
    first_order,
    moments,
    path,
)
from dpbench.accountants.exact.direction import ContourDirection, Direction, Value
from dpbench.accountants.exact.saddle import Saddle
from dpbench.errors import DpbenchError
from dpbench.events import RandomSensitivityGaussian
from dpbench.guards import ELSEWHERE

_TINY = 1e-300
# the path in s
_HEIGHT, _STEP, _COARSE = 0.4, 0.05, 0.25  # in x: its height, below which nothing is singular, and steps
_PACE, _BROAD = 2.0, 16.0  # ds/dx where losses are moderate, and where it starts to grow
_SLOPE, _LIFT = (
    0.4,
    0.8,
)  # of its rise: below 1, where the window falls along it; and widths that it rises by at the cut
_DIGITS = 44.0  # nodes e^−44 below the largest are left out
_LEFT, _SOFT = -28.0, 1.2  # from here to the left all losses are log(1 − q), but for e^−28 of it
_DEEP = -92.0  # the left end without sampling, for Re z >= −1/2
# the window
_ENDS, _GONE = 8.3, 27.0  # widths from the cut where it is below 1e-30, and below every double
_APART = 7.0  # widths at least between s = 0 and the cut
_NARROW = 0.125  # a width that is small enough for small losses
_FAR_OUT = 40.0  # its cut for add: p has e^−40 beyond
_LOST, _MANY = 1e3, 0.3  # there may be as many large losses, times δ; and so many at most
_LEAST = 1e-3  # the least loss that is large
_OUTCOME = math.log(2.0)
_TILT = 24.0  # E's crossing times the loss at the cut, at most: else E sees but the window
# the paths in z
_LEFTMOST = 0.5
_STEEPEST, _SHARE, _FLATTEST = 0.7, 0.8, 1e-3  # as for E
_ALIAS, _END, _CHUNK, _MOST_NODES = 38.0, 40.0, 48, 6000
_OTHER = 0.87  # the scale of the second evaluation
_SHARED, _SERVES = 3.0, 3e-10  # paths serve another ε up to e^3 lost, and this relative error
_SERVED = 0.5  # and this far off, relative, for the window depends on ε
_STEPS = 60
_MOST = 1e4  # ε beyond which windows are too wide
_SKETCHED = 1e10  # the largest s that is looked at to choose paths


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
    """One release of random sensitivity in one direction: E, with the window at `cut`, `width` wide; and j."""

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
        """1 − g, and where all losses are log(1 − q) nothing."""
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
        for _ in range(_STEPS):  # Newton's steps
            change = (place(real) - x) * pace(real)
            real = real - change
            if np.all(np.abs(change) <= 1e-12 * (a + np.abs(real))):
                break
        else:
            raise ArithmeticError("the nodes of a release of random sensitivity are not found")
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
        outcomes = [(1 - weights.sum() - beyond) * math.exp(removing * lowest), -less], [lowest + 0j, -_OUTCOME]
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
    """The release in the direction remove with its window at `loss` > 0, up to a quarter of it wide.

    Where losses are small they grow like e^s: there it is narrower, so that it falls faster than e^(cl) rises.
    """
    cut = math.log1p(math.expm1(loss) / rate) if loss < 30 else loss - math.log(rate)
    slope = 1 - (1 - rate) * math.exp(-loss)  # dl/ds
    return Projected(rate, law, "remove", cut, min(loss / slope / 4, cut / _APART, max(_NARROW, loss)))


def _jumps(setup: Setup, epsilon: float, scale: float) -> Path:
    """The path of J, whose strip lies between the poles −1 and 0, for δ next to `epsilon`."""
    left = min(_LEFTMOST, 2 / max(epsilon, _TINY)) * scale
    sets, slope = [], _STEEPEST
    for part in setup.parts:
        nodes = part.release.nodes(left, scale)
        large = part.release.large(300 / left, scale) if isinstance(part.release, Projected) else None
        for some in (nodes,) if large is None else (nodes, large):
            up = some.losses.real > _TINY
            slope = min(slope, _SHARE * float((some.losses.imag[up] / some.losses.real[up]).min(initial=1.0)))
        sets.append((part, nodes, first_order(nodes, "remove"), large))
    alpha = 0.5 * math.atan(max(slope, _FLATTEST))
    mu, step = 0.85 * left / math.sin(2 * alpha), 2 * math.pi * alpha / _ALIAS
    rows: list[tuple[Complex, Complex, Floats, Complex, Floats]] = []
    count, top = 0, -math.inf
    while count < _MOST_NODES:
        angle = alpha + 1j * step * np.arange(count, count + _CHUNK)
        z = mu * np.sin(angle) - left
        weight = step / math.pi * mu * np.cos(angle) / (z * (z + 1))
        weight[0] *= 1.0 if count else 0.5
        small, risen = setup.gaussian * z * (z + 1) / 2, np.zeros_like(z)  # log Π E^T and log Π (1 + j/E)^T
        noise, wrong = UNIT * np.abs(small), np.zeros(len(z))
        for part, nodes, first, large in sets:
            one = moments(z, nodes, first)
            small, off = small + part.count * one.log, one.rounding + one.aliasing
            noise = noise + part.count * off
            if large is not None and isinstance(part.release, Projected):
                value, error = _jump(z, large, part.release.masses)
                ratio = value * _complex.exp(-one.log)
                grown = _complex.log1p(ratio)
                risen = risen + part.count * grown
                error = error * np.abs(_complex.exp(-one.log)) + np.abs(ratio) * off
                wrong = wrong + part.count * error * np.abs(_complex.exp(-grown))
        height = np.maximum(small.real, (small + risen).real)
        whole, base = _complex.exp(small + risen - height), _complex.exp(small - height)
        little = np.abs(risen) < 1
        grown = np.where(little, base * _complex.expm1(np.where(little, risen, 0)), whole - base)
        logs = height + np.log(np.abs(grown) + _TINY) - epsilon * z.real + np.log(np.abs(weight))
        logs = np.where(np.isfinite(logs), logs, -1 / _TINY)
        top = max(top, float(logs.max()))
        low = logs < top - _END
        over = np.flatnonzero(low[2:] & low[1:-1] & low[:-2])
        end = max(int(over[0]), 0 if rows else 4) if len(over) else _CHUNK
        error = np.abs(grown) * noise + wrong * np.abs(whole)
        rows.append((z[:end], weight[:end], height[:end], grown[:end], error[:end]))
        count += _CHUNK
        if len(over):
            break
    z, weight, height, grown, error = (np.concatenate(column) for column in zip(*rows, strict=True))
    return Path(float(abs(z[0])), z, weight, height, grown, error, 1, step, "nothing")


def _jump(z: Complex, large: Nodes, masses: tuple[float, float, float]) -> tuple[Complex, Floats]:
    """j at these z, with its error."""
    spend(len(z) * len(large.weights))
    pull = np.multiply.outer(z, large.losses)
    terms = np.exp(np.minimum(pull.real, 700.0)) * (1 + _complex.turn(pull.imag)) * large.weights
    sizes = np.abs(terms)
    twin = terms @ np.where(np.arange(len(large.weights)) % 2, -1.0, 1.0)  # half of S_h − S_2h
    rounding = (sizes * (np.abs(pull) + 2 + np.abs(np.log(np.abs(large.weights) + _TINY)))).sum(axis=1)
    aliasing = np.abs(twin) ** 2 / np.maximum(sizes.sum(axis=1), _TINY)
    value = terms.sum(axis=1) - masses[0] + masses[1] * _complex.expm1(-_OUTCOME * z)
    return value, UNIT * (rounding + 16 * masses[0]) + aliasing


@dataclass(frozen=True)
class Laid:
    """The paths of E and of J, laid for one ε; what is not on them is at most `left`."""

    paths: tuple[Path, ...]
    epsilon: float
    left: float

    def serves(self, epsilon: float, most: float) -> bool:
        """Whether at another ε no more than e^most is lost, and the window is about where it should be."""
        apart = abs(epsilon - self.epsilon)
        return max(one.crossing for one in self.paths) * apart <= most and apart <= _SERVED * self.epsilon

    def at(self, epsilons: Floats) -> Sum:
        """δ, −dδ/dε and a bound of δ's error."""
        found = [one.at(epsilons) for one in self.paths]
        delta, fall, error = (
            np.sum(row, axis=0) for row in zip(*((f.delta, f.fall, f.error) for f in found), strict=True)
        )
        return Sum(delta, fall, error + self.left)


@dataclass(frozen=True)
class Sketch:
    """Of one release, by ascending l: the masses of both laws from there on, and the mean of l² up to there."""

    count: int
    losses: Floats
    first: Floats
    second: Floats
    squares: Floats


@dataclass
class ProjectedDirection:
    """Remove, for releases of random sensitivity, each with its rate, law and count, `beside` others."""

    projected: tuple[tuple[float, Law, int], ...]
    beside: Setup
    _sketched: list[Sketch] = field(default_factory=list, repr=False)

    @property
    def largest(self) -> float:
        """The largest loss."""
        return math.inf

    def deltas(self, epsilons: Sequence[float]) -> list[Value]:
        """δ at ascending ε >= 0, with its error; paths serve all ε next to their own where the error stays small."""
        found: list[Value] = []
        while len(found) < len(epsilons):
            epsilon = epsilons[len(found)]
            both = self.lay(epsilon, 1.0), self.lay(epsilon, _OTHER)
            near = [other for other in epsilons[len(found) :] if all(one.serves(other, _SHARED) for one in both)]
            told = _held(both, np.array(near))
            good = told.error <= _SERVES * np.abs(told.delta)
            good[0] = True
            served = len(good) if good.all() else int(np.argmin(good))
            rows = zip(told.delta[:served].tolist(), told.error[:served].tolist(), strict=True)
            found += [Value(max(delta, 0.0), error + max(-delta, 0.0)) for delta, error in rows]
        return found

    def epsilon(self, log_delta: float) -> Value:
        """The smallest ε >= 0 with δ(ε) <= e^log_delta: Newton's method on log δ by log ε, between ends."""
        target, low, high = math.exp(log_delta), 0.0, math.inf
        epsilon, laid, looked = self._guess(log_delta), None, False
        for _ in range(_STEPS):
            if laid is None or not laid.serves(epsilon, 1.0):
                laid = self.lay(epsilon, 1.0, log_delta)
            delta, fall, error = _first(laid.at(np.array([epsilon])))
            low, high = (max(low, epsilon), high) if delta > target else (low, min(high, epsilon))
            if epsilon == 0 and delta <= target:
                return Value(0.0, max(delta + error - target, 0.0) / max(fall, _TINY))
            following = -1.0
            if delta > 2 * error and fall > 0:
                change = math.log(delta / target) * delta / fall / max(epsilon, _TINY)
                following = epsilon * math.exp(min(max(change, -3.0), 3.0))
                if abs(change) < max(1e-13, 0.01 * error / fall / max(epsilon, _TINY)):
                    break
            if not low < following < high:
                following = 4 * low + 1e-6 if math.isinf(high) else math.sqrt(low * high) or high / 100
            if low == 0 and following < _LEAST and not looked:  # it may be 0
                looked, following = True, 0.0
            epsilon = following
        both = self.lay(epsilon, 1.0, log_delta), self.lay(epsilon, _OTHER, log_delta)
        delta, fall, error = _first(_held(both, np.array([epsilon])))
        if not (fall > 0 and error + abs(delta - target) < target / 2):
            raise ArithmeticError(f"the contours tell no more of delta than {delta:.3g} within {error:.3g}")
        return Value(epsilon, (error + abs(delta - target)) / fall + 4 * UNIT * epsilon)

    def lay(self, epsilon: float, scale: float, log_delta: float | None = None) -> Laid:
        """The paths for this ε, where δ is about e^log_delta; another `scale` is another window and other nodes."""
        if epsilon > _MOST:
            raise DpbenchError(
                f"epsilon = {epsilon:.3g}: expected at most {_MOST:g} with random sensitivity; {ELSEWHERE}"
            )
        log_delta = float(self._about(np.array([epsilon]))[0]) if log_delta is None else log_delta
        loss = self._large(epsilon, log_delta) / scale
        heavy = tuple(Part(windowed(rate, law, loss), count) for rate, law, count in self.projected)
        setup = replace(self.beside, parts=heavy + self.beside.parts)
        strip = Saddle(setup, each=False).strip(epsilon)
        share = min(1.0, _TILT / loss / strip.crossing) * scale
        inner = path(replace(setup, taken=strip.taken), strip.crossing * share, strip.reach * share, epsilon, scale)
        # large losses, and the outcome that stands for them in E
        left = 2 * sum(part.count * part.release.masses[0] for part in heavy if isinstance(part.release, Projected))
        if left < 1e-14 * math.exp(log_delta):
            return Laid((inner,), epsilon, left)
        return Laid((inner, _jumps(setup, epsilon, scale)), epsilon, 0.0)

    # ---- estimates, which choose where the paths lie and tell nothing else ----

    def _sketches(self) -> list[Sketch]:
        if not self._sketched:
            for rate, law, count in self.projected:
                x = np.arange(math.asinh(-60 / law.scale), math.asinh(_SKETCHED / law.scale), _STEP)
                _, mixed, losses = Projected(rate, law, "remove").terms(law.scale * np.sinh(x) + 0j)
                first = np.exp(mixed.real) * law.scale * np.cosh(x) * _STEP
                rows = first[::-1].cumsum()[::-1], (first * np.exp(-losses.real))[::-1].cumsum()[::-1]
                squares = np.cumsum(first * losses.real**2)
                ended = [
                    np.append(row, end) for row, end in zip((*rows, squares), (0.0, 0.0, squares[-1]), strict=True)
                ]
                self._sketched.append(Sketch(count, losses.real, *ended))
        return self._sketched

    def _about(self, epsilons: Floats) -> Floats:
        """About log δ: the sum of single releases' δ, and that of a Gaussian of the variance of losses below ε."""
        total, variance = np.zeros_like(epsilons), np.full_like(epsilons, self.beside.gaussian)
        for one in self._sketches():
            index = np.searchsorted(one.losses, epsilons)
            over = one.first[index] - np.exp(np.minimum(epsilons, 700.0)) * one.second[index]
            total = total + one.count * np.maximum(over, 0.0)
            variance = variance + one.count * one.squares[np.searchsorted(one.losses, np.maximum(epsilons, 0.5))]
        for part in self.beside.parts:
            logs, losses = part.release.law(1.0)
            variance = variance + part.count * float(np.exp(logs) @ losses**2)
        deviation = np.sqrt(np.maximum(variance, _TINY))
        x = epsilons / deviation - deviation / 2
        from scipy.special import erfcx

        near, far = (erfcx(np.maximum(at, -20.0) / math.sqrt(2)) / 2 for at in (x, x + deviation))
        gaussian = np.exp(-x * x / 2) * np.maximum(near - far, 0.0)
        return np.asarray(np.log(np.minimum(total + gaussian, 1.0) + _TINY))

    def _guess(self, log_delta: float) -> float:
        """About the ε of this δ."""
        epsilons = np.geomspace(1e-6, 1e9, 600)
        return float(np.exp(np.interp(-log_delta, np.maximum.accumulate(-self._about(epsilons)), np.log(epsilons))))

    def _large(self, epsilon: float, log_delta: float) -> float:
        """The least loss that is large: half of ε, or where larger ones are rare enough."""
        losses = np.geomspace(max(epsilon / 2, _LEAST), 4 * max(epsilon / 2, 0.5), 61)
        many = np.sum([one.count * one.first[np.searchsorted(one.losses, losses)] for one in self._sketches()], axis=0)
        rare = np.flatnonzero(many <= min(_LOST * math.exp(log_delta), _MANY))
        return float(losses[rare[0] if len(rare) else -1])


def _first(told: Sum) -> tuple[float, float, float]:
    return float(told.delta[0]), float(told.fall[0]), float(told.error[0])


def _held(both: tuple[Laid, Laid], epsilons: Floats) -> Sum:
    """δ by the first; its error is the larger one, and twice what lies between them."""
    first, second = (one.at(epsilons) for one in both)
    error = np.maximum(first.error, second.error) + 2 * np.abs(first.delta - second.delta)
    if not np.isfinite(error).all():
        raise ArithmeticError("the transform of a random sensitivity overflows on the path of its integral")
    return Sum(first.delta, first.fall, error)


def projected_directions(
    releases: Sequence[tuple[RandomSensitivityGaussian, int]], remove: Setup, add: Setup
) -> tuple[Direction, Direction]:
    """Remove and add of a composition of these releases, of which none is silent, beside what the setups have.

    Where nothing is sampled both are one object: the pair is its own reverse. Raises DpbenchError where some releases
    are sampled and others are not, for then both directions have heavy tails.
    """
    laws = tuple(
        (event.sampling_rate, Law(event.noise_multiplier, event.projections), count) for event, count in releases
    )
    whole = [rate == 1 for rate, _, _ in laws]
    removing = ProjectedDirection(laws, remove)
    if all(whole) and not remove.parts:
        return removing, removing
    if any(whole):
        raise DpbenchError(
            "sampling_rate = 1 with random sensitivity: expected no sampled releases beside it, or one rate below 1;"
            f" {ELSEWHERE}"
        )
    parts = tuple(Part(Projected(rate, law, "add"), count) for rate, law, count in laws)
    return removing, ContourDirection(replace(add, parts=parts + add.parts))
