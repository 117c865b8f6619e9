"""Clipping by estimated norms (jl2021, Algorithms 1 and 3): random projections by forward mode.

The paper's letters: N is the number of examples, B = qN, p the sampling rate q, r `projections`; C_t is the clip norm
and η_t the learning rate, both constant; σ is the noise multiplier, relative to C; T is the number of steps.

Line by line (Algorithm 1): 2 the batch; 3 to 10 the estimates M_i; 11 the weights min{1, C/M_i}, constants when the
loss is differentiated; 12 noise σC/B for a divisor B; 13 the update. Algorithm 3 has the same lines 2 to 12, and
Adam's update of the noisy gradient.

Event: `RandomSensitivityGaussian` (Theorem 4.1), add-or-remove neighbours, Poisson sampling. The assumptions of its
proof, and how the code meets them:
- every record is in a batch independently with probability q: the sampler `poisson`;
- the projections are standard normal, independent of the data and new at each step: stream PROJECTION, and
  θ_{t−1} depends on earlier steps alone;
- given the projections, the contributions of the other records do not depend on the record: every example is a batch
  of one under vmap, so its estimate depends on its own loss only, and C is a constant;
- M_i/‖g_i‖ has the law of √(χ²_r/r): the derivatives are right, which is tested before training (`refuse`);
- the noise has deviation σC in every coordinate of the sum, and the divisor is a constant: qN;
- the update uses only the noisy gradient and its own memory (Appendix A, first paragraph).
The projections are not published; the bound would hold if they were (the proof of Lemma 4.3 conditions on them).

The printed algorithms draw batches of exactly B = qN records, which Theorem 4.1 does not cover: a new record displaces
another one (papers/jl2021/claims.yaml, alg1-sampling). Their event has the sampler `fixed_size`, and every accountant
refuses it. The rest of Algorithm 1 meets the assumptions; there B is a constant. One projection is not enough for a
meaningful ε: the first mistake listed in papers/jl2021/claims.yaml.

The norm of example i's gradient g_i is estimated by M_i = √((1/r) Σ_j ⟨g_i, v_j⟩²) with v_1, ..., v_r standard normal
vectors, drawn anew at each step; the sum is Σ_i min{1, C/M_i} g_i. All ⟨g_i, v_j⟩ are Jacobian-vector products of the
vector of losses (`way` jvp, forward mode; or vjp, the paper's double reverse mode), the sum is the backward pass of Σ_i
w_i · loss_i with constant weights. `way` layers computes the same numbers from the inputs and output gradients of the
layers, which costs one backward pass whatever r is; with r above 2 a layer with several positions forms its gradient
for a few examples at a time, else no gradient of a single example is formed, except against rounding errors (below).

One clipped example moves this sum by C·|g|/M, which has no bound: |g|/M has the law of Z_r = (χ²_r / r)^(−1/2). So this
is a rule with an event of its own, not an engine.

That law holds only if the gradient in the sum is the gradient that was projected. So the losses of a part of the batch
are computed once, each example as a batch of one, and both the projections and the weighted sum are derivatives of that
one computation. Rounding at the kink of a ReLU, or a model that changes between calls, cannot make them differ.

The backward pass adds products of inputs and output gradients of all examples. If the products of one example are huge
and cancel, their rounding errors exceed the contributions of the others. So the sum is projected too: its products with
v_1, ..., v_r must equal the weighted sum of the examples' products, up to a root mean square of `_AWAY`·C. Otherwise
each gradient of that step is formed, projected and added by itself. The difference of the sums of two neighbouring
batches then has products of root mean square at most (1 + 2·`_AWAY`)·C, rounding included, and the law of Z_r bounds
it.

| the paper | here | |
| --- | --- | --- |
| r | `projections` | |
| v_j | `normals` | entry p of v_j is element jP + p of the stream PROJECTION of (seed, step) |
| P_ij | `products` | |
| M_i | `Clipped.norm_RB` | |
| C_t | `clip_R` | |

Shapes: R runs, B batch, P parameters, J projections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vjp
from torch.func import vmap as over
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpbench import randomness
from dpbench.clipping import ghost
from dpbench.clipping.rules import none
from dpbench.clipping.rules._jl_forward import Forward, Unrecorded
from dpbench.clipping.rules._jl_refuse import refuse
from dpbench.errors import DpbenchError
from dpbench.events import Event, RandomSensitivityGaussian, Sampler
from dpbench.step.clipped_sum import Clipped, Draw, Examples, clip_factor, no_place_is_empty
from dpbench.step.functional import Augmented, Network, trained

NUMERICS = 1
ENGINE = ("way",)

Way = Literal["jvp", "vjp", "layers"]

# Limits of memory, in numbers, on a CPU and on other devices; they change no result.
_VECTORS = {"cpu": 1 << 26, "other": 1 << 29}  # of the projections of all runs of one pass; one run has all of its own
_TANGENTS = {"cpu": 1 << 25, "other": 1 << 29}  # of the widest layer's outputs with their derivatives
_PIECE = {"cpu": 1 << 16, "other": 1 << 24}  # of the normals that are made in one go

# How far a sum's projections may be from the weighted projections of its examples, in clip norms.
_AWAY = 2.0**-10


@dataclass(frozen=True)
class ProjectedSum:
    """A rule with its own sum; `way` chooses how the projections are computed, and changes no law.

    `layers` computes them layer by layer (`_by_layers`), or by forward mode where `ghost` does not know a layer; `jvp`
    is forward mode, `vjp` reverse mode twice.

    Raises DpbenchError for parameters that are not valid.

    >>> ProjectedSum(30).event(0.01, 1.0, "poisson").projections
    30
    """

    projections: int = 30
    way: Way = "layers"

    def __post_init__(self) -> None:
        whole = isinstance(self.projections, int) and not isinstance(self.projections, bool)
        if not whole or self.projections < 1:
            raise DpbenchError(f"projections = {self.projections!r}: expected a whole number, 1 or more")
        if self.way not in get_args(Way):
            raise DpbenchError(f"way = {self.way!r}: expected one of {', '.join(get_args(Way))}")

    def event(self, rate: float, noise_multiplier: float, sampler: Sampler) -> Event:
        """The event of one step (jl2021, Theorem 4.1)."""
        return RandomSensitivityGaussian(rate, noise_multiplier, self.projections, "add_or_remove", sampler)

    def divisor(self, rate_R: Tensor, examples: int) -> Tensor | None:
        del rate_R, examples
        return None

    def facts(self) -> Mapping[str, Any]:
        return {"normalisation": "expected batch size"}

    def refuse(self, module: nn.Module, example: Tensor) -> None:
        """Raise DpbenchError that names a layer without a right derivative; `example` has no batch axis."""

        def one(net: Network, theta_1P: Tensor, tangent_1JP: Tensor, examples: Examples) -> tuple[Tensor, Tensor]:
            found = self._one_pass(
                net, net.split(theta_1P), _split(net, tangent_1JP), examples, lambda all_JB: 1 + 0 * all_JB[0]
            )
            return found.products_RJB, found.sum_RP

        refuse(module, example, one)

    def numbers(self, net: Network, example: Tensor, target: Tensor) -> int:
        """How many numbers one place of a batch takes; no gradient of its own, unlike an engine that forms it.

        By forward mode and twice reverse what the forward pass keeps for the sum; derivatives are `_places`' matter.
        """
        if self._by_layers(net, example):
            return ghost.numbers(net, example, target)
        with Forward():
            return none.numbers(net, example, target)

    def _by_layers(self, net: Network, example: Tensor) -> bool:
        """Not where an example is several views, which `ghost` does not take."""
        return self.way == "layers" and not isinstance(net, Augmented) and _known_to_ghost(net.module, example)

    def summed(
        self, draw: Draw, net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int
    ) -> Clipped:
        """The clipped sum, with the projections of that step.

        Works on as many runs at a time as have projections that fit into memory, at least one.
        """
        step, parts = max(1, _VECTORS[_kind(theta_RP)] // (self.projections * net.size)), []
        for start in range(0, len(theta_RP), step):
            of = slice(start, start + step)
            parts.append(self._sum_of_runs(draw.runs(of), net, theta_RP[of], examples.runs(of), clip_R[of], chunk))
        return Clipped.joined(parts)

    def _sum_of_runs(
        self, draw: Draw, net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int
    ) -> Clipped:
        mask_RB = examples.mask_RB
        examples = _refilled(examples)
        chunk = self._places(net, theta_RP, examples, chunk)
        named, total_RP = net.split(theta_RP), torch.zeros_like(theta_RP)
        vectors_RJP = normals(draw, self.projections, net.size, theta_RP.dtype)
        tangents = _split(net, vectors_RJP)
        products, losses = [], []
        for start in range(0, mask_RB.shape[1], chunk):
            part = examples.part(start, start + chunk)
            found = self._one_pass(net, named, tangents, part, _weights, clip_R, part.mask_RB)
            total_RP = total_RP + found.sum_RP
            products.append(found.products_RJB)
            losses.append(found.loss_RB)
        products_RJB = torch.where(mask_RB[:, None], torch.cat(products, 2), 0.0)
        norm_RB, loss_RB = _estimates(products_RJB), torch.where(mask_RB, torch.cat(losses, 1), 0.0)
        total_RP = torch.where(mask_RB.any(1)[:, None], total_RP, 0.0)  # a batch of empty places only
        sum_RP, weight_RB = total_RP.double(), clip_factor(norm_RB, clip_R, mask_RB).double()
        away_JR = [  # in float64, one projection at a time, so that its own rounding error is negligible
            (vectors_RP * sum_RP).sum(1) - (products_RB * weight_RB).sum(1)
            for vectors_RP, products_RB in zip(vectors_RJP.unbind(1), products_RJB.unbind(1), strict=True)
        ]
        spoiled_R = _estimates(torch.stack(away_JR)) > _AWAY * clip_R
        if not examples.looks:
            return Clipped(torch.where(spoiled_R[:, None], torch.nan, total_RP), norm_RB, loss_RB)
        for run in spoiled_R.nonzero().flatten().tolist():
            inputs, targets = examples.inputs[run, mask_RB[run]], examples.targets[run, mask_RB[run]]
            total_RP[run], norm_RB[run, mask_RB[run]] = _formed(
                net, theta_RP[run], vectors_RJP[run], inputs, targets, clip_R[run]
            )
        return Clipped(total_RP, norm_RB, loss_RB)

    def _places(self, net: Network, theta_RP: Tensor, examples: Examples, chunk: int) -> int:
        """Places of one call: at most `chunk`, and as many as fit into memory with their derivatives."""
        if self._by_layers(net, examples.inputs[0, 0]):
            return chunk
        width = _widest(net, net.split(theta_RP), examples)
        each = len(theta_RP) * (self.projections + 1) * width
        return max(1, min(chunk, _TANGENTS[_kind(theta_RP)] // each))

    def _one_pass(
        self,
        net: Network,
        named: dict[str, Tensor],
        tangents: dict[str, Tensor],
        part: Examples,
        weights: Callable[..., Tensor],
        *given: Tensor,
    ) -> Pass:
        """`weights` computes w (B,) of one run from its products (J, B) and from further arguments, (R, ...)."""
        if self._by_layers(net, part.inputs[0, 0]):
            return _layer_by_layer(net, named, tangents, part, weights, *given)
        linearised = _twice_reverse if self.way == "vjp" else _forward

        def of_one_run(
            named: dict[str, Tensor], tangents: dict[str, Tensor], inputs_B: Tensor, targets_B: Tensor, *given: Tensor
        ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
            loss_B, products_JB, pull = linearised(net, named, tangents, inputs_B, targets_B)
            return pull(weights(products_JB, *given))[0], products_JB, loss_B

        summed, products_RJB, loss_RB = over(of_one_run)(named, tangents, part.inputs, part.targets, *given)
        return Pass(net.join(summed), products_RJB, loss_RB)


@dataclass(frozen=True)
class Pass:
    """From one computation of the losses F(θ) (R, B): Σ_i w_i g_i (R, P), and the ⟨g_i, v_j⟩ (R, J, B) that give w."""

    sum_RP: Tensor
    products_RJB: Tensor
    loss_RB: Tensor


# Of one run: the losses (B,), their products with all tangents (J, B), and w (B,) -> (Σ_i w_i g_i,)
Linearised = tuple[Tensor, Tensor, Callable[[Tensor], tuple[dict[str, Tensor]]]]


def _estimates(products: Tensor) -> Tensor:
    """M_i of every place, (..., J, B) to (..., B); NaN if it is not finite, so that the run stops.

    The squares are summed in float64, where they do not overflow.
    """
    norm = products.double().square().mean(-2).sqrt().to(products.dtype)
    return torch.where(norm.isfinite(), norm, torch.nan)


def _weights(products_JB: Tensor, clip: Tensor, mask_B: Tensor) -> Tensor:
    """min{1, C/M_i} of one run, and 0 at empty places."""
    norm_B = torch.where(mask_B, _estimates(products_JB), 0.0)
    return clip_factor(norm_B[None], clip[None], mask_B[None])[0]


def _formed(
    net: Network, theta_P: Tensor, vectors_JP: Tensor, inputs_B: Tensor, targets_B: Tensor, clip: Tensor
) -> tuple[Tensor, Tensor]:
    """The weighted sum (P,) and the estimates M_i (B,) of one run, from gradients formed one by one."""
    total_P, norms = torch.zeros_like(theta_P), []
    leaves = {name: value[0] for name, value in net.split(theta_P[None]).items()}
    for example, target in zip(inputs_B, targets_B, strict=True):

        def loss(named: dict[str, Tensor], example: Tensor = example, target: Tensor = target) -> Tensor:
            with Forward():
                return net.example_loss(named, example, target)

        gradient_P = net.join({name: g[None] for name, g in grad(loss)(leaves).items()})[0]
        norm_1 = _estimates((vectors_JP @ gradient_P)[:, None])
        total_P += clip_factor(norm_1[None], clip[None], torch.ones_like(norm_1[None]))[0] * gradient_P
        norms.append(norm_1)
    return total_P, torch.cat(norms)


def normals(draw: Draw, count: int, size: int, dtype: torch.dtype) -> Tensor:
    """The projections of each run's step: standard normals (R, J, P)."""
    flat = torch.empty(len(draw.keys_RS), count * size, dtype=dtype, device=draw.keys_RS.device)
    piece = max(1, _PIECE[_kind(flat)] // len(flat))
    for start in range(0, count * size, piece):
        stop = min(start + piece, count * size)
        flat[:, start:stop] = randomness.normal(
            draw.keys_RS, randomness.PROJECTION, draw.step_R, stop - start, start, dtype
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


def _forward(
    net: Network, named: dict[str, Tensor], tangents: dict[str, Tensor], inputs_B: Tensor, targets_B: Tensor
) -> Linearised:
    """Jacobian-vector products by forward mode: all J tangents (J, ...) in one pass, which reverse mode records.

    Every example is a batch of one under vmap, so that nothing can mix them. The losses do not depend on the tangents
    and are computed once for all J; the tangents themselves are not recorded (`Unrecorded`).
    """

    def one(
        named: dict[str, Tensor], tangent: dict[str, Tensor], example: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        def loss(named: dict[str, Tensor]) -> Tensor:
            with Unrecorded(), Forward():
                return net.example_loss(named, example, target)

        return jvp(loss, (named,), (tangent,))  # type: ignore[return-value]  # two without has_aux

    each_example = over(one, in_dims=(None, None, 0, 0))
    each_tangent = over(each_example, in_dims=(None, 0, None, None), out_dims=(None, 0))  # type: ignore[arg-type]

    def both(named: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = each_tangent(named, tangents, inputs_B, targets_B)
        return result

    loss_B, pull, products_JB = vjp(both, named, has_aux=True)  # type: ignore[misc]
    return loss_B, products_JB, pull


def _twice_reverse(
    net: Network, named: dict[str, Tensor], tangents: dict[str, Tensor], inputs_B: Tensor, targets_B: Tensor
) -> Linearised:
    """The same by reverse mode twice (Section 2.1): G(α) = αᵀ∇F is linear in α, and its derivative along v is ∇F·v."""

    def losses(named: dict[str, Tensor]) -> Tensor:
        with Forward():
            result: Tensor = over(net.example_loss, in_dims=(None, 0, 0))(named, inputs_B, targets_B)
        return result

    loss_B, pull = vjp(losses, named)  # type: ignore[misc]  # two without has_aux, whatever its annotation says
    _, pull_again = vjp(pull, torch.zeros_like(loss_B))  # type: ignore[misc]

    def product(tangent: dict[str, Tensor]) -> Tensor:
        moved: Tensor = pull_again((tangent,))[0]
        return moved

    products_JB: Tensor = over(product)(tangents)
    return loss_B, products_JB, pull


_KNOWN: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def _known_to_ghost(module: nn.Module, example: Tensor) -> bool:
    """Whether the engine `ghost` takes the model; tried once."""
    if module not in _KNOWN:
        try:
            dtype = next((value.dtype for value in trained(module).values()), example.dtype)
            ghost.refuse(module, example.to(dtype))
            _KNOWN[module] = True
        except DpbenchError:
            _KNOWN[module] = False
    return _KNOWN[module]


def _layer_by_layer(
    net: Network,
    named: dict[str, Tensor],
    tangents: dict[str, Tensor],
    part: Examples,
    weights: Callable[..., Tensor],
    *given: Tensor,
) -> Pass:
    """The same layer by layer, from the inputs and output gradients that the engine `ghost` records (`_ghost_terms`).

    One forward and one backward pass give them for all J: with v_l the part of v that belongs to layer l, a its input
    and b the gradient of its output, ⟨g, v⟩ = Σ_l ⟨b, v_l a⟩. The sum is that of the same a and b.
    """
    terms, loss_RB = ghost.recorded_terms(net, named, part)
    runs, count = loss_RB.shape[0], next(iter(tangents.values())).shape[1]
    products_RJB = loss_RB.new_zeros(runs, count, loss_RB.shape[1])
    for name, pieces in terms.items():
        flat_RJN = tangents[name].reshape(runs, count, named[name][0].numel())  # of no axis or no element, too
        for piece in pieces:
            products_RJB = products_RJB + piece.projected(flat_RJN)
    weight_RB = over(weights)(products_RJB, *given)
    summed = {name: torch.zeros_like(value) for name, value in named.items()}
    for name, pieces in terms.items():
        for piece in pieces:
            summed[name] += piece.weighted(weight_RB).reshape(summed[name].shape)
    return Pass(net.join(summed), products_RJB, loss_RB)


def _refilled(examples: Examples) -> Examples:
    """Fill each empty place with a copy of its run's first filled one, so that its content reaches no derivative."""
    mask_RB = examples.mask_RB
    if no_place_is_empty(mask_RB):
        return examples
    first_R, run_R = mask_RB.int().argmax(1), torch.arange(len(mask_RB), device=mask_RB.device)

    def filled(value: Tensor) -> Tensor:
        mask = mask_RB.reshape(*mask_RB.shape, *[1] * (value.dim() - 2))
        return torch.where(mask, value, value[run_R, first_R][:, None])

    return replace(examples, inputs=filled(examples.inputs), targets=filled(examples.targets))


class _Widest(TorchDispatchMode):
    """Records the size of the largest new tensor; parameters and their views do not count."""

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
    example, target = examples.inputs[0, 0], examples.targets[0, 0]
    with torch.no_grad(), Forward(), _Widest(named) as seen:
        net.example_loss(one, example, target)
    size: int = seen.size
    return size


rule = ProjectedSum
