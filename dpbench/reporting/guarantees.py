"""Guarantees from the ledgers of records: every accountant's answer for a row, and for points of its training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpbench.catalog import catalog, find_origin, is_code
from dpbench.conformance import BROKEN, Conformance
from dpbench.errors import DpbenchError
from dpbench.events import Composition, from_json
from dpbench.privacy.accounting import account
from dpbench.privacy.shuffling import of_shuffled
from dpbench.reporting.contents import GuaranteeLine
from dpbench.spec.trust import Trust
from dpbench.store.agreement import MOST_EVENTS
from dpbench.store.shapes import Checked, Context, RunRecord

MU_ACCOUNTANT = "gdp_clt"  # whose μ a printed μ is compared with
BOUND, EXACT = "rdp", "exact"  # an exact answer above the bound, another package's below exact: `account` withdraws it
SHUFFLED = "shuffled"  # the accountant of shuffled batches, asked wherever a ledger has some
ASKED = ("exact", "rdp", "gdp_clt")  # by default: the truth, a bound and the usual approximation


class Accounts:
    """Accountants' answers, each computed once: by ledger, number of releases, δ and accountant.

    A promise of an accountant that failed where it was held against enclosures (`conformance`) is doubted.
    """

    def __init__(self, conformance: Conformance | None = None, trusted: Trust | None = None) -> None:
        self._doubts = _doubts(conformance)
        self._trusted = trusted or Trust()
        self._known: dict[tuple[str, int | None, float, str], GuaranteeLine] = {}

    def line(
        self, ledger: Mapping[str, Any], delta: float, name: str, requested: bool, releases: int | None = None
    ) -> GuaranteeLine:
        """The answer of the accountant `name` for the first `releases` releases of the ledger (None: for all)."""
        key = (json.dumps(ledger, sort_keys=True), releases, delta, name)
        if key not in self._known:
            self._known[key] = self._answer(ledger, delta, name, releases)
        return replace(self._known[key], requested=requested)

    def _answer(self, ledger: Mapping[str, Any], delta: float, name: str, releases: int | None) -> GuaranteeLine:
        if name not in catalog("accountants"):
            if not is_code(name):
                return refused(name, delta, f"accountant {name!r} is not in the catalog")
            if refusal := self._trusted.refusal(name):
                return refused(name, delta, "; ".join(refusal))
        try:
            composition: Composition = from_json(dict(ledger))
        except (KeyError, TypeError, ValueError) as error:
            return refused(name, delta, f"the recorded ledger cannot be read ({type(error).__name__}: {error})")
        different = len({event for event, _ in composition.parts})
        if different > MOST_EVENTS:
            return refused(
                name, delta, f"the ledger has {different:,} different events; at most {MOST_EVENTS:,} are asked"
            )
        try:
            if releases is not None:
                composition = composition.prefix(releases)
            # An exact answer is compared with a bound, that of another package with `exact`; for the whole ledger only.
            other = BOUND if name == EXACT else EXACT if find_origin("accountants", name) != "dpbench" else None
            beside = [other] if other is not None and releases is None else []
            found, *_ = account(composition, delta=delta, accountants=[name, *beside])
        except (DpbenchError, ValueError, ArithmeticError) as error:
            return refused(name, delta, f"failed: {type(error).__name__}: {error}")
        if found.epsilon is None:
            return refused(name, delta, found.refused or "no answer")
        return GuaranteeLine(
            accountant=name,
            kind=found.kind,
            adjacency=found.adjacency,
            delta=delta,
            epsilon=found.epsilon.value,
            lower=found.epsilon.lower,
            upper=found.epsilon.upper,
            mu=found.mu,
            refused=None,
            doubt=self._doubts.get(name),
            version=found.version,
            remark=remark(composition, delta, found.accountant),
        )


def remark(composition: Composition, delta: float, name: str) -> str | None:
    """Beside an answer of `shuffled`: what calling the batches Poisson would hide."""
    numbers = of_shuffled(composition, delta=delta) if name == SHUFFLED else None
    return None if numbers is None else numbers.sentence()


def _doubts(conformance: Conformance | None) -> dict[str, str]:
    """Accountants with findings that none may have, and what was found."""
    found: dict[str, str] = {}
    for line in conformance.lines if conformance is not None else ():
        wrong = [f"{line.findings[name]} points {name}" for name in BROKEN if line.findings.get(name)]
        if wrong and line.kind != "approximation":
            found[line.accountant] = f"{', '.join(wrong)} of the table {line.table}"
    return found


def refused(name: str, delta: float | None, reason: str) -> GuaranteeLine:
    """A line without a number, and why."""
    return GuaranteeLine(name, None, None, delta, None, None, None, None, reason)


def guarantees(
    runs: Sequence[RunRecord], context: Context, accounted: Accounts, checked: Checked | None = None
) -> tuple[GuaranteeLine, ...]:
    """One line per accountant: those that the spec asks for, then those whose number is printed.

    If a check refuted the mechanism, no ε is stated; if none tested it, the line says so. The last line of a mechanism
    whose ε is only claimed is that claim.
    """
    ledgers = {json.dumps(run.ledger, sort_keys=True): run.ledger for run in runs if run.ledger is not None}
    if not ledgers:
        return ()
    shuffled = any(part.get("sampler") == "shuffled" for ledger in ledgers.values() for part in ledger.get("parts", ()))
    requested = list(context.accountants or ((SHUFFLED,) if shuffled else ASKED))
    requested += [SHUFFLED] if shuffled and SHUFFLED not in requested else []
    own = context.calibrate_with or ""  # which set the noise, or is asked while the mechanism runs
    requested += [own] if own in catalog("accountants") and own not in requested else []
    published = context.published
    printed = list(published.epsilon) if published else []
    if published and published.mu:
        printed.append(MU_ACCOUNTANT)
    unchecked = checked is not None and checked.verdict == "unchecked"
    lines = []
    for name in dict.fromkeys([*requested, *(name for name in printed if name in catalog("accountants"))]):
        if context.delta is None:
            lines.append(refused(name, None, "the spec gives no delta"))
            continue
        if checked is not None and checked.verdict == "refuted":
            lines.append(refused(name, context.delta, f"withheld, the mechanism is refuted: {checked.reason}"))
            continue
        # Seeds of an adaptive mechanism may have spent different amounts: the row states the largest.
        answers = [accounted.line(ledger, context.delta, name, name in requested) for ledger in ledgers.values()]
        refusals = [line for line in answers if line.epsilon is None]
        line = refusals[0] if refusals else max(answers, key=lambda line: line.epsilon or 0.0)
        lines.append(replace(line, unchecked=unchecked))
    claimed = runs[0].facts.claimed_by
    if claimed is not None and context.target_epsilon is not None:
        words = claimed, "claimed", runs[0].facts.adjacency, context.delta, context.target_epsilon
        with_noise = max(
            (_with_noise(ledger, context.delta, accounted) or 0.0 for ledger in ledgers.values()), default=0
        )
        lines.append(
            GuaranteeLine(*words, lower=None, upper=None, mu=None, refused=None, with_noise=with_noise or None)
        )
    return tuple(lines)


def _shows(part: Mapping[str, Any]) -> bool:
    """Whether an event of a ledger shows its record: two laws without an outcome in common."""
    pairs = zip(part.get("first", ()), part.get("second", ()), strict=False)
    return part.get("event") == "DiscretePair" and not any(one and other for one, other in pairs)


def _with_noise(ledger: Mapping[str, Any], delta: float | None, accounted: Accounts) -> float | None:
    """The exact ε of a ledger without what shows a record outright; None where nothing does, or it is refused."""
    parts = ledger.get("parts", ())
    rest = [part for part in parts if not _shows(part)]
    if delta is None or not rest or len(rest) == len(parts):
        return None
    return accounted.line({**ledger, "parts": rest}, delta, EXACT, False).epsilon
