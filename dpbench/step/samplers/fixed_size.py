"""Batches of exactly qN different examples, all such sets equally likely (jl2021, Algorithms 1 and 3, line 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.errors import DpbenchError
from dpbench.events import Sampler
from dpbench.step.mechanism import Setting
from dpbench.step.stages import Batch, filled

NUMERICS = 1


@dataclass(frozen=True)
class FixedSizeSampler:
    """A `Sampling`: the examples with the smallest of N random numbers of 53 bits.

    Two of them are equal with a probability of about N²/2^54; then the earlier example is taken. With estimated norms
    (the rule `jl`) no accountant covers this sampler.
    """

    sampler: ClassVar[Sampler] = "without_replacement"

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError if qN is not a whole number."""
        size = setting.sampling_rate * setting.examples
        if abs(size - round(size)) > 1e-6 or round(size) < 1:
            raise DpbenchError(
                f"sampling_rate = {setting.sampling_rate:g}: batches of one size are drawn, and {setting.examples}"
                f" examples make {size:g}; expected a whole number, so give batch_size"
            )

    def __call__(
        self, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int, places: int | None = None
    ) -> Batch:
        return filled(self.chosen(keys_RS, step_R, rate_R, examples), places)

    def chosen(self, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Tensor:
        """Which examples are drawn, bool (R, N)."""
        bits_RN = randomness.uniform_bits(keys_RS, randomness.SAMPLE, step_R, examples)
        rank_RN = bits_RN.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
        return rank_RN < torch.round(rate_R * examples).long()[:, None]


sampler = FixedSizeSampler
