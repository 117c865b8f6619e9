"""A mechanism composed of the five stages: sample -> gradient -> clip -> noise -> update.

Gradient and clip are one stage (a clipping engine). Preset mechanisms in `mechanisms/` are pipelines with a name; a
mechanism that is not a chain of these stages implements `Mechanism` itself.
Shapes: R runs, B batch, P parameters, N examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from dpbench.events import Composition, Event, SampledGaussian, Sampler
from dpbench.step.clipped_sum import Clipped, ClippedSum, Draw, DrawnSum, Examples
from dpbench.step.functional import Network
from dpbench.step.stages import ConstantNoise, NoiseSchedule, PoissonSampler, Sample, Update, gaussian_noise

NUMERICS = 1


@dataclass(frozen=True)
class Hyperparameters:
    """What may differ between the runs of one stack, each of shape (R,); steps int64, the rest float64.

    `keys_RS` is the table of keys of `randomness.keys`, int64 (R, S), or (R, 0) where the runs keep none.
    `clip_norm_R` is inf and `noise_multiplier_R` 0 where a mechanism has none. `noise_multiplier_R` is relative to
    the clip norm. `steps_R` is the planned length. `epsilon_R` and `delta_R` are the budget of a mechanism that
    chooses its noise while it runs; NaN for the others.
    """

    keys_RS: Tensor
    sampling_rate_R: Tensor
    learning_rate_R: Tensor
    clip_norm_R: Tensor
    noise_multiplier_R: Tensor
    steps_R: Tensor
    epsilon_R: Tensor
    delta_R: Tensor

    def take(self, index: Tensor) -> Hyperparameters:
        return Hyperparameters(**{name: value[index] for name, value in vars(self).items()})


@dataclass(frozen=True)
class State:
    """Where the runs of a stack stand. Steps done: `step_R`.

    `memory` holds tensors by name whose first axis is R: the update's (R, P), and whatever else a mechanism keeps.
    """

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
    `stopped`: by place in the stack, why a run may not go on, in one sentence; such a run fails.
    """

    drawn_R: Tensor
    loss_R: Tensor
    clipped_R: Tensor
    finite_R: Tensor
    stopped: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """The numbers of one planned run, as a mechanism is asked about them before anything runs.

    `examples` N; `clip_norm` and `noise_multiplier` are None where the spec gives none. `epsilon` is the budget where
    the spec gives one, `delta` goes with either.
    """

    examples: int
    sampling_rate: float
    steps: int
    learning_rate: float
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float | None = None


class Mechanism(Protocol):
    """How one step of training goes, and what it releases."""

    @property
    def private(self) -> bool: ...

    @property
    def spends_budget(self) -> bool:
        """Whether it chooses its noise while it runs, from a budget (ε, δ): then its ledger is known afterwards."""
        ...

    def check(self, setting: Setting) -> None:
        """Raise DpbenchError, one sentence, for numbers with which it cannot run."""
        ...

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        """The releases of a whole run, for the accountant; None when it is not private, or spends a budget."""
        ...

    def released(self, state: State, hyper: Hyperparameters) -> tuple[Composition | None, ...]:
        """What each run has released so far; None when the mechanism is not private."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """What a reviewer asks about the mechanism: sampler, adjacency, normalisation and so on."""
        ...

    def start(self, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor) -> State:
        """The state before the first step. What is released of the training data here stands in the ledger."""
        ...

    def view(self, state: State, inputs: Tensor) -> Tensor | None:
        """What each run's network sees of `inputs` (B, ...): (R, B, ...); None where it sees them as they are."""
        ...

    def step(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[State, Observed]:
        """One step of every run of the stack. `chunk`: batch places per call; it never changes what is computed."""
        ...


# The event of one step: of a sampling rate, a noise multiplier relative to the clip norm, and a sampler.
Release = Callable[[float, float, Sampler], Event]


def clipped_release(rate: float, noise_multiplier: float, sampler: Sampler) -> Event:
    """The event of a sum that one example moves by at most the clip norm."""
    return SampledGaussian(rate, noise_multiplier, "add_or_remove", sampler)


class Preparation(Protocol):
    """What is done to the inputs before the network sees them, with what it has to learn of the data, released once."""

    @property
    def releases(self) -> tuple[tuple[Event, int], ...]: ...

    def start(self, keys_RS: Tensor, inputs: Tensor) -> dict[str, Tensor]:
        """The released statistics of the training inputs (N, ...): tensors (R, ...) for the state's memory."""
        ...

    def __call__(self, memory: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """The prepared inputs, (R, B, ...) to (R, B, ...)."""
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
    `gaussian` is False for training without noise; then there is no ledger. `release` is the event of one step, for
    engines whose sum one example may move by something else than C; `noise` multiplies σ; `preparation` stands before
    the network.
    """

    clipped_sum: ClippedSum | DrawnSum
    update: Update
    gaussian: bool
    sample: Sample = field(default_factory=PoissonSampler)
    release: Release = clipped_release
    noise: NoiseSchedule = field(default_factory=ConstantNoise)
    preparation: Preparation | None = None

    @property
    def private(self) -> bool:
        return self.gaussian

    @property
    def secure(self) -> bool:
        """Whether all its noise is `gaussian_noise`, which is what `randomness: secure` needs."""
        return self.preparation is None or bool(getattr(self.preparation, "secure", False))

    @property
    def spends_budget(self) -> bool:
        return False

    def check(self, setting: Setting) -> None:
        """Nothing to refuse here: specs and plan refuse what no mechanism can take."""

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        if not self.gaussian:
            return None
        if not noise_multiplier:
            raise ValueError(f"noise_multiplier = {noise_multiplier!r}: expected a number above 0")
        stretches = self.noise.stretches(sampling_rate, steps)
        first = () if self.preparation is None else self.preparation.releases
        trained = (
            (self.release(sampling_rate, noise_multiplier * factor, self.sample.sampler), count)
            for factor, count in stretches
        )
        return Composition((*first, *trained))

    def released(self, state: State, hyper: Hyperparameters) -> tuple[Composition | None, ...]:
        numbers = zip(
            hyper.sampling_rate_R.tolist(),
            hyper.noise_multiplier_R.tolist(),
            state.step_R.tolist(),
            strict=True,
        )
        return tuple(
            self.ledger(sampling_rate=rate, noise_multiplier=sigma, steps=steps) for rate, sigma, steps in numbers
        )

    def facts(self) -> Mapping[str, Any]:
        return {
            "sampler": self.sample.sampler,
            "adjacency": "add_or_remove" if self.gaussian else None,
            "privacy_unit": "one training example" if self.gaussian else None,
            "normalisation": "expected batch size",
        }

    def start(self, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor) -> State:
        del targets  # nothing is released of them before the first step
        memory = {name: torch.zeros_like(theta_RP) for name in self.update.memory}
        if self.preparation is not None:
            memory |= self.preparation.start(hyper.keys_RS, inputs)
        return State(theta_RP, memory, torch.zeros(len(theta_RP), dtype=torch.int64, device=theta_RP.device))

    def view(self, state: State, inputs: Tensor) -> Tensor | None:
        if self.preparation is None:
            return None
        return self.preparation(state.memory, inputs.expand(len(state.step_R), *inputs.shape))

    def step(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[State, Observed]:
        batch = self.sample(hyper.keys_RS, state.step_R, hyper.sampling_rate_R, len(targets))
        seen = inputs[batch.index_RB]
        if self.preparation is not None:
            seen = self.preparation(state.memory, seen)
        examples = Examples(seen, targets[batch.index_RB], batch.mask_RB)
        engine = self.clipped_sum
        if isinstance(engine, DrawnSum):
            engine = engine.at(Draw(hyper.keys_RS, state.step_R, batch.index_RB))
        clipped = engine(net, state.theta_RP, examples, hyper.clip_norm_R, chunk)
        drawn_R = batch.mask_RB.sum(1)
        # An empty batch sums to 0, whatever stood in its places; 0·∞ is not 0.
        sum_RP = torch.where(drawn_R[:, None] > 0, clipped.sum_RP, torch.zeros_like(clipped.sum_RP))
        total_RP = sum_RP
        if self.gaussian:
            # Without noise (σ = 0) the clip norm may be infinite.
            deviation_R = torch.where(
                hyper.noise_multiplier_R > 0,
                hyper.noise_multiplier_R * self.noise.factor(state.step_R, hyper.sampling_rate_R) * hyper.clip_norm_R,
                torch.zeros_like(hyper.clip_norm_R),
            )
            total_RP = gaussian_noise(total_RP, deviation_R, hyper.keys_RS, state.step_R)
        gradient_RP = total_RP / (hyper.sampling_rate_R * len(targets)).to(total_RP.dtype)[:, None]
        theta_RP, memory = self.update(
            state.theta_RP, dict(state.memory), gradient_RP, hyper.learning_rate_R, state.step_R
        )
        loss_RB = torch.where(batch.mask_RB, clipped.loss_RB, torch.zeros_like(clipped.loss_RB))
        observed = Observed(
            drawn_R=drawn_R,
            loss_R=loss_RB.double().sum(1),
            clipped_R=(batch.mask_RB & (clipped.norm_RB > hyper.clip_norm_R[:, None])).sum(1),
            finite_R=sum_RP.isfinite().all(1),
        )
        kept = {name: value for name, value in state.memory.items() if name not in memory}
        memory = {**kept, **memory}
        return replace(state, theta_RP=theta_RP, memory=memory, step_R=state.step_R + 1), observed
