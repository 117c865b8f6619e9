"""What one DPIS run does when an epoch begins: next clipping bound, K̃, σ_G, and every condition that stops it.

Plain numbers of one run; the tensors are in `dpis`. Each function says which lines of Algorithm 1 (`000_*`) it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpbench.errors import DpbenchError
from dpbench.events import Event, Gaussian, SampledGaussian
from dpbench.mechanisms._dpis_budget import MOST_EPOCHS, Epoch, Releases, Row, event, gradient_noise, spent
from dpbench.mechanisms._dpis_rules import Rules, bounded_sum

NUMERICS = 1


@dataclass(frozen=True)
class Fixed:
    """The mechanism's own numbers: k, a_E, σ_N, σ_K, g_L, λ (None without adaptive clipping), the variant's rules."""

    oversampling: float
    first_share: float
    size_noise: float
    sum_noise: float
    norm_floor: float
    quantile: float | None
    rules: Rules

    def charged(self, size: float, batch_size: float) -> Releases:
        """The events by which σ_G is chosen; (19), with its amplification, only under the printed rules."""
        total: Event = Gaussian(self.sum_noise)
        if self.rules.sampled_sum:
            total = SampledGaussian(min(1.0, batch_size / size), self.sum_noise)
        outer = None if self.quantile is None else total
        return Releases(Gaussian(self.size_noise), total, outer, lambda row: SampledGaussian(row.rate, row.multiplier))

    def dominating(self, size: float, batch_size: float) -> Releases:
        """Events that dominate what the code releases: for `proven` those that are charged.

        Printed rules: a drawn record moves K by C/p_K, and K* by C* for certain. A capped filter lets a record move the
        sum by kC > K̃/b. Where sets only grow a record may be in the sum for certain; line 26 then divides it by b.
        """
        charged = self.charged(size, batch_size)
        if not self.rules.sampled_sum:
            return charged
        share = min(1.0, batch_size / size)
        outer = None if self.quantile is None else Gaussian(self.sum_noise)

        def step(row: Row) -> Event:
            noise = row.multiplier / max(1.0, self.oversampling * row.rate)
            if self.rules.divided_twice:
                noise *= batch_size
            return SampledGaussian(row.rate, noise) if self.rules.emptied else Gaussian(noise)

        return Releases(charged.size, SampledGaussian(share, self.sum_noise * share), outer, step)


@dataclass(frozen=True)
class Run:
    """One run as its epoch begins: Ñ, b, C in force, planned steps, ε and δ (ε = ∞: no noise), steps done, its past.

    `rounds` is T, the steps of an epoch.
    """

    size: float
    batch_size: float
    bound: float
    steps: int
    epsilon: float
    delta: float
    step: int
    rounds: int
    rows: Sequence[Row]

    @property
    def noisy(self) -> bool:
        return not math.isinf(self.epsilon)


@dataclass(frozen=True)
class Opened:
    """What holds in the new epoch: C, K̃, σ_G, its row in the ledger, and the step at which the next one begins."""

    bound: float
    gradient_sum: float
    noise: float
    row: Row
    following: int


def rounds_of(size: float, batch_size: float, rate: float, rules: Rules) -> int:
    """T: Ñ/b steps, which is postprocessing; as printed |D|/b, which is not (Section 5.3)."""
    if rules.noisy_epochs:
        return max(1, math.floor(size / batch_size + 0.5))
    return max(1, math.floor(1 / rate + 0.5))


def next_bound(fixed: Fixed, run: Run, outer_sum: float) -> float:
    """C of the epoch that begins: (16) and (17), lines 28-29; `outer_sum` is K*, already with its noise.

    Raises DpbenchError where it is not above g_L: line 29 as printed may give a bound below 0, which clips nothing.
    """
    bound = run.bound
    if run.rows and fixed.quantile is not None:
        bound = fixed.quantile * outer_sum / run.size
    least = fixed.norm_floor if run.noisy else 0.0
    if not bound > least or (run.noisy and math.isinf(bound)):
        raise DpbenchError(
            f"the clipping bound of epoch {len(run.rows) + 1} is {bound:.6g}: expected a finite number above"
            f" norm_floor = {fixed.norm_floor:g}; take more budget for the sums (less sum_noise), or a larger quantile"
        )
    return bound


def open_epoch(fixed: Fixed, run: Run, bound: float, measured: float) -> Opened:
    """K̃ by (12), then σ_G by Section 4.2 (lines 13-15). `measured` is K', already with its noise.

    Raises DpbenchError where the plan is over, the history is full, b is not above 0 or the budget is spent.
    """
    left = run.steps - run.step
    if left <= 0:
        raise DpbenchError(f"step {run.step} is beyond the {run.steps} steps for which the budget was allocated")
    if len(run.rows) >= MOST_EPOCHS:
        raise DpbenchError(f"epoch {len(run.rows) + 1}: at most {MOST_EPOCHS} are kept; take a larger batch_size")
    gradient_sum = bounded_sum(
        measured,
        size=run.size,
        bound=bound,
        batch_size=run.batch_size,
        oversampling=fixed.oversampling,
        uncapped=fixed.rules.uncapped,
    )
    rounds = min(run.rounds, left)
    following = run.step + rounds
    if not run.noisy:
        return Opened(bound, gradient_sum, 0.0, Row(run.step, 1.0, 0.0), following)
    releases = fixed.charged(run.size, run.batch_size)
    filter = spent(releases.ledger(run.rows, run.step), run.epsilon, run.delta)
    if run.rows and releases.outer is not None:
        filter.spend(releases.outer)
    filter.spend(releases.total)
    rate, fill = run.batch_size * bound / gradient_sum, gradient_sum / (run.size * bound)
    first = len(run.rows) < fixed.first_share * math.ceil(run.steps / run.rounds) - 1e-9
    later = math.ceil((left - rounds) / run.rounds)
    noise = gradient_noise(filter, Epoch(rounds, left - rounds, later, rate, fill, 1.0 if first else fill), releases)
    charged = event(rate, fill, noise)
    return Opened(bound, gradient_sum, noise, Row(run.step, charged.sampling_rate, charged.noise_multiplier), following)
