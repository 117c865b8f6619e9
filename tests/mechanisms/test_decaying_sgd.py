"""Noise that decays with the epochs: what runs is what the ledger says, and numbers that are refused."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dpbench import account, events
from dpbench.errors import DpbenchError, ProblemsError
from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.problems import hyperparameters, linear_network, small_network
from dpbench.mechanisms.presets import decaying_sgd, noisy_adam, noisy_sgd
from dpbench.plan.planning import Choices, make_plan
from dpbench.spec.loading import load_specs
from dpbench.step.mechanism import State
from dpbench.step.pipeline import optimised
from dpbench.step.updates.momentum import Momentum
from dpbench.store.records import Store
from tests.clipping.gradients import gradient

pytestmark = pytest.mark.usefixtures("one_thread")


def test_ledger_holds_every_step_with_its_own_noise() -> None:
    """σ_0·e^(−k⌊iq⌋) step by step, in order; 1e-15 relative for two exponentials of the same number."""
    for decay, rate, sigma, steps in ((0.01, 256 / 60_000, 2.0, 1000), (0.3, 0.4, 1.0, 9), (0.0, 0.1, 1.0, 25)):
        ledger = decaying_sgd(noise_decay=decay).ledger(sampling_rate=rate, noise_multiplier=sigma, steps=steps)
        assert ledger is not None
        single = [event for event, count in ledger.parts for _ in range(count)]
        assert len(single) == steps
        for step, event in enumerate(single):
            assert isinstance(event, events.SampledGaussian)
            expected = sigma * math.exp(-decay * math.floor(step * rate))
            assert event.noise_multiplier == pytest.approx(expected, rel=1e-15)
            assert (event.sampling_rate, event.sampler, event.adjacency) == (rate, "poisson", "add_or_remove")
        epochs = Counter(math.floor(step * rate) for step in range(steps))
        assert [count for _, count in ledger.parts] == (list(epochs.values()) if decay else [steps])


def noise(decay: float, steps: int) -> tuple[Tensor, Any]:
    """What reaches the update on data without gradients, (T, R, P), and the hyperparameters of the three runs."""
    net = linear_network(100, 2)
    stack = hyperparameters([1, 2, 3], [0.5, 0.25, 1.0], clip_norm=[1.0, 0.5, 2.0], noise_multiplier=[1.0, 2.0, 0.7])
    inputs, targets = torch.zeros(8, 100), torch.arange(8) % 2
    theta_RP = torch.zeros(3, net.size)
    subject = decaying_sgd(noise_decay=decay)
    shown = [gradient(subject, net, theta_RP, stack, inputs, targets, step=step) for step in range(steps)]
    return torch.stack(shown).double(), stack


def test_noise_that_runs_is_the_noise_of_the_ledger() -> None:
    """In units of the ledger's σ_t·C/(qN) it is standard normal in every epoch and run: chi-square, 1e-9 in all."""
    decay, steps = 0.4, 12
    shown_TRP, stack = noise(decay, steps)
    found = []
    for run in range(3):
        rate, sigma, clip = (
            float(hyper[run]) for hyper in (stack.sampling_rate_R, stack.noise_multiplier_R, stack.clip_norm_R)
        )
        ledger = decaying_sgd(noise_decay=decay).ledger(sampling_rate=rate, noise_multiplier=sigma, steps=steps)
        assert ledger is not None
        multipliers: list[Any] = [event for event, count in ledger.parts for _ in range(count)]
        for step, event in enumerate(multipliers):
            unit = shown_TRP[step, run] / (event.noise_multiplier * clip / (rate * 8))
            found.append(statistics.chi_square_p(float(unit.square().sum()), unit.numel()))
    assert statistics.smallest(found)[0] >= 1e-9
    # It can fail: the constant noise of the same start is seen in the last epoch of the run with q = 1.
    first, last = shown_TRP[0, 2].square().sum(), shown_TRP[-1, 2].square().sum()
    assert float(last / first) < 2 * math.exp(-2 * decay * (steps - 1))


def test_the_same_draws_as_without_decay() -> None:
    """σ_0 = 0: nothing but the noise differs from noisy_sgd, bit for bit; with k = 0 nothing at all."""
    net = small_network()
    inputs, targets = torch.randn(10, 6, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 4
    theta_RP = torch.randn(2, net.size, generator=torch.Generator().manual_seed(1))
    for decay, sigma in ((0.7, 0.0), (0.0, 1.0)):
        stack = hyperparameters([1, 2], 0.5, noise_multiplier=sigma)
        shown = [
            gradient(subject, net, theta_RP, stack, inputs, targets, step=9)
            for subject in (decaying_sgd(noise_decay=decay), noisy_sgd())
        ]
        assert torch.equal(*shown)


def test_optimizers_are_those_of_the_stages() -> None:
    assert decaying_sgd(optimizer="adam").optimizer == noisy_adam().optimizer
    assert decaying_sgd().optimizer == noisy_sgd().optimizer
    assert decaying_sgd(optimizer="momentum", momentum=0.5).optimizer == Momentum(0.5)


def test_momentum_is_that_of_torch() -> None:
    """Ten steps against torch.optim.SGD in float64; 1e-12 for a different order of the same few operations."""
    gradients = torch.randn(10, 2, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rate_R = torch.tensor([0.3, 0.05], dtype=torch.float64)
    start = torch.ones(2, 5, dtype=torch.float64)
    state = State(start, {"velocity_P": torch.zeros_like(start)}, torch.zeros(2, dtype=torch.int64))
    others = [torch.ones(5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    optimizers = [torch.optim.SGD([p], lr=float(r), momentum=0.9) for p, r in zip(others, rate_R.tolist(), strict=True)]
    for step, gradient_RP in enumerate(gradients):
        theta_RP, memory = optimised(Momentum(0.9), state, rate_R, gradient_RP)
        state = State(theta_RP, memory, torch.full((2,), step + 1))
        for run in range(2):
            others[run].grad = gradient_RP[run].clone()
            optimizers[run].step()
            assert float((others[run].detach() - theta_RP[run]).abs().max()) < 1e-12


def test_decay_costs_more_than_the_noise_it_starts_with() -> None:
    """An accountant sees the later, smaller noise: ε grows with k, and lies between those of σ_0 and of the last σ."""
    epsilons = []
    for decay in (0.0, 0.02, 0.05):
        ledger = decaying_sgd(noise_decay=decay).ledger(sampling_rate=0.1, noise_multiplier=3.0, steps=100)
        assert ledger is not None
        (guarantee,) = account(ledger, delta=1e-5, accountants=["rdp"])
        assert guarantee.epsilon is not None
        epsilons.append(guarantee.epsilon.value)
    whole = noisy_sgd().ledger(sampling_rate=0.1, noise_multiplier=3.0 * math.exp(-0.05 * 9), steps=100)
    assert whole is not None
    (least,) = account(whole, delta=1e-5, accountants=["rdp"])
    assert least.epsilon is not None
    assert epsilons[0] < epsilons[1] < epsilons[2] < least.epsilon.value


# Numbers that it refuses


@pytest.mark.parametrize("decay", [-0.1, math.inf, math.nan, "fast", True])
def test_bad_decays_are_refused(decay: Any) -> None:
    with pytest.raises(DpbenchError, match=r"noise_decay = .*: expected a finite number, 0 or more"):
        decaying_sgd(noise_decay=decay)


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"optimizer": "rmsprop"}, "optimizer = 'rmsprop'"),
        ({"optimizer": "momentum", "momentum": 1.0}, "momentum = 1.0"),
        ({"optimizer": "adam", "beta1": 1.0}, "beta1 = 1.0"),
        ({"optimizer": "adam", "offset": 0.0}, "offset = 0.0"),
        ({"clipping": "vmpa"}, "did you mean 'vmap'"),
    ],
)
def test_bad_numbers_of_the_update_are_refused(parameters: dict[str, Any], match: str) -> None:
    with pytest.raises(DpbenchError, match=match):
        decaying_sgd(**parameters)


def test_noise_that_decays_away_is_refused_before_training(tmp_path: Path) -> None:
    """Through a spec: one sentence about the parameter, not about an event."""
    (tmp_path / "spec.yaml").write_text(
        "kind: run\nname: away\ndataset: digits\nmodel: logistic\n"
        "mechanism: {name: 'dpbench.mechanisms.presets:decaying_sgd', parameters: {noise_decay: 2.0}}\n"
        "budget: {noise_multiplier: 1.0, delta: 1e-4}\n"
        "training: {batch_size: 256, epochs: 30, learning_rate: 1.0, clip_norm: 1.0}\nseeds: 1\n"
    )
    specs = load_specs([tmp_path / "spec.yaml"], allow_code=True)
    with pytest.raises(ProblemsError, match=r"noise_decay: leaves a noise multiplier of .* take a smaller noise_decay"):
        make_plan(specs, Store(tmp_path / "out"), Choices(device="cpu"))
