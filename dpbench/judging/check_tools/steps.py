"""What the checks need to know of a mechanism: its steps, their events, how far one example may move the gradient.

For a pipeline all of it follows from the event of its step, its rule, and its method `released`. Other mechanisms have
a method `event(rate, noise_multiplier)`, or the small methods below; the checks compare each with what runs:

| method | needed if | value |
| --- | --- | --- |
| size | the estimate of the mean is not a sum divided by N | the divisor of the sum over all examples |
| rule.divisor | the sum is not divided by qN | its divisor |
| rule.most_weight | examples have random weights (microbatches) | a bound of the sum of all weights |
| clip_norm | the clip norm moves along the way | that of the step after a state, (R,) |
| gradient_share | an event tells of more than the gradient | its noise multiplier over that of the gradient, (R,) |
| reach, inclusion | no such event describes a step | see `OwnSteps` |
| plain | the limit without privacy is not that of a pipeline | that limit |

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
from dpbench.step.clipped_sum import Draw
from dpbench.step.functional import Network
from dpbench.step.mechanism import Hyperparameters, Observed, Released, State, prepared, updated


@runtime_checkable
class OwnSteps(Protocol):
    """The methods of a mechanism whose steps no single event describes: it samples or weights in its own way."""

    def reach(self, after: State, hyper: Hyperparameters, examples: int) -> Tensor:
        """How far one example may move the gradient estimate, given the other released values: (R,).

        `after` is the state after the step. The noise in every coordinate has this times the noise multiplier of the
        step's last event as its standard deviation.
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
        """The probability of each example to be in the batch of the step between the two states: (R, N)."""
        ...


@dataclass(frozen=True)
class Step:
    """One step of a stack: the states before and after it, its released values, its diagnostics.

    The parameters are those before the step. The methods return float64 (R,) unless stated otherwise.
    """

    mechanism: Any
    net: Network
    hyper: Hyperparameters
    inputs: Tensor
    targets: Tensor
    before: State
    after: State
    released: Released
    seen: Observed

    @property
    def gradient_RP(self) -> Tensor:
        """What the update got."""
        return self.released.gradient_RP

    def events(self) -> list[Any]:
        """The last event of each run in this step, that of the gradient. Raises ValueError if the step added none."""
        around = (released_events(self.mechanism, state, self.hyper) for state in (self.before, self.after))
        found = []
        for run, (earlier, later) in enumerate(zip(*around, strict=True)):
            if len(later) <= len(earlier) or later[: len(earlier)] != earlier:
                raise ValueError(f"run {run}: step {int(self.before.step_R[run])} did not add to the ledger")
            found.append(later[-1])
        return found

    def multipliers(self) -> Tensor:
        """The noise multiplier of this step in the ledger."""
        return torch.tensor([event.noise_multiplier for event in self.events()], dtype=torch.float64)

    def clip_norms(self) -> Tensor:
        """The clip norm of this step."""
        found: Tensor = self.hyper.clip_norm_R
        if hasattr(self.mechanism, "clip_norm"):
            found = self.mechanism.clip_norm(self.before, self.hyper)
        return found

    def deviation(self) -> Tensor:
        """The deviation of the noise in every coordinate of the gradient, according to the ledger.

        What is released beside the gradient by the same event takes its share, so the gradient has more noise then; a
        declared share above 1, which would be less noise, counts as 1.
        """
        whole_R = self.multipliers() * self.reach()
        if not hasattr(self.mechanism, "gradient_share"):
            return whole_R
        share_R: Tensor = self.mechanism.gradient_share(self.before, self.hyper, len(self.targets))
        return whole_R / share_R.clamp_max(1)

    def reach(self) -> Tensor:
        """How far one example may move the gradient according to the event.

        An event with noise multiplier s for noise σC claims the sensitivity Δ = σC/s of the sum, and Δ/(qN), or Δ over
        the rule's divisor, of the gradient. A random sensitivity is Δ times a random factor.
        """
        examples, rate_R = len(self.targets), self.hyper.sampling_rate_R
        if isinstance(self.mechanism, OwnSteps):
            return self.mechanism.reach(self.after, self.hyper, examples)
        rule = getattr(self.mechanism, "rule", None)
        divisor_R = None if rule is None else rule.divisor(rate_R, examples)
        sensitivity_R: Tensor = self.clip_norms() / sample_event(self.mechanism).noise_multiplier
        return sensitivity_R / (rate_R * examples if divisor_R is None else divisor_R)

    def inclusion(self) -> Tensor:
        """The inclusion probability (R, N) of each example: q, unless the mechanism declares others."""
        if isinstance(self.mechanism, OwnSteps):
            data = (self.net, self.hyper, self.inputs, self.targets)
            return self.mechanism.inclusion(self.before, self.after, *data).double()
        return self.hyper.sampling_rate_R[:, None].expand(-1, len(self.targets))

    def size(self) -> Tensor:
        """The N of the estimate: N itself, or a number that the mechanism has released."""
        if hasattr(self.mechanism, "size"):
            released_R: Tensor = self.mechanism.size(self.after)
            return released_R.double()
        return torch.full((len(self.after.step_R),), float(len(self.targets)), dtype=torch.float64)

    def divisors(self, p_RN: Tensor) -> Tensor:
        """By what the gradient of each example is divided in the estimate, (R, N): N·p, or what its rule says."""
        rule = getattr(self.mechanism, "rule", None)
        divisor_R = None if rule is None else rule.divisor(self.hyper.sampling_rate_R, len(self.targets))
        if divisor_R is None or self.most_weight() is not None:
            return p_RN * self.size()[:, None]
        divisors_RN: Tensor = divisor_R[:, None].expand_as(p_RN)
        return divisors_RN

    def most_weight(self) -> Tensor | None:
        """A bound of the sum of the examples' weights; None if each has the weight 1/(size·p)."""
        rule = getattr(self.mechanism, "rule", None)
        if rule is None or not hasattr(rule, "most_weight"):
            return None
        bound_R: Tensor = rule.most_weight(self.hyper.sampling_rate_R, len(self.targets))
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
    """The first steps of the mechanism with fixed parameters: the update's changes are undone after each step.

    If step numbers are given, these steps, as if those between had been done.

    `begun_on` are other inputs and targets for `start`, so that the values released before the first step are the same
    for two neighbouring data sets. Raises ValueError if a run must stop.
    """
    mechanism = on_vectors(mechanism)
    state: State = mechanism.start(theta_RP, hyper, *(begun_on or (inputs, targets)))
    state, refused = prepared(mechanism, net, state, inputs, targets)
    for place, reason in refused.items():
        raise ValueError(f"run {place} is refused: {reason}")
    for number in range(steps) if isinstance(steps, int) else steps:
        state = dataclasses.replace(state, step_R=torch.full_like(state.step_R, number))
        released, kept = mechanism.release(net, state, hyper, inputs, targets, len(targets))
        for place, reason in kept.observed.stopped.items():
            raise ValueError(f"run {place} stopped: {reason}")
        after = updated(mechanism, state, hyper, released, kept)
        after = dataclasses.replace(after, theta_RP=state.theta_RP)
        yield Step(mechanism, net, hyper, inputs, targets, state, after, released, kept.observed)
        state = after


def has_event(mechanism: Any) -> bool:
    """Whether it gives the event of a step."""
    return callable(getattr(mechanism, "event", None))


def can_be_shown(mechanism: Any) -> bool:
    """Whether it declares the effect of one example."""
    return has_event(mechanism) or isinstance(mechanism, OwnSteps)


def preparation(mechanism: Any) -> Any:
    """The mechanism's preparation of the inputs; None without one."""
    return getattr(mechanism, "preparation", None)


def shuffled(mechanism: Any) -> bool:
    """Whether its batches are those of shuffled epochs, and so depend on each other."""
    return getattr(getattr(mechanism, "sample", None), "sampler", None) == "shuffled"


def with_plain_loss(mechanism: Any) -> Any:
    """The mechanism without smoothing and without augmentation, if it has any: with gradients of the loss itself."""
    others = {name: None for name in ("smoothing", "augmentation") if getattr(mechanism, name, None) is not None}
    return dataclasses.replace(mechanism, **others) if others else mechanism


@dataclass(frozen=True)
class _OnVectors:
    """An augmentation of pictures that takes vectors as well: pictures of one channel and, if they halve, two rows."""

    augmentation: Any

    def __call__(self, draw: Draw, inputs: Tensor) -> Tensor:
        vectors = inputs.dim() == 3
        rows = 2 if inputs.shape[-1] % 2 == 0 else 1
        pictures = inputs.reshape(*inputs.shape[:2], 1, rows, -1) if vectors else inputs
        views: Tensor = self.augmentation(draw, pictures)
        return views.flatten(3) if vectors else views


def on_vectors(mechanism: Any) -> Any:
    """The mechanism, whose augmentation, if it has one, then takes the vectors of the checks' problems."""
    found = getattr(mechanism, "augmentation", None)
    if found is None or isinstance(found, _OnVectors):
        return mechanism
    return dataclasses.replace(mechanism, augmentation=_OnVectors(found))


def smoothing(mechanism: Any) -> Any:
    """The mechanism's smoothing of the loss; None without one."""
    return getattr(mechanism, "smoothing", None)


@dataclass(frozen=True)
class _Public:
    """A smoothing whose shifts are those for `examples` records, however many there are."""

    smoothing: Any
    examples: int

    def shifts(
        self, draw: Draw, learning_rate_R: Tensor, deviation_R: Tensor, size: int, dtype: torch.dtype
    ) -> Tensor | None:
        public = dataclasses.replace(draw, examples=self.examples)
        shifts: Tensor | None = self.smoothing.shifts(public, learning_rate_R, deviation_R, size, dtype)
        return shifts


def with_public_size(mechanism: Any, examples: int) -> Any:
    """The mechanism with the same number of records in the scale of its smoothing, for two neighbouring data sets."""
    if smoothing(mechanism) is None:
        return mechanism
    return dataclasses.replace(mechanism, smoothing=_Public(mechanism.smoothing, examples))


def released_events(mechanism: Any, state: State, hyper: Hyperparameters) -> list[list[Event]]:
    """The events of each run so far, one entry for each."""
    return [
        [event for event, count in composition.parts for _ in range(count)]
        for composition in mechanism.released(state, hyper)
    ]


def sample_event(mechanism: Any) -> Any:
    """The event of a step with q = 1 and σ = 1; its noise multiplier is C/Δ."""
    return mechanism.event(1.0, 1.0)


def random_projections(mechanism: Any) -> int | None:
    """The r of a mechanism whose event has the random sensitivity Δ·(χ²_r/r)^(−1/2); None for the others."""
    if not mechanism.private or isinstance(mechanism, OwnSteps):
        return None
    event = sample_event(mechanism)
    return event.projections if isinstance(event, RandomSensitivityGaussian) else None


def views(mechanism: Any, state: State, inputs: Tensor) -> Tensor:
    """What each run's network gets for the inputs (N, ...): (R, N, ...)."""
    seen: Tensor | None = mechanism.view(state, inputs)
    return inputs.expand(len(state.step_R), *inputs.shape) if seen is None else seen
