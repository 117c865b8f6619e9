"""pidp2021's multilayer perceptron (Section 7): one hidden layer, as wide as the flattened input.

With d inputs and k classes it has d² + d + dk + k parameters: 11,342 for `adult_complete` (d = 105, k = 2), 4,422 for
`bank` (65), 14,280 for `kddcup99` (118). The paper prints neither the activation nor the initialisation. Its theorems
need a smooth loss with a Lipschitz Hessian, which rules out ReLU: by default tanh, and Glorot's uniform weights.
"""

from __future__ import annotations

import math

from torch import nn

from dpbench.models._layers import Activation
from dpbench.models.mlp import model as mlp

NUMERICS = 1


def model(input_shape: tuple[int, ...], classes: int, *, activation: Activation = "tanh") -> nn.Module:
    """The network for records of `input_shape`.

    >>> [sum(p.numel() for p in model((inputs,), 2).parameters()) for inputs in (105, 65, 118)]
    [11342, 4422, 14280]
    """
    return mlp(input_shape, classes, hidden=(math.prod(input_shape),), activation=activation)
