"""Algorithm 1 of DPIS line by line, and Section 3.4, rejection sampling with remembered norms.

ĝ is `remembered`, ρ = q·p `accepted`; norms are in units of C, noise in units of σ_G·C.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np

from dpbench.judging.claims.judges import Shown, formula, grid, inequality, shown
from dpbench.judging.papers.dpis2022.divergences import BATCH, NOISE, SIZE, ball, expectation, loss
from dpbench.judging.papers.mathematics import ends, normal_mass


def iteration(norm: Any, remembered: Any, room: Any) -> tuple[Any, Any]:
    """Lines 17-23 for one record: (probability to be accepted, norm of its clipped gradient).

    >>> iteration(2.0, 10.0, 12.5)
    (0.08, 1)
    """
    clipped = min(norm, remembered, 1)
    return min(remembered / room, 1) * clipped / remembered, clipped


# ---- the probabilities ----


@formula(
    settings=[
        {"filtered": Fraction(1, 4), "target": Fraction(1, 2), "constant": 4, "raised": False},
        {"filtered": Fraction(1, 8), "target": Fraction(1, 8), "constant": 5, "raised": True},
        {"filtered": Fraction(1, 10), "target": Fraction(1, 4), "constant": 5, "raised": True},
    ],
    control={"coins": 2},
)
def equation_14(filtered: Fraction, target: Fraction, constant: int, raised: bool, coins: int = 1) -> tuple[Any, Any]:
    """p̃/k for the filter q and p̃ for min(kq, 1), and what is accepted; the control accepts twice.

    Accepted is what passes, times the share of 1,200 equal steps of [0, kq] that end at p̃ or below.
    """
    top = constant * filtered
    share = Fraction(sum(Fraction(step, 1200) * top <= target for step in range(1, 1201)), 1200)
    return target if raised else target / constant, (min(top, Fraction(1)) if raised else filtered) * share**coins


# C = 1, b = 256; remembered lies between k g_L and k C, K̃ at least at kbC
_ROOM = grid(norm=[0.25, 1.0], remembered=[0.75, 1.5, 5.0], room=[5.0, 117.0, 234.0])


@formula(settings=_ROOM)
def equation_15(norm: float, remembered: float, room: float) -> tuple[float, float]:
    """b‖ḡ‖/K̃, and what lines 17-23 accept."""
    return min(norm, remembered, 1.0) / room, iteration(norm, remembered, room)[0]


@formula(settings=[*_ROOM, *grid(norm=[1.0], remembered=[5.0], room=[1.004, 2.5])])
def equation_15_everywhere(norm: float, remembered: float, room: float) -> tuple[float, float, float]:
    """The same from K̃ = bC up, as (12) allows; the corrected formula is ‖ḡ‖·min(b/K̃, 1/ĝ)."""
    corrected = min(norm, remembered, 1.0) * min(1 / room, 1 / remembered)
    return (*equation_15(norm, remembered, room), corrected)


@shown(control={"lowest": Fraction(1, 2)}, pair="1,000 records with norms 1/1000 ... 1, K̃ = K, k = 5, b = 10")
def expected_sizes(lowest: Fraction = Fraction(1, 100)) -> Shown:
    """|X_q|, the number of gradients of an iteration, and |X_p|, nothing changed since the last visit; g_L = lowest."""
    norms = [Fraction(i, 1000) for i in range(1, 1001)]
    room, remembered = sum(norms, Fraction(0)) / 10, [5 * max(norm, lowest) for norm in norms]
    filtered = sum((min(far / room, Fraction(1)) for far in remembered), Fraction(0))
    accepted = sum(iteration(norm, far, room)[0] for norm, far in zip(norms, remembered, strict=True))
    evidence = {"filtered": float(filtered), "accepted": float(accepted)}
    reason = f"E|X_q| = {float(filtered):.6g} for kb = 50, E|X_p| = {float(accepted):.6g} for b = 10"
    return Shown(abs(filtered / 50 - 1) < Fraction(1, 100) and accepted == 10, reason, float(filtered / 50), evidence)


# ---- the weights ----


@shown(
    control={"opposite": True},
    pair="a record of norm C, k = 5: last seen with C, K̃ = 1.25 bC; or (it has grown) last seen with C/20, K̃ = 125 bC",
)
def weighted_gradient(grown: bool, opposite: bool = False) -> Shown:
    """What the record contributes on average, 1/(q p)·ḡ where both coins accept it, against its norm clipped to C."""
    remembered, room = (Fraction(1, 4), Fraction(125)) if grown != opposite else (Fraction(5), Fraction(5, 4))
    accepted, clipped = iteration(Fraction(1), remembered, room)
    by_coins = expectation(
        [min(remembered / room, Fraction(1)), clipped / remembered],
        lambda heads: clipped / accepted if len(heads) == 2 else Fraction(0),
    )
    reason = f"one record of norm 1 contributes {by_coins} on average; clipped to C = 1 it is 1"
    routes = {"both coins": float(by_coins), "line 21": float(clipped)}
    evidence = {"remembered": float(remembered), "accepted": float(accepted)}
    return Shown(by_coins == 1, reason, float(by_coins), evidence, routes)


# ---- line 17: the cap of the filter, and the loss of an iteration ----


def capped(oversampling: float, room: float, unit: float, norm: float = 1.0, last: float = 1.0) -> tuple[float, float]:
    """(rate, shift) of a record that was last seen with norm `last`, by lines 17-23 and the weights of (7).

    >>> tuple(round(x, 6) for x in (*capped(5, 10.0, 0.02), *capped(5, 1.0, 0.02)))
    (0.1, 0.2, 0.2, 0.1)
    """
    accepted, clipped = iteration(norm, oversampling * last, room)
    return accepted, unit * clipped / accepted


def _against_13(order: int, room: float, unit: float, sampled: tuple[float, float]) -> float:
    """Equation (13), rate bC/K̃ and shift K̃/(ÑCσ), less the loss of (rate, shift), relative to (13)."""
    stated = loss(order, 1 / room, room * unit)
    return (stated - loss(order, *sampled)) / stated


_CAP: dict[str, Any] = {"order": (2, 8, "whole"), "oversampling": (1, 6), "room": (1.0001, 60)}
_CAP |= {"unit": (0.002, 0.3, "log")}
_FMNIST = {"order": 4, "oversampling": 5.0, "room": SIZE / BATCH, "unit": BATCH / SIZE / NOISE}
_ALONE = "D = {records of gradient 0} and D' = D ∪ {z}"


@inequality(
    domain=_CAP,
    settings=[{**_FMNIST, "room": 1.0001, "unit": 0.1}, {**_FMNIST, "room": SIZE / BATCH / 4}],
    control={"oversampling": 1.0},
    enclosure=lambda order, oversampling, room, unit: ends(
        1 - ball(order, *capped(oversampling, room, unit)) / ball(order, 1 / room, room * unit)
    ),
    examples=40,
    pair=f"{_ALONE}, z of norm C now and before; the control has k = 1",
)
def cap_within_lemma(order: int, oversampling: float, room: float, unit: float) -> float:
    """For every K̃ that (12) lets through."""
    return _against_13(order, room, unit, capped(oversampling, room, unit))


@inequality(
    domain={**_CAP, "room": (6, 235), "unit": (0.002, 0.02, "log"), "norm": (0.05, 1), "last": (0.05, 1)},
    settings=[
        {**_FMNIST, "norm": 1.0, "last": 1.0},
        {**_FMNIST, "room": SIZE / BATCH / 2, "unit": BATCH / SIZE / 0.42, "norm": 1.0, "last": 0.3},
    ],
    control={"oversampling": 250.0},
    tolerance=1e-10,
    obligations=["K̃ ≥ kbC, the condition that Section 3.4 calls usual and the algorithm does not enforce"],
    examples=50,
    pair=f"{_ALONE}, z of any norm up to C now and before; the control has k = 250",
)
def uncapped_within_lemma(order: int, oversampling: float, room: float, unit: float, norm: float, last: float) -> float:
    """For K̃ of kbC or more."""
    return _against_13(order, room, unit, capped(oversampling, room, unit, norm, last))


@shown(
    control={"room": 1.01, "unit": 0.3, "start": 1.0},
    pair=f"{_ALONE}, whose norm is start·C, then C, then C/(1 + e^−y) after output y",
)
def remembered_norms(room: float = 8.0, unit: float = 0.15, start: float = 0.4) -> Shown:
    """D_2 of two iterations against (13) twice, k = 5; what is remembered of z stays hidden.

    The law of the second output is a mixture over that. E_Q[(P/Q)²] is closed in the second output; the first is
    integrated.
    """
    k, step = 5, 0.02
    first, shift = k * start, room * unit
    accepted, clipped = iteration(1.0, first, room)
    passed, moved = min(first / room, 1.0), unit * clipped / accepted
    y = np.arange(-12, 12 + 2 * moved, step)
    norms = 1 / (1 + np.exp(-y))
    likelihoods = (1 - passed + 0 * y, passed - accepted + 0 * y, accepted * np.exp(moved * y - moved**2 / 2))
    parts = []
    for likelihood, remembered in zip(likelihoods, (first, k * clipped, k * clipped), strict=True):
        now = np.minimum(np.minimum(norms, remembered), 1.0)
        drawn = min(remembered / room, 1.0) * now / remembered
        parts += [(likelihood * (1 - drawn), 0 * y), (likelihood * drawn, unit * now / drawn)]
    moment = sum(a * b * np.exp(u * v) for a, u in parts for b, v in parts)
    true = math.log(float(np.sum(np.exp(-(y**2) / 2) * moment)) * step / math.sqrt(2 * math.pi))
    claimed = 2 * math.log1p(math.expm1(shift**2) / room**2)
    reason = f"order 2, two iterations: the divergence is {true:.8g}, equation (13) twice gives {claimed:.8g}"
    return Shown(true <= claimed + 1e-9, reason, true / claimed, {"true": true, "claimed": claimed, "room": room})


# ---- line 5: sets that only grow ----


@shown(control={"rounds": 1}, pair="D = {records of gradient 0} and D' = D ∪ {z}, ‖g_z‖ = C throughout")
def sets_never_emptied(rounds: int = SIZE // BATCH) -> Shown:
    """D_2 of one epoch, T = 234, k = 5, K̃ = NC/2, against T times equation (13); the control stops after one iteration.

    Once in X_q, z is offered acceptance again in every iteration; once in X_p, it stays.
    """
    k, fill = 5, 0.5
    rate, shift = BATCH / SIZE / fill, fill / NOISE
    claimed = rounds * math.log1p(rate**2 * math.expm1(shift**2))
    outside, waiting, inside = 1.0, 0.0, [0.0]
    for _ in range(rounds):
        waiting, outside = waiting + outside * k * rate, outside * (1 - k * rate)
        inside.append(inside[-1] + waiting / k)
        waiting *= 1 - 1 / k
    starts, started = np.arange(1, rounds + 1), np.diff(inside)
    # (P/Q)² averages to exp(shift² · iterations that two independent copies of z share)
    shared = rounds + 1 - np.maximum.outer(starts, starts)
    pairs = float(np.sum(np.outer(started, started) * np.exp(shift**2 * shared)))
    later = float(np.sum(np.diff(np.square(inside)) * np.exp(shift**2 * (rounds + 1 - starts))))
    true, second = (math.log(found + 1 - inside[-1] ** 2) for found in (pairs, later))
    reason = f"order 2, one epoch: the divergence is {true:.6g}, T times equation (13) is {claimed:.6g}"
    evidence = {"claimed": claimed, "inclusion_in_the_last_iteration": inside[-1], "promised_inclusion": rate}
    return Shown(true <= claimed * (1 + 1e-9), reason, true, evidence, {"pairs": true, "later start": second})


# ---- line 12: a gradient that is not there yet ----

LINES = ("g[e,0] <- gradient", "gbar[e,0] <- Clip(g[e,0])", "ghat[e,1] <- k max(gbar[e,0])", "gstar[e] <- Clip(g[e,t])")


@shown(control={"t": 0})
def line_12(lines: tuple[str, ...] = LINES, t: int = 1) -> Shown:
    """Which gradients lines 9-12 read, in iteration t, before a line has written them."""
    given, missing = set(), []
    for line in lines:
        target, _, source = line.replace("e,t", f"e,{t}").partition(" <- ")
        missing += [name for name in re.findall(r"\w+\[e,\d\]", source) if name not in given]
        given.add(target)
    reason = f"lines 9-12 read {' and '.join(missing) or 'nothing'} before it is computed"
    return Shown(not missing, reason, ", ".join(missing) or "nothing missing", {"lines": list(lines)})


# ---- line 26 and equation (20): the weight and the factor before the sum ----


@shown(control={"twice": False}, pair="gradients 1, −1/2 and 1/4 on a line, b = 2, k = 2, K̃ = 4C; N = 3 exactly")
def divided_twice(twice: bool = True) -> Shown:
    """The mean of (1/b) Σ g/(Nρ), ρ = q·p the probability of being drawn, against that of the gradients."""
    gradients, batch, room = (Fraction(1), Fraction(-1, 2), Fraction(1, 4)), 2, Fraction(2)
    drawn = [iteration(abs(g), 2 * abs(g), room)[0] for g in gradients]
    moves = [g / (3 * p) * (1 if twice else batch) for g, p in zip(gradients, drawn, strict=True)]
    by_batches = expectation(drawn, lambda members: sum((moves[i] for i in members), Fraction(0)) / batch)
    by_linearity = sum((p * move for p, move in zip(drawn, moves, strict=True)), Fraction(0)) / batch
    mean = sum(gradients, Fraction(0)) / 3
    reason = f"the mean of the estimate is {by_batches}, that of the gradients {mean}: a ratio of {by_batches / mean}"
    routes = {"all batches": float(by_batches), "linearity": float(by_linearity)}
    evidence = {"batch": batch, "mean": float(mean), "moves": list(map(float, moves))}
    return Shown(by_batches == mean, reason, float(by_batches / mean), evidence, routes)


@inequality(
    domain={**_CAP, "room": (1.0001, 240), "batch": (6, 8192, "log")},
    settings=[{**_FMNIST, "batch": 256.0}],
    control={"factor": 0.01},
    obligations=["k ≤ b: the cap raises the weight by k at most, the printed line lowers it by b"],
    examples=50,
)
def line_26_loss(order: int, oversampling: float, room: float, unit: float, batch: float, factor: float = 1.0) -> float:
    """Equation (13) less the loss of line 26 as printed, where the sum moves by C/(Ñ q p), a factor b less."""
    rate, shift = capped(oversampling, room, unit)
    return factor * loss(order, 1 / room, room * unit) - loss(order, rate, shift / batch)


@shown(control={"share": 0.0}, pair="any data set; σ_N = 0.02·N")
def noisy_size(share: float = 0.02) -> Shown:
    """E[N/Ñ] with Ñ = N + N(0, (share·N)²), kept within ten deviations: the factor on the mean of line 26."""
    found = float(mpmath.quad(lambda z: mpmath.npdf(z) / (1 + share * z), [-10, -3, 0, 3, 10]))
    series = sum(math.prod(range(1, power, 2)) * share**power for power in (0, 2, 4, 6, 8))
    reason = f"the factor N/Ñ is {found:.8g} on average, {1 / (1 - share):.4g} at one deviation below"
    return Shown(abs(found - 1) < 1e-9, reason, found, {"share": share}, {"quadrature": found, "series": series})


# ---- line 29: the next clipping bound ----


@shown(control={"mean_norm": 0.25}, pair="N = 25,000, σ_K = 0.02·N, C* = 1, the mean of the norms is mean_norm")
def line_29(mean_norm: float = 0.0) -> Shown:
    """P(C_{e+1} ≤ 0), and what the printed Clip then does to a gradient of norm 10."""
    chance = 0.5 * math.erfc(mean_norm / 0.02 / math.sqrt(2))
    integrated = float(normal_mass(-math.inf, 0, mean_norm, 0.02))
    after = 10.0 / max(1.0, 10.0 / -0.01)
    reason = f"C ≤ 0 with probability {chance:.4g}; Clip(x; -0.01) then leaves a gradient of norm 10 at {after:g}"
    evidence = {"mean_norm_over_external_bound": mean_norm, "after_clip": after}
    return Shown(chance < 1e-12, reason, chance, evidence, {"erfc": chance, "integral": integrated})
