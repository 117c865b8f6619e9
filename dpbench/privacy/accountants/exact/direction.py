"""δ(ε) and ε(δ) of one direction of a composition: what every part of `exact` offers, and what it answers with.

A direction is remove (P with the record, Q without) or add (the reverse). The curve takes the larger of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from dpbench.privacy.accountants._complex import Floats
from dpbench.privacy.accountants.exact.contour import UNIT, Path, Setup, Sum, path
from dpbench.privacy.accountants.exact.saddle import Saddle, Strip

PROMISED, SMALLEST = 1e-9, 1e-12  # the relative and the absolute error that an answer should have at most
_OTHER, _MOVED = 1.1, 0.9  # the scale of the second path, with other heights and steps, and its crossing by the first's
_VALID = 5e-10  # relative error up to which paths are used for other ε than their own
_SURE = 1e-13  # 1 − δ below which its bound is the answer: there the integrand rises before it falls
_USEFUL = 1e-3  # the largest relative error that is allowed there
_SHARP = 2e-11  # relative error of a path from which on another integrand is tried
_AS_WELL = 10.0  # or this many times the relative error at the place itself, where a nearer one helps little
_FINER = 2  # grids of places that are tried before an ε gets paths of its own
_NEWTON = 1.0  # c |Δε| up to which a path is used on the way to a root, which gets its own
_NEAR = 0.3  # c |Δε| and |Δε| / ε up to which a path counts as the root's own
_LITTLE = 1e-3  # relative error of δ with which Newton's steps may end
_STEPS = 80


@dataclass(frozen=True)
class Value:
    """A number and a bound of its absolute error."""

    value: float
    error: float


class Direction(Protocol):
    """δ(ε) of one direction.

    Without an answer (too much work, too large an error) it raises `DpbenchError` or `ArithmeticError`; `exact` turns
    both into a refusal that names the accountant 'lattice'. The curve reports an error above `PROMISED`.
    """

    @property
    def largest(self) -> float:
        """The largest loss: δ is 0 from there on (but for P(L = ∞)); ∞ where there is none."""
        ...

    def deltas(self, epsilons: Sequence[float]) -> list[Value]:
        """δ at every ε >= 0, in ascending order, with its error."""
        ...

    def epsilon(self, log_delta: float) -> Value:
        """The smallest ε >= 0 with log δ(ε) <= `log_delta`, with its error; `Value(0, 0)` where δ(0) is below."""
        ...


@dataclass
class ContourDirection:
    """One direction of a composition by contours; `own`, if known, gives Σ count · δ_i(ε) and its error.

    `reverse` is the direction add, if it is known: at 0 both have the same δ, and there its integrand falls faster.
    """

    setup: Setup
    own: Callable[[Floats], tuple[Floats, Floats]] | None = None
    reverse: ContourDirection | None = None
    _saddle: Saddle | None = field(default=None, repr=False)
    _laid: dict[float, tuple[Path, Path]] = field(default_factory=dict, repr=False)

    @property
    def largest(self) -> float:
        """The largest loss."""
        if self.setup.gaussian:
            return math.inf
        return sum(part.count * part.release.largest for part in self.setup.parts)

    @property
    def saddle(self) -> Saddle:
        """The saddles, computed once."""
        if self._saddle is None:
            self._saddle = Saddle(self.setup, each=self.own is not None and not self.setup.gaussian)
        return self._saddle

    def log_bound(self, epsilon: float) -> float:
        """A bound of log δ(ε), by Chernoff."""
        return self.saddle.log_bound(epsilon) if epsilon < self.largest else -math.inf

    def deltas(self, epsilons: Sequence[float]) -> list[Value]:
        """δ at every ε >= 0: by the paths of the next place below it, of a nearer place, or at last by its own.

        Places do not depend on the other ε, so an answer is the same alone and among others.
        """
        asked = np.array(epsilons, dtype=np.float64)
        delta, error = np.zeros(len(asked)), np.zeros(len(asked))
        rest = np.exp(np.minimum(asked / 2 - self.setup.gaussian / 8, 0.0))  # 1 − δ <= e^(ε/2) M(−½), and M_i(−½) <= 1
        sure = rest < _SURE
        delta[sure], error[sure] = 1.0, rest[sure]
        inside = (asked < self.largest) & ~sure
        little = inside.copy()
        if self.reverse is not None and len(asked) and asked[0] == 0:
            (at,) = self.reverse.deltas([0.0])
            delta[0], error[0] = at.value, at.error
            little = inside & (asked > 0)
        for finer in range(_FINER + 1):
            places = self.saddle.places(asked, finer) if finer < _FINER else asked
            for place in np.unique(places[little]).tolist():
                near = np.flatnonzero(little & (places == place))
                found = self._both(self._paths(place, keep=finer < _FINER), np.append(asked[near], place))
                delta[near], error[near] = found.delta[:-1], found.error[:-1]
                loose = found.error / np.abs(found.delta)
                enough = np.clip(_AS_WELL * loose[-1], _VALID, _USEFUL)
                little[near] = (asked[near] != place) & ~(loose[:-1] < enough)
        for index in np.flatnonzero(inside & (delta == 0) & (error == 0)).tolist():  # sums that underflowed
            error[index] = math.exp(min(self.log_bound(float(asked[index])), 0.0))
        rows = zip(delta.tolist(), error.tolist(), strict=True)
        return [Value(max(0.0, one), wrong + max(0.0, -one)) for one, wrong in rows]

    def epsilon(self, log_delta: float) -> Value:
        """The smallest ε >= 0 with δ(ε) <= e^log_delta: Newton's method on log δ by log ε, or by ε in the way add."""
        target, largest = math.exp(log_delta), self.largest
        epsilon = min(max(self.saddle.guess(log_delta), 0.0), 0.999 * largest)
        low, high, wanted, base = -1.0, largest, 0.0, epsilon  # −1: δ(0) may be below
        known: Path | None = None
        for _ in range(_STEPS):
            if epsilon == 0 and self.reverse is not None:
                (at,) = self.reverse.deltas([0.0])
                if at.value + at.error <= target:
                    return Value(0.0, 0.0)
                if at.value - at.error > target:  # δ(ε) >= δ(0) − (e^ε − 1)
                    low = math.log1p(at.value - at.error - target)
                    epsilon = max(wanted, low)
            if known is None or known.crossing * abs(epsilon - base) > _NEWTON or not base / 2 <= epsilon <= 2 * base:
                strip = self.saddle.strip(epsilon)
                known, base = self._path(strip), epsilon
            found = self._whole(known, np.array([epsilon]))
            value, fall, error = (float(row[0]) for row in (found.delta, found.fall, found.error))
            precise = error <= _LITTLE * max(value, target)
            if not precise and epsilon != base:
                known = None
                continue
            if value > target if precise else epsilon < self.saddle.mean:  # a guess, to be confirmed at the root
                low = max(low, epsilon)
            else:
                high = min(high, epsilon)
            if epsilon == 0 and high == 0:
                return self._nothing(known, target)
            if high - low <= 4 * UNIT * high < math.inf:
                return self._settled(known, strip, epsilon, target)
            following = -1.0
            if precise and value > 2 * error and fall > 0:
                change = math.log(value / target) * value / fall
                straight = self.setup.way == "add" or epsilon < 1e-13
                following = epsilon + change if straight else epsilon * math.exp(min(max(change / epsilon, -3.0), 3.0))
                if abs(following - epsilon) <= max(1e-13 * epsilon, 0.1 * error / fall) and error <= _LITTLE * target:
                    return self._settled(known, strip, following, target)
            if low < 0 and following < epsilon / 2:
                wanted, following = following, 0.0
            epsilon = following if low < following < high else self._between(low, high)
        raise ArithmeticError(f"no root found for log delta = {log_delta:.6g}")

    def _nothing(self, known: Path, target: float) -> Value:
        """ε = 0, where δ(0) is no more than the target, by the path at 0."""
        paths = known, self._path(self.saddle.strip(0.0), other=True)
        step = 0.1 / paths[0].crossing  # for the slope, whose sum does not converge at 0
        found = self._both(paths, np.array([0.0, step]))
        value, error = float(found.delta[0]), float(found.error[0])
        if not 0 <= value <= target or not error <= target / 2:
            raise ArithmeticError(f"the contour gives delta at 0 only as {value:.3g} with an error of {error:.3g}")
        return Value(0.0, max(value + error - target, 0.0) * step / max(value - float(found.delta[1]), 1e-300))

    def _between(self, low: float, high: float) -> float:
        """Between the ends of a bracket of the root."""
        if math.isinf(high):
            return 4 * max(low, 0.0) + 1e-6
        if low <= 0:
            return 0.0 if low < 0 else high / 16
        return 0.5 * (low + high) if self.setup.way == "add" else math.sqrt(low * high)

    def _settled(self, known: Path, strip: Strip, epsilon: float, target: float) -> Value:
        """The root with its error, by both paths at it, or next to it where `known` is laid for a place that near."""
        if max(known.crossing * abs(epsilon - strip.epsilon), abs(epsilon / max(strip.epsilon, 1e-300) - 1)) > _NEAR:
            strip = self.saddle.strip(epsilon)
            known = self._path(strip)
        paths = known, self._path(strip, other=True)
        for _ in range(2):  # a last Newton step, by both paths
            found = self._both(paths, np.array([epsilon]))
            value, fall, error = (float(row[0]) for row in (found.delta, found.fall, found.error))
            if not fall > 0 or not error + abs(value - target) < target / 2:
                raise ArithmeticError(f"the contour gives delta only as {value:.3g} with an error of {error:.3g}")
            apart, last = (value - target) / fall, epsilon
            epsilon = max(epsilon + apart, 0.0)
        return Value(last, error / fall + abs(apart) + 4 * UNIT * last)

    def _paths(self, place: float, keep: bool) -> tuple[Path, Path]:
        """Two paths for δ next to a place, so that one checks the other."""
        if place not in self._laid:
            strip = self.saddle.strip(place)
            found = self._path(strip), self._path(strip, other=True)
            if not keep:
                return found
            self._laid[place] = found
        return self._laid[place]

    def _path(self, strip: Strip, other: bool = False) -> Path:
        """A path in this strip; where M is next to 1 and digits cancel, one with the bulk's normal law taken off."""
        scale, moved = (_OTHER, _MOVED) if other else (1.0, 1.0)
        at = strip.crossing * moved, strip.reach * moved, strip.epsilon, scale, strip.steepest
        plain = path(replace(self.setup, taken=strip.taken), *at)
        if self.setup.way == "add" or self.setup.gaussian:
            return plain
        epsilon = np.array([strip.epsilon])
        found = self._whole(plain, epsilon)
        if found.error[0] <= _SHARP * found.delta[0]:
            return plain
        smooth = path(replace(self.setup, taken="each" if strip.taken == "each" else "one", smooth=True), *at)
        return smooth if self._whole(smooth, epsilon).error[0] < found.error[0] else plain

    def _whole(self, one: Path, epsilons: Floats) -> Sum:
        """δ by one path, with the mechanisms' own δ where they were taken off."""
        found = one.at(epsilons)
        if one.taken != "each":
            return found
        assert self.own is not None
        own, error = self.own(epsilons)
        nudge = 1e-6 * np.maximum(epsilons, 1e-6)
        fall = (own - self.own(epsilons + nudge)[0]) / nudge  # for Newton's steps
        return Sum(found.delta + own, found.fall + fall, found.error + error)

    def _both(self, paths: tuple[Path, Path], epsilons: Floats) -> Sum:
        """δ by the first path; its error is the larger one, and twice what lies between them."""
        first, second = (self._whole(one, epsilons) for one in paths)
        apart = np.abs(first.delta - second.delta)
        return Sum(first.delta, first.fall, np.maximum(first.error, second.error) + 2 * apart)
