"""What training refuses of a model, before anything runs: what `probe` refutes, and what has no gradient or no seed.

A private mechanism needs the gradient of every single example, which is not defined where a layer mixes the examples
of a batch; and a run must draw all its randomness from its own streams.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from dpbench.errors import DpbenchError
from dpbench.probe import refuse_model


def try_model(build: Callable[[], nn.Module], input_shape: tuple[int, ...], classes: int) -> None:
    """Build a model and put records through it, so that what does not fit is known before anything runs.

    Raises DpbenchError for what `probe.refuse_model` names, for outputs of another shape than (1, classes),
    and for buffers that the factory fills at random, because no seed of the run would set them; whatever the model
    itself raises on one example of zeros goes on.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        modules = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            modules.append(build())
        module = modules[0]
        if module is modules[1]:
            raise DpbenchError("the model's factory gives the same module twice: expected a new one at every call")
        refuse_model(build, input_shape, classes)
        output = module(torch.zeros(1, *input_shape))
    if not isinstance(output, torch.Tensor):
        raise DpbenchError(f"the model's output is a {type(output).__name__}: expected one tensor (1, {classes})")
    if tuple(output.shape) != (1, classes):
        raise DpbenchError(
            f"the model's output has shape {tuple(output.shape)} for one example: expected (1, {classes})"
        )
    buffers = dict(modules[1].named_buffers())
    random = [name for name, value in module.named_buffers() if not torch.equal(value, buffers[name])]
    if random:
        raise DpbenchError(f"buffers {', '.join(random)} are filled at random: make them parameters, or fix their seed")
