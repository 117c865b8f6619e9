"""Shuffled epochs: bounds of ε from above, without amplification by sampling, and from below, by explicit data.

The neighbours are zero-out: one record x is replaced by one without any effect, and N stays as it is. A sum of clipped
gradients moves by at most Δ = 1 clip norm; the noise has the deviation σ, in clip norms.

**From above.** An epoch puts the N records into a uniform random order π, cuts it into T batches, and releases
S_t + N(0, σ²I) for t = 1..T, where S_t is the sum over batch t of clipped gradients. These are functions of the earlier
releases. Let P and Q be the laws of all T releases on two neighbours, and P_π, Q_π those for a fixed π.

1. *Given π*, x is in one batch j = j(π). Neither π nor j depends on the data: the order is drawn of positions. For
   t ≠ j the records of batch t are the same on both sides, so given the earlier releases y_<t release t has the same
   law under P_π and Q_π. The likelihood ratio of y is then that of release j alone, given y_<j: two normal laws whose
   means are at most Δ apart. For every α >= 0 the divergence E_α(P ‖ Q) = sup_S P(S) − α Q(S) of these is at most that
   of N(Δ, σ²) and N(0, σ²). The law of y_<j is the same on both sides, and so is that of the releases after j given
   y_<=j. Hence E_α(P_π ‖ Q_π) is the mean over y_<j of what release j has, at most that of one Gaussian mechanism.
2. *π random*: P and Q are the mixtures of P_π and Q_π with the same weights, and E_α is jointly convex (a supremum of
   functions that are linear in the pair), so E_α(P ‖ Q) is at most the mean of E_α(P_π ‖ Q_π). That x may hide in any
   batch is not used: so there is no amplification.
3. *Epochs*: each draws its order anew, and starts at parameters that are functions of earlier releases. Given these,
   steps 1 and 2 hold. So K epochs are dominated by K Gaussian mechanisms with σ (adaptive composition of dominating
   pairs, Zhu, Dong and Wang 2022, Theorem 10): μ-GDP with μ = √K Δ/σ, K the number of epochs that were begun.
4. *Noise that changes*: a part of n steps begins with an epoch or goes on with that of the part before; in both cases
   ⌈n/T⌉ epochs at most begin in it. In an epoch with several σ the batch of x may be any, so its μ² is that of the
   least: at most that of its first step, and at each change inside it to a smaller σ_i the difference Δ²(1/σ_i² −
   1/σ_(i−1)²) more. One epoch at most goes on across a change. So each change that may lie within an epoch, because
   some part before was no whole number of epochs, counts as a Gaussian mechanism with that difference as its μ².

Under **replace-one** the same proof has Δ = 2. Under **add-or-remove** step 1 fails: where a record is taken away
another one moves into its batch, and where the rest divides evenly there is one batch less. So it is refused: the bound
covers what a record says, and not whether it is there.

**From below.** `_shuffled_data.py`: whole epochs of the first stretch of equal noise on explicit datasets. Its ε is the
lower end of each answer: no proof can promise less than that for these neighbours, and a smaller ε, such as that of
Poisson sampling at the same q and σ, is not valid for these batches.

>>> epoch = SampledGaussian(256 / 60000, 1.3, "zero_out", "shuffled")
>>> found = accountant.curve(Composition(((epoch, 15 * 235),))).epsilon(1e-5)
>>> round(found.lower, 1), round(found.value, 1)
(3.2, 16.5)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import ClassVar

from dpbench.events import Adjacency, Composition, Event, Gaussian, SampledGaussian, batches_per_epoch
from dpbench.privacy.accountants import gdp
from dpbench.privacy.accountants._gaussian_curve import GaussianCurve
from dpbench.privacy.accountants._poisson import Published, adjacency_of
from dpbench.privacy.accountants._shuffled_data import ShuffledData, shuffled_data
from dpbench.privacy.answers import Estimate, GuaranteeKind, No, Yes
from dpbench.privacy.composition import adaptive_refusal, common_adjacency


def is_shuffled(event: Event) -> bool:
    """Whether it is a step of a shuffled epoch.

    >>> is_shuffled(SampledGaussian(0.1, 1.0, "zero_out", "shuffled")), is_shuffled(Gaussian(1.0))
    (True, False)
    """
    return getattr(event, "sampler", None) == "shuffled"


def refusal(event: Event) -> str | None:
    """Why an event is neither a step of shuffled epochs nor a Gaussian mechanism; None where it is one."""
    if not is_shuffled(event):
        return gdp.refusal(event)
    if not isinstance(event, SampledGaussian):
        return f"sampler = 'shuffled': no bound for the event {type(event).__name__}, only for SampledGaussian"
    if event.adjacency == "add_or_remove":
        return (
            "adjacency = 'add_or_remove' with sampler = 'shuffled': a record more moves others to other batches, so"
            " that no bound covers it; ask about zero_out or replace_one, which leave the batches of all others alone"
        )
    return None


def covers(composition: Composition) -> Yes | No:
    """Shuffled epochs, and Gaussian mechanisms beside them, all for zero-out or all for replace-one."""
    if not any(is_shuffled(event) for event, _ in composition.parts):
        return No("none of these mechanisms has shuffled batches; use `exact`")
    for event, _ in composition.parts:
        reason = refusal(event)
        if reason is not None:
            return No(reason)
    if common_adjacency(composition) is None:
        return No("the parts name different neighbouring relations, so that no one guarantee holds; use a single one")
    adaptive = adaptive_refusal(composition, "the composition theorem of f-DP")
    return Yes() if adaptive is None else No(adaptive)


def epochs_begun(composition: Composition) -> Composition:
    """One Gaussian mechanism for each epoch that is begun, in place of its steps; others as they are.

    Beside these one for each change to less noise that may lie within an epoch.

    >>> step = SampledGaussian(0.25, 2.0, "zero_out", "shuffled")
    >>> [count for _, count in epochs_begun(Composition(((step, 9),))).parts]
    [3]
    """
    return Composition(tuple(_dominating(composition)), composition.adaptive)


def _dominating(composition: Composition) -> Iterator[tuple[Event, int]]:
    before: dict[float, float] = {}  # by rate: σ of the part before, where its last epoch may go on
    for event, count in composition.parts:
        if not is_shuffled(event) or not isinstance(event, SampledGaussian):
            yield event, count
        elif count and event.sampling_rate:
            rate, noise = event.sampling_rate, event.noise_multiplier
            batches = batches_per_epoch(rate)
            if noise < math.inf:
                yield Gaussian(noise, event.adjacency), -(-count // batches)
            if rate in before and noise < before[rate]:
                yield Gaussian(_of_difference(noise, before[rate]), event.adjacency), 1
            if rate in before or count % batches:
                before[rate] = noise


def _of_difference(less: float, more: float) -> float:
    """The σ with 1/σ² = 1/less² − 1/more², rounded down."""
    if more == math.inf:
        return less
    with localcontext(prec=60):
        one, other = Decimal(less), Decimal(more)
        return math.nextafter(float(one * other / ((other - one) * (other + one)).sqrt()), 0.0)


def whole_epochs(composition: Composition) -> ShuffledData:
    """The explicit datasets for the epochs that the first stretch of shuffled steps ends; without one, no sets.

    None either where steps before it, of infinite noise, may have begun its first epoch.
    """
    for event, count in composition.parts:
        if is_shuffled(event) and isinstance(event, SampledGaussian) and event.sampling_rate and count:
            batches = batches_per_epoch(event.sampling_rate)
            if event.noise_multiplier < math.inf:
                return shuffled_data(batches, event.noise_multiplier, count // batches)
            if count % batches:
                break
    return shuffled_data(1, 1.0, 0)


@dataclass(frozen=True)
class ShuffledCurve:
    """Answers with both ends: `value` and `upper` by one Gaussian mechanism per epoch, `lower` by explicit data."""

    above: GaussianCurve
    below: ShuffledData
    adjacency: Adjacency
    kind: ClassVar[GuaranteeKind] = "upper_bound"

    @property
    def mu(self) -> float:
        """μ of the Gaussian mechanisms that dominate."""
        return self.above.mu

    def delta(self, epsilon: float) -> Estimate:
        """δ at `epsilon`, between its two bounds."""
        upper = self.above.delta(epsilon)
        return self._between(upper, self.below.delta(epsilon))

    def epsilon(self, delta: float) -> Estimate:
        """ε at `delta`, between its two bounds."""
        upper = self.above.epsilon(delta)
        return self._between(upper, self.below.epsilon(delta))

    @staticmethod
    def _between(upper: Estimate, lower: float) -> Estimate:
        return Estimate(upper.safe, min(lower, upper.safe), upper.safe, upper.reason)


def _curve(composition: Composition) -> ShuffledCurve:
    above = gdp.gaussian_curve(epochs_begun(composition), "exact")
    return ShuffledCurve(above, whole_epochs(composition), adjacency_of(composition))


accountant = Published("shuffled", "upper_bound", covers, _curve)
