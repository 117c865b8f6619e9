"""δ(ε) and ε(δ) of one direction: which lines to integrate on, their sums, and the root.

**Few hits.** Where almost all releases have a loss next to one point, |M(c+iu)| stays near e^(−hits) for long. Then
M = A + (M − A), A the product of the parts near their atoms (`LossLeaf.near`). M − A falls where A's complement has
turned. A's own integral either vanishes (its sums do not reach ε) or converges on a line of its own, far to the right,
or, by parity, E[(1−e^(ε−L))₊] = A(0) − e^ε A(−1) + E[(e^(ε−L)−1)₊], far to the left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpbench.accountants._contour import MOST_NODES, NOTHING, PRECISION, Plan, Sums, Transform
from dpbench.accountants._loss_leaf import UNIT

_FEASIBLE = 1 << 14
_UNTOLD = 1e-15
_ASTRAY = 1e-7  # relative: a root less certain than that is looked for again
_TINY = math.log(1e-31)
_NOISY = math.log(1e-10)  # rounding relative to δ on a line: a split is worth while
_DEPTH = 14
_HEIGHTS = 24
_MANY_NODES = 1500
_PARITY = -12.0  # parity takes one mass off another: only where δ is not small
_FLOOR = math.log(1e-18)  # below this an absolute error of 1e-12 is safe by far


@dataclass(frozen=True)
class Value:
    """A number and a bound of its absolute error."""

    value: float
    error: float


@dataclass(frozen=True)
class Piece:
    """One line's sum, as a function of ε: e^(scale·ε) times the integral at sign·ε."""

    sums: Sums
    mirrored: bool = False

    def __call__(self, epsilon: float) -> tuple[float, float, float]:
        """The value, its derivative in ε and the bound of its rounding error."""
        sums = self.sums
        at = -epsilon if self.mirrored else epsilon
        outer = epsilon if self.mirrored else 0.0
        z, turn = sums.z, np.log(sums.z) + np.log1p(sums.z)
        exponent = sums.log_moment - z * at - turn + outer
        terms = sums.weight * np.exp(exponent)
        slopes = -z
        wrong = np.abs(terms) * (sums.error + UNIT * (4 + 2 * np.abs(z * at) + np.abs(exponent.real)))
        total, slope = float(terms.real.sum()), float((slopes * terms).real.sum())
        if self.mirrored:
            slope = total - slope
        rest = math.exp(min(sums.rest - float(z[0].real) * at + outer, 700.0))
        return total, slope, float(wrong.sum()) + rest


@dataclass(frozen=True)
class Inversion:
    """δ(ε) in the neighbourhood of one ε: lines, the mass terms of parity and the error of aliases."""

    pieces: tuple[Piece, ...]
    masses: tuple[float, float]
    alias: float
    log_target: float
    nodes: int
    split: bool

    def __call__(self, epsilon: float) -> tuple[float, float, float]:
        """δ(ε), its derivative and a bound of its error."""
        start = self.masses[0] - math.exp(epsilon) * self.masses[1] if any(self.masses) else 0.0
        slope = -math.exp(epsilon) * self.masses[1] if any(self.masses) else 0.0
        total, error = start, self.alias + UNIT * 8 * (abs(self.masses[0]) + abs(start))
        for piece in self.pieces:
            value, rise, wrong = piece(epsilon)
            total, slope, error = total + value, slope + rise, error + wrong
        return total, slope, error + UNIT * abs(total)


@dataclass(frozen=True)
class Task:
    """One line to sum: the transform, where, and how small its rest has to be."""

    transform: Transform
    plan: Plan
    at: float
    log_allowed: float
    mirrored: bool


@dataclass(frozen=True)
class Route:
    """Lines for one integral, their number of nodes, and the masses that parity adds."""

    nodes: float
    tasks: tuple[Task, ...] = ()
    masses: tuple[float, float] = (0.0, 0.0)


IMPOSSIBLE = Route(math.inf)


def invert(transform: Transform, epsilon: float, log_target: float | None = None) -> Inversion | None:
    """The lines for δ near ε, to PRECISION relative to e^log_target; None where δ is below every double."""
    plan = transform.plan(epsilon, log_target)
    if plan is None:
        return None
    route = _route(transform, plan, epsilon, plan.log_delta, False, _DEPTH)
    if route.nodes > _FEASIBLE and plan.log_delta < _TINY:
        raise ArithmeticError("a tiny delta far beyond the bulk of the loss takes too many nodes")
    if not math.isfinite(
        route.nodes
    ):  # slow decay that no split mends: as many nodes as it takes, and the rest in the error
        route = Route(plan.nodes, (Task(transform, plan, epsilon, plan.log_delta + PRECISION, False),))
    pieces = []
    for task in route.tasks:
        sums = task.transform.sums(task.plan, task.log_allowed, task.at)
        pieces.append(Piece(sums, task.mirrored))
    alias = 4 * len(pieces) * math.exp(max(plan.log_delta + PRECISION, NOTHING))
    nodes = sum(len(piece.sums.z) for piece in pieces)
    return Inversion(tuple(pieces), route.masses, alias, plan.log_delta, nodes, len(pieces) > 1 or any(route.masses))


def _route(transform: Transform, plan: Plan, at: float, log_delta: float, mirrored: bool, depth: int) -> Route:
    """The cheapest way to this integral: one line, or that of the difference to a near part and the part's route."""
    allowed = log_delta + PRECISION
    top = 2 * math.pi * plan.nodes / plan.period * 1.15
    direct = IMPOSSIBLE
    for factor in (1.0, 1.5, 2.2):
        if _rest(transform, plan.real, factor * top) - plan.real * at < allowed:
            noisy = 40.0 if plan.log_lost > _NOISY else 1.0
            direct = Route(noisy * factor * plan.nodes, (Task(transform, plan, at, allowed, mirrored),))
            break
    if direct.nodes < _MANY_NODES / 2:
        return direct
    chosen: tuple[Plan, Transform, Transform] | None = None
    height = 2 * math.pi * 24 / plan.period
    for _ in range(_HEIGHTS if depth else 0):
        height *= 2
        near = transform.nearby(height, plan.real)
        if near is None:
            if height > 1e3 * top:
                break
            continue
        apart = Transform(transform.parts, near)
        own = apart.plan(at, log_delta, height)
        if own is None or own.nodes > min(direct.nodes, _MANY_NODES if chosen else MOST_NODES):
            break
        counts = (count for _, count in transform.parts)
        chosen = (own, apart, Transform(tuple(zip(near, counts, strict=True))))
        if float(chosen[2].ladder(at).chernoff(at).min()) < allowed:
            break
    if chosen is None:
        return direct
    rest = _near_route(chosen[2], at, log_delta, mirrored, depth - 1)
    first = Task(chosen[1], chosen[0], at, allowed, mirrored)
    split = Route(chosen[0].nodes + rest.nodes, (first, *rest.tasks), rest.masses)
    return split if split.nodes < direct.nodes else direct


def _near_route(near: Transform, at: float, log_delta: float, mirrored: bool, depth: int) -> Route:
    """The route of a part near its atom: nothing where its sums do not reach ε, a line of its own, or parity."""
    bound = near.ladder(at).chernoff(at)
    lowest = int(np.argmin(bound))
    if bound[lowest] < log_delta + PRECISION:
        return Route(0.0)
    if lowest == 0 and not mirrored and log_delta > _PARITY:
        other = near.swapped
        target = log_delta - at
        found = other.ladder(-at).chernoff(-at)
        masses = [float(np.exp(near.at(np.array([point])).log_moment[0])) for point in (0.0, -1.0)]
        if float(found.min()) < target + PRECISION:
            return Route(0.0, (), (masses[0], masses[1]))
        plan = other.plan(-at, target)
        if plan is None:
            return Route(0.0, (), (masses[0], masses[1]))
        rest = _route(other, plan, -at, target, True, depth)
        return Route(rest.nodes, rest.tasks, (masses[0], masses[1]))
    plan = near.plan(at, log_delta)
    if plan is None:
        return Route(0.0)
    return _route(near, plan, at, log_delta, mirrored, depth)


def _rest(transform: Transform, real: float, top: float) -> float:
    """log of what is left out beyond u = top, if |M| does not rise any more; without e^(−cε)."""
    try:
        found = transform.evaluate(real, np.array([0.97 * top, top]))[0].real.max()
    except ArithmeticError:  # it oscillates too fast there to be resolved
        return math.inf
    return float(found) - math.log(math.pi * top)


@dataclass
class Direction:
    """δ(ε) and ε(δ) of one direction."""

    transform: Transform

    def bound(self, epsilon: float) -> float:
        """The logarithm of the Chernoff bound of δ(ε); −∞ beyond the largest loss."""
        if epsilon >= self.transform.largest_loss:
            return -math.inf
        return float(self.transform.ladder(epsilon).chernoff(epsilon).min())

    def delta(self, epsilon: float) -> Value:
        """δ(ε) with its error."""
        if epsilon >= self.transform.largest_loss:
            return Value(0.0, 0.0)
        bound = self.bound(epsilon)
        try:
            return self._delta(epsilon)
        except ArithmeticError:
            if bound > _TINY:
                raise
            return Value(0.0, math.exp(bound))

    def _delta(self, epsilon: float) -> Value:
        target: float | None = None
        value = error = math.nan
        for _ in range(6):
            found = invert(self.transform, epsilon, target)
            if found is None:
                return Value(0.0, math.ulp(0.0))
            value, _, error = found(epsilon)
            if value > 0 and math.log(value) > found.log_target - 3:
                break
            if found.log_target < _FLOOR and value <= error:
                break
            target = math.log(value) if value > error else found.log_target - 8
        if error >= value / 2 and value + error < _UNTOLD:
            return Value(0.0, value + error)  # noise: far below what a line can tell here
        return Value(max(value, 0.0), error)

    def epsilon(self, log_delta: float) -> Value:
        """The smallest ε >= 0 with δ(ε) <= e^log_delta, with its error."""
        ceiling = self.transform.largest_loss
        if ceiling <= 0:
            return Value(0.0, 0.0)
        target, epsilon = math.exp(log_delta), max(self.transform.guess_epsilon(log_delta), 0.0)
        found: Inversion | None = None
        for _ in range(12):
            if epsilon >= ceiling:
                epsilon = ceiling * (1 - 1e-6)
            start = epsilon
            found = invert(self.transform, start, log_delta)
            if found is None:  # δ there is below every double
                epsilon = start / 2
                continue
            for _ in range(40):
                value, slope, error = found(epsilon)
                if not slope < 0 or abs(value) <= error:
                    epsilon = start / 2
                    break
                change = (math.log(value) - log_delta) * value / slope if value > 0 else epsilon / 2
                epsilon = max(epsilon - change, 0.0)
                if abs(change) <= 4e-15 * epsilon or (epsilon == 0 and value <= target):
                    break
            moved = abs((epsilon - start) * slope / value) if value else math.inf
            if epsilon == start or moved < (1e-7 if found.split else 0.3):
                break
        if found is None:
            raise ArithmeticError(f"no line for log delta = {log_delta:.6g}")
        value, slope, error = found(epsilon)
        if epsilon == 0 and value <= target:
            return Value(0.0, max(0.0, (value + error - target) / abs(slope)))
        wrong = (error + abs(value - target)) / abs(slope) + 4 * UNIT * epsilon
        if wrong <= _ASTRAY * epsilon + 1e-14:
            return Value(epsilon, wrong)
        return self._bracketed(log_delta)

    def _bracketed(self, log_delta: float) -> Value:
        """The root by bracketing, where Newton's steps went astray: slower, and every δ has a line of its own."""
        from scipy.optimize import brentq

        def excess(epsilon: float) -> float:
            value = self.delta(epsilon).value
            return (math.log(value) if value > 0 else NOTHING) - log_delta

        if excess(0.0) <= 0:
            return Value(0.0, 0.0)
        high = 2.0**-40
        while self.bound(high) > log_delta:
            high *= 4
        epsilon = float(brentq(excess, 0.0, high, xtol=1e-300, rtol=1e-14, maxiter=200))
        found = invert(self.transform, epsilon, log_delta)
        if found is None:
            raise ArithmeticError(f"no line for log delta = {log_delta:.6g}")
        value, slope, error = found(epsilon)
        return Value(epsilon, (error + abs(value - math.exp(log_delta))) / abs(slope) + 4 * UNIT * epsilon)
