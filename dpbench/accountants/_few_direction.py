"""δ(ε) and ε(δ) of one direction of two equal releases, by one integral of closed forms (`_few_releases`).

For groups and replaced records near few releases nothing splits M, and its lines are long. Where the integral is not
the quickest, and from three releases on, `_band_direction` has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dpbench.accountants._contour import Transform
from dpbench.accountants._direction import Direction, Value
from dpbench.accountants._few_pair import Pair
from dpbench.accountants._few_releases import Sum, few
from dpbench.accountants._hinges import group_weights
from dpbench.events import Event, GroupSampledGaussian, SampledGaussian

RELEASES = 2
_LEAST_NOISE, _MOST_NOISE = 0.05, 1e4  # of steps and of exponents that have been tried
_MOST_GROUP = 64
_LOUD, _SMALL = 30.0, 20  # noise and group up to which the integral is quicker than lines
_SELDOM = 1e-4  # the probability that anybody is drawn below which lines are longer still
_AT_ONCE = 32
_UNIT = 2.0**-53
_LEAST_LOG = -1e5
_FIRST_SPREAD, _LAST_SPREAD = 0.02, 1e-7  # of the two places of a secant, relative to ε
_STEPS, _DOUBLINGS, _GUESSES = 100, 200, 240


@dataclass
class FewDirection(Direction):
    """One direction of few equal releases."""

    releases: Sum | None = field(default=None, repr=False)

    @property
    def symmetric(self) -> bool:
        """Whether the other direction is the same."""
        return self._sum.pair.kind == "replace"

    def bound(self, epsilon: float) -> float:
        """The logarithm of an upper bound of δ(ε); −∞ beyond the largest loss."""
        return -math.inf if epsilon >= self.transform.largest_loss else 0.0

    def bounds(self, epsilons: Sequence[float]) -> list[float]:
        """`bound` at ascending ε."""
        return [self.bound(one) for one in epsilons]

    def delta(self, epsilon: float) -> Value:
        """δ(ε) with its error."""
        return self.deltas([epsilon])[0]

    def deltas(self, epsilons: Sequence[float]) -> list[Value]:
        """δ at ascending ε, with their errors."""
        found = []
        for first in range(0, len(epsilons), _AT_ONCE):
            logs, errors = self._sum.log_delta(np.array(epsilons[first : first + _AT_ONCE], dtype=np.float64))
            values = np.exp(np.minimum(logs, 0.0))
            least = np.where(np.isfinite(logs), math.ulp(0.0), 0.0)  # what is above 0 must not be said to be 0
            found += [Value(*pair) for pair in zip(values.tolist(), (values * errors + least).tolist(), strict=True)]
        return found

    def epsilon(self, log_delta: float) -> Value:
        """The smallest ε >= 0 with δ(ε) <= e^log_delta, with its error."""
        if self.transform.largest_loss <= 0:
            return Value(0.0, 0.0)
        return self._root(log_delta, self._guess(log_delta))

    @property
    def quick(self) -> bool:
        """Whether this is quicker than other ways."""
        pair = self._sum.pair
        lines_fail = self.symmetric or (not pair.members[0] and pair.log_weights[0] > -_SELDOM)
        return pair.sigma <= _LOUD and (lines_fail or pair.members[-1] <= _SMALL)

    @property
    def _sum(self) -> Sum:
        assert self.releases is not None
        return self.releases

    def _logs(self, *epsilons: float) -> list[tuple[float, float]]:
        """log δ and its error at each of these."""
        logs, errors = self._sum.log_delta(np.array(epsilons))
        return list(zip(np.maximum(logs, _LEAST_LOG).tolist(), errors.tolist(), strict=True))

    def _guess(self, log_delta: float) -> float:
        """Where so many times one release's δ is that."""
        pair = self._sum.pair
        x = np.linspace(-10, 50, _GUESSES) * pair.sigma + pair.members[-1] / 2
        logs = pair.log_hinge(x) + math.log(self._sum.count)
        return max(float(pair.loss(x)[0][min(int(np.sum(logs > log_delta)), _GUESSES - 1)]), 1e-300)

    def _root(self, log_delta: float, guess: float) -> Value:
        """The root by secants through two places next to the last, between ends that it may not leave."""
        root, spread, low, high = guess, _FIRST_SPREAD, 0.0, self.transform.largest_loss
        (first, _), *_ = self._logs(0.0)
        if first <= log_delta:
            return Value(0.0, self._apart(0.0, log_delta))
        for _ in range(_STEPS):
            root = root if low < root < high else self._between(low, high)
            places = (root * (1 - spread), min(root * (1 + spread), self.transform.largest_loss))
            (before, _), (after, _) = self._logs(*places)
            for place, value in zip(places, (before, after), strict=True):
                low, high = (max(low, place), high) if value > log_delta else (low, min(high, place))
            last = root
            if before > after > _LEAST_LOG:
                root = places[0] + (before - log_delta) * (places[1] - places[0]) / (before - after)
            else:
                root = self._between(low, high)
            change = abs(root - last) / last
            if spread <= _LAST_SPREAD and change <= 2 * spread:
                break
            spread = min(max(change * change, _LAST_SPREAD), _FIRST_SPREAD)
        return Value(root, self._apart(root, log_delta))

    @staticmethod
    def _between(low: float, high: float) -> float:
        if math.isinf(high):
            return 2 * low or 1.0
        return (low + high) / 2

    def _apart(self, root: float, log_delta: float) -> float:
        """How far from `root` the true one is at most: δ falls, and beyond it differs from the target by its error."""
        step = 1e-6 * root or 1e-9
        (value, error), (beyond, _) = self._logs(root, root + step)
        if root == 0 and value + error <= log_delta:
            return 0.0
        slope = (value - beyond) / step
        apart = 2 * (error + abs(value - log_delta)) / slope if slope > 0 else step
        for _ in range(_DOUBLINGS):
            apart = max(apart, 8 * _UNIT * root)
            (below, wrong), (above, off) = self._logs(max(root - apart, 0.0), root + apart)
            if (root <= apart or below - wrong >= log_delta) and above + off <= log_delta:
                break
            apart *= 2
        return apart


def few_direction(parts: tuple[tuple[Event, int], ...], transform: Transform, way: str) -> FewDirection | None:
    """The direction of these parts of a composition, `remove` or `add`; None where another way is as good."""
    found = fewer_direction(parts, transform, way, RELEASES)
    return found if found is not None and found.quick else None


def fewer_direction(
    parts: tuple[tuple[Event, int], ...], transform: Transform, way: str, most: int
) -> FewDirection | None:
    """The same for up to `most` releases, quick or not: None where the integrals do not cover them."""
    if len(parts) != 1:
        return None
    ((event, count),) = parts
    if not isinstance(event, SampledGaussian | GroupSampledGaussian) or not 2 <= count <= most:
        return None
    size = event.group_size if isinstance(event, GroupSampledGaussian) else 1
    noise, replaced = event.noise_multiplier, event.adjacency == "replace_one"
    if (
        (size == 1 and not (replaced or event.sampling_rate < _SELDOM))
        or size > _MOST_GROUP
        or not _LEAST_NOISE <= noise <= _MOST_NOISE
    ):
        return None
    members, log_weights = group_weights(GroupSampledGaussian(event.sampling_rate, noise, size))
    kind = "replace" if replaced else way
    pair = Pair(tuple(int(k) for k in members), tuple(log_weights.tolist()), noise, kind)
    return FewDirection(transform, None, few(pair, count))
