"""M(z) of a release of random sensitivity at any complex z: one integral over s, along a contour that tames it.

| here | meaning |
| --- | --- |
| s, p(s) | the log ratio of the two Gaussians and its density (`_projections_density`) |
| R(s) | 1 − q + q e^s, the likelihood ratio of the pair; ρ = q/(1−q) |
| H(w) | E[R^w] = (1−q)^w + ∫ p (1−q)^w ((1 + ρe^s)^w − 1) ds; M(z) = H(1+z) for remove, H(−z) for add |

H is analytic off the cut [1, ∞); on and above it the contours of `_projections_contour` continue the integral.

On the edge of the cut itself, Im H(1 + x + i0) = Σ_{k < x} C(1+x, k) q^(1+x−k) (1−q)^k Im E[e^((1+x−k)s)]: on the right
of the zeros of R, R^w is a binomial series in e^(−s), the upright line gives Im E[e^(ws)] for each term, and for
exponents below 1 it closes to the right and gives 0. So the share of the tail is known to its own relative digits.

**Rounding.** p has lost up to some hundred units in the last place (`Law.lost`), many of them to the same side, and
log H is counted as often as there are releases. Where H is not far below 1, R^w − 1 is integrated, since (1−q)^w
and (1 + ρe^s)^w would lose digits to each other; where w (R − 1) is small, R^w − 1 − w (R − 1), since E[R] = 1: so p's
losses are relative to terms of the second order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from dpbench.accountants._loss_leaf import UNIT, Complex, Floats
from dpbench.accountants._projections_contour import Box, Contours
from dpbench.accountants._projections_density import Law, log1p
from dpbench.accountants._projections_panels import expm1, grown

_BLOCK = 1 << 17
_POWER = 8  # units in the last place that e^v − 1 and products with it lose


@dataclass
class Release:
    """One release of q = `rate` in (0, 1); `law` is that of s. What it remembers never changes an answer."""

    rate: float
    law: Law
    contours: Contours = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.contours = Contours(self.rate, self.law)
        self.log_odds, self.log_rest = self.contours.log_odds, self.contours.log_rest

    def _taken_out(self, w: Complex, above: Complex, taken: int) -> Complex:
        """Σ_{k <= taken} C(w, k) ρ^(w−k) E[e^((w−k)s)]."""
        total, binomial = np.zeros_like(w), np.ones_like(w)
        for k in range(taken + 1):
            total = total + binomial * np.exp((w - k) * self.log_odds + self.law.log_plain(w - k, above - k))
            binomial = binomial * (w - k) / (k + 1)
        return total

    def cost(self, box: Box) -> float:
        """The nodes of the contour of a block, and the terms that are taken out."""
        found = self.contours.contour(box)
        return float(len(found.log_ratio)) * (1 + max(found.taken, 0) / 8)

    def log_moment(self, w: Complex, above: Complex, box: Box) -> tuple[Complex, Floats]:
        """log H(w) for w of a block in the upper half plane, edges included, and a bound of its absolute error.

        `above` is w − 1, to its own relative digits.
        """
        found = self.contours.contour(box)
        total, rough = np.full(len(w), found.beyond[0]), np.empty(len(w))
        bend = np.abs(found.log_ratio)
        rows = max(1, _BLOCK // len(found.log_ratio))
        weight, body = np.exp(found.log_weight), found.body
        for first in range(0, len(w), rows):
            some = w[first : first + rows]
            if found.taken >= 0:
                terms = weight * self.contours.remainder(found.log_ratio, some, found.taken)
            else:
                power = np.multiply.outer(some, found.log_ratio)
                terms = np.empty_like(power)
                terms[:, :body] = grown(found.log_weight[:body], power[:, :body])
                terms[:, body:] = np.exp(found.log_weight[body:] + power[:, body:])
            size = np.abs(terms)
            told = np.abs(some) * (size @ bend) + found.beyond[1]
            if found.line is not None:  # E[R − 1] = 0: what p has lost is lost of less
                terms[:, :body] -= np.multiply.outer(some, weight[:body] * expm1(found.log_ratio[:body]))
                told += _POWER * size.sum(axis=1)
                size = np.abs(terms)
            total[first : first + rows] += terms.sum(axis=1)
            rough[first : first + rows] = told + size @ found.lost
        if found.taken >= 0:
            outside = self._taken_out(w, above, found.taken)
            total = total + outside
            rough += 64 * np.abs(outside)
        if found.left is not None:
            power = expm1(w * self.log_rest)
            rough += _POWER * abs(found.left[0]) * np.abs(power)
            if found.line is not None:
                power = power + w * self.rate
                total = total - w * found.line[0]
                rough += np.abs(w) * found.line[1]
            total = total + found.left[0] * power
            rough += found.left[1] * np.abs(power)
        else:  # which log(1 + total) nearly takes back
            rough += 2 * np.abs(w * self.log_rest) * np.abs(1 + total)
        error = (UNIT * rough + found.wrong) / np.abs(1 + total)
        result = log1p(total) + (w * self.log_rest if found.left is None else 0.0)
        error = error + UNIT * np.abs(result)
        edge = (w.imag == 0) & (above.real > 0)
        if self.law.projections is not None and edge.any():
            rest = np.exp(w.real[edge] * self.log_rest) if found.left is None else 1.0
            size = np.abs(1 + total[edge]) * rest
            angle = np.arcsin(np.clip(self.edge(w.real[edge], above.real[edge]) / size, -1.0, 1.0))
            turned = np.where(1 + total[edge].real < 0, np.sign(angle) * math.pi - angle, angle)
            result[edge] = result[edge].real + 1j * turned
        elif edge.any():
            result[edge] = result[edge].real
        return result, error

    def edge(self, w: Floats, above: Floats) -> Floats:
        """Im H(w + i0) for real w > 1; `above` is w − 1."""
        logs, binomial = [], np.zeros_like(w)
        order = (self.law.projections or 0) / 2
        terms = range(math.ceil(float(above.max())))
        for k in terms:
            there = above > k
            left = np.where(there, w - k, 2.0)
            scale = binomial + left * math.log(self.rate) + k * self.log_rest
            logs.append(np.where(there, scale, -np.inf))
            binomial = binomial + np.log(left) - math.log(k + 1)
        if not logs:
            return np.zeros_like(w)
        scale = np.array(logs)
        left = np.maximum(w - np.arange(len(terms))[:, None], 1.0)
        # |J(t)| is at most 1 and (t/2)^order/Γ(order+1), which is e^(0.31 order) too much where they meet
        size = scale + self.law.log_edge_bound(left, np.maximum(above - np.arange(len(terms))[:, None], 0.0))
        kept = size > size.max(axis=0) - 45 - 0.31 * order
        index, column = np.nonzero(kept)
        tail = self.law.edge(w[column] - index, above[column] - index)
        found = np.zeros_like(scale)
        found[index, column] = np.exp(np.minimum(scale[index, column], 700.0)) * tail
        result: Floats = found.sum(axis=0)
        return result


@dataclass
class Whole:
    """One release without sampling, q = 1: H in closed form."""

    law: Law

    def log_moment(self, w: Complex, above: Complex) -> tuple[Complex, Floats]:
        """log H(w) for w in the upper half plane, edges included, and a bound of its absolute error."""
        result = self.law.log_plain(w, above)
        error = self.law.plain_error(w, above, result)
        edge = (w.imag == 0) & (above.real > 0)
        if edge.any():
            share = self.law.edge(w.real[edge], above.real[edge]) * np.exp(-result[edge].real)
            angle = np.arcsin(np.clip(share, -1.0, 1.0))
            result[edge] = result[edge].real + 1j * np.where(np.cos(result[edge].imag) < 0, math.pi - angle, angle)
        return result, error
