"""What planning remembers saves time and changes nothing, whatever the file holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dpbench.events import Composition, SampledGaussian
from dpbench.plan.cache import FILE, Cache, cache_file
from dpbench.privacy.calibration import solve

TARGET = (3.0, 1e-5)


def ledger(sigma: float) -> Composition:
    return Composition(((SampledGaussian(0.01, sigma), 100),))


TRUTH = solve("noise_multiplier", ledger, epsilon=TARGET[0], delta=TARGET[1])


@pytest.fixture
def written(tmp_path: Path) -> Path:
    cache = Cache(tmp_path / FILE)
    assert cache.calibrated(ledger, *TARGET, None).value == TRUTH.value
    cache.passes(["a trial"], ["dpbench.models.mlp"])
    cache.write()
    return tmp_path / FILE


def test_a_second_process_asks_twice(written: Path) -> None:
    again = Cache(written)
    found = again.calibrated(ledger, *TARGET, None)
    assert (found.value, found.asked) == (TRUTH.value, 2)
    assert found.attained == TRUTH.attained
    assert again.passed(["a trial"], ["dpbench.models.mlp"])
    assert not again.passed(["another trial"], ["dpbench.models.mlp"])


@pytest.mark.parametrize("value", [0.5, 100.0, TRUTH.neighbour, -1.0, 0.0, 1e400, "1.5", None, True, [1], {}])
def test_a_tampered_noise_is_dropped(written: Path, value: Any) -> None:
    data = json.loads(written.read_text())
    (key,) = data["noise"]
    data["noise"][key] = value
    written.write_text(json.dumps(data))
    assert Cache(written).calibrated(ledger, *TARGET, None).value == TRUTH.value


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"noise": 3}', '{"noise": {}, "trials": []}', "[" * 100_000])
def test_a_broken_file_is_as_good_as_none(written: Path, text: str) -> None:
    written.write_text(text)
    cache = Cache(written)
    assert not cache.passed(["a trial"], ["dpbench.models.mlp"])
    assert cache.calibrated(ledger, *TARGET, None).value == TRUTH.value
    cache.write()
    assert Cache(written).calibrated(ledger, *TARGET, None).asked == 2


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
