"""Run all checks that apply to a subject, and derive one verdict from theirs.

A mechanism is `refuted` if a check that concerns privacy refutes it, `holds` if all of them ran and none did, else
`unchecked`. `holds` is no proof: the checks look for known kinds of faults on small problems.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import dpbench
from dpbench.catalog import catalog, find, suggestion
from dpbench.errors import DpbenchError
from dpbench.judging.check_tools.apart import apart
from dpbench.judging.check_tools.subject import Subject
from dpbench.store.check_records import CheckRecord, code_of, described, write_check
from dpbench.verdicts import Verdict

__all__ = ["Checkup", "Line", "Target", "check_mechanism", "check_up", "named"]

PLANNED = 200  # steps of a run that no spec plans
OF_THE_ESTIMATE = ("gradient_unbiased",)  # about the gradient estimate, not about privacy
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Line:
    """One verdict, and in words what was checked."""

    looked_at: str
    verdict: Verdict

    @property
    def statistic(self) -> str:
        """The p-value of a statistical check; a check without chance says so."""
        p = self.verdict.evidence.get("p")
        if p is not None:
            return f"p = {p:.3g}"
        return "without chance" if self.verdict.verdict in ("holds", "refuted") else ""

    def to_json(self) -> dict[str, Any]:
        return {"looked_at": self.looked_at, **self.verdict.to_json()}


@dataclass(frozen=True)
class Checkup:
    """All verdicts on one subject; for a private mechanism `verdict` and `reason` are about its ε."""

    subject: str
    kind: str
    lines: tuple[Line, ...]
    verdict: Literal["holds", "refuted", "unchecked"]
    reason: str
    planned: int = 0

    @property
    def false_alarm(self) -> float:
        """An upper bound on the probability that a true property is refuted by chance."""
        return sum(line.verdict.false_alarm for line in self.lines)

    def to_json(self) -> dict[str, Any]:
        names = ("subject", "kind", "verdict", "reason", "planned", "false_alarm")
        return {name: getattr(self, name) for name in names} | {"lines": [line.to_json() for line in self.lines]}


@dataclass(frozen=True)
class Target:
    """Something to be checked: a subject, built when it is needed, with the planned steps of its runs."""

    kind: str
    name: str
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    planned: int = PLANNED

    @property
    def title(self) -> str:
        return described(self.name, self.parameters)

    def subject(self) -> Subject:
        """Raises DpbenchError where it cannot be loaded or built."""
        if self.kind == "generator":
            from dpbench import randomness

            return Subject("generator", self.name, randomness)
        if self.kind == "samplers":
            return Subject("samplers", self.name, find("samplers", self.name).load()())
        value = find(self.kind, self.name).load()
        if self.kind == "mechanisms":
            try:
                value = value(**self.parameters)
            except TypeError as error:
                raise DpbenchError(f"mechanism {self.name!r}: cannot be built ({error})") from error
            from dpbench.step.mechanism import refuse_other

            refuse_other(value, self.name)
        return Subject(self.kind, self.title, value)


GENERATOR = Target("generator", "randomness")
SAMPLERS = (Target("samplers", "poisson"), Target("samplers", "shuffled"))  # those with a check


def everything() -> list[Target]:
    """Everything that can be checked, of the package and of other packages' entry points."""
    own = [Target(kind, name) for kind in ("clipping", "mechanisms") for name in catalog(kind)]
    return [GENERATOR, *SAMPLERS, *own]


def named(name: str) -> Target:
    """A mechanism, a clipping engine or a part of the package by its name, or `package.module:factory`.

    A function whose first parameter is called `net` is a clipping engine, every other one makes a mechanism.
    """
    for target in everything():
        if target.name == name:
            return target
    if ":" not in name:
        names = {target.name: target for target in everything()}
        raise DpbenchError(f"{name!r}: no file, and no name that can be checked{suggestion(name, names)}")
    found = find("mechanisms", name).load()
    try:
        first = next(iter(inspect.signature(found).parameters), "")
    except (TypeError, ValueError):
        first = ""
    return Target("clipping" if first == "net" else "mechanisms", name)


def check_up(target: Target, *, seed: int = 0, progress: Progress = lambda _name, _done, _of: None) -> Checkup:
    """Run every check that applies; one that cannot run says why. Raises DpbenchError if no subject can be built."""
    subject = target.subject()
    checks = {name: entry.load() for name, entry in sorted(catalog("checks").items())}
    lines = []
    for done, (name, check) in enumerate(checks.items()):
        progress(target.title, done, len(checks))
        # One process for each: what a mechanism keeps outside its state reaches no other check and no training.
        verdict = apart(partial(_looked, name, check, subject, target.planned, seed))
        if verdict is not None:
            lines.append(Line(_looked_at(catalog("checks")[name].module), verdict))
    progress(target.title, len(checks), len(checks))
    verdicts = [line.verdict for line in lines]
    return Checkup(target.title, target.kind, tuple(lines), *_together(subject, verdicts), target.planned)


def check_mechanism(
    name: str,
    parameters: Mapping[str, Any],
    planned: int,
    *,
    out: Path | None = None,
    seed: int = 0,
    progress: Progress = lambda _name, _done, _of: None,
) -> tuple[Checkup, CheckRecord]:
    """Check one mechanism and, with `out`, keep the verdict there."""
    code = code_of(name, parameters)
    found = check_up(Target("mechanisms", name, parameters, planned), seed=seed, progress=progress)
    record = CheckRecord(
        code=code.hash,
        mechanism=name,
        parameters=dict(parameters),
        planned=found.planned,
        modules=dict(code.modules),
        verdict=found.verdict,
        reason=found.reason,
        lines=tuple(line.to_json() for line in found.lines),
        seed=seed,
        environment={"dpbench": dpbench.__version__, "time_utc": datetime.now(UTC).isoformat(timespec="seconds")},
    )
    if out is not None:
        write_check(out, record)
    return found, record


def _looked(name: str, check: Any, subject: Subject, planned: int, seed: int) -> Verdict | None:
    """The verdict; `not_run` if the check is meant for the subject but cannot run, None if it is not meant for it."""
    try:
        if not check.applies(subject):
            why = _out_of_reach(name, subject)
            return None if why is None else Verdict(name, subject.name, "not_run", why)
        if any(one.name == "planned" for one in dataclasses.fields(check)):
            check = dataclasses.replace(check, planned=planned)
        found: Verdict = check(subject, seed=seed)
        return found
    except Exception as error:  # noqa: BLE001 - a user's code may raise anything
        words = " ".join(f"{type(error).__name__}: {error}".split())
        return Verdict(name, subject.name, "undecided", f"could not be checked: {words[:300]}")


def _out_of_reach(name: str, subject: Subject) -> str | None:
    """Why a check cannot run on a mechanism for which it is meant; None where it is not meant for it."""
    from dpbench.judging.check_tools import steps
    from dpbench.step.mechanism import acts_at_end, public_examples

    if subject.kind != "mechanisms":
        return None
    mechanism, private = subject.value, bool(subject.value.private)
    if acts_at_end(mechanism):
        return None  # output_sensitivity looks at all that it releases
    inside = (
        "it has neither the event of a step, `event(rate, noise_multiplier)`, nor `reach` and `inclusion`;"
        " dpbench/judging/check_tools/steps.py says what they are"
    )
    if public_examples(mechanism) and hasattr(mechanism, "teachers"):
        return None  # `teacher_partition` and `mechanism_releases` look at what it releases
    if name in ("gradient_unbiased", "mechanism_inclusion") or (name == "noise_scale" and private):
        return inside
    if name == "mechanism_sensitivity" and private:
        if isinstance(mechanism, steps.OwnSteps):
            return None  # mechanism_inclusion and mechanism_releases measure its reach
        return "its adjacency is another one than add_or_remove" if steps.has_event(mechanism) else inside
    return None


def _together(subject: Subject, verdicts: Sequence[Verdict]) -> tuple[Literal["holds", "refuted", "unchecked"], str]:
    concerning = [one for one in verdicts if one.check not in OF_THE_ESTIMATE]
    refuted = [one for one in concerning if one.verdict == "refuted"]
    unseen = [one for one in concerning if one.verdict not in ("holds", "refuted")]
    if refuted:
        return "refuted", f"{refuted[0].check}: {refuted[0].reason}"
    if subject.kind == "mechanisms" and not subject.value.private:
        return "holds", "not private: it has no ε"
    if unseen:
        return "unchecked", f"{unseen[0].check}: {unseen[0].reason}"
    if not concerning:
        return "unchecked", "no check applies"
    biased = any(one.verdict == "refuted" for one in verdicts if one.check in OF_THE_ESTIMATE)
    more = "; the estimate is biased, which is no matter of privacy" if biased else ""
    return "holds", f"{len(concerning)} checks found nothing wrong{more}"


@cache
def _looked_at(module: str) -> str:
    """What a check is about: the first sentence of its module."""
    text = " ".join((importlib.import_module(module).__doc__ or module).split())
    return text.split(". ")[0].rstrip(".")
