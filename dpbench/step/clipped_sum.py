"""The types that every clipping engine takes and returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from dpbench.step.functional import Network


@dataclass(frozen=True)
class Examples:
    """The examples of one step: inputs (R, B, ...), targets (R, B), and which places are filled (R, B).

    `looks`: an engine may look at values, for which a GPU makes it wait. Where it may not and would have to, because of
    rounding, the run's sum is NaN, and training takes those steps again with a look.
    """

    inputs: Tensor
    targets: Tensor
    mask_RB: Tensor
    looks: bool = True

    def part(self, start: int, stop: int) -> Examples:
        of = slice(start, stop)
        return Examples(self.inputs[:, of], self.targets[:, of], self.mask_RB[:, of], self.looks)

    def runs(self, of: slice) -> Examples:
        return Examples(self.inputs[of], self.targets[of], self.mask_RB[of], self.looks)


@dataclass(frozen=True)
class Clipped:
    """The weighted sum of a batch's per-example gradients, with the norm and the loss of each example.

    `sum_RP` (R, P); `norm_RB` and `loss_RB` (R, B), before weighting, 0 at empty places.
    """

    sum_RP: Tensor
    norm_RB: Tensor
    loss_RB: Tensor

    @staticmethod
    def joined(parts: Sequence[Clipped]) -> Clipped:
        """The runs of all parts, one after the other."""
        return Clipped(
            torch.cat([part.sum_RP for part in parts]),
            torch.cat([part.norm_RB for part in parts]),
            torch.cat([part.loss_RB for part in parts]),
        )


# (norm, clip) -> the factor for a gradient of that norm; tensors of one dtype that broadcast
Weight = Callable[[Tensor, Tensor], Tensor]


def clip_weight(norm: Tensor, clip: Tensor) -> Tensor:
    """1 / max(1, norm / C) (bu2020, Algorithm 1: the clip step).

    >>> clip_weight(torch.tensor([0.5, 4.0]), torch.tensor(1.0)).tolist()
    [1.0, 0.25]
    """
    return 1 / (norm / clip).clamp_min(1.0)


class ClippedSum(Protocol):
    """An engine: computes the weighted sum of gradients. `chunk`, places per call, does not change the result.

    A rule other than flat clipping passes its `weight` as the sixth argument.
    """

    def __call__(
        self, net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int, weight: Weight = ..., /
    ) -> Clipped: ...


@dataclass(frozen=True)
class RunByRun:
    """An engine that gets the runs of a stack one after the other, for a CPU, which waits for nothing.

    Layers keep their own kernels so, and the places after a run's own batch are left out.
    """

    engine: ClippedSum

    def __call__(
        self, net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int, *weight: Weight
    ) -> Clipped:
        return one_by_one(examples, lambda of, own: self.engine(net, theta_RP[of], own, clip_R[of], chunk, *weight))


def one_by_one(examples: Examples, summed: Callable[[slice, Examples], Clipped]) -> Clipped:
    """What `summed` gives for each run, as a slice, and its own examples, of all runs."""
    found = []
    for run, mask_B in enumerate(examples.mask_RB):
        of, own = slice(run, run + 1), int(mask_B.nonzero().max()) + 1 if mask_B.any() else 1
        one, rest = summed(of, examples.runs(of).part(0, own)), (0, len(mask_B) - own)
        found.append(Clipped(one.sum_RP, pad(one.norm_RB, rest), pad(one.loss_RB, rest)))
    return Clipped.joined(found)


@dataclass(frozen=True)
class Draw:
    """How the batch of a step was drawn, for a stage that draws random numbers itself.

    `keys_RS` and `step_R` give the randomness of each run. `index_RB` holds positions in the training set, int64.
    `rate_R` is the sampling rate, float64; `examples` is the number of training examples. `groups`: the number of
    microbatches and a number that none has more members than, where they are known ahead.
    """

    keys_RS: Tensor
    step_R: Tensor
    index_RB: Tensor
    rate_R: Tensor
    examples: int
    groups: tuple[int, int] | None = None

    def runs(self, of: slice, places: int | None = None) -> Draw:
        """Of these runs, and of the first so many `places`."""
        keys_RS, step_R, index_RB, rate_R = (v[of] for v in (self.keys_RS, self.step_R, self.index_RB, self.rate_R))
        return Draw(keys_RS, step_R, index_RB[:, :places], rate_R, self.examples, self.groups)


def zero_where_empty(value: Tensor, mask_RB: Tensor) -> Tensor:
    """`value` (R, B, ...) with zeros at empty places, whatever stands there: 0·NaN is NaN."""
    return torch.where(mask_RB.reshape(*mask_RB.shape, *[1] * (value.dim() - 2)), value, value.new_zeros(()))


def no_place_is_empty(mask_RB: Tensor) -> bool:
    """Whether every place is known to hold an example. On a GPU a look makes it wait, so there none is known to."""
    return mask_RB.device.type == "cpu" and bool(mask_RB.all())


def clip_factor(norm_RB: Tensor, clip_R: Tensor, mask_RB: Tensor, weight: Weight = clip_weight) -> Tensor:
    """The weights of a batch, (R, B) of the type of the norms, 0 at empty places."""
    return mask_RB * weight(norm_RB, clip_R[:, None].to(norm_RB.dtype))
