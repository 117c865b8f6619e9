"""What a mechanism hands to its update, for the tests that compare it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dpbench.judging.check_tools.steps import Step, shown
from dpbench.step.functional import Network
from dpbench.step.mechanism import Hyperparameters, State, updated


def gradient(mechanism: Any, *problem: Any, step: int = 0) -> Tensor:
    """The noisy gradient (R, P) of step number `step`; `problem`: network, parameters, hyperparameters, data."""
    return next(shown(mechanism, *problem, [step])).gradient_RP


def stepped(
    mechanism: Any, net: Network, state: State, stack: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
) -> Step:
    """One step from any state, with all that a check sees of it; a run that has to stop says so in `seen`."""
    released, kept = mechanism.release(net, state, stack, inputs, targets, chunk)
    after = updated(mechanism, state, stack, released, kept)
    return Step(mechanism, net, stack, inputs, targets, state, after, released, kept.observed)
