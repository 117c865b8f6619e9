"""The peak memory of a computation, in bytes of tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Peak memory of a call beyond what was in use before it: that of torch's allocator, on the CPU by its profiler.

    These are results, activations and workspaces, not the code of the process.

    >>> peak_bytes(lambda: torch.ones(1000), torch.device("cpu")) >= 4000
    True
    """
    return _cuda_peak(call, device) if device.type == "cuda" else _cpu_peak(call)


def _cuda_peak(call: Callable[[], object], device: torch.device) -> int:
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    return torch.cuda.max_memory_allocated(device) - before


def _cpu_peak(call: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    assert seen.profiler is not None
    results = seen.profiler.kineto_results
    assert results is not None
    moves = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    current, peak = 0, 0
    for _, size in sorted(moves, key=lambda move: move[0]):
        current += size
        peak = max(peak, current)
    return peak
