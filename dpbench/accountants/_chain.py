"""Whole curves where few losses are large: the law in parts by the size of its losses, each with lines of its own.

One line does not serve M where large losses reach far beyond the bulk: to the left of their wall the integrand is far
above δ(ε). A chain of windows (`Transform.split`), from the largest losses to the smallest, splits M once for all ε,

    M = (M − A₁) + (A₁ − A₂) + … + A_n,

so that each difference holds losses of a few octaves, the tail of a part falls about as fast as its Chernoff bound
does, and one line of a part serves δ over many e-folds. `_inversion` splits M anew for each of its aims, as deep as
that one asks; a chain is for many ε together. What a part's line may leave out is relative to δ(ε) of the whole: at
first the sum of the parts' saddle points, then, where that served too few ε, what the chain has found. A wrong estimate
costs time and nothing else: the error that the lines state tells what they serve.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants._contour import MOST_NODES, NOTHING, Transform
from dpbench.accountants._inversion import Dropped, Inversion, Piece, Task, hard, heights, narrow
from dpbench.accountants._loss_leaf import Floats
from dpbench.accountants._plan import PRECISION, Aim, Plan

SHARED = 3e-10  # error relative to δ up to which one line serves many ε of a curve
_LEAST, _ROUGHLY = 1e-12, 1e-4  # δ below which its absolute error counts, and relative error there
_OCTAVES = (3, 2, 1)  # between the heights of two windows: fewer where one line would not serve a part
_LONGEST = 10  # windows
_ROUNDS, _TOLD, _FEWEST = 3, 0.1, 4  # chains for what is left, where its error is that small, of so many ε
_LOST, _MOST_LOST = (
    math.log(3e-11),
    math.log(1e-9),
)  # rounding relative to δ on a line, at first, and where all lose much
_ABOVE_LEAST = 2.5  # of what is lost then
_SLACK = 3.0  # how much lower log δ may be than a chord between the ends of what a line serves
_NODES = 3000  # of a line, at most
_FEW = math.log(30)  # releases: with fewer M falls too slowly for one line of a part
_WIDE, _STEEP = 0.5, 8.0  # variance over ε², and rise of the mean over the variance, of a part with a saddle point


@dataclass(frozen=True)
class Answers:
    """δ at several ε with its error, infinite where nothing is known, and the lines of the lowest of them."""

    values: Floats
    errors: Floats
    lines: Inversion

    @property
    def told(self) -> NDArray[np.bool_]:
        """Where the error is small enough for a curve: relative to δ, or to the least δ that has to be told."""
        tiny = (self.values < _LEAST) & (self.errors <= _ROUGHLY * self.values)
        result: NDArray[np.bool_] = tiny | (self.errors <= SHARED * self.values)
        return result


@dataclass(frozen=True)
class _Part:
    """One part: its transform, how far up its lines go at most, and what its ladder tells at every ε."""

    transform: Transform
    height: float
    log_delta: Floats  # about
    log_bound: Floats
    level: Floats  # log of the rounding error on each of some lines: [E, lines]

    @classmethod
    def of(
        cls, transform: Transform, height: float, epsilons: Floats, told: tuple[Floats, Floats] | None = None
    ) -> _Part:
        """What the ladder tells."""
        log_delta, lost = told or transform.served(epsilons)
        bound = transform.ladder(float(epsilons[-1])).log_bound(epsilons)
        return cls(transform, height, np.minimum(log_delta, bound), bound, lost + log_delta[:, None])

    def reached(self, log_delta: Floats) -> NDArray[np.bool_]:
        """Where the part may matter."""
        result: NDArray[np.bool_] = self.log_bound > log_delta + PRECISION
        return result

    def serves(self, log_delta: Floats) -> bool:
        """Whether lines serve wherever the part matters."""
        matters = self.reached(log_delta)
        lost = self.level[matters] - log_delta[matters, None]
        return not matters.any() or bool((lost.min(axis=1) <= _MOST_LOST - 1).all())

    def is_light(self, log_delta: Floats, epsilons: Floats) -> bool:
        """Whether the saddle point's estimate may be believed wherever the part matters.

        Not where its tilted law has next to nothing around ε, and the mean is ε since losses far beyond weigh on it.
        """
        at = epsilons[self.reached(log_delta)]
        if not len(at):
            return True
        ladder = self.transform.ladder(float(at[-1]))
        saddle = (ladder.chernoff(0.0) - np.multiply.outer(at, ladder.points)).argmin(axis=1)
        step, variance = np.diff(ladder.points, append=math.inf)[saddle], ladder.variance[saddle]
        narrow_enough = variance <= 3 * ladder.variance[0] + _WIDE * at**2
        return bool((narrow_enough & (at - ladder.mean[saddle] <= _STEEP * step * variance)).all())


def chained(
    transform: Transform, epsilons: Floats, told: tuple[Floats, Floats], target: float | None
) -> Answers | None:
    """δ at ascending ε >= 0 by chains of parts; None where one line of M may serve, or where no chain is found.

    `told` is what `Transform.served` says of them; `target` is about log δ at the first, where lines that were to
    serve these ε did not.

    Raises ArithmeticError where a part's transform takes too many points.
    """
    if transform.spare < _FEW:
        return None
    if target is None:
        alone = _Part.of(transform, 0.0, epsilons, told)
        if alone.is_light(alone.log_delta, epsilons):
            return None
        plan = transform.plan(Aim((float(epsilons[0]), float(epsilons[-1]))))
    else:
        plan = transform.plan(Aim((float(epsilons[0]),), (target,)))
    if plan is None or not hard(transform, plan):
        return None
    whole = narrow(transform, plan)
    first = _parts(whole, plan, epsilons, None)
    if first is None:
        return None
    found = _sum(*first, epsilons)
    if found is None:
        return None
    for _ in range(_ROUNDS - 1):
        left = np.flatnonzero(~found.told)
        left = left[found.errors[left] < _TOLD * found.values[left]]
        if len(left) < _FEWEST:
            break
        again = _parts(whole, plan, epsilons[left], np.log(found.values[left]))
        if again is None:
            break
        more = _sum(*again, epsilons[left])
        if more is None:
            break
        better = more.errors < found.errors[left]
        found.values[left[better]], found.errors[left[better]] = more.values[better], more.errors[better]
        if left[0] == 0:
            found = Answers(found.values, found.errors, more.lines)
    return found


def _parts(whole: Transform, plan: Plan, epsilons: Floats, known: Floats | None) -> tuple[list[_Part], Floats] | None:
    """The parts of a chain, and log δ of the whole: as it is known, or about; None where the chain has no end."""
    height, highest = heights(plan, MOST_NODES)
    while whole.cuts(2.0**height, plan.real) is None:
        height += 1
        if height > highest:
            return None
    parts: list[_Part] = []
    total: Floats = np.full(len(epsilons), -math.inf)
    steps: tuple[int, ...] = (0,)
    for _ in range(_LONGEST):
        for apart, closer, step in _splits(whole, height, plan.real, steps):
            part, near = _Part.of(apart, 2.0 ** (height + step), epsilons), closer
            if known is None or part.serves(known):
                break
        else:
            return None
        parts.append(part)
        total = np.logaddexp(total, part.log_delta)
        last = _Part.of(near, 0.0, epsilons)
        log_delta = np.logaddexp(total, last.log_delta) if known is None else known
        if last.serves(log_delta) and (known is not None or last.is_light(log_delta, epsilons)):
            return [*parts, last], log_delta
        whole, height, steps = near, height + step, _OCTAVES
    return None


def _splits(
    whole: Transform, height: int, real: float, steps: tuple[int, ...]
) -> Iterator[tuple[Transform, Transform, int]]:
    """The differences to near parts, those parts, and their heights' octaves above the last one."""
    for step in steps:
        cuts = whole.cuts(2.0 ** (height + step), real)
        if cuts is not None:
            yield *whole.split(2.0 ** (height + step), cuts), step


def _sum(parts: list[_Part], log_delta: Floats, epsilons: Floats) -> Answers | None:
    """The sum of the parts' integrals; None where a line tells nothing at any of its ε."""
    values, errors = np.zeros(len(epsilons)), np.zeros(len(epsilons))
    pieces: list[Piece] = []
    dropped: list[Dropped] = []
    for part in parts:
        matters = part.reached(log_delta)
        if not matters[0]:
            dropped.append(Dropped(part.transform, False))
        errors[~matters] += np.exp(np.maximum(part.log_bound[~matters], NOTHING))
        left = np.flatnonzero(matters)
        while len(left):
            some = left[: _span(part.level[left] - log_delta[left, None])]
            piece = _line(part, log_delta[some], epsilons[some])
            if piece is None:
                errors[some] = math.inf
            else:
                value, _, error = piece(epsilons[some])
                if (error > np.exp(log_delta[some])).all():
                    return None
                values[some] += value
                errors[some] += error
                if some[0] == 0:
                    pieces.append(piece)
            left = left[len(some) :]
    lines = Inversion(tuple(pieces), tuple(dropped), (0.0, 0.0), float(log_delta[0]))
    return Answers(values, errors + np.finfo(np.float64).eps * np.abs(values), lines)


def _span(lost: Floats) -> int:
    """At how many ε, from the first on, one line loses little: [E, lines]."""
    most = np.maximum(_LOST, np.minimum(lost.min(axis=1, keepdims=True) + _ABOVE_LEAST, _MOST_LOST))
    return max(int(np.logical_and.accumulate(lost <= most, axis=0).sum(axis=0).max()), 1)


def _line(part: _Part, log_delta: Floats, epsilons: Floats) -> Piece | None:
    """The part's line for all of these ε; None where it would be too long."""
    ends = [0] if len(epsilons) == 1 else [0, len(epsilons) - 1]
    if len(ends) > 1:
        chord = np.interp(epsilons, epsilons[ends], log_delta[ends])
        lowest = int(np.argmax(chord - log_delta))
        if chord[lowest] > log_delta[lowest] + _SLACK:
            ends.insert(1, lowest)
    aim = Aim(tuple(epsilons[ends].tolist()), tuple(log_delta[ends].tolist()), _SLACK if len(ends) > 1 else 0.0)
    plan = part.transform.plan(aim, part.height)
    if plan is None or plan.nodes > _NODES:
        return None
    sums = part.transform.sums(plan, 2 * plan.nodes + 64)
    return Piece(Task(part.transform, plan, False, sums), sums)
