"""The loss of a mechanism whose sensitivity is random (`RandomSensitivityGaussian`), in the form that lattices need.

| here | |
| --- | --- |
| s | log of the ratio of N(Z, σ²) to N(0, σ²); under N(0, σ²), given Z, normal, mean −Z²/(2σ²), variance Z²/σ² |
| p | its density with Z integrated out |
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
from functools import cache, partial

import numpy as np
from numpy.polynomial import polynomial

from dpbench.events import RandomSensitivityGaussian
from dpbench.privacy.accountants._losses import Floats, log_ratio
from dpbench.privacy.accountants._work import spend
from dpbench.privacy.accountants.lattice.law import NONE, Branch, LossLaw

LOW = -60.0
REACHES = (2.0, 16.0, 128.0, 1024.0)
_WORK = 7  # of one density, in exponentials
_LARGE_ORDER = 60.0  # from here on Debye's expansion
_DEBYE_TERMS = 10  # of it: at order 60 the next one is below 1e-16
MOST_PROJECTIONS = 10**9  # beyond, the nodes of Z's law are no longer good to 1e-12


@cache
def _debye_polynomials() -> tuple[Floats, ...]:
    """U_1 ... U_10, coefficients from t^0 on: U_(k+1) = t²(1−t²)U_k'/2 + ∫_0^t (1−5s²)U_k ds / 8 (DLMF 10.41.9)."""
    found = [np.ones(1)]
    for _ in range(_DEBYE_TERMS):
        first = polynomial.polymul([0.0, 0.0, 0.5, 0.0, -0.5], polynomial.polyder(found[-1]))
        second = polynomial.polyint(polynomial.polymul([0.125, 0.0, -0.625], found[-1]))
        found.append(np.asarray(polynomial.polyadd(first, second), np.float64))
    return tuple(found[1:])


def _bessel_rest(order: float, z: Floats, root: Floats) -> Floats:
    """log of K_ν(νz) / (√(π/2ν) e^(−νη) (1+z²)^(−1/4)), η = `root` + log(z/(1 + `root`)), `root` = √(1+z²).

    By SciPy, or for large ν by Debye's uniform expansion Σ (−1)^k U_k(1/`root`)/ν^k (DLMF 10.41.4).
    """
    from scipy.special import kve

    if order < _LARGE_ORDER:
        eta = root + np.log(z / (1 + root))
        leading = math.log(math.pi / (2 * order)) / 2 - np.log(root) / 2 - order * eta
        rest: Floats = np.log(kve(order, order * z)) - order * z - leading
        return rest
    series = np.zeros_like(z)
    for power, coefficients in enumerate(_debye_polynomials(), 1):
        series += polynomial.polyval(1 / root, coefficients) / (-order) ** power
    return np.asarray(np.log1p(series))


def log_density(noise: float, projections: int, s: Floats) -> Floats:
    """log p(s), to about 1e-13 for any r.

    The large terms of the Bessel function and of Γ(r/2) = e^(... + μ(r/2)), Stirling's formula, cancel, and are left
    out by hand. With z² = (r + σ²s²)/(σ²(r+1)²) and w = √(1+z²) − 1, log p is

        log σ + ½ log(r/(4πν)) − ½ − μ(r/2) − s/2 + ν (log(1 + w/2) − w − log(1 + (σ²s² − 1)/(r+1)))
        − ¼ log(1 + z²) + log of what is left of K_ν(νz).
    """
    spend(_WORK * s.size)
    order = (projections + 1) / 2
    square = (projections / noise**2 + s * s) / (projections + 1.0) ** 2
    root = np.sqrt(1 + square)
    width = square / (1 + root)
    constant = (
        math.log(noise) + math.log(projections / (4 * math.pi * order)) / 2 - 0.5 - stirling_rest(projections / 2)
    )
    exponent = np.log1p(width / 2) - width - np.log1p(((noise * s) ** 2 - 1) / (projections + 1.0))
    rest = _bessel_rest(order, np.sqrt(square), root)
    result: Floats = constant - s / 2 + order * exponent - np.log1p(square) / 4 + rest
    return result


def stirling_rest(x: float) -> float:
    """log Γ(x) − (x − ½) log x + x − ½ log 2π, to 1e-15: from 10 on by Stirling's series, which alternates.

    >>> abs(stirling_rest(0.5) - (1 - math.log(2)) / 2) < 1e-15
    True
    """
    if x < 10:
        return math.lgamma(x) - (x - 0.5) * math.log(x) + x - math.log(2 * math.pi) / 2
    square = x * x
    series = 1 / 1188 - 691 / 360360 / square
    for coefficient in (-1 / 1680, 1 / 1260, -1 / 360, 1 / 12):
        series = coefficient + series / square
    return series / x


def sensitivity_nodes(projections: int, most: float = math.inf) -> tuple[Floats, Floats, float]:
    """Nodes z, weights and a left-over mass for Z = √(r/χ²_r): a trapezoidal rule in u = log χ²_r, its step <= `most`.

    The density e^(ru/2 − e^u/2) falls off on both sides; its sum over a step h is off by about e^(−2π·d/h) with
    d < π/2, the angle at which e^u turns imaginary. The mass of Z above the largest node is returned, to be rounded up.
    """
    half = projections / 2
    spread = 1 / math.sqrt(half)
    # with v = u − log r the density is e^(h (v + 1 − e^v)) h^h e^−h / Γ(h), h = r/2: nothing large cancels in it
    log_norm = math.log(2 * math.pi / half) / 2 + stirling_rest(half)
    step = min(0.06, spread / 3, most)
    low = -min(80 / projections + 14 * spread, 600.0)
    high = math.log1p((14 * math.sqrt(4 * half) + 100) / (2 * half))
    v = low + step * np.arange(math.ceil((high - low) / step) + 1)
    weights = np.exp(half * (v - np.expm1(v)) - log_norm) * step
    # below `low` the log density is concave and rises: its integral is at most value over slope there
    left = math.exp(half * (low - math.expm1(low)) - log_norm) / (-half * math.expm1(low))
    return np.exp(-v / 2), weights, left


def mass_below(event: RandomSensitivityGaussian, s: float, *, moved: bool = False) -> float:
    """P(s' < s) under N(0, σ²), or under N(Z, σ²) where `moved`, over Z, rounded up: Z's tail counts in full.

    P(s' > −s) is the same under the other one. Over u = log χ²_r the probability given Z rises from 0 to 1 within about
    √(2/|s|), where Z/σ is √(2|s|): on u + iy it is at most e^(y²|s|/4), so that a step h is off by e^(−4π²/(h²|s|))
    there, which is below e^(−40) for h = √(2/|s|)/1.5.
    """
    from scipy.special import ndtr

    z, weights, left = sensitivity_nodes(event.projections, math.sqrt(2 / abs(s)) / 1.5)
    width = z / event.noise_multiplier
    below = ndtr(s / width - width / 2) if moved else ndtr(s / width + width / 2)
    return min(float(np.dot(weights, below)) * (1 + 1e-12) + left, 1.0)


def random_sensitivity_law(event: RandomSensitivityGaussian, direction: int, high: float) -> LossLaw:
    """The law of the loss in direction 0 (remove) or 1 (add), on or above the true one; infinite from s = `high` on.

    >>> law = random_sensitivity_law(RandomSensitivityGaussian(0.01, 1.0, 5), 0, 64.0)
    >>> law.infinite < 0.01 * 64.0**-2.5
    True
    """
    rate, noise = event.sampling_rate, event.noise_multiplier
    scale = min(min(1.0, math.sqrt(event.projections) / 2) / noise, 2.0)
    density, loss = partial(log_density, noise, event.projections), partial(log_ratio, rate)
    low = LOW if rate < 0.999 else -high  # where all are sampled losses have no lower end
    near, far = mass_below(event, low), mass_below(event, -high)
    beyond = math.exp(-high) * far  # at least what N(0, σ²) has from `high` on, for p(s) = e^-s p(−s)
    highest = math.inf
    if direction == 0:
        branch = Branch(lambda s: density(s) + loss(s), loss, low, high, scale)
        # below `low` the mixture's outputs, (1−q) of N(0, σ²) and q of N(Z, σ²), go up to the loss at `low`
        place, atom = float(loss(np.array([low]))[0]), (1 - rate) * near + rate * mass_below(event, low, moved=True)
        infinite = rate * far + (1 - rate) * beyond
    else:
        branch = Branch(density, lambda s: -loss(s), low, high, scale)
        # beyond `high` the outputs count as infinite; below `low` the loss is at most its end
        highest = -math.log1p(-rate) if rate < 1 else math.inf
        place, atom, infinite = (highest, near, beyond) if rate < 1 else (0.0, 0.0, near + beyond)
    atoms, masses = (np.array([place]), np.log([atom])) if atom > 0 else (NONE, NONE)
    return LossLaw((branch,), atoms, masses, infinite, highest, 40.0)
