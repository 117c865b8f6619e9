"""`dpbench verify`: what was printed, and whether it is true."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--paper", multiple=True, metavar="PAPER", help="Only the claims of this paper, such as bu2020. Repeatable."
)
@click.option("--kind", multiple=True, metavar="KIND", help="Only claims of this kind, such as bound. Repeatable.")
@click.option("--only", multiple=True, metavar="PATTERN", help="Only claims of this name, such as 'bu2020.table1-*'.")
@click.option("--certify", is_flag=True, help="Prove every bound by enclosures; resumable.")
@click.option("--workers", type=click.IntRange(1), default=None, help="Processes. Default: as many as there are cores.")
@click.option("--evidence", is_flag=True, help="Print the evidence of every claim below the table.")
@click.option("--force", is_flag=True, help="Certify again what has a record.")
@click.option("--out", type=click.Path(path_type=Path), default="reports", show_default=True, help="Folder of records.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line and claim.")
def verify(paths: Sequence[Path], **options: Any) -> int:
    """Judge the claims of a ledger: numbers, bounds, formulas, inequalities, lines of algorithms.

    PATH is a file of `kind: claims` or a folder of them (default: what the papers claim). Exit status: 0 every verdict
    is the one that the ledger holds, 1 a verdict changed or a check could not run, 2 a mistake in a ledger.

    \b
    Examples:
      dpbench verify                                   all that the papers claim
      dpbench verify --paper bu2020 --kind bound       the bounds of one paper
      dpbench verify --only bu2020.table1-row1-epsilon-clt --certify --evidence
      dpbench verify mine.yaml                         a paper or a model card of your own
    """
    from dpbench.claims.judging import PAPERS, Choice
    from dpbench.claims.judging import verify as judged
    from dpbench.terminal_conform import Watch
    from dpbench.terminal_verify import mistakes, show

    choice = Choice(tuple(options["paper"]), tuple(options["kind"]), tuple(options["only"]))
    with Watch("claims") as watch:
        outcome = judged(
            paths or (PAPERS,),
            choice,
            certified=options["certify"],
            workers=options["workers"] or os.cpu_count() or 1,
            out=options["out"],
            force=options["force"],
            told=lambda _, done, total: watch("judging", done, total),
        )
    if options["as_json"]:
        for verdict in outcome.verdicts:
            click.echo(json.dumps(verdict.to_json(), ensure_ascii=False, allow_nan=False))
    else:
        show(outcome, evidence=options["evidence"])
    mistakes(outcome)
    return outcome.exit_status
