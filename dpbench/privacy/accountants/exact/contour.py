"""The contour: δ(ε) = (1/2πi) ∫ M(z) e^(−zε) / (z(z+1)) dz along a hyperbola. docs/exact.md has the method.

| here | meaning |
| --- | --- |
| ζ | z in the direction remove, −z in the direction add: both integrands have e^(ζl) |
| l | log R, R the likelihood ratio of one release: its loss under remove, minus its loss under add |
| w | the density of what l is averaged over, P's: Σ w e^(ζl) is M; pR in the direction remove, p in add |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, Protocol

import numpy as np

from dpbench.privacy.accountants import _complex
from dpbench.privacy.accountants._complex import Complex, Floats
from dpbench.privacy.accountants._work import spend

Way = Literal["remove", "add"]
Taken = Literal["nothing", "one", "each"]
Row = tuple[Complex, Complex, Floats, Complex, Floats]  # of nodes: ζ, weight, height, grown, error of grown

UNIT = 2.0**-52
_CACHED = 1_000_000  # exponentials at once; of more the memory sets the pace, and each costs some 130 ns
_NEAR, _TERMS = 0.6, 17  # |ζl| up to which e^(ζl) is summed as a series, by the moments of l; 0.6^17 / 17! is 5e-19
_ALIAS = {"nothing": 34.0, "one": 40.0, "each": 46.0}  # e^−34 is what aliasing may be, relative to the strip's edges
_STEEPEST, _SHARE = 0.7, 0.8  # the widest the strip's edge may open, and its share of what (W) lets it
_FLATTEST, _FLAT = 1e-3, 0.25  # below _FLAT little damps what comes back
_MOST_NODES = 6000
_END = 36.0  # nodes e^−36 below the largest are the last
_CHUNK, _CELLS = 40, 200_000
_AHEAD, _COARSE, _CLOSE = 8.0, 1.15, 1.03  # to so many times Im ζ of the last node, in such steps, M may come back
_LARGEST = 1e17  # |ζ| over c of the last node, at most
_FLOOR = 4e-12  # relative: the error of sums of some hundred exponentials of rounded numbers, not measured
_TINY = 1e-300
_HIGHEST, _NOTHING = 700.0, -80.0  # the largest exponent; the log of a negligible term
_LOST = 1e3  # error of log M from which on nothing is known


@dataclass(frozen=True)
class Nodes:
    """Σ w f(l) is the mean of f(l) under P: nodes on a path in s, weights with the step and ds in them.

    On the path 0 <= Im l, and the larger Im l / Re l, the wider the hyperbola may open. `summed` says that they are
    outcomes and not a quadrature: then the sum over every other one is no estimate of an error.
    """

    weights: Complex
    losses: Complex
    summed: bool = False
    rough: float = 1.0  # relative error of the losses, in units of the last place


class Release(Protocol):
    """One mechanism invocation in one direction, as the contour needs it; without its count."""

    @property
    def largest(self) -> float:
        """The largest loss in this direction (of L, not of l); ∞ where there is none."""
        ...

    @property
    def lowest(self) -> float:
        """The infimum of l; −∞ where there is none."""
        ...

    def nodes(self, crossing: float, scale: float) -> Nodes:
        """Nodes for paths in ζ that cross the real axis at `crossing` (> 0 remove, < 0 add).

        `scale` is 1, or a little less or more: other nodes for a second evaluation, equally good.
        """
        ...

    def law(self, most: float) -> tuple[Floats, Floats]:
        """log w and l at real s, for Σ w e^(ζl) to about 1e-6 at all crossings |ζ| <= `most`."""
        ...


@dataclass(frozen=True)
class Moments:
    """h = M − 1 and log(1 + h) of one invocation at ζ, with bounds of their absolute errors."""

    h: Complex
    log: Complex
    rounding: Floats  # of log
    aliasing: Floats  # of log: what the quadrature in s may be off
    second: complex  # E l²
    third: Complex  # h − bζ − E l² ζ²/2, and its rounding
    third_rounding: Floats


def first_order(nodes: Nodes, way: Way) -> tuple[complex, float]:
    """b = E l of one invocation and its error: Σ w (l − 1 + e^−l) (remove) or Σ w (l + 1 − e^l) (add), or Σ w l.

    The first two omit the first order of l, which cancels, as Σ w = 1 and Σ w e^(∓l) = 1, the masses of both laws. For
    large losses, where e^(∓l) is large and w small, Σ w l is more accurate. The one of smaller error is returned.
    """
    sign = -1.0 if way == "remove" else 1.0
    rough = (_rough(nodes.weights) + nodes.rough * np.abs(nodes.weights)) * UNIT
    plain = nodes.weights * nodes.losses
    found = complex(plain.sum()), float(rough @ np.abs(nodes.losses))
    if nodes.summed:
        return found
    second = _less_linear(sign * nodes.losses)
    terms = nodes.weights * second
    turned = abs(terms[::2].sum() - terms[1::2].sum()) ** 2 / max(float(np.abs(terms).sum()), _TINY)
    error = float(rough @ (np.abs(second) + np.abs(nodes.losses * (second + sign * nodes.losses)))) + turned
    return (complex(-sign * terms.sum().real), error) if error < found[1] else (complex(found[0].real), found[1])


def _rough(weights: Complex) -> Floats:
    """About the rounding errors of the weights over UNIT: they are exponentials of rounded numbers."""
    size: Floats = np.abs(weights)
    found: Floats = size * (1 + np.abs(np.log(size + _TINY)))
    return found


def _less_linear(v: Complex) -> Complex:
    """e^v − 1 − v with relative digits."""
    small = np.abs(v) < 0.3
    u = np.where(small, v, 0)
    series = np.zeros_like(u)
    for k in range(13, 1, -1):
        series = (series + 1 / math.factorial(k)) * u
    found: Complex = np.where(small, series * u, _complex.expm1(v) - v)
    return found


def moments(zeta: Complex, nodes: Nodes, first: tuple[complex, float]) -> Moments:
    """M − 1 = bζ + Σ w (e^(ζl) − 1 − ζl) at ascending |ζ|, by the nodes in s; `first` is b and its error."""
    weights, losses = nodes.weights, nodes.losses
    top = float(np.abs(zeta[-1]))
    far = np.abs(losses) * top > _NEAR
    wf, lf, wn, ln = weights[far], losses[far], weights[~far], losses[~far]
    work = len(zeta) * (len(wf) + 8)
    spend(work if work < _CACHED else 5 * work)
    real = np.multiply.outer(zeta.real, lf.real) - np.multiply.outer(zeta.imag, lf.imag)
    angle = np.multiply.outer(zeta.imag, lf.real) + np.multiply.outer(zeta.real, lf.imag)
    heavy = np.abs(wf) > _TINY
    level = np.where(heavy, real + np.log(np.where(heavy, np.abs(wf), 1.0)), -math.inf)
    steep = ((real > _HIGHEST) & (level > _NOTHING)).any(axis=1)  # there e^(ζl) overflows, and w is not negligible
    level = level[steep]
    np.minimum(real, _HIGHEST, out=real)
    size, turned = np.exp(real), _complex.turn(angle)
    risen = size * turned
    risen += np.expm1(real)
    sign = np.where(np.arange(len(weights)) % 2, -1.0, 1.0)  # Σ ± w ...: even less odd nodes, half of S_h − S_2h
    both = np.stack([weights, weights * sign], axis=1)
    centred = top * float(np.abs(weights * losses).sum()) < 1.0  # then the first order is b's; else it does not matter
    order = np.arange(1, _TERMS)
    terms = (np.cumprod(np.multiply.outer(ln * top, np.ones(len(order))) / order, axis=1).T @ both[~far]).T
    pull = losses[far] @ both[far]
    if centred:
        terms[:, 0] = top * (first[0] - pull[0]), -top * pull[1]
    powers = np.cumprod(np.multiply.outer(zeta / top, np.ones(len(order))), axis=1)
    h, alternate = (risen @ both[far] + powers @ terms.T).T
    rough = _rough(weights) + nodes.rough * np.abs(weights)
    rough_far, rough_near = rough[far], rough[~far]
    modulus = np.abs(zeta)
    sizes = np.abs(risen) @ rough_far + modulus**2 * float(rough_near @ np.abs(ln) ** 2)
    if centred:
        sizes += modulus * (float(rough_far @ np.abs(lf)) + first[1] / UNIT)
    phases = (size * (np.abs(real) + np.abs(angle))) @ np.abs(wf) * nodes.rough
    log, one = _complex.log1p(h), np.abs(1 + h)
    low = one < 0.3
    if low.any():  # 1 + h has lost digits that Σ w e^(ζl) has
        direct = (size[low] * (1 + turned[low])) @ wf + _complex.exp(np.multiply.outer(zeta[low], ln)) @ wn
        log[low] = np.log(direct + _TINY)
        one = np.where(low, np.exp(log.real), one)
        sizes = np.where(low, size @ rough_far + float(rough_near.sum()), sizes)
    one = np.maximum(one, _TINY)
    rounding = UNIT * (sizes + phases) / one
    aliasing = np.zeros(len(zeta)) if nodes.summed else np.abs(alternate) ** 2 / np.maximum(sizes, _TINY) / one
    if steep.any():  # log Σ w e^(ζl) by terms that are scaled, next to which the other losses' part is nothing
        peak = level.max(axis=1)
        scaled = np.exp(level - peak[:, None])
        units = (both[far].T / np.maximum(np.abs(wf), _TINY)).T
        summed, alternates = ((scaled * (1 + turned[steep])) @ units).T
        log[steep], mass = peak + np.log(summed + _TINY), np.maximum(np.abs(summed), _TINY)
        loose = scaled @ (rough_far / np.maximum(np.abs(wf), _TINY))
        rounding[steep] = (
            UNIT * (loose + (scaled * (np.abs(level) + np.abs(angle[steep]))).sum(axis=1) * nodes.rough) / mass
        )
        aliasing[steep] = 0.0 if nodes.summed else np.abs(alternates) ** 2 / np.maximum(loose, _TINY) / mass
    second = (weights * losses**2).sum()
    third = h - first[0] * zeta - second * zeta**2 / 2
    if centred:
        kept = terms[0].copy()
        kept[:2] = -top * pull[0], -(top**2) * (wf * lf**2).sum() / 2
        third = risen @ wf + powers @ kept
        sizes = (
            modulus**3 * float(rough_near @ np.abs(ln) ** 3) + (np.abs(risen) + np.abs(real + 1j * angle)) @ rough_far
        )
        sizes += modulus**2 * float(rough_far @ np.abs(lf) ** 2)
    return Moments(h, log, rounding, aliasing, second, third, UNIT * (sizes + phases) / one)


@dataclass(frozen=True)
class Part:
    """A mechanism in one direction, and how often it happens."""

    release: Release
    count: int


@dataclass(frozen=True)
class Setup:
    """The integrand of a path: log M = gaussian·ζ(ζ ± 1)/2 + Σ count · log M_i, and what is subtracted from M.

    In the direction remove that may be 1, whose integral closes to the right and is 0, and then also each mechanism's
    count · (M_i − 1), whose integral is count · δ_i(ε). With `smooth` the normal law of the same mean and variance is
    taken off as well (less its own first order, where each mechanism's is): its δ is known.
    """

    parts: tuple[Part, ...]
    gaussian: float
    way: Way
    taken: Taken = "nothing"
    smooth: bool = False

    @property
    def sign(self) -> int:
        """ζ = sign · z."""
        return 1 if self.way == "remove" else -1


@dataclass(frozen=True)
class Sum:
    """δ, −dδ/dε and a bound of δ's error at each of some ε, from one path."""

    delta: Floats
    fall: Floats
    error: Floats


@dataclass(frozen=True)
class Path:
    """Nodes on a hyperbola ζ = c₁ + μ sin(α + iv), v = 0, h, 2h, ...: M less what is taken is e^`scale` · `grown`."""

    crossing: float
    zeta: Complex
    weight: Complex  # h/π · (dζ/dv)/i / (ζ(ζ ± 1)), half of it at v = 0
    scale: Floats
    grown: Complex
    error: Floats  # of grown
    sign: int
    step: float
    taken: Taken
    normal: tuple[float, float] | None = None  # mean and variance of the loss whose normal law was taken off

    def at(self, epsilons: Floats) -> Sum:
        """δ at these ε, those next to the one that the path was laid for."""
        spend(len(epsilons) * len(self.zeta))
        exponent = self.scale - np.multiply.outer(self.sign * epsilons, self.zeta)
        shift = exponent.real.max(axis=1)
        turned = _complex.exp(exponent - shift[:, None])
        pulled = np.abs(turned) * np.abs(self.weight)
        terms = turned * (self.weight * self.grown)
        sizes = pulled * np.abs(self.grown)
        total, every_other = terms.real.sum(axis=1), 2 * terms.real[:, ::2].sum(axis=1)
        fall = self.sign * (terms * self.zeta).real.sum(axis=1)
        whole = sizes.sum(axis=1)
        aliasing = 4 * (total - every_other) ** 2 / np.maximum(whole, _TINY) + math.exp(-_ALIAS[self.taken]) * whole
        phases = (
            4 + np.abs(self.scale) + 2 * np.multiply.outer(epsilons, np.abs(self.zeta))
        )  # of which rounding is part
        rounding = pulled @ self.error + UNIT * (sizes * phases).sum(axis=1)
        rest = (np.abs(turned[:, -3:]) * np.abs(self.grown[-3:])).max(axis=1) / abs(self.zeta[-1])
        back = np.exp(np.minimum(shift, 700.0))
        found = Sum(total * back, fall * back, (aliasing + rounding + rest + _FLOOR * np.abs(total)) * back)
        if self.normal is None:
            return found
        delta, slope = _normal_delta(epsilons, *self.normal)
        error = _FLOOR * delta * (1 + epsilons**2 / self.normal[1])
        return Sum(found.delta + delta, found.fall + slope, found.error + error)


@cache
def _legendre() -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(12)
    return np.asarray(nodes, np.float64), np.asarray(weights, np.float64)


def _normal_delta(epsilons: Floats, mean: float, variance: float) -> tuple[Floats, Floats]:
    """E (1 − e^(ε−L))₊ and E e^(ε−L) [L > ε] of a normal loss.

    φ(a) ∫ (1 + tΦ(t)/φ(t)) dt from a − √v to a = (m − ε)/√v, whose integrand is positive, and φ(a) (Φ/φ)(a − √v).
    """
    from scipy.special import erfcx

    deviation = math.sqrt(variance)
    a = (mean - epsilons) / deviation
    nodes, weights = _legendre()
    t = a[:, None] - deviation * (1 - nodes) / 2
    density = np.exp(-a * a / 2) / math.sqrt(2 * math.pi)

    def mills(at: Floats) -> Floats:
        return np.asarray(erfcx(-at / math.sqrt(2)) * math.sqrt(math.pi / 2))

    if deviation > 1:  # there the difference keeps its digits, and few nodes would not reach over so wide a range
        return density * (mills(a) - mills(a - deviation)), density * mills(a - deviation)
    delta = density * ((1 + t * mills(t)) @ weights) * deviation / 2
    return delta, density * mills(a - deviation)


def path(
    setup: Setup, crossing: float, reach: float, epsilon: float, scale: float = 1.0, steepest: float = math.inf
) -> Path:
    """The path that crosses at |ζ| = `crossing` in a strip of ±`reach` there, for δ at and next to `epsilon`.

    The strip's edges open no wider than `steepest`.

    `scale` other than 1, up to 1.1, gives another path of the same quality, with other nodes in ζ and in s.
    """
    sign = setup.sign
    taken = [(part, part.release.nodes(sign * crossing, scale)) for part in setup.parts]
    sets = [(part.count, nodes, first_order(nodes, setup.way)) for part, nodes in taken]
    normal = _normal(sets) if setup.smooth else None
    if normal is not None and not normal[1] > 0:  # no bulk among the nodes
        setup, normal = replace(setup, smooth=False), None
    slope = min([_STEEPEST, steepest, *(_SHARE * _opening(part.release, nodes, setup.way) for part, nodes in taken)])
    alpha = 0.5 * math.atan(max(slope, _FLATTEST)) * scale
    mu = reach / math.sin(alpha)
    if setup.way == "add":  # the strip's edge on the right stays left of the pole at 0
        mu = min(mu, _SHARE * crossing / (math.sin(2 * alpha) - math.sin(alpha)))
    elif setup.taken == "nothing":  # that on the left stays right of it
        mu = min(mu, _SHARE * crossing / math.sin(alpha))
    start = sign * crossing - mu * math.sin(alpha)
    step = 2 * math.pi * alpha / (_ALIAS[setup.taken] + 1.5 * scale)

    def laid(v: Floats) -> tuple[Row, Floats]:
        """Nodes, with the logs of the sizes of their terms: −∞ where a term has no digits, and is left to the rest."""
        angle = alpha + 1j * v
        zeta = start + mu * np.sin(angle)
        weight = step / math.pi * mu * np.cos(angle) / (zeta * (zeta + sign))
        height, grown, error = _integrand(setup, sets, zeta)
        logs = height + np.log(np.abs(grown) + _TINY) - sign * epsilon * zeta.real + np.log(np.abs(weight))
        valid = np.isfinite(logs) & (error < np.abs(grown)) & (np.abs(zeta) < _LARGEST * crossing)
        return (zeta, weight, height, grown, error), np.where(valid, logs, -math.inf)

    chunk = max(16, min(_CHUNK, _CELLS // max(sum(len(nodes.weights) for _, nodes, _ in sets), 1) & ~1))
    comes_back = setup.taken == "nothing" or setup.smooth  # else what is left of M falls like 1/|ζ|² anyway
    zeta, weight, height, grown, error = walk(laid, step, chunk, slope if comes_back else None)
    weight[0] /= 2
    return Path(crossing, zeta, weight, height, grown, error, sign, step, setup.taken, normal)


def walk(laid: Callable[[Floats], tuple[Row, Floats]], step: float, chunk: int, slope: float | None) -> Row:
    """Nodes at v = 0, `step`, ... until three terms in a row are e^−36 below the largest; `laid` has rows and logs.

    Where all losses are close to multiples of one number, |M| grows again further up. So terms further up are tested
    before the end, in finer steps where `slope`, that of the strip's edge, is small (None: no test).
    """
    pieces: list[Row] = []
    count, top, ended = 0, -_LARGEST, False
    while count < _MOST_NODES and not ended:
        piece, logs = laid(step * np.arange(count, count + chunk, dtype=np.float64))
        top = max(top, float(logs.max()))
        small = logs < top - _END
        over = np.flatnonzero(small[2:] & small[1:-1] & small[:-2])
        end = max(int(over[0]), 0 if pieces else 4) if len(over) else chunk
        ended = len(over) > 0
        if ended and slope is not None:
            ratio = _COARSE if slope > _FLAT else _CLOSE
            further = np.sinh(step * (count + end)) * ratio ** np.arange(2.0, math.log(_AHEAD, ratio))
            ended = bool((laid(np.asarray(np.arcsinh(further)))[1] < top - _END).all())
        pieces.append(tuple(row[: end if ended else chunk] for row in piece))  # type: ignore[arg-type]
        count += chunk
    return tuple(np.concatenate(rows) for rows in zip(*pieces, strict=True))  # type: ignore[return-value]


def _normal(sets: Sequence[tuple[int, Nodes, tuple[complex, float]]]) -> tuple[float, float]:
    """The mean and the variance about b of the composition's loss, as the nodes have them."""
    means = [count * first[0].real for count, _, first in sets]
    squares = [count * float((nodes.weights * nodes.losses**2).sum().real) for count, nodes, _ in sets]
    return math.fsum(means), math.fsum(squares)


def _opening(release: Release, nodes: Nodes, way: Way) -> float:
    """The largest slope of a path's edge for which e^(ζl) is bounded on it: the least Im l / (Re l − e), condition (W).

    e is 0 in the direction remove and inf l in the direction add (docs/exact.md, section 2).
    """
    over = nodes.losses.real - (release.lowest if way == "add" else 0.0)
    up = over > _TINY
    if nodes.summed or not up.any():
        return math.inf
    return float((nodes.losses.imag[up] / over[up]).min())


def _integrand(
    setup: Setup, sets: Sequence[tuple[int, Nodes, tuple[complex, float]]], zeta: Complex
) -> tuple[Floats, Complex, Floats]:
    """M at ζ less what is taken off, as e^height · grown; the error of grown."""
    log = setup.gaussian * zeta * (zeta + setup.sign) / 2
    noise = UNIT * np.abs(log)
    linear, bent = np.zeros_like(zeta), np.zeros_like(zeta)
    each = [(count, moments(zeta, nodes, first)) for count, nodes, first in sets]
    for count, one in each:
        log = log + count * one.log
        noise = noise + count * (one.rounding + one.aliasing)
        if setup.taken == "each" or setup.smooth:
            linear = linear + count * one.h
            bent = bent + count * _log1p_less(one.h, one.log)
    noise = np.fmin(noise + 2 * UNIT * np.abs(log), _LOST)
    height = np.maximum(log.real, 0.0)
    if setup.taken == "nothing":
        height = log.real
        grown = _complex.exp(log - height)
        return height, grown, np.abs(grown) * noise
    if setup.smooth:
        mean, variance = _normal(sets)
        return _less_normal(setup.taken, each, mean * zeta + variance * zeta**2 / 2, bent, log, noise)
    shrunk = np.exp(-height)
    if setup.taken == "each":  # (e^x − 1 − x) + (x − Σ count h)
        grown = shrunk * (_less_linear(log) + bent)
        risen = np.abs(_complex.exp(log - height)), np.abs(_complex.expm1(log)) * shrunk
        small = np.abs(log) < 1  # there an error of h is one of h² / 2; elsewhere the two terms have their own
        error = np.where(small, noise * (risen[1] + np.abs(linear)), noise * risen[0]) + 8 * UNIT * np.abs(
            np.where(small, log**2, shrunk * linear)
        )
        return height, grown, error
    grown = np.where(height > 1, _complex.exp(log - height) - shrunk, shrunk * _complex.expm1(log))
    return height, grown, noise * np.abs(_complex.exp(log - height))


def _less_normal(
    taken: Taken, each: Sequence[tuple[int, Moments]], base: Complex, bent: Complex, log: Complex, noise: Floats
) -> tuple[Floats, Complex, Floats]:
    """e^x − e^y, x the `log` of M and y the `base`, mζ + vζ²/2 of the normal law, or (e^x − 1 − Σ count h) −
    (e^y − 1 − y), by d = x − y.

    An error of m or v is the same in x and y: it only changes which normal law is subtracted.
    """
    third, rough = np.zeros_like(base), np.zeros(len(base))
    for count, one in each:
        third = third + count * one.third
        rough = rough + count * (one.third_rounding + one.aliasing + (one.rounding + 8 * UNIT) * np.abs(one.h))
    apart = third + bent
    small = np.abs(apart) < 0.5
    less = np.where(small, apart, 0)
    risen, whole = _complex.expm1(less), _complex.exp(base)
    far = _complex.exp(log) - whole
    if taken == "one":
        near, scale = whole * risen, np.abs(whole)
    else:
        near = _complex.expm1(base) * risen + _less_linear(less) + bent
        far = far - third
        scale = np.abs(_complex.expm1(base)) + np.abs(less)
    rough = np.fmin(rough, _LOST)
    error = np.where(
        small,
        rough * scale + 8 * UNIT * (np.abs(less) * scale + np.abs(bent)),
        noise * np.abs(_complex.exp(log)) + 8 * UNIT * (np.abs(whole) * (1 + np.abs(base)) + np.abs(third)),
    )
    return np.zeros(len(base)), np.where(small, near, far), error


def _log1p_less(h: Complex, log: Complex) -> Complex:
    """log(1 + h) − h with relative digits."""
    small = np.abs(h) < 0.1
    u = np.where(small, h, 0)
    series = np.zeros_like(u)
    for k in range(17, 1, -1):
        series = (series - (-1) ** k / k) * u
    found: Complex = np.where(small, series * u, log - h)
    return found
