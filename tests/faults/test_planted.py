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
from tests.faults.planted_kinds import SOUND
from tests.faults.planted_releases import SOUND as SOUND_RELEASES
from tests.faults.planted_releases import SOUND_IMPORTANCE

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = [(check, fault) for check, faults in PLANTED.items() for fault in faults]
FRAMES = [(check, name) for check in sorted(catalog("checks")) for name in ("the frame of the faults", *SOUND)]
FRAMES += [
    (check, name)
    for check in ("mechanism_inclusion", "mechanism_releases", "mechanism_replay")
    for name in SOUND_RELEASES
]


@pytest.mark.parametrize(("check", "fault"), CASES)
def test_fault_is_found(check: str, fault: str) -> None:
    found: Any = find("checks", check).load()
    subject = PLANTED[check][fault]
    assert found.applies(subject)
    verdict = found(subject, seed=0)
    assert verdict.verdict == "refuted", verdict
    assert verdict.reason


@pytest.mark.parametrize(("check", "name"), FRAMES)
def test_workshop_without_a_fault_passes(check: str, name: str) -> None:
    """The faulty mechanisms differ from a good one in their fault alone: the frames that hold them are sound."""
    found: Any = find("checks", check).load()
    subject = Subject("mechanisms", name, (SOUND | SOUND_RELEASES).get(name) or faulty())
    if found.applies(subject):
        verdict = found(subject, seed=0)
        assert verdict.verdict == "holds", verdict


@pytest.mark.parametrize("check", ["mechanism_releases", "mechanism_replay"])
def test_importance_with_private_bounds_passes(check: str) -> None:
    """N, every K and every K* beside the gradients: the frame of the faults in DPIS's own releases."""
    found: Any = find("checks", check).load()
    verdict = found(Subject("mechanisms", "the frame", SOUND_IMPORTANCE), seed=0)
    assert verdict.verdict == "holds", verdict
