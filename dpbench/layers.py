"""Which layers training refuses, all named at once and before anything runs.

A private mechanism needs the gradient of every single example, which is not defined where a layer mixes the examples
of a batch; and a run must draw all its randomness from its own streams.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from dpbench.errors import DpbenchError

_MIXING = (nn.modules.batchnorm._BatchNorm,)
_DRAWING = (nn.modules.dropout._DropoutNd, nn.RReLU)


def try_model(build: Callable[[], nn.Module], input_shape: tuple[int, ...], classes: int) -> None:
    """Build a model and put one example of zeros through it, so that what does not fit is known before anything runs.

    Raises DpbenchError for what `refuse` names, for outputs of another shape than (1, classes), and for buffers that
    the factory fills at random, because no seed of the run would set them; whatever the model itself raises goes on.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        modules = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            modules.append(build())
        module = modules[0]
        refuse(module)
        output = module(torch.zeros(1, *input_shape))
    if tuple(output.shape) != (1, classes):
        raise DpbenchError(
            f"the model's output has shape {tuple(output.shape)} for one example: expected (1, {classes})"
        )
    buffers = dict(modules[1].named_buffers())
    random = [name for name, value in module.named_buffers() if not torch.equal(value, buffers[name])]
    if random:
        raise DpbenchError(f"buffers {', '.join(random)} are filled at random: make them parameters, or fix their seed")


def refuse(module: nn.Module) -> None:
    """Raise DpbenchError that names every layer and parameter of a model which training cannot take.

    >>> refuse(nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4)))
    """
    found = []
    for name, layer in module.named_modules():
        kind = f"layer {name or 'top'!r} ({type(layer).__name__})"
        if isinstance(layer, _MIXING):
            found.append(f"{kind} mixes the examples of a batch: use GroupNorm or LayerNorm")
        elif isinstance(layer, _DRAWING):
            found.append(f"{kind} draws randomness of its own: leave it out")
        elif isinstance(layer, nn.RNNBase) and layer.dropout > 0:
            found.append(f"{kind} has dropout = {layer.dropout}: set it to 0")
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            found.append(f"parameter {name!r} is frozen: keep what is not trained as a buffer")
    if found:
        raise DpbenchError(f"the model cannot be trained example by example: {'; '.join(found)}")
