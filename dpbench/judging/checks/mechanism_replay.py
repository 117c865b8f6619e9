"""What a run released makes its parameters, and nothing else does: a replay on other data gives them bit for bit.

A run on one data set lets noisy values out (`letting_out`). The same mechanism is then run on data that have nothing in
common with these, and wherever it would release something it is handed what the first run released there. Seeds, and
with them batches and projections, are the same. If its parameters, or its ledger, differ in a single bit after any
step, then something reached them that was not released: a gradient without noise, a statistic of the batch, a number
remembered from an earlier step, in its state or elsewhere: the two runs have a process each. Without chance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dpbench.judging.checks._apart import apart
from dpbench.judging.checks._subject import Check, Subject
from dpbench.judging.checks._worlds import (
    HOW_TO_PASS,
    Elsewhere,
    Moment,
    World,
    added,
    planned_for,
    problem,
    record,
    replay,
    steps_to_look_at,
    with_last,
)
from dpbench.verdicts import Verdict


@dataclass(frozen=True)
class MechanismReplay(Check):
    """Subject: kind `mechanisms`, private. `planned` is the length of the run; see `_worlds.steps_to_look_at`.

    >>> from dpbench.judging.checks._subject import Subject
    >>> check(Subject.of("mechanisms", "noisy_sgd"), seed=0).verdict
    'holds'
    """

    kind = "mechanisms"
    source = (
        "Post-processing (Dwork and Roth, Proposition 2.1): what is computed from releases alone loses no more privacy"
    )
    planned: int = 100

    def looks_at(self, value: Any) -> bool:
        return bool(value.private)

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        mechanism = subject.value
        planned = planned_for(mechanism, self.planned)
        here, other = problem(mechanism, seed, planned), problem(mechanism, seed + 1, planned)
        steps = steps_to_look_at(mechanism, planned, seed)
        there = dataclasses.replace(here, inputs=0.3 - other.inputs, targets=(other.targets + 1) % 4)
        # Each in a process of its own: what one of them remembers outside its state does not reach the other.
        told, stopped = apart(lambda: record(with_last(here, 0), steps))
        wrong, hidden = apart(lambda: _differs(there, steps, told))
        evidence = {"steps": len(told) - 1, "planned": planned, "releases": sum(len(moment.calls) for moment in told)}
        if hidden and wrong is not None:
            unseen = (
                f"{hidden} releases of the ledger did not pass `let_out`, so they could not be handed to the replay"
            )
            return self.undecided(subject, f"{unseen}; {HOW_TO_PASS}", evidence)
        if wrong is None and stopped is not None:
            return self.undecided(subject, stopped, evidence)
        holds = "a run on other data that is told what was released has the same parameters, bit for bit"
        return self.certain(subject, wrong, evidence, holds)


def _differs(there: World, steps: Sequence[int], told: Sequence[Moment]) -> tuple[str | None, int]:
    """What is another thing on other data, and how many releases of the ledger did not pass the door."""
    mechanism, stack, hidden = there.mechanism, there.stack, 0
    try:
        for moment, again in replay(there, steps, told):
            for run, events in enumerate(added(mechanism, moment, stack)):
                hidden += max(0, len(events) - len(moment.of(run)))
            place = "the start" if moment.step is None else f"step {moment.step}"
            if not torch.equal(moment.after.theta_RP, again.after.theta_RP):
                return f"after {place} the parameters are others on other data, with all releases the same", hidden
            if mechanism.released(moment.after, stack) != mechanism.released(again.after, stack):
                return f"after {place} the ledger is another one on other data, with all releases the same", hidden
    except Elsewhere as error:
        return f"with all releases the same, {error}", hidden
    return None, hidden


check = MechanismReplay()
