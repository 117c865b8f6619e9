"""The last lines of jl2021's Algorithm 3 as printed: θ ← θ − m/(√u + ξ)·g, without a learning rate.

The factor g is a misprint. The first step then has the same sign for every gradient and is no descent
(papers/jl2021/claims.yaml, alg3-update); `adam` is what is meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from dpbench.errors import DpbenchError
from dpbench.step.mechanism import Setting

NUMERICS = 1


@dataclass(frozen=True)
class PrintedAdam:
    """An `Update`. Raises DpbenchError for bias correction, or a learning rate other than 1, which is unused."""

    beta1: float = 0.9
    beta2: float = 0.999
    offset: float = 1e-8
    bias_correction: bool = False
    memory: ClassVar[tuple[str, ...]] = ("first_P", "second_P")

    def __post_init__(self) -> None:
        if self.bias_correction:
            raise DpbenchError("bias_correction = True: Algorithm 3 as printed has none; expected False")

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError unless the learning rate is 1."""
        if setting.learning_rate != 1:
            raise DpbenchError(
                f"learning_rate = {setting.learning_rate:g}: Algorithm 3 as printed has none; expected 1 with"
                " adam_as_printed (variant as_printed)"
            )

    def __call__(
        self, theta_P: Tensor, memory: Mapping[str, Tensor], gradient_P: Tensor, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        del rate, step  # the print has neither
        first_P = self.beta1 * memory["first_P"] + (1 - self.beta1) * gradient_P
        second_P = self.beta2 * memory["second_P"] + (1 - self.beta2) * gradient_P * gradient_P
        theta_P = theta_P - first_P / (second_P.sqrt() + self.offset) * gradient_P
        return theta_P, {"first_P": first_P, "second_P": second_P}


update = PrintedAdam
