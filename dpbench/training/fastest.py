"""Which clipping engine is the fastest for a model on this machine: measured before training, where a spec names none.

All engines compute the same sum up to rounding and draw nothing, so the choice is no part of a run's key; it is in the
record. It is made on copies of one test example, so what is trained on has no part in it.
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
    target: Tensor,
    places: int,
    steps: int,
    chunk: Callable[[Any], int],
) -> Chosen:
    """Try every engine on one batch of so many `places` a run, `chunk(engine)` of them in a call.

    `example` (no batch axis) and its `target` fill the places. An engine that cannot take the model is left out; one
    alone is tried where the stack's `steps` take little time with it.
    """
    runs, device = len(theta_RP), theta_RP.device
    filled = torch.ones(runs, places, dtype=torch.bool, device=device)
    inputs, targets = (value.expand(runs, places, *value.shape).clone() for value in (example, target))
    examples = Examples(inputs, targets, filled)
    clip_R = torch.ones(runs, dtype=torch.float64, device=device)
    shifts = getattr(mechanism, "places_of_a_record", 1)
    # A smoothed loss is that of one run at a time.
    trained, at_once = (smoothed(net, theta_RP.new_zeros(shifts, net.size)), 1) if shifts > 1 else (net, runs)
    seconds = {}
    for name in ENGINES:
        engine = find("clipping", name).load()

        def call(places_of_call: int, engine: Any = engine) -> None:
            for first in range(0, runs, at_once):
                of = slice(first, first + at_once)
                engine(trained, theta_RP[of], examples.runs(of), clip_R[of], places_of_call)

        try:
            places_of_call = chunk(engine)
            for _ in range(2):  # torch remembers much in a first call
                begin = time.perf_counter()
                call(places_of_call)
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
