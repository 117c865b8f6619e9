"""The last weights of runs without privacy as files that another spec starts from (`weights: {file: ...}`).

Weights of a private run are not kept: their noise and batches come from a generator for benchmarks, repeatable by who
knows the seed, so what protects them is only measured here (docs/randomness.md).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from dpbench.atomic import write_bytes
from dpbench.errors import DpbenchError
from dpbench.plan.parts import build_mechanism
from dpbench.plan.planning import Run
from dpbench.step.functional import network
from dpbench.training.loop import Outcome


def file_of(run: Run) -> str:
    """The name of the file of a run's weights: its spec's name, its label's words and its seed."""
    label = re.sub(r"[^A-Za-z0-9.]+", "-", run.spec.label).strip("-")
    return "-".join(filter(None, [run.spec.name, label, f"seed{run.seed}.pt"]))


def refuse_to_keep(runs: Sequence[Run]) -> None:
    """Raise DpbenchError for the first run that is private, or is not trained because it has a record, or for two runs
    of one file name. Runs that are skipped leave no weights."""
    named: dict[str, Run] = {}
    for run in (one for one in runs if one.action != "skip"):
        if build_mechanism(run.spec).private:
            raise DpbenchError(
                f"--weights-to: {run.title} is private, and no weights of such a run are kept (docs/randomness.md);"
                " choose runs without privacy, such as with --only"
            )
        if run.action != "train":
            raise DpbenchError(f"--weights-to: {run.title} {run.reason}, so it is not trained; add --force")
        other = named.setdefault(file_of(run), run)
        if other.key != run.key:
            raise DpbenchError(
                f"--weights-to: {other.title} and {run.title} would write {file_of(run)}; rename a label"
            )


def keep_weights(outcome: Outcome, build: Callable[[], nn.Module], folder: Path) -> Path:
    """Write the state dictionary of a finished run's model: what it trained, and what was frozen or a buffer.

    Returns the file. Raises DpbenchError where it cannot be written.
    """
    assert outcome.parameters_P is not None
    module = build()
    trained = {name: value[0] for name, value in network(module).split(outcome.parameters_P[None]).items()}
    content = io.BytesIO()
    torch.save({name: trained.get(name, value).clone() for name, value in module.state_dict().items()}, content)
    return write_bytes(folder / file_of(outcome.run), content.getvalue())
