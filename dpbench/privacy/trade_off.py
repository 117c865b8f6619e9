"""The trade-off function of a privacy curve, its total variation and the Gaussian that touches it.

| here | in the papers (Dong, Roth, Su 2022; Bu et al. 2020) |
| --- | --- |
| alpha, f(alpha) | type I error, the smallest type II error of any test of the one dataset against its neighbour |
| δ(ε) | 1 − f is above the line 1 − δ − e^ε α, for every ε (their Proposition on duality) |
| `tangent_mu` | μ of the G_μ that has the same supporting line of slope −e^ε |

Three trade-off functions belong to a mechanism: that of P against Q (`remove`, P with the record), that of Q against P
(`add`, its inverse), and the one that holds for every pair of neighbours, the convex hull of the smaller of both, taken
*after* composing. By duality that hull is f(α) = max over ε >= 0 of 1 − δ − e^ε α and e^(−ε) (1 − δ − α), with
δ = max of both directions. For P against Q, with P the null hypothesis, Q(reject) <= e^ε P(reject) + δ_add gives the
first line and P(accept) <= e^ε Q(accept) + δ_remove the second.

The search for the best line, and why both ends of the answers hold: `supporting_lines.py`. A curve of upper bounds
gives a lower bound of f, on the safe side, and an approximation no end at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from dpbench.errors import DpbenchError
from dpbench.privacy.answers import (
    Estimate,
    PrivacyCurve,
    as_real,
    check_delta,
)
from dpbench.privacy.supporting_lines import SupportingLines, at_no_error, deltas

__all__ = ["TradeOff", "smallest_mu", "tangent_mu", "total_variation", "trade_off", "trade_off_table"]

Way = Literal["remove", "add", "both"]
_MOST_MU = 1e4
_LESS, _MORE = 1 - 1e-9, 1 + 1e-9  # μ is found from δ_μ(ε), which is sure to 1e-10 relative, by a root to 1e-14


@runtime_checkable
class Directed(Protocol):
    """A curve that also has one curve per direction."""

    def one_way(self, direction: Literal["remove", "add"]) -> PrivacyCurve:
        """The curve of that direction alone."""
        ...


@dataclass(frozen=True)
class TradeOff:
    """f at each of `alpha`; `remove` and `add` are None where the curve has no separate directions."""

    alpha: tuple[float, ...]
    both: tuple[Estimate, ...]
    remove: tuple[Estimate, ...] | None
    add: tuple[Estimate, ...] | None
    total_variation: Estimate


def trade_off(curve: PrivacyCurve, alpha: float, way: Way = "both") -> Estimate:
    """f(`alpha`): the smallest type II error at type I error `alpha` in [0, 1], for all neighbours or one direction.

    Exact where the curve is exact, with both ends; a lower bound where the curve is an upper bound. Raises DpbenchError
    for another alpha, and for a direction of a curve that has no separate directions.

    >>> from dpbench.privacy.accountants import gdp
    >>> from dpbench.events import Composition, Gaussian
    >>> curve = gdp.accountant.curve(Composition(((Gaussian(1.0), 1),)))
    >>> round(trade_off(curve, 0.05).value, 9)  # Φ(Φ⁻¹(0.95) − 1)
    0.740488977
    """
    alpha = _checked(alpha)
    steep, flat = _sides(curve, way)
    return _at(SupportingLines(steep, flat), alpha)


def _at(lines: SupportingLines, alpha: float) -> Estimate:
    if alpha == 1:
        return Estimate(0.0, 0.0, 0.0)
    return lines.highest(alpha) if alpha else at_no_error(lines.steep)


def _checked(alpha: float) -> float:
    if not 0 <= as_real(alpha) <= 1:
        raise DpbenchError(f"alpha = {alpha!r}: expected a type I error, from 0 to 1")
    return as_real(alpha)


def _sides(curve: PrivacyCurve, way: Way) -> tuple[PrivacyCurve, PrivacyCurve]:
    if way == "both":
        return curve, curve
    if not isinstance(curve, Directed):
        raise DpbenchError(f"way = {way!r}: this curve ({curve.kind}) has no separate directions; use 'both'")
    remove, add = curve.one_way("remove"), curve.one_way("add")
    return (add, remove) if way == "remove" else (remove, add)


def trade_off_table(curve: PrivacyCurve, alphas: Sequence[float]) -> TradeOff:
    """f at several alphas, for all neighbours and, where the curve has them, for each direction."""
    alphas = [_checked(alpha) for alpha in alphas]
    found: dict[str, tuple[Estimate, ...] | None] = {"remove": None, "add": None}
    ways: tuple[Way, ...] = ("both", "remove", "add") if isinstance(curve, Directed) else ("both",)
    for way in ways:
        lines = SupportingLines(*_sides(curve, way))
        found[way] = tuple(_at(lines, alpha) for alpha in alphas)
    both = found["both"]
    assert both is not None
    return TradeOff(tuple(alphas), both, found["remove"], found["add"], total_variation(curve))


def total_variation(curve: PrivacyCurve) -> Estimate:
    """The total variation distance, δ(0): the largest advantage of any test, the same in both directions.

    >>> from dpbench.privacy.accountants import gdp
    >>> from dpbench.events import Composition, Gaussian
    >>> round(total_variation(gdp.accountant.curve(Composition(((Gaussian(1.0), 1),)))).value, 9)
    0.382924923
    """
    return curve.delta(0.0)


def tangent_mu(curve: PrivacyCurve, *, epsilon: float | None = None, delta: float | None = None) -> Estimate:
    """μ of the Gaussian trade-off function with the same supporting line of slope −e^ε: δ_μ(ε) = δ(ε).

    Either `epsilon` is given, or `delta` (then ε = ε(δ)). 0 where δ(ε) is 0. Not a guarantee of μ-GDP: at another ε the
    curve may lie above that Gaussian (`smallest_mu`).

    >>> from dpbench.privacy.accountants import gdp
    >>> from dpbench.events import Composition, Gaussian
    >>> round(tangent_mu(gdp.accountant.curve(Composition(((Gaussian(2.0), 3),))), delta=1e-5).value, 9)
    0.866025404
    """
    if (epsilon is None) == (delta is None):
        raise DpbenchError("give either epsilon or delta, where the Gaussian has to touch")
    epsilon = None if epsilon is None else as_real(epsilon)
    delta = None if delta is None else check_delta(delta)
    touching = Estimate(epsilon, epsilon, epsilon) if epsilon is not None else curve.epsilon(delta or math.nan)
    if touching.value == math.inf:
        return Estimate(math.inf, touching.lower, math.inf, "epsilon is infinite")
    if delta is not None:  # δ is given, unless δ(0) is less already, and ε has ends; μ grows with either
        at_zero = curve.delta(0.0) if (touching.lower or 0.0) <= 0 else Estimate(1.0, 1.0, 1.0)
        value = _mu(touching.value, delta if touching.value else min(delta, at_zero.value))
        if touching.lower is None or touching.upper is None or at_zero.lower is None:
            return Estimate(value)
        least, most = min(delta, at_zero.lower), delta if touching.upper else min(delta, at_zero.safe)
        return Estimate(value, _mu(touching.lower, least) * _LESS, _mu(touching.upper, most) * _MORE)
    found = curve.delta(touching.value)
    value = _mu(touching.value, found.value)
    if found.lower is None or found.upper is None:
        return Estimate(value)
    return Estimate(value, _mu(touching.value, found.lower) * _LESS, _mu(touching.value, found.upper) * _MORE)


def _mu(epsilon: float, delta: float) -> float:
    """μ with δ_μ(ε) = δ."""
    from scipy.optimize import brentq

    from dpbench.privacy.accountants._gaussian_curve import GaussianCurve

    if delta <= 0:
        return 0.0
    if delta >= 1:
        return math.inf

    def excess(log_mu: float) -> float:
        there = GaussianCurve(math.exp(log_mu), "approximation").delta(epsilon).value
        return (math.log(there) if there > 0 else -1e4) - math.log(delta)

    low, high = math.log(1e-9 + epsilon / 80), math.log(_MOST_MU)
    while excess(low) > 0:
        low -= 5
    while excess(high) < 0:
        high += 5
    return math.exp(float(brentq(excess, low, high, xtol=1e-14, rtol=1e-14)))


def smallest_mu(curve: PrivacyCurve, smallest_delta: float = 1e-12, points: int = 60) -> tuple[float, float]:
    """(μ, ε): the smallest μ whose curve lies above this one wherever δ >= `smallest_delta`, and where both touch.

    An estimate from `points` values of ε. Without the limit of δ the μ of sampled mechanisms is that of unsampled ones.

    >>> from dpbench.privacy.accountants import gdp
    >>> from dpbench.events import Composition, Gaussian
    >>> round(smallest_mu(gdp.accountant.curve(Composition(((Gaussian(2.0), 3),))), points=5)[0], 9)
    0.866025404
    """
    highest = curve.epsilon(smallest_delta).value
    if not math.isfinite(highest):
        return math.inf, math.inf
    places = [highest * number / (points - 1) for number in range(points)]
    return max((_mu(place, delta.value), place) for place, delta in zip(places, deltas(curve, places), strict=True))
