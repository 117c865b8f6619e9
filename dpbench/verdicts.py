"""What a check says: the verdict, its evidence, its error probability and its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

Word = Literal["holds", "refuted", "undecided", "not_run"]
VERDICTS: tuple[str, ...] = get_args(Word)


@dataclass(frozen=True)
class Verdict:
    """The verdict of one check on one subject.

    `reason` is one sentence; `evidence` holds plain JSON values (numbers, enclosures, sample sizes); `false_alarm` is
    the probability that a true property is refuted by chance (0 for a deterministic check); `source` says where the
    property is stated.
    """

    check: str
    subject: str
    verdict: Word
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    false_alarm: float = 0.0
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"evidence": dict(self.evidence)}
