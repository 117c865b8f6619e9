"""What `probe` says of models that break a property of training, each with its layer, and of models that keep all."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dpbench.catalog import find
from dpbench.errors import DpbenchError
from dpbench.plan.cache import Cache
from dpbench.plan.parts import build_mechanism, dataset_source
from dpbench.plan.planning import Choices, Run, make_plan
from dpbench.plan.probe import (
    AGAIN,
    ALONE,
    BUFFERS,
    BUILT,
    GRADIENTS,
    INPUTS,
    PARAMETERS,
    RANDOM,
    STACK,
    TRAINED,
    probe_model,
    refuse_model,
    try_model,
)
from dpbench.plan.trial import TooLarge, try_build, try_clipping, try_network, try_rule
from dpbench.spec.loading import load_specs
from dpbench.step.functional import evaluate, initial_parameters, network
from dpbench.store.records import Store
from dpbench.training.execution import Execution
from dpbench.training.loop import Outcome, train

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE, CLASSES = (8, 8), 10
SPEC = """
kind: run
name: small
dataset: digits
model: {name: mlp, parameters: {hidden: [16]}}
mechanism: noisy_sgd
budget: {delta: 1e-4, noise_multiplier: 1.0}
training: {batch_size: 96, steps: 60, learning_rate: 0.5, clip_norm: 1.0}
seeds: 1
"""
Build = Callable[[], nn.Module]
Step = Callable[[nn.Module, Tensor], Tensor]


class Inner(nn.Module):
    """A step of somebody's own, (B, 8, 6) to (B, 8, 6); `made` adds what it keeps."""

    def __init__(self, step: Step, made: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.step = step
        made(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self, x)


def around(layer: nn.Module) -> nn.Module:
    """The layer in the middle of a network, as '1'."""
    return nn.Sequential(nn.Linear(8, 6), layer, nn.Flatten(), nn.Linear(48, CLASSES))


def own(step: Step, made: Callable[[nn.Module], Any] = lambda _: None) -> Build:
    return lambda: around(Inner(step, made))


def at_the_front(step: Step) -> Build:
    """The step as '0', on the inputs themselves."""
    return lambda: nn.Sequential(Inner(step, lambda _: None), nn.Flatten(), nn.Linear(64, CLASSES))


class Words(nn.Module):
    """An embedding of whole numbers."""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 6, **more)
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.words(x.flatten(1).clamp(0, 9).long()).mean(1))
        return scores


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module], width: int = 6, **more: Any) -> None:
        super().__init__()
        self.cell = kind(8, 6, **more)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.cell(x)[0][:, -1])
        return scores


class Stepwise(nn.Module):
    """A recurrent cell, written as a loop over places."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.cell = kind(8, 6)
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for place in x.unbind(1):
            state = self.cell(place, state)
        scores: Tensor = self.out(state[0] if isinstance(state, tuple) else state)
        return scores


class Stateful(nn.Module):
    """Reads on where the last batch ended, as a model of streams does."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(6, 6, batch_first=True)
        self.state: Any = None

    def forward(self, x: Tensor) -> Tensor:
        output, self.state = self.cell(x, self.state)
        result: Tensor = output
        return result


def keeps(**buffers: Tensor) -> Callable[[nn.Module], None]:
    def made(module: nn.Module) -> None:
        for name, value in buffers.items():
            module.register_buffer(name, value.clone())

    return made


def halved_by_numpy(_: nn.Module, x: Tensor) -> Tensor:
    view = x.numpy() if not torch._C._functorch.is_functorch_wrapped_tensor(x) else np.zeros(1)
    view *= 0.5
    return x


def counting(module: nn.Module, x: Tensor) -> Tensor:
    module.count.add_(1)  # type: ignore[operator]
    return x


def counting_anew(module: nn.Module, x: Tensor) -> Tensor:
    module.count = module.count + 1  # type: ignore[operator, assignment]
    return x


def centred_by_running_mean(module: Any, x: Tensor) -> Tensor:
    module.mean = 0.9 * module.mean + 0.1 * x.mean((0, 1)).detach()
    result: Tensor = x - module.mean
    return result


def remembering(module: Any, x: Tensor) -> Tensor:
    before, module.before = getattr(module, "before", 0.0), x.detach().mean(0, keepdim=True)
    result: Tensor = x + before
    return result


def scaled_by_calls(module: Any, x: Tensor) -> Tensor:
    module.calls = getattr(module, "calls", 0) + 1
    result: Tensor = x * module.calls
    return result


def shrinking(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        module.weight.mul_(0.99)  # type: ignore[operator]
    result: Tensor = x * module.weight
    return result


def weighted(module: nn.Module) -> None:
    module.weight = nn.Parameter(torch.ones(6))


def reseeded(_: nn.Module, x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return F.dropout(x)


def packed(module: Any, x: Tensor) -> Tensor:
    sequences = nn.utils.rnn.pack_padded_sequence(x, torch.full((len(x),), 8), batch_first=True)
    result: Tensor = nn.utils.rnn.pad_packed_sequence(module.cell(sequences)[0], batch_first=True)[0]
    return result


def normalised(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.std(0, correction=0) + 1e-3)


def keeping(step: Callable[[Any, Tensor], Tensor], gate: Callable[[Tensor], bool]) -> Build:
    """A step that is done only where the gate is open."""
    return own(lambda module, x: step(module, x) if gate(x) else x)


def with_gradients(_: Tensor) -> bool:
    return torch.is_grad_enabled()


def has_gradient(x: Tensor) -> bool:
    return x.requires_grad


def scaled_by_the_largest(module: Any, x: Tensor) -> Tensor:
    module.top = max(getattr(module, "top", 1.0), float(x.detach().abs().max()))
    return x / float(module.top)


class Remembers(torch.autograd.Function):
    """Its backward pass has a memory."""

    last = 0.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del ctx
        factor = 1.0 + Remembers.last
        Remembers.last += float(gradients[0].norm())
        return factor * gradients[0]


class Mixes(torch.autograd.Function):
    """Its backward pass divides by the norm of all records' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del ctx
        return gradients[0] / gradients[0].norm()


def masked(value: float, first: int = 1) -> nn.Module:
    """The first scores are a number which hides what becomes of the others."""

    def mask(_: nn.Module, y: Tensor) -> Tensor:
        return torch.cat([torch.full_like(y[:, :first], value), y[:, first:]], 1)

    return Inner(mask, lambda _: None)


def hidden(step: Step, value: float, first: int = 1) -> Build:
    return lambda: nn.Sequential(around(Inner(step, lambda _: None)), masked(value, first))


LEAST = torch.finfo(torch.float32).min


def written_after_use(_: nn.Module, x: Tensor) -> Tensor:
    y = torch.tanh(x)
    y.mul_(2.0)
    return y


def halved_where_float32(_: nn.Module, x: Tensor) -> Tensor:
    whole = x.float()
    whole -= 0.5
    return whole.to(x.dtype)


def fourier(module: Any) -> None:
    module.frequencies = torch.randn(6, 6)


def frozen() -> nn.Module:
    """A layer that stays as it is, the same for every seed."""
    module = around(nn.ReLU())
    nn.init.eye_(module[3].weight.requires_grad_(False))  # type: ignore[index, union-attr, operator, arg-type]
    return module


HOSTILE: dict[str, tuple[Build, str, str | None]] = {
    # inputs
    "inplace ReLU first": (at_the_front(lambda _, x: x.relu_()), INPUTS, "'0' (Inner)"),
    "inplace ReLU of a view": (
        lambda: nn.Sequential(nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(64, CLASSES)),
        INPUTS,
        "'1' (ReLU)",
    ),
    "centred in place": (at_the_front(lambda _, x: x.sub_(x.mean((1, 2), keepdim=True))), INPUTS, "'0' (Inner)"),
    "through .data": (at_the_front(lambda _, x: (x.data.mul_(0.5), x)[1]), INPUTS, "'0' (Inner)"),
    "one place set": (at_the_front(lambda _, x: (x[:, 0].fill_(0), x)[1]), INPUTS, "'0' (Inner)"),
    "written by NumPy": (at_the_front(halved_by_numpy), INPUTS, "'0' (Inner)"),
    # parameters
    "max_norm that cuts": (lambda: Words(max_norm=0.1), PARAMETERS, "'words' (Embedding)"),
    "max_norm that does not yet": (lambda: Words(max_norm=100.0), PARAMETERS, "'words' (Embedding)"),
    "weight decay in forward": (own(shrinking, weighted), PARAMETERS, "'1' (Inner)"),
    # buffers
    "counter": (own(counting, keeps(count=torch.zeros(()))), BUFFERS, "'1' (Inner)"),
    "counter put anew": (own(counting_anew, keeps(count=torch.zeros(()))), BUFFERS, "'1' (Inner)"),
    "running mean": (own(centred_by_running_mean, keeps(mean=torch.zeros(6))), BUFFERS, "'1' (Inner)"),
    "running statistics": (
        lambda: around(nn.InstanceNorm1d(8, track_running_stats=True)),
        BUFFERS,
        "'1' (InstanceNorm1d)",
    ),
    "power iteration": (
        lambda: around(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))),
        BUFFERS,
        "'1.parametrizations.weight.0' (_SpectralNorm)",
    ),
    # randomness
    "F.dropout": (own(lambda _, x: F.dropout(x)), RANDOM, "'1' (Inner)"),
    "Dropout": (lambda: around(nn.Dropout(0.1)), RANDOM, "'1' (Dropout)"),
    "Dropout1d": (lambda: around(nn.Dropout1d()), RANDOM, "'1' (Dropout1d)"),
    "AlphaDropout": (lambda: around(nn.AlphaDropout()), RANDOM, "'1' (AlphaDropout)"),
    "RReLU": (lambda: around(nn.RReLU()), RANDOM, "'1' (RReLU)"),
    "dropout of a GRU": (
        lambda: Recurrent(nn.GRU, num_layers=2, dropout=0.3, batch_first=True),
        RANDOM,
        "'cell' (GRU)",
    ),
    "noise": (own(lambda _, x: x + torch.randn_like(x)), RANDOM, "'1' (Inner)"),
    "noise of a generator of its own": (
        own(
            lambda module, x: x + torch.rand(x.shape, generator=module.generator),  # type: ignore[arg-type]
            lambda module: setattr(module, "generator", torch.Generator()),
        ),
        RANDOM,
        "'1' (Inner)",
    ),
    "dropout under a seed": (own(reseeded), RANDOM, "'1' (Inner)"),
    "NumPy": (own(lambda _, x: x * np.random.rand()), RANDOM, "'1' (Inner)"),  # noqa: NPY002
    "Python": (own(lambda _, x: x * random.random()), RANDOM, "'1' (Inner)"),
    "NumPy's new generators": (own(lambda _, x: x * np.random.default_rng().random()), AGAIN, "'1' (Inner)"),
    # state
    "state of the call before": (own(remembering), AGAIN, "'1' (Inner)"),
    "calls counted in an attribute": (own(scaled_by_calls), AGAIN, "'1' (Inner)"),
    "an LSTM's last state": (lambda: around(Stateful()), AGAIN, "'1' (Stateful)"),
    # batches
    "BatchNorm1d": (lambda: around(nn.BatchNorm1d(8)), ALONE, "'1' (BatchNorm1d)"),
    "BatchNorm without statistics": (
        lambda: around(nn.BatchNorm1d(8, affine=False, track_running_stats=False)),
        ALONE,
        "'1' (BatchNorm1d)",
    ),
    "BatchNorm in eval mode": (lambda: around(nn.BatchNorm1d(8)).eval(), ALONE, "'1' (BatchNorm1d)"),
    "BatchNorm of vectors": (
        lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, CLASSES)),
        ALONE,
        "'1' (BatchNorm1d)",
    ),
    "statistics by hand": (own(lambda _, x: normalised(x)), ALONE, "'1' (Inner)"),
    "F.batch_norm": (own(lambda _, x: F.batch_norm(x, None, None, training=True)), ALONE, "'1' (Inner)"),
    "softmax over records": (own(lambda _, x: x.softmax(0)), ALONE, "'1' (Inner)"),
    "norm over all": (own(lambda _, x: x / x.norm()), ALONE, "'1' (Inner)"),
    "a neighbour's little": (own(lambda _, x: x + 1e-6 * x.roll(1, 0)), ALONE, "'1' (Inner)"),
    "the first record's": (own(lambda _, x: x - x[:1]), ALONE, "'1' (Inner)"),
    "squeezed": (
        lambda: nn.Sequential(around(nn.ReLU()), Inner(lambda _, x: x.squeeze(), lambda _: None)),
        ALONE,
        "'1' (Inner)",
    ),
    "the size of the batch": (own(lambda _, x: x / len(x)), ALONE, "'1' (Inner)"),
    "only pairs": (own(lambda _, x: normalised(x) if len(x) == 2 else x), ALONE, "'1' (Inner)"),
    "only large batches": (own(lambda _, x: normalised(x) if len(x) > 8 else x), ALONE, "'1' (Inner)"),
    "only in eval mode": (own(lambda module, x: x if module.training else normalised(x)), ALONE, "'1' (Inner)"),
    "LSTM without batch_first": (lambda: Recurrent(nn.LSTM), ALONE, "'cell' (LSTM)"),
    "GRU without batch_first": (lambda: nn.Sequential(Recurrent(nn.GRU)), ALONE, "'0.cell' (GRU)"),
    "attention without batch_first": (
        lambda: around(nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0)),
        ALONE,
        "'1.self_attn' (MultiheadAttention)",
    ),
    # only with gradients
    "the largest so far": (keeping(scaled_by_the_largest, with_gradients), AGAIN, None),
    "a state where there is a gradient": (keeping(remembering, has_gradient), AGAIN, "'1' (Inner)"),
    "a count where there is a gradient": (keeping(scaled_by_calls, has_gradient), AGAIN, "'1' (Inner)"),
    "dropout with gradients": (keeping(lambda _, x: F.dropout(x), with_gradients), RANDOM, "'1' (Inner)"),
    "running mean with gradients": (
        own(
            lambda module, x: centred_by_running_mean(module, x) if torch.is_grad_enabled() else x,
            keeps(mean=torch.zeros(6)),
        ),
        BUFFERS,
        "'1' (Inner)",
    ),
    "inputs with gradients": (
        at_the_front(lambda _, x: x.mul_(0.9) if torch.is_grad_enabled() else x),
        INPUTS,
        "'0' (Inner)",
    ),
    "statistics with gradients": (
        keeping(lambda _, x: x - 0.5 * x.mean(0), has_gradient),
        ALONE,
        "'1' (Inner)",
    ),
    "a backward pass with a memory": (own(lambda _, x: Remembers.apply(x)), AGAIN, None),  # type: ignore[no-untyped-call]
    "a backward pass that mixes": (own(lambda _, x: Mixes.apply(x)), ALONE, None),  # type: ignore[no-untyped-call]
    "written after its use": (own(written_after_use), GRADIENTS, None),
    "no gradient": (
        lambda: nn.Sequential(around(nn.ReLU()), Inner(lambda _, x: x.detach(), lambda _: None)),
        GRADIENTS,
        None,
    ),
    # behind large outputs
    "statistics beside a mask": (hidden(lambda _, x: normalised(x), LEAST), ALONE, "'0.1' (Inner)"),
    "statistics beside many masks": (hidden(lambda _, x: normalised(x), -1e12, 8), ALONE, "'0.1' (Inner)"),
    "a state beside a mask": (hidden(remembering, LEAST), AGAIN, "'0.1' (Inner)"),
    # in the dtype of training
    "a copy that is none": (at_the_front(halved_where_float32), INPUTS, "'0' (Inner)"),
    # constants
    "random constants": (own(lambda module, x: x @ module.frequencies.to(x), fourier), BUILT, "'1' (Inner)"),  # type: ignore[operator, arg-type]
    # stacks
    "packed sequence": (
        own(packed, lambda module: setattr(module, "cell", nn.GRU(6, 6, batch_first=True))),
        STACK,
        "'1' (Inner)",
    ),
    "a decision by item()": (own(lambda _, x: x if bool((x * 0).sum() == 0) else -x), STACK, "'1' (Inner)"),
    # parameters without a gradient or a shape
    "lazy": (lambda: around(nn.LazyBatchNorm1d()), TRAINED, "'1' (LazyBatchNorm1d)"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_breaks_training_is_refused_with_its_layer(name: str) -> None:
    build, what, layer = HOSTILE[name]
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index, union-attr] # noqa: NPY002
    answers = probe_model(build, SHAPE, CLASSES)
    assert (what, layer) in [(one.what, one.layer) for one in answers if one.verdict == "refuted"], answers
    with pytest.raises(DpbenchError) as caught:
        try_model(build, SHAPE, CLASSES)
    assert layer is None or f"layer {layer}" in str(caught.value)
    assert what in str(caught.value)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index, union-attr] # noqa: NPY002
    assert torch.equal(states[0], after[0])
    assert states[1:] == after[1:]


def shared() -> nn.Module:
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), second, nn.Linear(64, CLASSES))


def zeros() -> nn.Module:
    module = nn.Linear(64, CLASSES)
    nn.init.zeros_(module.weight)
    return nn.Sequential(nn.Flatten(), module)


GOOD: dict[str, Build] = {
    "TransformerEncoderLayer": lambda: around(nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)),
    "LSTM": lambda: Recurrent(nn.LSTM, batch_first=True),
    "LSTM with projections": lambda: Recurrent(nn.LSTM, width=3, proj_size=3, batch_first=True),
    "dropout that one layer does not use": lambda: Recurrent(nn.LSTM, dropout=0.5, batch_first=True),
    "GRU": lambda: Recurrent(nn.GRU, width=12, num_layers=2, bidirectional=True, batch_first=True),
    "RNN": lambda: Recurrent(nn.RNN, nonlinearity="relu", bias=False, batch_first=True),
    "LSTMCell": lambda: Stepwise(nn.LSTMCell),
    "GRUCell": lambda: Stepwise(nn.GRUCell),
    "GroupNorm": lambda: around(nn.GroupNorm(2, 8)),
    "LayerNorm": lambda: around(nn.LayerNorm(6)),
    "InstanceNorm": lambda: around(nn.InstanceNorm1d(8, affine=True)),
    "Dropout(0)": lambda: around(nn.Dropout(0.0)),
    "F.dropout(0)": own(lambda _, x: F.dropout(x, 0.0)),
    "padding_idx": lambda: Words(padding_idx=0),
    "shared weights": shared,
    "zeros at the start": zeros,
    "weight norm": lambda: around(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, CLASSES)
    ),
    "inplace behind a layer": lambda: around(nn.ReLU(inplace=True)),
    "buffer that nobody writes": own(lambda module, x: x * module.scale, keeps(scale=torch.arange(6.0))),  # type: ignore[operator]
    "float32 only": own(lambda _, x: x.float()),
    "a softmax in float32": own(lambda _, x: (30 * x).softmax(-1, dtype=torch.float32).to(x.dtype)),
    "a mask": hidden(lambda _, x: x, LEAST),
    "many masks": hidden(lambda _, x: x, -1e12, 9),
    "scores that cancel": lambda: nn.Sequential(
        around(nn.ReLU()), Inner(lambda _, x: (40 * x).log_softmax(1), lambda _: None)
    ),
    "a copy": at_the_front(lambda _, x: x.clone().float().mul_(0.5)),
    "constants of no generator": own(
        lambda module, x: x @ module.frequencies.to(x),  # type: ignore[operator, arg-type]
        lambda module: setattr(module, "frequencies", torch.linspace(0, 1, 36).reshape(6, 6)),
    ),
    "a branch by gradients": keeping(lambda _, x: checkpoint(torch.tanh, x, use_reentrant=False), with_gradients),
    "a temperature": own(
        lambda module, x: x * module.t.exp(),  # type: ignore[operator, union-attr]
        lambda module: setattr(module, "t", nn.Parameter(torch.tensor(0.0))),
    ),
    "a parameter without elements": own(
        lambda _, x: x, lambda module: setattr(module, "none", nn.Parameter(torch.zeros(0)))
    ),
    "frozen": frozen,
    "outputs kept to look at": own(lambda module, x: (setattr(module, "seen", x), x)[1]),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_keeps_every_property_passes(name: str) -> None:
    answers = probe_model(GOOD[name], SHAPE, CLASSES)
    assert {one.verdict for one in answers} == {"holds"}, answers
    try_model(GOOD[name], SHAPE, CLASSES)


def test_everything_is_named_at_once() -> None:
    def build() -> nn.Module:
        return around(nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(), nn.RReLU(), Inner(remembering, lambda _: None)))

    with pytest.raises(DpbenchError) as caught:
        refuse_model(build, SHAPE, CLASSES)
    for layer in ("'1.0' (BatchNorm1d)", "'1.1' (Dropout)", "'1.2' (RReLU)"):
        assert f"layer {layer}" in str(caught.value)


def test_records_that_do_not_tell_decide_nothing() -> None:
    build = own(lambda _, x: normalised(x))
    (alone,) = [one for one in probe_model(build, SHAPE, CLASSES, inputs=torch.ones(5, *SHAPE)) if one.what == ALONE]
    assert alone.verdict == "undecided"
    real = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(0))
    with pytest.raises(DpbenchError, match=r"'1' \(Inner\)"):
        refuse_model(build, SHAPE, CLASSES, inputs=real)


def test_a_model_that_takes_nothing_decides_nothing() -> None:
    answers = probe_model(lambda: nn.Linear(7, 2), SHAPE, CLASSES)
    assert {one.verdict for one in answers[1:]} == {"undecided"}
    assert "mat1 and mat2 shapes cannot be multiplied" in answers[1].evidence


def test_words_are_tried_where_a_model_takes_no_other_number() -> None:
    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            rows: Tensor = self.words(x.long())
            return rows.sum(1) - rows.sum((0, 1))

    with pytest.raises(DpbenchError, match=r"layer 'top' \(Sequence\): record 1 in a batch of 2"):
        refuse_model(Sequence, (6,), 4)


# What stands behind the probe


def test_evaluation_leaves_the_test_set_and_says_who_writes() -> None:
    build = at_the_front(lambda _, x: x.clamp_(0.2, 0.8))
    net, theta_RP = network(build()), initial_parameters(build, 0)[None]
    inputs = torch.rand(9, *SHAPE, generator=torch.Generator().manual_seed(0))
    kept = inputs.clone()
    with pytest.raises(DpbenchError, match="writes into its inputs"):
        evaluate(net, theta_RP, inputs, torch.zeros(9, dtype=torch.int64), 4)
    assert torch.equal(inputs, kept)


def test_a_factory_builds_anew() -> None:
    module = around(nn.ReLU())
    with pytest.raises(DpbenchError, match="same module twice"):
        try_model(lambda: module, SHAPE, CLASSES)


def test_an_output_is_one_tensor() -> None:
    with pytest.raises(DpbenchError, match="output is a tuple"):
        try_model(lambda: nn.LSTM(8, 10, batch_first=True), SHAPE, CLASSES)


# Before and while training


def digits_runs(folder: Path) -> tuple[Run, ...]:
    (folder / "spec.yaml").write_text(SPEC)
    specs = load_specs([folder / "spec.yaml"], allow_code=True)
    return make_plan(specs, Store(folder / "out"), Choices(device="cpu")).runs


def trained(folder: Path, build: Build) -> list[Outcome]:
    """A few steps of a run on digits whose model is put in the spec's place, so past what the plan finds out."""
    runs = digits_runs(folder)
    data = dataset_source(runs[0].spec).load(None)
    return list(train(runs, data, build_mechanism(runs[0].spec), build, Execution()))


def on_digits(step: Step, made: Callable[[nn.Module], Any] = lambda _: None) -> Build:
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 48), Inner(step, made), nn.Linear(48, CLASSES))


def test_the_data_s_own_records_are_tried_before_training(tmp_path: Path) -> None:
    """A model that mixes what lies on the grid of 16 grey levels, which no random record does."""

    class Gridded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(64, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.out(x.flatten(1))
            if torch._C._functorch.is_functorch_wrapped_tensor(scores):
                return scores
            return normalised(scores) if bool((16 * x == (16 * x).round()).all()) else scores

    refuse_model(Gridded, (1, 8, 8), CLASSES)
    with pytest.raises(DpbenchError, match=r"layer 'top' \(Gridded\): record 1 in a batch of 2"):
        trained(tmp_path, Gridded)


def test_a_model_that_bides_its_time_ends_no_run(tmp_path: Path) -> None:
    """From its 40th call on it counts evaluations in a buffer, which the probe cannot know."""

    def late(module: Any, x: Tensor) -> Tensor:
        module.calls = getattr(module, "calls", 0) + 1
        if module.calls > 40 and not torch.is_grad_enabled():
            module.count.add_(1)
        return x

    with pytest.raises(DpbenchError, match="changed the data, its parameters or its buffers in place"):
        trained(tmp_path, on_digits(late, keeps(count=torch.zeros(()))))


def test_what_an_engine_cannot_differentiate_is_a_sentence() -> None:
    """No rule for vmap backwards: torch's own error names no layer."""

    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            del ctx
            return x / 2

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            del ctx
            return gradients[0] / 2

    vmap, loop = find("clipping", "vmap"), find("clipping", "loop")
    build = own(lambda _, x: Halved.apply(x))  # type: ignore[no-untyped-call]
    with pytest.raises(DpbenchError, match=r"engine vmap: layer '1' \(Inner\) stops with RuntimeError: In order"):
        try_clipping([vmap], build, SHAPE)
    try_clipping([vmap, loop], lambda: around(nn.ReLU()), SHAPE)


@pytest.mark.parametrize("width", [10**8, 10**13])
def test_a_model_too_large_to_try_is_refused_before_it_takes_memory(width: int) -> None:
    """The second one fits nowhere: what allocated it would say so in other words."""
    build = partial(find("models", "mlp").load(), SHAPE, CLASSES, hidden=(width,))
    with pytest.raises(TooLarge, match=f"{75 * width + 10:,} parameters: expected at most 1,000,000,000"):
        try_build(build, SHAPE, CLASSES)


def test_a_shown_plan_tries_no_large_model_and_a_run_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "large.yaml").write_text(
        "kind: run\nname: large\ndataset: digits\nmodel: {name: mlp, parameters: {hidden: [40]}}\n"
        "mechanism: noisy_sgd\ntraining: {batch_size: 64, steps: 5, learning_rate: 1, clip_norm: 1}\nseeds: 1\n"
        "budget: {delta: 1e-4, noise_multiplier: 1}\n"
    )
    tried: list[str] = []
    monkeypatch.setattr("dpbench.plan.planning.try_network", lambda *_: tried.append("network"))
    monkeypatch.setattr("dpbench.plan.trial.MOST_TRIED", 3009)  # it has 3010
    for every_epsilon in (True, False):
        made = make_plan(
            load_specs([tmp_path / "large.yaml"]), Store(tmp_path), Choices(), every_epsilon=every_epsilon, kept=Cache()
        )
        assert made.runs[0].estimate
        assert tried == ["network"] * (not every_epsilon)


def test_a_large_model_is_tried_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpbench.plan.probe.MOST_DOUBLES", 10)
    seen: list[tuple[torch.dtype, int]] = []

    def noted(_: nn.Module, x: Tensor) -> Tensor:
        seen.append((x.dtype, len(x)))
        return x

    try_network([find("clipping", "vmap")], own(noted), SHAPE, CLASSES)
    assert {dtype for dtype, _ in seen} == {torch.float32}
    with pytest.raises(DpbenchError, match="draws random numbers"):
        try_model(own(lambda _, x: F.dropout(x, 0.5)), SHAPE, CLASSES)


def test_the_rule_of_microbatches_is_tried() -> None:
    """A decision by a number works for one network and not for groups of them."""
    decides = own(lambda _, x: x if float(x.sum()) > 0 else -x)
    mechanism = find("mechanisms", "microbatched_sgd").load()()
    with pytest.raises(DpbenchError, match=r"the rule Microbatches: layer '1' \(Inner\) stops with RuntimeError: vmap"):
        try_rule(mechanism, decides, SHAPE)
    try_rule(mechanism, lambda: around(nn.ReLU()), SHAPE)
