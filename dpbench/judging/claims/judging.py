"""`verify`: choose claims, judge them in several processes, write records; a certified verdict is computed once."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from dpbench.catalog import suggestion
from dpbench.errors import DpbenchError, Problem
from dpbench.judging.claims.claim import KINDS, Claim, ClaimsFile
from dpbench.judging.claims.judge import judge
from dpbench.judging.claims.reading import PAPERS as PAPERS
from dpbench.judging.claims.reading import read_claims
from dpbench.judging.claims.record import VerdictRecord, key_of, read_verdicts, source_hash, write_verdict
from dpbench.judging.claims.summary import write_claims_file

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
    """What `verify` found: the verdicts in the order of the files, the files, and the mistakes in them."""

    verdicts: tuple[VerdictRecord, ...]
    files: tuple[ClaimsFile, ...]
    problems: tuple[Problem, ...] = ()
    resumed: int = 0

    @property
    def changed(self) -> tuple[VerdictRecord, ...]:
        """Verdicts that are not the expected ones."""
        return tuple(verdict for verdict in self.verdicts if not verdict.as_expected)

    @property
    def exit_status(self) -> int:
        """0 all as expected, 1 a verdict is another one or a judge could not run, 2 a mistake in a file."""
        return 2 if self.problems else 1 if self.changed else 0


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
) -> Verified:
    """Judge the chosen claims of some files and folders. Raises DpbenchError where the choice takes none of them.

    With `out` every verdict is written to OUT/verdicts as soon as it is known; certified verdicts that stand there
    already, of the same claim by the same code, are not computed again unless `force`. With several `workers` a script
    that calls this has to be importable (`if __name__ == "__main__":`).
    """
    choice = choice or Choice()
    found = read_claims(paths, choice.takes)
    claims = [claim for file in found.files for claim in file.claims]
    chosen = [claim for claim in claims if choice.takes(claim)]
    if claims and not chosen:
        raise DpbenchError(_none_chosen(choice, claims))
    sources = {paper: source_hash(paper) for paper in {claim.paper for claim in chosen}}
    known = {} if out is None else read_verdicts(out)
    proven = {
        claim.name: known[claim.name]
        for claim in chosen
        if claim.name in known and known[claim.name].key == key_of(claim, True, sources[claim.paper])
    }
    done = dict(proven) if certified and not force else {}
    due = [claim for claim in chosen if claim.name not in done]
    before = len(done)
    for file in found.files:
        if out is not None and any(choice.takes(claim) for claim in file.claims):
            write_claims_file(out, file)
    if progress is not None:
        progress(None, 0, len(due))
    calls = [(claim, certified, key_of(claim, certified, sources[claim.paper])) for claim in due]
    with closing(_judged(calls, min(workers, len(due)))) as records:
        for record in records:
            done[record.id] = record
            if out is not None and (certified or record.id not in proven):  # what is proven stays
                write_verdict(out, record)
            if progress is not None:
                progress(record, len(done) - before, len(due))
    verdicts = tuple(done[claim.name] for claim in chosen)
    return Verified(verdicts, found.files, found.problems, len(chosen) - len(due))


def _judged(calls: Sequence[tuple[Claim, bool, str]], workers: int) -> Generator[VerdictRecord]:
    """What `judge` says of every call, in processes of their own where there are several; as they end."""
    if workers == 1 or len(calls) < 3:
        yield from (judge(*call) for call in calls)
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_quiet)
    try:
        for future in as_completed([pool.submit(judge, *call) for call in calls]):
            yield future.result()
    except BaseException:
        for process in list(getattr(pool, "_processes", {}).values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _quiet() -> None:
    """Ctrl-C is the parent's to handle."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
