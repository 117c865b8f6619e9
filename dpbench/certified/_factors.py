"""Factors of M(z) in closed form: the plain Gaussian, and losses with atoms (finite pairs, Laplace).

A factor answers, like `Mixture`: `log_moment` and `lift` in doubles, which only plan, and `moments`, `upper`, `tail`,
`largest_loss` in balls, which prove. Atoms do not decay: their bound of |M(c + iu)| is M(c).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from flint import acb, arb

from dpbench.certified._mixture import positive
from dpbench.certified._numbers import ball_of, log_fraction


class Factor(Protocol):
    """One release in one direction, as the contour sees it."""

    def log_moment(self, c: float) -> float:
        """log M(c) in doubles; inf where M(c) is infinite."""
        ...

    def lift(self, c: float, u: float, start: Any = None, fixed: bool = False) -> tuple[float, Any]:
        """log of a bound of |M(c + iu')|, u' >= u, in doubles, and whatever `tail` needs to prove it."""
        ...

    def moments(self, c: Any, step: Any, count: int, digits: float) -> tuple[list[Any], Any]:
        """Enclosures of M(c + i·k·step), k < count, and the radius in them that is not rounding."""
        ...

    def upper(self, a: Any) -> Any:
        """A proven upper bound of M(a)."""
        ...

    def tail(self, c: Any, u: Any, line: Any, digits: float) -> Any:
        """A proven upper bound of |M(c + iu')| for all u' >= u."""
        ...

    def largest_loss(self) -> Any:
        """The supremum of the loss as a ball; None where there is none."""
        ...


@dataclass(frozen=True)
class GaussianFactor:
    """All plain Gaussians together: M(z) = e^(μ² z(z+1)/2), μ² = Σ weight / σ² over `terms` (weight, σ)."""

    terms: tuple[tuple[int, float], ...]

    @property
    def squared_mu(self) -> Any:
        """μ² in the bits now in force."""
        return sum((weight / arb(noise) ** 2 for weight, noise in self.terms), arb(0))

    def log_moment(self, c: float) -> float:
        """Closed form."""
        return sum(weight / noise**2 for weight, noise in self.terms) * c * (c + 1) / 2

    def lift(self, c: float, u: float, start: Any = None, fixed: bool = False) -> tuple[float, Any]:
        """|M(c + iu)| = e^(μ²(c(c+1) − u²)/2), which falls."""
        del start, fixed
        return sum(weight / noise**2 for weight, noise in self.terms) * (c * (c + 1) - u * u) / 2, None

    def moments(self, c: Any, step: Any, count: int, digits: float) -> tuple[list[Any], Any]:
        """Closed form: rounding only."""
        del digits
        points = [acb(c, k * step) for k in range(count)]
        squared_mu = self.squared_mu
        return [(squared_mu * z * (z + 1) / 2).exp() for z in points], arb(0)

    def upper(self, a: Any) -> Any:
        """Closed form."""
        return positive((self.squared_mu * a * (a + 1) / 2).exp())

    def tail(self, c: Any, u: Any, line: Any, digits: float) -> Any:
        """The modulus at u itself, which falls."""
        del line, digits
        return positive((self.squared_mu * (c * (c + 1) - u * u) / 2).exp())

    def largest_loss(self) -> Any:
        """Unbounded."""
        return None


@dataclass(frozen=True)
class AtomsFactor:
    """Two laws on finitely many outcomes: `pairs` are (P, Q), exact; where Q = 0 the loss is infinite, and left out."""

    pairs: tuple[tuple[Fraction, Fraction], ...]

    @property
    def atoms(self) -> list[tuple[Any, Any]]:
        """(probability under P, loss) where the loss is finite, in the bits now in force."""
        return [(ball_of(p), ball_of(p / q).log()) for p, q in self.pairs if p and q]

    def log_moment(self, c: float) -> float:
        """log Σ p e^(cℓ)."""
        terms = [(math.log(p) if p >= 1e-300 else -690.0) + c * log_fraction(p / q) for p, q in self.pairs if p and q]
        top = max(terms, default=-math.inf)
        return top + math.log(sum(math.exp(t - top) for t in terms)) if terms else -math.inf

    def lift(self, c: float, u: float, start: Any = None, fixed: bool = False) -> tuple[float, Any]:
        """No decay."""
        del u, start, fixed
        return self.log_moment(c), None

    def moments(self, c: Any, step: Any, count: int, digits: float) -> tuple[list[Any], Any]:
        """The finite sums themselves: rounding only."""
        del digits
        points = [acb(c, k * step) for k in range(count)]
        atoms = self.atoms
        return [sum((p * (z * loss).exp() for p, loss in atoms), acb(0)) for z in points], arb(0)

    def upper(self, a: Any) -> Any:
        """The finite sum."""
        return positive(sum((p * (a * loss).exp() for p, loss in self.atoms), arb(0)))

    def tail(self, c: Any, u: Any, line: Any, digits: float) -> Any:
        """|M(c + iu)| <= M(c)."""
        del u, line, digits
        return self.upper(c)

    def largest_loss(self) -> Any:
        """The greatest of the finite losses; None where there are none."""
        ratios = [p / q for p, q in self.pairs if p and q]
        return ball_of(max(ratios)).log() if ratios else None


@dataclass(frozen=True)
class LaplaceFactor:
    """Lap(0, b) against Lap(1, b): M(z) = ((1+z) e^(z/b) + z e^(−(1+z)/b)) / (1 + 2z), `scale` is b."""

    scale: float

    def log_moment(self, c: float) -> float:
        """Closed form; c > 0 or −1 < c < 0 but for −1/2."""
        v = 1 / self.scale
        shrink = math.exp(-v * (1 + 2 * c))
        return c * v + math.log(((1 + c) + c * shrink) / (1 + 2 * c))

    def lift(self, c: float, u: float, start: Any = None, fixed: bool = False) -> tuple[float, Any]:
        """No decay: there are atoms at ±1/b."""
        del u, start, fixed
        return self.log_moment(c), None

    def moments(self, c: Any, step: Any, count: int, digits: float) -> tuple[list[Any], Any]:
        """Closed form: rounding only."""
        del digits
        points = [acb(c, k * step) for k in range(count)]
        v = 1 / arb(self.scale)
        return [((1 + z) * (v * z).exp() + z * (-v * (1 + z)).exp()) / (1 + 2 * z) for z in points], arb(0)

    def upper(self, a: Any) -> Any:
        """Closed form."""
        return positive(self.moments(a, arb(0), 1, 0.0)[0][0])

    def tail(self, c: Any, u: Any, line: Any, digits: float) -> Any:
        """|M(c + iu)| <= M(c)."""
        del u, line, digits
        return self.upper(c)

    def largest_loss(self) -> Any:
        """1/b, an atom."""
        return 1 / arb(self.scale)
