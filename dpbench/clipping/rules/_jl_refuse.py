"""Finds models that DP-SGD-JL does not support, before training and on one example.

A wrong forward derivative gives a wrong norm, and thereby a gradient that is clipped too little; no loss curve shows
that. So the derivative along a random vector is compared with the gradient's inner product with it. The layer where the
two differ, or where torch has no derivative, is named.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp
from torch.utils._pytree import tree_leaves

from dpbench.clipping.rules._jl_forward import Forward
from dpbench.errors import DpbenchError, lacks_memory
from dpbench.step.clipped_sum import Examples
from dpbench.step.functional import Network, network, trained
from dpbench.step.watch import entered, layer_names, sentence
from dpbench.tasks import objective

NUMERICS = 1

# Relative to the product of the norms, for two computations of one inner product in float64: 1e-8 allows for 10^7
# roundings; the error of a layer with a wrong derivative is of the size of that layer.
_PARTED = 1e-8

# theta (1, P), vectors (1, 1, P) -> products (1, 1, 1), gradient (1, P)
Products = Callable[[Network, Tensor, Tensor, Examples], tuple[Tensor, Tensor]]


def refuse(module: nn.Module, example: Tensor, products: Products) -> None:
    """Raise DpbenchError that names the first layer whose derivative is absent or wrong.

    `example` has no batch axis; it is tried, then ones and normals of its shape if the model accepts them. `products`
    gives the derivative of one example's loss along a vector, and the gradient for the sum.
    """
    net = network(copy.deepcopy(module).double())
    generator = torch.Generator().manual_seed(0)
    theta_1P = torch.cat([value.detach().flatten() for value in trained(net.module).values()])[None]
    # Moved a little, so that parameters which start at zero have an effect.
    theta_1P = theta_1P + 0.01 * torch.randn(theta_1P.shape, generator=generator, dtype=torch.float64)
    tangent_11P = torch.randn(1, 1, net.size, generator=generator, dtype=torch.float64)
    for inputs in _tried(example.double(), generator):
        score_C = _score(net, theta_1P, inputs)
        if score_C is None:
            continue
        if len(score_C) == 1:  # a cross-entropy of one class would be constant
            net = replace(net, objective=objective("regression"))
        target = score_C.argmin()  # the least likely class, whose gradient does not vanish
        gradient_P = _gradient(net, theta_1P, inputs, target)
        if gradient_P is None:
            continue
        examples = Examples(inputs[None, None], target[None, None], torch.ones(1, 1) > 0)
        with entered(net.module) as trail:
            try:
                product_111, summed_1P = products(net, theta_1P, tangent_11P, examples)
            except Exception as error:
                if lacks_memory(error):
                    raise
                raise _refusal(trail[-1] if trail else "'top'", sentence(error)) from error
        parted = (product_111[0, 0, 0] - tangent_11P[0, 0] @ gradient_P).abs()
        parted = torch.maximum(parted, (summed_1P[0] - gradient_P).norm() * tangent_11P.norm())
        if not bool(parted <= _PARTED * gradient_P.norm() * tangent_11P.norm() + 1e-300):
            layer = _first_wrong(net, theta_1P, inputs, generator)
            raise _refusal(layer, "its derivative along a vector is not the gradient's product with it")


def _refusal(layer: str, why: str) -> DpbenchError:
    return DpbenchError(
        f"norms by projections: layer {layer} is not supported: {why}; use noisy_sgd or noisy_adam,"
        " whose clipping engines (ghost, vmap, loop) compute norms exactly"
    )


def _tried(example: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
    yield example
    yield torch.ones_like(example)
    yield torch.randn(example.shape, generator=generator, dtype=example.dtype)


def _score(net: Network, theta_1P: Tensor, inputs: Tensor) -> Tensor | None:
    """The outputs for one input; None if the model does not accept it.

    Ones and normals may be no inputs of the model, such as numbers of unknown words, and may raise anything.
    """
    named = {name: value[0] for name, value in net.split(theta_1P).items()}
    try:
        score_C = net.outputs(named, inputs[None])[0]
    except Exception:  # noqa: BLE001 - see above
        return None
    return score_C if bool(score_C.isfinite().all()) else None


def _gradient(net: Network, theta_1P: Tensor, inputs: Tensor, target: Tensor) -> Tensor | None:
    """The gradient of one example's loss by torch's own backward pass; None where it is not finite."""
    leaves = {name: value[0].detach().requires_grad_() for name, value in net.split(theta_1P).items()}
    loss = net.example_loss(leaves, inputs, target)
    pieces = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    gradient_P = torch.cat([piece.flatten() for piece in pieces])
    return gradient_P if bool(gradient_P.isfinite().all()) else None


def _first_wrong(net: Network, theta_1P: Tensor, inputs: Tensor, generator: torch.Generator) -> str:
    """The first layer without sublayers whose forward and backward derivatives differ; the model if there is none."""
    named = {name: value[0] for name, value in net.split(theta_1P).items()}
    labels = layer_names(net.module)
    seen: dict[str, tuple[Any, ...]] = {}
    with entered(net.module, lambda given: given, lambda label, given, _: seen.setdefault(label, given)):
        net.outputs(named, inputs[None])
    places = {labels[id(layer)]: (name, layer) for name, layer in net.module.named_modules()}
    for label, given in seen.items():
        name, layer = places[label]
        prefix = f"{name}." if name else ""
        own = {key.removeprefix(prefix): value for key, value in named.items() if key.startswith(prefix)}
        moving = {str(place): value for place, value in enumerate(given) if _moves(value)}
        if not list(layer.children()) and not _agrees(layer, own, given, moving, generator):
            return label
    return labels[id(net.module)]


def _moves(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _agrees(
    layer: nn.Module,
    own: dict[str, Tensor],
    given: tuple[Any, ...],
    moving: dict[str, Tensor],
    generator: torch.Generator,
) -> bool:
    """Whether ⟨u, J v⟩ = ⟨Jᵀ u, v⟩ for random u and v; v has the parameters and the floating-point inputs."""

    def call(own: dict[str, Tensor], moving: dict[str, Tensor], mode: Any) -> Tensor:
        arguments = tuple(moving.get(str(place), value) for place, value in enumerate(given))
        with mode:
            found = functional_call(layer, own, arguments)
        return torch.cat([leaf.flatten() for leaf in tree_leaves(found) if _moves(leaf)])

    def like(values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {k: torch.randn(v.shape, generator=generator, dtype=v.dtype) for k, v in values.items()}

    v_own, v_moving = like(own), like(moving)
    try:
        value, moved = jvp(partial(call, mode=Forward()), (own, moving), (v_own, v_moving))  # type: ignore[misc]
        u = torch.randn(value.shape, generator=generator, dtype=value.dtype)
        _, pull = vjp(partial(call, mode=torch.enable_grad()), own, moving)  # type: ignore[misc]
        pulled_own, pulled_moving = pull(u)
    except Exception:  # noqa: BLE001 - a layer that fails by itself is not named
        return True
    pairs = [(pulled_own[k], v_own[k]) for k in own] + [(pulled_moving[k], v_moving[k]) for k in moving]
    back = sum(((p * v).sum() for p, v in pairs), start=torch.zeros((), dtype=value.dtype))
    size = sum(float((p * v).abs().sum()) for p, v in pairs) + float((u * moved).abs().sum())
    return bool(((u * moved).sum() - back).abs() <= _PARTED * size + 1e-300)
