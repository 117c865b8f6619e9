"""Rényi divergences of Gaussian mixtures on the line: quadrature of the definition, and enclosures in Arb.

All noise has standard deviation 1; means are in units of it.

| paper | here |
| --- | --- |
| α, τ | order, loss |
| p, p_z, bC/K̃ | rate |
| K̃/(Ñ C σ_G), 1/σ_K | shift |
| σ_G, σ_K, σ_N | noise multiplier |
| b, k, C | batch, oversampling, clip bound |
| K̃, Ñ | gradient sum, size |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Mixture = Sequence[tuple[float, float]]  # (weight, mean) of each part
Floats = npt.NDArray[np.float64]


def subsampled(rate: float, shift: float) -> Mixture:
    """(1−rate)·N(0, 1) + rate·N(shift, 1).

    >>> subsampled(0.25, 2.0)
    ((0.75, 0.0), (0.25, 2.0))
    """
    return ((1 - rate, 0.0), (rate, shift))


ALONE: Mixture = ((1.0, 0.0),)


def mixture_renyi(order: float, first: Mixture, second: Mixture, step: float = 0.05) -> float:
    """D_order(first ‖ second) by the trapezoidal rule on the definition; float64, absolute error about 1e-13.

    >>> round(mixture_renyi(3.0, ((1.0, 0.5),), ALONE), 12)
    0.375
    """
    means = [mean for _, mean in (*first, *second)]
    reach = (2 * order + 1) * max(map(abs, means)) + 9
    x: Floats = np.arange(-reach, reach + step, step)
    log_first, log_second = _log_density(x, first), _log_density(x, second)
    log_moment = float(np.logaddexp.reduce(order * log_first + (1 - order) * log_second)) + math.log(step)
    if log_moment > 1e-3:
        return log_moment / (order - 1)
    ratio = np.expm1(log_first - log_second)  # first/second − 1, whose mean under `second` is 0
    excess = np.expm1(order * (log_first - log_second)) - order * ratio
    return math.log1p(float(np.sum(np.exp(log_second) * excess)) * step) / (order - 1)


def _log_density(x: Floats, parts: Mixture) -> Floats:
    terms = [math.log(weight) - 0.5 * (x - mean) ** 2 for weight, mean in parts if weight > 0]
    return np.asarray(np.logaddexp.reduce(terms, axis=0) - 0.5 * math.log(2 * math.pi), dtype=np.float64)


def subsampled_renyi(order: float, rate: float, shift: float) -> float:
    """D_order(subsampled(rate, shift) ‖ N(0, 1)) by quadrature.

    >>> abs(subsampled_renyi(2.0, 0.1, 1.0) - math.log1p(0.01 * math.expm1(1.0))) < 1e-13
    True
    """
    return mixture_renyi(order, subsampled(rate, shift), ALONE)


def quadrature(order: Any, rate: Any, shift: Any) -> Any:
    """The same in mpmath at its working precision, for formulas."""
    import mpmath

    def integrand(x: Any) -> Any:
        density = mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi)
        return density * (1 - rate + rate * mpmath.exp(shift * x - shift * shift / 2)) ** order

    far = order * shift
    nodes = [-14, 0, *([far / 2] if far > 8 else []), far + 3, far + 17]
    return mpmath.log(mpmath.quad(integrand, nodes)) / (order - 1)


def enclosed_renyi(order: int, rate: float, shift: float, bits: int = 200) -> tuple[float, float]:
    """An enclosure of the same at a whole order, by expanding the power and integrating each Gaussian term in Arb.

    >>> lower, upper = enclosed_renyi(2, 0.1, 1.0)
    >>> lower <= math.log1p(0.01 * math.expm1(1.0)) <= upper
    True
    """
    ball = enclosed_ball(order, rate, shift, bits)
    return math.nextafter(float(ball.lower()), -math.inf), math.nextafter(float(ball.upper()), math.inf)


def enclosed_ball(order: int, rate: float, shift: float, bits: int = 200) -> Any:
    """The Arb ball of `enclosed_renyi`."""
    from flint import arb, ctx

    before, ctx.prec = ctx.prec, bits
    try:
        share, square, total = arb(rate), arb(shift) ** 2, arb(0)
        for chosen in range(order + 1):
            pairs = chosen * (chosen - 1) // 2
            total += math.comb(order, chosen) * (1 - share) ** (order - chosen) * share**chosen * (pairs * square).exp()
        return total.log() / (order - 1)
    finally:
        ctx.prec = before


def difference(first: Any, second: Any) -> tuple[float, float]:
    """Floats around the difference of two Arb balls."""
    ball = first - second
    return math.nextafter(float(ball.lower()), -math.inf), math.nextafter(float(ball.upper()), math.inf)


def log_moments(order: int, rate: float, shift: float) -> float:
    """`enclosed_renyi` in float64 for whole orders, for sums over many iterations (relative error about 1e-9).

    >>> abs(log_moments(3, 0.2, 0.7) - subsampled_renyi(3.0, 0.2, 0.7)) < 1e-10
    True
    """
    terms = []
    for chosen in range(order + 1):
        if (rate >= 1 and chosen < order) or (rate <= 0 and chosen):
            continue
        weight = math.log(math.comb(order, chosen)) + chosen * (chosen - 1) / 2 * shift * shift
        weight += chosen * math.log(rate) if chosen else 0.0
        weight += (order - chosen) * math.log1p(-rate) if chosen < order else 0.0
        terms.append(weight)
    top = max(terms)
    return (top + math.log(math.fsum(math.exp(term - top) for term in terms))) / (order - 1)


def converted(order: float, loss: float, delta: float) -> float:
    """ε from (α, τ)-RDP, equation (2); negative where the promise is trivial.

    >>> round(converted(10.0, 1.0, 1e-5), 4)
    1.918
    """
    return loss + (-math.log(delta) + (order - 1) * math.log1p(-1 / order) - math.log(order)) / (order - 1)
