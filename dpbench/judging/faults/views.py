"""Faults in augmentation: views of a record that are clipped one by one, or that depend on other records.

`augmented()` is the sound frame. Shapes: R runs, B batch, K views, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dpbench.clipping import vmap
from dpbench.judging.faults.frames import noisy_sgd
from dpbench.step.augmentations.crop_and_flip import CropAndFlip
from dpbench.step.clipped_sum import Clipped, Draw, Examples
from dpbench.step.functional import Augmented, Network
from dpbench.step.pipeline import Pipeline


@dataclass(frozen=True)
class Viewing(CropAndFlip):
    """Crops and flips, after the place of their draws, or what comes out, has been changed."""

    views: int = 3
    padding: int = 1
    change: Callable[[Draw], Draw] = lambda draw: draw
    after: Callable[[Tensor], Tensor] = torch.clone

    def __call__(self, draw: Draw, inputs: Tensor) -> Tensor:
        return self.after(super().__call__(self.change(draw), inputs))


def augmented(change: Callable[[Draw], Draw] | None = None, **wrong: Any) -> Pipeline:
    """A pipeline with views of its records."""
    return noisy_sgd(Pipeline, **{"augmentation": Viewing() if change is None else Viewing(change=change), **wrong})


def _clipped_at_each(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """The gradient of each view is clipped, and all are added up: one record moves the sum by KC."""
    if not isinstance(net, Augmented):
        return vmap.clipping(net, theta_RP, examples, clip_R, chunk)
    plain = Network(net.module, net.shapes, net.size, objective=net.objective)
    parts = [
        vmap.clipping(plain, theta_RP, replace(examples, inputs=view), clip_R, chunk)
        for view in examples.inputs.unbind(2)
    ]
    return Clipped(torch.stack([part.sum_RP for part in parts]).sum(0), parts[0].norm_RB, parts[0].loss_RB)


def _by_place(draw: Draw) -> Draw:
    """The law of the sum stays as it is; but whoever is drawn before the others changes their views."""
    return replace(draw, index_RB=torch.arange(draw.index_RB.shape[1]).expand_as(draw.index_RB))


AUGMENTED: Mapping[str, Pipeline] = {
    "clipped at each view and added up": augmented(engine=_clipped_at_each),
    "views mixed with the next record of the batch": augmented(
        augmentation=Viewing(after=lambda view_RBK: (view_RBK + view_RBK.roll(1, 1)) / 2)
    ),
    "views by the place in the batch": augmented(_by_place),
}
