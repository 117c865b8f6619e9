"""Per-example gradients by `torch.func.vmap`, clipped inside each chunk (the Multiple engine of `004_*`).

Memory: chunk · R · P floats. Works for every module whose operators vmap knows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.func import vmap as over

from dpbench.clipping._base import Clipped, Examples, clip_factor
from dpbench.functional import Network

NUMERICS = 1


def clipping(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """The clipped sum of each run's batch, `chunk` places of the batch at a time."""
    per_example = over(over(grad_and_value(net.example_loss), in_dims=(None, 0, 0)))
    named = net.split(theta_RP)
    total: dict[str, Tensor] | None = None
    norms, losses = [], []
    for start in range(0, examples.mask_RB.shape[1], chunk):
        part = examples.part(start, start + chunk)
        gradients, loss_RB = per_example(named, part.inputs, part.targets)
        flat = {name: g.reshape(*g.shape[:2], named[name][0].numel()) for name, g in gradients.items()}
        if not bool(part.mask_RB.all()):  # 0·NaN is NaN: what stands at an empty place may not reach the sum
            flat = {name: _filled(g, part.mask_RB[:, :, None]) for name, g in flat.items()}
            loss_RB = _filled(loss_RB, part.mask_RB)
        norm_RB = torch.stack([torch.linalg.vector_norm(g, dim=2) for g in flat.values()]).norm(dim=0)
        factor_R1B = clip_factor(norm_RB, clip_R, part.mask_RB)[:, None, :]
        sums = {name: torch.bmm(factor_R1B, g) for name, g in flat.items()}
        total = sums if total is None else {name: total[name] + piece for name, piece in sums.items()}
        norms.append(norm_RB)
        losses.append(loss_RB)
    assert total is not None  # a batch has at least one place
    return Clipped(net.join(total), torch.cat(norms, 1), torch.cat(losses, 1))


def _filled(value: Tensor, mask: Tensor) -> Tensor:
    """The value where the mask is true, 0 elsewhere, whatever stands there."""
    return torch.where(mask, value, torch.zeros((), dtype=value.dtype, device=value.device))
