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
Every example is a batch of one under vmap, so nothing can mix them.
Shapes: R runs, B batch, C places of a chunk, S = C + 1 microbatches of a chunk, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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

_AT_ONCE = 32  # places on a CPU: with more, to sum C gradients for C microbatches takes longer than to compute them


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
        if theta_RP.device.type == "cpu":
            chunk = min(chunk, _AT_ONCE)
        return _clipped_means(net, theta_RP, examples, clip_R, chunk, group_RB)


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


def _clipped_means(
    net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int, group_RB: Tensor
) -> Clipped:
    """The sum of the clipped means; `norm_RB` is the norm of the mean of the example's microbatch.

    The places are sorted by microbatch, `chunk` of them at a time; what a chunk begins of a microbatch, the next ones
    complete. So nothing has to know how many there are or how large, and nothing waits for the device.
    """

    def part(named: dict[str, Tensor], example: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        loss = net.example_loss(named, example, target)
        return loss * weight, loss

    gradients = over(over(grad_and_value(part, has_aux=True), in_dims=(None, 0, 0, 0)))
    named, (runs, count) = net.split(theta_RP), group_RB.shape
    # Empty places last, each alone in a group of its own.
    alone_RB = torch.arange(count, device=group_RB.device) + 2**40
    sorted_RB, order_RB = torch.where(examples.mask_RB, group_RB, alone_RB).sort(dim=1, stable=True)
    first_RB = torch.searchsorted(sorted_RB, sorted_RB)
    end_RB = torch.searchsorted(sorted_RB, sorted_RB, right=True)
    filled_RB, run_R1 = examples.mask_RB.gather(1, order_RB), torch.arange(runs, device=theta_RP.device)[:, None]
    weight_RB = 1 / (end_RB - first_RB).to(theta_RP.dtype)
    begun = {name: value.new_zeros(runs, 1, value[0].numel()) for name, value in named.items()}
    total = dict(begun)
    # By the sorted place at which a microbatch begins; a further place takes what is not complete.
    norm_RB, losses = theta_RP.new_zeros(runs, count + 1), []
    for start in range(0, count, chunk):
        of = slice(start, min(start + chunk, count))
        place = order_RB[:, of]
        found, (_, loss) = gradients(
            named, examples.inputs[run_R1, place], examples.targets[run_R1, place], weight_RB[:, of]
        )
        # Row 0 is the microbatch that an earlier chunk began, row s the one that begins at place s of this chunk.
        row_R1C = (first_RB[:, None, of] - start + 1).clamp_min(0)
        member_RSC = row_R1C == torch.arange(of.stop - start + 1, device=row_R1C.device)[:, None]
        complete_RS = (member_RSC & (end_RB[:, None, of] <= of.stop)).any(2)
        open_R1S = (member_RSC & (end_RB[:, None, of] > of.stop)).any(2)[:, None].to(theta_RP.dtype)
        means = {}
        for name, g in found.items():
            flat = zero_where_empty(g.reshape(*g.shape[:2], -1), filled_RB[:, of])
            means[name] = member_RSC.to(flat.dtype) @ flat
            means[name][:, :1] += begun[name]
            begun[name] = open_R1S @ means[name]
        norm_RS = torch.stack([torch.linalg.vector_norm(mean, dim=2) for mean in means.values()]).norm(dim=0)
        factor_R1S = clip_factor(zero_where_empty(norm_RS, complete_RS), clip_R, complete_RS)[:, None]
        total = {name: total[name] + factor_R1S.to(mean.dtype) @ mean for name, mean in means.items()}
        begins_S = torch.arange(start, of.stop, device=place.device).expand(runs, -1)
        at_RS = torch.where(complete_RS, torch.cat([first_RB[:, start : start + 1], begins_S], 1), count)
        norm_RB = norm_RB.scatter(1, at_RS, norm_RS)
        losses.append(zero_where_empty(loss, filled_RB[:, of]))
    whole_RB = zero_where_empty(norm_RB.gather(1, first_RB), filled_RB)
    back = (torch.zeros_like(whole_RB).scatter(1, order_RB, value) for value in (whole_RB, torch.cat(losses, 1)))
    return Clipped(net.join({name: total[name].reshape(named[name].shape) for name in named}), *back)


rule = Microbatches
