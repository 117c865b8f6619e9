"""Algorithm 1 of DPIS line by line, where a line has to do with privacy or with the mean of the estimate.

Noise is in units of σ_G·C, C = 1.

| paper | here |
| --- | --- |
| k, b, Ñ, K̃ | oversampling, batch, size, gradient sum |
| b/(Ñ σ_G) | unit |
| K̃/(bC) | room: 1 where equation (12) ends, k where no filter is capped |
| ρ = q·p | accepted |
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.inequality import Inequality, Range
from dpbench.papers.dpis2022.divergences import difference, enclosed_ball, subsampled_renyi
from dpbench.papers.dpis2022.enumeration import expectation
from dpbench.papers.dpis2022.rejection import iteration

SIZE, BATCH, NOISE = 60_000, 256, 0.81


# ---- line 17: the cap of the filter ----


def capped(oversampling: float, room: float, unit: float) -> tuple[float, float]:
    """(rate, shift) of a record of norm C that was last seen with norm C, with the weights of equation (7).

    It is drawn with min(kbC/K̃, 1) and accepted with C/(kC); the sum of equation (7) then moves by b·C/(Ñ q p).

    >>> tuple(round(x, 6) for x in capped(5, 10.0, 0.02)), tuple(round(x, 6) for x in capped(5, 1.0, 0.02))
    ((0.1, 0.2), (0.2, 0.1))
    """
    accepted, clipped = iteration(1.0, oversampling * 1.0, 1.0, room, 1.0)
    return accepted, unit * clipped / accepted


def _claimed(room: float, unit: float) -> tuple[float, float]:
    """Equation (13): rate bC/K̃ and shift K̃/(ÑCσ)."""
    return min(1 / room, 1.0), room * unit


def _cap_margin(order: int, oversampling: float, room: float, unit: float) -> float:
    """Equation (13) less the loss of the capped filter, relative to (13)."""
    claimed, true = _claimed(room, unit), capped(oversampling, room, unit)
    stated = subsampled_renyi(order, *claimed)
    return (stated - subsampled_renyi(order, *true)) / stated


def _cap_enclosure(order: int, oversampling: float, room: float, unit: float) -> tuple[float, float]:
    claimed = enclosed_ball(int(order), *_claimed(room, unit))
    true = enclosed_ball(int(order), *capped(oversampling, room, unit))
    return difference(claimed / claimed, true / claimed)


_CAP = {
    "order": Range(2, 8, "whole"),
    "oversampling": Range(1, 6),
    "room": Range(1.0001, 60),
    "unit": Range(0.002, 0.3, "log"),
}

cap_within_lemma = Inequality(
    margin=_cap_margin,
    domain=_CAP,
    settings=(
        {"order": 4, "oversampling": 5.0, "room": 1.0001, "unit": 0.1},
        {"order": 4, "oversampling": 5.0, "room": SIZE / BATCH / 4, "unit": BATCH / SIZE / NOISE},
    ),
    twin=lambda order, oversampling, room, unit: _cap_margin(order, oversampling, room, unit) - 0.01,
    tolerance=1e-12,
    enclosure=_cap_enclosure,
    examples=40,
)

uncapped_within_lemma = Inequality(
    margin=_cap_margin,
    domain={**_CAP, "room": Range(6, 235), "unit": Range(0.002, 0.02, "log")},
    settings=(
        {"order": 4, "oversampling": 5.0, "room": SIZE / BATCH, "unit": BATCH / SIZE / NOISE},
        {"order": 4, "oversampling": 5.0, "room": SIZE / BATCH / 2, "unit": BATCH / SIZE / 0.42},
    ),
    twin=lambda order, oversampling, room, unit: _cap_margin(order, 50 * oversampling, room, unit),
    tolerance=1e-10,
    obligations=("K̃ ≥ kbC, the condition that Section 3.4 calls usual and the algorithm does not enforce",),
    examples=50,
)


def _oversampling_matters(one: float, other: float) -> Shown:
    """The loss of one iteration at K̃ = 1.01·bC and b/(Ñσ) = 0.2, order 8, for two values of k; Arb beside it."""
    room, unit, order = 1.01, 0.2, 8
    losses = [subsampled_renyi(order, *capped(k, room, unit)) for k in (one, other)]
    balls = [enclosed_ball(order, *capped(k, room, unit)) for k in (one, other)]
    routes = {f"k = {k:g}": float(ball.mid()) for k, ball in zip((one, other), balls, strict=True)}
    words = f"the Rényi divergence of one iteration is {losses[0]:.6g} with k = {one:g}, {losses[1]:.6g} with {other:g}"
    claimed = subsampled_renyi(order, *_claimed(room, unit))
    evidence = {"first": losses[0], "second": losses[1], "equation_13": claimed}
    return Shown(math.isclose(*losses, rel_tol=1e-9), words, losses[1] / losses[0], evidence, routes)


oversampling_irrelevant = Demonstration(lambda: _oversampling_matters(1, 5), twin=lambda: _oversampling_matters(1, 1))


# ---- lines 17-24: norms that are remembered and never released ----


def _two_iterations(oversampling: float, room: float, unit: float, start: float) -> tuple[float, float]:
    """(true, claimed) D_2 of two iterations; z's norm in the second depends on the output of the first.

    D has only gradients 0; z starts with norm start·C, has C in the first iteration and C/(1 + e^{−y}) after output y.
    What is remembered of z (k·start or k·the norm of the first iteration, if it was looked at) stays hidden; the law of
    the second output is its mixture. Order 2: E_Q[(P/Q)²] is closed in the second output; the first is integrated.
    """
    shift = room * unit
    first = oversampling * start
    filtered = min(first / room, 1.0)
    accepted, clipped = iteration(1.0, first, 1.0, room, 1.0)
    weights = (1 - filtered, filtered - accepted, accepted)
    moved = unit * clipped / accepted
    y = np.arange(-12, 12 + 2 * moved, 0.02)
    density = np.exp(-(y**2) / 2) / math.sqrt(2 * math.pi)
    tilt = np.exp(moved * y - moved**2 / 2)
    norms = 1 / (1 + np.exp(-y))
    none = np.zeros_like(y)
    drawn = [none, none, none]
    shifts = np.zeros((3, len(y)))
    for state, remembered in enumerate((first, oversampling * clipped, oversampling * clipped)):
        chance = np.minimum(remembered / room, 1.0) * np.minimum(np.minimum(norms, remembered), 1.0) / remembered
        drawn[state] = chance
        shifts[state] = unit * np.minimum(np.minimum(norms, remembered), 1.0) / chance
    likelihood = (weights[0] + 0 * y, weights[1] + 0 * y, weights[2] * tilt)
    parts = [(likelihood[s] * (1 - drawn[s]), none) for s in range(3)]
    parts += [(likelihood[s] * drawn[s], shifts[s]) for s in range(3)]
    inner = sum(a * b * np.exp(u * v) for a, u in parts for b, v in parts)
    true = math.log(float(np.sum(density * inner)) * 0.02)
    return true, 2 * math.log1p(math.expm1(shift**2) / room**2)


def _remembered(oversampling: float, room: float, unit: float, start: float) -> Shown:
    true, claimed = _two_iterations(oversampling, room, unit, start)
    words = f"order 2, two iterations: the divergence is {true:.8g}, equation (13) twice gives {claimed:.8g}"
    return Shown(true <= claimed + 1e-9, words, true / claimed, {"true": true, "claimed": claimed, "room": room})


remembered_norms = Demonstration(lambda: _remembered(5, 8.0, 0.15, 0.4), twin=lambda: _remembered(5, 1.01, 0.3, 1.0))


# ---- line 5: sets that only grow ----


def _first_acceptance(rounds: int, filtered: float, accepted: float, emptied: bool) -> list[float]:
    """P(z lies in X_p by iteration t), t = 0..rounds, for a constant gradient, when the sets are never emptied.

    Once in X_q, z is offered acceptance again in every iteration; once in X_p, it stays.
    """
    outside, waiting, inside = 1.0, 0.0, 0.0
    cumulative = [0.0]
    for _ in range(rounds):
        if emptied:
            outside, waiting, inside = 1.0, 0.0, 0.0
        waiting, outside = waiting + outside * filtered, outside * (1 - filtered)
        inside, waiting = inside + waiting * accepted, waiting * (1 - accepted)
        cumulative.append(inside)
    return cumulative


def _epoch(fill: float, emptied: bool) -> Shown:
    """D_2 of one epoch, T = 234, k = 5, K̃ = fill·NC, for z of norm C throughout, against T times equation (13)."""
    rounds, k = SIZE // BATCH, 5
    rate, shift = BATCH / SIZE / fill, fill / NOISE
    claimed = rounds * math.log1p(rate**2 * math.expm1(shift**2))
    chances = _first_acceptance(rounds, k * rate, 1 / k, emptied)
    if emptied:
        true = second = rounds * math.log1p(chances[1] ** 2 * math.expm1(shift**2))
    else:
        # (P/Q)² averages to exp(shift² · iterations that two independent copies of z share)
        added = np.diff(chances)
        missed = 1 - chances[-1]
        starts = np.arange(1, rounds + 1)
        shared = rounds - np.maximum.outer(starts, starts) + 1
        pairs = float(np.sum(np.outer(added, added) * np.exp(shift**2 * shared)))
        true = math.log(pairs + 1 - (1 - missed) ** 2)
        # the same by the law of the later of the two starts
        later = [(chances[t] ** 2 - chances[t - 1] ** 2) * math.exp(shift**2 * (rounds - t + 1)) for t in starts]
        second = math.log(math.fsum(later) + 1 - (1 - missed) ** 2)
    words = f"order 2, one epoch: the divergence is {true:.6g}, T times equation (13) is {claimed:.6g}"
    evidence = {"claimed": claimed, "inclusion_in_the_last_iteration": chances[-1], "promised_inclusion": rate}
    return Shown(true <= claimed * (1 + 1e-9), words, true, evidence, {"pairs": true, "later start": second})


sets_never_emptied = Demonstration(lambda: _epoch(0.5, False), twin=lambda: _epoch(0.5, True))


# ---- line 26: the weight and the factor before the sum ----


def _line_26(twice: bool) -> Shown:
    """E g̃ for N = 4 gradients of norm C/2 in one direction, b = 2, K̃ = 8C, k = 2 (so that q p = b‖ḡ‖/K̃)."""
    norm, size, batch, gradient_sum = Fraction(1, 2), 4, Fraction(2), Fraction(8)
    accepted, clipped = iteration(norm, Fraction(1), batch, gradient_sum, Fraction(1))
    weight = 1 / (size * accepted) if twice else batch / (size * accepted)
    by_linearity = size * accepted * weight * clipped / batch
    by_batches = expectation([accepted] * size, lambda members: len(members) * weight * clipped / batch)
    words = f"E g̃ is {float(by_batches):.6g} where the mean gradient is {float(norm)}; one record moves the sum by "
    words += f"{float(weight * clipped):.6g}, K̃/Ñ is {float(gradient_sum / size):.6g}"
    evidence = {"expectation": float(by_batches), "mean": float(norm), "batch": 2, "moves": float(weight * clipped)}
    routes = {"all batches": float(by_batches), "linearity": float(by_linearity)}
    return Shown(by_batches == norm and by_linearity == norm, words, float(by_batches / norm), evidence, routes)


line_26 = Demonstration(lambda: _line_26(True), twin=lambda: _line_26(False))


def _literal_margin(order: int, room: float, unit: float, batch: float, oversampling: float, factor: float) -> float:
    """Equation (13) less the loss of line 26 as printed, where the sum moves by C/(Ñ q p), a factor b less."""
    rate, shift = capped(oversampling, room, unit)
    return factor * subsampled_renyi(order, *_claimed(room, unit)) - subsampled_renyi(order, rate, shift / batch)


line_26_loss = Inequality(
    margin=lambda order, room, unit, batch, oversampling: _literal_margin(order, room, unit, batch, oversampling, 1.0),
    domain={**_CAP, "room": Range(1.0001, 240), "batch": Range(6, 8192, "log")},
    settings=({"order": 4, "room": 234.0, "unit": BATCH / SIZE / NOISE, "batch": 256.0, "oversampling": 5.0},),
    twin=lambda order, room, unit, batch, oversampling: _literal_margin(order, room, unit, batch, oversampling, 0.01),
    tolerance=1e-12,
    obligations=("k ≤ b: the cap raises the weight by k at most, the printed line lowers it by b",),
    examples=50,
)


def _noisy_size(share: float) -> Shown:
    """E[N/Ñ] with Ñ = N + N(0, (share·N)²), kept within ten deviations: the factor on the mean of line 26."""
    if share == 0:
        return Shown(True, "with the exact size the factor is 1", 1.0)
    z = np.arange(-10, 10.001, 0.01)
    found = float(np.sum(np.exp(-(z**2) / 2) / (1 + share * z))) * 0.01 / math.sqrt(2 * math.pi)
    series = 1 + share**2 + 3 * share**4 + 15 * share**6 + 105 * share**8
    words = f"the factor N/Ñ is {found:.8g} on average (kept within ten deviations), {1 / (1 - share):.4g} at one below"
    return Shown(abs(found - 1) < 1e-9, words, found, {"share": share}, {"quadrature": found, "series": series})


noisy_size = Demonstration(lambda: _noisy_size(0.02), twin=lambda: _noisy_size(0.0))


# ---- line 29: the next clipping bound ----


def _negative_bound(mean_norm: float) -> Shown:
    """P(C_{e+1} ≤ 0) for N = 25,000, σ_K = 0.02N, C* = 1, Σ‖ḡ*‖ = mean_norm·N, and what the printed Clip then does."""
    size = 25_000
    chance = 0.5 * math.erfc(mean_norm * size / (0.02 * size) / math.sqrt(2))
    z = np.arange(mean_norm / 0.02, mean_norm / 0.02 + 40, 0.001)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    integrated = float(np.sum(density) - (density[0] + density[-1]) / 2) * 0.001
    norm, bound = 10.0, -0.01
    after = norm / max(1.0, norm / bound)
    words = (
        f"C ≤ 0 with probability {chance:.4g}; Clip(x; {bound}) then leaves a gradient of norm {norm:g} at {after:g}"
    )
    evidence = {"mean_norm_over_external_bound": mean_norm, "after_clip": after}
    return Shown(chance < 1e-12, words, chance, evidence, {"erfc": chance, "integral": integrated})


line_29 = Demonstration(lambda: _negative_bound(0.0), twin=lambda: _negative_bound(0.25))


# ---- line 12: a gradient that is not there yet ----


def _defined_before(read: tuple[str, ...], written: tuple[str, ...]) -> Shown:
    missing = [name for name in read if name not in written]
    words = f"line 12 reads {', '.join(read)}; lines 7-11 of iteration 1 have written {', '.join(written)}"
    return Shown(not missing, words, ", ".join(missing) or "nothing missing", {"missing": missing})


line_12 = Demonstration(
    lambda: _defined_before(("g_{e,1}",), ("g_{e,0}",)), twin=lambda: _defined_before(("g_{e,0}",), ("g_{e,0}",))
)
