"""Sampled Gaussian mechanisms on a path in s: one record, a group, a replaced record.

| here | meaning |
| --- | --- |
| s | the log ratio of one record that takes part: s = x/σ² − 1/(2σ²), x the released sum |
| p | the density of s without the record, N(−v/2, v), v = 1/σ² |
| R(s) | Σ_k b_k e^(ks − k(k−1)v/2), b_k = C(g, k) q^k (1−q)^(g−k): the likelihood ratio of a group of g |
| l | log R(s); for a replaced record log R(s) − log R(−s − v) |

**No zero of R lies in |Im s| < π.** As a polynomial in X = e^s, Σ b_k e^(kv/2) X^k has negative zeros only, and by
Laguerre's theorem so has Σ b_k e^(kv/2) e^(−k²v/2) X^k, since e^(−z²v/2) is an entire function of the Laguerre-Pólya
class without zeros. So R = (1−q)^g Π (1 + e^(s − s_j)) with real s_j, log R is analytic there, its imaginary part lies
between 0 and g·Im s above the real line, and the height of a path need not shrink with the group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpbench.events import GroupSampledGaussian, SampledGaussian
from dpbench.privacy.accountants import _complex
from dpbench.privacy.accountants._complex import Complex, Floats
from dpbench.privacy.accountants._work import TooExpensive, spend
from dpbench.privacy.accountants.exact.contour import Nodes, Way

_HEIGHT, _LOWER = 1.2, 0.8  # of the path; the second where R has a negative power, whose modulus grows with the height
_NOISY = 1.7  # times 1/σ: p grows like e^(σ²y²/2) with the height y
_RISE = 0.6  # slope of the ramp: below 1, so that p falls along it
_DIGITS = 40.0  # e^−40 is what aliasing may be, relative to Σ |w|
_SAFE = 0.75  # of the distance to the real line, for the margin of the digits
_DEPTH, _STEEP = 64.0, 42.0  # nodes whose terms are below e^−depth of the largest are left out
_COARSE = 49
_REAL_STEP = 0.7
_MOST_TERMS = 2e6  # nodes times terms of R


@dataclass(frozen=True)
class Sampled:
    """One sampled Gaussian mechanism in one direction; `size` 1 is a record, `replaced` a record that is replaced."""

    rate: float
    sigma: float
    way: Way
    size: int = 1
    replaced: bool = False

    @property
    def largest(self) -> float:
        """The largest loss: −g log(1−q) in the direction add."""
        return -self.size * math.log1p(-self.rate) if self.way == "add" else math.inf

    @property
    def lowest(self) -> float:
        """The infimum of l."""
        return -math.inf if self.replaced else self.size * math.log1p(-self.rate)

    @property
    def variance(self) -> float:
        """v = 1/σ²."""
        return 1 / self.sigma**2

    @cached_property
    def coefficients(self) -> tuple[Floats, Floats]:
        """log b_k and −k(k−1)v/2."""
        k = np.arange(self.size + 1)
        ways = np.array([math.log(math.comb(self.size, int(j))) for j in k])
        logs = ways + k * math.log(self.rate) + (self.size - k) * math.log1p(-self.rate)
        return logs, -k * (k - 1) * self.variance / 2

    def _crest(self) -> tuple[float, float]:
        """The first and the last place where one term of R overtakes the one before: about the s_j."""
        slopes = -(np.diff(self.coefficients[0]) + np.diff(self.coefficients[1]))
        return float(slopes.min()), float(slopes.max())

    def log_ratio(self, s: Complex) -> Complex:
        """log R, continuous along s (any complex path within |Im s| < π), with relative digits where R is near 1."""
        logs, rises = self.coefficients
        if self.size == 1:
            moved = s - (logs[0] - logs[1])
            left = moved.real < 0
            rest = _complex.log1p(_complex.exp(np.where(left, moved, -moved)))
            found: Complex = np.where(left, rest, moved + rest) + logs[0]
            near = np.abs(found) < 0.5
            found[near] = _complex.log1p(self.rate * _complex.expm1(s[near]))
            return found
        powers = s[:, None] * np.arange(self.size + 1) + rises
        top = (powers.real + logs).max(axis=1)
        summed = np.log(_complex.exp(powers + logs - top[:, None]).sum(axis=1))
        found = summed.real + top + 1j * np.unwrap(summed.imag)
        near = np.abs(found) < 0.5
        found[near] = _complex.log1p((np.exp(logs) * _complex.expm1(powers[near])).sum(axis=1))
        return found

    def _terms(self, s: Complex) -> tuple[Complex, Complex]:
        """log w and l at s, without the step."""
        spend(len(s) * (self.size + 1))
        density = -((s + self.variance / 2) ** 2) / (2 * self.variance) - 0.5 * math.log(2 * math.pi * self.variance)
        losses = self.log_ratio(s)
        if self.replaced:
            return density + losses, losses - self.log_ratio(-s - self.variance)
        return (density + losses if self.way == "remove" else density), losses

    def _ends(self, crossing: float) -> tuple[float, float, float]:
        """The left end, a bound of where p R^(1+c) has its bulk, and the right end; beyond the ends no law has mass."""
        deviation, middle = 1 / self.sigma, -self.variance / 2
        far = (38.0 if crossing < -30 else 14.0) if self.way == "add" else 10.0
        power = 1 + crossing if self.way == "remove" else 1.0  # in the direction add the other law is p R
        bulk = middle + max(power, 1.0) * self.size * self.variance  # where it would be if all of R rose like e^(gs)
        return middle - far * deviation - (self.variance if self.replaced else 0.0), bulk, bulk + 9.5 * deviation

    def _other(self, logs: Complex, losses: Complex) -> Floats:
        """log of the other law's density where that is the larger by far: `contour.first_order` sums it."""
        own = losses.real if self.way == "add" else -losses.real
        found: Floats = np.where(own > 1, logs.real + own, -math.inf)
        return found

    def nodes(self, crossing: float, scale: float) -> Nodes:
        """Nodes on `path`."""
        s, step = self.path(crossing, scale)
        logs, losses = self._terms(s)
        return Nodes(_complex.exp(logs) * step, losses, rough=4 + 2 * float(np.abs(self.coefficients[0]).max()))

    def path(self, crossing: float, scale: float) -> tuple[Complex, Complex]:
        """Places s = r + i(η + ramp), the ramp from the last zero or the tilted bulk on, and ds there."""
        deviation = 1 / self.sigma
        lower = self.way == "add" or self.replaced
        height = scale * min(_LOWER if lower else _HEIGHT, _NOISY * deviation)
        low, bulk, _ = self._ends(crossing)
        further = 0.0 if scale == 1 else deviation  # the second path ends elsewhere, so that what is cut off shows
        first, last = self._crest()
        ramp = max(last, bulk, -self.variance - first if self.replaced else -math.inf)
        width = min(1.0, deviation)
        high = max(bulk, -self.variance / 2) + 9.5 * deviation / math.sqrt(1 - _RISE**2)
        high += height * _RISE / (1 - _RISE**2) + further
        low -= further
        step = 2 * math.pi * _SAFE * height / (_DIGITS + 2 * self.sigma**2 * height**2)

        def at(real: Floats) -> tuple[Complex, Complex]:
            turned = (real - ramp) / width
            s = real + 1j * (height + _RISE * width * np.logaddexp(0, turned))
            return s, 1 + 1j * _RISE / (1 + np.exp(-np.clip(turned, -700, 700)))

        def sizes(real: Floats) -> Floats:
            logs, losses = self._terms(at(real)[0])
            pull = crossing * losses.real
            curved = 2 * np.log(np.minimum(np.abs(crossing * losses), 1.0) + 1e-150)
            size = np.maximum(logs.real + np.where(pull > 1, pull, curved), self._other(logs, losses))
            found: Floats = size - size.max() + _DEPTH
            direct = logs.real + pull
            return found if self.way == "remove" else np.maximum(found, direct - direct.max() + _STEEP)

        low, high = _trimmed(sizes, low, high)
        count = self._affordable((high - low) / step)
        real = np.linspace(low, high, count + count % 2)
        s, rise = at(real)
        return s, rise * (real[1] - real[0])

    def _affordable(self, intervals: float) -> int:
        """The number of nodes. Raises TooExpensive where there are too many to hold."""
        if not intervals * (self.size + 1) < _MOST_TERMS:
            raise TooExpensive
        return int(intervals) + 2

    def law(self, most: float) -> tuple[Floats, Floats]:
        """log w and l on the real line."""
        crossing = most if self.way == "remove" else -most
        low, _, high = self._ends(crossing)

        def sizes(real: Floats) -> Floats:
            logs, losses = self._terms(real.astype(np.complex128))
            bulk, tilted = logs.real, logs.real + crossing * losses.real
            found: Floats = np.maximum(np.maximum(bulk - bulk.max(), tilted - tilted.max()), self._other(logs, losses))
            return found + _STEEP

        low, high = _trimmed(sizes, low, high)
        step = _REAL_STEP * min(1.0, 1 / self.sigma)
        self._affordable((high - low) / step)
        logs, losses = self._terms(np.arange(low, high, step).astype(np.complex128))
        return logs.real + math.log(step), losses.real


def _trimmed(sizes: Callable[[Floats], Floats], low: float, high: float) -> tuple[float, float]:
    """The ends within which `sizes` is positive, looked for on ever finer grids."""
    while True:
        real = np.linspace(low, high, _COARSE)
        kept = np.flatnonzero(sizes(real) > 0)
        low, high = float(real[max(kept[0] - 1, 0)]), float(real[min(kept[-1] + 1, _COARSE - 1)])
        if high - low > 0.1 * (real[-1] - real[0]):
            return low, high


def sampled(event: SampledGaussian | GroupSampledGaussian, way: Way) -> Sampled:
    """The mechanism of an event whose rate lies strictly between 0 and 1."""
    if isinstance(event, GroupSampledGaussian):
        return Sampled(event.sampling_rate, event.noise_multiplier, way, event.group_size)
    replaced = event.adjacency == "replace_one"
    found = Sampled(event.sampling_rate, event.noise_multiplier, way, 1, replaced)
    return replace(found, way="remove") if replaced else found  # the pair is its own reverse
