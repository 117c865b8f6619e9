"""Σ weight (e^(iuρ) − 1) at the evenly spaced nodes u of a line, as the product of two matrices.

e^(i(u+v)ρ) = e^(iuρ) e^(ivρ) makes a line of N nodes a product of two matrices with √N columns each: few sines, and the
rest is multiplication. With e^(ivρ) − 1 in place of e^(ivρ), and the row sums of e^(iuρ) − 1 apart, nothing cancels
near 0.
"""

from __future__ import annotations

import math

import numpy as np

from dpbench.accountants._complex import joined, turn
from dpbench.accountants._loss_leaf import Complex, Floats
from dpbench.accountants._work import spend

_LONG = 24  # nodes of a line from which on the product of two matrices is cheaper
_PRODUCTS = 64  # as many complex products of a matrix take as long as an exponential
_CELLS = 1 << 16  # of one evaluated block: it stays in the cache
_FRESH = 1 << 13  # of a part of one release: beyond, arrays are memory that the system gives anew, which takes longer


def turns_of(ratio: Floats, tilted: Floats, imaginary: Floats) -> tuple[Complex, Floats]:
    """Σ tilted (e^(iuρ) − 1) over the nodes, and a bound of Σ tilted |e^(iuρ) − 1|; [F, N].

    u = u_j + v_k; (e^(iu_jρ) − 1) and e^(iu_jρ) (e^(iv_kρ) − 1) are summed apart.
    """
    count = len(imaginary)
    if count <= _LONG:
        start, within = imaginary[:1] * 0, imaginary
    else:
        width = math.isqrt(count - 1) + 1
        step = float(imaginary[-1] - imaginary[0]) / (count - 1)
        start = imaginary[::width]
        within = step * np.arange(width, dtype=np.float64)
    family, nodes = ratio.shape
    turns = np.zeros((family, len(start), len(within)), dtype=np.complex128)
    turned = np.zeros((family, len(start), len(within)))
    wide = len(start) + len(within)
    rows = max(1, _CELLS // (nodes * wide))
    columns = max(64, (_FRESH if family == 1 else _CELLS) // wide)
    for first in range(0, family, rows):
        some = slice(first, first + rows)
        for left in range(0, nodes, columns):
            piece = slice(left, left + columns)
            value, size = _product(ratio[some, piece], tilted[some, piece], start, within)
            turns[some] += value
            turned[some] += size
    return turns.reshape(family, -1)[:, :count], turned.reshape(family, -1)[:, :count]


def _product(ratio: Floats, tilted: Floats, start: Floats, within: Floats) -> tuple[Complex, Floats]:
    weights = tilted[:, None, :]
    angle = ratio[:, :, None] * within
    fine, size = turn(angle), weights @ _length(angle)
    if len(start) == 1 and start[0] == 0:
        return joined(weights @ fine.real, weights @ fine.imag), size
    angle = ratio[:, None, :] * start[:, None]
    coarse, turned = turn(angle), _length(angle) @ tilted[:, :, None]
    rows = coarse @ tilted[:, :, None]
    spend(coarse.size * fine.shape[-1] // _PRODUCTS)
    coarse += 1
    coarse *= weights
    return coarse @ fine + rows, size + turned


def _length(angle: Floats) -> Floats:
    """min(|angle|, 2), in its place."""
    np.abs(angle, out=angle)
    return np.minimum(angle, 2.0, out=angle)
