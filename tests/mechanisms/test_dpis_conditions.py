"""What DPIS refuses before it runs, what stops it, and what a stopped or resumed run leaves behind."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dpbench.cli import main
from dpbench.errors import DpbenchError, ProblemsError
from dpbench.events import from_json
from dpbench.judging.check_tools.problems import hyperparameters
from dpbench.judging.checks.philox_vectors import gauss
from dpbench.mechanisms.dpis import Dpis, mechanism
from dpbench.plan.parts import build_mechanism, dataset_source, model_builder
from dpbench.plan.planning import Choices, make_plan
from dpbench.privacy.accountants.rdp_filter import RdpFilterAccountant
from dpbench.randomness import ESTIMATE, table
from dpbench.spec.loading import load_specs
from dpbench.step.mechanism import Hyperparameters, Setting, State
from dpbench.store.records import Store
from dpbench.training.execution import Execution
from dpbench.training.loop import Interrupted, Outcome, train
from tests.clipping.gradients import stepped
from tests.mechanisms.dpis_problems import N, begin, forced, go, problem, put, same, small

pytestmark = pytest.mark.usefixtures("one_thread")


# Conditions that stop a run


def stops(dpis: Dpis, state: State, stack: Hyperparameters, inputs: Tensor | None = None) -> str:
    """The sentence with which the first of two runs stops; it keeps its state, the other goes on."""
    net, plain, targets = problem()
    step = stepped(dpis, net, state, stack, plain if inputs is None else inputs, targets, N)
    after, seen = step.after, step.seen
    assert list(seen.stopped) == [0]
    assert float(step.gradient_RP[0].abs().max()) == 0, "nothing is released"
    assert step.released.events(0) == ()
    assert len(step.released.events(1)) >= 1
    first, second = torch.tensor([0]), torch.tensor([1])
    assert same(after.take(first), state.take(first))
    assert not torch.equal(after.theta_RP[1], state.theta_RP[1])
    assert dpis.released(after, stack)[0] == dpis.released(state, stack)[0]
    assert second.numel() == 1
    sentence: str = seen.stopped[0]
    assert "\n" not in sentence
    return sentence


def test_an_exhausted_budget_stops_the_run() -> None:
    stack = hyperparameters([1, 2], 3 / N, epsilon=[0.01, 2.0])
    dpis = small()
    assert "privacy budget exhausted" in stops(dpis, begin(dpis, stack), stack)
    # It is the sums of later epochs that no noise on the gradients makes up for.
    late = hyperparameters([1, 2], 3 / N, epsilon=[1.0, 20.0], steps=3900)
    assert "no noise on the gradients is enough" in stops(dpis, begin(dpis, late), late)


def test_a_clipping_bound_at_or_below_the_floor_stops_the_run() -> None:
    """Line 29: K* of gradients near 0 may be negative. The second run has a floor below everything it meets."""
    dpis = small(adaptive_clipping=True, quantile=1.0, sum_noise=2.0, norm_floor=0.05)
    stack = hyperparameters([1, 2], 3 / N, epsilon=50.0, clip_norm=1.0)
    state = go(dpis, begin(dpis, stack), stack, 1)
    outer_RN = torch.stack([torch.zeros(N), torch.full((N,), 4.0)]).double()
    for wanted in range(200):
        seeds = replace(stack, keys_RS=table([wanted, 2]))
        if gauss(wanted, ESTIMATE, 1, 2) < -1:
            break
    sentence = stops(dpis, put(state, next_R=state.step_R, outer_RN=outer_RN), seeds)
    assert "the clipping bound of epoch 2 is -" in sentence
    assert "norm_floor = 0.05" in sentence


def test_a_clipping_bound_that_is_not_finite_stops_a_private_run() -> None:
    stack = hyperparameters([1, 2], 3 / N, epsilon=2.0, clip_norm=[math.inf, 1.0])
    dpis = small()
    assert "the clipping bound of epoch 1 is inf" in stops(dpis, begin(dpis, stack), stack)


def test_more_steps_than_planned_stop_the_run() -> None:
    stack = replace(hyperparameters([1, 2], 3 / N), steps_R=torch.tensor([2, 100]))
    dpis = small()
    state = go(dpis, begin(dpis, stack), stack, 2)
    assert "step 2 is beyond the 2 steps" in stops(dpis, state, stack)


def test_a_batch_of_nothing_stops_the_run() -> None:
    stack = hyperparameters([1, 2], [0.0, 3 / N])
    assert "batch_size = 0: expected a number above 0" in stops(small(), begin(small(), stack), stack)


def test_a_capped_filter_stops_the_run() -> None:
    """K̃ below kb times a remembered norm cannot come up; a state from elsewhere may have it."""
    stack, dpis = hyperparameters([1, 2], 3 / N), small()
    state = go(dpis, begin(dpis, stack), stack, 1)
    sums = torch.tensor([1.0, float(state.memory["sum_R"][1])]).double()
    sentence = stops(dpis, forced(state, sum_R=sums, seen_RN=1.0), stack)
    assert "the filter of line 17 is capped" in sentence


def test_a_full_history_stops_the_run() -> None:
    stack, dpis = hyperparameters([1, 2], 3 / N, epsilon=1e6), small()
    state = begin(dpis, stack)
    history = state.memory["history_RHF"].clone()
    history[0] = torch.tensor([0.0, 0.001, 1e6])
    assert f"at most {history.shape[1]} are kept" in stops(dpis, put(state, history_RHF=history), stack)


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
        (
            {"parameters": "oversampling: 40"},
            "oversampling = 40: with batch_size = 128 it computes 5120 gradients of 1437",
        ),
        ({"budget": "{epsilon: 0.05, delta: 1e-4}"}, "the events of N and K in 3 epochs alone exceed it"),
        ({"parameters": "sum_noise: 0.5, oversampling: 3"}, "the events of N and K in 3 epochs alone exceed it"),
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
    assert "dpbench.mechanisms._dpis_epoch" in run.sources


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
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "N is public in this record" in page, "beside the number of examples that the page prints"
