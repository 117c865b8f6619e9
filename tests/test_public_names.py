"""Tests speak to public names; a file that speaks to an internal says in its first line which idea deserves it.

An internal is what a name with a leading underscore says it is: a module, or something within one, that a test imports,
patches, or takes from a module or class of the package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpbench

ROOT = Path(__file__).parents[1]
MARK = "Internal: "


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined() -> frozenset[str]:
    """Every name with a leading underscore that the package defines: functions, classes, constants, methods."""
    found = set()
    for path in Path(dpbench.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return frozenset(filter(private, found))


INTERNALS = defined()
PATCHING = ("setattr", "delattr", "patch", "object")  # of monkeypatch and of mock


def internals(tree: ast.Module) -> Iterator[str]:
    """What a test file imports, patches or takes of the package's internals.

    `_x` of `self` or `cls` is the test's own; so is what the package does not define (`os._exit`).
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dpbench":
            names = [*str(node.module).split("."), *(one.name for one in node.names)]
            yield from filter(private, names)
        elif isinstance(node, ast.Import):
            names = [part for one in node.names if one.name.startswith("dpbench") for part in one.name.split(".")]
            yield from filter(private, names)
        elif isinstance(node, ast.Attribute) and node.attr in INTERNALS:
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in PATCHING:
            texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            yield from (part for text in texts for part in text.split(".") if part in INTERNALS)


FILES = {
    str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "tests").rglob("*.py"))
}
SPEAKING = {name for name, tree in FILES.items() if any(internals(tree))}


@pytest.mark.parametrize("name", sorted(SPEAKING))
def test_a_file_that_speaks_to_an_internal_says_which_idea_deserves_it(name: str) -> None:
    first = (ast.get_docstring(FILES[name]) or "").partition("\n")[0]
    assert first.startswith(MARK), f"{sorted(set(internals(FILES[name])))} in {name}, whose first line is {first!r}"
    assert first.endswith(".")


@pytest.mark.parametrize("name", sorted(FILES.keys() - SPEAKING))
def test_no_other_file_says_so(name: str) -> None:
    assert not (ast.get_docstring(FILES[name]) or "").startswith(MARK)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from dpbench.clipping._jl import split", ["_jl"]),
        ("from dpbench.clipping import _jl", ["_jl"]),
        ("import dpbench.clipping._jl", ["_jl"]),
        ("atomic._place()", ["_place"]),
        ("monkeypatch.setattr(atomic, '_place', 1)", ["_place"]),
        ("monkeypatch.setattr('dpbench.store.atomic._place', 1)", ["_place"]),
        ("mock.patch('dpbench.store.atomic._place')", ["_place"]),
        ("from dpbench.store import atomic", []),
        ("os._exit(1)", []),
        ("self._place", []),
        ("from torch._C import thing", []),
    ],
)
def test_what_counts_as_speaking_to_an_internal(text: str, expected: list[str]) -> None:
    assert list(internals(ast.parse(text))) == expected
