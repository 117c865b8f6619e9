"""Basic composition: ε and δ of the single mechanisms add up, each mechanism by its exact curve alone.

Dwork, Kenthapadi, McSherry, Mironov and Naor 2006 (Theorem 1 there; Dwork and Roth 2014, Theorem 3.16): mechanisms that
are (ε_i, δ_i)-private are (Σ ε_i, Σ δ_i)-private together. δ is split equally over the T invocations that reveal
anything, whatever they are, so ε(δ) = Σ count · ε_i(δ/T); δ(ε) is its inverse. The theorem leaves the split free, and
another one may give less. A composition of pure mechanisms (`Laplace`) has δ = 0 from Σ 1/b on.

>>> from dpbench.events import Composition, Laplace
>>> curve = accountant.curve(Composition(((Laplace(10.0), 5),)))
>>> curve.delta(0.51).value, round(curve.epsilon(1e-9).value, 6)
(0.0, 0.5)
"""

from __future__ import annotations

import math

from dpbench.privacy.accountants._split_delta import Parts, least_epsilon, releases, rounded_up, split


def _epsilon(parts: Parts, log_delta: float) -> float:
    """Σ count · ε_i(δ/T)."""
    share = (log_delta - math.log(releases(parts))) * (1 + 2.0**-50) - 2.0**-50
    return sum(count * least_epsilon(event, share) for event, count in parts) * rounded_up(len(parts))


accountant = split(
    "basic", _epsilon, "the ε of single mechanisms add up to more than the largest double", "basic composition"
)
