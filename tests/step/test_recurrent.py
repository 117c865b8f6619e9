"""torch's recurrent layers: written out they are torch's own, and models of them train and are evaluated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from dpbench.catalog import catalog
from dpbench.errors import DpbenchError
from dpbench.plan.parts import build_mechanism, dataset_source, model_builder
from dpbench.plan.planning import Choices, make_plan
from dpbench.spec.loading import load_specs
from dpbench.step.functional import evaluate, initial_parameters, network
from dpbench.step.recurrent import WrittenOut
from dpbench.store.records import Store
from dpbench.training.execution import Execution
from dpbench.training.loop import train

pytestmark = pytest.mark.usefixtures("one_thread")

RUNS, BATCH, PLACES, INPUTS, HIDDEN = 3, 4, 5, 3, 4
Kind = Callable[..., Any]
KINDS: dict[str, tuple[Kind, dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm proj": (nn.LSTM, {"proj_size": 2}),
    "gru": (nn.GRU, {}),
    "rnn tanh": (nn.RNN, {}),
    "rnn relu": (nn.RNN, {"nonlinearity": "relu"}),
}
LAYOUTS = [
    {"num_layers": layers, "bidirectional": both, "bias": bias, "batch_first": first}
    for layers, both, bias, first in itertools.product((1, 2), (False, True), (True, False), (True, False))
]


class Wrapped(nn.Module):
    """All that a recurrent layer gives, in one tensor; the first state is given, or it is not."""

    def __init__(self, cell: Any, state: Any) -> None:
        super().__init__()
        self.cell = cell
        self.state = state

    def forward(self, x: Tensor) -> Tensor:
        output, last = self.cell(x) if self.state is None else self.cell(x, self.state)
        return torch.cat([output.flatten(), *(part.flatten() for part in ((last,) if torch.is_tensor(last) else last))])


def first_state(cell: Any, batch: tuple[int, ...]) -> Any:
    generator = torch.Generator().manual_seed(4)
    rows = cell.num_layers * (2 if cell.bidirectional else 1)

    def of(width: int) -> Tensor:
        return torch.randn(rows, *batch, width, generator=generator, dtype=torch.float64)

    hidden = of(cell.proj_size or HIDDEN)
    return (hidden, of(HIDDEN)) if isinstance(cell, nn.LSTM) else hidden


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: " ".join(map(str, layout.values())))
@pytest.mark.parametrize("name", KINDS)
def test_written_out_is_torch_s_own(name: str, layout: dict[str, Any]) -> None:
    """Outputs and last states of every run of a stack, float64, batches and single sequences."""
    kind, more = KINDS[name]
    generator = torch.Generator().manual_seed(0)
    for batch, given in itertools.product(((BATCH,), ()), (False, True)):
        cell = kind(INPUTS, HIDDEN, **more, **layout).double()
        net = network(Wrapped(cell, first_state(cell, batch) if given else None))
        theta_RP = 0.7 * torch.randn(RUNS, net.size, generator=generator, dtype=torch.float64)
        shape = (*batch, PLACES, INPUTS) if layout["batch_first"] else (PLACES, *batch, INPUTS)
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        named = net.split(theta_RP)
        found = vmap(net.outputs, in_dims=(0, None))(named, x)
        for run in range(RUNS):
            own = net.outputs({key: value[run] for key, value in named.items()}, x)
            assert float((found[run] - own).abs().max()) < 1e-12


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells_written_out_are_torch_s_own(kind: Kind, bias: bool) -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = kind(INPUTS, HIDDEN, bias=bias)

        def forward(self, x: Tensor) -> Tensor:
            state = self.cell(x[:, 1], self.cell(x[:, 0]))
            return torch.cat(state, 1) if isinstance(state, tuple) else state

    net = network(Steps().double())
    generator = torch.Generator().manual_seed(0)
    theta_RP = torch.randn(RUNS, net.size, generator=generator, dtype=torch.float64)
    x = torch.randn(BATCH, 2, INPUTS, generator=generator, dtype=torch.float64)
    named = net.split(theta_RP)
    found = vmap(net.outputs, in_dims=(0, None))(named, x)
    for run in range(RUNS):
        own = net.outputs({key: value[run] for key, value in named.items()}, x)
        assert float((found[run] - own).abs().max()) < 1e-12


class Reader(nn.Module):
    """A recurrent layer over rows of an image, and its last state's scores."""

    def __init__(self, kind: Kind, places: int, classes: int) -> None:
        super().__init__()
        self.cell = kind(places, 6, batch_first=True)
        self.out = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.cell(x.squeeze(1))[0][:, -1])
        return scores


def lstm(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Reader(nn.LSTM, input_shape[-1], classes)


def gru(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Reader(nn.GRU, input_shape[-1], classes)


def rnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Reader(nn.RNN, input_shape[-1], classes)


class Cells(nn.Module):
    """Every cell of torch, one after the other at every row of an image."""

    def __init__(self, places: int, classes: int) -> None:
        super().__init__()
        self.first = nn.LSTMCell(places, 5)
        self.second = nn.GRUCell(5, 4, bias=False)
        self.third = nn.RNNCell(4, 3)
        self.fourth = nn.RNNCell(3, 3, nonlinearity="relu")
        self.out = nn.Linear(3, classes)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, fourth = None, None, None, None
        for row in x.squeeze(1).unbind(1):
            first = self.first(row, first)
            second = self.second(first[0], second)
            third = self.third(second, third)
            fourth = self.fourth(third, fourth)
        scores: Tensor = self.out(fourth)
        return scores


def cells(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Cells(input_shape[-1], classes)


class Odd(nn.Module):
    """Parameters without axes and without elements."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.none = nn.Parameter(torch.zeros(0, 3))
        self.out = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(x.flatten(1)) * self.temperature
        return scores


def odd(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Odd(math.prod(input_shape), classes)


class Queries(nn.Module):
    """A view of a parameter goes into a layer."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.ones(1, 4))
        self.mix = nn.Bilinear(4, inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.mix(self.query.expand(len(x), -1), x.flatten(1))
        return scores


def queries(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Queries(math.prod(input_shape), classes)


SPEC = """
kind: run
name: rows
dataset: digits
model: {name: "tests.step.test_recurrent:%(model)s"}
mechanism: %(mechanism)s
budget: {delta: 1e-4, noise_multiplier: 1.0}
training: {batch_size: 32, steps: 2, learning_rate: 0.5, clip_norm: 1.0}
seeds: 2
"""

ENGINES = {
    **{name: f"{{name: noisy_sgd, parameters: {{clipping: {name}}}}}" for name in sorted(catalog("clipping"))},
    "projections": "{name: dp_sgd_jl, parameters: {projections: 3}}",
    "projections backwards": "{name: dp_adam_jl, parameters: {projections: 3, way: vjp}}",
    "microbatches": "{name: microbatched_sgd, parameters: {microbatch_size: 4}}",
    "importance sampling": "dpis",
}


@pytest.mark.parametrize(
    ("engine", "model"),
    [*itertools.product(ENGINES, ["lstm", "gru", "rnn", "cells", "odd"]), ("loop", "queries")],
)
def test_models_train_and_are_evaluated(engine: str, model: str, tmp_path: Path) -> None:
    """A plan takes recurrent models and odd parameters, and two runs of a stack end with an accuracy."""
    text = SPEC % {"model": model, "mechanism": ENGINES[engine]}
    if ENGINES[engine] == "dpis":
        text = text.replace("noise_multiplier: 1.0", "epsilon: 3")
    (tmp_path / "spec.yaml").write_text(text)
    specs = load_specs([tmp_path / "spec.yaml"], allow_code=True)
    runs = make_plan(specs, Store(tmp_path / "out"), Choices(device="cpu")).runs
    spec = runs[0].spec
    source = dataset_source(spec)
    outcomes = list(
        train(runs, source.load(None), build_mechanism(spec), model_builder(spec, source), Execution(), smoke=True)
    )
    assert len(outcomes) == 2
    for outcome in outcomes:
        assert outcome.error is None
        assert outcome.result is not None
        assert 0 <= outcome.result["result"]["test_accuracy"] <= 1


@pytest.mark.parametrize("build", [lstm, gru, rnn])
def test_evaluation_is_the_fused_layer_s(build: Callable[..., nn.Module]) -> None:
    """Loss and accuracy of each run of a stack, against the module itself with that run's parameters."""
    shape, classes = (1, 8, 8), 10
    net = network(build(shape, classes))
    theta_RP = torch.stack([initial_parameters(lambda: build(shape, classes), seed) for seed in range(RUNS)])
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.rand(40, *shape, generator=generator), torch.randint(classes, (40,), generator=generator)
    loss_R, accuracy_R = evaluate(net, theta_RP, inputs, targets, 16)
    for run in range(RUNS):
        module = build(shape, classes)
        nn.utils.vector_to_parameters(theta_RP[run], module.parameters())
        with torch.no_grad():
            scores = module(inputs)
        assert float(loss_R[run]) == pytest.approx(float(nn.functional.cross_entropy(scores, targets)), abs=1e-6)
        assert float(accuracy_R[run]) == pytest.approx(float((scores.argmax(1) == targets).double().mean()))


def test_a_packed_sequence_is_refused_in_a_sentence() -> None:
    cell = nn.LSTM(INPUTS, HIDDEN, batch_first=True)

    def last(x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.full((BATCH,), PLACES), batch_first=True)
        result: Tensor = cell(packed)[1][0]
        return result

    with WrittenOut(), pytest.raises(DpbenchError, match="packed sequence: give whole sequences"):
        vmap(last)(torch.zeros(RUNS, BATCH, PLACES, INPUTS))
