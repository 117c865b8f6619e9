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

from dpbench.events import Event, RandomSensitivityGaussian
from dpbench.judging.checks._problems import has_field, revealing
from dpbench.step.functional import Network
from dpbench.step.pipeline import Hyperparameters, Observed, State


@runtime_checkable
class OwnSteps(Protocol):
    """What a mechanism declares whose steps no `release` tells: it samples or weights in a way of its own."""

    def reach(self, after: State, hyper: Hyperparameters, examples: int) -> Tensor:
        """How far one example may move what the update gets, all else that is released being equal: (R,).

        `after` is the state after the step. Times the noise multiplier of the step's last event it is the deviation of
        the noise in every coordinate.
        """
        ...

    def inclusion(
        self,
        before: State,
        after: State,
        net: Network,
        hyper: Hyperparameters,
        inputs: Tensor,
        targets: Tensor,
    ) -> Tensor:
        """With which probability each example was in the batch of the step between the two states: (R, N)."""
        ...


@dataclass(frozen=True)
class Step:
    """One step of a stack with hyperparameters on data: the states around it, and what it reported.

    The update of `mechanism` is `Reveal`. Numbers are float64 (R,) where nothing else is said.
    """

    mechanism: Any
    net: Network
    hyper: Hyperparameters
    inputs: Tensor
    targets: Tensor
    before: State
    after: State
    seen: Observed

    @property
    def gradient_RP(self) -> Tensor:
        """What the update got."""
        return self.after.memory["gradient_RP"]

    def events(self) -> list[Any]:
        """The last release of each run in this step: that of the gradient. Raises ValueError where it added none."""
        around = (releases(self.mechanism, state, self.hyper) for state in (self.before, self.after))
        found = []
        for run, (earlier, later) in enumerate(zip(*around, strict=True)):
            if len(later) <= len(earlier) or later[: len(earlier)] != earlier:
                raise ValueError(f"run {run}: step {int(self.before.step_R[run])} did not add to the ledger")
            found.append(later[-1])
        return found

    def multipliers(self) -> Tensor:
        """The noise multiplier that the ledger gives for this step."""
        return torch.tensor([event.noise_multiplier for event in self.events()], dtype=torch.float64)

    def reach(self) -> Tensor:
        """How far one example may move the gradient by the mechanism's own event.

        A mechanism with clip norm C that tells the accountant a noise multiplier s for σ claims Δ = σC/s; in the
        gradient Δ/(qN), or Δ over its own normaliser. Where the event has a random sensitivity, Δ is what that
        multiplies.
        """
        examples, rate_R = len(self.targets), self.hyper.sampling_rate_R
        if isinstance(self.mechanism, OwnSteps):
            return self.mechanism.reach(self.after, self.hyper, examples)
        own = hasattr(self.mechanism, "normaliser")
        divisor_R = self.mechanism.normaliser(rate_R, examples) if own else rate_R * examples
        sensitivity_R: Tensor = self.hyper.clip_norm_R / sample_event(self.mechanism).noise_multiplier
        return sensitivity_R / divisor_R

    def inclusion(self) -> Tensor:
        """The probability (R, N) with which each example enters: q, unless the mechanism says otherwise."""
        if isinstance(self.mechanism, OwnSteps):
            data = (self.net, self.hyper, self.inputs, self.targets)
            return self.mechanism.inclusion(self.before, self.after, *data).double()
        return self.hyper.sampling_rate_R[:, None].expand(-1, len(self.targets))

    def size(self) -> Tensor:
        """What stands for N in the estimate: N itself, or a number that the mechanism has released."""
        if hasattr(self.mechanism, "size"):
            released_R: Tensor = self.mechanism.size(self.after)
            return released_R.double()
        return torch.full((len(self.after.step_R),), float(len(self.targets)), dtype=torch.float64)

    def most_weight(self) -> Tensor | None:
        """A bound of the sum of the weights with which examples enter; None where each has the weight 1/(size·p)."""
        if not hasattr(self.mechanism, "most_weight"):
            return None
        bound_R: Tensor = self.mechanism.most_weight(self.hyper, len(self.targets))
        return bound_R.double()


def shown(
    mechanism: Any,
    net: Network,
    theta_RP: Tensor,
    hyper: Hyperparameters,
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
    opened = revealing(mechanism)
    state: State = opened.start(theta_RP, hyper, *(begun_on or (inputs, targets)))
    for number in range(steps) if isinstance(steps, int) else steps:
        state = dataclasses.replace(state, step_R=torch.full_like(state.step_R, number))
        after, seen = opened.step(net, state, hyper, inputs, targets, len(targets))
        for place, reason in seen.stopped.items():
            raise ValueError(f"run {place} stopped: {reason}")
        yield Step(opened, net, hyper, inputs, targets, state, after, seen)
        state = after


def has_release(mechanism: Any) -> bool:
    """Whether its update can be replaced and the event of its step be asked for."""
    return has_field(mechanism, "update") and hasattr(mechanism, "release")


def can_be_shown(mechanism: Any) -> bool:
    """Whether the checks can look inside: its update can be replaced, and it says what one example may do."""
    return has_release(mechanism) or (has_field(mechanism, "update") and isinstance(mechanism, OwnSteps))


def preparation(mechanism: Any) -> Any:
    """What the mechanism does to the inputs before the network sees them; None where it does nothing."""
    return getattr(mechanism, "preparation", None)


def releases(mechanism: Any, state: State, hyper: Hyperparameters) -> list[list[Event]]:
    """What each run has released so far, one entry for each time."""
    return [
        [event for event, count in composition.parts for _ in range(count)]
        for composition in mechanism.released(state, hyper)
    ]


def sample_event(mechanism: Any) -> Any:
    """The event of a step with q = 1 and σ = 1; its noise multiplier is C/Δ."""
    return mechanism.release(1.0, 1.0, mechanism.sample.sampler)


def random_projections(mechanism: Any) -> int | None:
    """The r of a mechanism whose event says that an example moves the sum by Δ·(χ²_r/r)^(−1/2); None for the others."""
    if not mechanism.private or isinstance(mechanism, OwnSteps):
        return None
    event = sample_event(mechanism)
    return event.projections if isinstance(event, RandomSensitivityGaussian) else None


def views(mechanism: Any, state: State, inputs: Tensor) -> Tensor:
    """What each run's network sees of the inputs (N, ...): (R, N, ...)."""
    seen: Tensor | None = mechanism.view(state, inputs)
    return inputs.expand(len(state.step_R), *inputs.shape) if seen is None else seen
