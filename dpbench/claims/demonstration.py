"""A line of an algorithm, a step of a proof or a comparison, shown to do or not to do what it has to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dpbench.claims.claim import Judgement
from dpbench.claims.judges import Shown as Shown


@dataclass(frozen=True)
class Demonstration:
    """`show(**parameters)` follows the printed text (never our implementation); `twin(**parameters)` a false version
    that the same reasoning has to judge the other way round. `false_alarm` is 0 for a deterministic demonstration.

    >>> even = Demonstration(lambda: Shown(4 % 2 == 0, "4 is even"), twin=lambda: Shown(5 % 2 == 0, "5 is not"))
    >>> even.judge({}).verdict, even.judge_twin({}).verdict
    ('holds', 'refuted')
    """

    show: Callable[..., Shown]
    twin: Callable[..., Shown]
    false_alarm: float = 0.0

    def judge(self, parameters: Mapping[str, Any]) -> Judgement:
        """The verdict on what is printed."""
        return self._judgement(self.show(**parameters))

    def judge_twin(self, parameters: Mapping[str, Any]) -> Judgement:
        """The verdict on the false version."""
        return self._judgement(self.twin(**parameters))

    def _judgement(self, shown: Shown) -> Judgement:
        verdict = "undecided" if shown.holds is None else "holds" if shown.holds else "refuted"
        return Judgement(verdict, shown.reason, shown.value, shown.evidence, shown.routes, shown.plot, self.false_alarm)
