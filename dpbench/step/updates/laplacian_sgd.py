"""Gradient descent along a smoothed gradient: θ ← θ − η·A⁻¹g with A = I − sL (DP-LSSGD, Wang et al. 2019, Algorithm 1).

L is the discrete Laplacian of the P parameters in a circle: row i of A has 1 + 2s at i and −s at both its neighbours.

| paper | here |
| --- | --- |
| σ of A_σ | smoothing_weight, s |
| m | P, any number of parameters |
| η_k | learning rate |

**A⁻¹ by FFT.** A is circulant, so A⁻¹g has the transform ĝ_k / (1 + 4s·sin²(πk/P)). For P = 1 the neighbours are
the parameter itself and A = 1; for P = 2 both are the other one and A has the rows (1 + 2s, −2s), (−2s, 1 + 2s).

**Ledger.** That of the noisy gradient: A⁻¹ does not look at the data, and what is computed of a released value alone
costs no privacy. A⁻¹ keeps the mean of the entries (k = 0) and makes every other frequency smaller, so it is never
longer than g: of the noise of unit variance it leaves the variance Σ_k (1 + 4s·sin²(πk/P))⁻²/P in every entry.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dpbench.errors import DpbenchError

NUMERICS = 1


@dataclass(frozen=True)
class LaplacianSgd:
    """An `Update` without memory; `smoothing_weight` is s, 0 is `sgd`. Raises DpbenchError for an s below 0.

    >>> LaplacianSgd(smoothing_weight=1.0).smoothed(torch.tensor([4.0, 0.0, 0.0])).round(decimals=4).tolist()
    [2.0, 1.0, 1.0]
    """

    smoothing_weight: float = 1.0
    memory: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing_weight < math.inf:
            raise DpbenchError(f"smoothing_weight = {self.smoothing_weight!r}: expected a finite number, 0 or more")

    def smoothed(self, gradient_P: Tensor) -> Tensor:
        """A⁻¹g, in the dtype of g; exact but for rounding."""
        if self.smoothing_weight == 0:
            return gradient_P
        size = gradient_P.shape[-1]
        angle_K = math.pi / size * torch.arange(size // 2 + 1, dtype=torch.float64, device=gradient_P.device)
        divisor_K = 1 + 4 * self.smoothing_weight * angle_K.sin().square()
        transform_K = torch.fft.rfft(gradient_P) / divisor_K.to(gradient_P.dtype)
        smoothed_P: Tensor = torch.fft.irfft(transform_K, n=size)
        return smoothed_P

    def __call__(
        self, theta_P: Tensor, memory: Mapping[str, Tensor], gradient_P: Tensor, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        del memory, step  # every step is alike
        return theta_P - rate * self.smoothed(gradient_P), {}


update = LaplacianSgd
