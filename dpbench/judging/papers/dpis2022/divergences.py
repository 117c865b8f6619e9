"""Rényi divergences of Gaussian mixtures on the line, noise of deviation 1: quadrature, closed sums, Arb balls.

Symbols, in all files of this paper:

| paper | here |
| --- | --- |
| α, τ | order, loss |
| p, b/N, bC_e/K̃, p_z | rate |
| 1/σ_K, K̃/(Ñ C_e σ_G) | shift; what z moves a sum by, in units of its noise |
| b, C, k | batch, bound, oversampling |
| b/Ñ, K̃/(ÑC) | unit, fill: rate = unit/fill, shift = fill/σ_G |
| K̃/(bC), b/(Ñ σ_G) | room, unit in `algorithm.py`: rate = 1/room, shift = room·unit |
| σ_G, σ_K, σ_N | noise |
| FMNIST's N, Figure 1's σ_G | SIZE, NOISE; BATCH is an example, the paper prints none |
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from flint import arb, ctx

from dpbench.judging.papers.mathematics import Ball, log_moment

SIZE, BATCH, NOISE = 60_000, 256, 0.81
Mixture = Sequence[tuple[float, float]]  # (weight, mean) of each part
ALONE: Mixture = ((1.0, 0.0),)


def subsampled(rate: float, shift: float) -> Mixture:
    """(1−rate)·N(0, 1) + rate·N(shift, 1)."""
    return ((1 - rate, 0.0), (rate, shift))


def added(one: Mixture, other: Mixture) -> Mixture:
    """The mixture when the means of two independent ones add up."""
    return [(p * q, x + y) for p, x in one for q, y in other]


def renyi(order: float, first: Mixture, second: Mixture = ALONE, step: float = 0.05) -> float:
    """D_order(first ‖ second) by the trapezoidal rule on the definition; absolute error about 1e-13.

    >>> round(renyi(3.0, ((1.0, 0.5),)), 12)
    0.375
    """
    reach = (2 * order + 1) * max(abs(mean) for _, mean in (*first, *second)) + 9
    x = np.arange(-reach, reach + step, step)
    one, other = (
        np.logaddexp.reduce([math.log(p) - 0.5 * (x - mean) ** 2 for p, mean in parts if p > 0], axis=0)
        for parts in (first, second)
    )
    unit = math.log(step / math.sqrt(2 * math.pi))
    moment = float(np.logaddexp.reduce(order * one + (1 - order) * other)) + unit
    if moment > 1e-3:
        return moment / (order - 1)
    # first/second − 1 has the mean 0 under `second`
    excess = np.expm1(order * (one - other)) - order * np.expm1(one - other)
    return math.log1p(float(np.sum(np.exp(other + unit) * excess))) / (order - 1)


def loss(order: float, rate: float, shift: float) -> float:
    """D_order of a sampled Gaussian, record present against record absent, by `renyi`.

    >>> abs(loss(2.0, 0.1, 1.0) - math.log1p(0.01 * math.expm1(1.0))) < 1e-13
    True
    """
    return renyi(order, subsampled(rate, shift))


def ball(order: int, rate: float, shift: float) -> Ball:
    """`loss` in an Arb ball, by expanding the power and integrating each Gaussian term."""
    with ctx.workprec(200):
        q, square = arb(rate), arb(shift) ** 2
        terms = (
            math.comb(int(order), m) * (1 - q) ** (int(order) - m) * q**m * (m * (m - 1) // 2 * square).exp()
            for m in range(int(order) + 1)
        )
        return sum(terms, arb(0)).log() / (int(order) - 1)


def fast(order: int, rate: float, shift: float) -> float:
    """The same for sums over many iterations."""
    return log_moment(rate, 1 / shift, order) / (order - 1)


def converted(order: float, loss: float, delta: float) -> float:
    """ε from (α, τ)-RDP, equation (2); negative where the guarantee is trivial.

    >>> round(converted(10.0, 1.0, 1e-5), 4)
    1.918
    """
    return loss + (-math.log(delta) + (order - 1) * math.log1p(-1 / order) - math.log(order)) / (order - 1)


def smallest(enough: Callable[[Any], bool], low: Any, high: Any, steps: int) -> Any:
    """The smallest number for which `enough` is true, by bisection."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


# ---- all batches of a handful of records, in exact fractions ----


def batches(rates: Sequence[Fraction]) -> Iterator[tuple[Fraction, tuple[int, ...]]]:
    """Every batch with its probability when record i is drawn with probability `rates[i]`, independently."""
    for drawn in itertools.product((False, True), repeat=len(rates)):
        chances = (rate if chosen else 1 - rate for rate, chosen in zip(rates, drawn, strict=True))
        yield math.prod(chances, start=Fraction(1)), tuple(i for i, chosen in enumerate(drawn) if chosen)


def expectation(rates: Sequence[Fraction], value: Callable[[tuple[int, ...]], Any]) -> Fraction:
    """E of `value(members)` over all batches.

    >>> expectation([Fraction(1, 3), Fraction(1, 2)], len)
    Fraction(5, 6)
    """
    return sum((probability * value(members) for probability, members in batches(rates)), Fraction(0))
