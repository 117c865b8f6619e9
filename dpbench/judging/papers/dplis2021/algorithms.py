"""Algorithms 1 and 2 of dplis2021, line by line as printed, and the choice of the smoothing radius.

| paper | here |
| --- | --- |
| g_t(x_i), ḡ_t(x_i), g̃_t | gradient, clipped, released |
| C, σ, L, N, η, T | clip, noise, batch, records, rate, steps |
| K, R, ν_j | samples, radius, offsets |

Exact rationals wherever a line is arithmetic; the printed text is followed, never the package's mechanisms. Gradients
are in units of C where C is not named.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from flint import arb
from scipy.special import ndtr
from scipy.stats import norm

from dpbench.events import Composition, SampledGaussian
from dpbench.judging.claims.judges import Shown, grid, inequality, shown
from dpbench.judging.papers.mathematics import ends, gaussian_delta, true_curve, upper_tail

GRID = [Fraction(value, 2) for value in range(-6, 7)]  # gradients of one dimension, up to three clip norms
FOUR = (Fraction(1), Fraction(-1, 2), Fraction(1, 4), Fraction(1))  # clipped gradients of four records


def _clip(gradient: Fraction) -> Fraction:
    """The printed line at C = 1: g / max(1, |g|/C)."""
    return gradient / max(Fraction(1), abs(gradient))


@shown(control={"replaced": True}, pair="gradients 1 and -2, and one record more with a gradient from -3 to 3")
def clipping_sensitivity(replaced: bool = False, factor: int = 1) -> Shown:
    """Whether `factor` clip norms bound the change of Σ clip(g) when one record joins two others, or is replaced."""
    rest = sum(map(_clip, (Fraction(1), Fraction(-2))), Fraction(0))
    after = {g: rest + _clip(g) for g in GRID}
    before: dict[Fraction, Fraction] = after if replaced else {Fraction(0): rest}
    found = max(abs(a - b) for a in after.values() for b in before.values())
    words = "one record replaced" if replaced else "one record added or removed"
    evidence = {"change_in_clip_norms": float(found), "relation": words}
    routes = {"enumeration": float(found), "triangle inequality": 2.0 if replaced else 1.0}
    return Shown(found <= factor, f"{words}: the sum moves by up to {found} C", float(found), evidence, routes)


@shown(control={"factor": 2}, pair="gradients 1 and -2, and a third record whose gradient is 3 or -3")
def clipping_sensitivity_replaced(examples: int, batch: int, noise: float, steps: int, factor: int = 1) -> Shown:
    """Sensitivity C for one record replaced, and what the relation does to the exact ε of a run; the control has 2C."""
    found = clipping_sensitivity(True, factor)
    evidence: dict[str, Any] = {**found.evidence, "steps": steps}
    for relation in ("add_or_remove", "replace_one"):
        step: Any = SampledGaussian(batch / examples, noise, adjacency=relation)
        evidence[f"epsilon_{relation}"] = true_curve(Composition(((step, steps),))).epsilon(1e-5).value
    added, replaced = evidence["epsilon_add_or_remove"], evidence["epsilon_replace_one"]
    reason = f"{found.reason}; over {steps} steps ε is {added:.3g} for one added, {replaced:.3g} for one replaced"
    return Shown(found.holds, reason, replaced, evidence, found.routes)


@shown(control={"realised": True}, pair="all Poisson batches of four records with probability L/N = 1/2")
def sampling_line(realised: bool = False) -> Shown:
    """E g̃ over all batches against (1/N) Σ ḡ; the control divides by the size of the batch at hand."""
    batches = list(itertools.product((0, 1), repeat=4))  # all of them equally likely
    sums = (sum((v for v, taken in zip(FOUR, one, strict=True) if taken), Fraction(0)) for one in batches)
    divisors = (max(sum(one), 1) if realised else 2 for one in batches)
    expectation = sum((total / by for total, by in zip(sums, divisors, strict=True)), Fraction(0)) / 16
    size = Fraction(sum(map(sum, batches)), 16)
    mean = sum(FOUR, Fraction(0)) / 4
    reason = f"the released gradient's mean is {expectation}, the full one {mean}; the mean batch is {size}"
    return Shown(expectation == mean and size == 2, reason, float(expectation), {"batch": float(size)})


@shown(control={"after_division": True})
def noise_line(noise: str, clip: str, batch: int, after_division: bool = False) -> Shown:
    """Deviation of the noise in g̃ over the most that one added record moves the rest of g̃: has to be σ."""
    sigma, bound = Fraction(noise), Fraction(clip)
    deviation = sigma * bound / (1 if after_division else batch)
    change = max(abs(_clip(g)) for g in GRID) * bound / batch
    ratio = deviation / change
    reason = f"the noise of the released mean is {float(ratio):g} times its sensitivity, σ is {float(sigma):g}"
    return Shown(ratio == sigma, reason, float(ratio), {"deviation": float(deviation), "sensitivity": float(change)})


@shown(control={"first": 1})
def loop_line(steps: int, first: int = 0) -> Shown:
    """Which θ_t the loop from `first` on reads and nothing sets, where only θ_0 is given, and what it ends with."""
    loop = range(first, first + steps)
    unset = [t for t in loop if t and t - 1 not in loop]
    reason = f"{len(loop)} updates, the last sets θ_{loop[-1] + 1}; used before it is set: θ of {unset}"
    return Shown(not unset and loop[-1] + 1 == steps, reason, len(loop))


# ---- Algorithm 2: the smoothed gradient ----


def _added(place: Fraction, record: Fraction, offsets: Sequence[Fraction], each: bool = False) -> Fraction:
    """What a record adds to the sum: the mean of its gradients at θ + offset_j, clipped (or each clipped, no mean).

    The gradients are not linear in θ and of many clip norms.
    """
    slopes = [record * (1 + place + offset) ** 3 - place - offset for offset in offsets]
    return sum(map(_clip, slopes), Fraction(0)) if each else _clip(sum(slopes, Fraction(0)) / len(offsets))


@shown(control={"each": True}, pair="records -5, 1/3 and 4 at places from -3 to 3, two sets of K = 10 offsets")
def smoothed_gradient_line(each: bool = False) -> Shown:
    """The most that one record adds to the sum; the control clips every sample and adds them without 1/K."""
    regular = [Fraction(value, 20) for value in range(-9, 11, 2)]
    scattered = [Fraction((7 * value) % 11 - 5, 5) for value in range(10)]
    cases = itertools.product(GRID[::2], (Fraction(-5), Fraction(1, 3), Fraction(4)), (regular, scattered))
    found = max(abs(_added(*case, each=each)) for case in cases)
    return Shown(found <= 1, f"one record adds up to {float(found):g} C to the sum", float(found))


@inequality(
    domain={"epsilon": (0, 3), "noise": (0.7, 3, "log"), "record": (-6, 6)},
    settings=grid(epsilon=[0.1, 0.5, 1.0], noise=[1.1, 3.0], record=[5.0, -5.0]),
    control={"reused": True},
    tolerance=1e-6,  # of the sum over outputs, whose integrand has kinks
    obligations=[
        "the smoothing noise is drawn without looking at the data, and independently of the noise that is added",
        "for fixed smoothing noise a step is a step of Algorithm 1; δ of a mixture is at most the mixture's mean δ",
        "R, K and σ_smooth are fixed beforehand: they were not, see claim radius-selection",
    ],
    examples=80,
    pair="one step with q = 1 and C = 1: s(ν) + N(0, σ²) with the record, N(0, σ²) without it",
)
def same_privacy_as_dp_sgd(epsilon: float, noise: float, record: float, reused: bool = False) -> float:
    """δ of a Gaussian release with multiplier σ less that of one step of Algorithm 2 that hides its smoothing noise ν.

    ν is one of five equally likely draws; δ by summing over a grid of outputs. The control takes the smoothing noise
    as half of the variance that protects, the mistake that sharing the two would be.
    """
    draws = [[Fraction(5 * j + k - 12, 12) for k in range(3)] for j in range(5)]
    extra = Fraction(record).limit_denominator(64)
    shifts = np.array([float(_added(Fraction(1, 2), extra, offsets)) for offsets in draws])
    deviation = noise / math.sqrt(2) if reused else noise
    outputs = np.linspace(-8 * noise - 1, 8 * noise + 1, 12001)
    without = np.exp(-((outputs / deviation) ** 2) / 2)
    present = np.exp(-(((outputs[:, None] - shifts) / deviation) ** 2) / 2).mean(axis=1)
    cell = (outputs[1] - outputs[0]) / (deviation * math.sqrt(2 * math.pi))
    excesses = [np.maximum(p - math.exp(epsilon) * q, 0).sum() for p, q in ((present, without), (without, present))]
    return gaussian_delta(epsilon, 1 / noise) - float(max(excesses) * cell)


@shown(control={"free": True}, pair="the largest of `runs` releases of N(1, σ²), and of N(0, σ²)")
def radius_selection(runs: int, noise: float, epsilon: float, free: bool = False) -> Shown:
    """Whether the best of several (ε, δ) runs is (ε, δ): the control releases one run.

    The event is "the largest lies above the cut" of one release. In Arb: an upper end of one release's δ, a lower end
    for the best; the second route integrates the densities of the largest of the runs.
    """
    seen, cut = 1 if free else runs, epsilon * noise + 0.5 / noise  # in deviations
    sigma = arb(noise)
    p, q = (upper_tail(arb(epsilon) * sigma + sign / (2 * sigma)) for sign in (-1, 1))
    one = ends(p - arb(epsilon).exp() * q)[1]
    best = ends(1 - (1 - p) ** seen - arb(epsilon).exp() * (1 - (1 - q) ** seen))[0]
    outputs = np.linspace(cut, cut + 14, 20001)
    densities = [seen * norm.pdf(x) * ndtr(x) ** (seen - 1) for x in (outputs - 1 / noise, outputs)]
    quadrature = float(np.trapezoid(densities[0] - math.exp(epsilon) * densities[1], outputs))
    evidence = {"delta_of_one_run": one, "delta_of_the_best": best, "runs": runs, "epsilon": epsilon}
    reason = f"at ε = {epsilon:g} one run needs δ = {one:.3g}, the best of {runs} needs {best:.3g}"
    holds = None if abs(best - quadrature) > 1e-4 * best else best <= one
    return Shown(holds, reason, best / one, evidence, {"certified": best, "quadrature": quadrature})
