"""`dpbench conform`: accountants, your own library's included, held against stored enclosures."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dpbench.errors import DpbenchError

TABLES = Path("tests/references")


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...", type=click.Path(path_type=Path))
@click.option("--accountant", "names", multiple=True, metavar="NAME", help="Only this one, or package.module:name.")
@click.option("--out", type=click.Path(path_type=Path), default="reports", show_default=True, help="Folder of records.")
@click.option("--json", "as_json", is_flag=True, help="Print the record.")
def conform(tables: tuple[Path, ...], names: tuple[str, ...], out: Path, as_json: bool) -> int:
    """Hold accountants against stored enclosures of δ(ε), two-sided: sound, loose or unsound, and how far off.

    Both questions are asked, δ at ε and ε at δ, and held against each other.

    TABLE is a JSON file of enclosures or a folder of them (default: tests/references of a checkout). The result is
    written to OUT/conformance.json, beside what is known there of other accountants, and is part of the report. Exit
    status 1 where a promise (exact or upper bound) is unsound, not monotone or inconsistent, or an accountant crashes.

    \b
    Examples:
      dpbench conform                                     every accountant, some minutes
      dpbench conform --accountant exact --accountant rdp
      dpbench conform --accountant mylibrary.adapter:accountant tests/references/certified.json
    """
    from dpbench.catalog import catalog
    from dpbench.conformance import BROKEN, hold, read_conformance, summarise, write_conformance
    from dpbench.enclosures import read_points
    from dpbench.provenance import environment
    from dpbench.terminal_conform import Watch, show

    if not tables and not TABLES.is_dir():
        raise DpbenchError(f"name a table of enclosures: there is no folder {TABLES} here")
    points = read_points(tables or (TABLES,))
    with Watch() as watch:
        found = summarise(hold(names or tuple(catalog("accountants")), points, watch), environment())
    path = write_conformance(out, found.beside(read_conformance(out)))
    if as_json:
        click.echo(json.dumps(found.to_json(), ensure_ascii=False, indent=1))
    else:
        show(found)
        click.echo(f"wrote {path}")
    broken = [
        line
        for line in found.lines
        if line.findings.get("crashes")
        or (line.kind != "approximation" and any(line.findings.get(finding) for finding in BROKEN))
    ]
    return 1 if broken else 0
