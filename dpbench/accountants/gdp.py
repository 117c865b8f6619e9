"""Gaussian differential privacy of Gaussian releases: exact.

| here | in the paper (Dong, Roth and Su 2019, arXiv:1905.02383) |
| --- | --- |
| noise multiplier, mu | σ, μ |

A Gaussian release of sensitivity Δ is Δ/σ-GDP (Theorem 2.7) and a composition of μ_i-GDP releases is √(Σ μ_i²)-GDP
(Corollary 3.3), both attained, so δ(ε; μ) of Corollary 2.13 is the whole truth: kind `exact`, with both ends of the
computed number. Sampled releases count where sampling does nothing: at rate 0, with infinite noise, and at rate 1,
where a group of g moves the sum by g and a replaced record by up to 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpbench.accountants._gaussian_curve import GaussianCurve
from dpbench.accountants._poisson import adjacency_of, not_covered, poisson_refusal, refuse, reveals_nothing, support
from dpbench.accounting import GuaranteeKind, No, Yes
from dpbench.compose import merge, weighted_sum
from dpbench.errors import DpbenchError
from dpbench.events import Composition, Event, Gaussian, GroupSampledGaussian, SampledGaussian

_UNIT = 2.0**-53


def refusal(event: Event) -> str | None:
    """Why an event is not a Gaussian release; None where it is one.

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
                f"sampling_rate = {event.sampling_rate!r}: exact for Gaussian releases only, and a sampled one is not"
                " Gaussian below rate 1; use `exact`, or `gdp_clt` for the approximation"
            )
        return reason
    return not_covered(event, "Gaussian, and SampledGaussian or GroupSampledGaussian at rate 0 or 1")


def squared_mu(event: Event) -> float:
    """What one release adds to μ²: (Δ/σ)², 0 where it reveals nothing. Raises DpbenchError where `refusal` has one.

    >>> squared_mu(Gaussian(2.0)), squared_mu(SampledGaussian(1.0, 2.0, adjacency="replace_one"))
    (0.25, 1.0)
    """
    reason = refusal(event)
    if reason is not None or not isinstance(event, Gaussian | SampledGaussian | GroupSampledGaussian):
        raise DpbenchError(reason or not_covered(event, "Gaussian"))
    if reveals_nothing(event):
        return 0.0
    sensitivity = event.moved if isinstance(event, Gaussian) else 1.0
    if isinstance(event, GroupSampledGaussian):
        sensitivity = float(event.group_size)
    elif isinstance(event, SampledGaussian) and event.adjacency == "replace_one":
        sensitivity = 2.0
    ratio = sensitivity / event.noise_multiplier
    return ratio * ratio


def gaussian_curve(composition: Composition, kind: GuaranteeKind) -> GaussianCurve:
    """The curve of μ-GDP of a composition of Gaussian releases that has been found to be supported."""
    mu = math.sqrt(weighted_sum(composition, squared_mu, 0.0))
    reason = "mu exceeds the largest double: there is next to no noise" if mu == math.inf else None
    # each square carries 3 roundings, each product and sum one: relative, since all are positive; the root halves it
    error = (6 + len(merge(composition))) * _UNIT
    if mu < 1e-140:  # squares below the normal doubles lose their digits; no end is claimed from them but the trivial
        error = 1.0
    return GaussianCurve(mu, kind, adjacency_of(composition), reason, error)


@dataclass(frozen=True)
class GdpAccountant:
    """μ-GDP, exact, for compositions of Gaussian releases.

    >>> curve = accountant.curve(Composition(((Gaussian(4.0), 16),)))
    >>> curve.mu, round(curve.epsilon(1e-5).value, 6)
    (1.0, 4.377178)
    """

    name: str = "gdp"
    kind: GuaranteeKind = "exact"

    def supports(self, composition: Composition) -> Yes | No:
        """No, with the reason, for anything but Gaussian releases and for adaptive parameters."""
        return support(composition, refusal, "the composition theorem of f-DP")

    def curve(self, composition: Composition) -> GaussianCurve:
        """The exact curve. Raises DpbenchError where `supports` says no."""
        refuse(self.supports(composition), self.name)
        return gaussian_curve(composition, self.kind)


accountant = GdpAccountant()
