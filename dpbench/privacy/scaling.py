"""A whole composition scaled by one number: a factor on every noise or every rate, or several repetitions of all of it.

So that unlike mechanisms can be calibrated together:

>>> from dpbench import calibrate
>>> from dpbench.events import Composition, Gaussian, Laplace
>>> sequence = Composition(((Gaussian(4.0), 20), (Laplace(30.0), 5)))
>>> factor = calibrate(lambda c: noise_scaled(sequence, c), epsilon=1.0, delta=1e-5, accountant="rdp")
>>> round(factor, 2)
4.53
"""

from __future__ import annotations

from collections.abc import Sequence

from dpbench.errors import DpbenchError
from dpbench.events import Composition, Event, SampledGaussian, batches_per_epoch
from dpbench.privacy.composition import as_composition
from dpbench.privacy.releases import event

__all__ = ["noise_scaled", "rates_scaled", "repeated"]

NOISES = ("noise_multiplier", "selection_noise", "answer_noise")  # deviations and scales, all relative or all counts


def noise_scaled(releases: Composition | Event, factor: float) -> Composition:
    """The same mechanisms with every noise `factor` times as large; what has no noise of its own stays as it is.

    Raises DpbenchError where no mechanism has noise, and where a noise overflows or vanishes.

    >>> from dpbench.events import DiscretePair, Gaussian
    >>> noise_scaled(Composition(((Gaussian(2.0), 3), (DiscretePair((1.0,), (1.0,)), 1))), 1.5).parts[0]
    (Gaussian(noise_multiplier=3.0, adjacency='add_or_remove', sensitivity=None), 3)
    """
    return _scaled(as_composition(releases), NOISES, factor, "noise")


def rates_scaled(releases: Composition | Event, factor: float) -> Composition:
    """The same mechanisms with every sampling rate `factor` times as large; unsampled mechanisms stay as they are.

    Raises DpbenchError where no mechanism is sampled, and where a rate would be above 1.

    >>> from dpbench.events import SampledGaussian
    >>> rates_scaled(SampledGaussian(0.25, 1.0), 2.0).parts[0][0].sampling_rate
    0.5
    """
    return _scaled(as_composition(releases), ("sampling_rate",), factor, "sampling rate")


def repeated(releases: Composition | Event, times: int) -> Composition:
    """The mechanisms of a composition, `times` over.

    Raises DpbenchError for shuffled batches that end within an epoch: every repetition would begin a new one.

    >>> from dpbench.events import Gaussian
    >>> repeated(Composition(((Gaussian(1.0), 2),)), 5).parts[0][1]
    10
    """
    composition = as_composition(releases)
    for made, count in composition.parts:
        if isinstance(made, SampledGaussian) and made.sampler == "shuffled" and made.sampling_rate:
            whole = batches_per_epoch(made.sampling_rate)
            if count % whole:
                raise DpbenchError(
                    f"repetitions: {count:,} shuffled batches end within an epoch; expected whole epochs, a multiple of"
                    f" {whole:,}"
                )
    return Composition(tuple((made, count * times) for made, count in composition.parts), composition.adaptive)


def _scaled(composition: Composition, names: Sequence[str], factor: float, what: str) -> Composition:
    parts = []
    moved = False
    for made, count in composition.parts:
        own = {name: getattr(made, name) * factor for name in names if hasattr(made, name)}
        moved = moved or bool(own)
        parts.append((event(type(made), vars(made) | own), count))
    if not moved:
        raise DpbenchError(f"none of these mechanisms has a {what}, so that a factor on it changes nothing")
    return Composition(tuple(parts), composition.adaptive)
