"""Section 2 of dplis2021: the Gaussian mechanism, advanced composition, and how loose it is for SGD.

| paper | here |
| --- | --- |
| ε, δ, Δ₂ | epsilon, delta, sensitivity (1 here; only σ/Δ₂ matters) |
| δ′, k | slack, releases |
| σ | noise_multiplier |
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, log_ndtr

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.inequality import Inequality, Range

# ---- after Definition 3: σ ≥ √(2 ln(1.25/δ)) Δ₂ / ε gives (ε, δ)-DP for ε in (0, 1) ----


def _gaussian_log_delta(epsilon: float, noise: float) -> float:
    """log of sup_S P(S) − e^ε Q(S) for N(1, σ²) against N(0, σ²); the best S is {x > σ²ε + 1/2}, exactly."""
    first = float(log_ndtr(0.5 / noise - epsilon * noise))
    second = epsilon + float(log_ndtr(-0.5 / noise - epsilon * noise))
    return first + math.log(-math.expm1(second - first))


def _gaussian_margin(epsilon: float, log_delta: float, factor: float = 2.0) -> float:
    """log δ minus the log of what the mechanism with the stated noise really needs."""
    noise = math.sqrt(factor * (math.log(1.25) - log_delta)) / epsilon
    return log_delta - _gaussian_log_delta(epsilon, noise)


def _half_factor(epsilon: float, log_delta: float) -> float:
    return _gaussian_margin(epsilon, log_delta, 1.0)


gaussian_mechanism = Inequality(
    _gaussian_margin,
    {"epsilon": Range(1e-3, 0.9999, "log"), "log_delta": Range(math.log(1e-12), math.log(0.99))},
    (
        {"epsilon": 0.39, "log_delta": math.log(1e-5)},
        {"epsilon": 0.86, "log_delta": math.log(1e-5)},
        {"epsilon": 0.55, "log_delta": math.log(1e-5)},
    ),
    twin=_half_factor,
    tolerance=1e-6,
    obligations=("ε strictly below 1, as the text says", "σ is an absolute deviation and Δ₂ the ℓ₂-sensitivity"),
)


# ---- Theorem 1: k-fold adaptive composition of (ε, δ)-DP ----


def _composed_log_delta(epsilon: float, delta: float, releases: int, total: float) -> float:
    """log of the true δ at `total` of k releases of the worst (ε, δ) mechanism, summed outcome by outcome.

    That mechanism tells the record with probability δ and is randomized response with odds e^ε otherwise; every
    (ε, δ) mechanism is a post-processing of it, so its composition is the worst one.
    """
    likely = np.arange(releases + 1, dtype=float)  # how many of the k answers are the likely one under P
    log_choose = gammaln(releases + 1) - gammaln(likely + 1) - gammaln(releases - likely + 1)
    log_p = log_choose + likely * epsilon - releases * math.log1p(math.exp(epsilon))
    loss = (2 * likely - releases) * epsilon
    inside = loss > total
    hidden = float(np.sum(np.exp(log_p[inside]) * -np.expm1(total - loss[inside]))) if inside.any() else 0.0
    told = -math.expm1(releases * math.log1p(-delta))
    return math.log(max(told + (1 - told) * hidden, 1e-300))


def _composition_margin(
    epsilon: float, log_delta: float, releases: int, log_slack: float, factor: float = 2.0
) -> float:
    delta, slack = math.exp(log_delta), math.exp(log_slack)
    total = math.sqrt(-factor * releases * log_slack) * epsilon + releases * epsilon * math.expm1(epsilon)
    allowed = releases * delta + slack
    if allowed >= 1:
        return 1.0
    return math.log(allowed) - _composed_log_delta(epsilon, delta, releases, total)


def _composition_twin(epsilon: float, log_delta: float, releases: int, log_slack: float) -> float:
    return _composition_margin(epsilon, log_delta, releases, log_slack, 0.5)


advanced_composition = Inequality(
    _composition_margin,
    {
        "epsilon": Range(1e-3, 2.0, "log"),
        "log_delta": Range(math.log(1e-12), math.log(1e-4)),
        "releases": Range(1, 600, "whole"),
        "log_slack": Range(math.log(1e-12), math.log(0.5)),
    },
    (
        {"epsilon": 0.01, "log_delta": math.log(1e-9), "releases": 600, "log_slack": math.log(1e-5)},
        {"epsilon": 0.1, "log_delta": math.log(1e-8), "releases": 234, "log_slack": math.log(1e-5)},
    ),
    twin=_composition_twin,
    tolerance=1e-9,
    obligations=(
        "the printed theorem also allows δ′ = 0, where ε′ is infinite and the statement is empty",
        "randomized response with a leak is the worst (ε, δ) mechanism (Kairouz, Oh and Viswanath 2015)",
    ),
    examples=120,
)


# ---- how far from tight Theorem 1 is for Gaussian releases ----


def _gaussian_epsilon(noise: float, delta: float) -> float:
    """The true ε of one Gaussian release, by bisection of its δ: the statement after Definition 3 stops at ε = 1."""
    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _gaussian_log_delta(middle, noise) > math.log(delta) else (low, middle)
    return high


def _advanced_epsilon(rate: float, noise: float, steps: int, delta: float, slack_share: float) -> float:
    """The ε of Theorem 1 for `steps` sampled Gaussian releases.

    One release costs (ε₁, δ₁) before sampling, and (log(1 + q(e^ε₁ − 1)), qδ₁) when sampled at rate q. The budget δ is
    shared between the releases and δ′.
    """
    slack = delta * slack_share
    one = math.log1p(rate * math.expm1(_gaussian_epsilon(noise, (delta - slack) / steps / rate)))
    return math.sqrt(2 * steps * math.log(1 / slack)) * one + steps * one * math.expm1(one)


def _rdp_epsilon(rate: float, noise: float, steps: int, delta: float) -> float:
    from dpbench.papers.dplis2021.budgets import epsilon_by_whole_orders

    return epsilon_by_whole_orders(rate, noise, steps, delta)[0]


def _generic_is_looser(rate: float, noise: float, steps: int, delta: float) -> Shown:
    advanced = min(_advanced_epsilon(rate, noise, steps, delta, share / 20) for share in range(1, 20))
    moments = _rdp_epsilon(rate, noise, steps, delta)
    reason = f"advanced composition gives {advanced:.4g}, Rényi moments {moments:.4g}"
    evidence = {"advanced": advanced, "moments": moments, "rate": rate, "noise_multiplier": noise, "steps": steps}
    return Shown(advanced > 1.5 * moments, reason, advanced / moments, evidence)


def _not_looser(rate: float, noise: float, steps: int, delta: float) -> Shown:
    found = _generic_is_looser(rate, noise, steps, delta)
    ratio = float(found.value or 0.0)
    return Shown(ratio <= 1.5, f"the ratio is {ratio:.4g}", ratio, found.evidence)


generic_composition_is_loose = Demonstration(_generic_is_looser, _not_looser)
