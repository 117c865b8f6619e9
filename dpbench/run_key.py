"""The key of a run: a hash of all that may change trained numbers, with the versions of the code that takes part."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import json
import math
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dpbench.catalog import Entry, find
from dpbench.provenance import code_hash
from dpbench.spec import Spec

# The files that take part in every run; a run adds those of its mechanism, model and clipping engine.
CORE = (
    "dpbench.randomness",
    "dpbench.stages",
    "dpbench.functional",
    "dpbench.pipeline",
    "dpbench.clipping._base",
)


def run_key(resolved: Mapping[str, Any]) -> str:
    """SHA-256 of the resolved run as canonical JSON: only what may change trained numbers.

    >>> run_key({"seed": 0, "steps": 2}) == run_key({"steps": 2, "seed": 0})
    True
    """
    return hashlib.sha256(json.dumps(plain(resolved), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def code_entries(spec: Spec) -> list[Entry]:
    """Model and mechanism, then the clipping engine where the mechanism has one.

    Not the dataset: its content hash stands in the key and is verified whenever it is loaded.
    """
    entries = [find("models", spec.model.name), find("mechanisms", spec.mechanism.name)]
    clipping = full_parameters(entries[1], spec.mechanism.parameters).get("clipping")
    return [*entries, find("clipping", clipping)] if isinstance(clipping, str) else entries


def full_parameters(entry: Entry, parameters: Mapping[str, Any], skip: int = 0) -> dict[str, Any]:
    """The parameters with the defaults of the factory's signature, so that a changed default changes the key."""
    signature = inspect.signature(entry.load())
    defaults = {
        name: parameter.default
        for name, parameter in list(signature.parameters.items())[skip:]
        if parameter.default is not inspect.Parameter.empty
    }
    return {**defaults, **parameters}


def code_modules(entries: Iterable[Entry]) -> list[str]:
    """The modules whose code takes part: the core, the entries' own, and the underscore files that these import.

    Accountants, too, where a mechanism asks one while it runs.
    """
    found: set[str] = set()
    following = [entry.module for entry in entries]
    while following:
        module = following.pop()
        if module not in found:
            found.add(module)
            following += _helpers(module)
    return sorted({*CORE, *found})


@cache
def _helpers(module: str) -> tuple[str, ...]:
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        return ()
    names = set()
    for node in ast.walk(ast.parse(Path(found.origin).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            package, _, name = node.module.rpartition(".")
            if name.startswith("_") or package == "dpbench.accountants":
                names.add(node.module)
    return tuple(name for name in names if name.startswith("dpbench."))


def numerics(module: str) -> int | str:
    """The version that the file declares; somebody else's file without one is keyed by its code."""
    declared = getattr(importlib.import_module(module), "NUMERICS", None)
    if declared is not None:
        return int(declared)
    return 1 if module.startswith("dpbench.") else code_hash(module)


def plain(value: Any) -> Any:
    """JSON values only: tuples to lists, infinities to words."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
