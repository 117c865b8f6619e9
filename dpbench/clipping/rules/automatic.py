"""Automatic clipping (Bu et al. 2023): every gradient is multiplied by C/(norm + γ), the small ones too.

Bu, Wang, Zha and Karypis, Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger,
NeurIPS 2023; the paper was not at hand, its names are from memory.

| paper | here |
| --- | --- |
| γ (stability constant) | norm_offset: 0.01 is AUTO-S, 0 is AUTO-V |
| R | clip_norm C |

A weighted gradient has norm C·norm/(norm + γ), at most C: one record moves the sum by at most C, and the event is that
of flat clipping. C only scales the sum and its noise alike, so a run with the clip norm C and the learning rate η is,
but for rounding, one with 1 and ηC under `sgd`. With γ = 0 a gradient whose norm is below `LEAST_NORM` has weight 0: it
has no direction that its rounding errors leave.

The sum is no estimate of the full gradient but of the mean of the weighted gradients; privacy does not depend on that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from dpbench.errors import DpbenchError
from dpbench.events import Event, SampledGaussian, Sampler
from dpbench.step.mechanism import Setting

NUMERICS = 1
LEAST_NORM = 1e-15


@dataclass(frozen=True)
class Automatic:
    """The rule with weights C/(norm + γ); `norm_offset` is γ. Raises DpbenchError unless it is finite and 0 or more.

    >>> Automatic(norm_offset=0.5).weight(torch.tensor([0.5, 3.5]), torch.tensor(2.0)).tolist()
    [2.0, 0.5]
    >>> Automatic(norm_offset=0).weight(torch.tensor([0.0, 4.0]), torch.tensor(2.0)).tolist()
    [0.0, 0.5]
    """

    norm_offset: float = 0.01
    scales_every_gradient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        given = self.norm_offset
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if not number or not 0 <= given < math.inf:
            raise DpbenchError(f"norm_offset = {given!r}: expected a finite number, 0 or more")

    def weight(self, norm: Tensor, clip: Tensor) -> Tensor:
        weight = clip / (norm + self.norm_offset)
        return torch.where(norm < LEAST_NORM, torch.zeros_like(weight), weight) if self.norm_offset == 0 else weight

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError without a clip norm: every gradient is scaled to it."""
        if setting.clip_norm is None:
            raise DpbenchError(
                "clip_norm: is missing; automatic clipping scales every gradient to it, so expected a number above 0"
            )

    def event(self, rate: float, noise_multiplier: float, sampler: Sampler) -> Event:
        return SampledGaussian(rate, noise_multiplier, "add_or_remove", sampler)

    def divisor(self, rate_R: Tensor, examples: int) -> Tensor | None:
        del rate_R, examples
        return None

    def facts(self) -> Mapping[str, Any]:
        return {
            "normalisation": "expected batch size",
            "weights": "clip norm / (norm + norm_offset), for every gradient",
        }


rule = Automatic
