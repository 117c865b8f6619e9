"""A mechanism without its noise: adding one example to the data changes the sum that it releases by at most C.

With q = 1 every example is in the batch, so the batch with the added example neighbours the batch without it. The sum
is what reaches the update times qN; its normalisation by qN takes N as public. Without chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpbench.checks._problems import batch, can_reveal, gradient, knobs, small_network
from dpbench.checks._subject import Subject, certain
from dpbench.checks.clipping_sensitivity import rounding
from dpbench.verdicts import Verdict

SOURCE = "001_*, Algorithm 1 and Section 2: neighbours differ in one example, the clipped sum has sensitivity R"


@dataclass(frozen=True)
class MechanismSensitivity:
    """Subject: kind `mechanisms`, private, a pipeline, accounted for add-or-remove neighbours.

    >>> check(Subject.of("mechanisms", "noisy_sgd"), seed=0).verdict
    'holds'
    """

    false_alarm: float = 0.0
    rounds: int = 8
    examples: int = 9
    runs: int = 3

    def applies(self, subject: Any) -> bool:
        if not isinstance(subject, Subject) or subject.kind != "mechanisms" or not subject.value.private:
            return False
        ledger = subject.value.ledger(sampling_rate=1.0, noise_multiplier=1.0, steps=1)
        relations = {event.adjacency for event, _ in ledger.parts}
        return can_reveal(subject.value) and relations == {"add_or_remove"}

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        """Add an example to `rounds` data sets: an ordinary one, a huge one, or the opposite of a lone one."""
        generator = torch.Generator().manual_seed(seed)
        net = small_network(classes=2)
        worst, wrong = 0.0, None
        single, many = rounding(torch.float32, self.examples + 1, net.size)
        limit = 1 + single + 2 * many
        for turn in range(self.rounds):
            theta_RP = torch.randn(self.runs, net.size, generator=generator)
            clip_R = 10 ** (2 * torch.rand(self.runs, generator=generator, dtype=torch.float64) - 2)
            base = batch(generator, 1, self.examples, classes=2)
            inputs, targets, added, label = _neighbours(base.inputs[0].float(), base.targets[0], turn % 4)

            def total(x: Tensor, y: Tensor, theta_RP: Tensor = theta_RP, clip_R: Tensor = clip_R) -> Tensor:
                seeds = [seed + run for run in range(self.runs)]
                stack = knobs(seeds, 1.0, clip_norm=clip_R.tolist(), noise_multiplier=0.0)
                return gradient(subject.value, net, theta_RP, stack, x, y).double() * len(y)

            change_R = total(torch.cat([inputs, added]), torch.cat([targets, label])) - total(inputs, targets)
            ratio = float((change_R.norm(dim=1) / clip_R).max())
            worst = max(worst, ratio)
            if not ratio <= limit:
                wrong = wrong or f"one example more changes the sum by {ratio:.7g}·C; expected at most {limit:.7g}·C"
        evidence = {"largest_change_over_clip_norm": worst, "rounds": self.rounds}
        holds = "one example more changes the noise-free sum by at most C, up to rounding"
        return certain("mechanism_sensitivity", subject, wrong, evidence, holds=holds, source=SOURCE)


def _neighbours(inputs: Tensor, targets: Tensor, kind: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A data set and the example that is added to it, both as inputs and targets."""
    if kind < 2:
        return inputs[1:], targets[1:], inputs[:1] * 1e6**kind, targets[:1]
    # Of two targets for one input, the less likely has the larger, opposite gradient: the two kinds try both orders.
    lone, target = inputs[:1].clamp(-1, 1), torch.tensor([kind - 2])
    return lone, target, lone, 1 - target


check = MechanismSensitivity()
