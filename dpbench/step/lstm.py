"""A long short-term memory over a sequence as one operator, with its backward pass through time written out.

Where torch records each time step by itself, most of the time goes into sending small operators. Here a step is eight
of them, and a step of the backward pass five: what does not depend on later steps is computed for all times at once,
and the gates are kept. For the `ghost` engine, which needs the gradient with respect to the gates at every time and all
hidden states, and maps over examples: those become rows (`vmap`), so that a batch is one operator as well.

Letters: D directions, each with weights of its own, N sequences, T time steps, H hidden units, G = 4H gates in the
order input, forget, candidate, output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NUMERICS = 1


def lstm(driven_DNTG: Tensor, weight_DHG: Tensor, state_DNH: Tensor, cell_DNH: Tensor) -> tuple[Tensor, Tensor]:
    """The hidden states (D, N, T, H), and the last cell (D, N, H).

    `driven_DNTG` is the part of the gates that needs no state, biases included. With s and c the state and the cell
    before a step: [i f g o] = driven + s·weight; c ← σ(f)·c + σ(i)·tanh(g); s ← σ(o)·tanh(c). Exact up to rounding; at
    least one step. Has the first derivative of torch's ordinary backward pass, and neither those of `torch.func` nor a
    second one.

    >>> zero = torch.zeros(1, 2, 3)
    >>> lstm(torch.zeros(1, 2, 5, 12), torch.ones(1, 3, 12), zero, zero)[0].shape
    torch.Size([1, 2, 5, 3])
    """
    states, cell, *_ = _Lstm.apply(driven_DNTG, weight_DHG, state_DNH, cell_DNH)  # type: ignore[no-untyped-call]
    return states, cell


class _Lstm(torch.autograd.Function):
    """Returns gates, cells and their tanh (T, D, N, ...) too, which the backward pass needs."""

    @staticmethod
    def forward(driven_DNTG: Tensor, weight_DHG: Tensor, state_DNH: Tensor, cell_DNH: Tensor) -> tuple[Tensor, ...]:
        hidden = weight_DHG.shape[1]
        gates = driven_DNTG.permute(2, 0, 1, 3).clone(memory_format=torch.contiguous_format)
        cells = gates.new_empty(*gates.shape[:3], hidden)
        bounded, states = torch.empty_like(cells), torch.empty_like(cells)
        parts = (gates, gates[..., : 2 * hidden], *torch.split(gates, hidden, -1), cells, bounded, states)
        state, cell = state_DNH, cell_DNH
        for gate, two, enter, forget, candidate, leave, next_cell, tanh, next_state in zip(
            *(part.unbind(0) for part in parts), strict=True
        ):
            gate.baddbmm_(state, weight_DHG)
            two.sigmoid_()
            candidate.tanh_()
            leave.sigmoid_()
            torch.mul(enter, candidate, out=next_cell)
            cell = next_cell.addcmul_(forget, cell)
            torch.tanh(cell, out=tanh)
            state = torch.mul(leave, tanh, out=next_state)
        return states.permute(1, 2, 0, 3), cell.clone(), gates, cells, bounded

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        _, weight_DHG, state_DNH, cell_DNH = inputs
        states, _, *kept = output
        ctx.mark_non_differentiable(*kept)
        ctx.save_for_backward(weight_DHG, state_DNH, cell_DNH, states, *kept)

    @staticmethod
    def backward(ctx: Any, grad_DNTH: Tensor, grad_cell: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        weight_DHG, state_DNH, cell_DNH, states, gates, cells, bounded = ctx.saved_tensors
        hidden = weight_DHG.shape[1]
        enter, forget, candidate, leave = torch.split(gates, hidden, -1)
        before = torch.cat([cell_DNH[None], cells[:-1]])
        # The derivatives of cell (three) and state (one) by the gates, and of the state by the cell; then the loop
        # multiplies the first four by the gradients of cell and state in place.
        by_gate = torch.cat(
            [
                candidate * enter * (1 - enter),
                before * forget * (1 - forget),
                enter * (1 - candidate.square()),
                bounded * leave * (1 - leave),
            ],
            -1,
        )
        by_cell = leave * (1 - bounded.square())
        shaped = torch.unflatten(by_gate, -1, (4, hidden))
        grad_TDNH, of_transposed = grad_DNTH.permute(2, 0, 1, 3).contiguous(), weight_DHG.mT
        through_state, through_cell = grad_TDNH[-1], grad_cell
        earlier_grads = torch.cat([torch.zeros_like(grad_TDNH[:1]), grad_TDNH[:-1]])
        parts = (by_cell, shaped[..., :3, :], shaped[..., 3, :], forget, by_gate, earlier_grads)
        for of_cell, three, last, kept, gate, grad in zip(*(part.unbind(0)[::-1] for part in parts), strict=True):
            through_cell = torch.addcmul(through_cell, through_state, of_cell)
            three.mul_(through_cell[..., None, :])
            last.mul_(through_state)
            through_cell = through_cell * kept
            through_state = torch.baddbmm(grad, gate, of_transposed)
        of_weight = None
        if ctx.needs_input_grad[1]:
            earlier = torch.cat([state_DNH[:, :, None], states[:, :, :-1]], 2).flatten(1, 2)
            of_weight = earlier.mT @ by_gate.permute(1, 2, 0, 3).flatten(1, 2)
        return by_gate.permute(1, 2, 0, 3), of_weight, through_state, through_cell

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Tensor) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Of one weight the examples become more sequences, of several (runs of a stack) more directions."""
        size, axis = info.batch_size, 0 if in_dims[1] is not None else 1

        def folded(value: Tensor, dim: int | None) -> Tensor:
            value = value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
            return value.movedim(0, axis).flatten(axis, axis + 1)

        driven, weight, *start = (
            value if at == 1 and axis == 1 else folded(value, dim)
            for at, (value, dim) in enumerate(zip(given, in_dims, strict=True))
        )
        found = _Lstm.apply(driven, weight, *start)  # type: ignore[no-untyped-call]
        axes = (axis, axis, axis + 1, axis + 1, axis + 1)
        return tuple(torch.unflatten(value, at, (size, -1)) for value, at in zip(found, axes, strict=True)), axes
