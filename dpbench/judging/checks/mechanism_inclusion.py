"""Every example is in a mechanism's batches with the probability of the ledger, independently of all else.

The members of a batch are computed from its gradient. The network is linear, so an example's gradient is its residual
times its prepared input; N such inputs in N dimensions are a basis, so the gradient of a batch determines the weight of
each example. The counts of inclusions are compared with the declared probabilities, for every example, for pairs of
examples, for two steps and for two runs. Deterministic tests: the weight is 1/(N·p) where nothing is clipped; an
example adds at most its `reach`; the ledger's sampling rate is at least p, in every step and in the event of a step at
each of `LEDGER_RATES`. With shuffled batches an example is once in each epoch, and the epochs' orders are independent.
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
from dpbench.events import batches_per_epoch
from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.problems import hyperparameters, linear_network
from dpbench.judging.check_tools.steps import (
    OwnSteps,
    Step,
    can_be_shown,
    preparation,
    shown,
    shuffled,
    views,
    with_plain_loss,
)
from dpbench.judging.check_tools.subject import Check, Subject
from dpbench.step.functional import Network
from dpbench.step.letting_out import watched
from dpbench.step.stages import Weights
from dpbench.verdicts import Verdict

RATES = (0.1, 0.5)
LEDGER_RATES = (1.0, 0.5, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4)
CLASSES = 3
ROUNDING = 1e-6  # float64, and a system of a condition below 1e3
LAST_BITS = 1e-12  # for a rate, which has no rounding errors of a solved system


@dataclass(frozen=True)
class MechanismInclusion(Check):
    """Subject: kind `mechanisms`, private or not, that declares the effect of one example.

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
        mechanism = with_plain_loss(subject.value)  # smoothing and views draw no batches
        if preparation(mechanism) is not None:  # the inputs are not prepared: preparation draws no batches
            mechanism = dataclasses.replace(mechanism, preparation=None)
        generator = torch.Generator().manual_seed(seed)
        seeds = self.seeds // 5 if isinstance(mechanism, OwnSteps) else self.seeds  # calibration is slow
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
            elif not _calls_let_out(mechanism, net, theta_RP[:1], inputs, targets):
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
                members.append(_inside(weight_RN * step.divisors(p_RN), most_R).numpy())
                totals.append(weight_RN.sum(1))
            if shuffled(mechanism):
                wrong = _epoch_faults(np.stack(members, 1), rate)
                if wrong is not None:
                    return self.refuted(subject, wrong)
                found += _epoch_p_values(np.stack(members, 1), rate)
            else:
                found += _p_values(np.stack(members, 1), np.stack(chances, 1))
            found.append(_total_p(torch.stack(totals), most_R))
        evidence = {"batches": len(RATES) * seeds * self.steps, "rates": list(RATES)}
        return self.statistical(subject, found, evidence, "inclusion frequencies and their independence")


def _calls_let_out(mechanism: Any, net: Network, theta_1P: Tensor, inputs: Tensor, targets: Tensor) -> bool:
    """Whether a step passes its noisy value through `let_out`, which can also return the exact value."""
    seen = []
    with watched(lambda *values: (seen.append(True), values[1])[1]):  # type: ignore[func-returns-value]
        next(shown(mechanism, net, theta_1P, hyperparameters([0]), inputs, targets, 1))
    return bool(seen)


def _without_noise(mechanism: Any, *arguments: Any) -> Iterator[Step]:
    """Steps with exact values in place of noisy ones; the noise is drawn all the same. Own steps keep theirs."""
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
    """What is wrong with the ledger's sampling rate of a step in which examples are drawn with q, or None."""
    if not mechanism.private or isinstance(mechanism, OwnSteps):
        return None
    for rate in LEDGER_RATES:
        composition = mechanism.ledger(sampling_rate=rate, noise_multiplier=1.0, steps=1)
        parts = () if composition is None else composition.parts
        charged = getattr(parts[-1][0], "sampling_rate", 1.0) if parts else 1.0
        if charged < rate * (1 - LAST_BITS):
            return f"the ledger has a sampling rate of {charged:g} for a step that draws examples with {rate:g}"
    return None


def _rates_of_step(step: Step, p_RN: Tensor) -> str | None:
    """What is wrong with the sampling rates of the step's events, compared with the inclusion probabilities, or None.

    These are q, which the frequencies confirm, unless the mechanism has its own steps. The events are those for σ = 1.
    """
    if not step.mechanism.private:
        return None
    asked = dataclasses.replace(step.hyper, noise_multiplier_R=torch.ones_like(step.hyper.noise_multiplier_R))
    events = dataclasses.replace(step, hyper=asked).events()
    charged_R = torch.tensor([getattr(event, "sampling_rate", 1.0) for event in events], dtype=torch.float64)
    slack = ROUNDING if isinstance(step.mechanism, OwnSteps) else LAST_BITS
    over_R = p_RN.amax(1) / charged_R
    if bool((over_R <= 1 + slack).all()):
        return None
    worst = int(over_R.argmax())
    return (
        f"the ledger has a sampling rate of {float(charged_R[worst]):g}, and an example is in the batch with"
        f" probability {float(p_RN[worst].max()):g}"
    )


def _noiseless(step: Step) -> Tensor:
    """The gradient (R, P) without its noise; from own steps the noise is subtracted.

    It has the ledger's deviation and comes from the stream NOISE: any other noise would give wrong weights.
    """
    if not isinstance(step.mechanism, OwnSteps):
        return step.gradient_RP
    place = (step.hyper.keys_RS, randomness.NOISE, step.before.step_R)
    normal_RP = randomness.normal(*place, step.gradient_RP.shape[1], dtype=torch.float64)
    return step.gradient_RP - (step.multipliers() * step.reach())[:, None] * normal_RP


def _weights(step: Step) -> tuple[Tensor, Tensor]:
    """The weight of each example in the gradient, and the norm of its gradient: two tensors (R, N).

    The rule's own weights are divided out; flat clipping at a large norm has none.
    """
    seen_RNF = views(step.mechanism, step.before, step.inputs)
    runs = len(seen_RNF)
    matrix_RCF = step.before.theta_RP.reshape(runs, CLASSES, -1)
    residual_RNC = (seen_RNF @ matrix_RCF.mT).softmax(-1) - one_hot(step.targets, CLASSES)
    # gradient (C, F) = Σ_i w_i residual_i ⊗ seen_i, so gradient · seen^-1 has the columns w_i residual_i
    columns_RCN = torch.linalg.solve(seen_RNF, _noiseless(step).reshape(runs, CLASSES, -1), left=False)
    square_RN = residual_RNC.square().sum(-1)
    weight_RN = (columns_RCN.mT * residual_RNC).sum(-1) / square_RN
    norm_RN = square_RN.sqrt() * seen_RNF.norm(dim=-1)
    rule = getattr(step.mechanism, "rule", None)
    if isinstance(rule, Weights) and step.mechanism.private:
        weight_RN = weight_RN / rule.weight(norm_RN, step.clip_norms()[:, None])
    return weight_RN, norm_RN


def _inside(share_RN: Tensor, most_R: Tensor | None) -> Tensor:
    """Which examples are in the batch: at least half of the expected weight, or any weight if it is random."""
    return share_RN > (0.5 if most_R is None else ROUNDING)


def _total_p(total_TR: Tensor, most_R: Tensor | None) -> float:
    """p-value of the sums of random weights, whose mean is 1 and which are at most `most_R`."""
    if most_R is None:
        return 1.0
    off, most = float((total_TR - 1).sum().abs()), float(most_R.max())
    return statistics.bernstein_p(off, float((most_R - 1).sum()) * len(total_TR), most)


def _certain_faults(step: Step, p_RN: Tensor, weight_RN: Tensor, norm_RN: Tensor) -> str | None:
    """What is wrong with certainty, or None."""
    if not bool(step.gradient_RP.isfinite().all()):
        return "the gradient is not finite"
    most_R = step.most_weight()
    divisor_RN = step.divisors(p_RN)
    share_RN = weight_RN * divisor_RN  # 1 where the example is in the batch, 0 where it is not
    inside_RN = _inside(share_RN, most_R)
    if not torch.equal(inside_RN.sum(1), step.seen.drawn_R):
        return f"{inside_RN.sum(1).tolist()} examples are in the sums, {step.seen.drawn_R.tolist()} are reported"
    if most_R is not None:
        over = float((weight_RN.sum(1) / most_R).max())
        return f"the weights of a batch add up to {over:.6g} times their bound" if over > 1 + ROUNDING else None
    off = torch.minimum(share_RN.abs(), (share_RN - 1).abs())
    if float(off.max()) > ROUNDING:
        return f"an example has {float(share_RN.flatten()[off.argmax()]):.6g} times the weight 1/(N·p)"
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


def _in_epochs(members: NDArray[Any], rate: float) -> NDArray[Any]:
    """Members (R, T, N) as (R, epochs, batches, N); an epoch that is not done to its end is left out."""
    runs, steps, examples = members.shape
    batches = batches_per_epoch(rate)
    return members[:, : steps // batches * batches].reshape(runs, -1, batches, examples)


def _epoch_faults(members: NDArray[Any], rate: float) -> str | None:
    """Shuffled batches: an example that is not in one batch of each epoch, or None."""
    times = _in_epochs(members, rate).sum(2)
    if bool((times == 1).all()):
        return None
    worst = int(times.flatten()[np.argmax(np.abs(times - 1))])
    return f"an example is in {worst} batches of an epoch, and the ledger counts on one"


def _epoch_p_values(members: NDArray[Any], rate: float) -> Iterator[Any]:
    """Shuffled batches: counts over epochs, which are independent of each other, against a uniform order."""
    found = _in_epochs(members, rate)
    batches, examples = found.shape[2:]
    first = found[:, :, 0].reshape(-1, examples)
    yield statistics.chernoff_p(first.sum(0), np.full(examples, len(first) / batches), len(first))
    half = examples // 2 * 2
    both = (first[:, 0:half:2] & first[:, 1:half:2]).sum(0)
    chance = (examples / batches - 1) / (examples - 1) / batches
    if chance > 0:
        yield statistics.chernoff_p(both, np.full(len(both), len(first) * chance), len(first))
    for axis in range(2):  # in the same batch of two epochs, of two runs
        moved = np.moveaxis(found, axis, 0)
        pairs = moved.shape[0] // 2 * 2
        same = (moved[0:pairs:2] & moved[1:pairs:2]).any(2).reshape(-1, examples)
        yield statistics.chernoff_p(same.sum(0), np.full(examples, len(same) / batches), len(same))


check = MechanismInclusion()
