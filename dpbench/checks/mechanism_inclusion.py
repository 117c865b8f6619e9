"""Every example is in a mechanism's batches as often as the mechanism and its ledger say, independently of all else.

Who was in a batch is read off the gradient itself. The network is linear, so an example's gradient is its residual
times what the network sees of it; what it sees of N examples in N dimensions is a basis, so the gradient of a batch
has one decomposition: the weight with which each example entered. Counts are held against the declared probabilities,
for every example, for pairs of examples, for two steps and for two runs. Without chance: the weight is 1/(N·p) where
nothing is clipped, what one example adds is within its reach, the ledger's sampling rate is no less than any p.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from dpbench import randomness
from dpbench.checks import _statistics as statistics
from dpbench.checks._problems import knobs, linear_network
from dpbench.checks._steps import (
    OwnSteps,
    Step,
    can_be_shown,
    inclusion,
    last_events,
    most_weight,
    multipliers,
    reach,
    shown,
    size,
    unprepared,
    views,
)
from dpbench.checks._subject import Subject, certain, statistical
from dpbench.pipeline import Knobs
from dpbench.verdicts import Verdict

SOURCE = "The estimate is the sum over the batch of g_i/(N·p_i), p_i the probability that example i is in the batch"
RATES = (0.1, 0.5)
CLASSES = 3
ROUNDING = 1e-6  # float64, and a system of a condition below 1e3


@dataclass(frozen=True)
class MechanismInclusion:
    """Subject: kind `mechanisms`, private or not; its update can be replaced by one that shows the gradient.

    >>> check(Subject.of("mechanisms", "noisy_sgd"), seed=0).verdict
    'holds'
    """

    false_alarm: float = statistics.FALSE_ALARM
    examples: int = 10
    seeds: int = 60
    steps: int = 40

    def applies(self, subject: Any) -> bool:
        return isinstance(subject, Subject) and subject.kind == "mechanisms" and can_be_shown(subject.value)

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        """Look at `seeds`·`steps` batches at each of two sampling rates."""
        mechanism = unprepared(subject.value)  # what is done to the inputs draws no batches
        generator = torch.Generator().manual_seed(seed)
        seeds = self.seeds // 5 if isinstance(mechanism, OwnSteps) else self.seeds  # calibration takes its time
        net = linear_network(self.examples, CLASSES)
        basis = torch.eye(self.examples) + 0.1 * torch.randn(self.examples, self.examples, generator=generator)
        # Gradients of sizes from 1 to 8, for mechanisms that look at them.
        inputs = (basis * 2 ** torch.linspace(0, 3, self.examples)[:, None]).double()
        targets = torch.arange(self.examples) % CLASSES
        theta_RP = 0.1 * torch.randn(net.size, generator=generator, dtype=torch.float64).repeat(seeds, 1)
        residual_NC = (inputs @ theta_RP[0].reshape(CLASSES, -1).T).softmax(1) - one_hot(targets, CLASSES)
        largest = float((residual_NC.norm(dim=1) * inputs.norm(dim=1)).max())
        found: list[Any] = []
        for rate in RATES:
            # Own steps may need a clip norm, and a noise, to know what to draw; no gradient is above this one.
            clip, sigma = (largest * (1 + 1e-9), 1.0) if isinstance(mechanism, OwnSteps) else (math.inf, 0.0)
            stack = knobs(
                [seed * 1009 + run for run in range(seeds)],
                rate,
                clip_norm=clip,
                noise_multiplier=sigma,
            )
            chances, members, totals = [], [], []
            for step in shown(mechanism, net, theta_RP, stack, inputs, targets, self.steps):
                p_RN = inclusion(mechanism, step, net, stack, inputs, targets)
                weight_RN, norm_RN = _weights(
                    mechanism, step, _noiseless(mechanism, step, stack, self.examples), inputs, targets
                )
                wrong = _certain_faults(mechanism, step, stack, p_RN, weight_RN, norm_RN)
                if wrong is not None:
                    return certain("mechanism_inclusion", subject, wrong, {}, holds="", source=SOURCE)
                chances.append(p_RN.numpy())
                share_RN = weight_RN * p_RN * size(mechanism, step, self.examples)[:, None]
                members.append(_inside(share_RN, most_weight(mechanism, stack, self.examples)).numpy())
                totals.append(weight_RN.sum(1))
            found += _p_values(np.stack(members, 1), np.stack(chances, 1))
            found.append(_total_p(torch.stack(totals), most_weight(mechanism, stack, self.examples)))
        p, tests = statistics.smallest(found)
        evidence = {"tests": tests, "batches": len(RATES) * seeds * self.steps, "rates": list(RATES)}
        return statistical(
            "mechanism_inclusion",
            subject,
            p,
            evidence,
            false_alarm=self.false_alarm,
            about="inclusion frequencies and their independence",
            source=SOURCE,
        )


def _noiseless(mechanism: Any, step: Step, stack: Knobs, examples: int) -> Tensor:
    """The gradient (R, P) without its noise, which own steps may be unable to leave out.

    That noise has the deviation of the ledger and comes from the stream NOISE: were it another, the weights were wrong.
    """
    if not isinstance(mechanism, OwnSteps):
        return step.gradient_RP
    deviation_R = multipliers(mechanism, step, stack) * reach(mechanism, step, stack, examples)
    normal_RP = randomness.normal(
        stack.keys_RS, randomness.NOISE, step.before.step_R, step.gradient_RP.shape[1], dtype=torch.float64
    )
    return step.gradient_RP - deviation_R[:, None] * normal_RP


def _weights(mechanism: Any, step: Step, gradient_RP: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The weight with which each example is in the gradient, and the norm of its own gradient: two of (R, N)."""
    seen_RNF = views(mechanism, step.before, inputs)
    runs = len(seen_RNF)
    matrix_RCF = step.before.theta_RP.reshape(runs, CLASSES, -1)
    residual_RNC = (seen_RNF @ matrix_RCF.mT).softmax(-1) - one_hot(targets, CLASSES)
    # gradient (C, F) = Σ_i w_i residual_i ⊗ seen_i, so gradient · seen^-1 has the columns w_i residual_i
    columns_RCN = torch.linalg.solve(seen_RNF, gradient_RP.reshape(runs, CLASSES, -1), left=False)
    square_RN = residual_RNC.square().sum(-1)
    weight_RN = (columns_RCN.mT * residual_RNC).sum(-1) / square_RN
    return weight_RN, square_RN.sqrt() * seen_RNF.norm(dim=-1)


def _inside(share_RN: Tensor, most_R: Tensor | None) -> Tensor:
    """Which examples are in the batch: half of the weight that they should have, or any weight where that is random."""
    return share_RN > (0.5 if most_R is None else ROUNDING)


def _total_p(total_TR: Tensor, most_R: Tensor | None) -> float:
    """p-value of the sums of random weights, whose mean is 1 and which are at most `most_R`."""
    if most_R is None:
        return 1.0
    off, most = float((total_TR - 1).sum().abs()), float(most_R.max())
    return statistics.bernstein_p(off, float((most_R - 1).sum()) * len(total_TR), most)


def _certain_faults(
    mechanism: Any, step: Step, stack: Knobs, p_RN: Tensor, weight_RN: Tensor, norm_RN: Tensor
) -> str | None:
    """Faults that no chance excuses."""
    examples = p_RN.shape[1]
    if not bool(step.gradient_RP.isfinite().all()):
        return "the gradient is not finite"
    most_R = most_weight(mechanism, stack, examples)
    divisor_RN = p_RN * size(mechanism, step, examples)[:, None]
    share_RN = weight_RN * divisor_RN  # 1 where the example is in the batch, 0 where it is not
    inside_RN = _inside(share_RN, most_R)
    if not torch.equal(inside_RN.sum(1), step.seen.drawn_R):
        return f"{inside_RN.sum(1).tolist()} examples are in the sums, {step.seen.drawn_R.tolist()} were reported"
    if most_R is not None:
        over = float((weight_RN.sum(1) / most_R).max())
        return f"the weights of a batch are {over:.6g} times what they may be" if over > 1 + ROUNDING else None
    off = torch.minimum(share_RN.abs(), (share_RN - 1).abs())
    if float(off.max()) > ROUNDING:
        return f"an example entered with {float(share_RN.flatten()[off.argmax()]):.6g} times the weight 1/(N·p)"
    if not mechanism.private or not isinstance(mechanism, OwnSteps):
        return None
    reach_R = reach(mechanism, step, stack, examples)
    furthest_R = (torch.where(inside_RN, norm_RN / divisor_RN, 0.0)).amax(1)
    if bool((furthest_R > reach_R * (1 + ROUNDING)).any()):
        return f"an example adds {float((furthest_R / reach_R).max()):.6g} times its reach"
    rates_R = torch.tensor(
        [getattr(event, "sampling_rate", 1.0) for event in last_events(mechanism, step, stack)], dtype=torch.float64
    )
    if bool((p_RN > rates_R[:, None] * (1 + ROUNDING)).any()):
        return "an example is in the batch with more than the sampling rate of the ledger"
    return None


def _p_values(members: NDArray[Any], chances: NDArray[Any]) -> Iterator[Any]:
    """Counts over runs, steps and examples (R, T, N) against the sums of their probabilities."""
    runs, steps, _ = members.shape
    yield statistics.chernoff_p(members.sum((0, 1)), chances.sum((0, 1)), runs * steps)
    yield statistics.chernoff_p(members.sum(), chances.sum(), members.size)
    # Disjoint pairs of steps, runs and examples, so that the pairs are independent of each other.
    for axis in range(3):
        half = members.shape[axis] // 2 * 2
        pairs = [np.moveaxis(values, axis, 0)[:half] for values in (members, chances)]
        both, chance = pairs[0][0::2] & pairs[0][1::2], pairs[1][0::2] * pairs[1][1::2]
        yield statistics.chernoff_p(both.sum(), chance.sum(), both.size)


check = MechanismInclusion()
