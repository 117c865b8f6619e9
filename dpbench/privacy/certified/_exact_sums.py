"""δ(ε) without a contour: the Gaussian's closed form, one sampled mechanism, finite pairs, and Laplace by residues.

Sections 7 and 8 of docs/certified.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from flint import arb, fmpq, fmpq_poly

from dpbench.errors import DpbenchError
from dpbench.privacy.certified._numbers import ball_of, ends, spend, working_bits

MOST_TERMS = 400_000
MOST_LAPLACE = 600

Pairs = Sequence[tuple[Fraction, Fraction]]
EXACT_COUNT = 200  # invocations up to which binomial coefficients are whole numbers; beyond, they are balls


def normal_cdf(x: Any) -> Any:
    """Φ(x) of a ball."""
    return (-x / arb(2).sqrt()).erfc() / 2


def gaussian_delta(squared_mu: Any, epsilon: Any) -> Any:
    """Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)."""
    mu = squared_mu.sqrt()
    return normal_cdf(mu / 2 - epsilon / mu) - epsilon.exp() * normal_cdf(-mu / 2 - epsilon / mu)


def single_delta(weights: Sequence[Any], noise: Any, direction: str, epsilon: Any) -> Any | None:
    """One invocation of (1−q)·N(0, σ²) + q·N(1, σ²) against N(0, σ²), or the reverse: the two laws cross once.

    None where the ball of ε does not decide on which side of the add direction's largest loss it lies.
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
    return math.prod(math.comb(count + len(pairs) - 1, len(pairs) - 1) if pairs else 0 for pairs, count in factors)


def atoms_delta(factors: Sequence[tuple[Pairs, int]], epsilon: Any) -> Any:
    """Σ (P − e^ε Q)₊ over all outcomes of independent finite pairs, each with its count."""
    return _hockey_stick(_outcomes(factors), epsilon.exp())


def atoms_epsilon(
    factors: Sequence[tuple[Pairs, int]], delta: Fraction, digits: float
) -> tuple[Fraction, Fraction, Any, int]:
    """Proven ends of the smallest ε >= 0 with δ(ε) <= `delta`, 10^−digits apart, relative, or a thousandth of that.

    And δ at the upper end as a ball, with the bits that it took.

    δ = Σ (P − xQ)₊ is convex and piecewise linear in x = e^ε. The sum over the outcomes that are positive at one x
    is a line below it, and where that line meets `delta` is below the solution, and the next x: Newton's steps rise
    to the solution, and reach it as soon as the outcomes are the same. Section 10 of docs/certified.md.
    """
    wanted = Fraction(10) ** -math.ceil(digits)
    bits = int(digits * 3.33) + 80
    for _ in range(5):
        with working_bits(bits):
            outcomes, limit = _outcomes(factors), ball_of(delta)
            found = _hockey_stick(outcomes, arb(1))
            if found <= limit:
                return Fraction(0), Fraction(0), found, bits
            x, root, left = arb(1), None, outcomes
            while True:
                left = [(p, q) for p, q in left if (p - x * q).mid() > 0]
                p, q = sum((p for p, _ in left), arb(0)), sum((q for _, q in left), arb(0))
                if not q > 0:  # infinite losses only
                    break
                root = (p - limit) / q
                if not root.mid() > x:
                    break
                x = root.mid()
            if not q > 0 and p > limit:
                raise DpbenchError(
                    f"delta = {float(delta)!r}: no finite epsilon was found; the probability of an infinite loss is"
                    f" larger, {float(p.mid())!r}"
                )
            if root is not None and root > 0:
                lower, above = ends(root.log())
                lower = max(lower, Fraction(0))
                upper = above + max(above * wanted, wanted / 1000) / 4
                found = _hockey_stick(outcomes, ball_of(upper).exp())
                if upper - lower <= max(upper * wanted, wanted / 1000) and found <= limit:
                    return lower, upper, found, bits
        bits *= 2
    raise DpbenchError(
        f"delta = {float(delta)!r}: no enclosure of epsilon was reached, it is too close to the probability of an"
        " infinite loss; give epsilon"
    )


def _outcomes(factors: Sequence[tuple[Pairs, int]]) -> list[tuple[Any, Any]]:
    """P and Q of all outcomes of independent finite pairs as balls, those of the same counts together."""
    terms = count_terms(factors)
    if terms > MOST_TERMS:
        raise DpbenchError(
            f"DiscretePair: expected at most {MOST_TERMS} distinct sums of the loss, not {terms}; certify fewer"
            " mechanisms or outcomes, or compose with a Gaussian mechanism"
        )
    spend(6.0 * terms)
    found = [(arb(1), arb(1))]
    for pairs, count in factors:
        more = list(_multinomial(pairs, count))
        found = [(p * first, q * second) for p, q in found for first, second in more]
    return found


def _hockey_stick(outcomes: Sequence[tuple[Any, Any]], growth: Any) -> Any:
    """Σ (P − growth · Q)₊; a term whose sign is not sure contributes [0, its upper end]."""
    total = arb(0)
    for p, q in outcomes:
        gain = p - growth * q
        if gain > 0:
            total += gain
        elif not gain < 0:
            total += gain.union(arb(0)).nonnegative_part()
    return total


def _multinomial(pairs: Pairs, count: int) -> Iterator[tuple[Any, Any]]:
    """P and Q of every composition of `count` into len(pairs) parts, as balls."""
    logs = [[ball_of(value) for value in pair] for pair in pairs]

    def walk(index: int, left: int, ways: Any, p: Any, q: Any) -> Iterator[tuple[Any, Any]]:
        if index == len(pairs) - 1:
            yield ways * p * logs[index][0] ** left, ways * q * logs[index][1] ** left
            return
        first, second = arb(1), arb(1)
        choose: Any = 1 if count <= EXACT_COUNT else arb(1)
        for taken in range(left + 1):
            yield from walk(index + 1, left - taken, ways * choose, p * first, q * second)
            first, second = first * logs[index][0], second * logs[index][1]
            choose *= left - taken
            choose = choose // (taken + 1) if count <= EXACT_COUNT else choose / (taken + 1)

    if not pairs:
        return iter(())
    return walk(0, count, 1, arb(1), arb(1))


def atoms_and_laplace_delta(
    factors: Sequence[tuple[Pairs, int]], scales: Sequence[tuple[float, int]], epsilon: Any
) -> Any:
    """Laplace mechanisms of any `scales`, each with its count, and finite pairs, by residues (section 8).

    Outcomes that Q never gives are left out: the probability of an infinite loss is added apart.
    """
    finite = [([(p, q) for p, q in pairs if p and q], count) for pairs, count in factors]
    laplace = sum(count for _, count in scales)
    terms = count_terms(finite) * math.prod(count + 1 for _, count in scales)
    if laplace > MOST_LAPLACE or terms > MOST_TERMS:
        raise DpbenchError(
            f"Laplace: expected at most {MOST_LAPLACE} mechanisms and {MOST_TERMS} distinct sums of atoms, not"
            f" {laplace} and {terms}; certify fewer, or compose with a Gaussian mechanism"
        )
    spend(1.0 * laplace * (terms + laplace))
    series = [_residue_series(laplace, k) for k in range(laplace + 1)]
    moves = list(_laplace_moves(scales))
    total = arb(0)
    for combination in itertools.product(*(list(_multinomial(pairs, count)) for pairs, count in finite)):
        weight, loss = arb(1), arb(0)
        for first, second in combination:
            weight, loss = weight * first, loss + (first / second).log()
        for ways, fallen, up, k in moves:
            t = up + loss - epsilon
            if t <= 0:
                continue
            term = weight * ways * fallen * _closed_to_the_left(series[k], t, k, laplace)
            total += term if t > 0 else term.union(arb(0))
    return total


def _laplace_moves(scales: Sequence[tuple[float, int]]) -> Iterator[tuple[int, Any, Any, int]]:
    """For every choice of k_i of T_i: the ways, e^(−Σ v_i k_i), Σ v_i (T_i − 2 k_i), and Σ k_i."""
    for chosen in itertools.product(*(range(count + 1) for _, count in scales)):
        ways, down, up = 1, arb(0), arb(0)
        for (scale, count), k in zip(scales, chosen, strict=True):
            ways *= math.comb(count, k)
            down += k / arb(scale)
            up += (count - 2 * k) / arb(scale)
        yield ways, (-down).exp(), up, sum(chosen)


def _residue_series(count: int, k: int) -> list[Any]:
    """The coefficients up to w^(T−1) of (1/2 + w)^(T−k−1) (w − 1/2)^(k−1), w = z + 1/2."""
    half = fmpq(1, 2)
    ends = [fmpq_poly([half, 1]) ** max(count - k - 1, 0) * fmpq_poly([-half, 1]) ** max(k - 1, 0)]
    series = list(ends[0].coeffs())[:count]
    series += [fmpq(0)] * (count - len(series))
    if k == 0:  # division by w − 1/2, as a power series: −2 / (1 − 2w)
        series = _divided(series, -2, 2)
    if k == count:  # and by w + 1/2: 2 / (1 + 2w)
        series = _divided(series, 2, -2)
    return series


def _divided(series: Sequence[Any], factor: int, ratio: int) -> list[Any]:
    """The coefficients of factor · series / (1 − ratio · w)."""
    found, carried = [], fmpq(0)
    for coefficient in series:
        carried = ratio * carried + factor * coefficient
        found.append(carried)
    return found


def _closed_to_the_left(series: Sequence[Any], t: Any, k: int, count: int) -> Any:
    """(1/2πi) ∫ e^(zt) (1+z)^(T−k−1) z^(k−1) / (1+2z)^T dz for t > 0: the residues at −1/2, and 0 and −1 if poles."""
    residue, power = arb(0), arb(1)
    for j in range(count - 1, -1, -1):
        residue += arb(series[j]) * power
        power = power * t / (count - j)
    residue *= (-t / 2).exp() / arb(2) ** count
    if k == 0:
        residue += 1
    if k == count:
        residue -= (-t).exp()
    return residue
