"""The catalog: entries are the files of a folder, by file name; other packages add theirs by entry points.

A file `dpbench/models/mlp.py` is the entry `mlp` of the kind `models`; its object is the module's attribute named after
the kind in the singular (`model`). A file `presets.py` holds entries as rows of a table. An entry of many files is a
folder, such as `exact/` in `dpbench/privacy/accountants/`, with the object in `accountant.py`, named after the kind; a
folder without that file is no entry. A package adds an entry with an entry point in the group `dpbench.models`, and
any importable object has the name `package.module:factory`; whether a file may use such a name is decided where the
file is read (`spec/trust.py`).
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from dpbench.errors import DpbenchError

__all__ = [
    "KINDS",
    "STAGES",
    "Entry",
    "FilePath",
    "Later",
    "Note",
    "OfKind",
    "build",
    "catalog",
    "find",
    "marked",
    "of_a_file",
]

KINDS: Mapping[str, str] = {
    "mechanisms": "mechanism",
    "accountants": "accountant",
    "datasets": "dataset",
    "models": "model",
    "samplers": "sampler",
    "preparations": "preparation",
    "augmentations": "augmentation",
    "smoothings": "smoothing",
    "rules": "rule",
    "noise": "noise",
    "updates": "update",
    "averages": "average",
    "clipping": "clipping",
    "metrics": "metric",
    "checks": "check",
    "references": "reference",
    "peers": "peer",
}
FOLDERS: Mapping[str, str] = {  # of kinds whose folder is not `dpbench/<kind>`
    "accountants": "dpbench.privacy.accountants",
    "checks": "dpbench.judging.checks",
    "peers": "dpbench.judging.peers",
    "samplers": "dpbench.step.samplers",
    "preparations": "dpbench.step.preparations",
    "augmentations": "dpbench.step.augmentations",
    "smoothings": "dpbench.step.smoothings",
    "metrics": "dpbench.step.metrics",
    "rules": "dpbench.clipping.rules",
    "noise": "dpbench.step.noise",
    "updates": "dpbench.step.updates",
    "averages": "dpbench.step.averages",
}
# The stages of a pipeline by their names in a spec, each with its kind; `engine` changes no result beyond rounding.
STAGES: Mapping[str, str] = {
    "sample": "samplers",
    "prepare": "preparations",
    "augment": "augmentations",
    "smooth": "smoothings",
    "clip": "rules",
    "noise": "noise",
    "update": "updates",
    "average": "averages",
    "engine": "clipping",
}

SHORT: Mapping[str, tuple[str, ...]] = {  # what people write: the words of dpbench, the first that is known
    "adam": ("noisy_adam",),
    "batch": ("batch_size",),
    "bs": ("batch_size",),
    "c": ("clip_norm",),
    "cifar": ("cifar10",),
    "clip": ("clip_norm",),
    "clt": ("gdp_clt",),
    "dp_adam": ("noisy_adam",),
    "dp_sgd": ("noisy_sgd", "sgd"),
    "dpadam": ("noisy_adam",),
    "dpsgd": ("noisy_sgd", "sgd"),
    "eps": ("epsilon",),
    "fashionmnist": ("fashion_mnist",),
    "fmnist": ("fashion_mnist",),
    "iterations": ("steps",),
    "lr": ("learning_rate",),
    "max_grad_norm": ("clip_norm",),
    "noise": ("noise_multiplier",),
    "q": ("sampling_rate",),
    "sgd": ("noisy_sgd",),
    "sigma": ("noise_multiplier",),
    "t": ("steps",),
}


@dataclass(frozen=True)
class OfKind:
    """Marks a parameter, in `Annotated[...]`, that names an entry of a kind: `name`, or `{name, parameters}`.

    `none`: the word none is allowed too.
    """

    kind: str
    none: bool = False


@dataclass(frozen=True)
class Later:
    """Marks a parameter, in `Annotated[...]`, that is younger than keys in use: no key holds `value`."""

    value: Any


@dataclass(frozen=True)
class FilePath:
    """Marks a dataset's parameter, in `Annotated[...]`, that is a file: in a spec a path from the spec's folder.

    No run's key holds it, for the hash of the content names the data.
    """


@dataclass(frozen=True)
class Note:
    """Marks a dataset's parameter that is told to readers and changes no number: no run's key holds it."""


@dataclass(frozen=True)
class Entry:
    """One entry: its name, its origin and the object to import."""

    kind: str
    name: str
    target: str  # "package.module:attribute"
    origin: str  # "dpbench", a distribution's name, or "spec"

    def load(self) -> Any:
        """The object itself. Raises DpbenchError when it is missing or is nothing that dpbench calls."""
        module_name, _, attribute = self.target.partition(":")
        singular = KINDS[self.kind]
        try:
            found: Any = sys.modules.get(module_name) or importlib.import_module(module_name)  # the first is faster
            for part in attribute.split("."):
                found = getattr(found, part)
        except (Exception, SystemExit) as error:  # a user's module may raise anything
            plain = isinstance(error, ImportError | AttributeError | TypeError | ValueError)  # the last two: no name
            words = " ".join(str(error).split()) if plain else f"{type(error).__name__}: {error}"
            raise DpbenchError(f"{singular} {self.name!r}: cannot load {self.target} ({words})") from error
        if not _of_python(found):
            what = "a module" if isinstance(found, ModuleType) else f"of the type {type(found).__name__}"
            raise DpbenchError(f"{singular} {self.name!r}: it is {what}; expected a class or a function in Python")
        return found

    @property
    def module(self) -> str:
        """The dotted name of the module that holds the object."""
        return self.target.partition(":")[0]

    @property
    def version(self) -> str:
        """Which code it is: of dpbench its version and the file's `NUMERICS` (1 where it declares none), of another
        package that package's version, of a file that a spec or an option names the start of the file's SHA-256.

        >>> find("accountants", "rdp").version.startswith("dpbench ")
        True
        """
        return _version(self)


@cache
def _version(entry: Entry) -> str:
    if entry.origin == "spec":
        found = importlib.util.find_spec(entry.module)
        if found is None or not found.origin or not Path(found.origin).is_file():
            return "unknown code"
        return f"code {hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()[:12]}"
    try:
        made = f"{entry.origin} {importlib.metadata.version(entry.origin)}"
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        made = f"{entry.origin} of unknown version"
    if entry.origin != "dpbench":
        return made
    return f"{made}, numerics {getattr(importlib.import_module(entry.module), 'NUMERICS', 1)}"


def _of_python(found: Any) -> bool:
    """Whether an object may be called: a class, or code in Python; `os.system` is neither. Others are not called."""
    while isinstance(found, partial):
        found = found.func
    called = inspect.isfunction(getattr(type(found), "__call__", None))  # noqa: B004 (is it written in Python?)
    if called or isinstance(found, type) or inspect.isfunction(found) or inspect.ismethod(found):
        return True
    return not callable(found) and not isinstance(found, ModuleType)


def is_code(name: str) -> bool:
    """Whether a name has the form `package.module:factory`, and would be imported.

    >>> is_code("my_lab.rules:Smooth"), is_code("noisy_sgd"), is_code("Table 1: rows")
    (True, False, False)
    """
    return _CODE.fullmatch(name) is not None


_CODE = re.compile(r"[^\s:/\\]+:[^\s:/\\]+")


@cache
def catalog(kind: str) -> Mapping[str, Entry]:
    """Every entry of one kind by name: the files of the folder, then entry points `dpbench.<kind>`.

    Raises DpbenchError if another package uses a name that is taken.

    >>> "rdp" in catalog("accountants")
    True
    """
    package = importlib.import_module(FOLDERS.get(kind, f"dpbench.{kind}"))
    entries: dict[str, Entry] = {}
    for found in sorted(pkgutil.iter_modules(package.__path__), key=lambda item: item.name):
        if found.name == "presets":
            rows = importlib.import_module(f"{package.__name__}.presets")
            entries |= {name: Entry(kind, name, f"{rows.__name__}:{name}", "dpbench") for name in rows.PRESETS}
            continue
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
    return dict(sorted(entries.items()))


def find(kind: str, name: str) -> Entry:
    """The entry of that name, or the object `package.module:factory` names. Raises DpbenchError with a suggestion."""
    entries = catalog(kind)
    if name in entries:
        return entries[name]
    if is_code(name):
        return Entry(kind, name, name, "spec")
    raise DpbenchError(f"{KINDS[kind]} {name!r} is not known{suggestion(name, entries)}")


def marked(loaded: Any, *marks: type[FilePath] | type[Note]) -> tuple[str, ...]:
    """The parameters of a dataset's factory that carry one of the marks; none of what takes no parameters.

    >>> marked(find("datasets", "csv").load(), FilePath)
    ('file',)
    """
    read = _metadata if isinstance(loaded, Hashable) else _metadata.__wrapped__
    return tuple(name for name, metadata in read(loaded) if any(isinstance(one, marks) for one in metadata))


@lru_cache(maxsize=256)
def _metadata(loaded: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """The parameters of a factory, each with what its annotation adds to its type."""
    try:
        parameters = inspect.signature(loaded, eval_str=True).parameters.values() if callable(loaded) else ()
    except (NameError, TypeError, ValueError):  # others say that they cannot read the signature
        return ()
    return tuple((one.name, getattr(one.annotation, "__metadata__", ())) for one in parameters)


def of_a_file(name: str) -> bool:
    """Whether that dataset of the catalog is made of a file that a parameter names.

    >>> of_a_file("features"), of_a_file("digits")
    (True, False)
    """
    entry = catalog("datasets").get(name)
    return entry is not None and bool(marked(entry.load(), FilePath))


def in_short(value: Any) -> str:
    """A parameter's value for people; a stage as a call.

    >>> in_short({"name": "adam", "parameters": {"beta1": 0.5}}), in_short(3)
    ('adam(beta1=0.5)', '3')
    """
    if isinstance(value, Mapping) and "name" in value and not value.keys() - {"name", "parameters"}:
        given = ", ".join(f"{key}={in_short(one)}" for key, one in (value.get("parameters") or {}).items())
        return f"{value['name']}({given})" if given else str(value["name"])
    return str(value)


def find_origin(kind: str, name: str) -> str:
    """Whose entry it is: dpbench, a distribution's name, or "spec" for what is in no catalog.

    >>> find_origin("accountants", "exact"), find_origin("accountants", "mine:accountant")
    ('dpbench', 'spec')
    """
    entry = catalog(kind).get(name)
    return "spec" if entry is None else entry.origin


def build(kind: str, choice: str | Mapping[str, Any]) -> Any:
    """The object of a stage in a spec: `name`, or a mapping with `name` and `parameters`.

    Engines (`clipping`) are functions and take no parameters. Raises DpbenchError for an unknown name.

    >>> build("updates", {"name": "momentum", "parameters": {"momentum": 0.5}}).momentum
    0.5
    """
    name, parameters = named(choice)
    loaded = find(kind, name).load()
    return loaded if kind == "clipping" else loaded(**parameters)


def named(choice: str | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The name and the parameters of a stage. Raises DpbenchError for any other form.

    >>> named("sgd")
    ('sgd', {})
    """
    if isinstance(choice, str):
        return choice, {}
    if not isinstance(choice, Mapping) or "name" not in choice or choice.keys() - {"name", "parameters"}:
        raise DpbenchError(f"found {choice!r}; expected a name, or a mapping with name and parameters")
    return choice["name"], choice.get("parameters") or {}


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` if a known word is close, else the list of known words."""
    return f"; {advice(name, known)}"


def advice(name: str, known: Iterable[str]) -> str:
    """`suggestion` as a sentence of its own."""
    close = closest(name, known)
    return f"did you mean {close!r}?" if close else "known: " + ", ".join(sorted(known))


def closest(name: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, or "".

    >>> closest("MNIST", ["mnist", "fashion_mnist"]), closest("lr", ["learning_rate", "steps"]), closest("x", ["rdp"])
    ('mnist', 'learning_rate', '')
    """
    words = list(known)
    folded = {_folded(word): word for word in reversed(words)}
    near = difflib.get_close_matches(_folded(name), list(folded), n=1, cutoff=0.6)
    return same_word(name, words) or (folded[near[0]] if near else "")


def same_word(name: str, known: Iterable[str]) -> str:
    """The known word that a name is but for case, hyphens and spaces, or that it is the short form of; else ""."""
    folded = {_folded(word): word for word in known}
    return next((folded[word] for word in (_folded(name), *SHORT.get(_folded(name), ())) if word in folded), "")


def _folded(word: str) -> str:
    return re.sub(r"[-_ ]+", "_", str(word).strip()).casefold()
