"""M(z) of one direction of a composition with releases of random sensitivity, and blocks of nodes for its contours.

| here | meaning |
| --- | --- |
| M(z) | E_P[e^(zL)], the product over the releases (`_projections_moment`), times e^(μ²z(z+1)/2) of the Gaussians |
| w | the exponent of the likelihood ratio of a release: 1 + z for remove, −z for add |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants._loss_leaf import UNIT, Complex, Floats
from dpbench.accountants._projections_contour import Box
from dpbench.accountants._projections_ladder import Ladder, climb
from dpbench.accountants._projections_moment import Release, Whole
from dpbench.accountants._projections_single import log_single

TILT = 0.2  # tangent of the path's ray
UNITS, GROWTH = 24, 0.08  # blocks of the edge are units long up to here, and longer beyond
_BUILT = 50.0  # a contour costs as much as so many nodes
_TERM = 4.0  # and a term of the edge as so many
_MOST_PARTS = 16  # for which the bound of δ(0) is worth its time
_WORK = 1e7  # nodes of paths times nodes of contours: about four tenths of a second


@dataclass
class HeavyTransform:
    """M(z) of one direction. What it remembers never changes an answer."""

    parts: tuple[tuple[Release | Whole, int], ...]
    squared_mu: float
    direction: str
    spent: float = field(default=0.0, repr=False)
    _ladders: list[Ladder] = field(default_factory=list, repr=False)
    _distances: list[float] = field(default_factory=list, repr=False)

    @property
    def sampled(self) -> bool:
        """Whether any release is sampled."""
        return any(isinstance(part, Release) for part, _ in self.parts)

    @property
    def largest_loss(self) -> float:
        """The supremum of the loss."""
        if self.direction == "remove" or self.squared_mu or any(isinstance(part, Whole) for part, _ in self.parts):
            return math.inf
        return self.atom

    @property
    def atom(self) -> float:
        """The loss where no release hits."""
        sign = 1 if self.direction == "remove" else -1
        return math.fsum(sign * count * part.log_rest for part, count in self.parts if isinstance(part, Release))

    @property
    def cut(self) -> bool:
        """Whether M is infinite for Re z > 0."""
        return self.direction == "remove" or any(isinstance(part, Whole) for part, _ in self.parts)

    def log_moment(self, z: Complex, start: float) -> tuple[Complex, Floats]:
        """log M and its error at nodes of the path that leaves the real line at `start`."""
        remove = self.direction == "remove"
        w, above = (1 + z, z) if remove else (-np.conj(z), -1 - np.conj(z))
        total = np.asarray(self.squared_mu / 2 * w * above, dtype=np.complex128)
        error: Floats = UNIT * np.abs(total)
        leans = TILT if remove == bool((z.real - start).sum() >= 0) else -TILT  # of Re w on the ray
        for box, there in _boxes(w, 1 + start if remove else -start, leans):
            for part, count in self.parts:
                if isinstance(part, Release):
                    nodes = float(np.count_nonzero(there))
                    self._spend(part.cost(box) * (nodes + _BUILT))
                    if box.top == 0 and box.high > 1:  # terms of the edge
                        self._spend(_TERM * nodes * box.high)
                    value, wrong = part.log_moment(w[there], above[there], box)
                    total[there] += count * value
                    error[there] += count * wrong
        total = total if remove else np.conj(total)
        for part, count in self.parts:
            if isinstance(part, Whole):  # symmetric: the same M in both directions
                self._spend(500.0 * len(z))
                value, wrong = part.log_moment(1 + z, z)
                total, error = total + count * value, error + count * wrong
        return total, error

    def _spend(self, work: float) -> None:
        self.spent += work
        if self.spent > _WORK:
            raise ArithmeticError("the path takes too many nodes")

    def ladder(self) -> Ladder:
        """M on the real line, to a few digits."""
        if not self._ladders:
            with np.errstate(over="ignore", invalid="ignore"):
                self._ladders.append(climb(self.parts, self.squared_mu, self.direction == "remove"))
        return self._ladders[0]

    def bound(self, epsilon: float) -> float:
        """The logarithm of an upper bound of δ(ε); −∞ beyond the largest loss."""
        if epsilon >= self.largest_loss:
            return -math.inf
        return min(self.ladder().bound(epsilon), self._distance())

    def _distance(self) -> float:
        """The logarithm of a bound of δ(0), the total variation: that of each release, added up."""
        if len(self.parts) > _MOST_PARTS:
            return 0.0
        if not self._distances:
            each = [
                math.log(count) + log_single(part.rate if isinstance(part, Release) else 1.0, part.law, 0.0, 0)
                for part, count in self.parts
            ]
            each.append(math.log(math.erf(math.sqrt(self.squared_mu / 8))) if self.squared_mu else -math.inf)
            self._distances.append(float(np.logaddexp.reduce(np.array(each))) + 1e-9)
        return self._distances[0]

    # ---- the path ----


def _boxes(w: Complex, start: float, leans: float) -> list[tuple[Box, NDArray[np.bool_]]]:
    """Blocks of the w of a path that leaves the real line at Re w = `start`, where Re w = start + leans · Im w."""
    found: list[tuple[Box, NDArray[np.bool_]]] = []
    flat = w.imag == 0
    if flat.any():
        ahead = flat & (w.real > 0)
        nearest = np.maximum(np.round(w.real - 1), 0.0)
        for k in np.unique(nearest[ahead & (nearest < UNITS)]):
            found.append((Box(max(k + 0.5, 1.0), k + 1.5, 0.0, 0.0), ahead & (nearest == k)))
        step = np.floor(np.log(np.maximum(w.real - 0.5, UNITS) / UNITS) / GROWTH)
        for k in np.unique(step[ahead & (nearest >= UNITS)]):
            low, high = (UNITS * math.exp(GROWTH * j) + 0.5 for j in (k, k + 1))
            found.append((Box(low, high, 0.0, 0.0), ahead & (nearest >= UNITS) & (step == k)))
    below = flat & (w.real <= 0)  # on the edge of other releases
    if below.any():
        found.append((Box(min(start, 0.0), 0.0, 0.0, 0.0), below))
    beyond = max(start - 1, 0.0)
    rising = ~flat
    if rising.any():
        first = min(max(beyond / 4, 0.05), 2.0)
        octave = np.where(w.imag < first, -1.0, np.floor(np.log2(np.maximum(w.imag / first, 1e-9))))
        for k in np.unique(octave[rising]):
            bottom, top = (0.0, first) if k < 0 else (first * 2**k, first * 2 ** (k + 1))
            ends = (start + leans * bottom, start + leans * top)
            found.append((Box(min(ends), max(ends), bottom, top), rising & (octave == k)))
    return found
