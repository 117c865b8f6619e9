"""What `dpbench check` shows: a line for each check of each subject; nothing computed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from dpbench.checking import Checkup
from dpbench.rendering.formatting import number, words
from dpbench.terminal_accounting import console, say

_STYLES = {"holds": "green", "refuted": "bold red", "undecided": "yellow", "not_run": "yellow"}
_WORDS = {"undecided": "not decided", "not_run": "not looked at"}


def show(found: Sequence[Checkup]) -> None:
    """A table for each subject, then a sentence about each; refuted and unchecked ones last, where they are seen."""
    out = console()
    for one in found:
        table = Table(box=None, pad_edge=False, header_style="bold", title=one.subject, title_justify="left")
        for name in ("check", "verdict", "looked at, and found", "statistic", "false alarm"):
            table.add_column(name, overflow="fold", no_wrap=name in ("check", "verdict", "statistic"))
        for line in one.lines:
            verdict = line.verdict
            table.add_row(
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
