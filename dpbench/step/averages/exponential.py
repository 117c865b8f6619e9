"""Exponential moving average of the parameters (De et al. 2022, Section 3.5): ψ ← βψ + (1−β)θ after each step.

In the first steps β is min(`average_decay`, (1 + t)/(10 + t)), t the steps before, so that the initial parameters are
forgotten quickly. The average is evaluated and training goes on with θ itself. It is a function of released values and
of initial parameters that depend on no data: post-processing, so the ledger is unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpbench.errors import DpbenchError

NUMERICS = 1


@dataclass(frozen=True)
class ExponentialAverage:
    """An `Average`. Raises DpbenchError unless `average_decay` is from 0 (no average) to 1, 1 excluded.

    >>> two = torch.full((1, 1), 2.0)
    >>> ExponentialAverage(0.5)(0 * two, two, torch.tensor([100])).tolist()
    [[1.0]]
    """

    average_decay: float = 0.9999

    def __post_init__(self) -> None:
        value = self.average_decay
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
            raise DpbenchError(f"average_decay = {value!r}: expected a number from 0 to 1, 1 excluded")

    def __call__(self, average_RP: Tensor, theta_RP: Tensor, step_R: Tensor) -> Tensor:
        if self.average_decay == 0:
            return theta_RP
        done_R = step_R.double()
        decay_R1 = ((1 + done_R) / (10 + done_R)).clamp_max(self.average_decay)[:, None].to(theta_RP.dtype)
        return torch.lerp(theta_RP, average_RP, decay_R1.expand_as(theta_RP))


average = ExponentialAverage
