"""Neural collaborative filtering as bu2020 simplifies it (Section 4.1, after He et al. 2017), in two branches.

Two numbers come in, of a user and of an item. The left branch embeds both into 5 numbers and multiplies them; the right
one embeds both into 10 numbers. One linear layer sees the 5 products and the 20 numbers. With MovieLens 1M these are
146,320 parameters, a count that the paper does not print. Tables are looked up, so the clipping engine `ghost` needs no
gradient of a whole table for a record.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpbench.models._layers import glorot
from dpbench.models._recurrent import WordEmbedding

NUMERICS = 1


class CollaborativeFiltering(nn.Module):
    """Two branches over users and items; inputs (B, 2) are whole numbers, outputs (B, classes)."""

    def __init__(self, users: int, items: int, classes: int, factors: int, width: int) -> None:
        super().__init__()
        self.product_user, self.product_item = WordEmbedding(users, factors), WordEmbedding(items, factors)
        self.user, self.item = WordEmbedding(users, width), WordEmbedding(items, width)
        self.output = nn.Linear(factors + 2 * width, classes)

    def forward(self, inputs_B2: Tensor) -> Tensor:
        user_B1, item_B1 = inputs_B2[:, :1], inputs_B2[:, 1:]
        product_BF = (self.product_user(user_B1) * self.product_item(item_B1))[:, 0]
        seen = [product_BF, self.user(user_B1)[:, 0], self.item(item_B1)[:, 0]]
        output: Tensor = self.output(torch.cat(seen, 1))
        return output


def model(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    users: int = 6_040,
    items: int = 3_706,
    factors: int = 5,
    width: int = 10,
) -> nn.Module:
    """`input_shape` is (2,): the numbers of a user and an item. Raises ValueError for another shape or size.

    >>> sum(p.numel() for p in model((2,), 5).parameters())
    146320
    """
    if tuple(input_shape) != (2,):
        raise ValueError(f"input_shape = {tuple(input_shape)}: expected (2,), the numbers of a user and an item")
    if min(users, items, factors, width) < 1:
        sizes = f"users = {users}, items = {items}, factors = {factors}, width = {width}"
        raise ValueError(f"{sizes}: expected at least 1")
    return glorot(CollaborativeFiltering(users, items, classes, factors, width))
