"""Whole runs of DPIS: the (ε₀, δ₀) promise on explicit datasets, composition, DP-SGD, T = |D|/b, σ_G by epochs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np
from scipy.stats import binom, norm

from dpbench.judging.claims.claim import Printed
from dpbench.judging.claims.judges import Shown, bound, inequality, shown
from dpbench.judging.papers.dpis2022.algorithm import capped
from dpbench.judging.papers.dpis2022.divergences import BATCH, NOISE, SIZE, ball, converted, fast, loss, smallest
from dpbench.judging.papers.mathematics import enclosed_delta, ends, interval, sampled, true_curve

ORDERS = (*range(2, 13), *range(14, 33, 2), 36, 40, 44, 48, 64)
ROOM = 1.0001  # K̃ = bC + ξ with ξ = bC/10,000


def _statistics(batch: int, size: int, noise: float) -> dict[int, float]:
    """What (18) and (19) charge in one epoch for Ñ, K̃ and K̃*, by order."""
    return {order: order / (2 * (0.02 * size) ** 2) + 2 * fast(order, batch / size, 1 / noise) for order in ORDERS}


# ---- Section 4.1: the whole algorithm is (ε₀, δ₀)-DP ----


@bound(
    name="delta",
    second="lower",
    pair="D: N−1 records whose gradient is 0 at every θ (loss ⟨θ, x⟩ with x = 0); D' = D ∪ {z}, x_z = C e_1; "
    "second route: the event that the sum of the T outputs exceeds a threshold",
)
def whole_run(
    certified: bool, epsilon: Printed, delta: Printed, batch: int, size: int, oversampling: float
) -> tuple[float, float, float]:
    """A lower bound: δ at ε of the T released gradients of one epoch, K̃ = bC + ξ. A run releases more; above is 1.

    σ_G is the smallest that the paper's sum of losses allows at whole orders. K' is N(0, (0.02NC)²), plus C/p_K where
    z is drawn: below bC but for a chance of 1e-15, so K̃ = bC + ξ under both, and z is in X_p with probability 1/k and
    moves the sum of (7) by kbC/Ñ, independently in each iteration.
    """
    rounds, paid = -(-size // batch), _statistics(batch, size, 0.02 * size)

    def exceeds(shift: float) -> bool:
        losses = ((order, spent + rounds * fast(order, 1 / ROOM, shift)) for order, spent in paid.items())
        return all(converted(order, total, delta.value) > epsilon.value for order, total in losses)

    rate, shift = capped(oversampling, ROOM, (smallest(exceeds, 1e-9, 4.0, 40) - 1e-11) / ROOM)
    releases, e = sampled(rate, 1 / shift, rounds), epsilon.value
    lower, _ = enclosed_delta(releases, e) if certified else interval(true_curve(releases).delta(e))
    spread, drawn = math.sqrt(rounds), np.arange(rounds + 1)
    places = 0.02 * np.arange(1, 400)
    present = norm.sf(places[:, None] - drawn * shift / spread) @ binom.pmf(drawn, rounds, rate)
    return lower - 1e-12, 1.0, float(np.max(present - math.exp(e) * norm.sf(places)))


@bound(name="delta", pair="D: records whose gradient is 0; D' = D ∪ {z}, ‖ḡ_z‖ = C; the event: K̃ > half the jump")
def run_with_little_noise(
    epsilon: Printed, delta: Printed, batch: int, size: int, noise: float
) -> tuple[float, float, float]:
    """A lower bound: δ at ε of the release of K̃ in one epoch. The whole run has no smaller δ: the upper end is 1.

    With chance b/N z is in the sample and K' jumps by N/b (in units of C), for Ñ = N; (12) keeps what lies between b
    and N. Second route: (p' − e^ε p)₊ integrated over K' above b, and the atom at K̃ = bC + ξ where it counts. Nothing
    is shown where the paper's analysis has no room for ε, or (12) hides the jump.
    """
    rate, jump, e = batch / size, size / batch, epsilon.value
    planned = min(converted(*spent, delta.value) for spent in _statistics(batch, size, noise).items())
    if planned >= e or jump / 2 <= batch + 1:
        return 0.0, 1.0, 0.0
    above = 0.5 * math.erfc(jump / 2 / noise / math.sqrt(2))

    def excess(x: Any) -> Any:
        without = mpmath.npdf(x, 0, noise)
        return max((1 - rate) * without + rate * mpmath.npdf(x, jump, noise) - mpmath.exp(e) * without, mpmath.mpf(0))

    low, low_with = mpmath.ncdf(batch / noise), mpmath.ncdf((batch - jump) / noise)
    atom = max(rate * low_with + (1 - rate) * low - mpmath.exp(e) * low, mpmath.mpf(0))
    integrated = mpmath.quad(excess, [batch, *(jump + step * noise for step in (-20, -8, -3, 0, 3, 8, 20))])
    return rate * (1 - above) - math.exp(e) * above, 1.0, float(integrated + atom)


# ---- composition of losses that depend on what was released ----


@shown(control={"opposite": True}, pair="a bit with randomized response, e^0.1, then a release that it chooses; ε = 8")
def two_branches(free: bool, opposite: bool = False) -> Shown:
    """True δ at ε = 8 against the promised 1e-5, exact up to 50 digits; with an order for each history where `free`.

    Branch ± may spend B(α±) − τ₁(α±), B the loss at which equation (2) gives ε; both spend all of it on one outcome
    of loss ε + log(α/(α−1)) in total. Route one sums over the outcomes, route two takes the best of all events.
    """
    orders = (40, 3) if free != opposite else (3, 3)
    with mpmath.workdps(50):
        promised, epsilon = mpmath.mpf("1e-5"), mpmath.mpf(8)
        plus = 1 / (1 + mpmath.exp(mpmath.mpf("-0.1")))
        first = ((plus, 1 - plus), (1 - plus, plus))  # (P, Q) of the bit
        outcomes: list[tuple[Any, Any]] = []
        for (p, q), order in zip(first, map(mpmath.mpf, orders), strict=True):
            spent = mpmath.log(sum(a**order * b ** (1 - order) for a, b in first))
            conversion = (order - 1) * mpmath.log(1 - 1 / order) - mpmath.log(order) - mpmath.log(promised)
            allowed = mpmath.exp((order - 1) * epsilon - conversion - spent)
            odds = order / (order - 1) * mpmath.exp(epsilon) * q / p

            def too_likely(chance: Any, allowed: Any = allowed, odds: Any = odds, order: Any = order) -> bool:
                moment = chance * odds ** (order - 1) + (1 - chance) ** order * (1 - chance / odds) ** (1 - order)
                return bool(moment > allowed)

            chance = smallest(too_likely, mpmath.mpf(0), mpmath.mpf("0.5"), 120)
            outcomes += [(p * chance, q * chance / odds), (p * (1 - chance), q * (1 - chance / odds))]
        gains = [a - mpmath.exp(epsilon) * b for a, b in outcomes]
        by_outcome = sum(max(gain, 0) for gain in gains)
        by_event = max(
            sum((gain for i, gain in enumerate(gains) if event >> i & 1), mpmath.mpf(0)) for event in range(16)
        )
        ratio = float(by_outcome / promised)
    reason = f"with orders {orders} in the two branches the true delta is {ratio:.6g} times the promised 1e-5"
    routes = {"outcomes": float(by_outcome), "events": float(by_event)}
    return Shown(ratio <= 1, reason, ratio, {"ratio": ratio, "orders": list(orders)}, routes)


# ---- "strictly lower than DP-SGD" ----


def _saved(of: Callable[..., Any], order: int, fill: float) -> Any:
    """The loss of an epoch of DP-SGD less that of DPIS, b = 256, both releases of K by (19); both pay for Ñ."""
    rate = BATCH / SIZE
    gradients = of(order, rate, 1 / NOISE) - of(order, rate / fill, fill / NOISE)
    return SIZE / BATCH * gradients - 2 * of(order, rate, 1 / (0.02 * SIZE))


@inequality(
    domain={"order": (2, 16, "whole"), "fill": (0.1, 1)},
    settings=[{"order": 8, "fill": 1.0}],
    control={"fill": 0.5},
    enclosure=lambda order, fill: ends(_saved(ball, order, fill)),
    examples=20,
    pair="none: the losses that the paper itself states for FMNIST, σ_G = 0.81; K̃ = fill·ÑC",
)
def strictly_lower(order: int, fill: float) -> float:
    """What DPIS saves."""
    return float(_saved(loss, order, fill))


# ---- Section 5.3: T = |D|/b ----


@shown(control={"private": False}, pair="60,000 records and one more (where T is rounded up) or less (down); b = 250")
def rounds_of_private_size(private: bool = True) -> Shown:
    """The number of released gradients in an epoch of neighbours; the control takes both from one Ñ."""
    size, batch = 60_000, 250
    up = [-(-n // batch) for n in (size, size + private)]
    down = [n // batch for n in (size, size - private)]
    differ = up[0] != up[1] and down[0] != down[1]
    reason = f"an epoch releases {up[0]} gradients for |D| = {size} and {up[1]} for |D| = {size + 1}, b = {batch}"
    evidence = {"first": up[0], "second": up[1], "delta_at_every_epsilon": float(differ)}
    return Shown(not differ, reason, float(differ), evidence, {"rounded up": up, "rounded down": down})


# ---- Section 4.2 and Figure 1: σ_G by epochs ----

_PATHS = ((1.0, 0.9, 0.7, 0.6, 0.5), (0.3, 0.9, 0.2, 1.0, 0.4), (0.2, 0.4, 0.6, 0.8, 1.0))  # one grows


def epoch_noises(
    fills: Sequence[float], first_share: float, epsilon: float, orders: Sequence[int] = (8, 16, 24), memory: bool = True
) -> tuple[list[float], float]:
    """(σ_G of each epoch, ε at the end): each epoch takes the smallest σ_G whose plan stays within ε.

    In the first `first_share` of the epochs the later ones are planned with fill 1, then with the fill of today. The
    losses of Ñ and K̃ are left out (they are below a thousandth). Without `memory` what was spent is forgotten.
    """

    def total(epochs: Sequence[tuple[float, float]]) -> float:
        used = [(BATCH / SIZE / fill, fill / noise) for fill, noise in epochs]
        return min(
            converted(order, SIZE // BATCH * math.fsum(fast(order, *one) for one in used), 1e-5) for order in orders
        )

    done: list[tuple[float, float]] = []
    for epoch, fill in enumerate(fills):
        plan = [1.0 if epoch < first_share * len(fills) - 1e-9 else fill] * (len(fills) - epoch - 1)

        def within(noise: float, now: float = fill, plan: Sequence[float] = plan) -> bool:
            return total([*(done if memory else ()), (now, noise), *((later, noise) for later in plan)]) <= epsilon

        done.append((fill, smallest(within, 0.2, 30.0, 26)))
    return [noise for _, noise in done], total(done)


@shown(control={"first_share": 0.0})
def first_phase_never_rises(first_share: float = 1.0) -> Shown:
    """The largest step up of σ_G over three paths of K̃/(ÑC); ε₀ = 1, five epochs. The control has no first phase."""
    rises = {
        max(later - earlier for earlier, later in itertools.pairwise(epoch_noises(path, first_share, 1.0)[0])): path
        for path in _PATHS
    }
    largest = max(rises)
    reason = f"the largest step of σ_G from one epoch to the next is {largest:+.4g}, on the fills {rises[largest]}"
    return Shown(largest <= 1e-6, reason, largest, {"paths": [list(path) for path in _PATHS]})


@shown(control={"memory": False})
def allocation_within_budget(memory: bool = True) -> Shown:
    """ε at the end over the same paths, a_E = 0.6, ε₀ = 1; the control forgets what was spent."""
    ends = [epoch_noises(path, 0.6, 1.0, memory=memory)[1] for path in _PATHS]
    reason = f"the largest ε at the end is {max(ends):.8g} for ε₀ = 1"
    return Shown(max(ends) <= 1 + 1e-6, reason, max(ends), {"ends": ends})


# ---- the numbers of Figure 1 ----


def dp_sgd_noise(batch: int, epochs: float, epsilon: float, delta: float) -> float:
    """The σ_G of DP-SGD on FMNIST by Lemmas 2.9 and 2.5, T = |D|/b, the release of Ñ paid; best whole order."""

    def spent(noise: float, order: int) -> float:
        return order / (2 * (0.02 * SIZE) ** 2) + SIZE / batch * epochs * fast(order, batch / SIZE, 1 / noise)

    orders = range(2, 65)
    return float(
        smallest(lambda noise: any(converted(m, spent(noise, m), delta) <= epsilon for m in orders), 0.2, 30, 24)
    )


_BATCHES = (256, 512, 2048)  # the last is that of Tramer and Boneh for FMNIST


@shown()
def figure_1_noise(delta: Printed, value: Any = None, epsilon: Any = None, panels: Any = ()) -> Shown:
    """σ_G of DP-SGD by batch size, for the text or for (ε, epochs, low, high) of panels; b and E are not printed."""
    places = panels or [(epsilon.value, 40, value.value)]
    found = {f"b = {b}": [dp_sgd_noise(b, one[1], one[0], delta.value) for one in places] for b in _BATCHES}
    reason = f"b and E are not printed; σ of the paper {[list(one[2:]) for one in places]}, found by b: {found}"
    return Shown(None, reason, None, found)


@shown()
def figure_1_last(value: Printed) -> Shown:
    """Where constant K̃/(ÑC) end after 40 epochs of ε₀ = 4, b = 256; the trace of K̃ is not printed."""
    ends = {
        f"K̃/(ÑC) = {fill}, a_E = {share}": epoch_noises([fill] * 40, share, 4.0, orders=(6,))[0][-1]
        for fill in (0.4, 0.5, 0.6)
        for share in (0.8, 1.0)
    }
    reason = f"the trace of K̃ is not printed; {value.text} lies among {', '.join(f'{x:.3g}' for x in ends.values())}"
    return Shown(None, reason, None, ends)


# ---- Section 5.4 ----


@shown()
def half_budget(mnist: Any, fmnist: Any, imdb: Any, mnist_rivals: Any, fmnist_rivals: Any, imdb_rivals: Any) -> Shown:
    """DPIS at half the budget less the best rival, ε = 0.5, 1 and 2 against 1, 2 and 4; roughly has no threshold."""
    ahead = [
        round(ours[half].value - max(one.value for one in theirs[full]), 1)
        for ours, theirs in ((mnist, mnist_rivals), (fmnist, fmnist_rivals), (imdb, imdb_rivals))
        for half, full in ((0, 1), (1, 2), (2, 4))
    ]
    reason = f"at half the budget DPIS is between {min(ahead)} and {max(ahead)} points ahead; how much is roughly "
    return Shown(None, reason + "the same is not said", min(ahead), {"points_ahead": ahead})
