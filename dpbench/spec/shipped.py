"""The specs that come with dpbench, by name: `quickstart` is a folder of them, `bu2020/table1` one file."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from dpbench.catalog import closest
from dpbench.errors import Problem

_PACKAGE = Path(__file__).resolve().parents[1]
SUFFIXES = (".yaml", ".yml")


@cache
def shipped_folder() -> Path:
    """Where they lie: inside an installed package; for a checkout, in the folder `specs` beside the package."""
    inside = _PACKAGE / "specs"
    return inside if inside.is_dir() else _PACKAGE.parent / "specs"


@cache
def shipped() -> dict[str, Path]:
    """Every folder and every file by its name.

    >>> shipped()["bu2020/table1"].name
    'table1.yaml'
    """
    top = shipped_folder()
    found = [path for path in sorted(top.rglob("*")) if path.is_dir() or path.suffix in SUFFIXES]
    return {path.relative_to(top).with_suffix("").as_posix(): path for path in found}


def groups() -> tuple[str, ...]:
    """The names of the folders."""
    return tuple(name for name in shipped() if "/" not in name)


def found_shipped(path: Path) -> Path:
    """The shipped folder or file of that name, where nothing of that name lies in the working folder; else `path`."""
    if path.is_absolute() or path.exists():
        return path
    name = path.as_posix()
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return shipped().get(name, path)


def absent(path: Path) -> Problem:
    """The mistake: a path where nothing is, and what may have been meant."""
    close = closest(path.with_suffix("").as_posix(), shipped())
    if close:
        hint = f"did you mean {close}, which comes with dpbench?"
    elif path == Path("specs"):
        hint = "`dpbench init` makes a folder specs with what comes with dpbench"
    else:
        hint = f"with dpbench come {', '.join(groups())}" if path.as_posix().isidentifier() else ""
    return Problem(str(path), 0, 0, "", "there is no such file or folder", hint)


def own_name(file: str) -> str:
    """A shipped file as `specs/...` wherever dpbench is installed; others as they are.

    >>> own_name(str(shipped()["bu2020/table1"])), own_name("mine.yaml")
    ('specs/bu2020/table1.yaml', 'mine.yaml')
    """
    path, top = Path(file).resolve(), shipped_folder()
    return f"specs/{path.relative_to(top).as_posix()}" if path.is_relative_to(top) else file
