"""`dpbench verify`: what was printed, and whether it is true."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from dpbench.cli.options import allow_code, with_executor

if TYPE_CHECKING:
    from rich.table import Table

    from dpbench.judging.claims.judging import Verified
    from dpbench.judging.claims.record import VerdictRecord

MOST_MISTAKES = 100  # that are listed
MOST_LEFT_OUT = 5  # files of earlier verdicts that are named one by one
WIDTH = 130  # of tables in a pipe or a file: no column is cut off
STYLES = {"unsound": "red", "refuted": "red", "crashes": "red", "undecided": "yellow", "loose": "cyan"}


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--paper", multiple=True, metavar="PAPER", help="Only the claims of this paper, such as bu2020. Repeatable."
)
@click.option("--kind", multiple=True, metavar="KIND", help="Only claims of this kind, such as bound. Repeatable.")
@click.option("--only", multiple=True, metavar="PATTERN", help="Only claims of this name, such as 'bu2020.table1-*'.")
@click.option("--certify", is_flag=True, help="Prove every bound by enclosures; proofs are resumed.")
@click.option("--workers", type=click.IntRange(1), default=None, help="Processes. Default: as many as there are cores.")
@with_executor
@click.option("--evidence", is_flag=True, help="Print the evidence of every claim below the table.")
@click.option("--force", is_flag=True, help="Certify again what has a record.")
@click.option("--out", type=click.Path(path_type=Path), default="reports", show_default=True, help="Folder of records.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line and claim.")
@allow_code
def verify(paths: Sequence[Path], **options: Any) -> int:
    """Judge the claims of a file: numbers, bounds, formulas, inequalities, lines of algorithms.

    PATH is a file of `kind: claims` or a folder of them (default: what the papers claim). Exit status: 0 every verdict
    is the expected one, 1 a verdict is another one or a judge could not run, 2 a mistake in a file. A claim that states
    no verdict counts as expected to be true: unsound, refuted and undecided end with 1.

    \b
    Examples:
      dpbench verify                                   all that the papers claim
      dpbench verify --paper bu2020 --kind bound       the bounds of one paper
      dpbench verify --only bu2020.table1-row1-epsilon-clt --certify --evidence
      dpbench verify --certify --executor ray --address auto
      dpbench verify mine.yaml                         a paper or a model card of your own
    """
    from dpbench.cli.console import Watch
    from dpbench.judging.claims.judging import PAPERS, Choice
    from dpbench.judging.claims.judging import verify as judged

    choice = Choice(tuple(options["paper"]), tuple(options["kind"]), tuple(options["only"]))
    with Watch("claims") as watch:
        found = judged(
            paths or (PAPERS,),
            choice,
            certified=options["certify"],
            workers=options["workers"] or os.cpu_count() or 1,
            out=options["out"],
            force=options["force"],
            allow_code=options["allow_code"],
            ray=options["ray"],
            progress=lambda _, done, total: watch("judging", done, total),
        )
    if options["as_json"]:
        for verdict in found.verdicts:
            click.echo(json.dumps(verdict.to_json(), ensure_ascii=False, allow_nan=False))
    else:
        _show(found, evidence=options["evidence"])
    _mistakes(found)
    return found.exit_status


def _show(found: Verified, evidence: bool = False) -> None:
    """The table, the verdicts that are not the expected ones, and the counts."""
    from dpbench.cli.console import console, say
    from dpbench.privacy.formatting import duration

    out, tables = console(), console()
    if not sys.stdout.isatty():
        tables.width = WIDTH
    verdicts = found.verdicts
    if verdicts:
        tables.print(_table(verdicts))
        out.print()
    if evidence:
        for verdict in verdicts:
            _evidence(out, verdict)
    for verdict in found.changed:
        place = f"{verdict.file}:{verdict.line}: {verdict.id}"
        expected = f", expected {verdict.held}" if verdict.held else ""
        say(out, f"{place}: {verdict.verdict}{expected}: {verdict.reason}", 2)
    for verdict in verdicts:
        if verdict.trusted:
            say(out, f"{verdict.id}: {verdict.trusted}", 2)
    if verdicts:
        tables.print(_counts(verdicts))
        seconds = sum(verdict.seconds for verdict in verdicts)
        resumed = f", {found.resumed} proofs taken from files" if found.resumed else ""
        many = "claims" if len(verdicts) > 1 else "claim"
        say(out, f"{len(verdicts)} {many} in {duration(seconds)} of computing{resumed}: {_ending(found)}.")


def _ending(found: Verified) -> str:
    """What the exit status says, in words."""
    wrong = sum(bool(verdict.held) for verdict in found.changed)
    untrue = len(found.changed) - wrong
    stated = sum(bool(verdict.held) for verdict in found.verdicts)
    words = [f"{wrong} not as expected" if wrong else "every verdict is the expected one"] * bool(stated)
    if stated < len(found.verdicts):
        silent, verb = len(found.verdicts) - stated, "are" if untrue > 1 else "is"
        words.append(f"of {silent} without a stated verdict {untrue or 'none'} {verb} not confirmed")
    return "; ".join(words)


def _mistakes(found: Verified) -> None:
    """The mistakes in the files, and earlier verdicts that do not count, on standard error."""
    chosen = {verdict.id for verdict in found.verdicts}
    left_out = [text for text in found.left_out if any(f"/{name}.json" in text for name in chosen)]
    for text in left_out[:MOST_LEFT_OUT]:
        print(f"{text}: it was judged anew", file=sys.stderr)
    if len(left_out) > MOST_LEFT_OUT:
        print(f"{len(left_out) - MOST_LEFT_OUT} more files like that.", file=sys.stderr)
    for problem in found.problems[:MOST_MISTAKES]:
        print(problem, file=sys.stderr)
    if len(found.problems) > MOST_MISTAKES:
        print(f"{len(found.problems) - MOST_MISTAKES} more mistakes.", file=sys.stderr)
    if found.problems:
        number = len(found.problems)
        rest = "; the rest was judged" if found.verdicts else ""
        print(f"{number} mistake{'s' * (number > 1)} found{rest}.", file=sys.stderr)


def _table(verdicts: tuple[VerdictRecord, ...]) -> Table:
    from rich.table import Table

    from dpbench.cli.console import time_words

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("claim", "kind", "printed", "value", "verdict", "time"):
        justify: Literal["left", "right"] = "right" if name in ("value", "time") else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name != "printed")
    for verdict in verdicts:
        table.add_row(
            verdict.id,
            verdict.kind,
            _short(verdict.printed),
            _value(verdict.value),
            verdict.verdict + ("" if verdict.as_expected else " !"),
            time_words(verdict.seconds),
            style=STYLES.get(verdict.verdict, ""),
        )
    return table


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


def _value(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.6g}"


def _evidence(out: Any, verdict: VerdictRecord) -> None:
    from dpbench.cli.console import say
    from dpbench.privacy.formatting import fact_words

    out.print(f"{verdict.id}  ({verdict.place}; {verdict.file}:{verdict.line})")
    if verdict.says:
        say(out, f"  says: {verdict.says}", 4)
    say(out, f"  {verdict.verdict}: {verdict.reason}", 4)
    if verdict.because:
        say(out, f"  because: {verdict.because}", 4)
    for name, item in {**verdict.evidence, **{f"by {route}": found for route, found in verdict.routes.items()}}.items():
        say(out, f"    {name.replace('_', ' ')}: {fact_words(item)}", 6)
    if verdict.judge:
        say(out, f"    judged by: {verdict.judge}", 6)
    out.print()


def _counts(verdicts: tuple[VerdictRecord, ...]) -> Table:
    """Claims by paper and kind, and verdicts by paper."""
    from rich.table import Table

    from dpbench.judging.claims.claim import KINDS

    table = Table(box=None, pad_edge=False, header_style="bold")
    found = Counter(verdict.verdict for verdict in verdicts)
    kinds = [kind for kind in KINDS if any(verdict.kind == kind for verdict in verdicts)]
    for name in ("paper", *kinds, *found):
        table.add_column(name.replace("_", " "), justify="left" if name == "paper" else "right", no_wrap=True)
    for paper in dict.fromkeys(verdict.paper for verdict in verdicts):
        own = [verdict for verdict in verdicts if verdict.paper == paper]
        by_kind = Counter(verdict.kind for verdict in own)
        by_verdict = Counter(verdict.verdict for verdict in own)
        table.add_row(paper, *(str(by_kind[kind]) for kind in kinds), *(str(by_verdict[name]) for name in found))
    return table
