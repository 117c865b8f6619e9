"""Private statistics of the inputs: sensitivity, noise, ledger, and the standardised inputs that the network sees.

Statistical tests have a false alarm of at most 1e-9 each; seeds are fixed.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from dpbench import account, events
from dpbench.errors import DpbenchError, ProblemsError
from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.problems import hyperparameters, small_network
from dpbench.judging.checks.philox_vectors import gauss
from dpbench.mechanisms.presets import noisy_sgd, normalised_sgd
from dpbench.models import scattering_cnn, scattering_linear
from dpbench.plan.planning import Choices, make_plan
from dpbench.randomness import PREPARATION, table
from dpbench.spec.loading import load_specs
from dpbench.step.functional import evaluate, network
from dpbench.step.mechanism import step as one_step
from dpbench.step.preparations.channel_statistics import OFFSET, ChannelStatistics
from dpbench.store.records import Store
from tests.clipping.gradients import gradient

pytestmark = pytest.mark.usefixtures("one_thread")


def pictures(count: int = 30, channels: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    """Records (N, K, 3, 2) whose channels have very different means and spreads."""
    generator = torch.Generator().manual_seed(4)
    size = torch.logspace(-1, 1, channels, dtype=torch.float64)[:, None, None]
    drawn = torch.randn(count, channels, 3, 2, generator=generator, dtype=torch.float64)
    return (size * (1 + drawn)).to(dtype)


def true_statistics(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel over records and places."""
    return inputs.mean((0, 2, 3)), inputs.var((0, 2, 3), correction=0)


# What is released


def test_sums_are_those_of_the_definition() -> None:
    """Record by record in plain Python; 1e-12 for rounding of float64."""
    inputs, preparation = pictures(), ChannelStatistics(1.0, mean_bound=3.0, square_bound=20.0)
    expected = torch.zeros(2, 5, dtype=torch.float64)
    clipped = [0, 0]
    for record in inputs:
        rows = (record.mean((1, 2)), record.square().mean((1, 2)))
        for at, (row, bound) in enumerate(zip(rows, (3.0, 20.0), strict=True)):
            norm = math.sqrt(sum(float(x) ** 2 for x in row))
            clipped[at] += norm > bound
            expected[at] += row * min(1.0, bound / norm)
    assert all(0 < count < len(inputs) for count in clipped), "some are clipped and some are not"
    assert float((preparation.sums(inputs) - expected).abs().max()) < 1e-12 * float(expected.abs().max())


def test_records_of_features_without_places_are_their_own_channels() -> None:
    inputs = pictures().flatten(1)
    preparation = ChannelStatistics(1.0, 1e9, 1e9)
    expected = torch.stack([inputs.sum(0), inputs.square().sum(0)])
    assert float((preparation.sums(inputs) - expected).abs().max()) < 1e-10


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 1e6, 1e30])
def test_one_record_moves_each_sum_by_at_most_its_bound(scale: float) -> None:
    """Adversarial records, tiny, huge, and opposed to all others; huge ones attain the bound. Without chance."""
    preparation = ChannelStatistics(1.0, mean_bound=0.7, square_bound=0.2)
    inputs = pictures()
    for added in (inputs[:1], -inputs[:1], torch.ones_like(inputs[:1]), inputs[:1] * torch.eye(5)[2][:, None, None]):
        change = preparation.sums(torch.cat([inputs, scale * added])) - preparation.sums(inputs)
        mean, square = change.norm(dim=1).tolist()
        assert mean <= 0.7 * (1 + 1e-12)
        assert square <= 0.2 * (1 + 1e-12)
        if scale >= 1e6:
            assert mean == pytest.approx(0.7, rel=1e-9)
            assert square == pytest.approx(0.2, rel=1e-9)


def test_noise_is_that_of_plain_python() -> None:
    """Element k of the stream for means, K + k for mean squares; σ_norm times each bound, over N; 1e-9 for rounding.

    The variance is what the scale keeps; where the noise makes it negative the scale is 0.
    """
    preparation, inputs = ChannelStatistics(0.5, mean_bound=2.0, square_bound=300.0), pictures()
    sums = preparation.sums(inputs)
    memory = preparation.start(table([3, 8, 11]), inputs)
    off = 0
    for run, seed in enumerate((3, 8, 11)):
        for k in range(5):
            mean = (float(sums[0, k]) + 0.5 * 2.0 * gauss(seed, PREPARATION, 0, k)) / len(inputs)
            square = (float(sums[1, k]) + 0.5 * 300.0 * gauss(seed, PREPARATION, 0, 5 + k)) / len(inputs)
            variance = square - mean**2
            scale = (variance + OFFSET) ** -0.5 if variance > 0 else 0.0
            assert float(memory["channel_mean_RK"][run, k]) == pytest.approx(mean, rel=1e-9, abs=1e-9)
            assert float(memory["channel_scale_RK"][run, k]) == pytest.approx(scale, rel=1e-9)
            off += scale == 0.0
    assert 0 < off < 15


def test_noise_of_each_statistic_has_its_scale_and_is_independent() -> None:
    """Over 400 seeds in units of σ_norm·bound/N: chi-square, normality, no correlation of the two; 1e-9 in all."""
    inputs = pictures(50) * 10
    wide = ChannelStatistics(0.3, mean_bound=1.0, square_bound=400.0)
    # Little noise for squares of this size, so that no channel's variance falls below 0.
    inputs = torch.cat([inputs, -inputs])
    memory = wide.start(table(range(400)), inputs)
    mean_RK = memory["channel_mean_RK"]
    unit_RK = (mean_RK - wide.sums(inputs)[0] / len(inputs)) / (0.3 * 1.0 / len(inputs))
    kept = memory["channel_scale_RK"] > 0
    square_RK = memory["channel_scale_RK"] ** -2 - OFFSET + mean_RK.square()
    unit2_RK = (square_RK - wide.sums(inputs)[1] / len(inputs)) / (0.3 * 400.0 / len(inputs))
    whole = kept.all(0)  # channels where nothing was switched off: elsewhere the noise seen is not normal
    assert int(whole.sum()) >= 1
    unit, unit2 = unit_RK[:, whole].numpy(), unit2_RK[:, whole].numpy()
    found = [
        *(statistics.chi_square_p((x**2).sum(), x.size) for x in (unit_RK.numpy(), unit2)),
        *(statistics.distribution_p(x, stats.norm.cdf) for x in (unit_RK.numpy(), unit2)),
        statistics.correlation_p(unit, unit2),
        statistics.correlation_p(unit_RK[1:].numpy(), unit_RK[:-1].numpy()),
        statistics.correlation_p(unit_RK[:, 1:].numpy(), unit_RK[:, :-1].numpy()),
    ]
    assert statistics.smallest(found)[0] >= 1e-9
    # It can fail: a noise off by a fifth is seen.
    assert statistics.chi_square_p(((unit_RK.numpy() * 1.2) ** 2).sum(), unit_RK.numel()) < 1e-9


def test_statistics_tend_to_the_truth_as_the_noise_goes() -> None:
    """Bounds above every record's norm: error at most 10 deviations of the noise, each tenfold smaller."""
    inputs = pictures()
    mean_K, variance_K = true_statistics(inputs)
    for sigma in (1e-3, 1e-5, 1e-7, 1e-12):
        preparation = ChannelStatistics(sigma, mean_bound=1e3, square_bound=1e4)
        memory = preparation.start(table([1]), inputs)
        mean_error = (memory["channel_mean_RK"][0] - mean_K).abs()
        assert float(mean_error.max()) <= 10 * sigma * 1e3 / len(inputs) + 1e-12
        variance = memory["channel_scale_RK"][0] ** -2 - OFFSET
        limit_K = 10 * sigma * (1e4 + 2e3 * mean_K.abs()) / len(inputs) + 1e-9
        assert bool(((variance - variance_K).abs() <= limit_K).all()) or sigma > 1e-4
    prepared = preparation(memory, inputs[None])[0]
    mean, variance = true_statistics(prepared)
    assert float(mean.abs().max()) < 1e-9
    assert float((variance - variance_K / (variance_K + OFFSET)).abs().max()) < 1e-6


def test_a_channel_whose_variance_is_lost_in_the_noise_is_switched_off() -> None:
    inputs = torch.full((20, 2, 2, 2), 0.5, dtype=torch.float64)
    preparation = ChannelStatistics(2.0, 1.0, 1.0)
    memory = preparation.start(table(range(50)), inputs)
    off = memory["channel_scale_RK"] == 0
    assert 0 < int(off.sum()) < off.numel()
    prepared = preparation(memory, inputs.expand(50, *inputs.shape))
    assert bool(prepared.isfinite().all())
    assert bool((prepared.permute(0, 2, 1, 3, 4)[off] == 0).all())


# The ledger


def test_ledger_is_two_gaussians_and_then_the_steps() -> None:
    subject = normalised_sgd(statistics_noise_multiplier=6.0)
    for steps in (0, 1, 20):
        ledger = subject.ledger(sampling_rate=0.1, noise_multiplier=1.5, steps=steps)
        assert ledger is not None
        assert ledger.parts[0] == (events.Gaussian(6.0, "add_or_remove"), 2)
        rest = noisy_sgd().ledger(sampling_rate=0.1, noise_multiplier=1.5, steps=steps)
        assert rest is not None
        assert ledger.parts[1:] == rest.parts
        assert events.from_json(events.to_json(ledger)) == ledger
    (both,) = account(ledger, delta=1e-5, accountants=["rdp"])
    (steps_alone,) = account(rest, delta=1e-5, accountants=["rdp"])
    assert both.epsilon is not None
    assert steps_alone.epsilon is not None
    assert both.epsilon.value > steps_alone.epsilon.value + 0.01


def test_released_begins_with_the_statistics() -> None:
    subject, net = normalised_sgd(), small_network()
    stack = hyperparameters([1, 2], 0.5)
    inputs, targets = pictures(12, 6).mean((2, 3)), torch.arange(12) % 4
    state = subject.start(torch.zeros(2, net.size, dtype=torch.float64), stack, inputs, targets)
    assert [composition.parts[0][1] for composition in subject.released(state, stack) if composition] == [2, 2]
    state, _ = one_step(subject, net, state, stack, inputs, targets, 12)
    assert subject.released(state, stack)[0] == subject.ledger(sampling_rate=0.5, noise_multiplier=1.0, steps=1)


# What the network sees


def test_statistics_are_the_same_alone_and_in_a_stack() -> None:
    preparation, inputs = ChannelStatistics(1.0, 1.0, 1.0), pictures(dtype=torch.float32)
    whole = preparation.start(table([5, 6, 7]), inputs)
    for run, seed in enumerate((5, 6, 7)):
        alone = preparation.start(table([seed]), inputs)
        assert all(torch.equal(alone[name][0], whole[name][run]) for name in whole)
        assert {value.dtype for value in alone.values()} == {torch.float32}


def test_a_step_is_one_of_noisy_sgd_on_standardised_inputs() -> None:
    """Bit for bit, run by run, for the same seed; and evaluation sees the same inputs."""
    net = network(scattering_linear.model((5, 3, 2), 4))
    inputs, targets = pictures(20, dtype=torch.float32), torch.arange(20) % 4
    stack = hyperparameters([3, 4], 0.6)
    subject = normalised_sgd(statistics_noise_multiplier=0.1, mean_bound=10.0, square_bound=100.0)
    theta_RP = torch.randn(2, net.size, generator=torch.Generator().manual_seed(0))
    shown = gradient(subject, net, theta_RP, stack, inputs, targets)
    state = subject.start(theta_RP, stack, inputs, targets)
    seen = subject.view(state, inputs)
    assert seen is not None
    assert not torch.equal(seen[0], seen[1]), "each run has its own noise"
    for run in range(2):
        part = torch.tensor([run])
        plain = gradient(noisy_sgd(), net, theta_RP[part], stack.take(part), seen[run], targets)
        assert torch.allclose(plain[0], shown[run], rtol=0, atol=1e-5 * float(shown.abs().max()))
        alone = evaluate(net, theta_RP[part], seen[run], targets, 20)
        both = evaluate(net, theta_RP, inputs, targets, 7, lambda x: subject.view(state, x))
        assert both[0][run].item() == pytest.approx(alone[0].item(), rel=1e-5)


def test_resume_keeps_the_statistics() -> None:
    """The statistics live in the state: a saved state goes on bit for bit, without the data's statistics anew."""
    net = network(scattering_linear.model((5, 3, 2), 4))
    inputs, targets = pictures(20, dtype=torch.float32), torch.arange(20) % 4
    stack, subject = hyperparameters([3, 4], 0.6), normalised_sgd()
    state = subject.start(torch.zeros(2, net.size), stack, inputs, targets)
    for _ in range(3):
        state, _ = one_step(subject, net, state, stack, inputs, targets, 20)
    assert set(state.memory) == {"velocity_P", "channel_mean_RK", "channel_scale_RK"}
    again = subject.start(torch.zeros(2, net.size), stack, inputs, targets)
    assert torch.equal(again.memory["channel_mean_RK"], state.memory["channel_mean_RK"])


# Models


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameter_counts() -> None:
    """Layers of Tramèr and Boneh's published code; the counts stand in the paper, which is not at hand."""
    assert count(scattering_linear.model((81, 7, 7), 10)) == 39_700
    assert count(scattering_linear.model((243, 8, 8), 10, groups=27)) == 155_530
    assert count(scattering_cnn.model((81, 7, 7), 10, groups=27)) == 33_066
    assert count(scattering_cnn.model((243, 8, 8), 10, design="colour", groups=81)) == 187_210


def test_group_normalisation_is_within_one_example() -> None:
    """Mean 0 and variance 1 of every group of every example, up to the 1e-5 added to the variance."""
    module = scattering_linear.model((6, 3, 2), 4, groups=3)
    inputs = pictures(7, 6, torch.float32)
    found = module[0](inputs).reshape(7, 3, -1)
    assert float(found.mean(2).abs().max()) < 1e-5
    assert float((found.var(2, correction=0) - 1).abs().max()) < 1e-2
    assert count(module[0]) == 0


@pytest.mark.parametrize("groups", [4, -1])
@pytest.mark.parametrize("model", [scattering_linear.model, scattering_cnn.model])
def test_groups_that_do_not_divide_the_channels_are_refused(model: Any, groups: int) -> None:
    with pytest.raises(ValueError, match="groups = "):
        model((81, 7, 7), 10, groups=groups)


# Numbers that it refuses


@pytest.mark.parametrize("name", ["statistics_noise_multiplier", "mean_bound", "square_bound"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_bad_numbers_are_refused(name: str, value: float) -> None:
    parameters: dict[str, Any] = {name: value}
    with pytest.raises(DpbenchError, match=f"{name} = .*: expected a finite number above 0"):
        normalised_sgd(**parameters)


def test_words_are_refused() -> None:
    with pytest.raises(DpbenchError, match="noisy_sgd"):
        ChannelStatistics(1.0, 1.0, 1.0).start(table([0]), torch.zeros(4, 80, dtype=torch.int64))


def test_a_budget_that_the_statistics_alone_exceed_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(
        "kind: run\nname: over\ndataset: digits\nmodel: logistic\n"
        "mechanism: {name: 'dpbench.mechanisms.presets:normalised_sgd',"
        " parameters: {statistics_noise_multiplier: 0.5}}\n"
        "budget: {epsilon: 1.0, delta: 1e-4, calibrate_with: rdp}\n"
        "training: {batch_size: 256, epochs: 3, learning_rate: 1.0, clip_norm: 1.0}\nseeds: 1\n"
    )
    with pytest.raises(ProblemsError, match="epsilon") as caught:
        make_plan(load_specs([tmp_path / "spec.yaml"], allow_code=True), Store(tmp_path / "out"), Choices(device="cpu"))
    assert len(caught.value.problems) == 1
