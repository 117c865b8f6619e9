"""Heavy ball: v ← βv + g, θ ← θ − ηv, with v = 0 at the start and no dampening (PyTorch's SGD with momentum β).

Polyak, Some methods of speeding up the convergence of iteration methods, 1964.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from dpbench.errors import DpbenchError

NUMERICS = 1


@dataclass(frozen=True)
class Momentum:
    """An `Update`; `momentum` is β. Raises DpbenchError for a β outside [0, 1).

    >>> Momentum(0.9).memory
    ('velocity_P',)
    """

    momentum: float = 0.9
    memory: ClassVar[tuple[str, ...]] = ("velocity_P",)

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise DpbenchError(f"momentum = {self.momentum!r}: expected a number from 0 to 1, 1 excluded")

    def __call__(
        self, theta_P: Tensor, memory: Mapping[str, Tensor], gradient_P: Tensor, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        del step  # every step is alike
        velocity_P = self.momentum * memory["velocity_P"] + gradient_P
        return theta_P - rate * velocity_P, {"velocity_P": velocity_P}


update = Momentum
