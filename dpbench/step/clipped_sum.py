"""What every clipping engine takes and gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dpbench.step.functional import Network


@dataclass(frozen=True)
class Examples:
    """The examples of one step: inputs (R, B, ...), targets (R, B), and which places are filled (R, B)."""

    inputs: Tensor
    targets: Tensor
    mask_RB: Tensor

    def part(self, start: int, stop: int) -> Examples:
        return Examples(self.inputs[:, start:stop], self.targets[:, start:stop], self.mask_RB[:, start:stop])


@dataclass(frozen=True)
class Clipped:
    """Sum over the batch of per-example gradients scaled to norm at most C, with each norm and loss before clipping.

    `sum_RP` (R, P); `norm_RB` and `loss_RB` (R, B), 0 at empty places.
    """

    sum_RP: Tensor
    norm_RB: Tensor
    loss_RB: Tensor


# (network, theta_RP, examples, clip_R, places per call) -> Clipped; the last argument never changes the result
ClippedSum = Callable[[Network, Tensor, Examples, Tensor, int], Clipped]


@dataclass(frozen=True)
class Draw:
    """Where the runs stand in their own randomness: keys (R, S), step (R,), and which examples fill the places (R, B).

    `keys_RS` is the table of `randomness.keys`. `index_RB` are positions in the training set, int64.
    """

    keys_RS: Tensor
    step_R: Tensor
    index_RB: Tensor


@runtime_checkable
class DrawnSum(Protocol):
    """An engine with randomness of its own: `at` gives the engine of one step."""

    def at(self, draw: Draw) -> ClippedSum: ...


def zero_where_empty(value: Tensor, mask_RB: Tensor) -> Tensor:
    """`value` (R, B, ...) with zeros at empty places, whatever stands there: 0·NaN is NaN."""
    return torch.where(mask_RB.reshape(*mask_RB.shape, *[1] * (value.dim() - 2)), value, value.new_zeros(()))


def clip_factor(norm_RB: Tensor, clip_R: Tensor, mask_RB: Tensor) -> Tensor:
    """1 / max(1, norm / C), and 0 at empty places (`001_*`, Algorithm 1: the clip step)."""
    return mask_RB / (norm_RB / clip_R[:, None].to(norm_RB.dtype)).clamp_min(1.0)
