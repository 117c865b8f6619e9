"""Counter-based randomness: every draw is a function of (seed, stream, step, element) and of nothing else.

Philox 4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011) with key (seed, stream) and
counter (block, step). The same bits come on every device, alone, stacked, split into pieces or after a resume.
Benchmark grade: it is not a cryptographic generator, so a model trained with it is not a private release.

Shapes: R runs, N elements. Integers travel in int64 tensors, because torch has no full set of unsigned operators;
a product of two 32-bit words wraps modulo 2^64 and keeps the right bits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

NUMERICS = 1
GRADE = "Philox 4x32-10, benchmark grade: not cryptographic; a release needs a secure generator"

# Streams: what the numbers are for. Two streams never share a number.
INIT, SAMPLE, NOISE = 0, 1, 2  # initial parameters, batches, noise on the gradient
PROJECTION, GROUP, PREPARATION = 3, 4, 5  # of gradients (JL), into microbatches, noise on statistics of the inputs
ESTIMATE, REJECT = 6, 7  # noise on released counts and sums, rejection sampling

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Ten rounds of Philox 4x32: four counter words and two key words (int64, broadcastable) to four words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for turn in range(10):
        if turn:
            k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = ((p1 >> 32) & _WORD) ^ c1 ^ k0, p1 & _WORD, ((p0 >> 32) & _WORD) ^ c3 ^ k1, p0 & _WORD
    return c0, c1, c2, c3


def words(seed_R: Tensor, stream: int, step_R: Tensor, first_block: int, blocks: int) -> tuple[Tensor, ...]:
    """Four words of 32 random bits for each block: int64 tensors of shape (R, blocks)."""
    block = torch.arange(first_block, first_block + blocks, device=seed_R.device)[None, :]
    step = step_R[:, None]
    key = (seed_R[:, None] & _WORD, torch.full_like(step, stream & _WORD))
    return philox((block & _WORD, block >> 32, step & _WORD, (step >> 32) & _WORD), key)


def uniform_bits(seed_R: Tensor, stream: int, step_R: Tensor, count: int, first: int = 0) -> Tensor:
    """Whole numbers, uniform on [0, 2^53): int64 of shape (R, count), elements `first` to `first + count`.

    Element i uses half i mod 2 of block i // 2.
    """
    start = first // 2
    w = words(seed_R, stream, step_R, start, -(-(first + count) // 2) - start)
    pairs = torch.stack(((w[0] << 21) | (w[1] >> 11), (w[2] << 21) | (w[3] >> 11)), dim=-1)
    return pairs.flatten(1)[:, first - 2 * start : first - 2 * start + count]


def normal(
    seed_R: Tensor, stream: int, step_R: Tensor, count: int, first: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Standard normals of shape (R, count), elements `first` to `first + count`; computed in float64, then rounded.

    Element i uses quarter i mod 4 of block i // 4. Box and Muller's transform of 32-bit uniforms, so no draw is
    beyond 6.77 in size; devices agree to a few units in the last place of float64.

    >>> seed, step = torch.tensor([7]), torch.tensor([0])
    >>> torch.equal(normal(seed, NOISE, step, 10)[:, 3:], normal(seed, NOISE, step, 7, first=3))
    True
    """
    start = first // 4
    w = words(seed_R, stream, step_R, start, -(-(first + count) // 4) - start)
    lanes = []
    for radius_word, angle_word in ((w[0], w[1]), (w[2], w[3])):
        radius = torch.sqrt(-2.0 * torch.log((radius_word.double() + 0.5) * 2.0**-32))
        angle = angle_word.double() * (2.0 * math.pi * 2.0**-32)
        lanes += [radius * torch.cos(angle), radius * torch.sin(angle)]
    flat = torch.stack(lanes, dim=-1).flatten(1)
    return flat[:, first - 4 * start : first - 4 * start + count].to(dtype)


def derived_seed(seed: int, stream: int) -> int:
    """A 53-bit seed for a generator that is not ours (torch's, for initial weights), set by (seed, stream)."""
    zero = torch.zeros(1, dtype=torch.int64)
    return int(uniform_bits(torch.tensor([seed]), stream, zero, 1).item())
