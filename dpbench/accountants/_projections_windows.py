"""Releases of random sensitivity cut by a smooth window into small losses and large ones.

| here | meaning |
| --- | --- |
| s, p(s) | the log ratio of a release and its density under N(0, σ²) (`_projections_density`) |
| R(s) | 1 − q + q e^s, the likelihood ratio of the mixture to N(0, σ²) |
| x, ℓ(x) | a place and its loss, rising with it: s and log R(s) for remove, −s and −log R(s) for add |
| ϕ, w | for remove the density p(s), against which e^(wℓ) has w = 1 + z; for add p(−x), with w = z |
| g | Φ((ℓ − centre)/width), the window: the small losses have ϕ (1 − g), the large ones ϕ g |
| f | another one further in: of the small losses the tiny ones have ϕ (1 − f) (1 − g), the middle ones ϕ f (1 − g) |

Windows are Gaussian in the loss, not in s: so transforms fall like e^(−(width · Im z)²/2), and powers e^(cℓ) only move
the place where they end, by c · width². For add losses end at −log(1−q), and there is no window beyond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.accountants._loss_leaf import Complex, Floats
from dpbench.accountants._projections_density import Law
from dpbench.accountants._projections_panels import as_complex
from dpbench.accountants._projections_shares import NO_SHARE, Row, Share, make_share

_RARE, _SHARP = 2.0, 0.125  # a window: large losses below its middle over those above; its least width in 1/ϕ's fall
_FLOOR, _ENDED = -60.0, 50.0
_FAR = 100.0  # p falls like e^(−s)
_OPEN = 0.999  # of the largest loss: no window is put beyond
_HALVES = np.arange(0.0, 500.0, 0.5)
_REACHES = np.arange(9.0, 60.0, 0.5)  # in widths of a window


@dataclass(frozen=True)
class Losses:
    """One release of q = `rate`; `forward` for remove, or without sampling, where both directions are the same."""

    rate: float
    law: Law
    forward: bool

    @property
    def largest(self) -> float:
        """The supremum of the loss."""
        return math.inf if self.forward else -math.log1p(-self.rate)

    def loss(self, x: Floats) -> Floats:
        """ℓ(x)."""
        return _ratio(self.rate, x)[0] if self.forward else -_ratio(self.rate, -x)[0]

    def place(self, loss: Floats) -> Floats:
        """x with ℓ(x) as given, below the largest."""
        if self.rate == 1:
            return loss
        with np.errstate(divide="ignore", invalid="ignore"):
            if not self.forward:
                return np.asarray(-np.log1p(np.maximum(np.expm1(-loss) / self.rate, -1.0)))
            near = np.log1p(np.maximum(np.expm1(np.minimum(loss, 30.0)) / self.rate, -1.0))
            far = loss - math.log(self.rate) + np.log1p(np.exp(-np.maximum(loss, 1.0)) * (self.rate - 1))
        return np.asarray(np.where(loss < 30, near, far))

    def log_density(self, x: Floats) -> Floats:
        """log ϕ."""
        # e^s p(s) = p(−s): far out on the left log p(s) is not told from s + log p(s)
        even = self.law.log_even(as_complex(np.abs(x))).real
        return np.asarray(even - (np.maximum(x, 0.0) if self.forward else np.maximum(-x, 0.0)))

    def log_first(self, x: Floats) -> Floats:
        """log of the density under the first of the pair."""
        if not self.forward:
            return self.log_density(x)
        log_ratio, excess = _ratio(self.rate, x)
        return np.asarray(self.law.log_even(as_complex(np.abs(x))).real + np.where(x > 0, excess, log_ratio))


@dataclass(frozen=True)
class Window:
    """One release, its count, and where and how wide its losses are cut; with centre = ∞ nowhere."""

    losses: Losses
    count: int
    centre: float
    width: float
    floor: float = -math.inf  # log of a density that is negligible
    inner: tuple[float, float] = (0.0, 0.0)  # f's centre and width, where there is one

    @property
    def cuts(self) -> bool:
        """Whether there is a window."""
        return self.centre < math.inf

    def power(self, z: Complex) -> Complex:
        """w."""
        return 1 + z if self.losses.forward else z

    def row(self, row: Row) -> Row:
        """w of these z."""
        return Row(1 + row.first, row.step, row.count) if self.losses.forward else row

    def log_small(self, x: Floats) -> Floats:
        """log of ϕ (1 − g)."""
        return np.asarray(self.losses.log_density(x) + self._below(x, self.centre, self.width))

    def log_tiny(self, x: Floats) -> Floats:
        """log of ϕ (1 − f) (1 − g)."""
        return np.asarray(self.log_small(x) + self._below(x, *self.inner))

    def log_middle(self, x: Floats) -> Floats:
        """log of ϕ f (1 − g)."""
        return np.asarray(self.log_small(x) + self._below(x, self.inner[0], -self.inner[1]))

    def log_large(self, x: Floats) -> Floats:
        """log of g times the density under the first of the pair."""
        return np.asarray(self.losses.log_first(x) + self._below(x, self.centre, -self.width))

    def _below(self, x: Floats, centre: float, width: float) -> Floats:
        """log of 1 − Φ((ℓ − centre)/width); of Φ where the width is taken negative."""
        from scipy.special import log_ndtr

        if centre == math.inf:
            return np.zeros_like(x)
        return np.asarray(log_ndtr((centre - self.losses.loss(x)) / width))

    # ---- nodes ----

    def small_share(self, points: Sequence[complex], sparing: bool = True, tiny: bool = False) -> Share:
        """Nodes for ∫ ϕ (1−g) (e^(wℓ) − 1) at all these z, or for its tiny losses; `sparing` as in `make_share`."""
        law = self.losses.law
        w = self.power(np.array(points, dtype=np.complex128))
        log_weigh = self.log_tiny if tiny else self.log_small
        out = 0.5 / law.sigma * np.concatenate([np.arange(0.0, 16.0), 16 * 2.0 ** np.arange(0.0, 260.0, 0.5)])
        far = float(out[23 + (12 if law.projections is None else 12 + 240 // law.projections)])
        low, high = (far, _FAR) if self.losses.forward else (_FAR, far)
        if tiny or self.cuts:
            high = self._last(log_weigh, *(self.inner if tiny else (self.centre, self.width)), w)
        marks = np.concatenate([-out[(out > 0) & (out <= low)][::-1], out[out < 0.99 * high], [high]])
        return make_share(marks, log_weigh, w, True, self.losses.loss, sparing)

    def middle_share(self, points: Sequence[complex], sparing: bool = True) -> Share:
        """Nodes for ∫ ϕ f (1−g) e^(wℓ) at all these z; `sparing` as in `make_share`."""
        w = self.power(np.array(points, dtype=np.complex128))
        first = self._first(self.log_middle, *self.inner)
        top = self._last(self.log_middle, self.centre, self.width, w) if self.cuts else self._far()
        marks = np.append(first + self._steps(first, *self.inner, 0.99 * (top - first)), top)
        return make_share(marks, self.log_middle, w, False, self.losses.loss, sparing)

    def large_share(self, points: Sequence[complex], sparing: bool = True) -> Share:
        """Nodes for what has a large loss, E[e^(zL)] at all these z, with Re z <= 0; `sparing` as in `make_share`."""
        if not self.cuts:
            return NO_SHARE
        first = self._first(self.log_large, self.centre, self.width)
        marks = first + self._steps(first, self.centre, self.width, 2 * (self._far() - first))
        z = np.array(points, dtype=np.complex128)
        return make_share(marks, self.log_large, z, False, self.losses.loss, sparing)

    def _far(self) -> float:
        """The end of the heavy tail."""
        law, r = self.losses.law, self.losses.law.projections
        centre = self.centre if self.cuts else self.inner[0]
        top = min(centre + 9 * self.width, (centre + self.losses.largest) / 2) if self.cuts else centre
        place = float(self.losses.place(np.array([top]))[0])
        return place + 80.0 / law.sigma if r is None else max(place, 1 / law.sigma) * 2.0 ** (120 // r + 9)

    def _first(self, log_weigh: Callable[[Floats], Floats], centre: float, width: float) -> float:
        """Where a window begins: where its density jumps, transforms would fall like a power only."""
        losses = centre - width * _REACHES
        places = self.losses.place(losses[losses > 0] if self.losses.rate < 1 else losses)
        low = log_weigh(places) < self.floor
        return float(places[int(np.argmax(low)) if low.any() else -1])

    def _last(self, log_weigh: Callable[[Floats], Floats], centre: float, width: float, w: Complex) -> float:
        """Where it ends, likewise, for all these exponents."""
        losses = centre + width * np.concatenate([np.arange(-9.0, 9.0), _REACHES])
        losses = losses[(losses > 0) & (losses < self.losses.largest)]
        places = self.losses.place(losses)
        size = log_weigh(places) + np.multiply.outer(w.real, losses)
        high = (size > size.max(axis=1, keepdims=True) - _ENDED).any(axis=0)
        if high[-1] and self.losses.largest < math.inf:
            return self._far()
        last = len(high) - 1 - int(np.argmax(high[::-1]))
        return float(places[min(last + 1, len(places) - 1)])

    def _steps(self, first: float, centre: float, width: float, length: float) -> Floats:
        """Marks from 0 to about `length`, even ones where a window turns."""
        before, middle = self.losses.place(np.array([centre - width, centre])).tolist()
        even = min(middle - before, max(0.5 / self.losses.law.sigma, abs(middle) / 64))
        count = math.ceil(2 * (middle - first) / even) + 1
        steps = even * np.concatenate([np.arange(0.0, count), count * 2.0**_HALVES])
        return np.asarray(steps[steps < length])


def _ratio(rate: float, s: Floats) -> tuple[Floats, Floats]:
    """log R, and log R − s."""
    if rate == 1:
        return s, np.zeros_like(s)
    rise = np.log(rate + (1 - rate) * np.exp(-np.maximum(s, 0.0)))
    near = np.log1p(rate * np.expm1(np.minimum(s, 30.0)))
    return np.where(s > 30, s + rise, near), np.where(s > 0, rise, near - s)


def cut(losses: Losses, count: int, middle: float, log_target: float) -> Window:
    """The widest window that leaves about as few large losses as a step would."""
    floor = log_target - math.log(count) + _FLOOR
    if not middle < _OPEN * losses.largest:
        return Window(losses, count, math.inf, 1.0, floor)
    width = middle / math.sqrt(-2 * floor)
    place = float(losses.place(np.array([middle]))[0])
    step = place + np.array([0.0, 1e-4 * abs(place)])
    fall = -float((np.diff(losses.log_density(step)) / np.diff(losses.loss(step)))[0])
    while True:
        window = Window(losses, count, middle, width, floor)
        around = middle + width * np.linspace(-9.0, 9.0, 73)
        around = around[(around > 0) & (around < losses.largest)]
        places = losses.place(around)
        mass = np.exp(window.log_large(places)) * np.gradient(places)
        low = around < middle
        if mass[low].sum() <= _RARE * mass[~low].sum() or not width * fall > _SHARP:
            return window
        width /= 1.4
