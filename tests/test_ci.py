"""What CI's script makes of its stages: all commands run, a failure is told and fails, too many minutes only warn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the script is bash's")
ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / ".ci" / "run"


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
    assert re.search(r"rest              10     0:\d\d  passed", said)
    assert said.count("called dpbench") == 2  # the plan is not shown


def test_a_command_that_fails_fails_ci_and_the_others_still_run(checkout: Path) -> None:
    stand_in(checkout, "ruff", "exit 3")
    status, said = ci(checkout, "rest")
    assert status == 1
    assert "FAILED (rest, status 3): .venv/bin/ruff check ." in said
    assert re.search(r"0:\d\d  FAILED", said)
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


def test_the_peers_are_installed_before_the_readme_runs_the_tests(checkout: Path) -> None:
    _, said = ci(checkout, "tests", CI_DRY_RUN="1")
    lines = [line for line in said.splitlines() if line.startswith("+ ") and "pip install" in line]
    assert ["[test,peers]" in line for line in lines] == [True, False]


WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")


def test_the_workflow_names_every_python_and_system_and_the_readmes_commands() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (job,) = yaml.safe_load(WORKFLOW)["jobs"].values()
    matrix = job["strategy"]["matrix"]
    supported = SpecifierSet(project["project"]["requires-python"])
    assert matrix["python"] == [f"3.{minor}" for minor in range(30) if f"3.{minor}" in supported]
    assert {system.partition("-")[0] for system in matrix["system"]} == {"ubuntu", "macos", "windows"}
    for command in ("pip install -q -c constraints.txt -e '.[test,peers]'", "dpbench run specs/", "python -m pytest"):
        assert command in WORKFLOW
    for command in ("ruff check .", "ruff format --check .", "mypy"):
        assert command in WORKFLOW
        assert f".venv/bin/{command}" in SCRIPT.read_text(encoding="utf-8")


def test_the_workflow_takes_no_moving_version() -> None:
    used = re.findall(r"uses: (\S+)", WORKFLOW)
    assert used
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", one) for one in used)
    (torch,) = re.findall(r"torch==\S+", WORKFLOW)
    assert torch in (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    assert not re.search(r"(ubuntu|macos|windows)-latest", WORKFLOW)
