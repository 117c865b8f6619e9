"""Section 3, Definition 5 and Appendices A and B of dplis2021: the smoothed loss, its toy example, Lemma 1, sharpness.

| paper | here |
| --- | --- |
| 𝓛, θ, Δ | loss, place, offset |
| σ_smooth, σ, C, η, L, R, K | scale; noise, clip, rate, batch, radius, samples |
| L (Lipschitz), β | lipschitz, curvature |
| ε of Definition 5, C_ε(θ) | reach, the box of half-widths ε(|θ_i| + 1) with A the identity, as in the experiments |
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
from scipy.special import ndtr
from scipy.stats import norm

from dpbench.judging.claims.judges import Shown, formula, grid, inequality, shown
from dpbench.judging.papers.mathematics import Real, by_rows, compared

# ---- equations (2) to (6): integrals over a loss of one variable ----

LOSSES: dict[str, tuple[Callable[[Real], Real], Callable[[Real], Real]]] = {  # with their derivatives
    "softplus": (lambda x: mpmath.log(1 + mpmath.exp(x)), lambda x: 1 / (1 + mpmath.exp(-x))),
    "waves": (lambda x: mpmath.cos(3 * x) + x**2 / 4, lambda x: -3 * mpmath.sin(3 * x) + x / 2),
    "logistic": (lambda x: 1 / (1 + mpmath.exp(-2 * x)), lambda x: 2 / (2 + mpmath.exp(2 * x) + mpmath.exp(-2 * x))),
}
DENSITIES: dict[str, tuple[Callable[[Real], Real], int, int]] = {  # of Δ/scale, and the ends that are integrated
    "gaussian": (mpmath.npdf, -9, 9),
    "uniform": (lambda x: mpmath.mpf(abs(x) <= 1) / 2, -1, 1),
    "exponential": (lambda x: mpmath.exp(-x) if x >= 0 else mpmath.mpf(0), 0, 40),
}


def _integral(function: Callable[[Real], Real], low: Real, high: Real, method: str = "tanh-sinh") -> Real:
    return mpmath.quad(function, mpmath.linspace(low, high, 5), method=method)


def _convolved(loss: str, density: str, place: Real, scale: Real, way: int = 1) -> Real:
    """∫ 𝓛(θ′) μ(way·(θ − θ′)) dθ′, over the θ′ where the density is."""
    weight, *at = DENSITIES[density]
    first, last = sorted(place - way * end * scale for end in at)
    return _integral(lambda x: LOSSES[loss][0](x) * weight(way * (place - x) / scale) / scale, first, last)


def _both_sides(loss: str, density: str, place: Real, scale: Real) -> tuple[Real, ...]:
    """∫ 𝓛(θ′) μ(θ − θ′) dθ′, for a Gaussian E over θ′ ~ N(θ, σ²) of 𝓛(θ′), and E 𝓛(θ + Δ), by another rule.

    For a density that is not symmetric ∫ 𝓛(θ′) μ(θ′ − θ) dθ′ is right.
    """
    weight, low, high = DENSITIES[density]
    expected = _integral(lambda x: LOSSES[loss][0](place + x * scale) * weight(x), low, high, "gauss-legendre")
    found = _convolved(loss, density, place, scale), expected, _convolved(loss, density, place, scale, -1)
    return found if density == "exponential" else found[:2]


_precisely = functools.partial(formula, digits=8, precision=20)
_PLACES: dict[str, Any] = {"loss": LOSSES, "place": ["0.3", "-1.0"], "scale": ["0.04", "0.5", "1.5"]}
convolution = _precisely(settings=grid(**_PLACES))(_both_sides)  # the density is a parameter of the claim
equation_2 = _precisely(settings=grid(**_PLACES, density=["gaussian", "uniform"]))(_both_sides)


_TRAINING = by_rows(  # C = 1
    "radius rate batch noise",
    ("10", "0.1536", "256", "1.1"),
    ("40", "0.1536", "256", "1.1"),
    ("12", "1.536", "256", "1.3"),
    ("4", "0.064", "64", "1.1"),
)


@_precisely(
    settings=[one | training for one in grid(loss=LOSSES, place=["0.4"]) for training in _TRAINING],
    control={"divided": False},
)
def equation_6(
    loss: str, place: Real, radius: Real, rate: Real, batch: Real, noise: Real, divided: bool = True
) -> tuple[Real, Real]:
    """E over ν ~ N(0, σ²C²) of 𝓛′(θ + R(η/L)ν), for any K, and the slope of the smoothed loss at s = R(η/L)σC.

    d/dθ of ∫ 𝓛(θ′) φ((θ′ − θ)/s)/s dθ′ falls on the density alone. The control forgets to divide by L.
    """
    scale, shift = radius * rate / batch * noise, radius * rate / (batch if divided else 1)
    ends, around = (-9 * noise, 9 * noise), (place - 9 * scale, place + 9 * scale)
    expected = _integral(lambda x: LOSSES[loss][1](place + shift * x) * mpmath.npdf(x, 0, noise), *ends)
    return expected, _integral(
        lambda x: LOSSES[loss][0](x) * mpmath.npdf(x, place, scale) * (x - place) / scale**2, *around
    )


@formula(settings=_TRAINING, control={"root": True})
def smoothing_scale(radius: Real, rate: Real, batch: Real, noise: Real, root: bool = False) -> tuple[Real, Real]:
    """R η σ C/L, and the deviation of R² steps' noise in θ, each η/L times a draw of N(0, σ²C²): variances add.

    The control divides by √L.
    """
    each = (rate / batch * noise) ** 2
    printed = radius * rate * noise / (mpmath.sqrt(batch) if root else batch)
    return printed, mpmath.sqrt(mpmath.fsum(each for _ in range(int(radius) ** 2)))


# ---- Lemma 1 and Definition 4, by functions whose smoothed gradient is known exactly ----


@inequality(
    domain={"middle": (-1, 1), "kink": (0, 3), "first": (-3, 3), "gap": (1e-3, 4, "log")},
    settings=by_rows("middle kink first gap", (0.0, 0.0, -0.01, 0.02)),
    control={"constant": 1 / math.sqrt(2 * math.pi)},
    tolerance=1e-9,
    obligations=[
        "the expectation over the Gaussian, not an average of K samples",
        "the sharp constant is √(2/π) L/σ, which |x| attains; the printed one is 25 % larger",
    ],
)
def lemma_1(first: float, gap: float, middle: float, kink: float, constant: float = 1.0) -> float:
    """(L/σ)|x − y| − |∇f(x) − ∇f(y)| over |x − y| L/σ, for slopes −L, middle·L, L with kinks at 0 and `kink`·σ.

    The smoothed gradient is E of a step function, so a sum of Φ of x = `first`·σ and y = x + `gap`·σ, and L and σ
    cancel. The control has half of what |x| attains.
    """

    def slope(place: float) -> float:  # over L, of a place in deviations
        return float((middle + 1) * ndtr(place) + (1 - middle) * ndtr(place - kink)) - 1

    return constant - abs(slope(first) - slope(first + gap)) / gap


@inequality(
    domain={"width": (0.005, 2e4, "log"), "first": (-3, 3), "gap": (1e-3, 4, "log")},
    settings=grid(width=[1 / 0.0264, 1 / 0.0066, 5 / 0.0066], first=[-0.01], gap=[0.02]),
    control={"share": 0.5},
    tolerance=1e-9,
    obligations=["gradient and expectation exchanged (Duchi, Bartlett and Wainwright 2012, Lemma 9(iv))"],
)
def lemma_1_smooth(width: float, first: float, gap: float, share: float = 1.0) -> float:
    """min{L/σ, β} − |∇f(x) − ∇f(y)|/|x − y| over β, for Huber's loss with L = β·`width`·σ; the control halves L.

    x and y as in `lemma_1`; the smoothed gradient is βσ E of x/σ + Z clipped to ± `width`.
    """

    def slope(place: float) -> float:
        low, high = -width - place, width - place
        inside = place * (ndtr(high) - ndtr(low)) + norm.pdf(low) - norm.pdf(high)
        return float(inside + width * (ndtr(-high) - ndtr(low)))

    return min(share * width, 1.0) - abs(slope(first) - slope(first + gap)) / gap


@shown(control={"expectation": True}, pair="|θ| averaged over K fixed offsets, beside one of its kinks")
def finite_samples_are_not_smooth(
    samples: int, radius: float, batch: int, rate: float, noise: float, expectation: bool = False
) -> Shown:
    """The gradient of |θ|, of Lipschitz constant 1, averaged over K offsets jumps by 2/K at each of them.

    Exact rationals: the difference quotient over a gap h around a kink is (2/K)/h, against 1/σ_smooth. The control has
    the expectation, whose slope is at most √(2/π) < 0.798 over σ_smooth.
    """
    scale = Fraction(radius) * Fraction(str(rate)) / batch * Fraction(str(noise))
    gap = scale / (1000 * samples)
    offsets = [scale * Fraction(2 * place + 1 - samples, samples) for place in range(samples)]

    def gradient(place: Fraction) -> Fraction:
        return Fraction(sum(1 if place + offset > 0 else -1 for offset in offsets), samples)

    quotient = abs(gradient(gap / 2 - offsets[0]) - gradient(-gap / 2 - offsets[0])) / gap
    routes = {"gradients": quotient, "size of a kink": Fraction(2, samples) / gap}
    if expectation:
        routes = {"the expectation's": Fraction(798, 1000) / scale}
    return compared("<=", "the difference quotient at a kink", routes, {"what Lemma 1 allows": 1 / scale})


@inequality(
    domain={"place": (-3.2, 3.2), "slope": (-2, 2), "rate": (1e-3, 3, "log")},
    settings=[{"place": 0.3, "slope": 0.5, "rate": 0.1536}],
    control={"share": 0.25},
    obligations=["the average loss is β-smooth"],
)
def appendix_b_descent(place: float, slope: float, rate: float, share: float = 0.5) -> float:
    """f(θ) − η f′ g + (β/2) η² g² − f(θ − ηg), over β, for f = −β cos θ with f″ ≤ β; the control has β/4.

    `rate` is ηβ, and the sampled gradient over β is sin θ + slope.
    """
    step = rate * (math.sin(place) + slope)
    return -math.cos(place) - step * math.sin(place) + share * step**2 + math.cos(place - step)


# ---- equation (1): the toy example, with u = 0 and v = (distance, 0): the centres themselves are not printed ----


def toy(first: Any, second: Any, distance: float) -> Any:
    """The loss of equation (1) at places (first, second)."""
    to_u, to_v = np.hypot(first, second), np.hypot(first - distance, second)
    with np.errstate(divide="ignore", over="ignore"):
        flat = 1 / (1 + np.exp(-(to_u / 5 - 5 / to_u)))
        sharp = 1 / (1 + np.exp(-(2 * to_v / 5 - 5 / (2 * to_v))))
        weight = 1 / (1 + np.exp((to_u - to_v) / 2))
    return flat * weight + sharp * (1 - weight)


@shown(control={"distance": 1.0})
def toy_minima(distance: float) -> Shown:
    """Both centres are minima with a loss near 0, and the second rises to 0.4 over half the width of the first."""
    angle, steps = np.linspace(0, 2 * np.pi, 72, endpoint=False), np.linspace(1e-3, 8, 4001)
    centres, around, widths = [], [], []
    for place, radius, outwards in ((0.0, 1.0, -1), (distance, 0.5, 1)):
        centres.append(float(toy(place + 1e-9, 0.0, distance)))
        around.append(float(toy(place + radius * np.cos(angle), radius * np.sin(angle), distance).min()))
        widths.append(float(steps[np.argmax(toy(place + outwards * steps, 0 * steps, distance) >= 0.4)]))
    minima = centres[0] < around[0] and centres[1] < around[1] and max(centres) < 0.05
    reason = f"the losses at the centres are {centres[0]:.2g} and {centres[1]:.2g}; 0.4 is reached at {widths[0]:.3g}, "
    evidence = {"at_u_and_v": centres, "around": around, "widths": widths}
    holds = minima and 1.5 < widths[0] / widths[1] < 2.5
    return Shown(holds, f"{reason}{widths[1]:.3g}", max(centres), evidence)


@shown(control={"enough": 0.5})
def toy_smoothing(distance: float, little: float, enough: float) -> Shown:
    """Two minima on the line through both centres after little smoothing, and one, near u, after enough.

    Smoothed by a product of Gauss-Hermite rules.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    line = np.linspace(-distance, 2 * distance, 301)

    def smooth(scale: float) -> Any:
        offset = scale * nodes
        rows = (toy((place + offset)[:, None], offset[None, :], distance) for place in line)
        return np.array([float(weights @ row @ weights) for row in rows])

    def minima(losses: Any) -> list[float]:
        inner = (losses[1:-1] < losses[:-2]) & (losses[1:-1] < losses[2:])
        return [round(float(place), 3) for place in line[1:-1][inner]]

    drawn = [smooth(scale) for scale in (little, enough)]
    before, after = map(minima, drawn)
    holds = len(before) == 2 and len(after) == 1 and abs(after[0]) < distance / 4
    reason = f"minima on the line at {before} for scale {little:g}, at {after} for {enough:g}"
    names = (f"smoothed, scale {scale:g}" for scale in (little, enough))
    lines = {"not smoothed": toy(line + 1e-9, 0.0, distance), **dict(zip(names, drawn, strict=True))}
    plot = {
        "x": [float(x) for x in line],
        "x_label": "place along the line from the flat to the sharp minimum",
        "y_label": "loss",
        "lines": {name: [float(loss) for loss in losses] for name, losses in lines.items()},
    }
    found = {"before": before, "after": after, "distance": distance}
    return Shown(holds, reason, len(after), found, plot=plot)


# ---- Definition 5, on losses Σ w_i θ_i² + s_i θ_i + 10 whose maximum over the box is known ----

_LOSSES = by_rows(
    "place weights slopes reach",
    ((0.3, -1.2, 0.0), (1.0, 2.0, 0.5), (0.1, 0.0, -0.4), 0.0045),
    ((2.0, 0.5), (0.0, 3.0), (1.0, -1.0), 0.0045),
    ((-0.7, 0.1, 1.5, 0.2), (1, 1, 0.1, 0), (0, 0, 1, 2), 1e-3),
)


def _loss(place: Sequence[float], weights: Sequence[float], slopes: Sequence[float]) -> float:
    return 10 + sum(w * x * x + s * x for w, x, s in zip(weights, place, slopes, strict=True))


@formula(settings=_LOSSES, control={"one": 0}, digits=9)
def definition_5(
    place: Sequence[float], weights: Sequence[float], slopes: Sequence[float], reach: float, one: int = 1
) -> tuple[float, float]:
    """100·(max over the box − 𝓛)/(1 + 𝓛) by every corner (𝓛 is convex), and each coordinate's rise in closed form.

    The second is Keskar et al. 2016, 2.1. The control loses the 1 of the half-width |θ_i| + 1.
    """
    here = _loss(place, weights, slopes)
    ends = [(x - reach * (abs(x) + one), x + reach * (abs(x) + one)) for x in place]
    highest = max(_loss(corner, weights, slopes) for corner in itertools.product(*ends))
    rises = (
        w * (reach * (abs(x) + 1)) ** 2 + abs(2 * w * x + s) * reach * (abs(x) + 1)
        for x, w, s in zip(place, weights, slopes, strict=True)
    )
    return 100 * (highest - here) / (1 + here), 100 * sum(rises) / (1 + here)


_ONE = {"slope": (-3, 3), "place": (-3, 3), "reach": (1e-4, 1, "log")}
_POINT = {"slope": 0.5, "place": 1.0, "reach": 0.0045}


@inequality(
    domain={"weight": (-3, 3), **_ONE},
    settings=[{"weight": weight, **_POINT} for weight in (0.5, -0.5)],
    control={"corners": True},
    obligations=["the loss is at least 0, so that 1 + f is above 0"],
)
def never_negative(weight: float, slope: float, place: float, reach: float, corners: bool = False) -> float:
    """The rise of wθ² + sθ over the box, at its ends or its vertex, whichever is highest.

    The control looks at the ends only, which a concave loss may lie above.
    """
    half, vertex = reach * (abs(place) + 1), -slope / (2 * weight) if weight else place
    tried = [place - half, place + half, *([vertex] if abs(vertex - place) <= half and not corners else [])]
    return max(weight * x * x + slope * x for x in tried) - weight * place**2 - slope * place


@inequality(
    domain=_ONE,
    settings=[_POINT],
    control={"share": 0.5},
    obligations=["a convex loss; for any smooth one up to second order in ε"],
)
def above_first_order(slope: float, place: float, reach: float, share: float = 1.0) -> float:
    """Sharpness of θ²/2 + sθ + 10 less 100 ε (|θ| + 1)|f′|/(1 + f); the control halves the sharpness."""
    found: float = definition_5((place,), (0.5,), (slope,), reach)[0]
    return share * found - 100 * reach * (abs(place) + 1) * abs(place + slope) / (1 + _loss((place,), (0.5,), (slope,)))
