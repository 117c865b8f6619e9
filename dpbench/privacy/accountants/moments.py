"""The moments accountant of Abadi et al. 2016, as TensorFlow Privacy computed it until 2020.

| here | in the paper (arXiv:1607.00133) |
| --- | --- |
| sampling rate, noise multiplier, releases | q, σ, T |
| order α, log moment | λ + 1, α_M(λ) |

Theorem 2: the log moments of the mechanisms add up, and δ = min exp(α_M(λ) − λε). The library took the orders 1.1, 1.2,
..., 10.9 and 12, 13, ..., 63 (11 is missing), the log moments of Mironov, Talwar and Zhang 2019 at whole and fractional
orders, and this conversion, which is that of Mironov 2017: an upper bound, loose where the best order lies beyond 63 or
between two of these, and by the conversion.

**A number of steps that is not whole.** Bu et al. 2020, like the library's tutorials, took T = epochs · n / batch and
did not round it: `accountant.curve_for(event, releases)` takes such a T. Nobody takes 3515.6 steps, so its curve is an
`approximation` unless T is whole; with T rounded up it is the upper bound again. A composition's counts are whole, and
`curve` is always an upper bound.

Row 1 of Table 1 of Bu et al. 2020 prints 1.19:

>>> from dpbench.events import Composition, SampledGaussian
>>> step = SampledGaussian(256 / 60000, 1.3)
>>> curve = accountant.curve_for(step, releases=15 * 60000 / 256)
>>> curve.kind, round(curve.epsilon(1e-5).value, 2)
('approximation', 1.19)
>>> accountant.curve(Composition(((step, 3516),))).kind
'upper_bound'
"""

from __future__ import annotations

import math
from functools import partial

from dpbench.events import Event
from dpbench.privacy.accountants._poisson import (
    PublishedUnrounded,
    adjacency_of,
    poisson_gaussian_refusal,
    reveals_nothing,
    support,
)
from dpbench.privacy.accountants.rdp import RdpCurve, renyi_curve
from dpbench.privacy.accountants.renyi.events import log_moment
from dpbench.privacy.answers import GuaranteeKind
from dpbench.privacy.composition import as_composition

ORDERS: tuple[float, ...] = (*(1 + tenths / 10 for tenths in range(1, 100)), *map(float, range(12, 64)))


def _curve_for(event: Event, releases: float) -> RdpCurve:
    """Every log moment times that number; kind `upper_bound` where it is whole, else `approximation`."""

    def moment(order: float) -> float:
        return releases * log_moment(event, order) if releases else 0.0

    zero_loss = releases == 0 or reveals_nothing(event)
    kind: GuaranteeKind = "upper_bound" if math.floor(releases) == releases else "approximation"
    return RdpCurve(moment, adjacency_of(as_composition(event)), zero_loss, "classical", ORDERS, kind=kind)


accountant = PublishedUnrounded(
    "moments",
    "upper_bound",
    partial(support, refusal=poisson_gaussian_refusal, theorem="the composition of log moments"),
    partial(renyi_curve, orders=ORDERS, conversion="classical"),
    _curve_for,
)
