"""Equal Laplace releases: δ(ε) and the law of their loss as polynomials between the places where they bend.

With w = 1/b the loss of one release under P is w with probability 1/2, −w with probability e^−w / 2, and between has
the density e^((l−w)/2) / 4. One more release makes of a curve δ(ε), or of a density, the curve

    A δ(ε) = δ(ε − w) / 2 + e^−w δ(ε + w) / 2 + ∫ e^((l−w)/2) δ(ε − l) dl / 4   over l from −w to w,

a mean of positive terms: nothing cancels. After t releases δ bends at −tw, −(t−2)w, ..., tw and is smooth between.
On piece k, ε = −tw + 2w (k + f) with 0 <= f <= 1, A takes two pieces of what was before:

    (A δ)_k(f) = δ_(k−1)(f) / 2 + e^−w δ_k(f) / 2
                 + ∫_f^1 (w/2) e^(w(f−g)) δ_(k−1)(g) dg + ∫_0^f (w/2) e^(w(f−g)−w) δ_k(g) dg,

for which a piece is kept by its values at Chebyshev points and the integrals are two matrices. Below −tw the curve is
1 − e^ε, above tw it is 0. A density starts from nothing and gains e^(−w(1−f)) / 4 times every atom.

**Error.** What a step leaves out or rounds is at most η times the mean over a piece: the last three coefficients and
the sums' roundings. The mean over the piece of ε is at most δ(ε − 2w), for δ falls. A is positive and commutes with
shifts, so that such an error of one step becomes at most η times the final δ(ε − 2w); they are added up over the
steps. On pieces below 1e-25 the error is taken as an absolute one, which A does not increase.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants.exact.direction import Value
from dpbench.accountants.exact.single import root

Floats = NDArray[np.float64]
MOST_RELEASES = 2000  # of one scale: the work grows with their square
MOST_WIDTH = 40.0  # 1/b, from which on a piece is no polynomial of a few dozen terms
_U = 2.0**-53
_FAINT = 1e-25  # of a piece: in what is smaller the error is counted as an absolute one


@dataclass(frozen=True)
class Pieces:
    """Functions on pieces of length 2w from `start` on, by Chebyshev coefficients, and the errors of all steps.

    `error` is relative, η; `lost` absolute.
    """

    start: float
    width: float
    coefficients: Floats
    error: float
    lost: float

    @property
    def bends(self) -> Floats:
        """The ends of the pieces."""
        found: Floats = self.start + 2 * self.width * np.arange(len(self.coefficients) + 1.0)
        return found

    def __call__(self, at: Floats) -> Floats:
        """The values at places within the pieces."""
        place = (at - self.start) / (2 * self.width)
        piece = np.clip(np.floor(place).astype(np.int64), 0, len(self.coefficients) - 1)
        x = np.clip(2 * (place - piece) - 1, -1.0, 1.0)
        return chebyshev(self.coefficients, piece, x)


def chebyshev(coefficients: Floats, piece: NDArray[np.int64], x: Floats) -> Floats:
    """Chebyshev series at x in [−1, 1], each of the row of its piece (Clenshaw's recurrence)."""
    first, second = np.zeros_like(x), np.zeros_like(x)
    for column in coefficients.T[:0:-1]:
        first, second = column[piece] + 2 * x * first - second, first
    found: Floats = coefficients[piece, 0] + x * first - second
    return found


class Laplaces:
    """δ(ε) of `count` releases at scale `noise`; both directions are alike."""

    def __init__(self, noise: float, count: int) -> None:
        self.largest = count / noise
        w = 1 / noise

        def below(t: int, f: Floats) -> Floats:  # 1 − e^ε on the piece before the first
            found: Floats = -np.expm1(-(t + 2) * w + 2 * w * f)
            return found

        self._pieces = _folded(w, count, lambda f: -np.expm1(w * (f - 1)), below, None)
        self._loose = 8 * _U * count * w  # of ε among the bends

    def deltas(self, epsilons: Sequence[float]) -> list[Value]:
        """δ at every real ε of `epsilons`."""
        at = np.array(epsilons, dtype=np.float64)
        shifted = self._at(at - 2 * self._pieces.width)
        values = np.maximum(self._at(at), 0.0)
        # −dδ/dε = E[e^(ε − S); S > ε] is at most P(S > ε), and that at most δ(ε − 2w) / (1 − e^(−2w))
        steep = np.minimum(shifted / -math.expm1(-2 * self._pieces.width), 1.0)
        errors = self._pieces.error * shifted + 2 * self._loose * steep + 8 * _U * values + self._pieces.lost
        return [Value(value, error) for value, error in zip(values.tolist(), errors.tolist(), strict=True)]

    def epsilon(self, log_delta: float) -> Value:
        """The smallest ε >= 0 with log δ(ε) <= `log_delta`."""
        return root(self.deltas, log_delta)

    def _at(self, epsilon: Floats) -> Floats:
        low, high = -self.largest, self.largest
        inside = self._pieces(np.clip(epsilon, low, high))
        found: Floats = np.where(
            epsilon < low, -np.expm1(np.minimum(epsilon, 0.0)), np.where(epsilon < high, inside, 0.0)
        )
        return found


@dataclass(frozen=True)
class Law:
    """The law of the loss of equal Laplace releases: atoms at the bends, a density between, relative errors."""

    losses: Floats
    masses: Floats
    density: Pieces
    mass_error: float
    loss_error: float


def bends_of(noise: float, count: int) -> Floats:
    """The places of the atoms, where the curve and the density bend."""
    found: Floats = (2 * np.arange(count + 1.0) - count) / noise
    return found


def law(noise: float, count: int) -> Law:
    """The law under P of `count` releases at scale `noise`.

    >>> found = law(2.0, 3)
    >>> bool(abs(found.masses.sum() + 2 * 0.5 * _mean(found.density.coefficients).sum() - 1) < 1e-14)
    True
    """
    w = 1 / noise
    up = np.array([1.0])
    every = [up]
    for _ in range(count):
        up = np.convolve(up, [math.exp(-w) / 2, 0.5])
        every.append(up)

    def gained(t: int, f: Floats) -> Floats:
        found: Floats = np.multiply.outer(every[t], np.exp(-w * (1 - f)) / 4)
        return found

    pieces = _folded(w, count, lambda f: np.exp(-w * (1 - f)) / 4, lambda _, f: np.zeros_like(f), gained)
    return Law(bends_of(noise, count), every[count], pieces, 6 * _U * count, 8 * _U * count * w)


def _folded(
    w: float,
    count: int,
    start: Callable[[Floats], Floats],
    below: Callable[[int, Floats], Floats],
    gained: Callable[[int, Floats], Floats] | None,
) -> Pieces:
    """`start`, of one release, with A taken `count` − 1 times; `gained` by step t is added."""
    size = 18 + math.ceil(1.2 * w)
    angles = math.pi * (np.arange(size) + 0.5) / size
    f = (1 + np.cos(angles)) / 2
    transform = 2 / size * np.cos(np.outer(np.arange(size), angles))
    transform[0] /= 2
    up, down = _integrals(w, f, transform)
    up, down = up.T + np.eye(size) / 2, down.T + math.exp(-w) / 2 * np.eye(size)
    rows, error, lost = start(f)[None, :], 0.0, 0.0
    for t in range(1, count + 1):
        last = 2 * np.abs(rows @ transform[-3:].T).max(axis=1) + (2 * size + 16) * _U * rows.max(axis=1)
        mean = rows.mean(axis=1)
        error += float(np.where(mean > _FAINT, last / np.maximum(mean, _FAINT), 0.0).max())
        lost += float(np.where(mean > _FAINT, 1e-300, last).max())
        if t < count:
            both = np.concatenate([below(t, f)[None, :], rows, np.zeros((1, size))])
            rows = both[:-1] @ up + both[1:] @ down + (0.0 if gained is None else gained(t, f))
    return Pieces(-count * w, w, rows @ transform.T, error + 4 * size * _U, lost)


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


def _mean(coefficients: Floats) -> Floats:
    """The mean of Chebyshev series over their pieces."""
    even = np.arange(0, coefficients.shape[1], 2)
    found: Floats = coefficients[:, ::2] @ (1 / (1.0 - even * even))
    return found
