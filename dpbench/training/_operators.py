"""The operators in which a computation spends its time, for `dpbench bench`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

Shares = tuple[tuple[str, float], ...]  # names, and parts of the whole from 0 to 1, the largest first
MOST = 5


class Operators:
    """The operators between `begin` and `end` that take the most time themselves, without those that they call."""

    def __init__(self, device: torch.device) -> None:
        gpu = device.type == "cuda"
        self._of = DeviceType.CUDA if gpu else DeviceType.CPU
        self._seen = profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * gpu])

    def begin(self) -> None:
        self._seen.start()

    def end(self) -> Shares:
        """At most five names, each with its share of the time of all operators (of all kernels on a GPU)."""
        self._seen.stop()
        assert self._seen.profiler is not None
        results = self._seen.profiler.kineto_results
        assert results is not None
        # Not `key_averages`, which takes a minute for a loop over time.
        events: list[Any] = [event for event in results.events() if event.device_type() == self._of]
        spent: Counter[str] = Counter()
        around: dict[int, list[Any]] = {}  # by thread: the operators that are at work, the innermost last
        for event in sorted(events, key=lambda one: (one.start_ns(), -one.end_ns())):
            spent[event.name()] += event.duration_ns()
            outer = around.setdefault(event.start_thread_id(), [])
            while outer and outer[-1].end_ns() <= event.start_ns():
                outer.pop()
            if outer and self._of == DeviceType.CPU:
                spent[outer[-1].name()] -= event.duration_ns()
            outer.append(event)
        del self._seen, results, events  # gigabytes for a stack
        whole = sum(spent.values())
        return tuple((name, round(time / whole, 4)) for name, time in spent.most_common(MOST) if time > 0)
