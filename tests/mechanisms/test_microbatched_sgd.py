"""Microbatches: who is with whom, the clipped means, their true sensitivity, noise and expectation.

Statistical tests have a false alarm of at most 1e-9 each; seeds are fixed.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import dpbench
from dpbench import events
from dpbench.cli.progress import run_facts
from dpbench.clipping.rules.microbatch import Microbatches, group_of, places
from dpbench.errors import DpbenchError
from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.problems import batch, hyperparameters, linear_network, reference, small_network
from dpbench.judging.check_tools.subject import Subject
from dpbench.judging.checks import mechanism_sensitivity
from dpbench.judging.checks.philox_vectors import uniform
from dpbench.mechanisms.presets import microbatched_sgd
from dpbench.plan.planning import Choices
from dpbench.randomness import GROUP, SAMPLE, table
from dpbench.reporting.collect import collect
from dpbench.step.clipped_sum import Draw, Examples
from dpbench.step.functional import Network
from dpbench.step.mechanism import Setting
from dpbench.store.records import Store
from tests.clipping.gradients import gradient, stepped

pytestmark = pytest.mark.usefixtures("one_thread")

N = 12


def data(examples: int = N, seed: int = 1) -> tuple[Network, Tensor, Tensor, Tensor]:
    """A network, parameters (P,), inputs and targets, in float64."""
    drawn = batch(torch.Generator().manual_seed(seed), 1, examples)
    net = small_network()
    theta_P = 0.5 * torch.randn(net.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return net, theta_P, drawn.inputs[0].tanh(), drawn.targets[0]


def each_gradient(net: Network, theta_P: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """Every example's gradient (N, P), by one ordinary backward pass each."""
    count = len(targets)
    single = Examples(inputs[:, None], targets[:, None], torch.ones(count, 1, dtype=torch.bool))
    return reference(net, theta_P.expand(count, -1), single, torch.full((count,), math.inf).double()).sum_RP


def released_sum(subject: Any, *args: Any, **more: Any) -> Tensor:
    """The noisy sum of clipped means (R, P): what the update gets times what it was divided by."""
    stack, targets = args[2], args[4]
    divisor_R = subject.rule.divisor(stack.sampling_rate_R, len(targets))
    return gradient(subject, *args, **more).double() * divisor_R[:, None]


# Who is with whom


def test_group_is_that_of_plain_python_and_of_the_example_alone() -> None:
    """⌊um⌋ by Philox on whole numbers; the same whichever other examples are drawn, wherever the example stands."""
    count_R = torch.tensor([7, 3])
    keys_RS, step_R = table([4, 9]), torch.tensor([0, 5])
    index_RB = torch.tensor([[0, 3, 8, 11], [2, 3, 4, 5]])
    group_RB = group_of(keys_RS, step_R, index_RB, count_R, int(index_RB.max()) + 1)
    for run, place in itertools.product(range(2), range(4)):
        seed, step, m = keys_RS[run].tolist(), int(step_R[run]), int(count_R[run])
        assert int(group_RB[run, place]) == (uniform(seed, GROUP, step, int(index_RB[run, place])) >> 21) * m >> 32
    some = group_of(keys_RS, step_R, index_RB[:, [2]], count_R, int(index_RB[:, 2].max()) + 1)
    assert torch.equal(some, group_RB[:, [2]])


def test_groups_are_uniform_and_independent() -> None:
    """Each of m = 5 groups, over examples and over steps, and pairs of neighbours; chi-square at 1e-9 in all."""
    runs, examples, m = 40, 500, 5
    groups = []
    for step in range(4):
        step_R, index_RB = torch.full((runs,), step), torch.arange(examples).repeat(runs, 1)
        groups.append(group_of(table(range(runs)), step_R, index_RB, torch.full((runs,), m), int(index_RB.max()) + 1))
    g = torch.stack(groups)
    pairs = [g[:, :, 1:] * m + g[:, :, :-1], g[1:] * m + g[:-1], g[:, 1:] * m + g[:, :-1]]
    found = [stats.chisquare(np.bincount(g.flatten().numpy(), minlength=m)).pvalue]
    for pair in pairs:
        # Neighbouring pairs overlap: every second one, along each axis, makes them independent.
        counted = np.bincount(pair[::2, ::2, ::2].flatten().numpy(), minlength=m * m)
        found.append(stats.chisquare(counted).pvalue)
    assert min(found) * len(found) > 1e-9


def test_places_hold_each_drawn_example_once_and_repeat_only_members() -> None:
    generator = torch.Generator().manual_seed(0)
    for groups in (1, 2, 5, 40):
        group_RB = torch.randint(groups, (3, 17), generator=generator)
        mask_RB = torch.rand(3, 17, generator=generator) < torch.tensor([[0.9], [0.3], [0.0]])
        place_RGK, filled_RGK = places(group_RB, mask_RB, groups)
        for run in range(3):
            for group in range(groups):
                members = [p for p in range(17) if mask_RB[run, p] and group_RB[run, p] == group]
                assert place_RGK[run, group][filled_RGK[run, group]].tolist() == members
                if members:
                    assert set(place_RGK[run, group].tolist()) == set(members)


# What a step computes


def plain_sum_of_means(size: int, stack: Any, run: int, step: int, gradient_NP: Tensor) -> tuple[Tensor, int, int]:
    """The sum of clipped means by its definition; how many examples were drawn, and how many were in clipped ones."""
    rate, clip = (float(x[run]) for x in (stack.sampling_rate_R, stack.clip_norm_R))
    seed = stack.keys_RS[run].tolist()
    m = max(1, math.ceil(rate * len(gradient_NP) / size - 1e-9))
    drawn = [i for i in range(len(gradient_NP)) if uniform(seed, SAMPLE, step, i) < math.floor(rate * 2**53)]
    total, clipped = torch.zeros(gradient_NP.shape[1], dtype=torch.float64), 0
    for group in range(m):
        members = [i for i in drawn if (uniform(seed, GROUP, step, i) >> 21) * m >> 32 == group]
        if members:
            mean_P = gradient_NP[members].mean(0)
            total += mean_P / max(1.0, float(mean_P.norm()) / clip)
            clipped += len(members) if float(mean_P.norm()) > clip else 0
    return total, len(drawn), clipped


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("chunk", [1, 4, N])
def test_step_is_the_algorithm(size: int, chunk: int) -> None:
    """Against plain Python, in float64; 1e-9 for gradients of norm below 10^2 and 10^4 roundings."""
    subject = microbatched_sgd(microbatch_size=size)
    net, theta_P, inputs, targets = data()
    gradient_NP = each_gradient(net, theta_P, inputs, targets)
    stack = hyperparameters([5, 6, 9], [0.3, 0.9, 1.0], clip_norm=[1.0, 0.2, 1e9], noise_multiplier=0.0)
    start = subject.start(theta_P.repeat(3, 1), stack, inputs, targets)
    for number in range(4):
        state = replace(start, step_R=torch.full_like(start.step_R, number))
        step = stepped(subject, net, state, stack, inputs, targets, chunk)
        divisor_R = subject.rule.divisor(stack.sampling_rate_R, N)
        for run in range(3):
            total_P, drawn, clipped = plain_sum_of_means(size, stack, run, number, gradient_NP)
            assert float((step.gradient_RP[run] * divisor_R[run] - total_P).abs().max()) < 1e-9
            assert int(step.seen.drawn_R[run]) == drawn
            assert int(step.seen.clipped_R[run]) == clipped


def test_divisor_is_the_expected_number_of_microbatches_with_members() -> None:
    """Against the binomial law of a microbatch's size; 1 − P(0) is off by 1e-16 of itself over qN ≥ 1e-6."""
    for size, examples, rate in ((2, 12, 0.3), (5, 12, 1.0), (5, 1000, 0.02), (3, 9, 1e-7), (16, 60_000, 256 / 60_000)):
        rule = Microbatches(size)
        rate_R = torch.tensor([rate], dtype=torch.float64)
        (m,) = rule.count(rate_R, examples).tolist()
        assert m == max(1, math.ceil(rate * examples / size - 1e-9))
        filled = m * (1 - float(stats.binom(examples, rate / m).pmf(0)))
        assert rule.divisor(rate_R, examples).item() == pytest.approx(filled, rel=1e-9)


# Sensitivity


def neighbours(net: Network, examples: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and parameters of a linear network: all records push one way, the last, far larger, the other."""
    inputs = torch.ones(examples, 4, dtype=torch.float64)
    inputs[-1] *= 1e6
    targets = torch.zeros(examples, dtype=torch.int64)
    targets[-1] = 1
    return inputs, targets, torch.zeros(net.size, dtype=torch.float64)


def largest_change(subject: Any, clip: float) -> float:
    """The largest change of the noise-free sum by the last of 5 to 10 records, over C, with q = 1."""
    net, worst = linear_network(4, 2), 0.0
    stack = hyperparameters(range(20), 1.0, clip_norm=clip, noise_multiplier=0.0)
    for examples in range(7, 11):  # with microbatches of 5 there are two of them with and without the last record
        inputs, targets, theta_P = neighbours(net, examples)
        theta_RP = theta_P.repeat(20, 1)
        assert torch.equal(*(subject.rule.count(stack.sampling_rate_R, n) for n in (examples, examples - 1)))
        whole = released_sum(subject, net, theta_RP, stack, inputs, targets)
        less = released_sum(subject, net, theta_RP, stack, inputs[:-1], targets[:-1])
        worst = max(worst, float((whole - less).norm(dim=1).max()) / clip)
    return worst


@pytest.mark.parametrize("variant", ["proven", "as_printed"])
def test_one_record_moves_the_sum_as_far_as_the_event_says(variant: Any) -> None:
    """By two clip norms: what `proven` accounts for; `as_printed` says one clip norm and is refuted."""
    subject = microbatched_sgd(variant=variant)
    ledger = subject.ledger(sampling_rate=1.0, noise_multiplier=1.0, steps=1)
    assert ledger is not None
    ((event, _),) = ledger.parts
    assert isinstance(event, events.SampledGaussian)
    stated = 1 / event.noise_multiplier  # in clip norms, as σ = 1
    for clip in (0.01, 1.0):
        change = largest_change(subject, clip)
        assert change == pytest.approx(2, rel=1e-6), "the worst case is attained"
        assert (change <= stated * (1 + 1e-9)) is (variant == "proven")


def test_the_contract_refutes_what_is_printed() -> None:
    for variant, verdict in (("proven", "holds"), ("as_printed", "refuted")):
        subject = Subject("mechanisms", "microbatched_sgd", microbatched_sgd(variant=variant))
        assert mechanism_sensitivity.check.applies(subject)
        assert mechanism_sensitivity.check(subject, seed=0).verdict == verdict


SPEC = """
kind: run
name: microbatches
dataset: digits
model: logistic
training: {batch_size: 64, steps: 2, learning_rate: 0.1, clip_norm: 1.0}
budget: {noise_multiplier: 1.0, delta: 1e-4}
rows:
  - {label: proven, mechanism: {name: microbatched_sgd, parameters: {microbatch_size: 4}}}
  - {label: printed, mechanism: {name: microbatched_sgd, parameters: {microbatch_size: 4, variant: as_printed}}}
  - label: stages
    mechanism:
      name: pipeline
      parameters:
        clip: {name: microbatch, parameters: {microbatch_size: 4, variant: as_printed}}
        noise: constant
seeds: 1
"""


def test_what_is_printed_has_no_epsilon_in_plan_record_and_report(tmp_path: Path) -> None:
    file, out = tmp_path / "spec.yaml", tmp_path / "out"
    file.write_text(SPEC)
    done = dpbench.run([file], out=out, choices=Choices(seeds=1))
    assert done.exit_status == 0, "asked for, and no mistake"
    contents = Store(out).read()
    assert not contents.damaged
    facts = {run.spec.label: run_facts(run) for run in done.plan.runs}
    rows = {row.label: row for section in collect(contents.runs).sections for row in section.rows}
    assert rows["proven"].promised is not None
    assert facts["proven"]["epsilon"] > 1
    for label in ("printed", "stages"):
        assert facts[label]["epsilon"] is None
        assert facts[label]["checked"] == "refuted"
        assert rows[label].withheld
        assert rows[label].promised is rows[label].shown is None
        assert {line.epsilon for line in rows[label].guarantees} == {None}
    page = (out / "report.html").read_text()
    assert "its ε is withheld, the mechanism is refuted: mechanism_sensitivity" in page


def test_adding_a_record_changes_one_microbatch_alone() -> None:
    """Random data: at most 2C for each example of many, and C where the microbatch was empty before."""
    subject = microbatched_sgd(microbatch_size=5)
    net, theta_P, inputs, targets = data(10)
    stack = hyperparameters(range(30), 1.0, clip_norm=0.3, noise_multiplier=0.0)
    theta_RP = theta_P.repeat(30, 1)
    # The added record is the last one: positions in the data name the records.
    change_R = (
        released_sum(subject, net, theta_RP, stack, inputs, targets)
        - released_sum(subject, net, theta_RP, stack, inputs[:-1], targets[:-1])
    ).norm(dim=1)
    assert float(change_R.max()) <= 0.6 * (1 + 1e-9)
    assert float(change_R.min()) > 0


def test_ledger_is_a_sampled_gaussian_of_half_the_noise_multiplier() -> None:
    for rate, sigma, count in ((0.01, 1.3, 7), (1.0, 0.5, 1)):
        for variant, event_sigma in (("proven", sigma / 2), ("as_printed", sigma)):
            ledger = microbatched_sgd(variant=variant).ledger(sampling_rate=rate, noise_multiplier=sigma, steps=count)
            assert ledger == events.Composition(((events.SampledGaussian(rate, event_sigma), count),))
    with pytest.raises(ValueError, match="noise_multiplier"):
        microbatched_sgd().ledger(sampling_rate=0.1, noise_multiplier=0.0, steps=1)


# Noise and expectation


def test_noise_has_its_scale_and_is_independent() -> None:
    """Standard normals in units of σC over what the sum is divided by; chi-square, normality, correlations: 1e-9."""
    subject, net = microbatched_sgd(), linear_network(80, 2)
    inputs, targets = torch.zeros(10, 80), torch.arange(10) % 2
    stack = hyperparameters([3, 4, 5], [0.5, 0.1, 1.0], clip_norm=[1.0, 0.25, 4.0], noise_multiplier=[1.0, 1.3, 0.5])
    theta_RP = torch.zeros(3, net.size)
    scale_R = stack.noise_multiplier_R * stack.clip_norm_R
    noise = [released_sum(subject, net, theta_RP, stack, inputs, targets, step=step) for step in range(40)]
    noise_TRP = (torch.stack(noise) / scale_R[None, :, None]).numpy()
    squares = noise_TRP**2
    found = [
        statistics.chi_square_p(squares.sum(), squares.size),
        statistics.chi_square_p(squares.sum((0, 2)), 40 * 160),
        statistics.distribution_p(noise_TRP, stats.norm.cdf),
        statistics.correlation_p(*statistics.apart(noise_TRP, 1)),
        statistics.correlation_p(*statistics.apart(noise_TRP, 1, axis=0)),
        statistics.correlation_p(noise_TRP[:, 0], noise_TRP[:, 1]),
    ]
    assert statistics.smallest(found)[0] >= 1e-9


@pytest.mark.parametrize(("size", "rate"), [(2, 0.1), (2, 1.0), (5, 0.3), (5, 1.0)])
def test_mean_is_the_full_gradient_where_nothing_is_clipped(size: int, rate: float) -> None:
    """By Hoeffding, coordinate by coordinate, at 1e-9: one draw's S/M is a sum of at most m means, each in [a, b].

    S lies within m·max|g| of 0 in every coordinate. False alarm of a coordinate: 2·exp(−2n·t²/(2m·max|g|/M)²).
    """
    subject = microbatched_sgd(microbatch_size=size)
    net, theta_P, inputs, targets = data()
    inputs, targets = 1 + 0.3 * inputs, torch.zeros_like(targets)  # gradients of one direction: a wrong divisor shows
    gradient_NP = each_gradient(net, theta_P, inputs, targets)
    seeds, steps = 200, 40
    stack = hyperparameters(range(seeds), rate, clip_norm=math.inf, noise_multiplier=0.0)
    theta_RP = theta_P.repeat(seeds, 1)
    drawn = torch.stack([gradient(subject, net, theta_RP, stack, inputs, targets, step=step) for step in range(steps)])
    (m,), (divisor,) = (
        set(subject.rule.count(stack.sampling_rate_R, N).tolist()),
        set(subject.rule.divisor(stack.sampling_rate_R, N).tolist()),
    )
    width_P = 2 * m * gradient_NP.abs().amax(0) / divisor
    limit_P = width_P * math.sqrt(math.log(2 * net.size / 1e-9) / (2 * seeds * steps))
    error_P = (drawn.mean((0, 1)) - gradient_NP.mean(0)).abs()
    assert bool((error_P <= limit_P + 1e-12).all())
    # It can fail: another divisor (m, or qN) that is off by a tenth or more is seen.
    others = [wrong for wrong in (divisor / m, divisor / (rate * N)) if abs(wrong - 1) > 0.1]
    assert others
    for wrong in others:
        assert bool((abs(wrong - 1) * gradient_NP.mean(0).abs() > limit_P).any()), wrong


def test_one_microbatch_of_everything_is_full_gradient_descent_when_nothing_is_clipped() -> None:
    """m = 1 and q = 1: the mean of all gradients, divided by 1."""
    subject = microbatched_sgd(microbatch_size=N)
    net, theta_P, inputs, targets = data()
    stack = hyperparameters([1], 1.0, clip_norm=math.inf, noise_multiplier=0.0)
    shown = gradient(subject, net, theta_P[None], stack, inputs, targets)[0]
    assert float((shown - each_gradient(net, theta_P, inputs, targets).mean(0)).abs().max()) < 1e-12


def test_a_microbatch_without_members_does_not_look_at_anybody() -> None:
    """Many more microbatches than examples, one of them with a gradient that is not finite and never drawn."""
    net, theta_P, inputs, targets = data()
    inputs = torch.cat([torch.full_like(inputs[:1], math.nan), inputs])
    targets = torch.cat([targets[:1], targets])
    rule, rate = Microbatches(2), 100 / len(targets)  # m = 50
    index = torch.tensor([[1, 4, 7, 1]])
    mask = torch.tensor([[True, True, True, False]])
    examples = Examples(inputs[index], targets[index], mask)
    draw = Draw(table([3]), torch.tensor([0]), index, torch.tensor([rate]).double(), len(targets))
    assert rule.count(draw.rate_R, draw.examples).tolist() == [50]
    found = rule.summed(draw, net, theta_P[None], examples, torch.tensor([1.0]).double(), 2)
    assert bool(found.sum_RP.isfinite().all())
    assert float(found.norm_RB[0, 3]) == float(found.loss_RB[0, 3]) == 0.0


# Numbers that it refuses


@pytest.mark.parametrize("size", [1, 0, -3, 2.5, True])
def test_bad_sizes_are_refused(size: Any) -> None:
    with pytest.raises(DpbenchError, match=r"microbatch_size = .*: expected a whole number, 2 or more"):
        microbatched_sgd(microbatch_size=size)


def test_a_microbatch_larger_than_the_batch_is_refused() -> None:
    setting = Setting(examples=100, sampling_rate=0.04, steps=3, learning_rate=0.1)
    microbatched_sgd(microbatch_size=4).check(setting)
    with pytest.raises(DpbenchError, match="microbatch_size = 5: larger than the expected batch of 4"):
        microbatched_sgd(microbatch_size=5).check(setting)
    with pytest.raises(DpbenchError, match="variant"):
        microbatched_sgd(variant="tf")
