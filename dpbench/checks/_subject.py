"""What a check looks at: an object with its kind and its name, so that `applies` can tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpbench.catalog import find
from dpbench.verdicts import Status, Verdict


@dataclass(frozen=True)
class Subject:
    """`kind` is a kind of the catalog, or `generator` (the functions of `randomness`) or `samplers` (one stage).

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


def statistical(
    check: str, subject: Subject, p: float, evidence: Mapping[str, Any], *, false_alarm: float, about: str, source: str
) -> Verdict:
    """The verdict of a statistical check: refuted where p is below the false-alarm probability."""
    status: Status = "holds" if p >= false_alarm else "refuted"
    reason = f"{about}: p = {p:.3g}, {'below' if status == 'refuted' else 'not below'} {false_alarm:g}"
    return Verdict(check, subject.name, status, reason, {"p": p, **evidence}, false_alarm, source)


def certain(
    check: str, subject: Subject, wrong: str | None, evidence: Mapping[str, Any], *, holds: str, source: str
) -> Verdict:
    """The verdict of a check without chance: refuted where `wrong` says what is wrong."""
    status: Status = "holds" if wrong is None else "refuted"
    return Verdict(check, subject.name, status, wrong or holds, evidence, 0.0, source)
