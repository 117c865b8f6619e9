"""Averages of the parameters: against plain sums, evaluated in place of the last ones, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dpbench.errors import DpbenchError
from dpbench.judging.check_tools.problems import batch, hyperparameters, small_network
from dpbench.mechanisms.pipeline import mechanism as pipeline
from dpbench.plan.parts import build_mechanism, dataset_source, model_builder
from dpbench.plan.planning import Choices, make_plan
from dpbench.spec.loading import Spec, load_specs
from dpbench.step.functional import evaluate, network
from dpbench.step.mechanism import Setting, State, evaluated, step
from dpbench.store.records import Store
from dpbench.tasks import objective
from dpbench.training.execution import Execution
from dpbench.training.loop import Interrupted, train

pytestmark = pytest.mark.usefixtures("one_thread")
N = 12
EXPONENTIAL = {"name": "exponential", "parameters": {"average_decay": 0.3}}
TAIL = {"name": "tail", "parameters": {"average_from": 2}}


def states(made: Any, steps: int = 6, seeds: tuple[int, ...] = (5, 6), begun: State | None = None) -> list[State]:
    net, drawn = small_network(), batch(torch.Generator().manual_seed(1), 1, N)
    inputs, targets = drawn.inputs[0].tanh().double(), drawn.targets[0]
    stack = hyperparameters(list(seeds), 0.25, learning_rate=0.5)
    theta_P = 0.5 * torch.randn(net.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = [made.start(theta_P.repeat(len(seeds), 1), stack, inputs, targets) if begun is None else begun]
    for _ in range(steps):
        found.append(step(made, net, found[-1], stack, inputs, targets, 5)[0])
    return found


def spec_of(folder: Path, stage: str) -> Spec:
    """A few steps of a small network on the digits, with one more stage."""
    (folder / "spec.yaml").write_text(
        f"""
kind: run
name: small
dataset: digits
model: {{name: mlp, parameters: {{hidden: [8], activation: tanh}}}}
mechanism: {{name: pipeline, parameters: {{{stage}}}}}
budget: {{delta: 1e-4, noise_multiplier: 1.0}}
training: {{batch_size: 32, steps: 6, learning_rate: 0.5, clip_norm: 1.0}}
seeds: 1
"""
    )
    (found,) = load_specs([folder / "spec.yaml"])
    return found


def last(made: Any, **more: Any) -> Tensor:
    return evaluated(made, states(made, **more)[-1])


@pytest.mark.parametrize("average", [EXPONENTIAL, TAIL])
@pytest.mark.parametrize("more", [{}, {"update": "momentum"}, {"clip": "quantile"}, {"sample": "shuffled"}])
def test_training_and_ledger_are_those_without_it(average: dict[str, Any], more: dict[str, Any]) -> None:
    made, plain = pipeline(average=average, **more), pipeline(**more)
    for one, other in zip(states(made), states(plain), strict=True):
        assert torch.equal(one.theta_RP, other.theta_RP)
    assert not torch.equal(last(made), last(plain))
    asked = {"sampling_rate": 0.25, "noise_multiplier": 1.3, "steps": 9}
    assert made.ledger(**asked) == plain.ledger(**asked)
    assert made.facts() == plain.facts()


def test_the_tail_is_a_mean() -> None:
    """Six additions in float64 of numbers below 10: 1e-13."""
    found = states(pipeline(average=TAIL))
    for at, state in enumerate(found):
        wanted = state.theta_RP if at <= 3 else torch.stack([one.theta_RP for one in found[3 : at + 1]]).mean(0)
        assert float((state.memory["average_RP"] - wanted).abs().max()) < 1e-13


def test_the_exponential_average_is_a_weighted_sum() -> None:
    found = states(pipeline(average=EXPONENTIAL))
    wanted = found[0].theta_RP
    for at, state in enumerate(found[1:]):
        decay = min(0.3, (1 + at) / (10 + at))
        wanted = decay * wanted + (1 - decay) * state.theta_RP
        assert float((state.memory["average_RP"] - wanted).abs().max()) < 1e-13


@pytest.mark.parametrize("average", [EXPONENTIAL, TAIL])
def test_alone_in_a_stack_and_after_a_resume(average: dict[str, Any]) -> None:
    """Rounding of float64 over six steps, as in the contracts: 2e-10."""
    made = pipeline(average=average)
    whole = last(made)
    for at, seed in enumerate((5, 6)):
        assert float((last(made, seeds=(seed,))[0] - whole[at]).abs().max()) < 2e-10
    assert torch.equal(last(made, steps=4, begun=states(made, steps=2)[-1]), whole)


def test_no_average_is_the_last_parameters() -> None:
    late = {"name": "tail", "parameters": {"average_from": 5}}
    for average in ({"name": "exponential", "parameters": {"average_decay": 0}}, late):
        made = pipeline(average=average)
        for found in states(made):
            assert torch.equal(evaluated(made, found), found.theta_RP)
    assert torch.equal(last(pipeline()), states(pipeline())[-1].theta_RP)


def test_a_run_is_measured_at_its_average_also_after_an_interruption(tmp_path: Path) -> None:
    """The loss of the record against that of the average itself, in float32 of 360 examples: 1e-5."""
    runs = make_plan([spec_of(tmp_path, "average: tail")], Store(tmp_path / "out"), Choices(device="cpu")).runs
    source = dataset_source(runs[0].spec)
    data, build = source.load(None), model_builder(runs[0].spec, source)
    made, one = build_mechanism(runs[0].spec), Execution()
    (whole,) = train(runs, data, made, build, one)
    assert whole.result is not None
    assert whole.parameters_P is not None
    net = network(build(), torch.device("cpu"), objective(data.task))
    loss_R, _ = evaluate(net, whole.parameters_P[None], data.test_inputs, data.test_targets, 500)
    assert whole.result["result"]["test_loss"] == pytest.approx(float(loss_R[0]), rel=1e-5)

    plain = make_plan([spec_of(tmp_path, "update: sgd")], Store(tmp_path / "out"), Choices(device="cpu")).runs
    same = replace(plain[0], key=runs[0].key)  # the same draws
    (bare,) = train([same], data, build_mechanism(same.spec), build, one)
    assert bare.result is not None
    assert bare.result["ledger"] == whole.result["ledger"]
    assert bare.result["result"]["test_loss"] != pytest.approx(whole.result["result"]["test_loss"], rel=1e-3)

    asked = count()
    with pytest.raises(Interrupted):
        list(train(runs, data, made, build, one, checkpoints=tmp_path / "kept", stop=lambda: next(asked) > 1))
    (resumed,) = train(runs, data, made, build, one, checkpoints=tmp_path / "kept")
    assert resumed.result is not None
    assert resumed.result["resumed"] is True
    assert resumed.result["result"] == whole.result["result"]


def test_bad_parameters_are_one_sentence() -> None:
    for decay in (1, -0.1, True, "x"):
        with pytest.raises(DpbenchError, match=r"^average_decay = .*: expected a number from 0 to 1, 1 excluded$"):
            pipeline(average={"name": "exponential", "parameters": {"average_decay": decay}})
    for begin in (-1, 1.5, True):
        with pytest.raises(DpbenchError, match=r"^average_from = .*: expected a whole number of steps, 0 or more$"):
            pipeline(average={"name": "tail", "parameters": {"average_from": begin}})
    with pytest.raises(DpbenchError, match=r"^average_from = 2: the run has 2 steps; expected a smaller number$"):
        pipeline(average=TAIL).check(Setting(examples=12, sampling_rate=0.25, steps=2, learning_rate=0.1))
