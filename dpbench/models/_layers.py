"""What the models share: activations by name, Keras's default initialisation, group normalisation of the inputs."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

# A name, or the scale, temperature and offset of a tempered sigmoid.
Activation = Literal["relu", "tanh"] | tuple[float, float, float]


class TemperedSigmoid(nn.Module):
    """φ(x) = s / (1 + e^(−T·x)) − o (Papernot et al. 2021, equation (1)): scale s, inverse temperature T, offset o.

    >>> TemperedSigmoid(2.0, 2.0, 1.0)(torch.zeros(1)).item()  # these three make the hyperbolic tangent
    0.0
    """

    def __init__(self, scale: float, temperature: float, offset: float) -> None:
        super().__init__()
        self.scale, self.temperature, self.offset = scale, temperature, offset

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset


def activation_layer(activation: Activation) -> nn.Module:
    """A new activation layer. Raises ValueError for an unknown name, or numbers that make no tempered sigmoid."""
    layers: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}
    if isinstance(activation, str) and activation in layers:
        return layers[activation]()
    expected = f"expected one of {', '.join(layers)}, or [scale, temperature, offset] of a tempered sigmoid"
    if isinstance(activation, str) or len(activation) != 3 or not all(map(math.isfinite, activation)):
        raise ValueError(f"activation = {activation!r}: {expected}")
    if min(activation[:2]) <= 0:
        raise ValueError(f"activation = {activation!r}: {expected}, scale and temperature above 0")
    return TemperedSigmoid(*activation)


def glorot(module: nn.Module) -> nn.Module:
    """Glorot-uniform weights and zero biases in every linear and convolution layer (the default of Keras)."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


def group_normalisation(input_shape: tuple[int, ...], groups: int) -> list[nn.Module]:
    """Normalisation within one example, without parameters: no layer for 0 groups, else one.

    Raises ValueError where the channels cannot be divided into so many groups.

    >>> [layer.num_groups for layer in group_normalisation((81, 7, 7), 27)]
    [27]
    """
    if isinstance(groups, bool) or groups < 0:
        raise ValueError(f"groups = {groups!r}: expected a whole number, 0 or more")
    if groups == 0:
        return []
    if len(input_shape) != 3 or input_shape[0] % groups:
        raise ValueError(
            f"groups = {groups}: expected a divisor of the channels of input_shape (channels, height, width) ="
            f" {tuple(input_shape)}"
        )
    return [nn.GroupNorm(groups, input_shape[0], affine=False)]
