"""The loss of a release whose sensitivity is random (`RandomSensitivityGaussian`), in the form that lattices need.

| here | |
| --- | --- |
| s | log of the ratio of N(Z, σ²) to N(0, σ²); under N(0, σ²), given Z, normal, mean −Z²/(2σ²), variance Z²/σ² |
| p | its density over Z as well, from which Z is gone |
| R | 1 − q + q e^s, the likelihood ratio of the pair: the loss is log R, whatever Z is |

With G = Z⁻² ~ Gamma(r/2, rate r/2), p(s) = e^(−s/2) E[σ√(G/2π) e^(−σ²s²G/2 − 1/(8σ²G))], which is a Bessel function:
e^(−s/2) (σ/√2π) ((r/2)^(r/2)/Γ(r/2)) 2 (β/α)^(ν/2) K_ν(2√(αβ)), α = (r + σ²s²)/2, β = 1/(8σ²), ν = (r+1)/2.
And e^s p(s) = p(−s). So one smooth branch holds every Z. Its tails fall like |s|^(−r−1) only: they end at `LOW` and
at a `high` place, and what lies beyond goes to a larger loss, atoms or infinity, its mass from a quadrature over Z with
Z's own tail rounded up. What counts as infinite beyond `high` would have counted 1 − e^(ε − L) in δ(ε). A near `high`
allows steeper tilts, a far one loses less: every one of `REACHES` gives a bound, and the accountant takes the least.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial

import numpy as np

from dpbench.accountants._hinges import Floats, sensitivity_nodes, stirling_rest
from dpbench.accountants._lattice_losses import Branch, LossLaw, log_ratio
from dpbench.events import RandomSensitivityGaussian

LOW = -60.0
LOW_WHERE_ALL_ARE_SAMPLED = -8.0  # losses have no lower end there, and windows of the transforms must be narrow
REACHES = (2.0, 16.0, 128.0, 1024.0)
_LARGE_ORDER = 60.0  # from here on Debye's expansion
_DEBYE_TERMS = 10  # of it: at order 60 the next one is below 1e-16
MOST_PROJECTIONS = 10**9  # beyond, the nodes of Z's law are no longer good to 1e-12


@cache
def _debye_polynomials() -> tuple[Floats, ...]:
    """U_0 ... U_10, coefficients from t^0 on: U_(k+1) = t²(1−t²)U_k'/2 + ∫_0^t (1−5s²)U_k ds / 8 (DLMF 10.41.9)."""
    from numpy.polynomial import polynomial

    found = [np.ones(1)]
    for _ in range(_DEBYE_TERMS):
        first = polynomial.polymul([0.0, 0.0, 0.5, 0.0, -0.5], polynomial.polyder(found[-1]))
        second = polynomial.polyint(polynomial.polymul([0.125, 0.0, -0.625], found[-1]))
        found.append(np.asarray(polynomial.polyadd(first, second), np.float64))
    return tuple(found)


def log_debye(order: float, t: Floats) -> Floats:
    """log Σ (−1)^k U_k(t)/ν^k, the part of Debye's expansion of K_ν that tends to 0."""
    from numpy.polynomial import polynomial

    series = np.zeros_like(t)
    for power, coefficients in enumerate(_debye_polynomials()[1:], 1):
        series += polynomial.polyval(t, coefficients) / (-order) ** power
    result: Floats = np.log1p(series)
    return result


def log_bessel(order: float, x: Floats) -> Floats:
    """log K_ν(x) for ν > 0 and x > 0: by SciPy, or for large ν by Debye's uniform expansion (DLMF 10.41.4).

    K_ν(νz) ~ √(π/2ν) e^(−νη) (1+z²)^(−1/4) Σ (−1)^k U_k(t)/ν^k, t = 1/√(1+z²), η = 1/t + log(z/(1 + 1/t)).

    >>> round(float(log_bessel(0.5, np.array([2.0]))[0]), 12) == round(math.log(math.sqrt(math.pi / 4)) - 2, 12)
    True
    """
    from scipy.special import kve

    if order < _LARGE_ORDER:
        with np.errstate(divide="ignore", over="ignore"):
            small: Floats = np.log(kve(order, x)) - x
        return small
    z = x / order
    root = np.hypot(1.0, z)
    eta = root + np.log(z / (1 + root))
    result: Floats = (
        math.log(math.pi / (2 * order)) / 2 - order * eta - np.log1p(z * z) / 4 + log_debye(order, 1 / root)
    )
    return result


def log_density(noise: float, projections: int, s: Floats) -> Floats:
    """log p(s), to about 1e-13 for any r.

    For large ν the large terms of Debye's expansion and of Stirling's cancel, and are left out by hand. With
    z² = (r + σ²s²)/(σ²(r+1)²), w = √(1+z²) − 1, t = 1/√(1+z²) and log Γ(r/2) = ... + μ(r/2), log p is

        log σ + ½ log(r/(4πν)) − ½ − μ(r/2) − s/2 + ν (log(1 + w/2) − w − log(1 + (σ²s² − 1)/(r+1)))
        − ¼ log(1 + z²) + log Σ (−1)^k U_k(t)/ν^k.
    """
    half, order = projections / 2, (projections + 1) / 2
    if order < _LARGE_ORDER:
        alpha, beta = (projections + (noise * s) ** 2) / 2, 1 / (8 * noise**2)
        constant = math.log(noise / math.sqrt(2 * math.pi)) + half * math.log(half) - math.lgamma(half) + math.log(2)
        spread = order / 2 * (math.log(beta) - np.log(alpha))
        result: Floats = constant - s / 2 + spread + log_bessel(order, 2 * np.sqrt(alpha * beta))
        return result
    square = (projections / noise**2 + s * s) / (projections + 1.0) ** 2  # z²
    root = np.sqrt(1 + square)
    width = square / (1 + root)  # w
    constant = math.log(noise) + math.log(projections / (4 * math.pi * order)) / 2 - 0.5 - stirling_rest(half)
    exponent = np.log1p(width / 2) - width - np.log1p(((noise * s) ** 2 - 1) / (projections + 1.0))
    large: Floats = constant - s / 2 + order * exponent - np.log1p(square) / 4 + log_debye(order, 1 / root)
    return large


def place_of(rate: float, level: Floats) -> Floats:
    """The s with log R(s) = `level`; −inf where there is none."""
    if rate == 1:
        return level
    with np.errstate(divide="ignore", invalid="ignore"):
        small = np.log1p(np.maximum(np.expm1(np.minimum(level, 1.0)) / rate, -1.0))
        large = level - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-np.maximum(level, 1.0)))
    result: Floats = np.where(level > 1, large, small)
    return result


def mass_below(event: RandomSensitivityGaussian, s: float) -> float:
    """P(s' < s) under N(0, σ²), over Z, rounded up: Z's tail counts in full."""
    from scipy.special import ndtr

    z, weights, left = sensitivity_nodes(event.projections)
    width = z / event.noise_multiplier
    return min(float(np.dot(weights, ndtr(s / width + width / 2))) * (1 + 1e-12) + left, 1.0)


def mass_above(event: RandomSensitivityGaussian, s: float) -> float:
    """P(s' > s) under N(0, σ²), over Z, rounded up. It is also P(s' < −s) under N(Z, σ²)."""
    from scipy.special import ndtr

    z, weights, left = sensitivity_nodes(event.projections)
    width = z / event.noise_multiplier
    return min(float(np.dot(weights, ndtr(-s / width - width / 2))) * (1 + 1e-12) + left, 1.0)


def random_sensitivity_law(event: RandomSensitivityGaussian, direction: int, high: float) -> LossLaw:
    """The law of the loss in direction 0 (remove) or 1 (add), on or above the true one; infinite from s = `high` on.

    >>> law = random_sensitivity_law(RandomSensitivityGaussian(0.01, 1.0, 5), 0, 64.0)
    >>> law.infinite < 0.01 * 64.0**-2.5
    True
    """
    rate, noise = event.sampling_rate, event.noise_multiplier
    scale = min(1.0, math.sqrt(event.projections) / 2) / noise
    scale = min(scale, 2.0)
    density, loss = partial(log_density, noise, event.projections), partial(log_ratio, rate)
    far = mass_below(event, -high)  # also e^-s p(s) there: the mass of large losses under N(Z, σ²)
    low = LOW if rate < 0.999 else LOW_WHERE_ALL_ARE_SAMPLED
    near = mass_below(event, low)
    beyond = math.exp(-high) * far  # at least what N(0, σ²) has there, for p(s) = e^-s p(−s)
    anchor = float(loss(np.zeros(1))[0])
    none = np.empty(0)
    if direction == 0:
        branch = Branch(lambda s: density(s) + loss(s), loss, partial(place_of, rate), low, high, scale)
        # below `low` the mixture's outputs, (1−q) of N(0, σ²) and q of N(Z, σ²), go up to the loss at `low`
        atom = (1 - rate) * near + rate * mass_above(event, -low)
        infinite = rate * far + (1 - rate) * beyond
        law = LossLaw((branch,), loss(np.array([low])), none, infinite, anchor, None, math.inf)
    else:
        branch = Branch(density, lambda s: -loss(s), lambda level: place_of(rate, -level), low, high, scale)
        # beyond `high` the outputs count as infinite; below `low` the loss is at most its end
        highest = -math.log1p(-rate) if rate < 1 else math.inf
        atom, infinite = (near, beyond) if rate < 1 else (0.0, near + beyond)
        atoms = np.array([highest]) if rate < 1 else none
        law = LossLaw((branch,), atoms, none, infinite, anchor, None, highest)
    kept = law.atoms if atom > 0 else none
    masses = np.log(np.full(len(kept), atom)) if len(kept) else none
    return replace(law, atoms=kept, log_masses=masses, highest_tilt=40.0)
