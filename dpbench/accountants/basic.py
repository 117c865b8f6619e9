"""Basic composition: ε and δ of the single releases add up, each release by its exact curve alone.

Dwork, Kenthapadi, McSherry, Mironov and Naor 2006 (Theorem 1 there; Dwork and Roth 2014, Theorem 3.16): releases that
are (ε_i, δ_i)-private are (Σ ε_i, Σ δ_i)-private together. δ is split equally over the T releases that reveal
anything, whatever they are, so ε(δ) = Σ count · ε_i(δ/T); δ(ε) is its inverse. The theorem leaves the split free, and
another one may give less. A composition of pure releases (`Laplace`) has δ = 0 from Σ 1/b on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpbench.accountants._poisson import adjacency_of, refuse, reveals_nothing, support
from dpbench.accountants._single import least_epsilon, refusal, smallest_delta
from dpbench.accounting import Estimate, GuaranteeKind, No, Yes, check_delta, check_epsilon
from dpbench.compose import merge
from dpbench.events import Adjacency, Composition, Event


@dataclass(frozen=True)
class BasicCurve:
    """Σ count · ε_i(δ/T) and its inverse; `parts` are the releases that reveal anything, with their counts."""

    parts: tuple[tuple[Event, int], ...]
    adjacency: Adjacency
    kind: GuaranteeKind = "upper_bound"
    mu: None = None

    def epsilon(self, delta: float) -> Estimate:
        """An upper bound on ε at `delta`, in [0, inf]."""
        value = self._epsilon(math.log(check_delta(delta)))
        reason = "the ε of single releases add up to more than the largest double" if value == math.inf else None
        return Estimate(value, None, value, reason)

    def delta(self, epsilon: float) -> Estimate:
        """An upper bound on δ at `epsilon`, in [0, 1]."""
        value = smallest_delta(self._epsilon, check_epsilon(epsilon))
        return Estimate(value, None, value)

    def _epsilon(self, log_delta: float) -> float:
        if not self.parts:
            return 0.0
        releases = sum(count for _, count in self.parts)
        share = (log_delta - math.log(releases)) * (1 + 2.0**-50) - 2.0**-50
        return sum(count * least_epsilon(event, share) for event, count in self.parts) * rounded_up(len(self.parts))


def rounded_up(terms: int) -> float:
    """What to multiply a sum of that many positive terms, each of a few roundings, by, so that it is no less than true.

    >>> 1 < rounded_up(400) < 1 + 1e-12
    True
    """
    return 1 + (terms + 16) * 2.0**-52


def revealing(composition: Composition) -> tuple[tuple[Event, int], ...]:
    """Equal releases together, without those that reveal nothing.

    >>> from dpbench.events import Gaussian
    >>> revealing(Composition(((Gaussian(math.inf), 9), (Gaussian(1.0), 1), (Gaussian(1.0), 2))))
    ((Gaussian(noise_multiplier=1.0, adjacency='add_or_remove'), 3),)
    """
    return tuple((event, count) for event, count in merge(composition) if not reveals_nothing(event))


@dataclass(frozen=True)
class BasicAccountant:
    """Basic composition, an upper bound.

    >>> from dpbench.events import Laplace
    >>> curve = accountant.curve(Composition(((Laplace(10.0), 5),)))
    >>> curve.delta(0.51).value, round(curve.epsilon(1e-9).value, 6)
    (0.0, 0.5)
    """

    name: str = "basic"
    kind: GuaranteeKind = "upper_bound"

    def supports(self, composition: Composition) -> Yes | No:
        """No, with the reason, where the curve of a single release is not known and for adaptive parameters."""
        return support(composition, refusal, "basic composition")

    def curve(self, composition: Composition) -> BasicCurve:
        """The bound as a curve. Raises DpbenchError where `supports` says no."""
        refuse(self.supports(composition), self.name)
        return BasicCurve(revealing(composition), adjacency_of(composition))


accountant = BasicAccountant()
