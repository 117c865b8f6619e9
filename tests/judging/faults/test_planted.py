"""Every planted fault is found by its check, and the same check passes the code without the fault.

The seeds are fixed, so the outcome is the same in every run. A check finds its faults with the sample sizes that it
uses everywhere.
"""

from __future__ import annotations

from typing import Any

import pytest

from dpbench.catalog import catalog, find
from dpbench.judging.checks._subject import Subject
from tests.judging.faults.planted import PLANTED, faulty
from tests.judging.faults.planted_kinds import SOUND
from tests.judging.faults.planted_releases import SOUND as SOUND_RELEASES
from tests.judging.faults.planted_releases import SOUND_IMPORTANCE

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = [(check, fault) for check, faults in PLANTED.items() for fault in faults]
# The checks whose faults stand in a sound frame; the frame of the other faults is for all. With other checks a frame is
# looked at where long tests run: that none refutes a sound mechanism of that kind is in the contracts as well.
HOSTS = {
    "estimated norms": ("mechanism_sensitivity",),
    "decaying noise": ("noise_scale",),
    "pairs, accounted with 2C": ("mechanism_sensitivity",),
    "centred inputs": ("preparation_release",),
    "own probabilities": ("mechanism_inclusion",),
    "a ledger that tells more than q": ("mechanism_inclusion",),
    "the frame of the leaks": ("mechanism_releases", "mechanism_replay"),
    "a step that remembers and does not use it": ("mechanism_replay",),
    "a count that is told": ("mechanism_releases",),
    "a plan that tells what comes": ("mechanism_releases",),
}
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


def test_every_frame_has_its_checks() -> None:
    assert set(HOSTS) == {*SOUND, *SOUND_RELEASES}


@pytest.mark.parametrize(
    ("check", "name"),
    [pytest.param(*one, marks=[] if one[0] in HOSTS.get(one[1], one) else [pytest.mark.long]) for one in FRAMES],
)
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
