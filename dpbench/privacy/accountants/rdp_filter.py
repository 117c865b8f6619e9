"""A Rényi filter: accounting for sequences whose later parameters depend on earlier outputs.

| here | in the paper (Feldman and Zrnic 2021, arXiv:2008.11193) |
| --- | --- |
| order, log moment of a step | α, (α − 1) ρ_t |

**One order.** Theorem 3.1 and its filter there: if the steps, each chosen after seeing the earlier outputs, have Rényi
divergences ρ_t at one order α fixed beforehand, and no step is taken that would lift Σ ρ_t above B, also fixed
beforehand, then the whole has Rényi divergence at most B at α. Any conversion from one order to (ε, δ) follows.

**Several orders.** Fixed beforehand, k of them, each with its own budget; a step is admitted while *some* order's
budget holds. Let τ_j be the time at which order j is first exceeded, before that step is taken, and L the privacy loss.
The sequence ends at the largest τ_j, so (1 − e^(ε−L))₊ at its end is one of the k terms at the τ_j, hence at most their
sum, and δ(ε) is at most the sum of the k filters' δ(ε), each by Theorem 3.1. So every order may be asked at δ/k, and
the least ε counts. Asking every order at δ itself, as without adaptivity, is *not* proven.

**What a number from a ledger says.** `accountant` takes the ledger as it was spent. Its ε is the smallest budget whose
filter would have admitted every step of it. That is a promise if such a budget was fixed beforehand and a filter
enforced it: then the promise is that budget's ε, at least this one. A budget chosen after the run, this number
included, is no promise: for an ε that follows the run an odometer is needed. Where all parameters were fixed beforehand
the ε holds in any case, and `rdp` gives less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpbench.errors import DpbenchError
from dpbench.events import Composition, Event
from dpbench.privacy.accountants._poisson import refuse, support
from dpbench.privacy.accountants.rdp import Conversion, RdpCurve, check_conversion, epsilon_at, renyi_curve
from dpbench.privacy.accountants.renyi.events import log_moment, refusal
from dpbench.privacy.answers import (
    GuaranteeKind,
    No,
    Yes,
    as_real,
    check_delta,
    check_epsilon,
    is_whole,
)

ORDERS: tuple[float, ...] = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0)
_UNIT = 2.0**-53


def check_orders(orders: Sequence[float]) -> tuple[float, ...]:
    """Different finite orders above 1 and up to 16384, at least one. Raises DpbenchError for any others."""
    good = len(orders) > 0 and len(set(orders)) == len(orders)
    for order in orders:
        good = good and 1 + 2.0**-20 <= as_real(order) <= 2**14
    if not good:
        raise DpbenchError(f"orders = {orders!r}: expected different numbers above 1 and up to 16384, at least one")
    return tuple(float(order) for order in orders)


class RenyiFilter:
    """A budget (ε, δ) that admits steps until no order has room: an adaptive mechanism asks it before each step.

    `orders` and `conversion` are fixed when it is made. `spend` either records a step or raises DpbenchError and
    records nothing; only what was spent may be released. `ledger` is what has been spent, in order: a filter that
    spends the ledger of another one has the same state, so a run can be resumed.

    >>> from dpbench.events import SampledGaussian
    >>> filter = RenyiFilter(epsilon=1.0, delta=1e-5, orders=(20.0,))
    >>> step = SampledGaussian(0.01, 2.0)
    >>> filter.spend(step, 1000)
    >>> filter.admits(step), filter.admits(SampledGaussian(0.5, 1.0))
    (True, False)
    >>> filter.ledger.adaptive, round(filter.epsilon, 3)
    (True, 0.698)
    """

    def __init__(
        self, epsilon: float, delta: float, orders: Sequence[float] = ORDERS, conversion: Conversion = "canonne"
    ) -> None:
        check_conversion(conversion)
        self._budget = check_epsilon(epsilon)
        self._orders = check_orders(orders)
        self._log_delta = math.log(check_delta(delta)) - math.log(len(self._orders))
        self._conversion: Conversion = conversion
        self._spent = [0.0] * len(self._orders)
        self._moments: dict[Event, tuple[float, ...]] = {}
        self._parts: list[tuple[Event, int]] = []
        self._additions = 0

    @property
    def ledger(self) -> Composition:
        """What has been spent, in the order in which it was."""
        return Composition(tuple(self._parts), adaptive=True)

    @property
    def epsilon(self) -> float:
        """The smallest budget ε, at this filter's δ, that would have admitted what has been spent."""
        return self._epsilon(self._spent, self._additions) if any(self._spent) else 0.0

    def admits(self, event: Event, count: int = 1) -> bool:
        """Whether `count` >= 0 further invocations of `event` fit. Raises DpbenchError for an event without a bound."""
        return self._after(event, count) is not None

    def admits_all(self, releases: Sequence[tuple[Event, int]]) -> bool:
        """Whether a whole sequence fits, all of it at one order. Raises DpbenchError for an event without a bound.

        >>> from dpbench.events import Gaussian
        >>> RenyiFilter(epsilon=1.0, delta=1e-5).admits_all([(Gaussian(10.0), 2), (Gaussian(1.0), 1)])
        False
        """
        after = self._spent
        for event, count in releases:
            after = self._plus(after, event, count)
        return self._fits(after, self._additions + len(releases))

    def spend(self, event: Event, count: int = 1) -> None:
        """Record `count` invocations of `event`, or raise DpbenchError, and record nothing, where they do not fit."""
        after = self._after(event, count)
        if after is None:
            raise DpbenchError(
                f"privacy budget exhausted: {count} x {event} would exceed epsilon = {self._budget:g} at every order"
                f" after {sum(number for _, number in self._parts)} steps; stop here, or release less"
            )
        if count == 0:
            return
        self._spent = after
        self._additions += 1
        if self._parts and self._parts[-1][0] == event:
            self._parts[-1] = (event, self._parts[-1][1] + count)
        else:
            self._parts.append((event, count))

    def _after(self, event: Event, count: int) -> list[float] | None:
        """What would then be spent per order; None where it does not fit."""
        after = self._plus(self._spent, event, count)
        return after if self._fits(after, self._additions + 1) else None

    def _plus(self, spent: Sequence[float], event: Event, count: int) -> list[float]:
        """`spent` and `count` invocations of `event`, per order."""
        if not is_whole(count, 0):
            raise DpbenchError(f"count = {count!r}: expected a whole number, 0 or more")
        refuse(support(Composition((*self._parts[-1:], (event, count)), adaptive=True), refusal, None), "rdp_filter")
        if event not in self._moments:
            self._moments[event] = tuple(log_moment(event, order) for order in self._orders)
        return [was + (count * more if count else 0.0) for was, more in zip(spent, self._moments[event], strict=True)]

    def _fits(self, spent: Sequence[float], additions: int) -> bool:
        return not any(spent) or self._epsilon(spent, additions) <= self._budget

    def _epsilon(self, spent: Sequence[float], additions: int) -> float:
        """The least ε over the orders; running sums of `additions` terms are raised by the rounding they may carry."""
        raised = 1 + 2 * _UNIT * additions
        return max(
            min(
                epsilon_at(moment * raised, order, self._log_delta, self._conversion)
                for order, moment in zip(self._orders, spent, strict=True)
            ),
            0.0,
        )


@dataclass(frozen=True)
class RdpFilterAccountant:
    """The budget of the smallest Rényi filter that admits a ledger: an upper bound for adaptive sequences, too.

    `orders` are fixed beforehand, and δ is divided among them; `conversion` as in `rdp`.

    >>> from dpbench.events import SampledGaussian
    >>> ledger = Composition(((SampledGaussian(0.01, 2.0), 1000),), adaptive=True)
    >>> round(RdpFilterAccountant(orders=(20.0,)).curve(ledger).epsilon(1e-5).value, 3)
    0.698
    """

    name: str = "rdp_filter"
    kind: GuaranteeKind = "upper_bound"
    orders: tuple[float, ...] = ORDERS
    conversion: Conversion = "canonne"

    def __post_init__(self) -> None:
        check_conversion(self.conversion)
        check_orders(self.orders)

    def supports(self, composition: Composition) -> Yes | No:
        """No, with the reason, for events without a proven finite moment; adaptive parameters are covered."""
        return support(composition, refusal, None)

    def curve(self, composition: Composition) -> RdpCurve:
        """The bound as a curve. Raises DpbenchError where `supports` says no."""
        refuse(self.supports(composition), self.name)
        return renyi_curve(composition, conversion=self.conversion, orders=self.orders, shares=len(self.orders))


accountant = RdpFilterAccountant()
