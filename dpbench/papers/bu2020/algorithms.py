"""Algorithms 1 and 2, line by line, against what the privacy analysis of Section 3.1 needs of them.

| here | in the paper |
| --- | --- |
| rate, steps, sigma, bound | p, T, σ, R |
| batch, size | I_t, |I_t| |
| noisy average | ṽ_t = (Σ clipped gradients + σR·N(0, I)) / |I_t| |

**The division.** The sum over a Poisson batch has sensitivity R, but both algorithms use that sum over |I_t|, and |I_t|
changes with the record: k gradients +R have the average R, k + 1 of them, one of which is −R, have R (k−1)/(k+1). That
is 2R/(k+1) further down, under noise σR/k or σR/(k+1): in units of the noise 2/σ, not 1/σ. (The bars of |I_t| are lost
in the conversion; I_t is a set, drawn by Poisson sampling, so its size is random.)

What that costs a whole training is in `last_iterate.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.inequality import Inequality, Range

Vector = tuple[Any, ...]

# ---- clipping and the sum ----


def clipped(gradient: Sequence[float], bound: float) -> list[float]:
    """The printed line: v / max {1, ‖v‖/R}."""
    norm = math.sqrt(math.fsum(x * x for x in gradient))
    return [x / max(1.0, norm / bound) for x in gradient]


def _clip_margin(x: float, y: float, bound: float) -> float:
    """R less the norm after clipping, relative to R; below 0 where a gradient within R is changed."""
    result = clipped((x, y), bound)
    if math.hypot(x, y) <= bound and result != [x, y]:
        return -1.0
    return 1 - math.hypot(*result) / bound


def _clip_twin(x: float, y: float, bound: float) -> float:
    """The mistake of clipping every coordinate at R."""
    return 1 - math.hypot(max(-bound, min(bound, x)), max(-bound, min(bound, y))) / bound


_PLANE = {"x": Range(-10, 10), "y": Range(-10, 10), "bound": Range(0.1, 5, "log")}
clip_line = Inequality(
    _clip_margin,
    _PLANE,
    ({"x": 3.0, "y": 4.0, "bound": 1.5}, {"x": 0.3, "y": -0.1, "bound": 1.0}, {"x": 9.0, "y": -9.0, "bound": 5.0}),
    twin=_clip_twin,
    tolerance=1e-14,
    examples=60,
)


def _sum_margin(x: float, y: float, bound: float, divide: bool = False) -> float:
    """R less the change of the clipped sum of three others when one record comes; the twin looks at the average."""
    others = [clipped(v, bound) for v in ((2 * bound, 0.0), (bound, 0.0), (bound, 0.1 * bound))]
    record = clipped((x, y), bound)
    before = [math.fsum(v[i] for v in others) for i in (0, 1)]
    after = [before[i] + record[i] for i in (0, 1)]
    if divide:  # in units in which the noise is what it is for the sum: three records
        before, after = before, [3 * value / 4 for value in after]
    return 1 - math.dist(before, after) / bound


sum_sensitivity = Inequality(
    _sum_margin,
    _PLANE,
    ({"x": -3.0, "y": 0.0, "bound": 1.5}, {"x": 0.5, "y": 0.2, "bound": 1.0}, {"x": 0.0, "y": 9.0, "bound": 5.0}),
    twin=lambda x, y, bound: _sum_margin(x, y, bound, divide=True),
    tolerance=1e-14,
    obligations=("records are added or removed, not replaced", "the sum, not the average, gets noise σR"),
    examples=60,
)


# ---- dividing by |I_t| ----


def _division(fixed: bool) -> Shown:
    """One update M on a batch of 256 gradients +R and on that batch with one −R more: is it 1/σ-GDP, for row 1's σ?

    The test rejects below a threshold z deviations under the average R: type I error Φ(−z), type II error
    1 − Φ((shift − z·unit)/unit'), in Arb balls; G_{1/σ} at the same level is Φ(z − 1/σ).
    """
    from flint import arb, ctx

    before = ctx.prec
    ctx.prec = 120
    try:
        size, sigma = 256, arb("1.3")
        one = arb(1)

        def phi(x: Any) -> Any:
            return (-x / arb(2).sqrt()).erfc() / 2

        first_noise = sigma / size
        # divided by a constant the sum moves by one and the noise stays; divided by |I_t| both change
        shift = one / size if fixed else arb(2) / (size + 1)
        second_noise = first_noise if fixed else sigma / (size + 1)
        z = arb("1.2")
        missed = one - phi((shift - z * first_noise) / second_noise)
        allowed = phi(z - one / sigma)
        gap = missed - allowed
        lower, upper = float(gap.lower()), float(gap.upper())
        level = float(phi(-z).mid())
        errors = (float(missed.mid()), float(allowed.mid()))
    finally:
        ctx.prec = before
    holds = False if upper < 0 else None if lower < -1e-30 else True
    empty = (1 - 256 / 60000) ** 60000
    evidence = {
        "level": level,
        "type_II_error": errors[0],
        "least_by_1_over_sigma_gdp": errors[1],
        "difference_enclosed": [lower, upper],
        "probability_of_an_empty_batch": empty,
    }
    routes = {"arb": errors[0], "quadrature": _missed(fixed)}
    if fixed:
        return Shown(
            holds, f"type II error {errors[0]:.6g} at level {level:.4g}, allowed {errors[1]:.6g}", None, evidence
        )
    reason = f"at level {level:.4g} the type II error is {errors[0]:.4g}, where 1/sigma-GDP needs {errors[1]:.4g}"
    return Shown(holds, reason, errors[0], evidence, routes)


def _missed(fixed: bool) -> float:
    """The same type II error by quadrature of the density of the average with the record, in units of R."""
    import mpmath

    size, sigma = 256, 1.3
    threshold = 1 - 1.2 * sigma / size
    mean, noise = (1 - 1 / size, sigma / size) if fixed else ((size - 1) / (size + 1), sigma / (size + 1))
    points = [threshold, threshold + noise, threshold + 4 * noise, threshold + 14 * noise]
    return float(mpmath.quad(lambda x: mpmath.npdf(x, mean, noise), points))


division_by_batch = Demonstration(lambda: _division(False), lambda: _division(True))


# ---- Algorithm 2 ----


def _adam(noisy: Sequence[float], clean: Sequence[float] | None) -> list[float]:
    """The printed lines from given noisy averages ṽ_t in one coordinate; the twin's u_t is made of clean gradients."""
    first, second, weight = 0.0, 0.0, 1.0
    beta_1, beta_2, small, rate = 0.9, 0.999, 1e-8, 0.01
    weights = []
    for step, average in enumerate(noisy):
        first = beta_1 * first + (1 - beta_1) * average
        squared = average * average if clean is None else clean[step] * clean[step]
        second = beta_2 * second + (1 - beta_2) * squared
        weight -= rate * first / (math.sqrt(second) + small)
        weights.append(weight)
    return weights


def _postprocessing(leaky: bool) -> Shown:
    """Two datasets whose noise happens to give the same ṽ_t: every later quantity has to be the same."""
    noisy = [math.sin(3.0 * step) for step in range(1, 40)]
    datasets = ([0.5 for _ in noisy], [0.25 + 0.01 * step for step in range(len(noisy))])
    paths = [_adam(noisy, clean if leaky else None) for clean in datasets]
    largest = max(abs(a - b) for a, b in zip(*paths, strict=True))
    reason = "m, u, w and θ follow from the noisy averages and the start alone" if not largest else "θ tells more"
    return Shown(largest == 0.0, reason, largest, {"steps": len(noisy)})


adam_postprocessing = Demonstration(lambda: _postprocessing(False), lambda: _postprocessing(True))


def _first_reads(offset: int) -> Shown:
    """Which momentum the first pass of the loop reads: the inputs name m_0 and u_0, the printed line reads m_{t−1}."""
    defined, missing = {0}, []
    for step in range(3):
        if step + offset not in defined:
            missing.append(step + offset)
        defined.add(step + offset + 1)
    reason = f"index {missing[0]} is read and never given" if missing else "every index that is read is given"
    return Shown(not missing, reason, None, {"indices_missing": missing})


adam_start = Demonstration(lambda: _first_reads(-1), lambda: _first_reads(0))


# ---- the sampler ----


def _divergence(inclusions: Callable[[], dict[tuple[int, int], Fraction]], growth: Fraction) -> Fraction:
    """χ² of the mixture over when the record is used, two steps, against N(0, σ² I); growth = e^(1/σ²)."""
    law = inclusions()
    total = sum(
        (p * q * growth ** (a[0] * b[0] + a[1] * b[1]) for a, p in law.items() for b, q in law.items()), Fraction(0)
    )
    return total - 1


def _poisson() -> dict[tuple[int, int], Fraction]:
    return {(a, b): Fraction(1, 4) for a in (0, 1) for b in (0, 1)}


def _shuffled() -> dict[tuple[int, int], Fraction]:
    return {(1, 0): Fraction(1, 2), (0, 1): Fraction(1, 2)}


def _samplers(other: Callable[[], dict[tuple[int, int], Fraction]]) -> Shown:
    """Two records in batches of one, one epoch: Poisson with p = 1/2 against another way to make the batches."""
    growth = Fraction(9, 5)  # near e^(1/1.3²)
    one, two = _divergence(_poisson, growth), _divergence(other, growth)
    reason = f"the χ² divergences are {one} and {two}: the trade-off functions " + ("differ" if one != two else "agree")
    return Shown(one != two, reason, float(one - two), {"poisson": str(one), "other": str(two)})


samplers_differ = Demonstration(lambda: _samplers(_shuffled), lambda: _samplers(_poisson))
