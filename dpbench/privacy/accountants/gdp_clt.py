"""Gaussian differential privacy by the central limit theorem: an approximation, never a bound.

| here | in the paper (Bu, Dong, Long, Su 2020) |
| --- | --- |
| sampling rate, noise multiplier, releases | p, σ, T |
| mu | μ_CLT |

Equation (3.1), μ² = p² T (e^(1/σ²) − 1), and equation (3.2), δ(ε; μ). For unlike mechanisms the squares add up, μ² = Σ
count · p² (e^(1/σ²) − 1), as in every composition of nearly Gaussian trade-off functions.

The theorem behind (3.1) lets p√T tend to a constant while T grows: p is small and T is large. The truth may lie on
either side of the answer, so the kind is always `approximation`; the smaller σ and T, the further it is off.

**Mechanisms that are not sampled.** At p = 1 there is no limit to take: by section 2 of the same paper a Gaussian
mechanism is exactly 1/σ-GDP and a composition of μ_i-GDP mechanisms exactly √(Σ μ_i²)-GDP. There (3.1) would give
e^(1/σ²) − 1 in place of 1/σ², 13 times too much at σ = 0.5. A plain Gaussian, and a sampled one at rate 1, which is the
same mechanism, hence count 1/σ². The price is a jump at p = 1: close below it (3.1) applies and overstates μ.

>>> from dpbench.events import SampledGaussian
>>> step = SampledGaussian(256 / 60000, 1.3)
>>> round(accountant.curve(Composition(((step, 3516),))).mu, 3)
0.227
>>> round(accountant.curve_for(step, 15 * 60000 / 256).mu, 2)
0.23
"""

from __future__ import annotations

import math
from functools import partial

from dpbench.errors import DpbenchError
from dpbench.events import Composition, Event, Gaussian, SampledGaussian
from dpbench.privacy.accountants._gaussian_curve import GaussianCurve
from dpbench.privacy.accountants._poisson import (
    PublishedUnrounded,
    adjacency_of,
    not_covered,
    poisson_gaussian_refusal,
    support,
)
from dpbench.privacy.composition import as_composition, weighted_sum

_MOST_MU = 1e12  # beyond, δ at the double nearest to ε(δ) is no longer within a percent of δ


def squared_mu(event: Event) -> float:
    """What one invocation adds to μ²: p² (e^(1/σ²) − 1) where sampled, 1/σ² where not; infinite where that overflows.

    Raises DpbenchError for an event that is neither.

    >>> from dpbench.events import SampledGaussian
    >>> squared_mu(SampledGaussian(0.1, 1.0)) == 0.1**2 * math.expm1(1)
    True
    """
    if not isinstance(event, Gaussian | SampledGaussian):
        raise DpbenchError(not_covered(event, "Gaussian and SampledGaussian"))
    inverse = 1.0 / (event.relative_noise if isinstance(event, Gaussian) else event.noise_multiplier)
    precision = inverse * inverse
    if isinstance(event, Gaussian) or event.sampling_rate == 1:
        return precision
    if event.sampling_rate == 0:
        return 0.0
    try:
        return event.sampling_rate**2 * math.expm1(precision)
    except OverflowError:
        return math.inf


def _curve(squared: float, composition: Composition) -> GaussianCurve:
    mu, reason = math.sqrt(squared), None
    if mu > _MOST_MU:
        mu, reason = (
            math.inf,
            f"mu exceeds {_MOST_MU:g}, beyond which doubles cannot resolve ε: there is next to no noise",
        )
    return GaussianCurve(mu, "approximation", adjacency_of(composition), reason)


accountant = PublishedUnrounded(
    "gdp_clt",
    "approximation",
    partial(support, refusal=poisson_gaussian_refusal, theorem="the central limit theorem of f-DP"),
    lambda composition: _curve(weighted_sum(composition, squared_mu, 0.0), composition),
    lambda event, releases: _curve(releases * squared_mu(event) if releases else 0.0, as_composition(event)),
)
