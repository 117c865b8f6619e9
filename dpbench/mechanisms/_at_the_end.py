"""What mechanisms share that release the parameters of a logistic regression at the end, as one Gaussian event.

The event's noise multiplier is relative to the sensitivity. Shapes: R runs, B batch, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from dpbench.errors import DpbenchError
from dpbench.events import Adjacency, Composition, Event, Gaussian
from dpbench.step import logistic
from dpbench.step.mechanism import Hyperparameters, Released, Setting, State

NOTHING: Composition = Composition(())


def check_radius(setting: Setting) -> float:
    """The largest norm of an input, `clip_norm`. Raises DpbenchError where it is no finite number above 0."""
    radius = setting.clip_norm
    if radius is None or not 0 < radius < float("inf"):
        raise DpbenchError(f"clip_norm = {radius}: is the largest norm of an input; expected a finite number above 0")
    return radius


def planned(noise_multiplier: float | None, steps: int, adjacency: Adjacency) -> Composition:
    """The ledger: one event, however many steps. Raises ValueError without noise."""
    if not noise_multiplier:
        raise ValueError(f"noise_multiplier = {noise_multiplier!r}: expected a number above 0")
    event = Gaussian(noise_multiplier, adjacency, sensitivity=1.0)
    return Composition(((event, 1),)) if steps else NOTHING


def so_far(state: State, hyper: Hyperparameters, adjacency: Adjacency) -> tuple[Composition, ...]:
    """The ledger of each run: nothing before its last step."""
    numbers = zip(state.step_R.tolist(), hyper.steps_R.tolist(), hyper.noise_multiplier_R.tolist(), strict=True)
    return tuple(planned(sigma, int(done >= steps), adjacency) for done, steps, sigma in numbers)


def letting_go(
    ends: Sequence[int], noisy_EP: Tensor | None, theta_RP: Tensor, hyper: Hyperparameters, adjacency: Adjacency
) -> Released:
    """What a step releases: the parameters of the runs `ends`, one row for each, and nothing of the others."""
    parameters_RP = torch.zeros_like(theta_RP)
    ended_R = torch.zeros(len(theta_RP), dtype=torch.bool, device=theta_RP.device)
    if noisy_EP is not None:
        ended_R[list(ends)] = True
        parameters_RP[ended_R] = noisy_EP.to(theta_RP.dtype)
    events: Callable[[int], tuple[Event, ...]] = partial(
        _events, frozenset(ends), hyper.noise_multiplier_R.tolist(), adjacency
    )
    values = {"parameters_RP": parameters_RP, "ended_R": ended_R}
    return Released(torch.zeros_like(theta_RP), events, values)


def _events(ends: frozenset[int], multipliers: list[float], adjacency: Adjacency, run: int) -> tuple[Event, ...]:
    return tuple(event for event, _ in planned(multipliers[run], int(run in ends), adjacency).parts)


def after(state: State, released: Released) -> State:
    """The state after a step: the released parameters in the last one, before it the initial ones."""
    ended_R1 = released.values["ended_R"][:, None]
    theta_RP = torch.where(ended_R1, released.values["parameters_RP"], state.theta_RP)
    return replace(state, theta_RP=theta_RP, step_R=state.step_R + 1)


def view(state: State, inputs: Tensor) -> Tensor:
    """The inputs (B, ...) for each run, clipped as in training: (R, B, ...). `clip_norm_R` is in the state's memory."""
    seen = inputs.expand(len(state.step_R), *inputs.shape)
    return logistic.clipped(seen, state.memory["clip_norm_R"]).to(state.theta_RP.dtype)
