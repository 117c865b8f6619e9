"""Privacy loss on a lattice: an upper bound for every event with a proven pair, losses with atoms included.

Every release's curve is replaced by the tightest one on a lattice that lies on or above it ('connect the dots',
`_lattice_grid`), the lattices are composed by tilted Fourier transforms (`_lattice_curve`), and what is cut off or
wraps around is bounded and added to δ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from dpbench.accountants._hinges import confident_mu, log_hinge
from dpbench.accountants._lattice_losses import loss_law
from dpbench.accountants._lattice_lower import explicit_datasets
from dpbench.accountants._lattice_projections import MOST_PROJECTIONS, REACHES
from dpbench.accountants._lattice_sparse import SparseSide
from dpbench.accountants._lattice_table import falls_to
from dpbench.accountants._pair_losses import shares
from dpbench.accountants._poisson import refuse
from dpbench.accounting import Estimate, GuaranteeKind, No, Yes, check_delta, check_epsilon
from dpbench.compose import adaptive_refusal, common_adjacency, merge
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
from dpbench.guards import said

_LEAST_NOISE = 0.02
LARGEST_GROUP = 64
_SLACK = 1e-11  # the relative error of a single release's curve, `_hinges`


@dataclass
class LatticeCurve:
    """The bound as a curve. A composition of a single release uses its closed form.

    For fixed-size batches `lower` is what explicit datasets reveal; the truth lies between. Elsewhere it is None.

    `sides` remembers tables; it never changes an answer.
    """

    composition: Composition
    adjacency: Adjacency
    kind: GuaranteeKind = "upper_bound"
    mu: None = None
    sides: dict[tuple[int, float], SparseSide] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._parts = _merged(self.composition)
        one_sided = all(_symmetric(event) for event, _ in self._parts)
        self._directions = () if not self._parts else (0,) if one_sided else (0, 1)
        self._single = sum(count for _, count in self._parts) == 1
        self._heavy = any(isinstance(event, RandomSensitivityGaussian) for event, _ in self._parts)
        self._least = explicit_datasets(self.composition)

    def delta(self, epsilon: float) -> Estimate:
        """An upper bound on δ at `epsilon`, in [0, 1]: the worse of both directions.

        Raises DpbenchError, as `epsilon` does, where the arithmetic ends.
        """
        epsilon = check_epsilon(epsilon)
        log_delta = said(
            lambda: max((self._log_delta(direction, epsilon) for direction in self._directions), default=-math.inf)
        )
        value = 0.0
        if log_delta > -math.inf:
            value = min(max(math.exp(min(log_delta, 0.0)) * (1 + _SLACK), math.ulp(0.0)), 1.0)
        return Estimate(value, _at_most(self._least.delta(epsilon), value), value)

    def epsilon(self, delta: float) -> Estimate:
        """An upper bound on ε at `delta`, in [0, inf]: the worse of both directions."""
        target = check_delta(delta) / (1 + _SLACK)
        value = said(lambda: max((self._epsilon(direction, target) for direction in self._directions), default=0.0))
        reason = "outcomes that reveal the record have more probability than delta" if value == math.inf else None
        return Estimate(value, _at_most(self._least.epsilon(delta), value), value, reason)

    def _log_delta(self, direction: int, epsilon: float) -> float:
        if self._single:
            return float(log_hinge(self._parts[0][0], np.array([epsilon]), direction)[0])
        ends = [far for far in REACHES if far >= 1.5 * epsilon][:2] if self._heavy else []
        return min(self._side(direction, far).log_delta(epsilon) for far in ends or REACHES[-1:])

    def _epsilon(self, direction: int, delta: float) -> float:
        if self._single:
            return self._single_epsilon(direction, math.log(delta))
        if not self._heavy:
            return self._side(direction, REACHES[-1]).epsilon(delta)
        best = math.inf
        for near, far in pairwise((0.0, *REACHES)):  # every one of them is a bound
            best = min(best, self._side(direction, far).epsilon(delta))
            if 1.5 * best <= near:
                break
        return best

    def _single_epsilon(self, direction: int, log_delta: float) -> float:
        """The curve falls: bisection, to the last digits, on the upper side."""
        if self._log_delta(direction, 0.0) <= log_delta:
            return 0.0
        return falls_to(lambda epsilon: self._log_delta(direction, epsilon), log_delta, 1.0)

    def _side(self, direction: int, far: float) -> SparseSide:
        key = (direction, far if self._heavy else 0.0)
        if key not in self.sides:
            laws = [(loss_law(event, direction, far), count) for event, count in self._parts]
            self.sides[key] = SparseSide.of(laws)
        return self.sides[key]


def _at_most(lower: float | None, value: float) -> float | None:
    """The lower end where there is one, not above the upper end by a rounding."""
    return None if lower is None else min(lower, value)


def _merged(composition: Composition) -> tuple[tuple[Event, int], ...]:
    """Equal events together, those that reveal nothing left out, and all Gaussian releases as a single one."""
    rest: list[tuple[Event, int]] = []
    precision = 0.0
    adjacency: Adjacency = "add_or_remove"
    for event, count in merge(composition):
        gaussian = _gaussian_precision(event)
        if gaussian is not None:
            precision += count * gaussian
            adjacency = event.adjacency
        elif not _silent(event):
            rest.append((event, count))
    if precision > 0:
        rest.append((Gaussian(1 / math.sqrt(precision), adjacency, sensitivity=1.0), 1))
    return tuple(rest)


def _gaussian_precision(event: Event) -> float | None:
    """1/σ² where the release is a Gaussian one in all but name, else None."""
    if isinstance(event, Gaussian):
        return event.relative_noise**-2
    if isinstance(event, ConfidentGNMax):
        return confident_mu(event) ** 2
    if isinstance(event, SampledGaussian) and event.sampling_rate == 1:
        shift = 2 if event.adjacency == "replace_one" else 1
        return (shift / event.noise_multiplier) ** 2
    return None


def _silent(event: Event) -> bool:
    """Whether the release is independent of the data."""
    if isinstance(event, DiscretePair):
        return shares(event.first) == shares(event.second)
    assert not isinstance(event, ConfidentGNMax)  # counted as Gaussian
    if event.noise_multiplier == math.inf:
        return True
    return not isinstance(event, Gaussian | Laplace) and event.sampling_rate == 0


def _symmetric(event: Event) -> bool:
    """Whether both directions have the same curve."""
    if isinstance(event, DiscretePair):
        return False
    return isinstance(event, Gaussian | Laplace) or event.adjacency == "replace_one"


def _refusal(event: Event) -> str | None:
    """Why there is no proven pair for this event, or none within reach of doubles; None where there is."""
    if isinstance(event, DiscretePair | ConfidentGNMax):
        return None
    noise = event.relative_noise if isinstance(event, Gaussian | Laplace) else event.noise_multiplier
    if noise < _LEAST_NOISE:
        return f"noise_multiplier = {noise!r}: lattices serve from {_LEAST_NOISE} on; losses are larger"
    if isinstance(event, Gaussian | Laplace):
        return None
    if event.sampler == "shuffled":
        return (
            "sampler = 'shuffled': the records of one epoch are dependent, and no dominating pair is proven;"
            " sample with sampler 'poisson' or 'without_replacement'"
        )
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


@dataclass(frozen=True)
class LatticeAccountant:
    """Connect the dots and tilted transforms: an upper bound for events with a proven dominating pair.

    Proven, in exact arithmetic: each rounding of losses, and the bounds of what wraps around. Estimated, and added
    with a margin: the rounding of the transforms and of single masses, the quadrature's remainder (below 1e-14) and
    what lies beyond the ends of a quadrature (below 1e-19). Relative error of ε about 1e-6 or less where a lattice of
    2^18 cells resolves the composition, up to 1e-4 at large ε of a million releases; where one rare hit decides, δ may
    be a tenth too large; tests hold it against closed forms and enumerations. Random sensitivities have heavy tails,
    which leave only small tilts: there δ is good to a percent or so down to about 1e-8, and below may be far too large.

    >>> training = Composition(((SampledGaussian(256 / 60000, 1.3), 3516),))
    >>> round(accountant.curve(training).epsilon(1e-5).value, 4)
    0.8645
    """

    name: str = "lattice"
    kind: GuaranteeKind = "upper_bound"

    def supports(self, composition: Composition) -> Yes | No:
        """No, with the reason, for shuffled batches, mixed neighbouring relations and adaptive parameters."""
        for event, _ in composition.parts:
            reason = _refusal(event)
            if reason is not None:
                return No(reason)
        if common_adjacency(composition) is None:
            return No(
                "the parts name different neighbouring relations, so that no one guarantee holds; use a single one"
            )
        reason = adaptive_refusal(composition, "the composition of dominating pairs")
        return Yes() if reason is None else No(reason)

    def curve(self, composition: Composition) -> LatticeCurve:
        """The bound as a curve. Raises DpbenchError where `supports` says no."""
        refuse(self.supports(composition), self.name)
        adjacency = common_adjacency(composition)
        assert adjacency is not None  # supports has seen to it
        curve: LatticeCurve = said(lambda: LatticeCurve(composition, adjacency))
        return curve


accountant = LatticeAccountant()
