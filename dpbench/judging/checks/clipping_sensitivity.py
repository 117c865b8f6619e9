"""Clipping: one example more or less changes the clipped sum by at most C, whatever the example is.

The sum is computed over a batch, over the batch with an added adversarial example, with that example at an empty place,
and over the example alone. With two classes the same input with the other target has a gradient of exactly the opposite
direction, the hardest case for an engine that clips sums. Deterministic: the bounds allow only for rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dpbench.judging.check_tools.problems import append, batch, cast, small_network
from dpbench.judging.check_tools.subject import Check, Subject
from dpbench.step.clipped_sum import Clipped, Examples
from dpbench.verdicts import Verdict


def rounding(dtype: torch.dtype, places: int, parameters: int) -> tuple[float, float]:
    """Bounds of rounding errors, relative to C: of the norm of one clipped gradient, and of a sum over `places`.

    With u half the machine epsilon: a sum of P squares has an error of at most P·u, its root half of that; the root,
    the quotient, the maximum, C itself and the product add at most 10·u. A sum of B vectors of norm C, in any order,
    has an error of at most B·u times B·C.
    """
    unit = torch.finfo(dtype).eps / 2
    return (parameters + 10) * unit, (places * places + 10) * unit


@dataclass(frozen=True)
class ClippingSensitivity(Check):
    """Subject: kind `clipping`, an engine.

    >>> check(Subject.of("clipping", "loop"), seed=0).verdict
    'holds'
    """

    kind = "clipping"
    source = "bu2020, Algorithm 1: each gradient is divided by max(1, norm / C), so its norm is at most C"
    rounds: int = 4
    places: int = 7
    runs: int = 2

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        """Try `rounds` batches with four adversarial examples each, in float32 and float64."""
        generator = torch.Generator().manual_seed(seed)
        worst, wrong = 0.0, None
        for turn, dtype in itertools.product(range(self.rounds), (torch.float32, torch.float64)):
            problem = _Problem(generator, self.runs, self.places, dtype)
            for kind, base, extra in problem.cases():
                chunk = 1 + (turn * 3) % (self.places + 1)
                change, alone, empty = problem.norms(subject.value, base, extra, chunk)
                one, many = rounding(dtype, self.places + 1, problem.net.size)
                ratio = float((change / problem.clip_R).max())
                worst = max(worst, ratio) if ratio == ratio else float("inf")
                found = {
                    "one more example changes the sum by": (ratio, 1 + one + 2 * many),
                    "an example alone has a clipped gradient of norm": (float((alone / problem.clip_R).max()), 1 + one),
                    "an example at an empty place changes the sum by": (float((empty / problem.clip_R).max()), many),
                }
                for what, (value, limit) in found.items():
                    if not value <= limit:
                        wrong = wrong or f"{what} {value:.7g}·C ({kind}, {dtype}); expected at most {limit:.7g}·C"
        evidence = {"largest_change_over_clip_norm": worst, "rounds": self.rounds, "places": self.places}
        holds = "one example more changes the clipped sum by at most C, up to rounding"
        return self.certain(subject, wrong, evidence, holds)


class _Problem:
    """A network, a stack of batches and clip norms."""

    def __init__(self, generator: torch.Generator, runs: int, places: int, dtype: torch.dtype) -> None:
        self.generator, self.dtype = generator, dtype
        self.net = small_network(classes=2)
        self.theta_RP = torch.randn(runs, self.net.size, generator=generator, dtype=torch.float64).to(dtype)
        self.examples = cast(batch(generator, runs, places, classes=2), dtype)
        self.clip_R = 10 ** (2 * torch.rand(runs, generator=generator, dtype=torch.float64) - 2)

    def cases(self) -> Iterator[tuple[str, Examples, Examples]]:
        """Batches, each with an added example: ordinary, huge, or the opposite of a batch's only example."""
        one = cast(batch(self.generator, len(self.clip_R), 1, classes=2, filled=2.0), self.dtype)
        yield "an ordinary example", self.examples, one
        yield "a huge example", self.examples, replace(one, inputs=one.inputs * 1e6)
        # Of the two targets, the less likely has the larger gradient and turns the sum round: try both.
        mild = replace(one, inputs=one.inputs.clamp(-1, 1))
        for target in (0, 1):
            first = replace(mild, targets=torch.full_like(one.targets, target))
            yield "an opposite example", first, replace(mild, targets=1 - first.targets)

    def norms(self, engine: Any, base: Examples, extra: Examples, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
        """Norms (R,): change of the sum by the example, its own clipped gradient, change by its empty place."""

        def total(examples: Examples) -> Tensor:
            clipped: Clipped = engine(self.net, self.theta_RP, examples, self.clip_R, chunk)
            return clipped.sum_RP.double()

        absent = replace(extra, mask_RB=torch.zeros_like(extra.mask_RB))
        before, more, less = total(base), append(extra, base), append(base, absent)
        return (total(more) - before).norm(dim=1), total(extra).norm(dim=1), (total(less) - before).norm(dim=1)


check = ClippingSensitivity()
