"""Multinomial logistic regression as a convex problem: which models are it, its constants, its gradient.

The loss of a record (x, y) is the cross-entropy ℓ(W) = log Σ_c exp(w_c·z) − w_y·z with z = (x, 1): the bias is one more
column of W, so it counts in every norm here. docs/convex.md has the proofs of both constants. With ‖x‖ <= ρ:

- ∇ℓ = (p − e_y) ⊗ z, and ‖p − e_y‖ <= √2, so ‖∇ℓ‖ <= L = √2·(ρ² + 1)^½.
- ∇²ℓ = (diag(p) − pp') ⊗ zz', and vᵀ(diag(p) − pp')v is the variance of v under p, at most ½ for ‖v‖ = 1. So
  0 <= ∇²ℓ <= β with β = ½·(ρ² + 1).

A model without a bias has z = x and smaller constants; these hold for it too.
Shapes: R runs, B batch, F features, C classes, P parameters.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dpbench.errors import DpbenchError
from dpbench.step.functional import Network

NUMERICS = 1


def lipschitz(radius: float) -> float:
    """L, which no record's gradient exceeds where no input is longer than `radius`; a bound.

    >>> lipschitz(1.0)
    2.0
    """
    return math.sqrt(2 * (radius**2 + 1))


def smoothness(radius: float) -> float:
    """β, which no eigenvalue of a record's Hessian exceeds where no input is longer than `radius`; exact.

    >>> smoothness(1.0)
    1.0
    """
    return (radius**2 + 1) / 2


def refuse_model(module: nn.Module) -> None:
    """Raise DpbenchError for a module that is no logistic regression: one linear layer, all of it trained.

    >>> refuse_model(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    """
    layers = list(module) if type(module) is nn.Sequential else [module]
    flat = [type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1) for layer in layers]
    wrong = ""
    if not layers or type(layers[-1]) is not nn.Linear or not all(flat[:-1]):
        wrong = "has other layers than flattening and one linear layer"
    elif not all(parameter.requires_grad for parameter in layers[-1].parameters()):
        wrong = "has frozen parameters"
    elif any(layer._forward_hooks or layer._forward_pre_hooks for layer in (module, *layers)):
        wrong = "has hooks, which may change what it computes"
    if wrong:
        raise DpbenchError(
            f"model: it {wrong}, and the theorem needs a convex loss with known constants; expected logistic regression"
            " (`model: logistic`)"
        )


def clipped(inputs: Tensor, radius_R: Tensor) -> Tensor:
    """Inputs (R, B, ...) in float64, each shortened to the norm `radius_R` of its run.

    >>> clipped(torch.tensor([[[3.0, 4.0], [0.3, 0.4]]]), torch.tensor([1.0])).norm(dim=2)
    tensor([[1.0000, 0.5000]], dtype=torch.float64)
    """
    exact = inputs.double()
    norm_RB = exact.flatten(2).norm(dim=2)
    scale_RB = 1 / (norm_RB / radius_R.double()[:, None]).clamp_min(1.0)
    shortened: Tensor = exact * scale_RB.reshape(*scale_RB.shape, *[1] * (inputs.ndim - 2))
    return shortened


def summed_gradient(
    net: Network, theta_RP: Tensor, inputs: Tensor, targets_RB: Tensor, mask_RB: Tensor
) -> tuple[Tensor, Tensor]:
    """The sum of the gradients of the filled places (R, P) and the loss of each (R, B), 0 at empty ones.

    `inputs` (R, B, ...) and `theta_RP` have one dtype, in which all is computed. The model is one that `refuse_model`
    lets pass.
    """
    named = net.split(theta_RP)
    weight, bias = _names(net)
    seen_RBF = torch.where(mask_RB[:, :, None], inputs.flatten(2), torch.zeros((), dtype=inputs.dtype))
    score_RBC = seen_RBF @ named[weight].mT
    if bias is not None:
        score_RBC = score_RBC + named[bias][:, None]
    log_RBC = score_RBC.log_softmax(-1)
    loss_RB = -log_RBC.gather(2, targets_RB[:, :, None])[:, :, 0]
    residual_RBC = log_RBC.exp()
    residual_RBC = residual_RBC - torch.zeros_like(residual_RBC).scatter(2, targets_RB[:, :, None], 1.0)
    residual_RBC = torch.where(mask_RB[:, :, None], residual_RBC, torch.zeros_like(residual_RBC))
    found = {weight: residual_RBC.mT @ seen_RBF}
    if bias is not None:
        found[bias] = residual_RBC.sum(1)
    return net.join(found), torch.where(mask_RB, loss_RB, torch.zeros_like(loss_RB))


def _names(net: Network) -> tuple[str, str | None]:
    """The names of the weight and of the bias, if there is one."""
    weight = next(name for name, shape in net.shapes if len(shape) == 2)
    return weight, next((name for name, shape in net.shapes if len(shape) == 1), None)
