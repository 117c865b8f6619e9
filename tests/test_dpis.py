"""DPIS keeps its contract: unbiased, bounded, noisy and drawn as its ledger says; the printed variants do not.

Statistical tests: false alarm 1e-9 each, seeds fixed. Shapes: R runs, N examples, P parameters.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from dpbench.accountants.rdp_filter import RdpFilterAccountant
from dpbench.checks import _statistics as statistics
from dpbench.checks._problems import batch, knobs, linear_network, reference, revealing, small_network
from dpbench.checks.philox_vectors import gauss, uniform
from dpbench.cli import main
from dpbench.clipping._base import Examples
from dpbench.errors import DpbenchError, ProblemsError
from dpbench.events import Composition, Gaussian, SampledGaussian, from_json
from dpbench.functional import Network
from dpbench.mechanisms._dpis_budget import MOST_EPOCHS, Row
from dpbench.mechanisms._dpis_epoch import Fixed, Run, next_bound, open_epoch
from dpbench.mechanisms._dpis_rules import VARIANTS
from dpbench.mechanisms.dpis import Dpis, mechanism
from dpbench.pipeline import Knobs, Setting, State
from dpbench.plan import Choices, build_mechanism, dataset_source, make_plan, model_builder
from dpbench.randomness import ESTIMATE, REJECT, SAMPLE
from dpbench.records import Store
from dpbench.spec import load_specs
from dpbench.train import Execution, Interrupted, Outcome, train

pytestmark = pytest.mark.usefixtures("one_thread")
N = 12


def small(**parameters: Any) -> Dpis:
    return mechanism(**{"oversampling": 2.0, "size_noise": 5.0, "sum_noise": 30.0, **parameters})


def problem(dtype: torch.dtype = torch.float64, count: int = N) -> tuple[Network, Tensor, Tensor]:
    drawn = batch(torch.Generator().manual_seed(1), 1, count)
    return small_network(), drawn.inputs[0].tanh().to(dtype), drawn.targets[0]


def parameters(net: Network, runs: int, dtype: torch.dtype = torch.float64) -> Tensor:
    theta_P = 0.5 * torch.randn(net.size, generator=torch.Generator().manual_seed(2))
    return theta_P.to(dtype).repeat(runs, 1)


def begin(dpis: Dpis, stack: Knobs, dtype: torch.dtype = torch.float64) -> State:
    net, inputs, targets = problem(dtype)
    return dpis.start(parameters(net, len(stack.seed_R), dtype), stack, inputs, targets)


def go(dpis: Dpis, state: State, stack: Knobs, count: int, chunk: int = N) -> State:
    net, inputs, targets = problem(state.theta_RP.dtype)
    for _ in range(count):
        state, seen = dpis.step(net, state, stack, inputs, targets, chunk)
        assert not seen.stopped
    return state


def forced(state: State, **memory: Any) -> State:
    """The state with some of its memory replaced, in the middle of an epoch that does not end."""
    new = {name: torch.as_tensor(value, dtype=state.memory[name].dtype) for name, value in memory.items()}
    new = {name: value.expand_as(state.memory[name]).clone() for name, value in new.items()}
    new["next_R"] = torch.full_like(state.step_R, 10**9)
    return replace(state, memory={**state.memory, **new})


def same(one: State, other: State) -> bool:
    pairs = [(one.theta_RP, other.theta_RP), (one.step_R, other.step_R)]
    pairs += [(one.memory[name], other.memory[name]) for name in one.memory]
    return set(one.memory) == set(other.memory) and all(torch.equal(a, b) for a, b in pairs)


def clipped_gradients(net: Network, theta_P: Tensor, inputs: Tensor, targets: Tensor, bound: float) -> Tensor:
    """Every example's clipped gradient (N, P), by ordinary backward passes."""
    each = Examples(inputs[:, None], targets[:, None], torch.ones(len(targets), 1, dtype=torch.bool))
    bound_N = torch.full((len(targets),), bound, dtype=torch.float64)
    return reference(net, theta_P.expand(len(targets), -1), each, bound_N).sum_RP


# The estimate


def bias_p(variant: str, cap: float, seeds: int = 300, rounds: int = 12) -> float:
    """p-value of the mean of the noise-free estimate against the mean clipped gradient; K̃ = cap·bC, b = 3, k = 2."""
    dpis, bound = revealing(small(variant=variant)), 1.5
    net, inputs, targets = problem()
    inputs, targets = 1 + 0.3 * inputs, torch.zeros_like(targets)  # all one way, so that a wrong factor shows
    stack = knobs(range(seeds), 3 / N, clip_norm=bound)
    theta_RP = parameters(net, seeds)
    truth_NP = clipped_gradients(net, theta_RP[0], inputs, targets, bound)
    norm_N = truth_NP.norm(dim=1)
    total = cap * 3 * bound
    start = dpis.start(theta_RP, stack, inputs, targets)
    start = forced(start, size_R=float(N), bound_R=bound, sum_R=total, noise_R=0.0, seen_RN=0.7 * norm_N)
    shown = []
    for turn in range(rounds):
        state = replace(start, step_R=torch.full_like(start.step_R, turn))
        after, _ = dpis.step(net, state, stack, inputs, targets, 7)
        shown.append(after.memory["gradient_RP"])
    chance_N = 3 * norm_N / total
    draws = seeds * rounds
    error_P = N * torch.stack(shown).sum((0, 1)) - draws * truth_NP.sum(0)
    weighted_NP = truth_NP / chance_N[:, None]  # what one accepted example adds
    variance_P = draws * (chance_N * (1 - chance_N) @ weighted_NP.square())
    found = [
        statistics.bernstein_p(abs(error) - 1e-9 * draws, variance, largest)
        for error, variance, largest in zip(
            error_P.tolist(), variance_P.tolist(), weighted_NP.abs().amax(0).tolist(), strict=True
        )
    ]
    return statistics.smallest(found)[0]


@pytest.mark.parametrize(("variant", "cap"), [("proven", 2.0), ("proven", 5.0), ("equation_7", 2.0)])
def test_the_estimate_is_unbiased_for_the_mean_clipped_gradient(variant: str, cap: float) -> None:
    assert bias_p(variant, cap) >= statistics.FALSE_ALARM


def test_line_26_as_printed_is_biased() -> None:
    """1/b in front and inside q·p: a third of the mean for b = 3 (and samples that only grow make it no better)."""
    assert bias_p("as_printed", 2.0) < statistics.FALSE_ALARM


def one_hot(runs: int, variant: str) -> tuple[Any, Network, Tensor, Tensor, Knobs, State]:
    """A network in which the gradient's columns show which examples are in the sum, with norms from 0.02 to 2."""
    count, dpis = 10, revealing(small(variant=variant))
    net = linear_network(count, 3)
    inputs = torch.diag(torch.logspace(-1.4, 0.6, count, dtype=torch.float64))
    targets = torch.arange(count) % 3
    stack = knobs(range(runs), 2 / count, clip_norm=1.0)
    return dpis, net, inputs, targets, stack, dpis.start(torch.zeros(runs, net.size).double(), stack, inputs, targets)


def taken(after: State, net: Network) -> Tensor:
    """Which examples entered the sum (R, N)."""
    (weight,) = net.split(after.memory["gradient_RP"]).values()
    return weight.abs().amax(1) > 0


def inclusion_p(variant: str, cap: float, runs: int = 3000, rounds: int = 4) -> float:
    """p-value of the inclusions of the last of some steps of an epoch against b‖ḡ‖/K̃; K̃ = cap·bC, b = 2, k = 2.

    Norms have changed since they were remembered: some are 0.6 times, some 1.5 times what they were.
    """
    dpis, net, inputs, targets, stack, state = one_hot(runs, variant)
    truth_NP = clipped_gradients(net, state.theta_RP[0], inputs, targets, 1.0)
    norm_N, total = truth_NP.norm(dim=1), cap * 2.0
    remembered_N = norm_N * torch.where(torch.arange(len(norm_N)) % 2 > 0, 1 / 0.6, 1 / 1.5)
    state = forced(state, size_R=10.0, bound_R=1.0, sum_R=total, noise_R=0.0, seen_RN=remembered_N)
    for _ in range(rounds):
        before = state
        state, seen = dpis.step(net, state, stack, inputs, targets, 10)
    found = taken(state, net).numpy()
    assert seen.drawn_R.tolist() == found.sum(1).tolist()
    stated = (2 * norm_N / total).clamp(max=1.0).numpy()
    if variant == "proven":
        declared_RN = dpis.inclusion(before, state, net, stack, inputs, targets)
        assert np.allclose(declared_RN.numpy(), stated, rtol=1e-12)
    together = found.astype(np.int64).T @ found
    pairs = np.triu_indices(len(stated), 1)
    values = [
        statistics.binomial_p(found.sum(0), runs, stated),
        statistics.binomial_p(together[pairs], runs, np.outer(stated, stated)[pairs]),
    ]
    return statistics.smallest(values)[0]


@pytest.mark.parametrize(("variant", "cap"), [("proven", 2.0), ("proven", 3.0), ("equation_7", 2.0)])
def test_inclusions_are_as_declared(variant: str, cap: float) -> None:
    """Each with probability b‖ḡ‖/K̃ at the parameters in force, independently, whatever was remembered."""
    assert inclusion_p(variant, cap) >= statistics.FALSE_ALARM


@pytest.mark.parametrize(("variant", "cap"), [("equation_7", 1.001), ("as_printed", 3.0)])
def test_the_printed_inclusions_are_not(variant: str, cap: float) -> None:
    """The cap of line 17 below K̃ = kbC; sets that are never emptied (line 5), in the fourth iteration."""
    assert inclusion_p(variant, cap) < statistics.FALSE_ALARM


# Sensitivity


def largest_move(variant: str, cap: float, kind: str) -> float:
    """How far one example more moves the noise-free estimate, in units of what the event says; K̃ = cap·bC."""
    dpis, bound, runs = revealing(small(variant=variant)), 0.8, 60
    net, inputs, targets = problem()
    extra = {"ordinary": inputs[:1], "huge": 1e6 * inputs[:1], "tiny": 1e-3 * inputs[:1], "again": inputs[-1:]}[kind]
    both = torch.cat([inputs, extra]), torch.cat([targets, (targets[:1] + 1) % 4])
    total = cap * 3 * bound
    worst = 0.0
    for stale in (1e-4, 0.3, 1.0):
        sums = []
        for x, y in ((inputs, targets), both):
            stack = knobs(range(runs), 3 / len(y), clip_norm=bound)
            state = dpis.start(parameters(net, runs), stack, x, y)
            state = forced(state, size_R=20.0, bound_R=bound, sum_R=total, noise_R=0.0, seen_RN=stale * bound)
            after, _ = dpis.step(net, state, stack, x, y, 5)
            sums.append(after.memory["gradient_RP"])
            reach_R = dpis.reach(after, stack, len(y))
        worst = max(worst, float(((sums[1] - sums[0]).norm(dim=1) / reach_R).max()))
    return worst


@pytest.mark.parametrize("kind", ["ordinary", "huge", "tiny", "again"])
@pytest.mark.parametrize("cap", [2.0, 7.0])
def test_one_example_moves_the_sum_by_at_most_what_the_event_says(kind: str, cap: float) -> None:
    """All other coins alike; K̃/(bÑ) is reached by whoever is accepted. 1e-9 for rounding in float64."""
    assert largest_move("proven", cap, kind) <= 1 + 1e-9


def test_the_bound_is_attained_and_the_cap_breaks_it() -> None:
    assert largest_move("proven", 2.0, "huge") == pytest.approx(1)
    broken = largest_move("equation_7", 1.001, "huge")
    assert broken == pytest.approx(2 / 1.001)  # k times K̃/b, at K̃ = bC + ξ
    fixed = Fixed(2.0, 0.8, 1.0, 1.0, 0.01, None, VARIANTS["equation_7"])
    (charged, true) = (found(20.0, 3.0).step(Row(0, 1 / 1.001, 1.0)) for found in (fixed.charged, fixed.dominating))
    assert charged == SampledGaussian(1 / 1.001, 1.0)
    assert isinstance(true, SampledGaussian)
    assert true.noise_multiplier == pytest.approx(1 / broken)


def opened(variant: str, inputs: Tensor, targets: Tensor, **more: Any) -> State:
    """The state after the first step of 200 runs whose Ñ is 1000, so that nothing bounds K̃ but from below."""
    dpis, runs = small(variant=variant, sum_noise=1.0, size_noise=1.0, **more), 200
    net = small_network()
    stack = knobs(range(runs), 1 / len(targets), clip_norm=0.5, steps=4000, epsilon=50.0)
    state = dpis.start(parameters(net, runs), stack, inputs, targets)
    state = replace(state, memory={**state.memory, "size_R": torch.full((runs,), 1000.0).double()})
    return dpis.step(net, state, stack, inputs, targets, 40)[0]


def sums_of_neighbours(variant: str) -> Tensor:
    """|K̃ − K̃'| of 40 huge gradients and 39 of them, in units of C, for 200 seeds."""
    _, inputs, targets = problem(count=40)
    inputs = 100 + 1e3 * inputs
    with_z, without = opened(variant, inputs, targets), opened(variant, inputs[:-1], targets[:-1])
    return (with_z.memory["sum_R"] - without.memory["sum_R"]).abs() / 0.5


def test_the_sum_of_norms_moves_by_at_most_its_bound() -> None:
    assert float(sums_of_neighbours("proven").max()) == pytest.approx(1)


def test_the_printed_sum_moves_by_the_inverse_sampling_rate() -> None:
    """(11) divides by p_K, here b/Ñ = 6/12, while (19) charges a move of C; the ledger has the move of C/p_K."""
    dpis, norm_N = small(variant="equation_7"), torch.full((N,), 0.01, dtype=torch.float64)
    run = Run(12.0, 6.0, 0.01, 100, 1.0, 1e-5, 0, 2, ())
    stack = knobs(range(60), 6 / N)
    moves = [dpis._summed(run, stack, at, norm_N) - dpis._summed(run, stack, at, norm_N[:-1]) for at in range(60)]
    assert sorted({round(move / 0.01, 9) for move in moves}) == [0.0, 2.0]
    fixed = Fixed(2.0, 0.8, 1.0, 7.0, 0.01, 1.0, VARIANTS["equation_7"])
    assert fixed.charged(12.0, 6.0).total == fixed.charged(12.0, 6.0).outer == SampledGaussian(0.5, 7.0)
    assert fixed.dominating(12.0, 6.0).total == SampledGaussian(0.5, 3.5)
    assert fixed.dominating(12.0, 6.0).outer == Gaussian(7.0)


def test_the_size_moves_by_one() -> None:
    net, inputs, targets = problem()
    stacks = [knobs(range(50), 1 / count) for count in (N, N - 1)]
    sizes = [
        small(size_noise=2.0).start(parameters(net, 50), stack, inputs[:count], targets[:count]).memory["size_R"]
        for stack, count in zip(stacks, (N, N - 1), strict=True)
    ]
    inside = (sizes[0] > 2.0) & (sizes[1] > 2.0)  # not raised to kb
    assert inside.sum() > 40
    assert torch.allclose(sizes[0][inside] - sizes[1][inside], torch.ones(int(inside.sum())).double())


def test_the_outer_sum_moves_by_at_most_its_bound() -> None:
    """C of the next epoch is λK*/Ñ, and K* moves by at most C* = 4·C_1, whatever the gradients."""
    fixed = Fixed(2.0, 0.8, 1.0, 1.0, 1e-4, 0.7, VARIANTS["proven"])
    past = open_epoch(fixed, Run(30.0, 3.0, 1.0, 100, 500.0, 1e-5, 0, 10, ()), 1.0, 12.0).row
    run = Run(30.0, 3.0, 1.0, 100, 500.0, 1e-5, 10, 10, (past,))
    net, inputs, targets = problem()
    dpis = small(adaptive_clipping=True)
    stack = knobs(range(20), 3 / N, clip_norm=0.25, epsilon=200.0, steps=8)
    for scale in (1.0, 1e4):
        state = go(dpis, dpis.start(parameters(net, 20), stack, scale * inputs, targets), stack, 1)
        assert float(state.memory["outer_RN"].max()) <= 4 * 0.25
    bounds = [next_bound(fixed, run, total, 4.0, 0.3) for total in (8.0, 12.0)]
    assert (bounds[1] - bounds[0]) * 30 / 0.7 == pytest.approx(4.0)


# Noise


def noise_p(stated: float) -> float:
    """p-value of the noise of some steps and runs against `stated` times reach·multiplier of the event.

    Inputs of zeros have no gradient, so what the update gets is noise.
    """
    dpis, net, runs = revealing(small()), linear_network(40, 5), 60
    inputs, targets = torch.zeros(N, 40).double(), torch.arange(N) % 5
    stack = knobs(range(runs), 3 / N, clip_norm=[0.5 + 0.05 * r for r in range(runs)], epsilon=2.0)
    state = dpis.start(torch.ones(runs, net.size).double(), stack, inputs, targets)
    shown = []
    for _ in range(6):
        state, seen = dpis.step(net, state, stack, inputs, targets, N)
        assert seen.drawn_R.sum() == 0
        events = [ledger.parts[-1][0] for ledger in dpis.released(state, stack)]
        multiplier_R = torch.tensor([event.noise_multiplier for event in events])
        deviation_R = stated * dpis.reach(state, stack, N) * multiplier_R
        shown.append((state.memory["gradient_RP"] / deviation_R[:, None]).numpy())
    z = np.stack(shown)  # (steps, runs, coordinates)
    values = [statistics.chi_square_p(float((z**2).sum()), z.size), statistics.mean_p(z)]
    values += [statistics.chi_square_p((z**2).sum((0, 2)), z.shape[0] * z.shape[2])]
    values += [statistics.correlation_p(*statistics.apart(z, 1, axis)) for axis in range(3)]
    return statistics.smallest(values)[0]


def test_noise_has_the_stated_scale_and_is_independent() -> None:
    """In every coordinate, step and run; 3 % less would be seen."""
    assert noise_p(1.0) >= statistics.FALSE_ALARM
    assert noise_p(1.03) < statistics.FALSE_ALARM


def test_noise_on_the_sums_has_the_stated_scale() -> None:
    """Ñ − N over σ_N and K' − K over σ_K·C are standard normals, and independent of each other."""
    runs = 2000
    dpis = mechanism(oversampling=1.0, size_noise=0.5, sum_noise=0.2, norm_floor=1e-6)
    net, inputs, targets = linear_network(4, 2), torch.eye(4).double() * 3, torch.arange(4) % 2
    stack = knobs(range(runs), 1 / 4, clip_norm=0.7, epsilon=1e6, steps=3)
    start = dpis.start(torch.zeros(runs, net.size).double(), stack, inputs, targets)
    first = (start.memory["size_R"] - 4).numpy() / 0.5
    wide = replace(start, memory={**start.memory, "size_R": torch.full((runs,), 1e3).double()})
    state, _ = dpis.step(net, wide, stack, inputs, targets, 4)
    second = (state.memory["sum_R"] - 4 * 0.7).numpy() / (0.2 * 0.7)
    values = [statistics.distribution_p(z, stats.norm.cdf) for z in (first[first > -6], second)]
    values.append(float(statistics.correlation_p(first, second)))
    assert statistics.smallest(values)[0] >= statistics.FALSE_ALARM


# The same alone, in a stack, after a resume


MIXED: dict[str, Any] = {
    "sampling_rate": [3 / N, 2 / N, 4 / N],
    "learning_rate": [0.1, 0.02, 0.5],
    "clip_norm": [1.0, 0.2, 3.0],
    "epsilon": [200.0, 300.0, 600.0],
}


def mixed(*runs: int) -> Knobs:
    chosen: dict[str, Any] = {name: [values[run] for run in runs] for name, values in MIXED.items()}
    return knobs([5 + run for run in runs], steps=24, **chosen)


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_the_same_alone_and_in_a_stack(variant: str) -> None:
    """Bits where there is no gradient; within rounding (derived in the contract tests) where there is."""
    dpis = small(variant=variant, adaptive_clipping=True, quantile=3.0, sum_noise=1.0)
    zeros = linear_network(8, 2), torch.zeros(N, 8), torch.arange(N) % 2
    whole = alone = small(variant=variant).start(torch.ones(3, zeros[0].size), mixed(0, 1, 2), *zeros[1:])
    pieces = [alone.take(torch.tensor([run])) for run in range(3)]
    for _ in range(6):
        whole, seen = small(variant=variant).step(zeros[0], whole, mixed(0, 1, 2), *zeros[1:], 5)
        for run in range(3):
            pieces[run], own = small(variant=variant).step(zeros[0], pieces[run], mixed(run), *zeros[1:], 5)
            assert torch.equal(own.drawn_R[0], seen.drawn_R[run])
            assert same(pieces[run], whole.take(torch.tensor([run])))
    net, inputs, targets = problem()
    state = dpis.start(parameters(net, 3), mixed(0, 1, 2), inputs, targets)
    ends = [state, state]
    singles = [state.take(torch.tensor([run])) for run in range(3)]
    for _ in range(8):
        ends = [
            dpis.step(net, end, mixed(0, 1, 2), inputs, targets, chunk)[0]
            for end, chunk in zip(ends, (N, 5), strict=True)
        ]
        singles = [dpis.step(net, one, mixed(run), inputs, targets, 3)[0] for run, one in enumerate(singles)]
    assert float((ends[0].theta_RP - ends[1].theta_RP).abs().max()) < 2e-10
    for run in range(3):
        assert float((singles[run].theta_RP[0] - ends[0].theta_RP[run]).abs().max()) < 2e-10


@pytest.mark.parametrize("variant", sorted(VARIANTS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_going_on_from_a_saved_state_is_going_on(variant: str, dtype: torch.dtype) -> None:
    dpis = small(variant=variant, adaptive_clipping=True, quantile=3.0, sum_noise=1.0)
    middle = go(dpis, begin(dpis, mixed(0, 1, 2), dtype), mixed(0, 1, 2), 5)
    file = io.BytesIO()
    torch.save({"theta": middle.theta_RP, "memory": dict(middle.memory), "step": middle.step_R}, file)
    file.seek(0)
    kept = torch.load(file, weights_only=True)
    back = State(kept["theta"], kept["memory"], kept["step"])
    whole = go(dpis, begin(dpis, mixed(0, 1, 2), dtype), mixed(0, 1, 2), 12)
    assert same(go(dpis, back, mixed(0, 1, 2), 7), whole)
    assert dpis.released(go(dpis, back, mixed(0, 1, 2), 7), mixed(0, 1, 2)) == dpis.released(whole, mixed(0, 1, 2))


def test_a_step_changes_only_what_it_returns() -> None:
    dpis = small(adaptive_clipping=True, quantile=3.0, sum_noise=1.0)
    state = begin(dpis, mixed(0, 1, 2))
    copy = State(state.theta_RP.clone(), {n: v.clone() for n, v in state.memory.items()}, state.step_R.clone())
    net, inputs, targets = problem()
    before = torch.get_rng_state()
    dpis.step(net, state, mixed(0, 1, 2), inputs, targets, N)
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
        good, _ = dpis.step(net, good, mixed(0, 1, 2), inputs, targets, N)
        bad, seen = dpis.step(net, bad, mixed(0, 1, 2), inputs, targets, N)
        assert seen.finite_R.tolist() == [True, False, True] or seen.finite_R.tolist() == [True, True, True]
        kept = torch.tensor([0, 2])
        assert same(good.take(kept), bad.take(kept))


# Empty batches, gradients that are not finite


def test_empty_batches_are_finite() -> None:
    dpis = small()
    net, inputs, targets = linear_network(8, 2), torch.zeros(N, 8), torch.arange(N) % 2
    state = dpis.start(torch.ones(3, net.size), mixed(0, 1, 2), inputs, targets)
    for _ in range(5):
        state, seen = dpis.step(net, state, mixed(0, 1, 2), inputs, targets, 5)
        assert seen.drawn_R.tolist() == [0, 0, 0]
        assert seen.finite_R.all()
        assert state.theta_RP.isfinite().all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradients_that_are_not_finite_are_reported(value: float) -> None:
    """When an epoch begins every gradient is looked at; inside it those that pass the filter."""
    dpis, stack = small(oversampling=1.0), knobs([1, 2], 1.0, epsilon=5.0)
    net, inputs, targets = problem()
    bad = inputs.clone()
    bad[3, 2] = value
    _, seen = dpis.step(net, begin(dpis, stack), stack, bad, targets, 5)
    assert seen.finite_R.tolist() == [False, False]
    state = forced(go(dpis, begin(dpis, stack), stack, 1), seen_RN=2.0, sum_R=float(N))
    _, seen = dpis.step(net, state, stack, bad, targets, 5)
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
    stack = knobs([3, 4], 3 / N, clip_norm=math.inf, epsilon=math.inf, learning_rate=0.3)
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
    stack, seed = knobs([7], 3 / N, clip_norm=0.6, epsilon=300.0, steps=8), 7
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
    outer = float(state.memory["outer_RN"][0].sum()) + 0.4 * 2.4 * gauss(seed, ESTIMATE, rounds, 2)
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


# The budget


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    epsilon=st.floats(0.3, 20),
    delta=st.sampled_from([1e-6, 1e-5, 1e-3]),
    steps=st.integers(1, 60),
    rounds=st.integers(1, 20),
    share=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    fills=st.lists(st.floats(0, 1.5), min_size=60, max_size=60),
    quantile=st.sampled_from([None, 1.0]),
)
def test_the_ledger_never_exceeds_the_budget(
    epsilon: float,
    delta: float,
    steps: int,
    rounds: int,
    share: float,
    fills: Sequence[float],
    quantile: float | None,
) -> None:
    """By `rdp_filter`, after every epoch, on paths of K' that fall, jump and rise; or the run stops."""
    fixed = Fixed(3.0, share, 40.0, 40.0, 0.01, quantile, VARIANTS["proven"])
    size, batch, step, stopped = 500.0, 12.0, 0, None
    rows: tuple[Row, ...] = ()
    while step < steps:
        run = Run(size, batch, 1.0, steps, epsilon, delta, step, rounds, rows)
        try:
            found = open_epoch(fixed, run, 1.0, fills[len(rows)] * size)
        except DpbenchError as error:
            stopped = str(error)
            break
        rows, step = (*rows, found.row), found.following
        assert found.gradient_sum >= 3 * batch
    ledger = fixed.charged(size, batch).ledger(rows, step)
    spent = RdpFilterAccountant().curve(ledger).epsilon(delta)
    assert spent.safe <= epsilon
    if stopped is None:
        assert sum(count for event, count in ledger.parts if isinstance(event, SampledGaussian)) == steps
    else:
        assert "privacy budget exhausted" in stopped
        assert epsilon < 2  # the sums of up to 60 epochs, at 40


def epoch_noises(share: float, fills: Sequence[float], epsilon: float = 4.0) -> tuple[list[float], float]:
    """σ_G of each epoch and the ε spent at the end."""
    fixed = Fixed(5.0, share, 1200.0, 1200.0, 0.01, None, VARIANTS["proven"])
    size, batch, noises = 60000.0, 256.0, []
    rows: tuple[Row, ...] = ()
    for epoch, fill in enumerate(fills):
        run = Run(size, batch, 1.0, 234 * len(fills), epsilon, 1e-5, 234 * epoch, 234, rows)
        found = open_epoch(fixed, run, 1.0, fill * size)
        rows = (*rows, found.row)
        noises.append(found.noise)
    ledger = fixed.charged(size, batch).ledger(rows, 234 * len(fills))
    return noises, RdpFilterAccountant().curve(ledger).epsilon(1e-5).value


def test_the_two_phases_of_the_allocation() -> None:
    """Section 4.2: planning with K̃ = ÑC keeps σ_G from rising; the second phase spends what was saved."""
    fills = [0.8, 0.6, 0.5, 0.5, 0.4]
    first, spent_first = epoch_noises(1.0, fills)
    assert all(later <= earlier for earlier, later in pairwise(first))
    second, spent_second = epoch_noises(0.0, fills)
    assert second[0] < first[0]
    both, spent_both = epoch_noises(0.6, fills)
    assert both[:3] == first[:3]
    assert both[3] < first[3]
    assert max(spent_first, spent_second, spent_both) <= 4.0
    assert min(spent_first, spent_second, spent_both) > 3.95  # the last epoch takes all; the grid of σ_G is 0.07 %
    rising, _ = epoch_noises(0.0, [0.3, 0.6, 0.9])
    assert rising[2] > rising[0]


def test_constant_norms_need_the_noise_of_dp_sgd() -> None:
    """K̃ = ÑC throughout: the noise of DP-SGD at the same budget, up to the releases of N and K and the grid."""
    noises, _ = epoch_noises(0.8, [1.0] * 5, epsilon=2.0)
    assert len(set(noises)) <= 2
    below_grid = noises[0] / 2 ** (2 / 1024)
    for noise, fits in ((noises[0], True), (below_grid, False)):
        whole = Composition(((Gaussian(1200.0), 6), (SampledGaussian(256 / 60000, noise), 5 * 234)))
        assert (RdpFilterAccountant().curve(whole).epsilon(1e-5).value <= 2.0) is fits


def test_the_printed_charges_hide_what_is_spent() -> None:
    """σ_K = 1, b/Ñ = 0.01: a printed run stays within (19), while its releases of K cost a hundred times the budget."""
    fixed = Fixed(5.0, 0.8, 40.0, 1.0, 0.01, None, VARIANTS["as_printed"])
    rows: tuple[Any, ...] = ()
    for epoch in range(3):
        run = Run(2000.0, 20.0, 1.0, 300, 4.0, 1e-5, 100 * epoch, 100, rows)
        rows = (*rows, open_epoch(fixed, run, 1.0, 1500.0).row)
    said, true = (found(2000.0, 20.0).ledger(rows, 300) for found in (fixed.charged, fixed.dominating))
    assert RdpFilterAccountant().curve(said).epsilon(1e-5).value <= 4.0
    assert RdpFilterAccountant().curve(true).epsilon(1e-5).value > 400
    proven = Fixed(5.0, 0.8, 40.0, 1.0, 0.01, None, VARIANTS["proven"])
    with pytest.raises(DpbenchError, match="privacy budget exhausted"):
        open_epoch(proven, Run(2000.0, 20.0, 1.0, 300, 4.0, 1e-5, 0, 100, ()), 1.0, 1500.0)


# Conditions that stop a run


def stops(dpis: Dpis, state: State, stack: Knobs, inputs: Tensor | None = None) -> str:
    """The sentence with which the first of two runs stops; it keeps its state, the other goes on."""
    net, plain, targets = problem()
    after, seen = dpis.step(net, state, stack, plain if inputs is None else inputs, targets, N)
    assert list(seen.stopped) == [0]
    first, second = torch.tensor([0]), torch.tensor([1])
    assert same(after.take(first), state.take(first))
    assert not torch.equal(after.theta_RP[1], state.theta_RP[1])
    assert dpis.released(after, stack)[0] == dpis.released(state, stack)[0]
    assert second.numel() == 1
    sentence: str = seen.stopped[0]
    assert "\n" not in sentence
    return sentence


def test_an_exhausted_budget_stops_the_run() -> None:
    stack = knobs([1, 2], 3 / N, epsilon=[0.01, 2.0])
    dpis = small()
    assert "privacy budget exhausted" in stops(dpis, begin(dpis, stack), stack)
    # It is the sums of later epochs that no noise on the gradients makes up for.
    late = knobs([1, 2], 3 / N, epsilon=[1.0, 20.0], steps=3900)
    assert "no noise on the gradients is enough" in stops(dpis, begin(dpis, late), late)


def test_a_clipping_bound_at_or_below_the_floor_stops_the_run() -> None:
    """Line 29: K* of gradients near 0 may be negative. The second run has a floor below everything it meets."""
    dpis = small(adaptive_clipping=True, quantile=1.0, sum_noise=2.0, norm_floor=0.05)
    stack = knobs([1, 2], 3 / N, epsilon=50.0, clip_norm=1.0)
    state = go(dpis, begin(dpis, stack), stack, 1)
    state = replace(state, memory={**state.memory, "next_R": state.step_R.clone()})
    outer_RN = torch.stack([torch.zeros(N), torch.full((N,), 4.0)]).double()
    for wanted in range(200):
        seeds = replace(stack, seed_R=torch.tensor([wanted, 2]))
        if gauss(wanted, ESTIMATE, 1, 2) < -1:
            break
    low = replace(state, memory={**state.memory, "outer_RN": outer_RN})
    sentence = stops(dpis, low, seeds)
    assert "the clipping bound of epoch 2 is -" in sentence
    assert "norm_floor = 0.05" in sentence


def test_a_clipping_bound_that_is_not_finite_stops_a_private_run() -> None:
    stack = knobs([1, 2], 3 / N, epsilon=2.0, clip_norm=[math.inf, 1.0])
    dpis = small()
    assert "the clipping bound of epoch 1 is inf" in stops(dpis, begin(dpis, stack), stack)


def test_more_steps_than_planned_stop_the_run() -> None:
    stack = replace(knobs([1, 2], 3 / N), steps_R=torch.tensor([2, 100]))
    dpis = small()
    state = go(dpis, begin(dpis, stack), stack, 2)
    assert "step 2 is beyond the 2 steps" in stops(dpis, state, stack)


def test_a_batch_of_nothing_stops_the_run() -> None:
    stack = knobs([1, 2], [0.0, 3 / N])
    assert "batch_size = 0: expected a number above 0" in stops(small(), begin(small(), stack), stack)


def test_a_capped_filter_stops_the_run() -> None:
    """K̃ below kb times a remembered norm cannot come up; a state from elsewhere may have it."""
    stack, dpis = knobs([1, 2], 3 / N), small()
    state = go(dpis, begin(dpis, stack), stack, 1)
    sums = torch.tensor([1.0, float(state.memory["sum_R"][1])]).double()
    sentence = stops(dpis, forced(state, sum_R=sums, seen_RN=1.0), stack)
    assert "the filter of line 17 is capped" in sentence


def test_a_full_history_stops_the_run() -> None:
    stack, dpis = knobs([1, 2], 3 / N, epsilon=1e6), small()
    state = begin(dpis, stack)
    history = state.memory["history_RHF"].clone()
    history[0] = torch.tensor([0.0, 0.001, 1e6])
    assert history.shape[1] == MOST_EPOCHS
    full = replace(state, memory={**state.memory, "history_RHF": history})
    assert f"at most {MOST_EPOCHS} are kept" in stops(dpis, full, stack)


# Numbers that are refused before anything runs


SPEC = """
kind: run
name: small
dataset: digits
model: {name: mlp, parameters: {hidden: [16], activation: tanh}}
mechanism: {name: dpis, parameters: {%(parameters)s}}
budget: %(budget)s
training: {%(training)s}
seeds: 1
"""
GOOD = {
    "parameters": "oversampling: 3, size_noise: 30, sum_noise: 30",
    "budget": "{epsilon: 3, delta: 1e-4}",
    "training": "batch_size: 128, steps: 30, learning_rate: 0.5, clip_norm: 1.0",
}

SHORT = "batch_size: 128, steps: 14, learning_rate: 0.5, clip_norm: 1.0"


def planned(folder: Path, **other: str) -> Any:
    (folder / "spec.yaml").write_text(SPEC % {**GOOD, **other})
    return make_plan(load_specs([folder / "spec.yaml"]), Store(folder / "out"), Choices(device="cpu")).runs


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"parameters": "oversampling: 0.5"}, "oversampling = 0.5: expected a finite number, 1 or more"),
        ({"parameters": "first_share: 1.5"}, "first_share = 1.5: expected a number from 0 to 1"),
        ({"parameters": "first_share: -0.1"}, "first_share = -0.1: expected a number from 0 to 1"),
        ({"parameters": "sum_noise: 0.0"}, "sum_noise = 0"),
        ({"parameters": "size_noise: -1.0"}, "size_noise = -1"),
        ({"parameters": "norm_floor: 0.0"}, "norm_floor = 0"),
        ({"parameters": "quantile: 0.0"}, "quantile = 0"),
        ({"parameters": "external_bound: -1.0"}, "external_bound = -1"),
        ({"parameters": "optimizer: momentum, momentum: 1.0"}, "momentum = 1"),
        ({"parameters": "norm_floor: 1.0"}, "clip_norm = 1.0: expected a finite number above norm_floor = 1"),
        ({"parameters": "oversampling: 5, norm_floor: 2.0"}, "above norm_floor = 2"),
        ({"parameters": "oversampling: 40"}, "oversampling = 40: with batch_size = 128 it looks at 5120 of 1437"),
        ({"budget": "{epsilon: 0.05, delta: 1e-4}"}, "the releases of N and K in 3 epochs exceed it"),
        ({"parameters": "sum_noise: 0.5, oversampling: 3"}, "the releases of N and K in 3 epochs exceed it"),
        ({"budget": "{noise_multiplier: 1.0, delta: 1e-4}"}, "spends a budget; expected epsilon and delta"),
        (
            {"training": "batch_size: 2000, steps: 30, learning_rate: 0.5, clip_norm: 1.0"},
            "found 2000; expected at most 1437",
        ),
        (
            {"training": "sampling_rate: 0.1234, steps: 30, learning_rate: 0.5, clip_norm: 1.0"},
            "sampling_rate = 0.1234",
        ),
        (
            {"training": "batch_size: 1, epochs: 1001, learning_rate: 0.5, clip_norm: 1.0"},
            "epochs = 1001: expected at most 1000",
        ),
    ],
)
def test_bad_numbers_give_one_sentence_before_training(tmp_path: Path, other: dict[str, str], words: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        planned(tmp_path, **other)
    assert len(caught.value.problems) == 1
    assert words in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_good_numbers_are_planned(tmp_path: Path) -> None:
    (run,) = planned(tmp_path)
    assert run.spends == (3.0, 1e-4)
    assert run.epsilon == 3.0
    assert run.epsilon_kind == "upper_bound"
    assert run.noise_multiplier is None
    assert "dpbench.mechanisms._dpis_budget" in run.sources


def test_what_a_spec_need_not_give_is_asked_for() -> None:
    setting = Setting(examples=100, sampling_rate=0.1, steps=10, learning_rate=0.1)
    for clip, epsilon, words in ((None, 1.0, "clip_norm"), (math.inf, 1.0, "clip_norm"), (1.0, None, "budget")):
        with pytest.raises(DpbenchError, match=words):
            mechanism().check(replace(setting, clip_norm=clip, epsilon=epsilon, delta=1e-5))
    mechanism().plain().check(setting)


# Through the loop


def outcomes(runs: Any, **options: Any) -> dict[str, Outcome]:
    source = dataset_source(runs[0].spec)
    build = model_builder(runs[0].spec, source)
    found = train(runs, source.load(None), build_mechanism(runs[0].spec), build, Execution(), **options)
    return {outcome.run.key: outcome for outcome in found}


def test_a_resumed_run_is_the_uninterrupted_run(tmp_path: Path) -> None:
    """Interrupted inside an epoch; curve, ledger and budget as without the interruption."""
    (run,) = planned(tmp_path, parameters=GOOD["parameters"] + ", adaptive_clipping: true, optimizer: momentum")
    whole = outcomes([run])[run.key]
    done: list[int] = []
    kept = tmp_path / "checkpoints"
    with pytest.raises(Interrupted):
        outcomes([run], checkpoints=kept, watch=lambda p: done.append(p.done), stop=lambda: len(done) >= 17)
    resumed = outcomes([run], checkpoints=kept)[run.key]
    assert whole.result is not None
    assert resumed.result is not None
    assert resumed.result["resumed"]
    assert resumed.result["ledger"] == whole.result["ledger"]
    losses = [[point["test_loss"] for point in one["curve"]] for one in (whole.result, resumed.result)]
    assert losses[0] == losses[1]
    ledger = from_json(whole.result["ledger"])
    assert ledger.adaptive
    assert 2.9 < RdpFilterAccountant().curve(ledger).epsilon(1e-4).safe <= 3.0


def test_a_gradient_that_is_not_finite_names_its_step(tmp_path: Path) -> None:
    (run,) = planned(tmp_path, training="batch_size: 128, steps: 30, learning_rate: 1.0e+40, clip_norm: 1.0")
    outcome = outcomes([run])[run.key]
    assert outcome.error is not None
    assert outcome.error.startswith("the gradient of step ")
    assert outcome.step is not None


def test_a_run_that_must_stop_fails_with_its_sentence(tmp_path: Path) -> None:
    """Gradients clipped far below the floor of the next bound: λ makes C_2 too small, whatever the noise."""
    (run,) = planned(tmp_path, parameters=GOOD["parameters"] + ", adaptive_clipping: true, quantile: 1.0e-3")
    outcome = outcomes([run])[run.key]
    assert outcome.result is None
    assert outcome.error is not None
    assert outcome.error.startswith("stopped at step ")
    assert "the clipping bound of epoch 2" in outcome.error


def test_the_report_accounts_for_what_was_released(tmp_path: Path) -> None:
    """By `rdp_filter`, epoch by epoch; others refuse and say why. The printed variant's ε is above its budget."""
    text = SPEC % {**GOOD, "parameters": "oversampling: 3, size_noise: 30, sum_noise: 3", "training": SHORT}
    text += "accountants: [rdp_filter, rdp, exact]\ngrid:\n  mechanism.parameters.variant: [proven, as_printed]\n"
    (tmp_path / "spec.yaml").write_text(text)
    for verb in ("run", "report"):
        with pytest.raises(SystemExit) as caught:
            main([verb, str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "out")])
        assert caught.value.code == 0
    (section,) = json.loads((tmp_path / "out" / "report.json").read_text())["sections"]
    proven, printed = section["rows"]
    found = {one["accountant"]: one for one in proven["guarantees"]}
    assert found["rdp_filter"]["kind"] == "upper_bound"
    assert 2.9 < found["rdp_filter"]["epsilon"] <= 3.0
    for name in ("rdp", "exact"):
        assert found[name]["epsilon"] is None
        assert "later parameters depend on earlier outputs" in found[name]["refused"]
    spent = [point["epsilon"]["rdp_filter"] for point in proven["curve"]]
    assert spent == sorted(spent)
    assert spent[-1] == found["rdp_filter"]["epsilon"]
    assert proven["context"]["calibrate_with"] == "rdp_filter"
    (filtered,) = [one for one in printed["guarantees"] if one["accountant"] == "rdp_filter"]
    assert filtered["epsilon"] > 3.0
