"""Two jobs in one OUT at the same time: every record is whole, and neither stops the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpbench.atomic import write_bytes
from dpbench.job import run
from dpbench.plan.planning import Choices
from dpbench.store.records import Store

pytestmark = pytest.mark.usefixtures("one_thread")

SPEC = """
kind: run
name: small
dataset: digits
model: {name: mlp, parameters: {hidden: [8], activation: tanh}}
mechanism: noisy_sgd
budget: {delta: 1e-4, noise_multiplier: 1.0}
training: {batch_size: 96, steps: 3, learning_rate: 0.5, clip_norm: 1.0}
seeds: 2
"""


def test_a_file_on_trial_may_be_gone_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both jobs write and remove it before they train; the slower one finds nothing to remove."""

    def taken(path: Path, content: bytes) -> Path:
        write_bytes(path, content).unlink()
        return path

    monkeypatch.setattr("dpbench.job.write_bytes", taken)
    monkeypatch.setattr("dpbench.job.write_reports", lambda *_args, **_more: ())
    (tmp_path / "spec.yaml").write_text(SPEC)
    summary = run([tmp_path / "spec.yaml"], out=tmp_path / "out", choices=Choices(device="cpu"))
    assert (summary.exit_status, len(summary.finished)) == (0, 2)


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["--force"]])
def test_two_processes_leave_what_one_would(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    command = [sys.executable, "-m", "dpbench", "run", str(tmp_path / "spec.yaml"), "--device", "cpu", "--quiet"]
    surroundings = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "DPBENCH_CACHE": str(tmp_path)}

    def started(out: str, *more: str) -> subprocess.Popen[str]:
        whole = [*command, "--out", str(tmp_path / out), *more]
        return subprocess.Popen(whole, env=surroundings, stderr=subprocess.PIPE, text=True)

    for process in (started("alone"), started("out"), started("out", *options)):
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    found, expected = (Store(tmp_path / out).read() for out in ("out", "alone"))
    assert (len(found.runs), found.damaged, found.failures) == (2, (), ())
    for one, other in zip(found.runs, expected.runs, strict=True):
        assert one.run_key == other.run_key
        assert [point.test_loss for point in one.curve] == [point.test_loss for point in other.curve]
    assert json.loads((tmp_path / "out" / "report.json").read_text())
    left = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not [name for name in left if name.startswith(".") or name.endswith((".pt", ".tmp"))]
