"""Which leaf of the exact accountant stands for which event, and which events it refuses."""

from __future__ import annotations

import math

from dpbench.accountants._atoms import atomic_support, silent
from dpbench.accountants._loss_leaf import LossLeaf, Ratio
from dpbench.accounting import No, Yes
from dpbench.compose import adaptive_refusal, common_adjacency
from dpbench.events import (
    ADJACENCIES,
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

_MOST_NOISE = 1e100  # beyond, nothing is revealed that a double could tell

_MOST_GROUP = 1000  # C(1000, 500) is below the largest double


def support(composition: Composition) -> Yes | No:
    """Whether the releases have leaves, or are losses with atoms whose sums are exact alone."""
    kinds = {type(event) for event, _ in composition.parts}
    return atomic_support(composition) if kinds and kinds <= {DiscretePair, Laplace} else event_support(composition)


def event_support(composition: Composition) -> Yes | No:
    """Whether every release has leaves or atoms, and all share one neighbouring relation, with fixed parameters."""
    kinds = {type(event) for event, _ in composition.parts}
    for event, _ in composition.parts:
        reason = _refusal(event)
        if reason:
            return No(reason)
    if {RandomSensitivityGaussian, GroupSampledGaussian} <= kinds:
        return No("RandomSensitivityGaussian and GroupSampledGaussian in one composition are not covered; split them")
    if common_adjacency(composition) is None:
        return No("the parts name different neighbouring relations, so that no one guarantee holds; use a single one")
    reason = adaptive_refusal(composition, "the composition of privacy losses")
    return Yes() if reason is None else No(reason)


def _refusal(event: Event) -> str | None:
    if isinstance(event, Gaussian | Laplace | DiscretePair):
        return None
    if isinstance(event, ConfidentGNMax):
        return None if event.votes is None else "votes are given, but data-dependent losses have no fixed pair"
    if isinstance(event, GroupSampledGaussian) and event.group_size > _MOST_GROUP:
        return f"group_size = {event.group_size}: the mixture of a group of more than {_MOST_GROUP} is beyond doubles"
    if event.sampler == "shuffled":
        return (
            "sampler = 'shuffled': the records of an epoch are dependent, and no pair of distributions is known"
            " that dominates it; sample with Poisson, or choose an accountant for this sampler"
        )
    if event.sampler != "poisson":
        return (
            f"sampler = {event.sampler!r}: no pair of datasets is the worst for every epsilon, so that there is no"
            " exact curve; try the accountant 'lattice'"
        )
    allowed = ADJACENCIES if isinstance(event, SampledGaussian) else ("add_or_remove", "zero_out")
    if event.adjacency not in allowed:
        return f"adjacency = {event.adjacency!r}: expected one of {', '.join(allowed)} for sampled releases"
    return None


def leaves(event: Event, direction: str) -> tuple[LossLeaf, ...]:
    """The leaves of one release in one direction; none where it reveals nothing."""
    if isinstance(event, Gaussian):
        return _gaussian(event.relative_noise, direction)
    if isinstance(event, ConfidentGNMax):
        found = _gaussian(event.selection_noise, direction)
        return found + (_gaussian(event.answer_noise / math.sqrt(2), direction) if event.answered else ())
    if isinstance(event, Laplace | DiscretePair):
        assert silent(event)  # `_unlike` has the others
        return ()
    if event.sampling_rate == 0 or event.noise_multiplier > _MOST_NOISE:
        return ()
    assert not isinstance(event, RandomSensitivityGaussian)  # which has no leaf: `_projections` has its transform
    rate, sigma = event.sampling_rate, event.noise_multiplier
    if isinstance(event, GroupSampledGaussian):
        size = event.group_size
        weights = tuple(math.comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in range(size + 1))
        return _oriented(Ratio(weights, sigma), direction)
    if event.adjacency == "replace_one":
        if rate == 1:  # two normals whose means are 2 apart
            return _gaussian(sigma / 2, direction)
        ratio = Ratio((1 - rate, rate), sigma)
        return (LossLeaf(ratio, 1, 0, Ratio((1 - rate, rate), sigma, reverse=True)),)
    return _oriented(Ratio((1 - rate, rate), sigma), direction)


def _gaussian(sigma: float, direction: str) -> tuple[LossLeaf, ...]:
    return () if sigma > _MOST_NOISE else _oriented(Ratio((0.0, 1.0), sigma), direction)


def _oriented(ratio: Ratio, direction: str) -> tuple[LossLeaf, ...]:
    return (LossLeaf(ratio, 1, 1) if direction == "remove" else LossLeaf(ratio, -1, 0),)
