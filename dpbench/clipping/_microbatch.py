"""Microbatches: the drawn examples fall into m groups, and the mean gradient of every group is clipped to norm C.

Not an engine of the catalog: it computes another function than the others, and one example moves its sum by up to 2C;
the proof is in `mechanisms/microbatched_sgd.py`. The group of example i at step t is a function of (key, t, i) and of
m alone, so it does not depend on which other examples are drawn. Within its group every example is a batch of one
under vmap: a model that mixes the examples of a batch would see the places that are filled up, and how many they are
depends on the largest of all groups.
Shapes: R runs, B batch, G groups, K places of a group, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.func import vmap as over

from dpbench import randomness
from dpbench.step.clipped_sum import Clipped, ClippedSum, Draw, Examples, clip_factor, zero_where_empty
from dpbench.step.functional import Network

NUMERICS = 1


@dataclass(frozen=True)
class Microbatches:
    """A `DrawnSum` of clipped means over `count_R` groups, int64 of at least 1 and below 2^31."""

    count_R: Tensor

    def at(self, draw: Draw) -> ClippedSum:
        group_RB = group_of(draw, self.count_R)

        def clipped_means(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
            return _clipped_means(net, theta_RP, examples, clip_R, chunk, group_RB, int(self.count_R.max()))

        return clipped_means


def group_of(draw: Draw, count_R: Tensor) -> Tensor:
    """The group of each drawn example, 0 to m − 1: ⌊um⌋ with u of 32 bits, so each has probability 1/m up to 2^-32.

    >>> keys_RS, step_R = randomness.table([1]), torch.tensor([0])
    >>> draw = Draw(keys_RS, step_R, torch.tensor([[5, 2]]))
    >>> torch.equal(group_of(draw, torch.tensor([9]))[:, 1:], group_of(
    ...     Draw(keys_RS, step_R, torch.tensor([[2]])), torch.tensor([9])))
    True
    """
    elements = int(draw.index_RB.max()) + 1
    bits_RN = randomness.uniform_bits(draw.keys_RS, randomness.GROUP, draw.step_R, elements)
    return ((bits_RN.gather(1, draw.index_RB) >> 21) * count_R[:, None]) >> 32


def places(group_RB: Tensor, mask_RB: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Which places of the batch are the members of each group: `place_RGK` int64, `filled_RGK` bool.

    K is the size of the largest group. What is not filled repeats the group's last member, so that no example of
    another group is looked at; a group without members repeats any place and is left out by its mask.
    """
    key_RB = torch.where(mask_RB, group_RB, torch.full_like(group_RB, groups))
    sorted_RB, order_RB = key_RB.sort(dim=1, stable=True)
    wanted_RG = torch.arange(groups, device=group_RB.device).expand(len(group_RB), groups).contiguous()
    first_RG = torch.searchsorted(sorted_RB, wanted_RG)
    size_RG = torch.searchsorted(sorted_RB, wanted_RG, right=True) - first_RG
    member_K = torch.arange(max(1, int(size_RG.max())), device=group_RB.device)
    filled_RGK = member_K < size_RG[:, :, None]
    slot_RGK = first_RG[:, :, None] + torch.minimum(member_K, (size_RG[:, :, None] - 1).clamp_min(0))
    slot_RGK = slot_RGK.clamp_max(group_RB.shape[1] - 1)
    return order_RB.gather(1, slot_RGK.flatten(1)).reshape(slot_RGK.shape), filled_RGK


def _clipped_means(
    net: Network,
    theta_RP: Tensor,
    examples: Examples,
    clip_R: Tensor,
    chunk: int,
    group_RB: Tensor,
    groups: int,
) -> Clipped:
    """The sum of the clipped means; `norm_RB` is the norm of the mean that the example of a place took part in.

    As many groups at a time as have `chunk` places in all, one at least.
    """

    def mean_loss(named: dict[str, Tensor], inputs: Tensor, targets: Tensor, weight_K: Tensor) -> tuple[Tensor, Tensor]:
        loss_K = over(net.example_loss, in_dims=(None, 0, 0))(named, inputs, targets)
        return (loss_K * weight_K).sum(), loss_K

    per_group = over(over(grad_and_value(mean_loss, has_aux=True), in_dims=(None, 0, 0, 0)))
    named = net.split(theta_RP)
    place_RGK, filled_RGK = places(group_RB, examples.mask_RB, groups)
    size_RG = filled_RGK.sum(2)
    run_R11 = torch.arange(len(theta_RP), device=theta_RP.device)[:, None, None]
    total = {name: torch.zeros_like(value) for name, value in named.items()}
    norms, losses = [], []
    step = max(1, chunk // place_RGK.shape[2])
    for start in range(0, groups, step):
        place, size, filled = (x[:, start : start + step] for x in (place_RGK, size_RG, filled_RGK))
        weight = filled.to(theta_RP.dtype) / size.clamp_min(1)[:, :, None].to(theta_RP.dtype)
        gradients, (_, loss) = per_group(
            named, examples.inputs[run_R11, place], examples.targets[run_R11, place], weight
        )
        kept = size > 0
        flat = {name: g.reshape(*g.shape[:2], named[name][0].numel()) for name, g in gradients.items()}
        flat = {name: zero_where_empty(g, kept) for name, g in flat.items()}
        norm = torch.stack([torch.linalg.vector_norm(g, dim=2) for g in flat.values()]).norm(dim=0)
        factor = clip_factor(norm, clip_R, kept)[:, None, :].to(theta_RP.dtype)
        for name, g in flat.items():
            total[name] = total[name] + torch.bmm(factor, g).reshape(total[name].shape)
        norms.append(norm)
        losses.append(loss)
    norm_RB = torch.where(examples.mask_RB, torch.cat(norms, 1).gather(1, group_RB), 0.0)
    loss_RB = torch.zeros_like(norm_RB)
    run, group, member = torch.nonzero(filled_RGK, as_tuple=True)
    loss_RB[run, place_RGK[run, group, member]] = torch.cat(losses, 1)[run, group, member].to(loss_RB.dtype)
    return Clipped(net.join(total), norm_RB, loss_RB)
