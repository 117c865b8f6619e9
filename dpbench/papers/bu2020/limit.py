"""The central limit theorem: (3.1) as a limit, its error at finite T, Theorems 1 and 2, μ-GDP of the tables' models.

| here | in the paper |
| --- | --- |
| rate, steps, sigma | p, T, σ |
| product_of_rate | ν, the limit of p √T |
| clt, accounted, true | δ_CLT, δ_MA, and the δ of the composition itself |

What is called true comes from the project's `exact` accountant (both directions of the composition, the worse one);
(3.1) itself is judged from the variance of the privacy loss, by quadrature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import mpmath

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range
from dpbench.claims.truth import Truth
from dpbench.papers.bu2020.rows import ROWS, clt_curve, moments_curve, true_curve
from dpbench.papers.bu2020.tradeoff import gaussian_delta

# ---- (3.1) ----


def _loss_deviation(rate: str, steps: str, sigma: str) -> Any:
    """√(T Var L) in the limit of the theorem: p is divided and T multiplied so that p √T stays, here with p/10^20.

    L = log((1 − p) + p dN(1, σ²)/dN(0, σ²)) under N(0, σ²); the variance is integrated.
    """
    p, t, s = (mpmath.mpf(value) for value in (rate, steps, sigma))
    shrink = mpmath.mpf(10) ** -20

    def loss(x: Any) -> Any:  # x in deviations
        return mpmath.log1p(shrink * p * mpmath.expm1(x / s - 1 / (2 * s**2))) / shrink

    points = [-12, -4, 0, 2 / s, 2 / s + 4, 2 / s + 12]
    first = mpmath.quad(lambda x: loss(x) * mpmath.npdf(x), points)
    second = mpmath.quad(lambda x: loss(x) ** 2 * mpmath.npdf(x), points)
    return mpmath.sqrt(t * (second - first**2))


def _equation_3_1(rate: str, steps: str, sigma: str) -> Any:
    p, t, s = (mpmath.mpf(value) for value in (rate, steps, sigma))
    return p * mpmath.sqrt(t * mpmath.expm1(1 / s**2))


def _small_signal(rate: str, steps: str, sigma: str) -> Any:
    """The mistake of expanding e^(1/σ²) − 1: p √T/σ."""
    p, t, s = (mpmath.mpf(value) for value in (rate, steps, sigma))
    return p * mpmath.sqrt(t) / s


equation_3_1 = Formula(
    _equation_3_1,
    _loss_deviation,
    [
        *(
            {"rate": repr(row.rate), "steps": repr(row.steps), "sigma": repr(row.sigma)}
            for row in (ROWS[0], ROWS[5], ROWS[8])
        ),
        {"rate": "0.001", "steps": "1000000", "sigma": "5"},
    ],
    twin=_small_signal,
    precision=30,
)


# ---- the limit and the error at finite T ----

_SHARES = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # ε in units of μ
_LIMITS = ((ROWS[0], (10**2, 10**4, 10**6)), (ROWS[2], (10**3, 10**5, 10**7)), (ROWS[8], (10**3, 10**5, 10**7)))


def _convergence(mu_of: Callable[[float, float], float]) -> Shown:
    """max_ε |δ_T(ε) − δ(ε; μ)| for p = ν/√T, which bounds the distance of the trade-off functions from above."""
    evidence: dict[str, Any] = {}
    falls = True
    lines: dict[str, list[float]] = {}
    for row, sizes in _LIMITS:
        product_of_rate = row.rate * math.sqrt(row.steps)
        mu = mu_of(product_of_rate, row.sigma)
        gaps, errors = [], []
        for steps in sizes:
            true = true_curve(product_of_rate / math.sqrt(steps), row.sigma, steps)
            epsilons = [share * row.mu for share in _SHARES]
            gaps.append(max(abs(true.delta(e).value - gaussian_delta(e, mu)) for e in epsilons))
            errors.append(clt_curve(product_of_rate / math.sqrt(steps), row.sigma, steps).epsilon(row.delta).value)
            errors[-1] -= true.epsilon(row.delta).value
        falls = falls and all(after < before / 3 for before, after in pairwise(gaps))
        evidence[row.name] = {
            "nu": product_of_rate,
            "steps": list(sizes),
            "largest_difference_of_delta": gaps,
            "clt_epsilon_less_true_epsilon": errors,
        }
        lines[row.name] = gaps
    word = "falls" if falls else "does not fall"
    reason = f"the distance {word} by 3 or more for every hundredfold T; at finite T the CLT's epsilon is too small"
    return Shown(falls, reason, max(gaps[-1] for gaps in lines.values()), evidence)


clt_limit = Demonstration(
    lambda: _convergence(lambda nu, sigma: nu * math.sqrt(math.expm1(sigma**-2))),
    lambda: _convergence(lambda nu, sigma: nu / sigma),
)


# ---- Theorem 1 ----

_LEVELS = tuple(10 ** (-6 + share / 10) for share in range(60)) + tuple(0.02 * k for k in range(1, 50))


def _supremum(curve: Any, most: float) -> list[tuple[float, float]]:
    """(α, sup_ε f_{ε, δ(ε)}(α)) at the levels; over 400 values of ε, which can only make it smaller."""
    pairs = [(e, curve.delta(e).value) for e in (most * k / 400 for k in range(401))]
    return [
        (
            a,
            max(
                max(0.0, 1 - d - (math.exp(e) * a if e < 300 else math.inf), math.exp(-e) * (1 - d - a))
                for e, d in pairs
            ),
        )
        for a in _LEVELS
    ]


def _gaussian_error(level: float, mu: float) -> float:
    from scipy.special import ndtr, ndtri

    return float(ndtr(-ndtri(level) - mu))


def _theorem_1(scale: float) -> Shown:
    """max_α (sup_ε f_{ε, δ_MA(ε)} − G_μ) for growing T at fixed ν; the twin compares with G of a larger μ."""
    evidence: dict[str, Any] = {}
    last = []
    for row, sizes in _LIMITS[:2]:
        nu = row.rate * math.sqrt(row.steps)
        excess = []
        for steps in sizes:
            curve = moments_curve(nu / math.sqrt(steps), row.sigma, float(steps))
            found = _supremum(curve, 6 * row.mu + 2)
            excess.append(max(f - _gaussian_error(a, scale * row.mu) for a, f in found))
        evidence[row.name] = {"nu": nu, "steps": list(sizes), "largest_excess": excess}
        last.append(excess[-1])
    holds = max(last) <= 1e-9
    reason = f"at the largest T the moments accountant's f lies above G by at most {max(last):.3g}"
    return Shown(holds, reason, max(last), evidence)


theorem_1 = Demonstration(lambda: _theorem_1(1.0), lambda: _theorem_1(2.5))


# ---- Theorem 2 ----


def _chernoff_margin(epsilon_share: float, mu: float) -> float:
    """log of what δ_MA tends to, min(1, e^{−(ε/μ − μ/2)²/2}), over δ(ε; μ); ε up to 12 μ + μ²/2."""
    epsilon = epsilon_share * (12 * mu + mu * mu / 2)
    excess = max(epsilon / mu - mu / 2, 0.0)
    return -excess * excess / 2 - math.log(gaussian_delta(epsilon, mu))


def _chernoff_without_half(epsilon_share: float, mu: float) -> float:
    epsilon = epsilon_share * (12 * mu + mu * mu / 2)
    excess = max(epsilon / mu - mu / 2, 0.0)
    return -excess * excess - math.log(gaussian_delta(epsilon, mu))


theorem_2_limit = Inequality(
    _chernoff_margin,
    {"epsilon_share": Range(0, 1), "mu": Range(0.05, 10, "log")},
    tuple({"epsilon_share": share, "mu": row.mu} for row in ROWS for share in (0.0, 0.3, 0.9)),
    twin=_chernoff_without_half,
    tolerance=-1e-9,  # strictly above
    obligations=(
        "at a fixed order the moments of T steps tend to λ(λ+1)μ²/2, for p √T → ν",
        "they are convex in λ and 0 at λ = 0, so the least over all λ > 0 tends to that of the limit",
        "δ_CLT tends to δ(ε; μ) by definition",
    ),
    examples=60,
)


def _moment_limit(order: int, sigma: str) -> Any:
    """T log E[(1 − p + p dN(1, σ²)/dN(0, σ²))^{λ+1}] under N(0, σ²), integrated, for p = 10^−16 and T = 1/p²."""
    s = mpmath.mpf(sigma)
    p = mpmath.mpf(10) ** -16
    centre = (order + 1) / s

    def excess(x: Any) -> Any:
        return mpmath.npdf(x) * mpmath.expm1((order + 1) * mpmath.log1p(p * mpmath.expm1(x / s - 1 / (2 * s * s))))

    points = sorted({-12 + 0 * s, 0 * s, 1 / s, 2 / s, 2 / s + 4, 2 / s + 12, centre, centre + 14})
    return mpmath.log1p(mpmath.quad(excess, points)) / p**2


def _moment_printed(order: int, sigma: str) -> Any:
    """λ(λ+1)μ²/2 for ν = 1."""
    return order * (order + 1) * mpmath.expm1(1 / mpmath.mpf(sigma) ** 2) / 2


moments_limit = Formula(
    _moment_printed,
    _moment_limit,
    [{"order": order, "sigma": sigma} for order in (1, 8) for sigma in ("1.3", "0.5")],
    twin=lambda order, sigma: _moment_printed(order, sigma) * (order + 1) / order,
    digits=8,
    precision=50,
)


def _row_margin(row: int, epsilon: float) -> float:
    """log δ_MA − log δ_CLT in a row of Tables 1-4."""
    setting = ROWS[row]
    clt = clt_curve(setting.rate, setting.sigma, setting.steps).delta(epsilon).value
    accounted = moments_curve(setting.rate, setting.sigma, setting.steps).delta(epsilon).value
    return math.log(min(accounted, 1.0)) - math.log(clt) if clt > 1e-280 else 1.0


def _true_twin(row: int, epsilon: float) -> float:
    """The false version, that δ_CLT lies below the true δ as well."""
    setting = ROWS[row]
    clt = clt_curve(setting.rate, setting.sigma, setting.steps).delta(epsilon).value
    return math.log(_true_delta(row, epsilon)) - math.log(clt) if epsilon <= 3 * setting.mu else 1.0


@cache
def _true_delta(row: int, epsilon: float) -> float:
    setting = ROWS[row]
    return float(true_curve(setting.rate, setting.sigma, setting.whole_steps).delta(epsilon).value)


theorem_2_rows = Inequality(
    _row_margin,
    {"row": Range(0, 8, "whole"), "epsilon": Range(0, 60)},
    tuple({"row": row, "epsilon": e} for row in range(9) for e in (0.0, 1.0, 10.0)),
    twin=_true_twin,
    tolerance=-1e-6,  # strictly above
    obligations=("a statement about the nine settings, not about every T: see clt-smaller-epsilon",),
    examples=80,
)


def _below_moments(row: int, epsilon_share: float) -> float:
    """log δ_MA − log δ of the composition itself, T rounded up in both."""
    setting = ROWS[row]
    epsilon = epsilon_share * setting.mu
    accounted = moments_curve(setting.rate, setting.sigma, float(setting.whole_steps)).delta(epsilon).value
    return math.log(min(accounted, 1.0)) - math.log(_true_delta(row, epsilon))


def _above_clt(row: int, epsilon_share: float) -> float:
    """The false version: the composition's own δ lies below δ_CLT."""
    setting = ROWS[row]
    epsilon = epsilon_share * setting.mu
    clt = clt_curve(setting.rate, setting.sigma, float(setting.whole_steps)).delta(epsilon).value
    return math.log(clt) - math.log(_true_delta(row, epsilon))


exact_below_moments = Inequality(
    _below_moments,
    {"row": Range(0, 8, "whole"), "epsilon_share": Range(0, 6)},  # in units of the row's μ
    tuple({"row": row, "epsilon_share": share} for row in range(9) for share in (0.5, 4.0)),
    twin=_above_clt,
    tolerance=-1e-9,
    obligations=("E[(1 − e^{ε−L})₊] < E[e^{λ(L−ε)}] for every λ > 0: Markov's inequality, strict for a Gaussian loss",),
    examples=40,
)


# ---- μ-GDP of the models ----


def _mu_at(epsilon: float, delta: float) -> float:
    """The μ at which (3.2) gives δ at ε."""
    from scipy.optimize import brentq

    target = math.log(delta)
    low = epsilon / 36 + 1e-3
    return float(brentq(lambda mu: math.log(gaussian_delta(epsilon, mu)) - target, low, 50.0, xtol=1e-13))


def _delta_enclosed(row: int, epsilon: float) -> tuple[float, float]:
    """δ of the composition itself, in Arb balls."""
    from dpbench.certified import certify
    from dpbench.events import Composition

    setting = ROWS[row]
    found = certify(Composition(((setting.event, setting.whole_steps),)), epsilon=epsilon, digits=8)
    return found.lower, found.upper


def _least_mu(certified: bool, row: int, epsilon: float) -> tuple[float, float]:
    """The μ that the true δ at one `epsilon` asks for; at others it may ask for more, so this can only refute."""
    setting = ROWS[row]
    if certified:
        lower, upper = _delta_enclosed(row, epsilon)
    else:
        found = true_curve(setting.rate, setting.sigma, setting.whole_steps).delta(epsilon)
        lower, upper = (found.value if end is None else end for end in (found.lower, found.upper))
    return _mu_at(epsilon, lower) * (1 - 1e-12), _mu_at(epsilon, upper) * (1 + 1e-12)


gdp_in_the_tail = Truth(
    _least_mu, name="mu", second=lambda row, epsilon: _mu_at(epsilon, math.fsum(_delta_enclosed(row, epsilon)) / 2)
)
gdp_of_adam = replace(gdp_in_the_tail, attained=False)  # nothing is shown about the last iterate of Algorithm 2


def _flip(settings: Sequence[tuple[float, float]]) -> Shown:
    """ε_CLT against ε_MA at δ = 1e-5 and p = 256/60000 for some (σ, epochs)."""
    rate = 256 / 60000
    found = []
    for sigma, epochs in settings:
        clt = clt_curve(rate, sigma, epochs / rate).epsilon(1e-5).value
        accounted = moments_curve(rate, sigma, epochs / rate).epsilon(1e-5).value
        found.append({"sigma": sigma, "epochs": epochs, "clt": clt, "moments": accounted})
    wrong = [case for case in found if case["clt"] >= case["moments"]]
    if not wrong:
        return Shown(True, f"the CLT's epsilon is the smaller one at all {len(found)} settings", None, {"at": found})
    first = wrong[0]
    steps = first["epochs"] / rate
    # by hand: any order of the accountant bounds its ε from above; (3.2) at that ε still exceeds δ
    bound = min(_moments_at(rate, first["sigma"], steps, order) for order in ("1.5", "1.6", "1.7"))
    clt_delta = gaussian_delta(bound, rate * math.sqrt(steps * math.expm1(first["sigma"] ** -2)))
    routes = {"moments at the best of three orders, integrated": bound, "δ by (3.1) and (3.2) there": clt_delta}
    reason = f"at sigma = {first['sigma']:g}, {first['epochs']:g} epochs the CLT gives {first['clt']:.2f}, "
    reason += f"the moments accountant {first['moments']:.2f}"
    return Shown(False if clt_delta > 1e-5 else None, reason, first["clt"], {"at": found, **first}, routes)


def _moments_at(rate: float, sigma: float, steps: float, order: str) -> float:
    """(T log E[(1 − p + p dN(1, σ²)/dN(0, σ²))^α] + log 1/δ)/(α − 1) for δ = 1e-5, integrated by mpmath."""
    with mpmath.workdps(25):
        p, s, a = mpmath.mpf(rate), mpmath.mpf(sigma), mpmath.mpf(order)

        def term(x: Any) -> Any:
            return mpmath.npdf(x) * mpmath.exp(a * mpmath.log1p(p * mpmath.expm1(x / s - 1 / (2 * s * s))))

        moment = mpmath.quad(term, [-12, -4, 0, 2 / s, 2 / s + 4, 2 / s + 14])
        return float((steps * mpmath.log(moment) + mpmath.log(10**5)) / (a - 1))


clt_smaller_anywhere = Demonstration(
    lambda: _flip(((0.5, 100), (0.5, 200), (0.45, 100), (0.4, 50))), lambda: _flip(((1.3, 15), (0.5, 100)))
)
