"""The ε that jl2021 states for a JL dimension, against what explicit datasets lose and what Theorem 4.1 gives.

The lower end of every interval is attained by the explicit datasets of sensitivity.py, with no projection released;
the upper end is Theorem 4.1's own pair. A stated ε is about at least one iteration, so one iteration refutes it.
"""

from __future__ import annotations

import math

from dpbench.claims.truth import Truth
from dpbench.papers.jl2021.sensitivity import (
    above_certified,
    closed_form_delta_lower,
    closed_form_epsilon_lower,
    delta_one,
    delta_one_certified,
    epsilon_one,
    normal_certified,
    pair_delta_lower,
    pair_epsilon_lower,
)
from dpbench.papers.jl2021.whole_run import DELTA


def proven_epsilon(threshold: float, batch: int, examples: int, sigma: str, projections: int, count: int) -> float:
    """A proven lower bound of log((P − δ)/Q) for the best test "some output > τ"."""
    from flint import arb, ctx

    best = -math.inf
    with ctx.workprec(128):
        for share in (1.0, 0.999, 0.997, 0.99, 0.97):  # the cells lose a little, so a lower threshold may do better
            tau = share * threshold
            some = 1 - (1 - above_certified(tau, (batch, examples), sigma, projections)) ** count
            found = some - arb(1) / 100000
            if found > 0:
                silent = count * normal_certified(-arb(tau) / arb(sigma))
                best = max(best, float((found / silent).log().lower()))
    return best


def _epsilon_interval(
    certified: bool, batch: int, examples: int, noise_multiplier: float, projections: int
) -> tuple[float, float]:
    """[explicit datasets, the theorem's pair]: ε at δ = 1e-5 of one iteration."""
    rate = batch / examples
    lower, threshold = pair_epsilon_lower(DELTA, rate, noise_multiplier, projections)
    upper = epsilon_one(DELTA, rate, noise_multiplier, projections)
    if not certified:
        return lower, upper
    sigma = str(noise_multiplier)
    proven_lower = proven_epsilon(threshold, batch, examples, sigma, projections, 1)
    for slack in (1.003, 1.01, 1.03, 1.1):
        if delta_one_certified(slack * upper, (batch, examples), sigma, projections)[1] < DELTA:
            return proven_lower, slack * upper
    raise ArithmeticError("no proven upper end: refine the cells of sensitivity.py")


def _second_epsilon(batch: int, examples: int, noise_multiplier: float, projections: int) -> float:
    return closed_form_epsilon_lower(DELTA, batch / examples, noise_multiplier, projections)


def _delta_interval(
    certified: bool, epsilon: float, batch: int, examples: int, noise_multiplier: float, projections: int
) -> tuple[float, float]:
    """[explicit datasets, the theorem's pair]: δ of one iteration at the printed ε."""
    rate = batch / examples
    lower, threshold = pair_delta_lower(epsilon, rate, noise_multiplier, projections)
    if not certified:
        return lower, delta_one(epsilon, rate, noise_multiplier, projections)
    from flint import arb, ctx

    sigma = str(noise_multiplier)
    with ctx.workprec(128):
        there = above_certified(threshold, (batch, examples), sigma, projections)
        proven_lower = there - arb(str(epsilon)).exp() * normal_certified(-arb(threshold) / arb(sigma))
        upper = delta_one_certified(epsilon, (batch, examples), sigma, projections)[1]
        return float(proven_lower.lower()), float(upper.upper())


def _second_delta(epsilon: float, batch: int, examples: int, noise_multiplier: float, projections: int) -> float:
    return closed_form_delta_lower(epsilon, batch / examples, noise_multiplier, projections)


epsilon_of_one_iteration = Truth(_epsilon_interval, attained=True, second=_second_epsilon, second_is="lower")
delta_of_one_iteration = Truth(_delta_interval, name="delta", attained=True, second=_second_delta, second_is="lower")
