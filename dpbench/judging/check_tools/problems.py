"""Small networks, batches and hyperparameters for the checks.

Shapes: R runs, B batch, N examples, P parameters.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpbench.errors import DpbenchError
from dpbench.randomness import table
from dpbench.step.clipped_sum import Clipped, Examples, Weight
from dpbench.step.functional import Network, network
from dpbench.step.mechanism import Hyperparameters


def has_field(mechanism: Any, name: str) -> bool:
    """Whether the mechanism is a dataclass with this field, such as `sample`, so that it can be replaced."""
    is_data = dataclasses.is_dataclass(mechanism) and not isinstance(mechanism, type)
    return is_data and any(field.name == name for field in dataclasses.fields(mechanism))


def hyperparameters(
    seeds: Sequence[int],
    sampling_rate: float | Sequence[float] = 0.5,
    *,
    learning_rate: float | Sequence[float] = 0.1,
    clip_norm: float | Sequence[float] = 1.0,
    noise_multiplier: float | Sequence[float] = 1.0,
    steps: int = 100,
    epsilon: float | Sequence[float] = 1e3,
    delta: float | Sequence[float] = 1e-5,
) -> Hyperparameters:
    """Hyperparameters of a stack; a single number is for every run. The budget is enough for 100 steps on few examples.

    >>> hyperparameters([0, 1], 0.25).sampling_rate_R.tolist()
    [0.25, 0.25]
    """

    def column(value: float | Sequence[float]) -> Tensor:
        values = [value] * len(seeds) if isinstance(value, int | float) else list(value)
        return torch.tensor(values, dtype=torch.float64)

    return Hyperparameters(
        table(seeds),
        column(sampling_rate),
        column(learning_rate),
        column(clip_norm),
        column(noise_multiplier),
        torch.full((len(seeds),), steps, dtype=torch.int64),
        column(epsilon),
        column(delta),
    )


def small_network(features: int = 6, hidden: int = 9, classes: int = 4) -> Network:
    """A two-layer perceptron without kinks, so that rounding errors stay small."""
    return network(nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, classes)))


def linear_network(features: int, classes: int) -> Network:
    """A linear layer without bias: an input of zeros has a gradient of exactly zero."""
    return network(nn.Linear(features, classes, bias=False))


def fitting(mechanism: Any, usual: Network) -> Network:
    """The network, or one linear layer of its size where the mechanism does not take it (`refuse_model`).

    Such a one has a theorem about convex losses.
    """
    try:
        getattr(mechanism, "refuse_model", lambda _: None)(usual.module)
    except DpbenchError:
        layers = [layer for layer in usual.module.modules() if isinstance(layer, nn.Linear)]
        return network(nn.Linear(layers[0].in_features, layers[-1].out_features, bias=layers[0].bias is not None))
    return usual


def batch(
    generator: torch.Generator, runs: int, places: int, features: int = 6, classes: int = 4, filled: float = 0.8
) -> Examples:
    """Random examples of very different sizes, a share `filled` of the places in use."""
    size = torch.exp(3 * torch.randn(runs, places, 1, generator=generator, dtype=torch.float64)).clamp(1e-3, 1e3)
    inputs = torch.randn(runs, places, features, generator=generator, dtype=torch.float64) * size
    targets = torch.randint(classes, (runs, places), generator=generator)
    return Examples(inputs, targets, torch.rand(runs, places, generator=generator) < filled)


def cast(examples: Examples, dtype: torch.dtype) -> Examples:
    return Examples(examples.inputs.to(dtype), examples.targets, examples.mask_RB)


def append(one: Examples, other: Examples) -> Examples:
    """The places of both, side by side."""
    pairs = ((one.inputs, other.inputs), (one.targets, other.targets), (one.mask_RB, other.mask_RB))
    inputs, targets, mask_RB = (torch.cat(pair, 1) for pair in pairs)
    return Examples(inputs, targets, mask_RB)


def reference(
    net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, weight: Weight | None = None
) -> Clipped:
    """The clipped sum by its definition: float64, one example, one ordinary backward pass at a time.

    The parameters are put into a copy of the module, so no code of `Network` or of an engine is used. `weight` is that
    of a rule other than flat clipping.
    """
    runs, places = examples.mask_RB.shape
    sums = torch.zeros(theta_RP.shape, dtype=torch.float64)
    norm_RB, loss_RB = torch.zeros(2, runs, places, dtype=torch.float64)
    for run in range(runs):
        module = copy.deepcopy(net.module).double().requires_grad_(True)
        nn.utils.vector_to_parameters(theta_RP[run].double(), module.parameters())
        for place in range(places):
            if not examples.mask_RB[run, place]:
                continue
            x = examples.inputs[run, place : place + 1]
            score = module(x.double() if x.is_floating_point() else x).log_softmax(-1)
            loss = -score[0, examples.targets[run, place]]
            pieces = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True, materialize_grads=True)
            one_P = torch.cat([piece.flatten() for piece in pieces])
            norm, clip = float(one_P.square().sum().sqrt()), float(clip_R[run])
            factor = 1.0 if norm <= clip else clip / norm
            if weight is not None:
                factor = float(weight(*torch.tensor([norm, clip], dtype=torch.float64)))
            sums[run] += one_P * factor
            norm_RB[run, place], loss_RB[run, place] = norm, loss.item()
    return Clipped(sums, norm_RB, loss_RB)
