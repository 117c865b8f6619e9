"""Gradient descent: θ ← θ − η·g (bu2020, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

NUMERICS = 1


@dataclass(frozen=True)
class Sgd:
    """An `Update` without memory.

    >>> Sgd().memory
    ()
    """

    memory: ClassVar[tuple[str, ...]] = ()

    def __call__(
        self, theta_P: Tensor, memory: Mapping[str, Tensor], gradient_P: Tensor, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        del memory, step  # every step is alike
        return theta_P - rate * gradient_P, {}


update = Sgd
