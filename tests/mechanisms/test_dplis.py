"""DPlis: the smoothed gradient on losses where it is known, its draws, its sensitivity, and what it goes with.

That a step is Algorithm 2, number by number, is in tests/contracts/test_mechanisms.py (`test_step_is_the_algorithm`).
Statistical tests have a false alarm of at most 1e-9 for each number compared (`DEVIATIONS`); seeds are fixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dpbench import randomness
from dpbench.clipping import loop, vmap
from dpbench.clipping.rules.jl import ProjectedSum
from dpbench.errors import DpbenchError, ProblemsError
from dpbench.judging.check_tools.problems import batch, hyperparameters, reference, small_network
from dpbench.judging.check_tools.steps import shown
from dpbench.mechanisms.pipeline import mechanism as pipeline
from dpbench.mechanisms.presets import dplis, noisy_sgd
from dpbench.plan.planning import Choices, make_plan
from dpbench.randomness import NOISE, SMOOTHING
from dpbench.spec.loading import load_specs
from dpbench.step.clipped_sum import Draw, Examples
from dpbench.step.functional import Network, network, smoothed
from dpbench.step.mechanism import State, step
from dpbench.step.smoothings.gaussian import GaussianSmoothing
from dpbench.store.records import Store

pytestmark = pytest.mark.usefixtures("one_thread")

N, SIZE = 12, 5
DEVIATIONS = 6.2  # of a normal number: beyond with probability 6e-10


@dataclass(frozen=True)
class Of(Network):
    """A network whose loss of an example x is a function of its weights θ and x, not the cross-entropy."""

    quadratic: bool = True

    def example_loss(
        self, named: dict[str, Tensor], example: Tensor, target: Tensor, operators: TorchFunctionMode | None = None
    ) -> Tensor:
        del target, operators
        theta_P = named["weight"][0]
        if self.quadratic:
            apart_P = theta_P - example
            return 0.5 * apart_P @ curvature() @ apart_P
        return (torch.sin(theta_P) * example).sum()


def curvature() -> Tensor:
    """A symmetric matrix (P, P)."""
    root = torch.arange(SIZE * SIZE, dtype=torch.float64).reshape(SIZE, SIZE).sin()
    return root @ root.T


def of(quadratic: bool, size: int = SIZE) -> Network:
    plain = network(nn.Linear(size, 1, bias=False))
    return Of(plain.module, plain.shapes, plain.size, quadratic)


def gradient(net: Network, theta_P: Tensor, example_P: Tensor) -> Tensor:
    """The gradient (P,) of one example, not clipped."""
    alone = Examples(example_P[None, None], torch.zeros(1, 1).long(), torch.ones(1, 1) > 0)
    return vmap.clipping(net, theta_P[None], alone, torch.tensor([math.inf]).double(), 1).sum_RP[0]


def drawn(runs: int = 1, step: int = 0, examples: int = 40) -> Draw:
    rate_R = torch.full((runs,), 0.25, dtype=torch.float64)
    index_RB = torch.zeros(runs, 1, dtype=torch.int64)
    return Draw(randomness.table(range(runs)), torch.full((runs,), step), index_RB, rate_R, examples)


def shifts(count: int, radius: float, runs: int = 1, step: int = 0, size: int = SIZE, rate: float = 0.2) -> Tensor:
    """The shifts (R, K, P) with learning rate 0.2, σC = 3 and L = 10."""
    whole_R = torch.ones(runs, dtype=torch.float64)
    found = GaussianSmoothing(count, radius).shifts(drawn(runs, step), rate * whole_R, 3 * whole_R, size, torch.float64)
    assert found is not None
    return found


SPREAD = 10 * 0.2 / 10 * 3  # RησC/L with R = 10
THETA_P = torch.linspace(-1, 2, SIZE, dtype=torch.float64)
EXAMPLE_P = torch.linspace(0.5, -0.7, SIZE, dtype=torch.float64)


# The smoothed gradient where it is known


@pytest.mark.parametrize("count", [1, 2, 7])
def test_quadratic_with_the_same_shifts(count: int) -> None:
    """½(θ − x)ᵀA(θ − x) at the mean of the shifted places has the mean gradient A(θ + Δ̄ − x); rounding of float64."""
    shifts_KP = shifts(count, 10.0)[0]
    expected_P = curvature() @ (THETA_P + shifts_KP.mean(0) - EXAMPLE_P)
    assert torch.allclose(gradient(smoothed(of(True), shifts_KP), THETA_P, EXAMPLE_P), expected_P, rtol=0, atol=1e-12)
    assert not torch.allclose(gradient(of(True), THETA_P, EXAMPLE_P), expected_P, rtol=0, atol=1e-2)


def test_quadratic_on_average() -> None:
    """The smoothed gradient is A(θ − x). The mean of K draws is off by A·N(0, s²/K) in each of 100 runs."""
    runs, count = 100, 5
    each_RKP = shifts(count, 10.0, runs=runs)
    mean_P = torch.stack([curvature() @ (THETA_P + one.mean(0) - EXAMPLE_P) for one in each_RKP]).mean(0)
    of_code_P = gradient(smoothed(of(True), each_RKP.flatten(0, 1)), THETA_P, EXAMPLE_P)
    assert torch.allclose(of_code_P, mean_P, rtol=0, atol=1e-11)  # 500 float64 numbers below 10 are added up
    deviation_P = curvature().norm(dim=1) * SPREAD / math.sqrt(runs * count)
    smooth_P = curvature() @ (THETA_P - EXAMPLE_P)
    assert bool(((of_code_P - smooth_P).abs() <= DEVIATIONS * deviation_P).all())
    assert float(smooth_P.abs().max()) > 5 * DEVIATIONS * float(deviation_P.max()), "a fifth off would be seen"


@pytest.mark.parametrize("radius", [1.0, 10.0, 40.0])
def test_sine_on_average(radius: float) -> None:
    """E cos(θ + Δ) = cos θ·e^(−s²/2), with variance (1 + cos 2θ·e^(−2s²))/2 − cos²θ·e^(−s²), for s = RησC/L.

    Each of five θ stands 800 times among the parameters, and each has 25 shifts of its own: 20,000 draws.
    """
    samples, times = 25, 800
    count, spread = samples * times, SPREAD * radius / 10
    net, shifts_KP = of(False, SIZE * times), shifts(samples, radius, size=SIZE * times)[0]
    found_P = gradient(smoothed(net, shifts_KP), THETA_P.repeat(times), torch.ones(SIZE * times).double())
    found_P = found_P.reshape(times, SIZE).mean(0)
    variance_P = (1 + (2 * THETA_P).cos() * math.exp(-2 * spread**2)) / 2
    variance_P -= THETA_P.cos().square() * math.exp(-(spread**2))
    error_P = found_P - THETA_P.cos() * math.exp(-(spread**2) / 2)
    assert bool((error_P.abs() <= DEVIATIONS * (variance_P / count).sqrt()).all())
    assert float((variance_P / count).sqrt().max()) < 0.01


# The shifts


def test_the_scale_is_linear_in_all_that_equation_6_has() -> None:
    """R, η, σC and 1/L, and nothing else; the same numbers ν_j behind all of them."""
    one = shifts(3, 10.0)
    assert torch.allclose(shifts(3, 20.0), 2 * one, rtol=1e-14)
    assert torch.allclose(shifts(3, 10.0, rate=0.05), one / 4, rtol=1e-14)
    three = torch.full((1,), 3.0, dtype=torch.float64)
    for examples, sampled, deviation, times in ((80, 0.25, 3.0, 0.5), (40, 0.5, 3.0, 0.5), (40, 0.25, 1.5, 0.5)):
        draw = replace(drawn(examples=examples), rate_R=torch.full((1,), sampled).double())
        found = GaussianSmoothing(3, 10.0).shifts(draw, three / 15, three / 3 * deviation, SIZE, torch.float64)
        assert found is not None
        assert torch.allclose(found, times * one, rtol=1e-14)


def test_shifts_are_new_in_every_step_run_and_place_and_unlike_the_noise() -> None:
    many = [shifts(4, 10.0, runs=2, step=at) for at in (0, 1, 2)]
    rows = torch.stack(many).flatten(0, 2)
    assert len({tuple(row) for row in rows.tolist()}) == len(rows) == 3 * 2 * 4
    noise = randomness.normal(drawn().keys_RS, NOISE, drawn().step_R, 4 * SIZE, dtype=torch.float64)
    assert not set((SPREAD * noise).flatten().tolist()) & set(rows.flatten().tolist())
    again = randomness.normal(drawn().keys_RS, SMOOTHING, drawn().step_R, 4 * SIZE, dtype=torch.float64)
    assert torch.allclose(SPREAD * again.reshape(4, SIZE), many[0][0], rtol=1e-14)


def test_more_samples_begin_with_the_same() -> None:
    assert torch.equal(shifts(7, 10.0)[:, :3], shifts(3, 10.0))


# Steps


def data() -> tuple[Network, Tensor, Tensor]:
    found = batch(torch.Generator().manual_seed(1), 1, N)
    return small_network(), found.inputs[0].tanh().double(), found.targets[0]


STACK: dict[str, Any] = {
    "seeds": [5, 6],
    "sampling_rate": [0.4, 0.7],
    "learning_rate": [0.1, 0.5],
    "clip_norm": [1.0, 0.2],
    "noise_multiplier": [1.0, 2.0],
}


def trained(made: Any, run: int | None = None, steps: int = 3, begun: State | None = None) -> State:
    """A stack of two unlike runs, or one of them alone."""
    chosen = STACK if run is None else {name: values[run : run + 1] for name, values in STACK.items()}
    net, inputs, targets = data()
    stack = hyperparameters(**chosen)
    theta_P = 0.5 * torch.randn(net.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    state = made.start(theta_P.repeat(len(chosen["seeds"]), 1), stack, inputs, targets) if begun is None else begun
    for _ in range(steps):
        state, _ = step(made, net, state, stack, inputs, targets, 5)
    return state


def test_radius_0_is_noisy_sgd_bit_for_bit() -> None:
    assert torch.equal(trained(dplis(smoothing_radius=0)).theta_RP, trained(noisy_sgd()).theta_RP)
    assert not torch.equal(trained(dplis(smoothing_samples=1)).theta_RP, trained(noisy_sgd()).theta_RP)


def test_the_ledger_is_that_of_noisy_sgd() -> None:
    asked = {"sampling_rate": 0.01, "noise_multiplier": 1.1, "steps": 700}
    assert dplis(smoothing_radius=40.0).ledger(**asked) == noisy_sgd().ledger(**asked)
    assert dplis().facts() == noisy_sgd().facts()


COMBINED: dict[str, dict[str, Any]] = {
    "jl": {"clip": {"name": "jl", "parameters": {"projections": 3}}},
    "adam": {"update": "adam"},
    "microbatches": {"clip": {"name": "microbatch", "parameters": {"microbatch_size": 2}}},
    "decaying": {"noise": {"name": "decaying", "parameters": {"noise_decay": 0.5}}},
    "loop": {"engine": "loop"},
}
SMOOTH = {"name": "gaussian", "parameters": {"smoothing_samples": 2}}


@pytest.mark.parametrize("name", COMBINED)
def test_with_other_stages_alone_in_a_stack_and_after_a_resume(name: str) -> None:
    """Rounding of float64 over three steps with parameters below 10, as in the contracts: 2e-10."""
    made, plain = pipeline(smooth=SMOOTH, **COMBINED[name]), pipeline(**COMBINED[name])
    stacked = trained(made).theta_RP
    for run in range(2):
        assert float((trained(made, run).theta_RP[0] - stacked[run]).abs().max()) < 2e-10
    assert torch.equal(trained(made, steps=2, begun=trained(made, steps=1)).theta_RP, stacked)
    assert float((trained(plain).theta_RP - stacked).abs().max()) > 1e-6
    asked = {"sampling_rate": 0.4, "noise_multiplier": 1.0, "steps": 5}
    assert made.ledger(**asked) == plain.ledger(**asked)


def test_decaying_noise_shifts_by_the_noise_of_the_step() -> None:
    """With q = 1 every step is an epoch: in step 2 σ is e^(−2k) times as large, and so is the shift."""
    seen: list[float] = []

    @dataclass(frozen=True)
    class Noted(GaussianSmoothing):
        def shifts(self, draw: Draw, learning_rate_R: Tensor, deviation_R: Tensor, *rest: Any) -> Tensor | None:
            seen.append(float(deviation_R))
            return super().shifts(draw, learning_rate_R, deviation_R, *rest)

    made = replace(pipeline(**COMBINED["decaying"]), smoothing=Noted(1))
    net, inputs, targets = data()
    stack = hyperparameters([1], 1.0, clip_norm=0.7, noise_multiplier=2.0)
    list(shown(made, net, torch.zeros(1, net.size).double(), stack, inputs, targets, 3))
    assert seen == pytest.approx([1.4 * math.exp(-0.5 * at) for at in range(3)], rel=1e-14)


def test_one_record_adds_at_most_C_and_the_mean_is_clipped() -> None:
    """Of gradients that point apart the mean is short: clipped before the mean, it would be another sum.

    float32: a norm of 94 numbers and a division have a relative error below 1e-5.
    """
    net, inputs, targets = data()
    theta_1P = torch.randn(1, net.size, generator=torch.Generator().manual_seed(3))
    shifts_KP = 3 * torch.randn(6, net.size, generator=torch.Generator().manual_seed(4))
    ones = torch.ones(1, 1) > 0
    differ = 0
    for example, target in zip(1e2 * inputs.float(), targets, strict=True):
        alone = Examples(example[None, None], target[None, None], ones)
        for clip in (0.05, 1.0, 30.0):
            clip_R = torch.tensor([clip]).double()
            found = vmap.clipping(smoothed(net, shifts_KP), theta_1P, alone, clip_R, 1).sum_RP[0]
            six = Examples(alone.inputs.expand(6, -1, -1), alone.targets.expand(6, -1), ones.expand(6, -1))
            whole, cut = (
                reference(net, theta_1P + shifts_KP, six, torch.full((6,), most).double()).sum_RP.mean(0)
                for most in (math.inf, clip)
            )
            expected = whole * min(1.0, clip / float(whole.norm()))
            assert float(found.norm()) <= clip * (1 + 1e-5)
            assert float((found - expected).norm()) <= 1e-4 * clip
            differ += float((cut - expected).norm()) > 0.1 * clip
    assert differ >= 10


def test_jl_projects_the_smoothed_gradients() -> None:
    """Without clipping both sums are those of the smoothed gradients; float64, and sums of 12 examples.

    With 400 projections an estimate of a norm is within 10 times 1/√800 of it: the law of √(χ²_400/400).
    """
    net, inputs, targets = data()
    theta_1P = torch.randn(1, net.size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    moved = smoothed(net, 0.5 * torch.randn(2, net.size, generator=torch.Generator().manual_seed(4)).double())
    examples = Examples(inputs[None], targets[None], torch.ones(1, N) > 0)
    whole_R = torch.tensor([math.inf]).double()
    exact = vmap.clipping(moved, theta_1P, examples, whole_R, N)
    draw = replace(drawn(examples=N), index_RB=torch.arange(N)[None])
    found = ProjectedSum(400).summed(draw, moved, theta_1P, examples, whole_R, N)
    assert torch.allclose(found.sum_RP, exact.sum_RP, rtol=0, atol=1e-10)
    assert torch.allclose(found.loss_RB, exact.loss_RB, rtol=0, atol=1e-12)
    assert float((found.norm_RB / exact.norm_RB - 1).abs().max()) < 10 / math.sqrt(800)
    other = loop.clipping(moved, theta_1P, examples, whole_R, N)
    assert torch.allclose(other.sum_RP, exact.sum_RP, rtol=0, atol=1e-10)


def test_random_numbers_of_the_operating_system() -> None:
    """No keys: the shifts have the same law and are new each time."""
    secure = replace(drawn(), keys_RS=torch.empty(1, 0, dtype=torch.int64))
    one_R = torch.ones(1, dtype=torch.float64)
    found = [GaussianSmoothing(2, 1.0).shifts(secure, one_R, 10 * one_R, 2000, torch.float64) for _ in range(2)]
    assert found[0] is not None
    assert found[1] is not None
    assert not torch.equal(found[0], found[1])
    squares = float(found[0].square().sum())  # chi-square with 4,000 degrees of freedom
    assert abs(squares - 4000) < 8 * math.sqrt(8000)


# What it refuses


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "ten", None])
def test_bad_samples_are_refused(count: Any) -> None:
    with pytest.raises(DpbenchError, match=r"smoothing_samples = .*: expected a whole number, 1 or more"):
        dplis(smoothing_samples=count)


@pytest.mark.parametrize("radius", [-0.1, math.inf, math.nan, "wide", True, None])
def test_bad_radii_are_refused(radius: Any) -> None:
    with pytest.raises(DpbenchError, match=r"smoothing_radius = .*: expected a finite number, 0 \(no smoothing\)"):
        dplis(smoothing_radius=radius)


def test_without_noise_there_is_no_scale() -> None:
    with pytest.raises(DpbenchError, match="smooth: its scale is a multiple of the noise"):
        pipeline(clip="none", noise="none", smooth="gaussian")


def test_an_engine_that_watches_the_parameters_in_the_loss_is_refused() -> None:
    net, inputs, targets = data()
    moved = smoothed(net, torch.ones(1, net.size).double())
    with pytest.raises(DpbenchError, match="smooth: the engine watches the parameters"):
        moved.example_loss({}, inputs[0], targets[0], TorchFunctionMode())


def test_ghost_trains_the_same() -> None:
    """In float64 over three steps, as above: 2e-10."""
    expected, found = (trained(dplis(smoothing_samples=3, clipping=engine)).theta_RP for engine in ("loop", "ghost"))
    assert float((expected - found).abs().max()) < 2e-10
    assert dplis().places_of_a_record == 10


def test_a_rule_that_takes_outputs_is_refused() -> None:
    net, inputs, _ = data()
    with pytest.raises(DpbenchError, match="smooth: a smoothed loss has no outputs"):
        smoothed(net, torch.ones(1, net.size).double()).outputs({}, inputs)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("{smoothing_samples: 0}", "smoothing_samples = 0"),
        ("{smoothing_radius: -1}", "smoothing_radius = -1"),
        ("{smoothing_radius: .inf}", "smoothing_radius"),
        ("{smoothing_radios: 3}", "smoothing_radius"),
    ],
)
def test_a_spec_is_refused_before_training(tmp_path: Path, parameters: str, said: str) -> None:
    (tmp_path / "spec.yaml").write_text(
        "kind: run\nname: smooth\ndataset: digits\nmodel: logistic\n"
        f"mechanism: {{name: dplis, parameters: {parameters}}}\n"
        "budget: {noise_multiplier: 1.0, delta: 1e-4}\n"
        "training: {batch_size: 256, epochs: 1, learning_rate: 1.0, clip_norm: 1.0}\nseeds: 1\n"
    )
    with pytest.raises(ProblemsError, match=said):
        make_plan(load_specs([tmp_path / "spec.yaml"]), Store(tmp_path / "out"), Choices(device="cpu"))
