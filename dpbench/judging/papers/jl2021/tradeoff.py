"""Trade-off functions: Propositions 4.1 to 4.5, B.1, B.2, Corollaries B.1 and B.2, equation (2) of jl2021.

Discrete pairs are judged exactly, with fractions: T(P || Q)(α) is the least type II error among the tests of level α,
attained by rejecting the outcomes with the largest Q/P first, the last of them at random. Gaussian pairs are judged
by integrals of their densities.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath

from dpbench.judging.claims.judges import Shown, formula, grid, inequality, shown
from dpbench.judging.papers.mathematics import hockey_stick, normal_mass

Real = Any  # an mpmath number
Law = Sequence[Fraction]
HALF = Fraction(1, 2)
COIN = (HALF, HALF)
LEVELS = tuple(Fraction(k, 7) for k in range(8))

# ---- discrete pairs ----


def exactly(share: float) -> Fraction:
    """A fraction of at most three digits."""
    return Fraction(share).limit_denominator(1000)


def least_error(first: Law, second: Law, level: Fraction) -> Fraction:
    """T(first || second)(level) of two laws on the same outcomes."""
    order = sorted(range(len(first)), key=lambda k: (first[k] > 0, first[k] / second[k] if second[k] else 1e300))
    left, error = level, Fraction(1)
    for k in order:
        if first[k] > left:
            return error - second[k] * left / first[k]
        left, error = left - first[k], error - second[k]
    return error


def pair(a: float, b: float, c: float, d: float) -> tuple[list[Fraction], list[Fraction]]:
    """Two laws on three outcomes from four shares."""
    one, two, three, four = map(exactly, (a, b, c, d))
    return [one, (1 - one) * two, (1 - one) * (1 - two)], [three, (1 - three) * four, (1 - three) * (1 - four)]


def product(*laws: Law) -> list[Fraction]:
    """The law of independent outcomes."""
    made = [Fraction(1)]
    for law in laws:
        made = [x * y for x in made for y in law]
    return made


SHARES = dict.fromkeys("abcd", (0.02, 0.98))
SOME = {"a": 0.5, "b": 0.6, "c": 0.2, "d": 0.3}
CHANNEL = dict.fromkeys("uvw", (0.0, 1.0))  # three chances of the first of two outcomes


@inequality(
    domain={**SHARES, **CHANNEL},
    settings=[{**SOME, "u": 1.0, "v": 0.5, "w": 0.0}, {**SOME, "u": 0.9, "v": 0.5, "w": 0.1}],
    control={"other": 0.3},
    obligations=[
        "Proposition 4.2: a test of M(X) against M(Y) is a randomized test of X against Y with the same two errors",
        "Proposition 4.3: post-processing one way by forgetting X, the other way by drawing X from its law given Y",
    ],
    examples=30,
)
def through_a_channel(
    a: float, b: float, c: float, d: float, u: float, v: float, w: float, kept: bool, other: float = 0.0
) -> float:
    """Least T(M(X), M(Y)) − T(X, Y) over levels; `kept`: −largest |T(X, M(X) || Y, M(Y)) − T(X || Y)|.

    With `other` the channel applied to Y is another than that of X.
    """
    p, q = pair(a, b, c, d)
    made = []
    for law, moved in ((p, 0.0), (q, other)):
        chances = [exactly(x + (1 - x) * moved) for x in (u, v, w)]
        both = [y * z for y, x in zip(law, chances, strict=True) for z in (x, 1 - x)]
        made.append(both if kept else [sum(both[::2], Fraction(0)), sum(both[1::2], Fraction(0))])
    gaps = [least_error(made[0], made[1], level) - least_error(p, q, level) for level in LEVELS]
    return -float(max(map(abs, gaps))) if kept else float(min(gaps))


@inequality(
    domain={**SHARES, "u": (0.05, 0.95), "split": (0.05, 0.95)},
    settings=[{**SOME, "u": 0.8, "split": 0.3}],
    control={"as_product": True},
    obligations=["a pair is equivalent, by post-processing both ways, to any other pair with its trade-off function"],
    examples=30,
)
def proposition_4_4(a: float, b: float, c: float, d: float, u: float, split: float, as_product: bool = False) -> float:
    """−largest difference of T(P×R || Q×S), R and S coins, when (P, Q) is replaced by a pair of the same trade-off (its
    outcomes turned round and split), when the order changes, and when a factor Id is added.

    `as_product`: that the composition is the product of the two trade-off functions.
    """
    p, q = pair(a, b, c, d)
    r, halves = [exactly(u), 1 - exactly(u)], [exactly(split), 1 - exactly(split)]
    others = [
        (product(p[::-1], halves, r), product(q[::-1], halves, COIN)),
        (product(r, p), product(COIN, q)),
        (product(p, r, halves), product(q, COIN, halves)),
    ]
    worst = Fraction(0)
    for level in LEVELS:
        true = least_error(product(p, r), product(q, COIN), level)
        found = [least_error(*other, level) for other in others]
        if as_product:
            found = [least_error(p, q, level) * least_error(r, COIN, level)]
        worst = max(worst, *(abs(value - true) for value in found))
    return -float(worst)


PAIRS = (
    ([HALF, Fraction(1, 3), Fraction(1, 6)], [Fraction(1, 10), Fraction(1, 5), Fraction(7, 10)]),
    ([Fraction(1, 4), Fraction(1, 4), HALF], [HALF, HALF, Fraction(0)]),
    ([Fraction(9, 10), Fraction(1, 10), Fraction(0)], [HALF, Fraction(1, 4), Fraction(1, 4)]),
)
SOME_LEVELS = (Fraction(1, 20), Fraction(1, 3), HALF, Fraction(4, 5))


@formula(
    settings=grid(which=range(3), examples=[60000, 50000, 25000, 512], level=SOME_LEVELS),  # the paper's N, and twice B
    control={"swapped": True},
)
def proposition_4_5(which: int, examples: int, level: Fraction, swapped: bool = False) -> tuple[Fraction, Fraction]:
    """p T(P, Q) + (1 − p) Id, and T(P, (1 − p) P + p Q)."""
    (p, q), rate = PAIRS[which], Fraction(256, examples)
    share = 1 - rate if swapped else rate
    printed = share * least_error(p, q, level) + (1 - share) * (1 - level)
    return printed, least_error(p, [(1 - rate) * x + rate * y for x, y in zip(p, q, strict=True)], level)


@formula(settings=grid(which=range(3), level=SOME_LEVELS), control={"inverted": False}, scale=1.0)
def inverse(which: int, level: Fraction, inverted: bool = True) -> tuple[Fraction, Fraction]:
    """f^{-1}(level) = inf{t : f(t) <= level} for f = T(P || Q), by halving, and T(Q || P)."""
    (p, q), low, high = PAIRS[which], Fraction(0), Fraction(1)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if least_error(p, q, middle) <= level else (middle, high)
    return high if inverted else least_error(p, q, level), least_error(q, p, level)


@shown(control={"coin": True}, pair="uniform on [0, 1] against uniform on [0, 2]: (0, 1] and (1, 2] are the outcomes")
def proposition_b_1(coin: bool = False, level: Fraction = HALF) -> Shown:
    """The least type II error, and what the tests that reject where P <= tQ reach, with or without a coin."""
    first, second = (Fraction(1), Fraction(0)), COIN
    best = least_error(first, second, level)
    family = []
    for t in (1, 2):  # P/Q is 2 on (0, 1] and 0 on (1, 2]
        rejected = [k for k in range(2) if first[k] <= t * second[k]]
        if sum(first[k] for k in rejected) <= level:
            family.append(1 - sum(second[k] for k in rejected))
    by_coin = 1 - (second[1] + level * second[0])  # reject (1, 2] always and (0, 1] with probability α
    reached = by_coin if coin else min(family)
    evidence = {"level": str(level), "least_type_2_error": str(best), "of_the_family": str(reached)}
    routes = {"sorted outcomes": float(best), "explicit test with a coin": float(by_coin)}
    reason = f"at level {level} the least type II error is {best}, the family reaches {reached}"
    return Shown(reached == best, reason, float(best), evidence, routes)


# ---- Gaussian pairs ----

TO_TEN: dict[str, Any] = {"digits": 10, "precision": 20, "scale": 1.0}


def g(mu: Real, level: Real, sign: int = -1) -> Real:
    """Φ(−μ − Φ^{-1}(α)) as Proposition B.2 prints it."""
    return mpmath.ncdf(sign * mu - mpmath.sqrt(2) * mpmath.erfinv(2 * level - 1))


def errors(mu: Real, t: Real) -> dict[str, Real]:
    """Both errors of the test that rejects where the log ratio μx − μ²/2 is at least t, integrated."""
    x = t / mu + mu / 2
    return {"alpha": normal_mass(x, mpmath.inf), "beta": normal_mass(-mpmath.inf, x, mu)}


def corollary_b_2_as_printed(mu: Real, t: Real, sign: int = -1) -> dict[str, Real]:
    """Φ(−t/μ − μ/2) and Φ(t/μ − μ/2)."""
    return {"alpha": mpmath.ncdf(-t / mu + sign * mu / 2), "beta": mpmath.ncdf(t / mu + sign * mu / 2)}


@formula(settings=grid(mu=[0.05, 1 / 1.3, 1 / 0.6], x=["-1", "2.5"]), control={"sign": 1}, digits=10, precision=16)
def proposition_b_2(mu: float, x: Real, form: int, sign: int = -1) -> tuple[Real, Real]:
    """G_μ at P(N(0, 1) > x), and P(N(μ, 1) < x): {output > x} is the best test, since Q/P grows with the output."""
    level = normal_mass(x, mpmath.inf)
    first = mpmath.ncdf(sign * mu + mpmath.sqrt(2) * mpmath.erfinv(2 * (1 - level) - 1))
    return first if form == 1 else g(mu, level, sign), normal_mass(-mpmath.inf, x, mu)


@inequality(
    domain={"mu": (0.0, 8.0), "less": (0.0, 1.0), "level": (0.001, 0.999)},
    settings=[{"mu": 1 / 1.3, "less": 0.5, "level": 0.1}],
    control={"sign": 1},
    obligations=["G_μ(α) = Φ(−μ − Φ^{-1}(α)) falls in μ"],
    examples=80,
)
def corollary_b_1(mu: float, less: float, level: float, sign: int = -1) -> float:
    """G of a smaller μ less G_μ."""
    return float(g(mu * less, level, sign) - g(mu, level, sign))


@formula(
    settings=grid(mu=[0.1, 1 / 1.3, 1 / 0.6], t=["-2", "1.5"], which=["alpha", "beta"]), control={"sign": 1}, **TO_TEN
)
def corollary_b_2(mu: float, t: Real, which: str, sign: int = -1) -> tuple[Real, Real]:
    """As printed, and by integration."""
    return corollary_b_2_as_printed(mu, t, sign)[which], errors(mu, t)[which]


@formula(settings=grid(mu=[1 / 1.3, 1 / 0.6], level=["0.001", "0.2"]), control={"sign": -1}, **TO_TEN)
def proposition_4_1(mu: float, level: Real, sign: int = 1) -> tuple[Real, Real]:
    """δ = 1 − f(α) + α f'(α), and ∫ (Q − e^ε P)₊ at ε = log(−f'(α))."""
    slope = mpmath.diff(lambda a: g(mu, a), level)
    return 1 - g(mu, level) + sign * level * slope, hockey_stick(mpmath.log(-slope), mu)


@formula(settings=grid(mu=[1 / 1.3, 1 / 0.6], t=["0", "2"]), control={"sign": -1}, **TO_TEN)
def equation_2(mu: float, t: Real, sign: int = 1) -> tuple[Real, Real]:
    """δ = 1 − β + α β'/α' with the derivatives of α(t) and β(t), and ∫ (Q − e^t P)₊."""
    rise = {name: mpmath.diff(lambda s, n=name: corollary_b_2_as_printed(mu, s)[n], t) for name in ("alpha", "beta")}
    there = corollary_b_2_as_printed(mu, t)
    return 1 - there["beta"] + sign * there["alpha"] * rise["beta"] / rise["alpha"], hockey_stick(t, mu)


@formula(settings=grid(mu=[0.3, 1 / 1.3, 1 / 0.6, 3.0]), digits=9, precision=20)
def slope_at_the_fixed_point(mu: float, printed: int = 0) -> tuple[Real, Real, Real]:
    """f'(α*) of G_μ, where α* = Φ(−μ/2): 0 as printed, by differentiation, and −1 as symmetry has it."""
    fixed = mpmath.ncdf(-mpmath.mpf(mu) / 2)
    return mpmath.mpf(printed), mpmath.diff(lambda level: g(mu, level), fixed), mpmath.mpf(-1)
