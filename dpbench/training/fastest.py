"""Which clipping engine is the fastest for a model on this machine: measured before training, where a spec names none.

All engines compute the same sum up to rounding and draw nothing, so the choice is no part of a run's key; it is in the
record. It is made on copies of one test example, so what is trained on has no part in it. Work that takes long enough
to pay for a compiler tries that too (`COMPILED`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dpbench.catalog import build, find
from dpbench.clipping.vmap import Compiled
from dpbench.step.clipped_sum import Examples
from dpbench.step.functional import Network, smoothed
from dpbench.store.run_key import COMPILED, PLAIN

ENGINES = ("vmap", "ghost")  # the first is taken where nothing is measured
MARGIN = 1.5  # another one must be so many times faster: what is about equal stays the same on every run
LONG = 900.0  # seconds of a stack from which on compiling is tried, which takes a minute or more
COMPILED_MARGIN = 1.2  # as MARGIN: work that is so long is not repeated for its last bits
SHORT = 15.0  # seconds of a stack with the first engine in which nothing else is tried: short runs repeat bit for bit


@dataclass(frozen=True)
class Chosen:
    """The engine, and seconds of one clipped sum of those that were tried (none where the first is taken untried).

    Where several were tried, the `plain` pass without clipping stands beside them. Where torch could not compile, a
    sentence stands in place of the seconds. `made` is the engine if it is compiled.
    """

    engine: str
    seconds: Mapping[str, float | str] = field(default_factory=dict)
    made: Any = None


def fastest(
    mechanism: Any,
    net: Network,
    theta_RP: Tensor,
    example: Tensor,
    target: Tensor,
    places: int,
    steps: int,
    chunk: Callable[[Any], int],
    compiles: bool = True,
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

    def timed(engine: Any, calls: int = 2, of: Any = None) -> float | None:
        """Seconds of the last of some calls, because torch remembers much in a first one; None if it raises."""
        taken = math.inf
        try:
            places_of_call = chunk(of or engine)
            for _ in range(calls):
                begin = time.perf_counter()
                for first in range(0, runs, at_once):
                    of = slice(first, first + at_once)
                    engine(trained, theta_RP[of], examples.runs(of), clip_R[of], places_of_call)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                taken = time.perf_counter() - begin
        except Exception:  # noqa: BLE001 - it says so if it is the one that trains
            return None
        return taken

    seconds: dict[str, float] = {}
    for name in ENGINES:
        if (taken := timed(find("clipping", name).load())) is not None:
            seconds[name] = taken
        if seconds.get(name, math.inf) * steps < SHORT:
            break
    several = len(seconds) > 1
    best = min(seconds, key=seconds.__getitem__, default=ENGINES[0])
    usual = seconds.get(ENGINES[0])
    if usual is not None and usual < MARGIN * seconds[best]:
        best = ENGINES[0]
    if several:
        rule: Any = build("rules", "none")
        taken = timed(lambda *call: rule.summed(None, *call), of=rule)
        seconds |= {PLAIN: taken} if taken is not None else {}
    worth = seconds.get(best, 0.0) * steps >= LONG and getattr(mechanism, "augmentation", None) is None
    if not (compiles and worth and shifts == 1):
        return Chosen(best, seconds)
    made = Compiled(net)
    taken, least = timed(made, 4), seconds[best]
    if made.refusal or taken is None:
        return Chosen(best, {**seconds, COMPILED: made.refusal or "it failed"})
    found = {**seconds, COMPILED: taken}
    return Chosen(COMPILED, found, made) if COMPILED_MARGIN * taken < least else Chosen(best, found)


def engine_named(name: str, net: Network) -> Any:
    """The clipping engine of a name, for training this network."""
    return Compiled(net) if name == COMPILED else build("clipping", name)
