"""What is pinned: every version that an installation takes, with hashes for one from wheels, for every Python."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
PYTHONS = ("3.11", "3.12", "3.13")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def pins(text: str) -> dict[str, str]:
    """Version by name, of lines `name==version`."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


CONSTRAINTS = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


SYSTEMS = {
    "here": {},
    "windows": {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt", "platform_machine": "AMD64"},
    "macos": {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix", "platform_machine": "arm64"},
}


def closure(texts: list[str], system: str = "here") -> Iterator[str]:
    """The names of what some requirements need on a system, directly or not, by the metadata of what is installed."""
    ahead, seen = [Requirement(text) for text in texts], set()
    while ahead:
        one = ahead.pop()
        name = canonicalize_name(one.name)
        if (name, *sorted(one.extras)) in seen:
            continue
        seen.add((name, *sorted(one.extras)))
        yield name
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed here
        for need in map(Requirement, needs):
            where = [{**SYSTEMS[system], "extra": extra} for extra in one.extras or {""}]
            if need.marker is None or any(map(need.marker.evaluate, where)):
                ahead.append(need)


def test_the_supported_pythons_are_those_of_the_project() -> None:
    supported = SpecifierSet(PROJECT["project"]["requires-python"])
    assert [f"3.{minor}" for minor in range(30) if f"3.{minor}" in supported] == list(PYTHONS)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_every_requirement_is_pinned_to_a_version_that_it_allows(extra: str, system: str) -> None:
    texts = EXTRAS[extra] if extra else PROJECT["project"]["dependencies"]
    for text in [*texts, *PROJECT["build-system"]["requires"]]:
        one = Requirement(text)
        assert CONSTRAINTS[canonicalize_name(one.name)] in one.specifier, text
    assert set(closure(texts, system)) <= set(CONSTRAINTS)


def test_the_lock_has_the_same_versions_and_all_that_dpbench_needs_here() -> None:
    locked = pins(LOCK)
    assert locked.items() <= CONSTRAINTS.items()
    for system in SYSTEMS:
        assert set(closure(PROJECT["project"]["dependencies"], system)) <= set(locked)
    assert not set(locked) & {"pytest", "ruff", "dpbench"}


def test_every_line_of_the_lock_has_hashes() -> None:
    blocks = re.split(r"\n(?=[a-z0-9])", LOCK.partition("\n")[2])
    blocks = [block for block in blocks if not block.startswith("#")]
    assert len(blocks) == len(pins(LOCK))
    assert all(HASH.search(block) for block in blocks)


@pytest.mark.long
@pytest.mark.parametrize("python", PYTHONS)
def test_pip_finds_wheels_of_the_pinned_versions_for(python: str, tmp_path: Path) -> None:
    """Tests and peers beside each other; from metadata alone, without a download of packages. Needs an index."""
    pip = [sys.executable, "-m", "pip"]
    probe = subprocess.run(
        [*pip, "download", "-q", "--no-deps", "-d", str(tmp_path), "idna"], capture_output=True, check=False
    )
    if probe.returncode:
        pytest.skip("no package index answers")
    command = [*pip, "install", "--dry-run", "-q", "--python-version", python, "--only-binary=:all:"]
    command += ["--target", str(tmp_path), "-c", "constraints.txt", ".[test,peers]"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
