"""One tilt's answers: δ at every lattice loss, from the tilted masses of a composition, and where it reaches a number.

With M the moment at tilt λ and p̃ the tilted masses of the composed losses s_i,
δ(ε) = Σ_(s_i > ε) p̃_i M e^(−λ s_i) (1 − e^(ε − s_i)) plus the mass of infinite loss. A tilted mass w that is missing
or misplaced, wherever it belongs, adds at most w M e^(−λε) κ, κ = λ^λ / (1+λ)^(1+λ), the maximum of
e^(−λs) (1 − e^−s). Independent errors of size η in the cells have a sum of the order η M e^(−λε) κ √n with
n = 1/(2λΔ) + 1 cells that count; eight times that is taken. Both are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpbench.accountants._hinges import Floats
from dpbench.accountants._lattice_grid import Composed


@dataclass(frozen=True)
class Table:
    """δ at every lattice loss for one tilt, in units of e^log_unit.

    `above[i]` is the mass at s_i and beyond, `deltas[i]` the sum at ε = s_i; below `least` doubles
    do not reach, and δ <= 1 is all that is said. `wrong` e^(−λ (ε − centre)) is the sum of
    all error bounds.
    """

    low: float
    step: float
    tilt: float
    centre: float
    log_unit: float
    above: Floats
    deltas: Floats
    wrong: float
    least: float

    def log_delta(self, epsilon: float) -> float:
        """log δ(ε), without the mass of infinite loss."""
        if epsilon < self.least:
            return 0.0
        index = max(math.ceil((epsilon - self.low) / self.step), 0)
        rest = 0.0
        if index < len(self.above):
            before = max(self.low + index * self.step - epsilon, 0.0)
            rest = -math.expm1(-before) * float(self.above[index]) + math.exp(-before) * float(self.deltas[index])
        value = rest + self.errors(epsilon)
        return self.log_unit + math.log(value) if value > 0 else -math.inf

    def errors(self, epsilon: float) -> float:
        """The bound of all errors in δ(ε), in units of e^log_unit."""
        return self.wrong * math.exp(min(-self.tilt * (epsilon - self.centre), 700.0))

    def epsilon(self, log_delta: float) -> float:
        """The smallest ε >= 0 with log δ(ε) <= `log_delta`, to the last digits, on the upper side."""
        if self.log_delta(0.0) <= log_delta:
            return 0.0
        return falls_to(self.log_delta, log_delta, max(self.low + self.step * len(self.above), self.step))


def falls_to(log_delta: Callable[[float], float], target: float, guess: float) -> float:
    """Where a falling function reaches `target`, by bisection from 0 to about `guess`; the upper end."""
    low, high = 0.0, guess
    while log_delta(high) > target:
        low, high = high, 2 * high
        if high > 1e300:
            return math.inf
    while high - low > 2e-14 * high:
        middle = low + (high - low) / 2
        if not low < middle < high:
            break
        if log_delta(middle) > target:
            low = middle
        else:
            high = middle
    return high


def log_kappa(tilt: Floats) -> Floats:
    result: Floats = tilt * np.log(tilt) - (1 + tilt) * np.log1p(tilt)
    return result


def tabulate(composed: Composed, offset: float, step: float, tilt: float, wrong: float, loose: float = 0.0) -> Table:
    """The table of a composition, e^loose times as large; where doubles did not suffice, one that says δ <= 1."""
    finite = bool(np.isfinite(composed.grid.masses).all()) and math.isfinite(composed.grid.log_mass + wrong)
    if not finite:
        nothing = np.zeros(1)
        return Table(0.0, step, tilt, 0.0, 0.0, nothing, nothing, 0.0, math.inf)
    masses = np.maximum(composed.grid.masses, 0.0)
    low = offset + composed.grid.start * step
    centre = low + step * float(np.dot(masses, np.arange(len(masses))))
    away = low - centre + step * np.arange(len(masses))
    with np.errstate(under="ignore"):
        weights = masses * np.exp(np.clip(-tilt * away, -745.0, 350.0))
        above = np.cumsum(weights[::-1])[::-1]
        deltas = _deltas(above, step)
    kappa = math.exp(tilt * math.log(tilt) - (1 + tilt) * math.log1p(tilt))
    cells = 8 * kappa * math.sqrt(min(len(masses), 1 / (2 * tilt * step) + 1))
    return Table(
        low,
        step,
        tilt,
        centre,
        composed.grid.log_mass - tilt * centre + loose,
        above,
        deltas,
        wrong * kappa + composed.noise * cells,
        centre - 350 / tilt,
    )


def _deltas(above: Floats, step: float) -> Floats:
    """δ at every lattice loss, δ_i = e^−Δ δ_(i+1) + (1 − e^−Δ) A_(i+1): positive terms only.

    In blocks of 200 in ε, from the right, so that no factor overflows: before index `stop`,
    δ_i = e^−(stop−i)Δ δ_stop + (1 − e^−Δ) e^−(stop−i−1)Δ Σ_(l = i+1 ... stop) e^((stop−l)Δ) A_l.
    """
    size = len(above)
    padded = np.append(above, 0.0)
    result = np.zeros(size + 1)
    block = max(int(200 / step), 1)
    for stop in range(size, 0, -block):
        start = max(stop - block, 0)
        ahead = step * (stop - np.arange(start + 1, stop + 1))
        sums = np.cumsum((padded[start + 1 : stop + 1] * np.exp(ahead))[::-1])[::-1]
        result[start:stop] = np.exp(-step - ahead) * result[stop] - math.expm1(-step) * np.exp(-ahead) * sums
    return result[:-1]
