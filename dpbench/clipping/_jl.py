"""Clipped sums with estimated norms (jl2021, Algorithm 1, lines 3 to 11): random projections by forward mode.

The norm of example i's gradient g_i is estimated by M_i = √((1/r) Σ_j ⟨g_i, v_j⟩²) with v_1, ..., v_r standard normal
vectors, drawn anew at each step; the sum is Σ_i min{1, C/M_i} g_i. All ⟨g_i, v_j⟩ come from Jacobian-vector products of
the vector of losses (`way` jvp, forward mode; or vjp, the paper's double reverse mode), the sum from one backward pass
of Σ_i w_i · loss_i, the weights being numbers. No gradient of a single example is ever held.

One example moves this sum by C·|g|/M, not by at most C: |g|/M has the law of Z_r = (χ²_r / r)^(−1/2). So the engine is
no entry of the catalog, where it could be named by a mechanism whose ledger says C; `estimated_norms` says it too.

What is summed has to be what was measured: both passes see each example as a batch of one, under the same operators,
in parts of the same shape, so that rounding is the same in both. In other parts it could fall on the two sides of the
kink of a ReLU, and then a gradient would be summed whose projections nobody has taken.

| the paper | here | |
| --- | --- | --- |
| r | `projections` | |
| v_j | `normals` | entry p of v_j is element jP + p of the stream PROJECTION of (seed, step) |
| P_ij | `products` | |
| M_i | `Clipped.norm_RB` | |
| C_t | `clip_R` | |

Shapes: R runs, B batch, P parameters, J projections of one pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vjp
from torch.func import vmap as over
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpbench import randomness
from dpbench.clipping._base import Clipped, ClippedSum, Draw, Examples, clip_factor
from dpbench.clipping._jl_forward import Forward
from dpbench.clipping._jl_refuse import refuse
from dpbench.errors import DpbenchError
from dpbench.functional import Network

NUMERICS = 1

Way = Literal["jvp", "vjp"]

# How much is held at once, in numbers, on a CPU and on other devices; it changes no result.
_VECTORS = {"cpu": 1 << 26, "other": 1 << 29}  # of all projections of one pass
_TANGENTS = {"cpu": 1 << 25, "other": 1 << 29}  # of the widest layer's outputs with their derivatives
_PIECE = {"cpu": 1 << 16, "other": 1 << 24}  # of the normals that are made in one go


@dataclass(frozen=True)
class ProjectedSum:
    """The engine of DP-SGD-JL: a `DrawnSum`. Raises DpbenchError for parameters that are none.

    >>> ProjectedSum(30).estimated_norms
    True
    """

    projections: int
    way: Way = "jvp"
    estimated_norms: ClassVar[bool] = True

    def __post_init__(self) -> None:
        whole = isinstance(self.projections, int) and not isinstance(self.projections, bool)
        if not whole or self.projections < 1:
            raise DpbenchError(f"projections = {self.projections!r}: expected a whole number, 1 or more")
        if self.way not in ("jvp", "vjp"):
            raise DpbenchError(f"way = {self.way!r}: expected one of jvp, vjp")

    def at(self, draw: Draw) -> ClippedSum:
        """The clipped sum of one step, with the projections of that step."""
        return partial(self._sum, draw)

    def refuse(self, module: nn.Module, example: Tensor) -> None:
        """Raise DpbenchError that names the layer whose derivative this way does not give; no batch axis."""

        def one(net: Network, theta_1P: Tensor, tangent_1JP: Tensor, examples: Examples) -> Tensor:
            return self._products(net, net.split(theta_1P), _split(net, tangent_1JP), examples)

        refuse(module, example, one)

    def _sum(
        self, draw: Draw, net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int
    ) -> Clipped:
        mask_RB = examples.mask_RB
        examples = _refilled(examples)
        chunk = self._places(net, theta_RP, examples, chunk)
        norm_RB = torch.where(mask_RB, self._estimates(draw, net, theta_RP, examples, chunk), 0.0)
        factor_RB = clip_factor(norm_RB, clip_R, mask_RB)
        named, total, losses = net.split(theta_RP), torch.zeros_like(theta_RP), []
        for start in range(0, mask_RB.shape[1], chunk):
            part = examples.part(start, start + chunk)
            weighted = over(grad(partial(_weighted, net), has_aux=True))
            gradient, loss_RB = weighted(named, part.inputs, part.targets, factor_RB[:, start : start + chunk])
            total = total + net.join(gradient)
            losses.append(loss_RB)
        total = torch.where(mask_RB.any(1)[:, None], total, 0.0)  # what stands in a batch of empty places is nobody's
        return Clipped(total, norm_RB, torch.where(mask_RB, torch.cat(losses, 1), 0.0))

    def _estimates(self, draw: Draw, net: Network, theta_RP: Tensor, examples: Examples, chunk: int) -> Tensor:
        """M_i of every place (R, B), NaN where it is not finite, so that the run stops and no example drops out.

        The squares are summed in float64, where those of float32 do not overflow.
        """
        runs, places = examples.mask_RB.shape
        named, at_once = net.split(theta_RP), self._at_once(net, theta_RP)
        total_RB = torch.zeros(runs, places, dtype=torch.float64, device=theta_RP.device)
        for first in range(0, self.projections, at_once):
            count = min(at_once, self.projections - first)
            tangents = _split(net, normals(draw, first, count, net.size, theta_RP.dtype))
            for start in range(0, places, chunk):
                products_RJB = self._products(net, named, tangents, examples.part(start, start + chunk))
                total_RB[:, start : start + chunk] += products_RJB.double().square().sum(1)
        norm_RB = (total_RB / self.projections).sqrt().to(theta_RP.dtype)
        return torch.where(norm_RB.isfinite(), norm_RB, torch.nan)

    def _at_once(self, net: Network, theta_RP: Tensor) -> int:
        """Projections of one pass."""
        return min(self.projections, max(1, _VECTORS[_kind(theta_RP)] // (len(theta_RP) * net.size)))

    def _places(self, net: Network, theta_RP: Tensor, examples: Examples, chunk: int) -> int:
        """Places of one call, in both passes: at most `chunk`, and what fits into memory with the derivatives."""
        width = _widest(net, net.split(theta_RP), examples)
        each = len(theta_RP) * (self._at_once(net, theta_RP) + 1) * width
        return max(1, min(chunk, _TANGENTS[_kind(theta_RP)] // each))

    def _products(
        self, net: Network, named: Mapping[str, Tensor], tangents: Mapping[str, Tensor], part: Examples
    ) -> Tensor:
        """⟨g_i, v_j⟩ for all runs, projections and places: (R, J, B)."""
        of_one_run = partial(_forward if self.way == "jvp" else _twice_reverse, net)
        result: Tensor = over(of_one_run)(named, tangents, part.inputs, part.targets)
        return result


def normals(draw: Draw, first: int, count: int, size: int, dtype: torch.dtype) -> Tensor:
    """The projections `first` to `first + count` of each run's step: standard normals (R, J, P)."""
    flat = torch.empty(len(draw.keys_RS), count * size, dtype=dtype, device=draw.keys_RS.device)
    piece = max(1, _PIECE[_kind(flat)] // len(flat))
    for start in range(0, count * size, piece):
        stop = min(start + piece, count * size)
        flat[:, start:stop] = randomness.normal(
            draw.keys_RS, randomness.PROJECTION, draw.step_R, stop - start, first * size + start, dtype
        )
    return flat.reshape(-1, count, size)


def _kind(value: Tensor) -> str:
    return "cpu" if value.device.type == "cpu" else "other"


def _split(net: Network, vectors_RJP: Tensor) -> dict[str, Tensor]:
    """Flat vectors as named tensors (R, J, *shape)."""
    runs, count, _ = vectors_RJP.shape
    return {
        name: value.reshape(runs, count, *value.shape[1:])
        for name, value in net.split(vectors_RJP.flatten(0, 1)).items()
    }


def _losses(net: Network, inputs_B: Tensor, targets_B: Tensor, named: dict[str, Tensor]) -> Tensor:
    """F(θ): the losses (B,) of one run. Every example is a batch of one under vmap, so that nothing can mix them."""
    with Forward():
        result: Tensor = over(net.example_loss, in_dims=(None, 0, 0))(named, inputs_B, targets_B)
    return result


def _forward(
    net: Network, named: dict[str, Tensor], tangents: dict[str, Tensor], inputs_B: Tensor, targets_B: Tensor
) -> Tensor:
    """Jacobian-vector products by forward mode, all J tangents (J, ...) in one pass: (J, B)."""
    losses = partial(_losses, net, inputs_B, targets_B)

    def product(tangent: dict[str, Tensor]) -> Tensor:
        moved: Tensor = jvp(losses, (named,), (tangent,))[1]
        return moved

    result: Tensor = over(product)(tangents)
    return result


def _twice_reverse(
    net: Network, named: dict[str, Tensor], tangents: dict[str, Tensor], inputs_B: Tensor, targets_B: Tensor
) -> Tensor:
    """The same by reverse mode twice (Section 2.1): G(α) = αᵀ∇F is linear in α, and its derivative along v is ∇F·v."""
    losses = partial(_losses, net, inputs_B, targets_B)
    value_B, pull = vjp(losses, named)  # type: ignore[misc]  # two without has_aux, whatever its annotation says
    _, pull_again = vjp(pull, torch.zeros_like(value_B))  # type: ignore[misc]

    def product(tangent: dict[str, Tensor]) -> Tensor:
        moved: Tensor = pull_again((tangent,))[0]
        return moved

    result: Tensor = over(product)(tangents)
    return result


def _weighted(
    net: Network, named: dict[str, Tensor], inputs_B: Tensor, targets_B: Tensor, factor_B: Tensor
) -> tuple[Tensor, Tensor]:
    """The reweighted loss of one run (line 11, times B), and the losses."""
    loss_B = _losses(net, inputs_B, targets_B, named)
    return (factor_B * loss_B).sum(), loss_B


def _refilled(examples: Examples) -> Examples:
    """Each empty place holds a copy of its run's first filled one, so that what stood there reaches no derivative."""
    mask_RB = examples.mask_RB
    if bool(mask_RB.all()):
        return examples
    first_R, run_R = mask_RB.int().argmax(1), torch.arange(len(mask_RB), device=mask_RB.device)

    def filled(value: Tensor) -> Tensor:
        mask = mask_RB.reshape(*mask_RB.shape, *[1] * (value.dim() - 2))
        return torch.where(mask, value, value[run_R, first_R][:, None])

    return Examples(filled(examples.inputs), filled(examples.targets), mask_RB)


class _Widest(TorchDispatchMode):
    """Notes the size of the largest tensor that is made, parameters and their views aside."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.own = {value.untyped_storage().data_ptr() for value in parameters.values()}
        self.size: int = 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in self.own:
                self.size = max(self.size, leaf.numel())
        return result


def _widest(net: Network, named: Mapping[str, Tensor], examples: Examples) -> int:
    """Numbers in the largest tensor of one example's forward pass."""
    one = {name: value[0] for name, value in named.items()}
    with torch.no_grad(), Forward(), _Widest(named) as seen:
        net.example_loss(one, examples.inputs[0, 0], examples.targets[0, 0])
    size: int = seen.size
    return size
