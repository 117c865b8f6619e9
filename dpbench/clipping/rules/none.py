"""No clipping: the sum of the gradients, by one ordinary backward pass per chunk. For training without noise only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from dpbench.errors import DpbenchError
from dpbench.events import Event, Sampler
from dpbench.step.clipped_sum import Clipped, Draw, Examples
from dpbench.step.functional import Network, trained

NUMERICS = 1


@dataclass(frozen=True)
class Unclipped:
    """A rule with its own sum; norms are not computed.

    >>> Unclipped().facts()
    {'normalisation': 'expected batch size'}
    """

    def event(self, rate: float, noise_multiplier: float, sampler: Sampler) -> Event:
        """Raises DpbenchError: the sensitivity of the sum is unbounded."""
        del rate, noise_multiplier, sampler  # whatever they are
        raise DpbenchError(
            "clip = none: one record may move the sum without bound, so no noise makes it private; expected"
            " `noise: none`, or a rule such as flat"
        )

    def divisor(self, rate_R: Tensor, examples: int) -> Tensor | None:
        del rate_R, examples
        return None

    def facts(self) -> Mapping[str, Any]:
        return {"normalisation": "expected batch size"}

    def summed(
        self, draw: Draw, net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int
    ) -> Clipped:
        del draw, clip_R  # nothing is drawn, and there is nothing to clip

        def loss(named: dict[str, Tensor], inputs: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
            loss_B = net.example_losses(named, inputs, targets) * mask
            return loss_B.sum(), loss_B

        total_RP = torch.zeros_like(theta_RP)
        parts = []
        for start in range(0, examples.mask_RB.shape[1], chunk):
            part = examples.part(start, start + chunk)
            gradient = vmap(grad_and_value(loss, has_aux=True))
            named, (_, loss_RB) = gradient(net.split(theta_RP), part.inputs, part.targets, part.mask_RB)
            total_RP = total_RP + net.join(named)
            parts.append(loss_RB)
        loss_RB = torch.cat(parts, 1)
        return Clipped(total_RP, torch.zeros_like(loss_RB), loss_RB)


rule = Unclipped


def numbers(net: Network, example: Tensor, target: Tensor) -> int:
    """How many numbers one place of a batch takes: what its forward pass keeps for the backward pass."""
    named = {name: value.detach().requires_grad_() for name, value in trained(net.module).items()}
    own = {value.untyped_storage().data_ptr() for value in named.values()}
    kept: dict[int, int] = {}  # by place in memory: what two operators keep is there once

    def keep(value: Tensor) -> Tensor:
        if value.untyped_storage().data_ptr() not in own:
            kept[value.data_ptr()] = max(value.numel(), kept.get(value.data_ptr(), 0))
        return value

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        net.example_losses(named, example[None], target[None])
    return sum(kept.values())
