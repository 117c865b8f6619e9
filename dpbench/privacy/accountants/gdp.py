"""Gaussian differential privacy of Gaussian mechanisms: exact.

| here | in the paper (Dong, Roth and Su 2019, arXiv:1905.02383) |
| --- | --- |
| noise multiplier, mu | σ, μ |

A Gaussian mechanism of sensitivity Δ is Δ/σ-GDP (Theorem 2.7) and a composition of μ_i-GDP mechanisms is √(Σ μ_i²)-GDP
(Corollary 3.3), both attained, so δ(ε; μ) of Corollary 2.13 is exact: kind `exact`, with both ends of the computed
number. Sampled mechanisms count where sampling does nothing: at rate 0, with infinite noise, and at rate 1, where a
group of g moves the sum by g and a replaced record by up to 2.

>>> curve = accountant.curve(Composition(((Gaussian(4.0), 16),)))
>>> curve.mu, round(curve.epsilon(1e-5).value, 6)
(1.0, 4.377178)
"""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext
from functools import partial

from dpbench.errors import DpbenchError
from dpbench.events import Composition, ConfidentGNMax, Event, Gaussian, GroupSampledGaussian, SampledGaussian
from dpbench.privacy.accountants._gaussian_curve import GaussianCurve
from dpbench.privacy.accountants._poisson import (
    Published,
    adjacency_of,
    not_covered,
    poisson_refusal,
    reveals_nothing,
    support,
)
from dpbench.privacy.answers import GuaranteeKind
from dpbench.privacy.composition import common_adjacency, merge, weighted_sum

_UNIT = 2.0**-53
_LARGEST = 1e300
_DIGITS = Context(prec=40)


def refusal(event: Event) -> str | None:
    """Why an event is not a Gaussian mechanism; None where it is one.

    >>> refusal(Gaussian(1.0)) is None, refusal(SampledGaussian(1.0, 2.0)) is None
    (True, True)
    """
    if isinstance(event, Gaussian):
        return None
    if isinstance(event, SampledGaussian | GroupSampledGaussian):
        replaced = isinstance(event, SampledGaussian) and event.adjacency == "replace_one"
        reason = poisson_refusal(event) if event.sampler != "poisson" or not replaced else None
        if reason is None and event.sampling_rate != 1 and not reveals_nothing(event):
            return (
                f"sampling_rate = {event.sampling_rate!r}: exact for Gaussian mechanisms only, and a sampled one is not"
                " Gaussian below rate 1; use `exact`, or `gdp_clt` for the approximation"
            )
        return reason
    return not_covered(event, "Gaussian, and SampledGaussian or GroupSampledGaussian at rate 0 or 1")


def squared_mu(event: Event) -> Decimal:
    """What one invocation adds to μ²: (Δ/σ)² to 40 digits, 0 where it reveals nothing.

    Of Confident-GNMax the data-independent guarantee: a Gaussian of sensitivity 1 and, where answered, one of √2.
    Raises DpbenchError where `refusal` has a reason, and for votes.

    >>> squared_mu(Gaussian(2.0)), squared_mu(SampledGaussian(1.0, 2.0, adjacency="replace_one"))
    (Decimal('0.25'), Decimal('1'))
    >>> squared_mu(ConfidentGNMax(threshold=300, selection_noise=10, answer_noise=2))
    Decimal('0.51')
    """
    if isinstance(event, ConfidentGNMax) and event.votes is None:
        with localcontext(_DIGITS):
            return _ratio(1, event.selection_noise) + (2 * _ratio(1, event.answer_noise) if event.answered else 0)
    reason = refusal(event)
    if reason is not None or not isinstance(event, Gaussian | SampledGaussian | GroupSampledGaussian):
        raise DpbenchError(reason or not_covered(event, "Gaussian"))
    if reveals_nothing(event):
        return Decimal(0)
    sensitivity = event.moved if isinstance(event, Gaussian) else 1.0
    if isinstance(event, GroupSampledGaussian):
        sensitivity = float(event.group_size)
    elif isinstance(event, SampledGaussian) and event.adjacency == "replace_one":
        sensitivity = 2.0
    return _ratio(sensitivity, event.noise_multiplier)


def _ratio(sensitivity: float, noise: float) -> Decimal:
    with localcontext(_DIGITS):
        return (Decimal(sensitivity) / Decimal(noise)) ** 2


def total_mu(composition: Composition) -> float:
    """μ of a composition of Gaussian mechanisms, to the last digit; infinite above the largest double.

    >>> total_mu(Composition(((Gaussian(1e-200), 9),)))
    3e+200
    """
    with localcontext(_DIGITS):
        return float(weighted_sum(composition, squared_mu, Decimal(0)).sqrt())


def gaussians_as_one(composition: Composition) -> Composition:
    """The same mechanisms, with all Gaussian ones, Confident-GNMax without votes included, as a single Gaussian.

    What reveals nothing is left out with them. As it is where the parts share no neighbouring relation or μ is no
    double above 0.

    >>> gaussians_as_one(Composition(((Gaussian(4.0), 16), (SampledGaussian(1.0, 2.0), 12)))).parts
    ((Gaussian(noise_multiplier=0.5, adjacency='add_or_remove', sensitivity=1.0), 1),)
    """
    adjacency = common_adjacency(composition)
    merged = merge(composition)
    like = tuple(part for part in merged if is_gaussian(part[0]))
    if adjacency is None or not like:
        return composition
    mu = total_mu(Composition(like))
    if not 1 / _LARGEST <= mu <= _LARGEST:
        return composition
    rest = tuple(part for part in merged if not is_gaussian(part[0]))
    return Composition((*rest, (Gaussian(1 / mu, adjacency, sensitivity=1.0), 1)), composition.adaptive)


def is_gaussian(event: Event) -> bool:
    """Whether a mechanism is a Gaussian one, or Confident-GNMax without votes, whose guarantee is a Gaussian's.

    >>> is_gaussian(Gaussian(1.0)), is_gaussian(SampledGaussian(0.5, 1.0))
    (True, False)
    """
    return event.votes is None if isinstance(event, ConfidentGNMax) else refusal(event) is None


def gaussian_curve(composition: Composition, kind: GuaranteeKind) -> GaussianCurve:
    """The curve of μ-GDP of a composition of Gaussian mechanisms that has been found to be supported."""
    mu = total_mu(composition)
    reason = "mu exceeds the largest double: there is next to no noise" if mu == math.inf else None
    error = 2 * _UNIT if mu > 1e-307 else 1.0  # smaller doubles have fewer digits: only the trivial ends are claimed
    return GaussianCurve(mu, kind, adjacency_of(composition), reason, error)


accountant = Published(
    "gdp",
    "exact",
    partial(support, refusal=refusal, theorem="the composition theorem of f-DP"),
    partial(gaussian_curve, kind="exact"),
)
