"""The released statistics of DPIS: Ñ and K̃, equations (10)-(12), (16), (18), (19), lines 3, 13 and 28.

| paper | here |
| --- | --- |
| σ_N, σ_K | noise multipliers; Table 2 and Section 5.3 set both to 0.02·N |
| p_K = b/Ñ | rate |
| C, C* | bound, external bound |
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.inequality import Inequality, Range
from dpbench.papers.dpis2022.divergences import difference, enclosed_ball, mixture_renyi, subsampled_renyi
from dpbench.papers.dpis2022.enumeration import expectation

SHARE = 0.02  # σ_N/N and σ_K/N


# ---- equations (10) and (18): the size ----


def _size_loss(size: int, order: float, own_noise: bool) -> Shown:
    """D_α of N(n, σ²) against N(n+1, σ'²), both directions, by quadrature; σ' is σ, or 0.02 of the other size."""
    import mpmath

    with mpmath.workdps(30):
        first = mpmath.mpf(2) * size / 100
        second = mpmath.mpf(2) * (size + 1) / 100 if own_noise else first
        printed = _gaussian_renyi(order, 1, first, 0, first)
        ways = ((1, second, 0, first), (0, first, 1, second))
        found = max(_gaussian_renyi(order, *way) for way in ways)
        closed = max(_closed_renyi(order, *way) for way in ways)
    holds = found <= printed * (1 + mpmath.mpf(10) ** -15)
    words = f"the divergence is {float(found):.10g}, equation (18) gives {float(printed):.10g}"
    evidence = {"excess": float(found / printed - 1), "size": size, "order": order, "equation_18": float(printed)}
    return Shown(bool(holds), words, float(found), evidence, {"quadrature": float(found), "closed": float(closed)})


def _gaussian_renyi(order: Any, mean: Any, noise: Any, other_mean: Any, other_noise: Any) -> Any:
    """D_order(N(mean, noise²) ‖ N(other_mean, other_noise²)) by quadrature of the definition."""
    import mpmath

    def integrand(x: Any) -> Any:
        first = -(((x - mean) / noise) ** 2) / 2 - mpmath.log(noise)
        second = -(((x - other_mean) / other_noise) ** 2) / 2 - mpmath.log(other_noise)
        return mpmath.exp(order * first + (1 - order) * second) / mpmath.sqrt(2 * mpmath.pi)

    nodes = [step * noise for step in (-12, -4, 0, 4, 12)]
    return mpmath.log(mpmath.quad(integrand, nodes)) / (order - 1)


def _closed_renyi(order: Any, mean: Any, noise: Any, other_mean: Any, other_noise: Any) -> Any:
    """The same by completing the square."""
    import mpmath

    mixed = order * other_noise**2 + (1 - order) * noise**2
    ratio = mpmath.log(mpmath.sqrt(mixed)) - (1 - order) * mpmath.log(noise) - order * mpmath.log(other_noise)
    return order * (mean - other_mean) ** 2 / (2 * mixed) + ratio / (1 - order)


equation_18 = Demonstration(lambda: _size_loss(60_000, 8, False), twin=lambda: _size_loss(60_000, 8, True))
noise_of_private_size = Demonstration(lambda: _size_loss(60_000, 8, True), twin=lambda: _size_loss(60_000, 8, False))


# ---- equation (11): the gradient sum ----


def _sum_is_unbiased(weighted: bool) -> Shown:
    norms, rate = (Fraction(1), Fraction(1, 2), Fraction(1, 8)), Fraction(1, 3)
    factor = 1 / rate if weighted else Fraction(1)
    found = expectation([rate] * len(norms), lambda members: sum((norms[i] * factor for i in members), Fraction(0)))
    words = f"E K' is {found}, the sum of the clipped norms {sum(norms)}"
    return Shown(found == sum(norms), words, float(found), {"sum": float(sum(norms))})


equation_11 = Demonstration(lambda: _sum_is_unbiased(True), twin=lambda: _sum_is_unbiased(False))


def _sum_margin(order: int, rate: float, noise: float, moves: float) -> float:
    """Equation (19), where z moves K' by C, less the truth for D = {} and D' = {z}, where it moves it by moves·C."""
    return subsampled_renyi(order, rate, 1 / noise) - subsampled_renyi(order, rate, moves / noise)


def _weighted_margin(order: int, batch: int, size: int) -> float:
    return _sum_margin(order, batch / size, SHARE * size, size / batch)


def _weighted_enclosure(order: int, batch: int, size: int) -> tuple[float, float]:
    rate, noise = batch / size, SHARE * size
    return difference(enclosed_ball(int(order), rate, 1 / noise), enclosed_ball(int(order), rate, size / batch / noise))


_RELEASE = {
    "order": Range(2, 6, "whole"),
    "batch": Range(128, 8192, "whole"),
    "size": Range(25_000, 60_000, "whole"),
}
_RELEASE_SETTINGS = ({"order": 4, "batch": 256, "size": 60_000}, {"order": 2, "batch": 512, "size": 25_000})

equation_19_sum = Inequality(
    margin=_weighted_margin,
    domain=_RELEASE,
    settings=_RELEASE_SETTINGS,
    twin=lambda order, batch, size: 1e3 * _weighted_margin(order, batch, size) - 1e-9,
    tolerance=1e-15,
    enclosure=_weighted_enclosure,
    examples=30,
)


def _whole_margin(order: int, batch: int, size: int) -> float:
    """Equation (19) less the truth of line 28, a Gaussian release of the sum over all N."""
    noise = SHARE * size
    return subsampled_renyi(order, batch / size, 1 / noise) - mixture_renyi(order, ((1.0, 1 / noise),), ((1.0, 0.0),))


def _whole_enclosure(order: int, batch: int, size: int) -> tuple[float, float]:
    noise = SHARE * size
    return difference(enclosed_ball(int(order), batch / size, 1 / noise), enclosed_ball(int(order), 1.0, 1 / noise))


equation_19_clipping = Inequality(
    margin=_whole_margin,
    domain=_RELEASE,
    settings=_RELEASE_SETTINGS,
    twin=lambda order, batch, size: 1e3 * _whole_margin(order, batch, size) - 1e-9,
    tolerance=1e-15,
    enclosure=_whole_enclosure,
    examples=30,
)


def understated_sum(certified: bool, noise: float, rate: float, epsilon: float) -> tuple[float, float]:
    """δ at ε of one release (11) for D = {} and D' = {z}, ‖ḡ_z‖ = C: a jump of 1/(rate·noise) with chance rate.

    Lower end: the event K' > half the jump. Upper end: the chance that z is drawn (the rest is the same under both).
    """
    del certified
    half = 0.5 / (rate * noise)
    above = 0.5 * math.erfc(half / math.sqrt(2))
    below = 0.5 * math.erfc(-half / math.sqrt(2))
    return rate * below - math.exp(epsilon) * above, rate


def _promised(noise: float, rate: float, epsilon: float) -> Shown:
    """δ that equation (19) with equation (2) promises for one release of K̃, and the truth."""
    from dpbench.papers.dpis2022.divergences import log_moments

    logarithms = (
        (order - 1) * (log_moments(order, rate, 1 / noise) - epsilon)
        + order * math.log1p(-1 / order)
        - math.log(order - 1)
        for order in range(2, 65)
    )
    promised = math.exp(min(logarithms))
    lower, upper = understated_sum(False, noise, rate, epsilon)
    words = f"(19) and (2) promise δ = {promised:.3g} at ε = {epsilon:g}; the true δ is at least {lower:.6g}"
    evidence = {"promised": promised, "lower": lower, "upper": upper, "jump_over_noise": 1 / (rate * noise)}
    return Shown(lower <= promised, words, lower, evidence, {"threshold": lower, "coupling (from above)": upper})


def _promised_when_scaled(noise: float, rate: float, epsilon: float) -> Shown:
    """The same with noise σ_K·C/p_K: then the promise holds."""
    from scipy.stats import norm

    shown = _promised(noise, rate, epsilon)
    lower = max(
        rate * norm.sf(at - 1 / noise) + (1 - rate) * norm.sf(at) - math.exp(epsilon) * norm.sf(at)
        for at in (1.0, 3.0, 5.0)
    )
    return Shown(bool(lower <= shown.evidence["promised"]), f"then δ is about {lower:.3g}", float(lower))


one_release_of_the_sum = Demonstration(_promised, twin=_promised_when_scaled)


# ---- equation (12) ----


def _range_margin(noisy: float, batch: float, size: float, clip: float, floor: float) -> float:
    """K̃/C must lie in (b, Ñ]; the smaller of the two distances. `clip` is C, `floor` ξ/C."""
    lowest = batch * clip + floor * clip
    bounded = min(max(noisy * clip, lowest), size * clip)
    return min(bounded / clip - batch - floor / 2, size - bounded / clip)


_RANGE = {
    "noisy": Range(-5_000, 90_000),
    "batch": Range(1, 8192, "log"),
    "size": Range(8_200, 60_000),
    "clip": Range(0.1, 10, "log"),
    "floor": Range(0.001, 1, "log"),
}

equation_12 = Inequality(
    margin=_range_margin,
    domain=_RANGE,
    settings=({"noisy": 30_000.0, "batch": 256.0, "size": 60_000.0, "clip": 0.1, "floor": 0.01},),
    twin=lambda noisy, batch, size, clip, floor: _range_margin(noisy, 9 * batch, size, clip, floor),
    tolerance=1e-9,
    obligations=("ÑC ≥ bC + ξ: else the outer minimum takes K̃ below bC and the inclusion probability above 1",),
    examples=60,
)

exact_sum_bounded = Inequality(
    margin=lambda first, second, third, clip: 3 * clip - sum(min(x, clip) for x in (first, second, third)),
    domain={name: Range(0, 20) for name in ("first", "second", "third")} | {"clip": Range(0.1, 10, "log")},
    settings=({"first": 3.0, "second": 10.0, "third": 0.1, "clip": 1.0},),
    twin=lambda first, second, third, clip: 2 * clip - sum(min(x, clip) for x in (first, second, third)),
    tolerance=1e-12,
    examples=30,
)


# ---- "negligible", "much smaller" ----


def _shares_of_loss(batch: int, size: int, noise: float, order: int, corrected: bool) -> tuple[float, float]:
    """(both releases of K of one epoch, its T gradient releases), Rényi, K̃ = ÑC."""
    from dpbench.papers.dpis2022.divergences import log_moments

    rate, spread = batch / size, SHARE * size
    if corrected:
        sums = log_moments(order, rate, 1 / (rate * spread)) + order / (2 * spread**2)
    else:
        sums = 2 * log_moments(order, rate, 1 / spread)
    return sums, size / batch * log_moments(order, rate, 1 / noise)


def _sums_are_small(corrected: bool, factor: float) -> Shown:
    worst, where = 0.0, {}
    for batch in (256, 1024, 4096):
        for size in (25_000, 60_000):
            for noise in (0.42, 0.81, 1.8):
                for order in (2, 8, 32):
                    sums, gradients = _shares_of_loss(batch, size, noise, order, corrected)
                    if sums / gradients > worst:
                        worst = sums / gradients
                        where = {"batch": batch, "size": size, "noise": noise, "order": order}
    words = f"at most {worst:.3g} of the gradients' loss, at {where}"
    return Shown(worst * factor < 0.01, words, worst, {"worst": worst, **where, "corrected": corrected})


sums_are_small = Demonstration(lambda: _sums_are_small(True, 1.0), twin=lambda: _sums_are_small(True, 100.0))


def _clipping_negligible(noise_share: float) -> Shown:
    """What the E releases of line 28 add to ε at α = 8 for IMDb, N = 25,000, E = 20, as a release without sampling."""
    spread = noise_share * 25_000
    added = 20 * 8 / (2 * spread**2)
    return Shown(added < 0.005, f"20 releases of K̃* add {added:.3g} to the loss at order 8; ε is 0.5 or more", added)


clipping_negligible = Demonstration(lambda: _clipping_negligible(SHARE), twin=lambda: _clipping_negligible(SHARE / 100))
