"""Expectations over all batches of a handful of records, in exact fractions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import product

Vector = tuple[Fraction, Fraction]

# three gradients with whole norms, and their norms
GRADIENTS: tuple[Vector, ...] = (
    (Fraction(3), Fraction(4)),
    (Fraction(0), Fraction(2)),
    (Fraction(-6), Fraction(8)),
)
NORMS = (Fraction(5), Fraction(2), Fraction(10))


def batches(rates: Sequence[Fraction]) -> Iterator[tuple[Fraction, tuple[int, ...]]]:
    """Every batch with its probability when record i is drawn with probability `rates[i]`, independently.

    >>> sum(probability for probability, _ in batches([Fraction(1, 3), Fraction(1, 2)]))
    Fraction(1, 1)
    """
    for drawn in product((False, True), repeat=len(rates)):
        probability = Fraction(1)
        for rate, chosen in zip(rates, drawn, strict=True):
            probability *= rate if chosen else 1 - rate
        yield probability, tuple(i for i, chosen in enumerate(drawn) if chosen)


def expectation(rates: Sequence[Fraction], value: Callable[[tuple[int, ...]], Fraction]) -> Fraction:
    """E of `value(members)` over all batches.

    >>> expectation([Fraction(1, 3), Fraction(1, 2)], lambda members: Fraction(len(members)))
    Fraction(5, 6)
    """
    return sum((probability * value(members) for probability, members in batches(rates)), Fraction(0))


def total(vectors: Sequence[Vector]) -> Vector:
    """The sum of vectors.

    >>> total(GRADIENTS)
    (Fraction(-3, 1), Fraction(14, 1))
    """
    return sum((x for x, _ in vectors), Fraction(0)), sum((y for _, y in vectors), Fraction(0))


def scaled(vector: Vector, factor: Fraction) -> Vector:
    """A vector times a number."""
    return vector[0] * factor, vector[1] * factor


def inner(first: Vector, second: Vector) -> Fraction:
    """The inner product."""
    return first[0] * second[0] + first[1] * second[1]
