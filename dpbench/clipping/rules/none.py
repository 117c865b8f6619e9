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
from dpbench.step.recurrent import loops

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
        # One run after the other on a CPU, so that layers keep their own kernels; an LSTM its fused one anywhere.
        alone = theta_RP.device.type == "cpu" or len(theta_RP) == 1 or loops(net.module) > 0
        gradients, chunk = (_each_run, chunk * len(theta_RP)) if alone else (_all_runs, chunk)
        total_RP = torch.zeros_like(theta_RP)
        parts = []
        for start in range(0, examples.mask_RB.shape[1], chunk):
            named, loss_RB = gradients(net, net.split(theta_RP), examples.part(start, start + chunk))
            total_RP = total_RP + net.join(named)
            parts.append(loss_RB)
        loss_RB = torch.cat(parts, 1)
        return Clipped(total_RP, torch.zeros_like(loss_RB), loss_RB)


def _all_runs(net: Network, named: dict[str, Tensor], part: Examples) -> tuple[dict[str, Tensor], Tensor]:
    """The gradients of the summed losses, and the losses (R, B), of a stack at once."""

    def loss(named: dict[str, Tensor], inputs: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        loss_B = net.example_losses(named, inputs, targets) * mask
        return loss_B.sum(), loss_B

    found, (_, loss_RB) = vmap(grad_and_value(loss, has_aux=True))(named, part.inputs, part.targets, part.mask_RB)
    return found, loss_RB


def _each_run(net: Network, named: dict[str, Tensor], part: Examples) -> tuple[dict[str, Tensor], Tensor]:
    """The same, run by run."""
    gradients, losses = [], []
    for run in range(len(part.mask_RB)):
        leaves = {name: value[run].detach().requires_grad_() for name, value in named.items()}
        with torch.enable_grad():
            loss_B = net.example_losses(leaves, part.inputs[run], part.targets[run]) * part.mask_RB[run]
            found = torch.autograd.grad(loss_B.sum(), tuple(leaves.values()), allow_unused=True, materialize_grads=True)
        gradients.append(found)
        losses.append(loss_B.detach())
    stacked = [torch.stack(same) for same in zip(*gradients, strict=True)]
    return dict(zip(named, stacked, strict=True)), torch.stack(losses)


rule = Unclipped


def numbers(net: Network, example: Tensor, target: Tensor) -> int:
    """How many numbers one place of a batch takes: what its forward pass keeps for the backward pass.

    Of two places less what it keeps of one: a copy of the parameters is there once.
    """
    named = {name: value.detach().requires_grad_() for name, value in trained(net.module).items()}
    own = {value.untyped_storage().data_ptr() for value in named.values()}

    def kept(places: int) -> int:
        found: dict[int, int] = {}  # by place in memory: what two operators keep is there once

        def keep(value: Tensor) -> Tensor:
            if value.untyped_storage().data_ptr() not in own:
                found[value.data_ptr()] = max(value.nbytes // 4, found.get(value.data_ptr(), 0))  # or a kernel's bytes
            return value

        batch = (one.expand(places, *one.shape).clone() for one in (example, target))
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
            loss_B = net.example_losses(named, *batch)
        del loss_B  # held until here, else what is freed is used again and counted once
        return sum(found.values())

    return kept(2) - kept(1)
