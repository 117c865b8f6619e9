"""The reference of the sampled Gaussian when one record is replaced by another, Poisson sampling.

The worst pair: a record that moves the sum by +1 is replaced by one that moves it by −1, each with noise σ:
(1−q) N(0, σ²) + q N(1, σ²) against (1−q) N(0, σ²) + q N(−1, σ²), its own reverse. Compositions on the lattice.
With q = 1 it is a Gaussian of sensitivity 2:

    >>> from dpbench.events import Gaussian, SampledGaussian
    >>> from dpbench.references.gaussian import reference as gaussian
    >>> event = SampledGaussian(1.0, 3.0, adjacency="replace_one")
    >>> reference.delta(event, 0.5, digits=20).overlaps(gaussian.delta(Gaussian(1.5), 0.5, digits=20))
    True
"""

from __future__ import annotations

import math
from fractions import Fraction

from dpbench.events import Event, SampledGaussian
from dpbench.references._reference import Reference, Subject, parts
from dpbench.references._release import Releases, counted
from dpbench.references._replaced import Replaced


def law(event: Event) -> Replaced | None:
    """The law of one event; None where it tells nothing. Raises ValueError for what is not covered."""
    if not isinstance(event, SampledGaussian):
        raise ValueError(f"event = {event!r}: expected a SampledGaussian")
    if (event.adjacency, event.sampler) != ("replace_one", "poisson"):
        raise ValueError(f"adjacency, sampler = {event.adjacency}, {event.sampler}: expected replace_one, poisson")
    rate = Fraction(event.sampling_rate)
    if not rate or math.isinf(event.noise_multiplier):
        return None
    return Replaced(rate, Fraction(event.noise_multiplier) ** 2)


def _releases(subject: Subject) -> Releases:
    laws = ((law(event), count) for event, count in parts(subject))
    return counted((found, count) for found, count in laws if found)


reference = Reference("SampledGaussian", _releases)
