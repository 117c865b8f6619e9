"""Exact sums for losses that are atoms: discrete pairs, repeated and unlike, and Laplace releases.

A smooth transform accountant fails here, since M(c + iu) does not decay. Here every attainable sum of losses is
enumerated with its probability under P, and δ(ε) = Σ_(s > ε) P(s) (1 − e^(ε − s)) plus the mass of infinite loss is a
sum of positive terms, so that δ = 1e-30 has as many digits as δ = 0.1.

| composition | sums |
| --- | --- |
| one pair of two losses, T times | T + 1, binomial masses by ratios outwards from the mode |
| losses on a common lattice | direct convolution of positive numbers, powers by squaring |
| otherwise | all counts (k_1, ..., k_K) with sum T, multinomial masses; unlike pairs by all pairs of sums |

**Errors.** A sum's loss is off by at most `loss_error`, its mass relatively by at most `mass_error`; both are counted
below from the roundings made (u = 2^-53). Then the truth lies between (1 − η) δ(ε + e) and (1 + η) δ(ε − e), and
likewise for ε: nothing about the curve's slope is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants._atoms_laplace import LEAST_NOISE, MOST_RELEASES, LaplaceSum
from dpbench.accountants._hinges import Floats
from dpbench.accountants._line_side import LineSide, line_side
from dpbench.accountants._pair_losses import PairLosses, common_gap, shares
from dpbench.accountants._poisson import refuse
from dpbench.accountants._work import within_limits
from dpbench.accounting import Estimate, GuaranteeKind, No, Yes, check_delta, check_epsilon
from dpbench.compose import adaptive_refusal, common_adjacency, merge
from dpbench.events import Adjacency, Composition, DiscretePair, Event, Laplace

MOST_SUMS = 2_000_000
_MOST_CELLS = 40_000  # of a lattice on which masses are convolved directly
_FEW = 4  # Laplace releases that are summed; of more, a line integral takes less
_UNIT = 2.0**-53
_SMALLEST = 1e-290  # binomial masses below are left out
_ALONE = 40.0  # beside e^40, 1 is nothing
_UNDERFLOW = 1e-300  # what becomes of a mass in products that are smaller is not known


@dataclass(frozen=True)
class Sums:
    """Losses and their masses under P, each with its error; `infinite` is the mass of infinite loss.

    `gap` is the lattice's step where the losses are first, first + gap, ... in order; else None.
    """

    losses: Floats
    masses: Floats
    loss_error: float
    mass_error: float
    infinite: float
    gap: float | None = None
    dropped: float = 0.0

    def delta(self, epsilon: float) -> float:
        """Σ P (1 − e^(ε − s))₊ plus the infinite mass, for any real ε."""
        above = self.losses > epsilon
        return float(np.dot(self.masses[above], -np.expm1(epsilon - self.losses[above]))) + self.infinite

    def epsilon(self, delta: float) -> float:
        """The smallest ε >= 0 with δ(ε) <= `delta`; infinite where the infinite mass exceeds it.

        Between two losses, from the lower one a on, δ(a + t) = δ(a) − (e^t − 1) Σ_(s > a) P(s) e^(a − s): t follows.
        """
        if delta <= self.infinite:
            return math.inf
        if self.delta(0.0) <= delta:
            return 0.0
        low, high = int(np.searchsorted(self.losses, 0.0, side="right")), len(self.losses) - 1
        while low < high:  # the first loss at which δ is at most `delta`
            middle = (low + high) // 2
            if self.delta(float(self.losses[middle])) <= delta:
                high = middle
            else:
                low = middle + 1
        start = max(float(self.losses[low - 1]), 0.0) if low else 0.0
        over = self.delta(start) - delta
        if over <= 0:  # by rounding
            return start
        masses, losses = self.masses[low:], self.losses[low:]
        least = float(losses[0])  # the sum is e^(start − least) times one that does not underflow
        grown = math.log(over) - math.log(float(np.dot(masses, np.exp(least - losses)))) + (least - start)
        return min(start + (math.log1p(math.exp(grown)) if grown < _ALONE else grown), least)


@dataclass(frozen=True)
class AtomicCurve:
    """The exact curve, the worse of both directions, with ends that enclose the truth.

    >>> from dpbench.events import Composition, DiscretePair
    >>> curve = atomic_curve(Composition(((DiscretePair((0.75, 0.25), (0.25, 0.75)), 1),)))
    >>> round(curve.delta(0.0).value, 12), round(curve.epsilon(0.25).value, 12) == round(math.log(2), 12)
    (0.5, True)
    """

    sides: tuple[Sums | LaplaceSum | LineSide, ...]
    adjacency: Adjacency
    kind: GuaranteeKind = "exact"
    mu: None = None

    @within_limits
    def delta(self, epsilon: float) -> Estimate:
        """δ at `epsilon`, in [0, 1]."""
        epsilon = check_epsilon(epsilon)
        found = [_delta_ends(side, epsilon) for side in self.sides] or [(0.0, 0.0, 0.0)]
        value, lower, upper = (min(max(column), 1.0) for column in zip(*found, strict=True))
        return Estimate(value, min(lower, value), max(upper, value))

    @within_limits
    def deltas(self, epsilons: Sequence[float]) -> list[Estimate]:
        """δ at every one of `epsilons`, each as `delta` has it within both errors."""
        lines = [side for side in self.sides if isinstance(side, LineSide)]
        if not epsilons or not lines:
            return [self.delta(epsilon) for epsilon in epsilons]
        found = lines[0].deltas(np.array([check_epsilon(epsilon) for epsilon in epsilons], dtype=np.float64))
        return [Estimate(*row) for row in np.minimum(np.array(found), 1.0).T.tolist()]

    def one_way(self, direction: str) -> AtomicCurve:
        """The curve of one direction alone, `remove` or `add`."""
        if len(self.sides) < 2:
            return self
        return replace(self, sides=(self.sides[0 if direction == "remove" else 1],))

    @within_limits
    def epsilon(self, delta: float) -> Estimate:
        """ε at `delta`, in [0, inf]: infinite where outcomes that Q never gives have more probability."""
        delta = check_delta(delta)
        found = [_epsilon_ends(side, delta) for side in self.sides] or [(0.0, 0.0, 0.0)]
        value, lower, upper = (max(column) for column in zip(*found, strict=True))
        reason = "outcomes that reveal the record have more probability than delta" if value == math.inf else None
        return Estimate(value, min(lower, value), max(upper, value), reason)


def _delta_ends(side: Sums | LaplaceSum | LineSide, epsilon: float) -> tuple[float, float, float]:
    if isinstance(side, LineSide):
        return side.delta(epsilon)
    error, shift = side.mass_error, side.loss_error
    upper = (1 + error) * side.delta(epsilon - shift) + side.dropped
    return side.delta(epsilon), max((1 - error) * side.delta(epsilon + shift) - side.dropped, 0.0), upper


def _epsilon_ends(side: Sums | LaplaceSum | LineSide, delta: float) -> tuple[float, float, float]:
    if isinstance(side, LineSide):
        return side.epsilon(delta)
    error, shift = side.mass_error, side.loss_error
    value = side.epsilon(delta)
    shift += 8 * _UNIT * value if value < math.inf else 0.0  # of the root itself
    lower = max(side.epsilon(min((delta + side.dropped) / (1 - error), 1.0)) - shift, 0.0)
    left = (delta - side.dropped) / (1 + error)
    upper = side.epsilon(left) + shift if left > 0 else math.inf
    if value == 0 and upper <= shift:
        upper = 0.0 if side.delta(-shift) * (1 + error) + side.dropped <= delta else shift
    return value, lower, upper


def atomic_support(composition: Composition) -> Yes | No:
    """Yes for discrete pairs alone with at most two million attainable sums, and for equal Laplace releases alone.

    >>> from dpbench.events import Composition, Laplace
    >>> bool(atomic_support(Composition(((Laplace(2.0), 10),))))
    True
    """
    parts = _telling(composition)
    kinds = {type(event) for event, _ in merge(composition)}
    if not kinds <= {DiscretePair, Laplace} or len({type(event) for event, _ in parts}) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        return No(
            f"exact sums cover DiscretePair alone or Laplace alone, got {names}; the accountant 'exact' mixes them"
        )
    if common_adjacency(composition) is None:
        return No("the parts name different neighbouring relations, so that no one guarantee holds; use a single one")
    reason = adaptive_refusal(composition, "the composition of privacy losses")
    if reason is not None:
        return No(reason)
    if parts and isinstance(parts[0][0], Laplace):
        if len(parts) > 1:
            return No("exact sums cover Laplace releases of one scale only; the accountant 'exact' covers several")
        if parts[0][1] > MOST_RELEASES:
            return No(f"count = {parts[0][1]}: exact Laplace sums go to {MOST_RELEASES}; use the lattice accountant")
        if parts[0][0].relative_noise < LEAST_NOISE:
            return No(
                f"noise / sensitivity = {parts[0][0].relative_noise!r}: exact Laplace sums go down to {LEAST_NOISE}"
            )
        return Yes()
    size = count_sums([(event, count) for event, count in parts if isinstance(event, DiscretePair)])
    if size > MOST_SUMS:
        return No(f"about {size:.3g} attainable sums: exact sums go to {MOST_SUMS}; use the lattice accountant")
    return Yes()


def atomic_curve(composition: Composition) -> AtomicCurve:
    """The exact curve of an atomic composition. Raises DpbenchError where `atomic_support` says no."""
    refuse(atomic_support(composition), "exact sums")
    adjacency = common_adjacency(composition)
    assert adjacency is not None  # the support has seen to it
    parts = _telling(composition)
    if not parts:
        return AtomicCurve((), adjacency)
    event, count = parts[0]
    if isinstance(event, Laplace):
        if count > _FEW:
            return AtomicCurve((line_side([(event.relative_noise, count)]),), adjacency)
        return AtomicCurve((LaplaceSum(event.relative_noise, count),), adjacency)
    pairs = [(event, count) for event, count in parts if isinstance(event, DiscretePair)]
    return AtomicCurve(tuple(discrete_sums(pairs, direction) for direction in (0, 1)), adjacency)


def count_sums(pairs: list[tuple[DiscretePair, int]]) -> float:
    """How many sums `discrete_sums` has at most.

    >>> count_sums([(DiscretePair((0.75, 0.25), (0.25, 0.75)), 100)])
    101.0
    """
    told = [(PairLosses.of(event, 0), count) for event, count in pairs]
    return _size([(losses, count) for losses, count in told if len(losses.losses)])  # all losses may be infinite


def _telling(composition: Composition) -> list[tuple[Event, int]]:
    """The merged parts without those that reveal nothing."""
    return [(event, count) for event, count in merge(composition) if not silent(event)]


def silent(event: Event) -> bool:
    """Whether an atomic event reveals nothing; False for others."""
    if isinstance(event, Laplace):
        return event.noise_multiplier == math.inf
    if isinstance(event, DiscretePair):
        return shares(event.first) == shares(event.second)
    return False


def _size(parts: list[tuple[PairLosses, int]]) -> float:
    """At most this many sums: on a lattice its cells, else the numbers of multisets multiplied."""
    gap = _shared_gap([losses for losses, _ in parts])
    if gap is not None:
        cells = sum(count * round((losses.losses[-1] - losses.losses[0]) / gap) + 1 for losses, count in parts)
        if cells <= _MOST_CELLS:
            return float(cells)
    size = 1.0
    for losses, count in parts:
        kinds = len(losses.losses)
        size *= float(math.comb(count + kinds - 1, kinds - 1)) if kinds > 1 and size <= MOST_SUMS else 1.0
    return size


def _shared_gap(parts: list[PairLosses]) -> float | None:
    """The step of a lattice that all parts share, None where there is none."""
    gaps = [common_gap(part.losses) for part in parts if len(part.losses) > 1]
    if not gaps or any(gap is None for gap in gaps):
        return None
    least = min(gap for gap in gaps if gap is not None)
    fits = all(abs(gap / least - round(gap / least)) <= 1e-14 * gap / least for gap in gaps if gap is not None)
    return least if fits else None


def discrete_sums(pairs: list[tuple[DiscretePair, int]], direction: int) -> Sums:
    """All sums of the losses of pairs with their counts; direction 0 is remove, 1 is add."""
    parts = [(PairLosses.of(event, direction), count) for event, count in pairs]
    infinite = -math.expm1(math.fsum(count * math.log1p(-part.infinite) for part, count in parts if part.infinite < 1))
    if any(part.infinite == 1 or not len(part.losses) for part, _ in parts):
        return Sums(np.empty(0), np.empty(0), 0.0, 8 * _UNIT, 1.0)
    gap = _shared_gap([part for part, _ in parts])
    dense = gap is not None and sum(c * round((p.losses[-1] - p.losses[0]) / gap) + 1 for p, c in parts) <= _MOST_CELLS
    found = [_repeated(part, count, gap if dense else None) for part, count in parts]
    total = found[0]
    for other in found[1:]:
        total = _added(total, other)
    count = sum(count for _, count in parts)
    # the last sum over all losses: each product of three rounded factors, pairwise or sequential sums of positive terms
    error = total.mass_error + (len(total.losses) + 8) * _UNIT
    infinite_error = (4 * count + 8) * _UNIT
    order = np.argsort(total.losses, kind="stable")
    largest = float(np.abs(total.losses).max())
    return Sums(
        total.losses[order],
        total.masses[order],
        total.loss_error + 4 * _UNIT * largest,
        max(error, infinite_error),
        infinite,
        total.gap,
        total.dropped,
    )


def _repeated(part: PairLosses, count: int, gap: float | None) -> Sums:
    """The sum of `count` losses of one pair."""
    losses, masses = part.losses, part.masses
    scale = float(np.abs(losses).max())
    loss_error = 6 * _UNIT * count * scale  # each loss to two units, then a product and a sum
    if len(losses) == 1:
        return Sums(losses * count, masses**count, loss_error, 4 * _UNIT * count, 0.0, gap)
    if gap is not None:
        cells = np.round((losses - losses[0]) / gap).astype(int)
        dense = np.asarray(np.bincount(cells, masses), np.float64)
        # a lattice to 1e-12 of its spread: what its points miss is counted, count times
        missed = float(np.abs(losses[0] + gap * cells - losses).max())
        total, error = _power(dense, count)
        values = losses[0] * count + gap * np.arange(len(total))
        return Sums(values, total, loss_error + count * missed, error, 0.0, gap, count * _lost(total))
    if len(losses) == 2:
        counts, binomial, steps = _binomial(float(masses[0]), float(masses[1]), count)
        values = losses[0] * (count - counts) + losses[1] * counts
        # each ratio has four roundings and the error of p/q (2 units); the normalisation as many again
        dropped = 2 * count * _SMALLEST if len(binomial) <= count else 0.0
        return Sums(values, binomial, loss_error, 16 * _UNIT * (steps + 8), 0.0, None, dropped)
    counts_table = _multisets(count, len(losses))
    log_factorial = np.array([math.lgamma(k + 1) for k in range(count + 1)])
    log_masses = log_factorial[count] - log_factorial[counts_table].sum(axis=1) + counts_table @ np.log(masses)
    # lgamma to four units of its value; the sums' terms are below count · |log| and log T!
    size = (len(losses) + 2) * float(log_factorial[-1]) + count * float(np.abs(np.log(masses)).max())
    error = 8 * _UNIT * (size + 4 * count + len(losses))
    masses = np.exp(log_masses)
    return Sums(counts_table @ losses, masses, loss_error, error, 0.0, None, _lost(masses))


def _lost(masses: Floats) -> float:
    """What may be missing of masses that are products: those that underflowed."""
    return len(masses) * _UNDERFLOW if float(masses.min()) < _UNDERFLOW else 0.0


def _power(masses: Floats, count: int) -> tuple[Floats, float]:
    """The `count`-fold convolution by squaring, and its relative error.

    A convolution of positive arrays adds the relative errors of both, and (n + 1) units for products and sums.
    """
    result: Floats | None = None
    error = 0.0
    square, square_error = masses, 2 * _UNIT
    while True:
        if count & 1:
            if result is None:
                result, error = square, square_error
            else:
                error += square_error + (min(len(result), len(square)) + 1) * _UNIT
                result = np.convolve(result, square)
        count >>= 1
        if not count:
            assert result is not None  # the count is at least 1
            return result, error
        square_error = 2 * square_error + (len(square) + 1) * _UNIT
        square = np.convolve(square, square)


def _binomial(failure: float, success: float, count: int) -> tuple[Floats, Floats, int]:
    """Numbers of successes, their probabilities (times (failure + success)^count), and the longest run of ratios.

    From the mode outwards each mass is the last one times a ratio below 1; masses below 1e-290 are left out.
    """
    mode = min(int((count + 1) * success / (success + failure)), count)
    up = np.arange(mode, count, dtype=np.float64)
    down = np.arange(mode, 0, -1, dtype=np.float64)
    with np.errstate(under="ignore"):
        rising = np.cumprod((count - up) / (up + 1) * (success / failure))
        falling = np.cumprod(down / (count - down + 1) * (failure / success))
    rising, falling = rising[rising > _SMALLEST], falling[falling > _SMALLEST]
    masses = np.concatenate([falling[::-1], [1.0], rising])
    total = math.fsum(masses)
    counts = np.arange(mode - len(falling), mode + len(rising) + 1, dtype=np.float64)
    scale = math.exp(count * math.log1p(failure + success - 1)) if failure + success != 1 else 1.0
    return counts, masses / total * scale, max(len(falling), len(rising))


def _multisets(count: int, kinds: int) -> NDArray[np.int64]:
    """All tuples of `kinds` whole numbers with sum `count`, one a row."""
    if kinds == 2:
        first = np.arange(count + 1, dtype=np.int64)
        return np.stack([first, count - first], axis=1)
    rows = [
        np.concatenate([np.full((len(rest), 1), first), rest], axis=1)
        for first, rest in ((first, _multisets(count - first, kinds - 1)) for first in range(count + 1))
    ]
    return np.concatenate(rows)


def _added(one: Sums, other: Sums) -> Sums:
    """The sum of two independent losses: convolved on a shared lattice, else all pairs, equal sums together."""
    loss_error = one.loss_error + other.loss_error
    mass_error = one.mass_error + other.mass_error + _UNIT
    dropped = one.dropped + other.dropped
    if one.gap is not None and one.gap == other.gap:
        masses = np.convolve(one.masses, other.masses)
        values = one.losses[0] + other.losses[0] + one.gap * np.arange(len(masses))
        smaller = min(len(one.masses), len(other.masses))
        return Sums(values, masses, loss_error, mass_error + smaller * _UNIT, 0.0, one.gap, dropped + _lost(masses))
    losses = np.add.outer(one.losses, other.losses).ravel()
    masses = np.multiply.outer(one.masses, other.masses).ravel()
    losses, where = np.unique(losses, return_inverse=True)
    together = np.asarray(np.bincount(where, masses, len(losses)), np.float64)
    repeated = int(np.bincount(where).max())
    return Sums(losses, together, loss_error, mass_error + repeated * _UNIT, 0.0, None, dropped + _lost(masses))
