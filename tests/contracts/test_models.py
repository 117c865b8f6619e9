"""What every model must do: fit the pipeline, treat each example alone, start the same way from the same seed.

Without chance. A model that refuses an input shape is tried with the next one; each must build for one of them.
"""

from __future__ import annotations

import inspect
import itertools
import math
import typing
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpbench.catalog import catalog
from dpbench.errors import DpbenchError
from dpbench.models import mlp, tfp_cnn
from dpbench.plan.probe import probe_model
from dpbench.randomness import INIT, derived_seed
from dpbench.step.functional import Network, evaluate, initial_parameters, network

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPES = ((1, 8, 8), (1, 28, 28), (3, 32, 32), (12,), (2,))
CLASSES = 10
FACTORIES: dict[str, Callable[..., nn.Module]] = {n: entry.load() for n, entry in sorted(catalog("models").items())}


def activations(factory: Callable[..., nn.Module]) -> tuple[Any, ...]:
    """The words that the annotation of a parameter `activation` allows, and a tempered sigmoid where it takes one."""
    hint = typing.get_type_hints(factory).get("activation")
    parts = typing.get_args(hint) if typing.get_origin(hint) is not Literal else (hint,)
    words = [word for part in parts for word in typing.get_args(part) if isinstance(word, str)]
    return (*words, (1.58, 3.04, 0.71)) if tuple[float, float, float] in parts else tuple(words)


def variants() -> list[Any]:
    """Every model with its defaults, and with each of its activations."""
    found = []
    for name, factory in FACTORIES.items():
        choices: list[dict[str, Any]] = [{}, *({"activation": a} for a in activations(factory))]
        found += [pytest.param(factory, more, id=" ".join([name, *map(str, more.values())])) for more in choices]
    return found


def shape_of(factory: Callable[..., nn.Module], **more: Any) -> tuple[int, ...]:
    """The first of the shapes that the model takes; a refusal must be an error for people."""
    for shape in SHAPES:
        try:
            factory(shape, CLASSES, **more)
        except (ValueError, DpbenchError) as error:
            assert "expected" in str(error)  # noqa: PT017 (the next shape is tried)
            continue
        return shape
    raise AssertionError(f"the model builds for none of {SHAPES}")


def inputs_of(shape: tuple[int, ...], count: int, seed: int = 0) -> Tensor:
    """Values in [0, 1), or numbers of words that are classes too where a record is a sequence of words."""
    inputs = torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))
    return inputs if len(shape) > 1 else (CLASSES * inputs).floor()


every_variant = pytest.mark.parametrize(("factory", "more"), variants())


@every_variant
def test_signature_is_that_of_a_model(factory: Callable[..., nn.Module], more: dict[str, Any]) -> None:
    """Input shape and classes by position, every other parameter by name, with an annotation and a default."""
    del more
    first, second, *rest = inspect.signature(factory).parameters.values()
    assert (first.name, second.name) == ("input_shape", "classes")
    hints = typing.get_type_hints(factory)
    for parameter in rest:
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert parameter.default is not inspect.Parameter.empty
        assert parameter.name in hints
    assert isinstance(inspect.getmodule(factory).NUMERICS, int)  # type: ignore[union-attr]


@every_variant
def test_outputs_have_their_shape_and_are_finite(factory: Callable[..., nn.Module], more: dict[str, Any]) -> None:
    shape = shape_of(factory, **more)
    net = network(factory(shape, CLASSES, **more))
    theta_P = initial_parameters(lambda: factory(shape, CLASSES, **more), 0)
    assert theta_P.dtype == torch.float32
    assert theta_P.shape == (net.size,)
    named = {name: value[0] for name, value in net.split(theta_P[None]).items()}
    for count in (1, 5):
        output = net.outputs(named, inputs_of(shape, count))
        assert output.shape == (count, CLASSES)
        assert bool(output.isfinite().all())


@every_variant
def test_examples_do_not_see_each_other(factory: Callable[..., nn.Module], more: dict[str, Any]) -> None:
    """float64: an example's output alone, and beside others, and beside NaN, up to 10^4 roundings of its size."""
    shape = shape_of(factory, **more)
    module = factory(shape, CLASSES, **more).double()
    inputs = inputs_of(shape, 6).double()
    together = module(inputs)
    limit = 1e4 * 2.0**-53 * (1 + float(together.detach().abs().max()))
    for at in range(6):
        assert float((module(inputs[at : at + 1])[0] - together[at]).detach().abs().max()) <= limit
    spoiled = inputs.clone()
    spoiled[2] = math.nan
    kept = [0, 1, 3, 4, 5]
    assert float((module(spoiled)[kept] - together[kept]).detach().abs().max()) <= limit


@every_variant
def test_module_is_deterministic_and_has_nothing_that_training_refuses(
    factory: Callable[..., nn.Module], more: dict[str, Any]
) -> None:
    shape = shape_of(factory, **more)
    module = factory(shape, CLASSES, **more)
    assert not list(module.buffers()), "buffers would be shared by the runs of a stack"
    names = [type(layer).__name__ for layer in module.modules()]
    assert not [name for name in names if "BatchNorm" in name or "Dropout" in name]
    network(module)
    inputs, before = inputs_of(shape, 3), torch.get_rng_state()
    assert torch.equal(module(inputs), module(inputs))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("factory", "more"),
    [  # vgg13 has no kind of layer that alexnet has not, and takes several times as long
        pytest.param(*one.values, id=one.id, marks=[pytest.mark.long] if one.id == "vgg13" else [])
        for one in variants()
    ],
)
def test_training_takes_every_model(factory: Callable[..., nn.Module], more: dict[str, Any]) -> None:
    shape = shape_of(factory, **more)
    answers = probe_model(lambda: factory(shape, CLASSES, **more), shape, CLASSES)
    assert {one.verdict for one in answers} == {"holds"}, answers


@every_variant
def test_start_is_set_by_the_seed_alone(factory: Callable[..., nn.Module], more: dict[str, Any]) -> None:
    shape = shape_of(factory, **more)

    def build() -> nn.Module:
        return factory(shape, CLASSES, **more)

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = [initial_parameters(build, seed) for seed in (0, 3)]
    assert torch.equal(before, torch.get_rng_state()), "torch's global generator is put back"
    torch.manual_seed(2)
    again = [initial_parameters(build, seed) for seed in (0, 3)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    # A convex model may start at zero; any other start differs between seeds.
    assert not torch.equal(*first) or not bool(first[0].any())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(3, INIT))
        module = build()
    assert torch.equal(first[1], nn.utils.parameters_to_vector(module.parameters()).detach())


@every_variant
def test_split_and_join_are_inverse(factory: Callable[..., nn.Module], more: dict[str, Any]) -> None:
    shape = shape_of(factory, **more)
    module = factory(shape, CLASSES, **more)
    net = network(module)
    theta_RP = torch.arange(3 * net.size, dtype=torch.float32).reshape(3, net.size)
    named = net.split(theta_RP)
    assert [(name, value.shape[1:]) for name, value in named.items()] == [
        (name, value.shape) for name, value in module.named_parameters()
    ]
    assert all(value.shape[0] == 3 for value in named.values())
    assert torch.equal(net.join(named), theta_RP)
    backwards = dict(reversed(list(named.items())))
    assert torch.equal(net.join(backwards), theta_RP), "by name, not by position"
    flat = nn.utils.parameters_to_vector([value[1] for value in named.values()])
    assert torch.equal(flat, theta_RP[1])


@every_variant
def test_functional_outputs_are_the_module_s(factory: Callable[..., nn.Module], more: dict[str, Any]) -> None:
    shape = shape_of(factory, **more)
    module = factory(shape, CLASSES, **more)
    theta_P = initial_parameters(lambda: factory(shape, CLASSES, **more), 5) + 0.01
    nn.utils.vector_to_parameters(theta_P, module.parameters())
    inputs = inputs_of(shape, 4)
    direct = module(inputs).detach()
    net = network(factory(shape, CLASSES, **more))
    named = {name: value[0] for name, value in net.split(theta_P[None]).items()}
    assert torch.equal(net.outputs(named, inputs), direct)


@every_variant
def test_evaluate_is_the_direct_computation(factory: Callable[..., nn.Module], more: dict[str, Any]) -> None:
    """Loss: float32 outputs, at most 10^4 roundings of scores below 10, then float64. Accuracy: exact."""
    shape = shape_of(factory, **more)
    net = network(factory(shape, CLASSES, **more))
    generator = torch.Generator().manual_seed(1)
    start = torch.stack([initial_parameters(lambda: factory(shape, CLASSES, **more), seed) for seed in range(3)])
    theta_RP = start + 0.02 * torch.randn(start.shape, generator=generator)
    inputs, targets = inputs_of(shape, 7), torch.randint(CLASSES, (7,), generator=generator)
    truth = []
    for run in range(3):
        module = factory(shape, CLASSES, **more)
        nn.utils.vector_to_parameters(theta_RP[run], module.parameters())
        scores = module.double()(inputs.double()).detach()
        right = (scores.argmax(1) == targets).double().mean()
        truth.append((float(nn.functional.cross_entropy(scores, targets)), float(right)))
    for chunk in (1, 3, 7, 100):
        loss_R, accuracy_R = evaluate(net, theta_RP, inputs, targets, chunk)
        assert loss_R.dtype == accuracy_R.dtype == torch.float64
        for run, (loss, right) in enumerate(truth):
            assert float(loss_R[run]) == pytest.approx(loss, abs=1e4 * 2.0**-24 * 10)
            assert float(accuracy_R[run]) == pytest.approx(right, abs=1e-15)


def test_refused_activation_says_what_is_known() -> None:
    factories: tuple[Any, ...] = (mlp.model, tfp_cnn.model)
    for factory in factories:
        with pytest.raises(ValueError, match=r"activation = 'gelu': expected one of relu, tanh"):
            factory((1, 28, 28), 10, activation="gelu")


# The network of TensorFlow Privacy's tutorial


def test_tfp_cnn_has_the_published_layers() -> None:
    """Keras: Conv2D(16, 8, strides 2, same), MaxPool(2, 1), Conv2D(32, 4, strides 2, valid), MaxPool(2, 1), 32, 10."""
    module = tfp_cnn.model((1, 28, 28), 10)
    counts = [sum(p.numel() for p in layer.parameters()) for layer in module.children()]
    assert [count for count in counts if count] == [1040, 8224, 16416, 330]
    assert sum(counts) == 26_010
    seen, value = [], torch.zeros(1, 1, 28, 28)
    for layer in module.children():
        value = layer(value)
        if not isinstance(layer, nn.ReLU):
            seen.append(tuple(value.shape[1:]))
    assert seen == [(16, 14, 14), (16, 13, 13), (32, 5, 5), (32, 4, 4), (512,), (32,), (10,)]
    student = tfp_cnn.model((3, 32, 32), 10)  # of PATE on SVHN (dplis2021, Appendix D)
    counts = [sum(p.numel() for p in layer.parameters()) for layer in student.children()]
    assert [count for count in counts if count] == [3088, 8224, 25632, 330]
    assert sum(counts) == 37_274


def keras_same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Keras's 'same' padding before and after one side: the output has ceil(size / stride) places."""
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def first_convolution(size: int) -> tuple[Tensor, Tensor]:
    """Ours, and Keras's 'same' convolution by explicit padding."""
    module = tfp_cnn.model((1, size, size), 10)
    convolution = next(layer for layer in module.modules() if isinstance(layer, nn.Conv2d))
    inputs = inputs_of((1, size, size), 2)
    low, high = keras_same(size, 8, 2)
    padded = nn.functional.pad(inputs, (low, high, low, high))
    return convolution(inputs), nn.functional.conv2d(padded, convolution.weight, convolution.bias, stride=2)


@pytest.mark.parametrize("size", [14, 16, 28, 32])
def test_tfp_cnn_pads_like_keras(size: int) -> None:
    ours, keras = first_convolution(size)
    assert ours.shape == keras.shape
    assert torch.allclose(ours, keras, rtol=0, atol=1e-6)


def test_tfp_cnn_starts_like_keras() -> None:
    """Glorot-uniform weights inside ±sqrt(6 / (fan in + fan out)) and filling it; zero biases."""
    module = tfp_cnn.model((1, 28, 28), 10)
    fans = [(64, 1024), (256, 512), (512, 32), (32, 10)]
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer, (into, out) in zip(layers, fans, strict=True):
        limit = math.sqrt(6 / (into + out))
        largest = float(layer.weight.detach().abs().max())
        assert 0.95 * limit < largest <= limit
        assert layer.bias is not None
        assert not bool(layer.bias.any())


@pytest.mark.parametrize("shape", [(28, 28), (1, 13, 28), (1, 28, 8)])
def test_tfp_cnn_refuses_what_is_too_small(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="sides at least 14"):
        tfp_cnn.model(shape, 10)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 9), max_size=3), st.integers(1, 6), st.integers(1, 7))
def test_mlp_has_the_parameters_of_its_widths(hidden: list[int], side: int, classes: int) -> None:
    widths = [side * side, *hidden, classes]
    expected = sum((a + 1) * b for a, b in itertools.pairwise(widths))
    assert network(mlp.model((1, side, side), classes, hidden=tuple(hidden))).size == expected


def test_mlp_refuses_a_width_of_zero() -> None:
    with pytest.raises(ValueError, match=r"hidden = \(4, 0\)"):
        mlp.model((1, 8, 8), 10, hidden=(4, 0))


# What `network` and `initial_parameters` refuse and keep


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(DpbenchError, match="no parameters"):
        network(nn.Flatten())


def test_group_and_layer_normalisation_are_welcome() -> None:
    net: Network = network(nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.Linear(4, 2)))
    assert net.size == 8 + 8 + 10


def test_tied_parameters_are_counted_once() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    net = network(nn.Sequential(first, second))
    assert net.size == 16 + 4 + 4
    theta_P = initial_parameters(lambda: nn.Sequential(first, second), 0)
    assert theta_P.shape == (24,)


def test_a_failing_build_puts_the_generator_back() -> None:
    def build() -> nn.Module:
        torch.rand(3)
        raise RuntimeError("no")

    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="no"):
        initial_parameters(build, 0)
    assert torch.equal(before, torch.get_rng_state())
