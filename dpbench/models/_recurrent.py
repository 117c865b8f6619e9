"""Recurrent layers from elementary operations, which every transform of torch.func supports.

torch's fused LSTM has no forward mode and no batching rule for stacked parameters; here a step is a product, sigmoids
and hyperbolic tangents, which have both. Where no transform is at work torch's own is used. Words of a sequence come as
numbers in a float tensor, as every input does.

Letters: B batch, T places of the sequence, I inputs, H hidden units, D directions (2), V words, E embedding width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode


class WordEmbedding(nn.Module):
    """A row of the table `weight` (V, E) for every word number: inputs (B, T) floats, outputs (B, T, E).

    A number that is not one of 0..V-1, or not whole, or NaN, gives NaN in its record's outputs, because a check that
    raises would look at data inside a transform; training stops at NaN. Uniform in ±0.05 at the start, as in Keras.
    """

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(words, width))
        nn.init.uniform_(self.weight, -0.05, 0.05)

    def forward(self, inputs_BT: Tensor) -> Tensor:
        return look_up(self.weight, inputs_BT)


def look_up(table_VE: Tensor, inputs_BT: Tensor) -> Tensor:
    """Rows of a table by word numbers, which are floats; NaN for a number without a row.

    >>> look_up(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0, 0.0, 2.0]]))[0, :, 0]
    tensor([2., 1., nan])
    """
    known_BT = (inputs_BT >= 0) & (inputs_BT < table_VE.shape[0]) & (inputs_BT == inputs_BT.floor())
    rows_BTE = nn.functional.embedding(torch.where(known_BT, inputs_BT, 0.0).long(), table_VE)
    return torch.where(known_BT[..., None], rows_BTE, torch.nan)


class BidirectionalLSTM(nn.Module):
    """A long short-term memory that reads a sequence both ways: inputs (B, T, I), outputs (B, 2H), the last states.

    With `sequences` the outputs are all states (B, T, 2H), those of each place side by side.
    With the gates in the order input, forget, candidate, output, and s the state, c the cell:
    [i f g o] = x_t W + s U + b;  c ← sigmoid(f) c + sigmoid(i) tanh(g);  s ← sigmoid(o) tanh(c).
    Both start at zero; the second direction reads from the last place to the first; no place is masked.

    Parameters: `weight_input` (D, I, 4H), `weight_state` (D, H, 4H), `bias` (D, 4H), so 8H(I + H + 1) numbers (one
    bias, as in Keras; torch's LSTM has two). They start as in Keras: Glorot-uniform, orthogonal, and zero but one for
    the forget gate. Source: Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000.
    """

    loops_over_time = True

    def __init__(self, inputs: int, hidden: int, *, sequences: bool = False) -> None:
        super().__init__()
        self.hidden, self.sequences = hidden, sequences
        self.weight_input = nn.Parameter(torch.empty(2, inputs, 4 * hidden))
        self.weight_state = nn.Parameter(torch.empty(2, hidden, 4 * hidden))
        self.bias = nn.Parameter(torch.zeros(2, 4 * hidden))
        for direction in range(2):
            nn.init.xavier_uniform_(self.weight_input[direction])
            nn.init.orthogonal_(self.weight_state[direction])
        nn.init.ones_(self.bias[:, hidden : 2 * hidden])

    def forward(self, inputs_BTI: Tensor) -> Tensor:
        if _by_torch_alone():
            return self._fused(inputs_BTI)
        both_DBTI = torch.stack([inputs_BTI, inputs_BTI.flip(1)])
        # the part of the gates that needs no state, for all places at once
        driven_DBT4H = (both_DBTI.flatten(1, 2) @ self.weight_input + self.bias[:, None]).reshape(
            2, *inputs_BTI.shape[:2], 4 * self.hidden
        )
        watched = getattr(_get_current_function_mode(), "lstm", None)  # type: ignore[no-untyped-call]
        if watched is not None:  # an engine that looks at every use of a parameter has the loop as one operator
            states_DBTH = watched(driven_DBT4H, self.weight_state)
            return _side_by_side(states_DBTH) if self.sequences else torch.cat([*states_DBTH[:, :, -1]], -1)
        state_DBH = torch.zeros_like(driven_DBT4H[:, :, 0, : self.hidden])
        cell_DBH = torch.zeros_like(state_DBH)
        states: list[Tensor] = []
        for driven_DB4H in driven_DBT4H.unbind(2):
            gates_DB4H = driven_DB4H + state_DBH @ self.weight_state
            enter, forget, candidate, leave = gates_DB4H.chunk(4, -1)
            cell_DBH = forget.sigmoid() * cell_DBH + enter.sigmoid() * candidate.tanh()
            state_DBH = leave.sigmoid() * cell_DBH.tanh()
            if self.sequences:
                states.append(state_DBH)
        if self.sequences:
            return _side_by_side(torch.stack(states, 2))
        forward_BH, backward_BH = state_DBH.unbind(0)
        return torch.cat([forward_BH, backward_BH], -1)

    def _fused(self, inputs_BTI: Tensor) -> Tensor:
        """The same by torch's own LSTM, whose second bias is zero.

        cuDNN takes no transposed views as weights, and goes back only from what it computed to train.
        """
        none_DBH = inputs_BTI.new_zeros(2, len(inputs_BTI), self.hidden)
        no_bias = torch.zeros_like(self.bias[0])
        weights = [
            part
            for direction in range(2)
            for part in (
                self.weight_input[direction].T.contiguous(),
                self.weight_state[direction].T.contiguous(),
                self.bias[direction],
                no_bias,
            )
        ]
        start = (none_DBH, none_DBH)
        states_BT2H, state_DBH, _ = torch.lstm(
            inputs_BTI, start, weights, True, 1, 0.0, torch.is_grad_enabled(), True, True
        )
        return states_BT2H if self.sequences else torch.cat([state_DBH[0], state_DBH[1]], -1)


def _side_by_side(states_DBTH: Tensor) -> Tensor:
    """(B, T, 2H); the second direction's states come from the last place to the first."""
    forward_BTH, backward_BTH = states_DBTH.unbind(0)
    return torch.cat([forward_BTH, backward_BTH.flip(1)], -1)


def _by_torch_alone() -> bool:
    """Whether nothing looks at the operators of a forward pass: no transform of torch.func, no compiler, no engine."""
    mode = _get_current_function_mode()  # type: ignore[no-untyped-call]
    seen = mode is not None and not getattr(mode, "outside_torch_alone", False)
    seen = seen or forward_ad._current_level >= 0
    return not seen and not torch.compiler.is_compiling() and torch._C._functorch.maybe_current_level() is None
