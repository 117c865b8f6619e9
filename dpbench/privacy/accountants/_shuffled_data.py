"""A lower bound for shuffled epochs: δ(ε) of explicit datasets that differ in one record without effect.

Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha and Zhang 2024 ("How Private are DP-SGD Implementations?", ICML). The
gradients of all other records are −1, that of the record x is +1; in the other dataset it is 0. The clip norm is 1, so
all of them are allowed. A batch of b_t records, a public number, sums to −b_t, or where x is in it to −b_t + 2, and
−b_t + 1 without effect. With w_t = (released sum + b_t)/σ, s = 1/σ and e_t the t-th unit vector, an epoch with x in
batch t, for a random t, releases

    P: w ~ N(2s e_t, I)    with x,        Q: w ~ N(s e_t, I)    with the record that has no effect.

Every statistic of w gives a lower bound: for any set S, δ(ε) >= P(S) − e^ε Q(S). Two are taken.

1. **The largest batch**, m = max_t w_t. Whatever t is, also where the last batch is shorter, the T values are
   independent and one of them is shifted, so P(m <= c) = Φ(c)^(T−1) Φ(c − 2s) and Q(m <= c) = Φ(c)^(T−1) Φ(c − s). For
   one epoch S = {m > c}, for the best c. For K epochs m falls into cells, each with a whole number, its rounded
   log P/Q; S says that the sum of the K numbers is at least τ, for the best τ. Both laws of the sum are K-fold
   convolutions. Far out Q(m > c) is that of the shifted batch alone: there T disappears, and the bound nears that of
   one Gaussian mechanism per epoch, which bounds from above (`shuffled.py`).
2. **The sum of all batches** of K epochs, N(2sK, KT) against N(sK, KT): a Gaussian mechanism with μ = s √(K/T).

Epochs draw their orders anew, on the same datasets, so K epochs are K independent ones. An epoch that is not done to
its end, epochs after a change of the noise, and other mechanisms are left out: ignoring an output reveals no more.
Under replace-one these datasets are neighbours as well. The bound is one of the event, a sum of gradients clipped at a
fixed C: where C moves (`quantile`) or no gradient reaches C (`automatic`, in the limit), the data only come near it.

**Rounding**, u = 2^-53. log Φ has a relative error of some u, and edges are taken where log P(m <= c) > −600, so that
it is off by less than 1e-12. The mass of a cell is a difference of two tails (above the median) or of two P(m <= c)
(below). Neighbours of these differ by a hundredth or more, so a mass is off by less than 1e-11 relative. Numbers of K
cells make that 1e-11 K. Convolutions of positive numbers by direct sums add K·R·u at each of log2 K doublings, for R
numbers, together less than 1e-10. `_MARGIN` is more than this, and is taken off P(S) and added to Q(S); where
Q(S) < 1e-290, S is not taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpbench.privacy.accountants._gaussian_curve import GaussianCurve

Reals = NDArray[np.float64]
_MARGIN = 1e-9  # relative, of P(S) and of Q(S), for up to 50 epochs; K/50 times that for K
_LEAST, _DEEPEST = math.log(1e-290), -600.0
_LEAST_SHIFT, _MOST_SHIFT = 1e-6, 50.0
_CELLS = 1 << 9  # of the largest batch of an epoch
_LABELS = 1 << 15  # of the sum over all epochs
MOST_EPOCHS = 1 << 12  # more are left out
_THRESHOLDS = 1 << 15


def log_above(c: Reals, batches: int, shift: float) -> Reals:
    """log P(max > c) of T independent normal variables of which one has the mean `shift`.

    >>> log_above(np.array([0.0]), 1, 0.0).round(6).tolist(), log_above(np.array([9.0]), 5, 0.0).round(3).tolist()
    ([-0.693147], [-42.019])
    """
    return _log_complement(log_below(c, batches, shift))


def log_below(c: Reals, batches: int, shift: float) -> Reals:
    """log P(max <= c) of the same."""
    found: Reals = (batches - 1) * special.log_ndtr(c) + special.log_ndtr(c - shift)
    return found


def _log_complement(logarithm: Reals) -> Reals:
    """log(1 − e^x) for x < 0."""
    small = logarithm > -math.log(2)
    with np.errstate(divide="ignore"):
        found: Reals = np.where(small, np.log(-np.expm1(logarithm)), np.log1p(-np.exp(np.minimum(logarithm, -0.5))))
    return found


@dataclass(frozen=True)
class ShuffledData:
    """What the explicit datasets show of K whole epochs: log P(S) and log Q(S) of sets, rounded to the safe side.

    >>> one = shuffled_data(batches=1000, noise_multiplier=0.5, epochs=1)
    >>> round(one.epsilon(1e-6), 2), round(one.delta(4.0), 6)
    (11.0, 0.073798)
    """

    first: Reals
    second: Reals
    whole: GaussianCurve | None

    def delta(self, epsilon: float) -> float:
        """A lower bound on δ at `epsilon` >= 0: the largest P(S) − e^ε Q(S), not below 0."""
        with np.errstate(over="ignore"):
            found = np.exp(self.first) * -np.expm1(np.minimum(epsilon + self.second - self.first, 700.0))
        sums = 0.0 if self.whole is None else self.whole.delta(epsilon).lower or 0.0
        return max(float(found.max(initial=0.0)), sums, 0.0)

    def epsilon(self, delta: float) -> float:
        """A lower bound on ε at `delta`: the largest log((P(S) − δ)/Q(S)), not below 0."""
        above = self.first > math.log(delta)
        gap = _log_complement(math.log(delta) - self.first[above]) + self.first[above] - self.second[above]
        sums = 0.0 if self.whole is None else self.whole.epsilon(delta).lower or 0.0
        return max(float(gap.max(initial=0.0)), sums, 0.0)


def shuffled_data(batches: int, noise_multiplier: float, epochs: int) -> ShuffledData:
    """The sets for `epochs` whole epochs of `batches` batches each; without an epoch there are none.

    For σ below 1/50 those for 1/50: who has less noise can add some. For σ above 10^6 none.
    """
    shift = min(1 / noise_multiplier, _MOST_SHIFT)
    if epochs < 1 or shift < _LEAST_SHIFT:
        return ShuffledData(np.empty(0), np.empty(0), None)
    whole = GaussianCurve(shift * math.sqrt(epochs / batches), "exact", mu_error=1e-15)
    if epochs == 1:
        c = _thresholds(_THRESHOLDS, batches, shift, 38.0)
        first, second = log_above(c, batches, 2 * shift), log_above(c, batches, shift)
    else:
        first, second = _sums(batches, shift, min(epochs, MOST_EPOCHS))
    margin = _MARGIN * max(1.0, epochs / 50)
    kept = second > _LEAST
    return ShuffledData(first[kept] - margin, second[kept] + margin, whole)


def _thresholds(count: int, batches: int, shift: float, beyond: float) -> Reals:
    """Values of m from where the largest of T lies with a probability of a half, or lower, to `beyond` above 2s."""
    centre = -special.ndtri(0.5 / max(batches, 2))
    found: Reals = np.linspace(min(centre, 0.0) - 2.0, max(centre, 2 * shift) + beyond, count)
    return found


def _sums(batches: int, shift: float, epochs: int) -> tuple[Reals, Reals]:
    """log P and log Q of `the sum of the numbers of K epochs is at least τ`, for every τ."""
    edges = _thresholds(_CELLS, batches, shift, 12.0)
    edges = edges[(log_below(edges, batches, 2 * shift) > _DEEPEST) & (log_above(edges, batches, shift) > _DEEPEST)]
    first, second = (_masses(edges, batches, times * shift) for times in (2, 1))
    loss = np.log(first) - np.log(second)
    step = float(np.ptp(loss)) / max(8, min(_CELLS, _LABELS // epochs))
    label = np.rint((loss - loss.min()) / step).astype(np.int64)
    laws = (_power(np.bincount(label, mass).astype(np.float64), epochs) for mass in (first, second))
    above, other = (np.log(np.cumsum(law[::-1]).clip(1e-300)) for law in laws)
    return above, other


def _masses(edges: Reals, batches: int, shift: float) -> Reals:
    """The mass of each cell between two edges, and of the two beyond the ends."""
    above, below = np.exp(log_above(edges, batches, shift)), np.exp(log_below(edges, batches, shift))
    inner = np.where(above[:-1] < 0.5, above[:-1] - above[1:], below[1:] - below[:-1])
    return np.concatenate([below[:1], inner, above[-1:]])


def _power(law: Reals, times: int) -> Reals:
    """The law of the sum of `times` independent numbers, by direct convolutions: no cancellation."""
    found = np.ones(1)
    while times:
        if times % 2:
            found = np.convolve(found, law)
        times //= 2
        law = np.convolve(law, law) if times else law
    return found
