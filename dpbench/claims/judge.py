"""One claim to its judgement: by accountants from its events, or by what its paper's own file holds."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbench.claims.bounds import judge_bound
from dpbench.claims.claim import Claim, Judgement
from dpbench.claims.expressions import judge_expression
from dpbench.claims.judges import Judge
from dpbench.claims.quantities import judge_number
from dpbench.claims.renyi_bounds import judge_renyi
from dpbench.errors import DpbenchError

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Judged:
    """A claim, its judgement (None where the check could not run, and `failure` says why), the seconds it took and
    the file and line of what judged it."""

    claim: Claim
    judgement: Judgement | None
    seconds: float
    certified: bool = False
    failure: str = ""
    place: str = ""

    @property
    def verdict(self) -> str:
        """The verdict; `crashes` where the check could not run."""
        return "crashes" if self.judgement is None else self.judgement.verdict

    @property
    def as_held(self) -> bool:
        """Whether the verdict is the one that the ledger holds."""
        return self.verdict == self.claim.verdict


def judge(claim: Claim, certified: bool = False) -> Judged:
    """Judge one claim; a check that cannot run is told, not raised.

    >>> from dpbench.claims.claim import Printed
    >>> from dpbench.events import Composition, Gaussian
    >>> claim = Claim("demo", "one", "here", "bound", "", "sound", "", {"mu": Printed("0.5")},
    ...               events=Composition(((Gaussian(2.0), 1),)))
    >>> judge(claim).verdict
    'sound'
    """
    start = time.perf_counter()
    try:
        found = judgement(claim, certified)
    except Exception as error:  # noqa: BLE001 (whatever a check dies of, the rest of the ledger still runs)
        failure = str(error) if isinstance(error, DpbenchError) else f"{type(error).__name__}: {error}"
        return Judged(claim, None, time.perf_counter() - start, certified, failure)
    return Judged(claim, found, time.perf_counter() - start, certified, place=judge_place(claim))


def judgement(claim: Claim, certified: bool) -> Judgement:
    """The judgement alone. Raises what the check raises."""
    if claim.holds:
        return judge_expression(claim)
    if claim.verdict == "not_run" and not claim.by and not claim.counts:
        where = ", ".join(claim.runs) or "no run spec yet"
        missing = [run for run in claim.runs if not _is_written(run, claim.file)]
        told = f"; not written yet: {', '.join(missing)}" if missing else ""
        return Judgement("not_run", f"judged by training: {where}{told}")
    if not claim.by and claim.kind == "bound":
        return judge_renyi(claim) if "rdp" in claim.printed else judge_bound(claim, certified)
    if not claim.by:
        return judge_number(claim)
    return what_judges(claim).judge(claim, certified)


def judge_place(claim: Claim) -> str:
    """File and line of what judges a claim; empty where that is training."""
    if claim.holds:
        return f"{own_path(claim.file)}:{claim.line}"
    if claim.by:
        return what_judges(claim).place
    if not claim.counts:
        return ""
    judged = judge_number if claim.kind == "number" else judge_renyi if "rdp" in claim.printed else judge_bound
    return f"{own_path(judged.__code__.co_filename)}:{judged.__code__.co_firstlineno}"


def own_path(file: str) -> str:
    """A file of the package from the folder that holds the package, others as they are."""
    path = Path(file)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else file


def _is_written(run: str, ledger: str) -> bool:
    """Whether a run spec lies below the folder in which we run, or below one that holds the ledger."""
    places = [Path(), *(Path(ledger).resolve().parents if ledger else ())]
    return any((place / run).is_file() for place in places)


def what_judges(claim: Claim) -> Judge:
    """The object that `by` names. Raises DpbenchError where there is none or it is of another type."""
    module, _, name = claim.by.partition(":")
    places = [f"dpbench.papers.{claim.paper}.{module}", module] if "." not in module else [module]
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
