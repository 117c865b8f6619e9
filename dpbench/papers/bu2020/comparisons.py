"""What the text says is larger, smaller, tighter or accurate: accountants held against each other and the truth.

| here | in the paper |
| --- | --- |
| clt, moments, true | δ or ε by the CLT, by the moments accountant, of the composition itself |

"True" is the project's `exact` accountant, both directions, T rounded up; where a verdict is "refuted" a second number,
an enclosure in Arb balls, stands beside it.
"""

from __future__ import annotations

import math
from typing import Any

from flint import arb, ctx

from dpbench.claims.claim import Printed
from dpbench.claims.judges import Shown, bound, shown
from dpbench.events import Composition, GroupSampledGaussian
from dpbench.papers.bu2020.rows import ROWS, Row, mnist
from dpbench.papers.mathematics import gaussian_delta, interval, log_moment, true_curve, upper_tail

_PAIR = "(1 − p) N(0, σ²) + p N(1, σ²) and N(0, σ²), T times"
_BY_NAME = {row.name: row for row in ROWS}


def _settings(**by: str) -> list[dict[str, Any]]:
    """The ε of every row by the accountants that the names stand for."""
    return [{"row": row.name, **{name: row.epsilon(one) for name, one in by.items()}} for row in ROWS]


# ---- orders of the two columns ----


@shown(control={"one": "true", "other": "clt"})
def clt_below_moments(rows: int, one: str = "clt", other: str = "moments") -> Shown:
    """Whether ε by the first is below ε by the second in the first `rows` rows."""
    cases = _settings(one=one, other=other)[:rows]
    good = sum(case["one"] < case["other"] for case in cases)
    closest = max(case["one"] / case["other"] for case in cases)
    reason = f"smaller in {good} of {len(cases)} settings, at most {closest:.4g} times the other"
    return Shown(good == len(cases), reason, closest, {"settings": cases})


@shown(control={"by": "moments"}, pair=_PAIR)
def stronger_guarantees(by: str = "clt") -> Shown:
    """An ε is a guarantee where the truth is not above it."""
    cases = _settings(stated=by, true="true")
    worst = max(cases, key=lambda case: case["true"] / case["stated"])
    broken = sum(case["true"] > case["stated"] * (1 + 1e-9) for case in cases)
    row, stated, true = _BY_NAME[worst["row"]], worst["stated"], worst["true"]
    enclosure = row.enclosed(stated)
    evidence = {"settings": cases, "below_the_truth": broken, "worst_row": row.name, "worst_stated": stated}
    evidence |= {"worst_true": true, "worst_delta": row.delta}
    reason = f"below the truth in {broken} of {len(cases)} settings; in {row.name} {stated:.2f} stands for {true:.2f}"
    holds = not broken or (False if enclosure[0] > row.delta else None)
    return Shown(holds, reason, broken, evidence, {"exact, ε": true, "certified, δ at the stated ε": enclosure})


@shown(control={"by": "true"}, pair=_PAIR)
def moments_tight(by: str = "moments") -> Shown:
    """Whether an upper bound on ε is the truth, to a hundredth of it, in every row."""
    cases = _settings(bound=by, true="true")
    worst = max(cases, key=lambda case: case["bound"] / case["true"])
    excess, row = worst["bound"] / worst["true"] - 1, _BY_NAME[worst["row"]]
    enclosure = row.enclosed(worst["bound"] / 1.01)
    routes = {"exact, ε": worst["true"], "certified, δ at an ε one per cent below the bound": enclosure}
    holds = excess <= 0.01 or (False if enclosure[1] < row.delta else None)
    reason = f"up to {100 * excess:.3g} % above the truth ({row.name})"
    return Shown(holds, reason, excess, {"settings": cases, "largest_excess_percent": 100 * excess}, routes)


# ---- how good the limit is in the paper's settings ----


def _gaps(rows: tuple[Row, ...], allowed: float, small_signal: bool = False) -> Shown:
    """The distance of f and G_μ: at the least sum of both errors it is half of |δ_T(0) − δ(0; μ)| or more."""
    cases: list[dict[str, Any]] = []
    for row in rows:
        mu = row.rate * math.sqrt(row.steps) if small_signal else row.mu
        places = [share * row.mu for share in (0.0, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0)]
        gap = max(abs(row.true.delta(epsilon).value - gaussian_delta(epsilon, mu)) for epsilon in places)
        cases.append({"row": row.name, "largest_difference_of_delta": gap, "mu": mu})
        cases[-1] |= {"true_epsilon": row.epsilon("true"), "clt_epsilon": row.epsilon("clt")}
    worst = max(cases, key=lambda case: case["largest_difference_of_delta"])
    gap, row = worst["largest_difference_of_delta"], _BY_NAME[worst["row"]]
    routes: dict[str, Any] = {"exact": gap}
    if gap > allowed:
        clt = gaussian_delta(0.0, worst["mu"])
        routes["certified at ε = 0"] = sorted(abs(clt - end) for end in row.enclosed(0.0))
    reason = f"the worst difference of δ at the same ε is {gap:.3g} ({row.name}), {allowed:g} allowed"
    evidence = {"settings": cases, "allowed": allowed, "worst_row": row.name, "worst_gap": gap}
    return Shown(gap <= allowed, reason, gap, evidence, routes)


@shown(control={"small_signal": True}, pair=_PAIR)
def limit_in_appendix_a(small_signal: bool = False) -> Shown:
    """Row 2 of Table 1; the control has p √T for μ."""
    return _gaps(ROWS[1:2], 0.005, small_signal)


@shown(control={"rows": 3}, pair=_PAIR)
def limit_in_section_4(rows: int = 9) -> Shown:
    """All settings; the control looks only at those with σ of 0.7 and more."""
    return _gaps(ROWS[:rows], 0.05)


@shown()
def budget_of_two(budget: Printed, mu: tuple[Printed, ...]) -> Shown:
    """μ of Tables 2-4 as printed and by (3.1), from σ, p and the epochs."""
    values = {row.name: row.mu for row in ROWS[6:]}
    above = [name for name, found in values.items() if found > budget.value]
    printed = {name: number.value for name, number in zip(values, mu, strict=True)}
    agree = all((number > budget.value) == (name in above) for name, number in printed.items())
    reason = f"above {budget.text} in {len(above)} of 3: " + ", ".join(f"{values[name]:.4f} ({name})" for name in above)
    routes = {"equation (3.1)": values, "printed": printed}
    return Shown(not above if agree else None, reason, max(values.values()), {"mu": values}, routes)


# ---- Figure 3: both errors ----


@shown(pair="the model of row 2 of Table 1")
def merely_nine_percent(percent: Printed) -> Shown:
    """The largest lower bound on the sum of both errors that all pairs (ε, δ_MA(ε)) together give, in percent.

    f >= f_{ε, δ} means a sum of at least 2 (1 − δ)/(1 + e^ε); the best ε is searched, by the accountant and by log
    moments at whole orders, the binomial sum and no accountant.
    """
    row = ROWS[1]
    places = [k / 200 for k in range(800)]
    moments = {order: row.steps * log_moment(row.rate, row.sigma, order) for order in range(2, 20)}

    def by_moments(epsilon: float) -> float:
        return math.exp(min(0.0, min(moment - (order - 1) * epsilon for order, moment in moments.items())))

    def least_sum(epsilon: float, delta: float) -> float:
        return 200 * (1 - min(1.0, delta)) / (1 + math.exp(epsilon))

    sums = {epsilon: least_sum(epsilon, row.moments.delta(epsilon).value) for epsilon in places}
    epsilon = max(sums, key=lambda value: sums[value])
    again = max(least_sum(place, by_moments(place)) for place in places)
    single = least_sum(row.epsilon("moments"), row.delta)
    evidence = {
        "all_pairs_percent": sums[epsilon],
        "at_epsilon": epsilon,
        "single_pair_percent": single,
        "true_percent": 100 * (1 - row.true.delta(0.0).value),
        "clt_percent": 100 * math.erfc(row.mu / math.sqrt(8)),
    }
    reason = f"all pairs of the moments accountant together give {sums[epsilon]:.3g} %, the single pair {single:.3g} %"
    routes = {"moments, best pair": sums[epsilon], "moments, by its log moments": again}
    return Shown(percent.value + percent.unit / 2 >= sums[epsilon], reason, sums[epsilon], evidence, routes)


@bound(name="advantage", pair=_PAIR)
def errors_together(certified: bool, row: int) -> tuple[float, ...]:
    """100 δ(0): what a test gains over guessing, 100 less the least sum of both errors in percent."""
    lower, upper = ROWS[row].enclosed(0.0) if certified else interval(ROWS[row].true.delta(0.0))
    return 100 * lower, 100 * upper


# ---- Section 4.2: less noise for the same promise ----

_EPOCHS = (1, 2, 5, 10, 15, 19)


@shown(pair=_PAIR)
def protection_before_epoch_20(sigma_tilde: Printed, sigma: Printed) -> Shown:
    """The true ε of NoisySGD with two noises at epochs 1-19 of MNIST, δ = 1e-5: is the first smaller throughout?"""
    cases: list[dict[str, Any]] = []
    for epochs in _EPOCHS:
        one, other = mnist(sigma_tilde.value, epochs), mnist(sigma.value, epochs)
        cases.append({"epochs": epochs, "true": one.epsilon("true"), "true_other": other.epsilon("true")})
        cases[-1] |= {"clt": one.epsilon("clt"), "moments_other": other.epsilon("moments")}
    worse = sum(case["true"] > case["true_other"] for case in cases)
    last = cases[-1]
    evidence = {"epochs": cases, "true_at_19": last["true"], "other_at_19": last["true_other"]}
    reason = f"the true epsilon with sigma = {sigma_tilde.text} is larger than with {sigma.text} at {worse} of "
    reason += f"{len(cases)} epochs"
    routes: dict[str, Any] = {"exact, ε after 19 epochs": [last["true"], last["true_other"]]}
    holds: bool | None = not worse
    if worse:
        middle = (last["true"] + last["true_other"]) / 2
        deltas = [mnist(noise.value, 19).enclosed(middle) for noise in (sigma_tilde, sigma)]
        routes["certified, δ half-way between"] = deltas
        holds = False if deltas[0][0] > deltas[1][1] else None
    return Shown(holds, reason, last["true"], evidence, routes)


@shown()
def stated_before_epoch_20(sigma_tilde: Printed, sigma: Printed) -> Shown:
    """ε_CLT with σ̃ against ε_MA with σ at epochs before 20."""
    cases = [
        {"epochs": epochs, "clt": mnist(sigma_tilde.value, epochs).epsilon("clt")}
        | {"moments": mnist(sigma.value, epochs).epsilon("moments")}
        for epochs in _EPOCHS
    ]
    closest = max(case["clt"] / case["moments"] for case in cases)
    return Shown(closest < 1, f"at most {closest:.4g} times the moments accountant's", closest, {"epochs": cases})


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
