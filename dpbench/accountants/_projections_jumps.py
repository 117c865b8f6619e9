"""δ(ε) of releases of random sensitivity where it is tiny: small losses together on one line, large ones by number.

| here | meaning |
| --- | --- |
| s, p(s) | the log ratio of a release and its density; R(s) = 1 − q + q e^s its likelihood ratio |
| g(s) | a window: 0 for small s, 1 for large s, 1/2 where the loss log R is a share of ε |
| A(z) | ∫ p (1 − g) R^(1+z) ds, what a release has of small losses: entire, all its moments exist |
| B(z), b | ∫ p g R^(1+z) ds, its large ones, for Re z <= 0; b = B/A |
| 𝒜 | Π A^count over all releases, with the Gaussians' e^(μ²z(z+1)/2) |

So for remove. For add all moments of a sampled release exist: g = 0, and A(z) = ∫ p R^(−z) ds.

The product of the laws is expanded by how many releases have a large loss: M = 𝒜 (1 + e_1 + e_2 + e_3 + ...), e_k the
elementary symmetric polynomials of the releases' b: S, (S² − Q)/2, (S³ − 3SQ + 2C)/6; S, Q, C the sums of b, b², b³.

**None.** (1/2πi) ∫ 𝒜 e^(−zε) / (z(z+1)) dz on a line c > 0, near the saddle.

**One to three.** N = 𝒜 (e_1 + e_2 + e_3) exists for Re z <= 0. E[(1−e^(ε−L))₊] = N(0) − e^ε N(−1) + E[(e^(ε−L) − 1)₊],
and the last is the same integral on a line c < −1.

**Four and more.** At most their mass, which counts as missed. So this serves where large losses are rare.

**Error.** Beside these: the aliases of both lines, by e^(−cτ) and the Chernoff bounds as in `_ladder`; what lies beyond
their last nodes; the quadrature over s, whose panels are halved until the square of their last Legendre coefficients is
small at the corners of the lines; and rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from dpbench.accountants._loss_leaf import UNIT, Complex, Floats
from dpbench.accountants._projections_density import Law, log1p
from dpbench.accountants._projections_panels import as_complex
from dpbench.accountants._projections_windows import NO_SHARE, Share, cut

Sum = TypeVar("Sum", float, Complex)
_ALLOWED = math.log(1e-13)  # of aliases and truncation, relative to δ
_MOST_NODES, _MOST_WORK = 6000, 5e6
_MOST_EPSILON = 1e15
_MOST_LARGE = 0.01  # large losses at most: beyond, four of them are not rare
_LADDER = np.geomspace(0.05, 1e3, 64)  # c times ε
_DENSITY = 1e-11  # densities are known to 3e-13 (their test), and log 𝒜 is at most a few dozen
_LOST = 7.0  # log of what the integrand at c may exceed δ by
_DIGITS = 600  # units in the last place that masses have lost


def _several(s: Sum, q: Sum, c: Sum) -> Sum:
    """e_2 + e_3."""
    return (s * s - q) / 2 + (s * s * s - 3 * s * q + 2 * c) / 6


@dataclass(frozen=True)
class Line:
    """One line c + iu: nodes, log of the transform without e^(−zε) / (z(z+1)), its error, and the bounds of aliases:
    of those ahead log and slope in ε, of those behind the same at many points."""

    z: Complex
    weight: Floats
    log_moment: Complex
    error: Floats
    ahead: tuple[float, float]
    behind: tuple[Floats, Floats]
    rest: float

    def __call__(self, epsilon: float) -> tuple[float, float, float]:
        """The integral, its derivative in ε, and a bound of its error."""
        terms = self.weight * np.exp(self.log_moment - self.z * epsilon) / (self.z * (1 + self.z))
        noise = self.error + UNIT * (8 + np.abs(self.z * epsilon) + np.abs(self.log_moment))
        level, slopes = self.behind
        alias = np.logaddexp(self.ahead[0] + self.ahead[1] * epsilon, (level + slopes * epsilon).min(initial=math.inf))
        rest = self.rest - float(self.z[0].real) * epsilon
        error = float((np.abs(terms) * noise).sum()) + math.exp(min(alias, 700.0)) + math.exp(min(rest, 700.0))
        return float(terms.real.sum()), float((-self.z * terms).real.sum()), error


class NotRareError(ArithmeticError):
    """Large losses are too frequent to be counted."""


class Jumps:
    """δ(ε) of one direction near the ε for which it was made, where δ is about e^log_target there.

    Raises ArithmeticError where it cannot serve.
    """

    def __init__(
        self,
        parts: Sequence[tuple[float, Law, int]],
        squared_mu: float,
        remove: bool,
        epsilon: float,
        log_target: float,
        share: float = 1.0,
    ) -> None:
        if not 0 < epsilon < _MOST_EPSILON:
            raise ArithmeticError("no loss is large here")
        with np.errstate(all="ignore"):  # what is not finite is not used
            self._make(parts, squared_mu, remove, epsilon, log_target, share)

    def _make(
        self,
        parts: Sequence[tuple[float, Law, int]],
        squared_mu: float,
        remove: bool,
        epsilon: float,
        log_target: float,
        share: float,
    ) -> None:
        self.squared_mu, self.epsilon = squared_mu, epsilon
        # without sampling a release is the same in both directions
        self.windows = [
            cut(rate, law, count, share * epsilon, log_target, remove or rate == 1) for rate, law, count in parts
        ]
        self._allowed = log_target + _ALLOWED
        y = _LADDER / epsilon
        few = [k / epsilon for k in (2.0, 20.0, 200.0, 1000.0)]
        small = [window.small_share([few[0], -1 - few[0], *few[1:]], False) for window in self.windows]
        large = [
            window.large_share([0.0, -1.0, -1 - few[0]], False) if window.forward else NO_SHARE
            for window in self.windows
        ]
        self._closed(large)
        self.pieces = [self._line(y, self._log_small(as_complex(y), small)[0].real, False)]
        if math.log(max(self.mass, 1e-300)) > self._allowed:
            both = self._log_small(as_complex(-1 - y), small)[0] + self._log_large(as_complex(-1 - y), small, large)[0]
            self.pieces.append(self._line(-1 - y, both.real, True))

    def __call__(self, epsilon: float) -> tuple[float, float, float]:
        """δ(ε), its derivative in ε, and a bound of its error."""
        total = slope = error = 0.0
        for piece in self.pieces:
            value, rise, wrong = piece(epsilon)
            total, slope, error = total + value, slope + rise, error + wrong
        value, rise, wrong = self._at_ends(epsilon)
        total += value
        return total, slope + rise, error + wrong + self.uncounted + _DENSITY * abs(total)

    # ---- large losses in closed form ----

    def _closed(self, large: Sequence[Share]) -> None:
        """The masses of large losses under both of the pair, and what goes with them."""
        self.masses = np.array([float(share.weight.sum()) for share in large])  # ∫ p g R
        self.others = np.array([float((share.weight * np.exp(-share.log_ratio)).sum()) for share in large])  # ∫ p g
        self.betweens = np.array([-float((share.weight * np.expm1(-share.log_ratio)).sum()) for share in large])
        self.overs = np.array(
            [-float((share.weight * np.expm1(self.epsilon - share.log_ratio)).sum()) for share in large]
        )
        self.missed = float(sum(window.count * share.wrong for window, share in zip(self.windows, large, strict=True)))
        rough = [np.abs(share.weight * np.expm1(self.epsilon - share.log_ratio)) @ share.lost for share in large]
        self.noise = UNIT * float(sum(window.count * size for window, size in zip(self.windows, rough, strict=True)))
        self.counts = np.array([float(window.count) for window in self.windows])
        self.mass = float(self.counts @ self.masses)
        self.uncounted = self.mass**4 / 24  # four and more of them
        if not self.mass < _MOST_LARGE:
            raise NotRareError("large losses are not rare")

    def _at_ends(self, epsilon: float) -> tuple[float, float, float]:
        """N(0) − e^ε N(−1) of one and of two large losses, its derivative, and a bound of its error."""
        n, grown = self.counts, math.exp(epsilon)
        moved = grown * -math.expm1(self.epsilon - epsilon)
        kept = math.exp(float(n @ np.log1p(-self.masses)))  # 𝒜(0)
        # log 𝒜(−1) − log 𝒜(0), A(0) = 1 − ∫pgR and A(−1) = 1 − ∫pg
        apart = float(n @ np.log1p(self.betweens / (1 - self.masses)))
        first, last = self.masses / (1 - self.masses), self.others / (1 - self.others)
        # b(0) − e^ε b(−1) 𝒜(−1)/𝒜(0)
        over = self.overs - moved * self.others
        one = over / (1 - self.masses) - grown * self.others * (
            1 / (1 - self.others) - 1 / (1 - self.masses) + math.expm1(apart) / (1 - self.others)
        )
        start, end = ([float(n @ b**k) for k in (1, 2, 3)] for b in (first, last))
        more = _several(*start) - grown * math.exp(apart) * _several(*end)
        slope = -grown * kept * math.exp(apart) * (end[0] + _several(*end))
        value = kept * (float(n @ one) + more)
        size = self.mass**2 + float(n @ (self.masses * np.abs(self.betweens)))
        noise = self.noise + UNIT * _DIGITS * (size + abs(moved) * float(n @ self.others))
        return value, slope, noise + self.missed * (1 + grown)

    # ---- transforms ----

    def _log_small(self, z: Complex, shares: Sequence[Share]) -> tuple[Complex, Floats]:
        """log 𝒜 and its error."""
        total: Complex = np.asarray(self.squared_mu / 2 * z * (1 + z), dtype=np.complex128)
        error: Floats = UNIT * np.abs(total)
        for window, share, other in zip(self.windows, shares, self.others, strict=True):
            value, wrong = share.sums(window.power(z), True)
            value = value - other
            total = total + window.count * log1p(value)
            error = error + window.count * wrong / np.abs(1 + value)
        return total, error

    def _log_large(self, z: Complex, small: Sequence[Share], large: Sequence[Share]) -> tuple[Complex, Floats]:
        """log (e_1 + e_2 + e_3) and its error."""
        (total, squares, cubes), error = (np.zeros_like(z) for _ in range(3)), np.zeros(len(z))
        for window, near, far, other in zip(self.windows, small, large, self.others, strict=True):
            if not window.forward:
                continue
            over, wrong = far.sums(z, False)
            under, more = near.sums(window.power(z), True)
            share = over / (1 + under - other)
            total, squares = total + window.count * share, squares + window.count * share**2
            cubes = cubes + window.count * share**3
            error = error + window.count * (wrong + np.abs(share) * more) / np.abs(1 + under)
        value = total + _several(total, squares, cubes)
        return np.log(value), error * (1 + np.abs(total)) ** 2 / np.abs(value)

    # ---- lines ----

    def _line(self, points: Floats, log_moment: Floats, large: bool) -> Line:
        """The line with the fewest nodes, by log M at real points: those of c > 0, or of c < −1 descending."""
        y = -points if large else points
        if large:
            bound = log_moment - np.log(y - 1) + y * (np.log(y - 1) - np.log(y))
        else:
            bound = log_moment + y * np.log(y) - (1 + y) * np.log1p(y)
        bound = np.where(np.isfinite(bound), bound + 1e-3, math.inf)
        here = bound - points * self.epsilon
        size = log_moment - points * self.epsilon - np.log(np.abs(points * (1 + points)))
        distance = y - 1 if large else y
        first = math.log(max(float(self.counts @ self.others), 1e-300)) if large else 0.0
        ahead = first + (self.epsilon if large else 0.0)
        gap = y[None, :] - y[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            behind = np.where(gap > 0, (here[None, :] - self._allowed + 0.7) / gap, math.inf).min(axis=1)
        period = np.maximum(np.maximum((ahead - self._allowed + 0.7) / distance, behind), 0.7 / distance)
        level = size + np.log(distance)
        fits = np.isfinite(level)
        least = float(level[fits].min()) if fits.any() else math.inf
        fits &= level < max(least, self._allowed - _ALLOWED) + _LOST
        if not fits.any():
            raise ArithmeticError("no line serves")
        best = int(np.argmin(np.where(fits, period, math.inf)))
        c, tau = float(points[best]), float(period[best])
        if not math.isfinite(tau):
            raise ArithmeticError("no line serves")
        z, log_values, error, rest = self._nodes(c, tau, large)
        weight = np.full(len(z), 2 / tau)
        weight[0] = 1 / tau
        beyond = y > y[best] * (1 + 1e-9)
        reach = (y[beyond] - y[best]) * tau
        with np.errstate(divide="ignore"):
            levels = bound[beyond] - reach - np.log(-np.expm1(-reach))
        start = first - distance[best] * tau - math.log(-math.expm1(-float(distance[best]) * tau))
        return Line(z, weight, log_values, error, (start, 1.0 if large else 0.0), (levels, -points[beyond]), rest)

    def _nodes(self, c: float, tau: float, large: bool) -> tuple[Complex, Complex, Floats, float]:
        """The nodes up to where they are negligible, with log M, its error, and the size of what is left out."""
        step = 2 * math.pi / tau
        top = 16 * step
        while True:
            ends = [complex(c), complex(c, top)]
            small = [window.small_share(ends) for window in self.windows]
            further = (
                [window.large_share(ends) if window.forward else NO_SHARE for window in self.windows] if large else []
            )

            def at(z: Complex) -> tuple[Complex, Floats]:
                value, wrong = self._log_small(z, small)  # noqa: B023
                if large:
                    more, missed = self._log_large(z, small, further)  # noqa: B023
                    value, wrong = value + more, wrong + missed
                return value, wrong

            probe = as_complex(complex(c) + 1j * top * np.array([0.7, 0.8, 0.9, 1.0]))
            rest = float(at(probe)[0].real.max()) - math.log(math.pi * top)
            count = math.ceil(top / step) + 1
            work = count * sum(len(share.log_weight) for share in (*small, *further))
            if not math.isfinite(rest) or count > _MOST_NODES or work > _MOST_WORK:
                raise ArithmeticError("the line takes too many nodes")
            if rest - c * self.epsilon < self._allowed:
                break
            top *= 1.6
        z = np.asarray(c + 1j * step * np.arange(count), dtype=np.complex128)
        return z, *at(z), rest
