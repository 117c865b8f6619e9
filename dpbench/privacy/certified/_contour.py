"""δ(ε) of one direction as a ball: the trapezoidal rule on a vertical line, its aliases and its tail bounded.

Two lines: Re z = c > 0 where every M(c) is finite, and −1 < c < 0 ("strip"), where every M is finite whatever the
tails; there the integral is δ − 1. Section 2 of docs/certified.md. Doubles choose the plan, balls prove the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flint import acb, arb

from dpbench.errors import DpbenchError
from dpbench.privacy.certified._factors import Factor
from dpbench.privacy.certified._mixture import positive
from dpbench.privacy.certified._numbers import hold, spend, working_bits

Parts = Sequence[tuple[Factor, int]]
MOST_NODES = 400_000
SMALLEST = -1500.0  # log δ below which [0, Chernoff's bound] is answer enough; the smallest double is e^−745
GRID = 4  # values of c per factor of 2


@dataclass(frozen=True)
class Plan:
    """Where the line stands and how far the nodes go. `log_target` is log of the error that is planned for."""

    c: float
    step: float
    count: int
    beyond: float  # a > c, of the bound of the aliases from above
    lines: tuple[Any, ...]
    log_target: float
    log_size: float  # log of M(c) e^(−cε)

    @property
    def bits(self) -> int:
        """Bits in which the sums are taken: what cancels, and then the digits that are wanted."""
        return int((self.log_size - self.log_target) * 1.9 / math.log(2)) + 64


@dataclass(frozen=True)
class Ball:
    """δ(ε) of one direction, and where its radius comes from (doubles rounded up, to read; the ball holds it all)."""

    value: Any
    aliasing: float = 0.0
    tail: float = 0.0
    moments: float = 0.0
    rounding: float = 0.0
    nodes: int = 0
    bits: int = 64


def log_chernoff_factor(a: float) -> float:
    """log of the largest (1 − e^−x) e^−ax over x >= 0, which is a^a / (1+a)^(1+a)."""
    return -a * math.log1p(1 / a) - math.log1p(a)


class Exponents:
    """log M(c) of the whole composition in doubles, each c once."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.known: dict[float, float] = {}

    def __call__(self, c: float) -> float:
        if c not in self.known:
            self.known[c] = sum(count * factor.log_moment(c) for factor, count in self.parts)
        return self.known[c]

    def saddle(self, epsilon: float, enough: float = SMALLEST) -> tuple[float, float]:
        """The c > 0, of the grid, with the smallest Chernoff bound of δ(ε), or one below `enough`, and its log."""

        def bound(c: float) -> float:
            return self(c) - c * epsilon + log_chernoff_factor(c)

        best = lowest(bound, enough)
        return best, bound(best)

    def epsilon(self, log_delta: float) -> float:
        """The ε at which the Chernoff bound reaches δ."""

        def needed(c: float) -> float:
            return (self(c) + log_chernoff_factor(c) - log_delta) / c

        return max(0.0, needed(lowest(needed)))


def grid(index: int) -> float:
    """The values of c that are tried: few, so that results for one ε are used for others."""
    return float(2.0 ** (index / GRID))


def lowest(function: Callable[[float], float], enough: float = -math.inf) -> float:
    """Where a function with one valley is lowest on the grid, or below `enough`. Doubles; plans only."""
    at, step = 0, 2 * GRID
    value = function(grid(at))
    while step and value >= enough:
        for move in (step, -step):
            if abs(at + move) <= 90 * GRID and function(grid(at + move)) < value:
                at += move
                value = function(grid(at))
                break
        else:
            step //= 2
    return grid(at)


def plan_right(parts: Parts, exponents: Exponents, epsilon: float, log_target: float, hint: Plan | None = None) -> Plan:
    """A line Re z = c > 0 for δ near ε with an error of about e^log_target. `hint`: a plan that was good before."""
    saddle, _ = exponents.saddle(epsilon)
    part = log_target - math.log(3)
    middle = round(math.log2(saddle) * GRID)
    choices = []
    for index in (-6, -5, -4, -3, -2, -1, 0, 1, 2):
        c = grid(middle + index)
        over, beyond = min(
            ((exponents(a) - a * epsilon + log_chernoff_factor(a) - part) / (a - c), a)
            for a in (grid(middle + i) for i in range(-2, 11, 2))
            if a > 1.1 * c
        )
        choices.append((c, max(-part / c, over) * 1.001 + 0.01 / c, beyond))
    c, period, _ = choices[4]
    first = 4 / c if hint is None else hint.count * hint.step
    known = (None,) * len(parts) if hint is None else hint.lines
    tail = Reach(parts, epsilon, part, known)
    reach = _finite(tail.find(c, 2 * math.pi / period, first), epsilon)
    contours, best = list(tail.lines), (math.inf, 0)
    for i, (c, period, _) in enumerate(choices):
        tail.lines, tail.fixed = list(contours), True
        best = min(best, (period * tail.find(c, 2 * math.pi / period, reach), i))
    c, period, beyond = choices[best[1]]
    return _finish(parts, exponents, epsilon, log_target, c, 2 * math.pi / period, beyond, reach, contours)


def plan_strip(parts: Parts, exponents: Exponents, epsilon: float, log_target: float, hint: Plan | None = None) -> Plan:
    """A line −1 < Re z = c < 0, for losses whose M is infinite to the right of 0."""
    depth = -(log_target - math.log(4))
    period = 2 * depth + epsilon + 1
    c = -depth / period
    first = 1.0 if hint is None else hint.count * hint.step
    known = (None,) * len(parts) if hint is None else hint.lines
    return _finish(parts, exponents, epsilon, log_target, c, 2 * math.pi / period, c, first, known)


@dataclass
class Reach:
    """How far in Im z the nodes must go: where the bound of the tail falls to e^`wanted`. Doubles; plans only."""

    parts: Parts
    epsilon: float
    wanted: float
    lines: Sequence[Any]
    fixed: bool = False  # whether the contours stay as they are

    def excess(self, c: float, step: float, u: float) -> float:
        """log of the bound of the tail from u on, less what is wanted; keeps the contours that gave it."""
        rest = -c * self.epsilon + math.log(step / math.pi) + math.log(1 / u**2 + 1 / (step * u)) - self.wanted
        if self.fixed:
            return rest + sum(
                count * factor.lift(c, u, line, True)[0]
                for (factor, count), line in zip(self.parts, self.lines, strict=True)
            )
        for warm in (True, False):  # from the contours at hand, and where they do not do from afresh as well
            found = []
            for (factor, _), line in zip(self.parts, self.lines, strict=True):
                tries = [factor.lift(c, u, line)] if warm else [factor.lift(c, u, line), factor.lift(c, u, None)]
                found.append(min(tries, key=lambda lift: lift[0]))
            self.lines = [line for _, line in found]
            total = rest + sum(count * value for (_, count), (value, _) in zip(self.parts, found, strict=True))
            if total <= 0:
                break
        return total

    def find(self, c: float, step: float, start: float) -> float:
        """The smallest u, within a fifth, where the bound is small enough; inf beyond MOST_NODES."""
        u, factor = start, 1.5 if self.fixed else 2.0
        if self.excess(c, step, u) > 0:
            while self.excess(c, step, u * factor) > 0:
                u *= factor
                if u > MOST_NODES * step:
                    return math.inf
            low, high = u, u * factor
        else:
            while u > 4 * step and self.excess(c, step, u / factor) <= 0:
                u /= factor
            low, high = u / factor, u
        while high > 1.2 * low and high - low > step:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.excess(c, step, middle) > 0 else (low, middle)
        return high


def _finite(reach: float, epsilon: float) -> float:
    """`reach` where it is finite. Raises DpbenchError otherwise."""
    if reach == math.inf:
        raise DpbenchError(
            f"epsilon = {epsilon!r}: expected a loss whose transform decays within {MOST_NODES} nodes, and this one"
            " lies too close to a single point; ask for fewer digits or certify more steps together"
        )
    return reach


def _finish(
    parts: Parts,
    exponents: Exponents,
    epsilon: float,
    log_target: float,
    c: float,
    step: float,
    beyond: float,
    start: float,
    lines: Sequence[Any],
) -> Plan:
    """How many nodes, and the contours that prove the bound from there on."""
    tail = Reach(parts, epsilon, log_target - math.log(3), lines)
    reach = _finite(tail.find(c, step, start), epsilon)
    count = math.ceil(reach / step * 1.01) + 1
    tail.excess(c, step, count * step)
    return Plan(c, step, count, beyond, tuple(tail.lines), log_target, exponents(c) - c * epsilon)


@dataclass
class Transform:
    """M(z)/(z(z+1)) at the nodes of a plan, as balls, with what is needed to bound the rest. Any ε may be asked."""

    plan: Plan
    nodes: list[Any]  # z_k
    values: list[Any]  # Π M_i(z_k)^(T_i) / (z_k (z_k + 1))
    spread: Any  # first-order share of the moments' radius, to report
    tail: Any  # bound of Π |M_i|^(T_i) beyond the last node
    above: Any  # bound of M(beyond); None in the strip
    bits: int

    def delta(self, epsilon: Any) -> Ball:
        """δ(ε) for a ball ε (any real number), with every error enclosed."""
        plan = self.plan
        spend(4 * len(self.nodes) * (1 + self.bits / 600))
        with working_bits(self.bits):
            c, step = arb(plan.c), arb(plan.step)
            total = half_sum(self.nodes, self.values, epsilon) * step / arb.pi()
            rounding = float(arb(total.rad()).upper())
            size = (-c * epsilon).exp()
            tail = tail_bound(self.tail * size, step, plan.count * step)
            aliasing = aliasing_bound(c, step, epsilon, arb(plan.beyond), self.above)
            value = total + arb(0, tail) + arb(0, aliasing / 2)
            value += 1 + aliasing / 2 if self.above is None else -aliasing / 2
            spread = float(positive(self.spread * size))
        return Ball(
            value, float(aliasing), float(tail), spread, max(rounding - spread, 0.0), len(self.nodes), self.bits
        )

    def slope(self, epsilon: float) -> float:
        """dδ/dε in doubles, for Newton's steps only."""
        total = 0.0
        spend(4 * len(self.nodes))
        for k, (z, value) in enumerate(zip(self.nodes, self.values, strict=True)):
            term = float((value * z * (-z * arb(epsilon)).exp()).real.mid())
            total -= term if k else term / 2
        return total * self.plan.step / math.pi


def half_sum(nodes: Sequence[Any], values: Sequence[Any], epsilon: Any) -> Any:
    """Re Σ value e^(−zε) over the nodes, the first one, which is real, halved."""
    total = arb(0)
    for k, (z, value) in enumerate(zip(nodes, values, strict=True)):
        term = (value * (-z * epsilon).exp()).real
        total += term if k else term / 2
    return total


def tail_bound(size: Any, step: Any, first: Any) -> Any:
    """(step/π) Σ |M e^(−zε)| / |z(z+1)| over the nodes from `first` on, `size` bounding the numerator there.

    1/|z(z+1)| <= 1/u² for c > 0, and for −1 < c < 0 as well since |z| >= u and |z + 1| >= u; and the sum of 1/u² over
    the nodes is at most 1/first² + 1/(step · first).
    """
    return positive(size * step / arb.pi() * (1 / first**2 + 1 / (step * first)))


def aliasing_bound(c: Any, step: Any, epsilon: Any, beyond: Any, above: Any) -> Any:
    """The sum over m ≠ 0 of e^(−mcτ) |δ(ε − mτ) − [c < 0]|, τ = 2π/step; every term has the same sign (section 2)."""
    period = 2 * arb.pi() / step
    if above is None:
        left = (c * period).exp()
        right = (-(1 + c) * period).exp()
        return positive(left / (1 - left) + epsilon.exp() * right / (1 - right))
    below = (-c * period).exp()
    fall = (-(beyond - c) * period).exp()
    if not (below < 1 and fall < 1):
        raise AssertionError("the line of the bound must stand to the right of the line of the sum")
    factor = (beyond * beyond.log() - (1 + beyond) * (1 + beyond).log()).exp()
    return positive(below / (1 - below) + above * (-beyond * epsilon).exp() * factor * fall / (1 - fall))


def transform(parts: Parts, plan: Plan, bits: int, progress: Callable[[str], None] | None = None) -> Transform:
    """The balls that `plan` asks for, in `bits` bits. Raises DpbenchError for more than MOST_NODES of them."""
    if plan.count > MOST_NODES:
        raise DpbenchError(
            f"expected mechanisms that {MOST_NODES} nodes resolve, not {plan.count}: the loss is too large for a"
            " proof, ask `dpbench account`"
        )
    with working_bits(bits):
        hold(4.0 * plan.count)
        spend(10 * plan.count * len(parts) * (1 + bits / 600))
        c, step = arb(plan.c), arb(plan.step)
        nodes = [acb(c, k * step) for k in range(plan.count)]
        values = [1 / (z * (z + 1)) for z in nodes]
        releases = sum(count for _, count in parts)
        wanted = plan.log_size - plan.log_target + math.log(releases + 1) + 8
        relative = arb(0)
        tail = arb(1)
        first = plan.count * step
        for (factor, count), line in zip(parts, plan.lines, strict=True):
            moments, radius = factor.moments(c, step, plan.count, wanted)
            relative += count * radius / positive(moments[0])
            values = [value * moment**count for value, moment in zip(values, moments, strict=True)]
            tail *= positive(factor.tail(c, first, line, 16 + math.log(releases + 1))) ** count
            if progress is not None:
                progress(f"{type(factor).__name__}: {plan.count} nodes")
        spread = sum((positive(value) for value in values), arb(0)) * relative * step / arb.pi()
        above = None
        if plan.c > 0:
            above = arb(1)
            for factor, count in parts:
                above *= factor.upper(arb(plan.beyond)) ** count
        return Transform(plan, nodes, values, positive(spread), positive(tail), above, bits)
