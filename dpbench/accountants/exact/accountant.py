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

from dpbench.accountants import gdp
from dpbench.accountants._atoms import atomic_curve, atomic_support, silent
from dpbench.accountants._band_direction import BandDirection, band_direction
from dpbench.accountants._chain import SHARED
from dpbench.accountants._contour import Transform
from dpbench.accountants._direction import PROMISED, SMALLEST, Direction, Value
from dpbench.accountants._few_direction import FewDirection, few_direction
from dpbench.accountants._leaves import event_support, leaves, support
from dpbench.accountants._one_release import single_curve
from dpbench.accountants._poisson import refuse, reveals_nothing
from dpbench.accountants._projections import HeavyDirection, heavy_directions
from dpbench.accountants._unlike import is_mixed, mixed_curve, mixed_refusal
from dpbench.accountants._work import within_limits
from dpbench.accounting import Estimate, GuaranteeKind, No, PrivacyCurve, Yes, check_delta, check_epsilon
from dpbench.compose import common_adjacency, merge
from dpbench.events import (
    Adjacency,
    Composition,
    DiscretePair,
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
        composition = gdp.gaussians_as_one(composition)
        if is_mixed(composition):
            answer = event_support(composition)
            reason = mixed_refusal(composition) if answer else None
            return answer if reason is None else No(reason)
        answer = support(composition)
        atoms = _atoms_alone(composition)
        return atomic_support(atoms) if answer and atoms is not None else answer

    @within_limits
    def curve(self, composition: Composition) -> PrivacyCurve:
        """The exact curve. Raises DpbenchError where `supports` says no."""
        refuse(self.supports(composition), self.name)
        adjacency = common_adjacency(composition)
        assert adjacency is not None  # supports has seen to it
        releases, composition = composition, gdp.gaussians_as_one(composition)
        if is_mixed(composition):
            return mixed_curve(composition)
        atoms = _atoms_alone(composition)
        if atoms is not None:
            return atomic_curve(atoms)
        merged = tuple((event, count) for event, count in merge(composition) if not silent(event))
        if all(gdp.is_gaussian(event) for event, _ in merged):
            whole = tuple(part for part in merge(releases) if gdp.is_gaussian(part[0]))  # μ with all its digits
            return gdp.gaussian_curve(Composition(whole), self.kind)
        if sum(count for _, count in merged) == 1:
            return single_curve(merged[0][0], adjacency)
        heavy = heavy_directions(merged) if any(isinstance(e, RandomSensitivityGaussian) for e, _ in merged) else None
        if heavy is not None:
            return ExactCurve(heavy, adjacency)
        ways: list[Direction] = []
        for way in ("remove", "add"):
            parts = tuple((leaf, count) for event, count in merged for leaf in leaves(event, way))
            if parts:
                transform = Transform(parts)
                few = few_direction(merged, transform, way) or band_direction(merged, transform, way)
                ways.append(few or Direction(transform))
        if len(ways) > 1 and isinstance(ways[0], BandDirection):
            ways[0].swapped = ways[1].transform
        if ways and isinstance(ways[0], FewDirection | BandDirection) and ways[0].symmetric:
            ways = ways[:1]
        return ExactCurve(tuple(ways), adjacency)


def _atoms_alone(composition: Composition) -> Composition | None:
    """The losses with atoms, where nothing else reveals anything; None where something does, or where there are none.

    >>> from dpbench.events import SampledGaussian
    >>> _atoms_alone(Composition(((Laplace(2.0), 3), (SampledGaussian(0.0, 1.0), 5)))).parts
    ((Laplace(noise_multiplier=2.0, adjacency='add_or_remove', sensitivity=None), 3),)
    """
    merged = merge(composition)
    atoms = tuple((event, count) for event, count in merged if isinstance(event, DiscretePair | Laplace))
    rest = [event for event, _ in merged if not isinstance(event, DiscretePair | Laplace)]
    silent_atoms = all(silent(event) for event, _ in atoms)
    if any(not reveals_nothing(event) for event in rest) or not atoms or (rest and silent_atoms):
        return None
    return Composition(atoms, composition.adaptive)


accountant = ExactAccountant()
