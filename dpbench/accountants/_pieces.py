"""A function of ε as polynomials on pieces, found where they are asked for: so that δ can be asked a million times.

On each piece the function is interpolated at 16 Chebyshev points; a piece is halved until the last coefficients are
below 1e-13 of the function's least value there, or below the error that the function itself states, and that error is
small next to the least value, or alike all over the piece. Kinks, where the function is known to bend, are always
ends of pieces.

**Error of an answer**: four times the largest of the last three coefficients, for what the series leaves out, and 2.5
times the largest error at the points (the Lebesgue constant of 16 Chebyshev points is below 2.5).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants._hinges import Floats

POINTS = 16
_LEBESGUE = 2.5
_SHARP, _ROUND = 1e-13, 4e-15  # last coefficients relative to the least and to the largest value
_LEVEL = 2e-10  # errors at the points relative to the least value: pieces on which a curve falls too far are halved
_DEEPEST = 1e-45  # far below any δ that is asked for
_ALIKE = 40.0  # ... or relative to the least error that is stated
_HALVINGS = 40
_OCTAVES = 40
_MOST_PIECES = 2000  # of a cell, at once
_AT_ONCE = 1 << 15


class Curve(Protocol):
    """δ(ε) of one direction at any real ε, with its error; analytic between `kinks`."""

    @property
    def kinks(self) -> Floats:
        """Where it bends, ascending."""
        ...

    def __call__(self, epsilon: Floats) -> tuple[Floats, Floats]:
        """δ and its absolute error at each ε."""
        ...


class PiecewiseCurve(Curve, Protocol):
    """A curve that is a polynomial of degree 15 or less, or next to one, on known pieces."""

    def ends(self, low: float, high: float) -> Floats:
        """The ends of the pieces strictly between `low` and `high`, ascending."""
        ...


@cache
def chebyshev(count: int) -> tuple[Floats, Floats]:
    """Chebyshev points on [−1, 1], ascending, and the matrix from values there to coefficients.

    >>> points, matrix = chebyshev(16)
    >>> bool(np.allclose(matrix @ points, np.eye(16)[1]))
    True
    """
    angles = np.pi * (np.arange(count)[::-1] + 0.5) / count
    matrix = np.cos(np.outer(np.arange(count), angles)) * (2 / count)
    matrix[0] /= 2
    return np.cos(angles), matrix


def series(coefficients: Floats, where: NDArray[np.intp], x: Floats) -> Floats:
    """Σ_k c_k T_k(x) by Clenshaw's recursion, with the row `where` of coefficients for each x.

    >>> series(np.array([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]), np.array([1]), np.array([0.5])).tolist()
    [0.5]
    """
    columns = np.ascontiguousarray(coefficients.T)
    later, last, double = np.zeros_like(x), np.zeros_like(x), 2 * x
    for column in columns[:0:-1]:
        later, last = column[where] + double * later - last, later
    result: Floats = columns[0][where] + x * later - last
    return result


class Pieces:
    """`curve` as polynomials on pieces; `cell` is the width of what is explored at once.

    An error below `floor` is small enough whatever the value. Around 0 no first piece is longer than its distance
    from 0, down to `scale`: on a long one no point might lie where the function does something.
    """

    def __init__(self, curve: Curve, cell: float, floor: float = _DEEPEST, scale: float = math.inf) -> None:
        self.curve, self.kinks, self._cell, self._floor = curve, curve.kinks, cell, floor
        octaves = math.ceil(math.log2(cell / max(scale, 1e-15 * cell))) + 2 if scale < 4 * cell else 0
        marks = cell * 2.0 ** -np.arange(1.0, min(octaves, _OCTAVES) + 1)
        self._marks: Floats = np.concatenate([-marks, marks[::-1]])
        self._known: dict[int, tuple[Floats, Floats, Floats]] = {}
        self._starts = self._widths = self._errors = np.empty(0)
        self._coefficients = np.empty((0, POINTS))

    def __call__(self, epsilon: Floats) -> tuple[Floats, Floats]:
        """The value and its error at each ε."""
        self._explore(np.unique(np.floor(epsilon / self._cell)))
        values, errors = np.empty(len(epsilon)), np.empty(len(epsilon))
        for first in range(0, len(epsilon), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            where = np.searchsorted(self._starts, epsilon[part], side="right") - 1
            x = 2 * (epsilon[part] - self._starts[where]) / self._widths[where] - 1
            values[part] = series(self._coefficients, where, np.clip(x, -1, 1))
            errors[part] = self._errors[where]
        return np.maximum(values, 0.0), errors

    def ends(self, low: float, high: float) -> Floats:
        """The ends of the pieces strictly between `low` and `high`."""
        self._explore(np.arange(math.floor(low / self._cell), math.floor(high / self._cell) + 1.0))
        found: Floats = self._starts[(self._starts > low) & (self._starts < high)]
        return found

    def _explore(self, cells: Floats) -> None:
        new = [int(cell) for cell in cells if int(cell) not in self._known]
        self._known.update({cell: self._explored(cell * self._cell, (cell + 1) * self._cell) for cell in new})
        if new:
            found = [self._known[cell] for cell in sorted(self._known)]
            edges = [ends for ends, _, _ in found]
            self._starts = np.concatenate([ends[:-1] for ends in edges])
            self._widths = np.concatenate([np.diff(ends) for ends in edges])
            self._coefficients = np.concatenate([rows for _, rows, _ in found])
            self._errors = np.concatenate([errors for _, _, errors in found])

    def _explored(self, low: float, high: float) -> tuple[Floats, Floats, Floats]:
        """The ends of one cell's pieces, their coefficients and their errors."""
        points, matrix = chebyshev(POINTS)
        ends = np.unique(np.concatenate([self.kinks, self._marks])) if low <= 0 <= high else self.kinks
        inside = ends[(ends > low) & (ends < high)]
        edges = np.concatenate([[low], inside, [high]])
        starts, stops = edges[:-1], edges[1:]
        kept = []
        for halving in range(_HALVINGS + 1):
            at = starts[:, None] + (stops - starts)[:, None] * (points + 1) / 2
            values, errors = (found.reshape(at.shape) for found in self.curve(at.ravel()))
            rows = values @ matrix.T
            least, largest, wrong = values.min(axis=1), values.max(axis=1), _LEBESGUE * errors.max(axis=1)
            left_out, stated = 4 * np.abs(rows[:, -3:]).max(axis=1), errors.min(axis=1)
            floor = np.maximum(_ROUND * largest, self._floor)
            # rounding within the stated errors is not for halving to mend; a fall beyond them within a piece is
            level = wrong <= np.maximum.reduce([_LEVEL * least, _ALIKE * stated, floor])
            done = level & (left_out <= np.maximum.reduce([_SHARP * least, wrong, floor]))
            done |= stops - starts <= 1e-14 * np.maximum(np.abs(starts), np.abs(stops))
            if halving == _HALVINGS or len(starts) > _MOST_PIECES:
                done[:] = True  # the error says how far off this is
            if done.any():
                error = left_out + wrong + 2 * _ROUND * largest
                kept.append((starts[done], rows[done], error[done]))
            starts, stops = starts[~done], stops[~done]
            if not len(starts):
                break
            middle = (starts + stops) / 2
            starts, stops = (np.ravel(np.column_stack(pair)) for pair in ((starts, middle), (middle, stops)))
        begin, rows, errors = (np.concatenate(column) for column in zip(*kept, strict=True))
        order = np.argsort(begin)
        return np.append(begin[order], high), rows[order], errors[order]
