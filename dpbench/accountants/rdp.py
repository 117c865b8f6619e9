"""Rényi accounting over all real orders: an upper bound on ε and δ for every event with a proven Rényi moment.

| here | in the papers |
| --- | --- |
| sampling rate, noise multiplier, order | q, σ, α |
| log moment at an order | log A_α = (α − 1) · ε_RDP(α) |

**Leaf.** `renyi.events.log_moment`: for the Poisson-sampled Gaussian, Mironov, Talwar and Zhang 2019
(arXiv:1908.10530), section 3.3, at whole orders their sum, at the others the integral behind their two-sided series;
for other events the sources in that module's table. It bounds both directions. Rényi divergences of releases with
fixed parameters add up (Mironov 2017, Proposition 1).

**Conversion.** `canonne`, the default: Canonne, Kamath and Steinke 2020 (arXiv:2004.00010), Proposition 12: for every
α > 1 and ε >= 0, log δ = log A_α − (α−1) ε + (α−1) log(1 − 1/α) − log α. Solved for ε and divided by α − 1 it gives ε
at δ. `classical`: Mironov 2017, Proposition 3, the same without the last two terms, ε = ε_RDP + log(1/δ)/(α−1).

**Orders.** All real orders from 1 + 2^-20 to 16384 compete, but few are looked at: log A_α is convex in α, and so is
(α−1) log(1 − 1/α) − log α = (α−1) log(α−1) − α log α (its second derivative is 1/(α−1) − 1/α > 0). Hence log δ is
convex in α, and ε, a convex function over a linear positive one, has a single valley (`renyi.valley`). Where a leaf is
a bound that is not convex (sampling without replacement, the smaller of two), a lower place may be missed, but what is
found is a bound. The highest order sets a floor: ε at δ = 1e-30 is not given below 0.0035, at 1e-5 not below 4.9e-5.
It is enough for a plain Gaussian with σ up to 1000 at any δ >= 1e-30.

**Rounding.** Moments carry relative errors below `moment_error`; every answer is raised by that much, and by the
rounding of the other terms, so that it stays an upper bound. ε is raised by what δ at that ε is raised by, and once
more by its own rounding, which (α−1) ε puts into log δ: at each order δ at ε(δ) is no more than δ. ε is the one at a δ
that is smaller by about 1e-9, for the search at that ε may end at another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from dpbench.accountants._poisson import adjacency_of, refuse, reveals_nothing, support
from dpbench.accountants.renyi.events import log_moment, refusal
from dpbench.accountants.renyi.orders import HIGHEST_ORDER
from dpbench.accountants.renyi.valley import lowest_order
from dpbench.accounting import Estimate, GuaranteeKind, No, Yes, check_delta, check_epsilon
from dpbench.compose import merge, weighted_sum
from dpbench.errors import DpbenchError
from dpbench.events import Adjacency, Composition

Conversion = Literal["canonne", "classical"]
CONVERSIONS: tuple[Conversion, ...] = ("canonne", "classical")
_ROUNDING = 4e-16  # of a logarithm or a sum of a few
_SEARCH = 1e-9, 1e-10  # of log δ, absolute and relative: two searches for one order end closer than that

__all__ = [
    "CONVERSIONS",
    "HIGHEST_ORDER",
    "Conversion",
    "RdpAccountant",
    "RdpCurve",
    "accountant",
    "best_delta",
    "best_epsilon",
    "bound",
    "check_conversion",
    "conversion_term",
    "epsilon_at",
    "log_delta_at",
    "log_moment",
    "moment_error",
]


def check_conversion(conversion: str) -> None:
    """Raises DpbenchError for a conversion that is not known."""
    if conversion not in CONVERSIONS:
        raise DpbenchError(f"conversion = {conversion!r}: expected one of " + ", ".join(CONVERSIONS))


def conversion_term(order: float, conversion: Conversion) -> float:
    """What the conversion adds to (α−1)(ε_RDP − ε) to make log δ; never positive, 0 for the classical one.

    >>> conversion_term(2.0, "canonne") == -2 * math.log(2)
    True
    """
    if conversion == "classical":
        return 0.0
    beta = order - 1
    return beta * math.log(beta) - order * math.log(order)


def moment_error(order: float) -> float:
    """The relative error that a computed log moment at `order` may carry.

    1e-12 covers the sums (tests find 5e-13); at whole orders log C(α, k) + k log q, numbers of size α (log α + 20)
    down to q = 1e-8, lose some units in the last place and enter A_α − 1 relatively.

    >>> moment_error(17.0) < 1.5e-12, moment_error(16384.0) < 1e-9
    (True, True)
    """
    return 1e-12 + 2 * _ROUNDING * order * (math.log(order) + 20)


def epsilon_at(moment: float, order: float, log_delta: float, conversion: Conversion) -> float:
    """ε at log δ by one order, raised by the rounding it may carry, so that δ there is no more; it may be negative."""
    value = moment + conversion_term(order, conversion) - log_delta
    value += moment_error(order) * moment + 4 * _ROUNDING * (moment + _size(order, conversion) - log_delta)
    return (value + 4 * _ROUNDING * abs(value)) / (order - 1)


def log_delta_at(moment: float, order: float, epsilon: float, conversion: Conversion) -> float:
    """log δ at ε by one order, raised by the rounding it may carry; it may be positive."""
    if moment == math.inf:
        return math.inf
    raised = (
        moment * (1 + moment_error(order)) + conversion_term(order, conversion) + _ROUNDING * _size(order, conversion)
    )
    return raised - (order - 1) * epsilon * (1 - _ROUNDING)


def _size(order: float, conversion: Conversion) -> float:
    return 0.0 if conversion == "classical" else 1 + 2 * order * math.log(order)


def best_epsilon(moment: Callable[[float], float], delta: float, conversion: Conversion) -> tuple[float, float]:
    """The least ε at `delta` over all real orders, not below 0, and the order that gives it."""
    log_delta = math.log(check_delta(delta)) * (1 + _SEARCH[1]) - _SEARCH[0]
    order, value = lowest_order(lambda a: epsilon_at(moment(a), a, log_delta, conversion), HIGHEST_ORDER)
    return max(value, 0.0), order


def best_delta(moment: Callable[[float], float], epsilon: float, conversion: Conversion) -> tuple[float, float]:
    """The least δ at `epsilon` over all real orders, above 0 and not above 1, and the order that gives it."""
    epsilon = check_epsilon(epsilon)
    order, value = lowest_order(lambda a: log_delta_at(moment(a), a, epsilon, conversion), HIGHEST_ORDER)
    return math.exp(min(value, 0.0)) or math.ulp(0.0), order  # a bound must not underflow to zero


def bound(value: float) -> Estimate:
    """An upper bound as an estimate; the reason where it is infinite."""
    reason = None
    if value == math.inf:
        reason = "the Rényi divergence exceeds the largest double at every order: there is next to no noise"
    return Estimate(value, None, value, reason)


@dataclass(frozen=True)
class RdpCurve:
    """The best bound over all orders, for one composition.

    `moments` remembers log A_α of the whole composition per order; it never changes an answer.
    """

    composition: Composition
    adjacency: Adjacency
    conversion: Conversion = "canonne"
    kind: GuaranteeKind = "upper_bound"
    mu: None = None
    moments: dict[float, float] = field(default_factory=dict, repr=False, compare=False)

    def log_moment(self, order: float) -> float:
        """Σ count · log A_α over the releases at order α > 1."""
        if order not in self.moments:
            self.moments[order] = weighted_sum(self.composition, lambda event: log_moment(event, order), 0.0)
        return self.moments[order]

    @property
    def silent(self) -> bool:
        """Whether nothing at all is revealed: no release, or none that depends on the data."""
        return all(reveals_nothing(event) for event, _ in merge(self.composition))

    def delta_and_order(self, epsilon: float) -> tuple[Estimate, float]:
        """δ at `epsilon`, and the order that gives it."""
        value, order = best_delta(self.log_moment, epsilon, self.conversion)
        return bound(0.0 if self.silent else value), order

    def epsilon_and_order(self, delta: float) -> tuple[Estimate, float]:
        """ε at `delta`, and the order that gives it."""
        value, order = best_epsilon(self.log_moment, delta, self.conversion)
        return bound(0.0 if self.silent else value), order

    def delta(self, epsilon: float) -> Estimate:
        """An upper bound on δ at `epsilon`, in [0, 1]."""
        return self.delta_and_order(epsilon)[0]

    def epsilon(self, delta: float) -> Estimate:
        """An upper bound on ε at `delta`, in [0, inf]."""
        return self.epsilon_and_order(delta)[0]


@dataclass(frozen=True)
class RdpAccountant:
    """Rényi differential privacy over all real orders: an upper bound for every event with finite moments.

    `conversion` is `canonne` (the default) or `classical`; DpbenchError for any other.

    >>> from dpbench.events import SampledGaussian
    >>> training = Composition(((SampledGaussian(256 / 60000, 1.3), 3516),))
    >>> estimate, order = accountant.curve(training).epsilon_and_order(1e-5)
    >>> round(estimate.value, 4), round(order, 1)
    (0.9545, 16.9)
    >>> round(RdpAccountant(conversion="classical").curve(training).epsilon(1e-5).value, 2)
    1.19
    """

    name: str = "rdp"
    kind: GuaranteeKind = "upper_bound"
    conversion: Conversion = "canonne"

    def __post_init__(self) -> None:
        check_conversion(self.conversion)

    def supports(self, composition: Composition) -> Yes | No:
        """No, with the reason, for events without a proven finite moment and for adaptive parameters."""
        return support(composition, refusal, "the composition of Rényi divergences")

    def curve(self, composition: Composition) -> RdpCurve:
        """The bound as a curve. Raises DpbenchError where `supports` says no."""
        refuse(self.supports(composition), self.name)
        return RdpCurve(composition, adjacency_of(composition), self.conversion)


accountant = RdpAccountant()
