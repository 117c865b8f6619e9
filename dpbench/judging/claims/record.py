"""Verdict records: one JSON file per claim in OUT/verdicts, written whole or not at all, which the report renders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dpbench.atomic import write_text
from dpbench.errors import DpbenchError
from dpbench.judging.claims.claim import Claim
from dpbench.store.records import SCHEMA_VERSION, finite, restored

FOLDER = "verdicts"
_NUMERICS = (
    "events.py",
    *(f"privacy/{name}" for name in ("answers.py", "composition.py", "accounting.py", "accountants", "certified")),
    "judging/claims",
)


@dataclass(frozen=True)
class VerdictRecord:
    """A judged claim as plain data.

    `held` is the expected verdict, `judge` the file and line of what judged the claim, `key` a hash of the claim and
    of the code.
    """

    id: str
    paper: str
    place: str
    kind: str
    says: str
    printed: str
    verdict: str
    held: str
    because: str
    value: float | str | None
    reason: str
    seconds: float
    certified: bool
    file: str
    line: int
    by: str = ""
    judge: str = ""
    runs: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    routes: Mapping[str, Any] = field(default_factory=dict)
    plot: Mapping[str, Any] | None = None
    false_alarm: float = 0.0
    key: str = ""

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the expected one."""
        return self.verdict == self.held

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: what is not finite is null beside a reason."""
        found: dict[str, Any] = finite(asdict(self))
        return found


def key_of(claim: Claim, certified: bool, sources: str) -> str:
    """A hash of all that may change the verdict: the claim but for where it stands and why, and the code."""
    facts = {
        **{name: repr(value) for name, value in vars(claim).items() if name not in ("file", "line", "column", "path")},
        "certified": certified,
        "sources": sources,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def source_hash(paper: str) -> str:
    """A hash of the files that judge claims of this paper."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for name in (*_NUMERICS, "judging/papers/mathematics.py", f"judging/papers/{paper}"):
        place = root / name
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place] if place.exists() else []:
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def write_verdict(out: Path, record: VerdictRecord) -> Path:
    """Write OUT/verdicts/<id>.json. Raises DpbenchError where that cannot be written."""
    data = {"schema_version": SCHEMA_VERSION, "type": "verdict", **record.to_json()}
    return write_text(Path(out) / FOLDER / f"{record.id}.json", json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def json_files(out: Path, folder: str) -> list[Path]:
    """The JSON files of OUT/folder, then those of OUT/published/folder."""
    return [path for top in (Path(out), Path(out) / "published") for path in sorted((top / folder).glob("*.json"))]


def read_verdicts(out: Path) -> dict[str, VerdictRecord]:
    """The readable verdict records of OUT/verdicts and OUT/published/verdicts by id; damaged ones do not count."""
    found: dict[str, VerdictRecord] = {}
    for record in map(_read, json_files(out, FOLDER)):
        if record is not None:
            found.setdefault(record.id, record)
    return found


def _read(path: Path) -> VerdictRecord | None:
    try:
        data = restored(json.loads(path.read_text(encoding="utf-8")))
        if data.pop("schema_version") != SCHEMA_VERSION or data.pop("type") != "verdict":
            return None
        return VerdictRecord(**{**data, "runs": tuple(data["runs"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, DpbenchError):
        return None
