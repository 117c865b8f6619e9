"""Events: frozen data that describe one randomized release completely, and their composition.

An event names the pair of distributions that dominates the release, the neighbouring relation and the sampler.
Standard library only: the independent references import this module and nothing else of the package.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

Adjacency = Literal["add_or_remove", "replace_one", "zero_out"]
Sampler = Literal["poisson", "without_replacement", "shuffled"]
ADJACENCIES: tuple[str, ...] = ("add_or_remove", "replace_one", "zero_out")
SAMPLERS: tuple[str, ...] = ("poisson", "without_replacement", "shuffled")


def _check(name: str, value: object, ok: bool, expected: str) -> None:
    if not ok:
        raise ValueError(f"{name} = {value!r}: expected {expected}")


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError(f"{name} = {value!r}: expected a number")
    return float(value)


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check_noise(event: Any) -> None:
    """The noise and the neighbouring relation, which every event with noise has."""
    value = _number("noise_multiplier", event.noise_multiplier)
    _check("noise_multiplier", event.noise_multiplier, value > 0, "a number above 0")
    _check("adjacency", event.adjacency, event.adjacency in ADJACENCIES, "one of " + ", ".join(ADJACENCIES))


def _check_sampled(event: Any) -> None:
    """The four parameters that every event of a sampled Gaussian has."""
    rate = _number("sampling_rate", event.sampling_rate)
    _check("sampling_rate", event.sampling_rate, 0 <= rate <= 1, "a number from 0 to 1")
    _check_noise(event)
    _check("sampler", event.sampler, event.sampler in SAMPLERS, "one of " + ", ".join(SAMPLERS))


@dataclass(frozen=True)
class Gaussian:
    """The Gaussian mechanism: N(0, σ²) against N(1, σ²), sensitivity 1.

    `noise_multiplier` is σ relative to the sensitivity, in (0, inf]. The pair is attained and symmetric.

    >>> Gaussian(noise_multiplier=1.0)
    Gaussian(noise_multiplier=1.0, adjacency='add_or_remove')
    """

    noise_multiplier: float
    adjacency: Adjacency = "add_or_remove"

    @property
    def attained(self) -> bool:
        """Whether a pair of datasets attains the dominating pair under the released output."""
        return True

    def __post_init__(self) -> None:
        _check_noise(self)


@dataclass(frozen=True)
class SampledGaussian:
    """A Gaussian sum over a random sample: one step of DP-SGD.

    `sampling_rate` is q in [0, 1]; `noise_multiplier` is σ relative to the clip norm, in (0, inf], under every
    neighbouring relation. The pairs of distributions:

    - `poisson`, `add_or_remove`: for remove (1−q)·N(0, σ²) + q·N(1, σ²) against N(0, σ²), for add the same pair
      reversed; both are attained.
    - `poisson`, `replace_one`: (1−q)·N(0, σ²) + q·N(1, σ²) against (1−q)·N(0, σ²) + q·N(−1, σ²); attained.
    - `without_replacement` (a fixed batch of qN records), `replace_one`: no pair of datasets is the worst for every ε;
      bounds compose a proven dominating pair.
    - `shuffled` fixed batches: every Poisson accountant refuses them, since the records of one epoch are dependent.

    >>> SampledGaussian(sampling_rate=256 / 60000, noise_multiplier=1.3).sampler
    'poisson'
    """

    sampling_rate: float
    noise_multiplier: float
    adjacency: Adjacency = "add_or_remove"
    sampler: Sampler = "poisson"

    @property
    def attained(self) -> bool:
        """Whether a pair of datasets attains the dominating pair under the released output."""
        return self.sampler == "poisson"

    def __post_init__(self) -> None:
        _check_sampled(self)


@dataclass(frozen=True)
class RandomSensitivityGaussian:
    """A step of DP-SGD whose gradient norms are estimated by r Gaussian projections (Johnson-Lindenstrauss).

    A record moves the sum by Z clip norms, Z = (χ²_r / r)^(−1/2), drawn anew at each step; `projections` is r >= 1.
    The dominating pairs release Z beside the sum: for remove (Z, (1−q)·N(0, σ²) + q·N(Z, σ²)) against
    (Z, N(0, σ²)), for add the reverse (jl2021, Lemma 4.3 and Theorem 4.1). They *dominate* only: the mechanism
    releases neither the projections nor Z. Z has a heavy tail, P(Z > t) of the order t^−r.

    >>> RandomSensitivityGaussian(sampling_rate=0.01, noise_multiplier=1.0, projections=5).attained
    False
    """

    sampling_rate: float
    noise_multiplier: float
    projections: int
    adjacency: Adjacency = "add_or_remove"
    sampler: Sampler = "poisson"

    @property
    def attained(self) -> bool:
        """Whether a pair of datasets attains the dominating pair under the released output."""
        return False

    def __post_init__(self) -> None:
        _check_sampled(self)
        _check("projections", self.projections, _whole(self.projections, 1), "a whole number, 1 or more")


@dataclass(frozen=True)
class GroupSampledGaussian:
    """`SampledGaussian` seen by a group of g records that are all there or all absent.

    The sum of an aligned group moves by the number of its sampled members, so the pairs are, for remove,
    Σ_k Bin(k; g, q)·N(k, σ²) against N(0, σ²), and for add the reverse. Mixed groups, some records added and some
    removed, are not covered: for them there is only the generic bound of group privacy.

    >>> GroupSampledGaussian(sampling_rate=0.01, noise_multiplier=1.0, group_size=4).group_size
    4
    """

    sampling_rate: float
    noise_multiplier: float
    group_size: int
    adjacency: Adjacency = "add_or_remove"
    sampler: Sampler = "poisson"

    @property
    def attained(self) -> bool:
        """Whether a pair of datasets attains the dominating pair under the released output."""
        return self.sampler == "poisson" and self.adjacency == "add_or_remove"

    def __post_init__(self) -> None:
        _check_sampled(self)
        _check("group_size", self.group_size, _whole(self.group_size, 1), "a whole number, 1 or more")


@dataclass(frozen=True)
class Laplace:
    """The Laplace mechanism: Lap(0, b) against Lap(1, b), sensitivity 1.

    `noise_multiplier` is the scale b relative to the sensitivity, in (0, inf]. The loss lies in [−1/b, 1/b] and has
    an atom at either end. The pair is attained and symmetric.

    >>> Laplace(noise_multiplier=2.0)
    Laplace(noise_multiplier=2.0, adjacency='add_or_remove')
    """

    noise_multiplier: float
    adjacency: Adjacency = "add_or_remove"

    @property
    def attained(self) -> bool:
        """Whether a pair of datasets attains the dominating pair under the released output."""
        return True

    def __post_init__(self) -> None:
        _check_noise(self)


@dataclass(frozen=True)
class DiscretePair:
    """Two distributions on the same finite set of outcomes, given as data.

    `first` holds the probabilities P(x) with the record, `second` Q(x) without it, in the same order of outcomes.
    Both must sum to 1 within 1e-12; what is meant are the given doubles divided by their exact sum. The guarantee
    covers P against Q (remove) and Q against P (add).

    >>> DiscretePair(first=(0.75, 0.25), second=(0.25, 0.75)).attained
    True
    """

    first: tuple[float, ...]
    second: tuple[float, ...]
    adjacency: Adjacency = "add_or_remove"

    @property
    def attained(self) -> bool:
        """Whether a pair of datasets attains the dominating pair under the released output."""
        return True

    def __post_init__(self) -> None:
        for name in ("first", "second"):
            values = getattr(self, name)
            listed = isinstance(values, tuple | list) and len(values) > 0
            _check(name, values, listed, "a list of probabilities")
            numbers = tuple(_number(name, value) for value in values)
            inside = all(0 <= value <= 1 for value in numbers) and abs(math.fsum(numbers) - 1) <= 1e-12
            _check(name, values, inside, "numbers from 0 to 1 that sum to 1 within 1e-12")
            object.__setattr__(self, name, numbers)
        lengths = (len(self.first), len(self.second))
        _check("second", self.second, lengths[0] == lengths[1], f"{lengths[0]} probabilities, as many as in `first`")
        _check("adjacency", self.adjacency, self.adjacency in ADJACENCIES, "one of " + ", ".join(ADJACENCIES))


@dataclass(frozen=True)
class ConfidentGNMax:
    """One query of PATE's Confident-GNMax aggregator (Papernot et al. 2018, Algorithm 1).

    First the largest vote count plus N(0, σ₁²) is held against `threshold`; where it passes (`answered`), the class
    with the largest count after noise N(0, σ₂²) on every count is released. Neighbouring data change one teacher's
    vote. Data-independent: a Gaussian of sensitivity 1 with σ₁ = `selection_noise` and, where answered, one of
    sensitivity √2 with σ₂ = `answer_noise`. With `votes`, the counts of all classes for this query, bounds may be
    data-dependent; such an ε depends on private data itself and is no promise unless it is released privately.

    >>> ConfidentGNMax(threshold=300, selection_noise=200, answer_noise=40).answered
    True
    """

    threshold: float
    selection_noise: float
    answer_noise: float
    answered: bool = True
    votes: tuple[int, ...] | None = None
    adjacency: Adjacency = "add_or_remove"

    @property
    def attained(self) -> bool:
        """Whether a pair of datasets attains the dominating pair under the released output."""
        return False

    def __post_init__(self) -> None:
        _check("threshold", self.threshold, math.isfinite(_number("threshold", self.threshold)), "a finite number")
        for name in ("selection_noise", "answer_noise"):
            _check(name, getattr(self, name), _number(name, getattr(self, name)) > 0, "a number above 0")
        _check("answered", self.answered, isinstance(self.answered, bool), "true or false")
        if self.votes is not None:
            listed = isinstance(self.votes, tuple | list) and len(self.votes) >= 2
            good = listed and all(_whole(vote, 0) for vote in self.votes)
            _check("votes", self.votes, good, "two or more whole numbers, 0 or more")
            object.__setattr__(self, "votes", tuple(self.votes))
        _check("adjacency", self.adjacency, self.adjacency in ADJACENCIES, "one of " + ", ".join(ADJACENCIES))


Event = (
    Gaussian
    | SampledGaussian
    | RandomSensitivityGaussian
    | GroupSampledGaussian
    | Laplace
    | DiscretePair
    | ConfidentGNMax
)
EVENTS: dict[str, type[Any]] = {
    "Gaussian": Gaussian,
    "SampledGaussian": SampledGaussian,
    "RandomSensitivityGaussian": RandomSensitivityGaussian,
    "GroupSampledGaussian": GroupSampledGaussian,
    "Laplace": Laplace,
    "DiscretePair": DiscretePair,
    "ConfidentGNMax": ConfidentGNMax,
}


@dataclass(frozen=True)
class Composition:
    """Releases in the order in which they happened, each an event with the number of times it was repeated.

    `adaptive` says that later *parameters* (not only later inputs) depend on earlier outputs; only accountants
    whose theorem covers that may accept it.

    >>> Composition(((SampledGaussian(0.01, 1.0), 1000),)).parts[0][1]
    1000
    """

    parts: tuple[tuple[Event, int], ...]
    adaptive: bool = False

    def __post_init__(self) -> None:
        for event, count in self.parts:
            _check("event", event, type(event).__name__ in EVENTS, "one of " + ", ".join(EVENTS))
            _check("count", count, _whole(count, 0), "a whole number, 0 or more")

    def prefix(self, releases: int) -> Composition:
        """The first `releases` releases: what had been spent when training had got that far."""
        kept: list[tuple[Event, int]] = []
        left = releases
        for event, count in self.parts:
            if left <= 0:
                break
            kept.append((event, min(count, left)))
            left -= count
        return Composition(tuple(kept), self.adaptive)


def to_json(composition: Composition) -> dict[str, Any]:
    """A composition as plain data, for records; `from_json` is its inverse."""
    parts = [{"event": type(event).__name__, **asdict(event), "count": count} for event, count in composition.parts]
    return {"adaptive": composition.adaptive, "parts": parts}


def from_json(data: dict[str, Any]) -> Composition:
    """The composition that `to_json` wrote. Raises ValueError for an unknown event or a bad parameter."""
    parts = []
    for part in data["parts"]:
        fields = dict(part)
        name, count = fields.pop("event"), fields.pop("count")
        _check("event", name, name in EVENTS, "one of " + ", ".join(EVENTS))
        parts.append((EVENTS[name](**fields), count))
    return Composition(tuple(parts), bool(data.get("adaptive", False)))
