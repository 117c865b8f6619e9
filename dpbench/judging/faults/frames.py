"""The frame of the planted faults: NoisySGD, each line of which can be replaced. With none replaced it is sound.

Shapes: R runs, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from dpbench.clipping import vmap
from dpbench.clipping.rules.flat import Flat
from dpbench.events import Event
from dpbench.step.clipped_sum import Clipped, Draw, Examples
from dpbench.step.functional import Network
from dpbench.step.mechanism import Hyperparameters, Kept, Observed, Released, State
from dpbench.step.noise.constant import ConstantNoise
from dpbench.step.pipeline import Pipeline
from dpbench.step.samplers.poisson import PoissonSampler
from dpbench.step.stages import Batch, OwnSum, gaussian_noise
from dpbench.step.updates.sgd import Sgd


@dataclass(frozen=True)
class Seen:
    """What the release of one step has seen: the batch, its clipped sum with norms and losses, the noise's deviation.

    `deviation_R` is absolute, float64; `examples` is the number of training examples.
    """

    state: State
    hyper: Hyperparameters
    batch: Batch
    found: Clipped
    deviation_R: Tensor
    examples: int


def noised(seen: Seen, times: float = 1.0) -> Tensor:
    """The sum with its noise, `times` the stated deviation."""
    return gaussian_noise(seen.found.sum_RP, times * seen.deviation_R, seen.hyper.keys_RS, seen.state.step_R)


def expected_size(seen: Seen) -> Tensor:
    """The expected batch size qN."""
    return seen.hyper.sampling_rate_R * seen.examples


def _untouched(noisy_RP: Tensor, seen: Seen) -> Tensor:
    del seen
    return noisy_RP


def _nothing(seen: Seen) -> Mapping[str, Tensor]:
    del seen
    return {}


def _gradient(released: Released) -> Tensor:
    return released.gradient_RP


def _as_they_are(events: tuple[Event, ...]) -> tuple[Event, ...]:
    return events


@dataclass(frozen=True)
class Frame(Pipeline):
    """A pipeline whose lines can be replaced.

    Of the release: `draws` the sum with its noise, `leaks` what becomes of it then, `divides` by what it is divided,
    `shows` further values beside the gradient, `says` the events. `keeps`: the sum stays in the private memory, as
    `last_RP`. Of the update: `takes` what it has for the gradient.
    """

    draws: Callable[[Seen], Tensor] = noised
    leaks: Callable[[Tensor, Seen], Tensor] = _untouched
    divides: Callable[[Seen], Tensor] = expected_size
    shows: Callable[[Seen], Mapping[str, Tensor]] = _nothing
    says: Callable[[tuple[Event, ...]], tuple[Event, ...]] = _as_they_are
    keeps: bool = False
    takes: Callable[[Released], Tensor] = _gradient

    def start(self, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor) -> State:
        state = super().start(theta_RP, hyper, inputs, targets)
        return replace(state, private={"last_RP": torch.zeros_like(theta_RP)} if self.keeps else {})

    def release(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[Released, Kept]:
        """The noisy mean gradient, line by line as a pipeline has it but for the preparation."""
        rate_R, count = hyper.sampling_rate_R, len(targets)
        batch = self.sample(hyper.keys_RS, state.step_R, rate_R, count)
        examples = Examples(inputs[batch.index_RB], targets[batch.index_RB], batch.mask_RB)
        draw = Draw(hyper.keys_RS, state.step_R, batch.index_RB, rate_R, count)
        found = self._sum(draw, net, state.theta_RP, examples, hyper.clip_norm_R, chunk)
        deviation_R = torch.zeros_like(hyper.clip_norm_R)
        if self.noise is not None:
            stated_R = hyper.noise_multiplier_R * self.noise.factor(state.step_R, rate_R) * hyper.clip_norm_R
            deviation_R = torch.where(hyper.noise_multiplier_R > 0, stated_R, deviation_R)
        seen = Seen(state, hyper, batch, found, deviation_R, count)
        total_RP = found.sum_RP if self.noise is None else self.draws(seen)
        gradient_RP = self.leaks(total_RP, seen) / self.divides(seen).to(total_RP.dtype)[:, None]
        observed = Observed(
            drawn_R=batch.mask_RB.sum(1),
            loss_R=found.loss_RB.double().sum(1),
            clipped_R=(batch.mask_RB & (found.norm_RB > hyper.clip_norm_R[:, None])).sum(1),
            finite_R=found.sum_RP.isfinite().all(1),
        )
        released = Released(gradient_RP, partial(self._events, state, hyper), self.shows(seen))
        return released, Kept(observed, {"last_RP": found.sum_RP} if self.keeps else {})

    def update(self, state: State, rate_R: Tensor, released: Released) -> State:
        return super().update(state, rate_R, replace(released, gradient_RP=self.takes(released)))

    def _events(self, state: State, hyper: Hyperparameters, run: int) -> tuple[Event, ...]:
        return self.says(super()._events(state, hyper, run))


Kind = TypeVar("Kind", bound=Pipeline)


def noisy_sgd(kind: type[Kind], **parts: Any) -> Kind:
    """NoisySGD as a `kind` of pipeline, with some of its stages or lines replaced.

    >>> noisy_sgd(Frame).private
    True
    """
    stages: dict[str, Any] = {
        "sample": PoissonSampler(),
        "rule": Flat(),
        "noise": ConstantNoise(),
        "optimizer": Sgd(),
        "engine": None if isinstance(parts.get("rule"), OwnSum) else vmap.clipping,
    }
    return kind(**(stages | parts))
