"""The epochs of a DPIS run in the tensors of its state: written, read, and computed again.

Letters as in `dpis`: H rows of the history, F numbers of a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from dpbench.errors import DpbenchError
from dpbench.mechanisms._dpis_epoch import Fixed, Opened, Row, Run, open_epoch

NUMERICS = 1


def rows_of(history_HF: Tensor) -> tuple[Row, ...]:
    """The epochs of one run; empty rows start at -1."""
    return tuple(Row(int(start), rate, multiplier) for start, rate, multiplier in history_HF.tolist() if start >= 0)


def write(memory: dict[str, Tensor], place: int, row: int, opened: Opened) -> None:
    """Write a new epoch into the (cloned) memory of one run."""
    memory["bound_R"][place] = opened.bound
    memory["sum_R"][place] = opened.gradient_sum
    memory["noise_R"][place] = opened.noise
    memory["next_R"][place] = opened.following
    numbers = [opened.row.start, opened.row.rate, opened.row.multiplier]
    memory["history_RHF"][place, row] = torch.tensor(numbers, dtype=torch.float64)


def refuse_history(fixed: Fixed, run: Run, memory: Mapping[str, Tensor]) -> None:
    """Raise DpbenchError unless every epoch of a state from a file has the noise that its predecessors leave.

    `run` and `memory` (R = 1) are of that state. Of a row the rate q = bC/K̃ is what its noisy sum has released. It
    determines K̃/(ÑC) = b/(Ñq), whatever C, and with the rows before it σ_G (Section 4.2).
    """
    expected, size, rows = 0, run.batch_size, run.rows
    noise, total, bound, following = (float(memory[f"{name}_R"]) for name in ("noise", "sum", "bound", "next"))
    if not rows or bool((memory["history_RHF"][0, len(rows) :, 0] != -1).any()):
        raise DpbenchError("its history_RHF has no epochs, or gaps between them")
    for number, row in enumerate(rows):
        if row.start != expected or row.start >= run.step or not 0 < row.rate <= 1:
            raise DpbenchError(f"its epoch {number + 1} begins at step {row.start} with the rate {row.rate:g}")
        opened = open_epoch(fixed, replace(run, step=row.start, rows=rows[:number]), 1.0, size / row.rate)
        if not (_close(row.rate, opened.row.rate) and _close(row.multiplier, opened.row.multiplier)):
            raise DpbenchError(f"its epoch {number + 1} has another noise than the epochs before it leave")
        expected = opened.following
    if not _close(noise, opened.noise) or (run.noisy and not _close(total * rows[-1].rate, size * bound)):
        raise DpbenchError(f"its noise_R = {noise:g}, sum_R = {total:g}: not those of its last epoch")
    if following != expected or run.step > expected:
        raise DpbenchError(f"its next_R = {following:g}: expected {expected}, by its history")


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9)
