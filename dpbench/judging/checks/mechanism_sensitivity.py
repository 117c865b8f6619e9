"""One added example moves the sum of a step, without its noise, by at most the sensitivity of the event.

With q = 1 every example is in the batch, so the batches with and without the added example are neighbours. The sum is
the gradient of the update times qN; the division by qN and the scale of a smoothing take N as public, and the released
values of a preparation are the same on both sides. A smoothed loss has the shifts of a step with noise. Δ is the
sensitivity that the event claims for clip norm C: Cσ over the noise multiplier of the event.

- An event of fixed sensitivity: by at most Δ, for adversarial examples. Deterministic. The example is the last of the
  data; and, if the sampler can be replaced, any of them, drawn or not, with the draws of the others unchanged: who
  shares a group with whom must not depend on it.
- An event of random sensitivity with r projections: an example that is always clipped moves the sum by Δ·Z, where
  r/Z² has the chi-square law with r degrees of freedom, drawn anew in every step and run; no example moves it further.
  Z is independent of the noise of the step.

In both cases the noise does not depend on the data: it is the same with an added example, and with none drawn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from dpbench.judging.check_tools import statistics
from dpbench.judging.check_tools.problems import batch, fitting, has_field, hyperparameters, small_network
from dpbench.judging.check_tools.steps import (
    has_event,
    random_projections,
    sample_event,
    shown,
    shuffled,
    smoothing,
    with_plain_loss,
    with_public_size,
)
from dpbench.judging.check_tools.subject import Check, Subject
from dpbench.judging.checks.clipping_sensitivity import rounding
from dpbench.step.functional import Network
from dpbench.step.letting_out import watched
from dpbench.step.mechanism import Hyperparameters
from dpbench.step.stages import Batch, filled
from dpbench.verdicts import Verdict

DATA = "the noise of a step changes with an added example, or with none drawn"


@dataclass(frozen=True)
class MechanismSensitivity(Check):
    """Subject: kind `mechanisms`, private, with one event for each step, for add-or-remove neighbours.

    >>> check(Subject.of("mechanisms", "noisy_sgd"), seed=0).verdict
    'holds'
    """

    kind = "mechanisms"
    source = (
        "bu2020, Algorithm 1 and Section 2: neighbours differ in one example, the clipped sum has sensitivity R;"
        " jl2021, Lemma 4.3: an example moves it by at most R/sqrt(X/r), X of the chi-square law with r degrees"
    )
    false_alarm: float = statistics.FALSE_ALARM
    rounds: int = 12
    examples: int = 9
    runs: int = 3
    seeds: int = 100
    steps: int = 20

    def looks_at(self, value: Any) -> bool:
        # With q = 1 a shuffled batch has all examples: one that is not there stands for one without effect.
        if not value.private or not has_event(value):
            return False
        return shuffled(value) or bool(sample_event(value).adjacency == "add_or_remove")

    def __call__(self, subject: Subject, *, seed: int) -> Verdict:
        """Add an example to `rounds` data sets, or one to a data set in `seeds`·`steps` steps."""
        projections = random_projections(subject.value)
        if projections is not None:
            return self._random(subject, projections, seed)
        generator = torch.Generator().manual_seed(seed)
        net = fitting(subject.value, small_network(classes=2))
        worst, wrong = 0.0, None
        single, many = rounding(torch.float32, self.examples + 1, net.size)
        limit = 1 + single + 2 * many
        for turn in range(self.rounds):
            theta_RP = torch.randn(self.runs, net.size, generator=generator)
            clip_R = 10 ** (2 * torch.rand(self.runs, generator=generator, dtype=torch.float64) - 2)
            base = batch(generator, 1, self.examples, classes=2)
            inputs, targets, added, label = _neighbours(base.inputs[0].float(), base.targets[0], turn % 4)
            numbers = range(seed, seed + self.runs)
            stack = hyperparameters(numbers, 1.0, clip_norm=clip_R.tolist(), noise_multiplier=0.0)
            mechanism = with_public_size(subject.value, len(targets))
            before_TRP = _exact(mechanism, net, theta_RP, stack, (inputs, targets), (inputs, targets), 1)
            more = torch.cat([inputs, added]), torch.cat([targets, label])
            change_R = (_exact(mechanism, net, theta_RP, stack, more, (inputs, targets), 1) - before_TRP)[0]
            ratio = float(change_R.norm(dim=1).max())
            worst = max(worst, ratio)
            if not ratio <= limit:
                wrong = wrong or f"one example more changes the sum by {ratio:.7g}·Δ; expected at most {limit:.7g}·Δ"
            drawn = _largest_by_draw(mechanism, net, theta_RP, stack, more)
            worst = max(worst, drawn)
            if not drawn <= limit:
                what = "that is drawn, the others' draws being the same,"
                wrong = wrong or f"an example {what} changes the sum by {drawn:.7g}·Δ; expected at most {limit:.7g}·Δ"
            wrong = wrong or _noise_of_data(mechanism, net, theta_RP, stack, more, (inputs, targets))
        evidence = {"largest_change_over_sensitivity": worst, "rounds": self.rounds}
        holds = "one example more changes the noise-free sum by at most what the event says, up to rounding"
        return self.certain(subject, wrong, evidence, holds)

    def _random(self, subject: Subject, projections: int, seed: int) -> Verdict:
        *found, noise_TRP, direction_P, wrong = self._chi_squares(subject.value, projections, seed)
        if wrong is not None:
            return self.refuted(subject, wrong)
        if not all(np.isfinite(values).all() for values in found):
            return self.refuted(subject, "a sum is not finite")
        long_TR, short_TR = found
        along_TR = noise_TRP @ direction_P
        p_values = [*_p_values(long_TR, short_TR, projections), *_unlike(long_TR, along_TR, projections)]
        evidence = {"draws": long_TR.size, "mean_over_stated": float(long_TR.mean()) / projections}
        about = "how far one example moves the noise-free sum against the random sensitivity of the event"
        return self.statistical(subject, p_values, evidence, about)

    def _chi_squares(self, mechanism: Any, projections: int, seed: int) -> tuple[Any, ...]:
        """r·(Δ/change)² in every step and run (T, R): for an example that is always clipped, and for one near C.

        Then the noise of these steps (T, R, P), in units of its deviation, the example's direction (P,), and what is
        wrong with the noise, or None.

        C is 1e-5 of the norm of the first: it stays unclipped only where Z > 1e5, with probability below 1e-5 even for
        r = 1, far less than the tests can see.
        """
        generator = torch.Generator().manual_seed(seed)
        net = small_network(classes=2)
        data = batch(generator, 1, self.examples, classes=2, filled=2.0)
        inputs, targets = data.inputs[0].tanh(), data.targets[0]
        theta_RP = torch.randn(net.size, generator=generator, dtype=torch.float64).repeat(self.seeds, 1)

        mechanism = with_public_size(mechanism, self.examples - 1)

        def totals(clip: float, number: int, noise: float = 0.0, of: Any = mechanism) -> Tensor:
            """The sums (T, R, P) of the first `number` examples, in units of Δ; noise-free as a rule."""
            stack = hyperparameters(range(seed, seed + self.seeds), 1.0, clip_norm=clip, noise_multiplier=noise)
            part, begun_on = (inputs[:number], targets[:number]), (inputs[1:], targets[1:])
            return (_sums if noise else _exact)(of, net, theta_RP, stack, part, begun_on, self.steps)

        whole, found, plain = self.examples, [], with_plain_loss(mechanism)
        # Clipped with probability below 1e-6.
        alone = (totals(1e6, whole, of=plain) - totals(1e6, whole - 1, of=plain))[0, 0]
        norm = 1e6 * float(alone.norm()) / sample_event(mechanism).noise_multiplier
        for clip in (1e-5 * norm, norm):
            quiet = [totals(clip, number) for number in (whole, whole - 1)]
            change_TR = (quiet[0] - quiet[1]).norm(dim=2)
            found.append((projections / change_TR.square()).numpy())
        noises = [totals(norm, number, 1.0) - sums for number, sums in zip((whole, whole - 1), quiet, strict=True)]
        wrong = None if torch.allclose(noises[0], noises[1], rtol=0, atol=1e-6) else DATA
        loud = hyperparameters(range(seed, seed + self.seeds), 1.0, clip_norm=norm)
        steps = shown(mechanism, net, theta_RP, loud, inputs, targets, self.steps)
        deviation_TR = torch.stack([step.multipliers() for step in steps])
        return *found, (noises[0] / deviation_TR[:, :, None]).numpy(), (alone / alone.norm()).numpy(), wrong


def _sums(
    mechanism: Any,
    net: Network,
    theta_RP: Tensor,
    stack: Hyperparameters,
    data: tuple[Tensor, Tensor],
    begun_on: tuple[Tensor, Tensor],
    steps: int,
) -> Tensor:
    """The sums (T, R, P) of `steps` steps with q = 1, in units of Δ."""
    taken = shown(mechanism, net, theta_RP, stack, *data, steps, begun_on=begun_on)
    return torch.stack([step.gradient_RP.double() / step.reach()[:, None] for step in taken])


def _exact(mechanism: Any, net: Network, theta_RP: Tensor, stack: Hyperparameters, *rest: Any) -> Tensor:
    """The same without noise; `stack` has none. A smoothing is that of noise, whose exact values are let out."""
    if smoothing(mechanism) is None:
        return _sums(mechanism, net, theta_RP, stack, *rest)
    with watched(lambda exact, *_: exact):
        return _sums(mechanism, net, theta_RP, _loud(stack), *rest)


def _loud(stack: Hyperparameters) -> Hyperparameters:
    return dataclasses.replace(stack, noise_multiplier_R=torch.ones_like(stack.noise_multiplier_R))


@dataclass(frozen=True)
class _Forced:
    """A sampler that draws the same examples (N,) every time."""

    sampler: Any
    drawn_N: Tensor

    def __call__(self, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Batch:
        del step_R, rate_R, examples  # none of them matters
        return filled(self.drawn_N.expand(len(keys_RS), -1))


def _forced(mechanism: Any, drawn_N: Tensor) -> Any:
    return dataclasses.replace(mechanism, sample=_Forced(mechanism.sample.sampler, drawn_N))


def _largest_by_draw(
    mechanism: Any, net: Network, theta_RP: Tensor, stack: Hyperparameters, data: tuple[Tensor, Tensor]
) -> float:
    """How far the sum of one step moves, in units of Δ, if one example is drawn or not; the largest value."""
    if not has_field(mechanism, "sample"):
        return 0.0
    whole_N = torch.ones(len(data[1]), dtype=torch.bool)
    all_but_one_NN = ~torch.eye(len(data[1]), dtype=torch.bool)
    sums = [
        _exact(_forced(mechanism, drawn_N), net, theta_RP, stack, data, data, 1)[0]
        for drawn_N in (whole_N, *all_but_one_NN)
    ]
    return float((torch.stack(sums[1:]) - sums[0]).norm(dim=2).max())


def _noise_of_data(
    mechanism: Any,
    net: Network,
    theta_RP: Tensor,
    stack: Hyperparameters,
    data: tuple[Tensor, Tensor],
    less: tuple[Tensor, Tensor],
) -> str | None:
    """A sentence if the noise of the first step changes with an added example, or with none drawn; else None.

    The tolerance 1e-4 allows for rounding in float32, of sums and noise of a few Δ.
    """
    cases = [(mechanism, data), (mechanism, less)]
    if has_field(mechanism, "sample"):
        cases.append((_forced(mechanism, torch.zeros(len(data[1]), dtype=torch.bool)), data))
    noises = [
        _sums(one, net, theta_RP, _loud(stack), part, less, 1) - _exact(one, net, theta_RP, stack, part, less, 1)
        for one, part in cases
    ]
    return None if all(torch.allclose(noise, noises[0], rtol=0, atol=1e-4) for noise in noises) else DATA


def _unlike(long_TR: NDArray[Any], along_TR: NDArray[Any], projections: int) -> Iterator[Any]:
    """Independence of the chi-squares and of the noise along the example's direction: of its size and of its sign."""
    normal_TR = stats.norm.ppf(np.clip(stats.chi2(projections).cdf(long_TR), 1e-300, 1 - 1e-16))
    yield statistics.correlation_p(normal_TR, along_TR)
    size_TR = stats.norm.ppf(np.clip(stats.chi2(1).cdf(along_TR**2), 1e-300, 1 - 1e-16))
    yield statistics.correlation_p(normal_TR, size_TR)


def _p_values(long_TR: NDArray[Any], short_TR: NDArray[Any], projections: int) -> Iterator[Any]:
    """The law and the independence of the long example's chi-squares, over steps and runs; a bound for the other."""
    law: Callable[[Any], Any] = stats.chi2(projections).cdf
    yield statistics.distribution_p(long_TR, law)
    yield statistics.chi_square_p(long_TR.sum(), long_TR.size * projections)
    yield statistics.chi_square_p(long_TR.sum(0), len(long_TR) * projections)
    # No example moves the sum further: its r·(Δ/change)² is never less than the chi-square, so neither is their sum.
    yield stats.chi2.cdf(short_TR.sum(), short_TR.size * projections)
    normal_TR = stats.norm.ppf(np.clip(law(long_TR), 1e-300, 1 - 1e-16))
    for distance in (1, 2, len(normal_TR) // 2):
        yield statistics.correlation_p(*statistics.apart(normal_TR, distance, axis=0))
    for distance in (1, 2, normal_TR.shape[1] // 2):
        yield statistics.correlation_p(*statistics.apart(normal_TR, distance, axis=1))


def _neighbours(inputs: Tensor, targets: Tensor, kind: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A data set and the example that is added to it, both as inputs and targets."""
    if kind < 2:
        return inputs[1:], targets[1:], inputs[:1] * 1e6**kind, targets[:1]
    # Of two targets for one input, the less likely has the larger, opposite gradient: the two kinds try both orders.
    lone, target = inputs[:1].clamp(-1, 1), torch.tensor([kind - 2])
    return lone, target, lone, 1 - target


check = MechanismSensitivity()
