"""The ε of Tables 2, 3 and 5 of dplis2021: what its own inputs give, and what has to be inferred; Table 10.

| paper | here |
| --- | --- |
| N, L, σ (noise multiplier) | examples, batch, noise |
| ε, δ = 1e-5 | value or budgets, DELTA |
| steps T: not printed anywhere | steps; epochs where whole epochs of ⌊N/L⌋ steps are inferred |

The paper's accountant is autodp: Rényi moments at whole orders and ε = min over α of (T·A_α + log 1/δ)/(α − 1), with
A_α the log moment of one Poisson-sampled Gaussian: a finite sum here, and an integral as the second route.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import cache

import mpmath
from flint import arb, ctx
from scipy.stats import f

from dpbench.judging.claims.claim import Printed
from dpbench.judging.claims.judges import Shown, shown
from dpbench.judging.papers.mathematics import moment_integral, moments_epsilon, sampled, true_curve

DELTA = 1e-5
ORDERS = range(2, 257)
PAIR = "(1 − q) N(0, σ²) + q N(1, σ²) and N(0, σ²), T times, q = L/N: one record added"


def epsilon(rate: float, noise: float, steps: int, sharp: bool = False) -> tuple[float, int]:
    """ε at δ = 1e-5 by moments at the best whole order, and the order."""
    return moments_epsilon(rate, noise, steps, DELTA, sharp)


def by_integral(rate: float, noise: float, steps: int, order: int) -> float:
    """ε at one order, its moment integrated."""
    return (steps * float(mpmath.log(moment_integral(rate, noise, order))) - math.log(DELTA)) / (order - 1)


def most(fits: Callable[[int], bool], high: int) -> int:
    """The largest number below `high` that fits, where only small ones do; 0 where 1 does not."""
    return bisect_left(range(1, high), True, key=lambda count: not fits(count))


def is_printed(found: float, budget: Printed) -> bool:
    """Whether a budget is the number found, rounded up as most are, or to the nearest."""
    return -budget.unit < found - budget.value <= budget.unit / 2


def whole_epochs(examples: int, batch: int, noise: float, budget: Printed, counts: Iterable[int]) -> list[int]:
    """Which of some whole numbers of epochs have the printed ε."""
    per_epoch = examples // batch
    return [count for count in counts if is_printed(epsilon(batch / examples, noise, count * per_epoch)[0], budget)]


@shown(pair=PAIR)
def epsilon_of_unknown_length(examples: int, batch: int, noise: float, value: Printed) -> Shown:
    """The steps and whole epochs that would give the printed ε, since T is not printed; refuted where one epoch has
    more than that already."""
    rate, epoch = batch / examples, examples // batch
    steps = most(lambda count: epsilon(rate, noise, count)[0] <= value.value, 1 << 20)
    found, order = epsilon(rate, noise, steps)
    whole = whole_epochs(examples, batch, noise, value, range(max(steps // epoch - 2, 1), steps // epoch + 4))
    evidence = {"most_steps": steps, "whole_epochs_that_give_it": whole, "missing": "the number of steps"}
    evidence["exact_epsilon_of_most_steps"] = true_curve(sampled(rate, noise, max(steps, 1))).epsilon(DELTA).value
    routes = {"binomial sum": found, "integral": by_integral(rate, noise, steps, order)}
    reason = f"the number of steps is not printed; {steps} steps is the most that moments allow, whole epochs: {whole}"
    return Shown(None if steps >= epoch else False, reason, steps, evidence, routes)


# ---- Table 3: the first two ε of a row foretell the other three ----


@shown(pair=PAIR)
def row_of_one_run(examples: int, batch: int, noise: float, budgets: tuple[Printed, ...]) -> Shown:
    """Whether a row's ε are those of one run looked at after equal stretches of whole epochs.

    The first two numbers alone give the start and the stretch; the other three have to come out of that.
    """
    first, second, *others = budgets
    rate, per_epoch = batch / examples, examples // batch
    starts, next_looks = (whole_epochs(examples, batch, noise, budget, range(1, 401)) for budget in (first, second))
    foretold = {
        (start, then - start): [
            epsilon(rate, noise, (start + place * (then - start)) * per_epoch)[0] for place in (2, 3, 4)
        ]
        for start, then in itertools.product(starts, next_looks)
        if then > start
    }
    if not foretold:
        return Shown(False, f"no two whole numbers of epochs up to 400 give {first.text} and {second.text}")
    good = [run for run, found in foretold.items() if all(map(is_printed, found, others))]
    start, stretch = run = (*good, *foretold)[0]
    last = (start + 4 * stretch) * per_epoch
    again = by_integral(rate, noise, last, epsilon(rate, noise, last)[1])
    later = ", ".join(f"{found:.4g}" for found in foretold[run])
    reason = f"{first.text} and {second.text} mean {start} epochs and then {stretch} each: the others would be {later}"
    evidence = {"first": start, "stretch": stretch, "steps": last, "foretold": foretold[run]}
    evidence["runs_that_fit_the_first_two"] = [list(one) for one in foretold]
    routes = {"binomial sum, the last ε": foretold[run][-1], "integral": again}
    return Shown(bool(good) if abs(again - foretold[run][-1]) < 1e-6 else None, reason, len(good), evidence, routes)


# ---- Table 5: with the 10,000 comments as records no number of steps gives the printed ε by Rényi moments ----


@cache
def one_step_enclosed(rate: float, noise: float) -> float:
    """In Arb, a lower end of the ε of a single step at the best whole order from 2 to 256, by the sharper conversion.

    Beyond 256 the moment of one step alone, at least (α log q + α(α−1)/(2σ²))/(α−1), is above 50.
    """
    with ctx.workprec(128):
        q, s, least = arb(rate), arb(noise), math.inf
        for order in ORDERS:
            terms = (
                math.comb(order, k) * (1 - q) ** (order - k) * q**k * (arb(k * (k - 1)) / (2 * s**2)).exp()
                for k in range(order + 1)
            )
            value = (sum(terms, arb(0)).log() - arb(DELTA).log() - arb(order).log()) / (order - 1)
            least = min(least, float((value + (1 - 1 / arb(order)).log()).lower()))
        return math.nextafter(least, 0.0)


@shown(pair=PAIR)
def epsilon_reachable(examples: int, batch: int, noise: float, value: Printed) -> Shown:
    """Whether a run of one step or more can have the printed ε by Rényi moments; more steps only add to it.

    The evidence has the most steps of which the exact ε fits, and the least N, in thousands, at which one epoch fits: a
    record may be a window of words.
    """
    rate, epoch = batch / examples, examples // batch
    one_step, order = epsilon(rate, noise, 1)
    sharper, integral = epsilon(rate, noise, 1, sharp=True)[0], by_integral(rate, noise, 1, order)
    limit = value.value + value.unit / 2

    def too_few(thousands: int) -> bool:
        records = 1000 * thousands
        return epsilon(batch / records, noise, records // batch)[0] > limit

    def true_fits(steps: int) -> bool:
        return bool(true_curve(sampled(rate, noise, steps)).epsilon(DELTA).value <= value.value)

    evidence = {"one_step": one_step, "one_step_sharper_conversion": sharper, "order": order}
    evidence["one_epoch"] = epsilon(rate, noise, epoch)[0]
    evidence["one_epoch_sharper_conversion"] = epsilon(rate, noise, epoch, sharp=True)[0]
    evidence["exact_steps"] = most(true_fits, 2048)
    evidence["records_at_which_an_epoch_fits"] = 1000 * (most(too_few, 4096) + 1)
    enclosed = one_step_enclosed(rate, noise)
    routes = {"binomial sum, one step": one_step, "integral, one step": integral}
    routes["certified lower end, sharper conversion"] = enclosed
    holds = None if abs(one_step - integral) > 1e-6 * one_step else enclosed <= limit
    reason = f"one step costs {one_step:.4g} already ({sharper:.4g} by a sharper conversion), printed {value.text}"
    return Shown(holds, reason, one_step, evidence, routes)


# ---- Table 10: whether five runs show that smoothing steadies training ----


@shown()
def deviations_significant(deviations: tuple[Printed, ...], level: float) -> Shown:
    """One-sided F tests of equal variances of five normal accuracies, with smoothing (R = 10, R_best) and without.

    The table has six deviations for each network: none, none, R = 10, R = 10, R_best, R_best, each for ε 5.01 and 10.
    """
    values = [number.value for number in deviations]
    chances = {}
    for place, name in enumerate(("MNIST 5.01", "MNIST 10.00", "CIFAR-10 5.01", "CIFAR-10 10.00")):
        first = 6 * (place // 2) + place % 2
        for radius, later in (("R = 10", 2), ("R_best", 4)):
            chances[f"{name}, {radius}"] = float(f.sf((values[first] / values[first + later]) ** 2, 4, 4))
    smaller, good = (sum(chance < limit for chance in chances.values()) for limit in (0.5, level))
    reason = f"{smaller} of 8 deviations are smaller; one-sided F tests are below {level:g} for {good} of 8"
    return Shown(True if good == 8 else None if smaller == 8 else False, reason, good, {"p_values": chances})
