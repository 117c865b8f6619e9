"""Internal: the layer is the printed formula to the last digits.

Tempered sigmoids (Papernot et al. 2021): the formula, the hyperbolic tangent as one of them, specs and mistakes.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from dpbench.errors import ProblemsError
from dpbench.models import mlp, papernot_cnn, tfp_cnn
from dpbench.models._layers import TemperedSigmoid, activation_layer
from dpbench.plan.parts import model_builder
from dpbench.spec.loading import load_specs

SPEC = """
kind: run
name: tempered
dataset: digits
model: {{name: mlp, parameters: {{activation: {activation}}}}}
mechanism: noisy_sgd
budget: {{noise_multiplier: 1.0, delta: 1e-4}}
training: {{batch_size: 64, steps: 2, learning_rate: 0.1, clip_norm: 1.0}}
seeds: 1
"""


def test_it_is_the_formula() -> None:
    """φ(x) = s/(1 + e^(−Tx)) − o; float64, a few roundings of numbers up to s."""
    x = torch.linspace(-30, 30, 301, dtype=torch.float64)
    found = TemperedSigmoid(1.58, 3.04, 0.71)(x)
    expected = torch.tensor([1.58 / (1 + math.exp(-3.04 * one)) - 0.71 for one in x.tolist()], dtype=torch.float64)
    assert float((found - expected).abs().max()) < 1e-15


def test_the_hyperbolic_tangent_is_one_of_them() -> None:
    x = torch.linspace(-10, 10, 101, dtype=torch.float64)
    assert float((activation_layer((2.0, 2.0, 1.0))(x) - torch.tanh(x)).abs().max()) < 1e-15
    torch.manual_seed(0)
    one = mlp.model((1, 4, 4), 3, activation="tanh")
    other = mlp.model((1, 4, 4), 3, activation=(2.0, 2.0, 1.0))
    other.load_state_dict(one.state_dict())
    images = torch.rand(5, 1, 4, 4)
    with torch.no_grad():
        assert float((one(images) - other(images)).abs().max()) < 1e-5


@pytest.mark.parametrize("model", [papernot_cnn.model, tfp_cnn.model])
def test_models_take_it_in_every_layer(model: Any) -> None:
    built = model((1, 28, 28), 10, activation=(1.58, 3.04, 0.71))
    tempered = [layer for layer in built.modules() if isinstance(layer, TemperedSigmoid)]
    assert len(tempered) == sum(
        isinstance(layer, torch.nn.Tanh) for layer in model((1, 28, 28), 10, activation="tanh").modules()
    )
    assert {(one.scale, one.temperature, one.offset) for one in tempered} == {(1.58, 3.04, 0.71)}
    assert built(torch.rand(2, 1, 28, 28)).shape == (2, 10)


def test_a_spec_names_one(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.format(activation="[1.58, 3, 0.71]"))
    (spec,) = load_specs([file])
    from dpbench.plan.parts import dataset_source

    layers = list(model_builder(spec, dataset_source(spec))().modules())
    assert any(isinstance(layer, TemperedSigmoid) and layer.temperature == 3.0 for layer in layers)


@pytest.mark.parametrize("activation", ["sigmoid", "[1.58, 3.04]", "[1.58, 3.04, high]"])
def test_a_spec_with_another_is_refused(tmp_path: Path, activation: str) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.format(activation=activation))
    with pytest.raises(ProblemsError, match="activation"):
        load_specs([file])


@pytest.mark.parametrize("activation", [(0.0, 1.0, 0.0), (1.0, -1.0, 0.0), (1.0, math.inf, 0.0), (1.0, math.nan, 0.0)])
def test_numbers_that_make_none_are_refused(activation: Any) -> None:
    with pytest.raises(ValueError, match=r"^activation = .*: expected one of relu, tanh, or \[scale"):
        activation_layer(activation)
