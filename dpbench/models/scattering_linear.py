"""A linear classifier on scattering features (Tramèr and Boneh 2021), with or without group normalisation before it.

39,700 parameters on 81×7×7 features (MNIST, Fashion-MNIST) and 155,530 on 243×8×8 (CIFAR-10), ten classes each; the
paper is not at hand, its counts (39,700 and about 155,000) are from memory, the layers from its published code.
Initial values are PyTorch's, as there.
"""

from __future__ import annotations

import math

from torch import nn

from dpbench.models._layers import group_normalisation

NUMERICS = 1


def model(input_shape: tuple[int, ...], classes: int, *, groups: int = 0) -> nn.Module:
    """`groups` of channels are normalised within each example, without parameters; 0: no normalisation.

    Group normalisation looks at one example alone, so it costs no privacy. Tramèr and Boneh try 9, 27 and 81 groups.

    >>> sum(p.numel() for p in model((81, 7, 7), 10).parameters())
    39700
    """
    layers = group_normalisation(input_shape, groups)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(math.prod(input_shape), classes))
