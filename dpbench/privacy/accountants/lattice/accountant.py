"""Privacy loss distributions on a lattice: an upper bound for every event with a proven pair.

1. `losses` (and `projections`): the privacy loss distribution of one mechanism invocation, as densities and atoms.
2. `rounding`: the tightest law on a lattice whose curve lies on or above it ('connect the dots').
3. `composition`: powers and products by one Fourier transform each way, under an exponential tilt so that small δ keep
   their digits; what is cut off or wraps around is bounded and added to δ, as is rounding. `Direction` chooses the
   tilt, for δ at ε and for ε at δ. The worse of remove and add is the answer.
4. `lower_end`: a lower bound for fixed-size batches, by explicit datasets.

Proven, in exact arithmetic: each rounding of losses, and the bounds of what wraps around. Estimated, and added
with a margin: the rounding of the transforms and of single masses, the quadrature's remainder (below 1e-15) and
what lies beyond the ends of a quadrature (below 1e-19).

**Looseness**, relative: ε about 1e-6 up to 1e4 invocations, 1e-5 to 1e-4 at a million, 1e-3 at 1e8. Where rare large
losses decide, δ up to a percent, and with 1e6 invocations of a rate of 1e-7 far more below δ = 1e-9. Random
sensitivities have heavy tails, which leave only small tilts: there δ is good to a percent or so down to about 1e-8, and
below may be far too large.

>>> training = Composition(((SampledGaussian(256 / 60000, 1.3), 3516),))
>>> round(accountant.curve(training).epsilon(1e-5).value, 4)
0.8645
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

from dpbench.events import (
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
from dpbench.privacy.accountants._poisson import Published, adjacency_of, reveals_nothing, support
from dpbench.privacy.accountants.gdp import gaussians_as_one
from dpbench.privacy.accountants.lattice.composition import Direction
from dpbench.privacy.accountants.lattice.losses import loss_law
from dpbench.privacy.accountants.lattice.lower_end import explicit_datasets
from dpbench.privacy.accountants.lattice.projections import MOST_PROJECTIONS, REACHES
from dpbench.privacy.answers import (
    Estimate,
    GuaranteeKind,
    check_delta,
    check_epsilon,
)
from dpbench.privacy.composition import merge
from dpbench.privacy.guards import called

_LEAST_NOISE = 0.02
LARGEST_GROUP = 64
_SLACK = 1e-11  # relative, of δ: what evaluating a table may lose


class LatticeCurve:
    """The bound as a curve.

    For fixed-size batches `lower` is what explicit datasets reveal; the truth lies between. Elsewhere it is None.
    """

    kind: GuaranteeKind = "upper_bound"
    mu: None = None

    def __init__(self, composition: Composition, adjacency: Adjacency) -> None:
        self.composition, self.adjacency = composition, adjacency
        revealing = tuple((_plain(event), count) for event, count in merge(composition) if not reveals_nothing(event))
        self._parts = merge(gaussians_as_one(Composition(revealing)))
        symmetric = all(_symmetric(event) for event, _ in self._parts)
        self._ways = () if not self._parts else (0,) if symmetric else (0, 1)
        several = sum(count for _, count in self._parts) > 1
        self._heavy = several and any(isinstance(event, RandomSensitivityGaussian) for event, _ in self._parts)
        self._least = explicit_datasets(composition)
        self._directions: dict[tuple[int, float], Direction] = {}  # remembered; they never change an answer

    def delta(self, epsilon: float) -> Estimate:
        """An upper bound on δ at `epsilon`, in [0, 1]: the worse of both directions.

        Raises DpbenchError, as `epsilon` does, where doubles do not suffice.
        """
        epsilon = check_epsilon(epsilon)
        log_delta = called(lambda: max((self._log_delta(way, epsilon) for way in self._ways), default=-math.inf))
        value = 0.0
        if log_delta > -math.inf:
            value = min(max(math.exp(min(log_delta, 0.0)) * (1 + _SLACK), math.ulp(0.0)), 1.0)
        return self._estimate(value, self._least.delta(epsilon))

    def epsilon(self, delta: float) -> Estimate:
        """An upper bound on ε at `delta`, in [0, inf]: the worse of both directions."""
        target = check_delta(delta) / (1 + _SLACK)
        value = called(lambda: max((self._epsilon(way, target) for way in self._ways), default=0.0))
        reason = "outcomes that reveal the record have more probability than delta" if value == math.inf else None
        return self._estimate(value, self._least.epsilon(delta), reason)

    def _estimate(self, value: float, lower: float | None, reason: str | None = None) -> Estimate:
        return Estimate(value, None if lower is None else min(lower, value), value, reason)

    def _log_delta(self, way: int, epsilon: float) -> float:
        ends = [far for far in REACHES if far >= 1.5 * epsilon][:2] if self._heavy else []
        return min(self._direction(way, far).log_delta(epsilon) for far in ends or REACHES[-1:])

    def _epsilon(self, way: int, delta: float) -> float:
        if not self._heavy:
            return self._direction(way, REACHES[-1]).epsilon(delta)
        best = math.inf
        for near, far in pairwise((0.0, *REACHES)):  # every one of them is a bound
            best = min(best, self._direction(way, far).epsilon(delta))
            if 1.5 * best <= near:
                break
        return best

    def _direction(self, way: int, far: float) -> Direction:
        if (way, far) not in self._directions:
            self._directions[way, far] = Direction([(loss_law(event, way, far), count) for event, count in self._parts])
        return self._directions[way, far]


def _plain(event: Event) -> Event:
    """The event without what does not matter here: votes, and sampling without replacement at rate 1."""
    if isinstance(event, ConfidentGNMax):
        return replace(event, votes=None)
    if isinstance(event, SampledGaussian) and event.sampling_rate == 1 and event.sampler == "without_replacement":
        return Gaussian(event.noise_multiplier, event.adjacency)
    return event


def _symmetric(event: Event) -> bool:
    """Whether both directions have the same curve."""
    if isinstance(event, SampledGaussian):
        return event.adjacency == "replace_one"
    return isinstance(event, Gaussian | Laplace)


def _refusal(event: Event) -> str | None:
    """Why there is no proven pair for this event, or none within reach of doubles; None where there is."""
    if isinstance(event, DiscretePair | ConfidentGNMax):
        return None
    noise = event.relative_noise if isinstance(event, Gaussian | Laplace) else event.noise_multiplier
    if noise < _LEAST_NOISE:
        return f"noise_multiplier = {noise!r}: expected at least {_LEAST_NOISE}; with less noise losses are too large"
    if isinstance(event, Gaussian | Laplace):
        return None
    known = [("poisson", "add_or_remove"), ("poisson", "zero_out")]  # the zeroed record moves no sum: one pair for both
    if isinstance(event, SampledGaussian):
        known += [("poisson", "replace_one"), ("without_replacement", "replace_one")]
    if isinstance(event, GroupSampledGaussian) and event.group_size > LARGEST_GROUP:
        return (
            f"group_size = {event.group_size}: expected at most {LARGEST_GROUP}, for the sums grow with it; use `rdp`"
        )
    if isinstance(event, RandomSensitivityGaussian) and event.projections > MOST_PROJECTIONS:
        return f"projections = {event.projections}: expected at most {MOST_PROJECTIONS}; use `exact`"
    if (event.sampler, event.adjacency) not in known:
        return (
            f"sampler = {event.sampler!r} with adjacency = {event.adjacency!r}: no dominating pair is proven for it;"
            " expected " + " or ".join(f"{sampler} with {adjacency}" for sampler, adjacency in known)
        )
    return None


def _curve(composition: Composition) -> LatticeCurve:
    found: LatticeCurve = called(lambda: LatticeCurve(composition, adjacency_of(composition)))
    return found


accountant = Published(
    "lattice",
    "upper_bound",
    partial(support, refusal=_refusal, theorem="the composition of dominating pairs"),
    _curve,
)
