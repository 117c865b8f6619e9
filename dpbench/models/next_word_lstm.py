"""The LSTM language model of dplis2021 (Section 5.1): embedding 256, an LSTM of 96 units, fully connected to words.

The last state, after the words before the one to be predicted, goes through the last layer. Zeros in front are read as
a word like any other. The LSTM is torch's, with its two biases and its initial values; embedding and last layer start
as in Keras (ours: the paper says nothing of either).

The paper prints no count of parameters: with its 36,743 words they are 256·36,743 + 4·96·(256 + 96 + 2) + 97·36,743.
"""

from __future__ import annotations

from torch import Tensor, nn

from dpbench.models._layers import glorot
from dpbench.models._recurrent import WordEmbedding

NUMERICS = 1


class LastState(nn.Module):
    """A long short-term memory that reads a sequence (B, T, I) and gives its last state (B, H)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)

    def forward(self, inputs_BTI: Tensor) -> Tensor:
        states_BTH: Tensor = self.lstm(inputs_BTI)[0]
        return states_BTH[:, -1]


def model(input_shape: tuple[int, ...], classes: int, *, embedding: int = 256, hidden: int = 96) -> nn.Module:
    """`input_shape` is (places,): numbers of words from 0 to classes - 1. Raises ValueError for another shape or size.

    >>> sum(p.numel() for p in model((20,), 36_743).parameters())
    13106215
    """
    if len(input_shape) != 1:
        raise ValueError(f"input_shape = {tuple(input_shape)}: expected (places,), the numbers of words")
    if min(embedding, hidden) < 1:
        raise ValueError(f"embedding = {embedding}, hidden = {hidden}: expected at least 1")
    return glorot(
        nn.Sequential(WordEmbedding(classes, embedding), LastState(embedding, hidden), nn.Linear(hidden, classes))
    )
