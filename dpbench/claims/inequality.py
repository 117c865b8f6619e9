"""A printed inequality, monotonicity or limit: a counterexample is searched for, and certified where there is one.

Hypothesis proposes points and is told the margin, so that it climbs down; SciPy's Nelder-Mead goes on from the best of
them and from the source's own settings. Without a counterexample the verdict is `holds` on the searched domain, which
stands in the evidence with the proof's obligations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dpbench.claims.claim import Judgement

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

    def holds(self, value: float) -> bool:
        """Whether `value` lies in it."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Inequality:
    """`margin(**point)` >= 0 is what is claimed, for every point of `domain`, `settings` (the source's own) included.

    A point refutes where the margin is below −`tolerance`, the numerical error of `margin` (derive it). `enclosure`
    gives (lower, upper) of the margin in certified arithmetic, and is asked at a counterexample: only an upper end
    below 0 refutes. `obligations` are what the proof needs, for the reader. `twin` is the margin of a false inequality,
    which the same search has to refute. `examples` points are tried at first.

    >>> bernoulli = Inequality(lambda x, n: (1 + x) ** n - 1 - n * x, {"x": Range(-1, 3), "n": Range(1, 9, "whole")},
    ...                        ({"x": 0.5, "n": 2},), twin=lambda x, n: (1 + x) ** n - 1 - n * x - 0.1, tolerance=1e-12)
    >>> bernoulli.judge().verdict, bernoulli.twins()["planted mistake"].judge().verdict
    ('holds', 'refuted')
    """

    margin: Callable[..., Any]
    domain: Mapping[str, Range]
    settings: Sequence[Mapping[str, Any]]
    twin: Callable[..., Any]
    tolerance: float = 1e-12
    enclosure: Callable[..., tuple[float, float]] | None = None
    obligations: Sequence[str] = ()
    examples: int = 150

    def judge(self) -> Judgement:
        """Refuted at a counterexample, undecided where its enclosure does not confirm it, else holds as searched."""
        for setting in self.settings:
            for name, value in setting.items():
                if name in self.domain and not self.domain[name].holds(value):
                    reason = f"the source's own setting {name} = {value!r} lies outside the searched domain"
                    return Judgement("undecided", reason)
        point, margin, tried = self._search()
        shown = {name: [place.low, place.high] for name, place in self.domain.items()}
        evidence: dict[str, Any] = {"domain": shown, "points": tried, "smallest_margin": margin, "at": point}
        if self.obligations:
            evidence["obligations"] = list(self.obligations)
        place = ", ".join(f"{name} = {value:.6g}" for name, value in point.items())
        if margin >= -self.tolerance:
            reason = f"holds at {tried} searched points, the smallest margin {margin:.3g} at {place}"
            return Judgement("holds", reason, margin, evidence)
        routes: dict[str, Any] = {"float64": margin}
        if self.enclosure is not None:
            lower, upper = self.enclosure(**point)
            routes["certified"] = [float(lower), float(upper)]
            if not upper < 0:
                reason = f"the counterexample {place} is not confirmed: its margin lies in [{lower:.3g}, {upper:.3g}]"
                return Judgement("undecided", reason, margin, evidence, routes)
        return Judgement("refuted", f"fails at {place}: the margin is {margin:.6g}", margin, evidence, routes)

    def _search(self) -> tuple[Point, float, int]:
        """The point with the smallest margin found, that margin, and how many points were tried."""
        import hypothesis
        from hypothesis import strategies

        best: list[tuple[float, Point]] = []
        tried = 0

        def look(point: Point) -> float:
            nonlocal tried
            tried += 1
            margin = float(self.margin(**point))
            if not math.isnan(margin) and (not best or margin < best[0][0]):
                best[:] = [(margin, point)]
            return margin

        for setting in self.settings:
            look(dict(setting))
        names = list(self.domain)
        for corner in itertools.product((0.0, 1.0), repeat=len(names)) if len(names) <= _MOST_CORNERS else ():
            look(self._point(dict(zip(names, corner, strict=True))))
        # shares bit by bit: Hypothesis mixes floats with constants of whatever modules are loaded
        share = strategies.tuples(*[strategies.booleans()] * _BITS).map(_share)
        shares = strategies.fixed_dictionaries(dict.fromkeys(names, share))

        @hypothesis.seed(0)  # the same points in every process and in every order
        @hypothesis.settings(
            max_examples=self.examples,
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.generate, hypothesis.Phase.target],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(shares)
        def propose(found: dict[str, float]) -> None:
            margin = look(self._point(found))
            if math.isfinite(margin):
                hypothesis.target(-margin)

        if self.domain:
            propose()
        if best and best[0][0] >= -self.tolerance and self.domain:
            self._descend(look, [best[0][1], *(dict(setting) for setting in self.settings[:2])])
        margin, point = best[0]
        return point, margin, tried

    def _point(self, shares: Mapping[str, float]) -> Point:
        fixed = {name: value for name, value in self.settings[0].items() if name not in self.domain}
        return fixed | {name: place.at(shares[name]) for name, place in self.domain.items()}

    def _descend(self, look: Callable[[Point], float], starts: Sequence[Point]) -> None:
        from scipy.optimize import minimize

        names = list(self.domain)

        def at(vector: Any) -> float:
            margin = look(self._point(dict(zip(names, map(float, vector), strict=True))))
            return margin if math.isfinite(margin) else 1e300

        for start in starts:
            vector = [self.domain[name].share(start[name]) for name in names]
            options = {"maxfev": max(self.examples // 3, 20)}
            minimize(at, vector, method="Nelder-Mead", bounds=[(0.0, 1.0)] * len(names), options=options)

    def twins(self) -> dict[str, Inequality]:
        """The false inequality."""
        return {"planted mistake": replace(self, margin=self.twin, enclosure=None)}


def _share(bits: tuple[bool, ...]) -> float:
    """0.b1 b2 ... in base 2."""
    return sum(2.0 ** -(place + 1) for place, bit in enumerate(bits) if bit)
