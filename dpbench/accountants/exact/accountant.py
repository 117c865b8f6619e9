"""The exact accountant: δ(ε) and ε(δ) as contour integrals of the loss's transform, to ten digits in milliseconds.

| here | meaning |
| --- | --- |
| L, M(z) | the privacy loss of the whole composition under P, and E_P[e^(zL)] |
| direction | remove: P with the record, Q without; add: the reverse |

`_leaf_family` has M of many releases, `_contour` the lines on which (1/2πi) ∫ M(z) e^(−zε) / (z(z+1)) dz is taken,
`_inversion` chooses among them, and `_direction` finds δ(ε) and ε(δ) of one direction with them. What is here: both
directions, the larger of which counts; one release, whose hockey-stick curve is a closed form; Gaussian releases alone,
Confident-GNMax without votes among them, which are one Gaussian (`gdp.gaussians_as_one`); compositions of losses with
atoms, which are summed (`_atoms`) or integrated with the bends next to ε put back (`_laplace_line`); such losses beside
others, by the same line, or by their δ's average over the atoms where the line does not come to an end (`_unlike`).

Every answer carries `lower` and `upper`: the value less and plus an estimate of its error that sums the aliasing
bound, the size of the first term left out and a bound of the rounding. It is not a proof (`dpbench certify` is), but
tests hold it against certified enclosures. Where the error exceeds 1e-9 relative, and 1e-12 absolute, `reason` says so.
Where it is useless, where the arithmetic fails and where the work of one answer exceeds a count of about five seconds
(`_work.within_limits`), the answer is a DpbenchError that names the accountant 'lattice'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dpbench.accountants import gdp
from dpbench.accountants._band_direction import BandDirection, band_direction
from dpbench.accountants._chain import SHARED
from dpbench.accountants._contour import Transform
from dpbench.accountants._direction import PROMISED, SMALLEST, Direction, Value
from dpbench.accountants._few_direction import FewDirection, few_direction
from dpbench.accountants._leaves import event_support, leaves
from dpbench.accountants._poisson import refuse
from dpbench.accountants._projections import HeavyDirection, heavy_directions
from dpbench.accountants._work import within_limits
from dpbench.accountants.exact import direction
from dpbench.accountants.exact.atoms import silent
from dpbench.accountants.exact.beside import Both, atomic, refusal
from dpbench.accountants.exact.single import Single
from dpbench.accounting import Estimate, GuaranteeKind, No, PrivacyCurve, Yes, check_delta, check_epsilon
from dpbench.compose import common_adjacency, merge
from dpbench.events import (
    Adjacency,
    Composition,
    DiscretePair,
    Event,
    Laplace,
    RandomSensitivityGaussian,
)

_CLOSE = 2.0**-40


@dataclass
class ExactCurve:
    """δ(ε) of one composition: `ways` are its directions. What it remembers never changes an answer."""

    ways: tuple[Direction | HeavyDirection, ...]
    adjacency: Adjacency
    kind: GuaranteeKind = "exact"
    mu: None = None
    _deltas: dict[float, Estimate] = field(default_factory=dict, repr=False)

    @within_limits
    def delta(self, epsilon: float) -> Estimate:
        """δ at `epsilon` in [0, 1], with its error; relative 1e-9 or absolute 1e-12, or `reason` says how far off."""
        epsilon = check_epsilon(epsilon)
        if epsilon not in self._deltas:
            (self._deltas[epsilon],) = self.deltas([epsilon])
        return self._deltas[epsilon]

    @within_limits
    def deltas(self, epsilons: Sequence[float]) -> list[Estimate]:
        """δ at every one of `epsilons`, as `delta` has it within both errors; one plan of lines serves many of them.

        >>> from dpbench.events import SampledGaussian
        >>> curve = accountant.curve(Composition(((SampledGaussian(0.01, 1.0), 1000),)))
        >>> [round(delta.value, 9) for delta in curve.deltas([0.5, 1.0, 2.0])]
        [0.030568024, 0.002612421, 2.666e-06]
        """
        asked = [check_epsilon(epsilon) for epsilon in epsilons]
        best = dict.fromkeys(sorted(asked), Value(0.0, 0.0))
        for way in self.ways:
            # where a direction's Chernoff bound is below the other's value, it does not count; at 0 both are the same
            bounds = [0.0] * len(best) if way is self.ways[0] else way.bounds(list(best))
            close = [
                epsilon
                for epsilon, bound in zip(best, bounds, strict=True)
                if best[epsilon].value <= 0 or (epsilon > 0 and bound >= math.log(best[epsilon].value))
            ]
            for epsilon, value in zip(close, self._way_deltas(way, close, best), strict=True):
                best[epsilon] = _larger(best[epsilon], value)
        return [_estimate(best[epsilon], 1.0) for epsilon in asked]

    def _way_deltas(
        self, way: Direction | HeavyDirection, epsilons: Sequence[float], best: dict[float, Value]
    ) -> list[Value]:
        """δ of one direction at ascending ε: by the lines of the first, where these tell enough beside its values."""
        first = self.ways[0]
        known = first.reversed(epsilons) if way is not first and isinstance(first, Direction) else None
        if known is None:
            return way.deltas(epsilons)
        told = {
            epsilon: value
            for epsilon, value in zip(epsilons, known, strict=True)
            if value.error <= SHARED * value.value or value.value + value.error <= best[epsilon].value
        }
        rest = [epsilon for epsilon in epsilons if epsilon not in told]
        told.update(zip(rest, way.deltas(rest) if rest else [], strict=True))
        return [told[epsilon] for epsilon in epsilons]

    def one_way(self, direction: str) -> ExactCurve:
        """The curve of one direction alone, `remove` or `add`."""
        if len(self.ways) < 2:
            return self
        return ExactCurve((self.ways[0 if direction == "remove" else 1],), self.adjacency)

    @within_limits
    def epsilon(self, delta: float) -> Estimate:
        """The smallest ε >= 0 with δ(ε) <= `delta`, with its error, as for `delta`."""
        target = check_delta(delta)
        log_delta = math.log(target)
        best = Value(0.0, 0.0)
        for way in self.ways:
            if way is not self.ways[0] and best == Value(0.0, 0.0):
                continue  # at 0 both directions have the same δ
            if best.value > 0:
                if way.bound(best.value) < log_delta - 1e-9:
                    continue
                there = way.delta(best.value)
                if there.value + there.error < target * (1 - _CLOSE):
                    continue
            best = _larger(best, way.epsilon(log_delta))
        return _estimate(best, math.inf)


@dataclass(frozen=True)
class ClosedCurve:
    """δ(ε) of one release, of losses with atoms, and of these beside others: `ways` are its directions."""

    ways: tuple[direction.Direction, ...]
    adjacency: Adjacency
    kind: GuaranteeKind = "exact"
    mu: None = None

    @within_limits
    def delta(self, epsilon: float) -> Estimate:
        """δ at `epsilon` in [0, 1], with its error."""
        return self.deltas([epsilon])[0]

    @within_limits
    def deltas(self, epsilons: Sequence[float]) -> list[Estimate]:
        """δ at every one of `epsilons`."""
        asked = [check_epsilon(epsilon) for epsilon in epsilons]
        places = sorted(set(asked))
        best = dict.fromkeys(places, Value(0.0, 0.0))
        for way in self.ways:
            for epsilon, one in zip(places, way.deltas(places) if places else [], strict=True):
                best[epsilon] = _larger(best[epsilon], Value(one.value, one.error))
        return [_estimate(best[epsilon], 1.0) for epsilon in asked]

    @within_limits
    def epsilon(self, delta: float) -> Estimate:
        """The smallest ε >= 0 with δ(ε) <= `delta`, with its error; infinite where the infinite mass exceeds it."""
        best = Value(0.0, 0.0)
        for way in self.ways:
            one = way.epsilon(math.log(check_delta(delta)))
            best = _larger(best, Value(one.value, one.error))
        if best.value == math.inf:
            reason = "outcomes that reveal the record have more probability than delta"
            return Estimate(best.value, best.value, best.value, reason)
        return _estimate(best, math.inf)

    def one_way(self, direction: str) -> ClosedCurve:
        """The curve of one direction alone, `remove` or `add`."""
        return ClosedCurve(self.ways[:1] if direction == "remove" else self.ways[-1:], self.adjacency)


def _larger(first: Value, second: Value) -> Value:
    """The larger of two values; where they lie within their errors the larger error counts."""
    high, low = (first, second) if first.value >= second.value else (second, first)
    return Value(high.value, max(high.error, low.value + low.error - high.value))


def _estimate(found: Value, most: float) -> Estimate:
    value = min(max(found.value, 0.0), most)
    lower, upper = max(value - found.error, 0.0), min(value + found.error, most)
    reason = None
    if not found.error <= max(PROMISED * value, SMALLEST):
        reason = f"the error may be {found.error:.1e}, more than 1e-9 relative and 1e-12 absolute"
    return Estimate(value, lower, upper, reason)


@dataclass(frozen=True)
class ExactAccountant:
    """Exact accounting of Gaussian, sampled, group-sampled, random-sensitivity, Laplace and discrete releases.

    >>> from dpbench.events import SampledGaussian
    >>> curve = accountant.curve(Composition(((SampledGaussian(256 / 60000, 1.3), 3516),)))
    >>> round(curve.epsilon(1e-5).value, 9)
    0.864540191
    """

    name: str = "exact"
    kind: GuaranteeKind = "exact"

    def supports(self, composition: Composition) -> Yes | No:
        """No, with the reason, for what has no attained pair and for adaptive parameters."""
        answer = event_support(composition)
        if not answer:
            return answer
        laplaces, pairs, rest = _sorted(gdp.gaussians_as_one(composition))
        reason = refusal(laplaces, pairs, bool(rest))
        if (laplaces or pairs) and any(isinstance(event, RandomSensitivityGaussian) for event, _ in rest):
            reason = "RandomSensitivityGaussian beside losses with atoms is not covered; try the accountant 'lattice'"
        return answer if reason is None else No(reason)

    @within_limits
    def curve(self, composition: Composition) -> PrivacyCurve:
        """The exact curve. Raises DpbenchError where `supports` says no."""
        refuse(self.supports(composition), self.name)
        adjacency = common_adjacency(composition)
        assert adjacency is not None  # supports has seen to it
        releases, composition = composition, gdp.gaussians_as_one(composition)
        laplaces, pairs, rest = _sorted(composition)
        if not laplaces and not pairs and all(gdp.is_gaussian(event) for event, _ in rest):
            whole = tuple(part for part in merge(releases) if gdp.is_gaussian(part[0]))  # μ with all its digits
            return gdp.gaussian_curve(Composition(whole), self.kind)
        if laplaces or pairs or sum(count for _, count in rest) == 1:
            ways = _both(rest)
            if laplaces or pairs:
                ways = atomic(laplaces, pairs, ways)
            assert ways is not None  # something is released
            return ClosedCurve(ways[:1] if ways[0] is ways[1] else ways, adjacency)
        return ExactCurve(_many(rest), adjacency)


Parts = list[tuple[Event, int]]


def _sorted(composition: Composition) -> tuple[list[tuple[Laplace, int]], list[tuple[DiscretePair, int]], Parts]:
    """The merged parts that reveal anything: Laplace, discrete pairs, all others."""
    told = [(event, count) for event, count in merge(composition) if count and not silent(event)]
    laplaces = [(event, count) for event, count in told if isinstance(event, Laplace)]
    pairs = [(event, count) for event, count in told if isinstance(event, DiscretePair)]
    return laplaces, pairs, [part for part in told if not isinstance(part[0], Laplace | DiscretePair)]


def _both(rest: Parts) -> Both | None:
    """Both directions of what has a density; None where there is nothing."""
    if not rest:
        return None
    if sum(count for _, count in rest) == 1:
        return Single(rest[0][0], 0), Single(rest[0][0], 1)
    ways: Any = _many(rest)
    return ways[0], ways[-1]


def _many(merged: Parts) -> tuple[Direction | HeavyDirection, ...]:
    parts = tuple(merged)
    heavy = heavy_directions(parts) if any(isinstance(e, RandomSensitivityGaussian) for e, _ in merged) else None
    if heavy is not None:
        return heavy
    ways: list[Direction] = []
    for way in ("remove", "add"):
        turned = tuple((leaf, count) for event, count in merged for leaf in leaves(event, way))
        if turned:
            transform = Transform(turned)
            few = few_direction(parts, transform, way) or band_direction(parts, transform, way)
            ways.append(few or Direction(transform))
    if len(ways) > 1 and isinstance(ways[0], BandDirection):
        ways[0].swapped = ways[1].transform
    if ways and isinstance(ways[0], FewDirection | BandDirection) and ways[0].symmetric:
        ways = ways[:1]
    return tuple(ways)


accountant = ExactAccountant()
