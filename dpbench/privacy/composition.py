"""Composition: the only code that knows how often and in which order mechanisms are invoked.

An accountant brings a *term*, a function of one event (a Rényi moment, a squared μ, log M(z) at the nodes of a
contour). This module merges equal events and adds up the terms, each times its count. A term never sees a count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar

from dpbench.errors import DpbenchError
from dpbench.events import Adjacency, Composition, Event
from dpbench.privacy.answers import as_real, is_whole

__all__ = ["as_composition", "common_adjacency", "merge", "steps_from_epochs", "weighted_sum"]

MOST_RELEASES = 2**53  # up to here every count is exact as a double

Term = TypeVar("Term")


def as_composition(releases: Composition | Event) -> Composition:
    """A composition as it is; a single event as a composition of one invocation.

    >>> from dpbench.events import Gaussian
    >>> as_composition(Gaussian(2.0)).parts[0][1]
    1
    """
    return releases if isinstance(releases, Composition) else Composition(((releases, 1),))


def merge(composition: Composition) -> tuple[tuple[Event, int], ...]:
    """Equal events together with their counts added, in the order of first appearance; counts of 0 are left out.

    So T1 invocations of an event followed by T2 of the same are T1 + T2 of it, to the last bit. Only for theorems in
    which the order does not matter. Raises DpbenchError above 2^53 invocations, where counts stop being exact doubles.

    >>> from dpbench.events import Gaussian
    >>> merge(Composition(((Gaussian(1.0), 2), (Gaussian(3.0), 0), (Gaussian(1.0), 5))))
    ((Gaussian(noise_multiplier=1.0, adjacency='add_or_remove', sensitivity=None), 7),)
    """
    counts: dict[Event, int] = {}
    for event, count in composition.parts:
        if count:
            counts[event] = counts.get(event, 0) + count
    total = sum(counts.values())
    if total > MOST_RELEASES:
        shown = str(total) if total < 10**18 else f"{Decimal(total):.4g}"
        raise DpbenchError(f"count = {shown}: expected at most 2^53 mechanism invocations in all; give fewer")
    return tuple(counts.items())


def weighted_sum(composition: Composition, term: Callable[[Event], Term], zero: Term) -> Term:
    """Σ count · term(event) over the merged events, starting from `zero`; each distinct event is evaluated once.

    The term may be a float, an array (all orders or nodes at once), a complex number or a ball: anything with `+` and a
    product with a whole number.

    >>> from dpbench.events import Gaussian
    >>> weighted_sum(Composition(((Gaussian(1.0), 3), (Gaussian(2.0), 4))), lambda e: e.noise_multiplier**-2, 0.0)
    4.0
    """
    total: Any = zero
    for event, count in merge(composition):
        value: Any = term(event)
        total = total + count * value
    result: Term = total
    return result


def common_adjacency(composition: Composition) -> Adjacency | None:
    """The neighbouring relation that all parts share; None where they differ, since no single guarantee then holds.

    A composition without parts reveals nothing under any relation; it is given add-or-remove.

    >>> common_adjacency(Composition(()))
    'add_or_remove'
    """
    found = {event.adjacency for event, _ in composition.parts}
    if len(found) > 1:
        return None
    return found.pop() if found else "add_or_remove"


def adaptive_refusal(composition: Composition, theorem: str) -> str | None:
    """Why `theorem`, which fixes the parameters beforehand, does not cover this composition; None where it does.

    Adaptive *inputs* (training steps that see earlier outputs) are covered by every composition theorem used here;
    adaptive *parameters* need a theorem of their own, such as a Rényi filter.

    >>> adaptive_refusal(Composition(()), "the Rényi composition theorem") is None
    True
    """
    if not composition.adaptive:
        return None
    return (
        f"later parameters depend on earlier outputs, and {theorem} takes all parameters as fixed beforehand;"
        " use an accountant with a filter"
    )


def steps_from_epochs(epochs: float, examples: int, batch_size: int) -> int:
    """ceil(epochs · examples / batch_size), exactly: the number of steps that trainer and accountant both use.

    `epochs` is taken as the decimal number that was written, so 0.1 is one tenth. Raises DpbenchError for a negative
    or infinite `epochs` and for counts that are not whole or below 1.

    >>> steps_from_epochs(15, 60000, 256)
    3516
    >>> steps_from_epochs(0.1, 1000, 1)
    100
    """
    if not 0 <= as_real(epochs) < math.inf:
        raise DpbenchError(f"epochs = {epochs!r}: expected a finite number, 0 or more")
    for name, value in (("examples", examples), ("batch_size", batch_size)):
        if not is_whole(value, 1):
            raise DpbenchError(f"{name} = {value!r}: expected a whole number, 1 or more")
    return math.ceil(Fraction(str(epochs)) * int(examples) / int(batch_size))  # NumPy's float32 prints 0.1 as well
