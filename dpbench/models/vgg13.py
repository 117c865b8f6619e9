"""VGG13 (Simonyan and Zisserman 2014) on small pictures, for jl2021's Table 5: 32,394,562 parameters.

Ten 3×3 convolutions of step 1 with padding 1, two each of 64, 128, 256, 512 and 512 channels, a 2×2 maximum pooling
after each pair, then fully connected layers. No dropout, which draws randomness of its own and has no parameters.

jl2021 prints "10 convolutional layers and 3 fully-connected layers" and 32,394,562. These contradict each other: on
CIFAR-10 the three fully connected layers 4096, 4096, 10 give 28,328,522 parameters in all; the printed number is
exactly that of four, 4096, 4096, 1000, 10: the original ImageNet network with a layer of ten after its thousand. The
default has the printed number; `hidden=(4096, 4096)` has the printed layers.
"""

from __future__ import annotations

import itertools

from torch import nn

from dpbench.models._layers import glorot

NUMERICS = 1

_CHANNELS = (64, 128, 256, 512, 512)


def model(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    hidden: tuple[int, ...] = (4096, 4096, 1000),
) -> nn.Module:
    """`input_shape` is (channels, height, width), each side at least 32; `hidden` are the fully connected widths.

    A ReLU follows every layer but the last; jl2021 does not say whether one follows the layer of 1000. Keras's default
    initialisation.

    >>> sum(p.numel() for p in model((3, 32, 32), 10).parameters())
    32394562
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 32:
        raise ValueError(f"input_shape = {tuple(input_shape)}: expected (channels, height, width), sides at least 32")
    if any(width < 1 for width in hidden):
        raise ValueError(f"hidden = {tuple(hidden)!r}: expected widths of at least 1")
    layers: list[nn.Module] = []
    for into, out in itertools.pairwise((input_shape[0], *_CHANNELS)):
        for before in (into, out):
            layers += [nn.Conv2d(before, out, 3, padding=1), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    width = _CHANNELS[-1] * (input_shape[1] // 32) * (input_shape[2] // 32)
    layers.append(nn.Flatten())
    for before, after in itertools.pairwise((width, *hidden)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return glorot(nn.Sequential(*layers, nn.Linear(hidden[-1] if hidden else width, classes)))
