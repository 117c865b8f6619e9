"""δ(ε) and ε(δ) of Laplace releases of any scales, beside discrete pairs and Gaussian releases, by one line integral.

    δ(ε) = P(S = ∞) + (1/2πi) ∫ M(z) e^(−zε) / (z(z+1)) dz  along Re z = c > 0,   M(z) = E[e^(zS); S < ∞],

with M(z) = ((z+1) e^(wz) + z e^(−w(1+z))) / (2z+1) for one Laplace release of scale 1/w. Nodes are c + 2πik/τ.

| left out | how it is made up for |
| --- | --- |
| the trapezoidal rule adds δ(ε + nτ) e^(cnτ) | far left δ is M(0) − e^ε M(−1): that is taken off; the rest is bounded |
| |u| > 5a, where losses that are all atoms keep |M| up | W ends the integral; `_kinks` puts back the bends near ε |

|M(c + iu)| is at most the product of ((|z+1| e^(wc) + |z| e^(−w(1+c))) / |2z+1|): where that shows the rest to be
nothing, the integral just ends there.

**Errors** are relative to M(c) e^(−cε): images by Chernoff's bound at the best λ beyond c and below −1, roundings by
the sum of all terms' sizes, what `_kinks` states, and for losses that are off by e: |dδ/dε| = E[e^(ε−S); S > ε] is at
most M(c) e^(−cε), so that δ(ε − e) − δ(ε) is below 2.8 e M(c) e^(−cε) where ce is below 1.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants._hinges import Floats
from dpbench.accountants._kinks import END, REACH, Kinks, Part, crowd, halves, window
from dpbench.accountants._line_releases import Releases, variance

if TYPE_CHECKING:
    from dpbench.accountants._atoms import Sums

Complex = NDArray[np.complex128]
_UNIT = 2.0**-53
_NEGLIGIBLE = 38.0  # −log of images and of what is beyond the end
_BLOCK = 64
_ROOM = 1.5  # of a above |K − N/2|: the series in powers of that over a are of an exponential
_CROWDED = 3000  # atoms near ε from which on more nodes are cheaper
_LONG, MOST_NODES = 0.15, 400_000  # so many of the nodes at most for fewer atoms


class Line:
    """The nodes on Re z = c, where log M(c) is `log_moment`, for the ε of `span`."""

    def __init__(
        self, releases: Releases, real: float, log_moment: float, span: tuple[float, float], sums: Sums | None
    ) -> None:
        self.releases, self.real, self.log_moment, (self.low, self.high) = releases, real, log_moment, span
        self.period, self._images = self._choose_period()
        low = np.exp(-releases.widths * (1 + 2 * real))
        self._up = (2 * real + 1) / (real + 1 + real * low)  # e^(wc) / M(c) and e^(−w(1+c)) / M(c) of each scale
        self._down = low * self._up
        share = math.exp(float(releases.counts @ np.log((self._up + self._down) / 2))) if releases.total else 1.0
        self._density: tuple[Complex, Floats] = np.zeros(0, np.complex128), np.zeros(0)
        self.end, self.kinks, self._beyond = self._choose_end(share, sums)
        self._terms, self._rounding = self._make_terms()

    def _choose_period(self) -> tuple[float, float]:
        """τ, so that what it adds beyond the known is negligible, and a bound of that."""
        real = self.real
        tries = 48 if self.releases.density is None else 16
        steps = np.exp(np.linspace(math.log(0.05), math.log(200.0), tries)) / math.sqrt(variance(self.releases))
        right = (self.releases.log_moments(real + steps) - self.log_moment - steps * self.low + _NEGLIGIBLE) / steps
        steps = steps + 1 + real
        left = (self.releases.log_moments(real - steps) - self.log_moment + steps * self.high + _NEGLIGIBLE) / steps
        period = max(float(right.min()), float(left.min()))
        if not self.releases.mu and self.releases.density is None:
            period = min(period, self.releases.reach + max(abs(self.low), abs(self.high)))
        return 1.01 * period, 4 * math.exp(-_NEGLIGIBLE)

    def _bounds(self, u: Floats) -> Floats:
        """log of a bound of |M(c + iu)| / M(c)."""
        z = self.real + 1j * u[:, None]
        ratios = (np.abs(z + 1) * self._up + np.abs(z) * self._down) / np.abs(2 * z + 1)
        found: Floats = np.log(ratios) @ self.releases.counts - (self.releases.mu * u) ** 2 / 2
        return found

    def _choose_end(self, share: float, sums: Sums | None) -> tuple[float, Kinks | None, float]:
        """Where the nodes end, what puts back the rest, and a bound of what is left out all the same."""
        releases, real = self.releases, self.real
        u = np.exp(np.linspace(math.log(2 / self.period), math.log(1e8 / self.period), 160))
        bounds = np.maximum.accumulate(self._bounds(u)[::-1])[::-1]  # of |M(c + iu)| / M(c) from u on
        if not releases.mu:
            bounds = np.maximum(bounds, math.log(max(share, 1e-300)))
        nothing = -_NEGLIGIBLE - math.log(1 + real)
        if releases.density is not None:
            step = 2 * math.pi / self.period
            logs, wrong, rest = releases.density.line(
                real, step, lambda top: nothing - float(np.interp(top, u, bounds))
            )
            self._density = logs, wrong
            return math.inf, None, 4 * math.exp(min(rest + float(np.interp(step * len(wrong), u, bounds)), 0.0))
        ends = bounds - np.log(math.pi * np.maximum(u, real))
        longest = 2 * math.pi * MOST_NODES / self.period
        enough = (ends < nothing) | (u > longest)
        plain = int(np.argmax(enough))
        if releases.mu:
            left = nothing if ends[plain] < nothing else float(ends[max(plain - 1, 0)])
            return float(min(u[plain], longest)), None, 4 * math.exp(left)
        a = min(max(_ROOM * self._ways(), 2.5 * (real + 1), 4 / self.period), (longest - REACH / self.period) / END)
        if not ends[plain] < nothing or u[plain] > END * a:
            both = self._halves(sums)
            while crowd(both[:2], a) > _CROWDED and END * a < _LONG * longest:
                a *= 1.25
            if not ends[plain] < nothing or u[plain] > END * a:
                self.period += REACH / a  # W smooths over as much, so that images reach further
                return END * a, Kinks(real, a, releases.total, share, both), 0.0
        return float(u[plain]), None, 4 * math.exp(nothing)

    def _ways(self) -> float:
        """How far K is from N/2 at most, where it matters."""
        chance = self._up / (self._up + self._down)
        deviation = math.sqrt(float(self.releases.counts @ (chance * (1 - chance))))
        return abs(float(self.releases.counts @ chance) - self.releases.total / 2) + 7 * deviation + 2

    def _halves(self, sums: Sums | None) -> tuple[Part, Part, bool]:
        """The atoms, tilted."""
        releases, real = self.releases, self.real
        scales = zip(releases.widths.tolist(), releases.counts.tolist(), strict=True)
        parts = [Part.laplace(width, count, width * (1 + 2 * real)) for width, count in scales]
        if sums is not None:
            pairs = Releases(np.empty(0), np.empty(0, dtype=np.int64), releases.pairs)
            logs = np.log(np.maximum(sums.masses, 1e-300)) + real * sums.losses
            masses = np.exp(logs - float(pairs.log_moments(np.array([real]))[0]))
            parts.append(Part(sums.losses, masses, np.zeros(len(masses), dtype=np.int64)).kept())
        return halves(parts)

    def _make_terms(self) -> tuple[Complex, float]:
        """M(z) / M(c) / (z(z+1)) at the nodes, with the rule's weights, a block a row; their rounding."""
        releases, step = self.releases, 2 * math.pi / self.period
        log_rest, wrong = self._density
        rows = len(wrong) // _BLOCK if len(wrong) else math.ceil((self.end / step + 1) / _BLOCK)
        u = step * np.arange(rows * _BLOCK)
        z = self.real + 1j * u
        terms: Complex = np.asarray(1 / (z * (z + 1)), np.complex128)
        if self.kinks is not None:
            terms *= window(u / self.kinks.a)
        if releases.mu:
            terms *= np.exp(-((releases.mu * u) ** 2) / 2 + 1j * releases.mu**2 * (self.real + 0.5) * u)
        above, below = (z + 1) / (2 * z + 1), z / (2 * z + 1)
        for w, count, up, down in zip(releases.widths, releases.counts, self._up, self._down, strict=True):
            turn = _turns(float(w) * step, rows)
            terms *= _power(above * (up * turn) + below * (down * turn.conj()), int(count))
        for losses, masses, count in releases.pairs:
            tilted = np.exp(self.real * (losses - losses.max())) * masses
            turns = np.zeros(len(u), dtype=np.complex128)
            for loss, mass in zip(losses.tolist(), (tilted / tilted.sum()).tolist(), strict=True):
                turns += mass * _turns(loss * step, rows)
            terms *= _power(turns, count)
        if len(wrong):
            terms *= np.exp(log_rest)
        terms[1:] *= 2
        terms /= self.period
        every = 16 * releases.total + sum(count * (len(losses) + 12) for losses, _, count in releases.pairs) + 64
        furthest = releases.reach + max(abs(self.low), abs(self.high)) + releases.mu**2 * (self.real + 1)
        rounding = _UNIT * float(np.abs(terms) @ (every + 3 * u * furthest))
        if len(wrong):
            rounding += float(np.abs(terms) @ (2 * wrong + 4 * _UNIT * np.abs(log_rest)))
        return terms.reshape(rows, _BLOCK), rounding

    def __call__(self, epsilon: Floats) -> tuple[Floats, Floats, Floats]:
        """δ without the infinite mass, its error, and about −dδ/dε, at each ε."""
        step, rows = 2 * math.pi / self.period, len(self._terms)
        inner = np.exp(-1j * step * np.outer(epsilon, np.arange(_BLOCK)))
        outer = np.exp(-1j * (step * _BLOCK) * np.outer(epsilon, np.arange(rows)))
        found = ((inner @ self._terms.T) * outer).sum(axis=1).real
        slope = ((inner @ self._slopes.T) * outer).sum(axis=1).real
        errors = np.full(len(epsilon), self._rounding + self._images + self._beyond)
        if self.kinks is not None:
            more, wrong = self.kinks(epsilon)
            found, errors = found + more, errors + wrong
        scale = np.exp(self.log_moment - self.real * epsilon)
        mass, other = self.releases.log_moments(np.array([0.0, -1.0])).tolist()
        near, far = self.real * self.period, (self.real + 1) * self.period
        mass, other = math.exp(mass - near) / -math.expm1(-near), np.exp(other + epsilon - far) / -math.expm1(-far)
        known, loose = mass - other, _UNIT * (8 * self.releases.total + 64) * (mass + other)
        loss = 2.8 * self.releases.loss_error(epsilon)
        return scale * found - known, scale * (errors + loss) + loose, scale * slope

    @cached_property
    def _slopes(self) -> Complex:
        u = 2 * math.pi / self.period * np.arange(self._terms.size)
        return self._terms * (self.real + 1j * u).reshape(self._terms.shape)


def _turns(angle: float, rows: int) -> Complex:
    """e^(i angle k), k = 0, 1, ...: a product of two, each of one rounding."""
    inner, outer = np.exp(1j * angle * np.arange(_BLOCK)), np.exp(1j * (angle * _BLOCK) * np.arange(rows))
    found: Complex = np.multiply.outer(outer, inner).ravel()
    return found


def _power(base: Complex, count: int) -> Complex:
    """base^count by squaring."""
    result: Complex | None = None
    while True:
        if count & 1:
            result = base if result is None else result * base
        count >>= 1
        if not count:
            assert result is not None
            return result
        base = base * base
