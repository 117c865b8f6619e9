"""Per-example gradients as sums of products: their norms and their weighted sums from inputs and output gradients.

A term is the contribution of one use of a parameter to its gradient. For most layers a gradient is a sum over T
positions of outer products g_t a_tᵀ (a the input, g the gradient with respect to the output), so its norm can be
computed without the gradient:

| positions and size | the squared norm is |
| --- | --- |
| T = 1 | the product of the squared norms of a and g |
| 2T² at least as large as the weight | the norm of the gradient, formed for a few examples at a time |
| else | the sum over t, s of (a_t·a_s)(g_t·g_s) |

The last line loses accuracy where the products cancel: its error is about u S², with S = Σ_t |a_t||g_t|. It is computed
in float64, and examples whose result is below a fixed part of S² are computed by the line above instead, or NaN where
nothing may be looked at. So no norm, and thereby no sensitivity, is too small.
Letters: R runs, B batch, Q = R·B, T positions, I inputs, O outputs, G groups, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

NUMERICS = 1

# Elements of what is formed for a few examples at a time, what caches hold of a CPU; the results do not depend on it.
_ELEMENTS = 2**20
_ELEMENTS_OF_A_GPU = 2**28  # 1 GB of float32: few operators, for each takes longer to be sent than to run


class Term(Protocol):
    """The contribution of one use of a parameter to every example's gradient; the parameter is flat (P)."""

    @property
    def a(self) -> Tensor:
        """What the parameter meets in each run and example, (R, B, ...)."""
        ...

    @property
    def elements(self) -> int:
        """How many numbers `gradients` forms for one example."""
        ...

    @property
    def size_RB(self) -> Tensor:
        """An upper bound, for each example, of the sum of the norms of what `weighted` adds with factor 1; float64."""
        ...

    def gradients(self, rows: Tensor | slice) -> Tensor:
        """The gradients of some examples, (Q', P)."""
        ...

    def weighted(self, factor_RB: Tensor) -> Tensor:
        """The sum over the batch of factor times gradient, (R, P)."""
        ...

    def projected(self, vectors_RJP: Tensor) -> Tensor:
        """The products of each example's gradient with J vectors of its run, (R, J, B)."""
        ...


@dataclass(frozen=True)
class Product:
    """A linear map: a (R, B, G, T, I), g (R, B, G, T, O); the parameter is (G, O, I)."""

    a: Tensor
    g: Tensor

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(G, T, I, O)"""
        return self.a.shape[2], self.a.shape[3], self.a.shape[4], self.g.shape[4]

    @property
    def elements(self) -> int:
        return self.a.shape[2] * self.a.shape[-1] * self.g.shape[-1]

    @property
    def size_RB(self) -> Tensor:
        """Σ_t |a_t||g_t| ≤ |a||g|, by Cauchy and Schwarz."""
        return _size(self.a) * _size(self.g)

    def pairs(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """a (Q', G, T, I) and g (Q', G, T, O)."""
        return self.a.flatten(0, 1)[rows], self.g.flatten(0, 1)[rows]

    def gradients(self, rows: Tensor | slice) -> Tensor:
        a, g = self.pairs(rows)
        return (g.mT @ a).flatten(1)

    def weighted(self, factor_RB: Tensor) -> Tensor:
        g = _scaled(self.g, factor_RB)
        # Of one group at a time, because to join batch and positions takes a copy where there are several.
        sums = [g[:, :, at].flatten(1, 2).mT @ self.a[:, :, at].flatten(1, 2) for at in range(self.a.shape[2])]
        return torch.stack(sums, 1).flatten(1)

    def projected(self, vectors_RJP: Tensor) -> Tensor:
        groups, positions, inputs, outputs = self.shape
        runs, count, _ = vectors_RJP.shape
        if _forms(positions, count):
            return _of_formed(self, self.g.shape[1], vectors_RJP)
        weights = vectors_RJP.reshape(runs, count, groups, outputs, inputs)
        a, g = (value.transpose(1, 2).flatten(2, 3) for value in (self.a, self.g))  # (R, G, B·T, ...)
        found = [((a @ weights[:, j].mT) * g).sum((1, 3)) for j in range(count)]  # (R, B·T), with the sum over groups
        return torch.stack(found, 1).reshape(runs, count, -1, positions).sum(-1)


@dataclass(frozen=True)
class Convolution:
    """A convolution without padding: a (R, B, N, C, *space), g (R, B, N, O, *space); the parameter is `size`."""

    a: Tensor
    g: Tensor
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(G, T, I, O)"""
        positions = self.g.shape[2] * math.prod(self.g.shape[4:])
        return self.groups, positions, math.prod(self.size[1:]), self.size[0] // self.groups

    @property
    def elements(self) -> int:
        groups, positions, inputs, outputs = self.shape
        return groups * inputs * (positions + outputs)

    @property
    def size_RB(self) -> Tensor:
        """As for `Product`; each input is in at most as many patches as the kernel has places."""
        return math.sqrt(math.prod(self.size[2:])) * _size(self.a) * _size(self.g)

    def pairs(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """The patches that the kernel sees (Q', G, T, I), and g (Q', G, T, O)."""
        groups, positions, inputs, outputs = self.shape
        a, g = self.a.flatten(0, 1)[rows], self.g.flatten(0, 1)[rows]
        axes = len(self.stride)
        for axis, (kernel, step, spread) in enumerate(zip(self.size[2:], self.stride, self.dilation, strict=True)):
            a = a.unfold(3 + axis, spread * (kernel - 1) + 1, step)[..., ::spread]
        # (Q', N, C, *out, *kernel) -> (Q', G, N, *out, C/G, *kernel)
        a = torch.unflatten(a, 2, (groups, -1))
        space, kernels = range(4, 4 + axes), range(4 + axes, 4 + 2 * axes)
        a = a.permute(0, 2, 1, *space, 3, *kernels).reshape(-1, groups, positions, inputs)
        g = torch.unflatten(g, 2, (groups, -1)).permute(0, 2, 1, *range(4, 4 + axes), 3)
        return a, g.reshape(-1, groups, positions, outputs)

    def gradients(self, rows: Tensor | slice) -> Tensor:
        a, g = self.pairs(rows)
        return (g.mT @ a).flatten(1)

    def weighted(self, factor_RB: Tensor) -> Tensor:
        a, g = self.a.flatten(1, 2), _scaled(self.g, factor_RB).flatten(1, 2)
        axes = len(self.stride)
        sums = [
            torch.ops.aten.convolution_backward(
                g[run], a[run], a.new_empty(self.size), None, self.stride, [0] * axes, self.dilation, False,
                [0] * axes, self.groups, [False, True, False],
            )[1]
            for run in range(len(a))
        ]  # fmt: skip
        return torch.stack(sums).flatten(1)

    def projected(self, vectors_RJP: Tensor) -> Tensor:
        count = vectors_RJP.shape[1]
        if _forms(self.shape[1], count):
            return _of_formed(self, self.g.shape[1], vectors_RJP)
        axes = len(self.stride)
        convolve = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
        found = []
        for a, g, vectors_JP in zip(self.a.flatten(1, 2), self.g, vectors_RJP, strict=True):
            each = [
                convolve(a, vector_P.reshape(self.size), None, self.stride, 0, self.dilation, self.groups)
                for vector_P in vectors_JP
            ]
            found.append(torch.stack([(one.reshape(g.shape) * g).flatten(1).sum(1) for one in each]))
        return torch.stack(found)


@dataclass(frozen=True)
class Lookup:
    """An embedding: a (R, B, T) whole numbers, g (R, B, T, D), zero at padding; the parameter is (`rows`, D)."""

    a: Tensor
    g: Tensor
    rows: int

    @property
    def elements(self) -> int:
        return self.rows * self.g.shape[-1]

    @property
    def size_RB(self) -> Tensor:
        each_RBT: Tensor = torch.linalg.vector_norm(self.g, dim=-1, dtype=torch.float64)
        return each_RBT.sum(-1)

    def pairs(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Which rows were looked up (Q', T), and g (Q', T, D)."""
        return self.a.flatten(0, 1)[rows], self.g.flatten(0, 1)[rows]

    def gradients(self, rows: Tensor | slice) -> Tensor:
        return _gathered(*self.pairs(rows), self.rows)

    def weighted(self, factor_RB: Tensor) -> Tensor:
        return _gathered(self.a.flatten(1), _scaled(self.g, factor_RB).flatten(1, 2), self.rows)

    def projected(self, vectors_RJP: Tensor) -> Tensor:
        tables = vectors_RJP.reshape(*vectors_RJP.shape[:2], self.rows, -1)
        found = [
            torch.stack([(table[numbers] * g).sum((-2, -1)) for table in tables_J])
            for tables_J, numbers, g in zip(tables, self.a.long(), self.g, strict=True)
        ]
        return torch.stack(found)


@dataclass(frozen=True)
class Elementwise:
    """A bias, or the weight of a normalisation: its gradients a (R, B, P)."""

    a: Tensor

    @property
    def elements(self) -> int:
        return self.a.shape[2]

    @property
    def size_RB(self) -> Tensor:
        return _size(self.a)

    def gradients(self, rows: Tensor | slice) -> Tensor:
        return self.a.flatten(0, 1)[rows]

    def weighted(self, factor_RB: Tensor) -> Tensor:
        return torch.bmm(factor_RB[:, None], self.a)[:, 0]

    def projected(self, vectors_RJP: Tensor) -> Tensor:
        return vectors_RJP @ self.a.mT


def joined(terms: Sequence[Term]) -> list[Term]:
    """The same terms, those of one kind and equal sizes joined: time steps of one weight, places of a mean loss."""
    alike: dict[tuple[Any, ...], list[Any]] = {}
    for term in terms:
        key: tuple[Any, ...] = (type(term),)
        if isinstance(term, Product):
            key += (term.shape[0], *term.shape[2:])
        elif isinstance(term, Convolution):
            key += (term.size, term.stride, term.dilation, term.groups, term.a.shape[3:])
        alike.setdefault(key, []).append(term)
    return [_together(same) for same in alike.values()]


def _together(same: list[Any]) -> Term:
    """One term for terms of one kind and equal sizes."""
    if isinstance(same[0], Elementwise):
        return Elementwise(torch.stack([one.a for one in same]).sum(0)) if len(same) > 1 else same[0]
    same = _of_one_input(same)
    first: Any = same[0]
    joined: Term = first
    if len(same) > 1:
        axis = 3 if isinstance(first, Product) else 2  # of positions
        joined = replace(first, a=torch.cat([one.a for one in same], axis), g=torch.cat([one.g for one in same], axis))
    return joined


def _of_one_input(terms: list[Any]) -> list[Any]:
    """The terms with one for all that have the same tensor as input: their sum has the sum of their gradients.

    So it is for the first layer at the K places of a smoothed loss, which then takes what one place takes.
    """
    alike: dict[tuple[Any, ...], list[Any]] = {}
    for at, term in enumerate(terms):
        where = term.a.data_ptr() or -at  # 0 where there is no memory, as on torch's meta device
        alike.setdefault((where, term.a.shape, term.a.stride()), []).append(term)
    return [replace(of[0], g=sum((term.g for term in of[1:]), start=of[0].g)) for of in alike.values()]


def norms(terms: Sequence[Term], places: int, looks: bool = True) -> Tensor:
    """Norms (Q,) of the gradients by one parameter, the sums of these terms; Q = `places`, `looks`: see `Examples`."""
    term, device = terms[0], terms[0].a.device
    if len(terms) == 1 and isinstance(term, Product | Convolution):
        groups, positions, inputs, outputs = term.shape
        pairs = term.pairs
        if positions == 1:
            return _in_parts(lambda rows: _rank_one(*pairs(rows)), places, groups * (inputs + outputs), device)
        each = groups * positions * (inputs + outputs)
        if 2 * positions**2 >= inputs * outputs:
            return _in_parts(lambda rows: _formed(*pairs(rows)), places, each + groups * inputs * outputs, device)
        return _gram_norms(pairs, places, each, groups * positions**2, groups * inputs * outputs, looks)
    if len(terms) == 1 and isinstance(term, Lookup):
        looked = term.pairs
        positions, width = term.g.shape[2:]
        return _in_parts(lambda rows: _merged(*looked(rows)), places, positions * (5 + width), device)

    def whole(rows: Tensor | slice) -> Tensor:
        return _norm(sum((term.gradients(rows) for term in terms[1:]), start=terms[0].gradients(rows)))

    return _in_parts(whole, places, sum(term.elements for term in terms), device)


def _forms(positions: int, count: int) -> bool:
    """Whether to form gradients for `count` projections: with many positions that takes about as long as one of them.

    A gradient once formed, a further product takes as many operations as the parameter has numbers.
    """
    return positions > 1 and count > 2


def _of_formed(term: Product | Convolution, places: int, vectors_RJP: Tensor) -> Tensor:
    """`projected` from gradients, formed for a few examples at a time."""
    groups, positions, inputs, outputs = term.shape
    each = groups * (positions * (inputs + outputs) + inputs * outputs)
    found = []
    for run, vectors_JP in enumerate(vectors_RJP):
        start = run * places

        def of(rows: slice, start: int = start, vectors_JP: Tensor = vectors_JP) -> Tensor:
            chosen = slice(start + rows.start, min(start + rows.stop, start + places))
            return term.gradients(chosen) @ vectors_JP.mT

        found.append(_in_parts(of, places, each, vectors_RJP.device).mT)
    return torch.stack(found)


def in_one_go(elements: int, device: torch.device) -> int:
    """How many examples are worked on at once if each needs this many elements."""
    return max(1, (_ELEMENTS if device.type == "cpu" else _ELEMENTS_OF_A_GPU) // max(1, elements))


def _in_parts(function: Callable[[slice], Tensor], places: int, elements: int, device: torch.device) -> Tensor:
    """The function of all examples, so many at a time as `in_one_go` says."""
    step = in_one_go(elements, device)
    return torch.cat([function(slice(start, start + step)) for start in range(0, places, step)])


def _rank_one(a: Tensor, g: Tensor) -> Tensor:
    """One position: the norm of each group's outer product.

    In float64: squares of float32 may underflow, and the norm of a would be 0 although a large g makes a large
    gradient.
    """
    each = torch.linalg.vector_norm(a.double(), dim=-1) * torch.linalg.vector_norm(g.double(), dim=-1)
    return _norm(each).to(a.dtype)


def _formed(a: Tensor, g: Tensor) -> Tensor:
    return _norm(g.mT @ a)


def _gram_norms(
    pairs: Callable[[Tensor | slice], tuple[Tensor, Tensor]],
    places: int,
    each: int,
    square: int,
    formed: int,
    looks: bool = True,
) -> Tensor:
    """The third line of the table, and the second for the examples where it cancels.

    The error of the squared norm is about u S² with u = 2^-53. float64: results of at least S²/2^8 are kept, so the
    relative error is at most 2^8 u, half of that in the norm. float32: at least S²/2^20, so 2^-33, below 2^-24.
    """
    first = pairs(slice(0, 1))[0]
    least = 2.0**-8 if first.dtype == torch.float64 else 2.0**-20

    def gram(rows: slice) -> Tensor:
        a, g = (value.double() for value in pairs(rows))
        square_Q = ((a @ a.mT) * (g @ g.mT)).sum((1, 2, 3))
        size_QG = (torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(g, dim=-1)).sum(-1)
        good = (square_Q >= least * size_QG.square().sum(1)) & square_Q.isfinite()
        return torch.where(good, square_Q.clamp_min(0).sqrt(), torch.nan)

    norm_Q = _in_parts(gram, places, 2 * (each + square), first.device).to(first.dtype)
    if not looks:
        return norm_Q
    again = torch.nonzero(norm_Q.isnan()).flatten()
    if len(again) > 0:
        norm_Q[again] = _in_parts(lambda rows: _formed(*pairs(again[rows])), len(again), each + formed, first.device)
    return norm_Q


def _merged(numbers_QT: Tensor, g_QTD: Tensor) -> Tensor:
    """Norms of embeddings' gradients: gradients of the same row are added at the first place that looks it up."""
    sorted_QT, order_QT = numbers_QT.sort(dim=1, stable=True)
    place_QT = torch.arange(numbers_QT.shape[1], device=numbers_QT.device).expand_as(order_QT)
    anew_QT = torch.ones_like(sorted_QT, dtype=torch.bool)
    anew_QT[:, 1:] = sorted_QT[:, 1:] != sorted_QT[:, :-1]
    begin_QT = torch.where(anew_QT, place_QT, 0).cummax(1).values  # of each group of equal numbers, in their order
    first_QT = torch.empty_like(order_QT).scatter_(1, order_QT, order_QT.gather(1, begin_QT))
    rows_QTD = torch.zeros_like(g_QTD).scatter_add(1, first_QT[:, :, None].expand_as(g_QTD), g_QTD)
    return _norm(rows_QTD)


def _gathered(numbers_QT: Tensor, g_QTD: Tensor, rows: int) -> Tensor:
    """(Q, rows · D): the sum of g for each row that was looked up."""
    start = g_QTD.new_zeros(len(g_QTD), rows, g_QTD.shape[-1])
    return start.scatter_add(1, numbers_QT[:, :, None].expand_as(g_QTD), g_QTD).flatten(1)


def _scaled(value: Tensor, factor_RB: Tensor) -> Tensor:
    return value * factor_RB.reshape(*factor_RB.shape, *[1] * (value.dim() - 2))


def _size(value: Tensor) -> Tensor:
    """The norm over everything but runs and places, (R, B), in float64, where squares neither vanish nor overflow.

    On a CPU torch copies all that is summed in another type, so it gets some places at a time.
    """
    flat = value.flatten(2)
    step = in_one_go(flat.shape[0] * flat.shape[2], flat.device)
    parts = [flat[:, start : start + step] for start in range(0, flat.shape[1], step)]
    return torch.cat([torch.linalg.vector_norm(one, dim=2, dtype=torch.float64) for one in parts], 1)


def _norm(value: Tensor) -> Tensor:
    """Of each example, over everything but the first axis."""
    found: Tensor = torch.linalg.vector_norm(value.flatten(1), dim=1)
    return found
