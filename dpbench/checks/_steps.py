"""What the checks see of a mechanism: the steps it takes, what each adds to the ledger, how far one example may reach.

A mechanism of the ordinary kind declares nothing: all is derived from the event of its step (`release`) and from what
it says it `released`. Others have small methods beside it, each held to what runs:

| method | for whom | what it says |
| --- | --- | --- |
| normaliser | whose sum is not divided by qN | by what it is divided |
| size | whose estimate of the mean is not a sum over N | by what it divides the sum over all examples |
| most_weight | whose examples enter with random weights (microbatches) | an upper bound of the sum of all weights |
| reach, inclusion | whose steps are no release of that kind (`OwnSteps`) | see there |
| plain | whose limit without privacy is no pipeline's | that limit |

Letters: R runs, N examples, P parameters, Δ how far one example may move the sum, s the noise multiplier of an event.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from dpbench.checks._problems import can_reveal, revealing
from dpbench.events import Event, RandomSensitivityGaussian
from dpbench.functional import Network
from dpbench.pipeline import Knobs, Observed, State


@runtime_checkable
class OwnSteps(Protocol):
    """What a mechanism declares whose steps no `release` tells: it samples or weights in a way of its own."""

    def reach(self, after: State, knobs: Knobs, examples: int) -> Tensor:
        """How far one example may move what the update gets, all else that is released being equal: (R,).

        `after` is the state after the step. Times the noise multiplier of the step's last event it is the deviation of
        the noise in every coordinate.
        """
        ...

    def inclusion(
        self, before: State, after: State, net: Network, knobs: Knobs, inputs: Tensor, targets: Tensor
    ) -> Tensor:
        """With which probability each example was in the batch of the step between the two states: (R, N)."""
        ...


@dataclass(frozen=True)
class Step:
    """One step of a stack: the states around it, what it reported and the gradient (R, P) that the update got."""

    before: State
    after: State
    seen: Observed
    gradient_RP: Tensor


def shown(
    mechanism: Any,
    net: Network,
    theta_RP: Tensor,
    knobs: Knobs,
    inputs: Tensor,
    targets: Tensor,
    steps: int | Sequence[int],
    *,
    begun_on: tuple[Tensor, Tensor] | None = None,
) -> Iterator[Step]:
    """The first steps of the mechanism, its parameters held still: `Reveal` stands in the place of its update.

    Or the steps of the numbers given, one after the other, as if those between had been done.

    `begun_on` are the inputs and targets on which it starts, where they are others: what is released of them before
    the first step is then the same for two neighbouring data sets. Raises ValueError where a run has to stop.
    """
    open_mechanism = revealing(mechanism)
    state: State = open_mechanism.start(theta_RP, knobs, *(begun_on or (inputs, targets)))
    for number in range(steps) if isinstance(steps, int) else steps:
        if not isinstance(steps, int):
            state = dataclasses.replace(state, step_R=torch.full_like(state.step_R, number))
        after, seen = open_mechanism.step(net, state, knobs, inputs, targets, len(targets))
        for place, reason in seen.stopped.items():
            raise ValueError(f"run {place} stopped: {reason}")
        yield Step(state, after, seen, after.memory["gradient_RP"])
        state = after


def has_release(mechanism: Any) -> bool:
    """Whether its update can be replaced and the event of its step be asked for."""
    return can_reveal(mechanism) and hasattr(mechanism, "release")


def can_be_shown(mechanism: Any) -> bool:
    """Whether the checks can look inside: its update can be replaced, and it says what one example may do."""
    return has_release(mechanism) or (can_reveal(mechanism) and isinstance(mechanism, OwnSteps))


def unprepared(mechanism: Any) -> Any:
    """The mechanism without what it does to the inputs."""
    return mechanism if preparation(mechanism) is None else dataclasses.replace(mechanism, preparation=None)


def preparation(mechanism: Any) -> Any:
    """What the mechanism does to the inputs before the network sees them; None where it does nothing."""
    return getattr(mechanism, "preparation", None)


def releases(mechanism: Any, state: State, knobs: Knobs) -> list[list[Event]]:
    """What each run has released so far, one entry for each time."""
    return [
        [event for event, count in composition.parts for _ in range(count)]
        for composition in mechanism.released(state, knobs)
    ]


def last_events(mechanism: Any, step: Step, knobs: Knobs) -> list[Any]:
    """The last release of each run in this step: that of the gradient. Raises ValueError where a step added none."""
    pairs = zip(releases(mechanism, step.before, knobs), releases(mechanism, step.after, knobs), strict=True)
    found = []
    for run, (earlier, later) in enumerate(pairs):
        if len(later) <= len(earlier) or later[: len(earlier)] != earlier:
            raise ValueError(f"run {run}: step {int(step.before.step_R[run])} did not add to the ledger")
        found.append(later[-1])
    return found


def multipliers(mechanism: Any, step: Step, knobs: Knobs) -> Tensor:
    """The noise multiplier that the ledger gives for this step: float64 (R,)."""
    return torch.tensor([event.noise_multiplier for event in last_events(mechanism, step, knobs)], dtype=torch.float64)


def sample_event(mechanism: Any) -> Any:
    """The event of a step with q = 1 and σ = 1; its noise multiplier is C/Δ."""
    return mechanism.release(1.0, 1.0, mechanism.sample.sampler)


def reach(mechanism: Any, step: Step, knobs: Knobs, examples: int) -> Tensor:
    """How far one example may move the gradient of this step by the mechanism's own event: float64 (R,).

    A mechanism with clip norm C that tells the accountant a noise multiplier s for σ claims Δ = σC/s; in the gradient
    Δ/(qN), or Δ over its own normaliser. Where the event has a random sensitivity, Δ is what that multiplies.
    """
    if isinstance(mechanism, OwnSteps):
        return mechanism.reach(step.after, knobs, examples)
    divisor_R = knobs.sampling_rate_R * examples
    if hasattr(mechanism, "normaliser"):
        divisor_R = mechanism.normaliser(knobs.sampling_rate_R, examples)
    sensitivity_R: Tensor = knobs.clip_norm_R / sample_event(mechanism).noise_multiplier
    return sensitivity_R / divisor_R


def random_projections(mechanism: Any) -> int | None:
    """The r of a mechanism whose event says that an example moves the sum by Δ·(χ²_r/r)^(−1/2); None for the others."""
    if not mechanism.private or isinstance(mechanism, OwnSteps):
        return None
    event = sample_event(mechanism)
    return event.projections if isinstance(event, RandomSensitivityGaussian) else None


def inclusion(mechanism: Any, step: Step, net: Network, knobs: Knobs, inputs: Tensor, targets: Tensor) -> Tensor:
    """The probability (R, N) with which each example enters this step: q, unless the mechanism says otherwise."""
    if isinstance(mechanism, OwnSteps):
        return mechanism.inclusion(step.before, step.after, net, knobs, inputs, targets).double()
    return knobs.sampling_rate_R[:, None].expand(-1, len(targets))


def size(mechanism: Any, step: Step, examples: int) -> Tensor:
    """What stands for N in the estimate (R,): N itself, or a number that the mechanism has released."""
    if hasattr(mechanism, "size"):
        released_R: Tensor = mechanism.size(step.after)
        return released_R.double()
    return torch.full((len(step.after.step_R),), float(examples), dtype=torch.float64)


def most_weight(mechanism: Any, knobs: Knobs, examples: int) -> Tensor | None:
    """A bound of the sum of the weights with which examples enter, (R,); None where each has the weight 1/(size·p)."""
    if not hasattr(mechanism, "most_weight"):
        return None
    bound_R: Tensor = mechanism.most_weight(knobs, examples)
    return bound_R.double()


def views(mechanism: Any, state: State, inputs: Tensor) -> Tensor:
    """What each run's network sees of the inputs (N, ...): (R, N, ...)."""
    seen: Tensor | None = mechanism.view(state, inputs)
    return inputs.expand(len(state.step_R), *inputs.shape) if seen is None else seen
