"""Rényi losses of DPIS: conversion (2), equations (3), (6) and (13), Lemmas 2.5-3.1 and every step of the proof."""

from __future__ import annotations

import math
from typing import Any

import mpmath

from dpbench.judging.claims.judges import Shown, formula, grid, inequality, shown
from dpbench.judging.papers.dpis2022.divergences import (
    BATCH,
    NOISE,
    SIZE,
    Mixture,
    added,
    ball,
    converted,
    loss,
    renyi,
    subsampled,
)
from dpbench.judging.papers.mathematics import Real, ends, moment_integral

# ---- equation (2), Lemma 2.5 ----


@formula(
    settings=grid(order=["1.5", "2", "8", "32", "64"], tau=["0.1", "3"], delta=["1e-5"]),
    control={"sign": 1},
    digits=15,
    precision=25,
)
def equation_2(order: Any, tau: Any, delta: Any, sign: int = -1) -> tuple[Any, Any]:
    """ε by (2), and the ε at which the worst loss L with E e^{(α−1)L} = e^{(α−1)τ} has E (1 − e^{ε−L})₊ = δ.

    The best c with (1 − e^{−u})₊ ≤ c·e^{(α−1)u} for all u = L − ε is found by maximizing numerically.
    """
    logarithms = (order - 1) * mpmath.log(1 - 1 / order) + sign * mpmath.log(order) - mpmath.log(delta)
    bracket = (mpmath.mpf("0.1") / order, 2 / (order - 1))
    worst = mpmath.findroot(lambda u: 1 / mpmath.expm1(u) - (order - 1), bracket, solver="ridder")
    constant = -mpmath.expm1(-worst) * mpmath.exp(-(order - 1) * worst)
    return tau + logarithms / (order - 1), tau + mpmath.log(constant / delta) / (order - 1)


@inequality(
    domain={"order": (1.01, 512, "log"), "delta": (1e-9, 0.1, "log")},
    settings=[{"order": 2.0, "delta": 1e-5}, {"order": 32.0, "delta": 1e-5}],
    control={"logarithms": 1.5},
    obligations=["log(1 − 1/α) < 0 and log(α)/(α−1) > 0 for every α > 1"],
    examples=40,
)
def conversion_tighter(order: float, delta: float, logarithms: float = 0.0) -> float:
    """ε of the moments accountant's conversion less that of (2), for τ = 0."""
    return math.log(1 / delta) / (order - 1) - converted(order, 0.0, delta) - logarithms * math.log(order)


_CHANNEL = {"keep": (0.02, 0.98), "flip": (0.02, 0.98)}


@inequality(
    domain={"order": (1.1, 20, "log"), "p": (0.01, 0.99), "q": (0.01, 0.99), **_CHANNEL},
    settings=[{"order": 2.0, "p": 0.3, "q": 0.6, "keep": 0.9, "flip": 0.2}],
    control={"channel": False},
    obligations=["the function looks at the output only, and adds randomness of its own at most"],
    examples=80,
    pair="two outcomes with the probabilities p, 1−p and q, 1−q; M keeps 0 with `keep` and sends 1 to 0 with `flip`",
)
def lemma_2_8(order: float, p: float, q: float, keep: float, flip: float, channel: bool = True) -> float:
    """D(P‖Q) − D(PM‖QM); the control squares the odds, which no channel does."""

    def divergence(first: float, second: float) -> float:
        parts = ((first, second), (1 - first, 1 - second))
        return math.log(sum(b * (a / b) ** order for a, b in parts)) / (order - 1)

    def after(x: float) -> float:
        return x * keep + (1 - x) * flip if channel else x**2 / (x**2 + (1 - x) ** 2)

    return divergence(p, q) - divergence(after(p), after(q))


# ---- equations (6) and (13): the printed sums against the integral ----


def integrated(order: Real, rate: Real, shift: Real) -> Real:
    """`loss` in mpmath, at the precision in force."""
    return mpmath.log(moment_integral(rate, 1 / mpmath.mpf(shift), order)) / (order - 1)


def binomial_sum(order: int, rate: Real, shift: Real, factor: int = 1) -> Real:
    """The same as equations (6) and (13) print it, with exp(factor·(m²−m)·shift²/2)."""
    q, s = mpmath.mpf(rate), mpmath.mpf(shift)
    terms = [
        mpmath.binomial(order, m) * (1 - q) ** (order - m) * q**m * mpmath.exp(factor * (m * m - m) * s**2 / 2)
        for m in range(order + 1)
    ]
    return mpmath.log(mpmath.fsum(terms)) / (order - 1)


_POINTS = grid(order=[2, 6], unit=["0.0043", "0.1"], noise=["0.81"], fill=["1", "0.25"])


@formula(settings=_POINTS, precision=30, control={"factor": 2})
def printed_sum(order: int, unit: Any, noise: Any, fill: Any, factor: int = 1) -> tuple[Any, Any]:
    """Equation (13) against the divergence of its pair; at fill 1 the sum is (6), and the pair that of DP-SGD."""
    return binomial_sum(order, unit / fill, fill / noise, factor), integrated(order, unit / fill, fill / noise)


@formula(settings=_POINTS, precision=30)
def misprinted_sum(order: int, unit: Any, noise: Any, fill: Any, power: int, factor: int) -> tuple[Any, Any, Any]:
    """(13) with fill^power/σ_G for the shift and `factor` for the 1 before its exponent; the corrected one is (13)."""
    corrected, defined = printed_sum(order, unit, noise, fill)
    return binomial_sum(order, unit / fill, fill**power / noise, factor), defined, corrected


@formula(settings=grid(order=["2", "5", "2.5"], noise=["0.81", "3"]), control={"divisor": 1}, precision=30)
def full_sample(order: Any, noise: Any, divisor: int = 2) -> tuple[Any, Any]:
    """α/(2σ²), and the integral at p = 1."""
    return order / (divisor * noise**2), integrated(order, 1, 1 / noise)


# ---- explicit datasets on the line ----

_STEP: dict[str, Any] = {"order": (2, 6, "whole"), "rate": (0.004, 0.99, "log"), "shift": (0.05, 2.5, "log")}
_AT = {"order": 4, "rate": BATCH / SIZE, "shift": 1 / NOISE}


@inequality(
    domain=_STEP | {"value": (-1, 1), "other": (-1, 1)},
    settings=[_AT | {"value": 1.0, "other": 1.0}, _AT | {"rate": 2 * BATCH / SIZE, "value": 1.0, "other": -0.5}],
    control={"tighter": 0.9},
    tolerance=1e-10,
    obligations=[
        "a record is added or removed (one that is replaced moves the sum from +C to −C)",
        "records are drawn independently, each with exactly p or b‖ḡ‖/K̃, and bC ≤ K̃, so that this is a probability",
        "the weight is 1/(N p(x)) with p = ‖ḡ‖/K̃, as in equation (7); the 1/b before the sum scales the variable",
        "K̃, Ñ, C and σ_G were released before, so that the batches of the others are as probable under both",
        "D(G(D) ‖ G(D')) is not larger than D(G(D') ‖ G(D)); α is a whole number for the closed form",
    ],
    examples=60,
    pair="D = {one record} and D' = D ∪ {z}, gradients other·C and value·C on a line; both directions",
)
def one_iteration(
    weighted: bool, own: bool, order: int, rate: float, shift: float, value: float, other: float, tighter: float = 1.0
) -> float:
    """The bound of Lemma 3.1, or with `own` that for z's own norm, less the divergence.

    `weighted`: a record is drawn with rate·norm and moves the sum by shift, as in (7); else with the rate, by
    norm·shift, as in (3).
    """

    def drawn(norm: float) -> Mixture:
        return subsampled(rate * abs(norm), math.copysign(shift, norm)) if weighted else subsampled(rate, norm * shift)

    claimed = loss(order, tighter * rate * (abs(value) if own else 1), shift)
    without = drawn(other)
    with_z = added(without, drawn(value))
    return claimed - max(renyi(order, with_z, without), renyi(order, without, with_z))


@shown(
    control={"replaced": False},
    pair="records of gradient 0 and one of C e_1, exchanged for −C e_1; in the control removed",
)
def definition_2_1(replaced: bool = True) -> Shown:
    """One iteration of DP-SGD at Figure 1's σ_G and b = 256, order 4, against equation (6)."""
    order, rate, shift = 4, BATCH / SIZE, 1 / NOISE
    present, absent = subsampled(rate, shift), subsampled(rate, -shift if replaced else 0.0)
    granted, lost = loss(order, rate, shift), renyi(order, present, absent)

    def density(x: Any, parts: Any) -> Any:
        return sum(weight * mpmath.npdf(x, mean) for weight, mean in parts)

    nodes = [-14, -4, 0, order * shift / 2, order * shift + 3, 2 * order * shift + 14]
    moment = mpmath.quad(lambda x: density(x, present) ** order * density(x, absent) ** (1 - order), nodes)
    routes = {"trapezoids": lost, "quadrature": float(mpmath.log(moment) / (order - 1)), "equation (6)": granted}
    reason = f"an iteration loses {lost:.6g} at order {order}, equation (6) says {granted:.6g}"
    evidence = {"lost": lost, "granted": granted, "sum_moves_by_clip_norms": 2 if replaced else 1}
    return Shown(lost <= granted * (1 + 1e-9), reason, lost / granted, evidence, routes)


@inequality(
    domain=_STEP | {"share": (0.02, 1)},
    settings=[_AT | {"share": 1.0}],
    control={"exponent": 1},
    enclosure=lambda order, rate, shift, share: ends(
        ball(order, rate, shift) - ball(order, rate * share, shift * math.sqrt(2))
    ),
    examples=40,
)
def proof_last_inequality(order: int, rate: float, shift: float, share: float, exponent: int = 2) -> float:
    """τ of the last line, exponent (m²−m)·shift²/2 at bC/K̃, less the line before, as printed without the 1/2."""
    return loss(order, rate, shift) - loss(order, rate * share, shift * math.sqrt(exponent))


# ---- monotonicity ----


_PLACE: dict[str, Any] = {"order": (2, 6, "whole"), "unit": (0.002, 0.1, "log"), "noise": (0.42, 3), "place": (0, 1)}
_HALF = {"order": 4, "unit": BATCH / SIZE, "noise": NOISE, "place": 0.5}


@inequality(
    domain=_PLACE | {"share": (0.1, 1)},
    settings=[_HALF | {"share": 1.0}],
    control={"above": False},
    obligations=["‖ḡ‖ ≥ K̃/N: a record below the average is drawn less, weighs more and costs more than before"],
    examples=50,
)
def weight_compensates(order: int, unit: float, share: float, place: float, noise: float, above: bool = True) -> float:
    """Loss of a record of norm share·C when drawn uniformly, less its loss under (7), for a mean norm K̃/N.

    That lies between unit and share of C (the record is larger than average); in the control between share and 1.
    """
    low, high = (unit, share) if above else (share, 1.0)
    mean = low + place * (high - low)
    return loss(order, unit, share / noise) - loss(order, min(unit * share / mean, 1.0), mean / noise)


@inequality(
    domain=_PLACE | {"unit": (0.002, 0.5, "log"), "place": (0.01, 0.99), "rest": (0.02, 1), "rise": (0.02, 1)},
    settings=[
        _HALF | {"rest": 1.0, "rise": 0.02},
        {"order": 2, "unit": BATCH / SIZE, "place": 0.02, "noise": 0.5, "rest": 0.02, "rise": 1.0},
    ],
    control={"sign": -1},
    obligations=[
        "rate × shift does not depend on K̃, so a larger K̃ spreads the mixing law and keeps its mean",
        "the moment is convex in every one of its α independent means, so it grows with that spread",
        "K̃ ≤ ÑC, which (12) enforces; for DP-SGD beside it the same α, b, iterations and Ñ, nothing paid for K̃ and Ñ",
    ],
    examples=60,
)
def grows(order: int, unit: float, place: float, noise: float, rest: float, rise: float, sign: int = 1) -> float:
    """The loss at a larger K̃ (`rest` of the way to ÑC, rest 1 is DP-SGD) less that with more noise, by 1 + rise."""
    fill = unit + place * (1 - unit)
    more = fill + rest * (1 - fill)
    found = loss(order, min(unit / more, 1.0), more / noise) - loss(order, unit / fill, fill / (noise * (1 + rise)))
    return sign * found
