"""A step that runs on torch's `meta` device reads no value and mixes no devices, so it never waits for a GPU.

Tensors of that device have shapes and no values: an operator that needs a value on the host raises, and so does one
with a tensor of the CPU. So nothing here measures time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpbench.judging.check_tools.problems import hyperparameters, linear_network
from dpbench.mechanisms.presets import noisy_sgd
from dpbench.randomness import table
from dpbench.step.functional import Network, network
from dpbench.step.mechanism import Mechanism, State
from dpbench.step.mechanism import step as one_step
from dpbench.step.samplers import fixed_size, poisson, shuffled
from dpbench.step.stages import filled, most_places
from dpbench.training import loop
from tests.contracts.test_mechanisms import MECHANISMS
from tests.contracts.test_models import CLASSES, FACTORIES, shape_of
from tests.training.test_train import SPEC, losses, runs_of, trained

RUNS, N, PLACES = 3, 12, 8
META = torch.device("meta")

# What reads values on the host within a step, and for what.
WAITS = {
    "dp_adam_jl": "sums that are to be formed again",
    "dp_sgd_jl": "sums that are to be formed again",
    "dpis": "which runs begin an epoch, and what passes the rejection",
    "microbatched_sgd": "the sizes of the groups",
    "objective_perturbation": "the solver works on the CPU",
    "output_perturbation": "the step sizes of each run",
    "pipeline": "its example has the rule jl",
    "shuffled_sgd": "the batches of an epoch",
}


def step_on_meta(mechanism: Mechanism, net: Network, shape: tuple[int, ...], runs: int = RUNS) -> tuple[State, Any]:
    """One step of a stack, from its start, without values."""
    net = replace(net, module=net.module.to(META))
    stack = replace(hyperparameters(range(runs)), places=PLACES).each(lambda value: value.to(META))
    inputs, targets = torch.empty(N, *shape, device=META), torch.empty(N, dtype=torch.int64, device=META)
    state = mechanism.start(torch.empty(runs, net.size, device=META), stack, inputs, targets)
    return one_step(mechanism, net, state, stack, inputs, targets, 4)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_step_of_every_mechanism_but_those_named_waits_for_nothing(name: str) -> None:
    if name in WAITS:
        with pytest.raises((NotImplementedError, RuntimeError), match=r"meta|no data"):
            step_on_meta(MECHANISMS[name], linear_network(6, 2), (6,))
        return
    state, seen = step_on_meta(MECHANISMS[name], linear_network(6, 2), (6,))
    tensors = [state.theta_RP, state.step_R, *state.memory.values(), *state.private.values()]
    tensors += [seen.drawn_R, seen.loss_R, seen.clipped_R, seen.finite_R]
    assert {value.device.type for value in tensors} == {"meta"}
    assert state.theta_RP.shape == (RUNS, 12)


@pytest.mark.parametrize("runs", [1, RUNS])
@pytest.mark.parametrize("model", FACTORIES)
def test_a_step_of_every_model_waits_for_nothing(model: str, runs: int) -> None:
    shape = shape_of(FACTORIES[model])
    state, _ = step_on_meta(noisy_sgd(), network(FACTORIES[model](shape, CLASSES)), shape, runs)
    assert state.theta_RP.device.type == "meta"


def test_a_tensor_of_the_host_and_a_look_at_a_value_are_found() -> None:
    """Two planted faults: otherwise the tests above could not fail."""

    class OnHost(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T + torch.ones(4)

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 6))

    class Looks(OnHost):
        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T * float(self.weight.detach().sum() > 0)

    for module in (OnHost(), Looks()):
        with pytest.raises((NotImplementedError, RuntimeError)):
            step_on_meta(noisy_sgd(), network(module), (6,), 1)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "poisson": poisson.sampler,
    "fixed_size": fixed_size.sampler,
    "shuffled": shuffled.sampler,
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("rate", [0.0, 1 / 60, 0.25, 0.5, 1.0])
def test_places_computed_ahead_hold_every_batch(name: str, rate: float) -> None:
    """The same examples in the same order, in at least as many places and in less than an eighth more, or 8."""
    sample, keys, first = SAMPLERS[name](), table([3, 4]), torch.tensor([5, 1000])
    rate_R = torch.tensor([rate, rate / 2], dtype=torch.float64)
    ahead = most_places(sample, keys, first, rate_R, 120, 7)
    assert ahead is not None
    for number, places in enumerate(ahead):
        there = (keys, first + number, rate_R, 120)
        own, padded = sample(*there), sample(*there, places)
        most = int(own.mask_RB.sum(1).max())
        assert most <= places < max(1.125 * most, most + 8) or (most == 0 and places == 8)
        for run in range(2):
            assert torch.equal(own.index_RB[run][own.mask_RB[run]], padded.index_RB[run][padded.mask_RB[run]])
            assert set(padded.index_RB[run].tolist()) <= {*own.index_RB[run].tolist()}, "no other example is read"


def test_too_few_places_are_an_error_and_lose_no_example() -> None:
    with pytest.raises(RuntimeError, match="out of bounds"):
        filled(torch.tensor([[True, True, True]]), 2)


def test_a_stack_with_places_known_ahead_is_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop as it is on a GPU, on the CPU; the tolerance is that of `test_alone_stacked_and_in_pieces_agree`."""
    runs = runs_of(tmp_path, SPEC % {"mechanism": "noisy_sgd"})[:3]
    usual = trained(runs)
    taken: list[int | None] = []

    def seen(mechanism: Any, net: Any, state: Any, hyper: Any, *rest: Any) -> Any:
        taken.append(hyper.places)
        return one_step(mechanism, net, state, hyper, *rest)

    monkeypatch.setattr(loop, "NEVER_WAIT", ("cpu",))
    monkeypatch.setattr(loop, "step", seen)
    padded = trained(runs)
    assert len(taken) == 40
    assert all(places is not None and places % 8 == 0 for places in taken)
    for run in runs:
        assert losses(padded[run.key]) == pytest.approx(losses(usual[run.key]), rel=1e-4)
