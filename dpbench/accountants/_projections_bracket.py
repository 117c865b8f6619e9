"""Between which ends ε lies where no path tells: a bound of δ from above, one release alone from below."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpbench.accountants._direction import Value
from dpbench.accountants._projections_moment import Whole
from dpbench.accountants._projections_single import log_single
from dpbench.accountants._projections_transform import HeavyTransform

_LEAST_LOSS, _MOST_LOSS = 1e-20, 1e90
_FIRST, _LEAP, _HALVINGS = 1e-3, 16.0, 6


def bracket(transform: HeavyTransform, log_delta: float, certain: Sequence[float]) -> Value:
    """The middle of where the root lies by the bound of δ and by what one release alone reveals."""
    low, high = 0.0, 1e-3
    while high < certain[1] and transform.bound(high) > log_delta:
        low, high = high, 2 * high
        if high > _MOST_LOSS:
            raise ArithmeticError(f"log delta = {log_delta:.6g}: neither a path nor a bound gives an epsilon")
    high = min(high, certain[1])
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if transform.bound(middle) > log_delta else (low, middle)
    low, top = min(certain[0], high), high
    if _one(transform, low) > log_delta:
        for _ in range(40):
            middle = (low + top) / 2
            low, top = (middle, top) if _one(transform, middle) > log_delta else (low, middle)
    return Value((low + high) / 2, (high - low) / 2)


def hit(transform: HeavyTransform, log_delta: float) -> float:
    """ε with δ(ε) about e^log_delta where one release reaches ε, and the others reveal next to nothing."""
    way = ("remove", "add").index(transform.direction)

    def reached(epsilon: float) -> bool:
        logs = [
            math.log(n) + log_single(1.0 if isinstance(p, Whole) else p.rate, p.law, epsilon, way)
            for p, n in transform.parts
        ]
        return float(np.logaddexp.reduce(np.array(logs))) > log_delta

    low, high = _FIRST, _FIRST
    if reached(_FIRST):
        while high < _MOST_LOSS and reached(high):
            low, high = high, _LEAP * high
    else:
        while low > _LEAST_LOSS and not reached(low):
            low, high = low / _LEAP, low
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if reached(middle) else (low, middle)
    return math.sqrt(low * high)


def _one(transform: HeavyTransform, epsilon: float) -> float:
    """The logarithm of the largest δ of one release alone."""
    way = ("remove", "add").index(transform.direction)
    return max(log_single(1.0 if isinstance(p, Whole) else p.rate, p.law, epsilon, way) for p, _ in transform.parts)
