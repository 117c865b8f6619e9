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


@dataclass(frozen=True)
class Gaussian:
    """The Gaussian mechanism: N(0, σ²) against N(1, σ²), sensitivity 1.

    `noise_multiplier` is σ relative to the sensitivity, in (0, inf]. The pair is attained and symmetric.

    >>> Gaussian(noise_multiplier=1.0)
    Gaussian(noise_multiplier=1.0, adjacency='add_or_remove')
    """

    noise_multiplier: float
    adjacency: Adjacency = "add_or_remove"

    def __post_init__(self) -> None:
        value = _number("noise_multiplier", self.noise_multiplier)
        _check("noise_multiplier", self.noise_multiplier, value > 0, "a number above 0")
        _check("adjacency", self.adjacency, self.adjacency in ADJACENCIES, "one of " + ", ".join(ADJACENCIES))


@dataclass(frozen=True)
class SampledGaussian:
    """A Gaussian sum over a random sample: one step of DP-SGD.

    With Poisson sampling and add-or-remove neighbours the dominating pairs are, for remove,
    (1−q)·N(0, σ²) + q·N(1, σ²) against N(0, σ²), and for add the same pair reversed; both are attained.
    `sampling_rate` is q in [0, 1]; `noise_multiplier` is σ relative to the clip norm, in (0, inf].

    >>> SampledGaussian(sampling_rate=256 / 60000, noise_multiplier=1.3).sampler
    'poisson'
    """

    sampling_rate: float
    noise_multiplier: float
    adjacency: Adjacency = "add_or_remove"
    sampler: Sampler = "poisson"

    def __post_init__(self) -> None:
        rate = _number("sampling_rate", self.sampling_rate)
        sigma = _number("noise_multiplier", self.noise_multiplier)
        _check("sampling_rate", self.sampling_rate, 0 <= rate <= 1, "a number from 0 to 1")
        _check("noise_multiplier", self.noise_multiplier, sigma > 0, "a number above 0")
        _check("adjacency", self.adjacency, self.adjacency in ADJACENCIES, "one of " + ", ".join(ADJACENCIES))
        _check("sampler", self.sampler, self.sampler in SAMPLERS, "one of " + ", ".join(SAMPLERS))


Event = Gaussian | SampledGaussian
EVENTS: dict[str, type[Any]] = {"Gaussian": Gaussian, "SampledGaussian": SampledGaussian}


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
            whole = isinstance(count, int) and not isinstance(count, bool) and count >= 0
            _check("count", count, whole, "a whole number, 0 or more")

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
