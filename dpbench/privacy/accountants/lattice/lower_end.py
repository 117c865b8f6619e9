"""A lower bound for fixed-size batches: δ(ε) of explicit datasets that differ in one replaced record.

A batch holds B of N records, every batch equally likely, so that a given record is in it with probability q = B/N.
Gradients have clip norm 1 and lie on one line; the released sum has noise N(0, σ²). Let D and D' agree but for the
record x, which is x' in D'.

1. **The others are 0**, x is +1 and x' is −1: (1−q) N(0, σ²) + q N(1, σ²) against (1−q) N(0, σ²) + q N(−1, σ²),
   its own reverse.
2. **The others are −1**, x is +1 and x' is −1. A batch with x sums to −B + 2, all others to −B, which is known:
   (1−q) N(0, σ²) + q N(2, σ²) against N(0, σ²), Poisson sampling's pair for remove with noise σ/2.
3. **The same in the other order**, D' first: the pair for add.

(Others that are not all alike make the batch's sum vary with the draw; others that are all t give centres t, 1 and −1,
of which t = 0 and t = ±1 are these.) Steps draw their batches anew, on the same datasets: a composition of one pair.
Other mechanisms may be any functions of the data, so each shows its own pair on the same D and D' where that pair is
attained; one whose pair only dominates is left out, as ignoring an output reveals no more, and so are Laplace
mechanisms and discrete pairs, which the exact accountant does not take beside others. Every δ(ε) of these is at most
the true worst case; the largest is given. Each is a Poisson event's, and the exact accountant's lower end, its value
less its error estimate, is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dpbench.errors import DpbenchError
from dpbench.events import Composition, DiscretePair, Event, Gaussian, Laplace, SampledGaussian
from dpbench.privacy.accountants.exact.accountant import accountant as exact
from dpbench.privacy.answers import PrivacyCurve
from dpbench.privacy.composition import merge


@dataclass(frozen=True)
class ExplicitDatasets:
    """The curves of the explicit pairs of datasets; none where the composition has no fixed-size batches."""

    curves: tuple[PrivacyCurve, ...]

    def delta(self, epsilon: float) -> float | None:
        """A lower bound on δ at `epsilon`; None where there is none."""
        return self._largest(lambda curve: curve.delta(epsilon).lower)

    def epsilon(self, delta: float) -> float | None:
        """A lower bound on ε at `delta`; None where there is none."""
        return self._largest(lambda curve: curve.epsilon(delta).lower)

    def _largest(self, lower: Callable[[PrivacyCurve], float | None]) -> float | None:
        found: list[float] = []
        for curve in self.curves:
            try:
                value = lower(curve)
            except (DpbenchError, ArithmeticError):  # no exact answer there; the other pair may have one
                continue
            if value is not None:
                found.append(value)
        return max(found, default=None)


def explicit_datasets(composition: Composition) -> ExplicitDatasets:
    """What the explicit pairs of datasets give for a composition under replace-one.

    >>> fixed = SampledGaussian(0.01, 2.0, adjacency="replace_one", sampler="without_replacement")
    >>> found = explicit_datasets(Composition(((fixed, 1000),)))
    >>> len(found.curves), round(found.epsilon(1e-5), 3)
    (2, 1.828)
    """
    merged = merge(composition)
    if not any(_fixed_size(event) for event, _ in merged):
        return ExplicitDatasets(())
    curves = []
    for same in (_others_are_zero, _others_are_opposite):
        parts = [(same(event), count) for event, count in merged]
        pair = Composition(tuple((event, count) for event, count in parts if event is not None and event.attained))
        if exact.supports(pair):
            curves.append(exact.curve(pair))
    return ExplicitDatasets(tuple(curves))


def _fixed_size(event: Event) -> bool:
    return isinstance(event, SampledGaussian) and event.sampler == "without_replacement"


def _others_are_zero(event: Event) -> Event | None:
    """Pair 1 as a Poisson event under replace-one; None for a mechanism to be left out."""
    if isinstance(event, SampledGaussian):
        return replace(event, sampler="poisson")
    return None if isinstance(event, DiscretePair | Laplace) else event


def _others_are_opposite(event: Event) -> Event | None:
    """Pairs 2 and 3 as a Poisson event, whose two directions they are; None for a mechanism to be left out."""
    if isinstance(event, SampledGaussian):
        return SampledGaussian(event.sampling_rate, event.noise_multiplier / 2) if _fixed_size(event) else None
    if isinstance(event, Gaussian):
        return replace(event, adjacency="add_or_remove", sensitivity=event.moved)  # the same pair
    return None
