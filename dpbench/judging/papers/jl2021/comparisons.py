"""What jl2021 says of ε at a JL dimension, stated or compared: sections 1, 3 and C, Figures 3 to 6 and 8.

Lower bounds are explicit datasets, of one iteration or of a whole run; upper bounds are Theorem 4.1's pair, or proven
without any accountant (`revealed_upper`). A run of more iterations only loses more, so that "at the same accuracy"
needs no accuracy here: one iteration with r = 1 is compared with a whole run with the other dimension.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

from flint import arb, ctx
from scipy.optimize import brentq
from scipy.stats import binom

from dpbench.judging.claims.claim import Printed
from dpbench.judging.claims.judges import Shown, bound, shown
from dpbench.judging.papers.jl2021.sensitivity import PAIR, Run
from dpbench.judging.papers.mathematics import gaussian_delta, interval, sampled, true_curve, upper_tail

BEST = "best test on explicit datasets (Arb)"
DELTA = "1e-5"  # the δ of all of the paper's experiments
RUNS = {
    "mnist": Run(256, 60000, 1.3, 1, 3516),  # section 3.1, 15 epochs
    "cifar": Run(256, 50000, 0.9, 1, 3907),  # Table 2, 20 epochs
    "imdb": Run(256, 25000, 0.6, 1, 1954),  # Table 3, 20 epochs
    "upper panel": Run(256, 60000, 1.3, 1, 1172),  # Figure 8, 5 epochs
    "lower panel": Run(64, 25000, 0.5, 1, 1954),
}

# ---- stated ε ----


@bound(second="lower", pair=PAIR)
def epsilon_of_one_iteration(
    certified: bool, delta: Printed, batch: int, examples: int, noise_multiplier: float, projections: int
) -> tuple[float, float, float]:
    """ε of one iteration: explicit datasets and the theorem's pair by quadrature, and explicit datasets in balls."""
    run = Run(batch, examples, noise_multiplier, projections)
    (lower, _), upper = run.lost_epsilon(delta.value), run.granted_epsilon(delta.value)
    proven = run.proven_epsilon(delta.text)
    if not certified:
        return lower, upper, proven
    ends = (share * upper for share in (1.003, 1.01, 1.03, 1.1))
    return proven, next((end for end in ends if run.proven_granted(end)[1] < delta.value), math.inf), lower


@bound(name="delta", second="lower", pair=PAIR)
def delta_of_one_iteration(
    certified: bool, epsilon: Printed, batch: int, examples: int, noise_multiplier: float, projections: int
) -> tuple[float, float, float]:
    """δ of one iteration at the printed ε, as above."""
    run = Run(batch, examples, noise_multiplier, projections)
    (lower, threshold), upper = run.lost(epsilon.value), run.granted(epsilon.value)
    proven = run.proven_lost(epsilon.text, threshold)
    return (proven, run.proven_granted(epsilon.value)[1], lower) if certified else (lower, upper, proven)


# ---- whole runs ----


def exact_norms(run: Run) -> float:
    """ε with exact norms (DP-SGD-Vanilla and DP-SGD-Outer)."""
    return float(true_curve(sampled(run.rate, run.sigma, run.iterations)).epsilon(float(DELTA)).value)


def by_theorem(run: Run) -> tuple[float, float]:
    """ε under Theorem 4.1, by `exact`."""
    return interval(true_curve(run.releases).epsilon(float(DELTA)))


def revealed_upper(run: Run) -> float:
    """A proven upper bound (Arb) of ε without any accountant, for heavy tails (r of 10 or less).

    Give the adversary the batches in which the record is, and every Z. What is left is one Gaussian release with
    μ² = ΣZ²/σ² over K ~ Bin(T, p) iterations. But for an event of probability at most 0.9 δ, K <= k, one Z at most is
    above z₂ and it is below z₁; then μ² <= (z₁² + (k − 1) z₂²)/σ², and that Gaussian has δ/10 at the returned ε.
    """
    steps, count, share = run.iterations, run.iterations * run.rate, 0.3 * float(DELTA)
    often = int(binom.isf(share, steps, run.rate)) + 1
    one, two = (
        math.exp(brentq(lambda y, n=n: math.log((count * run.tail(math.exp(y))) ** n / n / share), 0.0, 30.0))
        for n in (1, 2)
    )
    mu = math.sqrt(one**2 + (often - 1) * two**2) / run.sigma
    epsilon = float(brentq(lambda e: gaussian_delta(e, mu) - 0.09 * float(DELTA), 0.0, mu * mu / 2 + 10 * mu))
    with ctx.workprec(192):  # the same sum once more, proven
        p, least = arb(run.batch) / run.examples, often + 1  # P(K >= least), a geometric series beyond its first term
        choose = sum((arb(steps - k).log() for k in range(least)), arb(0)) - arb(least + 1).lgamma()
        first = (choose + least * p.log() + (steps - least) * (1 - p).log()).exp()
        parts = first / (1 - (steps - least) * p / ((least + 1) * (1 - p)))
        parts += steps * p * run.proven_tail(arb(one)) + (steps * p * run.proven_tail(arb(two))) ** 2 / 2
        width = (arb(one) ** 2 + (often - 1) * arb(two) ** 2).sqrt() / arb(str(run.sigma))
        parts += upper_tail(epsilon / width - width / 2)  # δ of a Gaussian release is below its first term
        if not parts < arb(DELTA):
            parts -= arb(epsilon).exp() * upper_tail(epsilon / width + width / 2)
        if not parts < arb(DELTA):
            raise ArithmeticError("revealed_upper: the parts sum to more than delta")
    return epsilon


def explicit(run: Run) -> dict[str, float]:
    """Lower bounds of ε by explicit datasets."""
    return {BEST: run.proven_epsilon(DELTA), "by quadrature": run.lost_epsilon(float(DELTA))[0]}


@shown(control={"few": 10, "many": 1}, pair=PAIR)
def more_private(name: str, few: int, many: int) -> Shown:
    """Whether `few` projections can be more private than `many`, whatever the number of iterations of either."""
    run = RUNS[name]
    small, large = (replace(run, projections=r) for r in (few, many))
    routes, upper = explicit(replace(small, iterations=1)), revealed_upper(large)
    lower = routes[BEST]
    holds: bool | None = False if min(routes.values()) > upper else None
    if holds is None and revealed_upper(small) < explicit(replace(large, iterations=1))[BEST]:
        holds = True
    evidence: dict[str, float] = {"few": few, "many": many, "iterations_of_the_whole_run": run.iterations}
    evidence |= {"epsilon_of_one_iteration_with_few": lower, "most_epsilon_of_the_whole_run_with_many": upper}
    reason = f"one iteration with r = {few} loses {lower:.5g}, the whole run with r = {many} at most {upper:.5g}"
    return Shown(holds, reason, lower / upper, evidence, routes)


@shown(control={"projections": 300, "whole": True, "allowed": 1.5}, pair=PAIR)
def slight_increase(name: str, projections: int, whole: bool, allowed: float | None = 2.0) -> Shown:
    """Whether ε grows by a factor of at most `allowed` against exact norms, with all parameters the same.

    `whole`: the whole run, else already one iteration of it.
    """
    run = replace(RUNS[name], projections=projections)
    exact = exact_norms(run)
    estimated, most = by_theorem(run) if whole else (0.0, math.inf)
    if allowed is not None and most <= allowed * exact:
        return Shown(True, f"epsilon is at most {most:.4g}, with exact norms {exact:.4g}", most / exact)
    routes = explicit(run if whole else replace(run, iterations=1))
    estimated = estimated or routes[BEST]
    factor = min(routes.values()) / exact
    holds = False if allowed is not None and factor > allowed else None
    evidence = {"exact_norms": exact, "estimated_norms": estimated, "allowed_factor": allowed, "proven_factor": factor}
    reason = f"epsilon is {exact:.4g} with exact norms and {estimated:.5g} with r = {projections}"
    return Shown(holds, reason, estimated / exact, evidence, routes)


# ---- section C ----

DIMENSIONS = (1, 2, 4, 7, 10, 20, 30)
EPSILONS = (0.0, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0)


@shown(control={"sigma": 0.2})  # at which the order does break
def not_monotone(sigma: float | None = None) -> Shown:
    """Whether ε can rise with the JL dimension at the settings of Figure 8.

    Route 1: before sampling and composing, every f_r lies below f_r' for r < r'; sampling and composition keep that
    order, so ε falls with r for every number of epochs. Route 2: the whole five epochs, by bounds that do not overlap,
    proven in Arb up to r = 10 and by Theorem 4.1's pair from there to 30.
    """
    routes: dict[str, Any] = {}
    evidence, falls = {"dimensions": list(DIMENSIONS), "epsilons": list(EPSILONS)}, True
    for name in ("upper panel", "lower panel"):
        run = RUNS[name]
        plain = [Run(1, 1, run.sigma if sigma is None else sigma, r) for r in DIMENSIONS]
        ratio = min(a.granted(e) / b.granted(e) for a, b in pairwise(plain) for e in EPSILONS)
        routes[f"{name}, smallest ratio of neighbouring delta"] = ratio
        if ratio < 1:
            return Shown(True, f"delta rises with r somewhere, by a factor {1 / ratio:.4g}", ratio, evidence, routes)
        ends = {}
        for r in (1, 2, 4, 10, 30):
            there = replace(run, projections=r)
            ends[r] = (there.proven_epsilon(DELTA), revealed_upper(there)) if r < 10 else by_theorem(there)
        most = revealed_upper(replace(run, projections=10))
        routes[f"{name}, proven most at r = 10"] = most
        routes[f"{name}, epsilon after five epochs"] = {str(r): list(both) for r, both in ends.items()}
        falls &= ends[4][0] > most and all(a[0] > b[1] for a, b in pairwise(ends.values()))
    reason = "at both settings of Figure 8 epsilon falls as r grows from 1 to 30, after every number of epochs"
    return Shown(False if falls else None, reason, None, evidence, routes)


@shown(control={"sigma": 0.5}, pair="the theorem's pair without sampling, with r = 2 and with r = 30")
def tradeoffs_cross(sigma: float = 0.2) -> Shown:
    """Whether there are r > r' whose f_r does not lie above f_r' everywhere: more projections, and a larger δ."""
    few, many = Run(1, 1, sigma, 2), Run(1, 1, sigma, 30)
    a, b = few.granted(1.0), many.granted(1.0)
    first, second = few.proven_granted(1.0), many.proven_granted(1.0)
    routes = {"quadrature": [a, b], "certified": [list(first), list(second)]}
    evidence = {"noise_multiplier": sigma, "epsilon": 1.0, "delta_of_2": a, "delta_of_30": b}
    reason = f"at sigma = {sigma:g} and epsilon = 1 delta is {a:.6g} for r = 2 and {b:.6g} for r = 30"
    holds = True if b > a and second[0] > first[1] else None if b > a else False
    return Shown(holds, reason, b - a, evidence, routes)


@shown(control={"off": 0.1})
def converges(off: float = 0.0) -> Shown:
    """The gap of ε (one iteration at the settings of Figure 8, δ = 1e-7) to exact norms falls like 1/r."""
    gaps = {}
    for name in ("upper panel", "lower panel"):
        run = replace(RUNS[name], iterations=1)
        exact = true_curve(sampled(run.rate, run.sigma, 1)).epsilon(1e-7).value
        found = [replace(run, projections=r).granted_epsilon(1e-7) for r in (100, 1000, 10000, 100000)]
        gaps[name] = [epsilon - (1 + off) * exact for epsilon in found]
    fine = all(0 < b < a / 5 for sizes in gaps.values() for a, b in pairwise(sizes))
    value = gaps["upper panel"][-1]
    return Shown(fine, "each tenfold r brings epsilon at least five times nearer", value, {"gaps": gaps})
