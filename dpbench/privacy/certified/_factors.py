"""Factors of M(z) in closed form: the plain Gaussian, and losses with atoms (finite pairs, Laplace).

A factor answers, like `Mixture`: `log_moment` and `lift` in doubles, which only plan, and `moments`, `upper`, `tail`,
`largest_loss` in balls, which prove. Atoms do not decay: their bound of |M(c + iu)| is M(c).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from flint import acb, arb, ctx

from dpbench.privacy.certified._mixture import positive
from dpbench.privacy.certified._numbers import ball_of, log_fraction, spend


class Factor(Protocol):
    """One invocation in one direction, as the contour sees it."""

    def log_moment(self, c: float) -> float:
        """log M(c) in doubles; inf where M(c) is infinite."""
        ...

    def lift(self, c: float, u: float, start: Any = None, fixed: bool = False, /) -> tuple[float, Any]:
        """log of a bound of |M(c + iu')|, u' >= u, in doubles, and whatever `tail` needs to prove it."""
        ...

    def moments(self, c: Any, step: Any, count: int, digits: float, /) -> tuple[list[Any], Any]:
        """Enclosures of M(c + i·k·step), k < count, and the radius in them that is not rounding."""
        ...

    def upper(self, a: Any) -> Any:
        """A proven upper bound of M(a)."""
        ...

    def tail(self, c: Any, u: Any, line: Any, digits: float, /) -> Any:
        """A proven upper bound of |M(c + iu')| for all u' >= u."""
        ...

    def largest_loss(self) -> Any:
        """The supremum of the loss as a ball; None where there is none."""
        ...


class ClosedFactor(ABC):
    """A factor whose M is known in closed form, with rounding as its only error; without decay as it is here."""

    @property
    def size(self) -> int:
        """The number of terms of M, as far as work is concerned."""
        return 1

    @abstractmethod
    def transform(self) -> Callable[[Any], Any]:
        """M as a function of a ball z, in the bits now in force."""

    @abstractmethod
    def log_moment(self, c: float) -> float:
        """log M(c) in doubles; c > 0 or −1 < c < 0 but for −1/2."""

    def lift(self, c: float, _u: float, _start: Any = None, _fixed: bool = False) -> tuple[float, Any]:
        """|M(c + iu)| <= M(c): atoms do not decay."""
        return self.log_moment(c), None

    def moments(self, c: Any, step: Any, count: int, _digits: float) -> tuple[list[Any], Any]:
        """M at every node: rounding only."""
        spend(5.0 * self.size * count * (1 + ctx.prec / 600))
        moment = self.transform()
        return [moment(acb(c, k * step)) for k in range(count)], arb(0)

    def upper(self, a: Any) -> Any:
        """M(a), rounded up."""
        return positive(self.transform()(a))

    def tail(self, c: Any, _u: Any, _line: Any, _digits: float) -> Any:
        """|M(c + iu)| <= M(c)."""
        return self.upper(c)


@dataclass(frozen=True)
class GaussianFactor(ClosedFactor):
    """All plain Gaussians together: M(z) = e^(μ² z(z+1)/2), μ² = Σ weight / σ² over `terms` (weight, σ)."""

    terms: tuple[tuple[int, float], ...]

    @property
    def squared_mu(self) -> Any:
        """μ² in the bits now in force."""
        return sum((weight / arb(noise) ** 2 for weight, noise in self.terms), arb(0))

    def transform(self) -> Callable[[Any], Any]:
        """As above."""
        squared_mu = self.squared_mu
        return lambda z: (squared_mu * z * (z + 1) / 2).exp()

    def log_moment(self, c: float) -> float:
        """The exponent."""
        return self.lift(c, 0.0)[0]

    def lift(self, c: float, u: float, _start: Any = None, _fixed: bool = False) -> tuple[float, Any]:
        """|M(c + iu)| = e^(μ²(c(c+1) − u²)/2), which falls."""
        return sum(weight / noise**2 for weight, noise in self.terms) * (c * (c + 1) - u * u) / 2, None

    def tail(self, c: Any, u: Any, _line: Any, _digits: float) -> Any:
        """The modulus at u itself, which falls."""
        return positive((self.squared_mu * (c * (c + 1) - u * u) / 2).exp())

    def largest_loss(self) -> Any:
        """Unbounded."""
        return None


@dataclass(frozen=True)
class AtomsFactor(ClosedFactor):
    """Two laws on finitely many outcomes: `pairs` are (P, Q), exact; where Q = 0 the loss is infinite, and left out."""

    pairs: tuple[tuple[Fraction, Fraction], ...]

    @property
    def size(self) -> int:
        """One for each outcome."""
        return len(self.pairs)

    def transform(self) -> Callable[[Any], Any]:
        """Σ p e^(zℓ) over the finite losses ℓ."""
        atoms = [(ball_of(p), ball_of(p / q).log()) for p, q in self.pairs if p and q]
        return lambda z: sum((p * (z * loss).exp() for p, loss in atoms), 0 * z)

    def log_moment(self, c: float) -> float:
        """log Σ p e^(cℓ)."""
        spend(2 * self.size)
        terms = [(math.log(p) if p >= 1e-300 else -690.0) + c * log_fraction(p / q) for p, q in self.pairs if p and q]
        top = max(terms, default=-math.inf)
        return top + math.log(sum(math.exp(t - top) for t in terms)) if terms else -math.inf

    def largest_loss(self) -> Any:
        """The greatest of the finite losses; None where there are none."""
        ratios = [p / q for p, q in self.pairs if p and q]
        return ball_of(max(ratios)).log() if ratios else None


@dataclass(frozen=True)
class LaplaceFactor(ClosedFactor):
    """Lap(0, b) against Lap(1, b): M(z) = ((1+z) e^(z/b) + z e^(−(1+z)/b)) / (1 + 2z), `scale` is b."""

    scale: float

    def transform(self) -> Callable[[Any], Any]:
        """As above."""
        v = 1 / arb(self.scale)
        return lambda z: ((1 + z) * (v * z).exp() + z * (-v * (1 + z)).exp()) / (1 + 2 * z)

    def log_moment(self, c: float) -> float:
        """The same in doubles."""
        v = 1 / self.scale
        shrink = math.exp(-v * (1 + 2 * c))
        return c * v + math.log(((1 + c) + c * shrink) / (1 + 2 * c))

    def largest_loss(self) -> Any:
        """1/b, an atom."""
        return 1 / arb(self.scale)
