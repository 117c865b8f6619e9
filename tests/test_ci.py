"""What CI's script makes of its stages: all commands run, a failure is told and fails, too many minutes only warn."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "run"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The script in a folder where every program of the environment writes down that it was called, and passes."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("ruff", "mypy", "dpbench"):
        stand_in(tmp_path, name, "exit 0")
    return tmp_path


def stand_in(checkout: Path, name: str, line: str) -> None:
    path = checkout / ".venv" / "bin" / name
    path.write_text(f'#!/bin/sh\necho "called {name} $*"\n{line}\n', encoding="utf-8")
    path.chmod(0o755)


def ci(checkout: Path, *stages: str, **environment: str) -> tuple[int, str]:
    """Status and output; chromium and data are said to be there, as the stages asked for here need neither."""
    stand_in(checkout, "chromium", "exit 0")
    path = f"{checkout / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", ".ci/run", *stages],
        cwd=checkout,
        env={**os.environ, "PATH": path, "DPBENCH_DATA": "none", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_stage_that_passes(checkout: Path) -> None:
    status, said = ci(checkout, "rest")
    assert status == 0
    assert "rest              10     0:00  passed" in said
    assert said.count("called dpbench") == 2  # the plan is not shown


def test_a_command_that_fails_fails_ci_and_the_others_still_run(checkout: Path) -> None:
    stand_in(checkout, "ruff", "exit 3")
    status, said = ci(checkout, "rest")
    assert status == 1
    assert "FAILED (rest, status 3): .venv/bin/ruff check ." in said
    assert "0:00  FAILED" in said
    assert said.count("called dpbench") == 2  # the plan is not shown


def test_more_minutes_than_budgeted_are_told_and_do_not_fail(checkout: Path) -> None:
    script = checkout / ".ci" / "run"
    script.write_text(script.read_text(encoding="utf-8").replace("[rest]=10", "[rest]=0"), encoding="utf-8")
    stand_in(checkout, "mypy", "sleep 1.1")
    status, said = ci(checkout, "rest")
    assert status == 0
    assert "passed, WARNING: over its budget" in said


def test_budgets_are_printed_and_add_up_to_less_than_ci_may_take(checkout: Path) -> None:
    status, said = ci(checkout, CI_DRY_RUN="1")
    assert status == 0
    assert "called" not in said
    lines = [line.split() for line in said.split("stage         budget  minutes\n")[1].splitlines()]
    budgets = {stage: int(budget) for stage, budget, *_ in lines}
    assert budgets == {"tests": 10, "long": 20, "conformance": 15, "asv": 20, "rest": 10}
    assert sum(budgets.values()) < 90


def test_no_such_stage(checkout: Path) -> None:
    status, said = ci(checkout, "none")
    assert (status, said) == (2, "no such stage: none; there are tests long conformance asv rest\n")
