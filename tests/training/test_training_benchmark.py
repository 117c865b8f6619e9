"""Time of the hot paths of a job (pytest-benchmark): few rounds in a normal run, and every answer is checked.

`pytest tests/training/test_training_benchmark.py --benchmark-group-by=group` compares; `tests/speed/` watches history.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpbench import randomness
from dpbench.catalog import catalog
from dpbench.clipping import loop
from dpbench.datasets import find_dataset
from dpbench.judging.check_tools import problems
from dpbench.mechanisms.presets import noisy_sgd
from dpbench.models import mlp
from dpbench.plan.planning import Choices, make_plan
from dpbench.spec.loading import load_specs
from dpbench.step.clipped_sum import Examples
from dpbench.step.functional import initial_parameters, network
from dpbench.step.mechanism import Hyperparameters
from dpbench.step.mechanism import step as one_step
from dpbench.step.samplers.poisson import PoissonSampler
from dpbench.store.records import Store
from dpbench.training.execution import Execution

pytestmark = pytest.mark.usefixtures("one_thread")

QUICKSTART = Path(__file__).parents[2] / "specs" / "quickstart"
BATCH = 256


def timed(benchmark: Any, work: Any, *arguments: Any, rounds: int = 3, **options: Any) -> Any:
    """One untimed round, then a few timed ones; the answer of the last."""
    return benchmark.pedantic(work, arguments, options, rounds=rounds, iterations=1, warmup_rounds=1)


def build() -> nn.Module:
    return mlp.model((1, 8, 8), 10)


def parameters(runs: int) -> Tensor:
    return torch.stack([initial_parameters(build, seed) for seed in range(runs)])


def hyperparameters(runs: int, rate: float) -> Hyperparameters:
    return problems.hyperparameters(range(runs), rate, learning_rate=1.0)


@pytest.mark.benchmark(group="training step")
@pytest.mark.parametrize("runs", [1, 16])
def test_training_step(benchmark: Any, runs: int) -> None:
    data = find_dataset("digits").load(None)
    net, mechanism = network(build()), noisy_sgd()
    numbers = hyperparameters(runs, BATCH / len(data.train_targets))
    start = mechanism.start(parameters(runs), numbers, data.train_inputs, data.train_targets)
    chunk = Execution().chunk(runs, net.size)
    problem = (numbers, data.train_inputs, data.train_targets)
    state, seen = timed(benchmark, one_step, mechanism, net, start, *problem, chunk)
    assert state.step_R.tolist() == [1] * runs
    # Binomial(1437, 0.178): 256 on average with deviation 14.5; eight of them either way
    assert ((seen.drawn_R - BATCH).abs() < 8 * 14.5).all()
    last = torch.tensor([runs - 1])
    alone, _ = one_step(mechanism, net, start.take(last), numbers.take(last), data.train_inputs, data.train_targets, 50)
    # the last run alone and in other pieces: float32 sums of about 256 terms, √256 · 6e-8 of numbers of order 1
    torch.testing.assert_close(state.theta_RP[-1:], alone.theta_RP, rtol=0, atol=1e-5)
    assert not torch.equal(state.theta_RP, start.theta_RP)


@pytest.mark.benchmark(group="Poisson sampling")
@pytest.mark.parametrize("runs", [1, 16])
def test_poisson_sampling(benchmark: Any, runs: int) -> None:
    rate_R = torch.full((runs,), BATCH / 60_000, dtype=torch.float64)
    batch = timed(
        benchmark, PoissonSampler(), randomness.table(range(runs)), torch.zeros(runs, dtype=torch.int64), rate_R, 60_000
    )
    # deviation of Binomial(60000, 256/60000): 16; eight of them either way
    assert ((batch.mask_RB.sum(1) - BATCH).abs() < 8 * 16).all()
    first = batch.index_RB[0][batch.mask_RB[0]]
    assert (first.diff() > 0).all()
    assert first.max() < 60_000


@pytest.mark.benchmark(group="normals")
@pytest.mark.parametrize("runs", [1, 16])
def test_normals(benchmark: Any, runs: int) -> None:
    count = 160_000 // runs
    zero_R = torch.zeros(runs, dtype=torch.int64)
    drawn = timed(benchmark, randomness.normal, randomness.table(range(runs)), randomness.NOISE, zero_R, count).double()
    assert drawn.shape == (runs, count)
    # of 160,000 normals the mean deviates by 1/400 and the variance by √2/400: six of each either way
    assert abs(drawn.mean().item()) < 6 / 400
    assert abs(drawn.var().item() - 1) < 6 * 2**0.5 / 400


@pytest.mark.benchmark(group="plan")
def test_load_specs(benchmark: Any) -> None:
    specs = timed(benchmark, load_specs, [QUICKSTART])
    assert len({spec.name for spec in specs}) == len(list(QUICKSTART.glob("*.yaml")))


@pytest.mark.benchmark(group="plan")
def test_plan(benchmark: Any, tmp_path: Path) -> None:
    specs = load_specs([QUICKSTART])
    plan = timed(benchmark, make_plan, specs, Store(tmp_path), Choices(device="cpu"))
    assert len({run.key for run in plan.runs}) == len(plan.runs) == sum(len(spec.seeds) for spec in specs)
    assert {run.action for run in plan.runs} == {"train"}


@pytest.mark.benchmark(group="clipping")
@pytest.mark.parametrize("engine", sorted(catalog("clipping")))
def test_clipping(benchmark: Any, engine: str) -> None:
    """Two runs of 32 examples, the last places empty."""
    runs, places = 2, 32
    generator = torch.Generator().manual_seed(0)
    net, theta_RP, clip_R = network(build()), parameters(runs), torch.full((runs,), 0.5, dtype=torch.float64)
    mask_RB = torch.ones(runs, places, dtype=torch.bool)
    mask_RB[1, 20:] = False
    inputs = torch.rand(runs, places, 1, 8, 8, generator=generator)
    examples = Examples(inputs, torch.randint(10, (runs, places), generator=generator), mask_RB)
    clipped = timed(benchmark, catalog("clipping")[engine].load(), net, theta_RP, examples, clip_R, places)
    # each of at most 32 gradients has norm at most 0.5 after clipping, up to float32
    assert (clipped.sum_RP.norm(dim=1) <= 0.5 * mask_RB.sum(1) * (1 + 1e-5)).all()
    assert (clipped.norm_RB[mask_RB] > 0).all()
    assert (clipped.norm_RB[~mask_RB] == 0).all()
    # the yardstick's sums; 32 terms of size at most 0.5 in another order: 32 · 0.5 · 6e-8
    expected = loop.clipping(net, theta_RP, examples, clip_R, places)
    torch.testing.assert_close(clipped.sum_RP, expected.sum_RP, rtol=0, atol=32 * 0.5 * 6e-8 * 8)
