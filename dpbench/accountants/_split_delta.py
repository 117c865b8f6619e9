"""The curve of a composition theorem that splits δ over the releases: ε from δ is its formula, δ from ε its inverse.

The inverse is sought among doubles, within a tolerance, and a formula's doubles do not fall strictly as δ grows. So ε
is stated for a δ that is smaller by more than that tolerance, and by `slack`, which a formula with larger errors in
log δ sets, and enlarged by more than the doubles rise otherwise: δ at ε(δ) is never above δ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpbench.accountants._poisson import adjacency_of, reveals_nothing
from dpbench.accountants._single import TOLERANCE, smallest_delta
from dpbench.accounting import Estimate, GuaranteeKind, check_delta, check_epsilon
from dpbench.compose import merge
from dpbench.events import Adjacency, Composition, Event

Parts = tuple[tuple[Event, int], ...]
Theorem = Callable[[Parts, float], float]


@dataclass(frozen=True)
class SplitCurve:
    """`theorem` gives ε for releases, with their counts, and log δ; `infinite` says why ε may be infinite.

    `parts` are the releases that reveal anything: without any ε and δ are 0.
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


def split_curve(composition: Composition, theorem: Theorem, infinite: str, slack: float = 0.0) -> SplitCurve:
    """The curve of a composition that the accountant supports."""
    return SplitCurve(revealing(composition), adjacency_of(composition), theorem, infinite, slack)


def releases(parts: Parts) -> int:
    """How many releases these are."""
    return sum(count for _, count in parts)


def rounded_up(terms: int) -> float:
    """What to multiply a sum of that many positive terms, each of a few roundings, by, so that it is no less than true.

    >>> 1 < rounded_up(400) < 1 + 1e-12
    True
    """
    return 1 + (terms + 16) * 2.0**-52


def revealing(composition: Composition) -> Parts:
    """Equal releases together, without those that reveal nothing.

    >>> from dpbench.events import Gaussian
    >>> revealing(Composition(((Gaussian(math.inf), 9), (Gaussian(1.0), 1), (Gaussian(1.0), 2))))
    ((Gaussian(noise_multiplier=1.0, adjacency='add_or_remove', sensitivity=None), 3),)
    """
    return tuple((event, count) for event, count in merge(composition) if not reveals_nothing(event))
