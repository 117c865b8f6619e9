"""The exact curve of compositions in which losses with atoms meet others: Laplace of several scales, pairs, densities.

`_mixed` has the mathematics of one direction; here are what is covered, both directions, and the root ε(δ).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from dpbench.accountants import gdp
from dpbench.accountants._atoms import MOST_SUMS, count_sums, discrete_sums, silent
from dpbench.accountants._atoms_laplace import LEAST_NOISE, MOST_RELEASES
from dpbench.accountants._band_direction import band_direction
from dpbench.accountants._contour import Transform
from dpbench.accountants._density_line import Density
from dpbench.accountants._direction import Direction
from dpbench.accountants._few_direction import few_direction
from dpbench.accountants._hinges import Floats
from dpbench.accountants._leaves import leaves
from dpbench.accountants._line_side import LineSide, line_side
from dpbench.accountants._mixed import Closed, Contours, Side, ordered, side
from dpbench.accountants._pair_losses import losses
from dpbench.accountants._poisson import reveals_nothing
from dpbench.accountants._work import TooDear, granted, within_limits
from dpbench.accounting import Estimate, GuaranteeKind, check_delta, check_epsilon
from dpbench.compose import common_adjacency, merge
from dpbench.events import (
    Adjacency,
    Composition,
    ConfidentGNMax,
    DiscretePair,
    Event,
    Gaussian,
    Laplace,
    RandomSensitivityGaussian,
)

PROMISED, SMALLEST = 1e-9, 1e-12
MOST_SCALES, MOST_BENDS, MOST_MU = 8, 5000, 1e6
_MOST_WORK = 1.5e8  # exponentials of an average that narrows what a line tells: about four seconds
_UNIT = 2.0**-53
_GROWTH, _DOUBLINGS = 2.0, 200
_WAYS = ("remove", "add")

Parts = list[tuple[Event, int]]
Ends = tuple[float, float, float]


@dataclass(frozen=True)
class Either:
    """One direction by line integrals, or as an average over the law of the atoms where these leave too much out.

    Where the average would take too much work the line's own ends are the answer.
    """

    line: LineSide
    make: Callable[[], Side] | None

    @cached_property
    def other(self) -> Side | None:
        """The average; None where there is none. Raises TooDear where making it takes too long."""
        return self.make() if self.make is not None else None

    def delta(self, epsilon: float) -> Ends:
        """The value at a real ε, a lower and an upper end."""
        value, lower, upper = self.deltas(np.array([epsilon]))
        return float(value[0]), float(lower[0]), float(upper[0])

    def deltas(self, epsilon: Floats) -> tuple[Floats, Floats, Floats]:
        """The same at several ε."""
        found = np.array(self.line.deltas(epsilon))
        loose = np.flatnonzero(~(found[2] - found[1] <= np.maximum(PROMISED * found[0], SMALLEST)))
        if len(loose) and self.make is not None:
            try:
                with granted(_MOST_WORK):
                    assert self.other is not None
                    more = np.array(self.other.deltas(epsilon[loose]))
            except TooDear:  # the line's own ends stay
                return found[0], found[1], found[2]
            closer = ~(more[2] - more[1] > found[2, loose] - found[1, loose])
            found[:, loose[closer]] = more[:, closer]
        return found[0], found[1], found[2]

    def epsilon(self, target: float) -> Ends:
        """The smallest ε >= 0 with δ(ε) <= `target`, and two places between which the ends of δ put it."""
        found = self.line.epsilon(target)
        loose = not found[2] - found[1] <= max(PROMISED * found[0], SMALLEST)
        if not (loose and found[0] < math.inf and self.make is not None):
            return found
        try:
            with granted(_MOST_WORK):
                assert self.other is not None
                more = _epsilon(self.other, target)
        except TooDear:  # the line's own ends stay
            return found
        return found if more[2] - more[1] > found[2] - found[1] else more


@dataclass(frozen=True)
class MixedCurve:
    """δ(ε), the larger of both directions, with ends that enclose the truth as far as the rest's own errors do.

    >>> from dpbench.events import Composition, Gaussian, Laplace
    >>> curve = mixed_curve(Composition(((Laplace(3.0), 2), (Gaussian(4.0), 3))))
    >>> round(curve.delta(0.1).value, 6)
    0.210805
    """

    sides: tuple[Side | Either, ...]
    adjacency: Adjacency
    kind: GuaranteeKind = "exact"
    mu: None = None

    @within_limits
    def delta(self, epsilon: float) -> Estimate:
        """δ at `epsilon` in [0, 1]; relative 1e-9 or absolute 1e-12, or `reason` says how far off."""
        return self.deltas([epsilon])[0]

    @within_limits
    def deltas(self, epsilons: Sequence[float]) -> list[Estimate]:
        """δ at every one of `epsilons`, each as `delta` has it; one exploration of the curve serves all.

        >>> from dpbench.events import Composition, Gaussian, Laplace
        >>> curve = mixed_curve(Composition(((Laplace(3.0), 2), (Gaussian(4.0), 3))))
        >>> [round(delta.value, 6) for delta in curve.deltas([0.1, 1.0])]
        [0.210805, 0.020393]
        """
        at = np.array([check_epsilon(epsilon) for epsilon in epsilons], dtype=np.float64)
        if not len(at):
            return []
        found = np.array([one.deltas(at) for one in self.sides])  # directions, value and ends, ε
        return [_estimate(*column) for column in np.minimum(found.max(axis=0), 1.0).T.tolist()]

    def one_way(self, direction: str) -> MixedCurve:
        """The curve of one direction alone, `remove` or `add`."""
        if len(self.sides) < 2:
            return self
        return replace(self, sides=(self.sides[0 if direction == "remove" else 1],))

    @within_limits
    def epsilon(self, delta: float) -> Estimate:
        """The smallest ε >= 0 with δ(ε) <= `delta`; infinite where the mass of infinite loss exceeds it."""
        target = check_delta(delta)
        best: Ends = (0.0, 0.0, 0.0)
        for one in self.sides:
            if math.isfinite(best[0]) and best[0] > 0 and one.delta(best[0])[2] < target * (1 - 1e-9):
                continue
            found = one.epsilon(target) if isinstance(one, Either) else _epsilon(one, target)
            best = (max(best[0], found[0]), max(best[1], found[1]), max(best[2], found[2]))
        if best[0] == math.inf:
            return Estimate(*best, "outcomes that reveal the record have more probability than delta")
        return _estimate(*best)


def _estimate(value: float, lower: float, upper: float) -> Estimate:
    reason, error = None, max(value - lower, upper - value)
    if not error <= max(PROMISED * value, SMALLEST):
        reason = f"the error may be {error:.1e}, more than 1e-9 relative and 1e-12 absolute"
    return Estimate(value, lower, upper, reason)


def _epsilon(one: Side, target: float) -> Ends:
    """The root of one direction, and two places between which the ends of δ put it."""
    from scipy.optimize import brentq

    if target <= one.infinite:
        certain = (1 - one.mass_error) * one.infinite >= target
        return math.inf, math.inf if certain else 0.0, math.inf

    def excess(epsilon: float) -> float:
        (value,), _ = one.curve(np.array([epsilon]))
        return math.log(float(value) / target) if value > 0 else -1e3

    if excess(0.0) <= 0:
        value = 0.0
    else:
        low, high = 0.0, 1.0
        while excess(high) > 0:
            low, high = high, 2 * high
        value = float(brentq(excess, low, high, xtol=1e-300, rtol=8 * _UNIT, maxiter=300))
    return value, *_around(one, target, value)


def _around(one: Side, target: float, root: float) -> tuple[float, float]:
    """A place below where δ surely exceeds the target, or 0, and one above where it surely does not."""
    value, lower, upper = one.delta(root)
    apart = 1e-5 * max(root, 1e-3)
    beyond = one.delta(root + apart)[0]
    slope = (value - beyond) / apart  # δ is convex in e^ε: to the left of the root it falls no less, next to it
    start = 8 * _UNIT * max(root, one.loss_error) + (0.6 * (upper - lower) / slope if slope > 0 else apart)
    ends = []
    for sign in (-1, 1):
        step, place = start, root
        for _ in range(_DOUBLINGS):
            place = max(root + sign * step, 0.0)
            _, lower, upper = one.delta(place)
            if (sign < 0 and (place == 0 or lower >= target)) or (sign > 0 and upper <= target):
                break
            step *= _GROWTH
        else:
            place = 0.0 if sign < 0 else math.inf
        ends.append(place)
    if root == 0 and one.delta(0.0)[2] <= target:
        return 0.0, 0.0
    return ends[0], ends[1]


def is_mixed(composition: Composition) -> bool:
    """Whether losses with atoms meet others: densities, other Laplace scales, or pairs beside Laplace."""
    laplace, pairs, rest = _sorted(composition)
    return len(laplace) > 1 or sum(1 for kind in (laplace, pairs, rest) if kind) > 1


def mixed_refusal(composition: Composition) -> str | None:
    """Why such a composition is too large; None where it is not. What single events may be is checked elsewhere."""
    laplace, pairs, rest = _sorted(composition)
    if any(isinstance(event, RandomSensitivityGaussian) for event, _ in rest):
        return "RandomSensitivityGaussian beside losses with atoms is not covered; try the accountant 'lattice'"
    for event, count in laplace:
        if event.relative_noise < LEAST_NOISE:
            return f"noise / sensitivity = {event.relative_noise!r}: Laplace beside others goes down to {LEAST_NOISE}"
        if count > MOST_RELEASES:
            return f"count = {count}: Laplace beside others goes to {MOST_RELEASES}; use the lattice accountant"
    if len(laplace) > MOST_SCALES:
        return f"{len(laplace)} Laplace scales: at most {MOST_SCALES} are covered; use the lattice accountant"
    size = count_sums(pairs)
    if size > MOST_SUMS:
        return f"about {size:.3g} attainable sums: exact sums go to {MOST_SUMS}; use the lattice accountant"
    mu = _mu(rest)
    if mu is not None and mu > MOST_MU:
        return f"mu = {mu:.3g}: Gaussian releases beside losses with atoms go to {MOST_MU:.0e}; give more noise"
    return None


def mixed_curve(composition: Composition) -> MixedCurve:
    """The exact curve of a composition that `is_mixed` and that nothing refuses."""
    adjacency = common_adjacency(composition)
    assert adjacency is not None  # the support has seen to it
    laplace, pairs, rest = _sorted(composition)
    mu = _mu(rest) if rest else 0.0
    ways = []
    if mu is None:
        ways = [Transform(tuple((leaf, n) for one, n in rest for leaf in leaves(one, way))) for way in _WAYS]
    bends = _bends(laplace, bool(pairs)) ** (1 if mu is not None else 2)  # a density makes many pieces next to each
    sides: list[Side | Either] = []
    for direction in (0, 1) if pairs or not _symmetric(rest) else (0,):
        sums = discrete_sums(pairs, direction) if pairs else None
        make = partial(side, _rest(rest, direction, ways), _scales(laplace), sums)
        if (not laplace and mu is not None) or (sums is not None and not len(sums.losses)):
            sides.append(make())
            continue
        density = Density(ways[direction]) if mu is None else None
        told = [(*losses(pair, direction), count) for pair, count in pairs]
        line = line_side(_scales(laplace), told, mu or 0.0, sums, density)
        sides.append(Either(line, make if bends <= MOST_BENDS else None))
    return MixedCurve(tuple(sides), adjacency)


def _sorted(composition: Composition) -> tuple[list[tuple[Laplace, int]], list[tuple[DiscretePair, int]], Parts]:
    """The merged parts that reveal anything: Laplace, discrete pairs, all others."""
    laplace: list[tuple[Laplace, int]] = []
    pairs: list[tuple[DiscretePair, int]] = []
    rest: Parts = []
    for event, count in merge(composition):
        if isinstance(event, Laplace):
            laplace += [] if silent(event) else [(event, count)]
        elif isinstance(event, DiscretePair):
            pairs += [] if silent(event) else [(event, count)]
        elif not reveals_nothing(event):
            rest.append((event, count))
    return laplace, pairs, rest


def _scales(laplace: list[tuple[Laplace, int]]) -> list[tuple[float, int]]:
    return [(event.relative_noise, count) for event, count in laplace]


def _bends(laplace: list[tuple[Laplace, int]], all_of_them: bool) -> int:
    """At how many places a curve bends that is averaged over one scale after the other."""
    before = ordered(_scales(laplace))
    return math.prod(count + 1 for _, count in (before if all_of_them else before[:-1]))


def _mu(rest: Parts) -> float | None:
    """μ of Gaussian releases; None where there are none or others."""
    composition = Composition(tuple(rest))
    return gdp.accountant.curve(composition).mu if rest and gdp.accountant.supports(composition) else None


def _symmetric(rest: Parts) -> bool:
    """Whether both directions have the same curve."""
    return all(isinstance(event, Gaussian | ConfidentGNMax) or event.adjacency == "replace_one" for event, _ in rest)


def _rest(rest: Parts, direction: int, ways: Sequence[Transform]) -> Closed | Contours | None:
    """δ of all that has a density, in one direction."""
    if not rest:
        return None
    mu = _mu(rest)
    if mu is not None:
        return Closed(Gaussian(1 / mu), 0)
    if sum(count for _, count in rest) == 1 and not isinstance(rest[0][0], ConfidentGNMax):
        return Closed(rest[0][0], direction)
    both = [
        few_direction(tuple(rest), transform, way)
        or band_direction(tuple(rest), transform, way)
        or Direction(transform)
        for transform, way in zip(ways, _WAYS, strict=True)
    ]
    return Contours(both[direction], both[1 - direction])
