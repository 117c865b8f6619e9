"""The small convolution networks of Tramèr and Boneh 2021 on scattering features, with or without group normalisation.

| `design` | layers | parameters, ten classes |
| --- | --- | --- |
| `grey` (default) | convolution 16@3×3 step 2, convolution 32@3×3 step 1, dense 32, dense output | 33,066 on 81×7×7 |
| `colour` | convolution 64@3×3, maximum over 2×2 with step 2, convolution 64@3×3, dense output | 187,210 on 243×8×8 |

Every convolution pads by 1, every hidden layer is followed by the activation (tanh there). The paper is not at hand:
the layers are those of its published code, the counts are from memory of the paper (33,066 and about 187,000) and
agree. dpis2022 uses the same networks (Section 5.1). Initial values are PyTorch's, as there.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from dpbench.models._layers import Activation, activation_layer, group_normalisation

NUMERICS = 1

Design = Literal["grey", "colour"]


def model(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    design: Design = "grey",
    groups: int = 0,
    activation: Activation = "tanh",
) -> nn.Module:
    """`input_shape` is (channels, height, width), `colour`: sides of 2 or more; `groups` as in `scattering_linear`.

    >>> sum(p.numel() for p in model((243, 8, 8), 10, design="colour").parameters())
    187210
    """
    if design not in ("grey", "colour"):
        raise ValueError(f"design = {design!r}: expected one of grey, colour")
    least = 2 if design == "colour" else 1
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        raise ValueError(
            f"input_shape = {tuple(input_shape)}: expected (channels, height, width), sides at least {least}"
        )
    channels = input_shape[0]
    layers = group_normalisation(input_shape, groups)
    if design == "grey":
        layers += [nn.Conv2d(channels, 16, 3, stride=2, padding=1), activation_layer(activation)]
        layers += [nn.Conv2d(16, 32, 3, padding=1), activation_layer(activation), nn.Flatten()]
    else:
        layers += [nn.Conv2d(channels, 64, 3, padding=1), activation_layer(activation), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(64, 64, 3, padding=1), activation_layer(activation), nn.Flatten()]
    with torch.no_grad():
        width = nn.Sequential(*layers)(torch.zeros(1, *input_shape)).shape[1]
    if design == "grey":
        return nn.Sequential(*layers, nn.Linear(width, 32), activation_layer(activation), nn.Linear(32, classes))
    return nn.Sequential(*layers, nn.Linear(width, classes))
