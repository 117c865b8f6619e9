"""δ(ε) and ε(δ) of one direction of sampled releases, by `_bands` where the lines of `_direction` are dear.

Lines grow long, or fail, where releases rarely show anything and where few of a group are composed: then each band of
losses has a short line of its own. Otherwise lines are quicker, and bands only mend what lines leave uncertain. For
several ε at once bands are laid that serve all of them (`_band_curve`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpbench.accountants._band_curve import band_curve
from dpbench.accountants._band_leaf import Leaf
from dpbench.accountants._band_split import Split
from dpbench.accountants._bands import Bands
from dpbench.accountants._chain import SHARED
from dpbench.accountants._contour import Transform
from dpbench.accountants._direction import PROMISED, SMALLEST, WORTH_A_CHAIN, Direction, Value
from dpbench.accountants._few_direction import FewDirection, fewer_direction
from dpbench.accountants._few_pair import Pair
from dpbench.accountants._hinges import group_weights
from dpbench.accountants._inversion import planned_nodes
from dpbench.accountants._loss_leaf import UNIT, Floats
from dpbench.events import Event, GroupSampledGaussian, SampledGaussian

MOST_LEAVES, _MOST_NOISE = 8, 1e5
_CURVE = 4  # ε that are a curve
_FEW = 10  # releases from which on integrals take longer than lines
_FEW_PLAIN = 10  # releases without groups for which lines may be dear
_MANY = 3000  # from which on a curve that bands do not tell is quicker by lines, however rare the losses are
_DEAR = 900.0  # nodes of a route
_WIDE = 2.0  # spread of the losses from which on those of groups need not be small
_STEEP = 1000.0  # degree / (σ spread) from which on bands are quicker than lines that know windows
_CLOSE, _NEAR = 2e-11, 1e-11  # relative errors of δ and ε up to which a split planned for another ε serves
_DEEP = math.log(1e-32)  # δ below this is as good as 0
_ROUGHLY = 1e-4  # relative error that is small enough on a curve: of a δ of 1e-12 or less, and of one as good as 0
_PLANS, _STEPS = 12, 40
_FAR_OFF = 1.5  # log of the change of ε for which other lines are planned


@dataclass
class BandDirection(Direction):
    """One direction of sampled releases."""

    bands: Bands | None = field(default=None, repr=False)
    symmetric: bool = False
    plain: bool = False
    swapped: Transform | None = field(default=None, repr=False)  # of the other direction, where that is kept as well
    few: FewDirection | None = field(default=None, repr=False)  # integrals for where bands do not tell
    _lines_dear: bool | None = field(default=None, repr=False)

    @property
    def _bands(self) -> Bands:
        assert self.bands is not None
        return self.bands

    @property
    def rare(self) -> bool:
        """Whether the losses are so small that the transform as a whole takes a large grid."""
        limit = _STEEP * self._bands.spread
        return any(leaf.pair.members[-1] > limit * leaf.pair.sigma for leaf in self._bands.leaves)

    def _dear(self, epsilon: float) -> bool:
        """Whether lines take long, as for groups and replaced records; otherwise decided at the first ε."""
        if self._lines_dear is None:
            if self.plain:  # whose lines know windows
                self._lines_dear = self.rare
            else:
                small = self.few is not None or self._bands.spread < _WIDE
                self._lines_dear = small or planned_nodes(self.transform, epsilon) > _DEAR
        return self._lines_dear

    def _by_chain(self, epsilons: Sequence[float]) -> bool:
        """Whether these are so many ε of so many releases that lines draw the curve sooner than bands for each ε do."""
        many = sum(leaf.count for leaf in self._bands.leaves) >= _MANY
        return self.plain and many and len(epsilons) >= WORTH_A_CHAIN

    def bound(self, epsilon: float) -> float:
        """The logarithm of an upper bound of δ(ε); −∞ beyond the largest loss."""
        if epsilon >= self.transform.largest_loss:
            return -math.inf
        return self._bands.bound(epsilon) if self._dear(epsilon) else super().bound(epsilon)

    def bounds(self, epsilons: Sequence[float]) -> list[float]:
        """An upper bound's logarithm at ascending ε, as `bound` has it or better: by the sums of the lowest of them."""
        largest = self.transform.largest_loss
        inside = [one for one in epsilons if one < largest]
        if not inside or self._by_chain(inside) or not self._dear(inside[0]):
            return super().bounds(epsilons)
        return self._bands.bounds(inside) + [-math.inf] * (len(epsilons) - len(inside))

    def deltas(self, epsilons: Sequence[float]) -> list[Value]:
        """δ at ascending ε, with their errors."""
        largest = self.transform.largest_loss
        inside = [one for one in epsilons if one < largest]
        beyond = [Value(0.0, 0.0)] * (len(epsilons) - len(inside))
        if not inside:
            return beyond
        if len(inside) >= _CURVE and self._dear(inside[0]):
            return self._curve_deltas(inside) + beyond
        return self._few_deltas(inside) + beyond

    def _curve_deltas(self, epsilons: list[float]) -> list[Value]:
        """δ at many ascending ε by bands that serve them all, and one by one where these tell too little."""
        try:
            at = np.array(epsilons)
            values, errors = band_curve(self._bands, at, np.maximum(self._rough(at), _DEEP))
        except ArithmeticError:
            return self._few_deltas(epsilons)
        roughly = np.minimum(_ROUGHLY * values, _ROUGHLY * SMALLEST)
        told = errors <= np.maximum(np.maximum(PROMISED * values, roughly), _ROUGHLY * math.exp(_DEEP))
        rest = np.flatnonzero(~told)
        values, errors = np.clip(values, 0.0, 1.0), np.minimum(errors, 1.0)
        found = [Value(*pair) for pair in zip(values.tolist(), errors.tolist(), strict=True)]
        others = self._few_deltas(at[rest].tolist()) if len(rest) else []
        for place, value in zip(rest.tolist(), others, strict=True):
            found[place] = _better(found[place], value)
        return found

    def _rough(self, epsilons: Floats) -> Floats:
        """About log δ: of the releases without large losses, and of one large loss alone."""
        if self._bands.added:
            return self.transform.served(epsilons)[0]
        found = (self.swapped or self.transform.swapped).served(epsilons)[0]
        jumps = self._bands.floors(np.maximum(epsilons, self._bands.spread))
        return np.minimum(np.logaddexp(found, jumps), 0.0)

    def _few_deltas(self, inside: list[float]) -> list[Value]:
        """δ by splits or lines, whichever take less, and by the others where these leave it uncertain."""
        ways = [self._split_deltas, super().deltas if self.few is None else self.few.deltas]
        dear = not self._by_chain(inside) and self._dear(inside[0])
        if not dear:
            ways.reverse()
        found = _tried(ways[0], inside)
        short = [place for place, value in enumerate(found) if not _promised(value)]
        if short and not (dear and self.rare):
            other = _tried(ways[1], [inside[place] for place in short])
            for place, value in zip(short, other, strict=True):
                found[place] = _better(found[place], value)
        return found

    def _split_deltas(self, epsilons: Sequence[float]) -> list[Value]:
        at = np.array(epsilons, dtype=np.float64)
        values, errors = np.zeros_like(at), np.full_like(at, math.inf)
        known = np.zeros(len(at), dtype=np.bool_)
        while not known.all():
            first = int(np.argmin(known))
            split = self._own(float(at[first]))
            value, _, error = split(at)
            good = ~known & (error <= SHARED * value)
            good[first] = True
            better = good & (error < errors)
            values[better], errors[better] = value[better], error[better]
            known |= good
        values = np.clip(values, 0.0, 1.0)
        least = np.where(values > 0, math.ulp(0.0), 0.0)
        return [Value(*pair) for pair in zip(values.tolist(), np.minimum(errors + least, 1.0).tolist(), strict=True)]

    def _own(self, epsilon: float) -> Split:
        """The split for this ε, precise relative to its own δ."""
        target = max(self._bands.guess(epsilon), _DEEP)
        for _ in range(6):
            split = self._bands.split(epsilon, target)
            value, _, error = (float(one[0]) for one in split(np.array([epsilon])))
            if error <= _CLOSE * value or target <= _DEEP:
                break
            following = math.log(max(min(value + error, 1.0), 1e-320))
            if following >= target - 0.5:
                break  # no better is known here
            target = following
        return split

    def epsilon(self, log_delta: float) -> Value:
        """The smallest ε >= 0 with δ(ε) <= e^log_delta, with its error."""
        if self.transform.largest_loss <= 0:
            return Value(0.0, 0.0)
        ways = [self._root, super().epsilon if self.few is None else self.few.epsilon]
        if self.plain:
            dear = self._dear(0.0)
        else:
            wide = self.few is None and self._bands.spread >= _WIDE
            dear = self.rare or not wide or self._dear(self._near_root(log_delta))
        if dear and self.rare:
            return _root_tried(self._root, log_delta)
        if not dear:
            ways.reverse()
        found = _root_tried(ways[0], log_delta)
        return found if _promised(found) else _better(found, _root_tried(ways[1], log_delta))

    def _near_root(self, log_delta: float) -> float:
        try:
            return min(self._guesses(log_delta)[0], self.transform.largest_loss * (1 - 1e-6))
        except ArithmeticError:
            return 0.0

    def _root(self, log_delta: float) -> Value:
        """The root by Newton's method on splits, between ends that it may not leave."""
        largest, target = self.transform.largest_loss, math.exp(log_delta)
        if self._bands.sure(0.0) <= log_delta + 1e-9:
            value, _, error = (float(one[0]) for one in self._bands.split(0.0, log_delta)(np.zeros(1)))
            if value + error <= target:
                return Value(0.0, 0.0)
        epsilon = self._bands.guess_epsilon(log_delta)
        low, high, best = 0.0, largest, Value(0.0, math.inf)
        for _ in range(_PLANS):
            split = self._bands.split(epsilon, log_delta)
            start, last = epsilon, math.inf
            for _ in range(_STEPS):
                value, slope, error = (float(one[0]) for one in split(np.array([epsilon])))
                if value - error > target:
                    low = max(low, epsilon)
                elif value + error < target:
                    high = min(high, epsilon)
                if not slope < 0 or error > 0.01 * max(value, target):
                    epsilon = self._between(low, high)
                    break
                change = math.log(value / target) * value / slope if value > 0 else epsilon / 2
                if abs(change) <= 4e-15 * epsilon or (abs(change) >= last and error >= abs(value - target)):
                    break
                following = epsilon - change
                if not low < following < high:
                    following = self._between(low, high)
                if abs(math.log(max(following, 1e-300) / max(epsilon, 1e-300))) > _FAR_OFF and value > 0:
                    epsilon = following
                    break
                epsilon, last = following, abs(change)
            else:
                error = math.inf
            if slope < 0 and value > 0 and abs(value - target) <= max(1e-6 * target, 2 * error):
                off = (error + abs(value - target)) / abs(slope) + 4 * UNIT * epsilon
                before, best = best.error, _better(best, Value(epsilon, off))
                if off > before / 2 or error <= max(_CLOSE * target, _NEAR * epsilon * abs(slope)) or start == epsilon:
                    break
        if math.isfinite(best.error):
            return best
        if math.isinf(high):
            raise ArithmeticError(f"no root found for log delta = {log_delta:.6g}")
        return Value((low + high) / 2, (high - low) / 2)

    @staticmethod
    def _between(low: float, high: float) -> float:
        if math.isinf(high):
            return 4 * low or 1e-3
        return math.sqrt(low * high) if low > 0 else high / 4


def _tried(way: Callable[[Sequence[float]], list[Value]], epsilons: Sequence[float]) -> list[Value]:
    """δ at these ε; not known where it takes too many nodes."""
    try:
        return way(epsilons)
    except ArithmeticError:
        return [Value(0.0, 1.0)] * len(epsilons)


def _root_tried(way: Callable[[float], Value], log_delta: float) -> Value:
    """ε of this δ; not known where it takes too many nodes."""
    try:
        return way(log_delta)
    except ArithmeticError:
        return Value(0.0, math.inf)


def _promised(value: Value) -> bool:
    return value.error <= max(PROMISED * value.value, SMALLEST)


def _better(first: Value, second: Value) -> Value:
    return first if first.error <= second.error else second


def _frequent(parts: tuple[tuple[Event, int], ...]) -> bool:
    """Whether these are many releases without groups whose losses are, for certain, large enough for lines.

    A loss is about q (e^y − 1), and the square of e^y − 1 is 0.3 min(1, 1/σ²) or more in the mean.
    """
    least, square = math.inf, 0.0
    for event, count in parts:
        if not isinstance(event, SampledGaussian) or event.adjacency == "replace_one":
            return False
        least = min(least, event.noise_multiplier)
        square += 0.3 * count * (event.sampling_rate * min(1.0, 1 / event.noise_multiplier)) ** 2
    return sum(count for _, count in parts) > _FEW_PLAIN and _STEEP * least * math.sqrt(square) >= 1


def band_direction(parts: tuple[tuple[Event, int], ...], transform: Transform, way: str) -> BandDirection | None:
    """The direction of these parts, `remove` or `add`; None where lines are as good."""
    if not 1 <= len(parts) <= MOST_LEAVES:
        return None
    if _frequent(parts):
        return None
    leaves, plain = [], True
    for event, count in parts:
        if not isinstance(event, SampledGaussian | GroupSampledGaussian) or not event.noise_multiplier <= _MOST_NOISE:
            return None
        if event.sampling_rate == 0 or event.sampling_rate == 1:
            return None
        size = event.group_size if isinstance(event, GroupSampledGaussian) else 1
        replaced = event.adjacency == "replace_one"
        members, logs = group_weights(GroupSampledGaussian(event.sampling_rate, event.noise_multiplier, size))
        kind = "replace" if replaced else way
        pair = Pair(tuple(int(k) for k in members), tuple(logs.tolist()), event.noise_multiplier, kind)
        leaves.append(Leaf(pair, float(count)))
        plain &= size == 1 and not replaced
    symmetric = all(leaf.pair.kind == "replace" for leaf in leaves)
    few = None if plain else fewer_direction(parts, transform, way, _FEW)
    found = BandDirection(transform, None, Bands(leaves), symmetric, plain, few=few)
    if plain and sum(count for _, count in parts) > _FEW_PLAIN and not found.rare:
        return None
    return found
