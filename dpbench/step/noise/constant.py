"""The same noise in every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

NUMERICS = 1


@dataclass(frozen=True)
class ConstantNoise:
    """A `Noise` whose factor is 1.

    >>> list(ConstantNoise().stretches(0.1, 30))
    [(1.0, 30)]
    """

    def factor(self, step_R: Tensor, rate_R: Tensor) -> Tensor:
        del step_R
        return torch.ones_like(rate_R)

    def stretches(self, rate: float, steps: int) -> Iterator[tuple[float, int]]:
        del rate
        yield 1.0, steps


noise = ConstantNoise
