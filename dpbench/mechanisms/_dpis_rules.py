"""The variants of DPIS, the probabilities of one draw, and the two passes over examples by a clipping engine.

The norms of the first pass determine which examples are accepted, and their weights. They are no bounds for the second
pass, whose rounding may differ, and at the kink of a ReLU also its gradient. So the second pass clips what it adds: the
gradient of weight·loss of each example, at the norm that the ledger claims. The letters are those of `dpis`. Shapes: R
runs, N examples, B places, P parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dpbench.step.clipped_sum import Clipped, ClippedSum, Examples
from dpbench.step.functional import Network

NUMERICS = 1

Variant = Literal["proven", "equation_7", "as_printed"]
_XI = 1e-6  # ξ of equation (12), "a small positive constant", in units of bC


@dataclass(frozen=True)
class Rules:
    """`sampled_sum`: K by (11) and charged by (19). `uncapped`: K̃ >= kbC. `emptied`: X_q and X_p anew in each step.

    `divided_twice`: the weights of line 26. `noisy_epochs`: an epoch has Ñ/b steps, else |D|/b.
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
    """K̃ of equation (12), with lower bound kbC if `uncapped`, bC + ξ as printed. No bounds for C = ∞.

    The caller ensures Ñ >= kb, so that the lower bound is below the upper one.

    >>> bounded_sum(-3.0, size=100.0, bound=2.0, batch_size=4.0, oversampling=5.0, uncapped=True)
    40.0
    """
    if math.isinf(bound):
        return max(measured, 0.0)
    least = batch_size * bound * (oversampling if uncapped else 1 + _XI)
    return min(max(measured, least), max(size * bound, least))


def filter_reach(seen: Tensor, bound: Tensor, oversampling: float, norm_floor: float) -> Tensor:
    """ĝ = k·max(‖ḡ‖, g_L) of the norms as last seen, clipped at the current bound (lines 10-11, 24)."""
    return oversampling * torch.minimum(seen, bound).clamp_min(norm_floor)


def filter_probability(reach: Tensor, batch_size: Tensor, gradient_sum: Tensor) -> Tensor:
    """q = min(b·ĝ/K̃, 1) of line 17; 0 if K̃ is not above 0, when no example has a gradient."""
    return (batch_size * reach / gradient_sum).clamp(max=1.0).nan_to_num(0.0)


def accepted_norm(norm: Tensor, reach: Tensor, bound: Tensor) -> Tensor:
    """‖ḡ‖ after line 21: the gradient is clipped at min(ĝ, C), so that the second probability is at most 1."""
    return torch.minimum(norm, torch.minimum(reach, bound))


def below(bits: Tensor, probability: Tensor) -> Tensor:
    """Bernoulli draws from 53 uniform bits each; the probability is rounded down to a multiple of 2^-53."""
    return bits < torch.floor(probability * 2.0**53).long()


@dataclass(frozen=True)
class _Weighted(Network):
    """The same network with targets (2,): class or number, and weight, in the dtype of the parameters."""

    def example_loss(
        self, named: dict[str, Tensor], example: Tensor, target: Tensor, operators: TorchFunctionMode | None = None
    ) -> Tensor:
        return target[1] * super().example_loss(named, example, target[0], operators)


def norms(engine: ClippedSum, net: Network, theta_RP: Tensor, examples: Examples, chunk: int) -> Clipped:
    """Gradient norms and losses at every place (R, B), before clipping; the sum is not used."""
    one_R = torch.ones(len(theta_RP), dtype=torch.float64, device=theta_RP.device)
    return engine(net, theta_RP, examples, one_R, chunk)


def all_norms(
    engine: ClippedSum, net: Network, theta_RP: Tensor, inputs: Tensor, targets: Tensor, chunk: int
) -> Tensor:
    """The norm of every example's gradient for every run, (R, N) float64, without a tensor of N·P numbers."""
    runs, count = len(theta_RP), len(targets)
    mask_RN = torch.ones(runs, count, dtype=torch.bool, device=targets.device)
    examples = Examples(inputs.expand(runs, *inputs.shape), targets.expand(runs, count), mask_RN)
    return norms(engine, net, theta_RP, examples, chunk).norm_RB.double()


def weighted_sum(
    engine: ClippedSum,
    net: Network,
    theta_RP: Tensor,
    examples: Examples,
    weight_RB: Tensor,
    longest_R: Tensor,
    chunk: int,
) -> Tensor:
    """Σ weight·gradient over the filled places (R, P), each term clipped at `longest_R` as it is added.

    Rounding errors are those of an engine (`judging.checks.clipping_sensitivity.rounding`). A run without a filled
    place gets zeros.
    """
    kept_RB = torch.where(examples.mask_RB, weight_RB, 0.0)
    pairs = torch.stack([examples.targets.to(theta_RP.dtype), kept_RB.to(theta_RP.dtype)], -1)
    weighted = _Weighted(net.module, net.shapes, net.size, objective=net.objective)
    found = engine(weighted, theta_RP, Examples(examples.inputs, pairs, examples.mask_RB), longest_R, chunk)
    return torch.where(examples.mask_RB.any(1)[:, None], found.sum_RP, 0.0)
