"""Somebody else's models, mechanisms and datasets: the how-to pages, done to the letter, from an installed package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {"model": "own_model.md", "mechanism": "own_mechanism.md", "dataset": "own_dataset.md"}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def file_blocks(page: str) -> dict[str, str]:
    """The first code block of each language that begins with the name of the file it belongs in."""
    found: dict[str, str] = {}
    for text in [*blocks(page, "python"), *blocks(page, "yaml")]:
        first = re.match(r"# (\S+\.(?:py|yaml))\n", text)
        if first and Path(first[1]).suffix not in {Path(name).suffix for name in found}:
            found[first[1]] = text
    return found


def dpbench(*arguments: str, path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path)}
    command = [sys.executable, "-m", "dpbench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False, timeout=300)


@pytest.mark.parametrize("kind", PAGES)
def test_the_page_works_as_written(kind: str, tmp_path: Path) -> None:
    files = file_blocks(PAGES[kind])
    assert {Path(name).suffix for name in files} == {".py", ".yaml"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (spec,) = [name for name in files if name.endswith(".yaml")]
    done = dpbench("run", spec, "--smoke", "--device", "cpu", path=tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "1 of 1 runs finished" in done.stdout
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize("kind", PAGES)
def test_an_installed_package_adds_its_entry(kind: str, tmp_path: Path) -> None:
    page = PAGES[kind]
    files = file_blocks(page)
    (module,) = [name for name in files if name.endswith(".py")]
    (points,) = [text for text in blocks(page, "toml") if "entry-points" in text]
    group, name, target = re.search(r'entry-points\."(.*?)"\]\n(\w+) = "(.*?)"', points).groups()  # type: ignore[union-attr]
    wheel = tmp_path / "tiny_package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        info = "tiny_package-1.0.dist-info"
        archive.writestr(module, files[module])
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", f"[{group}]\n{name} = {target}\n")
        archive.writestr(f"{info}/RECORD", "")
    site = tmp_path / "site"
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
    subprocess.run(install, check=True, capture_output=True, timeout=120)

    (spec,) = [text for file, text in files.items() if file.endswith(".yaml")]
    (tmp_path / "spec.yaml").write_text(spec.replace(f'"{target}"', name).replace(target, name), encoding="utf-8")
    assert target not in (tmp_path / "spec.yaml").read_text()
    done = dpbench("run", "spec.yaml", "--out", "out", "--json", "--device", "cpu", path=site, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    (record,) = (tmp_path / "out" / "records").glob("*.json")
    resolved = json.loads(record.read_text())["resolved"]
    assert resolved[kind]["name"] == name
    schema = json.loads(dpbench("schema", path=site, cwd=tmp_path).stdout)
    assert name in json.dumps(schema)
