"""The bidirectional LSTM with an embedding of jl2021, Section 3.3: 598,274 parameters on 8,185 words, two classes.

Embedding 64, one bidirectional LSTM of 64 units each way, fully connected 64 with ReLU, fully connected to the classes;
TensorFlow's tutorial on text classification, which the paper names, with two outputs instead of one. No dropout. Zero
padding is read as a word like any other (that version of the tutorial masks nothing; the paper does not say).
"""

from __future__ import annotations

from torch import nn

from dpbench.models._layers import glorot
from dpbench.models._recurrent import BidirectionalLSTM, WordEmbedding

NUMERICS = 1


def model(
    input_shape: tuple[int, ...], classes: int, *, words: int = 8_185, embedding: int = 64, hidden: int = 64
) -> nn.Module:
    """`input_shape` is (places,): numbers of words from 0 to words - 1. Keras's default initialisation.

    >>> sum(p.numel() for p in model((150,), 2).parameters())
    598274
    """
    if len(input_shape) != 1:
        raise ValueError(f"input_shape = {tuple(input_shape)}: expected (places,), the numbers of words")
    for name, value in (("words", words), ("embedding", embedding), ("hidden", hidden)):
        if value < 1:
            raise ValueError(f"{name} = {value}: expected at least 1")
    return glorot(
        nn.Sequential(
            WordEmbedding(words, embedding),
            BidirectionalLSTM(embedding, hidden),
            nn.Linear(2 * hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )
    )
