"""Counter-based randomness: every random number is a function of (key, step, element) only.

Philox 4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011) with the counter (block, step) and
a key of 64 bits: SHA-256 of the seed, the stream (the purpose of the numbers) and the resolved run. The bits are the
same on every device, alone, in a stack, in pieces or after a resume; two runs that differ in anything share none.
Benchmark grade: the generator is not cryptographic, so publishing a model trained with it is not private.

A table without columns holds no keys: the numbers come from the operating system's generator and cannot be repeated.
Its normals are scaled sums of four (Holohan and Braghin, Secure Random Sampling in Differential Privacy, ESORICS 2021);
docs/randomness.md says what that protects against.

Shapes: R runs, S streams, N elements. Integers are in int64 tensors, because torch lacks some unsigned operators; a
product of two 32-bit words wraps modulo 2^64, which keeps the right bits.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor

NUMERICS = 2

GRADES: Mapping[str, str] = {
    "own": "Philox 4x32-10, benchmark grade: not cryptographic; a release needs randomness: secure",
    "common": (
        "Philox 4x32-10, benchmark grade, common: runs of one seed share batches and noise, so they may not be released"
        " together; a release needs randomness: secure"
    ),
    "secure": (
        "the operating system's generator; noise is the sum of four normals, rounded to a grid; no seed of batches or"
        " noise is kept"
    ),
}

# Streams: what the numbers are for, a column of the table each. No two streams share a number.
INIT, SAMPLE, NOISE = 0, 1, 2  # initial parameters, batches, noise on the gradient
PROJECTION, GROUP, PREPARATION = 3, 4, 5  # of gradients (JL), microbatches and teachers, noise on input statistics
ESTIMATE, REJECT = 6, 7  # noise on released counts and sums, rejection sampling
SMOOTHING, AUGMENTATION = 8, 9  # shifts of the parameters (DPlis), views of records
STREAMS = (
    "initial parameters",
    "batches",
    "noise",
    "projections",
    "groups",
    "statistics",
    "estimates",
    "rejection",
    "smoothing",
    "augmentation",
)

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_PIECE = 1 << 17  # numbers that are made at once on a CPU, whose caches hold them
_MANY = 1 << 12  # blocks of all runs from which on compiled code is called: for fewer the call takes longer
_Made = Callable[..., tuple[Tensor, ...]]
_compiled: dict[_Made, _Made] = {}  # `_words_of` and `_points_of`, see `compile_words`
_SUMMED = 4  # independent normals in one from the operating system's generator: 2n with n = 2


def keys(seed: int, run: str = "", kind: Literal["own", "common", "secure"] = "own") -> Tensor:
    """The Philox keys of one run: int64 (S,), 64 bits each in two's complement; (0,) for `secure`.

    `run` is the run's key, which is the SHA-256 of the resolved run. The key of the initial parameters, and every key
    of `common`, depends on seed and stream only.

    >>> a, b = keys(7, "one run"), keys(7, "another")
    >>> bool(a[INIT] == b[INIT]), bool((a[1:] == b[1:]).any())
    (True, False)
    """
    if kind == "secure":
        return torch.empty(0, dtype=torch.int64)
    alone = kind == "common"
    return torch.tensor([_key(seed, name, "" if alone or at == INIT else run) for at, name in enumerate(STREAMS)])


def table(seeds: Iterable[int]) -> Tensor:
    """The keys of runs that differ in their seeds only: int64 (R, S). For checks and simulations.

    >>> table(range(3)).shape
    torch.Size([3, 10])
    """
    return torch.stack([keys(seed, kind="common") for seed in seeds])


def _key(seed: int, stream: str, run: str) -> int:
    text = json.dumps([seed, stream, run], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def from_system(keys_RS: Tensor) -> bool:
    """Whether the numbers of this table (R, S) come from the operating system's generator: it holds no keys."""
    return keys_RS.shape[1] == 0


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Ten rounds of Philox 4x32: four counter words and two key words (int64, broadcastable) to four words."""
    c0, c1, c2, c3 = torch.broadcast_tensors(*counter)  # type: ignore[no-untyped-call]
    k0, k1 = key
    for turn in range(10):
        if turn:
            k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        # In place, because new tensors take longer than the arithmetic; c1 and c3 are cut where they are added.
        c0 = (p1 >> 32).bitwise_xor_(c1).bitwise_xor_(k0).bitwise_and_(_WORD)
        c2 = (p0 >> 32).bitwise_xor_(c3).bitwise_xor_(k1).bitwise_and_(_WORD)
        c1, c3 = p1, p0
    return c0, c1 & _WORD, c2, c3 & _WORD


def words(keys_RS: Tensor, stream: int, step_R: Tensor, first_block: int, blocks: int) -> tuple[Tensor, ...]:
    """Four words of 32 random bits for each block: int64 of shape (R, blocks). `keys_RS` is the table (R, S)."""
    if from_system(keys_RS):
        return words_at(keys_RS, stream, step_R, torch.arange(blocks, device=keys_RS.device).expand(len(keys_RS), -1))
    return _of_blocks(_words_of, keys_RS, stream, step_R, first_block, blocks)


def _of_blocks(
    made: _Made, keys_RS: Tensor, stream: int, step_R: Tensor, first_block: int, blocks: int
) -> tuple[Tensor, ...]:
    """What `made` gives for these blocks, by compiled code where there is some."""
    if blocks * len(keys_RS) >= _MANY and keys_RS.device.type == "cpu":
        made = _compiled.get(made, made)
    block_N = torch.arange(first_block, first_block + blocks, device=keys_RS.device)
    return made(block_N[None], keys_RS[:, stream, None], step_R[:, None])


def words_at(keys_RS: Tensor, stream: int, step_R: Tensor, block_RN: Tensor) -> tuple[Tensor, ...]:
    """The four words of the blocks with these numbers, which need not follow each other: int64 of shape (R, N).

    >>> seed, step = table([7]), torch.tensor([0])
    >>> chosen = words_at(seed, SAMPLE, step, torch.tensor([[5, 3]]))
    >>> torch.equal(chosen[0], words(seed, SAMPLE, step, 3, 3)[0][:, [2, 0]])
    True
    """
    if from_system(keys_RS):
        count = 4 * block_RN.numel()
        drawn = torch.frombuffer(bytearray(os.urandom(4 * max(1, count))), dtype=torch.int32)[:count]
        return tuple((drawn.long() & _WORD).reshape(4, *block_RN.shape).to(keys_RS.device))
    return _words_of(block_RN, keys_RS[:, stream, None], step_R[:, None])


def _words_of(block: Tensor, key: Tensor, step: Tensor) -> tuple[Tensor, ...]:
    """The four words of each block for keys and steps that broadcast with it."""
    counter = (block & _WORD, block >> 32, step & _WORD, (step >> 32) & _WORD)
    return philox(counter, (key & _WORD, (key >> 32) & _WORD))


def compile_words() -> str:
    """Have torch compile Philox, and what normals are made from, for long draws on the CPU in this process.

    Returns "" where it can, else why not.

    Of what rounds one sum and one product are compiled (`_points`), and the same bits come out: some are compared here.
    It takes up to twenty seconds.
    """
    if _compiled:
        return ""
    found = {}
    try:
        for plain in (_words_of, _points_of):
            found[plain] = made = torch.compile(plain, dynamic=True)
            for runs in (1, 2):
                given = (
                    torch.arange(_MANY)[None] << 19,
                    table(range(runs))[:, :1],
                    torch.arange(runs)[:, None] + (1 << 33),
                )
                pairs = zip(made(*given), plain(*given), strict=True)
                if not all(torch.equal(one, other) for one, other in pairs):
                    return "the compiled numbers are others"
    except Exception as error:  # noqa: BLE001 - whatever stops torch's compiler, the numbers can be drawn without it
        return f"{type(error).__name__}: {error}".strip().splitlines()[0]
    _compiled.update(found)
    return ""


def forget_compiled() -> None:
    """Draw without compiled code again in this process: the same bits, as measurements compare them."""
    _compiled.clear()


def uniform_bits(keys_RS: Tensor, stream: int, step_R: Tensor, count: int, first: int = 0) -> Tensor:
    """Whole numbers, uniform on [0, 2^53): int64 of shape (R, count), elements `first` to `first + count`.

    Element i uses half i mod 2 of block i // 2. `keys_RS` is the table of keys (R, S).
    """

    def made(start: int, blocks: int) -> Tensor:
        w = words(keys_RS, stream, step_R, start, blocks)
        return torch.stack((_bits(w[0], w[1]), _bits(w[2], w[3])), dim=-1).flatten(1)

    return _in_pieces(made, keys_RS, first, count, torch.int64)


def normal(
    keys_RS: Tensor, stream: int, step_R: Tensor, count: int, first: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Standard normals of shape (R, count), elements `first` to `first + count`; computed in float64, then rounded.

    `keys_RS` is the table of keys (R, S). Element i is the cosine or the sine (half i mod 2) of block i // 2: Box and
    Muller's transform of a radius of 64 bits and an angle of 53. No number is beyond 9.50 in size; the normal
    law has probability 2.3e-21 there. Except for rounding, the probability of any interval is right up to 2^-51.
    Devices agree to a few units in the last place of float64.

    >>> seed, step = table([7]), torch.tensor([0])
    >>> torch.equal(normal(seed, NOISE, step, 10)[:, 3:], normal(seed, NOISE, step, 7, first=3))
    True
    """
    return _in_pieces(partial(_gauss, keys_RS, stream, step_R), keys_RS, first, count, dtype)


def _in_pieces(
    make: Callable[[int, int], Tensor], keys_RS: Tensor, first: int, count: int, dtype: torch.dtype
) -> Tensor:
    """Elements `first` to `first + count` (R, count) of what `make` draws, two from each block, by start and blocks."""
    runs = len(keys_RS)
    made = torch.empty(runs, count, dtype=dtype, device=keys_RS.device)
    piece = max(2, _PIECE // runs) if keys_RS.device.type == "cpu" and runs else max(1, count)
    for done in range(0, count, piece):
        at, more = first + done, min(piece, count - done)
        start = at // 2
        flat = make(start, -(-(at + more) // 2) - start)
        made[:, done : done + more] = flat[:, at - 2 * start : at - 2 * start + more]
    return made


def _gauss(keys_RS: Tensor, stream: int, step_R: Tensor, start: int, blocks: int) -> Tensor:
    """The two normals of each block, float64 (R, 2·blocks); of the operating system's, sums of four over 2."""
    if from_system(keys_RS):
        drawn = _box_muller(*_points(words(keys_RS, stream, step_R, start, _SUMMED * blocks)))
        return drawn.reshape(len(keys_RS), _SUMMED, 2 * blocks).sum(1) / math.sqrt(_SUMMED)
    return _box_muller(*_of_blocks(_points_of, keys_RS, stream, step_R, start, blocks))


def _points_of(block: Tensor, key: Tensor, step: Tensor) -> tuple[Tensor, ...]:
    """Of each block what `_box_muller` takes, for keys and steps that broadcast with it."""
    return _points(_words_of(block, key, step))


def _points(w: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Four words of each block (R, N) to a point of the square, float64: `near` in (0, 1/2], `upper` 0 or 1, an angle.

    With k the 64 bits of the radius, u = (k + 1/2)/2^64. The upper half is mirrored, because u itself would round to 1
    there: the logarithm needs the exact distance to the nearer end. All is exact but two roundings, the sum in `near`
    and the product in the angle, so a compiler that joins a product and a sum changes nothing.
    """
    upper = w[0] >> 31
    mirror = (-upper).bitwise_and_(_WORD)
    # In place where a tensor is new, as in `philox`.
    least = (w[1] ^ mirror).double().add_(0.5).mul_(2.0**-64)
    near = (w[0] ^ mirror).double().mul_(2.0**-32).add_(least)
    return near, upper.double(), _bits(w[2], w[3]).double().mul_(2.0 * math.pi * 2.0**-53)


def _box_muller(near: Tensor, upper: Tensor, angle: Tensor) -> Tensor:
    """Points of `_points` (R, N) to two normals each (R, 2N). Writes into what it is given."""
    # By products with 0 and 1, which are exact: torch's `where` takes several times as long on random places.
    radius = torch.log(near).mul_(1.0 - upper)
    radius.add_(near.neg_().log1p_().mul_(upper)).mul_(-2.0).sqrt_()
    made = torch.empty(*angle.shape, 2, dtype=angle.dtype, device=angle.device)
    torch.mul(radius, torch.cos(angle), out=made[..., 0])
    torch.mul(radius, angle.sin_(), out=made[..., 1])
    return made.flatten(1)


def _bits(high: Tensor, low: Tensor) -> Tensor:
    """53 bits of two words."""
    return (high << 21) | (low >> 11)


def derived_seed(seed: int, stream: int) -> int:
    """A 53-bit seed for a generator that is not ours (torch's, for initial weights), set by (seed, stream)."""
    return _key(seed, STREAMS[stream], "") & ((1 << 53) - 1)
