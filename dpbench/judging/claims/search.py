"""The search for a counterexample of an inequality: where is its margin smallest?

Hypothesis proposes points and minimises the margin; SciPy's Nelder-Mead goes on from the best of them and from the
source's own settings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Point = dict[str, Any]
_BITS = 24  # of a share of a range
_MOST_CORNERS = 5  # dimensions up to which every corner of the domain is tried


@dataclass(frozen=True)
class Range:
    """Where a parameter is searched: from `low` to `high`, evenly, in the logarithm, or on whole numbers.

    >>> Range(0.01, 100, "log").at(1.0), Range(1, 9, "whole").at(0.5)
    (100, 5)
    """

    low: float
    high: float
    scale: Literal["linear", "log", "whole"] = "linear"

    def at(self, share: float) -> float:
        """The value at a share from 0 to 1 of the way."""
        share = min(max(share, 0.0), 1.0)
        if self.scale == "log":
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
            return min(max(value, self.low), self.high)
        value = self.low + share * (self.high - self.low)
        return round(value) if self.scale == "whole" else value

    def share(self, value: float) -> float:
        """The share at which `value` lies."""
        if self.high == self.low:
            return 0.0
        if self.scale == "log":
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def smallest(
    margin: Callable[..., Any],
    domain: Mapping[str, Range],
    settings: Sequence[Mapping[str, Any]],
    enough: float,
    examples: int,
) -> tuple[Point, float, int]:
    """The point with the smallest margin found, that margin, and how many points were tried.

    The settings and the corners of the domain come first, then `examples` points; below `enough` nothing is refined.

    >>> point, least, tried = smallest(lambda x: (x - 0.3) ** 2, {"x": Range(0, 1)}, [{"x": 1.0}], 0.0, 50)
    >>> least < 1e-6 and abs(point["x"] - 0.3) < 1e-3
    True
    """
    import hypothesis  # a second to import, and only searches need it
    from hypothesis import strategies
    from scipy.optimize import minimize

    best: list[tuple[float, Point]] = []
    tried = 0
    names = list(domain)

    def look(point: Point) -> float:
        nonlocal tried
        tried += 1
        found = float(margin(**point))
        if not math.isnan(found) and (not best or found < best[0][0]):
            best[:] = [(found, point)]
        return found

    def point_at(shares: Mapping[str, float]) -> Point:
        fixed = {name: value for name, value in settings[0].items() if name not in domain}
        return fixed | {name: place.at(shares[name]) for name, place in domain.items()}

    for setting in settings:
        look(dict(setting))
    for corner in itertools.product((0.0, 1.0), repeat=len(names)) if len(names) <= _MOST_CORNERS else ():
        look(point_at(dict(zip(names, corner, strict=True))))
    # shares bit by bit, 0.b1 b2 ... in base 2: Hypothesis mixes floats with constants of whatever modules are loaded
    bits = strategies.tuples(*[strategies.booleans()] * _BITS)
    share = bits.map(lambda chosen: sum(2.0 ** -(place + 1) for place, bit in enumerate(chosen) if bit))

    @hypothesis.seed(0)  # the same points in every process and in every order
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.target],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategies.fixed_dictionaries(dict.fromkeys(names, share)))
    def propose(found: dict[str, float]) -> None:
        margin = look(point_at(found))
        if math.isfinite(margin):
            hypothesis.target(-margin)

    def at(vector: Any) -> float:
        margin = look(point_at(dict(zip(names, map(float, vector), strict=True))))
        return margin if math.isfinite(margin) else 1e300

    if domain:
        propose()
    if domain and best and best[0][0] >= enough:
        for start in (best[0][1], *map(dict, settings[:2])):
            vector = [place.share(start[name]) for name, place in domain.items()]
            most = {"maxfev": max(examples // 3, 20)}
            minimize(at, vector, method="Nelder-Mead", bounds=[(0.0, 1.0)] * len(vector), options=most)
    least, point = best[0]
    return point, least, tried
