"""Definition 5 of dplis2021: the (C_ε, A)-sharpness, on losses whose maximum over the box is known.

| paper | here |
| --- | --- |
| θ, ε, A⁺θ | place, reach, the place itself: A is the identity, as in the paper's experiments |
| C_ε(θ) | the box of half-widths ε(|θ_i| + 1) |

Keskar et al. 2016, whose metric it cites (their 2.1): 100·(max over y in C_ε of f(x + Ay) − f(x))/(1 + f(x)).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range


def _loss(place: Sequence[float], weights: Sequence[float], slopes: Sequence[float]) -> float:
    """Σ w_i θ_i² + s_i θ_i + 10, convex: its largest value over a box stands at a corner."""
    return 10 + sum(w * x * x + s * x for w, x, s in zip(weights, place, slopes, strict=True))


def _by_corners(place: Sequence[float], weights: Sequence[float], slopes: Sequence[float], reach: float) -> float:
    """Definition 5 as printed, the maximum by trying every corner of the box."""
    widths = [reach * (abs(x) + 1) for x in place]
    here = _loss(place, weights, slopes)
    corners = itertools.product(*((x - width, x + width) for x, width in zip(place, widths, strict=True)))
    return (max(_loss(corner, weights, slopes) for corner in corners) - here) / (1 + here) * 100


def _by_coordinates(place: Sequence[float], weights: Sequence[float], slopes: Sequence[float], reach: float) -> float:
    """Keskar's metric, each coordinate's largest rise in closed form: w·d² + |2wx + s|·d for half-width d."""
    here, rise = _loss(place, weights, slopes), 0.0
    for x, w, s in zip(place, weights, slopes, strict=True):
        width = reach * abs(x) + reach
        rise += w * width**2 + abs(2 * w * x + s) * width
    return 100 * rise / (1 + here)


def _without_one(place: Sequence[float], weights: Sequence[float], slopes: Sequence[float], reach: float) -> float:
    """The +1 in the half-width lost."""
    here, rise = _loss(place, weights, slopes), 0.0
    for x, w, s in zip(place, weights, slopes, strict=True):
        width = reach * abs(x)
        rise += w * width**2 + abs(2 * w * x + s) * width
    return 100 * rise / (1 + here)


definition_5 = Formula(
    _by_corners,
    _by_coordinates,
    (
        {"place": (0.3, -1.2, 0.0), "weights": (1.0, 2.0, 0.5), "slopes": (0.1, 0.0, -0.4), "reach": 0.0045},
        {"place": (2.0, 0.5), "weights": (0.0, 3.0), "slopes": (1.0, -1.0), "reach": 0.0045},
        {
            "place": (-0.7, 0.1, 1.5, 0.2),
            "weights": (1.0, 1.0, 0.1, 0.0),
            "slopes": (0.0, 0.0, 1.0, 2.0),
            "reach": 1e-3,
        },
    ),
    twin=_without_one,
    digits=9,
)


def _zero_margin(slope: float, place: float, reach: float, share: float = 1.0) -> float:
    """Sharpness less its first-order value 100 ε (|θ| + 1)|f′|/(1 + f), for a convex loss of one variable."""
    loss = _loss((place,), (0.5,), (slope,))
    first_order = 100 * reach * (abs(place) + 1) * abs(place + slope) / (1 + loss)
    return share * _by_corners((place,), (0.5,), (slope,), reach) - first_order


never_negative = Inequality(
    lambda slope, place, reach: _by_corners((place,), (0.5,), (slope,), reach),
    {"slope": Range(-3, 3), "place": Range(-3, 3), "reach": Range(1e-4, 1, "log")},
    ({"slope": 0.5, "place": 1.0, "reach": 0.0045},),
    twin=lambda slope, place, reach: -_by_corners((place,), (0.5,), (slope,), reach),
    tolerance=1e-12,
    obligations=("the loss is at least 0, so that 1 + f is above 0", "y = 0 lies in the box"),
)
above_first_order = Inequality(
    _zero_margin,
    {"slope": Range(-3, 3), "place": Range(-3, 3), "reach": Range(1e-4, 1, "log")},
    ({"slope": 0.5, "place": 1.0, "reach": 0.0045},),
    twin=lambda slope, place, reach: _zero_margin(slope, place, reach, 0.5),
    tolerance=1e-12,
    obligations=("a convex loss; for any smooth one up to second order in ε",),
)
