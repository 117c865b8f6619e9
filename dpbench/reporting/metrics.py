"""What metrics measured at the end of the runs of a row, over its seeds."""

from __future__ import annotations

from collections.abc import Sequence

from dpbench.judging.reproduction import spread
from dpbench.reporting.contents import MetricLine
from dpbench.store.records import Context, RunRecord


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
            )
        )
    return tuple(lines)
