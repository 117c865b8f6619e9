"""The reference of the Gaussian event: N(0, σ²) against N(Δ, σ²), and any number of them.

In units of Δ it is N(0, (σ/Δ)²) against N(1, (σ/Δ)²); below, σ is that ratio, an exact fraction. Outputs x_1, ..., x_T
with deviations σ_i have the joint densities Π φ(x_i/σ_i)/σ_i and Π φ((x_i − 1)/σ_i)/σ_i. In the coordinates x_i/σ_i
both are standard normal in R^T around 0 and around v = (1/σ_1, ..., 1/σ_T); turn the axes so that one lies along v: the
other T − 1 coordinates have the same law under both and cancel from the likelihood ratio. So a composition of Gaussians
is one Gaussian with 1/σ² = Σ 1/σ_i², exactly, and its δ(ε) needs no lattice. (For the same composition on the lattice,
ask `sampled_gaussian` with q = 1: one checks the other.)

    >>> from dpbench.events import Event, Gaussian
    >>> e = reference.delta((Gaussian(2.0), 4), 1.0, digits=12)
    >>> f"{e.floats()[0]:.12f}", f"{e.floats()[1]:.12f}"
    ('0.126936737507', '0.126936737507')
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from dpbench.events import Event, Gaussian
from dpbench.references._pair import Sampled
from dpbench.references._reference import Reference, Subject, alike, parts
from dpbench.references._release import Releases


def as_one(precision: Callable[[Event], Fraction]) -> Callable[[Subject], Releases]:
    """The single Gaussian whose 1/σ² is the sum of those of all events; none where that is 0."""

    def releases(subject: Subject) -> Releases:
        found = parts(subject)
        total = sum((count * precision(event) for event, count in found), Fraction(0))
        alike(found)
        return ((Sampled(Fraction(1), 1 / total), 1),) if total else ()

    return releases


def _precision(event: Event) -> Fraction:
    if not isinstance(event, Gaussian):
        raise ValueError(f"event = {event!r}: expected a Gaussian")
    return Fraction(0) if event.exact_noise is None else 1 / event.exact_noise**2


reference = Reference("Gaussian", as_one(_precision))
