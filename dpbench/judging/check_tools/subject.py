"""The subject of a check, and the base class of all checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dpbench.catalog import find
from dpbench.judging.check_tools import statistics
from dpbench.verdicts import Verdict


@dataclass(frozen=True)
class Subject:
    """`kind` is a kind of the catalog, or `generator` (the functions of `randomness`).

    `value` is the object: for `mechanisms` a built mechanism, else what the catalog's entry loads.

    >>> Subject.of("mechanisms", "noisy_sgd").value.private
    True
    """

    kind: str
    name: str
    value: Any

    @classmethod
    def of(cls, kind: str, name: str, **parameters: Any) -> Subject:
        """A member of the catalog; a mechanism is built with `parameters`. Raises DpbenchError when not known."""
        found = find(kind, name).load()
        return cls(kind, name, found(**parameters) if kind == "mechanisms" else found)


@dataclass(frozen=True)
class Check:
    """One property of subjects of one `kind`; a `verdicts.Check`, named as its module.

    `looks_at` says whether the property makes sense for a subject's value; `source` is where it is stated.
    """

    kind = ""
    source = ""
    false_alarm: float = 0.0

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    def applies(self, subject: Any) -> bool:
        return isinstance(subject, Subject) and subject.kind == self.kind and bool(self.looks_at(subject.value))

    def looks_at(self, value: Any) -> bool:
        del value
        return True

    def refuted(self, subject: Subject, why: str, evidence: Mapping[str, Any] | None = None) -> Verdict:
        """A deterministic refutation."""
        return Verdict(self.name, subject.name, "refuted", why, evidence or {}, 0.0, self.source)

    def undecided(self, subject: Subject, why: str, evidence: Mapping[str, Any]) -> Verdict:
        """For something that could not be checked."""
        return Verdict(self.name, subject.name, "undecided", why, evidence, 0.0, self.source)

    def certain(self, subject: Subject, wrong: str | None, evidence: Mapping[str, Any], holds: str) -> Verdict:
        """A deterministic verdict: refuted if `wrong` says what is wrong."""
        if wrong is not None:
            return self.refuted(subject, wrong, evidence)
        return Verdict(self.name, subject.name, "holds", holds, evidence, 0.0, self.source)

    def statistical(
        self, subject: Subject, p_values: Iterable[Any], evidence: Mapping[str, Any], about: str, share: float = 1.0
    ) -> Verdict:
        """Refuted if the combined p-value is below `share` of the false-alarm probability."""
        p, tests = statistics.smallest(p_values)
        limit = share * self.false_alarm
        refuted = p < limit
        reason = f"{about}: p = {p:.3g}, {'below' if refuted else 'not below'} {limit:g}"
        figures = {"p": p, **evidence, "tests": tests}
        status: Any = "refuted" if refuted else "holds"
        return Verdict(self.name, subject.name, status, reason, figures, self.false_alarm, self.source)
