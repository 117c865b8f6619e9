"""What jl2021 says of privacy against JL dimension: sections 1, 3 and C, Figures 4, 6 and 8.

Every lower bound is one iteration, or the lattice's lower end; every upper bound is proven (`revealed_upper`) or the
lattice's upper end. A run of more iterations only loses more, so that "at the same accuracy" needs no accuracy here:
one iteration with r = 1 is held against a whole run with the other dimension.
"""

from __future__ import annotations

import math
from itertools import pairwise

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.papers.jl2021.sensitivity import (
    closed_form_epsilon_lower,
    delta_one_certified,
    epsilon_one,
    expectation,
    gaussian_delta,
    pair_epsilon_lower,
)
from dpbench.papers.jl2021.stated import proven_epsilon
from dpbench.papers.jl2021.whole_run import (
    CIFAR,
    DELTA,
    IMDB,
    LOWER_PANEL,
    MNIST,
    SETTINGS,
    UPPER_PANEL,
    Run,
    lattice,
    revealed_upper,
    unprojected,
)


def _least(run: Run, projections: int) -> tuple[float, float]:
    """ε of one iteration from explicit datasets, by the best test (Arb), and in closed form."""
    args = (DELTA, run.rate, run.noise_multiplier, projections)
    threshold = pair_epsilon_lower(*args)[1]
    sigma = str(run.noise_multiplier)
    proven = proven_epsilon(threshold, run.batch, run.examples, sigma, projections, 1)
    return proven, closed_form_epsilon_lower(*args)


def _proven_run(run: Run, projections: int) -> float:
    """A proven lower bound of ε after the whole run, from explicit datasets."""
    args = (DELTA, run.rate, run.noise_multiplier, projections, run.iterations)
    threshold = pair_epsilon_lower(*args)[1]
    return proven_epsilon(threshold, run.batch, run.examples, str(run.noise_multiplier), projections, run.iterations)


def _more_private(run: Run, few: int, many: int) -> Shown:
    """Whether `few` projections can be more private than `many`, whatever the number of iterations of either."""
    lower, closed = _least(run, few)
    upper = revealed_upper(run, many)
    evidence = {
        "epsilon_of_one_iteration_with_few": lower,
        "most_epsilon_of_the_whole_run_with_many": upper,
        "few": few,
        "many": many,
        "iterations_of_the_whole_run": run.iterations,
    }
    routes = {"best test on explicit datasets (Arb)": lower, "closed form": closed}
    if lower <= upper or closed <= upper:
        return Shown(None, f"one iteration loses {lower:.4g} and the other run at most {upper:.4g}", lower, evidence)
    reason = f"one iteration with r = {few} loses {lower:.5g}, the whole run with r = {many} at most {upper:.5g}"
    return Shown(False, reason, lower / upper, evidence, routes)


def _more_private_than_twin(run: Run, few: int, many: int) -> Shown:
    """The false version: that more projections are more private; the same numbers have to confirm it."""
    found = _more_private(run, few, many)
    return Shown(None if found.holds is None else not found.holds, found.reason, found.value)


cifar_one_more_private_than_four = Demonstration(
    lambda: _more_private(CIFAR, 1, 4), twin=lambda: _more_private_than_twin(CIFAR, 1, 4)
)
imdb_one_more_private_than_ten = Demonstration(
    lambda: _more_private(IMDB, 1, 10), twin=lambda: _more_private_than_twin(IMDB, 1, 10)
)


def _increase(run: Run, projections: int, allowed: float) -> Shown:
    """Whether ε grows by a factor of at most `allowed` against exact norms, with all parameters the same."""
    exact = unprojected(run)
    if projections < 4:
        lower, closed = _least(run, projections)
        routes = {"one iteration, explicit datasets (Arb)": lower, "one iteration, closed form": closed}
        middle = lower
    else:
        lower, middle, _ = lattice(run, projections, run.iterations)
        routes = {"lattice, rounded down": lower, "whole run, explicit datasets (Arb)": _proven_run(run, projections)}
    factor = min(routes.values()) / exact
    evidence = {"exact_norms": exact, "estimated_norms": middle, "allowed_factor": allowed, "proven_factor": factor}
    if lower / exact > allowed:
        holds: bool | None = False if factor > allowed else None
    else:
        holds = None
    reason = f"epsilon is {exact:.4g} with exact norms and {middle:.5g} with r = {projections}"
    return Shown(holds, reason, middle / exact, evidence, routes)


def _no_increase_twin(run: Run, allowed: float) -> Shown:
    """Exact norms against themselves: the factor is 1."""
    exact = unprojected(run)
    return Shown(exact / exact <= allowed, "the same run twice", 1.0)


slight_increase = Demonstration(lambda: _increase(MNIST, 1, 2.0), twin=lambda: _no_increase_twin(MNIST, 2.0))
little_lost = Demonstration(lambda: _increase(CIFAR, 1, 2.0), twin=lambda: _no_increase_twin(CIFAR, 2.0))
ten_matches_exact_norms = Demonstration(lambda: _increase(CIFAR, 10, 2.0), twin=lambda: _no_increase_twin(CIFAR, 2.0))


def _thirty_near_exact() -> Shown:
    """The privacy half of "very close": no number is printed, so that only the size of the gap is told."""
    exact = unprojected(IMDB)
    lower, middle, upper = lattice(IMDB, 30, IMDB.iterations)
    evidence = {"exact_norms": exact, "lattice_lower": lower, "lattice_upper": upper, "iterations": IMDB.iterations}
    reason = f"after {IMDB.epochs} epochs epsilon is {exact:.4g} with exact norms and {middle:.4g} with r = 30"
    return Shown(None, reason, middle / exact, evidence)


thirty_near_exact = Demonstration(_thirty_near_exact, twin=lambda: _no_increase_twin(IMDB, 0.5))


# ---- section C ----


def _plain_delta(epsilon: float, noise_multiplier: float, projections: int) -> float:
    """E[δ_{Z/σ}(ε)], the δ of f = T(Z_r, N(Z_r/σ, 1) || Z_r, N(0, 1)) before sampling."""
    return float(expectation(lambda z: gaussian_delta(epsilon, z / noise_multiplier), projections))


DIMENSIONS = (1, 2, 4, 7, 10, 20, 30)
EPSILONS = (0.0, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0)


def _ordered(noise_multiplier: float) -> tuple[float, tuple[int, int, float]]:
    """The smallest δ_r(ε)/δ_r'(ε) over neighbouring r < r' and ε, and where; above 1 f_r lies below f_r' throughout."""
    worst, where = math.inf, (0, 0, 0.0)
    for epsilon in EPSILONS:
        curve = [_plain_delta(epsilon, noise_multiplier, r) for r in DIMENSIONS]
        for few, many, a, b in zip(DIMENSIONS, DIMENSIONS[1:], curve, curve[1:], strict=False):
            if a / b < worst:
                worst, where = a / b, (few, many, epsilon)
    return worst, where


def _not_monotone() -> Shown:
    """Whether ε can rise with the JL dimension at the settings of Figure 8.

    Route 1: before sampling and composing, every f_r lies below f_r' for r < r'; sampling and composition keep that
    order, so ε falls with r for every number of epochs. Route 2: the whole five epochs, by bounds that do not overlap,
    proven in Arb up to r = 10 and by the lattice from there to 30.
    """
    routes: dict[str, object] = {}
    evidence: dict[str, object] = {"dimensions": list(DIMENSIONS), "epsilons": list(EPSILONS)}
    monotone = True
    for name, run in (("upper", UPPER_PANEL), ("lower", LOWER_PANEL)):
        ratio, where = _ordered(run.noise_multiplier)
        routes[f"{name} panel, smallest ratio of neighbouring delta"] = ratio
        evidence[f"{name}_panel_closest_at"] = list(where)
        chain: list[tuple[int, float, float]] = []
        for r in (1, 2, 4):
            chain.append((r, _proven_run(run, r), revealed_upper(run, r)))
        evidence[f"{name}_panel_proven_most_at_10"] = most = revealed_upper(run, 10)
        monotone &= chain[-1][1] > most
        for r in (10, 30):
            ends = lattice(run, r, run.iterations)
            chain.append((r, ends[0], ends[2]))
        routes[f"{name} panel, epsilon after five epochs"] = {str(r): [low, high] for r, low, high in chain}
        monotone &= ratio > 1 and all(a[1] > b[2] for a, b in pairwise(chain))
    reason = "at both settings of Figure 8 epsilon falls as r grows from 1 to 30, after every number of epochs"
    return Shown(False if monotone else None, reason, None, evidence, routes)


def _monotone_twin() -> Shown:
    """At σ = 0.2 the order does break, and the same comparison has to see it."""
    ratio, where = _ordered(0.2)
    return Shown(ratio < 1, f"the smallest ratio is {ratio:.4g} at {where}", ratio)


not_monotone = Demonstration(_not_monotone, twin=_monotone_twin)


def _certified_plain(epsilon: float, noise_multiplier: str, projections: int) -> tuple[float, float]:
    """Arb ends of E[δ_{Z/σ}(ε)]: the theorem's pair with p = 1."""
    lower, upper = delta_one_certified(epsilon, (1, 1), noise_multiplier, projections)
    return float(lower.lower()), float(upper.upper())


def _tradeoffs_cross(noise_multiplier: str) -> Shown:
    """Whether there are r > r' whose f_r does not lie above f_r' everywhere: more projections, and a larger δ."""
    few, many, epsilon = 2, 30, 1.0
    sigma = float(noise_multiplier)
    a, b = _plain_delta(epsilon, sigma, few), _plain_delta(epsilon, sigma, many)
    first, second = _certified_plain(epsilon, noise_multiplier, few), _certified_plain(epsilon, noise_multiplier, many)
    evidence = {"noise_multiplier": sigma, "epsilon": epsilon, f"delta_of_{few}": a, f"delta_of_{many}": b}
    routes = {"quadrature": [a, b], "certified": [list(first), list(second)]}
    sure = b > a and second[0] > first[1]
    unsure = b > a
    reason = f"at sigma = {sigma:g} and epsilon = {epsilon:g} delta is {a:.6g} for r = {few} and {b:.6g} for r = {many}"
    return Shown(True if sure else None if unsure else False, reason, b - a, evidence, routes)


tradeoffs_cross = Demonstration(lambda: _tradeoffs_cross("0.2"), twin=lambda: _tradeoffs_cross("0.5"))


def _converges(last: bool = True) -> Shown:
    """The gap of ε (one iteration at the settings of Figure 8) to exact norms falls like 1/r."""
    gaps: dict[str, list[float]] = {}
    fine = True
    for name in ("upper", "lower"):
        run = SETTINGS[name]
        s_delta = 1e-7  # so small that one iteration has a positive ε
        exact = _one_exact(s_delta, run)
        sizes = [epsilon_one(s_delta, run.rate, run.noise_multiplier, r) - exact for r in (100, 1000, 10000, 100000)]
        gaps[name] = sizes
        limit = exact if last else 1.1 * exact
        sizes = [size + exact - limit for size in sizes]
        fine &= all(0 < b < a / 5 for a, b in pairwise(sizes))
    return Shown(fine, "each tenfold r brings epsilon at least five times nearer", gaps["upper"][-1], {"gaps": gaps})


def _one_exact(delta: float, run: Run) -> float:
    from dpbench.papers.jl2021.sensitivity import root, shifted

    return root(lambda epsilon: run.rate * gaussian_delta(shifted(epsilon, run.rate), 1 / run.noise_multiplier), delta)


converges = Demonstration(_converges, twin=lambda: _converges(last=False))
