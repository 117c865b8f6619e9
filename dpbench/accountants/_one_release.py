"""The exact curve of one release: its closed form, and the root of that for ε(δ)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dpbench.accountants._hinges import log_hinge
from dpbench.accountants._projections_single import log_release
from dpbench.accountants._work import within_limits
from dpbench.accounting import Estimate, GuaranteeKind, check_delta, check_epsilon
from dpbench.events import Adjacency, Event, RandomSensitivityGaussian

RELATIVE = 2e-11  # `_hinges` states 1e-11, and tests hold it to that
_ROUNDED = 2e-13  # of log δ: closer to δ(0) rounding alone would place a root, and ends need not be sharper
_FIRST, _GROWTH = 1e-12, 16.0  # ε: the least end of a search, and by what the next one is larger


@dataclass(frozen=True)
class SingleCurve:
    """δ(ε) of one release, the larger of both directions."""

    event: Event
    adjacency: Adjacency
    kind: GuaranteeKind = "exact"
    mu: None = None
    ways: tuple[int, ...] = (0, 1)  # remove, add

    def one_way(self, direction: str) -> SingleCurve:
        """The curve of one direction alone, `remove` or `add`."""
        return replace(self, ways=(0 if direction == "remove" else 1,))

    def _log(self, epsilon: float) -> float:
        if isinstance(self.event, RandomSensitivityGaussian):
            return min(max(log_release(self.event, epsilon, way) for way in self.ways), 0.0)
        at = np.array([epsilon])
        return min(max(float(log_hinge(self.event, at, way)[0]) for way in self.ways), 0.0)

    @within_limits
    def delta(self, epsilon: float) -> Estimate:
        """δ at `epsilon`, in [0, 1]."""
        log = self._log(check_epsilon(epsilon))
        value = math.exp(log)
        above = math.ulp(0.0) if log > -math.inf else 0.0  # what is above 0 must not be said to be 0
        return Estimate(value, value * (1 - RELATIVE), min(max(value * (1 + RELATIVE), above), 1.0))

    @within_limits
    def epsilon(self, delta: float) -> Estimate:
        """The smallest ε >= 0 with δ(ε) <= `delta`."""
        target = math.log(check_delta(delta))
        value = 0.0 if self._log(0.0) <= target + _ROUNDED else self._root(target, 0.0)
        low, high = (self._root(target + shift, value, _ROUNDED) for shift in (RELATIVE, -RELATIVE))
        return Estimate(value, max(min(low, value) * (1 - 1e-15), 0.0), max(high, value) * (1 + 1e-15))

    def _root(self, target: float, guess: float, enough: float = 0.0) -> float:
        from scipy.optimize import brentq

        if self._log(0.0) <= target:
            return 0.0
        low, high = 0.0, max(guess, _FIRST)
        while self._log(high) > target:
            low, high = high, _GROWTH * high
        if low == 0 and self._log(high / _GROWTH) > target:
            low = high / _GROWTH

        def excess(epsilon: float) -> float:
            found = max(self._log(epsilon), -1e6) - target
            return 0.0 if abs(found) <= enough else found

        return float(brentq(excess, low, high, xtol=1e-300, rtol=4 * np.finfo(float).eps, maxiter=500))


def single_curve(event: Event, adjacency: Adjacency) -> SingleCurve:
    """The curve of one release of an event that has a closed form."""
    return SingleCurve(event, adjacency)
