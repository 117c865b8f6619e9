"""Whole curves where few losses are large: the law in parts by the size of its losses, each with lines of its own.

One line does not serve M where large losses reach far beyond the bulk: to the left of their wall the integrand is far
above δ(ε). A chain of windows (`Transform.split`), from the largest losses to the smallest, splits M once for all ε,

    M = (M − A₁) + (A₁ − A₂) + … + A_n,

so that each difference holds losses of a few octaves, the tail of a part falls about as fast as its Chernoff bound
does, and one line of a part serves δ over many e-folds. `_inversion` splits M anew for each of its aims, as deep as
that one asks; a chain is for many ε together. What a part's line may leave out is relative to δ(ε) of the whole: at
first the sum of the parts' saddle points, then, where that served too few ε, what the chain has found. A wrong estimate
costs time and nothing else: the error that the lines state tells what they serve.

Releases whose losses are too small for a window at some height stay whole in its near part, beside others' windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants._contour import MOST_NODES, NOTHING, Transform
from dpbench.accountants._inversion import Dropped, Inversion, Piece, Task, endless, hard, heights, narrow
from dpbench.accountants._loss_leaf import Floats
from dpbench.accountants._plan import Aim, Plan

SHARED = 3e-10  # error relative to δ up to which one line serves many ε of a curve
_SHARP = math.log(1e-11)  # of aliases, truncation and parts left out, relative to δ: what is shared is far above
_LEAST, _ROUGHLY = 1e-12, 1e-4  # δ below which its absolute error counts, and relative error there
_OCTAVES = (4, 3, 2, 1)  # between the heights of two windows: fewer where one line would not serve a part
_TRIED = 2  # octaves, at first where lines do not come to their ends
_LONGEST = 10  # windows
_ROUNDS, _TOLD = 3, 0.1  # chains for what is left, where its error is that small
_LOST, _MOST_LOST = (
    math.log(3e-11),
    math.log(1e-9),
)  # rounding relative to δ on a line, at first, and where all lose much
_ABOVE_LEAST = 2.5  # of what is lost then
_GUESSED, _SLACK = 3.0, 1.0  # how much lower than between a line's ends log δ may be, where it is guessed or known
_NODES, _MOST = 3000, 8000  # of a line, as planned at most, and as summed where windows' edges are seen
_FEW = math.log(8)  # releases: with fewer M falls too slowly for one line of a part
_HITS = 0.02  # draws, expected: with fewer the parts near the atoms hold most of δ to the very end of a chain
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
    _lines: dict[tuple[int, int], Piece] = field(default_factory=dict, repr=False)

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
        result: NDArray[np.bool_] = self.log_bound > log_delta + _SHARP
        return result

    def serves(self, log_delta: Floats, most: float = _MOST_LOST) -> bool:
        """Whether lines serve wherever the part matters, with no more rounding than that, by far."""
        matters = self.reached(log_delta)
        lost = self.level[matters] - log_delta[matters, None]
        return not matters.any() or bool((lost.min(axis=1) <= most - 1).all())

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

    def _spans(self, log_delta: Floats) -> Iterator[NDArray[np.intp]]:
        left = np.flatnonzero(self.reached(log_delta))
        while len(left):
            some = left[: _span(self.level[left] - log_delta[left, None])]
            yield some
            left = left[len(some) :]

    def lines(
        self, log_delta: Floats, epsilons: Floats, slack: float
    ) -> Iterator[tuple[NDArray[np.intp], Piece | None]]:
        """The ε where the part may matter, as many at a time as one line may serve, and that line; None if too long."""
        for some in self._spans(log_delta):
            piece = self._lines.get((int(some[0]), len(some)))
            if piece is None:
                plan = _plan(self, log_delta[some], epsilons[some], slack)
                piece = None if plan is None else _line(self, plan)
            yield some, piece

    def ends(self, log_delta: Floats, epsilons: Floats, slack: float, long: bool) -> bool:
        """Whether the first of its lines comes to its end: where that is in doubt, a node far up tells first."""
        some = next(self._spans(log_delta), None)
        if some is None:
            return True
        plan = _plan(self, log_delta[some], epsilons[some], slack)
        if plan is None or (long and endless(self.transform, plan)):
            return False
        piece = self._lines[int(some[0]), len(some)] = _line(self, plan)
        return piece.sums.rest < plan.aim.level(plan.real)


def chained(
    transform: Transform, epsilons: Floats, told: tuple[Floats, Floats], target: float | None, long: bool = False
) -> Answers | None:
    """δ at ascending ε >= 0 by chains of parts; None where one line of M may serve, or where no chain is found.

    `told` is what `Transform.served` says of them, or what answers have made of it; `target` is about log δ at the
    first, where lines that were to serve these ε did not; `long` says that one line of M is known to be long or not to
    come to its end.

    Raises ArithmeticError where a part's transform takes too many points.
    """
    if transform.spare < _FEW or (long and transform.hits < _HITS):
        return None
    if target is None:
        alone = _Part.of(transform, 0.0, epsilons, told)
        if not long and alone.is_light(alone.log_delta, epsilons):
            return None
        plan = transform.plan(Aim((float(epsilons[0]), float(epsilons[-1]))))
    else:
        plan = transform.plan(Aim((float(epsilons[0]),), (target,)))
    if plan is None or not (long or hard(transform, plan)):
        return None
    whole = narrow(transform, plan, True)
    first = _parts(whole, plan, epsilons, None, told[0] if long else None)
    if first is None:
        return None
    found = _sum(*first, _GUESSED, epsilons)
    if found is None:
        return None
    for _ in range(_ROUNDS - 1):
        left = np.flatnonzero(~found.told)
        left = left[found.errors[left] < _TOLD * found.values[left]]
        if not len(left):
            break
        known = np.log(found.values[left])
        again = _parts(whole, plan, epsilons[left], known, known if long else None)
        if again is None:
            break
        more = _sum(*again, _SLACK, epsilons[left])
        if more is None:
            break
        better = more.errors < found.errors[left]
        if not better.any():
            break
        found.values[left[better]], found.errors[left[better]] = more.values[better], more.errors[better]
        if left[0] == 0:
            found = Answers(found.values, found.errors, more.lines)
    return found


def _parts(
    whole: Transform, plan: Plan, epsilons: Floats, known: Floats | None, about: Floats | None
) -> tuple[list[_Part], Floats] | None:
    """The parts of a chain, and log δ of the whole: as it is known, or about; None where the chain has no end.

    `about` is log δ, about, where lines are known not to come to their ends soon: then a split that leaves no more than
    next to nothing near the atoms comes first.
    """
    height, highest = heights(plan, MOST_NODES)
    while whole.cuts(2.0**height, plan.real, True) is None:
        height += 1
        if height > highest:
            return None
    parts: list[_Part] = []
    total: Floats = np.full(len(epsilons), -math.inf)
    steps: tuple[int, ...] = (0,) if about is None else (_TRIED, 0)
    found: tuple[list[_Part], Floats] | None = None
    for _ in range(_LONGEST):
        for apart, near, step in _splits(whole, height, plan.real, steps):
            if about is not None and step == steps[0] == _TRIED and _matters(near, about, epsilons):
                continue
            part = _Part.of(apart, 2.0 ** (height + step), epsilons)
            if known is None or part.serves(known):
                break
        else:
            return found
        parts.append(part)
        total = np.logaddexp(total, part.log_delta)
        last = _Part.of(near, 0.0, epsilons)
        log_delta = np.logaddexp(total, last.log_delta) if known is None else known
        served = last.serves(log_delta) if known is None else last.serves(log_delta, math.log(SHARED))
        if served and (known is not None or last.is_light(log_delta, epsilons)):
            found = [*parts, last], log_delta
            if last.ends(log_delta, epsilons, _GUESSED if known is None else _SLACK, about is not None):
                break
        whole, height, steps = near, height + step, _OCTAVES
    return found


def _matters(transform: Transform, log_delta: Floats, epsilons: Floats) -> bool:
    """Whether this part may matter anywhere."""
    bound = transform.ladder(float(epsilons[-1])).log_bound(epsilons)
    return bool((bound > log_delta + _SHARP).any())


def _splits(
    whole: Transform, height: int, real: float, steps: tuple[int, ...]
) -> Iterator[tuple[Transform, Transform, int]]:
    """The differences to near parts, those parts, and their heights' octaves above the last one."""
    for step in steps:
        cuts = whole.cuts(2.0 ** (height + step), real, True)
        if cuts is not None:
            yield *whole.split(2.0 ** (height + step), cuts), step


def _sum(parts: list[_Part], log_delta: Floats, slack: float, epsilons: Floats) -> Answers | None:
    """The sum of the parts' integrals; None where a line tells nothing at any of its ε."""
    values, errors = np.zeros(len(epsilons)), np.zeros(len(epsilons))
    pieces: list[Piece] = []
    dropped: list[Dropped] = []
    for part in parts:
        matters = part.reached(log_delta)
        if not matters[0]:
            dropped.append(Dropped(part.transform, False))
        errors[~matters] += np.exp(np.maximum(part.log_bound[~matters], NOTHING))
        for some, piece in part.lines(log_delta, epsilons, slack):
            if piece is None:
                errors[some] = math.inf
                continue
            value, _, error = piece(epsilons[some])
            if (error > np.exp(log_delta[some])).all():
                return None
            values[some] += value
            errors[some] += error
            if some[0] == 0:
                pieces.append(piece)
    lines = Inversion(tuple(pieces), tuple(dropped), (0.0, 0.0), float(log_delta[0]))
    return Answers(values, errors + np.finfo(np.float64).eps * np.abs(values), lines)


def _span(lost: Floats) -> int:
    """At how many ε, from the first on, one line loses little: [E, lines]."""
    most = np.maximum(_LOST, np.minimum(lost.min(axis=1, keepdims=True) + _ABOVE_LEAST, _MOST_LOST))
    return max(int(np.logical_and.accumulate(lost <= most, axis=0).sum(axis=0).max()), 1)


def _plan(part: _Part, log_delta: Floats, epsilons: Floats, slack: float) -> Plan | None:
    """The part's line for all of these ε; None where it would be too long."""
    ends = [0] if len(epsilons) == 1 else [0, len(epsilons) - 1]
    if len(ends) > 1:
        chord = np.interp(epsilons, epsilons[ends], log_delta[ends])
        lowest = int(np.argmax(chord - log_delta))
        if chord[lowest] > log_delta[lowest] + slack:
            ends.insert(1, lowest)
    slack = slack if len(ends) > 1 else 0.0
    aim = Aim(tuple(epsilons[ends].tolist()), tuple(log_delta[ends].tolist()), slack, _SHARP)
    plan = part.transform.plan(aim, part.height)
    return None if plan is None or plan.nodes > _NODES else plan


def _line(part: _Part, plan: Plan) -> Piece:
    """The sums of that line."""
    reached = 1.15 * part.height * plan.period / (2 * math.pi)  # where the window has turned, for certain
    sums = part.transform.sums(plan, max(2 * plan.nodes, min(reached, _MOST)) + 64)
    return Piece(Task(part.transform, plan, False, sums), sums)
