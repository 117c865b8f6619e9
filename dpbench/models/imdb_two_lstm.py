"""The two-layer LSTM that bu2020's Table 3 compares with: 751,554 parameters on 10,000 words, two classes.

Embedding 64, a bidirectional LSTM of 64 units each way that gives all its states, one of 32 that gives its last ones,
fully connected 64 with ReLU, fully connected to the classes: the second network of TensorFlow's tutorial on text
classification, which the paper names without its sizes, with two outputs instead of one. No dropout, of which versions
of the tutorial differ. Zero padding is read as a word like any other.
"""

from __future__ import annotations

from torch import nn

from dpbench.models._layers import glorot
from dpbench.models._recurrent import BidirectionalLSTM, WordEmbedding

NUMERICS = 1


def model(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    words: int = 10_000,
    embedding: int = 64,
    hidden: int = 64,
    second: int = 32,
) -> nn.Module:
    """`input_shape` is (places,): numbers of words from 0 to words - 1. Keras's default initialisation.

    `hidden` is the width of the first LSTM and of the fully connected layer, `second` that of the second LSTM.

    >>> sum(p.numel() for p in model((256,), 2).parameters())
    751554
    """
    if len(input_shape) != 1:
        raise ValueError(f"input_shape = {tuple(input_shape)}: expected (places,), the numbers of words")
    for name, value in (("words", words), ("embedding", embedding), ("hidden", hidden), ("second", second)):
        if value < 1:
            raise ValueError(f"{name} = {value}: expected at least 1")
    return glorot(
        nn.Sequential(
            WordEmbedding(words, embedding),
            BidirectionalLSTM(embedding, hidden, sequences=True),
            BidirectionalLSTM(2 * hidden, second),
            nn.Linear(2 * second, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )
    )
