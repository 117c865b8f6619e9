"""The five-layer recurrent network of dpis2022, Table 1: embedding 100, dense 32, LSTM 32 both ways, dense 16, classes.

The first dense layer acts on every place; both dense layers have the activation that the paper gives its second and
fourth layers (ReLU for DPIS, DP-SGD and decaying noise, tanh for tempered sigmoid). The paper prints no count; by its
table and Keras's defaults the four layers that it trains have 20,946 parameters and its embedding 2,000,000.

The paper loads the embedding from GloVe and freezes it. GloVe is no part of this package, so there are three variants:
- `embedding: trained` (default): word numbers come in and the embedding is trained too, from Keras's initial values.
  Not the paper's setting: label it so.
- `embedding: drawn`: word numbers come in and the embedding is frozen at standard normals from a fixed seed, the same
  in every run. The paper's parameters are trained, but its words have no meaning beforehand: label it so.
- inputs of shape (places, width) are vectors already: a dataset that looks words up in GloVe gives the paper's setting.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from dpbench.models._layers import Activation, activation_layer, glorot
from dpbench.models._recurrent import BidirectionalLSTM, WordEmbedding, look_up

NUMERICS = 1

Embedding = Literal["trained", "drawn"]

_SEED = 20_220_100


class DrawnEmbedding(nn.Module):
    """A frozen table (V, E) of standard normals from a fixed seed; see WordEmbedding for what comes in and goes out."""

    table: Tensor

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(_SEED)
        self.register_buffer("table", torch.randn(words, width, generator=generator))

    def forward(self, inputs_BT: Tensor) -> Tensor:
        return look_up(self.table, inputs_BT)


def model(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    words: int = 20_000,
    width: int = 100,
    embedding: Embedding = "trained",
    activation: Activation = "relu",
) -> nn.Module:
    """`input_shape` is (places,) for numbers of words from 0 to words - 1, or (places, width) for their vectors.

    >>> [sum(p.numel() for p in model(shape, 2).parameters()) for shape in ((80,), (80, 100))]
    [2020946, 20946]
    """
    if len(input_shape) not in (1, 2):
        raise ValueError(f"input_shape = {tuple(input_shape)}: expected (places,) or (places, width)")
    if min(words, width) < 1:
        raise ValueError(f"words = {words}, width = {width}: expected at least 1")
    if embedding not in ("trained", "drawn"):
        raise ValueError(f"embedding = {embedding!r}: expected one of trained, drawn")
    layers: list[nn.Module] = []
    if len(input_shape) == 1:
        layers.append(WordEmbedding(words, width) if embedding == "trained" else DrawnEmbedding(words, width))
    layers += [
        nn.Linear(width if len(input_shape) == 1 else input_shape[1], 32),
        activation_layer(activation),
        BidirectionalLSTM(32, 32),
        nn.Linear(64, 16),
        activation_layer(activation),
        nn.Linear(16, classes),
    ]
    return glorot(nn.Sequential(*layers))
