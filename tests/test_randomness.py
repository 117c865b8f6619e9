"""The generator: published vectors, an independent implementation, splitting, stacking, collisions, laws, extremes.

Statistical tests: the check `generator_distribution` with two fixed seeds, false alarm at most 1e-9 each by exact laws
and Bonferroni's inequality; the seeds are fixed, so a passing test passes for ever. Everything else is exact.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from dpbench import randomness
from dpbench.checks import _statistics as statistics
from dpbench.checks import generator_distribution, philox_vectors
from dpbench.checks._subject import Subject
from dpbench.checks.philox_vectors import VECTORS, Four, block, gauss, philox, uniform
from dpbench.grammar.keys import LARGEST_SEED

pytestmark = pytest.mark.usefixtures("one_thread")
quick = settings(derandomize=True, deadline=None, max_examples=150)
OURS = Subject("generator", "randomness", randomness)

WORD = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1])
FOUR = st.tuples(WORD, WORD, WORD, WORD)
SEED = st.integers(0, 2**32 - 1)
STREAM = st.integers(0, 5)
STEP = st.integers(0, 100) | st.integers(2**32 - 3, 2**32 + 3) | st.integers(0, 2**63 - 1)
FIRST = st.integers(0, 100) | st.integers(2**33 - 9, 2**33 + 9) | st.integers(0, 2**60)


def one(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.int64)


def ours(counter: Four, key: tuple[int, int]) -> tuple[int, ...]:
    c0, c1, c2, c3 = map(one, counter)
    words = randomness.philox((c0, c1, c2, c3), (one(key[0]), one(key[1])))
    return tuple(int(word) for word in words)


def unphilox(words: Four, key: tuple[int, int]) -> Four:
    """The counter whose output is `words`: Philox with a fixed key is a permutation of the counters."""
    size, m0, m1 = 1 << 32, 0xD2511F53, 0xCD9E8D57
    x = list(words)
    for turn in reversed(range(10)):
        k0, k1 = (key[0] + turn * 0x9E3779B9) % size, (key[1] + turn * 0xBB67AE85) % size
        c0, c2 = x[3] * pow(m0, -1, size) % size, x[1] * pow(m1, -1, size) % size
        x = [c0, x[0] ^ (c2 * m1 >> 32) ^ k0, c2, x[2] ^ (c0 * m0 >> 32) ^ k1]
    return x[0], x[1], x[2], x[3]


def place_of(first_words: tuple[int, int], seed: int, stream: int) -> tuple[int, int]:
    """(block, step) whose first two words are these; the last two words are free and searched."""
    for free in range(10_000):
        low_block, high_block, low_step, high_step = unphilox((*first_words, free, 7), (seed, stream))
        if high_block < 1 << 28 and high_step < 1 << 31:
            return (high_block << 32) + low_block, (high_step << 32) + low_step
    raise AssertionError("no counter fits into 60 and 63 bits")


# Philox itself


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_published_vectors(counter: Four, key: tuple[int, int], expected: Four) -> None:
    assert ours(counter, key) == expected
    assert philox(counter, key) == expected, "the yardstick itself"


@quick
@given(FOUR, st.tuples(WORD, WORD))
def test_philox_is_the_plain_one(counter: Four, key: tuple[int, int]) -> None:
    assert ours(counter, key) == philox(counter, key)
    assert unphilox(philox(counter, key), key) == counter


def test_philox_takes_many_counters_at_once() -> None:
    generator = torch.Generator().manual_seed(3)
    counter = torch.randint(2**32, (4, 3, 50), generator=generator)
    key = torch.randint(2**32, (2, 3, 1), generator=generator)
    found = torch.stack(randomness.philox(tuple(counter), tuple(key)))
    for run in range(3):
        for at in range(50):
            words: Any = tuple(counter[:, run, at].tolist())
            assert tuple(found[:, run, at].tolist()) == philox(words, tuple(key[:, run, 0].tolist()))


# Elements, splitting, stacking


@quick
@given(SEED, STREAM, STEP, FIRST, st.integers(0, 9))
@example(2**32 - 1, 2, 2**63 - 1, 2**60 + 1, 5)
@example(0, 0, 0, 0, 0)
def test_elements_are_the_plain_ones(seed: int, stream: int, step: int, first: int, count: int) -> None:
    bits = randomness.uniform_bits(one(seed), stream, one(step), count, first)
    assert bits.dtype == torch.int64
    assert bits.tolist() == [[uniform(seed, stream, step, first + i) for i in range(count)]]
    wide = randomness.normal(one(seed), stream, one(step), count, first, dtype=torch.float64)
    assert wide.shape == (1, count)
    expected = [gauss(seed, stream, step, first + i) for i in range(count)]
    assert wide[0].tolist() == pytest.approx(expected, rel=0, abs=philox_vectors.NORMAL_TOLERANCE)
    narrow = randomness.normal(one(seed), stream, one(step), count, first)
    assert narrow.dtype == torch.float32
    assert torch.equal(narrow, wide.float()), "float32 is float64, rounded once"


@quick
@given(SEED, STREAM, STEP, st.lists(st.integers(0, 7), max_size=6), FIRST)
def test_pieces_are_the_whole(seed: int, stream: int, step: int, sizes: list[int], first: int) -> None:
    for draw in (randomness.uniform_bits, randomness.normal):
        whole = draw(one(seed), stream, one(step), sum(sizes), first)
        at, pieces = first, [whole[:, :0]]
        for size in sizes:
            pieces.append(draw(one(seed), stream, one(step), size, at))
            at += size
        assert torch.equal(torch.cat(pieces, 1), whole)


@quick
@given(st.lists(st.tuples(SEED, STEP), min_size=1, max_size=5), STREAM, st.integers(1, 9), FIRST)
def test_stack_is_each_alone(runs: list[tuple[int, int]], stream: int, count: int, first: int) -> None:
    seed_R, step_R = torch.tensor(runs).T.contiguous()
    for draw in (randomness.uniform_bits, randomness.normal):
        whole = draw(seed_R, stream, step_R, count, first)
        alone = [draw(one(seed), stream, one(step), count, first) for seed, step in runs]
        assert torch.equal(whole, torch.cat(alone))


def test_drawing_touches_no_global_generator() -> None:
    before = torch.get_rng_state()
    randomness.normal(one(1), 2, one(3), 1000)
    randomness.derived_seed(1, 2)
    assert torch.equal(before, torch.get_rng_state())


def test_derived_seed_is_the_first_element() -> None:
    seeds = [randomness.derived_seed(seed, stream) for seed in range(200) for stream in range(3)]
    assert seeds == [uniform(seed, stream, 0, 0) for seed in range(200) for stream in range(3)]
    assert len(set(seeds)) == 600
    assert all(0 <= seed < 2**53 for seed in seeds)


# Collisions


def test_places_never_share_a_block() -> None:
    """Different keys or counters give different blocks: 4,320 places, no two outputs alike.

    For a fixed key that is certain, because Philox is a permutation; between keys two of 4,320 random blocks of 128
    bits agree with probability 3e-32.
    """
    seeds, streams = (0, 1, 2, 3, 2**16, 2**31, 2**32 - 1, 12345), (0, 1, 2)
    steps, blocks = (
        (0, 1, 2, 3, 2**31, 2**32, 2**32 + 1, 2**33, 2**62, 2**63 - 1),
        (0, 1, 2, 3, 2**16, 2**32, 2**32 + 1),
    )
    seen: set[tuple[int, ...]] = set()
    for seed in seeds:
        for stream in streams:
            for first in blocks:
                seed_R = torch.full((len(steps),), seed)
                words = randomness.words(seed_R, stream, torch.tensor(steps), first, 2)
                seen |= {tuple(row) for row in torch.stack(words, -1).flatten(0, 1).tolist()}
    # Pairs of blocks overlap: 0-1, 1-2, 2-3, 3-4, 2^16, 2^32 to 2^32+2 are 10 different ones.
    assert len(seen) == len(seeds) * len(streams) * len(steps) * 10


def test_bits_and_normals_of_two_streams_differ() -> None:
    """Sampling, noise and initial weights of one run and step use different keys."""
    streams = (randomness.INIT, randomness.SAMPLE, randomness.NOISE)
    assert len(set(streams)) == 3
    drawn = [randomness.uniform_bits(one(5), stream, one(9), 1000)[0] for stream in streams]
    for at, left in enumerate(drawn):
        for right in drawn[:at]:
            assert not bool((left == right).any())  # false alarm: 1000 · 2^-53 = 1.1e-13


# Extremes: Philox is run backwards to find the counters whose words are all zeros or all ones.


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((0, 0), 0),
        ((0, 2047), 0),
        ((0, 2048), 1),
        ((1, 0), 2**21),
        ((2**32 - 1, 2**32 - 1), 2**53 - 1),
        ((2**31, 0), 2**52),
    ],
)
def test_uniform_extremes(words: tuple[int, int], expected: int) -> None:
    number, step = place_of(words, seed=11, stream=1)
    assert block(11, 1, step, number)[:2] == words
    found = randomness.uniform_bits(one(11), 1, one(step), 1, 2 * number)
    assert int(found) == expected


@pytest.mark.parametrize("words", [(0, 0), (0, 2**31), (2**32 - 1, 0), (2**32 - 1, 2**32 - 1), (0, 2**32 - 1)])
def test_normals_are_finite_at_the_extremes(words: tuple[int, int]) -> None:
    number, step = place_of(words, seed=11, stream=2)
    found = randomness.normal(one(11), 2, one(step), 4, 4 * number, dtype=torch.float64)
    assert bool(found.isfinite().all())
    radius = math.sqrt(-2 * math.log((words[0] + 0.5) / 2**32))
    assert float(found[0, :2].norm()) == pytest.approx(radius, rel=1e-14)


def test_largest_normal() -> None:
    """The word 0 gives the largest radius, sqrt(66·log 2) = 6.7638..., and nothing is beyond it."""
    number, step = place_of((0, 0), seed=11, stream=2)
    largest = float(randomness.normal(one(11), 2, one(step), 1, 4 * number, dtype=torch.float64))
    assert largest == pytest.approx(math.sqrt(66 * math.log(2)), rel=1e-14)


def test_documented_bound_of_the_normals() -> None:
    stated = re.search(r"beyond (\d+\.\d+) in size", " ".join(str(randomness.normal.__doc__).split()))
    assert stated is not None
    assert float(stated[1]) >= math.sqrt(66 * math.log(2))


def test_a_seed_is_one_word_and_every_bit_of_it_counts() -> None:
    """The key has room for 32 bits of seed: a seed beyond would repeat another's draws, so specs may not name one."""
    drawn = {tuple(randomness.uniform_bits(one(seed), 1, one(0), 4)[0].tolist()) for seed in [0, *(1 << np.arange(32))]}
    assert len(drawn) == 33
    assert torch.equal(*(randomness.uniform_bits(one(seed), 1, one(0), 4) for seed in (7, 7 + 2**32)))
    assert LARGEST_SEED == 2**32 - 1


# Laws


@pytest.mark.parametrize("seed", [0, 12345])
def test_laws_and_independence(seed: int) -> None:
    """False alarm 1e-9; 10 places, 45 pairs of them, 6 distances: see the check."""
    verdict = generator_distribution.check(OURS, seed=seed)
    assert verdict.verdict == "holds", verdict
    assert verdict.false_alarm == 1e-9


def test_vectors_check_holds() -> None:
    assert philox_vectors.check(OURS, seed=0).verdict == "holds"


def test_normals_agree_with_anderson_and_darling() -> None:
    """Anderson and Darling's statistic of 2·10^5 normals, false alarm about 1e-9.

    In the limit of many draws A² is a sum of independent chi-squares with the weights 1/(j(j+1)), the largest 1/2, so
    P(A² > x) ≤ exp(−tx)·Π_j (1 − 2t/(j(j+1)))^(−1/2) for 0 < t < 1, by Markov's inequality; "about" is for the limit.
    """
    values = np.sort(randomness.normal(one(99), 2, one(4), 200_000, dtype=torch.float64)[0].numpy())
    n = len(values)
    weight = 2 * np.arange(1, n + 1) - 1
    statistic = -n - float((weight * (stats.norm.logcdf(values) + stats.norm.logsf(values)[::-1])).sum()) / n
    j = np.arange(1, 100_000)
    bounds = [math.exp(-t * statistic - 0.5 * float(np.log1p(-2 * t / (j * (j + 1))).sum())) for t in (0.5, 0.8, 0.95)]
    assert min(bounds) > statistics.FALSE_ALARM, statistic


def test_sums_over_many_steps_are_normal() -> None:
    """What a run accumulates: 500 coordinates summed over 400 steps are exactly N(0, 400). False alarm 1e-9."""
    steps = torch.arange(400)
    total = randomness.normal(torch.full_like(steps, 3), 2, steps, 500, dtype=torch.float64).sum(0).numpy() / 20
    shape, scale = statistics.distribution_p(total, stats.norm.cdf), statistics.chi_square_p((total**2).sum(), 500)
    p, _ = statistics.smallest([shape, scale, statistics.mean_p(total)])
    assert p > statistics.FALSE_ALARM
