"""PATE's data-dependent Rényi accounting: an approximation, for its ε depends on the private votes itself.

| here | in the paper (Papernot et al. 2018, arXiv:1802.08908) |
| --- | --- |
| order, selection noise, answer noise, votes | λ, σ₁, σ₂, n_i |
| log_miss | log q̃, q̃ >= P(the outcome is not the likeliest one) |

Theorem 6: if a mechanism has Rényi divergences ε₁ at order μ₁ and ε₂ at order μ₂, λ <= μ₁, and
q̃ <= e^((μ₂−1)ε₂) / (μ₁/(μ₁−1) · μ₂/(μ₂−1))^μ₂, its divergence at λ from any neighbour is at most log((1−q̃) A^(λ−1) +
q̃ B^(λ−1)) / (λ−1), A = (1−q̃)/(1 − (q̃ e^ε₂)^((μ₂−1)/μ₂)), B = e^ε₁ q̃^(−1/(μ₁−1)). With a Gaussian's ε(μ) = μ/v,
Proposition 10 chooses μ₂ = √(v log(1/q̃)), μ₁ = μ₂ + 1. Both parts of a Confident-GNMax query are such mechanisms: the
answer with v = σ₂² and q̃ by Proposition 7, ½ Σ erfc((n* − n_i)/(2σ₂)); the check, a Gaussian of sensitivity 1
(v = 2σ₁²), with q̃ the probability of its unlikely side. The data-independent λ/v is used where it is smaller or the
theorem's conditions fail. Conversion: Mironov 2017, the least over fixed orders.

**Why this is no promise.** The theorem bounds the divergence from *these* votes to any neighbour's, not the reverse,
and the bound itself reveals something of the votes (`dpbench.privacy.smooth_sensitivity` mends both). So the kind is
`approximation`, compositions with an event without votes are refused, and the promise is `rdp`'s number.

>>> from dpbench.events import Composition
>>> query = ConfidentGNMax(200, 150, 40, votes=(225, 25))
>>> curve = accountant.curve(Composition(((query, 100),)))
>>> curve.kind, curve.epsilon(1e-5).upper is None
('approximation', True)
"""

from __future__ import annotations

import math
from functools import lru_cache, partial

from dpbench.errors import DpbenchError
from dpbench.events import ConfidentGNMax, Event
from dpbench.privacy.accountants._gaussian_curve import log_below
from dpbench.privacy.accountants._poisson import Published, not_covered, support
from dpbench.privacy.accountants.rdp import renyi_curve

REMARK = (
    "depends on the votes, so that it is private itself: no promise, and not to be published unless it is released"
    " privately (`dpbench.privacy.smooth_sensitivity`)"
)
ORDERS: tuple[float, ...] = (*(half / 2 for half in range(3, 200)), *(100.0 * 1.1**power for power in range(25)))


def refusal(event: Event) -> str | None:
    """Why an event has no data-dependent bound; None where it has.

    >>> refusal(ConfidentGNMax(300, 200, 40))
    'votes = None: a data-dependent bound needs the votes; give them, or choose `rdp`, which does without'
    """
    if not isinstance(event, ConfidentGNMax):
        return not_covered(event, "ConfidentGNMax with votes")
    if event.votes is None:
        return "votes = None: a data-dependent bound needs the votes; give them, or choose `rdp`, which does without"
    return None


def log_moment(event: Event, order: float) -> float:
    """(λ − 1) times the data-dependent bound on the divergence of one query at order λ > 1, in [0, inf].

    Raises DpbenchError where `refusal` has a reason. Nine of ten teachers agree, so the answer costs next to nothing
    beside the 0.4 of the data-independent bound, λ/σ₂²:

    >>> round(log_moment(ConfidentGNMax(200, 150, 5, votes=(225, 25)), 10.0) / 9, 4)
    0.0002
    """
    reason = refusal(event)
    if reason is not None or not isinstance(event, ConfidentGNMax) or event.votes is None:
        raise DpbenchError(reason or "votes = None: expected the votes")
    beyond = (max(event.votes) - event.threshold) / event.selection_noise
    unlikely = min(log_below(beyond), log_below(-beyond))
    total = gaussian_bound(unlikely, 2 * event.selection_noise**2, order)
    if event.answered:
        total += gaussian_bound(log_miss(event.votes, event.answer_noise), event.answer_noise**2, order)
    return (order - 1) * total


@lru_cache(maxsize=1 << 14)  # a curve asks for every order anew
def log_miss(votes: tuple[int, ...], noise: float) -> float:
    """log q̃ of Proposition 7: log ½ Σ erfc((n* − n_i)/(2σ)) over the other classes, at most 0.

    >>> round(math.exp(log_miss((10, 10), 1.0)), 6)
    0.5
    """
    ranked = sorted(votes, reverse=True)
    terms = [log_below(-(ranked[0] - other) / (math.sqrt(2) * noise)) for other in ranked[1:]]
    if terms[0] == -math.inf:
        return -math.inf
    return min(terms[0] + math.log(math.fsum(math.exp(term - terms[0]) for term in terms)), 0.0)


def gaussian_bound(log_q: float, variance: float, order: float) -> float:
    """The smaller of λ/v and Theorem 6 with Proposition 10, for a mechanism whose likeliest outcome fails with q̃.

    >>> gaussian_bound(math.log(0.5), 4.0, 2.0)
    0.5
    """
    independent = order / variance if variance > 0 else math.inf
    second = math.sqrt(-log_q * variance) if log_q < 0 else 0.0
    if not (second > 1 and order <= second + 1 < math.inf):
        return independent
    first = second + 1
    first_bound, second_bound = first / variance, second / variance
    limit = (second - 1) * second_bound - second * (math.log1p(1 / (first - 1)) + math.log1p(1 / (second - 1)))
    shift = (log_q + second_bound) * (1 - 1 / second)
    if log_q > limit or shift >= 0:
        return independent
    log_likeliest = _log_one_minus(log_q)
    log_a = (order - 1) * (log_likeliest - _log_one_minus(shift))
    log_b = (order - 1) * (first_bound - log_q / (first - 1))
    high, low = max(log_likeliest + log_a, log_q + log_b), min(log_likeliest + log_a, log_q + log_b)
    return min(independent, max(high + math.log1p(math.exp(low - high)), 0.0) / (order - 1))


def _log_one_minus(log_value: float) -> float:
    """log(1 − e^x) for x < 0."""
    return math.log(-math.expm1(log_value)) if log_value > -math.log(2) else math.log1p(-math.exp(log_value))


accountant = Published(
    "rdp_data_dependent",
    "approximation",
    partial(support, refusal=refusal, theorem="the composition of data-dependent Rényi divergences"),
    partial(renyi_curve, term=log_moment, orders=ORDERS, conversion="classical", kind="approximation", remark=REMARK),
)
