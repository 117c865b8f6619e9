"""The reference of the sampled Gaussian: Poisson sampling, add-or-remove neighbours, any number of invocations.

With q = sampling rate and σ = noise multiplier one invocation is, for remove, (1−q) N(0, σ²) + q N(1, σ²) against N(0,
σ²), and for add the reverse; a composition is the product of its mechanisms, all in one direction, and δ(ε) is the
larger of the two directions' hockey-stick divergences. Gaussian events count as q = 1. One invocation is enclosed to
any number of digits, more by a lattice (`_lattice.py` has the proof), with a width that depends on the grid:

    >>> from dpbench.events import SampledGaussian
    >>> step = SampledGaussian(sampling_rate=0.01, noise_multiplier=1.0)
    >>> reference.delta(step, 0.5, digits=10).contains(2.2145190131530615558e-07)
    True
    >>> reference.delta((step, 100), 1.0, cells=4096).relative_width < 0.01
    True
"""

from __future__ import annotations

from fractions import Fraction

from dpbench.events import Event, Gaussian, SampledGaussian
from dpbench.references._pair import Sampled
from dpbench.references._reference import reference_of, sampled


def law(event: Event) -> Sampled | None:
    """The law of one event; None where it has zero loss. Raises ValueError for what is not covered."""
    if isinstance(event, Gaussian) and event.adjacency == "add_or_remove":
        return None if event.exact_noise is None else Sampled(Fraction(1), event.exact_noise**2)
    known = sampled(event, SampledGaussian)
    return Sampled(*known) if known else None


reference = reference_of("SampledGaussian", law)
