"""The reference of the Gaussian of random sensitivity (norms estimated by projections), Poisson sampling.

With Z = (χ²_r / r)^(−1/2) one release is, for remove, (Z, (1−q) N(0, σ²) + q N(Z, σ²)) against (Z, N(0, σ²)), and for
add the reverse (jl2021, Lemma 4.3 and Theorem 4.1). This encloses the curve of the dominating pair; the mechanism
itself may do better. A large Z shows the record, and its tail is heavy, so δ falls slowly in ε; with more projections
it comes near the sampled Gaussian. Compositions on the lattice.

    >>> from dpbench.events import RandomSensitivityGaussian, SampledGaussian
    >>> from dpbench.references.sampled_gaussian import reference as sampled
    >>> few, many = (reference.delta(RandomSensitivityGaussian(0.01, 1.0, r), 3.0, digits=8) for r in (2, 1000))
    >>> f"{few.upper:.3g}, {many.upper:.3g}, {sampled.delta(SampledGaussian(0.01, 1.0), 3.0, digits=8).upper:.3g}"
    '0.000635, 2.46e-15, 1.04e-15'
"""

from __future__ import annotations

import math
from fractions import Fraction

from dpbench.events import Event, RandomSensitivityGaussian
from dpbench.references._random_sensitivity import RandomSensitivity
from dpbench.references._reference import Reference, Subject, parts
from dpbench.references._release import Releases, counted


def law(event: Event) -> RandomSensitivity | None:
    """The law of one event; None where it tells nothing. Raises ValueError for what is not covered."""
    if not isinstance(event, RandomSensitivityGaussian):
        raise ValueError(f"event = {event!r}: expected a RandomSensitivityGaussian")
    if (event.adjacency, event.sampler) != ("add_or_remove", "poisson"):
        raise ValueError(f"adjacency, sampler = {event.adjacency}, {event.sampler}: expected add_or_remove, poisson")
    rate = Fraction(event.sampling_rate)
    if not rate or math.isinf(event.noise_multiplier):
        return None
    return RandomSensitivity(rate, Fraction(event.noise_multiplier) ** 2, event.projections)


def _releases(subject: Subject) -> Releases:
    laws = ((law(event), count) for event, count in parts(subject))
    return counted((found, count) for found, count in laws if found)


reference = Reference("RandomSensitivityGaussian", _releases)
