"""A perturbed objective has the noise, the regularisation and the clipped inputs of its proof.

At the minimum W of Σ ℓ_i + (Λ/2)‖W‖² + ⟨b, W⟩ the noise is b = −Σ∇ℓ_i(W) − ΛW, so it can be read off the released
parameters. The gradients here are by automatic differentiation, of inputs clipped to the clip norm, very long ones
among them. Statistical: b, in units of s = L·σ for an event of noise multiplier σ, is standard normal and new for every
run; L is the longest gradient of a record that is found at parameters which are sure of a wrong class. It is 5e-5
smaller for the share of the budget that the inexact minimum has, far less than the test sees. Deterministic:

- with the largest σ that the mechanism takes, Λ >= 2s², or the proof does not hold;
- a record more moves the gradient of the objective, at the released parameters, by at most s/σ;
- one value passes `let_out`, with noise that covers what is left of the gradient, in the last step and not before.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

from dpbench.errors import DpbenchError
from dpbench.events import Gaussian
from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.problems import hyperparameters
from dpbench.judging.check_tools.subject import Check, Subject
from dpbench.judging.check_tools.worlds import World
from dpbench.step.functional import network
from dpbench.step.mechanism import Setting, acts_at_end
from dpbench.step.optimum import GRADIENT_NORM
from dpbench.verdicts import Verdict

EXAMPLES, FEATURES, CLIP = 40, 3, 1.5
ROUNDING = 1e-4  # s over L·σ, and gradients of float64


@dataclass(frozen=True)
class ObjectiveNoise(Check):
    """Subject: kind `mechanisms`, private, that acts at the end and has `perturbs_objective = True`.

    >>> check(Subject.of("mechanisms", "objective_perturbation"), seed=0).verdict
    'holds'
    """

    kind = "mechanisms"
    source = "Chaudhuri et al. 2011, Algorithm 2: noise in the objective; docs/convex.md has the proof"
    false_alarm: float = statistics.FALSE_ALARM
    runs: int = 100

    def looks_at(self, value: Any) -> bool:
        return bool(value.private) and acts_at_end(value) and getattr(value, "perturbs_objective", False) is True

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        """Read the noise off `runs` runs on one data set."""
        mechanism, generator = subject.value, torch.Generator().manual_seed(seed)
        sigma = _largest(mechanism)
        if sigma == 0:
            return self.undecided(subject, "no noise multiplier from 1e-6 to 1e6 is accepted", {})
        inputs = torch.randn(EXAMPLES, FEATURES, generator=generator, dtype=torch.float64)
        inputs[::4] *= 100
        targets = torch.arange(EXAMPLES) % 2
        net = network(nn.Linear(FEATURES, 2))
        stack = hyperparameters(
            range(53 * seed, 53 * seed + self.runs), 1.0, clip_norm=CLIP, noise_multiplier=sigma, steps=1
        )
        theta_RP = torch.zeros(self.runs, net.size, dtype=torch.float64)
        start, last = World(mechanism, net, theta_RP, stack, inputs, targets).course([0])
        weight = EXAMPLES * float(mechanism.regularisation)
        stated = _longest(net.size) * sigma
        evidence = {"runs": self.runs, "noise_multiplier": sigma}
        wrong = _released(mechanism, start, last, stack, weight)
        if wrong is None and not weight >= 2 * stated**2 * (1 - ROUNDING):
            wrong = f"Λ = {weight:.6g} is accepted with 2s² = {2 * stated**2:.6g}, and the proof needs as much"
        if wrong is not None:
            return self.refuted(subject, wrong, evidence)
        exact_RP = last.calls[0].exact.double()
        noise_RP = -(_gradients(exact_RP, inputs, targets) + weight * exact_RP)
        moved = max(float(_gradients(exact_RP, 1e3 * one[None], targets[:1]).norm(dim=1).max()) for one in inputs)
        if moved > stated / sigma * (1 + ROUNDING):
            return self.refuted(subject, f"a record moves the gradient by {moved:.6g}; expected {stated / sigma:.6g}")
        about = "the noise in the objective, read off its minima"
        return self.statistical(subject, _p_values(noise_RP / stated), evidence, about)


def _gradients(theta_RP: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """Σ∇ℓ at each row of parameters, of inputs clipped to CLIP."""
    short = inputs * (CLIP / inputs.norm(dim=1)).clamp_max(1.0)[:, None]

    def loss(theta_P: Tensor) -> Tensor:
        weight, bias = theta_P[: 2 * FEATURES].reshape(2, FEATURES), theta_P[2 * FEATURES :]
        return nn.functional.cross_entropy(short @ weight.T + bias, targets, reduction="sum")

    found: Tensor = torch.func.vmap(torch.func.grad(loss))(theta_RP)
    return found


def _longest(size: int) -> float:
    """The longest gradient of one record: that of a long input, far on the wrong side."""
    theta_P = torch.zeros(size, dtype=torch.float64)
    theta_P[0] = 1e3
    record = torch.zeros(1, FEATURES, dtype=torch.float64)
    record[0, 0] = 1e3
    return float(_gradients(theta_P[None], record, torch.tensor([1])).norm())


def _largest(mechanism: Any) -> float:
    """The largest noise multiplier up to 1e6 that the mechanism takes, to 1e-6; 0 where it takes none above 1e-6."""
    setting = Setting(EXAMPLES, 1.0, 1, 1.0, CLIP)

    def taken(sigma: float) -> bool:
        try:
            mechanism.check(dataclasses.replace(setting, noise_multiplier=sigma))
        except DpbenchError:
            return False
        return True

    low, high = math.log(1e-6), math.log(1e6)
    if not taken(math.exp(low)):
        return 0.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if taken(math.exp(middle)) else (low, middle)
    return math.exp(low)


def _released(mechanism: Any, start: Any, last: Any, stack: Any, weight: float) -> str | None:
    """What is wrong with what is let out and with its events, or None."""
    if start.calls or any(ledger is None or ledger.parts for ledger in mechanism.released(start.after, stack)):
        return "something is released at the start"
    if len(last.calls) != 1:
        return f"{len(last.calls)} values are released; expected the minimum alone"
    for run, ledger in enumerate(mechanism.released(last.after, stack)):
        sigma = float(stack.noise_multiplier_R[run])
        plan = mechanism.ledger(sampling_rate=1.0, noise_multiplier=sigma, steps=1)
        if ledger != plan or list(last.said[run]) != [event for event, _ in ledger.parts]:
            return "the events of the last step are not the planned ones"
        ((event, count),) = ledger.parts
        if count != 1 or event != Gaussian(sigma, "add_or_remove", sensitivity=1.0):
            return f"{event}: expected one Gaussian event for add_or_remove, relative to the sensitivity"
    # Each of two neighbours has a minimum that is up to 1e-10·N/Λ off, which may cost a tenth of the noise at most.
    left = 2 * GRADIENT_NORM * EXAMPLES / weight
    if not bool((last.calls[0].deviation_R >= 10 * left * stack.noise_multiplier_R).all()):
        return "the noise on the computed minimum does not cover how far it is from the exact one"
    if not torch.equal(last.after.theta_RP, last.calls[0].noisy.to(last.after.theta_RP.dtype)):
        return "the parameters are not the released ones"
    return None


def _p_values(noise_RP: Tensor) -> Iterator[Any]:
    numbers_RP = noise_RP.numpy()
    runs, size = numbers_RP.shape
    yield statistics.chi_square_p((numbers_RP**2).sum(), numbers_RP.size)
    yield statistics.chi_square_p((numbers_RP**2).sum(0), runs)
    yield statistics.chi_square_p((numbers_RP**2).sum(1), size)
    yield statistics.normal_p(numbers_RP.sum(0) / math.sqrt(runs))
    yield statistics.distribution_p(numbers_RP, stats.norm.cdf)
    for axis, distance in ((0, 1), (0, 2), (0, runs // 2), (1, 1), (1, size // 2)):
        yield statistics.correlation_p(*statistics.apart(numbers_RP, distance, axis=axis))


check = ObjectiveNoise()
