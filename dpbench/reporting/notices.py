"""What limits the trust in a report's numbers, for its first page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dpbench.privacy.statement import large_delta
from dpbench.reporting.contents import Notice, Row, Section
from dpbench.store.records import Damaged
from dpbench.store.run_key import FORMAT, key_format
from dpbench.store.shapes import FailureRecord, RunRecord

MOST_NOTICES = 3  # refuted numbers that are listed one by one


def notices(
    sections: Sequence[Section],
    runs: Sequence[RunRecord],
    failed: Sequence[FailureRecord],
    damaged: Iterable[Damaged],
    stale_modules: Mapping[str, tuple[str, ...]],
) -> tuple[Notice, ...]:
    """What limits the trust in the numbers, problems first; what is true of several rows is said once."""
    rows = [row for section in sections for row in section.rows]
    found = [
        Notice("problem", f"Refuted: {verdict.subject}: {verdict.reason}.", row.id)
        for row in rows
        for verdict in row.verdicts
        if verdict.verdict == "refuted"
    ]
    if rest := len(found[MOST_NOTICES:]):
        text = f"{rest} more printed numbers are refuted; see the tables."
        found[MOST_NOTICES:] = [Notice("problem", text, found[MOST_NOTICES].anchor)]
    for row in rows:
        if row.withheld and row.checked is not None:
            text = f"{row.full_title}: its ε is withheld, the mechanism is refuted: {row.checked.reason}."
            found.append(Notice("problem", text, row.id))
    if failed:
        failures = f"{len(failed)} runs failed" if len(failed) > 1 else "1 run failed"
        found.append(Notice("problem", f"{failures}; means are over the seeds that finished.", "failures"))
    found += [Notice("problem", f"Not used: {item.message}.", "") for item in damaged]
    stale = sum(bool(stale_modules.get(run.run_key)) for run in runs)
    dirty = sum(bool(run.environment.get("dirty")) for run in runs)
    cautions = [
        (stale, "made by an earlier version of the code (stale); run again with --stale"),
        (dirty, "made with uncommitted changes (dirty): the commit alone does not give the code"),
        (
            sum(key_format(run.resolved) != FORMAT for run in runs),
            f"their keys have an older format than {FORMAT}; they count for no run of today's specs."
            " Runs of one seed among them share batches and noise, so they may not be released together",
        ),
        (
            sum(run.resolved.get("randomness") == "common" for run in runs),
            "randomness common: runs of one seed share batches and noise, so they may not be released together",
        ),
        (
            sum(run.ledger is not None and bool(run.curve) and run.curve[-1].releases is None for run in runs),
            "what was released differs from the planned ledger (or they are too old to say). Their ε is that of what"
            " was released, and may be above the target",
        ),
        (sum(not run.facts.dataset_real for run in runs), "trained on synthetic data and not compared with any paper"),
    ]
    for count, text in cautions:
        if count:
            found.append(Notice("caution", f"{count} of {len(runs)} records: {text}.", "records"))
    said: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if (warning := _large_delta(row)) is not None:
            said.setdefault((f"{warning}.", ""), []).append(row)
        if row.context.data_warning:
            said.setdefault((f"{row.context.data_warning}.", ""), []).append(row)
        if row.unchecked and row.checked:
            said.setdefault(("ε is unchecked", f"{row.checked.reason}."), []).append(row)
        if row.barred and row.context.published:
            said.setdefault(("not compared with what is printed", f"{row.barred}."), []).append(row)
        for line in row.guarantees:
            if line.remark is not None:
                said.setdefault((line.remark, ""), []).append(row)
            if line.doubt is not None:
                key = (f"ε by {line.accountant} is no promise here", f"against enclosures it has {line.doubt}.")
                said.setdefault(key, []).append(row)
    only_claimed = [(row, line) for row in rows for line in row.guarantees if line.with_noise is not None]
    if only_claimed:
        over = [row for row, line in only_claimed if (line.with_noise or 0.0) > (line.epsilon or 0.0)]
        more = f"more than is claimed in {_counted(over)}" if over else "at most what is claimed"
        text = (
            f"{_counted([row for row, _ in only_claimed])}: ε is only claimed: steps without noise reveal the record"
            f" that they use. If every step had its noise, the exact ε would be {more}."
        )
        found.append(Notice("caution", text, only_claimed[0][0].id))
    for (what, reason), members in said.items():
        found.append(Notice("caution", ": ".join(filter(None, [_counted(members), what, reason])), members[0].id))
    single = [row for row in rows if len(row.seeds) == 1]
    if single:
        text = f"{len(single)} of {len(rows)} configurations ran with one seed only: their scatter is not known."
        found.append(Notice("caution", text, single[0].id))
    return tuple(found)


def _counted(rows: Sequence[Row]) -> str:
    """The titles of a few rows, and how many more there are."""
    titles = ", ".join(row.full_title for row in rows[:3])
    return titles + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")


def _large_delta(row: Row) -> str | None:
    """The warning about a δ of 1/N or more, where the row states an ε at it."""
    delta = row.context.delta
    return large_delta(delta, row.facts.examples) if delta is not None and row.guarantees else None
