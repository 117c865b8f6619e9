"""The claims of a report: verdict records with their counts, the papers' coverage and the mistakes that matter."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dpbench.atomic import read_bytes
from dpbench.errors import DpbenchError
from dpbench.judging.claims.claim import KINDS, ClaimsFile, Covered, Mistake, own_path, whole_path
from dpbench.judging.claims.reading import read_claims
from dpbench.judging.claims.record import (
    AGAIN,
    FOLDER,
    VerdictRecord,
    json_files,
    key_of,
    read_stored,
    read_verdicts,
    source_hash,
    write_json,
)

FILES = f"{FOLDER}/papers"
_QUOTED = re.compile(r"\{([a-z0-9][a-z0-9_-]*)\.([a-z_.A-Z0-9-]+)\}")


@dataclass(frozen=True)
class PaperClaims:
    """One paper: its claims in the order of the file, its coverage and its mistakes, their texts filled in.

    `verdicts` are the records that count; ids in coverage and mistakes may be of claims that have none.
    """

    paper: str
    title: str
    source: str
    verdicts: tuple[VerdictRecord, ...]
    coverage: tuple[Covered, ...]
    mistakes: tuple[Mistake, ...]
    claims: int

    @property
    def missing(self) -> int:
        """How many claims have no record."""
        return self.claims - len(self.verdicts)

    @property
    def judged(self) -> frozenset[str]:
        """The ids, without the paper, of the claims that have a record."""
        return frozenset(record.id.removeprefix(f"{self.paper}.") for record in self.verdicts)

    @property
    def days(self) -> tuple[str, ...]:
        """The first and the last day on which they were judged; one where they are the same."""
        days = sorted(record.date[:10] for record in self.verdicts)
        return tuple(dict.fromkeys(days[:1] + days[-1:]))


@dataclass(frozen=True)
class ClaimsReport:
    """All papers that have records; `left_out` says which files do not count and why, a sentence for each."""

    papers: tuple[PaperClaims, ...]
    left_out: tuple[str, ...] = ()
    folder: str = FOLDER

    @property
    def verdicts(self) -> tuple[VerdictRecord, ...]:
        """Every record."""
        return tuple(record for paper in self.papers for record in paper.verdicts)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that occur, in the order of `claim.KINDS`."""
        return tuple(kind for kind in KINDS if any(record.kind == kind for record in self.verdicts))

    @property
    def found(self) -> tuple[str, ...]:
        """The verdicts that occur."""
        return tuple(Counter(record.verdict for record in self.verdicts))


@dataclass(frozen=True)
class _Paper:
    """What OUT/verdicts/papers holds of a file of claims: `claims` has the hash of each, `sha256` is the file's own."""

    paper: str
    title: str
    source: str
    file: str
    sha256: str
    claims: Mapping[str, str]
    coverage: tuple[Covered, ...]
    mistakes: tuple[Mistake, ...]


_PAPER = TypeAdapter(_Paper)


def write_claims_file(out: Path, file: ClaimsFile) -> Path:
    """Write what the report needs of a file besides verdicts, OUT/verdicts/papers/<paper>.json."""
    paper = _Paper(
        **{name: getattr(file, name) for name in ("paper", "title", "source", "coverage", "mistakes")},
        file=own_path(file.file),
        sha256=hashlib.sha256(read_bytes(Path(file.file))).hexdigest(),
        claims={claim.name: key_of(claim) for claim in file.claims},
    )
    return write_json(Path(out) / FILES / f"{file.paper}.json", "paper", asdict(paper))


def claims_report(out: Path) -> ClaimsReport | None:
    """The claims that OUT and OUT/published have records of; None where there are none.

    Nothing is judged again. Left out are files that were edited or damaged, and verdicts of claims and code that have
    changed since.
    """
    stored = read_verdicts(out)
    papers: dict[str, PaperClaims] = {}
    left_out = list(stored.refused)
    for path in json_files(out, FILES):
        try:
            paper = _read(path)
        except DpbenchError as error:
            left_out.append(str(error))
            continue
        if paper.paper not in papers:
            current, stale = _current(paper, stored.records)
            papers[paper.paper] = _filled_in(paper, current)
            left_out += [f"stale: {stored.files[name]}: {why}; {AGAIN}" for name, why in stale]
    known = {name for name in stored.records if stored.records[name].paper in papers}
    left_out += [
        f"{file}: there is no {FILES}/{stored.records[name].paper}.json beside it; {AGAIN}"
        for name, file in stored.files.items()
        if name not in known
    ]
    found = tuple(paper for _, paper in sorted(papers.items()) if paper.verdicts)
    return ClaimsReport(found, tuple(left_out), f"{out}/{FOLDER}") if found or left_out else None


def _read(path: Path) -> _Paper:
    try:
        paper = _PAPER.validate_json(json.dumps(read_stored(path, "paper")), strict=True)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise DpbenchError(f"{path}: {place}: not what it has there; {AGAIN}") from None
    if paper.paper != path.stem or any(not name.startswith(f"{paper.paper}.") for name in paper.claims):
        raise DpbenchError(f"inconsistent: {path}: it is about {paper.paper[:80]}; {AGAIN}")
    return paper


def _current(
    paper: _Paper, records: Mapping[str, VerdictRecord]
) -> tuple[tuple[VerdictRecord, ...], list[tuple[str, str]]]:
    """The records that are of these claims and this code; the names of the paper's others, and why they are not."""
    keys = paper.claims
    file = whole_path(paper.file)
    with contextlib.suppress(DpbenchError):  # a file that is gone: what was noted of it counts
        if hashlib.sha256(read_bytes(file)).hexdigest() != paper.sha256:
            claims = [claim for one in read_claims([file], allow_code=True).files for claim in one.claims]
            keys = {claim.name: key_of(claim) for claim in claims}
    current, stale = [], []
    for name in dict.fromkeys((*paper.claims, *(name for name in records if records[name].paper == paper.paper))):
        record = records.get(name)
        if record is None:
            continue
        if keys.get(name) != record.key:
            stale.append((name, f"the claim has changed in {paper.file}"))
        elif record.code != source_hash(record.paper):
            stale.append((name, "the code that judges it has changed"))
        else:
            current.append(record)
    return tuple(current), stale


def _filled_in(paper: _Paper, verdicts: tuple[VerdictRecord, ...]) -> PaperClaims:
    own = {record.id.removeprefix(f"{record.paper}."): record for record in verdicts}
    return PaperClaims(
        paper=paper.paper,
        title=paper.title,
        source=paper.source,
        verdicts=verdicts,
        coverage=paper.coverage,
        mistakes=tuple(_filled(mistake, own, paper.paper) for mistake in paper.mistakes),
        claims=len(paper.claims),
    )


def _filled(mistake: Mistake, records: Mapping[str, VerdictRecord], paper: str) -> Mistake:
    """A mistake with its quotations; where no record fills one, what to do to fill it."""

    def missing(match: re.Match[str]) -> str:
        return f"(not judged yet: dpbench verify --only {paper}.{match[1]})"

    texts: dict[str, Any] = {
        name: _QUOTED.sub(missing, filled(getattr(mistake, name), records)) for name in ("printed", "true", "instead")
    }
    return replace(mistake, **texts)


def filled(text: str, records: Mapping[str, VerdictRecord]) -> str:
    """A text with `{id.value}`, `{id.printed}` and `{id.evidence.name}` replaced by what the records say.

    A quotation that no record can fill stays as it is, in braces.
    """

    def quoted(match: re.Match[str]) -> str:
        record = records.get(match[1])
        found: Any = record
        for name in match[2].split("."):
            if found is None:
                return match[0]
            found = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
        return match[0] if found is None else _shown(found)

    return _QUOTED.sub(quoted, text)


def unfilled(mistakes: Sequence[Mistake]) -> list[str]:
    """The quotations that no record could fill."""
    texts = [text for mistake in mistakes for text in (mistake.printed, mistake.true, mistake.instead)]
    return [match[0] for text in texts for match in _QUOTED.finditer(text)]


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return str(value)
