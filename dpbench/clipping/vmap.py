"""Per-example gradients by `torch.func.vmap`, clipped inside each chunk (the Multiple engine of jl2021).

Memory: chunk · R · P floats. Works for every module whose operators vmap supports. `Compiled` is the same with the sums
of full chunks compiled by `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import grad_and_value
from torch.func import vmap as over

from dpbench.step.clipped_sum import (
    Clipped,
    Examples,
    Weight,
    clip_factor,
    clip_weight,
    no_place_is_empty,
    zero_where_empty,
)
from dpbench.step.functional import Network, over_runs

NUMERICS = 1

MOST_SIZES = 6  # torch gives up after eight of one function

Part = tuple[dict[str, Tensor], Tensor, Tensor]  # of one chunk: the sum by parameter (R, 1, size), norms, losses (R, B)


def clipping(
    net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int, weight: Weight = clip_weight
) -> Clipped:
    """The clipped sum of each run's batch, `chunk` places of the batch at a time."""
    return _in_chunks(net, theta_RP, examples, chunk, lambda named, part: _sum(net, weight, named, part, clip_R))


class Compiled:
    """The engine for one network and one rule's weight, with full chunks compiled; the rest of a batch is not.

    So there is one shape to compile, in the first call (a quarter of a minute or more). Any other network or weight is
    computed as by `clipping`, and so is all that follows where torch cannot compile: `refusal` then says why.

    On a GPU chunks of all sizes are compiled, which are few there (`stages.most_places`), each sent as one CUDA graph,
    since to send its operators one by one takes longer than they do. More sizes than `MOST_SIZES` are not compiled.
    """

    def __init__(self, net: Network, weight: Weight = clip_weight) -> None:
        self._net, self._weight, self.refusal = net, weight, not_compiled(net.module)
        torch.compiler.reset()  # else torch gives up after eight networks of one process
        self._sizes: set[tuple[int, ...]] = set()
        self._as_graph = any(value.is_cuda for value in net.module.parameters())
        mode = "reduce-overhead" if self._as_graph else None
        self._full = torch.compile(partial(_each, net, weight=weight), fullgraph=True, dynamic=False, mode=mode)

    def __call__(
        self,
        net: Network,
        theta_RP: Tensor,
        examples: Examples,
        clip_R: Tensor,
        chunk: int,
        weight: Weight = clip_weight,
    ) -> Clipped:
        def part_sum(named: dict[str, Tensor], part: Examples) -> Part:
            known, size = net is self._net and weight == self._weight, tuple(part.mask_RB.shape)
            fits = size in self._sizes or len(self._sizes) < MOST_SIZES
            if known and fits and not self.refusal and (self._as_graph or size[1] == chunk):
                self._sizes.add(size)
                # Copies, because a view's strides depend on the batch, and each would be compiled.
                given = part.inputs, part.targets, part.mask_RB
                own = (value.clone(memory_format=torch.contiguous_format) for value in given)
                try:
                    found: Part = self._full(named, *own, clip_R)
                    return _copied(found) if self._as_graph else found
                except Exception as error:
                    if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                        raise
                    self.refusal = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            return _sum(net, weight, named, part, clip_R)

        return _in_chunks(net, theta_RP, examples, chunk, part_sum)

    def numbers(self, net: Network, example: Tensor, target: Tensor) -> int:
        """Of a place: eight gradients, because a compiled chunk is the fastest where it and its activations fit."""
        del example, target
        return 8 * net.size


def _copied(part: Part) -> Part:
    """The part in memory of its own, since the next call of a CUDA graph writes where this one did."""
    pieces, norm_RB, loss_RB = part
    return {name: piece.clone() for name, piece in pieces.items()}, norm_RB.clone(), loss_RB.clone()


def not_compiled(module: nn.Module) -> str:
    """Why a module is not compiled; "" for most.

    >>> not_compiled(nn.Linear(2, 2)), not_compiled(nn.LSTM(2, 2))[:16]
    ('', 'recurrent layers')
    """
    unrolled = any(isinstance(layer, nn.RNNBase | nn.RNNCellBase) for layer in module.modules())
    return "recurrent layers are unrolled in time, and to compile that takes many minutes" if unrolled else ""


def _in_chunks(
    net: Network,
    theta_RP: Tensor,
    examples: Examples,
    chunk: int,
    part_sum: Callable[[dict[str, Tensor], Examples], Part],
) -> Clipped:
    named = net.split(theta_RP)
    total: dict[str, Tensor] = {}
    norms, losses = [], []
    for start in range(0, examples.mask_RB.shape[1], chunk):
        pieces, norm_RB, loss_RB = part_sum(named, examples.part(start, start + chunk))
        total = {name: total[name] + piece if name in total else piece for name, piece in pieces.items()}
        norms.append(norm_RB)
        losses.append(loss_RB)
    return Clipped(net.join(total), torch.cat(norms, 1), torch.cat(losses, 1))


def _sum(net: Network, weight: Weight, named: dict[str, Tensor], part: Examples, clip_R: Tensor) -> Part:
    full = no_place_is_empty(part.mask_RB)
    return _each(net, named, part.inputs, part.targets, part.mask_RB, clip_R, weight, full)


def _each(
    net: Network,
    named: dict[str, Tensor],
    inputs: Tensor,
    targets: Tensor,
    mask_RB: Tensor,
    clip_R: Tensor,
    weight: Weight = clip_weight,
    full: bool = False,
) -> Part:
    """The clipped sum of one chunk; `full`: no place is empty."""
    per_example = over(grad_and_value(net.example_loss), in_dims=(None, 0, 0))
    gradients, loss_RB = over_runs(per_example, named, inputs, targets)
    flat = {name: g.reshape(*g.shape[:2], named[name][0].numel()) for name, g in gradients.items()}
    if not full:
        flat = {name: zero_where_empty(g, mask_RB) for name, g in flat.items()}
        loss_RB = zero_where_empty(loss_RB, mask_RB)
    norm_RB = torch.stack([torch.linalg.vector_norm(g, dim=2) for g in flat.values()]).norm(dim=0)
    factor_R1B = clip_factor(norm_RB, clip_R, mask_RB, weight)[:, None, :]
    return {name: torch.bmm(factor_R1B, g) for name, g in flat.items()}, norm_RB, loss_RB
