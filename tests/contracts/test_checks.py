"""What every check must do: state its false alarm, say where it applies, give a valid verdict, and find faults.

That each planted fault is found is in `tests/judging/faults/test_planted.py`; here every check must have at least one.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from dpbench import randomness
from dpbench.catalog import catalog
from dpbench.judging.check_tools.subject import Subject
from dpbench.judging.faults.planted import PLANTED
from dpbench.step.samplers.poisson import PoissonSampler
from dpbench.step.samplers.shuffled import ShuffledSampler
from dpbench.verdicts import VERDICTS, Verdict

pytestmark = pytest.mark.usefixtures("one_thread")

CHECKS: dict[str, Any] = {name: entry.load() for name, entry in sorted(catalog("checks").items())}
every_check = pytest.mark.parametrize("name", CHECKS)
SUITE = 1e-6  # false alarms of all statistical checks and tests together


def subjects() -> list[Subject]:
    """What the package has that checks may look at."""
    found = [Subject("generator", "randomness", randomness), Subject("samplers", "poisson", PoissonSampler())]
    found += [Subject("samplers", "shuffled", ShuffledSampler())]
    for kind in ("clipping", "mechanisms", "models", "accountants", "datasets"):
        for name in catalog(kind):
            found.append(Subject(kind, name, None) if kind in ("accountants", "datasets") else Subject.of(kind, name))
    return found


@every_check
def test_false_alarm_is_stated(name: str) -> None:
    assert isinstance(CHECKS[name].false_alarm, float)
    assert 0 <= CHECKS[name].false_alarm <= 1e-6


@every_check
def test_applies_says_yes_or_no(name: str) -> None:
    """For every subject and for things that are none; it applies to something of the package."""
    odd = [None, 3, "mlp", object(), Subject("peers", "unknown", None), Subject("no such kind", "x", object())]
    answers = [CHECKS[name].applies(subject) for subject in [*odd, *subjects()]]
    assert all(isinstance(answer, bool) for answer in answers)
    assert not any(answers[: len(odd)])
    assert any(answers), "a check that applies to nothing checks nothing"


@every_check
def test_verdicts_are_valid_and_set_by_the_seed(name: str) -> None:
    check, words = CHECKS[name], VERDICTS
    if hasattr(check, "planned") and name != "noise_scale":  # a short run: how long it is changes neither
        check = dataclasses.replace(check, planned=12)
    subject = next(subject for subject in subjects() if check.applies(subject))
    first, again, other = (check(subject, seed=seed) for seed in (0, 0, 1))
    assert first == again, "all randomness comes from the seed"
    for verdict in (first, other):
        assert isinstance(verdict, Verdict)
        assert verdict.verdict in words
        assert verdict.verdict in ("holds", "sound"), verdict
        assert verdict.check == name
        assert verdict.subject == subject.name
        assert verdict.reason
        assert verdict.source
        assert 0 <= verdict.false_alarm <= check.false_alarm
        assert json.loads(json.dumps(verdict.to_json(), allow_nan=False))["check"] == name


@pytest.mark.parametrize("name", [name for name, entry in catalog("checks").items() if entry.origin == "dpbench"])
def test_every_check_has_a_planted_fault_that_it_refutes(name: str) -> None:
    assert PLANTED.get(name), f"plant a fault for {name!r} in dpbench/judging/faults/planted.py"
    fault, subject = next(iter(PLANTED[name].items()))
    verdict = CHECKS[name](subject, seed=1)
    assert verdict.verdict in ("refuted", "unsound"), (fault, verdict)
    assert verdict.subject == fault
    assert json.dumps(verdict.to_json(), allow_nan=False)


def test_planted_faults_belong_to_checks() -> None:
    assert set(PLANTED) <= set(CHECKS)


def test_all_checks_together_keep_to_the_suite_s_false_alarms() -> None:
    """Every check on every subject to which it applies, with the seeds that the tests use: at most four."""
    total = sum(check.false_alarm * sum(check.applies(s) for s in subjects()) * 4 for check in CHECKS.values())
    # Besides the checks there are statistical tests of 1e-9 each in the files of the stages and of the mechanisms:
    # no more than 300 of them.
    assert total + 300e-9 <= SUITE
