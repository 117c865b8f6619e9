"""Group normalisation of the inputs: within one example, without parameters, so without a privacy cost."""

from __future__ import annotations

from torch import nn


def group_normalisation(input_shape: tuple[int, ...], groups: int) -> list[nn.Module]:
    """No layer for 0 groups, else one. Raises ValueError where the channels cannot be divided into so many groups.

    >>> [layer.num_groups for layer in group_normalisation((81, 7, 7), 27)]
    [27]
    """
    if isinstance(groups, bool) or groups < 0:
        raise ValueError(f"groups = {groups!r}: expected a whole number, 0 or more")
    if groups == 0:
        return []
    if len(input_shape) != 3 or input_shape[0] % groups:
        raise ValueError(
            f"groups = {groups}: expected a divisor of the channels of input_shape (channels, height, width) ="
            f" {tuple(input_shape)}"
        )
    return [nn.GroupNorm(groups, input_shape[0], affine=False)]
