"""One iteration of DPIS: Lemma 3.1 with equation (13), equation (20) and every step of its proof in Section 4.1.

Noise is in units of σ_G·C: K̃/(Ñ C σ_G) is the shift of the weighted sum of equation (7).

| paper | here |
| --- | --- |
| bC_e/K̃, p_z | rate |
| K̃/(Ñ C_e σ_G) | shift |
| b/(Ñ σ_G) | unit, the shift that a rate of 1 would have; rate × shift = unit |
| ‖g_z‖/C_e | share |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range
from dpbench.papers.dpis2022.divergences import (
    ALONE,
    difference,
    enclosed_ball,
    mixture_renyi,
    quadrature,
    subsampled,
    subsampled_renyi,
)
from dpbench.papers.dpis2022.enumeration import expectation

SIZE, BATCH, NOISE = 60_000, 256, 0.81  # FMNIST; b = 256 is what the curves of Figure 1 fit (see figures.py)


# ---- equation (13) ----


def _binomial_sum(order: int, rate: Any, shift: Any, factor: Any = 1) -> Any:
    """The printed sum, with exp(factor·(m²−m)·shift²/2)."""
    import mpmath

    rate, shift = mpmath.mpf(rate), mpmath.mpf(shift)
    whole = mpmath.mpf(0)
    for m in range(order + 1):
        exponent = factor * mpmath.mpf(m * m - m) * shift**2 / 2
        whole += mpmath.binomial(order, m) * (1 - rate) ** (order - m) * rate**m * mpmath.exp(exponent)
    return mpmath.log(whole) / (order - 1)


def _defined(order: int, rate: Any, shift: Any) -> Any:
    import mpmath

    return quadrature(order, mpmath.mpf(rate), mpmath.mpf(shift))


def _point(order: int, fill: float) -> dict[str, Any]:
    """K̃ = fill·ÑC at the settings of Figure 1."""
    return {"order": order, "rate": BATCH / SIZE / fill, "shift": fill / NOISE}


_POINTS: tuple[dict[str, Any], ...] = (
    _point(2, 1.0),
    _point(6, 1.0),
    _point(4, 0.5),
    _point(8, 0.25),
    {"order": 3, "rate": 0.3, "shift": 2.0},
)

equation_13 = Formula(
    printed=_binomial_sum,
    definition=_defined,
    settings=_POINTS,
    twin=lambda order, rate, shift: _binomial_sum(order, rate, shift, factor=2),
    digits=12,
    precision=30,
)

proof_closed_form = Formula(
    printed=lambda order, rate, shift: _binomial_sum(order, rate, shift, factor=2),
    definition=_defined,
    settings=_POINTS,
    twin=lambda order, rate, shift: _binomial_sum(order, rate, shift, factor=4),
    digits=12,
    corrected=_binomial_sum,
    precision=30,
)


def _size_replaced(order: int, fill: float) -> Any:
    """Equation (6) in which nothing but N is replaced by K̃/C."""
    import mpmath

    return _binomial_sum(order, mpmath.mpf(BATCH) / SIZE / mpmath.mpf(fill), 1 / mpmath.mpf(NOISE))


def _at_fill(order: int, fill: float, more: int = 1) -> Any:
    import mpmath

    fill = mpmath.mpf(fill)
    return quadrature(order, mpmath.mpf(BATCH) / SIZE / fill, fill**more / mpmath.mpf(NOISE))


_FILLS = tuple({"order": 4, "fill": fill} for fill in (1.0, 0.5, 0.25))

only_size_replaced = Formula(
    printed=_size_replaced,
    definition=_at_fill,
    settings=_FILLS,
    twin=lambda order, fill: _size_replaced(order, fill) * 2,
    corrected=lambda order, fill: _binomial_sum(order, BATCH / SIZE / fill, fill / NOISE),
    digits=9,
    precision=30,
)

equal_where_all_clipped = Formula(
    printed=lambda order: _binomial_sum(order, BATCH / SIZE, 1 / NOISE),
    definition=lambda order: _at_fill(order, 1.0),
    settings=({"order": 2}, {"order": 5}, {"order": 9}),
    twin=lambda order: _binomial_sum(order, BATCH / SIZE, 2 / NOISE),
    digits=9,
    precision=30,
)


# ---- Lemma 3.1 on explicit datasets ----


def _iteration_margin(order: int, rate: float, shift: float, share: float, other: float, claimed: float) -> float:
    """Margin of `claimed` for D = {one record} and D' = D ∪ {z}, gradients on the line, both directions.

    z has norm share·C, the other |other|·C; each is drawn with rate × its share and weighs ±shift when drawn.
    """
    sign = math.copysign(shift, other)
    drawn = [(1 - rate * abs(other), 0.0), (rate * abs(other), sign)]
    both = [
        (weight * chance, mean + more)
        for weight, mean in drawn
        for chance, more in ((1 - rate * share, 0.0), (rate * share, shift))
    ]
    return claimed - max(mixture_renyi(order, both, drawn), mixture_renyi(order, drawn, both))


_STEP = {
    "order": Range(2, 6, "whole"),
    "rate": Range(0.004, 0.99, "log"),
    "shift": Range(0.05, 2.5, "log"),
    "share": Range(0.02, 1),
    "other": Range(-1, 1),
}
_STEP_SETTINGS: tuple[Mapping[str, Any], ...] = (
    {"order": 4, "rate": BATCH / SIZE, "shift": 1 / NOISE, "share": 1.0, "other": 1.0},
    {"order": 2, "rate": 2 * BATCH / SIZE, "shift": 0.5 / 0.42, "share": 1.0, "other": -0.5},
)

lemma_3_1 = Inequality(
    margin=lambda order, rate, shift, share, other: _iteration_margin(
        order, rate, shift, share, other, subsampled_renyi(order, rate, shift)
    ),
    domain=_STEP,
    settings=_STEP_SETTINGS,
    twin=lambda order, rate, shift, share, other: _iteration_margin(
        order, rate, shift, share, other, subsampled_renyi(order, 0.9 * rate, shift)
    ),
    tolerance=1e-10,
    obligations=(
        "every record is drawn with exactly b‖ḡ‖/K̃, and bC ≤ K̃, so that this is a probability",
        "the weight is 1/(N p(x)) with p = ‖ḡ‖/K̃, as in equation (7)",
        "neighbours differ by one record that is added or removed; K̃, Ñ, C and σ_G were released before",
        "α is a whole number for the closed form",
    ),
    examples=60,
)


def _one_step_pair(order: int, rate: float, shift: float, share: float, other: float, factor: float) -> float:
    """The chain up to the third inequality: mixtures over the other's batches against one pair of Gaussians."""
    return _iteration_margin(order, rate, shift, share, other, factor * subsampled_renyi(order, rate * share, shift))


proof_quasi_convexity = Inequality(
    margin=lambda order, rate, shift, share, other: _one_step_pair(order, rate, shift, share, other, 1.0),
    domain=_STEP,
    settings=_STEP_SETTINGS,
    twin=lambda order, rate, shift, share, other: _one_step_pair(order, rate, shift, share, other, 0.9),
    tolerance=1e-10,
    obligations=(
        "the batches of the other records have the same probabilities under D and D', given what was released",
        "the constant 1/b before the sum scales the variable, not the density",
        "D(G(D) ‖ G(D')) is not larger than D(G(D') ‖ G(D)), the direction that is written down",
    ),
    examples=60,
)

proof_all_norms_alike = Inequality(
    margin=lambda order, rate, shift, share: (
        subsampled_renyi(order, rate, shift) - subsampled_renyi(order, rate * share, shift)
    ),
    domain={name: _STEP[name] for name in ("order", "rate", "shift", "share")},
    settings=({"order": 4, "rate": BATCH / SIZE, "shift": 1 / NOISE, "share": 0.5},),
    twin=lambda order, rate, shift, share: (
        subsampled_renyi(order, rate * share, shift) - subsampled_renyi(order, rate, shift)
    ),
    tolerance=1e-12,
    obligations=("m ↦ exp((m²−m)·shift²/2) does not decrease, and a binomial grows with its probability",),
    examples=60,
)


def _against_uniform(order: int, unit: float, share: float, place: float, noise: float, above: bool) -> float:
    """Loss of a record of norm share·C when drawn uniformly, less its loss under (7), for a mean norm K̃/N·1/C.

    The mean norm lies below share (`above`, the record is larger than average) or between share and 1.
    """
    low, high = (unit, share) if above else (share, 1.0)
    mean = low + place * (high - low)
    uniform = subsampled_renyi(order, unit, share / noise)
    return uniform - subsampled_renyi(order, min(unit * share / mean, 1.0), mean / noise)


weight_compensates = Inequality(
    margin=lambda order, unit, share, place, noise: _against_uniform(order, unit, share, place, noise, True),
    domain={
        "order": Range(2, 6, "whole"),
        "unit": Range(0.002, 0.1, "log"),
        "share": Range(0.1, 1),
        "place": Range(0.0, 1.0),
        "noise": Range(0.42, 3),
    },
    settings=({"order": 4, "unit": BATCH / SIZE, "share": 1.0, "place": 0.5, "noise": NOISE},),
    twin=lambda order, unit, share, place, noise: _against_uniform(order, unit, share, place, noise, False),
    tolerance=1e-12,
    obligations=("‖ḡ‖ ≥ K̃/N: a record below the average is drawn less, weighs more and costs more than before",),
    examples=50,
)


# ---- the last chain of the proof, with its exponents as printed ----


def _weight_of_inclusion(order: int, rate: float, shift: float, batch: float, factor: float) -> float:
    """K̃ in the exponent against ‖g_z‖/p_z where p_z is the inclusion probability b‖g_z‖/K̃: a shift of shift/b."""
    return factor * subsampled_renyi(order, rate, shift) - subsampled_renyi(order, rate, shift / batch)


proof_exponent_of_inclusion = Inequality(
    margin=lambda order, rate, shift, batch: _weight_of_inclusion(order, rate, shift, batch, 1.0),
    domain={"order": _STEP["order"], "rate": _STEP["rate"], "shift": _STEP["shift"], "batch": Range(1, 1024, "log")},
    settings=({"order": 4, "rate": BATCH / SIZE, "shift": 1 / NOISE, "batch": 256.0},),
    twin=lambda order, rate, shift, batch: _weight_of_inclusion(order, rate, shift, batch, 0.5),
    tolerance=1e-12,
    obligations=("b ≥ 1; equality needs p_z = ‖g_z‖/K̃ in the weight, not the inclusion probability of Section 4.1",),
    examples=50,
)


def _last_line(order: int, rate: float, shift: float, share: float) -> float:
    """τ of the last line, exponent (m²−m)·shift²/2 at bC/K̃, less the line before, exponent (m²−m)·shift² at p_z."""
    return subsampled_renyi(order, rate, shift) - subsampled_renyi(order, rate * share, shift * math.sqrt(2))


proof_last_inequality = Inequality(
    margin=_last_line,
    domain={name: _STEP[name] for name in ("order", "rate", "shift", "share")},
    settings=({"order": 4, "rate": BATCH / SIZE, "shift": 1 / NOISE, "share": 1.0},),
    twin=lambda order, rate, shift, share: (
        subsampled_renyi(order, rate, shift) - subsampled_renyi(order, rate * share, shift * 2)
    ),
    enclosure=lambda order, rate, shift, share: difference(
        enclosed_ball(int(order), rate, shift), enclosed_ball(int(order), rate * share, shift * math.sqrt(2))
    ),
    examples=40,
)


# ---- monotonicity ----

_MONOTONE = {
    "order": Range(2, 6, "whole"),
    "unit": Range(0.004, 0.5, "log"),
    "lower": Range(0.01, 0.99),
    "noise": Range(0.5, 3),
}


def _between(unit: float, place: float) -> float:
    """A fill K̃/(ÑC) between b/Ñ (where the rate is 1) and 1; unit is b/Ñ."""
    return unit + place * (1 - unit)


def _at(order: int, unit: float, noise: float, fill: float) -> float:
    return subsampled_renyi(order, min(unit / fill, 1.0), fill / noise)


def _grows(order: int, unit: float, lower: float, noise: float, sign: float, against: float = 1.0) -> float:
    fill = _between(unit, lower)
    return sign * (_at(order, unit, noise, against) - _at(order, unit, noise, fill))


grows_with_gradient_sum = Inequality(
    margin=lambda order, unit, lower, noise: min(
        _grows(order, unit, lower, noise, 1.0, min(1.0, _between(unit, lower) * 1.02)),
        _grows(order, unit, lower, noise, 1.0),
    ),
    domain=_MONOTONE,
    settings=(
        {"order": 4, "unit": BATCH / SIZE, "lower": 0.5, "noise": NOISE},
        {"order": 2, "unit": BATCH / SIZE, "lower": 0.02, "noise": 0.5},
    ),
    twin=lambda order, unit, lower, noise: _grows(order, unit, lower, noise, -1.0),
    tolerance=1e-12,
    obligations=(
        "rate × shift does not depend on K̃, so a larger K̃ spreads the mixing law and keeps its mean",
        "the moment is convex in every one of its α independent means, so it grows with that spread",
    ),
    examples=60,
)

noise_not_larger = Inequality(
    margin=lambda order, unit, lower, noise: _grows(order, unit, lower, noise, 1.0),
    domain=_MONOTONE,
    settings=({"order": 4, "unit": BATCH / SIZE, "lower": 0.5, "noise": NOISE},),
    twin=lambda order, unit, lower, noise: _grows(order, unit, lower, noise, 1.0) - 0.1 * _at(order, unit, noise, 1.0),
    tolerance=1e-12,
    obligations=(
        "the same α, b, number of iterations and Ñ for both, and nothing paid for K̃ and Ñ",
        "K̃ ≤ ÑC, which equation (12) enforces",
    ),
    examples=60,
)

falls_with_noise = Inequality(
    margin=lambda order, unit, lower, noise: (
        _at(order, unit, noise, _between(unit, lower)) - _at(order, unit, noise * 1.02, _between(unit, lower))
    ),
    domain=_MONOTONE,
    settings=({"order": 4, "unit": BATCH / SIZE, "lower": 0.5, "noise": NOISE},),
    twin=lambda order, unit, lower, noise: (
        _at(order, unit, noise * 1.02, _between(unit, lower)) - _at(order, unit, noise, _between(unit, lower))
    ),
    tolerance=1e-12,
    examples=50,
)


# ---- equation (20) ----


def _mean_of_20(factor: Fraction) -> Shown:
    """The mean of the released variable under (20), three gradients on the line, p_i the probability of inclusion.

    `factor` multiplies p_i inside the weight: 1 is printed, 1/b is what equation (7) has.
    """
    gradients, batch, gradient_sum = (Fraction(1), Fraction(-1, 2), Fraction(1, 4)), Fraction(2), Fraction(4)
    inclusion = [batch * abs(g) / gradient_sum for g in gradients]
    size = len(gradients)
    moves = [g / (size * p * factor) for p, g in zip(inclusion, gradients, strict=True)]
    by_batches = expectation(inclusion, lambda members: sum((moves[i] for i in members), Fraction(0)) / batch)
    by_linearity = sum((p * move for p, move in zip(inclusion, moves, strict=True)), Fraction(0)) / batch
    mean = sum(gradients, Fraction(0)) / size
    words = f"the mean of (20) is {by_batches}, that of the gradients {mean}: a ratio of {by_batches / mean}, b = 2"
    routes = {"all batches": float(by_batches), "linearity": float(by_linearity)}
    holds = by_batches == mean and by_linearity == mean
    return Shown(holds, words, float(by_batches / mean), {"batch": 2, "mean": float(mean)}, routes)


equation_20 = Demonstration(lambda: _mean_of_20(Fraction(1)), twin=lambda: _mean_of_20(Fraction(1, 2)))


def _one_direction() -> Shown:
    """Both directions, and the pair of a record that is replaced, at the settings of Figure 1 and order 4."""
    rate, shift, order = BATCH / SIZE, 1 / NOISE, 4
    forward = subsampled_renyi(order, rate, shift)
    backward = mixture_renyi(order, ALONE, subsampled(rate, shift))
    replaced = mixture_renyi(order, subsampled(rate, shift), subsampled(rate, -shift))
    words = f"D(D'‖D) = {forward:.6g}, D(D‖D') = {backward:.6g}; for a replaced record it is {replaced:.6g}"
    evidence = {"forward": forward, "backward": backward, "replaced": replaced}
    return Shown(backward <= forward, words, forward, evidence)


def _replaced_too() -> Shown:
    """The same claim for a record that is replaced by its opposite."""
    shown = _one_direction()
    return Shown(shown.evidence["replaced"] <= shown.evidence["forward"], shown.reason, shown.value, shown.evidence)


both_directions = Demonstration(_one_direction, twin=_replaced_too)
