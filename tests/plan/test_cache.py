"""What planning remembers saves time and changes nothing, whatever the file holds."""

from __future__ import annotations

import json
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
