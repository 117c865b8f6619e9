"""How far logistic regression ends above its true optimum: F at the end less the least F, on all training records.

F is the mean loss plus (λ/2)·‖W‖², biases included (`step/optimum.py`, docs/convex.md). pidp2021's Figure 2 plots it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

from dpbench.errors import DpbenchError
from dpbench.step.logistic import refuse_model
from dpbench.step.metric import Trained, whole
from dpbench.step.optimum import Problem


@dataclass(frozen=True)
class OptimalityGap:
    """A `Metric`: `regularisation` is λ; `radius` the norm to which F's inputs are clipped, by default they are not.

    `records` is how many of the first training records F is about, by default all.

    Exact, but for rounding and for the optimum, which is at most 1e-20/(2λ) above the least F. Not private.
    Raises DpbenchError for numbers outside their range, and where the model is no logistic regression.

    >>> OptimalityGap(regularisation=1e-3).radius is None
    True
    """

    regularisation: float = 1e-2
    radius: float | None = None
    records: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("regularisation", self.regularisation), ("radius", self.radius)):
            if value is not None and (isinstance(value, bool) or not 0 < value < math.inf):
                raise DpbenchError(f"{name} = {value!r}: expected a finite number above 0")
        if self.records is not None:
            whole("records", self.records, 1)

    def refuse_model(self, module: nn.Module) -> None:
        """Raise DpbenchError unless the model is logistic regression."""
        refuse_model(module)

    def measure(self, trained: Trained) -> Mapping[str, Any]:
        """`value` in the unit of the loss."""
        self.refuse_model(trained.net.module)
        linear = next(layer for layer in trained.net.module.modules() if isinstance(layer, nn.Linear))
        asked = (linear.out_features, self.regularisation, self.radius, linear.bias is not None)
        part = trained if self.records is None else trained.first(self.records)
        problem = _problem(part.inputs, part.targets, *asked)
        return {"records": len(part.targets), "value": problem.gap(trained.theta_RP[0].double().cpu().numpy())}


@lru_cache(maxsize=2)
def _problem(
    inputs: Tensor, targets: Tensor, classes: int, regularisation: float, radius: float | None, bias: bool
) -> Problem:
    """One for all runs of a stack, so that its optimum is solved once; tensors are told apart by what they are."""
    return Problem(inputs, targets, classes, regularisation, radius, bias)


metric = OptimalityGap
