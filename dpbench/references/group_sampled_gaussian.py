"""The reference of the group's sampled Gaussian: g records that are all there or all absent, Poisson sampling.

One release is Σ_k Bin(k; g, q) N(k, σ²) against N(0, σ²) for remove and the reverse for add; compositions on the
lattice. With g = 1 it is the sampled Gaussian:

    >>> from dpbench.events import GroupSampledGaussian, SampledGaussian
    >>> from dpbench.references.sampled_gaussian import reference as sampled
    >>> one = reference.delta(GroupSampledGaussian(0.01, 1.0, group_size=1), 0.5, digits=20)
    >>> one.overlaps(sampled.delta(SampledGaussian(0.01, 1.0), 0.5, digits=20))
    True
    >>> four = reference.delta(GroupSampledGaussian(0.01, 1.0, group_size=4), 0.5, digits=20)
    >>> four.lower > 100 * one.upper
    True
"""

from __future__ import annotations

import math
from fractions import Fraction

from dpbench.events import Event, GroupSampledGaussian
from dpbench.references._group import Group
from dpbench.references._reference import Reference, Subject, parts
from dpbench.references._release import Releases, counted


def law(event: Event) -> Group | None:
    """The law of one event; None where it tells nothing. Raises ValueError for what is not covered."""
    if not isinstance(event, GroupSampledGaussian):
        raise ValueError(f"event = {event!r}: expected a GroupSampledGaussian")
    if (event.adjacency, event.sampler) != ("add_or_remove", "poisson"):
        raise ValueError(f"adjacency, sampler = {event.adjacency}, {event.sampler}: expected add_or_remove, poisson")
    rate = Fraction(event.sampling_rate)
    if not rate or math.isinf(event.noise_multiplier):
        return None
    return Group(rate, Fraction(event.noise_multiplier) ** 2, event.group_size)


def _releases(subject: Subject) -> Releases:
    laws = ((law(event), count) for event, count in parts(subject))
    return counted((found, count) for found, count in laws if found)


reference = Reference("GroupSampledGaussian", _releases)
