"""Internal: limits of rounding, which no problem of a test reaches: what is done without a look, and then again.

On a GPU a step does not look at values. Where it would have to, because rounding may have spoiled a sum, the sum is
NaN, and the loop takes these steps again with a look. Here the loop does so on the CPU.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpbench.clipping import ghost
from dpbench.clipping.rules import jl
from dpbench.clipping.rules.microbatch import Microbatches
from dpbench.errors import OutOfMemory
from dpbench.judging.check_tools.problems import linear_network
from dpbench.randomness import table
from dpbench.step.clipped_sum import Draw, Examples
from dpbench.step.functional import network
from dpbench.step.mechanism import step as one_step
from dpbench.training import loop
from dpbench.training.execution import Execution
from tests.training.test_train import SPEC, losses, runs_of, trained


class AsOnGpu:
    """The loop as on a GPU, on the CPU, with blocks of two steps; `looks` says of each step whether it might look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks: list[bool] = []
        self.fails: set[int] = set()  # calls, counted from 0, that find no memory
        monkeypatch.setattr(loop, "NEVER_WAIT", ("cpu",))
        monkeypatch.setattr(loop, "AHEAD", 2)
        monkeypatch.setattr(loop, "step", self.step)

    def step(self, mechanism: Any, net: Any, state: Any, hyper: Any, *rest: Any) -> Any:
        self.looks.append(hyper.places is None)
        if len(self.looks) - 1 in self.fails:
            raise MemoryError("not enough memory")
        return one_step(mechanism, net, state, hyper, *rest)


ALL = "the products of all examples cancel"
SPOILED = {
    ALL: (
        "{name: noisy_sgd, parameters: {clipping: ghost}}",
        ghost,
        "_CANCELS",
        0.0,
        20,
    ),
    "those of some examples cancel": ("{name: noisy_sgd, parameters: {clipping: ghost}}", ghost, "_CANCELS", 1.84, 20),
    "all projections are away": ("{name: dp_sgd_jl, parameters: {projections: 2}}", jl, "_AWAY", -1.0, 6),
}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("case", SPOILED)
def test_sums_that_rounding_may_have_spoiled_are_taken_again_with_a_look(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop as on a GPU, on the CPU: what an engine does not look at ends as what it looks at, step by step."""
    mechanism, module, limit, value, steps = SPOILED[case]
    runs = runs_of(tmp_path, SPEC.replace("steps: 40", f"steps: {steps}") % {"mechanism": mechanism})[:2]
    monkeypatch.setattr(module, limit, value)
    usual, counted = trained(runs), []
    looks = AsOnGpu(monkeypatch).looks
    waiting = trained(runs, watch=lambda progress: counted.append(progress.done))
    assert looks.count(True) == steps - looks.count(False) + 2, "two steps again, and the others once"
    assert (looks.count(False) > 2) == case.startswith("those of some")
    assert counted == sorted(counted)
    assert counted[-1] == 2 * steps
    for run in runs:
        assert losses(waiting[run.key]) == pytest.approx(losses(usual[run.key]), rel=1e-4)
        both = [outcome[run.key].result for outcome in (waiting, usual)]
        points = [result["curve"][-1] for result in both if result is not None]
        assert points[0]["train_loss"] == pytest.approx(points[1]["train_loss"], rel=1e-4)
        assert points[0]["clipped_fraction"] == pytest.approx(points[1]["clipped_fraction"], abs=0.02)


@pytest.mark.usefixtures("one_thread")
def test_a_gradient_that_is_not_finite_is_taken_again_once_and_then_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SPEC.replace("[0.25, 0.5]", "[0.25, 1.0e+38]").replace("tanh", "relu") % {"mechanism": "noisy_sgd"}
    runs = runs_of(tmp_path, text)[::2]
    usual = trained(runs)
    looks = AsOnGpu(monkeypatch).looks
    waiting = trained(runs)
    failed = [key for key, outcome in usual.items() if outcome.error]
    assert len(failed) == 2
    assert 0 < looks.count(True) < 40
    for key, outcome in waiting.items():
        assert outcome.error == usual[key].error


@pytest.mark.usefixtures("one_thread")
def test_steps_that_are_taken_again_are_not_cut_short_by_a_checkpoint_that_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = runs_of(tmp_path, SPEC.replace("steps: 40", "steps: 10") % {"mechanism": SPOILED[ALL][0]})[:1]
    monkeypatch.setattr(ghost, "_CANCELS", 0.0)
    usual, gpu = trained(runs), AsOnGpu(monkeypatch)
    found = trained(runs, checkpoints=tmp_path / "kept", execution=Execution(checkpoint_seconds=0.0))
    assert losses(found[runs[0].key]) == pytest.approx(losses(usual[runs[0].key]), rel=1e-4)
    assert gpu.looks.count(True) == 10, "each step is taken with a look once"
    assert gpu.looks.count(False) <= 10


@pytest.mark.usefixtures("one_thread")
def test_too_little_memory_amid_spoiled_sums_loses_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second step of the pass without a look finds no memory, and again with one: what was begun is saved."""
    runs = runs_of(tmp_path, SPEC.replace("steps: 40", "steps: 10") % {"mechanism": SPOILED[ALL][0]})[:2]
    monkeypatch.setattr(ghost, "_CANCELS", 0.0)
    usual, gpu, kept = trained(runs), AsOnGpu(monkeypatch), tmp_path / "kept"
    gpu.fails = {1, *range(3, 20)}
    with pytest.raises(OutOfMemory):
        trained(runs, checkpoints=kept, execution=Execution(places_per_call=1))
    assert gpu.looks[:4] == [False, False, True, True]
    assert {path.stem for path in kept.iterdir()} == {run.key for run in runs}
    gpu.fails = set()
    found = trained(runs, checkpoints=kept)
    for run in runs:
        result = found[run.key].result
        assert result is not None
        assert result["resumed"]
        assert losses(found[run.key]) == pytest.approx(losses(usual[run.key]), rel=1e-4)


def whole_if_not_a_number(norm: Tensor, clip: Tensor) -> Tensor:
    """Clipping as a user may write it: a norm that is NaN gets the weight 1."""
    return torch.where(norm > clip, clip / norm, torch.ones_like(norm))


def test_no_weight_lets_through_a_gradient_whose_norm_is_not_known() -> None:
    """Products that cancel in the Gram matrix: with a look the gradient is formed, without one the sum is NaN."""
    net = network(Summing(nn.Linear(200, 200, bias=False)))
    inputs = torch.ones(1, 2, 4, 200)
    inputs[:, :, 1::2] *= -1  # four places, which cancel but for rounding
    inputs[0, 1, 0] += 1.0
    examples = Examples(inputs, torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2) > 0)
    theta_RP, clip_R = torch.full((1, net.size), 1e-3), torch.tensor([1e-6]).double()
    looked = ghost.clipping(net, theta_RP, examples, clip_R, 2, whole_if_not_a_number)
    assert float(looked.sum_RP.norm()) <= 2.1e-6
    found = ghost.clipping(net, theta_RP, replace(examples, looks=False), clip_R, 2, whole_if_not_a_number)
    assert bool(found.sum_RP.isnan().any())


class Summing(nn.Module):
    """The mean over the places of a record of a layer's outputs."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(inputs).mean(1)
        return found


def test_microbatches_larger_than_was_known_ahead_lose_nobody() -> None:
    """A planted fault: the sum is NaN where a microbatch has more members than there are places for."""
    rule, generator = Microbatches(4), torch.Generator().manual_seed(0)
    net, theta_RP = linear_network(6, 2), torch.zeros(1, 12)
    inputs, targets = torch.rand(1, 16, 6, generator=generator), torch.zeros(1, 16, dtype=torch.int64)
    examples = Examples(inputs, targets, torch.ones(1, 16) > 0)
    draw = Draw(table([1]), torch.tensor([0]), torch.arange(16)[None], torch.tensor([1.0]).double(), 16)
    groups, most = rule.group_sizes(draw.keys_RS, draw.step_R, draw.rate_R, torch.ones(1, 16) > 0)
    clip_R = torch.ones(1).double()
    usual = rule.summed(draw, net, theta_RP, examples, clip_R, 16)
    known = rule.summed(replace(draw, groups=(int(groups), int(most))), net, theta_RP, examples, clip_R, 16)
    torch.testing.assert_close(known.sum_RP, usual.sum_RP)
    short = rule.summed(replace(draw, groups=(int(groups), int(most) - 1)), net, theta_RP, examples, clip_R, 16)
    assert bool(short.sum_RP.isnan().all())


@pytest.mark.usefixtures("one_thread")
def test_a_run_with_microbatches_is_the_same_with_sizes_known_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = runs_of(tmp_path, SPEC.replace("steps: 40", "steps: 10") % {"mechanism": "microbatched_sgd"})[:2]
    usual, gpu = trained(runs), AsOnGpu(monkeypatch)
    ahead = trained(runs)
    assert not any(gpu.looks)
    for run in runs:
        assert losses(ahead[run.key]) == pytest.approx(losses(usual[run.key]), rel=1e-4)
