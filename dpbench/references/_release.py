"""What a mechanism has to offer to be enclosed: its hockey-stick curve, and where its loss lies.

A *law* is one mechanism invocation as data, independent of the direction; `law.pair(direction)` is the pair (P, Q) in
one direction. The lattice (`_lattice.py`) needs only the hockey-stick divergence H(a) = E_Q (X − a)₊ of a pair, in Arb
balls. Everything else here decides how wide an enclosure gets and may be rough. Losses are measured from the pair's
*anchor*: L = anchor + y.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from flint import arb

from dpbench.references import _quadrature
from dpbench.references._enclosure import Ball, Enclosure, ball, bits, outward

Direction = Literal["remove", "add"]
DIRECTIONS: tuple[Direction, ...] = ("remove", "add")
MAXIMAL_BITS = 1 << 14
HockeyStick = Callable[[Ball], tuple[Ball, Ball] | None]


class Directed(ABC):
    """The pair (P, Q) of one invocation in one direction."""

    @abstractmethod
    def anchor(self) -> Ball:
        """The loss from which y is measured, as a ball at the working precision."""

    @abstractmethod
    def hockey_stick(self) -> HockeyStick:
        """The function y -> balls around H(a) and a slope of H there, a = e^{anchor + y}; None where y is undecided.

        The line through the two balls must lie below H everywhere (a tangent, or a subgradient at a kink).
        """

    @abstractmethod
    def span(self, tail: float, /) -> tuple[float, float]:
        """Two y, the lower first, between which the loss lies but for a probability of about `tail`."""

    def spread(self, _y: float, /) -> float:
        """How many steps wide a cell at y may be, compared to where the loss is densest: all cells alike."""
        return 1.0

    def log_density(self, _y: float, /) -> float:
        """log of the density of X at a = e^{anchor + y} under Q, up to a constant; 0 where nothing is known."""
        return 0.0

    def period(self) -> Fraction | None:
        """A distance between atoms which the lattice's step should divide; None without atoms."""
        return None


class Law(ABC):
    """One invocation as data. By default a pair of mixtures of normals, whose loss has no end and no heavy tail."""

    @property
    def heavy(self) -> bool:
        """Whether the loss has so heavy a tail that a composition has to be capped above the ε asked for."""
        return False

    @abstractmethod
    def pair(self, direction: Direction, /) -> Directed:
        """The pair in one direction."""

    def largest_loss(self, _direction: Direction, /) -> Ball | None:
        """A number that the loss certainly never exceeds, as a ball at the working precision; None without one."""
        return None

    def densities(self) -> _quadrature.Mixtures:
        """The two laws for mpmath, written out again."""
        raise ValueError(f"event: expected no Rényi divergence of {type(self).__name__}, known by its curve only")

    def quadrature(self, direction: Direction, epsilon: Fraction, digits: int, /) -> Decimal:
        """δ(ε) = ∫ (p − e^ε q)₊ dx by mpmath, from the densities."""
        return _quadrature.hockey_stick(self.densities(), direction, epsilon, digits)

    def renyi(self, direction: Direction, order: Fraction, digits: int, /) -> Decimal:
        """The Rényi divergence log ∫ p^α q^{1−α} dx / (α − 1) by mpmath; infinite where it is."""
        return _quadrature.renyi(self.densities(), direction, order, digits)


class Symmetric(Law, Directed):
    """A law that is its own pair, the same in both directions."""

    def pair(self, _direction: Direction, /) -> Directed:
        """Itself."""
        return self


Releases = tuple[tuple[Law, int], ...]


def counted(releases: Iterable[tuple[Law, int]]) -> Releases:
    """Equal laws together, their counts added; counts of 0 are left out."""
    counts: dict[Law, int] = {}
    for law, count in releases:
        if count:
            counts[law] = counts.get(law, 0) + count
    return tuple(counts.items())


def refined(method: str, digits: int, at_precision: Callable[[], Ball | None]) -> Enclosure:
    """A number >= 0 to so many digits: computed with more and more bits until its ball is narrow enough.

    Numbers below 10^−6000 count as narrow. Raises ArithmeticError when 16384 bits are not enough.
    """
    precision = 64 + int(3.33 * digits)
    while precision <= MAXIMAL_BITS:
        with bits(precision):
            found = at_precision()
            if found is not None and found.is_finite():
                height = found.nonnegative_part()
                tiny = arb(10) ** -6000
                if height.is_exact() or height.rel_accuracy_bits() > 3.33 * digits + 4 or height < tiny:
                    return outward(height, height, digits + 5, method)
        precision *= 2
    raise ArithmeticError(f"{method}: {MAXIMAL_BITS} bits do not give {digits} digits")


def hockey_stick_enclosure(pair: Directed, epsilon: Fraction, digits: int) -> Enclosure:
    """An enclosure of δ(ε) of one invocation to at least so many correct digits; raises the precision as needed."""

    def at_precision() -> Ball | None:
        found = pair.hockey_stick()(ball(epsilon) - pair.anchor())
        return None if found is None else found[0]

    return refined("Arb balls, half line of the likelihood ratio", digits, at_precision)
