"""What a run minimises, at its end: the mean loss of training records plus (λ/2)·‖θ‖², whatever the model.

Of two runs the difference is that of their optimality gaps, also where nobody knows the optimum (pidp2021, Figure 2
(d)-(f)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpbench.errors import DpbenchError
from dpbench.step.functional import evaluate
from dpbench.step.metric import Trained, whole


@dataclass(frozen=True)
class TrainingObjective:
    """A `Metric`: `regularisation` is λ; `records` how many of the first training records count, by default all.

    Exact, but for rounding. Not private. Raises DpbenchError for numbers outside their range.

    >>> TrainingObjective(regularisation=1e-3).records is None
    True
    """

    regularisation: float = 0.0
    records: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.regularisation, bool) or not 0 <= self.regularisation < math.inf:
            raise DpbenchError(f"regularisation = {self.regularisation!r}: expected a finite number, 0 or more")
        if self.records is not None:
            whole("records", self.records, 1)

    def measure(self, trained: Trained) -> Mapping[str, Any]:
        """`value` in the unit of the loss."""
        part = trained if self.records is None else trained.first(self.records)
        loss_R, _ = evaluate(part.net, part.theta_RP, part.inputs, part.targets, part.chunk, part.view)
        penalty = self.regularisation / 2 * float(part.theta_RP[0].double().square().sum())
        return {"records": len(part.targets), "value": float(loss_R[0]) + penalty}


metric = TrainingObjective
