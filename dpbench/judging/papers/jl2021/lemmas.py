"""Lemmas 4.1 to 4.3 and Theorem 4.1 of jl2021. Laws of Z are lists of (value, probability), or Z_r itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
from flint import arb, ctx
from scipy.integrate import quad
from scipy.special import gammaln, ndtr

from dpbench.events import Composition, DiscretePair
from dpbench.judging.claims.judges import formula, grid, inequality
from dpbench.judging.papers.jl2021.sensitivity import Run
from dpbench.judging.papers.jl2021.tradeoff import corollary_b_2_as_printed, errors
from dpbench.judging.papers.mathematics import (
    Ball,
    ends,
    gaussian_delta,
    hockey_stick,
    interval,
    true_curve,
    upper_tail,
)
from dpbench.privacy.accounting import load_accountant

Real = Any  # an mpmath number
LAWS = {
    "one": ((1.2, 1.0),),
    "two": ((0.4, 0.7), (2.5, 0.3)),
    "three": ((0.2, 0.5), (1.0, 0.25), (6.0, 0.25)),
}
NOISE = {"sigma": (0.4, 4.0, "log"), "projections": (1, 40, "whole")}
SETTINGS = grid(law=LAWS, t=["-0.4", "4"])

# ---- Lemma 4.1 ----


def mean(law: str, function: Callable[[Real], Real]) -> Real:
    """E[function(Z)]."""
    return sum(mpmath.mpf(weight) * function(mpmath.mpf(z)) for z, weight in LAWS[law])


def error(law: str, t: Real, which: str) -> Real:
    """Either error of the test that rejects where the log ratio is at least t, integrated."""
    return mean(law, lambda z: errors(z, t)[which])


@formula(settings=SETTINGS, control={"sign": 1}, scale=1.0, digits=10, precision=16)
def lemma_4_1(law: str, t: Real, which: str, sign: int = -1) -> tuple[Real, Real]:
    """E[Φ(−t/Z − Z/2)] or E[Φ(t/Z − Z/2)], and the error by integration."""
    return mean(law, lambda z: corollary_b_2_as_printed(z, t, sign)[which]), error(law, t, which)


@formula(settings=SETTINGS, control={"sign": 1}, scale=1.0, digits=9, precision=16)
def lemma_4_1_curve(law: str, t: Real, sign: int = -1) -> tuple[Real, Real]:
    """β(t), and f(α(t)) by duality: f(α) >= 1 − δ − e^t α for δ = ∫∫ (Q − e^t P)₊, with equality at t."""
    printed = mean(law, lambda z: corollary_b_2_as_printed(z, t, sign)["beta"])
    return printed, 1 - mean(law, lambda z: hockey_stick(t, z)) - mpmath.exp(t) * error(law, t, "alpha")


@formula(settings=SETTINGS[::3], control={"sign": -1}, scale=1.0, digits=6, precision=18)
def lemma_4_1_derivative(law: str, t: Real, which: str, sign: int = 1) -> tuple[Real, Real]:
    """∓e^{∓t/2}/√(2π) E[exp(−t²/(2Z²) − Z²/8)/Z], or their ratio −e^t, and the derivatives of the integrals."""
    if which == "ratio":
        rise, fall = (mpmath.diff(lambda s, one=one: error(law, s, one), t) for one in ("beta", "alpha"))
        return -mpmath.exp(sign * t), rise / fall
    side = -1 if which == "alpha" else 1
    inner = mean(law, lambda z: mpmath.npdf(t / z) * mpmath.exp(-(z**2) / 8) / z)
    return sign * side * mpmath.exp(side * t / 2) * inner, mpmath.diff(lambda s: error(law, s, which), t)


# ---- Lemma 4.2 ----


@inequality(
    domain={
        "one": (0.01, 6.0, "log"),
        "two": (0.01, 6.0, "log"),
        "share": (0.0, 1.0),
        "first": (0.001, 1.0),
        "second": (0.001, 1.0),
        "epsilon": (0.0, 10.0),
    },
    settings=[{"one": 1 / 1.3, "two": 2.0, "share": 0.5, "first": 0.5, "second": 0.9, "epsilon": 1.0}],
    control={"on_average": True},
    obligations=["δ_Z(ε) = E[δ_z(ε)]", "δ_z(ε) grows with z", "f is lower where δ is higher at every ε"],
)
def lemma_4_2(
    one: float, two: float, share: float, first: float, second: float, epsilon: float, on_average: bool = False
) -> float:
    """δ_Z(ε) − δ_Z̃(ε), Z̃ the share `first` or `second` of Z's two values; `on_average`: Z = `one`, spread."""
    if on_average:
        return _two_point(1, one, one, epsilon) - _two_point(0.5, one * first, one * (2 - first), epsilon)
    return _two_point(share, one, two, epsilon) - _two_point(share, one * first, two * second, epsilon)


def _two_point(share: float, one: float, two: float, epsilon: float) -> float:
    return share * gaussian_delta(epsilon, one) + (1 - share) * gaussian_delta(epsilon, two)


def _step_enclosed(larger: float, ratio: float, epsilon: float) -> tuple[float, float]:
    def delta(mu: Ball) -> Ball:
        return upper_tail(epsilon / mu - mu / 2) - arb(epsilon).exp() * upper_tail(epsilon / mu + mu / 2)

    with ctx.workprec(128):
        return ends(delta(arb(larger) * ratio) - delta(arb(larger)))


@inequality(
    domain={"larger": (0.1, 4.0), "ratio": (0.1, 1.0), "epsilon": (0.0, 5.0)},
    settings=[{"larger": 2.0, "ratio": 0.5, "epsilon": 1.0}],
    control={"sign": -1},
    enclosure=_step_enclosed,
)
def lemma_4_2_step(larger: float, ratio: float, epsilon: float, sign: int = 1) -> float:
    """δ_z̃(ε) − δ_z(ε) for z >= z̃: the step as printed says that this is at least 0."""
    return sign * (gaussian_delta(epsilon, larger * ratio) - gaussian_delta(epsilon, larger))


@formula(settings=grid(law=LAWS, t=["0", "0.7"]), control={"of_the_mean": True}, scale=1.0, digits=9, precision=16)
def lemma_4_2_mean(law: str, t: Real, of_the_mean: bool = False) -> tuple[Real, Real]:
    """E[δ_Z(t)], and ∫∫ (Z × N(Z, 1) − e^t Z × N(0, 1))₊."""

    def closed(z: Real) -> Real:
        return mpmath.ncdf(z / 2 - t / z) - mpmath.exp(t) * mpmath.ncdf(-z / 2 - t / z)

    return closed(mean(law, lambda z: z)) if of_the_mean else mean(law, closed), mean(law, lambda z: hockey_stick(t, z))


# ---- Lemma 4.3 and Theorem 4.1 ----


@formula(
    settings=grid(
        at=[(1, 1.3, 0.5), (2, 0.9, -1.0), (4, 0.9, 3.0), (10, 0.6, 2.0), (30, 0.5, 1.0)], which=["alpha", "beta"]
    ),
    control={"power": 2},
    digits=7,
    scale=1.0,
)
def lemma_4_3_curve(at: tuple[int, float, float], which: str, power: int = 1) -> tuple[float, ...]:
    """E[Φ(∓tσ/Z − Z/(2σ))] by the density of χ²_r/r = e^y, and by exchanging the integrals: over x of
    φ(x) P(Z/σ between the roots u of u²/2 − xu ± t)."""
    projections, sigma, t = at
    run, side, half, width = Run(1, 1, sigma, projections), 1 if which == "alpha" else -1, projections / 2, sigma**power

    def printed(y: float) -> float:
        density = math.exp(half * math.log(half) - gammaln(half) + half * (y - math.exp(y)))
        z = math.exp(-y / 2)
        return density * float(ndtr(-side * t * width / z - z / (2 * width)))

    def defined(x: float) -> float:
        root = math.sqrt(max(x * x - 2 * side * t, 0.0))
        between = run.tail(sigma * max(x - root, 0.0)) - run.tail(sigma * max(x + root, 0.0))
        return float(between) * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    levels = [-80 / projections - 6, -20 / projections - 2, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 8]
    edge = math.sqrt(2 * side * t) if side * t > 0 else -10.0
    starts = [edge, *(edge + k for k in (0.01, 0.3, 1, 2, 4, 8, 12, 20))]
    return tuple(
        sum(quad(function, a, b, epsabs=1e-11)[0] for a, b in pairwise(places))
        for function, places in ((printed, levels), (defined, starts))
    )


@inequality(
    domain={"length": (0.05, 1000.0, "log"), **NOISE, "epsilon": (0.0, 8.0)},
    settings=[
        {"length": 1000.0, "sigma": sigma, "projections": r, "epsilon": 2.4}
        for sigma, r in ((1.3, 1), (0.9, 10), (0.6, 30), (0.5, 4))
    ],
    control={"as_exact": True},
    tolerance=1e-8,
    obligations=[
        "given the projections, the other records' part of the sum is the same with and without the record",
        "given the record's estimated norm, the projections and the output are independent (Proposition 4.3)",
        "the noise is rotation invariant and independent of the projections",
        "min(|g|/C, Z_r) <= Z_r by the same projections (Lemma 4.2); |g| = 0 makes the estimate 0 and moves nothing",
    ],
    examples=25,
    pair="zeros, with or without one record of gradient `length` C; no sampling",
)
def lemma_4_3(length: float, sigma: float, projections: int, epsilon: float, as_exact: bool = False) -> float:
    """δ that the lemma grants less what the record's removal loses; `as_exact`: less what exact norms would grant."""
    run = Run(1, 1, sigma, projections, longest=length)
    granted = gaussian_delta(epsilon, 1 / sigma) if as_exact else run.granted(epsilon)
    return granted - run.lost(epsilon)[0]


@cache
def _composed(run: Run, cells: int) -> Any:
    """The curve of T outputs on the explicit datasets, rounded to cells: a lower bound that rises with `cells`."""
    edges = np.linspace(-4 * run.sigma, run.longest + 2 * run.sigma, cells - 1)
    there = np.maximum(-np.diff([1.0, *map(run.above, edges), 0.0]), 1e-30)
    without = np.diff([0.0, *ndtr(edges / run.sigma), 1.0])
    pair = DiscretePair(tuple(there / there.sum()), tuple(without / without.sum()))
    return load_accountant("lattice").curve(Composition(((pair, run.iterations),)))


@inequality(
    domain={"rate": (0.001, 0.9, "log"), **NOISE, "epsilon": (0.05, 8.0)},
    settings=[
        {"rate": rate, "sigma": sigma, "projections": r, "epsilon": epsilon, "steps": steps}
        for rate, sigma, r, epsilon, steps in (
            (256 / 60000, 1.3, 1, 2.4, 1),
            (256 / 50000, 0.9, 1, 5.55, 1),
            (256 / 25000, 0.6, 1, 8.0, 1),
            (256 / 60000, 1.3, 30, 0.5, 1172),
            (256 / 50000, 0.9, 10, 5.55, 3907),
            (256 / 25000, 0.6, 30, 8.0, 1954),
            (0.1, 1.0, 10, 1.0, 100),
        )
    ],
    control=[{"power": 2.0}, {"share": 0.25}],
    tolerance=1e-8,
    obligations=[
        "every record enters each batch independently with probability p (Poisson sampling), and neighbours differ by "
        "one record that is added or removed: with the fixed batches of the printed Algorithm 1 this fails",
        "the two directions are composed apart, then their minimum is taken, then its convex hull",
        "Lemma 4.3 holds for every state that earlier iterations may have led to",
    ],
    examples=12,
    pair="zeros, with or without one record of gradient 1e6 C, of 5 C where T > 1; loss <theta, x>",
)
def theorem_4_1(
    rate: float, sigma: float, projections: int, epsilon: float, steps: int, power: float = 1.0, share: float = 1.0
) -> float:
    """δ that the theorem grants less what the run loses on explicit datasets, of gradient 5 C where T > 1.

    One iteration is searched; of T, both directions and all outputs are composed, by cells with what halving them moves
    on top. `power` = 2: that sampling helps twice; `share`: that only that share of T iterations loses.
    """
    granted = Run(rate**power, 1, sigma, projections, math.ceil(steps * share))
    run = Run(rate, 1, sigma, projections, steps, longest=1e6 if steps == 1 else 5.0)
    if steps == 1:
        return granted.granted(epsilon) - run.lost(epsilon)[0]
    coarse, fine = (float(_composed(run, cells).delta(epsilon).value) for cells in (100, 200))
    return interval(true_curve(granted.releases).delta(epsilon))[0] - (2 * fine - coarse)
