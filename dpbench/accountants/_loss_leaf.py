"""One release as an analytic loss on the real line, and its transform M(z) = E_P[e^(zL)] to nearly all digits.

| here | meaning |
| --- | --- |
| x | the released coordinate, in units of the clip norm |
| base(x) | a probability density; P itself or the one against which P is written |
| ratio(x) | the logarithm ρ of a likelihood ratio, analytic for |Im x| < πσ² |
| slope, shift | M(z) = ∫ base(x) e^(wρ(x)) dx with w = slope · z + shift |
| window | optional factor Φ((cut − x)/width): the part of the release near the end where ρ is flat |

For a sampled Gaussian base = N(0, σ²), ρ = log(1 − q + q e^((2x−1)/(2σ²))), w = z + 1 for "remove" and −z for "add".

**Quadrature.** The trapezoidal rule with step h for a function analytic in a strip misses at most about e^(−2πd/h)
times its integral along Im x = ±d. There the normal density grows by e^(d²/(2σ²)), |e^(ρ(x+id))| <= e^(ρ(x)), which
serves Re w >= 0; for Re w < 0 and d <= πσ²/2 |e^(ρ(x+id))| is at least its infimum on the real line, since all zeros
of e^ρ as a polynomial of e^(x/σ²) are negative; and the phase turns by at most degree · d/σ². So the step follows from
the largest |Im w| of a block of nodes; an integrand that oscillates faster than its step would be silently wrong.

**Windows.** Where Im w = u is large, x with a loss that varies there contribute next to nothing. Shift the line of
integration by id: |e^(iuρ)| falls by e^(−u ρ'(x) d), Φ((x − cut)/width) grows by e^(d²/(2 width²)), the base by
e^(d²/(2σ²)); with 1/v² = 1/width² + 1/σ² the best d leaves e^(−(uρ'(x)v)²/2). To the left of the cut, at cut − k·width,
ρ' is smaller by e^(−kη) at most, η = width/σ², and 1 − Φ by e^(−k²/2). So with u ρ'(cut) v >= g, where
min_k (g e^(−kη))²/2 + k²/2 >= 38 + log T + ..., everything right of the window is left out, and the number of nodes x
stays bounded while u grows. The same window splits a composition with few hits into a part near its atom and the rest.

Everything is written for M − 1, so that a million releases of tiny loss keep their digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Complex = NDArray[np.complex128]
UNIT = 2.0**-53
_NEGLIGIBLE = 42.0  # e^−42 is below 1e-18
_RESOLVED = 38.0  # e^−38 is below 2^-54
_COARSE = 257
_SHARES = np.array([0.01, 0.02, 0.035, 0.05, 0.08, 0.12, 0.18, 0.25, 0.35, 0.5, 0.7, 1.0])
_MOST_POINTS = 1 << 19
_CELLS = 1 << 17  # of one evaluated block: it stays in the cache
_LOG_ROOT_TWO_PI = math.log(2 * math.pi) / 2


@dataclass(frozen=True)
class Ratio:
    """ρ(x) = log Σ_k weight_k e^((2kx − k²)/(2σ²)) over k = 0 ... degree: the log ratio of a mixture to N(0, σ²).

    `weights` are binomial probabilities: (1 − q, q) for one record. `reverse` mirrors x.
    """

    weights: tuple[float, ...]
    sigma: float
    reverse: bool = False

    def __call__(self, x: Floats) -> Floats:
        y = -x if self.reverse else x
        if len(self.weights) == 2:
            return _two_term(y, self.weights[1], self.sigma)
        taken = np.arange(len(self.weights), dtype=np.float64)
        with np.errstate(divide="ignore"):
            logs = np.log(np.array(self.weights))
        terms = np.multiply.outer(y, taken / self.sigma**2) + (logs - taken**2 / (2 * self.sigma**2))
        top = terms.max(axis=1)
        far: Floats = top + np.log(np.exp(terms - top[:, None]).sum(axis=1))
        # near 0 the weights' sum is split off: Σ weight_k (e^... − 1)
        near = np.expm1(np.minimum(terms - logs, 60.0)[:, 1:]) @ np.array(self.weights[1:])
        return np.where(np.abs(far) < 0.5, np.log1p(np.maximum(near, -0.75)), far)

    @property
    def degree(self) -> int:
        return len(self.weights) - 1


def _two_term(x: Floats, rate: float, sigma: float) -> Floats:
    exponent = (2 * x - 1) / (2 * sigma**2)
    if rate == 1:
        return exponent
    small = np.log1p(rate * np.expm1(np.minimum(exponent, 30.0)))
    large = math.log(rate) + exponent + np.log1p((1 - rate) / rate * np.exp(-np.maximum(exponent, 0.0)))
    return np.where(exponent > 30, large, small)


@dataclass(frozen=True)
class Window:
    """The factor Φ((cut − x)/width)."""

    cut: float
    width: float


@dataclass(frozen=True)
class LossLeaf:
    """The transform of one release in one direction.

    `numerator` is ρ; where `denominator` is given, ρ is the difference of the two and `base` is the mixture of the
    numerator (replacing a record), else base is N(0, σ²). With an `inner` window, what lies in that one is left out:
    the leaf is then a band, a small part of a release, and its transform is not near 1.
    """

    numerator: Ratio
    slope: int
    shift: int
    denominator: Ratio | None = None
    window: Window | None = None
    inner: Window | None = None

    @property
    def sigma(self) -> float:
        return self.numerator.sigma

    @cached_property
    def _degree(self) -> int:
        return self.numerator.degree

    @property
    def swapped(self) -> LossLeaf:
        """The leaf of M(−1 − z): the pair with its two distributions exchanged."""
        return replace(self, slope=-self.slope, shift=self.shift - self.slope)

    @property
    def atom(self) -> float:
        """The loss at the flat end of ρ: −∞ or +∞ where ρ has none."""
        if self.denominator is not None or self.numerator.weights[0] == 0:
            return -math.inf * self.slope
        return self.slope * math.log1p(-math.fsum(self.numerator.weights[1:]))

    @property
    def largest_loss(self) -> float:
        """The supremum of the loss."""
        return self.atom if self.slope < 0 and self.denominator is None else math.inf

    def ratio(self, x: Floats) -> Floats:
        """ρ at x."""
        value = self.numerator(x)
        return value if self.denominator is None else value - self.denominator(x)

    def log_base(self, x: Floats) -> Floats:
        """The logarithm of the base density, with the window's factor."""
        value = -(x * x) / (2 * self.sigma**2) - (math.log(self.sigma) + _LOG_ROOT_TWO_PI)
        if self.denominator is not None:
            value = value + self.numerator(x)
        return value if self.window is None and self.inner is None else value + self._log_factor(x)

    def _log_factor(self, x: Floats) -> Floats:
        """log of Φ((cut − x)/width), less what the inner window holds."""
        if self.inner is None:
            assert self.window is not None
            return _log_normal((self.window.cut - x) / self.window.width)
        if self.window is None:
            return _log_normal((x - self.inner.cut) / self.inner.width)
        # Φ(a) − Φ(b) from the side where both are small
        a, b = (self.window.cut - x) / self.window.width, (self.inner.cut - x) / self.inner.width
        turned = b > 0
        large = _log_normal(np.where(turned, -b, a))
        small = _log_normal(np.where(turned, -a, b))
        return large + np.log(-np.expm1(np.minimum(small - large, -1e-300)))

    @cached_property
    def missing(self) -> float:
        """1 − ∫ base: the mass that the window leaves out."""
        if self.window is None:
            return 0.0
        spread = math.hypot(self.sigma, self.window.width)
        return math.erfc(self.window.cut / (spread * math.sqrt(2))) / 2

    # ---- grids ----

    def _reach(self, power: float) -> tuple[float, float]:
        far = 9.5 * self.sigma
        degree = self._degree
        if self.denominator is not None:
            return -far - degree * max(0.0, -power), far + degree * (1 + abs(power))
        # a negative power pulls to the left, until the ratio is flat
        pull = max(0.0, -power) * degree
        if pull and self.numerator.weights[0] > 0:
            flat = self.sigma**2 * math.log(self.numerator.weights[0] / self.numerator.weights[1]) + 0.5
            pull = min(pull, max(0.0, -flat))
        return -far - pull, far + degree * max(0.0, power)

    def _strip(self, power: float) -> float:
        share = 0.93 if power >= 0 and self.denominator is None else 0.5
        return min(share * math.pi * self.sigma**2, 8.6 * self.sigma)

    def _trimmed(self, power: float, imaginary: float) -> tuple[Floats, Floats, float]:
        """Coarse x over the range that matters at this Re w up to this |Im w|, log |integrand| there less its top, and
        how far |base e^(wρ)| may exceed, on a shifted line, its largest value on the real one."""
        low, high = self._reach(power)
        for _ in range(6):
            x = np.linspace(low, high, _COARSE)
            ratio = self.ratio(x)
            exponent = power * ratio
            base = self.log_base(x)
            size = np.where(exponent > 0.5, exponent, np.log(np.abs(np.expm1(np.minimum(exponent, 0.5))) + 1e-300))
            if self.inner is not None:
                size = exponent
            elif imaginary:
                turned = np.minimum(imaginary * np.abs(ratio), 2.0)
                size = np.maximum(size, exponent + np.log(turned + 1e-300))
            size = size + base
            coarse = (high - low) / (_COARSE - 1) / self.sigma
            kept = np.flatnonzero(size > float(size.max()) - _NEGLIGIBLE - coarse * coarse / 8)
            first, last = max(int(kept[0]) - 1, 0), min(int(kept[-1]) + 1, _COARSE - 1)
            low, high = float(x[first]), float(x[last])
            if coarse <= 1 or last - first > _COARSE // 2:
                break
        total = exponent + base
        top = float(total.max())
        return x[first : last + 1], total[first : last + 1] - top, self._rise(x, exponent, base, power, top)

    def _rise(self, x: Floats, exponent: Floats, base: Floats, power: float, top: float) -> float:
        if self.denominator is not None:
            floor = math.log(self.denominator.weights[0])
            return max(0.0, float((power * (self.numerator(x) - floor) + base).max()) - top)
        return max(0.0, float(exponent.max()) - top - math.log(self.sigma) - 1) if power < 0 else 0.0

    def _grid(self, power: float, largest: float, resolved: float) -> tuple[Floats, float]:
        """Nodes x and their step for Re w = power and |Im w| <= largest.

        The step serves every x whose integrand is not negligible on the real line; the rest is small as it is.
        """
        x, size, rise = self._trimmed(power, largest)
        heights = self._strip(power) * _SHARES
        growth = largest * self._turning(x, heights) + np.minimum(size, 0.0)
        if self.window is not None:
            growth += _window_growth((self.window.cut - x) / self.window.width, heights / self.window.width)
        if self.inner is not None:
            growth += _window_growth((x - self.inner.cut) / self.inner.width, heights / self.inner.width)
        demand = resolved + rise + heights**2 / (2 * self.sigma**2) + np.maximum(growth.max(axis=1), 0.0)
        # the shifted line comes back to the real one at both ends: there every lower height has to do as well
        ends = resolved + growth[:, [0, -1]].max(axis=1)
        back = np.where(ends > 0, 2 * math.pi * heights / np.maximum(ends, 1e-300), math.inf)
        step = float(np.minimum(2 * math.pi * heights / demand, np.minimum.accumulate(back)).max())
        low, high = float(x[0]), float(x[-1])
        count = max(math.ceil((high - low) / step), 8)
        if count > _MOST_POINTS:
            raise ArithmeticError(f"the transform at Re w = {power:.3g} needs {count} points, more than {_MOST_POINTS}")
        step = (high - low) / count
        return low + step * np.arange(count + 1, dtype=np.float64), step

    def _turning(self, x: Floats, heights: Floats) -> Floats:
        """The most that |Im ρ| grows to on the way from x to x + i·height, per height (row) and x (column)."""
        angle = heights[:, None] / self.sigma**2
        if self.denominator is not None or self._degree > 1:
            degree = self._degree + (0 if self.denominator is None else self.denominator.degree)
            return np.broadcast_to(degree * angle, (len(heights), len(x)))
        rate = self.numerator.weights[1]
        if rate == 1:
            return np.broadcast_to(angle, (len(heights), len(x)))
        size = rate / (1 - rate) * np.exp(np.minimum((2 * x - 1) / (2 * self.sigma**2), 600.0))[None, :]
        widest = np.where(size < 1, np.arccos(-np.minimum(size, 1.0)), math.pi)
        reached = np.minimum(angle, widest)
        turned: Floats = np.arctan2(size * np.sin(reached), 1 + size * np.cos(reached))
        return turned

    def _slope_of_ratio(self, x: float) -> float:
        """ρ'(x) of a single record's ratio: how fast e^(iuρ) turns."""
        rate = self.numerator.weights[1]
        size = rate * math.exp(min((2 * x - 1) / (2 * self.sigma**2), 600.0))
        return size / (1 - rate + size) / self.sigma**2

    @cached_property
    def _window_width(self) -> float:
        return min(0.15 * self.sigma**2, 0.4 * self.sigma)

    def band(self, near: LossLeaf) -> LossLeaf | None:
        """What this leaf has and `near` has not; None where that is nothing."""
        assert near.window is not None
        if self.window is not None and self.window.cut <= near.window.cut:
            return None
        return replace(self, inner=near.window)

    def near(self, imaginary: float, power: float, spare: float) -> LossLeaf | None:
        """The part of the release near its atom: outside, e^(iuρ) turns so fast for u >= imaginary that it vanishes.

        `spare` raises the demand, in units of the exponent. None where there is no such part, or no window yet.
        """
        if self.denominator is not None or self._degree > 1 or self.numerator.weights[0] == 0:
            return None
        width = self._window_width
        needed = _needed_turns(width / self.sigma**2, 38.0 + spare) / (width / math.hypot(1, width / self.sigma))
        low, high = -9.5 * self.sigma, 9.5 * self.sigma + max(0.0, power)
        if imaginary * self._slope_of_ratio(high) <= needed:
            return None
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if imaginary * self._slope_of_ratio(middle) < needed else (low, middle)
        if self.window is not None and self.window.cut <= high:
            return self
        return replace(self, window=Window(high, width))

    # ---- values ----

    def growth(self, points: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """At ascending real points a: log M, mean and variance of the loss tilted by e^(aL), the noise of log M."""
        powers = self.slope * points + self.shift
        ends = [self._grid(float(power), 0.0, 32.0) for power in (powers[0], powers[-1])]
        low, high = min(x[0] for x, _ in ends), max(x[-1] for x, _ in ends)
        step = min(step for _, step in ends)
        count = max(math.ceil((high - low) / step), 8)
        x = np.linspace(low, high, count + 1)
        ratio = self.ratio(x)
        weight = self.log_base(x) + math.log((high - low) / count)
        exponent = np.multiply.outer(powers, ratio)
        total = exponent + weight
        top = total.max(axis=1)
        tilted = np.exp(total - top[:, None])
        mass = tilted.sum(axis=1)
        value = top + np.log(mass)
        noise = np.full(len(points), 8 * UNIT)
        small = np.flatnonzero((total.max(axis=1) < 20) & (value > -0.5) & (self.inner is None))
        if len(small):
            far = exponent[small] > 30
            grown = np.where(far, np.exp(total[small]), np.expm1(np.minimum(exponent[small], 30.0)) * np.exp(weight))
            value[small] = np.log1p(grown.sum(axis=1) - self.missing)
            noise[small] = (
                8 * UNIT * (np.abs(grown).sum(axis=1) + self.missing) / (1 + grown.sum(axis=1) - self.missing)
            )
        tilted /= mass[:, None]
        loss = self.slope * ratio
        mean = tilted @ loss
        spread = np.maximum(tilted @ (loss * loss) - mean * mean, 0.0)
        return value, mean, spread, noise

    def line(self, real: float, imaginary: Floats, spare: float) -> tuple[Complex, Floats]:
        """log M(real + i·u) for ascending u >= 0, and a bound of its absolute error; `spare` is log of the count."""
        power = self.slope * real + self.shift
        leaf = self
        if imaginary[0] > 0 and self.inner is None:
            leaf = self.near(float(imaginary[0]), power, spare) or self
        x, step = leaf._grid(power, float(imaginary[-1]), _RESOLVED)
        ratio = leaf.ratio(x)
        exponent = power * ratio
        log_weight = leaf.log_base(x) + math.log(step)
        total = exponent + log_weight
        top = float(total.max())
        shifted = top > 20 or float(exponent.max()) > 600 or self.inner is not None
        scale = top if shifted else 0.0
        tilted = np.exp(total - scale)
        if shifted:
            start, rough = float(tilted.sum()), float(tilted.sum())
            mass = 0.0
        else:
            grown = np.exp(log_weight) * np.expm1(exponent)
            start, rough, mass = float(grown.sum()) - leaf.missing, float(np.abs(grown).sum()) + leaf.missing, 1.0
        length, whole = float(tilted @ np.abs(ratio)), float(tilted.sum())
        values = np.empty(len(imaginary), dtype=np.complex128)
        errors = np.empty(len(imaginary))
        rows = max(1, _CELLS // len(x))
        half = ratio * (self.slope / 2)
        for first in range(0, len(imaginary), rows):
            block = imaginary[first : first + rows]
            phase = np.multiply.outer(block, half)
            sine, cosine = np.sin(phase), np.cos(phase)
            real_part = start - 2 * ((sine * sine) @ tilted)
            imaginary_part = 2 * ((sine * cosine) @ tilted)
            turned = np.minimum(np.abs(sine) @ tilted * 2, 2 * whole)
            wrong = UNIT * (4 * rough + 4 * turned + 2 * block * length)
            size = np.maximum(np.hypot(mass + real_part, imaginary_part), wrong)
            angle = np.arctan2(imaginary_part, mass + real_part)
            if shifted:
                modulus = np.log(size) + scale
            else:  # log|1 + x + iy| without cancellation near 0
                excess = real_part * (2 + real_part) + imaginary_part**2
                modulus = np.where(np.abs(excess) < 0.5, np.log1p(np.maximum(excess, -0.75)) / 2, np.log(size))
            values[first : first + rows] = modulus + 1j * angle
            errors[first : first + rows] = wrong / size
        return values, errors


def _window_growth(inside: Floats, heights: Floats) -> Floats:
    """How log |Φ(inside + i·height)| may exceed log Φ(inside), per height (row) and place (column)."""
    growth: Floats = np.maximum(heights[:, None] ** 2 - np.maximum(inside, 0.0)[None, :] ** 2, 0.0) / 2
    return growth


@lru_cache(maxsize=256)
def _needed_turns(growth: float, exponent: float) -> float:
    """The smallest g with (g e^(−k·growth))²/2 + k²/2 >= exponent for all k >= 0."""
    steps = np.linspace(0.0, math.sqrt(2 * exponent), 200)
    return float((np.sqrt(np.maximum(2 * exponent - steps * steps, 0.0)) * np.exp(steps * growth)).max())


def _log_normal(x: Floats) -> Floats:
    """log Φ(x), to the absolute accuracy that a weight needs."""
    from scipy.special import log_ndtr

    result: Floats = log_ndtr(x)
    return result


def sampled_leaf(rate: float, sigma: float, direction: str) -> LossLeaf:
    """The leaf of a Poisson-sampled Gaussian; `direction` is remove or add."""
    ratio = Ratio((1 - rate, rate), sigma)
    return LossLeaf(ratio, 1, 1) if direction == "remove" else LossLeaf(ratio, -1, 0)
