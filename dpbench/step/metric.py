"""What a metric gets at the end of a run, and what it gives: numbers about the loss around trained parameters.

A metric reads records without noise, those of training unless it says otherwise. What it gives is covered by no ε: it
is for comparing mechanisms on public data, and must not be published with a model that is private. It changes no draw
and no trained number, so it is no part of a run's key.
Shapes: P parameters, N records, Q queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from dpbench.errors import DpbenchError
from dpbench.step.functional import Network


@dataclass(frozen=True)
class Trained:
    """One run at its end: its network, its parameters (1, P), and training records in the order of the data.

    `chunk` is the records per call, `view` what the mechanism shows the network of its inputs, as in `evaluate`;
    `test` the inputs and targets of the test records; `labels()` are those that the mechanism released of public
    records, below 0 where it gave none, and their true classes, (Q,) both; None where it releases none.
    """

    net: Network
    theta_RP: Tensor
    inputs: Tensor
    targets: Tensor
    chunk: int
    view: Callable[[Tensor], Tensor | None] = lambda _: None
    test: tuple[Tensor, Tensor] | None = None
    labels: Callable[[], tuple[Tensor, Tensor] | None] = lambda: None

    def first(self, records: int, split: str = "training") -> Trained:
        """The same with the first so many records of a split, or with all where there are fewer."""
        if split == "test" and self.test is None:
            raise DpbenchError("split = test: no test records were given")
        inputs, targets = self.test if split == "test" and self.test is not None else (self.inputs, self.targets)
        return replace(self, inputs=inputs[:records], targets=targets[:records])


class Metric(Protocol):
    """`measure` gives plain JSON values: `records`, how many were read, and `value` or `surface`.

    `surface` is {axis: [...], losses: [...]} along one direction; along two, losses has a list for each place on the
    first of them. It may have `split`, the records' (training, the default, or test), and `metric`, as `losses`, with
    `metric_name`. A metric may have `refuse_model(module)` and `refuse_mechanism(mechanism)`, which raise DpbenchError,
    before training, for what they do not cover.
    """

    def measure(self, trained: Trained) -> Mapping[str, Any]: ...


def whole(name: str, value: object, least: int) -> None:
    """Raises DpbenchError unless `value` is a whole number of `least` or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DpbenchError(f"{name} = {value!r}: expected a whole number, {least} or more")
