"""Which of many ε one plan of lines may serve together, by an estimate of δ that is corrected as answers come in.

A wrong estimate costs time and nothing else: what lines serve is told by the error that they state at every ε.

The first estimate is the saddle point's. Where it does not fall as the answers do (large losses that do not occur pull
the saddle far from the bulk) the last answers are continued instead: log δ as a parabola.
"""

from __future__ import annotations

import math

import numpy as np

from dpbench.accountants._contour import Transform
from dpbench.accountants._loss_leaf import Floats
from dpbench.accountants._plan import Aim

_LOST_AT_ENDS = math.log(3e-11)  # rounding relative to δ that a line may lose at the ends of a span
_ABOVE_LEAST, _MOST_LOST = 2.5, math.log(1e-9)  # the same where all lines lose much: above the least, and at most
_NARROWER = 4.0  # by how much less where that promised too much; the second time there are no more spans
_CONTINUED = 8.0  # how far log δ may bend away from a tangent within half a span
_SLACK = 3.0  # between the ends log δ may be this much lower than a straight line
_FARTHEST = 14.0  # how far log δ may fall in a span that is continued
_CERTAIN = 16  # ε of such a span: with fewer the parabola tells of a kink, not of the curve
_AGREE = 0.3  # relative difference of the slopes of two estimates up to which the first is kept
_LEAST = -740.0


class Spans:
    """Ranges of ascending ε, of one direction."""

    def __init__(self, transform: Transform, epsilons: Floats) -> None:
        self.epsilons = epsilons
        self.guess, self.loss = transform.served(epsilons)
        self.log_delta, self.lost = self.guess.copy(), self.loss
        self._most = _LOST_AT_ENDS
        self._bend: float | None = None
        self._logs: Floats = np.full(len(epsilons), math.nan)
        self._known = 0

    def target(self, first: int) -> float | None:
        """About log δ at the ε of that number, where answers have told it."""
        return float(self.log_delta[first]) if self._known == first > 0 else None

    def failed(self) -> None:
        """The estimate promised too much: narrower spans from now on."""
        self._most -= _NARROWER

    def useless(self) -> None:
        """No lines serve a span: none from now on."""
        self._most = -math.inf

    def seen(self, first: int, stop: int, values: Floats) -> None:
        """The answers between these numbers: they correct the estimate of all that follow."""
        self._known = 0
        with np.errstate(divide="ignore"):
            self._logs[first:stop] = np.log(np.maximum(values[first:stop], 0.0))
        reach = max(1, min((stop - first) // 2, (stop - 1) // 2))
        recent = self._logs[max(stop - 2 * reach - 1, 0) : stop]
        if stop >= len(self.epsilons) or stop <= 2 * reach or not np.isfinite(recent).all():
            return
        places = [stop - 1, stop - 1 - reach, stop - 1 - 2 * reach]
        x, y = self.epsilons[places], self._logs[places]
        slopes = (y[0] - y[1]) / (x[0] - x[1]), (y[1] - y[2]) / (x[1] - x[2])
        bend = float((slopes[0] - slopes[1]) / (x[0] - x[2]))  # half the second derivative
        slope = float(slopes[0] + bend * (x[0] - x[1]))
        guessed = (self.guess[stop] - self.guess[stop - 2]) / (self.epsilons[stop] - self.epsilons[stop - 2])
        ahead = self.epsilons[stop:] - x[0]
        if abs(guessed - slope) <= _AGREE * abs(slope):
            shift = y[0] - self.guess[stop - 1]
            self._bend = None
            self.log_delta[stop:] = np.minimum(self.guess[stop:] + shift, y[0])
            self.lost = self.loss - shift
        else:
            self._bend = bend
            fall = slope * ahead + min(bend, 0.0) * ahead**2
            self.log_delta[stop:] = np.clip(y[0] + fall, _LEAST, y[0])
        self._known = stop

    def aim(self, first: int, least: float) -> tuple[Aim, int]:
        """The longest span from this ε on, down to a log δ, and the number of its ε."""
        enough = self.log_delta[first:] > least
        if self._most < _LOST_AT_ENDS - _NARROWER:
            count = 1
        elif self._bend is None:
            lost = self.lost[first:]
            most = np.maximum(self._most, np.minimum(lost.min(axis=1, keepdims=True) + _ABOVE_LEAST, _MOST_LOST))
            fits = np.logical_and.accumulate(lost <= most, axis=0) & enough[:, None]
            count = max(int(fits.sum(axis=0).max()), 1)
        elif self._known != first:
            count = 1
        else:
            allowed = _CONTINUED - (_LOST_AT_ENDS - self._most)
            width = 2 * math.sqrt(max(allowed, 0.0) / max(-self._bend, 1e-300))
            near = (self.epsilons[first:] <= self.epsilons[first] + width) & enough
            near &= self.log_delta[first:] >= self.log_delta[first] - _FARTHEST
            count = int(np.logical_and.accumulate(near).sum())
            count = count if count >= _CERTAIN else 1
        ends = (first, first + count - 1)
        slack = _SLACK if count > 1 else 0.0
        log_deltas = tuple(float(self.log_delta[end]) for end in ends)
        return Aim(tuple(float(self.epsilons[end]) for end in ends), log_deltas, slack), count
