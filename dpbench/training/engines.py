"""Measures the clipping engines on the models of specs: seconds and peak memory of one clipped sum.

The plain backward pass (no clipping) is measured for comparison, and so is DP-SGD-JL with some numbers of projections,
which estimates norms and so computes another sum with another event.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.catalog import build, catalog, find
from dpbench.clipping._measure import cost
from dpbench.errors import DpbenchError
from dpbench.plan.parts import dataset_source, model_builder, objective_of, outputs_of
from dpbench.plan.probe import try_model
from dpbench.spec.loading import Spec
from dpbench.step.clipped_sum import Clipped, Draw, Examples
from dpbench.step.functional import Network, initial_parameters, network
from dpbench.training.loop import Execution, numbers_of_a_place, on_threads, usual_threads

PLAIN = "plain"
JL = "jl"


@dataclass(frozen=True)
class EngineCost:
    """One engine on one model: `seconds` of one clipped sum of `places` examples, and its peak memory in bytes.

    `refusal` says why there is no measurement. `inputs` is `data`, or `zeros` where the dataset is absent.
    """

    dataset: str
    model: str
    parameters: int
    engine: str
    places: int
    chunk: int
    inputs: str
    device: str
    threads: int
    seconds: float | None = None
    peak_bytes: int | None = None
    refusal: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


Work = tuple[Network, Tensor, Examples]  # a model, parameters (1, P), and examples to clip


def engine_names(projections: Sequence[int] = ()) -> tuple[str, ...]:
    """All names of engines that can be measured, in the order of the table.

    >>> engine_names((5,))[0], engine_names((5,))[-1]
    ('plain', 'jl 5')
    """
    return (PLAIN, *catalog("clipping"), *(f"{JL} {count}" for count in projections))


def measure(
    specs: Sequence[Spec],
    *,
    places: int = 32,
    engines: Sequence[str] = (),
    projections: Sequence[int] = (1, 5, 30),
    device: str = "cpu",
    chunk: int | None = None,
    data: Path | None = None,
    calls: int = 3,
    threads: int | None = None,
    watch: Callable[[str, str], None] = lambda _model, _engine: None,
) -> Iterator[EngineCost]:
    """Measure every engine on every model of the specs; a refusal is a result.

    `engines`: names of `engine_names`, by default all. `chunk` (places per call) and `threads` are by default those of
    training. Raises DpbenchError for an unknown engine.
    """
    known = engine_names(projections)
    for name in engines:
        if name not in known:
            raise DpbenchError(f"engine {name!r}: expected one of {', '.join(known)}")
    for spec in _different(specs):
        row, work = _work(spec, places, device, data, threads)
        for name in engines or known:
            watch(row.model, name)
            yield _measured(replace(row, engine=name), work, chunk, calls)


def _different(specs: Sequence[Spec]) -> list[Spec]:
    """The first spec of each pair of dataset and model."""
    first: dict[str, Spec] = {}
    for spec in specs:
        first.setdefault(json.dumps([asdict(spec.dataset), asdict(spec.model)], sort_keys=True, default=str), spec)
    return list(first.values())


def _work(spec: Spec, places: int, device: str, data: Path | None, threads: int | None) -> tuple[EngineCost, Work]:
    source = dataset_source(spec)
    make = model_builder(spec, source)
    try_model(make, tuple(source.input_shape), outputs_of(spec, source))
    net = network(make(), device, objective_of(spec, source))
    absent = bool(source.missing(data))
    if absent:
        inputs, targets = torch.zeros(places, *source.input_shape), torch.arange(places) % source.classes
    else:
        loaded = source.load(data)
        if places > len(loaded.train_targets):
            raise DpbenchError(
                f"batch = {places}: larger than the {len(loaded.train_targets)} examples of {source.name}"
            )
        inputs, targets = loaded.train_inputs[:places], loaded.train_targets[:places]
    examples = Examples(
        inputs[None].to(device), targets[None].to(device), torch.ones(1, places, dtype=torch.bool, device=device)
    )
    theta_RP = initial_parameters(make, 0)[None].to(device)
    inputs_are = "zeros" if absent else "data"
    threads = threads or usual_threads(spec, places, device)
    row = EngineCost(spec.dataset.name, spec.model.name, net.size, "", places, 0, inputs_are, device, threads)
    return row, (net, theta_RP, examples)


def _measured(row: EngineCost, work: Work, chunk: int | None, calls: int) -> EngineCost:
    net, _, examples = work
    try:
        clip_R = torch.ones(1, dtype=torch.float64, device=row.device)
        engine = _engine(row.engine, work)
        summing = getattr(engine, "func", engine)  # of a rule that sums itself, given its draw
        numbers = numbers_of_a_place(summing, net, examples.inputs[0, 0], examples.targets[0, 0])
        row = replace(row, chunk=min(chunk or Execution(row.device).chunk(1, numbers), row.places))
        with on_threads(row.threads):
            found = cost(engine, *work, clip_R, row.chunk, calls)
    except Exception as error:  # noqa: BLE001 - an engine may raise anything for a model that it does not support
        return replace(row, refusal=" ".join(str(error).split())[:300] or type(error).__name__)
    return replace(row, seconds=found.seconds, peak_bytes=found.peak_bytes)


def _engine(name: str, work: Work) -> Callable[..., Clipped]:
    """The engine of that name, or the sum of the rule jl or none. Raises DpbenchError for an unsupported layer."""
    net, theta_RP, examples = work
    if name == PLAIN or name.startswith(f"{JL} "):
        device, places = theta_RP.device, examples.mask_RB.shape[1]
        zero_1, one_1 = torch.zeros(1, dtype=torch.int64, device=device), torch.ones(1).double().to(device)
        draw = Draw(randomness.table([0]).to(device), zero_1, torch.arange(places, device=device)[None], one_1, places)
        jl = {"name": JL, "parameters": {"projections": int(name.removeprefix(f"{JL} "))}} if name != PLAIN else "none"
        return partial(build("rules", jl).summed, draw)
    entry = find("clipping", name)
    refuse = getattr(importlib.import_module(entry.module), "refuse", None)
    if refuse is not None:
        refuse(net.module, examples.inputs[0, 0])
    engine: Callable[..., Clipped] = entry.load()
    return engine
