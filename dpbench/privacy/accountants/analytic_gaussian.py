"""The analytic Gaussian mechanism: its exact (ε, δ) for one invocation, and the least noise for a target.

Balle and Wang 2018 (arXiv:1805.06530), Theorem 8: a Gaussian mechanism of sensitivity Δ is (ε, δ)-private if and only
if Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ) <= δ. The left side is δ(ε; μ) of `_gaussian_curve` with μ = Δ/σ; it grows with
μ, and `sigma` finds the largest μ that meets the target. The theorem is about one invocation; `gdp` takes several.

>>> from dpbench.events import Composition, Gaussian
>>> round(accountant.curve(Composition(((Gaussian(3.730632), 1),))).epsilon(1e-5).value, 6)
1.0
"""

from __future__ import annotations

from functools import partial

from dpbench.events import Composition
from dpbench.privacy.accountants import gdp
from dpbench.privacy.accountants._gaussian_curve import GaussianCurve
from dpbench.privacy.accountants._poisson import Published, support
from dpbench.privacy.accountants._split_delta import revealing
from dpbench.privacy.answers import (
    No,
    Yes,
    check_delta,
    check_epsilon,
)

_UNIT = 2.0**-53


def sigma(epsilon: float, delta: float) -> float:
    """The least noise multiplier with which one Gaussian mechanism is (`epsilon`, `delta`)-private; Algorithm 1 there.

    ε in [0, inf), δ in (0, 1); relative error below 1e-11, rounded up: δ at (ε, σ), its own error included, is at
    most δ. Raises DpbenchError for arguments outside.

    >>> round(sigma(1.0, 1e-5), 6)
    3.730632
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)

    def meets(mu: float) -> bool:
        return GaussianCurve(mu, "exact", mu_error=2 * _UNIT).delta(epsilon).safe <= delta

    low = 1.0
    while not meets(low):
        low /= 2
    high = 2 * low
    while meets(high):
        low, high = high, 2 * high
    while high - low > 4 * _UNIT * high:
        middle = low + (high - low) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return 1 / low * (1 + 2 * _UNIT)


def one_gaussian_support(composition: Composition, theorem: str) -> Yes | No:
    """Yes for a single Gaussian mechanism beside any number that reveal nothing; `theorem` names the source."""
    answer = support(composition, gdp.refusal, theorem)
    if isinstance(answer, No):
        return answer
    releases = sum(count for _, count in revealing(composition))
    if releases > 1:
        return No(f"{releases} Gaussian mechanisms: {theorem} is about one; use `gdp`, which is exact for several")
    return answer


accountant = Published(
    "analytic_gaussian",
    "exact",
    partial(one_gaussian_support, theorem="Balle and Wang's Theorem 8"),
    partial(gdp.gaussian_curve, kind="exact"),
)
