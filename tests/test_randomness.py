"""Internal: the generator is the published one to the last bit.

The generator: published vectors, an independent implementation, splitting, stacking, collisions, laws, extremes.

Statistical tests: the check `generator_distribution` with two fixed seeds, false alarm at most 1e-9 each by exact laws
and Bonferroni's inequality; the seeds are fixed, so a passing test passes for ever. Everything else is exact.
"""

from __future__ import annotations

import itertools
import math
import re
import shutil
from functools import partial
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from dpbench import randomness
from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.subject import Subject
from dpbench.judging.checks import generator_distribution, philox_vectors
from dpbench.judging.checks.philox_vectors import VECTORS, Four, block, gauss, philox, uniform
from dpbench.spec.keys import LARGEST_SEED
from dpbench.step.stages import gaussian_noise

pytestmark = pytest.mark.usefixtures("one_thread")
quick = settings(derandomize=True, deadline=None, max_examples=150)
OURS = Subject("generator", "randomness", randomness)

WORD = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1])
FOUR = st.tuples(WORD, WORD, WORD, WORD)
SEED = st.integers(0, LARGEST_SEED)
STREAM = st.integers(0, len(randomness.STREAMS) - 1)
STEP = st.integers(0, 100) | st.integers(2**32 - 3, 2**32 + 3) | st.integers(0, 2**63 - 1)
FIRST = st.integers(0, 100) | st.integers(2**33 - 9, 2**33 + 9) | st.integers(0, 2**60)


def one(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.int64)


def raw(key: int) -> torch.Tensor:
    """The table of one run all of whose streams have this key of 64 bits."""
    return torch.tensor([[key - (key >> 63 << 64)] * len(randomness.STREAMS)])


def system(runs: int = 1) -> torch.Tensor:
    """The table of runs that keep no keys."""
    return torch.stack([randomness.keys(seed, kind="secure") for seed in range(runs)])


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


KEY = (7 << 32) + 11


def place_of(first_words: tuple[int, int]) -> tuple[int, int]:
    """(block, step) whose first two words under KEY are these; the last two words are free and searched."""
    for free in range(10_000):
        low_block, high_block, low_step, high_step = unphilox((*first_words, free, 7), (KEY & (2**32 - 1), KEY >> 32))
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
    keys_1S = randomness.table([seed])
    bits = randomness.uniform_bits(keys_1S, stream, one(step), count, first)
    assert bits.dtype == torch.int64
    assert bits.tolist() == [[uniform(seed, stream, step, first + i) for i in range(count)]]
    wide = randomness.normal(keys_1S, stream, one(step), count, first, dtype=torch.float64)
    assert wide.shape == (1, count)
    expected = [gauss(seed, stream, step, first + i) for i in range(count)]
    assert wide[0].tolist() == pytest.approx(expected, rel=0, abs=philox_vectors.NORMAL_TOLERANCE)
    narrow = randomness.normal(keys_1S, stream, one(step), count, first)
    assert narrow.dtype == torch.float32
    assert torch.equal(narrow, wide.float()), "float32 is float64, rounded once"


@quick
@given(SEED, STREAM, STEP, st.lists(st.integers(0, 7), max_size=6), FIRST)
def test_pieces_are_the_whole(seed: int, stream: int, step: int, sizes: list[int], first: int) -> None:
    for draw in (randomness.uniform_bits, randomness.normal):
        keys_1S = randomness.table([seed])
        whole = draw(keys_1S, stream, one(step), sum(sizes), first)
        at, pieces = first, [whole[:, :0]]
        for size in sizes:
            pieces.append(draw(keys_1S, stream, one(step), size, at))
            at += size
        assert torch.equal(torch.cat(pieces, 1), whole)


@pytest.mark.parametrize(("runs", "first"), [(1, 0), (1, 3), (3, 0), (5, 8)])
def test_what_is_drawn_piece_by_piece_is_the_whole(monkeypatch: pytest.MonkeyPatch, runs: int, first: int) -> None:
    """Whatever fits into a cache: the same bits in pieces of any size, one run or many."""
    keys, step = randomness.table(range(runs)), torch.arange(runs)
    for draw in (randomness.normal, randomness.uniform_bits):
        monkeypatch.setattr(randomness, "_PIECE", 1 << 17)
        whole = draw(keys, randomness.NOISE, step, 101, first)
        for piece in (1, 2, 7, 64, 1000):
            monkeypatch.setattr(randomness, "_PIECE", piece)
            assert torch.equal(draw(keys, randomness.NOISE, step, 101, first), whole)


@quick
@given(st.lists(st.tuples(SEED, STEP), min_size=1, max_size=5), STREAM, st.integers(1, 9), FIRST)
def test_stack_is_each_alone(runs: list[tuple[int, int]], stream: int, count: int, first: int) -> None:
    keys_RS, step_R = randomness.table(seed for seed, _ in runs), torch.tensor([step for _, step in runs])
    for draw in (randomness.uniform_bits, randomness.normal):
        whole = draw(keys_RS, stream, step_R, count, first)
        alone = [draw(randomness.table([seed]), stream, one(step), count, first) for seed, step in runs]
        assert torch.equal(whole, torch.cat(alone))


def test_drawing_touches_no_global_generator() -> None:
    before = torch.get_rng_state()
    randomness.normal(randomness.table([1]), 2, one(3), 1000)
    randomness.normal(system(), 2, one(3), 1000)
    randomness.derived_seed(1, 2)
    assert torch.equal(before, torch.get_rng_state())


def test_derived_seed_is_the_key_cut_to_53_bits() -> None:
    seeds = [randomness.derived_seed(seed, stream) for seed in range(200) for stream in range(3)]
    assert seeds == [philox_vectors.key(seed, stream) % 2**53 for seed in range(200) for stream in range(3)]
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
                keys_RS = raw(seed + (stream << 32)).expand(len(steps), -1)
                words = randomness.words(keys_RS, stream, torch.tensor(steps), first, 2)
                seen |= {tuple(row) for row in torch.stack(words, -1).flatten(0, 1).tolist()}
    # Pairs of blocks overlap: 0-1, 1-2, 2-3, 3-4, 2^16, 2^32 to 2^32+2 are 10 different ones.
    assert len(seen) == len(seeds) * len(streams) * len(steps) * 10


def test_bits_and_normals_of_two_streams_differ() -> None:
    """Sampling, noise and initial weights of one run and step use different keys."""
    streams = (randomness.INIT, randomness.SAMPLE, randomness.NOISE)
    assert len(set(streams)) == 3
    drawn = [randomness.uniform_bits(randomness.table([5]), stream, one(9), 1000)[0] for stream in streams]
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
    number, step = place_of(words)
    assert block([KEY] * 2, 1, step, number)[:2] == words
    found = randomness.uniform_bits(raw(KEY), 1, one(step), 1, 2 * number)
    assert int(found) == expected


EDGES = (0, 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)


@pytest.mark.parametrize("words", list(itertools.product(EDGES, EDGES)))
def test_radius_at_the_extremes(words: tuple[int, int]) -> None:
    """Its square is -2·log u with u = (k + 1/2)/2^64, to the last digits at both ends: 50 digits of mpmath."""
    number, step = place_of(words)
    found = randomness.normal(raw(KEY), 2, one(step), 2, 2 * number, dtype=torch.float64)
    with mpmath.workdps(50):
        u = (mpmath.mpf((words[0] << 32) + words[1]) + mpmath.mpf("0.5")) / mpmath.mpf(2) ** 64
        radius = float(mpmath.sqrt(-2 * mpmath.log(u)))
    assert 0 < radius < 9.5
    assert float(found.norm()) == pytest.approx(radius, rel=1e-14)


def test_largest_normal() -> None:
    """The words 0, 0 give the largest radius, sqrt(130·log 2) = 9.4926...; less than 1e-20 of the law is beyond."""
    number, step = place_of((0, 0))
    largest = float(randomness.normal(raw(KEY), 2, one(step), 2, 2 * number, dtype=torch.float64).norm())
    assert largest == pytest.approx(math.sqrt(130 * math.log(2)), rel=1e-14)
    assert 2 * stats.norm.sf(largest) < 1e-20
    stated = re.search(
        r"beyond (\d+\.\d+) in size; the normal law has probability (\S+) there", " ".join(_doc().split())
    )
    assert stated is not None
    assert largest < float(stated[1]) < largest + 0.01
    assert 2 * stats.norm.sf(largest) == pytest.approx(float(stated[2]), rel=0.05)


def _doc() -> str:
    return str(randomness.normal.__doc__)


# Keys


def test_every_bit_of_a_key_counts() -> None:
    keys = [0, *(1 << at for at in range(64))]
    drawn = {tuple(randomness.uniform_bits(raw(key), 1, one(0), 4)[0].tolist()) for key in keys}
    assert len(drawn) == 65


@quick
@given(SEED, st.lists(st.text("0123456789abcdef", min_size=1), min_size=2, max_size=5, unique=True))
@example(LARGEST_SEED, ["", "a"])
def test_runs_of_one_seed_share_initial_parameters_and_nothing_else(seed: int, runs: list[str]) -> None:
    table = torch.stack([randomness.keys(seed, run) for run in runs])
    assert table.shape == (len(runs), len(randomness.STREAMS))
    assert len(set(table[:, randomness.INIT].tolist())) == 1
    others = table[:, 1:].flatten().tolist()
    assert len(set(others)) == len(others), "two keys are the same with a probability below 1e-15"
    common = [randomness.keys(seed, run, "common").tolist() for run in runs]
    assert common == [randomness.table([seed])[0].tolist()] * len(runs)
    told = [philox_vectors.key(seed, at) for at in range(len(randomness.STREAMS))]
    assert common[0] == [key - (key >> 63 << 64) for key in told]


# The operating system's generator


def test_what_keeps_no_keys_never_comes_again() -> None:
    """Two equal draws of 53 bits among 2 · 3,000: probability 3000 · 2^-53 = 3e-13."""
    for draw in (randomness.uniform_bits, randomness.normal):
        first, second = (draw(system(3), 1, torch.zeros(3, dtype=torch.int64), 1001, 5) for _ in range(2))
        assert first.shape == (3, 1001)
        assert first.dtype == second.dtype
    bits = [randomness.uniform_bits(system(3), 1, torch.zeros(3, dtype=torch.int64), 1000) for _ in range(2)]
    assert not bool((bits[0] == bits[1]).any())
    assert randomness.uniform_bits(system(), 1, one(0), 0).shape == (1, 0)


def test_the_systems_draws_follow_their_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are replaced by a fixed generator's, so the test is the same for ever; false alarm 1e-9."""
    source = np.random.default_rng(5)
    monkeypatch.setattr(randomness.os, "urandom", source.bytes)
    zero_R = torch.zeros(2, dtype=torch.int64)
    values = randomness.normal(system(2), 2, zero_R, 100_000, dtype=torch.float64).numpy()
    found = [statistics.distribution_p(row, stats.norm.cdf) for row in values]
    found += [statistics.chi_square_p((row**2).sum(), row.size) for row in values]
    found += [statistics.mean_p(values), statistics.correlation_p(values[0], values[1])]
    found += [statistics.correlation_p(values[:, :-1:2], values[:, 1::2])]
    found += list(generator_distribution.fair_bits(randomness.uniform_bits(system(), 1, one(0), 50_000)[0].numpy()))
    p, _ = statistics.smallest(found)
    assert p > statistics.FALSE_ALARM


def test_four_normals_are_in_one_of_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight normals of four blocks, in two sums over 2 (Holohan and Braghin 2021)."""
    drawn = np.random.default_rng(1).bytes(64)
    monkeypatch.setattr(randomness.os, "urandom", lambda count: drawn[:count])
    words = np.frombuffer(drawn, dtype=np.uint32).astype(np.int64).reshape(4, 1, 4)
    expected = randomness._box_muller(*randomness._points(tuple(map(torch.tensor, words)))).reshape(4, 2).sum(0) / 2
    assert torch.equal(randomness.normal(system(), 2, one(0), 2, dtype=torch.float64)[0], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("deviation", [0.37, 1.0, 5e-4, 3e5])
def test_a_secure_sum_lies_on_one_grid_whatever_was_summed(dtype: torch.dtype, deviation: float) -> None:
    """Between 2^-21 and 2^-20 of the noise apart; neighbouring sums with other last digits leave no trace of these."""
    grid = 2.0 ** (math.floor(math.log2(deviation)) - 20)
    for total in (0.0, 1 / 3, 1.0, math.pi * deviation, -1e-7):
        sum_RP = torch.full((1, 4000), total, dtype=dtype)
        found = gaussian_noise(sum_RP, torch.tensor([deviation], dtype=torch.float64), system(), one(0))
        assert found.dtype == dtype
        # A float32 beyond 2^24 steps of the grid is a multiple of more than one step, and so of one.
        assert torch.equal(found.double() / grid, (found.double() / grid).round())
        assert abs(float(found.double().mean()) - total) < 7 * deviation / 4000**0.5
        assert float(found.double().std()) == pytest.approx(deviation, rel=0.1)
    silent = gaussian_noise(torch.full((1, 3), 1 / 3), torch.zeros(1, dtype=torch.float64), system(), one(0))
    assert torch.equal(silent, torch.full((1, 3), 1 / 3))


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
    values = np.sort(randomness.normal(randomness.table([99]), 2, one(4), 200_000, dtype=torch.float64)[0].numpy())
    n = len(values)
    weight = 2 * np.arange(1, n + 1) - 1
    statistic = -n - float((weight * (stats.norm.logcdf(values) + stats.norm.logsf(values)[::-1])).sum()) / n
    j = np.arange(1, 100_000)
    bounds = [math.exp(-t * statistic - 0.5 * float(np.log1p(-2 * t / (j * (j + 1))).sum())) for t in (0.5, 0.8, 0.95)]
    assert min(bounds) > statistics.FALSE_ALARM, statistic


def test_sums_over_many_steps_are_normal() -> None:
    """What a run accumulates: 500 coordinates summed over 400 steps are exactly N(0, 400). False alarm 1e-9."""
    steps = torch.arange(400)
    keys_RS = randomness.table([3]).expand(400, -1)
    total = randomness.normal(keys_RS, 2, steps, 500, dtype=torch.float64).sum(0).numpy() / 20
    shape, scale = statistics.distribution_p(total, stats.norm.cdf), statistics.chi_square_p((total**2).sum(), 500)
    p, _ = statistics.smallest([shape, scale, statistics.mean_p(total)])
    assert p > statistics.FALSE_ALARM


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_compiled_numbers_are_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone and in a stack, in pieces that end anywhere, in all streams; those of the system are never compiled."""
    monkeypatch.setattr(randomness, "_compiled", {})
    step_R, counts = torch.tensor([0, 5, 1 << 33]), (3 * (1 << 17) + 77, 20_001, 30)

    def drawn() -> list[torch.Tensor]:
        found = []
        for runs in (1, 3):
            keys_RS, step = randomness.table(range(runs)), step_R[:runs]
            for count in counts:
                found.append(randomness.normal(keys_RS, randomness.NOISE, step, count, first=3))
                found.append(randomness.uniform_bits(keys_RS, randomness.SAMPLE, step, count))
        return found

    plain = drawn()
    assert randomness.compile_words() == ""
    called = [0]

    def counted(compiled: Any, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        called[0] += 1
        return tuple(compiled(*given))

    for plain_code, compiled in list(randomness._compiled.items()):
        monkeypatch.setitem(randomness._compiled, plain_code, partial(counted, compiled))
    assert all(torch.equal(one, other) for one, other in zip(plain, drawn(), strict=True))
    assert called[0] >= 16
    before = called[0]
    randomness.normal(torch.empty(1, 0, dtype=torch.int64), randomness.NOISE, step_R[:1], 20_001)
    assert called[0] == before


@pytest.mark.parametrize(
    ("compiled", "words"),
    [
        (lambda *given: tuple(word + 1 for word in randomness._words_of(*given)), "the compiled numbers are others"),
        (lambda *_: exec("raise RuntimeError('no compiler\\nand more')"), "RuntimeError: no compiler"),
    ],
)
def test_what_torch_does_not_compile_as_it_should_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, compiled: Any, words: str
) -> None:
    monkeypatch.setattr(randomness, "_compiled", {})
    monkeypatch.setattr(torch, "compile", lambda *_, **__: compiled)
    assert randomness.compile_words() == words
    assert not randomness._compiled
