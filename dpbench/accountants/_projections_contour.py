"""The contours in s on which the moment of a release of random sensitivity is integrated, and their nodes.

| here | meaning |
| --- | --- |
| s, p(s) | the log ratio of the two Gaussians and its density (`_projections_density`) |
| R(s) | 1 − q + q e^s, the likelihood ratio of the pair; ρ = q/(1−q); R = 0 at −log ρ ± iπ, ± 3iπ, ... |
| w | the exponent of R; a contour serves a block of them |

p falls like e^(−s) to the right, so that on the real line ∫ p R^w exists for Re w <= 1 only. For other w the contour
turns upwards at the place where p R^w is least, which is a saddle: along the upright it falls at first, and then like
|s|^(−r/2−1) e^(−Im w · Im s). It passes below the first zero of R, and below the cut of p, at i√r/σ. For Im w > 0 it is
lifted where R^w turns: |R^w| falls like e^(−Im w · arg R).

**Quadrature.** Gauss's rule of 16 points on panels, halved until the last Legendre coefficients at the corners of a
block of w are below 1e-9 of the largest: the rule is exact to degree 31, so its error is about their square.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants._loss_leaf import UNIT, Complex, Floats
from dpbench.accountants._projections_density import Law, log1p
from dpbench.accountants._projections_panels import as_complex, asinh_grid, expm1, grown, panel_nodes, roughness
from dpbench.accountants._work import spend

SMOOTH = 1e-9
_NOTHING = 43.0  # e^−43 is below 1e-18
_ROUNDS = 30
_MISSED, _LONG = 1e-13, 6000  # of H, and nodes: from here on a short contour is tried
_QUICK, _UNITS = 40, 24  # from this r on, and beyond this Re z, no terms need be taken out
_CLOSE = 1.0  # E|w (R − 1)|, about, up to which (R − 1) is taken from R^w − 1
_SERIES = 200  # more terms than any of the boxes takes


@dataclass(frozen=True)
class Box:
    """A block of w: Re w and Im w from ... to."""

    low: float
    high: float
    bottom: float
    top: float

    @property
    def corners(self) -> Complex:
        """Its corners."""
        return np.array([complex(a, b) for a in {self.low, self.high} for b in {self.bottom, self.top}])


@dataclass(frozen=True)
class Course:
    """Corners of a contour in s; on the `outer` part, right of the zeros, the 1 of (1 + ρe^s)^w − 1 is left out, and
    integrated level to the right instead. `taken` as in `Contour`."""

    corners: tuple[complex, ...]
    outer: tuple[complex, ...] = ()
    taken: int = -1
    cut: float = 0.0  # what it leaves out


@dataclass(frozen=True)
class Contour:
    """Nodes s: weights with p in logarithms, log(1 + ρe^s) or log R, and what the quadrature may miss."""

    log_weight: Complex
    log_ratio: Complex
    lost: Floats  # units in the last place that terms have lost
    wrong: float
    taken: int  # terms of the binomial series that are taken out, −1 for none
    body: int  # the nodes from here on lie on the upright
    beyond: tuple[complex, float]  # −∫ p to the right of where the outer part begins, and its lost units
    left: tuple[complex, float] | None  # where R^w − 1 is integrated: P(s < the first node), and its lost units
    line: tuple[complex, float] | None  # where w (R − 1) is taken from it: outside, and its lost units


@dataclass
class Contours:
    """The contours of one release of q = `rate` in (0, 1). What it remembers never changes an answer."""

    rate: float
    law: Law
    _known: dict[Box, Contour] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.log_odds = math.log(self.rate) - math.log1p(-self.rate)
        self.log_rest = math.log1p(-self.rate)

    # ---- the integrand ----

    def log_ratio(self, s: Complex) -> Complex:
        """log(1 + ρe^s), continued from the left below the zero of R."""
        right = s.real > -self.log_odds
        small = np.exp(np.where(right, -1, 1) * (s + self.log_odds))
        return np.asarray(log1p(small) + np.where(right, s + self.log_odds, 0.0))

    def log_level(self, s: Complex) -> Complex:
        """log R, likewise, to its own relative digits near its zero at s = 0."""
        near = np.abs(s) < 1
        return np.asarray(
            np.where(near, log1p(self.rate * expm1(np.where(near, s, 0.0))), self.log_ratio(s) + self.log_rest)
        )

    def _terms(self, log_weight: Complex, log_ratio: Complex, w: Complex, taken: int) -> Complex:
        """weight · p · ((1 + ρe^s)^w − 1), the first terms taken out: first axis w, the others those of s."""
        if taken >= 0:
            return np.exp(log_weight) * self.remainder(log_ratio, w, taken)
        return np.asarray(grown(log_weight, np.multiply.outer(w, log_ratio)))

    def remainder(self, log_ratio: Complex, w: Complex, taken: int) -> Complex:
        """(1 + ξ)^w − 1 − Σ_{k <= taken} C(w, k) ξ^(w−k), for ξ = ρe^s > 0, s on the real line.

        For ξ > 2 the rest of the binomial series, C(w, K+1) ξ^(w−K−1) ₂F₁(1, K+1−w; K+2; −1/ξ), with Pfaff's
        transformation, so that each term is at most about a third of the one before.
        """
        spend(8 * w.size * log_ratio.size)
        with np.errstate(divide="ignore"):
            log_share = np.log(-np.expm1(-log_ratio.real))  # log of ξ/(1 + ξ)
        log_size = log_share + log_ratio.real
        result = np.empty((len(w), *log_ratio.shape), dtype=np.complex128)
        small = log_size <= math.log(2)
        value = expm1(np.multiply.outer(w, log_ratio.real[small]))
        binomial = np.ones_like(w)
        for k in range(taken + 1):
            value -= binomial[:, None] * np.exp(np.multiply.outer(w - k, log_size[small]))
            binomial = binomial * (w - k) / (k + 1)
        result[:, small] = value
        share = np.exp(-log_ratio.real[~small])[None, :]  # 1/(1 + ξ)
        total = term = np.ones((len(w), share.shape[1]), dtype=np.complex128)
        for n in range(_SERIES):
            term = term * (share * ((1 + w + n) / (taken + 2 + n))[:, None])
            total = total + term
            if not n % 8 and np.abs(term).max(initial=0.0) < UNIT / 4 and np.abs(1 + w).max() < taken + 2 + n:
                break
        power = np.multiply.outer(w - taken - 1, log_size[~small]) + log_share[~small]
        result[:, ~small] = binomial[:, None] * np.exp(power) * total - 1
        return result

    def height(self, s: Floats, w: float) -> Floats:
        """log of p |(1 + ρe^s)^w − 1| on the real line, about."""
        log_ratio = self.log_ratio(as_complex(s)).real
        power = w * log_ratio
        with np.errstate(divide="ignore"):
            grown = np.where(np.abs(power) < 1, np.log(np.abs(np.expm1(np.clip(power, -1, 1)))), np.maximum(power, 0.0))
        return np.asarray(self.law.log_even(as_complex(s)).real - s + grown)

    # ---- contours ----

    def grid(self, far: float, count: int = 600) -> tuple[Floats, Floats]:
        """Points s up to `far`, and their weights for a few digits."""
        return asinh_grid(self.law.sigma, -50.0 - max(0.0, self.log_odds), far, count)

    def _scan(self, w: float, far: float) -> tuple[Floats, Floats]:
        s, _ = self.grid(far)
        return s, self.height(s, w)

    def contour(self, box: Box) -> Contour:
        """The contour that serves every w of a block."""
        if box not in self._known:
            found = self._refined(box, self._path(box))
            if found.wrong > _MISSED or len(found.log_ratio) > _LONG:
                short = self._refined(box, self._path(box, short=True))
                found = short if short.wrong < max(found.wrong, _MISSED) else found
            self._known[box] = found
            if len(self._known) > 64:
                del self._known[next(iter(self._known))]
        return self._known[box]

    def _path(self, box: Box, short: bool = False) -> Course:
        """The contour for a block; a short one ends where p R^w is least, and what it leaves out counts as missed."""
        r, sigma = self.law.projections, self.law.sigma
        beyond = box.high - 1
        pull = box.high / sigma**2 + abs(self.log_odds) + 20 / sigma
        heavy = r is not None and beyond > 0
        s, size = self._scan(box.high, pull + (4 * (r / 2 + 2) / beyond if heavy and r is not None else 0.0))
        if box.low < 0:
            size = np.maximum(size, self.height(s, box.low))
        end = int(dips(s, size[None, :])[0][0]) if heavy else len(s) - 1
        body = size[: end + 1]
        top = float(body.max())
        if box.bottom > 0:  # off the real line the part right of the zeros is far smaller than on it
            inner = body[s[: end + 1] < -self.log_odds]
            top = min(top, 0.0, float(inner.max()) if len(inner) else 0.0)
        kept = np.flatnonzero(body > top - _NOTHING)
        first, last = max(int(kept[0]) - 1, 0), min(int(kept[-1]) + 1, end)
        if box.low < 0:
            # left of the contour R^w is taken at its limit (1−q)^w, up to which it may still have to rise far
            limit = self.law.log_even(as_complex(s)).real - s + box.low * self.log_rest
            first = min(first, max(int(np.flatnonzero(limit > min(top, 0.0) - _NOTHING)[0]) - 1, 0))
        upright = heavy and last == end and size[end] > top - _NOTHING
        cut = 20 * math.exp(min(float(size[end]), 700.0)) if short and upright else 0.0
        upright = upright and not short
        quick = r is not None and r >= _QUICK and beyond > _UNITS  # on the upright p falls fast
        if upright and box.bottom < min(beyond / 5, 1.9) and not quick:
            far = max(float(s[end]), -self.log_odds) + 2 * _NOTHING + 10 / sigma
            return Course((complex(2 * float(s[first]) - 2.0), complex(far)), (), round(box.low + box.high) // 2 - 1)
        corners: tuple[complex, ...] = (complex(s[first]), complex(s[last]))
        if box.bottom > 0:
            corners = self._lifted(box, corners)
        clear = 1.2 - self.log_odds
        if not upright:
            high = box.bottom / sigma**2
            if high < 1.5 or corners[-1].real < clear + 1 or box.high <= 1:
                return Course(corners, cut=cut)
            # beyond the zeros as high as a Gaussian's saddle
            turn = complex(clear, 1.5)
            corners = (*(corner for corner in corners[:-1] if corner.real < clear - 0.5), turn)
            return Course(corners, (turn, complex(clear, high), complex(s[last], high)), cut=cut)
        turn = corners[-1]
        if turn.real < clear:
            turn = complex(clear, max(turn.imag, 1.5))
            corners = (*corners, turn)
        marks = [0.0, 1 / sigma]
        while self._modulus(turn + 1j * marks[-1], box) > min(top, 0.0) - _NOTHING and len(marks) < 400:
            marks.append(2 * marks[-1])
        return Course(corners, tuple(turn + 1j * mark for mark in marks))

    def _modulus(self, s: complex, box: Box) -> float:
        """log of |s p R^w|, the largest of the corners of the box."""
        place = np.array([s])
        density = self.law.log_even(place) - place
        return float((density + box.corners * self.log_ratio(place)).real.max()) + math.log(abs(s))

    def _lifted(self, box: Box, corners: tuple[complex, ...]) -> tuple[complex, ...]:
        """The contour raised where R^w turns, for Im w >= box.bottom."""
        start, end = corners[0].real, corners[1].real
        sigma = self.law.sigma
        begin = max(-math.log(box.bottom) - self.log_odds - 1.0, start)
        share = 1 / (1 + math.exp(min(-(begin + 1 + self.log_odds), 600.0)))
        height = min(1.4, 0.6 * self.law.ceiling, 2 / sigma + 0.5 * box.bottom * share / sigma**2)
        if begin > end - height:
            return corners
        first = [] if begin <= start + 1e-9 else [complex(start)]
        return (*first, complex(begin), complex(begin + height, height), complex(end, height))

    def _refined(self, box: Box, course: Course) -> Contour:
        starts: list[complex] = []
        ends: list[complex] = []
        for a, b in pairwise(course.corners):
            marks = a + (b - a) * self._marks(a, b)
            starts += list(marks[:-1])
            ends += list(marks[1:])
        # R^w keeps the digits that (1−q)^w and (1 + ρe^s)^w lose to each other, where H is not far below 1
        near = box.low < 0 or (course.corners[0].real < 0 and box.high * -self.log_rest < 1)
        level = course.taken < 0 and near
        body, wrong = self._halved(box, np.array(starts), np.array(ends), course.taken, False, level)
        wrong += course.cut
        joined, beyond, left, line = body, (0j, 0.0), None, None
        if level:
            left, inner = self._masses(complex(-course.corners[0].real))
            if np.abs(box.corners).max() * self.rate < _CLOSE * max(self.law.sigma, 1.0):
                even, plain = self._masses(course.corners[-1])
                line = self.rate * (inner[0] + even[0] - plain[0]), self.rate * (inner[1] + even[1] + plain[1])
        if course.outer:
            outer = np.array(course.outer)
            last, more = self._halved(box, outer[:-1], outer[1:], course.taken, True, level)
            wrong += more
            weights, ratios, lost = (np.concatenate(both) for both in zip(body, last, strict=True))
            joined = weights, ratios, lost
            _, plain = self._masses(course.outer[0])
            beyond = -plain[0], plain[1]
        return Contour(*joined, wrong, course.taken, len(body[0]), beyond, left, line)

    def _masses(self, start: complex) -> tuple[tuple[complex, float], tuple[complex, float]]:
        """∫ e^s p and ∫ p level from `start` to the right, and how many units in the last place they have lost.

        By e^s p(s) = p(−s) the first is P(s < −start) for real `start`.
        """
        length, r = 1 / self.law.sigma, self.law.projections
        octaves = 12 if r is None else 12 + 120 // r  # P(s < −S) falls like S^(−r/2)
        steps = length * np.concatenate([np.arange(-16.0, 17.0) / 2, 8 * 2.0 ** np.arange(1.0, octaves)])
        tops = np.append(start, steps[steps > start.real] + 1j * start.imag)
        s, weight = panel_nodes(as_complex(tops[:-1]), as_complex(tops[1:]))
        log_even = self.law.log_even(s)
        lost = self.law.lost(s, log_even)
        even, plain = np.exp(log_even) * weight, np.exp(log_even - s) * weight
        return (
            (complex(even.sum()), float((np.abs(even) * lost).sum())),
            (complex(plain.sum()), float((np.abs(plain) * (lost + 2 * np.abs(s))).sum())),
        )

    def _halved(
        self, box: Box, starts: Complex, ends: Complex, taken: int, upright: bool, level: bool
    ) -> tuple[tuple[Complex, Complex, Floats], float]:
        """Panels halved until all corners of the box are smooth on them; the nodes, and what the rule may miss."""
        corners = box.corners[:, None, None]
        weights, ratios, lost, wrong = [], [], [], 0.0
        largest: Floats
        for attempt in range(_ROUNDS):
            s, weight = panel_nodes(starts, ends)
            log_even = self.law.log_even(s)
            log_weight = log_even - s
            log_ratio = self.log_level(s) if level else self.log_ratio(s)
            if upright:
                terms = np.exp(log_weight + corners * log_ratio)
            else:
                terms = self._terms(log_weight, log_ratio, box.corners, taken)
            tail, whole = roughness(terms)
            if not attempt:
                largest = whole.max(axis=1, keepdims=True)
            powers = np.exp(log_weight.real) + np.exp(log_weight.real + (corners * log_ratio).real)
            floor = SMOOTH * np.maximum(whole, 1e-7 * largest) + 64 * UNIT * powers.max(axis=-1)
            rough = (tail > floor).any(axis=0) & (attempt < _ROUNDS - 1)
            missed = tail * np.minimum(tail / np.maximum(whole, 1e-300), 1.0) * np.abs(ends - starts)
            wrong += float(missed[:, ~rough].max(axis=0).sum())
            ratios.append(log_ratio[~rough].ravel())
            log_step = np.log(weight)
            weights.append((log_weight + log_step)[~rough].ravel())
            units = self.law.lost(s, log_even) + 2 * np.abs(s) + np.abs(log_step)
            lost.append(units[~rough].ravel())
            if not rough.any():
                break
            middle = (starts + ends)[rough] / 2
            starts, ends = np.concatenate([starts[rough], middle]), np.concatenate([middle, ends[rough]])
        return (np.concatenate(weights), np.concatenate(ratios), np.concatenate(lost)), wrong

    def _marks(self, a: complex, b: complex) -> Floats:
        """Shares of the way from a to b: panels of like length in asinh(σ s)."""
        count = min(max(1, math.ceil(abs(b - a) * self.law.sigma / 4)), 12)
        if a.real >= b.real or abs(b - a) * self.law.sigma < 8:
            return np.linspace(0.0, 1.0, count + 1)
        low, high = math.asinh(self.law.sigma * a.real), math.asinh(self.law.sigma * b.real)
        places = np.sinh(np.linspace(low, high, max(count, int(3 * (high - low))) + 1)) / self.law.sigma
        return np.clip((places - a.real) / (b.real - a.real), 0.0, 1.0)

    # ---- values ----


def dips(s: Floats, size: Floats) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Per row of p R^w in logarithms: where its last dip is before it rises for good, or, without one, rises least; and
    whether there is a dip."""
    falls = (np.diff(size, axis=1) < 0) & (s[1:] > 0)
    last = len(s) - 1 - np.argmax(falls[:, ::-1], axis=1)
    slopes = np.where(s[:-1] > 0, np.diff(size, axis=1) / np.diff(s), np.inf)
    dipped = falls.any(axis=1)
    places: NDArray[np.int64] = np.where(dipped, last, np.argmin(slopes, axis=1) + 1)
    return places, np.asarray(dipped)
