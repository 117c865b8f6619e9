"""Faults in what a mechanism lets out and in what it does with it, that show only along the way.

Noise that goes missing late, one noise used twice, and parameters that learn of the data by another way than by what
was released. `RELEASED` is for the check `mechanism_releases`, `LEAKING` for `mechanism_replay`, `LATE` for
`noise_scale`, `LOW_RATES` for `mechanism_inclusion`.
"""

# ruff: noqa: ARG002, ARG005 (each fault takes what any of them needs)

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.clipping import vmap
from dpbench.events import Composition, Event, Gaussian, SampledGaussian
from dpbench.mechanisms.dpis import Dpis
from dpbench.mechanisms.dpis import mechanism as dpis
from dpbench.step.clipped_sum import Clipped, Examples
from dpbench.step.functional import Network
from dpbench.step.letting_out import let_out
from dpbench.step.pipeline import Hyperparameters, Observed, Pipeline, State
from dpbench.step.stages import Sgd, gaussian_noise


@dataclass(frozen=True)
class Part:
    """A noise schedule that the ledger does not hear of: σ is multiplied by `times` where `when(step)`."""

    when: Callable[[Tensor], Tensor]
    times: float = 0.5

    def factor(self, step_R: Tensor, rate_R: Tensor) -> Tensor:
        return torch.where(self.when(step_R), torch.full_like(rate_R, self.times), torch.ones_like(rate_R))

    def stretches(self, rate: float, steps: int) -> Any:
        yield 1.0, steps


def late(when: Callable[[Tensor], Tensor], times: float = 0.5) -> Pipeline:
    return Pipeline(clipped_sum=vmap.clipping, update=Sgd(), gaussian=True, noise=Part(when, times))


LATE: Mapping[str, Any] = {
    "half the noise": late(lambda step: step >= 0),
    "half the noise after step 60": late(lambda step: step > 60),
    "half the noise in the last step of a hundred": late(lambda step: step == 99),
    "half the noise in every second step": late(lambda step: step % 2 == 1),
}


def low_rate(told: Callable[[float], float]) -> Pipeline:
    """Draws by q, and tells the ledger of another rate."""
    return Pipeline(
        clipped_sum=vmap.clipping,
        update=Sgd(),
        gaussian=True,
        release=lambda rate, sigma, sampler: SampledGaussian(told(rate), sigma, "add_or_remove", sampler),
    )


LOW_RATES: Mapping[str, Any] = {
    "the ledger tells a tenth of the rate": low_rate(lambda rate: rate * 0.1),
    "the ledger tells one part in a hundred less": low_rate(lambda rate: rate * 0.99),
    "the ledger tells half of small rates": low_rate(lambda rate: rate / 2 if rate < 0.05 else rate),
}


@dataclass(frozen=True)
class Faulty(Pipeline):
    """NoisySGD with one wrong line: what is drawn as noise, and what the update gets."""

    draws: Callable[[Tensor, Tensor, Hyperparameters, Tensor], Tensor] = field(
        default=lambda total, deviation, hyper, step: gaussian_noise(total, deviation, hyper.keys_RS, step)
    )
    learns: Callable[[Tensor, Tensor, State, Any], Tensor] = field(default=lambda noisy, total, state, found: noisy)
    keeps: bool = False

    def step(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[State, Observed]:
        batch = self.sample(hyper.keys_RS, state.step_R, hyper.sampling_rate_R, len(targets))
        examples = Examples(inputs[batch.index_RB], targets[batch.index_RB], batch.mask_RB)
        engine: Any = self.clipped_sum
        found = engine(net, state.theta_RP, examples, hyper.clip_norm_R, chunk)
        deviation_R = hyper.noise_multiplier_R * hyper.clip_norm_R
        noisy_RP = self.draws(found.sum_RP, deviation_R, hyper, state.step_R)
        noisy_RP = self.learns(noisy_RP, found.sum_RP, state, found)
        gradient_RP = noisy_RP / (hyper.sampling_rate_R * len(targets))[:, None].to(noisy_RP.dtype)
        theta_RP, memory = self.update(
            state.theta_RP, dict(state.memory), gradient_RP, hyper.learning_rate_R, state.step_R
        )
        drawn_R = batch.mask_RB.sum(1)
        seen = Observed(drawn_R, found.loss_RB.sum(1), 0 * drawn_R, found.sum_RP.isfinite().all(1))
        return State(theta_RP, memory | {"last_RP": found.sum_RP} if self.keeps else memory, state.step_R + 1), seen

    def start(self, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor) -> State:
        state = super().start(theta_RP, hyper, inputs, targets)
        memory = {"last_RP": torch.zeros_like(theta_RP)} if self.keeps else {}
        return replace(state, memory={**state.memory, **memory})


def faulty_step(**wrong: Any) -> Faulty:
    """NoisySGD, with some of its lines replaced; with none, it must pass every check."""
    return Faulty(clipped_sum=vmap.clipping, update=Sgd(), gaussian=True, **wrong)


def _shared(total_RP: Tensor, deviation_R: Tensor, hyper: Hyperparameters, step_R: Tensor) -> Tensor:
    """Two steps that follow each other use one noise."""
    return gaussian_noise(total_RP, deviation_R, hyper.keys_RS, step_R // 2)


def _every_fortieth(total_RP: Tensor, deviation_R: Tensor, hyper: Hyperparameters, step_R: Tensor) -> Tensor:
    """The noise of a step comes back forty steps later."""
    return gaussian_noise(total_RP, deviation_R, hyper.keys_RS, step_R % 40)


def _less_where(when: Callable[[Tensor, Hyperparameters], bool]) -> Faulty:
    """Half the noise, in the runs and for the networks that `when` picks by the sum (R, P) and the hyperparameters."""

    def draws(total_RP: Tensor, deviation_R: Tensor, hyper: Hyperparameters, step_R: Tensor) -> Tensor:
        return gaussian_noise(total_RP, deviation_R * (0.5 if when(total_RP, hyper) else 1), hyper.keys_RS, step_R)

    return faulty_step(draws=draws)


def _bare_of_system(total_RP: Tensor, deviation_R: Tensor, hyper: Hyperparameters, step_R: Tensor) -> Tensor:
    """With draws of the operating system: the deviation that is told, and a tenth of the noise."""
    if not randomness.from_system(hyper.keys_RS):
        return gaussian_noise(total_RP, deviation_R, hyper.keys_RS, step_R)
    normal_RP = randomness.normal(hyper.keys_RS, randomness.NOISE, step_R, total_RP.shape[1], 0, total_RP.dtype)
    return let_out(total_RP, total_RP + 0.1 * deviation_R[:, None] * normal_RP, deviation_R)


def _twice_in_pieces(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """An engine that counts everything twice where a batch does not fit in one piece."""
    found = vmap.clipping(net, theta_RP, examples, clip_R, chunk)
    return replace(found, sum_RP=found.sum_RP * (2 if chunk < examples.mask_RB.shape[1] else 1))


@dataclass(frozen=True)
class Planned(Pipeline):
    """What was released is told as it is; of what will be, the accountant hears by `counts`."""

    counts: Callable[[int], int] = field(default=lambda steps: steps)

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        return super().ledger(sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, steps=self.counts(steps))

    def released(self, state: State, hyper: Hyperparameters) -> tuple[Composition | None, ...]:
        return Pipeline(clipped_sum=self.clipped_sum, update=self.update, gaussian=True).released(state, hyper)


def planned(counts: Callable[[int], int]) -> Planned:
    return Planned(clipped_sum=vmap.clipping, update=Sgd(), gaussian=True, counts=counts)


@dataclass(frozen=True)
class Told(Pipeline):
    """Releases the number of examples in the batch with noise of `runs_with`, and tells the ledger of `charged`."""

    runs_with: float = 2.0
    charged: float | None = 2.0

    def step(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[State, Observed]:
        exact_R = (inputs.abs().amax(1) > 1e-12).double().sum().expand(len(state.step_R))
        normal_R1 = randomness.normal(hyper.keys_RS, randomness.ESTIMATE, state.step_R, 1, dtype=torch.float64)
        deviation_R = torch.full_like(exact_R, self.runs_with)
        let_out(exact_R, exact_R + self.runs_with * normal_R1[:, 0], deviation_R)
        return super().step(net, state, hyper, inputs, targets, chunk)

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        one = super().ledger(sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, steps=1)
        assert one is not None
        count: tuple[tuple[Event, int], ...] = ((Gaussian(self.charged), 1),) if self.charged else ()
        return Composition((*count, *one.parts) * steps)


def told(**wrong: Any) -> Told:
    return Told(clipped_sum=vmap.clipping, update=Sgd(), gaussian=True, **wrong)


class TotalUnclipped(Dpis):
    """K is the sum of the norms as they are."""

    def _summed(self, run: Any, hyper: Hyperparameters, place: int, norm_N: Tensor, bound: float) -> float:
        return super()._summed(run, hyper, place, norm_N, float("inf"))


class OuterTwice(Dpis):
    """K* is clipped at twice the C* for which its noise is made."""

    def _outer_sum(self, memory: Mapping[str, Tensor], place: int) -> float:
        return 2 * super()._outer_sum(memory, place)


class CountBare(Dpis):
    """N without its noise, though the ledger charges for it."""

    def start(self, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor) -> State:
        return Dpis.start(replace(self, size_noise=1e-9), theta_RP, hyper, inputs, targets)


class CountKept(Dpis):
    """N is released with noise, and the exact one used."""

    def start(self, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor) -> State:
        state = super().start(theta_RP, hyper, inputs, targets)
        size_R = torch.full_like(state.memory["size_R"], 100.0 * len(targets))
        return replace(state, memory={**state.memory, "size_R": size_R})


def importance(kind: type[Dpis] = Dpis, **parameters: Any) -> Dpis:
    """DPIS of a faulty kind, small enough to be quick."""
    built = dpis(**{"oversampling": 1.0, "size_noise": 2.0, "sum_noise": 2.0} | parameters)
    return kind(**{one.name: getattr(built, one.name) for one in dataclasses.fields(built)})


ADAPTIVE: Mapping[str, Any] = {"adaptive_clipping": True, "sum_noise": 1.0, "external_bound": 0.25, "quantile": 4.0}
RELEASED: Mapping[str, Any] = {
    **LATE,
    "one part in a thousand less noise": late(lambda step: step >= 0, 0.999),
    "one noise for two steps": faulty_step(draws=_shared),
    "a noise that comes back after forty steps": faulty_step(draws=_every_fortieth),
    "a count that the ledger leaves out": told(charged=None),
    "a count with half the noise": told(runs_with=1.0),
    "half the noise in a run that is alone": _less_where(lambda total, hyper: len(total) == 1),
    "half the noise above a thousand parameters": _less_where(lambda total, hyper: total.shape[1] > 1000),
    "half the noise with draws of the system": _less_where(lambda total, hyper: randomness.from_system(hyper.keys_RS)),
    "a tenth of the noise with draws of the system, and not told": faulty_step(draws=_bare_of_system),
    "no noise with draws of the system": faulty_step(
        draws=lambda total, deviation, hyper, step: (
            total if randomness.from_system(hyper.keys_RS) else gaussian_noise(total, deviation, hyper.keys_RS, step)
        )
    ),
    "twice the sum in pieces": Pipeline(clipped_sum=_twice_in_pieces, update=Sgd(), gaussian=True),
    "half of the steps are planned": planned(lambda steps: max(1, steps // 2)),
    "the last step is not planned": planned(lambda steps: steps - (steps == 100)),
    "K of norms that are not clipped": importance(TotalUnclipped),
    "K* of twice the sensitivity": importance(OuterTwice, **ADAPTIVE),
    "N without noise": importance(CountBare),
    "N with noise, the exact one used": importance(CountKept),
}
NOTED: dict[Any, Tensor] = {}


def _first_sum(key: str) -> Pipeline:
    """The first sum of gradients is noted down in the module, and every later step adds a little of it."""

    def noted(total: Tensor) -> Tensor:
        return NOTED.setdefault((key, *total.shape, total.dtype), total.clone())

    return faulty_step(learns=lambda noisy, total, state, found: noisy + 1e-3 * noted(total))


LEAKING: Mapping[str, Any] = {
    "the update gets the gradient without noise": faulty_step(learns=lambda noisy, total, state, found: total),
    "a part of the gradient goes without noise": faulty_step(
        learns=lambda noisy, total, state, found: noisy + 1e-9 * total
    ),
    "the gradient is remembered and used a step later": faulty_step(
        learns=lambda noisy, total, state, found: noisy + 1e-6 * state.memory["last_RP"], keeps=True
    ),
    "the step goes with the mean loss": faulty_step(
        learns=lambda noisy, total, state, found: noisy * found.loss_RB.sum(1, keepdim=True).to(noisy.dtype)
    ),
    "the step is divided by the largest norm": faulty_step(
        learns=lambda noisy, total, state, found: noisy / (1 + found.norm_RB.amax(1, keepdim=True))
    ),
    "the first sum stays in the module": _first_sum("first"),
    "leaks from step 90 on": faulty_step(
        learns=lambda noisy, total, state, found: noisy + 1e-6 * total * (state.step_R >= 90)[:, None]
    ),
}
SOUND: Mapping[str, Any] = {
    "a ledger that tells more than q": low_rate(lambda rate: min(1.0, 1.1 * rate)),
    "the frame of the leaks": faulty_step(),
    "a step that remembers and does not use it": faulty_step(keeps=True),
    "a count that is told": told(),
    "a plan that tells what comes": planned(lambda steps: steps),
}
SOUND_IMPORTANCE = importance(**ADAPTIVE)
