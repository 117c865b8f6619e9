"""The log ratio of like releases on nested grids of t = x/σ, kept so that no question computes it twice.

| here | meaning |
| --- | --- |
| F, X, K | axes: releases of one family, nodes t, terms of the mixture |
| ρ | the log ratio of `_loss_leaf`, of all releases at the same t |
| reach | how far to the left and right of 0 the nodes go, in t |

Level 0 has a step that serves every real power; level k has 2^k times as many nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpbench.accountants._loss_leaf import Floats, LossLeaf

EDGE = 9.5  # e^(−9.5²/2) is below 2^-64
_ROOM = 0.25  # e^(−9.25²/2) is still below 2^-61
RESOLVED = 38.0  # e^−38 is below 2^-54
_LOG_ROOT_TWO_PI = math.log(2 * math.pi) / 2
_SHARES = np.array([0.02, 0.045, 0.09, 0.16, 0.26, 0.42, 0.68, 1.0])
_WIDEST = 0.15
_MOST_CELLS = 1 << 22  # nodes times terms of the mixture
_FEW = 4  # releases times records of a group: with no more, nodes are made as far apart as is asked, and not kept
_KEPT_NODES = 1 << 13  # a grid with more nodes is made where it is asked for, and only the part in question


@dataclass(frozen=True)
class Reach:
    """The range of t, and the share of the strip |Im x| < πσ² that may be used."""

    left: float
    right: float
    share: float


@dataclass
class Ground:
    """ρ and the log of the base density, in t, at evenly spaced nodes."""

    nodes: Floats
    step: float
    ratio: Floats
    base: Floats


class Landscape:
    """ρ of like releases: the same powers, directions and number of terms, but rates and noise of their own."""

    def __init__(self, leaves: Sequence[LossLeaf]) -> None:
        first = leaves[0]
        self.sigma = np.array([leaf.sigma for leaf in leaves])
        self.weights = np.array([leaf.numerator.weights for leaf in leaves])
        self.reverse = first.numerator.reverse
        self.replaced = first.denominator is not None
        self.degree = first.numerator.degree
        self.poisson = self.degree == 1 and not self.replaced and bool((self.weights[:, 0] > 0).all())
        self.linear = self.degree == 1 and not self.replaced and bool((self.weights[:, 0] == 0).all())
        self._grounds: dict[tuple[Reach, int], Ground] = {}
        self._heights: dict[float, Floats] = {}

    def __len__(self) -> int:
        return len(self.sigma)

    # ---- ρ ----

    def _mixture(self, t: Floats, reverse: bool) -> Floats:
        y, scale = -t if reverse else t, 1 / self.sigma[:, None]
        if self.degree == 1:
            return _two_terms(y * scale - scale * scale / 2, self.weights[:, 1:])
        taken = np.arange(self.degree + 1, dtype=np.float64)
        with np.errstate(divide="ignore"):
            logs = np.log(self.weights)[:, None, :]
        terms = (y * scale)[:, :, None] * taken + (logs - (taken * scale)[:, None, :] ** 2 / 2)
        top = terms.max(axis=2)
        far: Floats = top + np.log(np.exp(terms - top[:, :, None]).sum(axis=2))
        # near 0 the weights' sum is split off: Σ weight_k (e^... − 1)
        shifts = (y * scale)[:, :, None] * taken[1:] - (taken[1:] * scale)[:, None, :] ** 2 / 2
        grown = np.expm1(np.minimum(shifts, 60.0))
        near = (grown @ self.weights[:, 1:, None])[:, :, 0]
        return np.where(np.abs(far) < 0.5, np.log1p(np.maximum(near, -0.75)), far)

    def at(self, t: Floats, step: float) -> Ground:
        """Everything at some evenly spaced t."""
        base = normal(t)
        ratio = self._mixture(t, self.reverse)
        if not self.replaced:
            return Ground(t, step, ratio, np.broadcast_to(base, ratio.shape))
        return Ground(t, step, ratio - self._mixture(t, not self.reverse), base + ratio)

    # ---- grids ----

    @cached_property
    def _least(self) -> float:
        return float(self.sigma.min())

    def reach(self, power: float, end: float = math.inf, least: float = 0.0) -> Reach:
        """Where the integrand of e^(power·ρ) may matter, rounded up, so that few grids serve many powers.

        `end`, where it is known, is the t beyond which a window leaves nothing, `least` one that has to be within.
        """
        pull = self.degree * max(0.0, -power) / self._least
        push = self.degree * max(0.0, power) / self._least
        if self.replaced:
            push += self.degree * (1.0 / self._least)
        elif pull and self.weights[0, 0] > 0:
            pull = min(pull, self._pulled(-power))
        push = max(min(push, max(end - EDGE, 0.0)), least - EDGE, 0.0)
        share = 0.93 if power >= 0 and not self.replaced else 0.5
        return Reach(EDGE + _rounded_up(pull), EDGE + _rounded_up(push), share)

    def _pulled(self, power: float) -> float:
        """How far to the left a power −`power` moves the top of the integrand; 0 where the edge has room for it.

        At −t the log ratio still falls with slope s <= r e^(−t/σ)/σ, r = e^(−1/(2σ²)) Σ_k k w_k / w_0, so the top lies
        no further left than the root of t = power·r·e^(−t/σ)/σ, which is σ W(power·r/σ²) with Lambert's W.
        """
        taken = np.arange(self.weights.shape[1], dtype=np.float64)
        ratio = (self.weights * taken).sum(axis=1) / self.weights[:, 0] * np.exp(-0.5 / self.sigma**2)
        z = power * ratio / self.sigma**2
        root = np.log1p(z)
        for _ in range(6):  # Newton's steps for w e^w = z, from above
            root = root - (root - z * np.exp(-root)) / (root + 1)
        furthest = float((self.sigma * root).max())
        return furthest if furthest > _ROOM else 0.0

    def heights(self, reach: Reach) -> Floats:
        """Heights in t to which the line of integration may be shifted; [F, heights]."""
        if reach.share not in self._heights:
            highest = np.minimum(reach.share * math.pi * self.sigma, 8.6)
            self._heights[reach.share] = highest[:, None] * _SHARES
        return self._heights[reach.share]

    def ground(self, reach: Reach, level: int = 0) -> Ground:
        """The grid of that level over the whole reach."""
        key = (reach, level)
        if key not in self._grounds:
            height = min(reach.share * math.pi * self._least, 8.6)
            step = min(_WIDEST, 2 * math.pi * height / (RESOLVED + height * height / 2)) / 2**level
            count = math.ceil((reach.left + reach.right) / step)
            if count * len(self) * (self.degree + 1) > _MOST_CELLS:
                raise ArithmeticError(f"the transform needs {count} points, more than are kept")
            self._grounds[key] = self.at(-reach.left + step * np.arange(count + 1, dtype=np.float64), step)
        return self._grounds[key]

    def part(self, reach: Reach, first: int, last: int, step: float) -> Ground:
        """Nodes from the one numbered `first` at level 0 to `last` and a little beyond, at most `step` apart."""
        coarse = self.ground(reach)
        if step >= coarse.step:
            stride = int(step / coarse.step)
            return _slice(coarse, first, last + stride, stride)
        level = math.ceil(math.log2(coarse.step / step))
        many = len(self) * self.degree > _FEW  # few are made sooner than they are used
        if many and len(coarse.nodes) << level <= _KEPT_NODES:
            return _slice(self.ground(reach, level), first << level, (last << level) + 1, 1)
        low, high = float(coarse.nodes[first]), float(coarse.nodes[min(last, len(coarse.nodes) - 1)])
        count = math.ceil((high - low) / step)
        step = (high - low) / count
        return self.at(low + step * np.arange(count + 1, dtype=np.float64), step)

    def ratio(self, t: Floats) -> Floats:
        """ρ at t of each release: [F, X]; for sampled releases."""
        return self._mixture(t, self.reverse)

    def turning(self, reach: Reach) -> Floats:
        """The most that |Im ρ| grows to on the way from t to t + i·height, wherever t is; [F, heights, 1]."""
        angle = self.heights(reach) / self.sigma[:, None]
        turned: Floats = self.degree * (2 if self.replaced else 1) * angle[:, :, None]
        return turned

    def odds(self, t: Floats) -> Floats:
        """Those of a draw at t, of all or of each release; [F, X], for sampled releases."""
        scale = 1 / self.sigma[:, None]
        found = np.exp(np.minimum(t * scale - scale * scale / 2, 300.0))
        odds: Floats = found * (self.weights[:, 1:] / self.weights[:, :1])
        return odds


def normal(t: Floats) -> Floats:
    """The logarithm of the standard normal density."""
    return -(t * t) / 2 - _LOG_ROOT_TWO_PI


def _slice(ground: Ground, first: int, last: int, stride: int) -> Ground:
    part = slice(first, last + 1, stride)
    return Ground(ground.nodes[part], ground.step * stride, ground.ratio[:, part], ground.base[:, part])


def _rounded_up(distance: float) -> float:
    """0 or the next of 4, 8, 16, ..."""
    return 0.0 if distance <= 0 else 4.0 * 2.0 ** max(0, math.ceil(math.log2(distance / 4)))


def _two_terms(exponent: Floats, rate: Floats) -> Floats:
    """log(1 − rate + rate e^exponent) to full relative accuracy."""
    if (rate == 1).all():
        return exponent
    small: Floats = np.log1p(rate * np.expm1(np.minimum(exponent, 30.0)))
    if float(exponent.max()) <= 30:
        return small
    large = np.log(rate) + exponent + np.log1p((1 - rate) / rate * np.exp(-np.maximum(exponent, 0.0)))
    return np.where(exponent > 30, large, small)
