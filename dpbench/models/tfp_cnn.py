"""The two-convolution MNIST network of TensorFlow Privacy's tutorial: 26,010 parameters on 28×28 images.

Used by bu2020 for Table 1 (two convolutions, then a dense layer). Convolution 16@8×8 stride 2 with 'same' padding,
max pooling 2×2 stride 1, convolution 32@4×4 stride 2 without padding, max pooling 2×2 stride 1, dense 32, dense output.

dplis2021 names the tutorial for its CNNs and for PATE's student: 37,274 parameters on the 32×32×3 pictures of SVHN,
counted here, for the paper prints no number.
"""

from __future__ import annotations

import torch
from torch import nn

from dpbench.models._layers import Activation, activation_layer, glorot

NUMERICS = 1


def model(input_shape: tuple[int, ...], classes: int, *, activation: Activation = "relu") -> nn.Module:
    """`input_shape` is (channels, height, width), each side at least 14. Keras's default initialisation.

    The padding of 3 is Keras's 'same' for even sides; for odd ones Keras pads one less on the left and the top.

    >>> sum(p.numel() for p in model((1, 28, 28), 10).parameters())
    26010
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 14:
        raise ValueError(f"input_shape = {tuple(input_shape)}: expected (channels, height, width), sides at least 14")
    features = nn.Sequential(
        nn.Conv2d(input_shape[0], 16, 8, stride=2, padding=3),
        activation_layer(activation),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        activation_layer(activation),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
    )
    with torch.no_grad():
        width = features(torch.zeros(1, *input_shape)).shape[1]
    head = nn.Sequential(nn.Linear(width, 32), activation_layer(activation), nn.Linear(32, classes))
    return glorot(nn.Sequential(*features, *head))
