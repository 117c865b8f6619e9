"""What `dpbench bench` prints: tables of sums and of whole steps, and the targets that they tell of."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpbench.store.speed import Speed, SumLine

WIDTH = 190  # of the tables in a pipe or a file: no column is cut off


def show_steps(found: Speed, known: Speed) -> None:
    """Times, what they are relative to (the row without privacy may be a `known` one), memory; then refusals."""
    from rich.table import Table

    from dpbench.cli.console import console, say, time_words
    from dpbench.privacy.formatting import duration

    out = console()
    out.width = out.width if sys.stdout.isatty() else max(out.width, WIDTH)
    say(out, f"whole steps: {found.tables()[0][0]}")
    table = Table("row", box=None, pad_edge=False, header_style="bold")
    for title in (
        "engine",
        "a step",
        "from",
        "to",
        "of plain",
        "of compiled",
        "of floor",
        "records/s",
        "steps/s",
        "epoch",
        "printed",
    ):
        table.add_column(title, justify="right", no_wrap=title != "engine")
    table.add_column("peak memory", justify="right", no_wrap=True)
    for line in found.lines:
        if line.refusal:
            continue
        ends = (time_words(value or 0.0) for value in (line.seconds, line.fastest, line.slowest))
        plain, seconds = known.baseline_of(line), line.seconds or 0.0
        table.add_row(
            line.label or line.name,
            line.engine,
            *ends,
            f"{seconds / plain.seconds:.2f}" if plain is not None and plain.seconds else "",
            f"{seconds / plain.compiled_seconds:.2f}" if plain is not None and plain.compiled_seconds else "",
            f"{seconds / line.floor:.1f}" if line.floor else "",
            f"{line.examples_per_second or 0.0:,.0f}",
            f"{line.runs_steps_per_second or 0.0:,.3g}",
            duration(line.epoch_seconds or 0.0),
            f"{line.printed_seconds} s" if line.printed_seconds else "",
            _memory(line.peak_bytes),
        )
    out.print(table)
    for line in found.lines:
        if line.refusal:
            say(out, f"{line.label or line.name} refuses: {line.refusal}", 2)
        if line.compiled_refusal:
            say(out, f"{line.label or line.name} is not compiled: {line.compiled_refusal}", 2)


def _memory(peak_bytes: int | None) -> str:
    return "" if peak_bytes is None else f"{peak_bytes / 2**20:,.1f} MiB"


def show_sums(lines: Sequence[SumLine]) -> None:
    """Times, times relative to passes without privacy, examples of a call and peak memory; then why ways refused."""
    from rich.table import Table

    from dpbench.cli.console import console, say, time_words

    out = console()
    out.width = out.width if sys.stdout.isatty() else max(out.width, WIDTH)
    say(out, lines[0].title)
    table = Table("way", box=None, pad_edge=False, header_style="bold")
    for name in (
        "median",
        "from",
        "to",
        "of torch",
        "of plain",
        "of compiled",
        "examples/s",
        "at a time",
        "peak memory",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for one in lines:
        if one.refusal is None:
            times = (time_words(value or 0.0) for value in (one.seconds, one.fastest, one.slowest))
            relative = (
                f"{value:.2f}" if value else "" for value in (one.of_torch, one.of_plain, one.of_plain_compiled)
            )
            speed = f"{one.examples_per_second:,.0f}"
            table.add_row(one.engine, *times, *relative, speed, str(one.chunk), _memory(one.peak_bytes))
    out.print(table)
    for one in lines:
        if one.refusal is not None:
            say(out, f"{one.engine} refuses: {one.refusal}", 2)


def show_targets(found: Speed) -> None:
    """The targets of which these lines say something, and below them where the time of missed ones goes."""
    from rich.table import Table

    from dpbench.cli.console import console, say
    from dpbench.store.speed_targets import judged, operator_words

    told = [(one, one.found) for one in judged(found) if one.found is not None]
    if not told:
        return
    out = console()
    out.width = out.width if sys.stdout.isatty() else max(out.width, WIDTH)
    table = Table("target", "bound", "measured", "", "by", box=None, pad_edge=False, header_style="bold")
    for one, by in told:
        table.add_row(one.target.text, one.target.bound_words, f"{by.value:.3f}", one.verdict, by.said)
    out.print(table)
    for one, by in told:
        if one.verdict == "missed":
            say(out, f"{one.target.text}: {operator_words(by.line)}", 2)
