"""The peak memory of a computation, in bytes of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Peak memory of a call beyond what was in use before it: that of torch's allocator, on the CPU by its profiler.

    These are results, activations and workspaces, not the code of the process.

    >>> peak_bytes(lambda: torch.ones(1000), torch.device("cpu")) >= 4000
    True
    """
    peak = Peak(device)
    peak.begin()
    call()
    return peak.end()


class Peak:
    """As `peak_bytes`, of what is computed between `begin` and `end`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def begin(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        else:
            self._seen = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            self._seen.start()

    def end(self) -> int:
        """The peak since `begin`, in bytes."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) - self._before
        self._seen.stop()
        assert self._seen.profiler is not None
        results = self._seen.profiler.kineto_results
        assert results is not None
        events: list[Any] = results.events()
        moves = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
        del self._seen, results, events  # gigabytes for a stack
        current, peak = 0, 0
        for _, size in sorted(moves, key=lambda move: move[0]):
            current += size
            peak = max(peak, current)
        return peak
