"""Augmentation multiplicity with random crops and flips of pictures (De et al. 2022, Section 3.3).

| De et al. | here |
| --- | --- |
| K, the augmentation multiplicity | `views`, 16 (their CIFAR-10) |
| a crop of the padded picture, as large as the picture | `padding` pixels on each side, 4; 0: no crop |
| left and right are exchanged with probability 1/2 | `flip` |
| the padding of their published code: the picture mirrored at its edge | `padding_mode: symmetric`; by default zeros |

View k of the record at position i of the training set, in step t: Philox block i + 2^32·k of the stream AUGMENTATION of
(seed, t) has four words of 32 bits. The first two, times 2·padding + 1 and over 2^32, rounded down, are the row and the
column of the padded picture where the crop begins; each has its probability up to 2^-32. The highest bit of the third
flips. So view k is the same whatever K is. With the operating system's generator the words are new for each view.

The gradient of a record is that of `functional.Augmented.example_loss`: the mean over its K views, taken *before* it is
clipped. After a preparation the views are of the prepared pictures, and padding is with zeros among these. Evaluation
uses the picture itself.

Privacy: the event of a step is that of the rule without augmentation, `SampledGaussian(q, σ)` with `flat`, for
add-or-remove neighbours. Proof. K, padding and flip are numbers of the plan, the same for both neighbours. Let V_i be
the words of record i in this step. They are new in every step and independent of the data, of the batches, of the noise
and of what other stages draw: they have a stream of their own. All V_i have one law and are independent of each other.
Given θ and V_i, what a record adds is a function of that record alone: the gradient of its own mean loss, clipped to
norm C. Let two data sets differ in one record, and let the others keep their V_i. Given all V_i the noisy sum is a
sampled Gaussian mechanism of sensitivity C. That holds for every value of the V_i, whose law is the same for both
neighbours: so it holds for the noisy sum together with the V_i, and for the noisy sum alone, by post-processing. A
record that is taken out moves the positions of those after it, and with them their words; as the V_i are independent
with one law, that changes no law. Nothing else is released; the V_i are not published, and the bound would hold if they
were.

Where the mean is taken matters. K clipped gradients that are added up move the sum by K·C. Views that mix two records
(mixup, CutMix) make one record's views depend on another, which then moves both gradients: they do not fit this stage.
The words go by position in the training set and not by place in the batch, so that a check can take out one record and
see the views of all others unchanged.

With `jl` the same argument goes before its proof: the projections are independent of the V_i. With a smoothed loss the
mean is over shifts and views, K gradients for each shift. One step costs K gradients for each record, K times the
activations, and K pictures for each place of the batch.
Shapes: R runs, B batch, K views, C channels, H height, W width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.errors import DpbenchError
from dpbench.step.clipped_sum import Draw
from dpbench.step.mechanism import Setting

NUMERICS = 1


@dataclass(frozen=True)
class CropAndFlip:
    """An `Augmentation`. Raises DpbenchError unless K is a whole number from 1 on, and the padding one from 0 on.

    >>> draw = Draw(randomness.table([1]), torch.tensor([0]), torch.tensor([[3, 5]]), torch.tensor([0.5]).double(), 40)
    >>> CropAndFlip(views=4, padding=1)(draw, torch.ones(1, 2, 3, 8, 8)).shape
    torch.Size([1, 2, 4, 3, 8, 8])
    """

    views: int = 16
    padding: int = 4
    flip: bool = True
    padding_mode: Literal["zeros", "symmetric"] = "zeros"

    def __post_init__(self) -> None:
        for name, value, least in (("views", self.views, 1), ("padding", self.padding, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise DpbenchError(f"{name} = {value!r}: expected a whole number, {least} or more")
        if not isinstance(self.flip, bool):
            raise DpbenchError(f"flip = {self.flip!r}: expected true or false")
        if self.padding_mode not in ("zeros", "symmetric"):
            raise DpbenchError(f"padding_mode = {self.padding_mode!r}: expected one of zeros, symmetric")

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError if the records are not pictures, or have fewer rows or columns than the padding."""
        if setting.input_shape is not None:
            _refuse(setting.input_shape)
            if self.padding > min(setting.input_shape[1:]):
                height, width = setting.input_shape[1:]
                raise DpbenchError(
                    f"padding = {self.padding}: the pictures have {height} rows and {width} columns; expected no more"
                    " than the smaller"
                )

    def __call__(self, draw: Draw, inputs: Tensor) -> Tensor:
        """The views (R, B, K, C, H, W) of pictures (R, B, C, H, W)."""
        _refuse(tuple(inputs.shape[2:]))
        runs, places, _, height, width = inputs.shape
        view_K = torch.arange(self.views, device=inputs.device) << 32
        block_RN = (draw.index_RB[:, :, None] + view_K).flatten(1)
        words = randomness.words_at(draw.keys_RS, randomness.AUGMENTATION, draw.step_R, block_RN)
        top, left, turned = (word.reshape(runs, places, self.views, 1) for word in words[:3])
        row_RBKH, column_RBKW = self._begun(top, height), self._begun(left, width)
        if self.flip:
            column_RBKW = torch.where(turned >> 31 > 0, column_RBKW.flip(3), column_RBKW)
        row, column = row_RBKH[..., :, None], column_RBKW[..., None, :]
        run = torch.arange(runs, device=inputs.device).reshape(-1, 1, 1, 1, 1)
        place = torch.arange(places, device=inputs.device).reshape(1, -1, 1, 1, 1)
        found = inputs[run, place, :, _mirrored(row, height), _mirrored(column, width)].movedim(-1, 3)
        if self.padding_mode == "zeros":
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            found = torch.where(inside[:, :, :, None], found, found.new_zeros(()))
        return found.contiguous()

    def _begun(self, word: Tensor, size: int) -> Tensor:
        """The rows or columns (R, B, K, size) of the picture that a crop takes; those of the padding lie outside it."""
        first = (word * (2 * self.padding + 1) >> 32) - self.padding
        return first + torch.arange(size, device=word.device)


def _mirrored(position: Tensor, size: int) -> Tensor:
    """The row or column that stands at a position, with the picture mirrored at its edges: -1 is 0, `size` the last."""
    turn = position.remainder(2 * size)
    return torch.where(turn < size, turn, 2 * size - 1 - turn)


def _refuse(shape: tuple[int, ...]) -> None:
    if len(shape) != 3:
        raise DpbenchError(
            f"augment: records of shape {shape}; crop_and_flip takes pictures (channels, height, width): expected such"
            " a dataset, or `augment: none`"
        )


augmentation = CropAndFlip
