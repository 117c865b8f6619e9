"""ε of a whole run under Theorem 4.1 of jl2021: an interval by convolution on a lattice, and bounds without one.

The lattice route: s, the log ratio of N(Z, σ²) to N(0, σ²), has under N(0, σ²) the density (Z^−2 = w integrated out)
f(s) = 2 (r/2)^(r/2)/Γ(r/2) σ/√(2π) e^(−s/2) (β/α)^(ν/2) K_ν(2√(αβ)), α = (r + σ²s²)/2, β = 1/(8σ²), ν = (r+1)/2,
and e^s f(s) under N(Z, σ²). The loss of one iteration is log(1 − p + p e^s); in the direction "remove" (the worse one)
s has density (1−p) f + p e^s f. Losses rounded down and up to the lattice give two ends, and the middle an estimate.
`dpbench.certified` proves the same numbers in minutes, along a line and without any lattice: 0.5561 to 0.5565 and 5.016
to 5.019 for r = 30 and 10 in the upper panel of Figure 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dpbench.papers.jl2021.sensitivity import gaussian_delta, normal_certified, tail, tail_certified

DELTA = 1e-5  # the δ of all of the paper's experiments


@dataclass(frozen=True)
class Run:
    """A training run: B, N, σ and the number of epochs E = B T / N."""

    batch: int
    examples: int
    noise_multiplier: float
    epochs: int

    @property
    def rate(self) -> float:
        """p = B/N."""
        return self.batch / self.examples

    @property
    def iterations(self) -> int:
        """T, rounded up."""
        return -(-self.epochs * self.examples // self.batch)


MNIST = Run(256, 60000, 1.3, 15)  # section 3.1
CIFAR = Run(256, 50000, 0.9, 20)  # Table 2
IMDB = Run(256, 25000, 0.6, 20)  # Table 3
UPPER_PANEL = Run(256, 60000, 1.3, 5)  # Figure 8
LOWER_PANEL = Run(64, 25000, 0.5, 5)
SETTINGS = {"mnist": MNIST, "cifar": CIFAR, "imdb": IMDB, "upper": UPPER_PANEL, "lower": LOWER_PANEL}


@lru_cache(maxsize=64)
def lattice(
    run: Run, projections: int, iterations: int, step: float = 4e-4, top: float = 100.0
) -> tuple[float, float, float]:
    """(lower, middle, upper) of ε at δ = 1e-5; for r >= 10, where losses beyond `top` hardly happen."""
    import numpy as np
    from scipy.interpolate import CubicSpline
    from scipy.special import gammaln, kve

    p, sigma, r = run.rate, run.noise_multiplier, projections
    s = np.concatenate([-np.geomspace(3000, 30, 2000), np.linspace(-30, top + 10, 30001)[1:]])
    order, alpha, beta = (r + 1) / 2, (r + sigma**2 * s * s) / 2, 1 / (8 * sigma**2)
    argument = 2 * np.sqrt(alpha * beta)
    constant = math.log(2) + r / 2 * math.log(r / 2) - gammaln(r / 2) + math.log(sigma / math.sqrt(2 * math.pi))
    log_density = constant + order / 2 * np.log(beta / alpha) + np.log(kve(order, argument)) - argument
    density = (1 - p) * np.exp(log_density - s / 2) + p * np.exp(log_density + s / 2)
    below = CubicSpline(s, density).antiderivative()
    least = math.log1p(-p)
    edges = least + step * np.arange(1, int((top - least) / step) + 1)
    masses = np.diff(np.concatenate([[0.0], below(np.log((np.expm1(edges) + p) / p))]))
    beyond = _beyond(float(np.log((np.expm1(edges[-1]) + p) / p)), p, sigma, r)
    size = 1 << math.ceil(math.log2(1.2 * len(masses)))
    # where every loss is its cell's lower edge; the cell's width enters as `shift`
    summed = np.fft.irfft(np.exp(iterations * np.log(np.fft.rfft(masses, size))), size)
    infinite = -math.expm1(iterations * math.log1p(-beyond))
    ends = []
    for shift, lost in ((0.0, 0.0), (0.5, infinite), (1.0, infinite)):
        losses = iterations * (least + step * shift) + step * np.arange(size)
        ends.append(_epsilon(losses, summed, lost))
    return ends[0], ends[1], ends[2]


def _beyond(s: float, rate: float, sigma: float, projections: int) -> float:
    """P(the log ratio is above s) in the direction "remove", for s so large that only the p-part counts."""
    import numpy as np
    from scipy.special import ndtr

    z = np.exp(np.linspace(-2.0, 8.0, 4001))
    tails = np.array([tail(float(point), projections) for point in z])
    heights = ndtr(z / (2 * sigma) - s * sigma / z)
    return rate * float(np.sum((tails[:-1] - tails[1:]) * (heights[:-1] + heights[1:]) / 2))


def _epsilon(losses: Any, masses: Any, infinite: float) -> float:
    """The ε >= 0 at which E(1 − e^(ε−L))₊ + P(L = ∞) is δ."""
    import numpy as np

    def delta(epsilon: float) -> float:
        above = int(np.searchsorted(losses, epsilon, side="right"))
        return float(np.dot(masses[above:], -np.expm1(epsilon - losses[above:]))) + infinite

    low, high = 0.0, float(losses[-1])
    if infinite >= DELTA:
        return math.inf
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle) > DELTA else (low, middle)
    return high


def unprojected(run: Run) -> float:
    """ε at δ = 1e-5 with exact norms (DP-SGD-Vanilla and DP-SGD-Outer), by the accountant `exact`."""
    from dpbench.accounting import load_accountant
    from dpbench.compose import as_composition
    from dpbench.events import Composition, SampledGaussian

    event = SampledGaussian(run.rate, run.noise_multiplier)
    curve = load_accountant("exact").curve(as_composition(Composition(((event, run.iterations),))))
    return float(curve.epsilon(DELTA).value)


def revealed_upper(run: Run, projections: int) -> float:
    """A proven upper bound (Arb) of ε without any accountant, for heavy tails (r of 10 or less).

    Give the adversary the batches in which the record is, and every Z. What is left is one Gaussian release with
    μ² = ΣZ²/σ² over K ~ Bin(T, p) iterations. But for an event of probability at most 0.9 δ, K <= k, one Z at most is
    above z₂ and it is below z₁; then μ² <= (z₁² + (k − 1) z₂²)/σ², and that Gaussian has δ/10 at the returned ε.
    """
    from flint import arb, ctx
    from scipy.optimize import brentq
    from scipy.stats import binom

    count, share = run.iterations * run.rate, 0.3 * DELTA
    often = int(binom.isf(share, run.iterations, run.rate)) + 1
    one = math.exp(brentq(lambda y: math.log(count * tail(math.exp(y), projections) / share), 0.0, 30.0))
    two = math.exp(brentq(lambda y: math.log((count * tail(math.exp(y), projections)) ** 2 / 2 / share), 0.0, 30.0))
    mu = math.sqrt(one**2 + (often - 1) * two**2) / run.noise_multiplier
    epsilon = float(brentq(lambda e: gaussian_delta(e, mu) - 0.09 * DELTA, 0.0, mu * mu / 2 + 10 * mu))
    with ctx.workprec(192):  # the same sum once more, proven
        p, least = arb(run.batch) / run.examples, often + 1  # P(K >= least), a geometric series beyond its first term
        choose = sum((arb(run.iterations - k).log() for k in range(least)), arb(0)) - arb(least + 1).lgamma()
        first = (choose + least * p.log() + (run.iterations - least) * (1 - p).log()).exp()
        many = first / (1 - (run.iterations - least) * p / ((least + 1) * (1 - p)))
        large = run.iterations * p * tail_certified(arb(one), projections)
        pairs = (run.iterations * p * tail_certified(arb(two), projections)) ** 2 / 2
        square = (arb(one) ** 2 + (often - 1) * arb(two) ** 2) / arb(str(run.noise_multiplier)) ** 2
        width = square.sqrt()
        last = normal_certified(width / 2 - arb(epsilon) / width)  # δ of a Gaussian release is below its first term
        if not many + large + pairs + last < arb(1) / 100000:
            last -= arb(epsilon).exp() * normal_certified(-width / 2 - arb(epsilon) / width)
        if not many + large + pairs + last < arb(1) / 100000:
            raise ArithmeticError("revealed_upper: the parts sum to more than delta")
    return epsilon
