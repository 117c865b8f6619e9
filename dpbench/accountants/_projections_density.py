"""The law of the log ratio s of N(Z, σ²) to N(0, σ²), Z = (χ²_r/r)^(−1/2): its density p at complex s, and E[e^(ws)].

| here | meaning |
| --- | --- |
| s | log of the ratio of the two Gaussians; given Z it is N(−Z²/(2σ²), Z²/σ²) under N(0, σ²) |
| p(s) | its density, mixed over Z; e^s p(s) = p(−s) |
| plain(w) | E[e^(ws)] = E[e^(w(w−1)Z²/(2σ²))], on the upper side of its cuts w > 1 and w < 0 |

With G = Z⁻² ~ Gamma(r/2, rate r/2), p(s) = e^(−s/2) E[σ √(G/2π) e^(−σ²s²G/2 − 1/(8σ²G))]; the integral is Bessel's K
of order ν = (r+1)/2: 2 (r/2)^(r/2)/Γ(r/2) σ/√(2π) (β/α)^(ν/2) K_ν(2√(αβ)), α = (r + σ²s²)/2, β = 1/(8σ²). It is
analytic off the cuts from ±i√r/σ to ±i∞. Likewise E[e^(a/G)] = 2/Γ(r/2) (y/2)^(r/2) K_(r/2)(y), y = √(−2ar), which on
the upper side of a > 0, with y = −it, is π/Γ(r/2) (t/2)^(r/2) (−Y + iJ)(t) of the same order.

From order 15 on K is Debye's uniform expansion with 12 terms, whose error is below e^(−2π·15); its large parts are
taken together by hand, so that a million projections keep their digits. p is then the Gaussian's N(−1/(2σ²), 1/σ²) with
corrections of order 1/r.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from dpbench.accountants._loss_leaf import UNIT, Complex, Floats

_LARGE_ORDER = 15.0
_STUDENT = 20.0  # below, p is not expanded: next to its cut Debye's terms fall more slowly
_TERMS = 13
_SERIES = 14  # terms for |y| < 1: the last is below 1e-17
_ROOT = math.log(2 * math.pi) / 2


@cache
def _debye() -> tuple[tuple[float, ...], ...]:
    """The coefficients of u_k(t), lowest power first: u' = t²(1−t²)u'/2 + ∫(1−5t²)u/8 (DLMF 10.41.9)."""
    rows = [np.array([1.0])]
    for _ in range(_TERMS - 1):
        known = np.polynomial.Polynomial(rows[-1])
        rise = np.polynomial.Polynomial([0, 0, 0.5, 0, -0.5]) * known.deriv()
        rows.append((rise + (np.polynomial.Polynomial([1, 0, -5]) * known).integ() / 8).coef)
    return tuple(tuple(float(value) for value in row) for row in rows)


@cache
def _joined(order: float) -> tuple[float, ...]:
    """Σ_{k > 0} (−1)^k u_k(t) / order^k as one polynomial of t, lowest power first."""
    total = np.zeros(3 * _TERMS)
    for k, row in enumerate(_debye()[1:], 1):
        total[: len(row)] += np.array(row) * (-1 / order) ** k
    return tuple(float(value) for value in total)


def _corrections(order: float, t: Complex) -> Complex:
    """log Σ (−1)^k u_k(t) / order^k."""
    coefficients = _joined(order)
    total = np.full_like(t, coefficients[-1])
    for value in coefficients[-2::-1]:
        total = total * t + value
    return log1p(total)


def stirling(n: float) -> float:
    """log Γ(n) − (n − ½) log n + n − log √(2π) for n >= 14."""
    terms = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
    return math.fsum(term / n ** (2 * k + 1) for k, term in enumerate(terms))


def log1p(values: Complex) -> Complex:
    """log(1 + v) without cancellation near 0."""
    with np.errstate(divide="ignore", over="ignore"):
        excess = values.real * (2 + values.real) + values.imag**2
        modulus = np.where(
            np.abs(excess) < 0.5,
            np.log1p(np.maximum(excess, -0.75)) / 2,
            np.log(np.hypot(1 + values.real, values.imag)),
        )
    result: Complex = modulus + 1j * np.arctan2(values.imag, 1 + values.real)
    return result


@dataclass(frozen=True)
class Law:
    """The law of s for noise σ and r projections; r = None for infinitely many, a Gaussian.

    >>> law = Law(2.0, 3)
    >>> there, mirrored = law.log_even(np.array([0.7, -0.7]) + 0j)
    >>> round(float((there - mirrored).real), 12)
    0.7
    """

    sigma: float
    projections: int | None

    @property
    def ceiling(self) -> float:
        """Where the cut of p begins on the imaginary axis."""
        return math.inf if self.projections is None else math.sqrt(self.projections) / self.sigma

    @cached_property
    def middle(self) -> float:
        """log p(0)."""
        return float(self.log_even(np.zeros(1, dtype=np.complex128))[0].real)

    def log_even(self, s: Complex) -> Complex:
        """log p(s) + s, which is log p(−s), for s in the upper half plane: right of the cut, or left and below it."""
        sigma, r = self.sigma, self.projections
        if r is None:
            off = s - 1 / (2 * sigma**2)
            return np.asarray(-(sigma**2) * off * off / 2 + (math.log(sigma) - _ROOT))
        order = (r + 1) / 2
        if order < _STUDENT:
            return self._log_student(s, order, r)
        spread = r + (sigma * s) ** 2
        argument = np.asarray(np.sqrt(spread) / (2 * sigma), dtype=np.complex128)
        right = s.real > 0
        # ν log(ν(1+Q)/(2α)) − νQ + r/2, Q = √(1+ζ²), νζ = 2√(αβ); Q − 1 = ζ²/(1+Q)
        root = np.sqrt(1 + (argument / order) ** 2)
        over = (argument / order) ** 2 / (1 + root)
        far = right & (np.abs(s) > 20 * order)
        whole = (order**2 + r / (4 * sigma**2)) / np.where(far, order * root + s / 2, 1.0)
        left_over = np.where(far, order - whole, s / 2 - order * over)
        off = (1 + order * over - (sigma * s) ** 2) / spread
        near = ~far & (np.abs(off) < 0.5)  # else it is next to −1
        grown = order * np.where(near, log1p(np.where(near, off, 0.0)), np.log(order * (1 + root) / spread))
        constant = math.log(sigma) - _ROOT + math.log(r / (r + 1)) / 2 - stirling(r / 2) - 0.5
        return np.asarray(
            grown
            + left_over
            + constant
            - np.log(root) / 2
            + _corrections(order, np.asarray(1 / root, dtype=np.complex128))
        )

    def _log_student(self, s: Complex, order: float, r: int) -> Complex:
        """`log_even` as that of Student's law, C (1 + x)^(−ν) with x = σ²s²/r, and what is left: no large terms cancel.

        With k(y) = 2/Γ(ν) (y/2)^ν K_ν(y), which is 1 at 0, it is log C − ν log(1+x) + log k(y) + s/2.
        """
        sigma = self.sigma
        share = sigma * s / math.sqrt(r)
        spread = log1p(share * share)
        argument = np.asarray(math.sqrt(r) / (2 * sigma) * np.exp(spread / 2), dtype=np.complex128)
        result = math.log(sigma) - math.log(math.pi * r) / 2 - math.log(math.gamma(r / 2)) - order * spread
        small = np.abs(argument) < 1
        if small.any():
            result[small] += s[small] / 2 + math.log(math.gamma(order)) + log1p(_less_one(r + 1, argument[small]))
            y, there, spread = argument[~small], s[~small], spread[~small]
        else:
            y, there = argument, s
        # s/2 − √(r + σ²s²)/(2σ) without cancellation
        right = there.real > 0
        left_over = np.where(right, -r / (4 * sigma**2) / np.where(right, y + there / 2, 1.0), there / 2 - y)
        grown = order * (spread / 2 + math.log(math.sqrt(r) / (4 * sigma)))
        result[~small] += (math.log(2) + grown + _log_scaled_bessel(order, y) + left_over).ravel()
        return np.asarray(result)

    def lost(self, s: Complex, log_even: Complex) -> Floats:
        """Units in the last place that e^`log_even` at s has lost at most.

        Sums and products in it are up to about |log p(−s) − log p(0)|, |s| where s is not far out, and 1/σ², and have a
        few roundings each; below order 20 scipy's K has lost up to 6 + 2ν (measured against mpmath), and powers to the
        ν-th as much again.
        """
        moved, lost = np.abs(log_even - self.middle), 32 + np.abs(log_even.real)
        if self.projections is None:
            return np.asarray(lost + 4 * moved + 4 * np.abs(s))
        order = (self.projections + 1) / 2
        lost = lost + 4 * np.minimum(np.abs(s), 20 * order)
        return np.asarray(lost + (6 * order + 4 * moved if order < _STUDENT else 32 + 4 / self.sigma**2 + 12 * moved))

    def log_plain(self, w: Complex, above: Complex) -> Complex:
        """log E[e^(ws)], a branch of it, for w in the upper half plane, the upper edges of the cuts included.

        `above` is w − 1, which has lost its digits where w is next to 1.
        """
        rise = w * above / (2 * self.sigma**2)
        if self.projections is None:
            return np.asarray(rise)
        order = self.projections / 2
        argument = _root(np.asarray(-2 * rise * self.projections, dtype=np.complex128))
        square = (argument / order) ** 2
        # the expansion fails next to 1 + ζ² = 0, the more so the smaller the order; K overflows where ζ is small
        far = (order >= _LARGE_ORDER) & (np.abs(square) < 0.01) | (order >= 60) & (np.abs(1 + square) > 0.6)
        small = (np.abs(argument) < 1) & ~far
        result = np.zeros_like(argument)
        near = ~far & ~small
        if small.any():
            result[small] = log1p(_less_one(self.projections, argument[small]))
        if near.any():
            given = argument[near]
            scaled = _log_scaled_bessel(order, given) - given
            result[near] = scaled + order * np.log(given / 2) + math.log(2) - math.lgamma(order)
        if far.any():
            root = np.sqrt(1 + square[far])
            over = square[far] / (1 + root)
            value = order * (log1p(over / 2) - over) - log1p(square[far]) / 4 - stirling(order)
            result[far] = value + _corrections(order, np.asarray(1 / root, dtype=np.complex128))
        return result

    def plain_error(self, w: Complex, above: Complex, log_plain: Complex) -> Floats:
        """A bound of the error of `log_plain`: next to 1 the expectation keeps the digits of its distance to 1."""
        r = self.projections or 0
        size = np.sqrt(np.abs(w * above) * r) / self.sigma
        close = size < (0.1 * (r / 2) if r / 2 >= _LARGE_ORDER else 1.0)
        rough = UNIT * (32 + 4 * np.abs(log_plain) + (r if r < 30 else 8))
        return np.asarray(np.where(close, UNIT * (16 * np.abs(log_plain) + 8 / max(r, 15)), rough))

    def edge(self, w: Floats, above: Floats) -> Floats:
        """Im E[e^(ws)] for real w on the upper edge of the cut w > 1, to nearly all its digits; `above` is w − 1."""
        from scipy.special import jv

        if self.projections is None:
            return np.zeros_like(w)
        order = self.projections / 2
        t = np.sqrt(self.projections * w * above) / self.sigma
        with np.errstate(divide="ignore"):
            log_factor = order * np.log(t / 2) - math.lgamma(order)
        wave = jv(order, t)
        result: Floats = np.where(wave == 0, 0.0, math.pi * np.exp(np.minimum(log_factor, 700.0)) * wave)
        return result

    def log_edge_bound(self, w: Floats, above: Floats) -> Floats:
        """The logarithm of a bound of |`edge`|, by |J(t)| <= 1 and |J(t)| <= (t/2)^order / Γ(order + 1)."""
        if self.projections is None:
            return np.full_like(w, -np.inf)
        order = self.projections / 2
        with np.errstate(divide="ignore"):
            log_power = order * (np.log(w) + np.log(above) + math.log(self.projections / 4)) / 2
            log_power -= order * math.log(self.sigma)
        wave = np.minimum(log_power - math.lgamma(order + 1), 0.0)
        return np.asarray(log_power - math.lgamma(order) + wave + math.log(math.pi))


def _less_one(projections: int, y: Complex) -> Complex:
    """2/Γ(n) (y/2)^n K_n(y) − 1 for n = r/2 and |y| < 1, by its series (DLMF 10.27.4 and 10.31.1)."""
    from scipy.special import digamma

    n, square = projections / 2, y * y / 4
    total = np.zeros_like(y)
    whole = projections % 2 == 0
    term = np.ones_like(y)
    for k in range(1, int(n) if whole else _SERIES):
        term = term * square / (k * (k - n))
        total = total + term
    if whole:
        term = 2 * (-1) ** (int(n) + 1) / (math.gamma(n) * math.gamma(n + 1)) * square ** int(n)
        logarithm = np.log(np.where(y == 0, 1.0, y) / 2)
        for k in range(_SERIES):
            total = total + term * (logarithm - (float(digamma(k + 1)) + float(digamma(n + k + 1))) / 2)
            term = term * square / ((k + 1) * (n + k + 1))
        return total
    term = math.gamma(-n) / math.gamma(n) * (y / 2) ** projections
    for k in range(_SERIES):
        total = total + term
        term = term * square / ((k + 1) * (k + 1 + n))
    return total


def _root(square: Complex) -> Complex:
    """The square root in the right half plane; below the cut where `square` is negative."""
    result: Complex = np.conj(np.sqrt(np.conj(square)))
    return result


def _log_scaled_bessel(order: float, argument: Complex) -> Complex:
    """log K_order(argument) + argument."""
    from scipy.special import kve

    result: Complex = np.log(kve(order, argument))
    large = np.abs(argument) > min(1e8 * (1 + order), 5e8)  # kve gives up at 2^30; the next term is below 1e-17
    if large.any():
        beyond = argument[large]
        result[large] = 0.5 * np.log(math.pi / (2 * beyond)) + (4 * order**2 - 1) / (8 * beyond)
    return result
