"""One direction of a composition: δ(ε) from above, and back, each from the tilt that suits the question."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from dpbench.accountants._log_ratios import Floats
from dpbench.accountants.lattice.composition import Table, compose, log_kappa
from dpbench.accountants.lattice.losses import LossLaw
from dpbench.accountants.lattice.rounding import Plan, mean_and_variance

_RUNGS, _PER_OCTAVE = 240, 4
_COARSE = 2**13  # cells of the lattice that finds the tilt
_GIVEN_UP = math.log(100)  # digits of δ that a smaller tilt may cost, for narrower windows


class Direction:
    """A whole composition in one direction. Tables are remembered per rung of the ladder of tilts.

    Which rung answers depends on the question alone, so that answers do not depend on what was asked before.
    """

    def __init__(self, laws: Sequence[tuple[LossLaw, int]]) -> None:
        self.plans = [Plan(law, count) for law, count in laws]
        finite = math.fsum(count * math.log1p(-min(law.infinite, 1 - 1e-16)) for law, count in laws)
        self.infinite = min(-math.expm1(finite) * (1 + 1e-12), 1.0)
        ends = [count * law.highest for law, count in laws]
        self.highest = -math.inf if -math.inf in ends else math.fsum(ends)  # no finite loss of the sum exceeds it
        self.tilts, self.moments = np.empty(0), np.empty(0)
        self.tables: dict[tuple[int, int | None], Table] = {}
        if self.highest > -math.inf:
            deviation = math.sqrt(mean_and_variance(self.plans, 0.0)[1])
            limit = min(law.highest_tilt for law, _ in laws)
            heavy = [float(plan.losses.max()) for plan in self.plans if plan.law.branches and plan.law.infinite > 0]
            limit_of_heavy = 1 / max(heavy, default=1.0)  # a heavy tail that ends there must not outweigh the rest
            unit = 2.0 ** math.floor(
                math.log2(min(1 / (8 * deviation) if deviation > 0 else 1.0, limit / 256, limit_of_heavy))
            )
            tilts = unit * 2.0 ** (np.arange(_RUNGS) / _PER_OCTAVE)
            self.tilts = tilts[tilts <= limit]
            self.moments = sum((plan.count * plan.log_moments(self.tilts) for plan in self.plans), np.zeros(1))

    def log_delta(self, epsilon: float) -> float:
        """log δ(ε), infinite losses included."""
        log_infinite = math.log(self.infinite) if self.infinite > 0 else -math.inf
        if epsilon >= self.highest * (1 + 1e-12):
            return log_infinite
        if float(self._bounds(epsilon).min()) < -800:  # next to 0 whatever the table says
            return max(-750.0, log_infinite)
        found = min(self._table(rung).log_delta(epsilon) for rung in self._rungs(epsilon))
        return float(np.logaddexp(min(found, 0.0), log_infinite))

    def epsilon(self, delta: float) -> float:
        """The smallest ε >= 0 at which δ(ε) <= `delta`; infinite where infinite losses alone exceed it."""
        left = delta - self.infinite
        if left <= 0:
            return math.inf
        if self.highest == -math.inf:
            return 0.0
        log_delta = math.log(left)
        chernoff = min(max(float(((self._bounds(0.0) - log_delta) / self.tilts).min()), 0.0), self.highest)
        guess = min(self._settled(log_delta, chernoff, _COARSE), chernoff)
        return self._settled(log_delta, guess, None)

    def _settled(self, log_delta: float, found: float, cells: int | None) -> float:
        """From ε to the rungs that answer for it, to the ε of their tables, until the same rungs come again.

        The largest ε of the cycle: its δ is at most what was asked for, by the rungs that answer for it.
        """
        asked: list[tuple[int, ...]] = []
        ends: list[float] = []
        while (rungs := self._rungs(found, cells)) not in asked:
            found = min(falls_to(self._table(rung, cells).log_delta, log_delta, found) for rung in rungs)
            found = min(found, self.highest)
            asked.append(rungs)
            ends.append(found)
        return max(ends[asked.index(rungs) :])

    def _bounds(self, epsilon: float) -> Floats:
        """Chernoff's bound of log δ(ε) at every rung, about."""
        result: Floats = self.moments - self.tilts * epsilon + log_kappa(self.tilts)
        return result

    def _rungs(self, epsilon: float, cells: int | None = None) -> tuple[int, ...]:
        """The lowest rung whose bound is at most a hundred times the best one, for there windows are narrower; and the
        best one where errors are more than a ten-thousandth of the lower one's δ."""
        bounds = self._bounds(epsilon)
        best = int(np.argmin(bounds))
        low = int(np.argmax(bounds <= bounds[best] + _GIVEN_UP))
        return (low,) if low == best or self._table(low, cells).doubt(epsilon) < 1e-4 else (low, best)

    def _table(self, rung: int, cells: int | None = None) -> Table:
        cells = None if sum(plan.count for plan in self.plans) == 1 else cells  # one release has no lattice
        if (rung, cells) not in self.tables:
            self.tables[rung, cells] = compose(self.plans, float(self.tilts[rung]), cells)
        return self.tables[rung, cells]


def falls_to(log_delta: Callable[[float], float], target: float, guess: float) -> float:
    """Where a falling function reaches `target`, from above and at most 1e-12 too large; 0 if it starts below.

    Regula falsi with the Illinois rule, from 0 and about `guess`; every fourth step halves.
    """
    low, high = 0.0, max(guess, 1e-12)
    above, below = log_delta(low) - target, log_delta(high) - target
    if above <= 0:
        return 0.0
    while below > 0:
        low, above, high = high, below, 8 * high
        below = log_delta(high) - target
        if high > 1e300:
            return math.inf
    last = steps = 0
    while high - low > 1e-12 * high and high > 1e-300:
        steps += 1
        chord = (low * below - high * above) / (below - above) if steps % 4 else (low + high) / 2
        middle = min(max(chord, low + 4e-13 * high), high - 4e-13 * high)
        value = log_delta(middle) - target
        side = 1 if value > 0 else -1
        if side > 0:
            low, above, below = middle, value, below / 2 if last == side else below
        else:
            high, below, above = middle, value, above / 2 if last == side else above
        last = side
    return high
