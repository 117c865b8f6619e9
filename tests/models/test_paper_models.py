"""Internal: recurrent layers under torch.func are torch's own, weight by weight.

The papers' models: their printed counts, their layers, and recurrent layers under torch.func.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vmap

from dpbench.clipping.rules.none import Unclipped
from dpbench.models import (
    _recurrent,
    alexnet,
    dpis_rnn,
    imdb_lstm,
    imdb_two_lstm,
    next_word_lstm,
    next_word_mlp,
    papernot_cnn,
    text_transformer,
    vgg13,
)
from dpbench.models._recurrent import BidirectionalLSTM, WordEmbedding
from dpbench.plan.probe import try_model
from dpbench.step.clipped_sum import Examples
from dpbench.step.functional import evaluate, initial_parameters, network
from dpbench.step.operators import Watch
from dpbench.step.recurrent import WrittenOut

pytestmark = pytest.mark.usefixtures("one_thread")

COLOUR, GREY = (3, 32, 32), (1, 28, 28)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("build", "printed"),
    [
        (lambda: papernot_cnn.model(COLOUR, 10), 623_146),  # jl2021, Section 3.2
        (lambda: papernot_cnn.model(COLOUR, 10, head="convolution"), 605_226),  # Papernot et al. 2021
        (lambda: alexnet.model(GREY, 10), 21_598_922),  # jl2021, Table 4
        (lambda: vgg13.model(COLOUR, 10), 32_394_562),  # jl2021, Table 5
        (lambda: imdb_lstm.model((150,), 2), 598_274),  # jl2021, Table 3
    ],
    ids=["papernot_cnn full", "papernot_cnn convolution", "alexnet", "vgg13", "imdb_lstm"],
)
def test_printed_count(build: Callable[[], nn.Module], printed: int) -> None:
    assert count(build()) == printed


def test_what_no_paper_prints_is_what_the_files_say() -> None:
    """VGG13 with the three fully connected layers of the words, AlexNet on colour, and recurrent networks by hand."""
    assert count(vgg13.model(COLOUR, 10, hidden=(4096, 4096))) == 28_328_522
    assert count(alexnet.model(COLOUR, 10)) == 21_622_154
    two_lstms = 8 * 64 * (64 + 64 + 1) + 8 * 32 * (128 + 32 + 1)  # bu2020, Table 3: TensorFlow's tutorial
    assert count(imdb_two_lstm.model((256,), 2)) == 64 * 10_000 + two_lstms + (64 + 1) * 64 + (64 + 1) * 2
    four_layers = (100 + 1) * 32 + 2 * 4 * 32 * (32 + 32 + 1) + (64 + 1) * 16 + (16 + 1) * 2
    assert four_layers == 20_946
    assert count(dpis_rnn.model((80, 100), 2)) == count(dpis_rnn.model((80,), 2, embedding="drawn")) == four_layers
    assert count(dpis_rnn.model((80,), 2)) == four_layers + 20_000 * 100
    words = 36_743  # dplis2021, Section 5.1
    dense = 21 * 500 + 501 * 250 + 251 * 50 + 51 * words
    assert count(next_word_mlp.model((20,), words)) == dense
    assert count(next_word_mlp.model((20,), words, embedding=7)) == dense + 7 * words + 20 * 6 * 500
    assert count(next_word_lstm.model((20,), words)) == 256 * words + 4 * 96 * (256 + 96 + 2) + 97 * words


def shapes(module: nn.Module, shape: tuple[int, ...], kinds: tuple[type[nn.Module], ...]) -> list[tuple[int, ...]]:
    """The shapes after the layers of the given kinds, for one record of zeros."""
    seen, value = [], torch.zeros(1, *shape)
    for layer in module.children():
        value = layer(value)
        if isinstance(layer, kinds):
            seen.append(tuple(value.shape[1:]))
    return seen


def test_layers_have_the_shapes_of_the_papers() -> None:
    pools = (nn.AvgPool2d, nn.MaxPool2d, nn.Linear)
    papernot = shapes(papernot_cnn.model(COLOUR, 10), COLOUR, (nn.Conv2d, *pools))
    assert papernot == [
        *[(32, 32, 32), (32, 32, 32), (32, 16, 16), (64, 16, 16), (64, 16, 16), (64, 8, 8)],
        *[(128, 8, 8), (128, 8, 8), (128, 4, 4), (256, 4, 4), (10,)],
    ]
    vgg = shapes(vgg13.model(COLOUR, 10), COLOUR, pools)
    assert vgg == [(64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2), (512, 1, 1), (4096,), (4096,), (1000,), (10,)]
    for shape in (GREY, COLOUR):
        assert shapes(alexnet.model(shape, 10), shape, pools)[2:] == [(256, 1, 1), (4096,), (4096,), (10,)]


def test_the_mean_head_is_a_mean_over_all_places() -> None:
    module = papernot_cnn.model(COLOUR, 10, head="convolution").double()
    inputs = torch.rand(2, *COLOUR, dtype=torch.float64)
    places = nn.Sequential(*list(module.children())[:-2])(inputs)
    assert places.shape == (2, 10, 4, 4)
    assert torch.allclose(module(inputs), places.mean((2, 3)), rtol=0, atol=1e-14)


# Recurrent layers


def torch_twin(ours: BidirectionalLSTM, inputs: int) -> nn.LSTM:
    """torch's own LSTM with our weights; its gates stand in the same order and its second bias is zero."""
    twin = nn.LSTM(inputs, ours.hidden, bidirectional=True, batch_first=True).double()
    with torch.no_grad():
        for direction, suffix in enumerate(("", "_reverse")):
            getattr(twin, f"weight_ih_l0{suffix}").copy_(ours.weight_input[direction].T)
            getattr(twin, f"weight_hh_l0{suffix}").copy_(ours.weight_state[direction].T)
            getattr(twin, f"bias_ih_l0{suffix}").copy_(ours.bias[direction])
            getattr(twin, f"bias_hh_l0{suffix}").zero_()
    return twin


@pytest.mark.parametrize("sequences", [False, True])
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(("places", "inputs", "hidden"), [(1, 3, 2), (7, 5, 4), (40, 2, 8)])
def test_lstm_is_torch_s(
    places: int, inputs: int, hidden: int, alone: bool, sequences: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By torch's own kernel and written out. Float64: states stay in (-1, 1) and every place adds about ten roundings;
    gradients at most a hundred more.
    """
    monkeypatch.setattr(_recurrent, "_by_torch_alone", lambda: alone)
    ours = BidirectionalLSTM(inputs, hidden, sequences=sequences).double()
    nn.init.normal_(ours.bias)
    twin = torch_twin(ours, inputs)
    records = torch.randn(6, places, inputs, dtype=torch.float64)
    states, (last, _) = twin(records)
    expected, found = states if sequences else torch.cat(list(last), -1), ours(records)
    assert found.shape == expected.shape
    assert float((found - expected).detach().abs().max()) < 10 * places * 2.0**-52
    weights = torch.randn_like(expected)
    (here,) = torch.autograd.grad((found * weights).sum(), [ours.weight_state])
    both = [getattr(twin, f"weight_hh_l0{suffix}") for suffix in ("", "_reverse")]
    there = torch.stack([gradient.T for gradient in torch.autograd.grad((expected * weights).sum(), both)])
    assert float((here - there).abs().max()) < 1e3 * places * 2.0**-52 * (1 + float(there.abs().max()))


@pytest.mark.parametrize("alone", [True, False])
def test_imdb_two_lstm_is_torch_s(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Keras gives them, the second layer's last outputs: forwards at the last place, backwards at the first.

    The limit of `test_lstm_is_torch_s`, for two layers.
    """
    monkeypatch.setattr(_recurrent, "_by_torch_alone", lambda: alone)
    module = imdb_two_lstm.model((9,), 2, words=30, embedding=6, hidden=5, second=3).double()
    embedding, first, second, *rest = module.children()
    assert isinstance(first, BidirectionalLSTM)
    assert isinstance(second, BidirectionalLSTM)
    records = words_in((9,), 30, 6)
    states, _ = torch_twin(second, 10)(torch_twin(first, 6)(embedding(records))[0])
    expected = nn.Sequential(*rest)(torch.cat([states[:, -1, :3], states[:, 0, 3:]], -1))
    assert float((module(records) - expected).detach().abs().max()) < 2 * 10 * 9 * 2.0**-52


@pytest.mark.parametrize("sequences", [False, True])
def test_lstm_is_written_out_only_where_something_looks_at_it(sequences: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch.func or an engine that replaces operators; not in the plain pass, which leaves it to torch."""
    layer, inputs, fused = BidirectionalLSTM(3, 2, sequences=sequences), torch.randn(4, 5, 3), list[Any]()
    torch_s = torch.lstm
    monkeypatch.setattr(torch, "lstm", lambda *given: fused.append(given) or torch_s(*given))
    usual = layer(inputs)
    with WrittenOut(), torch.no_grad():
        plain = layer(inputs)
    # What cuDNN asks for: weights that are no transposed views, and to be told of a pass that is gone back.
    assert all(weight.is_contiguous() for given in fused for weight in given[2])
    assert [given[6] for given in fused] == [True, False]
    looked = torch.func.vmap(lambda one: layer(one[None])[0])(inputs)
    with Watch({}, {}, {}, None):
        engine = layer(inputs)
    assert len(fused) == 2
    for found in (plain, looked, engine):
        assert torch.allclose(found, usual, rtol=0, atol=1e-6)  # float32, states in (-1, 1), five places


def test_a_stack_without_privacy_goes_by_torch_s_lstm_on_a_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run by run, because under `vmap` the loop over time is written out; on `meta`, for a GPU is the same to it."""
    calls, torch_s = list[Any](), torch.lstm
    monkeypatch.setattr(torch, "lstm", lambda *given: calls.append(given) or torch_s(*given))
    net = network(imdb_lstm.model((9,), 2, words=30, embedding=6, hidden=5).to("meta"), torch.device("meta"))
    theta_RP = torch.empty(3, net.size, device="meta")
    inputs_RBT, mask_RB = torch.empty(3, 4, 9, device="meta"), torch.ones(3, 4, dtype=torch.bool, device="meta")
    targets_RB = torch.zeros(3, 4, dtype=torch.int64, device="meta")
    evaluate(net, theta_RP, inputs_RBT[0], targets_RB[0], 4)
    assert len(calls) == 3
    Unclipped().summed(Any, net, theta_RP, Examples(inputs_RBT, targets_RB, mask_RB), torch.ones(3), 4)
    assert len(calls) == 6


def test_lstm_starts_like_keras() -> None:
    layer = BidirectionalLSTM(5, 4)
    eye = layer.weight_state.detach() @ layer.weight_state.detach().mT
    assert torch.allclose(eye, torch.eye(4).expand(2, 4, 4), atol=1e-5)
    assert layer.bias.detach()[0].tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8
    largest = float(layer.weight_input.detach().abs().max())
    assert 0.8 * math.sqrt(6 / (5 + 16)) < largest <= math.sqrt(6 / (5 + 16))


def test_a_number_that_names_no_word_gives_nan_to_its_record_alone() -> None:
    module = nn.Sequential(WordEmbedding(5, 3), BidirectionalLSTM(3, 2))
    good = torch.tensor([[0.0, 4.0], [1.0, 2.0], [3.0, 3.0], [2.0, 0.0]])
    bad = good.clone()
    bad[1, 0], bad[2, 1], bad[3, 0] = -1.0, 5.0, 0.5
    found = module(bad).detach()
    assert found[1:].isnan().all(1).all()
    assert torch.equal(found[0], module(good)[0].detach())


def words_in(shape: tuple[int, ...], words: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    if len(shape) == 1:
        return torch.randint(words, (size, *shape), generator=generator).double()
    return torch.randn(size, *shape, generator=generator, dtype=torch.float64)


RECURRENT: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "imdb_lstm": ((9,), lambda: imdb_lstm.model((9,), 2, words=30, embedding=6, hidden=5)),
    "imdb_two_lstm": ((9,), lambda: imdb_two_lstm.model((9,), 2, words=30, embedding=6, hidden=5, second=3)),
    "dpis_rnn": ((9,), lambda: dpis_rnn.model((9,), 2, words=30, width=6)),
    "dpis_rnn drawn": ((9,), lambda: dpis_rnn.model((9,), 2, words=30, width=6, embedding="drawn", activation="tanh")),
    "dpis_rnn vectors": ((9, 6), lambda: dpis_rnn.model((9, 6), 2)),
    "next_word_lstm": ((9,), lambda: next_word_lstm.model((9,), 30, embedding=6, hidden=5)),
    "text_transformer": ((9,), lambda: text_transformer.model((9,), 2, words=30, width=6, layers=2, hidden=5)),
    "next_word_mlp": ((9,), lambda: next_word_mlp.model((9,), 30, hidden=(8, 4), embedding=6, activation="tanh")),
}


@pytest.mark.parametrize("name", sorted(RECURRENT))
def test_every_way_to_a_gradient_agrees(name: str) -> None:
    """Per-sample gradients by vmap are those of one record at a time; forward mode is their inner product.

    float64 with sums of at most 10^4 terms of size 1: 10^4 roundings.
    """
    shape, build = RECURRENT[name]
    net = network(build().double())
    theta_P = initial_parameters(build, 1).double()
    named = {key: value[0] for key, value in net.split(theta_P[None]).items()}
    inputs, targets = words_in(shape, 30, 8), torch.arange(8) % 2
    together = vmap(grad(net.example_loss), in_dims=(None, 0, 0))(named, inputs, targets)
    generator = torch.Generator().manual_seed(5)
    tangents = {key: torch.randn(value.shape, generator=generator, dtype=torch.float64) for key, value in named.items()}

    def losses(parameters: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(net.outputs(parameters, inputs), targets, reduction="none")

    forward = jvp(losses, (named,), (tangents,))[1]
    inner = sum((together[key].flatten(1) @ tangents[key].flatten() for key in named), torch.zeros(8).double())
    assert float((forward - inner).abs().max()) < 1e4 * 2.0**-53 * (1 + float(inner.abs().max()))
    module = build().double()
    nn.utils.vector_to_parameters(theta_P, module.parameters())
    for at in range(8):
        loss = nn.functional.cross_entropy(module(inputs[at : at + 1]), targets[at : at + 1])
        alone = torch.autograd.grad(loss, list(module.parameters()))
        for (key, _), gradient in zip(module.named_parameters(), alone, strict=True):
            assert float((together[key][at] - gradient).abs().max()) < 1e4 * 2.0**-53


def test_the_drawn_embedding_is_the_same_in_every_run() -> None:
    def build() -> nn.Module:
        return dpis_rnn.model((9,), 2, words=30, embedding="drawn")

    try_model(build, (9,), 2)  # refuses buffers that are filled at random
    tables = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        tables.append(dict(build().named_buffers())["0.table"])
    assert torch.equal(*tables)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: papernot_cnn.model((3, 7, 32), 10), "expected .* at least 8"),
        (lambda: papernot_cnn.model(COLOUR, 10, head="mean"), "head = 'mean': expected"),  # type: ignore[arg-type]
        (lambda: alexnet.model((3, 64, 64), 10), "expected .* from 5 to 32"),
        (lambda: vgg13.model((3, 31, 32), 10), "expected .* at least 32"),
        (lambda: vgg13.model(COLOUR, 10, hidden=(0,)), r"hidden = \(0,\): expected"),
        (lambda: imdb_lstm.model(COLOUR, 2), r"expected \(places,\)"),
        (lambda: imdb_lstm.model((9,), 2, hidden=0), "hidden = 0: expected"),
        (lambda: imdb_two_lstm.model(COLOUR, 2), r"expected \(places,\)"),
        (lambda: imdb_two_lstm.model((9,), 2, second=0), "second = 0: expected"),
        (lambda: dpis_rnn.model(COLOUR, 2), r"expected \(places,\) or"),
        (lambda: next_word_lstm.model(COLOUR, 2), r"expected \(places,\)"),
        (lambda: next_word_lstm.model((9,), 2, hidden=0), "hidden = 0: expected"),
        (lambda: next_word_mlp.model(COLOUR, 2), r"expected \(places,\)"),
        (lambda: next_word_mlp.model((9,), 2, embedding=-1), "embedding = -1: expected"),
        (lambda: dpis_rnn.model((9,), 2, words=0), "words = 0, width = 100: expected"),
        (lambda: dpis_rnn.model((9,), 2, embedding="glove"), "embedding = 'glove': expected"),  # type: ignore[arg-type]
    ],
)
def test_bad_parameters_are_named(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
