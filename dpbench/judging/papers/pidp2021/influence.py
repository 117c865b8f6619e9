"""The influence function: equations (11) to (14), Theorem 4, and the privacy of the contributions c_t.

Of the latter Lemma 3, Remark 6 and the first part of the proof of Theorem 5.

| paper | here |
| --- | --- |
| n, r, w | number of records, the index of the removed one, `weights` |
| θ̂(w; D), θ*, θ*_−z | `optimum(weights)`, with all weights 1, with one weight 0 |
| c_t | `influence` |
| G, L, C, ζ, E | Lipschitz constant, smoothness, Hessian-Lipschitz constant, curvature, error |
| σ_(c), c', ε₂, δ₂, R, n | `noise`, `constant`, `epsilon`, `delta`, `rounds`, `records` |

For the formulas the loss is that of logistic regression with labels ±1 and a ridge, ln(1 + e^(−yxθ)) + λθ²/2: optima
are roots of the weighted gradient, found numerically, and derivatives in the weights are numerical derivatives of those
roots, so nothing there uses the formulas that are judged. Counterexamples are quadratics in rationals.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
from flint import arb, ctx
from scipy.optimize import brentq

from dpbench.judging.claims.claim import Printed
from dpbench.judging.claims.judges import Shown, bound, formula, grid, inequality, number, shown
from dpbench.judging.papers.mathematics import (
    by_rows,
    compared,
    ends,
    gaussian_noise,
    hockey_stick,
    largest,
    upper_tail,
)

Quadratic = tuple[Fraction | int, Fraction | int]  # h and z of a record's loss (h/2)(θ − z)²

# ---- quadratics, exactly ----


def optimum(rows: Sequence[Quadratic], weights: Sequence[Fraction | int] | None = None) -> Fraction:
    """θ̂(w; D), with all weights 1 where none are given."""
    weighed = [(w * h, z) for w, (h, z) in zip(weights or [1] * len(rows), rows, strict=True)]
    return Fraction(sum(h * z for h, z in weighed)) / Fraction(sum(h for h, _ in weighed))


def influence(
    rows: Sequence[Quadratic], at: Fraction | int, index: int, damping: Fraction | int = 0
) -> tuple[Fraction, Fraction]:
    """H⁻¹∇ℓ/n of one record at a model: from (11), and from differences of the losses, which are exact for quadratics.

    `damping` is added to H, as Remark 5 proposes.
    """
    (h, z), size = rows[index], len(rows)
    by_formula = Fraction(h) * (at - z) / (sum(h for h, _ in rows) + size * damping)

    def loss(row: Quadratic, step: int) -> Fraction:
        return Fraction(row[0]) * (at + step - row[1]) ** 2 / 2

    slope = (loss(rows[index], 1) - loss(rows[index], -1)) / 2
    bend = sum((loss(row, 1) - 2 * loss(row, 0) + loss(row, -1) for row in rows), Fraction(0)) / size
    return by_formula, slope / (bend + damping) / size


def in_the_plane(flat: Fraction, labels: Sequence[int]) -> tuple[Any, Any]:
    """Features and labels of three records x = (1, 0), y = 0 and some x = (0, s), y = `labels` s; loss ½(x·θ − y)².

    H = diag(3, s² for every label)/n: its spectral norm is 3/n, its least eigenvalue far below.
    """
    s = float(flat)
    features = np.array([[1.0, 0.0]] * 3 + [[0.0, s]] * len(labels))
    return features, np.array([0.0] * 3 + [label * s for label in labels])


# ---- (11) to (13) ----

ROWS = ((1.0, 1), (0.5, -1), (0.75, 1), (0.25, -1), (1.0, -1))  # features and labels
_N = len(ROWS)


def _share(theta: Any, ridge: float, order: int, *indices: int) -> Any:
    """What some records (none named: all) add to a derivative of the average loss; from the first one, numerically."""

    def first(t: Any) -> Any:
        return sum(x / (1 + mpmath.exp(-x * t)) - x * (y == 1) + ridge * t for x, y in (ROWS[i] for i in indices)) / _N

    indices = indices or tuple(range(_N))
    return mpmath.diff(first, theta, order - 1)


def _weighted(ridge: float, more: Mapping[int, Any]) -> Any:
    """The optimum with weights 1, but for some more on some records."""
    return mpmath.findroot(
        lambda t: _share(t, ridge, 1) + sum(weight * _share(t, ridge, 1, i) for i, weight in more.items()), 0
    )


@formula(settings=grid(index=[0, 1, 4], ridge=[0.05, 0.5]), control={"sign": -1}, digits=10)
def first_order(index: int, ridge: float, equation: int, sign: int = 1) -> tuple[Any, Any]:
    """(11), (12) or (13) as printed, and by dθ̂/dw at w = 1 from central differences of the optimum."""
    theta, step = _weighted(ridge, {}), mpmath.mpf(10) ** -12
    derivative = (_weighted(ridge, {index: step}) - _weighted(ridge, {index: -step})) / (2 * step)
    slope, hessian = _share(theta, ridge, 1, index), _share(theta, ridge, 2)
    printed, true = {
        11: (-(-slope / hessian), -derivative),
        12: (slope, -hessian * derivative),
        13: (-slope / hessian, derivative),
    }[equation]
    return sign * printed, true


@formula(
    settings=by_rows("index other ridge", (0, 1, 0.05), (2, 4, 0.5), (3, 3, 0.05), (3, 3, 0.5)),
    control={"sign": 1},
    digits=8,
)
def second_derivative(index: int, other: int, ridge: float, sign: int = -1) -> tuple[Any, Any]:
    """−H⁻¹ (Hⁱ θ_j + Hʲ θ_i + T θ_i θ_j), and mixed central differences of the optimum."""
    theta, step = _weighted(ridge, {}), mpmath.mpf(10) ** -9
    hessian = _share(theta, ridge, 2)
    move_i, move_j = (-_share(theta, ridge, 1, at) / hessian for at in (index, other))
    part_i, part_j = (_share(theta, ridge, 2, at) for at in (index, other))
    printed = sign * (part_i * move_j + part_j * move_i + _share(theta, ridge, 3) * move_i * move_j) / hessian

    def at(first: int, second: int) -> Any:
        both = (first + second) * step
        return _weighted(ridge, {index: both} if index == other else {index: first * step, other: second * step})

    return printed, (at(1, 1) - at(1, -1) - at(-1, 1) + at(-1, -1)) / (4 * step**2)


# ---- (14) ----


@shown(control={"share": Fraction(1, 2)}, pair="the losses (a/2)(θ − 1)² and ½θ² with a = 1/10; the first taken out")
def equation_14(share: Fraction = Fraction(1)) -> Shown:
    """θ̂(0) − θ̂(1) + θ̂'(1) of θ̂(w) = wa/(wa + 1) against all values of θ̂''(w), w in [0, 1], times `share`.

    θ̂'' = −2a²/(wa + 1)³ is monotone. The corrected formula has the share 1/2.
    """
    a = Fraction(1, 10)
    remainder = a / (a + 1) ** 2 - a / (a + 1)
    low, high = sorted(float(share * -2 * a**2 / (w * a + 1) ** 3) for w in (0, 1))
    integral = mpmath.quad(lambda w: w * -2 * mpmath.mpf("0.01") / (w / 10 + 1) ** 3, [0, 1])
    reason = f"the remainder is {float(remainder):.6g}, the second derivative lies in [{low:.6g}, {high:.6g}]"
    routes = {"rationals": float(remainder), "integral form of the remainder": float(integral)}
    return Shown(low <= remainder <= high, reason, float(remainder), {"range": [low, high]}, routes)


@shown(control={"kept": 0, "removed": -1})
def weight_change(kept: int = -1, removed: int = 0) -> Shown:
    """The entries of w − 1 for n = 4, r = 2, where w leaves out r; printed: `removed` at r and `kept` elsewhere."""
    true = [w - 1 for w in (1, 1, 0, 1)]
    printed = [removed if j == 2 else kept for j in range(4)]
    routes = {"difference of the weights": true, "minus a unit vector": [-int(j == 2) for j in range(4)]}
    return Shown(printed == true, f"the entries are {true}, the printed rule gives {printed}", str(true), {}, routes)


# ---- Theorem 4 ----


def _logistic(theta: float) -> float:
    return 1 / (1 + math.exp(-theta))


@shown(control={"more": 3}, pair="logistic loss, x = 1, labels +, +, −; the − taken out")
def theorem_4(radius: float, more: int = 0) -> Shown:
    """The error of the influence against the bound, in balls: θ* = ln 2, H = 2/9; the left-out optimum is r.

    With the paper's G = 1, L = 1/4 and C = 1/(6√3) (Remark 1) and ζ = H. The control has `more` times two + and one −,
    which keeps the optimum inside.
    """
    positives, negatives, size = 2 + 2 * more, 1 + more, 3 + 3 * more
    with ctx.workprec(256):
        share = arb(positives) / size
        curvature = share * (1 - share)
        left = (arb(positives) / (negatives - 1)).log() if negatives > 1 else arb(radius)
        error = abs(left - (arb(positives) / negatives).log() - share / curvature / size)
        bound = (arb(1) / 2 + 1 / (6 * arb(3).sqrt()) / curvature) / (curvature * size) ** 2
        errors, bounds, margin = ends(error), ends(bound), ends(bound - error)

    def best(minus: int) -> Any:
        """Where the gradient of two terms stops being negative."""
        return largest(lambda t: minus * _logistic(t) <= positives * _logistic(-t), -radius, radius)

    theta = best(negatives)
    again = abs(best(negatives - 1) - theta - 1 / (1 - _logistic(theta)) / size)
    doubtful = margin[0] < 0 <= margin[1] or abs(again - errors[0]) > 1e-9 * again
    reason = f"the error is {errors[0]:.6g}, the bound {bounds[1]:.6g}"
    routes = {"balls": {"error": errors, "bound": bounds}, "error, optima by halving": again}
    return Shown(None if doubtful else margin[0] >= 0, reason, errors[0], {"records": size, "radius": radius}, routes)


@shown(control={"least": True}, pair="x = (1, 0), y = 0 three times, x = (0, s), y = ±s with s = 1/10; the last out")
def theorem_4_norm(least: bool = False) -> Shown:
    """Error and bound with ζ the spectral norm of H (the control: the least eigenvalue); C = 0, L = 1, |θ| <= 1.

    Removing the last record moves θ₂ from 0 to 1, the influence says 1/2. G is 1, the largest gradient on the ball.
    """
    s, size = Fraction(1, 10), 5
    curvature = 2 * s * s / size if least else Fraction(3, size)
    rows = ((s * s, 1), (s * s, -1))  # the second coordinate, which the other records do not enter
    error = abs(optimum(rows, (1, 0)) - optimum(rows) - influence(rows, optimum(rows), 1)[0])
    bound = 2 / (curvature * size) ** 2
    x, y = in_the_plane(s, (1, -1))
    best, left = (np.linalg.lstsq(x[:kept], y[:kept], rcond=None)[0] for kept in (5, 4))
    again = np.abs(left - best - np.linalg.solve(x.T @ x, (x[4] @ best - y[4]) * x[4])).max()
    return compared("<=", "the error", {"rationals": error, "least squares": again}, {"the bound": bound})


@shown(control={"damping": 0}, pair="(h/2)(θ − z)², h = 1/100: 999 zeros and one z = 1, which is taken out")
def remark_5(damping: int = 1) -> Shown:
    """Remark 5 adds ζ = 1 to h in H: the error of c, and Theorem 4's bound at ζ (the control: nothing, and ζ = h).

    L = h + ζ, G = h (the parameters lie in [0, 1]), C = 0.
    """
    h, size = Fraction(1, 100), 1000
    rows = [(h, 0)] * (size - 1) + [(h, 1)]
    best, moved = optimum(rows), optimum(rows, [1] * (size - 1) + [0]) - optimum(rows)
    error, again = (abs(moved - predicted) for predicted in influence(rows, best, size - 1, damping))
    bound = 2 * (h + damping) * h / (size * (damping or h)) ** 2
    routes = {"equation (11)": error, "differences of the losses": again}
    return compared("<=", "the error", routes, {"the bound at the added zeta": bound})


def _exchange(ridge: float, logistic: float, spread: float, size: float) -> tuple[float, float, float, float]:
    """Both optima, the gradient of the record that goes at the first, and G, for λ(θ − a_i)²/2 + κ ln(1 + e^(−y_i θ)).

    One record has a = spread and y = 1; it goes, or becomes one of the other n − 1, which have a = 0 and y = −1. The
    parameter space is the hull of both optima, and G is the largest gradient of any record on it.
    """

    def slope(theta: float, label: int, centre: float) -> float:
        return ridge * (theta - centre) - label * logistic / (1 + math.exp(label * theta))

    def gradient(theta: float, weight: float) -> float:
        return weight * slope(theta, 1, spread) + (size - 1) * slope(theta, -1, 0.0)

    wide = spread + logistic / ridge + 1
    theta, left = (brentq(gradient, -wide, wide, args=(w,), xtol=1e-15, rtol=1e-14) for w in (1.0, 0.0))
    steepest = max(abs(slope(at, y, a)) for at in (theta, left) for y, a in ((1, spread), (-1, 0.0)))
    return theta, left, slope(theta, 1, spread), steepest


_exchanged = functools.partial(
    inequality,
    domain={"ridge": (0.01, 1, "log"), "logistic": (0, 1), "spread": (0.1, 5, "log"), "size": (2, 70000, "log")},
    settings=by_rows("ridge logistic spread size", (0.1, 0.0, 1.0, 20.0), (0.1, 1.0, 1.0, 45222.0)),
    examples=50,
)


@_exchanged(
    control={"factor": 0.5},
    tolerance=1e-6,
    obligations=["one optimum, or the nearest one: see the fixed optimum of (3)"],
)
def optimum_shift(ridge: float, logistic: float, spread: float, size: float, factor: float = 4.0) -> float:
    """1 − |θ_i* − θ*| over 4G/(nμ); μ = λ, as the losses are λ-strongly convex."""
    theta, left, _, steepest = _exchange(ridge, logistic, spread, size)
    return 1 - abs(left - theta) * size * ridge / (factor * steepest)


@_exchanged(
    control={"factor": 0.25},
    tolerance=1e-4,
    obligations=[
        "the smallest eigenvalue of the weighted Hessian is at least zeta on the whole path, not at theta* only",
        "both optima lie inside the parameter space",
    ],
)
def theorem_4_strongly_convex(ridge: float, logistic: float, spread: float, size: float, factor: float = 1.0) -> float:
    """(factor · bound − E) / bound; ζ = λ holds everywhere, L = λ + κ/4, C = κ/(6√3)."""
    theta, left, predicted, steepest = _exchange(ridge, logistic, spread, size)
    s = _logistic(theta)
    error = abs(left - theta - predicted / (ridge + logistic * s * (1 - s)) / size)
    smooth, third = ridge + logistic / 4, logistic / (6 * math.sqrt(3))
    return factor - error * (ridge * size) ** 2 / (2 * smooth * steepest + third * steepest**2 / ridge)


# ---- Lemma 3: σ = sqrt(2 ln(1.25/δ)) S / ε, printed without a condition on ε ----


def _ball_delta(epsilon: Any, noise: Any) -> Any:
    """δ at ε of N(1, s²) against N(0, s²) in balls."""
    near, far = (sign / (2 * noise) + epsilon * noise for sign in (-1, 1))
    return upper_tail(near) - epsilon.exp() * upper_tail(far)


def _lemma_3_enclosed(epsilon: float, delta: float) -> tuple[float, float]:
    with ctx.workprec(256):
        noise = (2 * (arb("1.25") / arb(delta)).log()).sqrt() / arb(epsilon)
        return ends(1 - _ball_delta(arb(epsilon), noise) / arb(delta))


lemma_3 = inequality(
    domain={"epsilon": (0.0025, 40, "log"), "delta": (1e-12, 0.1, "log")},
    settings=grid(epsilon=[0.75, 0.0025], delta=[1e-5]),
    control={"epsilon": 1.0},
    tolerance=1e-9,
    enclosure=_lemma_3_enclosed,
)(gaussian_noise.function)


# ---- the sensitivity and the noise of the proof ----


@inequality(
    domain={"first": (-1, 1), "second": (-1, 1), "curvature": (1e-3, 1, "log"), "extra": (0, 1), "other": (0, 1)},
    settings=[{"first": 1.0, "second": -1.0, "curvature": 1.0, "extra": 0.0, "other": 0.0}],
    control={"factor": 1.0},
    obligations=["the smallest eigenvalue of both Hessians is at least zeta", "gradients at most G at theta_r"],
    examples=60,
)
def sensitivity_least_eigenvalue(
    first: float, second: float, curvature: float, extra: float, other: float, factor: float = 2.0
) -> float:
    """2G/(nζ) less |c(D) − c(D')| times n: gradients are shares of G = 1, Hessians at least ζ."""
    return factor / curvature - abs(first / (curvature + extra) - second / (curvature + other))


@shown(control={"least": True}, pair="x = (1, 0), y = 0 three times and x = (0, s), y = s against −s; s = 1/1000")
def sensitivity(least: bool = False) -> Shown:
    """|c_t(D) − c_t(D')| at θ_r = 0 and 2G/(nζ), ζ the spectral norm of H (the control: the least eigenvalue).

    The loss is ½(x·θ − y)² with |θ| <= 1: G is 1. By the second coordinate alone, and by normal equations in doubles.
    """
    s = Fraction(1, 1000)
    predicted = [influence([(s * s, label)], 0, 0)[0] for label in (1, -1)]
    moved, allowed = abs(predicted[0] - predicted[1]), 2 / (s * s if least else Fraction(3))
    sides = [np.linalg.solve(x.T @ x, -y[-1] * x[-1]) for x, y in (in_the_plane(s, (label,)) for label in (1, -1))]
    routes = {"rationals": moved, "normal equations": np.abs(sides[0] - sides[1]).max()}
    return compared("<=", "with n = 4 and H = diag(3, s^2)/4 the move", routes, {"2G/(n zeta)": allowed})


@shown(control={"at": Fraction(1, 3)}, pair="½(θ − z)², the records 0, 0, 1, of which the 1 goes")
def current_model(at: Fraction = Fraction(1)) -> Shown:
    """c_t of the 1 at θ_r = 1, where its loss is least, and the first-order move of the optimum (11); θ* = 1/3."""
    rows: list[Quadratic] = [(1, 0), (1, 0), (1, 1)]
    predicted, promised = influence(rows, at, 2)[0], influence(rows, optimum(rows), 2)[0]
    step = Fraction(1, 10**6)
    derivative = (optimum(rows, (1, 1, 1 - step)) - optimum(rows, (1, 1, 1 + step))) / (2 * step)
    routes = {"equation (11)": promised, "derivative of the optimum": derivative}
    return compared("==", "the first-order move of the optimum", routes, {f"c_t at theta_r = {at}": predicted})


@shown(control={"second": (1, 0)}, pair="½(y − θx)², (x, y) = (1, 1), (1, 0), (1, 1), the last against (1/2, 1)")
def one_hessian(second: Quadratic = (Fraction(1, 4), 2)) -> Shown:
    """c_t(D) − c_t(D') at 0 of the exchanged record, and H⁻¹ times the difference of its gradients; control: y = 0."""
    sides, again = zip(*(influence([(1, 1), (1, 0), last], 0, 2) for last in ((1, 1), second)), strict=True)
    left, display = sides[0] - sides[1], (Fraction(second[0]) * second[1] - 1) / 3  # H of D is 1, a gradient −hz
    routes = {"equation (11)": left, "differences of the losses": again[0] - again[1]}
    return compared("==", "the left side", routes, {"the right side": display})


@shown(control={"second": 1}, pair="½(y − θx)², (x, y) = (1, 1), (1, 0), (1, 0), the last against (1/2, 0)")
def other_records(second: Fraction | int = Fraction(1, 4)) -> Shown:
    """The contribution of the first record, which both have, at θ̃ = 0 under D and under D'."""
    (predicted, again), (other, _) = (influence([(1, 1), (1, 0), (last, 0)], 0, 0) for last in (1, second))
    routes = {"equation (11)": predicted, "differences of the losses": again}
    return compared("==", "the contribution of an unchanged record under D", routes, {"under D'": other})


@shown(control={"old": Fraction(1, 2), "new": Fraction(-1, 2)}, pair="1/2 and −1/2 four times each, 0; 0 against 1")
def exchange(old: Fraction = Fraction(0), new: Fraction = Fraction(1)) -> Shown:
    """Loss ½(θ − z)²: the move of the optimum when `old` becomes `new`, and twice the contribution of `old`."""
    common: list[Quadratic] = [*((1, Fraction(sign, 2)) for sign in (1, -1) * 4), (1, -old)]
    before, after = optimum([*common, (1, old)]), optimum([*common, (1, new)])
    own, moved = influence([*common, (1, old)], before, 9)[0], after - before
    routes = {"optima": abs(moved), "the record's share": abs(new - old) / 10}
    return compared("<=", "the move of the optimum", routes, {"twice the record's own contribution": 2 * abs(own)})


def _lemma_3_noise(rounds: int, epsilon: Any, delta: Any = "1e-5") -> Any:
    """Lemma 3's noise for (ε/R, δ/R) at sensitivity 2, its root solved from 1.25 e^(−c²/2) = δ/R."""
    target = mpmath.mpf(delta) / rounds
    return mpmath.findroot(lambda c: mpmath.log("1.25") - c * c / 2 - mpmath.log(target), 5) * 2 * rounds / epsilon


@formula(
    settings=by_rows("rounds records epsilon", (1, 45222, "0.75"), (10, 41188, "0.0025"), (1000, 70000, "0.25")),
    control={"two": 1},
)
def proof_noise(rounds: int, records: int, epsilon: Any, two: int = 2) -> tuple[Any, Any]:
    """2√2 sqrt(ln(1.25R/δ₂)) G R / (n ζ ε₂), and Lemma 3 at sensitivity 2G/(nζ); G = 3/2, ζ = 1/8."""
    scale = mpmath.mpf(12) / records
    root = mpmath.sqrt(mpmath.log(mpmath.mpf("1.25e5") * rounds))
    return two * mpmath.sqrt(2) * root * scale * rounds / epsilon, _lemma_3_noise(rounds, epsilon) * scale


@number()
def proof_constant() -> dict[str, Any]:
    """2 sqrt(2), and Lemma 3's noise over sqrt(ln(1.25/δ₂)) G/(nζε₂)."""
    by_lemma = _lemma_3_noise(1, 1) / mpmath.sqrt(mpmath.log(mpmath.mpf("1.25e5")))
    return {"2 sqrt 2": 2 * math.sqrt(2), "Lemma 3 solved": by_lemma}


# ---- what is released is 2c + b, and anew at each step ----


@bound(pair="½(θ − z)², |θ| <= 0.01, ζ = 1, θ̃ = 0, R = 1; one record z = 1 against −1, whose c_z differ by 2/n")
def contribution_release(
    delta: Printed, constant: Printed, asked: Sequence[Any], factor: int, draws: int
) -> tuple[float, float, float]:
    """ε at δ of the mean of `draws` releases of `factor` c + b, in balls; again by an integral and a secant search.

    `asked` are the ε₂ and δ₂ that the noise c' G sqrt(ln(1.25/δ₂))/(nζε₂), G = 1.01, is set for.
    """
    wanted, at = map(str, asked)
    with ctx.workprec(256):
        noise = arb(constant.text) * arb("1.01") * ((arb("1.25") / arb(at)).log() / draws).sqrt()
        noise /= 2 * factor * arb(wanted)
        low = largest(lambda e: ends(_ball_delta(arb(e), noise) - arb(delta.value))[0] > 0, 0.0, 1e6, 90)
        high = largest(lambda e: ends(_ball_delta(arb(e), noise) - arb(delta.value))[1] >= 0, low, 1e6, 90)
    with mpmath.workdps(25):
        mu = 2 * factor * mpmath.mpf(wanted) * mpmath.sqrt(draws) / mpmath.mpf(constant.text) / mpmath.mpf("1.01")
        mu /= mpmath.sqrt(mpmath.log(mpmath.mpf("1.25") / mpmath.mpf(at)))
        start = mpmath.mpf(low) * mpmath.mpf("0.99"), mpmath.mpf(low) * mpmath.mpf("1.01")
        again = mpmath.findroot(lambda e: mpmath.log(hockey_stick(e, mu) / delta.value), start, solver="secant")
    return low, math.nextafter(high, math.inf), float(again)
