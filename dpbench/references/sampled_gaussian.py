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

from dpbench.events import Event, Gaussian, SampledGaussian
from dpbench.references._pair import Sampled
from dpbench.references._reference import Reference, Subject, parts
from dpbench.references._release import Releases, counted


def law(event: Event) -> Sampled | None:
    """The law of one event; None where it tells nothing. Raises ValueError for what is not covered."""
    if not isinstance(event, SampledGaussian | Gaussian):
        raise ValueError(f"event = {event!r}: expected a SampledGaussian or a Gaussian")
    if event.adjacency != "add_or_remove":
        raise ValueError(f"adjacency = {event.adjacency!r}: expected add_or_remove")
    if isinstance(event, SampledGaussian) and event.sampler != "poisson":
        raise ValueError(f"sampler = {event.sampler!r}: expected poisson")
    rate = Fraction(event.sampling_rate) if isinstance(event, SampledGaussian) else Fraction(1)
    if not rate or math.isinf(event.noise_multiplier):
        return None
    noise = event.exact_noise if isinstance(event, Gaussian) else Fraction(event.noise_multiplier)
    return None if noise is None else Sampled(rate, noise**2)


def _releases(subject: Subject) -> Releases:
    laws = ((law(event), count) for event, count in parts(subject))
    return counted((found, count) for found, count in laws if found)


reference = Reference("SampledGaussian", _releases)
