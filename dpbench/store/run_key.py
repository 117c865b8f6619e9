"""The key of a run: a hash of all that may change trained numbers, with the versions of the code that takes part.

Format 2. The resolved run holds numbers and roles, never a module's or a file's name, so that moving code changes no
key; and never how the work is done (engine, chunk, device), which may change no number.
"""

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

from dpbench.catalog import Entry, catalog, find
from dpbench.spec.loading import Choice, Spec
from dpbench.store.provenance import code_hash, code_with_imports, reachable

FORMAT = 2
# What takes part in every run, by its role; a run adds the roles of its model and its mechanism.
CORE: Mapping[str, str] = {
    "randomness": "dpbench.randomness",
    "stages": "dpbench.step.stages",
    "network": "dpbench.step.functional",
    "step": "dpbench.step.pipeline",
    "clipping": "dpbench.step.clipped_sum",
    "recurrence": "dpbench.step.recurrent",
}
_ROLES = {"models": "model", "mechanisms": "mechanism"}


def run_key(resolved: Mapping[str, Any]) -> str:
    """SHA-256 of the resolved run as canonical JSON: only what may change trained numbers.

    >>> run_key({"seed": 0, "steps": 2}) == run_key({"steps": 2, "seed": 0})
    True
    """
    return hashlib.sha256(json.dumps(plain(resolved), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def key_format(resolved: Mapping[str, Any]) -> int:
    """The format of the key of a resolved run; runs of another format are other runs, whatever else is equal.

    >>> key_format({"seed": 0})
    1
    """
    return int(resolved.get("format", 1))


def chosen(kind: str, choice: Choice, skip: int = 0) -> dict[str, Any]:
    """A model or mechanism in the resolved run: its role's name and its parameters, without those of `engine`.

    What stands in the spec as `package.module:factory` is named by its factory and the hash of its code and
    of what that imports of its own; defaults of the signature are written out: a changed default changes the key.
    """
    entry = find(kind, choice.name)
    parameters = full_parameters(entry, choice.parameters, skip)
    for name in _engine_names(entry):
        if name in engine(entry, choice.parameters):
            del parameters[name]
        else:
            parameters[name] = _identity(find("clipping", parameters[name]))
    return {"name": _identity(entry), "parameters": parameters}


def engine(entry: Entry, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that choose how a mechanism computes and not what: those that its file lists as `ENGINE`.

    A clipping engine counts only if it stands in the catalog, whose contract holds all of them to the loop.

    >>> engine(find("mechanisms", "noisy_sgd"), {})
    {'clipping': 'vmap'}
    """
    values = full_parameters(entry, parameters)
    names = _engine_names(entry)
    return {name: values[name] for name in names if name != "clipping" or values[name] in catalog("clipping")}


def _engine_names(entry: Entry) -> tuple[str, ...]:
    return tuple(getattr(importlib.import_module(entry.module), "ENGINE", ()))


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
    """The modules whose code takes part: the core, the entries' own, and what these import of step/ or `_` files.

    Accountants, too, where a mechanism asks one while it runs; of somebody else's code all that it imports of its own.
    """
    entries = list(entries)
    found = {*CORE.values(), *reachable((entry.module for entry in entries), _helpers)}
    return sorted(found.union(*(code_with_imports(entry.module) for entry in entries if not _is_own(entry.module))))


def versions(entries: Iterable[Entry]) -> dict[str, int | str]:
    """What the code of each role computes: 1 and one more for every raise of `NUMERICS` in the role's files.

    A sum over the files, so that code moved into a new file (whose `NUMERICS` starts at 1) changes nothing. Engines
    have no version. Somebody else's file that declares none is known by the hash of its code and of what it imports.
    """
    found: dict[str, int | str] = {role: _version([module]) for role, module in CORE.items()}
    for entry in entries:
        if entry.kind in _ROLES:
            found[_ROLES[entry.kind]] = _version(reachable([entry.module], _helpers) - set(CORE.values()))
    return found


def _identity(entry: Entry) -> str:
    """The name in the catalog; of what a spec names by its module, the hash of its code and the factory."""
    if entry.origin != "spec":
        return entry.name
    return f"{_content_hash(entry.module)}:{entry.target.partition(':')[2]}"


def _content_hash(module: str) -> str:
    """The hash of a module's code, with that of every module of the same package or folder that it imports.

    The module's own name is not in it, and of the others' names not the package that they share with it.
    """
    if _is_own(module):
        return code_hash(module)
    top = module.partition(".")[0]
    others = sorted(
        (name if name.partition(".")[0] != top else name.removeprefix(top), code_hash(name))
        for name in code_with_imports(module)
        if name != module
    )
    return run_key({"code": code_hash(module), "imports": others}) if others else code_hash(module)


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == "dpbench"


@cache
def _helpers(module: str) -> tuple[str, ...]:
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        return ()
    names = set()
    for node in ast.walk(ast.parse(Path(found.origin).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            package, _, name = node.module.rpartition(".")
            if name.startswith("_") or f"{package}.".startswith(("dpbench.step.", "dpbench.privacy.accountants.")):
                names.add(node.module)
    return tuple(name for name in names if name.startswith("dpbench."))


def _version(modules: Iterable[str]) -> int | str:
    total = 1
    for module in modules:
        declared = getattr(importlib.import_module(module), "NUMERICS", None)
        if declared is not None:
            total += int(declared) - 1
        elif not _is_own(module):
            return _content_hash(module)
    return total


def plain(value: Any) -> Any:
    """JSON values only: tuples to lists, infinities to words."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
