"""A number that a paper prints, computed from its definition, by two routes where there are two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dpbench.claims.claim import Judgement, Printed

_AGREE = 1e-6  # two routes may differ by that, relative to the number or to a unit of the last printed place


@dataclass(frozen=True)
class Computation:
    """`value(**parameters)` from the definition; `second(**parameters)` the same by another route.

    >>> import math
    >>> Computation(lambda radius: math.pi * radius**2).judge(Printed("3.1"), {"radius": 1.0}).verdict
    'holds'
    """

    value: Callable[..., Any]
    second: Callable[..., Any] | None = None

    def judge(self, printed: Printed, parameters: Mapping[str, Any]) -> Judgement:
        """Whether the number rounds to what is printed; undecided where the routes disagree."""
        found = float(self.value(**parameters))
        routes = {"definition": found}
        evidence: dict[str, Any] = {**parameters, "value": found}
        if self.second is not None:
            other = routes["second route"] = float(self.second(**parameters))
            if abs(other - found) > _AGREE * max(abs(found), printed.unit):
                return Judgement("undecided", f"two routes give {found!r} and {other!r}", found, evidence, routes)
        holds = printed.agrees(found)
        words = f"the definition gives {found:.8g}"
        reason = f"{words}, which rounds to the printed {printed.text}" if holds else f"{words}, not {printed.text}"
        return Judgement("holds" if holds else "refuted", reason, found, evidence, routes)
