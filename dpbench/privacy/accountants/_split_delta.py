"""One mechanism invocation: the least ε at δ, from its exact curve (an upper bound for Confident-GNMax), rounded up.

| event | δ(ε) |
| --- | --- |
| Gaussian of sensitivity Δ | that of μ-GDP, μ = Δ/σ (Balle and Wang 2018, Theorem 8) |
| `SampledGaussian`, Poisson, add-or-remove | q δ(log(1 + (e^ε − 1)/q); 1/σ) |
| `Laplace` | 1 − e^((ε − 1/b)/2) up to ε = 1/b, then 0 |
| `DiscretePair` | the largest Σ (P − e^ε Q)₊ of both directions |
| `ConfidentGNMax` | at most that of μ-GDP, μ² = 1/σ₁² + 2/σ₂² |

**Sampled.** For remove, (1−q) p + q m − e^ε p = q (m − (1 + (e^ε − 1)/q) p) with p = N(0, σ²), m = N(1, σ²). Add never
gives more: p = (1−q) p + q p, and for ε >= 0 advanced joint convexity (Balle, Barthe and Gaboardi 2018, Theorem 2)
bounds it by q times a part β <= 1 of the base's δ at the same inner ε; the base is symmetric.
**Discrete.** The best event is a set of outcomes with the largest ratios P/Q, so δ(ε) is the largest P_k − e^ε Q_k
over such sets, and the least e^ε at δ the largest (P_k − δ)/Q_k.

**Theorems that split δ** over the mechanisms. Their formula gives ε at δ; δ at ε is its inverse, found within a
tolerance. In doubles the formula need not fall strictly as δ grows. So ε is taken at a δ that is smaller by more than
that tolerance and by `slack` (for formulas with larger errors in log δ), and is raised by more than its own rounding: δ
at ε(δ) is never above δ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dpbench.errors import DpbenchError
from dpbench.events import (
    Adjacency,
    Composition,
    ConfidentGNMax,
    DiscretePair,
    Event,
    Gaussian,
    Laplace,
    SampledGaussian,
)
from dpbench.privacy.accountants import gdp
from dpbench.privacy.accountants._gaussian_curve import upper_epsilon
from dpbench.privacy.accountants._poisson import (
    Published,
    adjacency_of,
    not_covered,
    poisson_refusal,
    reveals_nothing,
    shuffled_refusal,
    support,
)
from dpbench.privacy.answers import (
    Estimate,
    GuaranteeKind,
    check_delta,
    check_epsilon,
)
from dpbench.privacy.composition import merge

Parts = tuple[tuple[Event, int], ...]
Theorem = Callable[[Parts, float], float]
TOLERANCE = 1e-13  # of log δ in `smallest_delta`: absolute where it is above −1, else relative
_UP = 1 + 2.0**-50
_COVERED = "Gaussian, SampledGaussian, Laplace, DiscretePair and ConfidentGNMax"


def refusal(event: Event) -> str | None:
    """Why the curve of this event alone is not known here; None where it is.

    >>> refusal(Laplace(1.0)) is None
    True
    """
    shuffled = shuffled_refusal(event)
    if shuffled is not None:
        return shuffled
    if isinstance(event, Gaussian | Laplace | DiscretePair | ConfidentGNMax) or gdp.refusal(event) is None:
        return None
    return poisson_refusal(event) if isinstance(event, SampledGaussian) else not_covered(event, _COVERED)


def least_epsilon(event: Event, log_delta: float) -> float:
    """The least ε at log δ in [−inf, 0) of one invocation of `event`, rounded up; in [0, inf].

    Raises DpbenchError where `refusal` has a reason.

    >>> least_epsilon(Laplace(2.0), -math.inf)
    0.5000000000000004
    """
    reason = refusal(event)
    if reason is not None:
        raise DpbenchError(reason)
    if reveals_nothing(event):
        return 0.0
    if isinstance(event, Laplace):
        return max(_UP / event.relative_noise + 2 * math.log1p(-math.exp(log_delta)), 0.0)
    if isinstance(event, DiscretePair):
        return max(_discrete(event.first, event.second, log_delta), _discrete(event.second, event.first, log_delta))
    if isinstance(event, ConfidentGNMax) or gdp.refusal(event) is None:
        return upper_epsilon(log_delta, gdp.total_mu(Composition(((event, 1),))), 2.0**-50)
    if isinstance(event, SampledGaussian):
        return _sampled(event.sampling_rate, event.noise_multiplier, log_delta)
    raise DpbenchError(not_covered(event, _COVERED))


def _sampled(rate: float, noise: float, log_delta: float) -> float:
    """log(1 + q (e^ε' − 1)) with ε' the Gaussian's at δ/q; 0 from δ = q on."""
    inner = log_delta - math.log(rate)
    inner -= 2.0**-50 * (1 - log_delta)
    if inner >= 0:
        return 0.0
    base = upper_epsilon(inner, 1 / noise, 2.0**-50)
    if base < 40:
        return math.log1p(rate * math.expm1(base)) * _UP
    return (base + math.log(rate) + math.log1p((1 - rate) / rate * math.exp(-base))) * _UP


def _discrete(first: tuple[float, ...], second: tuple[float, ...], log_delta: float) -> float:
    delta = math.exp(log_delta)
    scale = math.fsum(first), math.fsum(second)
    pairs = [(p / scale[0], q / scale[1]) for p, q in zip(first, second, strict=True) if p > 0]
    pairs.sort(key=lambda pair: pair[0] / pair[1] if pair[1] > 0 else math.inf, reverse=True)
    best = 0.0
    for k in range(1, len(pairs) + 1):
        over = math.fsum([*(p for p, _ in pairs[:k]), -delta]) + 4e-16 * k
        under = math.fsum(q for _, q in pairs[:k])
        if over > 4e-16 * k:
            best = max(best, math.inf if under == 0 else math.log(over / under) * _UP)
    return best


def smallest_delta(epsilon_at: Callable[[float], float], epsilon: float) -> float:
    """The smallest δ in [0, 1] with `epsilon_at`(log δ) <= `epsilon`, found from the side where that holds.

    `epsilon_at` falls as log δ grows from −inf to 0. Within 1e-11 relative; 1 where only that is sure.
    """
    if epsilon_at(-math.inf) <= epsilon:
        return 0.0
    low, high = -745.0, -1e-15
    if epsilon_at(high) > epsilon:
        return 1.0
    if epsilon_at(low) <= epsilon:
        return math.ulp(0.0)
    excess = [epsilon_at(low) - epsilon, epsilon_at(high) - epsilon]
    for step in range(200):
        width = TOLERANCE * max(1.0, -high)
        if high - low <= width:
            break
        # regula falsi with halving (Illinois); bisection at every third step, on a plateau and where ε is infinite
        trial = (low + high) / 2
        if step % 3 < 2 and math.isfinite(excess[0]) and excess[0] > 0 > excess[1]:
            trial = high + (high - low) * excess[1] / (excess[0] - excess[1])
            trial = min(max(trial, low + width / 5), high - width / 5)
        value = epsilon_at(trial) - epsilon
        if value > 0:
            low, excess = trial, [value, excess[1] / 2]
        else:
            high, excess = trial, [excess[0] / 2, value]
    return min(math.exp(high) * _UP, 1.0)


@dataclass(frozen=True)
class SplitCurve:
    """`theorem` gives ε from parts (events with their counts) and log δ; `infinite` says why ε may be infinite.

    `parts` are the mechanisms with a privacy loss: without any, ε and δ are 0.
    """

    parts: Parts
    adjacency: Adjacency
    theorem: Theorem
    infinite: str
    slack: float = 0.0
    kind: GuaranteeKind = "upper_bound"
    mu: None = None

    def epsilon(self, delta: float) -> Estimate:
        """An upper bound on ε at `delta`, in [0, inf]."""
        log_delta = math.log(check_delta(delta))
        value = self._epsilon(log_delta - self.slack - 2 * TOLERANCE * max(1.0, -log_delta)) * (1 + 2.0**-44)
        return Estimate(value, None, value, self.infinite if value == math.inf else None)

    def delta(self, epsilon: float) -> Estimate:
        """An upper bound on δ at `epsilon`, in [0, 1]."""
        value = smallest_delta(self._epsilon, check_epsilon(epsilon))
        return Estimate(value, None, value)

    def _epsilon(self, log_delta: float) -> float:
        return self.theorem(self.parts, log_delta) if self.parts else 0.0


def split(name: str, theorem: Theorem, infinite: str, source: str) -> Published:
    """The accountant of such a theorem, an upper bound for fixed parameters."""

    def curve(composition: Composition) -> SplitCurve:
        return SplitCurve(revealing(composition), adjacency_of(composition), theorem, infinite)

    return Published(name, "upper_bound", partial(support, refusal=refusal, theorem=source), curve)


def releases(parts: Parts) -> int:
    """The number of invocations."""
    return sum(count for _, count in parts)


def rounded_up(terms: int) -> float:
    """A factor: a computed sum of that many positive terms, each of a few roundings, times it is at least the true sum.

    >>> 1 < rounded_up(400) < 1 + 1e-12
    True
    """
    return 1 + (terms + 16) * 2.0**-52


def revealing(composition: Composition) -> Parts:
    """Equal mechanisms together, without those that reveal nothing.

    >>> from dpbench.events import Gaussian
    >>> revealing(Composition(((Gaussian(math.inf), 9), (Gaussian(1.0), 1), (Gaussian(1.0), 2))))
    ((Gaussian(noise_multiplier=1.0, adjacency='add_or_remove', sensitivity=None), 3),)
    """
    return tuple((event, count) for event, count in merge(composition) if not reveals_nothing(event))
