"""The transform of releases that have a density, as `_laplace_line` multiplies it to that of losses with atoms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpbench.accountants._contour import Transform
from dpbench.accountants._hinges import Floats
from dpbench.accountants._ladder import Ladder
from dpbench.accountants._loss_leaf import Complex

_BLOCK, _GROWN = 128, 1.5
_MOST = 1 << 14  # nodes of a line


@dataclass(frozen=True)
class Density:
    """One direction of releases whose losses have a density: M(0) = M(−1) = 1."""

    transform: Transform
    _told: dict[bytes, Ladder] = field(default_factory=dict, repr=False)

    def _at(self, points: Floats) -> Ladder:
        """What is known at these points: log M and its derivative are found together."""
        key = points.tobytes()
        if key not in self._told:
            self._told.clear()
            self._told[key] = self.transform.at(points)
        return self._told[key]

    @cached_property
    def _swapped(self) -> Transform:
        return self.transform.swapped

    @property
    def top(self) -> float:
        """The supremum of the loss."""
        return self.transform.largest_loss

    @property
    def variance(self) -> float:
        """Of the loss under the pair's middle."""
        return self.transform.spread**2

    def log_moments(self, real: Floats) -> Floats:
        """log M at real c of one sign, ascending in size, c = 0 and −1 aside; inf where it cannot be told."""
        found = np.where((real == 0) | (real == -1), 0.0, math.inf)
        for at, points in ((self._at, real), (self._swapped.at, -1 - real)):
            some = np.flatnonzero(points > 0)
            while len(some):
                try:
                    logs = at(points[some]).log_moment
                except ArithmeticError:  # far up M is too steep to be resolved
                    some = some[: len(some) // 2]
                    continue
                found[some] = np.where(np.isfinite(logs), logs, math.inf)
                break
        result: Floats = found
        return result

    def drifts(self, real: Floats) -> Floats:
        """d log M / dc at ascending c > 0; the last ones that can be told where there is no telling."""
        count = len(real)
        while True:
            try:
                found = self._at(real[:count]).mean
            except ArithmeticError:
                count //= 2
                continue
            return np.concatenate([found, np.full(len(real) - count, found[-1])])

    def line(self, real: float, step: float, level: Callable[[float], float]) -> tuple[Complex, Floats, float]:
        """log (M(c + iu) / M(c)) at u = 0, step, ..., its error, and log of the size of what is left out.

        It ends where that is below `level(u)`, or at the most nodes. What the last nodes say of all later ones is
        asked again further up (`Transform._risen`), but not proven.
        """
        pieces: list[tuple[Complex, Floats]] = []
        start, size = 0, _BLOCK
        while True:
            u = step * np.arange(start, start + size, dtype=np.float64)
            pieces.append(self.transform.evaluate(real, u))
            start += size
            log_moment, enough = float(pieces[0][0].real[0]), level(float(u[-1]))
            rest = float(pieces[-1][0].real[-size // 4 :].max()) - math.log(math.pi * u[-1]) - log_moment
            if rest < enough or start >= _MOST:
                rest = max(rest, self.transform._risen(real, float(u[-1]), enough + log_moment) - log_moment)
            if rest < enough or start >= _MOST:
                logs: Complex = np.concatenate([log - log_moment for log, _ in pieces])
                wrong: Floats = np.concatenate([error for _, error in pieces])
                return logs, wrong, rest
            size = min(int(_GROWN * start), _MOST - start) // _BLOCK * _BLOCK
