"""Flat clipping (bu2020, Algorithm 1): a gradient of norm above C is scaled to norm C.

One record moves the sum by at most C, so the event is a sampled Gaussian with the run's noise multiplier, for
add-or-remove neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dpbench.events import Event, SampledGaussian, Sampler
from dpbench.step.clipped_sum import clip_weight

NUMERICS = 1


@dataclass(frozen=True)
class Flat:
    """The rule with weights min{1, C/norm}.

    >>> Flat().event(0.01, 1.3, "poisson").noise_multiplier
    1.3
    """

    weight = staticmethod(clip_weight)

    def event(self, rate: float, noise_multiplier: float, sampler: Sampler) -> Event:
        return SampledGaussian(rate, noise_multiplier, "add_or_remove", sampler)

    def divisor(self, rate_R: Tensor, examples: int) -> Tensor | None:
        del rate_R, examples
        return None

    def facts(self) -> Mapping[str, Any]:
        return {"normalisation": "expected batch size"}


rule = Flat
