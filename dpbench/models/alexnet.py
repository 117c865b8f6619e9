"""AlexNet (Krizhevsky et al. 2012) on small pictures, for jl2021's Table 4: 21,598,922 parameters.

Five convolutions, ungrouped: 96@11×11 step 4, 256@5×5, 384@3×3, 384@3×3, 256@3×3; a 3×3 maximum pooling of step 2
after the first, second and fifth; fully connected 4096, 4096, classes. No dropout and no local response normalisation:
the first draws randomness of its own, neither has parameters.

jl2021 prints the number and the kinds of layers, not the padding. 21,598,922 is met exactly when one grey channel
comes in and 1×1×256 reaches the first fully connected layer, so Table 4 belongs to MNIST. Padding by half of each
kernel, convolutions and poolings alike, gives 1×1 for every side from 5 to 32: 28 → 7 → 4 → 2 → 1. That padding is
ours. On CIFAR-10's three channels the same layers have 21,622,154 parameters, which nobody prints.
"""

from __future__ import annotations

from torch import nn

from dpbench.models._layers import glorot

NUMERICS = 1

_CONVOLUTIONS = ((96, 11, 4, True), (256, 5, 1, True), (384, 3, 1, False), (384, 3, 1, False), (256, 3, 1, True))


def model(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """`input_shape` is (channels, height, width), each side from 5 to 32. Keras's default initialisation.

    >>> sum(p.numel() for p in model((1, 28, 28), 10).parameters())
    21598922
    """
    if len(input_shape) != 3 or not all(5 <= side <= 32 for side in input_shape[1:]):
        raise ValueError(f"input_shape = {tuple(input_shape)}: expected (channels, height, width), sides from 5 to 32")
    layers: list[nn.Module] = []
    before = input_shape[0]
    for width, kernel, step, pooled in _CONVOLUTIONS:
        layers += [nn.Conv2d(before, width, kernel, stride=step, padding=kernel // 2), nn.ReLU()]
        if pooled:
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        before = width
    layers.append(nn.Flatten())
    for out in (4096, 4096):
        layers += [nn.Linear(before, out), nn.ReLU()]
        before = out
    return glorot(nn.Sequential(*layers, nn.Linear(before, classes)))
