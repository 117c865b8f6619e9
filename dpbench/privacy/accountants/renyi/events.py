"""Rényi moments of single events: which events have a proven bound at an order, which bound, and why others do not.

The log moment at order α is (α − 1) times a bound on the Rényi divergence of either direction. Where a formula holds at
whole orders only, an order between two of them gets the chord: α -> log ∫ Q (P/Q)^α is convex (Hölder) and is 0 at
α = 1, so the chord of two upper bounds lies above it. Where an integral needs too many nodes (very little noise), the
Gaussian of the largest shift is the bound: a mixture of pairs is never easier to distinguish than the worst of them,
since Rényi divergences are jointly quasi-convex (van Erven and Harremoës 2014, Theorem 13).

| event | bound | source |
| --- | --- | --- |
| `Gaussian` | α(α−1)/(2σ²) | Mironov 2017, Proposition 7 |
| `SampledGaussian`, Poisson, add-or-remove | log A_α, both directions | Mironov, Talwar, Zhang 2019, 3.3, Cor. 7 |
| `SampledGaussian`, Poisson, replace-one | the event's own pair, integrated | definition |
| `SampledGaussian`, without replacement, replace-one | Theorem 9 | Wang, Balle, Kasiviswanathan 2019 |
| `GroupSampledGaussian`, Poisson, add-or-remove | the event's own pairs, integrated, the larger | definition |
| `Laplace` | closed form | Mironov 2017, Proposition 6 |
| `DiscretePair` | the sum, the larger of both directions | definition |
| `ConfidentGNMax` | α(α−1) (1/(2σ₁²) + 1/σ₂²), the latter where answered | Papernot et al. 2018, Prop. 8 |

A_α >= B_α, the moment of the other direction: Theorem 5 and Corollary 7 of Mironov et al. 2019, for all real α >= 1,
by the reflection x -> 1 − x that exchanges N(0, σ²) and N(1, σ²). Noise is relative to the clip norm, so a replaced
record moves a sum by up to 2: that is the base's sensitivity without replacement, and at rate 1. Confident-GNMax is
two Gaussians, of sensitivity 1 and √2; whether a query was answered counts as fixed beforehand, and where it was read
off a run the sequence is adaptive and belongs to `rdp_filter`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dpbench.errors import DpbenchError
from dpbench.events import (
    ConfidentGNMax,
    DiscretePair,
    Event,
    Gaussian,
    GroupSampledGaussian,
    Laplace,
    RandomSensitivityGaussian,
    SampledGaussian,
)
from dpbench.privacy.accountants._poisson import not_covered, poisson_refusal, reveals_nothing, shuffled_refusal
from dpbench.privacy.accountants.renyi.orders import (
    group_by_quadrature,
    log_e,
    log_excess,
    log_one_plus,
    replaced_by_quadrature,
    sampled_at_whole_order,
    sampled_by_quadrature,
    without_replacement_at_whole_order,
)

LARGEST_GROUP = 256
_REFUSED: dict[type, str] = {
    RandomSensitivityGaussian: (
        "the sensitivity Z of RandomSensitivityGaussian has a heavy tail, P(Z > t) ~ t^-r, so that every Rényi moment"
        " of the direction 'remove', at least q^α E exp(α(α−1)Z²/(2σ²)), is infinite, and no ε follows from it;"
        " use `exact` or `lattice`"
    )
}
_MOST_NOISE = 1e100  # above, the bound at this noise is used: it is larger, and nothing underflows


def refusal(event: Event) -> str | None:
    """Why no Rényi moment of this event is finite and proven; None where one is.

    >>> refusal(Laplace(1.0)) is None
    True
    """
    shuffled = shuffled_refusal(event)
    if shuffled is not None:
        return shuffled
    if isinstance(event, Gaussian | Laplace | ConfidentGNMax):
        return None
    if isinstance(event, SampledGaussian):
        if event.adjacency == "replace_one":
            return None
        return poisson_refusal(event)
    if isinstance(event, GroupSampledGaussian):
        if event.group_size > LARGEST_GROUP:
            return f"group_size = {event.group_size}: expected at most {LARGEST_GROUP}, for the sums grow with it"
        return poisson_refusal(event)
    if isinstance(event, DiscretePair):
        if any((first == 0) != (second == 0) for first, second in zip(event.first, event.second, strict=True)):
            return "some outcome is possible under one distribution only, so that every Rényi moment is infinite"
        return None
    return _REFUSED.get(type(event), not_covered(event, "the events of dpbench.events"))


def log_moment(event: Event, order: float) -> float:
    """(α − 1) times a bound on the Rényi divergence of one invocation at order α > 1, in either direction.

    In [0, inf]; infinite where the moment exceeds the largest double. Relative error below 1e-12 (derived in
    `renyi.orders`; tests hold it against the definitions with 50 digits). Sources: the table in this module's first
    lines. Raises DpbenchError for an event that `refusal` refuses.

    >>> log_moment(Gaussian(1.0), 3)
    3.0
    """
    reason = refusal(event)
    if reason is not None:
        raise DpbenchError(reason)
    if reveals_nothing(event):
        return 0.0
    if isinstance(event, Gaussian):
        return _gaussian(_precision(event.relative_noise), order)
    if isinstance(event, SampledGaussian):
        return _sampled(event, order)
    if isinstance(event, GroupSampledGaussian):
        whole = _gaussian(event.group_size**2 * _precision(event.noise_multiplier), order)
        if event.sampling_rate == 1 or whole == math.inf:
            return whole
        found = group_by_quadrature(event.sampling_rate, event.noise_multiplier, event.group_size, order)
        return whole if found is None else found
    if isinstance(event, Laplace):
        return _laplace(event, order)
    if isinstance(event, DiscretePair):
        return _discrete(event, order)
    if isinstance(event, ConfidentGNMax):
        answer = 2 * _precision(event.answer_noise) if event.answered else 0.0
        return _gaussian(_precision(event.selection_noise) + answer, order)
    raise DpbenchError(not_covered(event, "the events of dpbench.events"))


def _precision(noise: float) -> float:
    inverse = 1.0 / min(noise, _MOST_NOISE)
    return inverse * inverse


def _gaussian(precision: float, order: float) -> float:
    return order * (order - 1) * (precision / 2)


def _sampled(event: SampledGaussian, order: float) -> float:
    rate, precision = event.sampling_rate, _precision(event.noise_multiplier)
    replaced = event.adjacency == "replace_one"
    whole = _gaussian(4 * precision if replaced else precision, order)
    if rate == 1 or whole == math.inf:
        return whole
    if event.sampler == "without_replacement":
        return _on_chord(lambda at: without_replacement_at_whole_order(rate, 4 * precision, at), order)
    if replaced:
        found = replaced_by_quadrature(rate, event.noise_multiplier, order)
        return whole if found is None else found
    if order == int(order):
        return sampled_at_whole_order(rate, precision / 2, int(order))
    found = sampled_by_quadrature(rate, event.noise_multiplier, order)
    if found is None:
        return _on_chord(lambda at: sampled_at_whole_order(rate, precision / 2, at), order)
    return found


def _on_chord(at_whole: Callable[[int], float], order: float) -> float:
    below = math.floor(order)
    if order == below:
        return at_whole(below)
    low = at_whole(below) if below >= 2 else 0.0
    high = at_whole(below + 1)
    return math.inf if math.inf in (low, high) else low + (order - below) * (high - low)


def _laplace(event: Laplace, order: float) -> float:
    """Mironov 2017, Proposition 6: log(α/(2α−1) e^((α−1)/b) + (α−1)/(2α−1) e^(−α/b)).

    The weights sum to 1 and the exponents have mean 0, so the excess over 1 is the same sum with E(y) = e^y − 1 − y.
    """
    inverse, beta = 1.0 / min(event.relative_noise, _MOST_NOISE), order - 1
    if order * inverse > 600:  # e^(−α/b) is below 1e-260 of the other term
        return beta * inverse + math.log(order / (2 * order - 1))
    weights = np.array([math.log(order / (2 * order - 1)), math.log(beta / (2 * order - 1))])
    exponents = np.array([beta * inverse, -order * inverse])
    terms = weights + log_e(exponents)
    top = float(terms.max())
    return log_one_plus(top + math.log(float(np.exp(terms - top).sum())))


def _discrete(event: DiscretePair, order: float) -> float:
    """log Σ Q (P/Q)^α of the given doubles divided by their sums, the larger of both directions."""
    pairs = [(p, q) for p, q in zip(event.first, event.second, strict=True) if p > 0]
    first, second = np.array(pairs).T
    sums = math.fsum(event.first), math.fsum(event.second)
    scale = math.log1p(math.fsum([*event.first, *(-q for q in event.second)]) / sums[1])  # log of the sums' ratio
    with np.errstate(over="ignore"):
        change = (first - second) / second
    near = np.abs(change) < 0.5
    loss = np.where(near, np.log1p(np.where(near, change, 0.0)), np.log(first) - np.log(second)) - scale
    log_first, log_second = np.log(first) - math.log(sums[0]), np.log(second) - math.log(sums[1])
    beta = order - 1
    return log_one_plus(max(log_excess(log_first, loss, beta), log_excess(log_second, -loss, beta)))
