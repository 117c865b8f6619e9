"""Reads specs, YAML files that say what to train, as frozen data; reports all mistakes of all files at once.

A run file names a dataset, a model, a mechanism, a privacy budget and the training; `rows`, `zip` and `grid` make
several specs of one file (`spec/points.py`). The keys are in `spec/keys.py`; `dpbench schema` prints them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpbench.catalog import advice, closest
from dpbench.errors import Problem, ProblemsError
from dpbench.spec.annotations import shown
from dpbench.spec.keys import (
    HOMES,
    KINDS,
    RUN,
    SECTIONS,
    SETTABLE,
    Budget,
    Choice,
    Printed,
    Published,
    Spec,
    Training,
)
from dpbench.spec.names import CatalogObjects
from dpbench.spec.points import CHOICES, Mistakes, expand
from dpbench.spec.reader import SpecReader
from dpbench.spec.shipped import SUFFIXES, absent, found_shipped
from dpbench.spec.trust import Trust, code_in, trust
from dpbench.spec.yaml_loader import Entry, Listing, Place, Scalar, Table, read

__all__ = ["Budget", "Choice", "Printed", "Published", "Spec", "Training", "load_specs"]

NAMING = (*CHOICES, "budget", "accountants", "grid", "zip")  # the keys whose values may name code


def load_specs(paths: Sequence[Path], allow_code: bool = False) -> tuple[Spec, ...]:
    """The specs of files and folders (searched recursively, sorted), in order; files of other kinds are skipped.

    What is no path may be the name of specs that come with dpbench, such as `quickstart` or `bu2020/table1`.

    Code that a file names is loaded only with `allow_code`, or if the user's configuration allows its module
    (`spec/trust.py`). Raises ProblemsError with all the mistakes of all the files.

    >>> load_specs([Path("specs/none.yaml")])
    Traceback (most recent call last):
    dpbench.errors.ProblemsError: specs/none.yaml: there is no such file or folder
    1 mistake found; nothing was run.
    """
    problems: list[Problem] = []
    objects, trusted = CatalogObjects(), trust(allow_code)
    points = [point for file in _files(paths, problems) for point in _load_file(file, objects, trusted, problems)]
    problems += _taken_names(points)
    if problems:
        raise ProblemsError(problems)
    return tuple(point.spec for point in points if point.spec is not None)


@dataclass(frozen=True)
class _Read:
    """A point of a file, with its spec if it is valid."""

    file: str
    place: Place
    name: str
    label: str
    spec: Spec | None


def _taken_names(points: Sequence[_Read]) -> list[Problem]:
    """Problems: points that have the name and the label of an earlier one."""
    problems: dict[tuple[str, Place], Problem] = {}
    first: dict[tuple[str, str], _Read] = {}
    for point in points:
        other = first.setdefault((point.name, point.label), point)
        if other is not point and point.name:
            what = f"{point.name!r} with the label {point.label!r}" if point.label else f"the name {point.name!r}"
            message = f"{what} is already used at {other.file}:{other.place.line}"
            place = point.place
            hint = "give the row another label" if place.path.startswith("rows[") else "choose another name"
            problem = Problem(point.file, place.line, place.column, place.path, message, hint)
            problems.setdefault((point.file, place), problem)
    return list(problems.values())


def _files(paths: Iterable[Path], problems: list[Problem]) -> list[Path]:
    files: dict[Path, Path] = {}
    for given in map(Path, paths):
        found, wrong = [given], ""
        try:
            path = found_shipped(given)
            found = [path]
            if path.is_dir():
                inside = [file for file in sorted(path.rglob("*")) if file.suffix in SUFFIXES and file.is_file()]
                found = [file for file in inside if "/." not in f"/{file.relative_to(path).as_posix()}"]
                wrong = "" if found else "no .yaml or .yml file in this folder"
            elif not path.exists():
                problems.append(absent(given))
                continue
            elif not path.is_file():
                wrong = "neither a file nor a folder"
        except OSError as error:
            wrong = f"cannot be read: {error.strerror or error}"
        if wrong:
            problems.append(Problem(str(given), 0, 0, "", wrong))
            found = []
        for file in found:
            files.setdefault(file.resolve(), file)
    return list(files.values())


def _load_file(path: Path, objects: CatalogObjects, trusted: Trust, problems: list[Problem]) -> list[_Read]:
    document = read(path)
    file, root = document.file, document.root
    kind = root.get("kind") if isinstance(root, Table) else None
    if isinstance(kind, Scalar) and kind.text in KINDS[1:]:
        return []
    mistakes = Mistakes(file)
    found: list[_Read] = []
    if isinstance(root, Table) and _is_run(root, mistakes):
        root = _corrected(root, mistakes)
        # Before anything is looked up: what a file names in vain is not imported, and nothing else of it is read.
        points = () if _refused_code(root, trusted, mistakes) else expand(root, mistakes, SETTABLE)
        reader = SpecReader(mistakes, objects)
        if points:
            reader.spec(root, None)  # values that every row or grid point overrides are checked only here
        for point in points:
            name = point.tree.entries.get("name")
            text = name.value.text if name and isinstance(name.value, Scalar) else ""
            place = point.place if point.in_row or not name else name.key
            found.append(_Read(file, place, text, point.label, reader.spec(point.tree, point)))
    elif root is not None and not isinstance(root, Table):
        mistakes.add(root.place, f"found {shown(root)}; expected `key: value` lines, the first `kind: run`")
    wrong = (*document.problems, *mistakes.problems(len(found)))
    assert wrong or all(point.spec for point in found), "a point without a spec and without a reason"
    problems += wrong
    return found


def _refused_code(root: Table, trusted: Trust, mistakes: Mistakes) -> bool:
    """Report the code that a file names and may not; whether there is any."""
    rows = root.get("rows")
    tables = [root, *(rows.items if isinstance(rows, Listing) else ())]
    nodes = [entry.value for one in tables if isinstance(one, Table) for k, entry in one.entries.items() if k in NAMING]
    found = [(one, refusal) for node in nodes for one in code_in(node) if (refusal := trusted.refusal(one.text))]
    for one, (message, hint) in found:
        mistakes.add(one.place, message, hint)
    return bool(found)


def _is_run(root: Table, mistakes: Mistakes) -> bool:
    """Whether the file is, or is probably meant as, a run file; reports an absent or unknown kind."""
    kind = root.entries.get("kind")
    if kind is None:
        mistyped = any(closest(key, ["kind"]) for key in root.entries)
        if not mistyped:
            message = f"the key 'kind' is missing; expected one of {', '.join(KINDS)}"
            mistakes.add(root.place, message, "add `kind: run`")
        return mistyped or len(set(root.entries) & set(RUN)) > 1
    text = kind.value.text if isinstance(kind.value, Scalar) else ""
    if text == "run":
        return True
    expected = f"found {shown(kind.value)}; expected one of {', '.join(KINDS)}"
    mistakes.add(kind.value.place, expected, advice(text, KINDS))
    return closest(text, KINDS) in ("run", "") and len(set(root.entries) & set(RUN)) > 2


def _corrected(root: Table, mistakes: Mistakes) -> Table:
    """Report the unknown keys of the file and of its rows; misspelt sections are corrected."""
    corrected = _known_keys(root, RUN, mistakes)
    rows = corrected.entries.get("rows")
    if rows is None or not isinstance(rows.value, Listing):
        return corrected
    known = ("label", *RUN)
    items = [_known_keys(item, known, mistakes) if isinstance(item, Table) else item for item in rows.value.items]
    rows = Entry(rows.key, Listing(rows.value.place, tuple(items)))
    return Table(corrected.place, {**corrected.entries, "rows": rows})


def _known_keys(table: Table, known: Iterable[str], mistakes: Mistakes) -> Table:
    names = tuple(known)
    entries: dict[str, Entry] = {}
    for key, entry in table.entries.items():
        if key in names:
            entries[key] = entry
        elif "." in key and key.split(".")[0] in names:
            mistakes.excuse(key)
            section, _, rest = key.partition(".")
            hint = f"write `{section}: {{{rest}: ...}}`; dots are for grid and zip"
            mistakes.add(entry.key, f"unknown key {key!r}", hint)
        else:
            meant = mistakes.unknown_key(entry.key, key, names, "", HOMES)
            if meant in (*SECTIONS, *CHOICES, "grid", "zip", "rows") and meant not in table.entries:
                entries[meant] = entry
    return Table(table.place, entries)
