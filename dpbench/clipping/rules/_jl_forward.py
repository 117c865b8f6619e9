"""Operators replaced by elementary ones, whose forward mode is right and which every transform of torch.func supports.

torch's fused recurrent kernels and its attention have no forward mode. That of an embedding with `padding_idx` is wrong
without an error: the row is a constant in the backward pass only. PReLU at 0 and fmax at a tie take another branch in
forward mode than in the backward pass, and results under `torch.no_grad` are constants in the backward pass only.
Inside `Forward` such an operator is replaced by elementary ones with the same result; the model's own Python code runs
unchanged. Products with a stack of weights are split, so that vmap over examples makes no copies of the weights.
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
    """Replaces the operators of `WRITTEN_OUT` while it is active.

    Results under `torch.no_grad` have no derivative in forward mode either.

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
    """For `torch.func.jvp` inside `torch.func.vjp`: records the backward pass of the value only.

    Otherwise every derivative along a vector would be kept for a backward pass that does not need it. Tensors that
    share memory with others are left as they are, which costs memory only.
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
    """The rows; the row of `padding_idx` is a constant."""
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
    """torch.embedding, where -1 means that there is no padding row."""
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
    """torch's own fails under some nested vmaps; a group is normalised like a layer."""
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
    """Each matrix of a stack by itself, because vmap would copy a stack of weights for every example."""

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
