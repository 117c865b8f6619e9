"""Whether a clipping engine can do with a model: asked before anything is trained."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from dpbench.catalog import Entry
from dpbench.errors import DpbenchError

if TYPE_CHECKING:
    from torch import nn

    from dpbench.step.clipped_sum import ClippedSum
    from dpbench.step.pipeline import Mechanism

_TRIED: set[tuple[object, ...]] = set()  # what passed, so that a table's rows do not build one network again and again


def try_network(entries: Iterable[Entry], build: Callable[[], nn.Module], shape: tuple[int, ...], classes: int) -> None:
    """Raise what is wrong with a model, by itself or for its clipping engine; what passed is not tried again."""
    from dpbench.plan.probe import try_model

    tried = ("model", *_identity(build), tuple(entry.module for entry in entries if entry.kind == "clipping"))
    if tried not in _TRIED:
        try_model(build, shape, classes)
        try_clipping(entries, build, shape)
        _TRIED.add(tried)


def try_clipping(entries: Iterable[Entry], build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """Raise DpbenchError where the clipping engine cannot take a model, with the layer.

    An engine that knows only some layers has a function `refuse`; any engine is tried on examples of zeros.
    """
    import torch

    from dpbench.step.clipped_sum import DrawnSum

    for entry in entries:
        if entry.kind != "clipping":
            continue
        with torch.random.fork_rng(devices=[]):
            module = build()
        refuse = getattr(importlib.import_module(entry.module), "refuse", None)
        if refuse is not None:
            refuse(module, torch.zeros(shape))
        engine = entry.load()
        if not isinstance(engine, DrawnSum):
            _one_sum(f"clipping engine {entry.name}", engine, module, shape)


def _one_sum(name: str, engine: ClippedSum, module: nn.Module, shape: tuple[int, ...]) -> None:
    """Raise DpbenchError for whatever an engine raises on examples of zeros, three in each of two runs, with the layer.

    Two and three, so that an operator cannot take one axis for another.
    """
    import torch

    from dpbench.step.clipped_sum import Examples
    from dpbench.step.functional import network
    from dpbench.step.watch import entered, sentence

    theta_P = torch.cat([value.detach().flatten() for value in module.parameters()])
    examples = Examples(torch.zeros(2, 3, *shape), torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3) > 0)
    with entered(module) as trail:
        try:
            engine(network(module), theta_P.repeat(2, 1), examples, torch.ones(2, dtype=torch.float64), 3)
        except DpbenchError:
            raise
        except Exception as error:
            layer = f"layer {trail[-1]}" if trail else "the model"
            raise DpbenchError(f"{name}: {layer} stops with {sentence(error)}") from error


def try_engine(mechanism: Mechanism, build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """Raise what a mechanism's own engine, which is no entry of the catalog, raises for a model.

    Its `refuse` is asked; an engine without one is tried on examples of zeros. That differentiates the model, which
    takes seconds for a large one, so only what will be trained is tried, and what passed once is not tried again: the
    answer does not hang on how many projections there are.
    """
    import torch

    from dpbench import randomness
    from dpbench.step.clipped_sum import Draw, DrawnSum

    engine = getattr(mechanism, "clipped_sum", None)
    refuse = getattr(engine, "refuse", None)
    key = ("engine", *_identity(build), shape, type(engine), getattr(engine, "way", None))
    if not isinstance(engine, DrawnSum) or key in _TRIED:
        return
    with torch.random.fork_rng(devices=[]):
        module = build()
    if refuse is not None:
        refuse(module, torch.zeros(shape))
    else:
        draw = Draw(randomness.table([0, 1]), torch.zeros(2, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64))
        _one_sum(f"the engine of {type(mechanism).__name__}", engine.at(draw), module, shape)
    _TRIED.add(key)


def _identity(build: Callable[[], nn.Module]) -> tuple[object, ...]:
    """What tells one `model_builder` from another: the factory itself, not its name, and what it is given."""
    if isinstance(build, partial):
        return build.func, repr((build.args, sorted(build.keywords.items())))
    return (build,)
