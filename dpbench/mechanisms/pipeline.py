"""A mechanism from its stages, each a name or one with parameters: sample, prepare, augment, smooth, clip, noise,
update, average.

Every preset is written in this form (`presets.py`); docs/own_mechanism.md has examples. `noise: none` is training
without privacy, `prepare: none` and `augment: none` leave the inputs unchanged, `smooth: none` the loss, and `average:
none` evaluates the parameters themselves. `engine` computes the sum of a rule with weights; it changes no result beyond
rounding and is no part of a run's key.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor

from dpbench.catalog import Later, OfKind, build
from dpbench.errors import DpbenchError
from dpbench.step.pipeline import Pipeline
from dpbench.step.stages import Update

NUMERICS = 1
ENGINE = ("engine",)

DEFAULT_ENGINE = "vmap"
Stage = str | dict[str, Any]


def mechanism(
    *,
    sample: Annotated[Stage, OfKind("samplers")] = "poisson",
    prepare: Annotated[Stage, OfKind("preparations", none=True)] = "none",
    augment: Annotated[Stage, OfKind("augmentations", none=True), Later("none")] = "none",
    smooth: Annotated[Stage, OfKind("smoothings", none=True)] = "none",
    clip: Annotated[Stage, OfKind("rules")] = "flat",
    noise: Annotated[Stage, OfKind("noise", none=True)] = "constant",
    update: Annotated[Stage, OfKind("updates")] = "sgd",
    average: Annotated[Stage, OfKind("averages", none=True), Later("none")] = "none",
    engine: Annotated[str | None, OfKind("clipping")] = None,
    regularisation: Annotated[float, Later(0.0)] = 0.0,
) -> Pipeline:
    """Each stage is `name`, or `{"name": name, "parameters": {...}}`; `engine`: vmap if the rule needs one.

    `regularisation` is λ of (λ/2)‖θ‖², which the objective then has beside the mean loss; every preset has it.
    Raises DpbenchError for stages that do not fit together, or a λ that is not finite or below 0.

    >>> made = mechanism(clip="jl", update={"name": "momentum", "parameters": {"momentum": 0.5}})
    >>> made.optimizer.momentum, made.event(0.01, 1.0).projections
    (0.5, 30)
    """
    rule = build("rules", clip)
    chosen = _engine(rule, engine)
    if augment != "none" and chosen == "ghost":
        raise DpbenchError(
            "engine: ghost takes gradients of one input of each example, not of its views; expected vmap or loop"
        )
    return Pipeline(
        sample=build("samplers", sample),
        rule=rule,
        noise=None if noise == "none" else build("noise", noise),
        optimizer=regularised(build("updates", update), regularisation),
        engine=None if chosen is None else build("clipping", chosen),
        preparation=None if prepare == "none" else build("preparations", prepare),
        smoothing=None if smooth == "none" else build("smoothings", smooth),
        average=None if average == "none" else build("averages", average),
        augmentation=None if augment == "none" else build("augmentations", augment),
    )


@dataclass(frozen=True)
class Regularised:
    """An `Update` that adds λθ, the gradient of (λ/2)‖θ‖², to what it gets, and then takes the step of another one.

    θ is what earlier steps released, so λθ costs no privacy, and no clipping takes it.
    """

    optimizer: Update
    regularisation: float

    @property
    def memory(self) -> tuple[str, ...]:
        return self.optimizer.memory

    def __call__(
        self, theta_P: Tensor, memory: Mapping[str, Tensor], gradient_P: Tensor, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return self.optimizer(theta_P, memory, gradient_P + self.regularisation * theta_P, rate, step)


def regularised(optimizer: Update, regularisation: float) -> Update:
    """The update of a loss with (λ/2)‖θ‖². Raises DpbenchError for a λ that is not finite or below 0.

    >>> regularised(build("updates", "sgd"), 0.0)
    Sgd()
    """
    if not 0 <= regularisation < math.inf:
        raise DpbenchError(f"regularisation = {regularisation!r}: expected a finite number, 0 or more")
    return Regularised(optimizer, regularisation) if regularisation > 0 else optimizer


def stages(**parameters: Any) -> dict[str, Any]:
    """All the stages that these parameters give, with the engine."""
    bound = inspect.signature(mechanism).bind(**parameters)
    bound.apply_defaults()
    found = bound.arguments
    del found["regularisation"]
    return found | {"engine": _engine(build("rules", found["clip"]), found["engine"])}


def _engine(rule: Any, given: str | None) -> str | None:
    return DEFAULT_ENGINE if given is None and hasattr(rule, "weight") else given


setattr(mechanism, "pipeline_stages", stages)  # noqa: B010 (a function has no such attribute for mypy)
