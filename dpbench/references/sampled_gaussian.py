"""The reference of the sampled Gaussian: Poisson sampling, add-or-remove neighbours, any number of releases.

With q = sampling rate and σ = noise multiplier one release is, for remove, (1−q) N(0, σ²) + q N(1, σ²) against
N(0, σ²), and for add the reverse; a composition is the product of its releases, all in one direction, and δ(ε) is the
larger of the two directions' hockey-stick divergences. Gaussian events count as q = 1. One release is enclosed to any
number of digits, more by a lattice (`_lattice.py` has the proof), with a width that depends on the grid:

    >>> from dpbench.events import SampledGaussian
    >>> step = SampledGaussian(sampling_rate=0.01, noise_multiplier=1.0)
    >>> reference.delta(step, 0.5, digits=10).contains(2.2145190131530615558e-07)
    True
    >>> reference.delta((step, 100), 1.0, cells=4096).relative_width < 0.01
    True
"""

from __future__ import annotations

import math
from fractions import Fraction

from dpbench.events import Gaussian, SampledGaussian
from dpbench.references._reference import Reference, Release, Subject, parts


def _releases(subject: Subject) -> tuple[Release, ...]:
    counts: dict[tuple[Fraction, Fraction], int] = {}
    for event, count in parts(subject):
        if not isinstance(event, SampledGaussian | Gaussian):
            raise ValueError(f"event = {event!r}: expected a SampledGaussian or a Gaussian")
        if event.adjacency != "add_or_remove":
            raise ValueError(f"adjacency = {event.adjacency!r}: expected add_or_remove")
        if isinstance(event, SampledGaussian) and event.sampler != "poisson":
            raise ValueError(f"sampler = {event.sampler!r}: expected poisson")
        rate = Fraction(event.sampling_rate) if isinstance(event, SampledGaussian) else Fraction(1)
        if rate and count and math.isfinite(event.noise_multiplier):
            key = (rate, Fraction(event.noise_multiplier) ** 2)
            counts[key] = counts.get(key, 0) + count
    return tuple((rate, variance, count) for (rate, variance), count in counts.items())


reference = Reference("SampledGaussian", _releases)
