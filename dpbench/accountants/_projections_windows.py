"""Releases of random sensitivity cut by a smooth window into small losses and large ones, and integrals over both.

| here | meaning |
| --- | --- |
| s, p(s) | the log ratio of a release and its density (`_projections_density`) |
| R(s) | 1 − q + q e^s, its likelihood ratio; the loss is log R |
| g(s) | Φ((s − centre)/width), the window: the small losses have p (1 − g), the large ones p g |

The integrals are along the real line. R^w turns there for complex w, and panels are halved until the square of their
last Legendre coefficients is small for all w that are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.accountants._loss_leaf import UNIT, Complex, Floats
from dpbench.accountants._projections_density import Law
from dpbench.accountants._projections_panels import as_complex, expm1, panel_nodes, roughness

_MISSED = 1e-16  # by a panel, relative to the largest
_DROPPED = 1e-19
_ROUNDS = 14
_CHUNK = 1 << 17
_RARE, _SHARP = 2.0, 0.125  # a window: large losses below its middle over those above; its least width in 1/p's fall
_LARGE = 300.0  # log of a double: from here on terms are weighted in logarithms
_FAR = 100.0  # p falls like e^(−s)
_DIGITS = 32  # units in the last place that densities have lost at least
_HALVES = np.arange(0.0, 500.0, 0.5)


@dataclass(frozen=True)
class Share:
    """Nodes s of one release: log R there, the logarithms of weights with p, and what the quadrature may miss."""

    log_ratio: Floats
    log_weight: Floats
    wrong: float

    @property
    def weight(self) -> Floats:
        """The weights."""
        return np.asarray(np.exp(self.log_weight))

    @property
    def lost(self) -> Floats:
        """Units in the last place that the weights have lost: a few of their logarithms' size."""
        return np.asarray(_DIGITS + 8 * np.minimum(np.abs(self.log_weight), 1e3))

    def sums(self, exponent: Complex, less_one: bool) -> tuple[Complex, Floats]:
        """Σ weight · R^exponent, or with R^exponent − 1, and a bound of its error."""
        total, error = np.empty_like(exponent), np.empty(len(exponent))
        rows = max(1, _CHUNK // max(len(self.log_weight), 1))
        length, weight = np.abs(self.log_ratio), self.weight
        for first in range(0, len(exponent), rows):
            some = exponent[first : first + rows]
            power = np.multiply.outer(some, self.log_ratio)
            terms = _weighted(self.log_weight, weight, power, less_one)
            total[first : first + rows] = terms.sum(axis=1)
            size = np.abs(terms)
            turned = np.abs(some) * ((size + weight if less_one else size) @ length)
            error[first : first + rows] = UNIT * (size @ self.lost + turned)
        return total, error + self.wrong


NO_SHARE = Share(np.empty(0), np.empty(0), 0.0)


@dataclass(frozen=True)
class Window:
    """One release, its count, and where and how wide it is cut: nowhere where it is taken backwards, R^(−z) under
    N(0, σ²), all of whose moments exist."""

    rate: float
    law: Law
    count: int
    centre: float
    width: float
    forward: bool = True

    def power(self, z: Complex) -> Complex:
        """The exponent of R in E_P[e^(zL)]."""
        return 1 + z if self.forward else -z

    def log_small(self, s: Floats) -> Floats:
        """log of p (1 − g)."""
        from scipy.special import log_ndtr

        return np.asarray(self.law.log_even(as_complex(s)).real - s + log_ndtr((self.centre - s) / self.width))

    def log_large(self, s: Floats) -> Floats:
        """log of p g R."""
        from scipy.special import log_ndtr

        _, excess = _ratio(self.rate, s)
        return np.asarray(self.law.log_even(as_complex(s)).real + excess + log_ndtr((s - self.centre) / self.width))

    def small_share(self, points: Sequence[complex], sparing: bool = True) -> Share:
        """Nodes for ∫ p (1−g) (R^w − 1) at all these z; `sparing` as in `_share`."""
        unit, reach = 0.5 / self.law.sigma, 9 * self.width
        out = unit * np.concatenate([np.arange(0.0, 16.0), 16 * 2.0 ** np.arange(0.0, 260.0, 0.5)])
        octaves = 12 if self.law.projections is None else 12 + 240 // self.law.projections
        top = self.centre + reach if self.forward else _FAR
        marks = np.concatenate([-out[1 : 24 + octaves][::-1], out[out < top - reach / 16], [top]])
        w = self.power(np.array(points, dtype=np.complex128))
        return _share(marks, self.log_small, w, True, self.rate, sparing)

    def large_share(self, exponents: Sequence[complex], sparing: bool = True) -> Share:
        """Nodes for ∫ p g R^(1+z) at all these z, with Re z <= 0; `sparing` as in `_share`."""
        steps = min(self.width, 0.5 / self.law.sigma) * np.concatenate([np.arange(0.0, 24.0), 24 * 2.0**_HALVES])
        top = self.centre + 9 * self.width
        r = self.law.projections
        far = top + 80.0 / self.law.sigma if r is None else max(top, 1 / self.law.sigma) * 2.0 ** (120 // r + 9)
        marks = self.centre - 9 * self.width + steps[: int(np.searchsorted(steps, far)) + 2]
        return _share(marks, self.log_large, np.array(exponents, dtype=np.complex128), False, self.rate, sparing)


def _ratio(rate: float, s: Floats) -> tuple[Floats, Floats]:
    """log R, and log R − s."""
    if rate == 1:
        return s, np.zeros_like(s)
    rise = np.log(rate + (1 - rate) * np.exp(-np.maximum(s, 0.0)))
    near = np.log1p(rate * np.expm1(np.minimum(s, 30.0)))
    return np.where(s > 30, s + rise, near), np.where(s > 0, rise, near - s)


def _place(rate: float, epsilon: float) -> float:
    """s with log R = ε."""
    if rate == 1:
        return epsilon
    if epsilon < 30:
        return math.log1p(math.expm1(epsilon) / rate)
    return epsilon - math.log(rate) + math.log1p(math.exp(-epsilon) * (rate - 1))


def _weighted(log_weight: Floats, weight: Floats, power: Complex, less_one: bool) -> Complex:
    """weight · e^power, or with e^power − 1, also where a factor is no double."""
    if power.size and power.real.max() > _LARGE:
        large = power.real > 1
        beyond = np.exp(np.where(large, log_weight + power, -1e3)) - (weight if less_one else 0.0) * large
        near = np.where(large, 0.0, power)
        return np.asarray(np.where(large, beyond, (expm1(near) if less_one else np.exp(near)) * weight))
    return np.asarray((expm1(power) if less_one else np.exp(power)) * weight)


def _share(
    marks: Floats,
    log_weigh: Callable[[Floats], Floats],
    exponents: Complex,
    less_one: bool,
    rate: float,
    sparing: bool,
) -> Share:
    """Panels halved until R^w, or R^w − 1, weighted, is smooth for all exponents; where it is always negligible, a
    `sparing` share leaves panels out."""
    starts, ends = marks[:-1], marks[1:]
    nodes, weights, wrong = [], [], 0.0
    largest: Floats | None = None
    for attempt in range(_ROUNDS):
        at, step = panel_nodes(as_complex(starts), as_complex(ends))
        s, length = at.real, ends - starts
        held = log_weigh(s)
        power = np.multiply.outer(exponents, _ratio(rate, s)[0])
        tail, whole = roughness(_weighted(held, np.exp(held), power, less_one))
        if largest is None:
            largest = (whole * length).max(axis=1, keepdims=True)
        missed = tail * np.minimum(tail / np.maximum(whole, 1e-300), 1.0) * length
        tells = (whole * length > _DROPPED * largest).any(axis=0)
        rough = tells & (missed > _MISSED * largest).any(axis=0) & (attempt < _ROUNDS - 1)
        kept = ~rough & (tells if sparing else True)
        nodes.append(s[kept].ravel())
        weights.append((held + np.log(step.real))[kept].ravel())
        wrong += float(missed[:, kept].max(axis=0, initial=0.0).sum())
        wrong += float((whole * length)[:, ~rough & ~kept].max(axis=0, initial=0.0).sum())
        if not rough.any():
            break
        middle = (starts + ends)[rough] / 2
        starts, ends = np.concatenate([starts[rough], middle]), np.concatenate([middle, ends[rough]])
    return Share(_ratio(rate, np.concatenate(nodes))[0], np.concatenate(weights), wrong)


def cut(rate: float, law: Law, count: int, middle: float, log_target: float, forward: bool) -> Window:
    """The widest window that leaves about as few large losses as a step would."""
    if not forward:
        return Window(rate, law, count, math.inf, 1.0, False)
    centre = _place(rate, middle)
    width = centre / math.sqrt(2 * (math.log(count) - log_target + 4))
    while True:
        window = Window(rate, law, count, centre, width)
        mass = np.exp(window.log_large(centre + width * np.linspace(-9.0, 9.0, 73)))
        step = centre * np.array([1.0, 1.0 + 1e-4])
        fall = -float(np.diff(law.log_even(as_complex(step)).real - step)[0]) / (1e-4 * centre)
        if mass[:36].sum() <= _RARE * mass[36:].sum() or not width * fall > _SHARP:
            return window
        width /= 1.4
