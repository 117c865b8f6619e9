"""δ(ε) without a contour: the Gaussian's closed form, one sampled release, finite pairs, and Laplace by residues.

Sections 7 and 8 of docs/certified.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from flint import arb, fmpq, fmpq_poly

from dpbench.certified._numbers import ball_of
from dpbench.errors import DpbenchError

MOST_TERMS = 400_000
MOST_LAPLACE = 600

Pairs = Sequence[tuple[Fraction, Fraction]]


def normal_cdf(x: Any) -> Any:
    """Φ(x) of a ball."""
    return (-x / arb(2).sqrt()).erfc() / 2


def gaussian_delta(squared_mu: Any, epsilon: Any) -> Any:
    """Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)."""
    mu = squared_mu.sqrt()
    return normal_cdf(mu / 2 - epsilon / mu) - epsilon.exp() * normal_cdf(-mu / 2 - epsilon / mu)


def single_delta(weights: Sequence[Any], noise: Any, direction: str, epsilon: Any) -> Any | None:
    """One release of (1−q)·N(0, σ²) + q·N(1, σ²) against N(0, σ²), or the reverse: the two laws cross once.

    None where the ball of ε does not tell on which side of the add direction's largest loss it lies.
    """
    rest, rate = weights
    growth = epsilon.exp()
    level = ((growth if direction == "remove" else 1 / growth) - rest) / rate  # e^s where the laws cross
    if level <= 0:  # add, with ε beyond −log(1−q)
        return arb(0)
    if not level > 0:
        return None
    cross = noise * level.log() + 1 / (2 * noise)  # x/σ where they cross
    shift = 1 / noise
    if direction == "remove":
        mixture = rest * normal_cdf(-cross) + rate * normal_cdf(shift - cross)
        return mixture - growth * normal_cdf(-cross)
    mixture = rest * normal_cdf(cross) + rate * normal_cdf(cross - shift)
    return normal_cdf(cross) - growth * mixture


def count_terms(factors: Sequence[tuple[Pairs, int]]) -> int:
    """How many terms `atoms_delta` has: one per way to distribute the counts over the ratios."""
    return math.prod(math.comb(count + len(pairs) - 1, len(pairs) - 1) for pairs, count in factors)


def atoms_delta(factors: Sequence[tuple[Pairs, int]], epsilon: Any) -> Any:
    """Σ (P − e^ε Q)₊ over all outcomes of independent finite pairs, each with its count."""
    terms = count_terms(factors)
    if terms > MOST_TERMS:
        raise DpbenchError(
            f"DiscretePair: expected at most {MOST_TERMS} distinct sums of the loss, not {terms}; certify fewer"
            " releases or outcomes, or compose with a Gaussian release"
        )
    growth = epsilon.exp()
    total = arb(0)
    for combination in itertools.product(*(list(_multinomial(pairs, count)) for pairs, count in factors)):
        p, q = arb(1), arb(1)
        for first, second in combination:
            p, q = p * first, q * second
        gain = p - growth * q
        if gain > 0:
            total += gain
        elif not gain < 0:
            total += gain.union(arb(0)).nonnegative_part()
    return total


def _multinomial(pairs: Pairs, count: int) -> Iterator[tuple[Any, Any]]:
    """P and Q of every composition of `count` into len(pairs) parts, as balls."""
    logs = [[ball_of(value) for value in pair] for pair in pairs]

    def walk(index: int, left: int, ways: int, p: Any, q: Any) -> Iterator[tuple[Any, Any]]:
        if index == len(pairs) - 1:
            yield ways * p * logs[index][0] ** left, ways * q * logs[index][1] ** left
            return
        first, second = arb(1), arb(1)
        choose = 1
        for taken in range(left + 1):
            yield from walk(index + 1, left - taken, ways * choose, p * first, q * second)
            first, second = first * logs[index][0], second * logs[index][1]
            choose = choose * (left - taken) // (taken + 1)

    return walk(0, count, 1, arb(1), arb(1))


def laplace_delta(scale: Any, count: int, epsilon: Any) -> Any:
    """`count` Laplace releases of one scale, by the residues of M(z)^T e^(−zε)/(z(z+1)) (section 8)."""
    if count > MOST_LAPLACE:
        raise DpbenchError(
            f"Laplace, count = {count}: expected at most {MOST_LAPLACE} releases; certify fewer, or compose with a"
            " Gaussian release"
        )
    v = 1 / scale
    half = fmpq(1, 2)
    total = arb(0)
    for k in range(count):
        t = v * (count - 2 * k) - epsilon
        if t <= 0:
            continue
        # the coefficient of w^(T−1) in e^(wt) (1/2 + w)^(T−k−1) (w − 1/2)^(k−1), w = z + 1/2
        base = fmpq_poly([half, 1]) ** (count - k - 1)
        if k:
            series = list((base * fmpq_poly([-half, 1]) ** (k - 1)).coeffs())
        else:
            series, carried = [], fmpq(0)
            coefficients = base.coeffs()
            for j in range(count):  # division by (w − 1/2), as a power series: −2 / (1 − 2w)
                carried = 2 * carried + (-2 * coefficients[j] if j < len(coefficients) else 0)
                series.append(carried)
        residue = arb(0)
        power = arb(1)
        for j in range(count - 1, -1, -1):
            if j < len(series):
                residue += arb(series[j]) * power
            power = power * t / (count - j)
        residue *= (-t / 2).exp() / arb(2) ** count
        term = math.comb(count, k) * (-v * k).exp() * (residue + (1 if k == 0 else 0))
        total += term if t > 0 else term.union(arb(0))
    return total
