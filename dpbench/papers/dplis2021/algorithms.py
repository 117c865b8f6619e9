"""Algorithms 1 and 2 of dplis2021, line by line as printed, and the choice of the smoothing radius.

| paper | here |
| --- | --- |
| g_t(x_i), ḡ_t(x_i), g̃_t | gradient, clipped, released |
| C, σ, L, N, η, T | clip, noise, batch, records, rate, steps |
| K, R, ν_j | samples, radius, offsets |

Exact rationals wherever a line is arithmetic; the printed text is followed, never the package's mechanisms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.inequality import Inequality, Range

GRID = [Fraction(value, 2) for value in range(-6, 7)]  # gradients of one dimension, up to three clip norms


def _clip(gradient: Fraction, clip: Fraction) -> Fraction:
    """The printed line: g / max(1, |g|/C)."""
    return gradient / max(Fraction(1), abs(gradient) / clip)


# ---- the clip line ----


def _norm_margin(log_norm: float, angle: float, clip: float, squared: bool = False) -> float:
    """C less the norm of the clipped gradient, relative to C."""
    norm = math.exp(log_norm)
    gradient = (norm * math.cos(angle), norm * math.sin(angle))
    divisor = max(1.0, norm / (clip**2 if squared else clip))
    return 1 - math.hypot(gradient[0] / divisor, gradient[1] / divisor) / clip


clip_line = Inequality(
    _norm_margin,
    {"log_norm": Range(-7, 7), "angle": Range(0, math.pi), "clip": Range(0.1, 10, "log")},
    ({"log_norm": 2.0, "angle": 1.0, "clip": 1.0},),
    twin=lambda log_norm, angle, clip: _norm_margin(log_norm, angle, clip, True),
    tolerance=1e-12,
)

# ---- the sensitivity of the sum ----


def _sum_changes(replace: bool, clip: Fraction) -> tuple[Fraction, tuple[Fraction, ...]]:
    """The largest change of Σ clip(g) over all gradients on the grid, when one record is added or is replaced."""
    others = [Fraction(1), Fraction(-2)]
    base = sum((_clip(gradient, clip) for gradient in others), Fraction(0))
    if not replace:
        return max((abs(base + _clip(g, clip) - base), (g,)) for g in GRID)
    return max((abs(base + _clip(g, clip) - base - _clip(h, clip)), (g, h)) for g, h in itertools.product(GRID, GRID))


def _sensitivity(replace: bool, factor: int) -> Shown:
    """Whether `factor` clip norms bound the change, and whether they are attained."""
    clip = Fraction(1)
    found, gradients = _sum_changes(replace, clip)
    bound = 2 * clip if replace else clip  # by the triangle inequality, the second route
    routes = {"enumeration": float(found), "triangle inequality": float(bound)}
    words = "one record replaced" if replace else "one record added or removed"
    reason = f"{words}: the sum moves by up to {float(found):g} C (gradients {[str(g) for g in gradients]})"
    evidence = {"change_in_clip_norms": float(found / clip), "relation": words}
    return Shown(found <= factor * clip, reason, float(found / clip), evidence, routes)


clipping_sensitivity = Demonstration(lambda: _sensitivity(False, 1), lambda: _sensitivity(True, 1))


def _replaced(examples: int, batch: int, noise: float, steps: int) -> Shown:
    """Sensitivity C when one record is replaced, and what that does to ε: both relations by the exact accountant."""
    from dpbench.accounting import load_accountant
    from dpbench.events import Composition, SampledGaussian

    shown = _sensitivity(True, 1)
    accountant = load_accountant("exact")

    def epsilon(relation: Any) -> float:
        event = SampledGaussian(batch / examples, noise, adjacency=relation)
        return float(accountant.curve(Composition(((event, steps),))).epsilon(1e-5).value)

    added, replaced = epsilon("add_or_remove"), epsilon("replace_one")
    evidence = {**shown.evidence, "epsilon_add_or_remove": added, "epsilon_replace_one": replaced, "steps": steps}
    reason = (
        f"{shown.reason}; over {steps} steps the true ε is {added:.3g} for one added, {replaced:.3g} for one replaced"
    )
    return Shown(shown.holds, reason, replaced, evidence, shown.routes)


def _replaced_twin(**_setting: Any) -> Shown:
    """Sensitivity 2C for one record replaced, which is true."""
    return _sensitivity(True, 2)


clipping_sensitivity_replaced = Demonstration(_replaced, _replaced_twin)

# ---- the batch and the division by L ----


def _expected_release(realised: bool) -> Shown:
    """E g̃ over all Poisson batches of four records with probability L/N, against (1/N) Σ ḡ."""
    clipped = [Fraction(1), Fraction(-1, 2), Fraction(1, 4), Fraction(1)]
    records, batch = len(clipped), Fraction(2)
    rate = batch / records
    expectation, size = Fraction(0), Fraction(0)
    for chosen in itertools.product((0, 1), repeat=records):
        inside = sum(chosen)
        probability = rate**inside * (1 - rate) ** (records - inside)
        total = sum((value for value, taken in zip(clipped, chosen, strict=True) if taken), Fraction(0))
        divisor = Fraction(max(inside, 1)) if realised else batch
        expectation += probability * total / divisor
        size += probability * inside
    mean = sum(clipped, Fraction(0)) / records
    reason = f"the released gradient's mean is {expectation}, the full one {mean}; the mean batch is {size}"
    return Shown(expectation == mean and size == batch, reason, float(expectation), {"batch": float(size)})


sampling_line = Demonstration(lambda: _expected_release(False), lambda: _expected_release(True))

# ---- the noise line ----


def _noise_ratio(noise: str, clip: str, batch: int, after_division: bool) -> Shown:
    """Deviation of the noise in g̃ over the largest change of the rest of g̃ by one added record: has to be σ."""
    sigma, bound = Fraction(noise), Fraction(clip)
    deviation = sigma * bound if after_division else sigma * bound / batch
    change = _sum_changes(False, Fraction(1))[0] * bound / batch
    ratio = deviation / change
    reason = f"the noise of the released mean is {float(ratio):g} times its sensitivity, σ is {float(sigma):g}"
    return Shown(ratio == sigma, reason, float(ratio), {"deviation": float(deviation), "sensitivity": float(change)})


noise_line = Demonstration(
    lambda noise, clip, batch: _noise_ratio(noise, clip, batch, False),
    lambda noise, clip, batch: _noise_ratio(noise, clip, batch, True),
)

# ---- the loop ----


def _loop(times: Sequence[int], steps: int) -> Shown:
    """The printed loop on known places θ_t: which are set, and how many noisy updates the output θ_T has seen."""
    updates = {0: 0}  # θ_0 has seen none
    for t in times:
        if t not in updates:
            return Shown(False, f"θ_{t} is used before it is set: only θ_0 is initialised")
        updates[t + 1] = updates[t] + 1
    seen = updates.get(steps, -1)
    return Shown(seen == steps, f"the output θ_T has seen {seen} of {steps} updates", seen)


loop_line = Demonstration(lambda steps: _loop(range(steps), steps), lambda steps: _loop(range(1, steps + 1), steps))

# ---- Algorithm 2: the smoothed gradient ----


def _slope(place: Fraction, record: Fraction) -> Fraction:
    """A per-record gradient that is not linear in θ and reaches many clip norms."""
    return record * (1 + place) ** 3 - place


def _smoothed(place: Fraction, record: Fraction, offsets: Sequence[Fraction]) -> Fraction:
    """(1/K) Σ_j of the gradient at θ + offset_j."""
    return sum((_slope(place + offset, record) for offset in offsets), Fraction(0)) / len(offsets)


def _clip_of_mean(place: Fraction, record: Fraction, offsets: Sequence[Fraction], clip: Fraction) -> Fraction:
    return _clip(_smoothed(place, record, offsets), clip)


def _sum_of_clips(place: Fraction, record: Fraction, offsets: Sequence[Fraction], clip: Fraction) -> Fraction:
    """A wrong order: every sample's gradient clipped and the K results added without 1/K."""
    return sum((_clip(_slope(place + offset, record), clip) for offset in offsets), Fraction(0))


def _smoothed_sensitivity(line: Callable[[Fraction, Fraction, Sequence[Fraction], Fraction], Fraction]) -> Shown:
    """The largest contribution of one record over places, records and two sets of K = 10 offsets."""
    clip = Fraction(1)
    sets = [
        [Fraction(value, 20) for value in range(-9, 11, 2)],
        [Fraction((7 * value) % 11 - 5, 5) for value in range(10)],
    ]
    found = max(
        abs(line(place, record, offsets, clip))
        for offsets in sets
        for place in GRID[::2]
        for record in (Fraction(-5), Fraction(1, 3), Fraction(4))
    )
    reason = f"one record adds up to {float(found):g} C to the sum, whatever the offsets"
    return Shown(found <= clip, reason, float(found))


smoothed_gradient_line = Demonstration(
    lambda: _smoothed_sensitivity(_clip_of_mean), lambda: _smoothed_sensitivity(_sum_of_clips)
)


def _means(place: Fraction, record: Fraction, draws: Sequence[Sequence[Fraction]]) -> list[float]:
    """The clipped smoothed gradient of the extra record under each draw of the smoothing noise."""
    return [float(_clip_of_mean(place, record, offsets, Fraction(1))) for offsets in draws]


def _mixture_margin(epsilon: float, noise: float, record: float, reused: bool = False) -> float:
    """δ of a Gaussian release with multiplier σ less that of one step of Algorithm 2 that hides its smoothing noise.

    The step releases s(ν) + N(0, σ²) with the record and N(0, σ²) without it (q = 1, C = 1), ν one of five equally
    likely draws: δ by summing over the mixture on a grid of outputs. `reused` takes the smoothing noise as half of
    the variance that protects, the mistake that sharing the two would be.
    """
    draws = [[Fraction(5 * j + k - 12, 12) for k in range(3)] for j in range(5)]
    shifts = np.array(_means(Fraction(1, 2), Fraction(record).limit_denominator(64), draws))
    deviation = noise / math.sqrt(2) if reused else noise
    outputs = np.linspace(-8 * noise - 1, 8 * noise + 1, 12001)
    without = np.exp(-((outputs / deviation) ** 2) / 2)
    with_record = np.exp(-(((outputs[:, None] - shifts) / deviation) ** 2) / 2).mean(axis=1)
    cell = (outputs[1] - outputs[0]) / (deviation * math.sqrt(2 * math.pi))
    odds = math.exp(epsilon)
    removed = float(np.maximum(with_record - odds * without, 0).sum() * cell)
    added = float(np.maximum(without - odds * with_record, 0).sum() * cell)
    allowed = float(ndtr(0.5 / noise - epsilon * noise) - math.exp(epsilon + log_ndtr(-0.5 / noise - epsilon * noise)))
    return allowed - max(removed, added)


same_privacy_as_dp_sgd = Inequality(
    _mixture_margin,
    {"epsilon": Range(0, 3), "noise": Range(0.7, 3, "log"), "record": Range(-6, 6)},
    (
        {"epsilon": 0.5, "noise": 1.1, "record": 5.0},
        {"epsilon": 1.0, "noise": 1.1, "record": -5.0},
        {"epsilon": 0.1, "noise": 3.0, "record": 5.0},
    ),
    twin=lambda epsilon, noise, record: _mixture_margin(epsilon, noise, record, True),
    tolerance=1e-6,  # of the sum over outputs, whose integrand has kinks
    obligations=(
        "the smoothing noise is drawn without looking at the data, and independently of the noise that is added",
        "for fixed smoothing noise a step is a step of Algorithm 1; δ of a mixture is at most the mixture's mean δ",
        "R, K and σ_smooth are fixed beforehand: they were not, see claim radius-selection",
    ),
    examples=80,
)

# ---- the choice of R = R_best (and of every other hyper-parameter) ----


def _best_of(runs: int, noise: float, epsilon: float) -> tuple[float, float, float]:
    """δ at ε of one Gaussian release; of the best (largest) of `runs`; the latter by quadrature as well."""
    cut = epsilon * noise + 0.5 / noise  # the single release's best set is {x > cut}, in deviations
    p, q = float(ndtr(1 / noise - cut)), float(ndtr(-cut))
    one = p - math.exp(epsilon) * q
    best = -math.expm1(runs * math.log1p(-p)) + math.exp(epsilon) * math.expm1(runs * math.log1p(-q))
    outputs = np.linspace(cut, cut + 14, 20001)

    def density(shift: float) -> Any:
        """Of the largest of `runs` draws from N(shift, 1)."""
        at = outputs - shift
        return runs * np.exp(-(at**2) / 2) / math.sqrt(2 * math.pi) * np.exp((runs - 1) * log_ndtr(at))

    difference = density(1 / noise) - math.exp(epsilon) * density(0.0)
    by_quadrature = float(np.trapezoid(difference, outputs))
    return one, best, by_quadrature


def _best_enclosed(runs: int, noise: float, epsilon: float) -> tuple[float, float]:
    """In Arb: an upper end of the single release's δ, and a lower end of δ of the best of `runs`."""
    from flint import arb

    sigma, log_ratio = arb(noise), arb(epsilon)
    cut = log_ratio * sigma + 1 / (2 * sigma)
    p, q = ((place / arb(2).sqrt()).erfc() / 2 for place in (cut - 1 / sigma, cut))
    one = p - log_ratio.exp() * q
    best = (1 - (1 - p) ** runs) - log_ratio.exp() * (1 - (1 - q) ** runs)
    return float(one.upper()), float(best.lower())


def _selection(runs: int, noise: float, epsilon: float, free: bool) -> Shown:
    """Whether releasing the best of several (ε, δ) runs is (ε, δ): the largest output of `runs` Gaussian releases."""
    one, best, second = _best_of(1 if free else runs, noise, epsilon)
    routes: dict[str, Any] = {"closed form": best, "quadrature of the largest": second}
    evidence = {"delta_of_one_run": one, "delta_of_the_best": best, "runs": runs, "epsilon": epsilon}
    if abs(best - second) > 1e-4 * best:
        return Shown(None, f"two routes give {best!r} and {second!r}", best, evidence, routes)
    most_of_one, least_of_best = _best_enclosed(1 if free else runs, noise, epsilon)
    routes["certified"] = [most_of_one, least_of_best]
    reason = f"at ε = {epsilon:g} one run needs δ = {one:.3g}, the best of {runs} needs {best:.3g}"
    return Shown(least_of_best <= most_of_one, reason, best / one, evidence, routes)


radius_selection = Demonstration(
    lambda runs, noise, epsilon: _selection(runs, noise, epsilon, False),
    lambda runs, noise, epsilon: _selection(runs, noise, epsilon, True),
)
