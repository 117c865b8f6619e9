"""Updates by name for mechanisms that offer a choice: SGD, SGD with momentum, Adam.

Shapes: R runs, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dpbench.errors import DpbenchError
from dpbench.stages import Adam, Sgd, Update

NUMERICS = 1


@dataclass(frozen=True)
class Momentum:
    """Heavy ball: v ← βv + g, θ ← θ − ηv, with v = 0 at the start and no dampening (PyTorch's SGD with momentum β).

    Polyak, Some methods of speeding up the convergence of iteration methods, 1964. Raises DpbenchError for a β outside
    [0, 1).

    >>> Momentum(0.9).memory
    ('velocity_RP',)
    """

    beta: float = 0.9
    memory: tuple[str, ...] = ("velocity_RP",)

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise DpbenchError(f"momentum = {self.beta!r}: expected a number from 0 to 1, 1 excluded")

    def __call__(
        self, theta_RP: Tensor, memory: dict[str, Tensor], gradient_RP: Tensor, rate_R: Tensor, step_R: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        del step_R  # every step is alike
        velocity_RP = self.beta * memory["velocity_RP"] + gradient_RP
        return theta_RP - rate_R[:, None].to(theta_RP.dtype) * velocity_RP, {"velocity_RP": velocity_RP}


def named_update(
    optimizer: str,
    *,
    momentum: float = 0.9,
    beta1: float = 0.9,
    beta2: float = 0.999,
    offset: float = 1e-8,
    bias_correction: bool = False,
) -> Update:
    """`sgd`, `momentum` or `adam`; numbers of the others are not looked at. Raises DpbenchError, one sentence.

    >>> named_update("adam", beta2=0.99).memory
    ('first_RP', 'second_RP')
    """
    if optimizer == "sgd":
        return Sgd()
    if optimizer == "momentum":
        return Momentum(momentum)
    if optimizer != "adam":
        raise DpbenchError(f"optimizer = {optimizer!r}: expected one of sgd, momentum, adam")
    for name, value in (("beta1", beta1), ("beta2", beta2)):
        if not 0 <= value < 1:
            raise DpbenchError(f"{name} = {value!r}: expected a number from 0 to 1, 1 excluded")
    if not offset > 0:
        raise DpbenchError(f"offset = {offset!r}: expected a number above 0")
    return Adam(beta1, beta2, offset, bias_correction)
