"""The interfaces of a pipeline's stages, from sampling to the average of the parameters; and the noise itself.

The stages are in folders, one file each: samplers/, preparations/, augmentations/, smoothings/, noise/, updates/ and
averages/ here, and clipping/rules/. They are pure functions of tensors. A stage may have `check(setting)`, which raises
DpbenchError if it cannot work with the numbers of a run. Shapes: R runs, N examples, B batch, K views, P parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.events import Event, Sampler
from dpbench.step.clipped_sum import Clipped, Draw, Examples, Weight
from dpbench.step.functional import Network
from dpbench.step.letting_out import let_out

NUMERICS = 1
GRID_BITS = -20  # the grid of noisy values under `secure`, relative to the noise


@dataclass(frozen=True)
class Batch:
    """One batch for each run: positions in the training set, and which of the B places are filled.

    `index_RB` is int64, `mask_RB` bool. B is the size of the largest batch or more, at least 1; no batch is truncated.
    An empty place repeats the run's first drawn example, so that no other example is read; it is 0 if none was drawn.
    """

    index_RB: Tensor
    mask_RB: Tensor


class Sampling(Protocol):
    """Draws the batches of one step; `sampler` is its name in the events.

    It may have a method `chosen` with the same arguments that gives which examples are drawn, bool (R, N). Then
    training on a GPU computes the sizes of many batches ahead (`most_places`) and passes each as `places`, so that no
    step waits for the size of its batch.
    """

    @property
    def sampler(self) -> Sampler: ...

    def __call__(self, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Batch: ...


class Preparation(Protocol):
    """A transform of the inputs before the network, with statistics of the data that are released once, with noise.

    `secure = True` says that all its noise comes from `gaussian_noise`.
    """

    @property
    def releases(self) -> tuple[tuple[Event, int], ...]:
        """The events of `start`, each with its count."""
        ...

    def start(self, keys_RS: Tensor, inputs: Tensor) -> dict[str, Tensor]:
        """The released statistics of the training inputs (N, ...): tensors (R, ...) for the state's memory."""
        ...

    def __call__(self, memory: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """The prepared inputs, (R, B, ...) to (R, B, ...)."""
        ...


class Augmentation(Protocol):
    """Replaces each record by K views of it; its loss is their mean loss, before its gradient is taken."""

    def __call__(self, draw: Draw, inputs: Tensor) -> Tensor:
        """The views of the drawn records, (R, B, ...) to (R, B, K, ...).

        A view depends on its own record and on random numbers of (seed, step, position in the training set) alone, not
        on other records, on the batch or on the place in it.
        """
        ...


class Smoothing(Protocol):
    """Replaces the loss of each record by its mean over K shifted parameters, before its gradient is taken."""

    def shifts(
        self, draw: Draw, learning_rate_R: Tensor, deviation_R: Tensor, size: int, dtype: torch.dtype
    ) -> Tensor | None:
        """The shifts of the parameters of each run in this step, (R, K, P) of `dtype`; None: the loss is unchanged.

        They depend on nothing in the data but the number of records, which is public. `deviation_R` is that of this
        step's noise on the sum, σC, and `learning_rate_R` the learning rate, both float64; `size` is P.
        """
        ...


class Rule(Protocol):
    """How much one record may add to the sum of a step, as an event, and by what the sum is divided.

    A rule is a `Weights` or an `OwnSum`.
    """

    def event(self, rate: float, noise_multiplier: float, sampler: Sampler) -> Event:
        """The event of one step whose noise has the deviation `noise_multiplier` times the clip norm."""
        ...

    def divisor(self, rate_R: Tensor, examples: int) -> Tensor | None:
        """The divisor of the sum, float64 (R,); None for the expected batch size qN."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """Facts for the record, as JSON values; `normalisation` in words."""
        ...


@runtime_checkable
class Weights(Rule, Protocol):
    """A rule that multiplies each gradient by a function of its norm; any engine computes the sum.

    `scales_every_gradient = True` says that small gradients are not left alone: the sum then estimates the mean of the
    weighted gradients, whatever the clip norm (`scales_every_gradient`).
    """

    @property
    def weight(self) -> Weight:
        """The factor for a gradient of some norm; factor·norm is at most the clip norm."""
        ...


@runtime_checkable
class AdaptiveClipping(Weights, Protocol):
    """A rule with weights whose clip norm moves with a count that every step releases together with the sum.

    Sum and count are one release with the noise multiplier of the step, so the gradient alone has a larger one. The
    clip norm of a step is the run's times `clip_scale_R` of the state's memory, which is 1 at the start.
    """

    def count(self, norm_RB: Tensor, clip_R: Tensor, mask_RB: Tensor) -> Tensor:
        """The count, float64 (R,), which one record changes by ½ at most."""
        ...

    def count_share(self, multiplier_R: Tensor, expected_R: Tensor) -> Tensor:
        """The step's noise multiplier over that of the count alone: float64 (R,), above 0 and below 1.

        `expected_R` is the expected batch size.
        """
        ...

    def moved(self, scale_R: Tensor, below_R: Tensor) -> Tensor:
        """The next `clip_scale_R`, from this one and from ½ plus the noisy count over the expected batch size."""
        ...


def scales_every_gradient(rule: object) -> bool:
    """Whether a rule changes gradients of every norm, so that no clip norm makes its sum that without clipping.

    >>> from dpbench.clipping.rules import automatic, flat
    >>> scales_every_gradient(automatic.rule()), scales_every_gradient(flat.rule())
    (True, False)
    """
    return bool(getattr(rule, "scales_every_gradient", False))


@runtime_checkable
class OwnSum(Rule, Protocol):
    """A rule that computes its sum itself, without an engine.

    On a GPU it makes the step wait where it looks at values; where `examples.looks` is False it may make the sum NaN
    in place of that. A rule with microbatches may have `group_sizes`, by which their sizes are known ahead
    (`most_groups`).
    """

    def summed(
        self, draw: Draw, net: Network, theta_RP: Tensor, examples: Examples, clip_R: Tensor, chunk: int
    ) -> Clipped:
        """The sum of one step, `chunk` places of the batch at a time."""
        ...


class Noise(Protocol):
    """How the noise depends on the step: for training (`factor`) and for the ledger (`stretches`)."""

    def factor(self, step_R: Tensor, rate_R: Tensor) -> Tensor:
        """The factor of the noise multiplier of each run at its step; float64 (R,)."""
        ...

    def stretches(self, rate: float, steps: int) -> Iterator[tuple[float, int]]:
        """The factors of a run of `steps` steps in order, each with its number of steps."""
        ...


class Update(Protocol):
    """Computes new parameters from a gradient, for one run; the pipeline maps it over the runs of a stack.

    `memory` names the tensors (P,) that it keeps, zero at the start. `rate` is the learning rate, in the dtype of the
    parameters, and `step` counts from 0, float64; both have shape ().
    """

    @property
    def memory(self) -> tuple[str, ...]: ...

    def __call__(
        self, theta_P: Tensor, memory: Mapping[str, Tensor], gradient_P: Tensor, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]: ...


class Average(Protocol):
    """An average of the parameters along training, which is evaluated in place of the last ones."""

    def __call__(self, average_RP: Tensor, theta_RP: Tensor, step_R: Tensor) -> Tensor:
        """The average with the new parameters (R, P); `step_R` counts the steps before, and `average_RP` is theirs."""
        ...


def filled(chosen_RN: Tensor, places: int | None = None) -> Batch:
    """The batch of the chosen examples, in the order of the data; places beyond a run's count are masked.

    With `places`, which no run's count exceeds, B is that number, and nothing waits for the device. A count above it is
    an error of torch, so no example is left out.

    >>> filled(torch.tensor([[False, True, True], [True, False, False]]), 3).index_RB.tolist()
    [[1, 2, 1], [0, 0, 0]]
    """
    if places is not None:
        runs, examples = chosen_RN.shape
        count_RN = chosen_RN.cumsum(1)
        # Element 0 takes all that is not chosen.
        at_RN = torch.where(chosen_RN, count_RN, torch.zeros_like(count_RN))
        example_RN = torch.arange(examples, device=chosen_RN.device).expand(runs, -1)
        index_RB = example_RN.new_zeros(runs, places + 1).scatter(1, at_RN, example_RN)[:, 1:]
        mask_RB = torch.arange(places, device=chosen_RN.device) < count_RN[:, -1:]
        return Batch(torch.where(mask_RB, index_RB, index_RB[:, :1]), mask_RB)
    run, example = torch.nonzero(chosen_RN, as_tuple=True)
    place = chosen_RN.cumsum(1)[run, example] - 1
    size = max(1, int(place.max()) + 1) if place.numel() else 1
    index_RB = torch.zeros(chosen_RN.shape[0], size, dtype=torch.int64, device=chosen_RN.device)
    mask_RB = torch.zeros(chosen_RN.shape[0], size, dtype=torch.bool, device=chosen_RN.device)
    index_RB[run, place] = example
    mask_RB[run, place] = True
    return Batch(torch.where(mask_RB, index_RB, index_RB[:, :1]), mask_RB)


def most_places(
    sample: Sampling, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int, steps: int
) -> list[int] | None:
    """Places for the batches of the next so many steps, from the same draws; None if the sampler has no `chosen`.

    The size of the largest batch of the stack, rounded up by less than an eighth (to a multiple of 8 at least), so that
    few shapes occur. Waits for the device once.

    >>> from dpbench.step.samplers.poisson import sampler
    >>> keys, rate = randomness.table([7]), torch.full((1,), 0.5, dtype=torch.float64)
    >>> most_places(sampler(), keys, torch.zeros(1, dtype=torch.int64), rate, 100, 2)
    [56, 48]
    """
    chosen = getattr(sample, "chosen", None)
    if chosen is None or randomness.from_system(keys_RS):  # those numbers do not come twice
        return None
    counts = [chosen(keys_RS, step_R + ahead, rate_R, examples).sum(1).max() for ahead in range(steps)]
    return [_rounded_up(count) for count in torch.stack(counts).tolist()]


def most_groups(
    rule: object, sample: Sampling, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int, steps: int
) -> list[tuple[int, int]] | list[None]:
    """`Draw.groups` of the next so many steps, members rounded up to fours; None each for a rule without groups.

    From the same draws. Waits for the device once. The sampler has `chosen`.
    """
    sizes, chosen = getattr(rule, "group_sizes", None), getattr(sample, "chosen", None)
    if sizes is None or chosen is None:
        return [None] * steps
    each = [
        torch.stack(sizes(keys_RS, at_R, rate_R, chosen(keys_RS, at_R, rate_R, examples)))
        for at_R in (step_R + ahead for ahead in range(steps))
    ]
    return [(groups, max(1, -(-members // 4)) * 4) for groups, members in torch.stack(each).tolist()]


def _rounded_up(count: int) -> int:
    grid = max(8, 1 << max(0, count.bit_length() - 4))
    return max(1, -(-count // grid)) * grid


def gaussian_noise(
    sum_RP: Tensor,
    deviation_R: Tensor,
    keys_RS: Tensor,
    step_R: Tensor,
    stream: int = randomness.NOISE,
    first: int = 0,
    runs: Sequence[int] | None = None,
) -> Tensor:
    """`sum_RP` plus independent normal noise of standard deviation `deviation_R` (absolute: σ·C) in every entry.

    The result passes `let_out`, with `runs`. The noise is the elements of `stream` from `first` on. With the operating
    system's generator (no keys) the noise is added in float64, and the result is rounded to a multiple of
    2^GRID_BITS·deviation (rounded down to a power of two): all results lie on one grid, so their last digits show
    nothing of the sum.
    """
    if not randomness.from_system(keys_RS):
        noise_RP = randomness.normal(keys_RS, stream, step_R, sum_RP.shape[1], first, sum_RP.dtype)
        return let_out(sum_RP, noise_RP.mul_(deviation_R[:, None].to(sum_RP.dtype)).add_(sum_RP), deviation_R, runs)
    noise_RP = randomness.normal(keys_RS, stream, step_R, sum_RP.shape[1], first, torch.float64)
    deviation_R1 = deviation_R.double()[:, None]
    noisy_RP = sum_RP.double() + deviation_R1 * noise_RP
    grid_R1 = torch.ldexp(torch.ones_like(deviation_R1), torch.frexp(deviation_R1).exponent - 1 + GRID_BITS)
    rounded_RP = torch.where(deviation_R1 > 0, torch.round(noisy_RP / grid_R1) * grid_R1, noisy_RP)
    return let_out(sum_RP, rounded_RP.to(sum_RP.dtype), deviation_R, runs)
