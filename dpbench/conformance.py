"""Accountants held against stored enclosures, two-sided: sound, unsound, loose by how much, refused, crashed.

At every point an accountant is asked for δ at ε, and, where δ is neither tiny nor large, for ε at that δ. Float64 is
allowed 1e-9 relative or 1e-12 absolute ("1e-9 relative"); the enclosure's own width counts for the accountant.

| finding | an exact accountant | an upper bound | an approximation |
| --- | --- | --- | --- |
| sound | within that of the enclosure | not below it, and less than 1 % above in ε | within 1 % in ε |
| loose | further above | 1 % or more above in ε | 1 % or more above in ε |
| unsound | further below | below | below by 1 % or more in ε |
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dpbench.accounting import FAILURES, Accountant, Estimate, No, in_a_sentence, load_accountant
from dpbench.atomic import write_text
from dpbench.enclosures import Point
from dpbench.events import Composition
from dpbench.records import SCHEMA_VERSION, finite, restored

FILE = "conformance.json"
RELATIVE, ABSOLUTE = 1e-9, 1e-12
CLOSE = 0.01  # of ε: less than that above the truth is called sound
ASKED_BACK = (1e-200, 0.3)  # δ between these is turned round: ε at δ
FINDINGS = ("sound", "loose", "unsound", "refuses", "crashes")
MOST_NAMED = 5  # unsound points that a line names


@dataclass(frozen=True)
class Held:
    """One accountant at one point. `excess` is (its ε)/(true ε) − 1 where ε could be asked for, else None."""

    accountant: str
    kind: str
    point: Point
    finding: str
    reason: str = ""
    value: float | None = None
    excess: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Line:
    """One accountant on one table: how often which finding, and how far off. `excess`: median and largest of ε."""

    accountant: str
    kind: str
    table: str
    points: int
    findings: Mapping[str, int]
    median_excess: float | None
    largest_excess: float | None
    median_seconds: float | None
    unsound: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    made: str = ""


@dataclass(frozen=True)
class Conformance:
    """What was found, for the report; `environment` is that of the last run, `made` of a line that of its own."""

    lines: tuple[Line, ...]
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def points(self) -> int:
        """How many points there are in all tables."""
        return sum({line.table: line.points for line in self.lines}.values())

    def beside(self, before: Conformance | None) -> Conformance:
        """These lines, and the earlier ones of accountants and tables that were not asked again."""
        if before is None:
            return self
        mine = {(line.accountant, line.table) for line in self.lines}
        kept = [line for line in before.lines if (line.accountant, line.table) not in mine]
        lines = sorted((*kept, *self.lines), key=lambda line: (line.accountant, line.table))
        return Conformance(tuple(lines), self.environment)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        found: dict[str, Any] = finite(asdict(self))
        return {"schema_version": SCHEMA_VERSION, "type": "conformance", **found}


def hold(
    names: Sequence[str], points: Sequence[Point], told: Callable[[str, int, int], None] | None = None
) -> Iterator[Held]:
    """Every accountant at every point; points of one composition share a curve. `told`: accountant, done, of.

    >>> from dpbench.events import Gaussian
    >>> point = Point("demo", "plain", Composition(((Gaussian(1.0), 1),)), 1.0, 0.12693673, 0.12693674, 1e-9)
    >>> [(held.accountant, held.finding) for held in hold(["exact", "rdp"], [point])]
    [('exact', 'sound'), ('rdp', 'loose')]
    """
    for name in names:
        accountant = load_accountant(name)
        curves: dict[Composition, Any] = {}
        for number, point in enumerate(points, 1):
            if told is not None:
                told(name, number, len(points))
            yield _held(name, accountant, point, curves)


def _held(name: str, accountant: Accountant, point: Point, curves: dict[Composition, Any]) -> Held:
    start = time.perf_counter()
    if point.composition not in curves:
        curves.clear()  # points of one composition follow each other
        answer = accountant.supports(point.composition)
        curves[point.composition] = answer if isinstance(answer, No) else None
    curve = curves[point.composition]
    if isinstance(curve, No):
        return Held(name, accountant.kind, point, "refuses", curve.reason)
    try:
        if curve is None:
            curve = curves[point.composition] = accountant.curve(point.composition)
        delta = curve.delta(point.epsilon)
        middle = (point.lower + point.upper) / 2
        asked = ASKED_BACK[0] < middle < ASKED_BACK[1] and point.epsilon > 0 and point.upper < point.lower * 1.001
        epsilon = curve.epsilon(middle) if asked else None
    except FAILURES as error:
        return Held(name, accountant.kind, point, "refuses", in_a_sentence(error))
    except Exception as error:  # noqa: BLE001 (another library's accountant may fail in any way: that is a finding)
        return Held(name, accountant.kind, point, "crashes", f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - start
    excess = None if epsilon is None or not math.isfinite(epsilon.value) else epsilon.value / point.epsilon - 1
    finding = classify(str(curve.kind), delta, point, excess)
    return Held(name, str(curve.kind), point, finding, "", delta.value, excess, seconds)


def classify(kind: str, delta: Estimate, point: Point, excess: float | None) -> str:
    """The finding for an answer δ; the table above says how.

    >>> point = Point("demo", "plain", Composition(()), 1.0, 0.1, 0.1, 1e-9)
    >>> classify("exact", Estimate(0.1), point, 0.0), classify("upper_bound", Estimate(0.09), point, -0.1)
    ('sound', 'unsound')
    """
    value = delta.value
    slack = max(RELATIVE * point.upper, ABSOLUTE)
    below, above = value < point.lower - slack, value > point.upper + slack
    if kind in ("exact", "certified"):
        return "unsound" if below else "loose" if above else "sound"
    far = abs(excess) >= CLOSE if excess is not None else abs(value - point.upper) > CLOSE * point.upper
    if kind == "upper_bound":
        return "unsound" if below else "loose" if above and far else "sound"
    return "sound" if not far else "unsound" if below else "loose"


def summarise(found: Iterable[Held], environment: Mapping[str, Any] | None = None) -> Conformance:
    """A line per accountant and table."""
    groups: dict[tuple[str, str], list[Held]] = {}
    for held in found:
        groups.setdefault((held.accountant, held.point.table), []).append(held)
    environment = dict(environment or {})
    made = str(environment.get("time_utc", ""))
    return Conformance(tuple(_line(name, table, group, made) for (name, table), group in groups.items()), environment)


def _line(name: str, table: str, group: Sequence[Held], made: str) -> Line:
    counts = Counter(held.finding for held in group)
    excess = [held.excess for held in group if held.excess is not None]
    seconds = [held.seconds for held in group if held.seconds]
    unsound = [
        f"{held.point.regime}, epsilon {held.point.epsilon:g}: {held.value:.6g}, but delta >= {held.point.lower:.6g}"
        for held in group
        if held.finding == "unsound"
    ]
    reasons = dict.fromkeys(held.reason for held in group if held.reason)
    return Line(
        accountant=name,
        kind=next((held.kind for held in group if held.finding not in ("refuses", "crashes")), group[0].kind),
        table=table,
        points=len(group),
        findings={finding: counts[finding] for finding in FINDINGS if counts[finding]},
        median_excess=statistics.median(excess) if excess else None,
        largest_excess=max(excess, key=abs) if excess else None,
        median_seconds=statistics.median(seconds) if seconds else None,
        unsound=tuple(unsound[:MOST_NAMED]),
        reasons=tuple(reasons)[:MOST_NAMED],
        made=made,
    )


def write_conformance(out: Path, conformance: Conformance) -> Path:
    """Write OUT/conformance.json, whole or not at all."""
    return write_text(Path(out) / FILE, json.dumps(conformance.to_json(), indent=1, ensure_ascii=False) + "\n")


def read_conformance(out: Path) -> Conformance | None:
    """What OUT/conformance.json holds, else the published one; None where there is none that can be read."""
    for path in (Path(out) / FILE, Path(out) / "published" / FILE):
        try:
            data = restored(json.loads(path.read_text(encoding="utf-8")))
            if data.get("schema_version") != SCHEMA_VERSION or data.get("type") != "conformance":
                continue
            lines = tuple(
                Line(**{**line, "unsound": tuple(line["unsound"]), "reasons": tuple(line["reasons"])})
                for line in data["lines"]
            )
            return Conformance(lines, data["environment"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
    return None
