"""Sharpness of the training loss around trained parameters, as a lower bound (dplis2021, Definition 5).

The definition and the search are those of `step/sharpness.py`; A of the definition is the identity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpbench.errors import DpbenchError
from dpbench.step.metric import Trained, whole
from dpbench.step.sharpness import sharpness


@dataclass(frozen=True)
class Sharpness:
    """A `Metric`: ε of the box (`reach`), steps of the search, and how many training records the loss is over.

    Raises DpbenchError for numbers outside their range. A lower bound, in per cent; not private.

    >>> Sharpness(records=500).reach
    0.0045
    """

    reach: float = 0.0045
    iterations: int = 10
    records: int = 1000

    def __post_init__(self) -> None:
        if isinstance(self.reach, bool) or not 0 < self.reach < math.inf:
            raise DpbenchError(f"reach = {self.reach!r}: expected a finite number above 0")
        whole("iterations", self.iterations, 1)
        whole("records", self.records, 1)

    def measure(self, trained: Trained) -> Mapping[str, Any]:
        """`value` in per cent."""
        part = trained.first(self.records)
        found = sharpness(
            part.net,
            part.theta_RP,
            part.inputs,
            part.targets,
            part.chunk,
            reach=self.reach,
            iterations=self.iterations,
            view=part.view,
        )
        return {"records": len(part.targets), "value": float(found[0])}


metric = Sharpness
