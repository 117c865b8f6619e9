"""A mechanism's noisy gradient has the full gradient as its mean, where nothing is clipped.

The mean of many draws at fixed parameters is compared with (1/N)·Σ g_i in every coordinate, with Bernstein's
inequality: the estimate of a step is the sum over the included examples of g_i/(N·p_i), plus normal noise of the
ledger's deviation. p_i is q unless the mechanism declares other probabilities or weights; g_i is the gradient at the
prepared input; of a rule that scales every gradient it is the weighted one. Clipping makes a mechanism biased, so
nothing is clipped here, and a smoothed loss has another gradient, as views of records have, so it is the plain loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.problems import batch, fitting, hyperparameters, reference, small_network
from dpbench.judging.check_tools.steps import (
    OwnSteps,
    can_be_shown,
    random_projections,
    shown,
    shuffled,
    views,
    with_plain_loss,
)
from dpbench.judging.check_tools.subject import Check, Subject
from dpbench.step.clipped_sum import Examples
from dpbench.step.functional import Network
from dpbench.step.mechanism import State
from dpbench.step.stages import AdaptiveClipping, scales_every_gradient
from dpbench.verdicts import Verdict

RATES = (0.05, 0.3, 1.0)
EPOCHS = (1 / 12, 0.25, 1.0)  # of shuffled batches: whole numbers of them make an epoch


@dataclass(frozen=True)
class GradientUnbiased(Check):
    """Subject: kind `mechanisms`, a pipeline, private or not.

    >>> check(Subject.of("mechanisms", "non_private"), seed=0).verdict
    'holds'
    """

    kind = "mechanisms"
    source = (
        "The expectation over the Poisson sample of the sum over the batch, divided by qN, is the mean over the data"
    )
    false_alarm: float = statistics.FALSE_ALARM
    seeds: int = 60
    steps: int = 25
    examples: int = 12

    def looks_at(self, value: Any) -> bool:
        return can_be_shown(value)

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        """Average `seeds`·`steps` draws at each of three sampling rates."""
        mechanism = with_plain_loss(subject.value)
        generator = torch.Generator().manual_seed(seed)
        net = fitting(mechanism, small_network())
        data = batch(generator, 1, self.examples, filled=2.0)
        # Gradients of similar direction, so that a wrong divisor shows.
        inputs, targets = 1 + 0.3 * data.inputs[0].tanh().float(), torch.zeros_like(data.targets[0])
        theta_P = torch.randn(net.size, generator=generator)
        # Own steps may calibrate their noise during the run, which is slow.
        seeds = self.seeds // 5 if isinstance(mechanism, OwnSteps) else self.seeds
        numbers = [seed * 7919 + number for number in range(seeds)]
        theta_RP = theta_P.expand(seeds, -1).contiguous()
        begun = mechanism.start(theta_RP, hyperparameters(numbers), inputs, targets)
        gradient_RNP = each_gradient(net, theta_P, mechanism, begun, inputs, targets)
        norm_RN = gradient_RNP.norm(dim=2)
        largest = float(norm_RN.max())
        # Nothing is clipped: an estimate of a norm may be far above it, but not 10^4 times, nor falls a clip norm as
        # far in so few steps.
        rule: Any = getattr(mechanism, "rule", None)
        estimated = mechanism.private and random_projections(mechanism) is not None
        times = 1e4 if estimated or isinstance(rule, AdaptiveClipping) else 2.0
        sigma = 0.2 / times if mechanism.private else 0.0
        if scales_every_gradient(rule):
            gradient_RNP = gradient_RNP * rule.weight(norm_RN, norm_RN.new_tensor(times * largest))[:, :, None]
        # Over whole shuffled epochs the sums of batches have no variance at all; what is taken is that of Poisson ones.
        rates, steps = (EPOCHS, self.steps // 12 * 12) if shuffled(mechanism) else (RATES, self.steps)
        draws, found = seeds * steps, []
        for rate in rates:
            stack = hyperparameters(numbers, rate, clip_norm=times * largest, noise_multiplier=sigma)
            error_P, variance_P, one_P = torch.zeros(3, net.size, dtype=torch.float64)
            for step in shown(mechanism, net, theta_RP, stack, inputs, targets, steps):
                size_R1 = step.size()[:, None]
                error_P += (step.gradient_RP.double() - gradient_RNP.sum(1) / size_R1).sum(0)
                variance_RP, most_RP = _spread(gradient_RNP, size_R1, step.inclusion(), step.most_weight())
                variance_P += variance_RP.sum(0)
                one_P = one_P.maximum(most_RP.amax(0))
                if mechanism.private:
                    variance_P += step.deviation().square().sum()
            # Rounding of float32, of every draw: 10^4 roundings as in `clipping_reference`, of the sizes added up.
            slack_P = draws * 1e4 * 2.0**-24 * self.examples * one_P
            columns = zip(error_P.tolist(), variance_P.tolist(), one_P.tolist(), slack_P.tolist(), strict=True)
            found += [statistics.bernstein_p(abs(error) - slack, v, one) for error, v, one, slack in columns]
        evidence = {"draws": draws * len(rates), "rates": list(rates)}
        return self.statistical(subject, found, evidence, "mean of the noisy gradient against the full gradient")


def _spread(gradient_RNP: Tensor, size_R1: Tensor, p_RN: Tensor, most_R: Tensor | None) -> tuple[Tensor, Tensor]:
    """The variance of one draw, and the largest size of its independent terms; (R, P) each.

    Independent examples: terms g_i/(size·p_i). If the examples' weights are dependent the draw is one term, a sum of
    gradients with weights of at most `most_R` in all. A variable between lowest and highest with the known mean has a
    variance of at most (highest − mean)·(mean − lowest) (Bhatia and Davis 2000).
    """
    if most_R is None:
        weighted_RNP = gradient_RNP / (size_R1 * p_RN)[:, :, None]
        variance_RNP = p_RN[:, :, None] * (1 - p_RN[:, :, None]) * weighted_RNP.square()
        return variance_RNP.sum(1), weighted_RNP.abs().amax(1)
    low_RP = most_R[:, None] * gradient_RNP.amin(1).clamp_max(0)
    high_RP = most_R[:, None] * gradient_RNP.amax(1).clamp_min(0)
    mean_RP = gradient_RNP.mean(1)
    return (high_RP - mean_RP) * (mean_RP - low_RP), high_RP - low_RP


def each_gradient(
    net: Network, theta_P: Tensor, mechanism: Any, state: State, inputs: Tensor, targets: Tensor
) -> Tensor:
    """Every example's gradient (R, N, P) at each run's prepared input, by one ordinary backward pass each."""
    seen = views(mechanism, state, inputs)
    alike = bool((seen == seen[:1]).all())
    rows = seen[:1] if alike else seen
    # One run of the reference for each example, with a batch of that example alone: the gradients one by one.
    count = rows.shape[0] * len(targets)
    each = Examples(
        rows.flatten(0, 1)[:, None], targets.repeat(rows.shape[0])[:, None], torch.ones(count, 1, dtype=torch.bool)
    )
    whole = torch.full((count,), math.inf, dtype=torch.float64)
    gradients = reference(net, theta_P.expand(count, -1), each, whole).sum_RP
    return gradients.reshape(rows.shape[0], len(targets), -1).expand(len(seen), -1, -1)


check = GradientUnbiased()
