"""Section 2 of DPIS: conversion, sampled Gaussian, clipping, DP-SGD: equations (2)-(6), Lemmas 2.5-2.9.

| paper | here |
| --- | --- |
| α, τ, δ | order, loss, delta |
| p, b/N | rate |
| σ, σ_G | noise |
| C | bound |
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range
from dpbench.papers.dpis2022.divergences import (
    ALONE,
    Mixture,
    converted,
    mixture_renyi,
    quadrature,
    subsampled,
    subsampled_renyi,
)
from dpbench.papers.dpis2022.enumeration import expectation

# ---- equation (2), Lemma 2.5 ----


def _converted(order: Any, loss: Any, delta: Any) -> Any:
    import mpmath

    order, loss, delta = map(mpmath.mpf, (order, loss, delta))
    return loss + (mpmath.log(1 / delta) + (order - 1) * mpmath.log(1 - 1 / order) - mpmath.log(order)) / (order - 1)


def _converted_without_square(order: Any, loss: Any, delta: Any) -> Any:
    import mpmath

    return _converted(order, loss, delta) + 2 * mpmath.log(order) / (mpmath.mpf(order) - 1)


def _smallest_epsilon(order: Any, loss: Any, delta: Any) -> Any:
    """ε at which the worst loss variable with E e^{(α−1)L} = e^{(α−1)τ} has E (1 − e^{ε−L})₊ = δ.

    The best constant c with (1 − e^{−u})₊ ≤ c·e^{(α−1)u} for all u = L − ε is found by maximizing numerically.
    """
    import mpmath

    order, loss, delta = map(mpmath.mpf, (order, loss, delta))

    def slope(u: Any) -> Any:
        return mpmath.exp(-u) / (1 - mpmath.exp(-u)) - (order - 1)

    worst = mpmath.findroot(slope, (mpmath.mpf("0.1") / order, mpmath.mpf(2) / (order - 1)), solver="ridder")
    constant = (1 - mpmath.exp(-worst)) * mpmath.exp(-(order - 1) * worst)
    return loss + mpmath.log(constant / delta) / (order - 1)


equation_2 = Formula(
    printed=_converted,
    definition=_smallest_epsilon,
    settings=tuple(
        {"order": order, "loss": loss, "delta": "1e-5"} for order in ("1.5", 2, 8, 32, 64) for loss in ("0.1", 3)
    ),
    twin=_converted_without_square,
    digits=15,
    precision=25,
)

conversion_not_above_classical = Inequality(
    margin=lambda order: math.log(1e5) / (order - 1) - converted(order, 0.0, 1e-5),
    domain={"order": Range(1.01, 512, "log")},
    settings=({"order": 2.0}, {"order": 32.0}),
    twin=lambda order: math.log(1e5) / (order - 1) - converted(order, 0.0, 1e-5) - 1.5 * math.log(order),
    obligations=("log(1 − 1/α) < 0 and log(α)/(α−1) > 0 for every α > 1",),
    examples=40,
)


# ---- equation (3), Lemma 2.7: explicit datasets on the line ----


def _sampled_gaussian_pair(order: int, rate: float, noise: float, value: float, other: float, claimed: float) -> float:
    """Margin of `claimed` for {other} and {other, value}, both directions; values in units of the sensitivity."""
    with_record = [
        (rate_other * rate_value, (mean + more) / noise)
        for rate_other, mean in ((1 - rate, 0.0), (rate, other))
        for rate_value, more in ((1 - rate, 0.0), (rate, value))
    ]
    without = [(1 - rate, 0.0), (rate, other / noise)]
    forward = mixture_renyi(order, with_record, without)
    return claimed - max(forward, mixture_renyi(order, without, with_record))


_SAMPLED = {
    "order": Range(2, 6, "whole"),
    "rate": Range(0.004, 0.9, "log"),
    "noise": Range(0.4, 2.5, "log"),
    "value": Range(-1, 1),
    "other": Range(-1, 1),
}
_SAMPLED_SETTINGS = (
    {"order": 4, "rate": 256 / 60000, "noise": 0.81, "value": 1.0, "other": 1.0},
    {"order": 2, "rate": 0.1, "noise": 0.81, "value": 1.0, "other": -1.0},
)

equation_3 = Inequality(
    margin=lambda order, rate, noise, value, other: _sampled_gaussian_pair(
        order, rate, noise, value, other, subsampled_renyi(order, rate, 1 / noise)
    ),
    domain=_SAMPLED,
    settings=_SAMPLED_SETTINGS,
    twin=lambda order, rate, noise, value, other: _sampled_gaussian_pair(
        order, rate, noise, value, other, subsampled_renyi(order, rate, 0.9 / noise)
    ),
    tolerance=1e-10,
    obligations=(
        "a record is added or removed (one that is replaced moves the sum from +1 to −1)",
        "records are drawn independently, each with probability p",
        "D(N(0) ‖ mixture) ≤ D(mixture ‖ N(0)) for the direction that is not written down",
    ),
    examples=60,
)


# ---- Lemma 2.8: postprocessing ----


def _contraction(order: float, p: float, q: float, keep: float, flip: float, channel: bool = True) -> float:
    """D(P‖Q) − D(PM‖QM) for two outcomes and the channel M that keeps 0 with `keep` and sends 1 to 0 with `flip`."""

    def divergence(first: float, second: float) -> float:
        parts = ((first, second), (1 - first, 1 - second))
        return math.log(sum(b * (a / b) ** order for a, b in parts)) / (order - 1)

    def after(x: float) -> float:
        return x * keep + (1 - x) * flip if channel else x**2 / (x**2 + (1 - x) ** 2)

    return divergence(p, q) - divergence(after(p), after(q))


_CHANNEL = {
    "order": Range(1.1, 20, "log"),
    "p": Range(0.01, 0.99),
    "q": Range(0.01, 0.99),
    "keep": Range(0.02, 0.98),
    "flip": Range(0.02, 0.98),
}

lemma_2_8 = Inequality(
    margin=_contraction,
    domain=_CHANNEL,
    settings=({"order": 2.0, "p": 0.3, "q": 0.6, "keep": 0.9, "flip": 0.2},),
    twin=lambda order, p, q, keep, flip: _contraction(order, p, q, keep, flip, channel=False),
    tolerance=1e-12,
    obligations=("the function looks at the output only, and adds randomness of its own at most",),
    examples=80,
)


# ---- importance sampling, Section 2.2 ----


def _importance(center: Any, tilt: Any, power: int) -> Any:
    """E_q[(p/q)^power g] with p = N(0, 1), q = N(center, 1), g(x) = e^{tilt x}, by quadrature."""
    import mpmath

    def integrand(x: Any) -> Any:
        weight = mpmath.exp(-center * x + center * center / 2) ** power
        return mpmath.npdf(x, center, 1) * weight * mpmath.exp(tilt * x)

    return mpmath.quad(integrand, [-15, center, 15])


def _plain_expectation(center: Any, tilt: Any) -> Any:  # noqa: ARG001
    import mpmath

    return mpmath.quad(lambda x: mpmath.npdf(x) * mpmath.exp(tilt * x), [-15, 0, 15])


importance_identity = Formula(
    printed=lambda center, tilt: _importance(center, tilt, 1),
    definition=_plain_expectation,
    settings=({"center": 1, "tilt": 0.5}, {"center": -0.5, "tilt": 1}, {"center": 2, "tilt": -0.25}),
    twin=lambda center, tilt: _importance(center, tilt, -1),
    digits=14,
    precision=25,
)


# ---- equations (4) and (5) ----


def _clipped(x: float, y: float, bound: float, divisor: float) -> float:
    """The norm after clipping (x, y): at most `bound`, and unchanged where it was smaller; the margin of both."""
    norm = math.hypot(x, y)
    after = norm / max(1.0, norm / divisor)
    return min(bound - after, bound * 1e-12 - abs(after - norm) if norm <= bound else bound - after)


equation_4 = Inequality(
    margin=lambda x, y, bound: _clipped(x, y, bound, bound),
    domain={"x": Range(-30, 30), "y": Range(-30, 30), "bound": Range(0.05, 10, "log")},
    settings=({"x": 3.0, "y": 4.0, "bound": 1.0},),
    twin=lambda x, y, bound: _clipped(x, y, bound, 2 * bound),
    tolerance=1e-12,
    obligations=("C > 0: for a negative C the printed line does not clip at all (see equation (17))",),
    examples=60,
)


def _sum_moves(x: float, y: float, others: float, bound: float, claimed: float) -> float:
    """Margin of `claimed` for the change of the clipped sum when the record (x, y) joins a batch of other records."""
    norm = math.hypot(x, y)
    factor = 1 / max(1.0, norm / bound)
    moved = (others + x * factor, others + y * factor)
    return claimed - math.hypot(moved[0] - others, moved[1] - others)


clipped_sum_sensitivity = Inequality(
    margin=lambda x, y, others, bound: _sum_moves(x, y, others, bound, bound),
    domain={"x": Range(-9, 9), "y": Range(-9, 9), "others": Range(-50, 50), "bound": Range(0.1, 5, "log")},
    settings=({"x": 3.0, "y": 4.0, "others": 10.0, "bound": 1.0},),
    twin=lambda x, y, others, bound: _sum_moves(x, y, others, bound, bound / 2),
    tolerance=1e-12,
    obligations=("a record is added or removed; one that is replaced moves the sum by up to 2C",),
    examples=60,
)


def _single_record(replaced: bool) -> Shown:
    """Data sets that differ in one record of norm C, one iteration of DP-SGD at Figure 1's settings, order 4.

    `replaced`: one record C is exchanged for −C, and both sets have N records; else one record C is added.
    """
    import mpmath

    order, rate, shift = 4, 256 / 60000, 1 / 0.81
    granted = subsampled_renyi(order, rate, shift)
    without = subsampled(rate, -shift) if replaced else ALONE
    lost = mixture_renyi(order, subsampled(rate, shift), without)

    def density(x: Any, parts: Mixture) -> Any:
        return sum(weight * mpmath.npdf(x, mean) for weight, mean in parts)

    with_record = subsampled(rate, shift)
    nodes = [-14, -4, 0, order * shift / 2, order * shift + 3, 2 * order * shift + 14]
    moment = mpmath.quad(lambda x: density(x, with_record) ** order * density(x, without) ** (1 - order), nodes)
    routes = {"trapezoids": lost, "quadrature": float(mpmath.log(moment) / (order - 1)), "equation (6)": granted}
    words = f"an iteration loses {lost:.6g} at order {order}, equation (6) says {granted:.6g}"
    evidence = {"lost": lost, "granted": granted, "sum_moves_by_clip_norms": 2 if replaced else 1}
    return Shown(lost <= granted * (1 + 1e-9), words, lost / granted, evidence, routes)


definition_2_1 = Demonstration(lambda: _single_record(replaced=True), twin=lambda: _single_record(replaced=False))


def _dp_sgd_mean(inverse: bool) -> Shown:
    """E of the sum over a Bernoulli batch over b, all batches enumerated in exact fractions."""
    gradients = (Fraction(3), Fraction(-1), Fraction(7, 2), Fraction(1, 3))
    batch = Fraction(3, 2)
    rates = [batch / len(gradients)] * len(gradients)
    found = expectation(rates, lambda members: sum((gradients[i] for i in members), Fraction(0)) / batch)
    if inverse:  # the mean over the batch that was drawn, 0 where it is empty
        found = expectation(
            rates, lambda members: sum((gradients[i] for i in members), Fraction(0)) / max(len(members), 1)
        )
    mean = sum(gradients, Fraction(0)) / len(gradients)
    words = f"the expectation is {found} where the mean of the clipped gradients is {mean}"
    return Shown(found == mean, words, float(found), {"mean": float(mean), "batches": 2 ** len(gradients)})


equation_5 = Demonstration(lambda: _dp_sgd_mean(False), twin=lambda: _dp_sgd_mean(True))


# ---- equation (6), Lemma 2.9 ----


def _binomial_sum(order: int, rate: Any, noise: Any, divisor: Any = 2) -> Any:
    import mpmath

    rate, noise = mpmath.mpf(rate), mpmath.mpf(noise)
    total = mpmath.mpf(0)
    for m in range(order + 1):
        exponent = mpmath.mpf(m * m - m) / (divisor * noise**2)
        total += mpmath.binomial(order, m) * (1 - rate) ** (order - m) * rate**m * mpmath.exp(exponent)
    return mpmath.log(total) / (order - 1)


def _defined(order: int, rate: Any, noise: Any) -> Any:
    import mpmath

    return quadrature(order, mpmath.mpf(rate), 1 / mpmath.mpf(noise))


equation_6 = Formula(
    printed=_binomial_sum,
    definition=_defined,
    settings=(
        {"order": 2, "rate": 256 / 60000, "noise": 0.81},
        {"order": 5, "rate": 256 / 60000, "noise": 0.81},
        {"order": 3, "rate": 0.1, "noise": 0.42},
        {"order": 8, "rate": 0.02, "noise": 1.7},
    ),
    twin=lambda order, rate, noise: _binomial_sum(order, rate, noise, divisor=1),
    digits=12,
    precision=30,
)


def _gaussian_loss(order: Any, noise: Any, divisor: int = 2) -> Any:
    import mpmath

    return mpmath.mpf(order) / (divisor * mpmath.mpf(noise) ** 2)


full_sample = Formula(
    printed=_gaussian_loss,
    definition=lambda order, noise: _defined(order, 1, noise),
    settings=({"order": 2, "noise": 0.81}, {"order": 5, "noise": 1.7}, {"order": 2.5, "noise": 3}),
    twin=lambda order, noise: _gaussian_loss(order, noise, divisor=1),
    digits=12,
    precision=30,
)
