"""Faults that somebody could build in without noticing, and the checks that must find them.

`PLANTED` maps the name of a check to subjects that it must refute. Each is the real code with one thing wrong.
"""

# ruff: noqa: ARG005 (each noise takes what any of them needs)

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.clipping import loop, vmap
from dpbench.judging.checks._subject import Subject
from dpbench.step.clipped_sum import Clipped, Examples
from dpbench.step.functional import Network
from dpbench.step.pipeline import Hyperparameters, Observed, Pipeline, State, plain_sum
from dpbench.step.stages import Batch, PoissonSampler, Sgd, filled, gaussian_noise
from tests.judging.faults.planted_kinds import (
    DECAYING,
    DEPENDENT,
    IMPORTANCE,
    MICROBATCHED,
    PREPARED,
    PROJECTED,
    per_example,
)
from tests.judging.faults.planted_releases import LATE, LEAKING, LOW_RATES, RELEASED

# Generators


def _generator(**wrong: Any) -> SimpleNamespace:
    whole = {name: getattr(randomness, name) for name in ("philox", "uniform_bits", "normal")}
    return SimpleNamespace(**(whole | wrong))


def _rounds(counter: tuple[Tensor, ...], key: tuple[Tensor, ...], rounds: int, weyl: bool = True) -> tuple[Tensor, ...]:
    word = 0xFFFFFFFF
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for turn in range(rounds):
        if turn and weyl:
            k0, k1 = (k0 + 0x9E3779B9) & word, (k1 + 0xBB67AE85) & word
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((p1 >> 32) & word) ^ c1 ^ k0, p1 & word, ((p0 >> 32) & word) ^ c3 ^ k1, p0 & word
    return c0, c1, c2, c3


def _signed_high_word(counter: tuple[Tensor, ...], key: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Forgets that the product of two words is unsigned: the high word keeps the sign's bits."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for turn in range(10):
        if turn:
            k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF
    return c0, c1, c2, c3


def _bits(change: Callable[[Tensor], Tensor]) -> SimpleNamespace:
    return _generator(uniform_bits=lambda *given: change(randomness.uniform_bits(*given)))


def _normals(change: Callable[[Tensor], Tensor]) -> SimpleNamespace:
    return _generator(normal=lambda *given, **more: change(randomness.normal(*given, **more)))


def _places(change: Callable[[Tensor, int, Tensor], tuple[Tensor, int, Tensor]]) -> SimpleNamespace:
    """Seed, stream or step are changed before the draw."""
    return _generator(
        uniform_bits=lambda seed, stream, step, *rest: randomness.uniform_bits(*change(seed, stream, step), *rest),
        normal=lambda seed, stream, step, *rest, **more: randomness.normal(*change(seed, stream, step), *rest, **more),
    )


def _same_lanes(drawn: Tensor) -> Tensor:
    """The sine is never used: the second of each pair repeats the first."""
    return drawn[:, torch.arange(drawn.shape[1]) // 2 * 2]


_OUTPUT: Mapping[str, SimpleNamespace] = {
    "normals of deviation 1.01": _normals(lambda z: z * 1.01),
    "normals with mean 0.01": _normals(lambda z: z + 0.01),
    "each normal twice": _normals(_same_lanes),
    "step taken modulo 2^32": _places(lambda seed, stream, step: (seed, stream, step & 0xFFFFFFFF)),
    "stream forgotten": _places(lambda keys, stream, step: (keys, 0 * stream, step)),
    "key added to step": _places(lambda keys, stream, step: (keys * 0, stream, step + (keys[:, stream] & 0xFFFFFFFF))),
    "only the low word of the key": _places(lambda keys, stream, step: (keys & 0xFFFFFFFF, stream, step)),
}
GENERATORS: Mapping[str, SimpleNamespace] = {
    "nine rounds": _generator(philox=partial(_rounds, rounds=9)),
    "eleven rounds": _generator(philox=partial(_rounds, rounds=11)),
    "key not bumped": _generator(philox=partial(_rounds, rounds=10, weyl=False)),
    "signed high word": _generator(philox=_signed_high_word),
    "bits off by one": _bits(lambda bits: bits + 1),
    "52 bits": _bits(lambda bits: bits & ~1),
    "every split starts anew": _generator(uniform_bits=lambda *given: randomness.uniform_bits(*given[:4])),
    **_OUTPUT,
}
DISTRIBUTIONS: Mapping[str, SimpleNamespace] = {
    "bits off by 2^40": _bits(lambda bits: bits + 2**40),
    "52 bits": _bits(lambda bits: bits & ~1),
    "upper bit seldom": _bits(lambda bits: bits - (bits >> 52) * (bits & 7 == 0) * 2**52),
    "normals from twelve uniforms": _generator(
        normal=lambda seed, stream, step, count, *_, **__: sum(
            (randomness.uniform_bits(seed, stream, step, count, k * 2**20) * 2.0**-53 for k in range(12)),
            start=torch.tensor(-6.0, dtype=torch.float64),
        )
    ),
    "normals cut at 4": _normals(lambda z: z.clamp(-4, 4)),
    **_OUTPUT,
}

# Samplers


@dataclass(frozen=True)
class FaultySampler:
    """Calls itself Poisson; `draw` is what it does."""

    draw: Callable[[Tensor, Tensor, Tensor, int], Batch]
    sampler: str = "poisson"

    def __call__(self, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Batch:
        return self.draw(keys_RS, step_R, rate_R, examples)


def _bits_RN(keys_RS: Tensor, step_R: Tensor, examples: int) -> Tensor:
    return randomness.uniform_bits(keys_RS, randomness.SAMPLE, step_R, examples)


def _threshold(rate_R: Tensor) -> Tensor:
    return (rate_R * 2.0**53).long()[:, None]


def _drop_last(keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Batch:
    chosen_RN = _bits_RN(keys_RS, step_R, examples) < _threshold(rate_R)
    chosen_RN[:, -1] = False
    return filled(chosen_RN)


def _buffer(keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int, times: float) -> Batch:
    """Keeps only as many examples as a buffer of `times` the expected batch holds."""
    batch = PoissonSampler()(keys_RS, step_R, rate_R, examples)
    room_R1 = (rate_R * examples * times).ceil().long()[:, None]
    return Batch(batch.index_RB, batch.mask_RB & (torch.arange(batch.mask_RB.shape[1]) < room_R1))


def _fixed_size(keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Batch:
    """The ⌊qN⌋ examples with the smallest numbers: sampling without replacement."""
    rank_RN = _bits_RN(keys_RS, step_R, examples).argsort(1).argsort(1)
    return filled(rank_RN < (rate_R * examples).floor().long()[:, None])


def _shuffled(keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Batch:
    """One shuffle for each epoch, cut into batches of about qN: what most loaders do."""
    batches_R = (1 / rate_R.clamp_min(1e-9)).round().clamp(1, 2**40).long()
    rank_RN = _bits_RN(keys_RS, step_R // batches_R, examples).argsort(1).argsort(1)
    chosen_RN = (rank_RN * batches_R[:, None] // examples) == (step_R % batches_R)[:, None]
    return filled(chosen_RN & (rate_R > 0)[:, None])


def _in_pairs(keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Batch:
    """Neighbours in the data share a draw."""
    bits_RN = _bits_RN(keys_RS, step_R, examples)[:, torch.arange(examples) // 2]
    return filled(bits_RN < _threshold(rate_R))


def _one_early(keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Batch:
    """The first place is never filled: an off-by-one in the compaction loses an example of every batch."""
    batch = PoissonSampler()(keys_RS, step_R, rate_R, examples)
    return Batch(batch.index_RB, batch.mask_RB & batch.mask_RB.roll(-1, 1)) if batch.mask_RB.shape[1] > 1 else batch


SAMPLERS: Mapping[str, Callable[[Tensor, Tensor, Tensor, int], Batch]] = {
    "drops the last example": _drop_last,
    "buffer of the expected batch": partial(_buffer, times=1.0),
    "buffer of twice the expected batch": partial(_buffer, times=2.0),
    "fixed size": _fixed_size,
    "shuffled": _shuffled,
    "neighbours share a draw": _in_pairs,
    "loses one at the end": _one_early,
    "rate 3 % too high": lambda seed, step, rate, n: PoissonSampler()(seed, step, (rate * 1.03).clamp_max(1), n),
    "the same batch in every step": lambda seed, step, rate, n: PoissonSampler()(seed, step * 0, rate, n),
    "the same batch for every seed": lambda seed, step, rate, n: PoissonSampler()(seed * 0, step, rate, n),
    "the first run's rate for all": lambda seed, step, rate, n: PoissonSampler()(seed, step, rate[:1] + 0 * rate, n),
    "a place in the stack as seed": lambda seed, step, rate, n: PoissonSampler()(
        randomness.table(range(len(seed))), step, rate, n
    ),
}

SMALL = {  # faults that ten examples and one sampling rate for all runs do not show
    "rate 3 % too high",
    "the first run's rate for all",
    "buffer of twice the expected batch",
    "a place in the stack as seed",
}

# Clipping engines

Engine = Callable[[Network, Tensor, Examples, Tensor, int], Clipped]


def _unclipped(net: Network, theta_RP: Tensor, examples: Examples) -> tuple[Tensor, Clipped]:
    """Every example's own gradient (R, B, P), empty places 0; and what the real engine says without clipping."""
    whole_R = torch.full((len(theta_RP),), torch.inf, dtype=torch.float64)
    return per_example(net, theta_RP, examples), vmap.clipping(net, theta_RP, examples, whole_R, 100)


def _scaled(norm: Tensor, clip_R: Tensor) -> Tensor:
    shape = (-1,) + (1,) * (norm.dim() - 1)
    return 1 / (norm / clip_R.to(norm.dtype).reshape(shape)).clamp_min(1.0)


def clip_the_batch(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """Clips the sum over the batch instead of each example."""
    del chunk
    each_RBP, told = _unclipped(net, theta_RP, examples)
    sum_RP = each_RBP.sum(1)
    return replace(told, sum_RP=sum_RP * _scaled(sum_RP.norm(dim=1), clip_R)[:, None])


def _clip_chunks(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """Clips the sum of each chunk (a microbatch) as if it were one example."""
    each_RBP, told = _unclipped(net, theta_RP, examples)
    sums = [part.sum(1) for part in torch.split(each_RBP, max(2, chunk), 1)]
    return replace(told, sum_RP=sum((s * _scaled(s.norm(dim=1), clip_R)[:, None] for s in sums), start=0 * sums[0]))


def _clip_layers(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """Clips the gradient of each layer to C, so that of the whole only to C·sqrt(layers)."""
    del chunk
    each_RBP, told = _unclipped(net, theta_RP, examples)
    pieces = torch.split(each_RBP, [shape.numel() for _, shape in net.shapes], 2)
    done = [(p * _scaled(p.norm(dim=2), clip_R)[:, :, None]).sum(1) for p in pieces]
    return replace(told, sum_RP=torch.cat(done, 1))


def _changed(change: Callable[[Examples, Tensor], tuple[Examples, Tensor]]) -> Engine:
    """The real engine, after its examples or its clip norms have been changed."""

    def engine(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
        return vmap.clipping(net, theta_RP, *change(examples, clip_R), chunk)

    return engine


def _normalise(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """Scales every gradient to norm C, the small ones too."""
    del chunk
    each_RBP, told = _unclipped(net, theta_RP, examples)
    scale_RB = clip_R.to(told.norm_RB.dtype)[:, None] / told.norm_RB.clamp_min(1e-12)
    return replace(told, sum_RP=(each_RBP * scale_RB[:, :, None]).sum(1))


def _mean(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """The mean over the batch in the place of the sum."""
    found = loop.clipping(net, theta_RP, examples, clip_R, chunk)
    return replace(found, sum_RP=found.sum_RP / examples.mask_RB.sum(1).clamp_min(1)[:, None])


def _whole_chunks(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """Forgets the last chunk unless it is full."""
    found = vmap.clipping(net, theta_RP, examples, clip_R, chunk)
    kept = examples.mask_RB.shape[1] // chunk * chunk
    mask_RB = examples.mask_RB & (torch.arange(examples.mask_RB.shape[1]) < kept)
    part = vmap.clipping(net, theta_RP, replace(examples, mask_RB=mask_RB), clip_R, chunk)
    return replace(found, sum_RP=part.sum_RP)


SENSITIVE: Mapping[str, Engine] = {
    "clips the batch": clip_the_batch,
    "clips chunks": _clip_chunks,
    "clips layers": _clip_layers,
    "does not clip": plain_sum,
    "ignores the mask": _changed(lambda e, c: (replace(e, mask_RB=torch.ones_like(e.mask_RB)), c)),
    "the first run's C for all": _changed(lambda e, c: (e, c[:1] + 0 * c)),
    "C of 1 for all": _changed(lambda e, c: (e, c * 0 + 1)),
    "C one part in a thousand too large": _changed(lambda e, c: (e, c * 1.001)),
}
DIFFERENT: Mapping[str, Engine] = {
    **SENSITIVE,
    "normalises small gradients": _normalise,
    "the mean instead of the sum": _mean,
    "forgets the last chunk": _whole_chunks,
    "C one part in a thousand too small": _changed(lambda e, c: (e, c * 0.999)),
}

# Mechanisms

Noise = Callable[[Tensor, Hyperparameters, Tensor, Batch], Tensor]


def _deviation(hyper: Hyperparameters) -> Tensor:
    return torch.where(hyper.noise_multiplier_R > 0, hyper.noise_multiplier_R * hyper.clip_norm_R, 0.0)


def _good_noise(sum_RP: Tensor, hyper: Hyperparameters, step_R: Tensor, batch: Batch) -> Tensor:
    del batch
    return gaussian_noise(sum_RP, _deviation(hyper), hyper.keys_RS, step_R)


def _expected(hyper: Hyperparameters, batch: Batch, examples: int) -> Tensor:
    del batch
    return hyper.sampling_rate_R * examples


@dataclass(frozen=True)
class FaultyPipeline(Pipeline):
    """A pipeline whose noise and whose divisor can be replaced."""

    noising: Noise = _good_noise
    divisor: Callable[[Hyperparameters, Batch, int], Tensor] = _expected

    def step(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[State, Observed]:
        batch = self.sample(hyper.keys_RS, state.step_R, hyper.sampling_rate_R, len(targets))
        examples = Examples(inputs[batch.index_RB], targets[batch.index_RB], batch.mask_RB)
        engine: Any = self.clipped_sum
        found = engine(net, state.theta_RP, examples, hyper.clip_norm_R, chunk)
        total_RP = self.noising(found.sum_RP, hyper, state.step_R, batch)
        gradient_RP = total_RP / self.divisor(hyper, batch, len(targets)).to(total_RP.dtype)[:, None]
        theta_RP, memory = self.update(
            state.theta_RP, dict(state.memory), gradient_RP, hyper.learning_rate_R, state.step_R
        )
        observed = Observed(
            batch.mask_RB.sum(1), found.loss_RB.sum(1), (found.norm_RB > 0).sum(1), found.sum_RP.isfinite().all(1)
        )
        return State(theta_RP, memory, state.step_R + 1), observed


def faulty(**wrong: Any) -> FaultyPipeline:
    """NoisySGD with some of its parts replaced; with none, it must pass every check."""
    parts: dict[str, Any] = {"clipped_sum": vmap.clipping, "update": Sgd(), "gaussian": True} | wrong
    return FaultyPipeline(**parts)


def _noise(change: Callable[[Tensor, Hyperparameters, Tensor, Batch], Tensor]) -> FaultyPipeline:
    """`change` gives the noise itself."""
    return faulty(noising=lambda total, hyper, step, batch: total + change(total, hyper, step, batch).to(total.dtype))


def _draw(total_RP: Tensor, hyper: Hyperparameters, step_R: Tensor) -> Tensor:
    return randomness.normal(hyper.keys_RS, randomness.NOISE, step_R, total_RP.shape[1])


def _scale(hyper: Hyperparameters) -> Tensor:
    return _deviation(hyper)[:, None]


def _drawn(hyper: Hyperparameters, batch: Batch, examples: int) -> Tensor:
    del hyper, examples
    return batch.mask_RB.sum(1).clamp_min(1).double()


NOISES: Mapping[str, Pipeline] = {
    "forgets C": _noise(lambda s, k, t, b: k.noise_multiplier_R[:, None] * _draw(s, k, t)),
    "forgets σ": _noise(lambda s, k, t, b: k.clip_norm_R[:, None] * _draw(s, k, t)),
    "σ² for σ": _noise(lambda s, k, t, b: (k.noise_multiplier_R**2 * k.clip_norm_R)[:, None] * _draw(s, k, t)),
    "no noise": _noise(lambda s, k, t, b: 0 * s),
    "5 % less noise": _noise(lambda s, k, t, b: 0.95 * _scale(k) * _draw(s, k, t)),
    "one draw for all coordinates": _noise(lambda s, k, t, b: _scale(k) * _draw(s, k, t)[:, :1].expand_as(s)),
    "the same noise in every step": _noise(lambda s, k, t, b: _scale(k) * _draw(s, k, t * 0)),
    "the same noise in steps 2t and 2t+1": _noise(
        lambda s, k, t, b: -((-1) ** t[:, None]) * _scale(k) * _draw(s, k, t // 2)
    ),
    "the same noise for every run": _noise(lambda s, k, t, b: _scale(k) * _draw(s, k, t)[:1]),
    "the first run's scale for all": _noise(lambda s, k, t, b: _scale(k)[:1] * _draw(s, k, t)),
    "no noise on the last coordinate": _noise(
        lambda s, k, t, b: _scale(k) * _draw(s, k, t) * (torch.arange(s.shape[1]) < s.shape[1] - 1)
    ),
    "no noise on empty batches": _noise(lambda s, k, t, b: _scale(k) * _draw(s, k, t) * b.mask_RB.any(1)[:, None]),
    "uniform noise": _noise(
        lambda s, k, t, b: _scale(k) * (randomness.uniform_bits(k.keys_RS, 2, t, s.shape[1]) * 2.0**-53 - 0.5) * 12**0.5
    ),
    "divided by the examples drawn": faulty(divisor=_drawn),
    "divided by one example more": faulty(divisor=lambda k, b, n: k.sampling_rate_R * (n + 1)),
}
INSENSITIVE: Mapping[str, Pipeline] = {
    name: faulty(clipped_sum=engine)
    for name, engine in SENSITIVE.items()
    if name not in ("ignores the mask", "clips chunks")  # with q = 1 every place is filled, and there is one chunk
} | {"clips chunks": faulty(clipped_sum=lambda net, theta, e, c, chunk: _clip_chunks(net, theta, e, c, 2))}
BIASED: Mapping[str, Pipeline] = {
    "divided by the examples drawn": faulty(divisor=_drawn),
    "divided by one example more": faulty(divisor=lambda k, b, n: k.sampling_rate_R * (n + 1)),
    "drops the last example": faulty(sample=FaultySampler(_drop_last)),
    "drops the last example, without noise": faulty(sample=FaultySampler(_drop_last), gaussian=False),
    "noise with a mean": _noise(lambda s, k, t, b: _scale(k) * (_draw(s, k, t) + 0.2)),
    "not a number": _noise(lambda s, k, t, b: s * torch.nan),
    "clips at C / 10": faulty(clipped_sum=_changed(lambda e, c: (e, c / 10))),
}
# Read off the gradients of a whole mechanism, with fewer draws than the check of a sampler alone has.
UNEVEN: Mapping[str, Any] = {
    **{name: faulty(sample=FaultySampler(draw)) for name, draw in SAMPLERS.items() if name not in SMALL},
    "rates a tenth too high": faulty(
        sample=FaultySampler(lambda seed, step, rate, n: PoissonSampler()(seed, step, (rate * 1.1).clamp_max(1), n))
    ),
    "divided by the examples drawn": faulty(divisor=_drawn),
    **LOW_RATES,
    **IMPORTANCE,
}


def _subjects(kind: str, faults: Mapping[str, Any]) -> Mapping[str, Subject]:
    return {name: Subject(kind, name, value) for name, value in faults.items()}


PLANTED: Mapping[str, Mapping[str, Subject]] = {
    "philox_vectors": _subjects("generator", GENERATORS),
    "generator_distribution": _subjects("generator", DISTRIBUTIONS),
    "sampler_inclusion": _subjects("samplers", {name: FaultySampler(draw) for name, draw in SAMPLERS.items()}),
    "clipping_sensitivity": _subjects("clipping", SENSITIVE),
    "clipping_reference": _subjects("clipping", DIFFERENT),
    "noise_scale": _subjects("mechanisms", {**NOISES, **DECAYING, **LATE}),
    "mechanism_releases": _subjects("mechanisms", RELEASED),
    "mechanism_replay": _subjects("mechanisms", LEAKING),
    "mechanism_sensitivity": _subjects("mechanisms", {**INSENSITIVE, **PROJECTED, **MICROBATCHED, **DEPENDENT}),
    "mechanism_inclusion": _subjects("mechanisms", UNEVEN),
    "preparation_release": _subjects("mechanisms", PREPARED),
    "gradient_unbiased": _subjects("mechanisms", BIASED),
}
