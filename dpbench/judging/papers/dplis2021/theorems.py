"""Sections 2 and 4 and Appendices B and C of dplis2021: Theorems 1 to 4, by problems where both sides are exact.

| paper | here |
| --- | --- |
| β, η, T, σ² (variance of the sampled gradient) | curvature, rate, steps, variance |
| C, n, q | clip, records, share of the records in a batch |
| N₁ | how often the differing record is selected |
| δ′, k, Δ₂ | slack, releases, 1 (only σ/Δ₂ matters) |
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
from scipy.special import expit
from scipy.stats import binom

from dpbench.events import Composition, Gaussian
from dpbench.judging.claims.judges import Shown, grid, inequality, shown
from dpbench.judging.papers.dplis2021.budgets import PAIR, by_integral
from dpbench.judging.papers.mathematics import moments_epsilon, sampled, true_curve

# ---- Section 2: the Gaussian mechanism, advanced composition, and how loose it is for SGD ----


def _composed_log_delta(epsilon: float, delta: float, releases: int, total: float) -> float:
    """log of the true δ at `total` of k releases of the worst (ε, δ) mechanism, summed outcome by outcome.

    That mechanism reveals the record with probability δ and is randomized response with odds e^ε otherwise; every
    (ε, δ) mechanism is a post-processing of it, so its composition is the worst one.
    """
    likely = np.arange(releases + 1, dtype=float)  # how many of the k answers are the likely one under P
    chances = binom.pmf(likely, releases, expit(epsilon))
    hidden = float(np.sum(chances * -np.expm1(-np.maximum((2 * likely - releases) * epsilon - total, 0.0))))
    revealed = -math.expm1(releases * math.log1p(-delta))
    return math.log(max(revealed + (1 - revealed) * hidden, 1e-300))


@inequality(
    domain={
        "epsilon": (1e-3, 2.0, "log"),
        "log_delta": (math.log(1e-12), math.log(1e-4)),
        "releases": (1, 600, "whole"),
        "log_slack": (math.log(1e-12), math.log(0.5)),
    },
    settings=grid(epsilon=[0.01, 0.1], log_delta=[math.log(1e-8)], releases=[234, 600], log_slack=[math.log(1e-5)]),
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


# ---- Theorem 2: SGD on βθ²/2 with gradient noise, where every expectation has a recursion ----


def _margin(product: Any, start: Any, steps: int, noise: Any, share: Any = 1) -> Any:
    """(right − left) of Theorem 2 over the larger, for 𝓛 = βθ²/2, θ₁ = start and E‖g − ∇𝓛‖² = (β·noise)².

    `product` is ηβ. E θ² follows E θ² ← (1 − ηβ)² E θ² + η²σ²; 𝓛(θ*) = 0; both sides over β². Fractions stay exact.
    A control has `share` ½: it loses the factor 2 of the first numerator.
    """
    square, total = start**2, 0 * start
    for _ in range(steps):
        total = total + square
        square = (1 - product) ** 2 * square + product**2 * noise**2
    left = total / steps
    right = share * start**2 / (product * (2 - product) * steps) + product * noise**2 / (2 - product)
    return (right - left) / max(abs(left), abs(right))


def _exactly(product: float, start: float, steps: int, noise: float) -> tuple[float, float]:
    """The margin in exact rationals, closed outwards by one part in 10¹⁵."""
    exact = float(_margin(Fraction(product), Fraction(start), steps, Fraction(noise)))
    return exact - 1e-15 * abs(exact), exact + 1e-15 * abs(exact)


_START = {"start": (0.01, 10, "log"), "steps": (1, 40, "whole"), "noise": (0, 3)}
theorem_2 = inequality(
    domain={"product": (1e-3, 1.99), **_START},
    settings=grid(product=[0.1536, 1.0, 1.536], start=[1.0], steps=[1, 40], noise=[0.0, 1.1, 1.3]),
    control={"share": 0.5},
    obligations=[
        "ηβ < 2, which the statement does not ask for",
        "a constant learning rate; gradients unbiased, neither clipped nor averaged over K smoothing samples",
        "σ ≥ 0 (printed: σ ≤ 0)",
    ],
)(_margin)
theorem_2_any_rate = inequality(
    domain={"product": (2.01, 6), **_START},
    settings=[{"product": 3.0, "start": 1.0, "steps": 10, "noise": 0.0}],
    control={"product": 1.0},
    tolerance=1e-9,
    enclosure=_exactly,
)(_margin)


@inequality(
    domain={"share": (1e-3, 1.99), "ratio": (0.01, 1), "drop": (1e-6, 10, "log"), "variance": (0, 10)},
    settings=[{"share": 0.1536, "ratio": 0.5, "drop": 2.3 / 6000, "variance": 1.21}],
    control={"sign": -1},
    obligations=["it compares two upper bounds, not the two sums of squared gradients"],
)
def smoother_bound_is_smaller(share: float, ratio: float, drop: float, variance: float, sign: int = 1) -> float:
    """Theorem 2's right side at ηβ = `share` less the one at the smaller ηβ·ratio, η = 1, relative to the first.

    `drop` is (E𝓛(θ₁) − E𝓛(θ*))/T; the control has a minus sign before the second term.
    """
    more, less = (2 * drop / (2 - x) + sign * x * variance / (2 - x) for x in (share, share * ratio))
    return (more - less) / abs(more)


@shown(control={"slope": "0"}, pair="sin θ + cθ and its smoothed version at the loss's minimum, T = 1, no noise")
def smoothed_gradients_are_smaller(slope: str, scale: float) -> Shown:
    """Whether the smoothed gradient is no longer where the loss's is 0; without a slope it is.

    Smoothing multiplies the wave by e^{−s²/2}, so that the smoothed gradient is c(1 − e^{−s²/2}), above 0.
    """
    with mpmath.workdps(30):
        c, s = mpmath.mpf(slope), mpmath.mpf(scale)
        place = 2 * mpmath.pi - mpmath.acos(-c)  # cos θ = −c and sin θ < 0: a minimum
        left = float((mpmath.cos(place) + c) ** 2)
        right = float((mpmath.exp(-(s**2) / 2) * mpmath.cos(place) + c) ** 2)
        integral = mpmath.quad(lambda z: (mpmath.cos(place + s * z) + c) * mpmath.npdf(z), mpmath.linspace(-9, 9, 13))
    reason = f"the squared gradient is {left:.2g} for the loss and {right:.3g} for the smoothed one"
    evidence = {"original": left, "smoothed": right, "scale": scale}
    return Shown(right <= left + 1e-20, reason, right, evidence, {"closed form": right, "integral": float(integral**2)})


@shown(control={"power": Fraction(1, 4)})
def second_term_dominates(power: Fraction = Fraction(3, 4)) -> Shown:
    """Ratio of the second to the first term of Theorem 2 at η = T^−power in ω(1/T), with βσ² = 2(𝓛₁ − 𝓛*).

    Both sides of the ratio are taken at T = 16^k, where η is exact; T^{1 − 2·power} is the second route.
    """
    rates = {Fraction(16) ** k: Fraction(1, 2 ** int(4 * k * power)) for k in (4, 8, 12)}
    ratios = [float(rate / (1 / (rate * steps))) for steps, rate in rates.items()]
    growth = [float(rate * steps) for steps, rate in rates.items()]
    reason = f"at η = T^-{float(power):g}: ηT = {growth}, second term over first = {ratios}"
    routes = {"terms at T = 16^12": ratios[-1], "exponent 1 - 2 power": 16.0 ** (12 * float(1 - 2 * power))}
    return Shown(ratios[0] < ratios[1] < ratios[2], reason, ratios[-1], {"eta_times_T": growth}, routes)


# ---- Theorems 3 and 4: all datasets, all batches, all records of a small problem ----

# 𝓛_train(θ, x) = β(θ − reach·x)²/2, θ₀ = 0, batches of one record, no noise; 𝓛(θ, x) = −θx (Lipschitz 1), x = ±1
Data = tuple[int, ...]
_STEP = {"rate": (0.01, 2, "log"), "curvature": (0.01, 3, "log"), "clip": (0.1, 3, "log"), "reach": (0.1, 10, "log")}
_small_problem = functools.partial(
    inequality,
    domain={**_STEP, "records": (2, 3, "whole"), "steps": (1, 3, "whole")},
    settings=grid(rate=[0.1536, 1.536], curvature=[0.2], clip=[1.0], reach=[10.0], records=[3], steps=[3]),
    tolerance=1e-9,
    examples=60,
    pair="all data sets of two or three records ±1, all sequences of up to three batches of one",
)


def _trained(data: Data, picks: Data, rate: float, curvature: float, clip: float, reach: float) -> float:
    """θ_T."""
    place = 0.0
    for pick in picks:
        place -= rate * max(-clip, min(clip, curvature * (place - reach * data[pick])))
    return place


def _step(steps: int, rate: float, curvature: float, clip: float, reach: float) -> float:  # noqa: ARG001
    """ηC(1 + ηβ)^{T−1}."""
    return rate * clip * (1 + rate * curvature) ** (steps - 1)


def _means(records: int, steps: int, **problem: float) -> dict[Data, float]:
    """E θ_T over all sequences of batches, by the data."""
    sequences = list(itertools.product(range(records), repeat=steps))
    return {
        data: math.fsum(_trained(data, picks, **problem) for picks in sequences) / len(sequences)
        for data in itertools.product((-1, 1), repeat=records)
    }


def _gap(means: Mapping[Data, float]) -> float:
    """|E[population loss − training loss]|."""
    return abs(math.fsum(mean * sum(data) / len(data) for data, mean in means.items())) / len(means)


@_small_problem(
    control={"times": 1},
    obligations=[
        "batches of one size, drawn evenly, the same size for both datasets",
        "every per-record training loss β-smooth: for Algorithm 2 the K-sample average, not its expectation",
        "clipping is a projection, so it does not lengthen differences (claim appendix-c-clipping)",
        "the noise is the same for both datasets and cancels",
    ],
)
def theorem_3(records: int, steps: int, times: int = 0, **problem: float) -> float:
    """The bound less the gap, over the bound; the control loses the factor T (the differing record counted once)."""
    bound = 2 * (times or steps) / records * _step(steps, **problem)
    return 1 - _gap(_means(records, steps, **problem)) / bound


@_small_problem(
    control={"divided": True},
    obligations=["independent records; Definition 6 for every pair of neighbours in both orders"],
)
def theorem_4(records: int, steps: int, divided: bool = False, **problem: float) -> float:
    """s less the gap, over s; s is the largest E[𝓛(θ_D, x) − 𝓛(θ_D′, x)] over neighbours and x. The control has s/n."""
    means = _means(records, steps, **problem)
    stability = max(
        abs(mean - means[(*data[:at], -data[at], *data[at + 1 :])])
        for data, mean in means.items()
        for at in range(records)
    )
    return 1 - (records if divided else 1) * _gap(means) / stability


@_small_problem(control={"each": 1}, obligations=["batches of one record here, so qn = 1"])
def appendix_c_path(records: int, steps: int, each: int = 2, **problem: float) -> float:
    """1 − |θ_T − θ′_T| over N₁·(2ηC/(qn))·(1 + ηβ)^{T−1}, for the worst data and batches.

    The control has C in place of 2C: the differing record taken as added, not replaced.
    """
    worst = 0.0
    sequences = [picks for picks in itertools.product(range(records), repeat=steps) if 0 in picks]  # else they agree
    for data, picks in itertools.product(itertools.product((-1, 1), repeat=records), sequences):
        apart = abs(_trained(data, picks, **problem) - _trained((-data[0], *data[1:]), picks, **problem))
        worst = max(worst, apart / (picks.count(0) * each * _step(steps, **problem)))
    return 1 - worst


@inequality(
    domain={"first": (0.01, 10, "log"), "second": (0.01, 10, "log"), "angle": (0, math.pi), "clip": (0.1, 3, "log")},
    settings=[{"first": 2.0, "second": 0.5, "angle": 1.0, "clip": 1.0}],
    control={"always": True},
    obligations=["the ℓ₂ norm: clipping is the projection onto a ball"],
)
def appendix_c_clipping(first: float, second: float, angle: float, clip: float, always: bool = False) -> float:
    """‖g − g′‖ − ‖clip(g) − clip(g′)‖ in the plane; the control scales every gradient to norm C."""
    a, b = (clip if always else min(norm, clip) for norm in (first, second))
    towards = complex(math.cos(angle), math.sin(angle))
    return abs(first - second * towards) - abs(a - b * towards)
