"""Internal: a plan that is being made writes what it has every few seconds, which no test waits for.

What planning remembers saves time and changes nothing, whatever the file holds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpbench.events import Composition, SampledGaussian
from dpbench.job import run
from dpbench.plan.cache import FILE, Cache, cache_file
from dpbench.plan.noise import calibrated, confirmed
from dpbench.plan.planning import Choices, Run, make_plan
from dpbench.privacy.calibration import solve
from dpbench.spec.loading import Budget, load_specs
from dpbench.store.reading import digest
from dpbench.store.records import Store

BUDGET = Budget(epsilon=3.0, delta=1e-5, noise_multiplier=None, calibrate_with=None)


def ledger(sigma: float) -> Composition:
    return Composition(((SampledGaussian(0.01, sigma), 100),))


TRUTH = solve("noise_multiplier", ledger, epsilon=3.0, delta=1e-5)


def asked_of(cache: Cache) -> tuple[float, int]:
    """The calibrated noise by a cache, and for how many noise multipliers a ledger was made."""
    made: list[float] = []

    def counted(sigma: float) -> Composition:
        made.append(sigma)
        return ledger(sigma)

    sigma, stated = calibrated(counted, BUDGET, "a mechanism", cache)
    assert stated["epsilon"] <= 3.0
    return sigma, len(made)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    cache = Cache(tmp_path / FILE)
    assert asked_of(cache)[0] == TRUTH.value
    cache.passes(["a trial"], ["dpbench.models.mlp"])
    cache.sizes(["a model"], ["dpbench.models.mlp"], lambda: (12, 5, 7))
    cache.write()
    return tmp_path / FILE


def test_a_second_process_asks_the_accountant_nothing(written: Path) -> None:
    again = Cache(written)
    assert asked_of(again) == (TRUTH.value, 1)  # the ledger at 1 is the question
    assert calibrated(ledger, BUDGET, "a mechanism", again)[1]["epsilon"] == TRUTH.attained.value
    assert again.passed(["a trial"], ["dpbench.models.mlp"])
    assert not again.passed(["another trial"], ["dpbench.models.mlp"])
    assert again.sizes(["a model"], ["dpbench.models.mlp"], lambda: (13, 5, 7)) == (12, 5, 7)
    assert again.sizes(["another"], ["dpbench.models.mlp"], lambda: (13, 5, 7)) == (13, 5, 7)


def test_a_plan_that_is_ended_keeps_what_it_has_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written as it goes, for a kill, and where Ctrl-C comes; progress tells of every spec."""
    (tmp_path / "three.yaml").write_text(
        "kind: run\nname: three\ndataset: digits\nmodel: {name: mlp, parameters: {hidden: [4]}}\nmechanism: noisy_sgd\n"
        "training: {batch_size: 64, steps: 5, learning_rate: 1, clip_norm: 1}\nseeds: 1\nbudget: {delta: 1e-4}\n"
        "grid: {budget.epsilon: [1, 2, 3]}\n"
    )
    file = tmp_path / FILE
    solved: list[int] = []
    told: list[tuple[str, int, int]] = []

    def interrupted(*arguments: Any, **asked: Any) -> Any:
        solved.append(len(json.loads(file.read_text())["noise"]) if file.exists() else 0)
        if len(solved) == 3:
            raise KeyboardInterrupt
        return solve(*arguments, **asked)

    monkeypatch.setattr("dpbench.plan.noise.solve", interrupted)
    monkeypatch.setattr("dpbench.plan.cache._SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        make_plan(
            load_specs([tmp_path / "three.yaml"]),
            Store(tmp_path / "out"),
            Choices(device="cpu"),
            kept=Cache(tmp_path / FILE),
            progress=lambda *told_of: told.append(told_of),
        )
    assert solved == [0, 1, 2]  # what a kill would have left
    assert told == [("specs", done, 3) for done in (0, 1, 2)]


MALFORMED = [-1.0, "1.5", None, True, [1], {}, 1]


@pytest.mark.parametrize("name", ["noise_multiplier", "epsilon"])
@pytest.mark.parametrize("value", MALFORMED)
def test_what_is_no_number_is_dropped(written: Path, name: str, value: Any) -> None:
    data = json.loads(written.read_text())
    (found,) = data["noise"].values()
    found[name] = value
    written.write_text(json.dumps({**data, "digest": digest(data)}))
    sigma, asked = asked_of(Cache(written))
    assert sigma == TRUTH.value
    assert asked > 2


@pytest.mark.parametrize("value", [TRUTH.value, TRUTH.neighbour, 0.0, 1e-9, 0.5, 100.0, 1e30])
def test_only_the_calibrated_noise_is_confirmed(value: float) -> None:
    _, stated = calibrated(ledger, BUDGET, "a mechanism", None)
    assert confirmed(value, stated, ledger, BUDGET) == (value == TRUTH.value)
    assert not confirmed(value, stated | {"epsilon": 2.0}, ledger, BUDGET)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"noise": 3}', '{"noise": {}, "trials": []}', "[" * 100_000])
def test_a_broken_file_is_as_good_as_none(written: Path, text: str) -> None:
    written.write_text(text)
    cache = Cache(written)
    assert not cache.passed(["a trial"], ["dpbench.models.mlp"])
    assert asked_of(cache)[0] == TRUTH.value
    cache.write()
    assert asked_of(Cache(written)) == (TRUTH.value, 1)


def test_two_processes_keep_what_both_have_found(tmp_path: Path) -> None:
    one, two = Cache(tmp_path / FILE), Cache(tmp_path / FILE)
    one.passes(["one"], ["dpbench.models.mlp"])
    two.passes(["two"], ["dpbench.models.mlp"])
    one.write()
    two.write()
    both = Cache(tmp_path / FILE)
    assert both.passed(["one"], ["dpbench.models.mlp"])
    assert both.passed(["two"], ["dpbench.models.mlp"])


def test_trials_of_other_code_are_not_remembered(tmp_path: Path) -> None:
    cache = Cache(tmp_path / FILE)
    cache.passes(["a trial"], ["somebodys_models"])
    assert not cache.passed(["a trial"], ["somebodys_models"])


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file" / FILE)
    cache.passes(["a trial"], ["dpbench.models.mlp"])
    cache.write()


def test_the_folder_is_the_users_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPBENCH_CACHE", str(tmp_path))
    assert cache_file() == tmp_path / FILE


SPECS = """
kind: run
name: small
source: somewhere
dataset: digits
model: {name: mlp, parameters: {hidden: [16]}}
mechanism: noisy_sgd
budget: {delta: 1e-4}
training: {batch_size: 96, epochs: 2, learning_rate: 0.5, clip_norm: 1.0}
seeds: 1
rows:
  - {label: calibrated, seeds: 2, budget: {epsilon: 1}}
  - {label: by rdp, budget: {epsilon: 1, calibrate_with: rdp}}
  - {label: given, budget: {noise_multiplier: 1.5}}
  - {label: given with a bound, budget: {noise_multiplier: 1.5, calibrate_with: rdp}}
  - {label: projections, budget: {epsilon: 1}, mechanism: {name: dp_sgd_jl, parameters: {projections: 4}}}
  - {label: no privacy, mechanism: non_private, budget: none}
"""


def test_a_plan_is_the_same_without_a_cache_with_an_empty_one_and_with_a_full_one(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SPECS)
    (tmp_path / "file").write_text("in the way")
    command = [sys.executable, "-m", "dpbench", "plan", str(tmp_path / "small.yaml"), "--json", "--device", "cpu"]

    def shown(cache: Path) -> str:
        surroundings = {**os.environ, "DPBENCH_CACHE": str(cache)}
        done = subprocess.run(command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=True)
        return done.stdout

    first = shown(tmp_path / "cache")
    assert (tmp_path / "cache" / FILE).is_file()
    lines = [json.loads(line) for line in first.splitlines()]
    assert len(lines) == 7
    assert all((line["epsilon"] is None) == (line["label"] == "no privacy") for line in lines)
    assert shown(tmp_path / "cache") == first
    assert shown(tmp_path / "file") == first


def test_a_tampered_noise_is_shown_but_never_trained_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is the user's own file: a plan repeats what it says, a run asks the accountant before it trains."""
    monkeypatch.setenv("DPBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "small.yaml").write_text(SPECS)
    specs, store = load_specs([tmp_path / "small.yaml"]), Store(tmp_path / "out")

    def planned(every_epsilon: bool) -> Run:
        choices = Choices(only=("calibrated",))
        return make_plan(specs, store, choices, every_epsilon=every_epsilon).runs[0]

    truth = planned(every_epsilon=True)
    file = tmp_path / "cache" / FILE
    data = json.loads(file.read_text())
    for one in data["noise"].values():
        if one.get("noise_multiplier") == truth.noise_multiplier:
            one["noise_multiplier"] = 0.25
    file.write_text(json.dumps(data))
    assert planned(every_epsilon=True) == truth, "a file with another digest is not believed"
    file.write_text(json.dumps({**data, "digest": digest(data)}))
    assert planned(every_epsilon=True).noise_multiplier == 0.25
    assert planned(every_epsilon=False) == replace(truth, true_epsilon=planned(every_epsilon=False).true_epsilon)
    assert planned(every_epsilon=True) == truth  # and the file is mended


TWO_BUDGETS = """
kind: run
name: two
dataset: digits
model: {name: mlp, parameters: {hidden: [8]}}
mechanism: noisy_sgd
budget: {delta: 1e-4}
training: {batch_size: 96, steps: 3, learning_rate: 0.5, clip_norm: 1.0}
rows:
  - {label: one, budget: {epsilon: 1}}
  - {label: eight, budget: {epsilon: 8}}
seeds: 1
"""


def test_remembered_noise_of_another_budget_makes_no_run_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the noise of ε = 8 a run for ε = 1 has the key, and so the record, of the one for 8: it is trained still."""
    monkeypatch.setenv("DPBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "two.yaml").write_text(TWO_BUDGETS)
    run([tmp_path / "two.yaml"], out=tmp_path / "out", choices=Choices(device="cpu", only=("eight",)))
    specs, store = load_specs([tmp_path / "two.yaml"]), Store(tmp_path / "out")

    def planned() -> dict[str, tuple[str, float | None]]:
        runs = make_plan(specs, store, Choices(device="cpu"), every_epsilon=False).runs
        return {one.spec.label: (one.action, one.noise_multiplier) for one in runs}

    truth = planned()
    assert (truth["one"][0], truth["eight"][0]) == ("train", "exists")
    file = tmp_path / "cache" / FILE
    data = json.loads(file.read_text())
    for one in data["noise"].values():
        one["noise_multiplier"] = truth["eight"][1]
    file.write_text(json.dumps({**data, "digest": digest(data)}))
    assert planned() == truth


def test_the_tests_leave_no_folder_behind(tmp_path: Path) -> None:
    """Where the user names no folder, tests make one, and remove it."""
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "DPBENCH"))}
    surroundings |= {"TMPDIR": str(tmp_path), "TEMP": str(tmp_path), "TMP": str(tmp_path)}
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", str(tests / "test_parts.py")]
    done = subprocess.run([*command, "-s"], cwd=tests.parent, env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert not list(tmp_path.glob("dpbench-tests-*"))
