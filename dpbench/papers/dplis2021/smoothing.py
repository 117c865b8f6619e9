"""Section 3 and Appendix A of dplis2021: the smoothed loss, equations (2) to (6), the toy example, Lemma 1.

| paper | here |
| --- | --- |
| 𝓛, 𝓛_smooth | loss, smoothed loss |
| θ, Δ, μ | place, offset, density |
| σ_smooth, σ, C, η, L, R, K | scale; noise, clip, rate, batch, radius, samples |
| L (Lipschitz), β | lipschitz, curvature |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
from scipy.special import ndtr

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range

# ---- losses of one variable and their derivatives ----

LOSSES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "softplus": (lambda x: mpmath.log(1 + mpmath.exp(x)), lambda x: 1 / (1 + mpmath.exp(-x))),
    "waves": (lambda x: mpmath.cos(3 * x) + x**2 / 4, lambda x: -3 * mpmath.sin(3 * x) + x / 2),
    "logistic": (lambda x: 1 / (1 + mpmath.exp(-2 * x)), lambda x: 2 / (2 + mpmath.exp(2 * x) + mpmath.exp(-2 * x))),
}
REACH = 9  # deviations of a Gaussian that are integrated: beyond lie 1e-19


def _integral(function: Callable[[Any], Any], low: Any, high: Any) -> Any:
    return mpmath.quad(function, mpmath.linspace(low, high, 5))


# ---- equation (2): ∫ 𝓛(θ′) μ(θ − θ′) dθ′ = E[𝓛(θ + Δ)] ----


def _density(name: str, scale: Any) -> tuple[Callable[[Any], Any], Any, Any]:
    """A density and the ends between which it is integrated."""
    if name == "gaussian":
        return lambda x: mpmath.npdf(x, 0, scale), -REACH * scale, REACH * scale
    if name == "uniform":
        return lambda x: 1 / (2 * scale) if abs(x) <= scale else mpmath.mpf(0), -scale, scale
    return lambda x: mpmath.exp(-x / scale) / scale if x >= 0 else mpmath.mpf(0), mpmath.mpf(0), 40 * scale


def _expected_loss(loss: str, density: str, place: Any, scale: Any) -> Any:
    """E[𝓛(θ + Δ)] over the density of Δ."""
    weight, low, high = _density(density, mpmath.mpf(scale))
    return _integral(lambda offset: LOSSES[loss][0](place + offset) * weight(offset), low, high)


def _convolution(loss: str, density: str, place: Any, scale: Any) -> Any:
    """∫ 𝓛(θ′) μ(θ − θ′) dθ′ over the θ′ for which θ − θ′ lies where the density does."""
    weight, low, high = _density(density, mpmath.mpf(scale))
    return _integral(lambda other: LOSSES[loss][0](other) * weight(place - other), place - high, place - low)


def _correlation(loss: str, density: str, place: Any, scale: Any) -> Any:
    """∫ 𝓛(θ′) μ(θ′ − θ) dθ′: what equals the expectation for every density."""
    weight, low, high = _density(density, mpmath.mpf(scale))
    return _integral(lambda other: LOSSES[loss][0](other) * weight(other - place), place + low, place + high)


def _squared_scale(loss: str, density: str, place: Any, scale: Any) -> Any:
    return _convolution(loss, density, place, scale**2)


def _grid(densities: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {"loss": loss, "density": density, "place": place, "scale": scale}
        for loss in ("softplus", "waves")
        for density in densities
        for place, scale in ((0.3, 0.5), (-1.0, 1.5))
    ]


equation_2 = Formula(
    _convolution, _expected_loss, _grid(("gaussian", "uniform")), twin=_squared_scale, digits=8, precision=20
)
equation_2_any_density = Formula(
    _convolution,
    _expected_loss,
    _grid(("exponential",)),
    twin=_squared_scale,
    digits=8,
    corrected=_correlation,
    precision=20,
)


# ---- equations (3) and (4): the Gaussian offset, and the Gaussian around θ ----


def _around(loss: str, place: Any, scale: Any) -> Any:
    """E over θ′ ~ N(θ, σ²) of 𝓛(θ′)."""
    return _integral(
        lambda other: LOSSES[loss][0](other) * mpmath.npdf(other, place, scale),
        place - REACH * mpmath.mpf(scale),
        place + REACH * mpmath.mpf(scale),
    )


def _offset(loss: str, place: Any, scale: Any) -> Any:
    """E over Δ ~ N(0, σ²) of 𝓛(θ + Δ)."""
    return _expected_loss(loss, "gaussian", place, scale)


_PLACES = [
    {"loss": loss, "place": place, "scale": scale} for loss in LOSSES for place, scale in ((0.2, 0.04), (-1.5, 1.0))
]
equations_3_4 = Formula(
    _around, _offset, _PLACES, twin=lambda loss, place, scale: _around(loss, place, scale**2), digits=8, precision=20
)


# ---- equation (6) and Appendix A: gradients of samples are unbiased for the gradient of the smoothed loss ----


def _smoothed_slope(loss: str, place: Any, radius: Any, rate: Any, batch: Any, noise: Any, clip: Any) -> Any:
    """d/dθ of ∫ 𝓛(θ′) φ((θ′ − θ)/s)/s dθ′ at s = R(η/L)σC: the derivative falls on the density alone."""
    scale = mpmath.mpf(radius) * rate / batch * noise * clip
    return _integral(
        lambda other: LOSSES[loss][0](other) * mpmath.npdf(other, place, scale) * (other - place) / scale**2,
        place - REACH * scale,
        place + REACH * scale,
    )


def _expected_gradient(loss: str, place: Any, radius: Any, rate: Any, batch: Any, noise: Any, clip: Any) -> Any:
    """E over ν ~ N(0, σ²C²) of 𝓛′(θ + R (η/L) ν), the expectation of the printed line for any K."""
    spread = mpmath.mpf(noise) * clip
    return _integral(
        lambda drawn: (
            LOSSES[loss][1](place + mpmath.mpf(radius) * rate / batch * drawn) * mpmath.npdf(drawn, 0, spread)
        ),
        -REACH * spread,
        REACH * spread,
    )


def _without_batch(**setting: Any) -> Any:
    """The batch size forgotten: a 256 times too wide smoothing."""
    return _expected_gradient(**{**setting, "batch": 1})


_TRAINING = (
    {"radius": 10, "rate": 0.1536, "batch": 256, "noise": 1.1, "clip": 1.0},
    {"radius": 40, "rate": 0.1536, "batch": 256, "noise": 1.1, "clip": 1.0},
    {"radius": 12, "rate": 1.536, "batch": 256, "noise": 1.3, "clip": 1.0},
    {"radius": 4, "rate": 0.064, "batch": 64, "noise": 1.1, "clip": 1.0},
)
equation_6 = Formula(
    _expected_gradient,
    _smoothed_slope,
    [{"loss": loss, "place": 0.4, **training} for loss in ("softplus", "waves") for training in _TRAINING],
    twin=_without_batch,
    digits=8,
    precision=20,
)


def _step_deviation(radius: Any, rate: Any, batch: Any, noise: Any, clip: Any) -> Any:
    """Deviation of the sum of R² steps' noise in θ, each η/L times a draw of N(0, σ²C²): variances add."""
    each = (mpmath.mpf(rate) / batch) ** 2 * (mpmath.mpf(noise) * clip) ** 2
    return mpmath.sqrt(mpmath.fsum(each for _ in range(int(radius) ** 2)))


smoothing_scale = Formula(
    lambda radius, rate, batch, noise, clip: mpmath.mpf(radius) * rate / batch * noise * clip,
    _step_deviation,
    _TRAINING,
    twin=lambda radius, rate, batch, noise, clip: mpmath.mpf(radius) * rate * noise * clip / mpmath.sqrt(batch),
)


# ---- Lemma 1 and Definition 4, by functions whose smoothed gradient is known exactly ----


def _two_kinks(
    place: float, scale: float, lipschitz: float, shares: tuple[float, ...], kinks: tuple[float, ...]
) -> float:
    """Gradient of the smoothed piecewise linear loss: E of a step function, so a sum of Φ."""
    value = shares[0]
    for before, after, kink in zip(shares, shares[1:], kinks, strict=False):
        value += (after - before) * float(ndtr((place - kink) / scale))
    return lipschitz * value


def _lemma_margin(
    lipschitz: float, scale: float, first: float, gap: float, middle: float, kink: float, constant: float = 1.0
) -> float:
    """(L/σ)|x − y| − |∇f(x) − ∇f(y)|, over |x − y| and L/σ, for slopes −L, middle·L, L with kinks at 0 and `kink`."""
    x, y = first * scale, (first + gap) * scale
    shares, kinks = (-1.0, middle, 1.0), (0.0, kink * scale)
    change = abs(_two_kinks(x, scale, lipschitz, shares, kinks) - _two_kinks(y, scale, lipschitz, shares, kinks))
    return constant - change / (abs(x - y) * lipschitz / scale)


def _lemma_twin(lipschitz: float, scale: float, first: float, gap: float, middle: float, kink: float) -> float:
    """The constant L/(√(2π) σ), half of what |x| attains."""
    return _lemma_margin(lipschitz, scale, first, gap, middle, kink, 1 / math.sqrt(2 * math.pi))


lemma_1 = Inequality(
    _lemma_margin,
    {
        "lipschitz": Range(0.1, 10, "log"),
        "scale": Range(1e-3, 10, "log"),
        "first": Range(-3, 3),
        "gap": Range(1e-3, 4, "log"),
        "middle": Range(-1, 1),
        "kink": Range(0, 3),
    },
    (
        {"lipschitz": 1.0, "scale": 0.0066, "first": -0.01, "gap": 0.02, "middle": 0.0, "kink": 0.0},
        {"lipschitz": 1.0, "scale": 0.0264, "first": -0.01, "gap": 0.02, "middle": 0.0, "kink": 0.0},
    ),
    twin=_lemma_twin,
    tolerance=1e-9,
    obligations=(
        "the expectation over the Gaussian, not an average of K samples",
        "the sharp constant is √(2/π) L/σ, which |x| attains; the printed one is 25 % larger",
    ),
)


def _clamped(place: float, scale: float, width: float) -> float:
    """E of clip(place + scale·Z, −width, width): the smoothed gradient of Huber's loss, in units of its curvature."""
    low, high = (-width - place) / scale, (width - place) / scale
    inside = place * (ndtr(high) - ndtr(low)) + scale * (_phi(low) - _phi(high))
    return float(inside - width * ndtr(low) + width * (1 - ndtr(high)))


def _phi(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _smooth_margin(curvature: float, scale: float, width: float, first: float, gap: float, share: float = 1.0) -> float:
    """min{L/σ, β} − |∇f(x) − ∇f(y)|/|x − y| over β, for Huber's loss with L = β·width."""
    x, y = first * scale, (first + gap) * scale
    wide = width * scale
    change = curvature * abs(_clamped(x, scale, wide) - _clamped(y, scale, wide))
    allowed = min(share * curvature * wide / scale, curvature)
    return (allowed - change / abs(x - y)) / curvature


lemma_1_smooth = Inequality(
    _smooth_margin,
    {
        "curvature": Range(0.1, 10, "log"),
        "scale": Range(1e-3, 10, "log"),
        "width": Range(0.05, 20, "log"),
        "first": Range(-3, 3),
        "gap": Range(1e-3, 4, "log"),
    },
    (
        {"curvature": 1.0, "scale": 0.0066, "width": 1.0, "first": -0.01, "gap": 0.02},
        {"curvature": 1.0, "scale": 0.0264, "width": 5.0, "first": -0.01, "gap": 0.02},
    ),
    twin=lambda curvature, scale, width, first, gap: _smooth_margin(curvature, scale, width, first, gap, 0.5),
    tolerance=1e-9,
    obligations=("gradient and expectation exchanged (Duchi, Bartlett and Wainwright 2012, Lemma 9(iv))",),
)


def _finite_samples(samples: int, radius: float, batch: int, rate: float, noise: float, expectation: bool) -> Shown:
    """|θ| (Lipschitz constant 1) averaged over K fixed offsets: its gradient jumps by 2/K at every offset.

    Exact rationals: the difference quotient over a gap of h around one kink is (2/K)/h, against 1/σ_smooth.
    """
    scale = Fraction(radius) * Fraction(str(rate)) / batch * Fraction(str(noise))
    allowed = 1 / scale
    if expectation:
        steepest = Fraction(798, 1000) / scale  # √(2/π) < 0.798 = sup of the derivative of E sign(θ + σZ), over 1/σ
        return Shown(
            steepest <= allowed, f"the expectation's constant is at most {float(steepest):.4g}", float(steepest)
        )
    gap = scale / (1000 * samples)
    offsets = [scale * Fraction(2 * place + 1 - samples, samples) for place in range(samples)]
    kink = -offsets[0]

    def gradient(place: Fraction) -> Fraction:
        return Fraction(sum(1 if place + offset > 0 else -1 for offset in offsets), samples)

    quotient = abs(gradient(kink + gap / 2) - gradient(kink - gap / 2)) / gap
    second = Fraction(2, samples) / gap
    reason = f"the difference quotient at a kink is {float(quotient):.4g}, Lemma 1 allows {float(allowed):.4g}"
    evidence = {"samples": samples, "quotient": float(quotient), "allowed": float(allowed), "gap": float(gap)}
    routes = {"gradients": float(quotient), "size of a kink": float(second)}
    return Shown(bool(quotient <= allowed), reason, float(quotient / allowed), evidence, routes)


def _finite(samples: int, radius: float, batch: int, rate: float, noise: float) -> Shown:
    return _finite_samples(samples, radius, batch, rate, noise, False)


def _finite_twin(samples: int, radius: float, batch: int, rate: float, noise: float) -> Shown:
    return _finite_samples(samples, radius, batch, rate, noise, True)


finite_samples_are_not_smooth = Demonstration(_finite, _finite_twin)


def _descent_margin(place: float, slope: float, rate: float, share: float = 0.5) -> float:
    """f(θ) − η f′ g + (β/2) η² g² − f(θ − ηg), over β, for f = −β cos θ with f″ ≤ β.

    `rate` is ηβ, and the sampled gradient over β is sin θ + slope.
    """
    step = rate * (math.sin(place) + slope)
    bound = -math.cos(place) - step * math.sin(place) + share * step**2
    return bound + math.cos(place - step)


appendix_b_descent = Inequality(
    _descent_margin,
    {"place": Range(-3.2, 3.2), "slope": Range(-2, 2), "rate": Range(1e-3, 3, "log")},
    ({"place": 0.3, "slope": 0.5, "rate": 0.1536},),
    twin=lambda place, slope, rate: _descent_margin(place, slope, rate, 0.25),
    tolerance=1e-12,
    obligations=("the average loss is β-smooth",),
)


# ---- equation (1): the toy example ----


def _toy(first: Any, second: Any, distance: float) -> Any:
    """𝓛 at (first, second), with u = 0 and v = (distance, 0): the centres themselves are not printed."""
    to_u, to_v = np.hypot(first, second), np.hypot(first - distance, second)
    with np.errstate(divide="ignore", over="ignore"):
        flat = 1 / (1 + np.exp(-(to_u / 5 - 5 / to_u)))
        sharp = 1 / (1 + np.exp(-(2 * to_v / 5 - 5 / (2 * to_v))))
        weight = 1 / (1 + np.exp((to_u - to_v) / 2))
    return flat * weight + sharp * (1 - weight)


def _rise(distance: float, at_u: bool, level: float) -> float:
    """How far from a centre, away from the other, the loss first reaches `level`."""
    steps = np.linspace(1e-3, 8, 4001)
    losses = _toy(-steps if at_u else distance + steps, 0.0 * steps, distance)
    return float(steps[np.argmax(losses >= level)])


def _two_minima(distance: float) -> Shown:
    """Both centres are minima with a loss near 0, and the second rises over half the width of the first."""
    angle = np.linspace(0, 2 * np.pi, 72, endpoint=False)
    at_u, at_v = float(_toy(1e-9, 0.0, distance)), float(_toy(distance - 1e-9, 0.0, distance))
    around_u = float(np.min(_toy(np.cos(angle), np.sin(angle), distance)))
    around_v = float(np.min(_toy(distance + np.cos(angle) / 2, np.sin(angle) / 2, distance)))
    widths = _rise(distance, True, 0.4), _rise(distance, False, 0.4)
    evidence = {"at_u": at_u, "at_v": at_v, "around_u": around_u, "around_v": around_v, "widths": list(widths)}
    minima = at_u < around_u and at_v < around_v and max(at_u, at_v) < 0.05
    holds = minima and 1.5 < widths[0] / widths[1] < 2.5
    reason = (
        f"the losses at the centres are {at_u:.2g} and {at_v:.2g}; 0.4 is reached at {widths[0]:.3g}, {widths[1]:.3g}"
    )
    return Shown(bool(holds), reason, max(at_u, at_v), evidence)


toy_minima = Demonstration(_two_minima, lambda distance: _two_minima(distance / 10))


def _minima_after(distance: float, scale: float) -> list[float]:
    """Local minima on the line through both centres after smoothing, by a product of Gauss-Hermite rules."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    line = np.linspace(-distance, 2 * distance, 301)
    second = scale * nodes
    losses = np.array(
        [float(weights @ _toy((place + scale * nodes)[:, None], second[None, :], distance) @ weights) for place in line]
    )
    inner = (losses[1:-1] < losses[:-2]) & (losses[1:-1] < losses[2:])
    return [round(float(place), 3) for place in line[1:-1][inner]]


def _sharp_one_vanishes(distance: float, little: float, enough: float) -> Shown:
    """Two minima after little smoothing, and one, near u, after enough."""
    before, after = _minima_after(distance, little), _minima_after(distance, enough)
    holds = len(before) == 2 and len(after) == 1 and abs(after[0]) < distance / 4
    reason = f"minima on the line at {before} for scale {little:g}, at {after} for {enough:g}"
    return Shown(holds, reason, len(after), {"before": before, "after": after, "distance": distance})


toy_smoothing = Demonstration(
    _sharp_one_vanishes, lambda **setting: _sharp_one_vanishes(**{**setting, "enough": setting["little"]})
)
