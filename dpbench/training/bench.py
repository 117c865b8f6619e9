"""Measures the ways to compute a clipped sum on the models of specs: seconds and peak memory.

Beside the clipping engines: torch's own step without dpbench; the plain backward pass (no clipping), eager and by
torch's compiler; DP-SGD-JL with some numbers of projections, which estimates norms and so computes another sum with
another event; Opacus, where installed.
All ways of a model are called in turn, so that what else the machine does falls on all of them.
"""

from __future__ import annotations

import importlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.catalog import build, catalog, find
from dpbench.clipping._measure import peak_bytes
from dpbench.clipping.vmap import Compiled, not_compiled
from dpbench.errors import DpbenchError
from dpbench.plan.parts import dataset_source, model_builder, objective_of, outputs_of
from dpbench.plan.probe import try_model
from dpbench.plan.stacks import usual_threads
from dpbench.spec.loading import Spec
from dpbench.step.clipped_sum import Clipped, Draw, Examples
from dpbench.step.functional import Network, initial_parameters, network
from dpbench.store.provenance import device_name, environment
from dpbench.store.run_key import COMPILED, PLAIN
from dpbench.store.speed import TORCH, SumLine, commit_of
from dpbench.training._opacus import WAYS, installed, opacus
from dpbench.training._operators import Operators, Shares
from dpbench.training._torch_step import torch_step
from dpbench.training.execution import Execution, give_back_memory, keep_freed_memory, on_threads, places_of_a_call

PLAIN_COMPILED = "plain compiled"
JL = "jl"


Work = tuple[Network, Tensor, Examples]  # a model, parameters (1, P), and examples to clip


def engine_names(projections: Sequence[int] = ()) -> tuple[str, ...]:
    """All names of what can be measured, in the order of the table; Opacus's last, where it is installed.

    >>> engine_names((5,))[:3], "jl 5" in engine_names((5,))
    (('torch', 'plain', 'plain compiled'), True)
    """
    ours = (TORCH, PLAIN, PLAIN_COMPILED, *catalog("clipping"), COMPILED, *(f"{JL} {count}" for count in projections))
    return (*ours, *(WAYS if installed() else ()))


def measure(
    specs: Sequence[Spec],
    *,
    places: int = 32,
    engines: Sequence[str] = (),
    projections: Sequence[int] = (1, 5, 30),
    device: str = "cpu",
    chunk: int | None = None,
    data: Path | None = None,
    calls: int = 5,
    threads: int | None = None,
    watch: Callable[[str, str], None] = lambda _model, _engine: None,
) -> Iterator[SumLine]:
    """Measure every way on every model of the specs, `calls` times in turn; a refusal is a result.

    `engines`: names of `engine_names`, by default all. `chunk` (places per call) is by default what memory allows, with
    which training begins its search; `threads` are those of training. Raises DpbenchError for an unknown engine.
    """
    known = engine_names(projections)
    for name in engines:
        if name not in known:
            raise DpbenchError(f"engine {name!r}: expected one of {', '.join(known)}")
    for spec in _different(specs):
        row, work = _work(spec, places, device, data, threads)
        with on_threads(row.threads):
            yield from _measured(row, work, engines or known, chunk, calls, watch)


def _different(specs: Sequence[Spec]) -> list[Spec]:
    """The first spec of each pair of dataset and model."""
    first: dict[str, Spec] = {}
    for spec in specs:
        first.setdefault(json.dumps([asdict(spec.dataset), asdict(spec.model)], sort_keys=True, default=str), spec)
    return list(first.values())


def _work(spec: Spec, places: int, device: str, data: Path | None, threads: int | None) -> tuple[SumLine, Work]:
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
    here = environment(with_torch=True)
    row = SumLine(
        dataset=spec.dataset.name,
        model=spec.model.name,
        parameters=net.size,
        engine="",
        places=places,
        chunk=0,
        inputs=inputs_are,
        device=device,
        device_name=device_name(device),
        threads=threads,
        made=str(here["time_utc"]),
        commit=commit_of(here),
    )
    return row, (net, theta_RP, examples)


def _measured(
    row: SumLine, work: Work, names: Sequence[str], chunk: int | None, calls: int, watch: Callable[[str, str], None]
) -> Iterator[SumLine]:
    """Each way once to warm up, then all of them in turn, then the memory and the operators of each."""
    rows: dict[str, SumLine] = {}
    called: dict[str, Callable[[], Any]] = {}

    def tried(name: str, what: Callable[[], Any]) -> None:
        watch(row.model, name)
        try:
            what()
        except Exception as error:  # noqa: BLE001 - a way may raise anything for a model that it does not support
            why = " ".join(str(error).split())[:300] or type(error).__name__
            rows[name] = replace(row, engine=name, refusal=why)
            called.pop(name, None)

    def made(name: str) -> None:
        rows[name], called[name] = _way(replace(row, engine=name), work, chunk)

    def profiled(name: str) -> Callable[[], Any]:
        """The same sum without the compiler, whose code would be one operator without a name that tells anything."""
        plain = name.removesuffix(" compiled")
        if plain in rows:  # where it refused, the code after all
            return called.get(plain, called[name])
        call = _way(replace(row, engine=plain), work, chunk)[1]
        call()  # to warm up
        return call

    for name in names:  # all are made before one is called, since a new compiled engine makes torch forget others
        tried(name, partial(made, name))
    for name, call in list(called.items()):
        tried(name, call)
    if row.device == "cpu":
        keep_freed_memory()  # as training does
    taken: dict[str, list[float]] = {name: [] for name in called}
    for number in range(calls):
        watch(row.model, f"call {number + 1} of {calls}")
        for name, call in called.items():
            begin = time.perf_counter()
            call()
            if row.device != "cpu":
                torch.cuda.synchronize(row.device)
            taken[name].append(time.perf_counter() - begin)
    give_back_memory()
    middle = {name: statistics.median(times) for name, times in taken.items()}
    for name in names:
        if name not in called:
            yield rows[name]
            continue
        watch(row.model, f"memory of {name}")
        own, plain, compiled = (middle.get(baseline) for baseline in (TORCH, PLAIN, PLAIN_COMPILED))
        yield replace(
            rows[name],
            seconds=middle[name],
            fastest=min(taken[name]),
            slowest=max(taken[name]),
            examples_per_second=row.places / middle[name],
            of_torch=own and middle[name] / own,
            of_plain=plain and middle[name] / plain,
            of_plain_compiled=compiled and middle[name] / compiled,
            peak_bytes=peak_bytes(called[name], torch.device(row.device)),
            operators=_operators(profiled(name), torch.device(row.device)),
        )


def _operators(call: Callable[[], Any], device: torch.device) -> Shares:
    seen = Operators(device)
    seen.begin()
    try:
        call()
    finally:
        shares = seen.end()
    return shares


def _way(row: SumLine, work: Work, chunk: int | None) -> tuple[SumLine, Callable[[], Any]]:
    """The row with its chunk, and what computes one sum. Raises DpbenchError for an unsupported layer."""
    net, theta_RP, examples = work
    whole = replace(row, chunk=row.places)
    if row.engine == TORCH:
        return whole, torch_step(*work)
    if row.engine in WAYS:
        return whole, opacus(row.engine, net, theta_RP, examples, 1.0)
    if row.engine == PLAIN_COMPILED:
        return whole, _plain_compiled(*work)
    clip_R = torch.ones(1, dtype=torch.float64, device=row.device)
    engine = _engine(row.engine, work)
    summing = getattr(engine, "func", engine)  # of a rule that sums itself, given its draw
    summing = getattr(summing, "__self__", summing)
    one = examples.inputs[0, 0], examples.targets[0, 0]
    usual = places_of_a_call(Execution(row.device), 1, summing, net, one, row.places)
    row = replace(row, chunk=min(chunk or usual, row.places))

    def call() -> Clipped:
        found = engine(net, theta_RP, examples, clip_R, row.chunk)
        if refusal := getattr(engine, "refusal", ""):
            raise DpbenchError(refusal)
        return found

    return row, call


def _plain_compiled(net: Network, theta_RP: Tensor, examples: Examples) -> Callable[[], Any]:
    """The gradient of the summed loss, by torch's compiler. A model that it cannot compile raises at the first call."""
    if refusal := not_compiled(net.module):
        raise DpbenchError(refusal)
    named = {name: value[0].clone() for name, value in net.split(theta_RP).items()}

    def loss(named: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return net.example_losses(named, inputs, targets).sum()

    compiled = torch.compile(torch.func.grad(loss), fullgraph=True, dynamic=False)
    return lambda: compiled(named, examples.inputs[0], examples.targets[0])


def _engine(name: str, work: Work) -> Callable[..., Clipped]:
    """The engine of that name, or the sum of the rule jl or none. Raises DpbenchError for an unsupported layer."""
    net, theta_RP, examples = work
    if name == COMPILED:
        return Compiled(net)
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
