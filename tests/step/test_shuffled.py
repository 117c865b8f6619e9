"""Shuffled epochs: each example once, the same draws wherever they are made, and what cannot be drawn is refused.

That the order is uniform and new in each epoch is in the check `sampler_epochs` (false alarm 1e-9).
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dpbench import randomness
from dpbench.errors import DpbenchError
from dpbench.events import SampledGaussian, batches_per_epoch
from dpbench.judging.check_tools.problems import hyperparameters
from dpbench.judging.checks.philox_vectors import uniform
from dpbench.mechanisms.pipeline import mechanism
from dpbench.step.mechanism import Setting
from dpbench.step.samplers.shuffled import ShuffledSampler
from dpbench.step.stages import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
quick = settings(derandomize=True, deadline=None, max_examples=60)


def members(batch: Batch) -> list[list[int]]:
    return [index[mask].tolist() for index, mask in zip(batch.index_RB, batch.mask_RB, strict=True)]


def draw(keys_RS: Tensor, steps: list[int], rates: list[float], examples: int) -> list[list[int]]:
    rate_R = torch.tensor(rates, dtype=torch.float64)
    return members(ShuffledSampler()(keys_RS, torch.tensor(steps), rate_R, examples))


@quick
@given(st.integers(1, 10**6), st.integers(1, 10**9), st.integers(0, 5))
def test_the_batches_of_an_epoch_are_counted_exactly(size: int, most: int, past: int) -> None:
    """N/b as a rational number against the double that a run has; N is a multiple of b, or one beside it."""
    for examples in {max(size, most // size * size + past), max(size, most)}:
        if examples <= 10**9:
            assert batches_per_epoch(size / examples) == math.ceil(Fraction(examples, size))


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.1, math.nan])
def test_no_epoch_has_such_a_rate(rate: float) -> None:
    with pytest.raises(ValueError, match="expected a number above 0 and at most 1"):
        batches_per_epoch(rate)


@quick
@given(st.integers(1, 30), st.data())
def test_every_example_is_once_in_an_epoch(examples: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, examples))
    batches = -(-examples // size)
    for epoch in (0, 3, 2**40):
        steps = [epoch * batches + at for at in range(batches)]
        found = draw(randomness.table([9]).expand(batches, -1), steps, [size / examples] * batches, examples)
        assert [len(batch) for batch in found[:-1]] == [size] * (batches - 1)
        assert sorted(itertools.chain(*found)) == list(range(examples))


def test_the_order_is_that_of_the_random_numbers() -> None:
    """From Philox in plain integers: the counter is the epoch, and the smallest numbers come first."""
    keys, examples, size = randomness.table([3]), 11, 4
    for epoch in (0, 5):
        numbers = [uniform(keys[0].tolist(), randomness.SAMPLE, epoch, element) for element in range(examples)]
        order = sorted(range(examples), key=lambda at: numbers[at])
        for at in range(3):
            [found] = draw(keys, [3 * epoch + at], [size / examples], examples)
            assert found == sorted(order[size * at : size * (at + 1)])


def test_runs_of_other_rates_and_steps_draw_as_if_alone() -> None:
    keys, steps, rates = randomness.table(range(5)), [0, 7, 3, 100, 2], [1.0, 0.5, 0.25, 0.1, 3 / 40]
    together = draw(keys, steps, rates, 40)
    for run in range(5):
        assert draw(keys[run : run + 1], steps[run : run + 1], rates[run : run + 1], 40) == [together[run]]
    assert draw(keys, steps, [0.0] * 5, 40) == [[]] * 5


def test_what_cannot_be_drawn_is_refused() -> None:
    whole = Setting(examples=1437, sampling_rate=128 / 1437, steps=12, learning_rate=0.1)
    ShuffledSampler().check(whole)
    with pytest.raises(
        DpbenchError, match=r"^sampling_rate = 0\.1: shuffled batches have one size, .* give batch_size$"
    ):
        ShuffledSampler().check(Setting(examples=1437, sampling_rate=0.1, steps=12, learning_rate=0.1))
    of_system = torch.empty(1, 0, dtype=torch.int64)
    with pytest.raises(DpbenchError, match="randomness = secure: the order of an epoch"):
        draw(of_system, [0], [0.5], 4)
    assert not mechanism(sample="shuffled").secure
    assert mechanism(sample="fixed_size").secure


@pytest.mark.parametrize("clip", ["flat", "automatic", "quantile"])
def test_the_ledger_names_the_sampler_and_zero_out(clip: str) -> None:
    made = mechanism(sample="shuffled", clip=clip)
    ledger = made.ledger(sampling_rate=0.25, noise_multiplier=2.0, steps=7)
    assert ledger is not None
    assert ledger.parts == ((SampledGaussian(0.25, 2.0, "zero_out", "shuffled"), 7),)
    assert made.facts()["sampler"] == "shuffled"
    assert made.facts()["adjacency"] == "zero_out"


def test_sums_of_microbatches_are_refused() -> None:
    with pytest.raises(DpbenchError, match="microbatches are accounted for with Poisson sampling, not shuffled"):
        mechanism(sample="shuffled", clip={"name": "microbatch", "parameters": {"microbatch_size": 2}})


def test_a_resumed_epoch_goes_on_with_its_order() -> None:
    """The order depends on key and step alone: nothing of it is in the state."""
    made = mechanism(sample="shuffled")
    stack = hyperparameters([1], 0.25)
    state = made.start(torch.zeros(1, 3), stack, torch.zeros(8, 2), torch.zeros(8))
    assert not state.private
    assert set(state.memory) == set()
