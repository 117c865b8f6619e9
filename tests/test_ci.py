"""What CI's script makes of its stages: all commands run, a failure is told and fails, too many minutes only warn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
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
    assert re.search(r"rest               8     0:\d\d  passed", said)
    assert said.count("called dpbench") == 3  # the plan is not shown


def test_a_command_that_fails_fails_ci_and_the_others_still_run(checkout: Path) -> None:
    stand_in(checkout, "ruff", "exit 3")
    status, said = ci(checkout, "rest")
    assert status == 1
    assert "FAILED (rest, status 3): .venv/bin/ruff check ." in said
    assert re.search(r"0:\d\d  FAILED", said)
    assert said.count("called dpbench") == 3  # the plan is not shown


def test_more_minutes_than_budgeted_are_told_and_do_not_fail(checkout: Path) -> None:
    script = checkout / ".ci" / "run"
    script.write_text(script.read_text(encoding="utf-8").replace("[rest]=8", "[rest]=0"), encoding="utf-8")
    stand_in(checkout, "mypy", "sleep 1.1")
    status, said = ci(checkout, "rest")
    assert status == 0
    assert "passed, WARNING: over its budget" in said


def test_what_hangs_is_ended_with_all_that_it_started_and_takes_no_other_stage_along(checkout: Path) -> None:
    script = checkout / ".ci" / "run"
    text = script.read_text(encoding="utf-8")
    for old, short in (("60 * ALL - 60 * later", "4 + 0 * later"), ("--kill-after=20", "--kill-after=1")):
        assert text.count(old) == 1
        text = text.replace(old, short)
    script.write_text(text, encoding="utf-8")
    stand_in(checkout, "mypy", "(trap '' TERM; while :; do echo still $$; sleep 0.2; done) & wait")
    started = time.monotonic()
    status, said = ci(checkout, "rest")
    assert time.monotonic() - started < 30
    assert status == 1
    assert re.search(
        r"FAILED \(rest, ended after \d+ seconds: .* need what is left of 85 minutes\): .venv/bin/mypy", said
    )
    assert "called ruff" in said
    assert "called dpbench" not in said, "no time is left to the commands after it"
    assert said.count("FAILED (rest, ended after 0 seconds") == 4
    assert re.search(r"rest               8     0:0\d  FAILED\n$", said), "the table stands at the end"


def test_every_stage_keeps_its_budget_whatever_those_before_it_take(checkout: Path) -> None:
    """Of 85 minutes `tests` may take what is not promised to `long` and `rest`, and the last stage all that is left."""
    for name in ("python", "pip"):
        stand_in(checkout, name, "exit 0")
    stand_in(checkout, "timeout", 'shift; echo "seconds $1"')
    stand_in(checkout, "python3", "exit 0")
    budgets = dict(re.findall(r"\[(\w+)\]=(\d+)", SCRIPT.read_text(encoding="utf-8")))
    _, said = ci(checkout, "tests", "long", "rest")
    found = [int(one) for one in re.findall(r"^seconds (\d+)$", said, re.M)]
    promised = [60 * (int(budgets["long"]) + int(budgets["rest"])), 60 * int(budgets["rest"]), 0]
    expected = [60 * 85 - of for of, count in zip(promised, (2, 1, 7), strict=True) for _ in range(count)]
    assert len(found) == len(expected)
    assert all(wanted - 20 <= one <= wanted for one, wanted in zip(found, expected, strict=True))


def test_a_signal_ends_it_at_once_and_commands_still_hear_of_ctrl_c(checkout: Path) -> None:
    stand_in(checkout, "ruff", 'kill -INT $$; echo "deaf"')
    status, said = ci(checkout, "rest")
    assert (status, "deaf" in said) == (1, False)
    stand_in(checkout, "ruff", "echo waiting; sleep 30")
    path = f"{checkout / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "DPBENCH_DATA": "none"}
    command = ["bash", ".ci/run", "rest"]
    with subprocess.Popen(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        while "waiting" not in running.stdout.readline():
            pass
        running.terminate()
        assert running.wait(20) == 130


def test_budgets_are_printed_and_add_up_to_less_than_ci_may_take(checkout: Path) -> None:
    status, said = ci(checkout, CI_DRY_RUN="1")
    assert status == 0
    assert "called" not in said
    lines = [line.split() for line in said.split("stage         budget  minutes\n")[1].splitlines()]
    budgets = {stage: int(budget) for stage, budget, *_ in lines}
    assert budgets == {"tests": 15, "long": 13, "conformance": 9, "asv": 14, "rest": 8}
    assert sum(budgets.values()) < 60, "of 85 minutes: stages of a slow machine may exceed their budgets"


def test_no_such_stage(checkout: Path) -> None:
    status, said = ci(checkout, "none")
    assert (status, said) == (2, "no such stage: none; there are tests long conformance asv rest\n")


def test_the_peers_are_installed_before_the_readme_runs_the_tests(checkout: Path) -> None:
    _, said = ci(checkout, "tests", CI_DRY_RUN="1")
    lines = [line for line in said.splitlines() if line.startswith("+ ") and "pip install" in line]
    assert ["[test,peers,ray]" in line for line in lines] == [True, False]


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
