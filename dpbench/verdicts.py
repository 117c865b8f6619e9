"""What a check says: the verdict, its evidence, its error probability and its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

Status = Literal["holds", "refuted", "undecided", "not_run"]
Finding = Literal["sound", "unsound", "loose", "refuses", "crashes", "non_monotone", "slow"]
STATUSES: tuple[str, ...] = ("holds", "refuted", "undecided", "not_run")
FINDINGS: tuple[str, ...] = ("sound", "unsound", "loose", "refuses", "crashes", "non_monotone", "slow")


@dataclass(frozen=True)
class Verdict:
    """The outcome of one check on one subject.

    `verdict` is a status, or a finding where the subject is an accountant or a bound; `reason` is one sentence;
    `evidence` holds plain JSON values (numbers, enclosures, sample sizes); `false_alarm` is the probability that a
    true property is refuted by chance (0 for a deterministic check); `source` says where the property is stated.
    """

    check: str
    subject: str
    verdict: Status | Finding
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    false_alarm: float = 0.0
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"evidence": dict(self.evidence)}


class Check(Protocol):
    """One property that can be tested on a subject; shared by claims, contracts, faults and conformance tests."""

    false_alarm: float

    def applies(self, subject: Any) -> bool:
        """Whether the property makes sense for this subject."""
        ...

    def __call__(self, subject: Any, *, seed: int) -> Verdict:
        """Test the property; all randomness comes from `seed`."""
        ...
