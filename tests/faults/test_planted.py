"""Every planted fault is found by its check, and the same check passes the code without the fault.

The seeds are fixed, so the outcome is the same in every run. A check finds its faults with the sample sizes that it
uses everywhere.
"""

from __future__ import annotations

from typing import Any

import pytest

from dpbench.catalog import catalog, find
from dpbench.checks._subject import Subject
from tests.faults.planted import PLANTED, faulty

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = [(check, fault) for check, faults in PLANTED.items() for fault in faults]


@pytest.mark.parametrize(("check", "fault"), CASES)
def test_fault_is_found(check: str, fault: str) -> None:
    found: Any = find("checks", check).load()
    subject = PLANTED[check][fault]
    assert found.applies(subject)
    verdict = found(subject, seed=0)
    assert verdict.verdict == "refuted", verdict
    assert verdict.reason


@pytest.mark.parametrize("name", sorted(catalog("checks")))
def test_workshop_without_a_fault_passes(name: str) -> None:
    """The faulty pipelines differ from a good one in their fault alone: the frame that holds them is sound."""
    check: Any = catalog("checks")[name].load()
    subject = Subject("mechanisms", "the frame of the faults", faulty())
    if check.applies(subject):
        verdict = check(subject, seed=0)
        assert verdict.verdict == "holds", verdict
