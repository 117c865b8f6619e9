"""Numbers in the running text: sums of errors, likelihood ratios, σ̃, epochs, split sizes, δ against 1/n.

| here | in the paper |
| --- | --- |
| least_sum | the least sum of type I and type II errors, min (α + f(α)) |
| sigma_tilde, mu_tilde | σ̃, μ̃_CLT |

ε and μ enter as they are printed where the text uses printed ones; numbers from an accountant say so.
"""

from __future__ import annotations

import math
from typing import Any

import mpmath

from dpbench.claims.computation import Computation
from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.papers.bu2020.rows import ROWS, clt_curve, moments_curve
from dpbench.papers.bu2020.tradeoff import gaussian_delta

# ---- e^ε, least sums of errors ----

likelihood_ratio = Computation(
    lambda epsilon: math.exp(epsilon),
    second=lambda epsilon: float(mpmath.nsum(lambda k: mpmath.mpf(epsilon) ** k / mpmath.factorial(k), [0, 80])),
)


def _least_sum_gaussian(mu: float) -> float:
    """100 min_t (P(N(0, 1) > t) + P(N(μ, 1) < t)), by minimising over the threshold."""
    from scipy.optimize import minimize_scalar
    from scipy.special import ndtr

    found = minimize_scalar(lambda t: ndtr(-t) + ndtr(t - mu), bounds=(-5.0, 5.0 + mu), method="bounded")
    return 100 * float(found.fun)


def _least_sum_pair(epsilon: float, delta: float) -> float:
    """100 min_α (α + f_{ε, δ}(α)) over the corners of (2.1)."""
    middle = (1 - delta) / (1 + math.exp(epsilon))
    return 100 * min(1 - delta, 2 * middle)


def _least_sum_pair_by_grid(epsilon: float, delta: float) -> float:
    """The same from Definition 2.1: the power of a test at level α is at most the least of its two bounds."""
    best = 1.0
    low, high = 0.0, 0.5
    for _ in range(200):
        middle = (low + high) / 2
        power = min(math.exp(epsilon) * middle + delta, 1 - math.exp(-epsilon) * (1 - middle - delta))
        best = min(best, middle + 1 - power)
        low, high = (middle, high) if math.exp(epsilon) * middle + delta < power + 1e-15 else (low, middle)
    return 100 * best


least_sum_gaussian = Computation(_least_sum_gaussian, second=lambda mu: 100 * math.erfc(mu / (2 * math.sqrt(2))))
least_sum_pair = Computation(_least_sum_pair, second=_least_sum_pair_by_grid)


# ---- recalibration, (3.3) and (3.4) ----


def _moments_epsilon(sigma: float, epochs: float, delta: float) -> float:
    """ε_MA(δ) on MNIST with batches of 256, T = epochs/p."""
    rate = 256 / 60000
    return float(moments_curve(rate, sigma, epochs / rate).epsilon(delta).value)


def _moments_by_sums(sigma: float, epochs: float, delta: float) -> float:
    """The same from the log moments at whole orders up to 63, binomial sums of 30 digits, and no accountant."""
    with mpmath.workdps(30):
        p, best = mpmath.mpf(256) / 60000, mpmath.inf
        steps = mpmath.mpf(epochs) / p
        for order in range(12, 64):
            moment = mpmath.fsum(
                mpmath.binomial(order, k) * (1 - p) ** (order - k) * p**k * mpmath.exp(k * (k - 1) / (2 * sigma**2))
                for k in range(order + 1)
            )
            best = min(best, (steps * mpmath.log(moment) + mpmath.log(1 / mpmath.mpf(delta))) / (order - 1))
        return float(best)


moments_epsilon = Computation(_moments_epsilon, second=_moments_by_sums)


def _mu_tilde(epsilon: float, delta: float) -> float:
    """The root of (3.3) in μ̃."""
    from scipy.optimize import brentq

    return float(
        brentq(lambda mu: math.log(gaussian_delta(epsilon, mu) / delta), max(0.02, epsilon / 36), 50, xtol=1e-13)
    )


def _sigma_tilde(sigma: float, epochs: float, delta: float) -> float:
    """(3.4) solved for σ̃ by halving, from μ̃ at ε_MA(δ)."""
    rate = 256 / 60000
    mu = _mu_tilde(_moments_epsilon(sigma, epochs, delta), delta)
    low, high = 0.2, 20.0
    for _ in range(200):
        middle = (low + high) / 2
        larger = rate * math.sqrt(epochs / rate * math.expm1(middle**-2)) > mu
        low, high = (middle, high) if larger else (low, middle)
    return low


def _sigma_tilde_closed(sigma: float, epochs: float, delta: float) -> float:
    """σ̃ = 1/√log(1 + μ̃²/(p² T)), with ε by the CLT accountant's own solver."""
    rate = 256 / 60000
    steps = epochs / rate
    target = _moments_epsilon(sigma, epochs, delta)
    from scipy.optimize import brentq

    return float(brentq(lambda s: clt_curve(rate, s, steps).epsilon(delta).value - target, 0.5, 3.0, xtol=1e-12))


sigma_tilde = Computation(_sigma_tilde, second=_sigma_tilde_closed)


def _solvable(epsilon_of: Any) -> Shown:
    """μ̃ > μ_CLT and σ̃ < σ with δ(ε; μ̃) = δ_MA(ε), in the nine settings at the printed δ."""
    found = []
    for row in ROWS:
        epsilon = epsilon_of(row)
        target = moments_curve(row.rate, row.sigma, row.steps).delta(epsilon).value
        if not 0 < target < 1:
            found.append({"row": row.name, "epsilon": epsilon, "delta_by_moments": target})
            continue
        mu = _mu_tilde(epsilon, target)
        sigma = 1 / math.sqrt(math.log1p((mu / row.rate) ** 2 / row.steps))
        found.append({"row": row.name, "epsilon": epsilon, "mu": row.mu, "mu_tilde": mu, "sigma_tilde": sigma})
        found[-1]["sigma"] = row.sigma
    good = [case for case in found if case.get("mu_tilde", 0.0) > case.get("mu", math.inf)]
    good = [case for case in good if case["sigma_tilde"] < case["sigma"]]
    reason = f"a larger mu and a smaller sigma exist in {len(good)} of {len(found)} settings"
    return Shown(len(good) == len(found), reason, len(good), {"settings": found})


recalibration = Demonstration(
    lambda: _solvable(lambda row: moments_curve(row.rate, row.sigma, row.steps).epsilon(row.delta).value),
    lambda: _solvable(lambda row: 0.0),  # noqa: ARG005  (δ_MA(0) = 1: nothing to solve)
)


# ---- epochs, splits, δ ----


def _epochs_counted(batch: int, records: int, steps: int) -> Any:
    """How often a record is drawn on average in `steps` Poisson batches: Σ k C(T, k) p^k (1−p)^(T−k), term by term."""
    share = mpmath.mpf(batch) / records
    chance, total = (1 - share) ** steps, mpmath.mpf(0)
    for draws in range(1, steps + 1):
        chance *= share / (1 - share) * (steps - draws + 1) / draws
        total += draws * chance
    return total


epochs_formula = Formula(
    lambda batch, records, steps: mpmath.mpf(steps) * batch / records,
    _epochs_counted,
    [
        {"batch": 256, "records": 60000, "steps": 3516},
        {"batch": 512, "records": 25000, "steps": 440},
        {"batch": 256, "records": 29305, "steps": 2061},
    ],
    twin=lambda batch, records, steps: mpmath.mpf(steps) * records / batch,
    precision=25,
)

test_examples = Computation(
    lambda examples, share: float(math.floor(examples * share)),
    second=lambda examples, share: float(int(examples * round(1000 * share) / 1000)),
)
training_examples = Computation(
    lambda examples, share: float(examples - math.floor(examples * share)),
    second=lambda examples, share: float(math.ceil(examples * (1 - share))),
)


def _below_one_over_n(power: float) -> Shown:
    """δ < 1/n^power in the four data sets; MovieLens trains on 80 % of 1,000,209 ratings."""
    sizes = {"MNIST": (60000, 1e-5), "Adult": (29305, 1e-5), "IMDb": (25000, 1e-5), "MovieLens 1M": (800167, 1e-6)}
    shares = {name: delta * n**power for name, (n, delta) in sizes.items()}
    holds = all(share < 1 for share in shares.values())
    largest = max(shares, key=lambda name: shares[name])
    return Shown(holds, f"delta n is at most {shares[largest]:.3g} ({largest})", shares[largest], {"delta_n": shares})


delta_below = Demonstration(lambda: _below_one_over_n(1.0), lambda: _below_one_over_n(1.1))
