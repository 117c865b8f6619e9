"""Observes a call of a model: the current layer, what its operators write into and draw. Compares outputs.

Two outputs agree if no entry differs by more than 1e-9 of its size, which allows for 10^7 roundings in float64; an
influence of one record on another is usually of the size of the layer that mixes them. If the model computes anything
in float32 the tolerance is 1e-4, which allows for 10^3 roundings; a smaller influence is not found. The size of an
entry is its absolute value or the median of all outputs, whichever is larger, because an entry may be small by
cancellation. The median counts as at least 1, or as the largest output if that is smaller: an error d of the scores
changes the loss by at most 2d. Outputs that are equal for every record, such as a mask of -1e38, are left out of the
median.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


@contextmanager
def entered(
    module: nn.Module,
    note: Callable[[Any], Any] = lambda _: None,
    left: Callable[[str, Any, Any], Any] = lambda *_: None,
) -> Iterator[list[str]]:
    """The layers of a module that a call is in, the innermost last, written `'1.0' (Dropout)`.

    `note` is called with a layer's inputs when it is entered; `left` with its name, the result of `note`, and its
    outputs. The hooks are global, because some layers compute differently if they have hooks of their own.
    """
    layers = layer_names(module)
    trail: list[str] = []
    notes: list[Any] = []

    def entering(layer: nn.Module, arguments: Any) -> None:
        if id(layer) in layers:
            trail.append(layers[id(layer)])
            notes.append(note(arguments))

    def leaving(layer: nn.Module, _arguments: Any, outputs: Any) -> None:
        if id(layer) in layers:
            left(trail.pop(), notes.pop(), outputs)

    handles = [register_module_forward_pre_hook(entering), register_module_forward_hook(leaving)]
    try:
        yield trail
    finally:
        for handle in handles:
            handle.remove()


def layer_names(module: nn.Module) -> dict[int, str]:
    return {id(layer): f"{name or 'top'!r} ({type(layer).__name__})" for name, layer in module.named_modules()}


def sentence(error: Exception) -> str:
    """The first sentence of an error, with its kind."""
    words = " ".join(str(error).split()).partition(". ")[0][:300].rstrip(".")
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


class Operators(TorchDispatchMode):
    """Calls `writes(label, operator)` if a tensor of `own` is written into, and `draws(operator)` for random numbers.

    `single`: whether anything was computed in float32, which sets the tolerance.
    """

    def __init__(
        self, own: Sequence[tuple[Any, Tensor]], writes: Callable[[Any, Any], None], draws: Callable[[Any], None]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.own = {_storage(value): label for label, value in own if value.numel()}
        self.writes, self.draws, self.single = writes, draws, False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and torch's compiler takes a second to import

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        places, may_draw = _effects(func)
        for place, name in places:
            for value in tree_leaves(args[place] if place < len(args) else kwargs.get(name)):
                if isinstance(value, Tensor) and _storage(value) in self.own:
                    self.writes(self.own[_storage(value)], func)
        drawn: list[torch.Generator] = []
        if may_draw:
            given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Generator)]
            drawn = [torch.default_generator, *given]
        before = [one.get_state() for one in drawn]
        result = func(*args, **kwargs)
        if not all(map(torch.equal, before, [one.get_state() for one in drawn])):
            self.draws(func)
        leaves = tree_leaves(result)
        self.single |= any(isinstance(value, Tensor) and value.dtype == torch.float32 for value in leaves)
        return result


class FloatOperations(TorchDispatchMode):
    """Counts the floating-point operations of all operators in its context as torch's own counter does, in `total`.

    `written` counts the numbers in the results of those that do not only look at their input another way.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = self.written = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as above; this is why torch's FlopCounterMode does not serve

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        from torch.utils.flop_counter import flop_registry

        del types
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        count = flop_registry.get(func._overloadpacket)
        self.total += 0 if count is None else int(count(*args, **kwargs, out_val=result))
        if not func.is_view:
            self.written += sum(one.numel() for one in tree_leaves(result) if isinstance(one, Tensor))
        return result


@cache
def _effects(func: Any) -> tuple[tuple[tuple[int, str], ...], bool]:
    """Which arguments an operator writes into, and whether it may draw."""
    arguments = enumerate(func._schema.arguments)
    written = tuple((n, a.name) for n, a in arguments if a.alias_info is not None and a.alias_info.is_write)
    return written, torch.Tag.nondeterministic_seeded in func.tags


def _storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr() if value.layout == torch.strided else id(value)


def leaves(values: Any) -> list[Tensor]:
    """The floating-point tensors, copied, because a later layer may write into them."""
    return [v.detach().clone() for v in tree_leaves(values) if isinstance(v, Tensor) and v.is_floating_point()]


def rows(many: Tensor, one: Tensor, size: int, place: int) -> Iterator[Tensor]:
    """Candidates for one record's part of a batch's tensor: a slice, or every `size`-th entry, of the longer axis."""
    if many.shape == one.shape:
        yield many
    for axis in range(many.dim() if many.dim() == one.dim() else 0):
        longer = [size * n if at == axis else n for at, n in enumerate(one.shape)]
        if list(many.shape) == longer and size > 1:
            yield many.narrow(axis, place * one.shape[axis], one.shape[axis])
            yield many.index_select(axis, torch.arange(place, many.shape[axis], size))


def apart(found: Tensor, expected: Tensor, floor: float) -> float:
    """The largest difference of an entry, relative to its size or `floor`; infinite where the shapes differ."""
    if found.shape != expected.shape:
        return float("inf")
    found, expected = found.double(), expected.double()
    alike = (found == expected) | (found.isnan() & expected.isnan())
    if bool(alike.all()):
        return 0.0
    difference = (found - expected).abs() / expected.abs().clamp_min(floor)
    return float(difference.masked_fill(alike, 0.0).nan_to_num(nan=torch.inf).max())


def gradients_apart(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference of two gradients, relative to each parameter's largest entry or the median of these.

    The median, because a gradient that is 0 by symmetry consists of rounding errors.
    """
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a.numel()]
    sizes = [float(b.abs().max().nan_to_num(nan=0.0)) for _, b in pairs]
    floor = upper_median(torch.tensor(sizes, dtype=torch.float64)) or 1.0
    largest = 0.0
    for (a, b), size in zip(pairs, sizes, strict=True):
        difference = float((a - b).abs().max()) / max(floor, size)
        largest = max(largest, difference if difference < torch.inf else apart(a, b, max(floor, size)))
    return largest


def least_size(values: Tensor) -> float:
    """The least size of an output (see the module)."""
    size = values.abs().double()
    counted = size.isfinite() & (size > 0)
    varies = (values != values[:1]).any(0).expand(values.shape) if values.dim() else counted
    counted = counted & varies if bool((counted & varies).any()) else counted
    middle = upper_median(size[counted])
    return max(middle, min(1.0, float(size[counted].max()))) if middle else 1.0


def upper_median(sizes: Tensor) -> float:
    """The median of those above 0, for an even number the upper one; 0 if there is none."""
    ordered = sizes[sizes > 0].sort().values
    return float(ordered[len(ordered) // 2]) if len(ordered) else 0.0


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def generators() -> tuple[Any, ...]:
    """The states of torch's, NumPy's and Python's global generators."""
    numbers = np.random.get_state(legacy=False)  # noqa: NPY002 - the one that a model may draw from
    return torch.get_rng_state().numpy().tobytes(), str(numbers), random.getstate()


def seeded_generators(seed: int = 0) -> tuple[Any, ...]:
    """Seed them alike before every call, so that random numbers do not look like a state that the model keeps."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    return generators()


@contextmanager
def generators_put_back() -> Iterator[None]:
    numbers, words = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        seeded_generators()
        try:
            yield
        finally:
            np.random.set_state(numbers)  # noqa: NPY002
            random.setstate(words)
