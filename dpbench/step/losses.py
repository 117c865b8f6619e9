"""What the losses and metrics of `tasks` compute.

Letters: R runs, B examples, C outputs. For a squared error C is 1. Targets are classes (int64) or numbers (float32).
A class c of C predicted by squared error or measured by its root is the number c.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpbench.tasks import Objective

NUMERICS = 1


def loss(name: str, output_BC: Tensor, target_B: Tensor, reduction: str = "none") -> Tensor:
    """The loss of each example (B,), or their sum or mean: cross-entropy in nats, or (output - target)².

    >>> loss("squared_error", torch.tensor([[3.0]]), torch.tensor([1.0])).tolist()
    [4.0]
    """
    if name == "squared_error":
        loss_B = (output_BC[:, 0] - target_B.to(output_BC.dtype)).square()
        return loss_B if reduction == "none" else loss_B.sum() if reduction == "sum" else loss_B.mean()
    return nn.functional.cross_entropy(output_BC, target_B.long(), reduction=reduction)


def predicted(name: str, output_RBC: Tensor) -> Tensor:
    """The number that a model predicts (R, B): its output, or the mean class Σ_c c·p_c of its probabilities.

    >>> predicted("cross_entropy", torch.zeros(1, 1, 5)).tolist()
    [[2.0]]
    """
    if name == "squared_error":
        return output_RBC[..., 0]
    classes_C = torch.arange(output_RBC.shape[-1], dtype=output_RBC.dtype, device=output_RBC.device)
    return output_RBC.softmax(-1) @ classes_C


def sums(of: Objective, output_RBC: Tensor, target_B: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss of each run and what its metric sums, float64 (R,): right answers, or squared errors.

    For perplexity the second is the loss again.
    """
    exact_RBC = output_RBC.double()
    if of.loss == "squared_error":
        loss_R = (exact_RBC[..., 0] - target_B.double()).square().sum(1)
    else:
        score_RBC = exact_RBC.log_softmax(-1)
        loss_R = -score_RBC.gather(-1, target_B[None, :, None].expand(len(output_RBC), -1, 1)).sum((1, 2))
    if of.metric == "accuracy":
        return loss_R, (output_RBC.argmax(-1) == target_B).sum(1).double()
    if of.metric == "rmse":
        return loss_R, (predicted(of.loss, exact_RBC) - target_B.double()).square().sum(1)
    return loss_R, loss_R


def measured(metric: str, sum_R: Tensor, count: int) -> Tensor:
    """The metric from what `sums` gave for `count` examples: a fraction, a root mean square, or e^(mean loss).

    >>> measured("rmse", torch.tensor([8.0]), 2).item()
    2.0
    """
    mean_R = sum_R / count
    return mean_R if metric == "accuracy" else mean_R.sqrt() if metric == "rmse" else mean_R.exp()
