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
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath
from scipy.special import ndtr

from dpbench.judging.claims.judges import Shown, formula, grid, inequality, shown
from dpbench.judging.papers.bu2020.tradeoff import tradeoff
from dpbench.judging.papers.mathematics import Real, gaussian_error

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
    found = [
        min(f, g) if a == b else f + (g - f) * (level - a) / (b - a)
        for (a, f), (b, g) in itertools.pairwise(corners)
        if a <= level <= b
    ]
    return min(found, default=corners[-1][1])


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


def lowest(*all_corners: Corners) -> Corners:
    """The greatest trade-off function below some others."""
    return hull([corner for corners in all_corners for corner in corners])


def mixed(corners: Corners, rate: Any) -> Corners:
    """f_p = p f + (1 − p) Id."""
    return [(a, rate * f + (1 - rate) * (1 - a)) for a, f in corners]


def inverse(corners: Corners) -> Corners:
    """f⁻¹: the graph mirrored."""
    return sorted((f, a) for a, f in corners)


def pure(odds: Fraction, delta: Fraction) -> Corners:
    """The corners of f_{ε, δ}, (2.1), e^ε = `odds`."""
    middle = (1 - delta) / (1 + odds)
    return [(Fraction(0), 1 - delta), (middle, middle), (1 - delta, Fraction(0)), (Fraction(1), Fraction(0))]


def differences(one: Corners, other: Corners) -> list[Any]:
    """The first less the second, at every corner of both."""
    return [at(one, level) - at(other, level) for level in sorted({a for a, _ in (*one, *other)})]


# ---- searches: Lemma A.2, Proposition A.1, composition ----


def _three(one: float, other: float) -> list[float]:
    """Three probabilities from two numbers in [0, 1]."""
    low, high = sorted((one, other))
    return [low, high - low, 1 - high]


_RATES = (256 / 60000, 256 / 29305, 512 / 25000, 1 / 80)
_START = {"p1": 0.2, "q1": 0.4, "r1": 0.7, "s1": 0.8, "p2": 0.3, "q2": 0.35, "r2": 0.6, "s2": 0.9}


@inequality(
    domain={**dict.fromkeys(_START, (0, 1)), "rate": (1e-3, 1, "log"), "weight": (0, 1), "level": (0, 1)},
    settings=[{**_START, "rate": rate, "weight": 0.4, "level": 0.3} for rate in _RATES],
    control={"swapped": True, "inverted": False},
    obligations=[
        "f is convex (Jensen), each pair satisfies T(P_i, Q_i) >= f, and the weights sum to 1",
        "T(Q, P) is the inverse of T(P, Q), and the inverse of a larger trade-off function is larger",
    ],
    examples=120,
)
def mixture(
    rate: float, weight: float, level: float, swapped: bool = False, inverted: bool = False, **masses: float
) -> float:
    """T(M∘Sample(S), M∘Sample(S')) − f_p for two neighbouring pairs on three outcomes.

    `swapped`: S and S' exchanged; `inverted`: against f_p⁻¹. The control exchanges and does not invert.
    """
    three = [_three(masses[f"{one}{i}"], masses[f"{other}{i}"]) for i in (1, 2) for one, other in ("pr", "qs")]
    pairs = [list(zip(*three[:2], strict=True)), list(zip(*three[2:], strict=True))]
    blends = [[weight * x + (1 - weight) * y for x, y in zip(three[i], three[i + 2], strict=True)] for i in (0, 1)]
    blended = [(p, (1 - rate) * p + rate * q) for p, q in zip(*blends, strict=True)]
    allowed = mixed(lowest(*map(corners_of, pairs)), rate)
    found = corners_of([(q, p) for p, q in blended] if swapped else blended)
    return float(at(found, level) - at(inverse(allowed) if inverted else allowed, level))


@inequality(
    domain={**{f"{name}{i}": (0.01, 0.99) for i in (0, 1, 2) for name in "pq"}, "level": (0, 1)},
    settings=[{"p0": 0.5, "q0": 0.6, "p1": 0.4, "q1": 0.5, "p2": 0.2, "q2": 0.25, "level": 0.3}],
    control={"branches": 1},
    obligations=["each M_t is f_t-DP given every output of the earlier ones"],
    examples=120,
)
def composition_theorem(level: float, branches: int = 2, **masses: float) -> float:
    """An adaptive second release on two outcomes against f_1 ⊗ f_2, f_2 the greatest function below both branches."""
    first, *second = [
        [(masses[f"p{y}"], masses[f"q{y}"]), (1 - masses[f"p{y}"], 1 - masses[f"q{y}"])] for y in (0, 1, 2)
    ]
    joint = [(first[y][0] * p, first[y][1] * q) for y in (0, 1) for p, q in second[y]]
    worst = lowest(*map(corners_of, second[:branches]))
    return float(at(corners_of(joint), level) - at(corners_of(product(first, pair_of(worst))), level))


# ---- exact demonstrations ----

_ODDS = Fraction(3)  # e^ε of the exact examples


@shown(control={"values": True})
def tensor_product(values: bool = False) -> Shown:
    """⊗ depends on f and g alone, commutes and associates: pairs with split outcomes against their own corners.

    The control multiplies the functions' values.
    """
    one: Pair = [(Fraction(1, 3), Fraction(1, 2)), (Fraction(2, 3), Fraction(1, 2))]
    other: Pair = [(Fraction(k, 5), q) for k, q in ((1, Fraction(3, 10)), (1, Fraction(1, 5)), (3, Fraction(1, 2)))]
    split: Pair = [(p * share, q * share) for p, q in one for share in (Fraction(1, 4), Fraction(3, 4))]
    last = pair_of(pure(_ODDS, Fraction(1, 100)))

    def times(f: Pair, g: Pair) -> Pair:
        a, b = corners_of(f), corners_of(g)
        return pair_of(hull([(x, y * at(b, x)) for x, y in a])) if values else product(f, g)

    compared = {
        "other_pair_same_tradeoff": (times(one, other), times(split, pair_of(corners_of(other)))),
        "commutes": (times(one, other), times(other, one)),
        "associates": (times(times(one, other), last), times(one, times(other, last))),
        "identity": (one, times(one, [(p, p) for p, _ in one])),
    }
    checks = {name: not any(differences(corners_of(a), corners_of(b))) for name, (a, b) in compared.items()}
    reason = "equal in exact rationals, corner by corner" if all(checks.values()) else "not equal"
    return Shown(all(checks.values()), reason, reason.partition(" in")[0], checks)


@shown(control={"copies": 1}, pair="the pair of f_{ε, 0} with e^ε = 3, twice")
def lossy_composition(copies: int = 2) -> Shown:
    """How many slopes f_{ε, 0} ⊗ f_{ε, 0} has; an f_{ε', δ'} has at most −e^ε', −e^−ε' and 0."""
    single = pair_of(pure(_ODDS, Fraction(0)))
    corners = hull(corners_of(product(single, single) if copies == 2 else single))
    slopes = [(g - f) / (b - a) for (a, f), (b, g) in itertools.pairwise(corners)]
    inner = sum(slope != 0 for slope in slopes)
    evidence = {"slopes": [str(slope) for slope in slopes]}
    return Shown(inner > 2, f"{inner} slopes other than 0, an (epsilon, delta) pair has two", inner, evidence)


@shown(control={"convexified": True}, pair="f = f_{ε, 0}, e^ε = 3, p = 1/2")
def minimum_not_convex(convexified: bool = False) -> Shown:
    """min {f_p, f_p⁻¹} at a midpoint beside the diagonal, and the chord there."""
    one = mixed(pure(_ODDS, Fraction(0)), Fraction(1, 2))
    ends = (one[1], (one[1][1], one[1][0]))
    level, chord = ((ends[0][i] + ends[1][i]) / 2 for i in (0, 1))
    both = (one, inverse(one))
    value = at(lowest(*both), level) if convexified else min(at(corners, level) for corners in both)
    evidence = {"ends": [[str(x) for x in end] for end in ends], "chord": str(chord), "function": str(value)}
    reason = f"at α = {level} the function is {value}, the chord {chord}"
    return Shown(value > chord, reason, float(value - chord), evidence)


_PAPER_RATES = (Fraction(256, 60000), Fraction(256, 29305), Fraction(512, 25000), Fraction(1, 80), Fraction(1, 2))


@shown(control={"rates": (Fraction(1),)})
def strictly_better_than_li(rates: Sequence[Fraction] = _PAPER_RATES) -> Shown:
    """min {f_p, f_p⁻¹}** of f_{ε, δ} against f_{ε', pδ}, e^ε' = 1 − p + p e^ε, at every corner of both."""
    found = []
    for rate, odds in itertools.product(rates, (Fraction(3), Fraction(1212))):
        delta = Fraction(1, 100000)
        one = mixed(pure(odds, delta), rate)
        found.append(differences(lowest(one, inverse(one)), pure(1 - rate + rate * odds, rate * delta)))
    gains, weakest = [max(one) for one in found], min(map(min, found))
    evidence = {"largest_gain_of_each": [float(gain) for gain in gains], "smallest_difference": float(weakest)}
    reason = f"nowhere below by more than {float(-weakest):.3g}, above by up to {float(min(gains)):.3g} at least"
    return Shown(weakest >= 0 and min(gains) > 0, reason, float(min(gains)), evidence)


@shown(control={"odds": True}, pair="four records, and one more; the mechanism reveals the subsample")
def proof_mixture(odds: bool = False) -> Shown:
    """M∘Sample(S ∪ {x0}) = p · (with x0) + (1 − p) · (without): all bit strings. The control mixes by p/(1 − p)."""
    records, rate = (1, 2, 3, 4), Fraction(256, 60000)

    def sampled(drawn: Sequence[int]) -> dict[frozenset[int], Fraction]:
        return {
            frozenset(itertools.compress(drawn, bits)): rate ** sum(bits) * (1 - rate) ** (len(bits) - sum(bits))
            for bits in itertools.product((0, 1), repeat=len(drawn))
        }

    direct, without = sampled((*records, 0)), sampled(records)
    weight = rate / (1 - rate) if odds else rate
    blended = {one: (1 - weight) * mass for one, mass in without.items()}
    blended |= {one | {0}: weight * mass for one, mass in without.items()}
    equal = direct == blended and sum(direct.values()) == 1
    reason = f"all {len(direct)} subsamples have the same probability" if equal else "they differ"
    return Shown(equal, reason, len(direct))


@shown(control={"step_by_step": True}, pair="f = f_{ε, δ}, e^ε = 3, δ = 1/100, p = 1/10, two steps")
def minimum_after_composing(step_by_step: bool = False) -> Shown:
    """min {f_p⊗f_p, its inverse}** against the two directions of the composition itself, for a discrete f.

    The control convexifies min {f_p, f_p⁻¹} at every step, which is a bound as well but another function.
    """
    single = mixed(pure(_ODDS, Fraction(1, 100)), Fraction(1, 10))
    step, swapped = pair_of(single), [(q, p) for p, q in pair_of(single)]
    forward = corners_of(product(step, step))
    one = pair_of(lowest(single, inverse(single)))
    claimed = corners_of(product(one, one)) if step_by_step else lowest(forward, inverse(forward))
    truth = lowest(forward, corners_of(product(swapped, swapped)))
    gap = max(differences(truth, claimed), key=abs)
    reason = f"lower by up to {float(gap):.3g}" if gap else "equal to both directions of the composition, convexified"
    return Shown(not gap, reason, float(gap), {"corners": len(truth)})


# ---- (2.3) is attained by the Gaussian mechanism ----


@formula(
    settings=grid(mu=(repr(1 / 1.3), "2"), rate=(repr(256 / 60000), "0.0125"), threshold=("-1", "0.7", "3")),
    control={"scaled": True},
    precision=20,
    digits=10,
    pair="N(0, 1) and (1 − p) N(0, 1) + p N(μ, 1)",
)
def subsampling_attained(threshold: Real, mu: Real, rate: Real, scaled: bool = False) -> tuple[Real, Real]:
    """p G_μ(α) + (1 − p)(1 − α) at a threshold, and the type II error by quadrature; the control has G_{pμ}."""
    level = mpmath.ncdf(-threshold)
    printed = tradeoff(level, rate * mu) if scaled else rate * tradeoff(level, mu) + (1 - rate) * (1 - level)
    points = sorted({mpmath.mpf(-40), *(x for x in (-6, 0, mu - 4, mu) if -40 < x < threshold), threshold})
    missed = mpmath.quad(lambda x: (1 - rate) * mpmath.npdf(x) + rate * mpmath.npdf(x, mu, 1), points)
    return printed, missed


@inequality(
    domain={"rate": (1e-4, 1, "log"), "mu": (0.05, 5, "log"), "threshold": (-6, 6)},
    settings=[{"rate": rate, "mu": 1 / sigma, "threshold": 1.0} for rate in _RATES for sigma in (1.3, 0.5)],
    control={"scaled": True},
    obligations=["Id >= f", "f is its own inverse; for an f that is not, take max {f, f⁻¹}, which M has as well"],
    examples=100,
    pair="(1 − p) N(0, 1) + p N(μ, 1) and N(0, 1)",
)
def larger_than_unsampled(rate: float, mu: float, threshold: float, scaled: bool = False) -> float:
    """The smaller of the two directions less f = G_μ; the control says that it is as good as G_{pμ}."""
    level = float((1 - rate) * ndtr(threshold) + rate * ndtr(threshold - mu))
    return float(ndtr(-threshold)) - gaussian_error(level, mu * (rate if scaled else 1))
