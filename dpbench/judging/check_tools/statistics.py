"""Tests of hypotheses whose false-alarm probability is exact or bounded, not asymptotic.

Every function returns a p-value p with P(p ≤ α) ≤ α for all α when the property is true. Exact laws where known
(binomial, normal, chi-square of normals), else a bound for every sample size. Several p-values are combined by
Bonferroni's inequality (`smallest`), which needs no independence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

FALSE_ALARM = 1e-9  # of one statistical check or test; the whole suite may reach 1e-6

Floats = NDArray[np.float64]


def binomial_p(successes: ArrayLike, trials: ArrayLike, probability: ArrayLike) -> Floats:
    """Twice the smaller tail of the binomial law, at most 1; exact, two-sided, elementwise."""
    count = np.asarray(successes)
    low = stats.binom.cdf(count, trials, probability)
    high = stats.binom.sf(count - 1, trials, probability)
    return np.asarray(np.minimum(1.0, 2 * np.minimum(low, high)))


def chi_square_p(sum_of_squares: ArrayLike, degrees: ArrayLike) -> Floats:
    """Two-sided p-value of the sum of `degrees` squared independent standard normals; exact, elementwise."""
    low = stats.chi2.cdf(sum_of_squares, degrees)
    high = stats.chi2.sf(sum_of_squares, degrees)
    return np.asarray(np.minimum(1.0, 2 * np.minimum(low, high)))


def normal_p(z: ArrayLike) -> Floats:
    """Two-sided p-value of standard normals; exact, elementwise."""
    return np.asarray(2 * stats.norm.sf(np.abs(np.asarray(z, dtype=np.float64))))


def mean_p(z: Any) -> Floats:
    """p-value of the mean of independent standard normals."""
    values = np.asarray(z, dtype=np.float64)
    return normal_p(values.sum() / math.sqrt(values.size))


def correlation_p(x: Any, y: Any) -> Floats:
    """p-value for x uncorrelated with y, where y is standard normal given x: then Σ x y / |x| is a standard normal.

    No entry may stand both in x and in y (see `apart`).
    """
    left, right = np.asarray(x, dtype=np.float64).ravel(), np.asarray(y, dtype=np.float64).ravel()
    length = float(np.linalg.norm(left))
    return normal_p(float(left @ right) / length if length > 0 else math.inf)


def apart(values: Any, distance: int, axis: int = -1) -> tuple[Floats, Floats]:
    """Disjoint pairs of entries that stand `distance` apart along an axis: independent pairs if the entries are.

    >>> [part.tolist() for part in apart([0, 1, 2, 3, 4, 5, 6], 1)]
    [[[0.0], [2.0], [4.0]], [[1.0], [3.0], [5.0]]]
    """
    array = np.moveaxis(np.asarray(values, dtype=np.float64), axis, -1)
    blocks = array.shape[-1] // (2 * distance)
    shaped = array[..., : blocks * 2 * distance].reshape(*array.shape[:-1], blocks, 2, distance)
    return shaped[..., 0, :], shaped[..., 1, :]


def distribution_p(sample: Any, cumulative: Any) -> float:
    """Kolmogorov-Smirnov's distance by the Dvoretzky-Kiefer-Wolfowitz inequality with Massart's constant 2.

    `cumulative` maps an array to its distribution function. The bound 2·exp(−2nD²) holds for every n and every law.
    """
    values = np.sort(np.asarray(sample, dtype=np.float64).ravel())
    n = values.size
    expected = np.asarray(cumulative(values), dtype=np.float64)
    rank = np.arange(1, n + 1)
    distance = float(np.maximum(rank / n - expected, expected - (rank - 1) / n).max())
    return min(1.0, 2 * math.exp(-2 * n * distance**2))


def multinomial_p(counts: ArrayLike, probabilities: ArrayLike) -> float:
    """Upper bound of the p-value of counts under a multinomial law, by the likelihood ratio.

    With k cells, n draws and D the relative entropy of the observed to the stated frequencies,
    P(D ≥ e) ≤ exp(−ne)·(e·n·exp(1)/(k−1))^(k−1) for e > (k−1)/n (R. Agrawal, Finite-sample concentration of the
    multinomial in relative entropy, IEEE Transactions on Information Theory 66(10), 2020, Theorem 1.2).
    """
    observed, law = np.asarray(counts, dtype=np.float64), np.asarray(probabilities, dtype=np.float64)
    n, free = float(observed.sum()), len(observed) - 1
    seen = observed > 0
    if np.any(law[seen] <= 0):
        return 0.0
    statistic = float((observed[seen] * np.log(observed[seen] / (n * law[seen]))).sum())  # n·D
    if statistic <= free:
        return 1.0
    return min(1.0, math.exp(-statistic + free * (1 + math.log(statistic / free))))


def bernstein_p(deviation: float, variance: float, largest: float) -> float:
    """P(|S| ≥ deviation) for a sum of independent centred terms of total variance `variance`.

    Each term is a normal, or at most `largest` in size: 2·exp(−t²/2 / (V + bt/3)), Bernstein's inequality, whose
    bound of the moment generating function holds for normal terms as well. A NaN gives 0.
    """
    if math.isnan(deviation):
        return 0.0
    if deviation <= 0:
        return 1.0
    spread = variance + largest * deviation / 3
    return min(1.0, 2 * math.exp(-(deviation**2) / 2 / spread)) if spread > 0 else 0.0


def chernoff_p(count: Any, chances: Any, draws: int) -> Floats:
    """p-value of counts of `draws` independent events, `chances` the sums of their probabilities; elementwise.

    2·exp(−n·KL(count/n, chance/n)), Hoeffding (1963, Theorem 1), which holds for events of unlike probabilities.
    """
    share, stated = np.asarray(count, dtype=np.float64) / draws, np.asarray(chances, dtype=np.float64) / draws
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.where(share > 0, share * np.log(share / stated), 0.0)
        right = np.where(share < 1, (1 - share) * np.log((1 - share) / (1 - stated)), 0.0)
    return np.asarray(np.minimum(1.0, 2 * np.exp(-draws * (left + right))))


def smallest(p_values: Iterable[float | Floats]) -> tuple[float, int]:
    """The smallest p-value times their number (Bonferroni), at most 1, and that number; NaN counts as 0."""
    flat: Sequence[Floats] = [np.atleast_1d(np.asarray(p, dtype=np.float64)).ravel() for p in p_values]
    everything = np.concatenate(flat)
    return min(1.0, float(np.nan_to_num(everything, nan=0.0).min()) * everything.size), everything.size
