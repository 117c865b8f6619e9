"""Losses on a lattice: rounding by 'connect the dots', exponential tilts, powers by one transform, coarser lattices.

**Connect the dots** (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, arXiv:2207.04380). On a lattice of losses
ε_i with step Δ, the discrete pair whose curve meets the true one at every α_i = e^(ε_i) and is linear in α between
dominates the true pair, and no pair on this lattice is tighter. Outcome by outcome it splits the mass of a loss L
between the two neighbours so that the mass under P and under Q stay what they are: with t = L − ε_i,

    up = (1 − e^−t) / (1 − e^−Δ),    down = (e^−t − e^−Δ) / (1 − e^−Δ)    (fractions of the mass under P).

So the lattice's masses are integrals of positive functions, without the second differences of the curve that would
cancel. The split adds a variance of t (Δ − t), which is what makes the bound loose: `spread` reports it.

**Tilt.** All masses are kept as p̃_i = P_i e^(λ ε_i) / M(λ): tails of P that matter at small δ are then in the middle.
**Coarser lattices.** A million releases cannot be composed on a lattice that resolves one of them. Composing 64,
splitting again onto a lattice eight times coarser, and so on keeps the number of cells while every split, by the same
theorem, only raises the curve. Rare large losses would need too many cells there: only the bulk of the losses goes
through the fine lattices. With b the bulk, o the outliers and b' the bulk on the coarse lattice, n releases are
b^n + (b' + o)^n − b'^n, where the last two terms, an outlier at least once, may be coarse because they are rare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants._complex import log1p
from dpbench.accountants._hinges import Floats
from dpbench.accountants._lattice_losses import Branch, LossLaw

COARSEN = 8  # from one lattice to the next coarser
FOLD = COARSEN**2  # releases composed before: the split's share of the variance then stays the same
MOST_POINTS = 2**22  # of the quadrature that windows are planned with
_KEPT = 48.0  # outputs whose tilted density is e^-48 of the largest are left out, and accounted for
_ROUNDING = 2.0**-53


@dataclass(frozen=True)
class Grid:
    """Tilted masses of sum 1 at the losses offset + (start + i) Δ; `log_mass` is the logarithm of M(λ)."""

    masses: Floats
    start: int
    log_mass: float


@dataclass(frozen=True)
class Points:
    """A coarse quadrature of a law, for plans only: losses and log masses."""

    losses: Floats
    log_masses: Floats

    def log_moments(self, tilts: Floats) -> Floats:
        """log E_P[e^(λL)] at each tilt."""
        exponents = np.multiply.outer(tilts, self.losses)
        exponents += self.log_masses
        top = exponents.max(axis=1)
        exponents -= top[:, None]
        result: Floats = top + np.log(np.exp(exponents).sum(axis=1))
        return result

    def tilted(self, tilt: float) -> tuple[Floats, Floats]:
        """Losses and masses of sum 1 under the tilt, without those below e^-48 of the largest."""
        exponents = self.log_masses + tilt * self.losses
        exponents -= exponents.max()
        kept = exponents > -_KEPT
        masses = np.exp(exponents[kept])
        return self.losses[kept], masses / masses.sum()


def points(law: LossLaw) -> Points:
    """Every branch by a midpoint rule of an eighth of its scale, and the atoms."""
    losses: list[Floats] = [law.atoms]
    masses: list[Floats] = [law.log_masses]
    for branch in law.branches:
        cells = max(math.ceil((branch.high - branch.low) / branch.scale * 8), 16)
        if cells > MOST_POINTS:
            raise ArithmeticError(f"losses that take {cells:.3g} places of a plan to resolve, more than {MOST_POINTS}")
        step = (branch.high - branch.low) / cells
        x: Floats = branch.low + step * (np.arange(cells, dtype=np.float64) + 0.5)
        losses.append(branch.loss(x))
        masses.append(branch.log_density(x) + math.log(step))
    return Points(np.concatenate(losses), np.concatenate(masses))


@cache
def _nodes(count: int) -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return np.asarray((nodes + 1) / 2, np.float64), np.asarray(weights / 2, np.float64)


@dataclass(frozen=True)
class Rounded:
    """One release on a lattice. `lost`: tilted mass left out; `spread`: Σ p̃ t (Δ − t), what the split added; `loose`:
    what its logarithm of M may have lost to rounding, many releases of which all lose the same."""

    grid: Grid
    lost: float
    spread: float
    loose: float


def kept_range(branch: Branch, tilt: float, floor: float) -> tuple[float, float] | None:
    """The outputs whose tilted log density is above `floor`, to an eighth of the scale; None where there are none."""
    cells = max(math.ceil((branch.high - branch.low) / branch.scale * 8), 16)
    edges = np.linspace(branch.low, branch.high, cells + 1)
    above = np.flatnonzero(branch.log_density(edges) + tilt * branch.loss(edges) > floor)
    if not len(above):
        return None
    return float(edges[max(above[0] - 1, 0)]), float(edges[min(above[-1] + 1, cells)])


def _samples(branch: Branch, low: float, high: float, anchor: float, step: float) -> tuple[Floats, Floats]:
    """Gauss-Legendre nodes and weights on [low, high], broken at every lattice loss and at a 64th of the scale.

    Four nodes on a 64th of σ integrate e^(−x²/2σ²) to a relative 6e-10 (y/64)^8 at y σ from the peak of the tilted
    density, 1e-15 at 12; two nodes on a 4096th to 2e-4 (y/4096)^4, 2e-14 at 12.
    """
    ends = np.sort(branch.loss(np.array([low, high])))
    first, last = math.ceil((ends[0] - anchor) / step), math.floor((ends[1] - anchor) / step)
    levels = anchor + step * np.arange(first, last + 1)
    breaks = np.clip(branch.position(levels), low, high) if len(levels) else levels
    cells = min(max(math.ceil((high - low) / branch.scale * 64), 4), 2**18)
    edges = np.sort(np.concatenate([breaks, np.linspace(low, high, cells + 1)]))
    widths = np.diff(edges)
    widths, lefts = widths[widths > 0], edges[:-1][widths > 0]
    narrow = widths < branch.scale / 4096
    x, mass = [], []
    for count, chosen in ((2, narrow), (4, ~narrow)):
        nodes, weights = _nodes(count)
        x.append((lefts[chosen][:, None] + widths[chosen][:, None] * nodes).ravel())
        mass.append((widths[chosen][:, None] * weights).ravel())
    return np.concatenate(x), np.concatenate(mass)


@dataclass(frozen=True)
class Stretch:
    """Losses from `low` to `high`, or all those outside of it."""

    low: float = -math.inf
    high: float = math.inf
    outside: bool = False

    def holds(self, losses: Floats) -> NDArray[np.bool_]:
        """Which of the losses belong to it."""
        inside = (losses >= self.low) & (losses <= self.high)
        return ~inside if self.outside else inside

    def outputs(self, branch: Branch, low: float, high: float) -> list[tuple[float, float]]:
        """The outputs in [low, high] whose losses belong to it, as intervals."""
        losses = branch.loss(np.array([low, high]))
        ends = [low if losses[0] <= losses[1] else high, high if losses[0] <= losses[1] else low]
        bounds = np.clip([self.low, self.high], losses.min(), losses.max())
        first, last = (
            end if bound == limit else float(np.clip(branch.position(np.array([bound]))[0], low, high))
            for end, bound, limit in zip(ends, bounds, (losses.min(), losses.max()), strict=True)
        )
        pairs = [(ends[0], first), (last, ends[1])] if self.outside else [(first, last)]
        return [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]


def round_up(
    law: LossLaw, plan: Points, tilt: float, step: float, stretch: Stretch = Stretch(), *, alone: bool = False
) -> Rounded | None:
    """One release on the lattice anchor + i Δ, split by connect the dots; its curve lies on or above the true one.

    With a `stretch`, the sub-measure of its losses; None where it holds none. What is left out, being too rare, is
    measured against the largest density of all losses, or, where the stretch stands `alone`, of its own.
    """
    exponents = plan.log_masses + tilt * plan.losses
    held = stretch.holds(plan.losses) if alone else np.ones(len(exponents), dtype=np.bool_)
    peak = float((exponents[held] if held.any() else exponents).max())
    left_out = 0.0
    kept_atoms = stretch.holds(law.atoms)
    losses = [law.atoms[kept_atoms]]
    masses = [np.exp(law.log_masses[kept_atoms] + tilt * losses[0] - peak)]
    for branch in law.branches:
        kept = kept_range(branch, tilt, peak - math.log(branch.scale / 8) - _KEPT)
        if kept is None:
            left_out += math.exp(-_KEPT) * (branch.high - branch.low) / branch.scale
            continue
        for low, high in stretch.outputs(branch, *kept):
            x, weights = _samples(branch, low, high, law.anchor, step)
            loss = branch.loss(x)
            losses.append(loss)
            masses.append(weights * np.exp(branch.log_density(x) + tilt * loss - peak))
        left_out += 16 * math.exp(-_KEPT)  # beyond, it falls at least as fast as over the last scale
    together = np.concatenate(masses)
    if not together.sum() > 0:
        return None
    grid, spread = _split(np.concatenate(losses) - law.anchor, together, tilt, step)
    total = math.exp(grid.log_mass)
    loose = _ROUNDING * (16 + 2 * abs(peak) + abs(grid.log_mass))
    return Rounded(Grid(grid.masses, grid.start, grid.log_mass + peak), left_out / total, spread / total, loose)


def _split(losses: Floats, masses: Floats, tilt: float, step: float) -> tuple[Grid, float]:
    """Each mass between its two lattice neighbours; one within 1e-9 Δ below a point is moved up to it."""
    index = np.floor(losses / step + 1e-9)
    t = np.clip(losses - index * step, 0.0, step)
    whole = -math.expm1(-step)
    up = -np.expm1(-t) / whole
    down = np.exp(-t) * -np.expm1(t - step) / whole
    start = int(index.min())
    cell = (index - start).astype(np.int64)
    size = int(cell.max()) + 2
    totals = np.bincount(cell, masses * down * np.exp(-tilt * t), size)
    totals += np.bincount(cell + 1, masses * up * np.exp(tilt * (step - t)), size)
    if totals[-1] == 0:
        totals = totals[:-1]
    mass = float(totals.sum())
    return Grid(totals / mass, start, math.log(mass)), float(np.dot(masses, t * (step - t)))


def coarser(grid: Grid, tilt: float, step: float) -> Grid:
    """The same losses split onto the lattice with step COARSEN · `step`."""
    begin = grid.start // COARSEN
    before = grid.start - begin * COARSEN
    rows = -(-(before + len(grid.masses)) // COARSEN)
    padded = np.zeros(rows * COARSEN)
    padded[before : before + len(grid.masses)] = grid.masses
    t = step * np.arange(COARSEN)
    wide = step * COARSEN
    up = -np.expm1(-t) / -math.expm1(-wide) * np.exp(tilt * (wide - t))
    down = np.exp(-t) * -np.expm1(t - wide) / -math.expm1(-wide) * np.exp(-tilt * t)
    table = padded.reshape(rows, COARSEN)
    totals = np.zeros(rows + 1)
    totals[:-1] += table @ down
    totals[1:] += table @ up
    mass = float(totals.sum())
    return Grid(totals / mass, begin, grid.log_mass + math.log(mass))


def without_rounding(grid: Grid, noise: float) -> tuple[Grid, float]:
    """The grid without cells below eight times the rounding, which a later power would carry far; and what is lost.

    The sum of those cells with their signs is the mass in them, to √cells times the rounding.
    """
    kept = grid.masses >= 8 * noise
    cells = np.flatnonzero(kept)
    first, last = int(cells[0]), int(cells[-1])
    masses = np.where(kept, grid.masses, 0.0)[first : last + 1]
    mass = float(masses.sum())
    lost = abs(float(grid.masses[~kept].sum())) + 4 * math.sqrt(len(grid.masses)) * noise
    return Grid(masses / mass, grid.start + first, grid.log_mass + math.log(mass)), lost


def rounding(grid: Grid) -> float:
    """The tilted mass that one release's rounding may misplace: independent errors of 4 units per cell (an estimate).

    The largest cell counts by what is left beside it, since only its weight against the others matters.
    """
    largest = float(grid.masses.max())
    others = math.sqrt(max(float(np.dot(grid.masses, grid.masses)) - largest**2, 0.0))
    return 4 * _ROUNDING * (others + largest * (1 - largest))


@dataclass(frozen=True)
class Factor:
    """`grid`, the sum of `releases` losses, to be taken `count` times.

    Where `outliers` is given, `grid` is the sum of bulk losses only; `bulk` and `outliers` are one release's.
    """

    grid: Grid
    count: int
    releases: int = 1
    bulk: Grid | None = None
    outliers: Grid | None = None


@dataclass(frozen=True)
class Composed:
    """A composition on one lattice. `wrapped`: tilted mass that may have come in at the wrong end (Chernoff's bound);
    `noise`: the rounding per cell, its root mean square (an estimate: a transform's error is taken to be 4 log2(size)
    units of its 2-norm, spread evenly, and a power multiplies it by the count). Masses carry it with either sign."""

    grid: Grid
    wrapped: float
    noise: float


class Transform:
    """The transform of a grid, centred on its largest cell, less 1: so that small losses keep their digits."""

    def __init__(self, grid: Grid, size: int) -> None:
        self.middle = int(np.argmax(grid.masses))
        self.centre = grid.start + self.middle
        self.distance = np.arange(-self.middle, len(grid.masses) - self.middle)
        self.masses = grid.masses
        folded = np.bincount(self.distance % size, grid.masses, size)
        folded[0] = 0.0
        moved = float(folded.sum())
        self.change = np.fft.rfft(folded) - moved
        unit = 4 * _ROUNDING * math.log2(size)
        self.error = unit * math.sqrt(float(np.dot(folded, folded))) + 4 * _ROUNDING * moved

    def log_moment(self, tilt: float) -> float:
        """log Σ p̃ e^(θ (i − centre))."""
        exponents = tilt * self.distance
        top = float(exponents.max())
        return top + math.log(float(np.dot(self.masses, np.exp(exponents - top))))


class _Leaf:
    """One factor in the transform domain. `bound` is at least the modulus at every frequency."""

    def __init__(self, factor: Factor, size: int) -> None:
        self.size, self.count, self.releases = size, factor.count, factor.releases
        self.main = Transform(factor.grid, size)
        self.centre, self.log_mass, self.error = self.main.centre, factor.grid.log_mass, self.main.error
        self.bulk = self.rare = None
        self.scaled = self.share = self.once = 0.0
        if factor.bulk is not None and factor.outliers is not None:
            self.bulk, self.rare = Transform(factor.bulk, size), Transform(factor.outliers, size)
            self.share = math.exp(factor.outliers.log_mass - factor.bulk.log_mass)
            self.once = self.releases * math.log1p(self.share)
            self.log_mass = self.releases * factor.bulk.log_mass + self.once
            self.scaled = factor.grid.log_mass - self.log_mass
            self.error += self.releases * self.share * (self.rare.error + self.releases * self.bulk.error)

    def bound(self) -> Floats:
        result: Floats = np.abs(1 + self.main.change) * math.exp(self.scaled) - math.expm1(-self.once)
        return result

    def change(self, active: NDArray[np.intp]) -> NDArray[np.complex128]:
        """The transform less 1, in units of e^log_mass, at the active frequencies."""
        main = self.main.change[active]
        if self.bulk is None or self.rare is None:
            return main

        def phase(cells: int) -> NDArray[np.complex128]:
            result: NDArray[np.complex128] = np.exp(
                (-2j * np.pi / self.size) * (active * (cells % self.size) % self.size)
            )
            return result

        n = self.releases
        base = 1 + self.bulk.change[active]
        extra = self.share * phase(self.rare.centre - self.bulk.centre) * (1 + self.rare.change[active])
        small = np.abs(extra) < min(0.1, 1 / n) * np.abs(base)  # else the difference of the powers cancels nothing
        ratio = np.where(small, extra / np.where(small, base, 1.0), 0.0)
        with np.errstate(under="ignore"):
            power = base**n
            hit = np.where(small, power * np.expm1(n * log1p(ratio)), (base + extra) ** n - power)
        hit *= phase(n * self.bulk.centre - self.centre) * math.exp(-self.once)
        return math.expm1(self.scaled) + math.exp(self.scaled) * main + hit

    def log_moment(self, tilt: float) -> float:
        """log of the factor's Σ p̃ e^(θ (i − centre)), in units of e^log_mass."""
        moment = self.main.log_moment(tilt)
        if self.bulk is None or self.rare is None:
            return moment
        n = self.releases
        one = self.bulk.log_moment(tilt)
        distance = self.rare.centre - self.bulk.centre
        several = n * math.log1p(self.share * math.exp(self.rare.log_moment(tilt) + tilt * distance - one))
        log_hit = n * one + several + math.log(max(-math.expm1(-several), 1e-300)) - self.once
        return float(np.logaddexp(moment + self.scaled, log_hit + tilt * (n * self.bulk.centre - self.centre)))


def compose(factors: Sequence[Factor], low: int, size: int, tilts: tuple[float, float]) -> Composed:
    """The sum of independent losses, each factor as often as its count, on the cells low ... low + size − 1.

    Transforms of the centred masses, powers as e^(count · log), one inverse; frequencies where the product is below
    e^-60 are left at 0. What falls outside the window comes in at its other end; its mass is bounded by Chernoff's
    inequality at the two `tilts` (per cell, below 0 and above 0; 0 where nothing can leave on that side).
    """
    leaves = [_Leaf(factor, size) for factor in factors]
    with np.errstate(divide="ignore"):
        log_bound = sum((leaf.count * np.log(leaf.bound()) for leaf in leaves), np.zeros(size // 2 + 1))
    active = np.flatnonzero(log_bound > -60)
    log_size, angle, relative = np.zeros(len(active)), np.zeros(len(active)), np.zeros(len(active))
    for leaf in leaves:
        change = leaf.change(active)
        logarithm = log1p(change)
        log_size += leaf.count * logarithm.real
        angle += leaf.count * logarithm.imag
        relative += leaf.count * leaf.error / np.maximum(np.abs(1 + change), 1e-6)
    length = np.exp(log_size)
    total = np.zeros(size // 2 + 1, dtype=np.complex128)
    total[active] = length * (np.cos(angle) + 1j * np.sin(angle))
    shift = low - sum(leaf.count * leaf.centre for leaf in leaves)
    masses = np.roll(np.fft.irfft(total, size), -(shift % size))
    wrapped = 0.0
    for tilt, end in ((tilts[0], shift - 1), (tilts[1], shift + size)):
        if tilt:
            log_moment = math.fsum(leaf.count * leaf.log_moment(tilt) for leaf in leaves)
            wrapped += math.exp(min(log_moment - tilt * end, 0.0))
    forward = 2 * float(np.sum((length * np.minimum(relative, 1.0)) ** 2)) / size
    unit = 4 * _ROUNDING * math.log2(size)
    noise = (math.sqrt(forward) + unit * math.sqrt(float(np.dot(masses, masses)))) / math.sqrt(size)
    log_mass = math.fsum(leaf.count * leaf.log_mass for leaf in leaves)
    mass = float(masses.sum())
    if not 0 < mass < math.inf:
        raise ArithmeticError("so many releases that their rounding in doubles outweighs the law of their sum")
    return Composed(Grid(masses / mass, low, log_mass + math.log(mass)), wrapped, noise)
