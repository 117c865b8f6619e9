"""Noise that decays exponentially with the epochs (Yu, Liu, Pu, Gursoy and Truex, S&P 2019): σ_t = σ_0·e^(−kt).

| paper | here |
| --- | --- |
| σ_0 | the noise multiplier of the budget |
| k | noise_decay |
| t | ⌊iq⌋, the whole epochs (1/q steps) before step i, counted from 0 |

Yu et al. was not at hand; what is said of it is from memory. It offers several schedules (in time,
exponential, by steps, polynomial, by validation accuracy), of which dpis2022 compares with the exponential one,
k in [0.001, 0.01], the Papernot network for pictures and its recurrent network for IMDb (Section 5.1, Table 3).

Ledger: different events, ⌈1/q⌉ or ⌊1/q⌋ steps of each σ_t, in their order. σ_t depends on nothing in the data, so this
is ordinary composition. Yu et al. account by zero-concentrated DP: where the batches of an epoch are disjoint,
1/(2σ_t²) for each epoch; where they are sampled, they use a bound of a weaker notion with q²/σ_t² for each step, as a
sampled Gaussian has no useful bound in zCDP itself. Here every accountant for heterogeneous composition applies.

Calibration gives σ_0: the last epochs run with less noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dpbench.errors import DpbenchError

NUMERICS = 1


@dataclass(frozen=True)
class DecayingNoise:
    """A `Noise`; `noise_decay` is k, per epoch. Raises DpbenchError unless it is finite and 0 or more.

    Training and ledger compute the same product in float64; their exponentials may differ in the last place.

    >>> [count for _, count in DecayingNoise(0.1).stretches(0.4, 6)]
    [3, 2, 1]
    """

    noise_decay: float = 0.01

    def __post_init__(self) -> None:
        number = isinstance(self.noise_decay, int | float) and not isinstance(self.noise_decay, bool)
        if not number or not 0 <= self.noise_decay < math.inf:
            raise DpbenchError(f"noise_decay = {self.noise_decay!r}: expected a finite number, 0 or more")

    def factor(self, step_R: Tensor, rate_R: Tensor) -> Tensor:
        return torch.exp(-self.noise_decay * torch.floor(step_R.double() * rate_R))

    def stretches(self, rate: float, steps: int) -> Iterator[tuple[float, int]]:
        if self.noise_decay == 0:
            yield 1.0, steps
            return
        step = 0
        while step < steps:
            epoch = math.floor(step * rate)
            after = _first_step(epoch + 1, rate, step, steps)
            yield math.exp(-self.noise_decay * epoch), after - step
            step = after


def _first_step(epoch: int, rate: float, begin: int, end: int) -> int:
    """The first step from `begin` on, `end` at most, whose ⌊iq⌋ is `epoch` or later, by bisection: iq never falls."""
    while begin < end:
        middle = (begin + end) // 2
        if math.floor(middle * rate) >= epoch:
            end = middle
        else:
            begin = middle + 1
    return begin


noise = DecayingNoise
