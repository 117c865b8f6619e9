"""Expands the rows x zip x grid of a run file into one tree per point, before validation.

A value keeps its position in the file (`rows[2].training.clip_norm`, `grid.budget.epsilon[1]`), so that a mistake in a
point is reported once, where it can be corrected.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpbench.catalog import STAGES, advice, closest, same_word
from dpbench.errors import Problem
from dpbench.spec.annotations import Slot, fit, shown
from dpbench.spec.yaml_loader import Entry, Listing, Node, Place, Scalar, Table, plain

MOST_RUNS = 10_000  # settings times seeds, of a file and of a plan
SEEDS = tuple(range(10))  # where a file says none: a number without its deviation over seeds shows little
CHOICES = ("dataset", "model", "mechanism")
NOT_IN_ROWS = ("kind", "name", "grid", "zip", "rows")


class Mistakes:
    """The mistakes of one file; one that occurs in several points is kept once."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: dict[tuple[Place, str], Problem] = {}
        self._missing: dict[tuple[str, str], dict[int, tuple[Place, Place | None, str, str]]] = {}
        self._excused: set[str] = set()

    def add(self, place: Place, message: str, hint: str = "", kind: str = "") -> None:
        """Report a mistake. Later ones of the same kind (default: the same message) at the same place are dropped."""
        problem = Problem(self.file, place.line, place.column, place.path, message, hint)
        self._found.setdefault((place, kind or message), problem)

    def values(
        self,
        table: Table,
        slots: Mapping[str, Slot],
        path: str,
        point: Point | None,
        *,
        homes: Mapping[str, str] | None = None,
        what: str = "key",
        others: bool = False,
    ) -> dict[str, Any] | None:
        """The values of a mapping by the names of its slots; None if one does not fit, is unknown or missing.

        `path` is that of the mapping in a run; without a `point` absent keys are not reported; `others` allows keys
        that are no slots; `homes` gives the mapping to which other keys belong.
        """
        found: dict[str, Any] = {}
        right = True
        for name, entry in table.entries.items():
            slot = slots.get(name)
            if slot is not None:
                fits, found[slot.name] = self._fit(slot, entry.value)
                right = right and fits
            elif others:
                found[name] = plain(entry.value)
            else:
                self.unknown_key(entry.key, name, slots, path, homes or {}, what)
                right = False
        for name, slot in slots.items():
            if slot.required and name not in table.entries:
                right = False
                if point is not None:
                    whole = f"{path}.{name}" if path else name
                    self.missing(point, table.place, whole, f"is missing; expected {slot.expected}")
        return found if right else None

    def _fit(self, slot: Slot, node: Node) -> tuple[bool, Any]:
        try:
            value, misfits = fit(slot, node)
        except TypeError as error:  # no YAML value can fit
            self.add(node.place, str(error))
            return False, None
        for place, message, hint in misfits:
            self.add(place, message, hint, "misfit")
        return not misfits, value

    def without_repeats(self, node: Node) -> tuple[Node, ...]:
        """The distinct items of a list (none of other nodes); reports duplicates."""
        kept: dict[str, Node] = {}
        for item in node.items if isinstance(node, Listing) else ():
            if kept.setdefault(repr(plain(item)), item) is not item:
                self.add(item.place, f"{shown(item)} stands twice in this list", "delete one of the two")
        return tuple(kept.values())

    def unknown_key(
        self, key: Place, name: str, known: Iterable[str], within: str, homes: Mapping[str, str], what: str = "key"
    ) -> str:
        """Report an unknown key; returns the key that was probably meant, or "".

        `within` is the path of the mapping in a run; `homes` gives the mapping to which other keys belong.
        """
        names = tuple(known)
        close = "" if name in homes else closest(name, names)
        if close:
            hint = f"did you mean {close!r}?"
            self.excuse(f"{within}.{close}" if within else close)
        elif meant := name if name in homes else same_word(name, homes):
            hint = f"it belongs under {homes[meant]!r}" if homes[meant] else "it belongs at the top of the file"
            hint = hint if meant == name else f"did you mean {meant!r}? {hint}"
            self.excuse(f"{homes[meant]}.{meant}" if homes[meant] else meant)
        elif names:
            hint = advice(name, names)
        else:
            hint = f"there is no {what} to set here"
        self.add(key, f"unknown {what} {name!r}", hint, "unknown")
        return close

    def excuse(self, path: str) -> None:
        """The value at this path of a run is wrong: do not also report that it is missing."""
        self._excused.add(path)

    def missing(
        self, point: Point, within: Place, path: str, message: str, hint: str = "", also: tuple[str, ...] = ()
    ) -> None:
        """Report that `path` is absent from a point; `within` is the mapping that it belongs to.

        Not reported if one of the paths `also` is present, even with a wrong value.
        """
        if not {path, *also, ""} & self._excused:
            row = point.place if point.in_row else None
            self._missing.setdefault((path, message), {})[point.number] = (within, row, message, hint)

    def problems(self, points: int) -> tuple[Problem, ...]:
        """All mistakes; what is missing in some rows only is reported at these rows."""
        for (path, _), occurrences in self._missing.items():
            for within, row, message, hint in occurrences.values():
                key = path.rpartition(".")[2]
                if row is not None and len(occurrences) < points and not within.path.startswith("rows["):
                    place = replace(row, path=row.under(path))
                else:
                    place = replace(within, path=within.under(key))
                self.add(place, message, hint)
        self._missing.clear()
        return tuple(sorted(self._found.values()))


@dataclass(frozen=True)
class Point:
    """One setting: the tree of a run without grid, zip and rows, its label, and its position.

    `place` is that of the row (`in_row`), else of the file's first key.
    """

    number: int
    tree: Table
    label: str
    place: Place
    in_row: bool


@dataclass(frozen=True)
class _Axis:
    """A dotted path and the values that it takes."""

    path: str
    key: Place
    values: tuple[Node, ...]


_Row = tuple[str, Table]  # its label and what it changes


def expand(root: Table, mistakes: Mistakes, settable: Sequence[str]) -> tuple[Point, ...]:
    """The points of a file, rows outermost, then zip, then the grid's paths in their order.

    `settable` lists the dotted paths that grid and zip may set, besides `model.parameters.x` and the like. Mistakes in
    grid, zip and rows are reported; the rest is expanded, so that other mistakes are found too.
    """
    base = Table(root.place, {key: entry for key, entry in root.entries.items() if key not in ("grid", "zip", "rows")})
    rows = _rows(root, mistakes)
    zipped = _axes(root, "zip", mistakes, settable)
    lengths = {len(axis.values) for axis in zipped}
    if len(lengths) > 1:
        counts = ", ".join(f"{axis.path} has {len(axis.values)}" for axis in zipped)
        mistakes.add(root.entries["zip"].key, f"its lists differ in length: {counts}; expected equal lengths")
    together = min(lengths, default=1)
    grid = _axes(root, "grid", mistakes, settable)
    _report_conflicts(rows, zipped, grid, mistakes)
    cells = together * math.prod(len(axis.values) for axis in grid)
    seeds = [_seed_count(tree, root) for tree in ([row for _, row in rows] or [root])]
    if max(cells * sum(seeds), cells * len(seeds)) > MOST_RUNS:
        counted = f"{len(seeds) * cells:,} settings, with their seeds for {cells * sum(seeds):,} runs"
        hint = "split it" if any(tree.get("seeds") for tree in (root, *(row for _, row in rows))) else "write seeds: 1"
        mistakes.add(root.place, f"the file stands for {counted}; expected at most {MOST_RUNS:,}", hint)
        rows, grid, together = rows[:1], [replace(axis, values=axis.values[:1]) for axis in grid], 1
    return tuple(_points(base, rows, zipped, together, grid, mistakes))


def _seed_count(tree: Table, root: Table) -> int:
    """How many seeds a row has, its own, the file's or the default ten; 1 where that is no number and no list."""
    seeds = tree.get("seeds") or root.get("seeds")
    if seeds is None:
        return len(SEEDS)
    if isinstance(seeds, Listing):
        return len(seeds.items)
    return min(seeds.value, MOST_RUNS) if isinstance(seeds, Scalar) and type(seeds.value) is int else 1


def _points(
    base: Table, rows: list[_Row], zipped: list[_Axis], together: int, grid: list[_Axis], mistakes: Mistakes
) -> Iterator[Point]:
    varying = [axis.path for axis in (*zipped, *grid) if len(axis.values) > 1]
    ends = [path.rpartition(".")[2] for path in varying]
    names = {path: end if ends.count(end) == 1 else path for path, end in zip(varying, ends, strict=True)}
    cells = itertools.product(range(together), *(range(len(axis.values)) for axis in grid))
    whole: list[tuple[int, _Row | None]] = [*enumerate(rows, 1)] or [(0, None)]
    for number, ((place, row), (step, *cell)) in enumerate(itertools.product(whole, cells)):
        tree = merge(base, row[1]) if row else base
        chosen = [*((axis, step) for axis in zipped), *zip(grid, cell, strict=True)]
        for axis, index in sorted(chosen, key=lambda item: item[0].path.count(".")):
            tree = _set(tree, axis.path.split("."), axis.key, axis.values[index], mistakes)
        words = [f"{names[axis.path]}={value_text(axis.values[index])}" for axis, index in chosen if axis.path in names]
        if row and (row[0] or len(rows) > 1 or varying):
            words.insert(0, row[0] or f"row {place}")
        yield Point(number, tree, ", ".join(words), row[1].place if row else base.place, row is not None)


def merge(base: Table, over: Table, path: str = "") -> Table:
    """`base` updated with the keys of `over`, recursively; `path` is the path of both.

    A dataset, model, mechanism or stage with a `name` in `over` replaces the one in `base` with its parameters.
    """
    entries = dict(base.entries)
    for key, entry in over.entries.items():
        old, new = base.get(key), entry.value
        here = f"{path}.{key}" if path else key
        choice = _is_choice(here)
        if isinstance(new, Table) and choice and isinstance(old, Scalar):
            old = Table(new.place, {"name": Entry(old.place, old)})
        if isinstance(new, Table) and isinstance(old, Table) and not (choice and "name" in new.entries):
            entry = Entry(base.entries[key].key, merge(old, new, here))
        entries[key] = entry
    return Table(base.place, entries)


def _is_choice(path: str) -> bool:
    """Whether this path may have a name instead of a mapping with name and parameters."""
    parts = path.split(".")
    return path in CHOICES or (len(parts) == 3 and parts[:2] == ["mechanism", "parameters"] and parts[2] in STAGES)


def _set(tree: Table, parts: list[str], key: Place, value: Node, mistakes: Mistakes, done: str = "") -> Table:
    first, *rest = parts
    if not rest:
        return Table(tree.place, {**tree.entries, first: Entry(key, value)})
    path = f"{done}.{first}" if done else first
    old = tree.entries.get(first)
    if old is None:
        inside = Table(replace(key, path=path))
    elif isinstance(old.value, Table):
        inside = old.value
    elif _is_choice(path) and isinstance(old.value, Scalar) and isinstance(old.value.value, str):
        inside = Table(old.value.place, {"name": Entry(old.value.place, old.value)})
    else:
        at = old.value.place.line
        message = f"cannot be set: {path} is {shown(old.value)} (line {at}); expected a mapping there"
        hint = f"write {path} as a mapping, or delete this path"
        if (path, getattr(old.value, "value", None)) == ("budget", "none"):
            hint = "put the row without privacy into a file of its own, without this path"
        mistakes.add(key, message, hint)
        return tree
    changed = _set(inside, rest, key, value, mistakes, path)
    return Table(tree.place, {**tree.entries, first: Entry(old.key if old else changed.place, changed)})


def _rows(root: Table, mistakes: Mistakes) -> list[_Row]:
    written = root.get("rows")
    if written is None:
        return []
    if not isinstance(written, Listing) or not written.items:
        mistakes.add(written.place, f"found {shown(written)}; expected a list of mappings, one for each row")
        mistakes.excuse("")
        return []
    rows = []
    for item in written.items:
        if not isinstance(item, Table):
            mistakes.add(item.place, f"found {shown(item)}; expected a mapping of what this row changes")
            mistakes.excuse("")
            continue
        label = ""
        entries = dict(item.entries)
        if "label" in entries:
            given = entries.pop("label").value
            label = given.text.strip() if isinstance(given, Scalar) and given.value is not None else ""
            if not label or not label.isprintable():
                mistakes.add(given.place, f"found {shown(given)}; expected one line of text")
        for key in [key for key in entries if key in NOT_IN_ROWS]:
            hint = "name a row with `label`" if key == "name" else "write it beside rows"
            mistakes.add(entries.pop(key).key, f"{key!r} cannot stand in a row", hint)
        rows.append((label, Table(item.place, entries)))
    return rows


def _axes(root: Table, kind: str, mistakes: Mistakes, settable: Sequence[str]) -> list[_Axis]:
    written = root.get(kind)
    if written is None:
        return []
    if not isinstance(written, Table) or not written.entries:
        expected = "expected a mapping from dotted paths to lists, such as `budget.epsilon: [1, 3]`"
        mistakes.add(written.place, f"found {shown(written)}; {expected}")
        mistakes.excuse("")
        return []
    axes = []
    for path, entry in written.entries.items():
        if not _known_path(path, entry.key, settable, mistakes):
            continue
        values = entry.value
        if not isinstance(values, Listing) or not values.items:
            hint = f"write [{values.text}]" if isinstance(values, Scalar) and values.value is not None else ""
            mistakes.add(values.place, f"found {shown(values)}; expected a list of values", hint)
            mistakes.excuse(path)
            continue
        items = mistakes.without_repeats(values) if kind == "grid" else values.items
        axes.append(_Axis(path, entry.key, items))
    return axes


def _known_path(path: str, key: Place, settable: Sequence[str], mistakes: Mistakes) -> bool:
    parts = path.split(".")
    if path in settable or (len(parts) == 3 and parts[0] in CHOICES and parts[1] == "parameters" and parts[2]):
        return True
    if len(parts) == 5 and _is_choice(".".join(parts[:3])) and parts[3] == "parameters" and parts[4]:
        return True
    if len(parts) == 2 and parts[0] in CHOICES:
        meant = parts[0] if parts[1] == "name" else f"{parts[0]}.parameters.{parts[1]}"
    else:
        same_end = (known for known in settable if known.rpartition(".")[2] == parts[-1])
        end = same_word(parts[-1], [known.rpartition(".")[2] for known in settable])
        meant = next(same_end, "") or next((one for one in settable if one.endswith(f".{end}")), "")
        meant = meant or closest(path, settable)
    mistakes.excuse(meant)
    hint = f"did you mean {meant!r}?" if meant else "known: " + ", ".join([*settable, "model.parameters.<name>, ..."])
    mistakes.add(key, f"unknown path {path!r}", hint)
    return False


def _report_conflicts(rows: list[_Row], zipped: list[_Axis], grid: list[_Axis], mistakes: Mistakes) -> None:
    """Report values that two of rows, zip and grid set."""
    for axis in grid:
        if any(axis.path == other.path for other in zipped):
            mistakes.add(axis.key, f"{axis.path!r} is also set by zip", "keep one of the two")
    for axis in (*zipped, *grid):
        for _, changes in rows:
            for path, place in _leaves(changes):
                if path == axis.path or path.startswith(f"{axis.path}."):
                    message = f"{axis.path!r} is also set by {place.path} (line {place.line})"
                    mistakes.add(axis.key, message, "keep one of the two", "conflict")


def _leaves(tree: Table, path: str = "") -> Iterator[tuple[str, Place]]:
    for key, entry in tree.entries.items():
        here = f"{path}.{key}" if path else key
        if isinstance(entry.value, Table) and entry.value.entries:
            yield from _leaves(entry.value, here)
        else:
            yield here, entry.key


def value_text(node: Node) -> str:
    """A value as written in a label: `3`, `[64, 32]`, `mlp(hidden=[64])`."""
    if isinstance(node, Scalar):
        text = node.text or "null"
    elif isinstance(node, Listing):
        text = "[" + ", ".join(map(value_text, node.items)) + "]"
    else:
        inside = node.get("parameters") if "name" in node.entries else node
        entries = inside.entries if isinstance(inside, Table) else {}
        text = ", ".join(f"{key}={value_text(entry.value)}" for key, entry in entries.items())
        name = node.get("name")
        text = (value_text(name) + (f"({text})" if text else "")) if name else f"({text})"
    return " ".join(text.split())
