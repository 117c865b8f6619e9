"""What a line integral that ends leaves out of δ(ε) where losses have atoms: the bends of δ near ε, put back.

| here | meaning |
| --- | --- |
| z = c + iu | the line; w_j, T_j are the largest loss of a Laplace release of scale j and their number, N = Σ T_j |
| atom | a sum x of losses that are all atoms, K of them at +w_j; m its mass under P, tilted by e^(cx) |
| 1 − W(u) | what is left out: W falls from 1 at |u| = a to 0 at 5a as erfc does |
| τ, s | a (x − ε); (z − c)/a + d with d = 1/5 |

One Laplace release has M(z) = ((z+1) e^(wz) + z e^(−w(1+z))) / (2z+1). Multiplied out, M(z) e^(−zε) / (z(z+1)) is a
sum over the atoms, each of them e^(z(x−ε)) times 2^N m R_K(z), R_K = z^(N−K−1) (z+1)^(K−1) / (2z+1)^N. In powers of
1/s it is Σ_n G_n s^(−n−2), and with

    ψ_n(τ) = (1/2π) ∫ e^(ivτ) (d + iv)^(−n−2) (1 − W) dv
           = τ₊^(n+1) e^(−dτ) / (n+1)! − (1/π) Re ∫_0^5 e^(ivτ) (d + iv)^(−n−2) W dv

an atom's part that W leaves out is m Σ_n G_n ψ_n(τ) / a. All ψ_n are below 1e-16 beyond |τ| = 35: only atoms within
35/a of ε are summed. Elsewhere δ is analytic, and W leaves nothing of it out.

**Errors.** The series is alternating at worst: the last two terms, at |s| >= 1, count for all later ones. What is not
summed counts with 1/(πa), which no |Σ_n G_n ψ_n| / a exceeds by more than the growth of |R_K| beyond a.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants._hinges import Floats
from dpbench.accountants._pieces import chebyshev

END = 5.0  # W is 0 from here on, in units of a
REACH = 35  # |τ| of atoms that count
TERMS = 24
_DAMPING = 0.2
_SHARPNESS = 5.8  # erfc of it is below 1e-15
_POINTS = 16
_FINE = 0.0125  # step in v: beyond 2π/_FINE − REACH, τ^n e^(−dτ) / n! is below 1e-17 at n = TERMS
_LEAST = 1e-17  # of an atom, relative to the largest, to be kept
MOST_HALF = 200_000
_TOGETHER = 100_000
_MOST_NEAR, _MANY_NEAR = 120_000, 20_000  # atoms near an ε that are summed; where all together may matter
_LITTLE = 1e-11
_UNIT = 2.0**-53


def window(v: Any) -> Floats:
    """W at |u| = a v.

    >>> window(np.array([0.0, 3.0])).tolist(), bool(window(np.array([5.0]))[0] < 1e-15)
    ([1.0, 0.5], True)
    """
    from scipy.special import erfc

    found: Floats = erfc((v - (1 + END) / 2) * (2 * _SHARPNESS / (END - 1))) / 2
    return found


@cache
def _cuts() -> Floats:
    """Chebyshev coefficients of ψ_n on the pieces [k, k + 1], −REACH <= k < REACH: pieces, coefficients, n."""
    points, matrix = chebyshev(_POINTS)
    v = _FINE * np.arange(1, round(END / _FINE) + 1)
    orders = np.arange(TERMS)
    powers = (_DAMPING + 1j * v)[:, None] ** (-orders - 2.0) * (window(v) * _FINE / math.pi)[:, None]
    first = _DAMPING ** (-orders - 2.0) * (_FINE / (2 * math.pi))
    local = (points + 1) / 2
    within = np.exp(1j * np.outer(local, v))
    rows = np.empty((2 * REACH, _POINTS, TERMS))
    log_factorials = np.array([math.lgamma(n + 2) for n in range(TERMS)])
    for piece in range(2 * REACH):
        start = piece - REACH
        smooth = ((within * np.exp(1j * start * v)) @ powers).real + first
        if start >= 0:
            tau = start + local
            smooth -= np.exp(np.outer(np.log(tau), orders + 1) - _DAMPING * tau[:, None] - log_factorials)
        rows[piece] = matrix @ -smooth
    return rows


def _series(real: float, a: float, total: int, ups: NDArray[np.int64]) -> Floats:
    """G_n of 2^N R_K for each K of `ups`, with s = (z − c)/a + d: K, n."""
    centre = (real - _DAMPING * a) / a
    orders = np.arange(1, TERMS)
    # log of the rest of 2^N R_K s² by powers of 1/s: Σ_m l_m s^−m
    powers = np.array([centre**orders, (centre + 1 / a) ** orders, (centre + 0.5 / a) ** orders])
    signs = -((-1.0) ** orders) / orders
    kinds = np.stack([total - ups - 1.0, ups - 1.0, np.full(len(ups), -float(total))], axis=1)
    logs = (kinds @ powers) * signs
    found = np.zeros((len(ups), TERMS))
    found[:, 0] = 1.0
    for n in range(1, TERMS):  # n G_n = Σ_m m l_m G_(n−m)
        found[:, n] = (logs[:, :n] * np.arange(1, n + 1) * found[:, n - 1 :: -1][:, :n]).sum(axis=1) / n
    return found


@dataclass(frozen=True)
class Part:
    """Atoms: places, masses under the tilted law, how many of the losses are at +w; what has been left out."""

    places: Floats
    masses: Floats
    ups: NDArray[np.int64]
    dropped: float = 0.0

    @classmethod
    def laplace(cls, width: float, count: int, log_odds: float) -> Part:
        """Of `count` releases that are all atoms; `log_odds` of +w against −w."""
        from scipy.special import gammaln

        ups = np.arange(count + 1)
        logs = gammaln(count + 1) - gammaln(ups + 1) - gammaln(count - ups + 1)
        logs = logs - count * math.log1p(math.exp(-log_odds)) - (count - ups) * log_odds
        places: Floats = np.asarray(width * (2.0 * ups - count), np.float64)
        return cls(places, np.asarray(np.exp(logs), np.float64), ups).kept()

    def kept(self) -> Part:
        """Without what is negligible, in order."""
        good = self.masses >= _LEAST * self.masses.max()
        dropped = self.dropped + float(self.masses[~good].sum())
        order = np.argsort(self.places[good], kind="stable")
        return Part(self.places[good][order], self.masses[good][order], self.ups[good][order], dropped)

    def plus(self, other: Part) -> Part:
        """Sums of both."""
        places, ups = (np.add.outer(*pair).ravel() for pair in ((self.places, other.places), (self.ups, other.ups)))
        masses = np.multiply.outer(self.masses, other.masses).ravel()
        return Part(places, masses, ups, self.dropped + other.dropped).kept()

    def densest(self, width: float) -> float:
        """The largest mass that an interval of this width holds."""
        cumulated = np.concatenate([[0.0], np.cumsum(self.masses)])
        ends = np.searchsorted(self.places, self.places + width, side="right")
        return float((cumulated[ends] - cumulated[:-1]).max())


def halves(parts: Sequence[Part]) -> tuple[Part, Part, bool]:
    """Two parts whose sums are all atoms, and whether they are; else some of the atoms are in neither."""
    nothing = Part(np.zeros(1), np.ones(1), np.zeros(1, dtype=np.int64))
    small, large, whole = nothing, nothing, True
    for part in sorted(parts, key=lambda one: -len(one.places)):
        if len(small.places) * len(part.places) > MOST_HALF:
            whole = False
            continue
        small, large = sorted((small.plus(part), large), key=lambda one: len(one.places))
    return small, large, whole


def crowd(both: Sequence[Part], a: float) -> float:
    """About how many sums of two halves lie near one place."""
    small, large = both
    spread = float(np.ptp(small.places) + np.ptp(large.places))
    return len(small.places) * len(large.places) * min(1.0, 2 * REACH / max(a * spread, 2.0 * REACH))


class Kinks:
    """The atoms of one line, tilted to its c: `share` is their part of the tilted law."""

    def __init__(self, real: float, a: float, total: int, share: float, both: tuple[Part, Part, bool]) -> None:
        small, large, self.whole = both
        self.a, self.share, self._small, self._large = a, share, small, large
        least, most = (int(end(small.ups) + end(large.ups)) for end in (np.min, np.max))
        self._least = least
        growth = math.exp(min((total + abs(2 * most - total)) * (real + 1) / (2 * a * a), 700.0))
        size = 1.1 * growth * share / (math.pi * a)
        near = min(part.densest(2 * REACH / a) for part in (small, large))
        many = crowd((small, large), a)
        if many > _MOST_NEAR or (many > _MANY_NEAR and size * near < _LITTLE / (1 + real)):
            self.whole = False  # what they come to is bounded instead
        self.error = size * (small.dropped + large.dropped + 1e-16 + (0.0 if self.whole else near))
        series = _series(real, a, total, np.arange(least, most + 1)) if self.whole else np.zeros((1, TERMS))
        # what the last terms are, for all later ones, and the roundings
        self._loose: Floats = np.abs(series[:, -2:]).sum(axis=1) + 64 * _UNIT * (np.abs(series) @ _SIZES)
        needed = np.flatnonzero((np.abs(series) * _SIZES).max(axis=0) > _UNIT)
        self._series = np.ascontiguousarray(series[:, : needed.max(initial=0) + 1])

    def __call__(self, epsilon: Floats) -> tuple[Floats, Floats]:
        """What is left out at each ε, relative to M(c) e^(−cε), and its error."""
        values, errors = np.zeros(len(epsilon)), np.full(len(epsilon), self.error)
        if not self.whole:
            return values, errors
        within = REACH / self.a
        targets = np.subtract.outer(epsilon, self._small.places)
        low = np.searchsorted(self._large.places, targets - within, side="right")
        counts = np.searchsorted(self._large.places, targets + within, side="left") - low
        crowds = np.cumsum(counts.sum(axis=1))
        start = 0
        while start < len(epsilon):
            before = crowds[start - 1] if start else 0
            stop = max(int(np.searchsorted(crowds, before + _TOGETHER, side="right")), start + 1)
            found = self._sums(epsilon[start:stop], low[start:stop], counts[start:stop])
            values[start:stop] += found[0]
            errors[start:stop] += found[1]
            start = stop
        return values, errors

    def _sums(self, epsilon: Floats, low: NDArray[np.intp], counts: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Over the pairs of `counts` places of the larger half from `low` on with each of the smaller: ε, smaller."""
        small, large, cuts = self._small, self._large, _cuts()
        flat = counts.ravel()
        cell = np.repeat(np.arange(len(flat)), flat)
        second = np.arange(len(cell)) + np.repeat(low.ravel() - np.concatenate([[0], np.cumsum(flat)[:-1]]), flat)
        asked, first = np.divmod(cell, len(small.places))
        tau = self.a * (small.places[first] + large.places[second] - epsilon[asked])
        masses = small.masses[first] * large.masses[second]
        rows = small.ups[first] + large.ups[second] - self._least
        piece = np.clip(np.floor(tau), -REACH, REACH - 1).astype(np.int64)
        order = np.argsort(piece, kind="stable")
        edges = np.searchsorted(piece[order], np.arange(-REACH, REACH + 1))
        x = np.clip(2 * (tau - piece) - 1, -1, 1)[order]
        basis = np.empty((_POINTS, len(x)))
        basis[0], basis[1] = 1.0, x
        for degree in range(2, _POINTS):
            basis[degree] = 2 * x * basis[degree - 1] - basis[degree - 2]
        terms = self._series[rows[order]]
        orders = terms.shape[1]
        found = np.empty(len(x))
        for k in np.flatnonzero(np.diff(edges)):
            some = slice(edges[k], edges[k + 1])
            found[some] = np.einsum("in,in->i", basis[:, some].T @ cuts[k, :, :orders], terms[some])
        masses, asked = masses[order] * (self.share / self.a), asked[order]
        off = self._loose[rows[order]]
        value: Floats = np.bincount(asked, masses * found, len(epsilon)).astype(np.float64)
        error: Floats = np.bincount(asked, masses * off, len(epsilon)).astype(np.float64)
        return value, error


_SIZES = np.maximum(_DAMPING ** (-np.arange(TERMS) - 1.0), 1.0)  # of the two parts of ψ_n, whose difference it is
