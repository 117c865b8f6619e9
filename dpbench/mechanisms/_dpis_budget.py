"""The ledger of a DPIS run and the choice of σ_G: which events its releases are, and what still fits into the budget.

| paper (`000_*`) | here |
| --- | --- |
| ε_0, δ_0 | epsilon, delta |
| σ_N, σ_K | size_noise, sum_noise |
| σ_Ge | the result of `gradient_noise` |
| K̃/(ÑC) | fill: 1 is the worst case of Section 4.2 |

**One iteration.** Given what was released before and the coins of the others, one record z adds to the sum
Σ ḡ/(q·p) a vector of length K̃/b with the probability q·p = b‖ḡ‖/K̃ <= bC/K̃, else nothing, whatever norm is
remembered of z. That is a mixture, over what is remembered, of sampled Gaussians with shift K̃/b. Rényi divergences
are jointly quasi-convex, so the worst one counts; at a fixed shift they grow with the probability, being convex in it
and 0 at 0, in both directions. Hence the event is `SampledGaussian(bC/K̃, multiplier)`, where the noise on that sum is
multiplier·K̃/b; in the paper's units it is σ_G·C·Ñ/b, so that multiplier = σ_G/fill. The coins of the others have the
same law with and without z; quasi-convexity removes the condition on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpbench.accountants.rdp_filter import RenyiFilter
from dpbench.errors import DpbenchError
from dpbench.events import Composition, Event, SampledGaussian

NUMERICS = 1

MOST_EPOCHS = 1000  # rows of the history that a run keeps
_STEPS_PER_OCTAVE = 1024  # σ_G is taken from the grid 2^(j/1024), so that rounding cannot move it
_LEAST, _MOST = -4 * _STEPS_PER_OCTAVE, 24 * _STEPS_PER_OCTAVE
_UP = 1 + 2.0**-50  # covers the rounding of three operations


@dataclass(frozen=True)
class Row:
    """One epoch as it was released: its first step, the rate bC/K̃ and the noise multiplier σ_G/fill."""

    start: int
    rate: float
    multiplier: float


@dataclass(frozen=True)
class Epoch:
    """What is public when σ_G is chosen: `rounds` steps in this epoch, then `later_rounds` in `later_epochs` more.

    `planned` is the fill that the later epochs are planned with.
    """

    rounds: int
    later_rounds: int
    later_epochs: int
    rate: float
    fill: float
    planned: float


@dataclass(frozen=True)
class Releases:
    """The events of a run: of N, of each K, of each K* (None without adaptive clipping), of a step of an epoch."""

    size: Event
    total: Event
    outer: Event | None
    step: Callable[[Row], Event]

    def ledger(self, rows: Sequence[Row], steps: int) -> Composition:
        """The releases up to `steps` steps, in order; σ_G, C and K̃ depend on what was released before."""
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
        """What `epochs` further epochs release of sums."""
        return [(event, epochs) for event in (self.total, self.outer) if event is not None and epochs > 0]


def spent(ledger: Composition, epsilon: float, delta: float) -> RenyiFilter:
    """A filter that has spent a ledger. Raises DpbenchError where that does not fit.

    The budget is lowered by 1e-12 of itself, more than the accountant's own roundings up.
    """
    found = RenyiFilter(epsilon * (1 - 1e-12), delta)
    for event, count in ledger.parts:
        found.spend(event, count)
    return found


def event(rate: float, fill: float, noise: float) -> SampledGaussian:
    """The event of one step with σ_G = `noise`; rounded to the safe side."""
    return SampledGaussian(min(1.0, rate * _UP), noise / (fill * _UP))


def gradient_noise(filter: RenyiFilter, epoch: Epoch, releases: Releases) -> float:
    """The smallest σ_G of the grid with which this epoch and the planned later ones still fit (Section 4.2).

    Raises DpbenchError where none does.
    """
    fixed = releases.later(epoch.later_epochs)
    later_rate = epoch.rate * epoch.fill / epoch.planned

    def fits(place: int) -> bool:
        noise = 2.0 ** (place / _STEPS_PER_OCTAVE)
        plan: list[tuple[Event, int]] = [(event(epoch.rate, epoch.fill, noise), epoch.rounds), *fixed]
        if epoch.later_rounds:
            plan.append((event(later_rate, epoch.planned, noise), epoch.later_rounds))
        return filter.admits_all(plan)

    low, high = _LEAST - 1, _MOST
    if not fits(high):
        raise DpbenchError(
            "privacy budget exhausted: no noise on the gradients is enough beside the releases of N and K; expected a"
            " larger epsilon, fewer epochs, or more noise on those releases"
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return float(2.0 ** (high / _STEPS_PER_OCTAVE))


def check_fixed(releases: Releases, epochs: int, epsilon: float, delta: float) -> None:
    """Raise DpbenchError where the releases of N and K alone exceed the budget."""
    if epochs > MOST_EPOCHS:
        raise DpbenchError(f"epochs = {epochs}: expected at most {MOST_EPOCHS} for dpis; take a larger batch_size")
    fixed = [(releases.size, 1), (releases.total, epochs)]
    if releases.outer is not None:
        fixed.append((releases.outer, epochs - 1))
    if not math.isinf(epsilon) and not RenyiFilter(epsilon * (1 - 1e-12), delta).admits_all(fixed):
        raise DpbenchError(
            f"epsilon = {epsilon:g}: the releases of N and K in {epochs} epochs exceed it before any gradient; expected"
            " more size_noise and sum_noise, fewer epochs, or a larger epsilon"
        )
