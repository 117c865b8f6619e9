"""The privacy of the contributions c_t (Lemma 3, Remark 6, the first part of the proof of Theorem 5).

| paper | here |
| --- | --- |
| σ_(c), c' | `noise`, `constant` |
| ε₂, δ₂, R, n, ζ, G | `epsilon`, `delta`, `rounds`, `records`, `curvature`, `lipschitz` |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
from flint import arb, ctx

from dpbench.claims.claim import Printed
from dpbench.claims.judges import Shown, bound, formula, inequality, number, shown
from dpbench.papers.mathematics import by_routes, ends, gaussian_delta, hockey_stick, upper_tail
from dpbench.papers.pidp2021.influence import Quadratic, in_the_plane, influence, optimum

# ---- Lemma 3: σ = sqrt(2 ln(1.25/δ)) S / ε, printed without a condition on ε ----

_DELTAS = (1e-12, 0.1, "log")


def _ball_delta(epsilon: Any, noise: Any) -> Any:
    """δ at ε of N(1, s²) against N(0, s²) in balls."""
    near, far = (sign / (2 * noise) + epsilon * noise for sign in (-1, 1))
    return upper_tail(near) - epsilon.exp() * upper_tail(far)


def _lemma_3_enclosed(epsilon: float, delta: float) -> tuple[float, float]:
    with ctx.workprec(256):
        noise = (2 * (arb("1.25") / arb(delta)).log()).sqrt() / arb(epsilon)
        return ends(1 - _ball_delta(arb(epsilon), noise) / arb(delta))


@inequality(
    domain={"epsilon": (0.0025, 40, "log"), "delta": _DELTAS},
    settings=[{"epsilon": 0.75, "delta": 1e-5}, {"epsilon": 0.0025, "delta": 1e-5}],
    control={"epsilon": 1.0},
    tolerance=1e-9,
    enclosure=_lemma_3_enclosed,
)
def lemma_3(epsilon: float, delta: float) -> float:
    """(δ − the true δ of the lemma's noise) / δ; the control is ε = 1."""
    return 1 - gaussian_delta(epsilon, epsilon / math.sqrt(2 * math.log(1.25 / delta))) / delta


@inequality(
    domain={"epsilon": (0.0025, 1, "log"), "delta": _DELTAS, "rounds": (1, 5000, "whole")},
    settings=[{"epsilon": e, "delta": 1e-5, "rounds": rounds} for e, rounds in ((0.75, 1), (0.0025, 1), (0.75, 100))],
    control={"two": 1},
    tolerance=1e-9,
    obligations=["epsilon at most 1 (Dwork and Roth, Theorem A.1), one noisy release of c_t per round"],
    examples=80,
)
def lemma_3_below_one(epsilon: float, delta: float, rounds: int, two: int = 2) -> float:
    """The same for R releases with its noise for (ε/R, δ/R), which are one with noise smaller by sqrt(R)."""
    noise = math.sqrt(two * math.log(1.25 * rounds / delta)) * rounds / epsilon / math.sqrt(rounds)
    return 1 - gaussian_delta(epsilon, 1 / noise) / delta


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
    told = [influence([(s * s, label)], 0, 0)[0] for label in (1, -1)]
    moved, allowed = abs(told[0] - told[1]), 2 / (s * s if least else Fraction(3))
    sides = [np.linalg.solve(x.T @ x, -y[-1] * x[-1]) for x, y in (in_the_plane(s, (label,)) for label in (1, -1))]
    routes = {"rationals": moved, "normal equations": np.abs(sides[0] - sides[1]).max()}
    reason = f"with n = 4 and H = diag(3, s^2)/4 it moves by {moved}; 2G/(n zeta) is {float(allowed):g}"
    return by_routes(moved <= allowed, reason, routes, {"bound": float(allowed)})


@shown(control={"at": Fraction(1, 3)}, pair="½(θ − z)², the records 0, 0, 1, of which the 1 goes")
def current_model(at: Fraction = Fraction(1)) -> Shown:
    """c_t of the 1 at θ_r = 1, where its loss is least, and the first-order move of the optimum (11); θ* = 1/3."""
    rows: list[Quadratic] = [(1, 0), (1, 0), (1, 1)]
    told, promised = influence(rows, at, 2)[0], influence(rows, optimum(rows), 2)[0]
    step = Fraction(1, 10**6)
    derivative = (optimum(rows, (1, 1, 1 - step)) - optimum(rows, (1, 1, 1 + step))) / (2 * step)
    reason = f"at theta_r = {at} c_t is {told}; the first-order move of the optimum is {promised}"
    return by_routes(told == promised, reason, {"equation (11)": promised, "derivative of the optimum": derivative})


@shown(control={"second": (1, 0)}, pair="½(y − θx)², (x, y) = (1, 1), (1, 0), (1, 1), the last against (1/2, 1)")
def one_hessian(second: Quadratic = (Fraction(1, 4), 2)) -> Shown:
    """c_t(D) − c_t(D') at 0 of the exchanged record, and H⁻¹ times the difference of its gradients; control: y = 0."""
    sides, again = zip(*(influence([(1, 1), (1, 0), last], 0, 2) for last in ((1, 1), second)), strict=True)
    left, display = sides[0] - sides[1], (Fraction(second[0]) * second[1] - 1) / 3  # H of D is 1, a gradient −hz
    routes = {"equation (11)": left, "differences of the losses": again[0] - again[1]}
    return by_routes(left == display, f"the left side is {left}, the right side {display}", routes)


@shown(control={"second": 1}, pair="½(y − θx)², (x, y) = (1, 1), (1, 0), (1, 0), the last against (1/2, 0)")
def other_records(second: Fraction | int = Fraction(1, 4)) -> Shown:
    """The contribution of the first record, which both have, at θ̃ = 0 under D and under D'."""
    told, again = zip(*(influence([(1, 1), (1, 0), (last, 0)], 0, 0) for last in (1, second)), strict=True)
    routes = {"equation (11)": told[0] - told[1], "differences of the losses": again[0] - again[1]}
    reason = f"the contribution of an unchanged record is {told[0]} under D and {told[1]} under D'"
    return by_routes(told[0] == told[1], reason, routes)


@shown(control={"old": Fraction(1, 2), "new": Fraction(-1, 2)}, pair="1/2 and −1/2 four times each, 0; 0 against 1")
def exchange(old: Fraction = Fraction(0), new: Fraction = Fraction(1)) -> Shown:
    """Loss ½(θ − z)²: the move of the optimum when `old` becomes `new`, and twice the contribution of `old`."""
    common: list[Quadratic] = [*((1, Fraction(sign, 2)) for sign in (1, -1) * 4), (1, -old)]
    before, after = optimum([*common, (1, old)]), optimum([*common, (1, new)])
    own, moved = influence([*common, (1, old)], before, 9)[0], after - before
    reason = f"the exchange moves the optimum by {moved}; twice the record's own contribution is {2 * own}"
    return by_routes(abs(moved) <= 2 * abs(own), reason, {"optima": moved, "the record's share": (new - old) / 10})


def _lemma_3_noise(rounds: int, epsilon: Any, delta: Any = "1e-5") -> Any:
    """Lemma 3's noise for (ε/R, δ/R) at sensitivity 2, its root solved from 1.25 e^(−c²/2) = δ/R."""
    target = mpmath.mpf(delta) / rounds
    return mpmath.findroot(lambda c: mpmath.log("1.25") - c * c / 2 - mpmath.log(target), 5) * 2 * rounds / epsilon


@formula(
    settings=[{"rounds": r, "records": n, "epsilon": e} for r, n, e in ((1, 45222, "0.75"), (1000, 70000, "0.25"))],
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
        low, high = 0.0, 1e6
        while high - low > 1e-12 * max(1.0, high):
            middle = (low + high) / 2
            lower, upper = ends(_ball_delta(arb(middle), noise) - arb(delta.value))
            if lower <= 0 <= upper:
                break
            low, high = (middle, high) if lower > 0 else (low, middle)
    with mpmath.workdps(25):
        mu = 2 * factor * mpmath.mpf(wanted) * mpmath.sqrt(draws) / mpmath.mpf(constant.text) / mpmath.mpf("1.01")
        mu /= mpmath.sqrt(mpmath.log(mpmath.mpf("1.25") / mpmath.mpf(at)))
        start = mpmath.mpf(low) * mpmath.mpf("0.99"), mpmath.mpf(low) * mpmath.mpf("1.01")
        again = mpmath.findroot(lambda e: mpmath.log(hockey_stick(e, mu) / delta.value), start, solver="secant")
    return low, high, float(again)
