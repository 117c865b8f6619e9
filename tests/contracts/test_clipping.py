"""What every clipping engine must do: the definition's clipped sum, whatever the model, batch, chunk and stack.

An engine that only estimates norms says so with an attribute `estimated_norms = True`; it is then held to the tests
that do not compare norms. Without chance: Hypothesis runs derandomised. Tolerances are derived where they stand.
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

from dpbench.catalog import catalog
from dpbench.clipping.rules.none import Unclipped
from dpbench.judging.check_tools.problems import batch, cast, linear_network, reference, small_network
from dpbench.judging.check_tools.subject import Subject
from dpbench.judging.checks import clipping_reference, clipping_sensitivity
from dpbench.models import logistic, mlp, tfp_cnn
from dpbench.randomness import table
from dpbench.step.clipped_sum import Clipped, Draw, Examples
from dpbench.step.functional import Network, initial_parameters, network

pytestmark = pytest.mark.usefixtures("one_thread")

ENGINES = {name: entry.load() for name, entry in sorted(catalog("clipping").items())}
EXACT = [name for name, engine in ENGINES.items() if not getattr(engine, "estimated_norms", False)]
every_engine = pytest.mark.parametrize("name", ENGINES)
every_exact_engine = pytest.mark.parametrize("name", EXACT)


class Tied(nn.Module):
    """One weight used twice, and one parameter that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 12)
        self.second.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.tanh(self.first(x.flatten(1))))
        return out


def normed() -> nn.Module:
    """Convolution, group normalisation, layer normalisation and a skip of activations."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.LayerNorm(48), nn.Linear(48, 5)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "logistic": (lambda: logistic.model((1, 3, 4), 3), (1, 3, 4), 3),
    "mlp relu": (lambda: mlp.model((1, 3, 4), 4, hidden=(7, 5)), (1, 3, 4), 4),
    "mlp tanh": (lambda: mlp.model((1, 3, 4), 4, hidden=(7,), activation="tanh"), (1, 3, 4), 4),
    "tfp_cnn relu": (lambda: tfp_cnn.model((1, 14, 14), 3), (1, 14, 14), 3),
    "tfp_cnn tanh": (lambda: tfp_cnn.model((1, 16, 14), 3, activation="tanh"), (1, 16, 14), 3),
    "tied weights": (Tied, (1, 3, 4), 12),
    "normalised": (normed, (1, 3, 4), 5),
}


def problem(model: str, runs: int, places: int, seed: int) -> tuple[Network, Tensor, Examples, Tensor]:
    """A network, float64 parameters and examples that are exact in float32, and clip norms about the gradients'."""
    build, shape, classes = MODELS[model]
    generator = torch.Generator().manual_seed(seed)
    net = network(build())
    start = torch.stack([initial_parameters(build, seed + run) for run in range(runs)])
    theta_RP = (start + 0.05 * torch.randn(start.shape, generator=generator)).double()
    drawn = batch(generator, runs, places, features=math.prod(shape), classes=classes)
    inputs = drawn.inputs.clamp(-10, 10).float().double().reshape(runs, places, *shape)
    clip_R = 10 ** (2 * torch.rand(runs, generator=generator, dtype=torch.float64) - 1)
    return net, theta_RP, Examples(inputs, drawn.targets, drawn.mask_RB), clip_R


def unit(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


@every_engine
def test_engine_passes_the_checks(name: str) -> None:
    subject = Subject("clipping", name, ENGINES[name])
    for check in (clipping_sensitivity.check, clipping_reference.check):
        if check.applies(subject):
            verdict = check(subject, seed=0)
            assert verdict.verdict == "holds", verdict


@every_exact_engine
@pytest.mark.parametrize("model", MODELS)
def test_sum_is_the_definition_s(name: str, model: str) -> None:
    """Against float64 autograd and against `loop`, float64 and float32, R = 1..3, chunks 1..B, places empty or not.

    Limit: 10^4 roundings of the sizes that are added up (derived in `clipping_reference`).
    """

    # A convolution takes longer; float32 may fall on the other side of a kink, so kinked models run in float64 alone.
    @settings(derandomize=True, deadline=None, max_examples=6 if "cnn" in model else 12)
    @given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 7), st.integers(0, 2**20))
    def compare(runs: int, places: int, chunk: int, seed: int) -> None:
        net, theta_RP, examples, clip_R = problem(model, runs, places, seed)
        expected = reference(net, theta_RP, examples, clip_R)
        for dtype in (torch.float64,) if "relu" in model else (torch.float64, torch.float32):
            given_ = cast(examples, dtype)
            found = ENGINES[name](net, theta_RP.to(dtype), given_, clip_R, chunk)
            assert found.sum_RP.dtype == found.norm_RB.dtype == found.loss_RB.dtype == dtype
            assert found.sum_RP.shape == theta_RP.shape
            assert found.norm_RB.shape == found.loss_RB.shape == examples.mask_RB.shape
            assert bool((found.norm_RB[~examples.mask_RB] == 0).all())
            assert bool((found.loss_RB[~examples.mask_RB] == 0).all())
            told = replace(expected, sum_RP=ENGINES["loop"](net, theta_RP.to(dtype), given_, clip_R, 1).sum_RP.double())
            for other in (expected, told):
                for what, ratio, limit in clipping_reference.differences(found, other, examples, clip_R, dtype):
                    assert ratio <= limit, (what, ratio, limit)

    compare()


@every_exact_engine
def test_empty_batches_give_zero(name: str) -> None:
    net, theta_RP, examples, clip_R = problem("mlp tanh", 2, 3, seed=1)
    none = replace(examples, mask_RB=torch.zeros_like(examples.mask_RB))
    for chunk in (1, 2, 10):
        found = ENGINES[name](net, theta_RP, none, clip_R, chunk)
        assert all(bool((value == 0).all()) for value in vars(found).values())
    one = examples.part(0, 1)
    half = replace(one, mask_RB=torch.tensor([[True], [False]]))
    found = ENGINES[name](net, theta_RP, half, clip_R, 1)
    assert float(found.sum_RP[0].norm()) > 0
    assert float(found.sum_RP[1].norm()) == 0


@every_exact_engine
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chunks_change_nothing(name: str, dtype: torch.dtype) -> None:
    """All chunk sizes 1..B+1 against one chunk.

    The same example in a batch of another size meets the same terms in another order: at most 2·n roundings of each
    entry, n ≤ 100 being the terms of its sums over two layers; the sum over B places adds B roundings. Relative to
    the sum of the clipped norms.
    """
    net, theta_RP, examples, clip_R = problem("mlp tanh", 2, 7, seed=4)
    theta_RP, examples = theta_RP.to(dtype), cast(examples, dtype)
    whole: Clipped = ENGINES[name](net, theta_RP, examples, clip_R, 7)
    added_R = whole.norm_RB.double().minimum(clip_R[:, None]).sum(1)
    for chunk in range(1, 9):
        part = ENGINES[name](net, theta_RP, examples, clip_R, chunk)
        error_R = (part.sum_RP - whole.sum_RP).double().norm(dim=1)
        assert bool((error_R <= (2 * 100 + 7) * unit(dtype) * added_R).all()), chunk


@every_exact_engine
def test_stack_is_each_run_alone(name: str) -> None:
    """float64, the limit of `test_chunks_change_nothing`."""
    net, theta_RP, examples, clip_R = problem("mlp tanh", 3, 6, seed=7)
    whole = ENGINES[name](net, theta_RP, examples, clip_R, 4)
    for run in range(3):
        part = slice(run, run + 1)
        one = Examples(examples.inputs[part], examples.targets[part], examples.mask_RB[part])
        alone = ENGINES[name](net, theta_RP[part], one, clip_R[part], 4)
        limit = (2 * 100 + 7) * unit(torch.float64) * float(alone.norm_RB.clamp_max(float(clip_R[run])).sum())
        assert float((alone.sum_RP[0] - whole.sum_RP[run]).norm()) <= limit


@every_exact_engine
@pytest.mark.parametrize("model", ["mlp relu", "tfp_cnn relu", "normalised"])
def test_each_example_adds_at_most_the_clip_norm(name: str, model: str) -> None:
    """Every place is its own run with a batch of one. (P + 10)·u above C in the worst case, see `rounding`."""
    net, theta_RP, examples, _ = problem(model, 1, 6, seed=11)
    inputs, targets = examples.inputs.float().transpose(0, 1), examples.targets.T
    many = Examples(inputs, targets, torch.ones(6, 1, dtype=torch.bool))
    theta_6P = theta_RP.float().expand(6, -1).contiguous()
    for clip in (1e-6, 0.01, 1.0, 300.0):
        found = ENGINES[name](net, theta_6P, many, torch.full((6,), clip, dtype=torch.float64), 1)
        norm_R = found.sum_RP.double().norm(dim=1)
        single, _ = clipping_sensitivity.rounding(torch.float32, 1, net.size)
        assert bool((norm_R <= clip * (1 + single)).all())
        expected = found.norm_RB[:, 0].double().clamp_max(clip)
        assert bool(((norm_R - expected).abs() <= 2 * single * expected).all()), "clipped to C, not below"


@every_exact_engine
def test_measured_excess_over_the_clip_norm_is_a_few_units(name: str) -> None:
    """The largest shipped model: 26,010 float32 parameters. Summing P squares in lanes keeps far from the worst case.

    64 units of rounding is what a random walk of 26,010 / 8 additions gives (57, and 7 for the rest).
    """
    net = network(tfp_cnn.model((1, 28, 28), 10))
    generator = torch.Generator().manual_seed(2)
    theta_RP = torch.stack([initial_parameters(lambda: tfp_cnn.model((1, 28, 28), 10), run) for run in range(4)])
    inputs = torch.rand(4, 1, 1, 28, 28, generator=generator)
    examples = Examples(inputs, torch.arange(4)[:, None], torch.ones(4, 1, dtype=torch.bool))
    found = ENGINES[name](net, theta_RP, examples, torch.full((4,), 0.5, dtype=torch.float64), 1)
    assert bool((found.norm_RB > 0.5).all()), "all are clipped"
    assert float((found.sum_RP.double().norm(dim=1) / 0.5 - 1).abs().max()) <= 64 * unit(torch.float32)


@every_exact_engine
@pytest.mark.parametrize("power", [-40, -7, 1, 20])
def test_scaling_gradients_and_clip_norm_scales_the_sum(name: str, power: int) -> None:
    """A linear layer at zero has gradients proportional to its input; a power of two scales every bit alike: exact."""
    net, scale = linear_network(6, 4), 2.0**power
    examples = cast(batch(torch.Generator().manual_seed(3), 2, 5), torch.float32)
    theta_RP, clip_R = torch.zeros(2, net.size), torch.tensor([0.5, 8.0], dtype=torch.float64)
    base = ENGINES[name](net, theta_RP, examples, clip_R, 3)
    big = ENGINES[name](net, theta_RP, replace(examples, inputs=examples.inputs * scale), clip_R * scale, 3)
    assert torch.equal(big.sum_RP, base.sum_RP * scale)
    assert torch.equal(big.norm_RB, base.norm_RB * scale)
    assert torch.equal(big.loss_RB, base.loss_RB)


@every_exact_engine
@pytest.mark.parametrize("model", ["mlp tanh", "tied weights", "normalised"])
def test_infinite_clip_norm_gives_the_plain_sum(name: str, model: str) -> None:
    """Against the sum of the rule `none` and the definition; 10^4 roundings, see `clipping_reference`."""
    net, theta_RP, examples, _ = problem(model, 2, 5, seed=5)
    never_R = torch.full((2,), math.inf, dtype=torch.float64)
    found = ENGINES[name](net, theta_RP, examples, never_R, 2)
    draw = Draw(table([0, 1]), torch.zeros(2).long(), torch.zeros(2, 5).long(), torch.ones(2).double(), 5)
    plain = Unclipped().summed(draw, net, theta_RP, examples, never_R, 3)
    for other in (plain, reference(net, theta_RP, examples, never_R)):
        limit_R = 1e4 * unit(torch.float64) * found.norm_RB.sum(1)
        assert bool(((found.sum_RP - other.sum_RP).norm(dim=1) <= limit_R).all())


@every_exact_engine
def test_small_gradients_are_left_alone(name: str) -> None:
    """Below C the factor is exactly 1, whatever C is; with a norm of zero as well."""
    net = linear_network(6, 4)
    theta_RP = torch.zeros(1, net.size)
    for size in (0.0, 1e-30, 1e-12, 1.0):
        inputs = torch.full((1, 1, 6), size)
        examples = Examples(inputs, torch.tensor([[1]]), torch.ones(1, 1, dtype=torch.bool))
        near, far = (ENGINES[name](net, theta_RP, examples, torch.tensor([c]).double(), 1) for c in (10.0, math.inf))
        assert torch.equal(near.sum_RP, far.sum_RP)
        expected = torch.outer(torch.tensor([0.25, -0.75, 0.25, 0.25]), inputs[0, 0]).flatten()
        assert torch.allclose(near.sum_RP[0], expected, rtol=4 * unit(torch.float32), atol=0)


@every_exact_engine
def test_order_of_the_examples_does_not_matter(name: str) -> None:
    """Sums in another order: the limit of `test_chunks_change_nothing`; norms and losses move with their examples."""
    net, theta_RP, examples, clip_R = problem("mlp tanh", 2, 7, seed=9)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(1))
    moved = Examples(examples.inputs[:, order], examples.targets[:, order], examples.mask_RB[:, order])
    found, other = (ENGINES[name](net, theta_RP, e, clip_R, 3) for e in (examples, moved))
    limit_R = (2 * 100 + 7) * unit(torch.float64) * found.norm_RB.minimum(clip_R[:, None]).sum(1)
    assert bool(((found.sum_RP - other.sum_RP).norm(dim=1) <= limit_R).all())
    assert torch.allclose(found.norm_RB[:, order], other.norm_RB, rtol=1e-12, atol=0)
    assert torch.allclose(found.loss_RB[:, order], other.loss_RB, rtol=1e-12, atol=1e-14)


@every_exact_engine
def test_inputs_are_left_as_they_were(name: str) -> None:
    net, theta_RP, examples, clip_R = problem("mlp tanh", 2, 3, seed=2)
    before = [value.clone() for value in (theta_RP, examples.inputs, examples.targets, examples.mask_RB, clip_R)]
    found = ENGINES[name](net, theta_RP, examples, clip_R, 2)
    after = (theta_RP, examples.inputs, examples.targets, examples.mask_RB, clip_R)
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert not any(value.requires_grad for value in vars(found).values())


def poisoned(value: float) -> tuple[Network, Tensor, Examples, Examples, Tensor]:
    """Two good examples and an empty place that holds `value`; and the same with a harmless number there."""
    net = small_network()
    generator = torch.Generator().manual_seed(6)
    good = cast(batch(generator, 1, 3), torch.float32)
    mask_RB = torch.tensor([[True, True, False]])
    bad_inputs = good.inputs.clone()
    bad_inputs[0, 2] = value
    theta_RP = torch.randn(1, net.size, generator=generator)
    clip_R = torch.ones(1, dtype=torch.float64)
    return net, theta_RP, replace(good, mask_RB=mask_RB), Examples(bad_inputs, good.targets, mask_RB), clip_R


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
@every_exact_engine
def test_empty_places_add_nothing_whatever_they_hold(name: str, value: float) -> None:
    """`Clipped`: norm and loss are 0 at empty places; `clip_factor`: 0 at empty places.

    Whatever fills them, only examples that were drawn may change the sum.
    """
    net, theta_RP, good, bad, clip_R = poisoned(value)
    expected, found = (ENGINES[name](net, theta_RP, e, clip_R, 3) for e in (good, bad))
    assert torch.equal(found.sum_RP, expected.sum_RP)
    assert torch.equal(found.norm_RB, expected.norm_RB)
    assert torch.equal(found.loss_RB, expected.loss_RB)


@every_exact_engine
def test_engines_touch_no_global_generator(name: str) -> None:
    net, theta_RP, examples, clip_R = problem("mlp relu", 1, 3, seed=2)
    before = torch.get_rng_state()
    ENGINES[name](net, theta_RP, examples, clip_R, 2)
    assert torch.equal(before, torch.get_rng_state())


def test_catalog_has_the_yardstick_and_the_default() -> None:
    assert {"loop", "vmap"} <= set(ENGINES)
    assert {"loop", "vmap"} <= set(EXACT)
    for entry in catalog("clipping").values():
        module: Any = __import__(entry.module, fromlist=["NUMERICS"])
        assert isinstance(module.NUMERICS, int), f"{entry.module} must declare its numerics version"
