"""The reference of the Laplace mechanism: Lap(0, b) against Lap(Δ, b), and any number of them.

In units of Δ it is Lap(0, b/Δ) against Lap(1, b/Δ); below, b is that ratio, an exact fraction. One release has
δ(ε) = 1 − e^{(ε − 1/b)/2} for |ε| <= 1/b. Up to 400 equal releases have a closed form, enclosed to any number of
digits; more, or unlike ones, go on a lattice whose nodes lie on the atoms.

    >>> import math
    >>> from dpbench.events import Laplace
    >>> reference.delta(Laplace(2.0), 0.25, digits=8).contains(-math.expm1(-0.125))
    True
    >>> reference.delta((Laplace(20.0), 100), 1.0, digits=12).upper
    Decimal('0.0063629682806249227')
"""

from __future__ import annotations

from dpbench.events import Event, Laplace
from dpbench.references._laplace import LaplaceLaw, equal_releases
from dpbench.references._reference import Closed, Reference, Subject, parts
from dpbench.references._release import Direction, Releases, counted

MOST_EQUAL = 400  # releases in closed form: some seconds


def law(event: Event) -> LaplaceLaw | None:
    """The law of one event; None where it tells nothing. Raises ValueError for what is not covered."""
    if not isinstance(event, Laplace):
        raise ValueError(f"event = {event!r}: expected a Laplace")
    return None if event.exact_noise is None else LaplaceLaw(event.exact_noise)


def _releases(subject: Subject) -> Releases:
    found = parts(subject)
    neighbours = {event.adjacency for event, _ in found}
    if len(neighbours) > 1:
        raise ValueError(f"adjacency = {', '.join(sorted(neighbours))}: expected the same for all releases")
    laws = ((law(event), count) for event, count in found)
    return counted((one, count) for one, count in laws if one)


def _close(releases: Releases, _direction: Direction) -> Closed | None:
    ((one, count), *others) = releases
    if others or count > MOST_EQUAL or not isinstance(one, LaplaceLaw):
        return None
    return lambda epsilon, digits: equal_releases(one, count, epsilon, digits)


reference = Reference("Laplace", _releases, _close)
