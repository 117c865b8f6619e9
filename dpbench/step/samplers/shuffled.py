"""Shuffled epochs: a new random order of all examples in every epoch, cut into batches of one size.

An epoch has ⌈1/q⌉ = ⌈N/b⌉ batches of b = qN examples each, and every example is in exactly one of them. If b does not
divide N, the last batch of an epoch is shorter (PyTorch's `drop_last=False`); its sum is divided by b like the others,
so that each example counts alike. The order of an epoch is that of N random numbers of 53 bits from the counter
(epoch, element) of the stream SAMPLE. Each step of an epoch computes it again, so a run draws the same alone, in a
stack of other rates and after a resume. With numbers of the operating system no step could repeat the order of the
step before, so `randomness: secure` is refused.

This is not Poisson sampling: the batches of an epoch depend on each other, and no amplification by subsampling is
proven for them. `privacy/accountants/shuffled.py` has what is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.errors import DpbenchError
from dpbench.events import Sampler
from dpbench.step.mechanism import Setting
from dpbench.step.stages import Batch, filled

NUMERICS = 1


@dataclass(frozen=True)
class ShuffledSampler:
    """A `Sampling`: step t has the batch t mod T of epoch ⌊t/T⌋, where T = ⌈1/q⌉.

    Two random numbers are equal with a probability of about N²/2^54; then the earlier example comes first.

    >>> keys, rates = randomness.table([7]).expand(3, -1), torch.full((3,), 0.4, dtype=torch.float64)
    >>> epoch = ShuffledSampler()(keys, torch.arange(3), rates, 5)
    >>> epoch.mask_RB.sum(1).tolist(), sorted(epoch.index_RB[epoch.mask_RB].tolist())
    ([2, 2, 1], [0, 1, 2, 3, 4])
    """

    sampler: ClassVar[Sampler] = "shuffled"
    secure: ClassVar[bool] = False

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError if qN is not a whole number."""
        size = setting.sampling_rate * setting.examples
        if abs(size - round(size)) > 1e-6 or round(size) < 1:
            raise DpbenchError(
                f"sampling_rate = {setting.sampling_rate:g}: shuffled batches have one size, and {setting.examples}"
                f" examples make {size:g}; expected a whole number, so give batch_size"
            )

    def __call__(
        self, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int, places: int | None = None
    ) -> Batch:
        """Draw the batches of one step. Raises DpbenchError for numbers of the operating system (no keys)."""
        return filled(self.chosen(keys_RS, step_R, rate_R, examples), places)

    def chosen(self, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Tensor:
        """Which examples are drawn, bool (R, N). Raises as a call does."""
        if randomness.from_system(keys_RS):
            raise DpbenchError(
                "randomness = secure: the order of an epoch is computed again in each of its steps, which needs keys;"
                " expected own or common, or `sample: poisson`"
            )
        # A rate that is no b/N has batches of ⌈qN⌉, the last ones of an epoch then short or empty.
        size_R = torch.ceil(rate_R * examples - 1e-6).long()
        batches_R = batches_of(rate_R)
        bits_RN = randomness.uniform_bits(keys_RS, randomness.SAMPLE, step_R // batches_R, examples)
        rank_RN = bits_RN.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
        first_R1 = ((step_R % batches_R) * size_R)[:, None]
        return (rank_RN >= first_R1) & (rank_RN < first_R1 + size_R[:, None])


def batches_of(rate_R: Tensor) -> Tensor:
    """The batches of an epoch at each rate, int64 (R,): `events.batches_per_epoch`, without a wait for the device.

    At most 2^62, and 1 for a rate of 0. For q = b/N the exact (1 − 10^-9)/q is by a share of 10^-12 or more away from
    every whole number as long as N is at most 9.99·10^8; float64 is off by a share below 10^-15, so its ceiling is the
    same.

    >>> batches_of(torch.tensor([0.5, 128 / 1437, 3 / 147, 0.0], dtype=torch.float64)).tolist()
    [2, 12, 49, 1]
    """
    batches_R = torch.ceil((1 - 1e-9) / rate_R).clamp(max=2.0**62)
    return torch.where(rate_R > 0, batches_R, 1).long()


sampler = ShuffledSampler
