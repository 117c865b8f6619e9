"""Mathematics that the judges of several papers need, each from its definition.

| | |
| --- | --- |
| settings of judges | `by_rows` |
| in doubles | `gaussian_delta`, `mu_at`, `gaussian_error`, `log_moment`, `moments_epsilon` |
| in mpmath, at the precision in force | `normal_mass`, `hockey_stick`, `moment_integral` |
| judges for several papers | `clip_line`, `gaussian_noise`, `expected_draws` |
| in Arb balls | `upper_tail`, `ends`, `enclosed_delta` |
| by the project's accountants | `true_curve`, `accounted_curve`, `interval` |
| a number by two routes against another | `compared` |
| by bisection | `largest` |

A mechanism's noise multiplier is `sigma`, its sampling rate `rate`, an order of a Rényi divergence `order`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import mpmath
import numpy as np
from flint import arb
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp, ndtr, ndtri, xlog1py, xlogy

from dpbench.events import Composition, SampledGaussian
from dpbench.judging.claims.judges import Shown, formula, grid, inequality
from dpbench.privacy.accounting import load_accountant
from dpbench.privacy.answers import Estimate
from dpbench.privacy.certified import certify

Real = Any  # an mpmath number
Ball = Any  # an Arb ball


def by_rows(names: str, *values: Sequence[Any]) -> list[dict[str, Any]]:
    """Settings of a judge, row by row.

    >>> by_rows("mu rate", (1, "0.1"), (2, "0.2"))
    [{'mu': 1, 'rate': '0.1'}, {'mu': 2, 'rate': '0.2'}]
    """
    return [dict(zip(names.split(), one, strict=True)) for one in values]


# ---- normal distributions ----


def normal_mass(low: Real, high: Real, mean: Real = 0, deviation: Real = 1) -> Real:
    """The probability that N(mean, deviation²) gives to an interval, integrated; beyond 30 deviations it is < 1e-190.

    >>> abs(float(normal_mass(-1, 1)) - math.erf(math.sqrt(0.5))) < 1e-15
    True
    """
    low, high = max(low, mean - 30 * deviation), min(high, mean + 30 * deviation)
    if high <= low:
        return mpmath.mpf(0)
    inside = [mean + share * deviation for share in (-8, -3, 0, 3, 8) if low < mean + share * deviation < high]
    return mpmath.quad(lambda x: mpmath.npdf(x, mean, deviation), [low, *inside, high])


def gaussian_error(level: float, mu: float) -> float:
    """G_μ(α) = Φ(Φ^{-1}(1 − α) − μ): the least type II error for N(0, 1) against N(μ, 1).

    >>> round(gaussian_error(0.05, 0.0), 12)
    0.95
    """
    return float(ndtr(-ndtri(level) - mu))


def hockey_stick(epsilon: Real, mu: Real) -> Real:
    """∫ (dN(μ, 1) − e^ε dN(0, 1))₊, integrated: the difference of the densities is positive beyond ε/μ + μ/2."""
    start = epsilon / mu + mu / 2
    width = 1 / (1 + abs(start - mu))
    points = [start + width * share for share in (0, 1, 4, 10, 30, 90)]
    return mpmath.quad(lambda x: mpmath.npdf(x, mu, 1) - mpmath.exp(epsilon) * mpmath.npdf(x), points)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """δ at ε of N(μ, 1) against N(0, 1) in closed form, with 30 digits where the two terms cancel.

    >>> round(gaussian_delta(0.0, 1.0), 6)
    0.382925
    """
    with mpmath.workdps(30):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return float(mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2))


def mu_at(epsilon: float, delta: float) -> float:
    """The μ of which δ at ε is `delta`.

    >>> round(mu_at(0.0, 0.3829249225), 6)
    1.0
    """
    target = math.log(delta)
    low = epsilon / 36 + 1e-3
    return float(brentq(lambda mu: math.log(gaussian_delta(epsilon, mu)) - target, low, 50.0, xtol=1e-13))


# ---- moments of the Poisson-sampled Gaussian ----


@cache
def log_moment(rate: float, sigma: float, order: int) -> float:
    """log E_Q[(P/Q)^α] for P = (1 − q) N(0, σ²) + q N(1, σ²), Q = N(0, σ²) and a whole α: the binomial sum."""
    k = np.arange(order + 1)
    choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    return float(logsumexp(choose + xlogy(k, rate) + xlog1py(order - k, -rate) + k * (k - 1) / (2 * sigma**2)))


@cache
def moments_epsilon(rate: float, sigma: float, steps: int, delta: float, sharp: bool = False) -> tuple[float, int]:
    """min over whole orders α from 2 to 256 of (T·A_α + log 1/δ)/(α − 1), A_α = `log_moment`, and the best α.

    `sharp`: by the conversion of Canonne, Kamath and Steinke 2020, which is smaller.

    >>> moments_epsilon(0.01, 1.0, 1000, 1e-5)[0] > moments_epsilon(0.01, 1.0, 1000, 1e-5, sharp=True)[0]
    True
    """

    def at(order: int) -> float:
        less = (order - 1) * math.log1p(-1 / order) - math.log(order) if sharp else 0.0
        return (steps * log_moment(rate, sigma, order) - math.log(delta) + less) / (order - 1)

    return min((at(order), order) for order in range(2, 257))


def moment_integral(rate: Real, sigma: Real, order: Real, less_one: bool = False) -> Real:
    """E_Q[(P/Q)^α] as `log_moment` has it, integrated, for any α > 1; `less_one`: less 1, without cancellation.

    >>> abs(float(mpmath.log(moment_integral(0.1, 2.0, 3))) - log_moment(0.1, 2.0, 3)) < 1e-14
    True
    """
    q, s, a = map(mpmath.mpf, (rate, sigma, order))

    def term(x: Real) -> Real:  # x in deviations
        power = a * mpmath.log1p(q * mpmath.expm1(x / s - 1 / (2 * s * s)))
        return mpmath.npdf(x) * (mpmath.expm1(power) if less_one else mpmath.exp(power))

    points = {-12, -4, 0, 2 / s, 2 / s + 4, 2 / s + 12, a / s, a / s + 4, a / s + 14}
    return mpmath.quad(term, sorted(map(mpmath.mpf, points)))


# ---- balls ----


def upper_tail(x: Ball) -> Ball:
    """P(N(0, 1) > x) of a ball, at the precision in force."""
    return (arb(x) / arb(2).sqrt()).erfc() / 2


def ends(ball: Ball) -> tuple[float, float]:
    """Doubles below and above a ball."""
    return math.nextafter(float(ball.lower()), -math.inf), math.nextafter(float(ball.upper()), math.inf)


def enclosed_delta(releases: Composition, epsilon: float, digits: int = 4) -> tuple[float, float]:
    """Both ends of the certified δ at ε."""
    found = certify(releases, epsilon=epsilon, digits=digits)
    return found.lower, found.upper


# ---- the truth, and what papers account with ----


@cache
def true_curve(releases: Composition) -> Any:
    """The curve of a composition by `exact`: the larger of both directions."""
    return load_accountant("exact").curve(releases)


@cache
def accounted_curve(accountant: str, rate: float, sigma: float, count: float) -> Any:
    """The curve by `moments` or `gdp_clt` of sampled Gaussian releases, whose number need not be whole."""
    found: Any = load_accountant(accountant)
    return found.curve_for(SampledGaussian(rate, sigma), count)


def interval(found: Estimate) -> tuple[float, float]:
    """Both ends of an estimate; the value itself for an end that is not stated."""
    lower, upper = (float(found.value if end is None else end) for end in (found.lower, found.upper))
    return lower, upper


def sampled(rate: float, sigma: float, count: int) -> Composition:
    """`count` Poisson-sampled Gaussian releases."""
    return Composition(((SampledGaussian(rate, sigma), count),))


# ---- clipping ----


def clipped(gradient: Sequence[float], bound: float) -> list[float]:
    """The line that DP-SGD prints: v / max {1, ‖v‖/R}."""
    norm = math.hypot(*gradient)
    return [x / max(1.0, norm / bound) for x in gradient]


@inequality(
    domain={"x": (-1000, 1000), "y": (-10, 10), "bound": (0.1, 10, "log")},
    settings=by_rows("x y bound", (3.0, 4.0, 1.5), (0.3, -0.1, 1.0), (9.0, -9.0, 5.0)),
    control={"each": True},
    tolerance=1e-14,
)
def clip_line(x: float, y: float, bound: float, each: bool = False) -> float:
    """R less the norm after clipping, relative to R; below 0 where a gradient within R is changed.

    The control clips every coordinate at R.
    """
    result = [max(-bound, min(bound, v)) for v in (x, y)] if each else clipped((x, y), bound)
    return -1.0 if math.hypot(x, y) <= bound and result != [x, y] else 1 - math.hypot(*result) / bound


# ---- the noise of the Gaussian mechanism ----


@inequality(
    domain={"epsilon": (1e-3, 1, "log"), "delta": (1e-12, 0.99, "log"), "rounds": (1, 5000, "whole")},
    settings=grid(epsilon=[0.0025, 0.39, 0.75], delta=[1e-5], rounds=[1, 100]),
    control={"two": 1},
    tolerance=1e-9,
    obligations=[
        "epsilon at most 1 (Dwork and Roth, Theorem A.1), one noisy release per round",
        "the deviation is absolute, for an l2 sensitivity of 1",
    ],
    examples=80,
    pair="N(1, σ²) and N(0, σ²)",
)
def gaussian_noise(epsilon: float, delta: float, rounds: int = 1, two: int = 2) -> float:
    """(δ − the true δ)/δ for R releases with σ = sqrt(2 ln(1.25/δ))/ε for (ε/R, δ/R), one with noise σ/sqrt(R)."""
    noise = math.sqrt(two * math.log(1.25 * rounds / delta)) * rounds / epsilon / math.sqrt(rounds)
    return 1 - gaussian_delta(epsilon, 1 / noise) / delta


# ---- how often a record is drawn ----


@formula(
    settings=by_rows(
        "batch records steps",
        *((256, 60000, 3516), (512, 25000, 440), (256, 29305, 2061)),
        *((256, 60000, 40), (64, 10000, 156)),
    ),
    control={"at_least_once": True},
)
def expected_draws(batch: int, records: int, steps: int, at_least_once: bool = False) -> tuple[Any, Any]:
    """T · batch / n, and Σ k C(T, k) p^k (1 − p)^(T − k) with p counted over all batches of one size.

    For Poisson batches p is batch / n by definition, which is the same.
    """
    share, p = mpmath.mpf(batch) / records, mpmath.mpf(math.comb(records - 1, batch - 1)) / math.comb(records, batch)
    chances = (k * mpmath.binomial(steps, k) * p**k * (1 - p) ** (steps - k) for k in range(steps + 1))
    return 1 - (1 - share) ** steps if at_least_once else steps * share, mpmath.fsum(chances)


# ---- two routes, and halving ----


_RELATIONS = {"<=": operator.le, "==": operator.eq, ">=": operator.ge}


def compared(relation: str, of: str, routes: Mapping[str, Any], to: Mapping[str, Any]) -> Shown:
    """Whether a number, by some routes, is <=, == or >= another one; undecided where routes differ by 1e-9 of it.

    >>> compared("<=", "the error", {"exact": 3, "again": 3.0}, {"the bound": 2}).reason
    'the error is 3, the bound is 2'
    >>> compared("==", "one", {"exact": 1, "again": 2}, {"two": 2}).holds is None
    True
    """
    value, ((name, limit),) = next(iter(routes.values())), to.items()
    numbers = {route: float(number) for route, number in routes.items()}
    agree = all(abs(number - float(value)) <= 1e-9 * abs(float(value)) for number in numbers.values())
    words = [str(number) if len(str(number)) < 12 else f"{float(number):.6g}" for number in (value, limit)]
    holds = bool(_RELATIONS[relation](value, limit)) if agree else None
    return Shown(holds, f"{of} is {words[0]}, {name} is {words[1]}", float(value), {name: float(limit)}, numbers)


def largest(fits: Callable[[Any], bool], low: Any, high: Any, halvings: int = 160) -> Any:
    """The largest number that fits, between `low`, which does, and `high`, by bisection; `high` if that fits as well.

    >>> round(largest(lambda x: x * x <= 2, 0.0, 2.0), 12)
    1.414213562373
    """
    if fits(high):
        return high
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
