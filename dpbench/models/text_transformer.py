"""A small transformer that classifies texts: layers of self-attention and of two linear maps, LayerNorm before each.

After Vaswani et al. 2017 (Attention Is All You Need, Section 3), with the norms in front as in Xiong et al. 2020
(On Layer Normalization in the Transformer Architecture, Figure 1b), learned positions, and the mean over the places
before the last layer. No dropout. Zero padding is read as a word like any other. Attention is written out: torch's
fused kernel has no forward mode, and under `vmap` it goes record by record.

Letters: B batch, T places, E width, H heads.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dpbench.models._recurrent import WordEmbedding
from dpbench.models.pooled_embedding import MeanOverPlaces

NUMERICS = 1


class SelfAttention(nn.Module):
    """softmax(Q Kᵀ/√(E/H)) V of every head, between all places of a sequence: inputs and outputs (B, T, E)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inside = nn.Linear(width, 3 * width)  # queries, keys and values
        self.outside = nn.Linear(width, width)

    def forward(self, inputs_BTE: Tensor) -> Tensor:
        parts = self.inside(inputs_BTE).reshape(*inputs_BTE.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]  # (B, H, T, E/H)
        weights_BHTT = torch.softmax(query @ key.mT / math.sqrt(key.shape[-1]), -1)
        outputs_BTE: Tensor = self.outside((weights_BHTT @ value).transpose(1, 2).flatten(2))
        return outputs_BTE


class Residual(nn.Module):
    """x + inner(LayerNorm(x))."""

    def __init__(self, width: int, inner: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), inner

    def forward(self, inputs_BTE: Tensor) -> Tensor:
        outputs_BTE: Tensor = inputs_BTE + self.inner(self.norm(inputs_BTE))
        return outputs_BTE


class WordsInPlaces(nn.Module):
    """Word numbers (B, T) to vectors (B, T, E): a row for the word plus a row for the place."""

    def __init__(self, words: int, places: int, width: int) -> None:
        super().__init__()
        self.words, self.places = WordEmbedding(words, width), nn.Parameter(torch.empty(places, width))
        nn.init.uniform_(self.places, -0.05, 0.05)

    def forward(self, inputs_BT: Tensor) -> Tensor:
        outputs_BTE: Tensor = self.words(inputs_BT) + self.places
        return outputs_BTE


def model(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    words: int = 10_000,
    width: int = 32,
    heads: int = 2,
    layers: int = 1,
    hidden: int = 64,
) -> nn.Module:
    """`input_shape` is (places,), for numbers of words from 0 to words - 1. Raises ValueError for other ones.

    >>> sum(p.numel() for p in model((256,), 2).parameters())
    336866
    """
    if len(input_shape) != 1:
        raise ValueError(f"input_shape = {tuple(input_shape)}: expected (places,)")
    for name, value in (("words", words), ("heads", heads), ("layers", layers), ("hidden", hidden)):
        if value < 1:
            raise ValueError(f"{name} = {value}: expected at least 1")
    if width < 1 or width % heads:
        raise ValueError(f"width = {width}: expected a multiple of heads = {heads}")
    body: list[nn.Module] = []
    for _ in range(layers):
        inner = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
        body += [Residual(width, SelfAttention(width, heads)), Residual(width, inner)]
    return nn.Sequential(
        WordsInPlaces(words, input_shape[0], width),
        *body,
        nn.LayerNorm(width),
        MeanOverPlaces(),
        nn.Linear(width, classes),
    )
