"""The parts of the long tests: each test is in one of them, and seven days in a row run them all."""

from __future__ import annotations

import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests.parts import PARTS, part_of, todays

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


def test_a_part_is_run_beside_all_other_tests_and_auto_takes_todays(project: Path) -> None:
    ids = [f"test_some.py::test_long[{number}]" for number in range(30)]
    parts = [{one for one in ids if part_of(one) == part} for part in range(PARTS)]
    assert all(parts)
    quick = {f"test_some.py::test_quick[{number}]" for number in range(5)}
    assert collected(project, "-m", "long or not long", "--part", "2") == parts[2] | quick
    before = todays()
    assert collected(project, "-m", "long", "--part", "auto") in (parts[before], parts[todays()])  # midnight may pass


@pytest.mark.parametrize("start", [date(2026, 11, 23), date(2026, 12, 30), date(2028, 2, 28), date(2028, 12, 31)])
def test_seven_days_in_a_row_take_all_parts(start: date) -> None:
    assert {todays(start + timedelta(days=day)) for day in range(PARTS)} == set(range(PARTS))


def test_a_part_is_the_same_everywhere_and_about_a_seventh() -> None:
    ids = [f"tests/test_a.py::test_b[{number}]" for number in range(7000)]
    assert [part_of(one) for one in ids[:6]] == [1, 3, 2, 6, 2, 5]
    sizes = [sum(part_of(one) == part for one in ids) for part in range(PARTS)]
    assert min(sizes) > 900
