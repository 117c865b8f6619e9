"""The operators with parameters that the ghost engine knows, except recurrent ones; a `Watch` records each use.

Each function takes the watch, then the arguments of torch's operator. It returns the operator's result with a tap
added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dpbench.step.operators import Watch

NUMERICS = 1


def _linear(watch: Watch, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return watch.linear(input, weight, bias)


def _convolution(operator: Callable[..., Tensor], axes: int) -> Callable[..., Tensor]:
    def per_axis(value: Any) -> tuple[int, ...]:
        values = (value,) if isinstance(value, int) else tuple(value)
        return values * axes if len(values) == 1 else values

    def convolution(
        watch: Watch,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        watch.only_input(input)
        strides, dilations = per_axis(stride), per_axis(dilation)
        spread = [d * (k - 1) for d, k in zip(dilations, weight.shape[2:], strict=True)]
        if padding == "same":  # an odd total: one more at the end
            sides = [(total // 2, total - total // 2) for total in spread]
        elif padding == "valid":
            sides = [(0, 0)] * axes
        else:
            sides = [(p, p) for p in per_axis(padding)]
        flat = [number for side in reversed(sides) for number in side]
        padded = F.pad(input, flat) if any(flat) else input
        alone = input.dim() == axes + 1
        if alone:
            padded = padded[None]
        output, tap = watch.tapped(operator(padded, weight, bias, strides, 0, dilations, groups))
        watch.record("convolution", weight, tap, padded, groups=groups, stride=strides, dilation=dilations)
        watch.record_bias(bias, tap, after=axes)
        return output[0] if alone else output

    return convolution


def _embedding(
    watch: Watch,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    del norm_type, sparse  # how a gradient is stored changes nothing here
    if max_norm is not None:
        watch.refuse(weight, "an embedding with max_norm, which changes its weights in the forward pass")
    if scale_grad_by_freq:
        watch.refuse(weight, "an embedding with scale_grad_by_freq, whose gradient depends on the other examples")
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    output, tap = watch.tapped(F.embedding(input, weight))
    watch.record("embedding", weight, tap, input, padding_index=padding_idx)
    return output


def _affine(watch: Watch, normal: Tensor, weight: Tensor | None, bias: Tensor | None, after: int = 0) -> Tensor:
    """normal · weight + bias; `after` axes follow the parameter's."""

    def spread(value: Tensor) -> Tensor:
        return value.reshape(*value.shape, *[1] * after)

    output = normal if weight is None else normal * spread(weight)
    output, tap = watch.tapped(output if bias is None else output + spread(bias))
    if weight is not None:
        watch.record("scale", weight, tap, normal, size=(*weight.shape, *[1] * after))
    watch.record_bias(bias, tap, after)
    return output


def _layer_norm(
    watch: Watch,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    watch.only_input(input)
    return _affine(watch, F.layer_norm(input, normalized_shape, None, None, eps), weight, bias)


def _rms_norm(
    watch: Watch, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    watch.only_input(input)
    return _affine(watch, F.rms_norm(input, normalized_shape, None, eps), weight, None)


def _group_norm(
    watch: Watch,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    watch.only_input(input)
    groups = input.reshape(len(input), num_groups, -1)  # torch's group_norm fails on some batches of batches
    normal = F.layer_norm(groups, groups.shape[-1:], None, None, eps).reshape(input.shape)
    return _affine(watch, normal, weight, bias, after=input.dim() - 2)


def _add(watch: Watch, input: Any, other: Any, **more: Any) -> Tensor:
    value, bias = (other, input) if watch.is_parameter(input) else (input, other)
    if more or watch.is_parameter(value):
        watch.refuse(bias, "in a sum with another parameter or a factor")
    output, tap = watch.tapped(torch.add(value, bias) if isinstance(value, Tensor) else bias + value)
    watch.record_bias(bias, tap)
    return output


def _multiply(watch: Watch, input: Any, other: Any) -> Tensor:
    value, weight = (other, input) if watch.is_parameter(input) else (input, other)
    if watch.is_parameter(value) or not isinstance(value, Tensor):
        watch.refuse(weight, "in a product with another parameter or a number")
    output, tap = watch.tapped(value * weight)
    watch.record("scale", weight, tap, value.expand(output.shape))
    return output


def _matrix_product(watch: Watch, input: Tensor, other: Tensor) -> Tensor:
    """input (..., T, I) · weight (I, O), or input (..., G, T, I) · weight (G, I, O)."""
    watch.only_input(input)
    if other.dim() == 2:
        groups, value = 1, input.reshape(1, -1, input.shape[-1])
    elif other.dim() == 3 and input.dim() >= 3 and input.shape[-3] == len(other):
        groups, value = len(other), input.movedim(-3, 0).reshape(len(other), -1, input.shape[-1])
    else:
        watch.refuse(other, f"of shape {tuple(other.shape)} in a matrix product with {tuple(input.shape)}")
    inner, outer = other.shape[-2:]
    if other.dim() == 2:
        product = torch.matmul(value, other)
    else:  # group by group: in a transform a batched product would copy the weight for every example
        pairs = zip(value.unbind(0), other.unbind(0), strict=True)
        product = torch.stack([one @ weight for one, weight in pairs])
    output, tap = watch.tapped(product)
    watch.record("product", other, tap, value, size=(groups, inner, outer))
    if groups == 1:
        return output.reshape(*input.shape[:-1], outer)
    lead = input.movedim(-3, 0).shape[:-1]
    return output.reshape(*lead, outer).movedim(0, -3)


OPERATORS: Mapping[Any, Callable[..., Any]] = {
    F.linear: _linear,
    F.conv1d: _convolution(F.conv1d, 1),
    F.conv2d: _convolution(F.conv2d, 2),
    F.conv3d: _convolution(F.conv3d, 3),
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    **dict.fromkeys((torch.add, Tensor.add), _add),
    **dict.fromkeys((torch.mul, Tensor.mul), _multiply),
    **dict.fromkeys((torch.matmul, Tensor.matmul), _matrix_product),
    **dict.fromkeys((torch.bmm, Tensor.bmm, torch.mm, Tensor.mm), _matrix_product),
}
