"""Internal: whether there is a GPU, which a test on a CPU has to pretend.

The plan: what is keyed and what is not, why a run runs, and what cannot be planned.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode

from dpbench.catalog import catalog
from dpbench.errors import DpbenchError, ProblemsError
from dpbench.events import Composition, SampledGaussian, to_json
from dpbench.plan.known import about
from dpbench.plan.planning import Choices, Plan, make_plan, resolve_all
from dpbench.plan.trial import sizes
from dpbench.spec.loading import load_specs
from dpbench.spec.shipped import shipped
from dpbench.step.watch import FloatOperations
from dpbench.store import run_key
from dpbench.store.records import Store

PUBLISHED = Path(__file__).parents[2] / "reports" / "published" / "records"

SPEC = """
kind: run
name: small
source: somewhere
dataset: digits
model: {name: mlp, parameters: {hidden: [16]}}
mechanism: noisy_sgd
budget: {delta: 1e-4, noise_multiplier: 1.5}
training: {batch_size: 96, epochs: 2, learning_rate: 0.5, clip_norm: 1.0}
seeds: 1
"""


def plan_of(folder: Path, text: str, **choices: Any) -> Plan:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.yaml").write_text(text)
    return make_plan(load_specs([folder / "spec.yaml"], allow_code=True), Store(folder / "out"), Choices(**choices))


def key_of(folder: Path, text: str) -> str:
    (run,) = plan_of(folder, text).runs
    return run.key


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("hidden: [16]", "hidden: [17]"),
        ("noisy_sgd", "noisy_adam"),
        ("noise_multiplier: 1.5", "noise_multiplier: 1.6"),
        ("batch_size: 96", "batch_size: 97"),
        ("epochs: 2", "epochs: 3"),
        ("learning_rate: 0.5", "learning_rate: 0.25"),
        ("clip_norm: 1.0", "clip_norm: 2.0"),
        ("seeds: 1", "seeds: [1]"),
    ],
)
def test_what_changes_trained_numbers_changes_the_key(tmp_path: Path, before: str, after: str) -> None:
    assert before in SPEC
    assert key_of(tmp_path, SPEC) != key_of(tmp_path, SPEC.replace(before, after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("name: small", "name: other"),
        ("source: somewhere", "source: elsewhere"),
        ("kind: run", "kind: run\naccountants: [rdp]"),
        ("kind: run", "kind: run\nneeds: [gpu]"),
        ("kind: run", "kind: run\npublished: {test_accuracy_percent: 95.0, averaged_over: 10}"),
        ("delta: 1e-4", "delta: 1e-5"),
        ("hidden: [16]", "hidden: [16], activation: relu"),  # the default, written out
        ("epochs: 2", "steps: 30"),  # ceil(2 · 1437 / 96)
    ],
)
def test_what_does_not_leaves_it(tmp_path: Path, before: str, after: str) -> None:
    assert before in SPEC
    assert key_of(tmp_path, SPEC) == key_of(tmp_path, SPEC.replace(before, after))


def test_calibrated_noise_is_keyed_and_meets_the_target(tmp_path: Path) -> None:
    text = SPEC.replace("noise_multiplier: 1.5", "epsilon: 2")
    (run,) = plan_of(tmp_path, text).runs
    assert run.noise_multiplier is not None
    assert run.epsilon is not None
    assert run.epsilon <= 2
    assert run.noise_multiplier == float(f"{run.noise_multiplier:.6g}")
    assert run.resolved["noise_multiplier"] == run.noise_multiplier


def write_record(plan: Plan, store: Store) -> None:
    (run,) = plan.runs
    event = SampledGaussian(run.sampling_rate, run.noise_multiplier or 0.0)
    ledger, epoch = Composition(((event, run.steps),)), round(run.steps * run.sampling_rate, 6)
    store.write_run(
        {
            "run_key": run.key,
            "seed": run.seed,
            "resolved": json.loads(json.dumps(run.resolved)),
            "context": {"name": "small"},
            "facts": {"private": True, "expected_batch_size": 96.0},
            "ledger": to_json(ledger),
            "curve": [{"epoch": epoch, "step": run.steps, "seconds": 3.0, "test_accuracy": 0.5}],
            "result": {"test_accuracy": 0.5},
            "seconds": 3.0,
            "own_seconds": 3.0,
            "sources": dict(run.sources),
            "environment": {"device": "cpu", "engine": dict(run.engine)},
        }
    )


def test_a_record_is_enough_until_a_version_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(tmp_path, SPEC)
    assert [run.action for run in plan.runs] == ["train"]
    store = Store(tmp_path / "out")
    write_record(plan, store)
    again = plan_of(tmp_path, SPEC)
    assert [run.action for run in again.runs] == ["exists"]
    assert again.stacks == ()
    assert [run.action for run in plan_of(tmp_path, SPEC, force=True).runs] == ["train"]
    monkeypatch.setattr("dpbench.step.stages.NUMERICS", 2)
    (stale,) = plan_of(tmp_path, SPEC).runs
    assert stale.action == "stale"
    assert "stages: version 1, now version 2" in stale.reason
    (due,) = plan_of(tmp_path, SPEC, stale=True).runs
    assert (due.action, due.reason) == ("train", "its record is stale")
    assert due.key != plan.runs[0].key


def test_a_damaged_record_is_no_record(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SPEC)
    store = Store(tmp_path / "out")
    write_record(plan, store)
    path = store.run_path(plan.runs[0].key)
    path.write_text(path.read_text()[:-40])
    (run,) = plan_of(tmp_path, SPEC).runs
    assert run.action == "train"
    assert "its record is not used" in run.reason
    assert "not JSON" in run.reason


def test_estimates_come_from_records_of_the_like(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SPEC)
    assert plan.runs[0].estimate is not None
    assert 0 < plan.runs[0].estimate < 60
    write_record(plan, Store(tmp_path / "out"))
    (longer,) = plan_of(tmp_path, SPEC.replace("epochs: 2", "epochs: 20")).runs
    assert longer.estimate == pytest.approx(3.0 / 30 * longer.steps)


@pytest.mark.parametrize(
    ("spec", "label"),
    [
        ("bu2020/table1", "row 1"),
        ("bu2020/table3", "private networks"),  # embeddings do hardly any operations
        ("bu2020/table4", "private networks"),  # a coin for each of a million records
        ("dplis2021/table2", "MNIST MLP none 1.99"),
    ],
)
def test_a_guess_is_not_far_from_what_published_runs_took(spec: str, label: str, tmp_path: Path) -> None:
    """Those shared a machine with other work, and some are of slower code: up to ten times as long as the guess."""
    choices = Choices(seeds=(0,), device="cpu", only=(f"*{label}",))
    specs = load_specs([shipped()[spec]])
    plan = make_plan(specs, Store(tmp_path), choices, every_epsilon=False)
    for run in plan.runs:
        took = json.loads((PUBLISHED / f"{run.key}.json").read_text())["own_seconds"]
        assert run.estimate is not None
        assert took / 10 < run.estimate < 3 * took


def test_an_absent_dataset_skips_with_the_command_that_gets_it(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SPEC.replace("digits", "mnist"), data=tmp_path / "nothing")
    (run,) = plan.runs
    assert run.action == "skip"
    assert "dpbench data fetch mnist" in run.reason
    assert plan.stacks == ()


def test_needs_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = SPEC.replace("kind: run", "kind: run\nneeds: [gpu]")
    monkeypatch.setattr("dpbench.plan.planning._gpu", lambda: None)
    (run,) = plan_of(tmp_path, text).runs
    assert run.action == "skip"
    assert "--device cpu" in run.reason
    (run,) = plan_of(tmp_path, text, device="cpu").runs
    assert run.action == "train"
    monkeypatch.setattr("dpbench.plan.planning._gpu", lambda: "cuda")
    (run,) = plan_of(tmp_path, text).runs
    assert (run.action, run.device) == ("train", "cuda")


def test_only_and_seeds_and_what_was_interrupted(tmp_path: Path) -> None:
    text = SPEC.replace("seeds: 1", "seeds: 4") + "grid: {training.learning_rate: [0.1, 0.2]}\n"
    assert len(plan_of(tmp_path, text).runs) == 8
    assert len(plan_of(tmp_path, text, only=("*0.2",)).runs) == 4
    assert [run.seed for run in plan_of(tmp_path, text, seeds=2).runs] == [0, 1, 0, 1]
    assert [run.seed for run in plan_of(tmp_path, text, seeds=(7, 9)).runs] == [7, 9, 7, 9]
    with pytest.raises(DpbenchError, match="no spec has such a name"):
        plan_of(tmp_path, text, only=("nothing",))
    with pytest.raises(DpbenchError, match=r"--only rate: .* there are: small; '\*rate\*' takes '.*rate=0.1'"):
        plan_of(tmp_path, text, only=("small", "rate"))
    (tmp_path / "out" / "checkpoints").mkdir(parents=True)
    new = plan_of(tmp_path, text).runs[0]
    place = Store(tmp_path / "out").checkpoint_path(new.key)
    for content, done in (
        ("", 0),
        ("one\ntwo\n[1]\n", 0),
        (f'one\ntwo\n{{"step": {new.steps // 4}}}\n', new.steps // 4),
    ):
        place.write_text(content)
        begun, other = plan_of(tmp_path, text).runs[:2]
        assert [begun.reason, other.reason] == ["was interrupted, goes on from there", "no record yet"]
        assert begun.estimate == pytest.approx(new.estimate * (1 - done / new.steps))
        assert other.estimate == pytest.approx(new.estimate)
    assert plan_of(tmp_path, text, force=True).runs[0].estimate == pytest.approx(new.estimate)


def test_runs_that_differ_in_hyperparameters_form_one_stack(tmp_path: Path) -> None:
    grid = "grid: {training.learning_rate: [0.1, 0.2], training.clip_norm: [1, 2], training.batch_size: [32, 64]}\n"
    plan = plan_of(tmp_path, SPEC.replace("seeds: 1", "seeds: 2") + grid)
    assert [len(stack.runs) for stack in plan.stacks] == [16]


def test_the_same_run_asked_for_twice_is_trained_once(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(SPEC.replace("name: small", "name: twin"))
    (tmp_path / "spec.yaml").write_text(SPEC)
    plan = make_plan(load_specs([tmp_path]), Store(tmp_path / "out"), Choices())
    assert len(plan.runs) == 2
    assert sum(len(stack.runs) for stack in plan.stacks) == 1


def test_all_that_cannot_be_planned_is_said_at_once(tmp_path: Path) -> None:
    """Whether a model fits its data is known only when it is built."""
    (tmp_path / "a.yaml").write_text(SPEC.replace("[16]", "[16, 0]"))
    (tmp_path / "b.yaml").write_text(
        SPEC.replace("name: small", "name: cnn").replace("{name: mlp, parameters: {hidden: [16]}}", "tfp_cnn")
    )
    with pytest.raises(ProblemsError) as caught:
        make_plan(load_specs([tmp_path]), Store(tmp_path / "out"), Choices())
    text = str(caught.value)
    assert "hidden = (16, 0)" in text
    assert "input_shape" in text
    assert "2 mistakes" in text


OWN = """
from torch import nn
from dpbench.events import Composition, SampledGaussian
from dpbench.mechanisms.presets import noisy_sgd


class Twice:
    def __init__(self, extra):
        self.extra, self.inner = extra, noisy_sgd()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def ledger(self, *, sampling_rate, noise_multiplier, steps):
        return Composition(((SampledGaussian(sampling_rate, noise_multiplier), steps * self.extra),))


def twice(*, extra: int = 1):
    return Twice(extra)


def narrow(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(10, classes))


def random_buffer(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    import torch

    module = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    module.register_buffer("mask", torch.randn(3))
    return module
"""


def test_noise_is_calibrated_for_the_mechanisms_own_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_releases.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    text = SPEC.replace("noise_multiplier: 1.5", "epsilon: 1").replace("noisy_sgd", '"own_releases:twice"')
    plan = plan_of(tmp_path / "specs", text + "grid: {mechanism.parameters.extra: [1, 4]}\n")
    one, four = plan.runs
    assert one.noise_multiplier is not None
    assert four.noise_multiplier is not None
    assert four.noise_multiplier > 1.2 * one.noise_multiplier
    assert one.epsilon is not None
    assert four.epsilon is not None
    assert max(one.epsilon, four.epsilon) <= 1


@pytest.mark.parametrize(("model", "words"), [("narrow", "RuntimeError"), ("random_buffer", "mask are filled")])
def test_a_model_of_ones_own_that_does_not_fit_is_a_mistake_of_the_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, words: str
) -> None:
    (tmp_path / "own_misfits.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    text = SPEC.replace("{name: mlp, parameters: {hidden: [16]}}", f'"own_misfits:{model}"')
    with pytest.raises(ProblemsError, match=words):
        plan_of(tmp_path / "specs", text)


def test_more_seeds_than_the_spec_names_go_on_counting(tmp_path: Path) -> None:
    assert [run.seed for run in plan_of(tmp_path, SPEC.replace("seeds: 1", "seeds: [0, 3]"), seeds=4).runs] == [
        0,
        3,
        1,
        2,
    ]


def test_a_record_of_a_newer_version_is_not_overwritten(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SPEC)
    store = Store(tmp_path / "out")
    write_record(plan, store)
    path = store.run_path(plan.runs[0].key)
    path.write_text(path.read_text().replace('"schema_version": 2', '"schema_version": 3'))
    with pytest.raises(DpbenchError, match="newer dpbench"):
        plan_of(tmp_path, SPEC)


def test_the_accountant_that_a_mechanism_asks_while_it_runs_is_keyed() -> None:
    """DPIS chooses its noise by the filter; the others only tell their accountants what they released."""
    asked = {name for name in run_key.code_modules(run_key.mechanism_entries("dpis", {})) if ".accountants." in name}
    assert {"dpbench.privacy.accountants.rdp_filter", "dpbench.privacy.accountants.renyi.events"} <= asked
    for name in ("noisy_sgd", "dp_sgd_jl", "normalised_sgd"):
        modules = run_key.code_modules(run_key.mechanism_entries(name, {}))
        assert not [module for module in modules if ".accountants." in module]


def test_a_spec_that_names_no_accountant_is_calibrated_to_the_true_epsilon(tmp_path: Path) -> None:
    text = SPEC.replace("noise_multiplier: 1.5", "epsilon: 1")
    (exact,) = plan_of(tmp_path / "exact", text).runs
    (rdp,) = plan_of(tmp_path / "rdp", text.replace("epsilon: 1", "epsilon: 1, calibrate_with: rdp")).runs
    assert (exact.epsilon_by, rdp.epsilon_by) == ("exact", "rdp")
    assert exact.noise_multiplier is not None
    assert rdp.noise_multiplier is not None
    assert exact.noise_multiplier < rdp.noise_multiplier
    assert exact.wasted == pytest.approx(0, abs=1e-5)
    assert rdp.true_epsilon is not None
    assert rdp.wasted == pytest.approx(1 - rdp.true_epsilon)
    assert rdp.wasted > 0.05
    for run in (exact, rdp):
        assert run.epsilon_version is not None
        assert "numerics" in run.epsilon_version


def test_a_delta_of_one_record_or_more_is_warned_of(tmp_path: Path) -> None:
    for delta, warned in (("1e-3", True), ("6e-4", False)):  # 1/1437 is 6.96e-4
        (run,) = plan_of(tmp_path / delta, SPEC.replace("delta: 1e-4", f"delta: {delta}")).runs
        assert (run.warning is not None) == warned


@pytest.mark.parametrize(
    ("decay", "epochs", "words"),
    [("1e-20", "1e12", "changes more than"), ("0.01", "1e12", "leaves a noise multiplier"), ("0", "1e300", "2\\^53")],
)
def test_a_schedule_of_many_epochs_is_refused_at_once(tmp_path: Path, decay: str, epochs: str, words: str) -> None:
    """A loop over so many steps would never end."""
    text = SPEC.replace(
        "mechanism: noisy_sgd", f"mechanism: {{name: decaying_sgd, parameters: {{noise_decay: {decay}}}}}"
    )
    with pytest.raises(ProblemsError, match=words) as caught:
        plan_of(tmp_path, text.replace("noise_multiplier: 1.5", "epsilon: 1").replace("epochs: 2", f"epochs: {epochs}"))
    assert len(str(caught.value)) < 500


def test_what_is_not_asked_for_changes_nothing_else(tmp_path: Path) -> None:
    """The ε of runs that are not due, and trials of models: `run` and `report` do without."""
    two = SPEC + "needs: [gpu]\n"
    (tmp_path / "due.yaml").write_text(SPEC)
    (tmp_path / "not_due.yaml").write_text(two.replace("name: small", "name: other").replace("1.5", "1.7"))
    specs, store = load_specs([tmp_path]), Store(tmp_path / "out")
    choices = Choices()
    whole = make_plan(specs, store, choices).runs
    less = make_plan(specs, store, choices, every_epsilon=False).runs
    assert next(run.action for run in whole) == "train"
    for one, other in zip(whole, less, strict=True):
        assert one.epsilon is not None
        if one.action == "train":
            assert other == one
        else:
            unsaid: Any = {"epsilon_by": None, "epsilon_version": None, "epsilon_because": ""}
            assert other == replace(one, epsilon=None, epsilon_kind=None, **unsaid)
    assert [run.key for run in resolve_all(specs, choices)] == [run.key for run in whole]
    shown = make_plan(specs, store, choices, with_sources=False).runs
    assert shown == tuple(replace(one, sources={}) for one in whole)
    assert "dpbench.step.pipeline" in whole[0].sources


@pytest.mark.parametrize("name", ["mlp", "tfp_cnn", "dpis_rnn", "scattering_cnn"])
def test_sizes_are_those_of_a_model_with_values(name: str) -> None:
    shape = {"dpis_rnn": (28, 28), "scattering_cnn": (81, 7, 7)}.get(name, (1, 28, 28))
    build = partial(catalog("models")[name].load(), shape, 10)
    module = build()
    # An engine looks at its operators: alone, an LSTM is one operator of torch, whose operations nobody counts.
    with FloatOperations() as counter, torch.no_grad(), BaseTorchFunctionMode():
        module(torch.zeros(1, *shape))
    assert counter.total > 0
    assert sizes(build, shape, 10) == (counter.total, sum(one.numel() for one in module.parameters()), counter.written)


def test_a_plan_and_a_report_look_only_at_what_belongs_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of other runs need not be held to themselves, nor specs resolved of which there can be no record."""
    store = Store(tmp_path / "out")
    write_record(plan_of(tmp_path, SPEC), store)
    held: list[str] = []
    monkeypatch.setattr("dpbench.store.records.disagreement", lambda data: held.append(data["run_key"]) or "")
    (same,) = plan_of(tmp_path, SPEC).runs
    assert (same.action, held) == ("exists", [same.key])
    (other,) = plan_of(tmp_path, SPEC.replace("noisy_sgd", "noisy_adam")).runs
    assert (other.action, held) == ("train", [same.key])

    records = store.read().runs
    (tmp_path / "code.yaml").write_text(SPEC.replace("noisy_sgd", "dpbench.mechanisms.presets:noisy_sgd"))
    files = {"noisy_sgd": 1, "noisy_adam": 0, "code": 1}
    for name in ("noisy_sgd", "noisy_adam"):
        (tmp_path / f"{name}.yaml").write_text(SPEC.replace("noisy_sgd", name))
    found = {name: len(about(load_specs([tmp_path / f"{name}.yaml"], allow_code=True), records)) for name in files}
    assert found == files
