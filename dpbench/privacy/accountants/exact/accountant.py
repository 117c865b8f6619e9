"""The exact accountant: δ(ε) and ε(δ) to ten digits in milliseconds, by one contour. docs/exact.md is its page.

The method is that of the first row that fits, once equal events are merged, all Gaussian mechanisms are one, and events
of zero loss are left out (`ROUTES`):

| composition | method |
| --- | --- |
| Gaussian mechanisms, or nothing | the closed form of μ-GDP, `gdp` |
| one mechanism invocation | its closed form, `single` |
| equal Laplace mechanisms, and discrete pairs | their sums, `laplace` and `atoms`; beside anything else: refused |
| with mechanisms of random sensitivity | two contours, `projections` |
| sampled Gaussians, one record, groups or replaced, alike or not, and a Gaussian | one contour, `direction` |

Every answer carries `lower` and `upper`: the value less and plus its error, an estimate and no proof
(`dpbench certify` has proofs). Where it exceeds 1e-9 relative, and 1e-12 absolute, `reason` says so. Where it is
useless, where the arithmetic fails and where the work of one answer exceeds a count of about five seconds
(`_work.within_limits`), the answer is a DpbenchError that names the accountant 'lattice'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpbench.events import (
    ADJACENCIES,
    Adjacency,
    Composition,
    ConfidentGNMax,
    DiscretePair,
    Event,
    Gaussian,
    GroupSampledGaussian,
    Laplace,
    RandomSensitivityGaussian,
    SampledGaussian,
)
from dpbench.privacy.accountants import gdp
from dpbench.privacy.accountants._complex import Floats
from dpbench.privacy.accountants._poisson import refuse, shuffled_refusal
from dpbench.privacy.accountants._work import within_limits
from dpbench.privacy.accountants.exact.atoms import atoms, zero_loss
from dpbench.privacy.accountants.exact.atoms import refusal as atoms_refusal
from dpbench.privacy.accountants.exact.contour import UNIT, Part, Setup, Way
from dpbench.privacy.accountants.exact.direction import PROMISED, SMALLEST, ContourDirection, Direction, Value
from dpbench.privacy.accountants.exact.laplace import Laplaces
from dpbench.privacy.accountants.exact.laplace import refusal as laplace_refusal
from dpbench.privacy.accountants.exact.projections import projected_directions
from dpbench.privacy.accountants.exact.sampled import sampled
from dpbench.privacy.accountants.exact.single import Single, log_hockey_stick
from dpbench.privacy.answers import (
    Estimate,
    GuaranteeKind,
    No,
    PrivacyCurve,
    Yes,
    check_delta,
    check_epsilon,
)
from dpbench.privacy.composition import adaptive_refusal, common_adjacency, merge

Parts = list[tuple[Event, int]]
Both = tuple[Direction, Direction]  # remove and add; one object where they are alike
_MOST_NOISE = 1e100  # beyond, losses are too small for doubles
_MOST_GROUP = 1000  # C(1000, 500) is below the largest double
_CLOSE = 2.0**-40


# ---- the method for each composition ----


def _one(parts: Parts) -> Both:
    event = parts[0][0]
    remove = Single(event, 0)
    return remove, remove if _symmetric(parts) else Single(event, 1)


def _laplaces(parts: Parts) -> Both:
    ((event, count),) = parts
    assert isinstance(event, Laplace)
    curve = Laplaces(event.relative_noise, count)
    return curve, curve


def _discrete(parts: Parts) -> Both:
    pairs = [(event, count) for event, count in parts if isinstance(event, DiscretePair)]
    return atoms(pairs, 0), atoms(pairs, 1)


def _projected(parts: Parts) -> Both:
    projected = [(event, count) for event, count in parts if isinstance(event, RandomSensitivityGaussian)]
    rest = [part for part in parts if not isinstance(part[0], RandomSensitivityGaussian)]
    found = projected_directions(projected, _setup(rest, "remove"), _setup(rest, "add"))
    return found[0], found[-1]


def _contours(parts: Parts) -> Both:
    add = None if _symmetric(parts) else _contour(parts, "add")
    remove = _contour(parts, "remove", add)
    return remove, add or remove


def _contour(parts: Parts, way: Way, reverse: ContourDirection | None = None) -> ContourDirection:
    def own(epsilons: Floats) -> tuple[Floats, Floats]:
        total, wrong = np.zeros_like(epsilons), np.zeros_like(epsilons)
        for event, count in parts:
            logs, errors = log_hockey_stick(event, epsilons, 0 if way == "remove" else 1)
            total = total + count * np.exp(logs)
            wrong = wrong + count * np.exp(logs) * (errors + 4 * UNIT * np.abs(np.maximum(logs, -1e3)))
        return total, wrong

    setup = _setup(parts, way)
    return ContourDirection(setup, None if setup.gaussian else own, reverse)


def _setup(parts: Parts, way: Way) -> Setup:
    """What a contour needs to know of Gaussian and sampled mechanisms."""
    gaussian, releases = 0.0, []
    for event, count in parts:
        if isinstance(event, Gaussian):
            gaussian += count / event.relative_noise**2
        else:
            assert isinstance(event, SampledGaussian | GroupSampledGaussian)  # what else there is has its own row
            releases.append(Part(sampled(event, way), count))
    return Setup(tuple(releases), gaussian, way)


def _has(*kinds: type) -> Callable[[Parts], bool]:
    return lambda parts: any(isinstance(event, kinds) for event, _ in parts)


def _is_one(parts: Parts) -> bool:
    return len(parts) == 1 and parts[0][1] == 1 and not isinstance(parts[0][0], DiscretePair)


ROUTES: tuple[tuple[Callable[[Parts], bool], Callable[[Parts], Both]], ...] = (
    (_is_one, _one),
    (_has(Laplace), _laplaces),
    (_has(DiscretePair), _discrete),
    (_has(RandomSensitivityGaussian), _projected),
    (_has(SampledGaussian, GroupSampledGaussian), _contours),
)


def directions(parts: Parts) -> Both:
    """Both directions of merged parts, all of which have a loss."""
    return next(make for fits, make in ROUTES if fits(parts))(parts)


def _symmetric(parts: Parts) -> bool:
    """Whether both directions are alike."""
    return all(isinstance(event, Gaussian | Laplace) or event.adjacency == "replace_one" for event, _ in parts)


def _with_loss(composition: Composition) -> Parts:
    """The merged parts, Gaussian ones as one, without those of zero loss."""
    return [part for part in merge(gdp.gaussians_as_one(composition)) if _has_loss(part[0])]


def _has_loss(event: Event) -> bool:
    noise = getattr(event, "noise_multiplier", 0.0)
    return not zero_loss(event) and (isinstance(event, Laplace) or noise <= _MOST_NOISE)


# ---- the curve and the accountant ----


@dataclass
class ExactCurve:
    """δ(ε) of one composition: `ways` are its directions. What it remembers never changes an answer."""

    ways: tuple[Direction, ...]
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
        """δ at every one of `epsilons`, as `delta` has it within both errors; one path is used for many of them.

        >>> from dpbench.events import SampledGaussian
        >>> curve = accountant.curve(Composition(((SampledGaussian(0.01, 1.0), 1000),)))
        >>> [round(delta.value, 9) for delta in curve.deltas([0.5, 1.0, 2.0])]
        [0.030568024, 0.002612421, 2.666e-06]
        """
        asked = sorted({check_epsilon(epsilon) for epsilon in epsilons})
        best = dict(zip(asked, self.ways[0].deltas(asked) if asked else [], strict=True))
        for way in self.ways[1:]:  # at 0 both have the same δ
            open_ones = [one for one in asked if one > 0 and _log_bound(way, one) >= math.log(best[one].value + 1e-320)]
            for epsilon, value in zip(open_ones, way.deltas(open_ones) if open_ones else [], strict=True):
                best[epsilon] = _larger(best[epsilon], value)
        return [_estimate(best[check_epsilon(epsilon)], 1.0) for epsilon in epsilons]

    def one_way(self, direction: str) -> ExactCurve:
        """The curve of one direction alone, `remove` or `add`."""
        return ExactCurve((self.ways[0 if direction == "remove" else -1],), self.adjacency)

    @within_limits
    def epsilon(self, delta: float) -> Estimate:
        """The smallest ε >= 0 with δ(ε) <= `delta`, with its error, as for `delta`."""
        target = check_delta(delta)
        log_delta = math.log(target)
        best = self.ways[0].epsilon(log_delta)
        for way in self.ways[1:]:
            if best == Value(0.0, 0.0) or best.value == math.inf:
                continue  # at 0 both directions have the same δ, and so have they at infinity
            if _log_bound(way, best.value) < log_delta - 1e-9:
                continue
            (there,) = way.deltas([best.value])
            if best.value == 0 or there.value + there.error >= target * (1 - _CLOSE):
                best = _larger(best, way.epsilon(log_delta))
        if best.value == math.inf:
            reason = "outcomes that reveal the record have more probability than delta"
            return Estimate(best.value, best.value, best.value, reason)
        return _estimate(best, math.inf)


def _log_bound(way: Direction, epsilon: float) -> float:
    """A cheap bound of log δ(ε)."""
    return way.log_bound(epsilon) if isinstance(way, ContourDirection) else 0.0


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
    """Exact accounting of Gaussian, sampled, group-sampled, random-sensitivity, Laplace and discrete mechanisms.

    >>> from dpbench.events import SampledGaussian
    >>> curve = accountant.curve(Composition(((SampledGaussian(256 / 60000, 1.3), 3516),)))
    >>> round(curve.epsilon(1e-5).value, 9)
    0.864540191
    """

    name: str = "exact"
    kind: GuaranteeKind = "exact"

    def supports(self, composition: Composition) -> Yes | No:
        """No, with the reason, for what has no attained pair, for adaptive parameters and for too many atoms."""
        reasons = (reason for event, _ in composition.parts if (reason := _refusal(event)) is not None)
        reason = next(reasons, None) or _mixture_refusal(composition)
        if reason is None and common_adjacency(composition) is None:
            reason = "the parts name different neighbouring relations, so that no one guarantee holds; use a single one"
        reason = reason or adaptive_refusal(composition, "the composition of privacy losses")
        return Yes() if reason is None else No(reason)

    @within_limits
    def curve(self, composition: Composition) -> PrivacyCurve:
        """The exact curve. Raises DpbenchError where `supports` says no."""
        refuse(self.supports(composition), self.name)
        adjacency = common_adjacency(composition)
        assert adjacency is not None  # by `supports`
        parts = _with_loss(composition)
        if all(gdp.is_gaussian(event) for event, _ in parts):
            whole = tuple(part for part in merge(composition) if gdp.is_gaussian(part[0]))  # μ with all its digits
            return gdp.gaussian_curve(Composition(whole), self.kind)
        remove, add = directions(parts)
        return ExactCurve((remove,) if remove is add else (remove, add), adjacency)


def _refusal(event: Event) -> str | None:
    """Why one event has no exact curve; None where it has."""
    if isinstance(event, Gaussian | Laplace | DiscretePair):
        return None
    if isinstance(event, ConfidentGNMax):
        return None if event.votes is None else "votes are given, but data-dependent losses have no fixed pair"
    if isinstance(event, GroupSampledGaussian) and event.group_size > _MOST_GROUP:
        return f"group_size = {event.group_size}: the mixture of a group of more than {_MOST_GROUP} is beyond doubles"
    if event.sampler == "shuffled":
        return shuffled_refusal(event)
    if event.sampler != "poisson":
        return (
            f"sampler = {event.sampler!r}: no pair of datasets is the worst for every epsilon, so that there is no"
            " exact curve; try the accountant 'lattice'"
        )
    allowed = ADJACENCIES if isinstance(event, SampledGaussian) else ("add_or_remove", "zero_out")
    if event.adjacency not in allowed:
        return f"adjacency = {event.adjacency!r}: expected one of {', '.join(allowed)} for sampled mechanisms"
    return None


def _mixture_refusal(composition: Composition) -> str | None:
    """Why such mechanisms together are not covered; None where they are."""
    parts = _with_loss(composition)
    if _has(RandomSensitivityGaussian)(parts) and _has(GroupSampledGaussian)(parts):
        return "RandomSensitivityGaussian and GroupSampledGaussian in one composition are not covered; split them"
    pairs = [(event, count) for event, count in parts if isinstance(event, DiscretePair)]
    laplaces = [(event, count) for event, count in parts if isinstance(event, Laplace)]
    if (pairs and len(pairs) < len(parts)) or (laplaces and len(parts) > 1):
        return "Laplace or DiscretePair beside other losses is not covered; use the accountant 'lattice'"
    return atoms_refusal(pairs) if pairs else laplace_refusal(*laplaces[0]) if laplaces else None


accountant = ExactAccountant()
