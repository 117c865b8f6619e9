"""The parameters depend on the data only through released values: a replay on other data gives them bit for bit.

A run on one data set is recorded (`letting_out`). The same mechanism then runs on completely different data, and every
noisy value is replaced by that of the recorded run. Seeds, and so batches and projections, are the same. If parameters
or ledger differ in a single bit after any step, they depend on something that was not released: a gradient without
noise, a statistic of the batch, a number from an earlier step, kept in the state or elsewhere. Each run has its own
process. Deterministic.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dpbench.judging.check_tools.apart import apart
from dpbench.judging.check_tools.subject import Check, Subject
from dpbench.judging.check_tools.worlds import (
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
    values_of,
    with_last,
)
from dpbench.step.mechanism import acts_at_end
from dpbench.verdicts import Verdict


@dataclass(frozen=True)
class MechanismReplay(Check):
    """Subject: kind `mechanisms`, private. `planned` is the length of the run; see `worlds.steps_to_look_at`.

    >>> from dpbench.judging.check_tools.subject import Subject
    >>> check(Subject.of("mechanisms", "noisy_sgd"), seed=0).verdict
    'holds'
    """

    kind = "mechanisms"
    source = "Post-processing (Dwork and Roth, Proposition 2.1): functions of the released values lose no more privacy"
    planned: int = 100

    def looks_at(self, value: Any) -> bool:
        return bool(value.private) and not acts_at_end(value)  # for that there is `output_sensitivity`

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        mechanism = subject.value
        planned = planned_for(mechanism, self.planned)
        here, other = problem(mechanism, seed, planned), problem(mechanism, seed + 1, planned)
        steps = steps_to_look_at(mechanism, planned, seed)
        # Other keys as well: whoever draws the noise again, to subtract it, subtracts another one. What a mechanism
        # draws after all its releases, such as the batches of a student, has the same keys.
        keys_RS = here.stack.keys_RS ^ 1
        afterwards = list(getattr(mechanism, "drawn_afterwards", ()))
        keys_RS[:, afterwards] = here.stack.keys_RS[:, afterwards]
        stack = dataclasses.replace(here.stack, keys_RS=keys_RS)
        there = dataclasses.replace(here, stack=stack, inputs=0.3 - other.inputs, targets=(other.targets + 1) % 4)
        # Each in its own process, so that nothing kept outside the state reaches the other.
        recorded, stopped = apart(lambda: record(with_last(here, 0), steps))
        wrong, hidden = apart(lambda: _differs(there, steps, recorded))
        calls = sum(len(moment.calls) for moment in recorded)
        evidence = {"steps": len(recorded) - 1, "planned": planned, "releases": calls}
        if hidden and wrong is not None:
            unseen = f"the values of {hidden} events did not pass `let_out`, so the replay could not get them"
            return self.undecided(subject, f"{unseen}; {HOW_TO_PASS}", evidence)
        if wrong is None and stopped is not None:
            return self.undecided(subject, stopped, evidence)
        holds = "a replay on other data with the same released values has the same parameters, bit for bit"
        return self.certain(subject, wrong, evidence, holds)


def _differs(there: World, steps: Sequence[int], recorded: Sequence[Moment]) -> tuple[str | None, int]:
    """What differs on other data, and how many values of events have not passed `let_out`."""
    mechanism, stack, hidden = there.mechanism, there.stack, 0
    try:
        for moment, again in replay(there, steps, recorded):
            for run, events in enumerate(added(mechanism, moment, stack)):
                hidden += max(0, values_of(events) - len(moment.of(run)))
            place = "the start" if moment.step is None else f"step {moment.step}"
            if not torch.equal(moment.after.theta_RP, again.after.theta_RP):
                return f"after {place} the parameters differ on other data, with equal released values", hidden
            if mechanism.released(moment.after, stack) != mechanism.released(again.after, stack):
                return f"after {place} the ledger differs on other data, with equal released values", hidden
    except Elsewhere as error:
        return f"with equal released values, {error}", hidden
    return None, hidden


check = MechanismReplay()
