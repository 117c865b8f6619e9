"""What one process leaves to the next: noise and its ε, models that passed their trial, their work, fastest engines.

One JSON file, `plan.json`, in the folder DPBENCH_CACHE, else in the user's cache folder. Only answers of dpbench's own
accountants, models and rules are remembered, by the bytes of the code that takes part, the versions of Python and its
packages, and the processor; the fastest engine also of models of others, by the hash of their code. The file is the
user's own, and `dpbench plan` shows what it says; before training calibrated noise is confirmed (σ meets the target,
the next smaller one does not), also where it leads to the record of another budget, a model is tried on its real data,
and the report computes every ε from the ledger. A file that cannot be read or written, or whose digest is not that of
its content, is as good as none.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpbench.atomic import read_bytes, write_text
from dpbench.errors import DpbenchError
from dpbench.store.reading import digest

FILE = "plan.json"
MOST = 10_000  # entries of a kind; the oldest go first
_SECONDS = 5.0  # between two writings of a plan that is being made
_KINDS = ("noise", "trials", "sizes", "engines")
_STATED = ("epsilon", "epsilon_kind", "epsilon_by", "epsilon_because", "epsilon_version")
_ROOMS = ("step", "clipping", "models", "plan")


def cache_file() -> Path:
    """Where planning remembers: in DPBENCH_CACHE, else in the user's cache folder."""
    folder = os.environ.get("DPBENCH_CACHE")
    if not folder:
        import pooch

        folder = str(pooch.os_cache("dpbench"))
    return Path(folder).expanduser() / FILE


class Cache:
    """The noise and the trials that are known; `path` None remembers only for as long as the object lives."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._new: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}
        self._known = _read(path)
        self._written = time.monotonic()

    def noise(self, asked: list[Any]) -> dict[str, Any] | None:
        """The noise and the ε that were found for a question (`noise.py`), None if they are not known."""
        found = self._get("noise", _hash([asked, _code("privacy")]))
        return dict(found) if _is_noise(found, asked[0] == "calibrated") else None

    def remember_noise(self, asked: list[Any], found: Mapping[str, Any]) -> None:
        self._new["noise"][_hash([asked, _code("privacy")])] = dict(found)

    def passed(self, trial: Iterable[object], modules: Iterable[str]) -> bool:
        """Whether a trial has been passed by this code; `modules` are those of the objects that are tried."""
        key = _trial_key(trial, modules)
        return key is not None and self._get("trials", key) is True

    def passes(self, trial: Iterable[object], modules: Iterable[str]) -> None:
        """Remember that a trial is passed."""
        key = _trial_key(trial, modules)
        if key is not None:
            self._new["trials"][key] = True

    def sizes(
        self, trial: Iterable[object], modules: Iterable[str], count: Callable[[], tuple[int, int, int]]
    ) -> tuple[int, int, int]:
        """The sizes (`trial.Sizes`) of a model that passed its trial; counted where they are not known."""
        key = _trial_key(["sizes", *trial], modules)
        found = None if key is None else self._get("sizes", key)
        if isinstance(found, list) and len(found) == 3 and all(type(one) is int and one >= 0 for one in found):
            return found[0], found[1], found[2]
        counted = count()
        if key is not None:
            self._new["sizes"][key] = list(counted)
        return counted

    def engine(self, stack: Iterable[object]) -> dict[str, Any] | None:
        """What was chosen for such a stack on this machine (`training/fastest.py`), None if it is not known.

        The question (`stacks.engine_question`) holds the hash of code of others, which may use more that is not hashed:
        training asks the engine whether it still takes the model.
        """
        key = _trial_key(["engine", *stack], (), "training")
        found = None if key is None else self._get("engines", key)
        return dict(found) if found is not None and _is_engine(found) else None

    def remember_engine(self, stack: Iterable[object], found: Mapping[str, Any]) -> None:
        """`found`: the `engine`, its `chunk` and the `seconds` of what was tried."""
        key = _trial_key(["engine", *stack], (), "training")
        if key is not None:
            self._new["engines"][key] = dict(found)

    def forgotten(self) -> Cache:
        """A cache of the same file that knows nothing of it; what it writes replaces what is there."""
        empty = Cache()
        empty._path = self._path
        return empty

    @contextmanager
    def written_as_it_goes(self) -> Iterator[None]:
        """What is found within is written at its end where the last writing is seconds ago, and where it is left early.

        A calibration may take ten seconds, and a plan may ask for hundreds: neither Ctrl-C nor a kill forgets them.
        """
        try:
            yield
        except BaseException:
            self.write()
            raise
        if time.monotonic() - self._written > _SECONDS:
            self.write()

    def write(self) -> None:
        """Add what is new to the file, beside what other processes have written; without effect where that fails."""
        self._written = time.monotonic()
        news = {
            kind: {k: v for k, v in new.items() if self._known[kind].get(k) != v} for kind, new in self._new.items()
        }
        if self._path is None or not any(news.values()):
            return
        there = _read(self._path)
        both = {kind: dict(list((there[kind] | new).items())[-MOST:]) for kind, new in news.items()}
        try:
            write_text(self._path, json.dumps({**both, "digest": digest(both)}))
        except DpbenchError:
            return
        self._known = both

    def _get(self, kind: str, key: str) -> Any:
        return self._new[kind].get(key, self._known[kind].get(key))


def _read(path: Path | None) -> dict[str, dict[str, Any]]:
    """The file's content; what is no such file is empty."""
    data: Any = None
    if path is not None:
        try:
            data = json.loads(read_bytes(path))
            if not isinstance(data, Mapping) or data.get("digest") != digest(data):
                data = None
        except (DpbenchError, ValueError, RecursionError):
            data = None
    kinds = data or {}
    found = {kind: kinds.get(kind) for kind in _KINDS}
    return {kind: dict(one) if isinstance(one, Mapping) else {} for kind, one in found.items()}


def _trial_key(trial: Iterable[object], modules: Iterable[str], *rooms: str) -> str | None:
    """The key of a trial; None where code of others takes part, whose bytes are not known."""
    words = [str(part) for part in trial]
    if any(module.partition(".")[0] != "dpbench" for module in modules) or any(" at 0x" in part for part in words):
        return None
    return _hash([*words, _code(*_ROOMS, *rooms)])


@cache
def _code(*rooms: str) -> list[str]:
    """What an answer depends on besides the question: the code of some rooms, Python, its packages, the processor."""
    root = Path(__file__).parents[1]
    files = sorted(file for room in rooms for file in (root / room).rglob("*.py"))
    content = hashlib.sha256()
    for file in [root / "randomness.py", root / "events.py", *files]:
        content.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    packages = [version(name) for name in ("numpy", "scipy", "torch")]
    return [content.hexdigest(), platform.python_version(), *packages, platform.machine()]


def _is_noise(found: Any, calibrated: bool) -> bool:
    """Whether a value of the file has the form of a remembered noise."""
    if not isinstance(found, Mapping) or set(found) != {*_STATED, *["noise_multiplier"] * calibrated}:
        return False
    numbers = [found[name] for name in ("noise_multiplier", "epsilon") if name in found]
    if not calibrated:  # an accountant may have refused
        numbers = [one for one in numbers if one is not None]
    words = [found[name] for name in _STATED[1:] if found[name] is not None]
    return all(type(one) is float and 0 <= one < math.inf for one in numbers) and all(type(one) is str for one in words)


def _is_engine(found: Any) -> bool:
    """Whether a value of the file has the form of a remembered engine."""
    if not isinstance(found, Mapping) or set(found) != {"engine", "chunk", "seconds"}:
        return False
    seconds = found["seconds"]
    numbers = isinstance(seconds, Mapping) and all(
        type(one) is str or (type(one) is float and 0 < one < math.inf) for one in seconds.values()
    )
    known = type(found["engine"]) is str and type(seconds.get(found["engine"])) is float if numbers else False
    return known and type(found["chunk"]) is int and found["chunk"] >= 1


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
