"""What metrics measured at the end of the runs of a row, over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpbench.judging.reproduction import Spread, spread
from dpbench.reporting.contents import MetricLine
from dpbench.store.shapes import Context, RunRecord


def metric_lines(runs: Sequence[RunRecord], context: Context) -> tuple[MetricLine, ...]:
    """A line for each metric that the spec asks for, and for each that a record holds besides.

    The surface is that of the first seed that has one: a mean over seeds would be a surface of no model.
    """
    held = [one.name for run in runs for one in run.result.metrics]
    lines = []
    for name in dict.fromkeys((*context.metrics, *held)):
        found = [(run.seed, one) for run in runs for one in run.result.metrics if one.name == name]
        values = [one.value for _, one in found if one.value is not None]
        surfaces = [(seed, one.surface) for seed, one in found if one.surface is not None]
        lines.append(
            MetricLine(
                name=name,
                value=spread(values) if values else None,
                surface=surfaces[0][1] if surfaces else None,
                surface_seed=surfaces[0][0] if surfaces else None,
                records=max((one.records for _, one in found), default=0),
                failed=next((one.failed for _, one in found if one.failed), ""),
                along=_along(runs, name),
                surfaces_along=_surfaces_along(runs, name),
            )
        )
    return tuple(lines)


def _along(runs: Sequence[RunRecord], name: str) -> tuple[tuple[float, Spread], ...]:
    """The values along the training at the epochs that all seeds have; nothing where there are none before the end."""
    by_epoch: dict[float, list[float]] = {}
    for run in runs:
        found = [(point.epoch, point.metrics) for point in run.curve]
        found += [(run.curve[-1].epoch, run.result.metrics)] if run.curve else []
        for epoch, metrics in found:
            for value in [one.value for one in metrics if one.name == name and one.value is not None]:
                by_epoch.setdefault(epoch, []).append(value)
    whole = [(epoch, spread(values)) for epoch, values in sorted(by_epoch.items()) if len(values) == len(runs)]
    return tuple(whole) if len(whole) > 1 else ()


def _surfaces_along(runs: Sequence[RunRecord], name: str) -> tuple[tuple[int, Mapping[str, Any]], ...]:
    """The surfaces before the end of the first seed that has one at its end."""
    for run in runs:
        if any(one.name == name and one.surface is not None for one in run.result.metrics):
            there = [(point.step, one) for point in run.curve for one in point.metrics]
            return tuple((step, one.surface) for step, one in there if one.name == name and one.surface is not None)
    return ()
