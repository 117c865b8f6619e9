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
from dpbench.catalog import in_short
from dpbench.errors import DpbenchError
from dpbench.store.agreement import refuted
from dpbench.store.provenance import code_hash
from dpbench.store.reading import check_digest, printable, read_json, signed
from dpbench.store.records import Damaged, finite, json_files, restored
from dpbench.store.run_key import (
    code_modules,
    full_parameters,
    mechanism_entries,
    plain,
    shipped,
    step_modules,
)
from dpbench.store.shapes import Checked, RunRecord

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
    schema_version: Literal[2] = 2
    type: Literal["check"] = "check"
    digest: str | None = None

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


def read_checks(out: Path, damaged: list[Damaged] | None = None) -> dict[str, CheckRecord]:
    """The verdicts of OUT/checks and OUT/published/checks, by hash; what cannot be used is added to `damaged`.

    A verdict is made again by `dpbench check` (and `dpbench run`) where there is none.
    """
    found: dict[str, CheckRecord] = {}
    for folder in (Path(out) / "checks", Path(out) / "published" / "checks"):
        for path in json_files(folder, damaged):
            try:
                content = read_json(path)
                record = _adapter().validate_python(restored(content))
                check_digest(path, content)
                if record.code != path.stem:
                    raise DpbenchError(f"{path}: its code is {record.code!r}: expected its file name; remove it")
                if record.verdict == "holds" and any(_worried(line) for line in record.lines):
                    raise DpbenchError(
                        f"inconsistent: {path}: it holds, but one of its lines is refuted; check it again"
                    )
                found.setdefault(record.code, record)
            except (DpbenchError, ValidationError) as error:
                if damaged is not None:
                    message = str(error) if isinstance(error, DpbenchError) else _in_short(path, error)
                    damaged.append(Damaged(path, printable(message)))
    return found


def _worried(line: Mapping[str, Any]) -> bool:
    """Whether a line refutes its mechanism; the estimate's bias is no matter of privacy."""
    return line.get("verdict") == "refuted" and line.get("check") != "gradient_unbiased"


def _in_short(path: Path, error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{path}: not a verdict of schema 2 ({place}: {first['msg']}); it is not used: make one with dpbench check"


def write_check(out: Path, record: CheckRecord) -> None:
    """Write a verdict, whole or not at all. Raises DpbenchError where that cannot be done."""
    data = json.loads(json.dumps(finite(asdict(record)), allow_nan=False, default=repr))
    write_text(record.place(out), json.dumps(signed(data), indent=1, ensure_ascii=False) + "\n")


def of_shipped(mechanism: Mapping[str, Any]) -> Checked:
    """The verdict on one of dpbench's own mechanisms, by name and parameters.

    The contract tests cover what is proven. Another variant is refuted where no ε may be stated of it, else unchecked.

    >>> of_shipped({"name": "dpis", "parameters": {"variant": "as_printed"}}).verdict
    'unchecked'
    """
    why = refuted(mechanism)
    if why:
        return Checked("refuted", why)
    variant = (mechanism.get("parameters") or {}).get("variant", "proven")
    if variant != "proven":
        return Checked("unchecked", f"variant = {variant}: the contract tests of its source cover the proven one alone")
    return SHIPPED


def known(checks: Mapping[str, CheckRecord], code: Code, steps: int) -> Checked:
    """The verdict on this code for a run of so many steps."""
    if code.shipped:
        return SHIPPED
    return _covering(checks.get(code.hash), steps) or UNCHECKED


def of_record(run: RunRecord, checks: Mapping[str, CheckRecord]) -> Checked | None:
    """The verdict on a recorded run; None if it is not private. A later verdict on its code takes precedence."""
    if not run.facts.private:
        return None
    if shipped(run.resolved["mechanism"]):  # whatever the record says
        return of_shipped(run.resolved["mechanism"])
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
