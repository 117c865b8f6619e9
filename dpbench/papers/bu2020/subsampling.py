"""Composition and Poisson subsampling of trade-off functions: ⊗, Lemma A.2, Proposition A.1, (2.3), min {f_p, f_p⁻¹}.

| here | in the paper |
| --- | --- |
| pair | two distributions on the same outcomes, [(P(x), Q(x)), ...] |
| corners | a trade-off function as the corners (α, f(α)) of its graph, straight between them |
| rate, weight | p, θ_i |
| mixed | f_p = p f + (1 − p) Id |

Discrete distributions in exact rationals; where a search needs speed, in doubles. No event or accountant is used.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import mpmath

from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range

Pair = list[tuple[Any, Any]]
Corners = list[tuple[Any, Any]]


def corners_of(pair: Pair) -> Corners:
    """T(P, Q) by Neyman and Pearson: outcomes are rejected in the order of Q(x)/P(x), largest first."""

    def order(masses: tuple[Any, Any]) -> Any:
        return -float("inf") if masses[0] == 0 else -(masses[1] / masses[0])

    level, error = pair[0][0] * 0, pair[0][0] * 0 + 1
    found = [(level, error)]
    for first, second in sorted((masses for masses in pair if masses[0] or masses[1]), key=order):
        level, error = level + first, error - second
        found.append((level, error))
    return found


def at(corners: Corners, level: Any) -> Any:
    """f(α); at a jump the lower end."""
    best = None
    for (a, f), (b, g) in itertools.pairwise(corners):
        if a <= level <= b:
            value = min(f, g) if a == b else f + (g - f) * (level - a) / (b - a)
            best = value if best is None else min(best, value)
    return corners[-1][1] if best is None else best


def hull(corners: Corners) -> Corners:
    """The greatest convex function below some points: f**."""
    found: Corners = []
    for point in sorted(set(corners)):
        if found and found[-1][0] == point[0]:
            continue  # of the same level the lowest came first
        while len(found) > 1:
            (a, f), (b, g) = found[-2:]
            if (g - f) * (point[0] - a) < (point[1] - f) * (b - a):
                break
            found.pop()
        found.append(point)
    return found


def pair_of(corners: Corners) -> Pair:
    """A pair of distributions with this trade-off function: one outcome per straight piece."""
    pieces = [(b - a, f - g) for (a, f), (b, g) in itertools.pairwise(corners)]
    start, end = corners[0], corners[-1]
    return [(start[0] * 0, 1 - start[1]), *pieces, (1 - end[0], end[1])]


def product(one: Pair, other: Pair) -> Pair:
    """P × P' and Q × Q'."""
    return [(p * r, q * s) for p, q in one for r, s in other]


def lowest(all_corners: Sequence[Corners]) -> Corners:
    """The greatest trade-off function below some others."""
    return hull([corner for corners in all_corners for corner in corners])


def mixed(corners: Corners, rate: Any) -> Corners:
    """f_p = p f + (1 − p) Id."""
    return [(a, rate * f + (1 - rate) * (1 - a)) for a, f in corners]


def reversed_corners(corners: Corners) -> Corners:
    """f⁻¹: the graph mirrored."""
    return sorted((f, a) for a, f in corners)


# ---- searches: Lemma A.2, Proposition A.1, composition ----


def _three(one: float, other: float) -> list[float]:
    """Three probabilities from two numbers in [0, 1]."""
    low, high = sorted((one, other))
    return [low, high - low, 1 - high]


def _mixture(values: dict[str, float]) -> tuple[Corners, Pair, float, float]:
    """Two neighbouring pairs on three outcomes, their common f, and the pair that Lemma A.2 is about."""
    pairs = [
        list(
            zip(
                _three(values[f"p{i}"], values[f"r{i}"]),
                _three(values[f"q{i}"], values[f"s{i}"]),
                strict=True,
            )
        )
        for i in (1, 2)
    ]
    rate, weight = values["rate"], values["weight"]
    common = lowest([corners_of(pair) for pair in pairs])
    first = [weight * a[0] + (1 - weight) * b[0] for a, b in zip(*pairs, strict=True)]
    second = [weight * a[1] + (1 - weight) * b[1] for a, b in zip(*pairs, strict=True)]
    blended = [(p, (1 - rate) * p + rate * q) for p, q in zip(first, second, strict=True)]
    return common, blended, rate, values["level"]


def _lemma_margin(**values: float) -> float:
    common, blended, rate, level = _mixture(values)
    return float(at(corners_of(blended), level) - (rate * at(common, level) + (1 - rate) * (1 - level)))


def _other_direction_margin(**values: float) -> float:
    """T(M∘Sample(S'), M∘Sample(S)) − f_p⁻¹."""
    common, blended, rate, level = _mixture(values)
    swapped = [(q, p) for p, q in blended]
    return float(at(corners_of(swapped), level) - at(reversed_corners(mixed(common, rate)), level))


def _forgotten_inverse(**values: float) -> float:
    """The false T(M∘Sample(S'), M∘Sample(S)) >= f_p."""
    common, blended, rate, level = _mixture(values)
    swapped = [(q, p) for p, q in blended]
    return float(at(corners_of(swapped), level) - at(mixed(common, rate), level))


_MASSES = {f"{name}{i}": Range(0, 1) for i in (1, 2) for name in "pqrs"}
_START = {"p1": 0.2, "q1": 0.4, "r1": 0.7, "s1": 0.8, "p2": 0.3, "q2": 0.35, "r2": 0.6, "s2": 0.9}
_RATES = (256 / 60000, 256 / 29305, 512 / 25000, 1 / 80)
_SETTINGS = tuple({**_START, "rate": rate, "weight": 0.4, "level": 0.3} for rate in _RATES)
_DOMAIN = {**_MASSES, "rate": Range(1e-3, 1, "log"), "weight": Range(0, 1), "level": Range(0, 1)}

lemma_a_2 = Inequality(
    _lemma_margin,
    _DOMAIN,
    _SETTINGS,
    twin=_forgotten_inverse,
    obligations=("f is convex (Jensen)", "each pair satisfies T(P_i, Q_i) >= f", "the weights sum to 1"),
    examples=120,
)
other_direction = Inequality(
    _other_direction_margin,
    _DOMAIN,
    _SETTINGS,
    twin=_forgotten_inverse,
    obligations=("T(Q, P) is the inverse of T(P, Q)", "the inverse of a larger trade-off function is larger"),
    examples=120,
)


def _composition_margin(level: float, **values: float) -> float:
    """An adaptive second release on two outcomes against f_1 ⊗ f_2, f_2 the greatest function below both branches."""
    first: Pair = [(values["p0"], values["q0"]), (1 - values["p0"], 1 - values["q0"])]
    branches = [[(values[f"p{y}"], values[f"q{y}"]), (1 - values[f"p{y}"], 1 - values[f"q{y}"])] for y in (1, 2)]
    joint = [(first[y][0] * p, first[y][1] * q) for y in (0, 1) for p, q in branches[y]]
    worst = lowest([corners_of(branch) for branch in branches])
    return float(at(corners_of(joint), level) - at(corners_of(product(first, pair_of(worst))), level))


def _better_branch_margin(level: float, **values: float) -> float:
    """The false version: f_2 is taken from one branch only."""
    first: Pair = [(values["p0"], values["q0"]), (1 - values["p0"], 1 - values["q0"])]
    branches = [[(values[f"p{y}"], values[f"q{y}"]), (1 - values[f"p{y}"], 1 - values[f"q{y}"])] for y in (1, 2)]
    joint = [(first[y][0] * p, first[y][1] * q) for y in (0, 1) for p, q in branches[y]]
    return float(at(corners_of(joint), level) - at(corners_of(product(first, branches[0])), level))


composition_theorem = Inequality(
    _composition_margin,
    {**{f"{name}{i}": Range(0.01, 0.99) for i in (0, 1, 2) for name in "pq"}, "level": Range(0, 1)},
    ({"p0": 0.5, "q0": 0.6, "p1": 0.4, "q1": 0.5, "p2": 0.2, "q2": 0.25, "level": 0.3},),
    twin=_better_branch_margin,
    obligations=("each M_t is f_t-DP given every output of the earlier ones",),
    examples=120,
)


# ---- exact demonstrations ----

_ODDS = Fraction(3)  # e^ε of the exact examples


def pure(odds: Fraction, delta: Fraction) -> Corners:
    """The corners of f_{ε, δ}, (2.1)."""
    middle = (1 - delta) / (1 + odds)
    return [(Fraction(0), 1 - delta), (middle, middle), (1 - delta, Fraction(0)), (Fraction(1), Fraction(0))]


def _same(one: Corners, other: Corners) -> bool:
    levels = sorted({a for a, _ in (*one, *other)})
    return all(at(one, level) == at(other, level) for level in levels)


def _tensor() -> Shown:
    """⊗ depends on f and g alone, commutes and associates: pairs with split outcomes against their own corners."""
    third, fifth = Fraction(1, 3), Fraction(1, 5)
    one: Pair = [(third, Fraction(1, 2)), (2 * third, Fraction(1, 2))]
    other: Pair = [(fifth, Fraction(3, 10)), (fifth, fifth), (3 * fifth, Fraction(1, 2))]
    split: Pair = [(p / 4, q / 4) for p, q in one] + [(3 * p / 4, 3 * q / 4) for p, q in one]
    last = pair_of(pure(_ODDS, Fraction(1, 100)))
    whole = corners_of(product(one, other))
    checks = {
        "other_pair_same_tradeoff": _same(whole, corners_of(product(split, pair_of(corners_of(other))))),
        "commutes": _same(whole, corners_of(product(other, one))),
        "associates": _same(
            corners_of(product(product(one, other), last)), corners_of(product(one, product(other, last)))
        ),
        "identity": _same(corners_of(one), corners_of(product(one, [(third, third), (2 * third, 2 * third)]))),
    }
    return Shown(all(checks.values()), "equal in exact rationals, corner by corner", "equal", checks)


def _tensor_twin() -> Shown:
    """A false ⊗: the product of the functions' values."""
    one: Pair = [(Fraction(1, 3), Fraction(1, 2)), (Fraction(2, 3), Fraction(1, 2))]
    true = corners_of(product(one, one))
    wrong = [(a, at(corners_of(one), a) ** 2) for a, _ in true]
    return Shown(_same(true, wrong), "f(α)² is not f ⊗ f")


tensor_product = Demonstration(_tensor, _tensor_twin)


def _pieces(copies: int) -> Shown:
    """How many slopes f_{ε, 0} ⊗ f_{ε, 0} has; an f_{ε', δ'} has at most −e^ε', −e^−ε' and 0."""
    single = pair_of(pure(_ODDS, Fraction(0)))
    pair = product(single, single) if copies == 2 else single
    corners = hull(corners_of(pair))
    slopes = [(g - f) / (b - a) for (a, f), (b, g) in itertools.pairwise(corners)]
    inner = [slope for slope in slopes if slope]
    lossy = len(inner) > 2
    evidence = {"slopes": [str(slope) for slope in slopes]}
    return Shown(lossy, f"{len(inner)} slopes other than 0, an (epsilon, delta) pair has two", len(inner), evidence)


lossy_composition = Demonstration(lambda: _pieces(2), lambda: _pieces(1))


def _not_convex(convexified: bool) -> Shown:
    """min {f_p, f_p⁻¹} for f = f_{ε, 0}, e^ε = 3, p = 1/2 at a midpoint beside the diagonal."""
    half = Fraction(1, 2)
    one = mixed(pure(_ODDS, Fraction(0)), half)
    both = (one, reversed_corners(one))
    ends = (one[1], (one[1][1], one[1][0]))
    middle = ((ends[0][0] + ends[1][0]) / 2, (ends[0][1] + ends[1][1]) / 2)
    least = lowest(both)
    value = at(least, middle[0]) if convexified else min(at(corners, middle[0]) for corners in both)
    evidence = {"ends": [[str(x) for x in end] for end in ends], "chord": str(middle[1]), "function": str(value)}
    reason = f"at α = {middle[0]} the function is {value}, the chord {middle[1]}"
    return Shown(value > middle[1], reason, float(value - middle[1]), evidence)


minimum_not_convex = Demonstration(lambda: _not_convex(False), lambda: _not_convex(True))


def _against_li(rates: Sequence[Fraction]) -> Shown:
    """min {f_p, f_p⁻¹}** of f_{ε, δ} against f_{ε', pδ}, e^ε' = 1 − p + p e^ε, at every corner of both."""
    gains, weakest = [], Fraction(1)
    for rate in rates:
        for odds, delta in ((Fraction(3), Fraction(1, 100000)), (Fraction(1212), Fraction(1, 100000))):
            one = mixed(pure(odds, delta), rate)
            ours = lowest((one, reversed_corners(one)))
            theirs = pure(1 - rate + rate * odds, rate * delta)
            levels = sorted({a for a, _ in (*ours, *theirs)})
            differences = [at(ours, level) - at(theirs, level) for level in levels]
            weakest = min(weakest, min(differences))
            gains.append(max(differences))
    holds = weakest >= 0 and min(gains) > 0
    evidence = {"largest_gain_of_each": [float(gain) for gain in gains], "smallest_difference": float(weakest)}
    reason = f"nowhere below by more than {float(-weakest):.3g}, above by up to {float(min(gains)):.3g} at least"
    return Shown(holds, reason, float(min(gains)), evidence)


_PAPER_RATES = (Fraction(256, 60000), Fraction(256, 29305), Fraction(512, 25000), Fraction(1, 80), Fraction(1, 2))
strictly_better_than_li = Demonstration(lambda: _against_li(_PAPER_RATES), lambda: _against_li((Fraction(1),)))


# ---- the mixture of the proof of Proposition A.1 ----


def _sampled(records: Sequence[int], rate: Fraction, mechanism: Callable[[frozenset[int]], int]) -> dict[int, Fraction]:
    """The distribution of a deterministic mechanism's output on a Poisson subsample, by all bit strings."""
    found: dict[int, Fraction] = {}
    for bits in itertools.product((0, 1), repeat=len(records)):
        chosen = frozenset(record for record, bit in zip(records, bits, strict=True) if bit)
        k = len(chosen)
        output = mechanism(chosen)
        found[output] = found.get(output, Fraction(0)) + rate**k * (1 - rate) ** (len(records) - k)
    return found


def _mixture_shown(weight_of: Callable[[Fraction], Fraction]) -> Shown:
    """M∘Sample(S ∪ {x0}) = p · (with x0) + (1 − p) · (without), for a mechanism that tells every subsample apart."""
    records, rate = (1, 2, 3, 4), Fraction(256, 60000)

    def name(chosen: frozenset[int]) -> int:
        return sum(2**record for record in chosen)

    direct = _sampled((*records, 0), rate, name)
    without = _sampled(records, rate, name)
    weight = weight_of(rate)
    blended = {output: (1 - weight) * mass for output, mass in without.items()}
    for output, mass in without.items():
        blended[output + 1] = blended.get(output + 1, Fraction(0)) + weight * mass
    equal = direct == blended and sum(direct.values()) == 1
    return Shown(
        equal, f"all {len(direct)} subsamples have the same probability" if equal else "they differ", len(direct)
    )


proof_mixture = Demonstration(
    lambda: _mixture_shown(lambda rate: rate), lambda: _mixture_shown(lambda rate: rate / (1 - rate))
)


# ---- (2.3) is attained by the Gaussian mechanism ----


def _attained(threshold: str, mu: str, rate: str) -> Any:
    """Type II error at N(0, 1) against (1 − p) N(0, 1) + p N(μ, 1), by quadrature of the mixture."""
    t, m, p = (mpmath.mpf(value) for value in (threshold, mu, rate))
    points = sorted({-40 + 0 * t, *(x for x in (-6 + 0 * t, 0 * t, m - 4, m) if -40 < x < t), t})
    return mpmath.quad(lambda x: (1 - p) * mpmath.npdf(x) + p * mpmath.npdf(x, m, 1), points)


def _mixed_gaussian(threshold: str, mu: str, rate: str) -> Any:
    """p G_μ(α) + (1 − p)(1 − α) at the level of the same threshold."""
    t, m, p = (mpmath.mpf(value) for value in (threshold, mu, rate))
    level = mpmath.ncdf(-t)
    closed = mpmath.ncdf(mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * level) - m)
    return p * closed + (1 - p) * (1 - level)


subsampling_attained = Formula(
    _mixed_gaussian,
    _attained,
    [
        {"threshold": t, "mu": mu, "rate": rate}
        for mu, rate in ((repr(1 / 1.3), repr(256 / 60000)), ("2", repr(256 / 60000)), (repr(1 / 0.6), "0.0125"))
        for t in ("-1", "0.7", "3")
    ],
    twin=lambda threshold, mu, rate: _mixed_gaussian(threshold, repr(float(mu) * float(rate)), "1"),
    precision=20,
    digits=10,
)


def _larger_margin(rate: float, mu: float, threshold: float) -> float:
    """T(Q', P) − G_μ for Q' = (1 − p) N(0, 1) + p N(μ, 1): the smaller of the two directions against f = G_μ."""
    from scipy.special import ndtr, ndtri

    level = (1 - rate) * ndtr(threshold) + rate * ndtr(threshold - mu)
    return float(ndtr(-threshold) - ndtr(-ndtri(level) - mu))


def _scaled_margin(rate: float, mu: float, threshold: float) -> float:
    """The false version: as good as G_{pμ}."""
    from scipy.special import ndtr, ndtri

    level = (1 - rate) * ndtr(threshold) + rate * ndtr(threshold - mu)
    return float(ndtr(-threshold) - ndtr(-ndtri(level) - rate * mu))


larger_than_unsampled = Inequality(
    _larger_margin,
    {"rate": Range(1e-4, 1, "log"), "mu": Range(0.05, 5, "log"), "threshold": Range(-6, 6)},
    tuple({"rate": rate, "mu": 1 / sigma, "threshold": 1.0} for rate in _RATES for sigma in (1.3, 0.5)),
    twin=_scaled_margin,
    tolerance=1e-12,
    obligations=("Id >= f", "f is its own inverse; for an f that is not, take max {f, f⁻¹}, which M has as well"),
    examples=100,
)


def _both_directions(step_by_step: bool) -> Shown:
    """min {f_p⊗f_p, its inverse}** against the two directions of the composition itself, for a discrete f.

    The twin convexifies min {f_p, f_p⁻¹} at every step, which is a bound as well but another function.
    """
    f, rate = pure(_ODDS, Fraction(1, 100)), Fraction(1, 10)
    step = pair_of(mixed(f, rate))
    forward = corners_of(product(step, step))
    swapped = [(q, p) for p, q in step]
    backward = corners_of(product(swapped, swapped))
    truth = lowest((forward, backward))
    one = lowest((mixed(f, rate), reversed_corners(mixed(f, rate))))
    claimed = (
        corners_of(product(pair_of(one), pair_of(one)))
        if step_by_step
        else lowest((forward, reversed_corners(forward)))
    )
    levels = sorted({a for a, _ in (*truth, *claimed)})
    gap = max(at(truth, level) - at(claimed, level) for level in levels)
    equal = gap == 0 and all(at(truth, level) == at(claimed, level) for level in levels)
    reason = "equal to both directions of the composition, convexified" if equal else f"lower by up to {float(gap):.3g}"
    return Shown(equal, reason, float(gap), {"corners": len(truth)})


minimum_after_composing = Demonstration(lambda: _both_directions(False), lambda: _both_directions(True))
