"""A mechanism composed of the five stages: sample -> gradient -> clip -> noise -> update.

Gradient and clip are one stage (a clipping engine). Preset mechanisms in `mechanisms/` are pipelines with a name; a
mechanism that is not a chain of these stages implements `Mechanism` itself.
Shapes: R runs, B batch, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from dpbench.clipping._base import Clipped, ClippedSum, Examples
from dpbench.events import Composition, SampledGaussian
from dpbench.functional import Network
from dpbench.stages import PoissonSampler, Sample, Update, gaussian_noise

NUMERICS = 1


@dataclass(frozen=True)
class Knobs:
    """What may differ between the runs of one stack, each of shape (R,); seeds int64, the rest float64.

    `clip_norm_R` is inf and `noise_multiplier_R` 0 where a mechanism has none. `noise_multiplier_R` is relative to
    the clip norm.
    """

    seed_R: Tensor
    sampling_rate_R: Tensor
    learning_rate_R: Tensor
    clip_norm_R: Tensor
    noise_multiplier_R: Tensor

    def take(self, index: Tensor) -> Knobs:
        return Knobs(**{name: value[index] for name, value in vars(self).items()})


@dataclass(frozen=True)
class State:
    """Where the runs of a stack stand. `memory` is the update's: tensors (R, P) by name. Steps done: `step_R`."""

    theta_RP: Tensor
    memory: Mapping[str, Tensor]
    step_R: Tensor

    def take(self, index: Tensor) -> State:
        memory = {name: value[index] for name, value in self.memory.items()}
        return State(self.theta_RP[index], memory, self.step_R[index])


@dataclass(frozen=True)
class Observed:
    """Diagnostics of one step, (R,) each; not private and never released.

    Number of examples drawn, sum of their losses, how many were clipped, and whether the sum of gradients was finite.
    """

    drawn_R: Tensor
    loss_R: Tensor
    clipped_R: Tensor
    finite_R: Tensor


class Mechanism(Protocol):
    """How one step of training goes, and what it releases."""

    @property
    def private(self) -> bool: ...

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        """The releases of a whole run, for the accountant; None when the mechanism is not private."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """What a reviewer asks about the mechanism: sampler, adjacency, normalisation and so on."""
        ...

    def start(self, theta_RP: Tensor) -> State:
        """The state before the first step."""
        ...

    def step(
        self, net: Network, state: State, knobs: Knobs, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[State, Observed]:
        """One step of every run of the stack. `chunk`: batch places per call; it never changes what is computed."""
        ...


def plain_sum(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """The sum of the gradients without clipping, by one ordinary backward pass per chunk (norms are not computed)."""
    del clip_R  # there is nothing to clip

    def summed(named: dict[str, Tensor], inputs: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        loss_B = torch.nn.functional.cross_entropy(net.outputs(named, inputs), targets, reduction="none") * mask
        return loss_B.sum(), loss_B

    total = torch.zeros_like(theta_RP)
    losses = []
    for start in range(0, examples.mask_RB.shape[1], chunk):
        part = examples.part(start, start + chunk)
        gradient = vmap(grad_and_value(summed, has_aux=True))
        named, (_, loss_RB) = gradient(net.split(theta_RP), part.inputs, part.targets, part.mask_RB)
        total = total + net.join(named)
        losses.append(loss_RB)
    loss_RB = torch.cat(losses, 1)
    return Clipped(total, torch.zeros_like(loss_RB), loss_RB)


@dataclass(frozen=True)
class Pipeline:
    """Poisson sampling, a clipped sum, Gaussian noise, division by the expected batch size, an update.

    With B_t the batch and g_i clipped to norm C the gradient is (Σ_{i∈B_t} g_i + N(0, σ²C²)) / (qN). The papers divide
    by |B_t|; that random number is itself private and would change the sensitivity, so qN stands in its place.
    `gaussian` is False for training without noise; then there is no ledger.
    """

    clipped_sum: ClippedSum
    update: Update
    gaussian: bool
    sample: Sample = field(default_factory=PoissonSampler)

    @property
    def private(self) -> bool:
        return self.gaussian

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        if not self.gaussian:
            return None
        if not noise_multiplier:
            raise ValueError(f"noise_multiplier = {noise_multiplier!r}: expected a number above 0")
        event = SampledGaussian(sampling_rate, noise_multiplier, "add_or_remove", self.sample.sampler)
        return Composition(((event, steps),))

    def facts(self) -> Mapping[str, Any]:
        return {
            "sampler": self.sample.sampler,
            "adjacency": "add_or_remove" if self.gaussian else None,
            "privacy_unit": "one training example" if self.gaussian else None,
            "normalisation": "expected batch size",
        }

    def start(self, theta_RP: Tensor) -> State:
        memory = {name: torch.zeros_like(theta_RP) for name in self.update.memory}
        return State(theta_RP, memory, torch.zeros(len(theta_RP), dtype=torch.int64, device=theta_RP.device))

    def step(
        self, net: Network, state: State, knobs: Knobs, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[State, Observed]:
        batch = self.sample(knobs.seed_R, state.step_R, knobs.sampling_rate_R, len(targets))
        examples = Examples(inputs[batch.index_RB], targets[batch.index_RB], batch.mask_RB)
        clipped = self.clipped_sum(net, state.theta_RP, examples, knobs.clip_norm_R, chunk)
        total_RP = clipped.sum_RP
        if self.gaussian:
            # Without noise (σ = 0) the clip norm may be infinite, and 0·∞ is not 0.
            deviation_R = torch.where(
                knobs.noise_multiplier_R > 0,
                knobs.noise_multiplier_R * knobs.clip_norm_R,
                torch.zeros_like(knobs.clip_norm_R),
            )
            total_RP = gaussian_noise(total_RP, deviation_R, knobs.seed_R, state.step_R)
        gradient_RP = total_RP / (knobs.sampling_rate_R * len(targets)).to(total_RP.dtype)[:, None]
        theta_RP, memory = self.update(
            state.theta_RP, dict(state.memory), gradient_RP, knobs.learning_rate_R, state.step_R
        )
        observed = Observed(
            drawn_R=batch.mask_RB.sum(1),
            loss_R=clipped.loss_RB.double().sum(1),
            clipped_R=(clipped.norm_RB > knobs.clip_norm_R[:, None]).sum(1),
            finite_R=clipped.sum_RP.isfinite().all(1),
        )
        return replace(state, theta_RP=theta_RP, memory=memory, step_R=state.step_R + 1), observed
