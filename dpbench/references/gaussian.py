"""The reference of the Gaussian event: N(0, σ²) against N(Δ, σ²), and any number of them.

In units of Δ it is N(0, (σ/Δ)²) against N(1, (σ/Δ)²); below, σ is that ratio, an exact fraction. Releases x_1, ..., x_T
with deviations σ_i have the joint densities Π φ(x_i/σ_i)/σ_i and Π φ((x_i − 1)/σ_i)/σ_i. In the coordinates x_i/σ_i
both are standard normal in R^T around 0 and around v = (1/σ_1, ..., 1/σ_T); turn the axes so that one lies along v: the
other T − 1 coordinates have the same law under both and cancel from the likelihood ratio. So a composition of Gaussians
is one Gaussian with 1/σ² = Σ 1/σ_i², exactly, and its δ(ε) needs no lattice. (For the same composition on the lattice,
ask `sampled_gaussian` with q = 1: one checks the other.)

    >>> from dpbench.events import Gaussian
    >>> e = reference.delta((Gaussian(2.0), 4), 1.0, digits=12)
    >>> f"{e.floats()[0]:.12f}", f"{e.floats()[1]:.12f}"
    ('0.126936737507', '0.126936737507')
"""

from __future__ import annotations

from fractions import Fraction

from dpbench.events import Gaussian
from dpbench.references._pair import Sampled
from dpbench.references._reference import Reference, Subject, parts
from dpbench.references._release import Releases


def _releases(subject: Subject) -> Releases:
    precision = Fraction(0)  # Σ 1/σ²
    neighbours: set[str] = set()
    for event, count in parts(subject):
        if not isinstance(event, Gaussian):
            raise ValueError(f"event = {event!r}: expected a Gaussian")
        neighbours.add(event.adjacency)
        if event.exact_noise is not None:
            precision += count / event.exact_noise**2
    if len(neighbours) > 1:
        raise ValueError(f"adjacency = {', '.join(sorted(neighbours))}: expected the same for all releases")
    return ((Sampled(Fraction(1), 1 / precision), 1),) if precision else ()


reference = Reference("Gaussian", _releases)
