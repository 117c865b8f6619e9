"""The central limit theorem: (3.1) as a limit, its error at finite T, Theorems 1 and 2, μ-GDP of the tables' models.

"gdp_clt", "moments" and "true" are δ_CLT, δ_MA and the δ of the composition itself by the project's `exact` accountant
(the larger of both directions); (3.1) itself is judged from the variance of the privacy loss, by quadrature.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
from scipy.special import ndtr, ndtri

from dpbench.judging.claims.judges import Shown, bound, formula, grid, inequality, shown
from dpbench.judging.papers.bu2020.rows import PAIR, ROWS, Row, mnist
from dpbench.judging.papers.mathematics import Real, gaussian_delta, interval, moment_integral, mu_at

# ---- (3.1) ----


@formula(
    settings=[
        *({"rate": repr(row.rate), "steps": repr(row.steps), "sigma": repr(row.sigma)} for row in ROWS[::4]),
        {"rate": "0.001", "steps": "1000000", "sigma": "5"},
    ],
    control={"small_signal": True},
    precision=30,
    pair=PAIR,
)
def equation_3_1(rate: Real, steps: Real, sigma: Real, small_signal: bool = False) -> tuple[Real, Real]:
    """(3.1), and √(T Var L), integrated, in the limit of the theorem: p is divided and T multiplied so that p √T stays.

    L = log((1 − p) + p dN(1, σ²)/dN(0, σ²)) under N(0, σ²), here with p/10^20. The control expands e^(1/σ²) − 1.
    """
    shrink = mpmath.mpf(10) ** -20

    def loss(x: Real) -> Real:  # x in deviations
        return mpmath.log1p(shrink * rate * mpmath.expm1(x / sigma - 1 / (2 * sigma**2))) / shrink

    points = [-12, -4, 0, 2 / sigma, 2 / sigma + 4, 2 / sigma + 12]
    first = mpmath.quad(lambda x: loss(x) * mpmath.npdf(x), points)
    second = mpmath.quad(lambda x: loss(x) ** 2 * mpmath.npdf(x), points)
    growth = 1 / sigma**2 if small_signal else mpmath.expm1(1 / sigma**2)
    return rate * mpmath.sqrt(steps * growth), mpmath.sqrt(steps * (second - first**2))


# ---- the limit and the error at finite T ----

_LIMITS = ((ROWS[0], (10**2, 10**4, 10**6)), (ROWS[2], (10**3, 10**5, 10**7)), (ROWS[8], (10**3, 10**5, 10**7)))


def _at_limit(row: Row, steps: int) -> Row:
    """The row with T = `steps` and the same p √T."""
    rate = row.rate * math.sqrt(row.steps / steps)
    return Row(f"{row.name}, T = {steps}", rate, 1, row.sigma, rate * steps, row.delta)


@shown(control={"small_signal": True}, pair=f"{PAIR}, p = ν/√T")
def clt_limit(small_signal: bool = False) -> Shown:
    """max_ε |δ_T(ε) − δ(ε; μ)| for p = ν/√T, which bounds the distance of the trade-off functions from above."""
    evidence: dict[str, Any] = {}
    falls, last = True, 0.0
    for row, sizes in _LIMITS:
        mu = row.rate * math.sqrt(row.steps) / row.sigma if small_signal else row.mu
        places = [share * row.mu for share in (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)]
        rows = [_at_limit(row, steps) for steps in sizes]
        gaps = [max(abs(at.delta_at(e) - gaussian_delta(e, mu)) for e in places) for at in rows]
        errors = [at.epsilon("gdp_clt") - at.epsilon("true") for at in rows]
        evidence[row.name] = {"mu": mu, "steps": sizes, "largest_difference_of_delta": gaps, "clt_less_true": errors}
        falls &= all(after < before / 3 for before, after in pairwise(gaps))
        last = max(last, gaps[-1])
    word = "falls" if falls else "does not fall"
    reason = f"the distance {word} by 3 or more for every hundredfold T; at finite T the CLT's epsilon is too small"
    return Shown(falls, reason, last, evidence)


# ---- Theorem 1 ----


_LEVELS = np.concatenate((10 ** np.linspace(-6, -0.1, 120), np.linspace(0.02, 0.98, 60)))


def _supremum(row: Row, by: str, mu: float) -> Any:
    """At every level of _LEVELS sup_ε f_{ε, δ(ε)}, from above, for the δ of an accountant that falls with ε.

    On a grid the supremum over [ε_i, ε_{i+1}] is at most f of (ε_i, δ_{i+1}), as f falls in ε and in δ. Beyond the last
    ε, at least 21, f is at most e^−ε, as e^ε α > 1 from α = 1e-6 on.
    """
    places = np.linspace(0, max(6 * mu + 2, 21.0), 2401)
    rest = 1 - np.minimum(1.0, [row.delta_at(float(e), by) for e in places[1:]])[:, None]
    tilts = np.exp(places)[:, None]
    found = np.maximum(rest - tilts[:-1] * _LEVELS, (rest - _LEVELS) / tilts[:-1])
    return np.maximum(found.max(axis=0), 1 / tilts[-1])


@shown(control={"scale": 2.5}, pair="G_μ against every f_{ε, δ_MA(ε)} at once")
def theorem_1(scale: float = 1.0) -> Shown:
    """max_α (sup_ε f_{ε, δ_MA(ε)} − G_μ) for growing T at fixed ν, from above; the control has G of a larger μ."""
    evidence = {}
    for row, sizes in _LIMITS[:2]:
        gaussian = ndtr(-ndtri(_LEVELS) - scale * row.mu)
        rows = [_at_limit(row, steps) for steps in sizes]
        evidence[row.name] = {at.name: float(np.max(_supremum(at, "moments", row.mu) - gaussian)) for at in rows}
    last = max(list(excess.values())[-1] for excess in evidence.values())
    reason = f"at the largest T the moments accountant's f lies above G by at most {last:.3g}"
    return Shown(last <= 1e-9, reason, last, evidence)


@shown(control={"by": "gdp_clt"})
def figure_3_gap(by: str = "moments") -> Shown:
    """max_α (G_μ(α) − sup_ε f_{ε, δ(ε)}(α)) in the six rows of Table 1, the supremum from above."""
    gaps = {row.name: float(np.max(ndtr(-ndtri(_LEVELS) - row.mu) - _supremum(row, by, row.mu))) for row in ROWS[:6]}
    smallest = min(gaps.values())
    reason = f"the gap is at least {smallest:.3g} and at most {max(gaps.values()):.3g} in the six settings"
    return Shown(smallest >= 0.05, reason, smallest, {"gaps": gaps, "needed": 0.05})


# ---- Theorem 2 ----


@inequality(
    domain={"epsilon_share": (0, 1), "mu": (0.05, 10, "log")},
    settings=[{"epsilon_share": share, "mu": row.mu} for row in ROWS for share in (0.0, 0.3, 0.9)],
    control={"half": 1.0},
    tolerance=-1e-9,  # strictly above
    obligations=[
        "at a fixed order the moments of T steps tend to λ(λ+1)μ²/2, for p √T → ν",
        "they are convex in λ and 0 at λ = 0, so the least over all λ > 0 tends to that of the limit",
        "δ_CLT tends to δ(ε; μ) by definition",
    ],
    examples=60,
)
def theorem_2_limit(epsilon_share: float, mu: float, half: float = 0.5) -> float:
    """log of what δ_MA tends to, min(1, e^{−(ε/μ − μ/2)²/2}), over δ(ε; μ); ε up to 12 μ + μ²/2."""
    epsilon = epsilon_share * (12 * mu + mu * mu / 2)
    excess = max(epsilon / mu - mu / 2, 0.0)
    return -excess * excess * half - math.log(gaussian_delta(epsilon, mu))


@formula(settings=grid(order=(1, 8), sigma=("1.3", "0.5")), control={"shift": 2}, digits=8, precision=50)
def moments_limit(order: int, sigma: Real, shift: int = 1) -> tuple[Real, Real]:
    """λ(λ+1)μ²/2 for ν = 1, and T log E[(dP/dQ)^{λ+1}], integrated, for p = 10^−16 and T = 1/p²."""
    p = mpmath.mpf(10) ** -16
    integral = mpmath.log1p(moment_integral(p, sigma, order + 1, less_one=True)) / p**2
    return order * (order + shift) * mpmath.expm1(1 / sigma**2) / 2, integral


@cache
def _log_delta(row: int, by: str, epsilon: float) -> float:
    """log δ in a row of Tables 1-4 with T rounded up, by "true", "moments" or "gdp_clt"; not below 1e-280."""
    whole = replace(ROWS[row], epochs=ROWS[row].whole_steps * ROWS[row].rate)
    return math.log(max(min(whole.delta_at(epsilon, by), 1.0), 1e-280))


@inequality(
    domain={"row": (0, 8, "whole"), "share": (0, 6)},
    settings=grid(row=range(9), share=(0.0, 0.5, 4.0)),
    control={"swapped": True},
    tolerance=-1e-6,  # strictly above
    obligations=[
        "for gdp_clt a statement about the nine settings, not about every T: see clt-smaller-epsilon",
        "for the truth E[(1 − e^{ε−L})₊] < E[e^{λ(L−ε)}] for every λ > 0: Markov's inequality, strict for such a loss",
    ],
    examples=80,
)
def below_moments(row: int, share: float, by: str, swapped: bool = False) -> float:
    """log δ_MA − log δ by "gdp_clt", ε up to 60, or of the composition itself, "true", ε up to 6 μ of the row.

    The control asks for the other of the two in place of δ_MA; beyond 3 μ they are too small to tell.
    """
    epsilon, above = share * (10 if by == "gdp_clt" else ROWS[row].mu), "moments"
    if swapped:
        epsilon, above = min(epsilon, 3 * ROWS[row].mu), "true" if by == "gdp_clt" else "gdp_clt"
    found = _log_delta(row, by, epsilon)
    return 1.0 if found < math.log(1e-279) else _log_delta(row, above, epsilon) - found


# ---- μ-GDP of the models ----


@bound(name="mu", pair=f"{PAIR}: all iterates of Section 3.1")
def gdp_in_the_tail(certified: bool, row: int, epsilon: float) -> tuple[float, float, float]:
    """The μ that the true δ at one `epsilon` asks for; at others it may ask for more, so this can only refute."""
    enclosed = ROWS[row].enclosed(epsilon, 8)
    lower, upper = enclosed if certified else interval(ROWS[row].curve("true").delta(epsilon))
    return mu_at(epsilon, lower) * (1 - 1e-12), mu_at(epsilon, upper) * (1 + 1e-12), mu_at(epsilon, sum(enclosed) / 2)


@shown(control={"settings": ((1.3, 15), (0.5, 100))})
def clt_smaller_anywhere(
    settings: tuple[tuple[float, float], ...] = ((0.5, 100), (0.5, 200), (0.45, 100), (0.4, 50)),
) -> Shown:
    """ε_CLT against ε_MA at δ = 1e-5 and p = 256/60000 for some (σ, epochs), the first where it is larger if any is.

    Routes: any order of the accountant bounds ε_MA from above, here the best of three; (3.2) there exceeds δ.
    """
    rows = [mnist(*setting) for setting in settings]
    found = {row.name: [row.epsilon("gdp_clt"), row.epsilon("moments")] for row in rows}
    row = next((row for row in rows if found[row.name][0] >= found[row.name][1]), rows[0])
    with mpmath.workdps(25):
        moments = {a: row.steps * mpmath.log(moment_integral(row.rate, row.sigma, a)) for a in (1.5, 1.6, 1.7)}
        by_hand = min(float((moment - math.log(row.delta)) / (a - 1)) for a, moment in moments.items())
    clt, by_moments = found[row.name]
    delta = gaussian_delta(by_hand, row.mu)
    routes = {"moments at the best of three orders, integrated": by_hand, "δ by (3.1) and (3.2) there": delta}
    reason = f"at {row.name} the CLT gives {clt:.2f}, the moments accountant {by_moments:.2f}"
    holds = clt < by_moments or (False if delta > row.delta else None)
    return Shown(holds, reason, clt, {"clt and moments": found, "clt": clt, "moments": by_moments}, routes)
