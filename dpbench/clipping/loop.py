"""Per-example gradients one example at a time (the Vanilla engine of `004_*`): slow, and the yardstick for the rest.

It loops over runs and examples with the ordinary backward pass, so it shares no batching code with the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpbench.step.clipped_sum import Clipped, Examples
from dpbench.step.functional import Network

NUMERICS = 1


def clipping(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """The clipped sum of each run's batch. `chunk` is accepted and unused: one example is always alone."""
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
            sum_RP[run] += gradient_P / torch.clamp(norm / clip_R[run].to(norm.dtype), min=1.0)
            norm_RB[run, place] = norm
            loss_RB[run, place] = loss.detach()
    return Clipped(sum_RP, norm_RB, loss_RB)
