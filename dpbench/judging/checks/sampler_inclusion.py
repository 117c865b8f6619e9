"""Poisson sampling: every example is in every batch with probability q, independently of all else.

Counts are compared with their binomial laws: for every example, for all of them, for pairs of examples, for the same
example in two steps and for two seeds; the size of the batch with its distribution. Deterministic tests: the form of
the batch, q = 0 and q = 1, and a stack of large and small batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.subject import Check, Subject
from dpbench.randomness import table
from dpbench.step.stages import Batch
from dpbench.verdicts import Verdict

Sampler = Callable[[Tensor, Tensor, Tensor, int], Batch]
RATES = (0.03, 0.2, 0.5, 0.95)
LARGE = 3000  # examples in the test of large batches


def malformed(batch: Batch, examples: int) -> str | None:
    """What is wrong with the form of a batch, or None: filled places first, ascending, each example at most once."""
    index_RB, mask_RB = batch.index_RB, batch.mask_RB
    if index_RB.shape != mask_RB.shape or index_RB.dim() != 2 or mask_RB.dtype != torch.bool:
        return f"index {tuple(index_RB.shape)}, mask {tuple(mask_RB.shape)} {mask_RB.dtype}: expected (R, B) and bool"
    if index_RB.dtype != torch.int64 or index_RB.shape[1] < 1:
        return f"index {tuple(index_RB.shape)} {index_RB.dtype}: expected int64 and at least one place"
    if int(index_RB.min()) < 0 or int(index_RB.max()) >= examples:
        return f"index from {int(index_RB.min())} to {int(index_RB.max())}: expected 0 to {examples - 1}"
    if bool((mask_RB[:, 1:] & ~mask_RB[:, :-1]).any()):
        return "an empty place stands before a filled one"
    both = mask_RB[:, 1:] & mask_RB[:, :-1]
    if bool((both & (index_RB[:, 1:] <= index_RB[:, :-1])).any()):
        return "the examples of a batch are not in the order of the data, or one is there twice"
    return None


def chosen(batch: Batch, examples: int) -> NDArray[np.bool_]:
    """Which examples (R, N) are in each batch."""
    count_RN = torch.zeros(len(batch.index_RB), examples, dtype=torch.int64)
    count_RN.scatter_add_(1, batch.index_RB, batch.mask_RB.long())
    return np.asarray(count_RN.numpy() > 0)


def p_values(sampler: Sampler, seed: int, rate: float, *, examples: int, seeds: int, steps: int) -> Iterator[Any]:
    """The p-values of all counts at one sampling rate; S seeds, T steps, N examples."""
    keys_SK = table(seed * 1009 + number for number in range(seeds))
    keys_RS, step_R = keys_SK.repeat_interleave(steps, 0), torch.arange(steps).repeat(seeds)
    batch = sampler(keys_RS, step_R, torch.full((seeds * steps,), rate, dtype=torch.float64), examples)
    found = chosen(batch, examples).reshape(seeds, steps, examples)
    flat, draws = found.reshape(-1, examples), seeds * steps
    yield statistics.binomial_p(flat.sum(0), draws, rate)
    yield statistics.binomial_p(flat.sum(), flat.size, rate)
    sizes = np.bincount(flat.sum(1), minlength=examples + 1)
    yield statistics.multinomial_p(sizes, stats.binom.pmf(np.arange(examples + 1), examples, rate))
    together = flat.astype(np.int64).T @ flat
    yield statistics.binomial_p(together[np.triu_indices(examples, 1)], draws, rate**2)
    # Disjoint pairs of steps, and of seeds, so that the pairs are independent of each other.
    for first, second in (
        (found[:, 0 : steps - 1 : 2], found[:, 1:steps:2]),
        (found[0 : seeds - 1 : 2], found[1:seeds:2]),
        (found[:, :, :-1:2], found[:, :, 1::2]),
    ):
        both = first & second
        yield statistics.binomial_p(both.sum(), both.size, rate**2)


@dataclass(frozen=True)
class SamplerInclusion(Check):
    """Subject: kind `samplers`, a callable (keys_RS, step_R, rate_R, examples) -> Batch that says it is Poisson.

    >>> from dpbench.step.samplers.poisson import PoissonSampler
    >>> check(Subject("samplers", "poisson", PoissonSampler()), seed=0).verdict
    'holds'
    """

    kind = "samplers"
    source = "bu2020, Algorithm 1: a Poisson subsample, every example independently with probability p"
    false_alarm: float = statistics.FALSE_ALARM
    examples: int = 24
    seeds: int = 40
    steps: int = 150

    def looks_at(self, value: Any) -> bool:
        return getattr(value, "sampler", None) == "poisson"

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        """Draw `seeds`·`steps` batches at each of the sampling rates `RATES`."""
        wrong = _certain_faults(subject.value, seed)
        if wrong is not None:
            return self.refuted(subject, wrong)
        found: list[Any] = []
        for rate in RATES:
            found += p_values(subject.value, seed, rate, examples=self.examples, seeds=self.seeds, steps=self.steps)
        batches = self.seeds * self.steps * len(RATES)
        evidence = {"batches": batches, "examples": self.examples, "rates": list(RATES)}
        about = "inclusion, batch sizes and independence against Poisson sampling"
        return self.statistical(subject, found, evidence, about)


def _certain_faults(sampler: Sampler, seed: int) -> str | None:
    """What is wrong with certainty, or None."""
    rates = [0.0, 1.0, 0.5, 1e-3, 1.0, 0.0]
    keys_RS, step_R = table(range(seed, seed + len(rates))), torch.full((len(rates),), seed)
    for examples in (1, 2, 5, LARGE):
        batch = sampler(keys_RS, step_R, torch.tensor(rates, dtype=torch.float64), examples)
        if len(batch.mask_RB) != len(rates):
            return f"{len(batch.mask_RB)} batches for {len(rates)} runs"
        problem = malformed(batch, examples)
        if problem is not None:
            return problem
        count = batch.mask_RB.sum(1).tolist()
        for at, (rate, size) in enumerate(zip(rates, count, strict=True)):
            if rate in (0.0, 1.0) and size != rate * examples:
                return f"run {at} with q = {rate:g} and {examples} examples drew {size}: expected {rate * examples:g}"
        alone = [
            sampler(keys_RS[r : r + 1], step_R[r : r + 1], torch.tensor([rate], dtype=torch.float64), examples)
            for r, rate in enumerate(rates)
        ]
        for at, one in enumerate(alone):
            if one.index_RB[one.mask_RB].tolist() != batch.index_RB[at][batch.mask_RB[at]].tolist():
                return f"run {at} of a stack draws another batch than alone ({examples} examples, q = {rates[at]:g})"
    return None


check = SamplerInclusion()
