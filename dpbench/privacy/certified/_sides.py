"""The two sides of a neighbouring relation: from a composition to one list of factors per direction.

The table of pairs is section 1 of docs/certified.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from flint import arb

from dpbench.errors import DpbenchError
from dpbench.events import (
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
from dpbench.privacy.certified._factors import AtomsFactor, Factor, GaussianFactor, LaplaceFactor
from dpbench.privacy.certified._jl import JlFactor
from dpbench.privacy.certified._mixture import Direction, Mixture
from dpbench.privacy.certified._numbers import ball_of
from dpbench.privacy.composition import adaptive_refusal, common_adjacency, merge

MOST_GROUP = 64
MOST_PROJECTIONS = 2000
LEAST_RATE, LEAST_NOISE = 1e-30, 0.01  # with random sensitivity; below, values of the density take too long


@dataclass
class Side:
    """One direction: factors with their counts, and what makes the loss infinite. Holds exact numbers only."""

    name: str
    parts: list[tuple[Factor, int]] = field(default_factory=list)
    finite: list[tuple[Fraction, int]] = field(default_factory=list)  # P(L < ∞) of single mechanisms below 1, counts
    gaussians: list[tuple[int, float]] = field(default_factory=list)  # count · squared sensitivity, σ

    def infinite(self) -> Any:
        """P(L = ∞) of the whole composition, a ball in the bits now in force; exactly 0 where it is."""
        total = arb(1)
        for share, count in self.finite:
            total *= ball_of(share) ** count
        return 1 - total


def sides(composition: Composition) -> list[Side]:
    """The directions that the neighbouring relation asks for: one where every pair is symmetric, else two.

    Raises DpbenchError, with the reason, for what is not covered.
    """
    adaptive = adaptive_refusal(composition, "the composition of privacy losses")
    if adaptive is not None:
        raise DpbenchError(f"cannot certify: {adaptive}")
    if common_adjacency(composition) is None:
        raise DpbenchError(
            "cannot certify: the parts name different neighbouring relations, so that no one guarantee holds;"
            " use a single one"
        )
    merged = merge(composition)
    for event, _ in merged:
        reason = refusal(event)
        if reason is not None:
            raise DpbenchError(f"cannot certify {type(event).__name__}: {reason}")
    found = [_side(merged, "remove"), _side(merged, "add")]
    return found[:1] if all(_symmetric(event) for event, _ in merged) else found


def refusal(event: Event) -> str | None:
    """Why an event is not covered; None where it is."""
    if isinstance(event, SampledGaussian | RandomSensitivityGaussian | GroupSampledGaussian):
        if event.sampler == "shuffled":
            return (
                "sampler = 'shuffled': the analysis needs Poisson sampling, and the shuffled batches of an epoch"
                " depend on each other; sample that way instead"
            )
        if event.sampler != "poisson":
            return f"sampler = {event.sampler!r}: no pair of datasets is the worst for every ε; use Poisson sampling"
        covered: tuple[str, ...] = ("add_or_remove", "zero_out")
        if isinstance(event, SampledGaussian):
            covered += ("replace_one",)
        if event.adjacency not in covered:
            return f"adjacency = {event.adjacency!r}: expected one of {', '.join(covered)}"
    exact = event.exact_noise if isinstance(event, Laplace) else None
    if isinstance(event, Laplace) and exact is not None and exact != Fraction(event.relative_noise):
        return (
            f"noise_multiplier, sensitivity = {event.noise_multiplier!r}, {event.moved!r}: their ratio is no double,"
            " and a proof takes no rounded one; give a ratio that is one, such as sensitivity 1"
        )
    if isinstance(event, RandomSensitivityGaussian) and event.projections > MOST_PROJECTIONS:
        return f"projections = {event.projections}: expected at most {MOST_PROJECTIONS}"
    if isinstance(event, RandomSensitivityGaussian) and 0 < event.sampling_rate < LEAST_RATE:
        return f"sampling_rate = {event.sampling_rate!r}: expected 0, or at least {LEAST_RATE:g}"
    if isinstance(event, RandomSensitivityGaussian) and event.noise_multiplier < LEAST_NOISE:
        return f"noise_multiplier = {event.noise_multiplier!r}: expected at least {LEAST_NOISE:g}"
    if isinstance(event, GroupSampledGaussian) and event.group_size > MOST_GROUP:
        return f"group_size = {event.group_size}: expected at most {MOST_GROUP}"
    return None


def _symmetric(event: Event) -> bool:
    """Whether both directions have the same loss."""
    if isinstance(event, SampledGaussian):
        return event.adjacency == "replace_one" or event.sampling_rate in (0, 1)
    if isinstance(event, GroupSampledGaussian | RandomSensitivityGaussian):
        return event.sampling_rate in (0, 1)
    if isinstance(event, DiscretePair):
        return event.first == event.second
    return True


def _side(merged: tuple[tuple[Event, int], ...], name: Direction) -> Side:
    side = Side(name)
    for event, count in merged:
        _ADDERS[type(event)](side, event, count, name)
    if side.gaussians:
        side.parts.append((GaussianFactor(tuple(side.gaussians)), 1))
    return side


def _add_gaussian(side: Side, event: Gaussian, count: int, name: Direction) -> None:
    del name
    over, under = event.moved.as_integer_ratio()  # (over/under)²/σ² = over²/(under σ)², and under is a power of two
    noise = under * event.noise_multiplier
    if math.isinf(noise) and math.isfinite(event.noise_multiplier):
        raise DpbenchError(
            f"noise_multiplier = {event.noise_multiplier:g} at sensitivity = {float(event.moved):g}: expected at most"
            f" {sys.float_info.max / under:.2g} for a proof; more noise is next to infinite"
        )
    _add_mu(side, over * over, noise, count)


def _add_mu(side: Side, squared_sensitivity: int, noise: float, count: int) -> None:
    if math.isfinite(noise):
        side.gaussians.append((count * squared_sensitivity, float(noise)))


def _add_sampled(side: Side, event: SampledGaussian, count: int, name: Direction) -> None:
    if event.sampling_rate == 0 or event.noise_multiplier == math.inf:
        return
    replace = event.adjacency == "replace_one"
    if event.sampling_rate == 1:
        _add_mu(side, 4 if replace else 1, event.noise_multiplier, count)
        return
    rate = Fraction(event.sampling_rate)
    weights = (1 - rate, rate)
    side.parts.append((Mixture(weights, float(event.noise_multiplier), "replace" if replace else name), count))


def _add_group(side: Side, event: GroupSampledGaussian, count: int, name: Direction) -> None:
    if event.sampling_rate == 0 or event.noise_multiplier == math.inf:
        return
    size = event.group_size
    if event.sampling_rate == 1:
        _add_mu(side, size * size, event.noise_multiplier, count)
        return
    rate = Fraction(event.sampling_rate)
    weights = tuple(math.comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in range(size + 1))
    side.parts.append((Mixture(weights, float(event.noise_multiplier), name), count))


def _add_random_sensitivity(side: Side, event: RandomSensitivityGaussian, count: int, name: Direction) -> None:
    if event.sampling_rate != 0 and event.noise_multiplier != math.inf:
        direction: Direction = "remove" if event.sampling_rate == 1 else name
        rate = Fraction(event.sampling_rate)
        side.parts.append((JlFactor(rate, float(event.noise_multiplier), event.projections, direction), count))


def _add_laplace(side: Side, event: Laplace, count: int, name: Direction) -> None:
    del name
    if event.exact_noise is not None:
        side.parts.append((LaplaceFactor(float(event.exact_noise)), count))


def _add_pair(side: Side, event: DiscretePair, count: int, name: Direction) -> None:
    pairs = exact_pairs(event, name)
    if all(p == q for p, q in pairs):
        return
    finite = sum((p for p, q in pairs if q), Fraction(0))
    if finite != 1:
        side.finite.append((finite, count))
    side.parts.append((AtomsFactor(tuple(pairs)), count))


def exact_pairs(event: DiscretePair, name: Direction) -> list[tuple[Fraction, Fraction]]:
    """(P(x), Q(x)) as exact fractions that sum to 1, outcomes of the same ratio together, none with both zero."""
    columns = [[Fraction(value) for value in values] for values in (event.first, event.second)]
    first, second = ([value / sum(values) for value in values] for values in columns)
    if name == "add":
        first, second = second, first
    together: dict[Fraction | None, tuple[Fraction, Fraction]] = {}
    for p, q in zip(first, second, strict=True):
        if p or q:
            key = p / q if q else None
            old = together.get(key, (Fraction(0), Fraction(0)))
            together[key] = (old[0] + p, old[1] + q)
    return list(together.values())


def _add_gnmax(side: Side, event: ConfidentGNMax, count: int, name: Direction) -> None:
    del name
    _add_mu(side, 1, event.selection_noise, count)
    if event.answered:
        _add_mu(side, 2, event.answer_noise, count)


_ADDERS: dict[type[Any], Callable[[Side, Any, int, Direction], None]] = {
    Gaussian: _add_gaussian,
    SampledGaussian: _add_sampled,
    GroupSampledGaussian: _add_group,
    RandomSensitivityGaussian: _add_random_sensitivity,
    Laplace: _add_laplace,
    DiscretePair: _add_pair,
    ConfidentGNMax: _add_gnmax,
}
