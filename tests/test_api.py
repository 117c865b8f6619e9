"""docs/api.md lists the public names: each exists, no public module has another, and no page imports another."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import dpbench

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
LISTED = {
    module: re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE)
    for module, text in re.findall(r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
NAMES = {module: {name for name, _ in rows} for module, rows in LISTED.items()}


def defined(module: str) -> set[str]:
    """The module's `__all__`; without one, what its file defines without a leading underscore (imports aside)."""
    loaded = importlib.import_module(module)
    if hasattr(loaded, "__all__"):
        return set(loaded.__all__)
    found = set()
    for node in ast.parse(Path(str(loaded.__file__)).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return {name for name in found if not name.startswith("_")}


@pytest.mark.parametrize("module", LISTED)
def test_a_module_has_the_names_that_are_listed_and_no_other(module: str) -> None:
    assert NAMES[module] == defined(module)
    loaded = importlib.import_module(module)
    assert all(hasattr(loaded, name) for name in NAMES[module])
    assert not [part for part in module.split(".") if part.startswith("_")]


def test_every_line_says_what_the_name_is_for_once() -> None:
    assert sum(map(len, LISTED.values())) > 150
    assert PAGE.count("\n| `") == sum(map(len, LISTED.values()))  # no row has another form
    for rows in LISTED.values():
        assert len({name for name, _ in rows}) == len(rows)
        assert all(about.endswith(".") and len(about) < 130 for _, about in rows)


def imported(text: str) -> set[tuple[str, str]]:
    found = re.findall(r"from (dpbench[\w.]*) import ([\w, ]+)", text)
    return {(module, name.strip()) for module, names in found for name in names.split(",") if name.strip()}


def test_the_documentation_imports_public_names_alone() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    used = set().union(*(imported(page.read_text(encoding="utf-8")) for page in pages))
    assert len(used) > 25
    assert not {(module, name) for module, name in used if name not in NAMES.get(module, set())}


def test_the_face_of_the_package_is_listed() -> None:
    assert NAMES["dpbench"] == set(dpbench.__all__)
