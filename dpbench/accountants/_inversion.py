"""δ(ε) of one direction near one ε: which lines to integrate on, and what their sums and errors are.

**Few hits.** Where almost all releases have a loss next to one point, |M(c+iu)| stays near e^(−hits) for long. Then
M = A + (M − A), A the product of the parts near their atoms (`Transform.split`). M − A falls where A's complement has
turned. A's own integral either vanishes (its sums do not reach ε), or is split again and converges on a line of its
own, far to the right, or, by parity, E[(1−e^(ε−L))₊] = A(0) − e^ε A(−1) + E[(e^(ε−L)−1)₊], far to the left.
The trace of large losses that a window's edge leaves in A limits how far to the right: where many parts lie between
the saddle of M and that of its bulk, at about ε over the variance, windows are narrow (`Transform.narrowed`).

**The error** sums the bound of every line's aliases (`_ladder`), the Chernoff bound of what a route leaves out, the
size of the first term that truncation leaves out, and Σ |terms| times what the leaves say of log M, times the counts,
and some units in the last place. All of it is a function of ε: lines planned for one ε serve others for as long as the
error there is small enough; lines planned for both ends of a range (`Aim`) serve all of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpbench.accountants._complex import exp, log, turn
from dpbench.accountants._contour import MOST_NODES, NOTHING, Transform
from dpbench.accountants._leaf_family import MIDDLE, NARROW
from dpbench.accountants._loss_leaf import UNIT, Complex, Floats
from dpbench.accountants._plan import Aim, Plan, Sums
from dpbench.accountants._work import spend

_TINY = math.log(1e-31)
_FEASIBLE = 1 << 14
_NOISY = math.log(1e-10)  # rounding relative to δ on a line: a split is worth while
_DEPTH = 14
_FEW_NODES = 750  # of a line that is not worth a split
_MANY_NODES = (24000, 6000, 1500)  # of a difference to a near part, by the height: as many as rounding lets be
_UPHILL = 3.2  # from this distance in t on, between losses that matter at two saddles, windows are narrow
_FAR_UPHILL = 5.0
_WALL = 8.0  # times the period that the aliases ahead ask for: more is due to those behind
_FARTHEST_END, _ROOM = 2.2, 1.15  # over where a line is planned to end
_SHORT, _SUMMED = 150, 3  # nodes of a line that is summed without asking first where it ends; times as many at most
PARITY = -12.0  # parity takes one mass off another: only where δ is not small


@dataclass(frozen=True)
class Task:
    """One line: the transform, and where. Mirrored: at −ε, times e^ε."""

    transform: Transform
    plan: Plan
    mirrored: bool
    summed: Sums | None = None

    def sums(self) -> Sums:
        """The nodes, where they are not known yet."""
        return self.summed or self.transform.sums(self.plan)


@dataclass(frozen=True)
class Dropped:
    """A transform whose integral is left out: its Chernoff bound is negligible."""

    transform: Transform
    mirrored: bool

    def bound(self, epsilon: Floats) -> Floats:
        """The most that it can be."""
        at = -epsilon if self.mirrored else epsilon
        found = self.transform.ladder(float(at.max())).log_bound(at) + (epsilon if self.mirrored else 0.0)
        result: Floats = np.exp(np.clip(found, NOTHING, 700.0))
        return result


@dataclass(frozen=True)
class Piece:
    """One line's sum, as a function of ε: e^ε times the integral at −ε where it is mirrored."""

    task: Task
    sums: Sums

    @cached_property
    def _table(self) -> Table:
        return Table.of(self.sums)

    def __call__(self, epsilon: Floats) -> tuple[Floats, Floats, Floats]:
        """The value, its derivative in ε and the bound of its error."""
        mirrored = self.task.mirrored
        at, outer = (-epsilon, epsilon) if mirrored else (epsilon, epsilon * 0)
        total, slope, wrong = self._table(at, outer)
        if mirrored:
            slope = total - slope
        sums, plan = self.sums, self.task.plan
        rest = np.exp(np.minimum(sums.rest - float(sums.z[0].real) * at + outer, 700.0))
        alias = plan.ladder.log_alias(plan.real, plan.period, at) + outer
        return total, slope, wrong + rest + np.exp(np.clip(alias, NOTHING, 700.0))


@dataclass(frozen=True)
class Table:
    """Terms f_k of one line without their e^(−z_k ε), as a matrix of A rows with B columns, k = aB + b.

    z_k = c + ihk, so that Σ f_k e^(−z_k ε) = e^(−cε) Σ_a e^(−ihBaε) Σ_b f_(aB+b) e^(−ihbε): A + B exponentials for
    an ε, not AB. Their arguments are wrong by units in the last place of |z_k ε|, as those of single terms are.
    """

    real: float
    top: float
    coarse: Floats
    fine: Floats
    terms: Complex  # [A, 2B]: f_k e^(−top), and −z_k times as much
    wrong: tuple[float, float, float]  # Σ |f_k| e^(−top) times the relative error without ε, times |z_k|, and alone

    @classmethod
    def of(cls, sums: Sums) -> Table:
        z, count = sums.z, len(sums.z)
        spend(5 * count)
        fixed = sums.log_moment - log(z) - log(1 + z)
        top = float(fixed.real.max())
        terms = sums.weight * exp(fixed - top)
        size = np.abs(terms)
        errors = sums.error + UNIT * (16 + np.abs(fixed.real))
        columns = math.isqrt(count - 1) + 1
        rows = -(-count // columns)
        both = np.zeros((2, rows * columns), dtype=np.complex128)
        both[0, :count], both[1, :count] = terms, -z * terms
        table = np.concatenate(both.reshape(2, rows, columns), axis=1)
        u = z.imag
        wrong = (float(size @ errors), float(size @ np.abs(z)), float(size.sum()))
        return cls(float(z[0].real), top, u[::columns], u[:columns], table, wrong)

    def __call__(self, at: Floats, outer: Floats) -> tuple[Floats, Floats, Floats]:
        """Σ f_k e^(outer − z_k ε), its derivative in ε, and a bound of its error."""
        level = outer - self.real * at
        scale = np.exp(np.minimum(self.top + level, 700.0))
        coarse, fine = (1 + turn(np.multiply.outer(-at, nodes)) for nodes in (self.coarse, self.fine))
        columns = len(self.fine)
        parts = coarse @ self.terms
        total, slope = ((parts[:, k : k + columns] * fine).real.sum(axis=1) for k in (0, columns))
        errors, turned, size = self.wrong
        wrong = errors + UNIT * (4 * np.abs(at) * turned + np.abs(level) * size)
        with np.errstate(over="ignore"):  # far from what the lines were made for
            return scale * total, scale * slope, scale * wrong


@dataclass(frozen=True)
class Inversion:
    """δ(ε) in the neighbourhood of one ε: lines, what is left out, and the mass terms of parity."""

    pieces: tuple[Piece, ...]
    dropped: tuple[Dropped, ...]
    masses: tuple[float, float]
    log_target: float

    def __call__(self, epsilon: float) -> tuple[float, float, float]:
        """δ(ε), its derivative and a bound of its error."""
        value, slope, error = self.at(np.array([epsilon]))
        return float(value[0]), float(slope[0]), float(error[0])

    def at(self, epsilon: Floats) -> tuple[Floats, Floats, Floats]:
        """δ, its derivative and a bound of its error at several ε."""
        slope: Floats = -np.exp(epsilon) * self.masses[1] if self.masses[1] else epsilon * 0
        total: Floats = self.masses[0] + slope
        error: Floats = UNIT * 8 * (abs(self.masses[0]) + np.abs(total))
        for piece in self.pieces:
            value, rise, wrong = piece(epsilon)
            total, slope, error = total + value, slope + rise, error + wrong
        return total, slope, error + UNIT * np.abs(total) + self.left_out(epsilon)

    def left_out(self, epsilon: Floats) -> Floats:
        """The part of the error that comes from what the route leaves out."""
        bound: Floats = epsilon * 0
        for one in self.dropped:
            bound = bound + one.bound(epsilon)
        return bound


@dataclass(frozen=True)
class Route:
    """Lines for one integral, their number of nodes, what is left out, and the masses that parity adds."""

    nodes: float
    tasks: tuple[Task, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    masses: tuple[float, float] = (0.0, 0.0)


IMPOSSIBLE = Route(math.inf)


class TooWide(ArithmeticError):
    """No route serves both ends of a span."""


class TooLong(ArithmeticError):
    """One line takes so many nodes that a split may be worth while."""


def invert(transform: Transform, epsilon: float, log_target: float | None = None) -> Inversion | None:
    """The lines for δ near ε, to PRECISION relative to e^log_target; None where δ is below every double."""
    return invert_at(transform, Aim((epsilon,), None if log_target is None else (log_target,)))


def invert_at(transform: Transform, aim: Aim, most: float = math.inf, whole: bool = False) -> Inversion | None:
    """The lines for δ at the ε of `aim` and between them; None where δ is below every double.

    Raises ArithmeticError where that takes too many nodes, or more than `most`. One line of the `whole` is not split,
    however much its rounding loses, and where it is long or does not come to its end TooLong is raised.
    """
    plan = transform.plan(aim)
    if plan is None:
        return None
    transform = narrow(transform, plan)
    direct = _direct(transform, plan, False)
    if whole:
        if direct is IMPOSSIBLE or plan.nodes >= _FEW_NODES:
            raise TooLong("one line takes many nodes")
        return _inversion(direct, plan.aim)
    route = _route(transform, plan, plan.aim, False, _DEPTH, direct)
    assert plan.aim.log_deltas is not None
    smallest = min(plan.aim.log_deltas)
    if route.nodes > most or (route.nodes > _FEASIBLE and smallest < _TINY):
        raise ArithmeticError("a tiny delta far beyond the bulk of the loss takes too many nodes")
    if not math.isfinite(
        route.nodes
    ):  # slow decay that no split mends: as many nodes as it takes, and the rest in the error
        route = Route(plan.nodes, (Task(transform, plan, False),))
    return _inversion(route, plan.aim)


def _inversion(route: Route, aim: Aim) -> Inversion:
    assert aim.log_deltas is not None
    pieces = tuple(Piece(task, task.sums()) for task in route.tasks)
    return Inversion(pieces, route.dropped, route.masses, aim.log_deltas[0])


def narrow(transform: Transform, plan: Plan, chained: bool = False) -> Transform:
    """The transform with narrow windows, where many losses lie between the saddle of M and that of its bulk.

    The parts of a chain reach less far: there windows are narrow further uphill only, and before that in between.
    """
    ratio = max(plan.aim.epsilons) / (transform.spread**2 * plan.real)
    least = min(float(family.sigma.min()) for family in transform.families)
    uphill = least * math.log(ratio) if ratio > 1 else 0.0
    if uphill <= _UPHILL:
        return transform
    return transform.narrowed(MIDDLE if chained and uphill <= _FAR_UPHILL else NARROW)


def hard(transform: Transform, plan: Plan) -> bool:
    """Whether a line is so long, or its end so far, that a split may be worth while."""
    return _noisy(plan) * plan.nodes >= _FEW_NODES or endless(transform, plan)


def endless(transform: Transform, plan: Plan) -> bool:
    """Whether a line does not come to its end soon after where it is planned to."""
    factor = _SUMMED / _ROOM if plan.nodes <= _SHORT else _FARTHEST_END
    return _rest(transform, plan.real, factor * _top(plan)) >= plan.aim.level(plan.real)


def heights(plan: Plan, most: float) -> tuple[int, int]:
    """Between which octaves lie the heights of windows for a line of a few dozen nodes, and of so many at most."""
    # next to a wall of M the period says nothing about the parts
    period = min(plan.period, -_WALL * (plan.aim.level(plan.real) - plan.real * max(plan.aim.epsilons)) / plan.real)
    return 1 + round(math.log2(2 * math.pi * 24 / period)), math.floor(math.log2(2 * math.pi * most / period))


def planned_nodes(transform: Transform, epsilon: float) -> float:
    """About how many nodes δ at this ε takes; infinite where none are enough."""
    try:
        plan = transform.plan(Aim((epsilon,), None))
        return 0.0 if plan is None else _route(transform, plan, plan.aim, False, _DEPTH).nodes
    except ArithmeticError:
        return math.inf


def _route(
    transform: Transform, plan: Plan, aim: Aim, mirrored: bool, depth: int, direct: Route | None = None
) -> Route:
    """The cheapest way to this integral: one line, or that of the difference to a near part and the part's route.

    `direct` is the one line, where it is known.
    """
    direct = direct or _direct(transform, plan, mirrored)
    if direct.nodes < _FEW_NODES or not depth:
        return direct
    found = None
    for many in _MANY_NODES:
        chosen = _split(transform, plan, aim, direct.nodes, many)
        if chosen is None:
            break
        own = chosen[0].plan(aim, chosen[2])
        if own is not None and own.nodes <= min(direct.nodes, MOST_NODES):
            found = (*chosen[:2], own)
            if own.log_lost <= _NOISY:
                break
    if found is None:
        return direct
    apart, near, own = found
    rest = _near_route(near, aim, mirrored, depth - 1)
    route = Route(own.nodes + rest.nodes, (Task(apart, own, mirrored), *rest.tasks), rest.dropped, rest.masses)
    return route if route.nodes < direct.nodes else direct


def _direct(transform: Transform, plan: Plan, mirrored: bool) -> Route:
    """One line, where it comes to its end soon; short ones are summed to see."""
    task, level, noisy = Task(transform, plan, mirrored), plan.aim.level(plan.real), _noisy(plan)
    if plan.nodes <= _SHORT:
        sums = transform.sums(plan, most=_SUMMED * plan.nodes)
        if sums.rest < level:
            return Route(noisy * len(sums.z), (replace(task, summed=sums),))
        return IMPOSSIBLE
    for factor in (1.0, 1.5, _FARTHEST_END):
        if _rest(transform, plan.real, factor * _top(plan)) < level:
            return Route(noisy * factor * plan.nodes, (task,))
    return IMPOSSIBLE


def _noisy(plan: Plan) -> float:
    """How much dearer a line is for what its rounding loses."""
    return 40 * math.exp((plan.log_lost - _NOISY) / 2) if plan.log_lost > _NOISY else 1.0


def _top(plan: Plan) -> float:
    """About where a line ends."""
    return _ROOM * 2 * math.pi * plan.nodes / plan.period


def _split(
    transform: Transform, plan: Plan, aim: Aim, most: float, many: int
) -> tuple[Transform, Transform, float] | None:
    """The difference to a near part, that part, and the height to which the difference's line goes.

    The lowest height, of powers of two, at which the near part is negligible; where there is none, or none with `many`
    nodes or fewer, the highest with so few.
    """
    lowest, highest = heights(plan, many)
    limit = heights(plan, min(most, MOST_NODES))[1]
    while (cuts := transform.cuts(2.0**lowest, plan.real)) is None:
        lowest += 1
        if lowest > limit:
            return None
    found = None
    low, high = lowest, max(lowest, min(highest, limit))
    trial = high
    while True:
        cuts = transform.cuts(2.0**trial, plan.real)
        assert cuts is not None
        apart, near = transform.split(2.0**trial, cuts)
        negligible = _negligible(near, aim)
        if negligible or found is None:
            found = (apart, near, 2.0**trial)
        if trial == high and not negligible:
            return found
        low, high = (low, trial) if negligible else (trial + 1, high)
        if low >= high:
            return found
        trial = (low + high) // 2


def _near_route(near: Transform, aim: Aim, mirrored: bool, depth: int) -> Route:
    """The route of a part near its atom: nothing where its sums do not reach ε, a line of its own, or parity."""
    if _negligible(near, aim):
        return Route(0.0, (), (Dropped(near, mirrored),))
    assert aim.log_deltas is not None
    ladder = near.ladder(max(aim.epsilons))
    low = [int(np.argmin(ladder.chernoff(epsilon))) == 0 and not mirrored for epsilon in aim.epsilons]
    if any(low) and len(low) > 1 and not (all(low) and min(aim.log_deltas) > PARITY):
        raise TooWide("parity serves one end of the span and not the other")
    if all(low) and min(aim.log_deltas) > PARITY:
        other, turned = near.swapped, aim.mirrored
        masses = [float(np.exp(near.at(np.array([point])).log_moment[0])) for point in (0.0, -1.0)]
        plan = None if _negligible(other, turned) else other.plan(turned)
        if plan is None:
            return Route(0.0, (), (Dropped(other, True),), (masses[0], masses[1]))
        rest = _route(other, plan, turned, True, depth)
        return Route(rest.nodes, rest.tasks, rest.dropped, (masses[0], masses[1]))
    plan = near.plan(aim)
    if plan is None:
        return Route(0.0, (), (Dropped(near, mirrored),))
    return _route(near, plan, aim, mirrored, depth)


def _negligible(near: Transform, aim: Aim) -> bool:
    assert aim.log_deltas is not None
    ladder = near.ladder(max(aim.epsilons))
    both = zip(aim.epsilons, aim.log_deltas, strict=True)
    return all(float(ladder.chernoff(epsilon).min()) < log_delta + aim.precision for epsilon, log_delta in both)


def _rest(transform: Transform, real: float, top: float) -> float:
    """log of what is left out beyond u = top, if |M| does not rise any more; without e^(−cε)."""
    try:
        found = transform.evaluate(real, np.array([0.97 * top, top]))[0].real.max()
    except ArithmeticError:  # it oscillates too fast there to be resolved
        return math.inf
    return float(found) - math.log(math.pi * top)
