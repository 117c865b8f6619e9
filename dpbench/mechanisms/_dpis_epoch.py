"""The start of an epoch of one DPIS run: next clipping bound, K̃, σ_G, the ledger, and the reasons to stop.

Numbers of one run; `dpis` has the tensors and the paper's letters. `fill` is K̃/(ÑC), at most 1, the worst case of
Section 4.2. Each function names its lines of Algorithm 1 (dpis2022). docs/dpis.md proves that the event of a step
dominates the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpbench.errors import DpbenchError
from dpbench.events import Composition, Event, Gaussian, SampledGaussian
from dpbench.mechanisms._dpis_rules import Rules, bounded_sum
from dpbench.privacy.accountants.rdp_filter import RenyiFilter

NUMERICS = 1

MOST_EPOCHS = 1000  # rows of the history that a run keeps
_STEPS_PER_OCTAVE = 1024  # σ_G is on the grid 2^(j/1024), so that rounding cannot change it
_LEAST, _MOST = -4 * _STEPS_PER_OCTAVE, 24 * _STEPS_PER_OCTAVE
_UP = 1 + 2.0**-50  # covers the rounding of three operations


@dataclass(frozen=True)
class Row:
    """One epoch in the ledger: its first step, the rate bC/K̃ and the noise multiplier σ_G/fill."""

    start: int
    rate: float
    multiplier: float


@dataclass(frozen=True)
class RunEvents:
    """The events of a run: N, each K, each K* (None without adaptive clipping), each step of an epoch."""

    size: Event
    total: Event
    outer: Event | None
    step: Callable[[Row], Event]

    def ledger(self, rows: Sequence[Row], steps: int) -> Composition:
        """The events of the first `steps` steps; σ_G, C and K̃ depend on earlier released values."""
        parts: list[tuple[Event, int]] = [(self.size, 1)]
        ends = [row.start for row in rows[1:]] + [steps] * bool(rows)
        for number, (row, end) in enumerate(zip(rows, ends, strict=True)):
            if number and self.outer is not None:
                parts.append((self.outer, 1))
            parts.append((self.total, 1))
            if end > row.start:
                parts.append((self.step(row), end - row.start))
        return Composition(tuple(parts), adaptive=True)

    def later(self, epochs: int) -> list[tuple[Event, int]]:
        """The events of the sums of `epochs` further epochs."""
        return [(event, epochs) for event in (self.total, self.outer) if event is not None and epochs > 0]


def spent(ledger: Composition, epsilon: float, delta: float) -> RenyiFilter:
    """A filter that has spent a ledger. Raises DpbenchError if the ledger exceeds the budget.

    ε is lowered by a factor 1 − 1e-12, which covers the accountant's rounding up.
    """
    found = RenyiFilter(epsilon * (1 - 1e-12), delta)
    for event, count in ledger.parts:
        found.spend(event, count)
    return found


def event(rate: float, fill: float, noise: float) -> SampledGaussian:
    """The event of one step with σ_G = `noise`; rounded so that ε is an upper bound."""
    return SampledGaussian(min(1.0, rate * _UP), noise / (fill * _UP))


def gradient_noise(filter: RenyiFilter, plan: Callable[[float], list[tuple[Event, int]]]) -> float:
    """The smallest σ_G of the grid for which the events of `plan(σ_G)` fit into the budget (Section 4.2).

    Raises DpbenchError if there is none.
    """

    def fits(place: int) -> bool:
        return filter.admits_all(plan(2.0 ** (place / _STEPS_PER_OCTAVE)))

    low, high = _LEAST - 1, _MOST
    if not fits(high):
        raise DpbenchError(
            "privacy budget exhausted: no noise on the gradients is enough beside the events of N and K; expected a"
            " larger epsilon, fewer epochs, or more noise on N and K"
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return float(2.0 ** (high / _STEPS_PER_OCTAVE))


def check_fixed(events: RunEvents, epochs: int, epsilon: float, delta: float) -> None:
    """Raise DpbenchError if the events of N and K alone exceed the budget."""
    if epochs > MOST_EPOCHS:
        raise DpbenchError(f"epochs = {epochs}: expected at most {MOST_EPOCHS} for dpis; take a larger batch_size")
    fixed = [(events.size, 1), (events.total, epochs)]
    if events.outer is not None:
        fixed.append((events.outer, epochs - 1))
    if not math.isinf(epsilon) and not RenyiFilter(epsilon * (1 - 1e-12), delta).admits_all(fixed):
        raise DpbenchError(
            f"epsilon = {epsilon:g}: the events of N and K in {epochs} epochs alone exceed it; expected"
            " more size_noise and sum_noise, fewer epochs, or a larger epsilon"
        )


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

    def charged(self, size: float, batch_size: float) -> RunEvents:
        """The events by which σ_G is chosen; (19), with its amplification, only under the printed rules."""
        total: Event = Gaussian(self.sum_noise)
        if self.rules.sampled_sum:
            total = SampledGaussian(min(1.0, batch_size / size), self.sum_noise)
        outer = None if self.quantile is None else total
        return RunEvents(Gaussian(self.size_noise), total, outer, lambda row: SampledGaussian(row.rate, row.multiplier))

    def dominating(self, size: float, batch_size: float) -> RunEvents:
        """Events that dominate what the code computes: for `proven` those that are charged.

        Printed rules: a drawn record moves K by C/p_K; every record moves K* by C*. With a capped filter a record moves
        the sum by up to kC > K̃/b. If sets only grow a record may be in the sum with probability 1; line 26 then
        divides it by b.
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

        return RunEvents(charged.size, SampledGaussian(share, self.sum_noise * share), outer, step)


@dataclass(frozen=True)
class Run:
    """One run at the start of an epoch: Ñ, b, current C, planned steps, ε and δ (ε = ∞: no noise), steps done, history.

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
    """The new epoch: C, K̃, σ_G, its row in the ledger, and the first step of the next one."""

    bound: float
    gradient_sum: float
    noise: float
    row: Row
    following: int


def rounds_of(size: float, batch_size: float, rate: float, rules: Rules) -> int:
    """T: Ñ/b steps, which is post-processing; as printed |D|/b, which is not (Section 5.3)."""
    if rules.noisy_epochs:
        return max(1, math.floor(size / batch_size + 0.5))
    return max(1, math.floor(1 / rate + 0.5))


def next_bound(fixed: Fixed, run: Run, outer_sum: float) -> float:
    """C of the new epoch: (16) and (17), lines 28-29; `outer_sum` is the noisy K*.

    Raises DpbenchError if it is not above g_L: line 29 as printed may give a negative bound, which clips nothing.
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
    """K̃ by (12), then σ_G by Section 4.2 (lines 13-15). `measured` is K', the noisy K.

    Raises DpbenchError if all steps are done, the history is full, b is not above 0 or the budget is spent.
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
    events = fixed.charged(run.size, run.batch_size)
    filter = spent(events.ledger(run.rows, run.step), run.epsilon, run.delta)
    if run.rows and events.outer is not None:
        filter.spend(events.outer)
    filter.spend(events.total)
    rate, fill = run.batch_size * bound / gradient_sum, gradient_sum / (run.size * bound)
    first = len(run.rows) < fixed.first_share * math.ceil(run.steps / run.rounds) - 1e-9
    sums = events.later(math.ceil((left - rounds) / run.rounds))
    later_fill = 1.0 if first else fill

    def plan(noise: float) -> list[tuple[Event, int]]:
        """The events of this epoch and of all later ones, from what is public now."""
        later = [(event(rate * fill / later_fill, later_fill, noise), left - rounds)] if left > rounds else []
        return [(event(rate, fill, noise), rounds), *sums, *later]

    noise = gradient_noise(filter, plan)
    charged = event(rate, fill, noise)
    return Opened(bound, gradient_sum, noise, Row(run.step, charged.sampling_rate, charged.noise_multiplier), following)
