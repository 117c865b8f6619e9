"""What a mechanism learns of the inputs before training loses no more privacy than its ledger says.

A black box: whatever the preparation puts into the state is a vector of statistics, drawn anew with every seed. Adding
one example moves its mean by some vector d; with Σ its covariance over the seeds, two neighbours are told apart no
worse than two normals at the distance sqrt(d' Σ^-1 d). The ledger's Gaussian releases with noise multipliers s allow
sqrt(Σ 1/s²). What is made of noisy sums afterwards (quotients, roots) is smooth on the scale of the noise, as there
are many examples. The examples added are adversarial: huge in one channel, in all, or of both signs.
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
from dpbench.judging.checks import _statistics as statistics
from dpbench.judging.checks._problems import hyperparameters
from dpbench.judging.checks._steps import preparation, releases
from dpbench.judging.checks._subject import Check, Subject
from dpbench.verdicts import Verdict

CHANNELS = 3
CURVED = 1.05  # of μ²: what the curvature of the statistics may add at the scale of the noise, here below 1 %


@dataclass(frozen=True)
class PreparationRelease(Check):
    """Subject: kind `mechanisms`, private, with a preparation that releases Gaussians alone.

    >>> check.applies(Subject.of("mechanisms", "noisy_sgd"))
    False
    """

    kind = "mechanisms"
    source = (
        "Gaussian releases of sensitivity 1 and noise multipliers s are one of μ² = Σ 1/s² (Dong et al., Corollary 2)"
    )
    false_alarm: float = statistics.FALSE_ALARM
    seeds: int = 500
    examples: int = 4000

    def looks_at(self, value: Any) -> bool:
        return value.private and preparation(value) is not None

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        """Start `seeds` runs on a data set, and on the same with each of several examples added."""
        mechanism = subject.value
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.rand(self.examples, CHANNELS, generator=generator, dtype=torch.float64)
        absent = torch.zeros_like(inputs[:1])  # N is public: in place of the example stands one that adds nothing
        before, told = self._statistics(mechanism, torch.cat([inputs, absent]), seed)
        if not told or not all(isinstance(event, Gaussian) for event in told):
            wrong = f"{len(told)} releases stand in the ledger before the first step: expected Gaussians"
            return self.refuted(subject, wrong)
        allowed = sum(1 / event.relative_noise**2 for event in told)
        varies = before.std(0) > 1e-12 * (1 + np.abs(before).max(0))
        if not varies.any():
            return self.refuted(subject, "no statistic has noise")
        covariance = np.cov(before[:, varies], rowvar=False).reshape(int(varies.sum()), -1)
        lost: list[float] = []
        for added in _added(inputs):
            moved = (self._statistics(mechanism, torch.cat([inputs, added]), seed)[0] - before).mean(0)
            if np.abs(moved[~varies]).max(initial=0.0) > 0:
                return self.refuted(subject, "a statistic without noise changes with one example more")
            lost.append(float(moved[varies] @ np.linalg.solve(covariance, moved[varies])))
        # (R−1)·(true distance)²/(estimated distance)² has the chi-square law with R−K degrees of freedom.
        share, free = (self.seeds - 1) * CURVED * allowed, self.seeds - len(covariance)
        found = [float(stats.chi2.cdf(share / loss, free)) if loss > 0 else 1.0 for loss in lost]
        evidence = {"seeds": self.seeds, "loss_over_stated": max(lost) / allowed, "examples_added": len(lost)}
        about = "how far one example moves the released statistics, against their noise and the ledger"
        return self.statistical(subject, found, evidence, about)

    def _statistics(self, mechanism: Any, inputs: Tensor, seed: int) -> tuple[NDArray[np.float64], list[Any]]:
        """All that the state holds beyond the update's memory (R, K), and what the ledger says of it."""
        stack = hyperparameters(range(seed, seed + self.seeds))
        targets = torch.zeros(len(inputs), dtype=torch.int64)
        state = mechanism.start(torch.zeros(self.seeds, 1, dtype=torch.float64), stack, inputs, targets)
        kept = [value for name, value in sorted(state.memory.items()) if name not in mechanism.update.memory]
        flat = torch.cat([value.double().flatten(1) for value in kept], 1) if kept else torch.zeros(self.seeds, 1)
        return flat.double().numpy(), releases(mechanism, state, stack)[0]


def _added(inputs: Tensor) -> list[Tensor]:
    """Examples that move means, squares or ranges as far as they let them."""
    one = torch.zeros_like(inputs[:1])
    one[0, 0] = 1e3
    signs = 1e3 * torch.tensor([[1.0, -1.0, 1.0]], dtype=inputs.dtype)
    return [one, -one, torch.full_like(one, 1e3), torch.full_like(one, -1e3), signs]


check = PreparationRelease()
