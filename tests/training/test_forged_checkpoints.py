"""Checkpoints by a forger who knows the format: what can be computed again is not believed, and none stops others."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dpbench.job import Watcher
from dpbench.job import run as run_job
from dpbench.plan.parts import build_mechanism, dataset_source, model_builder
from dpbench.plan.planning import Choices, Run, make_plan
from dpbench.spec.loading import load_specs
from dpbench.step.mechanism import State
from dpbench.store.records import Store
from dpbench.tasks import objective
from dpbench.training.checkpoints import write_checkpoint
from dpbench.training.courses import Course, checkpoint_of, start
from dpbench.training.execution import Execution
from dpbench.training.loop import Interrupted, evaluation_steps, train

pytestmark = pytest.mark.usefixtures("one_thread")

SPEC = """
kind: run
name: small
dataset: digits
model: MODEL
mechanism: MECHANISM
budget: {delta: 1e-4, epsilon: 3}
training: {batch_size: 96, steps: 40, learning_rate: 0.2CLIP}
seeds: 2
"""
MLP = "{name: mlp, parameters: {hidden: [8], activation: tanh}}"
DPIS = "oversampling: 3, size_noise: 30, sum_noise: 30"
MECHANISMS = {
    "noisy_sgd": "noisy_sgd",
    "quantile": "{name: quantile_clipping_sgd, parameters: {target_quantile: 0.5}}",
    "dpis": f"{{name: dpis, parameters: {{{DPIS}}}}}",
    "dpis_adaptive": f"{{name: dpis, parameters: {{{DPIS}, adaptive_clipping: true}}}}",
    "dpis_as_printed": f"{{name: dpis, parameters: {{{DPIS}, variant: as_printed}}}}",
    "pate": "{name: pate, parameters: {teachers: 40, threshold: 20, public_examples: 100, labels: 50,"
    " teacher_steps: 20, teacher_learning_rate: 0.5}}",
    "pidp": "{name: pidp_sgd, parameters: {variant: as_printed, regularisation: 0.05, smoothness: 32.5,"
    " third_derivative: 143, radius: 10000}}",
    "output": "{name: output_perturbation, parameters: {schedule: constant, regularisation: 0.01}}",
}
LOGISTIC = ("pidp", "output")
REACHED = 33  # steps; two epochs of 15 are over


def planned(folder: Path, name: str) -> tuple[Run, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    text = SPEC.replace("MODEL", "logistic" if name in LOGISTIC else MLP).replace("MECHANISM", MECHANISMS[name])
    (folder / "spec.yaml").write_text(text.replace("CLIP", "" if name == "pate" else ", clip_norm: 1.0"))
    return make_plan(load_specs([folder / "spec.yaml"]), Store(folder / "out"), Choices(device="cpu")).runs


def interrupted(runs: tuple[Run, ...], folder: Path) -> None:
    """Leave checkpoints after REACHED steps."""
    source, steps = dataset_source(runs[0].spec), []  # type: ignore[var-annotated]
    outcomes = train(
        runs,
        source.load(None),
        build_mechanism(runs[0].spec),
        model_builder(runs[0].spec, source),
        Execution(),
        checkpoints=folder,
        watch=steps.append,
        stop=lambda: len(steps) >= REACHED,
    )
    with pytest.raises(Interrupted):
        list(outcomes)


@dataclass
class Unfinished:
    """An interrupted run: its facts and its state, as they are read from its checkpoint."""

    run: Run
    folder: Path

    def started(self) -> tuple[Course, State, list[str]]:
        """The run as training starts it, and why its checkpoint is not used."""
        source, told = dataset_source(self.run.spec), []
        data, mechanism = source.load(None), build_mechanism(self.run.spec)
        stops = evaluation_steps(self.run.sampling_rate, self.run.steps)
        course = Course(self.run, [self.run.steps] if getattr(mechanism, "acts_at_end", False) else stops)
        state = start(
            course,
            mechanism,
            model_builder(self.run.spec, source),
            self.folder,
            lambda _run, why: told.append(why),
            data.train_inputs,
            data.train_targets,
            objective(data.task),
        )
        return course, state, told

    def forged(self, facts: Mapping[str, Any], state: State) -> None:
        course = Course(self.run, [])
        write_checkpoint(self.folder / f"{self.run.key}.pt", checkpoint_of(course), facts, state)


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Unfinished, dict[str, Any], State]]:
    """An interrupted run of a mechanism with what its untouched checkpoint holds, made once."""
    made: dict[str, tuple[Unfinished, bytes, dict[str, Any], State]] = {}

    def of(name: str) -> tuple[Unfinished, dict[str, Any], State]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            run = planned(folder, name)[0]
            interrupted((run,), folder)
            one = Unfinished(run, folder)
            course, state, told = one.started()
            assert (course.resumed, course.step, told) == (True, REACHED, []), "as it is, it is used"
            content = (folder / f"{run.key}.pt").read_bytes()
            kept = ("step", "seconds", "share", "curve", "drawn", "loss", "clipped", "bad")
            made[name] = one, content, {key: getattr(course, key) for key in kept}, state
        one, content, facts, state = made[name]
        (one.folder / f"{one.run.key}.pt").write_bytes(content)
        return one, json.loads(json.dumps(facts)), state

    return of


def point(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda facts: facts["curve"][0].update(changes)


FACTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "a gradient that was not finite": lambda facts: facts.update(bad=5),
    "more drawn than there are": lambda facts: facts.update(drawn=1e5),
    "half an example": lambda facts: facts.update(drawn=facts["drawn"] - 0.5),
    "more clipped than drawn": lambda facts: facts.update(clipped=facts["drawn"] + 1),
    "a loss of nothing": lambda facts: facts.update(drawn=0, clipped=0),
    "a negative loss": lambda facts: facts.update(loss=-1.0),
    "endless loss": lambda facts: facts.update(loss=math.inf),
    "another metric": lambda facts: facts["curve"][0].update(test_rmse=facts["curve"][0].pop("test_accuracy")),
    "fewer events": point(releases=3),
    "no events": point(releases=None),
    "a test loss below 0": point(test_loss=-5.0),
    "no test loss": point(test_loss=None),
    "an endless training loss": point(train_loss=math.inf),
    "a share of 7": point(clipped_fraction=7.0),
    "a share that is a text": point(clipped_fraction="<script>"),
    "no share": point(clipped_fraction=None),
    "a field more": point(more=1),
}


EVENTS = ("fewer events", "no events")


@pytest.mark.parametrize(
    ("name", "lie"), [*(("noisy_sgd", lie) for lie in FACTS), *itertools.product(("dpis", "pidp", "pate"), EVENTS)]
)
def test_forged_facts_are_refused(unfinished: Any, name: str, lie: str) -> None:
    one, facts, state = unfinished(name)
    FACTS[lie](facts)
    one.forged(facts, state)
    course, found, told = one.started()
    assert (course.resumed, int(found.step_R)) == (False, 0)
    assert len(told) == 1
    assert str(one.folder) in told[0]


def put(name: str, value: Any, at: Any = ...) -> Callable[[State], State]:
    """The state with a value written into one of its tensors."""

    def change(state: State) -> State:
        parts: dict[str, dict[str, Tensor]] = {"memory": dict(state.memory), "private": dict(state.private)}
        theta_RP = state.theta_RP.clone()
        (held,) = [part for part in parts.values() if name in part] or [{"theta": theta_RP}]
        changed = held[name].clone()
        changed[at] = value(changed[at]) if callable(value) else value
        held[name] = changed
        return State(held.get("theta", theta_RP), parts["memory"], state.step_R, parts["private"])

    return change


STATES = {
    "quantile: a clip norm below 0": ("quantile", put("clip_scale_R", -1.0)),
    "dpis: no noise": ("dpis", put("noise_R", 0.0)),
    "dpis: half the noise": ("dpis", put("noise_R", lambda sigma: sigma / 2)),
    "dpis: a ledger with more noise": ("dpis", put("history_RHF", lambda row: 1.01 * row, (0, 1, 2))),
    "dpis: a first epoch with another rate": ("dpis", put("history_RHF", lambda row: 0.9 * row, (0, 0, 1))),
    "dpis: an epoch less": ("dpis", put("history_RHF", -1.0, (0, 1))),
    "dpis: an epoch more": ("dpis", put("history_RHF", 0.5, (0, 9))),
    "dpis: an epoch without end": ("dpis", put("next_R", 10**6)),
    "dpis: another number of records": ("dpis", put("size_R", lambda size: size + 1)),
    "dpis: records below 0": ("dpis", put("size_R", -1.0)),
    "dpis: another batch": ("dpis", put("batch_R", 95.0)),
    "dpis: another sum": ("dpis", put("sum_R", lambda total: 2 * total)),
    "dpis: another clip norm": ("dpis", put("bound_R", 2.0)),
    "dpis_adaptive: another clip norm": ("dpis_adaptive", put("bound_R", lambda bound: 2 * bound)),
    "dpis_as_printed: no noise": ("dpis_as_printed", put("noise_R", 0.0)),
    "pate: not asked": ("pate", put("labels_RQ", -2, (0, 0))),
    "pate: all answered": ("pate", put("labels_RQ", 3)),
    "pidp: more silent than drawn": ("pidp", put("silent_R", 10**6)),
    "pidp: more drawn than there are": ("pidp", put("drawn_R", 10**6)),
    "pidp: another round": ("pidp", put("of_round_R", 7)),
    "output: another clip norm": ("output", put("clip_norm_R", 5.0)),
    "output: another order": ("output", put("order_RN", lambda order: order.flip(0), 0)),
    "output: no such record": ("output", put("order_RN", 10**9, (0, 5))),
    "output: parameters before the end": ("output", put("theta", 0.5, (0, 3))),
}


@pytest.mark.parametrize("lie", STATES)
def test_forged_states_are_refused(unfinished: Any, lie: str) -> None:
    """Above all those that would make a false ε: noise, sensitivity and ledger that do not belong together."""
    name, change = STATES[lie]
    one, facts, state = unfinished(name)
    one.forged(facts, change(state))
    course, found, told = one.started()
    assert (course.resumed, int(found.step_R)) == (False, 0), lie
    assert len(told) == 1
    assert str(one.folder) in told[0]


def test_a_byte_that_is_neither_true_nor_false_is_refused(unfinished: Any) -> None:
    one, facts, state = unfinished("dpis_as_printed")
    one.forged(facts, state)
    path = one.folder / f"{one.run.key}.pt"
    head, _, body = path.read_bytes().split(b"\n", 2)
    body = body[:-1] + b"\x02"  # the last tensor is `taken_RN`
    path.write_bytes(head + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    course, _, told = one.started()
    assert not course.resumed
    assert "neither true nor false" in told[0]


class Told(Watcher):
    every_epsilon = False

    def __init__(self) -> None:
        self.anew_: list[tuple[int, str]] = []

    def anew(self, run: Run, why: str) -> None:
        self.anew_.append((run.seed, why))


ASTRAY = {
    "it ends the stack": ("pate", put("labels_RQ", lambda labels: torch.where(labels >= 0, 10**6, labels))),
    "it fails alone": ("noisy_sgd", put("theta", lambda theta: 3e38 * (-1.0) ** torch.arange(len(theta)), 0)),
}


@pytest.mark.parametrize("lie", ASTRAY)
def test_what_fails_after_a_checkpoint_is_trained_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    """A forged state that nothing gives away: both runs of the stack end with the record of an undisturbed run."""
    monkeypatch.setattr("dpbench.job.write_reports", lambda *_args, **_more: ())  # it takes seconds
    name, change = ASTRAY[lie]
    runs = planned(tmp_path, name)
    whole, out = tmp_path / "whole", tmp_path / "out"
    run_job([tmp_path / "spec.yaml"], out=whole, choices=Choices(device="cpu"))
    interrupted(runs, out / "checkpoints")
    one = Unfinished(runs[1], out / "checkpoints")
    course, state, told = one.started()
    assert (course.resumed, told) == (True, [])
    facts = ("step", "seconds", "share", "curve", "drawn", "loss", "clipped", "bad")
    one.forged({key: getattr(course, key) for key in facts}, change(state))
    watcher = Told()
    summary = run_job([tmp_path / "spec.yaml"], out=out, choices=Choices(device="cpu"), watcher=watcher)
    assert (summary.exit_status, len(summary.finished), summary.failures) == (0, 2, ())
    assert 1 in {seed for seed, _ in watcher.anew_}
    assert all(str(out) in why and "it fails" in why for _, why in watcher.anew_)
    assert list((out / "checkpoints").iterdir()) == []
    for run in runs:
        found, expected = (json.loads(Store(place).run_path(run.key).read_text()) for place in (out, whole))
        assert found["ledger"] == expected["ledger"]
        losses = [[point["test_loss"] for point in record["curve"]] for record in (found, expected)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)  # sums of another stack, see test_train.py
        assert found["resumed"] is (run.seed == 0 and lie == "it fails alone")
