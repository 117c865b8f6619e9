"""The next-word MLP of dplis2021 (Section 5.1): the last 20 words, hidden layers of 500, 250 and 50 with ReLU, a word.

`embedding: 0`, the default, takes the numbers of the words as they are: the paper names no embedding for this network
(it does for its LSTM), and the published code of the setup that it cites has none. A number above 0 is the width of an
embedding that is trained, for each place the same, which learns far better: not the paper's network.

The paper prints no count of parameters: with its 36,743 words as outputs they are 2,022,193.
"""

from __future__ import annotations

from torch import nn

from dpbench.models import mlp
from dpbench.models._layers import Activation
from dpbench.models._recurrent import WordEmbedding

NUMERICS = 1


def model(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    hidden: tuple[int, ...] = (500, 250, 50),
    embedding: int = 0,
    activation: Activation = "relu",
) -> nn.Module:
    """`input_shape` is (places,): numbers of words from 0 to classes - 1. Raises ValueError for another shape or size.

    >>> [sum(p.numel() for p in model((20,), 36_743, embedding=width).parameters()) for width in (0, 32)]
    [2022193, 3507969]
    """
    if len(input_shape) != 1:
        raise ValueError(f"input_shape = {tuple(input_shape)}: expected (places,), the numbers of words")
    if embedding < 0:
        raise ValueError(f"embedding = {embedding}: expected 0 (none) or more")
    if embedding == 0:
        return mlp.model(input_shape, classes, hidden=hidden, activation=activation)
    layers = mlp.model((*input_shape, embedding), classes, hidden=hidden, activation=activation)
    return nn.Sequential(WordEmbedding(classes, embedding), *layers.children())
