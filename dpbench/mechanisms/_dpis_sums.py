"""The two passes of DPIS over examples: gradient norms one by one, and a weighted sum of gradients.

The norms come from a clipping engine, whose memory is bounded by `chunk`; the weighted sum from one ordinary backward
pass of the weighted losses. Shapes: R runs, B places, N examples, P parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from dpbench.clipping._base import Clipped, ClippedSum, Examples
from dpbench.functional import Network

NUMERICS = 1


def norms(engine: ClippedSum, net: Network, theta_RP: Tensor, examples: Examples, chunk: int) -> Clipped:
    """Gradient norms and losses at every place (R, B), before clipping; the sum is of no use here."""
    one_R = torch.ones(len(theta_RP), dtype=torch.float64, device=theta_RP.device)
    return engine(net, theta_RP, examples, one_R, chunk)


def all_norms(
    engine: ClippedSum, net: Network, theta_RP: Tensor, inputs: Tensor, targets: Tensor, chunk: int
) -> Tensor:
    """The norm of every example's gradient for every run, (R, N) float64; nothing of size N·P is held."""
    runs, count = len(theta_RP), len(targets)
    mask_RN = torch.ones(runs, count, dtype=torch.bool, device=targets.device)
    examples = Examples(inputs.expand(runs, *inputs.shape), targets.expand(runs, count), mask_RN)
    return norms(engine, net, theta_RP, examples, chunk).norm_RB.double()


def weighted_sum(net: Network, theta_RP: Tensor, examples: Examples, weight_RB: Tensor, chunk: int) -> Tensor:
    """Σ weight·gradient over the filled places (R, P); a run without any gets zeros, whatever stands there."""

    def loss(named: dict[str, Tensor], inputs: Tensor, targets: Tensor, weight_B: Tensor) -> Tensor:
        loss_B = torch.nn.functional.cross_entropy(net.outputs(named, inputs), targets, reduction="none")
        return (loss_B * weight_B).sum()

    kept_RB = torch.where(examples.mask_RB, weight_RB, torch.zeros_like(weight_RB)).to(theta_RP.dtype)
    named, total = net.split(theta_RP), torch.zeros_like(theta_RP)
    for start in range(0, examples.mask_RB.shape[1], chunk):
        part = examples.part(start, start + chunk)
        pieces, _ = vmap(grad_and_value(loss))(named, part.inputs, part.targets, kept_RB[:, start : start + chunk])
        total = total + net.join(pieces)
    return torch.where(examples.mask_RB.any(1)[:, None], total, torch.zeros_like(total))
