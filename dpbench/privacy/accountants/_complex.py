"""Complex exponentials and logarithms of arrays, without cancellation near 0 and from vectorised real functions.

NumPy's sine, cosine and complex exp take twenty times as long per number as its tan, which is vectorised; with
t = tan(a/2), e^(ia) − 1 = 2t (i − t)/(1 + t²) is as accurate, relative to its own size, as t is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpbench.privacy.accountants._work import spend

Floats = NDArray[np.float64]
Complex = NDArray[np.complex128]


def turn(angle: Floats) -> Complex:
    """e^(i·angle) − 1, to about three units in the last place of its size.

    >>> import numpy as np
    >>> turn(np.array([1e-20]))
    array([-5.e-41+1.e-20j])
    """
    spend(angle.size)
    tangent = angle * 0.5
    np.tan(tangent, out=tangent)
    sine = tangent * tangent
    sine += 1
    np.divide(tangent, sine, out=sine)
    sine += sine
    tangent *= sine
    result = np.empty(angle.shape, dtype=np.complex128)
    np.negative(tangent, out=result.real)
    result.imag = sine
    return result


def joined(real: Floats, imaginary: Floats) -> Complex:
    """real + i·imaginary."""
    result = np.empty(np.broadcast_shapes(real.shape, imaginary.shape), dtype=np.complex128)
    result.real = real
    result.imag = imaginary
    return result


def exp(values: Complex) -> Complex:
    """e^v."""
    result: Complex = np.exp(values.real) * (1 + turn(values.imag))
    return result


def expm1(values: Complex) -> Complex:
    """e^v − 1 without cancellation near 0."""
    real = np.minimum(values.real, 700.0)
    result: Complex = np.expm1(real) + np.exp(real) * turn(values.imag)
    return result


def log(values: Complex) -> Complex:
    """log v."""
    spend(3 * values.size)
    return joined(np.log(np.hypot(values.real, values.imag)), np.arctan2(values.imag, values.real))


def log1p(values: Complex) -> Complex:
    """log(1 + v) without cancellation near 0, where NumPy's complex log1p keeps 1e-16 of 1.

    Elsewhere 1 + v loses nothing, but |1 + v|² − 1 would: all digits where |1 + v| is 1e-8. At v = −1 finite.
    """
    spend(4 * values.size)
    real, imaginary = values.real, values.imag
    moved = 1 + real
    modulus = np.hypot(real, imaginary)
    small = modulus < 0.5
    near = np.where(small, real * (2 + real) + imaginary**2, 0.0)
    far = np.log(np.maximum(np.hypot(moved, imaginary), 1e-300))
    return joined(np.where(small, np.log1p(near) / 2, far), np.arctan2(imaginary, moved))
