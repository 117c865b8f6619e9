"""What a mechanism hands to its update, for the tests that compare it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dpbench.judging.checks._steps import shown


def gradient(mechanism: Any, *problem: Any, step: int = 0) -> Tensor:
    """The noisy gradient (R, P) of step number `step`; `problem`: network, parameters, hyperparameters, data."""
    return next(shown(mechanism, *problem, [step])).gradient_RP
