"""Events: frozen data, each a complete description of one mechanism invocation; and their composition.

An event names the pair of distributions that dominates the mechanism, the neighbouring relation and the sampler.
Standard library only: the independent references import this module and nothing else of the package.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from numbers import Integral, Real
from typing import Any, Literal, get_args

Adjacency = Literal["add_or_remove", "replace_one", "zero_out"]
Sampler = Literal["poisson", "without_replacement", "shuffled"]
ADJACENCIES: tuple[str, ...] = ("add_or_remove", "replace_one", "zero_out")
SAMPLERS: tuple[str, ...] = ("poisson", "without_replacement", "shuffled")


def batches_per_epoch(sampling_rate: float) -> int:
    """⌈1/q⌉, the shuffled batches that an epoch has: ⌈N/b⌉ for q = b/N, as long as N is below 10^9.

    1/q of the double q may lie above N/b by a few roundings; N/b itself is whole, or at least N^-1 relative above a
    whole number. Raises ValueError unless q is above 0 and at most 1.

    >>> batches_per_epoch(0.5), batches_per_epoch(128 / 1437), batches_per_epoch(3 / 147)
    (2, 12, 49)
    """
    if not 0 < sampling_rate <= 1:
        raise ValueError(f"sampling_rate = {sampling_rate!r}: expected a number above 0 and at most 1")
    return math.ceil(Fraction(10**9 - 1, 10**9) / Fraction(sampling_rate))


@dataclass(frozen=True)
class Values:
    """The valid values of a parameter: events check them; the JSON Schema of files of `kind: events` is made of them.

    `expected` says it in words; numbers are at least `least`, more than `above`, at most `most`; `choices` are for
    names; a list has `length` values or more, each of them like that.
    """

    about: str
    expected: str
    form: Literal["number", "finite", "whole", "name", "flag"] = "number"
    least: int | None = None
    above: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
    length: int | None = None

    def check(self, name: str, value: Any) -> Any:
        """The value in Python's own types (NumPy's numbers become those). Raises ValueError for any other value."""
        if self.length is None:
            _check(name, value, self._holds(name, value), self.expected)
            return self._plain(value)
        listed = isinstance(value, tuple | list) and len(value) >= self.length
        _check(name, value, listed and all(self._holds(name, item) for item in value), self.expected)
        return tuple(self._plain(item) for item in value)

    def _plain(self, value: Any) -> Any:
        if self.form in ("number", "finite"):
            return float(value)
        return int(value) if self.form == "whole" else value

    def _holds(self, name: str, value: Any) -> bool:
        if self.form == "flag":
            return isinstance(value, bool)
        if self.form == "name":
            return value in self.choices
        if self.form == "whole":
            return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= (self.least or 0)
        number = _number(name, value)
        if (self.least is not None and number < self.least) or (self.most is not None and number > self.most):
            return False
        return (self.above is None or number > self.above) and (self.form == "number" or math.isfinite(number))


_COUNTED = "a whole number, 1 or more"
_DEVIATION = "a number above 0"
_PROBABILITIES = "numbers from 0 to 1 that sum to 1 within 1e-12"
PARAMETERS: dict[str, Values] = {
    "sampling_rate": Values("q, the probability that a record is in a batch", "a number from 0 to 1", least=0, most=1),
    "noise_multiplier": Values("σ (or the scale b) relative to the clip norm", _DEVIATION, above=0),
    "sensitivity": Values(
        "how far neighbours move what is released, in clip norms; 2 for replace_one, else 1 where not given",
        "a finite number above 0",
        "finite",
        above=0,
    ),
    "adjacency": Values("neighbouring relation", "one of " + ", ".join(ADJACENCIES), "name", choices=ADJACENCIES),
    "sampler": Values("how batches are drawn", "one of " + ", ".join(SAMPLERS), "name", choices=SAMPLERS),
    "projections": Values("r, the Gaussian projections of each gradient", _COUNTED, "whole", least=1),
    "group_size": Values("g, the records of a group", _COUNTED, "whole", least=1),
    "first": Values("P(x) of each outcome, with the record", _PROBABILITIES, least=0, most=1, length=1),
    "second": Values("Q(x) of each outcome, without it", _PROBABILITIES, least=0, most=1, length=1),
    "threshold": Values("what the largest noisy count has to pass", "a finite number", "finite"),
    "selection_noise": Values("σ₁, of the test against the threshold", _DEVIATION, above=0),
    "answer_noise": Values("σ₂, on every count of the answer", _DEVIATION, above=0),
    "answered": Values("whether the threshold was passed", "true or false", "flag"),
    "votes": Values("the counts of all classes", "two or more whole numbers, 0 or more", "whole", least=0, length=2),
}


_COUNT = Values("how often it was released", "a whole number, 0 or more", "whole", least=0)


def _check(name: str, value: object, ok: bool, expected: str) -> None:
    if not ok:
        raise ValueError(f"{name} = {value!r}: expected {expected}")


def _number(name: str, value: object) -> float:
    if type(value) is float and value == value:  # most of them, and `Real` is slow
        return value
    try:
        number = float(value) if not isinstance(value, bool) and isinstance(value, Real) else math.nan
    except OverflowError:
        raise ValueError(f"{name}: expected a number that a double holds, below 1.8e308") from None
    if math.isnan(number):
        raise ValueError(f"{name} = {value!r}: expected a number")
    return number


class _Checked:
    """What all events share: every parameter is checked against `PARAMETERS` and kept as a plain value.

    A parameter with default None may be None.
    """

    def __post_init__(self) -> None:
        made: Any = self
        for slot in fields(made):
            value = getattr(self, slot.name)
            if value is not None or slot.default is not None:
                object.__setattr__(self, slot.name, PARAMETERS[slot.name].check(slot.name, value))

    @property
    def attained(self) -> bool:
        """Whether a pair of datasets attains the dominating pair under the released output."""
        return True


class _WholeSum(_Checked):
    """What `Gaussian` and `Laplace` share: noise on a sum of all records, each clipped to norm 1."""

    noise_multiplier: float
    adjacency: Adjacency
    sensitivity: float | None

    @property
    def moved(self) -> float:
        """The sensitivity in clip norms: as given, else 2 under `replace_one` (one out, another in) and 1 otherwise."""
        if self.sensitivity is not None:
            return self.sensitivity
        return 2.0 if self.adjacency == "replace_one" else 1.0

    @property
    def exact_noise(self) -> Fraction | None:
        """`noise_multiplier` over the sensitivity, exactly; None where the noise is infinite."""
        return None if math.isinf(self.noise_multiplier) else Fraction(self.noise_multiplier) / Fraction(self.moved)

    @property
    def relative_noise(self) -> float:
        """The same as a double, rounded down: less noise never promises more privacy."""
        exact = self.exact_noise
        if exact is None or self.moved == 1:
            return self.noise_multiplier
        found = float(exact)
        return found if Fraction(found) <= exact else math.nextafter(found, 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        ratio = self.noise_multiplier / self.moved
        ok = ratio > 0 and (math.isfinite(ratio) or math.isinf(self.noise_multiplier))
        _check("noise_multiplier", self.noise_multiplier, ok, f"one that over sensitivity {self.moved!r} is a double")


@dataclass(frozen=True)
class Gaussian(_WholeSum):
    """The Gaussian mechanism on a sum of all records: N(0, σ²) against N(Δ, σ²).

    `noise_multiplier` is σ relative to the clip norm, in (0, inf], as in `SampledGaussian`, which this is at rate 1. Δ
    is `sensitivity` in clip norms; where it is not given, 1, and under `replace_one` 2: one record goes, another comes.
    What is no clipped sum needs its own `sensitivity`. `relative_noise` is σ/Δ. The pair is attained and symmetric.

    >>> Gaussian(noise_multiplier=1.0)
    Gaussian(noise_multiplier=1.0, adjacency='add_or_remove', sensitivity=None)
    >>> Gaussian(2.0, "replace_one").relative_noise, Gaussian(2.0, "replace_one", sensitivity=1.0).relative_noise
    (1.0, 2.0)
    """

    noise_multiplier: float
    adjacency: Adjacency = "add_or_remove"
    sensitivity: float | None = None


@dataclass(frozen=True)
class SampledGaussian(_Checked):
    """A Gaussian sum over a random sample: one step of DP-SGD.

    `sampling_rate` is q in [0, 1]; `noise_multiplier` is σ relative to the clip norm, in (0, inf], under every
    neighbouring relation. The pairs of distributions:

    - `poisson`, `add_or_remove`: for remove (1−q)·N(0, σ²) + q·N(1, σ²) against N(0, σ²), for add the same pair
      reversed; both are attained.
    - `poisson`, `zero_out`: the same two pairs, attained. The record without effect is drawn or not, and moves no sum
      either way; the others are drawn independently of it, so the sum has the law that it has where the record is
      absent.
    - `poisson`, `replace_one`: (1−q)·N(0, σ²) + q·N(1, σ²) against (1−q)·N(0, σ²) + q·N(−1, σ²); attained.
    - `without_replacement` (a fixed batch of qN records), `replace_one`: no pair of datasets is the worst for every ε;
      bounds compose a proven dominating pair.
    - `shuffled`: one of the ⌈1/q⌉ batches of an epoch, in each of which every record is once; a composition's part of
      T such steps is one sequence. It begins with an epoch, or goes on with that of the part before where that has the
      same q. A step has no pair of its own, because the batches of an epoch depend on each other: every accountant but
      `shuffled` refuses them.

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


@dataclass(frozen=True)
class RandomSensitivityGaussian(_Checked):
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


@dataclass(frozen=True)
class GroupSampledGaussian(_Checked):
    """`SampledGaussian` seen by a group of g records that are all there or all absent (or all without effect).

    The sum of an aligned group moves by the number of its sampled members, so the pairs are, for remove,
    Σ_k Bin(k; g, q)·N(k, σ²) against N(0, σ²), and for add the reverse. Under `zero_out` they are the same, and
    attained as well: members without effect may be drawn but move no sum, and nobody else's draw depends on theirs.
    Mixed groups, some records added and some removed, and replaced ones are not covered: for them there is only the
    generic bound of group privacy.

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
        return self.sampler == "poisson" and self.adjacency != "replace_one"


@dataclass(frozen=True)
class Laplace(_WholeSum):
    """The Laplace mechanism on a sum of all records: Lap(0, b) against Lap(Δ, b).

    `noise_multiplier` is the scale b relative to the clip norm (L1), in (0, inf]; Δ is `sensitivity` as in `Gaussian`.
    The loss lies in [−Δ/b, Δ/b] and has an atom at either end. The pair is attained and symmetric.

    >>> Laplace(noise_multiplier=2.0)
    Laplace(noise_multiplier=2.0, adjacency='add_or_remove', sensitivity=None)
    """

    noise_multiplier: float
    adjacency: Adjacency = "add_or_remove"
    sensitivity: float | None = None


@dataclass(frozen=True)
class DiscretePair(_Checked):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("first", "second"):
            numbers = getattr(self, name)
            _check(name, numbers, abs(math.fsum(numbers) - 1) <= 1e-12, _PROBABILITIES)
        lengths = (len(self.first), len(self.second))
        _check("second", self.second, lengths[0] == lengths[1], f"{lengths[0]} probabilities, as many as in `first`")


@dataclass(frozen=True)
class ConfidentGNMax(_Checked):
    """One query of PATE's Confident-GNMax aggregator (Papernot et al. 2018, Algorithm 1).

    First the largest vote count plus N(0, σ₁²) is compared with `threshold`; where it passes (`answered`), the class
    with the largest count after noise N(0, σ₂²) on every count is released. Neighbouring data change one teacher's
    vote, under every relation. Data-independent: a Gaussian of sensitivity 1 with σ₁ = `selection_noise` and, where
    answered, one of sensitivity √2 with σ₂ = `answer_noise`. With `votes`, the counts of all classes for this query,
    bounds may be data-dependent; such an ε depends on private data itself and is no promise unless it is released
    privately.

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


Event = (
    Gaussian
    | SampledGaussian
    | RandomSensitivityGaussian
    | GroupSampledGaussian
    | Laplace
    | DiscretePair
    | ConfidentGNMax
)
EVENTS: dict[str, type[Any]] = {event.__name__: event for event in get_args(Event)}


@dataclass(frozen=True)
class Composition:
    """Mechanism invocations in their order: events, each with the number of its repetitions.

    `adaptive` says that later *parameters* (not only later inputs) depend on earlier outputs; only accountants
    whose theorem covers that may accept it.

    >>> Composition(((SampledGaussian(0.01, 1.0), 1000),)).parts[0][1]
    1000
    """

    parts: tuple[tuple[Event, int], ...]
    adaptive: bool = False

    def __post_init__(self) -> None:
        parts = []
        for event, count in self.parts:
            _check("event", event, type(event).__name__ in EVENTS, "one of " + ", ".join(EVENTS))
            parts.append((event, _COUNT.check("count", count)))
        object.__setattr__(self, "parts", tuple(parts))

    def prefix(self, releases: int) -> Composition:
        """The first `releases` invocations: what had been spent up to there."""
        kept: list[tuple[Event, int]] = []
        for event, count in self.parts:
            if releases > 0:
                kept.append((event, min(count, releases)))
            releases -= count
        return Composition(tuple(kept), self.adaptive)


def to_json(composition: Composition) -> dict[str, Any]:
    """A composition as plain data, for records; `from_json` is its inverse. What was not given is left out."""
    parts = [
        {
            "event": type(event).__name__,
            **{name: value for name, value in asdict(event).items() if value is not None},
            "count": count,
        }
        for event, count in composition.parts
    ]
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
