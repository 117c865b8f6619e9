"""What a step of DPIS says of its releases is what its ledger gets: sums and gradients, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dpbench.judging.check_tools.worlds import World, added, problem
from dpbench.judging.faults.releases import ADAPTIVE, importance
from dpbench.step.mechanism import step

pytestmark = pytest.mark.usefixtures("one_thread")


def world() -> World:
    return problem(importance(**ADAPTIVE), seed=0, planned=12)


def test_every_step_says_by_what_the_ledger_grows() -> None:
    there, kinds = world(), set()
    start, *moments = there.course(range(12))
    assert start.said == ()
    for moment in moments:
        assert [list(events) for events in moment.said] == added(there.mechanism, moment, there.stack)
        kinds |= {len(events) for events in moment.said}
    assert kinds == {1, 2, 3}, "the gradient alone, with K, and with K and K*"


def test_a_run_that_has_to_stop_releases_nothing() -> None:
    """The budget is gone as a later epoch begins: the others go on."""
    there = world()
    mechanism, net, data = there.mechanism, there.net, (there.inputs, there.targets, 4)
    state = mechanism.start(there.theta_RP, there.stack, there.inputs, there.targets)
    while int(state.step_R[0]) == 0 or int(state.step_R[0]) < int(state.memory["next_R"][0]):
        state, _ = step(mechanism, net, state, there.stack, *data)
    spent = replace(there.stack, epsilon_R=torch.tensor([1e-3, 1e3, 1e3], dtype=torch.float64))
    released, kept = mechanism.release(net, state, spent, *data)
    assert list(kept.observed.stopped) == [0]
    assert released.events(0) == ()
    assert all(released.events(run) for run in (1, 2))
