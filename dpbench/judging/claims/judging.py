"""`verify`: choose claims, judge them in several processes, write records; a proof is computed once."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from dpbench.catalog import suggestion
from dpbench.errors import DpbenchError, Problem
from dpbench.judging.claims.claim import KINDS, Claim, ClaimsFile
from dpbench.judging.claims.judge import judge_or_trust
from dpbench.judging.claims.reading import PAPERS as PAPERS
from dpbench.judging.claims.reading import read_claims
from dpbench.judging.claims.record import (
    Stored,
    VerdictRecord,
    key_of,
    read_verdicts,
    source_hash,
    write_verdict,
)
from dpbench.judging.claims.runs import Trained, trained
from dpbench.judging.claims.summary import write_claims_file
from dpbench.training.workers import Ray, spread

__all__ = ["Choice", "Verified", "verify"]


@dataclass(frozen=True)
class Choice:
    """Which claims: of these papers, of these kinds, with these names; empty means all."""

    papers: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def takes(self, claim: Claim) -> bool:
        """Whether the claim is chosen."""
        named = not self.names or any(fnmatch.fnmatchcase(claim.name, pattern) for pattern in self.names)
        return (
            named and (not self.papers or claim.paper in self.papers) and (not self.kinds or claim.kind in self.kinds)
        )


@dataclass(frozen=True)
class Verified:
    """What `verify` found: the verdicts in the order of the files, the files, and the mistakes in them.

    `left_out` says which files of OUT/verdicts do not count and why, a sentence for each.
    """

    verdicts: tuple[VerdictRecord, ...]
    files: tuple[ClaimsFile, ...]
    problems: tuple[Problem, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def resumed(self) -> int:
        """How many proofs were taken from files."""
        return sum(bool(verdict.trusted) for verdict in self.verdicts)

    @property
    def changed(self) -> tuple[VerdictRecord, ...]:
        """Verdicts that are not the expected ones; where none is expected, those that are not favourable."""
        return tuple(verdict for verdict in self.verdicts if not verdict.as_expected)

    @property
    def exit_status(self) -> int:
        """0 all as expected, 1 a verdict is another one or a judge could not run, 2 a mistake in a file."""
        return 2 if self.problems else 1 if self.changed else 0


Call = tuple[Claim, bool, tuple[VerdictRecord, str] | None, tuple[Trained, ...]]  # what `judge_or_trust` takes
Progress = Callable[[VerdictRecord | None, int, int], None]  # the last verdict (None at the start), done, of


def verify(
    paths: Sequence[Path],
    choice: Choice | None = None,
    *,
    certified: bool = False,
    workers: int = 1,
    out: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    allow_code: bool = False,
    ray: Ray | None = None,
) -> Verified:
    """Judge the chosen claims of some files and folders. Raises DpbenchError where the choice takes none of them.

    With `out` every verdict is written to OUT/verdicts as soon as it is known. With `certified`, a proof that stands
    there already, of the same claim by the same code, is not computed again unless `force`; the verdict is, without
    proof, and where it is another one, so is the proof. `allow_code`: files may name
    judges and accountants outside dpbench. With several `workers` a script
    that calls this has to be importable (`if __name__ == "__main__":`). `ray`: a cluster in place of workers here.
    """
    choice = choice or Choice()
    found = read_claims(paths, choice.takes, allow_code)
    claims = [claim for file in found.files for claim in file.claims]
    chosen = [claim for claim in claims if choice.takes(claim)]
    if claims and not chosen:
        raise DpbenchError(_none_chosen(choice, claims))
    sources = {paper: source_hash(paper) for paper in {claim.paper for claim in chosen}}
    stored = Stored({}) if out is None else read_verdicts(out)
    proofs = {
        claim.name: record
        for claim in chosen
        if claim.kind == "bound"  # nothing else is proven: to judge it again takes as long as to see that it agrees
        and (record := stored.records.get(claim.name)) is not None
        and (record.certified, record.key, record.code) == (True, key_of(claim), sources[claim.paper])
    }
    taken = {} if force or out is None or not certified else proofs
    for file in found.files:
        if out is not None and any(choice.takes(claim) for claim in file.claims):
            write_claims_file(out, file)
    if progress is not None:
        progress(None, 0, len(chosen))
    proof = {name: (record, stored.files[name].as_posix()) for name, record in taken.items()}
    runs = trained(out) if out is not None and any(claim.runs for claim in chosen) else ()
    calls = [(claim, certified, proof.get(claim.name), _of(claim, runs)) for claim in chosen]
    done: dict[str, VerdictRecord] = {}
    with closing(spread(judge_or_trust, calls, min(workers, len(chosen)), ray)) as records:
        for record in records:
            done[record.id] = record
            weaker = record.id in proofs and record.verdict in (proofs[record.id].verdict, "undecided")
            if out is not None and not record.trusted and (certified or not weaker):  # what is proven stays
                write_verdict(out, record)
            if progress is not None:
                progress(record, len(done), len(chosen))
    verdicts = tuple(done[claim.name] for claim in chosen)
    return Verified(verdicts, found.files, found.problems, stored.refused)


def _of(claim: Claim, runs: Sequence[Trained]) -> tuple[Trained, ...]:
    """The runs, where training judges a claim."""
    return tuple(runs) if claim.runs else ()


def _none_chosen(choice: Choice, claims: Sequence[Claim]) -> str:
    papers = tuple(dict.fromkeys(claim.paper for claim in claims))
    for paper in choice.papers:
        if paper not in papers:
            return f"--paper {paper}: there are no claims of it here{suggestion(paper, papers)}"
    for kind in choice.kinds:
        if kind not in KINDS:
            return f"--kind {kind}: expected one of {', '.join(KINDS)}"
    for pattern in choice.names:
        names = tuple(claim.name for claim in claims)
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            return f"--only {pattern}: no claim has such a name{suggestion(pattern, names)}"
    return "no claim is of these papers, kinds and names at once"
