"""Internal: laws of given votes use the quadrature of the references.

The exact laws of one Confident-GNMax query whose votes are given, no answer or a class; what tables are made of.

`outcomes` integrates their probabilities (mpmath, two sets of panels, no proof); `divergence` and `hockey_stick`
compare them with every neighbouring vote's.

    >>> query = ConfidentGNMax(threshold=30.0, selection_noise=20.0, answer_noise=5.0, votes=(40, 8, 2))
    >>> [f"{p:.6g}" for p in outcomes(query, digits=12)]
    ['0.308538', '0.691460', '0.00000208306', '2.62658e-8']
    >>> from dpbench.references import confident_gnmax
    >>> float(divergence(query, 8, digits=12)) < float(confident_gnmax.reference.renyi(query, 8, digits=12))
    True
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import mpmath

from dpbench.events import ConfidentGNMax
from dpbench.references._enclosure import Real, rational
from dpbench.references._quadrature import _agreed, _decimal, _number
from dpbench.references._reference import Which, directions

Number = Any


def outcomes(event: ConfidentGNMax, digits: int = 25) -> tuple[Decimal, ...]:
    """The probabilities of no answer and of every class in turn; `digits` significant digits, not rigorous.

    Raises ValueError without votes or with infinite noise, ArithmeticError where two sets of panels disagree.
    """
    with mpmath.workdps(digits + 20):
        return tuple(_decimal(value, digits) for value in _outcomes(event, digits + 5))


def neighbours(event: ConfidentGNMax) -> tuple[ConfidentGNMax, ...]:
    """The same query after one teacher's vote has gone from one class to another, for all pairs of classes."""
    votes = _voted(event)
    moved = []
    for i, j in itertools.permutations(range(len(votes)), 2):
        if votes[i]:
            counts = list(votes)
            counts[i] -= 1
            counts[j] += 1
            moved.append(replace(event, votes=tuple(counts)))
    return tuple(moved)


def divergence(event: ConfidentGNMax, order: Real, digits: int = 20, *, direction: Which = "remove") -> Decimal:
    """The largest Rényi divergence of order α > 1 of the outcomes with these votes from a neighbour's outcomes.

    For remove D_α(these ‖ neighbour's), which data-dependent bounds are about; for add the reverse.
    """
    exact = rational("order", order)
    if not exact > 1:
        raise ValueError(f"order = {order!r}: expected a number above 1")

    def of_pair(first: list[Number], second: list[Number]) -> Number:
        alpha = _number(exact)
        excess = mpmath.fsum(q * (mpmath.powm1(p / q, alpha) - alpha * (p / q - 1)) for p, q in _pairs(first, second))
        return mpmath.log1p(excess) / (alpha - 1)

    return _worst(event, of_pair, digits, direction)


def hockey_stick(event: ConfidentGNMax, epsilon: Real, digits: int = 20, *, direction: Which = "both") -> Decimal:
    """The largest δ(ε) between the outcomes with these votes and a neighbour's: Σ (p − e^ε q)₊."""
    exact = rational("epsilon", epsilon)

    def of_pair(first: list[Number], second: list[Number]) -> Number:
        bound = mpmath.exp(_number(exact))
        return mpmath.fsum(max(mpmath.mpf(0), p - bound * q) for p, q in _pairs(first, second))

    return _worst(event, of_pair, digits, direction)


def _pairs(first: list[Number], second: list[Number]) -> list[tuple[Number, Number]]:
    return list(zip(first, second, strict=True))


def _worst(event: ConfidentGNMax, of_pair: Any, digits: int, direction: Which) -> Decimal:
    """The largest over all neighbours and the directions asked for."""
    with mpmath.workdps(2 * digits + 20):
        here, found = _outcomes(event, digits + 12), [mpmath.mpf(0)]
        kinds = {(tuple(sorted(zip(_voted(event), _voted(other), strict=True)))): other for other in neighbours(event)}
        for other in kinds.values():  # those that differ in the names of classes with equal counts only, once
            there = _outcomes(other, digits + 12)
            ways = {"remove": (here, there), "add": (there, here)}
            found += [of_pair(*ways[way]) for way in directions(direction)]
        return _decimal(max(found), digits)


def _voted(event: ConfidentGNMax) -> tuple[int, ...]:
    if event.votes is None:
        raise ValueError("votes = None: expected the counts of all classes")
    for name in ("selection_noise", "answer_noise"):
        if math.isinf(getattr(event, name)):
            raise ValueError(f"{name} = inf: expected finite noise where votes are given")
    return event.votes


def _outcomes(event: ConfidentGNMax, digits: int) -> list[Number]:
    """No answer, then every class: P(answered) ∫ φ(x) Π_{i ≠ j} Φ((n_j − n_i)/σ₂ + x) dx."""
    votes = _voted(event)
    first, second = _number(Fraction(event.selection_noise)), _number(Fraction(event.answer_noise))
    gap = (max(votes) - _number(Fraction(event.threshold))) / first
    unanswered, answered = (mpmath.erfc(sign * gap / mpmath.sqrt(2)) / 2 for sign in (1, -1))
    known: dict[int, Number] = {}
    for votes_of_class in set(votes):
        rivals = [(votes_of_class - other) / second for other in votes]
        rivals.remove(mpmath.mpf(0))
        known[votes_of_class] = _wins(rivals, digits)
    total = mpmath.fsum(known[count] for count in votes)
    if abs(total - 1) > mpmath.mpf(10) ** (3 - digits):
        raise ArithmeticError(f"votes = {votes}: the classes' probabilities sum to {total}, expected 1")
    return [unanswered, *(answered * known[count] for count in votes)]


def _wins(leads: list[Number], digits: int) -> Number:
    """P(x + lead_i > noise_i for all i), x and the noises standard normal; the integrand is log-concave."""

    times = Counter(leads)

    def log_density(x: Number) -> Number:
        logs = (n * mpmath.log(mpmath.erfc(-(x + lead) / mpmath.sqrt(2)) / 2) for lead, n in times.items())
        return -x * x / 2 + mpmath.fsum(logs)

    peak, step = mpmath.mpf(0), mpmath.mpf(1)
    with mpmath.workdps(15):  # only roughly
        while step > 0.1:
            while log_density(peak + step) > log_density(peak):
                peak += step
            while log_density(peak - step) > log_density(peak):
                peak -= step
            step /= 4
    height, reach = log_density(peak), mpmath.sqrt(2 * (digits + 5) * mpmath.log(10))  # it falls at least like φ

    def integral(growth: Number) -> Number:
        count = int(4 * growth)
        points = [peak - reach + 2 * reach * mpmath.mpf(i) / count for i in range(count + 1)]
        body = mpmath.quad(lambda x: mpmath.exp(log_density(x) - height), points, method="gauss-legendre")
        return body * mpmath.exp(height) / mpmath.sqrt(2 * mpmath.pi)

    return mpmath.mpf(str(_agreed(integral, digits)))
