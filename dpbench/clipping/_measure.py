"""The cost of a clipping engine: seconds of one clipped sum, and its peak memory in bytes of tensors."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from dpbench.step.clipped_sum import Clipped, Examples
from dpbench.step.functional import Network


@dataclass(frozen=True)
class Cost:
    """`seconds` of wall time, the fastest of a few calls; `peak_bytes` beyond the memory in use before the call."""

    seconds: float
    peak_bytes: int


def cost(
    engine: Callable[..., Clipped],
    net: Network,
    theta_RP: Tensor,
    examples: Examples,
    clip_R: Tensor,
    chunk: int,
    calls: int = 3,
) -> Cost:
    """Time and peak memory of an engine; measured, on the device where the parameters are.

    The memory is that of torch's allocator (on the CPU by the profiler): results, activations and workspaces, not the
    code of the process. One call warms up before the timing, and one more measures the memory.

    >>> from dpbench.clipping import loop
    >>> net = Network(torch.nn.Linear(2, 2), (("weight", torch.Size([2, 2])), ("bias", torch.Size([2]))), 6)
    >>> examples = Examples(torch.ones(1, 3, 2), torch.zeros(1, 3, dtype=torch.int64), torch.ones(1, 3) > 0)
    >>> cost(loop.clipping, net, torch.zeros(1, 6), examples, torch.ones(1), 3).peak_bytes > 24
    True
    """

    def call() -> None:
        engine(net, theta_RP, examples, clip_R, chunk)
        if theta_RP.is_cuda:
            torch.cuda.synchronize(theta_RP.device)

    call()
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return Cost(min(times), _cuda_peak(call, theta_RP.device) if theta_RP.is_cuda else _cpu_peak(call))


def _cuda_peak(call: Callable[[], None], device: torch.device) -> int:
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    return torch.cuda.max_memory_allocated(device) - before


def _cpu_peak(call: Callable[[], None]) -> int:
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
