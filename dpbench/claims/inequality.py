"""A printed inequality, monotonicity or limit: a counterexample is searched for, and certified where there is one.

Hypothesis proposes points and is told the margin, so that it climbs down; SciPy's Nelder-Mead goes on from the best of
them and from the source's own settings. Without a counterexample the verdict is `holds` on the searched domain, which
stands in the evidence with the proof's obligations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpbench.claims.claim import Judgement
from dpbench.claims.search import Range as Range
from dpbench.claims.search import smallest


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
        point, margin, tried = smallest(self.margin, self.domain, self.settings, -self.tolerance, self.examples)
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

    def twins(self) -> dict[str, Inequality]:
        """The false inequality."""
        return {"planted mistake": replace(self, margin=self.twin, enclosure=None)}
