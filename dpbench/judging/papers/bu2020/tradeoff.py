"""Trade-off functions: (2.1), Gaussian differential privacy, the duality with (ε, δ) and (3.2), from the definitions.

| here | in the paper |
| --- | --- |
| level, type II error | α, f(α) = inf {1 − E_Q φ : E_P φ <= α} |
| epsilon, delta, mu, sigma | ε, δ, μ, σ |
| threshold | the test rejects where the outcome exceeds it |

Everything is exact or 40-digit quadrature of densities; nothing is estimated by sampling.
"""

from __future__ import annotations

import mpmath

from dpbench.judging.claims.judges import formula, grid, inequality
from dpbench.judging.papers.mathematics import (
    Real,
    by_rows,
    gaussian_delta,
    gaussian_error,
    hockey_stick,
    largest,
    normal_mass,
)

MUS = ("0.23", "0.57", "1.13", "2.00", "2.76", "4.78", "2.03", "2.07", "1.94")  # as Tables 1-4 print them


# ---- (2.1) ----


def _error(epsilon: Real, delta: Real, level: Real, sign: int = -1) -> Real:
    """(2.1), in mpmath."""
    return max(0, 1 - delta - mpmath.exp(epsilon) * level, mpmath.exp(sign * epsilon) * (1 - delta - level))


@formula(
    settings=grid(epsilon=("0", "0.83", "15.39"), delta=("0", "1e-5", "0.1"), level=("0", "1e-6", "0.2", "0.9", "1")),
    control={"sign": 1},
    scale=1,
    pair="every pair of distributions on two outcomes, a test's rejection and acceptance, that meets Definition 2.1",
)
def equation_2_1(epsilon: Real, delta: Real, level: Real, sign: int = -1) -> tuple[Real, Real]:
    """(2.1), and the least type II error over all (ε, δ)-DP pairs: Definition 2.1 for four events, both directions."""
    tilt = mpmath.exp(epsilon)

    def private(power: Real) -> bool:
        events = ((level, power), (1 - level, 1 - power))
        return all(a <= tilt * b + delta and b <= tilt * a + delta for a, b in events)

    return _error(epsilon, delta, level, sign), 1 - largest(private, level, mpmath.mpf(1))


@inequality(
    domain={"epsilon": (0, 20), "delta": (0, 0.5), "more": (0, 20), "wider": (0, 0.5), "level": (0, 1)},
    settings=by_rows("epsilon delta more wider level", (0.83, 1e-5, 0.36, 0.0, 0.2), (5.07, 1e-5, 2.03, 0.0, 0.001)),
    control={"sign": -1},
    obligations=["each of the three terms of (2.1) falls in ε and in δ, so their maximum does"],
    examples=80,
)
def remark_1(epsilon: float, delta: float, more: float, wider: float, level: float, sign: int = 1) -> float:
    """How much f falls where ε and δ grow."""
    return float(sign * (_error(epsilon, delta, level) - _error(epsilon + more, delta + wider, level)))


# ---- Gaussian differential privacy ----


def tradeoff(level: Real, mu: Real) -> Real:
    """The closed form that the paper gives for G_μ."""
    return mpmath.ncdf(mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * level) - mu)


@formula(
    settings=grid(sensitivity=("0.23", "1", "4.78"), sigma=("1", "1.3", "5"), threshold=("-1", "0.5", "3")),
    control={"power": 2},
    precision=20,
    pair="θ + N(0, σ²) and θ + sens + N(0, σ²)",
)
def gaussian_mechanism(threshold: Real, sensitivity: Real, sigma: Real, power: int = 1) -> tuple[Real, Real]:
    """G_{sens/σ}, and the type II error of the likelihood-ratio test, which rejects above a threshold in deviations."""
    level = normal_mass(threshold * sigma, mpmath.inf, 0, sigma)
    missed = normal_mass(-mpmath.inf, threshold * sigma, sensitivity, sigma)
    return tradeoff(level, (sensitivity / sigma) ** power), missed


@formula(settings=grid(mu=("0.57", "4.78"), level=("0.001", "0.2", "0.7")), control={"flip": True}, precision=25)
def gaussian_inverse(level: Real, mu: Real, flip: bool = False) -> tuple[Real, Real]:
    """G_μ, and its inverse inf {t : G_μ(t) <= α} by halving."""
    inverse = largest(lambda t: t == 0 or tradeoff(t, mu) > level, mpmath.mpf(0), mpmath.mpf(1))
    return 1 - tradeoff(1 - level, mu) if flip else tradeoff(level, mu), inverse


@inequality(
    domain={"mu": (0.01, 10, "log"), "one": (1e-9, 1 - 1e-9), "other": (1e-9, 1 - 1e-9)},
    settings=[{"mu": float(mu), "one": 0.01, "other": 0.4} for mu in MUS],
    control={"sign": -1},
    obligations=["G_μ'(α) = −exp(μ Φ^{-1}(1 − α) − μ²/2), which grows with α"],
    examples=80,
)
def gaussian_convex(mu: float, one: float, other: float, sign: int = 1) -> float:
    """The chord less the curve, half-way."""
    chord = (gaussian_error(one, mu) + gaussian_error(other, mu)) / 2
    return sign * (chord - gaussian_error((one + other) / 2, mu))


# ---- duality and (3.2) ----


@formula(
    settings=[
        *by_rows("mu epsilon", ("0.23", "0.83"), ("1.13", "1"), ("1.13", "5.07"), ("4.78", "31.12"), ("1.94", "10.61")),
        *grid(mu=("0.23", "4.78"), epsilon=("0",)),
    ],
    control={"sign": 1},
    pair="N(μ, 1) and N(0, 1)",
)
def equation_3_2(epsilon: Real, mu: Real, sign: int = -1) -> tuple[Real, Real]:
    """(3.2), and the hockey-stick integral."""
    second = mpmath.ncdf(-epsilon / mu + sign * mu / 2)
    return mpmath.ncdf(-epsilon / mu + mu / 2) - mpmath.exp(epsilon) * second, hockey_stick(epsilon, mu)


@formula(
    settings=by_rows("mu epsilon", ("0.57", "0"), ("0.57", "2.32"), ("1.13", "5.07"), ("4.78", "31.12")),
    control={"flip": True},
    digits=10,
    precision=30,
)
def duality(epsilon: Real, mu: Real, flip: bool = False) -> tuple[Real, Real]:
    """1 + f*(−e^ε) = sup_α (1 − e^ε α − G_μ(α)), over the threshold t, and the hockey-stick integral.

    It is climbed until e^ε times the density of N(0, 1) at t is no longer above that of N(μ, 1).
    """
    tilt = mpmath.exp(epsilon)
    top = largest(lambda t: tilt * mpmath.npdf(t) >= mpmath.npdf(t, mu), mpmath.mpf(-40), mpmath.mpf(40))
    conjugate = 1 - tilt * mpmath.ncdf(-top) - mpmath.ncdf(top - mu)
    return 1 - conjugate if flip else conjugate, hockey_stick(epsilon, mu)


@inequality(
    domain={"epsilon": (0, 40), "mu": (0.05, 10, "log"), "more": (1e-3, 3, "log")},
    settings=by_rows("epsilon mu more", (0.83, 0.23, 0.1), (7.1, 1.13, 0.1), (31.12, 4.78, 0.1)),
    control={"sign": -1},
    obligations=["∂δ/∂μ is the normal density at −ε/μ + μ/2, which is positive"],
    examples=60,
)
def delta_grows_with_mu(epsilon: float, mu: float, more: float, sign: int = 1) -> float:
    """How much δ(ε; μ) grows."""
    return sign * (gaussian_delta(epsilon, mu + more) - gaussian_delta(epsilon, mu))
