"""One direction of a composition on lattices: δ(ε) from above, and back, each from the tilt that suits the question."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dpbench.accountants._hinges import Floats
from dpbench.accountants._lattice_grid import (
    COARSEN,
    FOLD,
    Composed,
    Factor,
    Grid,
    Points,
    Stretch,
    coarser,
    compose,
    points,
    round_up,
    rounding,
    without_rounding,
)
from dpbench.accountants._lattice_losses import LossLaw
from dpbench.accountants._lattice_table import Table, falls_to, log_kappa, tabulate

MOST_CELLS = 2**18  # of the final lattice; the bulk of one release takes half of it at most
_FINENESS = 8192  # cells per standard deviation of the tilted sum: 64 splits then widen its variance by 1.6e-7
_SPREAD = 5e-7  # the share of the variance that splitting the single releases may add, where cells suffice
_OUTLIERS = 1e-4  # outliers expected in what is folded before the final lattice
_WRAPPED = 1e-18  # tilted mass that a window leaves out
_RUNGS = 16  # tilts are computed in blocks of this many
_RUNGS_PER_OCTAVE = 4
_MOST_RUNGS = 400
GIVEN_UP = math.log(1000)  # digits of δ that a smaller tilt may cost, for narrower windows
_STEPS = np.concatenate([-(2.0 ** np.arange(4, -13, -0.5)), 2.0 ** np.arange(-12, 4.5, 0.5)])


@dataclass(frozen=True)
class Part:
    """One law, how often it occurs, and its coarse quadrature."""

    law: LossLaw
    count: int
    plan: Points


@dataclass
class Side:
    """A whole composition in one direction. Tables are remembered per rung of the ladder of tilts.

    Rung k is the tilt unit · 2^(k/4); which one answers depends on the question alone, so that answers do not depend
    on what was asked before.
    """

    parts: Sequence[Part]
    highest_tilt: float  # tilts stay below this: beyond, branches end before the peak
    infinite: float = 0.0
    least_limit: float = math.inf
    unit: float = 0.0
    tilts: Floats = field(default_factory=lambda: np.empty(0))
    moments: Floats = field(default_factory=lambda: np.empty(0))
    tables: dict[int, Table] = field(default_factory=dict)

    @property
    def highest(self) -> float:
        """No finite loss of the sum exceeds it; −∞ where a release has none, whatever the others have."""
        ends = [part.count * part.law.highest for part in self.parts]
        return -math.inf if -math.inf in ends else math.fsum(ends)

    def log_delta(self, epsilon: float) -> float:
        """log δ(ε), infinite losses included: an upper bound up to the estimates named in `_lattice_grid`."""
        log_infinite = math.log(self.infinite) if self.infinite > 0 else -math.inf
        if epsilon >= self.highest * (1 + 1e-12):
            return log_infinite
        return float(np.logaddexp(self._finite(epsilon), log_infinite))

    def _finite(self, epsilon: float) -> float:
        best = self._best(lambda: self._log_bounds(epsilon))
        values = self._log_bounds(epsilon)
        if values[best] < -800:  # the ladder's moments are good to a few digits only: a bound next to zero is said
            return -750.0
        return min(self.table(self._rung(epsilon)).log_delta(epsilon), 0.0)

    def share_of_errors(self, epsilon: float) -> float:
        """Which part of δ(ε), without infinite losses, is error bounds; 0 beyond the largest finite loss."""
        if epsilon >= self.highest * (1 + 1e-12):
            return 0.0
        table = self.table(self._rung(epsilon))
        return table.errors(epsilon) / math.exp(min(max(table.log_delta(epsilon) - table.log_unit, -745.0), 700.0))

    def epsilon(self, delta: float) -> float:
        """The smallest ε >= 0 at which δ(ε) <= `delta`; infinite where infinite losses alone exceed it."""
        left = delta - self.infinite
        if left <= 0:
            return math.inf
        log_delta = math.log(left)
        best = self._best(lambda: (self._log_bounds(0.0) - log_delta) / self.tilts)
        chernoff = max(float((self._log_bounds(0.0)[best] - log_delta) / self.tilts[best]), 0.0)
        guess = max(float((self._log_bounds(0.0)[best] - log_delta + self._excess(best)) / self.tilts[best]), 0.0)
        found = 0.0
        best = self._best(lambda: self._log_bounds(guess))  # the ladder may grow
        rung = self._chosen(self._log_bounds(guess), best)
        for _ in range(4):  # until the rung is the one that answers for this ε, so that ε and δ invert each other
            found = min(self.table(rung).epsilon(log_delta), self.highest)
            before, rung = rung, self._rung(found)
            if rung == before:
                return found
        return falls_to(self.log_delta, math.log(delta), max(min(chernoff, self.highest), 1e-300))

    def _excess(self, rung: int) -> float:
        """log of about what part of Chernoff's bound δ is, by the saddle point's variance: one table may do then."""
        if not 0 < rung < len(self.tilts) - 1:
            return 0.0
        tilts, moments = self.tilts[rung - 1 : rung + 2], self.moments[rung - 1 : rung + 2]
        slopes = np.diff(moments) / np.diff(tilts)
        variance = 2 * float(slopes[1] - slopes[0]) / float(tilts[2] - tilts[0])
        tilt = tilts[1:2]
        if not variance > 0:
            return 0.0
        size = np.log(tilt * (tilt + 1)) + log_kappa(tilt) + math.log(2 * math.pi * variance) / 2
        return min(-float(size[0]), 0.0)

    def _rung(self, epsilon: float) -> int:
        """The rung that answers for this ε: a lower one where the tilt overshoots ε beyond what doubles can undo."""
        best = self._best(lambda: self._log_bounds(epsilon))
        rung = self._chosen(self._log_bounds(epsilon), best)
        while rung and epsilon < self.table(rung).least:
            rung -= 1
        return rung

    def _log_bounds(self, epsilon: float) -> Floats:
        """Chernoff's bound of log δ(ε) at every rung."""
        return self.moments - self.tilts * epsilon + log_kappa(self.tilts)

    def _chosen(self, log_bounds: Floats, best: int) -> int:
        """The lowest rung whose bound is at most a thousand times the best one: there windows are narrower."""
        return int(np.argmax(log_bounds[: best + 1] <= log_bounds[best] + GIVEN_UP))

    def _best(self, bounds: Callable[[], Floats]) -> int:
        """The rung at which `bounds` is lowest; the ladder grows until it is past."""
        while True:
            if len(self.tilts):
                values = bounds()
                best = int(np.argmin(values))
                full = self.tilts[-1] >= self.highest_tilt or len(values) >= _MOST_RUNGS
                if full or best < len(values) - _RUNGS_PER_OCTAVE or values[best] < -5000:
                    return best
            self._grow()

    def _grow(self) -> None:
        if not self.unit:
            variance = 0.0
            for part in self.parts:
                losses, masses = part.plan.tilted(0.0)
                mean = float(np.dot(masses, losses))
                variance += part.count * float(np.dot(masses, (losses - mean) ** 2))
            wanted = min(
                1 / (8 * math.sqrt(variance)) if variance > 0 else 1.0, self.highest_tilt / 256, self.least_limit
            )
            self.unit = 2.0 ** math.floor(math.log2(wanted))
        begin = len(self.tilts)
        tilts = self.unit * 2.0 ** (np.arange(begin, begin + _RUNGS) / _RUNGS_PER_OCTAVE)
        tilts = tilts[tilts <= self.highest_tilt]
        if not len(tilts):
            self.highest_tilt = float(self.tilts[-1])
            return
        moments = np.zeros(len(tilts))
        for part in self.parts:
            moments += part.count * part.plan.log_moments(tilts)
        self.tilts, self.moments = np.append(self.tilts, tilts), np.append(self.moments, moments)

    def table(self, rung: int) -> Table:
        """The table of one rung, computed at the first question."""
        if rung not in self.tables:
            self.tables[rung] = _table(self.parts, float(self.tilts[rung]))
        return self.tables[rung]


def make_side(laws: Sequence[tuple[LossLaw, int]], least_limit: float = math.inf) -> Side:
    """A side from laws and their counts; its ladder of tilts begins 256 times below `least_limit` at the latest."""
    log_finite = math.fsum(count * math.log1p(-min(law.infinite, 1 - 1e-16)) for law, count in laws)
    infinite = -math.expm1(log_finite) * (1 + 1e-12)
    parts = tuple(Part(law, count, points(law)) for law, count in laws)
    limit = min((law.highest_tilt for law, _ in laws), default=math.inf)
    return Side(parts, limit, min(infinite, 1.0), least_limit / 256)


@dataclass(frozen=True)
class _Spread:
    """Tilted losses of one part's coarse quadrature, in ascending order: what windows are planned with."""

    losses: Floats
    masses: Floats
    mean: float
    variance: float

    @classmethod
    def of(cls, losses: Floats, masses: Floats) -> _Spread:
        losses, masses = losses[masses > 0], masses[masses > 0]
        order = np.argsort(losses)
        losses, masses = losses[order], masses[order] / masses.sum()
        mean = float(np.dot(masses, losses))
        return cls(losses, masses, mean, float(np.dot(masses, (losses - mean) ** 2)))

    def bulk(self, outside: float) -> Stretch:
        """The losses but for at most `outside` of the mass, a half on either side."""
        below = np.cumsum(self.masses)
        above = np.cumsum(self.masses[::-1])[::-1]
        low = int(np.searchsorted(below, outside / 2))
        high = int(np.searchsorted(-above, -outside / 2, side="right")) - 1
        middle = (low + high) // 2
        return Stretch(float(self.losses[min(low, middle)]), float(self.losses[max(high, middle)]))

    def width(self, outside: float) -> float:
        """The length of that bulk."""
        stretch = self.bulk(outside)
        return stretch.high - stretch.low

    def within(self, stretch: Stretch) -> _Spread:
        """The losses of that stretch alone."""
        held = stretch.holds(self.losses)
        return self.of(self.losses[held], self.masses[held])

    def log_moments(self, tilts: Floats) -> Floats:
        exponents = np.multiply.outer(tilts, self.losses - self.mean)
        top = exponents.max(axis=1)
        result: Floats = top + np.log(np.maximum(np.exp(exponents - top[:, None]) @ self.masses, 1e-300))
        return result


def _table(parts: Sequence[Part], tilt: float) -> Table:
    spreads = []
    for part in parts:
        spreads.append(_Spread.of(*part.plan.tilted(tilt)))
    variance = math.fsum(part.count * spread.variance for part, spread in zip(parts, spreads, strict=True))
    window = _window([(spread, part.count) for part, spread in zip(parts, spreads, strict=True)])
    step = max(math.sqrt(variance) / _FINENESS, (window.high - window.low) / (0.9 * MOST_CELLS)) or 20 / tilt
    step = min(step, 20 / tilt)
    step, exact = _aligned(parts, step, window.high - window.low)
    budget = _SPREAD * variance / len(parts)
    wrong = 1e-13  # rounding of the exponents, which are below 1e3
    factors: list[Factor] = []
    offset = loose = 0.0
    for part, spread in zip(parts, spreads, strict=True):
        found = _part(part, spread, tilt, step, budget, exact)
        factors += found.factors
        wrong, loose = wrong + found.wrong, loose + found.loose
        offset += part.count * part.law.anchor
    composed = _compose_within(factors, window, offset, step)
    wrong += composed.wrapped
    return tabulate(composed, offset, step, tilt, wrong, loose)


def _aligned(parts: Sequence[Part], step: float, width: float) -> tuple[float, bool]:
    """A step that divides the atoms' common lattice, and whether that lattice itself serves: then nothing is split."""
    gaps = [part.law.gap for part in parts if part.law.gap is not None]
    if not gaps:
        return step, False
    gap = min(gaps)
    common = all(abs(other / gap - round(other / gap)) < 1e-12 * other / gap for other in gaps)
    smooth = any(part.law.branches or part.law.gap is None for part in parts)
    if common and not smooth and width / gap < MOST_CELLS / 2:
        return gap, True
    return (gap / math.ceil(gap / step) if step < gap else step), False


@dataclass(frozen=True)
class _Found:
    factors: list[Factor]
    wrong: float
    loose: float


def _part(part: Part, spread: _Spread, tilt: float, final_step: float, budget: float, exact: bool) -> _Found:
    """One law's releases as few factors on the final lattice, and the tilted mass that may be wrong in them.

    Lattices get finer until rounding single releases adds at most `budget` to the variance, or cells run out.
    """
    levels = 0
    rounded = bulk = None
    while True:
        step = final_step / COARSEN**levels
        stretch = spread.bulk(_OUTLIERS / FOLD**levels) if levels else Stretch()
        last = (
            exact
            or spread.variance == 0
            or COARSEN * spread.width(_OUTLIERS / FOLD ** (levels + 1)) / step > MOST_CELLS / 2
        )
        # where losses are spread over many cells rounding adds Δ²/6 a release: no need to try if that is too much
        if last or part.count * step**2 / 8 <= budget:
            rounded = round_up(part.law, part.plan, tilt, step, stretch)
            if rounded is None:
                raise ArithmeticError("losses so rare or so far apart that no lattice of doubles holds them")
            if last or part.count * rounded.spread <= budget:
                break
        levels += 1
    wrong = part.count * (rounded.lost + rounding(rounded.grid))
    loose = 1.1 * part.count * rounded.loose  # on each coarser lattice there are 64 times fewer
    if not levels:
        return _Found([Factor(rounded.grid, part.count)], wrong, loose)
    outliers = round_up(part.law, part.plan, tilt, final_step, replace(stretch, outside=True))
    if outliers is not None:
        bulk = round_up(part.law, part.plan, tilt, final_step, stretch)
        assert bulk is not None
    inside = spread.within(stretch)
    offset, step = part.law.anchor, final_step / COARSEN**levels
    grid, left, count, covered, rest = rounded.grid, None, part.count, 1, 0
    for _ in range(levels):
        count, odd = divmod(count, FOLD)
        factors = [Factor(grid, odd)] if odd else []
        factors += [Factor(left, 1)] if left is not None else []
        if factors:
            rest += odd * covered
            left, lost = _folded(factors, inside, rest, offset, step, tilt)
            wrong += lost
        if count:
            covered *= FOLD
            grid, lost = _folded([Factor(grid, FOLD)], inside, covered, offset, step, tilt)
            wrong += count * lost
        step *= COARSEN
    one = (bulk.grid, outliers.grid) if bulk is not None and outliers is not None else (None, None)
    found = [Factor(grid, count, covered, *one)] if count else []
    return _Found(found + ([Factor(left, 1, rest, *one)] if left is not None else []), wrong, loose)


def _folded(
    factors: Sequence[Factor], spread: _Spread, releases: int, offset: float, step: float, tilt: float
) -> tuple[Grid, float]:
    """The factors, `releases` in all, composed on the lattice of `step` and split onto the next coarser one."""
    composed = _compose_within(factors, _window([(spread, releases)]), releases * offset, step)
    grid, lost = without_rounding(composed.grid, composed.noise)
    return coarser(grid, tilt, step), composed.wrapped + lost


@dataclass(frozen=True)
class Window:
    """Losses between which the sum stays but for `_WRAPPED`, and the tilts that show it."""

    low: float
    high: float
    tilts: tuple[float, float]


def window_of(parts: Sequence[tuple[Floats, Floats, int]]) -> Window:
    """The window of a sum of losses with these masses, each so many times."""
    return _window([(_Spread.of(losses, masses), count) for losses, masses, count in parts])


def _window(spreads: Sequence[tuple[_Spread, int]]) -> Window:
    """Chernoff's bound on either side, over a ladder of tilts; the ends of the support where those are nearer."""
    mean = math.fsum(count * spread.mean for spread, count in spreads)
    variance = math.fsum(count * spread.variance for spread, count in spreads)
    least = math.fsum(count * float(spread.losses.min()) for spread, count in spreads)
    most = math.fsum(count * float(spread.losses.max()) for spread, count in spreads)
    if variance == 0:
        return Window(mean, mean, (0.0, 0.0))
    tilts = _STEPS / math.sqrt(variance)
    moments = np.zeros(len(tilts))
    for spread, count in spreads:
        moments += count * spread.log_moments(tilts)
    ends = (moments - math.log(_WRAPPED)) / tilts
    below = int(np.argmax(np.where(tilts < 0, ends, -np.inf)))
    above = int(np.argmin(np.where(tilts > 0, ends, np.inf)))
    low, high = max(mean + float(ends[below]), least), min(mean + float(ends[above]), most)
    return Window(low, high, (float(tilts[below]), float(tilts[above])))


def _compose_within(factors: Sequence[Factor], window: Window, offset: float, step: float) -> Composed:
    """The factors composed on the cells of the window, with a margin; on their whole support where that is smaller."""
    least = sum(factor.count * _ends(factor)[0] for factor in factors)
    most = sum(factor.count * _ends(factor)[1] for factor in factors)
    margin = 8 + 0.02 * (window.high - window.low) / step
    low = max(math.floor((window.low - offset) / step - margin), least)
    high = min(math.ceil((window.high - offset) / step + margin), most)
    size = _size(max(high - low + 1, 2))
    tilts = (0.0 if low == least else window.tilts[0] * step, 0.0 if low + size > most else window.tilts[1] * step)
    composed = compose(factors, low, size, tilts)
    if tilts[0] < 0 or tilts[1] > 0 or size <= most - least + 1:
        return composed
    grid = composed.grid  # nothing wraps: cells beyond the support hold rounding alone
    kept = grid.masses[: most - low + 1]
    return Composed(Grid(kept, grid.start, grid.log_mass), composed.wrapped, composed.noise)


def _ends(factor: Factor) -> tuple[int, int]:
    """The first and the last cell of a factor's support."""
    grids = [grid for grid in (factor.bulk, factor.outliers) if grid is not None]
    starts = [factor.grid.start] + [factor.releases * grid.start for grid in grids]
    lasts = [factor.grid.start + len(factor.grid.masses) - 1]
    lasts += [factor.releases * (grid.start + len(grid.masses) - 1) for grid in grids]
    return min(starts), max(lasts)


def _size(least: int) -> int:
    """The next 2^k or 3 · 2^k: transforms of these lengths are fast."""
    size = int(2 ** math.ceil(math.log2(least)))
    return size * 3 // 4 if size >= 8 and size * 3 // 4 >= least else size
