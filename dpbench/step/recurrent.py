"""Recurrent layers unrolled in time, for torch.func and, with a tap on every product with a weight, the ghost engine.

The fused kernels do not give the hidden states that the recurrent weights multiply, and have no vmap rule and no
forward mode. Here each layer and direction is one linear map of the whole sequence and one loop over time; one backward
pass through the loop, all examples at once, gives the gradient at every time step. With h_t the input of the recurrent
weight at time t and g_t the gradient with respect to its output, the gradient of an example is the sum of g_t h_tᵀ over
t, so norms are exact. Formulas: torch's documentation of RNN, LSTM (with projections) and GRU.

The module's own Python code runs with its own weights, so every option of `nn.RNN`, `nn.LSTM`, `nn.GRU` and their cells
is supported: layers, directions, projections, biases or none, batches or single sequences, a first state or none.
Packed sequences are refused. PReLU is replaced too: torch's backward pass is wrong for a stack of runs.
Letters: T time steps, N sequences of one example (always 1 here), H hidden units, G gates times hidden units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dpbench.errors import DpbenchError
from dpbench.step.lstm import lstm
from dpbench.step.operators import Watch

NUMERICS = 1

LOOPS = "loops_over_time"  # an attribute of layers that are a loop over time where something looks at their operators

State = tuple[Tensor, ...]  # (h,) or (h, c), each (N, H)


class WrittenOut(TorchFunctionMode):
    """Replaces the operators of `STEPS` inside a transform of torch.func; outside, torch's own are faster.

    >>> from torch import nn
    >>> with WrittenOut():
    ...     torch.func.vmap(lambda x: nn.LSTM(3, 2)(x)[0], randomness="same")(torch.zeros(7, 5, 3)).shape
    torch.Size([7, 5, 2])
    """

    outside_torch_alone = True  # says to modules that outside such a transform it changes nothing

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        if func in STEPS and any(map(_transformed, tree_leaves(args))):
            func = STEPS[func]
        return func(*args, **(kwargs or {}))


def loops(module: nn.Module) -> int:
    """How many layers are a loop over time where something looks at their operators; torch has a kernel for the whole.

    >>> loops(nn.Linear(2, 2)), loops(nn.Sequential(nn.LSTM(2, 2)))
    (0, 1)
    """
    return sum(isinstance(layer, nn.RNNBase) or getattr(layer, LOOPS, False) for layer in module.modules())


def _transformed(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(torch._C._functorch.is_functorch_wrapped_tensor(value))


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
    watch: Watch, kind: str, value_TNI: Tensor, state: State, flat: list[Tensor], has_biases: bool, backward: bool
) -> tuple[Tensor, State]:
    """The hidden states (T, N, H) of one layer and direction, and its last state.

    `flat` holds the weights of input and hidden state, both biases or none, and the projection weight of an LSTM.
    A GRU's new gate multiplies the recurrent part, so that part has a tap of its own; in the others the two parts are
    added and have the same gradient.
    """
    weight, hidden_weight, *rest = flat
    bias, hidden_bias = rest[:2] if has_biases else (None, None)
    (projection,) = rest[2 if has_biases else 0 :] or (None,)
    from_input_TNG = watch.linear(value_TNI, weight, bias)
    steps, examples = from_input_TNG.shape[:2]
    tap = len(watch.tap_shapes) - 1
    if kind == "lstm" and projection is None and watch.names:
        driven_TNG = from_input_TNG if hidden_bias is None else from_input_TNG + hidden_bias.detach()
        driven_TNG = driven_TNG.flip(0) if backward else driven_TNG
        start = [part.expand(examples, -1)[None] for part in state]
        states_1NTH, cell_1NH = lstm(driven_TNG.transpose(0, 1)[None], hidden_weight.detach().T[None], *start)
        states_TNH, state = states_1NTH[0].transpose(0, 1), (states_1NTH[0, :, -1], cell_1NH[0])
        before_TNH = torch.cat([start[0], states_TNH[:-1]])
        turned = [part.flip(0) if backward else part for part in (before_TNH, states_TNH)]
        watch.record("linear", hidden_weight, tap, turned[0])
        watch.record_bias(hidden_bias, tap)
        return turned[1], state
    extra: Tensor | None = None
    if kind == "gru":
        extra, tap = watch.reserve(from_input_TNG.shape)
    out, out_tap = None, -1
    if projection is not None:
        out, out_tap = watch.reserve((steps, examples, len(projection)))
    # Not [time]: the backward pass of T selections is T tensors of T steps each.
    parts = from_input_TNG.unbind(0)
    extras = [] if extra is None else extra.unbind(0)
    outs = [] if out is None else out.unbind(0)
    before, unprojected, hidden = [], [], []
    order = range(steps - 1, -1, -1) if backward else range(steps)
    for time in order:
        before.append(state[0].expand(examples, -1))
        from_hidden = F.linear(state[0], hidden_weight, hidden_bias)
        if kind == "gru":
            from_hidden = from_hidden + extras[time] if extras else from_hidden
            state = _gru_gates(parts[time], from_hidden, state)
        elif kind == "lstm":
            state = _lstm_gates(parts[time] + from_hidden, state)
        else:
            activation = torch.tanh if kind == "rnn_tanh" else torch.relu
            state = (activation(parts[time] + from_hidden),)
        if projection is not None:
            unprojected.append(state[0])
            projected = F.linear(state[0], projection)
            state = (projected + outs[time] if outs else projected, *state[1:])
        hidden.append(state[0])
    if backward:
        before, unprojected, hidden = before[::-1], unprojected[::-1], hidden[::-1]
    watch.record("linear", hidden_weight, tap, torch.stack(before))
    watch.record_bias(hidden_bias, tap)
    if projection is not None:
        watch.record("linear", projection, out_tap, torch.stack(unprojected))
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
        if isinstance(flat, Tensor):  # the variant for packed sequences has the sizes second and the state third
            watch.refuse(has_biases[0], "used on a packed sequence") if watch.names else _packed()
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
                weights = list(flat[number * each : (number + 1) * each])
                start = tuple(part[number] for part in states)
                side, end = _direction(watch, kind, value_TNI, start, weights, has_biases, backward=direction == 1)
                sides.append(side)
                last.append(end)
            value_TNI = torch.cat(sides, -1)
        output = value_TNI.transpose(0, 1) if batch_first else value_TNI
        return (output, *(torch.stack(parts) for parts in zip(*last, strict=True)))

    return layers


def _cell(watch: Watch, states: State, value: Tensor, weights: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """Both linear maps of a cell, each with a tap of its own: of the input and of the last hidden state."""
    weight, hidden, bias, hidden_bias = weights
    watch.only_input(*states)
    return watch.linear(value, weight, bias), watch.linear(states[0], hidden, hidden_bias)


def _lstm_cell(watch: Watch, value: Tensor, state: State, *weights: Any) -> State:
    from_input, from_hidden = _cell(watch, tuple(state), value, weights)
    return _lstm_gates(from_input + from_hidden, tuple(state))


def _gru_cell(watch: Watch, value: Tensor, state: Tensor, *weights: Any) -> Tensor:
    return _gru_gates(*_cell(watch, (state,), value, weights), (state,))[0]


def _plain_cell(
    activation: Callable[[Tensor], Tensor], watch: Watch, value: Tensor, state: Tensor, *weights: Any
) -> Tensor:
    from_input, from_hidden = _cell(watch, (state,), value, weights)
    return activation(from_input + from_hidden)


def _untapped(written_out: Callable[..., Any], *given: Any) -> Any:
    """The unrolled layer of the ghost engine, without taps."""
    return written_out(Watch({}, {}, {}, None), *given)


def _packed(*_: Any) -> Any:
    raise DpbenchError("a packed sequence: give whole sequences")


def _prelu(input: Tensor, weight: Tensor) -> Tensor:
    """At 0 the derivative is the weight, as in torch's first backward pass; torch's other derivatives differ there."""
    if weight.numel() > 1:
        weight = weight.reshape(-1, *[1] * (input.dim() - 2))
    return torch.where(input > 0, input, weight * input)


RECURRENT: Mapping[Any, Callable[..., Any]] = {
    **{getattr(torch._VF, kind): _layers(kind) for kind in ("rnn_tanh", "rnn_relu", "lstm", "gru")},
    torch._VF.lstm_cell: _lstm_cell,
    torch._VF.gru_cell: _gru_cell,
    torch._VF.rnn_tanh_cell: partial(_plain_cell, torch.tanh),
    torch._VF.rnn_relu_cell: partial(_plain_cell, torch.relu),
}
STEPS: Mapping[Any, Callable[..., Any]] = {
    **{fused: partial(_untapped, written_out) for fused, written_out in RECURRENT.items()},
    torch._VF._pack_padded_sequence: _packed,
    **dict.fromkeys((F.prelu, torch.prelu, Tensor.prelu), _prelu),
}
