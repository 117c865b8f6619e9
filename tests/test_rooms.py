"""The walls of the house: each room imports only rooms above it, and no module imports itself by way of others.

Imports inside functions and for type checkers count. docs/architecture.md shows the rooms.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpbench

ROOT = Path(dpbench.__path__[0])
ROOMS = """
    atomic catalog errors events randomness tasks verdicts
    step
    clipping models datasets
    spec
    privacy
    mechanisms
    references
    store
    plan
    training
    judging
    conformance
    reporting
    job
    cli
    __main__
"""  # from the ground up: rooms of one line do not import each other
FLOOR = {room: number for number, line in enumerate(ROOMS.split("\n")) for room in line.split()}
GROUND = FLOOR["errors"]


def modules() -> dict[str, Path]:
    """Every module but the package's own face, which loads its functions when they are first used."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if name:
            found[name] = path
    return found


MODULES = modules()


def imported(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: a relative import"
            inside = [f"{node.module}.{one.name}" for one in node.names]
            names = [name if name.removeprefix("dpbench.") in MODULES else node.module for name in inside]
        else:
            continue
        yield from (name.removeprefix("dpbench.") for name in names if name.startswith("dpbench."))


GRAPH = {name: set(imported(path)) for name, path in MODULES.items()}


def test_every_module_is_found_and_has_a_room() -> None:
    assert len(MODULES) > 200
    assert {name.partition(".")[0] for name in MODULES} == set(FLOOR)


@pytest.mark.parametrize("name", MODULES)
def test_a_room_imports_only_rooms_above_it(name: str) -> None:
    room = name.partition(".")[0]
    for other in GRAPH[name]:
        its = other.partition(".")[0]
        assert its == room or FLOOR[its] < FLOOR[room] or FLOOR[its] == FLOOR[room] == GROUND, f"{name} imports {other}"


def test_references_stand_apart() -> None:
    found = {other for name in GRAPH if name.startswith("references") for other in GRAPH[name]}
    assert {other for other in found if not other.startswith("references")} == {"events"}


def test_planted_faults_stand_apart() -> None:
    """Mechanisms with something wrong are for those who judge: nothing that plans, trains or reports imports them."""
    users = {name for name, others in GRAPH.items() if any(other.startswith("judging.faults") for other in others)}
    assert users
    assert all(name.startswith("judging.") for name in users)


def test_no_module_imports_itself_by_way_of_others() -> None:
    left = {name: set(others) & set(GRAPH) for name, others in GRAPH.items()}
    while leaves := [name for name, others in left.items() if not others & set(left)]:
        for name in leaves:
            del left[name]
    assert not left, f"in a circle, or importing one: {sorted(left)}"


def test_few_modules_stand_outside_of_folders_and_none_is_deep() -> None:
    assert sum(path.parent == ROOT for path in MODULES.values()) <= 10
    assert max(len(path.relative_to(ROOT).parts) for path in MODULES.values()) <= 4  # three folders and the file


def test_no_module_has_the_name_of_a_function_that_the_package_exports() -> None:
    assert not {name.rpartition(".")[2] for name in MODULES} & (set(dpbench.__all__) - {"__version__"})


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for path in MODULES.values()}
    assert all((folder / "__init__.py").exists() for folder in folders)
