"""Accountants against stored enclosures, two-sided: sound, unsound, loose by how much, refused, crashed.

A point says that the true δ(ε₀) lies in [l, u]. The true δ(ε) is continuous and decreases, so the point judges four
answers:

| asked | the truth | too low | too high |
| --- | --- | --- | --- |
| δ at ε₀ | in [l, u] | below l | above u |
| ε at a δ below l | above ε₀ | below ε₀ | |
| ε at a δ from u on | at most ε₀ | | above ε₀ |
| δ at the first of these ε(δ) | δ | | above δ |

ε is asked at l and u moved outwards by 1e-9, so that a relative error of 1e-9 in δ is allowed however flat the curve
is. Answers are allowed a relative error of 1e-9 as well (for ε at least 1e-12 absolute).

| verdict | an exact accountant | an upper bound | an approximation |
| --- | --- | --- | --- |
| sound | none of them too low or too high | none too low, and less than 1 % above in ε | within 1 % in ε |
| loose | one too low or too high, though its interval is not | 1 % or more above in ε | 1 % or more above in ε |
| unsound | the safe end of δ or ε too low | the same | below by 1 % or more in ε |
| non_monotone | at a larger ε a larger δ, or the reverse, among the answers for one composition | the same | the same |
| inconsistent | δ(ε(δ)) is above δ, beyond the stated errors | δ(ε(δ)) is above δ | it is not δ within 1 % |
| crashes | an error that is no refusal, NaN, δ outside [0, 1] or ε below 0 | the same | the same |

The verdict is the first that applies, in the order crashes, unsound, non_monotone, inconsistent, loose; else sound.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dpbench.atomic import write_text
from dpbench.errors import DpbenchError
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
from dpbench.store.reading import check_digest, printable, read_json, signed
from dpbench.store.records import Damaged, finite, restored
from dpbench.training.workers import Ray, spread

__all__ = ["Conformance", "Line", "hold", "read_conformance", "summarise", "write_conformance"]

FILE = "conformance.json"
SCHEMA_VERSION = 2  # with a digest; older files are refused: `dpbench conform` makes one again
RELATIVE, ABSOLUTE = 1e-9, 1e-12
CLOSE = 0.01  # an ε less than this above the truth, relative, is sound
# how far answers of one curve may disagree, relative: an ε is found by root search, a bound is a minimum over a grid
ALLOWED = {"exact": 1e-6, "certified": 1e-6, "upper_bound": 1e-3, "approximation": CLOSE}
SMALLEST = 1e-200  # of δ at which ε is asked
VERDICTS = ("sound", "loose", "unsound", "non_monotone", "inconsistent", "refuses", "crashes")
BROKEN = ("unsound", "non_monotone", "inconsistent", "crashes")  # not allowed for an exact answer or an upper bound
MOST_NAMED = 5  # at most so many points are named in a line


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
class Judgement:
    """One accountant at one point. `excess` is (its ε)/(true ε) − 1, None where ε could not be asked for.

    It is 0 where the enclosure does not exclude that the accountant's ε is the truth.
    """

    accountant: str
    kind: str
    point: Point
    verdict: str
    reason: str = ""
    value: float | None = None
    excess: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Line:
    """One accountant on one table: the count of each verdict, and the median and largest relative excess of ε."""

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
    """All lines, for the report. `environment` is that of the last run; each line's `made` is the time of its own."""

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
    names: Sequence[str],
    points: Sequence[Point],
    progress: Callable[[str, int, int], None] | None = None,
    *,
    workers: int = 1,
    ray: Ray | None = None,
) -> Iterator[Judgement]:
    """Judge every accountant at every point; points of one composition that follow each other share a curve.

    `progress` is called with the accountant, the number of points done of all and their total. Work is spread over
    `workers` processes or a Ray cluster (see `workers.spread`); judgements come as they are made.

    >>> from dpbench.events import Gaussian
    >>> point = Point("demo", "plain", Composition(((Gaussian(1.0), 1),)), 1.0, 0.12693673, 0.12693674, 1e-9)
    >>> [(one.accountant, one.verdict) for one in hold(["exact", "rdp"], [point])]
    [('exact', 'sound'), ('rdp', 'loose')]
    """
    for name in names:
        load_accountant(name)  # what is wrong with a name is said before the work
    together = [list(group) for _, group in groupby(points, key=lambda point: point.composition)]
    done = 0
    for judged in spread(_of_curve, [(name, group) for name in names for group in together], workers, ray):
        done += len(judged)
        if progress is not None:
            progress(judged[0].accountant, done, len(names) * len(points))
        yield from judged


def _of_curve(name: str, points: Sequence[Point]) -> list[Judgement]:
    """One accountant at all points of one composition."""
    accountant = load_accountant(name)
    asked = _Asked(accountant, points[0].composition)
    return [_judged(name, accountant, point, asked) for point in points]


class _Asked:
    """One accountant's curve of one composition, and what it has answered so far."""

    def __init__(self, accountant: Accountant, composition: Composition) -> None:
        self.accountant, self.composition = accountant, composition
        self.answer = accountant.supports(composition)
        self.curve: Any = None
        self.deltas: list[tuple[float, Estimate]] = []  # (ε, δ at it)
        self.epsilons: list[tuple[float, Estimate]] = []  # (δ, ε at it)

    def about(self, point: Point) -> Answers:
        """The answers about one point. Raises what the curve raises."""
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
        """δ at the ε that was answered for a δ; None where that ε is 0 or infinite."""
        if pair is None or not ABSOLUTE < pair[1].safe < math.inf:
            return None
        return pair[0], self._delta(pair[1].safe)

    def rises(self) -> str:
        """Two answers that contradict that δ(ε) decreases, beyond what is allowed; "" where there are none."""
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


def _judged(name: str, accountant: Accountant, point: Point, asked: _Asked) -> Judgement:
    start = time.perf_counter()
    if isinstance(asked.answer, No):
        return Judgement(name, accountant.kind, point, "refuses", asked.answer.reason)
    try:
        found = asked.about(point)
        rises = asked.rises()
    except FAILURES as error:
        return Judgement(name, accountant.kind, point, "refuses", in_a_sentence(error))
    except Exception as error:  # noqa: BLE001 (another library's accountant may raise anything)
        return Judgement(name, accountant.kind, point, "crashes", f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - start
    kind = str(asked.curve.kind)
    verdict, reason = classify(kind, found, point, rises)
    return Judgement(name, kind, point, verdict, reason, found.delta.value, excess(found, point), seconds)


def excess(found: Answers, point: Point) -> float | None:
    """By how much ε is at least above or below the truth, relative; 0 where it may be the truth, None if not asked."""
    if point.epsilon == 0 or (found.below is None and found.above is None):
        return None
    values = [math.nan if pair is None else pair[1].value / point.epsilon - 1 for pair in (found.below, found.above)]
    shares = [share for share in (min(values[0], 0.0), max(values[1], 0.0)) if share]
    return next((share for share in shares if math.isfinite(share)), None if shares else 0.0)


def classify(kind: str, found: Answers, point: Point, rises: str = "") -> tuple[str, str]:
    """The verdict on the answers, by the table above, and the reason. `rises`: what `_Asked.rises` found.

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
    """The upper ends of the intervals, in place of the values."""
    below = None if found.below is None else (found.below[0], Estimate(found.below[1].safe))
    return Answers(Estimate(found.delta.safe), below)


def _no_answer(found: Answers) -> str:
    """Which answer is not a number in its range; "" where all are."""
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
        return ""  # an approximation is judged by its ε, and by whether δ(ε(δ)) = δ
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
    """Where δ(ε(δ)) is not δ, beyond the errors that the answers state; "" where it is."""
    if found.back is None:
        return ""
    (delta, back), share = found.back, ALLOWED.get(kind, CLOSE)
    low = kind not in PROMISES and _ceiling(back) < delta * (1 - share)
    return f"delta(epsilon({delta:.6g})) = {back.value:.6g}" if low or _floor(back) > delta * (1 + share) else ""


def summarise(found: Iterable[Judgement], environment: Mapping[str, Any] | None = None) -> Conformance:
    """A line per accountant and table."""
    groups: dict[tuple[str, str], list[Judgement]] = {}
    for one in found:
        groups.setdefault((one.accountant, one.point.table), []).append(one)
    environment = dict(environment or {})
    made = str(environment.get("time_utc", ""))
    return Conformance(tuple(_line(name, table, group, made) for (name, table), group in groups.items()), environment)


def _line(name: str, table: str, group: Sequence[Judgement], made: str) -> Line:
    counts = Counter(one.verdict for one in group)
    excess = [one.excess for one in group if one.excess is not None]
    seconds = [one.seconds for one in group if one.seconds]
    unsound = [f"{one.point.regime}, {one.reason}" for one in group if one.verdict == "unsound"]
    reasons = dict.fromkeys(one.reason for one in group if one.reason and one.verdict != "unsound")
    return Line(
        accountant=name,
        kind=next((one.kind for one in group if one.verdict not in ("refuses", "crashes")), group[0].kind),
        table=table,
        points=len(group),
        findings={verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
        median_excess=statistics.median(excess) if excess else None,
        largest_excess=max(excess, key=abs) if excess else None,
        median_seconds=statistics.median(seconds) if seconds else None,
        unsound=tuple(unsound[:MOST_NAMED]),
        reasons=tuple(reasons)[:MOST_NAMED],
        made=made,
    )


def write_conformance(out: Path, conformance: Conformance) -> Path:
    """Write OUT/conformance.json, whole or not at all."""
    text = json.dumps(signed(conformance.to_json()), indent=1, ensure_ascii=False)
    return write_text(Path(out) / FILE, text + "\n")


def read_conformance(out: Path, damaged: list[Damaged] | None = None) -> Conformance | None:
    """OUT/conformance.json, else the published one; None where neither can be used, and why is added to `damaged`."""
    for path in (Path(out) / FILE, Path(out) / "published" / FILE):
        if not path.exists() and not path.is_symlink():
            continue
        try:
            return _conformance(path)
        except DpbenchError as error:
            if damaged is not None:
                damaged.append(Damaged(path, printable(str(error))))
    return None


def _conformance(path: Path) -> Conformance:
    content = read_json(path)
    if content.get("schema_version") != SCHEMA_VERSION or content.get("type") != "conformance":
        raise DpbenchError(f"{path}: no conformance of schema {SCHEMA_VERSION}; make it again with: dpbench conform")
    check_digest(path, content)
    data = {name: value for name, value in restored(content).items() if name in ("lines", "environment")}
    try:
        found: Conformance = _adapter().validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise DpbenchError(
            f"{path}: no conformance ({place}: {first['msg']}); make it again: dpbench conform"
        ) from error
    for line in found.lines:
        strange = line.findings.keys() - set(VERDICTS)
        if strange or sum(line.findings.values()) != line.points:
            what = f"{line.accountant} on {line.table} has {line.points} points"
            raise DpbenchError(f"inconsistent: {path}: {what} and other findings; make it again: dpbench conform")
    return found


@cache
def _adapter() -> TypeAdapter[Conformance]:
    return TypeAdapter(Conformance)
