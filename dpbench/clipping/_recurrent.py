"""Recurrent layers written out in time, for torch.func: the fused kernels have no rule for vmap and no forward mode.

The module's own Python runs and its own weights are used, so whatever `nn.RNN`, `nn.LSTM`, `nn.GRU` and their cells
take is taken: layers, directions, projections, biases or none, batches or single sequences, a first state or none.
A packed sequence is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dpbench.clipping._ghost_recurrent import RECURRENT
from dpbench.clipping._ghost_watch import Watch
from dpbench.errors import DpbenchError

NUMERICS = 1


class WrittenOut(TorchFunctionMode):
    """Replaces recurrent kernels by `STEPS` inside a transform of torch.func; outside torch's own are faster.

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


def _lstm_cell(
    input: Tensor,
    state: tuple[Tensor, Tensor],
    weight: Tensor,
    hidden: Tensor,
    bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    gates = F.linear(input, weight, bias) + F.linear(state[0], hidden, hidden_bias)
    entry, forget, candidate, exit_ = gates.chunk(4, -1)
    memory = forget.sigmoid() * state[1] + entry.sigmoid() * candidate.tanh()
    return exit_.sigmoid() * memory.tanh(), memory


def _gru_cell(
    input: Tensor,
    state: Tensor,
    weight: Tensor,
    hidden: Tensor,
    bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> Tensor:
    reset_x, update_x, new_x = F.linear(input, weight, bias).chunk(3, -1)
    reset_h, update_h, new_h = F.linear(state, hidden, hidden_bias).chunk(3, -1)
    new = torch.tanh(new_x + (reset_x + reset_h).sigmoid() * new_h)
    return (state - new) * (update_x + update_h).sigmoid() + new


def _plain_cell(activation: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def cell(
        input: Tensor,
        state: Tensor,
        weight: Tensor,
        hidden: Tensor,
        bias: Tensor | None = None,
        hidden_bias: Tensor | None = None,
    ) -> Tensor:
        return activation(F.linear(input, weight, bias) + F.linear(state, hidden, hidden_bias))

    return cell


STEPS: Mapping[Any, Callable[..., Any]] = {
    **{fused: _layers(written_out) for fused, written_out in RECURRENT.items()},
    torch._VF._pack_padded_sequence: _packed,
    torch._VF.lstm_cell: _lstm_cell,
    torch._VF.gru_cell: _gru_cell,
    torch._VF.rnn_tanh_cell: _plain_cell(torch.tanh),
    torch._VF.rnn_relu_cell: _plain_cell(torch.relu),
}
