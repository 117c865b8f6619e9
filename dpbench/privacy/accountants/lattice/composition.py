"""A sum of independent losses on one lattice by Fourier transforms, and δ(ε) from it, for one tilt.

With M the moment at tilt λ and p̃ the tilted masses of the composed losses s_i,
δ(ε) = M e^(−λε) Σ_(s_i > ε) p̃_i e^(−λ (s_i − ε)) (1 − e^(ε − s_i)) plus the mass of infinite loss. A tilted mass w
that is missing or misplaced, wherever it belongs, adds at most w M e^(−λε) κ, κ = λ^λ / (1+λ)^(1+λ), the maximum of
e^(−λs) (1 − e^−s). Independent errors of size η in the cells have a sum of the order η M e^(−λε) κ √n with
n = 1/(2λΔ) + 1 cells that count; eight times that is taken. Both are added.

`Direction` is a whole composition in one direction: each question is answered from the tilt that suits it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.privacy.accountants._complex import log1p
from dpbench.privacy.accountants._losses import Floats
from dpbench.privacy.accountants._work import spend
from dpbench.privacy.accountants.lattice.law import LossLaw
from dpbench.privacy.accountants.lattice.rounding import UNIT, Plan, Rounded, atoms_of, mean_and_variance, round_up

_CELLS = 2**17, 2**21  # of a lattice: at most the first times √(releases), nor more than the second
_FINENESS = 2048, 500  # cells per standard deviation of the tilted sum: the first, or the second times √(releases)
_WRAPPED = 1e-17  # tilted mass outside of a window, about
_STEPS = np.concatenate([-(2.0 ** np.arange(4, -13, -0.5)), 2.0 ** np.arange(-12, 4.5, 0.5)])
_TILTS, _PER_OCTAVE = 240, 4
_WORK = 2  # of a cell and a mechanism, in exponentials, of transforming
_COARSE = 2**13  # cells of the lattice that finds the tilt
_GIVEN_UP = math.log(100)  # digits of δ that a smaller tilt may cost, for narrower windows
_MOST_TILTED = 20.0  # tilts times steps stay below this


@dataclass(frozen=True)
class Table:
    """The tilted sum: `masses` at the ascending `losses`, `log_moment` = log M.

    `wrong` is the tilted mass that may be missing or misplaced, `noise` the rounding per cell of a lattice (its root
    mean square).
    """

    tilt: float
    log_moment: float
    losses: Floats
    masses: Floats
    wrong: float
    noise: float

    def log_delta(self, epsilon: float) -> float:
        """log δ(ε) from above, without the mass of infinite loss."""
        return self.log_moment - self.tilt * epsilon + math.log(self._sum(epsilon) + self.errors)

    def doubt(self, epsilon: float) -> float:
        """The share of the error bounds in δ(ε)."""
        return self.errors / (self._sum(epsilon) + self.errors)

    def _sum(self, epsilon: float) -> float:
        """δ(ε) in units of M e^(−λε), as computed."""
        first, last = np.searchsorted(self.losses, [epsilon, epsilon + 745 / self.tilt])
        away = self.losses[first:last] - epsilon
        terms = self.masses[first:last] * np.exp(-self.tilt * away) * -np.expm1(-away)
        return max(float(terms.sum()), 0.0)

    @property
    def errors(self) -> float:
        """The bound of all errors, in units of M e^(−λε)."""
        step = float(self.losses[-1] - self.losses[0]) / len(self.losses)
        cells = math.sqrt(min(len(self.losses), 1 / (2 * self.tilt * step) + 1)) if self.noise else 0.0
        return (self.wrong + 8 * self.noise * cells) * math.exp(float(log_kappa(np.array(self.tilt))))


def log_kappa(tilt: Floats) -> Floats:
    """log κ at each tilt above 0."""
    result: Floats = tilt * np.log(tilt) - (1 + tilt) * np.log1p(tilt)
    return result


def compose(plans: Sequence[Plan], tilt: float, most_cells: int | None = None) -> Table:
    """The sum of all mechanisms under one tilt, on or above the true law; for a tilt above 0.

    The steps are so fine that splitting adds about 1e-6 of the variance, or as fine as `most_cells` allow (None: as
    many as the number of invocations asks for).
    """
    mean, variance = mean_and_variance(plans, tilt)
    deviation = max(math.sqrt(variance), 1e-3 / tilt)  # the latter where nearly all lies on one atom
    low, high, outside = _window(plans, tilt, mean, deviation)
    releases = sum(plan.count for plan in plans)
    if releases == 1:
        return _single(plans[0], tilt)
    often = math.sqrt(releases)
    fineness = max(_FINENESS[0], _FINENESS[1] * often)
    most_cells = most_cells or int(min(_CELLS[0] * often, _CELLS[1]))
    step = min(max(deviation / fineness, (high - low) / (0.9 * most_cells)), _MOST_TILTED / tilt)
    parts = [round_up(plan, tilt, step) for plan in plans]
    offset = math.fsum(part.count * part.anchor for part in parts)
    margin = 8 + 0.02 * (high - low) / step
    least = sum(part.count * part.start for part in parts)
    most = sum(part.count * (part.start + len(part.masses) - 1) for part in parts)
    first = max(math.floor((low - offset) / step - margin), least)
    last = min(math.ceil((high - offset) / step + margin), most)
    size = 1 << max(last - first, 1).bit_length()
    if size > 2 * most_cells:
        raise ArithmeticError("losses spread too far for a lattice that resolves them")
    spend(_WORK * size * (len(parts) + 1))
    transforms = [_Transform(part, size) for part in parts]
    masses, noise = _product(transforms, first, size)
    wrapped = 0.0
    for theta, end in ((outside[0] * step, first - 1), (outside[1] * step, first + size)):
        if least <= end <= most:  # Chernoff's bound of what leaves the window and comes in at its other end
            log_moment = math.fsum(found.part.count * found.log_moment(theta) for found in transforms)
            centre = sum(found.part.count * found.centre for found in transforms)
            wrapped += math.exp(min(log_moment - theta * (end - centre), 0.0))
    if first == least and first + size > most:
        masses = masses[: most - first + 1]  # nothing wraps: cells beyond the support hold rounding alone
    mass = float(masses.sum())
    if not 0 < mass < math.inf:
        raise ArithmeticError("so many invocations that their rounding in doubles outweighs the law of their sum")
    log_moment = math.fsum(part.count * (part.log_mass + part.loose) for part in parts) + math.log(mass)
    wrong = math.fsum(part.count * part.dropped for part in parts) + wrapped
    low_end = offset + first * step + math.fsum(part.count * part.shift for part in parts)
    return Table(
        tilt, log_moment, low_end + step * np.arange(len(masses), dtype=np.float64), masses / mass, wrong, noise
    )


def _single(plan: Plan, tilt: float) -> Table:
    """A single invocation needs no lattice: intervals of a 4096th of the scale, or as fine as memory allows."""
    atoms = atoms_of(plan, tilt, math.inf, fewest=max(32, min(512, 2**22 // len(plan.losses))))
    order = np.argsort(atoms.losses)
    mass = float(atoms.masses.sum())
    log_moment = atoms.top + math.log(mass) + atoms.loose
    return Table(tilt, log_moment, atoms.losses[order], atoms.masses[order] / mass, atoms.dropped, 0.0)


def _window(
    plans: Sequence[Plan], tilt: float, mean: float, deviation: float
) -> tuple[float, float, tuple[float, float]]:
    """The window of the tilted sum, mass `_WRAPPED` left out, by Chernoff's bound or the support; the bound's tilts."""
    thetas = _STEPS / deviation
    moments, least, most = np.zeros(len(thetas)), 0.0, 0.0
    for plan in plans:
        losses, masses = plan.tilted(tilt)
        centre = float(np.dot(masses, losses))
        exponents = np.multiply.outer(thetas, losses - centre)
        top = exponents.max(axis=1)
        moments += plan.count * (top + np.log(np.maximum(np.exp(exponents - top[:, None]) @ masses, 1e-300)))
        least, most = least + plan.count * float(losses.min()), most + plan.count * float(losses.max())
    ends = (moments - math.log(_WRAPPED)) / thetas
    below = int(np.argmax(np.where(thetas < 0, ends, -np.inf)))
    above = int(np.argmin(np.where(thetas > 0, ends, np.inf)))
    low, high = max(mean + float(ends[below]), least), min(mean + float(ends[above]), most)
    return low, high, (float(thetas[below]), float(thetas[above]))


class _Transform:
    """The transform of one invocation, centred on its largest cell, less 1: so that small losses keep their digits.

    `error` is the rounding of a frequency (an estimate: a transform's is taken to be 4 log2(size) units of the 2-norm).
    """

    def __init__(self, part: Rounded, size: int) -> None:
        middle = int(np.argmax(part.masses))
        self.part, self.centre = part, part.start + middle
        self.distance = np.arange(-middle, len(part.masses) - middle)
        folded = np.bincount(self.distance % size, part.masses, size)
        folded[0] = 0.0
        moved = float(folded.sum())
        self.change = np.fft.rfft(folded) - moved
        self.error = 4 * UNIT * (math.log2(size) * math.sqrt(float(np.dot(folded, folded))) + moved)

    def log_moment(self, theta: float) -> float:
        """log Σ p̃ e^(θ (i − centre))."""
        exponents = theta * self.distance
        top = float(exponents.max())
        return top + math.log(float(np.dot(self.part.masses, np.exp(exponents - top))))


def _product(transforms: Sequence[_Transform], first: int, size: int) -> tuple[Floats, float]:
    """Masses of the sum on the cells first ... first + size − 1, and their noise per cell, with either sign.

    A power multiplies a transform's error by the count. The largest error of any frequency is taken for all of them:
    those of low ones move many cells alike.

    Powers as e^(count · log), one inverse; frequencies where the product is below e^-60 are left at 0.
    """
    with np.errstate(divide="ignore"):
        modulus = sum(found.part.count * np.log(np.abs(1 + found.change)) for found in transforms)
    active = np.flatnonzero(modulus > -60)
    logarithm, relative = np.zeros(len(active), np.complex128), np.zeros(len(active))
    for found in transforms:
        change = found.change[active]
        logarithm += found.part.count * log1p(change)
        relative += found.part.count * found.error / np.maximum(np.abs(1 + change), 1e-6)
    length = np.exp(logarithm.real)
    total = np.zeros(size // 2 + 1, np.complex128)
    total[active] = length * (np.cos(logarithm.imag) + 1j * np.sin(logarithm.imag))
    shift = (first - sum(found.part.count * found.centre for found in transforms)) % size
    masses = np.roll(np.fft.irfft(total, size), -shift)
    forward = float((length * np.minimum(relative, 1.0)).max())
    inverse = 4 * UNIT * math.log2(size) * math.sqrt(float(np.dot(masses, masses)))
    return masses, (forward + inverse) / math.sqrt(size)


class Direction:
    """A whole composition in one direction. `tilts` is a geometric grid; tables are kept by the index of their tilt.

    Which tilts are used depends on the question alone, so answers do not depend on earlier questions.
    """

    def __init__(self, laws: Sequence[tuple[LossLaw, int]]) -> None:
        self.plans = [Plan(law, count) for law, count in laws]
        finite = math.fsum(count * math.log1p(-min(law.infinite, 1 - 1e-16)) for law, count in laws)
        self.infinite = min(-math.expm1(finite) * (1 + 1e-12), 1.0)
        ends = [count * law.highest for law, count in laws]
        self.highest = -math.inf if -math.inf in ends else math.fsum(ends)  # no finite loss of the sum exceeds it
        self.tilts, self.moments = np.empty(0), np.empty(0)
        self.tables: dict[tuple[int, int | None], Table] = {}
        self.heavy = [float(plan.losses.max()) for plan in self.plans if plan.law.branches and plan.law.infinite > 0]
        if self.highest > -math.inf:
            deviation = math.sqrt(mean_and_variance(self.plans, 0.0)[1])
            limit = min(law.highest_tilt for law, _ in laws)
            limit_of_heavy = 1 / max(self.heavy, default=1.0)  # a heavy tail that ends there must not outweigh the rest
            unit = 2.0 ** math.floor(
                math.log2(min(1 / (8 * deviation) if deviation > 0 else 1.0, limit / 256, limit_of_heavy))
            )
            tilts = unit * 2.0 ** (np.arange(_TILTS) / _PER_OCTAVE)
            self.tilts = tilts[tilts <= limit]
            self.moments = sum((plan.count * plan.log_moments(self.tilts) for plan in self.plans), np.zeros(1))

    def log_delta(self, epsilon: float) -> float:
        """log δ(ε), infinite losses included."""
        log_infinite = math.log(self.infinite) if self.infinite > 0 else -math.inf
        if epsilon >= self.highest * (1 + 1e-12):
            return log_infinite
        if float(self._bounds(epsilon).min()) < -800:  # next to 0 whatever the table says
            return max(-750.0, log_infinite)
        found = min(self._table(index).log_delta(epsilon) for index in self._suited(epsilon))
        return float(np.logaddexp(min(found, 0.0), log_infinite))

    def epsilon(self, delta: float) -> float:
        """The smallest ε >= 0 at which δ(ε) <= `delta`; infinite where infinite losses alone exceed it."""
        left = delta - self.infinite
        if left <= 0:
            return math.inf
        if self.highest == -math.inf:
            return 0.0
        log_delta = math.log(left)
        chernoff = min(max(float(((self._bounds(0.0) - log_delta) / self.tilts).min()), 0.0), self.highest)
        guess = min(self._settled(log_delta, chernoff, _COARSE), chernoff)
        return self._settled(log_delta, guess, None)

    def _settled(self, log_delta: float, found: float, cells: int | None) -> float:
        """Iterate: the tilts suited to the current ε give tables, whose ε at this δ is the next, until tilts repeat.

        Returns the largest ε of the cycle: there the tables of its own tilts have a δ of at most the one asked for.
        """
        asked: list[tuple[int, ...]] = []
        ends: list[float] = []
        while (indices := self._suited(found, cells)) not in asked:
            found = min(falls_to(self._table(index, cells).log_delta, log_delta, found) for index in indices)
            found = min(found, self.highest)
            asked.append(indices)
            ends.append(found)
        return max(ends[asked.index(indices) :])

    def _bounds(self, epsilon: float) -> Floats:
        """About Chernoff's bound of log δ(ε) at every tilt."""
        result: Floats = self.moments - self.tilts * epsilon + log_kappa(self.tilts)
        return result

    def _suited(self, epsilon: float, cells: int | None = None) -> tuple[int, ...]:
        """Indices of the tilts whose tables are evaluated; the least δ counts, as each of them is a bound.

        The first is the smallest tilt whose Chernoff bound is at most a hundred times the best: its window is narrower.
        The tilt of the best bound is added where errors exceed 1e-4 of the first one's δ. Where a tail is heavy and
        errors exceed half of both, the best tilt whole octaves below is added: a steep tilt sees the end of the tail
        alone, and what decides δ(ε) is then smaller than the errors.
        """
        bounds = self._bounds(epsilon)
        best = int(np.argmin(bounds))
        low = int(np.argmax(bounds <= bounds[best] + _GIVEN_UP))
        indices = [low] if low == best else [low, best]
        if self._table(low, cells).doubt(epsilon) < 1e-4:
            return (low,)
        below = range(low % _PER_OCTAVE, low, _PER_OCTAVE)
        if self.heavy and below and min(self._table(index, cells).doubt(epsilon) for index in indices) > 0.5:
            indices.append(min(below, key=lambda index: self._table(index, _COARSE).log_delta(epsilon)))
        return tuple(indices)

    def _table(self, index: int, cells: int | None = None) -> Table:
        cells = None if sum(plan.count for plan in self.plans) == 1 else cells  # one invocation has no lattice
        if (index, cells) not in self.tables:
            self.tables[index, cells] = compose(self.plans, float(self.tilts[index]), cells)
        return self.tables[index, cells]


def falls_to(log_delta: Callable[[float], float], target: float, guess: float) -> float:
    """Where a falling function reaches `target`, from above and at most 1e-12 too large; 0 if it starts below.

    Regula falsi with the Illinois rule, from 0 and about `guess`; every fourth step halves.
    """
    low, high = 0.0, max(guess, 1e-12)
    above, below = log_delta(low) - target, log_delta(high) - target
    if above <= 0:
        return 0.0
    while below > 0:
        low, above, high = high, below, 8 * high
        below = log_delta(high) - target
        if high > 1e300:
            return math.inf
    last = steps = 0
    while high - low > 1e-12 * high and high > 1e-300:
        steps += 1
        chord = (low * below - high * above) / (below - above) if steps % 4 else (low + high) / 2
        middle = min(max(chord, low + 4e-13 * high), high - 4e-13 * high)
        value = log_delta(middle) - target
        side = 1 if value > 0 else -1
        if side > 0:
            low, above, below = middle, value, below / 2 if last == side else below
        else:
            high, below, above = middle, value, above / 2 if last == side else above
        last = side
    return high
