"""The law of the loss of T equal Laplace releases under P: atoms, and a density as polynomials between its knots.

| here | meaning |
| --- | --- |
| `width` | w = 1/b, the largest loss of one release |
| `knots` | −Tw, −(T−2)w, ..., Tw: the places of the atoms and the ends of the density's pieces |
| `masses` | of the atoms: C(T, i) (1/2)^i (e^−w / 2)^(T−i) at (2i − T)w |

One release has mass 1/2 at w, e^−w / 2 at −w, and density e^((s−w)/2) / 4 between. With s = −(t+1)w + 2w(k + f) on
piece k, 0 <= f <= 1, one more release makes of the density h_t and the atoms a_t

    h_(t+1, k)(f) = h_(t, k−1)(f)/2 + e^−w h_(t, k)(f)/2 + a_(t, k) e^(−w(1−f))/4
                    + ∫_f^1 (w/2) e^(w(f−g)) h_(t, k−1)(g) dg + ∫_0^f (w/2) e^(w(f−g)−w) h_(t, k)(g) dg,

all positive. A piece is kept by its values at 32 Chebyshev points; the integrals are matrices. The splines within h
have on a piece coefficients below 2^(1−d)/d! of their neighbours at degree d; the last ones that are found are the
error of each piece, with the roundings of T steps.
"""

from __future__ import annotations

import math

import numpy as np

from dpbench.accountants._hinges import Floats
from dpbench.accountants._pieces import chebyshev, series
from dpbench.accountants._work import spend

_POINTS, _NODES = 32, 48
_UNIT = 2.0**-53
_STEP = 10  # exponentials that one piece takes when a release is added


class LaplaceLaw:
    """The law of the loss of `count` releases at scale `noise`.

    >>> law = LaplaceLaw(2.0, 3)
    >>> nodes, weights = np.polynomial.legendre.leggauss(32)
    >>> inside = sum(float(weights @ law.density(knot + (nodes + 1) / 2)[0]) / 2 for knot in law.knots[:-1])
    >>> bool(abs(inside + law.masses.sum() - 1) < 1e-14)
    True
    """

    def __init__(self, noise: float, count: int) -> None:
        from scipy.special import gammaln

        spend(_STEP * count * count // 2)
        w = self.width = 1 / noise
        self._logs: Floats = gammaln(np.arange(count + 1.0) + 1)
        self.count = count
        self.knots: Floats = w * (2 * np.arange(count + 1.0) - count)
        self.masses = self._atoms(count)
        points, matrix = chebyshev(_POINTS)
        f = (points + 1) / 2
        up, low = _integrals(w, f, matrix)
        single = np.exp(-w * (1 - f)) / 4
        values = single[None, :]
        for t in range(1, count):
            following = np.multiply.outer(self._atoms(t), single)
            following[1:] += values / 2 + values @ up.T
            following[:-1] += math.exp(-w) * values / 2 + values @ low.T
            values = following
        self._coefficients = values @ matrix.T
        largest = np.abs(values).max(axis=1)
        # each step: two sums of 32 products, and five sums; the atoms have their own roundings, below
        rounding = (2 * _POINTS + 16) * count * _UNIT
        self._errors: Floats = 4 * np.abs(self._coefficients[:, -3:]).max(axis=1) + rounding * largest
        self.mass_error = _UNIT * (16 * math.lgamma(count + 1) + 4 * count * (1 + w) + 16)
        self.loss_error = 4 * _UNIT * count * w

    def density(self, loss: Floats) -> tuple[Floats, Floats]:
        """The density and its error at losses from −Tw to Tw."""
        place = (loss - self.knots[0]) / (2 * self.width)
        piece = np.clip(np.floor(place).astype(int), 0, self.count - 1)
        x = np.clip(2 * (place - piece) - 1, -1, 1)
        return series(self._coefficients, piece, x), self._errors[piece]

    def _atoms(self, t: int) -> Floats:
        """Masses of 0 ... t of t releases at w, all others at −w."""
        logs, ups = self._logs[: t + 1], np.arange(t + 1.0)
        found: Floats = np.exp(logs[-1] - logs - logs[::-1] - t * math.log(2) - self.width * (t - ups))
        return found


def _integrals(w: float, f: Floats, matrix: Floats) -> tuple[Floats, Floats]:
    """From values on a piece to ∫_f^1 (w/2) e^(w(f−g)) h(g) dg and to ∫_0^f (w/2) e^(w(f−g)−w) h(g) dg."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    shares, weights = (nodes + 1) / 2, weights / 2
    results = []
    for start, stop, shift in ((f, np.ones_like(f), 0.0), (np.zeros_like(f), f, w)):
        g = start[:, None] + (stop - start)[:, None] * shares
        measure = w / 2 * np.exp(w * (f[:, None] - g) - shift) * weights * (stop - start)[:, None]
        basis = np.cos(np.multiply.outer(np.arccos(np.clip(2 * g - 1, -1, 1)), np.arange(len(f))))
        results.append(np.einsum("jn,jnd,dl->jl", measure, basis, matrix))
    return results[0], results[1]
