"""δ(ε) of one release of random sensitivity alone: one integral of positive terms, to nearly all digits.

| here | meaning |
| --- | --- |
| s, p(s) | the log ratio of N(Z, σ²) to N(0, σ²) and its density under N(0, σ²) (`_projections_density`) |
| a | where the loss reaches ε: R(a) = e^ε for remove, R(−a) = e^−ε for add, R(s) = 1 − q + q e^s |

R grows with s, so δ(ε) = ∫ p (R − e^ε)₊ = q ∫_0^∞ p(−a−t) (1 − e^(−t)) dt for remove, by e^s p(s) = p(−s), and
(1 − (1−q) e^ε) times the same integral for add. Nothing cancels, and both hold for the smallest δ.
"""

from __future__ import annotations

import math

import numpy as np

from dpbench.accountants._projections_density import Law
from dpbench.accountants._projections_panels import GAUSS, panel_nodes, roughness
from dpbench.events import RandomSensitivityGaussian

_MOST_NOISE = 1e100  # beyond, nothing is revealed that a double could tell
_SMALL = 1e-12  # of a panel, relative to the whole: the rest
_ROUNDS = 40
_MOST_PANELS = 4000  # beyond, it is rounding that is rough


def log_release(event: RandomSensitivityGaussian, epsilon: float, way: int) -> float:
    """log δ(ε) of one release for ε >= 0, −∞ where δ is 0; `way` is 0 for remove, 1 for add. Relative error 1e-11.

    >>> round(math.exp(log_release(RandomSensitivityGaussian(0.01, 1.0, 1), 0.0, 0)), 12)
    0.005902117958
    """
    if event.sampling_rate == 0 or event.noise_multiplier > _MOST_NOISE:
        return -math.inf
    return log_single(event.sampling_rate, Law(event.noise_multiplier, event.projections), epsilon, way)


def log_single(rate: float, law: Law, epsilon: float, way: int) -> float:
    """`log_release` of a rate in (0, 1] and the law of the log ratio."""
    if way == 0:
        # a = log(1 + (e^ε − 1)/q)
        a = math.log1p(math.expm1(epsilon) / rate) if epsilon < 30 else _far(epsilon, rate)
        return math.log(rate) + _log_integral(a, law)
    rest = math.expm1(-epsilon) / rate  # R(−a) = e^−ε: e^−a = 1 + (e^−ε − 1)/q
    if rest <= -1:
        return -math.inf
    share = -math.expm1(epsilon + math.log1p(-rate)) if rate < 1 else 1.0
    return math.log(share) + _log_integral(-math.log1p(rest), law)


def _far(epsilon: float, rate: float) -> float:
    """log(1 + (e^ε − 1)/q) for large ε."""
    return epsilon - math.log(rate) + math.log1p(math.exp(-epsilon) * (rate - 1))


def _log_integral(a: float, law: Law) -> float:
    """log ∫_0^∞ p(−a−t) (1 − e^(−t)) dt."""
    length = min(1.0, 1 / law.sigma) / 4
    tops = np.concatenate([[0.0], length * 2.0 ** np.arange(0.0, 400.0)])
    tops = tops[tops < 1e140 / max(law.sigma, 1.0)]  # whose square is a double
    starts, ends = tops[:-1] + 0j, tops[1:] + 0j
    logs = []
    highest = -math.inf
    for attempt in range(_ROUNDS):
        t, weight = panel_nodes(starts, ends)
        value = law.log_even(a + t).real + np.log(-np.expm1(-t.real))
        highest = max(highest, float(value.max()))
        size = np.exp(np.maximum(value - highest, -800.0))
        tail, whole = roughness(size + 0j)
        lengths = np.abs(ends - starts)
        mass = (size * GAUSS).sum(axis=1) * lengths / 2
        rough = (tail > 1e-8 * whole) & (mass > _SMALL * 1e-4 * mass.max()) & (attempt < _ROUNDS - 1)
        rough &= len(starts) < _MOST_PANELS
        logs.append((value + np.log(weight.real))[~rough].ravel())
        if not rough.any():
            break
        middle = (starts + ends)[rough] / 2
        starts, ends = np.concatenate([starts[rough], middle]), np.concatenate([middle, ends[rough]])
    joined = np.concatenate(logs)
    top = float(joined.max())
    return top + math.log(math.fsum(np.exp(joined - top)))
