"""Privacy losses with small relative errors, for each is multiplied by a count of up to 2^53.

Log ratios of Gaussian mixtures to N(0, σ²), and the losses of a discrete pair, by exact fractions of the given doubles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpbench.events import DiscretePair

Floats = NDArray[np.float64]
_LARGE = 600.0  # log of a double
_CHUNK = 2**13  # places at a time, for memory


def log_ratio(rate: float, exponent: Floats) -> Floats:
    """log(1 − q + q e^s) at each s, without overflow; a rate above 0.

    >>> [float(f"{value:.12g}") for value in log_ratio(1e-9, np.array([0.0, 2.0, 3000.0]))]
    [0.0, 6.38905607852e-09, 2979.27673416]
    """
    if rate == 1:
        return exponent
    change = rate * np.expm1(np.minimum(exponent, _LARGE))
    near = (change > -0.5) & (exponent < _LARGE)
    far = np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)
    return np.asarray(np.where(near, np.log1p(np.where(near, change, 0.0)), far))


def log_binomials(size: int, rate: float) -> Floats:
    """log C(g, k) q^k (1−q)^(g−k) for k = 0 ... g and a rate between 0 and 1."""
    taken = np.arange(size + 1, dtype=np.float64)
    factorials = np.array([math.lgamma(k + 1) for k in range(size + 1)])
    chosen: Floats = factorials[size] - factorials - factorials[::-1]
    return chosen + taken * math.log(rate) + (size - taken) * math.log1p(-rate)


def group_log_ratio(rate: float, noise: float, size: int, x: Floats) -> Floats:
    """log Σ_k Bin(k; g, q) e^((2kx − k²)/2σ²) at each x, for a rate between 0 and 1."""
    if len(x) > _CHUNK:
        parts = (x[start : start + _CHUNK] for start in range(0, len(x), _CHUNK))
        return np.concatenate([group_log_ratio(rate, noise, size, part) for part in parts])
    taken = np.arange(size + 1, dtype=np.float64)
    log_weights = log_binomials(size, rate)
    exponents = np.outer(x / noise, taken / noise) - (taken / noise) ** 2 / 2
    change = np.expm1(np.minimum(exponents, _LARGE)) @ np.exp(log_weights)  # the weights sum to 1
    near = (np.abs(change) < 0.5) & (exponents.max(axis=-1) < _LARGE)
    exponents += log_weights
    top = exponents.max(axis=-1)
    far = top + np.log(np.exp(exponents - top[:, None]).sum(axis=-1))
    return np.asarray(np.where(near, np.log1p(np.where(near, change, 0.0)), far))


def shares(values: tuple[float, ...]) -> list[Fraction]:
    """The given doubles divided by their exact sum."""
    fractions = [Fraction(value) for value in values]
    total = sum(fractions)
    return [fraction / total for fraction in fractions]


def _log(ratio: Fraction) -> float:
    """log of a positive fraction, to two units in the last place: near 1 by log1p of the exact difference."""
    if abs(ratio - 1) < Fraction(1, 2):
        return math.log1p(float(ratio - 1))
    shift = ratio.numerator.bit_length() - ratio.denominator.bit_length()
    scaled = ratio / Fraction(2) ** shift
    return math.log(float(scaled)) + shift * math.log(2)


@dataclass(frozen=True)
class PairLosses:
    """One pair's distinct finite losses in ascending order, exact ratios merged; masses and what is infinite."""

    losses: Floats
    masses: Floats
    infinite: float

    @classmethod
    def of(cls, event: DiscretePair, direction: int) -> PairLosses:
        first, second = shares(event.first), shares(event.second)
        p, q = (second, first) if direction else (first, second)
        table: dict[Fraction, Fraction] = {}
        for above, below in zip(p, q, strict=True):
            if above and below:
                table[above / below] = table.get(above / below, Fraction(0)) + above
        ratios = sorted(table)
        infinite = float(sum((above for above, below in zip(p, q, strict=True) if above and not below), Fraction(0)))
        return cls(np.array([_log(r) for r in ratios]), np.array([float(table[r]) for r in ratios]), infinite)


def losses(event: DiscretePair, direction: int) -> tuple[Floats, Floats]:
    """A pair's finite losses and their masses; direction 0 is remove, 1 is add."""
    found = PairLosses.of(event, direction)
    return found.losses, found.masses
