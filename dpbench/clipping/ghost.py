"""Clipped sums without per-example gradients (the Outer engine of jl2021): norms from inputs and output gradients.

One forward and one backward pass give the input of every layer and the gradient with respect to its output. The norms
are computed from these (`_ghost_terms`), and the clipped sum is the sum of the same products times the clip factors, so
no second backward pass is needed. It is exact, also for recurrent layers: they are unrolled in time
(`step/recurrent.py`), with one backward pass through time for the whole batch, an LSTM's written out (`step/lstm.py`).

Norms and sum add the same products in different orders. Where an example's products cancel, they are far larger than
their sum, and their rounding errors could exceed C. If the norms of an example's products add up to more than
`_CANCELS` clip norms after clipping, its gradient is formed, clipped and added by itself; where the engine may not look
(`Examples.looks`), the sum is NaN.

A smoothed loss (`functional.Smoothed`) uses each parameter once at each of its K places: the gradient is a sum of these
uses, and joined they are what a layer with K times as many positions has. No gradient of an example is formed for it.

Every example is a batch of one under `vmap`, so nothing can mix examples. Memory: about that of a plain training step,
with each layer's input and output gradient (twice where places are empty), but no R · B · P gradients. Shared
parameters are exact: their uses are added before the norm is taken. A parameter that is not used has gradient zero. Any
operator with a parameter that the engine does not know is refused by name (`refuse`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.func import functional_call
from torch.func import vmap as over

from dpbench.clipping._ghost_operators import OPERATORS
from dpbench.clipping._ghost_terms import Convolution, Elementwise, Lookup, Product, Term, in_one_go, joined, norms
from dpbench.errors import DpbenchError
from dpbench.step.clipped_sum import (
    Clipped,
    Examples,
    Weight,
    clip_factor,
    clip_weight,
    no_place_is_empty,
    zero_where_empty,
)
from dpbench.step.functional import Network, Smoothed, over_runs, trained
from dpbench.step.operators import Use, Watch
from dpbench.step.recurrent import RECURRENT

NUMERICS = 1

# The rounding error of an example's products is then at most about 2^8 · 2^-24 of C in float32.
_CANCELS = 2.0**8

_KNOWN = {**OPERATORS, **RECURRENT}


def refuse(module: nn.Module, example: Tensor) -> None:
    """Raise DpbenchError that names the first layer which the engine does not support; `example` has no batch axis.

    >>> refuse(nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4)), torch.zeros(4))
    """
    named = trained(module)
    _probe(module, named, lambda leaves: functional_call(module, leaves, (example[None],)))


def numbers(net: Network, example: Tensor, target: Tensor) -> int:
    """How many numbers one place of a batch takes: the inputs of the layers, and the gradients of their outputs.

    `example` has no batch axis; its `target` does not matter. Raises DpbenchError for what `refuse` names.
    """
    del target
    named = {name: value.detach() for name, value in trained(net.module).items()}
    seen = _probe(net.module, named, lambda leaves: functional_call(net.module, leaves, (example[None],)))
    return sum(value.numel() for value in seen.inputs) + sum(math.prod(shape) for shape in seen.tap_shapes)


def clipping(
    net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int, weight: Weight = clip_weight
) -> Clipped:
    """The clipped sum of each run's batch, `chunk` places of the batch at a time.

    Raises DpbenchError for what `refuse` names.
    """
    named = net.split(theta_RP)
    shifted, seen = _uses(net, named, examples)
    total = {name: torch.zeros_like(value) for name, value in named.items()}
    all_norms, losses = [], []
    for start in range(0, examples.mask_RB.shape[1], chunk):
        part = examples.part(start, start + chunk)
        norm_RB, loss_RB = _add_part(total, net, shifted, seen, part, clip_R, weight)
        all_norms.append(norm_RB)
        losses.append(loss_RB)
    return Clipped(net.join(total), torch.cat(all_norms, 1), torch.cat(losses, 1))


def _add_part(
    total: dict[str, Tensor],
    net: Network,
    shifted: Sequence[Mapping[str, Tensor]],
    seen: Watch,
    part: Examples,
    clip_R: Tensor,
    weight: Weight,
) -> tuple[Tensor, Tensor]:
    """Add the clipped sum of some places; their norms and losses (R, B)."""
    terms, loss_RB = _recorded_terms(net, shifted, part, seen)
    places = part.mask_RB.numel()
    each_PQ = [norms(pieces, places, part.looks) for pieces in terms.values()]
    flat_Q = torch.linalg.vector_norm(torch.stack(each_PQ), dim=0) if each_PQ else loss_RB.new_zeros(places)
    norm_RB = flat_Q.reshape(part.mask_RB.shape)
    factor_RB = clip_factor(norm_RB, clip_R, part.mask_RB, weight)
    size_RB = sum((piece.size_RB for pieces in terms.values() for piece in pieces), start=norm_RB.double() * 0)
    cancels_RB = factor_RB * size_RB > _CANCELS * clip_R[:, None]
    if part.looks:
        factor_RB = torch.where(cancels_RB, 0.0, factor_RB)
    else:  # whatever the weight of a norm that is NaN
        factor_RB = torch.where(cancels_RB | norm_RB.isnan(), torch.nan, factor_RB)
    for name, pieces in terms.items():
        for piece in pieces:
            total[name] += piece.weighted(factor_RB).reshape(total[name].shape)
    if part.looks and bool(cancels_RB.any()):
        _add_formed(total, norm_RB, terms, cancels_RB, clip_R, weight)
    return norm_RB, loss_RB


def recorded_terms(net: Network, named: dict[str, Tensor], part: Examples) -> tuple[dict[str, list[Term]], Tensor]:
    """The terms of each parameter's gradients and the losses (R, B) of some places: for rules with sums of their own.

    Raises DpbenchError for what `refuse` names.
    """
    shifted, seen = _uses(net, named, part)
    return _recorded_terms(net, shifted, part, seen)


def _uses(net: Network, named: dict[str, Tensor], examples: Examples) -> tuple[Sequence[Mapping[str, Tensor]], Watch]:
    """The parameters of every place of a smoothed loss (else one place), and how a call uses them."""
    shifted = net.shifted(named) if isinstance(net, Smoothed) else [named]
    one = {name: value[0] for name, value in named.items()}
    first = examples.inputs[0, 0][None]
    return shifted, _probe(net.module, one, lambda leaves: functional_call(net.module, leaves, (first,)))


def _add_formed(
    total: dict[str, Tensor],
    norm_RB: Tensor,
    terms: Mapping[str, Sequence[Term]],
    chosen_RB: Tensor,
    clip_R: Tensor,
    weight: Weight,
) -> None:
    """Add the clipped gradients of the chosen examples, each formed before it is clipped, and correct their norms."""
    step = in_one_go(sum(piece.elements for pieces in terms.values() for piece in pieces), norm_RB.device)
    for run, chosen_B in enumerate(chosen_RB):
        for place_B in chosen_B.nonzero().flatten().split(step):
            rows = run * len(chosen_B) + place_B
            formed = {
                name: sum((piece.gradients(rows) for piece in pieces[1:]), start=pieces[0].gradients(rows))
                for name, pieces in terms.items()
            }
            norm_B = torch.stack([torch.linalg.vector_norm(g, dim=1) for g in formed.values()]).norm(dim=0)
            factor_1B = clip_factor(norm_B[None], clip_R[run, None], torch.ones_like(place_B[None]) > 0, weight)
            for name, g in formed.items():
                total[name][run] += (factor_1B @ g).reshape(total[name][run].shape)
            norm_RB[run, place_B] = norm_B


def _owners(module: nn.Module) -> dict[str, str]:
    """The layer of each parameter, for messages."""
    found = {}
    for name, _ in module.named_parameters():
        layer = name.rpartition(".")[0]
        found[name] = f"layer {layer or 'top'!r} ({type(module.get_submodule(layer)).__name__})"
    return found


def _probe(module: nn.Module, named: Mapping[str, Tensor], call: Callable[[dict[str, Tensor]], Tensor]) -> Watch:
    """How a call on one example uses the parameters. Raises DpbenchError for an operator that is not known.

    The backward pass of an `autograd.Function` does not use taps; the graph shows which parameters it gets.
    """
    leaves = {name: value.detach().requires_grad_() for name, value in named.items()}
    watch = Watch(_KNOWN, _owners(module), leaves, None)
    with torch.enable_grad(), watch:
        output = call(leaves)
    watch.inputs_are_kept()
    nodes, done = [output.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in done:
            continue
        done.add(node)
        for following, _ in node.next_functions:
            variable = getattr(following, "variable", None)
            if isinstance(node, FunctionCtx) and variable is not None and watch.is_parameter(variable):
                watch.refuse(variable, f"used by {type(node).__name__.removesuffix('Backward')}, an autograd.Function")
            nodes.append(following)
    return watch


def _recorded_terms(
    net: Network, shifted: Sequence[Mapping[str, Tensor]], part: Examples, seen: Watch
) -> tuple[dict[str, list[Term]], Tensor]:
    """The terms of each parameter that is used, and the losses (R, B), of the mean loss over some places.

    A smoothed loss uses every parameter once at each of its places; the gradient is the sum of these uses.
    """
    terms: dict[str, list[Term]] = {}
    total_RB = torch.zeros((), device=part.mask_RB.device)
    full = no_place_is_empty(part.mask_RB)
    for named in shifted:
        uses, *found = _recorded(net, named, part, seen)
        if not full:
            found = [[zero_where_empty(value, part.mask_RB) for value in values] for values in found]
        inputs, gradients, (loss_RB,) = found
        if len(shifted) > 1:
            gradients = [value / len(shifted) for value in gradients]
        for name, pieces in _terms(uses, inputs, gradients).items():
            terms.setdefault(name, []).extend(pieces)
        total_RB = total_RB + loss_RB
    return {name: joined(pieces) for name, pieces in terms.items()}, total_RB / len(shifted)


def _recorded(
    net: Network, named: Mapping[str, Tensor], part: Examples, seen: Watch
) -> tuple[Sequence[Use], Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    """The uses; of each its inputs (R, B, ...); of each tap the gradient (R, B, ...); and, alone, the losses (R, B).

    Raises DpbenchError if the model uses its parameters differently than in the first call.
    """
    uses: list[Use] = []
    plain = net.plain if isinstance(net, Smoothed) else net

    def loss(one: dict[str, Tensor], taps: Sequence[Tensor], example: Tensor, target: Tensor) -> Any:
        watch = Watch(_KNOWN, seen.owners, one, taps)
        value = plain.example_loss(one, example, target, watch)
        uses.extend(watch.uses)
        if watch.uses != seen.uses or watch.tap_shapes != seen.tap_shapes:
            raise DpbenchError("clipping engine ghost: the model uses its parameters differently in different calls")
        return value, tuple(watch.inputs)

    def of_run(one: dict[str, Tensor], inputs_B: Tensor, targets_B: Tensor, *taps_B: Tensor) -> Any:
        return over(loss, in_dims=(None, 0, 0, 0))(one, taps_B, inputs_B, targets_B)

    zero = next(iter(named.values())).new_zeros(())
    # Views of one zero: they take no memory.
    taps = [zero.expand(*part.mask_RB.shape, *shape).requires_grad_() for shape in seen.tap_shapes]
    constant = {name: value.detach() for name, value in named.items()}
    with torch.enable_grad():
        # Each example is alone in the transform; the backward pass of them all is the ordinary one, which is faster.
        loss_RB, inputs = over_runs(of_run, constant, part.inputs, part.targets, *taps)
        gradients = torch.autograd.grad(loss_RB.sum(), taps, allow_unused=True, materialize_grads=True)
    return uses, [value.detach() for value in inputs], gradients, [loss_RB.detach()]


def _terms(uses: Sequence[Use], inputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> dict[str, list[Term]]:
    """The terms of each parameter that is used."""
    terms: dict[str, list[Term]] = {}
    for use in uses:
        g = gradients[use.tap]
        a = inputs[use.input] if use.input >= 0 else g
        terms.setdefault(use.parameter, []).append(_term(use, a, g))
    return terms


def _term(use: Use, a: Tensor, g: Tensor) -> Term:
    """The term of one use, from its input and the gradient with respect to its output (shapes: see `Use`)."""
    runs, places = g.shape[:2]
    if use.kind == "linear":
        return Product(*(value.reshape(runs, places, 1, -1, value.shape[-1]) for value in (a, g)))
    if use.kind == "product":  # the parameter is (G, I, O): a and g change places
        return Product(g, a)
    if use.kind == "convolution":
        return Convolution(a, g, use.size, use.stride, use.dilation, use.groups)
    if use.kind == "embedding":
        kept = a != (-1 if use.padding_index is None else use.padding_index)
        g = torch.where(kept[..., None], g, torch.zeros_like(g))
        return Lookup(a.reshape(runs, places, -1), g.reshape(runs, places, -1, g.shape[-1]), use.size[0])
    each = a * g if use.kind == "scale" else g
    size = (*[1] * (each.dim() - 2 - len(use.size)), *use.size)
    return Elementwise(each.sum_to_size(runs, places, *size).reshape(runs, places, -1))
