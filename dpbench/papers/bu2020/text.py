"""Numbers in the running text: sums of errors, likelihood ratios, σ̃, epochs, split sizes, δ against 1/n.

| here | in the paper |
| --- | --- |
| least sum | the least sum of type I and type II errors, min (α + f(α)) |
| sigma_tilde, mu_tilde | σ̃, μ̃_CLT |

ε and μ enter as they are printed where the text uses printed ones; numbers from an accountant say so.
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
from scipy.optimize import brentq, minimize_scalar
from scipy.special import ndtr

from dpbench.claims.judges import Shown, formula, number, shown
from dpbench.papers.bu2020.rows import ROWS, mnist
from dpbench.papers.mathematics import gaussian_delta, log_moment

Routes = dict[str, float]

# ---- e^ε, least sums of errors ----


@number()
def likelihood_ratio(epsilon: float) -> Routes:
    """e^ε."""
    series = mpmath.nsum(lambda k: mpmath.mpf(epsilon) ** k / mpmath.factorial(k), [0, 80])
    return {"exponential": math.exp(epsilon), "series": float(series)}


@number()
def least_sum_gaussian(mu: float) -> Routes:
    """100 min_t (P(N(0, 1) > t) + P(N(μ, 1) < t)): minimised over the threshold, and in closed form."""
    found = minimize_scalar(lambda t: ndtr(-t) + ndtr(t - mu), bounds=(-5.0, 5.0 + mu), method="bounded")
    return {"minimised": 100 * float(found.fun), "closed form": 100 * math.erfc(mu / (2 * math.sqrt(2)))}


@number()
def least_sum_pair(epsilon: float, delta: float) -> Routes:
    """100 min_α (α + f_{ε, δ}(α)): over the corners of (2.1), and by halving where its two bounds on a power cross."""
    corners = min(1 - delta, 2 * (1 - delta) / (1 + math.exp(epsilon)))
    best, low, high = 1.0, 0.0, 0.5
    for _ in range(200):
        level = (low + high) / 2
        first, second = math.exp(epsilon) * level + delta, 1 - math.exp(-epsilon) * (1 - level - delta)
        best = min(best, level + 1 - min(first, second))
        low, high = (level, high) if first < second else (low, level)
    return {"corners of (2.1)": 100 * corners, "power by Definition 2.1": 100 * best}


# ---- recalibration, (3.3) and (3.4) ----


@number()
def moments_epsilon(sigma: float, epochs: float, delta: float) -> Routes:
    """ε_MA(δ) on MNIST with batches of 256, T = epochs/p: by the accountant, and by sums at whole orders."""
    row = mnist(sigma, epochs)
    by_sums = min(
        (row.steps * log_moment(row.rate, sigma, order) - math.log(delta)) / (order - 1) for order in range(2, 64)
    )
    return {"accountant": float(row.moments.epsilon(delta).value), "binomial sums": by_sums}


def _mu_tilde(epsilon: float, delta: float) -> float:
    """The root of (3.3) in μ̃."""
    low = max(0.02, epsilon / 36)
    return float(brentq(lambda mu: math.log(gaussian_delta(epsilon, mu) / delta), low, 50, xtol=1e-13))


@number()
def sigma_tilde(sigma: float, epochs: float, delta: float) -> Routes:
    """(3.4) solved for σ̃: by halving from μ̃ at ε_MA(δ), and with ε by the CLT accountant's own solver."""
    row = mnist(sigma, epochs)
    epsilon = float(row.moments.epsilon(delta).value)
    mu, low, high = _mu_tilde(epsilon, delta), 0.2, 20.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if mnist(middle, epochs).mu > mu else (low, middle)
    solver = brentq(lambda s: mnist(s, epochs).clt.epsilon(delta).value - epsilon, 0.5, 3.0, xtol=1e-12)
    return {"halving": low, "accountant": float(solver)}


@shown(control={"epsilon": 0.0})  # δ_MA(0) = 1: nothing to solve
def recalibration(epsilon: float | None = None) -> Shown:
    """μ̃ > μ_CLT and σ̃ < σ with δ(ε; μ̃) = δ_MA(ε), in the nine settings at the printed δ."""
    found = []
    for row in ROWS:
        at = row.epsilon("moments") if epsilon is None else epsilon
        target = row.moments.delta(at).value
        case = {"row": row.name, "epsilon": at, "delta_by_moments": target, "mu": row.mu, "sigma": row.sigma}
        if 0 < target < 1:
            mu = _mu_tilde(at, target)
            case |= {"mu_tilde": mu, "sigma_tilde": 1 / math.sqrt(math.log1p((mu / row.rate) ** 2 / row.steps))}
        found.append(case)
    good = sum(c.get("mu_tilde", 0.0) > c["mu"] and c.get("sigma_tilde", math.inf) < c["sigma"] for c in found)
    reason = f"a larger mu and a smaller sigma exist in {good} of {len(found)} settings"
    return Shown(good == len(found), reason, good, {"settings": found})


# ---- epochs, splits ----


@formula(
    settings=[
        {"batch": 256, "records": 60000, "steps": 3516},
        {"batch": 512, "records": 25000, "steps": 440},
        {"batch": 256, "records": 29305, "steps": 2061},
    ],
    control={"power": -1},
    precision=25,
)
def epochs_formula(batch: int, records: int, steps: int, power: int = 1) -> Any:
    """T · batch / n, and how often a record is drawn on average in T Poisson batches: Σ k C(T, k) p^k (1−p)^(T−k)."""
    share = mpmath.mpf(batch) / records
    chance, total = (1 - share) ** steps, mpmath.mpf(0)
    for draws in range(1, steps + 1):
        chance *= share / (1 - share) * (steps - draws + 1) / draws
        total += draws * chance
    return steps * share**power, total
