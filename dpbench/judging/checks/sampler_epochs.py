"""Shuffled epochs: every example is once in each epoch, and the order of an epoch is uniform and new.

Deterministic: the form of each batch, its size, each example once in an epoch, runs of other rates in a stack. With a
stated false alarm: counts over independent epochs, each exactly binomial: an example in a batch of an epoch, two
examples in the same one, an example in the same batch of two epochs and of two runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.subject import Check, Subject
from dpbench.judging.checks.sampler_inclusion import Sampler, chosen, malformed
from dpbench.randomness import table
from dpbench.verdicts import Verdict

SIZES = ((1, 1), (5, 1), (5, 2), (7, 7), (26, 6), (24, 6))  # N examples, b in a batch
LAW = (24, 6)


def epochs(sampler: Sampler, seeds: range, count: int, examples: int, size: int) -> NDArray[np.bool_]:
    """Who (N,) is in which batch of which epoch of which run: (S, E, T, N), from one stack."""
    batches = -(-examples // size)
    steps = torch.arange(count * batches).repeat(len(seeds))
    keys_RS = table(seeds).repeat_interleave(count * batches, 0)
    rate_R = torch.full((len(steps),), size / examples, dtype=torch.float64)
    found = chosen(sampler(keys_RS, steps, rate_R, examples), examples)
    return found.reshape(len(seeds), count, batches, examples)


@dataclass(frozen=True)
class SamplerEpochs(Check):
    """Subject: kind `samplers`, a callable (keys_RS, step_R, rate_R, examples) -> Batch that says it is shuffled.

    >>> from dpbench.step.samplers.shuffled import ShuffledSampler
    >>> check(Subject("samplers", "shuffled", ShuffledSampler()), seed=0).verdict
    'holds'
    """

    kind = "samplers"
    source = "A shuffled epoch is a uniform permutation of all examples, independent of others, cut into batches"
    false_alarm: float = statistics.FALSE_ALARM
    seeds: int = 20
    epochs: int = 100

    def looks_at(self, value: Any) -> bool:
        return getattr(value, "sampler", None) == "shuffled"

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        """Draw some epochs of each of `SIZES`, and `seeds`·`epochs` epochs of 24 examples in batches of 6."""
        wrong = _certain_faults(subject.value, seed)
        if wrong is not None:
            return self.refuted(subject, wrong)
        first = seed * 1009
        found = epochs(subject.value, range(first, first + self.seeds), self.epochs, *LAW)
        evidence = {"epochs": self.seeds * self.epochs, "examples": LAW[0], "batch": LAW[1]}
        about = "batches of each example, of two examples and of two epochs against a uniform permutation"
        return self.statistical(subject, list(_p_values(found)), evidence, about)


def _certain_faults(sampler: Sampler, seed: int) -> str | None:
    """What is wrong with certainty, or None."""
    for examples, size in SIZES:
        found = epochs(sampler, range(seed, seed + 2), 3, examples, size)
        what = f"with {examples} examples in batches of {size}"
        sizes = [size] * (examples // size) + [examples % size] * (examples % size > 0)
        if not bool((found.sum(-1) == sizes).all()):
            return f"{what} an epoch has batches of {found.sum(-1)[0, 0].tolist()}: expected {sizes}"
        times = found.sum(2)
        if not bool((times == 1).all()):
            worst = times.flatten()[np.argmax(np.abs(times - 1))]
            return f"{what} an example is {worst} times in an epoch: expected once"
    keys_RS, step_R = table(range(seed, seed + len(SIZES))), torch.full((len(SIZES),), 7)
    rate_R = torch.tensor([1.0, 0.5, 0.25, 0.04, 0.02, 1.0], dtype=torch.float64)
    together = sampler(keys_RS, step_R, rate_R, 100)
    problem = malformed(together, 100)
    if problem is not None:
        return problem
    for at in range(len(SIZES)):
        alone = sampler(keys_RS[at : at + 1], step_R[at : at + 1], rate_R[at : at + 1], 100)
        if alone.index_RB[alone.mask_RB].tolist() != together.index_RB[at][together.mask_RB[at]].tolist():
            return f"run {at} of a stack draws another batch than alone (100 examples, q = {float(rate_R[at]):g})"
    return None


def _p_values(found: NDArray[np.bool_]) -> Iterator[Any]:
    """p-values of counts over epochs, which are independent of each other; `found` is (S, E, T, N)."""
    seeds, count, batches, examples = found.shape
    rate, pair = 1 / batches, (examples // batches - 1) / (examples - 1) / batches
    for batch in range(batches):
        flat = found[:, :, batch].reshape(-1, examples).astype(np.int64)
        yield statistics.binomial_p(flat.sum(0), seeds * count, rate)
        yield statistics.binomial_p((flat.T @ flat)[np.triu_indices(examples, 1)], seeds * count, pair)
    for first, second in ((found[:, :-1:2], found[:, 1::2]), (found[:-1:2], found[1::2])):
        both = (first & second).any(2).reshape(-1, examples)  # in the same batch of both
        yield statistics.binomial_p(both.sum(0), len(both), rate)


check = SamplerEpochs()
