"""The Rényi bound over a finite set of orders that was fixed beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpbench.accountants._poisson import adjacency_of, reveals_nothing
from dpbench.accountants.rdp import Conversion, bound, epsilon_at, log_delta_at
from dpbench.accounting import Estimate, GuaranteeKind, check_delta, check_epsilon
from dpbench.compose import merge, weighted_sum
from dpbench.events import Adjacency, Composition, Event


@dataclass(frozen=True)
class FixedOrdersCurve:
    """The least of the bounds at some orders; `moments` pairs each order with the composition's log moment there.

    `shares` divides δ: each order is asked at δ / `shares` (1: the orders do not share, as where all parameters were
    fixed; else the number of orders, for a union bound over them). `silent`: nothing at all was revealed.
    """

    moments: tuple[tuple[float, float], ...]
    adjacency: Adjacency
    conversion: Conversion
    silent: bool
    shares: int = 1
    kind: GuaranteeKind = "upper_bound"
    mu: None = None

    def epsilon(self, delta: float) -> Estimate:
        """A bound on ε at `delta`, in [0, inf]."""
        return self.epsilon_and_order(delta)[0]

    def delta(self, epsilon: float) -> Estimate:
        """A bound on δ at `epsilon`, in [0, 1]."""
        epsilon = check_epsilon(epsilon)
        least = min(log_delta_at(moment, order, epsilon, self.conversion) for order, moment in self.moments)
        value = math.exp(min(least + math.log(self.shares), 0.0)) or math.ulp(0.0)
        return self._estimate(0.0 if self.silent else value)

    def epsilon_and_order(self, delta: float) -> tuple[Estimate, float]:
        """ε at `delta`, and the order that gives it."""
        log_delta = math.log(check_delta(delta)) - math.log(self.shares)
        least, order = min((epsilon_at(moment, at, log_delta, self.conversion), at) for at, moment in self.moments)
        return self._estimate(0.0 if self.silent else max(least, 0.0)), order

    def _estimate(self, value: float) -> Estimate:
        found = bound(value)
        return found if self.kind == "upper_bound" else Estimate(found.value, reason=found.reason)


def fixed_orders_curve(
    composition: Composition, orders: Sequence[float], leaf: Callable[[Event, float], float], conversion: Conversion
) -> FixedOrdersCurve:
    """The curve of a composition that has been found to be supported; `leaf` is an event's log moment at an order."""

    def at(order: float) -> float:
        return weighted_sum(composition, lambda event: leaf(event, order), 0.0)

    silent = all(reveals_nothing(event) for event, _ in merge(composition))
    return FixedOrdersCurve(
        tuple((order, at(order)) for order in orders), adjacency_of(composition), conversion, silent
    )
