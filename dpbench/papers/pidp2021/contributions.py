"""The privacy of the contributions c_t (Lemma 3, Remark 6, the first part of the proof of Theorem 5).

| paper | here |
| --- | --- |
| S(f), S(c_t) | `sensitivity` |
| σ_(c), c' | `proof_noise`, 2.83 |
| ε₂, δ₂, R, n, ζ, G | `epsilon`, `delta`, `rounds`, `records`, `curvature`, `lipschitz` |

The explicit pair of the bounds below: loss ½(θ − z)², |θ| <= r, so L = ζ = 1 and G = r + 1; the start is θ̃ = 0, and
the neighbours differ in one record, z = 1 against z' = −1. Then c_z = (θ̃ − z)/n differs by 2/n and 2c_z by 4/n.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from dpbench.claims.computation import Computation
from dpbench.claims.demonstration import Demonstration, Shown
from dpbench.claims.formula import Formula
from dpbench.claims.inequality import Inequality, Range
from dpbench.claims.truth import Truth
from dpbench.papers.pidp2021.enclosures import BITS, ends, upper_tail

# ---- Lemma 3: σ = sqrt(2 ln(1.25/δ)) S / ε, printed without a condition on ε ----


def _gaussian_delta(noise: float, epsilon: float) -> float:
    """δ(ε) of N(0, s²) against N(1, s²) in doubles."""
    from scipy.special import ndtr

    return float(ndtr(1 / (2 * noise) - epsilon * noise)) - math.exp(epsilon) * float(
        ndtr(-1 / (2 * noise) - epsilon * noise)
    )


def _lemma_3_margin(epsilon: float, delta: float) -> float:
    """(δ − the true δ of the lemma's noise) / δ."""
    return 1 - _gaussian_delta(math.sqrt(2 * math.log(1.25 / delta)) / epsilon, epsilon) / delta


def _lemma_3_enclosure(epsilon: float, delta: float) -> tuple[float, float]:
    """The same in balls."""
    from flint import arb, ctx

    with ctx.workprec(BITS):
        noise = (2 * (arb("1.25") / arb(delta)).log()).sqrt() / arb(epsilon)
        near, far = 1 / (2 * noise) - arb(epsilon) * noise, 1 / (2 * noise) + arb(epsilon) * noise
        true = upper_tail(-near) - arb(epsilon).exp() * upper_tail(far)
        return ends(1 - true / arb(delta))


def _smaller_noise(epsilon: float, delta: float) -> float:
    """Without the factor 2 under the root."""
    return 1 - _gaussian_delta(math.sqrt(math.log(1.25 / delta)) / epsilon, epsilon) / delta


_DELTAS = Range(1e-12, 0.1, "log")
lemma_3 = Inequality(
    _lemma_3_margin,
    {"epsilon": Range(0.0025, 40, "log"), "delta": _DELTAS},
    ({"epsilon": 0.75, "delta": 1e-5}, {"epsilon": 0.0025, "delta": 1e-5}),
    _smaller_noise,
    tolerance=1e-9,
    enclosure=_lemma_3_enclosure,
)
lemma_3_below_one = Inequality(
    _lemma_3_margin,
    {"epsilon": Range(0.0025, 1, "log"), "delta": _DELTAS},
    ({"epsilon": 0.75, "delta": 1e-5}, {"epsilon": 0.0025, "delta": 1e-5}),
    _smaller_noise,
    tolerance=1e-9,
    obligations=("epsilon at most 1 (Dwork and Roth, Theorem A.1); the paper's own epsilon_2 is at most 0.75",),
    examples=80,
)


# ---- the sensitivity and the noise of the proof ----


def _sensitivity_margin(
    first: float, second: float, curvature: float, extra: float, other: float, share: float
) -> float:
    """2G/(nζ) less |c(D) − c(D')| times n: gradients are shares of G = 1, Hessians at least ζ."""
    changed = first / (curvature + extra) - second / (curvature + other)
    return share * 2 / curvature - abs(changed)


_SENSITIVITY = {
    "first": Range(-1, 1),
    "second": Range(-1, 1),
    "curvature": Range(1e-3, 1, "log"),
    "extra": Range(0, 1),
    "other": Range(0, 1),
}
sensitivity_least_eigenvalue = Inequality(
    lambda **point: _sensitivity_margin(**point, share=1.0),
    _SENSITIVITY,
    ({"first": 1.0, "second": -1.0, "curvature": 1.0, "extra": 0.0, "other": 0.0},),
    lambda **point: _sensitivity_margin(**point, share=0.5),
    obligations=("the smallest eigenvalue of both Hessians is at least zeta", "gradients at most G at theta_r"),
    examples=60,
)


def _flat_direction(flat: Fraction) -> Shown:
    """Ten records, loss ½θᵀAθ − zᵀθ with A = diag(1, `flat`), |θ| <= ½, |z| <= 1: nine zeros, and (0, 1) for (0, −1).

    Every Hessian is A, of spectral norm 1 >= ζ = ½, and a gradient Aθ − z is at most G = 3/2. At θ_r = 0 c_t is
    A⁻¹(−z)/n. The second route takes gradient and Hessian from differences of the loss, exact for a quadratic, and
    Cramer's rule.
    """
    size, zeta, lipschitz, zero = 10, Fraction(1, 2), Fraction(3, 2), Fraction(0)
    formula, solved = [], []
    for last in (Fraction(1), Fraction(-1)):
        formula.append((zero, -last / flat / size))
        solved.append(_solved(flat, [(zero, zero)] * (size - 1) + [(zero, last)]))
    moved, again = (max(abs(x - y) for x, y in zip(*pair, strict=True)) for pair in (formula, solved))
    bound = 2 * lipschitz / (size * zeta)
    reason = f"with H = diag(1, {float(flat):g}), zeta = {zeta}, G = {lipschitz} and n = {size} it moves by"
    reason += f" {float(moved):g}; 2G/(n zeta) is {float(bound):g}"
    routes = {"formula": float(moved), "differences of the loss": float(again)}
    return Shown(moved <= bound if moved == again else None, reason, float(moved), {"bound": float(bound)}, routes)


def _solved(flat: Fraction, records: list[tuple[Fraction, Fraction]]) -> tuple[Fraction, Fraction]:
    """c of the last record at θ = 0, from values of the losses ½(θ₁² + `flat` θ₂²) − zᵀθ alone."""
    one = Fraction(1)

    def loss(x: Fraction, y: Fraction, z: tuple[Fraction, Fraction]) -> Fraction:
        return (x * x + flat * y * y) / 2 - z[0] * x - z[1] * y

    def mean(x: Fraction, y: Fraction) -> Fraction:
        return sum((loss(x, y, z) for z in records), Fraction(0)) / len(records)

    zero = Fraction(0)
    g = [(loss(*at, records[-1]) - loss(-at[0], -at[1], records[-1])) / 2 for at in ((one, zero), (zero, one))]
    xx = mean(one, zero) - 2 * mean(zero, zero) + mean(-one, zero)
    yy = mean(zero, one) - 2 * mean(zero, zero) + mean(zero, -one)
    xy = (mean(one, one) - mean(one, -one) - mean(-one, one) + mean(-one, -one)) / 4
    determinant, n = xx * yy - xy * xy, len(records)
    return (g[0] * yy - g[1] * xy) / determinant / n, (g[1] * xx - g[0] * xy) / determinant / n


sensitivity = Demonstration(lambda: _flat_direction(Fraction(1, 10**6)), twin=lambda: _flat_direction(Fraction(1, 2)))


def _away_from_the_optimum(optimal: bool = False) -> Shown:
    """Records 0, 0, 1 and loss ½(θ − z)², θ* = 1/3: c_t of the record 1 at θ_r against the move of the optimum.

    At θ_r = 1 the gradient of that record is 0 and so is c_t. Removing it moves the optimum from 1/3 to 0. The
    first-order part of that move, which is what (11) promises, is (θ* − z)/n = −2/9.
    """
    rows = (Fraction(0), Fraction(0), Fraction(1))
    size, best = len(rows), sum(rows, Fraction(0)) / len(rows)
    at = best if optimal else Fraction(1)
    told = (at - rows[2]) / size
    promised = (best - rows[2]) / size
    # second route: dθ̂/dw of the weighted optimum Σ w z / Σ w by a difference of two exact optima, extrapolated
    step = Fraction(1, 10**6)
    moved = [(rows[2] * (1 - sign * step)) / (2 + 1 - sign * step) for sign in (1, -1)]
    again = (moved[0] - moved[1]) / (2 * step)
    routes = {"equation (11) at the optimum": float(promised), "derivative of the weighted optimum": float(again)}
    agree = abs(promised - again) < Fraction(1, 10**9)
    reason = f"at theta_r = {at} c_t is {told}; the first-order move of the optimum is {promised}"
    return Shown(told == promised if agree else None, reason, float(told), {"promised": float(promised)}, routes)


current_model = Demonstration(_away_from_the_optimum, twin=lambda: _away_from_the_optimum(optimal=True))


def _one_hessian(same_feature: bool = False) -> Shown:
    """c_t(D) − c_t(D') of the exchanged record against (1/n) H⁻¹ times the difference of its gradients, H that of D.

    Squared error ½(y − θx)², three records; (1, 1) becomes (1/2, 1), or (1, 0) for the twin, which keeps the Hessian.
    """
    one = Fraction(1)
    common = ((one, one), (one, Fraction(0)))
    first, second = (one, one), ((one, Fraction(0)) if same_feature else (Fraction(1, 2), one))
    sides = [_regression_influence((*common, last), Fraction(0), 2) for last in (first, second)]
    hessian = (sum((x * x for x, _ in common), Fraction(0)) + first[0] ** 2) / 3
    gradients = [-y * x for x, y in (first, second)]
    display = (gradients[0] - gradients[1]) / hessian / 3
    newton = []  # second route for the left side: one Newton step of the sum with and without weight on the record
    for x, y in (first, second):
        total = sum((a * a for a, _ in common), Fraction(0)) + x * x
        newton.append(-y * x / total)
    agree = sides == newton
    left = sides[0] - sides[1]
    reason = f"the left side is {left}, the right side {display}"
    routes = {"equation (11)": [float(x) for x in sides], "Newton's step": [float(x) for x in newton]}
    return Shown(left == display if agree else None, reason, float(left), {"right_side": str(display)}, routes)


one_hessian = Demonstration(_one_hessian, twin=lambda: _one_hessian(same_feature=True))


def _proof_noise(rounds: int, records: int, lipschitz: float, curvature: float, epsilon: float, delta: float) -> Any:
    """2√2 sqrt(ln(1.25R/δ₂)) G R / (n ζ ε₂)."""
    import mpmath

    root = mpmath.sqrt(mpmath.log(mpmath.mpf("1.25") * rounds / delta))
    return 2 * mpmath.sqrt(2) * root * lipschitz * rounds / (records * mpmath.mpf(curvature) * epsilon)


def _lemma_3_noise(rounds: int, records: int, lipschitz: float, curvature: float, epsilon: float, delta: float) -> Any:
    """The noise whose Lemma 3 δ, at ε₂/R and sensitivity 2G/(nζ), is δ₂/R; found by bisection of 1.25 e^(−c²/2)."""
    import mpmath

    target = mpmath.mpf(delta) / rounds
    low, high = mpmath.mpf(0), mpmath.mpf(100)
    for _ in range(150):
        middle = (low + high) / 2
        low, high = (middle, high) if mpmath.mpf("1.25") * mpmath.exp(-(middle**2) / 2) > target else (low, middle)
    return low * (2 * mpmath.mpf(lipschitz) / (records * mpmath.mpf(curvature))) / (mpmath.mpf(epsilon) / rounds)


_NOISE_SETTINGS = tuple(
    {"rounds": rounds, "records": records, "lipschitz": 1.5, "curvature": 0.125, "epsilon": epsilon, "delta": 1e-5}
    for rounds, records, epsilon in ((1, 45222, 0.75), (10, 41188, 0.0025), (1000, 70000, 0.25))
)
proof_noise = Formula(
    _proof_noise,
    _lemma_3_noise,
    _NOISE_SETTINGS,
    twin=lambda **setting: _proof_noise(**setting) / 2,
)


def _newton_root() -> float:
    """sqrt(8) by Newton's steps in rationals."""
    root = Fraction(3)
    for _ in range(6):
        root = (root + 8 / root) / 2
    return float(root)


proof_constant = Computation(lambda: 2 * math.sqrt(2), second=_newton_root)


def _rounds_margin(rounds: float, epsilon: float, delta: float, split: bool = True) -> float:
    """R Gaussian releases, each with Lemma 3's noise for (ε₂/R, δ₂/R), are one with noise smaller by sqrt(R)."""
    share = rounds if split else 1.0
    noise = math.sqrt(2 * math.log(1.25 * rounds / delta)) * share / epsilon / math.sqrt(rounds)
    return 1 - _gaussian_delta(noise, epsilon) / delta


composition_of_rounds = Inequality(
    _rounds_margin,
    {"rounds": Range(1, 5000, "whole"), "epsilon": Range(0.0025, 1, "log"), "delta": _DELTAS},
    ({"rounds": 1, "epsilon": 0.75, "delta": 1e-5}, {"rounds": 100, "epsilon": 0.75, "delta": 1e-5}),
    lambda **point: _rounds_margin(**point, split=False),
    tolerance=1e-9,
    obligations=("one noisy release of c_t per round", "epsilon_2 / R at most 1"),
    examples=60,
)


# ---- what is released is 2c + b, and anew at each step ----


def _noise_over_sensitivity(radius: float, epsilon: float, delta: float, factor: int, draws: int, number: Any) -> Any:
    """σ_(c) with R = 1 over the difference `factor`·2/n of the explicit pair, for the mean of `draws` releases."""
    wide = number("2.83") * (number(radius) + 1) / (2 * factor * number(epsilon))
    return wide * ((number("1.25") / number(delta)).log() / draws).sqrt()


def _contribution_epsilon(
    _certified: bool, radius: float, epsilon: float, delta: float, factor: int, draws: int
) -> tuple[float, float]:
    """The ε at δ₂ of the released contributions, enclosed in balls."""
    from flint import arb, ctx

    with ctx.workprec(BITS):
        noise = _noise_over_sensitivity(radius, epsilon, delta, factor, draws, arb)

        def excess(at: float) -> tuple[float, float]:
            near, far = 1 / (2 * noise) - arb(at) * noise, 1 / (2 * noise) + arb(at) * noise
            return ends(upper_tail(-near) - arb(at).exp() * upper_tail(far) - arb(delta))

        low, high = 0.0, 1.0
        while excess(high)[1] >= 0:
            low, high = high, 2 * high
        while high - low > 1e-12 * high:
            middle = (low + high) / 2
            lower, upper = excess(middle)
            if lower > 0:
                low = middle
            elif upper < 0:
                high = middle
            else:
                break
    return low, high


def _contribution_epsilon_again(radius: float, epsilon: float, delta: float, factor: int, draws: int) -> float:
    """The same by quadrature of (P − e^ε Q)₊ and a secant search."""
    import mpmath

    with mpmath.workdps(25):
        wide = mpmath.mpf("2.83") * (mpmath.mpf(radius) + 1) / (2 * factor * mpmath.mpf(epsilon))
        noise = wide * mpmath.sqrt(mpmath.log(mpmath.mpf("1.25") / mpmath.mpf(delta)) / draws)

        def at(trial: Any) -> Any:
            start = trial * noise**2 + mpmath.mpf(1) / 2
            points = [start + step * noise for step in (0, 1, 3, 8, 20)]
            weight = mpmath.quad(
                lambda x: mpmath.npdf(x, 1, noise) - mpmath.exp(trial) * mpmath.npdf(x, 0, noise), points
            )
            return mpmath.log(weight / mpmath.mpf(delta))

        return float(mpmath.findroot(at, (epsilon * 1.5, epsilon * 1.7), solver="secant", tol=1e-12))


contribution_release = Truth(_contribution_epsilon, name="epsilon", attained=True, second=_contribution_epsilon_again)


# ---- whose contributions change, and whether twice the own influence covers an exchange ----


def _regression_influence(rows: tuple[tuple[Fraction, Fraction], ...], theta: Fraction, index: int) -> Fraction:
    """c of one record at θ for the loss ½(y − θx)², from (11)."""
    hessian = sum((x * x for x, _ in rows), Fraction(0)) / len(rows)
    x, y = rows[index]
    return (theta * x - y) * x / hessian / len(rows)


def _other_records(same_feature: bool = False) -> Shown:
    """D and D' differ in their last record; the contribution of their first, common record at θ̃ = 0."""
    one = Fraction(1)
    features = (one, one) if same_feature else (one, Fraction(1, 2))
    influences, removed = [], []
    for last in features:
        rows = ((one, one), (one, Fraction(0)), (last, Fraction(0)))
        influences.append(_regression_influence(rows, Fraction(0), 0))
        # second route: Newton's step from θ̃ with and without weight 1 on the first record
        hessian = sum((x * x for x, _ in rows), Fraction(0))
        removed.append((Fraction(0) - rows[0][1]) * rows[0][0] / hessian)
    moved = abs(influences[0] - influences[1])
    routes = {"equation (11)": [float(x) for x in influences], "Newton's step": [float(x) for x in removed]}
    agree = influences == removed
    reason = f"the contribution of an unchanged record is {influences[0]} under D and {influences[1]} under D'"
    return Shown(None if not agree else moved == 0, reason, float(moved), {"exactly": str(moved)}, routes)


other_records = Demonstration(_other_records, twin=lambda: _other_records(same_feature=True))


def _exchange(replaced_by_own_mirror: bool = False) -> Shown:
    """Ten records, loss ½(θ − z)², whose optimum is the mean: one record at the mean is exchanged for a 1.

    Its own contribution is (θ* − z)/n = 0, so twice that is 0, and the optimum moves by 1/n.
    """
    size = 10
    rows = [Fraction(1, 2)] * 4 + [Fraction(-1, 2)] * 4 + [Fraction(0)] * 2
    if replaced_by_own_mirror:
        rows[9], rows[0] = Fraction(1, 2), Fraction(0)  # the exchanged record now has a contribution of its own
    before = sum(rows, Fraction(0)) / size
    own = (before - rows[9]) / size
    new = Fraction(1) if not replaced_by_own_mirror else 2 * before - rows[9]
    after = before + (new - rows[9]) / size
    again = sum((*rows[:9], new), Fraction(0)) / size
    holds = abs(after - before) <= 2 * abs(own)
    routes = {"one record's share": float(after - before), "mean computed anew": float(again - before)}
    reason = f"the exchange moves the optimum by {after - before}; twice the record's own contribution is {2 * own}"
    return Shown(
        None if again != after else holds, reason, float(after - before), {"twice_the_own": str(2 * own)}, routes
    )


exchange = Demonstration(_exchange, twin=lambda: _exchange(replaced_by_own_mirror=True))
