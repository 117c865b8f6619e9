"""How far the optimum moves when a record is taken out: influence functions (pidp2021, Sections 5.1 and 5.2).

| paper | here |
| --- | --- |
| c_z, equation (11) | a row of `influences` |
| H_θ, with the regulariser | `hessian`, and `products` of it with vectors |
| E, Theorem 4 | `error_bound` |
| G, L, C | bounds of a record's gradient, of its Hessian's norm, of how fast that Hessian changes |
| ζ | `curvature`, λ of the regulariser and `damping` |

The objective is F(θ) = (1/n) Σ_i ℓ(θ, z_i) + (λ/2)‖θ‖²; the regulariser belongs to F and does not go with a record.
With weight w on record r, F_w has an optimum θ(w), and θ'(w) = −H_w⁻¹∇ℓ_r/n. So c_r = H⁻¹∇ℓ_r/n is −θ'(1), the
first-order move θ(0) − θ(1).

**The error** (Theorem 4, corrected). Differentiating again, H_w θ'' = −(2/n)∇²ℓ_r θ' − ∇³F_w[θ', θ']. Where the least
eigenvalue of H_w is ζ or more *for all w in [0, 1]*, ‖θ'‖ <= G/(nζ) and ‖θ''‖ <= (2LG + CG²/ζ)/(ζ²n²). The
remainder is the integral of w·θ''(w), at most half of that. The paper asks for the norm of H at the optimum only, which
bounds the largest eigenvalue (`theorem-4`, `theorem-4-norm`), and leaves the half out (`equation-14`). With a convex ℓ
ζ = λ does.

All of it is float64, exact up to the stated tolerance. Shapes: P parameters, N records, K vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad, vjp, vmap

from dpbench.errors import DpbenchError
from dpbench.step.functional import Network

NUMERICS = 1

MOST_DENSE = 1024  # parameters up to which the Hessian is formed: 8 MiB in float64
TOLERANCE = 1e-10  # of conjugate gradients: the residual over the right side, both in norm
_NUMBERS = 1 << 24  # of one layer's outputs in one call, roughly: records x vectors x 64
_VECTORS = 64


def gradients(net: Network, theta_P: Tensor, inputs: Tensor, targets: Tensor, chunk: int = 256) -> Tensor:
    """The gradient of the loss of each record, float64 (N, P), without the regulariser."""

    def loss(theta_P: Tensor, example: Tensor, target: Tensor) -> Tensor:
        return net.example_loss(_named(net, theta_P), example, target)

    one = vmap(grad(loss), in_dims=(None, 0, 0))
    theta_P, inputs = theta_P.double(), _float64(inputs)
    parts = [
        one(theta_P, inputs[start : start + chunk], targets[start : start + chunk])
        for start in range(0, len(targets), chunk)
    ]
    return torch.cat(parts) if parts else theta_P.new_zeros(0, len(theta_P))


def products(
    net: Network, theta_P: Tensor, inputs: Tensor, targets: Tensor, vectors_KP: Tensor, regularisation: float
) -> Tensor:
    """(H + λI)v for each vector, float64 (K, P), H the Hessian of the mean loss; reverse mode twice."""
    theta_P, inputs = theta_P.double(), _float64(inputs)
    chunk = max(1, _NUMBERS // (64 * max(1, min(_VECTORS, len(vectors_KP)))))
    total_KP: Tensor = regularisation * len(targets) * vectors_KP
    for start in range(0, len(targets), chunk):
        x, y = inputs[start : start + chunk], targets[start : start + chunk]

        def loss(theta_P: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            each = vmap(net.example_loss, in_dims=(None, 0, 0))(_named(net, theta_P), x, y)
            return torch.sum(each)

        _, pull = vjp(grad(loss), theta_P)  # type: ignore[misc]  # two without has_aux
        parts = [vmap(pull)(part_KP)[0] for part_KP in torch.split(vectors_KP, _VECTORS)]
        total_KP = total_KP + torch.cat(parts)
    return total_KP / len(targets)


def hessian(net: Network, theta_P: Tensor, inputs: Tensor, targets: Tensor, regularisation: float) -> Tensor:
    """H + λI, float64 (P, P), H the Hessian of the mean loss."""
    size = len(theta_P)
    unit_PP = torch.eye(size, dtype=torch.float64, device=theta_P.device)
    full_PP = products(net, theta_P, inputs, targets, unit_PP, regularisation)
    return (full_PP + full_PP.T) / 2


def factor(hessian_PP: Tensor) -> Tensor:
    """The Cholesky factor. Raises DpbenchError if the matrix is not positive definite."""
    factor_PP: Tensor
    factor_PP, info = torch.linalg.cholesky_ex(hessian_PP)
    if int(info) or not bool(factor_PP.isfinite().all()):
        finite = bool(hessian_PP.isfinite().all())
        least = f"; its least eigenvalue is {float(torch.linalg.eigvalsh(hessian_PP)[0]):.3g}" if finite else ""
        raise DpbenchError(_SINGULAR + least)
    return factor_PP


def conjugate_gradients(
    net: Network,
    theta_P: Tensor,
    inputs: Tensor,
    targets: Tensor,
    right_KP: Tensor,
    regularisation: float,
    tolerance: float = TOLERANCE,
) -> Tensor:
    """The solutions of (H + λI)x = b for each right side, float64 (K, P).

    ‖(H + λI)x − b‖ <= `tolerance`·‖b‖, so x is off by at most `tolerance`·‖b‖ over the least eigenvalue. Raises
    DpbenchError where a direction of no or negative curvature is met, and if 10·P + 100 products do not suffice.
    """
    right_KP = right_KP.double()
    found_KP, residual_KP, direction_KP = torch.zeros_like(right_KP), right_KP.clone(), right_KP.clone()
    square_K = residual_KP.square().sum(1)
    enough_K = (tolerance**2) * square_K
    for _ in range(10 * len(theta_P) + 100):
        due = (square_K > enough_K).nonzero().flatten()
        if not len(due):
            return found_KP
        product_KP = products(net, theta_P, inputs, targets, direction_KP[due], regularisation)
        curvature_K = (direction_KP[due] * product_KP).sum(1)
        if not bool((curvature_K > 0).all()):  # NaN included
            raise DpbenchError(_SINGULAR)
        step_K = square_K[due] / curvature_K
        found_KP[due] += step_K[:, None] * direction_KP[due]
        residual_KP[due] -= step_K[:, None] * product_KP
        after_K = residual_KP[due].square().sum(1)
        direction_KP[due] = residual_KP[due] + (after_K / square_K[due])[:, None] * direction_KP[due]
        square_K[due] = after_K
    raise DpbenchError(
        f"conjugate gradients: no solution within {tolerance:g} in {10 * len(theta_P) + 100} products; expected a"
        " better conditioned Hessian: take a larger regularisation or damping"
    )


def any_direction(theta_P: Tensor) -> Tensor:
    """A right side for `conjugate_gradients` that has a part in every direction: normal numbers, float64 (1, P)."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, len(theta_P), generator=generator, dtype=torch.float64).to(theta_P.device)


def error_bound(*, gradient: float, smoothness: float, third: float, curvature: float, records: int) -> float:
    """A bound on ‖θ(0) − θ(1) − c_r‖ (the corrected Theorem 4): (2LG + CG²/ζ)/(2ζ²n²).

    `curvature` is ζ, at most the least eigenvalue of H_w for every weight w of the record. The paper's has no 2.

    >>> error_bound(gradient=1, smoothness=0.25, third=0.1, curvature=0.5, records=100)
    0.00014
    """
    numerator = 2 * smoothness * gradient + third * gradient**2 / curvature
    return numerator / (2 * (curvature * records) ** 2)


_SINGULAR = (
    "the Hessian is not positive definite, so that influence functions do not exist; expected a larger regularisation"
    " (a convex loss needs any above 0), or damping above its most negative eigenvalue"
)


def _named(net: Network, theta_P: Tensor) -> dict[str, Tensor]:
    return {name: value[0] for name, value in net.split(theta_P[None]).items()}


def _float64(inputs: Tensor) -> Tensor:
    return inputs.double() if inputs.is_floating_point() else inputs
