"""The truth about a bound that needs more than a composition of events: explicit datasets, a mechanism's own proof."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dpbench.claims.bounds import Known, compare, shown_end
from dpbench.claims.claim import Judgement, Printed


@dataclass(frozen=True)
class Truth:
    """`interval(certified, **parameters)` is (lower, upper) of the number that the printed one bounds from above.

    An interval that is always proven, or never, names its first argument with an underscore (`_certified`); then the
    route is called the definition.
    `name` is the printed number that is judged (epsilon, delta, mu, ...), `attained` whether a pair of datasets attains
    the lower end under what is released, `second(**parameters)` another route to a number that lies inside or below
    (a lower bound by explicit datasets, say) with `second_is` "value" or "lower".

    >>> Truth(lambda certified, sigma: (1 / sigma, 1 / sigma), name="mu").judge(
    ...     {"mu": Printed("0.4")}, {"sigma": 2.0}, False).verdict
    'unsound'
    """

    interval: Callable[..., tuple[float, float]]
    name: str = "epsilon"
    attained: bool = True
    second: Callable[..., float] | None = None
    second_is: str = "value"

    def judge(self, printed: Mapping[str, Printed], parameters: Mapping[str, Any], certified: bool) -> Judgement:
        """The verdict, as for a bound from events."""
        lower, upper = self.interval(certified, **parameters)
        route = "certified" if certified and not self._ignores_certified() else "definition"
        routes: dict[str, Any] = {route: [float(lower), float(upper)]}
        evidence = {**parameters, "lower": float(lower), "upper": float(upper), "attained": self.attained}
        verdict, reason = compare(
            Known(float(lower), float(upper), route, self.attained), printed[self.name], self.attained, self.name
        )
        if self.second is not None:
            other = routes["second route"] = float(self.second(**parameters))
            slack = 1e-6 * max(abs(lower), abs(other))
            beside = other > upper + slack or (self.second_is == "value" and other < lower - slack)
            if beside:
                reason = f"two routes disagree: [{lower!r}, {upper!r}] and {other!r}"
                return Judgement("undecided", reason, None, evidence, routes)
        return Judgement(verdict, reason, shown_end(verdict, float(lower), float(upper)), evidence, routes)

    def _ignores_certified(self) -> bool:
        first = next(iter(inspect.signature(self.interval).parameters), "_")
        return first.startswith("_")
