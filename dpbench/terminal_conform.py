"""What `dpbench conform` shows: a line per accountant and table; nothing computed."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from dpbench.conformance import BROKEN, FINDINGS, Conformance, Line
from dpbench.rendering.formatting import off, words
from dpbench.terminal import LINE_SECONDS
from dpbench.terminal_accounting import console, say, time_words

WIDTH = 150  # no column is cut off


def show(found: Conformance) -> None:
    """The table (how far ε is off: at the median, at most), then the answers that lie too low or contradict."""
    out = console()
    out.width = max(out.width, WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("accountant", "kind", "table", *FINDINGS, "ε off", "most", "time"):
        table.add_column(name, justify="left" if name in ("accountant", "kind", "table") else "right", no_wrap=True)
    for line in found.lines:
        if set(line.findings) != {"refuses"}:
            table.add_row(line.accountant, words(line.kind), line.table, *_counts(line), *_figures(line))
    out.print(table)
    for line in found.lines:
        for text in line.unsound:
            say(out, f"{line.accountant} ({words(line.kind)}) lies below the truth: {text}", 2)
        if any(line.findings.get(finding) for finding in BROKEN if finding != "unsound"):
            for text in line.reasons:
                say(out, f"{line.accountant} ({words(line.kind)}): {text}", 2)


def _counts(line: Line) -> list[str]:
    return [str(line.findings.get(finding, "")) for finding in FINDINGS]


def _figures(line: Line) -> list[str]:
    shares = (line.median_excess, line.largest_excess)
    seconds = "" if line.median_seconds is None else time_words(line.median_seconds)
    return [*map(off, shares), seconds]


class Watch:
    """Progress on standard error: a bar on a terminal, else a line now and then. `of`: what is counted."""

    def __init__(self, of: str = "points") -> None:
        self._of = of
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f} of {task.total:.0f} " + of),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._tasks: dict[str, TaskID] = {}
        self._said = time.monotonic()

    def __enter__(self) -> Watch:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def __call__(self, name: str, done: int, of: int) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=of)
        self._bars.update(self._tasks[name], completed=done)
        if self._bars.disable and time.monotonic() - self._said > LINE_SECONDS:
            print(f"{name}: {done} of {of} {self._of}", file=sys.stderr, flush=True)
            self._said = time.monotonic()
