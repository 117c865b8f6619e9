"""The claims of a report: verdict records with their counts, the papers' coverage and the mistakes that matter."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpbench.atomic import write_text
from dpbench.judging.claims.claim import KINDS, ClaimsFile, Covered, Mistake
from dpbench.judging.claims.record import FOLDER, VerdictRecord, json_files, read_verdicts
from dpbench.store.records import SCHEMA_VERSION, finite

FILES = f"{FOLDER}/ledgers"  # in the folder of records, under the name that old reports have
_QUOTED = re.compile(r"\{([a-z0-9][a-z0-9_-]*)\.([a-z_.A-Z0-9-]+)\}")


@dataclass(frozen=True)
class PaperClaims:
    """One paper: its claims in the order of the file, its coverage and its mistakes, their texts filled in."""

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


@dataclass(frozen=True)
class ClaimsReport:
    """All papers that have records."""

    papers: tuple[PaperClaims, ...]

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


def write_claims_file(out: Path, file: ClaimsFile) -> Path:
    """Write what the report needs of a file besides verdicts, OUT/verdicts/ledgers/<paper>.json."""
    data = {
        "schema_version": SCHEMA_VERSION,
        "type": "ledger",
        "paper": file.paper,
        "title": file.title,
        "source": file.source,
        "claims": [claim.name for claim in file.claims],
        "coverage": [asdict(covered) for covered in file.coverage],
        "mistakes": [asdict(mistake) for mistake in file.mistakes],
    }
    text = json.dumps(finite(data), indent=1, ensure_ascii=False) + "\n"
    return write_text(Path(out) / FILES / f"{file.paper}.json", text)


def claims_report(out: Path) -> ClaimsReport | None:
    """The claims that OUT and OUT/published have records of; None where there are none."""
    records = read_verdicts(out)
    papers: dict[str, PaperClaims] = {}
    for path in json_files(out, FILES):
        if path.stem not in papers:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                papers[path.stem] = _paper(json.loads(path.read_text(encoding="utf-8")), records)
    found = tuple(paper for _, paper in sorted(papers.items()) if paper.verdicts)
    return ClaimsReport(found) if found else None


def _paper(data: Mapping[str, Any], records: Mapping[str, VerdictRecord]) -> PaperClaims:
    verdicts = tuple(records[name] for name in data["claims"] if name in records)
    own = {record.id.removeprefix(f"{record.paper}."): record for record in verdicts}
    return PaperClaims(
        paper=data["paper"],
        title=data["title"],
        source=data["source"],
        verdicts=verdicts,
        coverage=tuple(Covered(**{**covered, "claims": tuple(covered["claims"])}) for covered in data["coverage"]),
        mistakes=tuple(_filled(mistake, own) for mistake in data["mistakes"]),
        claims=len(data["claims"]),
    )


def _filled(mistake: Mapping[str, Any], records: Mapping[str, VerdictRecord]) -> Mistake:
    texts = {name: filled(mistake[name], records) for name in ("printed", "true", "instead")}
    return Mistake(**{**mistake, "claims": tuple(mistake["claims"]), **texts})


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
