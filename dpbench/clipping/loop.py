"""Per-example gradients one example at a time (the Vanilla engine of jl2021): slow; the reference for the others.

It loops over runs and examples with the ordinary backward pass and shares no batching code with the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpbench.step.clipped_sum import Clipped, Examples, Weight, clip_weight
from dpbench.step.functional import Network

NUMERICS = 1


def clipping(
    net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int, weight: Weight = clip_weight
) -> Clipped:
    """The clipped sum of each run's batch. `chunk` is not used: every example is a call of its own."""
    del chunk
    runs, places = examples.mask_RB.shape
    sum_RP = torch.zeros_like(theta_RP)
    norm_RB = torch.zeros(runs, places, dtype=theta_RP.dtype, device=theta_RP.device)
    loss_RB = torch.zeros_like(norm_RB)
    for run in range(runs):
        leaf = {name: piece[0].detach().requires_grad_() for name, piece in net.split(theta_RP[run : run + 1]).items()}
        for place in torch.nonzero(examples.mask_RB[run]).flatten().tolist():
            loss = net.example_loss(leaf, examples.inputs[run, place], examples.targets[run, place])
            gradients = torch.autograd.grad(loss, list(leaf.values()), materialize_grads=True)
            gradient_P = torch.cat([g.flatten() for g in gradients])
            norm = gradient_P.norm()
            clip = clip_R[run].to(norm.dtype)
            if weight is clip_weight:
                sum_RP[run] += gradient_P / torch.clamp(norm / clip, min=1.0)
            else:
                sum_RP[run] += gradient_P * weight(norm, clip)
            norm_RB[run, place] = norm
            loss_RB[run, place] = loss.detach()
    return Clipped(sum_RP, norm_RB, loss_RB)
