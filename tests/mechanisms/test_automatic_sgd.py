"""Automatic clipping: its weights, the same sum by every engine, its limits, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dpbench.catalog import catalog
from dpbench.clipping.rules.automatic import LEAST_NORM, Automatic
from dpbench.errors import DpbenchError
from dpbench.judging.check_tools.problems import batch, hyperparameters, linear_network, reference, small_network
from dpbench.mechanisms.pipeline import mechanism as pipeline
from dpbench.mechanisms.presets import PRESETS, Factory, automatic_sgd, non_private
from dpbench.step.clipped_sum import Examples
from dpbench.step.mechanism import Setting, State, step
from tests.contracts.test_clipping import MODELS, problem

pytestmark = pytest.mark.usefixtures("one_thread")

ENGINES = {name: entry.load() for name, entry in sorted(catalog("clipping").items())}


@pytest.mark.parametrize("offset", [0, 1e-3, 0.01, 5.0])
@pytest.mark.parametrize("clip", [1e-6, 1.0, 300.0])
def test_the_weight_is_the_formula_and_no_gradient_is_longer_than_the_clip_norm(offset: float, clip: float) -> None:
    """C/(norm + γ) one number at a time; three roundings of float64. The product is at most C, up to two more."""
    norms = [0.0, 1e-30, 1e-16, 1e-15, 1e-9, 0.3, 1.0, 17.0, 1e9, 1e300, math.inf]
    found = Automatic(offset).weight(torch.tensor(norms, dtype=torch.float64), torch.tensor(clip, dtype=torch.float64))
    for norm, weight in zip(norms, found.tolist(), strict=True):
        expected = 0.0 if offset == 0 and norm < LEAST_NORM else clip / (norm + offset)
        assert weight == pytest.approx(expected, rel=4e-16, abs=0)
        assert norm == math.inf or norm * weight <= clip * (1 + 5e-16)


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("offset", [0.0, 0.01, 3.0])
@pytest.mark.parametrize("model", sorted(name for name in MODELS if "cnn" not in name))
def test_every_engine_computes_the_sum_of_the_definition(engine: str, offset: float, model: str) -> None:
    """Float64; 10^4 roundings of the norms that are added, each at most C (derived in `clipping_reference`)."""
    net, theta_RP, examples, clip_R = problem(model, 2, 5, seed=3)
    rule = Automatic(offset)
    expected = reference(net, theta_RP, examples, clip_R, rule.weight)
    assert float(expected.sum_RP.norm(dim=1).min()) > 0
    for chunk in (2, 5):
        found = ENGINES[engine](net, theta_RP, examples, clip_R, chunk, rule.weight)
        limit_R = 1e4 * 2.0**-53 * clip_R * examples.mask_RB.sum(1)
        assert bool(((found.sum_RP - expected.sum_RP).norm(dim=1) <= limit_R).all())
        assert torch.allclose(found.norm_RB, expected.norm_RB, rtol=1e-10, atol=0), "norms before they are scaled"


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("offset", [0.0, 0.01])
def test_a_gradient_of_zero_adds_nothing_and_small_ones_are_scaled_up(engine: str, offset: float) -> None:
    """A linear layer at zero has gradients in proportion to its input, of norm sqrt(0.75·6)·size for four classes."""
    net = linear_network(6, 4)
    sizes = torch.tensor([0.0, 1e-4, 1.0])
    inputs = sizes[:, None, None].expand(3, 1, 6).contiguous()
    each = Examples(inputs, torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1, dtype=torch.bool))
    clip_R = torch.full((3,), 2.0, dtype=torch.float64)
    found = ENGINES[engine](net, torch.zeros(3, net.size), each, clip_R, 1, Automatic(offset).weight)
    norms = [math.sqrt(0.75 * 6) * float(size) for size in sizes]
    expected = [2 * norm / (norm + offset) if norm else 0.0 for norm in norms]
    assert found.sum_RP.norm(dim=1).tolist() == pytest.approx(expected, rel=1e-5, abs=0)


def trained(made: Any, clip: float, rate: float, noise: float, count: int = 5) -> Tensor:
    drawn = batch(torch.Generator().manual_seed(1), 1, 12)
    net = small_network()
    inputs, targets = drawn.inputs[0].tanh(), drawn.targets[0]
    hyper = hyperparameters([1, 2], 0.5, learning_rate=rate, clip_norm=clip, noise_multiplier=noise)
    theta_P = 0.5 * torch.randn(net.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    state: State = made.start(theta_P.repeat(2, 1), hyper, inputs, targets)
    for _ in range(count):
        state, _ = step(made, net, state, hyper, inputs, targets, 5)
    return state.theta_RP


def test_a_large_offset_with_the_same_clip_norm_is_no_clipping() -> None:
    """C = γ = G: the weights are 1/(1 + norm/G), within norm/G of 1. Norms below 100, five steps of 0.1: 50·100²/G."""
    large = 1e14
    plain = trained(replace(non_private(), sample=automatic_sgd().sample), math.inf, 0.1, 0.0)
    found = trained(automatic_sgd(norm_offset=large), large, 0.1, 0.0)
    assert float((found - plain).abs().max()) < 50 * 100**2 / large


def test_the_clip_norm_only_scales_the_learning_rate() -> None:
    """Sum and noise are in proportion to C: (C, η) is (1, Cη); five steps of some 10^3 roundings of float64."""
    one, other = trained(automatic_sgd(), 8.0, 0.1, 1.3), trained(automatic_sgd(), 1.0, 0.8, 1.3)
    assert float((one - other).abs().max()) < 5e3 * 2.0**-53 * float(one.abs().max())


@pytest.mark.parametrize("offset", [-0.1, math.nan, math.inf, "small", True])
def test_an_offset_that_is_none_is_refused(offset: Any) -> None:
    with pytest.raises(DpbenchError, match=r"^norm_offset = .*: expected a finite number, 0 or more$"):
        automatic_sgd(norm_offset=offset)


def test_without_a_clip_norm_it_is_refused() -> None:
    made, numbers = pipeline(clip="automatic", noise="none"), Setting(100, 0.1, 10, 0.1)
    with pytest.raises(DpbenchError, match=r"^clip_norm: is missing; .*expected a number above 0$"):
        made.check(numbers)
    made.check(replace(numbers, clip_norm=1.0))


def test_two_stages_may_not_share_a_parameter_by_accident() -> None:
    """The last one would win: a preset whose stages have one name with two defaults is refused."""
    row = PRESETS["dp_sgd_jl"]
    assert Factory("fine", pipeline, row.stages, row.about).pipeline_stages()["clip"]["name"] == "jl"
    stages = {"clip": "microbatch", "noise": "constant", "update": f"{__name__}:clashing"}
    with pytest.raises(DpbenchError, match="two of its stages have a parameter 'microbatch_size', with the defaults"):
        Factory("clashing", pipeline, stages, "")
    agreeing = stages | {"update": f"{__name__}:agreeing"}
    assert "microbatch_size" in Factory("agreeing", pipeline, agreeing, "").__signature__.parameters


def clashing(*, microbatch_size: int = 7) -> Any: ...


def agreeing(*, microbatch_size: int = 5) -> Any: ...
