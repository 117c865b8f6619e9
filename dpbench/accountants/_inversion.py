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
error there is small enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpbench.accountants._complex import exp, log, turn
from dpbench.accountants._contour import MOST_NODES, NOTHING, PRECISION, Plan, Sums, Transform
from dpbench.accountants._loss_leaf import UNIT, Complex, Floats

_TINY = math.log(1e-31)
_FEASIBLE = 1 << 14
_NOISY = math.log(1e-10)  # rounding relative to δ on a line: a split is worth while
_DEPTH = 14
_MANY_NODES = 1500
_UPHILL = 3.2  # from this distance in t on, between losses that matter at two saddles, windows are narrow
_SHORT = 150  # nodes of a line that is summed without asking first whether it comes to an end
_PARITY = -12.0  # parity takes one mass off another: only where δ is not small


@dataclass(frozen=True)
class Task:
    """One line: the transform, where, and how small its rest has to be. Mirrored: at −ε, times e^ε."""

    transform: Transform
    plan: Plan
    at: float
    log_allowed: float
    mirrored: bool
    summed: Sums | None = None

    def sums(self) -> Sums:
        """The nodes, where they are not known yet."""
        return self.summed or self.transform.sums(self.plan, self.log_allowed, self.at)


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
    def _table(self) -> _Table:
        return _Table.of(self.sums)

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
class _Table:
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
    def of(cls, sums: Sums) -> _Table:
        z, count = sums.z, len(sums.z)
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


def invert(transform: Transform, epsilon: float, log_target: float | None = None) -> Inversion | None:
    """The lines for δ near ε, to PRECISION relative to e^log_target; None where δ is below every double."""
    plan = transform.plan(epsilon, log_target)
    if plan is None:
        return None
    uphill = epsilon / (transform.spread**2 * plan.real)
    if uphill > 1 and min(float(family.sigma.min()) for family in transform.families) * math.log(uphill) > _UPHILL:
        transform = transform.narrowed
    route = _route(transform, plan, epsilon, plan.log_delta, False, _DEPTH)
    if route.nodes > _FEASIBLE and plan.log_delta < _TINY:
        raise ArithmeticError("a tiny delta far beyond the bulk of the loss takes too many nodes")
    if not math.isfinite(
        route.nodes
    ):  # slow decay that no split mends: as many nodes as it takes, and the rest in the error
        route = Route(plan.nodes, (Task(transform, plan, epsilon, plan.log_delta + PRECISION, False),))
    pieces = tuple(Piece(task, task.sums()) for task in route.tasks)
    return Inversion(pieces, route.dropped, route.masses, plan.log_delta)


def _route(transform: Transform, plan: Plan, at: float, log_delta: float, mirrored: bool, depth: int) -> Route:
    """The cheapest way to this integral: one line, or that of the difference to a near part and the part's route."""
    direct = _direct(transform, plan, at, log_delta + PRECISION, mirrored)
    if direct.nodes < _MANY_NODES / 2 or not depth:
        return direct
    chosen = _split(transform, plan, at, log_delta + PRECISION, direct.nodes)
    if chosen is None:
        return direct
    apart, near, height = chosen
    own = apart.plan(at, log_delta, height)
    if own is None or own.nodes > min(direct.nodes, MOST_NODES):
        return direct
    rest = _near_route(near, at, log_delta, mirrored, depth - 1)
    first = Task(apart, own, at, log_delta + PRECISION, mirrored)
    route = Route(own.nodes + rest.nodes, (first, *rest.tasks), rest.dropped, rest.masses)
    return route if route.nodes < direct.nodes else direct


def _direct(transform: Transform, plan: Plan, at: float, allowed: float, mirrored: bool) -> Route:
    """One line, where it comes to its end soon; short ones are summed to see."""
    noisy = 40 * math.exp((plan.log_lost - _NOISY) / 2) if plan.log_lost > _NOISY else 1.0
    task = Task(transform, plan, at, allowed, mirrored)
    if plan.nodes <= _SHORT:
        sums = transform.sums(plan, allowed, at, most=3 * plan.nodes)
        if sums.rest - plan.real * at < allowed:
            return Route(noisy * len(sums.z), (replace(task, summed=sums),))
        return IMPOSSIBLE
    top = 2 * math.pi * plan.nodes / plan.period * 1.15
    for factor in (1.0, 1.5, 2.2):
        if _rest(transform, plan.real, factor * top) - plan.real * at < allowed:
            return Route(noisy * factor * plan.nodes, (task,))
    return IMPOSSIBLE


def _split(
    transform: Transform, plan: Plan, at: float, allowed: float, most: float
) -> tuple[Transform, Transform, float] | None:
    """The difference to a near part, that part, and the height to which the difference's line goes.

    The lowest height, of powers of two, at which the near part is negligible; where there is none, or none with few
    nodes, the highest with few.
    """
    lowest = 1 + round(math.log2(2 * math.pi * 24 / plan.period))
    highest = math.floor(math.log2(2 * math.pi * _MANY_NODES / plan.period))
    limit = math.floor(math.log2(2 * math.pi * min(most, MOST_NODES) / plan.period))
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
        negligible = _negligible(near, at, allowed)
        if negligible or found is None:
            found = (apart, near, 2.0**trial)
        if trial == high and not negligible:
            return found
        low, high = (low, trial) if negligible else (trial + 1, high)
        if low >= high:
            return found
        trial = (low + high) // 2


def _near_route(near: Transform, at: float, log_delta: float, mirrored: bool, depth: int) -> Route:
    """The route of a part near its atom: nothing where its sums do not reach ε, a line of its own, or parity."""
    if _negligible(near, at, log_delta + PRECISION):
        return Route(0.0, (), (Dropped(near, mirrored),))
    lowest = int(np.argmin(near.ladder(at).chernoff(at)))
    if lowest == 0 and not mirrored and log_delta > _PARITY:
        other = near.swapped
        target = log_delta - at
        masses = [float(np.exp(near.at(np.array([point])).log_moment[0])) for point in (0.0, -1.0)]
        plan = None if _negligible(other, -at, target + PRECISION) else other.plan(-at, target)
        if plan is None:
            return Route(0.0, (), (Dropped(other, True),), (masses[0], masses[1]))
        rest = _route(other, plan, -at, target, True, depth)
        return Route(rest.nodes, rest.tasks, rest.dropped, (masses[0], masses[1]))
    plan = near.plan(at, log_delta)
    if plan is None:
        return Route(0.0, (), (Dropped(near, mirrored),))
    return _route(near, plan, at, log_delta, mirrored, depth)


def _negligible(near: Transform, at: float, allowed: float) -> bool:
    return float(near.ladder(at).chernoff(at).min()) < allowed


def _rest(transform: Transform, real: float, top: float) -> float:
    """log of what is left out beyond u = top, if |M| does not rise any more; without e^(−cε)."""
    try:
        found = transform.evaluate(real, np.array([0.97 * top, top]))[0].real.max()
    except ArithmeticError:  # it oscillates too fast there to be resolved
        return math.inf
    return float(found) - math.log(math.pi * top)
