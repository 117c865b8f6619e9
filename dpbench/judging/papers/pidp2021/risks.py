"""Remark 1, the PL condition, Lemmas 1 and 2, and the risks of Theorems 1 to 3, 6 and 7, Remark 4 and (3) to (10).

| paper | here |
| --- | --- |
| ℓ, P, D | ½(θ − z)², a coin with P(z = 1) = `coin`, `records` throws of it; L = μ = 1, G = 1 on [0, 1] |
| A, θ_priv | the mean of D, then one step of SGD without noise at learning rate `rate` (0: the optimum itself) |
| θ_i, z_i', τ | the model of the data with one record thrown anew, that record, `tau` |

Expectations are sums over the number of ones in D and over the chosen record; what `coin` and `rate` are (doubles or
rationals) the sums are too. For the rates m is 1 and T is ⌈ln n⌉. A step of (1) with α = 1/L is θ_{t+1} = z_t − b: the
excess is half the variance of the data plus half of that of the noise, whatever n and T are, and the noise is left out,
as it only adds. (4) drops the variance of the chosen gradient: E‖∇ℓ(θ_t, z_t)‖² is ‖∇L‖² plus that variance.

For Remark 1 and the PL condition θ, x, c are `theta`, `feature`, `residual` (the bound of |y − f(x)|), and μ, m, σ² are
`strength`, `dimensions`, `variance`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath
from scipy.optimize import brentq, minimize_scalar

from dpbench.judging.claims.claim import Printed
from dpbench.judging.claims.judges import Shown, formula, grid, inequality, shown
from dpbench.judging.papers.mathematics import by_rows, compared
from dpbench.judging.papers.pidp2021.rates import dp_sgd, dp_terms, pidp_sgd, pidp_terms

HALF = Fraction(1, 2)
_NEEDS = ["expectation over D and the algorithm", "losses nowhere negative", "one optimum, or the nearest one"]


def expectations(records: int, coin: Any, rate: Any) -> dict[str, Any]:
    """E over D and A of L_P(θ), L(θ; D) and L*, min L_P and E of L_P(θ) − min L_P = ½E(θ − p)²."""
    found = dict.fromkeys(("population", "empirical", "least", "excess"), 0 * coin)
    for ones in range(records + 1):
        weight = math.comb(records, ones) * coin**ones * (1 - coin) ** (records - ones)
        mean = type(coin)(ones) / records
        found["least"] += weight * mean * (1 - mean) / 2
        for z, chance in ((0, 1 - mean), (1, mean)):
            theta = mean - rate * (mean - z)
            found["population"] += weight * chance * ((1 - coin) * theta**2 + coin * (theta - 1) ** 2) / 2
            found["empirical"] += weight * chance * ((1 - mean) * theta**2 + mean * (theta - 1) ** 2) / 2
            found["excess"] += weight * chance * (theta - coin) ** 2 / 2
    return found | {"best": coin * (1 - coin) / 2}


def risk(theta: Fraction, rows: Sequence[Fraction | int]) -> Fraction:
    """L(θ; D) of the loss ½(θ − z)²."""
    return sum(((theta - z) ** 2 for z in rows), Fraction(0)) / (2 * len(rows))


# ---- Remark 1: derivatives of the two losses by numerical differentiation, |x| <= 1 ----


@inequality(
    domain={"theta": (-12, 12), "feature": (0, 1), "residual": (0, 10)},
    settings=grid(theta=[-12, 0, math.log(2 + math.sqrt(3))], feature=[1.0], residual=[1.0]),
    obligations=["features at most 1 in norm; some bounds are attained, so they are 'at most', not 'less'"],
    examples=40,
)
def derivative(theta: float, feature: float, residual: float, bound: Printed, loss: str, order: int) -> float:
    """`bound` − |d^k/dθ^k| of ln(1 + e^(−xθ)), or of (y − θx)² where |y − θx| = c; there for k = 1 `bound` times c."""
    label = residual + theta * feature

    def value(t: Any) -> Any:
        return mpmath.log1p(mpmath.exp(-feature * t)) if loss == "logistic" else (label - t * feature) ** 2

    with mpmath.workdps(40):
        slope = mpmath.diff(value, mpmath.mpf(theta), order)
    return bound.value * (residual if loss == "squared" and order == 1 else 1) - float(abs(slope))


# ---- Definition 5 and (3) ----


@inequality(
    domain={"theta": (-100, 100), "strength": (0.01, 10, "log"), "share": (0, 1)},
    settings=grid(theta=[1.0, 100.0], strength=[0.1, 10.0], share=[0.5]),
    control={"factor": 4.0},
    tolerance=1e-9,
    examples=60,
)
def strongly_convex_is_pl(theta: float, strength: float, share: float, factor: float = 2.0) -> float:
    """|∇L|² − 2μ(L − L*), over max(1, |∇L|²), for λθ²/2 and logistic losses, `share` of them with label +; λ = μ."""

    def value(at: float) -> float:
        losses = share * math.log1p(math.exp(-at)) + (1 - share) * math.log1p(math.exp(at))
        return strength * at * at / 2 + losses

    def gradient(at: float) -> float:
        return strength * at + 1 / (1 + math.exp(-at)) - share

    gap = value(theta) - value(brentq(gradient, -200.0, 200.0, xtol=1e-14))
    return (gradient(theta) ** 2 - factor * strength * gap) / max(1.0, gradient(theta) ** 2)


@inequality(
    domain={"flat": (0, 2), "steep": (0.1, 2), "x": (-3, 3), "y": (-3, 3)},
    settings=grid(flat=[0.0, 1.0], steep=[1.0], x=[1.0], y=[1.0]),
    control={"factor": 1.0},
    obligations=["theta* is the optimum nearest to theta (Karimi, Nutini and Schmidt, Theorem 2)"],
    examples=60,
)
def quadratic_growth(flat: float, steep: float, x: float, y: float, factor: float = 0.5) -> float:
    """L − L* − (μ/2) dist² for ½(a x² + b y²), a = 0 or more: μ is the smallest curvature that is not 0.

    The distance is that to the set of optima, the line y = 0 where a = 0.
    """
    flat = 0.0 if flat < 0.05 else flat
    curvature = min(flat, steep) if flat else steep
    return (flat * x * x + steep * y * y) / 2 - factor * curvature * ((x * x if flat else 0.0) + y * y)


@shown(control={"flat": Fraction(1)}, pair="one record x = (1, 0), y = 0; θ = (0, 1) against the optimum (0, 0)")
def fixed_optimum(flat: Fraction = Fraction(0)) -> Shown:
    """Loss ½(θ·x − y)², PL with μ = 1, its second curvature `flat`: both sides of (3) for one chosen optimum."""
    value, growth = flat / 2, Fraction(1, 2)
    routes = {"loss": value, "half the squared gradient, which PL bounds it by": flat**2 / 2}
    return compared(">=", "L - L*", routes, {"mu/2 times the squared distance to the chosen optimum": growth})


@shown(control={"hidden": False}, pair="D = {(1, +), (−1, −)}, the zero weights against weights of 1")
def network_is_pl(hidden: bool = True) -> Shown:
    """Cross entropy of the network v·tanh(wx) at v = w = 0: its gradient and a better point; the control is wx."""

    def loss(v: Any, w: Any) -> Any:
        outputs = [v * mpmath.tanh(w * x) if hidden else w * x for x in (1, -1)]
        return (mpmath.log1p(mpmath.exp(-outputs[0])) + mpmath.log1p(mpmath.exp(outputs[1]))) / 2

    with mpmath.workdps(30):
        slopes = [float(mpmath.diff(loss, (0, 0), orders)) for orders in ((1, 0), (0, 1))]
        gap = float(loss(0, 0) - loss(1, 1))
    # s(0) = 1/2, so dL/dv = −½ Σ y tanh(0)/n = 0 and dL/dw = −½ Σ y x v/n = 0 at v = 0
    by_hand = [0.0, 0.0] if hidden else [0.0, -0.5]
    agree = all(abs(slope - hand) < 1e-12 for slope, hand in zip(slopes, by_hand, strict=True))
    holds = max(map(abs, slopes)) > 1e-6 if agree else None
    reason = f"the gradient at the zero weights is {slopes}, and the loss there is {gap:.4g} above another's"
    return Shown(holds, reason, gap, {"hidden layer": hidden}, {"numerical derivatives": slopes, "by hand": by_hand})


# ---- Lemma 1 ----


@shown(control={"data": (0, 1)}, pair="D = (0), z a fair coin, the algorithm that answers 0 whatever D is")
def lemma_1(data: tuple[int, ...] = (0,)) -> Shown:
    """The stability of a constant algorithm is 0; its generalisation error for one D (the control: both D in turn)."""
    error = risk(Fraction(0), (0, 1)) - sum(risk(Fraction(0), (z,)) for z in data) / len(data)
    routes = {"risks": error, "losses one by one": (Fraction(1, 2) - Fraction(sum(data), len(data))) / 2}
    return compared("<=", "the generalisation error", routes, {"the stability": 0})


@shown(control={"share": Fraction(1, 8)}, pair="1 to 12 throws of a fair coin; one of them changed")
def lemma_1_over_datasets(share: Fraction = Fraction(1)) -> Shown:
    """E over D of the generalisation error of the mean against `share` of the largest change of a loss, enumerated."""
    margins = []
    for size in range(1, 13):
        found = expectations(size, HALF, Fraction(0))
        means = [Fraction(ones, size) for ones in range(size + 1)]
        neighbours = [(a, b) for a in means for b in means if abs(a - b) == Fraction(1, size)]
        stability = max(abs((a - z) ** 2 - (b - z) ** 2) / 2 for a, b in neighbours for z in (0, 1))
        error = found["population"] - found["empirical"]
        margins.append((share * stability - error) / error)
    least = float(min(margins))
    return Shown(least >= 0, f"the smallest margin over the error is {least:.4g}", least, {"sizes": 12})


# ---- Lemma 2, and (6) to (9) ----


def _value(theta: float, label: float, ridge: float) -> float:
    """ℓ = λ(θ − y)²/2 + (1 − λ) ln(1 + e^θ), of smoothness λ + (1 − λ)/4."""
    return ridge * (theta - label) ** 2 / 2 + (1 - ridge) * math.log1p(math.exp(theta))


@inequality(
    domain={"theta": (-20, 20), "label": (-3, 3), "ridge": (0, 1)},
    settings=grid(theta=[1.0, 3.0], label=[0.0], ridge=[0.0, 1.0]),
    control={"factor": 1.0},
    tolerance=1e-9,
    obligations=["the loss is nowhere negative, and smooth on the whole space, not on a ball only"],
    examples=80,
)
def self_bounding(theta: float, label: float, ridge: float, factor: float = 2.0) -> float:
    """2Lℓ − |∇ℓ|²."""
    gradient = ridge * (theta - label) + (1 - ridge) / (1 + math.exp(-theta))
    return factor * (ridge + (1 - ridge) / 4) * _value(theta, label, ridge) - gradient**2


@shown(control={"shift": Fraction(0)})
def lemma_2(shift: Fraction = Fraction(1)) -> Shown:
    """Lemma 2 for ℓ = θ²/2 − `shift` at θ = 1, where L = 1 and the gradient is 1, by a central difference too."""
    losses = [Fraction(theta**2, 2) - shift for theta in (0, 1, 2)]
    routes = {"central difference, squared": (losses[2] - losses[0]) ** 2 / 4, "θ²": 1}
    return compared("<=", "the squared gradient", routes, {"2L times the loss": 2 * losses[1]})


@inequality(
    domain={"theta": (-10, 10), "other": (-10, 10), "label": (-3, 3), "ridge": (0, 1), "tau": (1e-3, 1e3, "log")},
    settings=by_rows("theta other label ridge tau", (1.0, 1.5, 0.0, 1.0, 1.0), (2.0, 2.1, 0.0, 0.0, 0.01)),
    control={"keep": 0.0},
    tolerance=1e-9,
    obligations=["the loss is nowhere negative (Lemma 2)"],
    examples=100,
)
def equation_6(theta: float, other: float, label: float, ridge: float, tau: float, keep: float = 1.0) -> float:
    """Lℓ(θ)/τ + (τ + L)/2 |θ' − θ|² − (ℓ(θ') − ℓ(θ))."""
    smooth, here = ridge + (1 - ridge) / 4, _value(theta, label, ridge)
    return keep * smooth * here / tau + (tau + smooth) / 2 * (other - theta) ** 2 - _value(other, label, ridge) + here


_BOTH = [((a, b), (a, c)) for a in (0, 1) for b in (0, 1) for c in (0, 1)]


@shown(control={"pairs": _BOTH}, pair="D = (0, 0) and D' = (0, 1), one noise-free step at α = 1 from 0")
def equation_8(pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]] = (((0, 0), (0, 1)),)) -> Shown:
    """Both sides of (8), squared, for one pair; the control takes the mean over exchangeable D and D'.

    Left: |θ_i − θ_i*| + |θ* − θ|; right: the constant 8/μ times L(θ_1; D) − L*. In expectation both excesses have one
    mean, and E(a + b)² <= 2E a² + 2E b² gives the squares that Theorem 2 needs.
    """
    left, right, again = [], [], []
    for data, other in pairs:
        for index in (0, 1):
            best, best_other = Fraction(sum(data), 2), Fraction(sum(other), 2)
            left.append((abs(other[index] - best_other) + abs(best - data[index])) ** 2)
            right.append(8 * (risk(Fraction(data[index]), data) - risk(best, data)))
            again.append(4 * (data[index] - best) ** 2)  # the excess of a quadratic is half the squared distance
    moved, bound, other_bound = (sum(side, Fraction(0)) / len(side) for side in (left, right, again))
    routes = {"by risks": bound, "by distances": other_bound}
    return compared(">=", "the squared right side", routes, {"the squared left side": moved})


@formula(
    settings=grid(first=[Fraction(0), Fraction(1), Fraction(1, 7)], second=[Fraction(-1), Fraction(5, 6)]),
    control={"sign": -1},
)
def equation_9(first: Fraction, second: Fraction, sign: int = 1) -> tuple[Fraction, Fraction]:
    """The right side of (9) before its bound, and L(θ_i*; D) − L(θ*; D)."""
    common = [Fraction(1, 3), Fraction(-2, 5)]
    data, other = [*common, first], [*common, second]
    best, moved = sum(data, Fraction(0)) / 3, sum(other, Fraction(0)) / 3
    old = risk(moved, [first]) - risk(best, [first])
    new = risk(best, [second]) - risk(moved, [second])
    return old / 3 + sign * new / 3 + risk(moved, other) - risk(best, other), risk(moved, data) - risk(best, data)


# ---- (7), Theorems 2 and 3 ----


@inequality(
    domain={"coin": (0, 1), "rate": (0, 1), "tau": (1e-4, 1e4, "log"), "records": (1, 200, "whole")},
    settings=by_rows("coin rate tau records", (0.5, 0.0, 1.0, 100), (0.5, 0.0, 1e-3, 100), (0.1, 1.0, 5.0, 20)),
    control={"keep": 0.0},
    obligations=[*_NEEDS, "for (7) on-average stability; a supremum over z would not give L(theta; D)"],
    examples=40,
)
def in_expectation(coin: float, rate: float, tau: float, records: int, statement: str, keep: float = 1.0) -> float:
    """The right side of a statement at this τ less its left side, in expectation over D and the algorithm.

    In (7) |θ_i − θ|² is over a record and its replacement, one index chosen in both runs.
    """
    found = expectations(records, coin, rate)
    excess, gap = found["empirical"] - found["least"], found["population"] - found["empirical"]
    if statement == "equation 7":
        moved = ((1 - rate) / records + rate) ** 2 / records + (1 - 1 / records) * ((1 - rate) / records) ** 2
        bound = keep * found["empirical"] / tau + (tau + 1) / 2 * 2 * coin * (1 - coin) * moved
    elif statement == "theorem 2":
        bound = 8 * (tau + 1) * (excess + 2 / records**2) + keep * found["empirical"] / tau
    else:
        bound = (tau + 1) * ((8 * tau + 1) / tau * excess + keep * 16 / records**2) + keep * found["least"] / tau
        gap = found["excess"]
    return float(bound - gap)


@shown(control={"over_datasets": True}, pair="ten zeros thrown with a fair coin, the algorithm their optimum 0")
def theorem_2_expectation(records: int, over_datasets: bool = False) -> Shown:
    """Theorem 2 for one D of zeros (the control: the mean over D), where the excess is 0 and L_P(0) = 1/4."""
    found = expectations(records, 0.5, 0.0) if over_datasets else {"population": 0.25, "empirical": 0.0}
    gap, slope = found["population"] - found["empirical"], 16 / records**2

    def bound(log: float) -> float:
        return float(slope * (math.exp(log) + 1) + found["empirical"] / math.exp(log))

    least = minimize_scalar(bound, bounds=(-40, 20), method="bounded").fun
    routes = {"infimum in closed form": slope + 2 * math.sqrt(slope * found["empirical"]), "searched": least}
    return compared(">=", "the bound", routes, {"the generalisation error": gap})


# ---- (10) and the algebra of Theorem 3 ----


@formula(
    settings=[{"records": 3, "coin": 0.5, "rate": 0.5}, {"records": 20, "coin": 0.1, "rate": 1.0}],
    control={"sign": -1},
    digits=11,
)
def equation_10(records: int, coin: float, rate: float, sign: int = 1) -> tuple[float, float]:
    """The sum of the three parts, and the excess population risk as ½E(θ − p)²."""
    found = expectations(records, coin, rate)
    parts = found["population"] - found["empirical"], found["empirical"] - found["least"]
    return parts[0] + sign * parts[1] + found["least"] - found["best"], found["excess"]


@inequality(
    domain={"coin": (0, 1), "records": (1, 200, "whole")},
    settings=[{"coin": 0.5, "records": 2}, {"coin": 0.05, "records": 50}],
    control={"unlucky": True},
    obligations=["in expectation over D, as (10) has it; for a single D it can fail"],
    examples=40,
)
def part_c(coin: float, records: int, unlucky: bool = False) -> float:
    """min L_P − E[L*]; the control takes the D of which L* is the largest."""
    found, half = expectations(records, coin, 0.0), records // 2 / records
    return float(found["best"] - (half * (1 - half) / 2 if unlucky else found["least"]))


@formula(
    settings=grid(tau=[Fraction(1, 10), Fraction(1), Fraction(30)], excess=[Fraction(1, 7), Fraction(3)]),
    control={"less": 1},
)
def theorem_3_algebra(tau: Fraction, excess: Fraction, less: int = 0) -> tuple[Fraction, Fraction]:
    """Theorem 3's right side, and Theorem 2's with the excess empirical risk added, at some L, μ, G, n and E[L*]."""
    smooth, strength, steep, size, least = map(Fraction, ("3/2", "1/4", "2", "50", "1/9"))
    inner = (8 * tau + strength) / (strength * tau) * excess + 16 * steep**2 / (size * strength) ** 2
    general = (tau + smooth) * (8 * excess / strength + 16 * steep**2 / (size * strength) ** 2)
    summed = general + smooth * (excess + least) / tau + (1 - less) * excess
    return (tau + smooth) * inner + smooth / tau * least, summed


# ---- (4) and the rates ----


@shown(control={"rows": (HALF, HALF)}, pair="D = (0, 1), θ_t = 1/2, noise of variance 1/100")
def equation_4(rows: tuple[Fraction | int, ...] = (0, 1)) -> Shown:
    """Both sides of (4), exactly; the control has two equal records, whose gradients do not differ."""
    variance, size = Fraction(1, 100), len(rows)
    # E over b: (z − b) has the second moment of z plus the variance, so L(z − b) is L(z) + variance/2
    change = sum((risk(Fraction(z), rows) for z in rows), Fraction(0)) / size + variance / 2 - risk(HALF, rows)
    gradient = sum((HALF - z for z in rows), Fraction(0)) / size
    bound = -(gradient**2) / 2 + variance / 2
    spread = sum(((HALF - z - gradient) ** 2 for z in rows), Fraction(0)) / size
    again = bound + spread / 2  # smoothness with equality: −‖∇L‖² + ½(‖∇L‖² + the gradient's variance + σ²)
    routes = {"enumerated": change, "with the variance of the chosen gradient": again}
    return compared("<=", "the expected change", routes, {"the printed bound": bound})


@formula(
    settings=[{"dimensions": 1, "variance": "0.25"}, {"dimensions": 14, "variance": "4"}],
    control={"each": False},
)
def noise_energy(dimensions: int, variance: Any, each: bool = True) -> tuple[Any, Any]:
    """mσ², and E‖b‖² by quadrature, coordinate by coordinate; the control has σ²."""
    deviation = mpmath.sqrt(variance)
    one = mpmath.quad(lambda x: x * x * mpmath.npdf(x, 0, deviation), [-12 * deviation, 0, 12 * deviation])
    return (dimensions if each else 1) * variance, dimensions * one


@inequality(
    domain={"ratio": (0.01, 1, "log"), "steps": (1, 500, "whole")},
    settings=by_rows("ratio steps", (1.0, 1), (0.1, 12)),
    control={"less": 1.0},
    examples=60,
)
def geometric_sum(ratio: float, steps: int, less: float = 0.0) -> float:
    """(1/x − Σ_{i<T} (1 − x)^i) x with x = μ/L, the sum term by term; the control has 1/x − 1."""
    return 1 - ratio * (math.fsum((1 - ratio) ** i for i in range(steps)) + less)


@shown(control={"rate": 0}, pair="n throws of a coin, fair or with P(z = 1) = 1/n; SGD without noise at rate 1/L")
def over_the_rate(risk: str, noisy: bool, epsilon: float = 1.0, delta: float = 1e-5, rate: int = 1) -> Shown:
    """Refuted where the excess over a printed rate, without its constant, grows by 5 and more from n to n.

    `empirical`: E[L(θ_T) − L*], a fair coin, Theorem 1, or Theorem 6 with k = 1 where `noisy`. `population`:
    E[L_P(θ_T)] − min L_P over the printed minimum at m = ε = 1, or that of Theorem 7 with k = 1; E[L*] is at most
    1/(2n), as Remark 4 assumes. θ_T = z_T leaves half the coin's variance; θ* (the control) nothing, or 1/n of it. At
    n = 100 the excess is enumerated in rationals as well.
    """
    sizes = (10**2, 10**4, 10**6, 10**8)
    if risk == "empirical":
        rates = [pidp_sgd(n, 1, epsilon, 1) if noisy else dp_sgd(n, 1, epsilon) for n in sizes]
        rates = [math.log(1 / delta) * math.log(n) * one for n, one in zip(sizes, rates, strict=True)]
        excess, found = [rate * (n - 1) / (8 * n) for n in sizes], expectations(100, HALF, Fraction(rate))
        exact = float(found["empirical"] - found["least"])
    else:
        rates = [min(pidp_terms(n, 1, 1, 1) if noisy else dp_terms(n, 1, 1)) for n in sizes]
        excess = [(1 - 1 / n) / (2 * n) / (1 if rate else n) for n in sizes]
        exact = float(expectations(100, Fraction(1, 100), Fraction(rate))["excess"])
    ratios = [one / other for one, other in zip(excess, rates, strict=True)]
    grows = all(after > 5 * before for before, after in itertools.pairwise(ratios))
    reason = (
        f"the excess over the printed rate is {', '.join(f'{ratio:.3g}' for ratio in ratios)} at n = 10^2, 10^4, ..."
    )
    routes = {"closed form": dict(zip(map(str, sizes), excess, strict=True)), "enumerated at n = 100": exact}
    agree = abs(exact - excess[0]) < 1e-12
    return Shown(not grows if agree else None, reason, ratios[-1], {"n": sizes, "excess_over_rate": ratios}, routes)
