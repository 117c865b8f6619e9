"""Recurrent layers written out in time, for torch.func: the fused kernels have no rule for vmap and no forward mode.

The module's own Python runs and its own weights are used, so whatever `nn.RNN`, `nn.LSTM`, `nn.GRU` and their cells
take is taken: layers, directions, projections, biases or none, batches or single sequences, a first state or none.
A packed sequence is refused. A PReLU stands here too: torch's own has no right backward pass for a stack of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dpbench.clipping._ghost_recurrent import CELLS, LAYERS
from dpbench.clipping._ghost_watch import Watch
from dpbench.errors import DpbenchError

NUMERICS = 1


class WrittenOut(TorchFunctionMode):
    """Replaces the operators of `STEPS` inside a transform of torch.func; outside torch's own are faster.

    >>> from torch import nn
    >>> with WrittenOut():
    ...     torch.func.vmap(lambda x: nn.LSTM(3, 2)(x)[0], randomness="same")(torch.zeros(7, 5, 3)).shape
    torch.Size([7, 5, 2])
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        if func in STEPS and any(map(_transformed, tree_leaves(args))):
            func = STEPS[func]
        return func(*args, **(kwargs or {}))


def _transformed(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(torch._C._functorch.is_functorch_wrapped_tensor(value))


def _layers(written_out: Callable[..., Any]) -> Callable[..., Any]:
    """A recurrent layer by the steps that the ghost engine writes out, without its taps."""

    def layers(value: Tensor, state: Any, flat: Any, *more: Any) -> Any:
        if isinstance(flat, Tensor):  # the variant for packed sequences has the sizes second and the state third
            raise DpbenchError("a recurrent layer on a packed sequence: give it whole sequences")
        return written_out(Watch({}, {}, {}, None), value, state, flat, *more)

    return layers


def _packed(*_: Any) -> Any:
    raise DpbenchError("a packed sequence: give whole sequences")


def _cell(written_out: Callable[..., Any]) -> Callable[..., Any]:
    """A recurrent cell by the step that the ghost engine writes out, without its taps."""
    return lambda *given: written_out(Watch({}, {}, {}, None), *given)


def _prelu(input: Tensor, weight: Tensor) -> Tensor:
    """0 is on the side of the weight, as in torch's first backward pass; in its other derivatives it is not."""
    if weight.numel() > 1:
        weight = weight.reshape(-1, *[1] * (input.dim() - 2))
    return torch.where(input > 0, input, weight * input)


STEPS: Mapping[Any, Callable[..., Any]] = {
    **{fused: _layers(written_out) for fused, written_out in LAYERS.items()},
    **{fused: _cell(written_out) for fused, written_out in CELLS.items()},
    torch._VF._pack_padded_sequence: _packed,
    **dict.fromkeys((F.prelu, torch.prelu, Tensor.prelu), _prelu),
}
