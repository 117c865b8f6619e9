"""Benchmarks for asv (docs/benchmarks.md): speed and memory over the history of the project. Nothing else lies here.

The files of the working tree measure every commit, older ones too: what a commit does not have yet is skipped, never
failed. So nothing of dpbench is imported before `setup`, and parameters come from file names, not from the catalog.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2] / "dpbench"


def imported(name: str) -> Any:
    """The module `dpbench.<name>`. Raises NotImplementedError, for asv a skip, where the commit lacks it."""
    try:
        return importlib.import_module(f"dpbench.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "dpbench":
            raise
        raise NotImplementedError(f"{error.name} is not there in this commit") from error


def names(folder: str) -> list[str]:
    """The catalog's names of one kind, as the working tree has them."""
    files = [path.stem for path in (PACKAGE / folder).glob("[!_]*.py")]
    return sorted(files + [path.parent.name for path in (PACKAGE / folder).glob(f"*/{folder[:-1]}.py")])


def seeds(runs: int) -> Any:
    """What a stack of runs with the seeds 0, 1, ... hands to the generator: int64; (R,) in earlier commits."""
    made = getattr(imported("randomness"), "table", None)
    return importlib.import_module("torch").arange(runs) if made is None else made(range(runs))
