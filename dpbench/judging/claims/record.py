"""Verdict records: one JSON file per claim in OUT/verdicts, written whole or not at all, which the report renders.

A record carries a digest of its content and hashes of the claim and of the code that judged it. What was edited, or
belongs to another claim or other code, does not count, and is named. Anybody can compute a digest: it shows a slip or
a damaged file, not a forger. Only `verify` itself, which judges every claim anew, shows that a verdict is true.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dpbench.atomic import write_text
from dpbench.errors import DpbenchError
from dpbench.judging.claims.claim import BOUND_VERDICTS, FAVOURABLE, KINDS, Claim
from dpbench.store.reading import check_digest, read_json, signed
from dpbench.store.records import finite, restored
from dpbench.verdicts import VERDICTS

FOLDER = "verdicts"
VERSION = 2  # of the files in OUT/verdicts; 1 had no digest
AGAIN = "judge it again with `dpbench verify`"
_KNOWN = {*VERDICTS, *BOUND_VERDICTS, "crashes"}
_NUMERICS = (
    "events.py",
    *(f"privacy/{name}" for name in ("answers.py", "composition.py", "accounting.py", "accountants", "certified")),
    "judging/claims",
    "judging/reproduction.py",
    "references",
)


@dataclass(frozen=True)
class VerdictRecord:
    """A judged claim as plain data.

    `held` is the expected verdict ("" where the claim states none), `judge` the file and line of what judged the claim,
    `key` a hash of the claim, `code` one of the code, `date` when it was judged. `trusted` is set where `verify` took
    the proof from a file: the file, and what was computed again.
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
    code: str = ""
    date: str = ""
    trusted: str = ""

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the expected one; without one, whether nothing says that the claim is untrue.

        What is stated as `not_run` expects nothing of the runs, which may refute it or leave it undecided.
        """
        if self.held == "not_run":
            return self.verdict in (*FAVOURABLE, "not_run", "undecided", "refuted")
        return self.verdict == self.held if self.held else self.verdict in (*FAVOURABLE, "not_run")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: what is not finite is null beside a reason."""
        found: dict[str, Any] = finite(asdict(self))
        return found


_RECORD = TypeAdapter(VerdictRecord)


@dataclass(frozen=True)
class Stored:
    """The verdict records of a folder by id, and a sentence for each file that does not count."""

    records: Mapping[str, VerdictRecord]
    files: Mapping[str, Path] = field(default_factory=dict)
    refused: tuple[str, ...] = ()


def key_of(claim: Claim) -> str:
    """A hash of all of the claim that may change what is shown of it, but not of where it stands in its file."""
    facts = {name: repr(value) for name, value in vars(claim).items() if name not in ("file", "line", "column", "path")}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@cache
def source_hash(paper: str) -> str:
    """A hash of the files that judge claims of this paper."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for name in (*_NUMERICS, "judging/papers/mathematics.py", f"judging/papers/{paper}"):
        place = root / name
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place] if place.exists() else []:
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def write_json(path: Path, kind: str, content: Mapping[str, Any]) -> Path:
    """Write a file of OUT/verdicts with its version, type and digest. Raises DpbenchError where that cannot be done."""
    data = signed({"schema_version": VERSION, "type": kind, **content})
    return write_text(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def read_stored(path: Path, kind: str) -> dict[str, Any]:
    """The content of such a file. Raises DpbenchError where it is of another version or type, damaged or edited."""
    data = read_json(path)
    if data.get("schema_version") != VERSION or data.get("type") != kind:
        found = f"type {str(data.get('type'))[:40]!r}, version {str(data.get('schema_version'))[:40]}"
        raise DpbenchError(f"{path}: {found}; expected a {kind} of version {VERSION}; {AGAIN}")
    check_digest(path, data)
    return {name: value for name, value in data.items() if name not in ("schema_version", "type", "digest")}


def write_verdict(out: Path, record: VerdictRecord) -> Path:
    """Write OUT/verdicts/<id>.json. Raises DpbenchError where that cannot be written."""
    return write_json(Path(out) / FOLDER / f"{record.id}.json", "verdict", record.to_json())


def json_files(out: Path, folder: str) -> list[Path]:
    """The JSON files of OUT/folder, then those of OUT/published/folder."""
    return [path for top in (Path(out), Path(out) / "published") for path in sorted((top / folder).glob("*.json"))]


def read_verdicts(out: Path) -> Stored:
    """The verdict records of OUT/verdicts and OUT/published/verdicts; of two of one claim the first counts."""
    found: dict[str, VerdictRecord] = {}
    files: dict[str, Path] = {}
    refused = []
    for path in json_files(out, FOLDER):
        try:
            record = _read(path)
        except DpbenchError as error:
            refused.append(str(error))
        else:
            found.setdefault(record.id, record)
            files.setdefault(record.id, path)
    return Stored(found, files, tuple(refused))


def _read(path: Path) -> VerdictRecord:
    data = restored(read_stored(path, "verdict"))
    try:
        record = _RECORD.validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))[:80]
        raise DpbenchError(f"{path}: {place}: not what a verdict has there; {AGAIN}") from None
    if set(data) - set(vars(record)):
        raise DpbenchError(f"{path}: unknown keys {', '.join(sorted(set(data) - set(vars(record))))[:80]}; {AGAIN}")
    wrong = _wrong(record)
    if path.stem != record.id or wrong:
        raise DpbenchError(f"inconsistent: {path}: {wrong or f'it is the verdict on {record.id[:80]}'}; {AGAIN}")
    return record


def _wrong(record: VerdictRecord) -> str:
    """What in a record contradicts itself."""
    if record.kind not in KINDS or record.verdict not in _KNOWN or not {record.held} <= {"", *_KNOWN}:
        return "a kind or a verdict that dpbench does not know"
    if not record.id.startswith(f"{record.paper}.") or not record.paper:
        return "the claim is of another paper"
    sound = record.plot is None or _is_plot(record.plot)
    return "" if sound else "its plot has neither lines of equal length nor planes of the size of their axes"


def _is_plot(plot: Mapping[str, Any]) -> bool:
    def numbers(line: Any, length: int | None = None) -> bool:
        found = isinstance(line, list) and all(type(one) in (int, float) and math.isfinite(one) for one in line)
        return found and len(line) > 0 and length in (None, len(line))

    def pairs(dots: Any) -> bool:
        return isinstance(dots, list) and all(numbers(dot, 2) for dot in dots)

    def plane(one: Any) -> bool:
        if not isinstance(one, dict) or set(one) != {"x", "y", "heights", "dots", "marked"}:
            return False
        x, y, heights = one["x"], one["y"], one["heights"]
        sound = numbers(x) and numbers(y) and isinstance(heights, list) and len(heights) == len(x) > 1 < len(y)
        return (
            sound and all(numbers(line, len(y)) for line in heights) and all(map(pairs, (one["dots"], one["marked"])))
        )

    if not all(isinstance(plot.get(label), str) for label in ("x_label", "y_label")):
        return False
    lines, planes = plot.get("lines"), plot.get("planes")
    if "planes" in plot:
        return isinstance(planes, dict) and bool(planes) and all(map(plane, planes.values()))
    if not numbers(plot.get("x")) or not isinstance(lines, dict) or not lines:
        return False
    return all(numbers(line, len(plot["x"])) for line in lines.values())
