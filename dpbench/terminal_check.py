"""What `dpbench check` shows: a line for each check of each subject; nothing computed."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from dpbench.checking import Checkup
from dpbench.rendering.formatting import number, words
from dpbench.terminal import LINE_SECONDS
from dpbench.terminal_accounting import console, say

WIDTH = 150
_STYLES = {"holds": "green", "refuted": "bold red", "undecided": "yellow", "not_run": "yellow"}
_WORDS = {"undecided": "not decided", "not_run": "not looked at"}


def show(found: Sequence[Checkup]) -> None:
    """The table, then a sentence about each subject; refuted and unchecked ones last, where they are seen."""
    out = console()
    out.width = max(out.width, WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("subject", "check", "verdict", "looked at, and found", "statistic", "false alarm"):
        table.add_column(name, overflow="fold", no_wrap=name in ("check", "verdict", "statistic", "false alarm"))
    for one in found:
        for line in one.lines:
            verdict = line.verdict
            table.add_row(
                Text(one.subject),
                Text(verdict.check),
                Text(_WORDS.get(verdict.verdict, verdict.verdict), style=_STYLES.get(verdict.verdict, "")),
                Text(f"{line.looked_at}: {verdict.reason}"),
                Text(line.statistic),
                Text(number(verdict.false_alarm) if line.statistic.startswith("p") else ""),
            )
    out.print(table)
    for one in sorted(found, key=lambda one: {"holds": 0, "unchecked": 1, "refuted": 2}[one.verdict]):
        steps = f", runs of up to {one.planned} steps" if one.kind == "mechanisms" else ""
        say(out, f"{words(one.kind)} {one.subject}{steps}: {one.verdict}: {one.reason}", 2)
    chance = sum(one.false_alarm for one in found)
    say(
        out,
        f"A true property is refuted by chance with probability {number(chance, 3)} at most, in all lines together.",
        2,
    )


class Watch:
    """Progress on standard error: a bar on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f} of {task.total:.0f} checks"),
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
            print(f"{name}: {done} of {of} checks", file=sys.stderr, flush=True)
            self._said = time.monotonic()
