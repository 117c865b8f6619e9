"""The random sensitivity of a record whose gradient norm is estimated, and what releases lose by it.

| the paper | here | |
| --- | --- | --- |
| r | `projections` | number of projections, the JL dimension |
| Z_r = (χ²_r / r)^(−1/2) | `z` | how many clip norms a long gradient moves the sum by |
| σ | `sigma` | noise over clip norm |
| p = B/N | `rate` | share of the records in a batch |
| f_p of Theorem 4.1 | "the theorem's pair" | (Z, (1−p) N(0, σ²) + p N(Z, σ²)) against (Z, N(0, σ²)) |

Explicit datasets (`PAIR`). The loss is ⟨θ, x⟩, whose gradient is x. D holds N − 1 records x = 0 and the record
x = G·C·u with a unit vector u; D' holds the N − 1 zeros (or N of them: nothing changes). One iteration of the printed
Algorithm 1 on D' releases noise alone; on D, with probability p, min(G, Z_r)·C·u more. In units of C and along u that
is N(0, σ²) against (1−p) N(0, σ²) + p·law of (min(G, Z_r) + σ N(0, 1)): no projection is released, and neither
replacing instead of removing nor fixed batches instead of Poisson ones make a difference. The ratio of the densities
grows with the output, so the tests {output > τ} are the best ones, and any τ proves a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from flint import arb, ctx
from scipy.optimize import brentq, minimize_scalar
from scipy.special import gammainc, log_ndtr, ndtr

from dpbench.events import Composition, RandomSensitivityGaussian
from dpbench.judging.papers.mathematics import Ball, upper_tail

PAIR = "N - 1 records of gradient 0, with or without one of gradient 1e6 C; loss <theta, x>"
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


def _integral(function: Callable[[Any], Any], edges: Iterable[float], low: float, high: float) -> float:
    """∫ from `low` to `high` by Gauss's rule between consecutive edges."""
    ends = np.unique(np.clip([low, *edges, high], low, high))
    half, middle = np.diff(ends)[:, None] / 2, (ends[:-1] + ends[1:])[:, None] / 2
    return float(np.sum(half * _WEIGHTS * function(middle + half * _NODES)))


@dataclass(frozen=True)
class Run:
    """T iterations at p = B/N; `longest` is G, the length of the removed record's gradient over the clip norm.

    Doubles, but for the methods of Arb balls, whose names begin with `proven`.
    """

    batch: float
    examples: int
    sigma: float
    projections: int
    iterations: int = 1
    longest: float = 1e6

    @property
    def rate(self) -> float:
        """p."""
        return self.batch / self.examples

    @property
    def releases(self) -> Composition:
        """The theorem's pair, T times."""
        return Composition(((RandomSensitivityGaussian(self.rate, self.sigma, self.projections), self.iterations),))

    def tail(self, z: Any) -> Any:
        """P(Z_r > z) = P(χ²_r < r/z²), of numbers or arrays."""
        return gammainc(self.projections / 2, self.projections / (2 * np.maximum(z, 1e-9) ** 2))

    def _edges(self, near: float, width: float) -> list[float]:
        """Where Z_r has its mass, and around another place."""
        spread = 1 / math.sqrt(2 * self.projections)
        return [1 + k * spread for k in range(-8, 41, 2)] + [near + k * width for k in range(-14, 15, 2)]

    # ---- the theorem's pair, one iteration ----

    def granted(self, epsilon: float) -> float:
        """δ: p E[δ_{Z/σ}(s)] with 1 − p + p e^s = e^ε, as p ∫ P(Z > z) φ(sσ/z − z/(2σ)) dz/σ (by parts)."""
        p = self.rate
        s = math.log(math.expm1(epsilon) + p) - math.log(p) if epsilon < 500 else epsilon - math.log(p)
        near = math.sqrt(2 * s) if s > 0 else 1.0  # around it the Gaussian factor has deviation about 1

        def inside(z: Any) -> Any:
            return self.tail(z) * np.exp(-((s * self.sigma / z - z / self.sigma / 2) ** 2) / 2)

        edges = [*self._edges(near * self.sigma, self.sigma), *(near * self.sigma / 2**k for k in range(12))]
        total = _integral(inside, edges, 1e-9, (near + 60) * self.sigma)
        return p * total / self.sigma / math.sqrt(2 * math.pi)

    def granted_epsilon(self, delta: float) -> float:
        """The ε >= 0 at which that is `delta`."""
        if self.granted(0.0) <= delta:
            return 0.0
        high = 1.0
        while self.granted(high) > max(delta, 1e-300):
            high *= 2
        return float(brentq(lambda e: math.log(max(self.granted(e), 1e-300) / delta), 0.0, high, xtol=1e-12))

    # ---- explicit datasets ----

    def above(self, threshold: float) -> float:
        """P(output > τ) in one iteration on D, in clip norms."""

        def inside(z: Any) -> Any:
            return self.tail(z) * np.exp(-(((z - threshold) / self.sigma) ** 2) / 2)

        high = min(self.longest, threshold + 14 * self.sigma)
        low = min(max(0.0, threshold - 14 * self.sigma), high)
        moved = _integral(inside, self._edges(threshold, self.sigma), low, high) / (self.sigma * math.sqrt(2 * math.pi))
        return float(ndtr(-threshold / self.sigma)) + self.rate * moved

    def lost(self, epsilon: float) -> tuple[float, float]:
        """(δ, τ) of one iteration: P(output > τ | D) − e^ε P(output > τ | D') for the best τ."""

        def less(threshold: float) -> float:
            without = epsilon + float(log_ndtr(-threshold / self.sigma))
            return math.exp(min(without, 700.0)) - self.above(threshold)

        return _least(less, self.sigma)

    def lost_epsilon(self, delta: float) -> tuple[float, float]:
        """(ε, τ): log((P − δ)/Q) for the best test "some output > τ" of T iterations, by the union bound of Q."""

        def less(threshold: float) -> float:
            there = -math.expm1(self.iterations * math.log1p(-min(self.above(threshold), 1 - 1e-16))) - delta
            if there <= 0:
                return 1e3 + threshold
            return float(log_ndtr(-threshold / self.sigma)) - math.log(there / self.iterations)

        return _least(less, 1.0)

    # ---- balls ----

    def proven_tail(self, z: Ball) -> Ball:
        """P(Z_r > z)."""
        half = arb(self.projections) / 2
        return (half / (z * z)).gamma_lower(half, 1) if z > 0 else arb(1)

    def proven_granted(self, epsilon: float) -> tuple[float, float]:
        """Both ends of `granted`: δ_μ(s) grows with μ = Z/σ, cell by cell, fine where it rises."""
        with ctx.workprec(128):
            p, sigma = arb(self.batch) / self.examples, arb(str(self.sigma))
            s = ((arb(str(epsilon)).exp() - 1 + p) / p).log()
            near = max(math.sqrt(2 * float(s)), 1e-3) * self.sigma
            fine = {near + self.sigma * k / 40 for k in range(-240, 241)} | {
                near * math.exp(k / 25) for k in range(-150, 101)
            }
            edges = [arb(z) / sigma for z in sorted({z for z in fine if z > 0} | {0.02, 1e7})]
            tails = [self.proven_tail(mu * sigma) for mu in edges]
            heights = [upper_tail(s / mu - mu / 2) - s.exp() * upper_tail(s / mu + mu / 2) for mu in edges]
            shares = [a - b for a, b in pairwise(tails)]
            lower = sum((a * h for a, h in zip(shares, heights, strict=False)), tails[-1] * heights[-1])
            upper = sum((a * h for a, h in zip(shares, heights[1:], strict=True)), tails[-1])
            return float((p * lower).lower()), float((p * (upper + (1 - tails[0]) * heights[0])).upper())

    def proven_above(self, threshold: float) -> Ball:
        """A lower bound of `above`, without an integral: Z + σx > τ where Z > τ − σa for x in a cell (a, b]."""
        p, sigma = arb(self.batch) / self.examples, arb(str(self.sigma))
        cells = pairwise(arb(k) / 20 for k in range(-120, 121))
        moved = sum(
            ((upper_tail(a) - upper_tail(b)) * self.proven_tail(threshold - sigma * a) for a, b in cells), arb(0)
        )
        return p * moved + (1 - p) * upper_tail(threshold / sigma)

    def proven_lost(self, epsilon: str, threshold: float) -> float:
        """A lower bound of the δ that the test {output > τ} shows."""
        with ctx.workprec(128):
            without = upper_tail(threshold / arb(str(self.sigma)))
            return float((self.proven_above(threshold) - arb(epsilon).exp() * without).lower())

    def proven_epsilon(self, delta: str) -> float:
        """A lower bound of ε by the tests "some output > τ", near the best one: the cells lose a little."""
        best, threshold = 0.0, self.lost_epsilon(float(delta))[1]
        with ctx.workprec(128):
            for tau in (share * threshold for share in (1.0, 0.999, 0.997, 0.99, 0.97)):
                found = 1 - (1 - self.proven_above(tau)) ** self.iterations - arb(delta)
                if found > 0:
                    ratio = found / self.iterations / upper_tail(tau / arb(str(self.sigma)))
                    best = max(best, float(ratio.log().lower()))
        return best


def _least(function: Callable[[float], float], unit: float) -> tuple[float, float]:
    """(−least, where), from 0: the least on a grid, then between its neighbours."""
    places = [unit * math.exp(k / 5) for k in range(-10, 50)]
    at = min(range(1, len(places) - 1), key=[math.inf, *map(function, places[1:-1])].__getitem__)
    found = minimize_scalar(
        function, bounds=(places[at - 1], places[at + 1]), method="bounded", options={"xatol": 1e-8 * places[at]}
    )
    return max(-float(found.fun), 0.0), float(found.x)
