"""The random sensitivity of a record whose gradient norm is estimated, and what one release loses by it.

| the paper | here | |
| --- | --- | --- |
| r | `projections` | number of projections, the JL dimension |
| Z_r = (χ²_r / r)^(−1/2) | `z` | how many clip norms a long gradient moves the sum by |
| σ | `noise_multiplier` | noise over clip norm |
| p = B/N | `rate` | share of the records in a batch |
| f_p of Theorem 4.1 | "the theorem's pair" | (Z, (1−p) N(0, σ²) + p N(Z, σ²)) against (Z, N(0, σ²)) |

Explicit datasets (`pair`). The loss is ⟨θ, x⟩, whose gradient is x. D holds N − 1 records x = 0 and the record
x = G·C·u with a unit vector u; D' holds the N − 1 zeros (or N of them: nothing changes). One iteration of the printed
Algorithm 1 on D' releases noise alone; on D, with probability p, min(G, Z_r)·C·u more. In units of C and along u that
is N(0, σ²) against (1−p) N(0, σ²) + p·law of (min(G, Z_r) + σ N(0, 1)): no projection is released, and neither
replacing instead of removing nor fixed batches instead of Poisson ones make a difference. The ratio of the densities
grows with the output, so the tests {output > τ} are the best ones, and any τ proves a lower bound.
All integrals start from the law of χ²_r; double precision but for the functions that end in `_certified` (Arb).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any

LONG = 1e6  # the length of the removed record's gradient over the clip norm, in `pair`


def tail(z: float, projections: int) -> float:
    """P(Z_r > z) = P(χ²_r < r/z²)."""
    from scipy.special import gammainc

    return float(gammainc(projections / 2, projections / (2 * z * z))) if z > 0 else 1.0


def expectation(function: Callable[[float], float], projections: int) -> float:
    """E[function(Z_r)] from the density of w = χ²_r/r over y = log w; for smooth functions."""
    from scipy.integrate import quad
    from scipy.special import gammaln

    half = projections / 2
    constant = half * math.log(half) - gammaln(half)

    def inside(y: float) -> float:
        return math.exp(constant + half * (y - math.exp(y))) * function(math.exp(-y / 2))

    width = math.sqrt(2 / projections)
    edges = [-80.0 / projections - 6, -6 * width, -2 * width, 0.0, 2 * width, min(6 * width, 8.0), 8.0]
    edges = sorted(set(edges))
    return float(sum(quad(inside, a, b, epsabs=1e-14, epsrel=1e-9)[0] for a, b in pairwise(edges)))


def shifted(epsilon: float, rate: float) -> float:
    """The s at which 1 − p + p e^s = e^ε, for ε >= 0."""
    return math.log(math.expm1(epsilon) + rate) - math.log(rate) if epsilon < 500 else epsilon - math.log(rate)


def gaussian_delta(s: float, mu: float) -> float:
    """δ at ε = s of N(μ, 1) against N(0, 1): Φ(μ/2 − s/μ) − e^s Φ(−μ/2 − s/μ)."""
    from scipy.special import log_ndtr, ndtr

    if mu <= 0:
        return 0.0
    return max(float(ndtr(mu / 2 - s / mu) - math.exp(min(s + float(log_ndtr(-mu / 2 - s / mu)), 0.0))), 0.0)


def _integral(function: Callable[[float], float], low: float, high: float, near: float, width: float) -> float:
    """∫ with break points around the place where everything happens."""
    from scipy.integrate import quad

    edges = sorted({low, high, *(min(max(near + k * width, low), high) for k in (-12, -6, -2, 2, 6, 12))})
    total = 0.0
    for a, b in pairwise(edges):
        total += quad(function, a, b, epsabs=0.0, epsrel=1e-10, limit=200)[0]
    return total


def delta_one(epsilon: float, rate: float, noise_multiplier: float, projections: int) -> float:
    """δ of one release of the theorem's pair: p E[δ_{Z/σ}(s)], as p ∫ P(Z > σμ) φ(s/μ − μ/2) dμ (by parts)."""
    s = shifted(epsilon, rate)
    middle = math.sqrt(2 * s) if s > 0 else 1.0

    def inside(mu: float) -> float:
        return tail(noise_multiplier * mu, projections) * math.exp(-((s / mu - mu / 2) ** 2) / 2) if mu > 0 else 0.0

    # the Gaussian factor has deviation about 1 around μ = √(2s)
    return rate * _integral(inside, 1e-9, middle + 60, middle, 1.0) / math.sqrt(2 * math.pi)


def delta_one_by_density(epsilon: float, rate: float, noise_multiplier: float, projections: int) -> float:
    """The same from the density of χ²_r/r, over its logarithm y: Z = e^(−y/2)."""
    from scipy.special import gammaln

    s, half = shifted(epsilon, rate), projections / 2

    def inside(y: float) -> float:
        density = math.exp(half * math.log(half) - gammaln(half) + half * (y - math.exp(y)))
        return density * gaussian_delta(s, math.exp(-y / 2) / noise_multiplier)

    near = -2 * math.log(noise_multiplier * math.sqrt(2 * s)) if s > 0 else 0.0
    width = max(2 / math.sqrt(2 * s), 0.05) if s > 0 else 1.0
    return rate * _integral(inside, -80.0 / projections - 6, 8.0, near, width)


def epsilon_one(delta: float, rate: float, noise_multiplier: float, projections: int) -> float:
    """The ε at which one release of the theorem's pair has this δ."""
    return root(lambda epsilon: delta_one(epsilon, rate, noise_multiplier, projections), delta)


def root(delta_at: Callable[[float], float], delta: float) -> float:
    """The ε >= 0 at which a falling δ(ε) meets δ."""
    from scipy.optimize import brentq

    if delta_at(0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_at(high) > delta:
        high *= 2
    return float(brentq(lambda epsilon: math.log(max(delta_at(epsilon), 1e-300) / delta), 0.0, high, xtol=1e-12))


# ---- explicit datasets ----


@lru_cache(maxsize=1024)
def above(threshold: float, rate: float, noise_multiplier: float, projections: int, long: float = LONG) -> float:
    """P(output > τ) in one iteration on D, in clip norms."""
    from scipy.special import ndtr

    def inside(z: float) -> float:
        return tail(z, projections) * math.exp(-(((z - threshold) / noise_multiplier) ** 2) / 2)

    high = min(long, threshold + 14 * noise_multiplier)
    low = max(0.0, threshold - 14 * noise_multiplier)
    moved = _integral(inside, low, high, threshold, noise_multiplier) / (noise_multiplier * math.sqrt(2 * math.pi))
    silent = float(ndtr(-threshold / noise_multiplier))
    return (1 - rate) * silent + rate * (silent + moved)


def _more(probability: float, count: int) -> float:
    """1 − (1 − probability)^count."""
    return -math.expm1(count * math.log1p(-probability)) if probability < 1 else 1.0


def pair_delta_lower(epsilon: float, rate: float, noise_multiplier: float, projections: int) -> tuple[float, float]:
    """(δ, τ): the best test's P(output > τ | D) − e^ε P(output > τ | D') of one iteration."""
    from scipy.optimize import minimize_scalar
    from scipy.special import log_ndtr

    def lost(threshold: float) -> float:
        silent = math.exp(min(epsilon + float(log_ndtr(-threshold / noise_multiplier)), 700.0))
        return silent - above(threshold, rate, noise_multiplier, projections)

    middle = noise_multiplier * math.sqrt(2 * shifted(epsilon, rate))
    found = minimize_scalar(lost, bounds=(0.3 * middle, middle + 3 * noise_multiplier), method="bounded")
    return -float(found.fun), float(found.x)


def pair_epsilon_lower(
    delta: float, rate: float, noise_multiplier: float, projections: int, iterations: int = 1
) -> tuple[float, float]:
    """(ε, τ): log((P − δ)/Q) for the best test "some output > τ" of these iterations."""
    from scipy.optimize import minimize_scalar
    from scipy.special import log_ndtr

    def lost(log_threshold: float) -> float:
        threshold = math.exp(log_threshold)
        there = _more(above(threshold, rate, noise_multiplier, projections), iterations) - delta
        log_silent = float(log_ndtr(-threshold / noise_multiplier)) + math.log(iterations)  # the union bound of Q
        return -(math.log(there) - log_silent) if there > 0 else 1e3 + log_threshold

    start = min((0.2 * k for k in range(1, 50)), key=lost)
    found = minimize_scalar(lost, bounds=(start - 0.2, start + 0.2), method="bounded", options={"xatol": 1e-7})
    return -float(found.fun), math.exp(float(found.x))


def _sure(threshold: float, noise_multiplier: float, projections: int) -> float:
    """Σ P(a < N(0, 1) <= a + 1) P(Z > τ − aσ) <= P(Z + σ N(0, 1) > τ), over a = −4, ..., 5."""
    total = 0.0
    for a in range(-4, 6):
        share = (math.erf((a + 1) / math.sqrt(2)) - math.erf(a / math.sqrt(2))) / 2
        total += share * tail(threshold - a * noise_multiplier, projections)
    return total


def closed_form_epsilon_lower(
    delta: float, rate: float, noise_multiplier: float, projections: int, iterations: int = 1
) -> float:
    """A weaker lower bound without any integral: P(output > τ | D) >= p times `_sure`, best on a grid of τ."""
    from scipy.special import log_ndtr

    best = 0.0
    for step in range(200):
        threshold = math.exp(step / 25)
        there = _more(rate * _sure(threshold, noise_multiplier, projections), iterations) - delta
        if there > 0:
            log_silent = float(log_ndtr(-threshold / noise_multiplier)) + math.log(iterations)
            best = max(best, math.log(there) - log_silent)
    return best


def closed_form_delta_lower(epsilon: float, rate: float, noise_multiplier: float, projections: int) -> float:
    """The same for δ: p times `_sure` less e^ε Φ(−τ/σ), best on a grid of τ."""
    from scipy.special import log_ndtr

    return max(
        rate * _sure(threshold, noise_multiplier, projections)
        - math.exp(min(epsilon + float(log_ndtr(-threshold / noise_multiplier)), 700.0))
        for threshold in (math.exp(k / 25) for k in range(200))
    )


# ---- balls ----


def tail_certified(z: Any, projections: int) -> Any:
    """P(Z_r > z) as an Arb ball."""
    from flint import arb

    half = arb(projections) / 2
    return (half / (z * z)).gamma_lower(half, 1)


def normal_certified(x: Any) -> Any:
    """Φ(x) as an Arb ball."""
    from flint import arb

    return (-x / arb(2).sqrt()).erfc() / 2


def cells(near: float, width: float) -> list[Any]:
    """Edges in z for sums over cells: fine around `near`, coarse elsewhere."""
    from flint import arb

    fine = [near + width * k / 40 for k in range(-240, 241)]
    coarse = [near * math.exp(k / 25) for k in range(-150, 101)]
    return [arb(z) for z in sorted({*(z for z in fine if z > 0), *coarse, 0.02, 1e7})]


def delta_one_certified(
    epsilon: float, rate: tuple[int, int], noise_multiplier: str, projections: int
) -> tuple[Any, Any]:
    """Arb balls (lower, upper) of δ of one release of the theorem's pair: δ_μ(s) grows with μ = Z/σ, cell by cell."""
    from flint import arb, ctx

    with ctx.workprec(128):
        p, sigma = arb(rate[0]) / rate[1], arb(noise_multiplier)
        s = ((arb(epsilon).exp() - 1 + p) / p).log()
        edges = cells(math.sqrt(2 * float(s)) * float(noise_multiplier), float(noise_multiplier))

        def curve(z: Any) -> Any:
            mu = z / sigma
            return normal_certified(mu / 2 - s / mu) - s.exp() * normal_certified(-mu / 2 - s / mu)

        tails = [tail_certified(z, projections) for z in edges]
        heights = [curve(z) for z in edges]
        lower = sum(((a - b) * h for a, b, h in zip(tails, tails[1:], heights, strict=False)), tails[-1] * heights[-1])
        upper = sum(((a - b) * h for a, b, h in zip(tails, tails[1:], heights[1:], strict=False)), tails[-1])
        upper += (1 - tails[0]) * heights[0]
        return p * lower, p * upper


def above_certified(threshold: float, rate: tuple[int, int], noise_multiplier: str, projections: int) -> Any:
    """A lower bound (Arb) of P(output > τ) in one iteration on D."""
    from flint import arb, ctx

    with ctx.workprec(128):
        p, sigma, tau = arb(rate[0]) / rate[1], arb(noise_multiplier), arb(threshold)
        edges = cells(threshold, float(noise_multiplier))
        tails = [tail_certified(z, projections) for z in edges]
        moved = sum(
            ((a - b) * normal_certified((z - tau) / sigma) for a, b, z in zip(tails, tails[1:], edges, strict=False)),
            arb(0),
        )
        return p * moved + (1 - p) * normal_certified(-tau / sigma)
