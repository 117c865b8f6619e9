"""Integrals of powers of a release's likelihood ratio against a weight: nodes on the real line, and their sums.

R^w turns there for complex w, and panels are halved until the square of their last Legendre coefficients is small for
all w that are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpbench.accountants._loss_leaf import UNIT, Complex, Floats
from dpbench.accountants._projections_panels import as_complex, expm1, panel_nodes, roughness

_MISSED = 1e-16  # by a panel, relative to the largest
_DROPPED = 1e-19
_ROUNDS = 14
_CHUNK = 1 << 17
_LARGE = 300.0  # log of a double: from here on terms are weighted in logarithms
_DIGITS = 32  # units in the last place that densities have lost at least


@dataclass(frozen=True)
class Row:
    """Exponents first + i·step·k, k from 0 on, `first` being real."""

    first: float
    step: float
    count: int

    def values(self) -> Complex:
        """All of them."""
        return np.asarray(self.first + 1j * self.step * np.arange(self.count))


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

    def sums(self, exponent: Complex | Row, less_one: bool) -> tuple[Complex, Floats]:
        """Σ weight · R^exponent, or with R^exponent − 1, and a bound of its error."""
        if isinstance(exponent, Row):
            return self._row(exponent, less_one)
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

    def _row(self, row: Row, less_one: bool) -> tuple[Complex, Floats]:
        """The same for many nodes: e^(i(a+b)) is a product of two short tables, and e^(i(a+b)) − 1 is
        (e^(ia) − 1) e^(ib) + (e^(ib) − 1)."""
        if not len(self.log_weight):
            return np.zeros(row.count, dtype=np.complex128), np.full(row.count, self.wrong)
        inner = max(1, math.isqrt(row.count))
        outer = -(-row.count // inner)
        turn = self.log_ratio * row.step
        far = np.multiply.outer(inner * np.arange(outer), turn)
        near = expm1(1j * np.multiply.outer(np.arange(inner), turn))
        grown = np.exp(self.log_weight + row.first * self.log_ratio)
        lost, length = self.lost, np.abs(self.log_ratio)
        size = np.abs(row.values())
        if less_one:
            far_terms, near_terms = grown * expm1(1j * far), grown * near
            level = _weighted(self.log_weight, self.weight, np.asarray(row.first * self.log_ratio + 0j), True).real
            found = far_terms @ (1 + near).T + near_terms.sum(axis=1) + level.sum()
            terms = [np.abs(part) for part in (far_terms, near_terms)]
            digits = np.add.outer(terms[0] @ lost, terms[1] @ lost) + np.abs(level) @ lost
            turned = np.add.outer(terms[0] @ length, terms[1] @ length) + (np.abs(level) + self.weight) @ length
        else:
            found = (grown * np.exp(1j * far)) @ (1 + near).T
            digits, turned = np.full(found.shape, grown @ lost), np.full(found.shape, grown @ length)
        rounding = digits.ravel()[: row.count] + size * turned.ravel()[: row.count]
        return found.ravel()[: row.count], UNIT * rounding + self.wrong


NO_SHARE = Share(np.empty(0), np.empty(0), 0.0)


def _weighted(log_weight: Floats, weight: Floats, power: Complex, less_one: bool) -> Complex:
    """weight · e^power, or with e^power − 1, also where a factor is no double."""
    if power.size and power.real.max() > _LARGE:
        large = power.real > 1
        beyond = np.exp(np.where(large, log_weight + power, -1e3)) - (weight if less_one else 0.0) * large
        near = np.where(large, 0.0, power)
        return np.asarray(np.where(large, beyond, (expm1(near) if less_one else np.exp(near)) * weight))
    return np.asarray((expm1(power) if less_one else np.exp(power)) * weight)


def make_share(
    marks: Floats,
    log_weigh: Callable[[Floats], Floats],
    exponents: Complex,
    less_one: bool,
    loss: Callable[[Floats], Floats],
    sparing: bool,
) -> Share:
    """Panels halved until R^w, or R^w − 1, weighted, is smooth for all exponents; where it is always negligible, a
    `sparing` share leaves panels out."""
    starts, ends = marks[:-1], marks[1:]
    if not len(starts):
        raise ArithmeticError("a window has no room")
    nodes, weights, wrong = [], [], 0.0
    largest: Floats | None = None
    for attempt in range(_ROUNDS):
        at, step = panel_nodes(as_complex(starts), as_complex(ends))
        s, length = at.real, ends - starts
        held = log_weigh(s)
        power = np.multiply.outer(exponents, loss(s))
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
    return Share(loss(np.concatenate(nodes)), np.concatenate(weights), wrong)
