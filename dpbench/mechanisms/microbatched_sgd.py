"""DP-SGD with microbatches (TensorFlow Privacy; the rival "Microbatching" of `004_*`, Section 1.1), rightly accounted.

A step draws a Poisson sample with rate q. Every drawn example falls into one of m = ⌈qN / microbatch_size⌉
microbatches, each with probability 1/m, by a number of its own. The mean gradient of every microbatch with members is
clipped to norm C, and what is released is the sum S of these clipped means plus N(0, σ²C²).

| here | meaning |
| --- | --- |
| microbatch_size | b, the expected number of examples in a microbatch (up to rounding qN/b up) |
| clip_norm | C, of the *mean* gradient of a microbatch, as in TensorFlow Privacy |
| noise_multiplier | σ relative to C |

**Sensitivity.** Let D' = D plus one record x. Draws and microbatches of D's records do not depend on x. Fix them, call
that A, and fix x's own microbatch j; it is uniform and independent of A and of whether x is drawn. Without x the sum is
s. With x only microbatch j changes: its clipped mean moves from one point of the ball of radius C to another (from the
centre if it was empty), so the sum is s + d with |d| ≤ 2C. Given (A, j) the release is N(s, σ²C²) under D and
(1−q)·N(s, σ²C²) + q·N(s+d, σ²C²) under D'. For |d| = 2C that is the pair of a sampled Gaussian whose noise multiplier
is σ/2, and a shorter d gives a pair that post-processing of it makes. (A, j) has the same law under D and D'. So, by
joint convexity of the hockey-stick divergence in both directions, the mixture over (A, j) is dominated as well:
the event is SampledGaussian(q, σ/2). Later steps may depend on earlier releases: the argument holds given these.

2C is needed: let all other records have the gradient v, |v| > C, and x the gradient −t·v with t large. Every microbatch
with x in it turns from Cv/|v| to −Cv/|v|. (With q = 1 and m = 1 that attains the pair; in general it only dominates,
as s varies with A and a microbatch may have no other member.) `variant: as_printed` accounts with C, as whoever puts
the noise multiplier of microbatched training into an accountant as it stands; the contract on sensitivity refutes it.
`004_*` says that the noise must grow by the size L of the microbatches: in its units, the mean over the batch, C/B
becomes CL/B; the truth is 2CL/B.

**What it estimates.** Given that a microbatch has k ≥ 1 members, they are k of the N records chosen uniformly, so where
nothing is clipped its mean gradient has the full mean gradient ḡ as its expectation, whatever k. A microbatch has
members with probability 1 − (1 − q/m)^N. So S divided by M = m·(1 − (1 − q/m)^N), the expected number of microbatches
with members, is unbiased for ḡ; TensorFlow Privacy divides by m. M depends on q and N alone and divides sum and noise
after the release. N is taken as public, as everywhere here, and m with it.
Dividing each microbatch's sum by b instead of by its number of members would change the estimate's variance but not the
sensitivity, since the clip comes after it; the mean is what is printed.

With microbatch_size 1 two examples may still share a microbatch, so it would not be DP-SGD, and would pay 2C for
nothing: it is refused, `noisy_sgd` is that mechanism.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from dpbench.clipping._microbatch import Microbatches
from dpbench.errors import DpbenchError
from dpbench.events import Composition, Event, SampledGaussian, Sampler
from dpbench.step.functional import Network
from dpbench.step.pipeline import (
    Hyperparameters,
    Observed,
    Pipeline,
    Release,
    Setting,
    State,
    clipped_release,
    plain_sum,
)
from dpbench.step.stages import PoissonSampler, Sample, Sgd, Update

NUMERICS = 1

Variant = Literal["proven", "as_printed"]


def moved_release(rate: float, noise_multiplier: float, sampler: Sampler) -> Event:
    """The event of a sum that one example moves by at most two clip norms."""
    return SampledGaussian(rate, noise_multiplier / 2, "add_or_remove", sampler)


@dataclass(frozen=True)
class _Times:
    """An update that first multiplies the gradient by a number of each run."""

    update: Update
    factor_R: Tensor

    @property
    def memory(self) -> tuple[str, ...]:
        return self.update.memory

    def __call__(
        self, theta_RP: Tensor, memory: dict[str, Tensor], gradient_RP: Tensor, rate_R: Tensor, step_R: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        factor_R1 = self.factor_R[:, None].to(gradient_RP.dtype)
        return self.update(theta_RP, memory, gradient_RP * factor_R1, rate_R, step_R)


@dataclass(frozen=True)
class MicrobatchedSgd:
    """The mechanism; see the module. `update` gets the noisy sum divided by `normaliser`."""

    microbatch_size: int
    variant: Variant = "proven"
    update: Update = field(default_factory=Sgd)
    sample: Sample = field(default_factory=PoissonSampler)

    @property
    def private(self) -> bool:
        return True

    @property
    def spends_budget(self) -> bool:
        return False

    @property
    def secure(self) -> bool:
        """All its noise is that of a pipeline."""
        return True

    @property
    def release(self) -> Release:
        """The event of one step, by the variant."""
        return moved_release if self.variant == "proven" else clipped_release

    @property
    def clipped_sum(self) -> Microbatches:
        """The engine of a single microbatch, for a model to be tried on."""
        return Microbatches(torch.ones(1, dtype=torch.int64))

    def check(self, setting: Setting) -> None:
        """Raises DpbenchError where a microbatch would be larger than the expected batch."""
        expected = setting.sampling_rate * setting.examples
        if self.microbatch_size > expected:
            raise DpbenchError(
                f"microbatch_size = {self.microbatch_size}: larger than the expected batch of {expected:g}; expected"
                " a whole number from 2 to that"
            )

    def count(self, rate_R: Tensor, examples: int) -> Tensor:
        """m, the number of microbatches of each run, int64 (R,); 10^-9 keeps a rounded qN from counting as more."""
        return torch.ceil(rate_R * examples / self.microbatch_size - 1e-9).clamp_min(1).long()

    def normaliser(self, rate_R: Tensor, examples: int) -> Tensor:
        """M = m·(1 − (1 − q/m)^N), what the noisy sum is divided by, float64 (R,).

        >>> mechanism(microbatch_size=2).normaliser(torch.tensor([1.0]).double(), 2).item()
        1.0
        """
        count_R = self.count(rate_R, examples).double()
        return -count_R * torch.expm1(examples * torch.log1p(-rate_R / count_R))

    def most_weight(self, hyper: Hyperparameters, examples: int) -> Tensor:
        """m/M (R,): the weights of the gradients in the estimate, 1/(kM) in a microbatch of k, add up to that at most.

        They are random, and so is the estimate even where every example is drawn.
        """
        rate_R = hyper.sampling_rate_R
        return self.count(rate_R, examples) / self.normaliser(rate_R, examples)

    def ledger(self, *, sampling_rate: float, noise_multiplier: float | None, steps: int) -> Composition | None:
        return self._steps().ledger(sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, steps=steps)

    def released(self, state: State, hyper: Hyperparameters) -> tuple[Composition | None, ...]:
        return self._steps().released(state, hyper)

    def facts(self) -> Mapping[str, Any]:
        return {
            **self._steps().facts(),
            "normalisation": "expected number of microbatches with members",
            "sensitivity": "twice the clip norm" if self.variant == "proven" else "clip norm, which is wrong",
        }

    def start(self, theta_RP: Tensor, hyper: Hyperparameters, inputs: Tensor, targets: Tensor) -> State:
        return self._steps().start(theta_RP, hyper, inputs, targets)

    def view(self, state: State, inputs: Tensor) -> Tensor | None:
        del state, inputs  # the network sees the inputs as they are
        return None

    def step(
        self, net: Network, state: State, hyper: Hyperparameters, inputs: Tensor, targets: Tensor, chunk: int
    ) -> tuple[State, Observed]:
        rate_R, examples = hyper.sampling_rate_R, len(targets)
        factor_R = rate_R * examples / self.normaliser(rate_R, examples)
        engine = Microbatches(self.count(rate_R, examples))
        return self._steps(engine, factor_R).step(net, state, hyper, inputs, targets, chunk)

    def _steps(self, engine: Microbatches | None = None, factor_R: Tensor | None = None) -> Pipeline:
        """The pipeline of these steps; without an engine only to be asked about its ledger and its memory."""
        return Pipeline(
            clipped_sum=engine or plain_sum,
            update=self.update if factor_R is None else _Times(self.update, factor_R),
            gaussian=True,
            sample=self.sample,
            release=self.release,
        )


def mechanism(*, microbatch_size: int = 5, variant: Variant = "proven") -> MicrobatchedSgd:
    """`microbatch_size` is 2 or more; `variant` chooses the sensitivity that is accounted for.

    >>> mechanism().ledger(sampling_rate=0.1, noise_multiplier=2.0, steps=3).parts[0][0].noise_multiplier
    1.0
    """
    whole = isinstance(microbatch_size, int) and not isinstance(microbatch_size, bool)
    if not whole or microbatch_size < 2:
        raise DpbenchError(
            f"microbatch_size = {microbatch_size!r}: expected a whole number, 2 or more; noisy_sgd clips every example"
        )
    if variant not in get_args(Variant):
        raise DpbenchError(f"variant = {variant!r}: expected one of {', '.join(get_args(Variant))}")
    return MicrobatchedSgd(microbatch_size, variant)
