"""M(c) of Laplace releases of any scales beside pairs and others, and for each ε the line that is the best.

| here | meaning |
| --- | --- |
| w, T | the largest loss of one Laplace release of a scale, and how many there are of it |
| M(c) | E[e^(cS); S < ∞] of the sum of all losses; of one Laplace release ((c+1) e^(wc) + c e^(−w(1+c))) / (2c+1) |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants._hinges import Floats

if TYPE_CHECKING:
    from dpbench.accountants._density_line import Density

_LOSSES = 10  # units in the last place: of w, its multiples, their sum with others and with ε
_LADDER = 320
_REFINED, _FAINT = 3, -150.0


@dataclass(frozen=True)
class Releases:
    """One direction: w and T of each Laplace scale, (losses, masses, T) of each pair, μ of the Gaussian part."""

    widths: Floats
    counts: NDArray[np.int64]
    pairs: tuple[tuple[Floats, Floats, int], ...] = ()
    mu: float = 0.0
    density: Density | None = None

    @property
    def total(self) -> int:
        """N, the number of Laplace releases."""
        return int(self.counts.sum())

    @property
    def top(self) -> float:
        """The largest finite loss."""
        if self.mu:
            return math.inf
        found = float(self.widths @ self.counts) + (self.density.top if self.density is not None else 0.0)
        return found + math.fsum(count * float(losses.max()) for losses, _, count in self.pairs)

    @property
    def reach(self) -> float:
        """The largest |loss| but for the Gaussian part."""
        pairs = math.fsum(count * float(np.abs(losses).max()) for losses, _, count in self.pairs)
        return float(self.widths @ self.counts) + pairs

    def loss_error(self, epsilon: Floats) -> Floats:
        """What the roundings of losses and of ε come to."""
        found: Floats = _LOSSES * 2.0**-53 * (self.reach + np.abs(epsilon))
        return found

    def log_moments(self, real: Floats) -> Floats:
        """log M(c) at real c."""
        folded = np.maximum(real, -1 - real)[:, None]  # M of Laplace is even around −1/2
        found = (self.counts * log_laplace(folded, self.widths)).sum(axis=1) + self.mu**2 * real * (real + 1) / 2
        for losses, masses, count in self.pairs:
            exponents = np.outer(real, losses)
            most = exponents.max(axis=1)
            found = found + count * (most + np.log(np.exp(exponents - most[:, None]) @ masses))
        if self.density is not None:
            found = found + self.density.log_moments(real)
        result: Floats = found
        return result

    def drifts(self, real: Floats) -> Floats:
        """d log M / dc at c > 0."""
        c, w = real[:, None], self.widths
        low = np.exp(-w * (1 + 2 * c))
        single = w + (1 + low * (1 - 2 * w * c)) / (c + 1 + c * low) - 2 / (2 * c + 1)
        found = (self.counts * single).sum(axis=1) + self.mu**2 * (real + 0.5)
        for losses, masses, count in self.pairs:
            exponents = np.outer(real, losses)
            weights = np.exp(exponents - exponents.max(axis=1)[:, None]) * masses
            found = found + count * (weights @ losses) / weights.sum(axis=1)
        if self.density is not None:
            found = found + self.density.drifts(real)
        result: Floats = found
        return result


def log_laplace(c: Floats, w: Floats) -> Floats:
    """log M(c) of one release, c >= −1/2."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        small = np.minimum(w * c, 1.0)
        near = np.log1p(((c + 1) * np.expm1(small) + c * np.expm1(-w * (1 + c))) / (2 * c + 1))
        far = w * c + np.log((c + 1 + c * np.exp(-w * (1 + 2 * c))) / (2 * c + 1))
        found: Floats = np.where(w * c > 1, far, near)
    return np.where(np.abs(2 * c + 1) < 1e-9, np.log(np.exp(-w / 2) * (1 + w / 2)), found)


@dataclass(frozen=True)
class Ladder:
    """Points c with the ε whose best line each is, log M there, and log δ about there."""

    reals: Floats
    epsilons: Floats
    logs: Floats
    sizes: Floats  # log of the integrand at its own ε
    log_deltas: Floats

    @classmethod
    def of(cls, releases: Releases) -> Ladder:
        """From where δ is next to 1 to where only the largest losses are left."""
        spread = 1 / math.sqrt(variance(releases))
        alone = releases.density is None
        top = (2.0**12 if alone else 16.0) * max(spread, 1.0)
        rungs = _LADDER if alone else _LADDER // 3
        reals = np.exp(np.linspace(math.log(2.0**-20 * min(spread, 1.0)), math.log(top), rungs))
        found = cls._at(releases, reals)
        for _ in range(_REFINED if releases.density is not None else 0):
            # where a rare large loss makes M rise steeply one rung is far from the next
            gaps = (np.diff(found.epsilons) > 1 / spread) & (found.epsilons[1:] > -4 / spread)
            gaps &= found.log_deltas[:-1] > _FAINT
            if not gaps.any():
                break
            low, high = (np.log(found.reals[1:][gaps]), np.log(found.reals[:-1][gaps]))
            more = np.exp(low[:, None] + (high - low)[:, None] * np.arange(1, 8) / 8)
            found = found._joined(cls._at(releases, np.sort(more.ravel())))
        return found

    @classmethod
    def _at(cls, releases: Releases, reals: Floats) -> Ladder:
        logs = releases.log_moments(reals)
        epsilons = np.maximum.accumulate(releases.drifts(reals) - 1 / reals - 1 / (reals + 1))
        sizes = logs - reals * epsilons - np.log(reals * (reals + 1))
        curvature = np.maximum(np.gradient(epsilons, reals), 1e-300)
        return cls(reals, epsilons, logs, sizes, np.minimum(sizes - np.log(2 * math.pi * curvature) / 2, 0.0))

    def _joined(self, other: Ladder) -> Ladder:
        order = np.argsort(np.concatenate([self.reals, other.reals]))
        both = ((getattr(self, one.name), getattr(other, one.name)) for one in fields(self))
        reals, epsilons, *others = (np.concatenate(pair)[order] for pair in both)
        return Ladder(reals, np.maximum.accumulate(epsilons), *others)

    def best(self, epsilon: Floats) -> Floats:
        """log of the least integrand at each ε."""
        found: Floats = (self.lines - np.multiply.outer(epsilon, self.reals)).min(axis=-1)
        return found

    @cached_property
    def lines(self) -> Floats:
        """log of each integrand at ε = 0."""
        return self.logs - np.log(self.reals * (self.reals + 1))


def variance(releases: Releases) -> float:
    """About Var S: the second difference of log M at −1/2."""
    if releases.density is not None:
        return releases.density.variance + variance(replace(releases, density=None))
    step = 1e-3 / max(1.0, float(releases.widths.max(initial=0.0)))
    found = releases.log_moments(np.array([-0.5 - step, -0.5, -0.5 + step]))
    return max(float(found[0] - 2 * found[1] + found[2]) / step**2, 1e-300)
