"""The thirds of the long tests: each test is in one of them, and three days in a row run them all."""

from __future__ import annotations

import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests.thirds import THIRDS, third_of, todays

ROOT = Path(__file__).parents[1]
SOME = """
import pytest

@pytest.mark.long
@pytest.mark.parametrize("number", range(30))
def test_long(number): pass

@pytest.mark.parametrize("number", range(5))
def test_quick(number): pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of tests with this project's options and settings."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_some.py").write_text(SOME)
    return tmp_path


def collected(project: Path, *arguments: str) -> set[str]:
    """What pytest would run."""
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(project), "-n", "0", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *settings, *arguments, str(project)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_the_thirds_are_disjoint_and_complete_and_auto_takes_todays(project: Path) -> None:
    parts = [collected(project, "-m", "long", "--third", str(third)) for third in range(THIRDS)]
    assert all(parts)
    assert sum(map(len, parts)) == len(set().union(*parts)) == 30
    before = todays()
    assert collected(project, "-m", "long", "--third", "auto") in (parts[before], parts[todays()])  # midnight may pass


def test_other_tests_run_whatever_the_third(project: Path) -> None:
    assert len(collected(project, "--third", "0")) == 5


@pytest.mark.parametrize("start", [date(2026, 11, 23), date(2026, 12, 30), date(2028, 2, 28), date(2028, 12, 31)])
def test_three_days_in_a_row_take_all_thirds(start: date) -> None:
    assert {todays(start + timedelta(days=day)) for day in range(THIRDS)} == set(range(THIRDS))


def test_a_third_is_the_same_everywhere_and_about_a_third() -> None:
    ids = [f"tests/test_a.py::test_b[{number}]" for number in range(3000)]
    assert [third_of(one) for one in ids[:6]] == [1, 1, 2, 2, 2, 2]
    sizes = [sum(third_of(one) == third for one in ids) for third in range(THIRDS)]
    assert min(sizes) > 900
