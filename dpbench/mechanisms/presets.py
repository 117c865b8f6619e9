"""The shipped mechanisms that are chains of stages: one row each, in the form of `pipeline`.

A preset's parameters are those of its stages. If a row names several updates, the parameter `optimizer` chooses one;
the first is the default. docs/mechanisms.md describes each; the proofs are beside the stages (`clipping/rules/`,
`step/`).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from dpbench.catalog import STAGES, find
from dpbench.errors import DpbenchError

if TYPE_CHECKING:
    from dpbench.step.mechanism import Mechanism

NUMERICS = 1

ANY = ("sgd", "momentum", "adam")


@dataclass(frozen=True)
class Preset:
    """A row: title and stages. `defaults` of parameters; `as_printed`: the stages of that `variant`."""

    about: str
    clip: str = "flat"
    noise: str = "constant"
    update: str | tuple[str, ...] = "sgd"
    prepare: str = "none"
    smooth: str = "none"
    sample: str = "poisson"
    as_printed: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stages(self) -> dict[str, str | tuple[str, ...]]:
        return {
            "sample": self.sample,
            "prepare": self.prepare,
            "smooth": self.smooth,
            "clip": self.clip,
            "noise": self.noise,
            "update": self.update,
        }


FIXED_SIZE = {"sample": "fixed_size"}  # the batches of jl2021 as printed
CONSTANT = {"noise_decay": 0.0}
PRESETS: Mapping[str, Preset] = {
    "noisy_sgd": Preset("NoisySGD (bu2020, Algorithm 1)."),
    "noisy_adam": Preset("NoisyAdam (bu2020, Algorithm 2).", update="adam"),
    "non_private": Preset(
        "Training without privacy: no clipping, no noise.", clip="none", noise="none", update=("sgd", "adam")
    ),
    "decaying_sgd": Preset(
        "DP-SGD whose noise decays exponentially with the epochs (Yu et al. 2019).", noise="decaying", update=ANY
    ),
    "normalised_sgd": Preset(
        "DP-SGD on inputs standardised with private statistics (Tramèr and Boneh 2021).",
        prepare="channel_statistics",
        update=("momentum", "sgd", "adam"),
    ),
    "dplis": Preset("DPlis (dplis2021, Algorithm 2): NoisySGD on a smoothed loss.", smooth="gaussian"),
    "automatic_sgd": Preset(
        "DP-SGD with automatic clipping: every gradient times C/(norm + norm_offset) (Bu et al. 2023).",
        clip="automatic",
        update=ANY,
    ),
    "quantile_clipping_sgd": Preset(
        "DP-SGD whose clip norm follows a private quantile of the norms (Andrew et al. 2021).",
        clip="quantile",
        update=ANY,
    ),
    "dp_lssgd": Preset(
        "DP-LSSGD: NoisySGD whose noisy gradient is smoothed by a Laplacian (Wang et al. 2019).",
        update="laplacian_sgd",
    ),
    "shuffled_sgd": Preset(
        "DP-SGD on shuffled epochs in place of Poisson samples, accounted without amplification.",
        sample="shuffled",
        update=ANY,
    ),
    "microbatched_sgd": Preset("DP-SGD with microbatches and the right sensitivity.", clip="microbatch"),
    "dp_sgd_jl": Preset(
        "DP-SGD-JL (jl2021, Algorithm 1): norms estimated by random projections.",
        clip="jl",
        noise="decaying",
        as_printed=FIXED_SIZE,
        defaults=CONSTANT,
    ),
    "dp_adam_jl": Preset(
        "DP-Adam-JL (jl2021, Algorithm 3): DP-SGD-JL's noisy gradient, Adam's update.",
        clip="jl",
        noise="decaying",
        update="adam",
        as_printed={**FIXED_SIZE, "update": "adam_as_printed"},
        defaults=CONSTANT,
    ),
}


class Factory:
    """Builds a mechanism from the parameters of `make` and those of its stages, in one list.

    `make` takes stages as keyword arguments (`STAGES`); `ENGINE` names the parameters that change no result.
    """

    def __init__(
        self,
        name: str,
        make: Callable[..., Mechanism],
        stages: Mapping[str, str | tuple[str, ...]],
        about: str,
        as_printed: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.__name__, self.__doc__, self.about = name, about, about.partition("\n")[0]
        self._make, self._fixed, self._printed = make, dict(stages), dict(as_printed or {})
        self._own = [one for one in _parameters(make) if one.name not in STAGES]
        found = {one.name: one for one in self._own}
        engines: list[str] = []
        for stage, names in stages.items():
            if stage == "engine":
                found["clipping"] = _parameter("clipping", str, names)
                engines.append("clipping")
                continue
            if isinstance(names, tuple):
                found["optimizer"] = _parameter("optimizer", Literal[names], names[0])
            for one in _each(names):
                loaded = None if one == "none" and stage != "clip" else find(STAGES[stage], one)
                if loaded is not None:
                    for own in _parameters(loaded.load()):
                        _refuse_unlike(name, found.get(own.name, own), own)
                        found[own.name] = own
                    engines += getattr(importlib.import_module(loaded.module), "ENGINE", ())
        if self._printed:
            found["variant"] = _parameter("variant", Literal["proven", "as_printed"], "proven")
        for parameter, value in (defaults or {}).items():
            found[parameter] = found[parameter].replace(default=value)
        self.ENGINE = tuple(engines)
        self.__signature__ = inspect.Signature(
            [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in found.values()]
        )

    def pipeline_stages(self, **parameters: Any) -> dict[str, Any]:
        """The stages in the form of `pipeline`. Raises DpbenchError for an unknown optimizer or variant."""
        bound = self.__signature__.bind(**parameters)
        bound.apply_defaults()
        values = bound.arguments
        for name in ("optimizer", "variant"):
            known = getattr(self.__signature__.parameters.get(name), "annotation", None)
            choices = getattr(known, "__args__", ())
            if choices and values[name] not in choices:
                raise DpbenchError(f"{name} = {values[name]!r}: expected one of {', '.join(choices)}")
        fixed = self._fixed | (self._printed if values.get("variant") == "as_printed" else {})
        found: dict[str, Any] = {}
        for stage, names in fixed.items():
            name = values["optimizer"] if isinstance(names, tuple) else names
            if stage == "engine":
                found[stage] = values["clipping"]
            elif name == "none":
                found[stage] = name
            else:
                taken = (one.name for one in _parameters(find(STAGES[stage], name).load()))
                found[stage] = {"name": name, "parameters": {one: values[one] for one in taken if one in values}}
        return found

    def __call__(self, **parameters: Any) -> Mechanism:
        stages = self.pipeline_stages(**parameters)
        return self._make(**{one.name: parameters[one.name] for one in self._own if one.name in parameters}, **stages)


def _refuse_unlike(preset: str, one: inspect.Parameter, other: inspect.Parameter) -> None:
    """Raise DpbenchError where two stages have a parameter of one name that means different things."""
    if (one.default, one.annotation) != (other.default, other.annotation):
        raise DpbenchError(
            f"mechanism {preset}: two of its stages have a parameter {one.name!r}, with the defaults {one.default!r}"
            f" and {other.default!r}; expected one meaning for each name: rename one of them"
        )


def _each(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


@cache
def _parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(function, eval_str=True).parameters.values())


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def __getattr__(name: str) -> Factory:
    """The factory of a row, made at first use because stages import torch."""
    if name not in PRESETS:
        raise AttributeError(f"module {__name__} has no attribute {name!r}")
    from dpbench.mechanisms.pipeline import DEFAULT_ENGINE, mechanism

    row = PRESETS[name]
    engine = {"engine": DEFAULT_ENGINE} if hasattr(find("rules", row.clip).load(), "weight") else {}
    made = Factory(name, mechanism, row.stages | engine, row.about, row.as_printed, row.defaults)
    globals()[name] = made
    return made
