"""The two passes of DPIS over examples, both by a clipping engine: gradient norms, and a clipped weighted sum.

The norms of the first pass decide who is accepted, and with which weight. They bound nothing: another pass may round
another way, and at the kink of a ReLU that is another gradient. So the second pass clips what it sums: the gradient of
weight·loss, of each example alone, at the length that the ledger claims.
Shapes: R runs, B places, N examples, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dpbench.clipping._base import Clipped, ClippedSum, Examples
from dpbench.functional import Network

NUMERICS = 1


@dataclass(frozen=True)
class _Weighted(Network):
    """The same network; a target comes with its weight, (2,), both in the type of the parameters."""

    def example_loss(
        self, named: dict[str, Tensor], example: Tensor, target: Tensor, operators: TorchFunctionMode | None = None
    ) -> Tensor:
        return target[1] * super().example_loss(named, example, target[0].long(), operators)


def norms(engine: ClippedSum, net: Network, theta_RP: Tensor, examples: Examples, chunk: int) -> Clipped:
    """Gradient norms and losses at every place (R, B), before clipping; the sum is of no use here."""
    one_R = torch.ones(len(theta_RP), dtype=torch.float64, device=theta_RP.device)
    return engine(net, theta_RP, examples, one_R, chunk)


def all_norms(
    engine: ClippedSum, net: Network, theta_RP: Tensor, inputs: Tensor, targets: Tensor, chunk: int
) -> Tensor:
    """The norm of every example's gradient for every run, (R, N) float64; nothing of size N·P is held."""
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
    """Σ weight·gradient over the filled places (R, P), each clipped at `longest_R` by the pass that adds it up.

    What is left of rounding is that of an engine (`checks.clipping_sensitivity.rounding`). A run without a filled place
    gets zeros, whatever stands there.
    """
    kept_RB = torch.where(examples.mask_RB, weight_RB, 0.0)
    pairs = torch.stack([examples.targets.to(theta_RP.dtype), kept_RB.to(theta_RP.dtype)], -1)
    weighted = _Weighted(net.module, net.shapes, net.size)
    found = engine(weighted, theta_RP, Examples(examples.inputs, pairs, examples.mask_RB), longest_R, chunk)
    return torch.where(examples.mask_RB.any(1)[:, None], found.sum_RP, 0.0)
