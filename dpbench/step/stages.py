"""The stages that mechanisms are built from: Poisson sampling, Gaussian noise, and the updates SGD, momentum and Adam.

Pure functions of tensors, state in and state out. Shapes: R runs, N examples, B batch, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from dpbench import randomness
from dpbench.errors import DpbenchError
from dpbench.events import Sampler
from dpbench.step.letting_out import let_out

NUMERICS = 1
GRID_BITS = -20  # the grid of what is released under `secure`, relative to the noise


@dataclass(frozen=True)
class Batch:
    """One batch for each run: positions in the training set, and which of the B places are filled.

    `index_RB` is int64, `mask_RB` bool. B is the largest batch drawn, at least 1; none is cut. An empty place repeats
    the run's first example, so that no example which was not drawn is ever looked at; 0 where none was drawn at all.
    """

    index_RB: Tensor
    mask_RB: Tensor


class Sample(Protocol):
    """Draws the batches of one step; `sampler` is what the accountant is told."""

    @property
    def sampler(self) -> Sampler: ...

    def __call__(self, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Batch: ...


class Update(Protocol):
    """Turns a gradient into new parameters; `memory` names the tensors (R, P) that it keeps, zero at the start."""

    @property
    def memory(self) -> tuple[str, ...]: ...

    def __call__(
        self, theta_RP: Tensor, memory: dict[str, Tensor], gradient_RP: Tensor, rate_R: Tensor, step_R: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]: ...


@dataclass(frozen=True)
class PoissonSampler:
    """Every example enters every batch independently with probability q (Poisson sampling)."""

    sampler: Sampler = "poisson"

    def __call__(self, keys_RS: Tensor, step_R: Tensor, rate_R: Tensor, examples: int) -> Batch:
        """Draw the batches of one step. `rate_R` is float64 in [0, 1].

        An example is in when its 53 random bits lie below ⌊q·2^53⌋: the probability that runs is q rounded down to
        a multiple of 2^-53, so the accountant, told q, is on the safe side.
        """
        bits_RN = randomness.uniform_bits(keys_RS, randomness.SAMPLE, step_R, examples)
        return filled(bits_RN < torch.floor(rate_R * 2.0**53).long()[:, None])


def filled(chosen_RN: Tensor) -> Batch:
    """The batch of the chosen examples, in the order of the data; places beyond a run's own count are masked."""
    run, example = torch.nonzero(chosen_RN, as_tuple=True)
    place = chosen_RN.cumsum(1)[run, example] - 1
    size = max(1, int(place.max()) + 1) if place.numel() else 1
    index_RB = torch.zeros(chosen_RN.shape[0], size, dtype=torch.int64, device=chosen_RN.device)
    mask_RB = torch.zeros(chosen_RN.shape[0], size, dtype=torch.bool, device=chosen_RN.device)
    index_RB[run, place] = example
    mask_RB[run, place] = True
    return Batch(torch.where(mask_RB, index_RB, index_RB[:, :1]), mask_RB)


def gaussian_noise(
    sum_RP: Tensor,
    deviation_R: Tensor,
    keys_RS: Tensor,
    step_R: Tensor,
    stream: int = randomness.NOISE,
    first: int = 0,
) -> Tensor:
    """`sum_RP` plus independent normal noise of standard deviation `deviation_R` (absolute: σ·C) in every entry.

    A release: it passes `let_out`. The noise is the elements of `stream` from `first` on. From the operating system's
    generator it is added in float64 and the result rounded to a multiple of 2^GRID_BITS·deviation (rounded down to a
    power of two) before anything else sees it: every result lies on one grid, whatever was summed, so its last digits
    tell nothing of the sum's.
    """
    if not randomness.from_system(keys_RS):
        noise_RP = randomness.normal(keys_RS, stream, step_R, sum_RP.shape[1], first, sum_RP.dtype)
        return let_out(sum_RP, sum_RP + deviation_R[:, None].to(sum_RP.dtype) * noise_RP, deviation_R)
    noise_RP = randomness.normal(keys_RS, stream, step_R, sum_RP.shape[1], first, torch.float64)
    deviation_R1 = deviation_R.double()[:, None]
    noisy_RP = sum_RP.double() + deviation_R1 * noise_RP
    grid_R1 = torch.ldexp(torch.ones_like(deviation_R1), torch.frexp(deviation_R1).exponent - 1 + GRID_BITS)
    rounded_RP = torch.where(deviation_R1 > 0, torch.round(noisy_RP / grid_R1) * grid_R1, noisy_RP)
    return let_out(sum_RP, rounded_RP.to(sum_RP.dtype), deviation_R)


class NoiseSchedule(Protocol):
    """How the noise goes with the steps: what runs (`factor`) and what the ledger says of it (`stretches`)."""

    def factor(self, step_R: Tensor, rate_R: Tensor) -> Tensor:
        """What the noise multiplier of each run is times at its step; float64 (R,)."""
        ...

    def stretches(self, rate: float, steps: int) -> Iterator[tuple[float, int]]:
        """The factors of a run of `steps` steps in their order, and for how many steps each holds."""
        ...


@dataclass(frozen=True)
class ConstantNoise:
    """The same noise in every step."""

    def factor(self, step_R: Tensor, rate_R: Tensor) -> Tensor:
        del step_R
        return torch.ones_like(rate_R)

    def stretches(self, rate: float, steps: int) -> Iterator[tuple[float, int]]:
        del rate
        yield 1.0, steps


@dataclass(frozen=True)
class DecayingNoise:
    """σ_t = σ_0·e^(−kt) with t the number of whole epochs done (Yu et al. 2019, exponential decay; k → `decay`).

    An epoch is 1/q steps: step i, counted from 0, belongs to epoch ⌊iq⌋. Code and ledger compute the same product in
    float64; their exponentials may differ in the last place. Raises ValueError for a `decay` that is no finite number,
    0 or more.

    >>> [count for _, count in DecayingNoise(0.1).stretches(0.4, 6)]
    [3, 2, 1]
    """

    decay: float

    def __post_init__(self) -> None:
        number = isinstance(self.decay, int | float) and not isinstance(self.decay, bool)
        if not number or not 0 <= self.decay < math.inf:
            raise ValueError(f"noise_decay = {self.decay!r}: expected a finite number, 0 or more")

    def factor(self, step_R: Tensor, rate_R: Tensor) -> Tensor:
        return torch.exp(-self.decay * torch.floor(step_R.double() * rate_R))

    def stretches(self, rate: float, steps: int) -> Iterator[tuple[float, int]]:
        for epoch, members in groupby(range(steps), lambda step: math.floor(step * rate)):
            yield math.exp(-self.decay * epoch), sum(1 for _ in members)


@dataclass(frozen=True)
class Sgd:
    """Gradient descent, θ ← θ − η·g (`001_*`, Algorithm 1)."""

    memory: tuple[str, ...] = ()

    def __call__(
        self, theta_RP: Tensor, memory: dict[str, Tensor], gradient_RP: Tensor, rate_R: Tensor, step_R: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        del step_R  # every step is alike
        return theta_RP - rate_R[:, None].to(theta_RP.dtype) * gradient_RP, memory


@dataclass(frozen=True)
class Adam:
    """Adam (`001_*`, Algorithm 2): m and u start at 0; ξ is added outside the root.

    The paper's letters: m → first, u → second, ξ → offset. The paper prints no bias correction; `bias_correction`
    divides m and u by 1 − β^t, as Kingma and Ba (2015) do.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    offset: float = 1e-8
    bias_correction: bool = False
    memory: tuple[str, ...] = ("first_RP", "second_RP")

    def __call__(
        self, theta_RP: Tensor, memory: dict[str, Tensor], gradient_RP: Tensor, rate_R: Tensor, step_R: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        first_RP = self.beta1 * memory["first_RP"] + (1 - self.beta1) * gradient_RP
        second_RP = self.beta2 * memory["second_RP"] + (1 - self.beta2) * gradient_RP * gradient_RP
        m_RP, u_RP = first_RP, second_RP
        if self.bias_correction:
            turn_R = (step_R + 1).double()
            m_RP = first_RP / (1 - self.beta1**turn_R)[:, None].to(first_RP.dtype)
            u_RP = second_RP / (1 - self.beta2**turn_R)[:, None].to(first_RP.dtype)
        theta_RP = theta_RP - rate_R[:, None].to(theta_RP.dtype) * m_RP / (u_RP.sqrt() + self.offset)
        return theta_RP, {"first_RP": first_RP, "second_RP": second_RP}


@dataclass(frozen=True)
class Momentum:
    """Heavy ball: v ← βv + g, θ ← θ − ηv, with v = 0 at the start and no dampening (PyTorch's SGD with momentum β).

    Polyak, Some methods of speeding up the convergence of iteration methods, 1964. Raises DpbenchError for a β outside
    [0, 1).

    >>> Momentum(0.9).memory
    ('velocity_RP',)
    """

    beta: float = 0.9
    memory: tuple[str, ...] = ("velocity_RP",)

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise DpbenchError(f"momentum = {self.beta!r}: expected a number from 0 to 1, 1 excluded")

    def __call__(
        self, theta_RP: Tensor, memory: dict[str, Tensor], gradient_RP: Tensor, rate_R: Tensor, step_R: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        del step_R  # every step is alike
        velocity_RP = self.beta * memory["velocity_RP"] + gradient_RP
        return theta_RP - rate_R[:, None].to(theta_RP.dtype) * velocity_RP, {"velocity_RP": velocity_RP}


def named_update(
    optimizer: str,
    *,
    momentum: float = 0.9,
    beta1: float = 0.9,
    beta2: float = 0.999,
    offset: float = 1e-8,
    bias_correction: bool = False,
) -> Update:
    """`sgd`, `momentum` or `adam`; numbers of the others are not looked at. Raises DpbenchError, one sentence.

    >>> named_update("adam", beta2=0.99).memory
    ('first_RP', 'second_RP')
    """
    if optimizer == "sgd":
        return Sgd()
    if optimizer == "momentum":
        return Momentum(momentum)
    if optimizer != "adam":
        raise DpbenchError(f"optimizer = {optimizer!r}: expected one of sgd, momentum, adam")
    for name, value in (("beta1", beta1), ("beta2", beta2)):
        if not 0 <= value < 1:
            raise DpbenchError(f"{name} = {value!r}: expected a number from 0 to 1, 1 excluded")
    if not offset > 0:
        raise DpbenchError(f"offset = {offset!r}: expected a number above 0")
    return Adam(beta1, beta2, offset, bias_correction)
