"""How many of the labels that a mechanism released of public records are right, in per cent: P_correct of PATE.

The classes of the public records are not used in training; here the labels are held against them (dplis2021, Section
5.7 and Table 13, "accuracy of privacy-preserving labeling"). The labels are what the mechanism's ε covers, so unlike
the other metrics this one reads no training record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpbench.errors import DpbenchError
from dpbench.step.metric import Trained


@dataclass(frozen=True)
class CorrectLabels:
    """A `Metric` of a mechanism that releases labels, such as `pate`; exact.

    >>> CorrectLabels().refuse_mechanism(object())
    Traceback (most recent call last):
    ...
    dpbench.errors.DpbenchError: correct_labels: this mechanism releases no labels of public records; expected pate
    """

    def refuse_mechanism(self, mechanism: object) -> None:
        """Raise DpbenchError for a mechanism without `released_labels`."""
        if not callable(getattr(mechanism, "released_labels", None)):
            raise DpbenchError("correct_labels: this mechanism releases no labels of public records; expected pate")

    def measure(self, trained: Trained) -> Mapping[str, Any]:
        """`value` in per cent of the labels released, `records` how many they are."""
        labels = trained.labels()
        if labels is None:
            raise DpbenchError("no labels of public records were released")
        labels_Q, classes_Q = labels
        answered_Q = labels_Q >= 0
        count = int(answered_Q.sum())
        if not count:
            raise DpbenchError("no query was answered")
        return {"records": count, "value": 100 * int((labels_Q == classes_Q)[answered_Q].sum()) / count}


metric = CorrectLabels
