"""Algorithms 1 to 4 of jl2021, line by line, against what the text and the proofs need of them.

Names are those of `sensitivity.py`; `estimate` is M_i, the estimated norm of a record's gradient; `mean`, `square` and
`rate` are Adam's m_t, u_t and η_t, with β₁ = 0.9 and β₂ = 0.999.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import mpmath
from flint import arb, ctx
from scipy.special import ndtr

from dpbench.judging.claims.judges import Shown, formula, grid, inequality, shown
from dpbench.judging.papers.jl2021.sensitivity import Run
from dpbench.judging.papers.mathematics import Ball, upper_tail

Real = Any  # an mpmath number
MNIST = Run(256, 60000, 1.3, 30)  # B, N and σ of section 3.1, r = 30

# ---- the line that samples a batch, and whom the theorem protects ----


def _against_the_theorem(what: str, lost: float, proven: Ball, evidence: dict[str, float]) -> Shown:
    """δ(0) of one iteration, in doubles and in balls, against that of Theorem 4.1, at most δ(1e-12) + 1e-12."""
    granted, most = MNIST.granted(0.0), MNIST.proven_granted(1e-12)[1] + 1.1e-12
    least = float(proven.lower())
    routes = {"quadrature": {"lost": lost, "granted": granted}, "certified": {"lost": least, "granted": most}}
    evidence |= {"delta_at_0_lost": lost, "delta_at_0_granted_by_theorem_4_1": granted}
    holds = False if least > most and lost > granted else True if lost <= granted else None
    reason = f"{what} loses delta(0) = {lost:.6g} in one iteration, Theorem 4.1 grants {granted:.6g}"
    return Shown(holds, reason, lost / granted, evidence, routes)


@shown(control={"poisson": True}, pair="60000 records of gradient -0.6 C, with or without one of 0.6 C")
def fixed_batches(poisson: bool = False) -> Shown:
    """A fixed batch with the new record has one of the others less, and the sum moves by 1.2 C, not by Poisson's 0.6 C.

    All estimates are 0.6 C √(χ²_r/r) with the same χ²_r, so that nothing is clipped but by P(χ²_r/r > 1/0.36). δ(0)
    is at least the largest difference of the probabilities of {sum + 0.6 B C > τ}, less that.
    """
    chosen = MNIST.examples + (0 if poisson else 1)
    move, clipped = (0.6 if poisson else 1.2), 1 - float(MNIST.tail(0.6))
    lost = MNIST.batch / chosen * float(1 - 2 * ndtr(-move / (2 * MNIST.sigma))) - clipped
    with ctx.workprec(128):
        distance = 1 - 2 * upper_tail(arb(str(move)) / (2 * arb(str(MNIST.sigma))))
        proven = arb(MNIST.batch) / chosen * distance - (1 - MNIST.proven_tail(arb("0.6")))
    return _against_the_theorem("a new record", lost, proven, {"clipped": clipped})


@shown(control={"records": 1}, pair="zeros, with or without a user of `records` equal and long gradients")
def user_level(records: int = 2) -> Shown:
    """P(sum > 1/2 | D) − P(sum > 1/2 | D') by Poisson; equal gradients have one estimate: k move it by k Z_r."""
    rate, sigma, lost, proven = MNIST.rate, MNIST.sigma, 0.0, arb(0)
    with ctx.workprec(128):
        p = arb(MNIST.batch) / MNIST.examples
        for k in range(1, records + 1):  # what k of them add to P(sum > 1/2), as k Z + σ N(0, 1) > 1/2
            drawn, scaled = math.comb(records, k), Run(1, 1, sigma / k, MNIST.projections)
            without = upper_tail(arb("0.5") / arb(str(sigma)))
            lost += drawn * rate**k * (1 - rate) ** (records - k) * (scaled.above(0.5 / k) - float(ndtr(-0.5 / sigma)))
            proven += drawn * p**k * (1 - p) ** (records - k) * (scaled.proven_above(0.5 / k) - without)
    return _against_the_theorem(f"a user of {records} records", lost, proven, {"records_of_the_user": records})


# ---- the lines that estimate and clip ----

Vector = tuple[float, float]
PROJECTIONS = ((0.5, -1.0), (2.0, 1 / 3))  # v_1 and v_2


def estimate(gradient: Vector) -> float:
    """M = √(Σ ⟨g, v_j⟩²/r)."""
    return math.sqrt(sum((gradient[0] * v[0] + gradient[1] * v[1]) ** 2 for v in PROJECTIONS) / len(PROJECTIONS))


def weighted(gradient: Vector, clip_norm: float, norm: float) -> Vector:
    """min{1, C/M} g."""
    weight = min(1.0, clip_norm / norm) if norm else 1.0
    return weight * gradient[0], weight * gradient[1]


@inequality(
    domain={"x": (-1e3, 1e3), "y": (-1e3, 1e3), "clip_norm": (1e-2, 1e2, "log")},
    settings=grid(x=[10.0], y=[-3.0], clip_norm=[1.5, 2.0, 1.0, 3.0]),
    control={"by_true_norm": True},
    tolerance=1e-9,
    obligations=["the estimated norm is bounded, the norm itself is not: it is Z_r clip norms for a long gradient"],
    examples=60,
)
def clipped_estimate(x: float, y: float, clip_norm: float, by_true_norm: bool = False) -> float:
    """C less the estimated norm of the weighted gradient, by the same projections."""
    norm = math.hypot(x, y) if by_true_norm else estimate((x, y))
    return clip_norm - estimate(weighted((x, y), clip_norm, norm))


@formula(settings=grid(theta=["0.7", "-0.2"]), control={"through": True}, digits=8)
def weighted_gradient(theta: Real, through: bool = False) -> tuple[Real, Real]:
    """∇ of (1/B) Σ w_i L_i for two losses of one parameter, and (1/B) Σ w_i ∇L_i; w_i = min{1, C/M_i} with
    M_i = |L_i'(θ)| |v| at θ_{t−1} is a number; `through`: it is differentiated as well."""
    losses: tuple[Callable[[Real], Real], ...] = (lambda x: x**4 + 3 * x, lambda x: mpmath.exp(2 * x))

    def weight(loss: Callable[[Real], Real], x: Real) -> Real:
        return min(mpmath.mpf(1), 1 / abs(mpmath.diff(loss, x) * mpmath.mpf("1.3")))

    found = mpmath.diff(lambda x: sum(weight(loss, x if through else theta) * loss(x) for loss in losses) / 2, theta)
    return found, sum(weight(loss, theta) * mpmath.diff(loss, theta) for loss in losses) / 2


@shown(control=[{"by_batch": True}, {"averaged": True}])
def others_unmoved(by_batch: bool = False, averaged: bool = False) -> Shown:
    """The sum of Algorithm 2 with a record less the sum without it, against the record's own weighted gradient.

    `by_batch`: the clip norm is the mean estimate of the batch, as adaptive rules have it; `averaged`: the sum is over
    the number of records that are there.
    """

    def total(gradients: Sequence[Vector]) -> Vector:
        clip_norm = sum(map(estimate, gradients)) / len(gradients) if by_batch else 1.0
        parts = [weighted(g, clip_norm, estimate(g)) for g in gradients]
        size = len(parts) if averaged else 1
        return sum(x for x, _ in parts) / size, sum(y for _, y in parts) / size

    others, record = [(3.0, 4.0), (-1.0, 2.0), (5.0, 0.0)], (100.0, 7.0)
    without, there, own = total(others), total([*others, record]), weighted(record, 1.0, estimate(record))
    gap = max(abs(a - b - c) for a, b, c in zip(there, without, own, strict=True))
    evidence = {"without": without, "with": there, "own": own}
    return Shown(gap < 1e-12, f"the others' part moves by {gap:.3g}", gap, evidence)


@formula(
    settings=grid(norm=["10", "1", "3"], estimated=["7", "0.5", "9"], sigma=["1.3", "0.6"], c=["1.5", "1"]),
    control={"which": max},
)
def scaled_sensitivity(norm: Real, estimated: Real, sigma: Real, c: Real, which: Any = min) -> tuple[Real, Real]:
    """min{|g|/(σC), |g|/(σM)}, and min{1, C/M} |g| over σC."""
    return which(norm / (sigma * c), norm / (sigma * estimated)), min(1, c / estimated) * norm / (sigma * c)


# ---- the line that adds noise ----


@formula(
    settings=[
        {"batch": b, "sigma": s, "clip_norm": c}
        for b, s, c in ((256, "1.3", "1.5"), (256, "0.9", "2"), (256, "0.6", "1"), (64, "0.5", "1"))
    ],
    control={"power": 0.5},
)
def noise_of_the_mean(batch: int, sigma: Real, clip_norm: Real, power: float = 1.0) -> tuple[Real, Real]:
    """σC/B, and the root of E (x/B)² for the noise x of Algorithm 2's sum, by quadrature of its density."""
    wide = sigma * clip_norm
    points = [wide * k for k in (-16, -8, -3, 0, 3, 8, 16)]
    return wide / batch**power, mpmath.sqrt(mpmath.quad(lambda x: (x / batch) ** 2 * mpmath.npdf(x, 0, wide), points))


@formula(settings=grid(size=[4, 16, 64]), control={"factor": 2})
def microbatch_noise(size: int, replaced: bool, factor: int = 1) -> tuple[Fraction, ...]:
    """L as printed, and how much further a record moves the mean of clipped means of L gradients than with L = 1.

    The other gradients of its microbatch are −C, and its own is so long that the mean is beyond C. Without it, or with
    −C in its place, the mean is −C; a microbatch of nobody adds nothing. Clipping bounds the move by this number.
    """

    def move(length: int) -> Fraction:
        others = [Fraction(-1)] * (length - 1)
        without = [*others, Fraction(-1)] if replaced else others
        means = [sum(g, Fraction(0)) / max(len(g), 1) for g in ([*others, Fraction(2 * length)], without)]
        there, gone = (max(Fraction(-1), min(Fraction(1), mean)) for mean in means)
        return (there - gone) * length

    printed, true = Fraction(factor * size), move(size) / move(1)
    return (printed, true) if replaced else (printed, true, Fraction(2 * size))


# ---- Adam ----


@shown(control={"printed": False})
def adam_update(printed: bool = True) -> Shown:
    """Minimize θ²/2 from θ = −1 without noise: the loss has to be smaller after 300 iterations.

    printed: η_t = m_t/(√u_t + 1e−8), θ_t = θ_{t−1} − η_t g_t. Intended: θ_t = θ_{t−1} − 0.001 η_t. Another route: the
    first printed step is −(1−β₁)/√(1−β₂) |g₁|, negative whatever the sign of the gradient.
    """
    theta, mean, square = -1.0, 0.0, 0.0
    path = [theta]
    while len(path) <= 300 and abs(theta) < 1e12:
        gradient = theta
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        rate = mean / (math.sqrt(square) + 1e-8)
        theta -= rate * gradient if printed else 0.001 * rate
        path.append(theta)
    steps = [-0.1 / math.sqrt(0.001) * abs(gradient) for gradient in (-1, 1)]
    evidence = {"theta_after": theta, "iterations": len(path) - 1, "first_three": path[1:4]}
    routes = {"simulation": path[1] - path[0], "first step for gradients -1 and 1": steps}
    reason = f"from -1, theta is {theta:.4g} after {len(path) - 1} iterations; the minimum is 0"
    return Shown(abs(theta) < 1, reason, theta, evidence, routes if printed else {})


@shown(control={"peek": True}, pair="records 0.1, -1 and 0.5, or 0.4, -1.5 and 0.9; loss (theta - x)^2/2")
def adam_post_processing(peek: bool = False) -> Shown:
    """Algorithm 3 on two data sets, with noise that makes up for the difference of their clipped gradients: what is
    released is equal then, and the parameters have to be. `peek`: u_t is of the gradient before the noise."""
    records = ((0.1, -1.0, 0.5), (0.4, -1.5, 0.9))
    thetas, means, squares, apart = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], 0.0
    for noise in (0.3, -1.2, 0.8):
        gradients = [[theta - x for x in data] for theta, data in zip(thetas, records, strict=True)]
        clean = [sum(min(1.0, 1 / abs(1.3 * g)) * g for g in batch) / 3 for batch in gradients]  # M = |g| |v|, v = 1.3
        apart = max(apart, abs(clean[0] - clean[1]))
        for k, own in enumerate((noise, noise + clean[0] - clean[1])):
            noisy = clean[k] + own
            means[k] = 0.9 * means[k] + 0.1 * noisy
            squares[k] = 0.999 * squares[k] + 0.001 * (clean[k] if peek else noisy) ** 2
            thetas[k] -= means[k] / (math.sqrt(squares[k]) + 1e-8) * noisy
    gap = abs(thetas[0] - thetas[1])
    reason = f"the parameters end at {thetas[0]:.6g} and {thetas[1]:.6g}"
    return Shown(gap < 1e-9 and apart > 0.01, reason, gap, {"clipped_gradients_apart": apart})
