"""Every example is in a mechanism's batches as often as the mechanism and its ledger say, independently of all else.

Who was in a batch is read off the gradient itself. The network is linear, so an example's gradient is its residual
times what the network sees of it; what it sees of N examples in N dimensions is a basis, so the gradient of a batch
has one decomposition: the weight with which each example entered. Counts are held against the declared probabilities,
for every example, for pairs of examples, for two steps and for two runs. Without chance: the weight is 1/(N·p) where
nothing is clipped, what one example adds is within its reach, the ledger's sampling rate is no less than any p: in
every step that is looked at, and in the event of a step at each of `LEDGER_RATES`.
"""

from __future__ import annotations

import dataclasses
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
from dpbench.judging.checks import _statistics as statistics
from dpbench.judging.checks._problems import hyperparameters, linear_network
from dpbench.judging.checks._steps import OwnSteps, Step, can_be_shown, preparation, shown, views
from dpbench.judging.checks._subject import Check, Subject
from dpbench.step.functional import Network
from dpbench.step.letting_out import watched
from dpbench.verdicts import Verdict

RATES = (0.1, 0.5)
LEDGER_RATES = (1.0, 0.5, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4)
CLASSES = 3
ROUNDING = 1e-6  # float64, and a system of a condition below 1e3
LAST_BITS = 1e-12  # of a rate, which no system of equations has gone through


@dataclass(frozen=True)
class MechanismInclusion(Check):
    """Subject: kind `mechanisms`, private or not; its update can be replaced by one that shows the gradient.

    >>> check(Subject.of("mechanisms", "noisy_sgd"), seed=0).verdict
    'holds'
    """

    kind = "mechanisms"
    source = "The estimate is the sum over the batch of g_i/(N·p_i), p_i the probability that example i is in the batch"
    false_alarm: float = statistics.FALSE_ALARM
    examples: int = 10
    seeds: int = 60
    steps: int = 40

    def looks_at(self, value: Any) -> bool:
        return can_be_shown(value)

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        """Look at `seeds`·`steps` batches at each of two sampling rates."""
        mechanism = subject.value
        if preparation(mechanism) is not None:  # what is done to the inputs draws no batches
            mechanism = dataclasses.replace(mechanism, preparation=None)
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
        wrong = _rate_of_ledger(mechanism)
        if wrong is not None:
            return self.refuted(subject, wrong)
        found: list[Any] = []
        for rate in RATES:
            # No gradient is above the clip norm, nor an estimate of its norm; own steps draw by it and need it close.
            clip, sigma = (largest * (1 + 1e-9 if isinstance(mechanism, OwnSteps) else 1e6), 1.0)
            if not mechanism.private:
                clip, sigma = math.inf, 0.0
            elif not _passes_the_door(mechanism, net, theta_RP[:1], inputs, targets):
                sigma = 0.0
            numbers = range(seed * 1009, seed * 1009 + seeds)
            stack = hyperparameters(numbers, rate, clip_norm=clip, noise_multiplier=sigma)
            chances, members, totals = [], [], []
            for step in _without_noise(mechanism, net, theta_RP, stack, inputs, targets, self.steps):
                p_RN, most_R = step.inclusion(), step.most_weight()
                weight_RN, norm_RN = _weights(step)
                wrong = _certain_faults(step, p_RN, weight_RN, norm_RN) or _rates_of_step(step, p_RN)
                if wrong is not None:
                    return self.refuted(subject, wrong)
                chances.append(p_RN.numpy())
                members.append(_inside(weight_RN * p_RN * step.size()[:, None], most_R).numpy())
                totals.append(weight_RN.sum(1))
            found += _p_values(np.stack(members, 1), np.stack(chances, 1))
            found.append(_total_p(torch.stack(totals), most_R))
        evidence = {"batches": len(RATES) * seeds * self.steps, "rates": list(RATES)}
        return self.statistical(subject, found, evidence, "inclusion frequencies and their independence")


def _passes_the_door(mechanism: Any, net: Network, theta_1P: Tensor, inputs: Tensor, targets: Tensor) -> bool:
    """Whether a step hands its noisy value to `let_out`, where it can be had without its noise."""
    seen = []
    with watched(lambda *told: (seen.append(True), told[1])[1]):  # type: ignore[func-returns-value]
        next(shown(mechanism, net, theta_1P, hyperparameters([0]), inputs, targets, 1))
    return bool(seen)


def _without_noise(mechanism: Any, *arguments: Any) -> Iterator[Step]:
    """Steps whose releases are handed on without their noise, though it is drawn; own steps keep theirs."""
    steps = shown(mechanism, *arguments)
    if isinstance(mechanism, OwnSteps):
        yield from steps
        return
    while True:
        with watched(lambda exact, *_: exact):
            step = next(steps, None)
        if step is None:
            return
        yield step


def _rate_of_ledger(mechanism: Any) -> str | None:
    """What is wrong with the sampling rates that the ledger tells of a step, for examples that are drawn with q."""
    if not mechanism.private or isinstance(mechanism, OwnSteps):
        return None
    for rate in LEDGER_RATES:
        composition = mechanism.ledger(sampling_rate=rate, noise_multiplier=1.0, steps=1)
        parts = () if composition is None else composition.parts
        told = getattr(parts[-1][0], "sampling_rate", 1.0) if parts else 1.0
        if told < rate * (1 - LAST_BITS):
            return f"the ledger of a step tells a sampling rate of {told:g}, where examples are drawn with {rate:g}"
    return None


def _rates_of_step(step: Step, p_RN: Tensor) -> str | None:
    """What is wrong with the sampling rates by which the ledger grew, beside the probabilities that the draw has.

    Of a mechanism without steps of its own those are q, which the frequencies confirm; it is asked about σ = 1.
    """
    if not step.mechanism.private:
        return None
    asked = dataclasses.replace(step.hyper, noise_multiplier_R=torch.ones_like(step.hyper.noise_multiplier_R))
    events = dataclasses.replace(step, hyper=asked).events()
    told_R = torch.tensor([getattr(event, "sampling_rate", 1.0) for event in events], dtype=torch.float64)
    slack = ROUNDING if isinstance(step.mechanism, OwnSteps) else LAST_BITS
    over_R = p_RN.amax(1) / told_R
    if bool((over_R <= 1 + slack).all()):
        return None
    worst = int(over_R.argmax())
    return (
        f"the ledger tells a sampling rate of {float(told_R[worst]):g}, and an example is in the batch with"
        f" {float(p_RN[worst].max()):g}"
    )


def _noiseless(step: Step) -> Tensor:
    """The gradient (R, P) without its noise, which own steps may be unable to leave out.

    That noise has the deviation of the ledger and comes from the stream NOISE: were it another, the weights were wrong.
    """
    if not isinstance(step.mechanism, OwnSteps):
        return step.gradient_RP
    place = (step.hyper.keys_RS, randomness.NOISE, step.before.step_R)
    normal_RP = randomness.normal(*place, step.gradient_RP.shape[1], dtype=torch.float64)
    return step.gradient_RP - (step.multipliers() * step.reach())[:, None] * normal_RP


def _weights(step: Step) -> tuple[Tensor, Tensor]:
    """The weight with which each example is in the gradient, and the norm of its own gradient: two of (R, N)."""
    seen_RNF = views(step.mechanism, step.before, step.inputs)
    runs = len(seen_RNF)
    matrix_RCF = step.before.theta_RP.reshape(runs, CLASSES, -1)
    residual_RNC = (seen_RNF @ matrix_RCF.mT).softmax(-1) - one_hot(step.targets, CLASSES)
    # gradient (C, F) = Σ_i w_i residual_i ⊗ seen_i, so gradient · seen^-1 has the columns w_i residual_i
    columns_RCN = torch.linalg.solve(seen_RNF, _noiseless(step).reshape(runs, CLASSES, -1), left=False)
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


def _certain_faults(step: Step, p_RN: Tensor, weight_RN: Tensor, norm_RN: Tensor) -> str | None:
    """Faults that no chance excuses."""
    if not bool(step.gradient_RP.isfinite().all()):
        return "the gradient is not finite"
    most_R = step.most_weight()
    divisor_RN = p_RN * step.size()[:, None]
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
    if not step.mechanism.private or not isinstance(step.mechanism, OwnSteps):
        return None
    reach_R = step.reach()
    furthest_R = (torch.where(inside_RN, norm_RN / divisor_RN, 0.0)).amax(1)
    if bool((furthest_R > reach_R * (1 + ROUNDING)).any()):
        return f"an example adds {float((furthest_R / reach_R).max()):.6g} times its reach"
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
