"""What planning remembers from one process to the next: calibrated noise, and models that passed their trial.

One JSON file, `plan.json`, in the folder DPBENCH_CACHE, else in the user's cache folder. It saves time and decides
nothing: a remembered σ is a hint, which the accountant confirms (σ meets the target, the next smaller one does not) or
which is dropped. Only trials of dpbench's own models, engines and rules are remembered, by the bytes of the code that
takes part, the versions of Python and torch, and the processor; training tries a model again on its real data. A file
that cannot be read or written is as good as none.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dpbench.atomic import read_bytes, write_text
from dpbench.catalog import find
from dpbench.errors import DpbenchError
from dpbench.events import Composition, to_json
from dpbench.privacy.calibration import TIGHTEST, Calibrated, solve

FILE = "plan.json"
MOST = 10_000  # entries of a kind; the oldest go first
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
        self._new: dict[str, dict[str, Any]] = {"noise": {}, "trials": {}}
        self._known = _read(path)

    def calibrated(
        self,
        ledger: Callable[[float], Composition],
        epsilon: float,
        delta: float,
        accountant: str | None,
    ) -> Calibrated:
        """`solve` for the noise multiplier of a ledger, which first asks whether the remembered one is the answer."""
        entry = find("accountants", accountant or TIGHTEST[0])
        key = _hash([to_json(ledger(1.0)), epsilon, delta, accountant, entry.version])
        hint = self._get("noise", key) if entry.origin == "dpbench" else None
        asked: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "accountant": accountant}
        found = None
        if isinstance(hint, float):
            try:
                found = solve("noise_multiplier", ledger, hint=hint, **asked)
            except DpbenchError:  # the accountant refuses beside the hint; another answer there may be
                found = None
        found = found or solve("noise_multiplier", ledger, **asked)
        self._new["noise"][key] = float(found.value)
        return found

    def passed(self, trial: Iterable[object], modules: Iterable[str]) -> bool:
        """Whether a trial has been passed by this code; `modules` are those of the objects that are tried."""
        key = _trial_key(trial, modules)
        return key is not None and self._get("trials", key) is True

    def passes(self, trial: Iterable[object], modules: Iterable[str]) -> None:
        """Remember that a trial is passed."""
        key = _trial_key(trial, modules)
        if key is not None:
            self._new["trials"][key] = True

    def write(self) -> None:
        """Add what is new to the file, beside what other processes have written; without effect where that fails."""
        news = {
            kind: {k: v for k, v in new.items() if self._known[kind].get(k) != v} for kind, new in self._new.items()
        }
        if self._path is None or not any(news.values()):
            return
        there = _read(self._path)
        both = {kind: dict(list((there[kind] | new).items())[-MOST:]) for kind, new in news.items()}
        try:
            write_text(self._path, json.dumps(both))
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
        except (DpbenchError, ValueError, RecursionError):
            data = None
    kinds = data if isinstance(data, Mapping) else {}
    found = {kind: kinds.get(kind) for kind in ("noise", "trials")}
    return {kind: dict(one) if isinstance(one, Mapping) else {} for kind, one in found.items()}


def _trial_key(trial: Iterable[object], modules: Iterable[str]) -> str | None:
    """The key of a trial; None where code of others takes part, whose bytes are not known."""
    words = [str(part) for part in trial]
    if any(module.partition(".")[0] != "dpbench" for module in modules) or any(" at 0x" in part for part in words):
        return None
    return _hash([*words, _code()])


@cache
def _code() -> list[str]:
    """What a trial depends on besides the model: dpbench's code, Python, torch and the processor."""
    import torch

    root = Path(__file__).parents[1]
    files = sorted(file for room in _ROOMS for file in (root / room).rglob("*.py"))
    content = hashlib.sha256()
    for file in [root / "randomness.py", *files]:
        content.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return [content.hexdigest(), platform.python_version(), str(torch.__version__), platform.machine()]


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
