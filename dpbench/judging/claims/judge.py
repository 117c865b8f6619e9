"""Judge one claim: by accountants from its events, by arithmetic, or by a function in its paper's folder."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from dpbench.catalog import is_code
from dpbench.errors import DpbenchError
from dpbench.judging.claims.bounds import judge_bound
from dpbench.judging.claims.claim import Claim, Judgement, own_path
from dpbench.judging.claims.expressions import judge_expression
from dpbench.judging.claims.judges import CannotRun, Judge, place_of
from dpbench.judging.claims.quantities import judge_number
from dpbench.judging.claims.record import VerdictRecord, key_of, source_hash
from dpbench.judging.claims.runs import Trained, judge_beside, judge_runs

_PAPERS, _FOLDER = "dpbench.judging.papers", Path(__file__).resolve().parents[1] / "papers"
Judges = Callable[[Claim, bool], Judgement]  # of a claim, and whether to prove it


def judge(claim: Claim, certified: bool = False, runs: Sequence[Trained] = ()) -> VerdictRecord:
    """Judge one claim. A judge that raises gives the verdict `crashes`. `runs`: the records that training left.

    >>> from dpbench.judging.claims.claim import Printed
    >>> from dpbench.events import Composition, Gaussian
    >>> parts = ((Gaussian(2.0), 1),)
    >>> claim = Claim("demo", "one", "here", "bound", "", "sound", "", {"mu": Printed("0.5")},
    ...               events=Composition(parts), counts=parts)
    >>> judge(claim).verdict
    'sound'
    """
    start, place = time.perf_counter(), ""
    try:
        judged, there = judge_of(claim, runs)
        found, place = judged(claim, certified), there
    except CannotRun as error:
        found = Judgement("not_run", str(error))
    except Exception as error:  # noqa: BLE001 (whatever a judge raises, the other claims are still judged)
        words = str(error) if isinstance(error, DpbenchError) else f"{type(error).__name__}: {error}"
        found = Judgement("crashes", words)
    same = ("paper", "place", "kind", "says", "because", "line", "by", "runs")
    return VerdictRecord(
        **{name: getattr(claim, name) for name in same},
        **vars(found),
        id=claim.name,
        printed=claim.shown,
        held=claim.verdict,
        seconds=round(time.perf_counter() - start, 4),
        certified=certified,
        file=own_path(claim.file),
        judge=place,
        key=key_of(claim),
        code=source_hash(claim.paper),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def judge_or_trust(
    claim: Claim, certified: bool, proof: tuple[VerdictRecord, str] | None, runs: Sequence[Trained] = ()
) -> VerdictRecord:
    """Judge one claim; `proof` is a certified record of it and its file, which saves to prove it again.

    The verdict is computed all the same, without proof. Where it is the record's, the record is the answer and says
    that it was trusted; otherwise the claim is judged as if there were no record.
    """
    if proof is not None:
        record, file = proof
        if judge(claim).verdict == record.verdict:
            again = "its verdict was computed again without proof, and is the same"
            return replace(record, trusted=f"the proof of {record.date} is taken from {file}; {again}")
    return judge(claim, certified, runs)


def judge_of(claim: Claim, runs: Sequence[Trained] = ()) -> tuple[Judges, str]:
    """What judges a claim, and its file and line. Raises as `loaded`."""
    if claim.holds:
        return judge_expression, f"{own_path(claim.file)}:{claim.line}"
    if claim.by:
        found = loaded(claim)
        return (partial(judge_beside, found, runs) if claim.runs else found.judge), found.place
    if not claim.counts:
        return lambda claim, _: judge_runs(claim, runs), place_of(judge_runs)
    judged = judge_number if claim.kind == "number" else judge_bound
    return judged, place_of(judged)


def is_of_paper(paper: str, by: str) -> bool:
    """Whether `by` names a file of judges that came with dpbench: one of that paper, or any with its whole name.

    >>> is_of_paper("bu2020", "limit:gdp_in_the_tail"), is_of_paper("bu2020", "os:system")
    (True, False)
    """
    module = by.partition(":")[0]
    return module.startswith(f"{_PAPERS}.") or (_FOLDER / paper / f"{module}.py").is_file()


def loaded(claim: Claim) -> Judge:
    """The object that `by` names. Raises DpbenchError where there is none or it is of another type."""
    if not is_code(claim.by):  # `antigravity` alone would be imported, too
        raise DpbenchError(f"{claim.name}: by = {claim.by!r}: expected file:name or package.module:name")
    module, _, name = claim.by.partition(":")
    places = [f"{_PAPERS}.{claim.paper}.{module}", module] if "." not in module else [module]
    for place in places:
        try:
            found: Any = getattr(importlib.import_module(place), name, None)
        except ModuleNotFoundError as error:
            if error.name is not None and place.startswith(error.name):
                continue
            raise DpbenchError(f"{claim.name}: {claim.by!r} cannot be imported: {error}") from None
        if isinstance(found, Judge):
            return found
        what = "there is no such name" if found is None else f"found {type(found).__name__}"
        known = "expected a function decorated by number, bound, formula, inequality or shown"
        raise DpbenchError(f"{claim.name}: by = {claim.by!r}: {what}; {known}")
    raise DpbenchError(f"{claim.name}: by = {claim.by!r}: there is no such file")
