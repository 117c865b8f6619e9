"""What `dpbench verify` shows: a table of verdicts, the evidence, and counts; nothing computed."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any, Literal

from rich.table import Table

from dpbench.claims.claim import KINDS
from dpbench.claims.judging import Outcome
from dpbench.claims.record import VerdictRecord
from dpbench.rendering.formatting import duration, fact_words
from dpbench.terminal_accounting import console, say, time_words

WIDTH = 130  # of tables in a pipe or a file: no column is cut off
STYLES = {"unsound": "red", "refuted": "red", "crashes": "red", "undecided": "yellow", "loose": "cyan"}


def show(outcome: Outcome, evidence: bool = False) -> None:
    """The table, the verdicts that are not the ledger's, the counts and the mistakes of the files."""
    out, tables = console(), console()
    if not sys.stdout.isatty():
        tables.width = WIDTH
    verdicts = outcome.verdicts
    if verdicts:
        tables.print(_table(verdicts))
        out.print()
    if evidence:
        for verdict in verdicts:
            _evidence(out, verdict)
    for verdict in outcome.changed:
        place = f"{verdict.file}:{verdict.line}: {verdict.id}"
        say(out, f"{place}: {verdict.verdict}, but the ledger holds {verdict.held}: {verdict.reason}", 2)
    if verdicts:
        tables.print(_counts(verdicts))
        seconds = sum(verdict.seconds for verdict in verdicts)
        resumed = f", {outcome.resumed} of them from earlier records" if outcome.resumed else ""
        changed = len(outcome.changed)
        words = (
            "every verdict is the one that the ledger holds" if not changed else f"{changed} not as the ledger holds"
        )
        say(out, f"{len(verdicts)} claims in {duration(seconds)} of computing{resumed}: {words}.")


def mistakes(outcome: Outcome) -> None:
    """The mistakes of the ledgers, on standard error."""
    for problem in outcome.problems:
        print(problem, file=sys.stderr)
    if outcome.problems:
        number = len(outcome.problems)
        rest = "; the rest was judged" if outcome.verdicts else ""
        print(f"{number} mistake{'s' * (number > 1)} found{rest}.", file=sys.stderr)


def _table(verdicts: tuple[VerdictRecord, ...]) -> Table:
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
            verdict.verdict + ("" if verdict.as_held else " !"),
            time_words(verdict.seconds),
            style=STYLES.get(verdict.verdict, ""),
        )
    return table


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


def _value(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.6g}"


def _evidence(out: Any, verdict: VerdictRecord) -> None:
    out.print(f"{verdict.id}  ({verdict.place}; {verdict.file}:{verdict.line})")
    if verdict.says:
        say(out, f"  says: {verdict.says}", 4)
    say(out, f"  {verdict.verdict}: {verdict.reason}", 4)
    say(out, f"  because: {verdict.because}", 4)
    for name, item in {**verdict.evidence, **{f"by {route}": found for route, found in verdict.routes.items()}}.items():
        say(out, f"    {name.replace('_', ' ')}: {fact_words(item)}", 6)
    if verdict.judge:
        say(out, f"    judged by: {verdict.judge}", 6)
    out.print()


def _counts(verdicts: tuple[VerdictRecord, ...]) -> Table:
    """Claims by paper and kind, and verdicts by paper."""
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
