"""Figures 2c to 2f of dplis2021: noisy gradient descent on the toy loss of equation (1), with and without smoothing.

The paper prints neither the centres nor the learning rate, the noise, the clip norm, the radius or the starts. Those of
the claims are ours, so only what they show can be judged, and nothing against them.

| paper | here |
| --- | --- |
| θ, u, v | (first, second); u = (0, 0), v = (distance, 0) |
| η, σ, C, R, K, L | rate, noise, clip, radius, samples; one record, L = 1 |
| σ_smooth = RησC/L | radius · rate · noise · clip |
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dpbench.judging.claims.judges import Shown, shown
from dpbench.judging.papers.dplis2021.smoothing import toy

_STEP = 1e-4  # of central differences: their error is about 1e-8, the noise of a step 0.1 and more
_SEED = 2021


def _slopes(places: Any, distance: float) -> Any:
    """The gradient of the toy loss at places (..., 2)."""
    first, second = places[..., 0], places[..., 1]
    across = toy(first + _STEP, second, distance) - toy(first - _STEP, second, distance)
    along = toy(first, second + _STEP, distance) - toy(first, second - _STEP, distance)
    return np.stack([across, along], -1) / (2 * _STEP)


@cache
def _ends(
    runs: int, distance: float, rate: float, noise: float, clip: float, radius: float, samples: int, steps: int
) -> Any:
    """Where runs end that start evenly over both basins: (runs, 2). Algorithm 2 with one record."""
    draw = np.random.default_rng(_SEED)
    places = np.stack([draw.uniform(-5, distance + 5, runs), draw.uniform(-5, 5, runs)], -1)
    for _ in range(steps):
        shifts = radius * rate * noise * clip * draw.standard_normal((samples, runs, 2)) if radius else 0.0
        slopes = _slopes(places + shifts, distance)
        slopes = slopes.mean(0) if radius else slopes
        slopes = slopes / np.maximum(1, np.hypot(*slopes.T)[:, None] / clip)
        places = places - rate * (slopes + noise * clip * draw.standard_normal(places.shape))
    return places


def _shares(places: Any, distance: float) -> tuple[float, float]:
    """The shares of runs that end in the disc around u, and in that around v, half as wide as u's."""
    to_u, to_v = np.hypot(places[:, 0], places[:, 1]), np.hypot(places[:, 0] - distance, places[:, 1])
    return float((to_u < 4).mean()), float((to_v < 2).mean())


def _plane(distance: float, scale: float, ends: Any) -> dict[str, Any]:
    """The loss smoothed with that scale, by Gauss and Hermite's rule, around both centres, and dots on it."""
    first, second = np.linspace(-8, distance + 8, 53), np.linspace(-8, 8, 33)
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    across, along = np.meshgrid(first, second, indexing="ij")
    heights = sum(
        one * other * toy(across + scale * to_first, along + scale * to_second, distance)
        for to_first, one in zip(nodes, weights, strict=True)
        for to_second, other in zip(nodes, weights, strict=True)
    )
    return {
        "x": first.round(4).tolist(),
        "y": second.round(4).tolist(),
        "heights": (heights / weights.sum() ** 2).round(4).tolist(),
        "dots": ends.round(3).tolist(),
        "marked": [[0.0, 0.0], [distance, 0.0]],
    }


@shown(control={"radius": 0.0}, pair="runs with the same starts, learning rate and noise, without and with smoothing")
def ends(
    runs: int,
    distance: float,
    rate: float,
    noise: float,
    clip: float,
    radius: float,
    samples: int,
    steps: int,
) -> Shown:
    """Without smoothing at least a fifth of the runs ends at each minimum; with it 95 of 100 end at the flat one."""
    common = (distance, rate, noise, clip)
    plain, smoothed = (_ends(runs, *common, way, samples, steps) for way in (0.0, radius))
    (at_u, at_v), (smoothed_u, smoothed_v) = _shares(plain, distance), _shares(smoothed, distance)
    planes = {
        "2c: the loss, and where runs end without smoothing": _plane(distance, 0.0, plain),
        "2d: the smoothed loss, and where smoothed runs end": _plane(distance, radius * rate * noise * clip, smoothed),
    }
    plot = {"x_label": "θ₁, from the flat minimum to the sharp one", "y_label": "θ₂", "planes": planes}
    reason = f"{at_u:.0%} of the runs end at the flat minimum and {at_v:.0%} at the sharp one; with smoothing "
    evidence = {"flat": [at_u, smoothed_u], "sharp": [at_v, smoothed_v]}
    holds = min(at_u, at_v) >= 0.2 and smoothed_u >= 0.95
    return Shown(holds, f"{reason}{smoothed_u:.0%} and {smoothed_v:.0%}", smoothed_u, evidence, plot=plot)


@shown(control={"less": 0.1}, pair="runs with the same starts, learning rate and noise, without and with smoothing")
def losses(
    runs: int,
    distance: float,
    rate: float,
    noise: float,
    clip: float,
    radius: float,
    samples: int,
    steps: int,
    less: float = 1.0,
) -> Shown:
    """The mean loss and the loss that 95 of 100 runs stay below are smaller with smoothing; if not, nothing is decided.

    The control gives the smoothed runs a tenth of the noise, at the same smoothing.
    """
    common = (distance, rate)
    plain = _ends(runs, *common, noise, clip, 0.0, samples, steps)
    smoothed = _ends(runs, *common, less * noise, clip, radius / less, samples, steps)
    found = {
        name: toy(places[:, 0], places[:, 1], distance) for name, places in (("without", plain), ("with", smoothed))
    }
    means = [float(one.mean()) for one in found.values()]
    tails = [float(np.quantile(one, 0.95)) for one in found.values()]
    shares = np.linspace(0.01, 0.99, 50)
    plot = {
        "x": [float(x) for x in shares],
        "x_label": "share of runs",
        "y_label": "loss that they stay below",
        "lines": {f"{name} smoothing": [float(x) for x in np.quantile(one, shares)] for name, one in found.items()},
    }
    reason = f"mean loss {means[0]:.3g} without and {means[1]:.3g} with smoothing, 95 % of the runs stay below "
    better = means[1] < means[0] and tails[1] < tails[0]
    rest = "" if better else "; the paper's settings, under which it may be otherwise, are not printed"
    evidence = {"means": means, "tails": tails}
    return Shown(
        True if better else None, f"{reason}{tails[0]:.3g} and {tails[1]:.3g}{rest}", means[1], evidence, plot=plot
    )
