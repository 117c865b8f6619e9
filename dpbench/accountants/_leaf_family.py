"""The transforms M(z) = E_P[e^(zL)] of like releases, all at once and to nearly all digits.

| here | meaning |
| --- | --- |
| F, X, P, N | axes: releases of the family, nodes t, real points, nodes of a line |
| t | the released coordinate over σ; e^(−t²/2)/√(2π) is its density without a record |
| ρ, w | the log ratio of `_loss_leaf` and its power, slope · z + shift |
| cut, width | the window Φ((cut − t)/width): the part of a release near the end where ρ is flat |

**Quadrature.** The trapezoidal rule with step h for a function analytic in a strip misses at most about e^(−2πd/h)
times its integral along Im t = ±d. There the normal density grows by e^(d²/2), and `_leaf_strip` has the rest, by which
a line's step follows from the largest |Im w| of a block of nodes; an integrand that oscillates faster than its step
would be silently wrong. At real w >= 0 |e^(wρ(t+id))| <= e^(wρ(t)); for w < 0 and d <= πσ/2 |e^(ρ(t+id))| is at least
its infimum on the real line, since all zeros of e^ρ as a polynomial of e^(x/σ²) are negative.

**Windows.** Where Im w = u is large, t with a loss that varies there contribute next to nothing. Shift the line of
integration by id: |e^(iuρ)| falls by e^(−u ρ'(t) d), Φ((t − cut)/width) grows by e^(d²/(2 width²)), the base by
e^(d²/2); with 1/v² = 1/width² + 1 the best d leaves e^(−(uρ'(t)v)²/2). To the left of the cut, at cut − k·width,
ρ' is smaller by e^(−kη) at most, η = width/σ, and 1 − Φ by e^(−k²/2). So with u ρ'(cut) v >= g, where
min_k (g e^(−kη))²/2 + k²/2 >= 38 + log T + ..., everything right of the window is left out, and the number of nodes t
stays bounded while u grows. The same window splits a composition with few hits into a part near its atom and the rest.

Everything is written for M − 1, so that a million releases of tiny loss keep their digits. Releases without sampling
need none of this: their log M is z(z + 1)/(2σ²).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants._complex import joined
from dpbench.accountants._leaf_grid import EDGE, Ground, Landscape, Reach, normal
from dpbench.accountants._leaf_grid import RESOLVED as _RESOLVED
from dpbench.accountants._leaf_strip import Strip, log_normal, log_window, strip, windowed
from dpbench.accountants._leaf_turns import turns_of as turns_of
from dpbench.accountants._loss_leaf import UNIT, Complex, Floats, LossLeaf
from dpbench.accountants._work import spend

_NEGLIGIBLE = 42.0  # e^−42 is below 1e-18
_ROUGHLY = 26.0  # for real points: bounds and choices need no more than ten digits
_MOST_NODES = 1 << 19
_MOST_CELLS = 1 << 22  # nodes times real points that are evaluated at once
_CELLS = 1 << 16  # of one evaluated block: it stays in the cache
_FEW = 600  # nodes of a grid that needs no trimming
_BESIDE = 2.0  # log of how much larger e^(wρ) − 1 may be at t + i·height than at t, at real w
WIDE, MIDDLE, NARROW = 0.15, 0.1, 0.05  # widths of windows over σ
_FARTHEST = 40.0  # in t: where a single release's large losses are looked for


class Family:
    """Like releases, each with its count.

    With an `inner` window, what lies in that one is left out: the family is then a band, a small part of each release,
    and its transform is not near 1.
    """

    def __init__(
        self,
        leaves: Sequence[LossLeaf],
        counts: Floats,
        landscape: Landscape | None = None,
        cut: Floats | None = None,
        inner: Floats | None = None,
        share: float = WIDE,
    ) -> None:
        self.leaves, self.counts = tuple(leaves), counts
        self.landscape = Landscape(leaves) if landscape is None else landscape
        self.slope, self.shift = leaves[0].slope, leaves[0].shift
        self.sigma = self.landscape.sigma
        self.cut, self.inner = cut, inner
        self.share = share
        self.width: Floats = np.minimum(share * self.sigma, 0.4)
        self._factors: dict[Reach, Floats] = {}
        self._strips: dict[tuple[Reach, bool], Strip] = {}
        self._banded: tuple[Family, Floats | None, tuple[Family, NDArray[np.intp]] | None] | None = None
        end = np.zeros(len(leaves)) if cut is None else np.minimum(cut / np.hypot(1.0, self.width), _NEGLIGIBLE)
        self.missing: Floats = np.zeros(len(leaves)) if cut is None else _tail(end)
        self.mistaken: Floats = UNIT * (4 + 2 * end * end) * self.missing  # as the tail changes with its argument's

    def power(self, real: float) -> float:
        """w at the real point z."""
        return self.slope * real + self.shift

    @property
    def swapped(self) -> Family:
        """The family of M(−1 − z)."""
        turned = tuple(leaf.swapped for leaf in self.leaves)
        return Family(turned, self.counts, self.landscape, self.cut, self.inner, self.share)

    # ---- windows ----

    def narrowed(self, share: float) -> Family:
        """The same with windows so narrow: dearer ones, whose parts hold fewer large losses."""
        return Family(self.leaves, self.counts, self.landscape, self.cut, self.inner, share)

    def near(self, imaginary: float, power: float, spare: float) -> Floats | None:
        """Cuts of the parts near the atoms: outside, e^(iuρ) turns so fast for u >= imaginary that it vanishes.

        `spare` raises the demand, in units of the exponent. Infinite where a release has no such part yet.
        """
        if not self.landscape.poisson:
            return None
        if len(self.leaves) == 1:  # without NumPy's overhead, which is most of a short line
            found = _cut(
                float(self.landscape.weights[0, 1]), float(self.sigma[0]), float(self.width[0]), imaginary, power, spare
            )
            return np.array([found if self.cut is None else min(found, float(self.cut[0]))])
        rows = zip(self.landscape.weights[:, 1].tolist(), self.sigma.tolist(), self.width.tolist(), strict=True)
        cut = np.array([_cut(*row, imaginary, power, spare) for row in rows])
        return cut if self.cut is None else np.minimum(cut, self.cut)

    def within(self, cut: Floats | None) -> Family:
        """What lies in the windows with those cuts."""
        if cut is None or not np.isfinite(cut).any() or (self.cut is not None and (cut == self.cut).all()):
            return self
        return Family(self.leaves, self.counts, self.landscape, cut, self.inner, self.share)

    def log_mass(self, real: float) -> Floats:
        """log M(real) of each release's window if all loss in it were the one that its end tends to: about, from above.

        For sampled releases only.
        """
        level = min(self.power(real), 0.0) * np.log(self.landscape.weights[:, 0])
        inside: Floats = level + np.log1p(-np.minimum(self.missing, 1 - 1e-16))
        return inside

    def band(self, near: Family, cut: Floats | None) -> tuple[Family, NDArray[np.intp]] | None:
        """What lies in the windows with these cuts, all of it where there are none, but not in `near`; and of whom.

        None where that is nothing.
        """
        if near.cut is None:
            return None
        known = self._banded
        if known is None or known[0] is not near or not _same(known[1], cut):
            known = self._banded = near, cut, self._band(near.cut, cut)
        return known[2]

    def _band(self, inner: Floats, cut: Floats | None) -> tuple[Family, NDArray[np.intp]] | None:
        kept = np.flatnonzero(inner < (math.inf if cut is None else cut))
        if not len(kept):
            return None
        outer = None if cut is None or not np.isfinite(cut[kept]).any() else cut
        if len(kept) == len(self.leaves):
            return Family(self.leaves, self.counts, self.landscape, outer, inner, self.share), kept
        leaves = [self.leaves[k] for k in kept]
        cuts = None if outer is None else outer[kept]
        return Family(leaves, self.counts[kept], None, cuts, inner[kept], self.share), kept

    def _factor(self, t: Floats) -> Floats:
        """log of Φ((cut − t)/width), less what the inner window holds."""
        return log_window(t, self.cut, self.inner, self.width)

    # ---- nodes ----

    def _base(self, ground: Ground, reach: Reach | None = None) -> Floats:
        if self.cut is None and self.inner is None:
            return ground.base
        if reach is None:
            return ground.base + self._factor(ground.nodes)
        if reach not in self._factors:
            self._factors[reach] = ground.base + self._factor(ground.nodes)
        return self._factors[reach]

    def _survey(self, power: float, imaginary: float, resolved: float, reach: Reach) -> tuple[int, int, float]:
        """Which nodes of level 0 matter at this Re w up to this |Im w|, and the step that serves there.

        The step serves every t whose integrand is not negligible on the real line; the rest is small as it is.
        """
        ground = self.landscape.ground(reach)
        base = self._base(ground, reach)
        spend(2 * base.size)
        exponent = power * ground.ratio
        total = exponent + base
        top = total.max(axis=1)
        if self.inner is not None:
            size = total
        else:
            grown = np.log(np.abs(np.expm1(np.minimum(exponent, 0.5))) + 1e-300)
            if imaginary:
                grown = np.maximum(
                    grown,
                    np.minimum(exponent, 0.5) + np.log(np.minimum(imaginary * np.abs(ground.ratio), 2.0) + 1e-300),
                )
            size = np.where(exponent > 0.5, np.maximum(grown, exponent), grown) if exponent.max() > 0.5 else grown
            size = size + base
        least = size.max(axis=1) - (_NEGLIGIBLE + ground.step**2 / 8)
        kept = np.flatnonzero((size > least[:, None]).any(axis=0))
        if not len(kept):
            raise ArithmeticError(f"nothing is left of the transform at Re w = {power:.3g}")
        first, last = max(int(kept[0]) - 1, 0), min(int(kept[-1]) + 1, len(ground.nodes) - 1)
        heights = self.landscape.heights(reach)
        part = slice(first, last + 1)
        demand = resolved + heights**2 / 2
        windows = self.cut is not None or self.inner is not None
        if not self.landscape.poisson or not (imaginary or windows):
            demand = demand + self._rise(ground, exponent, base, power, top, part)[:, None]
        if not imaginary and not windows:
            return first, last, float((2 * math.pi * heights / demand).max(axis=1).min())
        if self.landscape.poisson and not imaginary and power >= 0:  # the most that windows grow, wherever they do
            demand = demand + (_BESIDE + (heights / self.width[:, None]) ** 2 / 2)
            growth = windowed(ground.nodes[[first, last]], heights, self.cut, self.inner, self.width)
            growth = growth + (_BESIDE + size[:, [first, last]] - size.max(axis=1)[:, None])[:, None]
        else:
            if self.landscape.poisson:
                growth = self._strip(reach, base, power < 0).growth(power, imaginary, size.max(axis=1))
                growth[:, :, :first] = growth[:, :, last + 1 : len(ground.nodes)] = -math.inf
            else:
                growth = np.full((len(top), len(heights[0]), len(ground.nodes)), -math.inf)
                growth[:, :, part] = np.minimum(total[:, None, part] - top[:, None, None], 0.0)
                growth += imaginary * self.landscape.turning(reach)
            demand = demand + np.maximum(growth.max(axis=2), 0.0)
            growth = growth[:, :, [first, last]]
        # the shifted line comes back to the real one at both ends: there every lower height has to do as well
        ends = resolved + growth.max(axis=2)
        back = np.where(ends > 0, 2 * math.pi * heights / np.maximum(ends, 1e-300), math.inf)
        steps = np.minimum(2 * math.pi * heights / demand, np.minimum.accumulate(back, axis=1))
        return first, last, float(steps.max(axis=1).min())

    def _strip(self, reach: Reach, base: Floats, negative: bool) -> Strip:
        key = reach, negative
        if key not in self._strips:
            windows = self.cut, self.inner, self.width
            self._strips[key] = strip(self.landscape, reach, base, windows, negative)
        return self._strips[key]

    def _rise(self, ground: Ground, exponent: Floats, base: Floats, power: float, top: Floats, part: slice) -> Floats:
        """How far |base e^(wρ)| may exceed, on a shifted line, its largest value on the real one."""
        if self.landscape.replaced:
            numerator = ground.base[:, part] - normal(ground.nodes[part])
            floor = np.log(self.landscape.weights[:, :1])
            largest = (power * (numerator - floor) + base[:, part]).max(axis=1)
        elif power >= 0:
            return np.zeros(len(top))
        else:
            largest = exponent[:, part].max(axis=1) - 1
        rise: Floats = np.maximum(0.0, largest - top)
        return rise

    def _reach(self, power: float) -> Reach:
        least = self._least_end(power) if self.inner is not None else 0.0
        if self.cut is None or power <= 0 or not np.isfinite(self.cut).all():
            return self.landscape.reach(power, least=least)
        # e^(power·ρ − t²/2) Φ((cut − t)/width) has its top no further right than this, and falls as Φ does
        inverse = 1 / self.width**2
        top = np.maximum((self.cut * inverse + power / self.sigma) / (1 + inverse), self.cut)
        return self.landscape.reach(power, float((top + 9.5 * self.width).max()), least)

    def _least_end(self, power: float) -> float:
        """The t beyond which next to nothing is left of what an inner window leaves.

        e^(power·ρ − t²/2) falls by e^(−(t − a)²/2 + (inner − a)²/2) at least to the right of both inner and
        a = max(power, 0)/σ.
        """
        assert self.inner is not None
        tops = max(power, 0.0) / self.sigma
        ends = tops + np.hypot(np.maximum(self.inner - tops, 0.0), math.sqrt(2 * _NEGLIGIBLE))
        if self.cut is not None:
            ends = np.minimum(ends, np.where(np.isfinite(self.cut), self.cut, math.inf) + 9.5 * self.width)
        return float(ends.max())

    def _plain(self, power: float) -> Ground | None:
        """All of level 0, which serves every real power up to this one: None where windows or a rise ask for more.

        Its step is made for RESOLVED; what _ROUGHLY asks less leaves room for a rise.
        """
        if self.cut is not None or self.inner is not None or not self.landscape.poisson:
            return None
        reach = self.landscape.reach(power)
        ground = self.landscape.ground(reach)
        if ground.ratio.size > _FEW:
            return None
        if power < 0:
            middle = len(ground.nodes) * reach.left / (reach.left + reach.right)
            lowest = ground.ratio.min(axis=1) if self.landscape.reverse else ground.ratio[:, 0]
            if float((power * (lowest - ground.ratio[:, int(middle)])).max()) > _RESOLVED - _ROUGHLY - 1:
                return None
        return Ground(ground.nodes, ground.step, ground.ratio, ground.base + math.log(ground.step))

    def variance(self, real: float) -> float:
        """The variance of all losses, each tilted by e^(real·L): roughly, to choose a scale by."""
        if self.landscape.linear:
            return float(self.counts @ (1 / self.sigma**2))
        ground = self.landscape.ground(self.landscape.reach(self.power(real)))
        exponent = self.power(real) * ground.ratio + ground.base
        weight = np.exp(exponent - exponent.max(axis=1, keepdims=True))
        whole = weight.sum(axis=1)
        mean = (weight * ground.ratio).sum(axis=1) / whole
        return float(self.counts @ ((weight * ground.ratio**2).sum(axis=1) / whole - mean * mean))

    def _nodes(self, powers: Sequence[float], imaginary: float, resolved: float) -> Ground:
        """ρ, and the log of base and step, at the nodes that serve these Re w and |Im w| <= imaginary."""
        reach = self._reach(max(powers, key=abs))
        found = [self._survey(power, imaginary, resolved, reach) for power in powers]
        first, last, step = min(f[0] for f in found), max(f[1] for f in found), min(f[2] for f in found)
        coarse = self.landscape.ground(reach).step
        if (last - first) * coarse > _MOST_NODES * step:
            raise ArithmeticError(f"the transform at Re w = {powers[0]:.3g} needs more than {_MOST_NODES} points")
        ground = self.landscape.part(reach, first, last, step)
        return Ground(ground.nodes, ground.step, ground.ratio, self._base(ground) + math.log(ground.step))

    def jump(self, log_delta: float) -> float:
        """The largest ε at which the counts times a single release's δ(ε) are e^log_delta; 0 where there is none.

        Only for sampled releases in the direction whose losses have no bound: δ(ρ(t)) = q (Φᶜ(t − 1/σ) − e^y Φᶜ(t))
        with y = t/σ − 1/(2σ²).
        """
        if not self.landscape.poisson or self.slope < 0:
            return 0.0
        t = np.linspace(0.0, _FARTHEST, 4 * int(_FARTHEST))
        rate, scale = self.landscape.weights[:, 1:], 1 / self.sigma[:, None]
        exponent = t * scale - scale * scale / 2
        tails = _log_tail(t - scale), _log_tail(t)
        single = np.log(rate) + tails[0] + np.log(-np.expm1(np.minimum(exponent + tails[1] - tails[0], -1e-12)))
        enough = single + np.log(self.counts.sum()) >= log_delta
        last = np.where(enough.any(axis=1), len(t) - 1 - enough[:, ::-1].argmax(axis=1), 0)
        loss = np.logaddexp(np.log1p(-rate), np.log(rate) + exponent)
        return max(float(loss[np.arange(len(last)), last].max()), 0.0)

    # ---- values ----

    def growth(self, points: Floats) -> tuple[Floats, ...]:
        """At ascending real points a: log M, mean and variance of the loss tilted by e^(aL), noise of log M; [F, P]."""
        powers = self.slope * points + self.shift
        if self.landscape.linear:
            return self._plain_growth(points)
        ends = (float(powers[0]), float(powers[-1]))
        ground = self._plain(max(ends, key=abs))
        if ground is None:
            ground = self._nodes(ends if ends[0] != ends[1] else ends[:1], 0.0, _ROUGHLY)
        if len(points) * len(ground.nodes) > _MOST_CELLS:
            raise ArithmeticError(f"the transform up to Re w = {powers[-1]:.3g} needs {len(ground.nodes)} points")
        rows = max(1, _CELLS // (len(points) * len(ground.nodes)))
        blocks = [
            self._growth(powers, ground.ratio[k : k + rows], ground.base[k : k + rows], self.missing[k : k + rows])
            for k in range(0, len(self.leaves), rows)
        ]
        return blocks[0] if len(blocks) == 1 else tuple(map(np.concatenate, zip(*blocks, strict=True)))

    def _plain_growth(self, points: Floats) -> tuple[Floats, ...]:
        """`growth` of releases without sampling: log M(z) = w(w − 1)/(2σ²) = z(z + 1)/(2σ²), for ρ = (2x − 1)/(2σ²).

        In terms of z, for w = z + 1 has lost the digits of a small z, and 1/σ² may be large.
        """
        half = 0.5 / self.sigma[:, None] ** 2
        value = half * (points * (points + 1))
        return value, half * (2 * points + 1), np.broadcast_to(2 * half, value.shape), 8 * UNIT * np.abs(value)

    def _plain_line(self, real: float, imaginary: Floats) -> tuple[Complex, Floats]:
        """`line` of releases without sampling: z(z + 1)/(2σ²) at z = real + iu."""
        spend(imaginary.size * len(self.leaves))
        half = 0.5 / self.sigma[:, None] ** 2
        level, square, turned = real * (real + 1), imaginary * imaginary, imaginary * (2 * real + 1)
        wrong = 8 * UNIT * half * (abs(level) + square + np.abs(turned))
        return joined(half * (level - square), half * turned), wrong

    def _growth(self, powers: Floats, ratio: Floats, log_weight: Floats, missing: Floats) -> tuple[Floats, ...]:
        exponent = powers[:, None] * ratio[:, None, :]
        loss = self.slope * ratio
        moments = np.stack([np.ones_like(loss), loss, loss * loss], axis=2)
        if self.inner is not None or float(exponent.max()) > 300:
            total = exponent + log_weight[:, None, :]
            top = total.max(axis=2)
            steep = (top > 300).any(axis=0) | (self.inner is not None)
            if steep.all():
                # not below e^−700: denormal numbers take ten times as long
                sums = np.exp(np.maximum(total - top[:, :, None], -700.0)) @ moments
                return top + np.log(sums[:, :, 0]), *_spread(sums), np.full(top.shape, 8 * UNIT)
            if steep.any():
                pair = [self._growth(powers[some], ratio, log_weight, missing) for some in (~steep, steep)]
                return tuple(np.concatenate(both, axis=1) for both in zip(*pair, strict=True))
            grown = np.where(
                exponent > 30, np.exp(np.maximum(total, -700.0)), 0.0
            )  # the rest of e^(wρ) − 1 is added below
            far, exponent = grown @ moments, np.where(exponent > 30, 0.0, exponent)
        else:
            far = np.zeros((1, 1, 3))
        weight = np.exp(log_weight)
        moments *= weight[:, :, None]
        grown = np.expm1(exponent)
        gained = grown @ moments + far
        lost = missing[:, None]
        rough = (np.abs(grown) @ weight[:, :, None])[:, :, 0] + far[:, :, 0] + lost
        net = gained[:, :, 0] - lost
        sums = gained + moments.sum(axis=1)[:, None, :]
        value = np.where(net > -0.5, np.log1p(np.maximum(net, -0.75)), np.log(np.maximum(sums[:, :, 0], 1e-300)))
        noise = 8 * UNIT * np.where(net > -0.5, rough / (1 + np.maximum(net, -0.75)), 1.0)
        return value, *_spread(sums), noise

    def line(self, real: float, imaginary: Floats) -> tuple[Complex, Floats]:
        """log M(real + i·u) at evenly spaced u >= 0, ascending, and a bound of its absolute error; [F, N]."""
        power = self.power(real)
        if self.landscape.linear:
            return self._plain_line(real, imaginary)
        ground = self._nodes((power,), float(imaginary[-1]), _RESOLVED)
        ratio, log_weight = ground.ratio, ground.base
        exponent = power * ratio
        total = exponent + log_weight
        top = total.max(axis=1)
        shifted = (top > 20) | (exponent.max(axis=1) > 600) | (self.inner is not None)
        scale = np.where(shifted, top, 0.0)
        tilted = np.exp(np.maximum(total - scale[:, None], -700.0))
        whole = tilted.sum(axis=1)
        start, rough = whole, whole
        if not shifted.all():
            grown = np.exp(log_weight) * np.expm1(np.minimum(exponent, 600.0))
            start = np.where(shifted, whole, grown.sum(axis=1) - self.missing)
            rough = np.where(shifted, whole, np.abs(grown).sum(axis=1) + self.missing)
        length = (tilted * np.abs(ratio)).sum(axis=1)
        turns, turned = turns_of(self.slope * ratio, tilted, imaginary)
        real_part, imaginary_part = start[:, None] + turns.real, turns.imag
        turned = np.minimum(turned, 4 * whole[:, None])
        # exponentials of large numbers are as wrong as those are, and windows' weights are such
        large = np.maximum(np.abs(exponent) - 1, 0.0)
        if self.inner is not None:
            large += np.abs(log_weight)
        strained = 4 * rough + 3 * (tilted * large).sum(axis=1)
        wrong = UNIT * (strained[:, None] + 8 * turned + 4 * imaginary * length[:, None]) + self.mistaken[:, None]
        unshifted = ~shifted[:, None]
        size = np.maximum(np.hypot(unshifted + real_part, imaginary_part), wrong)
        angle = np.arctan2(imaginary_part, unshifted + real_part)
        modulus = np.log(size) + scale[:, None]
        if not shifted.all():  # log|1 + x + iy| without cancellation near 0
            excess = real_part * (2 + real_part) + imaginary_part**2
            close = unshifted & (np.abs(excess) < 0.5)
            modulus = np.where(close, np.log1p(np.clip(excess, -0.75, 1.0)) / 2, modulus)
        return joined(modulus, angle), wrong / size


def _spread(sums: Floats) -> tuple[Floats, Floats]:
    """Mean and variance from the sums of the weights, of the losses and of their squares."""
    whole = sums[:, :, 0]
    held = whole > 1e-290  # windows may hold next to nothing
    mean, square = (np.where(held, sums[:, :, k] / np.where(held, whole, 1.0), 0.0) for k in (1, 2))
    return mean, np.maximum(square - mean * mean, 0.0)


def _same(first: Floats | None, second: Floats | None) -> bool:
    if first is None or second is None:
        return first is second
    return first is second or bool((first == second).all())


def _cut(rate: float, sigma: float, width: float, imaginary: float, power: float, spare: float) -> float:
    """`Family.near` of one release."""
    share = needed(width / sigma, 38.0 + spare) * math.hypot(1.0, width) / width * sigma / imaginary
    if share >= 1:  # of the ratio's slope in t, 1/σ at most
        return math.inf
    cut = sigma * math.log((1 - rate) / rate * share / (1 - share)) + 0.5 / sigma
    return max(cut, -EDGE) if cut < EDGE + max(0.0, power) / sigma else math.inf


@lru_cache(maxsize=4096)
def needed(growth: float, exponent: float) -> float:
    """The smallest g with (g e^(−k·growth))²/2 + k²/2 >= exponent for all k >= 0."""
    steps = np.linspace(0.0, math.sqrt(2 * exponent), 200)
    return float((np.sqrt(np.maximum(2 * exponent - steps * steps, 0.0)) * np.exp(steps * growth)).max())


def _log_tail(x: Floats) -> Floats:
    """log(1 − Φ(x))."""
    return log_normal(-x)


def _tail(x: Floats) -> Floats:
    """1 − Φ(x)."""
    from scipy.special import ndtr

    result: Floats = ndtr(-x)
    return result
