"""Section 4 and Appendices B and C of dplis2021: Theorems 2, 3 and 4, by problems where both sides are exact.

| paper | here |
| --- | --- |
| β, η, T, σ² (variance of the sampled gradient) | curvature, rate, steps, variance |
| C, L, n, q | clip, lipschitz, records, share of the records in a batch |
| N₁ | how often the differing record is selected |
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import mpmath

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range

# ---- Theorem 2: SGD on βθ²/2 with gradient noise, where every expectation has a recursion ----


def _both_sides(product: Any, start: Any, steps: int, noise: Any, first_share: Any = 1) -> tuple[Any, Any]:
    """Left and right side of Theorem 2 for 𝓛 = βθ²/2, over β², with θ₁ = start and E‖g − ∇𝓛‖² = (β·noise)².

    `product` is ηβ. E θ² follows E θ² ← (1 − ηβ)² E θ² + η²σ²; 𝓛(θ*) = 0. Fractions stay exact.
    """
    square, total = start**2, 0 * start
    for _ in range(steps):
        total = total + square
        square = (1 - product) ** 2 * square + product**2 * noise**2
    left = total / steps
    right = first_share * start**2 / (product * (2 - product) * steps) + product * noise**2 / (2 - product)
    return left, right


def _theorem_2_margin(product: float, start: float, steps: int, noise: float) -> float:
    """(right − left), over the larger of them in size."""
    left, right = _both_sides(product, start, steps, noise)
    return float((right - left) / max(abs(left), abs(right), 1e-300))


def _theorem_2_enclosure(product: float, start: float, steps: int, noise: float) -> tuple[float, float]:
    """The same in exact rationals, closed outwards by one part in 10¹⁵."""
    left, right = _both_sides(Fraction(product), Fraction(start), steps, Fraction(noise))
    exact = float((right - left) / max(abs(left), abs(right)))
    return exact - 1e-15 * abs(exact), exact + 1e-15 * abs(exact)


def _theorem_2_twin(product: float, start: float, steps: int, noise: float) -> float:
    """The factor 2 of the first numerator lost."""
    left, right = _both_sides(product, start, steps, noise, 0.5)
    return float((right - left) / max(abs(left), abs(right), 1e-300))


_START = {"start": Range(0.01, 10, "log"), "steps": Range(1, 40, "whole"), "noise": Range(0, 3)}
theorem_2 = Inequality(
    _theorem_2_margin,
    {"product": Range(1e-3, 1.99), **_START},
    (
        {"product": 0.1536, "start": 1.0, "steps": 40, "noise": 1.1},
        {"product": 1.0, "start": 1.0, "steps": 1, "noise": 0.0},
        {"product": 1.536, "start": 1.0, "steps": 40, "noise": 1.3},
    ),
    twin=_theorem_2_twin,
    tolerance=1e-12,
    obligations=(
        "ηβ < 2, which the statement does not ask for",
        "a constant learning rate; gradients unbiased, neither clipped nor averaged over K smoothing samples",
        "σ ≥ 0 (printed: σ ≤ 0)",
    ),
)
theorem_2_any_rate = Inequality(
    _theorem_2_margin,
    {"product": Range(2.01, 6), **_START},
    ({"product": 3.0, "start": 1.0, "steps": 10, "noise": 0.0},),
    twin=_theorem_2_twin,
    tolerance=1e-9,
    enclosure=_theorem_2_enclosure,
)


def _right(curvature: float, drop: float, rate: float, steps: float, variance: float, sign: int = 1) -> float:
    """The right side of Theorem 2; `drop` is E𝓛(θ₁) − E𝓛(θ*)."""
    below = 2 - rate * curvature
    return 2 * drop / (rate * below * steps) + sign * rate * curvature * variance / below


def _smoother_margin(share: float, ratio: float, drop: float, steps: int, variance: float, sign: int = 1) -> float:
    """Right side at ηβ = `share` less the one at the smaller ηβ·ratio, with η = 1; over the larger."""
    more = _right(share, drop, 1.0, steps, variance, sign)
    return (more - _right(share * ratio, drop, 1.0, steps, variance, sign)) / abs(more)


def _smoother_twin(share: float, ratio: float, drop: float, steps: int, variance: float) -> float:
    """A minus sign before the second term."""
    return _smoother_margin(share, ratio, drop, steps, variance, -1)


smoother_bound_is_smaller = Inequality(
    _smoother_margin,
    {
        "share": Range(1e-3, 1.99),
        "ratio": Range(0.01, 1),
        "drop": Range(0.01, 10, "log"),
        "steps": Range(1, 10000, "whole"),
        "variance": Range(0, 10),
    },
    ({"share": 0.1536, "ratio": 0.5, "drop": 2.3, "steps": 6000, "variance": 1.21},),
    twin=_smoother_twin,
    tolerance=1e-12,
    obligations=("it compares two upper bounds, not the two sums of squared gradients",),
)


def _stationary_for_one(slope: str, scale: float) -> Shown:
    """𝓛 = sin θ + cθ at its local minimum, one step (T = 1, no noise): the original's gradient is 0 there.

    Smoothing multiplies the wave by e^{−s²/2}, so that the smoothed gradient is c(1 − e^{−s²/2}), above 0.
    """
    with mpmath.workdps(30):
        c, s = mpmath.mpf(slope), mpmath.mpf(scale)
        place = 2 * mpmath.pi - mpmath.acos(-c)  # cos θ = −c and sin θ < 0: a minimum
        original = mpmath.cos(place) + c
        smoothed = mpmath.exp(-(s**2) / 2) * mpmath.cos(place) + c
        by_integral = mpmath.quad(
            lambda z: (mpmath.cos(place + s * z) + c) * mpmath.npdf(z), mpmath.linspace(-9, 9, 13)
        )
        left, right = float(original**2), float(smoothed**2)
        routes = {"closed form": right, "integral": float(by_integral**2)}
    reason = f"the squared gradient is {left:.2g} for the loss and {right:.3g} for the smoothed one"
    return Shown(right <= left + 1e-20, reason, right, {"original": left, "smoothed": right, "scale": scale}, routes)


def _smoother_quadratic(slope: str, scale: float) -> Shown:
    """A wave without a slope at a place that is no minimum: there smoothing does shrink the gradient."""
    place = 1.0
    left, right = math.cos(place) ** 2, (math.exp(-(scale**2) / 2) * math.cos(place)) ** 2
    return Shown(right <= left, f"the squared gradients are {left:.3g} and {right:.3g}", right, {"slope": slope})


smoothed_gradients_are_smaller = Demonstration(_stationary_for_one, _smoother_quadratic)


def _second_term_dominates(power: Fraction, needed: bool) -> Shown:
    """Ratio of the second to the first term of Theorem 2 at η = T^−power, T = 16^k, with βσ² = 2(𝓛₁ − 𝓛*).

    The ratio is η²T·(βσ²/(2(𝓛₁ − 𝓛*))) = T^{1 − 2·power}; ηT = T^{1−power} says whether η = ω(1/T).
    """
    ratios, growth = [], []
    for k in (4, 8, 12):
        steps = Fraction(16) ** k
        rate = Fraction(1, 2 ** int(4 * k * power))  # 4k·power is whole for quarters
        first, second = 1 / (rate * steps), rate
        ratios.append(float(second / first))
        growth.append(float(rate * steps))
    slower = growth[0] < growth[1] < growth[2]
    dominates = ratios[0] < ratios[1] < ratios[2]
    reason = f"at η = T^-{float(power):g}: ηT = {growth}, second term over first = {ratios}"
    evidence = {"power": float(power), "eta_times_T": growth, "second_over_first": ratios}
    routes = {"simulated powers": ratios[-1], "exponent 1 - 2 power": 16.0 ** (12 * float(1 - 2 * power))}
    return Shown((not slower or dominates) if needed else dominates, reason, ratios[-1], evidence, routes)


second_term_dominates = Demonstration(
    lambda: _second_term_dominates(Fraction(3, 4), True), lambda: _second_term_dominates(Fraction(1, 4), True)
)

# ---- Theorems 3 and 4: all datasets, all batches, all records of a small problem ----


def _clipped(value: Any, clip: Any) -> Any:
    return max(-clip, min(clip, value))


def _trained(data: tuple[int, ...], picks: tuple[int, ...], rate: Any, curvature: Any, clip: Any, reach: Any) -> Any:
    """θ_T from batches of one record, 𝓛_train(θ, x) = β(θ − reach·x)²/2, θ₀ = 0, without noise."""
    place: Any = 0 * rate
    for pick in picks:
        place = place - rate * _clipped(curvature * (place - reach * data[pick]), clip)
    return place


def _gap(rate: Any, curvature: Any, clip: Any, reach: Any, records: int, steps: int) -> Any:
    """|E[population loss − training loss]| of 𝓛(θ, x) = −θx (Lipschitz constant 1), x = ±1 evenly."""
    total: Any = 0 * rate
    for data in itertools.product((-1, 1), repeat=records):
        mean = Fraction(sum(data), records) if isinstance(rate, Fraction) else sum(data) / records
        for picks in itertools.product(range(records), repeat=steps):
            total = total + _trained(data, picks, rate, curvature, clip, reach) * mean
    return abs(total / (2**records * records**steps))


def _stability(rate: Any, curvature: Any, clip: Any, reach: Any, records: int, steps: int) -> Any:
    """The largest E[𝓛(θ_D, x) − 𝓛(θ_D′, x)] over neighbouring datasets and records: Definition 6's s, exactly."""
    worst: Any = 0 * rate
    for data in itertools.product((-1, 1), repeat=records):
        for place in range(records):
            other = (*data[:place], -data[place], *data[place + 1 :])
            change: Any = 0 * rate
            for picks in itertools.product(range(records), repeat=steps):
                change = change + _trained(data, picks, rate, curvature, clip, reach)
                change = change - _trained(other, picks, rate, curvature, clip, reach)
            worst = max(worst, abs(change) / records**steps)
    return worst


def _theorem_3_bound(rate: Any, curvature: Any, clip: Any, records: int, steps: Any, times: int) -> Any:
    return 2 * rate * clip * times / records * (1 + rate * curvature) ** (steps - 1)


def _theorem_3_margin(rate: float, curvature: float, clip: float, reach: float, records: int, steps: int) -> float:
    """The bound less the gap, over the bound; the Lipschitz constant is 1."""
    bound = _theorem_3_bound(rate, curvature, clip, records, steps, steps)
    return float(1 - _gap(rate, curvature, clip, reach, records, steps) / bound)


def _theorem_3_twin(rate: float, curvature: float, clip: float, reach: float, records: int, steps: int) -> float:
    """The factor T lost (the differing record counted once)."""
    bound = _theorem_3_bound(rate, curvature, clip, records, steps, 1)
    return float(1 - _gap(rate, curvature, clip, reach, records, steps) / bound)


_PROBLEM = {
    "rate": Range(0.01, 2, "log"),
    "curvature": Range(0.01, 3, "log"),
    "clip": Range(0.1, 3, "log"),
    "reach": Range(0.1, 10, "log"),
    "records": Range(2, 3, "whole"),
    "steps": Range(1, 3, "whole"),
}
_SMALL = (
    {"rate": 0.1536, "curvature": 0.2, "clip": 1.0, "reach": 10.0, "records": 3, "steps": 3},
    {"rate": 1.536, "curvature": 0.2, "clip": 1.0, "reach": 10.0, "records": 3, "steps": 3},
)
theorem_3 = Inequality(
    _theorem_3_margin,
    _PROBLEM,
    _SMALL,
    twin=_theorem_3_twin,
    tolerance=1e-9,
    obligations=(
        "batches of one size, drawn evenly, the same size for both datasets",
        "every per-record training loss β-smooth: for Algorithm 2 the K-sample average, not its expectation",
        "clipping is a projection, so it does not lengthen differences (claim appendix-c-clipping)",
        "the noise is the same for both datasets and cancels",
    ),
    examples=60,
)


def _theorem_4_margin(rate: float, curvature: float, clip: float, reach: float, records: int, steps: int) -> float:
    """s less the gap, over s."""
    s = _stability(rate, curvature, clip, reach, records, steps)
    return float(1 - _gap(rate, curvature, clip, reach, records, steps) / s)


def _theorem_4_twin(rate: float, curvature: float, clip: float, reach: float, records: int, steps: int) -> float:
    """s/n instead of s."""
    s = _stability(rate, curvature, clip, reach, records, steps)
    return float(1 - records * _gap(rate, curvature, clip, reach, records, steps) / s)


theorem_4 = Inequality(
    _theorem_4_margin,
    _PROBLEM,
    _SMALL,
    twin=_theorem_4_twin,
    tolerance=1e-9,
    obligations=("independent records; Definition 6 for every pair of neighbours in both orders",),
    examples=30,
)


def _path_margin(rate: float, curvature: float, clip: float, reach: float, records: int, steps: int) -> float:
    """Appendix C before expectations: N₁·(2ηC/(qn))·(1 + ηβ)^{T−1} less |θ_T − θ′_T|, the worst batch sequence."""
    return _path(rate, curvature, clip, reach, records, steps, steps - 1)


def _path(rate: float, curvature: float, clip: float, reach: float, records: int, steps: int, power: int) -> float:
    worst = 1.0
    for data in itertools.product((-1, 1), repeat=records):
        other = (-data[0], *data[1:])
        for picks in itertools.product(range(records), repeat=steps):
            times = picks.count(0)
            if not times:
                continue  # the paths agree
            apart = abs(
                _trained(data, picks, rate, curvature, clip, reach)
                - _trained(other, picks, rate, curvature, clip, reach)
            )
            worst = min(worst, 1 - apart / (times * 2 * rate * clip * (1 + rate * curvature) ** power))
    return worst


def _path_twin(rate: float, curvature: float, clip: float, reach: float, records: int, steps: int) -> float:
    """C in place of 2C: the differing record taken as added, not replaced."""
    return 1 - 2 * (1 - _path_margin(rate, curvature, clip, reach, records, steps))


appendix_c_path = Inequality(
    _path_margin,
    _PROBLEM,
    _SMALL,
    twin=_path_twin,
    tolerance=1e-9,
    obligations=("batches of one record here, so qn = 1",),
    examples=60,
)


def _projection_margin(first: float, second: float, angle: float, clip: float, always: bool = False) -> float:
    """‖g − g′‖ − ‖clip(g) − clip(g′)‖ in the plane; `always` scales every gradient to norm C."""
    g = (first, 0.0)
    h = (second * math.cos(angle), second * math.sin(angle))

    def scaled(vector: tuple[float, float]) -> tuple[float, float]:
        norm = math.hypot(*vector)
        factor = clip / norm if always else 1 / max(1.0, norm / clip)
        return vector[0] * factor, vector[1] * factor

    (a, b), (c, d) = scaled(g), scaled(h)
    return math.hypot(g[0] - h[0], g[1] - h[1]) - math.hypot(a - c, b - d)


def _projection_twin(first: float, second: float, angle: float, clip: float) -> float:
    return _projection_margin(first, second, angle, clip, True)


appendix_c_clipping = Inequality(
    _projection_margin,
    {
        "first": Range(0.01, 10, "log"),
        "second": Range(0.01, 10, "log"),
        "angle": Range(0, math.pi),
        "clip": Range(0.1, 3, "log"),
    },
    ({"first": 2.0, "second": 0.5, "angle": 1.0, "clip": 1.0},),
    twin=_projection_twin,
    tolerance=1e-12,
    obligations=("the ℓ₂ norm: clipping is the projection onto a ball",),
)


def _expected_selections(records: int, batch: int, steps: int) -> Any:
    """E N₁ from all batches of one size: Σ_k k·P(k of T batches contain the record), with counted batches."""
    containing, total = math.comb(records - 1, batch - 1), math.comb(records, batch)
    p = mpmath.mpf(containing) / total
    return mpmath.fsum(k * mpmath.binomial(steps, k) * p**k * (1 - p) ** (steps - k) for k in range(steps + 1))


expected_selections = Formula(
    lambda records, batch, steps: mpmath.mpf(batch) / records * steps,
    _expected_selections,
    (
        {"records": 60000, "batch": 256, "steps": 40},
        {"records": 10000, "batch": 64, "steps": 156},
        {"records": 10, "batch": 3, "steps": 7},
    ),
    twin=lambda records, batch, steps: 1 - (1 - mpmath.mpf(batch) / records) ** steps,
)
