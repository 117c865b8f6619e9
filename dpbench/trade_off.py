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

Both lines are unimodal in ε (δ is convex in e^ε, and e^(−ε) δ in e^(−ε)), so the neighbours of the best of 25 places
are searched again until they differ by less than 1e-13. The error of δ there is what the ends of the answers hold. A
curve of upper bounds gives a lower bound of f, on the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from dpbench.accounting import Estimate, PrivacyCurve
from dpbench.errors import DpbenchError

Way = Literal["remove", "add", "both"]
_FARTHEST = 700.0  # beyond, e^ε is no double
_PLACES, _ROUNDS = 25, 12
_FLAT = 1e-13
Lines = Callable[[Sequence[float]], list[Estimate]]
_MOST_MU = 1e4


@runtime_checkable
class Directed(Protocol):
    """A curve that knows its directions apart."""

    def one_way(self, direction: Literal["remove", "add"]) -> PrivacyCurve:
        """The curve of that direction alone."""
        ...


@dataclass(frozen=True)
class TradeOff:
    """f at each of `alpha`; `remove` and `add` are None where the curve does not tell its directions apart."""

    alpha: tuple[float, ...]
    both: tuple[Estimate, ...]
    remove: tuple[Estimate, ...] | None
    add: tuple[Estimate, ...] | None
    total_variation: Estimate


def trade_off(curve: PrivacyCurve, alpha: float, way: Way = "both") -> Estimate:
    """f(`alpha`): the smallest type II error at type I error `alpha` in [0, 1], for all neighbours or one direction.

    Exact where the curve is exact, a lower bound where the curve is an upper bound. Raises DpbenchError for another
    alpha, and for a direction of a curve that does not tell its directions apart.

    >>> from dpbench.accountants import gdp
    >>> from dpbench.events import Composition, Gaussian
    >>> curve = gdp.accountant.curve(Composition(((Gaussian(1.0), 1),)))
    >>> round(trade_off(curve, 0.05).value, 9)  # Φ(Φ⁻¹(0.95) − 1)
    0.740488977
    """
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha <= 1:
        raise DpbenchError(f"alpha = {alpha!r}: expected a type I error, from 0 to 1")
    steep, flat = _sides(curve, way)
    if alpha == 1:
        return Estimate(0.0, 0.0, 0.0)
    if alpha == 0:
        (found,) = _steep(steep, 0.0)([_FARTHEST])  # 1 − δ(∞)
        return found
    first = _largest(_steep(steep, alpha), min(math.log(1 / alpha), _FARTHEST))
    at_first = max(first.value, 1e-300)  # beyond log((1 − α)/f) the second line lies below the first one's maximum
    second = _largest(_flat(flat, alpha), min(max(math.log((1 - alpha) / at_first), 0.0), _FARTHEST))
    return max(first, second, Estimate(0.0, 0.0, 0.0), key=lambda found: found.value)


def _sides(curve: PrivacyCurve, way: Way) -> tuple[PrivacyCurve, PrivacyCurve]:
    if way == "both":
        return curve, curve
    if not isinstance(curve, Directed):
        raise DpbenchError(f"way = {way!r}: this curve ({curve.kind}) does not tell its directions apart; use 'both'")
    remove, add = curve.one_way("remove"), curve.one_way("add")
    return (add, remove) if way == "remove" else (remove, add)


def _steep(curve: PrivacyCurve, alpha: float) -> Lines:
    """1 − δ(ε) − e^ε α at several ε."""
    return lambda places: _lines(curve, places, lambda epsilon, delta: 1 - delta - math.exp(epsilon) * alpha)


def _flat(curve: PrivacyCurve, alpha: float) -> Lines:
    """e^(−ε) (1 − δ(ε) − α) at several ε."""
    return lambda places: _lines(curve, places, lambda epsilon, delta: math.exp(-epsilon) * (1 - delta - alpha))


def _lines(curve: PrivacyCurve, places: Sequence[float], falling: Callable[[float, float], float]) -> list[Estimate]:
    """A function of ε that falls with δ: its lower end comes from δ's upper one."""
    found = []
    for place, delta in zip(places, _deltas(curve, places), strict=True):
        lower = delta.value if delta.lower is None else delta.lower
        upper = delta.value if delta.upper is None else delta.upper
        found.append(Estimate(falling(place, delta.value), falling(place, upper), falling(place, lower)))
    return found


def _deltas(curve: Any, places: Sequence[float]) -> list[Estimate]:
    """δ at several ε; at once, where the curve can."""
    if hasattr(curve, "deltas"):
        found: list[Estimate] = curve.deltas(places)
        return found
    return [curve.delta(place) for place in places]


def _largest(lines: Lines, highest: float) -> Estimate:
    """The largest of unimodal values over 0 ... `highest`: the neighbours of the best of a few are searched again."""
    low, high = 0.0, highest
    best: Estimate | None = None
    for _ in range(_ROUNDS):
        places = [low + (high - low) * number / (_PLACES - 1) for number in range(_PLACES)]
        values = lines(places)
        top = max(range(_PLACES), key=lambda number: values[number].value)
        if best is None or values[top].value > best.value:
            best = values[top]
        low, high = places[max(top - 1, 0)], places[min(top + 1, _PLACES - 1)]
        if best.value - min(values[max(top - 1, 0)].value, values[min(top + 1, _PLACES - 1)].value) < _FLAT:
            break
    assert best is not None
    return best


def trade_off_table(curve: PrivacyCurve, alphas: Sequence[float]) -> TradeOff:
    """f at several alphas, for all neighbours and, where the curve tells them apart, for each direction."""
    directed = isinstance(curve, Directed)
    found = {
        way: tuple(trade_off(curve, alpha, way) for alpha in alphas) if way == "both" or directed else None
        for way in ("both", "remove", "add")
    }
    both = found["both"]
    assert both is not None
    return TradeOff(tuple(alphas), both, found["remove"], found["add"], total_variation(curve))


def total_variation(curve: PrivacyCurve) -> Estimate:
    """The total variation distance, δ(0): the largest advantage of any test, the same in both directions.

    >>> from dpbench.accountants import gdp
    >>> from dpbench.events import Composition, Gaussian
    >>> round(total_variation(gdp.accountant.curve(Composition(((Gaussian(1.0), 1),)))).value, 9)
    0.382924923
    """
    return curve.delta(0.0)


def tangent_mu(curve: PrivacyCurve, *, epsilon: float | None = None, delta: float | None = None) -> Estimate:
    """μ of the Gaussian trade-off function with the same supporting line of slope −e^ε: δ_μ(ε) = δ(ε).

    Either `epsilon` is given, or `delta` (then ε = ε(δ)). 0 where δ(ε) is 0. Not a guarantee of μ-GDP: at another ε the
    curve may lie above that Gaussian (`smallest_mu`).

    >>> from dpbench.accountants import gdp
    >>> from dpbench.events import Composition, Gaussian
    >>> round(tangent_mu(gdp.accountant.curve(Composition(((Gaussian(2.0), 3),))), delta=1e-5).value, 9)
    0.866025404
    """
    if (epsilon is None) == (delta is None):
        raise DpbenchError("give either epsilon or delta, where the Gaussian has to touch")
    at = curve.epsilon(delta).value if delta is not None else epsilon
    assert at is not None
    if at == math.inf:
        return Estimate(math.inf, math.inf, math.inf, "epsilon is infinite")
    found = curve.delta(at)
    ends = [_mu(at, end) for end in (found.value, found.lower, found.upper) if end is not None]
    return Estimate(ends[0], min(ends) if len(ends) == 3 else None, max(ends) if len(ends) == 3 else None)


def _mu(epsilon: float, delta: float) -> float:
    """μ with δ_μ(ε) = δ."""
    from scipy.optimize import brentq

    from dpbench.accountants._gaussian_curve import GaussianCurve

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
    return math.exp(float(brentq(excess, low, high, xtol=1e-14, rtol=1e-14)))


def smallest_mu(curve: PrivacyCurve, smallest_delta: float = 1e-12, points: int = 60) -> tuple[float, float]:
    """(μ, ε): the smallest μ whose curve lies above this one wherever δ >= `smallest_delta`, and where both touch.

    An estimate from `points` values of ε. Without the limit of δ the μ of sampled releases is that of unsampled ones.

    >>> from dpbench.accountants import gdp
    >>> from dpbench.events import Composition, Gaussian
    >>> round(smallest_mu(gdp.accountant.curve(Composition(((Gaussian(2.0), 3),))), points=5)[0], 9)
    0.866025404
    """
    highest = curve.epsilon(smallest_delta).value
    if not math.isfinite(highest):
        return math.inf, math.inf
    places = [highest * number / (points - 1) for number in range(points)]
    return max((_mu(place, delta.value), place) for place, delta in zip(places, _deltas(curve, places), strict=True))
