"""A mechanism's noisy gradient has the full gradient as its mean, where nothing is clipped.

The mean of many draws at fixed parameters is held against (1/N)·Σ g_i, coordinate by coordinate, with Bernstein's
inequality: the deviation of the sum over all draws of inclusions minus q, times g_i, plus normal noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from dpbench.checks import _statistics as statistics
from dpbench.checks._problems import batch, can_reveal, gradient, knobs, reference, small_network
from dpbench.checks._subject import Subject, statistical
from dpbench.clipping._base import Examples
from dpbench.verdicts import Verdict

SOURCE = "The expectation over the Poisson sample of the sum over the batch, divided by qN, is the mean over the data"
RATES = (0.05, 0.3, 1.0)


def bernstein_p(deviation: float, variance: float, largest: float) -> float:
    """P(|S| ≥ deviation) for a sum of independent centred terms of total variance `variance`.

    Each term is a normal, or at most `largest` in size: 2·exp(−t²/2 / (V + bt/3)), Bernstein's inequality, whose
    bound of the moment generating function holds for normal terms as well. A NaN gives 0.
    """
    if math.isnan(deviation):
        return 0.0
    if deviation <= 0:
        return 1.0
    spread = variance + largest * deviation / 3
    return min(1.0, 2 * math.exp(-(deviation**2) / 2 / spread)) if spread > 0 else 0.0


@dataclass(frozen=True)
class GradientUnbiased:
    """Subject: kind `mechanisms`, a pipeline, private or not.

    >>> check(Subject.of("mechanisms", "non_private"), seed=0).verdict
    'holds'
    """

    false_alarm: float = statistics.FALSE_ALARM
    seeds: int = 60
    steps: int = 25
    examples: int = 12

    def applies(self, subject: Any) -> bool:
        return isinstance(subject, Subject) and subject.kind == "mechanisms" and can_reveal(subject.value)

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        """Average `seeds`·`steps` draws at each of three sampling rates."""
        generator = torch.Generator().manual_seed(seed)
        net = small_network()
        data = batch(generator, 1, self.examples, filled=2.0)
        # Gradients that point the same way, so that a wrong divisor shows.
        inputs, targets = 1 + 0.3 * data.inputs[0].tanh().float(), torch.zeros_like(data.targets[0])
        theta_P = torch.randn(net.size, generator=generator)
        # One run for each example, with a batch of that example alone: the gradients one by one.
        each = Examples(inputs[:, None], targets[:, None], torch.ones(len(targets), 1, dtype=torch.bool))
        whole_N = torch.full((len(targets),), math.inf, dtype=torch.float64)
        gradient_NP = reference(net, theta_P.expand(len(targets), -1), each, whole_N).sum_RP
        clip = 2 * float(gradient_NP.norm(dim=1).max())  # clips nothing
        sigma = 0.1 if subject.value.private else 0.0
        draws, found = self.seeds * self.steps, []
        for rate in RATES:
            numbers = [seed * 7919 + number for number in range(self.seeds)]
            stack = knobs(numbers, rate, clip_norm=clip, noise_multiplier=sigma)
            theta_RP = theta_P.expand(self.seeds, -1).contiguous()
            shown = [gradient(subject.value, net, theta_RP, stack, inputs, targets, t) for t in range(self.steps)]
            # In units of the batch's sum: Σ over draws of Σ_i (inclusion − q) g_i, plus noise of deviation σC each.
            size = rate * self.examples
            error_P = (torch.stack(shown).double() * size).sum((0, 1)) - draws * rate * gradient_NP.sum(0)
            variance_P = draws * (rate * (1 - rate) * gradient_NP.square().sum(0) + (sigma * clip) ** 2)
            # Rounding of float32, of every draw: 10^4 roundings as in `clipping_reference`, of the sizes added up.
            slack_P = draws * 1e4 * 2.0**-24 * gradient_NP.abs().sum(0)
            for error, variance, largest, slack in zip(
                error_P.tolist(),
                variance_P.tolist(),
                gradient_NP.abs().amax(0).tolist(),
                slack_P.tolist(),
                strict=True,
            ):
                found.append(bernstein_p(abs(error) - slack, variance, largest))
        p, tests = statistics.smallest(found)
        evidence = {"draws": draws * len(RATES), "tests": tests, "rates": list(RATES)}
        return statistical(
            "gradient_unbiased",
            subject,
            p,
            evidence,
            false_alarm=self.false_alarm,
            about="mean of the noisy gradient against the full gradient",
            source=SOURCE,
        )


check = GradientUnbiased()
