"""Equal Laplace mechanisms: δ(ε) as polynomials between its kinks.

With w = 1/b the loss of one invocation under P is w with probability 1/2, −w with probability e^−w / 2, and between has
density e^((l−w)/2) / 4. One more invocation turns a curve δ(ε) into

    A δ(ε) = δ(ε − w) / 2 + e^−w δ(ε + w) / 2 + ∫ e^((l−w)/2) δ(ε − l) dl / 4   over l from −w to w,

a mean of positive terms: nothing cancels. After t invocations δ has kinks at −tw, −(t−2)w, ..., tw and is smooth
between. On piece k, ε = −tw + 2w (k + f) with 0 <= f <= 1, A takes two pieces of what was before:

    (A δ)_k(f) = δ_(k−1)(f) / 2 + e^−w δ_k(f) / 2
                 + ∫_f^1 (w/2) e^(w(f−g)) δ_(k−1)(g) dg + ∫_0^f (w/2) e^(w(f−g)−w) δ_k(g) dg,

for which a piece is kept by its values at Chebyshev points and the integrals are two matrices. Below −tw the curve is
1 − e^ε, above tw it is 0.

**Error.** What a step leaves out or rounds is at most η times the mean over a piece: the last three coefficients and
the sums' roundings. The mean over the piece of ε is at most δ(ε − 2w), for δ falls. A is positive and commutes with
shifts, so that such an error of one step becomes at most η times the final δ(ε − 2w); they are added up over the
steps. On pieces below 1e-25 the error is taken as an absolute one, which A does not increase.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpbench.events import Laplace
from dpbench.privacy.accountants.exact.direction import Value
from dpbench.privacy.accountants.exact.single import root

Floats = NDArray[np.float64]
MOST_RELEASES = 2000  # the work grows with their square
MOST_WIDTH = 40.0  # 1/b, from which on a piece is no polynomial of a few dozen terms
_U = 2.0**-53
_FAINT = 1e-25  # of a piece: in what is smaller the error is counted as an absolute one


def refusal(event: Laplace, count: int) -> str | None:
    """Why so many invocations, or so little noise, are not covered; None where they are.

    >>> refusal(Laplace(2.0), 30) is None
    True
    """
    if count > MOST_RELEASES:
        return f"count = {count}: exact sums of Laplace losses go to {MOST_RELEASES}; use the lattice accountant"
    if event.relative_noise < 1 / MOST_WIDTH and count > 1:
        shown = f"noise / sensitivity = {event.relative_noise!r}"
        return f"{shown}: exact sums of Laplace losses go down to {1 / MOST_WIDTH}; use the lattice accountant"
    return None


class Laplaces:
    """δ(ε) of `count` Laplace mechanisms of scale `noise`; both directions are alike.

    >>> round(Laplaces(2.0, 2).deltas([0.5])[0].value, 9)
    0.123849119
    """

    def __init__(self, noise: float, count: int) -> None:
        self.largest = count / noise
        self._width = w = 1 / noise
        size = 18 + math.ceil(1.2 * w)
        angles = math.pi * (np.arange(size) + 0.5) / size
        f = (1 + np.cos(angles)) / 2
        transform = 2 / size * np.cos(np.outer(np.arange(size), angles))
        transform[0] /= 2
        up, down = _integrals(w, f, transform)
        up, down = up.T + np.eye(size) / 2, down.T + math.exp(-w) / 2 * np.eye(size)
        rows = -np.expm1(w * (f - 1))[None, :]
        self._error, self._lost = 4 * size * _U, 0.0  # relative, η, and absolute
        for t in range(1, count + 1):
            last = 2 * np.abs(rows @ transform[-3:].T).max(axis=1) + (2 * size + 16) * _U * rows.max(axis=1)
            mean = rows.mean(axis=1)
            self._error += float(np.where(mean > _FAINT, last / np.maximum(mean, _FAINT), 0.0).max())
            self._lost += float(np.where(mean > _FAINT, 1e-300, last).max())
            if t < count:
                below = -np.expm1(-(t + 2) * w + 2 * w * f)  # 1 − e^ε on the piece before the first
                both = np.concatenate([below[None, :], rows, np.zeros((1, size))])
                rows = both[:-1] @ up + both[1:] @ down
        self._coefficients = rows @ transform.T
        self._loose = 8 * _U * count * w  # of ε among the kinks

    def deltas(self, epsilons: Sequence[float]) -> list[Value]:
        """δ at every ε >= 0 of `epsilons`."""
        at, apart = np.array(epsilons, dtype=np.float64), 2 * self._width
        shifted, values = self._at(at - apart), np.maximum(self._at(at), 0.0)
        # −dδ/dε = E[e^(ε − S); S > ε] is at most P(S > ε), and that at most δ(ε − 2w) / (1 − e^(−2w))
        steep = np.minimum(shifted / -math.expm1(-apart), 1.0)
        errors = self._error * shifted + 2 * self._loose * steep + 8 * _U * values + self._lost
        return [Value(value, error) for value, error in zip(values.tolist(), errors.tolist(), strict=True)]

    def epsilon(self, log_delta: float) -> Value:
        """The smallest ε >= 0 with log δ(ε) <= `log_delta`."""
        return root(self.deltas, log_delta)

    def _at(self, epsilon: Floats) -> Floats:
        """δ at real ε: by Clenshaw's recurrence on the piece that each lies on."""
        low, high = -self.largest, self.largest
        place = (np.clip(epsilon, low, high) - low) / (2 * self._width)
        piece = np.clip(np.floor(place).astype(np.int64), 0, len(self._coefficients) - 1)
        x = np.clip(2 * (place - piece) - 1, -1.0, 1.0)
        first, second = np.zeros_like(x), np.zeros_like(x)
        for column in self._coefficients.T[:0:-1]:
            first, second = column[piece] + 2 * x * first - second, first
        inside = self._coefficients[piece, 0] + x * first - second
        outside = np.where(epsilon < low, -np.expm1(np.minimum(epsilon, 0.0)), 0.0)
        return np.where((epsilon < low) | (epsilon >= high), outside, inside)


def _integrals(w: float, f: Floats, transform: Floats) -> tuple[Floats, Floats]:
    """From values at the points f to ∫_f^1 (w/2) e^(w(f−g)) h(g) dg and to ∫_0^f (w/2) e^(w(f−g)−w) h(g) dg."""
    nodes, weights = np.polynomial.legendre.leggauss(len(f) + math.ceil(w) + 8)
    found = []
    for start, stop, shift in ((f, np.ones_like(f), 0.0), (np.zeros_like(f), f, w)):
        g = start[:, None] + (stop - start)[:, None] * (nodes + 1) / 2
        measure = w / 4 * np.exp(w * (f[:, None] - g) - shift) * weights * (stop - start)[:, None]
        basis = np.cos(np.multiply.outer(np.arccos(np.clip(2 * g - 1, -1.0, 1.0)), np.arange(len(f))))
        found.append(np.einsum("jn,jnd->jd", measure, basis) @ transform)
    return found[0], found[1]
