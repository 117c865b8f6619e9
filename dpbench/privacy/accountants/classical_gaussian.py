"""The classical Gaussian mechanism: σ >= √(2 log(1.25/δ)) / ε, proven for ε below 1 only.

Dwork and Roth 2014, Theorem A.1: for ε in (0, 1) and c² > 2 log(1.25/δ), a Gaussian mechanism of sensitivity Δ with
σ >= c Δ/ε is (ε, δ)-private. So ε(δ) = √(2 log(1.25/δ)) Δ/σ where that is at most 1 (the ends of both intervals are
covered, because δ(ε; σ) is continuous), and infinite, with the reason, where it is not: the formula goes on, but it
proves nothing there, and for large ε it is false (Balle and Wang 2018, section 2.3). δ(ε) = 1.25 e^(−ε²σ²/2Δ²) up to
ε = 1, and from there on what it is at 1, for a larger ε only weakens the promise.

>>> from dpbench.events import Composition, Gaussian
>>> round(accountant.curve(Composition(((Gaussian(10.0), 1),))).epsilon(1e-5).value, 4)
0.4845
>>> accountant.curve(Composition(((Gaussian(1.0), 1),))).epsilon(1e-5).value
inf
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from dpbench.errors import DpbenchError
from dpbench.events import Adjacency
from dpbench.privacy.accountants import gdp
from dpbench.privacy.accountants._poisson import Published, adjacency_of
from dpbench.privacy.accountants.analytic_gaussian import one_gaussian_support
from dpbench.privacy.answers import (
    Estimate,
    GuaranteeKind,
    No,
    Yes,
    as_real,
    check_delta,
    check_epsilon,
)

_UP = 1 + 2.0**-48
THEOREM = "Theorem A.1 of Dwork and Roth 2014"


def sigma(epsilon: float, delta: float) -> float:
    """√(2 log(1.25/δ)) / ε at sensitivity 1, ε and δ in (0, 1): an upper bound on the noise that one invocation needs.

    Raises DpbenchError for arguments outside: for ε >= 1 the theorem says nothing.

    >>> round(sigma(0.5, 1e-5), 4)
    9.6896
    """
    if not 0 < as_real(epsilon) < 1:
        raise DpbenchError(
            f"epsilon = {epsilon!r}: expected a number above 0 and below 1, for {THEOREM}; use `analytic_gaussian` for"
            " larger ones"
        )
    return math.sqrt(2 * (math.log(1.25) - math.log(check_delta(delta)))) / epsilon * _UP


@dataclass(frozen=True)
class ClassicalCurve:
    """Theorem A.1 for one invocation of that `scale` = Δ/σ, in [0, inf]."""

    scale: float
    adjacency: Adjacency
    kind: GuaranteeKind = "upper_bound"
    mu: None = None

    def epsilon(self, delta: float) -> Estimate:
        """An upper bound on ε at `delta`, in [0, 1], or infinite with the reason."""
        factor = math.sqrt(2 * (math.log(1.25) - math.log(check_delta(delta))))
        value = factor * self.scale * (1 + 2.0**-46) if self.scale else 0.0  # more than `delta` is raised by
        if value <= 1:
            return Estimate(value, None, value)
        reason = f"{THEOREM} holds for epsilon below 1 only, and its formula gives {value:.4g} here; use another"
        return Estimate(math.inf, None, math.inf, reason)

    def delta(self, epsilon: float) -> Estimate:
        """An upper bound on δ at `epsilon`, in [0, 1]."""
        below = min(check_epsilon(epsilon), 1.0)
        if self.scale == 0:
            return Estimate(0.0, None, 0.0)
        ratio = below / self.scale
        exponent = ratio * ratio / 2 if ratio < 1e150 else math.inf
        value = 1.25 * math.exp(-exponent * (1 - 2.0**-47)) * _UP or math.ulp(0.0)
        return Estimate(min(value, 1.0), None, min(value, 1.0))


@dataclass(frozen=True)
class Classical(Published):
    """The accountant, which also says to which ε it can calibrate."""

    def supports_target(self, epsilon: float) -> Yes | No:
        """No above 1: the noise that it would give is that of ε = 1, more than the target needs."""
        if epsilon <= 1:
            return Yes()
        return No(f"epsilon = {epsilon:g}: {THEOREM} holds for epsilon up to 1 only; use `analytic_gaussian`")


accountant = Classical(
    "classical_gaussian",
    "upper_bound",
    partial(one_gaussian_support, theorem=THEOREM),
    lambda composition: ClassicalCurve(gdp.total_mu(composition), adjacency_of(composition)),
)
