"""A torch module as pure functions of a stack of parameters: R copies in one tensor of shape (R, P).

Letters: R runs, P parameters, B batch, C classes. Nothing here keeps state: the module gives the computation, not the
values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from dpbench import randomness
from dpbench.errors import DpbenchError
from dpbench.step import losses
from dpbench.step.recurrent import WrittenOut, loops
from dpbench.tasks import CLASSIFICATION, Objective

NUMERICS = 1


@dataclass(frozen=True)
class Network:
    """A module with the layout of its trained parameters in one flat vector of length `size`.

    Frozen parameters stay in the module and are the same for every run. `objective` is what is trained and measured.
    """

    module: nn.Module
    shapes: tuple[tuple[str, torch.Size], ...]
    size: int
    objective: Objective = field(default=CLASSIFICATION, kw_only=True)

    def split(self, theta_RP: Tensor) -> dict[str, Tensor]:
        """Flat parameters (R, P) as named tensors of shape (R, *shape); views, nothing is copied."""
        pieces = torch.split(theta_RP, [shape.numel() for _, shape in self.shapes], dim=1)
        return {
            name: piece.reshape(len(piece), *shape) for (name, shape), piece in zip(self.shapes, pieces, strict=True)
        }

    def join(self, named: dict[str, Tensor]) -> Tensor:
        """The inverse of `split`."""
        return torch.cat([named[name].reshape(len(named[name]), shape.numel()) for name, shape in self.shapes], dim=1)

    def outputs(self, named: dict[str, Tensor], inputs: Tensor, operators: TorchFunctionMode | None = None) -> Tensor:
        """The outputs of one run's parameters (no leading R) for a batch of inputs.

        `operators` replaces operators of torch; by default recurrent layers are unrolled where vmap needs it.
        Raises DpbenchError if the model draws random numbers inside a transform.
        """
        try:
            with operators or WrittenOut():
                result: Tensor = functional_call(self.module, named, (inputs,))
        except RuntimeError as error:
            if not any(words in str(error) for words in ("called random operation", "rrelu_with_noise")):
                raise
            raise DpbenchError(
                "the model draws random numbers in training, as dropout and RReLU do: leave that out, or set its"
                " probability to 0"
            ) from error
        return result

    def example_loss(
        self, named: dict[str, Tensor], example: Tensor, target: Tensor, operators: TorchFunctionMode | None = None
    ) -> Tensor:
        """The loss of one example (no batch axis) under one run's parameters: cross-entropy or squared error.

        Source: `step.losses.loss`, for the network's objective.
        """
        return losses.loss(self.objective.loss, self.outputs(named, example[None], operators), target[None], "mean")

    def example_losses(self, named: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        """The losses (B,) of a batch under one run's parameters, in one pass."""
        return losses.loss(self.objective.loss, self.outputs(named, inputs), targets)


@dataclass(frozen=True)
class Augmented(Network):
    """A network of which every example is K views (K, ...) of one record; its loss is the mean over them.

    The views go through the network as a batch; a network whose examples change each other is refused before training.
    """

    def example_loss(
        self, named: dict[str, Tensor], example: Tensor, target: Tensor, operators: TorchFunctionMode | None = None
    ) -> Tensor:
        if operators is not None:
            raise DpbenchError(
                "augment: the engine takes one input of each example, not its views; expected vmap or loop"
            )
        return losses.loss(self.objective.loss, self.outputs(named, example), target.expand(len(example)), "mean")

    def example_losses(self, named: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        count = inputs.shape[1]
        each_N = super().example_losses(named, inputs.flatten(0, 1), targets.repeat_interleave(count))
        return each_N.reshape(-1, count).mean(1)


def augmented(net: Network) -> Network:
    """The network for examples that are K views (K, ...) of a record, with the mean of their losses.

    >>> net = network(nn.Linear(2, 3))
    >>> named = {name: value[0] for name, value in net.split(torch.ones(1, 9)).items()}
    >>> views, target = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor(1)
    >>> mean = torch.stack([net.example_loss(named, view, target) for view in views]).mean()
    >>> torch.allclose(augmented(net).example_loss(named, views, target), mean)
    True
    """
    return Augmented(net.module, net.shapes, net.size, objective=net.objective)


@dataclass(frozen=True)
class Smoothed(Network):
    """The network `plain` of one run, with its loss averaged over K shifted parameters: (1/K) Σ_j loss(θ + Δ_j).

    `shifts` are the Δ_j as named tensors (K, *shape). The places are computed one after the other, so that only the
    activations are K times as many. A rule or engine takes `example_loss`; other uses raise DpbenchError.
    """

    plain: Network
    shifts: dict[str, Tensor]

    def shifted(self, named: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """The parameters at each of the K places, as they are given: of one run, or (1, *shape) of a stack of one."""
        places = [dict(zip(self.shifts, one, strict=True)) for one in zip(*self.shifts.values(), strict=True)]
        return [{name: named[name] + by for name, by in place.items()} for place in places]

    def outputs(self, named: dict[str, Tensor], inputs: Tensor, operators: TorchFunctionMode | None = None) -> Tensor:
        del named, inputs, operators  # whatever they are
        raise DpbenchError(
            "smooth: a smoothed loss has no outputs of its own; expected a rule that uses `example_loss`"
        )

    def example_loss(
        self, named: dict[str, Tensor], example: Tensor, target: Tensor, operators: TorchFunctionMode | None = None
    ) -> Tensor:
        if operators is not None:
            raise DpbenchError(
                "smooth: the engine watches the parameters, which a smoothed loss shifts; expected ghost, vmap or loop"
            )
        losses = [self.plain.example_loss(place, example, target) for place in self.shifted(named)]
        return torch.stack(losses).mean()


def smoothed(net: Network, shifts_KP: Tensor) -> Network:
    """The network with its loss averaged over the parameters θ + Δ_j, for shifts Δ_j (K, P) that gradients pass by.

    >>> net = network(nn.Linear(2, 3))
    >>> named = {name: value[0] for name, value in net.split(torch.zeros(1, 9)).items()}
    >>> example, target = torch.ones(2), torch.tensor(1)
    >>> one = smoothed(net, torch.ones(1, 9)).example_loss(named, example, target)
    >>> other = net.example_loss({name: value + 1 for name, value in named.items()}, example, target)
    >>> torch.equal(one, other)
    True
    """
    return Smoothed(net.module, net.shapes, net.size, net, net.split(shifts_KP), objective=net.objective)


def network(module: nn.Module, device: torch.device | str = "cpu", objective: Objective = CLASSIFICATION) -> Network:
    """Lay out a module's trained parameters. `plan.probe.try_model` tests whether a module can be trained."""
    shapes = tuple((name, value.shape) for name, value in trained(module).items())
    size = sum(shape.numel() for _, shape in shapes)
    if size == 0:
        raise DpbenchError("the model has no parameters to train; expected a torch module with at least one")
    return Network(module.to(device), shapes, size, objective=objective)


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name: all but those with `requires_grad=False`.

    >>> layer = nn.Linear(2, 1)
    >>> _ = layer.bias.requires_grad_(False)
    >>> list(trained(layer))
    ['weight']
    """
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def initial_parameters(build: Callable[[], nn.Module], seed: int) -> Tensor:
    """The flat initial parameters (P,) of one run: the module's own initialisation under a seed derived from `seed`.

    Made on the CPU, so that every device gets the same; torch's generator is restored afterwards.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(randomness.derived_seed(seed, randomness.INIT))
        module = build()
    return torch.cat([parameter.detach().flatten() for parameter in trained(module).values()]).float()


def finite_runs(values_RP: Tensor) -> Tensor:
    """Whether all values of a run are finite, (R,) booleans, without copies of the values as `isfinite` makes them.

    >>> finite_runs(torch.tensor([[0.0, 1.0], [-float("inf"), 1.0], [1.0, float("nan")]])).tolist()
    [True, False, False]
    """
    return values_RP.amin(1).isfinite() & values_RP.amax(1).isfinite()


def over_runs(function: Callable[..., Any], named: dict[str, Tensor], *values: Tensor) -> Any:
    """The function of one run's parameters and values, for every run of a stack; one run alone takes no run axis.

    >>> over_runs(lambda named, x: named["a"] * x, {"a": torch.tensor([[2.0]])}, torch.tensor([[3.0]]))
    tensor([[6.]])
    """
    if len(next(iter(named.values()))) != 1:
        return vmap(function)(named, *values)
    # Not [0]: its backward pass fills a tensor with zeros and copies into it.
    found = function({name: value.squeeze(0) for name, value in named.items()}, *(value.squeeze(0) for value in values))
    return tree_map(lambda value: value[None] if isinstance(value, Tensor) else value, found)


def evaluate(
    net: Network,
    theta_RP: Tensor,
    inputs: Tensor,
    targets: Tensor,
    chunk: int,
    view: Callable[[Tensor], Tensor | None] = lambda _: None,
) -> tuple[Tensor, Tensor]:
    """Mean loss and metric of each run on one set of examples: two float64 tensors of shape (R,).

    The metric is that of the network's objective: accuracy as a fraction, RMSE, or perplexity.

    `view` maps inputs (B, ...) to what each run's network gets, (R, B, ...), or to None for the inputs themselves.
    The network gets copies. Raises DpbenchError if it writes into them or into the parameters.
    """
    named, version = net.split(theta_RP), theta_RP._version
    loss_R = torch.zeros(theta_RP.shape[0], dtype=torch.float64, device=theta_RP.device)
    score_R = torch.zeros_like(loss_R)
    one_by_one = theta_RP.device.type == "cpu" or len(theta_RP) == 1 or loops(net.module) > 0
    with torch.no_grad():
        for start in range(0, len(targets), chunk):
            x, y_B = inputs[start : start + chunk].clone(), targets[start : start + chunk]
            seen = view(x)
            if one_by_one:  # so that layers keep their own kernels
                alone = ({name: value[run] for name, value in named.items()} for run in range(len(theta_RP)))
                output_RBC = torch.stack(
                    [net.outputs(one, x if seen is None else seen[at]) for at, one in enumerate(alone)]
                )
            else:
                output_RBC = vmap(net.outputs, (0, None if seen is None else 0))(named, x if seen is None else seen)
            if x._version or theta_RP._version != version:
                raise DpbenchError("the model writes into its inputs or parameters: compute on copies, not in place")
            more_R, right_R = losses.sums(net.objective, output_RBC, y_B)
            loss_R += more_R
            score_R += right_R
    return loss_R / len(targets), losses.measured(net.objective.metric, score_R, len(targets))
