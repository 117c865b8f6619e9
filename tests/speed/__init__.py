"""Benchmarks for asv (docs/benchmarks.md): speed and memory over the history of the project. Nothing else lies here.

The files of the working tree measure every commit, older ones too: what a commit does not have yet is skipped, never
failed. So nothing of dpbench is imported before `setup`, and parameters come from file names, not from the catalog.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2] / "dpbench"


EARLIER = {  # where modules and rooms stood before: the names that earlier commits have, one step back at a time
    "step.mechanism": "step.pipeline",  # before stages were rooms of their own
    "step.samplers.poisson": "step.stages",
    "clipping.rules.jl": "clipping._jl",
    "step.clipped_sum": "clipping._base",  # before rooms
    "step.functional": "functional",
    "step.pipeline": "pipeline",
    "step.stages": "stages",
    "spec.loading": "spec",
    "privacy.accounting": "accounting",
    "privacy.accountants": "accountants",
    "privacy.calibration": "accounting",
    "plan.planning": "plan",
    "store.records": "records",
    "training.loop": "train",
}


def imported(name: str) -> Any:
    """The module `dpbench.<name>`. Raises NotImplementedError, for asv a skip, where the commit lacks it."""
    missing = []
    for module in called(name):
        try:
            return importlib.import_module(f"dpbench.{module}")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "dpbench":
                raise
            missing.append(error)
    raise NotImplementedError(f"{missing[0].name} is not there in this commit") from missing[0]


def called(name: str) -> Iterator[str]:
    """The names of a module, today's first, then those that earlier commits have for it or for its room."""
    yield name
    for known in (name, ".".join(name.split(".")[:2])):
        if known in EARLIER:
            yield from called(EARLIER[known] + name[len(known) :])
            return


def names(folder: str) -> list[str]:
    """The catalog's names of one kind, as the working tree has them."""
    place = PACKAGE / "privacy" / folder if folder == "accountants" else PACKAGE / folder
    files = [path.stem for path in place.glob("[!_]*.py")]
    return sorted(files + [path.parent.name for path in place.glob(f"*/{folder[:-1]}.py")])


def seeds(runs: int) -> Any:
    """What a stack of runs with the seeds 0, 1, ... hands to the generator: int64; (R,) in earlier commits."""
    made = getattr(imported("randomness"), "table", None)
    return importlib.import_module("torch").arange(runs) if made is None else made(range(runs))
