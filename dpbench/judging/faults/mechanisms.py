"""Faults in the kinds of mechanisms beside the plain one, with their sound frames: projections, decaying noise, sums
that one example moves by 2C, smoothed losses, statistics of the inputs, and own probabilities of inclusion.

`SOUND` must pass every check; each of the other tables is one frame with one thing wrong.
Shapes: S keys of a run; R runs, B batch, N examples, P parameters, K statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.clipping import vmap
from dpbench.clipping.rules.automatic import Automatic
from dpbench.clipping.rules.flat import Flat
from dpbench.clipping.rules.jl import ProjectedSum
from dpbench.events import Composition, Event, Gaussian, RandomSensitivityGaussian, SampledGaussian, Sampler
from dpbench.judging.faults.frames import Frame, Seen, noised, noisy_sgd
from dpbench.judging.faults.parts import per_example
from dpbench.judging.faults.views import augmented
from dpbench.step.clipped_sum import Clipped, Draw, Examples
from dpbench.step.functional import Network, Smoothed
from dpbench.step.letting_out import let_out
from dpbench.step.mechanism import Hyperparameters, Kept, Observed, Released, Setting, State
from dpbench.step.noise.decaying import DecayingNoise
from dpbench.step.pipeline import Pipeline, optimised
from dpbench.step.smoothings.gaussian import GaussianSmoothing
from dpbench.step.stages import Noise, Update, filled, gaussian_noise
from dpbench.step.updates.sgd import Sgd

# Estimated norms

PROJECTIONS = 4


def _same(draw: Draw) -> Draw:
    return draw


@dataclass(frozen=True)
class Redrawn(ProjectedSum):
    """The rule of DP-SGD-JL, after the place of its draws has been changed.

    `stated` is the number of projections in the event; None for exact norms.
    """

    projections: int = PROJECTIONS
    change: Callable[[Draw], Draw] = _same
    stated: int | None = PROJECTIONS
    clip_times: float = 1.0

    def event(self, rate: float, noise_multiplier: float, sampler: Sampler) -> Event:
        if self.stated is None:
            return SampledGaussian(rate, noise_multiplier, "add_or_remove", sampler)
        return RandomSensitivityGaussian(rate, noise_multiplier, self.stated, "add_or_remove", sampler)

    def summed(
        self, draw: Draw, net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int
    ) -> Clipped:
        return super().summed(self.change(draw), net, theta_RP, examples, clip_R * self.clip_times, chunk)


def _other_steps(step_R: Callable[[Draw], Tensor]) -> Callable[[Draw], Draw]:
    return lambda draw: replace(draw, step_R=step_R(draw))


def projected(**wrong: Any) -> Pipeline:
    """A pipeline with estimated norms."""
    return noisy_sgd(Pipeline, rule=Redrawn(**wrong))


PROJECTED: Mapping[str, Pipeline] = {
    "the same projections in every step": projected(change=_other_steps(lambda draw: 0 * draw.step_R)),
    "the same projections in steps 2t and 2t+1": projected(change=_other_steps(lambda draw: draw.step_R // 2)),
    "the same projections in every run": projected(change=lambda draw: replace(draw, keys_RS=0 * draw.keys_RS)),
    "estimated norms accounted as exact ones": projected(stated=None),
    "accounted with twice the projections": projected(stated=2 * PROJECTIONS),
    "half of the projections that are accounted": projected(projections=PROJECTIONS // 2),
    "the mean of squares forgotten": projected(clip_times=PROJECTIONS**0.5),
}

# Noise that decays


@dataclass(frozen=True)
class Schedule:
    """Noise that runs as one schedule says and tells the ledger another."""

    runs: DecayingNoise
    stated: DecayingNoise
    rate_times: float = 1.0

    def factor(self, step_R: Tensor, rate_R: Tensor) -> Tensor:
        return self.runs.factor(step_R, rate_R * self.rate_times)

    def stretches(self, rate: float, steps: int) -> Iterator[tuple[float, int]]:
        return self.stated.stretches(rate, steps)


def decaying(noise: Noise) -> Pipeline:
    """A pipeline with a schedule of noise."""
    return noisy_sgd(Pipeline, noise=noise)


DECAYING: Mapping[str, Pipeline] = {
    "the noise decays, the ledger does not": decaying(Schedule(DecayingNoise(0.05), DecayingNoise(0.0))),
    "decays in the code faster than in the ledger": decaying(Schedule(DecayingNoise(0.05), DecayingNoise(0.045))),
    "decays with half epochs": decaying(Schedule(DecayingNoise(0.05), DecayingNoise(0.05), rate_times=2.0)),
    "decays in the ledger only": decaying(Schedule(DecayingNoise(0.0), DecayingNoise(0.05))),
}

# Sums that one example moves by 2C


def _scaled(norm_RB: Tensor, clip_R: Tensor) -> Tensor:
    scale_RB: Tensor = 1 / (norm_RB / clip_R.to(norm_RB.dtype)[:, None]).clamp_min(1.0)
    return scale_RB


def clip_pairs(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """Two places at a time: the sum of both gradients is clipped as if it were one example's (a microbatch)."""
    whole_R = torch.full_like(clip_R, torch.inf)
    plain = vmap.clipping(net, theta_RP, examples, whole_R, chunk)
    total = torch.zeros_like(theta_RP)
    for start in range(0, examples.mask_RB.shape[1], 2):
        pair_RP = vmap.clipping(net, theta_RP, examples.part(start, start + 2), whole_R, chunk).sum_RP
        total = total + pair_RP * _scaled(pair_RP.norm(dim=1, keepdim=True), clip_R)
    return Clipped(total, plain.norm_RB, plain.loss_RB)


@dataclass(frozen=True)
class Moved(Flat):
    """A rule that weighs, accounted as if one example moved the sum by `moves`·C."""

    moves: float = 2.0

    def event(self, rate: float, noise_multiplier: float, sampler: Sampler) -> Event:
        return super().event(rate, noise_multiplier / self.moves, sampler)


@dataclass(frozen=True)
class PairsByIndex:
    """Examples 2i and 2i+1 of the data share a microbatch, whoever else is drawn: one example moves the sum by 2C."""

    moves: float = 2.0

    def event(self, rate: float, noise_multiplier: float, sampler: Sampler) -> Event:
        return Moved(self.moves).event(rate, noise_multiplier, sampler)

    def divisor(self, rate_R: Tensor, examples: int) -> Tensor | None:
        return Flat().divisor(rate_R, examples)

    def facts(self) -> Mapping[str, Any]:
        return Flat().facts()

    def summed(
        self, draw: Draw, net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int
    ) -> Clipped:
        """The sum over the pairs of their clipped sums."""
        plain = vmap.clipping(net, theta_RP, examples, torch.full_like(clip_R, torch.inf), chunk)
        each_RBP = per_example(net, theta_RP, examples)
        pair_RB = draw.index_RB // 2
        pairs_RKP = each_RBP.new_zeros(len(theta_RP), int(pair_RB.max()) + 1, theta_RP.shape[1])
        pairs_RKP.scatter_add_(1, pair_RB[:, :, None].expand_as(each_RBP), each_RBP)
        total_RP = (pairs_RKP * _scaled(pairs_RKP.norm(dim=2), clip_R)[:, :, None]).sum(1)
        return Clipped(total_RP, plain.norm_RB, plain.loss_RB)


PAIRS = noisy_sgd(Pipeline, rule=PairsByIndex())
MICROBATCHED: Mapping[str, Pipeline] = {
    "microbatches accounted with C": noisy_sgd(Pipeline, rule=PairsByIndex(moves=1.0)),
    # Whoever is drawn before the others shifts them all: about as many sums turn as there are pairs.
    "microbatches by place in the batch, accounted with 2C": noisy_sgd(Pipeline, rule=Moved(), engine=clip_pairs),
}

# Smoothed losses


@dataclass(frozen=True)
class Shifting(GaussianSmoothing):
    """The smoothing of DPlis, after the place of its draws has been changed."""

    smoothing_samples: int = 3
    change: Callable[[Draw], Draw] = _same

    def shifts(
        self, draw: Draw, learning_rate_R: Tensor, deviation_R: Tensor, size: int, dtype: torch.dtype
    ) -> Tensor | None:
        return super().shifts(self.change(draw), learning_rate_R, deviation_R, size, dtype)


def smoothed(change: Callable[[Draw], Draw] = _same, **wrong: Any) -> Pipeline:
    """A pipeline with a smoothed loss."""
    return noisy_sgd(Pipeline, smoothing=Shifting(change=change), **wrong)


def _clipped_at_each(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """Each gradient at a shifted place is clipped, and all are added up: one example moves the sum by KC."""
    if not isinstance(net, Smoothed):
        return vmap.clipping(net, theta_RP, examples, clip_R, chunk)
    shifts_KP = net.join(net.shifts)
    parts = [vmap.clipping(net.plain, theta_RP + one_P, examples, clip_R, chunk) for one_P in shifts_KP]
    total_RP = torch.stack([part.sum_RP for part in parts]).sum(0)
    return Clipped(total_RP, parts[0].norm_RB, parts[0].loss_RB)


def _by_drawn(draw: Draw) -> Draw:
    """The scale is divided by the size of the batch that is drawn: each example shifts all gradients."""
    drawn_R = torch.full_like(draw.rate_R, draw.index_RB.shape[1] / draw.examples)
    return replace(draw, rate_R=drawn_R)


SMOOTHED: Mapping[str, Pipeline] = {
    "clipped at each shifted place and added up": smoothed(engine=_clipped_at_each),
    "shifted by the size of the batch drawn": smoothed(_by_drawn),
    "shifts that know an example": smoothed(lambda draw: replace(draw, step_R=draw.index_RB.sum(1))),
}

# Gradients that are all scaled


@dataclass(frozen=True)
class OffsetOutside(Automatic):
    """C/norm + γ instead of C/(norm + γ): a long gradient adds more than C."""

    def weight(self, norm: Tensor, clip: Tensor) -> Tensor:
        return clip / norm.clamp_min(1e-12) + self.norm_offset


@dataclass(frozen=True)
class OffsetLost(Automatic):
    """C/(norm − γ): a gradient adds more than C."""

    def weight(self, norm: Tensor, clip: Tensor) -> Tensor:
        return clip / (norm - self.norm_offset).clamp_min(1e-12)


class ScaledUnsaid(Automatic):
    """Scales every gradient, and passes for a rule that leaves small ones alone."""

    scales_every_gradient = False


AUTOMATIC: Mapping[str, Pipeline] = {
    "automatic clipping with the offset beside the fraction": noisy_sgd(Pipeline, rule=OffsetOutside()),
    "automatic clipping with the offset subtracted": noisy_sgd(Pipeline, rule=OffsetLost()),
}
SCALED: Mapping[str, Pipeline] = {"small gradients are scaled unsaid": noisy_sgd(Pipeline, rule=ScaledUnsaid())}

# Noise that depends on the data, or the data's clipping on the noise


def _silent(seen: Seen) -> Tensor:
    """The noise is left out where the sum of the gradients is not zero."""
    return noised(seen, 0.0 if bool(seen.found.sum_RP.any()) else 1.0)


@dataclass(frozen=True)
class OfTheNoise(Redrawn):
    """Projections that are the numbers of the noise: a small estimate goes with a small noise along the gradient."""

    def summed(
        self, draw: Draw, net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int
    ) -> Clipped:
        with mock.patch.object(randomness, "PROJECTION", randomness.NOISE):
            return super().summed(draw, net, theta_RP, examples, clip_R, chunk)


DEPENDENT: Mapping[str, Pipeline] = {
    "no noise where there are gradients": noisy_sgd(Frame, draws=_silent),
    "no noise where there are estimated norms": noisy_sgd(Frame, rule=ProjectedSum(PROJECTIONS), draws=_silent),
    "projections from the stream of the noise": noisy_sgd(Pipeline, rule=OfTheNoise()),
}

# Statistics of the inputs

Noising = Callable[[Tensor, Tensor, float], Tensor]


def _noised(sum_RK: Tensor, keys_RS: Tensor, deviation: float) -> Tensor:
    zero_R = torch.zeros(len(keys_RS), dtype=torch.int64)
    normal_RK = randomness.normal(keys_RS, randomness.PREPARATION, zero_R, sum_RK.shape[1], dtype=torch.float64)
    return sum_RK + deviation * normal_RK


@dataclass(frozen=True)
class Centred:
    """Subtracts the mean input, released with noise; rows are clipped to norm `bound`."""

    noising: Noising = _noised
    stated: tuple[tuple[Event, int], ...] = ((Gaussian(4.0), 1),)
    bound: float = 1.0
    clip_times: float = 1.0
    first_only: bool = False

    @property
    def releases(self) -> tuple[tuple[Event, int], ...]:
        return self.stated

    def start(self, keys_RS: Tensor, inputs: Tensor) -> dict[str, Tensor]:
        rows = inputs.flatten(1).double()
        norm = rows[:, :1].abs() if self.first_only else rows.norm(dim=1, keepdim=True)
        total_K = (rows / (norm / (self.bound * self.clip_times)).clamp_min(1.0)).sum(0)
        exact_RK, deviation = total_K.expand(len(keys_RS), -1), 4.0 * self.bound
        sum_RK = let_out(
            exact_RK,
            self.noising(exact_RK, keys_RS, deviation),
            torch.full((len(keys_RS),), deviation, dtype=torch.float64),
        )
        return {"mean_RK": (sum_RK / len(inputs)).to(inputs.dtype)}

    def __call__(self, memory: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        mean_RK = memory["mean_RK"]
        return inputs - mean_RK.reshape(len(mean_RK), 1, *inputs.shape[2:])


def centred(**wrong: Any) -> Pipeline:
    """A pipeline that centres its inputs."""
    return noisy_sgd(Pipeline, preparation=Centred(**wrong))


def _bare(sum_RK: Tensor, keys_RS: Tensor, deviation: float) -> Tensor:
    del keys_RS, deviation
    return sum_RK


PREPARED: Mapping[str, Pipeline] = {
    "statistics without noise": centred(noising=_bare),
    "the same noise on the statistics in every run": centred(
        noising=lambda total, keys_RS, deviation: _noised(total, 0 * keys_RS, deviation)
    ),
    "half the noise on the statistics": centred(noising=lambda total, keys_RS, d: _noised(total, keys_RS, d / 2)),
    "no noise on the last statistic": centred(
        noising=lambda total, keys_RS, d: torch.cat([_noised(total, keys_RS, d)[:, :-1], total[:, -1:]], 1)
    ),
    "records of the statistics clipped at twice the bound": centred(clip_times=2.0),
    "records clipped by their first entry": centred(first_only=True),
    "statistics that the ledger leaves out": centred(stated=()),
    "statistics stated with more noise": centred(stated=((Gaussian(8.0), 1),)),
}

# Own probabilities of inclusion


@dataclass(frozen=True)
class Importance:
    """A small mechanism with `OwnSteps`: example i is drawn with p_i = q·(3/2 − i/(N−1)) and weighs 1/(N·p_i)."""

    optimizer: Update = field(default_factory=Sgd)
    runs: Callable[[Tensor], Tensor] = torch.clone
    weighs: Callable[[Tensor], Tensor] = torch.clone
    told_times: float = 1.0
    reach_times: float = 1.0
    private: bool = True
    spends_budget: bool = False

    def check(self, setting: Setting) -> None:
        """Nothing to refuse."""

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition:
        if not noise_multiplier:
            raise ValueError(f"noise_multiplier = {noise_multiplier!r}: expected a number above 0")
        rate = min(1.0, 1.5 * sampling_rate * self.told_times)
        return Composition(((SampledGaussian(rate, noise_multiplier), steps),))

    def released(self, state: State, hyper: Hyperparameters) -> tuple[Composition | None, ...]:
        numbers = zip(
            hyper.sampling_rate_R.tolist(),
            hyper.noise_multiplier_R.tolist(),
            state.step_R.tolist(),
            strict=True,
        )
        return tuple(self.ledger(sampling_rate=q, noise_multiplier=s, steps=t) for q, s, t in numbers)

    def facts(self) -> Mapping[str, Any]:
        return {"sampler": "poisson", "adjacency": "add_or_remove", "privacy_unit": "one training example"}

    def start(self, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor) -> State:
        del hyper, inputs, targets
        memory = {name: torch.zeros_like(theta_RP) for name in self.optimizer.memory}
        return State(theta_RP, memory, torch.zeros(len(theta_RP), dtype=torch.int64))

    def view(self, state: State, inputs: Tensor) -> Tensor | None:
        del state, inputs
        return None

    def chances(self, hyper: Hyperparameters, examples: int) -> Tensor:
        spread_N = 1.5 - torch.arange(examples, dtype=torch.float64) / max(1, examples - 1)
        return (hyper.sampling_rate_R[:, None] * spread_N).clamp_max(1.0)

    def inclusion(
        self,
        before: State,
        after: State,
        net: Network,
        hyper: Hyperparameters,
        inputs: Tensor,
        targets: Tensor,
    ) -> Tensor:
        del before, after, net, inputs
        return self.chances(hyper, len(targets))

    def reach(self, after: State, hyper: Hyperparameters, examples: int) -> Tensor:
        del after
        return self.reach_times * hyper.clip_norm_R / (examples * self.chances(hyper, examples)[:, -1])

    def release(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[Released, Kept]:
        count, p_RN = len(targets), self.chances(hyper, len(targets))
        bits_RN = randomness.uniform_bits(hyper.keys_RS, randomness.SAMPLE, state.step_R, count)
        batch = filled(bits_RN < torch.floor(self.runs(p_RN) * 2.0**53).long())
        examples = Examples(inputs[batch.index_RB], targets[batch.index_RB], batch.mask_RB)
        weight_RB = 1 / (count * self.weighs(p_RN)).gather(1, batch.index_RB)
        sum_RP, losses = torch.zeros_like(state.theta_RP), []
        for place in range(batch.mask_RB.shape[1]):
            one = vmap.clipping(net, state.theta_RP, examples.part(place, place + 1), hyper.clip_norm_R, chunk)
            sum_RP = sum_RP + one.sum_RP * weight_RB[:, place, None].to(sum_RP.dtype)
            losses.append(one.loss_RB.sum(1))
        deviation_R = hyper.noise_multiplier_R * self.reach(state, hyper, count)
        noisy_RP = gaussian_noise(sum_RP, deviation_R, hyper.keys_RS, state.step_R)
        drawn_R = batch.mask_RB.sum(1)
        observed = Observed(drawn_R, torch.stack(losses).sum(0), 0 * drawn_R, sum_RP.isfinite().all(1))
        return Released(noisy_RP, partial(self._events, hyper)), Kept(observed)

    def update(self, state: State, rate_R: Tensor, released: Released) -> State:
        theta_RP, memory = optimised(self.optimizer, state, rate_R, released.gradient_RP)
        return State(theta_RP, memory, state.step_R + 1)

    def _events(self, hyper: Hyperparameters, run: int) -> tuple[Event, ...]:
        rate, sigma = float(hyper.sampling_rate_R[run]), float(hyper.noise_multiplier_R[run])
        return tuple(event for event, _ in self.ledger(sampling_rate=rate, noise_multiplier=sigma, steps=1).parts)


def _last(p_RN: Tensor, times: float) -> Tensor:
    return torch.cat([p_RN[:, :-1], times * p_RN[:, -1:]], 1).clamp_max(1)


IMPORTANCE: Mapping[str, Importance] = {
    "an inclusion probability that is off": Importance(runs=lambda p: _last(p, 2.0)),
    "all inclusion probabilities a quarter too high": Importance(runs=lambda p: (1.25 * p).clamp_max(1)),
    "uniform draws, weights of importance": Importance(runs=lambda p: p.mean(1, keepdim=True).expand_as(p)),
    "weights of another probability": Importance(weighs=lambda p: p.mean(1, keepdim=True).expand_as(p)),
    "a sampling rate of the ledger below the largest": Importance(told_times=0.8),
    "more reach than it says": Importance(reach_times=0.5),
}
SOUND: Mapping[str, Any] = {
    "estimated norms": projected(),
    "decaying noise": decaying(DecayingNoise(0.05)),
    "pairs, accounted with 2C": PAIRS,
    "a smoothed loss": smoothed(),
    "views of records": augmented(),
    "centred inputs": centred(),
    "own probabilities": Importance(),
}
