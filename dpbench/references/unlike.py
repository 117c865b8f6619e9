"""The reference of unlike mechanisms together: any of the other references' events, under one neighbouring relation.

Each event has the law that its own reference gives it; the composition goes on one lattice. `epsilon`, `curve` and
the rest as everywhere.

    >>> from dpbench.events import Composition, Laplace, SampledGaussian
    >>> both = Composition(((SampledGaussian(0.1, 1.0), 3), (Laplace(4.0), 2)))
    >>> found = reference.delta(both, 1.0, cells=2048)
    >>> bool(found.lower > 0) and found.relative_width < 0.01
    True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dpbench.events import Event, SampledGaussian
from dpbench.references import (
    discrete_pair,
    group_sampled_gaussian,
    laplace,
    random_sensitivity_gaussian,
    sampled_gaussian,
    sampled_gaussian_replace_one,
)
from dpbench.references._reference import reference_of
from dpbench.references._release import Law

LAWS: Mapping[str, Callable[[Event], Law | None]] = {
    "Gaussian": sampled_gaussian.law,
    "RandomSensitivityGaussian": random_sensitivity_gaussian.law,
    "GroupSampledGaussian": group_sampled_gaussian.law,
    "Laplace": laplace.law,
    "DiscretePair": discrete_pair.law,
}


def law(event: Event) -> Law | None:
    """The law of one event; None where it has zero loss. Raises ValueError for what no law covers."""
    if isinstance(event, SampledGaussian):
        replaced = event.adjacency == "replace_one"
        return sampled_gaussian_replace_one.law(event) if replaced else sampled_gaussian.law(event)
    name = type(event).__name__
    if name not in LAWS:
        raise ValueError(f"event = {event!r}: expected a SampledGaussian or one of {', '.join(LAWS)}")
    return LAWS[name](event)


reference = reference_of("Composition", law)
