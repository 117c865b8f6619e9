"""Which clipping engine is the fastest for a model on this machine: measured before training, where a spec names none.

All engines compute the same sum up to rounding and draw nothing, so the choice is no part of a run's key; it is in the
record. It is made on inputs of its own and not on the data, so what is trained on has no part in it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dpbench.catalog import find
from dpbench.step.clipped_sum import Examples
from dpbench.step.functional import Network, smoothed

ENGINES = ("vmap", "ghost")  # the first is taken where nothing is measured
MARGIN = 1.5  # another one must be so many times faster: what is about equal stays the same on every run
SHORT = 15.0  # seconds of a stack with the first engine in which nothing else is tried: short runs repeat bit for bit


@dataclass(frozen=True)
class Chosen:
    """The engine, and seconds of one clipped sum of those that were tried (none where the first is taken untried)."""

    engine: str
    seconds: Mapping[str, float] = field(default_factory=dict)


def fastest(
    mechanism: Any,
    net: Network,
    theta_RP: Tensor,
    example: Tensor,
    places: int,
    steps: int,
    chunk: Callable[[Any], int],
) -> Chosen:
    """Try every engine on one batch of so many `places` a run, `chunk(engine)` of them in a call.

    `example` (no batch axis) gives shape and type of the inputs. An engine that cannot take the model is left out; one
    alone is tried where the stack's `steps` take little time with it.
    """
    runs = len(theta_RP)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.zeros(runs, places, *example.shape, dtype=example.dtype)
    if example.is_floating_point():
        inputs = torch.rand(inputs.shape, generator=generator, dtype=example.dtype)
    device = theta_RP.device
    target = torch.zeros(runs, places, dtype=torch.int64 if net.objective.loss == "cross_entropy" else torch.float32)
    filled = torch.ones(runs, places, dtype=torch.bool)
    examples = Examples(inputs.to(device), target.to(device), filled.to(device))
    clip_R = torch.ones(runs, dtype=torch.float64, device=device)
    shifts = getattr(mechanism, "places_of_a_record", 1)
    seconds = {}
    for name in ENGINES:
        engine = find("clipping", name).load()

        def call(engine: Any = engine) -> None:
            places_of_call = chunk(engine)
            for run in range(runs) if shifts > 1 else [slice(None)]:
                of = slice(run, run + 1) if isinstance(run, int) else run
                moved = smoothed(net, theta_RP.new_zeros(shifts, net.size)) if shifts > 1 else net
                engine(moved, theta_RP[of], examples.runs(of), clip_R[of], places_of_call)

        try:
            for _ in range(2):  # torch remembers much in a first call
                begin = time.perf_counter()
                call()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                seconds[name] = time.perf_counter() - begin
        except Exception:  # noqa: BLE001 - it says so if it is the one that trains
            seconds.pop(name, None)
        if seconds.get(name, math.inf) * steps < SHORT:
            break
    best = min(seconds, key=seconds.__getitem__, default=ENGINES[0])
    usual = seconds.get(ENGINES[0])
    if usual is not None and usual < MARGIN * seconds[best]:
        best = ENGINES[0]
    return Chosen(best, seconds)
