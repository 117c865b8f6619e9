"""The key of a run: a hash of everything that may change its results, with the versions of the code it uses.

Format 2. The resolved run holds numbers and roles, no names of modules or files, so that moving code changes no key,
and nothing about execution (engine, chunk, device), which must not change results.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dpbench.catalog import STAGES, Entry, Later, OfKind, catalog, find, named
from dpbench.errors import DpbenchError
from dpbench.spec.loading import Choice, Spec
from dpbench.store.provenance import code_hash, code_with_imports, reachable

FORMAT = 2
FASTEST = "fastest"  # the clipping engine of a run whose spec names none
PLAIN = "plain"  # beside the engines: the backward pass without clipping
COMPILED = "vmap compiled"  # an engine that no spec names: `vmap` by torch's compiler
COMPILED_DRAWS = "compiled draws"  # in a record where torch could not compile the random numbers, with the reason
OWN_WAYS = ("layers", "jvp", "vjp")  # of a rule with its own sum, by its `way`
BY_RUN = {f"{name} run by run": name for name in ("vmap", "ghost", *OWN_WAYS)}  # a stack's one by one
UNNAMED = (COMPILED, *BY_RUN, *OWN_WAYS)  # what an execution may be told, besides the catalog's engines
# The code that every run uses, by its role; a run adds the roles of its model and its mechanism.
CORE: Mapping[str, tuple[str, ...]] = {
    "randomness": ("dpbench.randomness",),
    "stages": ("dpbench.step.stages",),
    "network": ("dpbench.step.functional",),
    "step": ("dpbench.step.pipeline", "dpbench.step.mechanism"),
    "clipping": ("dpbench.step.clipped_sum",),
    "recurrence": ("dpbench.step.recurrent",),
}
_FOLLOWED = ("dpbench.step.", "dpbench.mechanisms.", "dpbench.privacy.accountants.")  # imports of these take part
CORE_MODULES = frozenset(module for modules in CORE.values() for module in modules)
_ROLES = {"model": ("models",), "mechanism": ("mechanisms", *(kind for kind in STAGES.values() if kind != "clipping"))}


def run_key(resolved: Mapping[str, Any]) -> str:
    """SHA-256 of the resolved run as canonical JSON.

    >>> run_key({"seed": 0, "steps": 2}) == run_key({"steps": 2, "seed": 0})
    True
    """
    return hashlib.sha256(json.dumps(plain(resolved), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def key_format(resolved: Mapping[str, Any]) -> int:
    """The format of the key of a resolved run; runs of different formats are different runs.

    >>> key_format({"seed": 0})
    1
    """
    return int(resolved.get("format", 1))


def chosen(kind: str, choice: Choice, skip: int = 0) -> dict[str, Any]:
    """A model, mechanism or stage in the resolved run: its role's name and its parameters, without those of `engine`.

    An entry written as `package.module:factory` is named by its factory and the hash of its code and of its own
    imports. Defaults of the signature are written out, so that a changed default changes the key.
    """
    entry = find(kind, choice.name)
    parameters = full_parameters(entry, choice.parameters, skip)
    kinds = _kinds(entry)
    for name in _engine_names(entry):
        if name not in kinds or parameters[name] is None or parameters[name] in catalog("clipping"):
            del parameters[name]
    for name in [name for name, value in _later(entry).items() if parameters.get(name) == value]:
        del parameters[name]
    for name in kinds.keys() & parameters.keys():
        parameters[name] = _canonical(kinds[name], parameters[name])
    return {"name": _identity(entry), "parameters": parameters}


def _canonical(of: OfKind, value: Any) -> Any:
    """A stage as the key holds it: `adam` and `{name: adam}` are equal."""
    if of.kind == "clipping":
        return _identity(find("clipping", value)) if isinstance(value, str) else value
    if of.none and value == "none":
        return value
    name, parameters = named(value)
    return chosen(of.kind, Choice(name, parameters))


def engine(entry: Entry, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that change how a mechanism computes but not its results: those in `ENGINE` of it or of a stage.

    A clipping engine counts only if it is in the catalog, where tests compare every engine with `loop`; where none is
    named it is `FASTEST`, which training measures.

    >>> engine(find("mechanisms", "noisy_sgd"), {}), engine(find("mechanisms", "noisy_sgd"), {"clipping": "loop"})
    ({'clipping': 'fastest'}, {'clipping': 'loop'})
    """
    values, kinds, found = full_parameters(entry, parameters), _kinds(entry), {}
    for name in _engine_names(entry):
        value = values[name]
        if name in kinds and value is None:  # the mechanism chooses
            value = _stages(entry, parameters).get("engine")
        if name not in kinds or value in catalog("clipping"):
            found[name] = FASTEST if name in kinds and parameters.get(name) is None else value
    for name, of in kinds.items():
        if of.kind != "clipping" and not (of.none and values[name] == "none"):
            chosen_name, own = named(values[name])
            found |= engine(find(of.kind, chosen_name), own)
    return found


def _engine_names(entry: Entry) -> tuple[str, ...]:
    """The names in `ENGINE` of the factory or its module."""
    of_module = getattr(importlib.import_module(entry.module), "ENGINE", ())
    return tuple(getattr(entry.load(), "ENGINE", of_module))


def _kinds(entry: Entry) -> dict[str, OfKind]:
    """The parameters that name entries of the catalog; `clipping` of a mechanism does, whatever its annotation."""
    found: dict[str, OfKind] = {}
    for name, parameter in inspect.signature(entry.load(), eval_str=True).parameters.items():
        marks = [mark for mark in getattr(parameter.annotation, "__metadata__", ()) if isinstance(mark, OfKind)]
        if name == "clipping" and entry.kind == "mechanisms":
            marks.append(OfKind("clipping"))
        if marks:
            found[name] = marks[0]
    return found


def _later(entry: Entry) -> dict[str, Any]:
    """The parameters that are younger than keys in use, each with the value that no key holds."""
    return {
        name: mark.value
        for name, parameter in inspect.signature(entry.load(), eval_str=True).parameters.items()
        for mark in getattr(parameter.annotation, "__metadata__", ())
        if isinstance(mark, Later)
    }


def _stages(entry: Entry, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The stages of a mechanism by their names, each a name or a mapping; its engine as `engine`.

    Raises DpbenchError for parameters that the mechanism does not have.
    """
    loaded = entry.load()
    if hasattr(loaded, "pipeline_stages"):
        try:
            return dict(loaded.pipeline_stages(**parameters))
        except TypeError as error:
            raise DpbenchError(f"mechanism {entry.name!r}: cannot be built ({error})") from error
    values = full_parameters(entry, parameters)
    names = {kind: stage for stage, kind in STAGES.items()}
    given = {names[of.kind]: values.get(name) for name, of in _kinds(entry).items()}
    return {stage: value for stage, value in given.items() if isinstance(value, str | dict)}


def mechanism_entries(name: str, parameters: Mapping[str, Any]) -> list[Entry]:
    """A mechanism and its stages, its engine among them.

    >>> [entry.name for entry in mechanism_entries("noisy_adam", {})]
    ['noisy_adam', 'poisson', 'flat', 'constant', 'adam', 'vmap']
    """
    entry = find("mechanisms", name)
    chosen_stages = _stages(entry, parameters).items()
    return [
        entry,
        *(find(STAGES[stage], named(value)[0]) for stage, value in chosen_stages if not _is_none(stage, value)),
    ]


def _is_none(stage: str, value: Any) -> bool:
    return value is None or (value == "none" and stage != "clip")


def shipped(mechanism: Mapping[str, Any]) -> bool:
    """Whether a mechanism by its name and parameters, with its stages and its engine, is one of dpbench's own.

    >>> shipped({"name": "pipeline", "parameters": {"update": "my_updates:Nesterov"}})
    False
    """
    parameters = mechanism.get("parameters") or {}
    names = [("mechanisms", str(mechanism.get("name")))]
    for stage, kind in (*STAGES.items(), ("clipping", "clipping")):
        value = parameters.get(stage)
        name = value.get("name") if isinstance(value, Mapping) else value
        if isinstance(name, str) and name != "none":
            names.append((kind, name))
    known = (catalog(kind).get(name) for kind, name in names)
    return all(entry is not None and entry.origin == "dpbench" for entry in known)


def code_entries(spec: Spec) -> list[Entry]:
    """Model and mechanism, then the mechanism's stages with its clipping engine.

    Not the dataset: its content hash is in the key and is verified whenever it is loaded.
    """
    return [find("models", spec.model.name), *mechanism_entries(spec.mechanism.name, spec.mechanism.parameters)]


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
    """The modules whose code is used: the core, those of the entries, and what these import of step/ or `_` files.

    Accountants too, if a mechanism uses one while it runs; for other packages' code, everything it imports of its own.
    """
    entries = list(entries)
    found = {*CORE_MODULES, *reachable((entry.module for entry in entries), _helpers)}
    return sorted(found.union(*(code_with_imports(entry.module) for entry in entries if not is_own(entry.module))))


def step_modules() -> list[str]:
    """Every module of the rooms in which a step takes place."""
    rooms = (importlib.import_module(name) for name in ("dpbench.step", "dpbench.clipping"))
    return [found.name for room in rooms for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]


def versions(entries: Iterable[Entry]) -> dict[str, int | str]:
    """The version of each role's code: 1 plus the raises of `NUMERICS` in all of the role's files.

    Code moved into a new file, whose `NUMERICS` starts at 1, changes nothing. Engines have no version. A file of
    another package without `NUMERICS` has the hash of its code and of its imports as its version.
    """
    found: dict[str, int | str] = {role: _version(modules) for role, modules in CORE.items()}
    entries = list(entries)
    for role, kinds in _ROLES.items():
        modules = [entry.module for entry in entries if entry.kind in kinds]
        if modules:
            found[role] = _version(reachable(modules, _helpers) - CORE_MODULES)
    return found


def changed_versions(resolved: Mapping[str, Any]) -> tuple[str, ...]:
    """The roles of dpbench's own code whose version has been raised since a run of today's format was resolved.

    Compares declared versions only and hashes nothing: code of others is another run's, by its key. () where the run's
    model or mechanism is not dpbench's, is not known any more, or has a key of another format.

    >>> changed_versions({"seed": 0})
    ()
    """
    if key_format(resolved) != FORMAT:
        return ()
    model, mechanism = resolved["model"]["name"], resolved["mechanism"]
    text = json.dumps(plain([model, mechanism["name"], mechanism.get("parameters") or {}]), sort_keys=True)
    return version_changes(resolved.get("numerics") or {}, _versions_of(text) if shipped(mechanism) else {})


@cache
def _versions_of(choice: str) -> Mapping[str, int | str]:
    """Today's versions for a shipped mechanism and a model by names; {} where they are not found any more."""
    model, mechanism, parameters = json.loads(choice)
    try:
        entries = mechanism_entries(mechanism, parameters)
        known = catalog("models").get(model)
        return versions([*entries, *([known] if known is not None and known.origin == "dpbench" else [])])
    except Exception:  # noqa: BLE001 - parameters from a file may be anything
        return {}


def version_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """The roles that differ, in words; roles that one side does not have are left out.

    >>> version_changes({"step": 1, "model": 2}, {"step": 2, "model": 2})
    ('step: version 1, now version 2',)
    """
    changed = ((role, before[role], now[role]) for role in sorted(before.keys() & now.keys()))
    return tuple(f"{role}: {_shown(one)}, now {_shown(two)}" for role, one, two in changed if one != two)


def _shown(version: object) -> str:
    return f"code {version[:8]}" if isinstance(version, str) else f"version {version}"


def _identity(entry: Entry) -> str:
    """The name in the catalog, or, for `package.module:factory`, the hash of the code and the factory."""
    if entry.origin != "spec":
        return entry.name
    return f"{_content_hash(entry.module)}:{entry.target.partition(':')[2]}"


def _content_hash(module: str) -> str:
    """The hash of a module's code and of every module of the same package or folder that it imports.

    It does not depend on the module's name, nor on the package that the modules share.
    """
    if is_own(module):
        return code_hash(module)
    top = module.partition(".")[0]
    others = sorted(
        (name if name.partition(".")[0] != top else name.removeprefix(top), code_hash(name))
        for name in code_with_imports(module)
        if name != module
    )
    return run_key({"code": code_hash(module), "imports": others}) if others else code_hash(module)


def is_own(module: str) -> bool:
    """Whether a module, by its dotted name, is one of dpbench."""
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
            if name.startswith("_") or f"{package}.".startswith(_FOLLOWED):
                names.add(node.module)
    return tuple(name for name in names if name.startswith("dpbench."))


def _version(modules: Iterable[str]) -> int | str:
    total, hashes = 1, []
    for module in sorted(modules):
        declared = getattr(importlib.import_module(module), "NUMERICS", None)
        if declared is not None:
            total += int(declared) - 1
        elif not is_own(module):
            hashes.append(_content_hash(module))
    if len(hashes) > 1:
        return run_key({"code": hashes, "version": total})
    return hashes[0] if hashes else total


def plain(value: Any) -> Any:
    """JSON values only: tuples to lists, infinities to words."""
    if value is None or isinstance(value, str | int):  # most values, and the test of Mapping is slow
        return value
    if isinstance(value, dict | Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
