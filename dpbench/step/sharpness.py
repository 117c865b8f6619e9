"""Sharpness of a loss around trained parameters (dplis2021, Definition 5; Keskar et al. 2016, Metric 2.1).

With a box of half-widths ε(|θ_i| + 1) around θ, A of the definition being the identity as in the paper's Table 9, the
sharpness is 100·(max over the box of 𝓛 − 𝓛(θ)) / (1 + 𝓛(θ)).

The maximum of a network's loss over a box is not computable, so the value is a lower bound of the sharpness: that of
the best point that was found. The search is the conditional gradient method of Frank and Wolfe (1956): towards the
corner that the gradient points at, all the way, or a half, a quarter or an eighth of it, whichever is highest, until
nothing is higher. On a convex loss the first corner alone is at least as high as the gradient at θ foretells. Keskar et
al. search with ten iterations of L-BFGS-B; the paper does not say how it does.
Shapes: R runs, P parameters, B batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, vmap

from dpbench.errors import DpbenchError
from dpbench.step import losses
from dpbench.step.functional import Network, evaluate

SHARES = (1.0, 0.5, 0.25, 0.125)  # of the way to a corner


def sharpness(
    net: Network,
    theta_RP: Tensor,
    inputs: Tensor,
    targets: Tensor,
    chunk: int,
    *,
    reach: float = 0.0045,
    iterations: int = 10,
    view: Callable[[Tensor], Tensor | None] = lambda _: None,
) -> Tensor:
    """A lower bound of the sharpness of each run's mean loss on a set of examples, in per cent: float64 (R,).

    `reach` is ε, `chunk` the examples per call, `view` as in `evaluate`. Not private: it reads the examples without
    noise. Raises DpbenchError unless `reach` is finite and above 0 and `iterations` is 1 or more.

    >>> from torch import nn
    >>> from dpbench.step.functional import network
    >>> net = network(nn.Linear(1, 2, bias=False))
    >>> found = sharpness(net, torch.zeros(1, 2), torch.ones(1, 1), torch.zeros(1, dtype=torch.int64), 1, reach=1.0)
    >>> round(float(found), 3)  # the corner (-1, 1) has the loss log(1 + e²), the centre log 2
    84.681
    """
    if not 0 < reach < math.inf:
        raise DpbenchError(f"reach = {reach!r}: expected a finite number above 0")
    if iterations < 1:
        raise DpbenchError(f"iterations = {iterations!r}: expected a whole number, 1 or more")

    def losses(place_RP: Tensor) -> Tensor:
        return evaluate(net, place_RP, inputs, targets, chunk, view)[0]

    half_RP = reach * (theta_RP.abs() + 1)
    turn_P = 1 - 2 * (torch.arange(net.size, device=theta_RP.device) % 2)  # where the gradient is zero
    apart_RP = torch.zeros_like(theta_RP)
    centre_R = highest_R = losses(theta_RP)
    for _ in range(iterations):
        gradient_RP = _gradient(net, theta_RP + apart_RP, inputs, targets, chunk, view)
        corner_RP = half_RP * torch.where(gradient_RP == 0, turn_P, gradient_RP.sign())
        trials = [apart_RP + share * (corner_RP - apart_RP) for share in SHARES]
        heights = torch.stack([losses(theta_RP + trial_RP) for trial_RP in trials])
        best_R, which_R = heights.nan_to_num(nan=-math.inf).max(0)
        higher_R = best_R > highest_R
        if not bool(higher_R.any()):
            break
        chosen_RP = torch.stack(trials)[which_R, torch.arange(len(theta_RP), device=theta_RP.device)]
        apart_RP = torch.where(higher_R[:, None], chosen_RP, apart_RP)
        highest_R = torch.where(higher_R, best_R, highest_R)
    return 100 * (highest_R - centre_R) / (1 + centre_R)


def _gradient(
    net: Network,
    theta_RP: Tensor,
    inputs: Tensor,
    targets: Tensor,
    chunk: int,
    view: Callable[[Tensor], Tensor | None],
) -> Tensor:
    """The gradient of each run's summed loss (R, P), by one backward pass for each chunk."""

    def total(named: dict[str, Tensor], inputs_B: Tensor, targets_B: Tensor) -> Tensor:
        return losses.loss(net.objective.loss, net.outputs(named, inputs_B), targets_B, "sum")

    found_RP = torch.zeros_like(theta_RP)
    for start in range(0, len(targets), chunk):
        x, y_B = inputs[start : start + chunk].clone(), targets[start : start + chunk]
        seen = view(x)
        mapped = vmap(grad(total), in_dims=(0, None if seen is None else 0, None))
        found_RP = found_RP + net.join(mapped(net.split(theta_RP), x if seen is None else seen, y_B))
    return found_RP
