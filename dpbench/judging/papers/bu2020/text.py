"""What the text says: what is larger, smaller, tighter or accurate, sums of errors, likelihood ratios, σ̃.

"gdp_clt", "moments" and "true" are δ or ε by the CLT, by the moments accountant, and of the composition itself by the
`exact` accountant, both directions, T rounded up; where a verdict is "refuted" a second number, an enclosure in Arb
balls, stands beside it. A least sum is min (α + f(α)), of both errors. Printed ε and μ enter as they are printed.
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
from flint import arb, ctx
from scipy.optimize import brentq, minimize_scalar
from scipy.special import ndtr

from dpbench.events import Composition, GroupSampledGaussian
from dpbench.judging.claims.claim import Printed
from dpbench.judging.claims.judges import Shown, bound, number, shown
from dpbench.judging.papers.bu2020.rows import PAIR, ROWS, Row, mnist
from dpbench.judging.papers.mathematics import (
    gaussian_delta,
    interval,
    largest,
    log_moment,
    mu_at,
    true_curve,
    upper_tail,
)
from dpbench.judging.papers.mathematics import moments_epsilon as by_sums

Routes = dict[str, float]


# ---- orders of the columns, in all rows ----


def _ratios(one: str, other: str, rows: int = 9) -> tuple[list[dict[str, Any]], Row, dict[str, Any], float]:
    """ε by two accountants in the first rows; where the first is the largest multiple of the second, and that."""
    cases: list[dict[str, Any]] = [
        {"row": row.name, one: row.epsilon(one), other: row.epsilon(other)} for row in ROWS[:rows]
    ]
    ratios = [case[one] / case[other] for case in cases]
    at = ratios.index(max(ratios))
    return cases, ROWS[at], cases[at], ratios[at]


@shown(control={"one": "true", "other": "gdp_clt"})
def clt_below_moments(rows: int, one: str = "gdp_clt", other: str = "moments") -> Shown:
    """Whether ε by the first is below ε by the second in the first `by_rows` rows."""
    cases, row, _, ratio = _ratios(one, other, rows)
    return Shown(ratio < 1, f"at most {ratio:.4g} times the other, in {row.name}", ratio, {"settings": cases})


@shown(control={"by": "moments"}, pair=PAIR)
def stronger_guarantees(by: str = "gdp_clt") -> Shown:
    """An ε is a guarantee where the truth is not above it."""
    cases, row, worst, _ = _ratios("true", by)
    broken = sum(case["true"] > case[by] * (1 + 1e-9) for case in cases)
    enclosure = row.enclosed(worst[by])
    reason = f"below the truth in {broken} of 9 settings; in {row.name} {worst[by]:.2f} stands for {worst['true']:.2f}"
    holds = not broken or (False if enclosure[0] > row.delta else None)
    routes = {"exact, ε": worst["true"], "certified, δ at the stated ε": enclosure}
    return Shown(holds, reason, broken, {"settings": cases, "worst": worst, "δ": row.delta}, routes)


@shown(control={"by": "true"}, pair=PAIR)
def moments_tight(by: str = "moments") -> Shown:
    """Whether an upper bound on ε is the truth, to a hundredth of it, in every row."""
    cases, row, worst, ratio = _ratios(by, "true")
    enclosure = row.enclosed(worst[by] / 1.01)
    holds = ratio <= 1.01 or (False if enclosure[1] < row.delta else None)
    routes = {"exact, ε": worst["true"], "certified, δ at an ε one per cent below the bound": enclosure}
    reason = f"up to {100 * (ratio - 1):.3g} % above the truth ({row.name})"
    return Shown(holds, reason, ratio - 1, {"settings": cases, "worst": worst, "δ": row.delta}, routes)


# ---- how good the limit is in the paper's settings ----


def _gap(rows: tuple[Row, ...], allowed: float, small_signal: bool = False) -> Shown:
    """The distance of f and G_μ: at the least sum of both errors it is half of |δ_T(0) − δ(0; μ)| or more."""
    gaps: dict[str, float] = {}
    for row in rows:
        mu = row.rate * math.sqrt(row.steps) if small_signal else row.mu
        places = [share * row.mu for share in (0.0, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0)]
        gaps[row.name] = max(abs(row.delta_at(epsilon) - gaussian_delta(epsilon, mu)) for epsilon in places)
    worst = max(rows, key=lambda row: gaps[row.name])
    gap = gaps[worst.name]
    routes: dict[str, Any] = {"exact": gap}
    if gap > allowed:
        routes["certified at ε = 0"] = sorted(abs(gaussian_delta(0.0, worst.mu) - end) for end in worst.enclosed(0.0))
    reason = f"the worst difference of δ at the same ε is {gap:.3g} ({worst.name}), {allowed:g} allowed"
    return Shown(gap <= allowed, reason, gap, {"largest_difference_of_delta": gaps, "allowed": allowed}, routes)


@shown(control={"small_signal": True}, pair=PAIR)
def limit_in_appendix_a(small_signal: bool = False) -> Shown:
    """Row 2 of Table 1; the control has p √T for μ."""
    return _gap(ROWS[1:2], 0.005, small_signal)


@shown(control={"rows": 3}, pair=PAIR)
def limit_in_section_4(rows: int = 9) -> Shown:
    """All settings; the control looks only at those with σ of 0.7 and more."""
    return _gap(ROWS[:rows], 0.05)


# ---- e^ε and least sums of errors ----


@number()
def likelihood_ratio(epsilon: float) -> Routes:
    """e^ε."""
    series = mpmath.nsum(lambda k: mpmath.mpf(epsilon) ** k / mpmath.factorial(k), [0, 80])
    return {"exponential": math.exp(epsilon), "series": float(series)}


@number()
def least_sum_gaussian(mu: float) -> Routes:
    """100 min_t (P(N(0, 1) > t) + P(N(μ, 1) < t)): minimised over the threshold, and in closed form."""
    found = minimize_scalar(lambda t: ndtr(-t) + ndtr(t - mu), bounds=(-5.0, 5.0 + mu), method="bounded")
    return {"minimised": 100 * float(found.fun), "closed form": 100 * math.erfc(mu / (2 * math.sqrt(2)))}


def _least_sum(epsilon: float, delta: float) -> float:
    """100 min_α (α + f_{ε, δ}(α)), over the corners of (2.1)."""
    return 100 * min(1 - delta, 2 * (1 - delta) / (1 + math.exp(epsilon)))


@number()
def least_sum_pair(epsilon: float, delta: float) -> Routes:
    """The least sum of one pair; again where the two bounds of Definition 2.1 on a power cross."""

    def powers(level: float) -> tuple[float, float]:
        return math.exp(epsilon) * level + delta, 1 - math.exp(-epsilon) * (1 - level - delta)

    level = largest(lambda at: powers(at)[0] <= powers(at)[1], 0.0, 0.5)
    return {"corners of (2.1)": _least_sum(epsilon, delta), "by Definition 2.1": 100 * (level + 1 - powers(level)[0])}


@shown(pair="the model of row 2 of Table 1")
def merely_nine_percent(percent: Printed) -> Shown:
    """The largest least sum that all pairs (ε, δ_MA(ε)) together give, in percent.

    The best ε is searched, by the accountant and by log moments at whole orders, the binomial sum and no accountant.
    """
    row = ROWS[1]
    places = [k / 200 for k in range(800)]
    moments = {order: row.steps * log_moment(row.rate, row.sigma, order) for order in range(2, 20)}

    def by_moments(epsilon: float) -> float:
        return math.exp(min(0.0, min(moment - (order - 1) * epsilon for order, moment in moments.items())))

    best, epsilon = max((_least_sum(place, min(1.0, row.delta_at(place, "moments"))), place) for place in places)
    again = max(_least_sum(place, by_moments(place)) for place in places)
    single = _least_sum(row.epsilon("moments"), row.delta)
    evidence = {"at_epsilon": epsilon, "single_pair_percent": single, "true_percent": 100 * (1 - row.delta_at(0.0))}
    evidence["clt_percent"] = 100 * math.erfc(row.mu / math.sqrt(8))
    reason = f"all pairs of the moments accountant together give {best:.3g} %, the single pair {single:.3g} %"
    routes = {"moments, best pair": best, "moments, by its log moments": again}
    return Shown(percent.value + percent.unit / 2 >= best, reason, best, evidence, routes)


@bound(name="advantage", pair=PAIR)
def errors_together(certified: bool, row: int) -> tuple[float, ...]:
    """100 δ(0): what a test gains over guessing, 100 less the least sum of both errors in percent."""
    lower, upper = ROWS[row].enclosed(0.0) if certified else interval(ROWS[row].curve("true").delta(0.0))
    return 100 * lower, 100 * upper


# ---- recalibration, (3.3) and (3.4); less noise for the same promise ----


@number()
def moments_epsilon(sigma: float, epochs: float, delta: float) -> Routes:
    """ε_MA(δ) on MNIST with batches of 256, T = epochs/p: by the accountant, and by sums at whole orders."""
    row = mnist(sigma, epochs)
    sums = by_sums(row.rate, sigma, row.steps, delta)[0]
    return {"accountant": row.curve("moments").epsilon(delta).value, "binomial sums": sums}


@number()
def clt_epsilon(sigma: float, epochs: float, delta: float) -> Routes:
    """ε by the CLT on MNIST with batches of 256: by the accountant, and where (3.2) has the μ of (3.1)."""
    row = mnist(sigma, epochs)
    solved = brentq(lambda epsilon: mu_at(epsilon, delta) - row.mu, 0.01, 100.0, xtol=1e-12)
    return {"accountant": row.curve("gdp_clt").epsilon(delta).value, "(3.2) solved": float(solved)}


@number()
def sigma_tilde(sigma: float, epochs: float, delta: float) -> Routes:
    """(3.4) solved for σ̃: by halving from μ̃ at ε_MA(δ), and with ε by the CLT accountant's own solver."""
    epsilon = float(mnist(sigma, epochs).curve("moments").epsilon(delta).value)
    mu = mu_at(epsilon, delta)
    halving = largest(lambda s: mnist(s, epochs).mu > mu, 0.2, 20.0)
    solver = brentq(lambda s: mnist(s, epochs).curve("gdp_clt").epsilon(delta).value - epsilon, 0.5, 3.0, xtol=1e-12)
    return {"halving": halving, "accountant": float(solver)}


@shown(control={"epsilon": 0.0})  # δ_MA(0) = 1: nothing to solve
def recalibration(epsilon: float | None = None) -> Shown:
    """μ̃ > μ_CLT and σ̃ < σ with δ(ε; μ̃) = δ_MA(ε), in the nine settings at the printed δ."""
    found: list[dict[str, Any]] = []
    for row in ROWS:
        at = row.epsilon("moments") if epsilon is None else epsilon
        target = row.delta_at(at, "moments")
        mu = mu_at(at, target) if target < 1 else 0.0
        sigma = 1 / math.sqrt(math.log1p((mu / row.rate) ** 2 / row.steps)) if mu else math.inf
        found.append({"row": row.name, "epsilon": at, "mu": row.mu, "mu_tilde": mu, "sigma_tilde": sigma})
    good = sum(c["mu_tilde"] > c["mu"] and c["sigma_tilde"] < row.sigma for c, row in zip(found, ROWS, strict=True))
    reason = f"a larger mu and a smaller sigma exist in {good} of {len(found)} settings"
    return Shown(good == len(found), reason, good, {"settings": found})


_EPOCHS = (1, 2, 5, 10, 15, 19)  # before epoch 20


@shown()
def stated_before_epoch_20(sigma_tilde: Printed, sigma: Printed) -> Shown:
    """ε_CLT with σ̃ against ε_MA with σ at epochs before 20."""
    cases = [
        (mnist(sigma_tilde.value, epochs).epsilon("gdp_clt"), mnist(sigma.value, epochs).epsilon("moments"))
        for epochs in _EPOCHS
    ]
    closest = max(one / other for one, other in cases)
    evidence = {"epochs": _EPOCHS, "clt, moments": cases}
    return Shown(closest < 1, f"at most {closest:.4g} times the moments accountant's", closest, evidence)


@shown(pair=PAIR)
def protection_before_epoch_20(sigma_tilde: Printed, sigma: Printed) -> Shown:
    """The true ε of NoisySGD with two noises at epochs 1-19 of MNIST, δ = 1e-5: is the first smaller throughout?"""
    rows = [[mnist(noise.value, epochs) for noise in (sigma_tilde, sigma)] for epochs in _EPOCHS]
    cases = [[row.epsilon("true") for row in pair] for pair in rows]
    worse, (last, other) = sum(one > two for one, two in cases), cases[-1]
    deltas = [row.enclosed((last + other) / 2) for row in rows[-1]]
    evidence = {"epochs": _EPOCHS, "true": cases, "true_at_19": last, "other_at_19": other}
    reason = (
        f"the true epsilon with {sigma_tilde.text} is larger than with {sigma.text} at {worse} of {len(cases)} epochs"
    )
    routes = {"exact, ε after 19 epochs": cases[-1], "certified, δ half-way between": deltas}
    holds = not worse or (False if deltas[0][0] > deltas[1][1] else None)
    return Shown(holds, reason, last, evidence, routes)


# ---- Table 4: all ratings of a user in or out; 800,167 of 6,040 users mean that some user has 133 ----


# all iterates are seen here; of Algorithm 2, with which Table 4 trains, the last one is given out
@bound(
    attained=False,
    second="lower",
    pair="S without the user, S' with all ratings; every loss is ⟨θ, x⟩, x = 0 in S and x = R e₁ for the ratings: in "
    "units of R the T noisy sums are N(K, σ²) with K ~ Bin(ratings, p), against N(0, σ²)",
)
def whole_user(certified: bool, delta: Printed, ratings: int) -> tuple[float, float, float]:
    """What a user of MovieLens with many ratings is promised, where Table 4 counts one rating: ε at δ by `exact`.

    With `certified` a proven lower end, and nothing from above.

    The second route is that lower end, in Arb, by the event "the T sums add up to more than τ": log((P − δ)/Q). Under
    S' the total has mean T n p and variance T (n p (1−p) + σ²); Cantelli's inequality bounds P from below, τ lies
    twelve deviations below the mean. Under S it is N(0, T σ²).
    """
    row = ROWS[8]
    with ctx.workprec(128):
        rate, sigma, steps = arb(row.batch) / row.records, arb(str(row.sigma)), row.whole_steps
        variance = steps * (ratings * rate * (1 - rate) + sigma**2)
        threshold = steps * ratings * rate - 12 * variance.sqrt()
        present = 1 - arb(1) / (1 + 12**2)
        absent = upper_tail(threshold / (sigma * arb(steps).sqrt()))
        event = float(((present - arb(delta.text)) / absent).log().lower())
    if certified:
        return event, math.inf, event
    releases = Composition(((GroupSampledGaussian(row.rate, row.sigma, ratings), row.whole_steps),))
    return *interval(true_curve(releases).epsilon(delta.value)), event
