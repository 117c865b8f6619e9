"""What the models share: activations by name, and Keras's default initialisation."""

from __future__ import annotations

from typing import Literal

from torch import nn

Activation = Literal["relu", "tanh"]


def activation_layer(name: Activation) -> nn.Module:
    """A new activation layer. Raises ValueError for an unknown name."""
    layers: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}
    if name not in layers:
        raise ValueError(f"activation = {name!r}: expected one of {', '.join(layers)}")
    return layers[name]()


def glorot(module: nn.Module) -> nn.Module:
    """Glorot-uniform weights and zero biases in every linear and convolution layer (the default of Keras)."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module
