"""Gauss's rule on straight panels, and what the integrands of random sensitivity have in common.

Panels have 16 points. The rule is exact to degree 31, so that where an integrand is analytic far and wide it misses
about the square of the last Legendre coefficients.
"""

from __future__ import annotations

import math

import numpy as np

from dpbench.accountants._loss_leaf import Complex, Floats

POINTS = 16
_NODES, GAUSS = np.polynomial.legendre.leggauss(POINTS)
_TO_LEGENDRE = (np.polynomial.legendre.legvander(_NODES, POINTS - 1) * GAUSS[:, None]).T * (
    np.arange(POINTS)[:, None] + 0.5
)


def panel_nodes(starts: Complex, ends: Complex) -> tuple[Complex, Complex]:
    """Nodes and weights of Gauss's rule on straight panels, one panel a row."""
    half = (ends - starts) / 2
    return (starts + half)[:, None] + half[:, None] * _NODES, half[:, None] * GAUSS


def roughness(values: Complex) -> tuple[Floats, Floats]:
    """Of functions on the nodes of a panel (last axis): the largest of the last Legendre coefficients, and of all."""
    found = np.abs(values @ _TO_LEGENDRE.T)
    return found[..., -3:].max(axis=-1), found.max(axis=-1)


def asinh_grid(sigma: float, low: float, far: float, count: int = 600) -> tuple[Floats, Floats]:
    """Points s from `low` to `far`, and their weights: the trapezoidal rule in asinh(4σs)."""
    scale = 0.25 / sigma
    left, right = math.asinh((low - 14 / sigma) / scale), math.asinh(max(far, 60.0 + 14 / sigma) / scale)
    place = np.linspace(left, right, count)
    return scale * np.sinh(place), scale * np.cosh(place) * ((right - left) / (count - 1))


def as_complex(values: Floats | Complex) -> Complex:
    """The same values as complex numbers."""
    return np.asarray(values, dtype=np.complex128)


def grown(log_weight: Complex, power: Complex) -> Complex:
    """e^log_weight (e^power − 1), also where a factor is no double."""
    if power.size and power.real.max() > 600:
        large = np.exp(np.where(power.real > 30, log_weight + power, -1e3))
        small = np.exp(log_weight) * expm1(np.where(power.real > 30, 0.0, power))
        return np.asarray(large + small)
    return np.asarray(np.exp(log_weight) * expm1(power))


def expm1(values: Complex) -> Complex:
    """e^v − 1 without cancellation near 0."""
    real = np.minimum(values.real, 700.0)
    half = np.sin(values.imag / 2)
    size = np.exp(real)
    result = np.empty_like(values)
    result.real = np.expm1(real) - 2 * size * half * half
    result.imag = size * np.sin(values.imag)
    return result
