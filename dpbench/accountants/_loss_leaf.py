"""One release as an analytic loss on the real line: the likelihood ratio, and which of its powers the transform needs.

| here | meaning |
| --- | --- |
| x | the released coordinate, in units of the clip norm |
| base(x) | a probability density; P itself or the one against which P is written |
| ratio(x) | the logarithm ρ of a likelihood ratio, analytic for |Im x| < πσ² |
| slope, shift | M(z) = E_P[e^(zL)] = ∫ base(x) e^(wρ(x)) dx with w = slope · z + shift |

For a sampled Gaussian base = N(0, σ²), ρ = log(1 − q + q e^((2x−1)/(2σ²))), w = z + 1 for "remove" and −z for "add".
The values are computed in `_leaf_family`, for many like releases at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Complex = NDArray[np.complex128]
UNIT = 2.0**-53


@dataclass(frozen=True)
class Ratio:
    """ρ(x) = log Σ_k weight_k e^((2kx − k²)/(2σ²)) over k = 0 ... degree: the log ratio of a mixture to N(0, σ²).

    `weights` are binomial probabilities: (1 − q, q) for one record. `reverse` mirrors x.
    """

    weights: tuple[float, ...]
    sigma: float
    reverse: bool = False

    @property
    def degree(self) -> int:
        """The largest number of records that take part."""
        return len(self.weights) - 1


@dataclass(frozen=True)
class LossLeaf:
    """One release in one direction.

    `numerator` is ρ; where `denominator` is given, ρ is the difference of the two and `base` is the mixture of the
    numerator (replacing a record), else base is N(0, σ²).
    """

    numerator: Ratio
    slope: int
    shift: int
    denominator: Ratio | None = None

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise, relative to the clip norm."""
        return self.numerator.sigma

    @property
    def swapped(self) -> LossLeaf:
        """The leaf of M(−1 − z): the pair with its two distributions exchanged."""
        return replace(self, slope=-self.slope, shift=self.shift - self.slope)

    @property
    def atom(self) -> float:
        """The loss at the flat end of ρ: −∞ or +∞ where ρ has none."""
        if self.denominator is not None or self.numerator.weights[0] == 0:
            return -math.inf * self.slope
        drawn = math.fsum(self.numerator.weights[1:])
        return self.slope * (math.log1p(-drawn) if drawn < 0.5 else math.log(self.numerator.weights[0]))

    @property
    def largest_loss(self) -> float:
        """The supremum of the loss."""
        return self.atom if self.slope < 0 and self.denominator is None else math.inf


def sampled_leaf(rate: float, sigma: float, direction: str) -> LossLeaf:
    """The leaf of a Poisson-sampled Gaussian; `direction` is remove or add."""
    ratio = Ratio((1 - rate, rate), sigma)
    return LossLeaf(ratio, 1, 1) if direction == "remove" else LossLeaf(ratio, -1, 0)
