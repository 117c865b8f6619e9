"""Rényi accounting over all real orders: an upper bound on ε and δ for every event with a proven Rényi moment.

| here | in the papers |
| --- | --- |
| sampling rate, noise multiplier, order | q, σ, α |
| log moment at an order | log A_α = (α − 1) · ε_RDP(α) |

**Moment.** `renyi.events.log_moment`: for the Poisson-sampled Gaussian, Mironov, Talwar and Zhang 2019
(arXiv:1908.10530), section 3.3, at whole orders their sum, at the others the integral behind their two-sided series;
for other events the sources in that module's table. It bounds both directions. Rényi divergences of mechanisms with
fixed parameters add up (Mironov 2017, Proposition 1).

**Conversion.** `canonne`, the default: Canonne, Kamath and Steinke 2020 (arXiv:2004.00010), Proposition 12: for every
α > 1 and ε >= 0, log δ = log A_α − (α−1) ε + (α−1) log(1 − 1/α) − log α. Solved for ε and divided by α − 1 it gives ε
at δ. `classical`: Mironov 2017, Proposition 3, the same without the last two terms, ε = ε_RDP + log(1/δ)/(α−1).

**Orders.** All real orders from 1 + 2^-20 to 16384 compete, but few are looked at: log A_α is convex in α, and so is
(α−1) log(1 − 1/α) − log α = (α−1) log(α−1) − α log α (its second derivative is 1/(α−1) − 1/α > 0). Hence log δ is
convex in α, and ε, a convex function over a linear positive one, has a single valley (`lowest_order`). Where the moment
is a bound that is not convex (sampling without replacement, the smaller of two), a lower value may be missed, but the
result is a bound. The highest order sets a floor: ε at δ = 1e-30 is not given below 0.0035, at 1e-5 not below 4.9e-5.
It is enough for a plain Gaussian with σ up to 1000 at any δ >= 1e-30.

**Rounding.** Moments carry relative errors below `moment_error`; every answer is raised by that much, and by the
rounding of the other terms, so that it stays an upper bound. ε is raised by what δ at that ε is raised by, and once
more by its own rounding, which (α−1) ε puts into log δ: at each order δ at ε(δ) is no more than δ. ε is the one at a δ
that is smaller by about 1e-9, for the search at that ε may end at another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dpbench.errors import DpbenchError
from dpbench.events import Adjacency, Composition, Event
from dpbench.privacy.accountants._poisson import adjacency_of, refuse, reveals_nothing, support
from dpbench.privacy.accountants.renyi.events import log_moment, refusal
from dpbench.privacy.accountants.renyi.orders import HIGHEST_ORDER
from dpbench.privacy.answers import (
    Estimate,
    GuaranteeKind,
    No,
    Yes,
    check_delta,
    check_epsilon,
)
from dpbench.privacy.composition import merge, weighted_sum

Conversion = Literal["canonne", "classical"]
CONVERSIONS: tuple[Conversion, ...] = ("canonne", "classical")
_ROUNDING = 4e-16  # of a logarithm or a sum of a few
_SEARCH = 1e-9, 1e-10  # of log δ, absolute and relative: two searches for one order end closer than that

LOWEST_BETA = 2.0**-20  # orders from 1 + 2^-20 on: a plain Gaussian asks for less only where μ is above 1e6
_TOLERANCE = 3e-7  # of log(α − 1)
_GOLDEN = (3 - math.sqrt(5)) / 2

__all__ = ["CONVERSIONS", "HIGHEST_ORDER", "Conversion", "RdpAccountant", "RdpCurve", "accountant", "log_moment"]


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


@dataclass(frozen=True)
class RdpCurve:
    """The least of the bounds at some orders, all real ones where `orders` is None, for one composition.

    `moment` gives its log A_α. `shares` divides δ: each order is asked at δ / `shares` (1: the orders do not share, as
    where all parameters were fixed; else the number of orders, for a union bound over them). `zero_loss`: nothing was
    revealed. `remark` stands beside every finite answer. `known` remembers moments; it never changes an answer.
    """

    moment: Callable[[float], float]
    adjacency: Adjacency
    zero_loss: bool
    conversion: Conversion = "canonne"
    orders: Sequence[float] | None = None
    shares: int = 1
    kind: GuaranteeKind = "upper_bound"
    mu: None = None
    remark: str | None = None
    known: dict[float, float] = field(default_factory=dict, repr=False, compare=False)

    def log_moment(self, order: float) -> float:
        """log A_α of the whole composition at order α > 1."""
        if order not in self.known:
            self.known[order] = self.moment(order)
        return self.known[order]

    def delta_and_order(self, epsilon: float) -> tuple[Estimate, float]:
        """δ at `epsilon`, above 0 but where nothing is revealed, and the order that gives it."""
        epsilon = check_epsilon(epsilon)
        order, least = self._lowest(lambda a: log_delta_at(self.log_moment(a), a, epsilon, self.conversion))
        value = math.exp(min(least + math.log(self.shares), 0.0)) or math.ulp(0.0)  # a bound must not underflow to zero
        return self._estimate(value), order

    def epsilon_and_order(self, delta: float) -> tuple[Estimate, float]:
        """ε at `delta`, not below 0, and the order that gives it."""
        log_delta = math.log(check_delta(delta)) - math.log(self.shares)
        if self.orders is None:
            log_delta = log_delta * (1 + _SEARCH[1]) - _SEARCH[0]
        order, least = self._lowest(lambda a: epsilon_at(self.log_moment(a), a, log_delta, self.conversion))
        return self._estimate(max(least, 0.0)), order

    def delta(self, epsilon: float) -> Estimate:
        """A bound on δ at `epsilon`, in [0, 1]."""
        return self.delta_and_order(epsilon)[0]

    def epsilon(self, delta: float) -> Estimate:
        """A bound on ε at `delta`, in [0, inf]."""
        return self.epsilon_and_order(delta)[0]

    def _lowest(self, bound: Callable[[float], float]) -> tuple[float, float]:
        if self.orders is None:
            return lowest_order(bound, HIGHEST_ORDER)
        return min(((order, bound(order)) for order in self.orders), key=lambda found: found[1])

    def _estimate(self, value: float) -> Estimate:
        reason = "the Rényi divergence exceeds the largest double at every order: there is next to no noise"
        value = 0.0 if self.zero_loss else value
        return Estimate(
            value,
            None,
            value if self.kind == "upper_bound" else None,
            reason if value == math.inf else self.remark,
        )


def renyi_curve(composition: Composition, term: Callable[[Event, float], float] = log_moment, **how: Any) -> RdpCurve:
    """The curve of a supported composition; `term` is an event's log moment at an order, `how` as for `RdpCurve`."""

    def moment(order: float) -> float:
        return weighted_sum(composition, lambda event: term(event, order), 0.0)

    zero_loss = all(reveals_nothing(event) for event, _ in merge(composition))
    return RdpCurve(moment, adjacency_of(composition), zero_loss, **how)


def lowest_order(function: Callable[[float], float], highest: int) -> tuple[float, float]:
    """The order α in [1 + 2^-20, `highest`] where a function with a single valley is lowest, and its value there.

    Whole orders double until the function rises, and bisection on the sign of its slope finds the best of them, n.
    The best real order lies within one of n; below 2, α − 1 is halved until the function rises. Brent's method then
    closes in on α − 1 to 3e-7 of itself: the function is flat there, and its value far closer to the lowest. Whatever
    is returned, the value is the function's own, and so a bound where the function is one.
    """
    values: dict[float, float] = {}

    def at(order: float) -> float:
        if order not in values:
            values[order] = function(order)
        return values[order]

    best = _lowest_whole(at, highest)
    if best == highest:
        return _from_the_end(at, float(best), best - 1.0)
    if best > 2:
        return _refine(at, best - 1.0, float(best), best + 1.0)
    # 2 is the best whole order: halve α − 1 while that helps, so that the middle of the three is the lowest
    beta = 1.0
    while beta > LOWEST_BETA and at(1 + beta / 2) <= at(1 + beta):
        beta /= 2
    if beta <= LOWEST_BETA:
        return _from_the_end(at, 1 + beta, 1 + 2 * beta)
    return _refine(at, 1 + beta / 2, 1 + beta, 1 + 2 * beta)


def _lowest_whole(at: Callable[[float], float], highest: int) -> int:
    high = 4
    while high < highest and at(high) < at(high // 2):
        high *= 2
    high = min(high, highest)
    low = max(2, high // 4)
    while low < high:
        middle = (low + high) // 2
        if at(middle) <= at(middle + 1):
            high = middle
        else:
            low = middle + 1
    return low


def _from_the_end(at: Callable[[float], float], end: float, beyond: float) -> tuple[float, float]:
    """The lowest place between `end` and `beyond`, where it is higher, halved towards the end until it is not."""
    while abs(beyond - end) > 2 * _TOLERANCE * (end - 1):
        middle = (end + beyond) / 2
        if at(middle) < at(end):
            return _refine(at, min(end, beyond), middle, max(end, beyond))
        beyond = middle
    return end, at(end)


def _refine(at: Callable[[float], float], low: float, middle: float, high: float) -> tuple[float, float]:
    """The lowest place between `low` and `high`, where `middle` is at least as low as both.

    Brent's method (Algorithms for Minimization without Derivatives, 1973, chapter 5) in s = log(α − 1).
    """

    def f(s: float) -> float:
        return at(1 + math.exp(s))

    left, best, right = math.log(low - 1), math.log(middle - 1), math.log(high - 1)
    value = at(middle)
    # the two next best places so far, and the last two moves
    (second_value, second), (third_value, third) = sorted(((at(low), left), (at(high), right)))
    move = before = right - left
    for _ in range(60):
        centre = (left + right) / 2
        if abs(best - centre) + (right - left) / 2 <= 2 * _TOLERANCE:
            break
        # the vertex of the parabola through the three places, best + over / under
        one, two = (best - second) * (value - third_value), (best - third) * (value - second_value)
        over, under = (best - third) * two - (best - second) * one, 2 * (one - two)
        step = over / under if under and math.isfinite(over) and math.isfinite(under) else math.inf
        if abs(step) < _TOLERANCE and abs(move) < 1e-3:
            break  # the far end of the bracket need not follow
        if not (left < best + step < right and abs(step) < abs(before) / 2):
            step = _GOLDEN * ((right if best < centre else left) - best)
            before = (right if best < centre else left) - best
        else:
            before = move
        if abs(step) < _TOLERANCE:
            step = math.copysign(_TOLERANCE, centre - best if step == 0 else step)
        move, trial = step, best + step
        found = f(trial)
        if found <= value:
            left, right = (left, best) if trial < best else (best, right)
            third, third_value, second, second_value, best, value = second, second_value, best, value, trial, found
        else:
            left, right = (trial, right) if trial < best else (left, trial)
            if found <= second_value or second == best:
                third, third_value, second, second_value = second, second_value, trial, found
            elif found <= third_value or third in (best, second):
                third, third_value = trial, found
    return (middle, at(middle)) if at(middle) <= value else (1 + math.exp(best), value)


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
        return renyi_curve(composition, conversion=self.conversion)


accountant = RdpAccountant()
