"""Records of runs, as typed JSON files that are written whole or not at all.

`OUT/records/<run_key>.json` holds a finished run, `OUT/failures/<run_key>.json` one that failed,
`OUT/checkpoints/<run_key>.pt` the state of an unfinished one. `OUT/published/records` holds records that came with the
project; they count as existing. JSON has no infinity: a number that is not finite is null beside a key
`<name>_reason`, and is read back as it was. A record that contradicts itself is not used (`agreement`).
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from dpbench.atomic import clean_folder, write_error, write_text
from dpbench.errors import DpbenchError
from dpbench.store.agreement import disagreement, failure_disagreement, on_trust, other_data
from dpbench.store.reading import check_digest, parse_json, printable, read_json, signed
from dpbench.store.shapes import (
    SCHEMA_VERSION,
    Checked,
    Context,
    CurvePoint,
    Facts,
    FailureRecord,
    Result,
    RunRecord,
    as_data,
    headed,
    is_number,
    typed,
)

__all__ = [
    "Checked",
    "Contents",
    "Context",
    "CurvePoint",
    "Damaged",
    "Facts",
    "FailureRecord",
    "Result",
    "RunRecord",
    "Store",
]

MOST_FACTS = 1 << 20  # bytes of a checkpoint's line of JSON: a curve has about a hundred points
SCHEMA_VERSIONS = (1, 2)  # those that are read; records of version 1 have no digest
_KEY = re.compile(r"^[0-9a-f]{64}$")
_REASONS = {"infinite": math.inf, "minus infinite": -math.inf, "not a number": math.nan}

Stored = TypeVar("Stored", bound=RunRecord | FailureRecord)


class NewerRecord(DpbenchError):
    """A record written by a newer dpbench: it must not be overwritten by this one."""


@dataclass(frozen=True)
class Damaged:
    """A file in a record folder that cannot be used, and why."""

    path: Path
    message: str


@dataclass(frozen=True)
class Contents:
    """Everything that an OUT folder holds; one record per run key, `OUT/records` before `OUT/published/records`."""

    runs: tuple[RunRecord, ...]
    failures: tuple[FailureRecord, ...]
    damaged: tuple[Damaged, ...]


class Store:
    """The record folders of one OUT folder. Creating a Store touches nothing; folders appear when first written.

    >>> Store(Path("reports")).records_folder.as_posix()
    'reports/records'
    """

    def __init__(self, out: Path) -> None:
        self.out = Path(out)
        self.records_folder = self.out / "records"
        self.published_folder = self.out / "published" / "records"
        self.failures_folder = self.out / "failures"
        self.checkpoints_folder = self.out / "checkpoints"

    def run_path(self, run_key: str) -> Path:
        """Where the run's record is written. Raises DpbenchError for what is no run key."""
        return self.records_folder / f"{_checked_key(run_key)}.json"

    def failure_path(self, run_key: str) -> Path:
        """Where the run's failure is written."""
        return self.failures_folder / f"{_checked_key(run_key)}.json"

    def checkpoint_path(self, run_key: str) -> Path:
        """Where the unfinished run's state is kept."""
        return self.checkpoints_folder / f"{_checked_key(run_key)}.pt"

    def has_checkpoint(self, run_key: str) -> bool:
        """Whether there is a file with the unfinished run's state."""
        try:
            return self.checkpoint_path(run_key).is_file()
        except OSError:  # a folder that may not be read
            return False

    def is_unfinished(self, run_key: str) -> bool:
        """Whether the run was interrupted after its record was written (it was being run again), if there is one."""
        place, record = self.checkpoint_path(run_key), self.run_path(run_key)
        try:
            return place.is_file() and (not record.exists() or place.stat().st_mtime > record.stat().st_mtime)
        except OSError:  # a folder that may not be read: there is nothing to go on from
            return False

    def steps_done(self, run_key: str) -> int:
        """How far the unfinished run has come by the third line of its file; 0 where that cannot be read."""
        try:
            with self.checkpoint_path(run_key).open("rb") as file:
                line = [file.readline(MOST_FACTS) for _ in range(3)][-1]
            return max(0, int(parse_json(line.decode("utf-8")).get("step", 0)))
        except (OSError, TypeError, ValueError):
            return 0

    def write_run(self, record: RunRecord | Mapping[str, Any]) -> Path:
        """Write a finished run and remove its failure, if it had one; further keys of a mapping are kept.

        Raises DpbenchError when the record does not have the shape of `RunRecord`, or cannot be written; then nothing
        is left half-written.
        """
        path = _write(self.records_folder, RunRecord, record)
        failure = self.failure_path(path.stem)
        try:
            failure.unlink(missing_ok=True)
        except NotADirectoryError:
            pass
        except OSError as error:
            raise write_error(failure, error) from error
        return path

    def write_failure(self, failure: FailureRecord | Mapping[str, Any]) -> Path:
        """Write a failed run; a record that the run has from an earlier time stays. Raises like `write_run`."""
        return _write(self.failures_folder, FailureRecord, failure)

    def existing(self, about: Callable[[Mapping[str, Any]], bool] | None = None) -> dict[str, dict[str, Any]]:
        """The readable records as plain data, by run key: those of OUT/records, then the published ones.

        A damaged or inconsistent record does not count, so its run is done again; `read` reports it. `about` says of a
        file's content, not yet validated, whether it can matter: records of other runs need not be held to themselves.
        """
        found: dict[str, dict[str, Any]] = {}
        for folder in (self.records_folder, self.published_folder):
            for path in json_files(folder):
                if path.stem not in found:
                    with contextlib.suppress(DpbenchError):
                        content = read_json(path)
                        if about is None or about(content):
                            found[path.stem] = _validated(path, content, RunRecord)[0]
        return found

    def refused(self, run_key: str) -> str:
        """Why the run's own record cannot be used; "" where it can, or where there is none.

        Raises NewerRecord for one that a newer dpbench wrote: it must not be overwritten.
        """
        path = self.run_path(run_key)
        try:
            if path.is_symlink() or path.exists():
                _load(path, RunRecord)
        except NewerRecord:
            raise
        except DpbenchError as error:
            return printable(str(error))
        return ""

    def make_way(self, run_key: str) -> None:
        """Move folders that stand where the run's files will be written aside, to `<name>.folder`.

        Raises DpbenchError where that cannot be done.
        """
        for path in (self.run_path(run_key), self.failure_path(run_key), self.checkpoint_path(run_key)):
            if path.is_dir() and not path.is_symlink():
                try:
                    path.rename(path.with_name(f"{path.name}.folder"))
                except OSError as error:
                    raise write_error(path, error) from error

    def read(self) -> Contents:
        """All records and failures; a file that cannot be used is listed as damaged, and the others are read.

        A failure older than the record of the same run is left out: the run was repeated with success.
        """
        runs: dict[str, RunRecord] = {}
        failures: list[FailureRecord] = []
        damaged: list[Damaged] = []
        kinds: dict[Path, type[RunRecord] | type[FailureRecord]] = {
            self.records_folder: RunRecord,
            self.published_folder: RunRecord,
            self.failures_folder: FailureRecord,
        }
        for folder, kind in kinds.items():
            for path in json_files(folder, damaged):
                try:
                    record = _load(path, kind)[1]
                except DpbenchError as error:
                    damaged.append(Damaged(path, printable(str(error))))
                    continue
                if isinstance(record, RunRecord):
                    runs.setdefault(record.run_key, record)
                elif record.run_key not in runs or _time(record) > _time(runs[record.run_key]):
                    failures.append(record)
        return Contents(tuple(runs.values()), tuple(failures), tuple(damaged))

    def clean(self) -> tuple[Path, ...]:
        """Remove the temporary files that killed writers left in OUT's folders; returns them."""
        folders = (self.out, self.records_folder, self.failures_folder, self.checkpoints_folder)
        return tuple(path for folder in folders for path in clean_folder(folder))


def objection(record: Mapping[str, Any]) -> str:
    """Why a run record, as plain data, would not be used once it is written; "" where it would."""
    try:
        data: dict[str, Any] = restored(json.loads(json.dumps(finite(headed(RunRecord, record)), default=as_data)))
        typed(RunRecord, data, "this run record")
    except DpbenchError as error:
        return printable(str(error))
    return disagreement(data)


def taken_on_trust(run: RunRecord) -> tuple[str, ...]:
    """What is from the record although other records are held to it: no digest, or what nobody recomputed."""
    found = {
        "no digest": run.digest is None,
        "ledger from the record": run.ledger is not None and on_trust(run.resolved),
        "data from the record": other_data(run.resolved),
    }
    return tuple(words for words, true in found.items() if true)


def finite(value: Any) -> Any:
    """Plain JSON values: a float that is not finite becomes null beside a key `<name>_reason`; tuples become lists.

    >>> finite({"loss": float("inf"), "seed": 1})
    {'loss': None, 'loss_reason': 'infinite', 'seed': 1}
    """
    if isinstance(value, Mapping):
        plain: dict[str, Any] = {}
        for key, item in value.items():
            reason = _reason(item)
            plain |= {str(key): None, f"{key}_reason": reason} if reason else {str(key): finite(item)}
        return plain
    if isinstance(value, list | tuple):
        return [{"value": None, "value_reason": _reason(item)} if _reason(item) else finite(item) for item in value]
    return value


def restored(value: Any) -> Any:
    """The inverse of `finite` (for lists, not tuples).

    >>> restored({"loss": None, "loss_reason": "infinite", "seed": 1})
    {'loss': inf, 'seed': 1}
    """
    if isinstance(value, list):
        return [restored(item) for item in value]
    if not isinstance(value, dict):
        return value
    hidden = {
        key: _REASONS[reason]
        for key, item in value.items()
        if item is None and isinstance(reason := value.get(f"{key}_reason"), str) and reason in _REASONS
    }
    if not hidden:
        return {key: restored(item) if isinstance(item, dict | list) else item for key, item in value.items()}
    if set(value) == {"value", "value_reason"} and "value" in hidden:
        return hidden["value"]
    dropped = {f"{key}_reason" for key in hidden}
    return {key: hidden.get(key, restored(item)) for key, item in value.items() if key not in dropped}


def _reason(value: Any) -> str:
    """Why JSON cannot hold a number; "" for all that it can."""
    if not isinstance(value, float) or math.isfinite(value):
        return ""
    return "not a number" if math.isnan(value) else "infinite" if value > 0 else "minus infinite"


def json_files(folder: Path, damaged: list[Damaged] | None = None) -> list[Path]:
    """The record files of a folder in the order of their names, without hidden and temporary files.

    A folder that cannot be read is added to `damaged`.
    """
    try:
        return sorted(p for p in folder.iterdir() if p.suffix == ".json" and not p.name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        if damaged is not None:
            damaged.append(Damaged(folder, printable(f"{folder}: cannot be read ({error.strerror or error})")))
        return []


def _write(
    folder: Path, kind: type[RunRecord] | type[FailureRecord], record: RunRecord | FailureRecord | Mapping[str, Any]
) -> Path:
    data = headed(kind, record if isinstance(record, Mapping) else asdict(record))
    typed(kind, data, f"this {kind.type} record")
    text = json.dumps(signed(finite(data)), indent=1, ensure_ascii=False, allow_nan=False)
    path = folder / f"{_checked_key(data['run_key'])}.json"
    clean_folder(folder)
    return write_text(path, text + "\n")


def _load(path: Path, kind: type[Stored]) -> tuple[dict[str, Any], Stored]:
    return _validated(path, read_json(path), kind)


def _validated(path: Path, content: dict[str, Any], kind: type[Stored]) -> tuple[dict[str, Any], Stored]:
    version = content.get("schema_version")
    if is_number(version) and version > SCHEMA_VERSION:
        raise NewerRecord(
            f"{path}: schema_version = {version}: this dpbench reads up to {SCHEMA_VERSION}; use a newer dpbench"
        )
    if isinstance(version, bool) or version not in SCHEMA_VERSIONS:
        known = ", ".join(map(str, SCHEMA_VERSIONS))
        raise DpbenchError(f"{path}: schema_version = {version!r}: this dpbench reads {known}; remove it and run again")
    if content.get("type", kind.type) != kind.type:
        raise DpbenchError(f"{path}: type = {content['type']!r}: expected {kind.type!r}; move it to where it belongs")
    data: dict[str, Any] = restored(content)
    record = typed(kind, data, str(path))
    if version == 1:
        data.pop("digest", None)  # version 1 has none
    else:
        check_digest(path, content)
    if record.run_key != path.stem:
        raise DpbenchError(f"{path}: its run_key is {record.run_key!r}: expected its file name; rename or remove it")
    wrong = disagreement(data) if isinstance(record, RunRecord) else failure_disagreement(data)
    if wrong:
        raise DpbenchError(f"inconsistent: {path}: {wrong}; it is not used, and `dpbench run` does its run again")
    return data, replace(record, digest=data.get("digest"))


def _checked_key(run_key: object) -> str:
    if not isinstance(run_key, str) or not _KEY.match(run_key):
        raise DpbenchError(f"run_key = {run_key!r}: expected 64 hexadecimal digits")
    return run_key


def _time(record: RunRecord | FailureRecord) -> str:
    return str(record.environment.get("time_utc") or "")
