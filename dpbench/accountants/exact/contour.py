"""The contour: δ(ε) = (1/2πi) ∫ M(z) e^(−zε) / (z(z+1)) dz along a hyperbola. docs/exact.md has the method.

| here | meaning |
| --- | --- |
| ζ | z in the direction remove, −z in the direction add: both integrands have e^(ζl) |
| l | log R, R the likelihood ratio of one release: its loss under remove, minus its loss under add |
| w | the density of what l is averaged over, P's: Σ w e^(ζl) is M; pR in the direction remove, p in add |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Complex = NDArray[np.complex128]
Way = Literal["remove", "add"]


@dataclass(frozen=True)
class Nodes:
    """Σ w f(l) is the mean of f(l) under P: nodes on a path in s, weights with the step and ds in them.

    On the path 0 <= Im l, and the larger Im l / Re l, the wider the hyperbola may open. `summed` says that they are
    outcomes and not a quadrature: then every other one tells nothing of an error.
    """

    weights: Complex
    losses: Complex
    summed: bool = False


class Release(Protocol):
    """One release in one direction, as the contour needs it; how often it happens stands beside it."""

    @property
    def largest(self) -> float:
        """The largest loss in this direction (of L, not of l); ∞ where there is none."""
        ...

    @property
    def crossings(self) -> tuple[float, float]:
        """Between which |ζ| on the real axis M is finite and worth looking: (0, ∞) at most."""
        ...

    def nodes(self, crossing: float, scale: float) -> Nodes:
        """Nodes for paths in ζ that cross the real axis at `crossing` (> 0 remove, < 0 add).

        `scale` is 1, or a little less or more: other nodes for a second evaluation, equally good.
        """
        ...

    def law(self, most: float) -> tuple[Floats, Floats]:
        """log w and l at real s, for Σ w e^(ζl) to about 1e-6 at all crossings |ζ| <= `most`."""
        ...
