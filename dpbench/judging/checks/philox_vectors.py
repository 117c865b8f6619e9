"""The generator gives Philox 4x32-10's published numbers, and its bits and normals have the documented positions.

The reference is a plain implementation on Python's whole numbers, written from the paper, that shares no code with
`randomness`. Deterministic: every comparison is exact, except in the normals' last places.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from dpbench.judging.check_tools.subject import Check, Subject
from dpbench.randomness import STREAMS
from dpbench.verdicts import Verdict

Four = tuple[int, int, int, int]

# (counter, key, output) of philox4x32 with 10 rounds: Random123's file kat_vectors
VECTORS: tuple[tuple[Four, tuple[int, int], Four], ...] = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)

# Normals are at most 9.50 in size. The angle carries a relative rounding error of 2^-52, at most 2π·2^-52 = 1.4e-15;
# the logarithm, the root, the cosine and the product add a few units in the last place: below 1e-13 in all.
NORMAL_TOLERANCE = 1e-13


def philox(counter: Four, key: tuple[int, int], rounds: int = 10) -> Four:
    """Philox 4x32 on whole numbers.

    >>> [f"{word:08x}" for word in philox((0, 0, 0, 0), (0, 0))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    x, y = list(counter), list(key)
    for _ in range(rounds):
        high_0, low_0 = divmod(0xD2511F53 * x[0], 1 << 32)
        high_1, low_1 = divmod(0xCD9E8D57 * x[2], 1 << 32)
        x = [high_1 ^ x[1] ^ y[0], low_1, high_0 ^ x[3] ^ y[1], low_0]
        y = [(y[0] + 0x9E3779B9) % (1 << 32), (y[1] + 0xBB67AE85) % (1 << 32)]
    return x[0], x[1], x[2], x[3]


Keys = int | Sequence[int]  # a seed, for the keys that it alone determines; or the keys, one for each stream


def key(keys: Keys, stream: int) -> int:
    """The 64-bit key of a stream, without a sign: the first 8 bytes of SHA-256 of the seed and the stream's name."""
    if isinstance(keys, int):
        return int(hashlib.sha256(f'[{keys},"{STREAMS[stream]}",""]'.encode()).hexdigest()[:16], 16)
    return keys[stream] % (1 << 64)


def block(keys: Keys, stream: int, step: int, number: int) -> Four:
    """The four words of one block: key, counter (block, step), low words first."""
    low, of_stream = (1 << 32) - 1, key(keys, stream)
    return philox((number & low, number >> 32, step & low, step >> 32), (of_stream & low, of_stream >> 32))


def uniform(keys: Keys, stream: int, step: int, element: int) -> int:
    """Element of the uniform bits: 32 bits of one word, then the upper 21 of the next."""
    words = block(keys, stream, step, element // 2)[2 * (element % 2) :]
    return (words[0] << 21) + (words[1] >> 11)


def gauss(keys: Keys, stream: int, step: int, element: int) -> float:
    """Element of the normals: Box and Muller's cosine or sine; radius of two words, angle of 53 bits of two."""
    high, low, *rest = block(keys, stream, step, element // 2)
    share = Fraction(2 * ((high << 32) + low) + 1, 1 << 65)
    log = math.log1p(-float(1 - share)) if 2 * share > 1 else math.log(float(share))
    angle = 2 * math.pi * (((rest[0] << 21) + (rest[1] >> 11)) / 2**53)
    return math.sqrt(-2 * log) * (math.sin(angle) if element % 2 else math.cos(angle))


@dataclass(frozen=True)
class PhiloxVectors(Check):
    """Subject: kind `generator`, with the functions `philox`, `uniform_bits` and `normal` of `dpbench.randomness`.

    >>> from dpbench import randomness
    >>> check(Subject("generator", "randomness", randomness), seed=0).verdict
    'holds'
    """

    kind = "generator"
    source = "Salmon, Moraes, Dror, Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011; Random123's kat_vectors"
    samples: int = 40

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        """Compare the published vectors, then `samples` random places of the uniform bits and the normals."""
        wrong = _published(subject.value) or _elements(subject.value, seed, self.samples)
        evidence = {"vectors": len(VECTORS), "places": self.samples, "normal_tolerance": NORMAL_TOLERANCE}
        return self.certain(subject, wrong, evidence, "the published vectors and every place that was tried agree")


def _published(generator: Any) -> str | None:
    for counter, key, expected in VECTORS:
        words = generator.philox(
            tuple(torch.tensor([word]) for word in counter), tuple(torch.tensor([word]) for word in key)
        )
        found = tuple(int(word) for word in words)
        if found != expected:
            shown = [" ".join(f"{word:08x}" for word in value) for value in (counter, key, found, expected)]
            return f"counter {shown[0]}, key {shown[1]}: found {shown[2]}, published {shown[3]}"
    return None


def _elements(generator: Any, seed: int, samples: int) -> str | None:
    draw = random.Random(seed)
    for _ in range(samples):
        # Sizes of every order, so that both words of the block and of the step are used.
        first, step = draw.getrandbits(draw.randint(1, 60)), draw.getrandbits(draw.randint(1, 62))
        keys = [draw.getrandbits(64) - (1 << 63) for _ in STREAMS]
        stream, count = draw.randrange(len(STREAMS)), draw.randint(1, 9)
        keys_RS, step_R = torch.tensor([keys]), torch.tensor([step])
        place = f"key {key(keys, stream):016x}, stream {stream}, step {step}, elements {first} to {first + count}"
        bits = generator.uniform_bits(keys_RS, stream, step_R, count, first)[0].tolist()
        if bits != [uniform(keys, stream, step, first + i) for i in range(count)]:
            return f"uniform bits at {place}: {bits} are not Philox's"
        normals = generator.normal(keys_RS, stream, step_R, count, first, dtype=torch.float64)[0].tolist()
        errors = [abs(x - gauss(keys, stream, step, first + i)) for i, x in enumerate(normals)]
        if len(normals) != count or not max(errors) <= NORMAL_TOLERANCE:
            return f"normals at {place}: off by up to {max(errors, default=math.inf):.3g}"
    return None


check = PhiloxVectors()
