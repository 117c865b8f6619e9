"""Tests the assumptions of training on the model itself, before anything runs.

The test does not use the classes of layers. The model is built, its parameters are moved a little from their initial
values (a layer of zeros would hide the layers before it), and it is called on single records and on batches, in train
and eval mode. Every operator is observed: which tensor it writes into, and whether it draws random numbers. So
`nn.Dropout(0)` passes, and `F.dropout` inside `forward` does not. Calls are repeated with gradients, forwards and
backwards, because a model may keep a state only then, and once in float32, because `x.float()` is no copy only there.
`step.watch` defines when two outputs agree.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dpbench.errors import DpbenchError
from dpbench.plan.probe._trial import (
    AGAIN,
    ALONE,
    BUFFERS,
    BUILT,
    GRADIENTS,
    INPUTS,
    PARAMETERS,
    RANDOM,
    RECORDS,
    STACK,
    TRAINED,
    Probed,
    Trial,
)
from dpbench.step.watch import generators_put_back

MOST_DOUBLES = 10**7  # parameters of a model that is tried in float64; a larger one only in float32, for its memory
_REMEDY = {
    TRAINED: "keep what is not trained as a buffer, and give every layer its number of inputs",
    INPUTS: "compute on a copy, without inplace=True",
    PARAMETERS: "leave the weights to training, without max_norm or writes in forward",
    BUFFERS: "keep no counts or statistics of the data",
    RANDOM: "leave it out, or set its probability to 0",
    GRADIENTS: "use operators that torch can differentiate, and do not overwrite tensors that another layer needs",
    AGAIN: "keep no state between calls",
    ALONE: "use GroupNorm or LayerNorm for batch statistics, and batch_first=True for sequences",
    STACK: "use operators that torch.func.vmap supports, and no branches on values",
    BUILT: "make random values parameters",
}


def probe_model(
    build: Callable[[], nn.Module], input_shape: tuple[int, ...], classes: int, *, inputs: Tensor | None = None
) -> tuple[Probed, ...]:
    """The properties of a model: one answer for each property, and one for each layer that refutes it.

    `inputs` (N, *input_shape): the first 17 are used; without them normals, uniforms in [0, 1) and whole numbers are
    used, if the model accepts them. torch's, NumPy's and Python's generators are restored.

    >>> [one.layer for one in probe_model(lambda: nn.Sequential(nn.Linear(4, 2), nn.Dropout()), (4,), 2)
    ...  if one.verdict == "refuted"]
    ["'1' (Dropout)"]
    """
    del classes  # `try_model` tests the width of the output
    kinds = _kinds(input_shape) if inputs is None else [inputs[:RECORDS].detach().cpu()]
    with generators_put_back(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = build().cpu()
        size = sum(0 if is_lazy(value) else value.numel() for value in module.parameters())
        for dtype in (torch.float64, torch.float32) if size <= MOST_DOUBLES else (torch.float32,):
            trial = Trial(module, dtype)
            if trial.run([_extremes_last(x) for x in kinds], build):
                break
    return trial.answers()


def refuse_model(
    build: Callable[[], nn.Module], input_shape: tuple[int, ...], classes: int, *, inputs: Tensor | None = None
) -> None:
    """Raise one DpbenchError that names everything that `probe_model` refutes, with the layer and a remedy.

    >>> refuse_model(lambda: nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.0)), (4,), 2)
    """
    refuted = [one for one in probe_model(build, input_shape, classes, inputs=inputs) if one.verdict == "refuted"]
    if refuted:
        found = [f"{one.found}, but training needs that {one.what} ({_REMEDY[one.what]})" for one in refuted]
        raise DpbenchError(f"the model cannot be trained example by example: {'; '.join(found)}")


def try_model(build: Callable[[], nn.Module], input_shape: tuple[int, ...], classes: int) -> None:
    """Build a model and test it before anything runs.

    Raises DpbenchError for what `refuse_model` names, for outputs of another shape than (1, classes), and for buffers
    that the factory fills at random, because no seed of the run sets them. An exception of the model itself on one
    example of zeros is passed on.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        modules = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            modules.append(build())
        module = modules[0]
        if module is modules[1]:
            raise DpbenchError("the model's factory gives the same module twice: expected a new one at every call")
        others: dict[str, Tensor] = dict(modules[1].named_parameters())
        given = {name: value for name, value in module.named_parameters() if not value.requires_grad}
        frozen = [name for name, value in given.items() if not is_lazy(value) and not torch.equal(value, others[name])]
        others = dict(modules[1].named_buffers())
        buffers = [
            name
            for name, value in module.named_buffers()
            if not is_lazy(value) and not torch.equal(value, others[name])
        ]
        del module, modules, others, given  # a large model's probe takes memory enough
        refuse_model(build, input_shape, classes)
        output = build()(torch.zeros(1, *input_shape))
    check_output(output, classes)
    if frozen:
        raise DpbenchError(
            f"frozen parameters {', '.join(frozen)} are filled at random: take them from a file (`weights` in the"
            " spec), or fix their seed"
        )
    if buffers:
        names = ", ".join(buffers)
        raise DpbenchError(f"buffers {names} are filled at random: make them parameters, or fix their seed")


def check_output(output: object, classes: int) -> None:
    """Raise DpbenchError unless a model's output for one example is a tensor (1, classes)."""
    if not isinstance(output, torch.Tensor):
        raise DpbenchError(f"the model's output is a {type(output).__name__}: expected one tensor (1, {classes})")
    if tuple(output.shape) != (1, classes):
        raise DpbenchError(
            f"the model's output has shape {tuple(output.shape)} for one example: expected (1, {classes})"
        )


def _kinds(shape: tuple[int, ...]) -> list[Tensor]:
    """Records like data: normals, uniforms, and whole numbers such as those of words."""
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(RECORDS, *shape, generator=generator)
    normal = torch.randn(RECORDS, *shape, generator=generator)
    return [normal, uniform, *((uniform * words).floor() for words in (1000, 100, 10, 2))]


def _extremes_last(x: Tensor) -> Tensor:
    """Records of median size first, so that a state that keeps the smallest or the largest value changes later.

    >>> _extremes_last(torch.tensor([[9.0], [1.0], [5.0]]))[0]
    tensor([5.])
    """
    rank = x.flatten(1).abs().double().sum(1).argsort(stable=True).argsort()
    return x[(rank - len(x) // 2).abs().argsort(stable=True)]
