"""Internal: forward mode of every layer type, on which the law of the estimated norms rests.

The derivative along a vector is the gradient's inner product with it; what has no right forward mode is refused.
Without chance: Hypothesis runs derandomised. The gradient comes from torch's own backward pass of the plain module, one
example at a time, so that a wrong decomposition shows as well as a wrong derivative. Limit: 10^4 roundings of float64
(the longest chain of sums in `clipping_reference`), relative to the product of the norms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from dpbench.catalog import catalog
from dpbench.clipping.rules import _jl_forward
from dpbench.clipping.rules.jl import ProjectedSum, _split
from dpbench.errors import DpbenchError
from dpbench.mechanisms.presets import dp_sgd_jl
from dpbench.plan.trial import try_rule
from dpbench.step.clipped_sum import Examples
from dpbench.step.functional import Network, network
from tests.clipping.layer_configurations import convolutions

pytestmark = pytest.mark.usefixtures("one_thread")
CLASSES, PLACES, VECTORS = 3, 2, 2
LIMIT = 1e4 * 2.0**-53


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


def floats(*shape: int, runs: int = 1, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 99)
    return torch.randn(runs, PLACES, *shape, generator=generator, dtype=torch.float64)


def words(length: int, runs: int = 1, seed: int = 0) -> Tensor:
    """Few words, so that they repeat, with padding (0) at the end of each."""
    found = torch.randint(1, 6, (runs, PLACES, length), generator=torch.Generator().manual_seed(seed + 7))
    found[..., length - length // 3 :] = 0
    return found


def by_definition(net: Network, theta_RP: Tensor, examples: Examples) -> Tensor:
    """The gradients (R, B, P), one example and one ordinary backward pass at a time."""
    runs, places = examples.mask_RB.shape
    gradient_RBP = torch.zeros(runs, places, net.size, dtype=torch.float64)
    for run in range(runs):
        for place in range(places):
            leaves = {
                name: value[0].detach().requires_grad_() for name, value in net.split(theta_RP[run, None]).items()
            }
            loss = net.example_loss(leaves, examples.inputs[run, place], examples.targets[run, place])
            pieces = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
            gradient_RBP[run, place] = torch.cat([piece.flatten() for piece in pieces])
    return gradient_RBP


def agree(
    module: nn.Module, inputs: Tensor, seed: int = 0, theta_RP: Tensor | None = None, limit: float = LIMIT
) -> None:
    """Both ways give the inner products and a weighted sum; the gradients do not vanish."""
    runs = len(inputs)
    net = network(module.double())
    generator = torch.Generator().manual_seed(seed)
    if theta_RP is None:
        theta_RP = torch.randn(runs, net.size, generator=generator, dtype=torch.float64) / 3
    vectors_RJP = torch.randn(runs, VECTORS, net.size, generator=generator, dtype=torch.float64)
    targets = torch.randint(CLASSES, inputs.shape[:2], generator=generator)
    examples = Examples(inputs, targets, torch.ones(inputs.shape[:2]) > 0)
    gradient_RBP = by_definition(net, theta_RP, examples)
    sizes = vectors_RJP.norm(dim=2)[:, :, None] * gradient_RBP.norm(dim=2)[:, None]
    assert bool((sizes > 0).all())
    weight_RB = torch.rand(inputs.shape[:2], generator=generator, dtype=torch.float64)
    for way in ("jvp", "vjp"):
        engine, named, tangents = ProjectedSum(VECTORS, way), net.split(theta_RP), _split(net, vectors_RJP)
        found = engine._one_pass(net, named, tangents, examples, lambda _, weight_B: weight_B, weight_RB)
        worst = float(((found.products_RJB - vectors_RJP @ gradient_RBP.mT).abs() / sizes).max())
        assert worst <= limit, (way, worst)
        off_R = (found.sum_RP - (weight_RB[:, :, None] * gradient_RBP).sum(1)).norm(dim=1)
        worst = float((off_R / gradient_RBP.norm(dim=2).sum(1)).max())
        assert worst <= limit, (way, worst)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(convolutions(3), st.integers(1, 2), st.integers(6, 8), st.integers(0, 2**20))
def test_convolutions(drawn: tuple[int, dict[str, Any]], runs: int, side: int, seed: int) -> None:
    axes, settings_ = drawn
    inputs = floats(settings_["in_channels"], *[side, side - 1, side][:axes], runs=runs, seed=seed)
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1](**settings_)
    agree(Head(layer, inputs), inputs, seed)


@settings(derandomize=True, deadline=None, max_examples=15)
@given(st.integers(1, 2), st.integers(1, 2), st.integers(0, 1), st.booleans(), st.integers(1, 2))
def test_transposed_convolutions(axes: int, stride: int, padding: int, bias: bool, groups: int) -> None:
    inputs = floats(2 * groups, *[5, 4][:axes])
    layer = (nn.ConvTranspose1d, nn.ConvTranspose2d)[axes - 1](
        2 * groups, 3 * groups, 3, stride, padding, bias=bias, groups=groups
    )
    agree(Head(layer, inputs), inputs)


@settings(derandomize=True, deadline=None, max_examples=15)
@given(st.sampled_from([None, 0, 3, -1]), st.integers(1, 7), st.integers(1, 3), st.integers(0, 2**20))
def test_embeddings(padding: int | None, length: int, runs: int, seed: int) -> None:
    """All words of an example may be padding: then the embedding's gradient is zero, the head's is not."""
    inputs = words(length, runs, seed)
    agree(Head(nn.Embedding(6, 4, padding_idx=padding), inputs), inputs, seed)


def test_torch_s_own_forward_mode_of_a_padded_embedding_is_wrong() -> None:
    """Why the decomposition is there: without it the padded row moves. Should this fail, torch has put it right."""
    weight, row = torch.ones(3, 2, dtype=torch.float64), torch.tensor([1])

    def moved() -> float:
        found = torch.func.jvp(lambda w: F.embedding(row, w, padding_idx=1), (weight,), (torch.ones_like(weight),))
        return float(found[1].abs().sum())

    assert moved() > 0
    with _jl_forward.Forward():
        assert moved() == 0


SPATIAL: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm(5),
    "layer of two axes": lambda: nn.LayerNorm((6, 5)),
    "layer without parameters": lambda: nn.LayerNorm(5, elementwise_affine=False),
    "root mean square": lambda: nn.RMSNorm(5),
    "group": lambda: nn.GroupNorm(2, 4),
    "group without parameters": lambda: nn.GroupNorm(2, 4, affine=False),
    "each channel": lambda: nn.GroupNorm(4, 4),
    "local response": lambda: nn.LocalResponseNorm(3),
    "maximum": lambda: nn.MaxPool2d(2),
    "maximum, overlapping": lambda: nn.MaxPool2d(3, 1, 1, ceil_mode=True),
    "maximum, dilated": lambda: nn.MaxPool2d(2, 2, dilation=2),
    "maximum of one axis": lambda: nn.Sequential(nn.Flatten(2), nn.MaxPool1d(3, 2)),
    "average": lambda: nn.AvgPool2d(2),
    "average with padding": lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "adaptive average": lambda: nn.AdaptiveAvgPool2d(2),
    "adaptive maximum": lambda: nn.AdaptiveMaxPool2d((3, 2)),
    "power": lambda: nn.LPPool2d(2.0, 2),
    "bilinear upsampling": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "nearest upsampling": lambda: nn.Upsample(scale_factor=2),
    "pixel shuffle": lambda: nn.PixelShuffle(2),
    "unfold": lambda: nn.Unfold(2),
    "softmax": lambda: nn.Softmax(-1),
    "log softmax": lambda: nn.LogSoftmax(-1),
    "normalised": lambda: Function(lambda x: F.normalize(x, dim=-1)),
    "largest": lambda: Function(lambda x: x.amax(-1)),
    "sorted": lambda: Function(lambda x: x.sort(-1).values),
    "deviation": lambda: Function(lambda x: x.std(-1)),
    "running sum": lambda: Function(lambda x: x.cumsum(-1)),
    "einsum": lambda: Function(lambda x: torch.einsum("bcij,bckj->bcik", x, x)),
    **{
        activation.__name__: activation
        for activation in (
            nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Tanh,
            nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softsign, nn.Tanhshrink, nn.PReLU,
            nn.Hardshrink, nn.Softshrink,
        )
    },
    "GLU": lambda: nn.GLU(1),
}  # fmt: skip


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("name", SPATIAL)
def test_normalisation_pooling_and_activations(name: str) -> None:
    """On the output of a convolution, so that a derivative comes in.

    torch's own backward pass of the hard sigmoid multiplies by 1/6 in float32, whatever the numbers are.
    """
    inputs = floats(4, 6, 5, runs=2)
    limit = 2.0**-24 if name == "Hardsigmoid" else LIMIT
    agree(Head(nn.Sequential(nn.Conv2d(4, 4, 1), SPATIAL[name]()), inputs), inputs, limit=limit)


class Kinked(nn.Module):
    """A function at the inputs, with a derivative along parameters that leave them where they are."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.moves = function, nn.Parameter(torch.randn(4, generator=torch.Generator().manual_seed(3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x + self.moves - self.moves.detach())


KINKS: dict[str, Callable[[], Any]] = {
    **{
        kind.__name__: kind
        for kind in (
            nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.Hardtanh, nn.Hardswish, nn.Softsign,
            nn.Hardsigmoid, nn.Hardshrink, nn.LogSigmoid, nn.PReLU,
        )
    },
    "PReLU, a weight for each channel": lambda: nn.PReLU(4),
    "threshold": lambda: nn.Threshold(1.0, 0.5),
    "softshrink": lambda: nn.Softshrink(1.0),
    "clamp": lambda: lambda x: x.clamp(-1, 1),
    "absolute": lambda: torch.abs,
    "maximum": lambda: lambda x: torch.maximum(x, torch.zeros_like(x)),
    "fmax": lambda: lambda x: torch.fmax(x, torch.zeros_like(x)),
    "fmin": lambda: lambda x: torch.fmin(x, torch.zeros_like(x)),
    "largest, tied": lambda: lambda x: (x * x).amax(-1, keepdim=True) + x.max(-1, keepdim=True).values,
    "pooled, tied": lambda: lambda x: nn.functional.max_pool1d(x * x, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", KINKS)
def test_both_modes_take_the_same_branch_at_a_kink(name: str) -> None:
    """A record that holds a layer at 0, or two numbers at a tie: zero biases and black pixels do. Limit: see above."""
    inputs = torch.tensor([0.0, -1.0, 1.0, 3.0], dtype=torch.float64).expand(1, PLACES, 4).clone()
    inputs[0, 1] = 0
    limit = 2.0**-24 if name == "Hardsigmoid" else LIMIT
    agree(Head(Kinked(KINKS[name]()), inputs), inputs, limit=limit)


class Apart(nn.Module):
    """A word that is a constant, in one of two ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.inner, self.way = nn.Embedding(9, 4), way

    def forward(self, x: Tensor) -> Tensor:
        x = x.long()
        if self.way == "torch.embedding":
            return torch.embedding(self.inner.weight, x, 5)
        rows = self.inner(x)
        with torch.no_grad():
            constant = 2 * self.inner(x)
        return torch.where((x == 5)[..., None], constant, rows)


@pytest.mark.parametrize("way", ["torch.embedding", "no_grad"])
def test_a_constant_of_some_words_is_one_in_both_modes(way: str) -> None:
    """No probe has the word 5, so that `refuse` would not find it."""
    inputs = torch.tensor([[[5, 5, 2, 5], [1, 2, 3, 4]]])
    agree(Head(Apart(way), inputs), inputs)


RECURRENT: dict[str, Callable[..., nn.Module]] = {
    "rnn tanh": nn.RNN,
    "rnn relu": lambda *sizes, **more: nn.RNN(*sizes, nonlinearity="relu", **more),
    "lstm": nn.LSTM,
    "lstm with projections": lambda *sizes, **more: nn.LSTM(*sizes, proj_size=2, **more),
    "gru": nn.GRU,
}


def everything(found: Any) -> Tensor:
    """The output and the last states of a recurrent layer."""
    output, last = found
    parts = [output, *(last if isinstance(last, tuple) else (last,))]
    return torch.cat([part.flatten() for part in parts])[None]


class Turned(nn.Module):
    """(N, T, I) to (T, N, I) for a layer that wants the time first."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        return self.layer(x.transpose(0, 1))


@pytest.mark.parametrize("name", RECURRENT)
@settings(derandomize=True, deadline=None, max_examples=5)
@given(st.booleans(), st.integers(1, 2), st.booleans(), st.booleans(), st.integers(1, 5), st.integers(1, 2))
def test_recurrent_layers(name: str, both: bool, layers: int, bias: bool, first: bool, places: int, runs: int) -> None:
    """Bidirectional, several layers, with the time first; the first layer's input moves too."""
    inputs = floats(places, 3, runs=runs)
    layer = RECURRENT[name](3, 4, num_layers=layers, bidirectional=both, bias=bias, batch_first=first)
    moved = nn.Sequential(nn.Linear(3, 3), layer if first else Turned(layer))
    agree(Head(moved, inputs, everything), inputs)


class Cell(nn.Module):
    """A recurrent cell in a loop of one's own, with its own first state."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for part in x.unbind(1):
            state = self.cell(part, state)
        last: Tensor = state[0] + state[1] if isinstance(state, tuple) else state
        return last


@pytest.mark.parametrize(
    "cell",
    [
        nn.LSTMCell(3, 4),
        nn.GRUCell(3, 4),
        nn.RNNCell(3, 4),
        nn.RNNCell(3, 4, nonlinearity="relu"),
        nn.GRUCell(3, 4, bias=False),
    ],
)
def test_recurrent_cells(cell: nn.Module) -> None:
    inputs = floats(3, 3, runs=2)
    agree(Head(Cell(cell), inputs), inputs)


class Attention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


class Scaled(nn.Module):
    """Attention by torch's own function: causal, with a mask of either kind, or with a scale."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.inner = kind, nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inner(x).chunk(3, -1)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        more: dict[str, dict[str, Any]] = {
            "plain": {},
            "causal": {"is_causal": True},
            "mask": {"attn_mask": seen},
            "bias": {"attn_mask": seen.double(), "scale": 0.3},
        }
        return F.scaled_dot_product_attention(query, key, value, **more[self.kind])


@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "bias"])
def test_attention_is_written_out_right(kind: str) -> None:
    inputs = floats(5, 4, runs=2)
    agree(Head(Scaled(kind), inputs), inputs)


@pytest.mark.parametrize("build", [
    lambda: Attention(4, 2, batch_first=True),
    lambda: Attention(4, 2, bias=False, batch_first=True),
])  # fmt: skip
def test_attention_layers(build: Callable[[], nn.Module]) -> None:
    inputs = floats(5, 4)
    agree(Head(build(), inputs), inputs)


MODELS = {name: entry.load() for name, entry in sorted(catalog("models").items())}
SHAPES = ((1, 8, 8), (1, 28, 28), (3, 32, 32), (7,), (2,))


@pytest.mark.parametrize(
    "name",  # vgg13 has no kind of layer that alexnet has not
    [pytest.param(name, marks=[pytest.mark.long] if name == "vgg13" else []) for name in MODELS],
)
def test_every_model(name: str) -> None:
    """The first shape that the model takes, near its own initial parameters; it is not refused either."""
    for shape in SHAPES:
        try:
            module = MODELS[name](shape, CLASSES, **({"hidden": (20, 10)} if name == "vgg13" else {}))
        except (ValueError, DpbenchError):
            continue
        break
    else:
        pytest.skip(f"the model builds for none of {SHAPES}")
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(1, PLACES, *shape, generator=generator, dtype=torch.float64)
    inputs = (CLASSES * inputs).floor() if len(shape) == 1 else inputs  # words
    theta_RP = torch.cat([value.detach().flatten() for value in module.parameters()])[None].double()
    theta_RP += 0.01 * torch.randn(theta_RP.shape, generator=generator, dtype=torch.float64)
    agree(module, inputs, theta_RP=theta_RP)
    try_rule(dp_sgd_jl(), lambda: MODELS[name](shape, CLASSES), shape)


# What is refused


class Doubled(torch.autograd.Function):
    """2·value, with a right backward pass and no forward mode, or with a wrong one (`Wrong`)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Any) -> Any:
        return 2 * value

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del ctx
        return 2 * gradients[0]


class Wrong(Doubled):
    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        del ctx
        return 3 * tangents[0]


class Applied(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.function.apply(x)
        return out


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRU(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x[:, None].expand(-1, 2, -1), torch.tensor([2]), batch_first=True)
        out: Tensor = self.inner(packed)[1][0]
        return out


class Looking(nn.Module):
    """Looks at its data, which no transform can follow."""

    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.sum()) > 0 else -x


def between(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(layer), nn.Linear(4, CLASSES))


REFUSED: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "no forward mode": (lambda: between(Applied(Doubled)), ("'1.0' (Applied)",)),
    "wrong forward mode": (lambda: between(Applied(Wrong)), ("'1.0' (Applied)", "not the gradient's product")),
    "packed": (lambda: nn.Sequential(Packed()), ("'0' (Packed)", "give whole sequences")),
    "data": (lambda: between(Looking()), ("'1.0' (Looking)",)),
    "max_norm": (lambda: Words(max_norm=1.0), ("'inner' (Embedding)", "max_norm")),
    "frequencies": (lambda: Words(scale_grad_by_freq=True), ("'inner' (Embedding)", "scale_grad_by_freq")),
}


class Words(nn.Module):
    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.inner = nn.Embedding(5, CLASSES, **more)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x.long()).sum(1)
        return out


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_right_forward_mode_is_refused_by_name(name: str) -> None:
    build, expected = REFUSED[name]
    module = build()
    before = [value.clone() for value in module.parameters()]
    with pytest.raises(DpbenchError) as caught:
        ProjectedSum(30, "jvp").refuse(module, torch.zeros(4))
    assert all(word in str(caught.value) for word in expected), caught.value
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def test_reverse_mode_twice_does_not_need_forward_mode() -> None:
    ProjectedSum(30, "vjp").refuse(between(Applied(Doubled)), torch.zeros(4))
    ProjectedSum(30, "vjp").refuse(between(Applied(Wrong)), torch.zeros(4))


def test_layer_by_layer_does_not_need_it_either_and_leaves_the_rest_to_it() -> None:
    ProjectedSum(30, "layers").refuse(between(Applied(Wrong)), torch.zeros(4))
    of_torch = nn.Sequential(nn.MultiheadAttention(4, 2, batch_first=True))  # ghost does not know it, forward mode does

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = of_torch[0]

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x, x, x)[0].sum(1)
            return out

    rule = ProjectedSum(30, "layers")
    rule.refuse(Attending(), torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
    assert 3 * 4 < rule.numbers(network(Attending()), torch.zeros(3, 4), torch.tensor(0)) < 50 * 3 * 4
    plain = network(between(nn.Tanh()))  # the inputs and outputs of two layers, not their parameters
    assert rule.numbers(plain, torch.zeros(4), torch.tensor(0)) < plain.size


@pytest.mark.parametrize("way", ["jvp", "vjp"])
def test_a_place_takes_what_its_forward_pass_keeps_and_no_gradient(way: Any) -> None:
    """Of a model with many parameters; places of a call follow from it, and so does the time."""
    wide = network(nn.Sequential(nn.Linear(50, 2000), nn.Tanh(), nn.Linear(2000, 3)))
    assert 2000 <= ProjectedSum(30, way).numbers(wide, torch.zeros(50), torch.tensor(0)) < 3 * 2000 < wide.size / 10


def test_words_that_a_model_does_not_have_are_no_reason_to_refuse() -> None:
    """Ones are a word of a model with one word too many; the example of zeros is enough."""

    class One(Words):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape and bool(torch._C._functorch.maybe_get_level(x) == -1) and float(x.max()) > 0:
                raise IndexError("no such word")
            return super().forward(x)

    ProjectedSum(30).refuse(One(padding_idx=1), torch.zeros(4))
