"""Accountants held against stored enclosures, two-sided: sound, unsound, loose by how much, refused, crashed.

A point says that the true δ(ε₀) lies in [l, u]. It judges four answers, for the truth falls and is continuous:

| asked | the truth | too low | too high |
| --- | --- | --- | --- |
| δ at ε₀ | in [l, u] | below l | above u |
| ε at a δ below l | above ε₀ | below ε₀ | |
| ε at a δ from u on | at most ε₀ | | above ε₀ |
| δ at the first of these ε(δ) | δ | | above δ |

The ends are moved by 1e-9 before they are asked about, so that an error of that size in δ is forgiven however flat the
curve is; answers have 1e-9 relative as well (of ε, or 1e-12 absolute, if that is more).

| finding | an exact accountant | an upper bound | an approximation |
| --- | --- | --- | --- |
| sound | none of them too low or too high | none too low, and less than 1 % above in ε | within 1 % in ε |
| loose | one too low or too high, though its interval is not | 1 % or more above in ε | 1 % or more above in ε |
| unsound | the safe end of δ or ε too low | the same | below by 1 % or more in ε |
| non_monotone | at a larger ε a larger δ, or the reverse, among the answers for one composition | the same | the same |
| inconsistent | δ(ε(δ)) is above δ, beyond the stated errors | δ(ε(δ)) is above δ | it is not δ within 1 % |
| crashes | an error that is no refusal, NaN, δ outside [0, 1] or ε below 0 | the same | the same |

The first that is true is taken of: crashes, unsound, non_monotone, inconsistent, loose.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from dpbench.atomic import write_text
from dpbench.events import Composition
from dpbench.judging.enclosures import Point
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.answers import (
    FAILURES,
    PROMISES,
    Accountant,
    Estimate,
    No,
)
from dpbench.privacy.guards import in_a_sentence
from dpbench.store.records import SCHEMA_VERSION, finite, restored

FILE = "conformance.json"
RELATIVE, ABSOLUTE = 1e-9, 1e-12
CLOSE = 0.01  # of ε: less than that above the truth is called sound
# how far answers of one curve may disagree: ends are stated, but roots are sought, and bounds chosen among a grid's
ALLOWED = {"exact": 1e-6, "certified": 1e-6, "upper_bound": 1e-3, "approximation": CLOSE}
SMALLEST = 1e-200  # of δ at which ε is asked
FINDINGS = ("sound", "loose", "unsound", "non_monotone", "inconsistent", "refuses", "crashes")
BROKEN = ("unsound", "non_monotone", "inconsistent", "crashes")  # what no promise may be
MOST_NAMED = 5  # points that a line names


@dataclass(frozen=True)
class Answers:
    """What one curve says about one point: δ at its ε, and ε at a δ below and above; None where it was not asked.

    `below` and `above` are pairs (δ, the ε that was answered); `back` is a pair (δ, the δ answered at the ε of that δ).
    """

    delta: Estimate
    below: tuple[float, Estimate] | None = None
    above: tuple[float, Estimate] | None = None
    back: tuple[float, Estimate] | None = None


@dataclass(frozen=True)
class Held:
    """One accountant at one point. `excess` is (its ε)/(true ε) − 1 where ε could be asked for, else None.

    What the enclosure leaves open counts for the accountant: 0 where its ε may be the truth.
    """

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
        curves: dict[Composition, _Asked] = {}
        for number, point in enumerate(points, 1):
            if told is not None:
                told(name, number, len(points))
            yield _held(name, accountant, point, curves)


class _Asked:
    """One accountant's curve of one composition, and what it has answered so far."""

    def __init__(self, accountant: Accountant, composition: Composition) -> None:
        self.accountant, self.composition = accountant, composition
        self.answer = accountant.supports(composition)
        self.curve: Any = None
        self.deltas: list[tuple[float, Estimate]] = []  # (ε, δ at it)
        self.epsilons: list[tuple[float, Estimate]] = []  # (δ, ε at it)

    def about(self, point: Point) -> Answers:
        """The answers about one point; whatever the curve raises is raised."""
        if self.curve is None:
            self.curve = self.accountant.curve(self.composition)
        delta = self._delta(point.epsilon)
        below, above = self._epsilon(point.lower * (1 - RELATIVE)), self._epsilon(point.upper * (1 + RELATIVE))
        return Answers(delta, below, above, self._back(below or above))

    def _delta(self, epsilon: float) -> Estimate:
        found: Estimate = self.curve.delta(epsilon)
        self.deltas.append((epsilon, found))
        return found

    def _epsilon(self, delta: float) -> tuple[float, Estimate] | None:
        if not SMALLEST <= delta < 1:
            return None
        found: Estimate = self.curve.epsilon(delta)
        self.epsilons.append((delta, found))
        return delta, found

    def _back(self, pair: tuple[float, Estimate] | None) -> tuple[float, Estimate] | None:
        """δ at the ε that was promised for some δ; None where that is 0 or infinite, and no δ belongs to it."""
        if pair is None or not ABSOLUTE < pair[1].safe < math.inf:
            return None
        return pair[0], self._delta(pair[1].safe)

    def rises(self) -> str:
        """Two answers of which the one further out is the larger, beyond what is allowed; "" where there are none."""
        share = ALLOWED.get(str(self.curve.kind), CLOSE)
        for name, asked, found in (("delta", "epsilon", self.deltas), ("epsilon", "delta", self.epsilons)):
            ordered = sorted(found, key=lambda pair: pair[0])
            for (at, before), (beyond, after) in pairwise(ordered):
                if at < beyond and _floor(after) > _ceiling(before) * (1 + share) + ABSOLUTE * (name == "epsilon"):
                    said = [f"{one.value:.9g} at {asked} {where:.9g}" for where, one in ((at, before), (beyond, after))]
                    return f"{name} rises: {', '.join(said)}"
        return ""


def _epsilon_slack(value: float) -> float:
    return max(RELATIVE * value, ABSOLUTE) if math.isfinite(value) else 0.0


def _floor(estimate: Estimate) -> float:
    return estimate.value if estimate.lower is None else estimate.lower


def _ceiling(estimate: Estimate) -> float:
    return estimate.value if estimate.upper is None else estimate.upper


def _held(name: str, accountant: Accountant, point: Point, curves: dict[Composition, _Asked]) -> Held:
    start = time.perf_counter()
    if point.composition not in curves:
        curves.clear()  # points of one composition follow each other
        curves[point.composition] = _Asked(accountant, point.composition)
    asked = curves[point.composition]
    if isinstance(asked.answer, No):
        return Held(name, accountant.kind, point, "refuses", asked.answer.reason)
    try:
        found = asked.about(point)
        rises = asked.rises()
    except FAILURES as error:
        return Held(name, accountant.kind, point, "refuses", in_a_sentence(error))
    except Exception as error:  # noqa: BLE001 (another library's accountant may fail in any way: that is a finding)
        return Held(name, accountant.kind, point, "crashes", f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - start
    kind = str(asked.curve.kind)
    finding, reason = classify(kind, found, point, rises)
    return Held(name, kind, point, finding, reason, found.delta.value, excess(found, point), seconds)


def excess(found: Answers, point: Point) -> float | None:
    """How far ε is above or below the truth for sure, relative; 0 where it may be the truth, None if not asked."""
    if point.epsilon == 0 or (found.below is None and found.above is None):
        return None
    values = [math.nan if pair is None else pair[1].value / point.epsilon - 1 for pair in (found.below, found.above)]
    shares = [share for share in (min(values[0], 0.0), max(values[1], 0.0)) if share]
    return next((share for share in shares if math.isfinite(share)), None if shares else 0.0)


def classify(kind: str, found: Answers, point: Point, rises: str = "") -> tuple[str, str]:
    """The finding for the answers, and why; the table above says how. `rises` tells of answers that do not fall.

    >>> point = Point("demo", "plain", Composition(()), 1.0, 0.1, 0.1, 1e-9)
    >>> classify("exact", Answers(Estimate(0.1)), point), classify("upper_bound", Answers(Estimate(0.09)), point)[0]
    (('sound', ''), 'unsound')
    """
    wrong = _no_answer(found)
    if wrong:
        return "crashes", wrong
    close = 0.0 if kind in PROMISES else CLOSE
    low, high = _too_low(found, point, close), _too_high(found, point, close)
    if low and (kind != "exact" or _too_low(_safe(found), point, close)):
        return "unsound", low
    if rises:
        return "non_monotone", rises
    apart = _inconsistent(kind, found)
    if apart:
        return "inconsistent", apart
    if kind == "upper_bound":
        high = high and _too_high(found, point, CLOSE)
    return ("loose", "") if low or high else ("sound", "")


def _safe(found: Answers) -> Answers:
    """The ends that a promise of privacy may use, in place of the values."""
    below = None if found.below is None else (found.below[0], Estimate(found.below[1].safe))
    return Answers(Estimate(found.delta.safe), below)


def _no_answer(found: Answers) -> str:
    """Why one of the answers is none; "" where all are."""
    deltas = [found.delta, *([] if found.back is None else [found.back[1]])]
    epsilons = [pair[1] for pair in (found.below, found.above) if pair is not None]
    for name, answers, most in (("delta", deltas, 1.0), ("epsilon", epsilons, math.inf)):
        for one in answers:
            if not 0 <= one.value <= most:
                return f"{name} = {one.value:.9g} is no answer: expected a number from 0 to {most:g}"
    return ""


def _too_low(found: Answers, point: Point, close: float) -> str:
    """Which answer lies below the truth, by more than the share `close` of ε; "" where none does."""
    slack = max(_epsilon_slack(point.epsilon), close * point.epsilon)
    if found.below is not None and found.below[1].value < point.epsilon - slack:
        asked, answer = found.below
        return f"epsilon at delta {asked:.6g}: {answer.value:.9g}, but epsilon >= {point.epsilon:.9g}"
    if close and found.below is not None:
        return ""  # of an approximation ε is judged, and that δ belongs to it
    if found.delta.value < point.lower * (1 - max(RELATIVE, close)):
        return f"delta at epsilon {point.epsilon:g}: {found.delta.value:.9g}, but delta >= {point.lower:.9g}"
    return ""


def _too_high(found: Answers, point: Point, close: float) -> bool:
    """Whether an answer lies above the truth, by more than the share `close` of ε."""
    slack = max(_epsilon_slack(point.epsilon), close * point.epsilon)
    if found.above is not None and found.above[1].value > point.epsilon + slack:
        return True
    if close and found.above is not None:
        return False
    return found.delta.value > point.upper * (1 + max(RELATIVE, close)) + (0.0 if close else ABSOLUTE)


def _inconsistent(kind: str, found: Answers) -> str:
    """Where δ at the ε of a δ is not that δ, beyond the errors that the answers state; "" where it is."""
    if found.back is None:
        return ""
    (delta, back), share = found.back, ALLOWED.get(kind, CLOSE)
    low = kind not in PROMISES and _ceiling(back) < delta * (1 - share)
    return f"delta(epsilon({delta:.6g})) = {back.value:.6g}" if low or _floor(back) > delta * (1 + share) else ""


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
    unsound = [f"{held.point.regime}, {held.reason}" for held in group if held.finding == "unsound"]
    reasons = dict.fromkeys(held.reason for held in group if held.reason and held.finding != "unsound")
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
