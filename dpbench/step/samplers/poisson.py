"""Poisson sampling: every example enters every batch independently with probability q."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.events import Sampler
from dpbench.step.stages import Batch, filled

NUMERICS = 1


@dataclass(frozen=True)
class PoissonSampler:
    """A `Sampling`."""

    sampler: ClassVar[Sampler] = "poisson"

    def __call__(
        self, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int, places: int | None = None
    ) -> Batch:
        """Draw the batches of one step. `rate_R` is float64 in [0, 1]."""
        return filled(self.chosen(keys_RS, step_R, rate_R, examples), places)

    def chosen(self, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Tensor:
        """Which examples are drawn, bool (R, N).

        An example is included if its 53 random bits are below ⌊q·2^53⌋: the actual probability is q rounded down to a
        multiple of 2^-53, so accounting with q is an upper bound.
        """
        bits_RN = randomness.uniform_bits(keys_RS, randomness.SAMPLE, step_R, examples)
        return bits_RN < torch.floor(rate_R * 2.0**53).long()[:, None]


sampler = PoissonSampler
