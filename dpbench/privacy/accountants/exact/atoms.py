"""Discrete pairs, repeated and unlike: every attainable sum of their losses with its probability under P.

    δ(ε) = P(S = ∞) + Σ_(s > ε) P(s) (1 − e^(ε − s)),

sums of positive terms, so that δ = 1e-30 has as many digits as δ = 0.1. From one ε to a lower one, ε', both δ and
E(ε) = Σ_(s > ε) P(s) e^(ε − s), which is −dδ/dε, follow from what they were and the sums between:

    δ(ε') = δ(ε) + (1 − e^(ε' − ε)) E(ε) + Σ P(s) (1 − e^(ε' − s)),   E(ε') = e^(ε' − ε) E(ε) + Σ P(s) e^(ε' − s).

Between two sums δ is linear in e^ε, so ε(δ) has a closed form there: δ(ε + t) = δ(ε) − (e^t − 1) E(ε).

Of one pair, T times, the sums are those of all counts k_i of its losses, Σ k_i = T, with multinomial masses (of two
losses only the likely ones); of unlike pairs all sums of theirs. Where there are too many the answer is a refusal.

**Masses.** With λ(k) = log k! − log √(2πk) − k log k + k, log of a multinomial mass is λ(T) − Σ λ(k_i) +
½ log 2πT − Σ ½ log 2πk_i − Σ D_i, D_i = k_i log(k_i / T p_i) − k_i + T p_i (Loader 2000). D_i is flat at k_i = T p_i,
so that no rounding is multiplied by T: it is off by a few units of |k_i − T p_i| + D_i.

**Error.** Losses are off by at most e in all, masses relatively by η: the truth is δ(ε) within η δ(ε) + e E(ε − e).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpbench.errors import DpbenchError
from dpbench.events import DiscretePair, Event
from dpbench.privacy.accountants._losses import PairLosses, shares
from dpbench.privacy.accountants._poisson import reveals_nothing
from dpbench.privacy.accountants.exact.direction import Value
from dpbench.privacy.accountants.exact.single import enclosed

Floats = NDArray[np.float64]
MOST_SUMS = 2_000_000
_U = 2.0**-53
_LOST = 1e-300  # of masses that are products: those that underflow


@dataclass(frozen=True)
class Atoms:
    """One direction: finite losses in ascending order, their masses under P, and the mass of infinite loss."""

    losses: Floats
    masses: Floats
    infinite: float
    loss_error: float
    mass_error: float

    @property
    def largest(self) -> float:
        """The largest finite loss; 0 where there is none."""
        return float(self.losses[-1]) + self.loss_error if len(self.losses) else 0.0

    def deltas(self, epsilons: Sequence[float]) -> list[Value]:
        """δ at every real ε of `epsilons`, in ascending order."""
        found, _ = self._tails(epsilons)
        shift = self.loss_error
        _, slopes = self._tails([epsilon - shift for epsilon in epsilons])
        lost = len(self.losses) * _LOST
        return [
            Value(value, self.mass_error * value + 1.01 * shift * slope + lost)
            for value, slope in zip(found, slopes, strict=True)
        ]

    def epsilon(self, log_delta: float) -> Value:
        """The smallest ε >= 0 with log δ(ε) <= `log_delta`; infinite where the infinite mass is larger.

        Raises DpbenchError where rounding decides whether it is.
        """
        never, target = beyond(self, log_delta), math.exp(log_delta)
        if never is not None:
            return never
        first = int(np.searchsorted(self.losses, 0.0, side="right"))
        places = np.concatenate([[0.0], self.losses[first:]])
        low, high = 0, len(places) - 1  # δ is above the target at `low`, or that is 0
        while high - low > 1:
            some = np.unique(np.linspace(low, high, 1 + min(high - low, 1000)).astype(np.int64))
            above = int(np.sum(np.array(self._tails(places[some].tolist())[0]) > target))
            low, high = (int(some[max(above - 1, 0)]), int(some[min(max(above, 1), len(some) - 1)]))
        start, value = float(places[low]), self._tails([float(places[low])])[0][0]
        upper = self.losses > start
        if value <= target or not upper.any():
            return enclosed(self.deltas, log_delta, start)
        # E(ε) is e^(start − least) times a sum that does not underflow, for the least loss above
        least = float(self.losses[upper][0])
        scale = float((self.masses[upper] * np.exp(least - self.losses[upper])).sum())
        grown = math.log(value - target) - math.log(scale) + (least - start)
        return enclosed(self.deltas, log_delta, min(start + float(np.logaddexp(0.0, grown)), least))

    def _tails(self, epsilons: Sequence[float]) -> tuple[list[float], list[float]]:
        """δ and E at ascending ε, from the last one downwards."""
        found: list[tuple[float, float]] = []
        stop, last, total, slope = len(self.losses), math.inf, 0.0, 0.0
        for epsilon in reversed(epsilons):
            start = int(np.searchsorted(self.losses, epsilon, side="right"))
            apart, masses = self.losses[start:stop] - epsilon, self.masses[start:stop]
            total += -math.expm1(epsilon - last) * slope + float((masses * -np.expm1(-apart)).sum())
            slope = math.exp(epsilon - last) * slope + float((masses * np.exp(-apart)).sum())
            stop, last = start, epsilon
            found.append((total + self.infinite, slope))
        return [value for value, _ in reversed(found)], [slope for _, slope in reversed(found)]


def beyond(part: Atoms, log_delta: float) -> Value | None:
    """An infinite ε where the mass of infinite loss exceeds δ; None where it does not.

    Raises DpbenchError where rounding decides.
    """
    target = math.exp(log_delta)
    slack = (8 + 4 * (1 - log_delta)) * _U * target
    if target > part.infinite + slack:
        return None
    if target < part.infinite - slack:
        return Value(math.inf, 0.0)
    raise DpbenchError(
        f"delta = {target:.17g} is the probability of infinite loss within rounding; ask for a larger one"
    )


def zero_loss(event: Event) -> bool:
    """Whether an event reveals nothing; two laws are compared as the exact fractions that are meant.

    >>> zero_loss(DiscretePair((0.25, 0.75), (0.25, 0.75))), zero_loss(DiscretePair((0.75, 0.25), (0.25, 0.75)))
    (True, False)
    """
    return reveals_nothing(event) or (isinstance(event, DiscretePair) and shares(event.first) == shares(event.second))


def refusal(pairs: Sequence[tuple[DiscretePair, int]]) -> str | None:
    """Why pairs have too many sums; None where they have not.

    >>> refusal([(DiscretePair((0.75, 0.25), (0.25, 0.75)), 10**6)]) is None
    True
    """
    parts = [(PairLosses.of(event, 0), count) for event, count in pairs]
    size = math.prod(_counts(part, count) for part, count in parts)
    if size <= MOST_SUMS or not all(len(part.losses) for part, _ in parts):
        return None
    about = float(min(size, 10**300))
    return f"about {about:.3g} attainable sums: exact sums go to {MOST_SUMS} here; use the lattice accountant"


def atoms(pairs: Sequence[tuple[DiscretePair, int]], way: int) -> Atoms:
    """The sum of the losses of pairs with their counts (1 or more); `way` is 0 for remove, 1 for add.

    >>> [round(one.value, 12) for one in atoms([(DiscretePair((0.75, 0.25), (0.25, 0.75)), 1)], 0).deltas([0.0, 1.0])]
    [0.5, 0.070429542885]
    """
    parts = [(PairLosses.of(event, way), count) for event, count in pairs]
    infinite = -math.expm1(math.fsum(count * math.log1p(-part.infinite) for part, count in parts if part.infinite < 1))
    if any(part.infinite == 1 or not len(part.losses) for part, _ in parts):
        return Atoms(np.empty(0), np.empty(0), 1.0, 0.0, 0.0)
    reason = refusal(pairs)
    if reason is not None:
        raise DpbenchError(reason)
    losses, masses, loss_error, mass_error = np.zeros(1), np.ones(1), 0.0, 0.0
    for part, count in parts:
        more, new, error = _multinomial(part, count)
        losses, masses = np.add.outer(losses, more).ravel(), np.multiply.outer(masses, new).ravel()
        loss_error += 8 * _U * count * float(np.abs(part.losses).max())
        mass_error += error
    loss_error += 4 * _U * float(np.abs(losses).max())
    mass_error += (8 + min(len(losses), 32)) * _U  # NumPy's sums are pairwise
    order = np.argsort(losses, kind="stable")
    return Atoms(losses[order], masses[order], infinite, loss_error, mass_error)


def _likely(part: PairLosses, count: int) -> tuple[int, int]:
    """The counts of the second of two losses beyond which less than 1e-300 is left (Bernstein's inequality)."""
    mean, reach = count * float(part.masses[1]) / float(part.masses.sum()), 700 / 3
    far = reach + math.sqrt(reach * reach + 1400 * mean * float(part.masses[0] / part.masses.sum()))
    return max(math.floor(mean - far), 0), min(math.ceil(mean + far), count)


def _counts(part: PairLosses, count: int) -> int:
    """How many sums `_multinomial` has."""
    if len(part.losses) == 2:
        low, high = _likely(part, count)
        return high - low + 1
    return math.comb(count + len(part.losses) - 1, count) if len(part.losses) else 1


def _multinomial(part: PairLosses, count: int) -> tuple[Floats, Floats, float]:
    """All sums of `count` losses of one pair, their masses and the relative error of these.

    What the finite losses' probabilities have less than 1, for some of it is that of infinite loss, is a factor.
    """
    if count == 1:
        return part.losses, part.masses, 2 * _U
    if len(part.losses) == 2:
        low, high = _likely(part, count)
        second = np.arange(low, high + 1, dtype=np.float64)
        k = np.stack([count - second, second], axis=1)
    else:
        k = _multisets(count, len(part.losses)).astype(np.float64)
    whole = math.fsum(part.masses)
    mean = count * (part.masses / whole)
    away = (k - mean) / mean
    deviance = np.where(k > 0, mean * ((1 + away) * np.log1p(np.maximum(away, -0.99999999)) - away), mean)
    logs = _stirling(np.array([count]))[0] - (_stirling(k) + deviance).sum(axis=1)
    logs += count * math.log1p(-part.infinite) if part.infinite else 0.0
    error = 8 * _U * float((np.abs(k - mean) + deviance + 8).sum(axis=1).max() + 20)
    error += 4 * _U * count * abs(math.log1p(-part.infinite))
    return k @ part.losses, np.exp(logs), error


def _multisets(count: int, kinds: int) -> NDArray[np.int64]:
    """All tuples of `kinds` whole numbers with sum `count`, one a row."""
    if kinds <= 2:
        first = np.arange(count if kinds == 1 else 0, count + 1, dtype=np.int64)
        return np.column_stack([first, count - first])[:, :kinds]
    rows = [_multisets(count - first, kinds - 1) for first in range(count + 1)]
    firsts = np.repeat(np.arange(count + 1), [len(row) for row in rows])
    return np.column_stack([firsts, np.concatenate(rows)])


def _stirling(k: Floats | NDArray[np.int64]) -> Floats:
    """log k! − k log k + k, to a unit of itself or 4e-16: by a table, from 16 on by Stirling's series; 0 at 0."""
    small = [math.log(math.factorial(j)) - j * math.log(j) + j if j else 0.0 for j in range(16)]
    n = np.maximum(k, 16.0)
    series = 1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 / n**2) / n**2) / n**2) / n**2
    far = series / n + np.log(2 * math.pi * n) / 2
    found: Floats = np.where(k < 16, np.array(small)[np.minimum(k, 15).astype(np.int64)], far)
    return found
