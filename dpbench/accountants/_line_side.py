"""δ(ε) and ε(δ) of one direction by the lines of `_laplace_line`: which of them to take, and the root."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dpbench.accountants._hinges import Floats
from dpbench.accountants._laplace_line import Line
from dpbench.accountants._line_releases import Ladder, Releases, variance

if TYPE_CHECKING:
    from dpbench.accountants._atoms import Sums
    from dpbench.accountants._density_line import Density

_UNIT = 2.0**-53
_LOSS = 4.0  # log of how much larger than at its best an integrand may be for a line to serve an ε
_LITTLE, _APART = 1.0, 6  # the same for one of every so many lines to be taken, which then serves the next ε too
_WAYS = np.concatenate([[0.0], 0.05 * 1.25 ** np.arange(30)])  # in deviations, how far a line may serve
_STEPS, _DOUBLINGS = 120, 200


@dataclass
class LineSide:
    """One direction of the whole composition, answering as `_mixed.Side`; `sums` are those of the pairs."""

    releases: Releases
    sums: Sums | None = None
    _lines: dict[tuple[int, float | None], Line] = field(default_factory=dict, repr=False)

    @property
    def infinite(self) -> float:
        """The mass of infinite loss."""
        return self.sums.infinite if self.sums is not None else 0.0

    @property
    def mass_error(self) -> float:
        """Relative, of the infinite mass."""
        return self.sums.mass_error if self.sums is not None else 0.0

    @cached_property
    def ladder(self) -> Ladder:
        """Lines to choose from."""
        return Ladder.of(self.releases)

    def _answers(self, epsilon: Floats) -> tuple[Floats, Floats, Floats]:
        """δ, its error and about −dδ/dε at each ε in any order."""
        results = np.zeros((3, len(epsilon)))
        top = self.releases.top
        beyond = (epsilon >= top) & (epsilon <= top + 2 * self.releases.loss_error(epsilon))
        results[1, beyond] = 4 * self.releases.loss_error(epsilon[beyond])
        order = np.argsort(epsilon, kind="stable")
        order = order[epsilon[order] < top]
        while len(order):
            line = self._line(float(epsilon[order[0]]), float(epsilon[order[-1]]))
            some = order[epsilon[order] <= line.high]
            order = order[len(some) :]
            results[:, some] = line(epsilon[some])
        values = np.maximum(results[0], 0.0) + self.infinite
        return values, results[1] + self.mass_error * self.infinite, results[2]

    def _line(self, first: float, last: float) -> Line:
        """One that serves `first`, and as much as may be up to `last`; for a single ε one of a few, where a few do."""
        ladder = self.ladder
        lost = ladder.lines - ladder.reals * first
        lost -= lost.min()
        places, rung = np.arange(len(lost)), int(lost.argmin())
        few = places[::_APART][lost[::_APART] <= _LITTLE]
        if last > first:
            middle = (rung + float(np.interp(last, ladder.epsilons, places))) / 2
            rung = int(places[(places >= rung) & (places <= max(middle, rung)) & (lost <= _LOSS)][-1])
        elif len(few):
            rung = int(few[np.argmin(lost[few])])
        low, high = self._span(rung)
        key = (rung, None if low <= first <= high else first)
        if key not in self._lines:
            real, log = float(ladder.reals[rung]), float(ladder.logs[rung])
            self._lines[key] = Line(self.releases, real, log, (min(low, first), max(high, first)), self.sums)
        return self._lines[key]

    def _span(self, rung: int) -> tuple[float, float]:
        """The ε about a line's own that it serves."""
        ladder, own = self.ladder, float(self.ladder.epsilons[rung])
        ends = []
        for away in (-self._ways, self._ways):
            epsilon = own + away
            bad = ladder.lines[rung] - ladder.reals[rung] * epsilon - ladder.best(epsilon) > _LOSS
            ends.append(float(epsilon[max(int(np.argmax(bad)) - 1, 0) if bad.any() else -1]))
        return ends[0], min(ends[1], self.releases.top)

    @cached_property
    def _ways(self) -> Floats:
        found: Floats = _WAYS * math.sqrt(variance(self.releases))
        return found

    def delta(self, epsilon: float) -> tuple[float, float, float]:
        """The value at a real ε, a lower and an upper end."""
        value, lower, upper = self.deltas(np.array([epsilon]))
        return float(value[0]), float(lower[0]), float(upper[0])

    def deltas(self, epsilon: Floats) -> tuple[Floats, Floats, Floats]:
        """The same at several ε."""
        values, errors, _ = self._answers(epsilon)
        return values, np.maximum(values - errors, 0.0), values + errors

    def epsilon(self, delta: float) -> tuple[float, float, float]:
        """The smallest ε >= 0 with δ(ε) <= `delta`, and two places between which the ends of δ put it."""
        if delta <= self.infinite:
            certain = (1 - self.mass_error) * self.infinite >= delta
            return math.inf, math.inf if certain else 0.0, math.inf
        root, slope, error = self._root(delta)
        if root == 0 and self.delta(0.0)[2] <= delta:
            return 0.0, 0.0, 0.0
        start = 8 * _UNIT * root + (1.5 * error / slope if slope > 0 else 1e-9)
        ends = []
        for sign in (-1, 1):
            step, place = start, root
            for _ in range(_DOUBLINGS):
                place = max(root + sign * step, 0.0)
                _, lower, upper = self.delta(place)
                if (sign < 0 and (place == 0 or lower >= delta)) or (sign > 0 and upper <= delta):
                    break
                step *= 2
            else:
                place = 0.0 if sign < 0 else math.inf
            ends.append(place)
        return root, ends[0], ends[1]

    def _root(self, delta: float) -> tuple[float, float, float]:
        """ε with δ(ε) = `delta`, or 0; the slope of δ and its error there: Newton's steps on log δ in a bracket."""
        low, high = 0.0, self.releases.top
        rising = np.maximum.accumulate(-self.ladder.log_deltas)
        guess = float(np.interp(-math.log(delta), rising, self.ladder.epsilons))
        epsilon = min(max(guess, 0.0), high)
        last, lowest = math.inf, False  # whether δ(0) is known
        slope = error = 0.0
        for _ in range(_STEPS):
            (value,), (error,), (slope,) = (found.tolist() for found in self._answers(np.array([epsilon])))
            if value > delta:
                low = max(low, epsilon)
            else:
                high = min(high, epsilon)
            if abs(value - delta) <= error / 64 or high - low <= 2 * _UNIT * epsilon:
                break
            step = math.log(value / delta) * value / slope if value > 0 and slope > 0 else math.inf
            following = epsilon + step
            if following <= 0 and low == 0 and epsilon > 0 and not lowest:
                lowest, epsilon = True, 0.0
                continue
            if epsilon == 0 and value <= delta:
                break
            if not low < following < high or abs(step) > 0.7 * last:
                following = 0.5 * (low + high) if high < math.inf else 2 * epsilon + 1
            last = abs(following - epsilon)
            if last == 0:
                break
            epsilon = following
        return epsilon, slope, error


def line_side(
    scales: Sequence[tuple[float, int]],
    pairs: Sequence[tuple[Floats, Floats, int]] = (),
    mu: float = 0.0,
    sums: Sums | None = None,
    density: Density | None = None,
) -> LineSide:
    """One direction: Laplace scales with their counts, pairs with their sums, the Gaussian part's μ (0 for none)."""
    widths, counts = np.array([1 / noise for noise, _ in scales]), np.array([n for _, n in scales], dtype=np.int64)
    return LineSide(Releases(widths, counts, tuple(pairs), mu, density), sums)
