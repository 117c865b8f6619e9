"""Noise: every coordinate of the gradient has independent normal noise of the stated deviation, in every step and seed.

The stated deviation is s·Δ: s is the noise multiplier of the step in the ledger, Δ how far one example may move the
gradient according to the event (s·Δ = σ·C/(qN) for NoisySGD); where the event tells of a count as well, the gradient
has more noise by the share that the mechanism declares. The network has one class, so its gradients are exactly
zero, and the update gets the noise alone. The runs of the stack differ in C, σ and q; the batches are random and
sometimes empty. So noise without the factor C, noise that decays when the ledger says that it does not, and a sum
divided by the number of drawn examples are found. Half of the steps are the first ones, the others are at random places
of the plan, with the last among them. A mechanism with its own steps cannot begin in the middle, so its plan has only
the steps that are checked.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.problems import hyperparameters, linear_network
from dpbench.judging.check_tools.steps import OwnSteps, can_be_shown, shown
from dpbench.judging.check_tools.subject import Check, Subject
from dpbench.verdicts import Verdict

CLIP_NORMS = (1.0, 0.25, 4.0, 1.0)
NOISE_MULTIPLIERS = (1.0, 1.3, 0.5, 8.0)
RATES = (0.5, 0.1, 1.0, 0.02)
EXAMPLES = 10


def standardised(mechanism: Any, seed: int, steps: int, parameters: int, planned: int = 100) -> NDArray[np.float64]:
    """The noise of T steps in units of s·Δ, shape (T, R, P): standard normals if the mechanism is right."""
    net = linear_network(parameters, 1)
    inputs, targets = torch.linspace(-1, 1, EXAMPLES * parameters).reshape(EXAMPLES, -1), torch.zeros(EXAMPLES).long()
    runs = len(RATES)
    own = isinstance(mechanism, OwnSteps)
    stack = hyperparameters(
        range(seed, seed + runs),
        RATES,
        clip_norm=CLIP_NORMS,
        noise_multiplier=NOISE_MULTIPLIERS,
        steps=steps if own else planned,
    )
    looked = steps if own else _spread(steps, planned, seed)
    theta_RP = torch.linspace(-1, 1, runs * net.size).reshape(runs, net.size)
    units = []
    for step in shown(mechanism, net, theta_RP, stack, inputs, targets, looked):
        units.append(step.gradient_RP.double() / step.deviation()[:, None])
    return torch.stack(units).numpy()


def _spread(steps: int, planned: int, seed: int) -> list[int]:
    """The numbers of `steps` steps: the first ones, random later ones, and the last; all of a shorter plan."""
    if planned <= steps:
        return list(range(steps))
    first = steps // 2
    rest = random.Random(seed).sample(range(first, planned - 1), steps - first - 1)
    return [*range(first), *sorted(rest), planned - 1]


def p_values(noise_TRP: NDArray[np.float64]) -> Iterator[Any]:
    """p-values of scale, shape and independence."""
    steps, runs, parameters = noise_TRP.shape
    squares = noise_TRP**2
    yield statistics.chi_square_p(squares.sum(), squares.size)
    yield statistics.chi_square_p(squares.sum((0, 2)), steps * parameters)  # each run
    yield statistics.chi_square_p(squares.sum(0), steps)  # each coordinate of each run
    yield statistics.chi_square_p(squares.sum(2), parameters)  # each step of each run
    yield statistics.normal_p(noise_TRP.sum((0, 2)) / np.sqrt(steps * parameters))
    yield statistics.distribution_p(noise_TRP, stats.norm.cdf)
    for distance in (1, 2, 3, 4, parameters // 2):
        left, right = statistics.apart(noise_TRP, distance)
        yield statistics.correlation_p(left, right)
        yield statistics.correlation_p(left**2 - 1, right)
    for distance in (1, 2, steps // 2):
        yield statistics.correlation_p(*statistics.apart(noise_TRP, distance, axis=0))
    for one in range(runs):
        for other in range(one):
            yield statistics.correlation_p(noise_TRP[:, one], noise_TRP[:, other])


@dataclass(frozen=True)
class NoiseScale(Check):
    """Subject: kind `mechanisms`, private, that declares the effect of one example.

    >>> check(Subject.of("mechanisms", "noisy_adam"), seed=0).verdict
    'holds'
    """

    kind = "mechanisms"
    source = "bu2020, Algorithm 1: N(0, σ²R²I) is added to the sum of the clipped gradients; here divided by pn"
    false_alarm: float = statistics.FALSE_ALARM
    steps: int = 50
    parameters: int = 160
    planned: int = 100

    def looks_at(self, value: Any) -> bool:
        return can_be_shown(value) and bool(value.private)

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        """Look at `steps` steps of a stack of four runs with `parameters` coordinates each."""
        noise_TRP = standardised(subject.value, seed, self.steps, self.parameters, self.planned)
        evidence = {
            "draws": noise_TRP.size,
            "planned": self.planned,
            "deviation_over_stated": float(np.sqrt((noise_TRP**2).mean())),
        }
        if not np.isfinite(noise_TRP).all():
            return self.refuted(subject, "the noise is not finite")
        rows = {row.tobytes() for row in noise_TRP.reshape(-1, self.parameters)}
        if len(rows) < self.steps * len(RATES):
            wrong = f"{self.steps * len(RATES) - len(rows)} noise vectors are exact copies of others"
            return self.refuted(subject, wrong, evidence)
        return self.statistical(
            subject, p_values(noise_TRP), evidence, "scale, normality and independence of the noise"
        )


check = NoiseScale()
