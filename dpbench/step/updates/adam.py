"""Adam (bu2020, Algorithm 2): m and u start at 0; ξ is added outside the root.

The paper's letters: m → first_P, u → second_P, ξ → offset. The paper prints no bias correction; `bias_correction`
divides m and u by 1 − β^t, as Kingma and Ba (2015) do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from dpbench.errors import DpbenchError

NUMERICS = 1


@dataclass(frozen=True)
class Adam:
    """An `Update`. Raises DpbenchError for betas outside [0, 1), or an offset that is not above 0.

    >>> Adam(beta2=0.99).memory
    ('first_P', 'second_P')
    """

    beta1: float = 0.9
    beta2: float = 0.999
    offset: float = 1e-8
    bias_correction: bool = False
    memory: ClassVar[tuple[str, ...]] = ("first_P", "second_P")

    def __post_init__(self) -> None:
        for name, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= value < 1:
                raise DpbenchError(f"{name} = {value!r}: expected a number from 0 to 1, 1 excluded")
        if not self.offset > 0:
            raise DpbenchError(f"offset = {self.offset!r}: expected a number above 0")

    def __call__(
        self, theta_P: Tensor, memory: Mapping[str, Tensor], gradient_P: Tensor, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        first_P = self.beta1 * memory["first_P"] + (1 - self.beta1) * gradient_P
        second_P = self.beta2 * memory["second_P"] + (1 - self.beta2) * gradient_P * gradient_P
        m_P, u_P = first_P, second_P
        if self.bias_correction:
            m_P = first_P / (1 - self.beta1 ** (step + 1)).to(first_P.dtype)
            u_P = second_P / (1 - self.beta2 ** (step + 1)).to(first_P.dtype)
        return theta_P - rate * m_P / (u_P.sqrt() + self.offset), {"first_P": first_P, "second_P": second_P}


update = Adam
