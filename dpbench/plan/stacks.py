"""Which runs are trained together, and about how long each takes."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpbench.plan.cache import Cache
from dpbench.plan.parts import build_mechanism, sizes
from dpbench.plan.runs import Run, Stack
from dpbench.spec.loading import Spec
from dpbench.store.provenance import device_name
from dpbench.store.run_key import BY_RUN, FASTEST, plain
from dpbench.store.speed import engine_words

MOST_PER_STACK = 16
SMALL_STEP = 2e8  # floating-point operations of a step that one thread does in some 10 ms


def stacks(runs: Iterable[Run]) -> tuple[Stack, ...]:
    """Runs of the same dataset, model and mechanism, at most MOST_PER_STACK together, alike rates and lengths first."""
    groups: dict[str, dict[str, Run]] = {}
    first: dict[str, Run] = {}
    for run in runs:
        if run.action == "train" and first.setdefault(run.key, run) is run:
            groups.setdefault(_like(run.resolved, run.engine), {})[run.key] = run
    stacks = []
    for group in groups.values():
        ordered = sorted(group.values(), key=lambda run: (run.sampling_rate, run.steps))
        stacks += [Stack(tuple(ordered[i : i + MOST_PER_STACK])) for i in range(0, len(ordered), MOST_PER_STACK)]
    return tuple(stacks)


def priced(runs: Sequence[Run], records: Iterable[Mapping[str, Any]], smoke: bool, kept: Cache) -> tuple[Run, ...]:
    """Estimated seconds of each run to be trained, or skipped for want of data.

    From similar records on this kind of device, else from its size.
    """
    if not any(run.action in ("train", "skip") for run in runs):
        return tuple(runs)
    measured: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for record in records:
        seconds, steps = record.get("own_seconds"), record["resolved"].get("steps")
        expected = record["facts"].get("expected_batch_size")
        if seconds and steps and expected and {"dataset", "model", "mechanism"} <= set(record["resolved"]):
            made = record.get("environment", {})
            kind = str(made.get("device", "")).split(":")[0]
            named = {name: BY_RUN.get(str(one), one) for name, one in made.get("engine", {}).items()}
            engines: tuple[Mapping[str, Any], ...] = (named, {})
            for engine in engines:
                like = _like(record["resolved"], engine)
                measured.setdefault((like, kind), []).append((expected, seconds / steps))
    priced = []
    for run in runs:
        if run.action not in ("train", "skip"):
            priced.append(run)
            continue
        expected = run.sampling_rate * run.examples
        engine = {} if FASTEST in run.engine.values() else run.engine  # of any engine, for the choice is measured
        near = measured.get((_like(run.resolved, engine), run.device.split(":")[0]), [])
        near = [(b, s) for b, s in near if expected / 2 <= b <= expected * 2]
        if near:
            per_step = sorted(s * expected / b for b, s in near)[len(near) // 2]
        else:
            per_step = _step_seconds(run, expected, kept)
        steps = min(2, run.steps) if smoke else max(0, run.steps - run.done)
        priced.append(replace(run, estimate=per_step * steps))
    return tuple(priced)


def usual_threads(spec: Spec, examples: float, device: str, kept: Cache | None = None) -> int:
    """Torch's threads for steps of so many examples: one for small work on a CPU, else torch's own number.

    In small work threads wait for each other longer than they help, above all on a machine that is busy otherwise.
    """
    import torch

    small = device == "cpu" and 3 * examples * sizes(spec, kept).operations < SMALL_STEP
    return 1 if small else torch.get_num_threads()


def engine_question(runs: Sequence[Run], threads: int) -> list[object]:
    """What the fastest engine of a stack depends on, for `Cache.engine`; code of others takes part by its hash.

    So does the C++ compiler that torch would take: where it was absent, compiling is tried when it is there.
    """
    first = runs[0]
    sizes_of = [max(math.ceil(run.sampling_rate * run.examples) for run in runs), max(run.steps for run in runs)]
    named = {} if FASTEST in first.engine.values() else first.engine
    code = json.dumps(first.resolved.get("numerics"), sort_keys=True)
    compiler = shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++"))
    return [_like(first.resolved, named), code, len(runs), *sizes_of, device_name(first.device), threads, compiler]


def with_engines(runs: Sequence[Run], kept: Cache) -> tuple[Run, ...]:
    """The runs that are due, with what an earlier measurement chose for their stacks in the reason."""
    told: dict[str, str] = {}
    for stack in stacks(runs):
        if stack.runs[0].engine:
            first, examples = stack.runs[0], sum(run.sampling_rate * run.examples for run in stack.runs)
            threads = usual_threads(first.spec, examples, first.device.split(":")[0], kept)
            found = kept.engine(engine_question(stack.runs, threads))
            if found is not None:
                told |= dict.fromkeys((run.key for run in stack.runs), engine_words(**found))
    return tuple(
        replace(run, reason=f"{run.reason}; {told[run.key]}") if run.action == "train" and run.key in told else run
        for run in runs
    )


def _like(resolved: Mapping[str, Any], engine: Mapping[str, Any]) -> str:
    """What the runs of one stack have in common, as a string."""
    parts = [resolved.get(part) for part in ("dataset", "model", "mechanism", "randomness", "loss", "metric")]
    return json.dumps(plain([*parts, engine]), sort_keys=True)


def _step_seconds(run: Run, expected_batch: float, kept: Cache | None = None) -> float:
    """A guess, mostly within a factor of three, from what a forward pass computes, the parameters and the mechanism."""
    mechanism = build_mechanism(run.spec)
    operations, parameters, written = sizes(run.spec, kept)
    engine = sys.modules.get(getattr(getattr(mechanism, "engine", None), "__module__", ""))
    formed = mechanism.private and not hasattr(engine, "numbers")  # whether each record's gradient is
    # Operations, numbers that layers write, numbers of gradients, and drawn numbers a second.
    rate, moved, memory, draws = (2e12, 5e11, 5e11, 2e10) if run.device.startswith("cuda") else (3e10, 4e8, 7e8, 2.5e7)
    one_pass = operations / rate + written / moved
    each = 3 * one_pass + formed * parameters / memory
    if formed and FASTEST in run.engine.values():  # one that forms no gradient does more for each layer
        each = min(each, 5 * one_pass)
    batch = 5e-4 + expected_batch * each
    shifts = getattr(mechanism, "places_of_a_record", 1) - 1  # of all parameters, drawn in every step
    drawn = mechanism.private * 1e-3 + (shifts * parameters + run.examples) / draws  # a coin for each record
    more = getattr(mechanism, "more_operations", None)
    sizes_of = {"parameters": parameters, "examples": run.examples, "batch": expected_batch, "steps": run.steps}
    return drawn + getattr(mechanism, "work", 1.0) * batch + (more(**sizes_of) / rate if more is not None else 0.0)
