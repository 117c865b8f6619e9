"""How large the integrand of a sampled release grows on lines above the real one, from which the step follows.

| here | meaning |
| --- | --- |
| F, X, H | axes: releases of one family, t, heights to which the line is shifted |
| o, φ | the odds of a draw at t, height/σ |

e^(wρ(t+ih)) has Re wρ <= Re w · ρ(t) + |Im w| · turning, less Re w · lowering where Re w < 0: |e^ρ| is largest on the
real line. What is summed is e^(wρ) − 1, of size min(|wρ|, 2) where Re wρ <= 0, or e^(wρ) where an inner window is left
out. Next to the edge of a window all of this changes within less than a step of level 0: there t of its own are added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpbench.accountants._leaf_grid import Landscape, Reach, normal
from dpbench.accountants._loss_leaf import Floats

_BESIDE = np.arange(-2.0, 9.25, 0.5)  # from the cut into the window, in widths: higher up no step is found


@dataclass(frozen=True)
class Strip:
    """At the nodes of level 0, then next to the cuts: ρ, the log of a bound of |ρ(t + ih)|, and the rest by the height.

    `lowering` is there for Re w < 0 alone, `windowed` where there are windows, `log_length` where e^(wρ) − 1 is summed.
    """

    ratio: Floats  # [F, X]
    base: Floats
    log_length: Floats | None
    turning: Floats  # [F, H, X]
    lowering: Floats | None
    windowed: Floats | None

    def growth(self, power: float, imaginary: float, level: Floats) -> Floats:
        """log of the most that the integrand is at t + i·height, but for e^(height²/2), over e^level; [F, H, X].

        For |Im w| up to `imaginary`; `level` is [F].
        """
        found = imaginary * self.turning
        found += (power * self.ratio)[:, None]
        if self.lowering is not None:
            found -= power * self.lowering
        fixed = self.base - level[:, None]
        if self.log_length is not None:
            np.maximum(found, 0.0, out=found)
            fixed += np.minimum(math.log(math.hypot(power, imaginary)) + self.log_length, math.log(2))
        found += fixed[:, None]
        if self.windowed is not None:
            found += self.windowed
        return found


def strip(
    landscape: Landscape,
    reach: Reach,
    base: Floats,
    windows: tuple[Floats | None, Floats | None, Floats],
    negative: bool,
) -> Strip:
    """The strip of that reach, for Re w < 0 or for all others.

    `base` is the log of the base with its windows at the nodes of level 0; `windows` are cut, inner cut and width.
    """
    cut, inner, width = windows
    ground, heights = landscape.ground(reach), landscape.heights(reach)
    edges = [(edge, side) for edge, side in ((cut, 1.0), (inner, -1.0)) if edge is not None]
    t, ratio, grown = ground.nodes, ground.ratio, None
    if edges:
        near = np.concatenate([edge[:, None] - side * width[:, None] * _BESIDE for edge, side in edges], axis=1)
        near = np.clip(near, -reach.left, reach.right)
        t = np.concatenate([np.broadcast_to(t, ratio.shape), near], axis=1)
        ratio = np.concatenate([ratio, landscape.ratio(near)], axis=1)
        base = np.concatenate([base, normal(near) + log_window(near, cut, inner, width)], axis=1)
        grown = windowed(t, heights, cut, inner, width)
    length = None
    if inner is None:
        # |log(1 + x)| at x = q (e^(y + iφ) − 1): below 1.4 |x| for |x| < 1/2, beyond that below ρ + π
        size = np.abs(ratio)
        length = np.log(3 * (size + 2 * landscape.weights[:, 1:]) + 8 * np.maximum(size - 0.3, 0.0))
    odds, angle = landscape.odds(t), (heights / landscape.sigma[:, None])[:, :, None]
    lowering = _lowering(odds, angle) if negative else None
    return Strip(ratio, base, length, _turning(odds, angle), lowering, grown)


def _turning(odds: Floats, angle: Floats) -> Floats:
    """The angle of 1 + o e^(iφ), or its largest on the way up to φ; [F, 1 or H, X]."""
    widest = np.where(odds < 1, np.arccos(-np.minimum(odds, 1.0)), math.pi)[:, None, :]
    odds = odds[:, None, :]
    tangent = np.tan(np.minimum(angle, widest) / 2)
    square = tangent * tangent
    turned: Floats = np.arctan2(2 * odds * tangent, 1 + square + odds * (1 - square))
    return turned


def _lowering(odds: Floats, angle: Floats) -> Floats:
    """By how much Re ρ falls: log((1 + o)/|1 + o e^(iφ)|) = −½ log(1 − 2o(1 − cos φ)/(1 + o)²)."""
    half = np.tan(angle / 2) ** 2
    share = (4 / (2 + odds + 1 / np.maximum(odds, 1e-300)))[:, None] * (half / (1 + half))
    lowered: Floats = -np.log1p(-np.minimum(share, 1 - 1e-16)) / 2
    return lowered


def log_window(t: Floats, cut: Floats | None, inner: Floats | None, width: Floats) -> Floats:
    """log of Φ((cut − t)/width), less what the inner window holds; one of both is there."""
    width = width[:, None]
    if inner is None:
        assert cut is not None
        return log_normal((cut[:, None] - t) / width)
    if cut is None:
        return log_normal((t - inner[:, None]) / width)
    # Φ(a) − Φ(b) from the side where both are small
    a, b = (cut[:, None] - t) / width, (inner[:, None] - t) / width
    turned = b > 0
    large = log_normal(np.where(turned, -b, a))
    small = log_normal(np.where(turned, -a, b))
    return large + np.log(-np.expm1(np.minimum(small - large, -1e-300)))


def windowed(t: Floats, heights: Floats, cut: Floats | None, inner: Floats | None, width: Floats) -> Floats:
    """How log of |the window| may be larger at t + i·height than at t, t of all or of each release; [F, H, X]."""
    high, found = (heights / width[:, None])[:, :, None], np.zeros((len(width), heights.shape[1], t.shape[-1]))
    for edge, side in ((cut, 1.0), (inner, -1.0)):
        if edge is not None:
            inside = np.maximum(side * (edge[:, None] - t) / width[:, None], 0.0)
            found += np.maximum(high**2 - (inside**2)[:, None], 0.0) / 2
    return found


def log_normal(x: Floats) -> Floats:
    """log Φ(x), to the absolute accuracy that a weight needs."""
    from scipy.special import log_ndtr

    result: Floats = log_ndtr(x)
    return result
