"""Advanced composition: ε grows like the square root of the number of releases, at the price of a further δ.

| here | in the source |
| --- | --- |
| releases, slack | k, δ' |

Dwork, Rothblum and Vadhan 2010, as Dwork and Roth 2014, Theorem 3.20, state it: k releases that are (ε, δ)-private
are (ε', kδ + δ')-private together, with ε' = √(2k log(1/δ')) ε + k ε (e^ε − 1), for every δ' > 0. For releases that
differ the same proof gives Σ ε_i in both places: the losses are bounded by ε_i, their means by ε_i (e^ε_i − 1), and
Azuma's inequality takes unlike bounds, ε' = √(2 log(1/δ') Σ ε_i²) + Σ ε_i (e^ε_i − 1).

Half of δ is the slack δ', the other half is split equally over the releases that reveal anything, each by its exact
curve alone: ε(δ) = ε' with δ' = δ/2 and ε_i = ε_i(δ/2T). The theorem leaves the split free. δ(ε) is the inverse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpbench.accountants._poisson import adjacency_of, refuse, support
from dpbench.accountants._single import least_epsilon, refusal, smallest_delta
from dpbench.accountants.basic import revealing, rounded_up
from dpbench.accounting import Estimate, GuaranteeKind, No, Yes, check_delta, check_epsilon
from dpbench.events import Adjacency, Composition, Event


@dataclass(frozen=True)
class AdvancedCurve:
    """ε' of Theorem 3.20 and its inverse; `parts` are the releases that reveal anything, with their counts."""

    parts: tuple[tuple[Event, int], ...]
    adjacency: Adjacency
    kind: GuaranteeKind = "upper_bound"
    mu: None = None

    def epsilon(self, delta: float) -> Estimate:
        """An upper bound on ε at `delta`, in [0, inf]."""
        value = self._epsilon(math.log(check_delta(delta)))
        reason = "the theorem's ε, which has e^ε of a single release, exceeds the largest double"
        return Estimate(value, None, value, reason if value == math.inf else None)

    def delta(self, epsilon: float) -> Estimate:
        """An upper bound on δ at `epsilon`, in [0, 1]."""
        value = smallest_delta(self._epsilon, check_epsilon(epsilon))
        return Estimate(value, None, value)

    def _epsilon(self, log_delta: float) -> float:
        if not self.parts:
            return 0.0
        slack = (log_delta - math.log(2)) * (1 + 2.0**-50)
        share = (slack - math.log(sum(count for _, count in self.parts))) * (1 + 2.0**-50)
        squares, means = [], []
        for event, count in self.parts:
            single = least_epsilon(event, share)
            if single == 0:
                continue
            if single > 709:  # e^single is no double
                return math.inf
            squares.append(count * single * single)
            means.append(count * single * math.expm1(single))
        if not squares:
            return 0.0
        return (math.sqrt(-2 * slack * sum(squares)) + sum(means)) * rounded_up(len(means))


@dataclass(frozen=True)
class AdvancedAccountant:
    """Advanced composition, an upper bound.

    >>> from dpbench.events import Laplace
    >>> round(accountant.curve(Composition(((Laplace(100.0), 1000),))).epsilon(1e-6).value, 4)
    1.8039
    """

    name: str = "advanced"
    kind: GuaranteeKind = "upper_bound"

    def supports(self, composition: Composition) -> Yes | No:
        """No, with the reason, where the curve of a single release is not known and for adaptive parameters."""
        return support(composition, refusal, "advanced composition")

    def curve(self, composition: Composition) -> AdvancedCurve:
        """The bound as a curve. Raises DpbenchError where `supports` says no."""
        refuse(self.supports(composition), self.name)
        return AdvancedCurve(revealing(composition), adjacency_of(composition))


accountant = AdvancedAccountant()
