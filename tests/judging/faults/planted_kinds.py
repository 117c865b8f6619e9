"""Faults in the kinds of mechanisms beside the plain one, with their sound frames: projections, decaying noise, sums
that one example moves by 2C, statistics of the inputs, and own probabilities of inclusion.

`SOUND` must pass every check; each of the other tables is one frame with one thing wrong.
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
from dpbench.clipping._jl import ProjectedSum
from dpbench.events import Composition, Event, Gaussian, SampledGaussian, Sampler
from dpbench.mechanisms._jl import release as projected_release
from dpbench.step.clipped_sum import Clipped, ClippedSum, Draw, Examples
from dpbench.step.functional import Network
from dpbench.step.letting_out import let_out
from dpbench.step.pipeline import Hyperparameters, Observed, Pipeline, Setting, State, clipped_release
from dpbench.step.stages import DecayingNoise, Sgd, Update, filled, gaussian_noise

# Estimated norms

PROJECTIONS = 4


@dataclass(frozen=True)
class Redrawn:
    """The engine of DP-SGD-JL, after the place of its draws has been changed."""

    change: Callable[[Draw], Draw]
    projections: int = PROJECTIONS
    clip_times: float = 1.0

    def at(self, draw: Draw) -> ClippedSum:
        engine = ProjectedSum(self.projections).at(self.change(draw))

        def summed(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
            return engine(net, theta_RP, examples, clip_R * self.clip_times, chunk)

        return summed


def _same(draw: Draw) -> Draw:
    return draw


def projected(engine: Any, told: int | None = PROJECTIONS) -> Pipeline:
    """A pipeline with estimated norms; `told` is the number of projections that the accountant hears of."""
    event = clipped_release if told is None else partial(projected_release, told)
    return Pipeline(clipped_sum=engine, update=Sgd(), gaussian=True, release=event)


PROJECTED: Mapping[str, Pipeline] = {
    "the same projections in every step": projected(Redrawn(lambda d: Draw(d.keys_RS, 0 * d.step_R, d.index_RB))),
    "the same projections in steps 2t and 2t+1": projected(
        Redrawn(lambda d: Draw(d.keys_RS, d.step_R // 2, d.index_RB))
    ),
    "the same projections in every run": projected(Redrawn(lambda d: Draw(0 * d.keys_RS, d.step_R, d.index_RB))),
    "estimated norms accounted as exact ones": projected(Redrawn(_same), told=None),
    "accounted with twice the projections": projected(Redrawn(_same), told=2 * PROJECTIONS),
    "half of the projections that are accounted": projected(Redrawn(_same, PROJECTIONS // 2)),
    "the mean of squares forgotten": projected(Redrawn(_same, clip_times=PROJECTIONS**0.5)),
}

# Noise that decays


@dataclass(frozen=True)
class Told:
    """A schedule that runs as one number says and tells the ledger another."""

    runs: DecayingNoise
    told: DecayingNoise
    rate_times: float = 1.0

    def factor(self, step_R: Tensor, rate_R: Tensor) -> Tensor:
        return self.runs.factor(step_R, rate_R * self.rate_times)

    def stretches(self, rate: float, steps: int) -> Iterator[tuple[float, int]]:
        return self.told.stretches(rate, steps)


def decaying(noise: Any) -> Pipeline:
    return Pipeline(clipped_sum=vmap.clipping, update=Sgd(), gaussian=True, noise=noise)


DECAYING: Mapping[str, Pipeline] = {
    "the noise decays, the ledger does not": decaying(Told(DecayingNoise(0.1), DecayingNoise(0.0))),
    "decays in the code faster than in the ledger": decaying(Told(DecayingNoise(0.1), DecayingNoise(0.09))),
    "decays with half epochs": decaying(Told(DecayingNoise(0.1), DecayingNoise(0.1), rate_times=2.0)),
    "decays in the ledger only": decaying(Told(DecayingNoise(0.0), DecayingNoise(0.1))),
}

# Sums that one example moves by 2C


def _scaled(norm_RB: Tensor, clip_R: Tensor) -> Tensor:
    return 1 / (norm_RB / clip_R.to(norm_RB.dtype)[:, None]).clamp_min(1.0)


def clip_pairs(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """Two places at a time: the sum of both gradients is clipped as if it were one example's (a microbatch)."""
    whole_R = torch.full_like(clip_R, torch.inf)
    told = vmap.clipping(net, theta_RP, examples, whole_R, chunk)
    total = torch.zeros_like(theta_RP)
    for start in range(0, examples.mask_RB.shape[1], 2):
        pair_RP = vmap.clipping(net, theta_RP, examples.part(start, start + 2), whole_R, chunk).sum_RP
        total = total + pair_RP * _scaled(pair_RP.norm(dim=1, keepdim=True), clip_R)
    return Clipped(total, told.norm_RB, told.loss_RB)


def per_example(net: Network, theta_RP: Tensor, examples: Examples) -> Tensor:
    """Every example's own gradient (R, B, P), not clipped; empty places 0."""
    over = torch.func.vmap(torch.func.vmap(torch.func.grad(net.example_loss), in_dims=(None, 0, 0)))
    named = over(net.split(theta_RP), examples.inputs, examples.targets)
    each_RBP = torch.cat([named[name].flatten(2) for name, _ in net.shapes], 2)
    return torch.where(examples.mask_RB[:, :, None], each_RBP, 0.0)


@dataclass(frozen=True)
class PairsByIndex:
    """Examples 2i and 2i+1 of the data share a microbatch, whoever else is drawn: one example moves the sum by 2C."""

    def at(self, draw: Draw) -> ClippedSum:
        def summed(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
            whole_R = torch.full_like(clip_R, torch.inf)
            told = vmap.clipping(net, theta_RP, examples, whole_R, chunk)
            each_RBP = per_example(net, theta_RP, examples)
            pair_RB = draw.index_RB // 2
            pairs_RKP = each_RBP.new_zeros(len(theta_RP), int(pair_RB.max()) + 1, theta_RP.shape[1])
            pairs_RKP.scatter_add_(1, pair_RB[:, :, None].expand_as(each_RBP), each_RBP)
            total = (pairs_RKP * _scaled(pairs_RKP.norm(dim=2), clip_R)[:, :, None]).sum(1)
            return Clipped(total, told.norm_RB, told.loss_RB)

        return summed


def twice_release(rate: float, noise_multiplier: float, sampler: Sampler) -> Event:
    return SampledGaussian(rate, noise_multiplier / 2, "add_or_remove", sampler)


PAIRS = Pipeline(clipped_sum=PairsByIndex(), update=Sgd(), gaussian=True, release=twice_release)
MICROBATCHED: Mapping[str, Pipeline] = {
    "microbatches accounted with C": Pipeline(clipped_sum=PairsByIndex(), update=Sgd(), gaussian=True),
    # Whoever is drawn before the others shifts them all: about as many sums turn as there are pairs.
    "microbatches by place in the batch, accounted with 2C": Pipeline(
        clipped_sum=clip_pairs, update=Sgd(), gaussian=True, release=twice_release
    ),
}

# Noise that depends on the data, or the data's clipping on the noise


@dataclass(frozen=True)
class Silenced(Pipeline):
    """Leaves the noise out where the sum of the gradients is not zero."""

    def step(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[State, Observed]:
        still = replace(hyper, noise_multiplier_R=torch.zeros_like(hyper.noise_multiplier_R))
        quiet, seen = super().step(net, state, still, inputs, targets, chunk)
        moved = bool((quiet.theta_RP != state.theta_RP).any() or quiet.memory.get("gradient_RP", torch.zeros(1)).any())
        return (quiet, seen) if moved else super().step(net, state, hyper, inputs, targets, chunk)


@dataclass(frozen=True)
class OfTheNoise:
    """Projections that are the numbers of the noise: a small estimate goes with a small noise along the gradient."""

    def at(self, draw: Draw) -> ClippedSum:
        engine = ProjectedSum(PROJECTIONS).at(draw)

        def summed(*args: Any) -> Clipped:
            with mock.patch.object(randomness, "PROJECTION", randomness.NOISE):
                return engine(*args)

        return summed


DEPENDENT: Mapping[str, Pipeline] = {
    "no noise where there are gradients": Silenced(clipped_sum=vmap.clipping, update=Sgd(), gaussian=True),
    "no noise where there are estimated norms": Silenced(
        clipped_sum=ProjectedSum(PROJECTIONS),
        update=Sgd(),
        gaussian=True,
        release=partial(projected_release, PROJECTIONS),
    ),
    "projections from the stream of the noise": projected(OfTheNoise()),
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
    told: tuple[tuple[Event, int], ...] = ((Gaussian(4.0), 1),)
    bound: float = 1.0
    clip_times: float = 1.0
    first_only: bool = False

    @property
    def releases(self) -> tuple[tuple[Event, int], ...]:
        return self.told

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
    return Pipeline(clipped_sum=vmap.clipping, update=Sgd(), gaussian=True, preparation=Centred(**wrong))


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
    "statistics that the ledger leaves out": centred(told=()),
    "statistics told with more noise": centred(told=((Gaussian(8.0), 1),)),
}

# Own probabilities of inclusion


@dataclass(frozen=True)
class Importance:
    """A small mechanism with `OwnSteps`: example i is drawn with p_i = q·(3/2 − i/(N−1)) and weighs 1/(N·p_i)."""

    update: Update = field(default_factory=Sgd)
    runs: Callable[[Tensor], Tensor] = torch.clone
    weighs: Callable[[Tensor], Tensor] = torch.clone
    told_times: float = 1.0
    reach_times: float = 1.0
    private: bool = True
    spends_budget: bool = False

    def check(self, setting: Setting) -> None:
        """Nothing to refuse."""

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
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
        memory = {name: torch.zeros_like(theta_RP) for name in self.update.memory}
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

    def step(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[State, Observed]:
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
        theta_RP, memory = self.update(
            state.theta_RP, dict(state.memory), noisy_RP, hyper.learning_rate_R, state.step_R
        )
        drawn_R = batch.mask_RB.sum(1)
        seen = Observed(drawn_R, torch.stack(losses).sum(0), 0 * drawn_R, sum_RP.isfinite().all(1))
        return State(theta_RP, memory, state.step_R + 1), seen


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
    "estimated norms": projected(Redrawn(_same)),
    "decaying noise": decaying(DecayingNoise(0.1)),
    "pairs, accounted with 2C": PAIRS,
    "centred inputs": centred(),
    "own probabilities": Importance(),
}
