"""Internal: pieces of a pass that are made small, and the memory that a pass holds.

DP-SGD-JL and DP-Adam-JL against their definition, their law, their printed variants, and numbers that they refuse.

The forward mode itself is in test_jl_forward.py; what every mechanism must do is in the contracts. Statistical tests:
seeds fixed, false alarm 1e-9 each. Tolerances are derived where they stand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from dpbench.catalog import catalog
from dpbench.clipping._measure import peak_bytes
from dpbench.clipping.rules import jl
from dpbench.clipping.rules.jl import ProjectedSum, normals
from dpbench.clipping.rules.none import Unclipped
from dpbench.errors import DpbenchError, ProblemsError
from dpbench.events import Composition, RandomSensitivityGaussian, Sampler
from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.problems import batch, hyperparameters, reference, small_network
from dpbench.judging.check_tools.subject import Subject
from dpbench.judging.checks import gradient_unbiased, mechanism_sensitivity, sampler_inclusion
from dpbench.judging.checks.philox_vectors import gauss, uniform
from dpbench.mechanisms.presets import dp_adam_jl, dp_sgd_jl, non_private
from dpbench.models import imdb_lstm, mlp
from dpbench.plan.planning import Choices, Plan, make_plan
from dpbench.privacy.accounting import account
from dpbench.randomness import NOISE, PROJECTION, SAMPLE, table
from dpbench.spec.loading import load_specs
from dpbench.step.clipped_sum import Clipped, Draw, Examples
from dpbench.step.functional import Network, network
from dpbench.step.mechanism import Hyperparameters, Setting, State
from dpbench.step.mechanism import step as one_step
from dpbench.step.pipeline import Pipeline
from dpbench.step.samplers.fixed_size import FixedSizeSampler
from dpbench.step.stages import OwnSum
from dpbench.store.records import Store
from tests.clipping.gradients import gradient

pytestmark = pytest.mark.usefixtures("one_thread")
N = 12
BOTH: dict[str, Callable[..., Pipeline]] = {"sgd": dp_sgd_jl, "adam": dp_adam_jl}
every_algorithm = pytest.mark.parametrize("name", BOTH)
every_way = pytest.mark.parametrize("way", ["jvp", "vjp", "layers"])


def problem(runs: int, places: int, seed: int = 1) -> tuple[Network, Tensor, Examples, Draw]:
    """float64, a smooth network; empty places, and gradients of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    net = small_network()
    theta_RP = 0.5 * torch.randn(runs, net.size, generator=generator, dtype=torch.float64)
    drawn = batch(generator, runs, places)
    examples = Examples(drawn.inputs.clamp(-20, 20), drawn.targets, drawn.mask_RB)
    return net, theta_RP, examples, drawn_at(table(range(5, 5 + runs)), torch.arange(runs) * 3, places)


def drawn_at(keys_RS: Tensor, step_R: Tensor, places: int) -> Draw:
    """How a batch was drawn, as far as projections depend on it: by keys and step alone."""
    nowhere_RB = torch.zeros(len(keys_RS), places, dtype=torch.int64)
    return Draw(keys_RS, step_R, nowhere_RB, torch.ones(len(keys_RS), dtype=torch.float64), N)


def gradients(net: Network, theta_RP: Tensor, examples: Examples) -> Tensor:
    """Every g_i (R, B, P) by the definition, zero at empty places: each place is a run of one example."""
    runs, places = examples.mask_RB.shape
    flat = Examples(
        examples.inputs.flatten(0, 1)[:, None], examples.targets.reshape(-1, 1), examples.mask_RB.reshape(-1, 1)
    )
    never = torch.full((runs * places,), math.inf, dtype=torch.float64)
    return reference(net, theta_RP.repeat_interleave(places, 0), flat, never).sum_RP.reshape(runs, places, net.size)


def brute_force(
    projections: int, net: Network, theta_RP: Tensor, examples: Examples, draw: Draw, clip_R: Tensor
) -> Clipped:
    """Algorithm 1, lines 4 to 11, one record and one projection at a time; the normals by plain Python."""
    gradient_RBP = gradients(net, theta_RP, examples)
    sum_RP, norm_RB = torch.zeros_like(theta_RP), torch.zeros(examples.mask_RB.shape, dtype=torch.float64)
    for run in range(len(theta_RP)):
        seed, step, size = draw.keys_RS[run].tolist(), int(draw.step_R[run]), net.size
        vectors = [
            torch.tensor([gauss(seed, PROJECTION, step, j * size + p) for p in range(size)], dtype=torch.float64)
            for j in range(projections)
        ]
        for place in torch.nonzero(examples.mask_RB[run]).flatten().tolist():
            one = gradient_RBP[run, place]
            norm = math.sqrt(sum(float(one @ v) ** 2 for v in vectors) / projections)
            norm_RB[run, place] = norm
            sum_RP[run] += one * (min(1.0, float(clip_R[run]) / norm) if norm else 1.0)
    return Clipped(sum_RP, norm_RB, torch.zeros_like(norm_RB))


@every_way
@pytest.mark.parametrize("projections", [1, 3])
def test_sum_is_the_definition(projections: int, way: Any) -> None:
    """1e-9 of the sizes: 10^4 roundings of each product (`clipping_reference`), and normals that agree to 1e-13.

    An estimate may be far smaller than the norm; the factor C/M then carries M's relative error, 1e-12 · ‖g‖/M, and
    with seven places ‖g‖/M stays below 10^3.
    """
    net, theta_RP, examples, draw = problem(3, 7)
    clip_R = torch.tensor([0.3, 2.0, 30.0], dtype=torch.float64)
    expected = brute_force(projections, net, theta_RP, examples, draw, clip_R)
    rule = ProjectedSum(projections, way)
    assert isinstance(rule, OwnSum)
    found = rule.summed(draw, net, theta_RP, examples, clip_R, 3)
    sizes = gradients(net, theta_RP, examples).norm(dim=2)
    assert bool(((found.norm_RB - expected.norm_RB).abs() <= 1e-9 * sizes).all())
    assert bool(((found.sum_RP - expected.sum_RP).norm(dim=1) <= 1e-9 * sizes.sum(1)).all())
    assert bool(((expected.norm_RB > clip_R[:, None]) & examples.mask_RB).any())
    assert bool(((expected.norm_RB < clip_R[:, None]) & examples.mask_RB).any())
    assert torch.allclose(found.loss_RB, reference(net, theta_RP, examples, clip_R).loss_RB, rtol=1e-9, atol=1e-12)


MIXED = hyperparameters(
    [5, 6, 9],
    [0.3, 0.6, 0.1],
    learning_rate=[0.1, 0.02, 0.5],
    clip_norm=[1.0, 0.2, 3.0],
    noise_multiplier=[1.0, 0.3, 2.0],
)


@every_algorithm
def test_step_is_the_algorithm(name: str) -> None:
    """Batch, estimates, clipping, noise and divisor by plain Python; 1e-9 of the gradient, see above."""
    mechanism = BOTH[name](projections=2)
    net, theta_RP, _, _ = problem(3, 1)
    drawn = batch(torch.Generator().manual_seed(1), 1, N)
    inputs, targets = drawn.inputs[0].clamp(-20, 20), drawn.targets[0]
    for step in (0, 7):
        shown_RP = gradient(mechanism, net, theta_RP, MIXED, inputs, targets, step=step)
        for run in range(3):
            keys, rate, clip = MIXED.keys_RS[run], float(MIXED.sampling_rate_R[run]), MIXED.clip_norm_R[run, None]
            seed = keys.tolist()
            chosen = [i for i in range(N) if uniform(seed, SAMPLE, step, i) < math.floor(rate * 2**53)]
            examples = Examples(inputs[chosen][None], targets[chosen][None], torch.ones(1, len(chosen)) > 0)
            draw = drawn_at(keys[None], torch.tensor([step]), len(chosen))
            one = slice(run, run + 1)
            total_P = brute_force(2, net, theta_RP[one], examples, draw, clip).sum_RP[0]
            deviation = float(MIXED.noise_multiplier_R[run] * clip)
            noise_P = torch.tensor([gauss(seed, NOISE, step, p) for p in range(net.size)], dtype=torch.float64)
            expected_P = (total_P + deviation * noise_P) / (rate * N)
            assert float((shown_RP[run] - expected_P).norm()) <= 1e-9 * (1 + float(expected_P.norm()))


# The law of the estimates


@pytest.mark.parametrize("projections", [1, 5, 30])
def test_estimates_have_their_law(projections: int) -> None:
    """r·M²/‖g‖² is χ²_r (Proposition 2.1), over seeds and steps, independent from step to step and seed to seed."""
    seeds, steps = 40, 50
    net, theta_RP, examples, _ = problem(1, 1, seed=3)
    runs = seeds * steps
    one = Examples(examples.inputs.expand(runs, -1, -1), examples.targets.expand(runs, -1), torch.ones(runs, 1) > 0)
    theta_RP = theta_RP.expand(runs, -1).contiguous()
    draw = drawn_at(table(range(seeds)).repeat_interleave(steps, 0), torch.arange(steps).repeat(seeds), 1)
    found = ProjectedSum(projections).summed(draw, net, theta_RP, one, torch.ones(runs), 1)
    norm = float(gradients(net, theta_RP[:1], Examples(one.inputs[:1], one.targets[:1], one.mask_RB[:1])).norm())
    drawn = (projections * (found.norm_RB / norm) ** 2).reshape(seeds, steps).numpy()
    law = stats.chi2(projections)
    normal = stats.norm.ppf(law.cdf(drawn).clip(1e-12, 1 - 1e-12))
    p_values: list[Any] = [
        statistics.distribution_p(drawn, law.cdf),
        statistics.correlation_p(*statistics.apart(normal, 1)),
        statistics.correlation_p(*statistics.apart(normal, 1, axis=0)),
    ]
    p, _ = statistics.smallest(p_values)
    assert p >= 1e-9
    wrong = (
        statistics.distribution_p(drawn * 1.5, law.cdf),
        statistics.distribution_p(drawn, stats.chi2(projections + 2).cdf),
    )
    assert max(wrong) < 1e-9, "the test has power"


def test_many_projections_give_the_norm() -> None:
    """r = 20,000: (M/‖g‖)² lies within the two-sided 1e-9 / 8 quantiles of χ²_r / r, here ± 6.6 %."""
    net, theta_RP, examples, draw = problem(2, 4)
    examples = replace(examples, mask_RB=torch.ones(2, 4) > 0)
    clip_R = torch.tensor([0.5, 2.0], dtype=torch.float64)
    found = ProjectedSum(20_000).summed(draw, net, theta_RP, examples, clip_R, 4)
    ratio = ((found.norm_RB / gradients(net, theta_RP, examples).norm(dim=2)) ** 2).numpy()
    low, high = stats.chi2(20_000).ppf(1e-9 / 16) / 20_000, stats.chi2(20_000).isf(1e-9 / 16) / 20_000
    assert 0.93 < low < ratio.min()
    assert ratio.max() < high < 1.07


@every_way
@pytest.mark.parametrize("projections", [1, 4])
def test_a_record_moves_the_sum_by_its_norm_over_the_estimate(projections: int, way: Any) -> None:
    """C·‖g‖/M where M > C, whatever else is in the batch: the event's C·Z_r, which may exceed C. 1e-9 as above."""
    net, theta_RP, examples, draw = problem(40, 3, seed=8)
    examples = replace(examples, mask_RB=torch.ones(40, 3) > 0)
    clip_R = torch.full((40,), 0.01, dtype=torch.float64)
    rule = ProjectedSum(projections, way)
    more, less = (rule.summed(draw, net, theta_RP, e, clip_R, 3) for e in (examples, examples.part(1, 3)))
    moved_R = (more.sum_RP - less.sum_RP).norm(dim=1)
    norm_R = gradients(net, theta_RP, examples.part(0, 1)).norm(dim=2)[:, 0]
    big = more.norm_RB[:, 0] > clip_R
    assert int(big.sum()) > 30
    expected_R = torch.where(big, clip_R * norm_R / more.norm_RB[:, 0], norm_R)
    assert bool(((moved_R - expected_R).abs() <= 1e-9 * (norm_R + more.sum_RP.norm(dim=1) + 1)).all())
    assert float((moved_R / clip_R).max()) > 1.2, "an estimate below the norm"
    assert torch.equal(more.norm_RB[:, 1:].float(), less.norm_RB.float()), "the others' estimates do not move"


@pytest.mark.parametrize("projections", [1, 5, 30])
@every_algorithm
def test_sensitivity_has_the_law_of_the_event(name: str, projections: int) -> None:
    subject = Subject("mechanisms", name, BOTH[name](projections=projections))
    assert mechanism_sensitivity.check.applies(subject)
    assert mechanism_sensitivity.check(subject, seed=0).verdict == "holds"


class OneProjection(ProjectedSum):
    """Sums with one projection, whatever its event says."""

    def summed(self, *of: Any) -> Clipped:
        return ProjectedSum(1).summed(*of)


def test_an_event_with_another_dimension_is_found_out() -> None:
    """A planted fault: the code runs one projection and the ledger says thirty."""
    mechanism = replace(dp_sgd_jl(projections=30), rule=OneProjection(30))
    assert mechanism_sensitivity.check(Subject("mechanisms", "planted", mechanism), seed=0).verdict == "refuted"


# What may not change a number


@every_way
def test_chunks_change_nothing(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the batch, over the runs, and over the normals; 1e-10: sums of 10^3 terms in another order."""
    net, theta_RP, examples, draw = problem(2, 7)
    clip_R = torch.tensor([0.5, 2.0], dtype=torch.float64)
    rule = ProjectedSum(5, way)
    whole = rule.summed(draw, net, theta_RP, examples, clip_R, 7)

    def compare(chunk: int) -> None:
        part = rule.summed(draw, net, theta_RP, examples, clip_R, chunk)
        scale_R = gradients(net, theta_RP, examples).norm(dim=2).sum(1)
        assert bool(((part.sum_RP - whole.sum_RP).norm(dim=1) <= 1e-10 * scale_R).all())
        assert torch.allclose(part.norm_RB, whole.norm_RB, rtol=1e-10)

    for chunk in (1, 3, 20):
        compare(chunk)
    monkeypatch.setattr(jl, "_VECTORS", {"cpu": 1})  # one run at a time
    compare(7)
    monkeypatch.setattr(jl, "_TANGENTS", {"cpu": 1})
    compare(7)
    monkeypatch.setattr(jl, "_PIECE", {"cpu": 10})
    compare(7)


def test_the_places_of_a_call_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The widest tensor is one example's, not the batch that the example is taken from."""
    monkeypatch.setattr(jl, "_TANGENTS", {"cpu": 10**4})
    rule, (net, theta_RP, examples, _) = ProjectedSum(5), problem(2, 5)
    many = Examples(*(torch.cat([one] * 40, 1) for one in (examples.inputs, examples.targets, examples.mask_RB)))
    few = rule._places(net, theta_RP, examples, 10**6)
    assert rule._places(net, theta_RP, many, 10**6) == few > 1


def test_normals_are_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = drawn_at(table([3, 4]), torch.tensor([0, 9]), 1)
    whole = normals(draw, 5, 7, torch.float64)
    assert torch.equal(whole.float(), normals(draw, 5, 7, torch.float32))
    monkeypatch.setattr(jl, "_PIECE", {"cpu": 10})
    assert torch.equal(whole, normals(draw, 5, 7, torch.float64))
    assert whole[1, 2, 3] == pytest.approx(gauss(4, PROJECTION, 9, 2 * 7 + 3), rel=1e-12)


@every_way
def test_a_stack_is_each_run_alone(way: Any) -> None:
    """1e-10 as for chunks."""
    net, theta_RP, examples, draw = problem(3, 5)
    clip_R = torch.tensor([0.5, 2.0, 9.0], dtype=torch.float64)
    whole = ProjectedSum(3, way).summed(draw, net, theta_RP, examples, clip_R, 2)
    for run in range(3):
        one = slice(run, run + 1)
        part = Examples(examples.inputs[one], examples.targets[one], examples.mask_RB[one])
        own = drawn_at(draw.keys_RS[one], draw.step_R[one], 5)
        alone = ProjectedSum(3, way).summed(own, net, theta_RP[one], part, clip_R[one], 5)
        assert torch.allclose(alone.norm_RB[0], whole.norm_RB[run], rtol=1e-10)
        assert float((alone.sum_RP[0] - whole.sum_RP[run]).norm()) <= 1e-10 * float(alone.norm_RB.sum() + 1)


@every_way
def test_both_ways_give_the_same_training(way: Any) -> None:
    """Six steps; 2e-10 as in the contract on stacks."""
    net, theta_RP, _, _ = problem(3, 1)
    drawn = batch(torch.Generator().manual_seed(1), 1, N)
    inputs, targets = drawn.inputs[0].tanh(), drawn.targets[0]
    ends = []
    for mechanism in (dp_sgd_jl(projections=3), dp_sgd_jl(projections=3, way=way)):
        ends.append(trained(mechanism, net, theta_RP, MIXED, inputs, targets, 6).theta_RP)
    assert float((ends[0] - ends[1]).abs().max()) < 2e-10


def trained(
    mechanism: Pipeline,
    net: Network,
    theta_RP: Tensor,
    stack: Hyperparameters,
    inputs: Tensor,
    targets: Tensor,
    steps: int,
) -> State:
    state = mechanism.start(theta_RP, stack, inputs, targets)
    for _ in range(steps):
        state, _ = one_step(mechanism, net, state, stack, inputs, targets, 5)
    return state


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
@every_way
def test_what_stands_at_an_empty_place_adds_nothing(way: Any, value: float) -> None:
    net, theta_RP, examples, draw = problem(2, 3)
    mask_RB = torch.tensor([[True, True, False], [False, False, False]])
    spoilt = examples.inputs.clone()
    spoilt[~mask_RB] = value
    rule = ProjectedSum(2, way)
    clip_R = torch.ones(2, dtype=torch.float64)
    good, bad = (
        rule.summed(draw, net, theta_RP, Examples(x, examples.targets, mask_RB), clip_R, 3)
        for x in (examples.inputs, spoilt)
    )
    for one, other in zip(vars(good).values(), vars(bad).values(), strict=True):
        assert torch.equal(one, other)
    assert float(good.sum_RP[0].norm()) > 0
    assert all(float(found[1].abs().max()) == 0 for found in vars(good).values())


def test_large_gradients_of_float32_do_not_overflow() -> None:
    """⟨g, v⟩ of 10^30 has a square beyond float32; the clipped gradient has size C·Z all the same."""
    net = network(nn.Linear(4, 2, bias=False))
    inputs = torch.full((1, 1, 4), 1e30)
    examples = Examples(inputs, torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1) > 0)
    draw = drawn_at(table([1]), torch.tensor([0]), 1)
    found = ProjectedSum(30).summed(draw, net, torch.zeros(1, 8), examples, torch.ones(1, dtype=torch.float64), 1)
    assert 1e29 < float(found.norm_RB) < 1e31
    assert 0.5 < float(found.sum_RP.norm()) < 2


def test_an_estimate_that_overflows_stops_the_run() -> None:
    """Some ⟨g, v⟩ is beyond float32 though g is finite: a weight of 0 would drop the example without a word."""
    net = network(nn.Linear(4, 2, bias=False))
    inputs, targets = torch.full((N, 4), 1.0), torch.zeros(N, dtype=torch.int64)
    inputs[3] = 3e38
    mechanism = dp_sgd_jl()
    stack = hyperparameters([1, 2], 1.0)
    theta_RP = torch.zeros(2, 8)
    _, seen = one_step(mechanism, net, mechanism.start(theta_RP, stack, inputs, targets), stack, inputs, targets, 5)
    assert seen.finite_R.tolist() == [False, False]


@every_algorithm
def test_without_noise_and_clipping_it_is_the_non_private_one(name: str) -> None:
    """σ = 0 and C = ∞; 2e-10 as in the contract."""
    net, theta_RP, _, _ = problem(3, 1)
    drawn = batch(torch.Generator().manual_seed(1), 1, N)
    inputs, targets = drawn.inputs[0].tanh(), drawn.targets[0]
    free = replace(MIXED, clip_norm_R=torch.full((3,), math.inf).double(), noise_multiplier_R=torch.zeros(3).double())
    plain = non_private(optimizer="sgd" if name == "sgd" else "adam")
    ends = [trained(m, net, theta_RP, free, inputs, targets, 6).theta_RP for m in (BOTH[name](projections=2), plain)]
    assert float((ends[0] - ends[1]).abs().max()) < 2e-10


@every_way
def test_a_recurrent_network_takes_no_copies_of_its_weights(way: Any) -> None:
    """No gradient of a single example is held, and no weight is copied for one: at most three plain backward passes.

    Weights of 4·64·64·2·2 numbers for each of 32 examples would be 4 MiB for every place of the sequence.
    """
    net = network(imdb_lstm.model((10,), 2, words=50, embedding=64, hidden=64))
    inputs = (50 * torch.rand(1, 32, 10, generator=torch.Generator().manual_seed(0))).floor()
    examples = Examples(inputs, torch.zeros(1, 32, dtype=torch.int64), torch.ones(1, 32) > 0)
    theta_RP = torch.full((1, net.size), 0.01)
    draw = drawn_at(table([1]), torch.tensor([0]), 32)
    free_R = torch.full((1,), math.inf, dtype=torch.float64)
    sums = (partial(rule.summed, draw) for rule in (Unclipped(), ProjectedSum(1, way)))
    peaks = []
    for one in sums:
        one(net, theta_RP, examples, free_R, 32)  # what torch makes in a first call stays
        peaks.append(peak_bytes(lambda summed=one: summed(net, theta_RP, examples, free_R, 32), theta_RP.device))
    assert peaks[1] < 3 * peaks[0]


# What it releases


def test_ledger_and_decaying_noise() -> None:
    for build in BOTH.values():
        ledger = build(projections=7).ledger(sampling_rate=0.25, noise_multiplier=2.0, steps=9)
        assert ledger == Composition(((RandomSensitivityGaussian(0.25, 2.0, 7), 9),))
        decaying = build(projections=7, noise_decay=0.5).ledger(sampling_rate=0.25, noise_multiplier=2.0, steps=9)
        stretches = [(2.0 * math.exp(-0.5 * epoch), count) for epoch, count in enumerate((4, 4, 1))]
        assert decaying == Composition(
            tuple((RandomSensitivityGaussian(0.25, sigma, 7), count) for sigma, count in stretches)
        )


# As printed


@dataclass(frozen=True)
class SaidToBePoisson(FixedSizeSampler):
    sampler: ClassVar[Sampler] = "poisson"


def test_printed_batches_are_not_the_ones_of_the_proof() -> None:
    """The contract on inclusion is refuted: batches have one size. No accountant takes what the ledger says."""
    printed = dp_sgd_jl(variant="as_printed")
    assert printed.facts()["sampler"] == "without_replacement"
    claimed, proven = SaidToBePoisson(), dp_sgd_jl().sample
    assert sampler_inclusion.check(Subject("samplers", "printed", claimed), seed=3).verdict == "refuted"
    assert sampler_inclusion.check(Subject("samplers", "proven", proven), seed=3).verdict == "holds"
    ledger = printed.ledger(sampling_rate=0.25, noise_multiplier=2.0, steps=9)
    assert ledger is not None
    for guarantee in account(ledger, delta=1e-5, accountants=sorted(catalog("accountants"))):
        assert guarantee.epsilon is None, guarantee.accountant
        assert guarantee.refused


def test_printed_batches_have_one_size_and_every_example_alike() -> None:
    """2000 batches of 3 of 12: each count is Binomial(2000, 1/4), false alarm 1e-9; alone and in a stack the same."""
    keys_RS, step_R = table(range(40)).repeat_interleave(50, 0), torch.arange(50).repeat(40)
    drawn = FixedSizeSampler()(keys_RS, step_R, torch.full((2000,), 0.25, dtype=torch.float64), N)
    assert drawn.mask_RB.sum(1).tolist() == [3] * 2000
    assert sampler_inclusion.malformed(drawn, N) is None
    p, _ = statistics.smallest(
        [statistics.binomial_p(np.bincount(drawn.index_RB.flatten().numpy(), minlength=N), 2000, 0.25)]
    )
    assert p >= 1e-9
    alone = FixedSizeSampler()(keys_RS[7:8], step_R[7:8], torch.tensor([0.25], dtype=torch.float64), N)
    assert torch.equal(alone.index_RB[0], drawn.index_RB[7])


class Centre(nn.Module):
    """Two classes whose scores are ± 10·θ: the loss falls as θ grows, from any θ."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.theta, -self.theta])[None] * x


def test_printed_adam_does_not_go_downhill() -> None:
    """Its first step has one sign whatever the gradient's is: the mean of many draws goes uphill for one of two labels.

    So the printed update fails the contract that σ = 0 and C = ∞ give the non-private counterpart.
    """
    net = network(Centre())
    inputs, stack = (
        torch.ones(N, 1, dtype=torch.float64),
        hyperparameters([1], 1.0, clip_norm=math.inf, noise_multiplier=0.0),
    )
    start = torch.zeros(1, 1, dtype=torch.float64)
    builds = {
        "printed": dp_adam_jl(variant="as_printed"),
        "proven": dp_adam_jl(),
        "plain": non_private(optimizer="adam"),
    }
    moves = {
        (name, label): float(trained(build, net, start, stack, inputs, torch.full((N,), label), 1).theta_RP)
        for name, build in builds.items()
        for label in (0, 1)
    }
    assert moves["printed", 0] == pytest.approx(moves["printed", 1])
    assert moves["printed", 0] < 0, "uphill for label 0"
    for label, sign in ((0, 1), (1, -1)):
        assert moves["proven", label] * sign > 0
        assert moves["proven", label] == pytest.approx(moves["plain", label], rel=1e-12)
        assert abs(moves["printed", label] - moves["plain", label]) > 0.1


def test_what_the_printed_update_is_given_is_unbiased_all_the_same() -> None:
    """The double gradient is the update's fault; the noisy gradient is not biased (false alarm 1e-9)."""
    subject = Subject("mechanisms", "printed", dp_adam_jl())
    assert gradient_unbiased.check(subject, seed=0).verdict == "holds"


def test_the_example_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    """Few projections cost much: ε at r = 3, 5, 30."""
    page = (Path(__file__).parents[2] / "docs" / "mechanisms.md").read_text(encoding="utf-8")
    (code,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "projections" in code]
    exec(compile(code, "mechanisms.md", "exec"), {})
    told = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(told["30"]) < 4 < 10 < float(told["5"]) < 100 < float(told["3"])


# Numbers that it refuses, before training

SPEC = """
kind: run
name: small
source: somewhere
dataset: digits
model: {name: mlp, parameters: {hidden: [8]}}
mechanism: {name: dp_sgd_jl, parameters: {projections: 30}}
budget: {delta: 1e-4, noise_multiplier: 2.0}
training: {batch_size: 96, epochs: 1, learning_rate: 1.0, clip_norm: 1.0}
seeds: 1
"""


def plan_of(folder: Path, text: str) -> Plan:
    (folder / "spec.yaml").write_text(text)
    return make_plan(load_specs([folder / "spec.yaml"], allow_code=True), Store(folder / "out"), Choices(device="cpu"))


@pytest.mark.parametrize("name", ["dp_sgd_jl", "dp_adam_jl"])
@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ("projections: 0", "projections = 0"),
        ("projections: -3", "projections = -3"),
        ("projections: 2.5", "2.5"),
        ("projections: many", "many"),
        ("projections: true", "rojections"),
        ("way: backwards", "backwards"),
        ("variant: printed", "printed"),
        ("noise_decay: -1", "noise_decay = -1"),
        ("projection: 3", "projections"),
    ],
)
def test_bad_parameters_are_one_clear_error(tmp_path: Path, name: str, parameters: str, words: str) -> None:
    text = SPEC.replace("dp_sgd_jl", name).replace("projections: 30", parameters)
    with pytest.raises(ProblemsError) as caught:
        plan_of(tmp_path, text)
    assert words in str(caught.value)
    assert len(caught.value.problems) == 1


PRINTED = ("projections: 30", "variant: as_printed")
ADAM = ("dp_sgd_jl", "dp_adam_jl")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([PRINTED, ("batch_size: 96", "sampling_rate: 0.0123")], "whole number"),
        ([PRINTED, ADAM, ("rate: 1.0", "rate: 0.5")], "learning_rate = 0.5"),
        ([ADAM, (PRINTED[0], "variant: as_printed, bias_correction: true")], "bias_correction"),
        ([PRINTED, ("noise_multiplier: 2.0", "epsilon: 3, calibrate_with: exact")], "sampler"),
        ([("{name: mlp, parameters: {hidden: [8]}}", "'tests.mechanisms.test_dp_sgd_jl:looking'")], "'1' (Looking)"),
    ],
)
def test_what_cannot_run_is_refused_before_training(tmp_path: Path, changes: list[tuple[str, str]], words: str) -> None:
    text = SPEC
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    with pytest.raises(ProblemsError) as caught:
        plan_of(tmp_path, text)
    assert words in str(caught.value)


def test_printed_variants_can_be_planned_without_an_epsilon(tmp_path: Path) -> None:
    for name in ("dp_sgd_jl", "dp_adam_jl"):
        (run,) = plan_of(
            tmp_path, SPEC.replace("dp_sgd_jl", name).replace("projections: 30", "variant: as_printed")
        ).runs
        assert run.epsilon is None


class Looking(nn.Module):
    """Looks at its data, which no transform can follow."""

    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.sum()) > 0 else -x


def looking(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(mlp.model(input_shape, classes), Looking())


def test_code_that_takes_part_is_in_the_record(tmp_path: Path) -> None:
    (run,) = plan_of(tmp_path, SPEC).runs
    rule = {"dpbench.clipping.rules.jl", "dpbench.clipping.rules._jl_forward"}
    assert rule | {"dpbench.step.noise.decaying", "dpbench.step.updates.sgd"} <= set(run.sources)


@pytest.mark.parametrize("bad", [0, -1, 2.0, True, "3", None])
def test_projections_in_python(bad: Any) -> None:
    for build in BOTH.values():
        with pytest.raises(DpbenchError, match=r"projections = .*whole number"):
            build(projections=bad)


def test_a_whole_batch_passes_and_others_do_not() -> None:
    printed = dp_sgd_jl(variant="as_printed")
    assert hasattr(printed, "check")
    setting = Setting(examples=1000, sampling_rate=0.1, steps=10, learning_rate=1.0)
    printed.check(setting)
    dp_sgd_jl().check(replace(setting, sampling_rate=0.12345))
    for rate in (0.12345, 1e-4):
        with pytest.raises(DpbenchError, match="whole number"):
            printed.check(replace(setting, sampling_rate=rate))
