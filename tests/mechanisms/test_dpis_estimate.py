"""Internal: the opening of an epoch, in which DPIS chooses its noise.

DPIS keeps its contract: unbiased, bounded, noisy and drawn as its ledger says; the printed variants do not.

Statistical tests: false alarm 1e-9 each, seeds fixed. Shapes: R runs, N examples, P parameters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from dpbench.events import Gaussian, SampledGaussian
from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.problems import hyperparameters, linear_network, small_network
from dpbench.mechanisms._dpis_epoch import Row, Run, next_bound, open_epoch
from dpbench.mechanisms.dpis import mechanism
from dpbench.step.functional import Network
from dpbench.step.mechanism import Hyperparameters, State
from dpbench.step.mechanism import step as one_step
from tests.clipping.gradients import stepped
from tests.mechanisms.dpis_problems import N, clipped_gradients, forced, go, parameters, problem, put, small

pytestmark = pytest.mark.usefixtures("one_thread")


# The estimate


def bias_p(variant: str, cap: float, seeds: int = 300, rounds: int = 12) -> float:
    """p-value of the mean of the noise-free estimate against the mean clipped gradient; K̃ = cap·bC, b = 3, k = 2."""
    dpis, bound = small(variant=variant), 1.5
    net, inputs, targets = problem()
    inputs, targets = 1 + 0.3 * inputs, torch.zeros_like(targets)  # all one way, so that a wrong factor shows
    stack = hyperparameters(range(seeds), 3 / N, clip_norm=bound)
    theta_RP = parameters(net, seeds)
    truth_NP = clipped_gradients(net, theta_RP[0], inputs, targets, bound)
    norm_N = truth_NP.norm(dim=1)
    total = cap * 3 * bound
    start = dpis.start(theta_RP, stack, inputs, targets)
    start = forced(start, size_R=float(N), bound_R=bound, sum_R=total, noise_R=0.0, seen_RN=0.7 * norm_N)
    shown = []
    for turn in range(rounds):
        state = replace(start, step_R=torch.full_like(start.step_R, turn))
        shown.append(stepped(dpis, net, state, stack, inputs, targets, 7).gradient_RP)
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


def one_hot(runs: int, variant: str) -> tuple[Any, Network, Tensor, Tensor, Hyperparameters, State]:
    """A network in which the gradient's columns show which examples are in the sum, with norms from 0.02 to 2."""
    count, dpis = 10, small(variant=variant)
    net = linear_network(count, 3)
    inputs = torch.diag(torch.logspace(-1.4, 0.6, count, dtype=torch.float64))
    targets = torch.arange(count) % 3
    stack = hyperparameters(range(runs), 2 / count, clip_norm=1.0)
    return dpis, net, inputs, targets, stack, dpis.start(torch.zeros(runs, net.size).double(), stack, inputs, targets)


def taken(gradient_RP: Tensor, net: Network) -> Tensor:
    """Which examples entered the sum (R, N)."""
    (weight,) = net.split(gradient_RP).values()
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
        step = stepped(dpis, net, state, stack, inputs, targets, 10)
        state = replace(step.after, theta_RP=state.theta_RP)  # the probabilities stated are those at these parameters
    found = taken(step.gradient_RP, net).numpy()
    assert step.seen.drawn_R.tolist() == found.sum(1).tolist()
    stated = (2 * norm_N / total).clamp(max=1.0).numpy()
    if variant == "proven":
        declared_RN = dpis.inclusion(step.before, step.after, net, stack, inputs, targets)
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
    dpis, bound, runs = small(variant=variant), 0.8, 60
    net, inputs, targets = problem()
    extra = {"ordinary": inputs[:1], "huge": 1e6 * inputs[:1], "tiny": 1e-3 * inputs[:1], "again": inputs[-1:]}[kind]
    both = torch.cat([inputs, extra]), torch.cat([targets, (targets[:1] + 1) % 4])
    total = cap * 3 * bound
    worst = 0.0
    for stale in (1e-4, 0.3, 1.0):
        sums = []
        for x, y in ((inputs, targets), both):
            stack = hyperparameters(range(runs), 3 / len(y), clip_norm=bound)
            state = dpis.start(parameters(net, runs), stack, x, y)
            state = forced(state, size_R=20.0, bound_R=bound, sum_R=total, noise_R=0.0, seen_RN=stale * bound)
            step = stepped(dpis, net, state, stack, x, y, 5)
            sums.append(step.gradient_RP)
            reach_R = dpis.reach(step.after, stack, len(y))
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
    fixed = small(size_noise=1.0, sum_noise=1.0, variant="equation_7").fixed
    (charged, true) = (found(20.0, 3.0).step(Row(0, 1 / 1.001, 1.0)) for found in (fixed.charged, fixed.dominating))
    assert charged == SampledGaussian(1 / 1.001, 1.0)
    assert isinstance(true, SampledGaussian)
    assert true.noise_multiplier == pytest.approx(1 / broken)


def opened(variant: str, inputs: Tensor, targets: Tensor, **more: Any) -> State:
    """The state after the first step of 200 runs whose Ñ is 1000, so that nothing bounds K̃ but from below."""
    dpis, runs = small(variant=variant, sum_noise=1.0, size_noise=1.0, **more), 200
    net = small_network()
    stack = hyperparameters(range(runs), 1 / len(targets), clip_norm=0.5, steps=4000, epsilon=50.0)
    state = dpis.start(parameters(net, runs), stack, inputs, targets)
    return one_step(dpis, net, put(state, size_R=1000.0), stack, inputs, targets, 40)[0]


def sums_of_neighbours(variant: str) -> Tensor:
    """|K̃ − K̃'| of 40 huge gradients and 39 of them, in units of C, for 200 seeds."""
    _, inputs, targets = problem(count=40)
    inputs = 100 + 1e3 * inputs
    with_z, without = opened(variant, inputs, targets), opened(variant, inputs[:-1], targets[:-1])
    return (with_z.memory["sum_R"] - without.memory["sum_R"]).abs() / 0.5


def test_the_sum_of_norms_moves_by_at_most_its_bound() -> None:
    assert float(sums_of_neighbours("proven").max()) == pytest.approx(1)


def test_the_printed_sum_moves_by_the_inverse_sampling_rate() -> None:
    """Internal: the sum of (11) before its noise; nothing else shows how far a record moves it.

    (11) divides by p_K, here b/Ñ = 6/12, while (19) charges a move of C; the ledger has the move of C/p_K.
    """
    dpis, norm_N = small(variant="equation_7"), torch.full((N,), 0.01, dtype=torch.float64)
    run = Run(12.0, 6.0, 0.01, 100, 1.0, 1e-5, 0, 2, ())
    stack = hyperparameters(range(60), 6 / N)
    moves = [
        dpis._summed(run, stack, at, norm_N, 0.01) - dpis._summed(run, stack, at, norm_N[:-1], 0.01) for at in range(60)
    ]
    assert sorted({round(move / 0.01, 9) for move in moves}) == [0.0, 2.0]
    fixed = small(size_noise=1.0, sum_noise=7.0, adaptive_clipping=True, variant="equation_7").fixed
    assert fixed.charged(12.0, 6.0).total == fixed.charged(12.0, 6.0).outer == SampledGaussian(0.5, 7.0)
    assert fixed.dominating(12.0, 6.0).total == SampledGaussian(0.5, 3.5)
    assert fixed.dominating(12.0, 6.0).outer == Gaussian(7.0)


def test_the_size_moves_by_one() -> None:
    net, inputs, targets = problem()
    stacks = [hyperparameters(range(50), 1 / count) for count in (N, N - 1)]
    sizes = [
        small(size_noise=2.0).start(parameters(net, 50), stack, inputs[:count], targets[:count]).memory["size_R"]
        for stack, count in zip(stacks, (N, N - 1), strict=True)
    ]
    inside = (sizes[0] > 2.0) & (sizes[1] > 2.0)  # not raised to kb
    assert inside.sum() > 40
    assert torch.allclose(sizes[0][inside] - sizes[1][inside], torch.ones(int(inside.sum())).double())


def test_the_outer_sum_moves_by_at_most_its_bound() -> None:
    """Internal: the rule of the next epoch's bound, (17), on two released sums side by side.

    C of the next epoch is λK*/Ñ, and K* moves by at most C* = 4·C_1, whatever the gradients.
    """
    fixed = small(size_noise=1.0, sum_noise=1.0, norm_floor=1e-4, adaptive_clipping=True, quantile=0.7).fixed
    past = open_epoch(fixed, Run(30.0, 3.0, 1.0, 100, 500.0, 1e-5, 0, 10, ()), 1.0, 12.0).row
    run = Run(30.0, 3.0, 1.0, 100, 500.0, 1e-5, 10, 10, (past,))
    net, inputs, targets = problem()
    dpis = small(adaptive_clipping=True)
    stack = hyperparameters(range(20), 3 / N, clip_norm=0.25, epsilon=200.0, steps=8)
    for scale in (1.0, 1e4):
        state = go(dpis, dpis.start(parameters(net, 20), stack, scale * inputs, targets), stack, 1)
        assert float(state.private["outer_RN"].max()) <= 4 * 0.25
    bounds = [next_bound(fixed, run, total) for total in (8.0, 12.0)]
    assert (bounds[1] - bounds[0]) * 30 / 0.7 == pytest.approx(4.0)


# Noise


def noise_p(stated: float) -> float:
    """p-value of the noise of some steps and runs against `stated` times reach·multiplier of the event.

    Inputs of zeros have no gradient, so what the update gets is noise.
    """
    dpis, net, runs = small(), linear_network(40, 5), 60
    inputs, targets = torch.zeros(N, 40).double(), torch.arange(N) % 5
    stack = hyperparameters(range(runs), 3 / N, clip_norm=[0.5 + 0.05 * r for r in range(runs)], epsilon=2.0)
    state = dpis.start(torch.ones(runs, net.size).double(), stack, inputs, targets)
    shown = []
    for _ in range(6):
        step = stepped(dpis, net, state, stack, inputs, targets, N)
        state = step.after
        assert step.seen.drawn_R.sum() == 0
        events = [ledger.parts[-1][0] for ledger in dpis.released(state, stack)]
        multiplier_R = torch.tensor([event.noise_multiplier for event in events])
        deviation_R = stated * dpis.reach(state, stack, N) * multiplier_R
        shown.append((step.gradient_RP / deviation_R[:, None]).numpy())
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
    stack = hyperparameters(range(runs), 1 / 4, clip_norm=0.7, epsilon=1e6, steps=3)
    start = dpis.start(torch.zeros(runs, net.size).double(), stack, inputs, targets)
    first = (start.memory["size_R"] - 4).numpy() / 0.5
    state, _ = one_step(dpis, net, put(start, size_R=1e3), stack, inputs, targets, 4)
    second = (state.memory["sum_R"] - 4 * 0.7).numpy() / (0.2 * 0.7)
    values = [statistics.distribution_p(z, stats.norm.cdf) for z in (first[first > -6], second)]
    values.append(float(statistics.correlation_p(first, second)))
    assert statistics.smallest(values)[0] >= statistics.FALSE_ALARM
