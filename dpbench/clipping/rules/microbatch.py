"""Microbatches (TensorFlow Privacy; "Microbatching" in jl2021, Section 1.1) with the right sensitivity.

A step draws a Poisson sample with rate q. Every drawn example falls into one of m = ⌈qN / microbatch_size⌉
microbatches, each with probability 1/m, independently. The mean gradient of every microbatch with members is clipped to
norm C. The released value is the sum S of these clipped means plus N(0, σ²C²).

| here | meaning |
| --- | --- |
| microbatch_size | b, the expected number of examples in a microbatch (up to rounding qN/b up) |
| clip_norm | C, of the *mean* gradient of a microbatch, as in TensorFlow Privacy |
| noise_multiplier | σ relative to C |

One example moves the sum by up to 2C: the event of a step is SampledGaussian(q, σ/2), which docs/microbatches.md
proves; `variant: as_printed` accounts with C, the usual mistake. Where nothing is clipped, S divided by
M = m·(1 − (1 − q/m)^N), the expected number of microbatches with members, is unbiased for the full mean gradient.

microbatch_size 1 is refused: two examples could still share a microbatch, so the sensitivity would be 2C without any
advantage over `noisy_sgd`.

The group of example i at step t is a function of (key, t, i) and m only, so it does not depend on the other examples.
Within its group every example is a batch of one under vmap: a model that mixes the examples of a batch would also use
the padding, whose size depends on the largest group.
Shapes: R runs, B batch, G groups, K places of a group, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.func import vmap as over

from dpbench import randomness
from dpbench.errors import DpbenchError
from dpbench.events import Event, SampledGaussian, Sampler
from dpbench.step.clipped_sum import Clipped, Draw, Examples, clip_factor, zero_where_empty
from dpbench.step.functional import Network
from dpbench.step.mechanism import Setting

NUMERICS = 1


Variant = Literal["proven", "as_printed"]


@dataclass(frozen=True)
class Microbatches:
    """A rule with its own sum; `microbatch_size` is 2 or more, `variant` chooses the sensitivity for the accountant.

    Raises DpbenchError for parameters that are not valid.

    >>> Microbatches().event(0.1, 2.0, "poisson").noise_multiplier
    1.0
    """

    microbatch_size: int = 5
    variant: Variant = "proven"

    def __post_init__(self) -> None:
        size = self.microbatch_size
        if not isinstance(size, int) or isinstance(size, bool) or size < 2:
            raise DpbenchError(
                f"microbatch_size = {size!r}: expected a whole number, 2 or more; noisy_sgd clips every example"
            )
        if self.variant not in get_args(Variant):
            raise DpbenchError(f"variant = {self.variant!r}: expected one of {', '.join(get_args(Variant))}")

    @property
    def refuted(self) -> str:
        """Why no ε may be stated; "" for the proven sensitivity."""
        if self.variant == "proven":
            return ""
        return "mechanism_sensitivity: one example moves the sum by two clip norms, and its event says one"

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError if a microbatch would be larger than the expected batch."""
        expected = setting.sampling_rate * setting.examples
        if self.microbatch_size > expected:
            raise DpbenchError(
                f"microbatch_size = {self.microbatch_size}: larger than the expected batch of {expected:g}; expected"
                " a whole number from 2 to that"
            )

    def event(self, rate: float, noise_multiplier: float, sampler: Sampler) -> Event:
        """The event of a sum that one example moves by at most two clip norms (one with `as_printed`)."""
        if sampler != "poisson":
            raise DpbenchError(f"sample: microbatches are accounted for with Poisson sampling, not {sampler}")
        moved = 2 if self.variant == "proven" else 1
        return SampledGaussian(rate, noise_multiplier / moved, "add_or_remove", sampler)

    def facts(self) -> Mapping[str, Any]:
        return {
            "normalisation": "expected number of microbatches with members",
            "sensitivity": "twice the clip norm" if self.variant == "proven" else "clip norm, which is wrong",
        }

    def count(self, rate_R: Tensor, examples: int) -> Tensor:
        """m, the number of microbatches of each run, int64 (R,); 10^-9 allows for the rounding error of qN."""
        return torch.ceil(rate_R * examples / self.microbatch_size - 1e-9).clamp_min(1).long()

    def divisor(self, rate_R: Tensor, examples: int) -> Tensor:
        """M = m·(1 − (1 − q/m)^N), the expected number of microbatches with members, float64 (R,).

        >>> Microbatches(2).divisor(torch.tensor([1.0]).double(), 2).item()
        1.0
        """
        count_R = self.count(rate_R, examples).double()
        return -count_R * torch.expm1(examples * torch.log1p(-rate_R / count_R))

    def most_weight(self, rate_R: Tensor, examples: int) -> Tensor:
        """m/M (R,): an upper bound of the sum of the gradients' weights, which are 1/(kM) in a microbatch of k.

        The weights are random even if every example is drawn.
        """
        return self.count(rate_R, examples) / self.divisor(rate_R, examples)

    def summed(
        self, draw: Draw, net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int
    ) -> Clipped:
        """The sum of the clipped means over the microbatches."""
        count_R = self.count(draw.rate_R, draw.examples)
        group_RB = group_of(draw.keys_RS, draw.step_R, draw.index_RB, count_R, draw.examples)
        groups, members = draw.groups or (int(count_R.max()), None)
        found = places(group_RB, examples.mask_RB, groups, members)
        clipped = _clipped_means(net, theta_RP, examples, clip_R, chunk, group_RB, *found)
        all_R = found[1].sum((1, 2)) == examples.mask_RB.sum(1)  # nobody is left out, whoever counted the members
        return replace(clipped, sum_RP=torch.where(all_R[:, None], clipped.sum_RP, torch.nan))

    def group_sizes(self, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, chosen_RN: Tensor) -> tuple[Tensor, Tensor]:
        """The largest number of microbatches of a run, and the most members of one, where these are drawn (R, N)."""
        count_R, (runs, examples) = self.count(rate_R, chosen_RN.shape[1]), chosen_RN.shape
        all_RN = torch.arange(examples, device=chosen_RN.device).expand(runs, -1)
        group_RN = group_of(keys_RS, step_R, all_RN, count_R, examples)
        # The microbatches are fewer than the examples: b is 2 or more, and qN at most N.
        members_RN = torch.zeros_like(group_RN).scatter_add(1, group_RN, chosen_RN.long())
        return count_R.max(), members_RN.max()


def group_of(keys_RS: Tensor, step_R: Tensor, index_RB: Tensor, count_R: Tensor, examples: int) -> Tensor:
    """The group of each drawn example, 0 to m − 1: ⌊um⌋ with u of 32 bits, so each has probability 1/m up to 2^-32.

    `examples` is above every index.

    >>> keys_RS, step_R, nine_R = randomness.table([1]), torch.tensor([0]), torch.tensor([9])
    >>> both_RB, one_RB = torch.tensor([[5, 2]]), torch.tensor([[2]])
    >>> both_RB = group_of(keys_RS, step_R, both_RB, nine_R, examples=9)
    >>> torch.equal(both_RB[:, 1:], group_of(keys_RS, step_R, one_RB, nine_R, examples=3))
    True
    """
    bits_RN = randomness.uniform_bits(keys_RS, randomness.GROUP, step_R, examples)
    return ((bits_RN.gather(1, index_RB) >> 21) * count_R[:, None]) >> 32


def places(group_RB: Tensor, mask_RB: Tensor, groups: int, members: int | None = None) -> tuple[Tensor, Tensor]:
    """Which places of the batch are the members of each group: `place_RGK` int64, `filled_RGK` bool.

    K is `members`, which no group has more of, else the size of the largest group. Places that are not filled
    repeat the group's last member, so that no example of another group is read; those of a group without members
    repeat any place and are masked.
    """
    key_RB = torch.where(mask_RB, group_RB, torch.full_like(group_RB, groups))
    sorted_RB, order_RB = key_RB.sort(dim=1, stable=True)
    wanted_RG = torch.arange(groups, device=group_RB.device).expand(len(group_RB), groups).contiguous()
    first_RG = torch.searchsorted(sorted_RB, wanted_RG)
    size_RG = torch.searchsorted(sorted_RB, wanted_RG, right=True) - first_RG
    member_K = torch.arange(members or max(1, int(size_RG.max())), device=group_RB.device)
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
    place_RGK: Tensor,
    filled_RGK: Tensor,
) -> Clipped:
    """The sum of the clipped means; `norm_RB` is the norm of the mean of the example's microbatch.

    Works on as many groups at a time as have `chunk` places in all, at least one.
    """

    def mean_loss(named: dict[str, Tensor], inputs: Tensor, targets: Tensor, weight_K: Tensor) -> tuple[Tensor, Tensor]:
        loss_K = over(net.example_loss, in_dims=(None, 0, 0))(named, inputs, targets)
        return (loss_K * weight_K).sum(), loss_K

    per_group = over(over(grad_and_value(mean_loss, has_aux=True), in_dims=(None, 0, 0, 0)))
    named = net.split(theta_RP)
    size_RG = filled_RGK.sum(2)
    run_R11 = torch.arange(len(theta_RP), device=theta_RP.device)[:, None, None]
    total = {name: torch.zeros_like(value) for name, value in named.items()}
    norms, losses = [], []
    step = max(1, chunk // place_RGK.shape[2])
    for start in range(0, place_RGK.shape[1], step):
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
    # A further place takes what is not filled.
    at_RGK = torch.where(filled_RGK, place_RGK, norm_RB.shape[1])
    spread_RB = norm_RB.new_zeros(len(norm_RB), norm_RB.shape[1] + 1)
    spread_RB = spread_RB.scatter(1, at_RGK.flatten(1), torch.cat(losses, 1).flatten(1).to(norm_RB.dtype))
    return Clipped(net.join(total), norm_RB, spread_RB[:, :-1])


rule = Microbatches
