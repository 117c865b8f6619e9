"""Rényi accounting of the (Poisson-sampled) Gaussian at integer orders: an upper bound on ε and δ.

| here | in the papers |
| --- | --- |
| sampling rate, noise multiplier, order | q, σ, α |
| log moment at an order | log A_α = (α − 1) · ε_RDP(α) |

**Leaf.** Mironov, Talwar and Zhang 2019 (arXiv:1908.10530), section 3.3, for whole α >= 2:
A_α = Σ_k C(α, k) (1−q)^(α−k) q^k e^((k²−k)/(2σ²)). Since the binomial weights sum to 1 and the exponent vanishes for
k = 0 and k = 1, A_α − 1 is the same sum from k = 2 on with e^x − 1 in place of e^x: only positive terms, so that a
million releases of tiny loss keep their digits. A plain Gaussian has log A_α = α(α−1)/(2σ²).

**Both directions.** A_α belongs to "remove", E over N(0, σ²) of the mixture's likelihood ratio to the power α; "add"
has B_α, the same with the two distributions swapped. Theorem 4 there bounds the mechanism by the larger, and
Corollary 7 (from Theorem 5, by the symmetry x -> 1 − x of the two Gaussians) shows A_α >= B_α for every α >= 1, so
A_α serves both. Rényi divergences of releases with fixed parameters add up (Mironov 2017, Proposition 1).

**Conversion.** Canonne, Kamath and Steinke 2020 (arXiv:2004.00010), Proposition 12: for every α and ε >= 0,
log δ = log A_α − (α−1) ε + (α−1) log(1 − 1/α) − log α. Solved for ε and divided by α − 1 it gives ε at δ.

**Orders.** All whole orders from 2 to 16384 compete, but few are looked at: log A_α is convex in α, and so is
(α−1) log(1 − 1/α) − log α = (α−1) log(α−1) − α log α (its second derivative is 1/(α−1) − 1/α > 0). Hence log δ is
convex in α, and ε, a convex function over a linear positive one, has a single valley: bisection on the sign of the
slope finds the best order of all. The highest order sets a floor: ε at δ = 1e-30 is not given below 0.0035,
at 1e-5 not below 4.9e-5. It is enough for a plain Gaussian with σ up to 1000 at any δ >= 1e-30.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from dpbench.accountants._poisson import poisson_gaussian_support, refuse
from dpbench.accounting import Estimate, GuaranteeKind, No, Yes, check_delta, check_epsilon
from dpbench.compose import common_adjacency, merge, weighted_sum
from dpbench.events import Adjacency, Composition, Event, Gaussian, SampledGaussian

Floats = NDArray[np.float64]
LOWEST_ORDER, HIGHEST_ORDER = 2, 2**14
_REMEMBERED = 1024  # terms of higher orders are not kept, so that memory stays small
_MOST_NOISE = 1e100  # above, the bound at this noise is used: it is larger, and nothing underflows


def log_moment(event: Event, order: int) -> float:
    """(α − 1) times the Rényi divergence of one release at whole order α >= 2: the larger of both directions.

    In [0, inf]; infinite where 1/σ² is not representable. Relative error below 1e-11 (tests hold it against the
    definition, integrated with 50 digits). Exact formula of the sources in the module's first lines.

    >>> from dpbench.events import Gaussian
    >>> log_moment(Gaussian(1.0), 3)
    3.0
    """
    if reveals_nothing(event):
        return 0.0
    inverse = 1.0 / min(event.noise_multiplier, _MOST_NOISE)
    half_precision = inverse * inverse / 2
    if isinstance(event, Gaussian) or event.sampling_rate == 1:
        return order * (order - 1) * half_precision
    if order * (order - 1) * half_precision == math.inf:
        return math.inf
    return _sampled_log_moment(event.sampling_rate, half_precision, order)


def _sampled_log_moment(rate: float, half_precision: float, order: int) -> float:
    exponent, log_binomial, taken = _remembered_terms(order) if order <= _REMEMBERED else _terms(order)
    exponent = exponent * half_precision
    # log(e^x − 1) = x + log(1 − e^−x), from the smallest x to the largest
    terms = log_binomial + taken * (math.log(rate) - math.log1p(-rate)) + exponent + np.log(-np.expm1(-exponent))
    top = float(terms.max())
    log_excess = top + math.log(float(np.exp(terms - top).sum())) + order * math.log1p(-rate)
    if log_excess > 40:
        return log_excess + math.exp(-log_excess)
    return math.log1p(math.exp(log_excess))


def _terms(order: int) -> tuple[Floats, Floats, Floats]:
    """For k = 2 ... α: k² − k, log C(α, k) and k."""
    taken = np.arange(2, order + 1, dtype=np.float64)
    log_factorial = _log_factorials()
    log_binomial = log_factorial[order] - log_factorial[2 : order + 1] - log_factorial[order - 2 :: -1][: order - 1]
    return taken * taken - taken, log_binomial, taken


_remembered_terms = lru_cache(maxsize=128)(_terms)  # constants; calibration asks for the same orders again and again


@cache
def _log_factorials() -> Floats:
    """log k! for k = 0 ... 16384, each to a few units in the last place."""
    return np.array([math.lgamma(k + 1) for k in range(HIGHEST_ORDER + 1)])


def reveals_nothing(event: Event) -> bool:
    """Whether the release is independent of the data: no noise is finite, or no record is ever sampled."""
    return event.noise_multiplier == math.inf or (isinstance(event, SampledGaussian) and event.sampling_rate == 0)


@dataclass(frozen=True)
class RdpCurve:
    """The best bound over all whole orders, for one composition.

    `moments` remembers log A_α of the whole composition per order; it never changes an answer.
    """

    composition: Composition
    adjacency: Adjacency
    kind: GuaranteeKind = "upper_bound"
    mu: None = None
    moments: dict[int, float] = field(default_factory=dict, repr=False, compare=False)

    def log_moment(self, order: int) -> float:
        """Σ count · log A_α over the releases at whole order α."""
        if order not in self.moments:
            self.moments[order] = weighted_sum(self.composition, lambda event: log_moment(event, order), 0.0)
        return self.moments[order]

    @property
    def silent(self) -> bool:
        """Whether nothing at all is revealed: no release, or none that depends on the data."""
        return all(reveals_nothing(event) for event, _ in merge(self.composition))

    def delta_and_order(self, epsilon: float) -> tuple[Estimate, int]:
        """δ at `epsilon`, and the order that gives it."""
        check_epsilon(epsilon)

        def log_delta(order: int) -> float:
            return self.log_moment(order) - (order - 1) * epsilon + _conversion(order)

        order, smallest = _lowest(log_delta)
        value = math.exp(min(smallest, 0.0)) or math.ulp(0.0)  # a bound must not underflow to zero
        return _bound(0.0 if self.silent else value), order

    def epsilon_and_order(self, delta: float) -> tuple[Estimate, int]:
        """ε at `delta`, and the order that gives it."""
        log_delta = math.log(check_delta(delta))

        def epsilon(order: int) -> float:
            return (self.log_moment(order) + _conversion(order) - log_delta) / (order - 1)

        order, smallest = _lowest(epsilon)
        return _bound(0.0 if self.silent else max(smallest, 0.0)), order

    def delta(self, epsilon: float) -> Estimate:
        """An upper bound on δ at `epsilon`, in [0, 1]."""
        return self.delta_and_order(epsilon)[0]

    def epsilon(self, delta: float) -> Estimate:
        """An upper bound on ε at `delta`, in [0, inf]."""
        return self.epsilon_and_order(delta)[0]


def _conversion(order: int) -> float:
    """What Proposition 12 of Canonne et al. adds to (α−1)(ε_RDP − ε): (α−1) log(1 − 1/α) − log α."""
    return (order - 1) * math.log1p(-1 / order) - math.log(order)


def _bound(value: float) -> Estimate:
    reason = None
    if value == math.inf:
        reason = "the Rényi divergence exceeds the largest double at every order: there is next to no noise"
    return Estimate(value, None, value, reason)


def _lowest(function: Callable[[int], float]) -> tuple[int, float]:
    """The whole order in [2, 16384] where a function with a single valley is lowest, and its value there.

    Orders double until the function rises; bisection on the sign of its slope then finds the bottom.
    """
    values: dict[int, float] = {}

    def at(order: int) -> float:
        if order not in values:
            values[order] = function(order)
        return values[order]

    high = 2 * LOWEST_ORDER
    while high < HIGHEST_ORDER and at(high) < at(high // 2):
        high *= 2
    low = max(LOWEST_ORDER, high // 4)
    while low < high:
        middle = (low + high) // 2
        if at(middle) <= at(middle + 1):
            high = middle
        else:
            low = middle + 1
    return low, at(low)


@dataclass(frozen=True)
class RdpAccountant:
    """Rényi differential privacy with integer orders: an upper bound, for Poisson sampling and add-or-remove.

    >>> curve = accountant.curve(Composition(((SampledGaussian(256 / 60000, 1.3), 3516),)))
    >>> estimate, order = curve.epsilon_and_order(1e-5)
    >>> round(estimate.value, 3), order
    (0.955, 17)
    """

    name: str = "rdp"
    kind: GuaranteeKind = "upper_bound"

    def supports(self, composition: Composition) -> Yes | No:
        """No, with the reason, for other samplers, neighbours and adaptive parameters."""
        return poisson_gaussian_support(composition, "the composition of Rényi divergences")

    def curve(self, composition: Composition) -> RdpCurve:
        """The bound as a curve. Raises DpbenchError where `supports` says no."""
        refuse(self.supports(composition), self.name)
        adjacency = common_adjacency(composition)
        assert adjacency is not None  # supports has seen to it
        return RdpCurve(composition, adjacency)


accountant = RdpAccountant()
