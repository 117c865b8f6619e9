"""The CIFAR-10 network of Papernot et al. 2021 (tempered sigmoid): seven or eight 3×3 convolutions, three poolings.

Convolutions 32, 32, pool, 64, 64, pool, 128, 128, pool, 256, each 3×3 with 'same' padding and step 1, each pooling an
average over 2×2 with step 2. Two heads, because two papers print two networks:

| `head` | last layers | parameters on 3×32×32, ten classes | printed by |
| --- | --- | --- | --- |
| `full` (default) | one fully connected layer on 4×4×256 | 623,146 | jl2021, Section 3.2 |
| `convolution` | a 3×3 convolution to the classes, mean over all places | 605,226 | Papernot et al. 2021, Table 2 |

`tanh` is Papernot et al.'s activation. jl2021 does not state its activation: choose it in the spec. Initial values are
Keras's defaults, which neither text changes.
"""

from __future__ import annotations

import itertools
from typing import Literal

from torch import nn

from dpbench.models._layers import Activation, activation_layer, glorot

NUMERICS = 1

Head = Literal["full", "convolution"]

_BLOCKS = ((32, 32), (64, 64), (128, 128))


def model(
    input_shape: tuple[int, ...], classes: int, *, activation: Activation = "tanh", head: Head = "full"
) -> nn.Module:
    """`input_shape` is (channels, height, width), each side at least 8; sides are halved three times, rounded down.

    >>> sum(p.numel() for p in model((3, 32, 32), 10).parameters())
    623146
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 8:
        raise ValueError(f"input_shape = {tuple(input_shape)}: expected (channels, height, width), sides at least 8")
    if head not in ("full", "convolution"):
        raise ValueError(f"head = {head!r}: expected one of full, convolution")
    layers: list[nn.Module] = []
    before = input_shape[0]
    for block in _BLOCKS:
        for into, out in itertools.pairwise((before, *block)):
            layers += [nn.Conv2d(into, out, 3, padding=1), activation_layer(activation)]
        layers.append(nn.AvgPool2d(2))
        before = block[-1]
    layers += [nn.Conv2d(before, 256, 3, padding=1), activation_layer(activation)]
    places = (input_shape[1] // 8) * (input_shape[2] // 8)
    if head == "full":
        layers += [nn.Flatten(), nn.Linear(256 * places, classes)]
    else:
        layers += [nn.Conv2d(256, classes, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return glorot(nn.Sequential(*layers))
