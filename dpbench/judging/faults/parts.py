"""Faults in the parts of a mechanism: generators of random numbers, samplers, clipping engines.

Shapes: S keys of a run; R runs, N examples, B batch, P parameters.
"""

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
from dpbench.events import Sampler, batches_per_epoch
from dpbench.step.clipped_sum import Clipped, Examples
from dpbench.step.functional import Network
from dpbench.step.samplers.poisson import PoissonSampler
from dpbench.step.samplers.shuffled import ShuffledSampler
from dpbench.step.stages import Batch, filled

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
    sampler: Sampler = "poisson"

    def __call__(self, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Batch:
        return self.draw(keys_RS, step_R, rate_R, examples)


def _bits_RN(keys_RS: Tensor, step_R: Tensor, examples: int) -> Tensor:
    return randomness.uniform_bits(keys_RS, randomness.SAMPLE, step_R, examples)


def _threshold(rate_R: Tensor) -> Tensor:
    return (rate_R * 2.0**53).long()[:, None]


def drop_last(keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Batch:
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
    "drops the last example": drop_last,
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


def _epoch(
    order: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    batches: Callable[[float], int] = batches_per_epoch,
) -> FaultySampler:
    """Calls itself shuffled: `order` gives the keys and the counter (R,) of a step's order, `batches` their number."""

    def draw(keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Batch:
        size_R = (rate_R * examples).round().long()
        batches_R = torch.tensor([batches(rate) for rate in rate_R.tolist()])
        rank_RN = _bits_RN(*order(keys_RS, step_R, batches_R), examples).argsort(1).argsort(1)
        return filled(rank_RN // size_R[:, None] == (step_R % batches_R)[:, None])

    return FaultySampler(draw, "shuffled")


def _repeats_one(keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Batch:
    """Every batch of an epoch but the first takes the first example of the epoch again, in place of its own first."""
    own, batches_R = ShuffledSampler(), torch.tensor([batches_per_epoch(rate) for rate in rate_R.tolist()])
    batch = own(keys_RS, step_R, rate_R, examples)
    first = own(keys_RS, step_R // batches_R * batches_R, rate_R, examples)
    chosen_RN = torch.zeros(len(step_R), examples, dtype=torch.int64)
    chosen_RN = chosen_RN.scatter_add(1, batch.index_RB, batch.mask_RB.long()) > 0
    again_R = (step_R % batches_R > 0) & batch.mask_RB.any(1)
    rows = torch.arange(len(step_R))[again_R]
    chosen_RN[rows, batch.index_RB[again_R, 0]] = False
    chosen_RN[rows, first.index_RB[again_R, 0]] = True
    return filled(chosen_RN)


EPOCHS: Mapping[str, FaultySampler] = {
    "a new order in every batch": _epoch(lambda keys, step, _: (keys, step)),
    "an example again in each batch": FaultySampler(_repeats_one, "shuffled"),
    "the same order in every epoch": _epoch(lambda keys, step, _: (keys, step * 0)),
    "the same order in every run": _epoch(lambda keys, step, batches: (keys * 0, step // batches)),
    "the last batch dropped": _epoch(
        lambda keys, step, batches: (keys, step // batches), lambda rate: max(1, int(1 / rate + 1e-9))
    ),
    "Poisson sampling": FaultySampler(PoissonSampler(), "shuffled"),
}

SMALL = {  # faults that ten examples and one sampling rate for all runs do not show
    "rate 3 % too high",
    "the first run's rate for all",
    "buffer of twice the expected batch",
    "a place in the stack as seed",
}

# Clipping engines

Engine = Callable[[Network, Tensor, Examples, Tensor, int], Clipped]


def per_example(net: Network, theta_RP: Tensor, examples: Examples) -> Tensor:
    """Every example's own gradient (R, B, P), not clipped; empty places 0."""
    over = torch.func.vmap(torch.func.vmap(torch.func.grad(net.example_loss), in_dims=(None, 0, 0)))
    named = over(net.split(theta_RP), examples.inputs, examples.targets)
    each_RBP = torch.cat([named[name].flatten(2) for name, _ in net.shapes], 2)
    return torch.where(examples.mask_RB[:, :, None], each_RBP, 0.0)


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
    each_RBP, plain = _unclipped(net, theta_RP, examples)
    sum_RP = each_RBP.sum(1)
    return replace(plain, sum_RP=sum_RP * _scaled(sum_RP.norm(dim=1), clip_R)[:, None])


def clip_chunks(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """Clips the sum of each chunk (a microbatch) as if it were one example."""
    each_RBP, plain = _unclipped(net, theta_RP, examples)
    sums = [part.sum(1) for part in torch.split(each_RBP, max(2, chunk), 1)]
    return replace(plain, sum_RP=sum((s * _scaled(s.norm(dim=1), clip_R)[:, None] for s in sums), start=0 * sums[0]))


def _clip_layers(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """Clips the gradient of each layer to C, so that of the whole only to C·sqrt(layers)."""
    del chunk
    each_RBP, plain = _unclipped(net, theta_RP, examples)
    pieces = torch.split(each_RBP, [shape.numel() for _, shape in net.shapes], 2)
    done = [(p * _scaled(p.norm(dim=2), clip_R)[:, :, None]).sum(1) for p in pieces]
    return replace(plain, sum_RP=torch.cat(done, 1))


def changed(change: Callable[[Examples, Tensor], tuple[Examples, Tensor]]) -> Engine:
    """The real engine, after its examples or its clip norms have been changed."""

    def engine(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
        return vmap.clipping(net, theta_RP, *change(examples, clip_R), chunk)

    return engine


def _normalise(net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int) -> Clipped:
    """Scales every gradient to norm C, the small ones too."""
    del chunk
    each_RBP, plain = _unclipped(net, theta_RP, examples)
    scale_RB = clip_R.to(plain.norm_RB.dtype)[:, None] / plain.norm_RB.clamp_min(1e-12)
    return replace(plain, sum_RP=(each_RBP * scale_RB[:, :, None]).sum(1))


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
    "clips chunks": clip_chunks,
    "clips layers": _clip_layers,
    "does not clip": changed(lambda e, c: (e, c * torch.inf)),
    "ignores the mask": changed(lambda e, c: (replace(e, mask_RB=torch.ones_like(e.mask_RB)), c)),
    "the first run's C for all": changed(lambda e, c: (e, c[:1] + 0 * c)),
    "C of 1 for all": changed(lambda e, c: (e, c * 0 + 1)),
    "C one part in a thousand too large": changed(lambda e, c: (e, c * 1.001)),
}
DIFFERENT: Mapping[str, Engine] = {
    **SENSITIVE,
    "normalises small gradients": _normalise,
    "the mean instead of the sum": _mean,
    "forgets the last chunk": _whole_chunks,
    "C one part in a thousand too small": changed(lambda e, c: (e, c * 0.999)),
}
