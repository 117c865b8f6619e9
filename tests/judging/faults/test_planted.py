"""Every planted fault is found by its check, and the same check passes the code without the fault.

The seeds are fixed, so the outcome is the same in every run. A check finds its faults with the sample sizes that it
uses everywhere.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dpbench.catalog import catalog, find
from dpbench.judging.check_tools.subject import Subject
from dpbench.judging.check_tools.worlds import problem
from dpbench.judging.faults.frames import Frame, noisy_sgd
from dpbench.judging.faults.mechanisms import SOUND
from dpbench.judging.faults.planted import PLANTED
from dpbench.judging.faults.releases import SOUND as SOUND_RELEASES
from dpbench.judging.faults.releases import SOUND_IMPORTANCE
from dpbench.judging.faults.votes import SOUND as SOUND_VOTES

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = [(check, fault) for check, faults in PLANTED.items() for fault in faults]
# The checks whose faults stand in a sound frame; the frame of the other faults is for all of them. With other checks a
# frame is looked at where long tests run: that none refutes a sound mechanism of that kind is in the contracts as well.
HOSTS = {
    "estimated norms": ("mechanism_sensitivity",),
    "decaying noise": ("noise_scale",),
    "pairs, accounted with 2C": ("mechanism_sensitivity",),
    "a smoothed loss": ("mechanism_sensitivity",),
    "views of records": ("mechanism_sensitivity",),
    "centred inputs": ("preparation_release",),
    "own probabilities": ("mechanism_inclusion",),
    "a ledger that tells more than q": ("mechanism_inclusion",),
    "a step that remembers and does not use it": ("mechanism_replay",),
    "a count that is stated": ("mechanism_releases", "mechanism_replay"),
    "a plan that tells what comes": ("mechanism_releases",),
    "an ensemble of teachers": ("teacher_partition", "mechanism_releases", "mechanism_replay"),
    "a smoothed student": ("mechanism_releases", "mechanism_replay"),
}
FRAMES = [(check, name) for check in sorted(catalog("checks")) for name in ("the frame of the faults", *SOUND)]
FRAMES += [
    (check, name)
    for check in ("mechanism_inclusion", "mechanism_releases", "mechanism_replay")
    for name in SOUND_RELEASES
] + [(check, name) for check in ("teacher_partition", "mechanism_releases", "mechanism_replay") for name in SOUND_VOTES]


@pytest.mark.parametrize(("check", "fault"), CASES)
def test_fault_is_found(check: str, fault: str) -> None:
    found: Any = find("checks", check).load()
    subject = PLANTED[check][fault]
    assert found.applies(subject)
    verdict = found(subject, seed=0)
    assert verdict.verdict == "refuted", verdict
    assert verdict.reason


def test_every_frame_has_its_checks() -> None:
    assert set(HOSTS) == {*SOUND, *SOUND_RELEASES, *SOUND_VOTES}


@pytest.mark.parametrize(
    ("check", "name"),
    [pytest.param(*one, marks=[] if one[0] in HOSTS.get(one[1], one) else [pytest.mark.long]) for one in FRAMES],
)
def test_workshop_without_a_fault_passes(check: str, name: str) -> None:
    """The faulty mechanisms differ from a good one in their fault alone: the frames that hold them are sound."""
    found: Any = find("checks", check).load()
    subject = Subject("mechanisms", name, (SOUND | SOUND_RELEASES | SOUND_VOTES).get(name) or noisy_sgd(Frame))
    if found.applies(subject):
        verdict = found(subject, seed=0)
        assert verdict.verdict == "holds", verdict


def test_the_frame_without_a_fault_is_noisy_sgd() -> None:
    """Bit for bit, over a hundred steps of three runs: what stands in the frame differs in its fault alone."""
    courses = [
        problem(mechanism, seed=0, planned=100).course(range(100))
        for mechanism in (noisy_sgd(Frame), find("mechanisms", "noisy_sgd").load()())
    ]
    for ours, shipped in zip(*courses, strict=True):
        assert torch.equal(ours.after.theta_RP, shipped.after.theta_RP)
        assert ours.said == shipped.said
        for call, other in zip(ours.calls, shipped.calls, strict=True):
            assert torch.equal(call.noisy, other.noisy)
            assert torch.equal(call.deviation_R, other.deviation_R)


@pytest.mark.parametrize("check", ["mechanism_releases", "mechanism_replay"])
def test_importance_with_private_bounds_passes(check: str) -> None:
    """N, every K and every K* beside the gradients: the frame of the faults in DPIS's own releases."""
    found: Any = find("checks", check).load()
    verdict = found(Subject("mechanisms", "the frame", SOUND_IMPORTANCE), seed=0)
    assert verdict.verdict == "holds", verdict
