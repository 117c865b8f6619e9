"""Where one rare large loss decides δ: releases below a cut and releases above it, each part with its own tilt.

With few hits (a record sampled about once, or at noise that hides all but the farthest outputs) nearly all of the
mass lies at one point, far below ε, whatever the tilt, and its rounding drowns δ. But δ is a sum over outcomes, so
the outcomes without a loss above c and those with one or more may be bounded apart:

    all^T = b^T + (b^T)((1 + o/b)^T − 1),    b the losses up to c, o those above, products and powers as convolutions.

The first term allows steep tilts, for its losses are small. The second is computed as B e^(…)−1, relative to its own
small mass. The cut lies between ε/4 and ε/2: then o is not much heavier at c than at ε.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dpbench.accountants._complex import log1p
from dpbench.accountants._hinges import Floats
from dpbench.accountants._lattice_curve import Part, Side, make_side, window_of
from dpbench.accountants._lattice_grid import (
    Composed,
    Grid,
    Points,
    Stretch,
    Transform,
    round_up,
    rounding,
)
from dpbench.accountants._lattice_losses import LossLaw, up_to
from dpbench.accountants._lattice_table import Table, falls_to, tabulate

_SHARE = 1e-4  # of δ: more of error bounds than this, and the parts are taken apart
_FEW = 0.05  # expected losses above the cut, at most
_CELLS_TO_EPSILON = 2**13
_MOST_CELLS = 2**17
_TILTS_PER_OCTAVE = 4
_KEPT_HITS = 3  # the window holds this many losses above the cut; more of them may wrap, and are counted


@dataclass
class SparseSide:
    """A side that takes rare large losses apart where that is better. Both bounds hold; the smaller one is given."""

    laws: Sequence[tuple[LossLaw, int]]
    plain: Side
    bulks: dict[float, Side] = field(default_factory=dict)
    hits: dict[tuple[float, int], Table] = field(default_factory=dict)

    @classmethod
    def of(cls, laws: Sequence[tuple[LossLaw, int]]) -> SparseSide:
        """From laws and their counts."""
        return cls(laws, make_side(laws))

    def log_delta(self, epsilon: float) -> float:
        """log δ(ε), from above."""
        value = self.plain.log_delta(epsilon)
        if epsilon > 0 and value > -745 and self.plain.share_of_errors(epsilon) > _SHARE:
            return min(value, self._apart(epsilon))
        return value

    def epsilon(self, delta: float) -> float:
        """The smallest ε >= 0 at which δ(ε) <= `delta`."""
        found = self.plain.epsilon(delta)
        if 0 < found < math.inf and self.plain.share_of_errors(found) > _SHARE:
            return min(found, falls_to(self._apart, math.log(delta), found))
        return found

    def _apart(self, epsilon: float) -> float:
        cut = 2.0 ** (math.floor(math.log2(epsilon)) - 1)
        expected, tilts, moments, common = self._outliers(cut)
        if not expected < _FEW:
            return math.inf
        log_infinite = math.log(self.plain.infinite) if self.plain.infinite > 0 else -math.inf
        if cut not in self.bulks:
            self.bulks[cut] = make_side([(up_to(law, cut), count) for law, count in self.laws], self.plain.highest_tilt)
        below = self.bulks[cut].log_delta(epsilon)
        if expected == 0:
            return float(np.logaddexp(below, log_infinite))
        means = np.diff(moments) / np.diff(tilts)  # between two rungs, the mean tilted loss of an outlier
        near = np.flatnonzero((means <= 4 * cut) & (moments[1:] <= 0) & (common[1:] <= 3))
        if not len(near):
            return math.inf
        rung = int(near[0]) + 1  # the steepest tilt that leads neither far beyond ε nor away from few hits
        if (cut, rung) not in self.hits:
            self.hits[cut, rung] = _hits(self.plain.parts, cut, float(tilts[rung]))
        return float(np.logaddexp(np.logaddexp(below, self.hits[cut, rung].log_delta(epsilon)), log_infinite))

    def _outliers(self, cut: float) -> tuple[float, Floats, Floats, Floats]:
        """The expected number of losses above the cut and a ladder of tilts; at each of them the logarithms of
        Σ count E[e^(λL); L > c] and of Π E[e^(λL); L <= c]^count."""
        top = self.plain.highest_tilt if math.isfinite(self.plain.highest_tilt) else 1e3 / cut
        tilts = top * 2.0 ** (-np.arange(16 * _TILTS_PER_OCTAVE) / _TILTS_PER_OCTAVE)
        total, moments, common = 0.0, np.full(len(tilts), -np.inf), np.zeros(len(tilts))
        for part in self.plain.parts:
            above = part.plan.losses > cut
            if above.any():
                log_masses = part.plan.log_masses[above] + math.log(part.count)
                total += float(np.exp(log_masses).sum())
                exponents = np.multiply.outer(tilts, part.plan.losses[above]) + log_masses
                moments = np.logaddexp(moments, np.logaddexp.reduce(exponents, axis=1))
            common += part.count * Points(part.plan.losses[~above], part.plan.log_masses[~above]).log_moments(tilts)
        return total, tilts, moments, common


def _hits(parts: Sequence[Part], cut: float, tilt: float) -> Table:
    """The sums with at least one loss above the cut, tilted, on one lattice."""
    reach, width = 0.0, 0.0
    for part in parts:
        losses, masses = part.plan.losses, part.plan.log_masses + tilt * part.plan.losses
        above = losses > cut
        if above.any():
            reach = max(reach, float(losses[above][masses[above] > masses[above].max() - 48].max()))
    spreads = []
    for part in parts:
        below = part.plan.losses <= cut
        masses = np.exp(part.plan.log_masses[below] + tilt * part.plan.losses[below])
        spreads.append((part.plan.losses[below], masses, part.count))
    window = window_of(spreads)
    width = window.high - window.low
    step = max(2 * cut / _CELLS_TO_EPSILON, 1.2 * (_KEPT_HITS * reach + width) / _MOST_CELLS)
    bulks, rares, wrong, offset, loose = [], [], 0.0, 0.0, 0.0
    for part in parts:
        bulk = round_up(part.law, part.plan, tilt, step, Stretch(-math.inf, cut))
        rare = round_up(part.law, part.plan, tilt, step, Stretch(math.nextafter(cut, math.inf), math.inf), alone=True)
        assert bulk is not None  # all but a few losses are below the cut
        bulks.append(bulk.grid)
        rares.append(rare.grid if rare is not None else None)
        wrong += part.count * (bulk.lost + rounding(bulk.grid))
        loose += part.count * bulk.loose + (rare.loose if rare is not None else 0.0)
        offset += part.count * part.law.anchor
    low = math.floor((window.low - offset) / step) - 8
    size = 2 ** math.ceil(math.log2((width + _KEPT_HITS * reach) / step + 64))
    composed, expected = _compose_hits([part.count for part in parts], bulks, rares, low, size)
    # in units of the composed mass, which is that of hits: a bulk too wide, and more hits than the window holds
    wrong += 2e-18 + expected**_KEPT_HITS / math.factorial(_KEPT_HITS + 1) + 1e-13
    return tabulate(composed, offset, step, tilt, wrong, loose)


def _compose_hits(
    counts: Sequence[int], bulks: Sequence[Grid], rares: Sequence[Grid | None], low: int, size: int
) -> tuple[Composed, float]:
    """B ((Π (1 + o/b)^T) − 1) on the cells low ... low + size − 1, and the expected number of hits when tilted."""
    frequencies = np.arange(size // 2 + 1)
    log_size, angle = np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
    hits = np.zeros(size // 2 + 1, dtype=np.complex128)
    centre, log_mass, expected, error = 0, 0.0, 0.0, 0.0
    for count, bulk, rare in zip(counts, bulks, rares, strict=True):
        main = Transform(bulk, size)
        logarithm = log1p(main.change)
        log_size += count * logarithm.real
        angle += count * logarithm.imag
        centre += count * main.centre
        log_mass += count * bulk.log_mass
        error += count * main.error
        if rare is not None:
            other = Transform(rare, size)
            share = math.exp(rare.log_mass - bulk.log_mass)
            cells = (other.centre - main.centre) % size
            phase = np.exp((-2j * np.pi / size) * (frequencies * cells % size))
            ratio = share * phase * (1 + other.change) / np.where(np.abs(1 + main.change) > 1e-6, 1 + main.change, 1.0)
            hits += count * log1p(ratio)
            expected += count * share
            error += other.error + main.error
    turned = np.exp(np.maximum(log_size, -60)) * (np.cos(angle) + 1j * np.sin(angle))
    total = np.where(log_size > -60, turned * np.expm1(hits), 0.0)
    masses = np.roll(np.fft.irfft(total, size), -((low - centre) % size))
    unit = 4 * 2.0**-53 * math.log2(size)
    noise = (unit + error) * max(float(np.sqrt(np.dot(masses, masses))), expected / math.sqrt(size)) / math.sqrt(size)
    mass = float(masses.sum())
    return Composed(Grid(masses / mass, low, log_mass + math.log(mass)), 0.0, noise / mass), expected
