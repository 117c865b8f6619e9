"""Losses with atoms beside others: δ(ε) of the rest, averaged over the law of the atomic part.

The losses S of Laplace or discrete releases and R of the rest are independent, so that given S = s the composition's
δ is δ_R(ε − s):

    δ(ε) = P(S = ∞) + Σ p_j δ_R(ε − s_j) + ∫ h(s) δ_R(ε − s) ds,

sums of positive terms, which keep the relative error of δ_R; below 0, δ_R is told by the other direction (`anywhere`).
The integral is over pieces on which h is a polynomial and δ_R is smooth: their ends are the places where h bends, and
ε less those where δ_R does. Gauss-Legendre nodes on the pieces and on their halves give two values; a piece where they
differ by more than 1e-12 of the whole is halved again. The last differences are the error.

**Order.** First what has a density, then one Laplace scale after the other, last the discrete pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants.exact.atoms import MOST_SUMS, Atoms, atoms, beyond
from dpbench.accountants.exact.atoms import refusal as atoms_refusal
from dpbench.accountants.exact.direction import Direction, Value, anywhere
from dpbench.accountants.exact.laplace import MOST_RELEASES, MOST_WIDTH, Laplaces, Law, Pieces, bends_of, chebyshev, law
from dpbench.accountants.exact.single import Single, root
from dpbench.errors import DpbenchError
from dpbench.events import DiscretePair, Laplace
from dpbench.guards import ELSEWHERE

Floats = NDArray[np.float64]
Both = tuple[Direction, Direction]  # remove and add; one object where they are alike
_NODES, _SHARP, _HALVINGS = 12, 1e-12, 10
_MOST_PLACES, _MOST_PIECES = 400_000, 20_000  # at which the rest's δ is asked for at once
_POINTS, _FEW = 16, 16  # losses of a pair beside others up to which these are asked at each ε, and no pieces laid
MOST_BESIDE = 100_000  # sums of discrete losses beside others
_U = 2.0**-53
_FAINT = 1e-60  # masses that become part of the error


@cache
def _nodes() -> tuple[Floats, Floats]:
    """Gauss-Legendre nodes and weights on [−1, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return np.asarray(nodes, np.float64), np.asarray(weights, np.float64)


class Rest:
    """δ of the rest at every real ε, from pieces between its bends.

    It is asked at Chebyshev points of pieces, which are halved until the last three of 16 coefficients are within
    1e-12 of the least value on the piece; the error is these and the largest error on the piece.
    """

    def __init__(self, this: Direction, other: Direction, bends: Floats, reach: float) -> None:
        self.this, self.other, self.bends = this, other, bends
        self._cell = 2.0 ** math.ceil(math.log2(reach / 16))
        self._known: dict[int, tuple[Floats, Floats, Floats, Floats]] = {}

    def __call__(self, places: Floats) -> tuple[Floats, Floats]:
        """δ and its error at real ε of any shape."""
        cells = np.unique(np.floor(places / self._cell)).astype(np.int64).tolist()
        new = [cell for cell in cells if cell not in self._known]
        if new:
            self._explore(new)
        starts, widths, rows, wrong = (np.concatenate([self._known[cell][part] for cell in cells]) for part in range(4))
        piece = np.maximum(np.searchsorted(starts, places, side="right") - 1, 0)
        x = np.clip(2 * (places - starts[piece]) / widths[piece] - 1, -1.0, 1.0)
        return chebyshev(rows, piece, x), wrong[piece]

    def _explore(self, cells: list[int]) -> None:
        """Finds the pieces of cells."""
        angles = math.pi * (np.arange(_POINTS) + 0.5) / _POINTS
        matrix = 2 / _POINTS * np.cos(np.outer(np.arange(_POINTS), angles))
        matrix[0] /= 2
        kept = []
        ends = []
        for cell in cells:
            low, high = cell * self._cell, (cell + 1) * self._cell
            bends = self.bends[(self.bends > low) & (self.bends < high)]
            ends.append(np.concatenate([[low], bends, [high]]))
        starts = np.concatenate([one[:-1] for one in ends])
        widths = np.concatenate([np.diff(one) for one in ends])
        owner = np.repeat(np.array(cells), [len(one) - 1 for one in ends])
        for level in range(_HALVINGS):
            if len(starts) > _MOST_PIECES:
                raise DpbenchError(f"losses with atoms beside others: more than {_MOST_PIECES} pieces; {ELSEWHERE}")
            values, errors = self.told(starts[:, None] + widths[:, None] * (1 + np.cos(angles)) / 2)
            rows, least, most = values @ matrix.T, values.min(axis=1), errors.max(axis=1)
            left = 4 * np.abs(rows[:, -3:]).max(axis=1)
            done = (left <= np.maximum(_SHARP * least, np.maximum(most, _FAINT))) | (level == _HALVINGS - 1)
            done &= (most <= np.maximum(_SHARP * least, 4 * errors.min(axis=1) + _FAINT)) | (level == _HALVINGS - 1)
            kept.append(
                (
                    owner[done],
                    starts[done],
                    widths[done],
                    rows[done],
                    (left + 2 * most + 4 * _U * values.max(axis=1))[done],
                )
            )
            owner, widths = np.repeat(owner[~done], 2), np.repeat(widths[~done] / 2, 2)
            starts = np.repeat(starts[~done], 2) + widths * np.tile([0.0, 1.0], int((~done).sum()))
            if not len(starts):
                break
        owner, *columns = (np.concatenate(column) for column in zip(*kept, strict=True))
        order = np.argsort(columns[0])
        for cell in cells:
            some = order[owner[order] == cell]
            self._known[cell] = (columns[0][some], columns[1][some], columns[2][some], columns[3][some])

    def told(self, places: Floats) -> tuple[Floats, Floats]:
        """δ and its error at real ε of any shape, without pieces."""
        if places.size > _MOST_PLACES:
            raise DpbenchError(f"losses with atoms beside others: {places.size} places to ask at; {ELSEWHERE}")
        sorted_places, back = np.unique(places, return_inverse=True)
        told = anywhere(self.this, self.other, sorted_places.tolist())
        values, errors = np.array([one.value for one in told]), np.array([one.error for one in told])
        return values[back].reshape(places.shape), errors[back].reshape(places.shape)


@dataclass(frozen=True)
class Beside:
    """One direction of atomic losses beside a `rest`, which is told in this direction and in the other."""

    part: Atoms | Law
    rest: Rest

    @property
    def largest(self) -> float:
        """The largest finite loss."""
        if not len(self.part.losses):
            return 0.0
        return self.rest.this.largest + float(self.part.losses[-1]) + self.part.loss_error

    def deltas(self, epsilons: Sequence[float]) -> list[Value]:
        """δ at every real ε of `epsilons`."""
        part, at = self.part, np.array(epsilons, dtype=np.float64)
        if not len(part.losses):
            return [Value(1.0, 0.0)] * len(at)
        infinite, apart, density, lost = 0.0, 1e-3, 0.0, 0.0
        if isinstance(part, Atoms):
            infinite = part.infinite
        else:
            apart, density, lost = (
                2 * part.density.width,
                part.density.error,
                part.density.lost * 2 * part.density.bends[-1],
            )
        (shifted, _), (values, errors) = self._means(at - apart, 1), self._means(at, _HALVINGS)
        shifted = 1.1 * shifted  # once halved, for it is part of the error only
        # losses are off by e: δ is convex in e^ε, so that it moves by no more than e times this
        steep = np.maximum(shifted - 1.1 * values, 0.1 * values) / -math.expm1(-apart)
        moved = part.loss_error + 4 * _U * (np.abs(at) + float(np.abs(part.losses).max()))
        values = values + infinite
        errors = errors + 1.1 * moved * steep + density * shifted + lost + (part.mass_error + 64 * _U) * values
        return [Value(value, error) for value, error in zip(values.tolist(), errors.tolist(), strict=True)]

    def epsilon(self, log_delta: float) -> Value:
        """The smallest ε >= 0 with log δ(ε) <= `log_delta`; infinite where the infinite mass is larger."""
        never = beyond(self.part, log_delta) if isinstance(self.part, Atoms) else None
        return root(self.deltas, log_delta) if never is None else never

    def _means(self, at: Floats, halvings: int) -> tuple[Floats, Floats]:
        """The mean of δ_R(ε − s) over the finite losses at each ε, and its error."""
        kept = self.part.masses >= _FAINT
        losses, masses = self.part.losses[kept], self.part.masses[kept]
        rows = max(_MOST_PLACES // len(losses), 1)
        ask = self.rest.told if len(losses) <= _FEW and isinstance(self.part, Atoms) else self.rest
        told = [ask(np.subtract.outer(at[k : k + rows], losses)) for k in range(0, len(at), rows)]
        value = np.concatenate([one @ masses for one, _ in told])
        error = np.concatenate([one @ masses for _, one in told]) + _FAINT * len(kept)
        if isinstance(self.part, Law):
            more, wrong = self._integrals(at, self.part.density, halvings)
            value, error = value + more, error + wrong
        return value, error

    def _integrals(self, at: Floats, density: Pieces, halvings: int) -> tuple[Floats, Floats]:
        """∫ h(s) δ_R(ε − s) ds at each ε, and its error."""
        low, high, ends = density.bends[0], density.bends[-1], []
        for one in at:
            bends = one - self.rest.bends
            ends.append(np.unique(np.concatenate([density.bends, bends[(bends > low) & (bends < high)]])))
        starts, stops = (np.concatenate([one[some] for one in ends]) for some in (slice(None, -1), slice(1, None)))
        owner = np.repeat(np.arange(len(at)), [len(one) - 1 for one in ends])
        found, errors, (values, _) = np.zeros(len(at)), np.zeros(len(at)), self._gauss(at[owner], starts, stops)
        for level in range(halvings):
            middle, twice = (starts + stops) / 2, np.concatenate([owner, owner])
            starts, stops = np.concatenate([starts, middle]), np.concatenate([middle, stops])
            halves, wrong = self._gauss(at[twice], starts, stops)
            off = np.abs(halves[: len(owner)] + halves[len(owner) :] - values)
            whole = found + np.bincount(twice, halves, len(at))
            done = (off <= _SHARP * whole[owner]) | (level == halvings - 1)
            both = np.concatenate([done, done])
            found += np.bincount(twice[both], halves[both], len(at))
            errors += np.bincount(owner[done], off[done], len(at)) + np.bincount(twice[both], wrong[both], len(at))
            starts, stops, values, owner = starts[~both], stops[~both], halves[~both], twice[~both]
            if not len(owner):
                break
        return found, errors

    def _gauss(self, at: Floats, starts: Floats, stops: Floats) -> tuple[Floats, Floats]:
        """The sums over Gauss-Legendre nodes between each start and stop, and what the rest's errors come to."""
        assert isinstance(self.part, Law)
        nodes, weights = _nodes()
        half = (stops - starts)[:, None] / 2
        losses = starts[:, None] + half * (1 + nodes)
        measure = half * weights * np.maximum(self.part.density(losses.ravel()), 0.0).reshape(losses.shape)
        value, error = ((measure * one).sum(axis=1) for one in self.rest(at[:, None] - losses))
        return value, error


def refusal(
    laplaces: Sequence[tuple[Laplace, int]], pairs: Sequence[tuple[DiscretePair, int]], beside: bool
) -> str | None:
    """Why such losses, alone or `beside` others, are too many or too large; None where they are not.

    >>> refusal([(Laplace(2.0), 30)], [], beside=False) is None
    True
    """
    alone = [count for _, count in laplaces] == [1] and not pairs and not beside
    for event, count in laplaces:
        if count > MOST_RELEASES:
            return f"count = {count}: exact sums of Laplace losses go to {MOST_RELEASES}; use the lattice accountant"
        if event.relative_noise < 1 / MOST_WIDTH and not alone:
            shown = f"noise / sensitivity = {event.relative_noise!r}"
            return f"{shown}: exact sums of Laplace losses go down to {1 / MOST_WIDTH}; use the lattice accountant"
    return atoms_refusal(pairs, MOST_BESIDE if beside or laplaces else MOST_SUMS)


def atomic(
    laplaces: Sequence[tuple[Laplace, int]], pairs: Sequence[tuple[DiscretePair, int]], rest: Both | None
) -> Both:
    """Both directions of Laplace and discrete releases, merged and none of them silent, beside a `rest` or alone.

    Where both are alike they are one object.

    Raises DpbenchError where `refusal` has a reason.

    >>> round(atomic([(Laplace(2.0), 2)], [], None)[0].deltas([0.5])[0].value, 9)
    0.123849119
    """
    reason = refusal(laplaces, pairs, rest is not None)
    if reason is not None:
        raise DpbenchError(reason)
    bends = np.empty(0)
    for event, count in sorted(laplaces, key=lambda scale: scale[1]):
        noise = event.relative_noise
        if rest is None:
            curve = Laplaces(noise, count) if count > 1 or len(laplaces) > 1 or pairs else Single(event, 0)
            rest, bends = (curve, curve), bends_of(noise, count)
        else:
            part = law(noise, count)
            rest = _joined(part, part, rest, bends)
            bends = np.unique(np.add.outer(bends, part.losses))
    if pairs:
        sums = atoms(pairs, 0), atoms(pairs, 1)
        rest = sums if rest is None else _joined(*sums, rest, bends)
    assert rest is not None  # something is released
    return rest


def _joined(first: Atoms | Law, second: Atoms | Law, rest: Both, bends: Floats) -> Both:
    """Both directions of an atomic part beside a rest; one object where both are alike."""
    reach = max(float(np.ptp(first.losses)), 1e-9) if len(first.losses) else 1.0
    remove = Beside(first, Rest(rest[0], rest[1], bends, reach))
    if rest[0] is rest[1] and first is second:
        return remove, remove
    return remove, Beside(second, Rest(rest[1], rest[0], bends, reach))
