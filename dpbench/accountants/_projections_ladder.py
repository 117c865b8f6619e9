"""Points of the real line with M to a few digits: where the paths of `_projections` leave it, and a bound of δ(ε).

| here | meaning |
| --- | --- |
| x | the points, z = x |
| s | the log ratio of one release; its dip at x is where p R^(1+x) is least, between the bulk and the heavy tail |
| M_x | E_P[e^(xL)] over the s below the dip of each release only |
| outside | P(some s lies above its dip), at most Σ count · P(s > dip) |
| angle | that of M on the upper edge of its cut, which the tail gives it |

**Bound.** What lies outside adds at most its mass, (1 − e^(ε−L))₊ being at most 1, and by Chernoff
δ(ε) <= outside + M_x e^(−xε) x^x / (1+x)^(1+x) for every x > 0. That holds for any other place than the dip too: some
nearer ones, beyond which a given mass lies, are tried where a jump far out would rule M_x. So δ has an upper bound
however small it is, in the direction remove too, where no moment exists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dpbench.accountants._loss_leaf import Floats
from dpbench.accountants._projections_line import RealLine, angle, real_line
from dpbench.accountants._projections_moment import Release, Whole

# close together where M is large and its valleys are narrow
_STEPS = np.concatenate([np.arange(-69.0, -14.0, 0.5), np.arange(-14.0, -2.0, 0.2), np.arange(-2.0, 10.0, 0.04)])
# with so few projections the tail is so heavy that a tiny δ asks for an ε far beyond e^69
_FEW, _DEEP = 2, np.concatenate([np.arange(-200.0, -69.0, 1.0), _STEPS])
_CAPS = (-32.0, -46.0, -62.0)  # log of what may lie outside of the whole composition
_STEEPEST = 1e11  # an ε as close to the largest loss L as L/1e11 is as good as L
_CHUNK = 16
_HIGHEST = 1e5  # log M
_SLACK = 1e-3  # the sums have far more digits
_TURNED = 1.0  # a path leaves the edge here


@dataclass
class Ladder:
    """M on the real line. What it remembers never changes an answer."""

    x: Floats
    log_moment: Floats
    log_bulk: Floats
    log_outside: Floats
    parts: tuple[tuple[Release | Whole, int, RealLine], ...]
    capped: tuple[tuple[Floats, Floats, Floats], ...] = ()
    _angles: list[Floats] = field(default_factory=list, repr=False)

    def angle(self, last: int) -> Floats:
        """The angle of M at the points up to the index `last`, never falling; π where it has passed 1 before."""
        known = sum(len(piece) for piece in self._angles)
        highest = float(self._angles[-1][-1]) if self._angles else 0.0
        while known < min(last + 1, len(self.x)) and highest <= _TURNED:
            there = slice(known, min(known + _CHUNK, len(self.x)))
            found = np.zeros(there.stop - known)
            for part, count, line in self.parts:
                found += count * angle(part, line, there)
            self._angles.append(np.maximum(np.maximum.accumulate(found), highest))
            known, highest = there.stop, float(self._angles[-1][-1])
        result = np.full(last + 1, math.pi)
        joined = np.concatenate(self._angles)[: last + 1]
        result[: len(joined)] = joined
        return result

    def bound(self, epsilon: float) -> float:
        """The logarithm of an upper bound of δ(ε)."""
        best = -_SLACK
        for x, log_bulk, log_outside in ((self.x, self.log_bulk, self.log_outside), *self.capped):
            chernoff = log_bulk - x * epsilon + x * np.log(x) - (1 + x) * np.log1p(x)
            best = min(best, float(np.logaddexp(chernoff, log_outside).min()))
        return best + _SLACK


def climb(parts: Sequence[tuple[Release | Whole, int]], squared_mu: float, remove: bool) -> Ladder:
    """The ladder of one direction: up to where M is too large, or bulk and tail cannot be told apart."""
    few_projections = any(part.law.projections is not None and part.law.projections <= _FEW for part, _ in parts)
    steps = _DEEP if few_projections and (remove or any(isinstance(part, Whole) for part, _ in parts)) else _STEPS
    if not remove and not squared_mu and all(isinstance(part, Release) for part, _ in parts):
        # losses are bounded, and close to the largest δ falls as steeply as there are orders
        largest = -math.fsum(count * part.log_rest for part, count in parts if isinstance(part, Release))
        steps = np.append(steps, np.arange(steps[-1] + 0.2, math.log(_STEEPEST / largest), 0.2))
    x = np.exp(steps)
    log_moment, log_bulk, log_outside, lines = _sums(parts, squared_mu, remove, x, -math.inf)
    good = np.all([line.good for _, _, line in lines], axis=0)
    bad = np.flatnonzero(~(good & (log_moment < _HIGHEST)))
    end = max(int(bad[0]) if len(bad) else len(x), 3)
    few = x[steps > -2][::4]
    total = math.log(sum(count for _, count in parts))
    capped = []
    for cap in _CAPS if remove or any(isinstance(part, Whole) for part, _ in parts) else ():
        _, bulk, outside, _ = _sums(parts, squared_mu, remove, few, cap - total)
        capped.append((few, np.where(np.isnan(bulk), math.inf, bulk), outside))
    return Ladder(x[:end], log_moment[:end], log_bulk[:end], log_outside[:end], lines, tuple(capped))


def _sums(
    parts: Sequence[tuple[Release | Whole, int]], squared_mu: float, remove: bool, x: Floats, cap: float
) -> tuple[Floats, Floats, Floats, tuple[tuple[Release | Whole, int, RealLine], ...]]:
    """log |M|, its bulk, log P of what lies outside, and the releases' own."""
    log_moment = squared_mu / 2 * x * (1 + x)
    log_bulk, log_outside = log_moment, np.full(len(x), -math.inf)
    lines = []
    for part, count in parts:
        forward = remove or isinstance(part, Whole)
        line = real_line(part, 1 + x, x, cap) if forward else real_line(part, -x, -1 - x)
        log_moment = log_moment + count * line.log_moment
        log_bulk = log_bulk + count * line.log_bulk
        log_outside = np.logaddexp(log_outside, math.log(count) + line.log_outside)
        lines.append((part, count, line))
    return log_moment, log_bulk, log_outside, tuple(lines)
