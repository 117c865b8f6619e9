"""Looks up what a spec names in the catalog: does it exist, does it load, does it take these parameters?

Models and mechanisms import torch; they are imported here only when a spec names them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbench.catalog import KINDS, Entry, FilePath, OfKind, advice, build, catalog, closest, marked, named
from dpbench.errors import DpbenchError
from dpbench.spec.annotations import Parameters, of_kind, parameters_of, shown
from dpbench.spec.points import Mistakes, Point
from dpbench.spec.yaml_loader import Node, Place, Scalar, Table

_DOTTED = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
OWN_NAME = f"^{_DOTTED}:{_DOTTED}$"
FOLDERS = {"dataset": "datasets", "model": "models", "mechanism": "mechanisms"}


@dataclass(frozen=True)
class Chosen:
    """A dataset, model or mechanism of the catalog; `made` is the source or mechanism, None for a model."""

    name: str
    parameters: Mapping[str, Any]
    made: Any = None


class CatalogObjects:
    """Loads what specs name, each once; a failure is a mistake at the line with the name."""

    def __init__(self) -> None:
        self._tried: dict[tuple[str, ...], tuple[Any, BaseException | None]] = {}

    def _once(self, key: tuple[str, ...], action: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """The result of an action or its exception; users' code may raise anything."""
        if key not in self._tried:
            try:
                self._tried[key] = action(), None
            except (Exception, SystemExit) as error:  # noqa: BLE001 (reported by the caller, with the line)
                self._tried[key] = None, error
        return self._tried[key]

    def choice(self, key: str, node: Node, mistakes: Mistakes, point: Point | None) -> Chosen | None:
        """The dataset, model or mechanism (`key`) that a node names, None after reporting what is wrong.

        Without a `point` (in a part that rows or a grid complete), absent keys are no mistake.
        """
        parts = self._parts(key, node, mistakes, point)
        if parts is None:
            return None
        name, given = parts
        loaded = self.load(FOLDERS[key], name, mistakes)
        if loaded is None:
            return None
        taken, error = self._once(("parameters", key, name.text), lambda: parameters_taken(key, loaded))
        if error is not None:
            mistakes.add(name.place, f"{shown(name)} cannot be used: {_one_line(error)}", kind="load")
            return None
        values = self._values(given, taken, f"{key}.parameters", mistakes, point)
        if values is None or point is None:
            return None
        folder = Path(mistakes.file).resolve().parent
        values |= {one: str(folder / values[one]) for one in marked(loaded, FilePath) if one in values}
        return self._make(key, loaded, name, values, given, mistakes)

    def _values(
        self, given: Table, taken: Parameters, path: str, mistakes: Mistakes, point: Point | None
    ) -> dict[str, Any] | None:
        """The values of a mapping of parameters; those that name an entry of the catalog are looked up there."""
        marks = {name: mark for name, slot in taken.slots.items() if (mark := of_kind(slot)) is not None}
        stages = {name: entry for name, entry in given.entries.items() if name in marks}
        plainly = Table(given.place, {name: entry for name, entry in given.entries.items() if name not in stages})
        slots = {name: slot for name, slot in taken.slots.items() if name not in stages}
        values = mistakes.values(plainly, slots, path, point, what="parameter", others=taken.open)
        found = {
            name: self._stage(marks[name], entry.value, f"{path}.{name}", mistakes, point)
            for name, entry in stages.items()
        }
        return None if values is None or None in found.values() else {**values, **found}

    def _stage(self, of: OfKind, node: Node, path: str, mistakes: Mistakes, point: Point | None) -> Any:
        """A stage as a name or a mapping; None after reporting what is wrong."""
        if of.none and isinstance(node, Scalar) and node.value == "none":
            return "none"
        parts = self._parts(path, node, mistakes, point, KINDS[of.kind])
        if parts is None:
            return None
        name, given = parts
        loaded = self.load(of.kind, name, mistakes)
        if loaded is None:
            return None
        if of.kind == "clipping":
            for entry in given.entries.values():
                mistakes.add(entry.key, f"{shown(name)} takes no parameters", "delete them")
            return None if given.entries else name.text
        taken, error = self._once(("parameters", of.kind, name.text), lambda: parameters_taken(of.kind, loaded))
        if error is not None:
            mistakes.add(name.place, f"{shown(name)} cannot be used: {_one_line(error)}", kind="load")
            return None
        values = self._values(given, taken, f"{path}.parameters", mistakes, point)
        if values is None:
            return None
        return {"name": name.text, "parameters": values} if values else name.text

    def metric(self, node: Node, mistakes: Mistakes, point: Point | None) -> Chosen | None:
        """The metric that an item of `metrics` names; None after reporting what is wrong."""
        stage = self._stage(OfKind("metrics"), node, "metrics", mistakes, point)
        if stage is None:
            return None
        name, parameters = named(stage)
        made, error = self._once(("metric", name, repr(parameters)), lambda: build("metrics", stage))
        if error is not None:
            mistakes.add(node.place, f"metric {name} cannot be built: {_one_line(error)}", kind="build")
            return None
        return Chosen(name, parameters, made)

    def check_name(self, kind: str, name: Scalar, mistakes: Mistakes) -> None:
        """Report a name that is not in the catalog; `package.module:factory` is also loaded."""
        if name.text not in catalog(kind):
            self.load(kind, name, mistakes)

    def load(self, kind: str, name: Scalar, mistakes: Mistakes) -> Any:
        """The object of that name; None after reporting that it does not exist or cannot be loaded."""
        entries = catalog(kind)
        entry = entries.get(name.text)
        if entry is None and re.fullmatch(OWN_NAME, name.text):
            entry = Entry(kind, name.text, name.text, "spec")
        if entry is None:
            hint = advice(name.text, entries)
            hint += "" if hint.startswith("did you mean") else "; or your own as package.module:factory"
            mistakes.add(name.place, f"unknown {KINDS[kind]} {shown(name)}", hint, "unknown name")
            return None
        loaded, error = self._once((kind, name.text), entry.load)
        if error is not None:
            mistakes.add(name.place, _one_line(error), _load_hint(entry, error), "load")
        elif loaded is None:
            mistakes.add(name.place, f"{shown(name)} is None; expected a {KINDS[kind]}")
        return loaded

    def _parts(
        self, key: str, node: Node, mistakes: Mistakes, point: Point | None, what: str = ""
    ) -> tuple[Scalar, Table] | None:
        """The name and the parameters of `digits` or `{name: digits, parameters: {...}}`; `key` is its path."""
        what = what or key
        name: Node | None = node
        parameters: Node | None = None
        if isinstance(node, Table):
            for unknown in [unknown for unknown in node.entries if unknown not in ("name", "parameters")]:
                homes = {} if closest(unknown, ("name", "parameters")) else {unknown: f"{key}.parameters"}
                mistakes.unknown_key(node.entries[unknown].key, unknown, ("name", "parameters"), key, homes)
            name, parameters = node.get("name"), node.get("parameters")
            if name is None:
                if point is not None:
                    mistakes.missing(point, node.place, f"{key}.name", f"is missing; expected the name of {_an(what)}")
                return None
        assert name is not None
        if parameters is not None and not isinstance(parameters, Table):
            mistakes.add(parameters.place, f"found {shown(parameters)}; expected a mapping from parameters to values")
        if not isinstance(name, Scalar) or not isinstance(name.value, str):
            expected = f"the name of {_an(what)}, or a mapping with name and parameters"
            mistakes.add(name.place, f"found {shown(name)}; expected {expected}")
            return None
        given = parameters or Table(node.place)
        return (name, given) if isinstance(given, Table) else None

    def _make(
        self, key: str, loaded: Any, name: Scalar, values: dict[str, Any], given: Table, mistakes: Mistakes
    ) -> Chosen | None:
        """Build the source or the mechanism, for its properties (`real`, `train_size`, `private`)."""
        if key == "model":
            return Chosen(name.text, values)
        build = _dataset if key == "dataset" else _mechanism
        made, error = self._once(("made", key, name.text, repr(values)), lambda: build(loaded, name.text, values))
        if error is not None:
            message = _one_line(error)
            place = _named_in(message, name.place, given)
            mistakes.add(place, f"{key} {shown(name)} cannot be built: {message}", kind="build")
            return None
        return Chosen(name.text, values, made)


def parameters_taken(key: str, loaded: Any) -> Parameters:
    """The parameters that a spec may give to a loaded dataset, model or mechanism (`key`).

    Raises TypeError if it cannot be called or has no signature.
    """
    from dpbench.datasets._base import SOURCE_MEMBERS

    source = not isinstance(loaded, type) and all(hasattr(loaded, member) for member in SOURCE_MEMBERS)
    if key == "dataset" and (source or not callable(loaded)):  # as `dpbench.datasets.find_dataset` decides it
        return Parameters({})
    if not callable(loaded):
        raise TypeError(f"it is a {type(loaded).__name__}; expected a function or a class")
    return parameters_of(loaded, skip=2 if key == "model" else 0)


def _dataset(loaded: Any, name: str, values: dict[str, Any]) -> Any:  # noqa: ARG001 (as _mechanism)
    from dpbench.datasets import find_dataset

    return find_dataset(name, values)


def _mechanism(loaded: Callable[..., Any], name: str, values: dict[str, Any]) -> Any:
    from dpbench.step.mechanism import refuse_other

    made = loaded(**values)
    refuse_other(made, name)
    return made


def _named_in(message: str, place: Place, given: Table) -> Place:
    """The place of the parameter that a message names first, else `place`."""
    return min(_all_named(message, given), key=lambda named: named[0], default=(0, place))[1]


def _all_named(message: str, given: Table, quoted: bool = False) -> Iterator[tuple[int, Place]]:
    """Where in a message each parameter is named, and its place in the file.

    Names that the user made up (`scale: {a: ...}`) stand in quotation marks there; else `a` would be any article.
    Those of a stage (`update: {name: momentum, parameters: {...}}`) do not.
    """
    for parameter, entry in given.entries.items():
        if isinstance(entry.value, Table):
            of_stage = parameter == "parameters" or "name" in entry.value.entries
            yield from _all_named(message, entry.value, quoted=not of_stage)
        if found := re.search(re.escape(repr(parameter)) if quoted else rf"\b{re.escape(parameter)}\b", message):
            yield found.start(), entry.value.place


def _an(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def _load_hint(entry: Entry, error: BaseException) -> str:
    cause = error.__cause__
    module, _, attribute = entry.target.partition(":")
    if isinstance(cause, AttributeError) and module in sys.modules:
        close = closest(attribute, [name for name in dir(sys.modules[module]) if not name.startswith("_")])
        return f"did you mean {module}:{close}?" if close else ""
    if isinstance(cause, ModuleNotFoundError):
        return "install the package, or put its folder on PYTHONPATH"
    return ""


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return (
        text if isinstance(error, DpbenchError | ValueError | TypeError) and text else f"{type(error).__name__}: {text}"
    )
