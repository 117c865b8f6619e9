"""Moments of releases of random sensitivity on the real line, to a few digits, with the heavy tail told apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants._loss_leaf import Floats
from dpbench.accountants._projections_contour import dips
from dpbench.accountants._projections_density import Law
from dpbench.accountants._projections_moment import Release, Whole
from dpbench.accountants._projections_panels import as_complex, asinh_grid

_EXPONENTS = 256  # terms of the edge for a few digits
_FAR = 2e3  # the end of the grids for a few digits at least
_LARGE = 300.0  # log of a double: from here on e^power is weighted in logarithms
_BEYOND, _FARTHEST = 1e-8, 1e30  # P(s beyond the end), about


@dataclass(frozen=True)
class RealLine:
    """At real w: log |H|, the same of the bulk of s alone, log P(s beyond the bulk), whether bulk and tail can be told
    apart, and whether there is a tail that may tell; for releases without sampling the angle of H on the edge."""

    w: Floats
    above: Floats
    log_moment: Floats
    log_bulk: Floats
    log_outside: Floats
    good: NDArray[np.bool_]
    tail: NDArray[np.bool_]
    turned: Floats | None = None


def real_line(part: Release | Whole, w: Floats, above: Floats, cap: float = -math.inf) -> RealLine:
    """For real w, `above` being w − 1: log |H| without the heavy tail, or without more than e^cap of its mass.

    A release without sampling takes w > 1 only.
    """
    return _sampled(part, w, above, cap) if isinstance(part, Release) else _whole(part, w, above, cap)


def angle(part: Release | Whole, line: RealLine, there: slice) -> Floats:
    """The angle of H on the edge at some of the points of `line`, to a few digits."""
    if isinstance(part, Whole):
        assert line.turned is not None
        return line.turned[there]
    tail = line.tail[there]
    found = np.zeros(len(tail))
    if tail.any():
        share = np.abs(_edge_about(part, line.w[there][tail], line.above[there][tail]))
        with np.errstate(over="ignore"):
            turned = np.arctan(share * np.exp(-line.log_moment[there][tail]))
        found[tail] = np.where(np.isnan(turned), math.pi, turned)
    return found


def _end(law: Law) -> tuple[float, int]:
    """The end of a grid, and how many points it has: P(s > S), s about Z²/(2σ²), falls like (σ² S)^(−r/2)."""
    if law.projections is None:
        return _FAR, 600
    far = min(max(_FAR, _BEYOND ** (-2 / law.projections) / law.sigma**2), _FARTHEST)
    return far, 600 + round(30 * math.log(far / _FAR))


def _sampled(part: Release, w: Floats, above: Floats, cap: float) -> RealLine:
    """For real w, to a few digits: log |H| without the heavy tail, or without more than e^cap of its mass."""
    s, size_of_step = part.contours.grid(*_end(part.law))
    log_ratio = part.contours.log_ratio(as_complex(s)).real
    log_density = part.law.log_even(as_complex(s)).real - s
    power = np.multiply.outer(w, log_ratio)
    size = power + log_density
    tail = np.zeros(len(w), dtype=np.bool_)
    good = np.ones(len(w), dtype=np.bool_)
    outside = np.full(len(w), -math.inf)
    log_weight = log_density + np.log(size_of_step)
    if part.law.projections is not None:  # the bulk ends where p R^w is least
        place = np.arange(len(s))
        ends, dipped = dips(s, size)
        beyond = _mass_from(log_weight + log_ratio + part.log_rest)
        ends = np.minimum(ends, int(np.argmax(beyond[1:] <= cap)) if cap > -math.inf else len(s) - 1)
        least = np.where(above > 0, ends, len(s) - 1)
        power = np.where(place <= least[:, None], power, 0.0)
        highest = np.where(place <= least[:, None], size, -np.inf).max(axis=1)
        tail = (above > 0) & (size[np.arange(len(w)), least] > highest - 200)
        good = dipped | (above <= 0)
        outside = np.where(above > 0, beyond[np.minimum(least + 1, len(s))], -math.inf)
    weight = np.exp(np.minimum(log_weight, 0.0))
    missing = max(1 - float(weight.sum()), 0.0) if part.law.projections is not None else 0.0
    missing = missing if missing > 1e-13 else 0.0  # else it is rounding
    large = np.exp(np.minimum(np.where(power > _LARGE, power + log_weight, -np.inf), 650.0))
    above_limit = (weight * np.expm1(np.minimum(power, _LARGE)) + large).sum(axis=1)
    whole = np.logaddexp.reduce(power + log_weight, axis=1)
    limit = w * part.log_rest
    with np.errstate(divide="ignore"):
        result = np.where(w < 0, limit + np.logaddexp(whole, np.log(missing)), limit + whole)
    result = np.where((w > 0) & (whole < 30), limit + np.log1p(np.maximum(above_limit, -0.9)), result)
    return RealLine(w, above, result, result, outside, good, tail)


def _whole(part: Whole, w: Floats, above: Floats, cap: float) -> RealLine:
    """For real w > 1: log |H|, its bulk, and the angle of H on the edge."""
    value, _ = part.log_moment(as_complex(w), as_complex(above))
    with np.errstate(invalid="ignore"):
        turned = np.abs(np.arcsin(np.sin(value.imag)))
    s, step = asinh_grid(part.law.sigma, -60.0, *_end(part.law))
    log_even, log_step = part.law.log_even(as_complex(s)).real, np.log(step)
    size = log_even + np.multiply.outer(above, s)
    ends, dipped = dips(s, size)
    beyond = _mass_from(log_even + log_step)
    if cap > -math.inf:
        place = int(np.argmax(beyond[1:] <= cap))
        ends, dipped = np.minimum(ends, place), dipped | (ends >= place)
    kept = np.where(np.arange(len(s)) <= ends[:, None], size, -np.inf)
    bulk = np.logaddexp.reduce(kept + log_step, axis=1)
    outside = np.where(dipped, beyond[np.minimum(ends + 1, len(s))], 0.0)
    return RealLine(w, above, value.real, bulk, outside, np.isfinite(value.real), dipped, turned)


def _edge_about(part: Release, w: Floats, above: Floats) -> Floats:
    """`Release.edge` to a few digits, and only the terms of the smaller exponents: those cost little for any w."""
    from scipy.special import gammaln

    k = np.ceil(above)[:, None] - np.arange(1.0, min(float(np.ceil(above.max(initial=1.0))), _EXPONENTS) + 1)
    there = k >= 0
    k = np.where(there, k, 0.0)
    left = w[:, None] - k
    binomial = gammaln(w[:, None] + 1) - gammaln(k + 1) - gammaln(left + 1)
    scale = binomial + left * math.log(part.rate) + k * part.log_rest
    terms = np.exp(np.minimum(scale, 700.0)) * part.law.edge(left, above[:, None] - k)
    result: Floats = np.where(there, terms, 0.0).sum(axis=1)
    return result


def _mass_from(log_mass: Floats) -> Floats:
    """log Σ of these masses, grid points to the right included, and of what lies beyond the grid, where they fall like
    a power that only rises: one entry more than there are points."""
    last, before = (float(np.logaddexp.reduce(log_mass[piece])) for piece in (slice(-8, None), slice(-16, -8)))
    beyond = -math.inf
    if last > -math.inf:
        beyond = math.log(2) + last + (last - before) - math.log(-math.expm1(min(last - before, -1e-9)))
    return np.asarray(np.logaddexp.accumulate(np.concatenate([[beyond], log_mass[::-1]]))[::-1])
