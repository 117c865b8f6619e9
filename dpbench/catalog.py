"""The catalog: what stands in a folder is known by its file name; other packages add theirs by entry points.

A file `dpbench/models/mlp.py` is the entry `mlp` of the kind `models`; the object it offers is the module's attribute
named after the kind in the singular (`model`). A thing of many files is a folder, as `exact/` in
`dpbench/privacy/accountants/`, with the object in its file `accountant.py`, named after the kind as well; a folder
without that file is no entry. A package adds an entry with an entry point in the group `dpbench.models`, and a spec may
name any importable object as `package.module:factory`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dpbench.errors import DpbenchError

KINDS: Mapping[str, str] = {
    "mechanisms": "mechanism",
    "accountants": "accountant",
    "datasets": "dataset",
    "models": "model",
    "clipping": "clipping",
    "checks": "check",
    "references": "reference",
    "peers": "peer",
}
FOLDERS: Mapping[str, str] = {  # of kinds that do not stand in a folder of their own name at the top
    "accountants": "dpbench.privacy.accountants",
    "checks": "dpbench.judging.checks",
    "peers": "dpbench.judging.peers",
}


@dataclass(frozen=True)
class Entry:
    """One member of a folder or of another package: its name, where it comes from and how to get it."""

    kind: str
    name: str
    target: str  # "package.module:attribute"
    origin: str  # "dpbench", a distribution's name, or "spec"

    def load(self) -> Any:
        """The object itself. Raises DpbenchError when the module or the attribute is missing."""
        module_name, _, attribute = self.target.partition(":")
        try:
            found: Any = importlib.import_module(module_name)
            for part in attribute.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError, TypeError, ValueError) as error:  # the last two: no name of a module
            singular = KINDS[self.kind]
            raise DpbenchError(f"{singular} {self.name!r}: cannot load {self.target} ({error})") from error
        return found

    @property
    def module(self) -> str:
        """The dotted name of the module that holds the object."""
        return self.target.partition(":")[0]


@cache
def catalog(kind: str) -> Mapping[str, Entry]:
    """Every entry of one kind by name: the files of the folder, then entry points `dpbench.<kind>`.

    Raises DpbenchError when another package claims a name that is taken.

    >>> "rdp" in catalog("accountants")
    True
    """
    package = importlib.import_module(FOLDERS.get(kind, f"dpbench.{kind}"))
    entries: dict[str, Entry] = {}
    for found in sorted(pkgutil.iter_modules(package.__path__), key=lambda item: item.name):
        module = f"{package.__name__}.{found.name}"
        if found.ispkg:
            module += f".{KINDS[kind]}"
            if importlib.util.find_spec(module) is None:  # a folder without an entry
                continue
        if not found.name.startswith("_"):
            entries[found.name] = Entry(kind, found.name, f"{module}:{KINDS[kind]}", "dpbench")
    for point in importlib.metadata.entry_points(group=f"dpbench.{kind}"):
        origin = point.dist.name if point.dist else "another package"
        if point.name in entries:
            raise DpbenchError(
                f"{KINDS[kind]} {point.name!r} of {origin} has the name of one of {entries[point.name].origin};"
                " rename its entry point"
            )
        entries[point.name] = Entry(kind, point.name, point.value, origin)
    return entries


def find(kind: str, name: str) -> Entry:
    """The entry of that name, or the object `package.module:factory` names. Raises DpbenchError with a suggestion."""
    entries = catalog(kind)
    if name in entries:
        return entries[name]
    if ":" in name:
        return Entry(kind, name, name, "spec")
    raise DpbenchError(f"{KINDS[kind]} {name!r} is not known{suggestion(name, entries)}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` where something close is known, else the list of what is known."""
    return f"; {advice(name, known)}"


def advice(name: str, known: Iterable[str]) -> str:
    """`suggestion` as a sentence of its own."""
    close = closest(name, known)
    return f"did you mean {close!r}?" if close else "known: " + ", ".join(sorted(known))


def closest(name: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, or ""."""
    return next(iter(difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.6)), "")
