"""The IMDb network of bu2020 (Section 4.1): an embedding of words, the mean over places, a hidden layer, classes.

The paper embeds 10,000 words into 16 numbers and has a hidden layer of 16 with ReLU: 160,306 parameters, which it does
not print. The mean is over all places, padding included, as in its published code. Every place is looked up, so the
clipping engine `ghost` needs no gradient of the whole table for a record.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpbench.models._layers import Activation, activation_layer, glorot
from dpbench.models._recurrent import WordEmbedding

NUMERICS = 1


class MeanOverPlaces(nn.Module):
    """The mean over the places of a sequence: inputs (B, T, E), outputs (B, E)."""

    def forward(self, inputs_BTE: Tensor) -> Tensor:
        return torch.mean(inputs_BTE, 1)


def model(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    words: int = 10_000,
    width: int = 16,
    hidden: int = 16,
    activation: Activation = "relu",
) -> nn.Module:
    """`input_shape` is (places,), for numbers of words from 0 to words - 1.

    Raises ValueError for another shape or size.

    >>> sum(p.numel() for p in model((256,), 2).parameters())
    160306
    """
    if len(input_shape) != 1:
        raise ValueError(f"input_shape = {tuple(input_shape)}: expected (places,)")
    if min(words, width, hidden) < 1:
        raise ValueError(f"words = {words}, width = {width}, hidden = {hidden}: expected at least 1")
    layers = [nn.Linear(width, hidden), activation_layer(activation), nn.Linear(hidden, classes)]
    return glorot(nn.Sequential(WordEmbedding(words, width), MeanOverPlaces(), *layers))
