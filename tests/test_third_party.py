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
import yaml

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {"model": "own_model.md", "mechanism": "own_mechanism.md", "dataset": "own_dataset.md"}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def file_blocks(page: str) -> dict[str, str]:
    """The code blocks that begin with the name of the file they belong in, by that name."""
    texts = [*blocks(page, "python"), *blocks(page, "yaml")]
    found = ((re.match(r"# (\S+\.(?:py|yaml))\n", text), text) for text in texts)
    return {first[1]: text for first, text in found if first}


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
    specs = [name for name in files if name.endswith(".yaml")]
    runs = sum(yaml.safe_load(files[name]).get("seeds", 10) for name in specs)  # ten where the page says none
    done = dpbench("run", *specs, "--smoke", "--device", "cpu", "--allow-code", path=tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert f"{runs} of {runs} runs finished" in done.stdout
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize("kind", PAGES)
def test_an_installed_package_adds_its_entries(kind: str, tmp_path: Path) -> None:
    page = PAGES[kind]
    files = file_blocks(page)
    (points,) = [text for text in blocks(page, "toml") if "entry-points" in text]
    wheel = tmp_path / "tiny_package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        info = "tiny_package-1.0.dist-info"
        for module in (name for name in files if name.endswith(".py")):
            archive.writestr(module, files[module])
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(
            f"{info}/entry_points.txt", points.replace('project.entry-points."', "").replace('"]', "]").replace('"', "")
        )
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

    schema = json.dumps(json.loads(dpbench("schema", path=site, cwd=tmp_path).stdout))
    for name, target in re.findall(r'^(\w+) = "(.*?)"', points, re.MULTILINE):
        (spec,) = [text for file, text in files.items() if file.endswith(".yaml") and target in text]
        (tmp_path / "spec.yaml").write_text(spec.replace(f'"{target}"', name).replace(target, name), encoding="utf-8")
        assert target not in (tmp_path / "spec.yaml").read_text()
        done = dpbench("run", "spec.yaml", "--out", name, "--json", "--device", "cpu", path=site, cwd=tmp_path)
        assert done.returncode == 0, done.stderr + done.stdout
        texts = [path.read_text(encoding="utf-8") for path in (tmp_path / name / "records").glob("*.json")]
        assert len(texts) == yaml.safe_load(spec).get("seeds", 10)
        assert all(f'"name": "{name}"' in json.dumps(json.loads(text)["resolved"]) for text in texts)
        assert name in schema


def test_an_accountant_works_as_its_page_says(tmp_path: Path) -> None:
    """Asked beside another one, in a spec, and against stored enclosures: sound wherever it does not refuse."""
    page = "own_accountant.md"
    for name, text in file_blocks(page).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for command in "".join(blocks(page, "sh")).splitlines():
        arguments = command.partition("#")[0].split()[1:]
        done = dpbench(*arguments, path=tmp_path, cwd=tmp_path)
        assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads((tmp_path / "reports" / "conformance.json").read_text())
    verdicts = [line["findings"] for line in found["lines"]]
    assert sum(one.get("loose", 0) + one.get("sound", 0) for one in verdicts) > 40
    assert not any(one.get(word) for one in verdicts for word in ("unsound", "crashes", "inconsistent", "non_monotone"))
    spec = file_blocks(PAGES["mechanism"])["nesterov.yaml"].replace("my_updates:Nesterov", "sgd")
    spec = spec.replace(", parameters: {beta: 0.5}", "")
    by = spec.replace("delta: 1e-4}", 'delta: 1e-4, calibrate_with: "my_accountants:accountant"}')
    (tmp_path / "spec.yaml").write_text(by, encoding="utf-8")
    done = dpbench("plan", "spec.yaml", "--allow-code", path=tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert "SampledGaussian: ρ is known here for Gaussian mechanisms" in done.stderr + done.stdout
