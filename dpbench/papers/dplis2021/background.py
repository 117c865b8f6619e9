"""Section 2 of dplis2021: the Gaussian mechanism, advanced composition, and how loose it is for SGD.

| paper | here |
| --- | --- |
| ε, δ, Δ₂ | epsilon, delta, sensitivity (1 here; only σ/Δ₂ matters) |
| δ′, k | slack, releases |
| σ | noise |
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from dpbench.claims.judges import Shown, grid, inequality, shown
from dpbench.events import Composition, Gaussian
from dpbench.papers.dplis2021.budgets import PAIR, by_integral
from dpbench.papers.mathematics import gaussian_delta, moments_epsilon, sampled, true_curve


@inequality(
    domain={"epsilon": (1e-3, 0.9999, "log"), "log_delta": (math.log(1e-12), math.log(0.99))},
    settings=grid(epsilon=[0.39, 0.55, 0.86], log_delta=[math.log(1e-5)]),
    control={"factor": 1.0},
    tolerance=1e-6,
    obligations=["ε strictly below 1, as the text says", "σ is an absolute deviation and Δ₂ the ℓ₂-sensitivity"],
    pair="N(1, σ²) and N(0, σ²)",
)
def gaussian_mechanism(epsilon: float, log_delta: float, factor: float = 2.0) -> float:
    """log δ less the log of the δ that σ = √(2 ln(1.25/δ))/ε really needs; the control loses the 2."""
    noise = math.sqrt(factor * (math.log(1.25) - log_delta)) / epsilon
    return log_delta - math.log(gaussian_delta(epsilon, 1 / noise))


def _composed_log_delta(epsilon: float, delta: float, releases: int, total: float) -> float:
    """log of the true δ at `total` of k releases of the worst (ε, δ) mechanism, summed outcome by outcome.

    That mechanism tells the record with probability δ and is randomized response with odds e^ε otherwise; every
    (ε, δ) mechanism is a post-processing of it, so its composition is the worst one.
    """
    likely = np.arange(releases + 1, dtype=float)  # how many of the k answers are the likely one under P
    log_choose = gammaln(releases + 1) - gammaln(likely + 1) - gammaln(releases - likely + 1)
    log_p = log_choose + likely * epsilon - releases * math.log1p(math.exp(epsilon))
    above = np.maximum((2 * likely - releases) * epsilon - total, 0.0)
    hidden = float(np.sum(np.exp(log_p) * -np.expm1(-above)))
    told = -math.expm1(releases * math.log1p(-delta))
    return math.log(max(told + (1 - told) * hidden, 1e-300))


@inequality(
    domain={
        "epsilon": (1e-3, 2.0, "log"),
        "log_delta": (math.log(1e-12), math.log(1e-4)),
        "releases": (1, 600, "whole"),
        "log_slack": (math.log(1e-12), math.log(0.5)),
    },
    settings=[
        {"epsilon": 0.01, "log_delta": math.log(1e-9), "releases": 600, "log_slack": math.log(1e-5)},
        {"epsilon": 0.1, "log_delta": math.log(1e-8), "releases": 234, "log_slack": math.log(1e-5)},
    ],
    control={"factor": 0.5},
    tolerance=1e-9,
    obligations=[
        "the printed theorem also allows δ′ = 0, where ε′ is infinite and the statement is empty",
        "randomized response with a leak is the worst (ε, δ) mechanism (Kairouz, Oh and Viswanath 2015)",
    ],
    examples=120,
    pair="k answers of randomized response that leaks with probability δ",
)
def advanced_composition(
    epsilon: float, log_delta: float, releases: int, log_slack: float, factor: float = 2.0
) -> float:
    """log of kδ + δ′ less the log of the true δ at Theorem 1's ε′; the control has a quarter of the 2."""
    delta = math.exp(log_delta)
    total = math.sqrt(-factor * releases * log_slack) * epsilon + releases * epsilon * math.expm1(epsilon)
    allowed = releases * delta + math.exp(log_slack)
    return 1.0 if allowed >= 1 else math.log(allowed) - _composed_log_delta(epsilon, delta, releases, total)


@shown(control={"composed": "exactly"}, pair=PAIR)
def generic_composition_is_loose(
    rate: float, noise: float, steps: int, delta: float, composed: str = "Theorem 1"
) -> Shown:
    """ε by Theorem 1 against that by moments: is it more than 1.5 times as large? The control composes exactly.

    One release costs (ε₁, δ₁) before sampling, exactly, and (log(1 + q(e^ε₁ − 1)), qδ₁) when sampled at rate q. Of the
    budget δ the best of 19 shares is δ′, the rest is for the releases.
    """
    single = true_curve(Composition(((Gaussian(noise), 1),)))

    def generic(slack: float) -> float:
        one = math.log1p(rate * math.expm1(single.epsilon((delta - slack) / steps / rate).value))
        return math.sqrt(2 * steps * math.log(1 / slack)) * one + steps * one * math.expm1(one)

    exact = true_curve(sampled(rate, noise, steps)).epsilon(delta).value
    found = exact if composed == "exactly" else min(generic(delta * share / 20) for share in range(1, 20))
    moments, order = moments_epsilon(rate, noise, steps, delta)
    evidence = {"advanced": found, "moments": moments, "rate": rate, "noise_multiplier": noise, "steps": steps}
    routes = {"moments, binomial sum": moments, "moments, integral": by_integral(rate, noise, steps, order)}
    reason = f"{composed} gives {found:.4g}, Rényi moments {moments:.4g}"
    return Shown(found > 1.5 * moments, reason, found / moments, evidence, {**routes, "exact": exact})
