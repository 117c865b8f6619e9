"""Accountants against the stored certified points: the worst relative error of δ, and memory at a million steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import imported
from .accountants import QUICK, TRAINERS, accountant

TABLE = Path(__file__).parents[2] / "dpbench" / "references" / "tables" / "certified.json"
EVERY = 4  # one point in so many: the whole table is the tests' business


def points(every: int = EVERY) -> list[dict[str, Any]]:
    """The stored points, one in so many."""
    loaded: list[dict[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))["points"]
    return loaded[::every]


class Accuracy:
    """How far δ(ε) is off at worst, relative to the certified value, over the points that the accountant covers."""

    params = (QUICK,)
    param_names = ("accountant",)
    timeout = 600

    def setup(self, name: str) -> None:
        events = imported("events")
        self.work = [(events.from_json(point["composition"]), point) for point in points()]
        self.asked = accountant(name, self.work[0][0])

    def track_worst_error(self, name: str) -> float:
        del name  # `setup` has loaded it
        worst = 0.0
        for composition, point in self.work:
            if self.asked.supports(composition):
                value = self.asked.curve(composition).delta(point["epsilon"]).value
                middle = (float(point["lower"]) + float(point["upper"])) / 2
                worst = max(worst, abs(value - middle) / middle)
        return worst

    track_worst_error.unit = "relative"  # type: ignore[attr-defined]


class Memory:
    """ε at δ = 1e-5 of a million steps."""

    params = (TRAINERS,)
    param_names = ("accountant",)

    def setup(self, name: str) -> None:
        events = imported("events")
        self.work = events.Composition(((events.SampledGaussian(1e-3, 1.0), 10**6),))
        self.asked = accountant(name, self.work)

    def peakmem_million_steps(self, name: str) -> None:
        del name
        self.asked.curve(self.work).epsilon(1e-5)
