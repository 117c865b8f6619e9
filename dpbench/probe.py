"""What training takes for granted of a model, tried on the model itself before anything runs.

Nothing is known by its class. A model is built, moved a little from its start (a layer of zeros would hide what is
behind it), called on records alone and in batches, in train and eval mode, and every operator of a call is watched:
which tensor it writes into, and whether it draws. So `nn.Dropout(0)` passes and `F.dropout` inside `forward` does not.

Calls are repeated with gradients on, forwards and backwards, because a model may keep something only then; and once in
float32, because `x.float()` is a copy only where x is not float32 yet.

Outputs are compared in float64 where the model computes in it, and are alike if no entry is off by more than 1e-9 of
its size: room for 10^7 roundings, while what one record does to another has the size of the layer that mixes them. A
model that computes in float32 anywhere gets 1e-4, room for 10^3 roundings; what mixes less goes unseen. The size of an
entry is its own, or the middle one of all outputs where that is larger: an entry may be small because large ones
cancel. It is at least 1, or the largest output if that is smaller: scores that are off by d move the loss by at most
2d. Outputs that are the same for every record, such as a mask of -1e38, set no size.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpbench.clipping._recurrent import WrittenOut
from dpbench.errors import DpbenchError
from dpbench.functional import network

RECORDS = 17  # the largest batch that is tried
_SIZES = (2, 3, RECORDS)
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}

TRAINED = "every parameter is trained"
INPUTS = "inputs are left as they are"
PARAMETERS = "parameters are left as they are"
BUFFERS = "buffers are left as they are"
RANDOM = "nothing is drawn"
GRADIENTS = "gradients can be taken"
AGAIN = "a call is the same again"
ALONE = "a batch is its records one by one"
STACK = "runs side by side are runs alone"
BUILT = "what is built is the same again"

_REMEDY = {
    TRAINED: "keep what is not trained as a buffer, and give every layer its number of inputs",
    INPUTS: "compute on a copy, without inplace=True",
    PARAMETERS: "leave the weights to training, without max_norm or writes in forward",
    BUFFERS: "keep no counts or statistics of the data",
    RANDOM: "leave it out, or set its probability to 0",
    GRADIENTS: "use operators that torch can differentiate, and write into nothing that another layer still needs",
    AGAIN: "keep nothing from one call for the next",
    ALONE: "use GroupNorm or LayerNorm for batch statistics, and batch_first=True for sequences",
    STACK: "use torch operators that torch.func.vmap takes, and no decision that looks at numbers",
    BUILT: "make what is random a parameter",
}


@dataclass(frozen=True)
class Probed:
    """One property of a model: whether it holds, what was seen, and the layer that breaks it, where it was found.

    `layer` is written `'1.0' (Dropout)`; the model itself is `'top'`.
    """

    what: str
    verdict: Literal["holds", "refuted", "undecided"]
    evidence: str
    layer: str | None = None


def probe_model(
    build: Callable[[], nn.Module], input_shape: tuple[int, ...], classes: int, *, inputs: Tensor | None = None
) -> tuple[Probed, ...]:
    """What holds of a model: one answer for each property, and one for each layer that refutes it.

    `inputs` (N, *input_shape) are records to try, the first 17 of them; without them normals, uniforms in [0, 1) and
    whole numbers are tried, as far as the model takes them. torch's, NumPy's and Python's generators are put back.

    >>> [one.layer for one in probe_model(lambda: nn.Sequential(nn.Linear(4, 2), nn.Dropout()), (4,), 2)
    ...  if one.verdict == "refuted"]
    ["'1' (Dropout)"]
    """
    del classes  # the width of an output is no matter here: `layers.try_model` judges it
    kinds = _kinds(input_shape) if inputs is None else [inputs[:RECORDS].detach().cpu()]
    with _generators_put_back(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = build().cpu()
        for dtype in (torch.float64, torch.float32):
            trial = _Trial(module, dtype)
            if trial.run([_extremes_last(x) for x in kinds], build):
                break
    return trial.answers()


def refuse_model(
    build: Callable[[], nn.Module], input_shape: tuple[int, ...], classes: int, *, inputs: Tensor | None = None
) -> None:
    """Raise one DpbenchError that names everything that `probe_model` refutes, with its layer and what to do.

    >>> refuse_model(lambda: nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.0)), (4,), 2)
    """
    refuted = [one for one in probe_model(build, input_shape, classes, inputs=inputs) if one.verdict == "refuted"]
    if refuted:
        found = [
            f"{f'layer {one.layer}: ' if one.layer else ''}{one.evidence}, but training needs that {one.what}"
            f" ({_REMEDY[one.what]})"
            for one in refuted
        ]
        raise DpbenchError(f"the model cannot be trained example by example: {'; '.join(found)}")


def _kinds(shape: tuple[int, ...]) -> list[Tensor]:
    """Records that look like data: normals, uniforms, and whole numbers such as those of words."""
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(RECORDS, *shape, generator=generator)
    normal = torch.randn(RECORDS, *shape, generator=generator)
    return [normal, uniform, *((uniform * words).floor() for words in (1000, 100, 10, 2))]


def _extremes_last(x: Tensor) -> Tensor:
    """Records of middling size first: what a model keeps of the smallest or the largest so far shows after the others.

    >>> _extremes_last(torch.tensor([[9.0], [1.0], [5.0]]))[0]
    tensor([5.])
    """
    rank = x.flatten(1).abs().double().sum(1).argsort(stable=True).argsort()
    return x[(rank - len(x) // 2).abs().argsort(stable=True)]


@contextmanager
def entered(
    module: nn.Module,
    note: Callable[[Any], Any] = lambda _: None,
    left: Callable[[str, Any, Any], None] = lambda *_: None,
) -> Iterator[list[str]]:
    """The layers of a module that have been entered and not left, the innermost last, written `'1.0' (Dropout)`.

    `note` is told a layer's inputs when it is entered, `left` its name, that note, and its outputs. The hooks are
    global: some layers compute in another way where they have hooks of their own.
    """
    layers = _layers(module)
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


def sentence(error: Exception) -> str:
    """The first sentence of an error, with its kind."""
    words = " ".join(str(error).split()).partition(". ")[0][:300].rstrip(".")
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _layers(module: nn.Module) -> dict[int, str]:
    return {id(layer): f"{name or 'top'!r} ({type(layer).__name__})" for name, layer in module.named_modules()}


class _Stopped(Exception):
    """What the model raised, in a sentence, and the layer that was being computed."""

    def __init__(self, error: Exception, layer: str | None) -> None:
        super().__init__(sentence(error))
        self.layer = layer


class _Trial:
    """One model in one dtype: its calls, and what they refuted."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self.module = module.to(dtype)
        self.dtype = dtype
        self.layers = _layers(module)
        self.refuted: dict[tuple[str, str | None], str] = {}
        self.undecided: dict[str, str] = {}
        self.why = ""
        self.calls, self.largest, self.floor = 0, 0.0, 1.0
        self.gradients = False  # whether calls are with gradients; if so, `gradient` is that of the last call
        self.gradient: list[Tensor] = []
        self.tolerance = _TOLERANCE[dtype]
        for name, value in module.named_parameters():
            owner, _, short = name.rpartition(".")
            if _shapeless(value):
                self.refute(TRAINED, f"parameter {short!r} has no shape before the first call", self.layer(owner))
            elif not value.requires_grad:
                self.refute(TRAINED, f"parameter {short!r} is frozen", self.layer(owner))
        self.lazy = any(_shapeless(value) for value in (*module.parameters(), *module.buffers()))
        if self.lazy:
            self.why = "not tried, because the parameters have no shape"
            return
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for value in module.parameters():
                if value.is_floating_point():
                    value.add_(torch.randn(value.shape, generator=generator), alpha=0.01)
        self.kept = {what: [(name, value.detach().clone()) for name, value in self._own(what)] for what in _REMEDY}

    def layer(self, name: str) -> str:
        return self.layers[id(self.module.get_submodule(name))]

    def run(self, kinds: Sequence[Tensor], build: Callable[[], nn.Module]) -> bool:
        """Try everything with the first records that tell something; False if the model takes none of them."""
        if self.lazy:
            return True
        self.module.train()
        taken, telling = [], False
        for x in kinds:
            output = self.takes(x)
            if output is not None:
                taken.append((x, output))
                telling = len(output) > 1 and _apart(output[0], output[1], _floor(output)) > 1e-6
            if telling:
                break
        if not taken:
            return False
        x, trained = taken[-1 if telling else 0]
        self.floor = _floor(trained)
        if self.same_again(x, trained):
            self.batches(x)
            if not self.same_in_eval(x, trained):
                self.batches(x)
            self.module.train()
            if not self.broken(TRAINED):
                self.with_gradients(x)
        self.values_are_kept()
        if not telling:
            self.undecided[ALONE] = "different records have the same outputs, so a mixture of them would not show"
        if self.broken(AGAIN):
            self.undecided[ALONE] = "a call hangs on the calls before"
        if self.broken():
            self.undecided[STACK] = self.undecided[BUILT] = "not tried, because of what is refuted"
        else:
            self.stack(x[:1])
            self.built_again(x[:3], trained, build)
        return True

    def takes(self, x: Tensor) -> Tensor | None:
        """The outputs of three records at once; None where the model raises, or gives what is not finite."""
        try:
            output = self.call(x[:3])
        except _Stopped as stopped:
            self.why = self.why or str(stopped)
            return None
        return output if bool(output.isfinite().all()) else None

    def same_again(self, x: Tensor, trained: Tensor) -> bool:
        """Whether a batch of three has its outputs once more after three other records."""
        where = "a call after another call"
        try:
            self.call(x.flip(0)[:3])
            if self.judge(AGAIN, self.call(x[:3]), trained, where):
                return True
            self.trace_again(x)
        except _Stopped as stopped:
            self.refute(AGAIN, f"{where} stops with {stopped}", stopped.layer)
        return False

    def same_in_eval(self, x: Tensor, trained: Tensor) -> bool:
        """Whether a batch of three and its first record have their outputs of train mode in eval mode too."""
        self.module.eval()
        try:
            together, alone = self.call(x[:3]), self.call(x[:1])
        except _Stopped:
            return False
        pairs = ((together, trained), (alone, trained[:1]))
        return all(_apart(found, expected, self.floor) <= self.tolerance for found, expected in pairs)

    def answers(self) -> tuple[Probed, ...]:
        """In the order of the properties; the layers that refute one in the order in which they were found."""
        seen = (
            f"{self.calls} calls at batch sizes 1 to {RECORDS} in train and eval mode, with gradients and without,"
            f" {str(self.dtype)[6:]}; the largest difference is {self.largest:.1g} of an output"
        )
        found = []
        for what in _REMEDY:
            broken = [Probed(what, "refuted", why, layer) for (one, layer), why in self.refuted.items() if one == what]
            named = [one for one in broken if one.layer is not None]
            if broken:
                found += named or broken
            elif what in self.undecided or not self.calls:
                found.append(Probed(what, "undecided", self.undecided.get(what, self.why)))
            else:
                found.append(Probed(what, "holds", seen))
        return tuple(found)

    def broken(self, *what: str) -> bool:
        """Whether one of these properties is refuted; any, if none is named."""
        return any(not what or one in what for one, _ in self.refuted)

    def refute(self, what: str, why: str, layer: str | None) -> None:
        self.refuted.setdefault((what, layer), why)

    def _own(self, what: str) -> list[tuple[str, Tensor]]:
        if what == PARAMETERS:
            return list(self.module.named_parameters())
        return list(self.module.named_buffers()) if what == BUFFERS else []

    # One call

    def call(self, x: Tensor) -> Tensor:
        """The outputs of one call, with the operators watched. Raises _Stopped for what the model raises."""
        given = x.to(self.dtype, copy=True)
        state = _seeded_generators()
        with torch.set_grad_enabled(self.gradients), self.entered() as trail, _Operators(self, given, trail):
            try:
                output: Tensor = self.module(given)
                if self.gradients:
                    self.gradient = self.differentiated(output)
            except Exception as error:
                raise _Stopped(error, trail[-1] if trail else None) from error
        self.calls += 1
        if not self.broken(RANDOM) and state != _generators():
            layer = self.where(x, lambda _: state != _generators())
            self.refute(RANDOM, "draws from a global generator of torch, NumPy or Python", layer)
        if not self.broken(INPUTS) and not _same(given, x.to(self.dtype)):
            layer = self.where(x, lambda again: not _same(again, x.to(self.dtype)))
            self.refute(INPUTS, "writes into its inputs", layer)
        if not isinstance(output, Tensor):
            raise _Stopped(TypeError(f"the output is a {type(output).__name__}, expected one tensor"), None)
        if output.dim() == 0 or len(output) == 0:
            raise _Stopped(TypeError(f"the output has shape {tuple(output.shape)}, expected a row per record"), None)
        return output.detach().clone()

    def entered(self, *told: Any) -> AbstractContextManager[list[str]]:
        return entered(self.module, *told)

    def where(self, x: Tensor, broken: Callable[[Tensor], bool]) -> str | None:
        """The first layer that is entered whole and left with something broken, in one more call."""
        found: list[str] = []
        given = x.to(self.dtype, copy=True)

        def left(layer: str, before: bool, _outputs: Any) -> None:
            if broken(given) and not before:
                found.append(layer)

        _seeded_generators()
        hooked = self.entered(lambda _: broken(given), left)
        with torch.set_grad_enabled(self.gradients), hooked, suppress(Exception):
            self.module(given)
        return found[0] if found else None

    # Several calls

    def judge(self, what: str, found: Tensor, expected: Tensor, where: str) -> bool:
        """Whether two outputs are alike; if not, `what` is refuted without a layer yet."""
        size = "of another shape" if found.shape != expected.shape else "off by {:.2g} of the outputs"
        return self.decide(what, _apart(found, expected, self.floor), f"{where} is {size}")

    def judge_gradient(self, what: str, found: Sequence[Tensor], expected: Sequence[Tensor], where: str) -> bool:
        """Whether two gradients are alike: each parameter's by its largest entry, or the middle one of these.

        A gradient may be nothing but roundings where it is 0 by symmetry.
        """
        pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a.numel()]
        sizes = [float(b.abs().max().nan_to_num(nan=0.0)) for _, b in pairs]
        floor = _upper_median(torch.tensor(sizes, dtype=torch.float64)) or 1.0
        largest = 0.0
        for (a, b), size in zip(pairs, sizes, strict=True):
            difference = float((a - b).abs().max()) / max(floor, size)
            largest = max(largest, difference if difference < torch.inf else _apart(a, b, max(floor, size)))
        return self.decide(what, largest, f"{where} is off by {{:.2g}} of its size")

    def decide(self, what: str, difference: float, told: str) -> bool:
        if difference <= self.tolerance:
            self.largest = max(self.largest, difference)
            return True
        mode = f"{'train' if self.module.training else 'eval'} mode{' with gradients' if self.gradients else ''}"
        self.refute(what, f"{told.format(difference)} in {mode}", None)
        return False

    def batches(self, x: Tensor) -> None:
        """Records alone, batches that hold them, and the first record again after them."""
        sizes = sorted({min(size, len(x)) for size in _SIZES})
        places = sorted({0, min(1, sizes[-1] - 1), sizes[-1] - 1})
        what, where = ALONE, "a record alone"
        try:
            alone = {place: self.call(x[place : place + 1]) for place in places}
            for size in (size for size in sizes if not self.broken(ALONE)):
                what, where = ALONE, f"a batch of {size}"
                together = self.call(x[:size])
                if len(together) != size:
                    self.refute(ALONE, f"a batch of {size} has outputs of shape {tuple(together.shape)}", None)
                    break
                for place in (place for place in places if place < size):
                    told = f"record {place + 1} in a batch of {size}"
                    if not self.judge(ALONE, together[place], alone[place][0], told):
                        self.trace_alone(x, size, place)
                        break
            what, where = AGAIN, "a call after other calls"
            if not self.judge(AGAIN, self.call(x[:1]), alone[0], where):
                self.trace_again(x)
                self.refuted.pop((ALONE, None), None)  # as likely for the same reason
        except _Stopped as stopped:
            self.refute(what, f"{where} stops with {stopped}", stopped.layer)

    def with_gradients(self, x: Tensor) -> None:
        """As training calls a model: records alone and again, forwards and backwards, and two of them at once."""
        self.gradients = True
        what, where = GRADIENTS, "a call with gradients"
        try:
            first = self.call(x[:1])
            one, what = self.gradient, AGAIN
            self.call(x[1:2])
            two, where = self.gradient, "a call after another call"
            self.call(x.flip(0)[:3])
            if not (
                self.judge(AGAIN, self.call(x[:1]), first, where)
                and self.judge_gradient(AGAIN, self.gradient, one, "the gradient after another call")
            ):
                self.trace_again(x)
            elif len(x) > 1 and not self.broken():
                what, where = ALONE, "a batch of 2"
                both = [a + b for a, b in zip(one, two, strict=True)]
                if not (
                    self.judge(ALONE, self.call(x[:2])[:1], first, "record 1 in a batch of 2")
                    and self.judge_gradient(ALONE, self.gradient, both, "the gradient of a batch of 2")
                ):
                    self.trace_alone(x, 2, 0)
                self.under_vmap(x[:2], one, two)
        except _Stopped as stopped:
            self.refute(what, f"{where} stops with {stopped}", stopped.layer)
        finally:
            self.gradients = False

    def differentiated(self, output: Tensor) -> list[Tensor]:
        """The gradient by every parameter of a sum of the outputs with fixed weights, the same for every record."""
        if not output.requires_grad:
            raise TypeError("the output has no gradient by any parameter")
        loss = (output * _weights(output[0])).sum()
        parameters = list(self.module.parameters())
        return [g.detach().clone() for g in torch.autograd.grad(loss, parameters, materialize_grads=True)]

    def under_vmap(self, x: Tensor, *alone: Sequence[Tensor]) -> None:
        """Each record's gradient beside another's, in another order; what vmap does not take, other engines may.

        By the smallest parameters, 10^5 numbers in all or one parameter: a large model's gradients take long.
        """
        values = {name: value.detach() for name, value in self.module.named_parameters()}
        chosen: list[str] = []
        numbers = 0
        for name in sorted(values, key=lambda name: values[name].numel()):
            numbers += values[name].numel()
            if not chosen or numbers <= 10**5:
                chosen.append(name)

        def score(named: dict[str, Tensor], one: Tensor) -> Tensor:
            with WrittenOut():
                output: Tensor = functional_call(self.module, {**values, **named}, (one[None],))[0]
            return (output * _weights(output)).sum()

        each = vmap(grad(score), in_dims=(None, 0))
        x, by = x.to(self.dtype, copy=True), {name: value for name, value in values.items() if name in chosen}
        alone = tuple([g for name, g in zip(values, one, strict=True) if name in by] for one in alone)
        try:
            gradients = each(by, x.flip(0))
        except Exception:  # noqa: BLE001 - a model may raise anything
            return
        for place, expected in enumerate(reversed(alone)):
            given = [gradients[name][place] for name in by]
            if not self.judge_gradient(ALONE, given, expected, "a record's gradient under vmap"):
                return

    def recorded(self, x: Tensor) -> list[tuple[str, list[Tensor], list[Tensor]]]:
        """Every layer of a call in the order in which they end, with the tensors it was given and gave."""
        seen: list[tuple[str, list[Tensor], list[Tensor]]] = []
        _seeded_generators()
        with (
            torch.set_grad_enabled(self.gradients),
            self.entered(_leaves, lambda layer, given, gave: seen.append((layer, given, _leaves(gave)))),
            suppress(Exception),  # a model that keeps something may not take another batch
        ):
            self.module(x.to(self.dtype, copy=True))
        return seen

    def trace_again(self, x: Tensor) -> None:
        """The first layer that gives something else for the same inputs."""
        first = self.recorded(x[:3])
        self.recorded(x.flip(0)[:3])
        self.name(AGAIN, zip(first, self.recorded(x[:3]), strict=False), lambda a, b: self.alike(a, b, 1, 0))

    def trace_alone(self, x: Tensor, size: int, place: int) -> None:
        """The first layer whose outputs part where its inputs do not."""
        pairs = zip(self.recorded(x[:size]), self.recorded(x[place : place + 1]), strict=False)
        self.name(ALONE, pairs, lambda a, b: self.alike(a, b, size, place))

    def name(self, what: str, pairs: Iterator[Any], alike: Callable[[list[Tensor], list[Tensor]], bool]) -> None:
        why = self.refuted.pop((what, None))
        for (layer, given, gave), (_, given_too, gave_too) in pairs:
            if alike(given, given_too) and not alike(gave, gave_too):
                if (RANDOM, layer) in self.refuted:
                    self.undecided[what] = "the model draws, so its outputs differ anyway"
                else:
                    self.refute(what, why, layer)
                return
        self.refute(what, why, None)

    def alike(self, batch: Sequence[Tensor], single: Sequence[Tensor], size: int, place: int) -> bool:
        """Whether the tensors of a batch hold those of one of its records, along whichever axis is longer."""
        return len(batch) == len(single) and all(
            any(_apart(row, one, _floor(many)) <= self.tolerance for row in _rows(many, one, size, place))
            for many, one in zip(batch, single, strict=True)
        )

    # After the calls

    def values_are_kept(self) -> None:
        """What no operator of torch was seen to write, such as NumPy's, or a tensor put in another's place."""
        for what, label in ((PARAMETERS, "parameter"), (BUFFERS, "buffer")):
            now = dict(self._own(what))
            changed = [name for name, old in self.kept[what] if name not in now or not _same(now[name], old)]
            changed += [name for name in now if name not in dict(self.kept[what])]
            if changed and not self.broken(what):
                owner, _, name = changed[0].rpartition(".")
                self.refute(what, f"changes its {label} {name!r}", self.layer(owner))

    def stack(self, x: Tensor) -> None:
        """Two runs' parameters under vmap, as every evaluation does it."""
        net, x = network(self.module), x.to(self.dtype)
        named = {name: torch.stack([value, 0.9 * value]) for name, value in self.module.named_parameters()}
        with torch.no_grad(), self.entered() as trail:
            try:
                found = vmap(net.outputs, in_dims=(0, None))(named, x.clone())
                expected = torch.stack([net.outputs({n: v[run] for n, v in named.items()}, x) for run in (0, 1)])
            except Exception as error:  # noqa: BLE001 - a model may raise anything
                stopped = _Stopped(error, trail[-1] if trail else None)
                self.refute(STACK, f"runs in one stack stop with {stopped}", stopped.layer)
                return
        self.judge(STACK, found, expected, "a stack of runs")

    def built_again(self, x: Tensor, trained: Tensor, build: Callable[[], nn.Module]) -> None:
        """A second module, first as it is trained, in float32; then with the first one's parameters, to be compared."""
        _seeded_generators(1)
        again = _Trial(build().cpu(), torch.float32)
        again.refuted, again.gradients = self.refuted, True
        with suppress(_Stopped):  # the engines tell what stops
            again.call(x)
        again.module.to(self.dtype)
        again.dtype, again.gradients = self.dtype, False
        for what in (PARAMETERS, BUFFERS):
            own, others = dict(self._own(what)), dict(again._own(what))
            if {name: v.shape for name, v in own.items()} != {name: v.shape for name, v in others.items()}:
                self.refute(BUILT, f"has other {what.split()[0]} when it is built again", None)
                return
            with torch.no_grad():
                for name, value in others.items():
                    value.copy_(own[name])
        try:
            if not self.judge(BUILT, again.call(x), trained, "another build with the same parameters"):
                pairs = zip(self.recorded(x), again.recorded(x), strict=False)
                self.name(BUILT, pairs, lambda a, b: self.alike(a, b, 1, 0))
        except _Stopped as stopped:
            self.refute(BUILT, f"another build stops with {stopped}", stopped.layer)


class _Operators(TorchDispatchMode):
    """Notes each operator that draws, or that writes into a tensor which is not its own, with the layer it is in."""

    def __init__(self, trial: _Trial, given: Tensor, trail: Sequence[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trial, self.trail = trial, trail
        named = [(INPUTS, "inputs", given)]
        for what, label in ((PARAMETERS, "parameter"), (BUFFERS, "buffer")):
            named += [(what, f"{label} {name.rpartition('.')[2]!r}", value) for name, value in trial._own(what)]
        self.own = {_storage(value): (what, label) for what, label, value in named if value.numel()}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and torch's compiler takes a second to import

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        places, may_draw = _effects(func)
        layer = self.trail[-1] if self.trail else None
        for place, name in places:
            for value in tree_leaves(args[place] if place < len(args) else kwargs.get(name)):
                if isinstance(value, Tensor) and _storage(value) in self.own:
                    what, label = self.own[_storage(value)]
                    self.trial.refute(what, f"writes into its {label} ({func})", layer)
        if not may_draw:
            return self.noted(func(*args, **kwargs))
        own = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Generator)]
        before = [one.get_state() for one in (torch.default_generator, *own)]
        result = func(*args, **kwargs)
        after = [one.get_state() for one in (torch.default_generator, *own)]
        if not all(map(torch.equal, before, after)):
            self.trial.refute(RANDOM, f"draws random numbers ({func})", layer)
        return self.noted(result)

    def noted(self, result: Any) -> Any:
        """A result in float32 sets the tolerance, whatever dtype the model was given."""
        if any(isinstance(value, Tensor) and value.dtype == torch.float32 for value in tree_leaves(result)):
            self.trial.tolerance = _TOLERANCE[torch.float32]
        return result


@cache
def _effects(func: Any) -> tuple[tuple[tuple[int, str], ...], bool]:
    """Which arguments an operator writes into, and whether it may draw."""
    arguments = enumerate(func._schema.arguments)
    written = tuple((n, a.name) for n, a in arguments if a.alias_info is not None and a.alias_info.is_write)
    return written, torch.Tag.nondeterministic_seeded in func.tags


def _shapeless(value: Tensor) -> bool:
    return bool(is_lazy(value))


def _storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr() if value.layout == torch.strided else id(value)


def _leaves(values: Any) -> list[Tensor]:
    """The floating-point tensors, copied, because a later layer may write into them."""
    return [v.detach().clone() for v in tree_leaves(values) if isinstance(v, Tensor) and v.is_floating_point()]


def _rows(many: Tensor, one: Tensor, size: int, place: int) -> Iterator[Tensor]:
    """What one record may be of a batch's tensor: a piece, or every `size`-th entry, of the axis that is longer."""
    if many.shape == one.shape:
        yield many
    for axis in range(many.dim() if many.dim() == one.dim() else 0):
        longer = [size * n if at == axis else n for at, n in enumerate(one.shape)]
        if list(many.shape) == longer and size > 1:
            yield many.narrow(axis, place * one.shape[axis], one.shape[axis])
            yield many.index_select(axis, torch.arange(place, many.shape[axis], size))


def _apart(found: Tensor, expected: Tensor, floor: float) -> float:
    """The largest difference of an entry, relative to its size or `floor`; infinite where the shapes differ."""
    if found.shape != expected.shape:
        return float("inf")
    found, expected = found.double(), expected.double()
    same = (found == expected) | (found.isnan() & expected.isnan())
    if bool(same.all()):
        return 0.0
    difference = (found - expected).abs() / expected.abs().clamp_min(floor)
    return float(difference.masked_fill(same, 0.0).nan_to_num(nan=torch.inf).max())


def _floor(values: Tensor) -> float:
    """The size below which no output is judged by its own (see the module)."""
    size = values.abs().double()
    told = size.isfinite() & (size > 0)
    varies = (values != values[:1]).any(0).expand(values.shape) if values.dim() else told
    told = told & varies if bool((told & varies).any()) else told
    middle = _upper_median(size[told])
    return max(middle, min(1.0, float(size[told].max()))) if middle else 1.0


def _upper_median(sizes: Tensor) -> float:
    """The middle one of those that are not 0, of an even number the larger one; 0 if there is none."""
    ordered = sizes[sizes > 0].sort().values
    return float(ordered[len(ordered) // 2]) if len(ordered) else 0.0


def _weights(output: Tensor) -> Tensor:
    """Between 1 and 3, of the shape of one record's outputs."""
    return (2 + torch.arange(output.numel(), dtype=torch.float64).sin()).reshape(output.shape).to(output.dtype)


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def _generators() -> tuple[Any, ...]:
    """Where torch's, NumPy's and Python's global generators stand."""
    numbers = np.random.get_state(legacy=False)  # noqa: NPY002 - the one that a model may draw from
    return torch.get_rng_state().numpy().tobytes(), str(numbers), random.getstate()


def _seeded_generators(seed: int = 0) -> tuple[Any, ...]:
    """The same start for every call, so that what a model draws does not look like something that it keeps."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    return _generators()


@contextmanager
def _generators_put_back() -> Iterator[None]:
    numbers, words = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        _seeded_generators()
        try:
            yield
        finally:
            np.random.set_state(numbers)  # noqa: NPY002
            random.setstate(words)
