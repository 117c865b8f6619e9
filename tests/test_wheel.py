"""The wheel: it holds the package and all specs, leaves nothing in the checkout, and works in an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEFT_BY_PYTHON = {"__pycache__"}


def built(target: str, checkout: Path, folder: Path) -> Path:
    """What the build backend makes of a checkout; no network."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl" if target != "sdist" else "*.tar.gz")
    return path


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def files(folder: Path) -> set[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in found if not LEFT_BY_PYTHON & set(path.parts)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def test_it_holds_the_package_and_all_specs_and_nothing_else(wheel: Path) -> None:
    package = {f"dpbench/{name}" for name in files(ROOT / "dpbench")}
    specs = {f"dpbench/specs/{name}" for name in files(ROOT / "specs")}
    assert len(package) > 250
    assert len(specs) > 30
    assert names(wheel) == package | specs


def test_a_build_leaves_nothing_in_the_checkout(wheel: Path) -> None:  # noqa: ARG001
    assert not [*ROOT.glob("build"), *ROOT.glob("dist"), *ROOT.glob("*.egg-info")]


def test_the_source_archive_gives_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(built("sdist", ROOT, tmp_path)) as archive:
        trusted = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python before 3.11.4 has none
        archive.extractall(tmp_path / "source", **trusted)
    (checkout,) = (tmp_path / "source").iterdir()
    (tmp_path / "again").mkdir()
    assert names(built("wheel", checkout, tmp_path / "again")) == names(wheel)


def test_an_editable_installation_copies_nothing(tmp_path: Path) -> None:
    """Neither modules nor specs: those of the checkout are used."""
    assert names(built("wheel:editable", ROOT, tmp_path)) == {"_dpbench.pth"}


@pytest.mark.long
def test_the_verbs_work_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run(install, check=True)
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}

    def dpbench(*arguments: str) -> str:
        command = [sys.executable, "-m", "dpbench", *arguments]
        done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    where = [sys.executable, "-c", "import dpbench; print(dpbench.__file__)"]
    found = subprocess.run(where, cwd=empty, env=environment, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()).is_relative_to(site)
    assert "quickstart-noisy-sgd" in dpbench("plan", "quickstart")
    assert "bu2020-table1" in dpbench("plan", "bu2020/table1", "--device", "cpu", "--smoke", "--seeds", "1")
    dpbench("run", "quickstart", "--seeds", "1", "--only", "*noisy-sgd*", "--quiet")
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (empty / "reports" / "records").glob("*.json")]
    assert {record["context"]["file"] for record in records} == {"specs/quickstart/noisy_sgd.yaml"}
    assert {record["environment"]["commit"] for record in records} == {None}
    assert (empty / "reports" / "report.html").is_file()
    assert "every verdict is the expected one" in dpbench(
        "verify", "--paper", "bu2020", "--kind", "number", "--workers", "1"
    )
    dpbench("conform", "--accountant", "analytic_gaussian")
    assert "sound" in (empty / "reports" / "conformance.json").read_text(encoding="utf-8")
    dpbench("init")
    assert {f"dpbench/specs/{name}" for name in files(empty / "specs")} == {
        name for name in names(wheel) if name.startswith("dpbench/specs/")
    }
    assert "quickstart-noisy-sgd" in dpbench("plan", "specs/quickstart")
    assert "dp_sgd_jl" in dpbench("list", "mechanisms")
    assert "digits" in dpbench("data", "list")
    json.loads(dpbench("schema"))
    assert {path.name for path in empty.iterdir()} == {"reports", "specs"}
