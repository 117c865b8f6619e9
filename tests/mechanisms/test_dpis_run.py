"""DPIS alone and in a stack, after a resume, on empty batches, and against importance sampling in plain Python."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dpbench import randomness
from dpbench.events import Gaussian
from dpbench.judging.check_tools.problems import hyperparameters, linear_network
from dpbench.judging.checks.philox_vectors import gauss, uniform
from dpbench.randomness import ESTIMATE, REJECT, SAMPLE
from dpbench.reporting.collect import collect
from dpbench.reporting.page import render
from dpbench.step.mechanism import Hyperparameters, State
from dpbench.step.mechanism import step as one_step
from dpbench.store.shapes import run_record
from tests.mechanisms.dpis_problems import (
    VARIANTS,
    N,
    begin,
    clipped_gradients,
    forced,
    go,
    parameters,
    problem,
    same,
    small,
)
from tests.store.record_samples import run_json

pytestmark = pytest.mark.usefixtures("one_thread")


# The same alone, in a stack, after a resume


MIXED: dict[str, Any] = {
    "sampling_rate": [3 / N, 2 / N, 4 / N],
    "learning_rate": [0.1, 0.02, 0.5],
    "clip_norm": [1.0, 0.2, 3.0],
    "epsilon": [200.0, 300.0, 600.0],
}


def mixed(*runs: int) -> Hyperparameters:
    chosen: dict[str, Any] = {name: [values[run] for run in runs] for name, values in MIXED.items()}
    return hyperparameters([6 + run for run in runs], steps=24, **chosen)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_alone_and_in_a_stack(variant: str) -> None:
    """Bits where there is no gradient; within rounding (derived in the contract tests) where there is."""
    dpis = small(variant=variant, adaptive_clipping=True, quantile=3.0, sum_noise=1.0)
    zeros = linear_network(8, 2), torch.zeros(N, 8), torch.arange(N) % 2
    whole = alone = small(variant=variant).start(torch.ones(3, zeros[0].size), mixed(0, 1, 2), *zeros[1:])
    pieces = [alone.take(torch.tensor([run])) for run in range(3)]
    for _ in range(6):
        whole, seen = one_step(small(variant=variant), zeros[0], whole, mixed(0, 1, 2), *zeros[1:], 5)
        for run in range(3):
            pieces[run], own = one_step(small(variant=variant), zeros[0], pieces[run], mixed(run), *zeros[1:], 5)
            assert torch.equal(own.drawn_R[0], seen.drawn_R[run])
            assert same(pieces[run], whole.take(torch.tensor([run])))
    net, inputs, targets = problem()
    state = dpis.start(parameters(net, 3), mixed(0, 1, 2), inputs, targets)
    ends = [state, state]
    singles = [state.take(torch.tensor([run])) for run in range(3)]
    for _ in range(8):
        ends = [
            one_step(dpis, net, end, mixed(0, 1, 2), inputs, targets, chunk)[0]
            for end, chunk in zip(ends, (N, 5), strict=True)
        ]
        singles = [one_step(dpis, net, one, mixed(run), inputs, targets, 3)[0] for run, one in enumerate(singles)]
    assert float((ends[0].theta_RP - ends[1].theta_RP).abs().max()) < 2e-10
    for run in range(3):
        assert float((singles[run].theta_RP[0] - ends[0].theta_RP[run]).abs().max()) < 2e-10


def drawn_at(away: float, dtype: torch.dtype, runs: list[int], chunk: int, clipping: str) -> list[int]:
    """How many each run draws where every coin lies next to its probability p: at p·(1 − away), p·(1 + away) in turn.

    Everybody is looked at, and the remembered norms are such that p = norm/ĝ is that close to the coin.
    """
    count = 60
    net, inputs, targets = problem(torch.float64, count)
    theta_RP, stack = parameters(net, 3), hyperparameters([5, 6, 7], 2 / count, clip_norm=1e9)
    coin_RN = randomness.uniform_bits(stack.keys_RS, REJECT, torch.zeros(3, dtype=torch.int64), count) / 2.0**53
    side_N = torch.where(torch.arange(count) % 2 == 0, 1 + away, 1 / (1 + away))
    norm_N = clipped_gradients(net, theta_RP[0], inputs, targets, math.inf).norm(dim=1)
    reach_RN = norm_N / (coin_RN * side_N).clamp(max=1.0)
    dpis = small(variant="equation_7", norm_floor=1e-9, clipping=clipping)
    state = dpis.start(theta_RP.to(dtype), stack, inputs.to(dtype), targets)
    state = forced(state, seen_RN=reach_RN / dpis.oversampling, sum_R=1e-30, bound_R=1e9, noise_R=0.0)
    at = torch.tensor(runs)
    _, seen = one_step(dpis, net, state.take(at), stack.take(at), inputs.to(dtype), targets, chunk)
    return seen.drawn_R.tolist()  # type: ignore[no-any-return]


WAYS = [
    (dtype, runs, chunk, clipping)
    for dtype in (torch.float32, torch.float64)
    for runs, chunk, clipping in (([0, 1, 2], 60, "vmap"), ([0], 60, "vmap"), ([0, 1], 7, "vmap"), ([0], 60, "ghost"))
]


def test_draws_are_the_same_wherever_no_coin_lies_within_rounding_of_its_probability() -> None:
    """1e-4 away, far more than float32 is off: half of the records, alone, in a stack, in parts, by another engine."""
    for way in WAYS:
        assert drawn_at(1e-4, *way) == [30] * len(way[1])


def test_a_coin_at_its_probability_falls_as_the_norm_is_rounded() -> None:
    """So batches are the same up to this chance, and no more can be promised; the same call draws the same."""
    found = [drawn_at(0.0, *way) for way in WAYS]
    assert len({drawn[0] for drawn in found}) > 1
    assert found == [drawn_at(0.0, *way) for way in WAYS]


def test_the_report_promises_the_same_batches_except_where_rounding_moves_them() -> None:
    """What a reader is told of a run that went on from a checkpoint, beside what happens at unlucky coins."""
    moved = len({drawn_at(0.0, *way)[0] for way in WAYS}) > 1
    page = render(collect([run_record(run_json())]))
    (told,) = [words for entry, words in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page) if "resumed" in entry]
    assert "the same batches and noise" in told
    assert ("for dpis unless rounding moves a probability across a uniform number" in told) is moved


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_going_on_from_a_saved_state_is_going_on(variant: str, dtype: torch.dtype) -> None:
    dpis = small(variant=variant, adaptive_clipping=True, quantile=3.0, sum_noise=1.0)
    middle = go(dpis, begin(dpis, mixed(0, 1, 2), dtype), mixed(0, 1, 2), 5)
    file = io.BytesIO()
    parts = {"theta": middle.theta_RP, "memory": dict(middle.memory), "step": middle.step_R}
    torch.save({**parts, "private": dict(middle.private)}, file)
    file.seek(0)
    kept = torch.load(file, weights_only=True)
    back = State(kept["theta"], kept["memory"], kept["step"], kept["private"])
    whole = go(dpis, begin(dpis, mixed(0, 1, 2), dtype), mixed(0, 1, 2), 12)
    assert same(go(dpis, back, mixed(0, 1, 2), 7), whole)
    assert dpis.released(go(dpis, back, mixed(0, 1, 2), 7), mixed(0, 1, 2)) == dpis.released(whole, mixed(0, 1, 2))


def test_a_step_changes_only_what_it_returns() -> None:
    dpis = small(adaptive_clipping=True, quantile=3.0, sum_noise=1.0)
    state = begin(dpis, mixed(0, 1, 2))
    memory, private = ({n: v.clone() for n, v in kept.items()} for kept in (state.memory, state.private))
    copy = State(state.theta_RP.clone(), memory, state.step_R.clone(), private)
    net, inputs, targets = problem()
    before = torch.get_rng_state()
    one_step(dpis, net, state, mixed(0, 1, 2), inputs, targets, N)
    assert same(state, copy)
    assert torch.equal(before, torch.get_rng_state())


def test_bad_neighbours_in_a_stack_do_no_harm() -> None:
    dpis = small()
    good = begin(dpis, mixed(0, 1, 2))
    theta_RP = good.theta_RP.clone()
    theta_RP[1] = math.nan
    bad = replace(good, theta_RP=theta_RP)
    net, inputs, targets = problem()
    for _ in range(5):
        good, _ = one_step(dpis, net, good, mixed(0, 1, 2), inputs, targets, N)
        bad, seen = one_step(dpis, net, bad, mixed(0, 1, 2), inputs, targets, N)
        assert seen.finite_R.tolist() == [True, False, True] or seen.finite_R.tolist() == [True, True, True]
        kept = torch.tensor([0, 2])
        assert same(good.take(kept), bad.take(kept))


# Empty batches, gradients that are not finite


def test_empty_batches_are_finite() -> None:
    dpis = small()
    net, inputs, targets = linear_network(8, 2), torch.zeros(N, 8), torch.arange(N) % 2
    state = dpis.start(torch.ones(3, net.size), mixed(0, 1, 2), inputs, targets)
    for _ in range(5):
        state, seen = one_step(dpis, net, state, mixed(0, 1, 2), inputs, targets, 5)
        assert seen.drawn_R.tolist() == [0, 0, 0]
        assert seen.finite_R.all()
        assert state.theta_RP.isfinite().all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradients_that_are_not_finite_are_reported(value: float) -> None:
    """When an epoch begins every gradient is looked at; inside it those that pass the filter."""
    dpis, stack = small(oversampling=1.0), hyperparameters([1, 2], 1.0, epsilon=5.0)
    net, inputs, targets = problem()
    bad = inputs.clone()
    bad[3, 2] = value
    _, seen = one_step(dpis, net, begin(dpis, stack), stack, bad, targets, 5)
    assert seen.finite_R.tolist() == [False, False]
    state = forced(go(dpis, begin(dpis, stack), stack, 1), seen_RN=2.0, sum_R=float(N))
    _, seen = one_step(dpis, net, state, stack, bad, targets, 5)
    assert seen.finite_R.tolist() == [False, False]


# Without noise: importance sampling by plain Python


def plain_importance_sampling(seed: int, steps: int, rate: float, learning: float, k: float, floor: float) -> Tensor:
    """Algorithm 1 without privacy: exact N and K, no clipping; one example at a time, Philox on whole numbers."""
    net, inputs, targets = problem()
    theta_P, b = parameters(net, 1)[0], rate * N
    seen: list[float] = []
    total = 0.0
    for step in range(steps):
        gradient_NP = clipped_gradients(net, theta_P, inputs, targets, math.inf)
        norms = gradient_NP.norm(dim=1).tolist()
        if step % round(1 / rate) == 0:
            seen, total = list(norms), sum(norms)
        estimate = torch.zeros_like(theta_P)
        for i in range(N):
            reach = k * max(seen[i], floor)
            q = min(b * reach / total, 1.0)
            if uniform(seed, SAMPLE, step, i) >= math.floor(q * 2**53):
                continue
            length = min(norms[i], reach)
            p = length / reach
            seen[i] = length
            if uniform(seed, REJECT, step, i) < math.floor(p * 2**53):
                estimate += gradient_NP[i] * (length / norms[i]) / (q * p) / N
        theta_P = theta_P - learning * estimate
    return theta_P


def test_without_noise_and_clipping_it_is_importance_sampled_sgd() -> None:
    """ε = ∞ and C = ∞, and `plain()`; 1e-9 for rounding over twelve steps."""
    dpis = small()
    stack = hyperparameters([3, 4], 3 / N, clip_norm=math.inf, epsilon=math.inf, learning_rate=0.3)
    ends = [go(one, begin(one, stack), stack, 12) for one in (dpis, dpis.plain())]
    for end, seed in zip((ends[0].theta_RP[0], ends[0].theta_RP[1]), (3, 4), strict=True):
        expected = plain_importance_sampling(seed, 12, 3 / N, 0.3, 2.0, 0.01)
        assert float((end - expected).abs().max()) < 1e-9
    assert torch.equal(ends[0].theta_RP, ends[1].theta_RP)
    assert dpis.released(ends[0], stack) == (None, None)
    assert dpis.plain().released(ends[1], stack) == (None, None)
    assert not dpis.plain().private
    assert not dpis.plain().spends_budget


def test_the_sums_are_those_of_the_paper() -> None:
    """Ñ, K̃ and the next C by plain Python from the same normals."""
    dpis = small(adaptive_clipping=True, quantile=2.0, size_noise=0.5, sum_noise=0.4)
    stack, seed = hyperparameters([7], 3 / N, clip_norm=0.6, epsilon=300.0, steps=8), 7
    net, inputs, targets = problem()
    state = begin(dpis, stack)
    size = N + 0.5 * gauss(seed, ESTIMATE, 0, 0)
    assert float(state.memory["size_R"][0]) == pytest.approx(size)
    norm_N = clipped_gradients(net, state.theta_RP[0], inputs, targets, 0.6).norm(dim=1)
    state = go(dpis, state, stack, 1)
    measured = float(norm_N.sum()) + 0.4 * 0.6 * gauss(seed, ESTIMATE, 0, 1)
    assert float(state.memory["sum_R"][0]) == pytest.approx(min(max(measured, 2 * 3 * 0.6), size * 0.6))
    rounds = math.floor(size / 3 + 0.5)
    state = go(dpis, state, stack, rounds - 1)
    outer = float(state.private["outer_RN"][0].sum()) + 0.4 * 2.4 * gauss(seed, ESTIMATE, rounds, 2)
    state = go(dpis, state, stack, 1)
    assert float(state.memory["bound_R"][0]) == pytest.approx(2.0 * outer / size)
    (ledger,) = dpis.released(state, stack)
    assert ledger is not None
    assert [event for event, _ in ledger.parts[:2]] == [Gaussian(0.5), Gaussian(0.4)]
    assert [count for _, count in ledger.parts] == [1, 1, rounds, 1, 1, 1]
    assert ledger.parts[3][0] == Gaussian(0.4)
    total, bound = float(state.memory["sum_R"][0]), float(state.memory["bound_R"][0])
    event: Any = ledger.parts[-1][0]
    assert event.sampling_rate == pytest.approx(3 * bound / total)
    noise = float(state.memory["noise_R"][0])
    assert event.noise_multiplier == pytest.approx(noise * size * bound / total)
