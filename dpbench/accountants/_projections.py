"""δ(ε) and ε(δ) of compositions with releases of random sensitivity.

Where δ is not tiny, by the paths of `_projections_path`; where it is, large losses are rare, and they are counted
(`_projections_rare`). Either stands in for the other where that fails, and where both do, `_projections_bracket` tells
between which ends ε lies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.accountants._direction import Value
from dpbench.accountants._loss_leaf import UNIT
from dpbench.accountants._projections_bracket import bracket, hit
from dpbench.accountants._projections_density import Law
from dpbench.accountants._projections_jumps import Jumps
from dpbench.accountants._projections_moment import Release, Whole
from dpbench.accountants._projections_path import LOST, departure, make_path
from dpbench.accountants._projections_rare import Rare
from dpbench.accountants._projections_transform import HeavyTransform
from dpbench.events import ConfidentGNMax, Event, Gaussian, RandomSensitivityGaussian, SampledGaussian

_SERVES = 3e-10  # relative error of δ up to which a path made for another ε serves
_KEPT = 3e-11  # the same on the way to a root
_STEPS = 60
_NOTHING = 1e-31  # δ below this is told by its bound
_UNTOLD = 0.01  # relative error of δ from which on ε is not told
LOSSES = (LOST, 13.0, 4.0)  # tried until one does well
WHOLE_LOSSES = (4.0, LOST, 13.0)  # where nothing is sampled, and long edges cost little
_WELL = 1e-10  # relative error of ε
_TOLD = 4e-10  # the same of what counts large losses, whose windows are not better than they are
_TINY, _SMALL, _SMALLER = -12.0, 2.0, 0.02  # log δ and ε, or ε: from here on large losses are counted first
_HEAVY, _MODERATE = 5, 50.0  # with more projections tails are lighter, and so they are up to this ε
_SPARED = 0.8
_CURVE, _AHEAD = 4, 6.0  # with more ε than so many, what tells one is made to tell some beyond it
_MOST_NOISE = 1e100  # beyond, nothing is revealed that a double could tell


Told = Callable[[float], tuple[float, float, float]]  # of ε: δ, its derivative, and a bound of its error


@dataclass
class HeavyDirection:
    """δ(ε) and ε(δ) of one direction. What it remembers never changes an answer."""

    transform: HeavyTransform

    @property
    def direction(self) -> str:
        """`remove` or `add`."""
        return self.transform.direction

    def bound(self, epsilon: float) -> float:
        """The logarithm of an upper bound of δ(ε); −∞ beyond the largest loss."""
        return self.transform.bound(epsilon)

    def bounds(self, epsilons: Sequence[float]) -> list[float]:
        """`bound` at every ε."""
        return [self.bound(epsilon) for epsilon in epsilons]

    @property
    def _heaviest(self) -> float:
        """The fewest projections."""
        return min(part.law.projections or math.inf for part, _ in self.transform.parts)

    def _losses(self) -> tuple[float, ...]:
        return LOSSES if self.transform.sampled else WHOLE_LOSSES

    def delta(self, epsilon: float) -> Value:
        """δ(ε) with its error."""
        return self.deltas([epsilon])[0]

    def deltas(self, epsilons: Sequence[float]) -> list[Value]:
        """δ at ascending ε, with their errors; neighbours share a path while it serves."""
        with np.errstate(over="ignore", invalid="ignore"):  # `_checked` sees to what is not finite
            return self._deltas(epsilons)

    def _deltas(self, epsilons: Sequence[float]) -> list[Value]:
        found: list[Value] = []
        path: Told | None = None
        ahead = _AHEAD if len(epsilons) > _CURVE else 0.0
        for epsilon in epsilons:
            if epsilon >= self.transform.largest_loss:
                found.append(Value(0.0, 0.0))
                continue
            value, _, error = path(epsilon) if path is not None else (0.0, 0.0, 1.0)
            most = math.exp(self.bound(epsilon))
            if not error < max(_SERVES * value, 1e-300):
                path, value, error = self._alone(epsilon, most, ahead, path)
            # nothing is known but the bound
            found.append(_checked(max(value, 0.0), error) if error < most else Value(0.0, max(most, math.ulp(0.0))))
        return found

    def _alone(self, epsilon: float, most: float, ahead: float, last: Told | None) -> tuple[Told | None, float, float]:
        """What tells δ at this ε, δ there and its error, which is no better than `most` where nothing tells.

        On a curve the way that the last one took is tried first, and aims at a δ that is e^ahead times smaller.
        """
        if most < _NOTHING:
            return None, 0.0, most
        best: tuple[Told | None, float, float] = None, 0.0, most
        path: Told
        self.transform.spent = 0.0
        rare = Rare(self.transform, ahead=ahead)
        few = _SMALL if self._heaviest <= _HEAVY else _MODERATE
        counted = 0 < epsilon < _SMALLER or (
            0 < epsilon < few and (math.log(most) < _TINY or epsilon > rare.guess(_TINY))
        )
        if ahead and last is not None:
            counted = isinstance(last, Jumps)
        for lost in (None, *self._losses()) if counted else (*self._losses(), None):
            self.transform.spent *= _SPARED  # what fails once may fail again
            try:
                if lost is None:  # large losses are counted
                    path, value, error = rare.delta(epsilon, math.log(most))
                else:  # nearer to 0 the path costs less, and loses more to rounding
                    path = make_path(self.transform, epsilon, lost)
                    value, _, error = path(epsilon)
            except ArithmeticError:  # too many nodes
                continue
            if not value - error <= most:  # another route knows better
                continue
            if error < best[2]:
                best = path, value, error
            if error <= (_TOLD if lost is None else _SERVES) * value:
                break
        return best

    def guess(self, log_delta: float) -> float:
        """ε with δ(ε) about e^log_delta."""
        ceiling = self.transform.largest_loss
        if departure(self.transform, 0.0)[2] <= log_delta:
            return 0.0
        low, high = 0.0, 1e-3
        while high < ceiling and departure(self.transform, high)[2] > log_delta:
            low, high = high, 2 * high
        high = min(high, ceiling)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if departure(self.transform, middle)[2] > log_delta else (low, middle)
            if high - low < 1e-4 * high:
                break
        return (low + high) / 2

    def epsilon(self, log_delta: float) -> Value:
        """The smallest ε >= 0 with δ(ε) <= e^log_delta, with its error."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.transform.largest_loss <= 0:
                return Value(0.0, 0.0)
            certain = [0.0, self.transform.largest_loss]
            best: Value | None = None
            first = True
            rare = Rare(self.transform)
            few = _SMALL if self._heaviest <= _HEAVY else _MODERATE
            counted = rare.guess(log_delta) < (few if log_delta < _TINY else _SMALLER)
            for lost in (None, *self._losses()) if counted else (*self._losses(), None):
                try:
                    if lost is None:
                        found = rare.epsilon(log_delta)
                    else:
                        start = self.guess(log_delta) if first else hit(self.transform, log_delta)
                        first = False
                        found = self._root(log_delta, lost, certain, start)
                except ArithmeticError:  # too many nodes, or too much rounding
                    continue
                if best is None or found.error < best.error:
                    best = found
                if best.error <= (_TOLD if lost is None else _WELL) * best.value:
                    break
            return bracket(self.transform, log_delta, certain) if best is None else best

    def _root(self, log_delta: float, lost: float, certain: list[float], epsilon: float) -> Value:
        """The root by Newton's method from `epsilon` on; `certain` is told between which two ε it lies for sure."""
        ceiling, target = self.transform.largest_loss, math.exp(log_delta)
        value = slope = error = math.nan
        path: Told | None = None
        touched, last = False, max(epsilon, 1e-300)
        usual = 0.0  # the relative error that the path had where it was made
        for _ in range(_STEPS):
            epsilon = min(epsilon, ceiling * (1 - 1e-9))
            if path is not None:
                value, slope, error = path(epsilon)
            if path is None or not error < max(_KEPT, 2 * usual) * value:
                path = make_path(self.transform, epsilon, lost)
                value, slope, error = path(epsilon)
                usual = error / value if value > error else 0.0
            if value - error > target:
                certain[0] = max(certain[0], epsilon)
            elif value + error < target:
                certain[1] = min(certain[1], epsilon)
            if epsilon == 0 and value <= target:
                return Value(0.0, max(0.0, (value + error - target) / abs(slope)) if slope else 0.0)
            if not (math.isfinite(value) and math.isfinite(error)):
                break
            if not slope < 0 or value <= error:
                epsilon = (epsilon + certain[0]) / 2 if certain[0] < epsilon else last / 8
                continue
            change = (math.log(value) - log_delta) * value / slope
            moved = max(epsilon - change, epsilon / 8)
            last = epsilon or last
            if change > epsilon and not touched:  # it may be 0
                touched, moved = True, 0.0
            done = abs(moved - epsilon) <= 4e-15 * epsilon or epsilon == moved
            epsilon = moved
            if done:
                break
        value, slope, error = path(epsilon) if path is not None else (math.nan,) * 3
        if not (error < _UNTOLD * value and slope < 0):
            raise ArithmeticError(f"log delta = {log_delta:.6g} is below what this path can tell from its rounding")
        if not value - error <= math.exp(min(self.bound(epsilon), 0.0)):
            raise ArithmeticError("the path and the bound of delta contradict each other")
        wrong = (error + abs(value - target)) / abs(slope) + 4 * UNIT * epsilon
        return _checked(epsilon, wrong)


def _checked(value: float, error: float) -> Value:
    if not (math.isfinite(value) and math.isfinite(error)):
        raise ArithmeticError("the transform of a random sensitivity overflows on the path of its integral")
    return Value(value, error)


def heavy_directions(events: Sequence[tuple[Event, int]]) -> tuple[HeavyDirection, ...] | None:
    """The directions of a composition with releases of random sensitivity; None where there is none that tells.

    Of the events only those are expected that `_leaves.support` lets pass.
    """
    squared_mu, heavy = 0.0, False
    sampled: list[tuple[Release | Whole, int]] = []
    whole: list[tuple[Release | Whole, int]] = []
    for event, count in events:
        if isinstance(event, ConfidentGNMax):
            squared_mu += count * (event.selection_noise**-2 + (2 * event.answer_noise**-2 if event.answered else 0.0))
            continue
        assert isinstance(event, Gaussian | SampledGaussian | RandomSensitivityGaussian)
        rate = 1.0 if isinstance(event, Gaussian) else event.sampling_rate
        noise = event.relative_noise if isinstance(event, Gaussian) else event.noise_multiplier
        projections = event.projections if isinstance(event, RandomSensitivityGaussian) else None
        if rate == 0 or noise > _MOST_NOISE:
            continue
        heavy = heavy or projections is not None
        if rate < 1:
            sampled.append((Release(rate, Law(noise, projections)), count))
        elif projections is None:
            squared_mu += count * noise**-2
        else:
            whole.append((Whole(Law(noise, projections)), count))
    if not heavy:
        return None
    parts = (*sampled, *whole)
    ways = ("remove", "add") if sampled else ("remove",)  # without sampling the pair is symmetric
    return tuple(HeavyDirection(HeavyTransform(parts, squared_mu, way)) for way in ways)
