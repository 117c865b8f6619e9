"""The statistics of the inputs that a mechanism releases before training lose no more privacy than its ledger says.

A black-box test: what the preparation puts into the state is a vector of statistics, random over the seeds. An added
example moves its mean by a vector d; with Σ its covariance over the seeds, two neighbours can be distinguished at least
as well as two normals at the distance sqrt(d' Σ^-1 d). The ledger's Gaussian events with noise multipliers s allow
sqrt(Σ 1/s²). Functions of the noisy sums (quotients, roots) are smooth on the scale of the noise, because there are
many examples. The added examples are adversarial: huge in one channel, in all, or of both signs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from dpbench.events import Gaussian
from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.problems import hyperparameters
from dpbench.judging.check_tools.steps import preparation, released_events
from dpbench.judging.check_tools.subject import Check, Subject
from dpbench.verdicts import Verdict

CHANNELS = 3
CURVED = 1.05  # of μ²: allows for the curvature of the statistics on the scale of the noise, here below 1 %


@dataclass(frozen=True)
class PreparationRelease(Check):
    """Subject: kind `mechanisms`, private, with a preparation whose events are Gaussian.

    >>> check.applies(Subject.of("mechanisms", "noisy_sgd"))
    False
    """

    kind = "mechanisms"
    source = (
        "Gaussian mechanisms of sensitivity 1 and noise multipliers s compose to μ² = Σ 1/s² (Dong et al., Corollary 2)"
    )
    false_alarm: float = statistics.FALSE_ALARM
    seeds: int = 500
    examples: int = 4000

    def looks_at(self, value: Any) -> bool:
        return value.private and preparation(value) is not None

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        """Start `seeds` runs on a data set, and on that data set with each of several added examples."""
        mechanism = subject.value
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.rand(self.examples, CHANNELS, generator=generator, dtype=torch.float64)
        absent = torch.zeros_like(inputs[:1])  # N is public: an example that adds nothing replaces the added one
        before, events = self._statistics(mechanism, torch.cat([inputs, absent]), seed)
        if not events or not all(isinstance(event, Gaussian) for event in events):
            wrong = f"the ledger has {len(events)} events before the first step: expected Gaussians"
            return self.refuted(subject, wrong)
        allowed = sum(1 / event.relative_noise**2 for event in events)
        varies = before.std(0) > 1e-12 * (1 + np.abs(before).max(0))
        if not varies.any():
            return self.refuted(subject, "no statistic has noise")
        covariance = np.cov(before[:, varies], rowvar=False).reshape(int(varies.sum()), -1)
        lost: list[float] = []
        for added in _added(inputs):
            moved = (self._statistics(mechanism, torch.cat([inputs, added]), seed)[0] - before).mean(0)
            if np.abs(moved[~varies]).max(initial=0.0) > 0:
                return self.refuted(subject, "a statistic without noise changes with an added example")
            lost.append(float(moved[varies] @ np.linalg.solve(covariance, moved[varies])))
        # (R−1)·(true distance)²/(estimated distance)² has the chi-square law with R−K degrees of freedom.
        share, free = (self.seeds - 1) * CURVED * allowed, self.seeds - len(covariance)
        found = [float(stats.chi2.cdf(share / loss, free)) if loss > 0 else 1.0 for loss in lost]
        evidence = {"seeds": self.seeds, "loss_over_stated": max(lost) / allowed, "examples_added": len(lost)}
        about = "how far one example moves the noisy statistics, compared with their noise and the ledger"
        return self.statistical(subject, found, evidence, about)

    def _statistics(self, mechanism: Any, inputs: Tensor, seed: int) -> tuple[NDArray[np.float64], list[Any]]:
        """The state's memory without that of the update (R, K), and the events in the ledger."""
        stack = hyperparameters(range(seed, seed + self.seeds))
        targets = torch.zeros(len(inputs), dtype=torch.int64)
        state = mechanism.start(torch.zeros(self.seeds, 1, dtype=torch.float64), stack, inputs, targets)
        kept = [value for name, value in sorted(state.memory.items()) if name not in mechanism.optimizer.memory]
        flat = torch.cat([value.double().flatten(1) for value in kept], 1) if kept else torch.zeros(self.seeds, 1)
        return flat.double().numpy(), released_events(mechanism, state, stack)[0]


def _added(inputs: Tensor) -> list[Tensor]:
    """Examples that move means, squares or ranges as far as possible."""
    one = torch.zeros_like(inputs[:1])
    one[0, 0] = 1e3
    signs = 1e3 * torch.tensor([[1.0, -1.0, 1.0]], dtype=inputs.dtype)
    return [one, -one, torch.full_like(one, 1e3), torch.full_like(one, -1e3), signs]


check = PreparationRelease()
