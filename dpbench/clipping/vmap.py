"""Per-example gradients by `torch.func.vmap`, clipped inside each chunk (the Multiple engine of jl2021).

Memory: chunk · R · P floats. Works for every module whose operators vmap supports.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.func import vmap as over

from dpbench.step.clipped_sum import Clipped, Examples, Weight, clip_factor, clip_weight, zero_where_empty
from dpbench.step.functional import Network, over_runs

NUMERICS = 1


def clipping(
    net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int, weight: Weight = clip_weight
) -> Clipped:
    """The clipped sum of each run's batch, `chunk` places of the batch at a time."""
    per_example = over(grad_and_value(net.example_loss), in_dims=(None, 0, 0))
    named = net.split(theta_RP)
    total: dict[str, Tensor] = {}
    norms, losses = [], []
    for start in range(0, examples.mask_RB.shape[1], chunk):
        part = examples.part(start, start + chunk)
        gradients, loss_RB = over_runs(per_example, named, part.inputs, part.targets)
        flat = {name: g.reshape(*g.shape[:2], named[name][0].numel()) for name, g in gradients.items()}
        # A look at the values makes a GPU wait, which takes longer than what it saves.
        if part.mask_RB.device.type != "cpu" or not bool(part.mask_RB.all()):
            flat = {name: zero_where_empty(g, part.mask_RB) for name, g in flat.items()}
            loss_RB = zero_where_empty(loss_RB, part.mask_RB)
        norm_RB = torch.stack([torch.linalg.vector_norm(g, dim=2) for g in flat.values()]).norm(dim=0)
        factor_R1B = clip_factor(norm_RB, clip_R, part.mask_RB, weight)[:, None, :]
        for name, g in flat.items():
            piece = torch.bmm(factor_R1B, g)
            total[name] = total[name] + piece if name in total else piece
        norms.append(norm_RB)
        losses.append(loss_RB)
    return Clipped(net.join(total), torch.cat(norms, 1), torch.cat(losses, 1))
