"""δ(ε) of one direction where losses with atoms meet others: the rest's δ, averaged over the atomic part's law.

| here | meaning |
| --- | --- |
| S, R | the loss of the discrete and Laplace releases, and that of all the rest, independent under P |
| δ_R | the rest's δ(ε), for every real ε |

Given S = s the composition's δ is δ_R(ε − s), so that

    δ(ε) = Σ_j p_j δ_R(ε − s_j) + ∫ h(s) δ_R(ε − s) ds + P(S = ∞),

sums of positive terms, which keep the relative error of δ_R. Below 0 the two directions meet: with the rest's pair
exchanged, δ_R(ε) = 1 − e^ε + e^ε δ_R'(−ε), again of positive terms. Nothing at all has δ(ε) = (1 − e^ε)₊.

**Order.** First the rest; then one Laplace scale after the other, each an average of the curve before it, kept as
polynomials on pieces (`_pieces`); last the discrete sums (`_atoms`). With a density among the releases δ_R is analytic,
without one it bends where the loss before had an atom: those places are ends of pieces.

**Quadrature.** Between knots of h and ends of δ_R's pieces both are polynomials, of degree 31 and 15: Gauss-Legendre
with 24 nodes is exact for their product, and leaves only their own errors, which are averaged likewise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from dpbench.accountants._atoms import Sums
from dpbench.accountants._direction import Direction
from dpbench.accountants._hinges import Floats, log_hinge
from dpbench.accountants._laplace_law import LaplaceLaw
from dpbench.accountants._pieces import Curve, Pieces, PiecewiseCurve
from dpbench.accountants._work import spend
from dpbench.events import Event, Gaussian

_NODES = 24
_UNIT = 2.0**-53
_RELATIVE = 2e-11  # `_hinges` states 1e-11, and tests hold it to that
_GAUSSIAN = 1e-12  # the same of one Gaussian: within 3e-13 of `_gaussian_curve`, which has its own ends
_NOTHING = -110.0  # log of a δ that no answer needs: it becomes part of the error
_FAINT = -80.0  # the same where lines are dear
_LEAST_MASS = 1e-60
_TOGETHER = 16  # ε of an average at once
_CELLS = 1 << 18  # of an array of sums
_FEW = 64  # sums up to which the curve before is asked itself, not its pieces
_FLOOR = 1e-20


@cache
def _gauss() -> tuple[Floats, Floats]:
    """Gauss-Legendre nodes and weights on [−1, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return np.asarray(nodes, np.float64), np.asarray(weights, np.float64)


class Nothing:
    """No release: δ(ε) = (1 − e^ε)₊."""

    kinks = np.zeros(1)

    def __call__(self, epsilon: Floats) -> tuple[Floats, Floats]:
        """δ and its rounding."""
        values: Floats = -np.expm1(np.minimum(epsilon, 0.0))
        return values, 2 * _UNIT * values

    def ends(self, low: float, high: float) -> Floats:
        """The bend at 0."""
        found: Floats = self.kinks[(self.kinks > low) & (self.kinks < high)]
        return found


@dataclass(frozen=True)
class Closed:
    """One release with a closed form; direction 0 is remove, 1 is add."""

    event: Event
    direction: int

    @property
    def scale(self) -> float:
        """How wide the least is that it does."""
        return 1 / self.event.relative_noise if isinstance(self.event, Gaussian) else 0.0

    @property
    def kinks(self) -> Floats:
        """None: what ends a range of losses does so with all derivatives."""
        return np.empty(0)

    def __call__(self, epsilon: Floats) -> tuple[Floats, Floats]:
        """δ and its error; what is below every answer is left in the error."""
        logs = np.minimum(log_hinge(self.event, epsilon, self.direction), 0.0)
        relative = _GAUSSIAN if isinstance(self.event, Gaussian) else _RELATIVE
        values: Floats = np.exp(logs)
        errors: Floats = np.where(logs < _NOTHING, values, relative * values)
        return np.where(logs < _NOTHING, 0.0, values), errors


@dataclass(frozen=True)
class Contours:
    """Many releases by contours: their direction, and the other one for what lies below 0."""

    forward: Direction
    backward: Direction

    @property
    def scale(self) -> float:
        """How wide the least is that it does: of the bulk, without rare large losses."""
        return min(self.forward.transform.spread, self.backward.transform.spread)

    @property
    def kinks(self) -> Floats:
        """Where the losses end: δ is 0 beyond, or 1 − e^ε."""
        ends = np.array([-self.backward.transform.largest_loss, self.forward.transform.largest_loss])
        found: Floats = ends[np.isfinite(ends)]
        return found

    def __call__(self, epsilon: Floats) -> tuple[Floats, Floats]:
        """δ and its error: 1 − e^ε + e^ε δ'(−ε) below 0."""
        below = epsilon < 0
        values, errors = np.zeros_like(epsilon), np.zeros_like(epsilon)
        values[~below], errors[~below] = _ascending(self.forward, epsilon[~below])
        other, wrong = _ascending(self.backward, -epsilon[below])
        growth = np.exp(epsilon[below])
        values[below] = -np.expm1(epsilon[below]) + growth * other
        errors[below] = growth * wrong + 4 * _UNIT * values[below]
        return values, errors


def _ascending(way: Direction, epsilon: Floats) -> tuple[Floats, Floats]:
    """δ and its error at ε >= 0 in any order; where Chernoff's bound is below every answer, that is the error."""
    places, back = np.unique(epsilon, return_inverse=True)
    bounds = np.array(way.bounds(places.tolist()))
    near = bounds >= _FAINT
    values, errors = np.zeros_like(places), np.exp(np.minimum(bounds, 0.0))
    found = way.deltas(places[near].tolist())
    values[near], errors[near] = [one.value for one in found], [one.error for one in found]
    return values[back], errors[back]


@dataclass(frozen=True)
class WithLaplace:
    """The releases of `rest` and one scale of Laplace releases."""

    rest: PiecewiseCurve
    law: LaplaceLaw

    @property
    def kinks(self) -> Floats:
        """Sums of the rest's and the atoms."""
        found: Floats = np.unique(np.add.outer(self.rest.kinks, self.law.knots))
        return found

    def __call__(self, epsilon: Floats) -> tuple[Floats, Floats]:
        """δ and its error at each ε."""
        results = np.zeros((2, len(epsilon)))
        for first in range(0, len(epsilon), _TOGETHER):
            some = slice(first, first + _TOGETHER)
            results[:, some] = self._together(epsilon[some])
        return results[0], results[1]

    def _together(self, epsilon: Floats) -> tuple[Floats, Floats]:
        """Of several ε, with the nodes of all in one array: S pieces of all integrals, N nodes of each."""
        law, (nodes, weights) = self.law, _gauss()
        low, high = float(law.knots[0]), float(law.knots[-1])
        ends = [
            np.unique(np.concatenate([law.knots, one - self.rest.ends(one - high, one - low)]))
            for one in epsilon.tolist()
        ]
        counts = np.array([len(one) - 1 for one in ends])
        starts, stops = (np.concatenate([one[part] for one in ends]) for part in (slice(None, -1), slice(1, None)))
        half = (stops - starts) / 2
        losses = (starts + half)[:, None] + half[:, None] * nodes
        spend(losses.size)
        density, wrong = (found.reshape(losses.shape) for found in law.density(losses.ravel()))
        inside = (np.repeat(epsilon, counts)[:, None] - losses).ravel()
        values, errors = self.rest(np.concatenate([inside, np.subtract.outer(epsilon, law.knots).ravel()]))
        value, error = values[: len(inside)].reshape(losses.shape), errors[: len(inside)].reshape(losses.shape)
        measure = half[:, None] * weights
        first = np.concatenate([[0], np.cumsum(counts)[:-1]])
        terms = (density * value, density * error + wrong * value)
        inner, off = (np.add.reduceat((measure * term).sum(axis=1), first) for term in terms)
        atoms, loose = (found[len(inside) :].reshape(len(epsilon), -1) @ law.masses for found in (values, errors))
        total: Floats = inner + atoms
        return total, off + loose + law.mass_error * atoms + (counts * len(nodes) + 8) * _UNIT * total


@dataclass(frozen=True)
class WithSums:
    """The releases of `rest` and discrete ones; their sums' errors are for `Side` to count."""

    rest: Curve
    sums: Sums

    @property
    def kinks(self) -> Floats:
        """Sums of the rest's and the atoms."""
        found: Floats = np.unique(np.add.outer(self.rest.kinks, self.sums.losses))
        return found

    def __call__(self, epsilon: Floats) -> tuple[Floats, Floats]:
        """δ and its error at each ε."""
        results = np.zeros((2, len(epsilon)))
        rows = max(1, _CELLS // max(len(self.sums.losses), 1))
        for first in range(0, len(epsilon), rows):
            some = slice(first, first + rows)
            places = np.subtract.outer(epsilon[some], self.sums.losses)
            values, errors = (found.reshape(places.shape) @ self.sums.masses for found in self.rest(places.ravel()))
            results[:, some] = values + self.sums.infinite, errors
        return results[0], results[1]


@dataclass(frozen=True)
class Side:
    """One direction of the whole composition: the truth lies between (1 − η)(δ(ε + e) − r) and (1 + η)(δ(ε − e) + r).

    e is `loss_error`, η `mass_error`, r the error of the value itself, to which `dropped` is added above.
    """

    curve: Curve
    loss_error: float
    mass_error: float
    infinite: float
    dropped: float

    def delta(self, epsilon: float) -> tuple[float, float, float]:
        """The value at a real ε, a lower and an upper end."""
        value, lower, upper = self.deltas(np.array([epsilon]))
        return float(value[0]), float(lower[0]), float(upper[0])

    def deltas(self, epsilon: Floats) -> tuple[Floats, Floats, Floats]:
        """The same at several ε: what `curve` has to find out before it can answer, it finds out for all of them."""
        shift = self.loss_error + 2 * _UNIT * np.abs(epsilon)
        values, errors = (
            found.reshape(3, -1) for found in self.curve(np.concatenate([epsilon, epsilon + shift, epsilon - shift]))
        )
        value: Floats = values[0]
        lower = (1 - self.mass_error) * (values[1] - errors[1])
        upper = (1 + self.mass_error) * (values[2] + errors[2]) + self.dropped
        return value, np.maximum(np.minimum(lower, value), 0.0), np.maximum(upper, value)


def side(rest: Closed | Contours | None, scales: Sequence[tuple[float, int]], sums: Sums | None) -> Side:
    """One direction: `rest` (None for no other release), Laplace scales with their counts, the discrete sums."""
    reach = math.fsum(2 * count / noise for noise, count in scales)
    reach += float(np.ptp(sums.losses)) if sums is not None and len(sums.losses) else 0.0
    cell = 2.0 ** math.ceil(math.log2(reach / 8)) if reach else 1.0  # the width of what is explored at once
    curve: PiecewiseCurve = (
        Nothing() if rest is None else Pieces(rest, cell, 1e-34 if isinstance(rest, Contours) else 1e-45, rest.scale)
    )
    floor = _FLOOR if isinstance(rest, Contours) else 1e-45  # lines end in an absolute error: no use in less
    total: Curve = curve
    loss_error = mass_error = infinite = dropped = 0.0
    for place, (noise, count) in enumerate(ordered(scales)):
        law = LaplaceLaw(noise, count)
        total = WithLaplace(Pieces(total, cell, floor) if place else curve, law)
        loss_error += law.loss_error
    if sums is not None:
        kept = sums.masses >= _LEAST_MASS
        dropped = sums.dropped + float(sums.masses[~kept].sum())
        reduced = replace(sums, losses=sums.losses[kept], masses=sums.masses[kept])
        if scales and len(reduced.losses) > _FEW:
            total = Pieces(total, cell, floor)
        total = WithSums(total, reduced)
        loss_error, mass_error, infinite = loss_error + sums.loss_error, sums.mass_error, sums.infinite
    return Side(total, loss_error, mass_error, infinite, dropped)


def ordered(scales: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """The scales with the fewest releases first: each but the last puts its knots among the bends of what follows."""
    return sorted(scales, key=lambda scale: (scale[1], scale[0]))
