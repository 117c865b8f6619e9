"""Trade-off functions: Propositions 4.1 to 4.5, B.1, B.2, Corollaries B.1 and B.2, equation (2) of jl2021.

Discrete pairs are judged exactly, with fractions: T(P || Q)(α) is the least type II error among the tests of level α,
reached by rejecting the outcomes with the largest Q/P first and the last of them by a coin. Gaussian pairs are judged
by integrals of their densities.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range

Law = Sequence[Fraction]
HALF = Fraction(1, 2)


def least_error(first: Sequence[Any], second: Sequence[Any], level: Any) -> Any:
    """T(first || second)(level) of two laws on the same outcomes."""
    order = sorted(
        range(len(first)), key=lambda k: (first[k] == 0 and -1, first[k] / second[k] if second[k] else 1e300)
    )
    left, error = level, second[0] * 0 + 1
    for k in order:
        if first[k] <= left:
            left, error = left - first[k], error - second[k]
        else:
            return error - second[k] * left / first[k]
    return error


def laws(a: float, b: float, c: float, d: float) -> tuple[list[Fraction], list[Fraction]]:
    """Two laws on three outcomes from four shares, in exact fractions."""
    made = []
    for one, two in ((a, b), (c, d)):
        first = Fraction(one).limit_denominator(1000)
        rest = (1 - first) * Fraction(two).limit_denominator(1000)
        made.append([first, rest, 1 - first - rest])
    return made[0], made[1]


LEVELS = tuple(Fraction(k, 7) for k in range(8))
SHARES = {name: Range(0.02, 0.98) for name in "abcd"}
SHARES_OF_A_CHANNEL = {"u": Range(0.0, 1.0), "v": Range(0.0, 1.0), "w": Range(0.0, 1.0)}
SOME = {"a": 0.5, "b": 0.6, "c": 0.2, "d": 0.3}


def _through(law: Law, u: float, v: float, w: float) -> list[Fraction]:
    """A randomized map of three outcomes to two."""
    chances = [Fraction(x).limit_denominator(1000) for x in (u, v, w)]
    one = sum((p * x for p, x in zip(law, chances, strict=True)), Fraction(0))
    return [one, 1 - one]


def _post_processed(a: float, b: float, c: float, d: float, u: float, v: float, w: float, other: float = 0.0) -> float:
    """Least T(M(X), M(Y)) − T(X, Y) over levels; with `other` the channel applied to Y is another than that of X."""
    p, q = laws(a, b, c, d)
    x, y = _through(p, u, v, w), _through(q, *(share + (1 - share) * other for share in (u, v, w)))
    return float(min(least_error(x, y, level) - least_error(p, q, level) for level in LEVELS))


proposition_4_2 = Inequality(
    _post_processed,
    {**SHARES, **SHARES_OF_A_CHANNEL},
    ({**SOME, "u": 1.0, "v": 0.5, "w": 0.0},),
    twin=lambda **point: _post_processed(**point, other=0.3),
    tolerance=1e-12,
    obligations=("a test of M(X) against M(Y) is a randomized test of X against Y with the same two errors",),
    examples=30,
)


def _joint(a: float, b: float, c: float, d: float, u: float, v: float, w: float, leak: float) -> float:
    """−largest |T(X₁, Y₁ || X₂, Y₂) − T(Y₁ || Y₂)|; `leak` shifts the second conditional law."""
    p, q = laws(a, b, c, d)
    chances = [Fraction(x).limit_denominator(1000) for x in (u, v, w)]
    moved = [x + (1 - x) * Fraction(leak).limit_denominator(1000) for x in chances]
    one = [y * z for y, x in zip(p, chances, strict=True) for z in (x, 1 - x)]
    two = [y * z for y, x in zip(q, moved, strict=True) for z in (x, 1 - x)]
    return -float(max(abs(least_error(one, two, level) - least_error(p, q, level)) for level in LEVELS))


proposition_4_3 = Inequality(
    lambda **point: _joint(**point, leak=0.0),
    {**SHARES, **SHARES_OF_A_CHANNEL},
    ({**SOME, "u": 0.9, "v": 0.5, "w": 0.1},),
    twin=lambda **point: _joint(**point, leak=0.2),
    tolerance=1e-12,
    obligations=("post-processing one way by forgetting X, the other way by drawing X from its law given Y",),
    examples=30,
)


def _product(first: Law, second: Law) -> list[Fraction]:
    return [x * y for x in first for y in second]


def _composed(a: float, b: float, c: float, d: float, u: float, split: float) -> float:
    """−largest difference of T(P×R || Q×S) when (P, Q) is replaced by another pair with the same trade-off, or the
    order changes, or a factor Id is added. R, S are coins of bias u and 1/2; the other pair splits the outcomes."""
    p, q = laws(a, b, c, d)
    share, coin = Fraction(split).limit_denominator(1000), Fraction(u).limit_denominator(1000)
    r, s = [coin, 1 - coin], [HALF, HALF]
    other_p = [x * y for x in reversed(p) for y in (share, 1 - share)]
    other_q = [x * y for x in reversed(q) for y in (share, 1 - share)]
    worst = Fraction(0)
    for level in LEVELS:
        true = least_error(_product(p, r), _product(q, s), level)
        for left, right in (
            (_product(other_p, r), _product(other_q, s)),
            (_product(r, p), _product(s, q)),
            (_product(_product(p, r), [share, 1 - share]), _product(_product(q, s), [share, 1 - share])),
        ):
            worst = max(worst, abs(least_error(left, right, level) - true))
    return -float(worst)


def _composed_twin(a: float, b: float, c: float, d: float, u: float, split: float) -> float:
    """The false version: the composition is the product of the trade-off functions."""
    p, q = laws(a, b, c, d)
    coin = Fraction(u).limit_denominator(1000)
    r, s = [coin, 1 - coin], [HALF, HALF]
    gaps = (
        abs(least_error(_product(p, r), _product(q, s), level) - least_error(p, q, level) * least_error(r, s, level))
        for level in LEVELS[1:]
    )
    return -float(max(gaps)) * (0 * split + 1)


proposition_4_4 = Inequality(
    _composed,
    {**SHARES, "u": Range(0.05, 0.95), "split": Range(0.05, 0.95)},
    ({**SOME, "u": 0.8, "split": 0.3},),
    twin=_composed_twin,
    tolerance=1e-12,
    obligations=("a pair is equivalent, by post-processing both ways, to any other pair with its trade-off function",),
    examples=30,
)

_PAIRS = (
    ([Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)], [Fraction(1, 10), Fraction(1, 5), Fraction(7, 10)]),
    ([Fraction(1, 4), Fraction(1, 4), Fraction(1, 2)], [Fraction(1, 2), Fraction(1, 2), Fraction(0)]),
    ([Fraction(9, 10), Fraction(1, 10), Fraction(0)], [Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)]),
)
_RATES = (Fraction(256, 60000), Fraction(256, 50000), Fraction(256, 25000), Fraction(1, 2))
_SAMPLED = tuple(
    {"pair": pair, "rate": rate, "level": level}
    for pair in range(3)
    for rate in _RATES
    for level in (Fraction(1, 20), Fraction(1, 3), Fraction(1, 2), Fraction(4, 5))
)


def _mixture(pair: int, rate: Fraction, level: Fraction) -> Fraction:
    p, q = _PAIRS[pair]
    mixed = [(1 - rate) * x + rate * y for x, y in zip(p, q, strict=True)]
    return Fraction(least_error(p, mixed, level))


proposition_4_5 = Formula(
    lambda pair, rate, level: rate * least_error(*_PAIRS[pair], level) + (1 - rate) * (1 - level),
    _mixture,
    _SAMPLED,
    twin=lambda pair, rate, level: (1 - rate) * least_error(*_PAIRS[pair], level) + rate * (1 - level),
)


def _inverse(pair: int, rate: Fraction, level: Fraction) -> Fraction:
    """f^{-1}(level) = inf{t : f(t) <= level} for f = T(P || Q), by halving."""
    p, q = _PAIRS[pair]
    low, high = Fraction(0), Fraction(1) + 0 * rate
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if least_error(p, q, middle) <= level else (middle, high)
    return high


inverse = Formula(
    _inverse,
    lambda pair, rate, level: least_error(_PAIRS[pair][1], _PAIRS[pair][0], level) + 0 * rate,
    tuple(setting for setting in _SAMPLED if setting["rate"] == _RATES[0]),
    twin=lambda pair, rate, level: least_error(*_PAIRS[pair], level) + 0 * rate,
    scale=lambda **_: Fraction(1),
)


# ---- Gaussian pairs ----


def normal(x: Any, mean: Any = 0) -> Any:
    """The density of N(mean, 1)."""
    return mpmath.exp(-((x - mean) ** 2) / 2) / mpmath.sqrt(2 * mpmath.pi)


def mass(low: Any, high: Any, mean: Any = 0) -> Any:
    """∫ of that density."""
    low, high = mpmath.mpf(max(low, mean - 30)), mpmath.mpf(min(high, mean + 30))
    if low >= high:
        return mpmath.mpf(0)
    return mpmath.quad(lambda x: normal(x, mean), mpmath.linspace(low, high, 5))


def quantile(level: Any) -> Any:
    """Φ^{-1}."""
    return mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(level) - 1)


def g(mu: Any, level: Any) -> Any:
    """Φ(−μ − Φ^{-1}(α)) as Proposition B.2 prints it."""
    return mpmath.ncdf(-mu - quantile(level))


_THRESHOLDS = tuple({"mu": mu, "x": x} for mu in (0.05, 1 / 1.3, 1 / 0.6) for x in (-1.0, 2.5))
proposition_b_2 = Formula(
    lambda mu, x: g(mu, mass(x, mpmath.inf)),
    lambda mu, x: mass(-mpmath.inf, x, mu),  # the test {output > x} is the best one: Q/P grows with the output
    _THRESHOLDS,
    twin=lambda mu, x: mpmath.ncdf(mu - quantile(mass(x, mpmath.inf))),
    digits=10,
    precision=16,
)
proposition_b_2_other_form = Formula(
    lambda mu, x: mpmath.ncdf(-mu + quantile(1 - mass(x, mpmath.inf))),
    lambda mu, x: mass(-mpmath.inf, x, mu),
    _THRESHOLDS,
    twin=lambda mu, x: mpmath.ncdf(-mu + quantile(mass(x, mpmath.inf))),
    digits=10,
    precision=16,
)
corollary_b_1 = Inequality(
    lambda mu, less, level: float(g(mu * less, level) - g(mu, level)),
    {"mu": Range(0.0, 8.0), "less": Range(0.0, 1.0), "level": Range(0.001, 0.999)},
    ({"mu": 1 / 1.3, "less": 0.5, "level": 0.1},),
    twin=lambda mu, less, level: float(g(mu, level) - g(mu * less, level)) + 0.01,
    tolerance=1e-12,
    obligations=("G_μ(α) = Φ(−μ − Φ^{-1}(α)) falls in μ",),
    examples=80,
)
_PARAMETERS = tuple(
    {"mu": mu, "t": t, "which": which}
    for mu in (0.1, 1 / 1.3, 1 / 0.6)
    for t in (-2.0, 1.5)
    for which in ("alpha", "beta")
)


def _corollary(mu: float, t: float, which: str, sign: int = 1) -> Any:
    shift = -mpmath.mpf(t) / mu if which == "alpha" else mpmath.mpf(t) / mu
    return mpmath.ncdf(shift - sign * mpmath.mpf(mu) / 2)


def _errors(mu: float, t: float, which: str) -> Any:
    """The errors of the test that rejects where the log ratio μx − μ²/2 is at least t."""
    x = mpmath.mpf(t) / mu + mpmath.mpf(mu) / 2
    return mass(x, mpmath.inf) if which == "alpha" else mass(-mpmath.inf, x, mu)


corollary_b_2 = Formula(
    _corollary,
    _errors,
    _PARAMETERS,
    twin=lambda mu, t, which: _corollary(mu, t, which, sign=-1),
    digits=10,
    precision=16,
    scale=lambda **_: mpmath.mpf(1),
)


def _hockey_stick(mu: Any, epsilon: Any) -> Any:
    """∫ (N(μ, 1) − e^ε N(0, 1))₊, from where the integrand starts."""
    start = epsilon / mu + mu / 2
    return mpmath.quad(
        lambda x: normal(x, mu) - mpmath.exp(epsilon) * normal(x), mpmath.linspace(start, start + mu + 20, 4)
    )


def _dual(mu: float, level: float, sign: int = 1) -> Any:
    slope = mpmath.diff(lambda a: g(mu, a), level)
    return 1 - g(mu, level) + sign * level * slope


_DUALS = tuple({"mu": mu, "level": level} for mu in (1 / 1.3, 1 / 0.6) for level in (0.001, 0.2))
proposition_4_1 = Formula(
    _dual,
    lambda mu, level: _hockey_stick(mpmath.mpf(mu), mpmath.log(-mpmath.diff(lambda a: g(mu, a), level))),
    _DUALS,
    twin=lambda mu, level: _dual(mu, level, sign=-1),
    digits=9,
    precision=20,
    scale=lambda **_: mpmath.mpf(1),
)


def _equation_2(mu: float, t: float, sign: int = 1) -> Any:
    """1 − β + α β'/α' with the derivatives of α(t) and β(t)."""

    def error(which: str, s: Any) -> Any:
        return _corollary(mu, s, which)

    slope = mpmath.diff(lambda s: error("beta", s), t) / mpmath.diff(lambda s: error("alpha", s), t)
    return 1 - error("beta", t) + sign * error("alpha", t) * slope


_POSITIVE = tuple({"mu": mu, "t": t} for mu in (1 / 1.3, 1 / 0.6) for t in (0.0, 2.0))
equation_2 = Formula(
    _equation_2,
    lambda mu, t: _hockey_stick(mpmath.mpf(mu), mpmath.mpf(t)),
    _POSITIVE,
    twin=lambda mu, t: _equation_2(mu, t, sign=-1),
    digits=9,
    precision=20,
    scale=lambda **_: mpmath.mpf(1),
)


def _fixed_slope(mu: float) -> Any:
    """f'(α*) of G_μ, where α* = Φ(−μ/2)."""
    return mpmath.diff(lambda level: g(mu, level), mpmath.ncdf(-mpmath.mpf(mu) / 2))


slope_at_the_fixed_point = Formula(
    lambda mu: mpmath.mpf(0) * mu,
    _fixed_slope,
    tuple({"mu": mu} for mu in (0.3, 1 / 1.3, 1 / 0.6, 3.0)),
    twin=lambda mu: mpmath.mpf(1) + 0 * mu,
    digits=9,
    precision=20,
    corrected=lambda mu: mpmath.mpf(-1) + 0 * mu,
)


def _neyman_pearson(level: Fraction, coin: bool) -> Shown:
    """Uniform on [0, 1] against uniform on [0, 2]: outcomes (0, 1] with Q = 1/2 and (1, 2] with P = 0, Q = 1/2."""
    first, second = [Fraction(1), Fraction(0)], [HALF, HALF]
    best = least_error(first, second, level)
    family = []  # reject where P <= t Q: P/Q is 2 on (0, 1] and 0 on (1, 2]
    for t in (Fraction(1), Fraction(2)):
        rejected = [k for k in range(2) if first[k] <= t * second[k]]
        alpha = sum((first[k] for k in rejected), Fraction(0))
        if alpha <= level:
            family.append(1 - sum((second[k] for k in rejected), Fraction(0)))
    reached = best if coin else min(family)
    evidence = {"level": str(level), "least_type_2_error": str(best), "of_the_family": str(reached)}
    by_coin = 1 - (second[1] + level * second[0])  # reject (1, 2] always and (0, 1] with probability α
    routes = {"sorted outcomes": float(best), "explicit test with a coin": float(by_coin)}
    reason = f"at level {level} the least type II error is {best}, the family reaches {reached}"
    return Shown(reached == best, reason, float(best), evidence, routes)


proposition_b_1 = Demonstration(
    lambda: _neyman_pearson(HALF, coin=False),
    twin=lambda: _neyman_pearson(HALF, coin=True),
)
