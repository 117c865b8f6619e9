"""Inputs standardised with private statistics of their channels (Tramèr and Boneh 2021, for scattering features).

Once before training the mean and the mean square of every channel over the training data are released with Gaussian
noise; then every input x of channel k, in training and in evaluation, becomes (x − μ_k) / sqrt(v_k + 1e-5) with
v_k = s_k − μ_k², and 0 where the noisy v_k is not above 0. That is post-processing of the two noisy sums.

| Tramèr and Boneh | here |
| --- | --- |
| noise multiplier of the normalisation, σ_norm (6 or 8) | statistics_noise_multiplier, relative to each bound |
| bounds of the per-example statistics, C1 and C2 | mean_bound, square_bound |

For example i let a_i be the vector of its K channel means (over height and width) and b_i that of its mean squares.
Released are (Σ_i clip(a_i, mean_bound) + N(0, (σ_norm·mean_bound)²)) / N and the same of b_i with square_bound. One
added example moves each sum by at most its bound in L2 norm; N is public, and nothing is sampled. So the ledger begins
with two Gaussian events of noise multiplier σ_norm. The noise comes from the stream PREPARATION: element k for the mean
of channel k, K + k for its mean square.

The paper was not at hand; its steps are known from its published code, its figures from memory. That code takes the
medians of |a_i| and |b_i| over the private data as bounds, which its accounting leaves out, as it says itself; here the
bounds are numbers of the spec. docs/mechanisms.md gives those medians. Group normalisation (models `scattering_linear`,
`scattering_cnn`) needs no statistics of the data.
Shapes: R runs, N examples, K channels, S places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.errors import DpbenchError
from dpbench.events import Event, Gaussian
from dpbench.step.stages import gaussian_noise

NUMERICS = 1

OFFSET = 1e-5  # added to the variance, as in Tramèr and Boneh's published code
PLACES = 4096  # examples at a time


@dataclass(frozen=True)
class ChannelStatistics:
    """A `Preparation`: private channel means and variances, then standardised inputs.

    Channels are the first axis of a record. Memory: `channel_mean_RK` and `channel_scale_RK`, of the inputs' dtype.
    """

    statistics_noise_multiplier: float = 8.0
    mean_bound: float = 1.0
    square_bound: float = 1.0
    secure: ClassVar[bool] = True  # its noise is `gaussian_noise`

    def __post_init__(self) -> None:
        for name, value in (
            ("statistics_noise_multiplier", self.statistics_noise_multiplier),
            ("mean_bound", self.mean_bound),
            ("square_bound", self.square_bound),
        ):
            if not 0 < value < math.inf:
                raise DpbenchError(f"{name} = {value!r}: expected a finite number above 0")

    @property
    def releases(self) -> tuple[tuple[Event, int], ...]:
        return ((Gaussian(self.statistics_noise_multiplier, "add_or_remove"), 2),)

    def sums(self, inputs: Tensor) -> Tensor:
        """Σ_i clip(a_i, mean_bound) and Σ_i clip(b_i, square_bound), float64 (2, K); inputs (N, K, ...)."""
        total_2K = torch.zeros(2, inputs.shape[1], dtype=torch.float64, device=inputs.device)
        for start in range(0, len(inputs), PLACES):
            part = inputs[start : start + PLACES].double()
            part_NKS = part.reshape(len(part), part.shape[1], -1)
            means = clipped_rows(part_NKS.mean(2), self.mean_bound)
            squares = clipped_rows(part_NKS.square().mean(2), self.square_bound)
            total_2K += torch.stack([means.sum(0), squares.sum(0)])
        return total_2K

    def start(self, keys_RS: Tensor, inputs: Tensor) -> dict[str, Tensor]:
        if inputs.dim() < 2 or not inputs.is_floating_point():
            raise DpbenchError(
                f"inputs of shape {tuple(inputs.shape[1:])} and type {inputs.dtype}: expected records of numbers whose"
                " first axis is the channels; use noisy_sgd for others"
            )
        channels = inputs.shape[1]
        zero_R = torch.zeros(len(keys_RS), dtype=torch.int64, device=keys_RS.device)
        mean_RK, square_RK = (
            gaussian_noise(
                sum_K.expand(len(keys_RS), -1),
                torch.full_like(zero_R, self.statistics_noise_multiplier * bound, dtype=torch.float64),
                keys_RS,
                zero_R,
                randomness.PREPARATION,
                first,
            )
            / len(inputs)
            for sum_K, bound, first in zip(
                self.sums(inputs), (self.mean_bound, self.square_bound), (0, channels), strict=True
            )
        )
        variance_RK = square_RK - mean_RK.square()
        scale_RK = torch.where(variance_RK > 0, (variance_RK.clamp_min(0) + OFFSET).rsqrt(), 0.0)
        return {"channel_mean_RK": mean_RK.to(inputs.dtype), "channel_scale_RK": scale_RK.to(inputs.dtype)}

    def __call__(self, memory: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        mean_RK, scale_RK = memory["channel_mean_RK"], memory["channel_scale_RK"]
        shape: tuple[int, ...] = (len(mean_RK), 1, mean_RK.shape[1], *[1] * (inputs.dim() - 3))
        return (inputs - mean_RK.reshape(shape)) * scale_RK.reshape(shape)


def clipped_rows(value_NK: Tensor, bound: float) -> Tensor:
    """Each row scaled to an L2 norm of at most `bound`.

    >>> clipped_rows(torch.tensor([[3.0, 4.0]]), 1.0)
    tensor([[0.6000, 0.8000]])
    """
    norm_N1: Tensor = torch.linalg.vector_norm(value_NK, dim=1, keepdim=True)
    return value_NK / (norm_N1 / bound).clamp_min(1.0)


preparation = ChannelStatistics
