"""Operators written out so that their forward mode is right, and so that every transform of torch.func takes them.

torch's fused recurrent kernels and its attention have no forward mode; that of an embedding with `padding_idx` is
wrong without a word (the row is constant in the backward pass and moves in the forward one), that of a PReLU at 0 and
of fmax at a tie takes the other branch than the backward pass, and what is computed under `torch.no_grad` is
a constant in the backward pass alone. Inside `Forward` such an operator is replaced by elementary ones that compute the
same; the model's own Python runs as it is. Products with a
stack of weights are taken apart, so that a batch of examples, each alone under vmap, needs no copies of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.autograd.forward_ad as fwAD
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from dpbench.errors import DpbenchError
from dpbench.step.recurrent import STEPS

NUMERICS = 1


class Forward(TorchFunctionMode):
    """Replaces the operators of `WRITTEN_OUT` while it is active; all others pass.

    What the model computes under `torch.no_grad` has no derivative here either.

    >>> with Forward():
    ...     rows = F.embedding(torch.tensor([1]), torch.eye(2), padding_idx=1)
    >>> rows
    tensor([[0., 1.]])
    """

    differentiates: bool

    def __enter__(self) -> Forward:
        self.differentiates = torch.is_grad_enabled()
        entered: Forward = super().__enter__()  # type: ignore[no-untyped-call]
        return entered

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        result = WRITTEN_OUT.get(func, func)(*args, **(kwargs or {}))
        if self.differentiates and not torch.is_grad_enabled():
            return tree_map(_constant, result)
        return result


class Unrecorded(TorchFunctionMode):
    """Inside `torch.func.jvp` inside `torch.func.vjp`: the backward pass of the value alone is recorded.

    Else every derivative along a vector would be kept until the backward pass, which never asks for it. What shares
    memory with something else, so that writing into one changes the other, stays as it is: that costs memory only.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = {id(leaf) for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, Tensor)}

        def stripped(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point() or id(value) in given or value._is_view():
                return value
            primal, tangent = fwAD.unpack_dual(value)  # type: ignore[no-untyped-call]
            return value if tangent is None else fwAD.make_dual(primal, tangent.detach())  # type: ignore[no-untyped-call]

        return tree_map(stripped, result)


def _constant(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) and value.is_floating_point() else value


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows, of which that of `padding_idx` is a constant."""
    del norm_type, sparse  # how a gradient is stored changes nothing here
    if max_norm is not None:
        raise DpbenchError("an embedding with max_norm changes its weights in the forward pass")
    if scale_grad_by_freq:
        raise DpbenchError("an embedding with scale_grad_by_freq has a gradient that depends on the other examples")
    rows = F.embedding(input, weight)
    if padding_idx is None:
        return rows
    constant = input == (padding_idx + len(weight) if padding_idx < 0 else padding_idx)
    return torch.where(constant[..., None], rows.detach(), rows)


def _rows(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """torch.embedding, where no row is at -1."""
    padding = padding_idx if padding_idx >= 0 else None
    return _embedding(indices, weight, padding, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)


def _fmax(input: Tensor, other: Tensor) -> Tensor:
    return torch.where((input >= other) | other.isnan(), input, other)


def _fmin(input: Tensor, other: Tensor) -> Tensor:
    return torch.where((input <= other) | other.isnan(), input, other)


def _hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """torch's own cannot be differentiated twice backwards."""
    del inplace
    return F.relu6(input + 3) / 6


def _group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """torch's own fails on some batches of batches; a group is a layer of its own."""
    groups = input.reshape(len(input), num_groups, -1)
    output = F.layer_norm(groups, groups.shape[-1:], None, None, eps).reshape(input.shape)
    spread = (-1, *[1] * (input.dim() - 2))
    output = output if weight is None else output * weight.reshape(spread)
    return output if bias is None else output + bias.reshape(spread)


def _elementary_attention(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Attention by products and a softmax: the fused kernels that torch would choose have no forward mode."""

    def attention(*args: Any, **kwargs: Any) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return operator(*args, **kwargs)

    return attention


def _stacked_product(operator: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Each matrix of a stack by itself: else vmap copies a stack of weights for every example."""

    def product(input: Tensor, other: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        alike = other.dim() == 3 and input.dim() >= 3 and input.shape[-3] == len(other)
        if args or kwargs or not alike:
            return operator(input, other, *args, **kwargs)
        return torch.stack([one @ matrix for one, matrix in zip(input.unbind(-3), other.unbind(), strict=True)], -3)

    return product


_ATTENTION = (F.scaled_dot_product_attention, F.multi_head_attention_forward)
_PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)

WRITTEN_OUT: Mapping[Any, Callable[..., Any]] = {
    F.embedding: _embedding,
    torch.embedding: _rows,
    **dict.fromkeys((torch.fmax, Tensor.fmax), _fmax),
    **dict.fromkeys((torch.fmin, Tensor.fmin), _fmin),
    F.group_norm: _group_norm,
    F.hardsigmoid: _hardsigmoid,
    **{whole: _elementary_attention(whole) for whole in _ATTENTION},
    **{plain: _stacked_product(plain) for plain in _PRODUCTS},
    **STEPS,
}
