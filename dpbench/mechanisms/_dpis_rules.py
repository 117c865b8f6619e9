"""How the variants of DPIS differ, and the arithmetic of one draw: filter, acceptance, weight, bounds on K̃.

| paper (`000_*`) | here |
| --- | --- |
| k, b, g_L | oversampling, batch_size, norm_floor |
| Ñ, K', K̃, C | size, measured, the result of `bounded_sum`, bound |
| ‖ḡ_{t−1}‖, ĝ_t = k·max(‖ḡ_{t−1}‖, g_L) | seen, reach of the filter |
| q_t, p_t | filter, accept |

Shapes: R runs, N examples, B batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

NUMERICS = 1

Variant = Literal["proven", "equation_7", "as_printed"]
_XI = 1e-6  # ξ of equation (12), "a small positive constant", in units of bC


@dataclass(frozen=True)
class Rules:
    """`sampled_sum`: K by (11) and charged by (19). `uncapped`: K̃ >= kbC. `emptied`: X_q and X_p anew in each step.

    `divided_twice`: the weights of line 26. `noisy_epochs`: an epoch is Ñ/b steps, else |D|/b.
    """

    sampled_sum: bool
    uncapped: bool
    emptied: bool
    divided_twice: bool
    noisy_epochs: bool


VARIANTS: dict[str, Rules] = {
    "proven": Rules(sampled_sum=False, uncapped=True, emptied=True, divided_twice=False, noisy_epochs=True),
    "equation_7": Rules(sampled_sum=True, uncapped=False, emptied=True, divided_twice=False, noisy_epochs=False),
    "as_printed": Rules(sampled_sum=True, uncapped=False, emptied=False, divided_twice=True, noisy_epochs=False),
}


def bounded_sum(
    measured: float, *, size: float, bound: float, batch_size: float, oversampling: float, uncapped: bool
) -> float:
    """K̃ of equation (12), whose lower bound is kbC where `uncapped`, bC + ξ as printed. Unbounded where C = ∞.

    Size Ñ >= kb (the caller's duty) keeps the bounds in order.

    >>> bounded_sum(-3.0, size=100.0, bound=2.0, batch_size=4.0, oversampling=5.0, uncapped=True)
    40.0
    """
    if math.isinf(bound):
        return max(measured, 0.0)
    least = batch_size * bound * (oversampling if uncapped else 1 + _XI)
    return min(max(measured, least), max(size * bound, least))


def filter_reach(seen: Tensor, bound: Tensor, oversampling: float, norm_floor: float) -> Tensor:
    """ĝ = k·max(‖ḡ‖, g_L) of the norms that were seen last, brought down to the bound in force (lines 10-11, 24)."""
    return oversampling * torch.minimum(seen, bound).clamp_min(norm_floor)


def filter_probability(reach: Tensor, batch_size: Tensor, gradient_sum: Tensor) -> Tensor:
    """q = min(b·ĝ/K̃, 1) of line 17; 0 where K̃ is not above 0 and nothing has a gradient."""
    return (batch_size * reach / gradient_sum).clamp(max=1.0).nan_to_num(0.0)


def accepted_norm(norm: Tensor, reach: Tensor, bound: Tensor) -> Tensor:
    """‖ḡ‖ after line 21: the gradient is clipped at min(ĝ, C), so that the second probability is at most 1."""
    return torch.minimum(norm, torch.minimum(reach, bound))


def below(bits: Tensor, probability: Tensor) -> Tensor:
    """Coins with the given probability, rounded down to a multiple of 2^-53, of 53 uniform bits each."""
    return bits < torch.floor(probability * 2.0**53).long()
