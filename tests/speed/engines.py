"""Clipping engines side by side: seconds and peak memory of one clipped sum of one run, for three kinds of layers."""

from __future__ import annotations

import time
from dataclasses import fields
from functools import cache, partial
from typing import Any, get_args

import torch

from . import imported, names, seeds

timer = time.process_time  # on one thread: what else the machine does counts less
repeat = (5, 20, 2.0)  # samples per process: at least, at most, and the seconds after which to stop

# model, its parameters, the shape of an example, classes, examples
WORK: dict[str, tuple[str, dict[str, Any], tuple[int, ...], int, int]] = {
    "wide": ("mlp", {"hidden": (256,)}, (1, 28, 28), 10, 64),
    "convolutions": ("tfp_cnn", {}, (1, 28, 28), 10, 32),
    "recurrent": ("imdb_lstm", {"words": 1000, "embedding": 32, "hidden": 32}, (40,), 2, 16),
}


@cache
def problem(work: str) -> tuple[Any, ...]:
    """What an engine takes: the network, one run's parameters, the examples, the clip norm, all in one chunk."""
    torch.set_num_threads(1)
    model, parameters, shape, classes, places = WORK[work]
    functional, base = imported("step.functional"), imported("step.clipped_sum")
    factory = imported(f"models.{model}").model

    def build() -> Any:
        return factory(shape, classes, **parameters)

    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(1, places, *shape, generator=generator)
    inputs = (1000 * inputs).floor() if work == "recurrent" else inputs
    targets = torch.randint(classes, (1, places), generator=generator)
    examples = base.Examples(inputs, targets, torch.ones(1, places, dtype=torch.bool))
    theta_RP = functional.initial_parameters(build, 0)[None]
    return functional.network(build()), theta_RP, examples, torch.ones(1, dtype=torch.float64), places


def peak(engine: Any, model: str) -> int:
    """The most that torch's allocator held at once, above what was there before. Hardly any noise."""
    module, work = imported("clipping._measure"), problem(model)
    if hasattr(module, "cost"):  # in earlier commits
        found: int = module.cost(engine, *work, calls=1).peak_bytes
        return found
    engine(*work)
    now: int = module.peak_bytes(partial(engine, *work), torch.device("cpu"))
    return now


class Engines:
    """Each engine on each kind of model; the whole batch in one chunk."""

    params = (names("clipping"), tuple(WORK))
    param_names = ("engine", "model")

    def setup(self, engine: str, model: str) -> None:
        self.engine = imported(f"clipping.{engine}").clipping
        problem(model)

    def time_sum(self, engine: str, model: str) -> None:
        del engine
        self.engine(*problem(model))

    def track_peak_bytes(self, engine: str, model: str) -> int:
        """See `peak`."""
        del engine
        return peak(self.engine, model)

    track_peak_bytes.unit = "bytes"  # type: ignore[attr-defined]


class Projections:
    """The rule of DP-SGD-JL, whose norms are estimates, by the number of projections and the way to compute them."""

    params = ((1, 5, 30), ("jvp", "vjp", "layers"), tuple(WORK))
    param_names = ("projections", "way", "model")

    def setup(self, projections: int, way: str, model: str) -> None:
        made = imported("step.clipped_sum").Draw
        index_RB = torch.arange(problem(model)[-1])[None]
        values = (seeds(1), torch.zeros(1, dtype=torch.int64), index_RB, torch.ones(1, dtype=torch.float64), 1000)
        draw = made(*values[: len(fields(made))])  # earlier commits have fewer
        rules = imported("clipping.rules.jl")
        if way not in get_args(rules.Way):  # in earlier commits
            raise NotImplementedError
        rule = rules.ProjectedSum(projections, way)
        self.engine = rule.at(draw) if hasattr(rule, "at") else partial(rule.summed, draw)

    def time_sum(self, projections: int, way: str, model: str) -> None:
        del projections, way
        self.engine(*problem(model))

    def track_peak_bytes(self, projections: int, way: str, model: str) -> int:
        """See `peak`."""
        del projections, way
        return peak(self.engine, model)

    track_peak_bytes.unit = "bytes"  # type: ignore[attr-defined]
