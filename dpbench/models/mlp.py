"""Multilayer perceptron: flattened input, hidden layers of the given widths, linear output."""

from __future__ import annotations

import itertools
import math

from torch import nn

from dpbench.models._layers import Activation, activation_layer, glorot

NUMERICS = 1


def model(
    input_shape: tuple[int, ...], classes: int, *, hidden: tuple[int, ...] = (64,), activation: Activation = "relu"
) -> nn.Module:
    """`hidden` holds the widths of the hidden layers, each at least 1.

    >>> sum(p.numel() for p in model((1, 8, 8), 10, hidden=(16,)).parameters())
    1210
    """
    if any(width < 1 for width in hidden):
        raise ValueError(f"hidden = {tuple(hidden)!r}: expected widths of at least 1")
    widths = [math.prod(input_shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), activation_layer(activation)]
    return glorot(nn.Sequential(*layers, nn.Linear(widths[-1], classes)))
