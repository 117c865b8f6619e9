"""Uniform average of the parameters after all steps from `average_from` on (Polyak and Juditsky 1992).

Before that step it is the parameters themselves. As with `exponential`, training goes on with the parameters, the
average is evaluated, and the ledger is unchanged: it is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dpbench.errors import DpbenchError
from dpbench.step.mechanism import Setting

NUMERICS = 1


@dataclass(frozen=True)
class TailAverage:
    """An `Average`. `average_from` is a number of steps; raises DpbenchError unless it is whole, 0 or more.

    >>> import torch
    >>> one = torch.ones(1, 1)
    >>> TailAverage(4)(2 * one, 5 * one, torch.tensor([6])).tolist()  # the third of the tail
    [[3.0]]
    """

    average_from: int = 0

    def __post_init__(self) -> None:
        value = self.average_from
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise DpbenchError(f"average_from = {value!r}: expected a whole number of steps, 0 or more")

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError if the tail begins after the last step."""
        if self.average_from >= setting.steps:
            raise DpbenchError(
                f"average_from = {self.average_from}: the run has {setting.steps} steps; expected a smaller number"
            )

    def __call__(self, average_RP: Tensor, theta_RP: Tensor, step_R: Tensor) -> Tensor:
        count_R1 = (step_R - self.average_from + 1).clamp_min(1)[:, None].to(theta_RP.dtype)
        found: Tensor = average_RP + (theta_RP - average_RP) / count_R1
        return found.where(count_R1 > 1, theta_RP)


average = TailAverage
