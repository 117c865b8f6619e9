"""Stored verdicts on mechanisms, by a hash of their code.

`OUT/checks/<hash>.json` holds one verdict. The hash covers the modules of the mechanism, its stages and its engine,
every module of the same package (or folder) that these import, directly or not, the part of dpbench that every step
uses, and the parameters. A change in any of them makes the mechanism unchecked again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from dpbench.atomic import write_text
from dpbench.catalog import STAGES, catalog, in_short
from dpbench.store.provenance import code_hash
from dpbench.store.records import Checked, RunRecord, finite, restored
from dpbench.store.run_key import code_modules, full_parameters, mechanism_entries, plain, step_modules

RULES = 2  # raised when new checks make old verdicts invalid
SHIPPED = Checked("holds", "a mechanism of dpbench: covered by the contract tests of its source")
UNCHECKED = Checked("unchecked", "no check of this code is known here; make one with: dpbench check SPEC")


@dataclass(frozen=True)
class CheckRecord:
    """The verdict on one mechanism, for runs of up to `planned` steps; `lines` are the verdicts of the checks."""

    code: str
    mechanism: str
    parameters: Mapping[str, Any]
    planned: int
    modules: Mapping[str, str]
    verdict: Literal["holds", "refuted", "unchecked"]
    reason: str
    lines: tuple[Mapping[str, Any], ...]
    seed: int
    environment: Mapping[str, Any] = field(default_factory=dict)
    schema_version: Literal[1] = 1
    type: Literal["check"] = "check"

    def place(self, out: Path) -> Path:
        """Its file in an OUT folder."""
        return Path(out) / "checks" / f"{self.code}.json"

    @property
    def checked(self) -> Checked:
        """The part that a run's record keeps."""
        return Checked(self.verdict, self.reason, self.code, self.planned)


@dataclass(frozen=True)
class Code:
    """A mechanism's code: its hash, the hashes of its modules, and whether all of it is dpbench's own."""

    hash: str
    modules: Mapping[str, str]
    shipped: bool


def code_of(name: str, parameters: Mapping[str, Any]) -> Code:
    """The code of a mechanism with these parameters. Raises DpbenchError where a module has no source.

    >>> code_of("noisy_sgd", {}).shipped
    True
    """
    entries = mechanism_entries(name, parameters)
    full = full_parameters(entries[0], parameters)
    shipped = all(one.origin == "dpbench" for one in entries)
    used = {*code_modules(entries), *([] if shipped else step_modules())}
    modules = {module: code_hash(module) for module in sorted(used)}
    content = {
        "rules": RULES,
        "modules": modules,
        "parameters": plain(full),
        "targets": [one.target for one in entries],
    }
    text = json.dumps(content, sort_keys=True, default=repr)
    return Code(hashlib.sha256(text.encode()).hexdigest(), modules, shipped)


def described(name: str, parameters: Mapping[str, Any]) -> str:
    """A mechanism for people.

    >>> described("noisy_sgd", {"clipping": "ghost"})
    'noisy_sgd (clipping = ghost)'
    """
    given = ", ".join(f"{key} = {in_short(value)}" for key, value in parameters.items())
    return f"{name} ({given})" if given else name


def shipped(mechanism: Mapping[str, Any]) -> bool:
    """Whether a mechanism by its name and parameters, with its stages and its engine, is one of dpbench's own.

    >>> shipped({"name": "pipeline", "parameters": {"update": "my_updates:Nesterov"}})
    False
    """
    parameters = mechanism.get("parameters") or {}
    names = [("mechanisms", str(mechanism.get("name")))]
    for stage, kind in (*STAGES.items(), ("clipping", "clipping")):
        value = parameters.get(stage)
        name = value.get("name") if isinstance(value, Mapping) else value
        if isinstance(name, str) and name != "none":
            names.append((kind, name))
    known = (catalog(kind).get(name) for kind, name in names)
    return all(entry is not None and entry.origin == "dpbench" for entry in known)


def read_checks(out: Path) -> dict[str, CheckRecord]:
    """The readable verdicts of OUT/checks and OUT/published/checks, by hash; damaged files are skipped."""
    found: dict[str, CheckRecord] = {}
    for folder in (Path(out) / "checks", Path(out) / "published" / "checks"):
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            try:
                record = _adapter().validate_python(restored(json.loads(path.read_text(encoding="utf-8"))))
            except (OSError, ValueError, ValidationError):
                continue
            if record.code == path.stem:
                found.setdefault(record.code, record)
    return found


def write_check(out: Path, record: CheckRecord) -> None:
    """Write a verdict, whole or not at all. Raises DpbenchError where that cannot be done."""
    text = json.dumps(finite(asdict(record)), indent=1, ensure_ascii=False, allow_nan=False, default=repr)
    write_text(record.place(out), text + "\n")


def known(checks: Mapping[str, CheckRecord], code: Code, steps: int) -> Checked:
    """The verdict on this code for a run of so many steps."""
    if code.shipped:
        return SHIPPED
    return _covering(checks.get(code.hash), steps) or UNCHECKED


def of_record(run: RunRecord, checks: Mapping[str, CheckRecord]) -> Checked | None:
    """The verdict on a recorded run; None if it is not private. A later verdict on its code takes precedence."""
    if not run.facts.private:
        return None
    if run.checked is None and shipped(run.resolved["mechanism"]):
        return SHIPPED
    if run.checked is None:
        return Checked("unchecked", "its record holds no check of its mechanism")
    later = _covering(checks.get(run.checked.code), int(run.resolved["steps"]))
    return later or run.checked


def worst(several: Iterable[Checked | None]) -> Checked | None:
    """The least favourable of several runs' verdicts."""
    rank = {"refuted": 0, "unchecked": 1, "holds": 2}
    return min((one for one in several if one is not None), key=lambda one: rank[one.verdict], default=None)


def _covering(record: CheckRecord | None, steps: int) -> Checked | None:
    if record is None:
        return None
    if record.verdict != "refuted" and record.planned < steps:
        return Checked("unchecked", f"checked for runs of up to {record.planned} steps, not for {steps}", record.code)
    return record.checked


@cache
def _adapter() -> TypeAdapter[CheckRecord]:
    return TypeAdapter(CheckRecord)
