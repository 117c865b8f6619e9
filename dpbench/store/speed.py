"""What `dpbench bench` measured: OUT/speed.json, the sums by every engine and the whole steps of rows of specs.

Times depend on the machine, so no verdict follows from them; they are shown beside the printed ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dpbench.atomic import write_text
from dpbench.errors import DpbenchError
from dpbench.store.reading import check_digest, printable, read_json, signed
from dpbench.store.records import Damaged, finite, restored
from dpbench.store.run_key import PLAIN

FILE = "speed.json"
SCHEMA_VERSION = 1
TORCH = "torch"  # among the sums: torch's own step of the module, without dpbench


def engine_words(engine: str, chunk: int, seconds: Mapping[str, float | str]) -> str:
    """What sums the gradients, and what that takes.

    >>> engine_words("ghost", 37, {"vmap": 0.5, "ghost": 0.2, "plain": 0.1})
    'ghost, 37 at a time, 2.0 × the plain pass'
    """
    own, plain = seconds.get(engine), seconds.get(PLAIN)
    ratio = f", {own / plain:.1f} × the plain pass" if isinstance(own, float) and isinstance(plain, float) else ""
    return f"{engine}, {chunk} at a time{ratio}"


@dataclass(frozen=True)
class StepLine:
    """Training steps of a row of a spec, in a stack of `runs`: seconds of one step of all of them, and what they do.

    `seconds` is the median of `steps` steps, `fastest` and `slowest` their ends (on a GPU each is a mean over up to
    64); `batch` examples are expected in a step of one run, `epoch_steps` steps make an epoch. `floor` is about what
    the step would take if the machine did nothing but the operations of a plain step at the speed of its own matrix
    products, or moved each number once at the speed of its own copies, whichever is more. `peak_bytes` of tensors
    beyond the data. `baseline` is the label of the row without privacy that the source compares it with. `operators`
    are the five that take the most time of a step, each with its share. `commit` is that of the code (`commit_of`).
    `refusal` says why nothing was measured. `compiled_seconds`, of a row without privacy: its step with the gradient by
    torch's compiler; `compiled_refusal` says why there is none. `alone_seconds`, of a stack on a CPU: the step of its
    first run alone, by `alone_engine`, measured in turn with it, scaled to a batch of the expected size.
    """

    name: str
    label: str
    run_key: str
    engine: str
    device: str
    device_name: str
    threads: int
    runs: int
    dataset: str
    model: str
    parameters: int
    batch: float
    epoch_steps: float
    baseline: str = ""
    chunk: int | None = None
    steps: int = 0
    seconds: float | None = None
    fastest: float | None = None
    slowest: float | None = None
    floor: float | None = None
    peak_bytes: int | None = None
    printed_seconds: str = ""
    printed_memory: str = ""
    refusal: str = ""
    made: str = ""
    commit: str = ""
    operators: tuple[tuple[str, float], ...] = ()
    compiled_seconds: float | None = None
    compiled_refusal: str = ""
    alone_seconds: float | None = None
    alone_engine: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """What a later measurement takes the place of."""
        return self.name, self.label, self.run_key, self.engine, self.device_name, self.threads, self.runs

    def to_json(self) -> dict[str, Any]:
        """Plain data, with what follows from it."""
        more = ("epoch_seconds", "runs_steps_per_second", "examples_per_second")
        found: dict[str, Any] = finite(asdict(self))
        return {**found, **{name: getattr(self, name) for name in more}}

    @property
    def epoch_seconds(self) -> float | None:
        """Seconds of an epoch of one run."""
        return None if self.seconds is None else self.seconds / self.runs * self.epoch_steps

    @property
    def runs_steps_per_second(self) -> float | None:
        """Steps of all runs together in a second."""
        return None if self.seconds is None else self.runs / self.seconds

    @property
    def examples_per_second(self) -> float | None:
        """Records that are drawn in a second, of all runs together."""
        return None if self.seconds is None else self.runs * self.batch / self.seconds


@dataclass(frozen=True)
class SumLine:
    """One way on one model: `seconds` of one clipped sum of `places` examples, and its peak memory in bytes.

    `seconds` is the median of some calls, `fastest` and `slowest` their ends; `of_torch`, `of_plain` and
    `of_plain_compiled` are the median over those of torch's own step and of the plain backward pass, where they were
    measured with it. `refusal` says why there is no measurement. `inputs` is `data`, or `zeros` where the dataset is
    absent. `operators` and `commit` as of a `StepLine`; the operators of a compiled way are those of the same way
    without the compiler.
    """

    dataset: str
    model: str
    parameters: int
    engine: str
    places: int
    chunk: int
    inputs: str
    device: str
    device_name: str
    threads: int
    seconds: float | None = None
    fastest: float | None = None
    slowest: float | None = None
    examples_per_second: float | None = None
    of_plain: float | None = None
    of_plain_compiled: float | None = None
    peak_bytes: int | None = None
    refusal: str | None = None
    made: str = ""
    of_torch: float | None = None
    commit: str = ""
    operators: tuple[tuple[str, float], ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """What a later measurement takes the place of."""
        return *self.of_table, self.engine

    @property
    def of_table(self) -> tuple[Any, ...]:
        """What the lines of one table have in common."""
        return self.dataset, self.model, self.parameters, self.places, self.inputs, self.device_name, self.threads

    @property
    def title(self) -> str:
        """What the table of this line is about."""
        zeros = "" if self.inputs == "data" else ", inputs of zeros (the data are absent)"
        return (
            f"{self.model} on {self.dataset}: {self.parameters:,} parameters, one sum of {self.places} examples,"
            f" {self.device_name}{_threads(self)}{zeros}"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Speed:
    """All lines of whole steps and of sums, and the environment of the last measurement."""

    lines: tuple[StepLine, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    sums: tuple[SumLine, ...] = ()

    def beside(self, before: Speed | None) -> Speed:
        """These lines, and the earlier ones of what was not measured again."""
        if before is None:
            return self
        mine = {line.key for line in self.lines} | {line.key for line in self.sums}
        lines = tuple(line for line in before.lines if line.key not in mine)
        sums = tuple(line for line in before.sums if line.key not in mine)
        return replace(self, lines=(*lines, *self.lines), sums=(*sums, *self.sums))

    def tables_of_sums(self) -> list[tuple[str, list[SumLine]]]:
        """The sums of each model, number of examples and machine, under a title."""
        found: dict[tuple[Any, ...], list[SumLine]] = {}
        for line in self.sums:
            found.setdefault(line.of_table, []).append(line)
        return [(lines[0].title, lines) for lines in found.values()]

    def tables(self) -> list[tuple[str, list[StepLine]]]:
        """The lines of each spec, machine and size of the stack, under a title."""
        found: dict[str, list[StepLine]] = {}
        for line in self.lines:
            stack = f", stacks of {line.runs} runs" if line.runs > 1 else ""
            found.setdefault(f"{line.name} on {line.device_name}{_threads(line)}{stack}", []).append(line)
        return list(found.items())

    def baseline_of(self, line: StepLine) -> StepLine | None:
        """The row without privacy beside a line, measured on the same machine in a stack as large."""
        where = (line.name, line.model, line.device_name, line.threads, line.runs)
        for one in self.lines:
            same = (one.name, one.model, one.device_name, one.threads, one.runs) == where
            if same and one.label == line.baseline and one.seconds is not None:
                return one
        return None

    def printed_ratio(self, line: StepLine) -> float | None:
        """The printed time of a line over that of its row without privacy; None where one of them is not printed."""
        plain = next((one for one in self.lines if (one.name, one.label) == (line.name, line.baseline)), None)
        if plain is None or not (plain.printed_seconds and line.printed_seconds):
            return None
        return float(line.printed_seconds) / float(plain.printed_seconds)


def commit_of(environment: Mapping[str, Any]) -> str:
    """The commit of an environment, "-dirty" behind it where files were changed; "" outside a checkout.

    >>> commit_of({"commit": "74ea427", "dirty": True})
    '74ea427-dirty'
    """
    commit = environment.get("commit") or ""
    return f"{commit}-dirty" if commit and environment.get("dirty") else commit


def _threads(line: StepLine | SumLine) -> str:
    return f", {line.threads} thread{'s' * (line.threads != 1)}" if line.device == "cpu" else ""


def write_speed(out: Path, speed: Speed) -> Path:
    """Write OUT/speed.json, whole or not at all."""
    content = {"schema_version": SCHEMA_VERSION, "type": "speed", **finite(asdict(speed))}
    return write_text(Path(out) / FILE, json.dumps(signed(content), indent=1, ensure_ascii=False) + "\n")


def read_speed(out: Path, damaged: list[Damaged] | None = None) -> Speed | None:
    """The lines of OUT/speed.json beside the published ones; None where there are none. Unusable files: `damaged`."""
    found: Speed | None = None
    for path in (Path(out) / "published" / FILE, Path(out) / FILE):
        if path.exists() or path.is_symlink():
            try:
                found = _speed(path).beside(found)
            except DpbenchError as error:
                if damaged is not None:
                    damaged.append(Damaged(path, printable(str(error))))
    return found


def own_speed(out: Path, damaged: list[Damaged]) -> Speed | None:
    """The lines of OUT/speed.json alone, to which others are added."""
    path = Path(out) / FILE
    if not (path.exists() or path.is_symlink()):
        return None
    try:
        return _speed(path)
    except DpbenchError as error:
        damaged.append(Damaged(path, printable(str(error))))
        return None


def _speed(path: Path) -> Speed:
    content = read_json(path)
    if content.get("schema_version") != SCHEMA_VERSION or content.get("type") != "speed":
        raise DpbenchError(f"{path}: no measurements of schema {SCHEMA_VERSION}; make them: dpbench bench")
    check_digest(path, content)
    data = {name: value for name, value in restored(content).items() if name in ("lines", "environment", "sums")}
    try:
        found: Speed = _adapter().validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise DpbenchError(f"{path}: no measurements ({place}: {first['msg']}); make them: dpbench bench") from error
    return found


@cache
def _adapter() -> TypeAdapter[Speed]:
    return TypeAdapter(Speed)
