"""What `dpbench engines` shows: a table for each model; nothing computed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby

from rich.table import Table

from dpbench.engines import PLAIN, EngineCost
from dpbench.terminal_accounting import console, say, time_words


def show(found: Sequence[EngineCost]) -> None:
    """Time, time relative to the plain backward pass, and peak memory; then why engines refused."""
    out = console()
    for (dataset, model), group in groupby(found, lambda one: (one.dataset, one.model)):
        lines = list(group)
        first = lines[0]
        inputs = "" if first.inputs == "data" else ", inputs of zeros (the data are absent)"
        say(
            out,
            f"{model} on {dataset}: {first.parameters:,} parameters, one sum of {first.places} examples,"
            f" {first.chunk} at a time, {first.device}{inputs}",
        )
        yardstick = next((one.seconds for one in lines if one.engine == PLAIN), None)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("engine", "time", "of plain", "peak memory"):
            table.add_column(name, justify="left" if name == "engine" else "right", no_wrap=True)
        for one in lines:
            if one.seconds is not None and one.peak_bytes is not None:
                relative = f"{one.seconds / yardstick:.1f}" if yardstick else ""
                table.add_row(one.engine, time_words(one.seconds), relative, f"{one.peak_bytes / 2**20:,.1f} MiB")
        out.print(table)
        for one in lines:
            if one.refusal is not None:
                say(out, f"{one.engine} refuses: {one.refusal}", 2)
        out.print()


def say_working(model: str, engine: str) -> None:
    """A line on standard error where a person waits at a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{model}: {engine} ...", end="", file=sys.stderr, flush=True)
