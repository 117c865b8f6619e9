"""Where the contour crosses the real axis: the cumulant generating function there, and where the integrand is low.

| here | meaning |
| --- | --- |
| c | a crossing, c > 0, in z |
| K(c) | log M(c), the cumulant generating function of the whole composition's loss |
| F(c) | log of the integrand at ε = 0: log of e^K, or of e^K − 1 where 1 is taken off, less log c(c+1) |

On the real axis the integrand's modulus is e^(F(c) − cε). It is least at the saddle, F'(c) = ε, and the strip in which
the contour lies may be as wide as it stays low: from where it is e^`_LEVEL` times as high on the left to where it is so
on the right. So a second bulk of M beyond the saddle, large losses that are rare, stays outside. Nothing here needs
more than four digits: the contour may cross anywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpbench.privacy.accountants._complex import Floats
from dpbench.privacy.accountants._work import spend
from dpbench.privacy.accountants.exact.contour import Setup, Taken

_LEAST, _FIRST, _NEXT = 2.0**-16, 20, 3
_MOST = 2.0**100
_RISE = 2.0  # κd
_LOW = 0.01  # mean loss times the least crossing
_DEEP = 745.0  # e^−745 is below every double
_LEVEL = 1.3
_APART = 4.0  # Δε/√F'' between places where paths are laid, at most
_LITTLE, _RARE = 1.0, 0.5  # K below which M − 1 is taken, and also the mechanisms' own M_i − 1
_WORTH = 3.0  # log of how much lower the integrand of M − 1 has to be: it falls like 1/|ζ|² only
_ZOOMS = 3  # each narrows the place of the saddle fourfold, from a factor 4
_AROUND, _FINE = 4.0, 21  # widths on either side of the saddle that are looked at, and points there


@dataclass(frozen=True)
class Stations:
    """At crossings c: K, K' and K''; F, and its derivatives, are of one of the two integrands."""

    c: Floats
    cumulant: Floats
    slope: Floats
    bend: Floats
    taken: Taken = "nothing"

    @cached_property
    def height(self) -> Floats:
        """F."""
        grown = self.cumulant
        if self.taken != "nothing":
            grown = grown + np.log(-np.expm1(-grown))
        return grown - np.log(self.c) - np.log1p(self.c)

    @cached_property
    def _share(self) -> Floats:
        """e^K / (e^K − 1)."""
        return np.ones_like(self.c) if self.taken == "nothing" else -1 / np.expm1(-self.cumulant)

    @cached_property
    def epsilon(self) -> Floats:
        """F', the ε whose saddle it is."""
        return self.slope * self._share - 1 / self.c - 1 / (self.c + 1)

    @cached_property
    def curvature(self) -> Floats:
        """F''."""
        bent = self.bend * self._share - self.slope**2 * self._share * (self._share - 1)
        return bent + 1 / self.c**2 + 1 / (self.c + 1) ** 2

    @cached_property
    def log_delta(self) -> Floats:
        """The saddle point's estimate of log δ at the ε whose saddle it is."""
        found: Floats = self.height - self.c * self.epsilon - 0.5 * np.log(2 * math.pi * self.curvature)
        return found


@dataclass(frozen=True)
class Strip:
    """Where the integrand is low: a crossing, the distance to its ends, for one ε, and what is taken off M there.

    At ε that lies d deviations below the mean loss |M e^(−ζε)| rises by e^(κ²d²/2) on a path of slope κ before it
    falls: `steepest` is the slope that keeps that small.
    """

    crossing: float
    reach: float
    epsilon: float
    taken: Taken
    steepest: float


@dataclass
class Saddle:
    """The saddles of one direction; `each` says that the mechanisms' own δ are known, and may be taken off."""

    setup: Setup
    each: bool
    _laws: dict[int, list[tuple[Floats, Floats]]] = field(default_factory=dict, repr=False)
    _table: Stations | None = field(default=None, repr=False)

    @property
    def table(self) -> Stations:
        """Stations at crossings a factor 2 apart, until even δ at their ε is below every double."""
        if self._table is None:
            blocks: list[Stations] = []
            start, size = _LEAST, _FIRST
            while start < _MOST:
                block = self._stations(np.asarray(start * 2.0 ** np.arange(size), np.float64))
                usable = (block.curvature > 0) & np.isfinite(block.epsilon) & np.isfinite(block.height)
                end = len(usable) if usable.all() else int(np.argmin(usable))
                blocks.append(Stations(block.c[:end], block.cumulant[:end], block.slope[:end], block.bend[:end]))
                start, size, short = start * 2.0**size, _NEXT, end < size
                if short or block.log_delta[-1] < -_DEEP:
                    break
            while blocks[0].slope[0] * blocks[0].c[0] > _LOW:  # the mean loss is large: δ next to 1 wants smaller ones
                lower = blocks[0].c[0] * 2.0 ** np.arange(-6.0, 0.0)
                blocks.insert(0, self._stations(np.asarray(lower, np.float64)))
            rows = [
                np.concatenate(row) for row in zip(*((b.c, b.cumulant, b.slope, b.bend) for b in blocks), strict=True)
            ]
            self._table = Stations(rows[0], rows[1], rows[2], rows[3])
            if len(self._table.c) < 2:
                raise ArithmeticError("doubles do not resolve the cumulant generating function")
        return self._table

    @property
    def mean(self) -> float:
        """About the mean loss."""
        return float(self.table.slope[0])

    def log_bound(self, epsilon: float) -> float:
        """log of the least Chernoff bound of δ(ε), M(c) e^(−cε) c^c / (1+c)^(1+c), over the table's crossings."""
        c = self.table.c
        return float((self.table.cumulant - c * epsilon + c * np.log(c) - (1 + c) * np.log1p(c)).min())

    def guess(self, log_delta: float) -> float:
        """An estimate of the ε with this log δ, by the saddle points; 0 where δ is smaller at every ε."""
        taken: Taken = "one" if self.setup.way == "remove" else "nothing"
        table = replace(self.table, taken=taken)
        usable = np.isfinite(table.log_delta) & (table.curvature > 0)
        table = Stations(table.c[usable], table.cumulant[usable], table.slope[usable], table.bend[usable], taken)
        if not usable.any() or log_delta > table.log_delta.max():
            return 0.0
        fallen = np.maximum.accumulate(-table.log_delta)
        index = min(max(int(np.searchsorted(fallen, -log_delta)), 1), len(table.c) - 1)
        finer = self._stations(np.geomspace(table.c[index - 1], table.c[index], 9), taken)
        if (np.isfinite(finer.log_delta) & (finer.curvature > 0)).all():
            table = finer
        fallen, rising = np.maximum.accumulate(-table.log_delta), np.maximum.accumulate(table.epsilon)
        return float(np.interp(-log_delta, fallen, rising))

    def places(self, epsilons: Floats, finer: int = 0) -> Floats:
        """The place of every ε: the next multiple below it of a power of 2, 4^`finer` times finer than needed.

        A path for a place at most k√F'' below ε loses a factor of about e^(k²/2) in accuracy, and its terms fall faster
        as ε grows. Where they fall by e^(−ζε) alone, every octave has at least one place.
        """
        level = self.table.height - np.multiply.outer(epsilons, self.table.c)
        lowest = np.argmin(level, axis=1)
        apart = _APART * np.sqrt(np.maximum(self.table.curvature[lowest], 1 / self.table.c[lowest] ** 2))
        apart = np.where(self._little(epsilons), np.minimum(apart, epsilons), apart)
        spacing = 2.0 ** (np.floor(np.log2(np.maximum(apart, 1e-300))) - 2 * finer)
        return np.asarray(np.floor(epsilons / spacing) * spacing)

    def _little(self, epsilons: Floats) -> NDArray[np.bool_]:
        """Where M − 1 is integrated: M is next to 1 at its saddle, and the integrand of M − 1 is e^3 times lower."""
        if self.setup.way == "add":
            return np.zeros(len(epsilons), np.bool_)
        pull = np.multiply.outer(epsilons, self.table.c)
        level, less = self.table.height - pull, replace(self.table, taken="one").height - pull
        lower = level.min(axis=1) - np.where(np.isfinite(less), less, math.inf).min(axis=1) > _WORTH
        return np.asarray(lower & (self.table.cumulant[np.argmin(level, axis=1)] < _LITTLE))

    def strip(self, epsilon: float) -> Strip:
        """Where the integrand of δ(ε) is low: M's, or where M is next to 1 that of M − 1."""
        if not self._little(np.array([epsilon]))[0]:
            return self._low(epsilon, "nothing")[0]
        strip, cumulant = self._low(epsilon, "one")
        return replace(strip, taken="each") if self.each and cumulant < _RARE else strip

    def _low(self, epsilon: float, taken: Taken) -> tuple[Strip, float]:
        """Where the integrand is low, and K at the right end."""
        table = replace(self.table, taken=taken)
        low, high = self._around(table, epsilon)
        finer = table
        for _ in range(_ZOOMS):
            finer = self._stations(np.geomspace(low, high, 9), taken)
            low, high = self._around(finer, epsilon)
        c = math.sqrt(low * high)
        width = float(1 / math.sqrt(max(np.interp(c, finer.c, finer.curvature), 1e-300)))
        ends = max(c - _AROUND * width, c / _AROUND), min(c + _AROUND * width, c * _AROUND)
        near = self._stations(np.linspace(*ends, _FINE), taken)
        level = near.height - near.c * epsilon
        level = np.where(np.isfinite(level), level, math.inf)
        least = int(np.argmin(level))
        beyond = level > level[least] + _LEVEL
        right = self._edge(near.c[least:], level[least:], beyond[least:])
        left = self._edge(near.c[least::-1], level[least::-1], beyond[least::-1])
        further = table.c[table.height - table.c * epsilon > level[least] + _LEVEL]  # where it is flat, by the table
        if not beyond[: least + 1].any():
            left = float(further[further < near.c[0]].max(initial=0.0))
        if not beyond[least:].any():
            right = float(further[further > near.c[-1]].min(initial=2 * float(table.c[-1])) / 2)
            right = max(right, float(near.c[-1]))
        source = near if right <= near.c[-1] else table
        cumulant = float(source.cumulant[min(int(np.searchsorted(source.c, right)), len(source.c) - 1)])
        deviation = math.sqrt(max(self.table.bend[0], 1e-300))
        below = max((self.mean - epsilon) / deviation, 1e-300)
        return Strip((left + right) / 2, (right - left) / 2, epsilon, taken, _RISE / below), cumulant

    def _edge(self, c: Floats, level: Floats, beyond: Floats) -> float:
        """Where, from the first place on, the level is passed."""
        if not beyond.any():
            return float(c[-1])
        index = int(np.argmax(beyond))
        rise = (level[0] + _LEVEL - level[index - 1]) / (level[index] - level[index - 1])
        return float(c[index - 1] + (min(rise, 1.0) if math.isfinite(rise) else 0.0) * (c[index] - c[index - 1]))

    def _around(self, stations: Stations, epsilon: float) -> tuple[float, float]:
        """The crossings next to where the integrand is lowest."""
        level = stations.height - stations.c * epsilon
        index = int(np.argmin(np.where(np.isfinite(level), level, math.inf)))
        return float(stations.c[max(index - 1, 0)]), float(stations.c[min(index + 1, len(level) - 1)])

    def _stations(self, c: Floats, taken: Taken = "nothing") -> Stations:
        return Stations(c, *self._cumulants(c), taken)

    def _law(self, most: float) -> list[tuple[Floats, Floats]]:
        """Every mechanism's law on the real line, for crossings up to `most`."""
        octave = max(math.ceil(math.log2(most) / 2), 2)
        if octave not in self._laws:
            self._laws[octave] = [part.release.law(4.0**octave) for part in self.setup.parts]
        return self._laws[octave]

    def _cumulants(self, c: Floats) -> tuple[Floats, Floats, Floats]:
        """K, K' and K'' of the whole composition at ascending crossings."""
        sign = self.setup.sign
        k, slope = self.setup.gaussian * c * (c + 1) / 2, self.setup.gaussian * (2 * c + 1) / 2
        bend = np.full_like(c, self.setup.gaussian)
        for part, (logs, losses) in zip(self.setup.parts, self._law(float(c[-1])), strict=True):
            weights, own = np.exp(logs), -sign * losses
            second = np.where(np.abs(own) < 1e-3, own**2 / 2 * (1 + own / 3), np.expm1(np.minimum(own, 700.0)) - own)
            first = sign * float(weights @ second)  # b, as in `contour.first_order`
            spend(len(c) * len(losses))
            pull = np.multiply.outer(sign * c, losses)
            risen = np.expm1(np.minimum(pull, 700.0))
            bent = np.where(np.abs(pull) < 1e-2, pull**2 * (1 / 2 + pull * (1 / 6 + pull / 24)), risen - pull)
            h = sign * c * first + bent @ weights
            terms = logs + pull
            top = terms.max(axis=1)
            shares = np.exp(terms - top[:, None])
            far = (top > 5) | (h < -0.7)
            log = np.where(far, np.log(shares.sum(axis=1)) + top, np.log1p(np.maximum(h, -0.999)))
            grown = np.exp(top - log)
            one = np.where(far, (shares @ losses) * grown, (first + risen @ (weights * losses)) * np.exp(-log))
            two = (shares @ losses**2) * grown
            k, slope = k + part.count * log, slope + sign * part.count * one
            bend = bend + part.count * (two - one**2)
        return k, slope, bend
