"""Internal: the terms of a layer's gradient, of which norms and sums of `ghost` are made.

The ghost engine on generated layers, against `loop` in float64; what it refuses; what it costs.

Without chance: Hypothesis runs derandomised. The limit is that of `clipping_reference`: 10^4 roundings of the sizes
that are added up, from sums of at most 600 terms in at most four layers, forwards and backwards, computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from dpbench.catalog import catalog, find
from dpbench.clipping import _ghost_terms, ghost, loop, vmap
from dpbench.clipping._ghost_terms import Convolution, Elementwise, Lookup, Product
from dpbench.clipping._measure import peak_bytes
from dpbench.clipping.rules import none
from dpbench.errors import DpbenchError
from dpbench.judging.checks import clipping_reference
from dpbench.plan.trial import try_clipping
from dpbench.step.clipped_sum import Clipped, Examples
from dpbench.step.functional import Network, network, smoothed
from tests.clipping.layer_configurations import convolutions

pytestmark = pytest.mark.usefixtures("one_thread")
CLASSES, PLACES = 3, 4


def stacked(module: nn.Module, runs: int, seed: int = 0) -> tuple[Network, Tensor]:
    """A network and float64 parameters (R, P) with entries of about 1/3."""
    net = network(module.double())
    generator = torch.Generator().manual_seed(seed)
    return net, torch.randn(runs, net.size, generator=generator, dtype=torch.float64) / 3


def examples(runs: int, inputs: Tensor, seed: int = 0) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(CLASSES, (runs, PLACES), generator=generator)
    mask_RB = torch.rand(runs, PLACES, generator=generator) < 0.8
    return Examples(inputs, targets, mask_RB)


def floats(runs: int, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 99)
    return torch.randn(runs, PLACES, *shape, generator=generator, dtype=torch.float64)


def words(runs: int, length: int, seed: int = 0) -> Tensor:
    """Few words, so that they repeat, with padding (0) at the end of each."""
    generator = torch.Generator().manual_seed(seed + 7)
    found = torch.randint(1, 6, (runs, PLACES, length), generator=generator)
    found[..., length - length // 3 :] = 0
    return found


def agree(module: nn.Module, inputs: Tensor, seed: int = 0, chunk: int = 3) -> Clipped:
    """`ghost` is `loop`, up to rounding: clip norms from far below the gradients' to far above. Gives back ghost's."""
    runs = len(inputs)
    net, theta_RP = stacked(module, runs, seed)
    given_ = examples(runs, inputs, seed)
    for clip in (0.01, 1.0, 1e6):
        clip_R = torch.full((runs,), clip, dtype=torch.float64)
        found = ghost.clipping(net, theta_RP, given_, clip_R, chunk)
        expected = loop.clipping(net, theta_RP, given_, clip_R, 1)
        for what, ratio, limit in clipping_reference.differences(found, expected, given_, clip_R, torch.float64):
            assert ratio <= limit, (what, ratio, limit)
    assert bool((expected.norm_RB[given_.mask_RB] > 0).all()), "gradients that vanish compare nothing"
    return found


class Head(nn.Module):
    """A layer, a smooth function, then a linear map of everything; `pick` takes the output out of what it returns."""

    def __init__(self, layer: nn.Module, inputs: Tensor, pick: Callable[[Any], Tensor] = lambda output: output) -> None:
        super().__init__()
        self.layer, self.pick = layer.double(), pick
        with torch.no_grad():
            width = pick(self.layer(inputs[0, :1])).numel()
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.pick(self.layer(x))).flatten(1))
        return out


@settings(derandomize=True, deadline=None, max_examples=60)
@given(convolutions(2), st.integers(1, 2), st.integers(6, 8), st.integers(0, 2**20))
def test_convolutions(drawn: tuple[int, dict[str, Any]], runs: int, side: int, seed: int) -> None:
    axes, settings_ = drawn
    inputs = floats(runs, settings_["in_channels"], *[side, side - 1][:axes], seed=seed)
    layer = (nn.Conv1d, nn.Conv2d)[axes - 1](**settings_)
    agree(Head(layer, inputs), inputs, seed)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(st.booleans(), st.lists(st.integers(1, 4), max_size=2), st.integers(1, 3), st.booleans(), st.integers(0, 2**20))
def test_linear_on_sequences(bias: bool, lead: list[int], runs: int, wide: bool, seed: int) -> None:
    """No position axis, one or two; wide weights take the Gram matrix, narrow ones do not."""
    inputs = floats(runs, *lead, 12 if wide else 3, seed=seed)
    agree(Head(nn.Linear(inputs.shape[-1], 40 if wide else 2, bias=bias), inputs), inputs, seed)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(st.sampled_from([None, 0, 3, -1]), st.integers(1, 7), st.integers(1, 3), st.integers(0, 2**20))
def test_embeddings(padding: int | None, length: int, runs: int, seed: int) -> None:
    inputs = words(runs, length, seed)
    agree(Head(nn.Embedding(6, 4, padding_idx=padding), inputs), inputs, seed)


NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm(5),
    "layer of two axes": lambda: nn.LayerNorm((6, 5)),
    "layer without bias": lambda: nn.LayerNorm(5, bias=False),
    "layer without parameters": lambda: nn.LayerNorm(5, elementwise_affine=False),
    "root mean square": lambda: nn.RMSNorm(5),
    "group": lambda: nn.GroupNorm(2, 4),
    "instance": lambda: nn.GroupNorm(4, 4),
}


@pytest.mark.parametrize("name", NORMS)
def test_normalisations(name: str) -> None:
    inputs = floats(2, 4, 6, 5)
    agree(Head(NORMS[name](), inputs), inputs)


RECURRENT: dict[str, Callable[..., nn.Module]] = {
    "rnn tanh": nn.RNN,
    "rnn relu": lambda *sizes, **more: nn.RNN(*sizes, nonlinearity="relu", **more),
    "lstm": nn.LSTM,
    "lstm with projections": lambda *sizes, **more: nn.LSTM(*sizes, proj_size=2, **more),
    "gru": nn.GRU,
}


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("more", [
    {"batch_first": True},
    {"batch_first": True, "bidirectional": True, "num_layers": 2},
    {"bias": False, "bidirectional": True},
])  # fmt: skip
def test_recurrent_layers(name: str, more: dict[str, Any]) -> None:
    """The whole output and the last states take part."""
    inputs = floats(2, 5, 3)
    layer = RECURRENT[name](3, 4, **more)

    def pick(found: Any) -> Tensor:
        output, last = found
        parts = [output, *(last if isinstance(last, tuple) else (last,))]
        return torch.cat([part.flatten() for part in parts])[None]

    if "batch_first" not in more:
        layer = Turned(layer)
    agree(Head(layer, inputs, pick), inputs)


CELLS: dict[str, Callable[..., nn.Module]] = {
    "lstm": nn.LSTMCell,
    "gru": nn.GRUCell,
    "rnn tanh": nn.RNNCell,
    "rnn relu": lambda *sizes, **more: nn.RNNCell(*sizes, nonlinearity="relu", **more),
}


class Steps(nn.Module):
    """A cell at every time, whose states are all given."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        states: list[Any] = [None]
        for now in x.unbind(1):
            states.append(self.cell(now, states[-1]))
        return torch.cat([torch.cat(state, 1) if isinstance(state, tuple) else state for state in states[1:]], 1)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_cells(name: str, bias: bool) -> None:
    inputs = floats(2, 5, 3)
    agree(Head(Steps(CELLS[name](3, 4, bias=bias)), inputs), inputs)


class Written(nn.Module):
    """Writes into the input of a layer after the layer has used it."""

    def __init__(self, how: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.one, self.two, self.how = nn.Linear(3, 4), nn.Linear(4, 4), how

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.one(x)) * 1.0
        y = self.two(h)
        self.how(h)
        scores: Tensor = y + h
        return scores


@pytest.mark.parametrize(
    "how", [lambda h: h.mul_(0.1), lambda h: h.view(-1)[:2].zero_(), torch.relu_], ids=["product", "view", "relu"]
)
def test_an_input_that_is_written_into_after_its_use_is_refused(how: Callable[[Tensor], Any]) -> None:
    with pytest.raises(DpbenchError, match=r"the input of layer 'two' \(Linear\) is written into after"):
        ghost.refuse(Written(how), torch.ones(3))
    ghost.refuse(Written(lambda h: 0.1 * h), torch.ones(3))


class Turned(nn.Module):
    """(N, T, I) to (T, N, I) for a layer that wants the time first."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        return self.layer(x.transpose(0, 1))


class Products(nn.Module):
    """Parameters in operators of their own: matrix products, stacked or not, sums, products, shapes that change."""

    def __init__(self) -> None:
        super().__init__()
        self.stack, self.again = nn.Parameter(torch.ones(2, 3, 4)), nn.Parameter(torch.ones(2, 4, 4))
        self.shift, self.scale = nn.Parameter(torch.ones(2, 4)), nn.Parameter(torch.ones(4))
        self.out, self.unused = nn.Parameter(torch.ones(12)), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, 3) both ways through two directions, as a recurrent layer does it."""
        both_DNTI = torch.stack([x, x.flip(1)])
        driven = both_DNTI.flatten(1, 2) @ self.stack + self.shift[:, None]
        driven = driven.reshape(2, *x.shape[:2], 4)
        state = torch.zeros_like(driven[:, :, 0])
        for driven_DNH in driven.unbind(2):
            state = torch.tanh(self.scale * (driven_DNH + torch.bmm(state, self.again)))
        return state.sum(0) @ self.out.view(4, CLASSES) + x.sum((1, 2))[:, None]


@pytest.mark.parametrize("chunk", [1, 4])
def test_parameters_in_operators_of_their_own(chunk: int) -> None:
    """A weight that is used at every time step, an expanded bias, and a parameter that is never used."""
    agree(Products(), floats(2, 5, 3), chunk=chunk)


MODELS = {name: entry.load() for name, entry in sorted(catalog("models").items())}
SHAPES = ((1, 8, 8), (1, 28, 28), (3, 32, 32), (7,), (2,))


@pytest.mark.parametrize("engine", [ghost, vmap], ids=["ghost", "vmap"])
@pytest.mark.parametrize("name", MODELS)
def test_every_model(name: str, engine: Any) -> None:
    """`loop`'s sum, by the first shape that the model takes, near its own initial parameters; narrower on VGG."""
    for shape in SHAPES:
        try:
            module = MODELS[name](shape, CLASSES, **({"hidden": (20, 10)} if name == "vgg13" else {}))
        except (ValueError, DpbenchError):
            continue
        break
    else:
        raise AssertionError(f"the model builds for none of {SHAPES}")
    generator = torch.Generator().manual_seed(0)
    numbers = len(shape) == 1  # of words
    inputs = torch.rand(1, 2, *shape, generator=generator, dtype=torch.float64)
    given_ = Examples((CLASSES * inputs).floor() if numbers else inputs, torch.tensor([[2, 0]]), torch.ones(1, 2) > 0)
    net = network(module)
    theta_RP = torch.cat([value.detach().flatten() for value in module.parameters()])[None].double()
    theta_RP += 0.01 * torch.randn(theta_RP.shape, generator=generator, dtype=torch.float64)
    clip_R = torch.full((1,), 0.1, dtype=torch.float64)
    found = engine.clipping(net, theta_RP, given_, clip_R, 2)
    expected = loop.clipping(net, theta_RP, given_, clip_R, 1)
    for what, ratio, limit in clipping_reference.differences(found, expected, given_, clip_R, torch.float64):
        assert ratio <= limit, (what, ratio, limit)


class Shared(nn.Module):
    """One weight as an embedding and as the output layer, and one convolution that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(6, 4, padding_idx=0), nn.Linear(4, 6, bias=False)
        self.out.weight = self.words.weight
        self.twice = nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x).mT
        h = self.twice(torch.tanh(self.twice(h)))
        out: Tensor = self.out(h.mean(2))
        return out


def test_shared_parameters() -> None:
    inputs = words(2, 6)
    agree(Shared(), inputs)
    agree(Shared(), inputs, chunk=1)


class Cancelling(nn.Module):
    """A wide linear layer whose output gradients add up to nearly zero over the positions, on nearly equal inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.head = nn.Linear(30, 40), nn.Linear(4 * 40, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.wide(1 + 1e-6 * x)
        out: Tensor = self.head((h - h.mean(1, keepdim=True)).flatten(1))
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cancellation_never_hides_a_gradient(dtype: torch.dtype) -> None:
    """Internal: norms of sums of outer products. This one is 10^-6 of its terms: a Gram matrix alone loses it.

    κ = 10^6 is the ratio of the terms' sizes to the norm. A formed gradient is off by about κ u, here by less than
    60 κ u for 120 terms per entry added in any order; a Gram matrix by κ² u.
    """
    net, theta_RP = stacked(Cancelling(), 1)
    given_ = examples(1, floats(1, 4, 30))
    # loss and head are left alone: the weight's terms only
    a = (1 + 1e-6 * floats(1, 4, 30)).to(dtype)
    g = floats(1, 4, 40, seed=5).to(dtype)
    g = g - g.mean(2, keepdim=True)
    found = _ghost_terms.norms([_ghost_terms.Product(a[:, :, None], g[:, :, None])], PLACES).double()
    formed = (g.double()[0].mT @ a.double()[0]).flatten(1).norm(dim=1)
    size = (a.double()[0].norm(dim=2) * g.double()[0].norm(dim=2)).sum(1)
    assert bool((formed < 1e-5 * size).all()), "it cancels"
    unit = torch.finfo(dtype).eps / 2
    assert bool(((found - formed).abs() <= 60 * unit * size).all())
    gram = ((a @ a.mT) * (g @ g.mT)).sum((2, 3)).clamp_min(0).sqrt()[0].double()
    assert bool(((gram - formed).abs() > 60 * unit * size).any()), "the plant: without the guard it would be lost"
    clip_R = torch.ones(1, dtype=torch.float64)
    whole = ghost.clipping(net, theta_RP, given_, clip_R, 4)
    expected = loop.clipping(net, theta_RP, given_, clip_R, 1)
    assert bool(((whole.sum_RP - expected.sum_RP).norm(dim=1) <= 1e-10 * expected.norm_RB.sum(1)).all())


class Bare(nn.Module):
    """A parameter in an operator of its own."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.inner(x)
        if self.kind == "sin":
            return h * self.scale.sin()
        if self.kind == "function":
            out: Tensor = Scaling.apply(h, self.scale)  # type: ignore[no-untyped-call]
            return out
        if self.kind == "both":
            return h * (self.scale * self.scale)
        if self.kind == "part":
            return h * self.scale[:1]
        if self.kind == "transposed":
            return F.linear(h, self.inner.weight.T)
        return F.linear(self.scale.unsqueeze(0), h)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x[:, None].expand(-1, 2, -1), torch.tensor([2]), batch_first=True)
        out: Tensor = self.cell(packed)[1][0]
        return out


class Attention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x)[0]


class Scaling(torch.autograd.Function):
    """value · weight with a backward pass of its own; the operator inside is known and must not hide the rest."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Any, weight: Any) -> Any:
        return value * weight

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        del output
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        value, weight = ctx.saved_tensors
        return gradients[0] * weight, (gradients[0] * value).sum(0)


REFUSED: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "bare": (lambda: Bare("sin"), ("'scale'", "layer 'top' (Bare)", "sin")),
    "two parameters": (lambda: Bare("both"), ("'scale'", "in a product with another parameter")),
    "autograd.Function": (lambda: Bare("function"), ("'scale'", "Scaling, an autograd.Function")),
    "part": (lambda: Bare("part"), ("'scale'", "__getitem__")),
    "transposed": (lambda: Bare("transposed"), ("'inner.weight'", "layer 'inner' (Linear)")),
    "parameter as input": (lambda: Bare("input"), ("'scale'", "used as an input")),
    "attention": (lambda: Attention(4, 2), ("'in_proj_weight'", "(Attention)", "multi_head_attention_forward")),
    "prelu": (lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU()), ("'1.weight'", "PReLU")),
    "packed": (Packed, ("'cell.weight_ih_l0'", "GRU", "packed")),
    "transposed convolution": (lambda: nn.Sequential(nn.ConvTranspose1d(4, 2, 1)), ("'0.weight'", "ConvTranspose1d")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_by_name(name: str) -> None:
    build, words_ = REFUSED[name]
    inputs = floats(1, 4, 1) if name == "transposed convolution" else floats(1, 4)
    module = build().double()
    with pytest.raises(DpbenchError) as caught:
        ghost.refuse(module, inputs[0, 0])
    assert all(word in str(caught.value) for word in ("engine ghost", *words_)), caught.value
    net, theta_RP = stacked(module, 1)
    with pytest.raises(DpbenchError, match="engine ghost"):
        ghost.clipping(net, theta_RP, examples(1, inputs), torch.ones(1), 4)


def test_plans_refuse_before_training() -> None:
    """As `resolve` does; an engine without a function `refuse` takes every model."""
    engines = [find("clipping", "loop"), find("clipping", "ghost")]
    state = torch.get_rng_state()
    try_clipping(engines, lambda: nn.Linear(4, 2), (4,))
    with pytest.raises(DpbenchError, match="'scale' of layer 'top'"):
        try_clipping(engines, lambda: Bare("sin"), (4,))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("more", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_embeddings_that_look_at_the_batch_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(DpbenchError, match=next(iter(more))):
        ghost.refuse(nn.Embedding(5, 2, **more), torch.tensor([1, 2]))


class Mixing(nn.Module):
    """Subtracts the mean of the batch, without saying so."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.linear(x)
        return h - h.detach().mean(0)


def test_examples_cannot_mix() -> None:
    """A module that mixes a batch without saying so sees batches of one, as in every other engine."""
    agree(Mixing(), floats(2, 4))


class Root(nn.Module):
    """A square root, whose gradient at 0 is infinite and times 0 not a number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4, bias=False), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x).abs().sqrt())
        return out


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_empty_places_and_places_that_are_not_finite(value: float) -> None:
    """At an empty place it adds nothing; at a filled one the sum is not finite, so that the run stops."""
    net, theta_RP = stacked(Root(), 1)
    good = examples(1, floats(1, 4))
    inputs = good.inputs.clone()
    inputs[0, 2] = value
    clip_R = torch.ones(1, dtype=torch.float64)
    for filled in (False, True):
        mask_RB = torch.tensor([[True, True, filled, True]])
        found = ghost.clipping(net, theta_RP, replace(good, inputs=inputs, mask_RB=mask_RB), clip_R, 4)
        assert bool(found.sum_RP.isfinite().all()) != filled
        if not filled:
            same = ghost.clipping(net, theta_RP, replace(good, mask_RB=mask_RB), clip_R, 4)
            assert all(torch.equal(a, b) for a, b in zip(vars(found).values(), vars(same).values(), strict=True))


@pytest.mark.parametrize("elements", [1, 100])
def test_parts_change_nothing(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Internal: how many examples are formed at a time, which hangs on memory: up to rounding, see `agree`."""
    monkeypatch.setattr(_ghost_terms, "_ELEMENTS", elements)
    inputs = floats(2, 2, 6)
    agree(Head(nn.Conv1d(2, 3, 3), inputs), inputs)
    inputs = words(2, 5)
    agree(Shared(), inputs)


@pytest.mark.parametrize("fault", ["bias", "padding", "shared", "patches"])
def test_planted_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Internal: mistakes put into the terms; each makes `agree` fail, so it has the power that it needs."""
    terms = ghost._terms

    def wrong(uses: Any, *rest: Any) -> Any:
        changes: dict[str, Any] = {"padding": {"padding_index": None}}
        uses = [replace(use, **changes.get(fault, {})) for use in uses if fault != "bias" or use.kind != "shift"]
        found = terms(uses, *rest)
        return {name: pieces[:1] if fault == "shared" else pieces for name, pieces in found.items()}

    monkeypatch.setattr(ghost, "_terms", wrong)
    if fault == "patches":
        pairs = _ghost_terms.Convolution.pairs
        turned = lambda term, rows: pairs(replace(term, a=term.a.flip(-1)), rows)  # noqa: E731
        monkeypatch.setattr(_ghost_terms.Convolution, "pairs", turned)
    with pytest.raises(AssertionError, match=r"sum|norm"):
        agree(Shared(), words(1, 6))


def test_memory_is_less_than_a_gradient_for_each_example() -> None:
    """64 examples of a model with 40,602 float32 parameters: 10 MB of gradients that are never there."""
    net = network(nn.Sequential(nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 2)))
    theta_RP = torch.randn(1, net.size, generator=torch.Generator().manual_seed(0)) / 10
    given_ = Examples(torch.ones(1, 64, 200), torch.zeros(1, 64, dtype=torch.int64), torch.ones(1, 64) > 0)
    work = (net, theta_RP, given_, torch.ones(1), 64)
    ghost.clipping(*work)  # what torch makes in a first call stays
    peak = peak_bytes(lambda: ghost.clipping(*work), theta_RP.device)
    assert 4 * net.size < peak < 64 * 4 * net.size / 4


SMOOTHED: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "linear": lambda: (Head(nn.Linear(3, 2), floats(1, 3)), floats(1, 3)),
    "wide": lambda: (Head(nn.Linear(12, 40), floats(1, 12)), floats(1, 12)),
    "positions": lambda: (Head(nn.Linear(12, 40), floats(1, 2, 12)), floats(1, 2, 12)),
    "convolution": lambda: (
        Head(nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), floats(1, 2, 6, 5)),
        floats(1, 2, 6, 5),
    ),
    "embedding": lambda: (Head(nn.Embedding(6, 4, padding_idx=0), words(1, 6)), words(1, 6)),
    "normalisation": lambda: (Head(nn.GroupNorm(2, 4), floats(1, 4, 3)), floats(1, 4, 3)),
    "recurrent": lambda: (
        Head(nn.LSTM(3, 4, batch_first=True), floats(1, 5, 3), lambda found: found[0]),
        floats(1, 5, 3),
    ),
    "shared": lambda: (Shared(), words(1, 6)),
}


@pytest.mark.parametrize("name", SMOOTHED)
@pytest.mark.parametrize("places", [1, 3])
def test_a_smoothed_loss(name: str, places: int) -> None:
    """The gradient of a mean over shifted parameters, clipped after the mean: `loop` differentiates the mean itself."""
    module, inputs = SMOOTHED[name]()
    net, theta_RP = stacked(module, 1)
    shifts_KP = torch.randn(places, net.size, generator=torch.Generator().manual_seed(5), dtype=torch.float64) / 3
    moved, given_ = smoothed(net, shifts_KP), examples(1, inputs)
    for clip in (0.01, 1.0, 1e6):
        clip_R = torch.full((1,), clip, dtype=torch.float64)
        found, expected = (
            ghost.clipping(moved, theta_RP, given_, clip_R, 3),
            loop.clipping(moved, theta_RP, given_, clip_R, 1),
        )
        for what, ratio, limit in clipping_reference.differences(found, expected, given_, clip_R, torch.float64):
            assert ratio <= limit, (what, ratio, limit)
    elsewhere = ghost.clipping(net, theta_RP, given_, clip_R, 3)
    assert float((elsewhere.sum_RP - found.sum_RP).abs().max()) > 1e-3, "the shifts change what is compared"


def test_the_places_of_a_smoothed_loss_share_the_input_of_the_first_layer() -> None:
    """Its weight has one position however many places there are; the next layer's inputs differ with the shifts."""
    net, theta_RP = stacked(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)), 1)
    moved = smoothed(net, torch.ones(4, net.size, dtype=torch.float64))
    given_ = examples(1, floats(1, 3))
    full = replace(given_, mask_RB=torch.ones_like(given_.mask_RB))
    terms, _ = ghost.recorded_terms(moved, net.split(theta_RP), full)
    shapes = {name: [term.shape for term in terms[name] if isinstance(term, Product)] for name in terms}
    assert shapes == {"0.weight": [(1, 1, 3, 5)], "2.weight": [(1, 4, 5, 4)], "0.bias": [], "2.bias": []}


def test_a_place_takes_what_the_layers_keep() -> None:
    """The input and the gradient of the output, which weight and bias share: 3 + 5 of one layer, 5 + 2 of the other."""
    net = network(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
    assert ghost.numbers(net, torch.zeros(3), torch.tensor(0)) == 3 + 5 + 5 + 2


def test_a_place_of_the_plain_pass_takes_what_it_keeps() -> None:
    """The input, the tanh's output, which is the next input, and the log-probabilities: no gradient."""
    net = network(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
    assert 3 + 5 + 2 <= none.numbers(net, torch.zeros(3), torch.tensor(0)) < 3 + 5 + 2 + 8
    assert none.numbers(net, torch.zeros(3), torch.tensor(0)) < net.size


def normals(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(math.prod(shape)), dtype=torch.float64)


TERMS: dict[str, Callable[[], Any]] = {
    "rank one": lambda: Product(normals(2, 3, 1, 1, 4), normals(2, 3, 1, 1, 5)),
    "positions": lambda: Product(normals(2, 3, 1, 6, 4), normals(2, 3, 1, 6, 5)),
    "groups": lambda: Product(normals(2, 3, 2, 6, 4), normals(2, 3, 2, 6, 5)),
    "convolution": lambda: Convolution(
        normals(2, 3, 1, 4, 6, 5), normals(2, 3, 1, 6, 2, 4), (6, 2, 3, 2), (2, 1), (1, 1), 2
    ),
    "convolution in one dimension, uses": lambda: Convolution(
        normals(2, 3, 2, 2, 9), normals(2, 3, 2, 3, 4), (3, 2, 3), (2,), (1,), 1
    ),
    "lookup": lambda: Lookup(torch.tensor([[[0, 3], [1, 1], [2, 0]]] * 2), normals(2, 3, 2, 5), 4),
    "elementwise": lambda: Elementwise(normals(2, 3, 7)),
}


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("name", sorted(TERMS))
def test_projections_are_products_with_the_formed_gradients(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float64, sums of at most some hundred terms of size 1; formed in parts of any size."""
    term = TERMS[name]()
    formed = term.gradients(slice(0, 6)).reshape(2, 3, -1)
    vectors = normals(2, count, formed.shape[-1])
    expected = vectors @ formed.mT
    for elements in (2**22, 1):
        monkeypatch.setattr(_ghost_terms, "_ELEMENTS", elements)
        found = term.projected(vectors)
        assert found.shape == (2, count, 3)
        assert float((found - expected).abs().max()) < 1e-12
