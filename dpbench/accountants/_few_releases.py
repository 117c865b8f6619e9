"""δ(ε) of a few equal releases by one integral over a release at a time: no transform, no contour.

| here | meaning |
| --- | --- |
| F_k(ε) | δ of k releases at any real ε |
| y, x | one more release's place, and the place with ε − loss(y) = k loss(x) |
| u | y − x |

Of k + 1 releases δ is E_P[F_k(ε − loss(y))]. Both F_k(k loss(x)), as a function of x, and loss are smooth where F_k as
a function of ε is not: next to the loss that nothing drawn has. So the integral runs along the curve loss(y) + k
loss(x) = ε by u, over which y and x increase and decrease: with dy/du = k loss'(x) / (loss'(y) + k loss'(x)),

    F_(k+1)(ε) = ∫ p(y) F_k(k loss(x)) dy/du du.

Beyond an end u_1, where F_k(e) = 1 − e^e but for a rest r(e) = E_P[(e^(e−L) − 1)₊] <= k Q(X < x), e < 0,

    ∫_(y > y_1) p(y) (1 − e^(ε − loss(y))) dy = F_1(loss(y_1)) + e^ε (e^(−k loss(x_1)) − 1) Q(X > y_1)

is added: positive terms. Before the other end F_k(ε − loss(y)) falls as y does.

**Errors.** Gauss-Legendre panels of 20 nodes are exact to degree 39; each one's error is taken to be its width times
the largest of the last three of its 20 Legendre coefficients, and what has too much of it is halved. Added are: before
the first end P(Y < y_0) F_k(k loss(x_0)); after the last P(Y > y_1) min(1, k Q(X < x_1)) where e < 0 and P(Y > y_1)
else; the errors of F_k, and the rounding: 2e-11 of F_1 (`_hinges`), and one unit for each unit in the exponents.
F_k for k > 1 is kept as log F_k on pieces of x, 22 Chebyshev points each: its error is four times the largest of the
last three coefficients, three times (the Lebesgue constant) what is its integral's own, and once what F_(k−1) passes
on: an integral of positive terms has no larger relative error than its terms, and takes it over smoothly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants._few_pair import Pair
from dpbench.accountants._hinges import Floats
from dpbench.accountants._pieces import chebyshev, series

_UNIT = 2.0**-53
_NODES, _COARSE = 20, 96
_RELATIVE = 2e-11
_CUT = math.log(1e-13)  # what the ends leave out, relative to a rough value
_SHARP = 2e-13  # error of a panel relative to the whole
_HALVINGS = 12
_POINTS, _LEBESGUE = 22, 3.0  # of a piece; the Lebesgue constant of so many Chebyshev points is below 3
_PARTS, _TAIL = (1, 3), 1e-11  # pieces of a cell, and last coefficients that ask for no more of them
_FLAT = math.log(1e-13)  # r(e) relative to 1 − e^e: F_k is that
_NOTHING = -600.0  # log of an F_k that no integral needs: its bound k P(X > x) stands for it


@cache
def rule() -> tuple[Floats, Floats, Floats]:
    """Gauss-Legendre nodes and weights on [−1, 1], and the matrix from values to the last three coefficients."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    degrees = np.arange(_NODES - 3, _NODES)
    basis = np.polynomial.legendre.legvander(nodes, _NODES - 1)[:, degrees]
    return nodes, weights, (weights[:, None] * basis) * (degrees + 0.5)


class Before(Protocol):
    """log F_k(k loss(x)) and the relative error of F_k."""

    def __call__(self, x: Floats) -> tuple[Floats, Floats]:
        """Both, at each x."""
        ...


@dataclass(frozen=True)
class One:
    """F_1."""

    pair: Pair

    def __call__(self, x: Floats) -> tuple[Floats, Floats]:
        """From the closed form."""
        return self.pair.log_hinge(x), np.full_like(x, _RELATIVE)


@dataclass(frozen=True)
class Sum:
    """F_(k+1) of `count` = k + 1 releases from F_k."""

    pair: Pair
    count: int
    before: Before

    def log_delta(self, epsilon: Floats) -> tuple[Floats, Floats]:
        """log δ at any real ε in one dimension, and its relative error."""
        logs, passed, own = self.parts(epsilon)
        return logs, passed + own

    def parts(self, epsilon: Floats, excess: Floats | None = None) -> tuple[Floats, Floats, Floats]:
        """log δ, the relative error that F_k has passed on, and one's own; `excess` is ε less the end of the losses."""
        pair = self.pair
        if excess is None:
            end = pair.least if math.isfinite(pair.least) else pair.largest
            excess = epsilon - self.count * end if math.isfinite(end) else epsilon
        inside = np.ones(len(epsilon), dtype=np.bool_)
        if math.isfinite(pair.least) or math.isfinite(pair.largest):
            inside = excess > 0 if math.isfinite(pair.least) else excess < 0
        with np.errstate(divide="ignore"):
            logs = np.where(epsilon < 0, np.log(-np.expm1(np.minimum(epsilon, 0.0))), -np.inf)
        passed, own = np.zeros_like(logs), np.full_like(logs, 4 * _UNIT)
        if inside.any():
            logs[inside], passed[inside], own[inside] = self._inside(epsilon[inside], excess[inside])
        return logs, passed, own

    def _curve(self, u: Floats, excess: Floats, start: Floats | None = None) -> tuple[Floats, Floats, Floats, Floats]:
        """y, x, log of the integrand and the relative error of F_k."""
        k = self.count - 1
        y = self.pair.balance(u, k, excess, start)
        x = y - u
        logs, errors = self.before(x.ravel())
        logs, errors = logs.reshape(u.shape), errors.reshape(u.shape)
        _, rise = self.pair.loss(y)
        _, slope = self.pair.loss(x)
        with np.errstate(divide="ignore", invalid="ignore"):
            speed = np.log(k * slope) - np.log(rise + k * slope)
            found = self.pair.log_density(y) + logs + speed
        return y, x, np.where(np.isnan(found), -np.inf, found), errors

    def _inside(self, epsilon: Floats, excess: Floats) -> tuple[Floats, Floats, Floats]:
        start, stop, fixed, scale, left_out, reach, places = self._ends(epsilon, excess)
        pair = self.pair
        width = min(1.5 * pair.sigma, 2.0 * pair.sigma**2)
        panels = np.maximum(np.ceil((stop - start) / width), 1).astype(int)
        owner = np.repeat(np.arange(len(epsilon)), panels)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(panels) - panels, panels)
        size = ((stop - start) / panels)[owner]
        low = start[owner] + number * size
        nodes, weights, last = rule()
        total, wrong, rounding, passed = (np.zeros_like(epsilon) for _ in range(4))
        for halving in range(_HALVINGS + 1):
            u = low[:, None] + size[:, None] * (nodes + 1) / 2
            near = _between(u, reach[owner], places, owner)
            y, _, logs, errors = self._curve(u, np.broadcast_to(excess[owner][:, None], u.shape), near)
            values = np.exp(logs - scale[owner][:, None])
            part = values @ weights * size / 2
            off = np.abs(values @ last).max(axis=1) * size
            exponents = _UNIT * (32 + 4 * np.abs(logs) + 4 * np.abs(y) / pair.sigma**2 * pair.members[-1])
            loose = (values * exponents) @ weights * size / 2
            given = (values * errors) @ weights * size / 2
            done = off <= np.maximum(_SHARP, loose + given)
            if halving == _HALVINGS:
                done[:] = True
            for into, what in ((total, part), (wrong, off), (rounding, loose), (passed, given)):
                into += np.bincount(owner[done], what[done], len(epsilon))
            low, size, owner = low[~done], size[~done] / 2, owner[~done]
            if not len(low):
                break
            low, size, owner = np.concatenate([low, low + size]), np.tile(size, 2), np.tile(owner, 2)
        closed = np.exp(fixed - scale)
        value = total + closed
        own = wrong + rounding + np.exp(left_out - scale) + 64 * _UNIT * value
        return scale + np.log(value), (passed + closed * _RELATIVE) / value, own / value

    def _ends(self, epsilon: Floats, excess: Floats) -> tuple[Floats, ...]:
        """u_0, u_1, logs of the closed part, of a rough value and of what is left out at most; a grid and its y."""
        pair, k = self.pair, self.count - 1
        middle = pair.balance(np.zeros_like(epsilon), k, excess)
        reach = 2.0 * np.abs(middle) + 16 * pair.sigma + 2 * pair.members[-1]
        for _ in range(8):
            grid = reach[:, None] * np.linspace(-1, 1, _COARSE)
            y, x, logs, _ = self._curve(grid, np.broadcast_to(excess[:, None], grid.shape))
            fixed, after = self._beyond(y, x, epsilon[:, None])
            before = pair.log_below(y) + self.before(x.ravel())[0].reshape(x.shape)
            rough = np.logaddexp(np.logaddexp.reduce(logs, axis=1) + np.log(grid[:, 1] - grid[:, 0]), fixed[:, -1])
            low, high = before <= rough[:, None] + _CUT, after <= rough[:, None] + _CUT
            enough = low[:, 0] & high[:, -1]
            if enough.all():
                break
            reach = np.where(enough, reach, 2 * reach)
        rows = np.arange(len(epsilon))
        first = np.maximum(np.argmin(low, axis=1) - 1, 0)
        last = np.minimum(high.shape[1] - np.argmin(high[:, ::-1], axis=1), high.shape[1] - 1)
        left_out = np.logaddexp(before[rows, first], after[rows, last])
        return grid[rows, first], grid[rows, last], fixed[rows, last], rough, left_out, reach, y

    def _beyond(self, y: Floats, x: Floats, epsilon: Floats) -> tuple[Floats, Floats]:
        """log of what lies beyond y in closed form, and log of the bound of the rest."""
        pair, k = self.pair, self.count - 1
        there, _ = pair.loss(x)
        reached = there < 0
        rest = pair.log_above(y)
        with np.errstate(divide="ignore", over="ignore"):
            lifted = epsilon + np.log(np.expm1(np.where(reached, -k * there, 0.0))) + pair.log_above(y, second=True)
        closed = np.where(reached, np.logaddexp(pair.log_hinge(y), lifted), -np.inf)
        smaller = np.minimum(math.log(k) + pair.log_below(x, second=True), 0.0)
        return closed, rest + np.where(reached, smaller, 0.0)


def _between(u: Floats, reach: Floats, places: Floats, owner: NDArray[np.intp]) -> Floats:
    """y at u, by a straight line between those of the grid: where to look for it."""
    steps = places.shape[1] - 1
    at = np.clip((u / reach[:, None] + 1) * (steps / 2), 0, steps - 1e-9)
    low = at.astype(np.intp)
    row = owner[:, None]
    first = places[row, low]
    result: Floats = first + (places[row, low + 1] - first) * (at - low)
    return result


@dataclass
class Kept:
    """log F_k(k loss(x)) as polynomials on pieces of x, found where they are asked for.

    A cell of x is one piece, or as many of `_PARTS` as its polynomials ask for; `_known` has its first row and these.
    """

    sum: Sum
    _known: dict[int, tuple[int, int]] = field(default_factory=dict, repr=False)
    _rows: Floats = field(default_factory=lambda: np.empty((0, _POINTS)), repr=False)
    _errors: Floats = field(default_factory=lambda: np.empty(0), repr=False)

    def __call__(self, x: Floats) -> tuple[Floats, Floats]:
        """Both, at each x."""
        pair, count = self.sum.pair, self.sum.count
        loss, _ = pair.loss(x)
        most = math.log(count) + pair.log_above(x)
        with np.errstate(divide="ignore"):
            least = np.where(loss < 0, np.log(-np.expm1(np.minimum(count * loss, 0.0))), -np.inf)
        rest = math.log(count) + pair.log_below(x, second=True)
        flat = rest < least + _FLAT
        logs, errors = np.where(flat, least, most), np.where(flat, math.exp(_FLAT) + 8 * _UNIT, 1.0)
        asked = ~flat & (most > _NOTHING)
        if asked.any():
            logs[asked], errors[asked] = self._found(x[asked])
        return logs, errors

    def _found(self, x: Floats) -> tuple[Floats, Floats]:
        pair = self.sum.pair
        width = min(1.5 * pair.sigma, 1.5 * pair.sigma**2)
        cells = np.floor(x / width).astype(np.int64)
        found, back = np.unique(cells, return_inverse=True)
        new = [int(cell) for cell in found if int(cell) not in self._known]
        for parts in _PARTS:
            new = self._find(np.array(new, dtype=np.int64), parts, width) if new else new
        first, split = (np.array([self._known[int(cell)] for cell in found])[back.ravel()]).T
        inside = (x / width - cells) * split
        part = np.clip(np.floor(inside).astype(np.int64), 0, split - 1)
        place = np.clip(2 * (inside - part) - 1, -1, 1)
        return np.minimum(series(self._rows, first + part, place), 0.0), self._errors[first + part]

    def _find(self, cells: NDArray[np.int64], parts: int, width: float) -> list[int]:
        """The polynomials of new cells in so many parts; those cells for which that is too few."""
        pair, count = self.sum.pair, self.sum.count
        points, matrix = chebyshev(_POINTS)
        at = (cells[:, None, None] + (np.arange(parts)[:, None] + (points + 1) / 2) / parts) * width
        places = at.ravel()
        logs, passed, own = self.sum.parts(count * pair.loss(places)[0], count * pair.excess(places)[0])
        rows = np.maximum(logs, 2 * _NOTHING).reshape(at.shape) @ matrix.T
        last = 4 * np.abs(rows[..., -3:]).max(axis=-1)
        wrong = last + passed.reshape(at.shape).max(axis=-1) + _LEBESGUE * own.reshape(at.shape).max(axis=-1)
        short = []
        sharp = np.maximum(_TAIL, _LEBESGUE * own.reshape(at.shape).max(axis=-1))
        more = (last > sharp).any(axis=-1)
        for cell, some, short_of, error in zip(cells.tolist(), rows, more.tolist(), wrong, strict=True):
            if short_of and parts < _PARTS[-1]:
                short.append(cell)
                continue
            self._known[cell] = (len(self._rows), parts)
            self._rows, self._errors = np.concatenate([self._rows, some]), np.concatenate([self._errors, error])
        return short


def few(pair: Pair, count: int) -> Sum:
    """δ of `count` >= 2 releases."""
    before: Before = One(pair)
    for k in range(2, count):
        before = Kept(Sum(pair, k, before))
    return Sum(pair, count, before)
