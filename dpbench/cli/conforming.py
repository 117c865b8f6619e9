"""`dpbench conform`: accountants, your own library's included, against stored enclosures."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpbench.cli.options import with_executor

if TYPE_CHECKING:
    from dpbench.conformance import Conformance, Line
    from dpbench.store.records import Damaged
    from dpbench.training.workers import Ray

WIDTH = 220  # no column is cut off


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...", type=click.Path(path_type=Path))
@click.option("--accountant", "names", multiple=True, metavar="NAME", help="Only this one, or package.module:name.")
@click.option("--workers", type=click.IntRange(1), default=None, help="Processes. Default: as many as there are cores.")
@with_executor
@click.option("--out", type=click.Path(path_type=Path), default="reports", show_default=True, help="Folder of records.")
@click.option("--json", "as_json", is_flag=True, help="Print the record.")
def conform(
    tables: tuple[Path, ...], names: tuple[str, ...], workers: int | None, ray: Ray | None, out: Path, as_json: bool
) -> int:
    """Compare accountants with stored enclosures of δ(ε), two-sided: sound, loose or unsound, and how far off.

    Accountants are asked for δ at ε and for ε at δ, and the two answers are compared with each other.

    TABLE is a JSON file of enclosures or a folder of them (default: those that come with dpbench). The result is
    written to OUT/conformance.json, which keeps earlier results of other accountants, and is part of the report. Exit
    status 1 where an exact answer or an upper bound is unsound, not monotone or inconsistent, or an accountant crashes.

    \b
    Examples:
      dpbench conform                                     every accountant, some minutes
      dpbench conform --accountant exact --accountant rdp
      dpbench conform --executor ray --address auto       by the workers of a cluster
      dpbench conform --accountant mylibrary.adapter:accountant
    """
    from dpbench.catalog import catalog
    from dpbench.cli.console import Watch
    from dpbench.conformance import BROKEN, hold, read_conformance, summarise, write_conformance
    from dpbench.judging.enclosures import TABLES, read_points
    from dpbench.store.provenance import environment

    points = read_points(tables or (TABLES,))
    with Watch() as watch:
        judged = hold(
            names or tuple(catalog("accountants")), points, watch, workers=workers or os.cpu_count() or 1, ray=ray
        )
        found = summarise(judged, environment())
    damaged: list[Damaged] = []
    path = write_conformance(out, found.beside(read_conformance(out, damaged)))
    for one in damaged:
        click.echo(f"not used: {one.message}", err=True)
    if as_json:
        click.echo(json.dumps(found.to_json(), ensure_ascii=False, indent=1))
    else:
        _show(found)
        click.echo(f"wrote {path}")
    broken = [
        line
        for line in found.lines
        if line.findings.get("crashes")
        or (line.kind != "approximation" and any(line.findings.get(verdict) for verdict in BROKEN))
    ]
    return 1 if broken else 0


def _show(found: Conformance) -> None:
    """The table (median and largest relative excess of ε), then the answers that are too low or contradictory."""
    from rich.table import Table

    from dpbench.cli.console import console, say
    from dpbench.conformance import BROKEN, VERDICTS
    from dpbench.privacy.formatting import words

    out = console()
    out.width = max(out.width, WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("accountant", "kind", "table", *VERDICTS, "ε off", "most", "time"):
        table.add_column(name, justify="left" if name in ("accountant", "kind", "table") else "right", no_wrap=True)
    for line in found.lines:
        if set(line.findings) != {"refuses"}:
            table.add_row(line.accountant, words(line.kind), line.table, *_counts(line), *_figures(line))
    out.print(table)
    for line in found.lines:
        for text in line.unsound:
            say(out, f"{line.accountant} ({words(line.kind)}) lies below the truth: {text}", 2)
        if any(line.findings.get(verdict) for verdict in BROKEN if verdict != "unsound"):
            for text in line.reasons:
                say(out, f"{line.accountant} ({words(line.kind)}): {text}", 2)


def _counts(line: Line) -> list[str]:
    from dpbench.conformance import VERDICTS

    return [str(line.findings.get(verdict, "")) for verdict in VERDICTS]


def _figures(line: Line) -> list[str]:
    from dpbench.cli.console import time_words
    from dpbench.privacy.formatting import off

    shares = (line.median_excess, line.largest_excess)
    seconds = "" if line.median_seconds is None else time_words(line.median_seconds)
    return [*map(off, shares), seconds]
