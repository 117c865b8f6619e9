"""Where a result comes from: its environment, and the hash of the code that computed it."""

from __future__ import annotations

import ast
import hashlib
import io
import itertools
import os
import platform
import re
import subprocess
import sys
import sysconfig
import token
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import dpbench
from dpbench.errors import DpbenchError

_PACKAGES = ("numpy", "scipy", "scikit-learn")
_GIT_SECONDS = 10.0
_WORD = re.compile(r"\w")
Read = TypeVar("Read")


def environment(*, with_torch: bool = False) -> dict[str, Any]:
    """What a reader needs to know about this machine and this installation, as plain JSON values.

    `commit` and `dirty` are null where the package does not lie in a git checkout. The keys `torch`, `device`,
    `device_name` and `threads` are null unless torch is imported already or `with_torch` asks for it; `device` is the
    one that would be chosen (`cuda` where there is one), so whoever trained elsewhere overrides it.

    >>> sorted(environment())[:4]
    ['commit', 'cpus', 'device', 'device_name']
    """
    commit, dirty = _git_state(Path(__file__).resolve().parents[1])
    facts: dict[str, Any] = {
        "commit": commit,
        "dirty": dirty,
        "dpbench": dpbench.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "packages": _versions(),
        **dict.fromkeys(("torch", "device", "device_name", "threads")),
        "time_utc": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if with_torch or "torch" in sys.modules:
        import torch

        cuda = torch.cuda.is_available()
        facts |= {
            "torch": str(torch.__version__),
            "device": "cuda" if cuda else "cpu",
            "device_name": torch.cuda.get_device_name() if cuda else facts["processor"],
            "threads": torch.get_num_threads(),
        }
    return facts


def device_name(device: str) -> str:
    """The name of a device: of the processor, or of the GPU."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device) if torch.cuda.is_available() else device
    return _processor()


@cache
def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in _PACKAGES}  # what dpbench depends on


@cache
def _processor() -> str:
    """The processor's name as the system states it, or its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    name = re.search(r"^model name\s*:\s*(.*\S)", text, re.MULTILINE)
    return name[1] if name else platform.processor() or platform.machine()


def _git_state(folder: Path) -> tuple[str | None, bool | None]:
    """(commit, whether the package's files differ from it); (None, None) outside a checkout that tracks the package."""
    if _git(folder, "ls-files", "--error-unmatch", "--", "__init__.py") is None:
        return None, None  # no checkout, or somebody else's with the package in its virtual environment
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=all", "--", ".")
    return commit, None if changes is None else bool(changes)


def _git(folder: Path, *arguments: str) -> str | None:
    # A git hook that runs us sets GIT_DIR and the like; we ask about the checkout that holds the package.
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=folder,
            env=surroundings,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def code_hash(module_name: str) -> str:
    """SHA-256 of a module's code: comments, docstrings, blank lines and spacing do not change it, everything else does.

    The normalised source text is hashed. Tokens and syntax tree are used only to find comments, strings and docstrings,
    so every supported Python gives the same hash. Nothing is imported: a record names modules, and
    may come from anybody. Raises DpbenchError when the module has no readable source.

    >>> len(code_hash("dpbench.errors"))
    64
    """
    path = _source(module_name)
    if path is None:
        raise DpbenchError(f"module {module_name!r}: expected a module with a source file; check its name")
    return _read(_file_hash, module_name, path)


def _read(what: Callable[[str, Path, int, int], Read], module: str, path: Path) -> Read:
    """The value of a cached function of a module's file, by its time and size."""
    try:
        status = path.stat()
        return what(module, path, status.st_mtime_ns, status.st_size)
    except (OSError, SyntaxError, ValueError) as error:
        raise DpbenchError(f"module {module!r}: {path} cannot be read as Python source ({error})") from error


def code_with_imports(module_name: str) -> tuple[str, ...]:
    """A module and what it imports, directly or not, of the same package, distribution or folder; never of dpbench.

    Raises DpbenchError where one of them cannot be read as Python source.

    >>> code_with_imports("json.tool")
    ('json', 'json.decoder', 'json.encoder', 'json.scanner', 'json.tool')
    """
    roots = _roots(module_name)
    folder = _own_folder(module_name)

    def following(module: str) -> list[str]:
        path = _source(module)
        if path is None:
            return []
        parents = module.split(".")
        names = [".".join(parents[:end]) for end in range(1, len(parents))]
        for name in _read(_imported, module, path):
            top = name.partition(".")[0]
            beside = folder is not None and _below(_source(top), folder)
            if top != "dpbench" and (top in roots or beside):
                names.append(name)
        return names

    return tuple(sorted(module for module in reachable([module_name], following) if _source(module) is not None))


def reachable(start: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    """What `start` leads to, itself included."""
    found: set[str] = set()
    ahead = list(start)
    while ahead:
        one = ahead.pop()
        if one not in found:
            found.add(one)
            ahead += following(one)
    return found


def _below(path: Path | None, folder: Path) -> bool:
    """Whether a file lies in a folder, and not in an environment below it where packages are installed."""
    if path is None or not path.resolve().is_relative_to(folder):
        return False
    inside = path.resolve().relative_to(folder).parts
    installed = any(place.is_relative_to(folder) and path.resolve().is_relative_to(place) for place in _places())
    return not installed and not {"site-packages", "dist-packages"} & set(inside)


def _places() -> set[Path]:
    return {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib", "platstdlib")}


def _roots(module: str) -> set[str]:
    """Top-level names of the module's own distribution."""
    top = module.partition(".")[0]
    packages = _distributions(tuple(sys.path))
    mine = set(packages.get(top, ()))
    return {top} | {name for name, owners in packages.items() if mine & set(owners)}


@cache
def _distributions(_path: tuple[str, ...]) -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def _own_folder(module: str) -> Path | None:
    """The folder in which a module's package lies, unless packages are installed there."""
    path = _source(module.partition(".")[0])
    if path is None:
        return None
    folder = path.resolve().parent.parent if path.name == "__init__.py" else path.resolve().parent
    installed = folder in _places() or folder.name in ("site-packages", "dist-packages")
    return None if installed else folder


def _source(module: str) -> Path | None:
    """The file of a module, found without importing it or the packages above it."""
    found, places = None, None
    parts = module.split(".")
    for name in (".".join(parts[:end]) for end in range(1, len(parts) + 1)):
        try:
            known = getattr(sys.modules.get(name), "__spec__", None)
            found = known or next(filter(None, (one.find_spec(name, places) for one in sys.meta_path)), None)
        except (ImportError, ValueError, AttributeError, KeyError):
            return None
        if found is None:
            return None
        places = found.submodule_search_locations
        if places is None and name != module:
            return None
    return Path(found.origin) if found is not None and found.has_location and found.origin else None


@cache
def _imported(module: str, path: Path, _modified: int, _size: int) -> frozenset[str]:
    """Names of the modules that a file imports, and of those that a `from` may import."""
    if path.suffix != ".py":
        return frozenset()
    tree = ast.parse(path.read_bytes())
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".") if package else []
                start = ".".join(parents[: len(parents) - node.level + 1])
                base = ".".join(filter(None, [start, base]))
            if base:
                names |= {base} | {f"{base}.{one.name}" for one in node.names if one.name != "*"}
    return frozenset(names)


@cache
def _file_hash(_module: str, path: Path, _modified: int, _size: int) -> str:
    content = path.read_bytes()
    if path.suffix != ".py":
        return hashlib.sha256(content).hexdigest()  # compiled: hash its bytes
    return hashlib.sha256(normalise_source(content).encode("utf-8")).hexdigest()


def normalise_source(content: bytes) -> str:
    """Python source as one line per logical line, without comments and docstrings, with strings unchanged.

    Each line begins with as many tabs as its block is deep; white space inside a line stays (as one space) only between
    two words. Raises SyntaxError (or UnicodeDecodeError) for what is not Python.

    >>> normalise_source(b'def f( a,\\n    b ): # why\\n    "Adds."\\n\\n    return a  +  b\\n')
    'def f(a,b):\\n\\treturn a+b'
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    text = content.decode(encoding).removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text = _without_docstrings(text)
    lines: list[str] = []
    pieces: list[str] = []
    depth = line_depth = 0
    for kind, piece in _pieces(text):
        if kind == token.INDENT:
            depth += 1
        elif kind == token.DEDENT:
            depth -= 1
        elif kind == token.NEWLINE:
            if pieces:
                lines.append("\t" * line_depth + "".join(pieces))
            pieces = []
        else:
            if not pieces:
                line_depth = depth
            elif _WORD.match(pieces[-1][-1:]) and _WORD.match(piece):
                pieces.append(" ")
            pieces.append(piece)
    return "\n".join(lines)


def _without_docstrings(text: str) -> str:
    content = text.encode("utf-8")  # the syntax tree counts columns in bytes
    starts = [0, *itertools.accumulate(len(line) + 1 for line in content.split(b"\n"))]
    spans = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            assert isinstance(first, ast.Expr)
            end = starts[(first.value.end_lineno or 0) - 1] + (first.value.end_col_offset or 0)
            spans.append((starts[first.value.lineno - 1] + first.value.col_offset, end))
    for start, end in sorted(spans, reverse=True):
        content = content[:start] + content[end:]
    return content.decode("utf-8")


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """(kind, text) of all tokens but comments and blank lines; an f-string is one piece on every Python version."""
    rows = text.split("\n")  # splitlines would also break at form feeds and the like, which Python does not
    opening, closing = ({getattr(token, f"{kind}STRING_{end}", None) for kind in "FT"} for end in ("START", "END"))
    skipped = {token.COMMENT, token.NL, token.ENDMARKER, token.ENCODING}
    nested = 0
    first, left = 0, 0
    for found in tokenize.generate_tokens(io.StringIO(text).readline):
        if found.type in opening:
            if nested == 0:
                first, left = found.start
            nested += 1
        elif found.type in closing:
            nested -= 1
            if nested == 0:
                last, right = found.end
                whole = [*rows[first - 1 : last - 1], rows[last - 1][:right]]
                yield token.STRING, "\n".join(whole)[left:]
        elif nested == 0 and found.type not in skipped:
            yield found.type, found.string
