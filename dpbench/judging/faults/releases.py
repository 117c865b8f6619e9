"""Faults in what a mechanism lets out and in what it does with it, that show only along the way.

Noise that goes missing late, one noise used twice, a step that tells of other releases than its ledger, and parameters
that learn of the data by another way than by what was released. `RELEASED` is for the check `mechanism_releases`,
`LEAKING` for `mechanism_replay`, `LATE` for `noise_scale`, `LOW_RATES` for `mechanism_inclusion`.
Shapes: R runs, N examples, P parameters.
"""

# ruff: noqa: ARG005 (each fault takes what any of them needs)

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.clipping import vmap
from dpbench.clipping.rules.flat import Flat
from dpbench.clipping.rules.quantile import PrivateQuantile
from dpbench.events import Composition, Event, Gaussian, Sampler
from dpbench.judging.faults.frames import Frame, Seen, noised, noisy_sgd
from dpbench.mechanisms._dpis_epoch import Run
from dpbench.mechanisms.dpis import Dpis, with_stages
from dpbench.step.clipped_sum import Clipped, Examples
from dpbench.step.functional import Network
from dpbench.step.letting_out import let_out
from dpbench.step.mechanism import Hyperparameters, Kept, Released, State
from dpbench.step.pipeline import Pipeline
from dpbench.step.stages import gaussian_noise

# Noise and rates that the ledger does not hear of


@dataclass(frozen=True)
class Part:
    """A noise schedule that the ledger does not hear of: σ is multiplied by `times` where `when(step)`."""

    when: Callable[[Tensor], Tensor]
    times: float = 0.5

    def factor(self, step_R: Tensor, rate_R: Tensor) -> Tensor:
        return torch.where(self.when(step_R), torch.full_like(rate_R, self.times), torch.ones_like(rate_R))

    def stretches(self, rate: float, steps: int) -> Iterator[tuple[float, int]]:
        del rate
        yield 1.0, steps


def late(when: Callable[[Tensor], Tensor], times: float = 0.5) -> Pipeline:
    """NoisySGD with less noise in some steps."""
    return noisy_sgd(Pipeline, noise=Part(when, times))


LATE: Mapping[str, Any] = {
    "half the noise": late(lambda step: step >= 0),
    "half the noise after step 60": late(lambda step: step > 60),
    "half the noise in the last step of a hundred": late(lambda step: step == 99),
    "half the noise in every second step": late(lambda step: step % 2 == 1),
}


@dataclass(frozen=True)
class OtherRate(Flat):
    """Draws by q, and tells the ledger of another rate."""

    tells: Callable[[float], float] = float

    def event(self, rate: float, noise_multiplier: float, sampler: Sampler) -> Event:
        return super().event(self.tells(rate), noise_multiplier, sampler)


def low_rate(tells: Callable[[float], float]) -> Pipeline:
    """NoisySGD whose ledger has another sampling rate."""
    return noisy_sgd(Pipeline, rule=OtherRate(tells))


LOW_RATES: Mapping[str, Any] = {
    "the ledger tells a tenth of the rate": low_rate(lambda rate: rate * 0.1),
    "the ledger tells one part in a hundred less": low_rate(lambda rate: rate * 0.99),
    "the ledger tells half of small rates": low_rate(lambda rate: rate / 2 if rate < 0.05 else rate),
}

# What is released


def _at(step_R: Callable[[Tensor], Tensor]) -> Frame:
    """The noise of another step than the one that is taken."""

    def draws(seen: Seen) -> Tensor:
        return noised(replace(seen, state=replace(seen.state, step_R=step_R(seen.state.step_R))))

    return noisy_sgd(Frame, draws=draws)


def _less_where(when: Callable[[Seen], bool]) -> Frame:
    """Half the noise, in the runs and for the networks that `when` picks."""
    return noisy_sgd(Frame, draws=lambda seen: noised(seen, 0.5 if when(seen) else 1.0))


def _of_system(seen: Seen) -> bool:
    return randomness.from_system(seen.hyper.keys_RS)


def _bare_of_system(seen: Seen) -> Tensor:
    """With draws of the operating system: the deviation that is stated, and a tenth of the noise."""
    if not _of_system(seen):
        return noised(seen)
    total_RP = seen.found.sum_RP
    place = (seen.hyper.keys_RS, randomness.NOISE, seen.state.step_R, total_RP.shape[1], 0, total_RP.dtype)
    return let_out(total_RP, total_RP + 0.1 * seen.deviation_R[:, None] * randomness.normal(*place), seen.deviation_R)


def _twice_in_pieces(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """An engine that counts everything twice where a batch does not fit in one piece."""
    found = vmap.clipping(net, theta_RP, examples, clip_R, chunk)
    return replace(found, sum_RP=found.sum_RP * (2 if chunk < examples.mask_RB.shape[1] else 1))


def _half_as_private(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """The same events with twice the noise."""
    return tuple(replace(event, noise_multiplier=2 * event.noise_multiplier) for event in events)  # type: ignore


@dataclass(frozen=True)
class Planned(Pipeline):
    """What was released is in the ledger as it is; of what will be released, `counts` many."""

    counts: Callable[[int], int] = int

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        return super().ledger(sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, steps=self.counts(steps))

    def released(self, state: State, hyper: Hyperparameters) -> tuple[Composition | None, ...]:
        return noisy_sgd(Pipeline).released(state, hyper)


def planned(counts: Callable[[int], int]) -> Planned:
    """NoisySGD that plans for another number of steps."""
    return noisy_sgd(Planned, counts=counts)


@dataclass(frozen=True)
class Counted(Pipeline):
    """Releases the number of examples as well in each step, and its update makes use of it.

    The count has noise of `runs_with`, and the ledger hears of `charged`; None: of nothing.
    """

    runs_with: float = 2.0
    charged: float | None = 2.0

    def release(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[Released, Kept]:
        exact_R = (inputs.abs().amax(1) > 1e-12).double().sum().expand(len(state.step_R))
        normal_R1 = randomness.normal(hyper.keys_RS, randomness.ESTIMATE, state.step_R, 1, dtype=torch.float64)
        deviation_R = torch.full_like(exact_R, self.runs_with)
        count_R = let_out(exact_R, exact_R + self.runs_with * normal_R1[:, 0], deviation_R)
        released, kept = super().release(net, state, hyper, inputs, targets, chunk)
        return replace(released, values={"count_R": count_R}), kept

    def update(self, state: State, rate_R: Tensor, released: Released) -> State:
        return super().update(state, rate_R / released.values["count_R"].clamp_min(1), released)

    def _composition(self, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        one = super()._composition(sampling_rate, noise_multiplier, 1)
        assert one is not None
        return Composition((*self._count(), *one.parts) * steps)

    def _count(self) -> tuple[tuple[Event, int], ...]:
        return ((Gaussian(self.charged), 1),) if self.charged else ()

    def _events(self, state: State, hyper: Hyperparameters, run: int) -> tuple[Event, ...]:
        return (*(event for event, _ in self._count()), *super()._events(state, hyper, run))


# A count that steers the clip norm


@dataclass(frozen=True)
class CountWithoutNoise(Pipeline):
    """The sum has the noise of the ledger, and the count is used as it is."""

    def _with_count(
        self, sum_RP: Tensor, count_R: Tensor, deviation_R: Tensor, state: State, hyper: Hyperparameters, examples: int
    ) -> tuple[Tensor, Tensor]:
        del examples
        return gaussian_noise(sum_RP, deviation_R, hyper.keys_RS, state.step_R), count_R


@dataclass(frozen=True)
class CountNotCharged(Pipeline):
    """The gradient keeps the noise σ, as if the count, with noise of deviation σ, were for nothing."""

    def _with_count(
        self, sum_RP: Tensor, count_R: Tensor, deviation_R: Tensor, state: State, hyper: Hyperparameters, examples: int
    ) -> tuple[Tensor, Tensor]:
        del examples
        clip_R1 = self.clip_norm(state, hyper)[:, None].to(sum_RP.dtype)
        whole_RQ = torch.cat([sum_RP, clip_R1 * count_R[:, None]], 1)
        noisy_RQ = gaussian_noise(whole_RQ, deviation_R, hyper.keys_RS, state.step_R)
        return noisy_RQ[:, :-1], (noisy_RQ[:, -1:] / clip_R1)[:, 0]


@dataclass(frozen=True)
class CountApart(Pipeline):
    """Two releases, each with the noise multiplier of the ledger, for one event."""

    def _with_count(
        self, sum_RP: Tensor, count_R: Tensor, deviation_R: Tensor, state: State, hyper: Hyperparameters, examples: int
    ) -> tuple[Tensor, Tensor]:
        del examples
        place = (hyper.keys_RS, state.step_R, randomness.ESTIMATE)
        noisy_R1 = gaussian_noise(count_R[:, None], hyper.noise_multiplier_R / 2, *place)
        return gaussian_noise(sum_RP, deviation_R, hyper.keys_RS, state.step_R), noisy_R1[:, 0]


@dataclass(frozen=True)
class CountOfOnes(PrivateQuantile):
    """The number of gradients below the clip norm, which one record changes by 1 and not by ½.

    ½ plus their share is what is held to the target, so with a target of 1 half of them are below.
    """

    def count(self, norm_RB: Tensor, clip_R: Tensor, mask_RB: Tensor) -> Tensor:
        return super().count(norm_RB, clip_R, mask_RB) + 0.5 * mask_RB.sum(1)


QUANTILES: Mapping[str, Any] = {
    "a count below the clip norm without noise": noisy_sgd(CountWithoutNoise, rule=PrivateQuantile()),
    "a count below the clip norm that is not charged": noisy_sgd(CountNotCharged, rule=PrivateQuantile()),
    "a count below the clip norm as a second release": noisy_sgd(CountApart, rule=PrivateQuantile()),
    "a count below the clip norm of ones": noisy_sgd(Pipeline, rule=CountOfOnes(target_quantile=1.0)),
}

# N, K and K* of DPIS


class TotalUnclipped(Dpis):
    """K is the sum of the norms as they are."""

    def _summed(self, run: Run, hyper: Hyperparameters, place: int, norm_N: Tensor, bound: float) -> float:
        del bound
        return super()._summed(run, hyper, place, norm_N, float("inf"))


class OuterTwice(Dpis):
    """K* is clipped at twice the C* for which its noise is made."""

    def _outer_sum(self, private: Mapping[str, Tensor], place: int) -> float:
        return 2 * super()._outer_sum(private, place)


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
    built = with_stages(**({"oversampling": 1.0, "size_noise": 2.0, "sum_noise": 2.0} | parameters))
    return kind(**{one.name: getattr(built, one.name) for one in dataclasses.fields(built)})


ADAPTIVE: Mapping[str, Any] = {"adaptive_clipping": True, "sum_noise": 1.0, "external_bound": 0.25, "quantile": 4.0}
RELEASED: Mapping[str, Any] = {
    **LATE,
    "one part in a thousand less noise": late(lambda step: step >= 0, 0.999),
    "one noise for two steps": _at(lambda step: step // 2),
    "a noise that comes back after forty steps": _at(lambda step: step % 40),
    "a count that the ledger leaves out": noisy_sgd(Counted, charged=None),
    "a count with half the noise": noisy_sgd(Counted, runs_with=1.0),
    "half the noise in a run that is alone": _less_where(lambda seen: len(seen.found.sum_RP) == 1),
    "half the noise above a thousand parameters": _less_where(lambda seen: seen.found.sum_RP.shape[1] > 1000),
    "half the noise with draws of the system": _less_where(_of_system),
    "a tenth of the noise with draws of the system, and not stated": noisy_sgd(Frame, draws=_bare_of_system),
    "no noise with draws of the system": noisy_sgd(
        Frame, draws=lambda seen: seen.found.sum_RP if _of_system(seen) else noised(seen)
    ),
    "twice the sum in pieces": noisy_sgd(Pipeline, engine=_twice_in_pieces),
    **QUANTILES,
    "half of the steps are planned": planned(lambda steps: max(1, steps // 2)),
    "the last step is not planned": planned(lambda steps: steps - (steps == 100)),
    "a step tells of twice the noise of its ledger": noisy_sgd(Frame, says=_half_as_private),
    "a step tells of no release": noisy_sgd(Frame, says=lambda events: ()),
    "K of norms that are not clipped": importance(TotalUnclipped),
    "K* of twice the sensitivity": importance(OuterTwice, **ADAPTIVE),
    "N without noise": importance(CountBare),
    "N with noise, the exact one used": importance(CountKept),
}

# What the update gets

NOTED: dict[Any, Tensor] = {}


def _first_sum(key: str) -> Frame:
    """The first sum of gradients is noted down in the module, and every later step adds a little of it."""

    def noted(total_RP: Tensor) -> Tensor:
        return NOTED.setdefault((key, *total_RP.shape, total_RP.dtype), total_RP.clone())

    return noisy_sgd(Frame, leaks=lambda noisy, seen: noisy + 1e-3 * noted(seen.found.sum_RP))


def _loss(seen: Seen) -> Tensor:
    return seen.found.loss_RB.sum(1)


def _times(gradient_RP: Tensor, factor_R: Tensor) -> Tensor:
    return gradient_RP * factor_R[:, None].to(gradient_RP.dtype)


@dataclass(frozen=True)
class Recalled(Pipeline):
    """The object remembers the loss of the batch, and the update goes with it."""

    held: dict[str, Tensor] = field(default_factory=dict, compare=False)

    def release(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[Released, Kept]:
        released, kept = super().release(net, state, hyper, inputs, targets, chunk)
        self.held["loss_R"] = kept.observed.loss_R
        return released, kept

    def update(self, state: State, rate_R: Tensor, released: Released) -> State:
        return super().update(state, rate_R * (1 + 1e-6 * self.held["loss_R"]), released)


def _recalled_by_a_closure() -> Frame:
    """Release and update share a variable, in which the sum of gradients stays."""
    held: dict[str, Tensor] = {}

    def draws(seen: Seen) -> Tensor:
        held["sum_RP"] = seen.found.sum_RP
        return noised(seen)

    return noisy_sgd(Frame, draws=draws, takes=lambda released: released.gradient_RP + 1e-6 * held["sum_RP"])


def _drawn_again() -> Frame:
    """The release draws its noise a second time and leaves it in a closure; the update takes some of it off."""
    held: dict[str, Tensor] = {}

    def draws(seen: Seen) -> Tensor:
        held["noise_RP"] = randomness.normal(
            seen.hyper.keys_RS, randomness.NOISE, seen.state.step_R, seen.found.sum_RP.shape[1]
        )
        return noised(seen)

    return noisy_sgd(Frame, draws=draws, takes=lambda released: released.gradient_RP - 1e-3 * held["noise_RP"])


LEAKING: Mapping[str, Any] = {
    "the update gets the gradient without noise": noisy_sgd(Frame, leaks=lambda noisy, seen: seen.found.sum_RP),
    "the update takes the noise off": _drawn_again(),
    "a part of the gradient goes without noise": noisy_sgd(
        Frame, leaks=lambda noisy, seen: noisy + 1e-9 * seen.found.sum_RP
    ),
    "the gradient is remembered and used a step later": noisy_sgd(
        Frame, leaks=lambda noisy, seen: noisy + 1e-6 * seen.state.private["last_RP"], keeps=True
    ),
    "the step goes with the mean loss": noisy_sgd(Frame, leaks=lambda noisy, seen: _times(noisy, _loss(seen))),
    "the step is divided by the largest norm": noisy_sgd(
        Frame, leaks=lambda noisy, seen: noisy / (1 + seen.found.norm_RB.amax(1, keepdim=True))
    ),
    "the first sum stays in the module": _first_sum("first"),
    "leaks from step 90 on": noisy_sgd(
        Frame,
        leaks=lambda noisy, seen: noisy + 1e-6 * seen.found.sum_RP * (seen.state.step_R >= 90)[:, None],
    ),
    "the update recalls a loss from the object": noisy_sgd(Recalled),
    "the update recalls a sum from a closure": _recalled_by_a_closure(),
    "the update goes with a value that has no noise": noisy_sgd(
        Frame,
        shows=lambda seen: {"loss_R": _loss(seen)},
        takes=lambda released: _times(released.gradient_RP, released.values["loss_R"]),
    ),
}
SOUND: Mapping[str, Any] = {
    "a ledger that tells more than q": low_rate(lambda rate: min(1.0, 1.1 * rate)),
    "a step that remembers and does not use it": noisy_sgd(Frame, keeps=True),
    "a count that is stated": noisy_sgd(Counted),
    "a plan that tells what comes": planned(int),
}
SOUND_IMPORTANCE = importance(**ADAPTIVE)
