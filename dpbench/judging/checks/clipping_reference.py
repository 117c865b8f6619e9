"""Clipping: sum, norms and losses equal the definition, computed example by example in float64.

Deterministic. Batches have gradients far below and far above C, empty places, and chunks of every size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpbench.judging.check_tools.problems import batch, cast, reference, small_network
from dpbench.judging.check_tools.subject import Check, Subject
from dpbench.step.clipped_sum import Clipped, Examples
from dpbench.step.functional import Network
from dpbench.verdicts import Verdict

# Two computations of a gradient, forwards and backwards through at most four layers with sums of at most 600 terms,
# have 2·2·4·600 ≈ 10^4 roundings in a row, relative to the sizes of the terms.
ROUNDINGS = 1e4


def differences(
    found: Clipped, expected: Clipped, examples: Examples, clip_R: Tensor, dtype: torch.dtype
) -> Iterator[tuple[str, float, float]]:
    """(what, largest difference, limit) for the sum, the norms and the losses of an engine."""
    unit = ROUNDINGS * torch.finfo(dtype).eps / 2
    mask = examples.mask_RB
    added_R = (expected.norm_RB.minimum(clip_R[:, None]) * mask).sum(1)
    pairs = (
        ("sum", (found.sum_RP.double() - expected.sum_RP).norm(dim=1), added_R),
        ("norm", (found.norm_RB.double() - expected.norm_RB).abs(), expected.norm_RB),
        # A loss is a difference of logits, which may be larger than the loss: their size counts as at least 1.
        ("loss", (found.loss_RB.double() - expected.loss_RB).abs(), (expected.loss_RB + 1) * mask),
    )
    for what, error, scale in pairs:
        ratio = torch.where(error == 0, 0.0, error / scale)
        yield what, float(ratio.nan_to_num(nan=math.inf).max()), unit


@dataclass(frozen=True)
class ClippingReference(Check):
    """Subject: kind `clipping`, an engine.

    >>> check(Subject.of("clipping", "loop"), seed=0).verdict
    'holds'
    """

    kind = "clipping"
    source = "bu2020, Algorithm 1, the clip step: the sum of g_i / max(1, norm(g_i) / C) over the batch"
    rounds: int = 6
    runs: int = 3

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        """Compare `rounds` stacks of batches of up to `rounds` places in float64 and float32."""
        generator = torch.Generator().manual_seed(seed)
        wrong, worst = None, 0.0
        for turn in range(self.rounds):
            net = small_network()
            theta_RP = torch.randn(self.runs, net.size, generator=generator, dtype=torch.float64).float().double()
            examples = cast(cast(batch(generator, self.runs, turn + 1), torch.float32), torch.float64)
            clip_R = 10 ** (3 * torch.rand(self.runs, generator=generator, dtype=torch.float64) - 1.5)
            for what, ratio, limit in compare(subject.value, net, theta_RP, examples, clip_R, chunk=1 + turn // 2):
                worst = max(worst, ratio / limit)
                if not ratio <= limit:
                    wrong = wrong or f"the {what} differs from the definition by {ratio:.3g} of its size"
        evidence = {"largest_difference_over_limit": worst, "rounds": self.rounds}
        holds = "sums, norms and losses equal the definition, up to rounding"
        return self.certain(subject, wrong, evidence, holds)


def compare(
    engine: Any, net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int
) -> Iterator[tuple[str, float, float]]:
    """An engine against the definition, in float64 and in float32; the inputs must be exact in float32."""
    expected = reference(net, theta_RP, examples, clip_R)
    for dtype in (torch.float64, torch.float32):
        found: Clipped = engine(net, theta_RP.to(dtype), cast(examples, dtype), clip_R, chunk)
        for what, ratio, limit in differences(found, expected, examples, clip_R, dtype):
            yield f"{what} in {dtype}", ratio, limit


check = ClippingReference()
