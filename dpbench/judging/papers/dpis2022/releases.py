"""The released statistics of DPIS: Ñ and K̃, equations (10)-(12), (16), (18), (19), lines 3, 13 and 28."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
from scipy.stats import norm

from dpbench.judging.claims.judges import Shown, inequality, shown
from dpbench.judging.papers.dpis2022.divergences import ball, fast, loss
from dpbench.judging.papers.mathematics import ends

SHARE = 0.02  # σ_N/N and σ_K/N

# ---- equations (10) and (18): the size ----


@shown(control={"opposite": True}, pair="60,000 records and one more; σ_N = 1,200, or 0.02·N for each of both")
def size_loss(own_noise: bool, opposite: bool = False) -> Shown:
    """D_8 of N(n, σ²) and N(n+1, σ'²), the larger direction, against (18); σ' is σ, or 0.02 of the other size."""
    size, order = 60_000, 8

    def integral(mean: Any, noise: Any, other_mean: Any, other: Any) -> Any:
        def integrand(x: Any) -> Any:
            return mpmath.npdf(x, mean, noise) ** order * mpmath.npdf(x, other_mean, other) ** (1 - order)

        return mpmath.log(mpmath.quad(integrand, [step * noise for step in (-12, -4, 0, 4, 12)])) / (order - 1)

    def closed(mean: Any, noise: Any, other_mean: Any, other: Any) -> Any:
        mixed = order * other**2 + (1 - order) * noise**2
        ratio = mpmath.log(mpmath.sqrt(mixed)) - (1 - order) * mpmath.log(noise) - order * mpmath.log(other)
        return order * (mean - other_mean) ** 2 / (2 * mixed) + ratio / (1 - order)

    with mpmath.workdps(30):
        first = mpmath.mpf(size) / 50
        second = mpmath.mpf(size + (own_noise != opposite)) / 50
        printed = order / (2 * first**2)
        ways = ((1, second, 0, first), (0, first, 1, second))
        found, again = (max(route(*way) for way in ways) for route in (integral, closed))
        holds = bool(found <= printed * (1 + mpmath.mpf(10) ** -15))
    reason = f"the divergence is {float(found):.10g}, equation (18) gives {float(printed):.10g}"
    evidence = {"excess": float(found / printed - 1), "size": size, "order": order, "equation_18": float(printed)}
    return Shown(holds, reason, float(found), evidence, {"quadrature": float(found), "closed": float(again)})


# ---- equation (19): the gradient sum ----


def _excess(of: Callable[..., Any], order: int, batch: int, size: int, whole: bool, right: bool = False) -> Any:
    """Equation (19), where z moves K' by C with chance b/N, less the truth; `right`: less itself."""
    rate, shift = batch / size, 1 / (SHARE * size)
    true = (rate, shift) if right else (1.0, shift) if whole else (rate, shift / rate)
    return of(order, rate, shift) - of(order, *true)


@inequality(
    domain={"order": (2, 6, "whole"), "batch": (128, 8192, "whole"), "size": (25_000, 60_000, "whole")},
    settings=[{"order": 4, "batch": 256, "size": 60_000}, {"order": 2, "batch": 512, "size": 25_000}],
    control={"right": True},
    tolerance=1e-15,
    enclosure=lambda **at: ends(_excess(ball, **at)),
    examples=30,
    pair="D = {} and D' = {z}, ‖ḡ_z‖ = C; σ_K = 0.02·N",
)
def equation_19(order: int, batch: int, size: int, whole: bool, right: bool = False) -> float:
    """Equation (11) divides by p_K, so that z moves the sum by C·N/b; the control does not.

    `whole`: line 28, a Gaussian release of the sum over all N; the control samples.
    """
    return float(_excess(loss, order, batch, size, whole, right))


@shown(control={"scaled": True}, pair="D = {} and D' = {z}, ‖ḡ_z‖ = C; the event: K' above a threshold")
def one_release_of_the_sum(noise: float, rate: float, epsilon: float, scaled: bool = False) -> Shown:
    """δ at ε that (19) and (2) promise for one release (11), and the truth: a jump of C/p_K with chance p_K.

    From above: the chance that z is drawn. The control has noise σ_K·C/p_K.
    """
    logarithms = (
        (order - 1) * (fast(order, rate, 1 / noise) - epsilon) + order * math.log1p(-1 / order) - math.log(order - 1)
        for order in range(2, 65)
    )
    promised, jump = math.exp(min(logarithms)), (1 if scaled else 1 / rate) / noise
    places = np.linspace(0, jump + 6, 400)
    present = rate * norm.sf(places - jump) + (1 - rate) * norm.sf(places)
    lower = float(np.max(present - math.exp(epsilon) * norm.sf(places)))
    reason = f"(19) and (2) promise δ = {promised:.3g} at ε = {epsilon:g}; the true δ is at least {lower:.6g}"
    evidence = {"promised": promised, "lower": lower, "upper": rate, "jump_over_noise": jump}
    return Shown(lower <= promised, reason, lower, evidence, {"threshold": lower, "coupling (from above)": rate})


# ---- equation (12) ----


@inequality(
    domain={"noisy": (-5_000, 90_000), "batch": (1, 8192, "log"), "size": (8_200, 60_000), "floor": (0.001, 1, "log")},
    settings=[{"noisy": 30_000.0, "batch": 256.0, "size": 60_000.0, "floor": 0.01}],
    control={"outer": False},
    tolerance=1e-9,
    obligations=["ÑC ≥ bC + ξ: else the outer minimum takes K̃ below bC and the inclusion probability above 1"],
    examples=60,
)
def equation_12(noisy: float, batch: float, size: float, floor: float, outer: bool = True) -> float:
    """The smaller distance of K̃ to bC + ξ/2 and ÑC, C = 1; `noisy` is K', `floor` ξ. The control has no minimum."""
    released = min(max(noisy, batch + floor), size if outer else math.inf)
    return min(released - batch - floor / 2, size - released)


# ---- "negligible", "much smaller" ----


@shown(control={"share": SHARE / 10})
def sums_are_small(share: float = SHARE) -> Shown:
    """Both releases of K of an epoch, charged as they should be, over its N/b gradient releases, K̃ = ÑC: below 1 %?"""
    ratios = {}
    cases = itertools.product((256, 1024, 4096), (25_000, 60_000), (0.42, 0.81, 1.8), (2, 8, 32))
    for batch, size, noise, order in cases:
        rate, spread = batch / size, share * size
        sums = fast(order, rate, 1 / (rate * spread)) + order / (2 * spread**2)
        ratios[batch, size, noise, order] = sums / (size / batch * fast(order, rate, 1 / noise))
    worst = max(ratios, key=lambda case: ratios[case])
    reason = f"at most {ratios[worst]:.3g} of the gradients' loss, at b, N, σ_G and α of {worst}"
    return Shown(ratios[worst] < 0.01, reason, ratios[worst], {"worst_at": list(worst)})
