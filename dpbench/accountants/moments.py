"""The moments accountant of Abadi et al. 2016, as TensorFlow Privacy computed it until 2020.

| here | in the paper (arXiv:1607.00133) |
| --- | --- |
| sampling rate, noise multiplier, releases | q, σ, T |
| order α, log moment | λ + 1, α_M(λ) |

Theorem 2: the log moments of the releases add up, and δ = min exp(α_M(λ) − λε). The library took the orders
1.1, 1.2, ..., 10.9 and 12, 13, ..., 63 (11 is missing), the log moments of Mironov, Talwar and Zhang 2019 at whole
and fractional orders, and this conversion, which is that of Mironov 2017: an upper bound, loose where the best order
lies beyond 63 or between two of these, and by the conversion.

**A number of steps that is not whole.** Bu et al. 2020, like the library's tutorials, took T = epochs · n / batch and
did not round it: `accountant.curve_for(event, releases)` takes such a T. Nobody makes 3515.6 releases, so its curve
is an `approximation` unless T is whole; with T rounded up it is the upper bound again. A composition's counts are
whole, and `curve` is always an upper bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpbench.accountants._poisson import adjacency_of, poisson_gaussian_support, refuse, reveals_nothing
from dpbench.accountants.renyi.events import log_moment
from dpbench.accountants.renyi.fixed_orders import FixedOrdersCurve, fixed_orders_curve
from dpbench.accounting import GuaranteeKind, No, Yes, as_real
from dpbench.compose import MOST_RELEASES, as_composition
from dpbench.errors import DpbenchError
from dpbench.events import Composition, Event

ORDERS: tuple[float, ...] = (*(1 + tenths / 10 for tenths in range(1, 100)), *map(float, range(12, 64)))


@dataclass(frozen=True)
class MomentsAccountant:
    """The moments accountant with the orders of its day: an upper bound for Poisson sampling and add-or-remove.

    Row 1 of Table 1 of Bu et al. 2020 prints 1.19:

    >>> from dpbench.events import SampledGaussian
    >>> step = SampledGaussian(256 / 60000, 1.3)
    >>> curve = accountant.curve_for(step, releases=15 * 60000 / 256)
    >>> curve.kind, round(curve.epsilon(1e-5).value, 2)
    ('approximation', 1.19)
    >>> accountant.curve(Composition(((step, 3516),))).kind
    'upper_bound'
    """

    name: str = "moments"
    kind: GuaranteeKind = "upper_bound"

    def supports(self, composition: Composition) -> Yes | No:
        """No, with the reason, for other events, samplers and neighbours and for adaptive parameters."""
        return poisson_gaussian_support(composition, "the composition of log moments")

    def curve(self, composition: Composition) -> FixedOrdersCurve:
        """The bound as a curve. Raises DpbenchError where `supports` says no."""
        refuse(self.supports(composition), self.name)
        return fixed_orders_curve(composition, ORDERS, log_moment, "classical")

    def curve_for(self, event: Event, releases: float) -> FixedOrdersCurve:
        """The curve of `releases` >= 0 releases of one event, whole or not: every log moment times that number.

        Kind `upper_bound` where `releases` is whole, else `approximation`. Raises DpbenchError where the event is not
        supported and for a number below 0, above 2^53 or not finite.
        """
        if not 0 <= as_real(releases) <= MOST_RELEASES:
            raise DpbenchError(f"releases = {releases!r}: expected a number from 0 to 2^53")
        releases = as_real(releases)
        single = as_composition(event)
        refuse(self.supports(single), self.name)
        moments = tuple((order, releases * log_moment(event, order) if releases else 0.0) for order in ORDERS)
        silent = releases == 0 or reveals_nothing(event)
        kind: GuaranteeKind = "upper_bound" if math.floor(releases) == releases else "approximation"
        return FixedOrdersCurve(moments, adjacency_of(single), "classical", silent, kind=kind)


accountant = MomentsAccountant()
