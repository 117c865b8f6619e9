"""The ε of Tables 2, 3 and 5 of dplis2021: what its own inputs give, and what has to be inferred.

| paper | here |
| --- | --- |
| N, L, σ (noise multiplier) | examples, batch, noise |
| ε, δ = 1e-5 | epsilon, delta |
| steps T: not printed anywhere | steps; epochs where whole epochs of ⌊N/L⌋ steps are inferred |

The paper's accountant is autodp: Rényi moments at whole orders and ε = min over α of (T·A_α + log 1/δ)/(α − 1), with
A_α the log moment of one Poisson-sampled Gaussian. A_α is a finite sum here, and an integral by mpmath as the second
route; neither uses the package's accountants.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import gammaln, logsumexp

from dpbench.claims.demonstration import Demonstration, Shown

DELTA = 1e-5
ORDERS = range(2, 257)


@lru_cache(maxsize=64)
def log_moments(rate: float, noise: float) -> tuple[float, ...]:
    """log E_Q[(P/Q)^α] at every whole order, P = (1−q) N(0, σ²) + q N(1, σ²), Q = N(0, σ²): the binomial sum."""
    found = []
    for order in ORDERS:
        k = np.arange(order + 1, dtype=float)
        log_choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        terms = log_choose + (order - k) * math.log1p(-rate) + k * math.log(rate) + k * (k - 1) / (2 * noise**2)
        found.append(float(logsumexp(terms)))
    return tuple(found)


def epsilon_by_whole_orders(rate: float, noise: float, steps: float, delta: float = DELTA) -> tuple[float, int]:
    """ε of `steps` releases at the best whole order, and that order."""
    moments = log_moments(rate, noise)
    return min(
        ((steps * moment + math.log(1 / delta)) / (order - 1), order)
        for order, moment in zip(ORDERS, moments, strict=True)
    )


def moment_by_integral(rate: float, noise: float, order: int) -> float:
    """The same log moment as an integral, by mpmath."""
    import mpmath

    with mpmath.workdps(20):
        q, s = mpmath.mpf(rate), mpmath.mpf(noise)

        def integrand(x: Any) -> Any:
            return mpmath.npdf(x, 0, s) * (1 - q + q * mpmath.exp((2 * x - 1) / (2 * s**2))) ** order

        return float(mpmath.log(mpmath.quad(integrand, [-12 * s, -4 * s, 0, order / 2, order, order + 12 * s])))


def rounds_to(value: float, printed: float) -> bool:
    """Whether a budget with two printed decimals is `value` rounded up or to the nearest."""
    return math.ceil(value * 100 - 1e-9) == round(printed * 100) or abs(value - printed) <= 0.005 + 1e-12


# ---- Table 3: equal stretches of whole epochs give every ε of a row ----


def _at_epochs(examples: int, batch: int, noise: float, epochs: int, epsilon: float) -> Shown:
    """ε after whole epochs of ⌊N/L⌋ Poisson steps; the number of epochs is inferred, not printed."""
    steps = epochs * (examples // batch)
    rate = batch / examples
    found, order = epsilon_by_whole_orders(rate, noise, steps)
    other = (steps * moment_by_integral(rate, noise, order) + math.log(1 / DELTA)) / (order - 1)
    routes = {"binomial sum": found, "integral": other}
    evidence = {"steps": steps, "epochs": epochs, "order": order, "epsilon": found, "sampling_rate": rate}
    if abs(found - other) > 1e-6 * found:
        return Shown(None, f"two routes give {found!r} and {other!r}", found, evidence, routes)
    holds = rounds_to(found, epsilon)
    word = "which is" if holds else "not"
    reason = f"{epochs} epochs of {examples // batch} steps give {found:.5g}, {word} the printed {epsilon:.2f}"
    return Shown(holds, reason, found, evidence, routes)


def _at_epochs_twin(examples: int, batch: int, noise: float, epochs: int, epsilon: float) -> Shown:
    """Ten units of the last printed digit away, down as well as up."""
    for moved in (epsilon + 0.1, epsilon - 0.1):
        shown = _at_epochs(examples, batch, noise, epochs, moved)
        if shown.holds is not False:
            return Shown(True, f"{moved:.2f} passes as well: {shown.reason}")
    return shown


epsilon_at_epochs = Demonstration(_at_epochs, _at_epochs_twin)


def _schedules(examples: int, batch: int, noise: float, epsilons: list[float]) -> list[tuple[int, int]]:
    """All (first, stretch) of whole epochs up to 400 whose five equal stretches give the row."""
    rate, per_epoch = batch / examples, examples // batch
    good = [
        {epochs for epochs in range(1, 401) if rounds_to(_epsilon(rate, noise, epochs * per_epoch), epsilon)}
        for epsilon in epsilons
    ]
    return [
        (first, second - first)
        for first in sorted(good[0])
        for second in sorted(good[1])
        if second > first and all(first + place * (second - first) in good[place] for place in range(len(epsilons)))
    ]


@lru_cache(maxsize=4096)
def _epsilon(rate: float, noise: float, steps: int) -> float:
    return epsilon_by_whole_orders(rate, noise, steps)[0]


def _one_schedule(examples: int, batch: int, noise: float, first: int, stretch: int, epsilons: list[float]) -> Shown:
    """Whether a row's budgets are those of one run looked at after equal stretches of epochs."""
    found = _schedules(examples, batch, noise, epsilons)
    round_ones = [pair for pair in found if pair[0] % 10 == 0 and pair[1] % 10 == 0]
    holds = round_ones == [(first, stretch)]
    reason = f"of whole tens of epochs only {round_ones} give all of {epsilons}; of whole epochs {len(found)} do"
    return Shown(holds, reason, len(round_ones), {"schedules": [list(pair) for pair in found]})


def _one_schedule_twin(
    examples: int, batch: int, noise: float, first: int, stretch: int, epsilons: list[float]
) -> Shown:
    """One of the row's numbers off by ten units of its last digit."""
    moved = [epsilon + (0.1 if place == 2 else 0.0) for place, epsilon in enumerate(epsilons)]
    return _one_schedule(examples, batch, noise, first, stretch, moved)


row_of_one_run = Demonstration(_one_schedule, _one_schedule_twin)


# ---- Table 2: the same four budgets for two datasets, and no number of steps ----


def _unknown_length(examples: int, batch: int, noise: float, epsilon: float) -> Shown:
    """The steps and whole epochs that would give the printed ε, since T is not printed; refuted where even one epoch
    is too many."""
    rate, per_epoch = batch / examples, examples // batch
    low, high = 0, 1 << 20
    while high - low > 1:  # the most steps whose ε is at most the printed one
        middle = (low + high) // 2
        low, high = (middle, high) if _epsilon(rate, noise, middle) <= epsilon else (low, middle)
    around = range(max(low // per_epoch - 2, 1), low // per_epoch + 4)
    whole = [epochs for epochs in around if rounds_to(_epsilon(rate, noise, epochs * per_epoch), epsilon)]
    evidence = {"most_steps": low, "whole_epochs_that_give_it": whole, "missing": "the number of steps"}
    if low < per_epoch:
        least = _epsilon(rate, noise, per_epoch)
        return Shown(False, f"one epoch has {least:.4g} already, printed is {epsilon:.2f}", low, evidence)
    reason = f"the number of steps is not printed; {low} steps is the most that moments allow, whole epochs: {whole}"
    return Shown(None, reason, low, evidence)


epsilon_of_unknown_length = Demonstration(
    _unknown_length,
    twin=lambda examples, batch, noise, epsilon: _unknown_length(examples, batch, noise / 2, epsilon),
)


# ---- Table 5: with the 10,000 comments as records no number of steps gives the printed ε by Rényi moments ----


def _sharper(rate: float, noise: float, steps: int) -> float:
    """ε of the same moments by the conversion of Canonne, Kamath and Steinke 2020, sharper than the paper's."""
    return min(
        steps * moment / (order - 1) + math.log1p(-1 / order) + (math.log(1 / DELTA) - math.log(order)) / (order - 1)
        for order, moment in zip(ORDERS, log_moments(rate, noise), strict=True)
    )


@lru_cache(maxsize=8)
def _one_step_enclosed(rate: float, noise: float, sharp: bool) -> float:
    """A certified lower end, in Arb, of the ε of a single step at the best whole order from 2 to 256.

    Beyond 256 the moment of one step alone, at least (α log q + α(α−1)/(2σ²))/(α−1), is above 50.
    """
    from flint import arb, ctx

    before = ctx.prec
    ctx.prec = 128
    try:
        q, s, log_inverse = arb(rate), arb(noise), -arb(DELTA).log()
        least = math.inf
        for order in ORDERS:
            total = arb(0)
            for k in range(order + 1):
                total += math.comb(order, k) * (1 - q) ** (order - k) * q**k * (arb(k * (k - 1)) / (2 * s**2)).exp()
            value = total.log() / (order - 1)
            value += (
                (1 - 1 / arb(order)).log() + (log_inverse - arb(order).log()) / (order - 1)
                if sharp
                else (log_inverse / (order - 1))
            )
            least = min(least, float(value.lower()))
        return math.nextafter(least, 0.0)
    finally:
        ctx.prec = before


def _reachable(examples: int, batch: int, noise: float, epsilon: float) -> Shown:
    """Whether a run of one step or more can have the printed ε by Rényi moments; more steps only add to it."""
    classical, order = epsilon_by_whole_orders(batch / examples, noise, 1)
    sharper, steps = _sharper(batch / examples, noise, 1), examples // batch
    integral = (moment_by_integral(batch / examples, noise, order) + math.log(1 / DELTA)) / (order - 1)
    evidence = {
        "one_step": classical,
        "one_step_sharper_conversion": sharper,
        "one_epoch": _epsilon(batch / examples, noise, steps),
        "one_epoch_sharper_conversion": _sharper(batch / examples, noise, steps),
        "order": order,
        "exact_steps": _exact_steps(examples, batch, noise, epsilon),
        "records_at_which_an_epoch_fits": _records_that_fit(batch, noise, epsilon),
    }
    enclosed = _one_step_enclosed(batch / examples, noise, True)
    routes = {"binomial sum, one step": classical, "integral, one step": integral}
    routes["certified lower end, sharper conversion"] = enclosed
    if abs(classical - integral) > 1e-6 * classical:
        return Shown(None, f"two routes give {classical!r} and {integral!r}", classical, evidence, routes)
    holds = enclosed <= epsilon + 0.005
    reason = f"one step costs {classical:.4g} already ({sharper:.4g} by a sharper conversion), printed {epsilon:.2f}"
    return Shown(holds, reason, classical, evidence, routes)


def _records_that_fit(batch: int, noise: float, epsilon: float) -> int:
    """The least N, in thousands, at which one epoch of ⌊N/L⌋ steps stays within the printed ε by the paper's moments.

    If a record is not a comment but one of its windows of words, N may be that large.
    """

    def fits(thousands: int) -> bool:
        records = 1000 * thousands
        return epsilon_by_whole_orders(batch / records, noise, records // batch)[0] <= epsilon + 0.005

    low, high = 1, 4096
    while high - low > 1:  # ε of one epoch falls with N
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return 1000 * high


def _exact_steps(examples: int, batch: int, noise: float, epsilon: float) -> int:
    """The most steps whose true ε at 1e-5 is at most the printed one, by the package's exact accountant."""
    from dpbench.accounting import load_accountant
    from dpbench.events import Composition, SampledGaussian

    accountant = load_accountant("exact")
    step = SampledGaussian(batch / examples, noise)
    low, high = 1, 2048
    while high - low > 1:
        middle = (low + high) // 2
        fits = accountant.curve(Composition(((step, middle),))).epsilon(DELTA).value <= epsilon
        low, high = (middle, high) if fits else (low, middle)
    return low


def _reachable_twin(examples: int, batch: int, noise: float, epsilon: float) -> Shown:
    return _reachable(examples, batch, noise, epsilon + 1.0)


epsilon_reachable = Demonstration(_reachable, _reachable_twin)
