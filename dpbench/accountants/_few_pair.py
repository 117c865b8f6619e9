"""One sampled release as a loss that increases in a coordinate x, for the sums of few such losses.

| here | meaning |
| --- | --- |
| w_k | the probability that k of the g members are drawn; for one record (1 − q, q) |
| ρ(x) | log Σ_k w_k e^((2kx − k²)/(2σ²)), the log ratio of the mixture to N(0, σ²) |
| x | the released coordinate in units of the clip norm; for "add" its negative |
| loss(x) | remove: ρ(x); add: −ρ(−x); replacing a record: ρ(x) − ρ(−x) |

So P is the mixture for "remove" and for a replaced record, N(0, σ²) for "add"; Q is N(0, σ²) for "remove" and the
mixture mirrored otherwise. A release's δ at ε = loss(x) is P(X > x) − e^ε Q(X > x): `hinge` has it without
cancellation, from the place x itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpbench.accountants._hinges import Floats, log_gaussian
from dpbench.accountants._work import spend

_STEPS = 80
_CLOSE = 1e-9  # a step of Newton's this small leaves its square
_LOG_ROOT_TWO_PI = math.log(2 * math.pi) / 2


@dataclass(frozen=True)
class Pair:
    """P and Q of one release: log w_k of the k with w_k > 0, σ, and `remove`, `add` or `replace`."""

    members: tuple[int, ...]
    log_weights: tuple[float, ...]
    sigma: float
    kind: str

    @cached_property
    def _terms(self) -> tuple[Floats, Floats]:
        """Slopes and constants of the exponents of ρ."""
        k = np.array(self.members, dtype=np.float64)
        variance = self.sigma * self.sigma
        return k / variance, np.array(self.log_weights) - k * k / (2 * variance)

    def _ratio(self, x: Floats) -> tuple[Floats, Floats]:
        """ρ, less its infimum where it has one, and its derivative."""
        slopes, constants = self._terms
        flat = not self.members[0]
        spend((2 * len(slopes) + 2) * x.size)
        terms = np.multiply.outer(slopes[flat:], x) + (constants[flat:] - flat * constants[0]).reshape(
            -1, *[1] * x.ndim
        )
        top = terms.max(axis=0)
        scaled = np.exp(terms - top)
        rest = scaled.sum(axis=0)
        moved = np.tensordot(slopes[flat:], scaled, axes=1)
        if not flat:
            return top + np.log(rest), moved / rest
        grown = top + np.log(rest)  # e^grown beside 1
        return np.logaddexp(0.0, grown), moved / rest / (1 + np.exp(np.minimum(-grown, 700.0)))

    def loss(self, x: Floats) -> tuple[Floats, Floats]:
        """The loss and its derivative."""
        if self.kind == "replace":
            return self._odd(x)
        value, slope = self.excess(x)
        return (self._least if self.kind == "remove" else -self._least) + value, slope

    def excess(self, x: Floats) -> tuple[Floats, Floats]:
        """How far the loss is from its finite end, with the loss's sign (the loss where it has none); its derivative.

        Next to that end this is exact where the loss is not.
        """
        if self.kind == "replace":
            return self._odd(x)
        if self.kind == "remove":
            return self._ratio(x)
        value, slope = self._ratio(-x)
        return -value, slope

    @property
    def _bounded(self) -> bool:
        return self.kind != "replace" and not self.members[0]

    @property
    def _least(self) -> float:
        """log w_0; 0 where everybody is drawn."""
        return 0.0 if self.members[0] else self.log_weights[0]

    def _odd(self, x: Floats) -> tuple[Floats, Floats]:
        """The loss of a replaced record, without the cancellation of its two parts near 0."""
        size = np.abs(x)
        (up, rise), (down, fall) = self._ratio(size), self._ratio(-size)
        value = up - down
        if not self.members[0]:
            slopes, constants = self._terms
            base = math.exp(float(constants[1] - constants[0]))
            within = np.minimum(size * slopes[1], 1.0)
            near = np.log1p(2 * base * np.sinh(within) / (1 + base * np.exp(-within)))
            value = np.where(within < 1, near, value)
        return np.sign(x) * value, rise + fall

    @property
    def least(self) -> float:
        """The infimum of the loss."""
        return self.log_weights[0] if self.kind == "remove" and not self.members[0] else -math.inf

    @property
    def largest(self) -> float:
        """The supremum of the loss."""
        return -self.log_weights[0] if self.kind == "add" and not self.members[0] else math.inf

    def log_density(self, x: Floats) -> Floats:
        """log of P's density."""
        normal = -x * x / (2 * self.sigma**2) - math.log(self.sigma) - _LOG_ROOT_TWO_PI
        return normal if self.kind == "add" else normal + self._least + self._ratio(x)[0]

    def log_above(self, x: Floats, second: bool = False) -> Floats:
        """log P(X > x), or log Q(X > x)."""
        return self._log_tail(-x, -1.0, second)

    def log_below(self, x: Floats, second: bool = False) -> Floats:
        """log P(X < x), or log Q(X < x)."""
        return self._log_tail(x, 1.0, second)

    def _log_tail(self, x: Floats, sign: float, second: bool) -> Floats:
        from scipy.special import log_ndtr

        if self.kind != "replace" and second == (self.kind == "remove"):
            return np.asarray(log_ndtr(x / self.sigma), np.float64)
        shift = -1.0 if second else 1.0  # of the mixture's parts
        terms = [
            log_weight + log_ndtr((x - sign * shift * k) / self.sigma)
            for k, log_weight in zip(self.members, self.log_weights, strict=True)
        ]
        return np.asarray(np.logaddexp.reduce(terms), np.float64)

    def log_hinge(self, x: Floats) -> Floats:
        """log δ of this release alone at ε = loss(x), as `_hinges` has it where the place is known."""
        half = 1 / (2 * self.sigma**2)
        moved = [(k, w) for k, w in zip(self.members, self.log_weights, strict=True) if k]
        terms = []
        if self.kind != "add":
            terms += [w + log_gaussian(half * (2 * k * x - k * k), k / self.sigma) for k, w in moved]
        if self.kind != "remove":
            epsilon, _ = self.loss(x)
            for k, w in moved:
                ratio = half * (-2 * k * x - k * k)
                terms.append(epsilon + w + ratio + log_gaussian(-ratio, k / self.sigma))
        return np.asarray(np.logaddexp.reduce(terms), np.float64)

    def balance(self, gap: Floats, times: int, excess: Floats, start: Floats | None = None) -> Floats:
        """The y with excess(y) + times · excess(y − gap) = `excess`; NaN where there is none.

        Newton's method between ends that it may not leave, on a function of the sum that is close to linear: for
        `remove` and `add` log(e^(sum) − 1) beyond the least sum, convex with slopes of at least 1/σ²; for a replaced
        record asinh of the sum over its scale.
        """
        if self.kind == "add":
            mirrored = None if start is None else -start
            return -Pair(self.members, self.log_weights, self.sigma, "remove").balance(-gap, times, -excess, mirrored)
        variance, shape = self.sigma**2, gap.shape
        close = _CLOSE * min(self.sigma, variance)
        target = np.where(excess > 0, excess, np.nan) if self._bounded else excess
        scale = self._scale(gap / variance, times) if self.kind == "replace" else np.ones_like(gap)
        aim = self._linear(target, scale)[0]
        y = variance * aim / (times + 1) + np.maximum(gap, 0.0) if start is None else start
        found = np.where(np.isnan(aim), np.nan, y).ravel()
        gap, aim, scale, y = (np.broadcast_to(one, shape).ravel() for one in (gap, aim, scale, y))
        live = np.flatnonzero(~np.isnan(aim))
        gap, aim, scale, y = gap[live], aim[live], scale[live], y[live]
        low, high = np.full_like(y, -np.inf), np.full_like(y, np.inf)
        for _ in range(_STEPS):
            first, rise = self.excess(y)
            second, slope = self.excess(y - gap)
            value, factor = self._linear(first + times * second, scale)
            apart = value - aim
            low, high = np.where(apart < 0, y, low), np.where(apart > 0, y, high)
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                following = y - apart / ((rise + times * slope) * factor)
                far = 8 * self.sigma * (1 + np.abs(y))
                middle = (np.where(np.isfinite(low), low, y - far) + np.where(np.isfinite(high), high, y + far)) / 2
            kept = (following >= low) & (following <= high)
            following = np.where(kept, following, np.where(apart == 0, y, middle))
            going = np.abs(following - y) > close
            y = following
            found[live[~going]] = y[~going]
            live = live[going]
            gap, aim, scale, y, low, high = (one[going] for one in (gap, aim, scale, y, low, high))
            if not len(live):
                break
        found[live] = y
        return found.reshape(shape)

    def _scale(self, gap: Floats, times: int) -> Floats:
        """2 a √(1 + T² + 2T cosh gap), so that near 0 the sum is `scale` times a hyperbolic sine."""
        _, constants = self._terms
        if self.members[0]:
            return np.ones_like(gap)
        log_base = float(constants[1] - constants[0])
        grown = np.log(2) + log_base + 0.5 * np.logaddexp(2 * math.log(1 + times), math.log(times) + np.abs(gap))
        scale: Floats = np.exp(np.minimum(grown, 0.0))
        return scale

    def _linear(self, total: Floats, scale: Floats) -> tuple[Floats, Floats]:
        """The function of the sum, and its derivative."""
        if self.kind == "replace":
            part = total / scale
            with np.errstate(over="ignore"):
                return np.arcsinh(part), 1 / (scale * np.sqrt(1 + part * part))
        if not self._bounded:
            return total, np.ones_like(total)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value = np.where(
                total > 1, total + np.log1p(-np.exp(-np.abs(total))), np.log(np.expm1(np.minimum(total, 1)))
            )
            return value, np.maximum(1 / -np.expm1(-total), 1.0)
