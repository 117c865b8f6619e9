"""One record changes one teacher of an ensemble, and so one vote on every query.

Teachers are trained on a small data set and on neighbours of it: one record after the other is replaced by an
adversarial one, and the last record is left out. At most one teacher's parameters may differ, in a single bit; all
counts of votes then move by one vote from one class to another, which is what a `ConfidentGNMax` states of them. The
partition is looked at over several runs with batches so large that a teacher's batch holds each of its records but for
a probability below 1e-12 for each. Deterministic.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dpbench.judging.check_tools.subject import Check, Subject
from dpbench.judging.check_tools.worlds import CLASSES, EXAMPLES, World, problem
from dpbench.verdicts import Verdict

FULL = 28 * EXAMPLES  # places of a batch: (1 − 1/16)^448 < 1e-12


@dataclass(frozen=True)
class TeacherPartition(Check):
    """Subject: kind `mechanisms`, with teachers that it trains (`trained` and `counted`).

    >>> check.applies(Subject.of("mechanisms", "noisy_sgd"))
    False
    """

    kind = "mechanisms"
    source = "Papernot et al. 2018, Section 3: teachers are trained on disjoint parts, so one record changes one vote"

    def looks_at(self, value: Any) -> bool:
        return hasattr(value, "teachers") and value.votes is None and callable(getattr(value, "trained", None))

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        how = dataclasses.replace(subject.value.teachers, steps=2, batch_size=FULL)
        world = problem(dataclasses.replace(subject.value, teachers=how), seed, 1)
        before_RTP, votes_RQC = _trained(world), _counted(world)
        most, moved, lonely = 0, 0, 0
        for place in range(EXAMPLES):
            inputs, targets = world.inputs.clone(), world.targets.clone()
            inputs[place], targets[place] = -3 * inputs[place], (targets[place] + 1) % CLASSES
            other = dataclasses.replace(world, inputs=inputs, targets=targets)
            changed_R = (_trained(other) != before_RTP).any(2).sum(1)
            most, lonely = max(most, int(changed_R.max())), lonely + int((changed_R == 0).sum())
            moved = max(moved, _largest_move(_counted(other), votes_RQC))
        less = dataclasses.replace(world, inputs=world.inputs[:-1], targets=world.targets[:-1])
        most = max(most, int((_trained(less) != before_RTP).any(2).sum(1).max()))
        moved = max(moved, _largest_move(_counted(less), votes_RQC))
        wrong = None
        if most > 1:
            wrong = f"one record changes {most} teachers; expected one"
        elif moved > 2:
            wrong = f"one record changes the counts of a query by {moved} in all; expected 2, for one vote that moves"
        evidence = {"teachers_changed": most, "counts_changed": moved, "records_without_a_teacher": lonely}
        return self.certain(subject, wrong, evidence, "one record changes one teacher, and one vote on a query")


def _trained(world: World) -> Tensor:
    data = (world.inputs, world.targets, FULL)
    found: Tensor = world.mechanism.trained(world.net, world.theta_RP, world.stack, *data)
    return found


def _counted(world: World) -> Tensor:
    data = (world.inputs, world.targets, FULL)
    found: Tensor = world.mechanism.counted(world.net, world.theta_RP, world.stack, *data)
    return found


def _largest_move(one_RQC: Tensor, other_RQC: Tensor) -> int:
    return int((one_RQC - other_RQC).abs().sum(2).max())


check = TeacherPartition()
