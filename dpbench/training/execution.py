"""How the work of a run is executed: the device, torch's threads, and how much of a batch goes in one call.

None of it changes what a run computes beyond rounding, so none is part of a run's key.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpbench.clipping.vmap import Compiled
from dpbench.step.clipped_sum import RunByRun
from dpbench.step.functional import Network

CPU_CALL_BYTES = 1 << 25  # of what a clipping engine keeps for all runs of a stack in one call: what caches hold
# glibc's numbers of what is trimmed at the end of the heap, from which size a block has a mapping of its own, and how
# many have one; and what it starts with.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
_LARGE, _MOST_MAPPINGS = 1 << 17, 1 << 16


@dataclass(frozen=True)
class Execution:
    """How the work is executed. No part of a run's key, because it must not change results.

    `places_per_call`: batch places of all runs together in one call; None chooses by device and memory, and measures.
    `engine`: the clipping engine of mechanisms that take one; None takes what the spec names, else the fastest, which
    may be compiled by torch if `compiles`.
    `at_once`: with `engine`, no more places of a run's batch than so many in one call.
    `checkpoint_seconds`: the time between two checkpoints of a stack, taken after the step that is then at work.
    """

    device: str = "cpu"
    places_per_call: int | None = None
    engine: str | None = None
    at_once: int | None = None
    compiles: bool = True
    checkpoint_seconds: float = 30.0

    def chunk(self, runs: int, numbers: int, expected: int = 0) -> int:
        """Batch places per call for one run of a stack of `runs`; a place takes so many `numbers`.

        Where a batch has as many places as are `expected`, half as many again may go in one call: a second call for the
        few that are left takes longer.

        >>> [Execution().chunk(1, 100_000, expected) for expected in (0, 80, 100, 200)]
        [83, 83, 124, 83]
        """
        if self.places_per_call is not None:
            return max(1, self.places_per_call // runs)
        if self.device.startswith("cuda"):
            free, _ = torch.cuda.mem_get_info(self.device)
            # What torch has kept of freed tensors is free as well.
            kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            places = int((free + kept) * 0.25) // (16 * numbers)
        else:
            places = CPU_CALL_BYTES // (4 * numbers)
        chunk = max(1, places // runs)
        return 3 * chunk // 2 if chunk < expected <= 3 * chunk // 2 else chunk


def numbers_of_a_place(summing: Any, net: Network, example: Tensor, target: Tensor, shifts: int = 1) -> int:
    """How many numbers a place of a batch takes: a gradient, or what the engine's or rule's file says (`numbers`).

    With a smoothed loss the gradient is one, the mean; what a file says is kept at each of the `shifts`.
    """
    summing = summing.engine if isinstance(summing, RunByRun) else summing
    own = getattr(summing, "numbers", None) or getattr(
        sys.modules.get(getattr(summing, "__module__", "")), "numbers", None
    )
    return net.size if own is None else shifts * max(1, own(net, example, target))


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Torch on so many threads of the CPU inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Have glibc keep the memory that the main thread frees, for the next step; nothing with another C library.

    By default it gives large blocks back to the system, and each step waits while the system clears them anew: a stack
    of eight with JL on CIFAR-10 took up to half as long again. Until `give_back_memory` the process stays as large as
    its largest step, or larger where a block does not fit into what is free.
    """
    set_option = _of_c_library("mallopt")
    if set_option is not None:
        set_option(_M_MMAP_MAX, 0)
        set_option(_M_TRIM_THRESHOLD, -1)  # never


def give_back_memory() -> None:
    """Have glibc give back what is free now, and from here on what is freed.

    So it must be under torch's profiler, whose records, small ones, lie in what tensors have freed, where the next
    tensor then does not fit: a step of a stack of eight with JL on CIFAR-10, 0.4 GB of tensors, grew by 8 GB, and so by
    glibc's defaults, which begin to keep large blocks once one was freed; with the size fixed by 0.1 GB.
    """
    set_option, trim = _of_c_library("mallopt"), _of_c_library("malloc_trim")
    if set_option is not None and trim is not None:
        set_option(_M_MMAP_MAX, _MOST_MAPPINGS)
        set_option(_M_MMAP_THRESHOLD, _LARGE)
        set_option(_M_TRIM_THRESHOLD, _LARGE)
        trim(0)


def _of_c_library(name: str) -> Any:
    """A function of the C library; None where it has none of that name, or on another system than Linux."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def places_of_a_call(
    execution: Execution,
    runs: int,
    summing: Any,
    net: Network,
    one: tuple[Tensor, Tensor],
    expected: int,
    shifts: int = 1,
) -> int:
    """The places of one call for what sums the gradients, an engine or a rule; `one` is an example and its target.

    A smoothed loss is that of one run at a time.
    """
    runs = 1 if shifts > 1 or isinstance(summing, RunByRun) else runs
    compiled = isinstance(summing, Compiled) and not execution.device.startswith("cuda")
    places = execution.chunk(runs, numbers_of_a_place(summing, net, *one, shifts), 0 if compiled else expected)
    if not compiled or execution.places_per_call is not None:
        return places
    return min(places, max(1, 9 * expected // 20))  # only full calls are compiled: also a smaller batch is to fill two
