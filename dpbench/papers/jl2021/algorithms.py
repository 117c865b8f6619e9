"""Algorithms 1 to 4 of jl2021, line by line, against what the text and the proofs need of them.

| the paper | here | |
| --- | --- | --- |
| B, N, σ, C, r | `batch`, `examples`, `sigma`, `clip_norm`, `projections` | as everywhere |
| M_i | `estimate` | estimated norm of a record's gradient |
| β₁, β₂, m_t, u_t, η_t | `first`, `second`, `mean`, `square`, `rate` | Adam |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range
from dpbench.papers.jl2021.sensitivity import (
    cells,
    delta_one,
    delta_one_certified,
    expectation,
    normal_certified,
    tail_certified,
)

# ---- the line that samples a batch ----


def _fixed_batches(poisson: bool, share: float = 0.6) -> Shown:
    """One iteration on explicit datasets with B = 256, N = 60000, σ = 1.3, r = 30; losses ⟨θ, x⟩, one dimension.

    D' has N records x = −0.6 C, D one record x = 0.6 C more. A fixed batch with the new record has one of the others
    less, and the sum moves by 1.2 C; with Poisson sampling it moves by 0.6 C. All estimates are 0.6 C √(χ²_r/r) with
    the same χ²_r, so that nothing is clipped but with probability P(χ²_r/r > 1/0.36). δ(0) is at least the largest
    difference of the probabilities of {sum + 0.6 B C > τ}, less that probability.
    """
    from flint import arb, ctx
    from scipy.special import gammaincc, ndtr

    batch, examples, sigma, projections = 256, 60000, 1.3, 30
    move = share if poisson else 2 * share
    clipped = float(gammaincc(projections / 2, projections / (2 * share**2)))
    included = batch / (examples if poisson else examples + 1)
    lost = included * float(2 * ndtr(move / (2 * sigma)) - 1) - clipped
    granted = delta_one(0.0, batch / examples, sigma, projections)
    with ctx.workprec(128):
        half = arb(projections) / 2
        all_clipped = 1 - (half / (arb(str(share)) ** 2)).gamma_lower(half, 1)
        distance = 2 * normal_certified(arb(str(move)) / (2 * arb(str(sigma)))) - 1
        proven = arb(batch) / (examples if poisson else examples + 1) * distance - all_clipped
        most = delta_one_certified(1e-12, (batch, examples), str(sigma), projections)[1] + arb("1e-12")
        beyond = bool(proven > most)
    routes = {
        "quadrature": {"lost": lost, "granted": granted},
        "certified": {"lost": float(proven.lower()), "granted": float(most.upper())},
    }
    evidence = {"delta_at_0_lost": lost, "delta_at_0_granted_by_theorem_4_1": granted, "clipped": clipped}
    holds = False if beyond and lost > granted else True if lost <= granted else None
    reason = f"one iteration loses delta(0) = {lost:.6g}, Theorem 4.1 grants {granted:.6g}"
    return Shown(holds, reason, lost / granted, evidence, routes)


fixed_batches = Demonstration(lambda: _fixed_batches(poisson=False), twin=lambda: _fixed_batches(poisson=True))

# ---- whom the theorem protects ----


def _user_level(records: int) -> Shown:
    """One iteration, each record drawn independently with p = 256/60000, sigma = 1.3, r = 30; losses <theta, x>.

    D' holds zeros, D a user of `records` equal and long gradients more. Equal gradients have one estimate, so k of them
    move the sum by k Z_r clip norms. delta(0) is at least P(sum > 1/2 | D) - P(sum > 1/2 | D').
    """
    from flint import arb, ctx
    from scipy.special import ndtr

    batch, examples, sigma, projections, threshold = 256, 60000, 1.3, 30, 0.5
    rate = batch / examples
    drawn = [math.comb(records, k) * rate**k * (1 - rate) ** (records - k) for k in range(records + 1)]
    silent = float(ndtr(-threshold / sigma))
    lost = -silent

    def above(k: int) -> float:
        return expectation(lambda z: float(ndtr((k * z - threshold) / sigma)), projections) if k else silent

    lost += math.fsum(probability * above(k) for k, probability in enumerate(drawn))
    granted = delta_one(0.0, rate, sigma, projections)
    with ctx.workprec(128):
        p, width = arb(batch) / examples, arb(str(sigma))
        quiet = normal_certified(-arb(threshold) / width)
        proven = -quiet
        edges = cells(1.0, 0.3)
        tails = [tail_certified(z, projections) for z in edges]
        for k in range(records + 1):
            heights = [normal_certified((k * z - threshold) / width) for z in edges]
            cell = [(a - b) * h for a, b, h in zip(tails, tails[1:], heights, strict=False)]
            mean = sum(cell, arb(0)) if k else quiet
            proven += math.comb(records, k) * p**k * (1 - p) ** (records - k) * mean
        most = delta_one_certified(1e-12, (batch, examples), str(sigma), projections)[1] + arb("1e-12")
        beyond = bool(proven > most)
    evidence = {"records_of_the_user": records, "delta_at_0_lost": lost, "delta_at_0_granted_by_theorem_4_1": granted}
    routes = {
        "quadrature": {"lost": lost, "granted": granted},
        "certified": {"lost": float(proven.lower()), "granted": float(most.upper())},
    }
    holds = False if beyond and lost > granted else True if lost <= granted else None
    reason = (
        f"a user of {records} records loses delta(0) = {lost:.6g} in one iteration, Theorem 4.1 grants {granted:.6g}"
    )
    return Shown(holds, reason, lost / granted, evidence, routes)


user_level = Demonstration(lambda: _user_level(2), twin=lambda: _user_level(1))

# ---- the lines that estimate and clip ----


def _clipped(estimate: float, clip_norm: float) -> float:
    return min(1.0, clip_norm / estimate) * estimate


clipped_estimate = Inequality(
    lambda estimate, clip_norm: clip_norm - _clipped(estimate, clip_norm),
    {"estimate": Range(1e-3, 1e6, "log"), "clip_norm": Range(1e-2, 1e2, "log")},
    tuple({"estimate": 10.0, "clip_norm": c} for c in (1.5, 2.0, 1.0, 3.0)),
    twin=lambda estimate, clip_norm: clip_norm - max(1.0, clip_norm / estimate) * estimate,
    tolerance=1e-9,
    obligations=("the estimated norm is bounded, the norm itself is not: it is Z_r clip norms for a long gradient",),
    examples=60,
)


def _weighted(through: bool) -> Shown:
    """∇ of (1/B) Σ w_i L_i for two losses of one parameter; w_i = min{1, C/M_i} with M_i = |L_i'(θ)| |v| at θ_{t−1}.

    With M_i a number it is (1/B) Σ w_i ∇L_i; differentiating through M_i gives something else.
    """
    import mpmath

    theta, clip_norm, v = mpmath.mpf("0.7"), mpmath.mpf(1), mpmath.mpf("1.3")
    losses: tuple[Callable[[Any], Any], ...] = (lambda x: x**4 + 3 * x, lambda x: mpmath.exp(2 * x))

    def slope(loss: Any, x: Any) -> Any:
        return mpmath.diff(loss, x)

    def weight(loss: Any, x: Any) -> Any:
        return min(mpmath.mpf(1), clip_norm / abs(slope(loss, x) * v))

    def whole(x: Any) -> Any:
        at = x if through else theta
        return sum(weight(loss, at) * loss(x) for loss in losses) / 2

    found = mpmath.diff(whole, theta)
    wanted = sum(weight(loss, theta) * slope(loss, theta) for loss in losses) / 2
    error = float(abs(found - wanted))
    return Shown(error < 1e-8, f"the gradient differs from the mean of scaled gradients by {error:.2g}", error)


weighted_gradient = Demonstration(lambda: _weighted(through=False), twin=lambda: _weighted(through=True))


def _others(by_batch: bool) -> Shown:
    """The other records' part of the sum, with and without one record, for the same projections.

    `by_batch`: a version that scales the clip norm with the mean estimate of the batch, as adaptive rules do.
    """
    gradients = [(Fraction(3), Fraction(4)), (Fraction(-1), Fraction(2)), (Fraction(5), Fraction(0))]
    projections = [(Fraction(1, 2), Fraction(-1)), (Fraction(2), Fraction(1, 3))]
    record = (Fraction(100), Fraction(7))

    def part(batch: list[tuple[Fraction, Fraction]]) -> list[float]:
        estimates = [
            math.sqrt(sum((g[0] * v[0] + g[1] * v[1]) ** 2 for v in projections) / len(projections)) for g in batch
        ]
        clip_norm = sum(estimates) / len(estimates) if by_batch else 1.0
        return [
            sum(min(1.0, clip_norm / m) * float(g[k]) for g, m in zip(batch[:3], estimates, strict=False))
            for k in (0, 1)
        ]

    alone, beside = part(gradients), part([*gradients, record])
    gap = max(abs(a - b) for a, b in zip(alone, beside, strict=True))
    return Shown(gap < 1e-12, f"the others' part moves by {gap:.3g}", gap, {"without": alone, "with": beside})


others_unmoved = Demonstration(lambda: _others(by_batch=False), twin=lambda: _others(by_batch=True))

_SIGMAS = tuple(
    {"norm": norm, "estimate": m, "sigma": s, "clip_norm": c}
    for norm, m in ((Fraction(10), Fraction(7)), (Fraction(1), Fraction(1, 2)), (Fraction(3), Fraction(9)))
    for s, c in ((Fraction(13, 10), Fraction(3, 2)), (Fraction(6, 10), Fraction(1)))
)
scaled_sensitivity = Formula(
    lambda norm, estimate, sigma, clip_norm: min(norm / (sigma * clip_norm), norm / (sigma * estimate)),
    lambda norm, estimate, sigma, clip_norm: min(1, clip_norm / estimate) * norm / (sigma * clip_norm),
    _SIGMAS,
    twin=lambda norm, estimate, sigma, clip_norm: max(norm / (sigma * clip_norm), norm / (sigma * estimate)),
)

# ---- the line that adds noise ----

_NOISES = tuple(
    {"batch": b, "sigma": s, "clip_norm": c}
    for b, s, c in (
        (256, Fraction(13, 10), Fraction(3, 2)),
        (256, Fraction(9, 10), Fraction(2)),
        (256, Fraction(6, 10), Fraction(1)),
        (64, Fraction(1, 2), Fraction(1)),
    )
)


def _measured_deviation(batch: int, sigma: Fraction, clip_norm: Fraction) -> Any:
    """The root of E (x/B)² for the noise x of Algorithm 2's sum, by quadrature of its density."""
    import mpmath

    wide = mpmath.mpf(sigma.numerator) / sigma.denominator * clip_norm.numerator / clip_norm.denominator
    square = mpmath.quad(
        lambda x: (x / batch) ** 2 * mpmath.npdf(x, 0, wide), [wide * k for k in (-16, -8, -3, 0, 3, 8, 16)]
    )
    return mpmath.sqrt(square)


noise_of_the_mean = Formula(
    lambda batch, sigma, clip_norm: float(sigma * clip_norm) / batch,
    _measured_deviation,
    _NOISES,
    twin=lambda batch, sigma, clip_norm: float(sigma * clip_norm) / math.sqrt(batch),
)


def _turned(batch: int, size: int, replaced: bool) -> Fraction:
    """How far a record moves the mean of B/L clipped means of L gradients each, in clip norms.

    The other gradients of its microbatch are -C, and its own is so long that the mean is beyond C. Without it, or with
    -C in its place, the mean is -C; a microbatch of nobody adds nothing. Clipping bounds the move by this number.
    """

    def clipped_mean(gradients: list[Fraction]) -> Fraction:
        mean = sum(gradients, Fraction(0)) / max(len(gradients), 1)
        return max(Fraction(-1), min(Fraction(1), mean))

    others = [Fraction(-1)] * (size - 1)
    without = [*others, Fraction(-1)] if replaced else others
    return (clipped_mean([*others, Fraction(2 * size)]) - clipped_mean(without)) * Fraction(size, batch)


def _more_noise(batch: int, size: int, replaced: bool) -> Fraction:
    return _turned(batch, size, replaced) / _turned(batch, 1, replaced)


_SIZES = tuple({"batch": 256, "size": size} for size in (4, 16, 64))
microbatch_noise = Formula(
    lambda batch, size: Fraction(size) + 0 * batch,
    lambda batch, size: _more_noise(batch, size, replaced=False),
    _SIZES,
    twin=lambda batch, size: Fraction(size) ** 2 + 0 * batch,
    corrected=lambda batch, size: 2 * Fraction(size) + 0 * batch,
)
microbatch_noise_replaced = Formula(
    lambda batch, size: Fraction(size) + 0 * batch,
    lambda batch, size: _more_noise(batch, size, replaced=True),
    _SIZES,
    twin=lambda batch, size: 2 * Fraction(size) + 0 * batch,
)

# ---- Adam ----


def _adam(printed: bool) -> Shown:
    """Minimize θ²/2 from θ = −1 without noise, β₁ = 0.9, β₂ = 0.999: the loss has to be smaller after 300 iterations.

    printed: η_t = m_t/(√u_t + 1e−8), θ_t = θ_{t−1} − η_t g_t. Intended: θ_t = θ_{t−1} − 0.001 η_t. Another route: the
    first printed step is −(1−β₁)/√(1−β₂) |g₁|, negative whatever the sign of the gradient.
    """
    first, second, theta, mean, square = 0.9, 0.999, -1.0, 0.0, 0.0
    path = [theta]
    for _ in range(300):
        gradient = theta
        mean = first * mean + (1 - first) * gradient
        square = second * square + (1 - second) * gradient**2
        rate = mean / (math.sqrt(square) + 1e-8)
        theta -= rate * gradient if printed else 0.001 * rate
        path.append(theta)
        if abs(theta) > 1e12:
            break
    steps = {sign: -(1 - first) / math.sqrt(1 - second) * abs(sign) for sign in (-1.0, 1.0)}
    evidence = {"theta_after": path[-1], "iterations": len(path) - 1, "first_three": path[1:4]}
    routes = {"simulation": path[1] - path[0], "first step for gradients -1 and 1": list(steps.values())}
    falls = abs(path[-1]) < 1
    reason = f"from -1, theta is {path[-1]:.4g} after {len(path) - 1} iterations; the minimum is 0"
    return Shown(falls, reason, path[-1], evidence, routes if printed else {})


adam_update = Demonstration(lambda: _adam(printed=True), twin=lambda: _adam(printed=False))


def _post_processing(peek: bool) -> Shown:
    """Two data sets whose released noisy gradients are equal lead Algorithm 3 to equal parameters.

    `peek`: a version whose second moment is that of the gradient before the noise was added.
    """
    released = [0.3, -1.2, 0.8]
    ends = []
    for clean in ([0.1, -1.0, 0.5], [0.4, -1.5, 0.9]):
        theta, mean, square = 0.0, 0.0, 0.0
        for noisy, exact in zip(released, clean, strict=True):
            mean = 0.9 * mean + 0.1 * noisy
            square = 0.999 * square + 0.001 * (exact if peek else noisy) ** 2
            theta -= mean / (math.sqrt(square) + 1e-8) * noisy
        ends.append(theta)
    same = ends[0] == ends[1]
    return Shown(same, f"the parameters end at {ends[0]:.6g} and {ends[1]:.6g}", abs(ends[0] - ends[1]))


adam_post_processing = Demonstration(lambda: _post_processing(peek=False), twin=lambda: _post_processing(peek=True))
