"""The generator's numbers follow their laws: bits are fair, normals are normal, and all draws are independent.

Laws of the bits, distribution, moments and tails of the normals; then independence between the elements of a block
and beyond, between steps, streams and seeds, small and large.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.subject import Check, Subject
from dpbench.randomness import STREAMS
from dpbench.verdicts import Verdict

BITS = 53
# Places (low word of the key, high word, step) that differ in one of these, by little or by a whole word; keys made by
# SHA-256 are never this close. Column s of the table that the generator gets holds the key with the high word s.
PLACES = (
    (0, 1, 0),
    (1, 1, 0),
    (2**31, 1, 0),
    (0, 2, 0),
    (0, 0, 0),
    (0, 1, 1),
    (0, 1, 2),
    (0, 1, 2**32),
    (0, 1, 2**40 + 1),
    (1, 0, 1),
)
DISTANCES = (1, 2, 3, 4, 8, 64)  # between elements: within a block of two, and beyond
TAILS = (1.0, 2.0, 3.0, 4.0, 4.75)


def uniform_at(generator: Any, place: tuple[int, int, int], count: int, first: int = 0) -> NDArray[np.int64]:
    """`count` uniform bits of one place."""
    seed, stream, step = place
    drawn = generator.uniform_bits(_raw(seed), stream, torch.tensor([step]), count, first)
    return np.asarray(drawn[0].numpy())


def normal_at(generator: Any, place: tuple[int, int, int], count: int, first: int = 0) -> statistics.Floats:
    """`count` normals of one place, in float64."""
    seed, stream, step = place
    drawn = generator.normal(_raw(seed), stream, torch.tensor([step]), count, first, dtype=torch.float64)
    return np.asarray(drawn[0].numpy())


def _raw(seed: int) -> torch.Tensor:
    """The table (1, S) of one run whose keys are (seed, s)."""
    return torch.tensor([[seed + (stream << 32) for stream in range(len(STREAMS))]])


def fair_bits(values: NDArray[np.int64]) -> Iterator[Any]:
    """p-values for each of 53 bits fair, and for the upper and the lower byte uniform."""
    ones = np.unpackbits(values.astype(">i8").view(np.uint8).reshape(-1, 8), axis=1).sum(0)[-BITS:]
    yield statistics.binomial_p(ones, values.size, 0.5)
    for byte in (values >> (BITS - 8), values & 255):
        yield statistics.multinomial_p(np.bincount(byte, minlength=256), np.full(256, 1 / 256))


def uniform_p(generator: Any, seed: int, count: int) -> Iterator[Any]:
    """p-values of the uniform bits: their law, and that of the bits in which two of them differ."""
    drawn = [uniform_at(generator, (base + seed, stream, step), count) for base, stream, step in PLACES]
    for values in drawn:
        yield from fair_bits(values)
        yield statistics.distribution_p(values, lambda x: x / 2.0**BITS)
    for distance in DISTANCES:
        blocks = drawn[0][: count // (2 * distance) * 2 * distance].reshape(-1, 2, distance)
        yield from fair_bits((blocks[:, 0] ^ blocks[:, 1]).ravel())
    for one, other in itertools.combinations(drawn, 2):
        yield from fair_bits(one ^ other)


def normal_p(generator: Any, seed: int, count: int) -> Iterator[Any]:
    """p-values of the normals: their law, moments and tails, and their dependence on each other."""
    drawn = [normal_at(generator, (base + seed, stream, step), count) for base, stream, step in PLACES]
    whole = np.stack(drawn)
    yield statistics.distribution_p(whole, stats.norm.cdf)
    yield statistics.mean_p(whole)
    yield statistics.chi_square_p((whole**2).sum(1), count)
    yield statistics.chi_square_p((whole**2).sum(), whole.size)
    for lane in range(2):
        yield statistics.distribution_p(whole[:, lane::2], stats.norm.cdf)
    for tail in TAILS:
        above, below = (whole > tail).sum(), (whole < -tail).sum()
        yield statistics.binomial_p([above, below], whole.size, stats.norm.sf(tail))
    # Cells of equal probability show a wrong shape between the centre and the tails.
    cells = np.bincount(np.minimum(255, (stats.norm.cdf(whole.ravel()) * 256).astype(int)), minlength=256)
    yield statistics.multinomial_p(cells, np.full(256, 1 / 256))
    pairs = [statistics.apart(whole, distance) for distance in DISTANCES]
    for one, other in [*pairs, *itertools.combinations(drawn, 2)]:
        yield statistics.correlation_p(one, other)
        yield statistics.correlation_p(one**2 - 1, other)
        large = np.abs(one) > 1
        yield statistics.chi_square_p((other[large] ** 2).sum(), large.sum())


@dataclass(frozen=True)
class GeneratorDistribution(Check):
    """Subject: kind `generator`, with the functions `uniform_bits` and `normal` of `dpbench.randomness`.

    >>> from dpbench import randomness
    >>> check(Subject("generator", "randomness", randomness), seed=0).verdict
    'holds'
    """

    kind = "generator"
    source = "Every draw is independent: uniform on 53 bits, or standard normal"
    false_alarm: float = statistics.FALSE_ALARM
    bits: int = 20_000
    normals: int = 100_000

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        """Draw `bits` and `normals` at each of the places `PLACES`, their seeds moved by `seed`."""
        values = np.stack([uniform_at(subject.value, (b + seed, stream, t), self.bits) for b, stream, t in PLACES])
        if int(values.min()) < 0 or int(values.max()) >= 1 << BITS:
            wrong = f"uniform bits from {int(values.min())} to {int(values.max())}: expected 0 to 2^53 - 1"
            return self.refuted(subject, wrong)
        found = [*uniform_p(subject.value, seed, self.bits), *normal_p(subject.value, seed, self.normals)]
        evidence = {"bits": self.bits, "normals": self.normals, "places": len(PLACES)}
        return self.statistical(subject, found, evidence, "laws of the bits and the normals, and their independence")


check = GeneratorDistribution()
