"""Tests, before training, whether a model can be built and trained, and whether a clipping engine supports it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dpbench.catalog import Entry
from dpbench.errors import DpbenchError, lacks_memory
from dpbench.plan.cache import Cache

if TYPE_CHECKING:
    from torch import nn

    from dpbench.step.clipped_sum import Clipped, Weight
    from dpbench.step.mechanism import Mechanism

_TRIED: set[tuple[object, ...]] = set()  # what passed, so that the rows of a table do not build the same network again
_SIZES: dict[tuple[object, ...], Sizes] = {}
_SMALL = 10**8  # parameters, which take 400 MB
MOST_PARAMETERS = 10**9
MOST_TRIED = 40_000_000  # parameters of a model that a plan tries: 1.6 GB and some seconds


class Sizes(NamedTuple):
    """Of a model: operations of a forward pass of one example, parameters, numbers that the pass writes."""

    operations: int
    parameters: int
    written: int


class TooLarge(DpbenchError):
    """A model has more parameters than can be tried."""


def try_build(build: Callable[[], nn.Module], shape: tuple[int, ...], classes: int, known: Cache | None = None) -> None:
    """Raise what a model raises when it is built and called once; what passed is not tested again."""
    key = ("build", *_identity(build), shape, classes)
    _once(key, _modules(build), known or Cache(), lambda: sizes(build, shape, classes, known))


def sizes(build: Callable[[], nn.Module], shape: tuple[int, ...], classes: int, known: Cache | None = None) -> Sizes:
    """The sizes of a model. Raises what a model raises.

    The model is built once, where all its layers allow that on torch's device `meta`, without first values for its
    parameters; a large one is also called there, and takes no memory.
    """
    key = (*_identity(build), shape, classes)
    if key not in _SIZES:
        words = [_words(part) for part in key]
        count = partial(_counted, build, shape, classes)
        _SIZES[key] = Sizes(*(known or Cache()).sizes(words, _modules(build), count))
    return _SIZES[key]


def _counted(build: Callable[[], nn.Module], shape: tuple[int, ...], classes: int) -> Sizes:
    try:
        return _counted_on("meta", build, shape, classes)
    except TooLarge:
        raise
    except Exception:  # noqa: BLE001 - a layer that needs values, or a mistake: the processor tells
        return _counted_on("cpu", build, shape, classes)


def _counted_on(device: str, build: Callable[[], nn.Module], shape: tuple[int, ...], classes: int) -> Sizes:
    import torch

    from dpbench.plan.probe import check_output
    from dpbench.step.watch import FloatOperations

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        with torch.device(device):
            module = build()
        parameters = _size(module)
        if parameters > MOST_PARAMETERS:
            raise TooLarge(
                f"the model has {parameters:,} parameters: expected at most {MOST_PARAMETERS:,}; make layers smaller"
            )
        if device == "meta" and parameters <= _SMALL:
            # The first call on meta imports torch's compiler, which takes longer than a call on zeros.
            device, module = "cpu", module.to_empty(device="cpu")
            for one in (*module.parameters(), *module.buffers()):
                one.zero_()
        with torch.device(device), FloatOperations() as counter:
            check_output(module(torch.zeros(1, *shape)), classes)
    return Sizes(int(counter.total), parameters, counter.written)


def try_network(
    entries: Iterable[Entry],
    build: Callable[[], nn.Module],
    shape: tuple[int, ...],
    classes: int,
    weight: Weight | None = None,
    known: Cache | None = None,
) -> None:
    """Raise what is wrong with a model, by itself or for its clipping engine; what passed is not tested again.

    `weight` is that of a rule which weighs gradients by their norms; `known` holds what has passed before.
    """
    from dpbench.plan.probe import try_model

    known = known or Cache()
    model = ("model", *_identity(build), shape, classes)
    _once(model, _modules(build), known, lambda: try_model(build, shape, classes))
    for entry in entries:
        if entry.kind == "clipping":
            key = ("engine", entry.target, _words(weight), *model)
            modules = [*_modules(build), entry.module, getattr(weight, "__module__", "dpbench")]
            _once(key, modules, known, partial(try_clipping, [entry], build, shape, weight))


def _once(key: tuple[object, ...], modules: Iterable[str], known: Cache, trial: Callable[[], object]) -> None:
    modules = list(modules)
    if key in _TRIED:
        return
    words = [_words(part) for part in key]
    if not known.passed(words, modules):
        trial()
    known.passes(words, modules)
    _TRIED.add(key)


def _words(part: object) -> str:
    """A function by its name, a method with its object, all else as it is written."""
    name = getattr(part, "__qualname__", None)
    if name is None:
        return repr(part)
    return f"{getattr(part, '__module__', '')}:{name}({getattr(part, '__self__', '')!r})"


def _modules(build: Callable[[], nn.Module]) -> list[str]:
    return [str(getattr(_identity(build)[0], "__module__", None))]


def try_clipping(
    entries: Iterable[Entry], build: Callable[[], nn.Module], shape: tuple[int, ...], weight: Weight | None = None
) -> None:
    """Raise DpbenchError, with the layer, if the clipping engine does not support a model.

    An engine that supports only some layers has a function `refuse`; every engine is called on examples of zeros.
    """
    import torch

    from dpbench.plan.probe import MOST_DOUBLES
    from dpbench.step.clipped_sum import clip_weight

    for entry in entries:
        if entry.kind != "clipping":
            continue
        with torch.random.fork_rng(devices=[]):
            module = build()
        refuse = getattr(importlib.import_module(entry.module), "refuse", None)
        if refuse is not None:
            refuse(module, torch.zeros(shape))
        engine, name = entry.load(), f"clipping engine {entry.name}"
        if weight is not None and weight is not clip_weight:
            engine, name = partial(_weighed, engine, weight), f"{name}, with the rule's weight"
        _one_sum(name, engine, module, shape, *((2, 3) if _size(module) <= MOST_DOUBLES else (1, 2)))


def _weighed(engine: Callable[..., Clipped], weight: Weight, *arguments: Any) -> Clipped:
    return engine(*arguments, weight)


def _size(module: nn.Module) -> int:
    from torch.nn.parameter import is_lazy

    return sum(one.numel() for one in module.parameters() if not is_lazy(one))


def _one_sum(
    name: str,
    engine: Callable[..., Clipped],
    module: nn.Module,
    shape: tuple[int, ...],
    runs: int = 2,
    count: int = 3,
) -> None:
    """Raise DpbenchError, with the layer, if an engine raises on examples of zeros, `count` in each of `runs`.

    The two differ, so that an operator cannot confuse the axes.
    """
    import torch

    from dpbench.step.clipped_sum import Examples
    from dpbench.step.functional import network, trained
    from dpbench.step.watch import entered, sentence

    theta_P = torch.cat([value.detach().flatten() for value in trained(module).values()])
    examples = Examples(
        torch.zeros(runs, count, *shape), torch.zeros(runs, count, dtype=torch.int64), torch.ones(runs, count) > 0
    )
    with entered(module) as trail:
        try:
            engine(network(module), theta_P.repeat(runs, 1), examples, torch.ones(runs, dtype=torch.float64), count)
        except DpbenchError:
            raise
        except Exception as error:
            if lacks_memory(error):
                raise
            layer = f"layer {trail[-1]}" if trail else "the model"
            raise DpbenchError(f"{name}: {layer} stops with {sentence(error)}") from error


def try_rule(
    mechanism: Mechanism, build: Callable[[], nn.Module], shape: tuple[int, ...], known: Cache | None = None
) -> None:
    """Raise what a mechanism's rule with its own sum raises for a model.

    Calls its `refuse`; a rule without one is called on examples of zeros. That differentiates the model, which takes
    seconds for a large one, so only models that will be trained are tested, and each only once: the result does not
    depend on the number of projections.
    """
    import torch

    from dpbench import randomness
    from dpbench.step.clipped_sum import Draw
    from dpbench.step.stages import OwnSum

    rule = getattr(mechanism, "rule", None)
    refuse = getattr(rule, "refuse", None)
    key = ("rule", *_identity(build), shape, type(rule), getattr(rule, "way", None))
    if not isinstance(rule, OwnSum):
        return
    summed = rule.summed

    def trial() -> None:
        with torch.random.fork_rng(devices=[]):
            module = build()
        if refuse is not None:
            refuse(module, torch.zeros(shape))
            return
        zero_2 = torch.zeros(2, dtype=torch.int64)
        places_23 = torch.arange(3).repeat(2, 1)
        draw = Draw(randomness.table([0, 1]), zero_2, places_23, torch.ones(2, dtype=torch.float64), 3)
        _one_sum(f"the rule {type(rule).__name__}", partial(summed, draw), module, shape)

    _once(key, [*_modules(build), type(rule).__module__], known or Cache(), trial)


def try_mechanism(mechanism: object, build: Callable[[], nn.Module]) -> None:
    """Raise what a mechanism or a metric raises for a model that it does not cover (`refuse_model`)."""
    import torch

    refuse = getattr(mechanism, "refuse_model", None)
    if refuse is not None:
        with torch.random.fork_rng(devices=[]):
            refuse(build())


def _identity(build: Callable[[], nn.Module]) -> tuple[object, ...]:
    """The identity of a `model_builder`: the factory itself, not its name, and its arguments."""
    if isinstance(build, partial):
        return build.func, repr((build.args, sorted(build.keywords.items())))
    return (build,)
