"""One mechanism invocation on a lattice: its loss rounded by 'connect the dots', under an exponential tilt.

**Connect the dots** (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, arXiv:2207.04380). On a lattice of losses
ε_i with step Δ, the discrete pair whose curve meets the true one at every α_i = e^(ε_i) and is linear in α between
dominates the true pair, and no pair on this lattice is tighter. Outcome by outcome it splits the mass of a loss L
between the two neighbours so that the mass under P and under Q stay what they are: with t = L − ε_i,

    up = (1 − e^−t) / (1 − e^−Δ),    down = (e^−t − e^−Δ) / (1 − e^−Δ)    (fractions of the mass under P).

So the lattice's masses are integrals of positive functions, without the second differences of the curve that would
cancel. The split adds a variance of t (Δ − t) <= Δ²/4: that is what makes the bound loose.

It is done twice. First between the losses at the ends of short intervals of outputs, where the integrands are smooth
and Gauss-Legendre nodes are exact to rounding; the intervals are half a step of the lattice long, in loss, wherever
they hold a share of the mass that matters, so that this adds a quarter of what follows. Then from these losses, now
atoms, to the lattice. Both raise the curve, whatever the interval.

**Tilt.** Masses are kept as p̃_i = P_i e^(λ ε_i) / M(λ): tails of P that matter at small δ are then in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.privacy.accountants._losses import Floats
from dpbench.privacy.accountants._work import spend
from dpbench.privacy.accountants.lattice.law import Branch, LossLaw

UNIT = 2.0**-53
_MOST_PLACES = 2**22  # of the plan
_MOST_INTERVALS = 2**23
_WORK = 8  # of an interval, in exponentials, besides what its density takes
_MOST_CELLS = 2**26  # of one mechanism's lattice: a few GB
_KEPT = 60.0  # outputs whose tilted mass is e^-60 of the largest are left out, and accounted for
_NODES, _WEIGHTS = (array / 2 for array in np.polynomial.legendre.leggauss(3))


@dataclass(frozen=True)
class Places:
    """A branch by a midpoint rule with an eighth of its scale, for plans only. `edges` has one entry more."""

    branch: Branch
    edges: Floats
    losses: Floats
    log_masses: Floats

    @classmethod
    def of(cls, branch: Branch) -> Places:
        cells = max(math.ceil((branch.high - branch.low) / branch.scale * 8), 16)
        if cells > _MOST_PLACES:
            raise ArithmeticError(f"losses that take {cells:.3g} places of a plan to resolve, more than {_MOST_PLACES}")
        edges = np.linspace(branch.low, branch.high, cells + 1)
        middles = (edges[:-1] + edges[1:]) / 2
        step = (branch.high - branch.low) / cells
        return cls(branch, edges, branch.loss(middles), branch.log_density(middles) + math.log(step))


class Plan:
    """A law, how often it occurs, and about where its mass lies under a tilt."""

    def __init__(self, law: LossLaw, count: int) -> None:
        self.law, self.count = law, count
        self.places = [Places.of(branch) for branch in law.branches]
        self.losses = np.concatenate([law.atoms, *(places.losses for places in self.places)])
        self.log_masses = np.concatenate([law.log_masses, *(places.log_masses for places in self.places)])

    def log_moments(self, tilts: Floats) -> Floats:
        """log E_P[e^(λL)] of one invocation at each tilt."""
        exponents = np.multiply.outer(tilts, self.losses) + self.log_masses
        top = exponents.max(axis=1)
        result: Floats = top + np.log(np.exp(exponents - top[:, None]).sum(axis=1))
        return result

    def tilted(self, tilt: float) -> tuple[Floats, Floats]:
        """Losses and masses of sum 1 under the tilt, without those below e^-60 of the largest."""
        exponents = self.log_masses + tilt * self.losses
        exponents -= exponents.max()
        kept = exponents > -_KEPT
        masses = np.exp(exponents[kept])
        return self.losses[kept], masses / masses.sum()


@dataclass(frozen=True)
class Rounded:
    """One invocation's tilted masses, of sum 1, at the losses anchor + (start + i) Δ; `log_mass` is log M(λ).

    `dropped` bounds the tilted mass that was left out. Rounding gives each mass a relative error, which `loose` bounds,
    and each loss a relative error, `shift` on the average; the errors of equal invocations may add up.
    """

    count: int
    anchor: float
    start: int
    masses: Floats
    log_mass: float
    dropped: float
    loose: float
    shift: float


@dataclass(frozen=True)
class Atoms:
    """One invocation's losses, on or above the true ones, in any order, and their tilted masses over e^top; `dropped`
    and `loose` as in `Rounded`."""

    losses: Floats
    masses: Floats
    top: float
    dropped: float
    loose: float


def atoms_of(plan: Plan, tilt: float, step: float, fewest: int = 32) -> Atoms:
    """The atoms, and every branch as atoms at the ends of intervals of half a `step`, at least `fewest` per cell."""
    top = float((plan.log_masses + tilt * plan.losses).max())
    losses, masses, cells = [plan.law.atoms], [np.exp(plan.law.log_masses + tilt * plan.law.atoms - top)], 0
    for places in plan.places:
        exponents = places.log_masses + tilt * places.losses - top
        kept = np.flatnonzero(exponents > -_KEPT)
        cells += len(exponents)
        if len(kept):
            first, last = int(kept[0]), int(kept[-1]) + 1
            edges = _intervals(places, first, last, plan.count * np.exp(exponents[first:last]), step, fewest)
            at_edges, masses_there = _on_edges(places.branch, edges, tilt, top)
            losses.append(at_edges)
            masses.append(masses_there)
    found, weights = np.concatenate(losses), np.concatenate(masses)
    total = float(weights.sum())
    if not 0 < total < math.inf:
        raise ArithmeticError("losses so rare or so far apart that no lattice of doubles holds them")
    usual = tilt * float(np.dot(weights, np.abs(found))) / total
    return Atoms(found, weights, top, 8 * cells * math.exp(-_KEPT) / total, UNIT * (16 + 4 * (abs(top) + usual)))


def round_up(plan: Plan, tilt: float, step: float) -> Rounded:
    """One invocation on the lattice: its curve lies on or above the true one."""
    atoms = atoms_of(plan, tilt, step)
    anchor = float(atoms.losses[np.argmax(atoms.masses)])  # where most mass is nothing is split
    steps = (atoms.losses - anchor) / step
    index = np.floor(steps + 1e-9)  # what lies within 1e-9 Δ below a point is moved up to it
    start = int(index.min())
    cell = (index - start).astype(np.int64)
    down, up = split(np.clip((steps - index) * step, 0.0, step), np.full(1, step), tilt)
    size = int(cell.max()) + 2
    if size > _MOST_CELLS:
        raise ArithmeticError(f"losses that lie on {size:.3g} cells of a lattice, more than {_MOST_CELLS}")
    lattice = np.bincount(cell, atoms.masses * down, size) + np.bincount(cell + 1, atoms.masses * up, size)
    lattice = lattice[:-1] if lattice[-1] == 0 else lattice
    mass = float(lattice.sum())
    shift = 4 * UNIT * float(np.dot(atoms.masses, np.abs(atoms.losses)) / atoms.masses.sum())
    log_mass = atoms.top + math.log(mass)
    return Rounded(plan.count, anchor, start, lattice / mass, log_mass, atoms.dropped, atoms.loose, shift)


def split(t: Floats, width: Floats, tilt: float) -> tuple[Floats, Floats]:
    """What goes down to 0 and up to `width` of the tilted mass at 0 <= t <= `width`; all of it up where width is 0."""
    whole = -np.expm1(-width)
    with np.errstate(invalid="ignore", divide="ignore"):
        up = np.where(width > 0, -np.expm1(-t) / whole, 1.0)
        down = np.where(width > 0, np.exp(-t) * -np.expm1(t - width) / whole, 0.0)
    return down * np.exp(-tilt * t), up * np.exp(tilt * (width - t))


def _intervals(places: Places, first: int, last: int, expected: Floats, step: float, fewest: int) -> Floats:
    """Edges of intervals of outputs between two of the plan's edges; `expected` is how many losses each cell holds.

    Half a step of the lattice in loss, longer where less than 1e-7 of a loss is expected; and at least `fewest` per
    cell, except where almost nothing is expected: three nodes on a 256th of the scale have an error of 1e-16.
    """
    edges = places.edges[first : last + 1]
    allowed = step / 2 * np.sqrt(np.maximum(1.0, 1e-7 / np.maximum(expected, 1e-300)))
    wanted = np.abs(np.diff(places.branch.loss(edges))) / allowed
    wanted = np.ceil(np.maximum(wanted, np.where(expected > 1e-16, fewest, 1.0)))
    if not wanted.sum() < _MOST_INTERVALS:
        raise ArithmeticError("losses spread too far for a lattice that resolves them")
    pieces = wanted.astype(np.int64)
    within = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    inner = np.repeat(edges[:-1], pieces) + within * np.repeat(np.diff(edges) / pieces, pieces)
    return np.append(inner, edges[-1])


def _on_edges(branch: Branch, edges: Floats, tilt: float, top: float) -> tuple[Floats, Floats]:
    """The losses at the edges and the tilted masses, over e^top, that the intervals' masses leave there when split."""
    spend(_WORK * len(edges))
    at_edges = branch.loss(edges)
    if at_edges[0] > at_edges[-1]:
        edges, at_edges = edges[::-1], at_edges[::-1]
    widths = np.diff(edges)
    lows, rises = at_edges[:-1], np.maximum(np.diff(at_edges), 0.0)
    masses = np.zeros(len(edges))
    for node, weight in zip(_NODES + 0.5, _WEIGHTS, strict=True):
        x = edges[:-1] + node * widths
        losses = branch.loss(x)
        mass = weight * np.abs(widths) * np.exp(branch.log_density(x) + tilt * losses - top)
        down, up = split(np.clip(losses - lows, 0.0, rises), rises, tilt)
        masses[:-1] += mass * down
        masses[1:] += mass * up
    return at_edges, masses


def mean_and_variance(plans: Sequence[Plan], tilt: float) -> tuple[float, float]:
    """Mean and variance of the tilted sum, approximately."""
    mean = variance = 0.0
    for plan in plans:
        losses, masses = plan.tilted(tilt)
        centre = float(np.dot(masses, losses))
        mean += plan.count * centre
        variance += plan.count * float(np.dot(masses, (losses - centre) ** 2))
    return mean, variance
