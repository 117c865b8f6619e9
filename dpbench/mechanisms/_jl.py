"""What DP-SGD-JL and DP-Adam-JL share: a pipeline whose norms are estimates, and the batches that jl2021 prints."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.clipping._jl import ProjectedSum, Way
from dpbench.errors import DpbenchError
from dpbench.events import RandomSensitivityGaussian, Sampler
from dpbench.step.pipeline import Pipeline, Setting
from dpbench.step.stages import Batch, ConstantNoise, DecayingNoise, PoissonSampler, Update, filled

NUMERICS = 1

Variant = Literal["proven", "as_printed"]


@dataclass(frozen=True)
class FixedBatches:
    """Batches of exactly qN different examples, each such set alike likely (jl2021, Algorithms 1 and 3, line 2).

    The examples with the smallest of N random numbers of 53 bits; two of them are the same with a probability of
    about N²/2^54, and then the first goes in. `as_printed` only: no accountant covers it for this event.
    """

    sampler: Sampler = "without_replacement"

    def __call__(self, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Batch:
        bits_RN = randomness.uniform_bits(keys_RS, randomness.SAMPLE, step_R, examples)
        rank_RN = bits_RN.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
        return filled(rank_RN < torch.round(rate_R * examples).long()[:, None])


@dataclass(frozen=True)
class ProjectedPipeline(Pipeline):
    """A `Pipeline` that refuses the numbers with which its printed variant cannot run."""

    fixed_rate: float | None = None  # the only learning rate, where the print has none

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError for a batch that is no whole number, or a learning rate that the print has not."""
        size = setting.sampling_rate * setting.examples
        if isinstance(self.sample, FixedBatches) and (abs(size - round(size)) > 1e-6 or round(size) < 1):
            raise DpbenchError(
                f"sampling_rate = {setting.sampling_rate:g}: variant as_printed draws batches of one size, and"
                f" {setting.examples} examples make {size:g}; expected a whole number, so give batch_size"
            )
        if self.fixed_rate is not None and setting.learning_rate != self.fixed_rate:
            raise DpbenchError(
                f"learning_rate = {setting.learning_rate:g}: Algorithm 3 as printed has none; expected"
                f" {self.fixed_rate:g} with variant as_printed"
            )


def release(projections: int, rate: float, noise_multiplier: float, sampler: Sampler) -> RandomSensitivityGaussian:
    """The event of one step (jl2021, Theorem 4.1)."""
    return RandomSensitivityGaussian(rate, noise_multiplier, projections, "add_or_remove", sampler)


def projected(
    projections: int, way: Way, noise_decay: float, variant: Variant, update: Update, fixed_rate: float | None = None
) -> ProjectedPipeline:
    """The pipeline of either algorithm. Raises DpbenchError or ValueError for parameters that are none."""
    if variant not in ("proven", "as_printed"):
        raise DpbenchError(f"variant = {variant!r}: expected one of proven, as_printed")
    return ProjectedPipeline(
        clipped_sum=ProjectedSum(projections, way),
        update=update,
        gaussian=True,
        sample=PoissonSampler() if variant == "proven" else FixedBatches(),
        release=partial(release, projections),
        noise=ConstantNoise() if noise_decay == 0 else DecayingNoise(noise_decay),
        fixed_rate=fixed_rate,
    )
