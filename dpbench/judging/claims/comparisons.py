"""Whether one row of a spec gives more than another, by the results of their seeds.

A claim names two labels under `compares`, in which each `*` stands for the same text, so that one line compares
a method with another for every dataset and every ε. The difference of the two means has Welch's 95 % interval, at a
level that holds for all pairs of the claim together (Bonferroni).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dpbench.judging.claims.claim import Judgement, Printed
from dpbench.judging.reproduction import LEVEL, spread, student


@dataclass(frozen=True)
class Pair:
    """What the seeds of two rows gave, and the printed difference `by`, where there is one.

    `lacks` says why they are not compared, where they are not.
    """

    subject: str
    higher: Sequence[float]
    lower: Sequence[float]
    by: Printed | None = None
    lacks: str = ""


def pairs_of(labels: Sequence[str], higher: str, lower: str) -> list[tuple[str, str]]:
    """The labels that fit the two patterns with the same texts in place of `*`, in order.

    >>> pairs_of(["a sgd", "a jl", "b sgd", "b jl", "c jl"], "* sgd", "* jl")
    [('a sgd', 'a jl'), ('b sgd', 'b jl')]
    """
    pattern = re.compile("(.*)".join(map(re.escape, higher.split("*"))))
    found = []
    for label in labels:
        if (match := pattern.fullmatch(label)) is not None:
            texts = iter(match.groups())
            other = "".join(next(texts) if part == "*" else part for part in re.split(r"(\*)", lower))
            found += [(label, other)] if other in labels else []
    return found


def difference(higher: Sequence[float], lower: Sequence[float], level: float = LEVEL) -> tuple[float, float, float]:
    """The difference of two means and the ends of its interval (Welch 1947). Both need two values or more.

    >>> difference([3.0, 3.0], [1.0, 1.0])
    (2.0, 2.0, 2.0)
    """
    both = spread(higher), spread(lower)
    gap = both[0].mean - both[1].mean
    parts = [(one.deviation or 0.0) ** 2 / one.count for one in both]
    if not (whole := math.fsum(parts)):
        return gap, gap, gap
    freedom = whole**2 / math.fsum(part**2 / (one.count - 1) for part, one in zip(parts, both, strict=True))
    half = student(freedom, level) * math.sqrt(whole)
    return gap, gap - half, gap + half


def judge_pairs(judged: str, pairs: Sequence[Pair], most: bool = False) -> Judgement:
    """The verdict on a claim that each of `pairs` (or `most`) is higher on its first side, or higher by its number.

    Refuted where a pair (or most of them) is shown to be otherwise, undecided where the seeds leave it open.
    """
    compared = [pair for pair in pairs if not pair.lacks]
    evidence: dict[str, str] = {pair.subject: pair.lacks for pair in pairs if pair.lacks}
    if not compared:
        why = next(iter(evidence.values()), "no rows fit")
        return Judgement("not_run", f"{judged}; {why}", None, evidence)
    same, other = "as claimed", "otherwise"
    counts = {same: 0, other: 0}
    level = 1 - (1 - LEVEL) / len(compared)
    for pair in compared:
        gap, low, high = difference(pair.higher, pair.lower, level)
        evidence[pair.subject] = f"{gap:+.4g} ({low:.4g} to {high:.4g}; {len(pair.higher)} and {len(pair.lower)} seeds)"
        if (by := pair.by) is not None:
            counts[same if low - by.unit / 2 <= by.value <= high + by.unit / 2 else other] += 1
        elif low > 0 or high < 0:
            counts[same if low > 0 else other] += 1
    needed = len(pairs) / 2 if most else len(pairs) - 0.5
    refuted = counts[other] > (len(pairs) / 2 if most else 0)
    verdict = "refuted" if refuted else "holds" if counts[same] > needed else "undecided"
    words = [f"{count} {word}" for word, count in counts.items() if count]
    words += [f"{left} left open by their seeds"] if (left := len(compared) - sum(counts.values())) else []
    words += [f"{len(pairs) - len(compared)} not compared"] if len(pairs) > len(compared) else []
    reason = f"{judged}: of {len(pairs)} pair{'s' * (len(pairs) > 1)} {', '.join(words)}"
    return Judgement(verdict, reason, len(compared), evidence, false_alarm=round(1 - LEVEL, 12))
