"""δ(ε) of releases of random sensitivity with few large losses: those on one line, all else on another.

| here | meaning |
| --- | --- |
| s, p(s) | the log ratio of a release and its density; R(s) = 1 − q + q e^s its likelihood ratio |
| g(s) | a window: 0 for small s, 1 for large s, 1/2 where the loss log R is a share of ε |
| A(z) | ∫ p (1 − g) R^(1+z) ds, what a release has of small losses: entire, all its moments exist |
| B(z), b | ∫ p g R^(1+z) ds, its large ones, for Re z <= 0; b = B/A |
| 𝒜 | Π A^count over all releases, with the Gaussians' e^(μ²z(z+1)/2) |
| A', 𝒜' | the same of what a second window f, further in, leaves of the small losses: the tiny ones; b' = A/A' − 1 |

So for remove; for add the loss is −log R under N(0, σ²), and A(z) = ∫ p (1 − g) R^(−z) ds.

The product of the laws is M = 𝒜 + N, N = 𝒜 (Π (1 + b)^count − 1) being what has a large loss.

**Without a large loss.** (1/2πi) ∫ 𝒜 e^(−zε) / (z(z+1)) dz on a line c > 0, near the saddle. Where hits are few, nearly
all of 𝒜 is close to one loss far below ε, and |𝒜| hardly falls along the line. This part has tiny losses only:
𝒜 = 𝒜' + 𝒜' (Π (1 + b')^count − 1), and f is put where 𝒜' adds next to nothing to δ, by its Chernoff bound, which
counts as error. What is left is integrated, and falls as fast as f is smooth. Where small losses together reach ε about
as often as single ones, no line serves both, and 𝒜' has its own.

**With a large loss.** N exists for Re z <= 0. E[(1−e^(ε−L))₊] = N(0) − e^ε N(−1) + E[(e^(ε−L) − 1)₊], and the last is
the same integral on a line c < −1. N(0) = 1 − Π (1 − m)^count and N(−1) = 1 − Π (1 − n)^count, m and n being the
masses of large losses of a release under both of the pair. These terms are up to about the mass of large losses, so
that their rounding drowns δ where large losses are far more likely than it. For add, where losses are bounded, N is
taken on a line c > 0 at once.

**Error.** Beside these: the aliases of both lines, by e^(−cτ) and the Chernoff bounds as in `_ladder`; what lies beyond
their last nodes; the quadrature over s, whose panels are halved until the square of their last Legendre coefficients is
small at the corners of the lines; and rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpbench.accountants._loss_leaf import UNIT, Complex, Floats
from dpbench.accountants._projections_density import Law, log1p
from dpbench.accountants._projections_panels import as_complex
from dpbench.accountants._projections_shares import Row, Share
from dpbench.accountants._projections_sums import Line, bent_exp, bent_log, least_bound, log_expm1
from dpbench.accountants._projections_windows import Losses, Window, cut

_ALLOWED = math.log(1e-13)  # of aliases and truncation, relative to δ
_MOST_NODES, _MOST_WORK = 40000, 4e7
_MOST_EPSILON = 3e3  # beyond, densities against which powers are weighted have lost their digits
_LADDER = np.geomspace(0.05, 400.0, 64)  # c times the scale
_DENSITY = 1e-11  # densities are known to 3e-13 (their test), and log 𝒜 is at most a few dozen
_LOST = 2.5  # log of what the integrand at c may exceed its least by
_DIGITS = 600  # units in the last place that masses have lost
_INNER = (0.5, 0.25, 0.12, 0.06, 0.03, 0.015)  # shares of the first window's place where a second one is tried
_DEEP = 4.0  # log of what the least of the integrand may exceed δ by before a line is split
_DROWNED = 0.3  # relative error of M from which on a line has only noise to add
_PROBES, _LAST = 16, 5  # of M along a line, and how many at its end have to be negligible


def _power(window: Window, z: Complex | Row) -> Complex | Row:
    return window.row(z) if isinstance(z, Row) else window.power(z)


@dataclass(frozen=True)
class Shares:
    """Of every release what a line needs: small losses, large ones, tiny ones and middle ones."""

    small: Sequence[Share] = ()
    large: Sequence[Share] = ()
    tiny: Sequence[Share] = ()
    middle: Sequence[Share] = ()

    @property
    def nodes(self) -> int:
        """Of all together."""
        return sum(len(one.log_weight) for many in (self.small, self.large, self.tiny, self.middle) for one in many)


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
        if not 0 <= epsilon < _MOST_EPSILON:
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
        self.squared_mu, self.epsilon, self.log_target = squared_mu, epsilon, log_target
        # windows and lines are as wide as ε, or as losses are about without large ones
        spread = squared_mu + sum(count * (rate * min(1 / law.sigma, 1.0)) ** 2 for rate, law, count in parts)
        self.scale = max(epsilon, math.sqrt(spread))
        # without sampling a release is the same in both directions
        self.windows: list[Window] = [
            cut(Losses(rate, law, remove or rate == 1), count, share * self.scale, log_target)
            for rate, law, count in parts
        ]
        self.counts = np.array([float(window.count) for window in self.windows])
        self._allowed = log_target + _ALLOWED
        self.mass = 0.0
        self.gone: Floats = np.zeros(len(parts))
        y = _LADDER / self.scale
        few = [k / self.scale for k in (2.0, 20.0, 100.0, 400.0)]
        small = [window.small_share([few[0], -1 - few[0], *few[1:]], False) for window in self.windows]
        self.forward = self.windows[0].losses.forward
        if any(window.losses.forward != self.forward for window in self.windows):
            raise ArithmeticError("no line serves both releases without sampling and sampled ones taken backwards")
        ends = [0.0, -1.0, -1 - few[0]] if self.forward else [0.0, *few]
        large = [window.large_share(ends, False) for window in self.windows]
        self._closed(large)
        self.pieces = self._without(share, y, few, small)
        if math.log(max(self.mass, 1e-300)) > self._allowed:
            points = -1 - y if self.forward else y
            size = self._log_large(as_complex(points), Shares(small, large))[0].real
            self.pieces.append(self._line(points, size, "large"))

    def _without(self, share: float, y: Floats, few: Sequence[float], small: Sequence[Share]) -> list[Line]:
        """What has no large loss: on one line, or without that of which all losses are tiny, or this on its own."""
        self.left: tuple[Floats, Floats] | None = None  # orders, and log of the Chernoff bounds at ε = 0
        whole = self._log_small(as_complex(y), small)[0].real
        if not all(window.cuts for window in self.windows):
            return [self._line(y, whole, "small")]
        bounds = []
        for inner in _INNER:
            bounds.append(self._tiny_bound(share * inner, y, small))
            if bounds[-1] < self._allowed - 3:
                break
        size = whole - y * self.epsilon - np.log1p(y)
        least = float(np.min(size, where=np.isfinite(size), initial=math.inf))
        nothing = min(bounds) < self._allowed - 3
        if not nothing and least < self.log_target + _DEEP:
            return [self._line(y, whole, "small")]
        self._tiny_bound(share * _INNER[next(k for k, b in enumerate(bounds) if b <= min(bounds) + 1)], y, small)
        tiny = [window.small_share([few[0], *few[1:]], False, True) for window in self.windows]
        middle = [window.middle_share(few, False) for window in self.windows]
        self.gone = self.gone + np.array([float(one.weight.sum()) for one in middle])
        shares = Shares((), (), tiny, middle)
        within = self._log_tiny(as_complex(y), shares)[0].real
        left = (y, within + y * np.log(y) - (1 + y) * np.log1p(y) + 1e-3)
        rest = self._line(y, self._log_middle(as_complex(y), shares)[0].real, "middle")
        if least_bound(left, self.epsilon) < self._allowed:
            self.left = left
            return [rest]
        return [rest, self._line(y, within, "tiny")]

    def _tiny_bound(self, share: float, y: Floats, small: Sequence[Share]) -> float:
        """About the Chernoff bound of what has tiny losses only, with a second window at this share of ε."""
        from scipy.special import ndtr

        total = self.squared_mu / 2 * y * (1 + y)
        for k, (window, near) in enumerate(zip(self.windows, small, strict=True)):
            found = cut(window.losses, window.count, share * self.scale, self.log_target)
            self.windows[k] = replace(window, inner=(found.centre, found.width))
            lower = near.weight * ndtr((found.centre - near.log_ratio) / found.width)
            missed = float((near.weight - lower).sum()) + float(self.gone[k])
            power = np.multiply.outer(window.power(as_complex(y)).real, near.log_ratio)
            value = np.expm1(np.minimum(power, 600.0)) @ lower - missed
            total = total + window.count * np.log1p(np.maximum(value, -0.999999))
        return least_bound((y, total + y * np.log(y) - (1 + y) * np.log1p(y)), self.epsilon)

    def _left_out(self, epsilon: float) -> float:
        """The Chernoff bound of what has tiny losses only, where this is left out."""
        return 0.0 if self.left is None else math.exp(min(least_bound(self.left, epsilon), 0.0))

    def without(self, epsilon: float) -> tuple[float, float, float]:
        """What has no large loss."""
        found = [piece(epsilon) for piece in self.pieces if not piece.large]
        value, slope, error = (sum(one[k] for one in found) for k in range(3))
        return value, slope, error + self._left_out(epsilon)

    def __call__(self, epsilon: float) -> tuple[float, float, float]:
        """δ(ε), its derivative in ε, and a bound of its error."""
        total = slope = error = 0.0
        for piece in self.pieces:
            value, rise, wrong = piece(epsilon)
            total, slope, error = total + value, slope + rise, error + wrong
        value, rise, wrong = self._at_ends(epsilon) if self.forward else (0.0, 0.0, 0.0)
        total += value
        return total, slope + rise, error + wrong + self._left_out(epsilon) + _DENSITY * abs(total)

    # ---- large losses in closed form ----

    def _closed(self, large: Sequence[Share]) -> None:
        """The masses of large losses under both of the pair, and what goes with them."""
        self.masses = np.array([float(share.weight.sum()) for share in large])  # ∫ p g R
        self.others = np.array([float((share.weight * np.exp(-share.log_ratio)).sum()) for share in large])  # ∫ p g
        self.betweens = np.array([-float((share.weight * np.expm1(-share.log_ratio)).sum()) for share in large])
        self.overs = np.array(
            [-float((share.weight * np.expm1(self.epsilon - share.log_ratio)).sum()) for share in large]
        )
        # against the density that small losses are weighted with
        forward = np.array([window.losses.forward for window in self.windows])
        self.large_gone = self.gone = np.where(forward, self.others, self.masses)
        self.missed = float(sum(window.count * share.wrong for window, share in zip(self.windows, large, strict=True)))
        rough = [np.abs(share.weight * np.expm1(self.epsilon - share.log_ratio)) @ share.lost for share in large]
        self.noise = UNIT * float(sum(window.count * size for window, size in zip(self.windows, rough, strict=True)))
        self.mass = min(float(self.counts @ self.masses), 1.0)
        if not self.masses.max(initial=0.0) < 0.999:
            raise ArithmeticError("all losses are large")

    def _at_ends(self, epsilon: float) -> tuple[float, float, float]:
        """N(0) − e^ε N(−1), its derivative, and a bound of its error."""
        n, grown = self.counts, math.exp(epsilon)
        moved = grown * -math.expm1(self.epsilon - epsilon)
        # the part that is linear in the masses, Σ n (m − e^ε n)
        over = float(n @ (self.overs - moved * self.others))
        bent = []
        for masses in (self.masses, self.others):  # 1 − Π (1 − m)^n − Σ n m
            curved = float(n @ bent_log(masses))
            bent.append(-bent_exp(curved - float(n @ masses)) - curved)
        value = over + bent[0] - grown * bent[1]
        slope = grown * math.expm1(float(n @ np.log1p(-self.others)))
        noise = self.noise + UNIT * _DIGITS * (
            abs(bent[0]) + grown * abs(bent[1]) + abs(moved) * float(n @ self.others)
        )
        return value, slope, noise + self.missed * (1 + grown)

    # ---- transforms ----

    def _log_small(self, z: Complex | Row, shares: Sequence[Share]) -> tuple[Complex, Floats]:
        """log 𝒜 and its error."""
        points = z.values() if isinstance(z, Row) else z
        total: Complex = np.asarray(self.squared_mu / 2 * points * (1 + points), dtype=np.complex128)
        error: Floats = UNIT * np.abs(total)
        for window, share, gone in zip(self.windows, shares, self.large_gone, strict=True):
            value, wrong = share.sums(_power(window, z), True)
            value = value - gone
            total = total + window.count * log1p(value)
            error = error + window.count * (wrong + UNIT * _DIGITS * gone) / np.abs(1 + value)
        return total, error

    def _log_large(self, z: Complex | Row, shares: Shares) -> tuple[Complex, Floats]:
        """log N and its error."""
        inner, wrong = self._log_small(z, shares.small)
        jumps, missed = np.zeros_like(inner), np.zeros(len(inner))
        for window, near, far, gone in zip(self.windows, shares.small, shares.large, self.large_gone, strict=True):
            if not window.cuts:
                continue
            over, off = far.sums(z, False)
            under, more = near.sums(_power(window, z), True)
            under = 1 + under - gone
            ratio = over / under
            jumps = jumps + window.count * log1p(ratio)
            missed = missed + window.count * (off + np.abs(ratio) * more) / np.abs(under + over)
        return self._joined(inner, wrong, jumps, missed)

    def _log_tiny(self, z: Complex | Row, shares: Shares) -> tuple[Complex, Floats]:
        """log 𝒜' and its error."""
        points = z.values() if isinstance(z, Row) else z
        total: Complex = np.asarray(self.squared_mu / 2 * points * (1 + points), dtype=np.complex128)
        error: Floats = UNIT * np.abs(total)
        for window, share, gone in zip(self.windows, shares.tiny, self.gone, strict=True):
            value, wrong = share.sums(_power(window, z), True)
            value = value - gone
            total = total + window.count * log1p(value)
            error = error + window.count * (wrong + UNIT * _DIGITS * gone) / np.abs(1 + value)
        return total, error

    def _log_middle(self, z: Complex | Row, shares: Shares) -> tuple[Complex, Floats]:
        """log (𝒜 − 𝒜') and its error."""
        inner, wrong = self._log_tiny(z, shares)
        jumps, missed = np.zeros_like(inner), np.zeros(len(inner))
        for window, near, far, gone in zip(self.windows, shares.tiny, shares.middle, self.gone, strict=True):
            power = _power(window, z)
            over, off = far.sums(power, False)
            under, more = near.sums(power, True)
            under = 1 + under - gone
            ratio = over / under
            jumps = jumps + window.count * log1p(ratio)
            missed = missed + window.count * (off + np.abs(ratio) * more) / np.abs(under + over)
        return self._joined(inner, wrong, jumps, missed)

    @staticmethod
    def _joined(inner: Complex, wrong: Floats, jumps: Complex, missed: Floats) -> tuple[Complex, Floats]:
        """log of e^inner (e^jumps − 1) and its error."""
        log_jumps = log_expm1(jumps)
        return inner + log_jumps, wrong + missed * np.exp(np.minimum((jumps - log_jumps).real, 690.0))

    # ---- lines ----

    def _line(self, points: Floats, log_moment: Floats, kind: str) -> Line:
        """The line with the fewest nodes, by log M at real points: those of c > 0, or of c < −1 descending."""
        large = kind == "large" and self.forward
        y = -points if large else points
        if large:
            bound = log_moment - np.log(y - 1) + y * (np.log(y - 1) - np.log(y))
        else:
            bound = log_moment + y * np.log(y) - (1 + y) * np.log1p(y)
        bound = np.where(np.isfinite(bound), bound + 1e-3, math.inf)
        here = bound - points * self.epsilon
        size = log_moment - points * self.epsilon - np.log(np.abs(points * (1 + points)))
        distance = y - 1 if large else y
        first = min(math.log(max(float(self.counts @ self.others), 1e-300)), 0.0) if large else 0.0
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
        z, log_values, error, rest = self._nodes(c, tau, kind)
        weight = np.full(len(z), 2 / tau)
        weight[0] = 1 / tau
        beyond = y > y[best] * (1 + 1e-9)
        reach = (y[beyond] - y[best]) * tau
        with np.errstate(divide="ignore"):
            levels = bound[beyond] - reach - np.log(-np.expm1(-reach))
        start = first - distance[best] * tau - math.log(-math.expm1(-float(distance[best]) * tau))
        return Line(
            z, weight, log_values, error, (start, 1.0 if large else 0.0), (levels, -points[beyond]), rest, large
        )

    def _shares(self, kind: str, ends: Sequence[complex]) -> Shares:
        if kind in ("tiny", "middle"):
            tiny = [window.small_share(ends, tiny=True) for window in self.windows]
            return Shares((), (), tiny, [window.middle_share(ends) for window in self.windows if kind == "middle"])
        small = [window.small_share(ends) for window in self.windows]
        if kind == "small":
            return Shares(small)
        return Shares(small, [window.large_share(ends) for window in self.windows])

    def _log(self, kind: str, z: Complex | Row, shares: Shares) -> tuple[Complex, Floats]:
        if kind in ("tiny", "middle"):
            return self._log_middle(z, shares) if kind == "middle" else self._log_tiny(z, shares)
        return self._log_small(z, shares.small) if kind == "small" else self._log_large(z, shares)

    def _nodes(self, c: float, tau: float, kind: str) -> tuple[Complex, Complex, Floats, float]:
        """The nodes up to where they are negligible, with log M, its error, and the size of what is left out."""
        step = 2 * math.pi / tau
        top = 16 * step
        while True:
            shares = self._shares(kind, [complex(c), complex(c, top)])
            count = math.ceil(top / step) + 1
            if count > _MOST_NODES or count * shares.nodes > _MOST_WORK:
                raise ArithmeticError("the line takes too many nodes")
            probe = np.linspace(0.0, 1.0, _PROBES + 1)[1:] * top
            values, wrong = self._log(kind, np.asarray(c + 1j * probe, dtype=np.complex128), shares)
            rest = values.real - np.log(math.pi * probe)
            if not np.isfinite(rest).all():
                raise ArithmeticError("the line takes too many nodes")
            ended = (rest - c * self.epsilon < self._allowed) | (wrong > _DROWNED)
            if ended[-_LAST:].all():
                break
            top *= 2
        enough = _PROBES - int(np.argmin(ended[::-1])) if not ended.all() else 1
        enough = min(enough + 1, _PROBES)
        row = Row(c, step, math.ceil(enough * top / _PROBES / step) + 1)
        return row.values(), *self._log(kind, row, shares), float(rest[enough - 1 :].max())
