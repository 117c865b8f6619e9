"""Recurrent layers for the ghost engine, written out step by step so that every product with a weight has a tap.

The fused kernels hide the hidden states that the recurrent weights multiply. Here each layer and direction is one
linear map of the whole sequence and one loop over time; one backward pass through the loop, all examples at once, gives
the gradient at every time step. With h_t the input of the recurrent weight at time t and g_t the gradient by its
output, the gradient of an example is the sum of g_t h_tᵀ over t, so norms are exact. Formulas: torch's documentation
of RNN, LSTM (with projections) and GRU.
Letters: T time steps, N sequences of one example (always 1 here), H hidden units, G gates times hidden units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dpbench.clipping._ghost_watch import Watch

NUMERICS = 1

State = tuple[Tensor, ...]  # (h,) or (h, c), each (N, H)


@dataclass(frozen=True)
class Weights:
    """The parameters of one layer and direction; `projection` only in an LSTM with projections."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None
    hidden_bias: Tensor | None
    projection: Tensor | None


def _lstm_gates(gates: Tensor, state: State) -> State:
    entry, forget, candidate, exit_ = gates.chunk(4, -1)
    memory = torch.sigmoid(forget) * state[1] + torch.sigmoid(entry) * torch.tanh(candidate)
    return torch.sigmoid(exit_) * torch.tanh(memory), memory


def _gru_gates(from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    reset_x, update_x, new_x = from_input.chunk(3, -1)
    reset_h, update_h, new_h = from_hidden.chunk(3, -1)
    update = torch.sigmoid(update_x + update_h)
    new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
    return ((state[0] - new) * update + new,)


def _direction(
    watch: Watch, kind: str, value_TNI: Tensor, state: State, weights: Weights, backward: bool
) -> tuple[Tensor, State]:
    """The hidden states (T, N, H) of one layer and direction, and its last state.

    A GRU's new gate multiplies the recurrent part, so the recurrent part has a tap of its own; elsewhere the two parts
    are added and one gradient serves both.
    """
    from_input_TNG = watch.linear(value_TNI, weights.input, weights.input_bias)
    steps, examples = from_input_TNG.shape[:2]
    tap = len(watch.tap_shapes) - 1
    extra: Tensor | None = None
    if kind == "gru":
        extra, tap = watch.reserve(from_input_TNG.shape)
    out, out_tap = None, -1
    if weights.projection is not None:
        out, out_tap = watch.reserve((steps, examples, len(weights.projection)))
    # Not [time]: the backward pass of T selections is T tensors of T steps each.
    parts = from_input_TNG.unbind(0)
    extras = [] if extra is None else extra.unbind(0)
    outs = [] if out is None else out.unbind(0)
    before, unprojected, hidden = [], [], []
    order = range(steps - 1, -1, -1) if backward else range(steps)
    for time in order:
        before.append(state[0].expand(examples, -1))
        from_hidden = F.linear(state[0], weights.hidden, weights.hidden_bias)
        if kind == "gru":
            from_hidden = from_hidden + extras[time] if extras else from_hidden
            state = _gru_gates(parts[time], from_hidden, state)
        elif kind == "lstm":
            state = _lstm_gates(parts[time] + from_hidden, state)
        else:
            activation = torch.tanh if kind == "rnn_tanh" else torch.relu
            state = (activation(parts[time] + from_hidden),)
        if weights.projection is not None:
            unprojected.append(state[0])
            projected = F.linear(state[0], weights.projection)
            state = (projected + outs[time] if outs else projected, *state[1:])
        hidden.append(state[0])
    if backward:
        before, unprojected, hidden = before[::-1], unprojected[::-1], hidden[::-1]
    watch.record("linear", weights.hidden, tap, torch.stack(before))
    watch.record_bias(weights.hidden_bias, tap)
    if weights.projection is not None:
        watch.record("linear", weights.projection, out_tap, torch.stack(unprojected))
    return torch.stack(hidden), state


def _layers(kind: str) -> Callable[..., Any]:
    def layers(
        watch: Watch,
        value: Tensor,
        state: Any,
        flat: Any,
        has_biases: Any,
        num_layers: int,
        dropout: float,
        training: bool,
        bidirectional: bool,
        batch_first: bool = False,
    ) -> tuple[Tensor, ...]:
        if isinstance(flat, Tensor):  # the variant for packed sequences has the state third
            watch.refuse(has_biases[0], "used on a packed sequence")
        if dropout > 0 and training and num_layers > 1:
            watch.refuse(flat[0], f"in a recurrent layer with dropout = {dropout}")
        states: State = tuple(state) if kind == "lstm" else (state,)
        watch.only_input(value, *states)
        directions = 2 if bidirectional else 1
        each = len(flat) // (num_layers * directions)
        value_TNI = value.transpose(0, 1) if batch_first else value
        last: list[State] = []
        for layer in range(num_layers):
            sides = []
            for direction in range(directions):
                number = layer * directions + direction
                weights = _named(flat[number * each : (number + 1) * each], has_biases)
                start = tuple(part[number] for part in states)
                side, end = _direction(watch, kind, value_TNI, start, weights, backward=direction == 1)
                sides.append(side)
                last.append(end)
            value_TNI = torch.cat(sides, -1)
        output = value_TNI.transpose(0, 1) if batch_first else value_TNI
        return (output, *(torch.stack(parts) for parts in zip(*last, strict=True)))

    return layers


def _named(flat: Sequence[Tensor], has_biases: bool) -> Weights:
    rest = flat[4 if has_biases else 2 :]
    projection = rest[0] if rest else None
    if has_biases:
        return Weights(flat[0], flat[1], flat[2], flat[3], projection)
    return Weights(flat[0], flat[1], None, None, projection)


def _cell(watch: Watch, states: State, linear: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Both linear maps of a cell, each with a tap of its own: of the input and of the last hidden state."""
    value, weight, hidden, bias, hidden_bias = linear
    watch.only_input(*states)
    return watch.linear(value, weight, bias), watch.linear(states[0], hidden, hidden_bias)


def _lstm_cell(watch: Watch, value: Tensor, state: State, *weights: Any) -> State:
    from_input, from_hidden = _cell(watch, tuple(state), (value, *weights))
    return _lstm_gates(from_input + from_hidden, tuple(state))


def _gru_cell(watch: Watch, value: Tensor, state: Tensor, *weights: Any) -> Tensor:
    return _gru_gates(*_cell(watch, (state,), (value, *weights)), (state,))[0]


def _plain_cell(activation: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def cell(watch: Watch, value: Tensor, state: Tensor, *weights: Any) -> Tensor:
        from_input, from_hidden = _cell(watch, (state,), (value, *weights))
        return activation(from_input + from_hidden)

    return cell


LAYERS: Mapping[Any, Callable[..., Any]] = {
    getattr(torch._VF, kind): _layers(kind) for kind in ("rnn_tanh", "rnn_relu", "lstm", "gru")
}
CELLS: Mapping[Any, Callable[..., Any]] = {
    torch._VF.lstm_cell: _lstm_cell,
    torch._VF.gru_cell: _gru_cell,
    torch._VF.rnn_tanh_cell: _plain_cell(torch.tanh),
    torch._VF.rnn_relu_cell: _plain_cell(torch.relu),
}
RECURRENT: Mapping[Any, Callable[..., Any]] = {**LAYERS, **CELLS}
